package blackbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
)

// The files testdata/stored-*.jsonl are all rows and files of a service that was stopped while a tenant's work was
// waiting (yesterday), as a binary of an earlier commit left them: its schema, its snapshots, its sealed values, its
// answers under idempotency keys. The service of today must bring that schema up to date and finish the work. A file stays as it
// is for as long as a release that wrote such rows is supported: a change that makes this test fail breaks upgrades. A
// new form gets a file of its own beside it: -store=NAME writes testdata/stored-NAME.jsonl, and -store-by names the
// binary that leaves the rows (empty: the one of this source).

// storedFile is the first line of such a file.
type storedFile struct {
	Schema int               // version
	At     time.Time         // when the service had stopped
	Kept   map[string]string // see yesterday
}

// storedLine is each other line: a row of a table, or a stored file.
type storedLine struct {
	Table string          `json:",omitempty"`
	Row   json.RawMessage `json:",omitempty"`
	File  string          `json:",omitempty"`
	Bytes string          `json:",omitempty"` // base64
}

// unstored are tables that belong to the database and its processes, and not to what they work for.
var unstored = []string{"schema_migrations", "members", "flushes", "tallies", "stats_mark"}

// TestStoredDataGoesOn starts the service of today on what an earlier one left.
func TestStoredDataGoesOn(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/stored-*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is nothing stored: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 3*time.Minute)
			y := newYesterday(t)
			db, dir := pgtest.Empty(t), dataDir(t)
			y.restore(ctx, db, dir, file)
			n := newNode(t, append(yesterdayEnv(), "SVC_DATABASE_URL="+db.URL, "SVC_DATA_DIR="+dir, calm)...)
			n.start()
			y.as(n.base)
			y.goesOn(ctx)
		})
	}
}

// store writes what a stopped service has left.
func (y *yesterday) store(ctx context.Context, db *pgtest.DB, dir, file string) {
	y.t.Helper()
	names := []string{}
	for name, addr := range y.places() {
		names = append(names, addr, "@"+name+"@")
	}
	hides := strings.NewReplacer(names...)
	var out bytes.Buffer
	line := func(v any) {
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			y.t.Fatal(err)
		}
	}
	line(storedFile{pgtest.Version(y.t, db.URL), time.Now().UTC(), y.kept})
	admin := db.Admin(y.t)
	for _, table := range tablesOf(y.t, ctx, admin) {
		rows, err := admin.Query(ctx, `SELECT json_strip_nulls(row_to_json(t))::text FROM `+table+` t ORDER BY t::text`)
		if err != nil {
			y.t.Fatal(err)
		}
		for rows.Next() {
			var row string
			if err := rows.Scan(&row); err != nil {
				y.t.Fatal(err)
			}
			line(storedLine{Table: table, Row: json.RawMessage(row)})
		}
		if err := rows.Err(); err != nil {
			y.t.Fatal(err)
		}
	}
	blobs := filepath.Join(dir, "blobs")
	err := filepath.WalkDir(blobs, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		line(storedLine{File: name, Bytes: base64.StdEncoding.EncodeToString(content)})
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		y.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(hides.Replace(out.String())), 0o644); err != nil {
		y.t.Fatal(err)
	}
}

// tablesOf returns the tables whose rows are stored.
func tablesOf(t *testing.T, ctx context.Context, admin *pgxpool.Pool) (tables []string) {
	t.Helper()
	err := admin.QueryRow(ctx, `SELECT array_agg(tablename::text ORDER BY tablename) FROM pg_tables WHERE schemaname = 'public' AND tablename <> ALL ($1)`, unstored).Scan(&tables)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// restore brings an empty database and a directory to what is stored, a minute and more after the service stopped:
// all times are moved, so that delays and the schedule are due and what lasts for hours is not.
func (y *yesterday) restore(ctx context.Context, db *pgtest.DB, dir, file string) {
	y.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		y.t.Fatal(err)
	}
	defer f.Close()
	names := []string{}
	for name, addr := range y.places() {
		names = append(names, "@"+name+"@", addr)
	}
	shows := strings.NewReplacer(names...)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	var head storedFile
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &head) != nil {
		y.t.Fatalf("%s has no first line", file)
	}
	y.kept = head.Kept
	pgtest.ToVersion(y.t, db.URL, head.Schema)
	tx, err := db.Admin(y.t).Begin(ctx)
	if err != nil {
		y.t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // does nothing after a commit
	exec := func(sql string, args ...any) {
		y.t.Helper()
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			y.t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`SET LOCAL session_replication_role = replica`) // rows come in any order
	var seen []string
	for lines.Scan() {
		var l storedLine
		if err := json.Unmarshal([]byte(shows.Replace(lines.Text())), &l); err != nil {
			y.t.Fatal(err)
		}
		if l.File != "" {
			content, err := base64.StdEncoding.DecodeString(l.Bytes)
			path := filepath.Join(dir, l.File)
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
				y.t.Fatal(err)
			}
			continue
		}
		if !slices.Contains(seen, l.Table) {
			seen = append(seen, l.Table)
			exec(`DELETE FROM ` + l.Table) // what migrations put there
		}
		var columns map[string]json.RawMessage
		if err := json.Unmarshal(l.Row, &columns); err != nil {
			y.t.Fatal(err)
		}
		var list []string
		for column := range columns {
			list = append(list, column)
		}
		named := strings.Join(list, ", ")
		exec(`INSERT INTO `+l.Table+` (`+named+`) OVERRIDING SYSTEM VALUE SELECT `+named+` FROM json_populate_record(NULL::`+l.Table+`, $1)`, string(l.Row))
	}
	if err := lines.Err(); err != nil {
		y.t.Fatal(err)
	}
	moved := time.Since(head.At) - 75*time.Second
	for _, table := range seen {
		var sets *string
		if err := tx.QueryRow(ctx, `SELECT string_agg(format('%1$I = %1$I + $1::interval', column_name), ', ') FROM information_schema.columns
			WHERE table_schema = 'public' AND table_name = $1 AND data_type = 'timestamp with time zone'`, table).Scan(&sets); err != nil {
			y.t.Fatal(err)
		}
		if sets != nil {
			exec(`UPDATE `+table+` SET `+*sets, moved)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		y.t.Fatal(err)
	}
}

// stopped makes a yesterday by a binary (empty: the one of this source) on a database, and stops it.
func (y *yesterday) stopped(ctx context.Context, n *node, how os.Signal) {
	y.t.Helper()
	n.start()
	y.begin(ctx, n.tenant("yesterday"))
	if err := n.signal(how, 20*time.Second); err != nil {
		y.t.Fatal(err)
	}
	if how == syscall.SIGTERM && n.exit() != 0 {
		y.t.Fatalf("it ended with code %d: %s", n.exit(), n.logged())
	}
}

// TestStore writes a file of stored rows where -store says so.
func TestStore(t *testing.T) {
	if *storeAs == "" {
		return
	}
	ctx := within(t, 3*time.Minute)
	y := newYesterday(t)
	db, dir := pgtest.Empty(t), dataDir(t)
	n := newNode(t, append(yesterdayEnv(), "SVC_DATABASE_URL="+db.URL, "SVC_DATA_DIR="+dir, calm)...)
	n.file, n.tool = *storeBy, *storeBy
	y.stopped(ctx, n, syscall.SIGTERM)
	y.store(ctx, db, dir, filepath.Join("testdata", "stored-"+*storeAs+".jsonl"))
}
