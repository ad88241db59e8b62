package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// The last decision that a waiting run waits for, and what the run does by it, are
// one commit: the approval hands its rows over, the run commits them with its own,
// and the approval answers then. Wherever that cannot be the decision is committed
// alone and the run is told, which is always right and one commit slower.

// joint is a decision that ends an approval of this run and is not committed yet.
// It never leaves the process. It is replied to with a verdict.
type joint struct {
	row           *engine.Run     // as it was read with the approval
	rows          *journal.Commit // what the decision makes durable; Approval is set
	edited, shown json.RawMessage // the arguments to call, of an edit
	hold          atomic.Int32
}

// verdict is the reply to a joint decision.
type verdict string

const (
	joined   verdict = "joined"   // committed
	declined verdict = "declined" // nothing was done, and nothing will be
)

// errNotJoined says that the database refuses a joint commit: whose rows it is
// that it refuses is not known.
var errNotJoined = errors.New("run: the joint rows are refused")

// A joint decision is free until the run begins to commit it, or until the
// approval, which got no answer, takes it back.
const (
	free int32 = iota
	taken
	withdrawn
)

// take reports whether the decision may be committed here.
func (j *joint) take() bool { return j.hold.CompareAndSwap(free, taken) || j.hold.Load() == taken }

// withdraw reports whether the decision was not begun to be committed; then it
// never will be.
func (j *joint) withdraw() bool { return j.hold.CompareAndSwap(free, withdrawn) }

// Asker is what a decision needs to reach its run (cluster.Node).
type Asker interface {
	Owns(s id.Shard) bool
	Ask(ctx context.Context, a cluster.Address, message any) (any, error)
}

// Join gives decisions to runs of this node, from inside of the approval's
// commit. A run never waits for an approval, so the wait has no circle. row is the
// run as it was read with the approval; rows is what the decision makes durable;
// edited and shown are the arguments to call where the decision is an edit. Where
// it is not joined, without an error, nothing was written and nothing will be. An
// error says what Writer.Do says: ErrReplay, or ErrUnsettled where it is not known
// whether it was written.
func Join(node Asker) func(ctx context.Context, row *engine.Run, rows *journal.Commit, edited, shown json.RawMessage) (bool, error) {
	return func(ctx context.Context, row *engine.Run, rows *journal.Commit, edited, shown json.RawMessage) (bool, error) {
		run := rows.Approval.Run
		if !node.Owns(run.Shard()) {
			return false, nil
		}
		j := &joint{row: row, rows: rows, edited: edited, shown: shown}
		got, err := node.Ask(ctx, cluster.Address{Kind: msg.KindRun, Tenant: rows.Tenant, ID: run.UUID}, j)
		switch {
		case err == nil && got == any(joined):
			return true, nil
		case err == nil && got == any(declined), errors.Is(err, errNotJoined), j.withdraw():
			return false, nil
		case errors.Is(err, journal.ErrReplay):
			return false, err
		case err == nil:
			err = fmt.Errorf("the run replied %v", got)
		}
		return false, fmt.Errorf("%w: %w", journal.ErrUnsettled, err)
	}
}

// The boundaries of a joint commit at which a crash test kills the process.
var (
	pointJoining = failpoint.Declare("run.tool_joining")
	pointJoined  = failpoint.Declare("run.tool_joined")
)

// commit makes rows durable, those of a joint decision as long as its approval
// waits for it.
func (k *kind) commit(ctx context.Context, w durable.Writer, a cluster.Address, _ durable.Loaded[State], _ *durable.Decision[State], m any, rows *journal.Commit) error {
	j, joint := m.(*joint)
	if !joint {
		return k.repeated(ctx, a, m, w.Do(ctx, rows))
	}
	if !j.take() {
		return fmt.Errorf("%w: the decision was taken back", journal.ErrUnavailable)
	}
	failpoint.Hit(pointJoining)
	err := w.Do(ctx, rows)
	if err == nil {
		failpoint.Hit(pointJoined)
	}
	return err
}

// add puts the decision's rows into the run's commit.
func (j *joint) add(w *journal.Commit) {
	w.Approval, w.Idempotency = j.rows.Approval, j.rows.Idempotency
	w.Audit = append(w.Audit, j.rows.Audit...)
	w.Events = append(w.Events, j.rows.Events...)
}
