package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// rows writes what the tests read.
type rows struct {
	t      *testing.T
	pool   *pgxpool.Pool
	tenant id.TenantID
	agent  id.AgentID
}

func setUp(t *testing.T, pool *pgxpool.Pool) *rows {
	tenant := pgtest.Tenant(t, pool)
	return &rows{t: t, pool: pool, tenant: tenant, agent: pgtest.Agent(t, pool, tenant)}
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
	parsed := filled()
	delete(parsed, "begin")
	delete(parsed, "end")
	pgtest.Prepare(t, parsed)
}

// filled are the queries; those that are made for a table are made for one.
func filled() map[string]string {
	all := maps.Clone(queries)
	delete(all, "drop_aged")
	for _, table := range []string{"idempotency", "sessions"} {
		all["drop_"+table] = agedSQL(table, "created_at", "true")
	}
	all["drop_login_links"] = agedSQL("login_links", "expires_at", "true")
	all["drop_deliveries"] = agedSQL("webhook_deliveries", "created_at", "status <> 'pending'")
	all["find_where"] = whereSQL("runs", "e.finished_at IS NULL")
	all["erase_people"] = peopleSQL(personal)
	return all
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
	// A model may speak before it thinks.
	for segments, want := range map[string]string{
		"{0,5,2}":     "2.7 llm.thinking",
		"{0,2,2,3}":   "2.4 llm.thinking",
		"{1,2,1,3}":   "2.1 llm.thinking;2.4 llm.thinking",
		"{0,1,1,4,1}": "2.2 llm.thinking;2.7 llm.thinking",
	} {
		r.exec("UPDATE run_steps SET segments = $2 WHERE run_id = $1 AND kind = 'llm'", run, segments)
		facts, err := f.Facts(t.Context(), r.tenant, run, event.Cursor{Since: -1})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := ids(event.Replay(facts, event.Cursor{Since: -1})), "1 run.started;2 step.started;"+want+";3 step.started;7 run.completed;"; got != want {
			t.Errorf("%s: got %s\nwant %s", segments, got, want)
		}
	}
	r.exec(`UPDATE run_steps SET segments = '{0,5}', output = '{"text":"hello"}' WHERE run_id = $1 AND kind = 'llm'`, run)
	if facts, err := f.Facts(t.Context(), r.tenant, run, event.Cursor{Since: -1}); err != nil || facts.Steps[0].Output != nil {
		t.Errorf("a model that only spoke: %s %v", facts.Steps[0].Output, err)
	}
}

