package api

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
)

// Thread is a conversation with an agent.
type Thread struct {
	ID        id.ThreadID   `json:"id" doc:"The id, a version 7 UUID."`
	AgentID   id.AgentID    `json:"agent_id" doc:"The agent that answers."`
	Title     *string       `json:"title" doc:"For people."`
	CreatedBy string        `json:"created_by" doc:"apikey:<id>, user:<id>, embed:eu:<id> or embed:vid:<id>"`
	EndUserID *id.EndUserID `json:"end_user_id" doc:"The end user it belongs to."`
	CreatedAt time.Time     `json:"created_at" doc:"UTC."`
	UpdatedAt time.Time     `json:"updated_at" doc:"UTC."`
}

// ThreadCreate is the body of POST /v1/threads.
type ThreadCreate struct {
	AgentID id.AgentID `json:"agent_id" doc:"a published agent"`
	Title   *string    `json:"title,omitempty" minLength:"1" maxLength:"200" doc:"For people."`
}

// ThreadCreated is the response of POST /v1/threads.
type ThreadCreated struct {
	ID id.ThreadID `json:"id" doc:"The thread's id."`
}

// Attachment is a file that messages may name.
type Attachment struct {
	ID        id.AttachmentID `json:"id" doc:"The id, a version 7 UUID."`
	Name      string          `json:"name" doc:"The file's name."`
	MediaType string          `json:"media_type" doc:"As it was sent."`
	SizeBytes int64           `json:"size" doc:"Bytes."`
	CreatedAt time.Time       `json:"created_at" doc:"UTC."`
}

// Artifact is a file that a run made of its final text.
type Artifact struct {
	ID        id.ArtifactID `json:"id" doc:"The id, a version 7 UUID."`
	Kind      string        `json:"kind" enum:"xlsx,pptx,html" doc:"What the message asked for."`
	Name      string        `json:"name" doc:"The file's name, made of the first heading; it ends in the kind."`
	MediaType string        `json:"media_type" doc:"That of the kind."`
	SizeBytes int64         `json:"size" doc:"Bytes."`
	CreatedAt time.Time     `json:"created_at" doc:"UTC."`
}

// Message is one message of a thread.
type Message struct {
	ID          id.MessageID         `json:"id" doc:"The id, a version 7 UUID."`
	Role        string               `json:"role" enum:"user,assistant,system"`
	Content     string               `json:"content" doc:"The text."`
	Attachments []Attachment         `json:"attachments" doc:"Files that the message names."`
	Citations   []knowledge.Citation `json:"citations" doc:"Of an answer: the chunks that its marks name, in the order of the text. Marks that name no chunk that its run retrieved are left out."`
	RunID       *id.RunID            `json:"run_id" doc:"The run that it started or that wrote it."`
	CreatedAt   time.Time            `json:"created_at" doc:"UTC."`
}

// MessagePost is the body of POST /v1/threads/{id}/messages. The options only
// tighten.
type MessagePost struct {
	Content       string            `json:"content,omitempty" maxLength:"32000" doc:"required without attachments"`
	AttachmentIDs []id.AttachmentID `json:"attachment_ids,omitempty" maxItems:"8" doc:"Ids of stored files."`
	Autonomy      string            `json:"autonomy,omitempty" enum:"require_approval" doc:"every tool call asks for an approval"`
	Evidence      *bool             `json:"evidence,omitempty" doc:"only true: the answer must cite the agent's knowledge bases"`
	Deliverable   string            `json:"deliverable,omitempty" enum:"xlsx,pptx,html" doc:"also renders the answer as a file, an artifact of the run"`
	Tools         *[]string         `json:"tools,omitempty" maxItems:"100" doc:"narrows the granted tools; empty: none"`
}

// MessagePosted is the response to it.
type MessagePosted struct {
	RunID     id.RunID     `json:"run_id" doc:"The run that answers."`
	MessageID id.MessageID `json:"message_id" doc:"The message's id."`
}

// RunStart is the body of POST /v1/agents/{id}/runs.
type RunStart struct {
	Input Value `json:"input,omitempty" doc:"a string, { text } or { input } holds the prompt; anything else is read as JSON text"`
}

// RunStarted is the response to it.
type RunStarted struct {
	RunID id.RunID `json:"run_id" doc:"The run's id."`
}

// RunStatus is the response to a cancel.
type RunStatus struct {
	RunID  id.RunID            `json:"run_id" doc:"The run's id."`
	Status lifecycle.RunStatus `json:"status" doc:"The status it has now."`
}

