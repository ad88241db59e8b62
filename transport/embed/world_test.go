package embed_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
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
	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/actors/run"
	"agentsvc/actors/stream"
	"agentsvc/actors/thread"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/edge"
	"agentsvc/transport/edge/sse"
	"agentsvc/transport/embed"
	"agentsvc/transport/embed/session"
	"agentsvc/transport/model/simulated"
	"agentsvc/transport/platform"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's clock for the Date field runs as long as the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

const (
	patience = time.Minute
	// service is where the service says that it is; page is where the widget is.
	service = "https://agents.example.com"
	page    = "https://shop.example.com"
)

// world is one node: an edge with its routes, threads, runs, streams and limits, over
// a database.
type world struct {
	t        testing.TB
	admin    *pgxpool.Pool
	tables   *store.Store
	embed    *embed.Embed
	platform *platform.Platform
	server   *edge.Server
	models   *testkit.Model
	signer   *session.Signer
	clock    *clock
	addr     string // host and port
	tokenTTL time.Duration
	bundle   atomic.Pointer[edge.Static] // nil: there is none
	down     atomic.Bool                 // the node has no lease
	a, b     party
}

// limits are the limits of the embed API.
type limits struct {
	bucket.Embed
	hold.EmbedStreams
}

// party is a tenant with an agent.
type party struct {
	tenant id.TenantID
	secret string // of an API key
	agent  id.AgentID
}

// clock runs ahead of the machine's, or behind.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

type relays struct{ hubs *stream.Hubs }

func (r relays) OpenRelay(ctx context.Context, t id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	reader, err := r.hubs.OpenRelay(ctx, t, run, from)
	if err != nil {
		return nil, err
	}
	return subscriber{reader}, nil
}

// Open is the platform's stream of the same run.
func (r relays) Open(ctx context.Context, t id.TenantID, run id.RunID, from event.Cursor) (edge.Subscriber, error) {
	reader, err := r.hubs.Open(ctx, t, run, from)
	if err != nil {
		return nil, err
	}
	return subscriber{reader}, nil
}

type subscriber struct{ *stream.Reader }

func (s subscriber) Attach(c *edge.Conn) { s.Reader.Attach(c) }

type tools struct{ platform.Tools }

func (tools) ForgetAccess(id.TenantID) {}

// server is a tool server: of what it has, CANARY_gated needs a person's approval.
type server struct{}

func (server) Offer(context.Context, tool.Caller) ([]model.ToolSpec, error) {
	return []model.ToolSpec{{Name: "CANARY_tool"}, {Name: "CANARY_gated"}}, nil
}

func (server) Plan(_ context.Context, t tool.Caller, _ int, calls []model.Call) (plan []tool.Planned, err error) {
	for _, c := range calls {
		p := tool.Planned{CallID: c.ID, Tool: c.Name, Args: c.Args, Shown: c.Args}
		if c.Name == "CANARY_gated" {
			p.Schema = json.RawMessage(`{"type": "object", "title": "CANARY schema"}`)
			p.Terms = &tool.Terms{Risk: lifecycle.RiskHigh, Required: 1, Role: lifecycle.RoleAdmin, SLAMinutes: 60, OnTimeout: agent.TimeoutReject, Policy: tool.PolicyRef{Name: "CANARY policy", Kind: tool.KindPolicy}}
			p.Approval = &id.ApprovalID{UUID: id.New(t.Run.Shard())}
		}
		plan = append(plan, p)
	}
	return plan, nil
}

func (server) Prepare(tool.Caller) {}

func (server) Preview(context.Context, tool.Caller, int, tool.Planned) *tool.Outcome { return nil }

func (server) Call(context.Context, tool.Caller, int, tool.Planned) tool.Outcome {
	return tool.Outcome{Content: "CANARY output", Shown: json.RawMessage(`"CANARY output"`)}
}

// actors reaches the threads and runs of the node.
type actors struct{ node *cluster.Node }

