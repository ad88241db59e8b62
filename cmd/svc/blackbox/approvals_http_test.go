package blackbox

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// gate is a run that waits for a decision on shop.orders.refund.
type gate struct {
	c     *caller
	shop  *shop
	model wire
	agent string
	run   string
	a     approvalAnswer
	live  <-chan []client.Frame
}

// gated starts a run that waits under this policy.
func gated(t *testing.T, ctx context.Context, c *caller, policy, manifest object) *gate {
	t.Helper()
	g := &gate{c: c, shop: c.shop(t, ctx, "bearer", "token-of-the-shop")}
	ask := asks(g.shop.slug+"_orders_refund", `{"id":7,"amount":12.50}`)
	ask.Text = []string{"The customer ", "is right."}
	var provider string
	g.model, provider = modelled(t, ctx, c, "openai", ask, says("All done."))
	g.agent = c.clerk(t, provider, manifest, g.shop)
	if policy != nil {
		policy["agent_id"], policy["tool_pattern"] = g.agent, g.shop.slug+".orders.refund"
		c.policy(t, ctx, policy)
	}
	thread := c.thread(t, ctx, g.agent)
	g.run = c.say(t, ctx, thread, "Refund order 7")
	g.live = c.watch(t, ctx, g.run, "?replay=full")
	list := c.waits(t, ctx, g.run)
	if len(list) != 1 {
		t.Fatalf("%d approvals", len(list))
	}
	g.a = list[0]
	return g
}

func (g *gate) names() []string {
	return []string{g.run, "RUN", g.agent, "AGENT", g.a.ID, "APPROVAL", g.shop.slug, "shop"}
}

