package platform

import (
	"context"
	"encoding/json"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type createWorkflow struct{ Body api.WorkflowCreate }

type oneWorkflow struct {
	ID id.WorkflowID `path:"id"`
}

type readWorkflow struct {
	ID id.WorkflowID `path:"id"`
	api.PageOrAll
}

type patchWorkflow struct {
	ID   id.WorkflowID `path:"id"`
	Body api.WorkflowPatch
}

type createWorkflowVersion struct {
	ID   id.WorkflowID `path:"id"`
	Body api.WorkflowVersionCreate
}

type oneWorkflowVersion struct {
	ID      id.WorkflowID `path:"id"`
	Version int           `path:"version"`
}

func (p *Platform) workflowRoutes(t *edge.Table) {
	describeWorkflows(t)
	const tag = "Workflows"
	const warned = "warnings list what a run could fail on as things are now: an agent that could meet an approval, is archived or has no published version; a tool that no grant allows; what the definition likely does not mean. They are not errors."
	definition := sampleDefinition
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/workflows", ID: "listWorkflows", Answer: listed(sampleWorkflow),
		Summary: "List workflows", Tag: tag, Role: lifecycle.RoleMember}, p.listWorkflows)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/workflows", ID: "createWorkflow", Answer: api.WorkflowAnswer{Workflow: &sampleWorkflow, Version: &sampleWorkflowVersion},
		Summary:     "Create a workflow",
		Description: "With a definition it also creates version 1, as a draft. An omitted slug is made from the name.", Tag: tag, Role: lifecycle.RoleAdmin,
		Status: 201, Idempotent: true, Codes: []problem.Code{problem.CodeSlugTaken},
		Example: map[string]any{"name": "Refunds", "definition": definition}}, p.createWorkflow)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/workflows/{id}", ID: "getWorkflow", Answer: sampleWorkflowAndVersions,
		Summary: "Read a workflow and its versions", Description: "Without limit and cursor it has all versions, as far as they fit into 4 MiB of JSON.", Tag: tag, Role: lifecycle.RoleMember}, p.getWorkflow)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/workflows/{id}", ID: "updateWorkflow", Answer: sampleWorkflowAndVersions,
		Summary: "Change a workflow", Description: "The response is that of the read.", Tag: tag, Role: lifecycle.RoleAdmin,
		Codes: []problem.Code{problem.CodeSlugTaken}, Example: map[string]any{"name": "Refunds of orders"}}, p.updateWorkflow)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/workflows/{id}", ID: "archiveWorkflow", Summary: "Archive a workflow",
		Description: "It can no longer be listed, read or started, and its triggers are paused; its runs continue and stay readable.", Tag: tag, Role: lifecycle.RoleAdmin}, p.archiveWorkflow)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/workflows/{id}/versions", ID: "createWorkflowVersion", Answer: api.WorkflowVersionAnswer{Version: &sampleWorkflowVersion, Warnings: []string{}},
		Summary:     "Add a version",
		Description: "It is a draft until it is published. " + warned, Tag: tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Example: map[string]any{"definition": definition}}, p.createWorkflowVersion)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/workflows/{id}/versions/{version}", ID: "getWorkflowVersion", Answer: sampleWorkflowVersion,
		Summary: "Read a version", Tag: tag, Role: lifecycle.RoleMember}, p.getWorkflowVersion)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/workflows/{id}/versions/{version}/publish", ID: "publishWorkflowVersion", Answer: sampleWorkflowPublished,
		Summary:     "Publish a version",
		Description: "New runs use it; running ones keep theirs. Publish an older version to roll back. " + warned, Tag: tag, Role: lifecycle.RoleAdmin, Idempotent: true}, p.publishWorkflow)
}

func (p *Platform) listWorkflows(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Workflow], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "workflows", store.View.Workflows, func(w api.Workflow) id.WorkflowID { return w.ID })
}

func (p *Platform) createWorkflow(ctx context.Context, c *edge.Caller, in *createWorkflow) (*api.WorkflowAnswer, error) {
	b := &in.Body
	var plan *flow.Plan
	if len(b.Definition) > 0 {
		if err := p.judge(ctx, c, func(ctx context.Context) (err error) {
			plan, _, err = flow.Parse(ctx, "definition", json.RawMessage(b.Definition))
			return err
		}); err != nil {
			return nil, err
		}
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.WorkflowAnswer, error) {
		w, err := tx.CreateWorkflow(ctx, b)
		if err != nil || plan == nil {
			return &api.WorkflowAnswer{Workflow: w}, err
		}
		w, v, err := tx.CreateWorkflowVersion(ctx, w.ID, json.RawMessage(b.Definition), plan.Definition())
		return &api.WorkflowAnswer{Workflow: w, Version: v}, err
	})
}

