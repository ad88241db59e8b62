package approval

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/actors/sweep"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database with a tenant, and writers and hosts over it.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	pool   *pgxpool.Pool
	tenant id.TenantID
	vault  *vault.Vault
	deaf   bool // nobody hears of anything
	// secrets, where set, says how edits are shown.
	secrets secrets
}

// secrets is Secrets as a function.
type secrets func(by tool.Caller, args json.RawMessage) (json.RawMessage, error)

func (f secrets) ShowEdit(_ context.Context, by tool.Caller, args json.RawMessage) (json.RawMessage, error) {
	return f(by, args)
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := pgtest.New(t)
	w := &world{t: t, db: db, pool: db.System(t), vault: vault.New(vault.NewSecret32([32]byte{1}))}
	w.tenant = pgtest.Tenant(t, w.pool)
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.com/', '{*}', '\x00')`, w.tenant, id.WebhookID{UUID: id.NewAnywhere()})
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) text(sql string, args ...any) string {
	w.t.Helper()
	var s *string
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return "NULL"
	}
	return *s
}

func (w *world) is(want, sql string, args ...any) {
	w.t.Helper()
	if got := w.text(sql, args...); got != want {
		w.t.Errorf("%s\n got %s\nwant %s", sql, got, want)
	}
}

// writer starts a writer of the durable kinds.
func (w *world) writer() *journal.Writer {
	w.t.Helper()
	return journaltest.Writer(w.t, w.db, journal.Config{Tables: engine.Tables})
}

// ears are who hears what runs are told.
type ears struct {
	mu    sync.Mutex
	heard []any
	runs  map[id.UUID]int
}

func (e *ears) note(run id.UUID, m any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runs == nil {
		e.runs = map[id.UUID]int{}
	}
	e.heard, e.runs[run] = append(e.heard, m), e.runs[run]+1
}

func (e *ears) messages() []any {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]any(nil), e.heard...)
}

// deaf is an actor that notes what it is told.
type deaf struct {
	e *ears
	a cluster.Address
}

func (d deaf) Receive(_ cluster.Context, m any) { d.e.note(d.a.ID, m) }
func (d deaf) Stopped()                         {}

// node hosts approvals, and runs that only listen; change may alter the kind.
func (w *world) node(j durable.Writer, e *ears, change func(k *durable.Kind[State])) *cluster.Node {
	w.t.Helper()
	n := clustertest.Node()
	cfg := Config{Store: engine.New(w.pool), Vault: w.vault, Tell: n, Seal: w.seal, Hears: w.hears, Log: zerolog.Nop()}
	if w.secrets != nil {
		cfg.Secrets = w.secrets
	}
	k := New(cfg)
	if change != nil {
		change(&k)
	}
	durable.Register(n, j, k, durable.Config{})
	n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior { return deaf{e, a} })
	return testkit.Start(w.t, n)
}

func (w *world) hears(t id.TenantID) bool { return t == w.tenant && !w.deaf }

func (w *world) seal(t id.TenantID, digest [32]byte, answer []byte) ([]byte, error) {
	return w.vault.Seal(vault.AAD{Tenant: t, Table: "idempotency", Row: fmt.Sprintf("%x", digest), Column: "response"}, answer)
}

// gate is an approval that a run in version 2 waits for.
type gate struct {
	w   *world
	a   id.ApprovalID
	run id.RunID
}

type terms struct {
	required int
	escalate lifecycle.Role
	expires  time.Time
	half     time.Time // of the escalation
}

