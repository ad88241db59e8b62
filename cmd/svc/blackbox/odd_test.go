package blackbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/transport/model/fake"
)

// Text that databases and terminals dislike is either refused or returned unchanged, in every field of a
// tenant's text.
func TestOddTextIsRefusedOrKept(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	c := sharedNode(t).tenant("odd")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	for name, text := range map[string]string{
		"NUL": `a\u0000b`, "a lone surrogate": `a\ud800b`, "controls": `\u0001\u001b[31m\u007f`, "a right-to-left override": `a\u202eb`, "noncharacter": `\uffff\ufffe`,
		"emoji": `👩‍👩‍👧 \ud83d\ude00`, "line separators": `a\u2028\u2029b\r\nc`, "spaces": `   `, "quotes": `"'\\\\;--`,
	} {
		text = strings.ReplaceAll(text, `"'`, `\"'`)
		for what, row := range map[string]struct{ path, body, read string }{
			"message":     {"/v1/threads/" + thread + "/messages", `{"content":"%s"}`, ""},
			"input":       {"/v1/agents/" + agent + "/runs", `{"input":"%s"}`, ""},
			"input key":   {"/v1/agents/" + agent + "/runs", `{"input":{"text":"x","%s":1}}`, ""},
			"title":       {"/v1/threads", `{"agent_id":"` + agent + `","title":"%s"}`, "/v1/threads/"},
			"name":        {"/v1/api-keys", `{"name":"%s"}`, ""},
			"agent":       {"/v1/agents", `{"name":"%s"}`, ""},
			"description": {"/v1/agents", `{"name":"x","description":"%s","emoji":"%[1]s"}`, ""},
			"instruction": {"/v1/agents/" + agent + "/versions", `{"manifest":{"model":{"provider":"simulated","name":"m"},"instructions":"%s"}}`, ""},
			"provider":    {"/v1/model-providers", `{"slug":"s-` + fmt.Sprintf("%x", name)[:6] + `","kind":"openai","base_url":"http://127.0.0.1:9","credentials":{"api_key":"%s"},"prices":{"%[1]s":{"input_per_mtok":1,"output_per_mtok":1}}}`, ""},
		} {
			body := fmt.Sprintf(row.body, text)
			if !json.Valid([]byte(body)) {
				t.Fatalf("the test's own body is wrong: %s", body)
			}
			a, err := c.do(ctx, "POST", row.path, body)
			if err != nil {
				t.Fatal(err)
			}
			checkProblem(t, what+" with "+name, a)
			if a.status != 400 && a.status/100 != 2 {
				t.Errorf("%s with %s: %s", what, name, a)
			}
			var made struct {
				ID    string
				RunID string `json:"run_id"`
			}
			if json.Unmarshal(a.body, &made) == nil && made.RunID != "" {
				r := c.poll(t, ctx, made.RunID, "succeeded")
				c.stream(t, ctx, made.RunID, "?replay=full", "", nil)
				if r.text() == "" {
					t.Errorf("%s with %s: no answer", what, name)
				}
			}
			if row.read != "" && a.status == 200 {
				var got struct{ Title string }
				var want string
				if err := json.Unmarshal([]byte(`"`+text+`"`), &want); err != nil {
					t.Fatal(err)
				}
				c.ask(t, ctx, 200, "GET", row.read+made.ID, nil, &got)
				if got.Title != want {
					t.Errorf("%s with %s reads %q", what, name, got.Title)
				}
			}
		}
	}
	for _, header := range []string{"a b", "ü", "\"quoted\"", strings.Repeat("k", 255)} {
		a, err := c.do(ctx, "POST", "/v1/threads", object{"agent_id": agent}, "Idempotency-Key", header)
		if err != nil {
			t.Fatal(err)
		}
		checkProblem(t, "Idempotency-Key "+header, a)
	}
	var history struct{ Items []any }
	c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, &history)
	for _, path := range []string{"/v1/runs?limit=100", "/v1/agents?limit=100", "/v1/threads?limit=100", "/v1/api-keys", "/v1/model-providers"} {
		c.ask(t, ctx, 200, "GET", path, nil, &history)
	}
}

