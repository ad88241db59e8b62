package platform

import (
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

// Payloads of the frames of a run's stream (service.md, Run event stream), for the OpenAPI
// document. Package schemas/event makes the frames themselves.
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
		Idx  int    `json:"idx" doc:"The step."`
		Text string `json:"text" doc:"A piece of text."`
	}
	thinkingFrame struct {
		Idx     int    `json:"idx" doc:"The step."`
		Text    string `json:"text" doc:"A piece of text."`
		Replace bool   `json:"replace,omitempty"`
	}
	toolCalledFrame struct {
		Idx         int    `json:"idx" doc:"The step."`
		Tool        string `json:"tool" doc:"Its qualified name."`
		ArgsPreview string `json:"args_preview" doc:"truncated, redacted"`
	}
	toolResultFrame struct {
		Idx           int    `json:"idx" doc:"The step."`
		OK            bool   `json:"ok"`
		OutputPreview string `json:"output_preview"`
	}
	retrievalFrame struct {
		Idx    int         `json:"idx" doc:"The step."`
		KB     id.UUID     `json:"kb"`
		Chunks []api.Value `json:"chunks"`
	}
	approvalFrame struct {
		ApprovalID id.ApprovalID `json:"approval_id"`
		Tool       string        `json:"tool" doc:"Its qualified name."`
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
	{Type: event.RunStarted, Data: runStartedFrame{sampleRunID, &sampleAgentID, lifecycle.RunRunning}, Doc: "A worker has picked the run up."},
	{Type: event.StepStarted, Data: stepStartedFrame{0, lifecycle.StepLLM, "sim"}, Doc: "A step has begun."},
	{Type: event.LLMDelta, Data: deltaFrame{0, "It left "}, Doc: "Live text of the model."},
	{Type: event.LLMThinking, Data: thinkingFrame{Idx: 0, Text: "Your order has shipped."}, Doc: "What the model thinks; replace says that the text so far is void."},
	{Type: event.ToolCalled, Data: toolCalledFrame{1, "orders.read", `{"order":"1001"}`}, Doc: "A tool is called."},
	{Type: event.ToolResult, Data: toolResultFrame{1, true, `{"status":"shipped"}`}, Doc: "A tool has answered."},
	{Type: event.RetrievalResult, Data: retrievalFrame{1, sample(10), []api.Value{api.Value(`{"text":"We ship within two days."}`)}}, Doc: "What a search in a knowledge base has found."},
	{Type: event.ApprovalRequired, Data: approvalFrame{sampleApprovalID, "orders.refund", sampleTime}, Doc: "A tool call waits for a person."},
	{Type: event.RunWaiting, Data: waitingFrame{"waiting_approval"}, Doc: "The run waits for its approvals."},
	{Type: event.RunResumed, Data: resumedFrame{sampleApprovalID, "approve"}, Doc: "An approval is decided and the run goes on."},
	{Type: event.RunCompleted, Data: completedFrame{lifecycle.RunSucceeded, sampleOutput, 212, 9, 0.00062}, Doc: "Terminal."},
	{Type: event.RunFailed, Data: failedFrame{"CANCELLED", "The run was cancelled."}, Doc: "Terminal; includes CANCELLED and EXPIRED."},
	{Type: event.NodeStarted, Data: nodeStartedFrame{"check", "agent"}, Doc: "A workflow node has begun."},
	{Type: event.NodeCompleted, Data: nodeCompletedFrame{NodeID: "check", NodeType: "agent", Status: "succeeded", ChildRunID: &sampleRunID}, Doc: "A workflow node has paused or ended."},
	{Type: event.Handoff, Data: handoffFrame{"support", "billing"}, Doc: "The conversation is handed over."},
	{Type: event.Heartbeat, Data: heartbeatFrame{}, Doc: "Without an id."},
}
