package knowledge

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lexis"
)

var benchChunks = flag.Int("chunks", 30_000, "chunks of all tenants in the database that BenchmarkLexical searches")

const (
	benchTenantChunks = 10_000 // of the tenant that searches
	benchWords        = 20_000
	benchLength       = 80 // words of a chunk
)

// benchWord returns a word. A low n is a frequent word.
func benchWord(n int) string {
	var b strings.Builder
	for n += 100; n > 0; n /= 100 {
		b.WriteString(string("bdfghklmnprstvwxzcjq"[n%20]) + string("aeiou"[n/20%5]))
	}
	return b.String()
}

// zipf draws a word as often as natural texts have it.
func zipf(r *rand.Rand) string { return benchWord(int(math.Exp(r.Float64()*math.Log(benchWords))) - 1) }

// fill makes bases of so many chunks each, of a tenant each, with texts as long and as uneven as
// natural ones. It returns the tenants and their bases.
func fill(tb testing.TB, admin *pgxpool.Pool, bases, chunks int) (tenants []id.TenantID, all []id.KnowledgeBaseID) {
	tb.Helper()
	exec := func(sql string, args ...any) {
		tb.Helper()
		if _, err := admin.Exec(context.Background(), sql, args...); err != nil {
			tb.Fatal(err)
		}
	}
	samples := min(2000, chunks)
	r := rand.New(rand.NewPCG(1, 2))
	var texts, lexemes []string
	var terms [][]byte
	var lengths []int
	for range samples {
		words := make([]string, benchLength)
		for i := range words {
			words[i] = zipf(r)
		}
		text := strings.Join(words, " ")
		list, length := lexis.Index(text)
		texts, terms, lengths = append(texts, text), append(terms, pack(list)), append(lengths, length)
		lexemes = append(lexemes, strings.ReplaceAll(lexemesOf(-1, list), "'-1:", "'@:"))
	}
	exec(`CREATE TABLE samples (n int PRIMARY KEY, text text, terms bytea, length int, lexemes text)`)
	exec(`INSERT INTO samples SELECT u.n - 1, u.text, u.terms, u.length, u.lexemes FROM unnest($1::text[], $2::bytea[], $3::int[], $4::text[]) WITH ORDINALITY AS u (text, terms, length, lexemes, n)`,
		texts, terms, lengths, lexemes)
	exec(`DROP INDEX kb_chunks_lexemes`)
	const perDocument = 20
	for range bases {
		t, base := pgtest.Tenant(tb, admin), id.KnowledgeBaseID{UUID: id.NewAnywhere()}
		var number int64
		if err := admin.QueryRow(context.Background(), `INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'base') RETURNING number`, t, base).Scan(&number); err != nil {
			tb.Fatal(err)
		}
		exec(`INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256, owes, shown, generation, chunks, status)
			SELECT $1, gen_random_uuid(), $2, 'document ' || i, 'text/plain', 1, gen_random_uuid(), '', false, 1, 1, $4, 'ready' FROM generate_series(1, $3::int / $4::int) i`, t, base, chunks, perDocument)
		exec(`INSERT INTO kb_chunks (tenant_id, document_id, generation, position, base_id, id, text, tokens, length, terms, lexemes)
			SELECT $1, d.id, 1, p, $2, gen_random_uuid(), s.text, s.length, s.length, s.terms, replace(s.lexemes, '@', $3)::tsvector
			FROM (SELECT id, row_number() OVER () AS n FROM kb_documents WHERE tenant_id = $1) d, generate_series(0, $4::int - 1) p
			JOIN samples s ON true WHERE s.n = (d.n * $4 + p) % $5`, t, base, base36(number), perDocument, samples)
		tenants, all = append(tenants, t), append(all, base)
	}
	exec(`SET maintenance_work_mem = '512MB'`)
	exec(`CREATE INDEX kb_chunks_lexemes ON kb_chunks USING gin (lexemes) WITH (fastupdate = off)`)
	exec(`DROP TABLE samples`)
	exec(`VACUUM ANALYZE kb_chunks, kb_documents, knowledge_bases`)
	return tenants, all
}

func base36(n int64) string { return strings.TrimSuffix(strings.TrimPrefix(lexeme(n, ""), "'"), ":'") }

// BenchmarkLexical searches as a tenant of 10,000 chunks among -chunks of others, with queries of
// three words: as frequent as in natural questions.
func BenchmarkLexical(b *testing.B) {
	db := pgtest.New(b)
	admin := db.Admin(b)
	began := time.Now()
	tenants, bases := fill(b, admin, max(1, *benchChunks/benchTenantChunks), benchTenantChunks)
	b.Logf("%d chunks were made in %v", len(bases)*benchTenantChunks, time.Since(began).Round(time.Second))
	x := NewIndex(db.API(b), nil)
	r := rand.New(rand.NewPCG(3, 4))
	var took []time.Duration
	for b.Loop() {
		q := Query{Tenant: tenants[0], Base: bases[0], TopK: 5, Viewer: []string{knowledge.Public},
			Text: fmt.Sprintf("%s %s %s ", benchWord(r.IntN(200)), benchWord(200+r.IntN(2000)), benchWord(r.IntN(benchWords)))}
		began := time.Now()
		if _, err := x.Search(b.Context(), q); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
