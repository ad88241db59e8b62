package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/transport/model/fake"
)

// The ungated calls of a turn run first. Then all its gated calls open their approvals together. The model continues
// when all are decided, and there is one run.resumed per approval (open-parts.md, Questions settled).
func TestMixedTurnOverHTTP(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("mixed")
	s := c.shop(t, ctx, "bearer", "token")
	hold := make(chan struct{})
	s.set(func(h *toolHost) {
		h.call = func(w http.ResponseWriter, r *http.Request, m rpc) {
			if m.Params.Name == "orders.lookup" {
				select {
				case <-hold:
				case <-r.Context().Done():
				}
			}
			rpcText(w, m, `{"ok":true}`)
		}
	})
	model, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_refund", `{"id":1,"amount":1,"idempotency_key":"a"}`, s.slug+"_orders_lookup", `{"id":2}`,
		s.slug+"_nothing", `{}`, s.slug+"_admin_delete", `{"x":4}`, s.slug+"_orders_refund", `{"id":5,"amount":5,"idempotency_key":"b"}`), says("done"))
	agent := c.clerk(t, provider, object{"hitl": object{"rules": []object{{"tool": "orders.refund"}, {"tool": "admin.*", "risk": "critical"}}}}, s)
	run := c.runOnce(t, ctx, agent, "go")
	live := c.watch(t, ctx, run, "?replay=full")
	eventually(t, ctx, "the ungated call", func() bool { return len(s.called()) == 1 })
	if r := c.read(t, ctx, run); r.Run.Status != "running" || r.shape() != "llm:succeeded tool:waiting tool:running tool:failed tool:waiting tool:waiting" || len(c.approvals(t, ctx, "run_id="+run)) != 0 {
		t.Errorf("before the ungated call has ended: %s %s", r.Run.Status, r.shape())
	}
	close(hold)
	list := c.waits(t, ctx, run)
	if len(list) != 3 || list[0].StepIdx != 1 || list[1].StepIdx != 4 || list[2].StepIdx != 5 || list[1].Risk != "critical" {
		t.Fatalf("asked %+v", list)
	}
	// Decided in another order than asked; no decision takes effect before the last one.
	c.decides(t, ctx, list[2].ID, object{"action": "respond", "feedback": "One refund is enough."})
	c.decides(t, ctx, list[0].ID, object{"action": "approve"})
	if r := c.read(t, ctx, run); r.Run.Status != "waiting_approval" || len(s.called()) != 1 {
		t.Errorf("before the last decision: %s, called %v", r.Run.Status, s.called())
	}
	c.decides(t, ctx, list[1].ID, object{"action": "reject", "feedback": "Never."})
	c.poll(t, ctx, run, "succeeded")
	sameLines(t, "called", s.called(), []string{`orders.lookup {"id":2}`, `orders.refund {"id":1,"amount":1,"idempotency_key":"a"}`})
	sameLines(t, "the model hears", results(t, model.fake.Requests()[1]), []string{`result c1 {"ok":true}`, `result c2 {"ok":true}`,
		`result c3 {"error":"TOOL_NOT_GRANTED","message":"The tool \"` + s.slug + `_nothing\" is not granted to this agent. Nothing was run."}`,
		`result c4 {"rejected":true,"feedback":"Never."}`, `result c5 {"responded":true}`, "user One refund is enough."})
	want := `run.started {"run_id":"RUN","agent_id":"AGENT","status":"running"}
step.started {"idx":0,"kind":"llm","name":"m"}
step.started {"idx":1,"kind":"tool","name":"shop.orders.refund"}
step.started {"idx":2,"kind":"tool","name":"shop.orders.lookup"}
tool.called {"idx":2,"tool":"shop.orders.lookup","args_preview":"{\"id\":2}"}
step.started {"idx":3,"kind":"tool","name":"shop_nothing"}
tool.called {"idx":3,"tool":"shop_nothing","args_preview":"{}"}
tool.result {"idx":3,"ok":false,"output_preview":"{\"error\":\"TOOL_NOT_GRANTED\",\"message\":\"The tool \\\"shop_nothing\\\" is not granted to this agent. Nothing was run.\"}"}
step.started {"idx":4,"kind":"tool","name":"shop.admin.delete"}
step.started {"idx":5,"kind":"tool","name":"shop.orders.refund"}
tool.result {"idx":2,"ok":true,"output_preview":"{\"ok\":true}"}
approval.required {"approval_id":"A1","tool":"shop.orders.refund","expires_at":"…"}
approval.required {"approval_id":"A2","tool":"shop.admin.delete","expires_at":"…"}
approval.required {"approval_id":"A3","tool":"shop.orders.refund","expires_at":"…"}
run.waiting {"status":"waiting_approval"}
run.resumed {"approval_id":"A1","decision":"approve"}
run.resumed {"approval_id":"A2","decision":"reject"}
run.resumed {"approval_id":"A3","decision":"respond"}
tool.called {"idx":1,"tool":"shop.orders.refund","args_preview":"{\"id\":1,\"amount\":1,\"idempotency_key\":\"a\"}"}
tool.result {"idx":4,"ok":false,"output_preview":"{\"rejected\":true,\"feedback\":\"Never.\"}"}
tool.result {"idx":5,"ok":true,"output_preview":"{\"responded\":true}"}
tool.result {"idx":1,"ok":true,"output_preview":"{\"ok\":true}"}
step.started {"idx":6,"kind":"llm","name":"m"}
llm.delta done
run.completed {"status":"succeeded","output":{"text":"done"},"tokens_in":2,"tokens_out":2,"cost_usd":0}`
	if got := transcript(<-live, run, "RUN", agent, "AGENT", list[0].ID, "A1", list[1].ID, "A2", list[2].ID, "A3", s.slug, "shop"); got != want {
		t.Errorf("frames\n%s\nwant\n%s", got, want)
	}
}

