package store

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
)

// FiredConfig configures Fired. Note and Count are required.
type FiredConfig struct {
	// Note advances last_fired_at of triggers. It skips triggers whose rows are locked and
	// returns them (Schedules.NoteFired).
	Note func(ctx context.Context, fired []Firing) (skipped []Firing, err error)
	// Noted is called with each trigger that Note has written. It must not block; nil: nothing is called.
	Noted func(id.TenantID, id.TriggerID)
	// Count counts a run that a trigger started; by is the label of the metric.
	Count func(by string)
	Now   func() time.Time // the cluster's clock; nil: time.Now
	Log   zerolog.Logger
}

const (
	noteEvery = time.Second
	noteTime  = 5 * time.Second
	// mostNoted bounds the triggers noted between two ticks. For further triggers
	// last_fired_at stays behind until they fire again.
	mostNoted = 1 << 14
)

// Fired writes when hooks and people last fired triggers, once a second, so that a busy hook
// costs one write a second.
type Fired struct {
	cfg FiredConfig

	mu   sync.Mutex // guards last
	last map[firedKey]time.Time

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type firedKey struct {
	tenant  id.TenantID
	trigger id.TriggerID
}

// NewFired returns a Fired. It writes only after Start.
func NewFired(cfg FiredConfig) *Fired {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Noted == nil {
		cfg.Noted = func(id.TenantID, id.TriggerID) {}
	}
	return &Fired{cfg: cfg, last: map[firedKey]time.Time{}}
}

// Fired notes that a trigger has just started a run; by is the label of the metric. It does
// not block.
func (f *Fired) Fired(t id.TenantID, g id.TriggerID, by string) {
	f.cfg.Count(by)
	f.add(firedKey{t, g}, f.cfg.Now())
}

func (f *Fired) add(k firedKey, when time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, there := f.last[k]
	if (there || len(f.last) < mostNoted) && when.After(last) {
		f.last[k] = when
	}
}

// Start starts the loop that writes.
func (f *Fired) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.wg.Go(func() { f.loop(ctx) })
	return nil
}

// Stop ends the loop and writes the rest, if ctx allows. For triggers that are skipped then,
// last_fired_at stays behind until they fire again.
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
			f.cfg.Log.Warn().Err(err).Msg("last_fired_at of triggers not written")
		}
		failing = err != nil
	}
}

// runOnce writes the times noted since the last call and returns the number of triggers
// written. It keeps the others for the next call.
func (f *Fired) runOnce(ctx context.Context) (int, error) {
	f.mu.Lock()
	told := f.last
	f.last = map[firedKey]time.Time{}
	f.mu.Unlock()
	if len(told) == 0 {
		return 0, nil
	}
	fired := make([]Firing, 0, len(told))
	for k, when := range told {
		fired = append(fired, Firing{Tenant: k.tenant, Trigger: k.trigger, At: when})
	}
	kept, err := f.cfg.Note(ctx, fired)
	if err != nil {
		kept = fired
	}
	for _, k := range kept {
		f.add(firedKey{k.Tenant, k.Trigger}, k.At)
		delete(told, firedKey{k.Tenant, k.Trigger})
	}
	for k := range told {
		f.cfg.Noted(k.tenant, k.trigger)
	}
	return len(fired) - len(kept), err
}
