package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

// waits is a run that waits for one approval, written by the writer itself: its
// row has version 2.
type waits struct {
	x        *world
	run      id.RunID
	approval id.ApprovalID
	shard    id.Shard
}

func (x *world) newWaits(shard id.Shard) *waits {
	x.t.Helper()
	w := &waits{x: x, run: id.RunID{UUID: id.New(shard)}, approval: id.ApprovalID{UUID: id.New(shard)}, shard: shard}
	accept := x.accept(shard)
	accept.Accept.ID = w.run
	x.must(accept)
	op := newOp()
	x.must(&draft{Op: op, Tenant: x.tenant, Shard: shard,
		Run: &RunUpdate{ID: w.run, Guard: Guard{Version: 1}, Status: lifecycle.RunWaitingApproval, StartedAt: ptr(noon), Seq: 4, Steps: 1},
		Began: []StepInsert{{Run: w.run, Idx: 0, Kind: lifecycle.StepTool, Name: "a.b", Status: lifecycle.StepWaiting, Input: json.RawMessage(`{}`),
			Sealed: []byte("planned"), BeganSeq: 2, StartedAt: noon}},
		Opens:  w.insert(),
		Timers: []Timer{{w.timer("expire"), noon.Add(time.Hour)}, {w.timer("escalate"), noon.Add(time.Minute)}},
	})
	return w
}

func (w *waits) insert() *ApprovalInsert {
	return &ApprovalInsert{ID: w.approval, Run: w.run, StepIdx: 0, Agent: &w.x.agent, Risk: lifecycle.RiskHigh, Assignee: lifecycle.RoleAdmin, Required: 2,
		Tool: "a.b", Args: json.RawMessage(`{"z":1, "a":"[redacted]"}`), Schema: json.RawMessage(`{"type":"object"}`), Frozen: []byte("frozen"),
		Digest: [32]byte{1}, Reasoning: "because", Policy: json.RawMessage(`{"id":null,"name":"p","kind":"policy"}`), Escalate: lifecycle.RoleOwner,
		OnTimeout: "reject", ExpiresAt: noon.Add(time.Hour), CreatedAt: noon}
}

func (w *waits) timer(name string) TimerKey {
	return TimerKey{Kind: "approval", Entity: w.approval.UUID, Name: name}
}

// decide is a commit that ends the approval; change may alter it.
func (w *waits) decide(change func(u *ApprovalUpdate)) *draft {
	u := &ApprovalUpdate{ID: w.approval, Run: w.run, Guard: Guard{Version: 1, SetEpoch: 1}, Status: lifecycle.ApprovalRejected, Assignee: lifecycle.RoleAdmin,
		Digest: [32]byte{1}, Decisions: json.RawMessage(`[{"principal":"user:x"}]`), Decision: lifecycle.ActionReject, Feedback: ptr("no"),
		DecidedAt: ptr(noon), UpdatedAt: noon, DropTimers: []string{"expire", "escalate"}, WakeRun: ptr(noon)}
	if change != nil {
		change(u)
	}
	return &draft{Op: newOp(), Tenant: w.x.tenant, Shard: w.shard, Audit: []Audit{w.x.audit()}, Approval: u}
}

// cancel is the commit by which the run ends.
func (w *waits) cancel() *draft {
	return w.cancelOf(Pending{w.approval, lifecycle.RoleAdmin})
}

// cancelOf ends the run, which knows of these approvals.
func (w *waits) cancelOf(pending ...Pending) *draft {
	op := newOp()
	return &draft{Op: op, Tenant: w.x.tenant, Shard: w.shard, Audit: []Audit{w.x.audit()},
		Run: &RunUpdate{ID: w.run, Guard: Guard{Version: 2, SetEpoch: 2}, Status: lifecycle.RunCancelled, ErrorCode: ptr("CANCELLED"), ErrorMessage: ptr("m"),
			StartedAt: ptr(noon), FinishedAt: ptr(noon), Seq: 5, Steps: 1},
		Ended:      []StepUpdate{{Run: w.run, Idx: 0, Status: lifecycle.StepFailed, FinishedAt: noon}},
		Statements: []Statement{CancelApprovals(w.x.tenant, op, w.run, pending, noon)},
		TimersDone: []TimerKey{w.timer("expire"), w.timer("escalate"), {"run", w.run.UUID, w.approval.String()}}}
}

