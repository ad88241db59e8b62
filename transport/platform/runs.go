package platform

import (
	"context"
	"encoding/json"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type startRun struct {
	ID   id.AgentID   `path:"id"`
	Body api.RunStart `required:"false"`
}

type listRuns struct {
	api.Page
	AgentID    *id.AgentID           `query:"agent_id"`
	WorkflowID *id.WorkflowID        `query:"workflow_id"`
	Status     []lifecycle.RunStatus `query:"status" maxItems:"7" doc:"repeat it for runs of several statuses"`
	Origin     *lifecycle.OriginKind `query:"origin" doc:"the kind of what started the run"`
	TriggerID  *id.TriggerID         `query:"trigger_id" doc:"started by this trigger"`
	EndUserID  *id.EndUserID         `query:"end_user_id"`
	ThreadID   *id.ThreadID          `query:"thread_id" doc:"none of a deleted thread"`
	Parent     *string               `query:"parent_run_id" maxLength:"36" doc:"children of this run; none: runs without a parent"`
	Code       *string               `query:"code" minLength:"1" maxLength:"64" doc:"error.code of the run"`
	Since      *time.Time            `query:"since" doc:"created at this time or later"`
	Until      *time.Time            `query:"until" doc:"created before this time"`
	View       string                `query:"view" enum:"summary" doc:"without input and output, with the first 200 characters of what was asked"`
}

// filter returns the filter that the query asks for.
func (in *listRuns) filter() (store.RunFilter, error) {
	f := store.RunFilter{Agent: in.AgentID, Workflow: in.WorkflowID, Statuses: in.Status, Origin: in.Origin, Trigger: in.TriggerID, EndUser: in.EndUserID, Thread: in.ThreadID,
		Code: in.Code, Since: in.Since, Until: in.Until, Summary: in.View == summary}
	switch {
	case in.Parent == nil:
	case *in.Parent == "none":
		f.TopLevel = true
	default:
		parent, err := id.Parse(*in.Parent)
		if err != nil {
			return f, problem.Invalid("parent_run_id", "expected a UUID or none")
		}
		f.Parent = &id.RunID{UUID: parent}
	}
	return f, nil
}

// summary is the value of view that leaves contents out.
const summary = "summary"

type oneRun struct {
	ID id.RunID `path:"id"`
}

type readRun struct {
	ID     id.RunID `path:"id"`
	Cursor string   `query:"cursor" maxLength:"512" doc:"next_cursor of the answer before: the steps go on behind it"`
	View   string   `query:"view" enum:"summary" doc:"run and steps without input and output; the run with the first 200 characters of what was asked"`
}

type oneStep struct {
	ID  id.RunID `path:"id"`
	Idx int      `path:"idx" minimum:"0" maximum:"2147483647"`
}

type listArtifacts struct {
	ID id.RunID `path:"id"`
	api.PageOrAll
}

type oneArtifact struct {
	ID       id.RunID      `path:"id"`
	Artifact id.ArtifactID `path:"artifactId"`
}

type watchRun struct {
	ID          id.RunID `path:"id"`
	Since       *float64 `query:"since" doc:"the last step idx that was seen; default -1"`
	Replay      string   `query:"replay" enum:"full" doc:"every frame of the run"`
	LastEventID string   `header:"Last-Event-ID" doc:"the last frame id that was seen: every later frame comes exactly once"`
}

func (p *Platform) runRoutes(t *edge.Table) {
	const tag = "Runs"
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/agents/{id}/runs", ID: "startRun", Answer: api.RunStarted{RunID: sampleRunID},
		Summary:     "Run an agent once",
		Description: "Without a thread. The agent reads its prompt from a bare string, { text } or { input }.", Tag: "Agents", Role: lifecycle.RoleMember,
		Status: 202, Idempotent: true, Codes: []problem.Code{problem.CodeAgentNotPublished}, Example: map[string]any{"input": "Sum up our returns policy."}}, p.startRun)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/runs", ID: "listRuns", Answer: listed(sampleRun),
		Summary:     "List runs",
		Description: "All filters that are given must fit. Runs of deleted threads are found by every filter but thread_id.", Tag: tag, Role: lifecycle.RoleMember}, p.listRuns)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/runs/{id}", ID: "getRun", Answer: api.RunAnswer{Run: &sampleRun, Steps: []api.Step{sampleStep}},
		Summary: "Read a run and its steps", Description: "Steps beyond 4 MiB of JSON are left out; next_cursor then leads to them.", Tag: tag, Role: lifecycle.RoleMember}, p.getRun)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/runs/{id}/steps/{idx}", ID: "getStep", Answer: api.StepAnswer{Step: sampleStep},
		Summary:     "Read a step of a run",
		Description: "With its input and output. The output of a tool is kept up to 256 KiB.", Tag: tag, Role: lifecycle.RoleMember}, p.getStep)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/runs/{id}/cancel", ID: "cancelRun", Answer: api.RunStatus{RunID: sampleRunID, Status: lifecycle.RunCancelled},
		Summary:     "Cancel a run",
		Description: "Returns the run's status now; for a run that had already ended, its final status.", Tag: tag, Role: lifecycle.RoleMember, Idempotent: true}, p.cancelRun)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/runs/{id}/artifacts", ID: "listArtifacts", Answer: api.All([]api.Artifact{sampleArtifact}),
		Summary: "List a run's files", Description: "The files that the run made for the deliverable of its message. They are there once the run has succeeded.",
		Tag: tag, Role: lifecycle.RoleMember}, p.listArtifacts)
	edge.HandleDownload(t, edge.Route{Method: "GET", Path: "/v1/runs/{id}/artifacts/{artifactId}", ID: "downloadArtifact", Summary: "Download a run's file",
		Tag: tag, Role: lifecycle.RoleMember}, p.downloadArtifact)
	edge.HandleStream(t, edge.Route{Method: "GET", Path: "/v1/runs/{id}/events", ID: "watchRun", Summary: "Follow a run",
		Description: "The stream ends after the terminal frame. A client that reconnects sends the last id it saw as Last-Event-ID.", Tag: tag, Role: lifecycle.RoleMember,
		Frames: frames}, p.watchRun)
}

