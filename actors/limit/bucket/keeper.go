package bucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/cluster/handover"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
)

const (
	// DefaultLapse is how long the tokens of a silent node count as leased: the longest
	// pause that a node with a membership lease of three seconds survives, plus the time
	// that a Ledger may hold tokens or wait for them.
	DefaultLapse = 3*time.Second + askTimeout + holdTicks*tickEvery
	// pushTimeout bounds one Push.
	pushTimeout = 250 * time.Millisecond
	// fetchMost bounds the buckets of one Fetched.
	fetchMost = 4096
	// recallsMost bounds the recalls in flight.
	recallsMost = 256
	// Each bucket is checked once in evictEvery, one of evictParts at a time. A bucket in the
	// state of a new one leaves memory then.
	evictEvery = time.Second
	evictParts = 16
)

// ServiceRecall is the name under which a node serves Ledger.Served.
const ServiceRecall = "recall"

// Peers is what a Keeper needs of the cluster (cluster.Node).
type Peers interface {
	Member() id.MemberID
	Owner(s id.Shard) id.MemberID
	Call(ctx context.Context, to id.MemberID, service string, m any) (any, error)
}

// KeeperConfig is what a Keeper needs. Living and Refresh are as in handover.Config.
type KeeperConfig struct {
	Kind    string // of its actors
	Rate    Rate   // of buckets whose rate the Lease does not say
	Peers   Peers  // the other nodes; nil where there are never any
	Living  func() []id.MemberID
	Refresh func(context.Context) error
	// Now is a clock that never steps, for tests; nil: this machine's monotonic one. No
	// time of day is ever compared here or sent to another node.
	Now   func() time.Time
	Lapse time.Duration // DefaultLapse where it is 0
	Log   zerolog.Logger
}

// Keeper has the buckets of one kind that live on this node. Its shards are handed over
// when they move (package handover).
type Keeper struct {
	cfg     KeeperConfig
	recalls chan struct{} // a token for each recall in flight
	stop    chan struct{}
	wg      sync.WaitGroup

	mu       sync.Mutex       // guards the fields below
	has      *handover.Shards // those whose buckets are here
	shards   [id.Shards]shard
	buckets  int  // of all shards
	evicting bool // a goroutine runs evict
	stopped  bool
	pushed   bool                   // after Stop: the buckets are with their owners
	numbers  map[id.MemberID]uint64 // of the next Fetch to each member
	given    map[id.MemberID]*given
}

// shard is what the Keeper knows of a shard.
type shard struct {
	emptied time.Time // not zero: a member did not answer; unknown buckets count as empty since then
	buckets map[name]*bucket
}

// given is the last answer to a member's Fetch. It is repeated until a later number
// acknowledges it.
type given struct {
	no uint64
	Push
}

// NewKeeper makes a Keeper without buckets.
func NewKeeper(cfg KeeperConfig) *Keeper {
	if cfg.Lapse <= 0 {
		cfg.Lapse = DefaultLapse
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	k := &Keeper{cfg: cfg, recalls: make(chan struct{}, recallsMost), stop: make(chan struct{}), numbers: map[id.MemberID]uint64{}, given: map[id.MemberID]*given{}}
	k.has = handover.New(&k.mu, handover.Config{Node: cfg.Peers, Living: cfg.Living, Refresh: cfg.Refresh, Now: cfg.Now, Steps: 1, Ask: k.fetch, Silent: k.silent})
	return k
}

// Errors of a Keeper that did nothing.
var (
	errStopped = errors.New("bucket: the keeper has stopped")
	errLate    = errors.New("bucket: a later fetch was answered")
)

// Service is the name under which a node serves the Keeper's Served.
func (k *Keeper) Service() string { return "buckets/" + k.cfg.Kind }

// Behavior makes the actor of a shard's buckets, for node.RegisterShared.
func (k *Keeper) Behavior(cluster.Address) cluster.Behavior { return bucketActor{k} }

// Changed fetches the buckets of the shards that this node gained, for node.OnChange.
func (k *Keeper) Changed(c cluster.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.has.Changed(c)
	living := k.others().living
	for m := range k.given {
		if !living(m) {
			delete(k.given, m)
		}
	}
}

// Stop pushes the buckets to their owners, if these are other nodes. After it no bucket is
// served.
func (k *Keeper) Stop(ctx context.Context) error {
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return nil
	}
	k.stopped = true
	close(k.stop)
	k.has.Stop()
	pushes := map[id.MemberID]*Push{}
	if k.cfg.Peers != nil {
		now := k.cfg.Now()
		for s := range k.shards {
			if to := k.cfg.Peers.Owner(id.Shard(s)); to != k.cfg.Peers.Member() {
				if pushes[to] == nil {
					pushes[to] = &Push{}
				}
				k.pack(id.Shard(s), now, pushes[to])
			}
		}
	}
	k.mu.Unlock()
	k.has.Wait()
	k.wg.Wait()
	ctx, cancel := context.WithTimeout(ctx, handover.Patience)
	defer cancel()
	var errs []error
	for to, p := range pushes {
		for len(p.Buckets)+len(p.Emptied) > 0 {
			part := Push{Buckets: p.Buckets[:min(len(p.Buckets), fetchMost)], Emptied: p.Emptied}
			p.Buckets, p.Emptied = p.Buckets[len(part.Buckets):], nil
			if err := k.push(ctx, to, part); err != nil {
				errs = append(errs, fmt.Errorf("push %d buckets to %s: %w", len(part.Buckets), to, err))
				break
			}
		}
	}
	k.mu.Lock()
	k.pushed = true
	k.mu.Unlock()
	return errors.Join(errs...)
}

