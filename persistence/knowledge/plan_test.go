package knowledge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lexis"
)

// The candidates of a search are found by the index of words, not by reading the tenant's chunks or
// all chunks. (As svc_api, under row-level security, Postgres reads the tenant's chunks: @@ may not
// see a row before the policy has.) Their documents are looked up in a table of those of the base, not compared with each, however
// few Postgres takes them for. Where the viewer may see few chunks, the index is not asked: it names those
// of the whole base.
func TestCandidatesComeFromTheIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenants, bases := fill(t, db.Admin(t), 20, 200)
	x := NewIndex(db.API(t), nil)
	parsed := lexis.Parse(benchWord(5000) + " " + benchWord(7000))
	match, of := whole(1, &parsed)
	phrases, last := conditions(1, &parsed)
	viewer := []string{knowledge.Public}
	similar := []any{tenants[0], bases[0], viewer, match[0], maxSimilar}
	plan := []asked{{byComparing.candidates, []any{tenants[0], bases[0], viewer, match, MaxCandidates, of}}, {byComparing.similar, similar}}
	few := []asked{{byComparing.few, []any{tenants[0], bases[0], viewer, phrases, last, MaxCandidates}}, {byComparing.fewSimilar, similar}}
	for _, p := range explained(t, x, tenants[0], plan) {
		if !strings.Contains(p, "Bitmap Index Scan on kb_chunks_lexemes") || strings.Contains(p, "Seq Scan on kb_chunks ") || strings.Contains(p, "kb_chunks_pkey") ||
			!strings.Contains(p, "Hash Join") || strings.Contains(p, "Join Filter") {
			t.Errorf("the plan reads more than the index finds:\n%s", p)
		}
	}
	for _, p := range explained(t, x, tenants[0], few) {
		if strings.Contains(p, "kb_chunks_lexemes") || strings.Contains(p, "Seq Scan on kb_chunks ") || !strings.Contains(p, "kb_chunks_pkey") {
			t.Errorf("the plan reads others than the chunks that the viewer may see:\n%s", p)
		}
	}
}

// The lexemes of a long chunk lie outside its row: they are not read to rank it, whether the last word is
// unfinished or the viewer may see few chunks.
func TestNoLexemesAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const chunks = 60
	texts := make([]string, chunks)
	for i := range texts {
		var b strings.Builder
		for j := range 1000 {
			fmt.Fprintf(&b, "%s%d ", benchWord(j), i)
		}
		texts[i] = b.String() + "canary"
	}
	w.add("long", nil, texts...)
	w.exec("ANALYZE kb_chunks, kb_documents")
	parsed := lexis.Parse("canary canar")
	match, of := whole(w.number, &parsed)
	viewer := []string{knowledge.Public}
	for i, p := range explained(t, w.index, w.tenant, []asked{
		{byComparing.candidates, []any{w.tenant, w.base, viewer, match, MaxCandidates, of}},
		{byComparing.few, []any{w.tenant, w.base, viewer, nil, nil, MaxCandidates}},
		{byComparing.few, []any{w.tenant, w.base, viewer, nil, lexeme(w.number, "canar") + ":*", MaxCandidates}}, // the measure: it reads them
	}) {
		pages := pagesOf(t, p)
		if reads := pages > 5*chunks; reads != (i == 2) {
			t.Errorf("query %d reads %d pages for %d chunks:\n%s", i, pages, chunks, p)
		}
	}
}

// pagesOf returns how many pages a plan found in memory.
func pagesOf(t *testing.T, plan string) (pages int) {
	t.Helper()
	_, found, _ := strings.Cut(plan, "shared hit=")
	if _, err := fmt.Sscan(found, &pages); err != nil {
		t.Fatal(err, plan)
	}
	return pages
}

type asked struct {
	sql  string
	args []any
}

// explained returns the plans of queries, which are carried out.
func explained(t *testing.T, x *Index, tenant id.TenantID, list []asked) (plans []string) {
	t.Helper()
	err := x.read(t.Context(), &Query{Tenant: tenant}, func(tx pgx.Tx) error {
		for _, query := range list {
			rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+query.sql, query.args...)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			plans = append(plans, strings.Join(lines, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return plans
}

// A removal reads the chunks that it removes, and none of those that stay, in a table that has no statistics yet.
func TestARemovalReadsWhatItRemoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const chunks = 1000
	d := w.add("doc", nil, slices.Repeat([]string{"canary"}, chunks)...)
	w.write(d, 2, slices.Repeat([]string{"canary"}, chunks)...)
	for _, c := range []struct{ keep, last, removed, most int }{
		{1, 1, 0, 20}, // nothing but what is shown: the usual end of an ingestion
		{2, 1, chunks, 10 * chunks},
	} {
		rows, err := w.admin.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+dropSQL, w.tenant, d, c.keep, c.last, dropAtOnce)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan, left := strings.Join(lines, "\n"), 0
		if err := w.admin.QueryRow(t.Context(), "SELECT count(*) FROM kb_chunks WHERE document_id = $1 AND generation <= $2", d, c.last).Scan(&left); err != nil || chunks-left != c.removed {
			t.Errorf("keep %d: %d chunks were removed, %v", c.keep, chunks-left, err)
		}
		if pages := pagesOf(t, plan); pages > c.most || strings.Contains(plan, "Join") {
			t.Errorf("keep %d: the removal of %d chunks read %d pages:\n%s", c.keep, c.removed, pages, plan)
		}
	}
}
