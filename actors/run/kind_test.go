package run_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/approval"
	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/sweep"
	"agentsvc/actors/thread"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/model/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a real host over a real database, with a scripted model.
type world struct {
	t       testing.TB
	pool    *pgxpool.Pool
	writer  *counting
	store   *reads
	models  *script
	live    *live
	slots   *slots
	tools   *toolbox
	vault   *vault.Vault
	files   files
	shelf   *shelf
	node    *cluster.Node
	tenant  id.TenantID
	agent   id.AgentID
	version int
	key     id.UUID

	escalate float64
	hears    func(id.TenantID) bool
	commit   time.Duration    // limit of a commit; 0: as long as in the service
	effects  int              // effects at a time; 0: as many as in the service
	now      func() time.Time // nil: time.Now
	// between, if set, runs after an approval was decided on and before its commit.
	between func()
	log     zerolog.Logger // of runs and approvals; zero: nothing is logged
}

// counting counts the commits that reach the database.
type counting struct {
	durable.Writer
	mu    sync.Mutex
	n     int
	fails func(*journal.Commit) error
}

func (c *counting) Do(ctx context.Context, w *journal.Commit) error {
	c.mu.Lock()
	c.n++
	fails := c.fails
	c.mu.Unlock()
	if fails != nil {
		if err := fails(w); err != nil {
			return err
		}
	}
	return c.Writer.Do(ctx, w)
}

func (c *counting) commits() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

// reads counts the reads of the store.
type reads struct {
	*engine.Store
	mu   sync.Mutex
	by   map[string]int
	down error // the error of Manifest
	lost int   // how many reads of messages fail
}

func (r *reads) count(what string) { r.mu.Lock(); r.by[what]++; r.mu.Unlock() }
func (r *reads) of(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[what]
}
func (r *reads) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.by {
		n += c
	}
	return n
}
func (r *reads) Run(ctx context.Context, t id.TenantID, x id.RunID) (*engine.Run, error) {
	r.count("run")
	return r.Store.Run(ctx, t, x)
}
func (r *reads) Approval(ctx context.Context, t id.TenantID, a id.ApprovalID) (*engine.Approval, error) {
	r.count("approval")
	return r.Store.Approval(ctx, t, a)
}
func (r *reads) Manifest(ctx context.Context, t id.TenantID, a id.AgentID, v int) (json.RawMessage, error) {
	r.count("manifest")
	r.mu.Lock()
	down := r.down
	r.mu.Unlock()
	if down != nil {
		return nil, down
	}
	return r.Store.Manifest(ctx, t, a, v)
}
func (r *reads) Messages(ctx context.Context, t id.TenantID, x id.ThreadID, upTo int64, limit int, room int64) ([]engine.Message, int64, error) {
	r.count("messages")
	r.mu.Lock()
	lose := r.lost > 0
	if lose {
		r.lost--
	}
	r.mu.Unlock()
	if lose {
		return nil, 0, problem.Unavailable("The history could not be read.", 0)
	}
	return r.Store.Messages(ctx, t, x, upTo, limit, room)
}
func (r *reads) Sealed(ctx context.Context, t id.TenantID, x id.RunID, from int, room int64) ([]engine.Sealed, int64, error) {
	r.count("sealed")
	return r.Store.Sealed(ctx, t, x, from, room)
}
func (r *reads) Thread(ctx context.Context, t id.TenantID, x id.ThreadID, window int) (*engine.Thread, error) {
	r.count("thread")
	return r.Store.Thread(ctx, t, x, window)
}

// script is the model: the simulated one, or the scripted turns if there are any.
type script struct {
	mu    sync.Mutex
	turns []func(ctx context.Context, req *model.Request, sink model.Sink) (*model.Result, error)
	asked []*model.Request
	price model.Price
}

func (s *script) next(f func(ctx context.Context, req *model.Request, sink model.Sink) (*model.Result, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns = append(s.turns, f)
}

func (s *script) requests() []*model.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *script) Stream(ctx context.Context, _ id.TenantID, m agent.Model, req *model.Request, sink model.Sink) (*model.Result, model.Price, error) {
	s.mu.Lock()
	s.asked = append(s.asked, req)
	f := simulated.Client{}.Stream
	if len(s.turns) > 0 {
		f, s.turns = s.turns[0], s.turns[1:]
	}
	price := s.price
	s.mu.Unlock()
	if m.Provider == "gone" {
		return nil, model.Price{}, &model.Error{Kind: model.Refused, Message: "There is no model provider gone."}
	}
	r, err := f(ctx, req, sink)
	return r, price, err
}

// live records what readers of a run see.
type live struct {
	mu    sync.Mutex
	seen  map[id.RunID][]*event.Frame
	ended map[id.RunID]chan struct{}
	left  map[id.RunID]int // how often Abandon was called
}

func (l *live) PublishFunc(_ id.TenantID, r id.RunID, _ int64, terminal bool, frames func() []*event.Frame) {
	l.mu.Lock()
	l.seen[r] = append(l.seen[r], frames()...)
	l.mu.Unlock()
	if terminal {
		close(l.end(r)) // a second end would panic
	}
}

// end returns the channel that is closed with the run's terminal frame.
func (l *live) end(r id.RunID) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended[r] == nil {
		l.ended[r] = make(chan struct{})
	}
	return l.ended[r]
}

func (l *live) Abandon(_ id.TenantID, r id.RunID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left[r]++
}

func (l *live) Begin(_ id.TenantID, r id.RunID, seq int64, idx int, relayed bool) model.Sink {
	return &spoken{l: l, run: r, seq: seq, idx: idx, relayed: relayed}
}

type spoken struct {
	l       *live
	run     id.RunID
	seq     int64
	idx     int
	relayed bool
	offset  int64
}

func (s *spoken) say(t event.Type, text string) {
	s.l.mu.Lock()
	s.offset += int64(len(text))
	f := event.Delta(t, event.Pos{Seq: s.seq, Offset: s.offset}, s.idx, text)
	if s.relayed {
		f.AllowRelay()
	}
	s.l.seen[s.run] = append(s.l.seen[s.run], f)
	s.l.mu.Unlock()
}
func (s *spoken) Text(t string)     { s.say(event.LLMDelta, t) }
func (s *spoken) Thinking(t string) { s.say(event.LLMThinking, t) }

// frames returns what a reader saw, with neighbouring text merged.
func (l *live) frames(r id.RunID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return merged(l.seen[r])
}

// relay returns what a reader of the embed relay saw, with the text of a step merged.
func (l *live) relay(r id.RunID) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last *event.Frame
	for _, f := range l.seen[r] {
		if f = f.Relay(); f == nil {
			continue
		}
		if last != nil && last.Text != "" && f.Text != "" && last.Idx == f.Idx {
			f = event.Delta(f.Type, f.Pos, f.Idx, last.Text+f.Text)
			out = out[:len(out)-1]
		}
		last = f
		out = append(out, string(f.Bytes()))
	}
	return out
}

func merged(frames []*event.Frame) (out []string) {
	var last *event.Frame
	for _, f := range frames {
		if last != nil {
			if m, ok := last.Merged(f); ok {
				last, out[len(out)-1] = m, string(m.Bytes())
				continue
			}
		}
		last = f
		out = append(out, string(f.Bytes()))
	}
	return out
}

// slots grants one slot at a time, oldest request first.
type slots struct {
	tell  run.Teller
	mu    sync.Mutex
	holds id.RunID
	wish  []msg.AcquireSlot
	taken []id.RunID // after an approval, in addition to the granted slot
}

func (s *slots) Take(_ id.TenantID, r msg.TakeSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, r.Run)
}

func (s *slots) Acquire(t id.TenantID, w msg.AcquireSlot) {
	s.mu.Lock()
	s.wish = append(s.wish, w)
	s.mu.Unlock()
	s.grant(t)
}