// An approval that cancels its run by expiring cancels the other approvals too.
func TestAnExpiryThatCancelsTheRunCancelsTheOtherApprovals(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("takes others")
	s := c.shop(t, ctx, "none", "")
	_, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_lookup", `{"id":1}`, s.slug+"_admin_delete", `{}`, s.slug+"_orders_refund", `{"id":1,"amount":1}`), says("done"))
	agent := c.clerk(t, provider, object{"hitl": object{"rules": []object{{"tool": "orders.*"}, {"tool": "admin.delete", "sla_minutes": 0.15, "on_timeout": "cancel_run"}}}}, s)
	run := c.runOnce(t, ctx, agent, "go")
	list := c.waits(t, ctx, run)
	c.decides(t, ctx, list[0].ID, object{"action": "approve"})
	r := c.poll(t, ctx, run, "cancelled")
	if r.Run.Error == nil || r.Run.Error.Code != "EXPIRED" || r.shape() != "llm:succeeded tool:failed tool:failed tool:failed" || len(s.called()) != 0 {
		t.Errorf("run %+v, steps %s, called %v", r.Run.Error, r.shape(), s.called())
	}
	var got []string
	for _, a := range c.approvals(t, ctx, "run_id="+run) {
		got = append(got, a.Status)
	}
	sameLines(t, "approvals", got, []string{"approved", "expired", "cancelled"})
}