func (a actors) MintShard() id.Shard { return a.node.MintShard() }

func (a actors) Ask(ctx context.Context, kind string, t id.TenantID, to id.UUID, m any) (any, error) {
	return a.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: t, ID: to}, m)
}

func newWorld(t testing.TB) *world { return worldWith(t, func(*embed.Config) {}) }

func worldWith(t testing.TB, with func(*embed.Config)) *world {
	t.Helper()
	db := pgtest.New(t)
	keys := vault.New(vault.NewSecret32([32]byte{1}))
	system := db.System(t)
	w := &world{t: t, admin: db.System(t), tables: store.New(db.API(t), keys), models: &testkit.Model{Client: simulated.Client{}.Stream}, signer: session.NewSigner(keys), clock: &clock{}}
	for _, p := range []*party{&w.a, &w.b} {
		made, err := store.System(system, keys).CreateTenant(t.Context(), store.NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "first"})
		w.must(err)
		p.tenant, p.secret = made.Tenant, made.Secret
		p.agent = w.newAgent(*p, simple)
	}

	writer := journaltest.Writer(t, db, journal.Config{Tables: engine.Tables})
	node := clustertest.Node()
	hubs := stream.New(stream.Config{Node: node, Source: feed.New(db.API(t)), Heads: feed.NewSweep(system), Log: zerolog.Nop()})
	rows := engine.New(system)
	versions := platform.NewVersions(w.tables, nil)
	durable.Register(node, writer, run.New(run.Config{Store: rows, Models: w.models, Live: hubs, Sealer: keys, Tell: node, Tools: server{}, Log: zerolog.Nop()}), durable.Config{})
	durable.Register(node, writer, approval.New(approval.Config{Store: rows, Vault: keys, Tell: node, Seal: w.tables.SealAnswer, Hears: func(id.TenantID) bool { return false }, Log: zerolog.Nop()}), durable.Config{})
	thread.Register(node, writer, thread.Config{Store: rows, Tell: node, Published: versions.Published, Version: versions.Speaking, Ready: run.Kept{Ready: true}.Encode(), Log: zerolog.Nop()}, durable.Config{})
	rate := bucket.PerSecond(1<<16, 1<<16)
	keeper := bucket.NewKeeper(bucket.KeeperConfig{Kind: msg.KindLimit, Rate: rate, Now: time.Now, Log: zerolog.Nop()})
	node.RegisterShared(msg.KindLimit, keeper.Behavior)
	node.Serve(keeper.Service(), keeper.Served)
	node.OnChange(keeper.Changed)
	t.Cleanup(func() { testkit.Stop(t, keeper.Stop) })
	holds := hold.New(hold.Config{Node: node, Now: time.Now})
	node.RegisterShared(hold.Kind, holds.Behavior)
	node.Serve(hold.Service, holds.Served)
	node.OnChange(holds.Changed)
	t.Cleanup(holds.Stop)
	ledger := bucket.NewLedger(bucket.LedgerConfig{Node: node, Rate: rate})
	node.Serve(bucket.ServiceRecall, ledger.Served)
	testkit.Start(t, node)
	w.must(hubs.Start(t.Context()))
	t.Cleanup(hubs.Stop)
	w.must(ledger.Start(t.Context()))
	t.Cleanup(ledger.Stop)
	t.Cleanup(w.models.Release)

	cfg := embed.Config{Rows: store.NewEmbedKeys(system, keys), Store: w.tables, Limits: limits{bucket.Embed{Ledger: ledger}, hold.EmbedStreams{Semaphores: holds}}, Streams: relays{hubs}, Signer: w.signer,
		TokenTTL: time.Hour, PublicURL: service, Now: w.clock.now, Bundle: w.bundle.Load}
	with(&cfg)
	w.tokenTTL = cfg.TokenTTL
	w.embed = embed.New(cfg)
	auth := platform.NewAuth(platform.AuthConfig{Keys: platform.StoredKeys(w.tables)})
	w.platform = platform.New(platform.Config{Store: w.tables, Auth: auth, Versions: versions, Actors: actors{node}, Streams: relays{hubs}, Tools: tools{}, PublicURL: service, Embeds: w.embed,
		EndVisits: func(t id.TenantID, key id.EmbedKeyID, user id.EndUserID) {
			w.server.CloseWhere(func(o sse.Owner) bool {
				return o.Tenant == t && (!key.IsZero() && o.EmbedKey == key || !user.IsZero() && o.EndUser == user)
			})
		}})
	table := edge.NewTable()
	w.platform.Register(table)
	w.embed.Register(table, w.platform)
	srv, err := edge.NewServer(edge.Config{Table: table, Auth: auth, Limits: ledger, Replays: platform.Replays{Store: w.tables}, Classify: platform.Classify,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Live: func() bool { return !w.down.Load() },
		Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel), Streams: sse.Config{Heartbeat: 200 * time.Millisecond}, DrainWindow: 50 * time.Millisecond})
	w.must(err)
	w.server = srv
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.addr = ln.Addr().String()
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(ln); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		testkit.Stop(t, srv.Shutdown)
		served.Wait()
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.admin.Exec(context.Background(), sql, args...)
	w.must(err)
}

