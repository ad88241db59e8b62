package workflow_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// open-parts.md, Workflows: what a run does, as its frames and its output show it.
func TestRuns(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name, definition, input, variables string
		status, nodes, output              string
	}{
		{"a chain without I/O", `{"nodes": [
			{"id": "a", "type": "set", "values": {"n": "{{input.n}}", "text": "n is {{input.n}}"}},
			{"id": "b", "type": "condition", "expression": "variables.n > 2"},
			{"id": "yes", "type": "set", "values": {"said": "{{nodes.b.text}}"}},
			{"id": "no", "type": "set", "values": {"said": "no"}},
			{"id": "end", "type": "set", "values": {"last": "{{variables.said}}"}}],
			"edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "yes", "when": "true"}, {"from": "b", "to": "no", "when": "false"}, {"from": "yes", "to": "end"}, {"from": "no", "to": "end"}],
			"variables": {"first": 1, "n": 0}}`, `{"n": 3}`, `{"given": [1]}`,
			"succeeded", "+a s:a +b s:b +yes s:yes s:no +end s:end",
			`{"outputs":{"a":{"text":"","child_run_id":null},"b":{"text":"true","child_run_id":null,"json":true},"end":{"text":"","child_run_id":null},"yes":{"text":"","child_run_id":null}},` +
				`"variables":{"first":1,"given":[1],"last":"true","n":3,"said":"true","text":"n is 3"}}`},
		{"delays side by side", `{"nodes": [{"id": "a", "type": "delay", "seconds": 0.01}, {"id": "b", "type": "delay", "seconds": 0.02}, {"id": "c", "type": "set", "values": {"done": true}}],
			"edges": [{"from": "a", "to": "c"}, {"from": "b", "to": "c"}]}`, `null`, ``,
			"succeeded", "", `{"outputs":{"a":{"text":"","child_run_id":null},"b":{"text":"","child_run_id":null},"c":{"text":"","child_run_id":null}},"variables":{"done":true}}`},
		{"an expression that fails", `{"nodes": [{"id": "a", "type": "set", "values": {"x": 1}}, {"id": "b", "type": "condition", "expression": "input.missing > 2"}, {"id": "d", "type": "delay", "seconds": 3600}],
			"edges": [{"from": "a", "to": "b"}]}`, `{}`, ``,
			"failed EXPRESSION_FAILED", "", ""},
		{"an event that does not come", `{"nodes": [{"id": "a", "type": "wait_event", "event": "paid", "timeout_minutes": 0.0005}, {"id": "d", "type": "delay", "seconds": 3600}]}`, `{}`, ``,
			"failed EVENT_TIMEOUT", "+a w:a +d w:d f:a f:d", ""},
		{"an agent", `{"nodes": [{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/say {{input.x}}"}, {"id": "b", "type": "set", "values": {"said": "{{nodes.a.text}}"}}],
			"edges": [{"from": "a", "to": "b"}]}`, `{"x": "hello"}`, ``,
			"succeeded", "+a s:a +b s:b", `{"outputs":{"a":{"text":"hello","child_run_id":"CHILD"},"b":{"text":"","child_run_id":null}},"variables":{"said":"hello"}}`},
		{"an agent that fails", `{"nodes": [{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/fail no"}, {"id": "d", "type": "delay", "seconds": 3600}]}`, `null`, ``,
			"failed CHILD_FAILED", "+a +d w:d f:a f:d", ""},
		{"an agent without a published version", `{"nodes": [{"id": "a", "type": "agent", "agent_id": "00000000-0000-7000-8000-000000000001", "input": "x"}]}`, `null`, ``,
			"failed CHILD_FAILED", "+a f:a", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := w.begin(c.definition, c.input, c.variables)
			if got := w.ended(r); got != c.status {
				t.Errorf("it is %s: %s", got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			if got := w.nodes(r); c.nodes != "" && got != c.nodes {
				t.Errorf("nodes %s", got)
			}
			want := strings.ReplaceAll(c.output, "CHILD", w.text(`SELECT id FROM runs WHERE parent_run_id = $1`, r))
			if got := w.output(r); got != want {
				t.Errorf("output %s", got)
			}
			if got := w.text(`SELECT count(*) FROM runs c WHERE parent_run_id = $1
				AND NOT EXISTS (SELECT FROM run_marks WHERE run_id = $1 AND type = 'node.completed' AND data ->> 'child_run_id' = c.id::text)`, r); got != "0" {
				t.Errorf("%s children are in no node.completed", got)
			}
			w.exact(r)
		})
	}
	w.t = t
}