// open-parts.md, Handoff.
func TestHandoffOverHTTP(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	c := sharedNode(t).tenant("handoff")
	slugOf := func(agent string) string {
		var a struct{ Agent struct{ Slug string } }
		c.ask(t, ctx, 200, "GET", "/v1/agents/"+agent, nil, &a)
		return a.Agent.Slug
	}
	front, back := c.shop(t, ctx, "bearer", "front-token"), c.shop(t, ctx, "api_key", "back-key")
	backModel, backProvider := modelled(t, ctx, c, "anthropic", asks(back.slug+"_orders_lookup", `{"id":1}`, front.slug+"_orders_lookup", `{"id":2}`), says("I am the back office."))
	backAgent := c.clerk(t, backProvider, object{"instructions": "You are the back office."}, back)
	frontModel, frontProvider := modelled(t, ctx, c, "openai", says("unused"))
	draft := c.makesAgent(t, ctx, object{"name": "Draft"})
	handoffs := []string{slugOf(backAgent), slugOf(draft)}
	frontAgent := c.clerk(t, frontProvider, object{"handoffs": handoffs, "instructions": "You are the front office."}, front)
	thread := c.thread(t, ctx, frontAgent)

	frontModel.fake.Script(asks("builtin_handoff", fmt.Sprintf(`{"to":%q,"note":"He is angry."}`, handoffs[0])), says("Back at the front."))
	run := c.say(t, ctx, thread, "Where is order 1?")
	frames := c.stream(t, ctx, run, "?replay=full", "", nil)
	r := c.poll(t, ctx, run, "succeeded")
	if r.text() != "I am the back office." || r.Run.AgentID != frontAgent || r.shape() != "llm:succeeded handoff:succeeded llm:succeeded tool:succeeded tool:failed llm:succeeded" {
		t.Errorf("run of %s answers %q: %s", r.Run.AgentID, r.text(), r.shape())
	}
	text := transcript(frames, run, "RUN", frontAgent, "FRONT", handoffs[0], "back", slugOf(frontAgent), "front", back.slug, "shop")
	if want := `step.started {"idx":1,"kind":"handoff","name":"builtin:handoff"}
handoff {"from":"front","to":"back"}
step.started {"idx":2,"kind":"llm","name":"m"}
`; !strings.Contains(text, want) {
		t.Errorf("frames\n%s\nwant\n%s", text, want)
	}
	sameLines(t, "the front office may call", offered(t, frontModel.fake.Requests()[0]),
		[]string{"builtin_handoff", front.slug + "_admin_delete", front.slug + "_orders_lookup", front.slug + "_orders_refund"})
	sameLines(t, "the back office may call", offered(t, backModel.fake.Requests()[0]), []string{back.slug + "_admin_delete", back.slug + "_orders_lookup", back.slug + "_orders_refund"})
	first := dialogue(t, backModel.fake.Requests()[0])
	if !slices.Contains(first, "user Where is order 1?") || !strings.Contains(string(backModel.fake.Requests()[0].Body), "You are the back office.") ||
		strings.Contains(string(backModel.fake.Requests()[0].Body), "You are the front office.") || !strings.Contains(strings.Join(first, "\n"), "He is angry.") {
		t.Errorf("the back office gets %s", strings.Join(first, "\n"))
	}
	if len(front.called()) != 0 || len(back.called()) != 1 {
		t.Errorf("called %v and %v", front.called(), back.called())
	}
	// The next message starts with the thread's own agent.
	next := c.say(t, ctx, thread, "And now?")
	if r := c.poll(t, ctx, next, "succeeded"); r.text() != "Back at the front." {
		t.Errorf("the next message is answered with %q", r.text())
	}

	for _, row := range []struct{ name, args, hears string }{
		{"an agent that the manifest does not name", `{"to":"somebody"}`, `"error":"INVALID_ARGS"`},
		{"an agent without a published version", fmt.Sprintf(`{"to":%q}`, handoffs[1]), `has no published version`},
	} {
		frontModel.fake.Script(asks("builtin_handoff", row.args), says("still the front"))
		before := len(frontModel.fake.Requests())
		run := c.runOnce(t, ctx, frontAgent, "go")
		r := c.poll(t, ctx, run, "succeeded")
		got := strings.Join(results(t, frontModel.fake.Requests()[before+1]), "\n")
		if r.text() != "still the front" || !strings.Contains(got, row.hears) || !strings.Contains(r.shape(), ":failed") {
			t.Errorf("%s: %s, the model gets %s", row.name, r.shape(), got)
		}
	}
	// Two in one turn: the second fails.
	frontModel.fake.Script(asks("builtin_handoff", fmt.Sprintf(`{"to":%q}`, handoffs[0]), "builtin_handoff", fmt.Sprintf(`{"to":%q}`, handoffs[0])))
	backModel.fake.Script(says("taken over"))
	if r := c.poll(t, ctx, c.runOnce(t, ctx, frontAgent, "go"), "succeeded"); r.text() != "taken over" || r.shape() != "llm:succeeded handoff:succeeded handoff:failed llm:succeeded" {
		t.Errorf("two in one turn: %q %s", r.text(), r.shape())
	}
	// Policies match builtin:handoff.
	c.policy(t, ctx, object{"tool_pattern": "builtin:handoff", "source": "builtin", "agent_id": frontAgent})
	for action, want := range map[string]string{"approve": "taken over", "reject": "stayed"} {
		frontModel.fake.Script(asks("builtin_handoff", fmt.Sprintf(`{"to":%q}`, handoffs[0])), says("stayed"))
		run := c.runOnce(t, ctx, frontAgent, "go")
		a := c.waits(t, ctx, run)
		if len(a) != 1 || a[0].RequestedAction.Tool != "builtin:handoff" || a[0].AgentID != frontAgent {
			t.Fatalf("asked %+v", a)
		}
		c.decides(t, ctx, a[0].ID, object{"action": action})
		if r := c.poll(t, ctx, run, "succeeded"); r.text() != want {
			t.Errorf("%s: %q", action, r.text())
		}
	}

	t.Run("at most 5 per run, then LIMIT_EXCEEDED", func(t *testing.T) {
		ping, provider := modelled(t, ctx, c, "openai")
		one, two := c.makesAgent(t, ctx, object{"name": "One", "slug": "one"}), c.makesAgent(t, ctx, object{"name": "Two", "slug": "two"})
		for agent, to := range map[string]string{one: "two", two: "one"} {
			c.ask(t, ctx, 201, "POST", "/v1/agents/"+agent+"/versions", object{"manifest": object{"model": object{"provider": provider, "name": "m"}, "instructions": "Hand over to " + to, "handoffs": []string{to}}}, nil)
			c.ask(t, ctx, 200, "POST", "/v1/agents/"+agent+"/versions/1/publish", nil, nil)
		}
		ping.fake.Answer(func(r *fake.Request) fake.Reply {
			to := "one"
			if strings.Contains(string(r.Body), "Hand over to two") {
				to = "two"
			}
			return asks("builtin_handoff", `{"to":"`+to+`"}`)
		})
		r := c.poll(t, ctx, c.runOnce(t, ctx, one, "go"), "failed")
		if r.Run.Error.Code != "LIMIT_EXCEEDED" || strings.Count(r.shape(), "handoff:succeeded") != 5 {
			t.Errorf("%+v %s", r.Run.Error, r.shape())
		}
	})
}

