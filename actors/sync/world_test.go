package sync_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
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
	syncs "agentsvc/actors/sync"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/connector"
	"agentsvc/transport/connector/connectortest"
	"agentsvc/transport/connector/vendor"
	"agentsvc/transport/egress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock stands still until it is set.
type clock struct{ at atomic.Pointer[time.Time] }

func (c *clock) now() time.Time   { return *c.at.Load() }
func (c *clock) set(at time.Time) { c.at.Store(&at) }

// world is a database with a knowledge base, a store of files, and nodes that own every shard
// each: two activations of one source may live at once.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	admin  *pgxpool.Pool
	tables *store.Store
	rows   *store.Syncs
	keys   *vault.Vault
	writer *journal.Writer
	clock  *clock
	blobs  *blob.Store
	tenant id.TenantID
	base   id.KnowledgeBaseID
	office string // addresses of drives
	cloud  string

	silence time.Duration // after which a vendor hangs

	mu    sync.Mutex // guards woken
	woken map[id.UUID]bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := open(t, pgtest.New(t), t.TempDir())
	w.begin()
	return w
}

// begin makes the tenant and its knowledge base.
func (w *world) begin() {
	w.t.Helper()
	made, err := store.System(w.db.System(w.t), w.keys).CreateTenant(w.t.Context(), store.NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "first"})
	w.must(err)
	w.tenant, w.base = made.Tenant, id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'Base')`, w.tenant, w.base)
}

func open(t testing.TB, db *pgtest.DB, dir string) *world {
	t.Helper()
	w := &world{t: t, db: db, keys: vault.New(vault.NewSecret32([32]byte{1})), clock: &clock{}, silence: 5 * time.Second, woken: map[id.UUID]bool{}}
	w.clock.set(time.Now())
	var err error
	w.blobs, err = blob.New(dir, id.NewAnywhere().String())
	w.must(err)
	w.admin, w.tables, w.rows = db.System(t), store.New(db.API(t), w.keys), store.NewSyncs(db.System(t), w.keys)
	w.writer = journaltest.Writer(t, db, journal.Config{Tables: slices.Concat(engine.Tables, syncs.Traits.Tables), Log: zerolog.Nop()})
	return w
}

// files is the store of files, as cmd/svc joins it.
type files struct{ *blob.Store }

func key(t id.TenantID, f id.FileID) string { return store.DocumentFile(t, f) }

func (f files) Put(ctx context.Context, t id.TenantID, at id.FileID, r io.Reader, most int64) (int64, [sha256.Size]byte, error) {
	return f.Store.Put(ctx, key(t, at), r, most)
}
func (f files) Settle(t id.TenantID, at id.FileID, known bool) { f.Store.Settle(key(t, at), known) }
func (f files) Delete(ctx context.Context, t id.TenantID, at id.FileID) error {
	return f.Store.Delete(ctx, key(t, at))
}
func (files) TooLarge(err error) bool { return errors.Is(err, blob.ErrTooLarge) }

// Tell notes which documents are woken.
func (w *world) Tell(a cluster.Address, _ any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken[a.ID] = true
}

// start begins a node. cfg has what differs from the service.
func (w *world) start(cfg syncs.Config) *cluster.Node {
	w.t.Helper()
	guard := egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Observe: func(to netip.AddrPort, _ error) error {
		if !to.Addr().Unmap().IsLoopback() {
			return errors.New("tests dial loopback only")
		}
		return nil
	}})
	all := connector.New(connector.Config{Guard: guard, OfficeDriveURL: w.office, CloudDriveURL: w.cloud, RequireTLS: true, Version: "test",
		Timing: vendor.Timing{Call: 10 * time.Second, File: 10 * time.Second, Silence: w.silence, Backoff: time.Millisecond, MaxWait: 50 * time.Millisecond, Polite: -1}})
	w.t.Cleanup(all.Close)
	if cfg.Store == nil {
		cfg.Store = w.rows
	}
	if cfg.Files == nil {
		cfg.Files = files{w.blobs}
	}
	cfg.Connect, cfg.Tell, cfg.Log = all.Open, w, zerolog.Nop()
	cfg.Hears = func(id.TenantID) bool { return true }
	n := clustertest.Node()
	syncs.Register(n, w.writer, cfg, durable.Config{Now: w.clock.now, Log: zerolog.Nop()})
	return testkit.Start(w.t, n)
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

func (w *world) change(fn func(ctx context.Context, tx *store.Tx) error) error {
	w.t.Helper()
	return w.tables.Change(context.Background(), store.By{Tenant: w.tenant, Actor: "user:x"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		return nil, fn(ctx, tx)
	})
}

// source creates a source.
func (w *world) source(in api.SourceCreate) (s id.SourceID) {
	w.t.Helper()
	in.Name = "S"
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error {
		made, err := tx.CreateSource(ctx, w.base, &in)
		if err == nil {
			s = made.ID
		}
		return err
	}))
	return s
}

// officeDrive makes a source of the drive that w.office serves.
func (w *world) officeDrive() id.SourceID {
	w.t.Helper()
	return w.source(api.SourceCreate{Kind: lifecycle.SourceOfficeDrive, Config: config(map[string]any{"drive_id": "drive-1"}), Credentials: map[string]string{"access_token": connectortest.Token}})
}

// bucket creates a source of an object store.
func (w *world) bucket(f *connectortest.S3) id.SourceID {
	return w.source(api.SourceCreate{Kind: lifecycle.SourceObjectStore, Config: config(map[string]any{"endpoint": f.URL, "region": "eu-test-1", "bucket": "docs"}),
		Credentials: map[string]string{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret}})
}

func config(v map[string]any) api.Object {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// dueNow says that the timer is due.
var dueNow = durable.TimerDue{Name: "due"}

// queue queues a sync, as the API does.
func (w *world) queue(s id.SourceID) error {
	return w.change(func(ctx context.Context, tx *store.Tx) error {
		_, _, err := tx.SyncSource(ctx, w.base, s)
		return err
	})
}

func (w *world) patch(s id.SourceID, p api.SourcePatch) {
	w.t.Helper()
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.UpdateSource(ctx, w.base, s, &p)
		return err
	}))
}

func (w *world) wake(n *cluster.Node, s id.SourceID) { n.Tell(w.at(s), durable.Wake{}) }

func (w *world) at(s id.SourceID) cluster.Address {
	return cluster.Address{Kind: msg.KindSync, Tenant: w.tenant, ID: s.UUID}
}

func (w *world) row(s id.SourceID) *api.Source {
	w.t.Helper()
	row, err := w.tables.View(w.tenant).Source(context.Background(), w.base, s)
	w.must(err)
	return row
}

// ends waits until a sync has ended and returns the row.
func (w *world) ends(n *cluster.Node, s id.SourceID) *api.Source {
	w.t.Helper()
	testkit.Eventually(w.t, "the sync ends", func() bool {
		st := w.row(s).Status
		return st != lifecycle.SourceQueued && st != lifecycle.SourceSyncing && !n.Active(w.at(s))
	})
	return w.row(s)
}

// sync syncs a source and returns its row.
func (w *world) sync(n *cluster.Node, s id.SourceID) *api.Source {
	w.t.Helper()
	w.must(w.queue(s))
	w.wake(n, s)
	return w.ends(n, s)
}

// syncs is sync, which succeeds.
func (w *world) syncs(n *cluster.Node, s id.SourceID) {
	w.t.Helper()
	if row := w.sync(n, s); row.Status != lifecycle.SourceOK || row.LastError != nil || row.LastSyncedAt == nil {
		w.t.Fatalf("%s: %v", row.Status, said(row))
	}
}

func said(row *api.Source) string {
	if row.LastError == nil {
		return ""
	}
	return *row.LastError
}

// document is a row of a document.
type document struct {
	id      id.DocumentID
	item    string
	name    string
	uri     string
	status  string
	error   string
	content int
	owes    bool
	text    string
}

// documents returns the documents of a source by item, with their contents.
func (w *world) documents(s id.SourceID) map[string]document {
	w.t.Helper()
	rows, err := w.admin.Query(context.Background(), `SELECT id, item, name, coalesce(uri, ''), status::text, coalesce(error, ''), content, owes, file FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL`, s)
	w.must(err)
	defer rows.Close()
	out := map[string]document{}
	for rows.Next() {
		var d document
		var f id.FileID
		w.must(rows.Scan(&d.id, &d.item, &d.name, &d.uri, &d.status, &d.error, &d.content, &d.owes, &f))
		if _, twice := out[d.item]; twice {
			w.t.Errorf("%s is there twice", d.item)
		}
		if d.status != "failed" {
			r, _, err := w.blobs.Open(context.Background(), key(w.tenant, f))
			if err != nil {
				w.t.Fatalf("%s: %v", d.item, err)
			}
			b, err := io.ReadAll(r)
			w.must(err)
			r.Close()
			d.text = string(b)
		}
		out[d.item] = d
	}
	w.must(rows.Err())
	return out
}

// holds fails unless a source has documents of exactly these items and texts.
func (w *world) holds(s id.SourceID, want map[string]string) map[string]document {
	w.t.Helper()
	have := w.documents(s)
	for item, text := range want {
		if d, ok := have[item]; !ok || !strings.Contains(d.text, text) {
			w.t.Errorf("%s: %v %q, want %q", item, ok, d.text, text)
		}
	}
	if len(have) != len(want) {
		w.t.Errorf("there are %d documents, want %d", len(have), len(want))
	}
	return have
}

// settles tells that documents were indexed, as their actors do.
func (w *world) settles() {
	w.exec(`UPDATE kb_documents SET status = 'ready', owes = false, version = version + 1 WHERE status = 'queued'`)
}

func (w *world) events(kind string) []string {
	w.t.Helper()
	rows, err := w.admin.Query(context.Background(), `SELECT convert_from(body, 'UTF8') FROM webhook_deliveries WHERE type = $1 ORDER BY id`, kind)
	w.must(err)
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		w.must(rows.Scan(&s))
		out = append(out, s)
	}
	return out
}
