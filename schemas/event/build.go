package event

import (
	"encoding/json"
	"strings"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Facts are numbered (Pos.Seq) as follows. The first fact of a run that left queued is its
// start, SeqStarted. A step takes one number for step.started, and a tool call one for
// tool.called. The end of a tool step takes one for tool.result, and that of a retrieval step
// before it one for each retrieval.result, which follow from the step's output. The end of a
// model's step takes none. Facts without a row of their own are marks and take one number each:
// approval.required, run.waiting, run.resumed, handoff, node.started, node.completed. The last number of an ended run is
// its terminal frame.

// SeqStarted is the number of run.started.
const SeqStarted = 1

// PreviewBytes is the maximum length of a preview.
const PreviewBytes = 512

// Preview returns the start of a shown (redacted) JSON value, cut at a character.
func Preview(shown json.RawMessage) string {
	return problem.ClipBytes(string(shown), PreviewBytes)
}

// Started returns run.started. Its status is running, which is the fact, whatever the run's
// status is now.
func Started(run id.RunID, agent *id.AgentID) *Frame {
	return must(New(RunStarted, Pos{Seq: SeqStarted}, struct {
		RunID   id.RunID            `json:"run_id"`
		AgentID *id.AgentID         `json:"agent_id"`
		Status  lifecycle.RunStatus `json:"status"`
	}{run, agent, lifecycle.RunRunning}))
}

// StepBegan returns step.started.
func StepBegan(seq int64, idx int, kind lifecycle.StepKind, name string) *Frame {
	return must(New(StepStarted, Pos{Seq: seq}, struct {
		Idx  int                `json:"idx"`
		Kind lifecycle.StepKind `json:"kind"`
		Name string             `json:"name"`
	}{idx, kind, name}))
}

type called struct {
	Idx         int    `json:"idx"`
	Tool        string `json:"tool"`
	ArgsPreview string `json:"args_preview"`
}

type resulted struct {
	Idx           int    `json:"idx"`
	OK            bool   `json:"ok"`
	OutputPreview string `json:"output_preview"`
}

// Called returns tool.called; args are the shown ones.
func Called(seq int64, idx int, tool string, args json.RawMessage) *Frame {
	return must(New(ToolCalled, Pos{Seq: seq}, called{idx, tool, Preview(args)}))
}

// Resulted returns tool.result; output is the shown one.
func Resulted(seq int64, idx int, ok bool, output json.RawMessage) *Frame {
	return must(New(ToolResult, Pos{Seq: seq}, resulted{idx, ok, Preview(output)}))
}

// retrieved is the part of a retrieval step's output from which its frames are made. The
// output of a search that failed has no results.
type retrieved struct {
	Results []struct {
		KB     json.RawMessage `json:"kb"`
		Chunks json.RawMessage `json:"chunks"`
	} `json:"results"`
}

func readRetrieved(output json.RawMessage) (r retrieved) {
	if json.Unmarshal(output, &r) != nil {
		return retrieved{}
	}
	return r
}

// CountRetrieved returns how many retrieval.result frames a retrieval step with this output
// has. Their numbers are the ones just before that of its tool.result.
func CountRetrieved(output json.RawMessage) int { return len(readRetrieved(output).Results) }

// Retrieved returns the retrieval.result frames of a retrieval step whose tool.result has the
// number ended.
func Retrieved(ended int64, idx int, output json.RawMessage) []*Frame {
	results := readRetrieved(output).Results
	out := make([]*Frame, len(results))
	for i, r := range results {
		out[i] = must(New(RetrievalResult, Pos{Seq: ended - int64(len(results)-i)}, struct {
			Idx    int             `json:"idx"`
			KB     json.RawMessage `json:"kb"`
			Chunks json.RawMessage `json:"chunks"`
		}{idx, orNull(r.KB), orNull(r.Chunks)}))
	}
	return out
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// Completed returns run.completed.
func Completed(seq int64, output json.RawMessage, tokensIn, tokensOut int64, costUSD float64) *Frame {
	return must(New(RunCompleted, Pos{Seq: seq}, struct {
		Status    lifecycle.RunStatus `json:"status"`
		Output    json.RawMessage     `json:"output"`
		TokensIn  int64               `json:"tokens_in"`
		TokensOut int64               `json:"tokens_out"`
		CostUSD   float64             `json:"cost_usd"`
	}{lifecycle.RunSucceeded, output, tokensIn, tokensOut, costUSD}))
}

// Failed returns run.failed.
func Failed(seq int64, code, message string) *Frame {
	return must(New(RunFailed, Pos{Seq: seq}, struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message}))
}

// Data of marks.

// CalledData returns the data of a tool.called that is a mark; args are the shown ones.
func CalledData(idx int, tool string, args json.RawMessage) json.RawMessage {
	return document(called{idx, tool, Preview(args)})
}

// ResultedData returns the data of a tool.result that is a mark; output is the shown one.
func ResultedData(idx int, ok bool, output json.RawMessage) json.RawMessage {
	return document(resulted{idx, ok, Preview(output)})
}

// RequiredData returns the data of approval.required.
func RequiredData(approval id.ApprovalID, tool string, expires time.Time) json.RawMessage {
	return document(struct {
		ApprovalID id.ApprovalID `json:"approval_id"`
		Tool       string        `json:"tool"`
		ExpiresAt  time.Time     `json:"expires_at"`
	}{approval, tool, expires.UTC()})
}

// WaitingData returns the data of run.waiting.
func WaitingData() json.RawMessage {
	return document(struct {
		Status lifecycle.RunStatus `json:"status"`
	}{lifecycle.RunWaitingApproval})
}

// ResumedData returns the data of run.resumed; decision is the deciding action.
func ResumedData(approval id.ApprovalID, decision lifecycle.Action) json.RawMessage {
	return document(struct {
		ApprovalID id.ApprovalID    `json:"approval_id"`
		Decision   lifecycle.Action `json:"decision"`
	}{approval, decision})
}

// HandoffData returns the data of handoff; from and to are slugs.
func HandoffData(from, to string) json.RawMessage {
	return document(struct {
		From string `json:"from"`
		To   string `json:"to"`
	}{from, to})
}

// NodeStartedData returns the data of node.started.
func NodeStartedData(node, nodeType string) json.RawMessage {
	return document(struct {
		NodeID   string `json:"node_id"`
		NodeType string `json:"node_type"`
	}{node, nodeType})
}

// NodeCompletedData returns the data of node.completed; status is succeeded, failed, skipped or
// waiting. child is nil unless the node has a child run.
func NodeCompletedData(node, nodeType, status string, child *id.RunID) json.RawMessage {
	return document(struct {
		NodeID     string    `json:"node_id"`
		NodeType   string    `json:"node_type"`
		Status     string    `json:"status"`
		ChildRunID *id.RunID `json:"child_run_id,omitempty"`
	}{node, nodeType, status, child})
}

func document(v any) json.RawMessage {
	b, err := encode(v)
	if err != nil {
		panic(err) // ids, times and texts can always be encoded
	}
	return b
}

// Marked returns a frame whose fact is a mark; data is its stored data.
func Marked(seq int64, t Type, data json.RawMessage) *Frame {
	return must(New(t, Pos{Seq: seq}, data))
}

// must panics on an error: the values above can always be encoded, and a json column holds
// only valid JSON.
func must(f *Frame, err error) *Frame {
	if err != nil {
		panic("event: " + strings.TrimSpace(err.Error()))
	}
	return f
}
