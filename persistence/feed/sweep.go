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
)

// Sweep reads and changes rows of all tenants.
type Sweep struct{ pool *pgxpool.Pool }

// NewSweep returns a Sweep over pool, which must be of the role System.
func NewSweep(pool *pgxpool.Pool) *Sweep { return &Sweep{pool: pool} }

// Timer is a claimed timer.
type Timer struct {
	Tenant id.TenantID
	Kind   string
	Entity id.UUID
	Name   string
	Until  time.Time // of the claim
}

// Claim describes the due timers to claim.
type Claim struct {
	// Shards are those of the entities.
	Shards []id.Shard
	Limit  int
	Hold   time.Duration
	// Without are tenants whose timers are not claimed.
	Without []id.TenantID
	// By is the member that claims. A member that is marked dead or has no lease claims
	// nothing. The zero value skips this check.
	By id.MemberID
}

// foreignLimit bounds the number of entities with foreign ids that one claim reads. A foreign
// id was not made by the service: it carries no shard, and the shard is a hash of it.
const foreignLimit = 1000

// ClaimTimers claims due timers durably. Until the hold has passed no other node gets them;
// then those whose rows are still there are due again.
func (s *Sweep) ClaimTimers(ctx context.Context, c Claim) ([]Timer, error) {
	if len(c.Shards) == 0 {
		return nil, nil
	}
	var by *id.MemberID
	if !c.By.IsZero() {
		by = &c.By
	}
	without := append([]id.TenantID{}, c.Without...) // not NULL
	var timers []Timer
	var foreign []id.UUID
	var b pgx.Batch
	b.Queue(claimTimersSQL, c.Limit, c.Hold, by, lines(c.Shards), []id.UUID{}, without).Query(func(rows pgx.Rows) (err error) {
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
	rows, err := s.pool.Query(ctx, claimTimersSQL, c.Limit-len(timers), c.Hold, by, []int32{}, foreign, without)
	if err != nil {
		return timers, fmt.Errorf("claim timers of foreign ids: %w", err)
	}
	more, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Timer])
	if err != nil {
		return timers, fmt.Errorf("claim timers of foreign ids: %w", err)
	}
	return append(timers, more...), nil
}

// ReleaseTimers ends the claims on the timers of the shards: a due timer can be claimed again
// at once.
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

// ReturnTimers ends these claims, except where a timer was claimed again since.
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