// Run as open-parts.md shows it.
type Run struct {
	ID              id.RunID            `json:"id" doc:"The id, a version 7 UUID."`
	Status          lifecycle.RunStatus `json:"status"`
	AgentID         *id.AgentID         `json:"agent_id" doc:"null: a workflow run."`
	AgentVersion    *int                `json:"agent_version" doc:"The version it began with and keeps."`
	WorkflowID      *id.WorkflowID      `json:"workflow_id" doc:"null: an agent run."`
	WorkflowVersion *int                `json:"workflow_version" doc:"The workflow's version that it runs; null: an agent run."`
	ThreadID        *id.ThreadID        `json:"thread_id" doc:"null: a one-off run."`
	ParentRunID     *id.RunID           `json:"parent_run_id" doc:"The workflow run that started it."`
	Input           Value               `json:"input,omitzero" doc:"One-off runs: as it was sent. Messages: { text, attachment_ids?, options? }. Absent with view=summary."`
	Output          Value               `json:"output,omitzero" doc:"{ text, json? }; null until it has succeeded. Absent with view=summary."`
	Asked           Opt[string]         `json:"asked,omitzero" doc:"With view=summary: the first 200 characters of what was asked."`
	Error           *RunError           `json:"error" doc:"Why it failed or was cancelled; null: it did neither."`
	Origin          Origin              `json:"origin" doc:"What started it."`
	EndUserID       *id.EndUserID       `json:"end_user_id" doc:"On whose behalf it runs."`
	TokensIn        int64               `json:"tokens_in" doc:"Of all steps."`
	TokensOut       int64               `json:"tokens_out" doc:"Of all steps."`
	CostUSD         float64             `json:"cost_usd" doc:"Of all steps; 0 without prices."`
	CreatedAt       time.Time           `json:"created_at" doc:"UTC."`
	StartedAt       *time.Time          `json:"started_at" doc:"null: still queued, or cancelled before it began."`
	FinishedAt      *time.Time          `json:"finished_at" doc:"null: not ended."`
}

// Shown makes contents that are null visible: in a full view they are null, in a summary absent.
func (r *Run) Shown(full bool) {
	if full {
		r.Input.orNull()
		r.Output.orNull()
	}
}

// Shown does the same for a step.
func (s *Step) Shown(full bool) {
	if full {
		s.Input.orNull()
		s.Output.orNull()
	}
}

// RunError is why a run failed or was cancelled.
type RunError struct {
	Code    string `json:"code" doc:"CANCELLED, EXPIRED, GATE_REJECTED, TOOL_FAILED, EVENT_TIMEOUT, MODEL_ERROR, MODEL_UNAVAILABLE, LIMIT_EXCEEDED, OUTPUT_INVALID, CHILD_WAITING_APPROVAL, CHILD_FAILED or INTERNAL."`
	Message string `json:"message" doc:"For people."`
}

// Origin is what started a run.
type Origin struct {
	Kind lifecycle.OriginKind `json:"kind"`
	ID   id.UUID              `json:"id" doc:"Of the key, user, trigger, embed key or workflow run."`
}

// Step is one persisted step of a run; input and output are redacted.
type Step struct {
	Idx        int                  `json:"idx" doc:"From 0, without a gap."`
	Kind       lifecycle.StepKind   `json:"kind"`
	Name       string               `json:"name" doc:"Of the model, tool, or workflow node."`
	Status     lifecycle.StepStatus `json:"status" doc:"abandoned: interrupted by a crash and repeated as a new step."`
	Input      Value                `json:"input,omitzero" doc:"Redacted. Absent with view=summary."`
	Output     Value                `json:"output,omitzero" doc:"Redacted. Absent with view=summary."`
	TokensIn   int64                `json:"tokens_in" doc:"Tokens of the prompt."`
	TokensOut  int64                `json:"tokens_out" doc:"Tokens of the answer."`
	CostUSD    float64              `json:"cost_usd" doc:"0 without prices."`
	StartedAt  time.Time            `json:"started_at" doc:"UTC."`
	FinishedAt *time.Time           `json:"finished_at" doc:"null: not ended."`
}

// RunAnswer is a run with its steps, or with as many of them as fit.
type RunAnswer struct {
	Run        *Run        `json:"run" null:"false"`
	Steps      []Step      `json:"steps" doc:"By idx. They end early at 4 MiB of JSON, after at least one step."`
	NextCursor Opt[string] `json:"next_cursor,omitzero" doc:"Only when steps were left out: the cursor for the next ones."`
}

// StepAnswer is the response of GET /v1/runs/{id}/steps/{idx}.
type StepAnswer struct {
	Step Step `json:"step"`
}

// CutSteps records that there are steps after those in the response.
func (r *RunAnswer) CutSteps() {
	r.NextCursor = Some(Cursor(StepsCursor, r.Steps[len(r.Steps)-1].Idx))
}

// StepsCursor is the cursor kind of a run's steps.
const StepsCursor = "steps"

// MarshalJSON writes steps as an array, never as null, and ends them at
// MaxListBytes.
func (r RunAnswer) MarshalJSON() ([]byte, error) {
	run, err := json.Marshal(r.Run)
	if err != nil {
		return nil, err
	}
	return encodeList(`{"run":`+string(run)+`,"steps":[`, r.Steps, &r.NextCursor, func(i int) string { return Cursor(StepsCursor, r.Steps[i].Idx) })
}
