package feed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	claimTimersSQL    = queries.Get("claim_timers")
	foreignTimersSQL  = queries.Get("foreign_timers")
	claimedForeignSQL = queries.Get("claimed_foreign")
	releaseTimersSQL  = queries.Get("release_timers")
	returnTimersSQL   = queries.Get("return_timers")
	inOrderSQL        = queries.Get("in_order")
	openRunsSQL       = queries.Get("open_runs")
	runningSQL        = queries.Get("running")
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
	Until  time.Time // of the claim
}

// Claim says which due timers are claimed.
type Claim struct {
	// Shards are those of the entities.
	Shards []id.Shard
	Limit  int
	Hold   time.Duration
	// By is the member that claims: one that is dead or without a lease gets
	// nothing. The zero value is nobody in particular.
	By id.MemberID
}

// foreignLimit bounds how many entities without a shard of their own are looked
// at in one claim.
const foreignLimit = 1000

// ClaimTimers claims due timers durably: nobody else gets them until the hold has
// passed, and then they are due again unless their rows went.
func (s *Sweep) ClaimTimers(ctx context.Context, c Claim) ([]Timer, error) {
	if len(c.Shards) == 0 {
		return nil, nil
	}
	var by *id.MemberID
	if !c.By.IsZero() {
		by = &c.By
	}
	var timers []Timer
	var foreign []id.UUID
	var b pgx.Batch
	b.Queue(claimTimersSQL, c.Limit, c.Hold, by, lines(c.Shards), []id.UUID{}).Query(func(rows pgx.Rows) (err error) {
		timers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Timer])
		return err
	})
	b.Queue(foreignTimersSQL, foreignLimit).Query(func(rows pgx.Rows) (err error) {
		foreign, err = pgx.CollectRows(rows, pgx.RowTo[id.UUID])
		return err
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("claim timers: %w", err)
	}
	foreign = slices.DeleteFunc(foreign, func(u id.UUID) bool { return !slices.Contains(c.Shards, u.Shard()) })
	if len(foreign) == 0 || len(timers) == c.Limit {
		return timers, nil
	}
	rows, err := s.pool.Query(ctx, claimTimersSQL, c.Limit-len(timers), c.Hold, by, []int32{}, foreign)
	if err != nil {
		return timers, fmt.Errorf("claim timers of foreign ids: %w", err)
	}
	more, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Timer])
	if err != nil {
		return timers, fmt.Errorf("claim timers of foreign ids: %w", err)
	}
	return append(timers, more...), nil
}

// ReleaseTimers ends the claims on timers of the shards: what is due is due at
// once, whoever was told before.
func (s *Sweep) ReleaseTimers(ctx context.Context, shards []id.Shard) error {
	rows, err := s.pool.Query(ctx, claimedForeignSQL)
	if err != nil {
		return fmt.Errorf("read claims of foreign ids: %w", err)
	}
	foreign, err := pgx.CollectRows(rows, pgx.RowTo[id.UUID])
	if err != nil {
		return fmt.Errorf("read claims of foreign ids: %w", err)
	}
	foreign = slices.DeleteFunc(foreign, func(u id.UUID) bool { return !slices.Contains(shards, u.Shard()) })
	if _, err := s.pool.Exec(ctx, releaseTimersSQL, lines(shards), foreign); err != nil {
		return fmt.Errorf("release timers: %w", err)
	}
	return nil
}

// ReturnTimers ends these claims, unless somebody has claimed anew since.
func (s *Sweep) ReturnTimers(ctx context.Context, timers []Timer) error {
	n := len(timers)
	tenants, entities, until := make([]id.TenantID, n), make([]id.UUID, n), make([]time.Time, n)
	kinds, names := make([]string, n), make([]string, n)
	for i, t := range timers {
		tenants[i], kinds[i], entities[i], names[i], until[i] = t.Tenant, t.Kind, t.Entity, t.Name, t.Until
	}
	if _, err := s.pool.Exec(ctx, returnTimersSQL, tenants, kinds, entities, names, until); err != nil {
		return fmt.Errorf("return timers: %w", err)
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

// Page is a part of a pass over the open runs.
type Page struct {
	Runs []OpenRun
	Next id.RunID // the last run looked at: the next page begins behind it
	More bool     // false: it was the last one
}

// OpenRuns looks at up to limit open runs of the shards, behind the run after or,
// where that is zero, from the beginning. Of them the page has those that are
// queued or running and that no earlier run of their thread holds back. Shards are
// in ascending order, the same all through a pass.
func (s *Sweep) OpenRuns(ctx context.Context, shards []id.Shard, after id.RunID, limit int) (Page, error) {
	if len(shards) == 0 {
		return Page{}, nil
	}
	here, rest := line(after.UUID), lines(shards)
	behind, _ := slices.BinarySearch(rest, here+1)
	var (
		p    Page
		o    OpenRun
		able bool
		size int
		b    pgx.Batch // one transaction
	)
	b.Queue(inOrderSQL)
	b.Queue(openRunsSQL, append([]int32{here}, rest[behind:]...), after, limit).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&o.Tenant, &o.Run, &o.Thread, &o.Held, &able, &size}, func() error {
			if p.Next = o.Run; able && (line(o.Run.UUID) != noShard || slices.Contains(shards, o.Run.Shard())) {
				p.Runs = append(p.Runs, o)
			}
			o.Thread = nil
			return nil
		})
		return err
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return Page{}, fmt.Errorf("read open runs: %w", err)
	}
	p.More = size == limit
	return p, nil
}

// noShard is the line of ids that were not minted by the service, before all
// others.
const noShard = -1

// line is where an open run stands in a pass: at the shard that its id carries,
// as shard_of says it.
func line(u id.UUID) int32 {
	if u[6]>>4 != 7 {
		return noShard
	}
	return int32(u.Shard())
}

// lines are shards as the database counts them.
func lines(shards []id.Shard) []int32 {
	out := make([]int32, len(shards))
	for i, s := range shards {
		out[i] = int32(s)
	}
	return out
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
