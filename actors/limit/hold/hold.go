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
	// Service is the name under which a node serves Semaphores.Served.
	Service = "holds"
	// checkEvery is how often the holders of a semaphore without messages are checked. A
	// holder whose Release was lost is removed then.
	checkEvery = time.Minute
	// checkWait is how long a node has to list the holders that it still has.
	checkWait = 50 * time.Millisecond
	// askTimeout bounds one message to a semaphore, and askFor all messages of one Hold. The
	// semaphore may be moving, or its owner may be dead and not marked yet.
	askTimeout = time.Second
	askFor     = 3500 * time.Millisecond
	// askPause is the pause before a semaphore is asked again.
	askPause = 5 * time.Millisecond
)

// Address returns the address of the tenant's semaphore for scope and key.
func Address(t id.TenantID, scope, key string) cluster.Address {
	sum := sha256.Sum256(append(t.UUID[:], scope+"\x00"+key...))
	a := cluster.Address{Kind: Kind, Tenant: t, ID: id.UUID(sum[:16])}
	a.ID[6] = a.ID[6]&0x0f | 0x80 // a version 8 UUID: its shard is its hash
	return a
}

// Node is what Semaphores need of the cluster (cluster.Node).
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

// address returns the semaphore's address.
func (n name) address() cluster.Address {
	return cluster.Address{Kind: Kind, Tenant: n.tenant, ID: n.id}
}

// Config is what Semaphores need. Living and Refresh are as in handover.Config.
type Config struct {
	Node    Node
	Living  func() []id.MemberID
	Refresh func(context.Context) error
	Now     func() time.Time // a clock that never steps, for tests; nil: this machine's monotonic one
}

// Semaphores are a node's own holders, and the semaphores whose shards it owns. The
// holders are the truth: a node that begins to count a shard asks every node for them.
type Semaphores struct {
	cfg  Config
	made time.Time
	stop chan struct{}
	wg   sync.WaitGroup

	mu         sync.Mutex        // guards the fields below
	has        *handover.Shards  // those that are counted here
	own        map[name]*held    // this node's holders, the newest one of each semaphore
	claims     [id.Shards]uint64 // how often a new owner of the shard has asked for the holders here
	semaphores [id.Shards]map[name]*semaphore
	checking   bool // a goroutine runs checkIdle
	stopped    bool
}

// held is one of this node's holders, or one that asks to hold.
type held struct {
	all  *Semaphores
	at   name
	who  id.UUID
	gone atomic.Bool // it was released
	// Guarded by all.mu.
	next, prev *held // of the same semaphore; all.own has the first one
	holds      bool  // false: it asks to hold
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

// New makes Semaphores without holders.
func New(cfg Config) *Semaphores {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &Semaphores{cfg: cfg, made: cfg.Now(), stop: make(chan struct{}), own: map[name]*held{}}
	h.has = handover.New(&h.mu, handover.Config{
		Node: cfg.Node, Living: cfg.Living, Refresh: cfg.Refresh, Now: cfg.Now, Self: true, Steps: 2, Ask: h.claim,
		Dropped: func(s id.Shard) { h.semaphores[s] = nil },
	})
	return h
}

// Behavior makes the actor of a shard's semaphores, for node.RegisterShared(Kind, …).
func (h *Semaphores) Behavior(cluster.Address) cluster.Behavior { return holdsActor{h} }

// Changed asks for the holders of the shards that this node gained, for node.OnChange.
func (h *Semaphores) Changed(c cluster.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.has.Changed(c)
}

// Stop ends all goroutines.
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

// Hold makes the caller one of at most most holders until it calls release, which does
// not block. ok is false if there are as many holders already: each of them still holds,
// or is on a node that does not answer. err is UNAVAILABLE if the semaphore could not be
// asked.
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
			// If a new owner asked for the holders here meanwhile, the answer is void: it may
			// be of the former owner, and the new one does not know of it.
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

// release ends the hold, and tells the semaphore.
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

// Served answers the questions of other nodes' Semaphores, for node.Serve.
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

// tell returns the holders of shards on this node. Those that asked to hold and have no
// answer yet ask again.
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

// receive handles a message to a semaphore, and returns the reply if it has one.
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
		c := h.semaphore(nameOf(a))
		ok, wait := c.hold(m)
		if wait {
			h.check(nameOf(a), c)
		}
		h.tidy(nameOf(a), false)
		return Held{OK: ok, Wait: wait}
	case Release:
		if c := h.semaphores[a.Shard()][nameOf(a)]; c != nil {
			c.release(m.Holder)
			h.tidy(nameOf(a), false)
		}
	}
	return nil
}