// is compares a row's columns, joined by |.
func (w *waits) is(want, columns string, args ...any) {
	w.x.t.Helper()
	var got string
	err := w.x.pool.QueryRow(context.Background(), `SELECT concat_ws('|', `+columns+`) FROM approvals a JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
		WHERE a.id = $1`, append([]any{w.approval}, args...)...).Scan(&got)
	if err != nil {
		w.x.t.Fatal(err)
	}
	if got != want {
		w.x.t.Errorf("got  %s\nwant %s", got, want)
	}
}

func (w *waits) timers() int {
	w.x.t.Helper()
	return w.x.count(`SELECT count(*) FROM timers WHERE entity_id IN ($1, $2)`, w.approval, w.run)
}

func TestAnApprovalsRowIsWritten(t *testing.T) {
	x := newWorld(t, nil)
	w := x.newWaits(3)
	w.is(`pending|0|high|admin|2|a.b|{"z":1, "a":"[redacted]"}|{"type":"object"}|frozen|because|owner|reject|[]|t|1|0|waiting_approval`,
		`a.status, a.approvals_so_far, a.risk, assignee_role, required_approvals, tool, args, schema, convert_from(frozen, 'UTF8'), reasoning_summary,
		escalate_to_role, on_timeout, decisions, decided_at IS NULL AND decision IS NULL AND edited IS NULL AND feedback IS NULL, a.version, a.owner_epoch, r.status`)
	first := w.decide(func(u *ApprovalUpdate) {
		u.Status, u.Decision, u.Feedback, u.DecidedAt, u.SoFar = lifecycle.ApprovalPending, "", nil, nil, 1
		u.Edited, u.Digest, u.Assignee, u.EscalatedAt = []byte("edited"), [32]byte{2}, lifecycle.RoleOwner, ptr(noon)
	})
	x.must(first)
	w.is(`pending|1|owner|edited|2|t|t|2|1|t`, `a.status, approvals_so_far, assignee_role, convert_from(edited, 'UTF8'), get_byte(digest, 0),
		escalated_at = $2, decided_at IS NULL, a.version, a.owner_epoch, a.last_op = $3`, noon, first.Op)
	x.must(w.decide(func(u *ApprovalUpdate) {
		u.Version, u.Epoch, u.SetEpoch = 2, 1, 5
		u.Status, u.Decision, u.SoFar, u.Digest, u.Feedback = lifecycle.ApprovalEdited, lifecycle.ActionApprove, 2, [32]byte{2}, nil
	}))
	w.is(`edited|2|approve|edited|t|t|3|5|[{"principal":"user:x"}]`, `a.status, approvals_so_far, decision, convert_from(edited, 'UTF8'), feedback IS NULL,
		decided_at = $2, a.version, a.owner_epoch, decisions`, noon)
	if n := x.count(`SELECT count(*) FROM timers WHERE kind = 'run' AND entity_id = $1 AND name = $2::uuid::text AND due_at = $3`, w.run, w.approval, noon); n != 1 || w.timers() != 1 {
		t.Errorf("%d timers wake the run, of %d", n, w.timers())
	}
}

