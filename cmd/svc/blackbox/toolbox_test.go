package blackbox

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/private"
)

// A server that is down counts with its last known list, and works again as soon as it is back.
func TestAServerThatComesBack(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("comes back")
	s := c.shop(t, ctx, "bearer", "token")
	model, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_lookup", `{"id":1}`), says("ok"))
	agent := c.clerk(t, provider, nil, s)
	run := func() string {
		t.Helper()
		before := len(model.fake.Requests())
		c.poll(t, ctx, c.runOnce(t, ctx, agent, "go"), "succeeded")
		requests := model.fake.Requests()[before:]
		if got := offered(t, requests[0]); len(got) != 3 {
			t.Errorf("offered %v", got)
		}
		model.fake.Script(asks(s.slug+"_orders_lookup", `{"id":1}`), says("ok"))
		return results(t, requests[1])[0]
	}
	if got := run(); got != `result c1 {"ok":true}` {
		t.Errorf("up: %s", got)
	}
	address := s.Listener.Addr().String()
	s.Server.Close()
	c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+s.id, object{"name": "Down"}, nil) // drops the pool's cache of the server
	if got := run(); !strings.Contains(got, "connection refused. Nothing was run.") {
		t.Errorf("down: %s", got)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	back := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.toolHost}}
	back.Start()
	t.Cleanup(back.Close)
	if got := run(); got != `result c1 {"ok":true}` {
		t.Errorf("up again: %s", got)
	}
}

// GET /v1/agents/:id/tools lists the tools that the model is offered, and who approves them; /explain gives the
// reason.
func TestTheToolsOfAnAgent(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("may call")
	s := c.shop(t, ctx, "bearer", "token")
	c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": s.id, "tool_pattern": "admin.delete", "effect": "deny"})
	model, provider := modelled(t, ctx, c, "openai", says("ok"))
	agent := c.clerk(t, provider, nil, s)
	policy := c.policy(t, ctx, object{"name": "Refunds", "tool_pattern": s.slug + ".orders.refund", "risk": "critical"})
	var list struct {
		Items []struct {
			Tool, Source, Description string
			Schema                    json.RawMessage `json:"input_schema"`
			GatedBy                   *struct {
				ID         *string
				Name, Kind string
			} `json:"gated_by"`
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/agents/"+agent+"/tools", nil, &list)
	if len(list.Items) != 2 || list.Items[0].Tool != s.slug+".orders.lookup" || list.Items[0].Source != "mcp" || list.Items[0].Description != "Look up one order." || list.Items[0].GatedBy != nil ||
		list.Items[1].Tool != s.slug+".orders.refund" || list.Items[1].GatedBy == nil || *list.Items[1].GatedBy.ID != policy || list.Items[1].GatedBy.Name != "Refunds" ||
		list.Items[1].GatedBy.Kind != "policy" || !json.Valid(list.Items[1].Schema) {
		t.Errorf("listed %+v", list)
	}
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "go"), "succeeded")
	sameLines(t, "offered", offered(t, model.fake.Requests()[0]), []string{s.slug + "_orders_lookup", s.slug + "_orders_refund"})
	for tool, verdict := range map[string]string{"orders.lookup": "allow", s.slug + ".orders.refund": "gate", "admin.delete": "deny", "nothing.here": "deny"} {
		var e struct{ Tool, Verdict, Why string }
		c.ask(t, ctx, 200, "GET", "/v1/agents/"+agent+"/tools/explain?tool="+tool, nil, &e)
		if e.Verdict != verdict || e.Why == "" {
			t.Errorf("%s: %+v, want %s", tool, e, verdict)
		}
	}
}

