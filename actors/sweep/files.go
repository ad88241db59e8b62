package sweep

import (
	"context"
	"time"

	"agentsvc/schemas/id"
)

// Files is the store of files that rows name.
type Files interface {
	// Sweep removes the unfinished files of dead processes. Its cost depends on the number of
	// unfinished files.
	Sweep(ctx context.Context) (removed int, err error)
	// Walk removes files that no row names. It reads the names of all files.
	Walk(ctx context.Context) (removed int, err error)
}

const (
	// firstWalk is the time from a node's start to its first walk. Files that the node left
	// before a restart are old enough then, so they are removed within a minute.
	firstWalk = 45 * time.Second
	// walkEvery is the time between two walks, less than an hour. The owner of the first shard
	// walks for all nodes.
	walkEvery = 50 * time.Minute
	// walkTimeout bounds a walk. A later walk starts again.
	walkTimeout = 20 * time.Minute
)

// tidying removes files that no row names.
func (s *Sweep) tidying(ctx context.Context) {
	tick := time.NewTicker(s.cfg.FilesEvery)
	defer tick.Stop()
	nextWalk := s.cfg.Now().Add(firstWalk)
	var failing trouble
	for first := true; ; {
		if s.cfg.Live() {
			n, err := s.tidy(ctx, s.cfg.Files.Sweep, onceTimeout)
			if now := s.cfg.Now(); err == nil && !now.Before(nextWalk) {
				nextWalk = now.Add(walkEvery)
				if first || s.cfg.Node.Owns(id.Shard(0)) {
					var walked int
					walked, err = s.tidy(ctx, s.cfg.Files.Walk, walkTimeout)
					n += walked
				}
				first = false
			}
			if ctx.Err() != nil {
				return
			}
			if n > 0 {
				filesRemoved.Add(float64(n))
				s.cfg.Log.Info().Int("files", n).Msg("files that no row names were removed")
			}
			failing.note(s.cfg.Log, "stored files", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Sweep) tidy(ctx context.Context, part func(context.Context) (int, error), timeout time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return part(ctx)
}
