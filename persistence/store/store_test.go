package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

type world struct {
	*Store
	sys    *SystemStore
	db     *pgtest.DB
	vault  *vault.Vault
	a, b   id.TenantID
	secret string // of a's first key
	key    id.KeyID
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{db: pgtest.New(t), vault: vault.New(vault.NewSecret32([32]byte{1}))}
	w.Store = New(w.db.API(t), w.vault)
	w.sys = System(w.db.System(t), w.vault)
	for i, into := range []*id.TenantID{&w.a, &w.b} {
		c, err := w.sys.CreateTenant(t.Context(), NewTenant{Name: fmt.Sprint("tenant ", i), OwnerEmail: "owner@example.com", KeyName: "first"})
		if err != nil {
			t.Fatal(err)
		}
		*into = c.Tenant
		if i == 0 {
			w.secret, w.key = c.Secret, c.Key
		}
	}
	return w
}

// noted returns what is reported as changed while do runs.
func noted(s interface {
	OnChange(f func(id.TenantID, []msg.Change))
}, do func()) (all []msg.Change) {
	s.OnChange(func(_ id.TenantID, changes []msg.Change) { all = append(all, changes...) })
	do()
	s.OnChange(func(id.TenantID, []msg.Change) {})
	return all
}

// only returns the ids of one kind, sorted.
func only[ID interface{ String() string }](all []msg.Change, kind string, want ...ID) (got, wanted []string) {
	for _, c := range all {
		if c.Kind == kind {
			got = append(got, c.ID.String())
		}
	}
	for _, w := range want {
		wanted = append(wanted, w.String())
	}
	slices.Sort(got)
	slices.Sort(wanted)
	return got, wanted
}

// change runs one change of a tenant; it must succeed.
func (w *world) change(t testing.TB, tenant id.TenantID, fn func(ctx context.Context, tx *Tx) error) {
	t.Helper()
	if err := w.try(t, tenant, fn); err != nil {
		t.Fatal(err)
	}
}

func (w *world) try(t testing.TB, tenant id.TenantID, fn func(ctx context.Context, tx *Tx) error) error {
	t.Helper()
	return w.Change(t.Context(), By{Tenant: tenant, Actor: "apikey:test", IP: "192.0.2.1"}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		return nil, fn(ctx, tx)
	})
}

func (w *world) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := w.db.Admin(t).QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func isCode(err error, code problem.Code) bool {
	var p *problem.Error
	return errors.As(err, &p) && p.Code == code
}

var manifest = json.RawMessage(`{ "model": {"provider":"simulated", "name":"sim"} }`)

func TestEveryQueryIsAccepted(t *testing.T) {
	t.Parallel()
	pgtest.Prepare(t, queries)
}