// A decision counts only while the run waits for it, and once.
func TestADecisionMissesItsGuard(t *testing.T) {
	x := newWorld(t, nil)
	for name, c := range map[string]struct {
		before func(w *waits)
		change func(u *ApprovalUpdate)
	}{
		"the row has another version":                     {nil, func(u *ApprovalUpdate) { u.Version = 2 }},
		"the row has another epoch":                       {nil, func(u *ApprovalUpdate) { u.Epoch = 1 }},
		"it is another run's":                             {nil, func(u *ApprovalUpdate) { u.Run = id.RunID{UUID: id.New(3)} }},
		"there is no such approval":                       {nil, func(u *ApprovalUpdate) { u.ID = id.ApprovalID{UUID: id.New(3)} }},
		"it is decided":                                   {func(w *waits) { x.must(w.decide(nil)) }, func(u *ApprovalUpdate) { u.Version, u.Epoch = 2, 1 }},
		"the run was cancelled, and the approval with it": {func(w *waits) { x.must(w.cancel()) }, func(u *ApprovalUpdate) { u.Version = 2 }},
		"the run does not wait any more":                  {func(w *waits) { x.exec(`UPDATE runs SET status = 'running' WHERE id = $1`, w.run) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := x.newWaits(3)
			if c.before != nil {
				c.before(w)
			}
			before := w.timers()
			loser, other := w.decide(c.change), x.auditOnly(3)
			errs := x.all([]*draft{loser, other})
			if !errors.Is(errs[0], ErrConflict) || errs[1] != nil {
				t.Errorf("%v, beside it %v", errs[0], errs[1])
			}
			if n := x.count(`SELECT count(*) FROM audit_log WHERE id IN ($1, $2)`, loser.Audit[0].ID, other.Audit[0].ID); n != 1 || w.timers() != before {
				t.Errorf("%d audit rows, %d timers where %d were", n, w.timers(), before)
			}
		})
	}
}

// TestADecisionAndTheRunsEndInOneFlush: whichever came first into the queue, the
// end of the run is written, and the decision is not.
func TestADecisionAndTheRunsEndInOneFlush(t *testing.T) {
	x := newWorld(t, nil)
	for name, order := range map[string][2]int{"the decision first": {0, 1}, "the end first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			w := x.newWaits(3)
			both := [2]*draft{w.decide(nil), w.cancel()}
			errs := x.all([]*draft{both[order[0]], both[order[1]]})
			if decided, ended := errs[order[0]], errs[order[1]]; !errors.Is(decided, ErrConflict) || ended != nil {
				t.Errorf("decision %v, end %v", decided, ended)
			}
			w.is(`cancelled|cancel|t|2|0|cancelled`, `a.status, decision, decided_at = $2, a.version, a.owner_epoch, r.status`, noon)
			if n := w.timers(); n != 0 {
				t.Errorf("%d timers are left", n)
			}
		})
	}
}

func TestOfDecisionsInOneFlushOneIsWritten(t *testing.T) {
	x := newWorld(t, nil)
	w := x.newWaits(3)
	var commits []*draft
	for i := range 20 {
		commits = append(commits, w.decide(func(u *ApprovalUpdate) { u.Feedback = ptr(fmt.Sprint(i)) }))
	}
	winner := -1
	for i, err := range x.all(commits) {
		switch {
		case err == nil && winner < 0:
			winner = i
		case !errors.Is(err, ErrConflict):
			t.Errorf("commit %d: %v", i, err)
		}
	}
	w.is(fmt.Sprint("2|", winner), `a.version, a.feedback`)
}

// TestTwoWritersDecideAndCancel: in concurrent transactions approval and run
// agree in the end (security.md, invariant 5).
func TestTwoWritersDecideAndCancel(t *testing.T) {
	db := pgtest.New(t)
	x := worldIn(t, db, nil)
	other := testkit.Start(t, New(Config{Pool: db.Writer(t), Member: pgtest.Member(t, x.pool), Tables: kinds}))
	for round := range 120 {
		w := x.newWaits(id.Shard(round % 4))
		start := make(chan struct{})
		var wg sync.WaitGroup
		var decided, cancelled error
		wg.Go(func() { <-start; decided = x.do(w.decide(nil)) })
		wg.Go(func() {
			<-start
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			cancelled = other.Do(ctx, w.cancel().commit())
		})
		close(start)
		wg.Wait()
		if (decided == nil) == (cancelled == nil) || !errors.Is(errors.Join(decided, cancelled), ErrConflict) {
			t.Fatalf("decision %v, cancel %v", decided, cancelled)
		}
		if decided == nil {
			x.must(w.cancelOf()) // as it is read now
			w.is(`rejected|reject|cancelled`, `a.status, a.decision, r.status`)
		} else {
			w.is(`cancelled|cancel|cancelled`, `a.status, a.decision, r.status`)
		}
	}
}

