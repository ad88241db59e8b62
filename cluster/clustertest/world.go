// Package clustertest joins the nodes of a test in one process. A World is a model of a
// cluster under testing/synctest: messages take time and are lost, and nodes learn of
// the members one after another. A Fabric joins real nodes.
package clustertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"agentsvc/cluster"
	"agentsvc/cluster/placement"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
)

// World is some nodes and the network between them. P is what a test keeps for each node.
type World[P any] struct {
	t     *testing.T
	codec *msg.Codec
	begin func(*Site[P])

	mu     sync.Mutex // guards the fields below
	rand   *rand.Rand
	sites  map[id.MemberID]*Site[P]
	living []id.MemberID
	owners []id.MemberID
	lossy  bool
	cut    map[[2]id.MemberID]bool
	hangs  bool
	mute   bool
	blind  bool
	killed func(*Site[P])
}

// Site is one node of a World. It has the methods of a cluster.Node that the parts of
// the node use. The fields are set by the function that begins the site.
type Site[P any] struct {
	Part P
	// Actors receive the messages for this node's actors, by kind.
	Actors map[string]func(a cluster.Address, m any) any
	// Services answer the calls of other nodes, by name.
	Services map[string]cluster.Service
	Changed  []func(cluster.Change)
	// Halt, where set, is called when the site leaves, dies or the world stops, and Quit
	// after it, when what Halt has sent has arrived.
	Halt func()
	Quit func(context.Context) error

	world  *World[P]
	member id.MemberID
	wg     sync.WaitGroup

	seeing sync.Mutex // one change after another

	mu    sync.Mutex // guards the fields below
	view  *placement.Table
	lives []id.MemberID // the list as of the last read
	dead  bool
}

// New makes a world without nodes. begin makes the parts of each node. The codec encodes
// every message that crosses nodes.
func New[P any](t *testing.T, seed uint64, codec *msg.Codec, begin func(*Site[P])) *World[P] {
	codec.AddError("moved", cluster.ErrMoved)
	return &World[P]{t: t, codec: codec, begin: begin, rand: rand.New(rand.NewPCG(seed, 9)), sites: map[id.MemberID]*Site[P]{}, cut: map[[2]id.MemberID]bool{}}
}

// set changes a field of the world under its lock.
func (w *World[P]) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// Lossy makes the network lose messages, or stops that.
func (w *World[P]) Lossy(on bool) { w.set(func() { w.lossy = on }) }

// IsLossy reports whether the network loses messages.
func (w *World[P]) IsLossy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lossy
}

// Mute makes the network lose every message that is told, or stops that.
func (w *World[P]) Mute(on bool) { w.set(func() { w.mute = on }) }

// Readable says whether the member list can be read.
func (w *World[P]) Readable(on bool) { w.set(func() { w.blind = !on }) }

// Hangs says whether an Ask over a cut connection waits until its owner changes. Otherwise
// it fails at once.
func (w *World[P]) Hangs(on bool) { w.set(func() { w.hangs = on }) }

// Cut cuts the connection of a node to another, or mends it.
func (w *World[P]) Cut(from, to id.MemberID, on bool) {
	w.set(func() { w.cut[[2]id.MemberID{from, to}] = on })
}

// Mend mends all connections.
func (w *World[P]) Mend() { w.set(func() { clear(w.cut) }) }

// Own makes these members the owners of all shards. The nodes have to see it.
func (w *World[P]) Own(owners ...id.MemberID) { w.set(func() { w.owners = owners }) }

// OnKilled calls f when the others may learn that a node is dead.
func (w *World[P]) OnKilled(f func(*Site[P])) { w.set(func() { w.killed = f }) }

// Chance is true once in n times while the network is lossy.
func (w *World[P]) Chance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lossy && w.rand.IntN(n) == 0
}

// Some is a random time below d.
func (w *World[P]) Some(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rand.Int64N(int64(d)))
}

// Members are the living members.
func (w *World[P]) Members() []id.MemberID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.living)
}

// Join adds a node, and the others see it soon.
func (w *World[P]) Join() *Site[P] {
	p := w.Enter()
	w.Spread()
	return p
}

