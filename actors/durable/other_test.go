package durable

import (
	"context"
	"errors"
	"testing"

	"agentsvc/cluster"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// A message to an id under the wrong kind reaches the actor of the right one: with its answer,
// its refusal, and also when nobody waits for an answer.
func TestARowOfAnotherKindIsAskedThere(t *testing.T) {
	m, a := newMemory(), address()
	m.put(a, ledger{Count: 7, Orders: []order{}})
	wrong := toyKind(newMemory(), newWorld())
	wrong.Name = "wrong"
	wrong.Load = func(_ context.Context, a cluster.Address) (Loaded[ledger], error) {
		return Loaded[ledger]{}, &Other{Kind: "toy"}
	}
	n := node(t, host(toyKind(m, newWorld()), m, Config{}), host(wrong, m, Config{}))
	at := a
	at.Kind = "wrong"
	if got := ask(t, n, at, sum{}); got != total(7) {
		t.Fatalf("got %v", got)
	}
	if _, err := n.Ask(t.Context(), at, drops{ID: "none"}); err == nil {
		t.Fatal("a refusal became an answer")
	}
	n.Tell(at, add{ID: "x", N: 1})
	testkit.Eventually(t, "a told message arrives", func() bool { _, s := m.row(a); return s.Count == 8 })
	testkit.Eventually(t, "the wrong activation leaves", func() bool { return !n.Active(at) })
	unknown := address()
	unknown.Kind = "wrong"
	if _, err := n.Ask(t.Context(), unknown, sum{}); !errors.Is(err, problem.NotFound("")) {
		t.Fatalf("err = %v", err)
	}
}
