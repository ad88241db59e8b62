package feed

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

var (
	eraseWhoseSQL         = queries.Get("erase_whose")
	eraseThreadsSQL       = queries.Get("erase_threads")
	eraseRunsSQL          = queries.Get("erase_runs")
	eraseToldSQL          = queries.Get("erase_told")
	eraseDeliveriesSQL    = queries.Get("erase_deliveries")
	eraseConversationsSQL = queries.Get("erase_conversations")
	erasePeopleSQL        = queries.Get("erase_people")
)

// Person is a deleted end user whose row is still there.
type Person struct {
	Tenant    id.TenantID
	ID        id.EndUserID
	DeletedAt time.Time
}

// DeletedPeople returns up to limit people behind after, of which DeletedAt and ID
// count, in the order in which they were deleted. What they left behind is looked for by
// them, some people at a time.
func (s *Sweep) DeletedPeople(ctx context.Context, after Person, limit int) ([]Person, error) {
	people, err := collect[Person](ctx, s, eraseWhoseSQL, after.DeletedAt, after.ID, limit)
	if err != nil {
		return nil, fmt.Errorf("read deleted end users: %w", err)
	}
	return people, nil
}

// columns are the people as the queries take them, in another order each time: nobody
// who left much behind is always before the same others.
func columns(people []Person) (tenants []id.TenantID, ids []id.EndUserID) {
	for _, i := range rand.Perm(len(people)) {
		tenants, ids = append(tenants, people[i].Tenant), append(ids, people[i].ID)
	}
	return tenants, ids
}

// collect is what a query finds that goes by indexes.
func collect[T any](ctx context.Context, s *Sweep, sql string, args ...any) (found []T, err error) {
	var b pgx.Batch // one transaction
	b.Queue(byIndexSQL)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return found, s.pool.SendBatch(ctx, &b).Close()
}

// lookAhead is how many threads are looked at for each one that a node is to delete: the
// others' nodes have theirs.
const lookAhead = 20

// LostThread is a thread of a deleted end user that is to be deleted by its actor.
type LostThread struct {
	Tenant id.TenantID
	Thread id.ThreadID
}

// LostThreads are up to limit of the people's, of the shards.
func (s *Sweep) LostThreads(ctx context.Context, people []Person, shards []id.Shard, limit int) ([]LostThread, error) {
	if len(shards) == 0 || len(people) == 0 {
		return nil, nil
	}
	tenants, ids := columns(people)
	lost, err := collect[LostThread](ctx, s, eraseThreadsSQL, tenants, ids, append(lines(shards), noShard), limit, lookAhead*limit)
	if err != nil {
		return nil, fmt.Errorf("read threads of deleted end users: %w", err)
	}
	return lost, nil
}

// EraseRuns deletes up to limit runs of the people that ended settled ago or
// earlier, with their steps, marks, approvals and deliveries, and says how many it
// found. What it deletes of a run it deletes at once, or nothing.
func (s *Sweep) EraseRuns(ctx context.Context, people []Person, limit int, settled time.Duration) (int, error) {
	return s.erase(ctx, "erase runs of deleted end users", eraseRunsSQL, people, limit, settled, func(ctx context.Context, tx pgx.Tx, of erased) error {
		of, err := s.eraseDeliveries(ctx, tx, of)
		if err != nil {
			return err
		}
		return of.each(ctx, tx, "erase_approval_timers", "erase_run_timers", "erase_approvals", "erase_marks", "erase_steps", "erase_ended")
	})
}

// eraseDeliveries deletes the deliveries about the ends of runs, and answers the runs of
// which none is left: one that somebody works on is left for the next time with its run,
// because it is found by it.
func (s *Sweep) eraseDeliveries(ctx context.Context, tx pgx.Tx, of erased) (free erased, err error) {
	about := map[id.UUID]id.UUID{} // the run of a delivery
	var d, run id.UUID
	rows, err := tx.Query(ctx, eraseToldSQL, of.told()...)
	if err != nil {
		return erased{}, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&d, &run}, func() error {
		about[d] = run
		return nil
	}); err != nil {
		return erased{}, err
	}
	if len(about) > 0 {
		if rows, err = tx.Query(ctx, eraseDeliveriesSQL, of.tenants, slices.Collect(maps.Keys(about))); err != nil {
			return erased{}, err
		}
		if _, err := pgx.ForEachRow(rows, []any{&d}, func() error {
			delete(about, d)
			return nil
		}); err != nil {
			return erased{}, err
		}
	}
	held := slices.Collect(maps.Values(about))
	for i, run := range of.ids {
		if !slices.Contains(held, run) {
			free.tenants, free.ids = append(free.tenants, of.tenants[i]), append(free.ids, run)
		}
	}
	return free, nil
}

// EraseThreads empties up to limit threads of the people that were deleted
// settled ago or earlier and have no open run, and says how many it found.
func (s *Sweep) EraseThreads(ctx context.Context, people []Person, limit int, settled time.Duration) (int, error) {
	return s.erase(ctx, "erase threads of deleted end users", eraseConversationsSQL, people, limit, settled, func(ctx context.Context, tx pgx.Tx, of erased) error {
		return of.each(ctx, tx, "erase_messages", "erase_titles")
	})
}

// ErasePeople deletes those of the people who were deleted age ago or earlier and of
// whom nothing is left, and says how many that were.
func (s *Sweep) ErasePeople(ctx context.Context, people []Person, age time.Duration) (int, error) {
	tenants, ids := columns(people)
	return s.byIndex(ctx, "erase deleted end users", erasePeopleSQL, tenants, ids, age)
}

// erased are rows that are locked to be erased.
type erased struct {
	tenants []id.TenantID
	ids     []id.UUID
	at      []time.Time // of those that have a time
}

// told are the arguments of erase_told.
func (e erased) told() []any {
	from, to := make([]id.UUID, len(e.at)), make([]id.UUID, len(e.at))
	for i, at := range e.at {
		from[i], to[i] = atTime(at), atTime(at.Add(time.Millisecond))
	}
	return []any{e.tenants, e.ids, e.at, from, to}
}

func (e erased) each(ctx context.Context, tx pgx.Tx, steps ...string) error {
	for _, step := range steps {
		if _, err := tx.Exec(ctx, queries.Get(step), e.tenants, e.ids); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

// erase locks what a query finds and erases it, in one transaction.
func (s *Sweep) erase(ctx context.Context, what, find string, people []Person, limit int, settled time.Duration, fn func(ctx context.Context, tx pgx.Tx, of erased) error) (int, error) {
	var of erased
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		tenants, ids := columns(people)
		rows, err := tx.Query(ctx, find, tenants, ids, limit, settled)
		if err != nil {
			return err
		}
		var t id.TenantID
		var u id.UUID
		var at time.Time
		into := []any{&t, &u, &at}[:len(rows.FieldDescriptions())]
		if _, err := pgx.ForEachRow(rows, into, func() error {
			of.tenants, of.ids, of.at = append(of.tenants, t), append(of.ids, u), append(of.at, at)
			return nil
		}); err != nil || len(of.ids) == 0 {
			return err
		}
		return fn(ctx, tx, of)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return len(of.ids), nil
}

// atTime is before every id that is made at that time or later.
func atTime(at time.Time) (u id.UUID) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(at.UnixMilli(), 0)))
	copy(u[:], ms[2:])
	return u
}
