package knowledge

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lexis"
)

// The candidates of a search are found by the index of words, not by reading the tenant's chunks or
// all chunks. (As svc_api, under row-level security, Postgres reads the tenant's chunks: @@ may not
// see a row before the policy has.)
func TestCandidatesComeFromTheIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenants, bases := fill(t, db.Admin(t), 3, 500)
	x := NewIndex(db.API(t), nil)
	parsed := lexis.Parse(benchWord(5000) + " " + benchWord(7000))
	match, prefix := expression(1, &parsed)
	var plan []string
	err := x.read(t.Context(), tenants[0], func(tx pgx.Tx) error {
		for _, query := range []struct {
			sql  string
			args []any
		}{
			{candidatesSQL, []any{tenants[0], bases[0], []string{knowledge.Public}, match, prefix, MaxCandidates}},
			{similarSQL, []any{tenants[0], bases[0], []string{knowledge.Public}, match, maxSimilar}},
		} {
			rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+query.sql, query.args...)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			plan = append(plan, strings.Join(lines, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plan {
		if !strings.Contains(p, "Bitmap Index Scan on kb_chunks_lexemes") || strings.Contains(p, "Seq Scan on kb_chunks ") || strings.Contains(p, "Index Scan using kb_chunks_pkey") {
			t.Errorf("the plan reads more than the index finds:\n%s", p)
		}
	}
}