func (s *slots) Release(t id.TenantID, r msg.ReleaseSlot) {
	s.mu.Lock()
	s.wish = slices.DeleteFunc(s.wish, func(w msg.AcquireSlot) bool { return w.Run == r.Run })
	if s.holds == r.Run {
		s.holds = id.RunID{}
	}
	s.mu.Unlock()
	s.grant(t)
}

func (s *slots) grant(t id.TenantID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds.IsZero() && len(s.wish) > 0 {
		s.holds, s.wish = s.wish[0].Run, s.wish[1:]
		s.tell.Tell(cluster.Address{Kind: msg.KindRun, Tenant: t, ID: s.holds.UUID}, msg.SlotGranted{})
	}
}

// forget drops all requests and grants.
func (s *slots) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wish, s.holds = nil, id.RunID{}
}

type files map[id.AttachmentID]string

func (f files) Start(_ context.Context, _ id.TenantID, a id.AttachmentID, max int) ([]byte, error) {
	content, ok := f[a]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return []byte(content[:min(len(content), max)]), nil
}

type option func(*world)

func withSlots(w *world) { w.slots = &slots{} }

func newWorld(t testing.TB, manifest string, options ...option) *world {
	t.Helper()
	db := pgtest.New(t)
	w := &world{
		t: t, pool: db.System(t), version: 1, key: id.NewAnywhere(),
		models: &script{}, live: &live{seen: map[id.RunID][]*event.Frame{}, ended: map[id.RunID]chan struct{}{}, left: map[id.RunID]int{}}, files: files{},
		vault: vault.New(vault.NewSecret32([32]byte{1})),
	}
	w.tenant = pgtest.Tenant(t, w.pool)
	w.agent = pgtest.Published(t, w.pool, w.tenant, manifest)
	w.exec(`UPDATE agents SET slug = 'a' WHERE id = $1`, w.agent)
	for _, o := range options {
		o(w)
	}
	if w.hears != nil {
		w.endpoint(w.tenant)
	}
	j := journaltest.Writer(t, db, journal.Config{Tables: engine.Tables})
	w.writer = &counting{Writer: j}
	w.store = &reads{Store: engine.New(w.pool), by: map[string]int{}}
	w.start()
	return w
}

// start starts a node with empty memory.
func (w *world) start() {
	w.t.Helper()
	w.node = clustertest.Node()
	cfg := run.Config{Store: w.store, Models: w.models, Live: w.live, Sealer: w.vault, Tell: w.node, Attachments: w.files, EscalateFraction: w.escalate, Hears: w.hears, Now: w.now, Log: w.log}
	if w.slots != nil {
		w.slots.tell = w.node
		cfg.Slots, cfg.TakeSlot = w.slots, w.slots.Take
	}
	if w.tools != nil {
		cfg.Tools = w.tools
	}
	if w.shelf != nil {
		cfg.Artifacts = w.shelf
	}
	durable.Register(w.node, w.writer, run.New(cfg), durable.Config{Now: w.now, CommitTimeout: w.commit, MaxEffects: w.effects})
	between := writerFunc(func(ctx context.Context, c *journal.Commit) error { // runs between the read and the commit of a decision
		if w.between != nil {
			w.between()
		}
		return w.writer.Do(ctx, c)
	})
	durable.Register(w.node, between, approval.New(approval.Config{Store: w.store, Vault: w.vault, Tell: w.node, Seal: w.seal, Hears: w.hears, Log: w.log}), durable.Config{CommitTimeout: w.commit})
	thread.Register(w.node, w.writer, thread.Config{Store: w.store, Tell: w.node, Ready: run.Kept{Ready: true}.Encode(), Published: func(id.TenantID, id.AgentID) int { return w.version }}, durable.Config{})
	testkit.Start(w.t, w.node)
}

func (w *world) seal(t id.TenantID, digest [32]byte, answer []byte) ([]byte, error) {
	return w.vault.Seal(vault.AAD{Tenant: t, Table: "idempotency", Row: fmt.Sprintf("%x", digest), Column: "response"}, answer)
}

