package sweep

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
)

// Rows are read and claimed over all tenants (feed.Sweep).
type Rows interface {
	ReleaseTimers(ctx context.Context, shards []id.Shard) error
	ClaimTimers(ctx context.Context, c feed.Claim) ([]feed.Timer, error)
	ReturnTimers(ctx context.Context, timers []feed.Timer) error
	Find(ctx context.Context, w *feed.Work, shards []id.Shard, after id.UUID, limit int) (feed.Page, error)
	Retain(ctx context.Context, r *feed.Retention, from feed.Mark, limit int) (n int, next feed.Mark, err error)
	DeletedPeople(ctx context.Context, after feed.Person, limit int) ([]feed.Person, error)
	Lost(ctx context.Context, e *feed.Erasure, people []feed.Person, shards []id.Shard, limit int) ([]feed.Entity, error)
	Erase(ctx context.Context, e *feed.Erasure, people []feed.Person, limit int, settled time.Duration) (int, error)
	ErasePeople(ctx context.Context, all []*feed.Erasure, people []feed.Person, age time.Duration) (int, error)
}

// Node is where the owners are.
type Node interface {
	// Shards are those of this node, in ascending order.
	Shards() []id.Shard
	Owns(s id.Shard) bool
	Active(a cluster.Address) bool
	Tell(a cluster.Address, m any)
}

// Config is what a sweep needs. Zero values mean the defaults beside them.
type Config struct {
	Rows Rows
	Node Node
	// Kinds are the durable kinds: how their work is found, and what is deleted of them.
	Kinds []durable.Traits
	// Retentions are those of tables without a kind.
	Retentions []feed.Retention
	Log        zerolog.Logger
	// Member is the lease under which timers are claimed; none: claims need none.
	Member id.MemberID
	// Suspended, where set, says that nothing is to be begun now.
	Suspended func() bool
	// Files, where set, are looked through for what no row names.
	Files Files
	// FilesEvery is the time between two looks at unfinished files, 10 s.
	FilesEvery time.Duration
	// Every is the time between two ticks, 250 ms: expiry happens within a second
	// of its time (open-parts.md, Questions settled).
	Every time.Duration
	// RetainEvery is the time between two passes of retention over a kind of rows,
	// 1 min; a batch that was full is followed by another after Every.
	RetainEvery time.Duration
	// EraseEvery is the time between two looks at what deleted end users left behind,
	// 5 s from the end of the first; one that leaves something is followed sooner.
	EraseEvery time.Duration
	Now        func() time.Time
}

// What is done at most in one tick, beside the bounds of feed.Work.
const (
	claimBatch  = 500
	claimRounds = 20
	gainedPages = 4 // times as many pages as of a pass over all shards, of those that were gained just now
)

const (
	claimHold   = 10 * time.Second
	onceTimeout = 30 * time.Second
	pageTimeout = 5 * time.Second
)