// semaphore finds or makes a semaphore. The lock is held.
func (h *Semaphores) semaphore(a name) *semaphore {
	s := a.id.Shard()
	if h.semaphores[s] == nil {
		h.semaphores[s] = map[name]*semaphore{}
	}
	c := h.semaphores[s][a]
	if c == nil {
		c = &semaphore{lastCheck: h.age()}
		h.semaphores[s][a] = c
		if !h.checking && !h.stopped {
			h.checking = true
			h.wg.Go(h.checkIdle)
		}
	}
	return c
}

// checkIdle checks semaphores that had no check for checkEvery, until there are no
// semaphores.
func (h *Semaphores) checkIdle() {
	tick := time.NewTicker(checkEvery / 16)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.stop:
			return
		}
		if !h.checkDue() {
			return
		}
	}
}

// checkDue checks the semaphores that are due, and reports whether there are any left.
func (h *Semaphores) checkDue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := h.age() - checkEvery
	left := false
	for _, shard := range h.semaphores {
		for a, c := range shard {
			if c.lastCheck > due || !h.tidy(a, true) {
				left = true
			}
		}
	}
	h.checking = left
	return left
}

// tidy removes the semaphore of a if it has no holder, and reports whether it is gone.
// Otherwise, if check is set, it begins a check. The lock is held.
func (h *Semaphores) tidy(a name, check bool) bool {
	c := h.semaphores[a.id.Shard()][a]
	if c == nil {
		return true
	}
	if check {
		c.lastCheck = h.age()
		c.forgetWaiting()
	}
	switch {
	case c.idle():
		delete(h.semaphores[a.id.Shard()], a)
		return true
	case check && !h.stopped:
		h.check(a, c)
	}
	return false
}

func (h *Semaphores) age() time.Duration { return h.cfg.Now().Sub(h.made) }

// check asks the nodes of the holders of a which of them still hold, and removes the
// holders of nodes that are not living. A node that is missing in the list may have
// joined since it was read, so the list is read anew first. The lock is held.
func (h *Semaphores) check(a name, c *semaphore) {
	members := c.begin()
	if members == nil {
		return
	}
	living := h.has.Members()
	unknown := h.cfg.Refresh != nil && slices.ContainsFunc(members, func(m id.MemberID) bool { return !slices.Contains(living, m) })
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), checkWait)
		defer cancel()
		if !unknown || h.cfg.Refresh(ctx) == nil {
			h.mu.Lock()
			c.forget(h.has.Members())
			h.mu.Unlock()
		}
		still := h.ask(ctx, members, a)
		h.mu.Lock()
		defer h.mu.Unlock()
		healed.Add(float64(c.checked(still)))
		if h.semaphores[a.id.Shard()][a] == c && c.asked() && !h.stopped { // a holder asked while the check was in flight
			h.check(a, c)
		}
	})
}

// ask asks the members in parallel for the holders of a that they have. A member that does
// not answer is missing in the result.
func (h *Semaphores) ask(ctx context.Context, members []id.MemberID, a name) map[id.MemberID][]id.UUID {
	var mu sync.Mutex
	var wg sync.WaitGroup
	still := map[id.MemberID][]id.UUID{}
	for _, m := range members {
		wg.Go(func() {
			v, err := h.cfg.Node.Call(ctx, m, Service, Holders{Of: a.address()})
			if here, ok := v.(HeldHere); ok && err == nil {
				mu.Lock()
				defer mu.Unlock()
				still[m] = here.Holders
			}
		})
	}
	wg.Wait()
	return still
}

// claim asks a member the question of one step of a Claim.
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
		h.semaphore(nameOf(held.Of)).addAll(held.Holders, to)
	}
	return c.Later, nil
}

// holdsActor is the mailbox of the semaphores of a shard. Their state is in the node's
// Semaphores.
type holdsActor struct{ semaphores *Semaphores }

func (a holdsActor) Receive(c cluster.Context, m any) {
	if v := a.semaphores.receive(c.Self(), m); v != nil {
		c.Reply(v)
	}
}

func (holdsActor) Stopped() {}