// restart is a crash from the view of the actors: memory is lost, effects end.
func (w *world) restart() {
	w.t.Helper()
	testkit.Stop(w.t, w.node.Stop)
	w.start()
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// text runs a query for one text.
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

func (w *world) newThread() id.ThreadID {
	th := id.ThreadID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by) VALUES ($1, $2, $3, 'apikey:x')`, w.tenant, th, w.agent)
	return th
}

func (w *world) address(kind string, u id.UUID) cluster.Address {
	return cluster.Address{Kind: kind, Tenant: w.tenant, ID: u}
}

func (w *world) ask(a cluster.Address, m any) any {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	v, err := w.node.Ask(ctx, a, m)
	if err != nil {
		w.t.Fatalf("%T: %v", m, err)
	}
	return v
}

func (w *world) message(th id.ThreadID, content string) msg.Post {
	input, err := json.Marshal(map[string]string{"text": content})
	if err != nil {
		w.t.Fatal(err)
	}
	return msg.Post{
		Message: id.MessageID{UUID: id.New(th.Shard())}, Run: id.RunID{UUID: id.New(th.Shard())},
		Content: content, Input: input, Origin: msg.Origin{Kind: lifecycle.OriginAPIKey, ID: w.key}, By: msg.By{Actor: "apikey:" + w.key.String(), IP: "127.0.0.1"},
	}
}

func (w *world) post(th id.ThreadID, content string) id.RunID {
	w.t.Helper()
	p := w.message(th, content)
	if got := w.ask(w.address(msg.KindThread, th.UUID), p); got != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		w.t.Fatalf("replied %+v", got)
	}
	return p.Run
}

func (w *world) one(input string) id.RunID {
	w.t.Helper()
	r := id.RunID{UUID: id.NewAnywhere()}
	got := w.ask(w.address(msg.KindRun, r.UUID), msg.StartOne{
		Run: r, AgentID: w.agent, AgentVersion: w.version, Input: json.RawMessage(input), Origin: msg.Origin{Kind: lifecycle.OriginAPIKey, ID: w.key},
		By: msg.By{Actor: "apikey:" + w.key.String()},
	})
	if got != any(msg.Started{Run: r}) {
		w.t.Fatalf("replied %+v", got)
	}
	return r
}

// ends waits for the terminal frame, which follows the commit, and returns the run's status.
func (w *world) ends(r id.RunID) string {
	w.t.Helper()
	select {
	case <-w.live.end(r):
	case <-time.After(testkit.Patience):
		w.t.Fatalf("the run does not end within %v", testkit.Patience)
	}
	return w.text(`SELECT status FROM runs WHERE tenant_id = $1 AND id = $2`, w.tenant, r)
}

const simulatedAgent = `{"model":{"provider":"simulated","name":"sim-1"},"instructions":"Be kind."}`

func TestAMessageIsAnswered(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	w.models.price = model.Price{InputPerMTok: 1000, OutputPerMTok: 2000}
	th := w.newThread()
	r := w.post(th, "/say Hello there.")
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is(`{"text":"Hello there."}`, `SELECT output::text FROM runs WHERE id = $1`, r)
	w.is("user:/say Hello there.@1 assistant:Hello there.@2", `SELECT string_agg(role || ':' || content || '@' || seq, ' ' ORDER BY seq) FROM messages WHERE thread_id = $1 AND run_id = $2`, th, r)
	w.is("3", `SELECT next_seq::text FROM threads WHERE id = $1`, th)
	w.is("0 llm sim-1 succeeded 1", `SELECT concat_ws(' ', idx, kind, name, status, agent_version) FROM run_steps WHERE run_id = $1`, r)
	w.is("true", `SELECT (sealed IS NULL AND output->>'text' = 'Hello there.')::text FROM run_steps WHERE run_id = $1`, r)
	w.is("llm sim-1", `SELECT concat_ws(' ', kind, model) FROM usage_records WHERE run_id = $1`, r)
	w.is("true", `SELECT (r.tokens_in = s.tokens_in AND r.tokens_out = u.tokens_out AND u.tokens_out > 0 AND r.cost_usd = u.cost_usd AND u.cost_usd = (u.tokens_in * 1000 + u.tokens_out * 2000) / 1e6)::text
		FROM runs r JOIN run_steps s ON s.run_id = r.id JOIN usage_records u ON u.run_id = r.id WHERE r.id = $1`, r)
	w.is("message.create message apikey:"+w.key.String()+" 127.0.0.1", `SELECT concat_ws(' ', action, target_kind, actor, ip) FROM audit_log WHERE tenant_id = $1`, w.tenant)
	if q := w.models.requests()[0]; q.System != "Be kind." || q.Model != "sim-1" || len(q.Messages) != 1 {
		t.Errorf("asked %+v", q)
	}
	frames := w.live.frames(r)
	for i, want := range []string{"event: run.started\nid: 1\n", "event: step.started\nid: 2\n", "event: llm.delta\nid: 2.12\n", "event: run.completed\nid: 3\n"} {
		if i >= len(frames) || !strings.HasPrefix(frames[i], want) {
			t.Fatalf("frames %q", frames)
		}
	}
}

// The hot path: accept, begin and end are three commits with no read between them, with and without
// a limit of running runs.
func TestOneStepIsThreeCommitsAndNoRead(t *testing.T) {
	for name, options := range map[string][]option{"any number": nil, "one place": {withSlots}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, simulatedAgent, options...)
			w.ends(w.post(w.newThread(), "warm up")) // reads the manifest
			th := w.newThread()
			commits, read := w.writer.commits(), w.store.total()
			r := w.post(th, "hello")
			w.ends(r)
			if n := w.writer.commits() - commits; n != 3 {
				t.Errorf("%d commits", n)
			}
			if n := w.store.total() - read; n != 1 { // the thread's row, before the message is accepted
				t.Errorf("%d reads: %v", n, w.store.by)
			}
			testkit.Eventually(w.t, "the thread knows", func() bool { return !w.node.Active(w.address(msg.KindRun, r.UUID)) })
			commits, read = w.writer.commits(), w.store.total()
			w.ends(w.post(th, "and again"))
			if n := w.writer.commits() - commits; n != 3 {
				t.Errorf("the second message: %d commits", n)
			}
			if n := w.store.total() - read; n != 1 { // the history
				t.Errorf("the second message: %d reads: %v", n, w.store.by)
			}
			commits, read = w.writer.commits(), w.store.total()
			w.ends(w.one(`"hello"`))
			if n := w.writer.commits() - commits; n != 3 {
				t.Errorf("a one-off run: %d commits", n)
			}
			if n := w.store.total() - read; n != 0 {
				t.Errorf("a one-off run: %d reads: %v", n, w.store.by)
			}
		})
	}
}

// The model gets the whole history. A failed read of it is repeated.
func TestTheHistoryIsRead(t *testing.T) {
	for lost, reads := range []int{1, 2} {
		w := newWorld(t, simulatedAgent)
		th := w.newThread()
		w.ends(w.post(th, "one"))
		two := w.post(th, "two")
		w.ends(two)
		// Only after that does the next message begin without a read of its run.
		testkit.Eventually(w.t, "the thread knows", func() bool { return !w.node.Active(w.address(msg.KindRun, two.UUID)) })
		before, asked := w.store.total(), len(w.models.requests())
		w.store.mu.Lock()
		w.store.lost = lost
		w.store.mu.Unlock()
		if got := w.ends(w.post(th, "three")); got != "succeeded" {
			t.Fatal(got)
		}
		if n := w.store.total() - before; n != reads {
			t.Errorf("%d lost: %d reads: %v", lost, n, w.store.by)
		}
		ms := w.models.requests()[asked].Messages
		if len(ms) != 5 || ms[0].Text != "one" || ms[2].Text != "two" || ms[4].Text != "three" || ms[3].Role != model.Assistant {
			t.Errorf("%d lost: asked %+v", lost, ms)
		}
	}
}

func TestOneOffInputs(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	for input, prompt := range map[string]string{
		`"plain"`: "plain", `{"text":"t"}`: "t", `{"input":"i"}`: "i", `{"text":"t","input":"i"}`: "t",
		`{"order":7}`: `{"order":7}`, `[1,2]`: `[1,2]`, `42`: `42`, `{"input":{"a":1}}`: `{"a":1}`, `{"Text":"x"}`: `{"Text":"x"}`,
	} {
		before := len(w.models.requests())
		r := w.one(input)
		if got := w.ends(r); got != "succeeded" {
			t.Fatal(got)
		}
		if ms := w.models.requests()[before].Messages; len(ms) != 1 || ms[0].Text != prompt || ms[0].Role != model.User {
			t.Errorf("%s: asked %+v", input, ms)
		}
		w.is(input, `SELECT input::text FROM runs WHERE id = $1`, r)
		w.is("run.manual", `SELECT action FROM audit_log WHERE target_id = $1`, r)
	}
}

func TestAnUnknownRunIsNotFound(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	_, err := w.node.Ask(t.Context(), w.address(msg.KindRun, id.NewAnywhere()), msg.CancelRun{})
	if !errors.Is(err, problem.NotFound("")) {
		t.Error(err)
	}
	r := w.one(`"x"`)
	_, err = w.node.Ask(t.Context(), cluster.Address{Kind: msg.KindRun, Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: r.UUID}, msg.CancelRun{})
	if !errors.Is(err, problem.NotFound("")) {
		t.Errorf("another tenant: %v", err)
	}
	w.ends(r)
}

func TestToolCallsAndReplay(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	r := w.post(th, "/think Hm.\n/say Looking.\n/call crm.find {\"api_key\":\"k-123\",\"q\":\"x\"}\n/call crm.list\n/say Done.")
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	w.is("0 llm succeeded,1 tool failed,2 tool failed,3 llm succeeded", `SELECT string_agg(concat_ws(' ', idx, kind, status), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	w.is(`{"api_key":"[redacted]","q":"x"}`, `SELECT input::text FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
	w.is("TOOL_NOT_GRANTED", `SELECT output->>'error' FROM run_steps WHERE run_id = $1 AND idx = 2`, r)
	w.is("0,1,2", `SELECT string_agg(idx::text, ',' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND sealed IS NOT NULL`, r)
	w.is("false", `SELECT bool_or(row_to_json(s)::text LIKE '%k-123%')::text FROM run_steps s WHERE run_id = $1`, r)
	reqs := w.models.requests()
	ms := reqs[len(reqs)-1].Messages
	if len(ms) != 3 || len(ms[1].Calls) != 2 || !strings.Contains(string(ms[1].Calls[0].Args), "k-123") || len(ms[1].Thinking) != 1 || len(ms[2].Results) != 2 || ms[2].Results[0].CallID != ms[1].Calls[0].ID {
		t.Errorf("the model's history: %+v", ms)
	}
	w.sameReplayed(r)
}

// sameReplayed compares the frames that readers saw with those made from the facts.
func (w *world) sameReplayed(r id.RunID) {
	w.t.Helper()
	facts, err := feed.New(w.pool).Facts(context.Background(), w.tenant, r, event.Cursor{Full: true, Since: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	saw, read := w.live.frames(r), merged(event.Replay(facts, event.Cursor{Full: true, Since: -1}))
	if !slices.Equal(saw, read) {
		w.t.Errorf("live:\n%s\nreplayed:\n%s", strings.Join(saw, ""), strings.Join(read, ""))
	}
	saw, read = w.live.relay(r), merged(event.ReplayRelay(facts, event.Cursor{Full: true, Since: -1}))
	if !slices.Equal(saw, read) {
		w.t.Errorf("live relay:\n%s\nreplayed:\n%s", strings.Join(saw, ""), strings.Join(read, ""))
	}
}

func TestHistoryAndMemory(t *testing.T) {
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"memory":{"max_messages":3}}`)
	th := w.newThread()
	for _, m := range []string{"/say one", "/fail no", "/say three", "last"} {
		w.ends(w.post(th, m))
	}
	reqs := w.models.requests()
	var got []string
	for _, m := range reqs[len(reqs)-1].Messages {
		got = append(got, string(m.Role)+":"+m.Text)
	}
	// A failed run adds no assistant message.
	if want := []string{"user:/say three", "assistant:three", "user:last"}; !slices.Equal(got, want) {
		t.Errorf("asked %q", got)
	}
	w.is("9", `SELECT (max(seq) + 1)::text FROM messages WHERE thread_id = $1`, th)
}

func TestAttachments(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	text, image, lost := id.AttachmentID{UUID: id.NewAnywhere()}, id.AttachmentID{UUID: id.NewAnywhere()}, id.AttachmentID{UUID: id.NewAnywhere()}
	w.files[text] = "a,b\n1,2"
	p := w.message(th, "look")
	p.Attachments = json.RawMessage(fmt.Sprintf(`[{"id":%q,"name":"t.csv","media_type":"text/csv; charset=utf-8","size":7},{"id":%q,"name":"i.png","media_type":"image/png","size":9},{"id":%q,"name":"n.md","media_type":"application/octet-stream","size":3}]`, text, image, lost))
	p.Input = json.RawMessage(fmt.Sprintf(`{"text":"look","attachment_ids":[%q,%q]}`, text, image))
	w.ask(w.address(msg.KindThread, th.UUID), p)
	w.ends(p.Run)
	got := w.models.requests()[0].Messages[0].Text
	if want := "look\n\n[attachment \"t.csv\" (text/csv; charset=utf-8, 7 bytes)]\na,b\n1,2\n[end of the attachment]\n\n[attachment \"i.png\" (image/png, 9 bytes): its content is not shown]\n\n[attachment \"n.md\" (application/octet-stream, 3 bytes): its content is not shown]"; got != want {
		t.Errorf("asked %q", got)
	}
}

func TestRunsOfAThreadRunInOrder(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	var mu sync.Mutex
	open, most := 0, 0
	for range 5 {
		w.models.next(func(ctx context.Context, req *model.Request, sink model.Sink) (*model.Result, error) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			defer func() { mu.Lock(); open--; mu.Unlock() }()
			return simulated.Client{}.Stream(ctx, req, sink)
		})
	}
	var runs []id.RunID
	for i := range 5 {
		runs = append(runs, w.post(th, fmt.Sprint("/say ", i)))
	}
	for _, r := range runs {
		if got := w.ends(r); got != "succeeded" {
			t.Fatal(got)
		}
	}
	if most != 1 {
		t.Errorf("%d runs of one thread at a time", most)
	}
	w.is("/say 0,0,/say 1,1,/say 2,2,/say 3,3,/say 4,4", `SELECT string_agg(content, ',' ORDER BY seq) FROM messages WHERE thread_id = $1`, th)
	w.is("true", `SELECT bool_and(ok)::text FROM (SELECT started_at >= lag(finished_at, 1, started_at) OVER (ORDER BY thread_seq) AS ok FROM runs WHERE thread_id = $1) x`, th)
}

func TestARepeatedPost(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	p := w.message(th, "once")
	for i := range 4 {
		if got := w.ask(w.address(msg.KindThread, th.UUID), p); got != any(msg.Posted{Run: p.Run, Message: p.Message}) {
			t.Fatalf("replied %+v", got)
		}
		if i == 1 {
			w.ends(p.Run)
			w.restart() // the thread knows it from its messages too
		}
	}
	w.is("1", `SELECT count(*)::text FROM runs`)
	w.is("2", `SELECT count(*)::text FROM messages`)
}

// beforeCommit calls then once, after the decision and before its commit, for the next commit that
// matches of.
func (w *world) beforeCommit(of func(*journal.Commit) bool, then func()) {
	var once sync.Once
	w.writer.mu.Lock()
	defer w.writer.mu.Unlock()
	w.writer.fails = func(c *journal.Commit) error {
		if of(c) {
			once.Do(then)
		}
		return nil
	}
}

// second starts a node beside w's that also takes itself for the owner of everything.
func (w *world) second() *world {
	w.t.Helper()
	other := *w
	other.writer = &counting{Writer: w.writer.Writer}
	other.start()
	return &other
}

// Messages are sent again after their owner was lost: to the owner that has carried them out, to the
// next one, and to one that decides at the same time.
func TestRepeatedMessages(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	other := w.second()
	key := func(name string) *msg.Idempotency {
		return &msg.Idempotency{Digest: sha256.Sum256([]byte(name)), Fingerprint: [32]byte{1}, Status: 202, Response: []byte("sealed")}
	}
	accepts := func(c *journal.Commit) bool { return journaltest.Row[*engine.RunInsert](c) != nil }
	for _, keyed := range []bool{false, true} {
		name := fmt.Sprint("keyed ", keyed)
		idem := func(of string) *msg.Idempotency {
			if keyed {
				return key(of)
			}
			return nil
		}
		for _, row := range []struct {
			order string
			begin func(t *testing.T) (cluster.Address, any, any)
			of    func(*journal.Commit) bool
			once  func(a cluster.Address) string // the effect, read from the rows
			want  string
		}{
			{"a post", func(t *testing.T) (cluster.Address, any, any) {
				th := w.newThread()
				w.ends(w.post(th, "/say before"))
				other.ask(other.address(msg.KindThread, th.UUID), durable.Wake{}) // it has loaded the row
				p := w.message(th, "/say x")
				p.Idempotency = idem("post")
				return w.address(msg.KindThread, th.UUID), p, msg.Posted{Run: p.Run, Message: p.Message}
			}, accepts, func(a cluster.Address) string {
				return w.text(`SELECT concat_ws(' ', (SELECT count(*) FROM runs WHERE thread_id = $1), (SELECT count(*) FROM messages WHERE thread_id = $1 AND role = 'user'), next_seq) FROM threads WHERE id = $1`, a.ID)
			}, "2 2 5"},
			{"a deletion", func(t *testing.T) (cluster.Address, any, any) {
				th := w.newThread()
				w.ends(w.post(th, "/say x"))
				other.ask(other.address(msg.KindThread, th.UUID), durable.Wake{})
				return w.address(msg.KindThread, th.UUID), msg.DeleteThread{Op: id.OpID{UUID: id.New(th.Shard())}, By: msg.By{Actor: "user:1"}}, msg.Done{}
			}, func(c *journal.Commit) bool {
				u := journaltest.Row[*engine.ThreadUpdate](c)
				return u != nil && u.DeletedAt != nil
			}, func(a cluster.Address) string {
				return w.text(`SELECT count(*)::text FROM audit_log WHERE target_id = $1 AND action = 'thread.delete'`, a.ID)
			}, "1"},
			{"the start of a run", func(t *testing.T) (cluster.Address, any, any) {
				r := id.RunID{UUID: id.NewAnywhere()}
				return w.address(msg.KindRun, r.UUID), msg.StartOne{Run: r, AgentID: w.agent, AgentVersion: 1, Input: json.RawMessage(`"/say x"`),
					Origin: msg.Origin{Kind: lifecycle.OriginAPIKey, ID: w.key}, Idempotency: idem("start")}, msg.Started{Run: r}
			}, accepts, func(a cluster.Address) string {
				w.ends(id.RunID{UUID: a.ID})
				return w.text(`SELECT concat_ws(' ', count(*), (SELECT count(*) FROM audit_log WHERE target_id = $1 AND action = 'run.manual')) FROM runs WHERE id = $1`, a.ID)
			}, "1 1"},
			{"a cancel", func(t *testing.T) (cluster.Address, any, any) {
				th := w.newThread()
				w.hold()
				r := w.post(th, "a")
				w.speaking(r)
				return w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "user:1"}, Idempotency: idem("cancel")}, msg.Status{Run: r, Status: lifecycle.RunCancelled}
			}, func(c *journal.Commit) bool { return becomes(c, lifecycle.RunCancelled) }, func(a cluster.Address) string {
				return w.text(`SELECT count(*)::text FROM audit_log WHERE target_id = $1 AND action = 'run.cancel'`, a.ID)
			}, "1"},
		} {
			t.Run(row.order+", "+name, func(t *testing.T) {
				a, m, want := row.begin(t)
				sent := func(to *world) {
					t.Helper()
					if got, err := to.node.Ask(t.Context(), a, m); err != nil || got != want {
						t.Errorf("replied %+v, %v", got, err)
					}
				}
				other.beforeCommit(row.of, func() { sent(w) })
				sent(other)
				sent(w)
				sent(other)
				if got := row.once(a); got != row.want {
					t.Errorf("%s, want %s", got, row.want)
				}
			})
		}
	}
}