// A chain of nodes without I/O is decided in one commit, after the one that accepts the run.
func TestAChainIsTwoCommits(t *testing.T) {
	w := newWorld(t)
	var nodes, edges []string
	for i := range 50 {
		if i%2 == 0 {
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "set", "values": {"v%d": %d}}`, i, i, i))
		} else {
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "condition", "expression": "variables.v%d == %d"}`, i, i-1, i-1))
		}
		if i > 0 {
			when := ""
			if i%2 == 0 {
				when = `, "when": "true"`
			}
			edges = append(edges, fmt.Sprintf(`{"from": "n%d", "to": "n%d"%s}`, i-1, i, when))
		}
	}
	r := w.begin(`{"nodes": [`+strings.Join(nodes, ",")+`], "edges": [`+strings.Join(edges, ",")+`]}`, `null`, ``)
	if got := w.ended(r); got != "succeeded" {
		t.Error(got)
	}
	if n := w.tags.commits(); n != 2 {
		t.Errorf("%d commits", n)
	}
}

func TestEvents(t *testing.T) {
	const one = `{"nodes": [{"id": "d", "type": "wait_event", "event": "go"}, {"id": "a", "type": "wait_event", "event": "{{input.name}}"}], "edges": [{"from": "d", "to": "a"}]}`
	w := newWorld(t)
	t.Run("one that comes early waits for its node, and a repeated id counts once", func(t *testing.T) {
		w.t = t
		r := w.begin(one, `{"name": "paid"}`, ``)
		for range 3 {
			w.inject(r, "paid", `{"eur": 7}`, "evt-1")
		}
		w.inject(r, "other", `1`, "")
		w.inject(r, "go", `"text"`, "")
		if got := w.ended(r); got != "succeeded" {
			t.Error(got)
		}
		if got := w.output(r); got != `{"outputs":{"a":{"text":"","child_run_id":null,"json":{"eur":7}},"d":{"text":"text","child_run_id":null}},"variables":{}}` {
			t.Error(got)
		}
		if got := w.text(`SELECT string_agg(name || ' ' || coalesce(step_idx::text, '-'), ', ' ORDER BY seq) FROM workflow_events WHERE run_id = $1`, r); got != "paid 1, other -, go 0" {
			t.Error(got)
		}
		w.exact(r)
	})
	// open-parts.md: the Idempotency-Key of each 2xx answer is remembered, with the request.
	t.Run("a repeated id is answered under its own key", func(t *testing.T) {
		w.t = t
		r := w.begin(one, `{"name": "paid"}`, ``)
		key := &msg.Idempotency{Digest: [32]byte{1}, Fingerprint: [32]byte{2}, Status: 202, Response: []byte("sealed")}
		keyed := func(event string) msg.InjectEvent {
			return msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, ID: event, Name: "paid", Payload: json.RawMessage(`1`), Idempotency: key}
		}
		w.inject(r, "paid", `1`, "evt-1")
		w.ask(r, keyed("evt-1"))
		if got := w.text(`SELECT status FROM idempotency WHERE digest = $1 AND fingerprint = $2`, key.Digest[:], key.Fingerprint[:]); got != "202" {
			t.Errorf("the key has the status %q", got)
		}
		for _, event := range []string{"evt-1", "evt-2"} {
			if _, err := w.try(r, keyed(event)); !errors.Is(err, journal.ErrReplay) {
				t.Errorf("%s under the key again: %v", event, err)
			}
		}
		if got := w.text(`SELECT count(*) FROM workflow_events WHERE run_id = $1`, r); got != "1" {
			t.Errorf("%s events", got)
		}
		w.inject(r, "go", `1`, "")
		if got := w.ended(r); got != "succeeded" {
			t.Error(got)
		}
		w.exact(r)
	})
	t.Run("a run that has ended hears nothing", func(t *testing.T) {
		w.t = t
		r := w.begin(`{"nodes": [{"id": "a", "type": "set", "values": {}}]}`, `null`, ``)
		w.ended(r)
		if _, err := w.try(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "x"}); !errors.Is(err, problem.New(problem.CodeRunTerminal, "")) {
			t.Error(err)
		}
	})
	// open-parts.md: a repeated id counts once, also when the run has ended. Of such a run what it worked with is
	// not read, and its output stays.
	t.Run("a repeated id of a run that has ended", func(t *testing.T) {
		w.t = t
		r := w.begin(one, `{"name": "paid"}`, `{"v": 1}`)
		w.inject(r, "paid", `1`, "evt-1")
		w.inject(r, "never", `2`, "evt-2")
		w.inject(r, "go", `3`, "")
		w.ended(r)
		output := w.output(r)
		w.inject(r, "paid", `1`, "evt-1")
		key := &msg.Idempotency{Digest: [32]byte{3}, Fingerprint: [32]byte{4}, Status: 202, Response: []byte("sealed")}
		w.ask(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, ID: "evt-1", Name: "paid", Payload: json.RawMessage(`1`), Idempotency: key})
		if got := w.text(`SELECT status FROM idempotency WHERE digest = $1`, key.Digest[:]); got != "202" {
			t.Errorf("the key has the status %q", got)
		}
		if got := w.text(`SELECT count(*) FROM workflow_events WHERE run_id = $1`, r); got != "3" {
			t.Errorf("%s events", got)
		}
		if got := w.output(r); got != output || output == "" {
			t.Errorf("the output was %s and is %s", output, got)
		}
		if _, err := w.try(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, ID: "evt-3", Name: "paid"}); !errors.Is(err, problem.New(problem.CodeRunTerminal, "")) {
			t.Errorf("a new id: %v", err)
		}
		read, err := engine.New(w.pool).Workflow(t.Context(), w.tenant, r)
		if err != nil {
			t.Fatal(err)
		}
		if read.Input != nil || read.Variables != nil || slices.ContainsFunc(read.Nodes, func(n engine.NodeStep) bool { return n.Sealed != nil }) ||
			slices.ContainsFunc(read.Events, func(e engine.WorkflowEvent) bool { return e.Payload != nil }) {
			t.Errorf("read of a run that has ended: %+v", read)
		}
	})
	t.Run("an unknown run is not found", func(t *testing.T) {
		if _, err := w.try(id.RunID{UUID: id.NewAnywhere()}, msg.InjectEvent{Name: "x"}); !errors.Is(err, problem.NotFound("")) {
			t.Error(err)
		}
	})
	t.Run("one event wakes one node of its name, the oldest", func(t *testing.T) {
		w.t = t
		r := w.begin(`{"nodes": [{"id": "a", "type": "wait_event", "event": "x"}, {"id": "b", "type": "wait_event", "event": "x"}, {"id": "c", "type": "wait_event", "event": "y"}]}`, `null`, ``)
		w.inject(r, "x", `1`, "")
		w.eventually("the first has it", func() bool { return w.nodes(r) == "+a w:a +b w:b +c w:c s:a" })
		w.inject(r, "x", `2`, "")
		w.inject(r, "y", `3`, "")
		if got := w.ended(r); got != "succeeded" {
			t.Error(got)
		}
		if got := w.text(`SELECT string_agg(v, ' ' ORDER BY k) FROM (SELECT key AS k, value ->> 'text' AS v FROM json_each((SELECT output -> 'outputs' FROM runs WHERE id = $1))) x`, r); got != "1 2 3" {
			t.Error(got)
		}
	})
	w.t = t
}

