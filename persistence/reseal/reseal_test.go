package reseal

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func masterKey(b byte) vault.Secret32 {
	return vault.NewSecret32([32]byte(bytes.Repeat([]byte{b}, 32)))
}

var (
	old     = vault.New(masterKey(1))
	rotated = vault.New(masterKey(2), masterKey(1))
	fresh   = vault.New(masterKey(2)) // the previous key is out of service
)

// columns are what these tests move: each form of a key, and several columns of a table.
var columns = []Column{
	{"model_providers", "credentials", ByID},
	{"connections", "credentials", ByID},
	{"approvals", "frozen", ByID},
	{"approvals", "edited", ByID},
	{"run_steps", "sealed", Key{UUIDPart("run_id"), IntPart("idx")}},
	{"idempotency", "response", Key{BytesPart("digest")}},
	{"webhooks", "secret", ByID},
	{"triggers", "secret", ByID},
	{"embed_keys", "identity_secret", ByID},
}

func TestQueriesParse(t *testing.T) {
	all := map[string]string{"unknowing": queries.Get("unknowing")}
	for _, c := range columns {
		all["page of "+c.Table+"."+c.Name] = c.pageSQL()
		all["swap of "+c.Table+"."+c.Name] = c.swapSQL()
	}
	pgtest.Prepare(t, all)
}

func TestQueriesNameTheirTenant(t *testing.T) {
	all, beyond := map[string]string{}, map[string]pgtest.Beyond{}
	for _, c := range columns {
		page := "page of " + c.Table + "." + c.Name
		all[page], beyond[page] = c.pageSQL(), pgtest.Beyond{Why: "the values of all tenants are sealed anew", Scans: []string{c.Table}}
		all["swap of "+c.Table+"."+c.Name] = c.swapSQL()
	}
	pgtest.Tenants(t, all, beyond)
}

// world is a database whose rows are sealed as the service seals them.
type world struct {
	t     *testing.T
	pool  *pgxpool.Pool
	rows  []sealedIn
	agent map[id.TenantID]id.AgentID
}

// sealedIn is where a value is and what it says.
type sealedIn struct {
	column int // of columns
	tenant id.TenantID
	row    string
	plain  string
}

func (s sealedIn) place() vault.AAD {
	return vault.AAD{Tenant: s.tenant, Table: columns[s.column].Table, Row: s.row, Column: columns[s.column].Name}
}