// A repeated post that the thread no longer remembers: many posts came since, or the thread was
// deleted.
func TestALateRepeatOfAPost(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	for _, keyed := range []bool{false, true} {
		th := w.newThread()
		at := w.address(msg.KindThread, th.UUID)
		first := w.message(th, "/say first")
		if keyed {
			first.Idempotency = &msg.Idempotency{Digest: [32]byte{1}, Fingerprint: [32]byte{2}, Status: 202, Response: []byte("sealed")}
		}
		again := func(what string) {
			t.Helper()
			if got := w.ask(at, first); got != any(msg.Posted{Run: first.Run, Message: first.Message}) {
				t.Errorf("%s: replied %+v", what, got)
			}
		}
		again("the first time")
		var last id.RunID
		for i := range 70 {
			last = w.post(th, fmt.Sprint("/say ", i))
		}
		again("70 posts later")
		w.ends(last)
		w.restart()
		again("on the next node")
		w.is("71 71 71 143", `SELECT concat_ws(' ', (SELECT count(*) FROM runs WHERE thread_id = $1), (SELECT count(*) FROM messages WHERE thread_id = $1 AND role = 'user'),
			(SELECT count(*) FROM messages WHERE thread_id = $1 AND role = 'assistant'), next_seq) FROM threads WHERE id = $1`, th)
		w.ends(w.post(th, "/say and it goes on"))
		w.ask(at, msg.DeleteThread{Op: id.OpID{UUID: id.New(th.Shard())}})
		again("when the thread is deleted")
		w.restart()
		again("when the thread is deleted, on the next node")
		if _, err := w.node.Ask(t.Context(), at, w.message(th, "x")); !errors.Is(err, problem.NotFound("")) {
			t.Errorf("a new post: %v", err)
		}
		foreign := w.message(th, "x")
		foreign.Run = w.post(w.newThread(), "/say y")
		if _, err := w.node.Ask(t.Context(), at, foreign); !errors.Is(err, problem.NotFound("")) {
			t.Errorf("another thread's run: %v", err)
		}
	}
}

