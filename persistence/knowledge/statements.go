package knowledge

import (
	"maps"
	"strings"

	"agentsvc/persistence/pg"
)

// manyPrincipals is from how many principals on a viewer has many: Postgres compares each principal of an ACL
// with each of the viewer's, so the groups of a person are looked up in a table instead.
const manyPrincipals = 16

// The forms of the condition that an ACL has a principal of the viewer.
const (
	eachCompared = "d.acl && $3::text[]"
	eachLookedUp = "EXISTS (SELECT FROM unnest(d.acl) AS p WHERE p = ANY ($3::text[]))"

	// ofMany marks the names of queries of viewers with many principals.
	ofMany = "_of_many"
)

// queries are those of this package. A query with a viewer is there in both forms.
var queries = func() pg.QueryMap {
	all := pg.Queries(files)
	for name, sql := range maps.Clone(all) {
		if strings.Contains(sql, eachCompared) {
			all[name+ofMany] = strings.ReplaceAll(sql, eachCompared, eachLookedUp)
		}
	}
	return all
}()

// statements are the queries of a search that name its viewer.
type statements struct{ visible, models, documents, candidates, few, similar, fewSimilar, texts string }

func newStatements(end string) *statements {
	get := func(name string) string { return queries.Get(name + end) }
	return &statements{get("visible"), get("models"), get("documents"), get("candidates"), get("few"), get("similar"), get("few_similar"), get("texts")}
}

var byComparing, byLookup = newStatements(""), newStatements(ofMany)

// The other queries.
var (
	baseSQL    = queries.Get("base")
	billSQL    = queries.Get("bill")
	vectorsSQL = queries.Get("vectors")
	holdSQL    = queries.Get("hold")
	writeSQL   = queries.Get("write")
	dropSQL    = queries.Get("drop")
	loadSQL    = queries.Get("load")

	takeBackSQL = queries.Get("take_back")
	madeSQL     = queries.Get("made")
	awaitSQL    = queries.Get("await_writers")
)

// lookedUp makes Postgres plan each query with its arguments. Only then does it make a table of the principals.
const lookedUp = "SELECT set_config('plan_cache_mode', 'force_custom_plan', true)"

// many reports whether the viewer of a query has many principals.
func (q *Query) many() bool { return len(q.Viewer) > manyPrincipals }

func (q *Query) sql() *statements {
	if q.many() {
		return byLookup
	}
	return byComparing
}
