package blackbox

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Grants are checked again right before a call: each row changes them between the planning of the call and
// its approval.
func TestGrantsAreCheckedBeforeTheCall(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("granted now")
	notGranted := `{"error":"TOOL_NOT_GRANTED","message":"The tool \"shop.orders.refund\" is not granted to this agent any more. Nothing was run."}`
	for _, row := range []struct {
		name   string
		change func(t *testing.T, ctx context.Context, g *gate)
		hears  string
		auth   string // credential of the call; empty: no call is made
	}{
		{"a deny was added: any matching deny denies", func(t *testing.T, ctx context.Context, g *gate) {
			c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": g.shop.id, "tool_pattern": "orders.refund", "effect": "deny"})
		}, notGranted, ""},
		{"a deny was added at another scope", func(t *testing.T, ctx context.Context, g *gate) {
			c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": g.shop.id, "tool_pattern": "*", "effect": "deny", "agent_id": g.agent})
		}, notGranted, ""},
		{"the grant was removed: nothing is callable until granted", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 204, "DELETE", "/v1/tool-grants/"+g.shop.grant, nil, nil)
		}, notGranted, ""},
		{"the grant was narrowed", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 200, "PATCH", "/v1/tool-grants/"+g.shop.grant, object{"tool_pattern": "orders.lookup"}, nil)
		}, notGranted, ""},
		{"the grant is another agent's now", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 200, "PATCH", "/v1/tool-grants/"+g.shop.grant, object{"agent_id": c.publish(t, "Another", simulatedModel)}, nil)
		}, notGranted, ""},
		{"the server was disabled", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+g.shop.id, object{"enabled": false}, nil)
		}, notGranted, ""},
		{"the server was deleted", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 204, "DELETE", "/v1/mcp-servers/"+g.shop.id, nil, nil)
		}, notGranted, ""},
		{"the server got another slug: what was approved is a tool of that name", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+g.shop.id, object{"slug": g.shop.slug + "-new"}, nil)
		}, notGranted, ""},
		{"the server does not list the tool any more", func(t *testing.T, ctx context.Context, g *gate) {
			g.shop.set(func(h *toolHost) { h.tools = []string{lookupTool} })
			c.ask(t, ctx, 200, "POST", "/v1/mcp-servers/"+g.shop.id+"/test", nil, nil)
		}, `{"error":"TOOL_FAILED","message":"The tool server does not list \"shop.orders.refund\" any more. Nothing was run."}`, ""},
		{"the connection was deleted: NO_CONNECTION", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 204, "DELETE", "/v1/connections/"+g.shop.connection, nil, nil)
		}, `{"error":"NO_CONNECTION","message":"There is no connection with a credential for the tool server of shop.orders.refund. Nothing was run."}`, ""},
		{"the credential was rotated in place", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 200, "PATCH", "/v1/connections/"+g.shop.connection, object{"credentials": object{"token": "rotated-token"}}, nil)
			g.shop.wants("bearer", "rotated-token")
		}, `{"ok":true}`, "Bearer rotated-token"},
		{"a newer connection was added", func(t *testing.T, ctx context.Context, g *gate) {
			c.connection(t, ctx, g.shop.id, "bearer", "newer-token", nil)
			g.shop.wants("bearer", "newer-token")
		}, `{"ok":true}`, "Bearer newer-token"},
		{"the policy was deleted: open approvals stay as they are", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 204, "DELETE", "/v1/approval-policies/"+*g.a.Policy.ID, nil, nil)
		}, `{"ok":true}`, "Bearer token-of-the-shop"},
		{"another version without tools was published: a running run keeps the version it started with", func(t *testing.T, ctx context.Context, g *gate) {
			c.ask(t, ctx, 201, "POST", "/v1/agents/"+g.agent+"/versions", object{"manifest": simulatedModel}, nil)
			c.ask(t, ctx, 200, "POST", "/v1/agents/"+g.agent+"/versions/2/publish", nil, nil)
		}, `{"ok":true}`, "Bearer token-of-the-shop"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 20*time.Second)
			g := gated(t, ctx, c, object{}, nil)
			row.change(t, ctx, g)
			if got := c.decides(t, ctx, g.a.ID, object{"action": "approve"}); got != "approved 1" {
				t.Errorf("decided: %s", got)
			}
			c.poll(t, ctx, g.run, "succeeded")
			got := results(t, g.model.fake.Requests()[1])
			if want := []string{"result c1 " + strings.ReplaceAll(row.hears, "shop.", g.shop.slug+".")}; !slices.Equal(got, want) {
				t.Errorf("the model gets %q, want %q", got, want)
			}
			var auth string
			g.shop.set(func(h *toolHost) {
				for _, call := range h.calls {
					auth += call.head.Get("Authorization")
				}
			})
			if auth != row.auth {
				t.Errorf("called with %q, want %q", auth, row.auth)
			}
		})
	}
}

