package engine

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

func TestQueries(t *testing.T) { pgtest.Prepare(t, queries) }

type world struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *Store
	tenant id.TenantID
	other  id.TenantID
	agent  id.AgentID
}

func newWorld(t *testing.T) *world {
	pool := pgtest.New(t).System(t)
	tenant := pgtest.Tenant(t, pool)
	return &world{t: t, pool: pool, store: New(pool), tenant: tenant, other: pgtest.Tenant(t, pool), agent: pgtest.Agent(t, pool, tenant)}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) thread() id.ThreadID {
	th := id.ThreadID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by, next_seq, version, owner_epoch) VALUES ($1, $2, $3, 'x', 9, 4, 2)`, w.tenant, th, w.agent)
	return th
}

func (w *world) run(th id.ThreadID, seq int64, status string) id.RunID {
	r := id.RunID{UUID: id.New(th.Shard())}
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, input, origin_kind, origin_id, created_at, finished_at, error_code, steps, seq, version, owner_epoch, state)
		VALUES ($1, $2, $3::text, $4, 7, $5, $6, '{"text":"x"}', 'user', $1, now(), CASE WHEN $3::text IN ('failed', 'succeeded') THEN now() END, CASE WHEN $3::text = 'failed' THEN 'INTERNAL' END, 2, 5, 3, 1, '\x7b7d')`,
		w.tenant, r, status, w.agent, th, seq)
	return r
}

