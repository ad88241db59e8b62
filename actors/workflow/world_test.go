package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/approval"
	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/sweep"
	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/event"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/model/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait.
const patience = time.Minute

// manifest is that of the agent which answers with what its input says.
const manifest = `{"model": {"provider": "simulated", "name": "sim"}, "system": "x"}`

// world is a database, and a node that hosts workflow runs and agent runs with their sweep.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	pool   *pgxpool.Pool
	tenant id.TenantID
	agent  id.AgentID
	vault  *vault.Vault
	member id.MemberID
	writer *journal.Writer

	mu      sync.Mutex // guards the fields below
	seen    map[id.RunID][]*event.Frame
	asked   map[string]int // texts that models were asked, and how often
	silent  bool           // models and tools do not answer
	turns   int            // models answer so many turns, and then do not; 0: all
	refuses bool           // calls are refused before they are sent
	called  map[string]int // calls that were sent, by tool, run and step
	held    chan struct{}  // until it is closed no call is answered; nil: it is

	planning func(context.Context) // happens while a call is planned; nil: nothing

	tags *tagged // the writer of the node
	node *cluster.Node
	stop func()
}

// tagged is the writer of one node. At a commit of choice the node is killed: before the rows
// are written, or after.
type tagged struct {
	durable.Writer
	mu     sync.Mutex
	n      int
	at     int // the commit at which the process ends; 0: none
	after  bool
	killed chan struct{} // closed then
	over   bool

	holds   id.RunID      // a run whose commits wait; zero: none
	held    chan struct{} // closed at the first of them
	release chan struct{} // closed when they go on
}

func (w *tagged) Do(ctx context.Context, c *journal.Commit) error {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return journal.ErrFenced
	}
	w.n++
	here := w.n == w.at
	if here {
		w.over = true
		close(w.killed)
	}
	after := w.after
	holds := slices.ContainsFunc(c.Rows, func(r journal.Row) bool { u, ok := r.(*engine.RunUpdate); return ok && u.ID == w.holds })
	w.mu.Unlock()
	if holds {
		close(w.held)
		<-w.release
	}
	if here && !after {
		return journal.ErrFenced
	}
	err := w.Writer.Do(ctx, c)
	if here && err == nil {
		return journal.ErrFenced
	}
	return err
}

func (w *tagged) commits() int { w.mu.Lock(); defer w.mu.Unlock(); return w.n }

func newWorld(t testing.TB) *world {
	t.Helper()
	db := pgtest.New(t)
	w := &world{
		t: t, db: db, pool: db.System(t), tenant: id.TenantID{UUID: id.NewAnywhere()}, agent: id.AgentID{UUID: id.NewAnywhere()},
		vault: vault.New(vault.NewSecret32([32]byte{1})),
		seen:  map[id.RunID][]*event.Frame{}, asked: map[string]int{}, called: map[string]int{},
	}
	w.exec(`INSERT INTO tenants (id, name) VALUES ($1, 'T')`, w.tenant)
	w.exec(`INSERT INTO agents (tenant_id, id, slug, name, published_version, latest_version) VALUES ($1, $2, 'a', 'A', 1, 1)`, w.tenant, w.agent)
	w.exec(`INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) VALUES ($1, $2, 1, 'published', $3)`, w.tenant, w.agent, manifest)
	w.member = pgtest.Member(t, w.pool)
	w.writer = journaltest.Writer(t, db, journal.Config{Member: w.member, Tables: workflow.Traits.Tables})
	w.start(0, false)
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) ends(stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := stop(ctx); err != nil {
		w.t.Error(err)
	}
}

// start begins a node with nothing in memory. It is killed at a commit, counted from 1; 0: it is
// not.
func (w *world) start(at int, after bool) {
	w.t.Helper()
	w.tags = &tagged{Writer: w.writer, at: at, after: after, killed: make(chan struct{})}
	w.node = cluster.New(cluster.Config{Member: w.member})
	w.host(w.node, w.tags, workflow.Config{})
	if err := w.node.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	node, sweeps := w.node, w.sweep(w.node)
	w.stop = func() {
		sweeps()
		w.ends(node.Stop)
	}
}

