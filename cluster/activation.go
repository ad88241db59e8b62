package cluster

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Behavior is what an actor does. It receives one message at a time. Stopped is called
// after the last one, and nothing is called after Stopped.
type Behavior interface {
	Receive(c Context, m any)
	Stopped()
}

// Finisher is a Behavior that finishes its work in flight before it leaves a node that
// does not own its shard any more, or that finishes (Node.Finish). Such a Behavior checks
// Node.Leaves after each message and stops by itself once it has no work in flight. Until
// then its activation receives the messages that are asked and told on this node.
type Finisher interface {
	Behavior
	// Busy reports whether work is in flight. It is called between messages.
	Busy() bool
	// Holds reports whether this activation has loaded the actor's state and works on it.
	// It may be called at any time and from any goroutine.
	Holds() bool
}

// Context gives a Behavior its activation and the message that it is receiving. Reply
// and HasSender are valid during the running Receive only.
type Context interface {
	// Self is the actor's address. For a shared kind it is the address of the message.
	Self() Address
	// HasSender reports whether a caller waits for a reply.
	HasSender() bool
	// Deadline is when the asker stops waiting; zero without an asker.
	Deadline() time.Time
	// Reply answers the asker. If v is an error, the Ask returns it as its error.
	// Without an asker, and after the first call, Reply does nothing. An asker without
	// an answer when Receive returns gets nil.
	Reply(v any)
	// Later defers the message m that is being received: its asker is answered after
	// Later.Resume, and not when Receive returns.
	Later(m any) *Later
	// Stop ends the activation after this message. Later messages go to the
	// next activation.
	Stop()
	// Ref sends to this activation only.
	Ref() Ref
	Node() *Node
}

// Ref is one activation. Messages sent to it never reach its successor.
type Ref struct{ a *activation }

// Send delivers m to the activation. It reports false, and does nothing, when
// the activation has ended.
func (r Ref) Send(m any) bool { return r.a.post(own{m}) }

// own is a message to one activation and to none of its successors.
type own struct{ msg any }

// Later is a message whose Receive continues when other data has been read.
type Later struct {
	a   *activation
	to  Address
	msg any      // as it arrived
	cur *request // nil: it was told
}

// Resume makes the activation receive m, with the asker of the message, or without one if
// the asker has left. If the activation has ended meanwhile, the message itself goes to
// the next activation. Resume is called once, from any goroutine.
func (l *Later) Resume(m any) {
	if !l.a.post(resumed{l, m}) {
		l.a.node.deliver(l.to, l.message())
	}
}

// message returns the message for the next activation.
func (l *Later) message() any {
	if l.cur != nil {
		return l.cur
	}
	return l.msg
}

// resumed is the message that continues a Later.
type resumed struct {
	of  *Later
	msg any
}

// addressed is a message in a mailbox that several addresses share.
type addressed struct {
	to  Address
	msg any
}

// request is one Ask in flight. It is answered exactly once: by Receive, by the mailbox
// that cannot deliver it, or by lapse if the asker has left. After lapse it is not used
// again.
type request struct {
	msg   any
	until time.Time // when the asker gives up at the latest
	out   chan any
	timer *time.Timer
	gone  atomic.Bool // the asker gave up

	// reply answers an asker on another member, instead of out, timer and gone.
	reply func(any)
}

func (r *request) resolve(v any) {
	if r.reply != nil {
		r.reply(v)
		return
	}
	r.out <- v
}

// left reports whether the asker has stopped waiting for the reply.
func (r *request) left() bool {
	return r.gone.Load() || r.reply != nil && !time.Now().Before(r.until)
}

// lapse ends a request whose asker has left and that is not received.
func (r *request) lapse() {
	if r.reply != nil {
		r.reply(context.DeadlineExceeded)
	}
}

var requests = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &request{out: make(chan any, 1), timer: t}
}}

// throughput is how many messages an actor receives before it yields.
const throughput = 300

// maxIdleQueue is the queue capacity that an idle mailbox keeps.
const maxIdleQueue = 16

