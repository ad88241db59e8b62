package feed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// personal is what erases all that people leave.
var personal = []*Erasure{PersonalRuns, PersonalThreads}

// canary is in everything that a person said or was told.
const canary = "the canary of a person"

// person is an end user with a thread in which everything was said.
type person struct {
	*rows
	id     id.EndUserID
	thread id.ThreadID
	run    id.RunID // ended a minute ago
	posted id.RunID // by somebody else in the thread, ended as well
}

// person makes one; deleted says that he is.
func (r *rows) person(deleted bool) *person {
	r.t.Helper()
	p := &person{rows: r, id: id.EndUserID{UUID: id.NewAnywhere()}, thread: id.ThreadID{UUID: id.NewAnywhere()}}
	r.exec(`INSERT INTO end_users (tenant_id, id, external_id, deleted_at) VALUES ($1, $2::uuid, $2::uuid::text, CASE WHEN $3 THEN now() - interval '1 minute' END)`, r.tenant, p.id, deleted)
	r.exec("INSERT INTO threads (tenant_id, id, agent_id, created_by, end_user_id, title) VALUES ($1, $2, $3, 'embed:eu:' || $4::uuid::text, $4::uuid, $5)", r.tenant, p.thread, r.agent, p.id, canary)
	p.run, p.posted = p.ended(1, true), p.ended(3, false)
	return p
}

// ended is a run of the thread that has everything a run may have; his says whose.
func (p *person) ended(seq int, his bool) id.RunID {
	p.t.Helper()
	run := p.rows.run("succeeded", &p.thread, seq)
	p.exec(`UPDATE runs SET input = to_json($2::text), output = to_json($2::text), finished_at = now() - interval '1 minute', end_user_id = CASE WHEN $3 THEN $4::uuid END, person_id = $4 WHERE id = $1`, run, canary, his, p.id)
	for i, role := range []string{"user", "assistant"} {
		p.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now())`,
			p.tenant, p.thread, seq+i, id.NewAnywhere(), role, canary, run)
	}
	p.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, input, output, sealed, began_seq, started_at)
		VALUES ($1, $2, 0, 'tool', 'a.b', 'succeeded', to_json($3::text), to_json($3::text), convert_to($3, 'UTF8'), 1, now())`, p.tenant, run, canary)
	p.exec(`INSERT INTO run_marks (tenant_id, run_id, seq, type, data) VALUES ($1, $2, 9, 'run.waiting', to_json($3::text))`, p.tenant, run, canary)
	approval := id.NewAnywhere()
	p.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, status, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, decision, on_timeout, feedback,
			expires_at, created_at, updated_at, decided_at)
		VALUES ($1, $2, $3, 0, 'responded', 'low', 'admin', 1, 'a.b', to_json($4::text), convert_to($4, 'UTF8'), sha256(''), '{}', 'respond', 'reject', $4, now(), now(), now(), now())`,
		p.tenant, approval, run, canary)
	p.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', now()), ($1, 'run', $3, 'deadline', now())`, p.tenant, approval, run)
	p.exec(`INSERT INTO artifacts (tenant_id, id, run_id, kind, name, media_type, size_bytes, sha256, created_at) VALUES ($1, $2, $3, 'html', $4, 'text/html', 1, sha256(''), now())`,
		p.tenant, id.NewAnywhere(), run, canary)
	skill := id.NewAnywhere()
	p.exec(`INSERT INTO browser_skills (tenant_id, id, slug, name, definition, policy) VALUES ($1, $2, $2::uuid::text, 'Pay', '{}', '{}')`, p.tenant, skill)
	p.exec(`INSERT INTO browser_skill_runs (tenant_id, id, skill_id, slug, revision, agent_run_id, created_by, reason, mode, status, key, args, precommit, result, state, created_at, finished_at)
		VALUES ($1, $2, $3, 'pay', 1, $4, 'system', $5, 'run', 'succeeded', $2::uuid::text, convert_to($5, 'UTF8'), to_json($5::text), to_json($5::text), '', now(), now())`,
		p.tenant, id.NewAnywhere(), skill, run, canary)
	p.exec(`INSERT INTO usage_records (tenant_id, id, at, kind, run_id, agent_id, tokens_in) VALUES ($1, $2, now(), 'llm', $3, $4, 7)`, p.tenant, id.NewAnywhere(), run, p.agent)
	p.heard(run, "succeeded")
	return run
}

