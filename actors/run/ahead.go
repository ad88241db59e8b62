package run

import (
	"context"
	"slices"
	"sync"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

const (
	// aheadFor is how long a run that was read ahead is kept for its decision.
	aheadFor = 2 * time.Second
	// maxAhead bounds the runs that are read ahead at a time; others are read when
	// they are told.
	maxAhead = 1024
)

// Ahead reads waiting runs while the decisions that let them go on are being
// committed, so that a run has its rows when it is told. What it has read may be
// old: the run's commit finds out, and it counts only where the decision that the
// run is told is the last one it waits for.
type Ahead struct {
	store Store

	mu    sync.Mutex // guards reads
	reads map[runKey]*early
}

type runKey struct {
	tenant id.TenantID
	run    id.RunID
}

type early struct {
	done chan struct{} // closed when row and err are there
	row  *engine.Run
	err  error
}

// NewAhead makes an Ahead that reads from store.
func NewAhead(store Store) *Ahead { return &Ahead{store: store, reads: map[runKey]*early{}} }

// Read begins to read a run that may be told in a moment. It does not wait.
func (a *Ahead) Read(tenant id.TenantID, run id.RunID) {
	key, r := runKey{tenant, run}, &early{done: make(chan struct{})}
	a.mu.Lock()
	full := len(a.reads) >= maxAhead
	if !full {
		a.reads[key] = r // a later one goes before an earlier one
	}
	a.mu.Unlock()
	if full {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), aheadFor)
		defer cancel()
		r.row, r.err = a.store.Run(ctx, tenant, run)
		close(r.done)
	}()
	time.AfterFunc(aheadFor, func() { a.drop(key, r) })
}

// drop forgets a read that nobody took.
func (a *Ahead) drop(key runKey, r *early) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reads[key] == r {
		delete(a.reads, key)
	}
}

// take waits for the run's read, nil where there is none or it failed.
func (a *Ahead) take(tenant id.TenantID, run id.RunID) *engine.Run {
	key := runKey{tenant, run}
	a.mu.Lock()
	r := a.reads[key]
	delete(a.reads, key)
	a.mu.Unlock()
	if r == nil {
		return nil
	}
	<-r.done // within aheadFor
	if r.err != nil {
		return nil
	}
	return r.row
}

// decided starts a waiting run from what was read ahead and from the decision
// that was committed meanwhile. It is not ok where more is waited for, as far as
// this knows: then the rows say.
func (k *kind) decided(a cluster.Address, v *msg.Verdict) (durable.Loaded[State], bool) {
	row := k.cfg.Ahead.take(a.Tenant, id.RunID{UUID: a.ID})
	if row == nil || row.Status != lifecycle.RunWaitingApproval {
		return durable.Loaded[State]{}, false
	}
	i := slices.IndexFunc(row.Open, func(s engine.OpenStep) bool { return s.Asked != nil && s.Asked.ID == v.Approval })
	if i < 0 {
		return durable.Loaded[State]{}, false
	}
	asked := row.Open[i].Asked
	asked.Status, asked.Decision, asked.Feedback = v.Status, v.Decision, v.Feedback
	asked.Edited, asked.Shown, asked.Digest = v.Edited, v.Shown, v.Digest[:]
	for i := range row.Open {
		asked := row.Open[i].Asked
		if asked == nil || !asked.Status.Terminal() || asked.Status == lifecycle.ApprovalExpired && asked.OnTimeout == agent.TimeoutCancelRun {
			return durable.Loaded[State]{}, false
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
	defer cancel()
	l, err := k.read(ctx, a, row)
	if err != nil {
		return durable.Loaded[State]{}, false
	}
	return l, true
}
