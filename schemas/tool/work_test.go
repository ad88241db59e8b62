package tool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
)

// crowd is an agent with n grants and n policies of which none matches early, and the tools of as
// many servers.
func crowd(n, servers, tools int) (*Access, *agent.Manifest, []Spec) {
	a := &Access{Agent: agentID(1), Chain: []id.NodeID{nodeID(1)}}
	m := &agent.Manifest{}
	var specs []Spec
	for s := range servers {
		slug := fmt.Sprintf("s%02d", s)
		a.Servers = append(a.Servers, Server{ID: serverID(s + 1), Slug: slug, AuthKind: AuthNone, Enabled: true})
		m.Tools.MCP = append(m.Tools.MCP, agent.MCPTools{Server: slug, Allow: []string{"*"}})
		for i := range tools {
			specs = append(specs, mcp(slug, fmt.Sprintf("t%03d", i)))
		}
	}
	for i := range n {
		a.Grants = append(a.Grants, Grant{ID: grantID(i + 1), Source: MCP, Server: ptr(serverID(i%servers + 1)), Pattern: fmt.Sprintf("t%03d", i), Effect: Allow})
		a.Policies = append(a.Policies, Policy{ID: policyID(i + 1), Name: "p", Pattern: fmt.Sprintf("t%03d", i+3)})
	}
	return a, m, specs
}

// What decides on one tool is what decides on many, and prepares grants and policies once for all.
func TestVerdictsPrepareOnce(t *testing.T) {
	a, m, specs := crowd(200, 4, 25)
	got, err := Verdicts(t.Context(), a, m, specs)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Verdict]int{}
	for i, s := range specs {
		if want := Resolve(a, m, Options{}, s).Verdict; got[i] != want {
			t.Errorf("%s: %s, want %s", s.Qualified(), got[i], want)
		}
		seen[got[i]]++
	}
	if len(seen) != 3 {
		t.Errorf("the check is void: %v", seen)
	}
	allocations := func(specs []Spec) int {
		return int(testing.AllocsPerRun(5, func() {
			if _, err := Verdicts(t.Context(), a, m, specs); err != nil {
				t.Error(err)
			}
		}))
	}
	// A policy takes an allocation or more to prepare: 99 tools more take far fewer than 99 times 200.
	if one, all := allocations(specs[:1]), allocations(specs); all > one+99*20 {
		t.Errorf("%d allocations for one tool, %d for 100", one, all)
	}
}

// A tool's names are made once for all tokens.
func TestTokensShareNames(t *testing.T) {
	list := make([]string, 100)
	for i := range list {
		list[i] = fmt.Sprintf("none.%d", i)
	}
	tokens, spec, known := ParseTokens(list), mcp("shop", strings.Repeat("read", 20)), make([]bool, len(list))
	if n := testing.AllocsPerRun(5, func() { tokens.Mark(&spec, known); tokens.Match(&spec) }); n > 4 || slices.Contains(known, true) {
		t.Errorf("%v allocations for 100 tokens", n)
	}
}

// Warnings take no more work than they are given.
func TestWarningsAreBounded(t *testing.T) {
	t.Parallel()
	a, m, _ := crowd(100, 20, 0)
	for i := range m.Tools.MCP {
		m.Tools.MCP[i].Server, m.Tools.MCP[i].Allow = "s00", nil
		for j := range 20 {
			m.Tools.MCP[i].Allow = append(m.Tools.MCP[i].Allow, fmt.Sprintf("no%d.%d", i, j))
		}
		m.Tools.BrowserSkills = append(m.Tools.BrowserSkills, agent.BrowserSkillUse{Skill: fmt.Sprintf("k%d", i), Allow: []string{"run"}})
		a.Skills = append(a.Skills, Skill{ID: skillID(i + 1), Slug: fmt.Sprintf("k%d", i)})
	}
	m.HITL.Rules = []agent.Rule{{Tool: "none"}}
	const plenty = 1 << 40
	for _, c := range []struct {
		what string
		some int // not enough
		take func(work *int)
	}{
		{"a manifest", 20_000, func(work *int) { Warnings(a, m, work) }},
		{"skills", 2_000, func(work *int) { SkillWarnings(a, m, func(string) bool { return true }, work) }},
		{"an agent of a workflow", 20_000, func(work *int) { Gate(a, m, work) }},
		{"a workflow", 20_000, func(work *int) {
			missing := Missing(a, work)
			n := 0
			for i := range 100 {
				if missing(fmt.Sprintf("none%d", i)) != "" {
					n++
				}
			}
			if (n == 100) == (*work < 0) {
				t.Errorf("a workflow: %d of 100 tools are missing, %d is left", n, *work)
			}
		}},
	} {
		for _, work := range []int{0, c.some, plenty} {
			left := work
			c.take(&left)
			if (left < 0) != (work < plenty) || left < -5_000 {
				t.Errorf("%s: %d is left of %d", c.what, left, work)
			}
		}
	}
}

func BenchmarkVerdicts(b *testing.B) {
	a, m, specs := crowd(1_000, 10, 10)
	for b.Loop() {
		if _, err := Verdicts(b.Context(), a, m, specs); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTokens(b *testing.B) {
	list := make([]string, 100)
	for i := range list {
		list[i] = fmt.Sprintf("shop.none.%d", i)
	}
	_, _, specs := crowd(1, 10, 100)
	for b.Loop() {
		tokens, known := ParseTokens(list), make([]bool, len(list))
		for i := range specs {
			tokens.Mark(&specs[i], known)
		}
	}
}

func BenchmarkWarnings(b *testing.B) {
	a, m, _ := crowd(1_000, 100, 0)
	for i := range m.Tools.MCP {
		for j := range 100 {
			m.Tools.MCP[i].Allow = append(m.Tools.MCP[i].Allow, fmt.Sprintf("no%d.%d", i, j))
		}
	}
	for b.Loop() {
		work := MaxWork
		Warnings(a, m, &work)
	}
}