// security.md, Tenancy: without its WHERE a query still sees its tenant only.
func TestAQueryWithoutAWhereSeesItsTenantOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tenant := range []id.TenantID{w.a, w.b} {
		w.change(t, tenant, func(ctx context.Context, tx *Tx) error {
			_, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
			return err
		})
	}
	count := func(sql string) (n int) {
		t.Helper()
		err := w.View(w.a).q.run(t.Context(), sql, nil, func(rows pgx.Rows) (err error) {
			n, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, table := range []string{"tenants", "users", "api_keys", "agents"} {
		if n := count("SELECT count(*)::int FROM " + table); n != 1 {
			t.Errorf("%s: sees %d rows", table, n)
		}
	}
	err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.tx.Exec(ctx, "INSERT INTO users (tenant_id, id, email, role) VALUES ($1, $2, 'x@example.com', 'owner')", w.b, id.NewAnywhere())
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("a row of another tenant could be written: %v", err)
	}
	// The setting ends with its transaction: a pooled connection sees no tenant.
	var n int
	if err := w.pool.QueryRow(t.Context(), "SELECT count(*)::int FROM agents").Scan(&n); err != nil || n != 0 {
		t.Errorf("without a tenant %d agents are seen, %v", n, err)
	}
}

func TestForeignIDsAreNoRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var agentID id.AgentID
	var provider id.ProviderID
	attachment := id.AttachmentID{UUID: id.NewAnywhere()}
	thread := id.ThreadID{UUID: id.New(3)}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		ag, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
		if err != nil {
			return err
		}
		agentID = ag.ID
		p, err := tx.CreateProvider(ctx, &api.ModelProviderCreate{Slug: "p", Kind: "openai", BaseURL: "https://x.example", Credentials: api.ProviderCredentials{APIKey: "k"}})
		if err != nil {
			return err
		}
		provider = p.ID
		_, err = tx.CreateAttachment(ctx, NewAttachment{ID: attachment, Name: "f", MediaType: "text/plain"})
		return errors.Join(err, tx.CreateThread(ctx, thread, agentID, nil))
	})
	name := "other"
	v := w.View(w.b)
	for what, err := range map[string]error{
		"agent":        second(v.Agent(t.Context(), agentID)),
		"version":      second(v.Version(t.Context(), agentID, 1)),
		"provider":     second(v.Provider(t.Context(), provider)),
		"attachment":   second(v.Attachment(t.Context(), attachment)),
		"attachments":  second(v.Attachments(t.Context(), []id.AttachmentID{attachment})),
		"thread":       second(v.Thread(t.Context(), thread)),
		"run":          third(v.RunAndSteps(t.Context(), id.RunID{UUID: id.NewAnywhere()}, -1, false)),
		"rename a key": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return second(tx.RenameKey(ctx, w.key, name)) }),
		"revoke a key": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.RevokeKey(ctx, w.key) }),
		"update an agent": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateAgent(ctx, agentID, &api.AgentPatch{Name: &name}))
		}),
		"archive": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, agentID)) }),
		"add a version": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			_, _, err := tx.CreateVersion(ctx, agentID, manifest)
			return err
		}),
		"publish": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { _, _, err := tx.Publish(ctx, agentID, 1); return err }),
		"update a provider": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateProvider(ctx, provider, &api.ModelProviderPatch{}))
		}),
		"delete a provider": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return tx.DeleteProvider(ctx, provider) }),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, ok, err := v.KeyHash(t.Context(), w.key); ok || err != nil {
		t.Errorf("a foreign key is found, %v", err)
	}
	if _, ok, err := v.Published(t.Context(), agentID); ok || err != nil {
		t.Errorf("a foreign agent is found, %v", err)
	}
	if err := w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
		return tx.CreateThread(ctx, id.ThreadID{UUID: id.New(3)}, agentID, nil)
	}); err == nil {
		t.Error("a thread of another tenant's agent was created")
	}
}

func second[T any](_ T, err error) error { return err }

func third[A, B any](_ A, _ B, err error) error { return err }

func TestKeysLiveUntilTheyAreRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, hash, err := apikey.Parse(w.secret)
	if err != nil {
		t.Fatal(err)
	}
	if h, ok, err := w.View(w.a).KeyHash(t.Context(), w.key); err != nil || !ok || !h.Equal(hash) {
		t.Fatalf("the key is not found as minted: %v %v", ok, err)
	}
	revoke := func(ctx context.Context, tx *Tx) error { return tx.RevokeKey(ctx, w.key) }
	w.change(t, w.a, revoke)
	w.change(t, w.a, revoke)
	if _, ok, err := w.View(w.a).KeyHash(t.Context(), w.key); ok || err != nil {
		t.Fatalf("a revoked key is found, %v", err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE tenant_id = $1 AND action = 'api_key.revoke'", w.a); n != 1 {
		t.Errorf("two revocations are audited %d times", n)
	}
	err = w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.RenameKey(ctx, w.key, "x")) })
	if !isCode(err, problem.CodeNotFound) {
		t.Errorf("a revoked key can be renamed: %v", err)
	}
	keys, err := w.View(w.a).Keys(t.Context(), id.KeyID{}, All)
	if err != nil || len(keys) != 1 || keys[0].RevokedAt == nil || keys[0].RevokedAt.Location() != time.UTC {
		t.Errorf("%+v, %v", keys, err)
	}
}

