package feed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	inOrderSQL  = queries.Get("in_order")
	openRunsSQL = queries.Get("open_runs")
	runningSQL  = queries.Get("running")

	eraseRunsSQL       = queries.Get("erase_runs")
	eraseToldSQL       = queries.Get("erase_told")
	eraseDeliveriesSQL = queries.Get("erase_deliveries")
)

// RunChecks are the invariants of runs.
var RunChecks = []Check{
	{"running runs without an open step", queries.Get("doctor_running_without_step")},
	{"ended runs with an open step", queries.Get("doctor_ended_with_open_step")},
	{"runs whose steps have a gap", queries.Get("doctor_step_gap")},
	{"succeeded runs of a thread without a reply", queries.Get("doctor_succeeded_without_reply")},
	{"runs queued for more than a minute that nothing holds back", queries.Get("doctor_stuck_queue")},
	{"waiting runs that nothing wakes", queries.Get("doctor_waiting_for_nobody")},
}

// OpenRuns is a Finder of the queued and running runs that are the first open run of their
// thread, or have none. Queued runs, and runs of deleted threads, are woken through their
// thread, which starts or ends them.
func OpenRuns(ctx context.Context, pool *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (p Page, err error) {
	var (
		f          Found
		thread     *id.UUID
		held, able bool
		size       int
		b          pgx.Batch // one transaction
	)
	b.Queue(inOrderSQL)
	b.Queue(openRunsSQL, from(shards, after), after, limit).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&f.Tenant, &f.ID, &thread, &held, &able, &size}, func() error {
			if p.Next = f.ID; able && here(f.ID, shards) {
				if f.Through = nil; held {
					f.Through = thread
				}
				p.Found = append(p.Found, f)
			}
			thread = nil
			return nil
		})
		return err
	})
	if err := pool.SendBatch(ctx, &b).Close(); err != nil {
		return Page{}, fmt.Errorf("read open runs: %w", err)
	}
	p.More = size == limit
	return p, nil
}

// Running returns the running runs of a tenant.
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

// PersonalRuns is the erasure of an end user's runs. One transaction deletes a run with its
// steps, marks, approvals, artifacts and timers and the deliveries about its end.
var PersonalRuns = &Erasure{Table: "runs", Person: "person_id", Erase: eraseRuns}

func eraseRuns(ctx context.Context, pool *pgxpool.Pool, people []Person, limit int, settled time.Duration) (int, error) {
	return erase(ctx, pool, "erase runs of deleted end users", eraseRunsSQL, people, limit, settled, func(ctx context.Context, tx pgx.Tx, of erased) error {
		of, err := eraseDeliveries(ctx, tx, of)
		if err != nil {
			return err
		}
		return of.each(ctx, tx, "erase_approval_timers", "erase_run_timers", "erase_approvals", "erase_marks", "erase_steps", "erase_artifacts", "erase_ended")
	})
}

// eraseDeliveries deletes the deliveries about the ends of runs. It returns the runs without
// a delivery left. A locked delivery stays until the next pass, and so does its run, by which
// the delivery is found.
func eraseDeliveries(ctx context.Context, tx pgx.Tx, of erased) (free erased, err error) {
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

// told returns the arguments of erase_told.
func (e erased) told() []any {
	from, to := make([]id.UUID, len(e.at)), make([]id.UUID, len(e.at))
	for i, at := range e.at {
		from[i], to[i] = id.At(at), id.At(at.Add(time.Millisecond))
	}
	return []any{e.tenants, e.ids, e.at, from, to}
}
