package journal

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

func TestEveryQueryIsUnderstood(t *testing.T) {
	all := maps.Clone(queries)
	maps.Copy(all, newSchema(kinds).all())
	pgtest.Prepare(t, all)
}

func TestQueriesNameTheirTenant(t *testing.T) {
	all := maps.Clone(queries)
	maps.Copy(all, newSchema(kinds).all())
	pgtest.Tenants(t, all, nil)
}

// TestEveryKindOfRowIsWritten follows one run of a thread through all its rows.
func TestEveryKindOfRowIsWritten(t *testing.T) {
	x := newWorld(t, nil)
	thread := x.newThread(7)
	run := id.RunID{UUID: id.New(7)}
	message, reply := id.MessageID{UUID: id.New(7)}, id.MessageID{UUID: id.New(7)}
	usage := id.UsageID{UUID: id.New(7)}
	audit := x.audit()
	audit.Detail = json.RawMessage(`{"b":1, "a":2}`)
	x.must(&draft{Op: newOp(), Tenant: x.tenant, Shard: 7, New: true, Idempotency: key("k"),
		Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 1, SetEpoch: 4}, NextSeq: 3, UpdatedAt: noon},
		Accept: &RunInsert{ID: run, AgentID: &x.agent, AgentVersion: ptr(2), ThreadID: &thread, ThreadSeq: ptr(int64(1)),
			Input: json.RawMessage(`{"text":"hi"}`), OriginKind: lifecycle.OriginUser, OriginID: id.NewAnywhere(), CreatedAt: noon, State: []byte("s0")},
		Messages: []Message{{Thread: thread, Seq: 1, ID: message, Role: "user", Content: "hällo \u2603", Run: &run, CreatedAt: noon, Attachments: json.RawMessage(`[1]`)}},
		Timers:   []Timer{{TimerKey{"run", run.UUID, "deadline"}, noon}, {TimerKey{"run", run.UUID, "other"}, noon}},
		Audit:    []Audit{audit},
	})
	x.must(&draft{Op: newOp(), Tenant: x.tenant, Shard: 7,
		Run: &RunUpdate{ID: run, Guard: Guard{Version: 1, SetEpoch: 9}, Status: lifecycle.RunRunning, StartedAt: ptr(noon), Seq: 2, Steps: 1, State: []byte("s1")},
		Began: []StepInsert{{Run: run, Idx: 0, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepRunning, Input: json.RawMessage(`{"z":0,"a":0}`),
			Sealed: []byte("sealed"), AgentID: &x.agent, AgentVersion: ptr(2), Withheld: true, BeganSeq: 1, StartedAt: noon}},
		Marks:  []Mark{{Run: run, Seq: 2, Type: "run.waiting", Data: json.RawMessage(`{"n": 1}`)}},
		Timers: []Timer{{TimerKey{"run", run.UUID, "deadline"}, noon.Add(time.Hour)}},
	})
	op := newOp()
	x.must(&draft{Op: op, Tenant: x.tenant, Shard: 7,
		Run: &RunUpdate{ID: run, Guard: Guard{Version: 2, Epoch: 9, SetEpoch: 9}, Status: lifecycle.RunFailed, Output: json.RawMessage(`"out"`),
			ErrorCode: ptr("MODEL_ERROR"), ErrorMessage: ptr("it broke"), TokensIn: 5, TokensOut: 6, CostUSD: 0.25,
			StartedAt: ptr(noon), FinishedAt: ptr(noon.Add(time.Second)), Seq: 4, Steps: 1},
		Ended: []StepUpdate{{Run: run, Idx: 0, Status: lifecycle.StepFailed, Output: json.RawMessage(`{"o":1}`), Segments: []int32{0, 3, 4},
			TokensIn: 5, TokensOut: 6, CostUSD: 0.25, EndedSeq: ptr(int64(3)), FinishedAt: noon.Add(time.Second)}},
		Messages:   []Message{{Thread: thread, Seq: 2, ID: reply, Role: "assistant", Content: "", CreatedAt: noon}},
		TimersDone: []TimerKey{{"run", run.UUID, "other"}},
		Usage:      []Usage{{ID: usage, At: noon, Kind: lifecycle.UsageLLM, Run: &run, Agent: &x.agent, Model: "m", TokensIn: 5, TokensOut: 6, CostUSD: 0.25, Detail: json.RawMessage(`{}`)}},
		Statements: []Statement{{SQL: mustChange(`UPDATE agents SET emoji = $3 WHERE tenant_id = $1 AND id = $2`), Args: []any{x.tenant, x.agent, "🙂"}}},
	})
	for name, c := range map[string]struct {
		sql  string
		args []any
		want string
	}{
		"idempotency": {`SELECT concat_ws('|', status, convert_from(response, 'UTF8'), octet_length(fingerprint)) FROM idempotency WHERE tenant_id = $1`, []any{x.tenant}, "202|sealed|32"},
		"thread":      {`SELECT concat_ws('|', version, owner_epoch, next_seq, updated_at = $2, deleted_at IS NULL) FROM threads WHERE id = $1`, []any{thread, noon}, "2|4|3|t|t"},
		"run": {`SELECT concat_ws('|', status, version, owner_epoch, agent_version, thread_seq, input, output, error_code, error_message, tokens_in, tokens_out,
			cost_usd, created_at = $2, started_at = $2, finished_at > $2, seq, steps, state IS NULL, last_op = $3) FROM runs WHERE id = $1`, []any{run, noon, op},
			`failed|3|9|2|1|{"text":"hi"}|"out"|MODEL_ERROR|it broke|5|6|0.25|t|t|t|4|1|t|t`},
		"step": {`SELECT concat_ws('|', kind, name, status, input, output, segments::text, convert_from(sealed, 'UTF8'), agent_id = $2, agent_version, withheld,
			tokens_in, tokens_out, cost_usd, began_seq, ended_seq, started_at = $3, finished_at > $3) FROM run_steps WHERE run_id = $1`, []any{run, x.agent, noon},
			`llm|m|failed|{"z":0,"a":0}|{"o":1}|{0,3,4}|sealed|t|2|t|5|6|0.25|1|3|t|t`},
		"mark":      {`SELECT concat_ws('|', seq, type, data) FROM run_marks WHERE run_id = $1`, []any{run}, `2|run.waiting|{"n": 1}`},
		"messages":  {`SELECT string_agg(concat_ws('|', seq, id IN ($2, $3), role, content, attachments, run_id IS NULL), ';' ORDER BY seq) FROM messages WHERE thread_id = $1`, []any{thread, message, reply}, "1|t|user|hällo \u2603|[1]|f;2|t|assistant||t"},
		"timers":    {`SELECT string_agg(concat_ws('|', kind, name, due_at = $2), ';') FROM timers WHERE entity_id = $1`, []any{run, noon.Add(time.Hour)}, "run|deadline|t"},
		"usage":     {`SELECT concat_ws('|', kind, run_id IS NULL, model, tokens_in, tokens_out, cost_usd, detail) FROM usage_records WHERE id = $1`, []any{usage}, "llm|f|m|5|6|0.25|{}"},
		"audit":     {`SELECT concat_ws('|', actor, action, target_kind, ip, detail) FROM audit_log WHERE id = $1`, []any{audit.ID}, `user|run.accept|run|::1|{"b":1, "a":2}`},
		"statement": {`SELECT emoji FROM agents WHERE id = $1`, []any{x.agent}, "🙂"},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			if err := x.pool.QueryRow(t.Context(), c.sql, c.args...).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	x.must(&draft{Op: newOp(), Tenant: x.tenant, Shard: 7,
		Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 2, Epoch: 4, SetEpoch: 4}, NextSeq: 3, UpdatedAt: noon, DeletedAt: ptr(noon), PurgeMessages: true}})
	if n := x.count(`SELECT count(*) FROM messages WHERE thread_id = $1`, thread); n != 0 {
		t.Errorf("%d messages are left after the purge", n)
	}
}

