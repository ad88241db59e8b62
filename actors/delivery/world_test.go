package delivery

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
	"agentsvc/transport/egress"
	send "agentsvc/transport/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database with a tenant, and the endpoints and receivers of a test.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	pool   *pgxpool.Pool // for looking and changing
	tenant id.TenantID
	peers  cluster.Peers // of the processes that are started
}

func newWorld(t testing.TB) *world {
	t.Helper()
	x := &world{t: t, db: pgtest.New(t)}
	x.pool = x.db.System(t)
	x.tenant = pgtest.Tenant(t, x.pool)
	return x
}

func (x *world) exec(sql string, args ...any) {
	x.t.Helper()
	if _, err := x.pool.Exec(context.Background(), sql, args...); err != nil {
		x.t.Fatalf("%s: %v", sql, err)
	}
}

// Endpoint reads an endpoint's row; the tests' secrets are not sealed.
func (x *world) Endpoint(ctx context.Context, t id.TenantID, w id.WebhookID) (*store.Endpoint, error) {
	var to store.Endpoint
	var secret []byte
	err := x.pool.QueryRow(ctx, `SELECT url, secret, enabled FROM webhooks WHERE tenant_id = $1 AND id = $2`, t, w).
		Scan(&to.URL, &secret, &to.Enabled)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	to.Secret = vault.NewSecret(secret)
	return &to, err
}

func (x *world) endpoint(url string) outbox.Endpoint {
	x.t.Helper()
	e := outbox.Endpoint{Tenant: x.tenant, ID: id.WebhookID{UUID: id.NewAnywhere()}}
	x.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, $3, '{*}', convert_to('whsec_first', 'UTF8'))`, e.Tenant, e.ID, url)
	return e
}

// pending writes n deliveries of an endpoint that are due now.
func (x *world) pending(e outbox.Endpoint, n int) (all []id.DeliveryID) {
	x.t.Helper()
	rows, err := x.pool.Query(context.Background(), `
		INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
		SELECT $1, new_id(now()), $2, new_id(now()), 'run.completed', convert_to('{"n":' || n || ',"café":"☕"}', 'UTF8'), now(), now() FROM generate_series(1, $3) AS n
		RETURNING id`, e.Tenant, e.ID, n)
	if err != nil {
		x.t.Fatal(err)
	}
	if all, err = pgx.CollectRows(rows, pgx.RowTo[id.DeliveryID]); err != nil {
		x.t.Fatal(err)
	}
	return all
}

// row is a delivery as it is stored.
type row struct {
	Status         string
	Attempts       int
	Begun          bool
	NextAttemptAt  *time.Time
	LastHTTPStatus *int
	LastError      *string
	Log            []struct {
		At         time.Time `json:"at"`
		HTTPStatus *int      `json:"http_status"`
		Error      *string   `json:"error"`
		DurationMS *int      `json:"duration_ms"`
	}
	Body []byte
}

func (x *world) row(d id.DeliveryID) row {
	x.t.Helper()
	rows, err := x.pool.Query(context.Background(), `SELECT status, attempts, begun_at IS NOT NULL, next_attempt_at, last_http_status, last_error, attempt_log, body
		FROM webhook_deliveries WHERE id = $1`, d)
	if err != nil {
		x.t.Fatal(err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
	if err != nil {
		x.t.Fatal(err)
	}
	return r
}

// count is how many deliveries of an endpoint have a status.
func (x *world) count(e outbox.Endpoint, status string) (n int) {
	x.t.Helper()
	if err := x.pool.QueryRow(context.Background(), `SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1 AND status = $2`, e.ID, status).Scan(&n); err != nil {
		x.t.Fatal(err)
	}
	return n
}

const (
	testTimeout = 2 * time.Second
	testBackoff = 100 * time.Millisecond
)

// process is a node with an outbox and a sender of its own.
type process struct {
	*cluster.Node
	box     *outbox.Outbox
	targets *Targets
	hosting *hosting
}

// process starts one. change may alter what its kind is given.
func (x *world) process(change func(*Config)) *process {
	x.t.Helper()
	member := pgtest.Member(x.t, x.pool)
	p := &process{
		box:     testkit.Start(x.t, outbox.New(outbox.Config{Pool: x.db.Writer(x.t), Member: member, Timeout: testTimeout, Backoff: testBackoff})),
		targets: NewTargets(TargetsConfig{Endpoints: x}),
	}
	cfg := Config{Outbox: p.box, Endpoints: p.targets, Sender: newSender(x.t, testTimeout), Backoff: testBackoff, Log: zerolog.Nop()}
	if change != nil {
		change(&cfg)
	}
	p.Node, p.hosting = node(x.t, member, x.peers, cfg)
	return p
}

// node starts a node that hosts the kind.
func node(t testing.TB, member id.MemberID, peers cluster.Peers, cfg Config) (*cluster.Node, *hosting) {
	t.Helper()
	n := cluster.New(cluster.Config{Member: member, Peers: peers, Log: zerolog.Nop()})
	h := register(n, cfg)
	return testkit.Start(t, n), h
}

// wake is what Hearers, routes and the sweep do.
func wake(n *cluster.Node, es ...outbox.Endpoint) {
	for _, e := range es {
		n.Tell(Address(e.Tenant, e.ID), durable.Wake{})
	}
}

func left(n *cluster.Node, e outbox.Endpoint) bool { return !n.Active(Address(e.Tenant, e.ID)) }

// sender joins the real sender, as the service does.
type sender struct{ *send.Sender }

func (s sender) Send(ctx context.Context, to *store.Endpoint, a outbox.Attempt) Outcome {
	return Outcome(s.Sender.Send(ctx, send.Message{URL: to.URL, Secret: string(to.Secret.Reveal()), Delivery: a.Delivery, Body: a.Body}))
}

func newSender(t testing.TB, timeout time.Duration) sender {
	s := send.New(send.Config{
		Guard:   egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}),
		Timeout: timeout, Grace: 300 * time.Millisecond, RequireTLS: true, Version: "test",
	})
	t.Cleanup(s.Close)
	return sender{s}
}

// heard is one request that a receiver got.
type heard struct {
	at        time.Time
	delivery  string
	signature string
	body      string
}

func (h heard) signed(secret string) bool {
	return webhook.Verify(secret, h.signature, []byte(h.body), time.Now()) == nil
}

// receiver is an endpoint's server. It responds as answer says, 200 by default.
type receiver struct {
	url    string
	answer func(w http.ResponseWriter, r *http.Request, n int) // n requests came before

	mu  sync.Mutex // guards all
	all []heard
}

func newReceiver(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, n int)) *receiver {
	t.Helper()
	v := &receiver{answer: answer}
	s := httptest.NewServer(v)
	t.Cleanup(s.Close)
	v.url = s.URL
	return v
}

func (v *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return // it was called off
	}
	v.mu.Lock()
	n := len(v.all)
	v.all = append(v.all, heard{time.Now(), r.Header.Get(webhook.DeliveryHeader), r.Header.Get(webhook.SignatureHeader), string(b)})
	v.mu.Unlock()
	if v.answer != nil {
		v.answer(w, r, n)
	}
}

func (v *receiver) heard() []heard {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]heard(nil), v.all...)
}

// of is how often a receiver heard of each delivery.
func (v *receiver) of() map[string]int {
	out := map[string]int{}
	for _, h := range v.heard() {
		out[h.delivery]++
	}
	return out
}

func status(code int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(code) }
}

// hang does not respond until the other side leaves.
func hang(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }
