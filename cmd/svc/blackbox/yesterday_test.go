package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsvc/cmd/svc/client"
	"agentsvc/schemas/webhook"
	"agentsvc/transport/model/fake"
)

// A tenant whose work waits in every form that there is when its service stops, and what must become of that
// work at the next start. The service that stops and the one that starts may be of different builds: TestStoredDataGoesOn
// (stored_test.go) starts from rows that an earlier build left, and the tests of make upgrade from a binary of
// an earlier commit.

// yesterday is that tenant. Its servers outlive the service.
type yesterday struct {
	t     *testing.T
	c     *caller
	shop  *toolHost
	model *fake.Server
	sink  *sink

	// kept is what the tenant and its clients remember: ids, keys and answers.
	kept map[string]string

	over    chan struct{} // closed once the held model and the held tools answer
	release func()

	mu   sync.Mutex     // guards made
	made map[string]int // calls of tools since this process began, by name and arguments
}

// yesterdayEnv are the settings of a service with a yesterday. What is in flight is cut at the end; a webhook whose
// endpoint is down is sent again half a minute later.
func yesterdayEnv() []string {
	return []string{"SVC_MASTER_KEY=" + masterKey(7), "SVC_OUTBOUND_ALLOW=127.0.0.0/8", behindProxy, "SVC_DRAIN_TIMEOUT=1s", "SVC_WEBHOOK_BACKOFF=20s", "SVC_TOOL_TIMEOUT=50s"}
}

const (
	keepTool  = `{"name":"keep","description":"Takes a key.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"},"idempotency_key":{"type":"string"}},"additionalProperties":false}}`
	onceTool  = `{"name":"once","description":"Takes none.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}},"additionalProperties":false}}`
	asksTool  = `{"name":"asks","description":"Waits for people.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"},"password":{"type":"string"}},"additionalProperties":false}}`
	twiceTool = `{"name":"asks.two","description":"Waits for two people.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}},"additionalProperties":false}}`
	soonTool  = `{"name":"asks.soon","description":"Waits for half a minute.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}},"additionalProperties":false}}`
)

