package tool

import (
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
)

var refund = mcp("shop", "orders.refund")

// service.md, Tool grant, and open-parts.md, Tools and Questions settled, Grants:
// the sentences, one row each.
func TestWhatIsCallable(t *testing.T) {
	for _, c := range []struct {
		says string
		with func(*house)
		spec Spec
		want Verdict
		why  string
	}{
		{"nothing is callable until granted", func(h *house) {}, refund, Refused, "no grant allows"},
		{"a grant makes it callable", func(h *house) { h.grant(1, "orders.refund") }, refund, Callable, "to the whole tenant"},
		{"a grant of another server does not", func(h *house) { h.grant(1, "*", ofServer(2)) }, refund, Refused, "no grant allows"},
		{"a grant of another agent does not", func(h *house) { h.grant(1, "*", toAgent(2)) }, refund, Refused, "no grant allows"},
		{"a grant of the agent's org node does", func(h *house) { h.grant(1, "*", toNode(1)) }, refund, Callable, "to an org node of the agent"},
		{"a grant of an ancestor does", func(h *house) { h.grant(1, "*", toNode(3)) }, refund, Callable, ""},
		{"a grant of a node elsewhere does not", func(h *house) { h.grant(1, "*", toNode(9)) }, refund, Refused, "no grant allows"},
		{"a grant of another source does not", func(h *house) { h.grant(1, "*", ofSource(Builtin)) }, refund, Refused, "no grant allows"},
		{"what is no pattern grants nothing", func(h *house) { h.grant(1, "orders*") }, refund, Refused, "no grant allows"},
		{"deny beats allow", func(h *house) { h.grant(1, "*"); h.grant(2, "*", denies) }, refund, Refused, "denied by the grant"},
		{"a deny at any scope beats the most specific allow", func(h *house) {
			h.grant(1, "shop.orders.refund", toAgent(1))
			h.grant(2, "*", denies)
		}, refund, Refused, "denied by the grant"},
		{"an exact deny of the agent beats a tenant-wide allow", func(h *house) {
			h.grant(1, "*")
			h.grant(2, "orders.refund", denies, toAgent(1))
		}, refund, Refused, "to this agent"},
		{"a deny of another agent denies nothing here", func(h *house) { h.grant(1, "*"); h.grant(2, "*", denies, toAgent(2)) }, refund, Callable, ""},
		{"a deny that does not match denies nothing", func(h *house) { h.grant(1, "*"); h.grant(2, "orders.get", denies) }, refund, Callable, ""},
		{"a manifest can narrow", func(h *house) {
			h.grant(1, "*")
			h.asked().MCP[0].Allow = []string{"orders.get"}
		}, refund, Refused, "does not allow"},
		{"an empty allow is nothing", func(h *house) { h.grant(1, "*"); h.asked().MCP[0].Allow = []string{} }, refund, Refused, "does not allow"},
		{"an allow left out is all", func(h *house) { h.grant(1, "*"); h.asked().MCP[0].Allow = nil }, refund, Callable, ""},
		{"a server the manifest does not name offers nothing", func(h *house) { h.grant(1, "*"); h.asked().MCP = h.asked().MCP[1:] }, refund, Refused, "does not name the tool server"},
		{"a server named twice allows both lists", func(h *house) {
			h.grant(1, "*")
			h.asked().MCP = []agent.MCPTools{{Server: "shop", Allow: []string{"orders.get"}}, {Server: "shop", Allow: []string{"shop.orders.refund"}}}
		}, refund, Callable, ""},
		{"a manifest never widens", func(h *house) { h.grant(1, "orders.get") }, refund, Refused, "no grant allows"},
		{"a manifest may name a server that does not exist", func(h *house) {
			h.grant(1, "*")
			h.asked().MCP = []agent.MCPTools{{Server: "gone", Allow: []string{"*"}}}
		}, mcp("gone", "x"), Refused, "there is no tool server"},
		{"a disabled server is refused", func(h *house) { h.grant(1, "*"); h.Servers[0].Enabled = false }, refund, Refused, "is disabled"},
		{"a builtin tool needs its name and a grant", func(h *house) { h.grant(1, "builtin:kb.search", ofBuiltin) }, builtin("kb.search"), Callable, ""},
		{"the grant may name the bare tool", func(h *house) { h.grant(1, "kb.search", ofBuiltin) }, builtin("kb.search"), Callable, ""},
		{"without a grant it is refused", func(h *house) { h.grant(1, "*") }, builtin("kb.search"), Refused, "no grant allows"},
		{"without its name it is refused", func(h *house) { h.grant(1, "*", ofBuiltin); h.asked().Builtin = nil }, builtin("kb.search"), Refused, "tools.builtin"},
		{"a skill needs manifest and grant", func(h *house) {
			h.grant(1, "*", ofSkill(1))
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book", Allow: []string{"run"}}}
		}, skill(1, "book", "run"), Callable, ""},
		{"an operation the manifest leaves out is refused", func(h *house) {
			h.grant(1, "*", ofSkill(1))
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book", Allow: []string{"dry_run"}}}
		}, skill(1, "book", "run"), Refused, "does not allow"},
		{"a skill's default is both operations", func(h *house) {
			h.grant(1, "*", ofSkill(1))
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book"}}
		}, skill(1, "book", "dry_run"), Callable, ""},
		{"a skill that the manifest does not name", func(h *house) { h.grant(1, "*", ofSkill(1)) }, skill(1, "book", "run"), Refused, "does not name the skill"},
		{"another skill's grant", func(h *house) {
			h.grant(1, "*", ofSkill(2))
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book"}}
		}, skill(1, "book", "run"), Refused, "no grant allows"},
		{"a skill grant without a skill grants nothing", func(h *house) {
			h.grant(1, "*", ofSource(BrowserSkill))
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book"}}
		}, skill(1, "book", "run"), Refused, "no grant allows"},
		{"a skill that is not known", func(h *house) { h.grant(1, "*", ofSource(BrowserSkill)) }, Spec{Source: BrowserSkill, Owner: "book", Name: "run"}, Refused, "there is no browser skill"},
		{"a2a matches nothing until it exists", func(h *house) { h.grant(1, "*", ofSource(A2A)) }, Spec{Source: A2A, Owner: "peer", Name: "ask"}, Refused, "a2a"},
		{"connector matches nothing until it exists", func(h *house) { h.grant(1, "*", ofSource(Connector)) }, Spec{Source: Connector, Owner: "drive", Name: "list"}, Refused, "connector"},
		{"a handoff needs no grant", func(h *house) { h.Handoffs = []string{"billing"} }, HandoffSpec([]string{"billing"}), Callable, "need no grant"},
		{"a manifest without handoffs offers none", func(h *house) { h.grant(1, "*", ofBuiltin) }, HandoffSpec(nil), Refused, "names nobody"},
		{"a deny denies a handoff, too", func(h *house) {
			h.Handoffs = []string{"billing"}
			h.grant(1, "builtin:handoff", ofBuiltin, denies)
		}, HandoffSpec([]string{"billing"}), Refused, "denied"},
		{"an empty list of tools means no tools", func(h *house) { h.grant(1, "*"); h.Options.Tools = &[]string{} }, refund, Refused, "leave out"},
		{"and no handoff", func(h *house) { h.Handoffs = []string{"billing"}; h.Options.Tools = &[]string{} }, HandoffSpec(nil), Refused, "leave out"},
		{"tools by bare name", func(h *house) { h.grant(1, "*"); h.Options.Tools = &[]string{"orders.refund"} }, refund, Callable, ""},
		{"tools by qualified name", func(h *house) { h.grant(1, "*"); h.Options.Tools = &[]string{"shop.orders.refund"} }, refund, Callable, ""},
		{"tools by pattern", func(h *house) { h.grant(1, "*"); h.Options.Tools = &[]string{"shop.*"} }, refund, Callable, ""},
		{"tools that name others leave it out", func(h *house) { h.grant(1, "*"); h.Options.Tools = &[]string{"orders.get"} }, refund, Refused, "leave out"},
		{"a known but not granted token narrows to nothing", func(h *house) { h.Options.Tools = &[]string{"orders.refund"} }, refund, Refused, "no grant allows"},
		{"autonomy turns an automatic call into an approval", func(h *house) { h.grant(1, "*"); h.RequireApproval = true }, refund, Gated, "the message asks for an approval"},
		{"autonomy makes nothing callable", func(h *house) { h.RequireApproval = true }, refund, Refused, ""},
		{"a policy gates", func(h *house) { h.grant(1, "*"); h.policy(1, "shop.*") }, refund, Gated, `the policy "policy 1" asks for an approval`},
		{"a policy about another tool does not", func(h *house) { h.grant(1, "*"); h.policy(1, "orders.get") }, refund, Callable, ""},
		{"a policy of another agent does not", func(h *house) {
			h.grant(1, "*")
			h.policy(1, "*", func(p *Policy) { p.Agent = ptr(agentID(2)) })
		}, refund, Callable, ""},
		{"a policy of another source does not", func(h *house) {
			h.grant(1, "*")
			h.policy(1, "*", func(p *Policy) { p.Source = Builtin })
		}, refund, Callable, ""},
		{"a policy matches builtin:handoff", func(h *house) {
			h.Handoffs = []string{"billing"}
			h.policy(1, "builtin:handoff")
		}, HandoffSpec(nil), Gated, ""},
		{"a manifest rule gates", func(h *house) {
			h.grant(1, "*")
			h.HITL.Rules = []agent.Rule{{Tool: "orders.refund"}}
		}, refund, Gated, `the manifest's rule "orders.refund" asks for an approval`},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := newHouse()
			c.with(h)
			if got := h.resolve(c.spec); got.Verdict != c.want || !strings.Contains(got.Why, c.why) {
				t.Errorf("%s: %s, want %s (%s)", got.Verdict, got.Why, c.want, c.why)
			}
		})
	}
}

