package thread

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
)

// Store reads the rows that a thread needs. Every method reads within the named tenant.
type Store interface {
	// Thread returns the row with its first open runs and the runs of its newest
	// messages, newest first; nil if there is none.
	Thread(ctx context.Context, tenant id.TenantID, thread id.ThreadID, window int) (*engine.Thread, error)
	// Accepted reports whether the thread has the run.
	Accepted(ctx context.Context, tenant id.TenantID, thread id.ThreadID, run id.RunID) (bool, error)
	// Standing returns the number of messages and the open runs of the thread.
	Standing(ctx context.Context, tenant id.TenantID, thread id.ThreadID, run id.RunID) (engine.Standing, error)
	// Audited reports whether the audit log has the row, with that action and target.
	Audited(ctx context.Context, tenant id.TenantID, row id.AuditID, action string, target id.UUID) (bool, error)
	// OpenRuns returns the first open runs after a number, in order.
	OpenRuns(ctx context.Context, tenant id.TenantID, thread id.ThreadID, after int64, limit int) ([]engine.OpenRun, error)
}

// pointBeforeNext is a crash point: a run is accepted and has not been told to begin.
var pointBeforeNext = failpoint.Declare("thread.before_next")

// Teller tells an actor something (cluster.Node). It does not block.
type Teller interface {
	Tell(a cluster.Address, message any)
}

// Effects.
type (
	// Next tells a run to begin. The run may know already that it is ready.
	Next struct {
		Run      id.RunID
		Accepted *msg.Accepted
		Round    int
	}
	// Cancel tells a run of a deleted thread to end.
	Cancel struct {
		Run   id.RunID
		By    msg.By
		Round int
	}
	// ReadQueue reads the first open runs.
	ReadQueue struct {
		Read    int // the number of the read
		NextSeq int64
	}
)

// Key is stable over re-performance.
func (e Next) Key() string { return "next/" + e.Run.String() + "/" + strconv.Itoa(e.Round) }

// Key is stable over re-performance.
func (e Cancel) Key() string { return "cancel/" + e.Run.String() + "/" + strconv.Itoa(e.Round) }

// Key is stable over re-performance.
func (e ReadQueue) Key() string { return "queue/" + strconv.Itoa(e.Read) }

func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	switch e := e.(type) {
	case Next:
		failpoint.Hit(pointBeforeNext)
		k.cfg.Tell.Tell(runAddress(a, e.Run), msg.Proceed{Accepted: e.Accepted})
		return nil
	case Cancel:
		by := e.By
		if by == (msg.By{}) { // an earlier activation decided the deletion
			by.Actor = msg.System
		}
		k.cfg.Tell.Tell(runAddress(a, e.Run), msg.CancelRun{By: by})
		return nil
	case ReadQueue:
		return k.readQueue(ctx, a, e)
	}
	panic(fmt.Sprintf("thread: unknown effect %T", e))
}

func runAddress(a durable.Activation, run id.RunID) cluster.Address {
	return cluster.Address{Kind: msg.KindRun, Tenant: a.Address.Tenant, ID: run.UUID}
}

// The pause between two attempts to read.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// readQueue retries until it succeeds or is no longer owed: a thread cannot continue without
// its queue.
func (k *kind) readQueue(ctx context.Context, a durable.Activation, e ReadQueue) any {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		runs, err := k.cfg.Store.OpenRuns(ctx, a.Address.Tenant, id.ThreadID{UUID: a.Address.ID}, 0, window+1)
		if err == nil {
			open, more := openRuns(runs)
			return QueueRead{Read: e.Read, Open: open, More: more, NextSeq: e.NextSeq}
		}
		if ctx.Err() != nil {
			return nil
		}
		k.cfg.Log.Warn().Err(err).Stringer("tenant", a.Address.Tenant).Stringer("thread", a.Address.ID).Msg("open runs could not be read")
		if !pause.For(ctx, wait) {
			return nil
		}
	}
}

// openRuns returns the runs of a window, and whether there are more.
func openRuns(runs []engine.OpenRun) (open []OpenRun, more bool) {
	if len(runs) > window {
		runs, more = runs[:window], true
	}
	open = make([]OpenRun, len(runs))
	for i, r := range runs {
		open[i] = OpenRun{Run: r.Run, Seq: r.Seq}
	}
	return open, more
}
