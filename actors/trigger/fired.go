package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
)

// FiredConfig is what Fired needs.
type FiredConfig struct {
	// Note moves last_fired_at of triggers, which never goes back, but for those that
	// somebody changes just now (store.Schedules.NoteFired).
	Note func(ctx context.Context, fired []store.Firing) (skipped []store.Firing, err error)
	Now  func() time.Time // the cluster's clock; nil: time.Now
	Log  zerolog.Logger
}

const (
	noteEvery = time.Second
	noteTime  = 5 * time.Second
	// mostNoted is how many triggers are noted between two ticks; of further ones
	// last_fired_at is behind until they fire again.
	mostNoted = 1 << 14
)

// Fired notes when hooks and people fired triggers: the last time of each, once a
// second, so that a hook that is called all the time costs one write.
type Fired struct {
	cfg FiredConfig

	mu   sync.Mutex // guards last
	last map[at]time.Time

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type at struct {
	tenant  id.TenantID
	trigger id.TriggerID
}

// NewFired makes a Fired that rests: what it is told it notes after its Start.
func NewFired(cfg FiredConfig) *Fired {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Fired{cfg: cfg, last: map[at]time.Time{}}
}

// Fired says that a trigger has just started a run, and by what. It does not block.
func (f *Fired) Fired(t id.TenantID, g id.TriggerID, by string) {
	firings.WithLabelValues(by).Inc()
	f.add(at{t, g}, f.cfg.Now())
}

func (f *Fired) add(k at, when time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, there := f.last[k]
	if (there || len(f.last) < mostNoted) && when.After(last) {
		f.last[k] = when
	}
}

// Start begins to note.
func (f *Fired) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.wg.Go(func() { f.loop(ctx) })
	return nil
}

// Stop ends it; what was not noted yet is noted, if ctx allows. What is skipped then
// is lost: that last_fired_at is behind until the trigger fires again.
func (f *Fired) Stop(ctx context.Context) error {
	if f.cancel == nil {
		return nil
	}
	f.cancel()
	f.wg.Wait()
	_, err := f.runOnce(ctx)
	return err
}

func (f *Fired) loop(ctx context.Context) {
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		once, cancel := context.WithTimeout(ctx, noteTime)
		_, err := f.runOnce(once)
		cancel()
		if err != nil && !failing && ctx.Err() == nil {
			f.cfg.Log.Warn().Err(err).Msg("when triggers fired cannot be noted")
		}
		failing = err != nil
	}
}

// runOnce notes what was told since the last time, and says of how many triggers.
// What it cannot note, or is skipped, it keeps.
func (f *Fired) runOnce(ctx context.Context) (int, error) {
	f.mu.Lock()
	told := f.last
	f.last = map[at]time.Time{}
	f.mu.Unlock()
	if len(told) == 0 {
		return 0, nil
	}
	fired := make([]store.Firing, 0, len(told))
	for k, when := range told {
		fired = append(fired, store.Firing{Tenant: k.tenant, Trigger: k.trigger, At: when})
	}
	kept, err := f.cfg.Note(ctx, fired)
	if err != nil {
		kept = fired
	}
	for _, k := range kept {
		f.add(at{k.Tenant, k.Trigger}, k.At)
	}
	return len(fired) - len(kept), err
}
