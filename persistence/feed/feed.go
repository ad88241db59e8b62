package feed

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

//go:embed queries/*.sql
var files embed.FS

var queries = pg.Queries(files)

var (
	beginSQL      = queries.Get("begin")
	tenantSQL     = queries.Get("tenant")
	runSQL        = queries.Get("run")
	stepsAfterSQL = queries.Get("steps_after")
	stepsSinceSQL = queries.Get("steps_since")
	marksAfterSQL = queries.Get("marks_after")
	endSQL        = queries.Get("end")
	headsSQL      = queries.Get("heads")
)

// Feed reads for event streams.
type Feed struct{ pool *pgxpool.Pool }

// New returns a Feed over pool, which may be of the role API.
func New(pool *pgxpool.Pool) *Feed { return &Feed{pool: pool} }

// Facts returns the facts of a run that a reader with cursor c needs, as of one moment, in
// one round trip. The error is NOT_FOUND if the tenant has no such run. If c.After is a
// position that the run never had, Facts ignores it.
func (f *Feed) Facts(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor) (*event.Facts, error) {
	facts, err := f.read(ctx, tenant, run, c)
	if err == nil && c.Within(facts) != c {
		facts, err = f.read(ctx, tenant, run, c.Within(facts))
	}
	return facts, err
}

func (f *Feed) read(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor) (*event.Facts, error) {
	facts := &event.Facts{Run: run}
	found := false
	var b pgx.Batch
	b.Queue(beginSQL)
	b.Queue(tenantSQL, tenant.String())
	b.Queue(runSQL, tenant, run).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&facts.Agent, &facts.Status, &facts.Started, &facts.Seq, &facts.Output, &facts.ErrorCode, &facts.ErrorMessage,
			&facts.TokensIn, &facts.TokensOut, &facts.CostUSD)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		found = err == nil
		return err
	})
	steps, from := stepsSinceSQL, c.Since
	if c.Exact() {
		steps, from = stepsAfterSQL, c.After.Seq
	}
	b.Queue(steps, tenant, run, from).Query(func(rows pgx.Rows) error {
		var s event.StepFacts
		_, err := pgx.ForEachRow(rows, []any{&s.Idx, &s.Kind, &s.Name, &s.Status, &s.BeganSeq, &s.CalledSeq, &s.EndedSeq, &s.Input, &s.Output, &s.Segments, &s.Relayed}, func() error {
			facts.Steps = append(facts.Steps, s)
			s = event.StepFacts{}
			return nil
		})
		return err
	})
	if c.Exact() {
		b.Queue(marksAfterSQL, tenant, run, c.After.Seq).Query(func(rows pgx.Rows) error {
			var m event.MarkFacts
			_, err := pgx.ForEachRow(rows, []any{&m.Seq, &m.Type, &m.Data}, func() error {
				facts.Marks = append(facts.Marks, m)
				m = event.MarkFacts{}
				return nil
			})
			return err
		})
	}
	b.Queue(endSQL)
	// A transaction left open by a failure ends with its connection: the pool does not keep
	// one that is in a transaction.
	if err := f.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("read the facts of run %s: %w", run, err)
	}
	if !found {
		return nil, problem.NotFound("run")
	}
	return facts, nil
}

// Key names a run.
type Key struct {
	Tenant id.TenantID
	Run    id.RunID
}

// Head is the position that a run has reached.
type Head struct {
	Run   id.RunID
	Seq   int64
	Ended bool
}

// Heads returns the positions of runs of any tenants, without unknown runs.
func (s *Sweep) Heads(ctx context.Context, keys []Key) ([]Head, error) {
	tenants, runs := make([]id.TenantID, len(keys)), make([]id.RunID, len(keys))
	for i, k := range keys {
		tenants[i], runs[i] = k.Tenant, k.Run
	}
	rows, err := s.pool.Query(ctx, headsSQL, tenants, runs)
	if err != nil {
		return nil, fmt.Errorf("read the positions of runs: %w", err)
	}
	heads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Head])
	if err != nil {
		return nil, fmt.Errorf("read the positions of runs: %w", err)
	}
	return heads, nil
}
