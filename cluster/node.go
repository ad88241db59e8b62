package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"agentsvc/cluster/placement"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// DefaultTimeout bounds an Ask whose context has no deadline.
const DefaultTimeout = 5 * time.Second

// Pauses before an Ask is sent again: doubled from firstBackoff to lastBackoff.
const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = 200 * time.Millisecond
)

// Peers sends to members other than this one. Its methods are called under locks
// of the Node: Tell in particular neither blocks nor calls the Node.
type Peers interface {
	// Ask returns the actor's reply, or an error. The Node tries again after
	// ErrUnknownMember, ErrNotOwner and ErrMoved, and after ErrLost if msg is Repeatable.
	Ask(ctx context.Context, to id.MemberID, a Address, msg any) (any, error)
	// Tell does not block; msg is delivered at most once.
	Tell(to id.MemberID, a Address, msg any) error
	// Call asks a service of the member (Node.Serve).
	Call(ctx context.Context, to id.MemberID, service string, msg any) (any, error)
}

// Repeatable is a message that is idempotent: received twice it changes nothing more and
// gets the same answer. An Ask of it whose answer was lost is sent again.
type Repeatable interface{ Repeatable() }

// alone is the Peers of a node without a cluster address.
type alone struct{}

func (alone) Ask(context.Context, id.MemberID, Address, any) (any, error) {
	return nil, ErrUnknownMember
}

func (alone) Tell(id.MemberID, Address, any) error { return ErrUnknownMember }

func (alone) Call(context.Context, id.MemberID, string, any) (any, error) {
	return nil, ErrUnknownMember
}

// Wrapped is a message with data that only this node needs. Another member gets the
// message alone.
type Wrapped interface{ Message() any }

// Service answers calls to a member, not to one of its actors. It may block. ctx ends at
// the caller's deadline.
type Service func(ctx context.Context, from id.MemberID, msg any) (any, error)

// Change is the difference that a new member list makes.
type Change struct {
	Members []id.MemberID // the members that own shards now
	Gained  []id.Shard    // the shards that this node owns now and did not own before
	Left    []id.MemberID // the members that owned shards before and own none now
}

// Config is what a Node needs. Member is required.
type Config struct {
	Member  id.MemberID
	Log     zerolog.Logger
	Placers int   // default 64
	Peers   Peers // default: no other member is known
}

// Node is this process as a member of the cluster. Register before Start.
type Node struct {
	self    id.MemberID
	log     zerolog.Logger
	peers   Peers
	system  *actor.ActorSystem
	kinds   map[string]kind
	serves  map[string]Service
	placers []*placer
	view    atomic.Pointer[view]
	alarms  *alarms
	crew    *crew

	state   atomic.Int32
	finish  atomic.Bool // Finish was called
	alive   atomic.Int64
	swept   atomic.Bool // Stop has told every activation: alive only falls from here
	drained chan struct{}
	once    sync.Once
	warned  atomic.Int64 // when a dropped message was last logged, in Unix seconds

	setting  sync.Mutex // one SetMembers at a time; taken before mu
	mu       sync.Mutex // guards the fields below
	yields   bool
	onStop   []func(context.Context) error
	onChange []func(Change)
}

// kind is the registration of a kind of actors.
type kind struct {
	produce func(Address) Behavior
	local   bool          // its actors live on this node, regardless of their shards' owners
	shared  bool          // one activation is the mailbox of all its actors of a shard
	depth   *atomic.Int64 // messages in its mailboxes
	living  *atomic.Int64 // its activations
}

const (
	stateNew int32 = iota
	stateRunning
	stateDraining
	stateStopped
)

// view is a member list and the placement that follows from it.
type view struct {
	table *placement.Table
	own   []id.Shard
	since time.Time // when this node first got a list with these members
}

// placer holds the live activations of some shards.
type placer struct {
	mu       sync.Mutex // guards the fields below
	live     map[Address]*activation
	spawning *activation // the activation that props' producers return; set during a spawn
	props    *actor.Props
}

// New makes a node whose member list has only itself.
func New(cfg Config) *Node {
	if cfg.Member.IsZero() {
		panic("cluster: a node needs a member id")
	}
	if cfg.Placers <= 0 {
		cfg.Placers = 64
	}
	if cfg.Peers == nil {
		cfg.Peers = alone{}
	}
	n := &Node{
		self: cfg.Member, log: cfg.Log, peers: cfg.Peers,
		kinds: map[string]kind{}, serves: map[string]Service{}, drained: make(chan struct{}), alarms: newAlarms(), crew: &crew{},
		system: newSystem(cfg.Log),
	}
	for range cfg.Placers {
		p := &placer{live: map[Address]*activation{}}
		// Both producers run synchronously inside a spawn, under p.mu. Props are shared,
		// because props of its own would be most of an activation's memory.
		p.props = actor.PropsFromProducer(
			func() actor.Actor { return p.spawning },
			actor.WithMailbox(func() actor.Mailbox { return p.spawning }), actor.WithDispatcher(n.crew))
		n.placers = append(n.placers, p)
	}
	if err := n.SetMembers([]id.MemberID{cfg.Member}); err != nil {
		panic(err)
	}
	return n
}

