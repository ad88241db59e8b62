package hooks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
	"agentsvc/transport/hooks"
)

// open-parts.md, Hooks: what a call is answered, in that order, and which bucket
// pays: of the client's address, of the tenant.
func TestWhatACallIsAnswered(t *testing.T) {
	w := newWorld(t)
	n := w.nodes[0]
	live := w.create(w.agent, "")
	draft := w.create(w.newAgent(false), "")
	paused := w.create(w.agent, `, "enabled": false`)
	const good = `{"text": "hi"}`
	large := func(size int) string { return `{"x":"` + strings.Repeat("x", size-8) + `"}` }
	schedule := w.schedule()
	ip, tenant := [2]int64{1, 0}, [2]int64{0, 1}
	for _, row := range []struct {
		name   string
		to     string
		body   string
		fields []string
		status int
		code   string // of a problem
		pays   [2]int64
	}{
		{"signed", live.ID, good, []string{signature, sign(live.Secret, good)}, 202, "", tenant},
		{"signed as a code host does", live.ID, good, []string{"X-Hub-Signature-256", sign(live.Secret, good)}, 202, "", tenant},
		{"the digits may be large", live.ID, good, []string{signature, "sha256=" + strings.ToUpper(sign(live.Secret, good)[7:])}, 202, "", tenant},
		{"the content type is not checked", live.ID, good, []string{signature, sign(live.Secret, good), "Content-Type", "text/plain"}, 202, "", tenant},
		{"the id may be written large", strings.ToUpper(live.ID), good, []string{signature, sign(live.Secret, good)}, 202, "", tenant},
		{"an unknown id", id.NewAnywhere().String(), good, []string{signature, sign(live.Secret, good)}, 404, "NOT_FOUND", ip},
		{"no id", "nothing", good, nil, 404, "NOT_FOUND", ip},
		{"paused, and signed", paused.ID, good, []string{signature, sign(paused.Secret, good)}, 404, "NOT_FOUND", ip},
		{"paused, and not signed", paused.ID, good, nil, 404, "NOT_FOUND", ip},
		{"a schedule", schedule, good, nil, 404, "NOT_FOUND", ip},
		{"no signature", live.ID, good, nil, 401, "INVALID_SIGNATURE", ip},
		{"another secret", live.ID, good, []string{signature, sign(paused.Secret, good)}, 401, "INVALID_SIGNATURE", ip},
		{"another body", live.ID, good + " ", []string{signature, sign(live.Secret, good)}, 401, "INVALID_SIGNATURE", ip},
		{"without the scheme", live.ID, good, []string{signature, sign(live.Secret, good)[7:]}, 401, "INVALID_SIGNATURE", ip},
		{"cut", live.ID, good, []string{signature, sign(live.Secret, good)[:70]}, 401, "INVALID_SIGNATURE", ip},
		{"longer", live.ID, good, []string{signature, sign(live.Secret, good) + "00"}, 401, "INVALID_SIGNATURE", ip},
		{"no hexadecimal digits", live.ID, good, []string{signature, "sha256=" + strings.Repeat("zz", 32)}, 401, "INVALID_SIGNATURE", ip},
		{"the first of two headers counts", live.ID, good, []string{signature, sign(paused.Secret, good), "X-Hub-Signature-256", sign(live.Secret, good)}, 401, "INVALID_SIGNATURE", ip},
		{"a signature before the body", live.ID, "no JSON", []string{signature, sign(paused.Secret, "no JSON")}, 401, "INVALID_SIGNATURE", ip},
		{"no JSON", live.ID, "no JSON", []string{signature, sign(live.Secret, "no JSON")}, 400, "INVALID_BODY", tenant},
		{"nothing", live.ID, "", []string{signature, sign(live.Secret, "")}, 400, "INVALID_BODY", tenant},
		{"an array", live.ID, "[1]", []string{signature, sign(live.Secret, "[1]")}, 400, "INVALID_BODY", tenant},
		{"a text", live.ID, `"x"`, []string{signature, sign(live.Secret, `"x"`)}, 400, "INVALID_BODY", tenant},
		{"null", live.ID, "null", []string{signature, sign(live.Secret, "null")}, 400, "INVALID_BODY", tenant},
		{"two objects", live.ID, "{}{}", []string{signature, sign(live.Secret, "{}{}")}, 400, "INVALID_BODY", tenant},
		{"no UTF-8", live.ID, "{\"a\":\"\xff\"}", []string{signature, sign(live.Secret, "{\"a\":\"\xff\"}")}, 400, "INVALID_BODY", tenant},
		{"U+0000", live.ID, `{"a":"\u0000"}`, []string{signature, sign(live.Secret, `{"a":"\u0000"}`)}, 400, "INVALID_BODY", tenant},
		{"a body before the target", draft.ID, "[]", []string{signature, sign(draft.Secret, "[]")}, 400, "INVALID_BODY", tenant},
		{"nothing published", draft.ID, good, []string{signature, sign(draft.Secret, good)}, 409, "AGENT_NOT_PUBLISHED", tenant},
		{"as large as it may be", live.ID, large(edge.MaxJSON), []string{signature, sign(live.Secret, large(edge.MaxJSON))}, 202, "", tenant},
		{"one byte more", live.ID, large(edge.MaxJSON + 1), []string{signature, sign(live.Secret, large(edge.MaxJSON+1))}, 413, "PAYLOAD_TOO_LARGE", ip},
		{"a key that is too long", live.ID, good, []string{signature, sign(live.Secret, good), "X-GitHub-Delivery", strings.Repeat("k", 256)}, 400, "VALIDATION", tenant},
		{"a key as long as it may be", live.ID, good, []string{signature, sign(live.Secret, good), "X-GitHub-Delivery", strings.Repeat("k", 255)}, 202, "", tenant},
	} {
		n.limits.charged()
		got := w.knock(n, row.to, row.body, row.fields...)
		if row.code == "" {
			if _, err := id.Parse(got.code()); err != nil {
				t.Errorf("%s: %d %s", row.name, got.status, got.body)
			}
		} else if got.code() != row.code {
			t.Errorf("%s: %d %s", row.name, got.status, got.body)
		}
		if got.status != row.status {
			t.Errorf("%s: %d, want %d", row.name, got.status, row.status)
		}
		if pays := n.limits.charged(); pays != row.pays {
			t.Errorf("%s: the address paid %d, the tenant %d", row.name, pays[0], pays[1])
		}
	}
}

