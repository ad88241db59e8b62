package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// Hooks is this node's cache of hooks.
type Hooks interface {
	// Forget drops a cached trigger: later calls of its hook are checked against the tables.
	Forget(g id.TriggerID)
	// ForgetAll drops every entry for which a change may have been missed.
	ForgetAll()
}

// How a trigger fired, other than by its schedule.
const (
	FiredByHook   = "hook"
	FiredByPerson = "manual"
)

type createTrigger struct{ Body api.TriggerCreate }

type oneTrigger struct {
	ID id.TriggerID `path:"id"`
}

type patchTrigger struct {
	ID   id.TriggerID `path:"id"`
	Body api.TriggerPatch
}

type fireTrigger struct {
	ID   id.TriggerID    `path:"id"`
	Body api.TriggerFire `required:"false"`
}

// TriggersTag is the section of triggers and hooks in the OpenAPI document.
const TriggersTag = "Triggers"

func (p *Platform) triggerRoutes(t *edge.Table) {
	describeTriggers(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/triggers", ID: "listTriggers", Answer: listed(sampleSchedule),
		Summary: "List triggers", Tag: TriggersTag, Role: lifecycle.RoleAdmin}, p.listTriggers)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/triggers", ID: "createTrigger", Answer: api.TriggerCreated{Trigger: sampleHook, Secret: sampleHookSecret},
		Summary:     "Create a trigger",
		Description: "A hook is called at its hook_url with a signature made with its secret, which is shown in this response only. A schedule fires once for each of its times in the whole cluster; all times missed during an outage fire once.",
		Tag:         TriggersTag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Example: map[string]any{"name": "Every morning", "kind": "schedule", "target": map[string]any{"agent_id": sampleAgentID},
			"schedule": map[string]any{"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}, "input": map[string]any{"text": "Sum up what happened."}}}, p.createTrigger)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/triggers/{id}", ID: "getTrigger", Answer: sampleHook,
		Summary: "Read a trigger", Tag: TriggersTag, Role: lifecycle.RoleAdmin}, p.getTrigger)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/triggers/{id}", ID: "updateTrigger", Answer: sampleHook,
		Summary:     "Change, pause or resume a trigger",
		Description: "Its kind cannot change. Runs already started continue.", Tag: TriggersTag, Role: lifecycle.RoleAdmin, Example: map[string]any{"enabled": false}}, p.updateTrigger)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/triggers/{id}", ID: "deleteTrigger", Summary: "Remove a trigger",
		Description: "Its runs stay.", Tag: TriggersTag, Role: lifecycle.RoleAdmin}, p.deleteTrigger)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/triggers/{id}/rotate-secret", ID: "rotateTriggerSecret",
		Answer: api.TriggerCreated{Trigger: sampleHook, Secret: sampleHookSecret}, Summary: "Rotate a hook's secret",
		Description: "The new secret is shown in this response only. The old one is refused from then on.", Tag: TriggersTag, Role: lifecycle.RoleAdmin, Idempotent: true,
		Again: again(p, func(c *edge.Caller, in *oneTrigger) msg.Revoked { return trigger(c, in.ID) })}, p.rotateTrigger)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/triggers/{id}/fire", ID: "fireTrigger", Answer: api.RunStarted{RunID: sampleRunID},
		Summary: "Fire a trigger now", Tag: TriggersTag, Role: lifecycle.RoleAdmin, Status: 202, Idempotent: true,
		Codes:   []problem.Code{problem.CodeTriggerDisabled, problem.CodeAgentNotPublished, problem.CodeWorkflowNotPublished},
		Example: map[string]any{"input": map[string]any{"text": "Once more, please."}}}, p.fireTrigger)
}

// trigger is the revocation for a change of a trigger.
func trigger(c *edge.Caller, g id.TriggerID) msg.Revoked {
	return msg.Revoked{What: msg.ChangedTrigger, Tenant: c.Tenant, Trigger: g}
}

// withURL adds the hook's URL, which storage does not hold.
func (p *Platform) withURL(g *api.Trigger) {
	if g.Kind == lifecycle.TriggerHook {
		url := p.PublicURL + "/hooks/" + g.ID.String()
		g.HookURL = &url
	}
}

func (p *Platform) listTriggers(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Trigger], error) {
	l, err := list(ctx, p.Store.View(c.Tenant), *in, "triggers", store.View.Triggers, func(g api.Trigger) id.TriggerID { return g.ID })
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		p.withURL(&l.Items[i])
	}
	return l, nil
}

func (p *Platform) createTrigger(ctx context.Context, c *edge.Caller, in *createTrigger) (*api.TriggerCreated, error) {
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.TriggerCreated, error) {
		return p.once(tx.CreateTrigger(ctx, &in.Body))
	})
}