// activation is one live actor. It is protoactor's actor and mailbox and our Context in
// one object, so that an idle activation stays small. Its mailbox loses nothing: when it
// is closed, it passes everything on to the next activation.
type activation struct {
	node     *Node
	placer   *placer
	addr     Address
	behavior Behavior
	invoker  actor.MessageInvoker
	schedule func()
	dispatch actor.Dispatcher
	depth    *atomic.Int64   // shared by the kind
	awaited  *sync.WaitGroup // of a Finish; guarded by the placer's lock

	// Touched by the running goroutine only.
	cur   *request
	to    *addressed // the message being received, if the mailbox is shared
	batch []any      // taken from in; not yet received from index next on
	next  int
	over  bool

	mu      sync.Mutex // guards the fields below
	in      []any
	system  []any
	running bool
	closed  bool
}

var (
	_ actor.Actor   = (*activation)(nil)
	_ actor.Mailbox = (*activation)(nil)
	_ Context       = (*activation)(nil)
)

func (a *activation) HasSender() bool { return a.cur != nil }
func (a *activation) Node() *Node     { return a.node }
func (a *activation) Ref() Ref        { return Ref{a} }
func (a *activation) Stop()           { a.PostSystemMessage(&actor.Stop{}) }

func (a *activation) Later(m any) *Later {
	l := &Later{a: a, to: a.Self(), msg: m, cur: a.cur}
	a.cur = nil
	return l
}

// leave is the system message that ends an activation without work in flight.
type leave struct{}

// leave ends the activation, unless it has work to finish.
func (a *activation) leave() {
	if a.finisher() == nil {
		a.Stop()
	} else {
		a.PostSystemMessage(leave{})
	}
}

// finisher returns the Behavior if it is a Finisher, else nil.
func (a *activation) finisher() Finisher {
	k, _ := a.behavior.(Finisher)
	return k
}

func (a *activation) Deadline() time.Time {
	if a.cur == nil {
		return time.Time{}
	}
	return a.cur.until
}

func (a *activation) Self() Address {
	if a.to != nil {
		return a.to.to
	}
	return a.addr
}

func (a *activation) Reply(v any) {
	if r := a.cur; r != nil {
		a.cur = nil
		r.resolve(v)
	}
}

// Receive is called by protoactor's context, in the mailbox's goroutine.
func (a *activation) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started, *actor.Stopping:
	case *actor.Stopped:
		a.over = true
		a.guarded(func() { a.behavior.Stopped() })
	case *request:
		a.cur = m
		a.receive(m.msg)
		a.Reply(nil)
	case own:
		a.receive(m.msg)
	case resumed:
		if r := m.of.cur; r != nil && r.left() {
			r.lapse()
		} else {
			a.cur = r
		}
		a.receive(m.msg)
		a.Reply(nil)
	default:
		a.receive(m)
	}
}

func (a *activation) receive(m any) {
	defer a.rescue()
	a.behavior.Receive(a, m)
}

func (a *activation) guarded(f func()) {
	defer a.rescue()
	f()
}

// rescue recovers a panic of the Behavior. It answers the asker, which would wait until
// its deadline otherwise, and ends the activation, because its memory cannot be trusted
// any more.
func (a *activation) rescue() {
	if r := recover(); r != nil {
		self := a.Self()
		panics.WithLabelValues(self.Kind).Inc()
		a.node.log.Error().Str("kind", self.Kind).Stringer("tenant", self.Tenant).Stringer("id", self.ID).
			Interface("panic", r).Bytes("stack", debug.Stack()).Msg("actor panicked")
		a.Reply(ErrPanicked)
		a.Stop()
	}
}

// post queues m and returns true, unless the mailbox is closed.
func (a *activation) post(m any) bool {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return false
	}
	a.in = append(a.in, m)
	a.depth.Add(1)
	a.wake()
	return true
}

// wake starts the goroutine of an idle mailbox and unlocks it.
func (a *activation) wake() {
	start := !a.running
	a.running = true
	a.mu.Unlock()
	if start {
		a.dispatch.Schedule(a.schedule)
	}
}

