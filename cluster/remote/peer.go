package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentsvc/cluster"
	"agentsvc/cluster/remote/wire"
	"agentsvc/schemas/id"
	"agentsvc/schemas/pause"
)

// Parameters for opening a stream.
const (
	connectTimeout   = time.Second
	handshakeTimeout = 2 * time.Second // from the connection until the other side's hello
	firstBackoff     = 5 * time.Millisecond
	lastBackoff      = 200 * time.Millisecond
	window           = 4 << 20 // bytes in flight that the receiver has not read
)

// peer sends to another member. Its loop lives from the first message until the member leaves
// the list.
type peer struct {
	r      *Remote
	member id.MemberID
	addr   string
	wake   chan struct{}   // messages were queued
	ctx    context.Context // ends with leave
	cancel context.CancelFunc
	warned sometimes

	mu      sync.Mutex // guards the fields below
	queue   []item     // not yet handed to a stream
	queued  int        // size of queue in bytes
	asked   map[uint64]*waiter
	lastID  uint64
	running bool // the loop is running
	sending bool // a batch is being handed to the stream
	up      bool
	failed  bool // the last attempt to open a stream failed
	closing bool // the stream ends after the queue is sent
	left    bool
}

type item struct {
	e *wire.Envelope
	w *waiter // nil for a Tell
}

// waiter is a caller that waits for an answer. The peer's lock guards its fields except out.
type waiter struct {
	id    uint64
	until time.Time
	over  bool // answered, or the caller has left
	out   chan answer
}

type answer struct {
	reply *wire.Envelope
	err   error
}

func newPeer(r *Remote, m id.MemberID, addr string) *peer {
	p := &peer{r: r, member: m, addr: addr, wake: make(chan struct{}, 1), asked: map[uint64]*waiter{}}
	p.ctx, p.cancel = context.WithCancel(r.ctx)
	return p
}

// enqueue queues e for the stream; w waits for its answer.
func (p *peer) enqueue(e *wire.Envelope, w *waiter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.left:
		return cluster.ErrUnknownMember
	case p.closing:
		return errStopping
	}
	n := size(e)
	if len(p.queue)+len(p.asked) >= maxQueued || p.queued+n > maxQueuedSize && len(p.queue) > 0 {
		return errFull
	}
	if w != nil {
		p.lastID++
		e.Id, w.id = p.lastID, p.lastID
	}
	p.queue = append(p.queue, item{e, w})
	p.queued += n
	if !p.running {
		p.running = true
		p.r.wg.Add(1)
		go p.loop()
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// forget removes a waiter whose caller has left.
func (p *peer) forget(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.over = true
	if p.asked[w.id] == w {
		delete(p.asked, w.id)
		inflight.Dec()
	}
}

// owes reports whether Tells can still be sent.
func (p *peer) owes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.failed && (len(p.queue) > 0 || p.sending) || p.up && p.closing
}

// finish lets the stream end once the member has received everything.
func (p *peer) finish() {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// leave ends the peer permanently.
func (p *peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return
	}
	p.left, p.up = true, false
	p.cancel()
	p.fail()
	droppedGone.Add(float64(len(p.queue)))
	p.queue, p.queued = nil, 0
	streams.drop(p)
}

// broken records that a stream ended or could not be opened. It reports whether no further
// stream is wanted.
func (p *peer) broken() (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up {
		streams.set(p, false)
	}
	p.up = false
	p.fail()
	return p.closing
}

// fail tells every waiter what became of its message. Queued Tells stay. The lock is held.
func (p *peer) fail() {
	for _, w := range p.asked {
		w.over = true
		w.out <- answer{err: cluster.ErrLost}
	}
	lostTotal.Add(float64(len(p.asked)))
	inflight.Sub(float64(len(p.asked)))
	clear(p.asked)
	told := p.queue[:0]
	p.queued = 0
	for _, it := range p.queue {
		switch {
		case it.w == nil:
			told = append(told, it)
			p.queued += size(it.e)
		case !it.w.over:
			it.w.over = true
			it.w.out <- answer{err: cluster.ErrUnknownMember}
		}
	}
	clear(p.queue[len(told):])
	p.queue = told
}

