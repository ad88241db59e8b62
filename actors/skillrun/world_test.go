package skillrun_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/durable"
	"agentsvc/actors/skillrun"
	"agentsvc/actors/sweep"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const definition = `{"start_url":"https://pay.test/","target_hosts":["pay.test"],
	"steps":[{"id":"amount","kind":"type","target":{"selector":"#amount"},"param":"amount"},{"id":"go","kind":"click","target":{"selector":"#go"}}],
	"params":[{"name":"amount","type":"integer","required":true,"max":100}],"commit_step_id":"go",
	"compensation":[{"id":"undo","kind":"click","target":{"selector":"#undo"}}]}`

// site is a scripted browser: it fills forms as told, and counts clicks by run.
type site struct {
	none     atomic.Bool // there is no browser
	moved    atomic.Bool // the page is another one than before
	stays    atomic.Bool // the page is that of the order 1001, whatever is asked
	denies   atomic.Bool // another value is read back
	masks    atomic.Bool // the value holds a secret, so that it is shown without it
	lost     atomic.Bool // the click is not answered
	fails    atomic.Bool // a check fails
	missing  atomic.Bool // a selector is not found
	broken   atomic.Bool // the browser cannot start
	secret   atomic.Bool // a secret is typed
	onJob    func(ctx context.Context, j *skill.Job)
	onFill   func(ctx context.Context, n int)
	onClick  func(ctx context.Context)
	onVerify func(ctx context.Context)
	onUndo   func(ctx context.Context)
	ledger   *pgxpool.Pool // clicks of all processes are noted there

	mu     sync.Mutex // guards the fields below
	fills  map[id.SkillRunID]int
	clicks map[id.SkillRunID][]string // the values committed
	undone map[id.SkillRunID]int
	open   int
}

func newSite() *site {
	return &site{fills: map[id.SkillRunID]int{}, clicks: map[id.SkillRunID][]string{}, undone: map[id.SkillRunID]int{}}
}

func (s *site) Available() error {
	if s.none.Load() {
		return errors.New("none")
	}
	return nil
}

func fault(code skill.Code) *skill.Report {
	return &skill.Report{Event: skill.Fails, Fault: &skill.Fault{Code: code, StepID: "amount", Selectors: []string{"#amount"}}}
}

func (s *site) Prepare(ctx context.Context, j *skill.Job) (skillrun.Session, *skill.Report, error) {
	s.mu.Lock()
	s.fills[j.Run]++
	n := s.fills[j.Run]
	s.mu.Unlock()
	if s.onJob != nil {
		s.onJob(ctx, j)
	}
	if s.onFill != nil {
		s.onFill(ctx, n)
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case s.broken.Load():
		return nil, nil, errors.New("no process")
	case s.missing.Load():
		return nil, fault(skill.CodeNotFound), nil
	}
	if s.secret.Load() {
		if v, err := j.Open("password"); err != nil || v != "hunter2" {
			return nil, nil, fmt.Errorf("%q, %w", v, err)
		}
	}
	shot, err := j.Keep(ctx, "go", []byte("jpeg"))
	if err != nil {
		return nil, nil, err
	}
	amount, _ := j.Values.Text("amount")
	holds := amount
	if n > 1 && s.denies.Load() {
		holds = "0"
	}
	page := skill.Page{URL: "https://pay.test/form", Title: "Pay", Shot: shot, Values: map[string]string{"amount": holds}}
	if order, there := j.Values.Text("order"); there {
		if s.stays.Load() {
			order = "1001"
		}
		page.URL = "https://pay.test/orders/" + url.PathEscape(order) + "/form"
	}
	if n > 1 && s.moved.Load() {
		page.URL = "https://pay.test/elsewhere"
	}
	if s.masks.Load() {
		page.Values["amount"] = redact.Mark
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return &session{s: s, j: j, amount: amount}, &skill.Report{Event: skill.Landed, Page: page, Read: map[string]string{"amount": holds}, Steps: []skill.StepResult{{ID: "amount", Kind: skill.Type, Status: skill.StepOK, Shot: shot}}, Shots: 1}, nil
}

func (s *site) Read(context.Context, *skill.Job) (*skill.Report, error) {
	if s.fails.Load() {
		return &skill.Report{Event: skill.ChecksFailed, Fault: &skill.Fault{Code: skill.CodeVerificationFailed}}, nil
	}
	return &skill.Report{Event: skill.Verified, Result: json.RawMessage(`{"balance":"7"}`)}, nil
}

func (s *site) Compensate(ctx context.Context, j *skill.Job) (*skill.Report, error) {
	if s.secret.Load() { // a fresh session signs in again
		if v, err := j.Open("password"); err != nil || v != "hunter2" {
			return nil, fmt.Errorf("%q, %w", v, err)
		}
	}
	if _, there := j.Values.Text("amount"); !there { // a sign-in may type a parameter
		return nil, errors.New("the values are missing")
	}
	if _, err := j.Keep(ctx, "enter", []byte("jpeg")); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.undone[j.Run]++
	s.mu.Unlock()
	if s.onUndo != nil {
		s.onUndo(ctx)
	}
	return &skill.Report{Event: skill.Compensated, Steps: []skill.StepResult{{ID: "undo", Status: skill.StepOK}}}, nil
}

func (s *site) clicked(r id.SkillRunID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.clicks[r])
}

