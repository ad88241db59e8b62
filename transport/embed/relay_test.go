package embed_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// members are the fields that a frame of the relay has (service.md, Embed relay).
var members = map[string][]string{
	"run.started": {"run_id", "status", "type"}, "llm.delta": {"idx", "text", "type"}, "tool.called": {"idx", "type"}, "tool.result": {"idx", "ok", "type"},
	"run.waiting": {"type"}, "run.resumed": {"type"}, "run.completed": {"status", "text", "type"}, "run.failed": {"code", "type"}, "heartbeat": {"type"},
}

// checked complains of frames that the table does not have, and of those without an id.
func (w *world) checked(what string, all []frame) {
	w.t.Helper()
	for _, f := range all {
		var data map[string]any
		w.must(json.Unmarshal([]byte(f.data), &data))
		var have []string
		for name := range data {
			have = append(have, name)
		}
		slices.Sort(have)
		if !slices.Equal(have, members[f.event]) || data["type"] != f.event || (f.id == "") != (f.event == "heartbeat") {
			w.t.Errorf("%s: %+v", what, f)
		}
	}
}

// spoken is the text of the deltas, and the text of run.completed.
func spoken(all []frame) (deltas, final string) {
	for _, f := range all {
		var data struct{ Text *string }
		if json.Unmarshal([]byte(f.data), &data) != nil || data.Text == nil {
			continue
		}
		switch f.event {
		case "llm.delta":
			deltas += *data.Text
		case "run.completed":
			final = *data.Text
		}
	}
	return deltas, final
}

// service.md, Embed relay; Embed rules: a finished run is served from backfill and the
// stream closes at once; query since: last step idx, default replays all.
func TestTheRelayOverHTTP(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.a.agent, `, "rate_limit_per_min": 1000`), "")
	w.models.Hold()
	s := g.say("/say Hello to you", "")
	e, head := g.open(s.Run, "")
	defer e.close()
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"} {
		if head.header.Get(name) != want {
			t.Errorf("%s: %q", name, head.header.Get(name))
		}
	}
	readable(t, "a stream's head", head.header, page)
	begun := e.until("run.started")
	beat, _ := e.next()
	for beat.event != "heartbeat" {
		beat, _ = e.next()
	}
	if beat.data != `{"type":"heartbeat"}` || beat.id != "" {
		t.Errorf("heartbeat: %+v", beat)
	}
	w.models.Release()
	live := append(begun, e.until("")...)
	w.checked("live", live)
	if text, final := spoken(live); text != "Hello to you" || final != text || live[0].event != "run.started" || live[len(live)-1].event != "run.completed" {
		t.Errorf("live: %v", live)
	}
	whole := g.watch(s.Run, "")
	w.checked("replayed", whole)
	if text, final := spoken(whole); text != "Hello to you" || final != text {
		t.Errorf("replayed: %v", whole)
	}
	// Cut anywhere and resumed, it is the whole stream once.
	for i := range whole {
		rest := g.watch(s.Run, "", "Last-Event-ID", whole[i].id)
		if !slices.Equal(rest, whole[i+1:]) {
			t.Errorf("after %s: %v, want %v", whole[i].id, rest, whole[i+1:])
		}
	}
	// A live delta's id resumes in the middle of the text.
	for i, f := range live {
		before, _ := spoken(live[:i+1])
		if text, _ := spoken(g.watch(s.Run, "", "Last-Event-ID", f.id)); before+text != "Hello to you" {
			t.Errorf("after %s: %q and %q", f.id, before, text)
		}
	}
	for query, want := range map[string]string{"": "Hello to you", "?since=-1": "Hello to you", "?since=0": "", "?since=7": ""} {
		all := g.watch(s.Run, query)
		if text, final := spoken(all); text != want || final != "Hello to you" {
			t.Errorf("%s: %v", query, all)
		}
	}
	if got := g.send("GET", "/v1/embed/runs/"+s.Run+"/events?since=x", ""); got.code() != "VALIDATION" {
		t.Errorf("since=x: %d %s", got.status, got.body)
	}
	if all := g.watch(s.Run, "", "Last-Event-ID", "nonsense"); len(all) == 0 || all[len(all)-1].event != "run.completed" {
		t.Errorf("an id that is none: %v", all)
	}
}

// run.failed { code }: CANCELLED, and what failed; nothing else is said.
func TestARunThatFailsSaysItsCode(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.a.agent, ""), "")
	failed := g.say("/fail CANARY", "")
	all := g.watch(failed.Run, "")
	w.checked("failed", all)
	if last := all[len(all)-1]; last.event != "run.failed" || strings.Contains(last.data, "CANARY") {
		t.Errorf("failed: %v", all)
	}
	w.models.Hold()
	s := g.say("hello", "")
	e, _ := g.open(s.Run, "")
	defer e.close()
	e.until("run.started")
	w.ok(g.send("POST", "/v1/embed/runs/"+s.Run+"/cancel", ""), 200)
	all = e.until("")
	w.checked("cancelled", all)
	if len(all) != 1 || all[0].data != `{"type":"run.failed","code":"CANCELLED"}` {
		t.Errorf("cancelled: %v", all)
	}
}