// TestADecisionAndAnEndMeetInTheMiddle holds the end of a run behind its swaps, in the last of
// its statements: the decision that meets it is lost; and the other way round.
func TestADecisionAndAnEndMeetInTheMiddle(t *testing.T) {
	for name, endFirst := range map[string]bool{"the end is under way": true, "the decision is under way": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			x := worldIn(t, db, nil)
			w := x.newWaits(3)
			peer := pgtest.Member(t, x.pool)
			other := &world{t: t, pool: x.pool, member: peer, tenant: x.tenant, agent: x.agent,
				w: testkit.Start(t, New(Config{Pool: db.Writer(t), Member: peer, Tables: kinds}))}
			first, second := w.decide(nil), w.cancel()
			if endFirst {
				first, second = second, first
			}
			waiting := func(what string, n int) {
				t.Helper()
				testkit.Eventually(x.t, what, func() bool {
					return x.count(`SELECT count(*) FROM pg_locks WHERE NOT granted
						AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) == n
				})
			}
			// A row of the audit log with the same id, whose transaction is open.
			release := x.lock(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) VALUES ($1, $2, now(), 'x', 'x', 'x', $2)`, x.tenant, first.Audit[0].ID)
			var wg sync.WaitGroup
			var errFirst, errSecond error
			wg.Go(func() { errFirst = x.do(first) })
			waiting("the first waits behind its swaps", 1)
			wg.Go(func() { errSecond = other.do(second) })
			waiting("the second waits for the first one's lock", 2)
			release()
			wg.Wait()
			if errFirst != nil {
				t.Fatal(errFirst)
			}
			if endFirst {
				if !errors.Is(errSecond, ErrConflict) {
					t.Errorf("the decision: %v", errSecond)
				}
				w.is(`cancelled|cancel|cancelled`, `a.status, a.decision, r.status`)
			} else {
				if !errors.Is(errSecond, ErrConflict) {
					t.Errorf("the end, which says that it cancels what is rejected: %v", errSecond)
				}
				w.is(`rejected|reject|waiting_approval`, `a.status, a.decision, r.status`)
			}
		})
	}
}

// TestADecisionOfUnknownOutcome: its audit row says whether it was written.
func TestADecisionOfUnknownOutcome(t *testing.T) {
	for what, mode := range map[string]cut{"the flush did not arrive": cutCommit, "the answer did not arrive": cutAnswer} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			k := &cutter{}
			x := worldIn(t, db, func(c *Config) { c.Pool, c.Lanes = k.pool(t, db.URL), 1 })
			w := x.newWaits(0)
			k.arm(mode)
			c := w.decide(nil)
			x.must(c)
			if k.done() != 1 {
				t.Error("the connection was not cut")
			}
			w.is(`rejected|2|1`, `a.status, a.version, a.owner_epoch`)
			x.must(c) // the same operation again is the same success
			w.is(`rejected|2|1`, `a.status, a.version, a.owner_epoch`)
			if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID); n != 1 {
				t.Errorf("%d audit rows", n)
			}
		})
	}
}

// A run's end cancels what is pending and nothing else.
func TestARunsEndLeavesWhatIsDecided(t *testing.T) {
	x := newWorld(t, nil)
	w, bystander := x.newWaits(3), x.newWaits(3)
	x.must(w.decide(nil))
	x.must(w.cancelOf())
	w.is(`rejected|reject|2|cancelled`, `a.status, a.decision, a.version, r.status`)
	bystander.is(`pending|1|waiting_approval`, `a.status, a.version, r.status`)
}

