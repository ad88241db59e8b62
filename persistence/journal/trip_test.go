package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

// oneLane returns a world whose writer has one lane for all shards.
func oneLane(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorld(t, func(c *Config) { c.Lanes = 1 })
}

// begun is a run that is running, of accepted work.
func (x *world) begun() *draft {
	x.t.Helper()
	c := x.accept(0)
	x.must(c)
	return c
}

// TestAFlushEnds: whoever is to blame is told so and leaves no row,
// whoever shares the flush is written.
func TestAFlushEnds(t *testing.T) {
	x := oneLane(t)
	x.must(&draft{Op: newOp(), Tenant: x.tenant, Idempotency: key("used")})
	written := x.accept(0)
	written.Audit = []Audit{x.audit()}
	x.must(written)
	step := func(status lifecycle.StepStatus) *draft {
		r := x.begun()
		c := advance(r, 1)
		if status == lifecycle.StepRunning {
			c.Called = []StepCall{{Run: r.Accept.ID, Idx: 3, CalledSeq: 1}}
		} else {
			c.Ended = []StepUpdate{{Run: r.Accept.ID, Idx: 3, Status: status, FinishedAt: noon}}
		}
		return c
	}
	moved := func(sql string, c func(w *waits) *draft) func() *draft {
		return func() *draft {
			w := x.newWaits(0)
			x.exec(sql, w.run)
			return c(w)
		}
	}
	alone := func(w *waits) *draft { return w.decide(nil) }
	stale := func() *draft { return advance(x.begun(), 7) }
	for name, c := range map[string]struct {
		culprits func() []*draft
		want     error
	}{
		"the key was used": {one(func() *draft { return &draft{Idempotency: key("used")} }), ErrReplay},
		"the thread moved on": {one(func() *draft {
			return &draft{Thread: &ThreadUpdate{ID: x.newThread(0), Guard: Guard{Version: 2}, UpdatedAt: noon}}
		}), ErrConflict},
		"the run exists":              {one(func() *draft { return &draft{Accept: x.begun().Accept} }), ErrExists},
		"the run moved on":            {one(stale), ErrConflict},
		"several runs moved on":       {func() []*draft { return []*draft{stale(), stale(), stale()} }, ErrConflict},
		"a step to call is not there": {one(func() *draft { return step(lifecycle.StepRunning) }), ErrRefused},
		"a step to end is not there":  {one(func() *draft { return step(lifecycle.StepFailed) }), ErrRefused},
		"the approval moved on":       {one(moved(`UPDATE approvals SET version = 9 WHERE run_id = $1`, alone)), ErrConflict},
		"the run does not wait":       {one(moved(`UPDATE runs SET status = 'running' WHERE id = $1`, alone)), ErrConflict},
		"the approval is claimed":     {one(moved(`UPDATE approvals SET owner_epoch = 9 WHERE run_id = $1`, alone)), ErrConflict},
		"several approvals moved on": {func() []*draft {
			m := moved(`UPDATE approvals SET version = 9 WHERE run_id = $1`, alone)
			return []*draft{m(), m(), m()}
		}, ErrConflict},
		"a statement missed its swap": {one(func() *draft {
			return &draft{Statements: []Statement{{SQL: mustChange(`UPDATE agents SET name = 'x' WHERE false`)}}}
		}), ErrConflict},
		"a statement fails":     {one(func() *draft { return &draft{Statements: []Statement{{SQL: `SELECT 1 / $1::int`, Args: []any{0}}}} }), ErrRefused},
		"a statement is no SQL": {one(func() *draft { return &draft{Statements: []Statement{{SQL: `SELEC 1`}}} }), ErrRefused},
		"a check":               {one(func() *draft { c := advance(x.begun(), 1); c.Run.State = make([]byte, 4096); return c }), ErrRefused},
		"a foreign key": {one(func() *draft {
			return &draft{Marks: []Mark{{Run: id.RunID{UUID: id.New(0)}, Seq: 1, Data: json.RawMessage(`{}`)}}}
		}), ErrRefused},
		"a unique key": {one(func() *draft {
			u := Usage{ID: id.UsageID{UUID: id.New(0)}, At: noon, Kind: lifecycle.UsageLLM}
			return &draft{Usage: []Usage{u, u}}
		}), ErrRefused},
		"text with a zero byte":        {one(func() *draft { return &draft{Timers: []Timer{{TimerKey{"run", id.New(0), "\x00"}, noon}}} }), ErrRefused},
		"the same operation was there": {func() []*draft { return []*draft{written} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			culprits := c.culprits()
			commits := []*draft{x.auditOnly(0), advance(x.begun(), 1)}
			for _, l := range culprits {
				if l != written {
					l.Op, l.Tenant, l.Audit = newOp(), x.tenant, []Audit{x.audit()}
				}
			}
			commits = append(commits, culprits...)
			commits = append(commits, x.auditOnly(0), advance(x.begun(), 1))
			for i, err := range x.all(commits) {
				guilty := i >= 2 && i < 2+len(culprits)
				if want := c.want; !guilty && err != nil || guilty && !errors.Is(err, want) {
					t.Errorf("commit %d: %v", i, err)
				}
				if guilty && c.want != nil && x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, commits[i].Audit[0].ID) != 0 {
					t.Errorf("commit %d left a row", i)
				}
				if !guilty && commits[i].Audit != nil && x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, commits[i].Audit[0].ID) != 1 {
					t.Errorf("commit %d has no row", i)
				}
				if !guilty && commits[i].Run != nil && x.count(`SELECT version FROM runs WHERE id = $1`, commits[i].Run.ID) != 2 {
					t.Errorf("commit %d has not moved its run", i)
				}
			}
		})
	}
}