// take moves as much as one batch may hold from the queue into b. Asks count as sent from
// here on. It returns the number of Tells, and whether this is the last batch.
func (p *peer) take(b *wire.Batch, now time.Time) (told int, last bool) {
	clear(b.Envelopes)
	b.Envelopes = b.Envelopes[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up { // it broke: the queue has not been sent
		return 0, false
	}
	bytes, n := 0, 0
	for _, it := range p.queue {
		s := size(it.e)
		if len(b.Envelopes) == maxBatch || len(b.Envelopes) > 0 && bytes+s > maxBatchBytes {
			break
		}
		n++
		p.queued -= s
		if it.w == nil {
			told++
		} else if it.w.over {
			continue
		} else {
			it.e.RemainingMs = remaining(it.w.until.Sub(now))
			p.asked[it.w.id] = it.w
			inflight.Inc()
		}
		bytes += s
		b.Envelopes = append(b.Envelopes, it.e)
	}
	clear(p.queue[:n])
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	p.sending = len(b.Envelopes) > 0
	return told, p.closing && len(p.queue) == 0
}

func (p *peer) sent() {
	p.mu.Lock()
	p.sending = false
	p.mu.Unlock()
}

// answered passes a reply to its waiter.
func (p *peer) answered(e *wire.Envelope) {
	if e.Kind != wire.Kind_REPLY {
		return // from a later version
	}
	p.mu.Lock()
	w := p.asked[e.Id]
	if w == nil {
		p.mu.Unlock()
		droppedLate.Inc()
		return
	}
	delete(p.asked, e.Id)
	w.over = true
	p.mu.Unlock()
	inflight.Dec()
	w.out <- answer{reply: e}
}

// loop keeps a stream open, and reopens it when it breaks.
func (p *peer) loop() {
	defer p.r.wg.Done()
	back := firstBackoff
	for {
		opened, err := p.link(p.ctx)
		last := p.broken()
		p.mu.Lock()
		p.failed = !opened
		p.mu.Unlock()
		if last || p.ctx.Err() != nil {
			return
		}
		if p.warned.now() {
			p.r.log.Warn().Err(err).Stringer("peer", p.member).Str("addr", p.addr).Bool("was_open", opened).Msg("no stream to a member")
		}
		if opened {
			back = firstBackoff
			continue
		}
		if !pause.For(p.ctx, back/2+rand.N(back)) {
			return
		}
		back = min(2*back, lastBackoff)
	}
}

var errElsewhere = errors.New("remote: another member answers at the address")

// link opens one stream and sends on it until it breaks. opened means that the member was
// reached.
func (p *peer) link(ctx context.Context) (opened bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer := net.Dialer{Timeout: connectTimeout}
	raw, err := dialer.DialContext(ctx, "tcp", p.addr)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			refusedTotal.Inc()
			p.r.cfg.OnRefused(p.member)
		}
		return false, err
	}
	heard := newHeardConn(raw)
	defer heard.Close()
	// gRPC would redial on its own, with its own back-off; this client has one connection and
	// ends with it.
	once := make(chan net.Conn, 1)
	once <- heard
	conn, err := grpc.NewClient("passthrough:///"+p.addr,
		grpc.WithTransportCredentials(p.r.client),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errors.New("remote: the connection was used up")
			}
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrame), grpc.MaxCallSendMsgSize(maxFrame)),
	)
	if err != nil {
		return false, fmt.Errorf("make a client: %w", err)
	}
	defer conn.Close()
	defer heard.Close() // runs before conn's Close, which would wait until a goodbye is written

	late := time.AfterFunc(handshakeTimeout, func() { cancel(); heard.Close() })
	defer late.Stop()
	stream, err := wire.NewPeerClient(conn).Link(ctx)
	if err != nil {
		return false, err
	}
	if err := p.greet(stream); err != nil {
		if errors.Is(err, errElsewhere) {
			refusedTotal.Inc()
			p.r.cfg.OnRefused(p.member)
		}
		return false, err
	}
	if !late.Stop() {
		return false, context.DeadlineExceeded
	}
	return true, p.converse(ctx, cancel, stream, heard)
}