// text answers a query of one text.
func (w *world) text(sql string, args ...any) string {
	w.t.Helper()
	var s *string
	if err := w.admin.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
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

// end waits until a run has ended, and says how.
func (w *world) end(run string) (status string) {
	w.t.Helper()
	testkit.Eventually(w.t, "the run ends", func() bool {
		status = w.text(`SELECT CASE WHEN finished_at IS NULL THEN '' ELSE status::text END FROM runs WHERE id = $1`, run)
		return status != ""
	})
	return status
}

const (
	simple  = `{"model": {"provider": "simulated", "name": "sim"}}`
	armed   = `{"model": {"provider": "simulated", "name": "sim"}, "tools": {"mcp": [{"server": "canary"}]}}`
	guarded = `{"model": {"provider": "simulated", "name": "sim"}, "guardrails": {"output": [{"kind": "max_chars", "value": 10000, "action": "block"}]}}`
)

// newAgent is a published one, or one without a version where the manifest is empty.
func (w *world) newAgent(p party, manifest string) (a id.AgentID) {
	w.t.Helper()
	w.must(w.tables.Change(context.Background(), store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		made, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Order desk", Emoji: "📦"})
		if err != nil {
			return nil, err
		}
		a = made.ID
		if manifest == "" {
			return nil, nil
		}
		if _, _, err = tx.CreateVersion(ctx, a, json.RawMessage(manifest)); err != nil {
			return nil, err
		}
		_, _, err = tx.Publish(ctx, a, 1)
		return nil, err
	}))
	return a
}

// answer is a status with its head and body.
type answer struct {
	status int
	header http.Header
	body   string
}

// code is a problem's code, empty for what is none.
func (a answer) code() string {
	var p struct{ Code string }
	_ = json.Unmarshal([]byte(a.body), &p)
	return p.Code
}

// get reads a member of the answer by its path: "agent.name", "items.0.id".
func (a answer) get(path string) string {
	var v any
	if json.Unmarshal([]byte(a.body), &v) != nil {
		return ""
	}
	for part := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i >= len(in) {
				return ""
			}
			v = in[i]
		default:
			return ""
		}
	}
	if v == nil {
		return ""
	}
	if s, ok := v.(string); ok {
		return s
	}
	b, _ := json.Marshal(v)
	return string(b)
}

var addresses atomic.Int64

// stranger returns an address that was not used before.
func stranger() string {
	n := addresses.Add(1)
	return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)
}