// A per-turn token is unknown if it matches no tool of any enabled server.
func TestTokensOfDisabledServersAreUnknown(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("disabled")
	s := c.shop(t, ctx, "none", "")
	c.ask(t, ctx, 200, "POST", "/v1/mcp-servers/"+s.id+"/test", nil, nil)
	thread := c.thread(t, ctx, c.publish(t, "Plain", simulatedModel))
	post := func(status int) answer {
		return c.ask(t, ctx, status, "POST", "/v1/threads/"+thread+"/messages", object{"content": "hi", "tools": []string{"orders.lookup"}}, nil)
	}
	post(202)
	c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+s.id, object{"enabled": false}, nil)
	if a := post(400); a.code() != "UNKNOWN_TOOL" {
		t.Errorf("%s", a)
	}
}

// An agent that uses a server with two credentials does not write the server's list at each turn.
func TestListsAreKeptOnce(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	n := sharedNode(t)
	c := n.tenant("kept once")
	s := c.shop(t, ctx, "bearer", "one")
	s.set(func(h *toolHost) { h.header = "" })
	pinned := c.connection(t, ctx, s.id, "bearer", "two", nil)
	c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": s.id, "tool_pattern": "orders.lookup", "effect": "allow", "connection_id": pinned})
	c.connection(t, ctx, s.id, "bearer", "three", nil)
	agent := c.publish(t, "Clerk", object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": s.slug}}}})
	server, err := private.Connect(ctx, n.dataDir())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pg.Open(ctx, server.URL(), pg.Options{Role: pg.System, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	listed := func() (at time.Time) {
		t.Helper()
		c.poll(t, ctx, c.runOnce(t, ctx, agent, `/call orders.lookup {"id":1}`), "succeeded")
		if err := pool.QueryRow(ctx, `SELECT listed_at FROM mcp_servers WHERE id = $1::uuid`, s.id).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	if first, second := listed(), listed(); !first.Equal(second) {
		t.Errorf("the list was kept at %s and again at %s", first, second)
	}
}

// The thinking before a call is returned to the model with its signature, also after the call waited for a person
// and the run was unloaded.
func TestThinkingSurvivesTheWait(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("thinking")
	s := c.shop(t, ctx, "none", "")
	think := asks(s.slug+"_orders_lookup", `{"id":1}`)
	think.Thinking, think.Signature = []string{"Let me ", "look."}, "signature-of-the-thought"
	model, provider := modelled(t, ctx, c, "anthropic", think, says("ok"))
	agent := c.clerk(t, provider, object{"model": object{"provider": provider, "name": "m", "max_output_tokens": 4000, "thinking": object{"budget_tokens": 1024}},
		"hitl": object{"rules": []object{{"tool": "*"}}}}, s)
	run := c.runOnce(t, ctx, agent, "go")
	a := c.waits(t, ctx, run)[0]
	if a.Reasoning != "Let me look." {
		t.Errorf("reasoning_summary %q", a.Reasoning)
	}
	c.decides(t, ctx, a.ID, object{"action": "approve"})
	c.poll(t, ctx, run, "succeeded")
	body := string(model.fake.Requests()[1].Body)
	if thought, call := strings.Index(body, `"signature":"signature-of-the-thought"`), strings.Index(body, `"tool_use"`); thought < 0 || call < thought {
		t.Errorf("the model gets %s", body)
	}
}

// Idempotency-Key on decisions: a repeat gets the first response, byte for byte, and decides nothing.
func TestDecisionsUnderAKey(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("decisions under a key")
	g := gated(t, ctx, c, object{"required_approvals": 2}, nil)
	path := "/v1/approvals/" + g.a.ID + "/decision"
	first := c.ask(t, ctx, 200, "POST", path, object{"action": "approve"}, nil, "Idempotency-Key", "k")
	again := c.ask(t, ctx, 200, "POST", path, object{"action": "approve"}, nil, "Idempotency-Key", "k")
	if string(first.body) != string(again.body) || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s, then %s", first, again)
	}
	if a := c.ask(t, ctx, 409, "POST", path, object{"action": "reject"}, nil, "Idempotency-Key", "k"); a.code() != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("another body: %s", a)
	}
	if a := c.ask(t, ctx, 409, "POST", path, object{"action": "approve"}, nil, "Idempotency-Key", "other"); a.code() != "ALREADY_DECIDED" {
		t.Errorf("another key of the same principal: %s", a)
	}
	c.human(t, ctx).decides(t, ctx, g.a.ID, object{"action": "approve"})
	c.poll(t, ctx, g.run, "succeeded")
	if again := c.ask(t, ctx, 200, "POST", path, object{"action": "approve"}, nil, "Idempotency-Key", "k"); string(first.body) != string(again.body) {
		t.Errorf("after the end: %s, want %s", again, first)
	}
	if len(g.shop.called()) != 1 || len(c.approval(t, ctx, g.a.ID).Decisions) != 2 {
		t.Errorf("called %v", g.shop.called())
	}
}

// GET /v1/approvals filters, and each decision of a bulk has its own outcome.
func TestApprovalListsAndBulk(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("lists and bulk")
	s := c.shop(t, ctx, "none", "")
	agents := map[string]string{}
	for _, risk := range []string{"low", "high"} {
		agents[risk] = c.publish(t, "Risk "+risk, object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": s.slug}}},
			"hitl": object{"rules": []object{{"tool": "*", "risk": risk}}}})
	}
	var runs, ids []string
	for _, risk := range []string{"low", "high", "low", "high", "low"} {
		run := c.runOnce(t, ctx, agents[risk], `/call orders.lookup {"id":1}`)
		runs, ids = append(runs, run), append(ids, c.waits(t, ctx, run)[0].ID)
	}
	for query, want := range map[string][]string{
		"": ids, "risk=low": {ids[0], ids[2], ids[4]}, "agent_id=" + agents["high"]: {ids[1], ids[3]}, "run_id=" + runs[2]: {ids[2]}, "status=approved": nil,
		"status=pending&risk=high&agent_id=" + agents["low"]: nil,
	} {
		var got []string
		for _, a := range c.approvals(t, ctx, query) {
			got = append(got, a.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"status=open", "risk=none", "run_id=x"} {
		if a := c.ask(t, ctx, 400, "GET", "/v1/approvals?"+query, nil, nil); a.code() != "VALIDATION" {
			t.Errorf("%s: %s", query, a)
		}
	}
	c.decides(t, ctx, ids[1], object{"action": "reject"})
	unknown := "01a1feb7-0000-7000-8000-000000000000"
	var bulk struct {
		Results []struct {
			ID       string
			OK       bool
			Terminal string
			Error    *struct{ Code, Detail string }
		}
	}
	c.ask(t, ctx, 200, "POST", "/v1/approvals/bulk-decision", object{"ids": append(slices.Clone(ids), unknown, ids[0]), "action": "approve"}, &bulk)
	for i, want := range []string{"approved", "ALREADY_DECIDED", "approved", "approved", "approved", "NOT_FOUND", "approved"} {
		r := bulk.Results[i]
		if got := r.Terminal; r.OK && got != want || !r.OK && (r.Error == nil || r.Error.Code != want || r.Error.Detail == "" || got != "") {
			t.Errorf("%d: %+v, want %s", i, r, want)
		}
	}
	for _, run := range runs {
		c.poll(t, ctx, run, "succeeded")
	}
	if got := len(s.called()); got != 4 {
		t.Errorf("%d calls", got)
	}
	many := make([]string, 201)
	for i := range many {
		many[i] = unknown
	}
	for _, wrong := range []object{{"ids": many, "action": "approve"}, {"ids": []string{}, "action": "approve"}, {"ids": ids, "action": "edit", "edited_args": object{}}, {"ids": ids, "action": "edit"}, {"ids": ids},
		{"ids": ids, "action": "reject", "feedback": strings.Repeat("x", 4001)}} {
		if a := c.ask(t, ctx, 400, "POST", "/v1/approvals/bulk-decision", wrong, nil); a.code() != "VALIDATION" {
			t.Errorf("%v", a)
		}
	}
}