// Unknown, paused and schedule ids get the same answer.
func TestWhatIsNotThereIsNotToldApart(t *testing.T) {
	w := newWorld(t)
	paused, archived := w.create(w.agent, `, "enabled": false`), w.newAgent(true)
	gone, schedule := w.create(archived, ""), w.schedule()
	if got := w.call("DELETE", "/v1/agents/"+archived.String(), ""); got.status != 204 {
		t.Fatal(got)
	}
	var first answer
	for i, to := range []string{id.NewAnywhere().String(), paused.ID, gone.ID, schedule, "x"} {
		got := w.knock(w.nodes[1], to, "{}", signature, sign(paused.Secret, "{}"), "X-Request-Id", "same")
		for _, own := range []string{"Date"} {
			got.header.Del(own)
		}
		if i == 0 {
			first = got
		}
		if got.status != 404 || got.body != first.body || fmt.Sprint(got.header) != fmt.Sprint(first.header) {
			t.Errorf("%d: %+v, the first %+v", i, got, first)
		}
	}
}

// open-parts.md, Hooks: the run's input is the trigger's with the body's fields
// over it, its origin the trigger, and the log says that the trigger fired.
func TestTheRunOfACall(t *testing.T) {
	w := newWorld(t)
	for _, row := range []struct{ input, body, want string }{
		{``, `{"a": 1}`, `{"a": 1}`},
		{`, "input": {}`, `{}`, `{}`},
		{`, "input": {"text": "Sort.", "a": {"deep": 1}}`, `{"a": 2, "b": "<&>", "n": 12345678901234567890.10}`, `{"text": "Sort.", "a": 2, "b": "<&>", "n": 12345678901234567890.10}`},
	} {
		h := w.create(w.agent, row.input)
		got := w.knock(w.nodes[0], h.ID, row.body, signature, sign(h.Secret, row.body))
		if got.status != 202 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		var input, origin, audit string
		w.must(w.admin.QueryRow(t.Context(), `SELECT input::text, origin_kind || ' ' || origin_id FROM runs WHERE id = $1`, got.code()).Scan(&input, &origin))
		if w.count(`SELECT ($1::jsonb = $2::jsonb)::int`, input, row.want) != 1 || strings.Contains(input, `\u003c`) {
			t.Errorf("input is %s, want %s", input, row.want)
		}
		if origin != "trigger "+h.ID {
			t.Errorf("origin is %s", origin)
		}
		w.must(w.admin.QueryRow(t.Context(), `SELECT actor || ' ' || target_kind || ':' || target_id || ' ' || (detail->>'run_id') FROM audit_log WHERE action = 'trigger.fire' AND target_id = $1`, h.ID).Scan(&audit))
		if audit != "trigger:"+h.ID+" trigger:"+h.ID+" "+got.code() {
			t.Errorf("audited as %s", audit)
		}
	}
	if w.fired.Load() != 3 {
		t.Errorf("%d firings were told", w.fired.Load())
	}
}