// heard is what an endpoint heard of the end of a run.
func (p *person) heard(run id.RunID, status string) (d id.DeliveryID) {
	p.t.Helper()
	w := p.webhook(1)
	if err := p.pool.QueryRow(p.t.Context(), `INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, next_attempt_at, created_at)
		SELECT $1, new_id(finished_at), $2, $2, 'run.completed', convert_to('{"run_id":"' || id::text || '","output":"' || $3 || '"}', 'UTF8'), $4::text,
			CASE WHEN $4::text = 'pending' THEN now() END, finished_at FROM runs WHERE id = $5 RETURNING id`, p.tenant, w, canary, status, run).Scan(&d); err != nil {
		p.t.Fatal(err)
	}
	return d
}

// gone are the tenant's deleted people.
func (r *rows) gone() []Person {
	r.t.Helper()
	people, err := NewSweep(r.pool).DeletedPeople(r.t.Context(), Person{}, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.DeleteFunc(people, func(p Person) bool { return p.Tenant != r.tenant })
}

// mentions are the tables in which something of the person is left, with how often.
func (r *rows) mentions() string {
	r.t.Helper()
	var found []string
	for _, table := range []string{"threads", "messages", "runs", "run_steps", "run_marks", "approvals", "artifacts", "browser_skill_runs", "webhook_deliveries", "usage_records", "audit_log", "end_users"} {
		var n int
		if err := r.pool.QueryRow(r.t.Context(), `SELECT count(*) FROM `+table+` x WHERE tenant_id = $1 AND (x::text LIKE '%' || $2 || '%' OR x::text LIKE '%' || encode(convert_to($2, 'UTF8'), 'hex') || '%')`,
			r.tenant, canary).Scan(&n); err != nil {
			r.t.Fatal(err)
		}
		if n > 0 {
			found = append(found, table)
		}
	}
	return strings.Join(found, " ")
}

// deletes does what the actors of threads do when they are told.
func (r *rows) deletes(lost []Entity) {
	r.t.Helper()
	for _, l := range lost {
		r.exec("UPDATE threads SET deleted_at = now() - interval '1 minute', version = version + 1 WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL", l.Tenant, l.ID)
		r.exec("DELETE FROM messages WHERE tenant_id = $1 AND thread_id = $2", l.Tenant, l.ID)
	}
}

const settled = 10 * time.Second

// docs/adr/0027: nothing that a deleted end user said or was told is left, what it cost
// stays, and nobody else's is touched. Each step may be the last one before a crash, and
// may be repeated at any time: they are tried in every order.
func TestWhatADeletedEndUserLeavesIsErased(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	steps := []string{"messages purged", "threads told", "runs", "threads", "people"}
	var orders [][]string
	for _, a := range steps {
		for _, b := range steps {
			orders = append(orders, []string{a, b, a})
		}
	}
	for _, order := range orders {
		r := setUp(t, db.System(t))
		s := NewSweep(r.pool)
		p, other := r.person(true), setUp(t, r.pool)
		other.person(false)
		theirs := other.mentions()
		stays := r.rowsOf("usage_records")
		step := func(name string) {
			t.Helper()
			var err error
			switch name {
			case "messages purged": // by the tenant, before the person was deleted
				r.deletes([]Entity{{r.tenant, p.thread.UUID}})
			case "threads told":
				var lost []Entity
				lost, err = s.Lost(t.Context(), PersonalThreads, r.gone(), everywhere, 100)
				r.deletes(lost)
			case "runs":
				_, err = s.Erase(t.Context(), PersonalRuns, r.gone(), 100, settled)
			case "threads":
				_, err = s.Erase(t.Context(), PersonalThreads, r.gone(), 100, settled)
			case "people":
				_, err = s.ErasePeople(t.Context(), personal, r.gone(), 0)
			}
			if err != nil {
				t.Fatal(order, err)
			}
		}
		for _, name := range order {
			step(name)
		}
		for range 2 {
			for _, name := range steps {
				step(name)
			}
		}
		if left := r.mentions(); left != "" {
			t.Errorf("%v: left in %s", order, left)
		}
		for _, table := range []string{"runs", "run_steps", "run_marks", "approvals", "artifacts", "browser_skill_runs", "messages", "end_users", "webhook_deliveries"} {
			if n := r.rowsOf(table); n != 0 {
				t.Errorf("%v: %d rows of %s", order, n, table)
			}
		}
		var timers, named int
		if err := r.pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM timers WHERE tenant_id = $1), (SELECT count(*) FROM threads t WHERE t.tenant_id = $1 AND t::text LIKE '%' || $2 || '%')",
			r.tenant, p.id.String()).Scan(&timers, &named); err != nil || timers+named != 0 {
			t.Errorf("%v: %d timers, %d threads that name him, %v", order, timers, named, err)
		}
		if now := r.rowsOf("usage_records"); now != stays || stays == 0 {
			t.Errorf("%v: %d usage records of %d", order, now, stays)
		}
		if now := other.mentions(); now != theirs || !strings.Contains(theirs, "artifacts browser_skill_runs webhook_deliveries") {
			t.Errorf("%v: of somebody else %q is left of %q", order, now, theirs)
		}
	}
}