func newWorld(t *testing.T) *world {
	return &world{t: t, pool: pgtest.New(t).System(t), agent: map[id.TenantID]id.AgentID{}}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tenant() id.TenantID {
	tenant := pgtest.Tenant(w.t, w.pool)
	w.agent[tenant] = pgtest.Agent(w.t, w.pool, tenant)
	return tenant
}

// seal seals a new value for a row of a column and remembers it.
func (w *world) seal(v *vault.Vault, name string, tenant id.TenantID, row string) vault.Sealed {
	w.t.Helper()
	i := slices.IndexFunc(columns, func(c Column) bool { return c.Table+"."+c.Name == name })
	s := sealedIn{i, tenant, row, fmt.Sprintf("%s of %s %d", name, row, len(w.rows))}
	sealed, err := v.Seal(s.place(), []byte(s.plain))
	if err != nil {
		w.t.Fatal(err)
	}
	w.rows = append(w.rows, s)
	return sealed
}

// fill writes a value of every column under v.
func (w *world) fill(tenant id.TenantID, v *vault.Vault) {
	w.t.Helper()
	provider, server, connection := id.ProviderID{UUID: id.NewAnywhere()}, id.ServerID{UUID: id.NewAnywhere()}, id.ConnectionID{UUID: id.NewAnywhere()}
	w.exec("INSERT INTO model_providers (tenant_id, id, slug, kind, base_url, credentials) VALUES ($1, $2, $3, 'openai', 'https://m.example', $4)",
		tenant, provider, "p"+provider.String()[25:], w.seal(v, "model_providers.credentials", tenant, provider.String()))
	w.exec("INSERT INTO mcp_servers (tenant_id, id, slug, name, transport, endpoint, auth_kind) VALUES ($1, $2, $3, 's', 'http', 'https://s.example', 'bearer')",
		tenant, server, "s"+server.String()[25:])
	w.exec("INSERT INTO connections (tenant_id, id, mcp_server_id, name, credentials) VALUES ($1, $2, $3, 'c', $4)",
		tenant, connection, server, w.seal(v, "connections.credentials", tenant, connection.String()))
	run := id.RunID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, origin_kind, origin_id, created_at, started_at)
		VALUES ($1, $2, 'waiting_approval', $3, 1, 'api_key', $1, now(), now())`, tenant, run, w.agent[tenant])
	for idx := range 11 { // as text 10 comes before 2
		var sealed any
		if idx != 1 { // not every step keeps something
			sealed = w.seal(v, "run_steps.sealed", tenant, run.String()+"/"+strconv.Itoa(idx))
		}
		w.exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, sealed, began_seq, started_at)
			VALUES ($1, $2, $3::int, 'tool', 'a.b', 'waiting', $4, $3::int, now())`, tenant, run, idx, sealed)
	}
	for idx, edited := range []bool{false, true} {
		approval := id.ApprovalID{UUID: id.NewAnywhere()}
		var edit any
		if edited {
			edit = w.seal(v, "approvals.edited", tenant, approval.String())
		}
		w.exec(`INSERT INTO approvals (tenant_id, id, run_id, step_idx, risk, assignee_role, required_approvals, tool, args, frozen, edited, digest, policy,
			on_timeout, expires_at, created_at, updated_at)
			VALUES ($1, $2, $3, $4, 'low', 'admin', 1, 'a.b', '{}', $5, $6, $7, '{}', 'reject', now(), now(), now())`,
			tenant, approval, run, idx, w.seal(v, "approvals.frozen", tenant, approval.String()), edit, make([]byte, 32))
	}
	digest := id.NewAnywhere()
	key := append(digest[:], digest[:]...)
	w.exec("INSERT INTO idempotency (tenant_id, digest, fingerprint, status, response, created_at) VALUES ($1, $2, $2, 200, $3, now())",
		tenant, key, w.seal(v, "idempotency.response", tenant, hex.EncodeToString(key)))
	webhook, trigger := id.WebhookID{UUID: id.NewAnywhere()}, id.TriggerID{UUID: id.NewAnywhere()}
	w.exec("INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://w.example', '{*}', $3)",
		tenant, webhook, w.seal(v, "webhooks.secret", tenant, webhook.String()))
	w.exec("INSERT INTO triggers (tenant_id, id, name, kind, agent_id, secret) VALUES ($1, $2, 't', 'hook', $3, $4)",
		tenant, trigger, w.agent[tenant], w.seal(v, "triggers.secret", tenant, trigger.String()))
	embed := id.EmbedKeyID{UUID: id.NewAnywhere()}
	w.exec("INSERT INTO embed_keys (tenant_id, id, agent_id, name, key_hash, key_prefix, identity_secret) VALUES ($1, $2::uuid, $3, $2::uuid::text, $4, 'svc_pk_', $5)",
		tenant, embed, w.agent[tenant], make([]byte, 32), w.seal(v, "embed_keys.identity_secret", tenant, embed.String()))
}

// stored reads a value by the key in its place, without this package's queries.
func (w *world) stored(s sealedIn) vault.Sealed {
	w.t.Helper()
	where, args := "id = $2", []any{s.tenant, s.row}
	switch columns[s.column].Table {
	case "run_steps":
		run, idx, _ := strings.Cut(s.row, "/")
		where, args = "run_id = $2 AND idx = $3", []any{s.tenant, run, idx}
	case "idempotency":
		digest, err := hex.DecodeString(s.row)
		if err != nil {
			w.t.Fatal(err)
		}
		where, args = "digest = $2", []any{s.tenant, digest}
	}
	var value vault.Sealed
	if err := w.pool.QueryRow(w.t.Context(), fmt.Sprintf("SELECT %s FROM %s WHERE tenant_id = $1 AND %s",
		columns[s.column].Name, columns[s.column].Table, where), args...).Scan(&value); err != nil {
		w.t.Fatal(err)
	}
	return value
}

