package store

import (
	"context"
	"fmt"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// UsageFilter narrows usage records; nil fields match all.
type UsageFilter struct {
	Kind *lifecycle.UsageKind
	Run  *id.RunID
}

// lasted is when a run was created and when it ended; nil: it has not, or it has no row.
type lasted struct{ CreatedAt, FinishedAt *time.Time }

// args returns the query of a list and its arguments. between is of the run that f names.
func (f UsageFilter) args(tenant id.TenantID, at id.UsageID, limit int, between lasted) (name string, args []any) {
	from, n := before(at.UUID, limit)
	args = []any{tenant, from, (*string)(f.Kind), n}
	switch {
	case f.Run != nil:
		least, end := around(between.CreatedAt, between.FinishedAt, id.UUID{}, from)
		return "usage_of_run", append(args, f.Run, least, end)
	case f.Kind != nil && *f.Kind != lifecycle.UsageLLM:
		return "usage_of_kind", args
	}
	return "usage_records", args
}

// UsageRecords returns billed uses, newest first, after at; there may be one more than limit.
func (v View) UsageRecords(ctx context.Context, f UsageFilter, at id.UsageID, limit int) ([]api.UsageRecord, error) {
	var between lasted
	if f.Run != nil {
		row, err := one[lasted](ctx, v, "usage_of_run_between", v.tenant, f.Run)
		switch made := f.Run.Time(); {
		case err != nil:
			return nil, err
		case row != nil:
			between = *row
		default: // its rows stay when it is erased
			between.CreatedAt = &made
		}
	}
	name, args := f.args(v.tenant, at, limit, between)
	rows, err := listed[struct {
		ID        id.UsageID
		At        time.Time
		Kind      lifecycle.UsageKind
		RunID     *id.RunID
		AgentID   *id.AgentID
		Model     string
		TokensIn  int64
		TokensOut int64
		CostUSD   float64 `db:"cost_usd"`
		Detail    []byte
	}](ctx, v, name, args...)
	if err != nil {
		return nil, err
	}
	out := make([]api.UsageRecord, len(rows))
	for i, r := range rows {
		out[i] = api.UsageRecord{ID: r.ID, At: r.At, Kind: r.Kind, RunID: r.RunID, AgentID: r.AgentID, Model: r.Model,
			TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: r.CostUSD, Detail: api.Value(r.Detail)}
	}
	return out, nil
}

// UsageGroup is the field by which usage is summed up.
type UsageGroup string

// Values of UsageGroup (open-parts.md, Audit and usage).
const (
	UsageByDay   UsageGroup = "day"
	UsageByAgent UsageGroup = "agent"
	UsageByModel UsageGroup = "model"
	UsageByKind  UsageGroup = "kind"
)

type usageSums struct {
	Runs             int64
	TokensIn         int64
	TokensOut        int64
	CostUSD          float64 `db:"cost_usd"`
	BrowserSkillRuns int64
}

func (u usageSums) group() api.UsageGroup {
	return api.UsageGroup{Runs: u.Runs, TokensIn: u.TokensIn, TokensOut: u.TokensOut, CostUSD: u.CostUSD, BrowserSkillRuns: u.BrowserSkillRuns}
}

// Usage sums up billed uses in the time from until before to: by day, newest first, or by
// agent, model or kind, highest cost first.
func (v View) Usage(ctx context.Context, by UsageGroup, from, to time.Time) ([]api.UsageGroup, error) {
	switch by {
	case UsageByDay:
		return sums(ctx, v, "usage_by_day", from, to, func(r struct {
			Day string
			usageSums
		},
		) api.UsageGroup {
			g := r.group()
			g.Day = r.Day
			return g
		})
	case UsageByAgent:
		return sums(ctx, v, "usage_by_agent", from, to, func(r struct {
			AgentID *id.AgentID
			usageSums
		},
		) api.UsageGroup {
			g := r.group()
			g.AgentID = api.None[id.AgentID]()
			if r.AgentID != nil {
				g.AgentID = api.Some(*r.AgentID)
			}
			return g
		})
	case UsageByModel:
		return sums(ctx, v, "usage_by_model", from, to, func(r struct {
			Model string
			usageSums
		},
		) api.UsageGroup {
			g := r.group()
			g.Model = api.Some(r.Model)
			return g
		})
	case UsageByKind:
		return sums(ctx, v, "usage_by_kind", from, to, func(r struct {
			Kind lifecycle.UsageKind
			usageSums
		},
		) api.UsageGroup {
			g := r.group()
			g.Kind = api.Some(r.Kind)
			return g
		})
	}
	return nil, fmt.Errorf("usage by %q", by)
}

func sums[T any](ctx context.Context, v View, query string, from, to time.Time, group func(T) api.UsageGroup) ([]api.UsageGroup, error) {
	rows, err := all[T](ctx, v, query, v.tenant, from, to, since(&from), until(&to, last))
	if err != nil {
		return nil, err
	}
	out := make([]api.UsageGroup, len(rows))
	for i, r := range rows {
		out[i] = group(r)
	}
	return out, nil
}