// newYesterday prepares the servers.
func newYesterday(t *testing.T) *yesterday {
	t.Helper()
	y := &yesterday{t: t, shop: newToolHost(t), kept: map[string]string{}, over: make(chan struct{}), made: map[string]int{}}
	y.release = sync.OnceFunc(func() { close(y.over) })
	var err error
	if y.model, err = fake.New(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(y.model.Close)
	y.model.Answer(func(r *fake.Request) fake.Reply {
		if strings.Contains(string(r.Body), "held") {
			<-y.over
		}
		return says("the answer")
	})
	y.sink = newSink(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		select {
		case <-y.over:
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	y.shop.set(func(h *toolHost) {
		h.tools = []string{keepTool, onceTool, asksTool, twiceTool, soonTool}
		h.call = func(w http.ResponseWriter, r *http.Request, m rpc) {
			y.mu.Lock()
			y.made[m.Params.Name+" "+string(m.Params.Arguments)]++
			y.mu.Unlock()
			var args struct{ N string }
			_ = json.Unmarshal(m.Params.Arguments, &args)
			if strings.HasPrefix(args.N, "held") {
				select {
				case <-y.over:
				case <-r.Context().Done():
				}
			}
			rpcText(w, m, `{"n":"`+args.N+`"}`)
		}
	})
	t.Cleanup(y.release)
	return y
}

// calls returns how often a tool was called with an order since this process began.
func (y *yesterday) calls(name, n string) (times int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for call, count := range y.made {
		var args struct{ N string }
		tool, text, _ := strings.Cut(call, " ")
		if json.Unmarshal([]byte(text), &args) == nil && tool == name && args.N == n {
			times += count
		}
	}
	return times
}

// places are the addresses that rows name, by the names that stand for them in files.
func (y *yesterday) places() map[string]string {
	return map[string]string{"SHOP": y.shop.Listener.Addr().String(), "SINK": y.sink.Listener.Addr().String(), "MODEL": strings.TrimSuffix(strings.TrimPrefix(y.model.OpenAI(), "http://"), "/v1")}
}

// as returns the tenant's client of a node.
func (y *yesterday) as(base string) {
	y.c = &caller{client.Client{Base: base, Key: y.kept["key"], Tenant: y.kept["tenant"], HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}}
	y.t.Cleanup(y.c.HTTP.CloseIdleConnections)
}

// begin makes a tenant on a running node and lets it begin all of its work.
func (y *yesterday) begin(ctx context.Context, c *caller) {
	y.t.Helper()
	hears := c.subscribe(y.t, ctx, y.sink, "*")
	y.kept["endpoint"], y.kept["endpoint secret"] = hears.id, hears.secrets[0].secret
	y.prepare(ctx, c)
	for _, w := range leftWork {
		w.begin(y.t, ctx, y)
	}
}

// prepare makes what the work of the tenant needs: tools and agents.
func (y *yesterday) prepare(ctx context.Context, c *caller) {
	y.t.Helper()
	y.c, y.kept["key"], y.kept["tenant"] = c, c.Key, c.Tenant
	server := c.server(y.t, ctx, "shop", y.shop.URL, "none")
	c.grant(y.t, ctx, object{"source": "mcp", "mcp_server_id": server, "tool_pattern": "*", "effect": "allow"})
	c.policy(y.t, ctx, object{"tool_pattern": "shop.asks", "risk": "high"})
	c.policy(y.t, ctx, object{"tool_pattern": "shop.asks.two", "risk": "high", "required_approvals": 2})
	c.policy(y.t, ctx, object{"tool_pattern": "shop.asks.soon", "risk": "low", "sla_minutes": 0.5})
	c.makes(y.t, ctx, "/v1/model-providers", object{"slug": "own", "kind": "openai", "base_url": y.model.OpenAI(), "credentials": object{"api_key": "sk-own"}})
	all := object{"mcp": []object{{"server": "shop", "allow": []string{"*"}}}}
	y.kept["clerk"] = c.publish(y.t, "Clerk", object{"model": simulatedModel["model"], "tools": all})
	y.kept["thinker"] = c.publish(y.t, "Thinker", object{"model": object{"provider": "own", "name": "m"}, "tools": all})
}

// goesOn lets the held servers answer, and looks at what becomes of all work.
func (y *yesterday) goesOn(ctx context.Context) {
	y.t.Helper()
	y.release()
	for _, w := range leftWork {
		w.after(y.t, ctx, y)
	}
	y.reads(ctx)
	y.told(ctx)
}

// waits waits for the approvals of a run and keeps the id of the only one.
func (y *yesterday) asked(ctx context.Context, name, run string) {
	y.t.Helper()
	y.kept[name] = run
	got := y.c.waits(y.t, ctx, run)
	if len(got) != 1 {
		y.t.Fatalf("%s: %d approvals", name, len(got))
	}
	y.kept[name+" approval"] = got[0].ID
}

// ends waits for a run's good end and returns it.
func (y *yesterday) ends(ctx context.Context, name, shape string) *runAnswer {
	y.t.Helper()
	r := y.c.poll(y.t, ctx, y.kept[name], "succeeded")
	if r.shape() != shape {
		y.t.Errorf("%s: steps %s, want %s", name, r.shape(), shape)
	}
	return r
}

// once checks how often a call was made since this process began.
func (y *yesterday) once(name, n string, want int) {
	y.t.Helper()
	if got := y.calls(name, n); got != want {
		y.t.Errorf("%s %s was called %d times, want %d", name, n, got, want)
	}
}

// work is something that waits when a service stops, and what must become of it.
type work struct {
	name         string
	begin, after func(t *testing.T, ctx context.Context, y *yesterday)
}

// allNodesWait is the work that is a run of a workflow.
const allNodesWait = "a workflow whose nodes of all types wait"

// leftWork is all work of a yesterday.
var leftWork = []work{
	{
		name: "a gated call, and a stream that was read up to it",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			run := y.c.runOnce(t, ctx, y.kept["clerk"], `/think hm
/say first
/call asks {"n":"gated","password":"a secret"}
/say done`)
			y.asked(ctx, "gated", run)
			var heard []string
			y.c.stream(t, ctx, run, "?replay=full", "", func(f client.Frame) bool {
				heard = append(heard, f.ID)
				return f.Type != "run.waiting"
			})
			y.kept["gated heard"] = strings.Join(heard, " ")
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			heard := strings.Fields(y.kept["gated heard"])
			rest := y.c.watch(t, ctx, y.kept["gated"], "?replay=full&since=-1")
			y.c.decides(t, ctx, y.kept["gated approval"], object{"action": "approve"})
			y.ends(ctx, "gated", "llm:succeeded tool:succeeded llm:succeeded")
			y.once("asks", "gated", 1)
			if got := y.shop.called(); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, `"a secret"`) }) {
				t.Errorf("the tool got no password: %v", got)
			}
			<-rest
			var ids, again []string
			for _, f := range y.c.stream(t, ctx, y.kept["gated"], "?replay=full", "", nil) {
				ids = append(ids, f.ID)
			}
			for _, f := range y.c.stream(t, ctx, y.kept["gated"], "?replay=full", heard[len(heard)-1], nil) {
				again = append(again, f.ID)
			}
			if n := len(ids) - len(again); n < 1 || !slices.Equal(ids[n:], again) || ids[n-1] != heard[len(heard)-1] {
				t.Errorf("frames %v, after %s %v", ids, heard[len(heard)-1], again)
			}
		},
	},
	{
		name: "an edited call that waits for a second person",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.asked(ctx, "edited", y.c.runOnce(t, ctx, y.kept["clerk"], `/call asks.two {"n":"before"}`))
			if got := y.c.decides(t, ctx, y.kept["edited approval"], object{"action": "edit", "edited_args": object{"n": "edited"}}); got != "pending 1" {
				t.Errorf("the first vote: %s", got)
			}
			y.kept["second"] = passphrase
			y.c.makes(t, ctx, "/v1/users", object{"email": "second@example.com", "name": "Second", "role": "admin", "password": passphrase})
			p := y.c.person(t, ctx, "second@example.com")
			y.kept["cookie"] = p.HTTP.Transport.(asSession).cookie
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			second := *y.c
			second.HTTP = &http.Client{Transport: asSession{y.c.HTTP.Transport, y.kept["cookie"]}}
			second.ask(t, ctx, 200, "GET", "/v1/auth/me", nil, nil)
			if got := second.decides(t, ctx, y.kept["edited approval"], object{"action": "approve"}); got != "approved 2" && got != "edited 2" {
				t.Errorf("the second vote: %s", got)
			}
			y.ends(ctx, "edited", "llm:succeeded tool:succeeded llm:succeeded")
			y.once("asks.two", "edited", 1)
			y.once("asks.two", "before", 0)
			y.c.person(t, ctx, "second@example.com")
		},
	},
	{
		name: "an approval that expires",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.asked(ctx, "expires", y.c.runOnce(t, ctx, y.kept["clerk"], `/call asks.soon {"n":"late"}`))
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.ends(ctx, "expires", "llm:succeeded tool:failed llm:succeeded")
			if a := y.c.approval(t, ctx, y.kept["expires approval"]); a.Status != "expired" {
				t.Errorf("the approval is %s", a.Status)
			}
			y.once("asks.soon", "late", 0)
		},
	},
	{
		name: "a thread whose first run waits and whose second is queued",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			thread := y.c.thread(t, ctx, y.kept["clerk"])
			y.kept["thread"] = thread
			y.asked(ctx, "first", y.c.say(t, ctx, thread, `/call asks {"n":"threaded"}`))
			y.kept["queued"] = y.c.say(t, ctx, thread, "/say second")
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			if r := y.c.read(t, ctx, y.kept["queued"]); r.Run.Status != "queued" {
				t.Errorf("the second run is %s", r.Run.Status)
			}
			third := y.c.say(t, ctx, y.kept["thread"], "/say third")
			y.c.decides(t, ctx, y.kept["first approval"], object{"action": "approve"})
			y.ends(ctx, "first", "llm:succeeded tool:succeeded llm:succeeded")
			y.ends(ctx, "queued", "llm:succeeded")
			y.c.poll(t, ctx, third, "succeeded")
			y.once("asks", "threaded", 1)
			var list struct {
				Items []struct{ Role, Content string }
			}
			y.c.ask(t, ctx, 200, "GET", "/v1/threads/"+y.kept["thread"]+"/messages", nil, &list)
			var got []string
			for _, m := range list.Items {
				got = append(got, m.Role+" "+m.Content)
			}
			if len(got) != 6 || got[2] != "user /say second" || got[3] != "assistant second" || got[5] != "assistant third" {
				t.Errorf("messages %q", got)
			}
		},
	},
	{
		name: "a model's turn",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			before := len(y.model.Requests())
			y.kept["turn"] = y.c.runOnce(t, ctx, y.kept["thinker"], "held in the run")
			eventually(t, ctx, "the model is asked", func() bool { return len(y.model.Requests()) > before })
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			r := y.c.poll(t, ctx, y.kept["turn"], "succeeded")
			shape := strings.TrimPrefix(r.shape(), "llm:abandoned ") // once for each process that began it
			if shape != "llm:succeeded" && shape != "llm:abandoned llm:succeeded" || shape == r.shape() || r.text() != "the answer" {
				t.Errorf("it answered %q by the steps %s", r.text(), r.shape())
			}
		},
	},
	{
		name: "calls in flight",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.kept["calls"] = y.c.runOnce(t, ctx, y.kept["clerk"], "/call keep {\"n\":\"held\"}\n/call once {\"n\":\"held\"}")
			eventually(t, ctx, "both are called", func() bool { return y.calls("keep", "held") == 1 && y.calls("once", "held") == 1 })
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			r := y.ends(ctx, "calls", "llm:succeeded tool:succeeded tool:failed llm:succeeded")
			if !strings.Contains(string(r.Steps[2].Output), "UNKNOWN_OUTCOME") {
				t.Errorf("the call that takes no key: %s", r.Steps[2].Output)
			}
			y.mu.Lock()
			defer y.mu.Unlock()
			keys := map[string]bool{}
			for call, n := range y.made {
				if args, ok := strings.CutPrefix(call, "keep "); ok && strings.Contains(args, `"n":"held"`) {
					keys[args] = true
					y.kept["calls made"] = fmt.Sprint(n)
				}
			}
			if len(keys) != 1 {
				t.Errorf("one call was made with the keys %v", keys)
			}
		},
	},
	{
		name: allNodesWait,
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			definition := strings.NewReplacer("CLERK", y.kept["clerk"], "THINKER", y.kept["thinker"]).Replace(`{"nodes": [
				{"id": "v", "type": "set", "values": {"who": "{{input.who}}", "n": 7}},
				{"id": "a", "type": "agent", "agent_id": "CLERK", "input": "/say hello {{variables.who}}"},
				{"id": "e1", "type": "wait_event", "event": "first"},
				{"id": "c", "type": "condition", "expression": "nodes.e1.json.n > variables.n"},
				{"id": "x", "type": "set", "values": {"never": 1}},
				{"id": "y", "type": "set", "values": {"y": "<{{nodes.e1.json.n}}>"}},
				{"id": "d", "type": "delay", "seconds": 30},
				{"id": "late", "type": "wait_event", "event": "late"},
				{"id": "e2", "type": "wait_event", "event": "second {{input.who}}", "timeout_minutes": 600},
				{"id": "g", "type": "gate", "title": "for {{variables.who}}?", "risk": "high", "sla_minutes": 600},
				{"id": "h", "type": "human_task", "title": "?", "form": {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}},
				{"id": "k", "type": "tool", "tool": "shop.keep", "args": {"n": "held by {{nodes.e1.json.n}}"}},
				{"id": "p", "type": "tool", "tool": "shop.asks", "args": {"n": "for {{variables.who}}"}},
				{"id": "b", "type": "agent", "agent_id": "THINKER", "input": "held, {{nodes.a.text}}"},
				{"id": "z", "type": "set", "values": {"all": "{{nodes.a.text}}|{{nodes.b.text}}|{{nodes.e1.json.n}}|{{nodes.e2.text}}|{{nodes.h.json.ok}}|{{nodes.late.json.m}}|{{nodes.k.json.n}}|{{nodes.p.json.n}}|{{variables.y}}"}}],
				"edges": [{"from": "v", "to": "a"}, {"from": "v", "to": "d"}, {"from": "v", "to": "e1"}, {"from": "v", "to": "e2"}, {"from": "v", "to": "g"}, {"from": "v", "to": "h"}, {"from": "v", "to": "p"},
					{"from": "e1", "to": "c"}, {"from": "c", "to": "x", "when": false}, {"from": "c", "to": "y", "when": true}, {"from": "e1", "to": "k"}, {"from": "a", "to": "b"},
					{"from": "d", "to": "late"}, {"from": "late", "to": "z"}, {"from": "e2", "to": "z"}, {"from": "g", "to": "z"}, {"from": "h", "to": "z"}, {"from": "p", "to": "z"},
					{"from": "k", "to": "z"}, {"from": "b", "to": "z"}, {"from": "x", "to": "z"}, {"from": "y", "to": "z"}],
				"variables": {"n": 1, "y": null}}`)
			var made struct{ Workflow struct{ ID string } }
			y.c.ask(t, ctx, 201, "POST", "/v1/workflows", object{"name": "All", "definition": json.RawMessage(definition)}, &made)
			workflow := "/v1/workflows/" + made.Workflow.ID
			y.c.ask(t, ctx, 200, "POST", workflow+"/versions/1/publish", nil, nil)
			before := len(y.model.Requests())
			run := y.c.ask(t, ctx, 202, "POST", workflow+"/runs", object{"input": object{"who": "me & you"}, "variables": object{"extra": object{"deep": []any{1, "2"}}}}, nil).run(t)
			y.kept["workflow"], y.kept["workflow run"] = made.Workflow.ID, run
			y.event(t, ctx, object{"name": "late", "payload": object{"m": 9}, "id": "early"})
			y.event(t, ctx, object{"name": "first", "payload": object{"n": 8}})
			eventually(t, ctx, "all wait", func() bool {
				return y.calls("keep", "held by 8") == 1 && len(y.c.approvals(t, ctx, "run_id="+run)) == 3 && len(y.model.Requests()) > before
			})
			// The next version means something else: a run keeps the one that it began with.
			y.c.ask(t, ctx, 201, "POST", workflow+"/versions", object{"definition": json.RawMessage(`{"nodes": [{"id": "v", "type": "set", "values": {"other": 1}}], "edges": []}`)}, nil)
			y.c.ask(t, ctx, 200, "POST", workflow+"/versions/2/publish", nil, nil)
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			run := y.kept["workflow run"]
			for _, a := range y.c.approvals(t, ctx, "status=pending&run_id="+run) {
				body := object{"action": "approve"}
				if a.RequestedAction.Tool == "workflow:human_task" {
					body = object{"action": "edit", "edited_args": object{"ok": true}}
				}
				y.c.decides(t, ctx, a.ID, body)
			}
			y.event(t, ctx, object{"name": "late", "payload": object{"m": 10}, "id": "early"}) // the sender repeats it
			y.event(t, ctx, object{"name": "second me & you", "payload": "2"})
			r := y.c.poll(t, ctx, run, "succeeded")
			var output struct {
				Outputs   map[string]json.RawMessage
				Variables map[string]any
			}
			if err := json.Unmarshal(r.Run.Output, &output); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"all": "hello me & you|the answer|8|2|true|9|held by 8|for me & you|<8>", "y": "<8>", "n": 7.0, "who": "me & you", "extra": map[string]any{"deep": []any{1.0, "2"}}}
			if got, want := fmt.Sprint(output.Variables), fmt.Sprint(want); got != want {
				t.Errorf("variables %s, want %s", got, want)
			}
			if len(output.Outputs) != 14 || output.Outputs["x"] != nil {
				t.Errorf("outputs %s", r.Run.Output)
			}
			nodes := map[string]int{}
			for _, s := range r.Steps {
				nodes[s.Name]++
			}
			if len(nodes) != 14 || len(r.Steps) != 14 {
				t.Errorf("steps %v", nodes)
			}
			y.once("asks", "for me & you", 1)
			if a, err := y.c.do(ctx, "POST", "/v1/workflows/runs/"+run+"/events", object{"name": "x"}); err != nil || a.code() != "RUN_TERMINAL" {
				t.Errorf("an event after its end: %v %s", err, a)
			}
			next := y.c.ask(t, ctx, 202, "POST", "/v1/workflows/"+y.kept["workflow"]+"/runs", object{}, nil).run(t)
			if r := y.c.poll(t, ctx, next, "succeeded"); !strings.Contains(string(r.Run.Output), `"other":1`) {
				t.Errorf("a new run: %s", r.Run.Output)
			}
		},
	},
	{
		name: "a hook, and a delivery of it that was heard",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			hook := y.c.trigger(t, ctx, object{"name": "Hook", "kind": "hook", "target": object{"agent_id": y.kept["clerk"]}, "input": object{"text": "/say hooked"}})
			y.kept["hook"], y.kept["hook secret"] = hook.ID, hook.Secret
			y.kept["hooked"] = y.c.fires(t, ctx, hook, `{}`, "Svc-Delivery-Id", "d1")
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			hook := client.TriggerView{ID: y.kept["hook"], Secret: y.kept["hook secret"]}
			if run := y.c.fires(t, ctx, hook, `{}`, "Svc-Delivery-Id", "d1"); run != y.kept["hooked"] {
				t.Errorf("the repeated delivery began the run %s, the first one %s", run, y.kept["hooked"])
			}
			run := y.c.fires(t, ctx, hook, `{}`, "Svc-Delivery-Id", "d2")
			if r := y.c.poll(t, ctx, run, "succeeded"); run == y.kept["hooked"] || r.text() != "hooked" {
				t.Errorf("the run %s said %q", run, r.text())
			}
		},
	},
	{
		name: "an answer under an Idempotency-Key",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			a := y.c.ask(t, ctx, 202, "POST", "/v1/agents/"+y.kept["clerk"]+"/runs", object{"input": "/say kept"}, nil, "Idempotency-Key", "kept")
			y.kept["answer"] = string(a.body)
			y.c.poll(t, ctx, a.run(t), "succeeded")
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			a := y.c.ask(t, ctx, 202, "POST", "/v1/agents/"+y.kept["clerk"]+"/runs", object{"input": "/say kept"}, nil, "Idempotency-Key", "kept")
			if string(a.body) != y.kept["answer"] {
				t.Errorf("the repeat is answered %s, it was %s", a.body, y.kept["answer"])
			}
		},
	},
	{
		name: "a visitor's conversation",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.kept["embed key"] = y.c.newEmbedKey(t, ctx, y.kept["clerk"], "Page", object{"rate_limit_per_min": 10000}).Key
			g := y.c.visitor(t, ctx, y.kept["embed key"], "")
			said, err := g.say(ctx, "", "/say welcome")
			if err != nil || said.status != 202 {
				t.Fatal(err, said)
			}
			y.c.poll(t, ctx, said.RunID, "succeeded")
			asked, err := g.say(ctx, said.ThreadID, `/call asks {"n":"visitor"}`)
			if err != nil || asked.status != 202 {
				t.Fatal(err, asked)
			}
			y.asked(ctx, "visited", asked.RunID)
			y.kept["visitor"], y.kept["visitor id"], y.kept["token"], y.kept["talk"] = g.Visitor, g.VisitorID, g.Token, said.ThreadID
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			g := newGuest(y.c, y.kept["embed key"], "")
			g.Visitor = y.kept["visitor"]
			if err := g.begin(ctx); err != nil {
				t.Fatal(err)
			}
			if g.VisitorID != y.kept["visitor id"] {
				t.Errorf("the browser is the visitor %s, it was %s", g.VisitorID, y.kept["visitor id"])
			}
			behind, err := g.say(ctx, y.kept["talk"], "/say thanks")
			if err != nil || behind.status != 202 {
				t.Fatal(err, behind)
			}
			y.c.decides(t, ctx, y.kept["visited approval"], object{"action": "approve"})
			y.ends(ctx, "visited", "llm:succeeded tool:succeeded llm:succeeded")
			y.c.poll(t, ctx, behind.RunID, "succeeded")
			y.once("asks", "visitor", 1)
			var list struct {
				Items []struct{ Role, Content string }
			}
			g.ask(t, ctx, 200, "GET", "/v1/embed/threads/"+y.kept["talk"]+"/messages", nil, &list)
			if len(list.Items) != 6 || list.Items[1].Content != "welcome" || list.Items[5].Content != "thanks" {
				t.Errorf("messages %+v", list.Items)
			}
		},
	},
	{
		name: "a file",
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.kept["file"] = y.c.attach(t, ctx, "note.txt", []byte("of yesterday"))
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.c.holds(t, ctx, y.kept["file"], []byte("of yesterday"))
		},
	},
	{
		name: "a schedule", // the last one: it may take a minute until it is due
		begin: func(t *testing.T, ctx context.Context, y *yesterday) {
			y.kept["punctual"] = y.c.publish(t, "Punctual", simulatedModel)
			made := y.c.trigger(t, ctx, object{"name": "Each minute", "kind": "schedule", "target": object{"agent_id": y.kept["punctual"]}, "schedule": object{"cron": "* * * * *"}, "input": "/say on time"})
			y.kept["schedule"] = made.ID
		},
		after: func(t *testing.T, ctx context.Context, y *yesterday) {
			eventually(t, ctx, "the schedule has fired", func() bool { return y.c.shown(t, ctx, y.kept["schedule"]).LastFiredAt != nil })
			y.c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+y.kept["schedule"], object{"enabled": false}, nil)
			var list struct{ Items []client.RunView }
			y.c.ask(t, ctx, 200, "GET", "/v1/runs?agent_id="+y.kept["punctual"], nil, &list)
			if len(list.Items) == 0 || len(list.Items) > 3 {
				t.Errorf("it began %d runs", len(list.Items))
			}
			for _, r := range list.Items {
				y.c.poll(t, ctx, r.ID, "succeeded")
			}
		},
	},
}

