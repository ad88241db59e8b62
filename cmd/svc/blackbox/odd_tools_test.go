package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Results of a server that cannot be stored as they are: the model gets them, the run continues, and the shown
// form is readable.
func TestOddResults(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("odd results")
	text := func(quoted string) string { return `{"content":[{"type":"text","text":` + quoted + `}]}` }
	long := strings.Repeat("0123456789abcde\u00e9", 1<<17) // 2 MiB and more
	deep := strings.Repeat(`[`, 20_000) + strings.Repeat(`]`, 20_000)
	for _, row := range []struct {
		name, result string
		hears        string // exact, unless check is set
		check        func(heard string) bool
		output       string // of the step; empty: any
	}{
		{name: "nothing", result: text(`""`), hears: "", output: `""`},
		{name: "no content at all", result: `{"content":[]}`, hears: "", output: `""`},
		{name: "several texts", result: `{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`, hears: "one\ntwo", output: `"one\ntwo"`},
		{name: "structured content only", result: `{"structuredContent":{"b":1,"a":[true,null]}}`, hears: `{"b":1,"a":[true,null]}`, output: `{"b":1,"a":[true,null]}`},
		{name: "an image", result: `{"content":[{"type":"image","mimeType":"image/png","data":"aGVsbG8="}]}`,
			check: func(s string) bool { return strings.Contains(s, "image/png") && !strings.Contains(s, "aGVsbG8") }},
		{name: "NUL", result: text(`"a\u0000b"`), hears: "a\uFFFDb", output: "\"a\uFFFDb\""},
		{name: "NUL inside of JSON", result: text(`"{\"a\":\"x\\u0000y\"}"`), check: func(s string) bool { return utf8.ValidString(s) }},
		{name: "half of a surrogate pair", result: text(`"a\ud800b"`), check: utf8.ValidString},
		{name: "half of a surrogate pair inside of JSON", result: text(`"{\"a\":\"\\ud800\"}"`), check: utf8.ValidString},
		{name: "a number that no float holds", result: text(`"{\"n\":1e999999}"`), hears: `{"n":1e999999}`, output: `{"n":1e999999}`},
		{name: "a key that is there twice", result: text(`"{\"a\":1,\"a\":2}"`), hears: `{"a":1,"a":2}`},
		{name: "JSON that nests too deep", result: text(`"` + deep + `"`), check: func(s string) bool { return len(s) > 0 }},
		{name: "secrets by their key", result: text(`"{\"user\":\"mia\",\"api_key\":\"k-1\",\"nested\":[{\"password\":\"p\"}]}"`),
			hears:  `{"user":"mia","api_key":"k-1","nested":[{"password":"p"}]}`,
			output: `{"user":"mia","api_key":"[redacted]","nested":[{"password":"[redacted]"}]}`},
		{name: "more than a model gets", result: text(`"` + long + `"`), check: func(s string) bool {
			return len(s) > 1<<20 && len(s) < 1<<20+100 && strings.HasSuffix(s, "[the answer was cut at 1048576 bytes]") && utf8.ValidString(s)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 20*time.Second)
			s := c.shop(t, ctx, "bearer", "token")
			s.set(func(h *toolHost) {
				h.call = func(w http.ResponseWriter, _ *http.Request, m rpc) { rpcResult(w, m, row.result) }
			})
			model, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_lookup", `{"id":1}`), says("ok"))
			run := c.runOnce(t, ctx, c.clerk(t, provider, nil, s), "go")
			frames := c.stream(t, ctx, run, "?replay=full", "", nil)
			r := c.poll(t, ctx, run, "succeeded")
			heard := strings.TrimPrefix(results(t, model.fake.Requests()[1])[0], "result c1 ")
			if row.check == nil && heard != row.hears || row.check != nil && !row.check(heard) {
				t.Errorf("the model gets %.300q, want %q", heard, row.hears)
			}
			if out := string(r.Steps[1].Output); r.shape() != "llm:succeeded tool:succeeded llm:succeeded" || !json.Valid([]byte(out)) || row.output != "" && out != row.output || len(out) > 260<<10 {
				t.Errorf("%s, output %.300s, want %s", r.shape(), out, row.output)
			}
			for _, f := range frames {
				if len(f.Data) > 8<<10 || !json.Valid(f.Data) {
					t.Errorf("a frame %s of %d bytes", f.Type, len(f.Data))
				}
			}
		})
	}
}