// Posts to two owners of one thread, one of which does not know that it lost the thread.
func TestPostsOfTwoOwners(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	other := w.second()
	th := w.newThread()
	w.ends(w.post(th, "/say 0"))
	other.ends(other.post(th, "/say 1"))
	w.ends(w.post(th, "/say 2")) // decided on an old version of the row
	other.ends(other.post(th, "/say 3"))
	w.is("/say 0,0,/say 1,1,/say 2,2,/say 3,3", `SELECT string_agg(content, ',' ORDER BY seq) FROM messages WHERE thread_id = $1`, th)
}

func TestIdempotencyRows(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	p := w.message(th, "x")
	p.Idempotency = &msg.Idempotency{Digest: sha256.Sum256([]byte("k")), Fingerprint: sha256.Sum256([]byte("b")), Status: 202, Response: []byte("sealed")}
	w.ask(w.address(msg.KindThread, th.UUID), p)
	second := w.message(th, "x")
	second.Idempotency = p.Idempotency
	_, err := w.node.Ask(t.Context(), w.address(msg.KindThread, th.UUID), second)
	if !errors.Is(err, journal.ErrReplay) {
		t.Errorf("the key again: %v", err)
	}
	w.ends(p.Run)
	third := w.post(th, "y") // the thread continues as if nothing had happened
	w.ends(third)
	w.is("2", `SELECT count(*)::text FROM runs`)
	w.is("202", `SELECT status::text FROM idempotency`)
}

// hold is a turn that emits text and then waits until it is cancelled.
func (w *world) hold() {
	w.models.next(func(ctx context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
		sink.Thinking("hm")
		sink.Text("half an ")
		sink.Text("answer")
		<-ctx.Done()
		return nil, &model.Error{Kind: model.Cancelled, Err: ctx.Err()}
	})
}

func (w *world) speaking(r id.RunID) {
	w.t.Helper()
	testkit.Eventually(w.t, "the model speaks", func() bool { f := w.live.frames(r); return len(f) > 0 && strings.Contains(f[len(f)-1], "answer") })
}

func TestCancelRunning(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.hold()
	first := w.post(th, "a")
	queued, last := w.post(th, "b"), w.post(th, "/say c")
	w.speaking(first)
	by := msg.By{Actor: "user:1", IP: "::1"}
	if got := w.ask(w.address(msg.KindRun, queued.UUID), msg.CancelRun{By: by}); got != any(msg.Status{Run: queued, Status: lifecycle.RunCancelled}) {
		t.Fatalf("replied %+v", got)
	}
	idem := &msg.Idempotency{Digest: sha256.Sum256([]byte("c")), Fingerprint: sha256.Sum256([]byte("b")), Status: 200, Response: []byte("sealed")}
	for range 2 { // the second time the run has ended
		if got := w.ask(w.address(msg.KindRun, first.UUID), msg.CancelRun{By: by, Idempotency: idem}); got != any(msg.Status{Run: first, Status: lifecycle.RunCancelled}) {
			t.Fatalf("replied %+v", got)
		}
	}
	if got := w.ends(last); got != "succeeded" {
		t.Fatalf("the next run: %s", got)
	}
	w.is("CANCELLED 1 0 NULL", `SELECT concat_ws(' ', error_code, seq, steps, coalesce(started_at::text, 'NULL')) FROM runs WHERE id = $1`, queued)
	w.is("failed", `SELECT status FROM run_steps WHERE run_id = $1`, first)
	w.is("hm half an answer", `SELECT concat_ws(' ', output->>'thinking', output->>'text') FROM run_steps WHERE run_id = $1`, first)
	w.is("2", `SELECT count(*)::text FROM audit_log WHERE action = 'run.cancel' AND actor = 'user:1' AND ip = '::1'`)
	w.is("1", `SELECT count(*)::text FROM idempotency`)
	w.is("a,b,/say c,c", `SELECT string_agg(content, ',' ORDER BY seq) FROM messages WHERE thread_id = $1`, th)
	if f := w.live.frames(queued); len(f) != 1 || !strings.HasPrefix(f[0], "event: run.failed\nid: 1\n") {
		t.Errorf("a run cancelled while queued showed %q", f)
	}
	w.sameReplayed(first)
	w.sameReplayed(queued)
}

