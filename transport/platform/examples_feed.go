package platform

import (
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/lifecycle"
)

var (
	sampleOverview = api.Overview{
		At: sampleTime, Runs: api.RunCounts{Queued: 2, Running: 5, WaitingApproval: 3, Succeeded24h: 1204, Failed24h: 7, Cancelled24h: 2},
		Approvals:  api.ApprovalCounts{Pending: 3, Mine: 2, ByRisk: api.RiskCounts{Medium: 2, High: 1}, NextExpiresAt: ptr(sampleTime.Add(time.Hour))},
		Deliveries: &api.OverviewDeliveries{Pending: 1, Failed24h: 4},
		Attention:  []api.Attention{{Kind: api.AttentionApprovals, Title: "Approvals", Count: 2, Since: sampleTime}, {Kind: api.AttentionFailingAgent, ID: &sampleAgentID.UUID, Title: "Support", Count: 6, Since: sampleTime}},
	}
	sampleStat = api.Stat{
		At: sampleTime, Runs: api.StatRuns{Succeeded: 52, Failed: 1}, DurationMS: &api.Percentiles{P50: 1210, P95: 5034}, FirstTokenMS: &api.Percentiles{P50: 402, P95: 913},
		DecisionS: &api.Percentiles{P50: 84.102, P95: 84.102}, Approvals: api.StatApprovals{Requested: 2, Decided: 1}, Deliveries: api.StatDeliveries{Succeeded: 53},
		TokensIn: 52_144, TokensOut: 9_310, CostUSD: 0.22346,
	}
	sampleRunChange      = api.RunChange{ID: sampleRunID, Status: lifecycle.RunRunning, AgentID: &sampleAgentID}
	sampleApprovalChange = api.ApprovalChange{ID: sampleApprovalID, RunID: sampleRunID, Status: lifecycle.ApprovalPending, Risk: lifecycle.RiskHigh, AssigneeRole: lifecycle.RoleAdmin, ExpiresAt: sampleEnd}
	sampleChange         = api.Change{Kind: "agent", ID: sampleAgentID.UUID}
)