// push sends buckets to a node until it has them or ctx ends. It is idempotent.
func (k *Keeper) push(ctx context.Context, to id.MemberID, p Push) error {
	for {
		one, done := context.WithTimeout(ctx, pushTimeout)
		_, err := k.cfg.Peers.Call(one, to, k.Service(), p)
		done()
		if err == nil {
			return nil
		}
		if !pause.For(ctx, tickEvery) {
			return err
		}
	}
}

// Served answers the other Keepers of the kind, for node.Serve.
func (k *Keeper) Served(_ context.Context, from id.MemberID, m any) (any, error) {
	switch m := m.(type) {
	case Fetch:
		k.has.Heard(from)
		return k.give(from, m)
	case Push:
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.stopped {
			return nil, errStopped
		}
		k.accept(m, k.cfg.Now())
		return msg.Done{}, nil
	}
	return nil, fmt.Errorf("%w: %T", msg.ErrUnknownType, m)
}

// receive handles a message to a bucket, and returns the reply if it has one.
func (k *Keeper) receive(a cluster.Address, m any) any {
	h := nameOf(a)
	switch m := m.(type) {
	case Lease:
		b, now, err := k.open(a, m.PerMinute)
		if err != nil {
			return err
		}
		defer k.mu.Unlock()
		ans := b.lease(now, m, k.others())
		k.recall(a, ans.recall)
		return Leased{Granted: ans.granted, Left: ans.left, RetryAfter: ans.retry, Wait: ans.wait}
	case Take:
		b, now, err := k.open(a, 0)
		if err != nil {
			return err
		}
		defer k.mu.Unlock()
		ans := b.take(now, k.others())
		k.recall(a, ans.recall)
		if ans.wait { // the recalled nodes have answered by then
			ans.retry = recallAgain
		}
		return Leased{Granted: ans.granted, Left: ans.left, RetryAfter: ans.retry}
	case GiveBack:
		k.mu.Lock()
		defer k.mu.Unlock()
		if b := k.shards[a.Shard()].buckets[h]; b != nil {
			b.giveBack(k.cfg.Now(), m, k.others())
		}
	}
	return nil
}

// open locks k.mu and returns the bucket of a. A missing bucket is made with the rate
// minute. If the shard is not here yet, open unlocks k.mu and returns an error that makes
// the caller ask again.
func (k *Keeper) open(a cluster.Address, minute int64) (*bucket, time.Time, error) {
	k.mu.Lock()
	if !k.has.Here(a.Shard()) || k.stopped {
		k.mu.Unlock()
		return nil, time.Time{}, cluster.ErrMoved
	}
	sh := &k.shards[a.Shard()]
	now, h := k.cfg.Now(), nameOf(a)
	b := sh.buckets[h]
	if b == nil {
		b = k.bucket(minute, now)
		if !sh.emptied.IsZero() {
			b.credit = min(b.credit, max(now.Sub(sh.emptied), 0))
		}
		k.keep(sh, h, b)
	}
	return b, now, nil
}

// bucket makes a full bucket with the rate perMinute(n), or the config's rate if n is 0.
func (k *Keeper) bucket(n int64, now time.Time) *bucket {
	if n <= 0 {
		return newBucket(k.cfg.Rate, now)
	}
	b := newBucket(perMinute(n), now)
	b.minute = n
	return b
}

// keep adds a bucket to a shard.
func (k *Keeper) keep(sh *shard, h name, b *bucket) {
	if sh.buckets == nil {
		sh.buckets = map[name]*bucket{}
	}
	sh.buckets[h] = b
	k.count(1)
	if !k.evicting && !k.stopped {
		k.evicting = true
		k.wg.Go(k.evict)
	}
}

// count adds n to the number of buckets.
func (k *Keeper) count(n int) {
	k.buckets += n
	bucketsKept.Add(float64(n))
}

// evict checks the buckets again and again, until there is none.
func (k *Keeper) evict() {
	tick := time.NewTicker(evictEvery / evictParts)
	defer tick.Stop()
	for part := 0; ; part = (part + 1) % evictParts {
		select {
		case <-tick.C:
		case <-k.stop:
			return
		}
		if !k.evictPart(part) {
			return
		}
	}
}