// A thread that begins is there before its message and its run; its next commit finds
// it at version 1, epoch 0.
func TestAThreadBeginsWithItsRun(t *testing.T) {
	x := newWorld(t, nil)
	var commits []*draft
	user, person := id.EndUserID{UUID: id.NewAnywhere()}, id.EndUserID{UUID: id.NewAnywhere()}
	for i := range 3 { // alone, and two in one flush
		begun, run := x.newborn(7), id.RunID{UUID: id.New(7)}
		begun.Title, begun.EndUserID, begun.NextSeq = ptr("Title"), &user, 3
		commits = append(commits, &draft{Op: newOp(), Tenant: x.tenant, Shard: 7, New: true, NewThread: begun,
			Accept: &RunInsert{ID: run, AgentID: &x.agent, AgentVersion: ptr(1), ThreadID: &begun.ID, ThreadSeq: ptr(int64(1)), Input: json.RawMessage(`{}`),
				OriginKind: lifecycle.OriginEmbedKey, OriginID: id.NewAnywhere(), EndUserID: &user, CreatedAt: noon},
			Messages: []Message{{Thread: begun.ID, Seq: 1, ID: id.MessageID{UUID: id.New(7)}, Role: "user", Content: "hi", Run: &run, CreatedAt: noon}}})
		if i > 0 {
			commits[i].Accept.PersonID = &person
		}
	}
	x.must(commits[0])
	for _, err := range x.all(commits[1:]) {
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range commits {
		if n := x.count(`SELECT count(*) FROM threads t JOIN messages m ON m.thread_id = t.id JOIN runs r ON r.thread_id = t.id WHERE t.id = $1 AND t.agent_id = $2 AND t.end_user_id = $3
			AND t.title = 'Title' AND t.created_by = 'embed:vid:1' AND t.next_seq = 3 AND t.created_at = $4 AND t.updated_at = $4 AND t.version = 1 AND t.owner_epoch = 0 AND t.last_op = $5`,
			c.NewThread.ID, x.agent, user, noon, c.Op); n != 1 {
			t.Errorf("%d rows", n)
		}
		// Whose data it is says the thread, or else the run.
		whose := user
		if c != commits[0] {
			whose = person
		}
		if n := x.count("SELECT count(*) FROM runs WHERE id = $1 AND end_user_id = $2 AND person_id = $3", c.Accept.ID, user, whose); n != 1 {
			t.Errorf("the run is not the data of %s", whose)
		}
	}
	x.must(&draft{Op: newOp(), Tenant: x.tenant, Shard: 7, Thread: &ThreadUpdate{ID: commits[0].NewThread.ID, Guard: Guard{Version: 1, SetEpoch: 1}, NextSeq: 5, UpdatedAt: noon}})
	// Of two that begin one thread at once one does.
	one, two := *commits[0], *commits[0]
	begun := x.newborn(7)
	one.Op, two.Op, one.NewThread, two.NewThread = newOp(), newOp(), begun, begun
	one.Accept, two.Accept, one.Messages, two.Messages = nil, nil, nil, nil
	if errs := x.all([]*draft{&one, &two}); !errors.Is(errs[1], ErrExists) || errs[0] != nil {
		t.Error(errs)
	}
	// Nobody begins one with an agent that is not there.
	strange := x.newborn(7)
	strange.AgentID = id.AgentID{UUID: id.NewAnywhere()}
	if err := x.do(&draft{Op: newOp(), Tenant: x.tenant, Shard: 7, New: true, NewThread: strange}); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

func TestALoserLosesAllItsRowsAndNobodyElses(t *testing.T) {
	x := newWorld(t, nil)
	thread := x.newThread(2)
	run := x.accept(2)
	x.must(run)
	used := &draft{Op: newOp(), Tenant: x.tenant, Shard: 2, New: true, Idempotency: key("used")}
	x.must(used)
	for name, c := range map[string]struct {
		commit *draft
		want   error
	}{
		"the thread has another version": {&draft{Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 2}, UpdatedAt: noon}}, ErrConflict},
		"the thread has another epoch":   {&draft{Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 1, Epoch: 1}, UpdatedAt: noon}}, ErrConflict},
		"there is no such thread":        {&draft{Thread: &ThreadUpdate{ID: id.ThreadID{UUID: id.New(2)}, Guard: Guard{Version: 1}, UpdatedAt: noon}}, ErrConflict},
		"the run has another version":    {&draft{Run: advance(run, 5).Run}, ErrConflict},
		"the run has another epoch":      {&draft{Run: &RunUpdate{ID: run.Accept.ID, Guard: Guard{Version: 1, Epoch: 3}, Status: lifecycle.RunQueued}}, ErrConflict},
		"the run exists":                 {&draft{Accept: run.Accept}, ErrExists},
		"the thread has begun":           {&draft{NewThread: &ThreadInsert{ID: thread, AgentID: x.agent, CreatedBy: "x", NextSeq: 1, CreatedAt: noon}}, ErrExists},
		"the thread has begun, with the key": {&draft{Idempotency: key("used"),
			NewThread: &ThreadInsert{ID: thread, AgentID: x.agent, CreatedBy: "x", NextSeq: 1, CreatedAt: noon}}, ErrExists},
		"the key was used":            {&draft{Idempotency: key("used")}, ErrReplay},
		"a statement missed its swap": {&draft{Statements: []Statement{{SQL: mustChange(`UPDATE agents SET name = 'x' WHERE id = $1`), Args: []any{id.NewAnywhere()}}}}, ErrConflict},
		"a key was used and the thread moved": {&draft{Idempotency: key("used"),
			Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 2}, UpdatedAt: noon}}, ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			commits := make([]*draft, 9)
			for i := range commits {
				commits[i] = x.auditOnly(2)
			}
			loser := c.commit
			loser.Op, loser.Tenant, loser.Shard, loser.Audit = newOp(), x.tenant, 2, []Audit{x.audit()}
			commits[4] = loser
			for i, err := range x.all(commits) {
				want, rows := error(nil), 1
				if i == 4 {
					want, rows = c.want, 0
				}
				if !errors.Is(err, want) {
					t.Errorf("commit %d: %v, want %v", i, err, want)
				}
				if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, commits[i].Audit[0].ID); n != rows {
					t.Errorf("commit %d left %d audit rows, want %d", i, n, rows)
				}
			}
		})
	}
}