// open-parts.md, Questions settled, Grants: among matching allows the most
// specific one wins. In each row grant 1 does.
func TestMostSpecificAllowWins(t *testing.T) {
	for _, c := range []struct {
		says string
		with func(*house)
	}{
		{"the agent before its org node", func(h *house) { h.grant(1, "*", toAgent(1)); h.grant(2, "orders.refund", toNode(1)) }},
		{"the nearest org node before a farther one", func(h *house) { h.grant(1, "*", toNode(1)); h.grant(2, "orders.refund", toNode(2)) }},
		{"an org node before the tenant", func(h *house) { h.grant(1, "*", toNode(3)); h.grant(2, "orders.refund") }},
		{"source-pinned before not", func(h *house) { h.grant(1, "*"); h.grant(2, "orders.refund", ofAnyServer) }},
		{"scope before source", func(h *house) { h.grant(1, "*", ofAnyServer, toAgent(1)); h.grant(2, "*", toNode(1)) }},
		{"exact before a longer prefix", func(h *house) { h.grant(1, "orders.refund"); h.grant(2, "shop.orders.*") }},
		{"a longer prefix before a shorter", func(h *house) { h.grant(1, "shop.orders.*"); h.grant(2, "shop.*") }},
		{"a shorter prefix before *", func(h *house) { h.grant(1, "shop.*"); h.grant(2, "*") }},
		{"the newer at a tie", func(h *house) { h.grant(1, "orders.refund", made(2)); h.grant(2, "shop.orders.refund", made(1)) }},
		{"specificity before age", func(h *house) { h.grant(1, "orders.*", made(1)); h.grant(2, "*", made(2)) }},
		{"the later id at the same time", func(h *house) {
			h.grant(0, "orders.refund")
			h.grant(1, "orders.refund")
		}},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := newHouse()
			c.with(h)
			for range 2 {
				if got := h.resolve(refund); got.Grant == nil || got.Grant.ID != grantID(1) {
					t.Errorf("%s", got.Why)
				}
				slices.Reverse(h.Grants)
			}
		})
	}
}