// host registers all kinds with a node.
func (w *world) host(n *cluster.Node, writer durable.Writer, workflows workflow.Config) {
	store := engine.New(w.pool)
	workflows.Store, workflows.Live, workflows.Sealer, workflows.Actors, workflows.Published, workflows.Tools, workflows.Ready, workflows.Log =
		store, w, w.vault, n, w.published, (*toolbox)(w), run.Kept{Ready: true}.Encode(), zerolog.Nop()
	agents := run.Config{Store: store, Models: w, Live: w, Sealer: w.vault, Tell: n, Holder: workflows.Holder, Hears: workflows.Hears, Log: zerolog.Nop()}
	if workflows.Slots != nil {
		agents.Slots, agents.TakeSlot = workflows.Slots, workflows.TakeSlot
	}
	durable.Register(n, writer, run.New(agents), durable.Config{Log: zerolog.Nop()})
	durable.Register(n, writer, workflow.New(workflows), durable.Config{Log: zerolog.Nop()})
	durable.Register(n, writer, approval.New(approval.Config{Store: store, Vault: w.vault, Tell: n, Hears: workflows.Hears, Skills: edits{}, Log: zerolog.Nop()}), durable.Config{Log: zerolog.Nop()})
}

// sweep starts the sweep of a node, and returns what stops it.
func (w *world) sweep(n *cluster.Node) (stop func()) {
	w.t.Helper()
	work, found := *run.Traits.Work, *workflow.Traits.Work
	agents, workflows := run.Traits, workflow.Traits
	work.Every, found.Every = 20*time.Millisecond, 20*time.Millisecond
	agents.Work, workflows.Work = &work, &found
	s := sweep.New(sweep.Config{Node: n, Rows: feed.NewSweep(w.pool), Kinds: []durable.Traits{agents, workflows, approval.Traits}, Member: w.member, Every: 10 * time.Millisecond, Log: zerolog.Nop()})
	if err := s.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	return s.Stop
}

// restart is a crash as far as actors can tell: memory is gone, and effects end.
func (w *world) restart(at int, after bool) {
	w.t.Helper()
	w.tags.mu.Lock()
	w.tags.over = true
	w.tags.mu.Unlock()
	w.stop()
	w.start(at, after)
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) text(sql string, args ...any) (s string) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) published(ctx context.Context, t id.TenantID, a id.AgentID) (version int, err error) {
	err = w.pool.QueryRow(ctx, `SELECT coalesce((SELECT published_version FROM agents WHERE tenant_id = $1 AND id = $2 AND archived_at IS NULL), 0)`, t, a).Scan(&version)
	return version, err
}

// Stream is the model: it does what its input says, and counts how often it is asked.
func (w *world) Stream(ctx context.Context, _ id.TenantID, _ agent.Model, req *model.Request, sink model.Sink) (*model.Result, model.Price, error) {
	last := req.Messages[len(req.Messages)-1].Text
	w.mu.Lock()
	w.asked[last]++
	silent := w.silent || w.turns < 0
	if w.turns > 0 {
		if w.turns--; w.turns == 0 {
			w.turns = -1
		}
	}
	w.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, model.Price{}, &model.Error{Kind: model.Cancelled}
	}
	r, err := simulated.Client{}.Stream(ctx, req, sink)
	return r, model.Price{InputPerMTok: 1, OutputPerMTok: 1}, err
}

// Live records what readers of a run see.
func (w *world) PublishFunc(_ id.TenantID, r id.RunID, _ int64, _ bool, frames func() []*event.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[r] = append(w.seen[r], frames()...)
}
func (w *world) Abandon(id.TenantID, id.RunID)                            {}
func (w *world) Begin(id.TenantID, id.RunID, int64, int, bool) model.Sink { return quiet{} }

type quiet struct{}

func (quiet) Text(string)     {}
func (quiet) Thinking(string) {}