// event sends an event to the workflow run.
func (y *yesterday) event(t *testing.T, ctx context.Context, body object) {
	t.Helper()
	y.c.ask(t, ctx, 202, "POST", "/v1/workflows/runs/"+y.kept["workflow run"]+"/events", body, nil)
}

// ranView is a run of a list.
type ranView struct {
	client.RunView
	ParentRunID *string `json:"parent_run_id"`
}

// runs returns all runs of the tenant, child runs too.
func (y *yesterday) runs(ctx context.Context) (all []ranView) {
	y.t.Helper()
	for path := "/v1/runs?limit=100"; ; {
		var page struct {
			Items      []ranView
			NextCursor *string `json:"next_cursor"`
		}
		y.c.ask(y.t, ctx, 200, "GET", path, nil, &page)
		all = append(all, page.Items...)
		if page.NextCursor == nil {
			return all
		}
		path = "/v1/runs?limit=100&cursor=" + url.QueryEscape(*page.NextCursor)
	}
}

// reads reads everything that the tenant has: each list, and each run with its stream.
func (y *yesterday) reads(ctx context.Context) {
	y.t.Helper()
	for _, list := range []string{"agents", "threads", "runs", "approvals", "workflows", "triggers", "webhooks", "embed-keys", "mcp-servers", "connections", "tool-grants", "approval-policies",
		"model-providers", "users", "org-nodes", "api-keys", "end-users", "audit", "usage/records", "usage?group_by=agent"} {
		y.c.ask(y.t, ctx, 200, "GET", "/v1/"+list, nil, nil)
	}
	for _, r := range y.runs(ctx) {
		if !terminalStatus[r.Status] {
			y.t.Errorf("run %s is %s", r.ID, r.Status)
			continue
		}
		frames := y.c.stream(y.t, ctx, r.ID, "?replay=full", "", nil)
		for i := range frames {
			if i > 0 && slices.Compare(placeOf(frames[i-1]), placeOf(frames[i])) >= 0 {
				y.t.Errorf("run %s: the frame %s is behind %s", r.ID, frames[i].ID, frames[i-1].ID)
			}
		}
		if len(frames) == 0 || frames[len(frames)-1].Type != map[bool]string{true: "run.completed", false: "run.failed"}[r.Status == "succeeded"] {
			y.t.Errorf("run %s is %s, its stream has the frames %s", r.ID, r.Status, types(frames))
		}
	}
}

