package journal

import (
	"context"
	"sync"
	"time"

	"agentsvc/schemas/id"
)

const (
	touchEvery = time.Second
	touchTime  = 5 * time.Second
	// maxTouched bounds the keys that wait; further ones are dropped: the value is
	// only ever a hint.
	maxTouched = 8192
)

type touchKey struct {
	tenant id.TenantID
	key    id.KeyID
}

// touched is the lazy lane: last_used_at of API keys, the newest per key.
type touched struct {
	mu   sync.Mutex // guards the field below
	keys map[touchKey]time.Time
}

// Touch notes that the key was used. It never waits, is written about once a
// second, and may be lost.
func (w *Writer) Touch(tenant id.TenantID, key id.KeyID, at time.Time) {
	t := &w.touched
	t.mu.Lock()
	defer t.mu.Unlock()
	k := touchKey{tenant, key}
	old, there := t.keys[k]
	if !there && len(t.keys) >= maxTouched {
		w.metrics.touches.WithLabelValues("dropped").Inc()
		return
	}
	if t.keys == nil {
		t.keys = map[touchKey]time.Time{}
	}
	if at.After(old) {
		t.keys[k] = at
	}
}

func (w *Writer) touchLoop() {
	tick := time.NewTicker(touchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.writeTouched()
		case <-w.ends:
			w.writeTouched()
			return
		}
	}
}

// writeTouched writes what was noted since the last time.
func (w *Writer) writeTouched() {
	t := &w.touched
	t.mu.Lock()
	keys := t.keys
	t.keys = nil
	t.mu.Unlock()
	if len(keys) == 0 || w.fenced.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(w.hard, touchTime)
	defer cancel()
	tenants, ids, ats := make([]id.TenantID, 0, len(keys)), make([]id.KeyID, 0, len(keys)), make([]time.Time, 0, len(keys))
	for k, at := range keys {
		tenants = append(tenants, k.tenant)
		ids = append(ids, k.key)
		ats = append(ats, at)
	}
	result := "written"
	if _, err := w.cfg.Pool.Exec(ctx, queries.Get("touch_keys"), tenants, ids, ats); err != nil {
		result = "lost" // the lanes report what is wrong with the database
	}
	w.metrics.touches.WithLabelValues(result).Add(float64(len(keys)))
}