func TestTheSameOperationAgainIsTheSameSuccess(t *testing.T) {
	x := newWorld(t, nil)
	thread := x.newThread(2)
	run := x.accept(2)
	run.Audit = []Audit{x.audit()}
	for name, c := range map[string]*draft{
		"run insert":    run,
		"thread update": {Op: newOp(), Tenant: x.tenant, Shard: 2, Thread: &ThreadUpdate{ID: thread, Guard: Guard{Version: 1}, NextSeq: 2, UpdatedAt: noon}, Audit: []Audit{x.audit()}},
		"thread insert": {Op: newOp(), Tenant: x.tenant, Shard: 2, New: true, NewThread: x.newborn(2), Audit: []Audit{x.audit()}},
		"statement": {Op: newOp(), Tenant: x.tenant, Shard: 2, Audit: []Audit{x.audit()}, Accept: x.accept(2).Accept, Statements: []Statement{{
			SQL: mustChange(`UPDATE agents SET published_version = $1 WHERE published_version IS NULL`), Args: []any{7}}}},
	} {
		t.Run(name, func(t *testing.T) {
			x.must(c)
			x.must(c)
			if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID); n != 1 {
				t.Errorf("%d audit rows", n)
			}
		})
	}
}

// TestOneOfFiftyWithTheSameKeyWins: both where all fifty meet in one flush and
// where they come over two lanes.
func TestOneOfFiftyWithTheSameKeyWins(t *testing.T) {
	x := newWorld(t, nil)
	for name, lanes := range map[string]int{"in one flush": 1, "over the lanes": 2} {
		t.Run(name, func(t *testing.T) {
			var commits []*draft
			for i := range 50 {
				c := x.accept(id.Shard(i % lanes))
				c.Idempotency = key(name)
				commits = append(commits, c)
			}
			won, runs := 0, 0
			for i, err := range x.all(commits) {
				switch {
				case err == nil:
					won++
				case !errors.Is(err, ErrReplay):
					t.Errorf("commit %d: %v", i, err)
				}
				runs += x.count(`SELECT count(*) FROM runs WHERE id = $1`, commits[i].Accept.ID)
			}
			if won != 1 || runs != 1 {
				t.Errorf("%d won, %d runs exist", won, runs)
			}
		})
	}
}

