package sweep

import (
	"context"
	"time"

	"agentsvc/schemas/id"
)

// Files are stored files that rows name.
type Files interface {
	// Sweep removes what dead processes did not finish. It costs by what is under way.
	Sweep(ctx context.Context) (removed int, err error)
	// Walk removes files that no row names. It reads the names of all files.
	Walk(ctx context.Context) (removed int, err error)
}

const (
	// firstWalk is after how much time a node walks first: what it left before it was
	// started again is old enough then, and goes within a minute.
	firstWalk = 45 * time.Second
	// walkEvery is the time between two walks of all nodes, made by the node that has the
	// first shard: less than an hour.
	walkEvery = 50 * time.Minute
	// walkTimeout bounds a walk. One that does not end in time is made anew later.
	walkTimeout = 20 * time.Minute
)

// tidying removes files that no row names, again and again.
func (s *Sweep) tidying(ctx context.Context) {
	tick := time.NewTicker(s.cfg.FilesEvery)
	defer tick.Stop()
	nextWalk := s.cfg.Now().Add(firstWalk)
	var failing trouble
	for first := true; ; {
		if !s.cfg.Suspended() {
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
