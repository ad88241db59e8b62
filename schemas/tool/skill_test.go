package tool

import (
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/lifecycle"
)

// service.md, Browser skill approval modes: the skill's policy is a floor, disabled skills and those
// of another org node are not offered, and dry_run_only offers no run.
func TestSkillsResolve(t *testing.T) {
	t.Parallel()
	floor := Terms{Risk: lifecycle.RiskMedium, Required: 2, Role: lifecycle.RoleAdmin, SLAMinutes: 60, OnTimeout: agent.TimeoutReject, Policy: PolicyRef{Name: "browser_skill:book.run", Kind: KindSkill}}
	for _, c := range []struct {
		name    string
		edit    func(h *house, k *Skill)
		op      string
		verdict Verdict
		why     string
	}{
		{"its policy forces an approval", func(*house, *Skill) {}, "run", Gated, "the skill's policy"},
		{"but not of a dry run", func(*house, *Skill) {}, "dry_run", Callable, ""},
		{"reads are free", func(_ *house, k *Skill) { k.Terms = nil }, "run", Callable, ""},
		{"disabled", func(_ *house, k *Skill) { k.Enabled = false }, "run", Refused, "is disabled"},
		{"on the agent's own org node", func(_ *house, k *Skill) { k.Node = ptr(nodeID(1)) }, "dry_run", Callable, ""},
		{"on an org node above it", func(_ *house, k *Skill) { k.Node = ptr(nodeID(3)) }, "dry_run", Callable, ""},
		{"on another org node", func(_ *house, k *Skill) { k.Node = ptr(nodeID(9)) }, "dry_run", Refused, "on another org node"},
		{"dry_run_only", func(_ *house, k *Skill) { k.DryRunOnly, k.Terms = true, nil }, "run", Refused, "offers no run"},
		{"dry_run_only offers dry_run", func(_ *house, k *Skill) { k.DryRunOnly, k.Terms = true, nil }, "dry_run", Callable, ""},
		{"the manifest leaves it out", func(h *house, _ *Skill) {
			h.Manifest.Tools.BrowserSkills[0].Allow = []string{"dry_run"}
		}, "run", Refused, "does not allow"},
		{"denied", func(h *house, _ *Skill) { h.grant(2, "*", ofSkill(1), denies) }, "run", Refused, "denied"},
	} {
		h := newHouse()
		h.grant(1, "browser_skill:book.*", ofSkill(1))
		h.Manifest.Tools.BrowserSkills = []agent.BrowserSkillUse{{Skill: "book", Allow: []string{"run", "dry_run"}}}
		terms := floor
		k := Skill{ID: skillID(1), Slug: "book", Enabled: true, Terms: &terms}
		c.edit(h, &k)
		h.Access.Skills = []Skill{k}
		got := h.resolve(skill(1, "book", c.op))
		if got.Verdict != c.verdict || !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: %s: %s", c.name, got.Verdict, got.Why)
		}
		e := Explain(&h.Access, &h.Manifest, h.Options, []Spec{skill(1, "book", c.op)}, "browser_skill:book."+c.op)
		decided := slices.ContainsFunc(e.Steps, func(s ExplainedStep) bool { return s.Decided })
		if e.Verdict != c.verdict || e.Why != got.Why || !decided {
			t.Errorf("%s: explained as %s: %s %+v", c.name, e.Verdict, e.Why, e.Steps)
		}
	}
}

// A tenant policy and a manifest can only tighten the skill's policy.
func TestPoliciesTightenASkill(t *testing.T) {
	t.Parallel()
	h := newHouse()
	h.grant(1, "browser_skill:book.run", ofSkill(1))
	h.Manifest.Tools.BrowserSkills = []agent.BrowserSkillUse{{Skill: "book", Allow: []string{"run", "dry_run"}}}
	h.Access.Skills = []Skill{{ID: skillID(1), Slug: "book", Enabled: true, Terms: &Terms{Risk: lifecycle.RiskCritical, Required: 1, Role: lifecycle.RoleOwner, SLAMinutes: 2000, OnTimeout: agent.TimeoutReject, Policy: PolicyRef{Kind: KindSkill}}}}
	h.policy(1, "browser_skill:book.run") // high, two admins within an hour
	got := h.resolve(skill(1, "book", "run"))
	if got.Verdict != Gated || got.Terms.Risk != lifecycle.RiskCritical || got.Terms.Role != lifecycle.RoleOwner || got.Terms.Required != 2 || got.Terms.SLAMinutes != 60 || got.Terms.Policy.Kind != KindPolicy {
		t.Errorf("%+v", got.Terms)
	}
	if got := h.Access.Skills[0].Terms; got.Required != 1 {
		t.Error("the skill's own terms were changed")
	}
	// A run of such an agent could meet an approval, and a workflow's tool node may call the skill.
	work := MaxWork
	h.Access.Policies = nil
	if why := Gate(&h.Access, &h.Manifest, &work); why != "the skill's policy" {
		t.Errorf("gate: %q", why)
	}
	missing := Missing(&h.Access, ptr(MaxWork))
	for name, want := range map[string]string{"browser_skill:book.run": "", "browser_skill:book.dry_run": "no grant allows", "browser_skill:none.run": "there is no browser skill"} {
		if got := missing(name); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// open-parts.md, Publishing: unknown skills and tools that no grant allows are warnings.
func TestSkillWarnings(t *testing.T) {
	t.Parallel()
	h := newHouse()
	h.grant(1, "browser_skill:book.run", ofSkill(1))
	h.Access.Skills = []Skill{{ID: skillID(1), Slug: "book", Enabled: false}, {ID: skillID(2), Slug: "try", Enabled: true, DryRunOnly: true}}
	h.grant(2, "browser_skill:try.*", ofSkill(2))
	h.Manifest.Tools.BrowserSkills = []agent.BrowserSkillUse{{Skill: "gone"}, {Skill: "book", Allow: []string{"run", "dry_run"}}, {Skill: "poor", Allow: []string{"run"}}, {Skill: "try", Allow: []string{"run", "dry_run"}}}
	got := SkillWarnings(&h.Access, &h.Manifest, func(slug string) bool { return slug != "gone" }, ptr(MaxWork))
	want := []string{
		`tools.browser_skills[0].skill: there is no browser skill "gone"`,
		`tools.browser_skills[1].allow[1]: no grant allows "browser_skill:book.dry_run"`,
		`tools.browser_skills[2].allow[0]: no grant allows "browser_skill:poor.run"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
