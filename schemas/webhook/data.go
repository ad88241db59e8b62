package webhook

import (
	"encoding/json"
	"time"
)

// RunEnded is the data of run.completed and run.failed (open-parts.md, Webhooks).
type RunEnded struct {
	RunID      string  `json:"run_id"`
	AgentID    *string `json:"agent_id"`    // null for a run of a workflow
	WorkflowID *string `json:"workflow_id"` // null for a run of an agent
	ThreadID   *string `json:"thread_id"`   // null for a run without a thread
	Status     string  `json:"status"`      // succeeded, failed or cancelled
	// Output is complete, whatever its length; null if the run has none.
	Output json.RawMessage `json:"output"`
	// Code and Message say why a run failed; absent otherwise.
	Code       string    `json:"code,omitempty"`
	Message    string    `json:"message,omitempty"`
	TokensIn   int64     `json:"tokens_in"`
	TokensOut  int64     `json:"tokens_out"`
	CostUSD    float64   `json:"cost_usd"`
	FinishedAt time.Time `json:"finished_at"`
}

// Approval is the data of approval.requested, and of approval.escalated, there with the new
// role.
type Approval struct {
	ApprovalID   string    `json:"approval_id"`
	RunID        string    `json:"run_id"`
	Tool         string    `json:"tool"` // its qualified name
	Risk         string    `json:"risk"`
	AssigneeRole string    `json:"assignee_role"`
	ExpiresAt    time.Time `json:"expires_at"`
	URL          string    `json:"url"` // the console's page where a person decides
}

// Decided is the data of approval.decided, which follows every terminal status
// (open-parts.md, Webhook data).
type Decided struct {
	Approval
	Status string `json:"status"`
	// DecidedBy is the principal whose decision ended it, or system if it expired. For a
	// cancelled one it is the principal that cancelled its run, or system if the run ended
	// otherwise.
	DecidedBy string    `json:"decided_by"`
	DecidedAt time.Time `json:"decided_at"`
}

// SourceEnded is the data of kb.source.synced and kb.source.failed.
type SourceEnded struct {
	KnowledgeBaseID string  `json:"knowledge_base_id"`
	SourceID        string  `json:"source_id"`
	Status          string  `json:"status"`    // ok or failed
	Documents       int     `json:"documents"` // of the source, after the sync
	Error           *string `json:"error"`     // in plain words
}

// SkillRunEnded is the data of browser_skill.run.finished (open-parts.md, Webhook data).
type SkillRunEnded struct {
	SkillID    string  `json:"browser_skill_id"`
	RunID      string  `json:"run_id"`       // of the browser skill
	AgentRunID *string `json:"agent_run_id"` // null for a person's dry run
	Mode       string  `json:"mode"`
	Status     string  `json:"status"`
}
