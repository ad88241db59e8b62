package sse

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Subscriber feeds a stream.
type Subscriber interface {
	// Attach is called once, after the response head is sent, on a goroutine of its own. It
	// may block, and should return when a Send returns false.
	Attach(c *Conn)
	// Gone is called exactly once for every subscriber given to Open, after Attach has
	// returned and the stream has ended for whatever reason, also if the stream never began.
	// It must not block.
	Gone()
}

// Owner is the caller on whose behalf a stream is open.
type Owner struct {
	Tenant   id.TenantID
	Key      id.KeyID
	User     id.UserID
	Session  id.SessionID
	Role     lifecycle.Role // when the stream was opened; what it shows may depend on it
	EmbedKey id.EmbedKeyID  // for a visitor's stream
	EndUser  id.EndUserID   // the visitor's end user, if known
	KeyEpoch int64          // generation of the embed key when the visitor's session was minted
	Origin   string         // origin of the visitor's page
	Until    time.Time      // the stream is cut at the first heartbeat after it; zero means never
	// Since is the Mark from before authentication: any later CloseWhere or Recheck applies
	// to this stream too.
	Since uint64
}

// Reason is why a stream ended.
type Reason uint8

// Reasons. All but Closed are cuts.
const (
	Closed   Reason = iota // the subscriber closed it
	Hangup                 // the client went away
	Overflow               // more than Config.MaxPending bytes waited for the client
	Stalled                // the client took nothing for Config.Stall
	Revoked                // cut by CloseWhere, Recheck or Cut, or past Owner.Until
	Drained                // cut by Drain
	Flooded                // the client sent too much on a read-only stream
	reasons
)

// String returns the metric label.
func (r Reason) String() string {
	return [reasons]string{"closed", "hangup", "overflow", "stalled", "revoked", "drained", "flooded"}[r]
}

// Reasons returns every reason.
func Reasons() []Reason {
	rs := make([]Reason, reasons)
	for i := range rs {
		rs[i] = Reason(i)
	}
	return rs
}

// Config bounds the streams. A zero field means the default beside it.
type Config struct {
	Heartbeat   time.Duration // 15 s
	Stall       time.Duration // 30 s: a reader without progress is cut
	MaxPending  int           // 256 KiB waiting for one reader
	Unsent      int           // 64 KiB: the bytes that the kernel may hold unsent for one reader
	HeadTimeout time.Duration // 10 s to send the response head
	Goroutines  bool          // never take over a descriptor
}

func (c Config) withDefaults() Config {
	if c.Heartbeat <= 0 {
		c.Heartbeat = 15 * time.Second
	}
	if c.Stall <= 0 {
		c.Stall = 30 * time.Second
	}
	if c.MaxPending <= 0 {
		c.MaxPending = 256 << 10
	}
	if c.Unsent <= 0 {
		c.Unsent = 64 << 10
	}
	if c.HeadTimeout <= 0 {
		c.HeadTimeout = 10 * time.Second
	}
	return c
}

const (
	wheelSlots = 64 // heartbeats are spread over this many ticks
	stallTicks = 8  // a stalled reader is checked this many times before it is cut
	// maxCuts limits how many calls of CloseWhere a stream may miss while it opens; past that
	// the stream is cut.
	maxCuts = 1024
)

