package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func show(t *testing.T, pool *pgxpool.Pool, setting string) string {
	t.Helper()
	var v string
	if err := pool.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAConnectionWorksUnderItsRole(t *testing.T) {
	db := pgtest.New(t)
	for _, role := range []pg.Role{pg.API, pg.System} {
		pool := db.Pool(t, pg.Options{Role: role, MaxConns: 3, AppName: "svc test"})
		if got := show(t, pool, "role"); got != string(role) {
			t.Errorf("role %s, want %s", got, role)
		}
		if got := show(t, pool, "application_name"); got != "svc test" {
			t.Errorf("application_name %q", got)
		}
		if got := show(t, pool, "enable_hashjoin"); got != "on" {
			t.Error("a reader's connection has hash joins off")
		}
		if got := pool.Config().MaxConns; got != 3 {
			t.Errorf("%d connections at most, want 3", got)
		}
	}
}

func TestAWritersConnectionsHaveHashAndMergeJoinsOff(t *testing.T) {
	pool := pgtest.New(t).Writer(t)
	for _, setting := range []string{"enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"} {
		if got := show(t, pool, setting); got != "off" {
			t.Errorf("%s is %s", setting, got)
		}
	}
}

func TestARoleThatCannotBeTakenIsAnErrorAtOnce(t *testing.T) {
	db := pgtest.Private(t, pgtest.PrivateOptions{Empty: true})
	if _, err := pg.Open(t.Context(), db.URL, pg.Options{Role: pg.API}); err == nil || !strings.Contains(err.Error(), "svc_api") {
		t.Fatalf("got %v", err)
	}
}

func TestARowOfAnotherTenantIsNoRow(t *testing.T) {
	db := pgtest.New(t)
	mine, other := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	for _, tenant := range []id.TenantID{mine, other} {
		if _, err := db.System(t).Exec(t.Context(), "INSERT INTO tenants (id, name) VALUES ($1, 'x')", tenant); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := db.API(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "SELECT set_config('svc.tenant', $1::text, false)", mine); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(t.Context(), "SELECT id FROM tenants")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[id.TenantID])
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != mine {
		t.Fatalf("got %v, want %v alone", got, mine)
	}
}

// echo sends in as a uuid or uuid[] and reads it back into out.
func echo(t *testing.T, pool *pgxpool.Pool, cast string, in, out any) error {
	t.Helper()
	return pool.QueryRow(t.Context(), "SELECT $1::"+cast, in).Scan(out)
}

func TestTypedIDsTravelAsUUID(t *testing.T) {
	pool := pgtest.New(t).System(t)
	a, b := id.RunID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}
	var none *id.RunID

	roundTrip := func(name, cast string, in, out any) {
		t.Run(name, func(t *testing.T) {
			target := reflect.New(reflect.TypeOf(out))
			if err := echo(t, pool, cast, in, target.Interface()); err != nil {
				t.Fatal(err)
			}
			if got := target.Elem().Interface(); !reflect.DeepEqual(got, out) {
				t.Fatalf("got %v, want %v", got, out)
			}
		})
	}
	roundTrip("an id", "uuid", a, a)
	roundTrip("a bare UUID", "uuid", a.UUID, a.UUID)
	roundTrip("another kind of id", "uuid", id.ThreadID(a), id.ThreadID(a))
	roundTrip("a pointer", "uuid", &a, &a)
	roundTrip("a nil pointer is NULL", "uuid", none, none)
	roundTrip("the driver's own bytes", "uuid", [16]byte(a.UUID), [16]byte(a.UUID))
	roundTrip("an id into a string", "uuid", a, a.String())
	roundTrip("a string into an id", "uuid", a.String(), a)
	roundTrip("an id as text", "text", a, a.String())
	roundTrip("a slice", "uuid[]", []id.RunID{a, b}, []id.RunID{a, b})
	roundTrip("a slice of bare UUIDs", "uuid[]", []id.UUID{a.UUID, b.UUID}, []id.UUID{a.UUID, b.UUID})
	roundTrip("an empty slice", "uuid[]", []id.RunID{}, []id.RunID{})
	roundTrip("a nil slice is NULL", "uuid[]", []id.RunID(nil), []id.RunID(nil))
	roundTrip("a slice of pointers with NULL", "uuid[]", []*id.RunID{&a, nil, &b}, []*id.RunID{&a, nil, &b})
	roundTrip("a slice of the driver's bytes", "uuid[]", [][16]byte{a.UUID, b.UUID}, []id.RunID{a, b})
	roundTrip("an id in JSON", "json", map[string]any{"id": a}, map[string]any{"id": a.String()})

	t.Run("NULL into an id is an error", func(t *testing.T) {
		var out id.RunID
		if err := echo(t, pool, "uuid", none, &out); err == nil || !out.IsZero() {
			t.Fatalf("got %v, %v", out, err)
		}
	})
	t.Run("NULL into a slice of ids is an error", func(t *testing.T) {
		var out []id.RunID
		if err := echo(t, pool, "uuid[]", []*id.RunID{&a, nil}, &out); err == nil {
			t.Fatalf("got %v", out)
		}
	})
	t.Run("it is binary", func(t *testing.T) {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		m := conn.Conn().TypeMap()
		for oid, value := range map[uint32]any{pgtype.UUIDOID: a, pgtype.UUIDArrayOID: []id.RunID{a}} {
			if m.FormatCodeForOID(oid) != pgtype.BinaryFormatCode {
				t.Errorf("%T travels as text", value)
			}
		}
		if buf, err := m.Encode(pgtype.UUIDOID, pgtype.BinaryFormatCode, a, nil); err != nil || string(buf) != string(a.UUID[:]) {
			t.Errorf("encoded as %x, %v", buf, err)
		}
	})
	t.Run("in text format too", func(t *testing.T) {
		var out id.RunID
		var outs []id.RunID
		err := pool.QueryRow(t.Context(), "SELECT $1::uuid, $2::uuid[]", pgx.QueryExecModeSimpleProtocol, a.String(),
			"{"+a.String()+","+b.String()+"}").Scan(&out, &outs)
		if err != nil || out != a || !reflect.DeepEqual(outs, []id.RunID{a, b}) {
			t.Fatalf("got %v, %v, %v", out, outs, err)
		}
	})
	t.Run("COPY", func(t *testing.T) {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		// A table of its own: the server refuses COPY into one with row-level security.
		if _, err := conn.Exec(t.Context(), "CREATE TEMPORARY TABLE copied (id uuid, parent uuid)"); err != nil {
			t.Fatal(err)
		}
		n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"id", "parent"},
			pgx.CopyFromRows([][]any{{a, none}, {b, &a}}))
		if err != nil || n != 2 {
			t.Fatalf("%d rows, %v", n, err)
		}
		var found int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM copied WHERE id = ANY($1)", []id.RunID{a, b}).Scan(&found); err != nil || found != 2 {
			t.Fatalf("%d found, %v", found, err)
		}
	})
}

