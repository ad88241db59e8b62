// Package testkit has what the tests of all packages share: Eventually waits for a
// condition, Start and Stop run a part of the service for the length of a test, Model is a
// model whose answers the test can hold back, and Reserve keeps an address.
//
// The kit has three more packages. They are apart because tests inside a package cannot
// import a package that imports theirs: persistence/pgtest makes a database and its first
// rows (tenant, agent, member), persistence/journal/journaltest starts a writer, and
// cluster/clustertest makes nodes and joins them.
package testkit

import (
	"context"
	"testing"
	"time"
)

// Patience limits every wait for something that must happen. It is far longer than anything
// takes on a busy machine.
const Patience = time.Minute

// T is the part of testing.TB and of rapid.TB that a wait needs.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Eventually waits until ok returns true. It fails the test after Patience. It is the only
// loop of the tests that polls a condition.
func Eventually(t T, what string, ok func() bool) {
	t.Helper()
	Within(t, Patience, what, ok)
}

// Within is Eventually for a condition that must hold by a limit of its own.
func Within(t T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	pause := 50 * time.Microsecond
	for end := time.Now().Add(limit); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
			return // a T of a test of this package goes on
		}
		pause = min(2*pause, 2*time.Millisecond)
	}
}

// Part is a part of the service that a test starts: a node, a writer, an outbox.
type Part interface {
	Start(context.Context) error
	Stop(context.Context) error
}

// Start starts p, which stops at the test's end.
func Start[P Part](t testing.TB, p P) P {
	t.Helper()
	if err := p.Start(t.Context()); err != nil {
		t.Fatalf("start %T: %v", p, err)
	}
	t.Cleanup(func() { Stop(t, p.Stop) })
	return p
}

// Stop calls stop with a deadline of Patience and reports its error.
func Stop(t testing.TB, stop func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := stop(ctx); err != nil {
		t.Error(err)
	}
}
