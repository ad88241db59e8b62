package pgtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

// Stored reads and writes a file with the rows of an entity as an earlier build left them. In a
// rolling upgrade the code of today goes on from such rows, so a file stays as it is for as long
// as rows of the build that wrote it may be there: a change of what is stored that makes a test
// fail breaks upgrades. A new form gets a file of its own beside it.
type Stored struct {
	// Tables have the rows, each behind the tables that it refers to.
	Tables []string
	// Names are what differs from test to test, such as the address of a server, by the text that
	// stands for it in the file.
	Names map[string]string
	// Sealed are the sealed columns, by table. A file has their plain values: Open and Seal
	// convert them.
	Sealed     map[string][]string
	Open, Seal func(r *StoredRow, column string, value []byte) ([]byte, error)
}

// StoredRow is a row of a file. A column that is NULL is left out.
type StoredRow struct {
	Table  string
	Row    map[string]json.RawMessage
	Sealed map[string]string `json:",omitempty"` // the plain values of sealed columns
}

// Text returns the text of a column, empty if the row has none.
func (r *StoredRow) Text(column string) (s string) {
	_ = json.Unmarshal(r.Row[column], &s) // a number or NULL has none
	return s
}

// ID returns the id in a column.
func (r *StoredRow) ID(t testing.TB, column string) id.UUID {
	t.Helper()
	u, err := id.Parse(r.Text(column))
	if err != nil {
		t.Fatalf("pgtest: %s.%s: %v", r.Table, column, err)
	}
	return u
}

// Write writes all rows of the tables to a file.
func (s *Stored) Write(t testing.TB, from *pgxpool.Pool, file string) {
	t.Helper()
	var out bytes.Buffer
	for _, table := range s.Tables {
		rows, err := from.Query(context.Background(), `SELECT row_to_json(t) FROM `+table+` t ORDER BY t::text`)
		if err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		for rows.Next() {
			r := StoredRow{Table: table, Sealed: map[string]string{}}
			if err := rows.Scan(&r.Row); err != nil {
				t.Fatalf("pgtest: %v", err)
			}
			s.open(t, &r)
			for column, value := range r.Row {
				if string(value) == "null" {
					delete(r.Row, column)
				}
			}
			out.Write(exactly(t, r))
		}
		if err := rows.Err(); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	if err := os.WriteFile(file, []byte(s.renamer(false).Replace(out.String())), 0o644); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

func (s *Stored) open(t testing.TB, r *StoredRow) {
	t.Helper()
	for _, column := range s.Sealed[r.Table] {
		sealed, err := hex.DecodeString(strings.TrimPrefix(r.Text(column), `\x`))
		if err != nil || len(sealed) == 0 {
			continue
		}
		plain, err := s.Open(r, column, sealed)
		if err != nil {
			t.Fatalf("pgtest: %s.%s: %v", r.Table, column, err)
		}
		r.Sealed[column] = string(plain)
		delete(r.Row, column)
	}
}

// renamer replaces names by what stands for them in the file, or back.
func (s *Stored) renamer(back bool) *strings.Replacer {
	var pairs []string
	for inFile, name := range s.Names {
		pair := []string{name, inFile}
		if back {
			slices.Reverse(pair)
		}
		pairs = append(pairs, pair...)
	}
	return strings.NewReplacer(pairs...)
}

// Restore inserts the rows of a file and returns them. A column that came after the file has its
// default.
func (s *Stored) Restore(t testing.TB, to Execer, file string) (all []StoredRow) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer f.Close()
	names := s.renamer(true)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r StoredRow
		if err := json.Unmarshal([]byte(names.Replace(lines.Text())), &r); err != nil {
			t.Fatalf("pgtest: %s: %v", file, err)
		}
		for column, plain := range r.Sealed {
			sealed, err := s.Seal(&r, column, []byte(plain))
			if err != nil {
				t.Fatalf("pgtest: %s.%s: %v", r.Table, column, err)
			}
			r.Row[column] = json.RawMessage(`"\\x` + hex.EncodeToString(sealed) + `"`)
		}
		var columns []string
		for column := range r.Row {
			columns = append(columns, column)
		}
		list := strings.Join(columns, ", ")
		write(t, to, `INSERT INTO `+r.Table+` (`+list+`) OVERRIDING SYSTEM VALUE SELECT `+list+` FROM json_populate_record(NULL::`+r.Table+`, $1)`, exactly(t, r.Row))
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("pgtest: %s: %v", file, err)
	}
	return all
}

// exactly encodes v without escapes for HTML, which are not in the rows.
func exactly(t testing.TB, v any) []byte {
	t.Helper()
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return out.Bytes()
}