// Enter adds a node that the others do not see yet.
func (w *World[P]) Enter() *Site[P] {
	p := &Site[P]{world: w, member: id.MemberID{UUID: id.NewAnywhere()}, Actors: map[string]func(cluster.Address, any) any{}, Services: map[string]cluster.Service{}}
	w.begin(p)
	w.mu.Lock()
	w.sites[p.member] = p
	w.living = append(w.living, p.member)
	w.owners = append(w.owners, p.member)
	w.mu.Unlock()
	p.See()
	return p
}

// Spread lets every node see the members after a random time.
func (w *World[P]) Spread() {
	for _, m := range w.Members() {
		p := w.Site(m)
		p.wg.Go(func() {
			time.Sleep(w.Some(250 * time.Millisecond))
			p.See()
		})
	}
}

// Site is the node of a member.
func (w *World[P]) Site(m id.MemberID) *Site[P] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sites[m]
}

// Leave ends a node as planned: first it owns nothing, later it is gone.
func (w *World[P]) Leave(p *Site[P]) {
	w.set(func() { w.owners = slices.DeleteFunc(w.owners, func(m id.MemberID) bool { return m == p.member }) })
	w.Spread()
	time.Sleep(250*time.Millisecond + w.Some(500*time.Millisecond))
	p.halt()
	time.Sleep(10 * time.Millisecond) // its last messages are sent
	if err := p.quit(w.t.Context()); err != nil && !w.IsLossy() {
		w.t.Error(err)
	}
	p.End()
	w.Spread() // its row is gone
}

// Kill ends a node at once. The others notice later.
func (w *World[P]) Kill(p *Site[P]) {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	time.Sleep(time.Second + w.Some(2*time.Second))
	w.mu.Lock()
	w.owners = slices.DeleteFunc(w.owners, func(m id.MemberID) bool { return m == p.member })
	killed := w.killed
	w.mu.Unlock()
	if killed != nil {
		killed(p)
	}
	p.End()
	w.Spread()
	p.halt()
	_ = p.quit(context.Background()) // no other node hears it
}

// Stop ends the world.
func (w *World[P]) Stop() {
	w.set(func() {
		w.lossy, w.blind = false, false
		clear(w.cut)
	})
	for _, p := range w.sites {
		p.halt()
	}
	for _, p := range w.sites {
		p.wg.Wait()
	}
	for _, p := range w.sites {
		_ = p.quit(context.Background())
		p.wg.Wait()
	}
}

func (p *Site[P]) halt() {
	if p.Halt != nil {
		p.Halt()
	}
}

func (p *Site[P]) quit(ctx context.Context) error {
	if p.Quit == nil {
		return nil
	}
	return p.Quit(ctx)
}

// Go runs f in a goroutine that the end of the world waits for.
func (p *Site[P]) Go(f func()) { p.wg.Go(f) }

// End makes the node dead, and takes it out of the list of living members.
func (p *Site[P]) End() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.world.set(func() {
		p.world.living = slices.DeleteFunc(p.world.living, func(m id.MemberID) bool { return m == p.member })
	})
}

// See makes the node follow the members as they are now.
func (p *Site[P]) See() {
	p.seeing.Lock()
	defer p.seeing.Unlock()
	p.world.mu.Lock()
	owners, living := slices.Clone(p.world.owners), slices.Clone(p.world.living)
	p.world.mu.Unlock()
	p.follow(owners, living)
}

// Follow makes the node follow these members.
func (p *Site[P]) Follow(owners, living []id.MemberID) {
	p.seeing.Lock()
	defer p.seeing.Unlock()
	p.follow(owners, living)
}

func (p *Site[P]) follow(owners, living []id.MemberID) {
	next, err := placement.New(owners)
	if err != nil {
		p.world.t.Error(err)
		return
	}
	p.mu.Lock()
	before := p.view
	p.view, p.lives = next, living
	p.mu.Unlock()
	c := cluster.Change{Members: owners}
	if before != nil {
		for _, s := range next.Shards(p.member) {
			if before.Owner(s) != p.member {
				c.Gained = append(c.Gained, s)
			}
		}
		for _, m := range before.Members() {
			if !next.Has(m) {
				c.Left = append(c.Left, m)
			}
		}
	}
	for _, f := range p.Changed {
		f(c)
	}
}

// Living is the node's list of members, as old as the last Refresh.
func (p *Site[P]) Living() []id.MemberID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives
}

