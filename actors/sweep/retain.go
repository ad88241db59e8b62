package sweep

import (
	"context"
	"time"

	"agentsvc/persistence/feed"
)

const (
	// retainBatch is the largest number of rows of one batch.
	retainBatch = 1000
	// retainConns is the number of connections that all retentions may use at a time.
	retainConns = 2
	// anewEvery is the time between two passes that begin with the oldest row. They find rows
	// that earlier passes skipped. Their extra cost is to read the index entries of rows that
	// were deleted since the last vacuum.
	anewEvery = time.Hour
)

// retention is the state of one feed.Retention.
type retention struct {
	feed.Retention
	mark  feed.Mark // where the next pass begins
	anew  time.Time // when a pass begins with the oldest row again
	batch int       // limit of rows of a pass, smaller after a failure
}

// retaining runs the passes of one retention. share limits the passes that run at a time.
func (s *Sweep) retaining(ctx context.Context, r *retention, share chan struct{}) {
	next := time.NewTimer(0)
	defer next.Stop()
	var failing trouble
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		select {
		case share <- struct{}{}:
		case <-ctx.Done():
			return
		}
		_, rest, err := s.retain(ctx, r)
		<-share
		if ctx.Err() != nil {
			return
		}
		failing.note(s.cfg.Log, "retention of "+r.Name, err)
		next.Reset(rest)
	}
}

// retain deletes one batch. It returns the number of rows and the rest until the next pass.
func (s *Sweep) retain(ctx context.Context, r *retention) (n int, rest time.Duration, err error) {
	if !s.cfg.Live() {
		return 0, s.cfg.RetainEvery, nil
	}
	now, from, limit := s.cfg.Now(), r.mark, r.batch
	if !now.Before(r.anew) {
		from, r.anew = feed.Mark{}, now.Add(anewEvery)
	}
	var next feed.Mark
	err = bounded(ctx, func(ctx context.Context) (err error) {
		n, next, err = s.cfg.Rows.Retain(ctx, &r.Retention, from, limit)
		return err
	})
	if err != nil { // the next pass begins at the same mark
		r.batch = max(limit/2, 1)
		return 0, s.cfg.RetainEvery, err
	}
	r.mark = next
	rowsDropped.Add(float64(n))
	r.batch = min(2*limit, retainBatch)
	if n >= limit {
		return n, s.cfg.Every, nil
	}
	return n, s.cfg.RetainEvery, nil
}
