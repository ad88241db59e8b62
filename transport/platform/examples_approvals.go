package platform

import (
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

var (
	sampleApproval = api.Approval{ID: sampleApprovalID, RunID: sampleRunID, AgentID: &sampleAgentID, StepIdx: 1, Status: lifecycle.ApprovalPending,
		Risk: lifecycle.RiskHigh, AssigneeRole: lifecycle.RoleManager, RequiredApprovals: 2, ApprovalsSoFar: 1,
		RequestedAction: api.RequestedAction{Tool: "orders.refund", Args: api.Value(`{"order":1001,"amount":30,"card_token":"[redacted]"}`),
			Schema: api.Value(`{"type":"object","required":["order","amount"],"properties":{"order":{"type":"integer"},"amount":{"type":"number"},"card_token":{"type":"string"}}}`)},
		ReasoningSummary: "The parcel arrived broken, so I would refund the order.",
		Policy:           api.MatchedPolicy{ID: &id.PolicyID{UUID: sample(20)}, Name: "Refunds", Kind: "policy"},
		Decisions: []api.ApproverDecision{{Principal: "user:" + sample(10).String(), Action: lifecycle.ActionEdit, Feedback: ptr("Half is enough."),
			EditedArgs: api.Value(`{"order":1001,"amount":15,"card_token":"[redacted]"}`), At: sampleEnd}},
		ExpiresAt: sampleTime.AddDate(0, 0, 1), CreatedAt: sampleTime, URL: api.ApprovalURL("https://agents.example.com", sampleApprovalID),
		Effect: api.Effect{State: api.EffectWaiting, WaitingFor: 1, At: &sampleTime}}
	sampleDecided     = api.Decided{Status: lifecycle.ApprovalEdited, ApprovalsSoFar: 2}
	sampleBulkDecided = api.BulkDecided{Results: []api.BulkResult{
		{ID: sampleApprovalID, OK: true, Terminal: lifecycle.ApprovalApproved},
		{ID: id.ApprovalID{UUID: sample(21)}, Error: &api.BulkError{Code: problem.CodeAlreadyDecided, Detail: "This approval is expired."}},
	}}
)

// describeApprovals adds the descriptions of the approval types.
func describeApprovals(t *edge.Table) {
	edge.Doc[api.Approval](t, "A tool call that waits, or waited, for a decision.")
	edge.Doc[api.Effect](t, "What has become of the call of an approval.")
	edge.Doc[api.RequestedAction](t, "The action that runs if the approval is granted.")
	edge.Doc[api.MatchedPolicy](t, "The rule that requires the approval.")
	edge.Doc[api.ApproverDecision](t, "The decision of one approver.")
	edge.Doc[api.Decision](t, "A decision.")
	edge.Doc[api.Decided](t, "The result of a decision.")
	edge.Doc[api.BulkDecision](t, "One decision on many approvals.")
	edge.Doc[api.BulkDecided](t, "The results of a bulk decision.")
	edge.Doc[api.BulkResult](t, "The result for one approval.")
	edge.Doc[api.BulkError](t, "Why a decision does not count.")
	edge.Doc[api.Whole[api.Approval]](t, "Approvals: all of them, or a page.")
}
