package tool

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
)

// open-parts.md, Workflows: a tool node uses the grants of the tenant and of its org nodes.
func TestMissing(t *testing.T) {
	ofAgent := Grant{Source: MCP, Server: ptr(serverID(1)), Pattern: "*", Effect: Allow, Agent: ptr(agentID(1))}
	const noSearch = "a tool node cannot call kb.search: use an agent node"
	for name, c := range map[string]struct {
		grants []Grant
		tool   string
		want   string
	}{
		"nothing is granted":                  {nil, "shop.refund", `no grant allows "shop.refund"`},
		"a bare name that nothing grants":     {nil, "refund", `no grant allows "refund"`},
		"a grant to the tenant":               {[]Grant{{Pattern: "refund", Effect: Allow}}, "shop.refund", ""},
		"and by the bare name":                {[]Grant{{Pattern: "refund", Effect: Allow}}, "refund", ""},
		"a grant to a node above":             {[]Grant{{Pattern: "shop.*", Effect: Allow, Node: ptr(nodeID(3))}}, "shop.refund", ""},
		"a grant to a node elsewhere":         {[]Grant{{Pattern: "shop.*", Effect: Allow, Node: ptr(nodeID(9))}}, "shop.refund", `no grant allows "shop.refund"`},
		"a grant to an agent":                 {[]Grant{ofAgent}, "shop.refund", `no grant allows "shop.refund"`},
		"a deny":                              {[]Grant{{Pattern: "*", Effect: Allow}, {Pattern: "refund", Effect: Deny}}, "shop.refund", `no grant allows "shop.refund"`},
		"a deny of another tool":              {[]Grant{{Pattern: "*", Effect: Allow}, {Pattern: "other", Effect: Deny}}, "shop.refund", ""},
		"a server that is disabled":           {[]Grant{{Server: ptr(serverID(2)), Pattern: "*", Effect: Allow}}, "open.door", ""},
		"a grant of another server":           {[]Grant{{Server: ptr(serverID(2)), Pattern: "*", Effect: Allow}}, "shop.refund", `no grant allows "shop.refund"`},
		"a server that does not exist":        {nil, "gone.refund", `there is no tool server "gone"`},
		"which may be a bare name with a dot": {[]Grant{{Pattern: "gone.refund", Effect: Allow}}, "gone.refund", ""},
		"kb.search, which has no bases":       {[]Grant{{Source: Builtin, Pattern: "kb.search", Effect: Allow}}, "builtin:kb.search", noSearch},
		"and by its bare name":                {[]Grant{{Source: Builtin, Pattern: "kb.search", Effect: Allow}}, "kb.search", noSearch},
		"a tool of a server with this name":   {[]Grant{{Pattern: "kb.search", Effect: Allow}}, "kb.search", ""},
		"a builtin tool that does not exist":  {[]Grant{{Source: Builtin, Pattern: "*", Effect: Allow}}, "builtin:x", `no grant allows "builtin:x"`},
		"a handoff":                           {[]Grant{{Source: Builtin, Pattern: "*", Effect: Allow}}, "builtin:handoff", `no grant allows "builtin:handoff"`},
		"a source without tools":              {nil, "a2a:x.y", `there are no tools of the source "a2a" yet`},
		"what is no tool":                     {[]Grant{{Pattern: "*", Effect: Allow}}, "workflow:gate", `no grant allows "workflow:gate"`},
	} {
		h := newHouse()
		h.Agent = agentID(0)
		h.Servers[1].Enabled = false
		for i, g := range c.grants {
			g.ID = grantID(i + 1)
			if g.Source == "" {
				g.Source = MCP
			}
			if g.Source == MCP && g.Server == nil {
				g.Server = ptr(serverID(1))
			}
			h.Grants = append(h.Grants, g)
		}
		if got := Missing(&h.Access, ptr(MaxWork))(c.tool); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Gate finds an approval exactly if some tool, of any name, would need one.
func TestGateAgreesWithEveryName(t *testing.T) {
	letters := []string{"a", "b", "shop.", "shop.a", "a.", "a.b", "a.a.", "shop.a.", "b.a"}
	var names []string // of tools, and one that no pattern names
	for _, x := range []string{"", "a", "b", "a.", "a.b", "a.a.", "b.a", "shop.", "shop.a", "shop.a.", "b."} {
		for _, y := range []string{"", "a", "b", "zz"} {
			if x+y != "" {
				names = append(names, x+y)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	pick := func() string {
		switch text := letters[r.IntN(len(letters))]; {
		case r.IntN(6) == 0:
			return "*"
		case strings.HasSuffix(text, "."):
			return text + "*"
		default:
			return text
		}
	}
	found := 0
	for range 4000 {
		h := newHouse()
		h.Manifest.Tools = agent.Tools{MCP: []agent.MCPTools{{Server: "shop"}}}
		for range r.IntN(3) {
			h.Manifest.Tools.MCP[0].Allow = append(h.Manifest.Tools.MCP[0].Allow, pick())
		}
		for i := range 1 + r.IntN(4) {
			h.grant(i+1, pick(), func(g *Grant) {
				if r.IntN(3) == 0 {
					g.Effect = Deny
				}
			})
		}
		for i := range r.IntN(3) {
			h.Policies = append(h.Policies, Policy{ID: policyID(i + 1), Name: fmt.Sprint("p", i), Pattern: pick()})
		}
		if r.IntN(2) == 0 {
			h.Manifest.HITL.Rules = []agent.Rule{{Tool: pick()}}
		}
		want := ""
		for _, name := range names {
			if Resolve(&h.Access, &h.Manifest, Options{}, mcp("shop", name)).Verdict == Gated {
				want = name
				break
			}
		}
		work := MaxWork
		if got := Gate(&h.Access, &h.Manifest, &work); (got != "") != (want != "") {
			t.Fatalf("%q, but %q is gated\n%+v\n%+v\n%+v", got, want, h.Grants, h.Policies, h.Manifest)
		}
		if want != "" {
			found++
		}
	}
	if found < 500 || found > 3500 {
		t.Errorf("%d of 4000 have a gate: the check is void", found)
	}
}

func TestGate(t *testing.T) {
	policy := func(pattern string) []Policy { return []Policy{{ID: policyID(1), Name: "P", Pattern: pattern}} }
	h := newHouse()
	for name, c := range map[string]struct {
		manifest agent.Manifest
		access   Access
		want     string
	}{
		"a builtin tool": {agent.Manifest{Tools: agent.Tools{Builtin: []string{"kb.search"}}},
			Access{Grants: []Grant{{ID: grantID(1), Source: Builtin, Pattern: "*", Effect: Allow}}, Policies: policy("builtin:*")}, `the policy "P"`},
		"a builtin tool without a grant":   {agent.Manifest{Tools: agent.Tools{Builtin: []string{"kb.search"}}}, Access{Policies: policy("*")}, ""},
		"a handoff":                        {agent.Manifest{Handoffs: []string{"x"}}, Access{Policies: policy("builtin:handoff")}, `the policy "P"`},
		"no handoff":                       {agent.Manifest{}, Access{Policies: policy("*")}, ""},
		"a policy of another agent":        {agent.Manifest{Handoffs: []string{"x"}}, Access{Agent: agentID(1), Policies: []Policy{{ID: policyID(1), Pattern: "*", Agent: ptr(agentID(2))}}}, ""},
		"a policy of another source":       {agent.Manifest{Handoffs: []string{"x"}}, Access{Policies: []Policy{{ID: policyID(1), Pattern: "*", Source: MCP}}}, ""},
		"a server that the tenant has not": {agent.Manifest{Tools: agent.Tools{MCP: []agent.MCPTools{{Server: "gone"}}}}, Access{Policies: policy("*")}, ""},
		"a server that is disabled": {agent.Manifest{Tools: agent.Tools{MCP: []agent.MCPTools{{Server: "shop"}}}},
			Access{Servers: []Server{{ID: serverID(1), Slug: "shop"}}, Grants: []Grant{{ID: grantID(1), Source: MCP, Pattern: "*", Effect: Allow}}, Policies: policy("shop.*")}, `the policy "P"`},
	} {
		work := MaxWork
		if got := Gate(&c.access, &c.manifest, &work); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// Without work nothing is looked at.
	h.grant(1, "*")
	h.Policies = policy("*")
	work := 0
	if got := Gate(&h.Access, &h.Manifest, &work); got != "" {
		t.Errorf("%q", got)
	}
}