// What a run's end says of its approvals is what it cancels: where they are not as it
// has read them, nothing of it is written.
func TestARunsEndKnowsWhatItCancels(t *testing.T) {
	x := newWorld(t, nil)
	stranger := id.ApprovalID{UUID: id.New(3)}
	for name, c := range map[string]struct {
		before  func(w *waits)
		pending func(w *waits) []Pending
		want    error
	}{
		"as it was read":             {nil, func(w *waits) []Pending { return []Pending{{w.approval, lifecycle.RoleAdmin}} }, nil},
		"for another role":           {nil, func(w *waits) []Pending { return []Pending{{w.approval, lifecycle.RoleOwner}} }, ErrConflict},
		"there was a vote meanwhile": {func(w *waits) { x.must(w.vote()) }, func(w *waits) []Pending { return []Pending{{w.approval, lifecycle.RoleAdmin}} }, nil},
		"one that it has not read":   {nil, func(w *waits) []Pending { return nil }, ErrConflict},
		"one that is not there": {nil, func(w *waits) []Pending {
			return []Pending{{w.approval, lifecycle.RoleAdmin}, {stranger, lifecycle.RoleAdmin}}
		}, ErrConflict},
		"another one in its place":    {nil, func(w *waits) []Pending { return []Pending{{stranger, lifecycle.RoleAdmin}} }, ErrConflict},
		"it was decided meanwhile":    {func(w *waits) { x.must(w.decide(nil)) }, func(w *waits) []Pending { return []Pending{{w.approval, lifecycle.RoleAdmin}} }, ErrConflict},
		"it was escalated meanwhile":  {func(w *waits) { x.must(w.escalate()) }, func(w *waits) []Pending { return []Pending{{w.approval, lifecycle.RoleAdmin}} }, ErrConflict},
		"it was escalated before":     {func(w *waits) { x.must(w.escalate()) }, func(w *waits) []Pending { return []Pending{{w.approval, lifecycle.RoleOwner}} }, nil},
		"it is decided and was read":  {func(w *waits) { x.must(w.decide(nil)) }, func(w *waits) []Pending { return nil }, nil},
		"another run's, of this name": {nil, func(w *waits) []Pending { return []Pending{{x.newWaits(3).approval, lifecycle.RoleAdmin}} }, ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := x.newWaits(3)
			if c.before != nil {
				c.before(w)
			}
			row := func() (doc string) {
				if err := x.pool.QueryRow(t.Context(), `SELECT concat(a, r) FROM approvals a JOIN runs r ON r.id = a.run_id WHERE a.id = $1`, w.approval).Scan(&doc); err != nil {
					t.Fatal(err)
				}
				return doc
			}
			before := row()
			end, other := w.cancelOf(c.pending(w)...), x.auditOnly(3)
			errs := x.all([]*draft{end, other})
			if !errors.Is(errs[0], c.want) || (c.want == nil) != (errs[0] == nil) || errs[1] != nil {
				t.Errorf("%v, want %v; beside it %v", errs[0], c.want, errs[1])
			}
			if c.want == nil {
				w.is("cancelled|t", `r.status, a.decided_at IS NOT NULL`)
			} else if after := row(); after != before {
				t.Errorf("of an end that failed something is there:\n%s\n%s", before, after)
			}
			if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, end.Audit[0].ID); (n == 1) != (c.want == nil) {
				t.Errorf("%d audit rows", n)
			}
		})
	}
}

// vote is a commit that leaves the approval pending, for the same role.
func (w *waits) vote() *draft {
	return w.decide(func(u *ApprovalUpdate) {
		u.Status, u.Decision, u.Feedback, u.DecidedAt, u.SoFar = lifecycle.ApprovalPending, "", nil, nil, 1
		u.DropTimers, u.WakeRun = nil, nil
	})
}

