package tool

import (
	"testing"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/lifecycle"
)

func TestSLA(t *testing.T) {
	if got := (&Terms{SLAMinutes: 0.5}).SLA(); got != 30*time.Second {
		t.Errorf("half a minute is %s", got)
	}
}

// open-parts.md, Details by area, Approvals: stricter, field by field.
func TestStricter(t *testing.T) {
	lax := Terms{Risk: "low", Required: 1, Role: "member", SLAMinutes: 1440, OnTimeout: "reject", Policy: PolicyRef{Name: "a", Kind: KindOption}}
	for _, c := range []struct {
		says string
		set  func(*Terms)
	}{
		{"higher risk: medium over low", func(t *Terms) { t.Risk = "medium" }},
		{"higher risk: critical over low", func(t *Terms) { t.Risk = "critical" }},
		{"more approvals", func(t *Terms) { t.Required = 5 }},
		{"higher role: manager over member", func(t *Terms) { t.Role = "manager" }},
		{"higher role: admin over member", func(t *Terms) { t.Role = "admin" }},
		{"higher role: owner over member", func(t *Terms) { t.Role = "owner" }},
		{"shorter SLA, a fraction", func(t *Terms) { t.SLAMinutes = 0.25 }},
		{"the higher escalate_to_role: any over none", func(t *Terms) { t.Escalate = "member" }},
		{"cancel_run over reject", func(t *Terms) { t.OnTimeout = "cancel_run" }},
	} {
		strict := lax
		c.set(&strict)
		if a, b := Stricter(lax, strict), Stricter(strict, lax); a != strict || b != strict {
			t.Errorf("%s: %+v and %+v", c.says, a, b)
		}
	}
	for i, low := range lifecycle.Risks {
		for j, high := range lifecycle.Risks {
			if got := Stricter(Terms{Risk: low}, Terms{Risk: high}).Risk; got != lifecycle.Risks[max(i, j)] {
				t.Errorf("%s and %s: %s", low, high, got)
			}
		}
	}
	for i, low := range lifecycle.ApproverRoles {
		for j, high := range lifecycle.ApproverRoles {
			want := lifecycle.ApproverRoles[max(i, j)]
			if got := Stricter(Terms{Role: low, Escalate: low}, Terms{Role: high, Escalate: high}); got.Role != want || got.Escalate != want {
				t.Errorf("%s and %s: %+v", low, high, got)
			}
		}
	}
	order := []PolicyKind{KindPolicy, KindManifest, KindSkill, KindOption}
	for i, a := range order {
		for j, b := range order {
			if got := Stricter(Terms{Policy: PolicyRef{Kind: a}}, Terms{Policy: PolicyRef{Kind: b}}).Policy.Kind; got != order[min(i, j)] {
				t.Errorf("of %s and %s %s is shown", a, b, got)
			}
		}
	}
}