func TestDeleteThread(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.hold()
	first := w.post(th, "a")
	second := w.post(th, "b")
	w.speaking(first)
	if got := w.ask(w.address(msg.KindThread, th.UUID), msg.DeleteThread{By: msg.By{Actor: "user:1"}}); got != any(msg.Done{}) {
		t.Fatalf("replied %+v", got)
	}
	for _, r := range []id.RunID{first, second} {
		if got := w.ends(r); got != "cancelled" {
			t.Error(got)
		}
	}
	w.is("0", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
	w.is("thread.delete user:1", `SELECT concat_ws(' ', action, actor) FROM audit_log WHERE target_kind = 'thread'`)
	for _, m := range []any{w.message(th, "x"), msg.DeleteThread{}} {
		if _, err := w.node.Ask(t.Context(), w.address(msg.KindThread, th.UUID), m); !errors.Is(err, problem.NotFound("")) {
			t.Errorf("%T: %v", m, err)
		}
	}
	testkit.Eventually(w.t, "the thread leaves memory", func() bool { return !w.node.Active(w.address(msg.KindThread, th.UUID)) })
	w.is("0", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
}

// A crash right after the thread's deletion, before its runs were cancelled.
func TestRunsOfADeletedThreadEndAfterACrash(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.hold()
	first := w.post(th, "a")
	second := w.post(th, "b")
	w.speaking(first)
	w.exec(`UPDATE threads SET deleted_at = now(), version = version + 1 WHERE id = $1`, th)
	w.exec(`DELETE FROM messages WHERE thread_id = $1`, th)
	w.restart()
	s := sweep.New(sweep.Config{Node: w.node, Rows: feed.NewSweep(w.pool), Kinds: []durable.Traits{run.Traits}, Log: zerolog.Nop()})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for _, r := range []id.RunID{first, second} {
		if got := w.ends(r); got != "cancelled" {
			t.Error(got)
		}
	}
	w.is("0", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
}

// The run ended before its cancel, and the thread is not in memory.
func TestAReplyToADeletedThreadIsPurged(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.hold()
	r := w.post(th, "a")
	w.speaking(r)
	w.exec(`UPDATE threads SET deleted_at = now(), version = version + 1 WHERE id = $1`, th)
	w.restart()
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{})
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	testkit.Eventually(w.t, "the thread is empty", func() bool { return w.text(`SELECT count(*)::text FROM messages WHERE thread_id = $1`, th) == "0" })
}

func TestACrashInTheMiddle(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.models.next(simulated.Client{}.Stream) // the first turn makes a call
	w.hold()
	r := w.post(th, "/say First.\n/call crm.find {\"q\":1}\n/say Second.")
	behind := w.post(th, "/say Behind.")
	w.speaking(r)
	w.restart()
	w.is("running queued", `SELECT string_agg(status, ' ' ORDER BY thread_seq) FROM runs WHERE thread_id = $1`, th)
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{}) // the sweep finds it
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	w.is("0 llm succeeded,1 tool failed,2 llm abandoned,3 llm succeeded", `SELECT string_agg(concat_ws(' ', idx, kind, status), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
	w.is("Second.", `SELECT output->>'text' FROM runs WHERE id = $1`, r)
	reqs := w.models.requests()
	for _, q := range reqs[1:3] { // the model gets the same request before and after the crash
		if len(q.Messages) != 3 || q.Messages[1].Calls[0].Name != "crm.find" || !strings.Contains(q.Messages[2].Results[0].Content, "TOOL_NOT_GRANTED") {
			t.Errorf("asked %+v", q.Messages)
		}
	}
	if got := w.ends(behind); got != "succeeded" { // the first run's end tells the thread, which has to load
		t.Fatal(got)
	}
}

func TestAQueuedRunContinuesAfterACrash(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.hold()
	first := w.post(th, "a")
	w.speaking(first)
	second := w.post(th, "/say b")
	w.exec(`UPDATE runs SET status = 'cancelled', error_code = 'CANCELLED', error_message = 'x', finished_at = now(), version = version + 1 WHERE id = $1`, first)
	w.restart()
	w.node.Tell(w.address(msg.KindThread, th.UUID), durable.Wake{})
	if got := w.ends(second); got != "succeeded" {
		t.Fatal(got)
	}
}

func TestMoreQueuedRunsThanMemoryHolds(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	w.hold()
	first := w.post(th, "a")
	var all []string
	runs := make([]id.RunID, 150)
	for i := range runs {
		runs[i] = w.post(th, fmt.Sprint("/say ", i))
		all = append(all, fmt.Sprint(i))
	}
	w.ask(w.address(msg.KindRun, first.UUID), msg.CancelRun{})
	w.ends(runs[len(runs)-1])
	w.is(strings.Join(all, ","), `SELECT string_agg(m.content, ',' ORDER BY r.finished_at) FROM runs r JOIN messages m ON m.run_id = r.id AND m.role = 'assistant' WHERE r.thread_id = $1`, th)
}

func TestSlotsLimitRunningRuns(t *testing.T) {
	w := newWorld(t, simulatedAgent, withSlots)
	w.hold()
	first := w.one(`"a"`)
	w.speaking(first)
	second, third := w.one(`"/say b"`), w.post(w.newThread(), "/say c")
	testkit.Eventually(w.t, "both wait for a place", func() bool { w.slots.mu.Lock(); defer w.slots.mu.Unlock(); return len(w.slots.wish) == 2 })
	w.is("2", `SELECT count(*)::text FROM runs WHERE status = 'queued'`)
	w.ask(w.address(msg.KindRun, second.UUID), msg.CancelRun{}) // withdraws its request
	w.ask(w.address(msg.KindRun, first.UUID), msg.CancelRun{})
	if got := w.ends(third); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("0", `SELECT steps::text FROM runs WHERE id = $1`, second)
}

// Two runs continue after a crash: one waits for a slot, the other for its turn in the thread.
func TestWaitingRunsContinueAfterACrash(t *testing.T) {
	w := newWorld(t, simulatedAgent, withSlots)
	w.hold()
	running := w.one(`"/say a"`)
	w.speaking(running)
	th := w.newThread()
	first, second := w.post(th, "/say b"), w.post(th, "/say c")
	testkit.Eventually(w.t, "the first waits for a place", func() bool { w.slots.mu.Lock(); defer w.slots.mu.Unlock(); return len(w.slots.wish) == 1 })
	w.is("turn no turn", `SELECT string_agg(CASE WHEN convert_from(state, 'UTF8') LIKE '%turn%' THEN 'turn' ELSE 'no turn' END, ' ' ORDER BY thread_seq) FROM runs WHERE thread_id = $1`, th)
	w.slots.forget()
	w.restart()
	w.node.Tell(w.address(msg.KindRun, first.UUID), durable.Wake{})
	if got := w.ends(first); got != "succeeded" {
		t.Fatal(got)
	}
	if got := w.ends(second); got != "succeeded" {
		t.Fatal(got)
	}
}

// A thread's late Proceed makes an ended run request a slot: the run returns the slot once it has
// read its row.
func TestASlotForARunThatHasEnded(t *testing.T) {
	w := newWorld(t, simulatedAgent, withSlots)
	w.ends(w.post(w.newThread(), "warm up")) // reads the manifest
	w.hold()
	w.speaking(w.one(`"/say a"`))
	th := w.newThread()
	p := w.message(th, "/say b")
	w.ask(w.address(msg.KindThread, th.UUID), p)
	w.ask(w.address(msg.KindRun, p.Run.UUID), msg.CancelRun{})
	w.slots.forget()
	w.restart()
	reads := w.store.total()
	w.node.Tell(w.address(msg.KindRun, p.Run.UUID), msg.Proceed{Accepted: &msg.Accepted{
		Run: p.Run, AgentID: w.agent, AgentVersion: w.version, ThreadID: &th, ThreadSeq: 1, Input: p.Input, Origin: p.Origin, State: run.Kept{Ready: true}.Encode(),
	}})
	testkit.Eventually(w.t, "the row is read and the place is free", func() bool {
		w.slots.mu.Lock()
		defer w.slots.mu.Unlock()
		return w.store.total() > reads && w.slots.holds.IsZero() && len(w.slots.wish) == 0
	})
	w.is("cancelled 0", `SELECT concat_ws(' ', status, steps) FROM runs WHERE id = $1`, p.Run)
}

// A running run that is loaded takes a slot: its former node may have died before it reported that
// the run resumed after an approval.
func TestALoadedRunningRunTakesASlot(t *testing.T) {
	w := newWorld(t, simulatedAgent, withSlots)
	w.hold()
	r := w.one(`"/say a"`)
	w.speaking(r)
	taken := func() []id.RunID {
		w.slots.mu.Lock()
		defer w.slots.mu.Unlock()
		return slices.Clone(w.slots.taken)
	}
	if got := taken(); len(got) != 0 {
		t.Errorf("a run with a granted slot took another one: %v", got)
	}
	w.restart()
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{})
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	if got := taken(); !slices.Contains(got, r) {
		t.Errorf("the loaded run took no slot: %v", got)
	}
}

func TestModelFailures(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	said := func(text string, err *model.Error) func(context.Context, *model.Request, model.Sink) (*model.Result, error) {
		return func(_ context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
			if text != "" {
				sink.Text(text)
			}
			return nil, err
		}
	}
	refused := &model.Error{Kind: model.Refused, Status: 400, Message: "bad model"}
	unavailable := &model.Error{Kind: model.Unavailable, Message: "no answer", BeforeFirstToken: true}
	broken := &model.Error{Kind: model.Broken, Message: "cut off"}
	lost := &model.Error{Kind: model.Cancelled, Message: "no lease", BeforeFirstToken: true, Err: context.Canceled}
	cut := &model.Error{Kind: model.Cancelled, Message: "no lease", Err: context.Canceled}
	for _, c := range []struct {
		name  string
		turns []func(context.Context, *model.Request, model.Sink) (*model.Result, error)
		want  string // status, code, steps, usage rows
		steps string
	}{
		{"refused", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("", refused)}, "failed MODEL_ERROR 1 0", "failed"},
		{"unavailable", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("", unavailable)}, "failed MODEL_UNAVAILABLE 1 0", "failed"},
		{"broken once", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("par", broken)}, "succeeded 2 2", "abandoned succeeded"},
		{"broken twice", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("par", broken), said("tia", broken)}, "failed MODEL_ERROR 2 2", "abandoned failed"},
		{"broken, then refused", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("", broken), said("", refused)}, "failed MODEL_ERROR 2 0", "abandoned failed"},
		{"lease lost once", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("", lost)}, "succeeded 1 1", "succeeded"},
		{"lease lost thrice", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("", lost), said("", lost), said("", lost)}, "succeeded 1 1", "succeeded"},
		{"lease lost in the answer, thrice", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){said("a", cut), said("b", cut), said("c", cut)}, "succeeded 4 4", "abandoned abandoned abandoned succeeded"},
		{"a panic", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){func(context.Context, *model.Request, model.Sink) (*model.Result, error) {
			panic("bug")
		}}, "failed INTERNAL 1 0", "failed"},
		{"no provider to be found", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){func(context.Context, *model.Request, model.Sink) (*model.Result, error) {
			return nil, errors.New("look up: bad row")
		}}, "failed INTERNAL 1 0", "failed"},
		{"a provider that cannot be looked up now", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){func(context.Context, *model.Request, model.Sink) (*model.Result, error) {
			return nil, fmt.Errorf("look up: %w", problem.Unavailable("", 0))
		}}, "succeeded 1 1", "succeeded"},
		{"a storm of words", []func(context.Context, *model.Request, model.Sink) (*model.Result, error){func(ctx context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
			for ctx.Err() == nil {
				sink.Text(strings.Repeat("x", 1<<20))
			}
			return nil, &model.Error{Kind: model.Cancelled, Err: ctx.Err()}
		}}, "failed MODEL_ERROR 1 1", "failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			for _, f := range c.turns {
				w.models.next(f)
			}
			r := w.one(`"/say ok"`)
			w.ends(r)
			w.is(c.want, `SELECT concat_ws(' ', status, error_code, steps, (SELECT count(*) FROM usage_records u WHERE u.run_id = r.id)) FROM runs r WHERE id = $1`, r)
			w.is(c.steps, `SELECT string_agg(status, ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
			w.is("true", `SELECT (tokens_out = (SELECT coalesce(sum(u.tokens_out), 0) FROM usage_records u WHERE u.run_id = r.id))::text FROM runs r WHERE id = $1`, r)
		})
	}
	t.Run("unknown provider", func(t *testing.T) {
		w := newWorld(t, `{"model":{"provider":"gone","name":"x"}}`)
		r := w.one(`"x"`)
		w.ends(r)
		w.is("MODEL_ERROR There is no model provider gone.", `SELECT concat_ws(' ', error_code, error_message) FROM runs WHERE id = $1`, r)
	})
}