// A thousand calls with one delivery id, over both nodes: one run.
func TestAThousandCallsOfOneDeliveryAreOneRun(t *testing.T) {
	w := newWorld(t)
	h := w.create(w.agent, "")
	var mu sync.Mutex
	seen, busy := map[string]int{}, 0
	places := make(chan struct{}, 100)
	var calls sync.WaitGroup
	for i := range 1000 {
		places <- struct{}{}
		calls.Go(func() {
			defer func() { <-places }()
			body := fmt.Sprintf(`{"try": %d}`, i) // a repeated delivery may have another body
			got := w.knock(w.nodes[i%2], h.ID, body, signature, sign(h.Secret, body), "X-GitHub-Delivery", "one")
			mu.Lock()
			defer mu.Unlock()
			if got.status == 409 && got.code() == "IDEMPOTENCY_IN_PROGRESS" {
				busy++
				return
			}
			if got.status != 202 {
				t.Errorf("%d %s", got.status, got.body)
			}
			seen[got.code()]++
		})
	}
	calls.Wait()
	if len(seen) != 1 || busy > 0 {
		t.Errorf("%d runs were answered, %d calls were told to wait", len(seen), busy)
	}
	if n := w.count(`SELECT count(*)::int FROM runs WHERE origin_id = $1`, h.ID); n != 1 {
		t.Errorf("there are %d runs", n)
	}
	if n := w.count(`SELECT count(*)::int FROM audit_log WHERE action = 'trigger.fire'`); n != 1 || w.fired.Load() != 1 {
		t.Errorf("audited %d times, told %d times", n, w.fired.Load())
	}
}