// TestAKeyIsFreeWhenItsFirstUserIsRefused: the one that waited for it wins.
func TestAKeyIsFreeWhenItsFirstUserIsRefused(t *testing.T) {
	x := newWorld(t, nil)
	bad, good := x.accept(2), x.accept(2)
	bad.Idempotency, good.Idempotency = key("k"), key("k")
	bad.Accept.State = make([]byte, 4096)
	errs := x.all([]*draft{bad, good})
	if !errors.Is(errs[0], ErrRefused) || errs[1] != nil {
		t.Errorf("%v", errs)
	}
}

func TestPoisonIsIsolated(t *testing.T) {
	x := newWorld(t, nil)
	other, _ := x.newTenant()
	thread := x.newThread(2)
	for name, poison := range map[string]func(c *draft){
		"a check":               func(c *draft) { c.Accept.State = make([]byte, 4096) },
		"a foreign key":         func(c *draft) { c.Messages = []Message{{Thread: id.ThreadID{UUID: id.New(2)}, Seq: 1, Role: "user"}} },
		"a unique key":          func(c *draft) { c.Audit = append(c.Audit, c.Audit...) },
		"text with a zero byte": func(c *draft) { c.Accept.OriginKind = "user\x00" },
		"text that is no UTF-8": func(c *draft) { c.Audit[0].Action = "\xff" },
		"no JSON":               func(c *draft) { c.Audit[0].Detail = json.RawMessage(`{`) },
		"a step that never began": func(c *draft) {
			c.Ended = []StepUpdate{{Run: c.Accept.ID, Status: lifecycle.StepFailed, FinishedAt: noon}}
		},
		"no SQL":                        func(c *draft) { c.Statements = []Statement{{SQL: "SELEC 1"}} },
		"an argument that does not fit": func(c *draft) { c.Statements = []Statement{{SQL: "SELECT $1::int", Args: []any{"x", 2}}} },
		"a failing statement":           func(c *draft) { c.Statements = []Statement{{SQL: "SELECT 1 / $1::int", Args: []any{0}}} },
		"another tenant's thread":       func(c *draft) { c.Tenant = other; c.Accept.ThreadID, c.Accept.ThreadSeq = &thread, ptr(int64(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			var commits []*draft
			for range 200 {
				c := x.accept(2)
				c.Audit = []Audit{x.audit()}
				commits = append(commits, c)
			}
			poison(commits[117])
			for i, err := range x.all(commits) {
				if i == 117 {
					if !errors.Is(err, ErrRefused) {
						t.Errorf("the poisoned one: %v", err)
					}
				} else if err != nil {
					t.Errorf("commit %d: %v", i, err)
				}
			}
			if n := x.count(`SELECT count(*) FROM runs`); n != 199 {
				t.Errorf("%d runs were written, want 199", n)
			}
			x.exec(`DELETE FROM runs`)
		})
	}
}

func TestAnotherTenantsRowIsOutOfReach(t *testing.T) {
	x := newWorld(t, nil)
	run := x.accept(2)
	x.must(run)
	thief, _ := x.newTenant()
	steal := advance(run, 1)
	steal.Tenant = thief
	if err := x.do(steal); !errors.Is(err, ErrConflict) {
		t.Errorf("update of another tenant's run: %v", err)
	}
	began := &draft{Op: newOp(), Tenant: thief, Shard: 2, Began: []StepInsert{{Run: run.Accept.ID, Kind: lifecycle.StepLLM, Status: lifecycle.StepRunning, StartedAt: noon}}}
	if err := x.do(began); !errors.Is(err, ErrRefused) {
		t.Errorf("a step in another tenant's run: %v", err)
	}
	if n := x.count(`SELECT version FROM runs WHERE id = $1`, run.Accept.ID); n != 1 {
		t.Errorf("the run has version %d", n)
	}
}

func TestTwoActivationsInOneFlush(t *testing.T) {
	x := newWorld(t, nil)
	run := x.accept(2)
	x.must(run)
	errs := x.all([]*draft{advance(run, 1), advance(run, 1), advance(run, 2), advance(run, 2)})
	for i, want := range []error{nil, ErrConflict, nil, ErrConflict} {
		if !errors.Is(errs[i], want) || want == nil && errs[i] != nil {
			t.Errorf("commit %d: %v, want %v", i, errs[i], want)
		}
	}
	if n := x.count(`SELECT version FROM runs WHERE id = $1`, run.Accept.ID); n != 3 {
		t.Errorf("the run has version %d, want 3", n)
	}
}

// TestOrderOfAnEntity: commits queued one after another, without waiting, all
// win their swap, though others stand between them.
func TestOrderOfAnEntity(t *testing.T) {
	x := newWorld(t, nil)
	runs := []*draft{x.accept(2), x.accept(3), x.accept(4)}
	for _, r := range runs {
		x.must(r)
	}
	var commits []*draft
	for v := range int64(20) {
		for _, r := range runs {
			commits = append(commits, advance(r, v+1))
		}
	}
	for i, err := range x.all(commits) {
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
}

func TestManyCallersNothingLost(t *testing.T) {
	x := newWorld(t, nil)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			c := x.accept(id.Shard(i))
			if err := x.do(c); err != nil {
				t.Error(err)
				return
			}
			for v := range int64(20) {
				if err := x.do(advance(c, v+1)); err != nil {
					t.Errorf("version %d: %v", v+1, err)
				}
			}
		})
	}
	wg.Wait()
	if n := x.count(`SELECT count(*) FROM runs WHERE version = 21`); n != 64 {
		t.Errorf("%d of 64 runs are at version 21", n)
	}
}

