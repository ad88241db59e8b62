package store

import (
	"context"
	"slices"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Approver is a caller that reads or decides approvals: a role in the tenant, and the org
// nodes that the person manages, including all nodes below them.
type Approver struct {
	Role  lifecycle.Role
	Nodes []id.NodeID
}

// Decides reports whether the approver may decide an approval with this assignee (service.md,
// Approval policy, approver_role).
func (a Approver) Decides(assignee lifecycle.Role, node *id.NodeID) bool {
	return a.Role.Satisfies(assignee) || assignee == lifecycle.RoleManager && node != nil && slices.Contains(a.Nodes, *node)
}

// roles returns the assignee roles that the approver's role in the tenant satisfies.
func (a Approver) roles() []string {
	out := []string{}
	for _, r := range lifecycle.ApproverRoles {
		if a.Role.Satisfies(r) {
			out = append(out, string(r))
		}
	}
	return out
}

// ApprovalFilter narrows a list of approvals; nil fields match all.
type ApprovalFilter struct {
	Status *lifecycle.ApprovalStatus
	Run    *id.RunID
	Agent  *id.AgentID
	Risk   *lifecycle.Risk
}

// Approval is an approval with the org node at which its chain of managers begins.
type Approval struct {
	api.Approval
	Node *id.NodeID
}

type approvalRow struct {
	ID                id.ApprovalID
	RunID             id.RunID
	AgentID           *id.AgentID
	NodeID            *id.NodeID
	StepIdx           int
	Status            lifecycle.ApprovalStatus
	Risk              lifecycle.Risk
	AssigneeRole      lifecycle.Role
	RequiredApprovals int
	ApprovalsSoFar    int
	Tool              string
	Args              api.Value
	Schema            api.Value
	ReasoningSummary  string
	Policy            api.MatchedPolicy
	Decisions         []api.ApproverDecision
	EscalatedAt       *time.Time
	ExpiresAt         time.Time
	CreatedAt         time.Time
	DecidedAt         *time.Time
	BrowserSkillRunID *id.SkillRunID
}

func (r *approvalRow) approval() api.Approval {
	return api.Approval{ID: r.ID, RunID: r.RunID, AgentID: r.AgentID, StepIdx: r.StepIdx, Status: r.Status, Risk: r.Risk, AssigneeRole: r.AssigneeRole,
		RequiredApprovals: r.RequiredApprovals, ApprovalsSoFar: r.ApprovalsSoFar,
		RequestedAction:  api.RequestedAction{Tool: r.Tool, Args: r.Args, Schema: r.Schema},
		ReasoningSummary: r.ReasoningSummary, Policy: r.Policy, Decisions: r.Decisions, EscalatedAt: r.EscalatedAt, ExpiresAt: r.ExpiresAt,
		CreatedAt: r.CreatedAt, DecidedAt: r.DecidedAt, SkillRunID: r.BrowserSkillRunID}
}

// Approvals returns the approvals that the approver may decide, newest first.
func (v View) Approvals(ctx context.Context, by Approver, f ApprovalFilter, at id.ApprovalID, limit int) ([]api.Approval, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[approvalRow](ctx, v, "approvals", v.tenant, from, n, by.roles(), by.Nodes, (*string)(f.Status), f.Run, f.Agent, (*string)(f.Risk))
	out := make([]api.Approval, len(rows))
	for i := range rows {
		out[i] = rows[i].approval()
	}
	return out, err
}

// Approval returns one approval, whatever its assignee.
func (v View) Approval(ctx context.Context, a id.ApprovalID) (*Approval, error) {
	row, err := found[approvalRow]("approval")(one[approvalRow](ctx, v, "approval", v.tenant, a))
	if err != nil {
		return nil, err
	}
	return &Approval{Approval: row.approval(), Node: row.NodeID}, nil
}

// ApprovalsOf returns those of the approvals whose chain of managers begins at one of the
// nodes.
func (v View) ApprovalsOf(ctx context.Context, nodes []id.NodeID, approvals []id.ApprovalID) ([]id.ApprovalID, error) {
	return scalars[id.ApprovalID](ctx, v, "approvals_of_nodes", v.tenant, approvals, nodes)
}
