package workflow_test

import (
	"strings"
	"testing"

	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
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
		{"a test", true, lifecycle.ActionApprove, "approval.requested approval.escalated approval.decided"},
	} {
		w.exec(`DELETE FROM webhook_deliveries`)
		r, start := w.started(strings.ReplaceAll(definition, "AGENT", w.agent.String()), `null`, ``)
		start.Test = c.test
		w.ask(r, start)
		a := w.approval(r, "g")
		w.eventually("the gate is escalated", func() bool { return w.text(`SELECT assignee_role FROM approvals WHERE id = $1`, a) == "owner" })
		if err := w.decide(a, c.action, "", ""); err != nil {
			t.Fatal(err)
		}
		w.ended(r)
		if got := w.text(`SELECT string_agg(type, ' ' ORDER BY created_at, id) FROM webhook_deliveries`); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}
