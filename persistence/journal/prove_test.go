package journal

import (
	"context"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// A lane that rests does not learn that its connection is gone. Prove has each of them
// find out, and heal.
func TestProve(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
	x := worldIn(t, &cluster.DB, nil)
	if err := x.w.Prove(t.Context()); err != nil {
		t.Fatal(err)
	}
	cluster.Crash(t)
	gone, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := x.w.Prove(gone); err == nil {
		t.Error("it is proved without a database")
	}
	cluster.Start(t)
	testkit.Eventually(x.t, "it is proved again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return x.w.Prove(ctx) == nil
	})
	if err := x.w.Down(); err != nil {
		t.Error(err)
	}
	for i := range 2 * len(x.w.lanes) { // every lane commits at once
		x.must(x.accept(id.Shard(i)))
	}
	x.w.routes.mu.Lock()
	defer x.w.routes.mu.Unlock()
	if n := len(x.w.routes.tenants); n != 0 {
		t.Errorf("%d tenants are thought to have commits on their way", n)
	}
}
