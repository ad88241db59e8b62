package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/actors/sweep"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

// toolbox is a fake of all tools. The server in a tool's name says how it is called:
//
//	free.*  ungated, cannot be repeated
//	safe.*  ungated, can be repeated
//	gate.*  gated; gate.cancel ends the run when its approval expires,
//	        gate.climb escalates
//	builtin:handoff, builtin:handoff?  a handoff, ungated and gated
type toolbox struct {
	mu      sync.Mutex
	offered []tool.Caller
	planned []tool.Caller
	failing int                                                     // of Plan, with storage unavailable
	broken  error                                                   // of Plan
	calls   []string                                                // "idx tool args"
	by      []id.AgentID                                            // the calling agents
	answer  func(ctx context.Context, p tool.Planned) *tool.Outcome // nil, or a nil answer: {"ok":true}

	previewed []string                                                // "idx tool"
	preview   func(ctx context.Context, p tool.Planned) *tool.Outcome // nil: the approval opens
}

func (b *toolbox) Offer(_ context.Context, t tool.Caller) ([]model.ToolSpec, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.offered = append(b.offered, t)
	return []model.ToolSpec{{Name: "gate.send", Description: "sends", Schema: json.RawMessage(`{"type":"object"}`)}}, nil
}

func (b *toolbox) Plan(_ context.Context, t tool.Caller, first int, calls []model.Call) ([]tool.Planned, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.planned = append(b.planned, t)
	if b.failing > 0 {
		b.failing--
		return nil, fmt.Errorf("read grants: %w", problem.Unavailable("", 0))
	}
	if b.broken != nil {
		return nil, b.broken
	}
	out := make([]tool.Planned, len(calls))
	for i, c := range calls {
		p := tool.Planned{CallID: c.ID, Tool: c.Name, Args: tool.WithKey(json.RawMessage(`{"properties":{"idempotency_key":{"type":"string"}}}`), c.Args, tool.Key(t.Run, first+i)), Schema: json.RawMessage(`{"type":"object"}`)}
		p.Shown = redact.JSON(p.Args)
		server, name, _ := strings.Cut(c.Name, ".")
		switch {
		case server == "skill": // a browser skill: it is previewed before its approval opens
			p.Approval, p.Repeat = &id.ApprovalID{UUID: id.New(t.Run.Shard())}, true
			p.Terms = &tool.Terms{Risk: lifecycle.RiskHigh, Required: 1, Role: lifecycle.RoleAdmin, SLAMinutes: 60, OnTimeout: agent.TimeoutReject}
			p.Skill = &tool.SkillCall{Run: id.SkillRunID{UUID: id.New(t.Run.Shard())}, Previews: true, Reason: "the customer asked"}
		case server == "gate" || c.Name == "builtin:handoff?":
			p.Approval = &id.ApprovalID{UUID: id.New(t.Run.Shard())}
			p.Terms = &tool.Terms{Risk: lifecycle.RiskHigh, Required: 2, Role: lifecycle.RoleAdmin, SLAMinutes: 60, OnTimeout: agent.TimeoutReject, Policy: tool.PolicyRef{Name: "P", Kind: tool.KindPolicy}}
			if name == "cancel" {
				p.Terms.OnTimeout = agent.TimeoutCancelRun
			}
			if name == "climb" {
				p.Terms.Escalate = lifecycle.RoleOwner
			} else {
				p.Terms.Escalate = lifecycle.RoleMember // not a higher role
			}
		case server == "safe":
			p.Repeat = true
		case server == "free", c.Name == "builtin:handoff":
		default:
			out := tool.FailedResult(tool.ErrNotGranted, "no")
			p.Refused = &out
		}
		if strings.HasPrefix(c.Name, "builtin:handoff") {
			p.Handoff, p.Repeat, p.Tool, p.Args = true, true, "builtin:handoff", c.Args
		}
		out[i] = p
	}
	return out, nil
}

func (b *toolbox) Call(ctx context.Context, t tool.Caller, idx int, p tool.Planned) tool.Outcome {
	b.mu.Lock()
	b.calls = append(b.calls, fmt.Sprint(idx, " ", p.Tool, " ", string(p.Args)))
	b.by = append(b.by, t.Agent)
	answer := b.answer
	b.mu.Unlock()
	if answer != nil {
		if out := answer(ctx, p); out != nil {
			return *out
		}
	}
	return tool.Outcome{Content: `{"ok":true,"secret":"s-9"}`, Shown: json.RawMessage(`{"ok":true,"secret":"[redacted]"}`)}
}

// Preview notes which calls it was asked for; answer says what becomes of them.
func (b *toolbox) Preview(ctx context.Context, _ tool.Caller, idx int, p tool.Planned) *tool.Outcome {
	b.mu.Lock()
	b.previewed = append(b.previewed, fmt.Sprint(idx, " ", p.Tool))
	answer := b.preview
	b.mu.Unlock()
	if answer != nil {
		return answer(ctx, p)
	}
	return nil
}

