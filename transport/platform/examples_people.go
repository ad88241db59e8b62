package platform

import (
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

var (
	sampleUserID = id.UserID{UUID: sample(10)}
	sampleUser   = api.User{ID: sampleUserID, Email: "kim@example.com", Name: "Kim", Role: lifecycle.RoleAdmin, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleNode   = api.OrgNode{ID: id.NodeID{UUID: sample(11)}, Name: "Refunds", ParentID: &id.NodeID{UUID: sample(13)},
		ManagerIDs: []id.UserID{sampleUserID}, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleLoginLink = api.LoginLink{URL: "https://agents.example.com/login/AbC…?next=%2Fconsole%2Fapprovals", ExpiresAt: sampleEnd}
	sampleFound     = []api.Found{{Kind: api.FoundAgent, ID: sampleAgentID.UUID, Title: "Support", Detail: "support"}, {Kind: api.FoundRun, ID: sampleRunID.UUID, Title: "Run", Detail: "succeeded"}}
	sampleAudit     = api.AuditEntry{ID: id.AuditID{UUID: sample(12)}, At: sampleTime, Actor: "user:" + sampleUserID.String(), Action: "auth.login",
		Target: api.AuditTarget{Kind: "user", ID: sampleUserID.UUID}, IP: ptr("192.0.2.7"), Detail: api.Value(`{"method":"password"}`)}
	sampleUsage       = api.UsageGroup{Day: "2026-03-02", Runs: 31, TokensIn: 52_144, TokensOut: 9_310, CostUSD: 0.22346}
	sampleUsageRecord = api.UsageRecord{ID: id.UsageID{UUID: sample(14)}, At: sampleEnd, Kind: lifecycle.UsageLLM, RunID: &sampleRunID, AgentID: &sampleAgentID,
		Model: "large", TokensIn: 212, TokensOut: 9, CostUSD: 0.00062}
)

// describePeople adds the descriptions of the types of people, audit and usage.
func describePeople(t *edge.Table) {
	edge.Doc[api.UserCreate](t, "A user to create.")
	edge.Doc[api.UserPatch](t, "A change of a user; omitted fields stay.")
	edge.Doc[api.OrgNode](t, "A node of the tenant's organisation.")
	edge.Doc[api.OrgNodeCreate](t, "An org node to create.")
	edge.Doc[api.OrgNodePatch](t, "A change of an org node; omitted fields stay.")
	edge.Doc[api.LoginLinkCreate](t, "Where a one-time login link leads.")
	edge.Doc[api.LoginLink](t, "A link that signs a user in, once.")
	edge.Doc[api.Found](t, "An object that a search found.")
	edge.Doc[api.Items[api.Found]](t, "What a search found, the best first.")
	edge.Doc[api.Login](t, "Credentials for a login.")
	edge.Doc[api.LoggedIn](t, "The user and tenant of a new session. The session itself is in the cookie.")
	edge.Doc[api.PasswordChange](t, "A new password.")
	edge.Doc[api.AuditEntry](t, "An entry of the audit log.")
	edge.Doc[api.AuditTarget](t, "The target of an audited change.")
	edge.Doc[api.UsageGroup](t, "Usage, summed up. It has the one of day, agent_id, model and kind that was requested.")
	edge.Doc[api.UsageRecord](t, "One billed use.")
	edge.Doc[api.List[api.User]](t, "A page of users.")
	edge.Doc[api.List[api.OrgNode]](t, "A page of org nodes.")
	edge.Doc[api.List[api.AuditEntry]](t, "A page of the audit log.")
	edge.Doc[api.List[api.UsageRecord]](t, "A page of billed uses.")
	edge.Doc[api.Items[api.UsageGroup]](t, "Usage by group.")
}