// open-parts.md, line on Idempotency-Key; Hooks: duplicates.
func TestRepeats(t *testing.T) {
	w := newWorld(t)
	h, other := w.create(w.agent, ""), w.create(w.agent, "")
	call := func(of hook, n int, body string, fields ...string) answer {
		t.Helper()
		return w.knock(w.nodes[n], of.ID, body, append(fields, signature, sign(of.Secret, body))...)
	}
	first := call(h, 0, `{"a":1}`, "Idempotency-Key", "k")
	same := call(h, 1, `{"a":1}`, "Idempotency-Key", "k")
	if first.status != 202 || same.code() != first.code() || same.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%+v, then %+v", first, same)
	}
	if got := call(h, 1, `{"a":2}`, "Idempotency-Key", "k"); got.code() != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("another body with the same key: %+v", got)
	}
	runs := map[string]bool{first.code(): true}
	for what, fields := range map[string][]string{
		"Svc-Delivery-Id":                {"Svc-Delivery-Id", "k"},
		"X-GitHub-Delivery":              {"X-GitHub-Delivery", "k"},
		"the first header that is there": {"Svc-Delivery-Id", "k2", "X-GitHub-Delivery", "k"},
	} {
		one := call(h, 0, `{"a":1}`, fields...)
		two := call(h, 1, `{"a":2}`, fields...)
		if one.status != 202 || two.code() != one.code() {
			t.Errorf("%s: %+v, then %+v", what, one, two)
		}
		if runs[one.code()] {
			t.Errorf("%s: another key's run was answered", what)
		}
		runs[one.code()] = true
	}
	if got := call(other, 0, `{"a":1}`, "Idempotency-Key", "k"); runs[got.code()] || got.status != 202 {
		t.Errorf("another trigger with the same key: %+v", got)
	}
	if one, two := call(h, 0, `{}`), call(h, 0, `{}`); one.code() == two.code() {
		t.Error("two calls without a key are one run")
	}
	// A large spelling of the id is the same trigger.
	if got := w.knock(w.nodes[0], strings.ToUpper(h.ID), `{"a":1}`, "Idempotency-Key", "k", signature, sign(h.Secret, `{"a":1}`)); got.code() != first.code() {
		t.Errorf("the id written large: %+v", got)
	}
	w.exec(`UPDATE idempotency SET created_at = now() - interval '25 hours'`)
	if got := call(h, 0, `{"a":1}`, "Idempotency-Key", "k"); got.status != 202 || got.code() == first.code() {
		t.Errorf("after a day: %+v", got)
	}
}

// A change is answered once no node uses its cached copy.
func TestAChangeHoldsOnEveryNodeOnceItIsAnswered(t *testing.T) {
	w := newWorld(t)
	h := w.create(w.agent, "")
	on := func(what string, secret string, status int) {
		t.Helper()
		for i, n := range w.nodes {
			if got := w.knock(n, h.ID, "{}", signature, sign(secret, "{}")); got.status != status {
				t.Errorf("%s, node %d: %d %s", what, i, got.status, got.body)
			}
		}
	}
	change := func(method, path, body string) hook {
		t.Helper()
		got := w.call(method, "/v1/triggers/"+h.ID+path, body)
		if got.status > 204 {
			t.Fatalf("%s %s: %d %s", method, path, got.status, got.body)
		}
		var out hook
		_ = json.Unmarshal([]byte(got.body), &out)
		return out
	}
	on("made", h.Secret, 202)
	rotated := change("POST", "/rotate-secret", "").Secret
	on("rotated, the old secret", h.Secret, 401)
	on("rotated", rotated, 202)
	change("PATCH", "", `{"enabled": false}`)
	on("paused", rotated, 404)
	change("PATCH", "", `{"enabled": true}`)
	on("goes on", rotated, 202)
	change("PATCH", "", `{"input": {"x": 1}}`)
	for _, n := range w.nodes {
		got := w.knock(n, h.ID, "{}", signature, sign(rotated, "{}"))
		if w.count(`SELECT count(*)::int FROM runs WHERE id = $1 AND input::jsonb = '{"x": 1}'`, got.code()) != 1 {
			t.Error("a run has the old input")
		}
	}
	change("DELETE", "", "")
	on("deleted", rotated, 404)
}

