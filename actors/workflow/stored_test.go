package workflow_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsvc/persistence/engine"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// The files testdata/stored-*.jsonl are rows of runs as an earlier build left them (pgtest.Stored).
// -stored=NAME writes one.
var stored = flag.String("stored", "", "write the rows of this stored run anew")

// storedRows are the rows of a run.
func (w *world) storedRows() *pgtest.Stored {
	return &pgtest.Stored{
		Tables: []string{"tenants", "agents", "agent_versions", "workflows", "workflow_versions", "runs", "workflow_runs", "run_steps", "workflow_events", "run_marks", "approvals", "timers"},
		Sealed: map[string][]string{"run_steps": {"sealed"}, "approvals": {"frozen", "edited"}},
		Open: func(r *pgtest.StoredRow, column string, sealed []byte) ([]byte, error) {
			return w.vault.Open(w.place(r, column), sealed)
		},
		Seal: func(r *pgtest.StoredRow, column string, plain []byte) ([]byte, error) {
			return w.vault.Seal(w.place(r, column), plain)
		},
	}
}

// place returns what a sealed column of a row is bound to.
func (w *world) place(r *pgtest.StoredRow, column string) vault.AAD {
	t := id.TenantID{UUID: r.ID(w.t, "tenant_id")}
	switch {
	case r.Table == "run_steps":
		return vault.AAD{Tenant: t, Table: "run_steps", Row: r.Text("run_id") + "/" + string(r.Row["idx"]), Column: "sealed"}
	case column == "frozen":
		return engine.FrozenAt(t, id.ApprovalID{UUID: r.ID(w.t, "id")})
	}
	return engine.EditedAt(t, id.ApprovalID{UUID: r.ID(w.t, "id")})
}

// restore inserts the rows of a file, while no node runs, and returns the workflow run. Approvals
// and timeouts are due in an hour, delays now.
func (w *world) restore(file string) (run id.RunID) {
	w.t.Helper()
	w.exec(`DELETE FROM agent_versions`)
	w.exec(`DELETE FROM agents`)
	for _, r := range w.storedRows().Restore(w.t, w.pool, file) {
		switch r.Table {
		case "tenants":
			w.tenant = id.TenantID{UUID: r.ID(w.t, "id")}
		case "agents":
			w.agent = id.AgentID{UUID: r.ID(w.t, "id")}
		case "workflow_runs":
			run = id.RunID{UUID: r.ID(w.t, "id")}
		}
	}
	w.exec(`UPDATE approvals SET expires_at = now() + interval '1 hour'`)
	w.exec(`UPDATE timers t SET claimed_until = NULL, due_at = CASE WHEN EXISTS (SELECT FROM run_steps s WHERE s.run_id = t.entity_id AND 'node/' || s.idx = t.name AND s.name LIKE 'delay%') THEN now()
		ELSE now() + interval '1 hour' END`)
	return run
}