// send makes a request with header fields, in pairs: one with an empty value is left
// out, whatever comes before. It comes from a new address, unless they say from which.
func (w *world) send(method, path, body string, fields ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+w.addr+path, strings.NewReader(body))
	w.must(err)
	req.Header.Set("X-Forwarded-For", stranger())
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(fields); i += 2 {
		if req.Header.Del(fields[i]); fields[i+1] != "" {
			req.Header.Set(fields[i], fields[i+1])
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Error(err)
		return answer{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// call makes a request of the party's back end.
func (w *world) call(p party, method, path, body string, fields ...string) answer {
	w.t.Helper()
	return w.send(method, path, body, append([]string{"Authorization", "Bearer " + p.secret, "X-Tenant-Id", p.tenant.String()}, fields...)...)
}

func (w *world) ok(a answer, status int) answer {
	w.t.Helper()
	if a.status != status {
		w.t.Fatalf("%d %s, want %d", a.status, a.body, status)
	}
	return a
}

// key is an embed key.
type key struct {
	party
	ID     id.EmbedKeyID
	Key    string
	Secret string `json:"identity_secret"`
}

var names atomic.Int64

// newKey makes an embed key for the page, of the agent, with further members.
func (w *world) newKey(p party, a id.AgentID, more string) key {
	w.t.Helper()
	return w.keyFor(p, a, `["`+page+`"]`, more)
}

func (w *world) keyFor(p party, a id.AgentID, origins, more string) (k key) {
	w.t.Helper()
	k.party = p
	got := w.ok(w.call(p, "POST", "/v1/embed-keys", fmt.Sprintf(`{"agent_id": %q, "name": "Key %d", "allowed_origins": %s%s}`, a, names.Add(1), origins, more)), 201)
	w.must(json.Unmarshal([]byte(got.body), &k))
	return k
}

func (w *world) patch(k key, body string) {
	w.t.Helper()
	w.ok(w.call(k.party, "PATCH", "/v1/embed-keys/"+k.ID.String(), body), 200)
}

// of are the fields of a call with the key from the page.
func of(k key, more ...string) []string {
	return append([]string{"X-Svc-Embed-Key", k.Key, "Origin", page}, more...)
}

// guest is a visitor with a session.
type guest struct {
	w         *world
	key       key
	Token     string
	Visitor   string
	VisitorID string    `json:"visitor_id"`
	EndUserID string    `json:"end_user_id"`
	ExpiresAt time.Time `json:"expires_at"`
}

// visit begins a session of a new visitor, or as body says.
func (w *world) visit(k key, body string) *guest {
	w.t.Helper()
	g := &guest{w: w, key: k}
	got := w.ok(w.send("POST", "/v1/embed/session", body, of(k)...), 200)
	w.must(json.Unmarshal([]byte(got.body), g))
	return g
}

// send makes a request of the visitor's.
func (g *guest) send(method, path, body string, fields ...string) answer {
	g.w.t.Helper()
	return g.w.send(method, path, body, append([]string{"Authorization", "Bearer " + g.Token, "Origin", page}, fields...)...)
}

// said is an accepted message.
type said struct {
	Thread  string `json:"thread_id"`
	Run     string `json:"run_id"`
	Message string `json:"message_id"`
}

// message is the body of a message; no thread begins one.
func message(content, thread string) string {
	b, err := json.Marshal(struct {
		Content string `json:"content"`
		Thread  string `json:"thread_id,omitempty"`
	}{content, thread})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// say posts a message that is accepted.
func (g *guest) say(content, thread string) (s said) {
	g.w.t.Helper()
	got := g.w.ok(g.send("POST", "/v1/embed/messages", message(content, thread)), 202)
	g.w.must(json.Unmarshal([]byte(got.body), &s))
	return s
}

// frame is one frame of a stream.
type frame struct{ event, id, data string }

// events is an open stream.
type events struct {
	w      *world
	head   *http.Response
	lines  *bufio.Scanner
	cancel context.CancelFunc
}

// open opens a stream of the visitor's; where it is refused, that is the answer.
func (g *guest) open(run, query string, fields ...string) (*events, answer) {
	g.w.t.Helper()
	return g.w.open("/v1/embed/runs/"+run+"/events"+query, append([]string{"Authorization", "Bearer " + g.Token, "Origin", page}, fields...)...)
}

func (w *world) open(path string, fields ...string) (*events, answer) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+w.addr+path, nil)
	w.must(err)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("X-Forwarded-For", stranger())
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	w.must(err)
	if resp.StatusCode != http.StatusOK {
		defer cancel()
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		w.must(err)
		return nil, answer{resp.StatusCode, resp.Header, string(b)}
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return &events{w, resp, lines, cancel}, answer{status: resp.StatusCode, header: resp.Header}
}

// close is what a browser does that leaves.
func (e *events) close() {
	e.cancel()
	e.head.Body.Close()
}

// next is the next frame; false: the stream has ended.
func (e *events) next() (f frame, ok bool) {
	e.w.t.Helper()
	for e.lines.Scan() {
		line := e.lines.Text()
		switch name, value, _ := strings.Cut(line, ": "); {
		case line == "":
			if f.event != "" {
				return f, true
			}
		case name == "event":
			f.event = value
		case name == "id":
			f.id = value
		case name == "data":
			f.data = value
		}
	}
	if err := e.lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		e.w.t.Error(err)
	}
	return f, false
}

// until reads frames up to one of the type, which the last one is, leaving heartbeats
// out; or to the stream's end.
func (e *events) until(event string) (all []frame) {
	e.w.t.Helper()
	for {
		f, ok := e.next()
		if !ok {
			return all
		}
		if f.event != "heartbeat" {
			all = append(all, f)
		}
		if f.event == event {
			return all
		}
	}
}

// watch reads the whole stream of a run.
func (g *guest) watch(run, query string, fields ...string) []frame {
	g.w.t.Helper()
	e, refused := g.open(run, query, fields...)
	if e == nil {
		g.w.t.Fatalf("%d %s", refused.status, refused.body)
	}
	defer e.close()
	return e.until("")
}

// raw sends bytes and reads what comes back until the connection is closed.
func (w *world) raw(request string) string {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	w.must(err)
	defer c.Close()
	w.must(c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, request)
	w.must(err)
	var b bytes.Buffer
	_, _ = b.ReadFrom(c)
	return b.String()
}

// filled is a thread of the visitor's that no run is open in, with as many messages.
func (w *world) filled(g *guest, messages int) (s said) {
	w.t.Helper()
	by := "embed:vid:" + g.VisitorID
	if g.EndUserID != "" {
		by = "embed:eu:" + g.EndUserID
	}
	s.Thread, s.Run = id.New(3).String(), id.New(3).String()
	w.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by, next_seq) SELECT tenant_id, $2, agent_id, $3, 1001 FROM embed_keys WHERE id = $1`, g.key.ID, s.Thread, by)
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, created_at, finished_at)
		SELECT tenant_id, $2, 'succeeded', agent_id, 1, $3, 1000, 'embed_key', id, now(), now() FROM embed_keys WHERE id = $1`, g.key.ID, s.Run, s.Thread)
	w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at)
		SELECT $1, $2, 1001 - n, gen_random_uuid(), CASE n % 2 WHEN 1 THEN 'user' ELSE 'assistant' END, 'no ' || n, CASE n WHEN 1 THEN $3::uuid END, now() FROM generate_series(1, $4) n`,
		g.key.tenant, s.Thread, s.Run, messages)
	return s
}

// emptied repeats a call until its bucket is empty, and answers how often it was not
// refused for that, and the answer that says so.
func (w *world) emptied(call func() answer) (passed int, refusal answer) {
	w.t.Helper()
	for range 10_000 {
		if refusal = call(); refusal.code() == "RATE_LIMITED" {
			return passed, refusal
		}
		passed++
	}
	w.t.Fatalf("10,000 calls were let in, the last: %d %s", refusal.status, refusal.body)
	return 0, answer{}
}
