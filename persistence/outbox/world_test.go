package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = time.Minute

const (
	timeout = 10 * time.Second
	backoff = 5 * time.Second
)

// noon is when the tests begin: microseconds, as the database keeps.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// clock is the outbox's, moved by the test.
type clock struct{ at chan time.Time }

func newClock() *clock {
	c := &clock{make(chan time.Time, 1)}
	c.at <- noon
	return c
}

func (c *clock) now() time.Time {
	at := <-c.at
	c.at <- at
	return at
}

func (c *clock) set(at time.Time) {
	<-c.at
	c.at <- at
}

// world is a database with a tenant and a living member, and an outbox.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	pool   *pgxpool.Pool // for looking
	member id.MemberID
	tenant id.TenantID
	clock  *clock
	o      *Outbox
}

// newWorld makes a world; change may alter the outbox's configuration.
func newWorld(t testing.TB, change func(*Config)) *world {
	t.Helper()
	return worldIn(t, pgtest.New(t), change)
}

func worldIn(t testing.TB, db *pgtest.DB, change func(*Config)) *world {
	t.Helper()
	x := &world{t: t, db: db, pool: db.System(t), clock: newClock()}
	x.tenant = pgtest.Tenant(t, x.pool)
	x.member, x.o = x.process(change)
	return x
}

// process is one more process with an outbox of its own.
func (x *world) process(change func(*Config)) (id.MemberID, *Outbox) {
	x.t.Helper()
	member := pgtest.Member(x.t, x.pool)
	cfg := Config{Member: member, Timeout: timeout, Backoff: backoff, Now: x.clock.now}
	if change != nil {
		change(&cfg)
	}
	if cfg.Pool == nil {
		cfg.Pool = x.db.Writer(x.t)
	}
	return member, testkit.Start(x.t, New(cfg))
}

func (x *world) endpoint() Endpoint { return x.endpointOf(x.tenant) }

func (x *world) endpointOf(tenant id.TenantID) Endpoint {
	x.t.Helper()
	e := Endpoint{tenant, id.WebhookID{UUID: id.NewAnywhere()}}
	x.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.org', '{*}', '\x00')`, e.Tenant, e.ID)
	return e
}

// listener is an endpoint without a URL that expires at a time.
func (x *world) listener(expires time.Time) Endpoint {
	x.t.Helper()
	e := Endpoint{x.tenant, id.WebhookID{UUID: id.NewAnywhere()}}
	x.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret, expires_at) VALUES ($1, $2, '', '{*}', '\x00', $3)`, e.Tenant, e.ID, expires)
	return e
}

// pending writes a delivery that is due at a time.
func (x *world) pending(e Endpoint, due time.Time) id.DeliveryID {
	x.t.Helper()
	return x.pendingOf(e, due, fmt.Appendf(nil, `{"at":%q}`, due))
}

func (x *world) pendingOf(e Endpoint, due time.Time, body []byte) id.DeliveryID {
	x.t.Helper()
	d := id.DeliveryID{UUID: id.NewAnywhere()}
	x.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at) VALUES ($1, $2, $3, $4, 'run.completed', $5, $6, $7)`,
		e.Tenant, d, e.ID, id.NewAnywhere(), body, due, noon)
	return d
}

// backlog writes n deliveries that are due one microsecond after another until noon.
func (x *world) backlog(e Endpoint, n int, body []byte) {
	x.t.Helper()
	x.exec(`INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
		SELECT $1, new_id($4), $2, new_id($4), 'run.completed', $5, $4::timestamptz - n * interval '1 microsecond', $4 FROM generate_series(0, $3 - 1) AS n`,
		e.Tenant, e.ID, n, noon, body)
}

func (x *world) exec(sql string, args ...any) {
	x.t.Helper()
	if _, err := x.pool.Exec(context.Background(), sql, args...); err != nil {
		x.t.Fatalf("%s: %v", sql, err)
	}
}

// count answers a query of one number.
func (x *world) count(sql string, args ...any) int {
	x.t.Helper()
	var n int
	if err := x.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		x.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// row is a delivery as it is stored.
type row struct {
	Status         string
	Attempts       int
	BegunAt        *time.Time
	NextAttemptAt  *time.Time
	LastHTTPStatus *int
	LastError      *string
	AttemptLog     []logged
	Body           string
}

type logged struct {
	At         time.Time `json:"at"`
	HTTPStatus *int      `json:"http_status"`
	Error      *string   `json:"error"`
	DurationMS *int      `json:"duration_ms"`
}

func (x *world) row(d id.DeliveryID) row {
	x.t.Helper()
	rows, err := x.pool.Query(context.Background(), `SELECT status, attempts, begun_at, next_attempt_at, last_http_status, last_error, attempt_log, convert_from(body, 'UTF8')
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

// turn takes a Turn with the tests' deadline.
func (x *world) turn(t Turn) (Claimed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return x.o.Turn(ctx, t)
}

func (x *world) must(t Turn) Claimed {
	x.t.Helper()
	c, err := x.turn(t)
	if err != nil {
		x.t.Fatalf("turn: %v", err)
	}
	return c
}

// claim claims exactly one delivery.
func (x *world) claim(e Endpoint) Attempt {
	x.t.Helper()
	c := x.must(Turn{Endpoint: e, Want: 1})
	if len(c.Attempts) != 1 {
		x.t.Fatalf("claimed %d", len(c.Attempts))
	}
	return c.Attempts[0]
}

func ptr[T any](v T) *T { return &v }