func (s *site) pages() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

type session struct {
	s      *site
	j      *skill.Job
	amount string
	once   sync.Once
}

func (p *session) Commit(ctx context.Context) *skill.Report {
	p.s.mu.Lock()
	p.s.clicks[p.j.Run] = append(p.s.clicks[p.j.Run], p.amount)
	p.s.mu.Unlock()
	if p.s.ledger != nil {
		if _, err := p.s.ledger.Exec(context.Background(), `INSERT INTO clicks VALUES ($1, $2)`, p.j.Run, p.amount); err != nil {
			panic(err)
		}
	}
	if p.s.onClick != nil {
		p.s.onClick(ctx)
	}
	if p.s.lost.Load() {
		return &skill.Report{Event: skill.Lost}
	}
	return &skill.Report{Event: skill.Clicked, Steps: []skill.StepResult{{ID: "go", Kind: skill.Click, Status: skill.StepOK}}}
}

func (p *session) Verify(ctx context.Context) *skill.Report {
	if p.s.onVerify != nil {
		p.s.onVerify(ctx)
	}
	if p.s.fails.Load() {
		return &skill.Report{Event: skill.ChecksFailed, Fault: &skill.Fault{Code: skill.CodeVerificationFailed}, Checks: []skill.CheckResult{{Kind: skill.TextPresent, Expected: "Paid"}}}
	}
	return &skill.Report{Event: skill.Verified, Result: json.RawMessage(`{"receipt":"R1"}`), Checks: []skill.CheckResult{{Kind: skill.TextPresent, OK: true, Expected: "Paid", Actual: "Paid"}}}
}

func (p *session) Close() {
	p.once.Do(func() {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		p.s.open--
	})
}

// world is a database with a tenant, an agent whose run waits for an approval, and a skill.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	pool   *pgxpool.Pool
	rows   *store.SkillRuns
	keys   *vault.Vault
	tenant id.TenantID
	agent  id.AgentID
	of     id.SkillID
	// workflow is that of flowRun.
	workflow id.WorkflowID

	*desk
}

// desk is what the world notes.
type desk struct {
	revoked atomic.Bool
	opened  atomic.Int64 // secrets

	mu    sync.Mutex // guards files
	files map[string]int
}

// in returns the world for a subtest.
func (w *world) in(t testing.TB) *world {
	of := *w
	of.t = t
	return &of
}

func open(t testing.TB, db *pgtest.DB) *world {
	pool := db.System(t)
	return &world{t: t, db: db, pool: pool, rows: store.NewSkillRuns(pool), keys: vault.New(vault.NewSecret32([32]byte{1})), desk: &desk{files: map[string]int{}}}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := open(t, pgtest.New(t))
	w.tenant = pgtest.Tenant(t, w.pool)
	w.agent = pgtest.Agent(t, w.pool, w.tenant)
	w.of = w.teach(definition, `{"approval":"at_commit_point","risk_level":"high","approver_role":"admin","sla_minutes":60,"required_approvals":1,"allow_edit_params":true}`)
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.com/', '{browser_skill.run.finished}', '')`, w.tenant, id.NewAnywhere())
	return w
}