// Whatever a provider sends, the run ends, and its stream and its rows can be read.
func TestOddModelsEndTheirRuns(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("odd models")
	call := func(name string, args ...string) fake.Reply {
		return fake.Reply{Calls: []fake.Call{{ID: "c", Name: name, Args: args}}}
	}
	done := fake.Reply{Text: []string{"done"}}
	for name, replies := range map[string][]fake.Reply{
		"nothing at all":          {{}},
		"NUL":                     {{Text: []string{"a\x00", "\x00b"}}},
		"NUL in thinking":         {{Thinking: []string{"\x00"}, Signature: "\x00", Text: []string{"x"}}},
		"no UTF-8":                {{Text: []string{"a\xff\xfe", "\xc3", "\xa9"}}},
		"a newline in a frame":    {{Text: []string{"a\n\nevent: run.failed\ndata: {}\n\n", "\r\r\n", "\u2028"}}},
		"a tool without a name":   {call("", `{}`), done},
		"a tool with an odd name": {call("x\x00'; --\n"+strings.Repeat("n", 5000), `{}`), done},
		"arguments with NUL":      {call("t", `{"a":"\u0000"}`), done},
		"arguments, no object":    {call("t", `[1]`), done},
		"arguments, no JSON":      {call("t", `{"a":`), done},
		"arguments, none":         {call("t"), done},
		"arguments, a secret":     {call("t", `{"password":"hunter2","nested":{"api_key":"k-123"}}`), done},
		"arguments, large":        {call("t", `{"a":"`, strings.Repeat("x", 300_000), `"}`), done},
		"many calls":              {{Calls: slices.Repeat([]fake.Call{{ID: "same", Name: "t", Args: []string{"{}"}}}, 40)}, done},
		"calls for ever":          {call("t", `{}`)},
		"negative usage":          {{Text: []string{"x"}, In: -5, Out: -7}},
		"huge usage":              {{Text: []string{"x"}, In: 1 << 60, Out: 1 << 60}},
		"no usage":                {{Text: []string{"x"}, NoUsage: true}},
		"malformed event":         {{Text: []string{"x", "y"}, Ending: fake.Malformed, After: 1}},
		"an error in the stream":  {{Text: []string{"x", "y"}, Ending: fake.ErrorEvent, Message: "boom \x00", After: 1}},
		"no end":                  {{Text: []string{"x"}, Ending: fake.Early, After: 1}},
		"an odd error":            {{Status: 400, Message: "bad \x00 \xff " + strings.Repeat("x", 100_000)}},
		"a redirect":              {{Status: 302, Message: "elsewhere"}},
		"a strange status":        {{Status: 299}},
		"cut by length":           {{Text: []string{"half"}, Finish: "length"}},
	} {
		for _, kind := range []string{"openai", "anthropic"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				ctx := within(t, 30*time.Second)
				_, agent := ownProvider(t, ctx, c, kind, replies...)
				run := c.say(t, ctx, c.thread(t, ctx, agent), "Hello")
				live := c.stream(t, ctx, run, "?replay=full", "", nil)
				r := c.poll(t, ctx, run, "")
				if r.Run.Status == "failed" && (r.Run.Error == nil || r.Run.Error.Code == "INTERNAL") {
					t.Errorf("failed with %+v", r.Run.Error)
				}
				if strings.Contains(r.shape(), "idx") || strings.Contains(r.shape(), "running") {
					t.Errorf("steps %s", r.shape())
				}
				if n := len(live); n == 0 || !live[n-1].Terminal() {
					t.Errorf("frames %s", types(live))
				}
				if r.Run.TokensIn < 0 || r.Run.TokensOut < 0 || r.Run.CostUSD < 0 {
					t.Errorf("tokens %d/%d, cost %v", r.Run.TokensIn, r.Run.TokensOut, r.Run.CostUSD)
				}
				shown := fmt.Sprint(r.Steps) + strings.Join(told(live), "\n")
				for _, s := range r.Steps {
					shown += string(s.Input) + string(s.Output)
				}
				if strings.Contains(shown, "hunter2") || strings.Contains(shown, "k-123") || strings.Contains(shown, providerKey) {
					t.Errorf("a secret is shown: %s", shown)
				}
			})
		}
	}
}