// opens counts the values that open under v and say what they said.
func (w *world) opens(v *vault.Vault) (n int) {
	w.t.Helper()
	for _, s := range w.rows {
		plain, err := v.Open(s.place(), w.stored(s))
		if err != nil {
			continue
		}
		if string(plain) != s.plain {
			w.t.Errorf("%v says %q", s, plain)
		}
		n++
	}
	return n
}

func (w *world) run(v *vault.Vault) *Report {
	w.t.Helper()
	report, err := Run(w.t.Context(), w.pool, v, columns)
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

func rewrapped(c Count) int  { return c.Rewrapped }
func values(c Count) int     { return c.Values }
func left(c Count) int       { return c.Left }
func unreadable(c Count) int { return c.Unreadable }

func TestWithoutThePreviousKeyEverythingOpensAfterwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		tenant := w.tenant()
		w.fill(tenant, old)
		w.fill(tenant, old)
	}
	w.fill(w.tenant(), rotated) // under the current key already
	total := len(w.rows)
	sealedNow := total / 7
	if got := w.opens(fresh); got != sealedNow {
		t.Fatalf("before: %d of %d open without the previous key, want %d", got, total, sealedNow)
	}
	report := w.run(rotated)
	if got := w.opens(fresh); got != total {
		t.Errorf("after: %d of %d open without the previous key", got, total)
	}
	if report.PreviousNeeded || report.Sum(rewrapped) != total-sealedNow || report.Sum(values) != total || report.Sum(left)+report.Sum(unreadable) != 0 || len(report.Unreadable) != 0 {
		t.Errorf("%+v", report)
	}
	for _, c := range report.Columns {
		if c.Values == 0 || c.Rewrapped == 0 {
			t.Errorf("%+v", c)
		}
	}

	again := w.run(rotated)
	if again.PreviousNeeded || again.Sum(rewrapped) != 0 || again.Sum(values) != total {
		t.Errorf("a second time: %+v", again)
	}
	if alone := w.run(fresh); alone.PreviousNeeded || alone.Sum(values) != total || alone.Sum(unreadable) != 0 {
		t.Errorf("without the previous key: %+v", alone)
	}
}

// A server that runs with the old key alone could not open what reseal makes, so nothing is made.
func TestAKeyThatARunningServerDoesNotKnowIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(w.tenant(), old)
	total := len(w.rows)
	join := func(kind func(testing.TB, pgtest.Execer) id.MemberID, address string, keys ...string) {
		w.exec("UPDATE members SET address = $2, keys = coalesce($3::text[], '{}') WHERE id = $1", kind(t, w.pool), address, keys)
	}
	join(pgtest.Member, "new:1", rotated.Names()...)
	join(pgtest.Member, "early:1")
	join(pgtest.Dead, "dead:1", old.Names()...)
	join(pgtest.Expired, "gone:1", old.Names()...)
	join(pgtest.Member, "former:1", slices.Concat(old.Names(), fresh.Names())...) // it opens what is sealed under the new key
	w.run(rotated)
	if got := w.opens(fresh); got != total {
		t.Fatalf("%d of %d are resealed among servers that know the key or do not run", got, total)
	}

	w.fill(w.tenant(), old)
	join(pgtest.Member, "behind:1", old.Names()...)
	report, err := Run(t.Context(), w.pool, rotated, columns)
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "behind:1") || strings.Contains(err.Error(), "former:1") || report != nil {
		t.Errorf("beside a server with the old key: %+v, %v", report, err)
	}
	if got := w.opens(old); got != len(w.rows)-total {
		t.Errorf("%d of %d new values are as they were", got, len(w.rows)-total)
	}
}

func TestAnEmptyDatabaseNeedsNoPreviousKey(t *testing.T) {
	t.Parallel()
	if report := newWorld(t).run(rotated); report.PreviousNeeded || report.Sum(values) != 0 || report.Unreadable == nil {
		t.Errorf("%+v", report)
	}
}