// evictPart removes the buckets of a part of the shards that are in the state of new ones,
// and reports whether there is any bucket left.
func (k *Keeper) evictPart(part int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, o := k.cfg.Now(), k.others()
	for s := part; s < len(k.shards); s += evictParts {
		for h, b := range k.shards[s].buckets {
			if b.restful(now, o) {
				delete(k.shards[s].buckets, h)
				k.count(-1)
			}
		}
	}
	k.evicting = k.buckets > 0
	return k.evicting
}

// others returns what the buckets have to know of the nodes.
func (k *Keeper) others() others {
	var members []id.MemberID // read when the first bucket needs it
	return others{lapse: k.cfg.Lapse, living: func(m id.MemberID) bool {
		if k.cfg.Living == nil {
			return true
		}
		if members == nil {
			members = k.cfg.Living()
		}
		return slices.Contains(members, m)
	}}
}

// recall asks nodes to give back the tokens of a bucket that they leased.
func (k *Keeper) recall(a cluster.Address, nodes []id.MemberID) {
	for _, to := range nodes {
		if k.cfg.Peers == nil || k.stopped {
			return
		}
		select {
		case k.recalls <- struct{}{}:
		default: // the node counts as silent
			continue
		}
		recalls.Inc()
		k.wg.Go(func() {
			defer func() { <-k.recalls }()
			ctx, cancel := context.WithTimeout(context.Background(), recallWait)
			defer cancel()
			if v, err := k.cfg.Peers.Call(ctx, to, ServiceRecall, Recall{a}); err == nil {
				if g, ok := v.(GiveBack); ok {
					k.receive(a, g)
				}
			}
		})
	}
}

// fetch takes the buckets of shards from a member.
func (k *Keeper) fetch(ctx context.Context, from id.MemberID, _ int, shards []id.Shard) (later []id.Shard, err error) {
	k.mu.Lock()
	no := k.numbers[from]
	k.mu.Unlock()
	v, err := k.cfg.Peers.Call(ctx, from, k.Service(), Fetch{No: no, Shards: shards})
	if err != nil {
		return nil, err
	}
	got, ok := v.(Fetched)
	if !ok {
		return nil, fmt.Errorf("%w: %T", msg.ErrUnknownType, v)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.numbers[from] = no + 1
	k.accept(Push{Buckets: got.Buckets, Emptied: got.Emptied}, k.cfg.Now())
	return got.Later, nil
}

// silent notes shards of which a living member did not answer. It may have admitted
// everything, so buckets that no other member knew begin empty.
func (k *Keeper) silent(shards []id.Shard) {
	now := k.cfg.Now()
	for _, s := range shards {
		k.shards[s].emptied = now
	}
	emptied.Add(float64(len(shards)))
	k.cfg.Log.Warn().Str("kind", k.cfg.Kind).Int("shards", len(shards)).Msg("buckets begin empty: a member does not answer")
}

// accept adds buckets from another node.
func (k *Keeper) accept(p Push, now time.Time) {
	carried.Add(float64(len(p.Buckets)))
	for _, e := range p.Emptied {
		sh := &k.shards[e.Shard]
		if at := now.Add(-e.For); at.After(sh.emptied) {
			sh.emptied = at
		}
	}
	for _, c := range p.Buckets {
		h := name{c.Tenant, c.ID}
		sh := &k.shards[h.id.Shard()]
		b := sh.buckets[h]
		if b == nil {
			b = k.bucket(c.PerMinute, now)
			k.keep(sh, h, b)
		}
		b.merge(c, now)
	}
}

// pack moves a shard's buckets to a Push, except those in the state of a new one.
func (k *Keeper) pack(s id.Shard, now time.Time, to *Push) {
	sh, o := &k.shards[s], k.others()
	for h, b := range sh.buckets {
		if !b.restful(now, o) {
			to.Buckets = append(to.Buckets, b.carried(h, now))
		}
	}
	if !sh.emptied.IsZero() && now.Sub(sh.emptied) < max(k.cfg.Rate.full(), slowest) {
		to.Emptied = append(to.Emptied, EmptyShard{s, now.Sub(sh.emptied)})
	}
	k.count(-len(sh.buckets))
	*sh = shard{}
}

// give hands shards over. The answer to a repeated Fetch is the same.
func (k *Keeper) give(to id.MemberID, f Fetch) (Fetched, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.given[to]
	if g == nil || f.No > g.no {
		g = &given{no: f.No}
		k.given[to] = g
	}
	switch {
	case f.No < g.no:
		return Fetched{}, errLate
	case k.stopped && !k.pushed:
		return Fetched{Later: f.Shards}, nil
	}
	now := k.cfg.Now()
	var out Fetched
	for _, s := range f.Shards {
		if len(g.Buckets) > fetchMost || !k.has.Yield(s) {
			out.Later = append(out.Later, s)
			continue
		}
		k.pack(s, now, &g.Push)
	}
	out.Buckets, out.Emptied = g.Buckets, g.Emptied
	return out, nil
}
