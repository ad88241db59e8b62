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
)

// Store reads what a thread needs. Every answer is of the tenant named.
type Store interface {
	// Thread is the row with its first open runs and the runs of its newest
	// messages, newest first; nil where there is none.
	Thread(ctx context.Context, tenant id.TenantID, thread id.ThreadID, window int) (*engine.Thread, error)
	// Accepted reports whether the run is one of the thread.
	Accepted(ctx context.Context, tenant id.TenantID, thread id.ThreadID, run id.RunID) (bool, error)
	// Standing is how the messages and runs of the thread stand.
	Standing(ctx context.Context, tenant id.TenantID, thread id.ThreadID, run id.RunID) (engine.Standing, error)
	// Audited reports whether the audit log has the row, about that action on that
	// target.
	Audited(ctx context.Context, tenant id.TenantID, row id.AuditID, action string, target id.UUID) (bool, error)
	// OpenRuns are the first open runs behind a place, in order.
	OpenRuns(ctx context.Context, tenant id.TenantID, thread id.ThreadID, after int64, limit int) ([]engine.OpenRun, error)
}

// pointBeforeNext is where a crash test meets a run that was accepted and that
// nobody has told to begin.
var pointBeforeNext = failpoint.Declare("thread.before_next")

// Teller tells an actor something (cluster.Node). It does not block.
type Teller interface {
	Tell(a cluster.Address, message any)
}

// Effects.
type (
	// Next tells a run that its turn has come, which it may know.
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
	// ReadLine reads the beginning of the line of open runs.
	ReadLine struct {
		Look    int
		NextSeq int64
	}
)

// Key is stable over re-performance.
func (e Next) Key() string { return "next/" + e.Run.String() + "/" + strconv.Itoa(e.Round) }

// Key is stable over re-performance.
func (e Cancel) Key() string { return "cancel/" + e.Run.String() + "/" + strconv.Itoa(e.Round) }

// Key is stable over re-performance.
func (e ReadLine) Key() string { return "line/" + strconv.Itoa(e.Look) }

// deleter is who cancels the runs of a thread whose deletion an earlier
// activation decided.
var deleter = msg.By{Actor: "system"}

func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	switch e := e.(type) {
	case Next:
		failpoint.Hit(pointBeforeNext)
		k.cfg.Tell.Tell(runAddress(a, e.Run), msg.Proceed{Accepted: e.Accepted})
		return nil
	case Cancel:
		by := e.By
		if by == (msg.By{}) {
			by = deleter
		}
		k.cfg.Tell.Tell(runAddress(a, e.Run), msg.CancelRun{By: by})
		return nil
	case ReadLine:
		return k.readLine(ctx, a, e)
	}
	panic(fmt.Sprintf("thread: unknown effect %T", e))
}

func runAddress(a durable.Activation, run id.RunID) cluster.Address {
	return cluster.Address{Kind: msg.KindRun, Tenant: a.Address.Tenant, ID: run.UUID}
}

// The pause between two tries to read.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// readLine tries until it has read or nobody waits for it any more: a thread
// that does not know its line cannot go on.
func (k *kind) readLine(ctx context.Context, a durable.Activation, e ReadLine) any {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		runs, err := k.cfg.Store.OpenRuns(ctx, a.Address.Tenant, id.ThreadID{UUID: a.Address.ID}, 0, window+1)
		if err == nil {
			open, more := turns(runs)
			return Line{Look: e.Look, Open: open, More: more, NextSeq: e.NextSeq}
		}
		if ctx.Err() != nil {
			return nil
		}
		k.cfg.Log.Warn().Err(err).Stringer("tenant", a.Address.Tenant).Stringer("thread", a.Address.ID).Msg("open runs could not be read")
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// turns are the runs that a window holds, and whether there are more.
func turns(runs []engine.OpenRun) (open []Turn, more bool) {
	if len(runs) > window {
		runs, more = runs[:window], true
	}
	open = make([]Turn, len(runs))
	for i, r := range runs {
		open[i] = Turn{Run: r.Run, Seq: r.Seq}
	}
	return open, more
}