// Refresh reads the list anew. The placement follows later.
func (p *Site[P]) Refresh(ctx context.Context) error {
	p.world.mu.Lock()
	blind := p.world.blind
	p.world.mu.Unlock()
	if blind {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(p.world.Some(5 * time.Millisecond))
	if p.world.Chance(10) {
		return errors.New("no database")
	}
	members := p.world.Members()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lives = members
	return nil
}

// Gone reports whether the node is dead.
func (p *Site[P]) Gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// Member is as in cluster.Node.
func (p *Site[P]) Member() id.MemberID { return p.member }

// Owner is as in cluster.Node.
func (p *Site[P]) Owner(s id.Shard) id.MemberID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view.Owner(s)
}

// reach returns the node of a member when a message has arrived there.
func (p *Site[P]) reach(to id.MemberID) (*Site[P], error) {
	if to != p.member {
		time.Sleep(p.world.Some(5 * time.Millisecond))
	}
	p.world.mu.Lock()
	o, cut := p.world.sites[to], p.world.cut[[2]id.MemberID{p.member, to}]
	p.world.mu.Unlock()
	if o == nil || o.Gone() || p.Gone() || cut {
		return nil, cluster.ErrUnknownMember
	}
	return o, nil
}

// wire encodes and decodes a message.
func (w *World[P]) wire(v any) any {
	name, body, err := w.codec.Encode(v)
	if err != nil {
		w.t.Error(err)
		return nil
	}
	out, err := w.codec.Decode(name, body)
	if err != nil {
		w.t.Error(err)
	}
	return out
}

// Ask is as in cluster.Node.
func (p *Site[P]) Ask(ctx context.Context, a cluster.Address, m any) (any, error) {
	back := 5 * time.Millisecond
	for {
		v, err := p.attempt(ctx, a, m)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			return v, nil
		}
		if !pause.For(ctx, back) {
			return nil, ctx.Err()
		}
		back = min(2*back, 200*time.Millisecond)
	}
}

// hang waits while the owner that cannot be reached is thought to be there.
func (p *Site[P]) hang(ctx context.Context, a cluster.Address, to id.MemberID) {
	p.world.mu.Lock()
	hangs := p.world.hangs
	p.world.mu.Unlock()
	for hangs && ctx.Err() == nil && p.Owner(a.Shard()) == to {
		time.Sleep(time.Millisecond)
	}
}

func (p *Site[P]) attempt(ctx context.Context, a cluster.Address, m any) (any, error) {
	to := p.Owner(a.Shard())
	o, err := p.reach(to)
	if err != nil {
		p.hang(ctx, a, to)
		return nil, cluster.ErrUnknownMember
	}
	if p.world.Chance(10) {
		return nil, cluster.ErrUnknownMember
	}
	if o.Owner(a.Shard()) != to {
		return nil, cluster.ErrNotOwner
	}
	v := p.world.wire(o.Actors[a.Kind](a, p.world.wire(m)))
	if to != p.member {
		time.Sleep(p.world.Some(5 * time.Millisecond))
	}
	if o.Gone() && to != p.member || p.world.Chance(10) {
		return nil, cluster.ErrLost
	}
	if e, ok := v.(error); ok {
		return nil, e
	}
	return v, nil
}

// Tell is as in cluster.Node.
func (p *Site[P]) Tell(a cluster.Address, m any) {
	p.wg.Go(func() {
		to := p.Owner(a.Shard())
		p.world.mu.Lock()
		mute := p.world.mute
		p.world.mu.Unlock()
		if o, err := p.reach(to); err == nil && !mute && !p.world.Chance(5) && o.Owner(a.Shard()) == to {
			o.Actors[a.Kind](a, p.world.wire(m))
		}
	})
}

// Call is as in cluster.Node.
func (p *Site[P]) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	type result struct {
		v   any
		err error
	}
	out := make(chan result, 1)
	p.wg.Go(func() {
		o, err := p.reach(to)
		if err != nil || p.world.Chance(10) {
			out <- result{nil, cluster.ErrUnknownMember}
			return
		}
		v, err := o.Services[service](ctx, p.member, p.world.wire(m))
		if err == nil {
			v = p.world.wire(v)
		}
		if to != p.member {
			time.Sleep(p.world.Some(5 * time.Millisecond))
		}
		if o.Gone() || p.world.Chance(10) {
			v, err = nil, cluster.ErrLost
		}
		out <- result{v, err}
	})
	select {
	case r := <-out:
		return r.v, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
