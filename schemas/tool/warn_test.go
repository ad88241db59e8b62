package tool

import (
	"strings"
	"testing"

	"agentsvc/schemas/agent"
)

func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		allow  []string // of the server orders; nil: all
		grants []Grant  // the server's, unless one says otherwise
		want   string   // of one warning; empty: none
	}{
		"all, and nothing is granted":            {nil, nil, `tools.mcp[0]: no grant allows a tool of the tool server "orders"`},
		"all, and one is granted":                {nil, []Grant{{Pattern: "get", Effect: Allow}}, ""},
		"all, and everything is denied":          {nil, []Grant{{Pattern: "*", Effect: Allow}, {Pattern: "*", Effect: Deny}}, "no grant allows"},
		"all, and one is denied":                 {nil, []Grant{{Pattern: "*", Effect: Allow}, {Pattern: "get", Effect: Deny}}, ""},
		"nothing is asked for":                   {[]string{}, nil, ""},
		"a granted one":                          {[]string{"get"}, []Grant{{Pattern: "get", Effect: Allow}}, ""},
		"a granted one, qualified":               {[]string{"orders.get"}, []Grant{{Pattern: "get", Effect: Allow}}, ""},
		"the grant qualified":                    {[]string{"get"}, []Grant{{Pattern: "orders.get", Effect: Allow}}, ""},
		"one whose name begins alike":            {[]string{"get"}, []Grant{{Pattern: "get_all", Effect: Allow}}, `tools.mcp[0].allow[0]: no grant allows "get" of the tool server "orders"`},
		"one whose name begins alike, in a list": {[]string{"get_all"}, []Grant{{Pattern: "get", Effect: Allow}}, "no grant allows"},
		"a denied one":                           {[]string{"get"}, []Grant{{Pattern: "*", Effect: Allow}, {Pattern: "get", Effect: Deny}}, `no grant allows "get"`},
		"another agent's grant":                  {[]string{"get"}, []Grant{{Pattern: "*", Effect: Allow, Agent: ptr(agentID(9))}}, `no grant allows "get"`},
		"another server's grant":                 {[]string{"get"}, []Grant{{Pattern: "*", Effect: Allow, Server: ptr(serverID(9))}}, `no grant allows "get"`},
		"a prefix that a grant is within":        {[]string{"files.*"}, []Grant{{Pattern: "files.read", Effect: Allow}}, ""},
		"a prefix within a grant's":              {[]string{"files.new.*"}, []Grant{{Pattern: "files.*", Effect: Allow}}, ""},
		"a prefix beside a grant's":              {[]string{"files.*"}, []Grant{{Pattern: "mails.*", Effect: Allow}}, `no grant allows "files.*"`},
		"the whole server by its qualified name": {[]string{"orders.*"}, []Grant{{Pattern: "get", Effect: Allow}}, ""},
		"a prefix that is denied":                {[]string{"files.*"}, []Grant{{Pattern: "*", Effect: Allow}, {Pattern: "files.*", Effect: Deny}}, "no grant allows"},
		"a prefix of which one is denied":        {[]string{"files.*"}, []Grant{{Pattern: "*", Effect: Allow}, {Pattern: "files.delete", Effect: Deny}}, ""},
	} {
		a := &Access{Agent: agentID(1), Servers: []Server{{ID: serverID(1), Slug: "orders", AuthKind: AuthNone, Enabled: false}}}
		for i, g := range c.grants {
			g.ID, g.Source = grantID(i+1), MCP
			if g.Server == nil {
				g.Server = ptr(serverID(1))
			}
			a.Grants = append(a.Grants, g)
		}
		m := &agent.Manifest{Tools: agent.Tools{MCP: []agent.MCPTools{{Server: "orders", Allow: c.allow}}}}
		got := Warnings(a, m, ptr(MaxWork))
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	got := Warnings(&Access{}, &agent.Manifest{Tools: agent.Tools{Builtin: []string{"kb.search"}, MCP: []agent.MCPTools{{Server: "none", Allow: []string{"x"}}}}}, ptr(MaxWork))
	if len(got) != 2 || got[0] != `tools.mcp[0].server: there is no tool server "none"` || got[1] != `tools.builtin[0]: no grant allows "builtin:kb.search"` {
		t.Errorf("%q", got)
	}
	builtin := &Access{Grants: []Grant{{ID: grantID(1), Source: Builtin, Pattern: "kb.search", Effect: Allow}}}
	if got := Warnings(builtin, &agent.Manifest{Tools: agent.Tools{Builtin: []string{"kb.search"}}}, ptr(MaxWork)); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