// storedRuns are runs of which there are rows: how they came to be, and how they go on.
var storedRuns = []struct {
	name   string
	begin  func(w *world)
	goesOn func(w *world, r id.RunID)
	output string
	calls  string // of tools, after it was resumed
}{
	{
		name: "queued", // accepted, and its process ended
		begin: func(w *world) {
			w.restart(1, true)
			r, start := w.started(`{"nodes": [{"id": "z", "type": "set", "values": {"z": "{{input.who}} {{variables.mine}} {{variables.all}}"}}], "variables": {"mine": 1, "all": 2}}`, `{"who": "me"}`, `{"mine": 3}`)
			if _, err := w.try(r, start); err == nil {
				w.t.Fatal("the process goes on")
			}
		},
		goesOn: func(*world, id.RunID) {},
		output: `{"outputs":{"z":{"text":"","child_run_id":null}},"variables":{"all":2,"mine":3,"z":"me 3 2"}}`,
	},
	{
		name: "answered", // its call was answered while its node was leaving
		begin: func(w *world) {
			held := make(chan struct{})
			w.mu.Lock()
			w.held = held
			w.mu.Unlock()
			r := w.begin(`{"nodes": [{"id": "t", "type": "tool", "tool": "shop.once", "args": {"n": 1}}, {"id": "z", "type": "set", "values": {"z": "{{nodes.t.json.n}}"}}], "edges": [{"from": "t", "to": "z"}]}`, `null`, ``)
			w.eventually("it is called", func() bool { return len(w.calls("shop.once", r)) == 1 })
			finished := w.leaves()
			close(held)
			if err := <-finished; err != nil {
				w.t.Fatal(err)
			}
		},
		goesOn: func(*world, id.RunID) {},
		output: `{"outputs":{"t":{"text":"{\"n\":1}","child_run_id":null,"json":{"n":1}},"z":{"text":"","child_run_id":null}},"variables":{"z":1}}`,
	},
	{
		name: "filling", // its process ended while the form of a browser skill was filled, before people were asked
		begin: func(w *world) {
			w.mu.Lock()
			w.silent = true
			w.mu.Unlock()
			r := w.begin(`{"nodes": [{"id": "k", "type": "tool", "tool": "skill.fills", "args": {"n": 1}}]}`, `null`, ``)
			w.eventually("the form is filled", func() bool { return len(w.calls("preview", r)) == 1 })
		},
		goesOn: func(w *world, r id.RunID) {
			a := w.approval(r, "k")
			if got := w.text(`SELECT concat_ws(' ', schema, browser_skill_run_id IS NOT NULL) FROM approvals WHERE id = $1`, a); got != `{"type":"object"} t` {
				w.t.Errorf("the approval has %s", got)
			}
			if err := w.decide(a, lifecycle.ActionApprove, "", ""); err != nil {
				w.t.Fatal(err)
			}
		},
		output: `{"outputs":{"k":{"text":"{\"n\":1}","child_run_id":null,"json":{"n":1}}},"variables":{}}`,
		calls:  "preview 0 1, skill.fills 0 1",
	},
	{
		name: "all", // nodes of all types have ended or wait, one is skipped, and an event is early
		begin: func(w *world) {
			r := w.begin(`{"nodes": [
				{"id": "v", "type": "set", "values": {"who": "{{input.who}}", "n": 7}},
				{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/say hello {{variables.who}}"},
				{"id": "e1", "type": "wait_event", "event": "first"},
				{"id": "c", "type": "condition", "expression": "nodes.e1.json.n > variables.n"},
				{"id": "x", "type": "set", "values": {"never": 1}},
				{"id": "y", "type": "set", "values": {"y": "<{{nodes.e1.json.n}}>"}},
				{"id": "delay", "type": "delay", "seconds": 3600},
				{"id": "late", "type": "wait_event", "event": "late"},
				{"id": "e2", "type": "wait_event", "event": "second {{input.who}}", "timeout_minutes": 60},
				{"id": "g", "type": "gate", "title": "for {{variables.who}}?", "risk": "high", "sla_minutes": 60},
				{"id": "h", "type": "human_task", "title": "?", "form": {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}},
				{"id": "t", "type": "tool", "tool": "shop.again", "args": {"n": "{{nodes.e1.json.n}}"}},
				{"id": "p", "type": "tool", "tool": "shop.asks", "args": {"who": "{{variables.who}}"}},
				{"id": "b", "type": "agent", "agent_id": "AGENT", "input": "/say {{nodes.a.text}} again"},
				{"id": "z", "type": "set", "values": {"all": "{{nodes.b.text}}|{{nodes.e1.json.n}}|{{nodes.e2.text}}|{{nodes.h.json.ok}}|{{nodes.late.json.m}}|{{nodes.t.json.n}}|{{nodes.p.json.who}}|{{variables.y}}"}}],
				"edges": [{"from": "v", "to": "a"}, {"from": "v", "to": "delay"}, {"from": "v", "to": "e1"}, {"from": "v", "to": "e2"}, {"from": "v", "to": "g"}, {"from": "v", "to": "h"}, {"from": "v", "to": "p"},
					{"from": "e1", "to": "c"}, {"from": "c", "to": "x", "when": false}, {"from": "c", "to": "y", "when": true}, {"from": "e1", "to": "t"}, {"from": "a", "to": "b"}, {"from": "e1", "to": "b"},
					{"from": "delay", "to": "late"}, {"from": "late", "to": "z"}, {"from": "e2", "to": "z"}, {"from": "g", "to": "z"}, {"from": "h", "to": "z"}, {"from": "p", "to": "z"},
					{"from": "t", "to": "z"}, {"from": "b", "to": "z"}, {"from": "x", "to": "z"}, {"from": "y", "to": "z"}],
				"variables": {"n": 1, "y": null}}`, `{"who": "me & you"}`, `{"extra": {"deep": [1, 2.50]}}`)
			w.eventually("the first child has ended", func() bool {
				return w.text(`SELECT status FROM run_steps WHERE run_id = $1 AND name = 'a'`, r) == "succeeded"
			})
			w.mu.Lock()
			w.silent = true
			w.mu.Unlock()
			w.inject(r, "late", `{"m": 9}`, "early")
			w.inject(r, "first", `{"n": 8}`, "")
			w.eventually("all wait", func() bool {
				return len(w.calls("shop.again", r)) == 1 && w.text(`SELECT count(*) FROM approvals WHERE run_id = $1`, r) == "3" &&
					w.text(`SELECT count(*) FROM runs c JOIN run_steps s ON s.run_id = c.id WHERE c.parent_run_id = $1 AND c.status = 'running'`, r) == "1"
			})
		},
		goesOn: func(w *world, r id.RunID) {
			for node, d := range map[string][2]string{"g": {"approve", ""}, "p": {"approve", ""}, "h": {"edit", `{"ok": true}`}} {
				if err := w.decide(w.approval(r, node), lifecycle.Action(d[0]), "", d[1]); err != nil {
					w.t.Fatal(err)
				}
			}
			w.inject(r, "late", `{"m": 10}`, "early") // the sender repeats it
			w.inject(r, "second me & you", `"2"`, "")
		},
		output: `{"outputs":{"a":{"text":"hello me & you","child_run_id":"CHILD"},"b":{"text":"hello me & you again","child_run_id":"CHILD"},"c":{"text":"true","child_run_id":null,"json":true},` +
			`"delay":{"text":"","child_run_id":null},"e1":{"text":"","child_run_id":null,"json":{"n":8}},"e2":{"text":"2","child_run_id":null},"g":{"text":"","child_run_id":null},` +
			`"h":{"text":"","child_run_id":null,"json":{"ok":true}},"late":{"text":"","child_run_id":null,"json":{"m":9}},"p":{"text":"{\"who\":\"me & you\"}","child_run_id":null,"json":{"who":"me & you"}},` +
			`"t":{"text":"{\"n\":8}","child_run_id":null,"json":{"n":8}},"v":{"text":"","child_run_id":null},"y":{"text":"","child_run_id":null},"z":{"text":"","child_run_id":null}},` +
			`"variables":{"all":"hello me & you again|8|2|true|9|8|me & you|<8>","extra":{"deep":[1,2.50]},"n":7,"who":"me & you","y":"<8>"}}`,
		calls: "shop.again 9 1, shop.asks 7 1",
	},
}