func TestQueriesReadsBlocks(t *testing.T) {
	files := fstest.MapFS{
		"queries/a.sql": {Data: []byte("-- What this file is about.\n\n-- name: first\nSELECT 1\n  -- why\n  WHERE true;\n\n-- name: second\nSELECT '--x';\n")},
		"queries/b.sql": {Data: []byte("-- name: third\nSELECT 3")},
		"other/c.sql":   {Data: []byte("nonsense")},
	}
	got := pg.Queries(files)
	want := pg.QueryMap{"first": "SELECT 1\n  WHERE true", "second": "SELECT '--x'", "third": "SELECT 3"}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q", got)
	}
	if got.Get("third") != "SELECT 3" {
		t.Error("Get answers another query")
	}
	pgtest.Prepare(t, got)
}

func TestQueriesPanicsAtStart(t *testing.T) {
	for _, tt := range []struct{ name, text, words string }{
		{"a name twice", "-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;", "twice"},
		{"a query without a name", "SELECT 1;", "without a name"},
		{"a name without a query", "-- name: a\n-- name: b\nSELECT 1", "without a query"},
		{"a name without a query at the end", "-- name: a\n;", "without a query"},
		{"no word for a name", "-- name: \nSELECT 1", "not one word"},
		{"two words for a name", "-- name: a b\nSELECT 1", "not one word"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wantPanic(t, tt.words, func() { pg.Queries(fstest.MapFS{"queries/q.sql": {Data: []byte(tt.text)}}) })
		})
	}
	t.Run("no files", func(t *testing.T) { wantPanic(t, "no files", func() { pg.Queries(fstest.MapFS{}) }) })
	t.Run("an unknown name", func(t *testing.T) { wantPanic(t, "no query x", func() { pg.QueryMap{}.Get("x") }) })
	t.Run("a name twice over files", func(t *testing.T) {
		one := &fstest.MapFile{Data: []byte("-- name: a\nSELECT 1;")}
		wantPanic(t, "twice", func() { pg.Queries(fstest.MapFS{"queries/1.sql": one, "queries/2.sql": one}) })
	})
}