// A page per row shows that pages neither repeat nor leave out a row, whatever
// the order of their keys as text.
func TestPagesCoverEveryRowOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 2 {
		w.fill(w.tenant(), old)
	}
	r := &run{pool: w.pool, vault: rotated, columns: columns, limit: 1}
	report, err := r.passes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Sum(values) != len(w.rows) || report.Sum(rewrapped) != len(w.rows) || report.PreviousNeeded {
		t.Errorf("%d values: %+v", len(w.rows), report)
	}
}

// Values of any size travel in pages of bounded size, at least one by one.
func TestAPageIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant()
	w.fill(tenant, old)
	big := bytes.Repeat([]byte("x"), pageBytes*2/3)
	for i, s := range w.rows {
		if columns[s.column].Table != "run_steps" {
			continue
		}
		sealed, err := old.Seal(s.place(), big)
		if err != nil {
			t.Fatal(err)
		}
		run, idx, _ := strings.Cut(s.row, "/")
		w.exec("UPDATE run_steps SET sealed = $4 WHERE tenant_id = $1 AND run_id = $2 AND idx = $3", tenant, run, idx, sealed)
		w.rows[i].plain = string(big)
	}
	largest := 0
	r := &run{pool: w.pool, vault: rotated, columns: columns, limit: pageRows, swapping: func(c Column, rows int) {
		if c.Table == "run_steps" {
			largest = max(largest, rows)
		}
	}}
	if report, err := r.passes(t.Context()); err != nil || report.PreviousNeeded {
		t.Fatalf("%+v, %v", report, err)
	}
	if largest != 2 {
		t.Errorf("a page of %d values of %d bytes", largest, len(big))
	}
	if got := w.opens(fresh); got != len(w.rows) {
		t.Errorf("%d of %d open", got, len(w.rows))
	}
}

// Killed anywhere, it leaves whole values, and the next one does the rest.
func TestKilledAndRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 2 {
		w.fill(w.tenant(), old)
	}
	for stop := 1; ; stop++ {
		ctx, kill := context.WithCancel(t.Context())
		swaps := 0
		r := &run{pool: w.pool, vault: rotated, columns: columns, limit: 3, swapping: func(Column, int) {
			if swaps++; swaps == stop {
				kill()
			}
		}}
		report, err := r.passes(ctx)
		kill()
		if got := w.opens(rotated); got != len(w.rows) {
			t.Fatalf("killed at page %d: only %d of %d open", stop, got, len(w.rows))
		}
		if err == nil {
			if report.PreviousNeeded {
				t.Errorf("in the end: %+v", report)
			}
			break
		}
		if !errors.Is(err, context.Canceled) || !report.PreviousNeeded {
			t.Fatalf("killed at page %d: %+v, %v", stop, report, err)
		}
	}
	if got := w.opens(fresh); got != len(w.rows) {
		t.Errorf("%d of %d open without the previous key", got, len(w.rows))
	}
}

// Who writes while a page is on its way wins, and what was written is looked at
// in the next pass.
func TestAConcurrentWriterWins(t *testing.T) {
	t.Parallel()
	for name, writer := range map[string]*vault.Vault{"with the new key": rotated, "still with the old one": old} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tenant := w.tenant()
			w.fill(tenant, old)
			i := slices.IndexFunc(w.rows, func(s sealedIn) bool { return columns[s.column].Table == "connections" })
			s, written := &w.rows[i], false
			r := &run{pool: w.pool, vault: rotated, columns: columns, limit: pageRows, swapping: func(c Column, _ int) {
				if c.Table != "connections" || written {
					return
				}
				written = true
				s.plain = "a new credential"
				sealed, err := writer.Seal(s.place(), []byte(s.plain))
				if err != nil {
					t.Error(err)
				}
				w.exec("UPDATE connections SET credentials = $3 WHERE tenant_id = $1 AND id = $2", tenant, s.row, sealed)
			}}
			report, err := r.passes(t.Context())
			if err != nil || report.PreviousNeeded {
				t.Fatalf("%+v, %v", report, err)
			}
			if got := w.opens(fresh); got != len(w.rows) {
				t.Errorf("%d of %d open without the previous key", got, len(w.rows))
			}
		})
	}
}