// open-parts.md, Details by area, Tools: which connection a call uses.
func TestConnections(t *testing.T) {
	conn := func(h *house, n int, edit ...func(*Connection)) {
		c := Connection{ID: connID(n), Server: serverID(1), CreatedAt: day(1)}
		for _, e := range edit {
			e(&c)
		}
		h.Connections = append(h.Connections, c)
	}
	on := func(n int) func(*Connection) { return func(c *Connection) { c.Node = ptr(nodeID(n)) } }
	for _, c := range []struct {
		says string
		with func(*house)
		want int // 0: none, -1: NoConnection
	}{
		{"the tenant-wide one", func(h *house) { h.grant(1, "*") }, 1},
		{"the grant pins the credential", func(h *house) { conn(h, 2); h.grant(1, "*", pins(1)) }, 1},
		{"a pin may lead to another org node", func(h *house) { conn(h, 2, on(9)); h.grant(1, "*", pins(2)) }, 2},
		{"the pin of a grant that lost decides nothing", func(h *house) {
			conn(h, 2)
			h.grant(1, "*", pins(2))
			h.grant(2, "*", toAgent(1), pins(1))
		}, 1},
		{"the nearest org node's before the tenant's", func(h *house) { conn(h, 2, on(3)); h.grant(1, "*") }, 2},
		{"the nearest one's before a farther one's", func(h *house) {
			conn(h, 2, on(1))
			conn(h, 3, on(2), func(c *Connection) { c.CreatedAt = day(5) })
			h.grant(1, "*")
		}, 2},
		{"a node's elsewhere does not fit", func(h *house) { conn(h, 2, on(9)); h.grant(1, "*") }, 1},
		{"the newest at a tie", func(h *house) { conn(h, 2, func(c *Connection) { c.CreatedAt = day(2) }); h.grant(1, "*") }, 2},
		{"the later id at the same time", func(h *house) { conn(h, 2); h.grant(1, "*") }, 2},
		{"none while auth_kind is not none", func(h *house) { h.Connections = nil; h.grant(1, "*") }, -1},
		{"another server's is none", func(h *house) { h.Connections[0].Server = serverID(2); h.grant(1, "*") }, -1},
		{"a pinned one of another server is never shown", func(h *house) {
			conn(h, 2, func(c *Connection) { c.Server = serverID(2) })
			h.grant(1, "*", pins(2))
		}, -1},
		{"a pinned one that is gone is not replaced", func(h *house) { h.grant(1, "*", pins(7)) }, -1},
		{"auth_kind none needs none", func(h *house) { h.Servers[0].AuthKind = AuthNone; h.grant(1, "*", pins(1)) }, 0},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := newHouse()
			c.with(h)
			got := h.resolve(refund)
			if got.Verdict != Callable || got.NoConnection != (c.want < 0) {
				t.Fatalf("%+v", got)
			}
			if got.Grant.Connection == nil {
				if near := Usable(&h.Access, &h.Servers[0], nil); (near == nil) != got.NoConnection || near != nil && *near != *got.Connection {
					t.Errorf("the nearest is %v, used is %v", near, got.Connection)
				}
			}
			if c.want <= 0 != (got.Connection == nil) || c.want > 0 && *got.Connection != connID(c.want) {
				t.Errorf("connection %v, want %d", got.Connection, c.want)
			}
		})
	}
}

