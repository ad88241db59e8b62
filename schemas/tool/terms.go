package tool

import (
	"slices"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/lifecycle"
)

// Defaults of an approval (open-parts.md, Details by area, Approvals).
const (
	DefaultRisk       = lifecycle.RiskMedium
	DefaultRequired   = 1
	DefaultRole       = lifecycle.RoleAdmin
	DefaultSLAMinutes = 1440
)

// OptionName is the PolicyRef.Name of an approval required by the per-turn option `autonomy`.
const OptionName = "require_approval"

// defaults fills in what a policy or rule omits.
func (t Terms) defaults() Terms {
	if t.Risk == "" {
		t.Risk = DefaultRisk
	}
	if t.Required < 1 {
		t.Required = DefaultRequired
	}
	if t.Role == "" {
		t.Role = DefaultRole
	}
	if t.SLAMinutes <= 0 {
		t.SLAMinutes = DefaultSLAMinutes
	}
	if t.OnTimeout == "" {
		t.OnTimeout = agent.TimeoutReject
	}
	return t
}

func optionTerms() Terms {
	return Terms{Policy: PolicyRef{Name: OptionName, Kind: KindOption}}.defaults()
}

func policyTerms(p *Policy) *Terms {
	ref := p.ID
	t := Terms{
		Risk: p.Risk, Required: p.Required, Role: p.Role, SLAMinutes: p.SLAMinutes, Escalate: p.Escalate,
		Policy: PolicyRef{ID: &ref, Name: p.Name, Kind: KindPolicy},
	}.defaults()
	return &t
}

func ruleTerms(r *agent.Rule) *Terms {
	t := Terms{
		Risk: lifecycle.Risk(r.Risk), Required: r.RequiredApprovals, Role: r.ApproverRole, SLAMinutes: r.SLAMinutes,
		Escalate: r.EscalateToRole, OnTimeout: r.OnTimeout,
		Policy: PolicyRef{Name: r.Tool, Kind: KindManifest},
	}.defaults()
	return &t
}

// shown is the order of precedence for the rule shown as the approval's reason.
var shown = []PolicyKind{KindPolicy, KindManifest, KindSkill, KindOption}

// Stricter returns, for every field of two complete terms, the stricter value: the higher
// risk, more approvals, the higher role, the shorter SLA, the higher role to escalate to,
// cancel_run over reject. As the reason a policy takes precedence over the manifest, a skill
// and an option; within one kind it is a's.
func Stricter(a, b Terms) Terms {
	out := a
	if slices.Index(lifecycle.Risks, b.Risk) > slices.Index(lifecycle.Risks, a.Risk) {
		out.Risk = b.Risk
	}
	out.Required = max(a.Required, b.Required)
	if b.Role.Above(a.Role) {
		out.Role = b.Role
	}
	out.SLAMinutes = min(a.SLAMinutes, b.SLAMinutes)
	if b.Escalate.Above(a.Escalate) {
		out.Escalate = b.Escalate
	}
	if b.OnTimeout == agent.TimeoutCancelRun {
		out.OnTimeout = b.OnTimeout
	}
	if slices.Index(shown, b.Policy.Kind) < slices.Index(shown, a.Policy.Kind) {
		out.Policy = b.Policy
	}
	return out
}