// once adds the URL to a response that shows a secret.
func (p *Platform) once(made *api.TriggerCreated, err error) (*api.TriggerCreated, error) {
	if err != nil {
		return nil, err
	}
	p.withURL(&made.Trigger)
	return made, nil
}

func (p *Platform) getTrigger(ctx context.Context, c *edge.Caller, in *oneTrigger) (*api.Trigger, error) {
	g, err := p.Store.View(c.Tenant).Trigger(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	p.withURL(g)
	return g, nil
}

func (p *Platform) updateTrigger(ctx context.Context, c *edge.Caller, in *patchTrigger) (*api.Trigger, error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.Trigger, error) {
		g, err := tx.UpdateTrigger(ctx, in.ID, &in.Body)
		if err != nil {
			return nil, err
		}
		p.withURL(g)
		return g, nil
	})
	return told(ctx, p, trigger(c, in.ID), out, err)
}

func (p *Platform) deleteTrigger(ctx context.Context, c *edge.Caller, in *oneTrigger) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).DeleteTrigger, in.ID))
	return removed(ctx, p, trigger(c, in.ID), out, err)
}

// rotateTrigger returns once every node refuses calls signed with the old secret.
func (p *Platform) rotateTrigger(ctx context.Context, c *edge.Caller, in *oneTrigger) (*api.TriggerCreated, error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.TriggerCreated, error) {
		return p.once(tx.RotateTrigger(ctx, in.ID))
	})
	return told(ctx, p, trigger(c, in.ID), out, err)
}

func (p *Platform) fireTrigger(ctx context.Context, c *edge.Caller, in *fireTrigger) (*api.RunStarted, error) {
	g, err := p.Store.View(c.Tenant).Trigger(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if !g.Enabled {
		return nil, problem.New(problem.CodeTriggerDisabled, "The trigger is paused.")
	}
	return p.Fire(ctx, c, Firing{Trigger: g.ID, Target: g.Target, Input: json.RawMessage(g.Input), Over: json.RawMessage(in.Body.Input), By: FiredByPerson})
}

// Firing is one start of a run by a trigger.
type Firing struct {
	Trigger id.TriggerID
	Target  api.TriggerTarget
	Input   json.RawMessage // the trigger's own input
	Over    json.RawMessage // fields that override it
	By      string          // FiredByHook or FiredByPerson
}

// Fire starts the run of a firing, on the caller's behalf. An archived target is NOT_FOUND,
// one without a published version AGENT_NOT_PUBLISHED or WORKFLOW_NOT_PUBLISHED.
func (p *Platform) Fire(ctx context.Context, c *edge.Caller, f Firing) (*api.RunStarted, error) {
	input, err := over(f.Input, f.Over)
	if err != nil {
		return nil, err
	}
	from := msg.Origin{Kind: lifecycle.OriginTrigger, ID: f.Trigger.UUID}
	var out *api.RunStarted
	if w := f.Target.WorkflowID; w != nil {
		out, err = p.startFlow(ctx, c, *w, &api.WorkflowStart{Input: api.Value(input)}, from, false)
	} else {
		out, err = p.start(ctx, c, *f.Target.AgentID, input, from)
	}
	if err == nil && p.Fired != nil {
		p.Fired(c.Tenant, f.Trigger, f.By)
	}
	return out, err
}

// Starts reports whether triggers of the target may start runs: its agent is not archived. It
// reads nothing if the answer is cached. The hooks of an archived workflow are not cached.
func (p *Platform) Starts(ctx context.Context, t id.TenantID, target api.TriggerTarget) (bool, error) {
	if target.AgentID == nil {
		return true, nil
	}
	_, ok, err := p.version(ctx, t, *target.AgentID)
	return ok, err
}

// over merges two JSON objects: the fields of upper replace those of lower. If one of them is
// not an object, the upper value wins unless it is missing or null.
func over(lower, upper json.RawMessage) (json.RawMessage, error) {
	if upper = bytes.TrimSpace(upper); len(upper) == 0 || string(upper) == "null" {
		return lower, nil
	}
	fields, further := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if !isObject(lower) || !isObject(upper) {
		return upper, nil
	}
	for _, read := range []struct {
		raw  json.RawMessage
		into *map[string]json.RawMessage
	}{{lower, &fields}, {upper, &further}} {
		if err := json.Unmarshal(read.raw, read.into); err != nil {
			return nil, fmt.Errorf("read a trigger's input: %w", err)
		}
	}
	for name, value := range further {
		fields[name] = value
	}
	out, err := jsontext.Marshal(fields) // values stay as they were sent
	if err != nil {
		return nil, fmt.Errorf("join a trigger's input: %w", err)
	}
	return out, nil
}

func isObject(raw json.RawMessage) bool {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	return len(raw) > 0 && raw[0] == '{'
}
