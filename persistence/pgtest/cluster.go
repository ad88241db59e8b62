package pgtest

import (
	"context"
	"os"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/persistence/migrate"
	"agentsvc/persistence/private"
)

// Cluster is a server that only one test uses, with one migrated database.
type Cluster struct {
	DB
	cfg    private.Config
	server *private.Server
}

// PrivateOptions configure a test's own server.
type PrivateOptions struct {
	Fsync bool // on a disk and durable, as in production
	Empty bool // without the service's schema and roles
	// Settings are further server settings.
	Settings map[string]string
}

// Private starts a server for t and removes it at t's end. A server killed by its Pid is
// restarted, as in the service; after Stop it stays down until Start.
func Private(t testing.TB, o PrivateOptions) *Cluster {
	t.Helper()
	parent := memory()
	if o.Fsync {
		parent = os.TempDir()
	}
	dir, err := os.MkdirTemp(parent, "svc-pgtest-own-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// The server may run under another user, which must reach the directory.
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	c := &Cluster{cfg: private.Config{DataDir: dir, Log: zerolog.Nop(), Unsafe: !o.Fsync, Settings: o.Settings}}
	c.Start(t)
	t.Cleanup(func() { c.Stop(t) })
	if !o.Empty {
		if _, err := migrate.Up(context.Background(), c.URL); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	return c
}

// Pid returns the server's process id, 0 while it is down.
func (c *Cluster) Pid() int { return c.server.Pid() }

// Start starts the server after a Stop; the URLs stay the same.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	server, err := private.Open(ctx, c.cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	c.server = server
	c.URL, c.AdminURL = server.URL(), withDatabase(server.AdminURL(), "svc")
}

// Stop stops the server in order, as an operator does; open connections are cut.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := c.server.Stop(ctx); err != nil {
		t.Errorf("pgtest: %v", err)
	}
}

// Crash stops the server without a checkpoint, as in a crash, and leaves it down until Start.
func (c *Cluster) Crash(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.server.Stop(ctx) // it returns an error that it could not wait, as intended
}