// PostUserMessage is called by protoactor.
func (a *activation) PostUserMessage(m any) {
	if !a.post(m) {
		a.node.deliver(a.addr, m)
	}
}

// PostSystemMessage queues a message of the life cycle. A closed mailbox drops it.
func (a *activation) PostSystemMessage(m any) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	a.system = append(a.system, m)
	a.wake()
}

func (a *activation) RegisterHandlers(i actor.MessageInvoker, d actor.Dispatcher) {
	a.invoker, a.dispatch = i, d
	a.schedule = a.run
}

func (a *activation) Start() {}

func (a *activation) UserMessageCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.in)
}

// run receives until the mailbox is empty. At most one run of a mailbox exists.
func (a *activation) run() {
	for n := 1; ; n++ {
		if n%throughput == 0 {
			runtime.Gosched()
		}
		a.mu.Lock()
		if len(a.system) > 0 {
			m := a.system[0]
			if a.system = a.system[1:]; len(a.system) == 0 {
				a.system = nil
			}
			a.mu.Unlock()
			if _, ok := m.(leave); ok {
				if a.finisher().Busy() {
					continue
				}
				m = &actor.Stop{}
			}
			a.invoker.InvokeSystemMessage(m)
			if a.over {
				a.close()
				return
			}
			continue
		}
		if a.next == len(a.batch) {
			a.batch, a.in = a.in, a.batch[:0]
			a.next = 0
			if len(a.batch) == 0 {
				if cap(a.batch) > maxIdleQueue {
					a.batch = nil
				}
				if cap(a.in) > maxIdleQueue {
					a.in = nil
				}
				a.running = false
				a.mu.Unlock()
				return
			}
		}
		a.mu.Unlock()
		m := a.batch[a.next]
		a.batch[a.next] = nil
		a.next++
		a.depth.Add(-1)
		if a.to, _ = m.(*addressed); a.to != nil {
			m = a.to.msg
		}
		if r, ok := m.(*request); ok && r.left() {
			r.lapse()
			continue
		}
		a.invoker.InvokeUserMessage(m)
	}
}

// inherit puts the messages that a former activation left before all others. The
// placer's lock is held, so no other goroutine has found a yet.
func (a *activation) inherit(left []any) {
	a.mu.Lock()
	a.in = left
	a.depth.Add(int64(len(left)))
	a.wake()
}

// close ends the activation. The messages that it did not receive go to the next
// activation, here or at the new owner, before any other message from this node can
// reach that one. So the order is kept.
func (a *activation) close() {
	p := a.placer
	p.mu.Lock()
	delete(p.live, a.addr)
	awaited := a.awaited
	a.mu.Lock()
	a.closed = true
	left := append(a.batch[a.next:], a.in...)
	a.batch, a.in, a.system = nil, nil, nil
	a.mu.Unlock()
	a.depth.Add(int64(-len(left)))
	for i, m := range left {
		if r, ok := m.(resumed); ok {
			if left[i] = r.of.message(); r.of.to != a.addr {
				left[i] = &addressed{r.of.to, left[i]}
			}
		}
	}
	left = slices.DeleteFunc(left, func(m any) bool {
		_, m = a.unwrap(m)
		switch m := m.(type) {
		case own:
			return true
		case *request:
			if m.left() {
				m.lapse()
				return true
			}
		}
		return false
	})
	if len(left) > 0 {
		next, owner, err := a.node.locate(p, a.addr)
		if err == nil {
			next.inherit(left)
		} else {
			for _, m := range left {
				to, m := a.unwrap(m)
				a.node.turnAway(to, m, owner, err)
			}
		}
	}
	p.mu.Unlock()
	if awaited != nil {
		awaited.Done()
	}
	a.node.ended(a.addr.Kind)
}

// unwrap returns a message from the mailbox and its address.
func (a *activation) unwrap(m any) (to Address, msg any) {
	if x, ok := m.(*addressed); ok {
		return x.to, x.msg
	}
	return a.addr, m
}