// open-parts.md, Agents: publishing an older version rolls back.
func TestPublishAndRollBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var a id.AgentID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		ag, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
		if err != nil {
			return err
		}
		a = ag.ID
		for range 3 {
			if _, v, err := tx.CreateVersion(ctx, a, manifest); err != nil || v.Status != lifecycle.VersionDraft {
				return fmt.Errorf("%+v: %w", v, err)
			}
		}
		return nil
	})
	publish := func(version int) func(context.Context, *Tx) error {
		return func(ctx context.Context, tx *Tx) error {
			ag, v, err := tx.Publish(ctx, a, version)
			if err == nil && (*ag.PublishedVersion != version || v.Status != lifecycle.VersionPublished || v.PublishedAt == nil || ag.LatestVersion != 3) {
				err = fmt.Errorf("%+v %+v", ag, v)
			}
			return err
		}
	}
	for _, version := range []int{1, 3, 1, 1} {
		w.change(t, w.a, publish(version))
		if got, ok, err := w.View(w.a).Published(t.Context(), a); got != version || !ok || err != nil {
			t.Fatalf("published %d, seen %d %v %v", version, got, ok, err)
		}
	}
	versions, err := w.View(w.a).Versions(t.Context(), a, 0, 25)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range versions {
		got = append(got, fmt.Sprint(v.Version, " ", v.Status))
		if string(v.Manifest) != string(manifest) {
			t.Errorf("version %d is returned as %s", v.Version, v.Manifest)
		}
	}
	if want := "3 superseded,2 draft,1 published"; strings.Join(got, ",") != want {
		t.Errorf("got %v", got)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE action = 'agent.publish'"); n != 3 {
		t.Errorf("%d publications are audited; publishing the published version changes nothing", n)
	}
	if err := w.try(t, w.a, publish(4)); !isCode(err, problem.CodeNotFound) {
		t.Errorf("an unknown version: %v", err)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return second(tx.ArchiveAgent(ctx, a)) })
	if _, ok, err := w.View(w.a).Published(t.Context(), a); ok || err != nil {
		t.Errorf("an archived agent can be started, %v", err)
	}
	if v, err := w.View(w.a).Version(t.Context(), a, 1); err != nil || v.Status != lifecycle.VersionPublished {
		t.Errorf("a running run can no longer read its version: %v", err)
	}
}

func TestSlugs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	create := func(tenant id.TenantID, name string, slug *string) (got string, err error) {
		err = w.try(t, tenant, func(ctx context.Context, tx *Tx) error {
			a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: name, Slug: slug})
			if err == nil {
				got = a.Slug
			}
			return err
		})
		return got, err
	}
	for _, c := range []struct{ name, want string }{
		{"Support Agent", "support-agent"}, {"Support  agent!", "support-agent-2"}, {"support-agent", "support-agent-3"},
		{"日本語", "agent"}, {"???", "agent-2"}, {"9 lives", "9-lives"}, {"Ünïcode", "n-code"}, {strings.Repeat("x", 120), strings.Repeat("x", 48)},
	} {
		if got, err := create(w.a, c.name, nil); err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	slug := "support-agent"
	if _, err := create(w.a, "Other", &slug); !isCode(err, problem.CodeSlugTaken) {
		t.Errorf("a taken slug: %v", err)
	}
	if got, err := create(w.b, "Other", &slug); err != nil || got != slug {
		t.Errorf("another tenant's slug: %q, %v", got, err)
	}
	// Concurrent creates get different slugs.
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := create(w.a, "Crowd", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := w.count(t, "SELECT count(DISTINCT slug)::int FROM agents WHERE tenant_id = $1 AND slug LIKE 'crowd%'", w.a); n != 6 {
		t.Errorf("%d slugs of 6 agents", n)
	}
}

func TestCredentialsAreSealedToTheirPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	create := func(ctx context.Context, tx *Tx) error {
		_, err := tx.CreateProvider(ctx, &api.ModelProviderCreate{Slug: "mine", Kind: "openai", BaseURL: "https://x.example",
			Credentials: api.ProviderCredentials{APIKey: "sk-very-secret"}, Prices: map[string]api.Price{"m": {InputPerMTok: 1, OutputPerMTok: 2}}})
		return err
	}
	w.change(t, w.a, create)
	if err := w.try(t, w.a, create); !isCode(err, problem.CodeSlugTaken) {
		t.Errorf("a taken slug: %v", err)
	}
	p, err := w.View(w.a).SealedProvider(t.Context(), "mine")
	if err != nil || p == nil || p.Prices["m"].OutputPerMTok != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	if strings.Contains(string(p.Credentials), "secret") {
		t.Error("the credentials are stored in plain")
	}
	open := func(tenant id.TenantID) string {
		plain, err := w.vault.Open(CredentialsAt(tenant, p.ID), p.Credentials)
		if err != nil {
			return err.Error()
		}
		return string(plain)
	}
	if got := open(w.a); got != `{"api_key":"sk-very-secret"}` {
		t.Errorf("opened as %s", got)
	}
	if got := open(w.b); got != vault.ErrOpen.Error() {
		t.Errorf("opens for another tenant as %s", got)
	}
	url := "https://x.example/v2"
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		row, err := tx.UpdateProvider(ctx, p.ID, &api.ModelProviderPatch{BaseURL: &url, Prices: api.None[map[string]api.Price]()})
		if err == nil && (row.BaseURL != url || row.Prices == nil || len(row.Prices) != 0 || row.Slug != "mine") {
			err = fmt.Errorf("%+v", row)
		}
		return err
	})
	again, err := w.View(w.a).SealedProvider(t.Context(), "mine")
	if err != nil || string(again.Credentials) != string(p.Credentials) {
		t.Errorf("a patch without credentials changed them, %v", err)
	}
}

