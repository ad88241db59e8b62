package private

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchable maps major versions to the builds that the library knows.
var fetchable = map[int]embeddedpostgres.PostgresVersion{
	15: embeddedpostgres.V15, 16: embeddedpostgres.V16, 17: embeddedpostgres.V17, 18: embeddedpostgres.V18,
}

// fetchedMajor is the version downloaded for a new cluster.
const fetchedMajor = 17

// download puts binaries of the major version (0: any) into the directory into, with the
// server at into/bin/postgres.
func download(ctx context.Context, major int, into string) error {
	if major == 0 {
		major = fetchedMajor
	}
	version, ok := fetchable[major]
	if !ok {
		return fmt.Errorf("there is no build of version %d to download", major)
	}
	cache := into + ".cache"
	defer os.RemoveAll(cache)
	// The library cannot only unpack: it goes on to create a cluster. A data path that cannot
	// exist stops it there, before initdb and before any process.
	lib := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(0).
		CachePath(cache).
		RuntimePath(filepath.Join(cache, "runtime")).
		BinariesPath(into).
		DataPath(filepath.Join(os.DevNull, "none")).
		Logger(io.Discard))
	ended := make(chan error, 1)
	go func() { ended <- lib.Start() }() // it takes no context; it ends with its download
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		if _, missing := os.Stat(filepath.Join(into, "bin", "postgres")); missing == nil {
			return nil
		}
		return fmt.Errorf("download PostgreSQL %d: %w", major, err)
	}
}