// A writer that holds a row is not waited for while other rows are locked; its
// own change is kept, and the row is rewrapped when it is free.
func TestABusyRowIsLeftToTheNextPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant()
	w.fill(tenant, old)
	i := slices.IndexFunc(w.rows, func(s sealedIn) bool { return columns[s.column].Name == "frozen" })
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "UPDATE approvals SET risk = 'high' WHERE tenant_id = $1 AND id = $2", tenant, w.rows[i].row); err != nil {
		t.Fatal(err)
	}
	pages, freed := 0, false
	r := &run{pool: w.pool, vault: rotated, columns: columns, limit: pageRows, swapping: func(c Column, _ int) {
		if c.Name != "frozen" {
			return
		}
		if pages++; pages == 2 { // the second pass found it held again
			freed = true
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}}
	report, err := r.passes(t.Context())
	if err != nil || report.PreviousNeeded || !freed {
		t.Fatalf("freed %v: %+v, %v", freed, report, err)
	}
	if got := w.opens(fresh); got != len(w.rows) {
		t.Errorf("%d of %d open without the previous key", got, len(w.rows))
	}
	var risk string
	if err := w.pool.QueryRow(t.Context(), "SELECT risk FROM approvals WHERE tenant_id = $1 AND id = $2", tenant, w.rows[i].row).Scan(&risk); err != nil || risk != "high" {
		t.Errorf("the writer's change: %q, %v", risk, err)
	}
}

func TestARowThatStaysBusyIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant()
	w.fill(tenant, old)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SELECT FROM model_providers FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	report := w.run(rotated)
	if !report.PreviousNeeded || report.Sum(left) != 1 || report.Columns[0].Left != 1 || report.Sum(rewrapped) != len(w.rows)-1 {
		t.Errorf("%+v", report)
	}
}

// What opens under no key, because its key is lost or because it was damaged or
// moved, is reported by its place and stays as it is.
func TestWhatDoesNotOpenIsReportedAndStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant()
	w.fill(tenant, old)
	w.fill(tenant, vault.New(masterKey(9)))
	lost := len(w.rows) / 2

	damaged := w.rows[0]
	w.exec(`UPDATE model_providers SET credentials = set_byte(credentials, octet_length(credentials) - 1, get_byte(credentials, octet_length(credentials) - 1) # 1)
		WHERE tenant_id = $1 AND id = $2`, tenant, damaged.row)
	before := map[string]vault.Sealed{}
	for _, s := range w.rows {
		before[s.plain] = w.stored(s)
	}

	report := w.run(rotated)
	if !report.PreviousNeeded || report.Sum(unreadable) != lost+1 || report.Sum(rewrapped) != lost-1 || report.Sum(left) != 0 {
		t.Errorf("%+v", report)
	}
	if !slices.Contains(report.Unreadable, Place{"model_providers", "credentials", tenant, damaged.row}) || len(report.Unreadable) != lost+1 {
		t.Errorf("the damaged value is not named: %+v", report.Unreadable)
	}
	for i, s := range w.rows {
		if same := bytes.Equal(before[s.plain], w.stored(s)); same != (i == 0 || i >= lost) {
			t.Errorf("%v: unchanged is %v", s, same)
		}
	}
}

// However many do not open, a report stays short.
func TestAReportNamesAFew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant()
	for range 3 {
		w.fill(tenant, old)
	}
	report := w.run(vault.New(masterKey(9)))
	if report.Sum(unreadable) != len(w.rows) {
		t.Errorf("%+v", report.Columns)
	}
	n := 0
	for _, p := range report.Unreadable {
		if p.Table == "run_steps" {
			n++
		}
	}
	if n != maxNamed {
		t.Errorf("%d steps are named, want %d", n, maxNamed)
	}
}

// Two at once do each other no harm.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		w.fill(w.tenant(), old)
	}
	ended := make(chan error)
	for range 2 {
		go func() {
			r := &run{pool: w.pool, vault: rotated, columns: columns, limit: 4}
			report, err := r.passes(t.Context())
			if err == nil && report.PreviousNeeded {
				err = fmt.Errorf("%+v", report)
			}
			ended <- err
		}()
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
	if got := w.opens(fresh); got != len(w.rows) {
		t.Errorf("%d of %d open without the previous key", got, len(w.rows))
	}
}