// An event and the timeout of its node at once have one outcome.
func TestAnEventAndItsTimeout(t *testing.T) {
	w := newWorld(t)
	for i := range 8 {
		r := w.begin(`{"nodes": [{"id": "a", "type": "wait_event", "event": "x", "timeout_minutes": 0.0005}]}`, `null`, ``)
		w.eventually("it waits", func() bool { return w.nodes(r) != "" })
		time.AfterFunc(time.Duration(i)*6*time.Millisecond, func() {
			w.node.Tell(w.address(r), msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "x", Payload: []byte(`1`)})
		})
		got, nodes := w.ended(r), w.nodes(r)
		if (got != "succeeded" || nodes != "+a w:a s:a") && (got != "failed EVENT_TIMEOUT" || nodes != "+a w:a f:a") {
			t.Errorf("%s, %s", got, nodes)
		}
	}
}

// A cancel ends everything that is open, under the kind of a run too, and a second one has the same
// answer.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	w.silent = true
	r := w.begin(`{"nodes": [{"id": "d", "type": "delay", "seconds": 3600}, {"id": "a", "type": "wait_event", "event": "x", "timeout_minutes": 60}, {"id": "g", "type": "agent", "agent_id": "AGENT", "input": "x"}]}`, `null`, ``)
	w.eventually("the child runs", func() bool { return w.text(`SELECT status FROM runs WHERE parent_run_id = $1`, r) == "running" })
	at := w.address(r)
	at.Kind = msg.KindRun
	for range 2 {
		v, err := w.node.Ask(t.Context(), at, msg.CancelRun{By: msg.By{Actor: "user:x"}})
		if got, ok := v.(msg.Status); err != nil || !ok || got.Status != "cancelled" {
			t.Fatalf("%v, %v", v, err)
		}
	}
	if got := w.ended(r); got != "cancelled CANCELLED" {
		t.Error(got)
	}
	if got := w.text(`SELECT status || ' ' || error_code FROM runs WHERE parent_run_id = $1`, r); got != "cancelled CANCELLED" {
		t.Errorf("the child is %s", got)
	}
	if got := w.text(`SELECT string_agg(actor || ' ' || action, ', ' ORDER BY actor) FROM audit_log WHERE action = 'run.cancel'`); got != "system run.cancel, user:x run.cancel" {
		t.Error(got)
	}
	w.exact(r)
}