func TestOffersLackingAConnectionAreOffered(t *testing.T) {
	h := newHouse()
	h.Connections = nil
	h.grant(1, "*")
	h.grant(2, "*", ofServer(2))
	h.grant(3, "kb.search", ofBuiltin)
	h.Handoffs = []string{"billing"}
	h.policy(1, "open.*")
	specs := []Spec{refund, mcp("open", "z"), mcp("open", "a"), mcp("gone", "a"), builtin("kb.search"), HandoffSpec(h.Handoffs), {Source: MCP, Owner: "open", Name: "a", Description: "again"}}
	var got []string
	for _, o := range Offers(&h.Access, &h.Manifest, h.Options, specs) {
		says := o.Qualified() + " " + string(o.Verdict)
		if o.NoConnection {
			says += " " + ErrNoConnection
		}
		got = append(got, says)
		if o.Description == "again" {
			t.Errorf("the second tool of a name is offered")
		}
	}
	want := []string{"builtin:handoff allow", "builtin:kb.search allow", "open.a gate", "open.z gate", "shop.orders.refund allow NO_CONNECTION"}
	if !slices.Equal(got, want) {
		t.Errorf("offered %q, want %q", got, want)
	}
	if got := Offers(&h.Access, &h.Manifest, h.Options, nil); got == nil || len(got) != 0 {
		t.Errorf("offers of nothing: %v", got)
	}
}

