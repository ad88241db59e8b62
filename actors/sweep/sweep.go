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

// Rows reads and changes rows of all tenants (feed.Sweep).
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

// Node reaches the actors.
type Node interface {
	// Shards returns the shards of this node, in ascending order.
	Shards() []id.Shard
	Owns(s id.Shard) bool
	Active(a cluster.Address) bool
	Tell(a cluster.Address, m any)
}

// Config configures a Sweep. A zero value means the default in the field's comment.
type Config struct {
	Rows Rows
	Node Node
	// Kinds describe the durable kinds.
	Kinds []durable.Traits
	// Retentions are those of tables without a kind.
	Retentions []feed.Retention
	Log        zerolog.Logger
	// Member is the member under whose lease timers are claimed; zero: claims need no lease.
	Member id.MemberID
	// Live reports whether the node holds its lease. Without it the sweep begins nothing;
	// nil: always.
	Live func() bool
	// Files, if set, are checked for files that no row names.
	Files Files
	// FilesEvery is the time between two checks for unfinished files, 10 s.
	FilesEvery time.Duration
	// Every is the time between two ticks, 250 ms: expiry happens within a second
	// of its time (open-parts.md, Questions settled).
	Every time.Duration
	// RetainEvery is the time between two passes of one retention, 1 min; after a full batch
	// it is Every.
	RetainEvery time.Duration
	// EraseEvery is the time from the end of one pass of the erasure to the next, 5 s; after a
	// pass that leaves rows it is shorter.
	EraseEvery time.Duration
	Now        func() time.Time
}

// Limits of one tick, besides those of feed.Work.
const (
	claimBatch  = 500
	claimRounds = 20
	claimTurn   = 100 // timers of a tenant, after which those of the others are claimed first
	gainedPages = 4   // a pass over gained shards reads so many times the pages of a pass over all shards
)

const (
	claimHold   = 10 * time.Second
	onceTimeout = 30 * time.Second
	pageTimeout = 5 * time.Second
)

// Sweep runs the loops of one node: one for timers, one for the work of each kind, one for
// each retention, one for the erasure and one for files.
type Sweep struct {
	cfg Config

	toTimers gains
	claimed  shards              // used by the loop of the timers only: gained shards whose timers are still claimed
	turns    map[id.TenantID]int // likewise: timers claimed since the last claim that left no tenant's

	searches   []*search    // each used by its own loop only
	retentions []*retention // likewise
	erasure    erasure      // likewise

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// gains are the gained shards that one loop has not processed yet.
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

// take returns the shards gained since the last call (in the first call all shards) and the
// shards of the node. It reads the gained ones first, so that the node owns all of them.
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

// New returns a Sweep that Start starts.
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
	if cfg.Live == nil {
		cfg.Live = func() bool { return true }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Sweep{cfg: cfg, toTimers: newGains(), turns: map[id.TenantID]int{}}
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

// Start starts the loops. The shards that the node owns count as gained.
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

// Stop cancels the work in progress and waits for the loops to end.
func (s *Sweep) Stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.wg.Wait()
}

// Gained tells the sweep that the node now owns these shards. Their timers are told and their
// entities woken again at once, because messages to the former owner may be lost. It does
// not block.
func (s *Sweep) Gained(gained []id.Shard) {
	if len(gained) == 0 {
		return
	}
	s.toTimers.add(gained)
	for _, w := range s.searches {
		w.gains.add(gained)
	}
}

// loop calls once every Every and whenever bell rings.
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

// trouble is set while a loop fails. The first failure and the recovery are logged.
type trouble bool

func (t *trouble) note(log zerolog.Logger, who string, err error) {
	if err != nil {
		failures.Inc()
		if !*t {
			log.Warn().Err(err).Str("loop", who).Msg("a loop of the sweep fails")
		}
	} else if *t {
		log.Info().Str("loop", who).Msg("a loop of the sweep works again")
	}
	*t = err != nil
}

// timers claims due timers and tells their owners. It returns the number of timers told.
func (s *Sweep) timers(ctx context.Context) (n int, err error) {
	if !s.cfg.Live() {
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
	// The timers of a tenant with more than its turn are claimed after all timers of the others.
	rest := false
	for range claimRounds {
		claim := feed.Claim{Shards: own, Limit: claimBatch, Hold: claimHold, By: s.cfg.Member}
		if !rest {
			claim.Without = s.hadTurn()
		}
		due, err := s.cfg.Rows.ClaimTimers(ctx, claim)
		var moved []feed.Timer
		for _, t := range due {
			s.turns[t.Tenant]++
			if !s.cfg.Node.Owns(t.Entity.Shard()) { // it moved after own was read
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
		if len(moved) > 0 {
			break
		}
		if len(due) < claimBatch {
			clear(s.turns)
			if len(claim.Without) == 0 {
				break
			}
			rest = true
		}
	}
	return n, nil
}

// hadTurn returns the tenants whose timers wait until those of the others are claimed.
func (s *Sweep) hadTurn() []id.TenantID {
	var had []id.TenantID
	for t, n := range s.turns {
		if n >= claimTurn {
			had = append(had, t)
		}
	}
	return had
}