// A child run is linked both ways, its tokens are billed once and summed in its parent.
func TestAChildRun(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "a", "type": "agent", "agent_id": "AGENT", "input": {"text": "/say {\"eur\": 3}"}}, {"id": "b", "type": "agent", "agent_id": "AGENT", "input": "/say hi"}]}`, `null`, ``)
	if got := w.ended(r); got != "succeeded" {
		t.Fatal(got)
	}
	if got := w.text(`SELECT string_agg(origin_kind || ' ' || (origin_id = $1)::text || ' ' || status, ', ') FROM runs WHERE parent_run_id = $1`, r); got != "workflow true succeeded, workflow true succeeded" {
		t.Error(got)
	}
	if got := w.text(`SELECT count(*) FROM runs p JOIN (SELECT parent_run_id, sum(tokens_in) AS i, sum(tokens_out) AS o FROM runs GROUP BY 1) c ON c.parent_run_id = p.id
		WHERE p.id = $1 AND p.tokens_in = c.i AND p.tokens_out = c.o AND p.tokens_in > 0 AND p.cost_usd > 0`, r); got != "1" {
		t.Error("the sums of the run are not those of its children")
	}
	if got := w.text(`SELECT count(*) FROM usage_records WHERE run_id = $1`, r); got != "0" {
		t.Error("the run bills what its children bill")
	}
	if got := w.text(`SELECT count(*) FROM usage_records`); got != "2" {
		t.Errorf("%s usage records", got)
	}
}

// open-parts.md, End users, ACLs: child runs inherit the end user, those that begin after the run was loaded from
// its rows too. So their searches find what that person may see.
func TestChildRunsInheritTheEndUser(t *testing.T) {
	w := newWorld(t)
	person := id.EndUserID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO end_users (tenant_id, id, external_id) VALUES ($1, $2, 'kim')`, w.tenant, person)
	r, start := w.started(strings.ReplaceAll(`{"nodes": [{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/say first"}, {"id": "e", "type": "wait_event", "event": "go"},
		{"id": "b", "type": "agent", "agent_id": "AGENT", "input": "/say second"}], "edges": [{"from": "a", "to": "e"}, {"from": "e", "to": "b"}]}`, "AGENT", w.agent.String()), `null`, ``)
	start.EndUserID = &person
	w.ask(r, start)
	w.eventually("it waits for the event", func() bool { return strings.HasSuffix(w.nodes(r), "w:e") })
	w.restart(0, false)
	w.inject(r, "go", `1`, "")
	if got := w.ended(r); got != "succeeded" {
		t.Fatal(got)
	}
	if got := w.text(`SELECT string_agg(coalesce((end_user_id = $2)::text, 'none') || ' ' || coalesce((person_id = $2)::text, 'none'), ', ') FROM runs WHERE id = $1 OR parent_run_id = $1`, r, person); got != "true true, true true, true true" {
		t.Errorf("the run and its children work for the person: %s", got)
	}
}

// A waiting run is rows only: it is not in memory, and the sweep does not wake it.
func TestAWaitingRunIsRowsOnly(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "d", "type": "delay", "seconds": 3600}, {"id": "a", "type": "wait_event", "event": "x"}]}`, `null`, ``)
	w.eventually("it waits", func() bool { return w.nodes(r) == "+d w:d +a w:a" })
	if got := w.text(`SELECT owes FROM workflow_runs WHERE id = $1`, r); got != "false" {
		t.Error("it owes something")
	}
	w.eventually("it leaves memory", func() bool { return !w.node.Active(w.address(r)) })
	if got := w.text(`SELECT count(*) FROM timers WHERE kind = 'workflow'`); got != "1" {
		t.Errorf("%s timers", got)
	}
	w.ask(r, msg.CancelRun{})
	w.ended(r)
}
