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

// mostNoted bounds the triggers noted between two ticks. For further triggers last_fired_at stays
// behind until they fire again.
const mostNoted = 1 << 14

// Fired writes when hooks and people last fired triggers, once a second, so that a busy hook
// costs one write a second. For triggers that the last write skips, last_fired_at stays behind until
// they fire again.
type Fired struct {
	ticks
	cfg FiredConfig

	mu   sync.Mutex // guards last
	last map[firedKey]time.Time
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
	f := &Fired{cfg: cfg, last: map[firedKey]time.Time{}}
	f.run = func(ctx context.Context) error { _, err := f.runOnce(ctx); return err }
	f.failed = func(err error) { cfg.Log.Warn().Err(err).Msg("last_fired_at of triggers not written") }
	return f
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