func (p *Platform) startRun(ctx context.Context, c *edge.Caller, in *startRun) (*api.RunStarted, error) {
	return p.start(ctx, c, in.ID, json.RawMessage(in.Body.Input), origin(c))
}

// start begins a run of the agent's published version, without a thread.
func (p *Platform) start(ctx context.Context, c *edge.Caller, agent id.AgentID, input json.RawMessage, from msg.Origin) (*api.RunStarted, error) {
	version, ok, err := p.version(ctx, c.Tenant, agent)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, problem.NotFound("agent")
	}
	if version == 0 {
		return nil, notPublished(problem.CodeAgentNotPublished, agent)
	}
	run := id.RunID{UUID: id.New(p.Actors.MintShard())}
	out := &api.RunStarted{RunID: run}
	order := msg.StartOne{Run: run, AgentID: agent, AgentVersion: version, Input: input, Origin: from, By: sender(c)}
	if order.Input == nil {
		order.Input = json.RawMessage("null")
	}
	if order.Idempotency, err = p.keep(c, out); err != nil {
		return nil, err
	}
	if _, err := ask[msg.Started](ctx, p, c, msg.KindRun, run.UUID, order); err != nil {
		return nil, err
	}
	c.Run = run
	return out, nil
}

func (p *Platform) listRuns(ctx context.Context, c *edge.Caller, in *listRuns) (*api.List[api.Run], error) {
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	return list(ctx, p.Store.View(c.Tenant), in.Page, "runs", func(v store.View, ctx context.Context, at id.RunID, limit int) ([]api.Run, error) {
		return v.Runs(ctx, f, at, limit)
	}, func(r api.Run) id.RunID { return r.ID })
}

func (p *Platform) getRun(ctx context.Context, c *edge.Caller, in *readRun) (*api.RunAnswer, error) {
	after := int32(-1)
	if _, err := (api.Page{Cursor: in.Cursor}).From(api.StepsCursor, &after); err != nil {
		return nil, err
	}
	bound := store.Bound{Bytes: api.MaxListBytes}
	run, steps, err := p.Store.View(c.Tenant).Bounded(&bound).RunAndSteps(ctx, in.ID, int(after), in.View == summary)
	if err != nil {
		return nil, err
	}
	out := &api.RunAnswer{Run: run, Steps: steps}
	if bound.Cut {
		out.CutSteps()
	}
	return out, nil
}

func (p *Platform) getStep(ctx context.Context, c *edge.Caller, in *oneStep) (*api.StepAnswer, error) {
	step, err := p.Store.View(c.Tenant).Step(ctx, in.ID, in.Idx)
	if err != nil {
		return nil, err
	}
	return &api.StepAnswer{Step: *step}, nil
}

func (p *Platform) listArtifacts(ctx context.Context, c *edge.Caller, in *listArtifacts) (*api.Whole[api.Artifact], error) {
	v := p.Store.View(c.Tenant)
	if err := v.HasRun(ctx, in.ID); err != nil {
		return nil, err
	}
	return whole(ctx, v, in.Page(), "artifacts", id.ArtifactID{}, 0, func(v store.View, ctx context.Context, at id.ArtifactID, limit int) ([]api.Artifact, error) {
		return v.Artifacts(ctx, in.ID, at, limit)
	}, func(a api.Artifact) id.ArtifactID { return a.ID })
}

func (p *Platform) downloadArtifact(ctx context.Context, c *edge.Caller, in *oneArtifact) (*edge.Download, error) {
	a, err := p.Store.View(c.Tenant).Artifact(ctx, in.ID, in.Artifact)
	if err != nil {
		return nil, err
	}
	body, size, err := p.stored(ctx, store.ArtifactFile(c.Tenant, a.ID), "content of the file")
	if err != nil {
		return nil, err
	}
	return &edge.Download{Name: a.Name, MediaType: a.MediaType, Size: size, Body: body}, nil
}

func (p *Platform) cancelRun(ctx context.Context, c *edge.Caller, in *oneRun) (*api.RunStatus, error) {
	return p.Cancel(ctx, c, in.ID)
}

// Cancel cancels a run of the caller's tenant on the caller's behalf, and returns the run's
// status afterwards.
func (p *Platform) Cancel(ctx context.Context, c *edge.Caller, run id.RunID) (*api.RunStatus, error) {
	order := msg.CancelRun{By: sender(c)}
	var err error
	// Only a cancel that changes something is committed and kept; its response is this one.
	if order.Idempotency, err = p.keep(c, &api.RunStatus{RunID: run, Status: lifecycle.RunCancelled}); err != nil {
		return nil, err
	}
	s, err := ask[msg.Status](ctx, p, c, msg.KindRun, run.UUID, order)
	if err != nil {
		return nil, err
	}
	return &api.RunStatus{RunID: run, Status: s.Status}, nil
}

func (p *Platform) watchRun(ctx context.Context, c *edge.Caller, in *watchRun) (edge.Subscriber, error) {
	since := -1.0
	if in.Since != nil {
		since = *in.Since
	}
	return p.Streams.Open(ctx, c.Tenant, in.ID, event.ReadCursor(in.LastEventID, since, in.Replay == "full"))
}
