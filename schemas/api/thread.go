package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Thread is a conversation with an agent.
type Thread struct {
	ID        id.ThreadID   `json:"id"`
	AgentID   id.AgentID    `json:"agent_id"`
	Title     *string       `json:"title"`
	CreatedBy string        `json:"created_by" doc:"apikey:<id>, user:<id>, embed:eu:<id> or embed:vid:<id>"`
	EndUserID *id.EndUserID `json:"end_user_id"`
	CreatedAt time.Time     `json:"created_at"`
	UpdatedAt time.Time     `json:"updated_at"`
}

// ThreadCreate is the body of POST /v1/threads.
type ThreadCreate struct {
	AgentID id.AgentID `json:"agent_id" doc:"a published agent"`
	Title   *string    `json:"title,omitempty" minLength:"1" maxLength:"200"`
}

// ThreadCreated answers POST /v1/threads.
type ThreadCreated struct {
	ID id.ThreadID `json:"id"`
}

// Attachment is a file that messages may name.
type Attachment struct {
	ID        id.AttachmentID `json:"id"`
	Name      string          `json:"name"`
	MediaType string          `json:"media_type"`
	SizeBytes int64           `json:"size"`
	CreatedAt time.Time       `json:"created_at"`
}

// Message is one message of a thread.
type Message struct {
	ID          id.MessageID `json:"id"`
	Role        string       `json:"role" enum:"user,assistant,system"`
	Content     string       `json:"content"`
	Attachments []Attachment `json:"attachments"`
	RunID       *id.RunID    `json:"run_id"`
	CreatedAt   time.Time    `json:"created_at"`
}

// MessagePost is the body of POST /v1/threads/{id}/messages. The options only
// tighten.
type MessagePost struct {
	Content       string            `json:"content,omitempty" maxLength:"32000" doc:"required without attachments"`
	AttachmentIDs []id.AttachmentID `json:"attachment_ids,omitempty" maxItems:"8"`
	Autonomy      string            `json:"autonomy,omitempty" enum:"require_approval" doc:"every tool call asks for an approval"`
	Evidence      *bool             `json:"evidence,omitempty" doc:"only true; not available in this deployment yet"`
	Deliverable   string            `json:"deliverable,omitempty" enum:"xlsx,pptx,html" doc:"not available in this deployment yet"`
	Tools         *[]string         `json:"tools,omitempty" maxItems:"100" doc:"narrows the granted tools; empty: none"`
}

// MessagePosted answers it.
type MessagePosted struct {
	RunID     id.RunID     `json:"run_id"`
	MessageID id.MessageID `json:"message_id"`
}

// RunStart is the body of POST /v1/agents/{id}/runs.
type RunStart struct {
	Input Value `json:"input,omitempty" doc:"a string, { text } or { input } holds the prompt; anything else is read as JSON text"`
}

// RunStarted answers it.
type RunStarted struct {
	RunID id.RunID `json:"run_id"`
}

// RunStatus answers a cancel.
type RunStatus struct {
	RunID  id.RunID            `json:"run_id"`
	Status lifecycle.RunStatus `json:"status"`
}

// Run as open-parts.md shows it.
type Run struct {
	ID           id.RunID            `json:"id"`
	Status       lifecycle.RunStatus `json:"status"`
	AgentID      *id.AgentID         `json:"agent_id"`
	AgentVersion *int                `json:"agent_version"`
	WorkflowID   *id.WorkflowID      `json:"workflow_id"`
	ThreadID     *id.ThreadID        `json:"thread_id"`
	ParentRunID  *id.RunID           `json:"parent_run_id"`
	Input        Value               `json:"input"`
	Output       Value               `json:"output"`
	Error        *RunError           `json:"error"`
	Origin       Origin              `json:"origin"`
	EndUserID    *id.EndUserID       `json:"end_user_id"`
	TokensIn     int64               `json:"tokens_in"`
	TokensOut    int64               `json:"tokens_out"`
	CostUSD      float64             `json:"cost_usd"`
	CreatedAt    time.Time           `json:"created_at"`
	StartedAt    *time.Time          `json:"started_at"`
	FinishedAt   *time.Time          `json:"finished_at"`
}

// RunError says why a run failed or was cancelled.
type RunError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Origin says what started a run.
type Origin struct {
	Kind lifecycle.OriginKind `json:"kind"`
	ID   id.UUID              `json:"id"`
}

// Step is one persisted step of a run; input and output are redacted.
type Step struct {
	Idx        int                  `json:"idx"`
	Kind       lifecycle.StepKind   `json:"kind"`
	Name       string               `json:"name"`
	Status     lifecycle.StepStatus `json:"status"`
	Input      Value                `json:"input"`
	Output     Value                `json:"output"`
	TokensIn   int64                `json:"tokens_in"`
	TokensOut  int64                `json:"tokens_out"`
	CostUSD    float64              `json:"cost_usd"`
	StartedAt  time.Time            `json:"started_at"`
	FinishedAt *time.Time           `json:"finished_at"`
}

// RunAnswer is a run with its steps.
type RunAnswer struct {
	Run   *Run   `json:"run"`
	Steps []Step `json:"steps"`
}