// begin accepts a run of a definition. AGENT stands for the id of the agent.
func (w *world) begin(definition, input, variables string) id.RunID {
	w.t.Helper()
	definition = strings.ReplaceAll(definition, "AGENT", w.agent.String())
	if _, _, err := flow.Parse(w.t.Context(), "definition", json.RawMessage(definition)); err != nil {
		w.t.Fatalf("the definition: %v", err)
	}
	r, start := w.started(definition, input, variables)
	w.ask(r, start)
	return r
}

// started makes a version of a workflow and the message that starts a run of it.
func (w *world) started(definition, input, variables string) (id.RunID, msg.StartWorkflow) {
	w.t.Helper()
	of := id.WorkflowID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO workflows (tenant_id, id, slug, name, latest_version) VALUES ($1, $2, $3, 'W', 1)`, w.tenant, of, of.String())
	w.exec(`INSERT INTO workflow_versions (tenant_id, workflow_id, version, status, definition) VALUES ($1, $2, 1, 'draft', $3)`, w.tenant, of, definition)
	r := id.RunID{UUID: id.NewAnywhere()}
	start := msg.StartWorkflow{Run: r, Workflow: of, Version: 1, Input: json.RawMessage(input), Origin: msg.Origin{Kind: lifecycle.OriginAPIKey, ID: id.NewAnywhere()}, By: msg.By{Actor: "apikey:x"}}
	if variables != "" {
		start.Variables = json.RawMessage(variables)
	}
	return r, start
}

func (w *world) killed() bool {
	select {
	case <-w.tags.killed:
		return true
	default:
		return false
	}
}

// order gives an order until it is answered. A node that is killed is replaced.
func (w *world) order(r id.RunID, m any) {
	w.t.Helper()
	for {
		_, err := w.try(r, m)
		switch {
		case err == nil:
			return
		case !w.killed():
			w.t.Fatalf("order %T: %v", m, err)
		}
		w.restart(0, false)
	}
}

func (w *world) address(r id.RunID) cluster.Address {
	return cluster.Address{Kind: msg.KindWorkflow, Tenant: w.tenant, ID: r.UUID}
}

// ask asks until there is an answer: an asker of a node that dies asks again.
func (w *world) ask(r id.RunID, m any) any {
	w.t.Helper()
	v, err := w.try(r, m)
	if err != nil {
		w.t.Fatalf("ask %T: %v", m, err)
	}
	return v
}

func (w *world) try(r id.RunID, m any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return w.node.Ask(ctx, w.address(r), m)
}

func (w *world) inject(r id.RunID, name, payload, eventID string) {
	w.t.Helper()
	w.ask(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, ID: eventID, Name: name, Payload: json.RawMessage(payload)})
}

// approval waits for the approval of a node.
func (w *world) approval(r id.RunID, node string) id.ApprovalID {
	w.t.Helper()
	var found string
	w.eventually("the approval opens", func() bool {
		found = w.text(`SELECT a.id FROM approvals a JOIN run_steps s ON s.run_id = a.run_id AND s.idx = a.step_idx WHERE a.run_id = $1 AND s.name = $2`, r, node)
		return found != ""
	})
	u, err := id.Parse(found)
	if err != nil {
		w.t.Fatal(err)
	}
	return id.ApprovalID{UUID: u}
}

// decide decides an approval as a person.
func (w *world) decide(a id.ApprovalID, action lifecycle.Action, feedback, edited string) error {
	m := msg.Decide{Op: id.OpID{UUID: id.NewAnywhere()}, Principal: "user:" + id.NewAnywhere().String(), Role: lifecycle.RoleOwner, Action: action, Feedback: feedback}
	if edited != "" {
		m.EditedArgs = json.RawMessage(edited)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := w.node.Ask(ctx, cluster.Address{Kind: msg.KindApproval, Tenant: w.tenant, ID: a.UUID}, m)
	return err
}

func (w *world) status(r id.RunID) string {
	return w.text(`SELECT status || coalesce(' ' || error_code, '') FROM runs WHERE id = $1`, r)
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	testkit.Eventually(w.t, what, ok)
}

// ended waits for the end of a run and checks what holds for every run that has ended.
func (w *world) ended(r id.RunID) string {
	w.t.Helper()
	w.eventually("the run ends", func() bool { return w.text(`SELECT finished_at IS NOT NULL FROM runs WHERE id = $1`, r) == "true" })
	w.eventually("nothing is owed", func() bool { return w.text(`SELECT count(*) FROM workflow_runs WHERE owes`) == "0" })
	if got := w.text(`SELECT string_agg(name, ' ') FROM run_steps WHERE run_id = $1 AND status IN ('running', 'waiting')`, r); got != "" {
		w.t.Errorf("open steps: %s", got)
	}
	if got := w.text(`SELECT string_agg(name, ' ') FROM (SELECT name FROM run_steps WHERE run_id = $1 GROUP BY name HAVING count(*) > 1) x`, r); got != "" {
		w.t.Errorf("more than one step: %s", got)
	}
	w.eventually("no timer is left", func() bool { return w.text(`SELECT count(*) FROM timers WHERE entity_id = $1`, r) == "0" })
	w.eventually("no timer of an approval is left", func() bool {
		return w.text(`SELECT count(*) FROM timers t JOIN approvals a ON a.id = t.entity_id WHERE a.run_id = $1`, r) == "0"
	})
	if got := w.text(`SELECT count(*) FROM approvals WHERE run_id = $1 AND status = 'pending'`, r); got != "0" {
		w.t.Errorf("%s approvals are pending", got)
	}
	w.eventually("no child is open", func() bool {
		return w.text(`SELECT count(*) FROM runs WHERE parent_run_id = $1 AND finished_at IS NULL`, r) == "0"
	})
	w.eventually("its activation leaves", func() bool { return !w.node.Active(w.address(r)) })
	sick, err := feed.NewSweep(w.pool).Diagnose(context.Background(), slices.Concat(feed.RunChecks, approval.Traits.Checks, workflow.Traits.Checks))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range sick {
		if s.Count > 0 {
			w.t.Errorf("svc doctor finds %+v", s)
		}
	}
	return w.status(r)
}

func (w *world) output(r id.RunID) string {
	return w.text(`SELECT output FROM runs WHERE id = $1`, r)
}

// replayed are the frames that a client that reads everything gets from the rows.
func (w *world) replayed(r id.RunID, c event.Cursor) []string {
	w.t.Helper()
	f, err := feed.New(w.pool).Facts(context.Background(), w.tenant, r, c)
	if err != nil {
		w.t.Fatal(err)
	}
	return lines(event.Replay(f, c))
}

func lines(frames []*event.Frame) (out []string) {
	for _, f := range frames {
		out = append(out, fmt.Sprintf("%s %s %s", f.Pos, f.Type, f.Data()))
	}
	return out
}

// exact checks that the live frames are those of the rows, from any position on.
func (w *world) exact(r id.RunID) {
	w.t.Helper()
	w.mu.Lock()
	live := slices.Clone(w.seen[r])
	w.mu.Unlock()
	all := lines(live)
	if got := w.replayed(r, event.Cursor{Full: true}); !slices.Equal(got, all) {
		w.t.Fatalf("live:\n%s\n--- from the rows:\n%s", strings.Join(all, "\n"), strings.Join(got, "\n"))
	}
	for i, f := range live {
		if got := w.replayed(r, event.Cursor{After: f.Pos}); !slices.Equal(got, all[i+1:]) {
			w.t.Fatalf("after %s:\n%s\n--- instead of\n%s", f.Pos, strings.Join(got, "\n"), strings.Join(all[i+1:], "\n"))
		}
	}
}

// nodes are the node frames of a run, in order.
func (w *world) nodes(r id.RunID) string {
	w.t.Helper()
	return w.text(`SELECT string_agg(CASE type WHEN 'node.started' THEN '+' ELSE left(data ->> 'status', 1) || ':' END || (data ->> 'node_id'), ' ' ORDER BY seq)
		FROM run_marks WHERE run_id = $1`, r)
}
