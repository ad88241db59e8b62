package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
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
	if !o.Empty {
		if err := prepare(dir); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	c := &Cluster{cfg: private.Config{DataDir: dir, Log: zerolog.Nop(), Unsafe: !o.Fsync, Settings: o.Settings}}
	c.Start(t)
	t.Cleanup(func() { c.Stop(t) })
	return c
}

// prepare copies a migrated cluster into a data directory, so that not every test pays for making one. It is
// made once for all test processes, and lies beside the shared server, whose daemon removes it.
func prepare(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	s, err := use(ctx)
	if err != nil {
		return err
	}
	from := filepath.Join(s.prepared(), template())
	if err := makePrepared(ctx, s, from); err != nil {
		return fmt.Errorf("make a cluster to copy: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(from, "postgres"), dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy a cluster: %w: %s", err, out)
	}
	return nil
}

// makePrepared lets one process make the cluster, which gets its name when it is complete.
func makePrepared(ctx context.Context, s shared, dir string) error {
	lock, err := waitLock(ctx, s.preparing(), syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unfinished := dir + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	server, err := private.Open(ctx, private.Config{DataDir: unfinished, Log: zerolog.Nop(), Unsafe: true})
	if err != nil {
		return err
	}
	_, err = migrate.Up(ctx, server.URL())
	if err := errors.Join(err, server.Stop(ctx)); err != nil {
		return err
	}
	return os.Rename(unfinished, dir)
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
