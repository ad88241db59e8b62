package store

import (
	"context"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// Policies returns approval policies, newest first.
func (v View) Policies(ctx context.Context, at id.PolicyID, limit int) ([]api.ApprovalPolicy, error) {
	from, n := before(at.UUID, limit)
	return listed[api.ApprovalPolicy](ctx, v, "policies", v.tenant, from, n)
}

// Policy returns one approval policy.
func (v View) Policy(ctx context.Context, p id.PolicyID) (*api.ApprovalPolicy, error) {
	return found[api.ApprovalPolicy](policyWord)(one[api.ApprovalPolicy](ctx, v, "policy", v.tenant, p))
}

const policyWord = "approval policy"

// CreatePolicy creates an approval policy; omitted fields get their defaults.
func (t *Tx) CreatePolicy(ctx context.Context, in *api.ApprovalPolicyCreate) (*api.ApprovalPolicy, error) {
	row := &api.ApprovalPolicy{ID: id.PolicyID{UUID: id.NewAnywhere()}, Name: in.Name, ToolPattern: in.ToolPattern, Source: (*tool.Source)(in.Source),
		AgentID: in.AgentID, Risk: tool.DefaultRisk, RequiredApprovals: tool.DefaultRequired, ApproverRole: tool.DefaultRole,
		SLAMinutes: tool.DefaultSLAMinutes, EscalateToRole: in.EscalateToRole, Enabled: true}
	set(&row.Risk, in.Risk)
	set(&row.RequiredApprovals, in.RequiredApprovals)
	set(&row.ApproverRole, in.ApproverRole)
	set(&row.SLAMinutes, in.SLAMinutes)
	set(&row.Enabled, in.Enabled)
	return t.putPolicy(ctx, "policy_insert", "approval_policy.create", row, in.AgentID)
}

// UpdatePolicy changes the fields set in the patch. Open approvals stay as they are.
func (t *Tx) UpdatePolicy(ctx context.Context, p id.PolicyID, in *api.ApprovalPolicyPatch) (*api.ApprovalPolicy, error) {
	row, err := found[api.ApprovalPolicy](policyWord)(one[api.ApprovalPolicy](ctx, t.View, "policy_lock", t.tenant, p))
	if err != nil {
		return nil, err
	}
	set(&row.Name, in.Name)
	set(&row.ToolPattern, in.ToolPattern)
	set(&row.Risk, in.Risk)
	set(&row.RequiredApprovals, in.RequiredApprovals)
	set(&row.ApproverRole, in.ApproverRole)
	set(&row.SLAMinutes, in.SLAMinutes)
	set(&row.Enabled, in.Enabled)
	row.Source = (*tool.Source)(in.Source.OrPtr((*api.ToolSource)(row.Source)))
	row.AgentID = in.AgentID.OrPtr(row.AgentID)
	row.EscalateToRole = in.EscalateToRole.OrPtr(row.EscalateToRole)
	return t.putPolicy(ctx, "policy_update", "approval_policy.update", row, in.AgentID.OrPtr(nil))
}

// putPolicy writes a policy; named is the agent in the request body.
func (t *Tx) putPolicy(ctx context.Context, query, action string, p *api.ApprovalPolicy, named *id.AgentID) (*api.ApprovalPolicy, error) {
	r := &references{t: t, bad: patternField(p.ToolPattern)}
	r.agent(ctx, named)
	if err := r.problem(); err != nil {
		return nil, err
	}
	row, err := one[api.ApprovalPolicy](ctx, t.View, query, t.tenant, p.ID, p.Name, p.ToolPattern, text(p.Source), p.AgentID, string(p.Risk),
		p.RequiredApprovals, string(p.ApproverRole), p.SLAMinutes, text(p.EscalateToRole), p.Enabled)
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, action, "approval_policy", p.ID.UUID, nil)
}

// text converts a value to the form in which the driver accepts a domain of text.
func text[T ~string](v *T) *string {
	if v == nil {
		return nil
	}
	s := string(*v)
	return &s
}

// DeletePolicy deletes an approval policy. Open approvals stay as they are.
func (t *Tx) DeletePolicy(ctx context.Context, p id.PolicyID) error {
	if err := t.execFound(ctx, problem.NotFound(policyWord), "policy_delete", t.tenant, p); err != nil {
		return err
	}
	return t.Audit(ctx, "approval_policy.delete", "approval_policy", p.UUID, nil)
}
