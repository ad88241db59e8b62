package stream

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/turn"
)

// Source reads the committed facts of one run; an unknown run is NOT_FOUND.
type Source interface {
	Facts(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor) (*event.Facts, error)
}

// Heads returns how far runs have come.
type Heads interface {
	Heads(ctx context.Context, keys []feed.Key) ([]feed.Head, error)
}

// Node hosts the Readers.
type Node interface {
	RegisterLocal(kind string, produce func(cluster.Address) cluster.Behavior)
	Tell(a cluster.Address, m any)
	Send(a cluster.Address, m any) bool
	After(d time.Duration, f func())
}

// Config holds the hubs' dependencies and limits. A zero limit means the default beside it.
type Config struct {
	Node   Node
	Source Source
	Heads  Heads
	Log    zerolog.Logger
	Watch  time.Duration // 1 s between two checks of runs without a publisher

	// Peers and Carrier connect the hubs of a cluster. Without a Carrier, readers of runs on
	// other nodes follow the committed facts.
	Peers   Peers
	Carrier Carrier

	// Holds reports whether an actor still works on this node although another node owns it.
	// Lives reports whether a member may have such actors because it has not ended. nil means
	// none.
	Holds func(a cluster.Address) bool
	Lives func(m id.MemberID) bool
}

// Hubs holds the hubs of this node: the runs with a publisher or readers.
type Hubs struct {
	node    Node
	source  Source
	heads   Heads
	log     zerolog.Logger
	every   time.Duration
	retry   time.Duration
	reads   *turn.Places
	replays replays
	shelves [shards]shelf

	self    id.MemberID
	peers   Peers   // nil: every run lives here
	carrier Carrier // nil: no hub is mirrored
	holds   func(a cluster.Address) bool
	lives   func(m id.MemberID) bool
	join    time.Duration // joinWait
	silence time.Duration // after which a member that does not answer is given up
	grace   time.Duration // for messages in flight
	forget  time.Duration // after which a watch that is not renewed ends
	doubt   int           // rounds of the watch per check of all other runs with readers
	moved   chan struct{} // the member list has changed
	// left counts, per shard, the member lists that place it elsewhere, so that a shard that
	// leaves and returns at once is noticed.
	left [id.Shards]atomic.Uint32

	workers int
	jobs    chan job

	life   context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{}

	mu       sync.Mutex // guards the fields below
	born     map[id.UUID]*Reader
	watching map[key]struct{} // runs with readers and, as far as known, without a publisher
	outlets  map[uint64]*hub
	stopped  bool
	wg       sync.WaitGroup

	linking sync.Mutex // guards links
	links   map[id.MemberID]*link
}

// readTimeout limits a read of facts.
const readTimeout = 10 * time.Second

// mostReads is how many reads of facts run at a time, half of them of one tenant.
const mostReads = 16

// headsPage is how many runs one query checks.
const headsPage = 500

// New returns the hubs and registers their kind; call it before the node starts.
func New(cfg Config) *Hubs {
	if cfg.Watch <= 0 {
		cfg.Watch = time.Second
	}
	hs := &Hubs{
		node: cfg.Node, source: cfg.Source, heads: cfg.Heads, log: cfg.Log, every: cfg.Watch, retry: cfg.Watch,
		reads: turn.New(mostReads, mostReads/2), replays: replays{of: map[id.TenantID]int64{}}, workers: runtime.GOMAXPROCS(0), wake: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		born: map[id.UUID]*Reader{}, watching: map[key]struct{}{}, outlets: map[uint64]*hub{}, links: map[id.MemberID]*link{},
		holds: cfg.Holds, lives: cfg.Lives, join: joinWait, silence: 3 * cfg.Watch, grace: cfg.Watch / 3, forget: 10 * cfg.Watch, doubt: 5,
	}
	hs.jobs = make(chan job) // a worker takes the job at once, or the publisher does it
	for i := range hs.shelves {
		hs.shelves[i].hubs = map[key]*hub{}
	}
	hs.life, hs.cancel = context.WithCancel(context.Background())
	hs.node.RegisterLocal(msg.KindStream, hs.produce)
	if cfg.Peers != nil {
		hs.peers, hs.self = cfg.Peers, cfg.Peers.Member()
		hs.peers.OnChange(hs.changed)
		if cfg.Carrier != nil {
			hs.carrier = cfg.Carrier
			hs.carrier.Receive(hs.take, hs.lost)
		}
	}
	return hs
}