// Register registers a kind. produce makes the Behavior of an activation. It runs under a
// lock and must not call the node.
func (n *Node) Register(name string, produce func(Address) Behavior) {
	n.register(name, kind{produce: produce})
}

// RegisterLocal is Register for a kind whose actors live on the node that sends to them
// and stay there, regardless of their shards' owners.
func (n *Node) RegisterLocal(name string, produce func(Address) Behavior) {
	n.register(name, kind{produce: produce, local: true})
}

// RegisterShared is Register for a kind with many actors whose state is elsewhere. One
// activation receives the messages for all of them in a shard, and Self is the address of
// the message. The activation stays until the shard moves.
func (n *Node) RegisterShared(name string, produce func(Address) Behavior) {
	n.register(name, kind{produce: produce, shared: true})
}

func (n *Node) register(name string, k kind) {
	if n.state.Load() != stateNew {
		panic("cluster: Register after Start")
	}
	if _, ok := n.kinds[name]; ok {
		panic("cluster: kind registered twice: " + name)
	}
	k.depth, k.living = depths.of(name), actors.of(name)
	n.kinds[name] = k
}

// Serve registers the function that answers calls of a service on this node.
func (n *Node) Serve(service string, f Service) {
	if n.state.Load() != stateNew {
		panic("cluster: Serve after Start")
	}
	if _, ok := n.serves[service]; ok {
		panic("cluster: service registered twice: " + service)
	}
	n.serves[service] = f
}

// Call asks a service of a member, which may be this one. It is sent once: after ErrLost
// it may or may not have been received.
func (n *Node) Call(ctx context.Context, to id.MemberID, service string, msg any) (any, error) {
	if to == n.self {
		return n.Served(ctx, to, service, msg)
	}
	return n.peers.Call(ctx, to, service, msg)
}

// Served answers a call from a member. If the service panics, it returns ErrPanicked.
func (n *Node) Served(ctx context.Context, from id.MemberID, service string, msg any) (reply any, err error) {
	f := n.serves[service]
	if f == nil {
		return nil, fmt.Errorf("%w %q", ErrUnknownKind, service)
	}
	defer func() {
		if r := recover(); r != nil {
			panics.WithLabelValues(service).Inc()
			n.log.Error().Str("service", service).Interface("panic", r).Bytes("stack", debug.Stack()).Msg("service panicked")
			reply, err = nil, ErrPanicked
		}
	}()
	return f(ctx, from, msg)
}

// OnChange adds a function that is called after each change of the member list, one
// change after another. f must not block and must not call SetMembers.
func (n *Node) OnChange(f func(Change)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onChange = append(n.onChange, f)
}

// OnStop adds a function that Stop calls after the last activation has ended. The last
// function added is called first.
func (n *Node) OnStop(f func(context.Context) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onStop = append(n.onStop, f)
}

// Start lets messages in.
func (n *Node) Start(context.Context) error {
	if !n.state.CompareAndSwap(stateNew, stateRunning) {
		return errors.New("cluster: the node was started before")
	}
	n.alarms.start()
	return nil
}

