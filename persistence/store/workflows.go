package store

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

const workflowWord = "workflow"

// Workflows returns workflows, newest first, without archived ones.
func (v View) Workflows(ctx context.Context, at id.WorkflowID, limit int) ([]api.Workflow, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Workflow](ctx, v, "workflows", v.tenant, from, n)
}

// Workflow returns one workflow; an archived one is NOT_FOUND.
func (v View) Workflow(ctx context.Context, w id.WorkflowID) (*api.Workflow, error) {
	return found[api.Workflow](workflowWord)(one[api.Workflow](ctx, v, "workflow", v.tenant, w))
}

// WorkflowVersions returns the versions of a workflow, newest first, after at.
func (v View) WorkflowVersions(ctx context.Context, w id.WorkflowID, at, limit int) ([]api.WorkflowVersion, error) {
	_, n := before(id.UUID{}, limit)
	if at == 0 {
		at = math.MaxInt32
	}
	return listed[api.WorkflowVersion](ctx, v, "workflow_versions", v.tenant, w, at, n)
}

// WorkflowVersion returns one version of a workflow, also of an archived one: its runs
// continue. Only the status of a version ever changes.
func (v View) WorkflowVersion(ctx context.Context, w id.WorkflowID, version int) (*api.WorkflowVersion, error) {
	if version < 1 || version > math.MaxInt32 {
		return nil, problem.NotFound("version")
	}
	return found[api.WorkflowVersion]("version")(one[api.WorkflowVersion](ctx, v, "workflow_version", v.tenant, w, version))
}

// WorkflowStart holds what a new run of a workflow needs.
type WorkflowStart struct {
	Version    int
	Definition json.RawMessage
	NodeID     *id.NodeID // where the chain of managers begins, and which grants apply
}

// StartWorkflow returns what a new run of the published version needs, or of the newest version
// if newest is set. An unknown or archived workflow is NOT_FOUND, one without such a version
// WORKFLOW_NOT_PUBLISHED.
func (v View) StartWorkflow(ctx context.Context, w id.WorkflowID, newest bool) (*WorkflowStart, error) {
	type row struct {
		NodeID     *id.NodeID
		Version    *int
		Definition json.RawMessage
	}
	r, err := found[row](workflowWord)(one[row](ctx, v, "workflow_start", v.tenant, w, newest))
	switch {
	case err != nil:
		return nil, err
	case r.Version == nil && newest:
		return nil, problem.New(problem.CodeWorkflowNotPublished, "The workflow has no version.")
	case r.Version == nil:
		return nil, problem.New(problem.CodeWorkflowNotPublished, "The workflow has no published version.")
	}
	return &WorkflowStart{*r.Version, r.Definition, r.NodeID}, nil
}

// CreateWorkflow creates a workflow. A requested slug that is taken is SLUG_TAKEN; without
// one the slug is made from the name.
func (t *Tx) CreateWorkflow(ctx context.Context, in *api.WorkflowCreate) (*api.Workflow, error) {
	refer := &references{t: t}
	refer.node(ctx, in.NodeID)
	if err := refer.problem(); err != nil {
		return nil, err
	}
	row, err := withSlug(ctx, t, "workflow_slugs", in.Slug, slugOf(in.Name, "workflow"), func(slug string) (*api.Workflow, error) {
		return one[api.Workflow](ctx, t.View, "workflow_insert", t.tenant, id.WorkflowID{UUID: id.NewAnywhere()}, slug, in.Name, in.NodeID)
	})
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "workflow.create", "workflow", row.ID.UUID, nil)
}

// UpdateWorkflow changes the fields set in the patch.
func (t *Tx) UpdateWorkflow(ctx context.Context, w id.WorkflowID, p *api.WorkflowPatch) (*api.Workflow, error) {
	row, err := t.lockWorkflow(ctx, w)
	if err != nil {
		return nil, err
	}
	set(&row.Slug, p.Slug)
	set(&row.Name, p.Name)
	refer := &references{t: t}
	refer.node(ctx, p.NodeID.OrPtr(nil))
	if err := refer.problem(); err != nil {
		return nil, err
	}
	row, err = one[api.Workflow](ctx, t.View, "workflow_update", t.tenant, w, row.Slug, row.Name, p.NodeID.OrPtr(row.NodeID))
	if pg.IsUnique(err, "workflows_slug_key") {
		return nil, slugTaken()
	}
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "workflow.update", "workflow", w.UUID, nil)
}