func (r *rows) rowsOf(table string) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), "SELECT count(*) FROM "+table+" WHERE tenant_id = $1", r.tenant).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// A crash in the middle of a step leaves nothing of it done.
func TestAnErasureThatIsCutShort(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	r.person(true)
	before := r.mentions()
	crash := errors.New("crash")
	_, err := erase(t.Context(), r.pool, "cut", eraseRunsSQL, r.gone(), 10, settled, func(ctx context.Context, tx pgx.Tx, of erased) error {
		return errors.Join(of.each(ctx, tx, "erase_approvals", "erase_marks", "erase_steps"), crash)
	})
	if !errors.Is(err, crash) || r.mentions() != before {
		t.Errorf("%v: %q is left of %q", err, r.mentions(), before)
	}
}

// What is open is waited for: a run that still runs, and the thread that it is in.
func TestARunOfADeletedEndUserThatStillRuns(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	s := NewSweep(r.pool)
	p := r.person(true)
	running := r.run("running", &p.thread, 5)
	r.exec("UPDATE runs SET person_id = $2, input = to_json($3::text) WHERE id = $1", running, p.id, canary)
	all := func() {
		t.Helper()
		lost, err := s.Lost(t.Context(), PersonalThreads, r.gone(), everywhere, 100)
		r.deletes(lost)
		_, e1 := s.Erase(t.Context(), PersonalRuns, r.gone(), 100, settled)
		_, e2 := s.Erase(t.Context(), PersonalThreads, r.gone(), 100, settled)
		_, e3 := s.ErasePeople(t.Context(), personal, r.gone(), 0)
		if err := errors.Join(err, e1, e2, e3); err != nil {
			t.Fatal(err)
		}
	}
	all()
	all()
	if left := r.mentions(); left != "threads runs" || r.rowsOf("runs") != 1 || r.rowsOf("end_users") != 1 {
		t.Errorf("while it runs: %s, %d runs", left, r.rowsOf("runs"))
	}
	r.exec("UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', error_message = 'm', finished_at = now() WHERE id = $1", running)
	// A reply of a run that succeeded while its thread was being deleted.
	r.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, 6, $3, 'assistant', $4, $5, now())`, r.tenant, p.thread, id.NewAnywhere(), canary, running)
	all()
	if left := r.mentions(); left != "runs" {
		t.Errorf("a moment after it has ended: %s", left)
	}
	r.exec("UPDATE runs SET finished_at = now() - interval '1 minute' WHERE id = $1", running)
	all()
	if left := r.mentions(); left != "" || r.rowsOf("end_users") != 0 {
		t.Errorf("it has ended: %s", left)
	}
}

// A run of a browser skill that has not ended keeps the run that called it, which has: what it owes after its click is done.
func TestARunOfASkillThatStillRuns(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	p := r.person(true)
	erased := func() int {
		t.Helper()
		n, err := NewSweep(r.pool).Erase(t.Context(), PersonalRuns, r.gone(), 100, settled)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	r.exec("UPDATE browser_skill_runs SET status = 'committing', finished_at = NULL WHERE agent_run_id = $1", p.run)
	if n := erased(); n != 1 || r.rowsOf("runs") != 1 || r.rowsOf("browser_skill_runs") != 1 {
		t.Errorf("while it runs: %d runs are erased, %d are left, and %d of skills", n, r.rowsOf("runs"), r.rowsOf("browser_skill_runs"))
	}
	r.exec("UPDATE browser_skill_runs SET status = 'succeeded', finished_at = now() WHERE agent_run_id = $1", p.run)
	if n := erased(); n != 1 || r.rowsOf("runs") != 0 || r.rowsOf("browser_skill_runs") != 0 {
		t.Errorf("once it has ended: %d runs are erased, %d are left, and %d of skills", n, r.rowsOf("runs"), r.rowsOf("browser_skill_runs"))
	}
}

// A delivery that is being settled is not waited for, and not forgotten.
func TestADeliveryUnderWayIsErasedLater(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	s := NewSweep(r.pool)
	p := r.person(true)
	d := p.heard(p.run, "pending")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM webhook_deliveries WHERE id = $1 FOR UPDATE", d); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Erase(t.Context(), PersonalRuns, r.gone(), 100, settled); err != nil {
		t.Fatal(err)
	}
	if n, runs := r.rowsOf("webhook_deliveries"), r.rowsOf("runs"); n != 1 || runs != 1 {
		t.Errorf("%d deliveries, %d runs", n, runs)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Erase(t.Context(), PersonalRuns, r.gone(), 100, settled); err != nil {
		t.Fatal(err)
	}
	if n := r.rowsOf("webhook_deliveries") + r.rowsOf("runs"); n != 0 {
		t.Errorf("%d deliveries and runs are left", n)
	}
}

// Threads are told on the nodes that own them.
func TestLostThreads(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	s := NewSweep(r.pool)
	p := r.person(true)
	r.person(false)
	shard := p.thread.Shard()
	for name, c := range map[string]struct {
		shards []id.Shard
		want   int
	}{"its shard": {[]id.Shard{shard}, 1}, "another one": {[]id.Shard{(shard + 1) % id.Shards}, 0}, "none": {nil, 0}} {
		lost, err := s.Lost(t.Context(), PersonalThreads, r.gone(), c.shards, 10)
		if err != nil || len(lost) != c.want || c.want == 1 && !slices.Equal(lost, []Entity{{r.tenant, p.thread.UUID}}) {
			t.Errorf("%s: %v %v", name, lost, err)
		}
	}
}

func byID(a, b id.EndUserID) int { return slices.Compare(a.UUID[:], b.UUID[:]) }

// People are read in pages, in the order in which they were deleted, and only those who were deleted.
func TestDeletedPeople(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	var want []id.EndUserID
	for i := range 7 {
		if p := r.person(i%3 != 0); i%3 != 0 { // those who were deleted last come first, two at a time
			r.exec("UPDATE end_users SET deleted_at = date_trunc('day', now()) - $2 * interval '1 minute' WHERE id = $1", p.id, i/3)
			want = append(want, p.id)
		}
	}
	slices.SortFunc(want[:2], byID)
	slices.SortFunc(want[2:], byID)
	want = append(want[2:], want[:2]...)
	var got []id.EndUserID
	var after Person
	for pages := 0; ; pages++ {
		page, err := NewSweep(r.pool).DeletedPeople(t.Context(), after, 3)
		if err != nil || pages > 2 {
			t.Fatal(pages, err)
		}
		for _, p := range page {
			got, after = append(got, p.ID), p
		}
		if len(page) < 3 {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A look costs what it may find, however much a person left behind and however many
// people and threads there are. The planner may know the tables, or nothing of them.
func TestALookIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := setUp(t, db.System(t))
	const many = 20_000
	var who [2]id.EndUserID // who was deleted, and one of many others
	for i := range who {
		who[i] = id.EndUserID{UUID: id.NewAnywhere()}
		r.exec("INSERT INTO end_users (tenant_id, id, external_id, deleted_at) VALUES ($1, $2::uuid, $2::uuid::text, CASE WHEN $3 THEN now() - interval '1 minute' END)", r.tenant, who[i], i == 0)
		r.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by, end_user_id, deleted_at)
			SELECT $1, new_id(now()), $2, 'embed:eu:x', $3, CASE WHEN n % 2 = 0 THEN now() - interval '1 minute' END FROM generate_series(1, $4) n`, r.tenant, r.agent, who[i], many)
		r.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, created_at, finished_at, person_id)
			SELECT tenant_id, new_id(now()), 'succeeded', agent_id, 1, id, 1, 'api_key', $1, now(), now() - interval '1 minute', end_user_id FROM threads WHERE end_user_id = $2`, r.tenant, who[i])
		r.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at)
			SELECT tenant_id, thread_id, n, gen_random_uuid(), 'user', 'x', id, now() FROM runs, generate_series(1, 2) n WHERE person_id = $1`, who[i])
	}
	tenants, ids := columns(r.gone())
	for _, known := range []bool{false, true} {
		if known {
			if _, err := db.Admin(t).Exec(t.Context(), "ANALYZE"); err != nil {
				t.Fatal(err)
			}
		}
		for name, c := range map[string]struct {
			args []any
			find int
		}{
			"erase_whose":         {[]any{time.Time{}, id.EndUserID{}, 200}, 1},
			"erase_threads":       {[]any{tenants, ids, lines(everywhere), 50, 50 * lookAhead}, 50},
			"erase_runs":          {[]any{tenants, ids, 50, settled}, 50},
			"erase_conversations": {[]any{tenants, ids, 50, settled}, 50},
			"erase_people":        {[]any{tenants, ids, time.Duration(0)}, 0},
		} {
			sql := queries.Get(name)
			if name == "erase_people" {
				sql = peopleSQL(personal)
			}
			rows, blocks := r.cost(sql, c.args...)
			if rows != c.find || blocks > 250 {
				t.Errorf("known %v: %s finds %d of %d rows and reads %d blocks", known, name, rows, c.find, blocks)
			}
		}
	}
}