func (p *Platform) getWorkflow(ctx context.Context, c *edge.Caller, in *readWorkflow) (*api.WorkflowAndVersions, error) {
	v := p.Store.View(c.Tenant)
	w, err := v.Workflow(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return withVersions(ctx, v, w, in.Page())
}

// withVersions returns a workflow with a page of its versions, or with all that fit.
func withVersions(ctx context.Context, v store.View, w *api.Workflow, page api.Page) (*api.WorkflowAndVersions, error) {
	versions, err := whole(ctx, v, page, "workflow-versions", 0, 0, func(v store.View, ctx context.Context, at int32, limit int) ([]api.WorkflowVersion, error) {
		return v.WorkflowVersions(ctx, w.ID, int(at), limit)
	}, func(v api.WorkflowVersion) int32 { return int32(v.Version) })
	if err != nil {
		return nil, err
	}
	return api.WithVersions(w, versions), nil
}

func (p *Platform) updateWorkflow(ctx context.Context, c *edge.Caller, in *patchWorkflow) (*api.WorkflowAndVersions, error) {
	w, err := change(ctx, p, c, with2((*store.Tx).UpdateWorkflow, in.ID, &in.Body))
	if err != nil {
		return nil, err
	}
	return withVersions(ctx, p.Store.View(c.Tenant), w, api.Page{})
}

func (p *Platform) archiveWorkflow(ctx context.Context, c *edge.Caller, in *oneWorkflow) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).ArchiveWorkflow, in.ID))
	hooks, failed := p.Store.View(c.Tenant).WorkflowHooks(ctx, in.ID)
	switch {
	case failed != nil:
		return nil, failed // which hooks may be cached is not known: a repeat will find them
	case len(hooks) == 0:
		return out, err
	}
	return removed(ctx, p, msg.Revoked{What: msg.ChangedTrigger, Tenant: c.Tenant, Triggers: hooks}, out, err)
}

func (p *Platform) createWorkflowVersion(ctx context.Context, c *edge.Caller, in *createWorkflowVersion) (*api.WorkflowVersionAnswer, error) {
	if _, err := p.Store.View(c.Tenant).Workflow(ctx, in.ID); err != nil {
		return nil, err
	}
	doc := json.RawMessage(in.Body.Definition)
	var plan *flow.Plan
	var hints []string
	if err := p.judge(ctx, c, func(ctx context.Context) (err error) {
		plan, hints, err = flow.Parse(ctx, "definition", doc)
		return err
	}); err != nil {
		return nil, err
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.WorkflowVersionAnswer, error) {
		_, v, err := tx.CreateWorkflowVersion(ctx, in.ID, doc, plan.Definition())
		if err != nil {
			return nil, err
		}
		warnings, err := workflowWarnings(ctx, tx, in.ID, plan.Definition())
		return &api.WorkflowVersionAnswer{Version: v, Warnings: append(hints, warnings...)}, err
	})
}

func (p *Platform) getWorkflowVersion(ctx context.Context, c *edge.Caller, in *oneWorkflowVersion) (*api.WorkflowVersion, error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.Workflow(ctx, in.ID); err != nil {
		return nil, err
	}
	return v.WorkflowVersion(ctx, in.ID, in.Version)
}

func (p *Platform) publishWorkflow(ctx context.Context, c *edge.Caller, in *oneWorkflowVersion) (*api.WorkflowPublished, error) {
	// A version never changes: it is read and judged before the transaction. A rule that is
	// newer than the version does not stop its publication.
	version, err := p.getWorkflowVersion(ctx, c, in)
	if err != nil {
		return nil, err
	}
	plan, err := flow.Load(json.RawMessage(version.Definition))
	if err != nil {
		return nil, err
	}
	var report flow.Report
	if err := p.judge(ctx, c, func(ctx context.Context) (err error) {
		report, err = flow.Validate(ctx, "definition", json.RawMessage(version.Definition))
		return err
	}); err != nil {
		return nil, err
	}
	hints := []string{}
	for _, w := range append(report.Faults, report.Warnings...) {
		hints = append(hints, w.Path+": "+w.Message)
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.WorkflowPublished, error) {
		w, v, err := tx.PublishWorkflow(ctx, in.ID, in.Version)
		if err != nil {
			return nil, err
		}
		warnings, err := workflowWarnings(ctx, tx, in.ID, plan.Definition())
		return &api.WorkflowPublished{Workflow: w, Version: v, Warnings: append(hints, warnings...)}, err
	})
}