// Streams is the set of open streams.
type Streams struct {
	cfg    Config
	frames atomic.Int64
	bytes  atomic.Int64
	full   atomic.Int64
	ends   [reasons]atomic.Int64
	open   atomic.Int64

	mu      sync.Mutex // guards the fields below
	slots   [][]*Conn
	next    int
	drained bool
	cuts    []func(Owner) bool // the latest calls of CloseWhere and Recheck, the oldest first
	made    uint64             // number of all such calls

	stallMu sync.Mutex // guards stalled
	stalled map[*Conn]struct{}

	burialMu sync.Mutex // guards dead
	dead     []*Conn
	wake     chan struct{}

	pollers pollers
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

// ErrDraining is returned by Open after Drain was called.
var ErrDraining = errors.New("the streams are being drained")

// New returns an empty set. Stop ends it.
func New(cfg Config) (*Streams, error) {
	s := &Streams{
		cfg:     cfg.withDefaults(),
		slots:   make([][]*Conn, wheelSlots),
		stalled: map[*Conn]struct{}{},
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
	}
	if !cfg.Goroutines {
		if err := s.pollers.start(s, runtime.GOMAXPROCS(0)); err != nil {
			return nil, err
		}
	}
	for _, loop := range []func(){s.beat, s.sweep, s.bury} {
		s.wg.Go(loop)
	}
	return s, nil
}

// Open takes over c, sends head and lets sub feed the stream. It returns when Attach does. On
// an error c is closed and sub is notified.
func (s *Streams) Open(c net.Conn, head []byte, owner Owner, sub Subscriber) error {
	if err := s.begin(c, head); err != nil {
		_ = c.Close()
		sub.Gone()
		return err
	}
	conn := &Conn{s: s, owner: owner, sub: sub}
	s.mu.Lock()
	if s.drained {
		s.mu.Unlock()
		_ = c.Close()
		sub.Gone()
		return ErrDraining
	}
	if err := s.take(conn, c); err != nil {
		s.mu.Unlock()
		_ = c.Close()
		sub.Gone()
		return err
	}
	s.open.Add(1)
	conn.slot = s.next
	s.next = (s.next + 1) % wheelSlots
	conn.pos = len(s.slots[conn.slot])
	s.slots[conn.slot] = append(s.slots[conn.slot], conn)
	revoked := s.revoked(owner)
	s.mu.Unlock()

	defer conn.settle()
	if revoked {
		conn.end(Revoked)
	}
	sub.Attach(conn)
	return nil
}

func (s *Streams) begin(c net.Conn, head []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(s.cfg.HeadTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(head); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// take gives conn its socket: a descriptor of its own if possible, otherwise a pair of
// goroutines around c.
func (s *Streams) take(conn *Conn, c net.Conn) error {
	if !s.cfg.Goroutines {
		taken, err := s.pollers.take(conn, c)
		if taken || err != nil {
			return err
		}
	}
	p := &pump{conn: c, wake: make(chan struct{}, 1), over: make(chan struct{})}
	conn.sock = p
	s.wg.Add(2)
	go func() { defer s.wg.Done(); p.write(conn) }()
	go func() { defer s.wg.Done(); p.listen(conn) }()
	return nil
}

// Count returns the number of open streams.
func (s *Streams) Count() int { return int(s.open.Load()) }

// Stats are counts since the start.
type Stats struct {
	Open, Frames, Bytes int64
	Full                int64 // how often a socket was full
	Ends                [reasons]int64
}

// Stats returns the counts.
func (s *Streams) Stats() Stats {
	st := Stats{Open: s.open.Load(), Frames: s.frames.Load(), Bytes: s.bytes.Load(), Full: s.full.Load()}
	for i := range st.Ends {
		st.Ends[i] = s.ends[i].Load()
	}
	return st
}

// Mark returns the current position in the sequence of CloseWhere and Recheck calls.
func (s *Streams) Mark() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// revoked reports whether a CloseWhere or Recheck after the owner's Mark applies to it. s.mu
// is held.
func (s *Streams) revoked(o Owner) bool {
	missed := s.made - o.Since
	if missed > uint64(len(s.cuts)) {
		return true
	}
	return slices.ContainsFunc(s.cuts[uint64(len(s.cuts))-missed:], func(match func(Owner) bool) bool { return match(o) })
}

// keepCut records match for streams that are being opened. s.mu is held.
func (s *Streams) keepCut(match func(Owner) bool) {
	if len(s.cuts) == maxCuts {
		s.cuts = slices.Delete(s.cuts, 0, maxCuts/2)
	}
	s.cuts = append(s.cuts, match)
	s.made++
}

// CloseWhere cuts the streams whose owner matches, at once and without a terminal frame, and
// returns their number. A stream that is being opened for an owner authenticated earlier is
// cut as soon as it is open. match is kept for that and must stay callable.
func (s *Streams) CloseWhere(match func(Owner) bool) int {
	s.mu.Lock()
	s.keepCut(match)
	s.mu.Unlock()
	n := 0
	for _, c := range s.all() {
		if match(c.owner) && c.end(Revoked) {
			n++
		}
	}
	return n
}

// Recheck passes the distinct owners of all open streams to live, without the fields that
// differ between an owner's streams (Until and Since). It cuts the streams whose owner is no
// longer allowed and returns their number. A stream that is being opened for an owner
// authenticated earlier is cut as soon as it is open, because live was not asked about it:
// its client authenticates again.
func (s *Streams) Recheck(live func(owners []Owner) ([]bool, error)) (cut int, err error) {
	s.mu.Lock()
	s.keepCut(func(Owner) bool { return true })
	open := s.allOpen()
	s.mu.Unlock()
	var owners []Owner
	streams := map[Owner][]*Conn{}
	for _, c := range open {
		o := c.owner
		o.Until, o.Since = time.Time{}, 0
		if streams[o] == nil {
			owners = append(owners, o)
		}
		streams[o] = append(streams[o], c)
	}
	if len(owners) == 0 {
		return 0, nil
	}
	yes, err := live(owners)
	if err != nil {
		return 0, err
	}
	for i, o := range owners {
		if i < len(yes) && yes[i] {
			continue
		}
		for _, c := range streams[o] {
			if c.end(Revoked) {
				cut++
			}
		}
	}
	return cut, nil
}

func (s *Streams) all() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allOpen()
}

// allOpen returns the open streams. s.mu is held.
func (s *Streams) allOpen() []*Conn {
	all := make([]*Conn, 0, s.open.Load())
	for _, slot := range s.slots {
		all = append(all, slot...)
	}
	return all
}

// Drain refuses new streams and cuts the open ones in random order, spread over window, so
// that their clients do not all return at once. When ctx ends the rest is cut at once.
func (s *Streams) Drain(ctx context.Context, window time.Duration) {
	s.mu.Lock()
	s.drained = true
	s.mu.Unlock()
	all := s.all()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, c := range all {
		due := window*time.Duration(i)/time.Duration(len(all)) - time.Since(start)
		if due > 0 && ctx.Err() == nil {
			timer.Reset(due)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		c.end(Drained)
	}
}

// Stop cuts the streams still open and waits until every subscriber was notified and every
// goroutine has ended.
func (s *Streams) Stop() {
	s.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Drain(ctx, 0)
		close(s.stop)
		s.pollers.stop()
	})
	s.wg.Wait()
}

// beat sends the heartbeats, one slot of the wheel per tick.
func (s *Streams) beat() {
	tick := time.NewTicker(max(s.cfg.Heartbeat/wheelSlots, time.Millisecond))
	defer tick.Stop()
	var due []*Conn
	start, done := time.Now(), 0
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			// Count ticks by the clock, so that a late tick does not delay all later beats.
			for want := int(now.Sub(start) * wheelSlots / s.cfg.Heartbeat); done < want; done++ {
				s.mu.Lock()
				due = append(due[:0], s.slots[done%wheelSlots]...)
				s.mu.Unlock()
				for _, c := range due {
					if until := c.owner.Until; !until.IsZero() && !now.Before(until) {
						c.end(Revoked)
						continue
					}
					c.beat()
				}
				clear(due)
			}
		}
	}
}