func (t *Tx) lockWorkflow(ctx context.Context, w id.WorkflowID) (*api.Workflow, error) {
	return found[api.Workflow](workflowWord)(one[api.Workflow](ctx, t.View, "workflow_lock", t.tenant, w))
}

// ArchiveWorkflow archives a workflow and pauses its triggers. Its runs continue and stay
// readable. The rows are locked in the order of ArchiveAgent.
func (t *Tx) ArchiveWorkflow(ctx context.Context, w id.WorkflowID) error {
	if err := t.execFound(ctx, problem.NotFound(workflowWord), "workflow_archive", t.tenant, w); err != nil {
		return err
	}
	if err := t.pauseTriggers(ctx, w.UUID); err != nil {
		return err
	}
	return t.Audit(ctx, "workflow.delete", "workflow", w.UUID, nil)
}

// WorkflowHooks returns the hooks of a workflow, paused or not.
func (v View) WorkflowHooks(ctx context.Context, w id.WorkflowID) ([]id.TriggerID, error) {
	return scalars[id.TriggerID](ctx, v, "workflow_hooks", v.tenant, w)
}

// CreateWorkflowVersion adds a draft. doc is the definition as it was sent, d its parsed form.
// The caller must have validated it, except that its agents exist: an unknown or archived one
// is VALIDATION.
func (t *Tx) CreateWorkflowVersion(ctx context.Context, w id.WorkflowID, doc json.RawMessage, d *flow.Definition) (*api.Workflow, *api.WorkflowVersion, error) {
	row, err := found[api.Workflow](workflowWord)(one[api.Workflow](ctx, t.View, "workflow_latest", t.tenant, w))
	if err != nil {
		return nil, nil, err
	}
	if err := t.holdAgents(ctx, d); err != nil {
		return nil, nil, err
	}
	version, err := one[api.WorkflowVersion](ctx, t.View, "workflow_version_insert", t.tenant, w, row.LatestVersion, jsonArg(doc))
	if err != nil {
		return nil, nil, err
	}
	return row, version, t.Audit(ctx, "workflow.version.create", "workflow", w.UUID, map[string]int{"version": version.Version})
}

// holdAgents locks the agents of a definition against archiving until the change is
// committed, and complains about each node whose agent does not exist.
func (t *Tx) holdAgents(ctx context.Context, d *flow.Definition) error {
	var named []id.AgentID
	for _, n := range d.Nodes {
		if n.Type == flow.Agent {
			named = append(named, n.AgentID)
		}
	}
	if len(named) == 0 {
		return nil
	}
	held, err := scalars[id.AgentID](ctx, t.View, "workflow_agents", t.tenant, named)
	if err != nil {
		return err
	}
	var bad []problem.Field
	for i, n := range d.Nodes {
		if n.Type == flow.Agent && !slices.Contains(held, n.AgentID) {
			bad = append(bad, problem.Field{Path: fmt.Sprintf("definition.nodes[%d].agent_id", i), Message: "there is no such agent"})
		}
	}
	if len(bad) > 0 {
		return problem.Validation(bad...)
	}
	return nil
}

// PublishWorkflow makes a version the one that new runs use; publishing an older one is a
// rollback. Publishing the published version changes nothing.
func (t *Tx) PublishWorkflow(ctx context.Context, w id.WorkflowID, version int) (*api.Workflow, *api.WorkflowVersion, error) {
	row, err := t.lockWorkflow(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	v, err := t.WorkflowVersion(ctx, w, version)
	if err != nil {
		return nil, nil, err
	}
	if row.PublishedVersion != nil && *row.PublishedVersion == version {
		return row, v, nil
	}
	// Supersede the published version first: there must never be two.
	if _, err := t.exec(ctx, "workflow_version_supersede", t.tenant, w); err != nil {
		return nil, nil, err
	}
	if v, err = one[api.WorkflowVersion](ctx, t.View, "workflow_version_publish", t.tenant, w, version); err != nil {
		return nil, nil, err
	}
	if row, err = one[api.Workflow](ctx, t.View, "workflow_publish", t.tenant, w, version); err != nil {
		return nil, nil, err
	}
	return row, v, t.Audit(ctx, "workflow.publish", "workflow", w.UUID, map[string]int{"version": version})
}
