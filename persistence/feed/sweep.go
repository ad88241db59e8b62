package feed

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	claimTimersSQL     = queries.Get("claim_timers")
	releaseTimersSQL   = queries.Get("release_timers")
	openRunsSQL        = queries.Get("open_runs")
	dropIdempotencySQL = queries.Get("drop_idempotency")
	runningSQL         = queries.Get("running")
)

// Sweep reads and claims over all tenants.
type Sweep struct{ pool *pgxpool.Pool }

// NewSweep works through pool, which must be of the role System.
func NewSweep(pool *pgxpool.Pool) *Sweep { return &Sweep{pool: pool} }

// Timer is a claimed timer.
type Timer struct {
	Tenant id.TenantID
	Kind   string
	Entity id.UUID
	Name   string
}

// ClaimTimers claims up to limit due timers for that long, durably: nobody else
// gets them meanwhile, and after it they are due again unless their rows went.
func (s *Sweep) ClaimTimers(ctx context.Context, limit int, hold time.Duration) ([]Timer, error) {
	rows, err := s.pool.Query(ctx, claimTimersSQL, limit, hold)
	if err != nil {
		return nil, fmt.Errorf("claim timers: %w", err)
	}
	timers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Timer])
	if err != nil {
		return nil, fmt.Errorf("claim timers: %w", err)
	}
	return timers, nil
}

// ReleaseTimers ends all claims: what is due is due at once, whoever was told
// before.
func (s *Sweep) ReleaseTimers(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, releaseTimersSQL); err != nil {
		return fmt.Errorf("release timers: %w", err)
	}
	return nil
}

// OpenRun is a run that somebody should be working on.
type OpenRun struct {
	Tenant id.TenantID
	Run    id.RunID
	Thread *id.ThreadID
	// Held says that its thread, where it has one, decides what becomes of it: it
	// is queued, or its thread was deleted.
	Held bool
}

// OpenRuns are up to limit runs behind after, in the order of their keys, that
// are queued or running and that no earlier run of their thread holds back.
func (s *Sweep) OpenRuns(ctx context.Context, after Key, limit int) ([]OpenRun, error) {
	rows, err := s.pool.Query(ctx, openRunsSQL, after.Tenant, after.Run, limit)
	if err != nil {
		return nil, fmt.Errorf("read open runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[OpenRun])
	if err != nil {
		return nil, fmt.Errorf("read open runs: %w", err)
	}
	return runs, nil
}

// DropIdempotency deletes up to limit idempotency rows older than age and says
// how many it found.
func (s *Sweep) DropIdempotency(ctx context.Context, limit int, age time.Duration) (int, error) {
	tag, err := s.pool.Exec(ctx, dropIdempotencySQL, limit, age)
	if err != nil {
		return 0, fmt.Errorf("drop old idempotency rows: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// Running are the runs of a tenant that are running.
func (s *Sweep) Running(ctx context.Context, tenant id.TenantID) ([]id.RunID, error) {
	rows, err := s.pool.Query(ctx, runningSQL, tenant)
	if err != nil {
		return nil, fmt.Errorf("read running runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[id.RunID])
	if err != nil {
		return nil, fmt.Errorf("read running runs: %w", err)
	}
	return runs, nil
}