func wantPanic(t *testing.T, words string, f func()) {
	t.Helper()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, words) {
			t.Errorf("panicked with %q, want %q", got, words)
		}
	}()
	f()
}

func TestViolationsAreKnownByTheirConstraint(t *testing.T) {
	pool := pgtest.New(t).System(t)
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	insert := func(name string) error {
		_, err := pool.Exec(t.Context(), "INSERT INTO tenants (id, name) VALUES ($1, $2)", tenant, name)
		return err
	}
	if err := insert("one"); err != nil {
		t.Fatal(err)
	}
	err := fmt.Errorf("wrapped: %w", insert("two"))
	if !pg.IsUnique(err, "tenants_pkey") || !pg.IsUnique(err) || !pg.IsUnique(err, "other", "tenants_pkey") {
		t.Errorf("not known as unique: %v", err)
	}
	if pg.IsUnique(err, "other") || pg.IsUnique(nil) || pg.IsUnique(io.EOF) || pg.IsForeignKey(err) || pg.IsUnavailable(err) {
		t.Error("known as what it is not")
	}
	_, err = pool.Exec(t.Context(), "INSERT INTO users (tenant_id, id, email, role) VALUES ($1, $1, 'e', 'member')", id.TenantID{UUID: id.NewAnywhere()})
	if !pg.IsForeignKey(err, "users_tenant_id_fkey") || !pg.IsForeignKey(err) || pg.IsForeignKey(err, "other") {
		t.Errorf("not known as foreign key: %v", err)
	}
}

func TestUnavailable(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"nothing", nil, false},
		{"disk full", &pgconn.PgError{Code: "53100"}, true},
		{"out of memory", &pgconn.PgError{Code: "53200"}, true},
		{"too many connections", &pgconn.PgError{Code: "53300"}, true},
		{"admin shutdown", &pgconn.PgError{Code: "57P01"}, true},
		{"crash shutdown", &pgconn.PgError{Code: "57P02"}, true},
		{"starting up", &pgconn.PgError{Code: "57P03"}, true},
		{"connection failure", &pgconn.PgError{Code: "08006"}, true},
		{"read-only transaction", &pgconn.PgError{Code: "25006"}, true},
		{"I/O error", &pgconn.PgError{Code: "58030"}, true},
		{"wrapped", fmt.Errorf("load: %w", &pgconn.PgError{Code: "53100"}), true},
		{"unique violation", &pgconn.PgError{Code: "23505"}, false},
		{"syntax error", &pgconn.PgError{Code: "42601"}, false},
		{"query cancelled", &pgconn.PgError{Code: "57014"}, false},
		{"connection cut", io.ErrUnexpectedEOF, true},
		{"connection closed before", fmt.Errorf("x: %w", pgconn.ErrConnClosed), true},
		{"network", &net.OpError{Op: "read", Err: errors.New("reset")}, true},
		{"no rows", pgx.ErrNoRows, false},
		{"the caller went away", context.Canceled, false},
		{"the caller's deadline", context.DeadlineExceeded, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := pg.IsUnavailable(tt.err); got != tt.want {
				t.Fatalf("got %v", got)
			}
		})
	}
}

