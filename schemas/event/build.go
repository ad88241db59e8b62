package event

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// How facts take their numbers (Pos.Seq). The first fact of a run that left
// queued is its start, SeqStarted. A step that begins takes one number for
// step.started; a tool that is called takes one for tool.called, the end of its
// step one for tool.result; the end of a model's step takes none. What has no
// row of its own is a mark and takes one number each: approval.required,
// run.waiting, run.resumed, handoff. The last number of an ended run is its
// terminal frame.

// SeqStarted is the number of run.started.
const SeqStarted = 1

// PreviewBytes is the most that a preview shows of a value.
const PreviewBytes = 512

// Preview is the start of a shown (redacted) JSON value, cut at a character.
func Preview(shown json.RawMessage) string {
	s := string(shown)
	if len(s) <= PreviewBytes {
		return s
	}
	cut := PreviewBytes
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Started is run.started. Its status is running: that is what the fact says,
// whatever became of the run since.
func Started(run id.RunID, agent *id.AgentID) *Frame {
	return must(New(RunStarted, Pos{Seq: SeqStarted}, struct {
		RunID   id.RunID            `json:"run_id"`
		AgentID *id.AgentID         `json:"agent_id"`
		Status  lifecycle.RunStatus `json:"status"`
	}{run, agent, lifecycle.RunRunning}))
}

// StepBegan is step.started.
func StepBegan(seq int64, idx int, kind lifecycle.StepKind, name string) *Frame {
	return must(New(StepStarted, Pos{Seq: seq}, struct {
		Idx  int                `json:"idx"`
		Kind lifecycle.StepKind `json:"kind"`
		Name string             `json:"name"`
	}{idx, kind, name}))
}

// Called is tool.called; args are the shown ones.
func Called(seq int64, idx int, tool string, args json.RawMessage) *Frame {
	return must(New(ToolCalled, Pos{Seq: seq}, struct {
		Idx         int    `json:"idx"`
		Tool        string `json:"tool"`
		ArgsPreview string `json:"args_preview"`
	}{idx, tool, Preview(args)}))
}

// Resulted is tool.result; output is the shown one.
func Resulted(seq int64, idx int, ok bool, output json.RawMessage) *Frame {
	return must(New(ToolResult, Pos{Seq: seq}, struct {
		Idx           int    `json:"idx"`
		OK            bool   `json:"ok"`
		OutputPreview string `json:"output_preview"`
	}{idx, ok, Preview(output)}))
}

// Completed is run.completed.
func Completed(seq int64, output json.RawMessage, tokensIn, tokensOut int64, costUSD float64) *Frame {
	return must(New(RunCompleted, Pos{Seq: seq}, struct {
		Status    lifecycle.RunStatus `json:"status"`
		Output    json.RawMessage     `json:"output"`
		TokensIn  int64               `json:"tokens_in"`
		TokensOut int64               `json:"tokens_out"`
		CostUSD   float64             `json:"cost_usd"`
	}{lifecycle.RunSucceeded, output, tokensIn, tokensOut, costUSD}))
}

// Failed is run.failed.
func Failed(seq int64, code, message string) *Frame {
	return must(New(RunFailed, Pos{Seq: seq}, struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message}))
}

// Data of marks.

// RequiredData is what approval.required says.
func RequiredData(approval id.ApprovalID, tool string, expires time.Time) json.RawMessage {
	return document(struct {
		ApprovalID id.ApprovalID `json:"approval_id"`
		Tool       string        `json:"tool"`
		ExpiresAt  time.Time     `json:"expires_at"`
	}{approval, tool, expires.UTC()})
}

// WaitingData is what run.waiting says.
func WaitingData() json.RawMessage {
	return document(struct {
		Status lifecycle.RunStatus `json:"status"`
	}{lifecycle.RunWaitingApproval})
}

// ResumedData is what run.resumed says; decision is the deciding action.
func ResumedData(approval id.ApprovalID, decision lifecycle.Action) json.RawMessage {
	return document(struct {
		ApprovalID id.ApprovalID    `json:"approval_id"`
		Decision   lifecycle.Action `json:"decision"`
	}{approval, decision})
}

// HandoffData is what handoff says; from and to are slugs.
func HandoffData(from, to string) json.RawMessage {
	return document(struct {
		From string `json:"from"`
		To   string `json:"to"`
	}{from, to})
}

func document(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // ids, times and texts always encode
	}
	return b
}

// Marked is a frame whose fact is a mark: data is its stored data.
func Marked(seq int64, t Type, data json.RawMessage) *Frame {
	return must(New(t, Pos{Seq: seq}, data))
}

// must: the values above always encode; a stored document that is no JSON
// cannot come out of a json column.
func must(f *Frame, err error) *Frame {
	if err != nil {
		panic("event: " + strings.TrimSpace(err.Error()))
	}
	return f
}
