package approval

import (
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// reported is what the endpoint will hear of the approval, in order.
func (g gate) reported() string {
	g.w.t.Helper()
	return g.w.text(`SELECT coalesce(string_agg(concat_ws(' ', type, data->>'assignee_role', data->>'status', data->>'decided_by'), ',' ORDER BY created_at, event_id), '')
		FROM (SELECT *, convert_from(body, 'UTF8')::json->'data' AS data FROM webhook_deliveries) d WHERE data->>'approval_id' = $1::uuid::text`, g.a)
}

// What the endpoints hear is in the commit that makes it true (open-parts.md, Webhook
// data): every terminal status, and the escalation.
func TestWhatIsReported(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.writer(), &ears{}, nil)
	expire, escalate := durable.TimerDue{Name: msg.TimerExpire}, durable.TimerDue{Name: msg.TimerEscalate}
	overdue := func(o *terms) { o.expires = time.Now().Add(-time.Second) }
	for _, c := range []struct {
		name string
		open func(o *terms)
		play []any
		deaf bool
		want string
	}{
		{"approve, fewer than required", func(o *terms) { o.required = 2 }, []any{vote("user:1", approve)}, false, ""},
		{"approve, the last one required", func(o *terms) { o.required = 2 }, []any{vote("user:1", approve), vote("user:2", approve)}, false, "approval.decided admin approved user:2"},
		{"edit, then approve", func(o *terms) { o.required = 2 }, []any{vote("user:1", edit), vote("user:2", approve)}, false, "approval.decided admin edited user:2"},
		{"reject", nil, []any{vote("user:1", reject)}, false, "approval.decided admin rejected user:1"},
		{"respond", nil, []any{vote("apikey:1", lifecycle.ActionRespond)}, false, "approval.decided admin responded apikey:1"},
		{"decided again", nil, []any{vote("user:1", reject), vote("user:2", approve), expire}, false, "approval.decided admin rejected user:1"},
		{"expires", overdue, []any{expire, expire}, false, "approval.decided admin expired system"},
		{"expires, found by a decision", overdue, []any{vote("user:1", approve), expire}, false, "approval.decided admin expired system"},
		{"expires, found by its escalation", func(o *terms) { overdue(o); o.escalate, o.half = lifecycle.RoleOwner, o.expires }, []any{escalate}, false, "approval.decided admin expired system"},
		{"timers that come too early", func(o *terms) { o.escalate, o.half = lifecycle.RoleOwner, time.Now().Add(time.Minute) }, []any{expire, escalate}, false, ""},
		{"escalates, then is decided", func(o *terms) { o.escalate, o.half = lifecycle.RoleOwner, time.Now() }, []any{escalate, escalate, owner("user:1")}, false,
			"approval.escalated owner,approval.decided owner rejected user:1"},
		{"nobody hears", func(o *terms) { o.escalate, o.half = lifecycle.RoleOwner, time.Now() }, []any{escalate, owner("user:1")}, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.deaf = c.deaf
			g := w.open(c.open)
			for _, m := range c.play {
				if _, err := g.ask(n, m); err != nil && !isCode(err, problem.CodeAlreadyDecided) {
					t.Fatal(err)
				}
			}
			if got := g.reported(); got != c.want {
				t.Errorf("reported %q, want %q", got, c.want)
			}
		})
	}
	w.is("0", `SELECT count(*)::text FROM webhook_deliveries d WHERE d.tenant_id <> $1`, w.tenant)
	w.is("true", `SELECT bool_and((data->>'tool', data->>'risk', data->>'run_id') = (a.tool, a.risk, a.run_id::text) AND (data->>'expires_at')::timestamptz = a.expires_at
		AND ((data->>'decided_at') IS NULL) = (type = 'approval.escalated') AND coalesce((data->>'decided_at')::timestamptz = a.decided_at, true))::text
		FROM (SELECT *, convert_from(body, 'UTF8')::json->'data' AS data FROM webhook_deliveries) d JOIN approvals a ON a.id = (data->>'approval_id')::uuid`)
}

// owner rejects.
func owner(who string) msg.Decide {
	m := vote(who, reject)
	m.Role = lifecycle.RoleOwner
	return m
}
