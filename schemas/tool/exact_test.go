package tool

import (
	"testing"

	"agentsvc/schemas/agent"
)

// A full name means that tool and none whose name begins with it. One row for each place that
// names tools; long is the tool whose name begins with the name of short.
func TestANameIsNoPrefix(t *testing.T) {
	short, long := mcp("shop", "orders.get"), mcp("shop", "orders.get_all")
	dotted := mcp("shop", "orders.get.all")
	all := func(h *house) { h.grant(1, "*"); h.grant(2, "*", ofBuiltin) }
	allow := func(h *house, list ...string) { h.asked().MCP = []agent.MCPTools{{Server: "shop", Allow: list}} }
	tokens := func(h *house, list ...string) { h.Options.Tools = &list }
	for _, c := range []struct {
		says                string
		house               func(*house)
		short               Spec
		wantShort, wantLong Verdict
		long                []Spec
	}{
		{"the manifest's allow", func(h *house) { all(h); allow(h, "orders.get") }, short, Callable, Refused, []Spec{long, dotted}},
		{"the manifest's allow, qualified", func(h *house) { all(h); allow(h, "shop.orders.get") }, short, Callable, Refused, []Spec{long, dotted}},
		{"a grant", func(h *house) { h.grant(1, "orders.get") }, short, Callable, Refused, []Spec{long, dotted}},
		{"a grant, qualified", func(h *house) { h.grant(1, "shop.orders.get") }, short, Callable, Refused, []Spec{long, dotted}},
		{"a deny", func(h *house) { all(h); h.grant(3, "orders.get", denies) }, short, Refused, Callable, []Spec{long, dotted}},
		{"a policy", func(h *house) { all(h); h.policy(1, "orders.get") }, short, Gated, Callable, []Spec{long, dotted}},
		{"a policy, qualified", func(h *house) { all(h); h.policy(1, "shop.orders.get") }, short, Gated, Callable, []Spec{long, dotted}},
		{"a rule of the manifest", func(h *house) { all(h); h.HITL.Rules = []agent.Rule{{Tool: "orders.get"}} }, short, Gated, Callable, []Spec{long, dotted}},
		{"the message's tools", func(h *house) { all(h); tokens(h, "orders.get") }, short, Callable, Refused, []Spec{long, dotted}},
		{"the message's tools, qualified", func(h *house) { all(h); tokens(h, "shop.orders.get") }, short, Callable, Refused, []Spec{long, dotted}},
		{"a prefix ends at its dot", func(h *house) { h.grant(1, "orders.*") }, short, Callable, Refused, []Spec{mcp("shop", "orders"), mcp("shop", "orders_get")}},
		{"a prefix, qualified", func(h *house) { h.grant(1, "shop.orders.*") }, short, Callable, Refused, []Spec{mcp("shop", "orders"), mcp("shop", "ordersx.get")}},
		{"the manifest's server", func(h *house) {
			all(h)
			h.grant(3, "*", ofServer(3))
			h.Servers = append(h.Servers, Server{ID: serverID(3), Slug: "shopping", AuthKind: AuthNone, Enabled: true})
		}, short, Callable, Refused, []Spec{mcp("shopping", "orders.get")}},
		{"the manifest's builtin", func(h *house) { all(h) }, builtin("kb.search"), Callable, Refused, []Spec{builtin("kb.search_all"), builtin("kb.search.all")}},
		{"a grant of a builtin", func(h *house) {
			h.asked().Builtin = []string{"kb.search", "kb.search_all"}
			h.grant(1, "kb.search", ofBuiltin)
		}, builtin("kb.search"), Callable, Refused, []Spec{builtin("kb.search_all")}},
		{"the ops of a skill", func(h *house) {
			h.grant(1, "*", ofSkill(1))
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book", Allow: []string{"run"}}}
		}, skill(1, "book", "run"), Callable, Refused, []Spec{skill(1, "book", "run_all"), skill(1, "booking", "run")}},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := newHouse()
			c.house(h)
			if r := h.resolve(c.short); r.Verdict != c.wantShort {
				t.Errorf("%s: %s, %s", c.short.Qualified(), r.Verdict, r.Why)
			}
			for _, s := range c.long {
				if r := h.resolve(s); r.Verdict != c.wantLong {
					t.Errorf("%s: %s, %s", s.Qualified(), r.Verdict, r.Why)
				}
			}
			offers := Offers(&h.Access, &h.Manifest, h.Options, append(c.long, c.short))
			for _, s := range append(c.long, c.short) {
				o, ok := Exact(offers, s.Qualified())
				if ok != (h.resolve(s).Verdict != Refused) || ok && o.Qualified() != s.Qualified() {
					t.Errorf("%s: offered %v as %+v", s.Qualified(), ok, o)
				}
				if o, ok := Find(offers, s.Name); ok && o.Name != s.Name {
					t.Errorf("%s found %s", s.Name, o.Qualified())
				}
			}
		})
	}
}