// Start begins the watch and the workers.
func (hs *Hubs) Start(context.Context) error {
	hs.wg.Go(hs.loop)
	if hs.peers != nil {
		hs.wg.Go(hs.tend)
	}
	for range hs.workers - 1 {
		hs.wg.Go(func() {
			for {
				select {
				case j := <-hs.jobs:
					j.run()
				case <-hs.life.Done():
					return
				}
			}
		})
	}
	return nil
}

// Stop ends the watch and the workers and waits for them. Readers end with their connections
// or with the node.
func (hs *Hubs) Stop() {
	hs.mu.Lock()
	hs.stopped = true
	hs.mu.Unlock()
	hs.cancel()
	hs.wg.Wait()
}

func (hs *Hubs) loop() {
	tick := time.NewTicker(hs.every)
	defer tick.Stop()
	for ticks := 1; ; {
		var doubted []feed.Key
		select {
		case <-tick.C:
			if ticks++; ticks%hs.doubt == 0 {
				doubted = hs.doubted()
			}
		case <-hs.wake:
		case <-hs.life.Done():
			return
		}
		if _, err := hs.runOnce(hs.life, doubted); err != nil && hs.life.Err() == nil {
			hs.log.Warn().Err(err).Msg("cannot read the state of watched runs")
		}
	}
}

// doubted returns the runs whose publisher has been silent for a while. The watch then checks
// them against the facts: however a publisher was lost, its readers catch up.
func (hs *Hubs) doubted() []feed.Key {
	var keys []feed.Key
	for _, h := range hs.allHubs() {
		h.mu.Lock()
		h.quiet = h.owned && h.pos == h.seen
		h.seen = h.pos
		if h.quiet && (len(h.readers) > 0 || h.outlet != nil) {
			keys = append(keys, feed.Key{Tenant: h.key.tenant, Run: h.key.run})
		}
		h.mu.Unlock()
	}
	return keys
}

// allHubs returns the hubs on all shelves.
func (hs *Hubs) allHubs() []*hub {
	var out []*hub
	for i := range hs.shelves {
		s := &hs.shelves[i]
		s.mu.Lock()
		for _, h := range s.hubs {
			out = append(out, h)
		}
		s.mu.Unlock()
	}
	return out
}

// runOnce makes the readers catch up whose run has no publisher, or a doubted one, and was
// committed further. It returns how many runs it found behind.
func (hs *Hubs) runOnce(ctx context.Context, doubted []feed.Key) (int, error) {
	hs.mu.Lock()
	keys := doubted
	for k := range hs.watching {
		keys = append(keys, feed.Key{Tenant: k.tenant, Run: k.run})
	}
	hs.mu.Unlock()
	n := 0
	for len(keys) > 0 {
		page := keys[:min(headsPage, len(keys))]
		keys = keys[len(page):]
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		heads, err := hs.heads.Heads(ctx, page)
		cancel()
		if err != nil {
			return n, err
		}
		byRun := make(map[id.RunID]feed.Head, len(heads))
		for _, h := range heads {
			byRun[h.Run] = h
		}
		for _, k := range page {
			n += hs.compare(key{k.Tenant, k.Run}, byRun[k.Run])
		}
	}
	return n, nil
}

// compare tells a run's readers how far the run has come. A run that has a publisher again,
// or no readers any more, is no longer watched.
func (hs *Hubs) compare(k key, head feed.Head) int {
	h := hs.hold(k, true) // under its lock no reader can begin to watch
	defer h.release()
	if h.owned && h.quiet && h.pos == h.seen && (head.Ended || h.pos.Seq < head.Seq) {
		lostPublishers.Inc()
		if h.mirror != nil {
			h.mirror.fail()
		} else {
			h.yield()
		}
	}
	if h.owned || len(h.readers) == 0 {
		hs.unwatch(k)
		return 0
	}
	n := 0
	for _, r := range h.readers {
		if r.state == live && (head.Ended || r.pos.Seq < head.Seq) {
			r.fall()
			n++
		}
	}
	if !head.Ended {
		h.want()
	}
	return n
}

