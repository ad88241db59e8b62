package hold

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/cluster"
	"agentsvc/cluster/handover"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

const (
	// Kind is the kind of the actors that count holders.
	Kind = "holds"
	// Service is the name under which a node serves Holds.Served.
	Service = "holds"
	// checkEvery is how often holders that nobody asks about are looked at: who holds
	// no more and was not released is forgotten then.
	checkEvery = time.Minute
	// checkWait is how long a node has to say who still holds there.
	checkWait = 50 * time.Millisecond
	// askTimeout bounds one message to a semaphore, and askFor all of them for one Hold:
	// the semaphore may be on the move, or its owner dead and not known to be yet.
	askTimeout = time.Second
	askFor     = 3500 * time.Millisecond
	// askPause is the pause before a semaphore is asked again.
	askPause = 5 * time.Millisecond
)

// Address is the address of one of a tenant's semaphores, which scope and key name.
func Address(t id.TenantID, scope, key string) cluster.Address {
	sum := sha256.Sum256(append(t.UUID[:], scope+"\x00"+key...))
	a := cluster.Address{Kind: Kind, Tenant: t, ID: id.UUID(sum[:16])}
	a.ID[6] = a.ID[6]&0x0f | 0x80
	return a
}

// Node is what Holds need of the cluster (cluster.Node).
type Node interface {
	Member() id.MemberID
	Owner(s id.Shard) id.MemberID
	Ask(ctx context.Context, a cluster.Address, m any) (any, error)
	Tell(a cluster.Address, m any)
	Call(ctx context.Context, to id.MemberID, service string, m any) (any, error)
}

// name identifies a semaphore.
type name struct {
	tenant id.TenantID
	id     id.UUID
}

func nameOf(a cluster.Address) name { return name{a.Tenant, a.ID} }

// address is the semaphore's address.
func (n name) address() cluster.Address {
	return cluster.Address{Kind: Kind, Tenant: n.tenant, ID: n.id}
}

// Config is what Semaphores need. Living and Look are as in handover.Config.
type Config struct {
	Node   Node
	Living func() []id.MemberID
	Look   func(context.Context) error
	Now    func() time.Time // a clock that never steps, for tests; nil: this machine's monotonic one
}

// Holds are a node's side of what at most so many may hold at a time: its own
// holders, and the counts that live here. The holders are the truth, a count
// follows from them: who begins to count asks every node.
type Semaphores struct {
	cfg  Config
	made time.Time
	stop chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex        // guards the fields below
	has     *handover.Shards  // those that are counted here
	own     map[name]*held    // this node's holders, the newest of each
	claims  [id.Shards]uint64 // how often a member that begins to count the shard has asked for the holders here
	counts  [id.Shards]map[name]*semaphore
	looking bool // a goroutine checks the semaphores now and then
	stopped bool
}

// held is one of a node's own holders: a place that is held, or asked for.
type held struct {
	all  *Semaphores
	at   name
	who  id.UUID
	gone atomic.Bool // it was released
	// Guarded by all.mu.
	next, prev *held // of the same; the first of them is in all.own
	holds      bool  // false: it asked
}

// add makes p one of this node's holders. The lock is held.
func (h *Semaphores) add(p *held) {
	if p.next = h.own[p.at]; p.next != nil {
		p.next.prev = p
	}
	h.own[p.at] = p
}

// remove undoes add. The lock is held.
func (h *Semaphores) remove(p *held) {
	if p.next != nil {
		p.next.prev = p.prev
	}
	switch {
	case p.prev != nil:
		p.prev.next = p.next
	case p.next != nil:
		h.own[p.at] = p.next
	default:
		delete(h.own, p.at)
	}
}

// New makes Holds of which nobody holds any.
func New(cfg Config) *Semaphores {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &Semaphores{cfg: cfg, made: cfg.Now(), stop: make(chan struct{}), own: map[name]*held{}}
	h.has = handover.New(&h.mu, handover.Config{
		Node: cfg.Node, Living: cfg.Living, Look: cfg.Look, Now: cfg.Now, Self: true, Steps: 2, Ask: h.claim,
		Dropped: func(s id.Shard) { h.counts[s] = nil },
	})
	return h
}

// Behavior makes the actor of a shard's counts, for
// node.RegisterShared(Kind, …).
func (h *Semaphores) Behavior(cluster.Address) cluster.Behavior { return holdsActor{h} }

