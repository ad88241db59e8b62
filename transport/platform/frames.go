package platform

import (
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

// What the frames of a run's stream hold (service.md, Run event stream), for the
// OpenAPI document. The frames themselves are made by schemas/event.
type (
	runStartedFrame struct {
		RunID   id.RunID            `json:"run_id"`
		AgentID *id.AgentID         `json:"agent_id"`
		Status  lifecycle.RunStatus `json:"status"`
	}
	stepStartedFrame struct {
		Idx  int                `json:"idx" doc:"resume cursor"`
		Kind lifecycle.StepKind `json:"kind"`
		Name string             `json:"name"`
	}
	deltaFrame struct {
		Idx  int    `json:"idx"`
		Text string `json:"text"`
	}
	thinkingFrame struct {
		Idx     int    `json:"idx"`
		Text    string `json:"text"`
		Replace bool   `json:"replace,omitempty"`
	}
	toolCalledFrame struct {
		Idx         int    `json:"idx"`
		Tool        string `json:"tool"`
		ArgsPreview string `json:"args_preview" doc:"truncated, redacted"`
	}
	toolResultFrame struct {
		Idx           int    `json:"idx"`
		OK            bool   `json:"ok"`
		OutputPreview string `json:"output_preview"`
	}
	retrievalFrame struct {
		Idx    int         `json:"idx"`
		KB     id.UUID     `json:"kb"`
		Chunks []api.Value `json:"chunks"`
	}
	approvalFrame struct {
		ApprovalID id.ApprovalID `json:"approval_id"`
		Tool       string        `json:"tool"`
		ExpiresAt  time.Time     `json:"expires_at"`
	}
	waitingFrame struct {
		Status string `json:"status" enum:"waiting_approval"`
	}
	resumedFrame struct {
		ApprovalID id.ApprovalID `json:"approval_id"`
		Decision   string        `json:"decision" enum:"approve,edit,reject,respond,expire"`
	}
	completedFrame struct {
		Status    lifecycle.RunStatus `json:"status"`
		Output    api.Value           `json:"output"`
		TokensIn  int64               `json:"tokens_in"`
		TokensOut int64               `json:"tokens_out"`
		CostUSD   float64             `json:"cost_usd"`
	}
	failedFrame struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	nodeStartedFrame struct {
		NodeID   string `json:"node_id"`
		NodeType string `json:"node_type"`
	}
	nodeCompletedFrame struct {
		NodeID     string    `json:"node_id"`
		NodeType   string    `json:"node_type"`
		Status     string    `json:"status" enum:"succeeded,failed,skipped,waiting"`
		ChildRunID *id.RunID `json:"child_run_id,omitempty"`
	}
	handoffFrame struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	heartbeatFrame struct{}
)

var frames = []edge.Frame{
	{Type: event.RunStarted, Data: runStartedFrame{}},
	{Type: event.StepStarted, Data: stepStartedFrame{}},
	{Type: event.LLMDelta, Data: deltaFrame{}},
	{Type: event.LLMThinking, Data: thinkingFrame{}},
	{Type: event.ToolCalled, Data: toolCalledFrame{}},
	{Type: event.ToolResult, Data: toolResultFrame{}},
	{Type: event.RetrievalResult, Data: retrievalFrame{}},
	{Type: event.ApprovalRequired, Data: approvalFrame{}},
	{Type: event.RunWaiting, Data: waitingFrame{}},
	{Type: event.RunResumed, Data: resumedFrame{}},
	{Type: event.RunCompleted, Data: completedFrame{}, Doc: "Terminal."},
	{Type: event.RunFailed, Data: failedFrame{}, Doc: "Terminal; includes CANCELLED and EXPIRED."},
	{Type: event.NodeStarted, Data: nodeStartedFrame{}},
	{Type: event.NodeCompleted, Data: nodeCompletedFrame{}},
	{Type: event.Handoff, Data: handoffFrame{}},
	{Type: event.Heartbeat, Data: heartbeatFrame{}, Doc: "Without an id."},
}