func (w *world) open(change func(o *terms)) gate {
	w.t.Helper()
	o := terms{required: 1, expires: time.Now().Add(time.Hour)}
	if change != nil {
		change(&o)
	}
	g := gate{w: w, a: id.ApprovalID{UUID: id.NewAnywhere()}}
	g.run = id.RunID{UUID: id.New(g.a.Shard())}
	sealed, err := w.vault.Seal(engine.FrozenAt(w.tenant, g.a), frozen)
	if err != nil {
		w.t.Fatal(err)
	}
	digest := tool.Digest(frozen)
	var escalate *lifecycle.Role
	if o.escalate != "" {
		escalate = &o.escalate
	}
	agent := pgtest.Agent(w.t, w.pool, w.tenant)
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, origin_kind, origin_id, created_at, started_at, seq, steps, version)
		VALUES ($1, $2, 'waiting_approval', $3, 1, 'api_key', $1, now(), now(), 4, 1, 2)`, w.tenant, g.run, agent)
	w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 0, 'tool', 'a.b', 'waiting', 2, now())`, w.tenant, g.run)
	w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, agent_id, risk, assignee_role, required_approvals, tool, args, schema, frozen, digest, policy,
			escalate_to_role, on_timeout, expires_at, created_at, updated_at)
		VALUES ($1, $2, $3, 0, $4, 'high', 'admin', $5, 'a.b', $6, $7, $8, $9, '{"id":null,"name":"p","kind":"policy"}', $10, 'reject', $11, now(), now())`,
		w.tenant, g.a, g.run, agent, o.required, string(shown), string(schema), []byte(sealed), digest[:], escalate, o.expires)
	w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', $3)`, w.tenant, g.a, o.expires)
	if escalate != nil {
		w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'escalate', $3)`, w.tenant, g.a, o.half)
	}
	return g
}

// beside opens another approval of the same run.
func (g gate) beside(step int) gate {
	g.w.t.Helper()
	b := gate{w: g.w, a: id.ApprovalID{UUID: id.New(g.run.Shard())}, run: g.run}
	sealed, err := g.w.vault.Seal(engine.FrozenAt(g.w.tenant, b.a), frozen)
	if err != nil {
		g.w.t.Fatal(err)
	}
	g.w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, $3, 'tool', 'a.b', 'waiting', 2, now())`, g.w.tenant, g.run, step)
	g.w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, agent_id, risk, assignee_role, required_approvals, tool, args, schema, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at)
		SELECT tenant_id, $1, run_id, $2, agent_id, risk, assignee_role, required_approvals, tool, args, schema, $3, digest, policy, on_timeout, expires_at, created_at, updated_at
		FROM approvals WHERE id = $4`, b.a, step, []byte(sealed), g.a)
	return b
}

func (g gate) address() cluster.Address {
	return cluster.Address{Kind: msg.KindApproval, Tenant: g.w.tenant, ID: g.a.UUID}
}

func (g gate) ask(n *cluster.Node, m any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return n.Ask(ctx, g.address(), m)
}

// ends ends the run, which reads its approval anew where somebody else was faster.
func (g gate) ends(runs durable.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for {
		var pending []engine.Pending
		var assignee *lifecycle.Role
		if err := g.w.pool.QueryRow(ctx, `SELECT max(assignee_role) FROM approvals WHERE id = $1 AND status = 'pending'`, g.a).Scan(&assignee); err != nil {
			return err
		}
		if assignee != nil {
			pending = append(pending, engine.Pending{ID: g.a, Assignee: *assignee})
		}
		if err := runs.Do(ctx, g.ended(pending)); !errors.Is(err, journal.ErrConflict) {
			return err
		}
	}
}

// ended is the commit by which the run ends (actors/run, drop).
func (g gate) ended(pending []engine.Pending) *journal.Commit {
	op, now, code := id.OpID{UUID: id.NewAnywhere()}, time.Now(), "CANCELLED"
	key := func(kind string, entity id.UUID, name string) journal.TimerKey {
		return journal.TimerKey{Kind: kind, Entity: entity, Name: name}
	}
	return &journal.Commit{Op: op, Tenant: g.w.tenant, Shard: g.run.Shard(),
		Rows: []journal.Row{&engine.RunUpdate{ID: g.run, Guard: journal.Guard{Version: 2, SetEpoch: 1}, Status: lifecycle.RunCancelled, ErrorCode: &code, ErrorMessage: &code,
			StartedAt: &now, FinishedAt: &now, Seq: 5, Steps: 1},
			&engine.StepUpdate{Run: g.run, Idx: 0, Status: lifecycle.StepFailed, FinishedAt: now}},
		TimersDone: []journal.TimerKey{key("approval", g.a.UUID, "expire"), key("approval", g.a.UUID, "escalate"), key("run", g.run.UUID, g.a.String())},
		Statements: []journal.Statement{engine.CancelApprovals(g.w.tenant, op, g.run, pending, now)}}
}

// The edits of all approvals of a run have one bound, also where they are sent at once; whoever is refused can decide without an edit.
func TestTheEditsOfARunAreBounded(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.writer(), &ears{}, nil)
	full := w.open(func(o *terms) { o.required = 2 })
	w.exec(`UPDATE approvals SET edited = repeat('x', $2)::bytea WHERE id = $1`, full.a, maxEdits-25_000)
	var gates []gate
	for step := 1; step <= 6; step++ {
		gates = append(gates, full.beside(step))
	}
	large := func() msg.Decide {
		m := vote("user:1", edit)
		m.EditedArgs = json.RawMessage(`{"order":8,"note":"` + strings.Repeat("x", 10_000) + `"}`)
		return m
	}
	errs := make([]error, len(gates))
	var all sync.WaitGroup
	for i, g := range gates {
		all.Go(func() { _, errs[i] = g.ask(n, large()) })
	}
	all.Wait()
	taken := 0
	for i, err := range errs {
		switch {
		case err == nil:
			taken++
		case !isCode(err, problem.CodeInvalidArgs):
			t.Errorf("an edit: %v", err)
		default:
			if _, err := gates[i].ask(n, vote("user:1", approve)); err != nil {
				t.Errorf("an approval without an edit: %v", err)
			}
		}
	}
	if taken != 2 {
		t.Errorf("%d edits were taken, and there is room for two", taken)
	}
	if _, err := w.open(nil).ask(n, large()); err != nil {
		t.Errorf("the edit of another run: %v", err)
	}
}

// row is the approval's row with the run's status.
func (g gate) row(columns string) string {
	g.w.t.Helper()
	return g.w.text(`SELECT concat_ws('|', `+columns+`) FROM approvals a JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id WHERE a.id = $1`, g.a)
}

// timers are the names of the approval's timers and of its run's.
func (g gate) timers() string {
	g.w.t.Helper()
	return g.w.text(`SELECT coalesce(string_agg(kind || ' ' || CASE WHEN kind = 'run' AND name = $1::uuid::text THEN 'look' ELSE name END, ',' ORDER BY kind, name), '')
		FROM timers WHERE entity_id IN ($1, $2)`, g.a, g.run)
}

func (g gate) audited() string {
	g.w.t.Helper()
	return g.w.text(`SELECT coalesce(string_agg(concat_ws(' ', action, actor, detail), ',' ORDER BY id), '') FROM audit_log WHERE target_kind = 'approval' AND target_id = $1`, g.a)
}

func isCode(err error, code problem.Code) bool { return errors.Is(err, problem.New(code, "")) }

func TestADecisionIsCommittedWithAllThatBelongsToIt(t *testing.T) {
	w := newWorld(t)
	e := &ears{}
	n := w.node(w.writer(), e, nil)
	g := w.open(func(o *terms) { o.required, o.escalate, o.half = 2, lifecycle.RoleOwner, time.Now().Add(time.Minute) })
	m := vote("user:1", edit)
	m.Feedback, m.By.IP = "so", "192.0.2.1"
	if got, err := g.ask(n, m); err != nil || got != any(msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}) {
		t.Fatal(got, err)
	}
	if got := g.row(`a.status, approvals_so_far, decided_at IS NULL, a.version, a.owner_epoch`); got != "pending|1|t|2|1" {
		t.Error(got)
	}
	if len(e.messages()) != 0 || g.timers() != "approval escalate,approval expire" {
		t.Errorf("%v, %s", e.messages(), g.timers())
	}
	if got, err := g.ask(n, vote("user:2", approve)); err != nil || got != any(msg.Decided{Status: lifecycle.ApprovalEdited, ApprovalsSoFar: 2}) {
		t.Fatal(got, err)
	}
	if got := g.row(`a.status, approvals_so_far, decision, feedback IS NULL, decided_at = a.updated_at OR decided_at < a.updated_at, a.version, a.owner_epoch, r.status`); got != "edited|2|approve|t|t|3|2|waiting_approval" {
		t.Error(got)
	}
	var ledger []Entry
	if err := json.Unmarshal([]byte(g.row(`decisions::text`)), &ledger); err != nil || len(ledger) != 2 || ledger[0].Principal != "user:1" || *ledger[0].Feedback != "so" ||
		string(ledger[0].EditedArgs) != `{"order":8,"token":"[redacted]"}` || ledger[1].Action != approve || ledger[1].Feedback != nil {
		t.Errorf("%+v, %v", ledger, err)
	}
	var edited, digest []byte
	if err := w.pool.QueryRow(t.Context(), `SELECT edited, digest FROM approvals WHERE id = $1`, g.a).Scan(&edited, &digest); err != nil {
		t.Fatal(err)
	}
	plain, err := w.vault.Open(engine.EditedAt(w.tenant, g.a), edited)
	if want := `{"order":8,"token":"s3cret","idempotency_key":"k1"}`; err != nil || string(plain) != want || tool.Digest(plain) != [32]byte(digest) {
		t.Errorf("%s, %v", plain, err)
	}
	if got := g.timers(); got != "run look" {
		t.Errorf("timers %s", got)
	}
	w.is("true", `SELECT (due_at - decided_at = $3::interval)::text FROM timers, approvals a WHERE entity_id = $1 AND a.id = $2`, g.run, g.a, resumeAfter)
	want := `approval.decide user:1 {"action":"edit","status":"pending"},approval.decide user:2 {"action":"approve","status":"edited"}`
	if got := g.audited(); got != want {
		t.Errorf("audit %s", got)
	}
	testkit.Eventually(t, "the run is told", func() bool { return len(e.messages()) == 1 })
	if e.messages()[0] != any(msg.ApprovalsDecided{}) || e.runs[g.run.UUID] != 1 {
		t.Errorf("told %v", e.messages())
	}
	w.is("0", `SELECT count(*)::text FROM approvals WHERE concat(decisions, args) LIKE '%s3cret%' OR position('s3cret'::bytea IN edited) > 0`)
}

// What a decision's commit ends with, and whether the run is told.
func TestWhatADecisionEndsWith(t *testing.T) {
	w := newWorld(t)
	j := w.writer()
	var (
		mu    sync.Mutex
		write func(c *journal.Commit) error
	)
	e := &ears{}
	n := w.node(writerFunc(func(_ context.Context, c *journal.Commit) error {
		mu.Lock()
		defer mu.Unlock()
		return write(c)
	}), e, nil)
	told := func(g gate) int { e.mu.Lock(); defer e.mu.Unlock(); return e.runs[g.run.UUID] }
	written := func(c *journal.Commit) error { return j.Do(context.Background(), c) }
	for _, c := range []struct {
		name   string
		change func(g gate)
		m      any
		write  func(c *journal.Commit) error
		status string
		told   int
		fails  bool
	}{
		{"an approval", nil, vote("a", approve), written, "approved|2", 1, false},
		{"an edit", nil, vote("a", edit), written, "edited|2", 1, false},
		{"an expiry", func(g gate) { w.exec(`UPDATE approvals SET expires_at = now() WHERE id = $1`, g.a) }, durable.TimerDue{Name: msg.TimerExpire}, written, "expired|2", 1, false},
		{"one more is needed", func(g gate) { w.exec(`UPDATE approvals SET required_approvals = 2 WHERE id = $1`, g.a) }, vote("a", approve), written, "pending|2", 0, false},
		{"nobody knows", nil, vote("a", approve), func(*journal.Commit) error { return journal.ErrUnsettled }, "pending|1", 0, true},
		{"nobody knows, and it was written", nil, vote("a", approve), func(c *journal.Commit) error { return errors.Join(written(c), journal.ErrUnsettled) }, "approved|2", 0, true},
		{"the key was used", nil, vote("a", approve), func(*journal.Commit) error { return journal.ErrReplay }, "pending|1", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := w.open(nil)
			if c.change != nil {
				c.change(g)
			}
			mu.Lock()
			write = c.write
			mu.Unlock()
			if got, err := g.ask(n, c.m); (err != nil) != c.fails {
				t.Fatal(got, err)
			}
			if got := g.row(`a.status, a.version`); got != c.status {
				t.Errorf("%s, want %s", got, c.status)
			}
			testkit.Eventually(t, "whoever is told was told", func() bool { return told(g) >= c.told && !n.Active(g.address()) })
			if told(g) != c.told {
				t.Errorf("told %d times, want %d", told(g), c.told)
			}
			if !strings.HasPrefix(c.status, "pending") && g.timers() != "run look" { // the run's, until it has looked
				t.Errorf("timers %s", g.timers())
			}
		})
	}
}

type writerFunc func(context.Context, *journal.Commit) error

func (f writerFunc) Do(ctx context.Context, c *journal.Commit) error { return f(ctx, c) }
func (f writerFunc) Basis() uint64                                   { return 0 }

// The check of edited arguments keeps nothing else of the approval waiting: another person
// decides meanwhile, and the edit is told so.
func TestADecisionDuringACheck(t *testing.T) {
	w := newWorld(t)
	checking, checked := make(chan struct{}), make(chan struct{})
	n := w.node(w.writer(), &ears{}, func(k *durable.Kind[State]) {
		read := k.Read
		k.Read = func(ctx context.Context, a cluster.Address, q any) (any, error) {
			close(checking)
			<-checked
			return read(ctx, a, q)
		}
	})
	g := w.open(nil)
	edited := make(chan error, 1)
	go func() {
		_, err := g.ask(n, vote("a", edit))
		edited <- err
	}()
	<-checking
	if got, err := g.ask(n, vote("b", reject)); err != nil || got != any(msg.Decided{Status: lifecycle.ApprovalRejected}) {
		t.Fatalf("while the edit is checked: %v, %v", got, err)
	}
	close(checked)
	if err := <-edited; !isCode(err, problem.CodeAlreadyDecided) {
		t.Errorf("the edit: %v", err)
	}
	if got := g.row(`a.status, a.version`); got != "rejected|2" {
		t.Error(got)
	}
}

// An asker that leaves ends the check of what it has edited, and nothing is decided.
func TestAnAskerLeavesDuringACheck(t *testing.T) {
	w := newWorld(t)
	var checked atomic.Bool
	n := w.node(w.writer(), &ears{}, func(k *durable.Kind[State]) {
		k.Read = func(ctx context.Context, _ cluster.Address, _ any) (any, error) {
			checked.Store(true)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	g := w.open(nil)
	testkit.Eventually(t, "an asker leaves during the check", func() bool {
		ctx, leave := context.WithTimeout(t.Context(), time.Second) // a busy machine may load for as long
		defer leave()
		if got, err := n.Ask(ctx, g.address(), vote("a", edit)); err == nil {
			t.Fatal(got)
		}
		return checked.Load()
	})
	testkit.Eventually(t, "the activation ends", func() bool { return !n.Active(g.address()) })
	if got := g.row(`a.status, a.version`); got != "pending|1" {
		t.Error(got)
	}
}

func TestUnknownAndForeignApprovals(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.writer(), &ears{}, nil)
	g := w.open(nil)
	for name, a := range map[string]cluster.Address{
		"unknown": {Kind: msg.KindApproval, Tenant: w.tenant, ID: id.NewAnywhere()},
		"foreign": {Kind: msg.KindApproval, Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: g.a.UUID},
	} {
		if v, err := n.Ask(t.Context(), a, vote("a", approve)); !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
}

// Arguments that do not open any more keep nobody from saying no.
func TestFrozenArgumentsThatDoNotOpen(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.writer(), &ears{}, nil)
	g := w.open(nil)
	w.exec(`UPDATE approvals SET frozen = '\x0102' WHERE id = $1`, g.a)
	if _, err := g.ask(n, vote("a", edit)); !isCode(err, problem.CodeInvalidArgs) || !strings.Contains(err.Error(), "decide with reject or respond") {
		t.Errorf("edit: %v", err)
	}
	if got, err := g.ask(n, vote("a", reject)); err != nil || got != any(msg.Decided{Status: lifecycle.ApprovalRejected}) {
		t.Errorf("reject: %v, %v", got, err)
	}
}

// security.md, invariant 4: fifty concurrent decisions, one outcome; on one node
// and on two that both believe to own the approval.
func TestFiftyDecisions(t *testing.T) {
	w := newWorld(t)
	e := &ears{}
	nodes := []*cluster.Node{w.node(w.writer(), e, nil), w.node(w.writer(), e, nil)}
	actions := []lifecycle.Action{approve, edit, reject, respond}
	for hosts := 1; hosts <= 2; hosts++ {
		for round := range 4 {
			g := w.open(nil)
			start := make(chan struct{})
			errs, replies := make([]error, 50), make([]any, 50)
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					<-start
					replies[i], errs[i] = g.ask(nodes[i%hosts], vote(fmt.Sprint("user:", i), actions[(i+round)%4]))
				})
			}
			close(start)
			wg.Wait()
			won := -1
			for i, err := range errs {
				switch {
				case err == nil && won < 0:
					won = i
				case !isCode(err, problem.CodeAlreadyDecided):
					t.Errorf("decision %d: %v, %v", i, replies[i], err)
				}
			}
			if won < 0 {
				t.Fatal("nobody decided")
			}
			status := replies[won].(msg.Decided).Status
			if got, want := g.row(`a.status, decision, json_array_length(decisions), decisions -> 0 ->> 'principal', a.version`), fmt.Sprintf("%s|%s|1|user:%d|2", status, actions[(won+round)%4], won); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if strings.Count(g.audited(), "approval.decide") != 1 || g.timers() != "run look" {
				t.Errorf("audit %s, timers %s", g.audited(), g.timers())
			}
		}
	}
}

// Three of fifty approve; the others hear that they are late.
func TestFiftyApprovalsOfThree(t *testing.T) {
	w := newWorld(t)
	e := &ears{}
	nodes := []*cluster.Node{w.node(w.writer(), e, nil), w.node(w.writer(), e, nil)}
	g := w.open(func(o *terms) { o.required = 3 })
	var wg sync.WaitGroup
	var mu sync.Mutex
	counts := map[any]int{}
	for i := range 50 {
		wg.Go(func() {
			v, err := g.ask(nodes[i%2], vote(fmt.Sprint("user:", i%20), approve)) // some come twice
			var p *problem.Error
			if errors.As(err, &p) {
				v = p.Code
			}
			mu.Lock()
			counts[v]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if counts[problem.CodeAlreadyDecided] != 47 || counts[msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}] != 1 ||
		counts[msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 2}] != 1 || counts[msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 3}] != 1 {
		t.Errorf("%v", counts)
	}
	w.is("3", `SELECT count(DISTINCT d ->> 'principal')::text FROM approvals, json_array_elements(decisions) d WHERE id = $1`, g.a)
}

// security.md, invariant 5: approve against cancel against expiry, approval and
// run agree. In some rounds one of them is through before the others begin, so
// that each outcome is seen.
func TestApproveAgainstCancelAgainstExpiry(t *testing.T) {
	w := newWorld(t)
	e := &ears{}
	n, runs := w.node(w.writer(), e, nil), w.writer()
	seen := map[string]int{}
	for round := range 90 {
		lead := []string{"approve", "cancel", "expire", "", "", ""}[round%6]
		soon := 2 * time.Millisecond
		if lead == "approve" || lead == "cancel" {
			soon = time.Hour
		}
		g := w.open(func(o *terms) { o.expires = time.Now().Add(soon) })
		start := make(chan struct{})
		var decided any
		var refused, failed error
		race := map[string]func(){
			"approve": func() { decided, refused = g.ask(n, vote("user:1", approve)) },
			"cancel":  func() { failed = g.ends(runs) },
			"expire": func() {
				testkit.Eventually(t, "its time has passed", func() bool {
					return soon == time.Hour || w.text(`SELECT (now() > expires_at)::text FROM approvals WHERE id = $1`, g.a) == "true"
				})
				if _, err := g.ask(n, durable.TimerDue{Name: msg.TimerExpire}); err != nil {
					t.Error(err)
				}
			},
		}
		if f := race[lead]; f != nil {
			f()
			delete(race, lead)
		}
		var wg sync.WaitGroup
		for _, f := range race {
			wg.Go(func() { <-start; f() })
		}
		close(start)
		wg.Wait()
		if failed != nil {
			t.Fatalf("round %d: the run's end: %v", round, failed)
		}
		got := g.row(`a.status, a.decision, a.version, r.status`)
		seen[got]++
		if lead != "" && !strings.HasPrefix(got, map[string]string{"approve": "approved", "cancel": "cancelled", "expire": "expired"}[lead]) {
			t.Errorf("round %d, %s led: %s", round, lead, got)
		}
		switch {
		case refused == nil && (decided != any(msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 1}) || got != "approved|approve|2|cancelled"):
			t.Errorf("round %d: answered %v, the row says %s", round, decided, got)
		case refused != nil && (!isCode(refused, problem.CodeAlreadyDecided) || got != "expired|expire|2|cancelled" && got != "cancelled|cancel|2|cancelled"):
			t.Errorf("round %d: answered %v, the row says %s", round, refused, got)
		}
	}
	if len(seen) != 3 {
		t.Errorf("not every outcome was seen: %v", seen)
	}
}

// TestKilledBetweenCommitAndTell: what a run was not told its timer tells it.
func TestKilledBetweenCommitAndTell(t *testing.T) {
	w := newWorld(t)
	first, second := &ears{}, &ears{}
	j := w.writer()
	n := w.node(j, first, func(k *durable.Kind[State]) { k.After = nil })
	g := w.open(nil)
	if _, err := g.ask(n, vote("a", approve)); err != nil {
		t.Fatal(err)
	}
	testkit.Stop(t, n.Stop)
	if len(first.messages()) != 0 {
		t.Fatalf("told %v: void", first.messages())
	}
	n = w.node(j, second, nil)
	s := sweep.New(sweep.Config{Rows: feed.NewSweep(w.pool), Node: n, Every: 20 * time.Millisecond})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	testkit.Eventually(t, "the run's timer comes", func() bool { return len(second.messages()) > 0 })
	if m := second.messages()[0]; m != any(durable.TimerDue{Name: g.a.String()}) {
		t.Errorf("told %+v", m)
	}
}

func TestTimersEscalateAndExpire(t *testing.T) {
	w := newWorld(t)
	e := &ears{}
	n := w.node(w.writer(), e, nil)
	g := w.open(func(o *terms) {
		o.escalate, o.half, o.expires = lifecycle.RoleOwner, time.Now().Add(150*time.Millisecond), time.Now().Add(time.Hour)
	})
	s := sweep.New(sweep.Config{Rows: feed.NewSweep(w.pool), Node: n, Every: 20 * time.Millisecond})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	testkit.Eventually(t, "the run is told of the escalation", func() bool { return len(e.messages()) == 1 && !n.Active(g.address()) })
	w.exec(`UPDATE approvals SET expires_at = now() WHERE id = $1`, g.a) // its time passes
	w.exec(`UPDATE timers SET due_at = now() WHERE entity_id = $1 AND name = $2`, g.a, msg.TimerExpire)
	testkit.Eventually(t, "it expires", func() bool { return g.row(`a.status`) == "expired" })
	if got := g.row(`a.assignee_role, escalated_at IS NULL, decision, feedback IS NULL, approvals_so_far, decided_at >= expires_at, r.status`); got != "owner|f|expire|t|0|t|waiting_approval" {
		t.Error(got)
	}
	if got := g.audited(); got != `approval.escalated system {"from":"admin","to":"owner"},approval.expired system` {
		t.Errorf("audit %s", got)
	}
	testkit.Eventually(t, "the run is told", func() bool {
		decided := 0 // its timer tells it too, a second later
		for _, m := range e.messages() {
			if _, ok := m.(msg.ApprovalsDecided); ok {
				decided++
			}
		}
		return decided == 2 // the first is of the escalation
	})
	if _, err := g.ask(n, vote("a", approve)); !isCode(err, problem.CodeForbidden) { // an admin; owners decide now
		t.Errorf("%v", err)
	}
}

// What a timer does besides: it comes again when it came too early, and goes
// when there is nothing to do for it.
func TestTimersThatComeAtTheWrongTime(t *testing.T) {
	w := newWorld(t)
	n, runs := w.node(w.writer(), &ears{}, nil), w.writer()
	for name, c := range map[string]struct {
		before func(g gate)
		timer  string
		timers string
		row    string
	}{
		"expire, too early":                   {nil, "expire", "approval escalate,approval expire", "pending|1|0"},
		"escalate, too early":                 {nil, "escalate", "approval escalate,approval expire", "pending|1|0"},
		"a timer nobody knows":                {func(g gate) { w.exec(`UPDATE timers SET name = 'x' WHERE entity_id = $1 AND name = 'escalate'`, g.a) }, "x", "approval expire", "pending|1|0"},
		"escalate, and the role is no higher": {func(g gate) { w.exec(`UPDATE approvals SET escalate_to_role = 'manager' WHERE id = $1`, g.a) }, "escalate", "approval expire", "pending|1|0"},
		"expire, and the run has ended": {func(g gate) {
			if err := g.ends(runs); err != nil {
				t.Fatal(err)
			}
			w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', now())`, w.tenant, g.a)
		}, "expire", "", "cancelled|2|0"},
		"expire, and it is decided": {func(g gate) {
			if _, err := g.ask(n, vote("a", reject)); err != nil {
				t.Fatal(err)
			}
			w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'approval', $2, 'expire', now())`, w.tenant, g.a)
		}, "expire", "run look", "rejected|2|1"},
	} {
		t.Run(name, func(t *testing.T) {
			g := w.open(func(o *terms) { o.escalate, o.half = lifecycle.RoleOwner, time.Now().Add(time.Minute) })
			w.exec(`UPDATE timers SET claimed_until = now() + interval '1 hour' WHERE entity_id = $1 AND name = $2`, g.a, c.timer)
			if c.before != nil {
				c.before(g)
			}
			audit := g.audited()
			if _, err := g.ask(n, durable.TimerDue{Name: c.timer}); err != nil {
				t.Fatal(err)
			}
			if g.timers() != c.timers || g.row(`a.status, a.version, a.owner_epoch`) != c.row || g.audited() != audit {
				t.Errorf("timers %s, row %s, audit %s", g.timers(), g.row(`a.status, a.version, a.owner_epoch`), g.audited())
			}
			w.is("0", `SELECT count(*)::text FROM timers WHERE entity_id = $1 AND name = $2 AND claimed_until IS NOT NULL`, g.a, c.timer)
		})
	}
}

// An Idempotency-Key keeps the reply, and what it was used for is not done again.
func TestKeysOfDecisions(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.writer(), &ears{}, nil)
	g, other := w.open(nil), w.open(nil)
	m := vote("a", approve)
	m.Idempotency = &msg.Idempotency{Digest: [32]byte{7}, Fingerprint: [32]byte{8}, Status: 200}
	if _, err := g.ask(n, m); err != nil {
		t.Fatal(err)
	}
	var sealed []byte
	if err := w.pool.QueryRow(t.Context(), `SELECT response FROM idempotency WHERE digest = $1 AND fingerprint = $2 AND status = 200`, m.Idempotency.Digest[:], m.Idempotency.Fingerprint[:]).Scan(&sealed); err != nil {
		t.Fatal(err)
	}
	plain, err := w.vault.Open(vault.AAD{Tenant: w.tenant, Table: "idempotency", Row: fmt.Sprintf("%x", m.Idempotency.Digest), Column: "response"}, sealed)
	if err != nil || string(plain) != `{"status":"approved","approvals_so_far":1}` {
		t.Errorf("%s, %v", plain, err)
	}
	if _, err := other.ask(n, m); !errors.Is(err, journal.ErrReplay) {
		t.Errorf("the key again: %v", err)
	}
	if got := other.row(`a.status, a.version`) + other.audited() + other.timers(); got != "pending|1approval expire" {
		t.Errorf("the key again did something: %s", got)
	}
	late := w.open(func(o *terms) { o.expires = time.Now().Add(-time.Second) })
	m.Idempotency = &msg.Idempotency{Digest: [32]byte{9}, Status: 200}
	if _, err := late.ask(n, m); !isCode(err, problem.CodeAlreadyDecided) {
		t.Errorf("%v", err)
	}
	w.is("1", `SELECT count(*)::text FROM idempotency`) // no refusal is kept
}

// passed wraps a writer: before its next commit something else happens.
type passed struct {
	durable.Writer
	mu sync.Mutex
	by func()
}

func (p *passed) next(by func()) { p.mu.Lock(); defer p.mu.Unlock(); p.by = by }

func (p *passed) Do(ctx context.Context, w *journal.Commit) error {
	p.mu.Lock()
	by := p.by
	p.by = nil
	p.mu.Unlock()
	if by != nil {
		by()
	}
	return p.Writer.Do(ctx, w)
}

// A decision that is sent again because its owner was lost: to the owner that has
// committed it, to the next one, and to one that decides on it at the same time.
func TestADecisionIsSentAgain(t *testing.T) {
	w := newWorld(t)
	slow := &passed{Writer: w.writer()}
	e := &ears{}
	one, two := w.node(w.writer(), e, nil), w.node(slow, e, nil)
	keyed := func(m msg.Decide) msg.Decide {
		m.Idempotency = &msg.Idempotency{Digest: sha256.Sum256(m.Op.UUID[:]), Fingerprint: [32]byte{1}, Status: 200}
		return m
	}
	plain := func(m msg.Decide) msg.Decide { return m }
	for _, row := range []struct {
		name     string
		required int
		action   lifecycle.Action
		as       func(msg.Decide) msg.Decide
		want     msg.Decided
	}{
		{"the last one", 1, approve, plain, msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 1}},
		{"the last one, with a key", 1, approve, keyed, msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 1}},
		{"one of two", 2, edit, plain, msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"one of two, with a key", 2, edit, keyed, msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"a rejection", 1, reject, plain, msg.Decided{Status: lifecycle.ApprovalRejected}},
		{"a rejection, with a key", 1, reject, keyed, msg.Decided{Status: lifecycle.ApprovalRejected}},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := w.open(func(o *terms) { o.required = row.required })
			m := vote("a", row.action)
			m.Op = id.OpID{UUID: id.New(g.a.Shard())}
			m = row.as(m)
			sent := func(n *cluster.Node) {
				t.Helper()
				if got, err := g.ask(n, m); err != nil || got != any(row.want) {
					t.Errorf("%v, %v", got, err)
				}
			}
			slow.next(func() { sent(one) }) // two has read the row by then
			sent(two)
			sent(one)
			sent(two)
			if got := g.row(`a.version, json_array_length(decisions)`); got != "2|1" || strings.Count(g.audited(), "approval.decide") != 1 {
				t.Errorf("%s, audit %s", got, g.audited())
			}
			if n := strings.Count(g.reported(), "approval.decided"); (n == 1) != row.want.Status.Terminal() || n > 1 {
				t.Errorf("reported %s", g.reported())
			}
		})
	}
	g := w.open(nil)
	m := keyed(vote("a", approve))
	m.Idempotency.Digest = [32]byte{9}
	other := m
	other.Op = newOp()
	slow.next(func() { // another request with the same key
		if _, err := w.open(nil).ask(one, m); err != nil {
			t.Error(err)
		}
	})
	if got, err := g.ask(two, other); !errors.Is(err, journal.ErrReplay) {
		t.Errorf("another one with the key: %v, %v", got, err)
	}
}

// crashing wraps a writer: it lets commits be lost, or their answers.
type crashing struct {
	durable.Writer
	mu      sync.Mutex
	next    []string
	ended   bool
	commits int
}

func (c *crashing) Do(ctx context.Context, w *journal.Commit) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return journal.ErrFenced
	}
	crash := ""
	if len(c.next) > 0 {
		crash, c.next = c.next[0], c.next[1:]
	}
	if crash == "before" {
		return journal.ErrUnavailable
	}
	err := c.Writer.Do(ctx, w)
	if err == nil && len(w.Audit) > 0 {
		c.commits++
	}
	if err == nil && crash == "after" {
		return journal.ErrUnsettled
	}
	return err
}

// TestCrashLaw: over random histories on the real host and the real table, in
// which memory is lost before and after any commit,
//
//   - the row moved by committed decisions only, version by version;
//   - every acknowledged decision is in the ledger, once, and none that was refused;
//   - a decision of which nobody knew whether it was taken is answered when it comes
//     again, unless it was not and another one was first;
//   - there is one audit row for each entry;
//   - what an acknowledgement said is not taken back, and a terminal status neither;
//   - a pending approval has its timer to expire, a terminal one has its run's.
func TestCrashLaw(t *testing.T) {
	w := newWorld(t)
	j := w.writer()
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		var (
			required = rapid.IntRange(1, 4).Draw(rt, "required")
			g        = w.open(func(o *terms) { o.required = required })
			c        *crashing
			n        *cluster.Node
			total    int
			acked    = map[string]msg.Decided{}
			refused  = map[id.OpID]bool{}
			asked    = map[string]bool{}
			unknown  []msg.Decide
		)
		boot := func() {
			c = &crashing{Writer: j}
			n = w.node(c, &ears{}, nil)
		}
		kill := func() {
			c.mu.Lock()
			c.ended = true
			total += c.commits
			c.mu.Unlock()
			testkit.Stop(t, n.Stop)
		}
		boot()
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch step := rapid.SampledFrom([]string{"decide", "decide", "decide", "decide", "again", "again", "kill", "before", "after", "expire"}).Draw(rt, "step"); step {
			case "decide", "again":
				who := fmt.Sprint("user:", rapid.IntRange(0, 5).Draw(rt, "who"))
				m := vote(who, rapid.SampledFrom([]lifecycle.Action{approve, approve, approve, edit, reject, respond}).Draw(rt, "action"))
				m.Op = newOp()
				if step == "again" {
					if len(unknown) == 0 {
						continue
					}
					m, unknown = unknown[len(unknown)-1], unknown[:len(unknown)-1]
					who = m.Principal
					seen[step]++
				}
				asked[who] = true
				v, err := g.ask(n, m)
				switch {
				case err == nil:
					if _, again := acked[who]; again {
						rt.Fatalf("%s was acknowledged twice", who)
					}
					acked[who] = v.(msg.Decided)
				case isCode(err, problem.CodeUnavailable): // it may have happened
					seen["unavailable"]++
					unknown = append(unknown, m)
				case !isCode(err, problem.CodeAlreadyDecided):
					rt.Fatal(err)
				default:
					refused[m.Op] = true
				}
			case "kill":
				kill()
				boot()
				seen[step]++
			case "before", "after":
				c.mu.Lock()
				c.next = append(c.next, step)
				c.mu.Unlock()
			case "expire": // early: it is set again
				if _, err := g.ask(n, durable.TimerDue{Name: msg.TimerExpire}); err != nil && !isCode(err, problem.CodeUnavailable) {
					rt.Fatal(err)
				}
			}
		}
		kill()
		r, err := engine.New(w.pool).Approval(context.Background(), w.tenant, g.a)
		if err != nil {
			rt.Fatal(err)
		}
		ledger, err := decodeLedger(r.Decisions)
		if err != nil {
			rt.Fatal(err)
		}
		seen[string(r.Status)]++
		if r.Version != int64(1+total) || len(ledger) != total || strings.Count(g.audited(), "approval.decide") != total {
			rt.Fatalf("version %d, %d entries, audit %s, %d commits", r.Version, len(ledger), g.audited(), total)
		}
		found := map[string]bool{}
		for i, e := range ledger {
			if found[e.Principal] || !asked[e.Principal] || refused[e.Op] {
				rt.Fatalf("%+v", ledger)
			}
			found[e.Principal] = true
			if d, ok := acked[e.Principal]; ok {
				if last := i == len(ledger)-1; d.Status.Terminal() && (!last || d.Status != r.Status) || !d.Status.Terminal() && last && r.Status.Terminal() {
					rt.Fatalf("%s was told %+v, the approval is %s, ledger %+v", e.Principal, d, r.Status, ledger)
				}
			}
		}
		for who := range acked {
			if !found[who] {
				rt.Fatalf("the acknowledged decision of %s is lost", who)
			}
		}
		want := "approval expire"
		if r.Status.Terminal() {
			want = "run look"
		}
		if got := g.timers(); got != want {
			rt.Fatalf("a %s approval has the timers %s", r.Status, got)
		}
	})
	for _, want := range []string{"unavailable", "again", "kill", "pending", "approved", "edited", "rejected", "responded"} {
		if seen[want] == 0 {
			t.Errorf("no history had %q: void", want)
		}
	}
}

// The ledger shows edited arguments as the toolbox shows them for the agent or the workflow that
// makes the call. The arguments to call are those that were sent.
func TestTheCredentialsOfAnEditAreHidden(t *testing.T) {
	w := newWorld(t)
	var by []tool.Caller
	var fails error
	w.secrets = func(caller tool.Caller, args json.RawMessage) (json.RawMessage, error) {
		by = append(by, caller)
		return bytes.ReplaceAll(args, []byte("canary"), []byte("[redacted]")), fails
	}
	n := w.node(w.writer(), &ears{}, nil)
	edited := vote("user:1", edit)
	edited.EditedArgs = json.RawMessage(`{"order":8,"note":"the canary"}`)
	for _, c := range []string{"an agent", "a workflow"} {
		g := w.open(nil)
		if c == "a workflow" {
			of := id.NewAnywhere()
			w.exec(`INSERT INTO workflows (tenant_id, id, slug, name, latest_version) VALUES ($1, $2, 'w', 'W', 1)`, w.tenant, of)
			w.exec(`UPDATE approvals SET agent_id = NULL WHERE id = $1`, g.a)
			w.exec(`UPDATE runs SET agent_id = NULL, agent_version = NULL, workflow_id = $2 WHERE id = $1`, g.run, of)
		}
		fails, by = problem.Unavailable("", 0), nil
		if _, err := g.ask(n, edited); !isCode(err, problem.CodeUnavailable) {
			t.Errorf("%s: %v", c, err)
		}
		fails, by = nil, nil
		if _, err := g.ask(n, edited); err != nil {
			t.Fatal(c, err)
		}
		if got := g.row(`a.decisions->0->>'edited_args'`); got != `{"order":8,"note":"the [redacted]"}` {
			t.Errorf("%s: shown %s", c, got)
		}
		r, err := engine.New(w.pool).Approval(t.Context(), w.tenant, g.a)
		if err != nil || r.Digest != tool.Digest(json.RawMessage(`{"order":8,"note":"the canary","idempotency_key":"k1"}`)) {
			t.Errorf("%s: %v, the arguments to call are others", c, err)
		}
		if len(by) != 1 || by[0].Tenant != w.tenant || (by[0].Workflow == nil) != (c == "an agent") || (by[0].Workflow != nil && *by[0].Workflow != *r.Workflow) ||
			by[0].Workflow == nil && by[0].Agent != *r.Agent {
			t.Errorf("%s: asked as %+v", c, by)
		}
	}
}