// Finish makes the Finishers of this node begin nothing new, and waits until they have
// finished their work in flight or ctx ends. Messages are received as before. It is
// called once, before Stop.
func (n *Node) Finish(ctx context.Context) error {
	n.finish.Store(true)
	var left sync.WaitGroup
	for _, p := range n.placers {
		p.mu.Lock()
		for _, a := range p.live {
			if a.finisher() != nil {
				left.Add(1)
				a.awaited = &left
				a.leave()
			}
		}
		p.mu.Unlock()
	}
	done := make(chan struct{})
	go func() { left.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leaves reports whether the activation of a has to leave this node, because another
// member owns it or the node finishes.
func (n *Node) Leaves(a Address) bool { return n.finish.Load() || n.ownerOf(a) != n.self }

// Finishing reports whether Finish was called.
func (n *Node) Finishing() bool { return n.finish.Load() }

// Holds reports whether the activation of a on this node is a Finisher that works on the
// actor's state (Finisher.Holds), regardless of its shard's owner.
func (n *Node) Holds(a Address) bool {
	act := n.peek(a)
	if act == nil {
		return false
	}
	k := act.finisher()
	return k != nil && k.Holds()
}

// AskAt is Ask at a member that holds a without owning it (Holds). It is sent once.
// ErrMoved says that the member may not hold a any more; then the owner must be asked.
func (n *Node) AskAt(ctx context.Context, at id.MemberID, a Address, msg any) (any, error) {
	v, err := n.peers.Ask(ctx, at, a, msg)
	if retried(err, msg) {
		err = ErrMoved
	}
	return v, err
}

// Stop drains the node: it refuses new messages, ends every activation after the message
// that it is receiving, and then calls the OnStop functions. It returns an error if
// activations have not ended when ctx ends.
func (n *Node) Stop(ctx context.Context) error {
	if !n.state.CompareAndSwap(stateRunning, stateDraining) {
		n.state.CompareAndSwap(stateNew, stateStopped)
		return nil
	}
	// A spawn that saw the node running holds its placer's lock, so after this loop there
	// are no new activations.
	for _, p := range n.placers {
		p.mu.Lock()
		for _, a := range p.live {
			a.Stop()
		}
		p.mu.Unlock()
	}
	n.swept.Store(true)
	if n.alive.Load() == 0 {
		n.once.Do(func() { close(n.drained) })
	}
	var errs []error
	select {
	case <-n.drained:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("drain %d activations: %w", n.alive.Load(), ctx.Err()))
	}
	n.alarms.stop()
	n.mu.Lock()
	hooks := slices.Clone(n.onStop)
	n.mu.Unlock()
	for _, f := range slices.Backward(hooks) {
		errs = append(errs, f(ctx))
	}
	n.system.Shutdown()
	n.crew.close()
	n.state.Store(stateStopped)
	return errors.Join(errs...)
}

// Go runs f beside its caller, in a goroutine that an earlier function or mailbox has left if there is
// one. It never waits.
func (n *Node) Go(f func()) { n.crew.Schedule(f) }

func (n *Node) ended(kind string) {
	n.kinds[kind].living.Add(-1)
	if n.alive.Add(-1) == 0 && n.swept.Load() {
		n.once.Do(func() { close(n.drained) })
	}
}

// SetMembers changes the member list. Activations of shards that move away end after the
// message that they are receiving, and Finishers once they have finished their work in
// flight. Their remaining messages go to the new owner. A list without this node is an
// error unless the node yields: it could only come from a failed or partial read, and
// following it would stop every activation.
func (n *Node) SetMembers(members []id.MemberID) error {
	t, err := placement.New(members)
	if err != nil {
		return err
	}
	n.setting.Lock()
	defer n.setting.Unlock()
	n.mu.Lock()
	yields, told := n.yields, slices.Clone(n.onChange)
	n.mu.Unlock()
	if !t.Has(n.self) && !yields {
		return errors.New("cluster: a member list without this node is not followed")
	}
	next := &view{table: t, own: t.Shards(n.self), since: time.Now()}
	if v := n.view.Load(); v != nil && slices.Equal(v.table.Members(), t.Members()) {
		next.since = v.since
	}
	before := n.view.Swap(next)
	// A spawn by the former view holds its placer's lock, so the loop sees its activation.
	for _, p := range n.placers {
		p.mu.Lock()
		for addr, a := range p.live {
			if t.Owner(addr.Shard()) != n.self && !n.kinds[addr.Kind].local {
				a.leave()
			}
		}
		p.mu.Unlock()
	}
	if before == nil {
		return nil
	}
	c := Change{Members: t.Members()}
	for _, s := range t.Shards(n.self) {
		if before.table.Owner(s) != n.self {
			c.Gained = append(c.Gained, s)
		}
	}
	for _, m := range before.table.Members() {
		if !t.Has(m) {
			c.Left = append(c.Left, m)
		}
	}
	placementMoves.Add(float64(len(c.Gained)))
	for _, f := range told {
		f(c)
	}
	return nil
}

// Yield sets whether this node may own no shard, so that it follows a list without it.
func (n *Node) Yield(yields bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.yields = yields
}

// Members returns the members that own shards.
func (n *Node) Members() []id.MemberID { return n.view.Load().table.Members() }

// Since returns when this node first got a list with the present members.
func (n *Node) Since() time.Time { return n.view.Load().since }

// Shards returns the shards that this node owns. The caller must not change the slice.
func (n *Node) Shards() []id.Shard { return n.view.Load().own }

// ownerOf returns the member that owns a: this node for a local kind.
func (n *Node) ownerOf(a Address) id.MemberID {
	if n.kinds[a.Kind].local {
		return n.self
	}
	return n.Owner(a.Shard())
}

// Owner returns the member that owns s.
func (n *Node) Owner(s id.Shard) id.MemberID { return n.view.Load().table.Owner(s) }

// Suspend ends the activations of a kind after the message that they are receiving. Their
// remaining messages, and later ones, go to the next activations.
func (n *Node) Suspend(kind string) {
	for _, p := range n.placers {
		p.mu.Lock()
		for addr, a := range p.live {
			if addr.Kind == kind {
				a.Stop()
			}
		}
		p.mu.Unlock()
	}
}

// Member returns this node's id.
func (n *Node) Member() id.MemberID { return n.self }

// Owns reports whether this node owns s.
func (n *Node) Owns(s id.Shard) bool { return n.view.Load().table.Owner(s) == n.self }

// MintShard returns a random shard of this node, for new entities that may live
// anywhere.
func (n *Node) MintShard() id.Shard {
	own := n.view.Load().own
	if len(own) == 0 { // possible with nearly as many members as shards
		return id.Shard(rand.IntN(id.Shards))
	}
	return own[rand.IntN(len(own))]
}

// Active reports whether a has an activation on this node.
func (n *Node) Active(a Address) bool { return n.peek(a) != nil }

// Send delivers msg to a's activation on this node. If there is none, it does nothing and
// returns false.
func (n *Node) Send(a Address, msg any) bool {
	act := n.peek(a)
	if act != nil && act.addr != a {
		msg = &addressed{a, msg}
	}
	return act != nil && act.post(msg)
}

// After calls f after about d, on the node's only timer goroutine: f must not block. If
// the node stops before, f is not called.
func (n *Node) After(d time.Duration, f func()) { n.alarms.after(d, f) }

// Tell sends msg to a. It never blocks. On this node a's activation or its successor
// receives msg, as long as the node lives. To another member it is delivered at most
// once.
func (n *Node) Tell(a Address, msg any) { n.deliver(a, msg) }

// Ask sends msg to a and waits for the reply. A reply that is an error is returned as the
// error. Ask sends again while the shard moves, until ctx's deadline, or for
// DefaultTimeout if ctx has none. After a deadline msg may or may not have been received.
// Ask must not be called inside Receive.
func (n *Node) Ask(ctx context.Context, a Address, msg any) (any, error) {
	r := requests.Get().(*request)
	r.msg = msg
	var expired <-chan time.Time
	until, ok := ctx.Deadline()
	if !ok {
		r.timer.Reset(DefaultTimeout)
		expired, until = r.timer.C, time.Now().Add(DefaultTimeout)
	}
	r.until = until
	back := firstBackoff
	for {
		v, waiting, err := n.attempt(ctx, expired, until, a, r)
		if waiting { // a mailbox may still hold r: it is not pooled
			r.gone.Store(true)
			r.timer.Stop()
			return nil, err
		}
		if !retried(err, msg) {
			r.timer.Stop()
			r.msg = nil
			requests.Put(r)
			return v, err
		}
		retries.Inc()
		pause := time.NewTimer(back)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			r.timer.Stop()
			return nil, gaveUp(a, ctx.Err())
		case <-expired:
			pause.Stop()
			return nil, gaveUp(a, context.DeadlineExceeded)
		}
		back = min(2*back, lastBackoff)
	}
}