// service.md, Approval status, and the rows of Run status that involve approvals, as a tenant's back end
// sees them.
func TestApprovalStatus(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("approval status")
	const (
		head = `run.started {"run_id":"RUN","agent_id":"AGENT","status":"running"}
step.started {"idx":0,"kind":"llm","name":"m"}
llm.delta The customer is right.
step.started {"idx":1,"kind":"tool","name":"shop.orders.refund"}
approval.required {"approval_id":"APPROVAL","tool":"shop.orders.refund","expires_at":"…"}
run.waiting {"status":"waiting_approval"}
`
		called = `tool.called {"idx":1,"tool":"shop.orders.refund","args_preview":"{\"id\":7,\"amount\":12.50,\"idempotency_key\":\"KEY\"}"}
tool.result {"idx":1,"ok":true,"output_preview":"{\"ok\":true}"}
`
		tail = `step.started {"idx":2,"kind":"llm","name":"m"}
llm.delta All done.
run.completed {"status":"succeeded","output":{"text":"All done."},"tokens_in":2,"tokens_out":2,"cost_usd":0}`
		original = `orders.refund {"id":7,"amount":12.50,"idempotency_key":"KEY"}`
	)
	for _, row := range []struct {
		name     string
		policy   object
		manifest object
		decide   func(t *testing.T, ctx context.Context, g *gate)
		status   string // of the approval
		soFar    int
		run      string // its status
		code     string
		frames   string // after head
		calls    []string
		hears    []string // of the model, after its call
		step     string   // status and output of the call's step
		audit    []string
		owners   bool // at the end the approval is for owners, so a key does not see it
	}{
		{
			name: "pending, decision approve, distinct approvals reach required_approvals: approved; tool runs with original args; run resumes",
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				sameLines(t, "decided", []string{g.c.decides(t, ctx, g.a.ID, object{"action": "approve", "feedback": "fine"})}, []string{"approved 1"})
			},
			policy: object{}, status: "approved", soFar: 1, run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"approve"}` + "\n" + called + tail,
			calls:  []string{original}, hears: []string{`result c1 {"ok":true}`}, step: `succeeded {"ok":true}`,
			audit: []string{`ME approval.decide {"action":"approve","status":"approved"}`},
		},
		{
			name:   "pending, decision approve or edit, fewer than required: pending; approvals_so_far increases; run stays paused",
			policy: object{"required_approvals": 3},
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				other, third := g.c.human(t, ctx), g.c.human(t, ctx)
				sameLines(t, "decided", []string{
					g.c.decides(t, ctx, g.a.ID, object{"action": "approve"}),
					other.decides(t, ctx, g.a.ID, object{"action": "edit", "edited_args": object{"id": 7, "amount": 3}}),
				}, []string{"pending 1", "pending 2"})
				if r := g.c.read(t, ctx, g.run); r.Run.Status != "waiting_approval" || r.shape() != "llm:succeeded tool:waiting" || len(g.shop.called()) != 0 {
					t.Errorf("run %s %s, called %v", r.Run.Status, r.shape(), g.shop.called())
				}
				if a := g.c.colleague(t, ctx).refused(t, ctx, 409, g.a.ID, object{"action": "approve"}); a.code() != "ALREADY_DECIDED" || !strings.Contains(string(a.body), "all API keys of a tenant count as one") {
					t.Errorf("a second key: %s", a)
				}
				sameLines(t, "decided", []string{third.decides(t, ctx, g.a.ID, object{"action": "approve"})}, []string{"edited 3"})
			},
			status: "edited", soFar: 3, run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"approve"}` + "\n" +
				strings.ReplaceAll(called, `{\"id\":7,\"amount\":12.50,\"idempotency_key\":\"KEY\"}`, `{\"amount\":3,\"id\":7,\"idempotency_key\":\"KEY\"}`) + tail,
			calls: []string{`orders.refund {"amount":3,"id":7,"idempotency_key":"KEY"}`}, hears: []string{`result c1 {"ok":true}`}, step: `succeeded {"ok":true}`,
			audit: []string{`ME approval.decide {"action":"approve","status":"pending"}`, `OTHER approval.decide {"action":"edit","status":"pending"}`,
				`THIRD approval.decide {"action":"approve","status":"edited"}`},
		},
		{
			name:   "pending, decision edit, threshold reached, edited_args valid: edited; tool runs with edited_args",
			policy: object{},
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				for _, wrong := range []object{{"id": 7}, {"id": 7, "amount": 101}, {"id": 7, "amount": 1, "to": "me"}, {"id": 7, "amount": "[redacted]"}} {
					if a := g.c.refused(t, ctx, 422, g.a.ID, object{"action": "edit", "edited_args": wrong}); a.code() != "INVALID_ARGS" {
						t.Errorf("%v: %s", wrong, a)
					}
				}
				for _, wrong := range []object{{"action": "edit"}, {"action": "approve", "edited_args": object{"id": 7, "amount": 1}}, {"action": "expire"}, {}} {
					if a := g.c.refused(t, ctx, 400, g.a.ID, wrong); a.code() != "VALIDATION" {
						t.Errorf("%v: %s", wrong, a)
					}
				}
				sameLines(t, "decided", []string{g.c.decides(t, ctx, g.a.ID, object{"action": "edit", "edited_args": object{"id": 8, "amount": 10}})}, []string{"edited 1"})
			},
			status: "edited", soFar: 1, run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"edit"}` + "\n" +
				strings.ReplaceAll(called, `{\"id\":7,\"amount\":12.50,\"idempotency_key\":\"KEY\"}`, `{\"amount\":10,\"id\":8,\"idempotency_key\":\"KEY\"}`) + tail,
			calls: []string{`orders.refund {"amount":10,"id":8,"idempotency_key":"KEY"}`}, hears: []string{`result c1 {"ok":true}`}, step: `succeeded {"ok":true}`,
			audit: []string{`ME approval.decide {"action":"edit","status":"edited"}`},
		},
		{
			name:   "pending, decision reject: rejected; terminal at once; model gets a failed tool result { rejected: true, feedback }",
			policy: object{"required_approvals": 2},
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				sameLines(t, "decided", []string{g.c.decides(t, ctx, g.a.ID, object{"action": "reject", "feedback": "Too much."})}, []string{"rejected 0"})
			},
			status: "rejected", run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"reject"}
