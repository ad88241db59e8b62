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

// Behavior is what an actor does. One message at a time is received; Stopped
// comes after the last one, and nothing comes after Stopped.
type Behavior interface {
	Receive(c Context, m any)
	Stopped()
}

// Keeper is a Behavior that finishes what it has begun before it leaves a node
// that does not own its shard any more, or that finishes (Node.Finish). Such a
// Behavior looks at Node.Leaves after each message and stops by itself once nothing
// is left; until then its activation receives what is asked and told here.
type Keeper interface {
	Behavior
	// Keeps reports whether something is under way. It is called between messages.
	Keeps() bool
	// Holds reports whether this activation is at work on the actor's state, rather
	// than on its way to it. It may be called at any time, by anybody.
	Holds() bool
}

// Context is what a Behavior has of its activation and of the message it is
// receiving. Reply and HasSender hold for the running Receive only.
type Context interface {
	// Self is the actor's address; of a shared kind, that which the message is for.
	Self() Address
	// HasSender reports whether somebody waits for a reply.
	HasSender() bool
	// Deadline is when the asker stops waiting; zero without an asker.
	Deadline() time.Time
	// Reply answers the asker; an error is returned to it as the error. Without
	// an asker, and after the first call, it does nothing. An asker that was not
	// answered when Receive returns gets nil.
	Reply(v any)
	// Later takes the message m, which is being received, out of Receive: its asker is
	// answered when it is resumed, and not when Receive returns.
	Later(m any) *Later
	// Stop ends the activation after this message. Later messages go to the
	// next activation.
	Stop()
	// Ref sends to this activation only.
	Ref() Ref
	Node() *Node
}

// Ref is one activation, for what belongs to it and not to its successor.
type Ref struct{ a *activation }

// Send delivers m to the activation. It reports false, and does nothing, when
// the activation has ended.
func (r Ref) Send(m any) bool { return r.a.post(own{m}) }

// own is a message to one activation and to none that comes after it.
type own struct{ msg any }

// Later is a message whose Receive goes on once something else is known.
type Later struct {
	a   *activation
	to  Address
	msg any      // as it came
	cur *request // nil: nobody asked
}

// Resume makes the activation receive m with the asker of the message, or without one
// where the asker has left. An activation that has ended meanwhile hands the message
// itself on to the next one. Resume is called once, from any goroutine.
func (l *Later) Resume(m any) {
	if !l.a.post(resumed{l, m}) {
		l.a.node.deliver(l.to, l.message())
	}
}

// message is what the next activation gets.
func (l *Later) message() any {
	if l.cur != nil {
		return l.cur
	}
	return l.msg
}

// resumed is the message by which a Later goes on.
type resumed struct {
	of  *Later
	msg any
}

// addressed is a message in a mailbox that several addresses share.
type addressed struct {
	to  Address
	msg any
}

// request is one Ask under way. It is answered exactly once: by Receive, by the
// mailbox that cannot deliver it, or, when the asker left, by lapse, after which
// it is not used again.
type request struct {
	msg   any
	until time.Time // when the asker gives up at the latest
	out   chan any
	timer *time.Timer
	gone  atomic.Bool // the asker gave up

	// Of an asker on another member, instead of out, timer and gone.
	reply func(any)
}

func (r *request) resolve(v any) {
	if r.reply != nil {
		r.reply(v)
		return
	}
	r.out <- v
}

// left reports whether nobody waits for the reply any more.
func (r *request) left() bool {
	return r.gone.Load() || r.reply != nil && !time.Now().Before(r.until)
}

// lapse ends a request that nobody waits for and that is not received.
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

// activation is one living actor: protoactor's actor and mailbox and our
// Context in one object, so that an idle one stays small. Its mailbox loses
// nothing: once closed it hands everything on to the next activation.
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
	to    *addressed // what is being received, if the mailbox is shared
	batch []any      // taken from in, from next on not yet received
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

// leave is the system message that ends an activation which keeps nothing.
type leave struct{}

// leave ends the activation, unless it has something to finish.
func (a *activation) leave() {
	if a.keeper() == nil {
		a.Stop()
	} else {
		a.PostSystemMessage(leave{})
	}
}

// keeper is the Behavior if it may have something to finish, else nil.
func (a *activation) keeper() Keeper {
	k, _ := a.behavior.(Keeper)
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

// rescue answers the asker, who would wait for its whole deadline otherwise, and
// ends the activation: its memory is not to be trusted any more.
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

// post queues m unless the mailbox is closed.
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

// PostUserMessage is protoactor's way in.
func (a *activation) PostUserMessage(m any) {
	if !a.post(m) {
		a.node.deliver(a.addr, m)
	}
}

// PostSystemMessage is the way in of the life cycle. A closed mailbox has none.
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
				if a.keeper().Keeps() {
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

// inherit puts what a former activation left before everything else. The
// placer's lock is held, so nobody has found a yet.
func (a *activation) inherit(left []any) {
	a.mu.Lock()
	a.in = left
	a.depth.Add(int64(len(left)))
	a.wake()
}

// close ends the activation for good. What it did not receive goes to the next
// one, here or at the new owner, before anybody else can reach that one from
// here, so the order is kept.
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

// unwrap is what lay in the mailbox, and for whom.
func (a *activation) unwrap(m any) (to Address, msg any) {
	if x, ok := m.(*addressed); ok {
		return x.to, x.msg
	}
	return a.addr, m
}