func (b *toolbox) called() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// holds makes every call wait until its context ends, and returns the names of calls that began.
func (b *toolbox) holds() <-chan string {
	began := make(chan string, 200)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = func(ctx context.Context, p tool.Planned) *tool.Outcome {
		began <- p.Tool
		<-ctx.Done()
		out := tool.FailedResult(tool.ErrToolTimeout, "cut off")
		return &out
	}
	return began
}

func (b *toolbox) lets() { b.mu.Lock(); defer b.mu.Unlock(); b.answer = nil }

func withTools(w *world) { w.tools = &toolbox{} }

const toolAgent = `{"model":{"provider":"simulated","name":"sim-1"},"tools":{"mcp":[{"server":"gate"},{"server":"free"},{"server":"safe"}]},"handoffs":["b","c"]}`

// waits waits until the run waits for its approvals and is not in memory.
func (w *world) waits(r id.RunID) {
	w.t.Helper()
	testkit.Eventually(w.t, "the run waits", func() bool {
		status := w.text(`SELECT status FROM runs WHERE id = $1`, r)
		if status == "failed" {
			w.t.Fatal(w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
		}
		return status == "waiting_approval" && !w.node.Active(w.address(msg.KindRun, r.UUID))
	})
}

// decides decides the approval of a step as its actor does, in one commit with the run's timer. It does not
// tell the run.
func (w *world) decides(r id.RunID, step int, action lifecycle.Action, feedback string, edited string) error {
	w.t.Helper()
	var (
		a               id.ApprovalID
		version, epoch  int64
		required, soFar int
		digest          []byte
		assignee        lifecycle.Role
	)
	if err := w.pool.QueryRow(context.Background(), `SELECT id, version, owner_epoch, required_approvals, digest, assignee_role FROM approvals WHERE tenant_id = $1 AND run_id = $2 AND step_idx = $3`,
		w.tenant, r, step).Scan(&a, &version, &epoch, &required, &digest, &assignee); err != nil {
		w.t.Fatal(err)
	}
	now := time.Now()
	u := &engine.ApprovalUpdate{ID: a, Run: r, Guard: journal.Guard{Version: version, Epoch: epoch, SetEpoch: epoch + 1}, Assignee: assignee,
		Decisions: json.RawMessage(`[]`), Decision: action, DecidedAt: &now, UpdatedAt: now}
	copy(u.Digest[:], digest)
	switch action {
	case lifecycle.ActionApprove:
		u.Status, soFar = lifecycle.ApprovalApproved, required
	case lifecycle.ActionEdit:
		u.Status, soFar = lifecycle.ApprovalEdited, required
		u.Digest = tool.Digest(json.RawMessage(edited))
		sealed, err := w.vault.Seal(engine.EditedAt(w.tenant, a), []byte(edited))
		if err != nil {
			w.t.Fatal(err)
		}
		u.Edited = sealed
		u.Decisions = json.RawMessage(`[{"action":"edit","edited_args":{"n":0}},{"action":"edit","edited_args":` + string(redact.JSON(json.RawMessage(edited))) + `}]`)
	case lifecycle.ActionReject:
		u.Status = lifecycle.ApprovalRejected
	case lifecycle.ActionRespond:
		u.Status = lifecycle.ApprovalResponded
	case lifecycle.ActionExpire:
		u.Status = lifecycle.ApprovalExpired
	}
	u.SoFar = soFar
	if feedback != "" {
		u.Feedback = &feedback
	}
	op := id.OpID{UUID: id.New(r.Shard())}
	return w.writer.Writer.Do(context.Background(), &journal.Commit{
		Op: op, Tenant: w.tenant, Shard: r.Shard(), Rows: []journal.Row{u},
		Timers:     []journal.Timer{{TimerKey: journal.TimerKey{Kind: msg.KindRun, Entity: r.UUID, Name: a.String()}, DueAt: now.Add(time.Second)}},
		TimersDone: []journal.TimerKey{{Kind: msg.KindApproval, Entity: a.UUID, Name: msg.TimerExpire}, {Kind: msg.KindApproval, Entity: a.UUID, Name: msg.TimerEscalate}},
		Audit:      []journal.Audit{{ID: id.AuditID{UUID: id.New(r.Shard())}, At: now, Actor: "user:1", Action: "approval.decide", TargetKind: "approval", TargetID: a.UUID}},
	})
}

func (w *world) decided(r id.RunID, step int, action lifecycle.Action, feedback, edited string) {
	w.t.Helper()
	if err := w.decides(r, step, action, feedback, edited); err != nil {
		w.t.Fatal(err)
	}
	w.node.Tell(w.address(msg.KindRun, r.UUID), msg.ApprovalsDecided{})
}

func (w *world) approve(r id.RunID, step int) {
	w.t.Helper()
	w.decided(r, step, lifecycle.ActionApprove, "", "")
}

// asked returns the messages of the last request to the model.
func (w *world) asked() []model.Message {
	reqs := w.models.requests()
	return reqs[len(reqs)-1].Messages
}

const gatedTurn = "/think Hm.\n/say Sending.\n/call gate.send {\"to\":\"<x&y>\", \"token\":\"k-123\"}\n/say Done."

func TestAGatedCall(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	th := w.newThread()
	r := w.post(th, gatedTurn)
	w.waits(r)
	w.is("0 llm succeeded 2,1 tool waiting 3", `SELECT string_agg(concat_ws(' ', idx, kind, status, began_seq, called_seq), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	w.is("5 2", `SELECT concat_ws(' ', seq, steps) FROM runs WHERE id = $1`, r)
	w.is("pending high admin 2 0 gate.send reject 1 true true Sending. P policy false", `SELECT concat_ws(' ', status, risk, assignee_role, required_approvals, approvals_so_far, tool, on_timeout, version,
		(expires_at = created_at + interval '1 hour')::text, (agent_id = $2)::text, reasoning_summary, policy->>'name', policy->>'kind', (frozen::text LIKE '%k-123%')::text) FROM approvals WHERE run_id = $1`, r, w.agent)
	w.is("approval expire true", `SELECT string_agg(concat_ws(' ', t.kind, t.name, (t.due_at = a.expires_at)::text), ',') FROM timers t JOIN approvals a ON a.id = t.entity_id`)
	w.is("approval.required true,run.waiting NULL", `SELECT string_agg(concat_ws(' ', m.type, coalesce(((m.data->>'approval_id')::uuid = a.id AND (m.data->>'expires_at')::timestamptz = a.expires_at AND m.data->>'tool' = 'gate.send')::text, 'NULL')), ',' ORDER BY m.seq)
		FROM run_marks m JOIN approvals a ON a.run_id = m.run_id WHERE m.run_id = $1`, r)
	w.is("false", `SELECT bool_or(doc LIKE '%k-123%')::text FROM (SELECT row_to_json(s)::text doc FROM run_steps s UNION ALL SELECT row_to_json(a)::text FROM approvals a UNION ALL SELECT row_to_json(m)::text FROM run_marks m) x`)
	if n := w.live.left[r]; n == 0 {
		t.Error("a waiting run keeps its readers' hub")
	}
	if got := w.tools.called(); len(got) != 0 {
		t.Fatalf("called %v", got)
	}
	w.approve(r, 1)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	args := `{"to":"<x&y>", "token":"k-123","idempotency_key":"` + tool.Key(r, 1) + `"}`
	if got := w.tools.called(); len(got) != 1 || got[0] != "1 gate.send "+args {
		t.Errorf("called %q, want %s", got, args)
	}
	w.is(`0 llm succeeded 2,1 tool succeeded 3 7 8,2 llm succeeded 9`, `SELECT string_agg(concat_ws(' ', idx, kind, status, began_seq, called_seq, ended_seq), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	w.is(`{"ok":true,"secret":"[redacted]"}`, `SELECT output::text FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
	w.is("run.resumed approve", `SELECT concat_ws(' ', type, data->>'decision') FROM run_marks WHERE run_id = $1 AND seq = 6`, r)
	w.is("0", `SELECT count(*)::text FROM timers`)
	ms := w.asked()
	if len(ms) != 3 || len(ms[1].Calls) != 1 || ms[1].Text == "" || len(ms[2].Results) != 1 || ms[2].Results[0] != (model.CallResult{CallID: ms[1].Calls[0].ID, Content: `{"ok":true,"secret":"s-9"}`}) {
		t.Errorf("the model's history: %+v", ms)
	}
	if q := w.models.requests()[0]; len(q.Tools) != 1 || q.Tools[0].Name != "gate.send" {
		t.Errorf("offered %+v", q.Tools)
	}
	w.sameReplayed(r)
	w.is("Done.", `SELECT content FROM messages WHERE run_id = $1 AND role = 'assistant'`, r)
}

func TestDecisionsReachTheModel(t *testing.T) {
	for _, c := range []struct {
		name     string
		action   lifecycle.Action
		feedback string
		edited   string
		step     string
		called   string
		hears    string
		user     string
	}{
		{"edit", lifecycle.ActionEdit, "", `{ "to": "z", "token":"new" }`, `succeeded { "to": "z", "token":"[redacted]","idempotency_key":"KEY" }`, `1 gate.send { "to": "z", "token":"new" }`, `{"ok":true,"secret":"s-9"}`, ""},
		{"reject", lifecycle.ActionReject, "not today", "", `failed {"to":"<x&y>", "token":"[redacted]","idempotency_key":"KEY"}`, "", `{"rejected":true,"feedback":"not today"}`, ""},
		{"reject without a word", lifecycle.ActionReject, "", "", `failed {"to":"<x&y>", "token":"[redacted]","idempotency_key":"KEY"}`, "", `{"rejected":true,"feedback":""}`, ""},
		{"respond", lifecycle.ActionRespond, "/say As you wish.", "", `succeeded {"to":"<x&y>", "token":"[redacted]","idempotency_key":"KEY"}`, "", `{"responded":true}`, "/say As you wish."},
		{"expire", lifecycle.ActionExpire, "", "", `failed {"to":"<x&y>", "token":"[redacted]","idempotency_key":"KEY"}`, "", `{"rejected":true,"feedback":"expired"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, toolAgent, withTools)
			r := w.post(w.newThread(), gatedTurn)
			w.waits(r)
			w.decided(r, 1, c.action, c.feedback, c.edited)
			if got := w.ends(r); got != "succeeded" {
				t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			w.is(strings.ReplaceAll(c.step, "KEY", tool.Key(r, 1)), `SELECT concat_ws(' ', status, input::text) FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
			if got := strings.Join(w.tools.called(), ";"); got != c.called {
				t.Errorf("called %s", got)
			}
			ms := w.asked()
			if ms[2].Results[0].Content != c.hears {
				t.Errorf("the model gets %+v", ms[2])
			}
			if (c.user != "") != (len(ms) == 4) || c.user != "" && (ms[3].Role != model.User || ms[3].Text != c.user) {
				t.Errorf("after the results: %+v", ms[3:])
			}
			w.is(string(c.action), `SELECT data->>'decision' FROM run_marks WHERE run_id = $1 AND type = 'run.resumed'`, r)
			w.sameReplayed(r)
		})
	}
}

// Ungated calls run first and in parallel, then people decide on the others, then those run in order; the
// model gets all results in call order.
func TestAMixedTurnOnTheHost(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	var mu sync.Mutex
	inside, both := 0, make(chan struct{})
	w.tools.answer = func(_ context.Context, p tool.Planned) *tool.Outcome {
		if strings.HasPrefix(p.Tool, "gate.") {
			return nil
		}
		mu.Lock()
		if inside++; inside == 2 {
			close(both)
		}
		mu.Unlock()
		<-both // no call answers before both were made
		out := tool.Outcome{Content: p.Tool, Shown: json.RawMessage(`"` + p.Tool + `"`)}
		return &out
	}
	r := w.post(w.newThread(), "/call gate.one\n/call free.a\n/call none.x\n/call safe.b\n/call gate.two\n/call gate.three\n/say Done.")
	w.waits(r)
	w.is("waiting succeeded failed succeeded waiting waiting", `SELECT string_agg(status, ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND idx > 0`, r)
	w.is("3", `SELECT count(*)::text FROM approvals WHERE status = 'pending'`)
	w.is("approval.required approval.required approval.required run.waiting", `SELECT string_agg(type, ' ' ORDER BY seq) FROM run_marks WHERE run_id = $1`, r)
	if got := slices.Sorted(slices.Values(w.tools.called())); len(got) != 2 || got[0][:8] != "2 free.a" || got[1][:8] != "4 safe.b" {
		t.Fatalf("called %v", got)
	}
	w.approve(r, 6)
	w.decided(r, 5, lifecycle.ActionRespond, "Not two.", "")
	testkit.Eventually(w.t, "both decisions are looked at", func() bool {
		return w.text(`SELECT status FROM runs WHERE id = $1`, r) == "waiting_approval" && !w.node.Active(w.address(msg.KindRun, r.UUID))
	})
	if got := w.tools.called(); len(got) != 2 {
		t.Fatalf("called before the last decision: %v", got)
	}
	w.approve(r, 1)
	w.ends(r)
	called := w.tools.called()[2:]
	slices.Sort(called)
	if len(called) != 2 || called[0][:10] != "1 gate.one" || called[1][:12] != "6 gate.three" {
		t.Errorf("called %v", called)
	}
	w.is("run.resumed approve,run.resumed respond,run.resumed approve", `SELECT string_agg(concat_ws(' ', type, data->>'decision'), ',' ORDER BY seq) FROM run_marks WHERE run_id = $1 AND type = 'run.resumed'`, r)
	ms := w.asked()
	var hears []string
	for i, res := range ms[2].Results {
		if res.CallID != ms[1].Calls[i].ID {
			t.Errorf("result %d is of %s", i, res.CallID)
		}
		hears = append(hears, res.Content)
	}
	if len(hears) != 6 || hears[1] != "free.a" || hears[3] != "safe.b" || hears[4] != `{"responded":true}` || ms[3].Text != "Not two." {
		t.Errorf("gets %q, then %+v", hears, ms[3:])
	}
	w.sameReplayed(r)
}

// The approval's host may die before it tells the run, and the run's host may die too: the timer set by
// the decision's commit is enough.
func TestADecisionIsNotLost(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	r := w.post(w.newThread(), gatedTurn)
	other := w.post(w.newThread(), "/call gate.one\n/call gate.two\n/say Done.")
	w.waits(r)
	w.waits(other)
	w.restart()
	for run, step := range map[id.RunID]int{r: 1, other: 2} {
		if err := w.decides(run, step, lifecycle.ActionApprove, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(`UPDATE timers SET due_at = now() WHERE kind = 'run'`)
	s := sweep.New(sweep.Config{Node: w.node, Rows: feed.NewSweep(w.pool), Log: zerolog.Nop(), Every: 10 * time.Millisecond})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	testkit.Eventually(w.t, "the timer of the other is done", func() bool {
		return w.text(`SELECT count(*)::text FROM timers WHERE kind = 'run'`) == "0"
	})
	w.is("waiting_approval", `SELECT status FROM runs WHERE id = $1`, other)
	if err := w.decides(other, 1, lifecycle.ActionReject, "no", ""); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE timers SET due_at = now() WHERE kind = 'run'`)
	if got := w.ends(other); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("0", `SELECT count(*)::text FROM timers`)
	if n := len(w.tools.called()); n != 2 {
		t.Errorf("%d calls", n)
	}
}

func TestCancelWhileWaiting(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	r := w.post(w.newThread(), "/call gate.one\n/call gate.climb\n/call builtin:handoff {\"to\":\"b\"}\n/say Done.")
	w.waits(r)
	if err := w.decides(r, 1, lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	if got := w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "user:1"}}); got != any(msg.Status{Run: r, Status: lifecycle.RunCancelled}) {
		t.Fatalf("replied %+v", got)
	}
	w.is("approved cancelled", `SELECT string_agg(status, ' ' ORDER BY step_idx) FROM approvals WHERE run_id = $1`, r)
	w.is("approve cancel", `SELECT string_agg(decision, ' ' ORDER BY step_idx) FROM approvals WHERE run_id = $1`, r)
	w.is("failed failed failed", `SELECT string_agg(status, ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND idx > 0`, r)
	w.is("0", `SELECT count(*)::text FROM timers`)
	w.is("CANCELLED", `SELECT error_code FROM runs WHERE id = $1`, r)
	w.exec(`UPDATE approvals SET status = 'pending', decision = NULL, decided_at = NULL WHERE step_idx = 2`) // as another actor may have read it
	if err := w.decides(r, 2, lifecycle.ActionApprove, "", ""); !errors.Is(err, journal.ErrConflict) {
		t.Errorf("a decision after the end: %v", err)
	}
	if len(w.tools.called()) != 0 {
		t.Error("something was called")
	}
	w.sameReplayed(r)
}

func TestExpiryThatCancelsTheRun(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	r := w.post(w.newThread(), "/call gate.cancel\n/call gate.one\n/say Done.")
	w.waits(r)
	w.decided(r, 1, lifecycle.ActionExpire, "", "")
	if got := w.ends(r); got != "cancelled" {
		t.Fatal(got)
	}
	w.is("EXPIRED", `SELECT error_code FROM runs WHERE id = $1`, r)
	w.is("expired cancelled", `SELECT string_agg(status, ' ' ORDER BY step_idx) FROM approvals WHERE run_id = $1`, r)
	w.is("0", `SELECT count(*)::text FROM timers`)
	w.sameReplayed(r)
	// The timer of a run that has ended is deleted; nothing else changes.
	a := w.text(`SELECT id::text FROM approvals WHERE run_id = $1 AND step_idx = 1`, r)
	w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'run', $2, $3, now())`, w.tenant, r, a)
	before := w.text(`SELECT (to_jsonb(r) - '{version,owner_epoch,last_op}'::text[])::text FROM runs r WHERE id = $1`, r)
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.TimerDue{Name: a})
	testkit.Eventually(w.t, "the timer is done", func() bool { return w.text(`SELECT count(*)::text FROM timers`) == "0" })
	w.is(before, `SELECT (to_jsonb(r) - '{version,owner_epoch,last_op}'::text[])::text FROM runs r WHERE id = $1`, r)
}

func TestTimersOfApprovals(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, func(w *world) { w.escalate = .25 })
	r := w.post(w.newThread(), "/call gate.one\n/call gate.climb\n/say Done.")
	w.waits(r)
	w.is("1 expire 01:00:00,2 escalate 00:15:00,2 expire 01:00:00", `SELECT string_agg(concat_ws(' ', a.step_idx, t.name, (t.due_at - a.created_at)::text), ',' ORDER BY a.step_idx, t.name)
		FROM timers t JOIN approvals a ON a.id = t.entity_id AND t.kind = 'approval'`)
}

// The process dies during calls: calls that can be repeated are sent again with the same bytes; of the
// others the model is told that the outcome is unknown.
func TestACrashWhileToolsAreCalled(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	began := w.tools.holds()
	r := w.post(w.newThread(), "/call free.a {\"n\":1}\n/call safe.b {\"n\": 2}\n/call gate.c\n/say Done.")
	for range 2 {
		<-began
	}
	w.restart()
	w.tools.lets()
	w.node.Tell(w.address(msg.KindRun, r.UUID), msg.ApprovalsDecided{}) // any message loads it
	w.waits(r)
	w.is("UNKNOWN_OUTCOME", `SELECT output->>'error' FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
	w.is("failed succeeded waiting", `SELECT string_agg(status, ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND idx > 0`, r)
	called := slices.Sorted(slices.Values(w.tools.called()))
	if len(called) != 3 || called[0][:8] != "1 free.a" || called[1] != called[2] || called[1][:8] != "2 safe.b" {
		t.Errorf("called %v", called)
	}
	began = w.tools.holds()
	w.decided(r, 3, lifecycle.ActionEdit, "", `{ "n":3 }`)
	<-began
	w.restart() // after the receipt: the call may have taken effect
	w.tools.lets()
	w.node.Tell(w.address(msg.KindRun, r.UUID), msg.ApprovalsDecided{})
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("UNKNOWN_OUTCOME", `SELECT output->>'error' FROM run_steps WHERE run_id = $1 AND idx = 3`, r)
	if n := len(w.tools.called()); n != 4 {
		t.Errorf("%d calls", n)
	}
	w.sameReplayed(r)
}

// A call that is sent again is refused before it is sent, because the grant was withdrawn: the
// first attempt may have taken effect. Of one that was never sent before, nothing was run.
func TestACallThatIsRefusedWhenItIsSentAgain(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	began := w.tools.holds()
	r := w.post(w.newThread(), "/call safe.a {\"n\":1}\n/call safe.b {\"n\":2}\n/say Done.")
	for range 2 {
		<-began
	}
	w.restart()
	w.tools.mu.Lock()
	w.tools.answer = func(_ context.Context, p tool.Planned) *tool.Outcome {
		out := tool.UnsentResult(tool.ErrNotGranted, "Nothing was run.")
		if p.Tool == "safe.b" { // the server was asked
			out = tool.FailedResult(tool.ErrToolTimeout, "It is not known whether the tool did its work.")
		}
		return &out
	}
	w.tools.mu.Unlock()
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{})
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	const errors = `SELECT string_agg(output->>'error', ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND kind = 'tool'`
	w.is("UNKNOWN_OUTCOME TOOL_TIMEOUT", errors, r)
	r = w.post(w.newThread(), "/call safe.a {\"n\":1}\n/say Done.")
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("TOOL_NOT_GRANTED", errors, r)
}

func TestMaxSecondsWhileAToolIsCalled(t *testing.T) {
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"tools":{"mcp":[{"server":"free"}]},"limits":{"max_seconds":2}}`, withTools)
	w.tools.holds()
	r := w.post(w.newThread(), "/call free.a\n/call free.b\n/say Done.")
	w.ends(r)
	w.is("LIMIT_EXCEEDED failed failed", `SELECT concat_ws(' ', r.error_code, string_agg(s.status, ' ')) FROM runs r JOIN run_steps s ON s.run_id = r.id AND s.idx > 0 WHERE r.id = $1 GROUP BY r.error_code`, r)
	w.sameReplayed(r)
}

func TestCancelWhileAToolIsCalled(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	began := w.tools.holds()
	r := w.post(w.newThread(), "/call free.a\n/say Done.")
	<-began
	w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{})
	w.is("failed UNKNOWN_OUTCOME", `SELECT concat_ws(' ', status, output->>'error') FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
	w.ends(r) // frames follow the reply
	w.sameReplayed(r)
}

func (w *world) newAgent(slug, manifest string, published bool) id.AgentID {
	a := id.AgentID{UUID: id.NewAnywhere()}
	var version *int
	if one := 1; published {
		version = &one
	}
	w.exec(`INSERT INTO agents (tenant_id, id, slug, name, published_version, latest_version) VALUES ($1, $2, $3, 'X', $4, 1)`, w.tenant, a, slug, version)
	w.exec(`INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) VALUES ($1, $2, 1, $3, $4)`, w.tenant, a, map[bool]string{true: "published", false: "draft"}[published], manifest)
	return a
}

func TestAHandoffOnTheHost(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	b := w.newAgent("b", `{"model":{"provider":"simulated","name":"sim-b"},"instructions":"I am B.","tools":{"mcp":[{"server":"free"}]},"handoffs":["a"],
		"guardrails":{"output":[{"kind":"max_chars","value":1000,"action":"block"}]}}`, true)
	w.newAgent("c", simulatedAgent, false)
	th := w.newThread()
	r := w.post(th, "/call builtin:handoff {\"to\":\"c\"}\n/think 1\n/call builtin:handoff {\"to\":\"zzz\"}\n/think 2\n/call builtin:handoff {\"to\":\"b\"}\n/call free.mine\n/say I am here.\n/call free.a\n/say Done.")
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	w.is("0 llm sim-1 succeeded,1 handoff builtin:handoff failed,2 llm sim-1 succeeded,3 handoff builtin:handoff failed,4 llm sim-1 succeeded,5 handoff builtin:handoff succeeded,6 tool free.mine succeeded,7 llm sim-b succeeded,8 tool free.a succeeded,9 llm sim-b succeeded",
		`SELECT string_agg(concat_ws(' ', idx, kind, name, status), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	w.is("true", `SELECT bool_and(agent_id = CASE WHEN idx < 7 THEN $2::uuid ELSE $3::uuid END)::text FROM run_steps WHERE run_id = $1`, r, w.agent, b)
	w.is("handoff a b", `SELECT concat_ws(' ', type, data->>'from', data->>'to') FROM run_marks WHERE run_id = $1`, r)
	w.is("true", `SELECT (agent_id = $2)::text FROM runs WHERE id = $1`, r, w.agent)
	w.is("sim-1 3,sim-b 2", `SELECT string_agg(concat_ws(' ', model, n), ',' ORDER BY model) FROM (SELECT model, count(*) n FROM usage_records WHERE run_id = $1 GROUP BY model, agent_id) x`, r)
	if q := w.models.requests(); q[3].System != "I am B." || q[3].Model != "sim-b" || len(q[3].Messages) != 7 {
		t.Errorf("asked %+v", q[3])
	}
	w.tools.mu.Lock()
	if by := w.tools.by; len(by) != 2 || by[0] != w.agent || by[1] != b {
		t.Errorf("called by %v", by)
	}
	w.tools.mu.Unlock()
	w.sameReplayed(r)
	// Only of b, which has output guardrails, the relay gets no live text.
	w.is("7 9", `SELECT string_agg(idx::text, ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND withheld`, r)
	if relay := strings.Join(w.live.relay(r), ""); strings.Contains(relay, "I am here.") || strings.Count(relay, "Done.") != 1 {
		t.Errorf("the relay says\n%s", relay)
	}
	// The next message starts with the thread's own agent.
	next := w.post(th, "/say Again.")
	w.ends(next)
	w.is("sim-1", `SELECT name FROM run_steps WHERE run_id = $1`, next)
}

// The agent of a run after a handoff survives waiting and a crash.
func TestAHandoffSurvivesWaitingAndACrash(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	b := w.newAgent("b", `{"model":{"provider":"simulated","name":"sim-b"},"tools":{"mcp":[{"server":"gate"}]}}`, true)
	r := w.post(w.newThread(), "/call builtin:handoff? {\"to\":\"b\"}\n/say I am here.\n/call gate.b\n/say Done.")
	w.waits(r)
	w.restart()
	w.approve(r, 1)
	testkit.Eventually(w.t, "the other one asks", func() bool { return w.text(`SELECT count(*)::text FROM approvals WHERE status = 'pending'`) == "1" })
	w.waits(r)
	w.is("true", `SELECT (agent_id = $2)::text FROM approvals WHERE run_id = $1 AND step_idx = 3`, r, b)
	w.restart()
	w.approve(r, 3)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	w.is("sim-1,builtin:handoff,sim-b,gate.b,sim-b", `SELECT string_agg(name, ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	w.sameReplayed(r)
}

// An agent whose manifest names neither tools nor handoffs makes no call to the gateway, even if the model
// invents a call.
func TestAnAgentWithoutToolsDoesNotUseTheGateway(t *testing.T) {
	w := newWorld(t, simulatedAgent, withTools)
	r := w.post(w.newThread(), "/call gate.send\n/say Done.")
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("TOOL_NOT_GRANTED", `SELECT output->>'error' FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
	if n := len(w.tools.offered) + len(w.tools.planned) + len(w.tools.calls); n != 0 {
		t.Errorf("%d calls to the gateway", n)
	}
}

func TestTheGatewayGetsTheTurn(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	th := w.newThread()
	p := w.message(th, "/call free.a\n/say Done.")
	p.Input = json.RawMessage(`{"text":"/call free.a\n/say Done.","options":{"autonomy":"require_approval","tools":["free.*"]}}`)
	w.ask(w.address(msg.KindThread, th.UUID), p)
	w.ends(p.Run)
	for _, turn := range append(w.tools.offered, w.tools.planned...) {
		if turn.Tenant != w.tenant || turn.Run != p.Run || turn.Agent != w.agent || turn.Manifest == nil || !turn.Options.RequireApproval || turn.Options.Tools == nil || (*turn.Options.Tools)[0] != "free.*" {
			t.Errorf("%+v", turn)
		}
	}
	if len(w.tools.offered) != 2 || len(w.tools.planned) != 1 {
		t.Errorf("offered %d times, planned %d times", len(w.tools.offered), len(w.tools.planned))
	}
}

func TestAPlanThatFails(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	w.tools.failing = 2
	r := w.post(w.newThread(), "/call free.a\n/say Done.")
	if got := w.ends(r); got != "succeeded" || len(w.tools.planned) != 3 {
		t.Fatal(got, len(w.tools.planned))
	}
	w.tools.broken = errors.New("bad row")
	r = w.post(w.newThread(), "/call free.a\n/say Done.")
	w.ends(r)
	w.is("INTERNAL 1 1", `SELECT concat_ws(' ', error_code, steps, (SELECT count(*) FROM usage_records u WHERE u.run_id = r.id)) FROM runs r WHERE id = $1`, r)
}

// A waiting run holds no slot; a run that resumes takes one at once.
func TestSlotsOfWaitingRuns(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, withSlots)
	first := w.post(w.newThread(), gatedTurn)
	w.waits(first)
	w.hold()
	second := w.post(w.newThread(), "x")
	w.speaking(second) // in the slot that the first run gave back
	w.approve(first, 1)
	if got := w.ends(first); got != "succeeded" { // although the other run is running
		t.Fatal(got)
	}
	w.slots.mu.Lock()
	taken := slices.Clone(w.slots.taken)
	w.slots.mu.Unlock()
	if !slices.Equal(taken, []id.RunID{first}) {
		t.Errorf("taken %v", taken)
	}
	w.ask(w.address(msg.KindRun, second.UUID), msg.CancelRun{})
}

// The commit by which a run begins to wait, or resumes, may be lost.
func TestLostCommitsOfAGatedCall(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	var opened, resumed, heard sync.Once
	w.writer.fails = func(c *journal.Commit) (err error) {
		lose := func() { err = journal.ErrUnavailable }
		ended := journaltest.Rows[*engine.StepUpdate](c)
		switch {
		case journaltest.Row[*engine.RunUpdate](c) != nil && journaltest.Row[*engine.StepCall](c) != nil:
			resumed.Do(lose)
		case journaltest.Row[*engine.ApprovalInsert](c) != nil:
			opened.Do(lose)
		case len(ended) == 1 && ended[0].Idx == 2:
			heard.Do(lose)
		}
		return err
	}
	// If the commit of an answer is lost, the model is asked again in a new step: the simulated model says
	// the same.
	r := w.post(w.newThread(), "/call gate.send {\"n\":1}\n/say Done.")
	w.waits(r)
	w.is("0 llm abandoned,1 llm succeeded,2 tool waiting", `SELECT string_agg(concat_ws(' ', idx, kind, status), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	if err := w.decides(r, 2, lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	w.node.Tell(w.address(msg.KindRun, r.UUID), msg.ApprovalsDecided{})
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("UNKNOWN_OUTCOME", `SELECT output->>'error' FROM run_steps WHERE run_id = $1 AND idx = 2`, r) // the tool answered, and the answer was lost
	if n := len(w.tools.called()); n != 1 {
		t.Errorf("%d calls", n)
	}
	w.sameReplayed(r)
}

// The largest turn: one commit opens its approvals, and the last decision resumes all its calls.
func TestATurnOf128GatedCalls(t *testing.T) {
	w := newWorld(t, strings.Replace(toolAgent, "{", `{"limits":{"max_steps":1000},`, 1), withTools)
	r := w.post(w.newThread(), strings.Repeat("/call gate.send {\"n\":1}\n", 128)+"/say Done.")
	began := time.Now()
	w.waits(r)
	t.Logf("opened in %s", time.Since(began))
	w.is("128 128", `SELECT concat_ws(' ', count(*), count(DISTINCT step_idx)) FROM approvals WHERE status = 'pending'`)
	for i := range 127 {
		if err := w.decides(r, i+1, lifecycle.ActionApprove, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	w.approve(r, 128)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	if n := len(w.tools.called()); n != 128 {
		t.Errorf("%d calls", n)
	}
	w.is("0", `SELECT count(*)::text FROM timers`)
	w.sameReplayed(r)
}