func (w *world) teach(definition, policy string) id.SkillID {
	w.t.Helper()
	of := id.SkillID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO browser_skills (tenant_id, id, slug, name, definition, policy) VALUES ($1, $2, $2::uuid::text, 'Pay', $3, $4)`, w.tenant, of, definition, policy)
	return of
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) text(sql string, args ...any) (s string) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&s); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// Open implements skillrun.Secrets.
func (w *world) Open(_ context.Context, _ id.TenantID, _ id.SkillID, _ int, _ id.SkillRunID, ref string) (string, error) {
	w.opened.Add(1)
	if ref != "password" {
		return "", errors.New("another secret")
	}
	return "hunter2", nil
}

// Keep implements skillrun.Files.
func (w *world) Keep(_ context.Context, t id.TenantID, r id.SkillRunID, step string, _ []byte) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := store.SkillShot(t, r, step)
	w.files[key]++
	return key, nil
}

// SkillGranted implements skillrun.Grants.
func (w *world) SkillGranted(_ context.Context, by tool.Caller, _ *store.Skill, _ skill.Op) (bool, error) {
	known := by.Workflow == nil && !by.Agent.IsZero() || by.Workflow != nil && *by.Workflow == w.workflow && by.Agent.IsZero()
	return known && !w.revoked.Load(), nil
}

// node starts a node with a writer of its own. Every node owns all shards: two activations of one
// run may live at once.
func (w *world) node(s *site, hosts ...durable.Config) *cluster.Node {
	w.t.Helper()
	host := durable.Config{}
	if len(hosts) > 0 {
		host = hosts[0]
	}
	host.Log = zerolog.Nop()
	member := pgtest.Member(w.t, w.pool)
	j := journaltest.Writer(w.t, w.db, journal.Config{Member: member, Tables: slices.Concat(engine.Tables, skillrun.Traits.Tables), Log: zerolog.Nop()})
	n := cluster.New(cluster.Config{Member: member, Log: zerolog.Nop()})
	skillrun.Register(n, j, skillrun.Config{Store: w.rows, Browser: s, Secrets: w, Files: w, Grants: w, Vault: w.keys,
		Hears: func(id.TenantID) bool { return true }, Log: zerolog.Nop()}, host)
	return testkit.Start(w.t, n)
}

func (w *world) sweeps(n *cluster.Node) {
	w.t.Helper()
	s := sweep.New(sweep.Config{Node: n, Rows: feed.NewSweep(w.pool), Kinds: []durable.Traits{skillrun.Traits}, Member: n.Member(),
		Every: 10 * time.Millisecond, RetainEvery: 10 * time.Millisecond, Log: zerolog.Nop()})
	if err := s.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Stop)
}

// call is a call of the skill's tool by a run of the agent.
type call struct {
	w        *world
	n        *cluster.Node
	run      id.RunID
	start    msg.StartSkill
	approval id.ApprovalID
	args     json.RawMessage
	step     int // of the run; 0: 1
}

// agentRun makes a run of the agent.
func (w *world) agentRun() id.RunID {
	w.t.Helper()
	r := id.RunID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, input, origin_kind, origin_id, created_at, steps, seq)
		VALUES ($1, $2, 'waiting_approval', $3, 1, '{"text":"x"}', 'user', $1, now(), 2, 5)`, w.tenant, r, w.agent)
	w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 1, 'tool', 't', 'waiting', 3, now())`, w.tenant, r)
	return r
}

// flowRun makes a run of the workflow.
func (w *world) flowRun() id.RunID {
	w.t.Helper()
	r := id.RunID{UUID: id.NewAnywhere()}
	if w.workflow.IsZero() {
		w.workflow = id.WorkflowID{UUID: id.NewAnywhere()}
	}
	w.exec(`INSERT INTO runs (tenant_id, id, status, workflow_id, input, origin_kind, origin_id, created_at, steps, seq)
		VALUES ($1, $2, 'waiting_approval', $3, 'null', 'user', $1, now(), 2, 5)`, w.tenant, r, w.workflow)
	w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 1, 'tool', 't', 'waiting', 3, now())`, w.tenant, r)
	return r
}

// calls makes a call with an amount. The plan is that of at_commit_point unless another is given.
func (w *world) calls(n *cluster.Node, r id.RunID, amount int, plan ...skill.Plan) *call {
	w.t.Helper()
	c := &call{w: w, n: n, run: r, approval: id.ApprovalID{UUID: id.New(r.Shard())}, args: fmt.Appendf(nil, `{"amount":%d,"reason":"because"}`, amount)}
	p := skill.Plan{Mode: skill.Run, Gate: skill.GateAtCommit, Commits: true, Compensates: true}
	if len(plan) > 0 {
		p = plan[0]
	}
	d, err := skill.Load(json.RawMessage(definition))
	if err != nil {
		w.t.Fatal(err)
	}
	b, faults, err := d.Bind(w.t.Context(), skill.ForRun, c.args)
	if err != nil || len(faults) > 0 {
		w.t.Fatal(faults, err)
	}
	c.start = msg.StartSkill{Run: id.SkillRunID{UUID: id.New(r.Shard())}, Skill: w.of, Slug: "pay", Taught: 1, Plan: p, Key: skill.Key(w.tenant, r, "pay", skill.OpRun, b.Values),
		Values: b.Values.JSON(), Reason: b.Reason, AgentRun: &c.run, Agent: &w.agent, Approval: &c.approval, By: msg.By{Actor: "system"}}
	return c
}

