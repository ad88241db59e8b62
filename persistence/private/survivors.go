package private

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopSurvivors ends every process that still works on the cluster's files, and removes what
// would keep a new server from starting. The caller holds the lock, so any such process
// survived a kill of its owner.
func (c *cluster) stopSurvivors(ctx context.Context) error {
	alive := serversOf(c.data())
	if len(alive) > 0 {
		if postmaster := c.postmaster(); slices.Contains(alive, postmaster) {
			// Fast shutdown: cut the connections, write a checkpoint, end.
			if err := signal(postmaster, syscall.SIGINT); err != nil {
				return err
			}
		} // without a postmaster its children end on their own
		begun := time.Now()
		harder := []struct {
			after time.Duration
			sig   syscall.Signal
		}{{5 * time.Second, syscall.SIGQUIT}, {8 * time.Second, syscall.SIGKILL}}
		poll := time.NewTicker(10 * time.Millisecond)
		defer poll.Stop()
		for len(alive) > 0 {
			select {
			case <-ctx.Done():
				return fmt.Errorf("stop the server that an earlier process left: %w", ctx.Err())
			case <-poll.C:
			}
			alive = serversOf(c.data())
			if len(harder) > 0 && time.Since(begun) > harder[0].after {
				for _, pid := range alive {
					if err := signal(pid, harder[0].sig); err != nil {
						return err
					}
				}
				harder = harder[1:]
			}
			if time.Since(begun) > 10*time.Second && len(alive) > 0 {
				return fmt.Errorf("the server that an earlier process left does not end: processes %v", alive)
			}
		}
	}
	// No process is left, so these files are stale, whatever now runs under the process ids
	// in them. Postgres would take a reused id for a live server.
	for _, path := range []string{
		filepath.Join(c.data(), "postmaster.pid"),
		filepath.Join(c.socket(), ".s.PGSQL.5432"),
		filepath.Join(c.socket(), ".s.PGSQL.5432.lock"),
	} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// postmaster returns the process id in postmaster.pid, 0 without one.
func (c *cluster) postmaster() int {
	b, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop the server that an earlier process left: process %d: %w", pid, err)
	}
	return nil
}
