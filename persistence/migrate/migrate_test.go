package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"agentsvc/persistence/migrate"
	"agentsvc/persistence/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func scan[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var out T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&out); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func TestUpOnAnEmptyDatabaseAppliesEverythingOnce(t *testing.T) {
	db := pgtest.Empty(t)
	applied, err := migrate.Up(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if len(applied) != migrate.Latest() || applied[0] != "0001_core" {
		t.Fatalf("applied %v", applied)
	}
	again, err := migrate.Up(t.Context(), db.URL)
	if err != nil || len(again) != 0 {
		t.Fatalf("the second time it applied %v, %v", again, err)
	}
	if v, err := migrate.Version(t.Context(), db.URL); err != nil || v != migrate.Latest() {
		t.Fatalf("version %d, %v", v, err)
	}
}

func TestConcurrentUpsApplyEachMigrationOnce(t *testing.T) {
	db := pgtest.Empty(t)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total int
	)
	for range 4 {
		wg.Go(func() {
			applied, err := migrate.Up(t.Context(), db.URL)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			total += len(applied)
		})
	}
	wg.Wait()
	if total != migrate.Latest() {
		t.Fatalf("%d applied in all, want %d", total, migrate.Latest())
	}
}

// Who waits for another migration says so, once, and goes on when it has ended.
func TestAWaitForAnotherMigrationIsTold(t *testing.T) {
	db := pgtest.Empty(t)
	first := func() { t.Error("it waits") }
	if _, err := migrate.UpBehind(t.Context(), db.URL, first); err != nil {
		t.Fatal(err)
	}
	admin := db.Admin(t)
	other, err := admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	const lock = 0x7376635f6d696772
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock($1)", int64(lock)); err != nil {
		t.Fatal(err)
	}
	told, done := make(chan struct{}, 2), make(chan error, 1)
	go func() {
		_, err := migrate.UpBehind(t.Context(), db.URL, func() { told <- struct{}{} })
		done <- err
	}()
	select {
	case <-told:
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	}
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_unlock($1)", int64(lock)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || len(told) != 0 {
		t.Errorf("%v, told %d times more", err, len(told))
	}
}

// A server that accepts a connection and is silent ends the start after a bounded time, also before there is a pool.
func TestASilentServerEndsTheAttempt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	at := "postgres://svc@" + ln.Addr().String() + "/svc?sslmode=disable"
	var wg sync.WaitGroup
	for name, call := range map[string]func() error{
		"Check":   func() error { return migrate.Check(t.Context(), at) },
		"Version": func() error { _, err := migrate.Version(t.Context(), at); return err },
		"Up":      func() error { _, err := migrate.Up(t.Context(), at); return err },
	} {
		wg.Go(func() {
			if err := call(); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connect to the database") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

// A server that is too old for the migrations is refused before it is asked for anything.
func TestAnOldServerIsRefused(t *testing.T) {
	for version, refused := range map[string]bool{"9.6.24": true, "14.22 (Debian 14.22-1)": true, "15.0": false, "15beta1": false, "18.1": false, "": false} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan any, 1)
		go func() {
			defer close(asked)
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			server := pgproto3.NewBackend(conn, conn)
			if _, err := server.ReceiveStartupMessage(); err != nil {
				return
			}
			server.Send(&pgproto3.AuthenticationOk{})
			if version != "" {
				server.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: version})
			}
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			if server.Flush() != nil {
				return
			}
			if m, err := server.Receive(); err == nil {
				asked <- fmt.Sprintf("%T", m)
			}
		}()
		_, err = migrate.Up(t.Context(), "postgres://svc@"+ln.Addr().String()+"/svc?sslmode=disable")
		if err == nil || errors.Is(err, migrate.ErrOld) != refused || refused && !strings.Contains(err.Error(), "it is "+version+": nothing was changed") {
			t.Errorf("%s: %v", version, err)
		}
		if m := <-asked; refused && m != "*pgproto3.Terminate" {
			t.Errorf("%s was asked %v", version, m)
		}
		ln.Close()
	}
}

// A migration that meets a deadlock with the work of a node of the former release begins again.
func TestAMigrationOutlivesADeadlock(t *testing.T) {
	db := pgtest.Empty(t)
	pgtest.ToVersion(t, db.URL, 20) // migration 21 makes indexes of runs, then of threads
	admin := db.Admin(t)
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	lock := func(table string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), "LOCK TABLE "+table+" IN ROW EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), "SET LOCAL deadlock_timeout = '1min'"); err != nil { // so that it ends the migration
		t.Fatal(err)
	}
	lock("threads")
	done := make(chan error, 1)
	go func() {
		_, err := migrate.Up(t.Context(), db.URL)
		done <- err
	}()
	pgtest.Blocked(t, admin)
	lock("runs")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if v, err := migrate.Version(t.Context(), db.URL); err != nil || v != migrate.Latest() {
		t.Errorf("version %d, %v", v, err)
	}
}