// Which policy and rule applies, and what of several (service.md, Approval
// policy; open-parts.md, Questions settled, Approval).
func TestTerms(t *testing.T) {
	ofAgent := func(p *Policy) { p.Agent = ptr(agentID(1)) }
	ofMCP := func(p *Policy) { p.Source = MCP }
	lax := func(p *Policy) { p.Risk, p.Required, p.Role, p.SLAMinutes = "low", 1, "member", 2880 }
	for _, c := range []struct {
		says string
		with func(*house)
		want Terms
	}{
		{"a policy as it stands", func(h *house) { h.policy(1, "*", func(p *Policy) { p.Escalate = "owner" }) },
			Terms{"high", 2, "admin", 60, "owner", "reject", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"agent-scoped over tenant-wide", func(h *house) { h.policy(1, "*", ofAgent, lax); h.policy(2, "orders.refund", ofMCP) },
			Terms{"low", 1, "member", 2880, "", "reject", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"source-pinned over any source", func(h *house) { h.policy(1, "*", ofMCP, lax); h.policy(2, "orders.refund") },
			Terms{"low", 1, "member", 2880, "", "reject", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"exact over prefix", func(h *house) { h.policy(1, "orders.refund", lax); h.policy(2, "shop.orders.*") },
			Terms{"low", 1, "member", 2880, "", "reject", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"prefix over *", func(h *house) { h.policy(1, "shop.*", lax); h.policy(2, "*") },
			Terms{"low", 1, "member", 2880, "", "reject", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"policies of equal specificity are merged, the newest is named", func(h *house) {
			h.policy(1, "shop.*", lax, func(p *Policy) { p.CreatedAt = day(2); p.Role = "owner" })
			h.policy(2, "shop.orders.*", func(p *Policy) { p.Escalate = "owner" })
		}, Terms{"high", 2, "owner", 60, "owner", "reject", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"a rule's defaults", func(h *house) { h.HITL.Rules = []agent.Rule{{Tool: "*"}} },
			Terms{"medium", 1, "admin", 1440, "", "reject", PolicyRef{nil, "*", KindManifest}}},
		{"a rule as it stands", func(h *house) {
			h.HITL.Rules = []agent.Rule{{Tool: "shop.*", Risk: "critical", RequiredApprovals: 3, ApproverRole: "manager", SLAMinutes: 0.5, EscalateToRole: "admin", OnTimeout: "cancel_run"}}
		}, Terms{"critical", 3, "manager", 0.5, "admin", "cancel_run", PolicyRef{nil, "shop.*", KindManifest}}},
		{"the most specific rule", func(h *house) {
			h.HITL.Rules = []agent.Rule{{Tool: "*", RequiredApprovals: 5}, {Tool: "orders.refund", RequiredApprovals: 2}, {Tool: "shop.*", RequiredApprovals: 4}}
		}, Terms{"medium", 2, "admin", 1440, "", "reject", PolicyRef{nil, "orders.refund", KindManifest}}},
		{"a rule pinned to its source over any", func(h *house) {
			h.HITL.Rules = []agent.Rule{{Tool: "orders.refund", RequiredApprovals: 5}, {Tool: "*", Source: "mcp", RequiredApprovals: 2}}
		}, Terms{"medium", 2, "admin", 1440, "", "reject", PolicyRef{nil, "*", KindManifest}}},
		{"a rule of another source says nothing", func(h *house) {
			h.HITL.Rules = []agent.Rule{{Tool: "orders.refund", Source: "builtin"}, {Tool: "*", RequiredApprovals: 2}}
		}, Terms{"medium", 2, "admin", 1440, "", "reject", PolicyRef{nil, "*", KindManifest}}},
		{"autonomy's defaults", func(h *house) { h.RequireApproval = true },
			Terms{"medium", 1, "admin", 1440, "", "reject", PolicyRef{nil, "require_approval", KindOption}}},
		{"of each kind one, of those the stricter value of every field", func(h *house) {
			h.policy(1, "*", lax)
			h.HITL.Rules = []agent.Rule{{Tool: "*", Risk: "low", RequiredApprovals: 2, ApproverRole: "member", OnTimeout: "cancel_run"}}
			h.RequireApproval = true
		}, Terms{"medium", 2, "admin", 1440, "", "cancel_run", PolicyRef{ptr(policyID(1)), "policy 1", KindPolicy}}},
		{"the manifest is named before the option", func(h *house) {
			h.HITL.Rules = []agent.Rule{{Tool: "*"}}
			h.RequireApproval = true
		}, Terms{"medium", 1, "admin", 1440, "", "reject", PolicyRef{nil, "*", KindManifest}}},
		{"a policy that a caller left half empty", func(h *house) { h.Policies = []Policy{{ID: policyID(1), Pattern: "*"}} },
			Terms{"medium", 1, "admin", 1440, "", "reject", PolicyRef{ptr(policyID(1)), "", KindPolicy}}},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := newHouse()
			h.grant(1, "*")
			c.with(h)
			got := h.resolve(refund)
			if got.Verdict != Gated || !sameResolution(Resolution{Terms: got.Terms}, Resolution{Terms: &c.want}) {
				t.Errorf("%s %+v\nwant %+v", got.Verdict, got.Terms, c.want)
			}
		})
	}
}