// greet exchanges hellos. Nothing else is sent before: another process at the member's
// address must not receive messages that are not for it.
func (p *peer) greet(stream grpc.BidiStreamingClient[wire.Batch, wire.Batch]) error {
	err := stream.Send(&wire.Batch{Hello: &wire.Hello{
		From: p.r.cfg.Self.UUID[:], To: p.member.UUID[:], Major: protocolMajor, Minor: protocolMinor, Build: p.r.cfg.Build,
		Number: p.r.links.Add(1),
	}})
	if err != nil && !errors.Is(err, errEOF) {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		if status.Code(err) == codes.NotFound {
			return errElsewhere
		}
		return err
	}
	from, ok := uuid(first.GetHello().GetFrom())
	if !ok || first.Hello.Major != protocolMajor {
		return errors.New("remote: the member speaks another protocol")
	}
	if from != p.member.UUID {
		return errElsewhere
	}
	return nil
}

// converse sends what is queued and passes on answers until the stream breaks.
func (p *peer) converse(ctx context.Context, cancel context.CancelFunc, stream grpc.BidiStreamingClient[wire.Batch, wire.Batch], heard *heardConn) error {
	p.mu.Lock()
	p.failed = false
	if p.up = !p.left; p.up {
		streams.set(p, true)
	}
	p.mu.Unlock()

	silence := p.r.cfg.Beat * 5 / 2
	watch := heard.watch(silence, func() { cancel(); heard.Close() })
	defer watch.stop()

	received := make(chan error, 1)
	go func() {
		for {
			b, err := stream.Recv()
			if err != nil {
				// Do this at once, before the sender notices: it may be blocked.
				p.broken()
				cancel()
				heard.Close()
				received <- err
				return
			}
			for _, e := range b.Envelopes {
				p.answered(e)
			}
		}
	}()
	err := p.send(ctx, stream)
	cancel()
	heard.Close()
	if cause := <-received; err == nil || errors.Is(err, errEOF) {
		err = cause
	}
	return err
}

func (p *peer) send(ctx context.Context, stream grpc.BidiStreamingClient[wire.Batch, wire.Batch]) error {
	batch := &wire.Batch{}
	for {
		told, last := p.take(batch, time.Now())
		if len(batch.Envelopes) == 0 {
			if last {
				if err := stream.CloseSend(); err != nil {
					return err
				}
				<-ctx.Done() // the member ends the stream when it has read everything
				return ctx.Err()
			}
			select {
			case <-p.wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		batchSizes.Observe(float64(len(batch.Envelopes)))
		err := stream.Send(batch)
		p.sent()
		if err != nil {
			droppedSent.Add(float64(told))
			return err
		}
	}
}

// heardConn is a connection that records when data last arrived.
type heardConn struct {
	net.Conn
	last  atomic.Int64 // nanoseconds since begun
	begun time.Time
	once  sync.Once
}

func newHeardConn(c net.Conn) *heardConn { return &heardConn{Conn: c, begun: time.Now()} }

// Read implements net.Conn.
func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.last.Store(int64(time.Since(c.begun)))
	}
	return n, err
}

// Close implements net.Conn. Later calls change nothing.
func (c *heardConn) Close() (err error) {
	c.once.Do(func() { err = c.Conn.Close() })
	return err
}

// silenceWatch calls a function once nothing was received for a given time.
type silenceWatch struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	over  bool
}

func (c *heardConn) watch(limit time.Duration, silent func()) *silenceWatch {
	w := &silenceWatch{}
	var check func()
	check = func() {
		left := limit - (time.Since(c.begun) - time.Duration(c.last.Load()))
		if left <= 0 {
			silent()
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.over {
			w.timer = time.AfterFunc(left, check)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(limit, check)
	return w
}

func (w *silenceWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}