// An archived target pauses its hooks, cached or not: they get the same answer as unknown
// ones.
func TestAnArchivedTarget(t *testing.T) {
	w := newWorld(t)
	h := w.create(w.agent, "")
	for _, n := range w.nodes {
		for _, field := range []string{"Svc-Delivery-Id", "Idempotency-Key"} {
			if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}"), field, "1"); got.status != 202 {
				t.Fatal(got)
			}
		}
	}
	if got := w.call("DELETE", "/v1/agents/"+w.agent.String(), ""); got.status != 204 {
		t.Fatal(got)
	}
	for i, n := range w.nodes {
		unknown := w.knock(n, id.NewAnywhere().String(), "{}")
		n.rows.found.Store(0)
		n.starts.Store(0)
		for what, call := range map[string][]string{"signed": {h.Secret, "{}"}, "wrongly signed": {"wrong", "{}"}, "no object": {h.Secret, "[1]"},
			"a repeat": {h.Secret, "{}", "Svc-Delivery-Id", "1"}, "a repeat with a key": {h.Secret, "{}", "Idempotency-Key", "1"}} {
			n.limits.charged()
			if got := w.knock(n, h.ID, call[1], append(call[2:], signature, sign(call[0], call[1]))...); got.status != 404 || got.body != unknown.body {
				t.Errorf("%s, node %d: %d %s", what, i, got.status, got.body)
			}
			if pays := n.limits.charged(); pays != [2]int64{1, 0} {
				t.Errorf("%s, node %d: the address paid %d, the tenant %d", what, i, pays[0], pays[1])
			}
		}
		for range 50 {
			if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 404 {
				t.Fatal(got)
			}
		}
		if found, starts := n.rows.found.Load(), n.starts.Load(); starts != 1 || found == 0 || found > 3 { // cached for a moment only
			t.Errorf("node %d: it cost %d looks whether the target is there, %d look-ups", i, starts, found)
		}
	}
}

// The same for a workflow, whose hooks are forgotten when it is archived, and again if the archiving
// is repeated.
func TestAnArchivedWorkflow(t *testing.T) {
	w := newWorld(t)
	var made struct{ Workflow struct{ ID string } }
	w.must(json.Unmarshal([]byte(w.call("POST", "/v1/workflows", `{"name": "W", "definition": {"nodes": [{"id": "s", "type": "set", "values": {"x": 1}}]}}`).body), &made))
	path := "/v1/workflows/" + made.Workflow.ID
	target := `{"workflow_id": "` + made.Workflow.ID + `"}`
	draft := w.createFor(target, "")
	if got := w.knock(w.nodes[0], draft.ID, "{}", signature, sign(draft.Secret, "{}")); got.status != 409 || got.code() != "WORKFLOW_NOT_PUBLISHED" {
		t.Errorf("an unpublished one: %+v", got)
	}
	if got := w.call("POST", path+"/versions/1/publish", ""); got.status != 200 {
		t.Fatal(got)
	}
	h, paused := w.createFor(target, ""), w.createFor(target, `, "enabled": false`)
	for _, n := range w.nodes {
		if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}"), "Svc-Delivery-Id", "1"); got.status != 202 {
			t.Fatal(got)
		}
		if got := w.knock(n, h.ID, "{}", signature, sign("wrong", "{}")); got.status != 401 {
			t.Fatal(got)
		}
		if got := w.knock(n, paused.ID, "{}", signature, sign(paused.Secret, "{}")); got.status != 404 {
			t.Fatal(got)
		}
	}
	for _, want := range []int{204, 404} {
		if got := w.call("DELETE", path, ""); got.status != want {
			t.Fatal(got)
		}
		for i, n := range w.nodes {
			unknown := w.knock(n, id.NewAnywhere().String(), "{}")
			for what, call := range map[string][]string{"signed": {h.Secret, "{}"}, "wrongly signed": {"wrong", "{}"}, "no object": {h.Secret, "[1]"}, "a repeat": {h.Secret, "{}", "Svc-Delivery-Id", "1"}} {
				if got := w.knock(n, h.ID, call[1], append(call[2:], signature, sign(call[0], call[1]))...); got.status != 404 || got.body != unknown.body {
					t.Errorf("%s, node %d: %d %s", what, i, got.status, got.body)
				}
			}
		}
	}
}