// makesAgent creates an agent without a published version.
func (c *caller) makesAgent(t *testing.T, ctx context.Context, body object) string {
	t.Helper()
	var made struct{ Agent struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/agents", body, &made)
	return made.Agent.ID
}

func TestCallLimits(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("limits of calls")
	many := func(s *shop, n int) fake.Reply {
		var ask []string
		for i := range n {
			ask = append(ask, s.slug+"_orders_lookup", fmt.Sprintf(`{"id":%d}`, i))
		}
		return asks(ask...)
	}
	for _, row := range []struct {
		name   string
		calls  int
		limits object
		status string
		code   string
		steps  int
		called int
	}{
		{"128 calls of one turn", 128, object{"max_steps": 200}, "succeeded", "", 130, 128},
		{"more than 128 calls of one turn are MODEL_ERROR", 129, object{"max_steps": 200}, "failed", "MODEL_ERROR", 2, 0},
		{"max_steps counts persisted steps", 3, object{"max_steps": 4}, "failed", "LIMIT_EXCEEDED", 4, 3},
		{"calls that would pass max_steps are not made", 4, object{"max_steps": 4}, "failed", "LIMIT_EXCEEDED", 1, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 30*time.Second)
			s := c.shop(t, ctx, "none", "")
			replies := []fake.Reply{many(s, row.calls), says("done")}
			if row.calls > 128 { // the answer counts as broken, which is retried once
				replies = replies[:1]
			}
			_, provider := modelled(t, ctx, c, "openai", replies...)
			r := c.poll(t, ctx, c.runOnce(t, ctx, c.clerk(t, provider, object{"limits": row.limits}, s), "go"), row.status)
			code := ""
			if r.Run.Error != nil {
				code = r.Run.Error.Code
			}
			if code != row.code || len(r.Steps) != row.steps || len(s.called()) != row.called {
				t.Errorf("%s %d steps, %d calls, %+v", code, len(r.Steps), len(s.called()), r.Run.Error)
			}
		})
	}

	t.Run("max_seconds ends a call that runs", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		s := c.shop(t, ctx, "none", "")
		gone := make(chan struct{})
		s.set(func(h *toolHost) {
			h.call = func(_ http.ResponseWriter, r *http.Request, _ rpc) { <-r.Context().Done(); close(gone) }
		})
		_, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_lookup", `{"id":1}`), says("done"))
		r := c.poll(t, ctx, c.runOnce(t, ctx, c.clerk(t, provider, object{"limits": object{"max_seconds": 8}}, s), "go"), "failed")
		if r.Run.Error.Code != "LIMIT_EXCEEDED" || r.shape() != "llm:succeeded tool:failed" {
			t.Errorf("%+v %s", r.Run.Error, r.shape())
		}
		<-gone
	})
	t.Run("max_seconds counts time in status running only", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		s := c.shop(t, ctx, "none", "")
		_, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_lookup", `{"id":1}`), says("done"))
		agent := c.clerk(t, provider, object{"limits": object{"max_seconds": 8}, "hitl": object{"rules": []object{{"tool": "*", "sla_minutes": 0.15}}}}, s)
		if r := c.poll(t, ctx, c.runOnce(t, ctx, agent, "go"), "succeeded"); r.Run.FinishedAt.Sub(*r.Run.StartedAt) < 9*time.Second {
			t.Errorf("the run took %s: the test is void", r.Run.FinishedAt.Sub(*r.Run.StartedAt))
		}
	})
	t.Run("cancel while a tool is called", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		s := c.shop(t, ctx, "none", "")
		came, gone := make(chan struct{}), make(chan struct{})
		s.set(func(h *toolHost) {
			h.call = func(_ http.ResponseWriter, r *http.Request, _ rpc) { close(came); <-r.Context().Done(); close(gone) }
		})
		_, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_lookup", `{"id":1}`, s.slug+"_nothing", `{}`), says("done"))
		run := c.runOnce(t, ctx, c.clerk(t, provider, nil, s), "go")
		live := c.watch(t, ctx, run, "?replay=full")
		<-came
		c.ask(t, ctx, 200, "POST", "/v1/runs/"+run+"/cancel", nil, nil)
		r := c.poll(t, ctx, run, "cancelled")
		<-gone
		frames := <-live
		if last := frames[len(frames)-1]; last.Type != "run.failed" || !strings.Contains(string(last.Data), `"CANCELLED"`) || r.shape() != "llm:succeeded tool:failed tool:failed" {
			t.Errorf("%s %s, %s", last.Type, last.Data, r.shape())
		}
	})
	t.Run("deleting a thread cancels its approvals", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		g := gated(t, ctx, c, object{}, nil)
		r := c.read(t, ctx, g.run)
		c.ask(t, ctx, 204, "DELETE", "/v1/threads/"+*r.Run.ThreadID, nil, nil)
		eventually(t, ctx, "the approval is cancelled", func() bool { return c.approval(t, ctx, g.a.ID).Status == "cancelled" })
		if len(g.shop.called()) != 0 {
			t.Errorf("called %v", g.shop.called())
		}
	})
	t.Run("runs of one thread wait behind a waiting run", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		g := gated(t, ctx, c, object{}, nil)
		thread := *c.read(t, ctx, g.run).Run.ThreadID
		second, third := c.say(t, ctx, thread, "second"), c.say(t, ctx, thread, "third")
		elsewhere := c.say(t, ctx, c.thread(t, ctx, g.agent), "elsewhere")
		c.poll(t, ctx, elsewhere, "succeeded")
		for _, run := range []string{second, third} {
			if r := c.read(t, ctx, run); r.Run.Status != "queued" {
				t.Errorf("a run behind a waiting one is %s", r.Run.Status)
			}
		}
		c.decides(t, ctx, g.a.ID, object{"action": "approve"})
		var ended []time.Time
		for _, run := range []string{g.run, second, third} {
			r := c.poll(t, ctx, run, "succeeded")
			ended = append(ended, *r.Run.StartedAt, *r.Run.FinishedAt)
		}
		if !slices.IsSortedFunc(ended[1:], func(a, b time.Time) int { return a.Compare(b) }) {
			t.Errorf("started and finished at %v", ended)
		}
	})
}