func TestMaxSeconds(t *testing.T) {
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"limits":{"max_seconds":1}}`)
	w.hold()
	r := w.one(`"x"`)
	w.ends(r)
	w.is("LIMIT_EXCEEDED failed half an answer", `SELECT concat_ws(' ', r.error_code, s.status, s.output->>'text') FROM runs r JOIN run_steps s ON s.run_id = r.id WHERE r.id = $1`, r)
	w.sameReplayed(r)
}

// The clock is set by an hour during a turn of the model and during a call. Neither counts as running time, and what runs
// after it has the time that is left.
func TestMaxSecondsDoesNotCountAStepOfTheClock(t *testing.T) {
	for name, step := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			var set atomic.Int64
			w := newWorld(t, strings.TrimSuffix(toolAgent, "}")+`,"limits":{"max_seconds":900}}`, withTools, func(w *world) {
				w.now = func() time.Time { return time.Now().Add(time.Duration(set.Load())) }
			})
			w.tools.answer = func(context.Context, tool.Planned) *tool.Outcome { set.Add(int64(step)); return nil }
			w.models.next(func(ctx context.Context, req *model.Request, sink model.Sink) (*model.Result, error) {
				set.Add(int64(step))
				return simulated.Client{}.Stream(ctx, req, sink)
			})
			r := w.post(w.newThread(), "/call free.a\n/call free.b\n/say Done.")
			w.ends(r)
			w.is("succeeded", `SELECT concat_ws(' ', status, error_code, error_message) FROM runs WHERE id = $1`, r)
			if n := len(w.tools.called()); n != 2 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

func TestOutputInvalidAndGuardrails(t *testing.T) {
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"output_schema":{"type":"object","required":["n"]},
		"guardrails":{"output":[{"kind":"regex","pattern":"[0-9]{4}","action":"redact"}]}}`)
	r := w.one(`"/json {\"n\":1}"`)
	w.ends(r)
	w.is(`{"n":1}`, `SELECT output->>'json' FROM runs WHERE id = $1`, r)
	w.is("true", `SELECT withheld::text FROM run_steps WHERE run_id = $1`, r)
	w.sameReplayed(r)
	if got := strings.Join(w.live.relay(r), ""); strings.Contains(got, "llm.delta") || !strings.Contains(got, `"text":"{\"n\":1}"`) {
		t.Errorf("the relay of an agent with output guardrails:\n%s", got)
	}
	r = w.one(`"/json {\"n\":\"card 1234\"}"`)
	w.ends(r)
	w.is(`{"n":"card [redacted]"}`, `SELECT output->>'json' FROM runs WHERE id = $1`, r)
	if got := strings.Join(w.live.relay(r), ""); strings.Contains(got, "1234") || !strings.Contains(got, "card [redacted]") {
		t.Errorf("the relay of what was redacted:\n%s", got)
	}
	r = w.one(`"/say no"`)
	w.ends(r)
	w.is("failed OUTPUT_INVALID", `SELECT concat_ws(' ', status, error_code) FROM runs WHERE id = $1`, r)
}