// Tool server contract: the header fields with a connection's credential.
func TestHowCredentialsArePresented(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("presented")
	for auth, want := range map[string][2]string{
		"bearer": {"Bearer the-credential", ""}, "oauth": {"Bearer the-credential", ""}, "api_key": {"", "the-credential"}, "none": {"", ""},
	} {
		t.Run(auth, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 10*time.Second)
			s := c.shop(t, ctx, auth, "the-credential")
			agent := c.publish(t, "On "+s.slug, object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": s.slug}}}})
			r := c.poll(t, ctx, c.runOnce(t, ctx, agent, `/call orders.lookup {"id":1}`), "succeeded")
			if r.shape() != "llm:succeeded tool:succeeded llm:succeeded" || len(s.called()) != 1 {
				t.Errorf("%s, called %v", r.shape(), s.called())
			}
			for _, head := range s.heard() {
				if got := [2]string{head.Get("Authorization"), head.Get("X-Api-Key")}; got != want {
					t.Errorf("a request came with %q, want %q", got, want)
				}
			}
		})
	}
}

// The credential of a call: of the connection that the grant pins, else of the one on the agent's nearest org
// node, else of the newest tenant-wide one.
func TestTheNearestConnection(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("nearest")
	node := func(name, parent string) string {
		body := object{"name": name}
		if parent != "" {
			body["parent_id"] = parent
		}
		return c.makes(t, ctx, "/v1/org-nodes", body)
	}
	company := node("Company", "")
	sales := node("Sales", company)
	team := node("Team", sales)
	support := node("Support", company)
	other := node("Other company", "")
	s := c.shop(t, ctx, "bearer", "tenant-wide-old")
	s.set(func(h *toolHost) { h.header = "" }) // it accepts any credential
	c.connection(t, ctx, s.id, "bearer", "tenant-wide", nil)
	c.connection(t, ctx, s.id, "bearer", "of-company", object{"node_id": company})
	c.connection(t, ctx, s.id, "bearer", "of-sales", object{"node_id": sales})
	pinned := c.connection(t, ctx, s.id, "bearer", "pinned", object{"node_id": other})
	manifest := object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": s.slug, "allow": []string{"orders.*"}}}}}
	on := func(name, node string) string {
		agent := c.publish(t, name, manifest)
		if node != "" {
			c.ask(t, ctx, 200, "PATCH", "/v1/agents/"+agent, object{"node_id": node}, nil)
		}
		return agent
	}
	used := func(agent string) string {
		t.Helper()
		before := len(s.called())
		c.poll(t, ctx, c.runOnce(t, ctx, agent, `/call orders.lookup {"id":1}`), "succeeded")
		var auth string
		s.set(func(h *toolHost) {
			for _, call := range h.calls[before:] {
				auth += strings.TrimPrefix(call.head.Get("Authorization"), "Bearer ")
			}
		})
		return auth
	}
	for _, row := range []struct{ name, node, want string }{
		{"an agent on no node: the newest tenant-wide one", "", "tenant-wide"},
		{"on a node with a connection of its own", sales, "of-sales"},
		{"on a node below one with a connection", team, "of-sales"},
		{"on a node whose nearest is two up", support, "of-company"},
		{"on the root", company, "of-company"},
		{"on another tree, with a connection there", other, "pinned"},
	} {
		if got := used(on(row.name, row.node)); got != row.want {
			t.Errorf("%s: called with %q, want %q", row.name, got, row.want)
		}
	}
	moved := on("moves", team)
	c.ask(t, ctx, 200, "PATCH", "/v1/agents/"+moved, object{"node_id": nil}, nil)
	if got := used(moved); got != "tenant-wide" {
		t.Errorf("an agent that was moved calls with %q", got)
	}
	c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": s.id, "tool_pattern": "orders.lookup", "effect": "allow", "node_id": sales, "connection_id": pinned})
	for _, row := range []struct{ name, node, want string }{{"the grant of a nearer node pins one", team, "pinned"}, {"a grant elsewhere pins one", support, "of-company"}} {
		if got := used(on(row.name, row.node)); got != row.want {
			t.Errorf("%s: called with %q, want %q", row.name, got, row.want)
		}
	}
	if a := c.ask(t, ctx, 409, "DELETE", "/v1/connections/"+pinned, nil, nil); a.code() != "IN_USE" {
		t.Errorf("a connection that a grant pins is deleted: %s", a)
	}
}