// Arguments that a model may write.
func TestOddArguments(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("odd arguments")
	for _, row := range []struct{ name, args, called, hears string }{
		{"none at all, for a tool that needs none", ``, `admin.delete {}`, `{"ok":true}`},
		{"null", `null`, "", `"error":"INVALID_ARGS"`},
		{"a key that is there twice", `{"a":1,"a":2}`, "", `"error":"INVALID_ARGS"`},
		{"nesting too deep", `{"a":` + strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000) + `}`, "", `"error":"INVALID_ARGS"`},
		{"a number of too many digits", `{"a":1e9999999}`, "", `"error":"INVALID_ARGS"`},
		{"JSON and more", `{"a":1}{"b":2}`, "", `"error":"INVALID_ARGS"`},
		{"half of a surrogate pair", `{"a":"\ud800"}`, "", ""},
		{"NUL", `{"a":"\u0000"}`, "", ""},
	} {
		for _, kind := range []string{"openai", "anthropic"} {
			t.Run(row.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				ctx := within(t, 20*time.Second)
				s := c.shop(t, ctx, "none", "")
				ask := asks(s.slug+"_admin_delete", row.args)
				if row.args == "" {
					ask.Calls[0].Args = nil
				}
				model, provider := modelled(t, ctx, c, kind, ask, says("ok"))
				run := c.runOnce(t, ctx, c.clerk(t, provider, object{"hitl": object{"rules": []object{{"tool": "*"}}}}, s), "go")
				eventually(t, ctx, "the run ends or waits", func() bool {
					r := c.read(t, ctx, run)
					return terminalStatus[r.Run.Status] || r.Run.Status == "waiting_approval"
				})
				for _, a := range c.approvals(t, ctx, "status=pending&run_id="+run) {
					c.decides(t, ctx, a.ID, object{"action": "approve"})
				}
				c.poll(t, ctx, run, "succeeded")
				if called := strings.Join(s.called(), "\n"); row.hears != "" && called != row.called {
					t.Errorf("called %s, want %s", called, row.called)
				}
				if got := results(t, model.fake.Requests()[1]); len(got) != 1 || !strings.Contains(got[0], row.hears) {
					t.Errorf("the model gets %q", got)
				}
				c.ask(t, ctx, 200, "GET", "/v1/approvals?run_id="+run, nil, nil)
			})
		}
	}
}

// Odd tools in a server's list are left out or refused one by one; the others work.
func TestOddLists(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("odd lists")
	s := c.shop(t, ctx, "none", "")
	tools := []string{
		`{"name":"no.schema"}`,
		`{"name":"bad.schema","inputSchema":{"type":"object","properties":{"a":{"type":"nonsense"}}}}`,
		`{"name":"far.schema","inputSchema":{"type":"object","properties":{"a":{"$ref":"` + s.URL + `/schema.json"}}}}`,
		`{"name":"true.schema","inputSchema":true}`,
		`{"name":"with space","inputSchema":{"type":"object"}}`,
		`{"name":"` + strings.Repeat("n", 200) + `","inputSchema":{"type":"object"}}`,
		`{"name":"builtin:handoff","inputSchema":{"type":"object"}}`,
		`{"name":"wordy","description":"` + strings.Repeat("word ", 10_000) + `","inputSchema":{"type":"object"}}`,
		`{"name":"hidden","description":"a\u202eb\u200bc\u0000d","inputSchema":{"type":"object"}}`,
		`{"name":"twice","description":"first","inputSchema":{"type":"object"}}`, `{"name":"twice","description":"second","inputSchema":{"type":"object"}}`,
		`5`, `null`, `{"name":7}`, lookupTool,
	}
	for i := range 1200 {
		tools = append(tools, fmt.Sprintf(`{"name":"t%d","inputSchema":{"type":"object"}}`, i))
	}
	s.set(func(h *toolHost) { h.tools = tools })
	model, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_no_schema", `{"any":1}`, s.slug+"_bad_schema", `{}`, s.slug+"_far_schema", `{"a":1}`, s.slug+"_orders_lookup", `{"id":1}`), says("ok"))
	r := c.poll(t, ctx, c.runOnce(t, ctx, c.clerk(t, provider, nil, s), "go"), "succeeded")
	if r.shape() != "llm:succeeded tool:succeeded tool:failed tool:failed tool:succeeded llm:succeeded" {
		t.Errorf("%s", r.shape())
	}
	got := results(t, model.fake.Requests()[1])
	for i, want := range []string{`{"ok":true}`, "is not granted to this agent. Nothing was run.", "is not granted to this agent. Nothing was run.", `{"ok":true}`} {
		if !strings.Contains(got[i], want) {
			t.Errorf("the model gets %s, want %s", got[i], want)
		}
	}
	names := offered(t, model.fake.Requests()[0])
	for _, odd := range []string{"with_space", "builtin_handoff", "nnnn", "true_schema"} {
		for _, name := range names {
			if strings.Contains(name, odd) {
				t.Errorf("offered %s", name)
			}
		}
	}
	if len(names) > 1000 || len(names) < 900 {
		t.Errorf("%d tools are offered", len(names))
	}
	for _, h := range s.heard() {
		if h.Get("User-Agent") != "svc" {
			t.Errorf("a URL in a schema was fetched: %v", h)
		}
	}
	if body := string(model.fake.Requests()[0].Body); strings.Contains(body, "\u202e") || strings.Contains(body, "\u200b") || strings.Contains(body, `"second"`) {
		t.Error("a description holds invisible characters")
	}
}

// A run survives the archiving of its agent: the agent takes no new runs, and a decision for the old run
// counts.
func TestAnArchivedAgentsRunContinues(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("archived")
	g := gated(t, ctx, c, object{}, nil)
	c.ask(t, ctx, 204, "DELETE", "/v1/agents/"+g.agent, nil, nil)
	c.decides(t, ctx, g.a.ID, object{"action": "approve"})
	c.poll(t, ctx, g.run, "succeeded")
	if len(g.shop.called()) != 1 {
		t.Errorf("called %v", g.shop.called())
	}
	c.ask(t, ctx, 404, "POST", "/v1/agents/"+g.agent+"/runs", object{"input": "more"}, nil)
}