func one(c func() *draft) func() []*draft { return func() []*draft { return []*draft{c()} } }

// TestARefusalOfWhoIsStale: an owner whose row was moved on by another one sends
// rows that the database cannot take, most likely since the other one has written
// them. It is told that the row moved on, whatever the database says first; who has
// the row as it is, and sends the same, is refused.
func TestARefusalOfWhoIsStale(t *testing.T) {
	run := func(x *world, c *draft) *draft {
		r := x.begun()
		own := advance(r, 1)
		own.Run.SetEpoch, own.Run.Seq, own.Run.Steps = 5, 2, 1
		own.Began = []StepInsert{{Run: r.Accept.ID, Kind: lifecycle.StepLLM, Status: lifecycle.StepRunning, BeganSeq: 1, StartedAt: noon}}
		own.Marks = []Mark{{Run: r.Accept.ID, Seq: 2, Type: "run.waiting", Data: json.RawMessage(`{}`)}}
		x.must(own)
		c.Run = advance(r, 2).Run
		c.Run.Epoch, c.Run.SetEpoch = 5, 5
		return own
	}
	thread := func(x *world, c *draft) Message {
		th := x.newThread(0)
		m := Message{Thread: th, Seq: 1, ID: id.MessageID{UUID: id.New(0)}, Role: "user", CreatedAt: noon}
		x.must(&draft{Op: newOp(), Tenant: x.tenant, Messages: []Message{m},
			Thread: &ThreadUpdate{ID: th, Guard: Guard{Version: 1, SetEpoch: 5}, NextSeq: 3, UpdatedAt: noon}})
		c.Thread = &ThreadUpdate{ID: th, Guard: Guard{Version: 2, Epoch: 5, SetEpoch: 5}, NextSeq: 3, UpdatedAt: noon}
		m.ID = id.MessageID{UUID: id.New(0)}
		return m
	}
	unfit := func() *Idempotency { // it is sent before every swap
		i := key(id.NewAnywhere().String())
		i.Status = 500
		return i
	}
	for name, rows := range map[string]func(x *world, c *draft) *Guard{
		"a step": func(x *world, c *draft) *Guard {
			c.Began = run(x, c).Began
			return &c.Run.Guard
		},
		"a mark": func(x *world, c *draft) *Guard {
			c.Marks = run(x, c).Marks
			return &c.Run.Guard
		},
		"a reply's place": func(x *world, c *draft) *Guard {
			var posted draft
			c.Messages = []Message{thread(x, &posted)}
			run(x, c)
			return &c.Run.Guard
		},
		"a post's place": func(x *world, c *draft) *Guard {
			c.Messages = []Message{thread(x, c)}
			accept := x.accept(0)
			c.New, c.Accept = true, accept.Accept
			return &c.Thread.Guard
		},
		"a step's approval": func(x *world, c *draft) *Guard {
			w := x.newWaits(0)
			c.Run = &RunUpdate{ID: w.run, Guard: Guard{Version: 2}, Status: lifecycle.RunWaitingApproval, Seq: 4, Steps: 1}
			c.Opens = w.insert()
			return &c.Run.Guard
		},
		"what a run says before its swap": func(x *world, c *draft) *Guard {
			run(x, c)
			c.Idempotency = unfit()
			return &c.Run.Guard
		},
		"what a thread says before its swap": func(x *world, c *draft) *Guard {
			thread(x, c)
			c.Idempotency = unfit()
			return &c.Thread.Guard
		},
		"what an approval says before its swap": func(x *world, c *draft) *Guard {
			w := x.newWaits(0)
			c.Approval, c.Idempotency = w.decide(nil).Approval, unfit()
			return &c.Approval.Guard
		},
	} {
		for whose, known := range map[string]struct {
			of   func(g *Guard)
			want error
		}{
			"its version is older": {func(g *Guard) { g.Version-- }, ErrConflict},
			"its epoch is another": {func(g *Guard) { g.Epoch += 3 }, ErrConflict},
			"it is the owner":      {func(*Guard) {}, ErrRefused},
		} {
			t.Run(name+", "+whose, func(t *testing.T) {
				x := oneLane(t)
				refusable := func() *draft {
					c := &draft{Op: newOp(), Tenant: x.tenant, Audit: []Audit{x.audit()}}
					known.of(rows(x, c))
					return c
				}
				check := func(what string, c *draft, err, want error) {
					t.Helper()
					if !errors.Is(err, want) {
						t.Errorf("%s: %v, want %v", what, err, want)
					}
					left := 0
					if want == nil {
						left = 1
					}
					if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID); n != left {
						t.Errorf("%s: %d rows, want %d", what, n, left)
					}
				}
				alone := refusable()
				check("alone", alone, x.do(alone), known.want)
				flush := []*draft{x.auditOnly(0), refusable(), x.auditOnly(0), refusable(), x.auditOnly(0)}
				for i, err := range x.all(flush) {
					want := known.want
					if i%2 == 0 {
						want = nil
					}
					check(fmt.Sprintf("%d of a flush", i), flush[i], err, want)
				}
			})
		}
	}
}