// service.md, Threads and runs: the per-turn options only tighten.
func TestPerTurnOptions(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("per turn")
	s := c.shop(t, ctx, "bearer", "token")
	known := c.shop(t, ctx, "none", "") // of the tenant, but not of the agent
	model, provider := modelled(t, ctx, c, "openai", says("ok"))
	agent := c.clerk(t, provider, nil, s)
	thread := c.thread(t, ctx, agent)
	post := func(status int, body object) answer {
		t.Helper()
		body["content"] = "hi"
		return c.ask(t, ctx, status, "POST", "/v1/threads/"+thread+"/messages", body, nil)
	}
	c.ask(t, ctx, 200, "POST", "/v1/mcp-servers/"+s.id+"/test", nil, nil)
	c.ask(t, ctx, 200, "POST", "/v1/mcp-servers/"+known.id+"/test", nil, nil)
	run := func(a answer) string {
		t.Helper()
		run := posted(t, a)
		c.poll(t, ctx, run, "succeeded")
		return run
	}
	all := []string{s.slug + "_admin_delete", s.slug + "_orders_lookup", s.slug + "_orders_refund"}
	for _, row := range []struct {
		name  string
		tools any
		want  []string
	}{
		{"none said", nil, all},
		{"an empty list means no tools", []string{}, nil},
		{"a bare name", []string{"orders.lookup"}, all[1:2]},
		{"a qualified name", []string{s.slug + ".admin.delete"}, all[:1]},
		{"a pattern", []string{"orders.*"}, all[1:]},
		{"several", []string{"admin.delete", s.slug + ".orders.refund"}, []string{all[0], all[2]}},
		{"a known but not granted token narrows to nothing", []string{known.slug + ".orders.lookup"}, nil},
	} {
		body := object{}
		if row.tools != nil {
			body["tools"] = row.tools
		}
		before := len(model.fake.Requests())
		run(post(202, body))
		sameLines(t, row.name, offered(t, model.fake.Requests()[before]), row.want)
	}
	for _, token := range []string{"orders.nothing", "Orders.lookup", "other.orders.lookup", s.slug + ".", "ord*", ""} {
		a := post(400, object{"tools": []string{"orders.lookup", token}})
		if a.code() != "UNKNOWN_TOOL" && a.code() != "VALIDATION" || token != "" && token != "ord*" && (a.code() != "UNKNOWN_TOOL" || !strings.Contains(string(a.body), token)) {
			t.Errorf("%q: %s", token, a)
		}
	}

	// A server that is down counts with its last known list.
	known.Server.Close()
	run(post(202, object{"tools": []string{known.slug + ".orders.refund"}}))
	if a := post(400, object{"tools": []string{known.slug + ".orders.nothing"}}); a.code() != "UNKNOWN_TOOL" {
		t.Errorf("unknown while the server is down: %s", a)
	}

	// Tools that the message leaves out are not called either.
	model.fake.Script(asks(s.slug+"_orders_refund", `{"id":1,"amount":1}`), says("ok"))
	before := len(model.fake.Requests())
	run(post(202, object{"tools": []string{"orders.lookup"}}))
	if got := results(t, model.fake.Requests()[before+1]); len(got) != 1 || !strings.Contains(got[0], "TOOL_NOT_GRANTED") || len(s.called()) != 0 {
		t.Errorf("the model gets %q, called %v", got, s.called())
	}

	// autonomy: require_approval makes every automatic call ask for an approval.
	model.fake.Script(asks(s.slug+"_orders_lookup", `{"id":1}`), says("ok"))
	waiting := posted(t, post(202, object{"autonomy": "require_approval"}))
	asked := c.waits(t, ctx, waiting)
	if len(asked) != 1 || asked[0].Policy.Kind != "option" || asked[0].Policy.ID != nil || asked[0].Risk != "medium" || asked[0].AssigneeRole != "admin" || asked[0].Required != 1 ||
		asked[0].ExpiresAt.Sub(asked[0].CreatedAt) != 24*time.Hour {
		t.Errorf("asked %+v", asked)
	}
	if len(s.called()) != 0 {
		t.Errorf("called %v", s.called())
	}
	c.decides(t, ctx, asked[0].ID, object{"action": "approve"})
	c.poll(t, ctx, waiting, "succeeded")
	if got := s.called(); !slices.Equal(got, []string{`orders.lookup {"id":1}`}) {
		t.Errorf("called %v", got)
	}
	for _, wrong := range []object{{"autonomy": "full"}, {"tools": "orders.lookup"}, {"autonomy": nil, "tools": []any{1}}} {
		if a := post(400, wrong); a.code() != "VALIDATION" {
			t.Errorf("%v: %s", wrong, a)
		}
	}
}