// attempt sends r once. waiting says that the asker left before the answer. If ctx has
// no deadline, expired and until are the deadline.
func (n *Node) attempt(ctx context.Context, expired <-chan time.Time, until time.Time, a Address, r *request) (v any, waiting bool, err error) {
	if owner := n.ownerOf(a); owner != n.self {
		if expired != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, until)
			defer cancel()
		}
		v, err = n.peers.Ask(ctx, owner, a, r.msg)
		if errors.Is(err, context.DeadlineExceeded) {
			err = gaveUp(a, err)
		}
		return v, false, err
	}
	n.deliver(a, r)
	select {
	case v = <-r.out:
	case <-ctx.Done():
		return nil, true, gaveUp(a, ctx.Err())
	case <-expired:
		return nil, true, gaveUp(a, context.DeadlineExceeded)
	}
	if e, ok := v.(error); ok {
		return nil, false, e
	}
	return v, false, nil
}

// gaveUp returns the error of an Ask without an answer: UNAVAILABLE if a deadline passed.
// A caller that left needs no answer.
func gaveUp(a Address, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ask %s: %w: %w", a, err, problem.Unavailable("The request was not answered in time.", time.Second))
	}
	return fmt.Errorf("ask %s: %w", a, err)
}

// Receive takes a message that a member sent to a's activation on this node. It calls
// reply once with the actor's reply, which may be an error. ErrNotOwner says that nothing
// was done. A message whose deadline passes in the mailbox is not received, and reply is
// called with context.DeadlineExceeded. reply runs in the actor's goroutine or under a
// lock: it must neither block nor call the node.
func (n *Node) Receive(a Address, msg any, until time.Time, reply func(any)) {
	n.deliver(a, &request{msg: msg, until: until, reply: reply})
}

