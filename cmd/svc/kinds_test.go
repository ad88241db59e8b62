package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
)

// notSealed are the columns of bytes that hold no sealed values, and what they
// hold instead.
var notSealed = map[string]string{
	"api_keys.secret_hash":       "a hash",
	"attachments.sha256":         "a hash",
	"artifacts.sha256":           "a hash",
	"runs.state":                 "what no column says: nothing secret",
	"browser_skill_runs.state":   "what no column says: nothing secret",
	"idempotency.digest":         "a hash",
	"idempotency.fingerprint":    "a hash",
	"sessions.secret_hash":       "a hash",
	"login_links.secret_hash":    "a hash",
	"approvals.digest":           "a hash",
	"embed_keys.key_hash":        "a hash",
	"webhook_deliveries.body":    "what receivers of the tenant get, and what runs show in plain",
	"schema_migrations.checksum": "a hash",
	"kb_documents.sha256":        "a hash",
	"kb_chunks.terms":            "how often the words of a text occur that the same row holds in plain",
	"kb_chunks.vector":           "an embedding of that text",
	"stats.duration":             "how many runs took how long",
	"stats.first_token":          "the same of first texts",
	"stats.decision":             "the same of decisions",
	"canary.value":               "sealed, and moved with the columns (rewrapCanary)",
}

func TestEveryColumnOfBytesIsSealedOrNamed(t *testing.T) {
	rows, err := pgtest.New(t).System(t).Query(t.Context(), `
		SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
		  AND a.atttypid IN ('bytea'::regtype, 'bytea[]'::regtype)`)
	if err != nil {
		t.Fatal(err)
	}
	inSchema, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, c := range sealedColumns() {
		known = append(known, c.Table+"."+c.Name)
	}
	for name := range notSealed {
		known = append(known, name)
	}
	for _, name := range inSchema {
		if !slices.Contains(known, name) {
			t.Errorf("%s is neither rewrapped nor named as not sealed", name)
		}
	}
	for _, name := range known {
		if !slices.Contains(inSchema, name) {
			t.Errorf("%s is not in the schema", name)
		}
	}
}

// A node that does not have a message in its codec cannot send it to another node.
func TestEveryMessageTypeIsInTheCodecOfANode(t *testing.T) {
	parts := []string{"Origin", "Idempotency", "By", "Accepted", "Visitor"} // of messages
	var known []reflect.Type
	for _, typ := range messages() {
		known = append(known, reflect.TypeOf(typ.Zero))
	}
	codec, err := os.ReadFile("../../schemas/msg/codec.go") // knows those of no kind
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "../../schemas/msg/msg.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, d := range parsed.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			if name := s.(*ast.TypeSpec).Name.Name; !slices.Contains(parts, name) {
				seen++
				if !slices.ContainsFunc(known, func(t reflect.Type) bool { return t.PkgPath() == "agentsvc/schemas/msg" && t.Name() == name }) &&
					!strings.Contains(string(codec), " "+name+"{},") {
					t.Errorf("%s is not in the codec", name)
				}
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d messages found: the check is void", seen)
	}
}