func placeOf(f client.Frame) []int64 {
	at := position(f.ID)
	return at[:]
}

// told looks at the webhooks: the end of each top-level run was told once, signed.
func (y *yesterday) told(ctx context.Context) {
	y.t.Helper()
	s := &subscriber{sink: y.sink, c: y.c, id: y.kept["endpoint"], path: "/v1/webhooks/" + y.kept["endpoint"]}
	eventually(y.t, ctx, "all deliveries have succeeded", func() bool {
		all := s.deliveries(y.t, ctx)
		return len(all) > 0 && !slices.ContainsFunc(all, func(d deliveryAnswer) bool { return d.Status != "succeeded" })
	})
	accepted, ended := map[string]int{}, map[string]bool{}
	for _, a := range y.sink.arrivals() {
		if a.status != http.StatusOK {
			continue
		}
		e := a.envelope(y.t)
		var data struct {
			RunID string `json:"run_id"`
		}
		if err := json.Unmarshal(e.Data, &data); err != nil {
			y.t.Fatal(err)
		}
		accepted[e.ID]++
		if strings.HasPrefix(e.Type, "run.") {
			if ended[data.RunID] {
				y.t.Errorf("the end of run %s was told twice", data.RunID)
			}
			ended[data.RunID] = true
		}
		if err := webhook.Verify(y.kept["endpoint secret"], a.signature, []byte(a.body), a.at); err != nil {
			y.t.Errorf("the event %s: %v", e.ID, err)
		}
	}
	for event, n := range accepted {
		if n != 1 {
			y.t.Errorf("the event %s was accepted %d times", event, n)
		}
	}
	for _, r := range y.runs(ctx) {
		if want := r.ParentRunID == nil; ended[r.ID] != want {
			y.t.Errorf("the end of run %s was told: %t", r.ID, ended[r.ID])
		}
	}
}
