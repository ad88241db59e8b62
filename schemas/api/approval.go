package api

import (
	"strings"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Approval is a tool call that waits for a decision (open-parts.md, Questions settled,
// Approval).
type Approval struct {
	ID                id.ApprovalID            `json:"id" doc:"The id, a version 7 UUID."`
	RunID             id.RunID                 `json:"run_id" doc:"The run that waits."`
	AgentID           *id.AgentID              `json:"agent_id" doc:"The agent that asks; null: a node of a workflow."`
	StepIdx           int                      `json:"step_idx" doc:"The step of the run."`
	Status            lifecycle.ApprovalStatus `json:"status"`
	Risk              lifecycle.Risk           `json:"risk"`
	AssigneeRole      lifecycle.Role           `json:"assignee_role" doc:"Who decides: this role or a higher one. manager: of the agent's org chain."`
	RequiredApprovals int                      `json:"required_approvals" doc:"Of distinct approvers. All API keys of a tenant are one."`
	ApprovalsSoFar    int                      `json:"approvals_so_far" doc:"How many have approved or edited."`
	RequestedAction   RequestedAction          `json:"requested_action"`
	ReasoningSummary  string                   `json:"reasoning_summary" doc:"Why, in the model's words."`
	Policy            MatchedPolicy            `json:"policy"`
	Decisions         []ApproverDecision       `json:"decisions" doc:"Who has decided what, in order."`
	EscalatedAt       *time.Time               `json:"escalated_at" doc:"When assignee_role was raised; null: not."`
	ExpiresAt         time.Time                `json:"expires_at" doc:"UTC."`
	CreatedAt         time.Time                `json:"created_at" doc:"UTC."`
	DecidedAt         *time.Time               `json:"decided_at" doc:"null: pending."`
	SkillRunID        *id.SkillRunID           `json:"browser_skill_run_id" doc:"The run of a browser skill whose preview is decided on; null: another tool."`
	URL               string                   `json:"url" doc:"The page of the console where a person decides."`
	Effect            Effect                   `json:"effect" doc:"What has become of the call; the decision alone does not tell."`
}

// ApprovalURL returns the address of the console's page where people decide on an approval.
func ApprovalURL(public string, a id.ApprovalID) string {
	return strings.TrimSuffix(public, "/") + "/console/approvals/" + a.String()
}

// Effect is what has become of the call of an approval (console.md, API that this adds).
type Effect struct {
	State      EffectState `json:"state" doc:"none: nothing runs because of this approval. waiting: for approvers, or for other approvals of the same turn of the model. unknown: the call began, and nothing tells how it ended."`
	WaitingFor int         `json:"waiting_for" doc:"With state waiting: how many approvals are missing, of this one while it is pending, then of the turn's other ones. 0 with waiting: the run goes on at once."`
	At         *time.Time  `json:"at" doc:"Since when. UTC."`
}

// EffectState is the state of an Effect.
type EffectState string

// Values of EffectState.
const (
	EffectNone      EffectState = "none"
	EffectWaiting   EffectState = "waiting"
	EffectRunning   EffectState = "running"
	EffectSucceeded EffectState = "succeeded"
	EffectFailed    EffectState = "failed"
	EffectUnknown   EffectState = "unknown"
)

// EffectStates lists the values.
var EffectStates = []EffectState{EffectNone, EffectWaiting, EffectRunning, EffectSucceeded, EffectFailed, EffectUnknown}

// RequestedAction is the call that runs if it is approved.
type RequestedAction struct {
	Tool   string `json:"tool" doc:"The qualified name."`
	Args   Value  `json:"args" doc:"Redacted: what is secret is \"[redacted]\"."`
	Schema Value  `json:"schema" doc:"The JSON Schema of the arguments; null: the tool has none."`
}

// MatchedPolicy is the rule that requires the approval.
type MatchedPolicy struct {
	ID   *id.PolicyID `json:"id" doc:"Of an approval policy; null: something else asked."`
	Name string       `json:"name" doc:"For people."`
	Kind string       `json:"kind" enum:"policy,manifest,skill,option" doc:"An approval policy, a rule of the manifest, a browser skill, or the message's autonomy."`
}

// ApproverDecision is an entry of the ledger.
type ApproverDecision struct {
	Principal  string           `json:"principal" doc:"apikey:<id> or user:<id>."`
	Action     lifecycle.Action `json:"action" enum:"approve,edit,reject,respond" doc:"What was decided."`
	Feedback   *string          `json:"feedback" doc:"null: none was given."`
	EditedArgs Value            `json:"edited_args" doc:"Redacted; null unless action is edit."`
	At         time.Time        `json:"at" doc:"UTC."`
}

// Decision is the body of POST /v1/approvals/{id}/decision.
type Decision struct {
	Action     lifecycle.Action `json:"action" enum:"approve,edit,reject,respond" doc:"approve and edit count towards required_approvals, reject and respond end the approval at once."`
	EditedArgs Object           `json:"edited_args,omitempty" doc:"Required for edit and for nothing else: all the arguments. \"[redacted]\" keeps the value at its path."`
	Feedback   string           `json:"feedback,omitempty" maxLength:"4000" doc:"The model hears that of reject; that of respond becomes a message of the user."`
}

// Check validates what the schema of the body cannot express.
func (d *Decision) Check() error {
	switch edits := d.Action == lifecycle.ActionEdit; {
	case edits && d.EditedArgs == nil:
		return problem.Invalid("edited_args", "is required for action edit")
	case !edits && d.EditedArgs != nil:
		return problem.Invalid("edited_args", "is for action edit only")
	}
	return nil
}

// Decided is the response to it.
type Decided struct {
	Status         lifecycle.ApprovalStatus `json:"status"`
	ApprovalsSoFar int                      `json:"approvals_so_far" doc:"How many have approved or edited."`
}

// BulkDecision is the body of POST /v1/approvals/bulk-decision.
type BulkDecision struct {
	IDs      []id.ApprovalID  `json:"ids" minItems:"1" maxItems:"200" doc:"One that is named twice is decided once."`
	Action   lifecycle.Action `json:"action" enum:"approve,reject,respond" doc:"As in a single decision; there is no edit."`
	Feedback string           `json:"feedback,omitempty" maxLength:"4000" doc:"As in a single decision, for each."`
}

// BulkDecided is the response to it.
type BulkDecided struct {
	Results []BulkResult `json:"results" doc:"In the order of ids."`
}

// BulkResult is the result for one of them.
type BulkResult struct {
	ID       id.ApprovalID            `json:"id" doc:"As in ids."`
	OK       bool                     `json:"ok" doc:"The decision counts."`
	Terminal lifecycle.ApprovalStatus `json:"terminal,omitempty" doc:"The status, where it is decided for good now."`
	Error    *BulkError               `json:"error,omitempty"`
}

// BulkError is why a decision does not count.
type BulkError struct {
	Code   problem.Code `json:"code" doc:"As in a problem."`
	Detail string       `json:"detail" doc:"For people."`
}