// The frames of calls show previews: what the database hands out of arguments and outputs is not
// more than these need, and they are the same as those of the whole values.
func TestFactsHoldPreviewsOfCalls(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	f := New(db.API(t))
	whole := func(n int, of string) json.RawMessage {
		b, err := json.Marshal(strings.Repeat(of, n))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	values := []json.RawMessage{json.RawMessage(`{"x": 1}`), whole(510, "x"), whole(511, "x"), whole(512, "x"), whole(200<<10, "x"),
		whole(255, "é"), whole(256, "é"), whole(300, "é"), whole(127, "😀"), whole(128, "😀"), whole(50_000, "😀")}
	run := r.run("running", nil, 0)
	r.exec("UPDATE runs SET seq = 100 WHERE id = $1", run)
	want := &event.Facts{Run: run, Agent: &r.agent, Status: lifecycle.RunRunning, Started: true, Seq: 100}
	for i, v := range values {
		s := event.StepFacts{Idx: i, Kind: lifecycle.StepTool, Name: "a.b", Status: lifecycle.StepSucceeded,
			BeganSeq: int64(3*i + 2), CalledSeq: int64(3*i + 3), EndedSeq: int64(3*i + 4), Input: v, Output: values[len(values)-1-i]}
		want.Steps = append(want.Steps, s)
		r.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, input, output, began_seq, called_seq, ended_seq, started_at)
			VALUES ($1, $2, $3, 'tool', 'a.b', 'succeeded', $4, $5, $6, $7, $8, now())`, r.tenant, run, i, s.Input, s.Output, s.BeganSeq, s.CalledSeq, s.EndedSeq)
	}
	full := event.ReadCursor("", -1, true)
	got, err := f.Facts(t.Context(), r.tenant, run, full)
	if err != nil {
		t.Fatal(err)
	}
	if n := got.Bytes(); n > int64(len(values))*4*4*event.PreviewBytes {
		t.Errorf("the facts have %d bytes", n)
	}
	frames, all := event.Replay(got, full), event.Replay(want, full)
	if len(frames) != len(all) {
		t.Fatalf("%d frames, want %d", len(frames), len(all))
	}
	for i, f := range frames {
		if string(f.Bytes()) != string(all[i].Bytes()) {
			t.Errorf("got  %s\nwant %s", f.Bytes(), all[i].Bytes())
		}
	}
}

// A turn that broke off may have said 4 MiB, and a run may have thousands of them.
func TestFactsOmitWhatAbandonedStepsSaid(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	f := New(db.API(t))
	said, err := json.Marshal(map[string]string{"text": strings.Repeat("x", 100<<10), "thinking": strings.Repeat("y", 100<<10)})
	if err != nil {
		t.Fatal(err)
	}
	run := r.run("running", nil, 0)
	r.exec("UPDATE runs SET seq = 100 WHERE id = $1", run)
	want := &event.Facts{Run: run, Agent: &r.agent, Status: lifecycle.RunRunning, Started: true, Seq: 100}
	for i := range 20 {
		s := event.StepFacts{Idx: i, Kind: lifecycle.StepLLM, Status: lifecycle.StepAbandoned, BeganSeq: int64(i + 2), Output: said, Segments: []int32{100 << 10, 100 << 10}}
		want.Steps = append(want.Steps, s)
		r.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, output, segments, began_seq, started_at)
			VALUES ($1, $2, $3, 'llm', '', 'abandoned', $4, $5, $6, now())`, r.tenant, run, i, s.Output, s.Segments, s.BeganSeq)
	}
	for name, c := range map[string]event.Cursor{
		"replay=full":   event.ReadCursor("", -1, true),
		"Last-Event-ID": event.ReadCursor("5", -1, false),
		"since":         event.ReadCursor("", -1, false),
	} {
		got, err := f.Facts(t.Context(), r.tenant, run, c)
		if err != nil {
			t.Fatal(err)
		}
		if n := got.Bytes(); n > 1<<10 {
			t.Errorf("%s: the facts have %d bytes", name, n)
		}
		frames, all := event.Replay(got, c), event.Replay(want, c)
		if len(frames) != len(all) || len(frames) < 15 {
			t.Fatalf("%s: %d frames, want %d", name, len(frames), len(all))
		}
		for i, f := range frames {
			if string(f.Bytes()) != string(all[i].Bytes()) {
				t.Errorf("%s: got  %s\nwant %s", name, f.Bytes(), all[i].Bytes())
			}
		}
	}
}