func (w *world) step(r id.RunID, idx int, status string, sealed []byte) {
	w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, sealed, began_seq, started_at) VALUES ($1, $2, $3, 'llm', 'm', $4, $5, $3 + 10, now())`,
		w.tenant, r, idx, status, sealed)
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	th := w.thread()
	r := w.run(th, 3, "running")
	w.step(r, 0, "succeeded", []byte("a"))
	w.step(r, 1, "running", nil)
	got, err := w.store.Run(t.Context(), w.tenant, r)
	if err != nil || got == nil {
		t.Fatal(got, err)
	}
	if got.Status != lifecycle.RunRunning || *got.AgentID != w.agent || *got.AgentVersion != 7 || *got.ThreadID != th || *got.ThreadSeq != 3 ||
		got.ParentRunID != nil || string(got.Input) != `{"text":"x"}` || got.OriginKind != lifecycle.OriginUser || got.Version != 3 || got.Epoch != 1 || got.Steps != 2 || got.Seq != 5 || string(got.State) != "{}" {
		t.Errorf("%+v", got)
	}
	if want := []OpenStep{{Idx: 1, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepRunning, BeganSeq: 11}}; !reflect.DeepEqual(got.Open, want) {
		t.Errorf("open %+v", got.Open)
	}
	w.exec(`UPDATE run_steps SET status = 'failed' WHERE idx = 1`)
	parent := w.run(th, 4, "running")
	w.exec(`UPDATE runs SET parent_run_id = $2 WHERE id = $1`, r, parent)
	if got, err = w.store.Run(t.Context(), w.tenant, r); err != nil || len(got.Open) != 0 || got.ParentRunID == nil || *got.ParentRunID != parent {
		t.Errorf("%+v, %v", got, err)
	}
}

// The open calls of a model's turn come with the state of their approvals.
func TestOpenSteps(t *testing.T) {
	w := newWorld(t)
	r := w.run(w.thread(), 1, "waiting_approval")
	w.exec(`UPDATE runs SET steps = 134 WHERE id = $1`, r)
	for idx, status := range map[int]string{5: "running", 6: "running", 7: "succeeded", 8: "waiting", 9: "waiting", 10: "waiting", 11: "failed", 12: "waiting", 13: "waiting", 133: "running"} {
		w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, sealed, began_seq, started_at) VALUES ($1, $2, $3::int, 'tool', 't', $4, '\x01', $3::int, now())`, w.tenant, r, idx, status)
	}
	approvals, expires := map[int]id.ApprovalID{}, time.Now().Truncate(time.Microsecond)
	for idx, sets := range map[int]string{
		7: `status = 'approved', decision = 'approve', decided_at = now(), approvals_so_far = 1`, // of a step that ended
		8: `on_timeout = 'cancel_run'`,
		9: `status = 'edited', decision = 'edit', decided_at = now(), approvals_so_far = 1, edited = '\x02',
		    decisions = '[{"action":"edit","edited_args":{"n":1}},{"action":"edit","edited_args":{"n":2}},{"action":"approve"}]'`,
		10: `status = 'rejected', decision = 'reject', decided_at = now(), feedback = 'no', edited = '\x02'`,
		13: `edited = '\x04', decisions = '[{"action":"edit","edited_args":{"n":3}}]', assignee_role = 'owner'`,
	} {
		approvals[idx] = id.ApprovalID{UUID: id.NewAnywhere()}
		w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at)
			VALUES ($1, $2, $3, $4, 'low', 'admin', 1, 't', '{}', '\x03', sha256('x'), '{}', 'reject', $5, now(), now())`, w.tenant, approvals[idx], r, idx, expires)
		w.exec(`UPDATE approvals SET `+sets+` WHERE id = $1`, approvals[idx])
	}
	got, err := w.store.Run(t.Context(), w.tenant, r)
	if err != nil || got == nil {
		t.Fatal(got, err)
	}
	digest := sha256.Sum256([]byte("x"))
	step := func(idx int, status lifecycle.StepStatus, asked *Asked) OpenStep {
		if asked != nil {
			asked.ExpiresAt, asked.Risk = expires, lifecycle.RiskLow
			if asked.Assignee == "" {
				asked.Assignee = lifecycle.RoleAdmin
			}
		}
		return OpenStep{Idx: idx, Kind: lifecycle.StepTool, Name: "t", Status: status, BeganSeq: int64(idx), Sealed: []byte{1}, Asked: asked}
	}
	want := []OpenStep{
		step(6, lifecycle.StepRunning, nil), // 5 is no call of the last turn
		step(8, lifecycle.StepWaiting, &Asked{ID: approvals[8], Status: lifecycle.ApprovalPending, Digest: digest[:], OnTimeout: "cancel_run"}),
		step(9, lifecycle.StepWaiting, &Asked{ID: approvals[9], Status: lifecycle.ApprovalEdited, Decision: lifecycle.ActionEdit, Edited: []byte{2}, Shown: json.RawMessage(`{"n":2}`), Digest: digest[:], OnTimeout: "reject"}),
		step(10, lifecycle.StepWaiting, &Asked{ID: approvals[10], Status: lifecycle.ApprovalRejected, Decision: lifecycle.ActionReject, Feedback: "no", Digest: digest[:], OnTimeout: "reject"}),
		step(12, lifecycle.StepWaiting, nil),
		step(13, lifecycle.StepWaiting, &Asked{ID: approvals[13], Status: lifecycle.ApprovalPending, Digest: digest[:], OnTimeout: "reject", Assignee: lifecycle.RoleOwner}),
		step(133, lifecycle.StepRunning, nil),
	}
	if !reflect.DeepEqual(got.Open, want) {
		t.Errorf("open\n got %+v\nwant %+v", got.Open, want)
	}
}

// A run reads the answers to its approvals once they are decided, and only those of open steps.
func TestNodeApprovals(t *testing.T) {
	w := newWorld(t)
	r := w.run(w.thread(), 1, "waiting_approval")
	const ledger = `[{"action":"edit","edited_args":{"n":1},"feedback":null},{"action":"approve","feedback":"so"}]`
	for idx, c := range []struct{ step, sets string }{
		{"waiting", `edited = '\x04'`},
		{"waiting", `status = 'edited', decision = 'approve', decided_at = now(), approvals_so_far = 1, edited = '\x05'`},
		{"waiting", `status = 'approved', decision = 'approve', decided_at = now(), approvals_so_far = 1`},
		{"running", `status = 'rejected', decision = 'reject', decided_at = now(), edited = '\x06'`},
		{"succeeded", `status = 'edited', decision = 'approve', decided_at = now(), approvals_so_far = 1, edited = '\x07'`},
	} {
		w.step(r, idx, c.step, nil)
		w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, decisions, on_timeout, expires_at, created_at, updated_at)
			VALUES ($1, $2, $3, $4, 'low', 'admin', 1, 't', '{}', '\x03', sha256('x'), '{}', $5, 'reject', now(), now(), now())`, w.tenant, id.NewAnywhere(), r, idx, ledger)
		w.exec(`UPDATE approvals SET `+c.sets+` WHERE run_id = $1 AND step_idx = $2`, r, idx)
	}
	read, err := w.store.NodeApprovals(t.Context(), w.tenant, r)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range read {
		shown, err := read[i].Shown()
		feedback, err2 := read[i].Feedback()
		got = append(got, fmt.Sprintf("%d %s %x %s %q %t", read[i].Idx, read[i].Status, read[i].Edited, shown, feedback, err == nil && err2 == nil))
	}
	want := []string{`0 pending   "" true`, `1 edited 05 {"n":1} "so" true`, `2 approved  {"n":1} "so" true`, `3 rejected  {"n":1} "so" true`}
	if !slices.Equal(got, want) {
		t.Errorf("read\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSlugs(t *testing.T) {
	w := newWorld(t)
	draft, old := id.AgentID{UUID: id.NewAnywhere()}, id.AgentID{UUID: id.NewAnywhere()}
	w.exec(`UPDATE agents SET slug = 'a', published_version = 3 WHERE id = $1`, w.agent)
	w.exec(`INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'draft', 'D')`, w.tenant, draft)
	w.exec(`INSERT INTO agents (tenant_id, id, slug, name, published_version, archived_at) VALUES ($1, $2, 'old', 'O', 1, now())`, w.tenant, old)
	for _, c := range []struct {
		tenant id.TenantID
		slug   string
		ok     bool
	}{{w.tenant, "a", true}, {w.tenant, "draft", false}, {w.tenant, "old", false}, {w.tenant, "none", false}, {w.other, "a", false}} {
		agent, version, ok, err := w.store.Published(t.Context(), c.tenant, c.slug)
		if err != nil || ok != c.ok || ok && (agent != w.agent || version != 3) {
			t.Errorf("%s: %s %d %t, %v", c.slug, agent, version, ok, err)
		}
	}
	for _, c := range []struct {
		tenant id.TenantID
		agent  id.AgentID
		want   string
	}{{w.tenant, draft, "draft"}, {w.tenant, old, "old"}, {w.other, draft, ""}} {
		if got, err := w.store.Slug(t.Context(), c.tenant, c.agent); err != nil || got != c.want {
			t.Errorf("%q, want %q, %v", got, c.want, err)
		}
	}
}

func TestSealedLeavesOutAbandonedSteps(t *testing.T) {
	w := newWorld(t)
	r := w.run(w.thread(), 1, "running")
	for idx, status := range []string{"succeeded", "abandoned", "failed", "succeeded", "running"} {
		sealed := []byte(fmt.Sprint(idx))
		if idx == 3 {
			sealed = nil
		}
		w.step(r, idx, status, sealed)
	}
	got, size, err := w.store.Sealed(t.Context(), w.tenant, r, 0, 2)
	if err != nil || size != 2 || len(got) != 2 || got[0].Idx != 0 || string(got[0].Value) != "0" || got[1].Idx != 2 || string(got[1].Value) != "2" {
		t.Errorf("%+v, %d, %v", got, size, err)
	}
	if got, size, err := w.store.Sealed(t.Context(), w.tenant, r, 0, 1); err != nil || size != 2 || len(got) != 0 {
		t.Errorf("without room: %+v, %d, %v", got, size, err)
	}
	if got, size, err := w.store.Sealed(t.Context(), w.tenant, r, 1, 1); err != nil || size != 1 || len(got) != 1 || got[0].Idx != 2 {
		t.Errorf("from step 1: %+v, %d, %v", got, size, err)
	}
}

func TestMessages(t *testing.T) {
	w := newWorld(t)
	th := w.thread()
	for seq := range 6 {
		w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) VALUES ($1, $2, $3, $4, 'user', $5, now())`,
			w.tenant, th, seq+1, id.NewAnywhere(), fmt.Sprint(seq+1))
	}
	for _, c := range []struct {
		upTo int64
		room int64
		want []string
		size int64
	}{
		{5, 3, []string{"3", "4", "5"}, 3},
		{5, 2, []string{"4", "5"}, 3}, // the oldest is left out, and counted
		{5, 0, []string{"5"}, 3},      // the one that is answered is never left out
		{9, 3, []string{"4", "5", "6"}, 3},
		{9, 0, nil, 0},
	} {
		got, size, err := w.store.Messages(t.Context(), w.tenant, th, c.upTo, 3, c.room)
		var content []string
		for _, m := range got {
			content = append(content, fmt.Sprint(m.Seq))
			if m.Content != fmt.Sprint(m.Seq) || m.Role != "user" {
				t.Errorf("message %d is %+v", m.Seq, m)
			}
		}
		if err != nil || !slices.Equal(content, c.want) || size != c.size {
			t.Errorf("up to %d in %d bytes: %v of %d bytes, %v", c.upTo, c.room, content, size, err)
		}
	}
}

func TestThread(t *testing.T) {
	w := newWorld(t)
	th := w.thread()
	var runs []id.RunID
	for i, status := range []string{"succeeded", "running", "queued", "failed", "queued", "waiting_approval"} {
		r := w.run(th, int64(2*i+1), status)
		runs = append(runs, r)
		w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, $3, $4, 'user', '', $5, now())`, w.tenant, th, 2*i+1, id.NewAnywhere(), r)
	}
	w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, 2, $3, 'assistant', '', $4, now())`, w.tenant, th, id.NewAnywhere(), runs[0])
	got, err := w.store.Thread(t.Context(), w.tenant, th, 3)
	if err != nil || got == nil {
		t.Fatal(got, err)
	}
	if got.AgentID != w.agent || got.NextSeq != 9 || got.Version != 4 || got.Epoch != 2 || got.DeletedAt != nil {
		t.Errorf("%+v", got)
	}
	if want := []OpenRun{{runs[1], 3}, {runs[2], 5}, {runs[4], 9}}; !slices.Equal(got.Open, want) {
		t.Errorf("open %v", got.Open)
	}
	if want := []id.RunID{runs[5], runs[4], runs[3]}; !slices.Equal(got.Asked, want) {
		t.Errorf("asked %v", got.Asked)
	}
	more, err := w.store.OpenRuns(t.Context(), w.tenant, th, 9, 3)
	if err != nil || !slices.Equal(more, []OpenRun{{runs[5], 11}}) {
		t.Errorf("%v, %v", more, err)
	}
}

func TestAudited(t *testing.T) {
	w := newWorld(t)
	row, target := id.AuditID{UUID: id.NewAnywhere()}, id.NewAnywhere()
	w.exec(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) VALUES ($1, $2, now(), 'user:1', 'thread.delete', 'thread', $3)`, w.tenant, row, target)
	for name, c := range map[string]struct {
		tenant id.TenantID
		row    id.AuditID
		action string
		target id.UUID
		want   bool
	}{
		"the row":        {w.tenant, row, "thread.delete", target, true},
		"another row":    {w.tenant, id.AuditID{UUID: id.NewAnywhere()}, "thread.delete", target, false},
		"another action": {w.tenant, row, "run.cancel", target, false},
		"another target": {w.tenant, row, "thread.delete", id.NewAnywhere(), false},
		"another tenant": {w.other, row, "thread.delete", target, false},
	} {
		if got, err := w.store.Audited(t.Context(), c.tenant, c.row, c.action, c.target); err != nil || got != c.want {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

func TestManifest(t *testing.T) {
	w := newWorld(t)
	w.exec(`INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) VALUES ($1, $2, 2, 'draft', '{"b":1, "a":2}')`, w.tenant, w.agent)
	if got, err := w.store.Manifest(t.Context(), w.tenant, w.agent, 2); err != nil || string(got) != `{"b":1, "a":2}` {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := w.store.Manifest(t.Context(), w.tenant, w.agent, 3); err != nil || got != nil {
		t.Errorf("%s, %v", got, err)
	}
}

// Another tenant's id matches no row (service.md, Tenant isolation).
func TestAnotherTenantSeesNothing(t *testing.T) {
	w := newWorld(t)
	th := w.thread()
	r := w.run(th, 1, "running")
	w.step(r, 0, "succeeded", []byte("a"))
	w.exec(`INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) VALUES ($1, $2, 1, 'draft', '{}')`, w.tenant, w.agent)
	w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) VALUES ($1, $2, 1, $3, 'user', '', now())`, w.tenant, th, id.NewAnywhere())
	ctx := t.Context()
	if got, err := w.store.Run(ctx, w.other, r); err != nil || got != nil {
		t.Error("run", got, err)
	}
	if got, err := w.store.Thread(ctx, w.other, th, 9); err != nil || got != nil {
		t.Error("thread", got, err)
	}
	if got, _, err := w.store.Sealed(ctx, w.other, r, 0, 99); err != nil || len(got) != 0 {
		t.Error("sealed", got, err)
	}
	if got, _, err := w.store.Messages(ctx, w.other, th, 9, 9, 99); err != nil || len(got) != 0 {
		t.Error("messages", got, err)
	}
	if got, err := w.store.OpenRuns(ctx, w.other, th, 0, 9); err != nil || len(got) != 0 {
		t.Error("open runs", got, err)
	}
	if got, err := w.store.Manifest(ctx, w.other, w.agent, 1); err != nil || got != nil {
		t.Error("manifest", got, err)
	}
}

func TestQueriesNameTheirTenant(t *testing.T) { pgtest.Tenants(t, queries, nil) }