func TestAServerThatIsGoneIsUnavailable(t *testing.T) {
	db := pgtest.Private(t, pgtest.PrivateOptions{})
	pool := db.System(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	db.Crash(t)
	if _, err := conn.Exec(t.Context(), "SELECT 1"); !pg.IsUnavailable(err) {
		t.Errorf("a cut connection: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); !pg.IsUnavailable(err) {
		t.Errorf("the same connection again: %v", err)
	}
	if err := pool.Ping(t.Context()); !pg.IsUnavailable(err) {
		t.Errorf("a new connection: %v", err)
	}
	if _, err := pg.Open(t.Context(), db.URL, pg.Options{Role: pg.System}); !pg.IsUnavailable(err) {
		t.Errorf("a new pool: %v", err)
	}
	db.Start(t)
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("after its return: %v", err)
	}
}

// A server that does not let us in is away, whatever its reason: an operator changes it, and the same call succeeds.
// What a server answers to our statements is another matter.
func TestARefusedLoginIsUnavailable(t *testing.T) {
	db := pgtest.New(t)
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	own, name := "refused_"+strings.ReplaceAll(id.NewAnywhere().String(), "-", ""), strings.TrimPrefix(u.Path, "/")
	u.User = url.UserPassword(own, "x")
	elsewhere, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere.Path = "/postgres"
	admin, err := pgx.Connect(t.Context(), elsewhere.String())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	do := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), strings.NewReplacer("<login>", own, "<db>", name).Replace(sql)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	do("CREATE ROLE <login> LOGIN; GRANT svc_system TO <login>")
	defer do("DROP ROLE <login>")
	pool, err := pg.Open(t.Context(), u.String(), pg.Options{Role: pg.System})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, tt := range []struct{ code, refuse, admit string }{
		{"28000", "ALTER ROLE <login> NOLOGIN", "ALTER ROLE <login> LOGIN"},
		{"53300", "ALTER ROLE <login> CONNECTION LIMIT 0", "ALTER ROLE <login> CONNECTION LIMIT -1"},
		{"42501", "REVOKE CONNECT ON DATABASE <db> FROM PUBLIC", "GRANT CONNECT ON DATABASE <db> TO PUBLIC"},
		{"55000", "ALTER DATABASE <db> ALLOW_CONNECTIONS false", "ALTER DATABASE <db> ALLOW_CONNECTIONS true"},
	} {
		do(tt.refuse)
		pool.Reset()
		err := pool.Ping(t.Context())
		if refused := new(pgconn.PgError); !errors.As(err, &refused) || refused.Code != tt.code || !pg.IsUnavailable(err) {
			t.Errorf("%s: unavailable %v: %v", tt.refuse, pg.IsUnavailable(err), err)
		}
		do(tt.admit)
		if err := pool.Ping(t.Context()); err != nil {
			t.Errorf("%s: %v", tt.admit, err)
		}
	}
	if _, err := pool.Exec(t.Context(), "CREATE DATABASE other"); err == nil || pg.IsUnavailable(err) {
		t.Errorf("a statement without the right to it: %v", err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT 1 FROM missing"); err == nil || pg.IsUnavailable(err) {
		t.Errorf("a table that is not there: %v", err)
	}
}

// The server of a test asks for no password, so one that refuses it is a made-up one.
func TestAWrongPasswordIsUnavailable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			server := pgproto3.NewBackend(conn, conn)
			if _, err := server.ReceiveStartupMessage(); err == nil {
				server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"})
				server.Flush()
			}
			conn.Close()
		}
	}()
	_, err = pg.Open(t.Context(), "postgres://svc:old@"+ln.Addr().String()+"/svc?sslmode=disable", pg.Options{Role: pg.System})
	if refused := new(pgconn.PgError); !errors.As(err, &refused) || refused.Code != "28P01" || !pg.IsUnavailable(err) {
		t.Error(err)
	}
}

func BenchmarkEncode(b *testing.B) {
	m := pgtype.NewMap()
	pg.RegisterIDs(m)
	plain := pgtype.NewMap()
	one := id.RunID{UUID: id.NewAnywhere()}
	ids, raws := make([]id.RunID, 512), make([][16]byte, 512)
	for i := range ids {
		ids[i] = id.RunID{UUID: id.NewAnywhere()}
		raws[i] = ids[i].UUID
	}
	for _, bb := range []struct {
		name  string
		m     *pgtype.Map
		oid   uint32
		value any
	}{
		{"one/id", m, pgtype.UUIDOID, one},
		{"one/raw", plain, pgtype.UUIDOID, [16]byte(one.UUID)},
		{"512/id", m, pgtype.UUIDArrayOID, ids},
		{"512/raw", plain, pgtype.UUIDArrayOID, raws},
	} {
		b.Run(bb.name, func(b *testing.B) {
			buf := make([]byte, 0, 16<<10)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bb.m.Encode(bb.oid, pgtype.BinaryFormatCode, bb.value, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkScan(b *testing.B) {
	m := pgtype.NewMap()
	pg.RegisterIDs(m)
	plain := pgtype.NewMap()
	src := make([]byte, 16)
	var one id.RunID
	var raw [16]byte
	for _, bb := range []struct {
		name   string
		m      *pgtype.Map
		target any
	}{{"id", m, &one}, {"raw", plain, &raw}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			plan := bb.m.PlanScan(pgtype.UUIDOID, pgtype.BinaryFormatCode, bb.target)
			for b.Loop() {
				if err := plan.Scan(src, bb.target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