// Changed asks for the holders of what this node gained, for node.OnChange.
func (h *Semaphores) Changed(c cluster.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.has.Changed(c)
}

// Stop ends what is under way.
func (h *Semaphores) Stop() {
	h.mu.Lock()
	if !h.stopped {
		h.stopped = true
		close(h.stop)
		h.has.Stop()
	}
	h.mu.Unlock()
	h.has.Wait()
	h.wg.Wait()
}

// Hold makes the caller one of at most most holders until it calls release, which
// does not block. Where there are as many already, ok is false: all of them hold,
// or live on a node that does not answer.
func (h *Semaphores) Hold(ctx context.Context, at cluster.Address, most int) (release func(), ok bool, err error) {
	s := at.Shard()
	p := &held{all: h, at: nameOf(at), who: id.NewAnywhere()}
	h.mu.Lock()
	h.add(p)
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	for {
		h.mu.Lock()
		claimed := h.claims[s]
		h.mu.Unlock()
		one, done := context.WithTimeout(ctx, askTimeout)
		v, err := h.cfg.Node.Ask(one, at, Hold{Holder: p.who, Member: h.cfg.Node.Member(), Max: most})
		done()
		if held, is := v.(Held); is && err == nil && !held.Wait {
			h.mu.Lock()
			// Who counts now may not know what was answered before it asked.
			current := h.claims[s] == claimed
			if current && held.OK {
				p.holds = true
			}
			h.mu.Unlock()
			switch {
			case current && held.OK:
				return p.release, true, nil
			case current:
				p.release()
				return nil, false, nil
			}
		}
		pause := time.NewTimer(askPause)
		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
		case <-h.stop:
		}
		pause.Stop()
		p.release()
		return nil, false, problem.Unavailable("The request was not answered in time.", time.Second)
	}
}

func (p *held) release() {
	if p.gone.Swap(true) {
		return
	}
	h := p.all
	h.mu.Lock()
	h.remove(p)
	h.mu.Unlock()
	h.cfg.Node.Tell(p.at.address(), Release{Holder: p.who})
}

// Served answers what other nodes' counts ask, for node.Serve.
func (h *Semaphores) Served(_ context.Context, from id.MemberID, m any) (any, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := m.(type) {
	case Holders:
		var here HeldHere
		for o := h.own[nameOf(m.Of)]; o != nil; o = o.next {
			here.Holders = append(here.Holders, o.who)
		}
		return here, nil
	case Claim:
		if !m.Stop {
			return h.tell(m.Shards), nil
		}
		h.has.Heard(from)
		var out Claimed
		for _, s := range m.Shards {
			if !h.has.Yield(s) {
				out.Later = append(out.Later, s)
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("%w: %T", msg.ErrUnknownType, m)
}

// tell says who holds here. Those who ask and were not answered ask again.
func (h *Semaphores) tell(shards []id.Shard) Claimed {
	asked := map[id.Shard]bool{}
	for _, s := range shards {
		h.claims[s]++
		asked[s] = true
	}
	var out Claimed
	for at, first := range h.own {
		if !asked[at.id.Shard()] {
			continue
		}
		held := HeldAt{Of: at.address()}
		for o := first; o != nil; o = o.next {
			if o.holds {
				held.Holders = append(held.Holders, o.who)
			}
		}
		if len(held.Holders) > 0 {
			out.Holding = append(out.Holding, held)
		}
	}
	return out
}

// receive is what a count does with a message, and its reply, if it has one.
func (h *Semaphores) receive(a cluster.Address, m any) any {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := m.(type) {
	case Hold:
		if h.stopped {
			return cluster.ErrMoved
		}
		if !h.has.Here(a.Shard()) {
			return Held{Wait: true}
		}
		c := h.count(nameOf(a))
		ok, wait := c.hold(m)
		if wait {
			h.check(nameOf(a), c)
		}
		h.rest(nameOf(a), false)
		return Held{OK: ok, Wait: wait}
	case Release:
		if c := h.counts[a.Shard()][nameOf(a)]; c != nil {
			c.release(m.Holder)
			h.rest(nameOf(a), false)
		}
	}
	return nil
}

func (h *Semaphores) count(a name) *semaphore {
	s := a.id.Shard()
	if h.counts[s] == nil {
		h.counts[s] = map[name]*semaphore{}
	}
	c := h.counts[s][a]
	if c == nil {
		c = &semaphore{looked: h.age()}
		h.counts[s][a] = c
		if !h.looking && !h.stopped {
			h.looking = true
			h.wg.Go(h.look)
		}
	}
	return c
}

// look looks again and again at counts that nobody has asked about for checkEvery,
// until there is none.
func (h *Semaphores) look() {
	tick := time.NewTicker(checkEvery / 16)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.stop:
			return
		}
		if !h.lookOnce() {
			return
		}
	}
}

// lookOnce looks at the counts that are due, and reports whether any is left.
func (h *Semaphores) lookOnce() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := h.age() - checkEvery
	left := false
	for _, counts := range h.counts {
		for a, c := range counts {
			if c.looked > due || !h.rest(a, true) {
				left = true
			}
		}
	}
	h.looking = left
	return left
}