// ReceiveTold takes a message that a member told. It returns ErrNotOwner if this node
// does not own a.
func (n *Node) ReceiveTold(a Address, msg any) error {
	_, err := n.post(a, msg)
	return err
}

// deliver sends m, a message or a *request, to the owner of a.
func (n *Node) deliver(a Address, m any) {
	if owner, err := n.post(a, m); err != nil {
		n.turnAway(a, m, owner, err)
	}
}

// post puts m into the mailbox of a's activation on this node. If err is ErrNotOwner,
// owner is another member.
func (n *Node) post(a Address, m any) (owner id.MemberID, err error) {
	p := n.placer(a)
	told := !isRequest(m)
	at := n.mailbox(a)
	if at != a {
		m = &addressed{a, m}
	}
	for {
		p.mu.Lock()
		act, owner, err := n.locate(p, at)
		if here := p.live[at]; errors.Is(err, ErrNotOwner) && here != nil && (told || here.finisher() != nil) {
			// The remaining messages of an activation that is ending go to the new owner. m
			// goes behind them, so that no told message overtakes another. A Finisher that
			// is still finishing its work answers requests too.
			act, err = here, nil
		}
		p.mu.Unlock()
		if err != nil {
			return owner, err
		}
		if act.post(m) {
			return owner, nil
		} // else it closed meanwhile
	}
}

// turnAway handles a message that this node cannot receive because of err. An asker gets
// the error; a told message goes to the owner.
func (n *Node) turnAway(a Address, m any, owner id.MemberID, err error) {
	if r, ok := m.(*request); ok {
		if r.reply != nil && errors.Is(err, errStopping) {
			err = ErrNotOwner // nothing was done: an asker on another node asks the next owner
		}
		r.resolve(err)
		return
	}
	if errors.Is(err, ErrNotOwner) {
		if w, ok := m.(Wrapped); ok {
			m = w.Message()
		}
		if err = n.peers.Tell(owner, a, m); err == nil {
			return
		}
	}
	drops.WithLabelValues(a.Kind).Inc()
	if errors.Is(err, errStopping) {
		return // the process ends; everything that matters is in the rows
	}
	if now := time.Now().Unix(); n.warned.Swap(now) != now {
		n.log.Warn().Err(err).Str("kind", a.Kind).Stringer("tenant", a.Tenant).Stringer("id", a.ID).Msg("message dropped")
	}
}

func isRequest(m any) bool {
	_, ok := m.(*request)
	return ok
}

func (n *Node) placer(a Address) *placer { return n.placers[int(a.Shard())%len(n.placers)] }

func (n *Node) peek(a Address) *activation {
	p, at := n.placer(a), n.mailbox(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live[at]
}

// mailbox returns the address of the activation that receives the messages for a.
func (n *Node) mailbox(a Address) Address {
	if n.kinds[a.Kind].shared {
		return Address{Kind: a.Kind, ID: a.Shard().ID()}
	}
	return a
}

// errStopping is the answer of a draining node.
var errStopping = problem.Unavailable("The node is stopping.", time.Second)

// locate finds or makes the activation of a, and returns its owner. The placer's lock is
// held.
func (n *Node) locate(p *placer, a Address) (*activation, id.MemberID, error) {
	owner := n.ownerOf(a)
	if owner != n.self {
		return nil, owner, ErrNotOwner
	}
	if n.state.Load() != stateRunning {
		return nil, owner, errStopping
	}
	if act := p.live[a]; act != nil {
		return act, owner, nil
	}
	k, ok := n.kinds[a.Kind]
	if !ok {
		return nil, owner, fmt.Errorf("%w %q", ErrUnknownKind, a.Kind)
	}
	act := &activation{node: n, placer: p, addr: a, behavior: k.produce(a), depth: k.depth}
	n.alive.Add(1)
	k.living.Add(1)
	p.spawning = act
	n.system.Root.Spawn(p.props)
	p.spawning = nil
	p.live[a] = act
	return act, owner, nil
}