// service.md, Embed relay: llm.delta is withheld when the agent has output guardrails,
// then only the final text arrives in run.completed.
func TestGuardrailsWithholdTheText(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.newAgent(w.a, guarded), ""), "")
	w.models.Hold()
	s := g.say("/say Hello to you", "")
	e, _ := g.open(s.Run, "")
	defer e.close()
	begun := e.until("run.started")
	w.models.Release()
	for name, all := range map[string][]frame{"live": append(begun, e.until("")...), "replayed": g.watch(s.Run, "")} {
		w.checked(name, all)
		if text, final := spoken(all); text != "" || final != "Hello to you" || len(all) != 2 {
			t.Errorf("%s: %v", name, all)
		}
	}
	redacting := w.newAgent(w.a, `{"model": {"provider": "simulated", "name": "sim"}, "guardrails": {"output": [{"kind": "regex", "pattern": "CANARY", "action": "redact"}]}}`)
	g = w.visit(w.newKey(w.a, redacting, ""), "")
	s = g.say("/say the word is CANARY today", "")
	all := g.watch(s.Run, "")
	if _, final := spoken(all); final == "" || strings.Contains(final, "CANARY") {
		t.Errorf("redacted: %v", all)
	}
	if got := g.send("GET", "/v1/embed/threads/"+s.Thread+"/messages", ""); strings.Contains(got.get("items.1.content"), "CANARY") {
		t.Errorf("history: %s", got.body)
	}
}

// Not relayed: step.started, llm.thinking, names, arguments and outputs of tools, and any
// payload field beyond those listed.
func TestTheRelayLeaksNothing(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.newAgent(w.a, armed), ""), "")
	w.models.Hold()
	s := g.say("/think CANARY thought\n/call CANARY_tool {\"a\": \"CANARY argument\"}\n/say Here it is", "")
	e, _ := g.open(s.Run, "")
	defer e.close()
	begun := e.until("run.started")
	own, _ := w.open("/v1/runs/"+s.Run+"/events?replay=full", "Authorization", "Bearer "+w.a.secret, "X-Tenant-Id", w.a.tenant.String())
	if own == nil {
		t.Fatal("the platform's stream is not open")
	}
	defer own.close()
	w.models.Release()
	canaries := 0
	for _, f := range own.until("") {
		canaries += strings.Count(f.data, "CANARY")
	}
	if canaries < 2 {
		t.Errorf("void: the platform's stream has %d canaries", canaries)
	}
	called := 0
	for name, all := range map[string][]frame{"live": append(begun, e.until("")...), "replayed": g.watch(s.Run, "")} {
		w.checked(name, all)
		for _, f := range all {
			if strings.Contains(f.data, "CANARY") {
				t.Errorf("%s: %+v", name, f)
			}
			if f.event == "tool.called" {
				called++
			}
		}
		if last := all[len(all)-1]; last.event != "run.completed" {
			t.Errorf("%s: %v", name, all)
		}
	}
	if called == 0 {
		t.Error("void: no tool was called")
	}
}

// run.waiting {}: approval is decided in the console, never in the widget; run.resumed {}.
// open-parts.md, Embed: meanwhile one more message is accepted, and queued behind it.
func TestARunThatWaitsForAPerson(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.newAgent(w.a, armed), ""), "")
	s := g.say("/call CANARY_gated {\"a\": \"CANARY argument\"}\n/say Done", "")
	e, _ := g.open(s.Run, "")
	defer e.close()
	live := e.until("run.waiting")
	w.refused("a visitor decides nothing", g.send("GET", "/v1/approvals?run_id="+s.Run, ""), 400, "TENANT_REQUIRED")
	behind := g.say("/say And more", s.Thread)
	if got := g.send("POST", "/v1/embed/messages", message("hi", s.Thread)); got.code() != "EMBED_RUN_IN_FLIGHT" || got.get("run_id") != behind.Run {
		t.Errorf("one more behind it: %d %s", got.status, got.body)
	}
	pending := w.ok(w.call(w.a, "GET", "/v1/approvals?run_id="+s.Run, ""), 200).get("items.0.id")
	w.ok(w.call(w.a, "POST", "/v1/approvals/"+pending+"/decision", `{"action": "approve", "feedback": "CANARY feedback"}`), 200)
	live = append(live, e.until("")...)
	for name, all := range map[string][]frame{"live": live, "replayed": g.watch(s.Run, "")} {
		w.checked(name, all)
		var types []string
		for _, f := range all {
			if strings.Contains(f.data, "CANARY") {
				t.Errorf("%s: %+v", name, f)
			}
			if len(types) == 0 || f.event != "llm.delta" || types[len(types)-1] != f.event {
				types = append(types, f.event)
			}
		}
		if _, final := spoken(all); final != "Done" {
			t.Errorf("%s: %v", name, all)
		}
		for _, want := range []string{"run.waiting", "run.resumed", "tool.called", "tool.result"} {
			if !slices.Contains(types, want) {
				t.Errorf("%s: no %s in %v", name, want, types)
			}
		}
	}
	if status := w.end(behind.Run); status != "succeeded" {
		t.Errorf("the message behind it: %s", status)
	}
}

// A stream is read with fetch: HEAD tells whether there is one, and holds no place.
func TestHeadHoldsNoPlace(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.a.agent, ""), "")
	s := g.say("hello", "")
	for range 5 {
		if got := g.send("HEAD", "/v1/embed/runs/"+s.Run+"/events", ""); got.status != http.StatusOK || got.body != "" {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if all := g.watch(s.Run, ""); len(all) == 0 {
		t.Error("no stream after that")
	}
}