// A waiting run holds no slot of SVC_RUN_CONCURRENCY, and a decided one waits for none; SVC_ESCALATION_FRACTION sets
// when an approval escalates.
func TestSlotsOfWaitingRunsOverHTTP(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_RUN_CONCURRENCY=1", "SVC_ESCALATION_FRACTION=0.025")
	n.start()
	c := n.tenant("places")
	g := gated(t, ctx, c, object{"approver_role": "member", "escalate_to_role": "admin", "sla_minutes": 2}, nil)

	busy := c.publish(t, "Busy", simulatedModel)
	c.poll(t, ctx, c.runOnce(t, ctx, busy, "/say the place is free meanwhile"), "succeeded")
	long := c.runOnce(t, ctx, busy, "/delay 1s\n/tokens 280")
	c.poll(t, ctx, long, "running")
	queued := c.runOnce(t, ctx, busy, "/say later")
	if r := c.read(t, ctx, queued); r.Run.Status != "queued" {
		t.Errorf("a run beyond SVC_RUN_CONCURRENCY is %s", r.Run.Status)
	}

	// It escalates after 0.025 of two minutes, not after the default half of them, and the deadline stays.
	eventually(t, ctx, "the escalation", func() bool { return c.approval(t, ctx, g.a.ID).EscalatedAt != nil })
	a := c.approval(t, ctx, g.a.ID)
	if after := a.EscalatedAt.Sub(a.CreatedAt); after < 3*time.Second || after >= time.Minute || a.AssigneeRole != "admin" || a.Status != "pending" || !a.ExpiresAt.Equal(g.a.ExpiresAt) {
		t.Errorf("escalated after %s: %+v", after, a)
	}

	// The only slot is taken, and the decided run continues all the same.
	c.decides(t, ctx, g.a.ID, object{"action": "approve"})
	c.poll(t, ctx, g.run, "succeeded")
	if r := c.read(t, ctx, long); r.Run.Status != "running" {
		t.Errorf("the long run is %s: the test is void", r.Run.Status)
	}
	if r := c.read(t, ctx, queued); r.Run.Status != "queued" {
		t.Errorf("the queued run is %s although the slot is taken", r.Run.Status)
	}
	c.ask(t, ctx, 200, "POST", "/v1/runs/"+long+"/cancel", nil, nil)
	c.poll(t, ctx, queued, "succeeded")
}
