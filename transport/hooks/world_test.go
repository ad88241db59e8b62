package hooks_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
	"agentsvc/transport/hooks"
	"agentsvc/transport/model/simulated"
	"agentsvc/transport/platform"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's clock for the Date field runs as long as the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// world is two nodes' edges over one database, with runs that are real.
type world struct {
	t      testing.TB
	admin  *pgxpool.Pool
	tables *store.Store
	node   *cluster.Node
	nodes  []*node
	tenant id.TenantID
	secret string // of an API key
	agent  id.AgentID
	fired  atomic.Int64
}

// node is one edge.
type node struct {
	addr     string
	platform *platform.Platform
	limits   *limits
	rows     *rows
	starts   atomic.Int64 // looks whether a target is there
}

// firer counts them.
type firer struct{ n *node }

func (f firer) Fire(ctx context.Context, c *edge.Caller, what platform.Firing) (*api.RunStarted, error) {
	return f.n.platform.Fire(ctx, c, what)
}

func (f firer) Starts(ctx context.Context, t id.TenantID, a api.TriggerTarget) (bool, error) {
	f.n.starts.Add(1)
	return f.n.platform.Starts(ctx, t, a)
}

// rows counts look-ups.
type rows struct {
	hooks.Rows
	found atomic.Int64
}

func (r *rows) Find(ctx context.Context, g id.TriggerID) (*store.Hook, error) {
	r.found.Add(1)
	return r.Rows.Find(ctx, g)
}

// limits are buckets that are full until they are told otherwise.
type limits struct {
	ip, back, tenant atomic.Int64
	noIP, noTenant   atomic.Bool
}

func (l *limits) Tenant(context.Context, id.TenantID) (time.Duration, bool, error) {
	l.tenant.Add(1)
	return time.Second, !l.noTenant.Load(), nil
}

func (l *limits) IP(context.Context, netip.Addr) (time.Duration, bool, error) {
	l.ip.Add(1)
	return time.Second, !l.noIP.Load(), nil
}

func (l *limits) User(context.Context, id.TenantID, id.UserID) (time.Duration, bool, error) {
	return 0, true, nil
}
func (l *limits) Public(context.Context, netip.Addr) (time.Duration, bool, error) {
	return 0, true, nil
}

func (l *limits) RefundIP(netip.Addr) { l.back.Add(1) }

// charged is what was taken of both buckets since the last call.
func (l *limits) charged() [2]int64 {
	return [2]int64{l.ip.Swap(0) - l.back.Swap(0), l.tenant.Swap(0)}
}

type tools struct{ platform.Tools }

func (tools) ForgetAccess(id.TenantID) {}

// revoker tells both nodes.
type revoker struct{ w *world }

func (r revoker) Revoke(ctx context.Context, what msg.Revoked) error {
	var errs []error
	for _, n := range r.w.nodes {
		errs = append(errs, n.platform.Forget(ctx, what))
	}
	return errors.Join(errs...)
}

func (r revoker) Suspect(ctx context.Context, what msg.Revoked) { _ = r.Revoke(ctx, what) }

// actors reaches the runs of the one node that has them.
type actors struct{ node *cluster.Node }

func (a actors) MintShard() id.Shard { return a.node.MintShard() }

func (a actors) Ask(ctx context.Context, kind string, t id.TenantID, to id.UUID, m any) (any, error) {
	return a.node.Ask(ctx, cluster.Address{Kind: kind, Tenant: t, ID: to}, m)
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := pgtest.New(t)
	keys := vault.New(vault.NewSecret32([32]byte{1}))
	system := db.System(t)
	w := &world{t: t, admin: db.System(t), tables: store.New(db.API(t), keys)}
	made, err := store.System(system, keys).CreateTenant(t.Context(), store.NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "first"})
	w.must(err)
	w.tenant, w.secret = made.Tenant, made.Secret
	w.agent = w.newAgent(true)

	writer := journaltest.Writer(t, db, journal.Config{Tables: workflow.Traits.Tables})
	w.node = clustertest.Node()
	durable.Register(w.node, writer, run.New(run.Config{Store: engine.New(system), Models: &testkit.Model{Client: simulated.Client{}.Stream}, Live: testkit.NoReaders{}, Sealer: keys, Tell: w.node, Log: zerolog.Nop()}), durable.Config{})
	durable.Register(w.node, writer, workflow.New(workflow.Config{Store: engine.New(system), Live: testkit.NoReaders{}, Sealer: keys, Actors: w.node, Log: zerolog.Nop()}), durable.Config{})
	testkit.Start(t, w.node)
	for range 2 {
		w.nodes = append(w.nodes, w.serve(store.NewHooks(system, keys)))
	}
	return w
}

