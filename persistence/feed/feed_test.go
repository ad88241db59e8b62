package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// rows writes what the tests read.
type rows struct {
	t      *testing.T
	pool   *pgxpool.Pool
	tenant id.TenantID
	agent  id.AgentID
}

func setUp(t *testing.T, pool *pgxpool.Pool) *rows {
	r := &rows{t: t, pool: pool, tenant: id.TenantID{UUID: id.NewAnywhere()}, agent: id.AgentID{UUID: id.NewAnywhere()}}
	r.exec("INSERT INTO tenants (id, name) VALUES ($1, 't')", r.tenant)
	r.exec("INSERT INTO agents (tenant_id, id, slug, name) VALUES ($1, $2, 'a', 'a')", r.tenant, r.agent)
	return r
}

func (r *rows) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rows) thread() id.ThreadID {
	th := id.ThreadID{UUID: id.NewAnywhere()}
	r.exec("INSERT INTO threads (tenant_id, id, agent_id, created_by) VALUES ($1, $2, $3, 'x')", r.tenant, th, r.agent)
	return th
}

func (r *rows) run(status string, thread *id.ThreadID, threadSeq int) id.RunID {
	run := id.RunID{UUID: id.NewAnywhere()}
	var seq *int
	if thread != nil {
		seq = &threadSeq
	}
	ended := status != "queued" && status != "running" && status != "waiting_approval"
	r.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, created_at, started_at, finished_at, error_code, error_message, output)
		VALUES ($1, $2, $3::text, $4, 1, $5, $6, 'api_key', $1, now(), CASE WHEN $3::text <> 'queued' THEN now() END, CASE WHEN $7 THEN now() END,
		        CASE WHEN $3::text IN ('failed', 'cancelled') THEN 'INTERNAL' END, CASE WHEN $3::text IN ('failed', 'cancelled') THEN 'm' END, CASE WHEN $3::text = 'succeeded' THEN '{"text":"hi"}'::json END)`,
		r.tenant, run, status, r.agent, thread, seq, ended)
	return run
}

// told is a run with a model's step, a tool's step and a mark, ended.
func (r *rows) told() id.RunID {
	run := r.run("succeeded", nil, 0)
	r.exec("UPDATE runs SET seq = 7, tokens_in = 5, tokens_out = 7, cost_usd = 0.25 WHERE id = $1", run)
	r.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, output, segments, began_seq, started_at)
		VALUES ($1, $2, 0, 'llm', 'm', 'succeeded', '{"text":"hello","thinking":"hm"}', '{2,5}', 2, now())`, r.tenant, run)
	r.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, input, output, began_seq, called_seq, ended_seq, started_at)
		VALUES ($1, $2, 1, 'tool', 'a.b', 'succeeded', '{"x":1}', '{"y":2}', 3, 5, 6, now())`, r.tenant, run)
	r.exec(`INSERT INTO run_marks (tenant_id, run_id, seq, type, data) VALUES ($1, $2, 4, 'run.waiting', '{"status":"waiting_approval"}')`, r.tenant, run)
	return run
}

func ids(frames []*event.Frame) string {
	s := ""
	for _, f := range frames {
		s += f.Pos.String() + " " + string(f.Type) + ";"
	}
	return s
}

func TestQueriesParse(t *testing.T) {
	parsed := map[string]string{}
	for name, sql := range queries {
		if name != "begin" && name != "end" {
			parsed[name] = sql
		}
	}
	pgtest.Prepare(t, parsed)
}

func TestFactsAreWhatAReaderNeeds(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	run := r.told()
	f := New(db.API(t))
	for _, c := range []struct {
		name   string
		cursor event.Cursor
		steps  int
		want   string
	}{
		{"default", event.ReadCursor("", -1, false), 2, "1 run.started;2 step.started;2.2 llm.thinking;3 step.started;7 run.completed;"},
		{"since", event.ReadCursor("", 0, false), 1, "3 step.started;7 run.completed;"},
		{"full", event.ReadCursor("", -1, true), 2, "1 run.started;2 step.started;2.2 llm.thinking;2.7 llm.delta;3 step.started;4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
		{"inside a text", event.ReadCursor("2.4", -1, false), 2, "2.7 llm.delta;3 step.started;4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
		{"before a call", event.ReadCursor("4", -1, false), 1, "5 tool.called;6 tool.result;7 run.completed;"},
		{"inside a call", event.ReadCursor("5", -1, false), 1, "6 tool.result;7 run.completed;"},
		{"at the end", event.ReadCursor("7", -1, false), 0, ""},
		{"an id of no frame", event.ReadCursor("8", -1, false), 2, "1 run.started;2 step.started;2.2 llm.thinking;3 step.started;7 run.completed;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			facts, err := f.Facts(t.Context(), r.tenant, run, c.cursor)
			if err != nil {
				t.Fatal(err)
			}
			if got := ids(event.Replay(facts, c.cursor)); got != c.want || len(facts.Steps) != c.steps {
				t.Errorf("%d steps, got %s\nwant %s", len(facts.Steps), got, c.want)
			}
			if facts.TokensIn != 5 || facts.TokensOut != 7 || facts.CostUSD != 0.25 || *facts.Agent != r.agent {
				t.Errorf("%+v", facts)
			}
		})
	}
	since, err := f.Facts(t.Context(), r.tenant, run, event.ReadCursor("", -1, false))
	if err != nil {
		t.Fatal(err)
	}
	if since.Steps[1].Input != nil || since.Steps[1].Output != nil || len(since.Marks) != 0 || string(since.Steps[0].Output) != `{"thinking" : "hm"}` {
		t.Errorf("a since reader is given more than it shows: %s", since.Steps[0].Output)
	}
}

func TestAnUnknownAndAForeignRunAreNotFoundAlike(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	run := r.told()
	for _, pool := range []*pgxpool.Pool{db.API(t), db.System(t)} {
		f := New(pool)
		for name, k := range map[string]Key{
			"unknown run":    {r.tenant, id.RunID{UUID: id.NewAnywhere()}},
			"foreign tenant": {id.TenantID{UUID: id.NewAnywhere()}, run},
		} {
			if _, err := f.Facts(t.Context(), k.Tenant, k.Run, event.Cursor{Full: true}); !errors.Is(err, problem.NotFound("run")) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := f.Facts(t.Context(), r.tenant, run, event.Cursor{Full: true}); err != nil {
			t.Errorf("after a miss: %v", err)
		}
	}
}

func TestFactsAreOfOneMoment(t *testing.T) {
	db := pgtest.New(t)
	pool := db.System(t)
	r := setUp(t, pool)
	run := r.run("running", nil, 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for seq := 1; ; seq++ {
			tx, err := pool.Begin(ctx)
			if err != nil {
				done <- nil
				return
			}
			if _, err = tx.Exec(ctx, "UPDATE runs SET seq = $2 WHERE id = $1", run, seq); err == nil {
				_, err = tx.Exec(ctx, "INSERT INTO run_marks (tenant_id, run_id, seq, type, data) VALUES ($1, $2, $3, 'handoff', '{}')", r.tenant, run, seq)
			}
			if err == nil {
				err = tx.Commit(ctx)
			}
			if err != nil {
				_ = tx.Rollback(context.Background())
				if ctx.Err() != nil {
					err = nil
				}
				done <- err
				return
			}
		}
	}()
	f := New(db.API(t))
	moved := int64(0)
	for deadline := time.Now().Add(time.Minute); moved < 200 && time.Now().Before(deadline); {
		facts, err := f.Facts(t.Context(), r.tenant, run, event.Cursor{Full: true})
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(facts.Marks)) != facts.Seq {
			t.Fatalf("seq %d with %d marks", facts.Seq, len(facts.Marks))
		}
		moved = facts.Seq
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if moved < 20 {
		t.Errorf("the run moved only %d times: void", moved)
	}
}

func TestHeads(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	ended, open := r.told(), r.run("running", nil, 0)
	got, err := NewSweep(r.pool).Heads(t.Context(), []Key{{r.tenant, ended}, {r.tenant, open}, {r.tenant, id.RunID{UUID: id.NewAnywhere()}}, {id.TenantID{}, open}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !slices.Contains(got, Head{ended, 7, true}) || !slices.Contains(got, Head{open, 0, false}) {
		t.Errorf("%+v", got)
	}
}

func TestTimersAreClaimedOnceAndComeBack(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	for i := range 5 {
		r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'run', $2, $3, now() - make_interval(secs => $4))",
			r.tenant, id.NewAnywhere(), fmt.Sprint("t", i), i)
	}
	r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'run', $2, 'later', now() + interval '1 hour')", r.tenant, id.NewAnywhere())
	s := NewSweep(r.pool)
	type answer struct {
		timers []Timer
		err    error
	}
	answers := make(chan answer, 4)
	for range 4 {
		go func() {
			timers, err := s.ClaimTimers(t.Context(), 2, time.Hour)
			answers <- answer{timers, err}
		}()
	}
	seen := map[string]bool{}
	for range 4 {
		a := <-answers
		if a.err != nil {
			t.Fatal(a.err)
		}
		for _, tm := range a.timers {
			if seen[tm.Name] {
				t.Errorf("%s was claimed twice", tm.Name)
			}
			seen[tm.Name] = true
		}
	}
	rest, err := s.ClaimTimers(t.Context(), 100, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, tm := range rest {
		seen[tm.Name] = true
	}
	if len(seen) != 5 || seen["later"] {
		t.Errorf("claimed %v", seen)
	}
	r.exec("UPDATE timers SET claimed_until = now() WHERE name = 't3'")
	again, err := s.ClaimTimers(t.Context(), 100, time.Hour)
	if err != nil || len(again) != 1 || again[0].Name != "t3" {
		t.Errorf("after its claim ended: %v, %v", again, err)
	}
	if err := s.ReleaseTimers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, err = s.ClaimTimers(t.Context(), 100, time.Hour); err != nil || len(again) != 5 {
		t.Errorf("after all were released: %v, %v", again, err)
	}
}

func TestOpenRunsAreThoseThatCanGoOn(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	th, blocked, done := r.thread(), r.thread(), r.thread()
	want := map[id.RunID]bool{}
	first := r.run("queued", &th, 1)
	r.run("queued", &th, 3)
	r.run("waiting_approval", &blocked, 1)
	r.run("queued", &blocked, 3)
	r.run("succeeded", &done, 1)
	second := r.run("running", &done, 3)
	deleted := r.thread()
	r.exec(`UPDATE threads SET deleted_at = now() WHERE id = $1`, deleted)
	third := r.run("running", &deleted, 1)
	for _, run := range []id.RunID{first, second, third, r.run("queued", nil, 0), r.run("running", nil, 0)} {
		want[run] = true
	}
	r.run("failed", nil, 0)
	r.run("waiting_approval", nil, 0)
	s := NewSweep(r.pool)
	var after Key
	for range len(want) + 1 { // pages of one
		page, err := s.OpenRuns(t.Context(), after, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		o := page[0]
		if !want[o.Run] {
			t.Errorf("unexpected %+v", o)
		}
		if o.Run == first && (!o.Held || o.Thread == nil || *o.Thread != th) || o.Run == second && o.Held || o.Run == third && !o.Held {
			t.Errorf("%+v", o)
		}
		delete(want, o.Run)
		after = Key{o.Tenant, o.Run}
	}
	if len(want) != 0 {
		t.Errorf("missing %v", want)
	}
	running, err := s.Running(t.Context(), r.tenant)
	if err != nil || len(running) != 3 || !slices.Contains(running, second) {
		t.Errorf("%v, %v", running, err)
	}
}

func TestOldIdempotencyRowsGoInBatches(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	for i := range 6 {
		r.exec(`INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at)
			VALUES ($1, sha256($2::text::bytea), sha256('x'), 202, '', now() - make_interval(hours => $3))`, r.tenant, fmt.Sprint(i), 20+2*i)
	}
	s := NewSweep(r.pool)
	for _, want := range []int{2, 1, 0} { // 26, 28, 30 hours; 20, 22 and 24 (not older yet by a hair) stay
		n, err := s.DropIdempotency(t.Context(), 2, 25*time.Hour)
		if err != nil || n != want {
			t.Errorf("dropped %d, %v; want %d", n, err, want)
		}
	}
}