// sweep cuts readers that take nothing.
func (s *Streams) sweep() {
	tick := time.NewTicker(max(s.cfg.Stall/stallTicks, time.Millisecond))
	defer tick.Stop()
	var due []*Conn
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.stallMu.Lock()
			due = due[:0]
			for c := range s.stalled {
				due = append(due, c)
			}
			s.stallMu.Unlock()
			for _, c := range due {
				c.age()
			}
			clear(due)
		}
	}
}

// bury notifies subscribers that their stream has ended. It is the only caller of Gone for
// attached streams, and holds no lock while it calls.
func (s *Streams) bury() {
	for {
		select {
		case <-s.wake:
			s.buryAll()
		case <-s.stop:
			s.buryAll()
			return
		}
	}
}

func (s *Streams) buryAll() {
	s.burialMu.Lock()
	dead := s.dead
	s.dead = nil
	s.burialMu.Unlock()
	for _, c := range dead {
		s.mu.Lock()
		slot := s.slots[c.slot]
		last := len(slot) - 1
		slot[c.pos] = slot[last]
		slot[c.pos].pos = c.pos
		slot[last] = nil
		s.slots[c.slot] = slot[:last]
		s.mu.Unlock()
		c.mourn()
	}
}

func (s *Streams) died(c *Conn, why Reason) {
	s.open.Add(-1)
	s.ends[why].Add(1)
	s.burialMu.Lock()
	s.dead = append(s.dead, c)
	s.burialMu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// watch adds c to the streams that sweep checks.
func (s *Streams) watch(c *Conn) {
	s.full.Add(1)
	s.stallMu.Lock()
	s.stalled[c] = struct{}{}
	s.stallMu.Unlock()
}

func (s *Streams) unwatch(c *Conn) {
	s.stallMu.Lock()
	delete(s.stalled, c)
	s.stallMu.Unlock()
}

func (s *Streams) sent(frames, bytes int) {
	s.frames.Add(int64(frames))
	s.bytes.Add(int64(bytes))
}

var beatBytes = event.Beat.Bytes()
