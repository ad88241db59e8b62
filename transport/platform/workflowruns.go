package platform

import (
	"context"
	"encoding/json"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type startWorkflow struct {
	ID   id.WorkflowID     `path:"id"`
	Body api.WorkflowStart `required:"false"`
}

type sendEvent struct {
	RunID id.RunID `path:"runId"`
	Body  api.WorkflowEvent
}

func (p *Platform) workflowRunRoutes(t *edge.Table) {
	edge.Doc[api.WorkflowStart](t, "What a run of a workflow works with.")
	edge.Doc[api.WorkflowEvent](t, "An event for a workflow run.")
	edge.Doc[api.WorkflowEventAccepted](t, "An event that was accepted.")
	const tag = "Workflows"
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/workflows/{id}/runs", ID: "startWorkflow", Answer: api.RunStarted{RunID: sampleRunID},
		Summary:     "Run a workflow",
		Description: "In its published version. Variables go over those of the definition.", Tag: tag, Role: lifecycle.RoleMember,
		Status: 202, Idempotent: true, Codes: []problem.Code{problem.CodeWorkflowNotPublished}, Example: map[string]any{"input": map[string]any{"order": "4711"}}}, p.startWorkflow)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/workflows/{id}/test-run", ID: "testWorkflow", Answer: api.RunStarted{RunID: sampleRunID},
		Summary:     "Test a workflow",
		Description: "Runs the newest version, published or not. The end of the run is not reported to webhooks; its approvals are.", Tag: tag, Role: lifecycle.RoleMember,
		Status: 202, Idempotent: true, Codes: []problem.Code{problem.CodeWorkflowNotPublished}, Example: map[string]any{"input": map[string]any{"order": "4711"}}}, p.testWorkflow)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/workflows/runs/{runId}/events", ID: "sendWorkflowEvent", Answer: api.WorkflowEventAccepted{RunID: sampleRunID, Accepted: true},
		Summary:     "Send an event to a workflow run",
		Description: "It wakes the oldest node that waits for an event of this name. An event that comes before its node waits for it, and one with an id counts once.", Tag: tag,
		Role: lifecycle.RoleMember, Status: 202, Idempotent: true, Codes: []problem.Code{problem.CodeRunTerminal},
		Example: map[string]any{"name": "paid", "payload": map[string]any{"eur": 12}, "id": "evt-1"}}, p.sendWorkflowEvent)
}

func (p *Platform) startWorkflow(ctx context.Context, c *edge.Caller, in *startWorkflow) (*api.RunStarted, error) {
	return p.startFlow(ctx, c, in.ID, &in.Body, origin(c), false)
}

func (p *Platform) testWorkflow(ctx context.Context, c *edge.Caller, in *startWorkflow) (*api.RunStarted, error) {
	return p.startFlow(ctx, c, in.ID, &in.Body, origin(c), true)
}

// startFlow begins a run of a workflow: of its published version, or as a test of its newest.
func (p *Platform) startFlow(ctx context.Context, c *edge.Caller, w id.WorkflowID, body *api.WorkflowStart, from msg.Origin, test bool) (*api.RunStarted, error) {
	start, err := p.Store.View(c.Tenant).StartWorkflow(ctx, w, test)
	if err != nil {
		return nil, err
	}
	run := id.RunID{UUID: id.New(p.Actors.MintShard())}
	out := &api.RunStarted{RunID: run}
	order := msg.StartWorkflow{Run: run, Workflow: w, Version: start.Version, Test: test, Input: json.RawMessage(body.Input), Variables: json.RawMessage(body.Variables), Node: start.NodeID, Origin: from, By: sender(c)}
	if order.Input == nil {
		order.Input = json.RawMessage("null")
	}
	if order.Idempotency, err = p.keep(c, out); err != nil {
		return nil, err
	}
	if _, err := ask[msg.Started](ctx, p, c, msg.KindWorkflow, run.UUID, order); err != nil {
		return nil, err
	}
	c.Run = run
	return out, nil
}

func (p *Platform) sendWorkflowEvent(ctx context.Context, c *edge.Caller, in *sendEvent) (*api.WorkflowEventAccepted, error) {
	order := msg.InjectEvent{Op: id.OpID{UUID: id.New(in.RunID.Shard())}, ID: in.Body.ID, Name: in.Body.Name, Payload: json.RawMessage(in.Body.Payload), By: sender(c)}
	out := &api.WorkflowEventAccepted{RunID: in.RunID, Accepted: true}
	var err error
	if order.Idempotency, err = p.keep(c, out); err != nil {
		return nil, err
	}
	if _, err := ask[msg.Done](ctx, p, c, msg.KindWorkflow, in.RunID.UUID, order); err != nil {
		return nil, err
	}
	return out, nil
}