tool.result {"idx":1,"ok":false,"output_preview":"{\"rejected\":true,\"feedback\":\"Too much.\"}"}
` + tail,
			hears: []string{`result c1 {"rejected":true,"feedback":"Too much."}`}, step: `failed {"rejected":true,"feedback":"Too much."}`,
			audit: []string{`ME approval.decide {"action":"reject","status":"rejected"}`},
		},
		{
			name:   "pending, decision respond: responded; no tool runs; feedback is injected as a user message and the model continues",
			policy: object{"required_approvals": 2},
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				sameLines(t, "decided", []string{g.c.decides(t, ctx, g.a.ID, object{"action": "respond", "feedback": "Ask for the receipt."})}, []string{"responded 0"})
			},
			status: "responded", run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"respond"}
tool.result {"idx":1,"ok":true,"output_preview":"{\"responded\":true}"}
` + tail,
			hears: []string{`result c1 {"responded":true}`, "user Ask for the receipt."}, step: `succeeded {"responded":true}`,
			audit: []string{`ME approval.decide {"action":"respond","status":"responded"}`},
		},
		{
			name:   "pending, SLA elapsed: expired; run resumes as if rejected",
			policy: object{"sla_minutes": 0.1}, status: "expired", run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"expire"}
tool.result {"idx":1,"ok":false,"output_preview":"{\"rejected\":true,\"feedback\":\"expired\"}"}
` + tail,
			hears: []string{`result c1 {"rejected":true,"feedback":"expired"}`}, step: `failed {"rejected":true,"feedback":"expired"}`,
			audit: []string{`system approval.expired`},
		},
		{
			name:     "waiting_approval, approval expires with manifest rule on_timeout: cancel_run: cancelled; run.failed code EXPIRED",
			manifest: object{"hitl": object{"rules": []object{{"tool": "orders.refund", "sla_minutes": 0.1, "on_timeout": "cancel_run"}}}},
			status:   "expired", run: "cancelled", code: "EXPIRED",
			frames: `run.failed {"code":"EXPIRED","message":"An approval expired."}`,
			step:   `failed null`, audit: []string{`system approval.expired`},
		},
		{
			name:   "pending, run cancelled: cancelled; run.failed with code CANCELLED",
			policy: object{},
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				var s struct{ Status string }
				g.c.ask(t, ctx, 200, "POST", "/v1/runs/"+g.run+"/cancel", nil, &s)
				if s.Status != "cancelled" {
					t.Errorf("cancel answers %s", s.Status)
				}
			},
			status: "cancelled", run: "cancelled", code: "CANCELLED",
			frames: `run.failed {"code":"CANCELLED","message":"The run was cancelled."}`, step: `failed null`,
		},
		{
			name:   "pending, escalation sweep: assignee_role becomes the escalation role; audit approval.escalated; never lowers, leaves expires_at",
			policy: object{"sla_minutes": 0.2, "approver_role": "member", "escalate_to_role": "owner"},
			decide: func(t *testing.T, ctx context.Context, g *gate) {
				eventually(t, ctx, "the escalation", func() bool { return len(g.c.approvals(t, ctx, "run_id="+g.run)) == 0 })
				if a := g.c.refused(t, ctx, 403, g.a.ID, object{"action": "approve"}); a.code() != "FORBIDDEN" {
					t.Errorf("a key decides for an owner: %s", a)
				}
			},
			owners: true, run: "succeeded",
			frames: `run.resumed {"approval_id":"APPROVAL","decision":"expire"}