// cost is what a query finds and reads, by indexes. Nothing of it stays.
func (r *rows) cost(sql string, args ...any) (rows, blocks int) {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(r.t.Context(), byIndexSQL); err != nil {
		r.t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Actual Rows"`
			Hit  int     `json:"Shared Hit Blocks"`
			Read int     `json:"Shared Read Blocks"`
		}
	}
	if err := tx.QueryRow(r.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&plans); err != nil {
		r.t.Fatal(sql, err)
	}
	return int(plans[0].Plan.Rows), plans[0].Plan.Hit + plans[0].Plan.Read
}

// What endpoints heard of a run's end is found among all that they heard in that second,
// of which nothing else is read.
func TestWhatWasToldOfARunIsFoundByItsTime(t *testing.T) {
	t.Parallel()
	r := setUp(t, pgtest.New(t).System(t))
	p := r.person(true)
	p.heard(p.run, "failed") // a second endpoint
	var at time.Time
	if err := r.pool.QueryRow(t.Context(), "SELECT finished_at FROM runs WHERE id = $1", p.run).Scan(&at); err != nil {
		t.Fatal(err)
	}
	r.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, status, created_at)
		SELECT $1, new_id(at), w.id, w.id, 'run.completed', convert_to((SELECT string_agg(md5(n || ' ' || k), '') FROM generate_series(1, 100) k), 'UTF8'), 'succeeded', at
		FROM webhooks w, generate_series(-1000, 1000) n, LATERAL (SELECT $2::timestamptz + n * interval '0.5 ms') AS moment (at)
		WHERE w.id = (SELECT id FROM webhooks WHERE tenant_id = $1 LIMIT 1)`, r.tenant, at)
	of := erased{tenants: []id.TenantID{r.tenant}, ids: []id.UUID{p.run.UUID}, at: []time.Time{at}}
	if rows, blocks := r.cost(eraseToldSQL, of.told()...); rows != 2 || blocks > 30 {
		t.Errorf("finds %d deliveries and reads %d blocks", rows, blocks)
	}
}
