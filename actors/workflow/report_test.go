package workflow_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// Events for webhooks: the end of a run that is neither a test nor a child, and all that becomes of
// approvals. A gate is escalated after its part of the time.
func TestReports(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.node = cluster.New(cluster.Config{Member: w.member})
	w.host(w.node, w.tags, workflow.Config{Hears: func(id.TenantID) bool { return true }, EscalateFraction: 0.001})
	testkit.Start(t, w.node)
	w.stop = w.sweep(w.node)
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://x', '{*}', '')`, w.tenant, id.NewAnywhere())
	const definition = `{"nodes": [{"id": "g", "type": "gate", "title": "x", "approver_role": "admin", "escalate_to_role": "owner", "sla_minutes": 1},
		{"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/say hi"}], "edges": [{"from": "g", "to": "a"}]}`
	for _, c := range []struct {
		name   string
		test   bool
		action lifecycle.Action
		want   string
	}{
		{"a run", false, lifecycle.ActionApprove, "approval.requested approval.escalated approval.decided run.completed"},
		{"a run that fails", false, lifecycle.ActionReject, "approval.requested approval.escalated approval.decided run.failed"},
		{"a run that is cancelled", false, "", "approval.requested approval.escalated approval.decided run.failed"},
		{"a test", true, lifecycle.ActionApprove, "approval.requested approval.escalated approval.decided"},
	} {
		w.exec(`DELETE FROM webhook_deliveries`)
		r, start := w.started(strings.ReplaceAll(definition, "AGENT", w.agent.String()), `null`, ``)
		start.Test = c.test
		w.ask(r, start)
		a := w.approval(r, "g")
		w.eventually("the gate is escalated", func() bool { return w.text(`SELECT assignee_role FROM approvals WHERE id = $1`, a) == "owner" })
		if c.action == "" {
			w.ask(r, msg.CancelRun{By: msg.By{Actor: "user:x"}})
		} else if err := w.decide(a, c.action, "", ""); err != nil {
			t.Fatal(err)
		}
		status := w.ended(r)
		if got := w.text(`SELECT string_agg(type, ' ' ORDER BY created_at, type) FROM webhook_deliveries`); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
		if c.test {
			continue
		}
		// open-parts.md, Webhooks: the data of the run's end is that of its row.
		var body []byte
		if err := w.pool.QueryRow(t.Context(), `SELECT body FROM webhook_deliveries WHERE type LIKE 'run.%'`).Scan(&body); err != nil {
			t.Fatal(err)
		}
		var event struct{ Data json.RawMessage }
		if err := json.Unmarshal(body, &event); err != nil {
			t.Fatal(err)
		}
		row := w.text(`SELECT json_build_object('run_id', id, 'workflow_id', workflow_id, 'status', status, 'output', output, 'code', error_code, 'message', error_message,
			'tokens_in', tokens_in, 'tokens_out', tokens_out, 'cost_usd', cost_usd) FROM runs WHERE id = $1`, r)
		if got := told(t, event.Data); got != told(t, []byte(row)) {
			t.Errorf("%s, %s: the event says\n%s\nand the row\n%s", c.name, status, got, told(t, []byte(row)))
		}
		for _, field := range []string{"agent_id", "thread_id"} {
			if !strings.Contains(string(event.Data), `"`+field+`":null`) {
				t.Errorf("%s: no %s in %s", c.name, field, event.Data)
			}
		}
	}
}

// told returns the fields of a run's end that are not null, but the time.
func told(t *testing.T, doc []byte) string {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(doc, &fields); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	maps.DeleteFunc(fields, func(name string, v any) bool { return v == nil || name == "finished_at" })
	out, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