// Tags that end users had before migration 23 are in its table after it, although the owner of the tables sees no rows of tenants.
func TestTagsOfEndUsersAreCarriedOver(t *testing.T) {
	db := pgtest.Empty(t)
	pgtest.ToVersion(t, db.URL, 22)
	admin := db.Admin(t)
	for _, sql := range []string{
		"INSERT INTO tenants (id, name) VALUES ('00000000-0000-7000-8000-000000000001', 'A')",
		"INSERT INTO end_users (tenant_id, id, external_id, tags) SELECT id, new_id(now()), n::text, CASE WHEN n = 1 THEN '{vip,new,vip}' ELSE '{}' END::text[] FROM tenants, generate_series(1, 2) n",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migrate.Up(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := admin.QueryRow(t.Context(), "SELECT string_agg(u.external_id || ' ' || t.tag, ', ' ORDER BY t.tag) FROM end_user_tags t JOIN end_users u ON u.tenant_id = t.tenant_id AND u.id = t.end_user_id").Scan(&got); err != nil || got != "1 new, 1 vip" {
		t.Errorf("%q, %v", got, err)
	}
}

// Roles belong to the server: databases that are migrated at once race for them.
func TestConcurrentUpsOfSeveralDatabasesShareTheRoles(t *testing.T) {
	server := pgtest.Private(t, pgtest.PrivateOptions{Empty: true})
	admin := connect(t, server.AdminURL)
	var wg sync.WaitGroup
	for _, name := range []string{"one", "two", "three", "four"} {
		if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name+" OWNER svc"); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if _, err := migrate.Up(t.Context(), with(t, server.URL, name, "")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := scan[int](t, admin, `SELECT count(*) FROM pg_roles WHERE rolname IN ('svc_api', 'svc_system')
		AND NOT rolsuper AND NOT rolbypassrls AND NOT rolcanlogin`); n != 2 {
		t.Errorf("%d roles as they must be, want 2", n)
	}
}

// schema is every named thing of the service with its definition.
const schema = `SELECT coalesce(string_agg(d, E'\n' ORDER BY d), '') FROM (
	SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '') d
	FROM information_schema.columns WHERE table_schema = 'public'
	UNION ALL SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
	UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
	UNION ALL SELECT tablename || ' ' || policyname || ' ' || coalesce(qual, '') || roles::text FROM pg_policies WHERE schemaname = 'public'
	UNION ALL SELECT oid::regprocedure::text || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
	UNION ALL SELECT relname || ' ' || relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r') all_things`

func TestEveryMigrationGoesDownAndUpAgain(t *testing.T) {
	db := pgtest.New(t)
	conn := connect(t, db.URL)
	full := scan[string](t, conn, schema)
	for version := migrate.Latest() - 1; version >= 0; version-- {
		undone, err := migrate.Down(t.Context(), db.URL, version)
		if err != nil {
			t.Fatal(err)
		}
		if len(undone) != 1 {
			t.Fatalf("undone %v", undone)
		}
	}
	if left := scan[int](t, conn, `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
		AND relname <> 'schema_migrations'`); left != 0 {
		t.Errorf("%d tables are left after going down all the way", left)
	}
	if left := scan[int](t, conn, `SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace`); left != 0 {
		t.Errorf("%d functions are left after going down all the way", left)
	}
	if _, err := migrate.Up(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	if again := scan[string](t, conn, schema); again != full {
		t.Errorf("down and up again gives another schema:\n%s\n--- instead of\n%s", again, full)
	}
}

func TestADatabaseThatDoesNotFitIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name, sql string
		want      error
		words     string
	}{
		{"newer than the program", "INSERT INTO schema_migrations SELECT max(version) + 1, 'later', now(), '\\x00' FROM schema_migrations",
			migrate.ErrNewer, "start a newer svc"},
		{"migrated by another text", "UPDATE schema_migrations SET checksum = '\\x00' WHERE version = 1",
			migrate.ErrChanged, "0001_core"},
		{"with a gap", "UPDATE schema_migrations SET version = version + 1000",
			nil, "changed by hand"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			db := pgtest.New(t)
			if _, err := connect(t, db.URL).Exec(t.Context(), tt.sql); err != nil {
				t.Fatal(err)
			}
			for name, f := range map[string]func() error{
				"Up":      func() error { _, err := migrate.Up(t.Context(), db.URL); return err },
				"Down":    func() error { _, err := migrate.Down(t.Context(), db.URL, 0); return err },
				"Version": func() error { _, err := migrate.Version(t.Context(), db.URL); return err },
			} {
				err := f()
				if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.words) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestTheNotesOfMigrationsAreNotTheServicesToChange(t *testing.T) {
	db := pgtest.New(t)
	for _, role := range []string{"svc_api", "svc_system"} {
		if scan[bool](t, connect(t, db.URL), "SELECT has_table_privilege($1, 'schema_migrations', 'SELECT, INSERT, UPDATE, DELETE')", role) {
			t.Errorf("%s may use schema_migrations", role)
		}
	}
}

func with(t *testing.T, dsn, database, user string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if database != "" {
		u.Path = "/" + database
	}
	if user != "" {
		password, _ := u.User.Password()
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

func TestRolesThatTheLoginCannotPutRightAreAnError(t *testing.T) {
	server := pgtest.Private(t, pgtest.PrivateOptions{Empty: true})
	admin := connect(t, server.AdminURL)
	weak := with(t, server.URL, "weakdb", "weak")
	for _, sql := range []string{
		"CREATE ROLE weak LOGIN PASSWORD '" + admin.Config().Password + "'",
		"CREATE DATABASE weakdb OWNER weak",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// The rows build on each other: each puts right what the one before lacked.
	for _, tt := range []struct {
		name, sql string
		words     string // of the error; none: it works
	}{
		{"missing and no CREATEROLE: the exact statements", "",
			`CREATE ROLE svc_api NOLOGIN; CREATE ROLE svc_system NOLOGIN; GRANT svc_api, svc_system TO "weak";`},
		{"there but not granted", "CREATE ROLE svc_api NOLOGIN; CREATE ROLE svc_system NOLOGIN", `GRANT svc_api, svc_system TO "weak";`},
		{"one that bypasses row-level security", "GRANT svc_api, svc_system TO weak; ALTER ROLE svc_api BYPASSRLS", "ALTER ROLE svc_api NOLOGIN NOSUPERUSER NOBYPASSRLS;"},
		{"one that is a superuser", "ALTER ROLE svc_api NOBYPASSRLS; ALTER ROLE svc_system SUPERUSER", "ALTER ROLE svc_system NOLOGIN NOSUPERUSER NOBYPASSRLS;"},
		{"there, granted and modest: no CREATEROLE is needed", "ALTER ROLE svc_system NOSUPERUSER", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.sql != "" {
				if _, err := admin.PgConn().Exec(t.Context(), tt.sql).ReadAll(); err != nil {
					t.Fatal(err)
				}
			}
			_, err := migrate.Up(t.Context(), weak)
			switch {
			case tt.words == "" && err != nil:
				t.Fatal(err)
			case tt.words != "" && (!errors.Is(err, migrate.ErrRoles) || !strings.Contains(err.Error(), tt.words)):
				t.Fatalf("got %v", err)
			}
		})
	}
}

// The objects that the operator's guide tells to create before a migration are those that the
// migration creates, and it leaves them as they are.
func TestWhatIsMadeBeforeAMigration(t *testing.T) {
	guide, err := os.ReadFile("../../docs/operator-guide.md")
	if err != nil {
		t.Fatal(err)
	}
	large := []string{"threads", "runs"}
	for _, c := range []struct {
		from       int // the version before
		migrations []string
		tables     []string
		indexes    int // that they create
	}{
		{5, []string{"0006", "0013", "0021", "0022"}, large, 11},
		{12, []string{"0013", "0021", "0022"}, large, 8},
		{22, []string{"0023", "0024"}, []string{"kb_documents"}, 3},
		{25, []string{"0026"}, []string{"audit_log", "usage_records"}, 5},
	} {
		var text string
		for _, m := range c.migrations {
			_, block, _ := strings.Cut(string(guide), "**Migration "+m+"**")
			_, block, _ = strings.Cut(block, "```sql\n")
			block, _, _ = strings.Cut(block, "```")
			text += block
		}
		madeBefore(t, c.from, text, c.tables, c.indexes)
	}
}

func madeBefore(t *testing.T, from int, text string, tables []string, created int) {
	t.Helper()
	db := pgtest.New(t)
	conn := connect(t, db.URL)
	indexes := func() []string {
		t.Helper()
		return scan[[]string](t, conn, `SELECT array_agg(i.indexrelid || ' ' || i.indisvalid || ' ' || pg_get_indexdef(i.indexrelid) ORDER BY c.relname)
			FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ANY ($1::text[]::regclass[])`, tables)
	}
	shape := func(all []string) (out []string) {
		for _, i := range all {
			_, def, _ := strings.Cut(i, " ")
			out = append(out, def)
		}
		return out
	}
	want := indexes()
	if _, err := migrate.Down(t.Context(), db.URL, from); err != nil {
		t.Fatal(err)
	}
	without := indexes()
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if _, err := conn.Exec(t.Context(), line, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(line, err)
		}
	}
	before := indexes()
	if _, err := migrate.Up(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	if after := indexes(); !slices.Equal(after, before) || !slices.Equal(shape(after), shape(want)) || len(without) != len(want)-created {
		t.Errorf("before %q\nafter %q\nwant %q", before, after, want)
	}
}