func TestFind(t *testing.T) {
	offers := []Offer{{Spec: mcp("shop", "orders.refund")}, {Spec: mcp("shop", "orders.get")}, {Spec: mcp("open", "orders.get")},
		{Spec: mcp("orders", "get")}, {Spec: builtin("handoff")}, {Spec: mcp("evil", "builtin:handoff")}, {Spec: mcp("evil", "builtin:kb.search")}}
	for _, c := range []struct{ name, want string }{
		{"shop.orders.refund", "shop.orders.refund"},
		{"orders.refund", "shop.orders.refund"},
		{"open.orders.get", "open.orders.get"},
		{"orders.get", "orders.get"}, // a qualified name goes before two bare ones
		{"handoff", "builtin:handoff"},
		{"builtin:handoff", "builtin:handoff"},
		{"builtin:kb.search", ""}, // a tool's pose as another source's
		{"get", "orders.get"},
		{"nothing", ""},
		{"", ""},
		{"Orders.refund", ""},
	} {
		o, ok := Find(offers, c.name)
		if ok != (c.want != "") || ok && o.Qualified() != c.want {
			t.Errorf("Find(%q) = %v, want %q", c.name, o, c.want)
		}
	}
	if o, ok := Exact(offers, "orders.get"); !ok || o.Owner != "orders" {
		t.Errorf("Exact: %+v", o)
	}
	// The tool orders.get is gone: the call is not for the shop's tool of that name.
	if o, ok := Exact(offers[:2], "orders.get"); ok {
		t.Errorf("Exact: %+v", o)
	}
	if _, ok := Find(offers[1:3], "orders.get"); ok {
		t.Error("two tools of a bare name are told apart")
	}
	if _, ok := Find([]Offer{offers[1], offers[1], offers[1]}, "orders.get"); ok {
		t.Error("three are")
	}
}

func TestHandoffSpec(t *testing.T) {
	s := HandoffSpec([]string{"support", "billing", "support"})
	if s.Qualified() != "builtin:handoff" || s.Source != Builtin {
		t.Errorf("%+v", s)
	}
	for args, ok := range map[string]bool{
		`{"to":"billing"}`:                    true,
		`{"to":"support","note":"be kind"}`:   true,
		`{"to":"nobody"}`:                     false,
		`{"note":"x"}`:                        false,
		`{"to":"billing","note":1}`:           false,
		`{"to":"billing","tools":["refund"]}`: false,
	} {
		if err := Check(t.Context(), s.Schema, schema(args)); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
	if err := Check(t.Context(), HandoffSpec(nil).Schema, schema(`{"to":"x"}`)); err == nil {
		t.Error("nobody can be handed to")
	}
}

func BenchmarkResolve(b *testing.B) {
	a, m, specs := benchHouse()
	b.Run("offers of 500 tools under 200 grants", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Offers(a, m, Options{}, specs)
		}
	})
	b.Run("one tool", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Resolve(a, m, Options{}, specs[250])
		}
	})
	b.Run("explain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Explain(a, m, Options{}, specs, "s5.orders.op7")
		}
	})
}

// benchHouse is 10 servers of 50 tools, 200 grants, 20 connections, 40 policies.
func benchHouse() (*Access, *agent.Manifest, []Spec) {
	h := newHouse()
	a := &Access{Agent: agentID(1), Chain: h.Chain}
	m := &agent.Manifest{}
	var specs []Spec
	for s := range 10 {
		slug := "s" + string(rune('0'+s))
		a.Servers = append(a.Servers, Server{ID: serverID(s), Slug: slug, AuthKind: AuthBearer, Enabled: true})
		m.Tools.MCP = append(m.Tools.MCP, agent.MCPTools{Server: slug, Allow: []string{"orders.*", "users.*"}})
		a.Connections = append(a.Connections, Connection{ID: connID(s), Server: serverID(s)}, Connection{ID: connID(100 + s), Server: serverID(s), Node: ptr(nodeID(2))})
		for n := range 50 {
			name := []string{"orders.", "users."}[n%2] + "op" + string(rune('0'+n/10)) + string(rune('0'+n%10))
			specs = append(specs, mcp(slug, name))
		}
		for g := range 20 {
			grant := Grant{ID: grantID(s*20 + g), Source: MCP, Server: ptr(serverID(s)), Effect: Allow, CreatedAt: day(g)}
			grant.Pattern = []string{"*", "orders.*", slug + ".users.*", "orders.op07", "users.op11"}[g%5]
			switch g % 4 {
			case 0:
				grant.Agent = ptr(agentID(1 + g%2))
			case 1:
				grant.Node = ptr(nodeID(1 + g%4))
			}
			if g == 19 {
				grant.Pattern, grant.Effect = "orders.op44", Deny
			}
			a.Grants = append(a.Grants, grant)
		}
		for p := range 4 {
			a.Policies = append(a.Policies, Policy{ID: policyID(s*4 + p), Name: "p", Pattern: slug + []string{".orders.*", ".users.op11", ".orders.op22", ".nothing"}[p], Risk: "high", Required: 1, Role: "admin", SLAMinutes: 60})
		}
	}
	return a, m, specs
}
