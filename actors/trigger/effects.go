package trigger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Store reads what schedules need (store.Schedules).
type Store interface {
	// Schedule returns a trigger; nil if there is none.
	Schedule(ctx context.Context, t id.TenantID, g id.TriggerID) (*store.Schedule, error)
	// Published returns an agent's published version, 0 if it has none.
	Published(ctx context.Context, t id.TenantID, a id.AgentID) (int, error)
	// StartWorkflow returns what a run of a workflow's published version needs. Where it cannot
	// be started the error is a problem.
	StartWorkflow(ctx context.Context, t id.TenantID, w id.WorkflowID) (*store.WorkflowStart, error)
	// HasRun reports whether there is a run with that id, of an agent or of a workflow.
	HasRun(ctx context.Context, t id.TenantID, r id.RunID) (bool, error)
}

// Runs sends messages to runs.
type Runs interface {
	Ask(ctx context.Context, kind string, tenant id.TenantID, actor id.UUID, message any) (any, error)
}

// firingTime bounds one firing, from when it has its place. It is shorter than the sweep's
// claim on a timer. A timer that comes again while its firing waits for a place has no effect.
const firingTime = 8 * time.Second

// Start is the effect that starts the run of a due time, unless it exists.
type Start struct{ Due time.Time }

// Key returns the same key for the same due time.
func (e Start) Key() string { return "start/" + e.Due.UTC().Format(time.RFC3339Nano) }

func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	if k.places.Take(ctx, a.Address.Tenant) != nil {
		return Failed{} // the activation has ended
	}
	defer k.places.Give(a.Address.Tenant)
	ctx, cancel := context.WithTimeout(ctx, firingTime)
	defer cancel()
	t, g, due, why := a.Address.Tenant, id.TriggerID{UUID: a.Address.ID}, e.(Start).Due, ""
	// The row is read once more: it may have changed while the firing waited for its place.
	r, err := k.cfg.Store.Schedule(ctx, t, g)
	stands := err == nil && r != nil && r.Due != nil && r.Due.Equal(due)
	if stands {
		why, err = k.start(ctx, t, g, r)
	}
	if err != nil {
		if !errors.Is(context.Cause(ctx), context.Canceled) { // the activation has ended
			failures.Inc()
			k.log(k.cfg.Log.Warn(), a.Address).Err(err).Msg("a schedule failed to fire, its timer comes again")
		}
		return Failed{}
	}
	if !stands {
		return Failed{} // who changed the row has set or deleted its timer
	}
	return Started{Due: due, Why: why}
}

// start starts the run, unless it exists. why is the reason if it can never be started.
func (k *kind) start(ctx context.Context, t id.TenantID, g id.TriggerID, r *store.Schedule) (why string, err error) {
	run, from, by := RunAt(g, *r.Due), msg.Origin{Kind: lifecycle.OriginTrigger, ID: g.UUID}, msg.By{Actor: "trigger:" + g.String()}
	input := json.RawMessage(r.Input)
	if input == nil {
		input = json.RawMessage("null")
	}
	if r.Workflow != nil {
		// The due time may have started an agent's run, and the target changed before the schedule moved on. That
		// run is no workflow's, so the actor of the id could neither begin nor find one.
		if exists, err := k.cfg.Store.HasRun(ctx, t, run); err != nil || exists {
			return "", err
		}
		var start *store.WorkflowStart
		if start, err = k.cfg.Store.StartWorkflow(ctx, t, *r.Workflow); err == nil {
			_, err = k.cfg.Runs.Ask(ctx, msg.KindWorkflow, t, run.UUID,
				msg.StartWorkflow{Run: run, Workflow: *r.Workflow, Version: start.Version, Node: start.NodeID, Input: input, Origin: from, By: by})
		}
	} else {
		var version int
		if version, err = k.cfg.Store.Published(ctx, t, *r.Agent); err != nil {
			return "", err
		}
		if version == 0 {
			return "the agent has no published version", nil
		}
		_, err = k.cfg.Runs.Ask(ctx, msg.KindRun, t, run.UUID, msg.StartOne{Run: run, AgentID: *r.Agent, AgentVersion: version, Input: input, Origin: from, By: by})
	}
	var refused *problem.Error
	if errors.As(err, &refused) && refused.Status() < http.StatusInternalServerError && refused.Code != problem.CodeRateLimited {
		return refused.Error(), nil
	}
	return "", err
}

// RunAt returns the id of the run of a trigger's due time, in the trigger's shard. It
// depends on nothing else.
func RunAt(g id.TriggerID, due time.Time) id.RunID {
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(due.UnixMicro()))
	sum := sha256.Sum256(append(g.UUID[:], at[:]...))
	// A UUID of version 7, laid out as in package id.
	u := id.UUID(sum[:16])
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(due.UnixMilli()))
	copy(u[:6], ms[2:])
	u[6] = 7<<4 | u[6]&0xf
	binary.BigEndian.PutUint16(u[8:], 1<<15|uint16(g.Shard())<<4|uint16(u[9]&0xf))
	return id.RunID{UUID: u}
}

var _ Store = (*store.Schedules)(nil)