// rest forgets the count of a if nobody holds, and else looks whether they do. It
// reports whether there is nothing left. Called with the lock held.
func (h *Semaphores) rest(a name, look bool) bool {
	c := h.counts[a.id.Shard()][a]
	if c == nil {
		return true
	}
	if look {
		c.looked = h.age()
		c.tidy()
	}
	switch {
	case c.idle():
		delete(h.counts[a.id.Shard()], a)
		return true
	case look && !h.stopped:
		h.check(a, c)
	}
	return false
}

func (h *Semaphores) age() time.Duration { return h.cfg.Now().Sub(h.made) }

// check asks the nodes of the holders of a whether they still hold, and forgets those
// whose node lives no more. Who is not in the list may have joined since it was read.
func (h *Semaphores) check(a name, c *semaphore) {
	members := c.begin()
	if members == nil {
		return
	}
	living := h.has.Members()
	unknown := h.cfg.Look != nil && slices.ContainsFunc(members, func(m id.MemberID) bool { return !slices.Contains(living, m) })
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), checkWait)
		defer cancel()
		if !unknown || h.cfg.Look(ctx) == nil {
			h.mu.Lock()
			c.forget(h.has.Members())
			h.mu.Unlock()
		}
		here := h.ask(ctx, members, func(id.MemberID) any { return Holders{Of: a.address()} })
		h.mu.Lock()
		defer h.mu.Unlock()
		still := map[id.MemberID][]id.UUID{}
		for m, v := range here {
			if v, ok := v.(HeldHere); ok {
				still[m] = v.Holders
			}
		}
		healed.Add(float64(c.checked(still)))
		if h.counts[a.id.Shard()][a] == c && c.asked() && !h.stopped { // somebody came while it was on its way
			h.check(a, c)
		}
	})
}

// ask asks each of members in parallel; who does not answer is not in the result.
func (h *Semaphores) ask(ctx context.Context, members []id.MemberID, what func(id.MemberID) any) map[id.MemberID]any {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[id.MemberID]any{}
	for _, m := range members {
		wg.Go(func() {
			if v, err := h.cfg.Node.Call(ctx, m, Service, what(m)); err == nil {
				mu.Lock()
				defer mu.Unlock()
				out[m] = v
			}
		})
	}
	wg.Wait()
	return out
}

// claim asks a member one step of a Claim.
func (h *Semaphores) claim(ctx context.Context, to id.MemberID, step int, shards []id.Shard) (later []id.Shard, err error) {
	stop := step == 0
	if stop && to == h.cfg.Node.Member() {
		return nil, nil
	}
	v, err := h.cfg.Node.Call(ctx, to, Service, Claim{Shards: shards, Stop: stop})
	if err != nil {
		return nil, err
	}
	c, ok := v.(Claimed)
	if !ok {
		return nil, fmt.Errorf("%w: %T", msg.ErrUnknownType, v)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range c.Holding {
		for _, who := range held.Holders {
			h.count(nameOf(held.Of)).add(who, to)
		}
	}
	return c.Later, nil
}

// holdsActor is the mailbox of the counts of a shard, which are with the node's Holds.
type holdsActor struct{ holds *Semaphores }

func (a holdsActor) Receive(c cluster.Context, m any) {
	if v := a.holds.receive(c.Self(), m); v != nil {
		c.Reply(v)
	}
}

func (holdsActor) Stopped() {}