func TestNewWorkIsNotStarved(t *testing.T) {
	for _, c := range []struct{ accepted, fresh, takenAccepted, takenFresh int }{
		{1400, 100, maxFlush - maxFlush/freshShare, maxFlush / freshShare},
		{1400, 3, maxFlush - 3, 3},
		{1400, 0, maxFlush, 0},
		{10, 1000, 10, maxFlush - 10},
		{0, 1000, 0, maxFlush},
		{3, 4, 3, 4},
	} {
		l := newLane(New(Config{}), 0)
		for range c.accepted {
			l.accepted = append(l.accepted, newEntry(t.Context(), &Commit{}))
		}
		for range c.fresh {
			l.fresh = append(l.fresh, newEntry(t.Context(), &Commit{New: true}))
		}
		batch, _ := l.take()
		fresh := 0
		for _, e := range batch {
			if e.c.New {
				fresh++
			}
		}
		if accepted := len(batch) - fresh; accepted != c.takenAccepted || fresh != c.takenFresh {
			t.Errorf("of %d and %d were taken %d and %d", c.accepted, c.fresh, accepted, fresh)
		}
	}
}

func TestAFlushIsBoundedInBytes(t *testing.T) {
	x := newWorld(t, nil)
	var commits []*draft
	for range 12 {
		c := x.accept(2)
		c.Accept.Input = json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
		commits = append(commits, c)
	}
	flushes := 0
	var mu sync.Mutex
	x.w.setBeforeFlush(func(uint32) { mu.Lock(); flushes++; mu.Unlock() })
	for i, err := range x.all(commits) {
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if flushes < 3 || flushes > 6 {
		t.Errorf("%d flushes for 12 MB", flushes)
	}
}

func TestFenced(t *testing.T) {
	for name, kill := range map[string]string{
		"marked dead":     `UPDATE members SET dead_at = now() WHERE id = $1`,
		"the row is gone": `DELETE FROM members WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			calls := make(chan struct{}, 10)
			x := newWorld(t, func(c *Config) { c.OnFenced = func() { calls <- struct{}{} } })
			x.exec(kill, x.member)
			run := x.accept(2)
			x.fenced(run)
			x.fenced(x.accept(3))
			if n := x.count(`SELECT count(*) FROM runs`); n != 0 {
				t.Errorf("%d runs were written", n)
			}
			if len(calls) != 1 {
				t.Errorf("OnFenced was called %d times", len(calls))
			}
			if _, err := x.w.Admit(t.Context(), x.tenant); err == nil {
				t.Error("new work was admitted")
			}
		})
	}
}

func TestWithdrawnOrUnsettled(t *testing.T) {
	x := newWorld(t, nil)
	release := x.block()
	for name, c := range map[string]struct {
		commit  *draft
		want    error
		written int
	}{
		"new work is withdrawn":      {x.accept(0), ErrUnavailable, 0},
		"accepted work stays queued": {x.auditOnly(0), ErrUnsettled, 1},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c.commit.Audit = []Audit{x.audit()}
		queued := x.queued()
		got := make(chan error)
		go func() { got <- x.w.Do(ctx, c.commit.commit()) }()
		testkit.Eventually(x.t, "the commit is queued", func() bool { return x.queued() == queued+1 })
		cancel()
		if err := <-got; !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		defer func() {
			if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.commit.Audit[0].ID); n != c.written {
				t.Errorf("%s: %d rows", name, n)
			}
		}()
	}
	release()
	x.must(x.auditOnly(0)) // the lane has passed everything that was queued
}

// A caller that leaves after its commit was sent does not know the outcome. The commit is
// written.
func TestInFlightIsUnsettled(t *testing.T) {
	for _, row := range []struct {
		what string
		new  bool
	}{{"accepted work", false}, {"new work", true}} {
		t.Run(row.what, func(t *testing.T) {
			x := newWorld(t, nil)
			gate, arrived := make(chan struct{}), make(chan struct{})
			var once sync.Once
			x.w.setBeforeFlush(func(uint32) { once.Do(func() { close(arrived); <-gate }) })
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error)
			c := x.accept(0)
			c.New = row.new
			go func() { got <- x.w.Do(ctx, c.commit()) }()
			<-arrived
			cancel()
			if err := <-got; !errors.Is(err, ErrUnsettled) {
				t.Errorf("%v", err)
			}
			close(gate)
			x.must(x.auditOnly(0))
			if n := x.count(`SELECT count(*) FROM runs WHERE id = $1`, c.Accept.ID); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}

func TestStopWritesWhatIsQueued(t *testing.T) {
	x := newWorld(t, nil)
	release := x.block()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := x.do(x.accept(0)); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.Eventually(x.t, "all are queued", func() bool { return x.queued() == 100 })
	stopped := make(chan error)
	go func() { stopped <- x.w.Stop(t.Context()) }()
	testkit.Eventually(x.t, "the writer is stopping", func() bool { return x.w.Down() != nil })
	release()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	wg.Wait()
	if n := x.count(`SELECT count(*) FROM runs`); n != 100 {
		t.Errorf("%d of 100 runs were written", n)
	}
	if err := x.do(x.accept(0)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("after Stop: %v", err)
	}
}

func TestTouch(t *testing.T) {
	x := newWorld(t, nil)
	k := id.KeyID{UUID: id.NewAnywhere()}
	x.exec(`INSERT INTO api_keys (tenant_id, id, name, prefix, secret_hash) VALUES ($1, $2, 'k', 'p', '')`, x.tenant, k)
	for i := range 100 {
		x.w.Touch(x.tenant, k, noon.Add(time.Duration(i)*time.Second))
	}
	x.w.Touch(x.tenant, k, noon)
	x.w.writeTouched()
	x.w.Touch(x.tenant, k, noon.Add(time.Second))
	x.w.writeTouched()
	if n := x.count(`SELECT extract(epoch FROM last_used_at - $1)::int FROM api_keys`, noon); n != 99 {
		t.Errorf("last used %d s after noon, want 99", n)
	}
}
