package store

import (
	"context"
	"slices"
	"strings"
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

// ApprovalFilter narrows a list of approvals; zero fields match all.
type ApprovalFilter struct {
	Statuses []lifecycle.ApprovalStatus
	Run      *id.RunID
	Agent    *id.AgentID
	Risk     *lifecycle.Risk
	Tool     *string
	// Undecided leaves only pending approvals on which this principal has not decided. All API
	// keys are one principal.
	Undecided string
	Sort      ApprovalSort
}

// ApprovalSort is the order of a list of approvals.
type ApprovalSort string

// Orders of approvals.
const (
	SortCreated ApprovalSort = "created" // newest first
	SortRisk    ApprovalSort = "risk"    // highest first, then soonest to expire
	SortExpires ApprovalSort = "expires" // soonest first
)

// ApprovalAt is a position in a list of approvals. Risk and Expires count only in the orders of
// their names.
type ApprovalAt struct {
	Risk    int32         `json:"r,omitzero"`
	Expires time.Time     `json:"e,omitzero"`
	ID      id.ApprovalID `json:"id"`
}

// List returns the kind of the cursors of a list.
func (s ApprovalSort) List() string {
	if s == "" || s == SortCreated {
		return "approvals"
	}
	return "approvals by " + string(s)
}

// riskOrder is the SQL function risk_order.
func riskOrder(r lifecycle.Risk) int32 {
	return int32(len(lifecycle.Risks) - 1 - slices.Index(lifecycle.Risks, r))
}

// At returns the position of an approval in a list of that order.
func (s ApprovalSort) At(a *api.Approval) ApprovalAt {
	switch s {
	case SortRisk:
		return ApprovalAt{riskOrder(a.Risk), a.ExpiresAt, a.ID}
	case SortExpires:
		return ApprovalAt{Expires: a.ExpiresAt, ID: a.ID}
	}
	return ApprovalAt{ID: a.ID}
}

// query returns the query of a list, and the number of its arguments.
func (s ApprovalSort) query() (name string, args int) {
	switch s {
	case SortRisk:
		return "approvals_by_risk", 13
	case SortExpires:
		return "approvals_by_expiry", 12
	}
	return "approvals", 11
}

// statuses returns the statuses that the filter admits.
func (f *ApprovalFilter) statuses() []string {
	out := []string{}
	for _, s := range lifecycle.ApprovalStatuses {
		if (len(f.Statuses) == 0 || slices.Contains(f.Statuses, s)) && (f.Undecided == "" || s == lifecycle.ApprovalPending) {
			out = append(out, string(s))
		}
	}
	return out
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
	Step              *approvedStep
}

// approvedStep is what has become of an approved call.
type approvedStep struct {
	Status   lifecycle.StepStatus `json:"status"`
	Ended    *time.Time           `json:"ended"`
	Answered bool                 `json:"answered"` // it has an output
	Lost     bool                 `json:"lost"`     // it began, and its outcome is unknown
	Others   int                  `json:"others"`   // pending approvals of the run
	Resumed  *time.Time           `json:"resumed"`  // when the last approval of the run was decided
}

// effect returns what has become of the call. A call that failed without an output never began:
// its run ended before.
func (r *approvalRow) effect() api.Effect {
	s := r.Step
	switch {
	case r.Status == lifecycle.ApprovalPending:
		return api.Effect{State: api.EffectWaiting, WaitingFor: r.RequiredApprovals - r.ApprovalsSoFar, At: &r.CreatedAt}
	case s == nil:
		return api.Effect{State: api.EffectNone, At: r.DecidedAt}
	case s.Status == lifecycle.StepWaiting:
		return api.Effect{State: api.EffectWaiting, WaitingFor: s.Others, At: r.DecidedAt}
	case s.Status == lifecycle.StepRunning:
		return api.Effect{State: api.EffectRunning, At: inUTCTime(s.Resumed)}
	case s.Status == lifecycle.StepSucceeded:
		return api.Effect{State: api.EffectSucceeded, At: inUTCTime(s.Ended)}
	case s.Lost || s.Status == lifecycle.StepAbandoned:
		return api.Effect{State: api.EffectUnknown, At: inUTCTime(s.Ended)}
	case !s.Answered:
		return api.Effect{State: api.EffectNone, At: inUTCTime(s.Ended)}
	}
	return api.Effect{State: api.EffectFailed, At: inUTCTime(s.Ended)}
}

// inUTCTime returns a time that Postgres wrote as JSON in UTC.
func inUTCTime(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	utc := t.UTC()
	return &utc
}

func (r *approvalRow) approval() api.Approval {
	return api.Approval{ID: r.ID, RunID: r.RunID, AgentID: r.AgentID, StepIdx: r.StepIdx, Status: r.Status, Risk: r.Risk, AssigneeRole: r.AssigneeRole,
		RequiredApprovals: r.RequiredApprovals, ApprovalsSoFar: r.ApprovalsSoFar,
		RequestedAction:  api.RequestedAction{Tool: r.Tool, Args: r.Args, Schema: r.Schema},
		ReasoningSummary: r.ReasoningSummary, Policy: r.Policy, Decisions: r.Decisions, EscalatedAt: r.EscalatedAt, ExpiresAt: r.ExpiresAt,
		CreatedAt: r.CreatedAt, DecidedAt: r.DecidedAt, SkillRunID: r.BrowserSkillRunID, Effect: r.effect()}
}

// Approvals returns the approvals that the approver may decide, in the order of the filter.
func (v View) Approvals(ctx context.Context, by Approver, f ApprovalFilter, at ApprovalAt, limit int) ([]api.Approval, error) {
	if len(f.statuses()) == 0 {
		return []api.Approval{}, nil
	}
	name, args := f.args(v.tenant, by, at, limit)
	rows, err := listed[approvalRow](ctx, v.planned(), name, args...)
	out := make([]api.Approval, len(rows))
	for i := range rows {
		out[i] = rows[i].approval()
	}
	return out, err
}

// args returns the query of the list and its arguments.
func (f *ApprovalFilter) args(t id.TenantID, by Approver, at ApprovalAt, limit int) (string, []any) {
	first := at.ID.IsZero()
	from, n := before(at.ID.UUID, limit)
	name, args := f.Sort.query()
	switch {
	case first && name == "approvals_by_risk":
		at.Risk = -1
	case !first && name != "approvals":
		from = at.ID.UUID
	}
	var undecided *string
	if f.Undecided != "" {
		voter := f.Undecided
		if strings.HasPrefix(voter, "apikey:") {
			voter = "apikey:" // all of them
		}
		undecided = &voter
	}
	all := []any{t, n, f.statuses(), by.roles(), by.Nodes, f.Run, f.Agent, (*string)(f.Risk), f.Tool, undecided, from, at.Expires, at.Risk}
	return armed(name, len(f.statuses())), all[:args]
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