tool.result {"idx":1,"ok":false,"output_preview":"{\"rejected\":true,\"feedback\":\"expired\"}"}
` + tail,
			hears: []string{`result c1 {"rejected":true,"feedback":"expired"}`}, step: `failed {"rejected":true,"feedback":"expired"}`,
			audit: []string{`system approval.escalated {"from":"member","to":"owner"}`, `system approval.expired`},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 20*time.Second)
			g := gated(t, ctx, c, row.policy, row.manifest)
			if g.a.Status != "pending" || g.a.AgentID != g.agent || g.a.StepIdx != 1 || g.a.DecidedAt != nil || g.a.Reasoning != "The customer is right." ||
				ownKey.ReplaceAllString(string(g.a.RequestedAction.Args), "KEY") != `{"id":7,"amount":12.50,"idempotency_key":"KEY"}` {
				t.Errorf("opened as %+v", g.a)
			}
			if r := c.read(t, ctx, g.run); r.shape() == "llm:succeeded tool:waiting" && (string(r.Steps[1].Output) != "null" ||
				string(r.Steps[1].Input) != string(g.a.RequestedAction.Args) || r.Run.FinishedAt != nil) {
				t.Errorf("while it waits: %+v", r.Steps[1])
			}
			if row.decide != nil {
				row.decide(t, ctx, g)
			}
			r := c.poll(t, ctx, g.run, row.run)
			if code := ""; r.Run.Error != nil {
				if code = r.Run.Error.Code; code != row.code {
					t.Errorf("run failed with %s", code)
				}
			}
			if !row.owners {
				a := c.approval(t, ctx, g.a.ID)
				if a.Status != row.status || a.SoFar != row.soFar || a.DecidedAt == nil || !a.ExpiresAt.Equal(g.a.ExpiresAt) {
					t.Errorf("approval became %+v", a)
				}
				if g.c.refused(t, ctx, 409, g.a.ID, object{"action": "approve"}).code() != "ALREADY_DECIDED" {
					t.Error("a terminal approval can be decided again")
				}
			}
			live := <-g.live
			if got := transcript(live, g.names()...); got != head+row.frames {
				t.Errorf("frames\n%s\nwant\n%s", got, head+row.frames)
			}
			if again := c.stream(t, ctx, g.run, "?replay=full", "", nil); !slices.Equal(told(live), told(again)) {
				t.Errorf("live\n%s\nreplayed\n%s", strings.Join(told(live), "\n"), strings.Join(told(again), "\n"))
			}
			waiting := slices.IndexFunc(live, func(f client.Frame) bool { return f.Type == "run.waiting" })
			if rest := c.stream(t, ctx, g.run, "", live[waiting].ID, nil); !slices.Equal(told(rest), told(live[waiting+1:])) {
				t.Errorf("after run.waiting\n%s", strings.Join(told(rest), "\n"))
			}
			// Tool results and approval requests are not replayed (service.md, Run event stream).
			for _, f := range c.stream(t, ctx, g.run, "", "", nil) {
				if f.Type != "run.started" && f.Type != "step.started" && !f.Terminal() {
					t.Errorf("replayed %s", f.Type)
				}
			}
			calls := g.shop.called()
			for i := range calls {
				calls[i] = ownKey.ReplaceAllString(calls[i], "KEY")
			}
			sameLines(t, "called", calls, row.calls)
			requests := g.model.fake.Requests()
			if row.hears == nil {
				if len(requests) != 1 {
					t.Errorf("the model was asked %d times", len(requests))
				}
			} else {
				lines := dialogue(t, requests[1])
				for i := range lines {
					lines[i] = ownKey.ReplaceAllString(strings.ReplaceAll(lines[i], g.shop.slug, "shop"), "KEY")
				}
				sameLines(t, "the model hears", lines, append([]string{"user Refund order 7", "assistant The customer is right.", `call c1 shop_orders_refund {"id":7,"amount":12.50}`}, row.hears...))
			}
			if got := r.Steps[1].Status + " " + string(r.Steps[1].Output); got != row.step {
				t.Errorf("step %s, want %s", got, row.step)
			}
			audit := c.audited(t, ctx, g.a.ID)
			named := c.principals(t, ctx)
			for i := range audit {
				actor, rest, _ := strings.Cut(audit[i], " ")
				if name := named[actor]; name != "" {
					actor = name
				} else if strings.HasPrefix(actor, "user:") {
					actor = "a person"
				}
				audit[i] = actor + " " + rest
			}
			want := slices.Clone(row.audit)
			for i := range want {
				want[i] = strings.NewReplacer("ME ", "first key ", "OTHER ", "a person ", "THIRD ", "a person ").Replace(want[i])
			}
			sameLines(t, "audit", audit, want)
		})
	}
}

// principals returns the names of the tenant's keys by principal.
func (c *caller) principals(t *testing.T, ctx context.Context) map[string]string {
	t.Helper()
	var list struct{ Items []struct{ ID, Name string } }
	c.ask(t, ctx, 200, "GET", "/v1/api-keys", nil, &list)
	out := map[string]string{}
	for _, k := range list.Items {
		out["apikey:"+k.ID] = k.Name
	}
	return out
}
