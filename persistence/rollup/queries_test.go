package rollup

import (
	"testing"

	"agentsvc/persistence/pgtest"
)

func TestQueries(t *testing.T) { pgtest.Prepare(t, queries) }

func TestQueriesNameTheirTenant(t *testing.T) {
	fold := "a fold adds the tallies of all tenants, each to the sums of its own tenant"
	pgtest.Tenants(t, queries, map[string]pgtest.Beyond{
		"any":     {Why: fold, Scans: []string{"tallies"}},
		"restart": {Why: fold, Scans: []string{"tallies"}},
		"bound":   {Why: fold, Scans: []string{"tallies", "tallies_1", "tallies_2"}},
		"trim":    {Why: fold, Scans: []string{"stats"}},
		"take":    {Why: fold, Scans: []string{"tallies"}},
	})
}