func (c *call) id() id.SkillRunID { return c.start.Run }

func (c *call) address() cluster.Address {
	return cluster.Address{Kind: msg.KindSkillRun, Tenant: c.w.tenant, ID: c.start.Run.UUID}
}

func (c *call) ask(m any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return c.n.Ask(ctx, c.address(), m)
}

func (c *call) must(m any) msg.SkillStands {
	c.w.t.Helper()
	v, err := c.ask(m)
	if err != nil {
		c.w.t.Fatalf("%T: %v", m, err)
	}
	return v.(msg.SkillStands)
}

// begins starts the run.
func (c *call) begins() *call {
	c.w.t.Helper()
	c.must(c.start)
	return c
}

// row returns status and code, and whether the run has ended.
func (c *call) row() string {
	return c.w.text(`SELECT status || coalesce(' ' || code, '') || CASE WHEN finished_at IS NULL THEN '' ELSE ', ended' END || CASE WHEN held THEN ', held' ELSE '' END
		FROM browser_skill_runs WHERE tenant_id = $1 AND id = $2`, c.w.tenant, c.start.Run)
}

func (c *call) becomes(want string) {
	c.w.t.Helper()
	var got string
	testkit.Eventually(c.w.t, "it is "+want, func() bool { got = c.row(); return got == want || strings.Contains(got, ", ended") })
	if got != want {
		c.w.t.Fatalf("it is %q, want %q; fault %s", got, want, c.w.text(`SELECT fault FROM browser_skill_runs WHERE id = $1`, c.start.Run))
	}
}

// prepared starts the run and waits until people decide on it, with its approval open.
func (c *call) prepared() *call {
	c.w.t.Helper()
	c.begins().becomes("prepared, held")
	c.asked(c.args)
	return c
}

func (c *call) asked(args json.RawMessage) {
	c.w.t.Helper()
	digest := tool.Digest(args)
	c.w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, digest, policy, on_timeout, expires_at, created_at, updated_at, browser_skill_run_id)
		VALUES ($1, $2, $3, $6, 'low', 'admin', 1, 't', '{}', '\x03', $4, '{}', 'reject', now() + interval '1 hour', now(), now(), $5)
		ON CONFLICT (run_id, step_idx) DO UPDATE SET digest = excluded.digest`, c.w.tenant, c.approval, c.run, digest[:], c.start.Run, max(1, c.step))
}

// decides writes a decision as the approval's actor does.
func (c *call) decides(status string, args json.RawMessage) {
	c.w.t.Helper()
	action := map[string]string{"approved": "approve", "edited": "edit", "rejected": "reject", "responded": "respond", "expired": "expire", "cancelled": "cancel"}[status]
	digest := tool.Digest(args)
	c.w.exec(`UPDATE approvals SET status = $2::text, decision = $3, decided_at = now(), approvals_so_far = CASE WHEN $2::text IN ('approved', 'edited') THEN 1 ELSE 0 END,
		edited = CASE WHEN $2::text = 'edited' THEN '\x04'::bytea END, digest = $4 WHERE id = $1`, c.approval, status, action, digest[:])
	if status != "approved" && status != "edited" {
		c.w.exec(`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) VALUES ($1, 'skillrun', $2, 'look', now())`, c.w.tenant, c.start.Run)
	}
}

func (c *call) commit() msg.CommitSkill { return msg.CommitSkill{Approval: c.approval, Args: c.args} }

// approves decides on a prepared run, and goes on.
func (c *call) approves() *call {
	c.w.t.Helper()
	c.decides("approved", c.args)
	c.must(c.commit())
	return c
}

func (c *call) audited() string {
	return c.w.text(`SELECT string_agg(replace(action, 'browser_skill.', ''), ' ' ORDER BY at, id) FROM audit_log WHERE target_id = $1`, c.start.Run)
}
