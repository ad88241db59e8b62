package tool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
)

// told is an explanation as an operator reads it.
func told(e *Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s\n", e.Tool, e.Verdict, e.Why)
	for _, s := range e.Steps {
		mark := " "
		if s.Decided {
			mark = "*"
		} else if s.Matched {
			mark = "+"
		}
		fmt.Fprintf(&b, "%s %s", mark, s.What)
		if s.Pattern != "" {
			fmt.Fprintf(&b, " %s", s.Pattern)
		}
		fmt.Fprintf(&b, ": %s\n", s.Note)
	}
	return b.String()
}

func TestExplain(t *testing.T) {
	g := func(n int) string { return grantID(n).String() }
	specs := []Spec{refund, mcp("shop", "orders.get"), mcp("open", "orders.get"), builtin("kb.search"), skill(1, "book", "run")}
	for _, c := range []struct {
		says string
		with func(*house)
		name string
		want string
	}{
		{"a gated call", func(h *house) {
			h.asked().MCP[0].Allow = []string{"orders.get", "orders.*"}
			h.grant(1, "*")
			h.grant(2, "shop.orders.*", toNode(2))
			h.grant(3, "orders.get")
			h.grant(4, "*", toAgent(2))
			h.grant(5, "*", toNode(9), denies)
			h.grant(6, "*", ofServer(2))
			h.policy(1, "*")
			h.policy(2, "orders.refund")
			h.policy(3, "orders.refund", func(p *Policy) { p.Agent = ptr(agentID(2)) })
			h.policy(4, "*", func(p *Policy) { p.Source = Builtin })
			h.policy(5, "orders.get")
			h.HITL.Rules = []agent.Rule{{Tool: "orders.get"}, {Tool: "shop.*"}}
			h.RequireApproval = true
		}, "orders.refund", `shop.orders.refund: gate: allowed by the grant ` + g(2) + ` of "shop.orders.*" to an org node of the agent; the policy "policy 2" asks for an approval
+ server: the tool server "shop" is enabled
  manifest orders.get: allow of the tool server "shop"
* manifest orders.*: allow of the tool server "shop"
+ grant *: allow to the whole tenant: matches, but another allow is more specific or newer
* grant shop.orders.*: allow to an org node of the agent: decides
  grant orders.get: allow to the whole tenant: the pattern does not fit
  grant *: allow: belongs to another agent
  grant *: deny: belongs to an org node that the agent is not under
* connection: tenant-wide: no org node of the agent has one
  policy *: "policy 4": is about tools of the source builtin
  policy orders.get: "policy 5": the pattern does not fit
* policy orders.refund: "policy 2": asks for an approval
+ policy *: "policy 1": matches, but a more specific one applies
  policy orders.refund: "policy 3": belongs to another agent
  rule orders.get: the pattern does not fit
* rule shop.*: asks for an approval
* option: the message asks for an approval of every call
`},
		{"a call that runs at once", func(h *house) { h.grant(1, "*", ofServer(2)) }, "open.orders.get", `open.orders.get: allow: allowed by the grant ` + g(1) + ` of "*" to the whole tenant
+ server: the tool server "open" is enabled
* manifest *: allow of the tool server "open"
* grant *: allow to the whole tenant: decides
* connection: the tool server takes no credential
* policy: no policy, rule or option asks for an approval
`},
		{"a deny", func(h *house) {
			h.grant(1, "orders.refund", toAgent(1))
			h.grant(2, "*", denies)
			h.grant(3, "shop.*", denies)
			h.policy(1, "*")
		}, "shop.orders.refund", `shop.orders.refund: deny: denied by the grant ` + g(3) + ` of "shop.*" to the whole tenant
+ server: the tool server "shop" is enabled
* manifest *: allow of the tool server "shop"
+ grant orders.refund: allow to this agent: matches, but a deny beats every allow
+ grant *: deny to the whole tenant: matches, but another deny is more specific or newer
* grant shop.*: deny to the whole tenant: decides
+ policy *: "policy 1": matches, but the call is refused before
`},
		{"no grant", func(h *house) {}, "shop.orders.refund", `shop.orders.refund: deny: no grant allows "shop.orders.refund"
+ server: the tool server "shop" is enabled
* manifest *: allow of the tool server "shop"
* grant: no grant allows it: nothing is callable until granted
`},
		{"the manifest", func(h *house) {
			h.grant(1, "*")
			h.asked().MCP[0].Allow = []string{"orders.get"}
		}, "shop.orders.refund", `shop.orders.refund: deny: the agent's manifest does not allow "orders.refund" of the tool server "shop"
+ server: the tool server "shop" is enabled
  manifest orders.get: allow of the tool server "shop"
* manifest: the agent's manifest does not allow "orders.refund" of the tool server "shop"
+ grant *: allow to the whole tenant: matches, but the call is refused before
`},
		{"the message's tools", func(h *house) {
			h.grant(1, "*")
			h.Options.Tools = &[]string{"orders.get", "builtin:*"}
		}, "shop.orders.refund", `shop.orders.refund: deny: the message's tools leave out "shop.orders.refund"
+ server: the tool server "shop" is enabled
* manifest *: allow of the tool server "shop"
  option orders.get: of the message's tools
  option builtin:*: of the message's tools
* option: the message's tools leave it out
+ grant *: allow to the whole tenant: matches, but the call is refused before
`},
		{"a disabled server", func(h *house) { h.grant(1, "*"); h.Servers[0].Enabled = false }, "shop.orders.refund", `shop.orders.refund: deny: the tool server "shop" is disabled
* server: the tool server "shop" is disabled
+ manifest *: allow of the tool server "shop"
+ grant *: allow to the whole tenant: matches, but the call is refused before
`},
		{"a missing credential", func(h *house) { h.grant(1, "*"); h.Connections = nil }, "shop.orders.refund", `shop.orders.refund: allow: allowed by the grant ` + g(1) + ` of "*" to the whole tenant; but no connection of the tool server "shop" fits
+ server: the tool server "shop" is enabled
* manifest *: allow of the tool server "shop"
* grant *: allow to the whole tenant: decides
* connection: no connection is tenant-wide or on an org node of the agent: calls fail with NO_CONNECTION
* policy: no policy, rule or option asks for an approval
`},
		{"a pinned credential that is gone", func(h *house) { h.grant(1, "*", pins(9)) }, "shop.orders.refund", `shop.orders.refund: allow: allowed by the grant ` + g(1) + ` of "*" to the whole tenant; but no connection of the tool server "shop" fits
+ server: the tool server "shop" is enabled
* manifest *: allow of the tool server "shop"
* grant *: allow to the whole tenant: decides
* connection: the grant pins a connection that is not there: calls fail with NO_CONNECTION
* policy: no policy, rule or option asks for an approval
`},
		{"a builtin tool", func(h *house) { h.grant(1, "kb.search", ofBuiltin, toAgent(1)); h.grant(2, "*") }, "kb.search", `builtin:kb.search: allow: allowed by the grant ` + g(1) + ` of "kb.search" to this agent
* manifest kb.search: tools.builtin names it
* grant kb.search: allow to this agent: decides
* policy: no policy, rule or option asks for an approval
`},
		{"a skill", func(h *house) {
			h.grant(1, "run", ofSkill(1))
			h.grant(2, "run", ofSkill(2), denies)
			h.asked().BrowserSkills = []agent.BrowserSkillUse{{Skill: "book"}}
		}, "browser_skill:book.run", `browser_skill:book.run: allow: allowed by the grant ` + g(1) + ` of "run" to the whole tenant
* manifest run: tools.browser_skills allows it of the skill "book"
* grant run: allow to the whole tenant: decides
* policy: no policy, rule or option asks for an approval
`},
		{"a handoff", func(h *house) { h.Handoffs = []string{"billing"}; h.grant(1, "*", ofBuiltin) }, "handoff", `builtin:handoff: allow: the agent's manifest names handoffs, which need no grant
* manifest: the agent's manifest names handoffs, which need no grant
+ grant *: allow to the whole tenant: matches, but a handoff needs no grant
* policy: no policy, rule or option asks for an approval
`},
		{"a handoff to nobody", func(h *house) {}, "builtin:handoff", `builtin:handoff: deny: the agent's manifest names nobody in handoffs
* manifest: the agent's manifest names nobody in handoffs
`},
		{"a bare name of two tools", func(h *house) {}, "orders.get", `orders.get: deny: several tools are called "orders.get": "shop.orders.get", "open.orders.get"; ask for one of these names
`},
		{"a bare name of two tools of which one may be called", func(h *house) { h.grant(1, "*", ofServer(2)) }, "orders.get", `open.orders.get: allow: allowed by the grant ` + g(1) + ` of "*" to the whole tenant
+ server: the tool server "open" is enabled
* manifest *: allow of the tool server "open"
* grant *: allow to the whole tenant: decides
* connection: the tool server takes no credential
* policy: no policy, rule or option asks for an approval
`},
		{"a tool that its server does not list", func(h *house) { h.grant(1, "orders.*"); h.policy(1, "orders.void") }, "shop.orders.void", `shop.orders.void: deny: the tool server "shop" lists no tool "orders.void"
* server: the tool server "shop" lists no tool "orders.void"
+ manifest *: allow of the tool server "shop"
+ grant orders.*: allow to the whole tenant: matches, but the call is refused before
+ policy orders.void: "policy 1": matches, but the call is refused before
`},
		{"a tool of no server", func(h *house) {}, "gone.orders.get", `gone.orders.get: deny: there is no tool server "gone"
* server: there is no tool server "gone"
  manifest: the agent's manifest does not name the tool server "gone" in tools.mcp
`},
		{"a tool of a reserved source", func(h *house) { h.grant(1, "*", ofSource(A2A)) }, "a2a:peer.ask", `a2a:peer.ask: deny: there are no tools of the source "a2a" yet
* server: there are no tools of the source "a2a" yet
+ grant *: allow to the whole tenant: matches, but the call is refused before
`},
		{"a builtin tool that is none", func(h *house) {}, "builtin:shell", `builtin:shell: deny: there is no builtin tool "shell"
* server: there is no builtin tool "shell"
  manifest: the agent's manifest does not name "shell" in tools.builtin
`},
		{"a skill that is none", func(h *house) {}, "browser_skill:pay.run", `browser_skill:pay.run: deny: there is no browser skill "pay"
* skill: there is no browser skill "pay"
  manifest: the agent's manifest does not name the skill "pay" in tools.browser_skills
`},
		{"a name that is none", func(h *house) { h.grant(1, "*") }, "\x1b[2Jrefund", `` + "\x1b[2Jrefund" + `: deny: no tool is called "\x1b[2Jrefund"
`},
		{"no name", func(h *house) {}, "", `: deny: no tool is called ""
`},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := newHouse()
			c.with(h)
			e := Explain(&h.Access, &h.Manifest, h.Options, specs, c.name)
			if got := told(e); got != c.want {
				t.Errorf("%s\nwant:\n%s", got, c.want)
			}
			if e.Steps == nil {
				t.Error("steps are null")
			}
			if e.Verdict == Refused && (e.Connection != nil || e.Approval != nil) {
				t.Errorf("refused with %v and %v", e.Connection, e.Approval)
			}
		})
	}
}

// The nearest connection and a pinned one are told apart.
func TestExplainConnections(t *testing.T) {
	h := newHouse()
	h.Connections = append(h.Connections, Connection{ID: connID(2), Server: serverID(1), Node: ptr(nodeID(2))})
	h.grant(1, "orders.refund", pins(1))
	h.grant(2, "orders.get")
	for name, want := range map[string]string{
		"shop.orders.refund": "* connection: the grant pins it",
		"shop.orders.get":    "* connection: on the agent's nearest org node that has one",
	} {
		e := Explain(&h.Access, &h.Manifest, h.Options, []Spec{refund, mcp("shop", "orders.get")}, name)
		if !slices.Contains(strings.Split(told(e), "\n"), want) || e.Connection == nil {
			t.Errorf("%s", told(e))
		}
	}
}