// Sweep is the loops of one node. Timers have a loop, and so has the work of each kind and
// each retention, so that none waits for another's statement.
type Sweep struct {
	cfg Config

	toTimers gains
	claimed  shards // touched by the loop of the timers only: gained, and the claims on their timers hold still

	searches   []*search    // each touched by its own loop only
	retentions []*retention // likewise
	erasure    erasure      // likewise

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// gains are the shards that one loop has yet to hear of.
type gains struct {
	bell chan struct{} // capacity 1: gained is not empty

	mu     sync.Mutex // guards the fields below
	begun  bool
	gained shards
}

func newGains() gains { return gains{bell: make(chan struct{}, 1)} }

func (g *gains) add(gained []id.Shard) {
	g.mu.Lock()
	for _, n := range gained {
		g.gained.add(n)
	}
	g.mu.Unlock()
	select {
	case g.bell <- struct{}{}:
	default:
	}
}

// take returns what was gained since the last call, at the first one everything, and the
// shards of the node. The gains are read first: the node has all of them by then.
func (g *gains) take(node Node) (gained shards, own []id.Shard) {
	g.mu.Lock()
	gained, g.gained = g.gained, shards{}
	first := !g.begun
	g.begun = true
	g.mu.Unlock()
	own = node.Shards()
	if first {
		for _, n := range own {
			gained.add(n)
		}
	}
	return gained, own
}

// New makes a sweep that rests.
func New(cfg Config) *Sweep {
	if cfg.Every <= 0 {
		cfg.Every = 250 * time.Millisecond
	}
	if cfg.RetainEvery <= 0 {
		cfg.RetainEvery = time.Minute
	}
	if cfg.FilesEvery <= 0 {
		cfg.FilesEvery = 10 * time.Second
	}
	if cfg.EraseEvery <= 0 {
		cfg.EraseEvery = 5 * time.Second
	}
	if cfg.Suspended == nil {
		cfg.Suspended = func() bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Sweep{cfg: cfg, toTimers: newGains()}
	keep := func(all []feed.Retention) {
		for _, r := range all {
			s.retentions = append(s.retentions, &retention{Retention: r, batch: retainBatch})
		}
	}
	keep(cfg.Retentions)
	for _, k := range cfg.Kinds {
		keep(k.Keep)
		if k.Work != nil {
			s.searches = append(s.searches, s.newSearch(k))
		}
	}
	s.erasure = newErasure(cfg.Kinds)
	return s
}

// Start begins to sweep. The shards that the node has then are gained.
func (s *Sweep) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() { s.loop(ctx, "timers", s.toTimers.bell, s.timers) })
	for _, w := range s.searches {
		s.wg.Go(func() { s.loop(ctx, "work of "+w.kind, w.gains.bell, w.once) })
	}
	s.wg.Go(func() { s.erasing(ctx) })
	if s.cfg.Files != nil {
		s.wg.Go(func() { s.tidying(ctx) })
	}
	share := make(chan struct{}, retainConns)
	for _, r := range s.retentions {
		s.wg.Go(func() { s.retaining(ctx, r, share) })
	}
	return nil
}

// Stop ends that; what it was doing is given up.
func (s *Sweep) Stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.wg.Wait()
}

// Gained says that the node owns these shards from now on: what their former
// owner was told may have died with it, so all of it is done again at once. It
// does not block.
func (s *Sweep) Gained(gained []id.Shard) {
	if len(gained) == 0 {
		return
	}
	s.toTimers.add(gained)
	for _, w := range s.searches {
		w.gains.add(gained)
	}
}

// loop calls once every Every, and when its bell rings.
func (s *Sweep) loop(ctx context.Context, name string, bell <-chan struct{}, once func(context.Context) (int, error)) {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	var failing trouble
	for {
		bounded, cancel := context.WithTimeout(ctx, onceTimeout)
		_, err := once(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		failing.note(s.cfg.Log, name, err)
		select {
		case <-tick.C:
		case <-bell:
		case <-ctx.Done():
			return
		}
	}
}

// trouble is whether a loop fails just now: its beginning and its end are logged.
type trouble bool

func (t *trouble) note(log zerolog.Logger, who string, err error) {
	if err != nil {
		failures.Inc()
		if !*t {
			log.Warn().Err(err).Str("loop", who).Msg("a loop of the sweep cannot do its work")
		}
	} else if *t {
		log.Info().Str("loop", who).Msg("a loop of the sweep works again")
	}
	*t = err != nil
}

// timers claims due timers and tells their owners. It returns how many.
func (s *Sweep) timers(ctx context.Context) (n int, err error) {
	if s.cfg.Suspended() {
		return 0, nil
	}
	defer func() { timersTold.Add(float64(n)) }()
	gained, own := s.toTimers.take(s.cfg.Node)
	if s.claimed.union(gained); !s.claimed.empty() {
		if held := s.claimed.of(own); len(held) > 0 {
			if err := s.cfg.Rows.ReleaseTimers(ctx, held); err != nil {
				return 0, err
			}
		}
		s.claimed = shards{}
	}
	for range claimRounds {
		due, err := s.cfg.Rows.ClaimTimers(ctx, feed.Claim{Shards: own, Limit: claimBatch, Hold: claimHold, By: s.cfg.Member})
		var moved []feed.Timer
		for _, t := range due {
			if !s.cfg.Node.Owns(t.Entity.Shard()) { // since own was read
				moved = append(moved, t)
				continue
			}
			s.cfg.Node.Tell(cluster.Address{Kind: t.Kind, Tenant: t.Tenant, ID: t.Entity}, durable.TimerDue{Name: t.Name})
			n++
		}
		if len(moved) > 0 {
			err = errors.Join(err, s.cfg.Rows.ReturnTimers(ctx, moved))
		}
		if err != nil {
			return n, err
		}
		if len(due) < claimBatch || len(moved) > 0 {
			break
		}
	}
	return n, nil
}
