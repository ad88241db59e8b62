package platform

import (
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/rollup"
	"agentsvc/schemas/testkit"
)

// fold adds all tallies to the sums.
func (w *world) fold() {
	w.t.Helper()
	f := rollup.New(rollup.Config{Pool: w.actors.pool, Every: time.Millisecond, Log: zerolog.Nop()})
	w.must(f.Start(w.t.Context()))
	defer f.Stop()
	testkit.Eventually(w.t, "everything is folded", func() bool {
		var some bool
		w.must(w.admin.QueryRow(w.t.Context(), "SELECT EXISTS (SELECT FROM tallies)").Scan(&some))
		return !some
	})
}