// A repeated Idempotency-Key finds the first answer and changes nothing.
func TestChangesOfOneKeyHappenOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idem := &Idem{Digest: [32]byte{7}, Fingerprint: [32]byte{8}, Status: 201}
	var mu sync.Mutex
	outcome := map[string]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := w.Change(t.Context(), By{Tenant: w.a, Actor: "apikey:x", Idem: idem}, func(ctx context.Context, tx *Tx) ([]byte, error) {
				// Without the lock on the key the second create would fail with SLUG_TAKEN.
				slug := "once"
				a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Once", Slug: &slug})
				if err != nil {
					return nil, err
				}
				return []byte(a.ID.String()), nil
			})
			mu.Lock()
			defer mu.Unlock()
			outcome[fmt.Sprint(err)]++
		})
	}
	wg.Wait()
	if outcome["<nil>"] != 1 || outcome[ErrReplay.Error()] != 7 {
		t.Fatalf("%v", outcome)
	}
	kept, err := w.Kept(t.Context(), w.a, idem.Digest)
	if err != nil || kept == nil || kept.Status != 201 || kept.Fingerprint != idem.Fingerprint {
		t.Fatalf("%+v, %v", kept, err)
	}
	agents, err := w.View(w.a).Agents(t.Context(), id.AgentID{}, 25)
	if err != nil || len(agents) != 1 || string(kept.Body) != agents[0].ID.String() {
		t.Fatalf("%+v, kept %q, %v", agents, kept.Body, err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM idempotency WHERE position(convert_to($1, 'UTF8') in response) > 0", string(kept.Body)); n != 0 {
		t.Error("the kept answer is stored in plain")
	}
	if other, err := w.Kept(t.Context(), w.b, idem.Digest); other != nil || err != nil {
		t.Errorf("another tenant finds it: %+v, %v", other, err)
	}
}

// open-parts.md: kept for 24 h.
func TestKeptAnswersAreForgottenAfterADay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idem := &Idem{Digest: [32]byte{7}, Status: 201}
	keep := func() error {
		return w.Change(t.Context(), By{Tenant: w.a, Actor: "apikey:x", Idem: idem}, func(context.Context, *Tx) ([]byte, error) { return []byte("{}"), nil })
	}
	age := func(interval string) {
		t.Helper()
		if _, err := w.db.Admin(t).Exec(t.Context(), "UPDATE idempotency SET created_at = now() - $1::interval", interval); err != nil {
			t.Fatal(err)
		}
	}
	if err := keep(); err != nil {
		t.Fatal(err)
	}
	age("23 hours 59 minutes")
	if err := keep(); !errors.Is(err, ErrReplay) {
		t.Fatalf("within the day: %v", err)
	}
	age("24 hours 1 second")
	if k, err := w.Kept(t.Context(), w.a, idem.Digest); k != nil || err != nil {
		t.Fatalf("after the day: %+v, %v", k, err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM idempotency"); n != 0 {
		t.Fatal("the old row is not deleted")
	}
	if err := keep(); err != nil {
		t.Fatal(err)
	}
	age("25 hours")
	if err := keep(); err != nil {
		t.Fatalf("a change over an old row: %v", err)
	}
}

func TestAFailedChangeLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.count(t, "SELECT count(*)::int FROM audit_log")
	broken := errors.New("broken")
	err := w.Change(t.Context(), By{Tenant: w.a, Actor: "x", Idem: &Idem{Digest: [32]byte{9}, Status: 201}}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		if _, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Half"}); err != nil {
			return nil, err
		}
		return nil, broken
	})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if n := w.count(t, "SELECT (SELECT count(*) FROM agents) + (SELECT count(*) FROM idempotency)"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if after := w.count(t, "SELECT count(*)::int FROM audit_log"); after != before {
		t.Errorf("%d audit rows are left", after-before)
	}
}

// A caller that leaves while its COMMIT is on its way does not know what became of it.
func TestACommitThatIsNotWaitedForIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admin := w.db.Admin(t)
	if _, err := admin.Exec(t.Context(), `CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER held AFTER INSERT ON agents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held()`); err != nil {
		t.Fatal(err)
	}
	holder, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background())
	if _, err := holder.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	changes := noted(w.Store, func() {
		go func() {
			left <- w.Change(ctx, By{Tenant: w.a, Actor: "x"}, func(ctx context.Context, tx *Tx) ([]byte, error) {
				_, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Doubtful"})
				return nil, err
			})
		}()
		pgtest.Blocked(t, admin)
		leave()
		if err := <-left; !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("the change ended with %v", err)
		}
	})
	if len(changes) != 1 {
		t.Errorf("noted %v", changes)
	}
}

// The lease of a process that is stopped during a change ends. When the process goes on, the change commits nothing.
func TestAChangeWithoutTheLeaseCommitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var lost bool
	w.OnlyWhile(func() bool { return !lost })
	by := By{Tenant: w.a, Actor: "x", Idem: &Idem{Digest: [32]byte{9}, Status: 201}}
	create := func(stopped bool) error {
		return w.Change(t.Context(), by, func(ctx context.Context, tx *Tx) ([]byte, error) {
			_, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Late"})
			lost = stopped
			return []byte("answer"), err
		})
	}
	const rows = "SELECT (SELECT count(*) FROM agents) + (SELECT count(*) FROM idempotency)"
	if err := create(true); !errors.Is(err, ErrUnavailable) || w.count(t, rows) != 0 {
		t.Errorf("without the lease: %v, %d rows", err, w.count(t, rows))
	}
	if err := create(false); err != nil || w.count(t, rows) != 2 {
		t.Errorf("with it: %v, %d rows", err, w.count(t, rows))
	}
}

func TestMessagesAndRunsAreReadInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	thread := id.ThreadID{UUID: id.New(5)}
	var agentID id.AgentID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
		if err != nil {
			return err
		}
		agentID = a.ID
		title := "Title"
		return tx.CreateThread(ctx, thread, a.ID, &title)
	})
	sys := w.db.System(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := sys.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	for seq := 1; seq <= 1005; seq++ {
		exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) VALUES ($1, $2, $3, $4, 'user', $5, now())`,
			w.a, thread, seq, id.New(5), fmt.Sprint(seq))
	}
	if before, err := w.View(w.a).BeforeNewest(t.Context(), thread); err != nil || before != 5 {
		t.Fatalf("the newest messages begin behind %d, %v", before, err)
	}
	page, err := w.View(w.a).Messages(t.Context(), thread, 3, 2)
	if err != nil || len(page) != 3 || page[0].Content != "4" || page[2].Seq != 6 {
		t.Fatalf("%+v, %v", page, err)
	}

	var runs []id.RunID
	for i := range 3 {
		run := id.RunID{UUID: id.New(5)}
		runs = append(runs, run)
		exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, input, origin_kind, origin_id, created_at, error_code, error_message, finished_at)
		      VALUES ($1, $2, $3, $4, 1, '{"text": "hi"}', 'api_key', $5, now(), $6, $7, $8)`, w.a, run, []string{"queued", "failed", "running"}[i], agentID, w.key,
			[]any{nil, "INTERNAL", nil}[i], []any{nil, "broke", nil}[i], []any{nil, time.Now(), nil}[i])
	}
	failed := lifecycle.RunFailed
	other := id.AgentID{UUID: id.NewAnywhere()}
	for name, c := range map[string]struct {
		filter RunFilter
		at     id.RunID
		want   []id.RunID
	}{
		"all":              {RunFilter{}, id.RunID{}, []id.RunID{runs[2], runs[1], runs[0]}},
		"behind a cursor":  {RunFilter{}, runs[1], []id.RunID{runs[0]}},
		"of a status":      {RunFilter{Statuses: []lifecycle.RunStatus{failed}}, id.RunID{}, []id.RunID{runs[1]}},
		"of an agent":      {RunFilter{Agent: &agentID}, id.RunID{}, []id.RunID{runs[2], runs[1], runs[0]}},
		"of another agent": {RunFilter{Agent: &other}, id.RunID{}, nil},
		"of a workflow":    {RunFilter{Workflow: &id.WorkflowID{}}, id.RunID{}, nil},
	} {
		got, err := w.View(w.a).Runs(t.Context(), c.filter, c.at, 25)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		for i := range got {
			if got[i].ID != c.want[i] {
				t.Errorf("%s: %v at %d", name, got[i].ID, i)
			}
		}
	}
	exec(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, output, began_seq, started_at) VALUES ($1, $2, 0, 'llm', 'sim', 'failed', '{"text":"x"}', 2, now())`, w.a, runs[1])
	run, steps, err := w.View(w.a).RunAndSteps(t.Context(), runs[1], -1, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(api.RunAnswer{Run: run, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	var shape struct {
		Run   map[string]json.RawMessage
		Steps []map[string]json.RawMessage
	}
	if err := json.Unmarshal(got, &shape); err != nil {
		t.Fatal(err)
	}
	if len(shape.Run) != 19 || string(shape.Run["error"]) != `{"code":"INTERNAL","message":"broke"}` || string(shape.Run["output"]) != "null" ||
		string(shape.Run["input"]) != `{"text":"hi"}` || string(shape.Run["thread_id"]) != "null" || string(shape.Run["origin"]) != `{"kind":"api_key","id":"`+w.key.String()+`"}` {
		t.Errorf("run: %s", got)
	}
	if len(shape.Steps) != 1 || len(shape.Steps[0]) != 11 || string(shape.Steps[0]["input"]) != "null" {
		t.Errorf("steps: %s", got)
	}
}

func TestTheSystemSeesEveryTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenants, err := w.sys.Tenants(t.Context())
	if err != nil || len(tenants) != 2 || tenants[0].ID != w.a || tenants[1].ID != w.b {
		t.Errorf("%+v, %v", tenants, err)
	}
	if got := w.count(t, "SELECT count(*)::int FROM audit_log WHERE tenant_id = $1 AND actor = 'system' AND action IN ('tenant.create', 'user.create', 'api_key.create')", w.a); got != 3 {
		t.Errorf("%d audit rows of a new tenant", got)
	}
	if _, err := w.sys.CreateTenant(t.Context(), NewTenant{Name: "x", OwnerEmail: "nonsense", KeyName: "k"}); !isCode(err, problem.CodeValidation) {
		t.Errorf("an owner without an e-mail address: %v", err)
	}
	if n := w.count(t, "SELECT count(*)::int FROM tenants"); n != 2 {
		t.Errorf("%d tenants: a failed creation left one", n)
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	create := func(tenant id.TenantID, email string) error {
		return w.try(t, tenant, func(ctx context.Context, tx *Tx) error {
			return second(tx.CreateUser(ctx, NewUser{Email: email, Role: lifecycle.RoleMember}))
		})
	}
	if err := create(w.a, "OWNER@example.com"); !isCode(err, problem.CodeEmailTaken) {
		t.Errorf("an e-mail that differs only in case: %v", err)
	}
	for _, bad := range []string{"", "x", "@x", "x@", "a b@x"} {
		if err := create(w.a, bad); !isCode(err, problem.CodeValidation) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := create(w.a, "new@example.com"); err != nil {
		t.Error(err)
	}
}

func TestACacheIsExactUnderDrops(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	valid := true
	c := NewCache[string, int](CacheConfig{Max: 100, TTL: time.Minute, Now: func() time.Time { return now }, Live: func() bool { return valid }})
	load := func(v int, during func()) int {
		t.Helper()
		got, ok, err := c.Load(t.Context(), "k", func(context.Context) (int, bool, error) {
			read := v
			if during != nil {
				during()
				during, v = nil, v+1
			}
			return read, true, nil
		})
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		return got
	}
	if got := load(1, nil); got != 1 {
		t.Fatal(got)
	}
	if got := load(5, nil); got != 1 {
		t.Fatalf("not kept: %d", got)
	}
	valid = false
	if _, ok := c.Get("k"); ok {
		t.Fatal("a node without its lease uses its cache")
	}
	valid = true
	now = now.Add(time.Minute)
	if _, ok := c.Get("k"); ok {
		t.Fatal("kept after its TTL")
	}
	// The value is dropped after the read and before Load returns: Load must read again.
	if got := load(10, func() { c.Drop("k") }); got != 11 {
		t.Fatalf("a dropped value is returned: %d", got)
	}
	if got, ok := c.Get("k"); !ok || got != 11 {
		t.Fatalf("a dropped value is kept: %d", got)
	}
	c.Clear()
	if _, ok := c.Get("k"); ok {
		t.Fatal("kept after Clear")
	}
	for i := range 10_000 {
		if _, _, err := c.Load(t.Context(), fmt.Sprint(i), func(context.Context) (int, bool, error) { return i, true, nil }); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for i := range c.shards {
		n += len(c.shards[i].m)
	}
	if n > 100 {
		t.Fatalf("%d entries in a cache of 100", n)
	}
}

// While the database is unavailable every call returns ErrUnavailable.
func TestWithoutADatabase(t *testing.T) {
	t.Parallel()
	c := pgtest.Private(t, pgtest.PrivateOptions{})
	s := New(c.API(t), vault.New(vault.NewSecret32([32]byte{1})))
	c.Stop(t)
	_, err := s.View(id.TenantID{}).Tenant(t.Context())
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("a read: %v", err)
	}
	err = s.Change(t.Context(), By{}, func(context.Context, *Tx) ([]byte, error) { return nil, nil })
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("a change: %v", err)
	}
}

func BenchmarkCacheGet(b *testing.B) {
	c := NewCache[id.KeyID, int](CacheConfig{Max: 1000, TTL: time.Minute})
	k := id.KeyID{UUID: id.NewAnywhere()}
	if _, _, err := c.Load(b.Context(), k, func(context.Context) (int, bool, error) { return 1, true, nil }); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Get(k)
	}
}

// Row-level security hides that a query does not name its tenant: this test does not.
func TestQueriesNameTheirTenant(t *testing.T) {
	pgtest.Tenants(t, queries, map[string]pgtest.Beyond{
		"tenants":           {Why: "the operator's list of tenants", Scans: []string{"tenants"}},
		"file_named":        {Why: "whether the store of files may be an empty one", Scans: []string{"attachments", "artifacts", "kb_documents"}},
		"files_attachments": {Why: "the operator's check of all files", Scans: []string{"attachments"}},
		"files_artifacts":   {Why: "the operator's check of all files", Scans: []string{"artifacts"}},
		"files_documents":   {Why: "the operator's check of all files", Scans: []string{"kb_documents"}},
		"hook":              {Why: "a hook's URL names no tenant; its id is its own over all tenants", Scans: []string{"triggers"}},
		"embed_access":      {Why: "a browser's call names no tenant; a key's id is its own over all tenants", Scans: []string{"k"}},
		"users_login":       {Why: "a login that names no tenant looks for the e-mail in all of them", Scans: []string{"users"}},
	})
}
