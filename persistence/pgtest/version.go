package pgtest

import (
	"context"
	"testing"

	"agentsvc/persistence/migrate"
)

// Version returns the version of the schema of a database.
func Version(t testing.TB, url string) int {
	t.Helper()
	v, err := migrate.Version(context.Background(), url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return v
}

// ToVersion brings a database to a version of the schema, as an earlier build of the service did. It
// keeps no data of later versions.
func ToVersion(t testing.TB, url string, version int) {
	t.Helper()
	if _, err := migrate.Up(context.Background(), url); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if _, err := migrate.Down(context.Background(), url, version); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}