// checksForLong is an agent whose guardrail takes two seconds for a long answer: each match scans
// all that follows, until the time limit of the check.
func checksForLong(limits string) string {
	return `{"model":{"provider":"simulated","name":"s"},` + limits + `"guardrails":{"output":[{"kind":"regex","pattern":"a+b|a","action":"redact"}]}}`
}

// saysMuch is a turn that ends with a long text.
func (w *world) saysMuch() (said chan struct{}) {
	said = make(chan struct{})
	long := strings.Repeat("a", 300_000)
	w.models.next(func(_ context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
		sink.Text(long)
		close(said)
		return &model.Result{Text: long, Finish: model.FinishStop, TokensOut: 7}, nil
	})
	return said
}

// A cancel while the answer is checked takes effect at once: the check does not block the run's
// mailbox, and ends with the run.
func TestCancelWhileTheAnswerIsChecked(t *testing.T) {
	w := newWorld(t, checksForLong(""))
	said := w.saysMuch()
	r := w.post(w.newThread(), "x")
	<-said
	if got := w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "user:1"}}); got != any(msg.Status{Run: r, Status: lifecycle.RunCancelled}) {
		t.Fatalf("replied %+v", got)
	}
	if got := w.ends(r); got != "cancelled" { // frames follow the reply
		t.Fatal(got)
	}
	w.is("CANCELLED", `SELECT error_code FROM runs WHERE id = $1`, r)
	w.sameReplayed(r)
}

// The time limit of a run ends the check of its answer; the turn's usage counts.
func TestMaxSecondsWhileTheAnswerIsChecked(t *testing.T) {
	w := newWorld(t, checksForLong(`"limits":{"max_seconds":1},`))
	w.saysMuch()
	r := w.post(w.newThread(), "x")
	w.ends(r)
	w.is("failed LIMIT_EXCEEDED 7", `SELECT concat_ws(' ', status, error_code, tokens_out) FROM runs WHERE id = $1`, r)
	w.sameReplayed(r)
}

// An answer whose check exceeds its time limit fails the run, and does so again after a restart.
func TestAnAnswerThatCannotBeChecked(t *testing.T) {
	var doubling strings.Builder
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"output_schema":{"$ref":"#/$defs/d0","$defs":{`+doubling.String()+`"d40":{}}}}`)
	for range 2 {
		r := w.one(`"/json {\"n\":1}"`)
		w.ends(r)
		w.is("failed OUTPUT_INVALID", `SELECT concat_ws(' ', status, error_code) FROM runs WHERE id = $1`, r)
		w.sameReplayed(r)
		w.restart()
	}
}

func TestRefusedRowsFailTheRun(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	w.writer.fails = func(c *journal.Commit) error {
		for _, e := range journaltest.Rows[*engine.StepUpdate](c) {
			if strings.Contains(string(e.Output), "poison") {
				return fmt.Errorf("%w: no", journal.ErrRefused)
			}
		}
		return nil
	}
	r := w.one(`"/say poison"`)
	w.ends(r)
	w.is("failed INTERNAL NULL 1", `SELECT concat_ws(' ', r.status, r.error_code, coalesce(s.output::text, 'NULL'), (SELECT count(*) FROM usage_records)) FROM runs r JOIN run_steps s ON s.run_id = r.id WHERE r.id = $1`, r)
}

func TestContentThatCannotBeStoredIsRefused(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	th := w.newThread()
	p := w.message(th, "x")
	p.Content = "a\x00b"
	if _, err := w.node.Ask(t.Context(), w.address(msg.KindThread, th.UUID), p); !errors.Is(err, problem.Invalid("", "")) {
		t.Errorf("a message: %v", err)
	}
	w.ends(w.post(th, "fine"))
}

func TestAnInputThatCannotBeStoredIsRefused(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	r := id.RunID{UUID: id.New(w.node.MintShard())}
	start := msg.StartOne{Run: r, AgentID: w.agent, AgentVersion: 1, Input: json.RawMessage("\"a\xff\""), Origin: msg.Origin{Kind: lifecycle.OriginAPIKey, ID: w.key}}
	if _, err := w.node.Ask(t.Context(), w.address(msg.KindRun, r.UUID), start); !errors.Is(err, problem.Invalid("", "")) {
		t.Errorf("a run: %v", err)
	}
	w.is("0", `SELECT count(*)::text FROM runs`)
}

// A version that cannot be read now does not count as invalid.
func TestARunIsNotAcceptedWhileItsVersionCannotBeRead(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	r := id.RunID{UUID: id.New(w.node.MintShard())}
	start := msg.StartOne{Run: r, AgentID: w.agent, AgentVersion: 1, Input: json.RawMessage(`"/say ok"`), Origin: msg.Origin{Kind: lifecycle.OriginAPIKey, ID: w.key}}
	w.store.down = errors.New("the connection was lost")
	if _, err := w.node.Ask(t.Context(), w.address(msg.KindRun, r.UUID), start); !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Errorf("a run: %v", err)
	}
	w.is("0", `SELECT count(*)::text FROM runs`)
	w.store.mu.Lock()
	w.store.down = nil
	w.store.mu.Unlock()
	w.ask(w.address(msg.KindRun, r.UUID), start)
	if got := w.ends(r); got != "succeeded" {
		t.Error(got)
	}
}

func TestALostCommitIsMadeGood(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	var once sync.Once
	w.writer.fails = func(c *journal.Commit) (err error) {
		if len(journaltest.Rows[*engine.StepUpdate](c)) > 0 {
			once.Do(func() { err = journal.ErrUnavailable })
		}
		return err
	}
	r := w.one(`"/say ok"`)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("abandoned succeeded", `SELECT string_agg(status, ' ' ORDER BY idx) FROM run_steps WHERE run_id = $1`, r)
}

// The last commit of a run holds although its activation got no answer: the next activation tells all
// that wait for the end.
func TestAnEndWithALostAnswerIsAnnounced(t *testing.T) {
	w := newWorld(t, simulatedAgent, withSlots)
	th := w.newThread()
	var once sync.Once
	w.writer.fails = func(c *journal.Commit) (err error) {
		if becomes(c, lifecycle.RunSucceeded) {
			once.Do(func() {
				if err = w.writer.Writer.Do(context.Background(), c); err == nil {
					err = journal.ErrUnsettled
				}
			})
		}
		return err
	}
	first := w.post(th, "/say a")
	second := w.post(th, "/say b")
	if got := w.ends(second); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("succeeded", `SELECT status FROM runs WHERE id = $1`, first)
	w.live.mu.Lock()
	defer w.live.mu.Unlock()
	if w.live.left[first] == 0 {
		t.Error("the readers of the first run were not told to read the facts")
	}
}

func TestAMissingVersionFailsItsRun(t *testing.T) {
	w := newWorld(t, simulatedAgent)
	w.version = 7
	r := w.post(w.newThread(), "x")
	w.ends(r)
	w.is("INTERNAL", `SELECT error_code FROM runs WHERE id = $1`, r)
}

// BenchmarkMessage is a message to a new thread until its run has ended: three awaited commits and one
// read, 64 at a time.
func BenchmarkMessage(b *testing.B) {
	w := newWorld(b, simulatedAgent)
	w.ends(w.post(w.newThread(), "warm up"))
	threads := make(chan id.ThreadID, b.N)
	for range b.N {
		threads <- w.newThread()
	}
	b.ReportAllocs()
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			<-w.live.end(w.post(<-threads, "/say hi"))
		}
	})
}

// becomes reports whether c gives a run that status.
func becomes(c *journal.Commit, status lifecycle.RunStatus) bool {
	u := journaltest.Row[*engine.RunUpdate](c)
	return u != nil && u.Status == status
}

type writerFunc func(context.Context, *journal.Commit) error

func (f writerFunc) Do(ctx context.Context, c *journal.Commit) error { return f(ctx, c) }
func (f writerFunc) Basis() uint64                                   { return 0 }