func (w *world) serve(found hooks.Rows) *node {
	n := &node{limits: &limits{}, rows: &rows{Rows: found}}
	remembered := hooks.New(hooks.Config{Rows: n.rows})
	auth := platform.NewAuth(platform.AuthConfig{Keys: platform.StoredKeys(w.tables)})
	n.platform = platform.New(platform.Config{Store: w.tables, Auth: auth, Actors: actors{w.node}, Tools: tools{}, PublicURL: "https://agents.example.com", Revoker: revoker{w}, Hooks: remembered,
		Fired: func(id.TenantID, id.TriggerID, string) { w.fired.Add(1) }})
	table := edge.NewTable()
	n.platform.Register(table)
	remembered.Register(table, firer{n})
	srv, err := edge.NewServer(edge.Config{Table: table, Auth: auth, Limits: n.limits, Replays: platform.Replays{Store: w.tables}, Classify: platform.Classify,
		Log: zerolog.New(zerolog.NewTestWriter(w.t)).Level(zerolog.WarnLevel), DrainWindow: 50 * time.Millisecond})
	w.must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	n.addr = "http://" + ln.Addr().String()
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(ln); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		testkit.Stop(w.t, srv.Shutdown)
		served.Wait()
	})
	return n
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

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	w.must(w.admin.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// newAgent is one with a version, which may be published.
func (w *world) newAgent(published bool) (a id.AgentID) {
	w.t.Helper()
	w.must(w.tables.Change(context.Background(), store.By{Tenant: w.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		made, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
		if err != nil {
			return nil, err
		}
		a = made.ID
		if _, _, err = tx.CreateVersion(ctx, a, json.RawMessage(`{"model": {"provider": "simulated", "name": "sim"}}`)); err != nil || !published {
			return nil, err
		}
		_, _, err = tx.Publish(ctx, a, 1)
		return nil, err
	}))
	return a
}

// answer is a status with its body.
type answer struct {
	status int
	body   string
	header http.Header
}

// code is a problem's code, or the run's id.
func (a answer) code() string {
	var p struct {
		Code  string
		RunID string `json:"run_id"`
	}
	if json.Unmarshal([]byte(a.body), &p) != nil {
		return "no JSON: " + a.body
	}
	return p.Code + p.RunID
}

func (w *world) send(req *http.Request) answer {
	w.t.Helper()
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
	return answer{resp.StatusCode, string(b), resp.Header}
}

// admin calls the API with the key.
func (w *world) call(method, path, body string) answer {
	w.t.Helper()
	req, err := http.NewRequest(method, w.nodes[0].addr+path, bytes.NewReader([]byte(body)))
	w.must(err)
	req.Header.Set("Authorization", "Bearer "+w.secret)
	req.Header.Set("X-Tenant-Id", w.tenant.String())
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return w.send(req)
}

// hook is a trigger that was made.
type hook struct {
	ID     string
	URL    string `json:"hook_url"`
	Secret string
}

// create makes a trigger of the agent, with further members.
func (w *world) create(a id.AgentID, more string) (h hook) {
	w.t.Helper()
	return w.createFor(`{"agent_id": "`+a.String()+`"}`, more)
}

// createFor makes a hook for a target.
func (w *world) createFor(target, more string) (h hook) {
	w.t.Helper()
	got := w.call("POST", "/v1/triggers", `{"name": "T", "kind": "hook", "target": `+target+more+`}`)
	if got.status != http.StatusCreated {
		w.t.Fatalf("%d %s", got.status, got.body)
	}
	w.must(json.Unmarshal([]byte(got.body), &h))
	return h
}

// schedule makes a schedule of the agent and returns its id.
func (w *world) schedule() string {
	w.t.Helper()
	got := w.call("POST", "/v1/triggers", `{"name": "S", "kind": "schedule", "target": {"agent_id": "`+w.agent.String()+`"}, "schedule": {"cron": "0 0 1 1 *"}}`)
	if got.status != http.StatusCreated {
		w.t.Fatalf("%d %s", got.status, got.body)
	}
	var made struct{ ID string }
	w.must(json.Unmarshal([]byte(got.body), &made))
	return made.ID
}

func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// knock calls a hook with header fields, in pairs.
func (w *world) knock(n *node, trigger, body string, fields ...string) answer {
	w.t.Helper()
	req, err := http.NewRequest("POST", n.addr+"/hooks/"+trigger, bytes.NewReader([]byte(body)))
	w.must(err)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	return w.send(req)
}

const signature = "X-Svc-Signature-256"
