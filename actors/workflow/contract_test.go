package workflow_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// open-parts.md, Changes, Workflows, and Audit, usage: a start is audited, with its sender. The run of
// a trigger is the trigger's.
func TestStartsAreAudited(t *testing.T) {
	w := newWorld(t)
	of := id.NewAnywhere()
	for _, c := range []struct {
		name string
		from lifecycle.OriginKind
		by   string
		test bool
		want string
	}{
		{"by a key", lifecycle.OriginAPIKey, "apikey:k", false, "apikey:k run.manual run RUN -"},
		{"by a person", lifecycle.OriginUser, "user:u", false, "user:u run.manual run RUN -"},
		{"a test", lifecycle.OriginUser, "user:u", true, "user:u run.manual run RUN -"},
		{"by a trigger", lifecycle.OriginTrigger, "trigger:t", false, "trigger:t trigger.fire trigger " + of.String() + ` {"run_id":"RUN"}`},
		{"a trigger by hand", lifecycle.OriginTrigger, "user:u", false, "user:u trigger.fire trigger " + of.String() + ` {"run_id":"RUN"}`},
	} {
		w.exec(`DELETE FROM audit_log`)
		r, start := w.started(`{"nodes": [{"id": "z", "type": "set", "values": {}}]}`, `null`, ``)
		start.Origin, start.By, start.Test = msg.Origin{Kind: c.from, ID: of}, msg.By{Actor: c.by, IP: "192.0.2.1"}, c.test
		w.ask(r, start)
		w.ended(r)
		got := w.text(`SELECT string_agg(concat_ws(' ', actor, action, target_kind, target_id, coalesce(detail::text, '-')), ', ') FROM audit_log WHERE ip = '192.0.2.1'`)
		if want := strings.ReplaceAll(c.want, "RUN", r.String()); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
		if got := w.text(`SELECT origin_kind || ' ' || origin_id FROM runs WHERE id = $1`, r); got != string(c.from)+" "+of.String() {
			t.Errorf("%s: its origin is %s", c.name, got)
		}
	}
}

// open-parts.md, Audit: an event that is sent to a run is audited, once however often it comes.
func TestAnEventIsAudited(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "paid"}, {"id": "f", "type": "wait_event", "event": "go"}]}`, `null`, ``)
	rows := func() string {
		return w.text(`SELECT string_agg(concat_ws(' ', actor, action, target_kind, target_id, ip, coalesce(detail::text, '-')), ', ') FROM audit_log WHERE action LIKE 'run.event.%'`)
	}
	sent := msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, ID: "evt-1", Name: "paid", Payload: json.RawMessage(`{"eur": 12}`), By: msg.By{Actor: "apikey:k", IP: "192.0.2.1"}}
	want := "apikey:k run.event.create run " + r.String() + " 192.0.2.1 -"
	w.ask(r, sent)
	w.ask(r, sent)
	if got := rows(); got != want {
		t.Errorf("audited: %s, want %s", got, want)
	}
	// Its id comes again: under another operation, with a key, and after the end.
	sent.Op = id.OpID{UUID: id.NewAnywhere()}
	w.ask(r, sent)
	sent.Op, sent.Idempotency = id.OpID{UUID: id.NewAnywhere()}, &msg.Idempotency{Digest: [32]byte{8}, Status: 202, Response: []byte("x")}
	w.ask(r, sent)
	w.inject(r, "go", `1`, "") // from a node of an earlier version, which does not name the sender
	w.ended(r)
	sent.Op, sent.Idempotency = id.OpID{UUID: id.NewAnywhere()}, nil
	w.ask(r, sent)
	if got := rows(); got != want {
		t.Errorf("audited after repeats: %s, want %s", got, want)
	}
}

// open-parts.md, Agents, versions, manifest, and Changes, Workflows: a run keeps the version that it
// began with, and goes on when its workflow is archived.
func TestARunKeepsItsVersion(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "go"}, {"id": "z", "type": "set", "values": {"is": "first"}}], "edges": [{"from": "e", "to": "z"}]}`, `null`, ``)
	w.eventually("it waits", func() bool { return w.nodes(r) == "+e w:e" })
	// open-parts.md, Workflows: a waiting node leaves the run running.
	if got := w.status(r); got != "running" {
		t.Errorf("it is %s while it waits for an event", got)
	}
	w.exec(`INSERT INTO workflow_versions (tenant_id, workflow_id, version, status, definition) SELECT tenant_id, workflow_id, 2, 'draft', '{"nodes": [{"id": "e", "type": "wait_event", "event": "other"}]}'
		FROM runs WHERE id = $1`, r)
	w.exec(`UPDATE workflows SET latest_version = 2, archived_at = now() WHERE id = (SELECT workflow_id FROM runs WHERE id = $1)`, r)
	w.restart(0, false)
	w.inject(r, "go", `1`, "")
	if got := w.ended(r) + " " + w.text(`SELECT output -> 'variables' FROM runs WHERE id = $1`, r); got != `succeeded {"is":"first"}` {
		t.Error(got)
	}
}