// The relay reads its facts with Full set; whether the text of a step is withheld is
// said by the step.
func TestFactsOfTheRelay(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	f := New(db.API(t))
	for _, c := range []struct {
		name     string
		cursor   event.Cursor
		withheld bool
		want     string
	}{
		{"all", event.ReadCursor("", -1, true), false, "1 run.started;2.7 llm.delta;4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
		{"withheld", event.ReadCursor("", -1, true), true, "1 run.started;4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
		{"since", event.ReadCursor("", 0, true), false, "4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
		{"inside a text", event.ReadCursor("2.4", -1, true), false, "2.7 llm.delta;4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
		{"inside a text that is withheld", event.ReadCursor("2.4", -1, true), true, "4 run.waiting;5 tool.called;6 tool.result;7 run.completed;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := r.told()
			r.exec("UPDATE run_steps SET withheld = $2 WHERE run_id = $1 AND kind = 'llm'", run, c.withheld)
			facts, err := f.Facts(t.Context(), r.tenant, run, c.cursor)
			if err != nil {
				t.Fatal(err)
			}
			if got := ids(event.ReplayRelay(facts, c.cursor)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
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
	testkit.Eventually(t, "200 facts", func() bool {
		facts, err := f.Facts(t.Context(), r.tenant, run, event.Cursor{Full: true})
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(facts.Marks)) != facts.Seq {
			t.Fatalf("seq %d with %d marks", facts.Seq, len(facts.Marks))
		}
		return facts.Seq >= 200
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// An approval that was escalated is told apart from one that was opened for its role.
func TestAChangedApprovalTellsWhetherItWasEscalated(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	run := r.told()
	approvals := map[id.ApprovalID]bool{{UUID: id.NewAnywhere()}: false, {UUID: id.NewAnywhere()}: true}
	var named []Named
	step := 0
	for a, escalated := range approvals {
		r.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at, escalated_at)
			VALUES ($1, $2, $3, $4, 'high', 'owner', 1, 'a.b', '{}', '', sha256(''), '{}', 'reject', now(), now(), now(), CASE WHEN $5 THEN now() END)`, r.tenant, a, run, step, escalated)
		named = append(named, Named{Tenant: r.tenant, Change: msg.Change{Kind: msg.ChangedApproval, ID: a.UUID}})
		step++
	}
	got, err := NewSweep(r.pool).Changed(t.Context(), named)
	if err != nil || len(got.Approvals) != len(approvals) {
		t.Fatalf("%+v %v", got, err)
	}
	for _, a := range got.Approvals {
		if escalated, there := approvals[a.ID]; !there || a.Escalated != escalated || a.Status != lifecycle.ApprovalPending || a.AssigneeRole != lifecycle.RoleOwner {
			t.Errorf("%+v", a)
		}
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

// everywhere are all shards.
var everywhere = func() []id.Shard {
	all := make([]id.Shard, id.Shards)
	for i := range all {
		all[i] = id.Shard(i)
	}
	return all
}()

func claim(limit int, shards ...id.Shard) Claim {
	return Claim{Shards: shards, Limit: limit, Hold: time.Hour}
}

func (r *rows) timer(entity id.UUID, name, due string) {
	r.exec("INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'run', $2, $3, now() + $4::interval)", r.tenant, entity, name, due)
}

// foreign is an id that the service did not mint.
func foreign() id.UUID {
	u := id.NewAnywhere()
	u[6] = u[6]&0xf | 0x40
	return u
}

func names(timers []Timer) string {
	var out []string
	for _, t := range timers {
		out = append(out, t.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestTimersAreClaimedOnceAndComeBack(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	for i := range 5 {
		r.timer(id.NewAnywhere(), fmt.Sprint("t", i), fmt.Sprintf("-%d s", i))
	}
	r.timer(id.NewAnywhere(), "later", "1 hour")
	s := NewSweep(r.pool)
	type answer struct {
		timers []Timer
		err    error
	}
	answers := make(chan answer, 4)
	for range 4 {
		go func() {
			timers, err := s.ClaimTimers(t.Context(), claim(2, everywhere...))
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
	rest, err := s.ClaimTimers(t.Context(), claim(100, everywhere...))
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
	again, err := s.ClaimTimers(t.Context(), claim(100, everywhere...))
	if err != nil || names(again) != "t3" {
		t.Errorf("after its claim ended: %v, %v", again, err)
	}
	if err := s.ReleaseTimers(t.Context(), everywhere); err != nil {
		t.Fatal(err)
	}
	if again, err = s.ClaimTimers(t.Context(), claim(100, everywhere...)); err != nil || len(again) != 5 {
		t.Errorf("after all were released: %v, %v", again, err)
	}
}

func TestTimersWithoutThoseOfATenant(t *testing.T) {
	db := pgtest.New(t)
	loud := setUp(t, db.System(t))
	quiet := setUp(t, loud.pool)
	for i := range 9 {
		loud.timer(id.NewAnywhere(), "loud", fmt.Sprintf("-%d min", 2+i))
	}
	quiet.timer(id.NewAnywhere(), "minted", "-1 s")
	quiet.timer(foreign(), "foreign", "-1 s")
	s := NewSweep(loud.pool)
	c := claim(4, everywhere...)
	c.Without = []id.TenantID{loud.tenant}
	if got, err := s.ClaimTimers(t.Context(), c); err != nil || names(got) != "foreign minted" {
		t.Errorf("without a tenant: %q %v", names(got), err)
	}
	c.Without = nil
	if got, err := s.ClaimTimers(t.Context(), c); err != nil || names(got) != "loud loud loud loud" {
		t.Errorf("of all tenants: %q %v", names(got), err)
	}
}

func TestTimersOfSomeShards(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	strange := foreign()
	for slices.Contains([]id.Shard{3, 4, 5, 1023}, strange.Shard()) {
		strange = foreign()
	}
	r.timer(id.New(3), "three", "-1 s")
	r.timer(id.New(4), "four", "-2 s")
	r.timer(id.New(1023), "last", "-3 s")
	r.timer(strange, "foreign", "-4 s")
	s := NewSweep(r.pool)
	home := strange.Shard()
	elsewhere := []id.Shard{3, 5, 1023}
	got := func(c Claim) string {
		t.Helper()
		timers, err := s.ClaimTimers(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return names(timers)
	}
	for _, c := range []struct {
		name string
		do   func()
		c    Claim
		want string
	}{
		{"of no shard there is nothing", nil, claim(9), ""},
		{"of its shards a node gets all", nil, claim(9, elsewhere...), "last three"},
		{"once", nil, claim(9, elsewhere...), ""},
		{"an id without a shard belongs to its place by hash", nil, claim(9, home), "foreign"},
		{"released are those of the shards named, and nobody else's", func() {
			if err := s.ReleaseTimers(t.Context(), []id.Shard{3}); err != nil {
				t.Fatal(err)
			}
		}, claim(9, append(elsewhere, home)...), "three"},
		{"a foreign one with its place by hash", func() {
			if err := s.ReleaseTimers(t.Context(), []id.Shard{home}); err != nil {
				t.Fatal(err)
			}
		}, claim(9, home), "foreign"},
		{"the limit counts foreign ones too", func() {
			if err := s.ReleaseTimers(t.Context(), everywhere); err != nil {
				t.Fatal(err)
			}
		}, claim(2, append(elsewhere, home)...), "last three"},
		{"the rest is of others", nil, claim(9, everywhere...), "foreign four"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.do != nil {
				c.do()
			}
			if g := got(c.c); g != c.want {
				t.Errorf("got %q, want %q", g, c.want)
			}
		})
	}
}

func TestClaimsAreGivenBackUnlessTakenAnew(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	r.timer(id.New(3), "a", "-1 s")
	r.timer(id.New(3), "b", "-1 s")
	s := NewSweep(r.pool)
	mine, err := s.ClaimTimers(t.Context(), claim(9, 3))
	if err != nil || len(mine) != 2 {
		t.Fatal(mine, err)
	}
	r.exec("UPDATE timers SET claimed_until = now() + interval '2 hours' WHERE name = 'b'")
	if err := s.ReturnTimers(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if again, err := s.ClaimTimers(t.Context(), claim(9, 3)); err != nil || names(again) != "a" {
		t.Errorf("%v %v", again, err)
	}
}

// A claim by a node that its peers hold for dead would keep the new owner from
// the timer for as long as it lasts.
func TestOnlyALivingMemberClaims(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	s := NewSweep(r.pool)
	for _, c := range []struct {
		name string
		by   id.MemberID
		want string
	}{
		{"a living member claims", pgtest.Member(t, r.pool), "foreign t"},
		{"one without a lease does not", pgtest.Expired(t, r.pool), ""},
		{"a dead one does not", pgtest.Dead(t, r.pool), ""},
		{"an unknown one does not", id.MemberID{UUID: id.NewAnywhere()}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.timer(id.NewAnywhere(), "t", "-1 s")
			r.timer(foreign(), "foreign", "-1 s")
			defer r.exec("DELETE FROM timers")
			got, err := s.ClaimTimers(t.Context(), Claim{Shards: everywhere, Limit: 9, Hold: time.Hour, By: c.by})
			if err != nil || names(got) != c.want {
				t.Errorf("claimed %v, %v", got, err)
			}
		})
	}
	t.Run("a claim waits for whoever is marking the member dead", func(t *testing.T) {
		r.timer(id.NewAnywhere(), "t", "-1 s")
		m := pgtest.Member(t, r.pool)
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), "SELECT FROM members WHERE id = $1 FOR UPDATE", m); err != nil {
			t.Fatal(err)
		}
		done := make(chan string, 1)
		go func() {
			got, err := s.ClaimTimers(t.Context(), Claim{Shards: everywhere, Limit: 9, Hold: time.Hour, By: m})
			done <- fmt.Sprint(names(got), err)
		}()
		pgtest.Blocked(t, r.pool) // the claim
		if _, err := tx.Exec(t.Context(), "UPDATE members SET dead_at = now() WHERE id = $1", m); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got != "<nil>" {
			t.Errorf("claimed %s", got)
		}
	})
}

func TestTheDatabaseCountsShardsAsTheServiceDoes(t *testing.T) {
	db := pgtest.New(t)
	pool := db.System(t)
	var ids []id.UUID
	for n := range id.Shard(id.Shards) {
		ids = append(ids, id.New(n))
	}
	strange := foreign()
	rows, err := pool.Query(t.Context(), "SELECT shard_of(u) FROM unnest($1::uuid[]) WITH ORDINALITY AS i (u, n) ORDER BY n", append(ids, strange))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[*int])
	if err != nil {
		t.Fatal(err)
	}
	for n, s := range got[:len(ids)] {
		if s == nil || *s != n || line(ids[n]) != int32(n) {
			t.Errorf("%s: %v, want %d", ids[n], s, n)
		}
	}
	if got[len(ids)] != nil || line(strange) != noShard {
		t.Errorf("%s: %d", strange, *got[len(ids)])
	}
}

// pass reads the open runs of shards in pages.
func (r *rows) pass(shards []id.Shard, page int) (found []Found, pages int) {
	r.t.Helper()
	s := NewSweep(r.pool)
	for at := (id.UUID{}); ; pages++ {
		if pages > 10000 {
			r.t.Fatal("the pass has no end")
		}
		p, err := s.Find(r.t.Context(), &Work{Find: OpenRuns}, shards, at, page)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(p.Found) > page {
			r.t.Fatalf("%d runs in a page of %d", len(p.Found), page)
		}
		found = append(found, p.Found...)
		if !p.More {
			return found, pages + 1
		}
		at = p.Next
	}
}

func TestOpenRunsAreThoseThatCanGoOn(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	th, blocked, done := r.thread(), r.thread(), r.thread()
	first := r.run("queued", &th, 1)
	r.run("queued", &th, 3)
	r.run("waiting_approval", &blocked, 1)
	r.run("queued", &blocked, 3)
	r.run("succeeded", &done, 1)
	second := r.run("running", &done, 3)
	deleted := r.thread()
	r.exec(`UPDATE threads SET deleted_at = now() WHERE id = $1`, deleted)
	third := r.run("running", &deleted, 1)
	strange := r.run("running", nil, 0)
	was := strange
	strange.UUID = foreign()
	r.exec("UPDATE runs SET id = $2 WHERE id = $1", was, strange)
	all := []id.RunID{first, second, third, strange, r.run("queued", nil, 0), r.run("running", nil, 0)}
	r.run("failed", nil, 0)
	r.run("waiting_approval", nil, 0)
	for _, page := range []int{1, 2, 3, 100} {
		want := map[id.RunID]bool{}
		for _, run := range all {
			want[run] = true
		}
		found, _ := r.pass(everywhere, page)
		for _, o := range found {
			run := id.RunID{UUID: o.ID}
			if !want[run] {
				t.Errorf("pages of %d: unexpected %+v", page, o)
			}
			if run == first && (o.Through == nil || *o.Through != th.UUID) || run != first && run != third && o.Through != nil || run == third && (o.Through == nil || *o.Through != deleted.UUID) {
				t.Errorf("%+v", o)
			}
			delete(want, run)
		}
		if len(want) != 0 {
			t.Errorf("pages of %d: missing %v", page, want)
		}
	}
	if found, _ := r.pass([]id.Shard{strange.Shard()}, 100); !slices.ContainsFunc(found, func(o Found) bool { return o.ID == strange.UUID }) {
		t.Error("a foreign id is not at its place by hash")
	}
	if found, _ := r.pass(slices.DeleteFunc(slices.Clone(everywhere), func(n id.Shard) bool { return n == strange.Shard() }), 100); slices.ContainsFunc(found, func(o Found) bool { return o.ID == strange.UUID }) {
		t.Error("a foreign id is at a place that is not its own")
	}
	running, err := NewSweep(r.pool).Running(t.Context(), r.tenant)
	if err != nil || len(running) != 4 || !slices.Contains(running, second) {
		t.Errorf("%v, %v", running, err)
	}
}

func TestAPassIsOfItsShardsHoweverManyRunsOneHas(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	want := map[id.RunID]bool{}
	for _, c := range []struct {
		shard  id.Shard
		runs   int
		status string
		own    bool
	}{
		{0, 3, "running", true}, {7, 40, "running", true}, {8, 5, "running", false},
		{9, 90, "waiting_approval", true}, {1000, 1, "queued", true}, {1023, 2, "running", true},
	} {
		for range c.runs {
			run := r.run(c.status, nil, 0)
			mine := id.RunID{UUID: id.New(c.shard)}
			r.exec("UPDATE runs SET id = $2 WHERE id = $1", run, mine)
			if c.own && c.status != "waiting_approval" {
				want[mine] = true
			}
		}
	}
	for _, page := range []int{1, 7, 1000} {
		found, pages := r.pass([]id.Shard{0, 7, 9, 500, 1000, 1023}, page)
		seen := map[id.RunID]bool{}
		for _, o := range found {
			run := id.RunID{UUID: o.ID}
			if seen[run] || !want[run] {
				t.Errorf("pages of %d: %v again or not wanted", page, o)
			}
			seen[run] = true
		}
		// Of 136 open runs, those that wait included.
		if len(seen) != len(want) || pages != 136/page+1 {
			t.Errorf("pages of %d: %d found in %d pages, want %d", page, len(seen), pages, len(want))
		}
	}
	if found, pages := r.pass(nil, 5); len(found) != 0 || pages != 1 {
		t.Errorf("of no shard: %v", found)
	}
}

// Whatever the planner knows of the table, a pass reads the runs of its shards
// and no others.
func TestAPassReadsItsShardsOnly(t *testing.T) {
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	th := r.thread()
	conn, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Rollback(context.Background()) }()
	if _, err := conn.Exec(t.Context(), inOrderSQL); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SET LOCAL plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   string
	}{
		{"an empty table without statistics", ""},
		{"a full one without statistics", `INSERT INTO runs (tenant_id, id, status, agent_id, origin_kind, origin_id, created_at, thread_id, thread_seq)
			SELECT $1, ('0190000' || lpad(to_hex(n), 5, '0') || '7000' || to_hex(32768 + n % 1024 * 16) || lpad(to_hex(n), 12, '0'))::uuid, 'queued', $2, 'api_key', $1, now(), $3, n FROM generate_series(1, 20000) n`},
		{"a full one with statistics", "ANALYZE runs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch {
			case strings.HasPrefix(c.do, "INSERT"):
				r.exec(c.do, r.tenant, r.agent, th)
			case c.do != "":
				if _, err := db.Admin(t).Exec(t.Context(), c.do); err != nil {
					t.Fatal(err)
				}
			}
			rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+openRunsSQL, []int32{-1, 5, 6, 1023}, id.RunID{}, 2000)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(plan, "\n")
			_, page, _ := strings.Cut(text, "CTE page")
			page, _, _ = strings.Cut(page, "WindowAgg")
			if !strings.Contains(page, "runs_open_shard") || strings.Contains(page, "Seq Scan") || strings.Contains(page, "Sort") || strings.Contains(page, "Rows Removed by Filter") {
				t.Errorf("the page is read by\n%s", text)
			}
			if !strings.Contains(text, "using runs_open on") {
				t.Errorf("the first of a thread is found by\n%s", text)
			}
		})
	}
}

// The sweep's queries are of all tenants. What they join names the tenant all the same.
func TestQueriesNameTheirTenant(t *testing.T) {
	due, old, invariant := "timers of all tenants come due", "retention is of all tenants; rows are changed by their ctid", "doctor looks at all tenants"
	pgtest.Tenants(t, filled(), map[string]pgtest.Beyond{
		"claim_timers":    {Why: due, Scans: []string{"timers"}},
		"claimed_foreign": {Why: due, Scans: []string{"timers"}},
		"foreign_timers":  {Why: due, Scans: []string{"timers"}},
		"release_timers":  {Why: due, Scans: []string{"timers"}},
		"open_runs":       {Why: "a node takes up the open runs of its shards", Scans: []string{"r"}},
		"find_where":      {Why: "a node takes up the work of its shards", Scans: []string{"e"}},
		"due_endpoints":   {Why: "an endpoint's id is its own over all tenants", Scans: []string{"d", "d_1"}},
		"erase_whose":     {Why: "deleted end users of all tenants are erased", Scans: []string{"end_users"}},

		"drop_idempotency": {Why: old, Scans: []string{"idempotency", "idempotency_1"}},
		"drop_deliveries":  {Why: old, Scans: []string{"webhook_deliveries", "webhook_deliveries_1"}},
		"drop_sessions":    {Why: old, Scans: []string{"sessions", "sessions_1"}},
		"drop_login_links": {Why: old, Scans: []string{"login_links", "login_links_1"}},
		"drop_unheard":     {Why: old, Scans: []string{"webhooks", "webhook_deliveries_1"}},
		"drop_listeners":   {Why: old, Scans: []string{"webhooks", "e"}},
		"end_disabled":     {Why: old, Scans: []string{"webhooks", "webhook_deliveries_1"}},

		"doctor_running_without_step":          {Why: invariant, Scans: []string{"r"}},
		"doctor_ended_with_open_step":          {Why: invariant, Scans: []string{"r"}},
		"doctor_step_gap":                      {Why: invariant, Scans: []string{"r"}},
		"doctor_succeeded_without_reply":       {Why: invariant, Scans: []string{"r"}},
		"doctor_overdue_timers":                {Why: invariant, Scans: []string{"timers"}},
		"doctor_stuck_queue":                   {Why: invariant, Scans: []string{"r"}},
		"doctor_waiting_for_nobody":            {Why: invariant, Scans: []string{"r"}},
		"doctor_waiting_step_without_approval": {Why: invariant, Scans: []string{"r"}},
		"doctor_pending_without_waiting_run":   {Why: invariant, Scans: []string{"a"}},
		"doctor_pending_without_expiry":        {Why: invariant, Scans: []string{"a"}},
		"doctor_workflow_idle":                 {Why: invariant, Scans: []string{"s", "r", "w"}},
		"doctor_workflow_step":                 {Why: invariant, Scans: []string{"a", "m", "s", "r", "t", "t_1", "w"}},
		"doctor_workflow_agent":                {Why: invariant, Scans: []string{"s", "c", "t", "w"}},
		"doctor_orphans":                       {Why: invariant, Scans: []string{"c", "r", "w"}},
	})
}