// watch and unwatch may be called with a hub's lock held.
func (hs *Hubs) watch(k key) {
	hs.mu.Lock()
	hs.watching[k] = struct{}{}
	hs.mu.Unlock()
}

func (hs *Hubs) unwatch(k key) {
	hs.mu.Lock()
	delete(hs.watching, k)
	hs.mu.Unlock()
}

// kick makes the watch run now.
func (hs *Hubs) kick() {
	select {
	case hs.wake <- struct{}{}:
	default:
	}
}

// read reads facts, once one of the limited reads is free and it is the tenant's turn.
func (hs *Hubs) read(ctx context.Context, k key, c event.Cursor) (*event.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := hs.reads.Take(ctx, k.tenant); err != nil {
		return nil, unavailable(err)
	}
	defer hs.reads.Give(k.tenant)
	facts, err := hs.source.Facts(ctx, k.tenant, k.run, c)
	if err != nil {
		return nil, unavailable(err)
	}
	return facts, nil
}

// shared is one read of facts for all readers of a run that fell behind before it began.
type shared struct {
	from  event.Pos // the earliest position of these readers; guarded by the hub's lock
	done  chan struct{}
	facts *event.Facts
	err   error
}

// readShared is read for a Reader that has everything up to from. However many readers of a
// run ask, at most two reads serve them: the one in progress, for the readers that joined
// before it began, and the next one.
func (hs *Hubs) readShared(h *hub, from event.Pos) (*event.Facts, error) {
	h.mu.Lock()
	s := h.next
	if s != nil {
		if from.Before(s.from) {
			s.from = from
		}
		h.mu.Unlock()
		<-s.done // bounded by the read's own time-out
		return s.facts, s.err
	}
	s = &shared{from: from, done: make(chan struct{})}
	before := h.reading
	h.next = s
	h.mu.Unlock()
	if before != nil {
		<-before.done
	}
	h.mu.Lock()
	c := event.Cursor{Full: true, Since: -1, After: s.from}
	h.next, h.reading = nil, s // readers that ask from now on fell behind after this read
	h.mu.Unlock()
	s.facts, s.err = hs.read(hs.life, h.key, c)
	close(s.done)
	h.mu.Lock()
	if h.reading == s {
		h.reading = nil
	}
	h.mu.Unlock()
	return s.facts, s.err
}

// unavailable returns the problem for facts that cannot be read.
func unavailable(err error) error {
	var p *problem.Error
	if errors.As(err, &p) || errors.Is(err, context.Canceled) {
		return err
	}
	return errors.Join(err, problem.Unavailable("The run's events cannot be read now.", time.Second))
}

// spawn runs f in a goroutine that Stop waits for. After Stop it does nothing and returns
// false. It may be called with any lock except hs.mu held.
func (hs *Hubs) spawn(f func()) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.stopped {
		return false
	}
	hs.wg.Go(f)
	return true
}

// adopt keeps a Reader until its actor exists.
func (hs *Hubs) adopt(r *Reader) {
	hs.mu.Lock()
	hs.born[r.id] = r
	hs.mu.Unlock()
}

// disown reverts adopt, for a Reader whose actor was never made.
func (hs *Hubs) disown(r *Reader) {
	hs.mu.Lock()
	delete(hs.born, r.id)
	hs.mu.Unlock()
}

func (hs *Hubs) produce(a cluster.Address) cluster.Behavior {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if r := hs.born[a.ID]; r != nil {
		delete(hs.born, a.ID)
		return r
	}
	return noReader{}
}

// noReader drops messages that arrive too late for a Reader.
type noReader struct{}

func (noReader) Receive(c cluster.Context, _ any) { c.Stop() }
func (noReader) Stopped()                         {}