// open-parts.md, Workflows, triggers, hooks, and Gate and human task: a gate asks for what its node
// says, and managers are those of the workflow's org node.
func TestTheTermsOfAGate(t *testing.T) {
	w := newWorld(t)
	node := id.NodeID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO org_nodes (tenant_id, id, name) VALUES ($1, $2, 'N')`, w.tenant, node)
	r, start := w.started(`{"nodes": [{"id": "g", "type": "gate", "title": "x", "risk": "critical", "approver_role": "manager", "required_approvals": 2, "sla_minutes": 90, "escalate_to_role": "owner"},
		{"id": "h", "type": "human_task", "title": "Who?", "form": {"type": "object"}}]}`, `{"password": "hunter2", "n": 1}`, ``)
	start.Node = &node
	w.ask(r, start)
	g, h := w.approval(r, "g"), w.approval(r, "h")
	const terms = `SELECT concat_ws(' ', tool, risk, assignee_role, required_approvals, escalate_to_role, round(extract(epoch FROM expires_at - created_at) / 60), node_id = $2, agent_id, policy ->> 'name', schema, args) FROM approvals WHERE id = $1`
	if got := w.text(terms, g, node); got != `workflow:gate critical manager 2 owner 90 t g {"title":"x","input":{"password":"[redacted]","n":1}}` {
		t.Error(got)
	}
	if got := w.text(terms, h, node); got != `workflow:human_task medium admin 1 1440 t h {"type": "object"} {"title":"Who?","input":{"password":"[redacted]","n":1}}` {
		t.Error(got)
	}
	if err := w.decide(h, lifecycle.ActionApprove, "Ann", ""); err != nil {
		t.Fatal(err)
	}
	if err := w.decide(g, lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	if got := w.status(r); got != "waiting_approval" {
		t.Errorf("after one of two approvals it is %s", got)
	}
	if err := w.decide(g, lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	if got := w.ended(r); got != "succeeded" {
		t.Error(got)
	}
}

// A human task without a form takes any answer.
func TestATaskWithoutAForm(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "h", "type": "human_task", "title": "x"}]}`, `null`, ``)
	if err := w.decide(w.approval(r, "h"), lifecycle.ActionEdit, "", `{"any": [1, "x"]}`); err != nil {
		t.Fatal(err)
	}
	if got := w.ended(r) + " " + w.text(`SELECT output -> 'outputs' -> 'h' FROM runs WHERE id = $1`, r); got != `succeeded {"text":"","child_run_id":null,"json":{"any":[1,"x"]}}` {
		t.Error(got)
	}
}

// An event that comes again under its Idempotency-Key is no second event.
func TestAnEventUnderAKeyCountsOnce(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "a", "type": "wait_event", "event": "x"}, {"id": "b", "type": "wait_event", "event": "x"}]}`, `null`, ``)
	send := func() error {
		_, err := w.try(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "x", Payload: json.RawMessage(`1`), Idempotency: &msg.Idempotency{Digest: [32]byte{7}, Status: 202, Response: []byte("x")}})
		return err
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	if err := send(); !errors.Is(err, journal.ErrReplay) {
		t.Errorf("the repeat: %v", err)
	}
	if got := w.text(`SELECT count(*) FROM workflow_events WHERE run_id = $1`, r); got != "1" {
		t.Errorf("%s events", got)
	}
	w.inject(r, "x", `2`, "")
	if got := w.ended(r); got != "succeeded" {
		t.Error(got)
	}
}
