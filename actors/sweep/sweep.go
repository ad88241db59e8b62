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
	"agentsvc/schemas/msg"
)

// Rows are read and claimed over all tenants (feed.Sweep).
type Rows interface {
	ReleaseTimers(ctx context.Context) error
	ClaimTimers(ctx context.Context, limit int, hold time.Duration) ([]feed.Timer, error)
	OpenRuns(ctx context.Context, after feed.Key, limit int) ([]feed.OpenRun, error)
	DropIdempotency(ctx context.Context, limit int, age time.Duration) (int, error)
}

// Node is where the owners are.
type Node interface {
	Owns(s id.Shard) bool
	Active(a cluster.Address) bool
	Tell(a cluster.Address, m any)
}

// Config is what a sweep needs. Zero values mean the defaults beside them.
type Config struct {
	Rows Rows
	Node Node
	Log  zerolog.Logger
	// Every is the time between two ticks, 250 ms: expiry happens within a second
	// of its time (open-parts.md, Questions settled).
	Every time.Duration
	// RunsEvery is the time between two passes over the open runs, 5 s.
	RunsEvery time.Duration
	// RetainEvery is the time between two batches of retention, 1 min; a batch
	// that was full is followed by another at the next tick.
	RetainEvery time.Duration
	Now         func() time.Time
}

const (
	claimHold      = 10 * time.Second
	claimBatch     = 500
	claimRounds    = 20 // of a full batch, in one tick
	runsPage       = 1000
	runsPages      = 4 // in one tick, after the first pass
	dropBatch      = 1000
	idempotencyAge = 24 * time.Hour // open-parts.md: remembered 24 h
	onceTimeout    = 30 * time.Second
)

// Sweep is the loop of one node.
type Sweep struct {
	cfg Config

	// Touched by the loop only.
	released bool     // the claims of processes before this one
	first    bool     // the first pass has been made
	at       feed.Key // where the pass over the open runs stands
	passing  bool
	nextPass time.Time
	nextDrop time.Time

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New makes a sweep that rests.
func New(cfg Config) *Sweep {
	if cfg.Every <= 0 {
		cfg.Every = 250 * time.Millisecond
	}
	if cfg.RunsEvery <= 0 {
		cfg.RunsEvery = 5 * time.Second
	}
	if cfg.RetainEvery <= 0 {
		cfg.RetainEvery = time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Sweep{cfg: cfg}
}

// Start begins to sweep, with a full pass.
func (s *Sweep) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() { s.loop(ctx) })
	return nil
}

// Stop ends that; what it was doing is given up.
func (s *Sweep) Stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.wg.Wait()
}

func (s *Sweep) loop(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	failing := false
	for {
		once, cancel := context.WithTimeout(ctx, onceTimeout)
		_, err := s.runOnce(once)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failures.Inc()
			if !failing {
				s.cfg.Log.Warn().Err(err).Msg("sweep cannot do its work")
			}
		} else if failing {
			s.cfg.Log.Info().Msg("sweep works again")
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// result says what one tick found.
type result struct {
	timers  int // told to their owners
	woken   int // runs and threads
	dropped int // rows
}

// runOnce is one tick. A part that fails keeps no other from its work.
func (s *Sweep) runOnce(ctx context.Context) (result, error) {
	var r result
	var errs [3]error
	r.timers, errs[0] = s.timers(ctx)
	r.woken, errs[1] = s.runs(ctx)
	r.dropped, errs[2] = s.retain(ctx)
	timersTold.Add(float64(r.timers))
	runsWoken.Add(float64(r.woken))
	rowsDropped.Add(float64(r.dropped))
	return r, errors.Join(errs[:]...)
}

func (s *Sweep) timers(ctx context.Context) (int, error) {
	if !s.released {
		if err := s.cfg.Rows.ReleaseTimers(ctx); err != nil {
			return 0, err
		}
		s.released = true
	}
	n := 0
	for range claimRounds {
		due, err := s.cfg.Rows.ClaimTimers(ctx, claimBatch, claimHold)
		if err != nil {
			return n, err
		}
		for _, t := range due {
			s.cfg.Node.Tell(cluster.Address{Kind: t.Kind, Tenant: t.Tenant, ID: t.Entity}, durable.TimerDue{Name: t.Name})
		}
		n += len(due)
		if len(due) < claimBatch {
			break
		}
	}
	return n, nil
}

// runs goes on with the pass over the open runs, or begins one when its time has
// come.
func (s *Sweep) runs(ctx context.Context) (int, error) {
	now := s.cfg.Now()
	if !s.passing {
		if now.Before(s.nextPass) {
			return 0, nil
		}
		s.passing, s.at, s.nextPass = true, feed.Key{}, now.Add(s.cfg.RunsEvery)
	}
	n := 0
	for pages := 0; pages < runsPages || !s.first; pages++ {
		open, err := s.cfg.Rows.OpenRuns(ctx, s.at, runsPage)
		if err != nil {
			return n, err // the next tick goes on from here
		}
		for _, o := range open {
			if s.wake(o) {
				n++
			}
			s.at = feed.Key{Tenant: o.Tenant, Run: o.Run}
		}
		if len(open) < runsPage {
			s.passing, s.first = false, true
			break
		}
	}
	return n, nil
}

// wake tells the one who can make the run go on, unless it lives.
func (s *Sweep) wake(o feed.OpenRun) bool {
	run := cluster.Address{Kind: msg.KindRun, Tenant: o.Tenant, ID: o.Run.UUID}
	if !s.cfg.Node.Owns(run.Shard()) || s.cfg.Node.Active(run) {
		return false
	}
	if o.Held && o.Thread != nil {
		run = cluster.Address{Kind: msg.KindThread, Tenant: o.Tenant, ID: o.Thread.UUID}
	}
	s.cfg.Node.Tell(run, durable.Wake{})
	return true
}

func (s *Sweep) retain(ctx context.Context) (int, error) {
	now := s.cfg.Now()
	if now.Before(s.nextDrop) {
		return 0, nil
	}
	n, err := s.cfg.Rows.DropIdempotency(ctx, dropBatch, idempotencyAge)
	if err == nil && n < dropBatch {
		s.nextDrop = now.Add(s.cfg.RetainEvery)
	}
	return n, err
}