// A flood of wrong calls costs no look-up beyond the first, and is limited by its address. A
// correctly signed caller does not notice it, except for a moment if it shares the address
// whose bucket the flood has emptied.
func TestAFlood(t *testing.T) {
	w := newWorld(t)
	n := w.nodes[0]
	h := w.create(w.agent, "")
	if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 202 {
		t.Fatal(got)
	}
	n.rows.found.Store(0)
	for range 50 {
		if got := w.knock(n, h.ID, "{}", signature, sign("wrong", "{}")); got.status != 401 {
			t.Fatal(got)
		}
	}
	if found := n.rows.found.Load(); found != 0 {
		t.Errorf("wrong signatures cost %d look-ups", found)
	}
	unknown := id.NewAnywhere().String()
	for range 50 {
		if got := w.knock(n, unknown, "{}"); got.status != 404 {
			t.Fatal(got)
		}
	}
	if found := n.rows.found.Load(); found > 2 { // it is cached for a moment only
		t.Errorf("one unknown id cost %d look-ups", found)
	}
	n.limits.noIP.Store(true)
	n.rows.found.Store(0)
	for what, to := range map[string]string{"an unknown id": id.NewAnywhere().String(), "no id": "x", "a wrong signature": h.ID} {
		if got := w.knock(n, to, "{}", signature, sign("wrong", "{}")); got.status != 429 || !strings.Contains(got.body, "scope ip") {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}
	if found := n.rows.found.Load(); found != 0 {
		t.Errorf("an address without tokens cost %d look-ups", found)
	}
	if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 429 || !strings.Contains(got.body, "scope ip") {
		t.Errorf("signed, from an address that has just had no tokens: %d %s", got.status, got.body)
	}
	n.limits.noIP.Store(false)
	n.limits.charged()
	if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 202 {
		t.Errorf("signed, from an address that has tokens again: %d %s", got.status, got.body)
	}
	if pays := n.limits.charged(); pays != [2]int64{0, 1} {
		t.Errorf("signed, from an address that has tokens again: the address paid %d, the tenant %d", pays[0], pays[1])
	}
	other := w.nodes[1] // where the address failed with nothing that was known
	if got := w.knock(other, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 202 {
		t.Fatal(got)
	}
	other.limits.noIP.Store(true)
	for _, fields := range [][]string{nil, {signature, "sha256=0"}, {signature, sign("wrong", "{}")[1:]}} {
		if got := w.knock(other, h.ID, "{}", fields...); got.status != 429 || !strings.Contains(got.body, "scope ip") {
			t.Errorf("%v: %d %s", fields, got.status, got.body)
		}
	}
	if got := w.knock(other, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 202 {
		t.Errorf("signed, from an address without tokens: %d %s", got.status, got.body)
	}
	n.limits.noTenant.Store(true)
	if got := w.knock(n, h.ID, "{}", signature, sign(h.Secret, "{}")); got.status != 429 || !strings.Contains(got.body, "scope tenant") {
		t.Errorf("a tenant without tokens: %d %s", got.status, got.body)
	}
}

// held finds hooks when it is let.
type held struct {
	asked chan struct{}
	found chan *store.Hook
}

func (h held) Find(ctx context.Context, _ id.TriggerID) (*store.Hook, error) {
	h.asked <- struct{}{}
	select {
	case hook := <-h.found:
		return hook, nil
	case <-ctx.Done():
		return nil, errors.New("nobody let it")
	}
}

// A value read before a change is not cached after it, nor is its absence.
func TestALookUpThatAChangeOvertookIsRepeated(t *testing.T) {
	rows := held{make(chan struct{}), make(chan *store.Hook)}
	h := hooks.New(hooks.Config{Rows: rows})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g := id.TriggerID{UUID: id.NewAnywhere()}
	for what, hook := range map[string]*store.Hook{"it is there": {ID: g}, "it is not": nil} {
		h.ForgetAll()
		done := make(chan *store.Hook, 1)
		go func() {
			got, err := h.Find(ctx, g)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		<-rows.asked
		h.Forget(g)
		rows.found <- hook // as it was before
		<-rows.asked
		now := &store.Hook{ID: g, Secret: vault.NewSecret([]byte("new"))}
		rows.found <- now
		if got := <-done; got != now {
			t.Errorf("%s: found %+v", what, got)
		}
	}
}