// posted returns the run of an accepted message.
func posted(t *testing.T, a answer) string {
	t.Helper()
	var out struct {
		RunID string `json:"run_id"`
	}
	if err := a.decode(&out); err != nil || out.RunID == "" {
		t.Fatalf("%v: %s", err, a)
	}
	return out.RunID
}

// Servers that a turn does not need do not delay it, and a call to one server does not wait for the list of
// another.
func TestASlowServerDelaysNoOtherServer(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("slow neighbour")
	fast, slow := c.shop(t, ctx, "none", ""), c.shop(t, ctx, "none", "")
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	var givenUp atomic.Int64 // list requests that ended without an answer
	_, provider := modelled(t, ctx, c, "openai", asks(fast.slug+"_orders_lookup", `{"id":1}`), says("ok"))
	agent := c.clerk(t, provider, object{"hitl": object{"rules": []object{{"tool": "orders.lookup"}}}}, fast, slow)
	run := c.runOnce(t, ctx, agent, "hi")
	a := c.waits(t, ctx, run)[0]
	// From here on the other server's list never comes, and no cache holds it.
	slow.set(func(h *toolHost) {
		h.list = func(_ http.ResponseWriter, r *http.Request, _ rpc) {
			select {
			case <-hang:
			case <-r.Context().Done():
				givenUp.Add(1)
			}
		}
	})
	c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+slow.id, object{"name": "Slow"}, nil)
	c.decides(t, ctx, a.ID, object{"action": "approve"})
	eventually(t, ctx, "the call", func() bool { return len(fast.called()) == 1 })
	if n := givenUp.Load(); n > 0 {
		t.Errorf("a call waited until %d lists of another server were given up", n)
	}
	c.poll(t, ctx, run, "succeeded")
}

// Calls to a server that never answers delay neither other tenants nor the same tenant's calls to another
// server.
func TestManySlowCallsDelayNoOtherServer(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	n := sharedNode(t)
	c, neighbour := n.tenant("slow calls"), n.tenant("neighbour")
	slow := c.shop(t, ctx, "none", "")
	var ended atomic.Int64
	slow.set(func(h *toolHost) {
		h.call = func(_ http.ResponseWriter, r *http.Request, _ rpc) { <-r.Context().Done(); ended.Add(1) }
	})
	line := strings.Repeat("/call "+slow.slug+".orders.lookup {\"id\":1}\n", 60)
	agent := c.publish(t, "Slow", object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": slow.slug}}}, "limits": object{"max_steps": 100}})
	var runs []string
	for range 6 {
		runs = append(runs, c.runOnce(t, ctx, agent, line))
	}
	eventually(t, ctx, "as many calls as one client makes", func() bool { return len(slow.called()) >= 256 })
	for _, who := range []*caller{c, neighbour} {
		fast := who.shop(t, ctx, "none", "")
		agent := who.publish(t, "Fast", object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": fast.slug}}}})
		who.poll(t, ctx, who.runOnce(t, ctx, agent, `/call orders.lookup {"id":1}`), "succeeded")
	}
	if n := ended.Load(); n > 0 {
		t.Errorf("the calls beside the slow ones waited until %d of those had ended", n)
	}
	for _, run := range runs {
		c.ask(t, ctx, 200, "POST", "/v1/runs/"+run+"/cancel", nil, nil)
	}
}
