package knowledge

import (
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
// see a row before the policy has.) Where the viewer may see few chunks, the index is not asked: it names those
// of the whole base.
func TestCandidatesComeFromTheIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenants, bases := fill(t, db.Admin(t), 3, 500)
	x := NewIndex(db.API(t), nil)
	parsed := lexis.Parse(benchWord(5000) + " " + benchWord(7000))
	match, prefix := expression(1, &parsed)
	viewer := []string{knowledge.Public}
	first, all := []any{tenants[0], bases[0], viewer, match, prefix, MaxCandidates}, []any{tenants[0], bases[0], viewer, match, maxSimilar}
	plan, few := []asked{{byComparing.candidates, first}, {byComparing.similar, all}}, []asked{{byComparing.few, first}, {byComparing.fewSimilar, all}}
	for _, p := range explained(t, x, tenants[0], plan) {
		if !strings.Contains(p, "Bitmap Index Scan on kb_chunks_lexemes") || strings.Contains(p, "Seq Scan on kb_chunks ") || strings.Contains(p, "Index Scan using kb_chunks_pkey") {
			t.Errorf("the plan reads more than the index finds:\n%s", p)
		}
	}
	for _, p := range explained(t, x, tenants[0], few) {
		if strings.Contains(p, "kb_chunks_lexemes") || strings.Contains(p, "Seq Scan on kb_chunks ") || !strings.Contains(p, "kb_chunks_pkey") {
			t.Errorf("the plan reads others than the chunks that the viewer may see:\n%s", p)
		}
	}
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