// escalate is a commit that leaves the approval pending, for another role.
func (w *waits) escalate() *draft {
	return w.decide(func(u *ApprovalUpdate) {
		u.Status, u.Decision, u.Feedback, u.DecidedAt, u.Assignee, u.EscalatedAt = lifecycle.ApprovalPending, "", nil, nil, lifecycle.RoleOwner, ptr(noon)
		u.DropTimers, u.WakeRun = []string{"escalate"}, nil
	})
}

// A decision is written as a whole or not at all.
func TestADecisionIsWholeOrNothing(t *testing.T) {
	x := newWorld(t, nil)
	w := x.newWaits(3)
	c := w.decide(nil)
	x.must(c)
	w.is("rejected|2|1|t|waiting_approval|2", `a.status, a.version, a.owner_epoch, a.last_op = $2, r.status, r.version`, c.Op)
	if w.timers() != 1 {
		t.Errorf("%d timers, want the one that wakes the run", w.timers())
	}
	for name, row := range map[string]struct {
		before func(w *waits)
		change func(c *draft)
		want   error
	}{
		"the run goes on":              {func(w *waits) { x.exec(`UPDATE runs SET status = 'running', version = 3 WHERE id = $1`, w.run) }, nil, ErrConflict},
		"the run was cancelled":        {func(w *waits) { x.must(w.cancel()) }, nil, ErrConflict},
		"the approval moved on":        {func(w *waits) { x.exec(`UPDATE approvals SET version = 2 WHERE id = $1`, w.approval) }, nil, ErrConflict},
		"the approval is claimed":      {func(w *waits) { x.exec(`UPDATE approvals SET owner_epoch = 7 WHERE id = $1`, w.approval) }, nil, ErrConflict},
		"it is decided":                {func(w *waits) { x.must(w.decide(nil)) }, func(c *draft) { c.Approval.Version, c.Approval.Epoch = 2, 1 }, ErrConflict},
		"the approval's row is poison": {nil, func(c *draft) { c.Approval.Feedback = ptr("\x00") }, ErrRefused},
		"another row is poison":        {nil, func(c *draft) { c.Audit[0].Actor = "\x00" }, ErrRefused},
		"the key was used": {nil, func(c *draft) {
			first := x.auditOnly(3)
			first.Idempotency, c.Idempotency = key("used"), key("used")
			x.must(first)
		}, ErrReplay},
	} {
		t.Run(name, func(t *testing.T) {
			w := x.newWaits(3)
			if row.before != nil {
				row.before(w)
			}
			rows := func() string {
				var doc string
				if err := x.pool.QueryRow(t.Context(), `SELECT concat(a, r, (SELECT string_agg(s::text, ',') FROM run_steps s WHERE s.run_id = r.id))
					FROM approvals a JOIN runs r ON r.id = a.run_id WHERE a.id = $1`, w.approval).Scan(&doc); err != nil {
					t.Fatal(err)
				}
				return doc
			}
			before, timers := rows(), w.timers()
			loser, other := w.decide(nil), x.auditOnly(3)
			if row.change != nil {
				row.change(loser)
			}
			errs := x.all([]*draft{loser, other})
			if !errors.Is(errs[0], row.want) || errs[1] != nil {
				t.Errorf("%v, want %v; beside it %v", errs[0], row.want, errs[1])
			}
			if after := rows(); after != before || w.timers() != timers || x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, loser.Audit[0].ID) != 0 {
				t.Errorf("of a commit that failed something is there:\n%s\n%s", before, after)
			}
		})
	}
}

// TestTheSameDecisionAgain: an approval's own row says whose it is, also in a commit
// that leaves no other trace.
func TestTheSameDecisionAgain(t *testing.T) {
	x := oneLane(t)
	w := x.newWaits(0)
	c := w.decide(nil)
	c.Audit = nil
	x.must(c)
	x.must(c)
	other := w.decide(nil)
	if err := x.do(other); !errors.Is(err, ErrConflict) {
		t.Errorf("another one on the same version: %v", err)
	}
	if n := x.count(`SELECT version FROM approvals WHERE id = $1`, w.approval); n != 2 {
		t.Errorf("the approval has version %d, want 2", n)
	}
}