// Rules of Idempotency-Key besides the repeated request.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	n := sharedNode(t)
	c := n.tenant("keys")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	messages := "/v1/threads/" + thread + "/messages"
	post := func(who *caller, path string, body any) answer {
		t.Helper()
		a, err := who.do(ctx, "POST", path, body, "Idempotency-Key", "one")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	// Only 2xx responses are kept.
	if a := post(c, messages, object{"content": ""}); a.status != 400 {
		t.Errorf("an empty message: %s", a)
	}
	first := post(c, messages, object{"content": "hi"})
	if first.status != 202 {
		t.Fatalf("%s", first)
	}
	// Another path, principal or tenant makes another request.
	var second struct{ Secret string }
	c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "second"}, &second)
	colleague := *c
	colleague.Key = second.Secret
	for name, a := range map[string]answer{
		"another key":    post(&colleague, messages, object{"content": "hi"}),
		"another thread": post(c, "/v1/threads/"+c.thread(t, ctx, agent)+"/messages", object{"content": "hi"}),
	} {
		if a.status != 202 || string(a.body) == string(first.body) {
			t.Errorf("%s: %s, first %s", name, a, first)
		}
	}
	// The response is kept after its object is deleted, but needs a valid key.
	var run struct {
		RunID string `json:"run_id"`
	}
	if err := json.Unmarshal(first.body, &run); err != nil {
		t.Fatal(err)
	}
	c.poll(t, ctx, run.RunID, "succeeded")
	c.ask(t, ctx, 204, "DELETE", "/v1/threads/"+thread, nil, nil)
	if a := post(c, messages, object{"content": "hi"}); a.status != 202 || string(a.body) != string(first.body) {
		t.Errorf("after the thread was deleted: %s", a)
	}
	stranger := *c
	stranger.Key = "svc_" + strings.Repeat("x", 60)
	if a := post(&stranger, messages, object{"content": "hi"}); a.status != 401 {
		t.Errorf("without a valid key: %s", a)
	}
	// Forms are equal if their parts are, whatever the boundary.
	send := func(content string) answer {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		part, err := w.CreateFormFile("file", "a.txt")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(part, content)
		w.Close()
		a, err := c.do(ctx, "POST", "/v1/attachments", b.Bytes(), "Idempotency-Key", "file", "Content-Type", w.FormDataContentType())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	one, again, other := send("content"), send("content"), send("other")
	if one.status != 201 || string(one.body) != string(again.body) || again.status != 201 || other.status != 409 {
		t.Errorf("attachments: %s, %s, %s", one, again, other)
	}
}

// Threads and runs whose thread is deleted or whose agent is archived.
func TestDeletedThreadsAndArchivedAgents(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("gone")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	first := c.say(t, ctx, thread, "/delay 1s\n/tokens 100")
	second := c.say(t, ctx, thread, "/say never")
	streams := []<-chan []client.Frame{c.watch(t, ctx, first, ""), c.watch(t, ctx, second, "")}
	c.poll(t, ctx, first, "running")
	c.ask(t, ctx, 204, "DELETE", "/v1/threads/"+thread, nil, nil)
	for i, frames := range streams {
		got := <-frames
		if n := len(got); n == 0 || !strings.Contains(string(got[n-1].Data), "CANCELLED") {
			t.Errorf("run %d of the deleted thread showed %s", i, types(got))
		}
	}
	for _, path := range []string{"", "/messages"} {
		c.ask(t, ctx, 404, "GET", "/v1/threads/"+thread+path, nil, nil)
	}
	c.ask(t, ctx, 404, "POST", "/v1/threads/"+thread+"/messages", object{"content": "x"}, nil)
	c.ask(t, ctx, 404, "DELETE", "/v1/threads/"+thread, nil, nil)

	// A run keeps the version it was accepted with, running or queued.
	thread = c.thread(t, ctx, agent)
	running := c.say(t, ctx, thread, "/delay 20ms\n/tokens 30")
	c.stream(t, ctx, running, "", "", func(f client.Frame) bool { return f.Type != "run.started" })
	c.ask(t, ctx, 204, "DELETE", "/v1/agents/"+agent, nil, nil)
	c.poll(t, ctx, running, "succeeded")
	if a := c.ask(t, ctx, 409, "POST", "/v1/threads/"+thread+"/messages", object{"content": "x"}, nil); a.code() != "AGENT_NOT_PUBLISHED" {
		t.Errorf("a message to an archived agent: %s", a)
	}
	c.ask(t, ctx, 404, "POST", "/v1/agents/"+agent+"/runs", object{"input": "x"}, nil)
	c.ask(t, ctx, 404, "POST", "/v1/threads", object{"agent_id": agent}, nil)
	draft := struct{ Agent struct{ ID string } }{}
	c.ask(t, ctx, 201, "POST", "/v1/agents", object{"name": "Draft", "manifest": simulatedModel}, &draft)
	if a := c.ask(t, ctx, 409, "POST", "/v1/agents/"+draft.Agent.ID+"/runs", object{"input": "x"}, nil); a.code() != "AGENT_NOT_PUBLISHED" {
		t.Errorf("a run of a draft: %s", a)
	}
	c.ask(t, ctx, 404, "POST", "/v1/threads", object{"agent_id": draft.Agent.ID}, nil)
}