// Runs that an earlier build began go on: rows that it left are read.
func TestStoredRunsGoOn(t *testing.T) {
	for _, c := range storedRuns {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join("testdata", "stored-"+c.name+".jsonl")
			if *stored == c.name {
				w := newWorld(t)
				c.begin(w)
				w.stop()
				w.stop = func() {}
				w.storedRows().Write(t, w.pool, file)
			}
			w := newWorld(t)
			w.stop()
			r := w.restore(file)
			children := w.text(`SELECT string_agg(id::text, ' ' ORDER BY id) FROM runs WHERE parent_run_id = $1`, r)
			w.start(0, false)
			c.goesOn(w, r)
			if got := w.ended(r); got != "succeeded" {
				t.Fatalf("it is %s: %s", got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			got := strings.NewReplacer(`\u0026`, "&", `\u003c`, "<", `\u003e`, ">").Replace(w.output(r))
			for child := range strings.FieldsSeq(children) {
				got = strings.Replace(got, child, "CHILD", 1)
			}
			if got != c.output {
				t.Errorf("output\n%s\nwant\n%s", got, c.output)
			}
			if now := w.text(`SELECT string_agg(id::text, ' ' ORDER BY id) FROM runs WHERE parent_run_id = $1`, r); now != children {
				t.Errorf("children %s, before %s", now, children)
			}
			if w.text(`SELECT count(*) = max(seq) AND count(*) = count(DISTINCT seq) FROM (SELECT seq FROM run_marks WHERE run_id = $1 UNION ALL SELECT began_seq FROM run_steps WHERE run_id = $1
				UNION ALL SELECT seq FROM runs WHERE id = $1 UNION ALL SELECT 1) x`, r) != "true" {
				t.Error("a fact is missing, or there twice")
			}
			var calls []string
			w.mu.Lock()
			for call, n := range w.called {
				calls = append(calls, strings.NewReplacer(r.String()+"/", "").Replace(call)+fmt.Sprint(" ", n))
			}
			w.mu.Unlock()
			slices.Sort(calls)
			if got := strings.Join(calls, ", "); got != c.calls {
				t.Errorf("calls %q, want %q", got, c.calls)
			}
			if _, err := w.try(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "x", Payload: json.RawMessage(`1`)}); err == nil {
				t.Error("an event of a run that has ended is accepted")
			}
		})
	}
}
