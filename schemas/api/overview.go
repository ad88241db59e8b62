package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Overview is what happens now and what needs attention (console.md, GET /v1/overview).
type Overview struct {
	At         time.Time           `json:"at" doc:"When it was read, UTC."`
	Runs       RunCounts           `json:"runs"`
	Approvals  ApprovalCounts      `json:"approvals"`
	Deliveries *OverviewDeliveries `json:"deliveries" doc:"null: for admins only."`
	Attention  []Attention         `json:"attention" doc:"What needs attention, as far as the caller may see it; at most 20 of a kind."`
}

// RunCounts counts open runs, and those that ended in the last 24 hours.
type RunCounts struct {
	Queued          int64 `json:"queued" doc:"Now."`
	Running         int64 `json:"running" doc:"Now."`
	WaitingApproval int64 `json:"waiting_approval" doc:"Now."`
	Succeeded24h    int64 `json:"succeeded_24h" doc:"In the last 24 hours."`
	Failed24h       int64 `json:"failed_24h" doc:"In the last 24 hours."`
	Cancelled24h    int64 `json:"cancelled_24h" doc:"In the last 24 hours."`
}

// ApprovalCounts counts pending approvals.
type ApprovalCounts struct {
	Pending       int64      `json:"pending" doc:"Of the tenant."`
	Mine          int64      `json:"mine" doc:"Those that the caller may decide and has not voted on."`
	ByRisk        RiskCounts `json:"by_risk"`
	NextExpiresAt *time.Time `json:"next_expires_at" doc:"When the first of them expires; null: there is none."`
}

// RiskCounts counts by risk.
type RiskCounts struct {
	Low      int64 `json:"low" doc:"Pending ones of this risk."`
	Medium   int64 `json:"medium" doc:"Pending ones of this risk."`
	High     int64 `json:"high" doc:"Pending ones of this risk."`
	Critical int64 `json:"critical" doc:"Pending ones of this risk."`
}

// OverviewDeliveries counts webhook deliveries.
type OverviewDeliveries struct {
	Pending   int64 `json:"pending" doc:"Now."`
	Failed24h int64 `json:"failed_24h" doc:"Given up in the last 24 hours."`
}

// Attention is one thing that needs attention.
type Attention struct {
	Kind     AttentionKind `json:"kind"`
	ID       *id.UUID      `json:"id" doc:"Of the agent, endpoint, server, source or trigger; null for approvals."`
	ParentID *id.UUID      `json:"parent_id" doc:"Of the knowledge base of a source; null for other things."`
	Title    string        `json:"title" doc:"Its name or URL."`
	Count    int64         `json:"count" doc:"How many approvals, failed runs, or failed deliveries."`
	Since    time.Time     `json:"since" doc:"Of the first of them."`
}

// AttentionKind is why a thing needs attention.
type AttentionKind string

// Values of AttentionKind.
const (
	AttentionApprovals         AttentionKind = "approvals"
	AttentionFailingAgent      AttentionKind = "failing_agent"
	AttentionFailingEndpoint   AttentionKind = "failing_endpoint"
	AttentionUnreachableServer AttentionKind = "unreachable_server"
	AttentionFailedSource      AttentionKind = "failed_source"
	AttentionFailedTrigger     AttentionKind = "failed_trigger"
)

// AttentionKinds lists every value.
var AttentionKinds = []AttentionKind{AttentionApprovals, AttentionFailingAgent, AttentionFailingEndpoint, AttentionUnreachableServer, AttentionFailedSource, AttentionFailedTrigger}

// MaxStats is the greatest number of periods of one answer.
const MaxStats = 400

// Stat is the figures of one period (console.md, GET /v1/stats).
type Stat struct {
	At           time.Time      `json:"at" doc:"When the period begins, UTC."`
	Runs         StatRuns       `json:"runs"`
	DurationMS   *Percentiles   `json:"duration_ms" doc:"Of the runs that ended, from their start; null: there are none."`
	FirstTokenMS *Percentiles   `json:"first_token_ms" doc:"Of the runs that ended, from their acceptance to the first text of a model; null: there are none."`
	DecisionS    *Percentiles   `json:"decision_s" doc:"Of the approvals that people decided, from their request; null: there are none."`
	Approvals    StatApprovals  `json:"approvals"`
	Deliveries   StatDeliveries `json:"deliveries"`
	TokensIn     int64          `json:"tokens_in" doc:"Of the agents' runs that ended."`
	TokensOut    int64          `json:"tokens_out" doc:"Of the agents' runs that ended."`
	CostUSD      float64        `json:"cost_usd" doc:"US dollars, of the agents' runs that ended."`
}

// StatRuns counts runs that ended.
type StatRuns struct {
	Succeeded int64 `json:"succeeded" doc:"Runs."`
	Failed    int64 `json:"failed" doc:"Runs."`
	Cancelled int64 `json:"cancelled" doc:"Runs."`
}

// Percentiles of durations, within 5 %.
type Percentiles struct {
	P50 float64 `json:"p50" doc:"Half of them took at most this long."`
	P95 float64 `json:"p95" doc:"95 % of them took at most this long."`
}

// StatApprovals counts approvals.
type StatApprovals struct {
	Requested int64 `json:"requested" doc:"Opened."`
	Decided   int64 `json:"decided" doc:"Decided by people."`
	Expired   int64 `json:"expired" doc:"Expired."`
}

// StatDeliveries counts webhook deliveries that ended.
type StatDeliveries struct {
	Succeeded int64 `json:"succeeded" doc:"Delivered."`
	Failed    int64 `json:"failed" doc:"Given up."`
}

// Change is what a frame resource.changed names (console.md, GET /v1/feed).
type Change struct {
	Kind     string   `json:"kind" doc:"As in the audit log, or delivery."`
	ID       id.UUID  `json:"id" doc:"Its id."`
	ParentID *id.UUID `json:"parent_id" doc:"The resource that it belongs to; null: none, or it is not known."`
}

// RunChange is the data of a frame run.changed.
type RunChange struct {
	ID          id.RunID            `json:"id" doc:"The run."`
	Status      lifecycle.RunStatus `json:"status"`
	AgentID     *id.AgentID         `json:"agent_id" doc:"null: a run of a workflow."`
	WorkflowID  *id.WorkflowID      `json:"workflow_id" doc:"null: a run of an agent."`
	ThreadID    *id.ThreadID        `json:"thread_id" doc:"null: a run without a thread."`
	ParentRunID *id.RunID           `json:"parent_run_id" doc:"The workflow's run that started it; null: none."`
}

// ApprovalChange is the data of a frame approval.changed.
type ApprovalChange struct {
	ID             id.ApprovalID            `json:"id" doc:"The approval."`
	RunID          id.RunID                 `json:"run_id" doc:"The run that waits for it."`
	Status         lifecycle.ApprovalStatus `json:"status"`
	Risk           lifecycle.Risk           `json:"risk"`
	AssigneeRole   lifecycle.Role           `json:"assignee_role"`
	ApprovalsSoFar int                      `json:"approvals_so_far" doc:"Distinct approvers so far."`
	ExpiresAt      time.Time                `json:"expires_at" doc:"UTC."`
}