// TestARefusalThatCannotBeLookedInto: nobody is told that rows are refused before it
// is known whose fault it is.
func TestARefusalThatCannotBeLookedInto(t *testing.T) {
	x := oneLane(t)
	stale := advance(x.begun(), 7)
	stale.Idempotency = key("k")
	stale.Idempotency.Status = 500
	x.execAsOwner(`ALTER TABLE runs RENAME TO away`)
	got := make(chan error)
	go func() { got <- x.do(stale) }()
	testkit.Eventually(x.t, "the look fails", func() bool { return x.w.Down() != nil })
	x.execAsOwner(`ALTER TABLE away RENAME TO runs`)
	if err := <-got; !errors.Is(err, ErrConflict) {
		t.Errorf("%v", err)
	}
}

func TestFencedAlone(t *testing.T) {
	x := oneLane(t)
	x.exec(`UPDATE members SET dead_at = now() WHERE id = $1`, x.member)
	x.fenced(x.auditOnly(0))
	if n := x.count(`SELECT count(*) FROM audit_log`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestARowThatIsLockedForLong: its commit is given back, the others are written.
func TestARowThatIsLockedForLong(t *testing.T) {
	x := oneLane(t)
	run := x.begun()
	release := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID)
	for i, err := range x.all([]*draft{x.auditOnly(0), advance(run, 1), x.auditOnly(0)}) {
		if i == 1 && !errors.Is(err, ErrUnavailable) || i != 1 && err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	release()
	x.must(advance(run, 1))
}

// TestTroubleOnTheWay: what the database says once, at a row or at the very end of
// the transaction, and what becomes of a commit whose rows are good.
func TestTroubleOnTheWay(t *testing.T) {
	for _, when := range []string{"NOT DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"} {
		t.Run(when, func(t *testing.T) {
			x := oneLane(t)
			x.execAsOwner(fmt.Sprintf(`CREATE SEQUENCE troubles; GRANT SELECT ON SEQUENCE troubles TO PUBLIC;
				CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
				CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON usage_records %s FOR EACH ROW EXECUTE FUNCTION trouble()`, when))
			for name, c := range map[string]struct {
				raise string // what a trigger does
				want  error
			}{
				"a serialization failure":  {`RAISE EXCEPTION 'trouble' USING ERRCODE = '40001'`, nil},
				"a deadlock":               {`RAISE EXCEPTION 'trouble' USING ERRCODE = '40P01'`, nil},
				"the disk is full":         {`RAISE EXCEPTION 'trouble' USING ERRCODE = '53100'`, nil},
				"the backend is ended":     {`PERFORM pg_terminate_backend(pg_backend_pid())`, nil},
				"the database refuses":     {`RAISE EXCEPTION 'trouble' USING ERRCODE = '23514'`, ErrRefused},
				"a key of another's table": {`RAISE EXCEPTION 'trouble' USING ERRCODE = '23505', CONSTRAINT = 'other_pkey'`, ErrRefused},
			} {
				x.execAsOwner(fmt.Sprintf(`ALTER SEQUENCE troubles RESTART;
					CREATE OR REPLACE FUNCTION trouble() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN
					IF nextval('troubles') = 1 THEN %s; END IF; RETURN NULL; END $$`, c.raise))
				usage := x.auditOnly(0)
				usage.Usage = []Usage{{ID: id.UsageID{UUID: id.New(0)}, At: noon, Kind: lifecycle.UsageLLM}}
				if err := x.do(usage); !errors.Is(err, c.want) {
					t.Errorf("%s: %v", name, err)
				}
				want := 1
				if c.want != nil {
					want = 0
				}
				if n := x.count(`SELECT count(*) FROM usage_records WHERE id = $1`, usage.Usage[0].ID); n != want {
					t.Errorf("%s: %d rows, want %d", name, n, want)
				}
				if n := x.count(`SELECT count(*) FROM troubles WHERE is_called`); n != 1 {
					t.Errorf("%s: void", name)
				}
				x.must(x.auditOnly(0))
			}
		})
	}
}

// TestABackendKilledInTheMiddle: nobody can say from the connection whether the
// flush was committed; it was not, and is sent again.
func TestABackendKilledInTheMiddle(t *testing.T) {
	x := oneLane(t)
	run := x.begun()
	release := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID)
	pid := x.w.lanes[0].conn.backend.pid
	got := make(chan error)
	c := advance(run, 1)
	c.Audit = []Audit{x.audit()}
	go func() { got <- x.do(c) }()
	testkit.Eventually(x.t, "the flush waits for the row", func() bool {
		return x.count(`SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted`, pid) == 1
	})
	x.execAsOwner(fmt.Sprintf(`SELECT pg_terminate_backend(%d)`, pid))
	release()
	if err := <-got; err != nil {
		t.Errorf("%v", err)
	}
	if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// TestWhoStopsDoesNotWaitForEver: what was sent and not answered is unsettled.
func TestWhoStopsDoesNotWaitForEver(t *testing.T) {
	x := oneLane(t)
	run := x.begun()
	release := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID)
	pid := x.w.lanes[0].conn.backend.pid
	got := make(chan error)
	go func() { got <- x.do(advance(run, 1)) }()
	testkit.Eventually(x.t, "the flush waits for the row", func() bool {
		return x.count(`SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted`, pid) == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := x.w.Stop(ctx); err == nil {
		t.Error("Stop did not say that its time was up")
	}
	if err := <-got; !errors.Is(err, ErrUnsettled) {
		t.Errorf("%v, want %v", err, ErrUnsettled)
	}
	release()
}
