package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/rollup"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// statRow is a row of sums.
type statRow struct {
	At          time.Time
	Succeeded   int64
	Failed      int64
	Cancelled   int64
	Requested   int64
	Decided     int64
	Expired     int64
	Delivered   int64
	Undelivered int64
	TokensIn    int64
	TokensOut   int64
	CostUSD     float64 `db:"cost_usd"`
	Duration    []byte
	FirstToken  []byte
	Decision    []byte
}

// Stats returns the figures of the periods between the bounds, of one agent or of all: the
// sums, and what is not added to them yet, at one moment.
func (v View) Stats(ctx context.Context, bounds []time.Time, agent *id.AgentID) ([]api.Stat, error) {
	periods := make([]*rollup.Sums, len(bounds)-1)
	for i := range periods {
		periods[i] = &rollup.Sums{}
	}
	if len(periods) == 0 {
		return []api.Stat{}, nil
	}
	of := func(at time.Time) *rollup.Sums {
		return periods[sort.Search(len(bounds), func(i int) bool { return bounds[i].After(at) })-1]
	}
	minutes, since, until := spread(rollup.Ranges(bounds))
	row := id.AgentID{}
	if agent != nil {
		row = *agent
	}
	err := v.q.together(ctx, func(b *pgx.Batch) {
		b.Queue(queries.Get("stats_sums"), v.tenant, row, minutes, since, until).Query(func(rows pgx.Rows) error {
			var r statRow
			_, err := pgx.ForEachRow(rows, []any{&r.At, &r.Succeeded, &r.Failed, &r.Cancelled, &r.Requested, &r.Decided, &r.Expired, &r.Delivered, &r.Undelivered,
				&r.TokensIn, &r.TokensOut, &r.CostUSD, &r.Duration, &r.FirstToken, &r.Decision}, func() error { return r.addTo(of(r.At)) })
			return err
		})
		b.Queue(queries.Get("stats_rest"), v.tenant, bounds[0], bounds[len(bounds)-1], agent).Query(func(rows pgx.Rows) error {
			var t rollup.Tally
			_, err := pgx.ForEachRow(rows, tallyColumns(&t), func() error { of(t.At).Count(&t); return nil })
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	out := make([]api.Stat, len(periods))
	for i, s := range periods {
		out[i] = stat(bounds[i], s)
	}
	return out, nil
}

func tallyColumns(t *rollup.Tally) []any {
	return []any{&t.TenantID, &t.What, &t.At, &t.AgentID, &t.MS, &t.FirstMS, &t.TokensIn, &t.TokensOut, &t.CostUSD}
}

func (r *statRow) addTo(s *rollup.Sums) error {
	s.Succeeded += r.Succeeded
	s.Failed += r.Failed
	s.Cancelled += r.Cancelled
	s.Requested += r.Requested
	s.Decided += r.Decided
	s.Expired += r.Expired
	s.Delivered += r.Delivered
	s.Undelivered += r.Undelivered
	s.TokensIn += r.TokensIn
	s.TokensOut += r.TokensOut
	s.CostUSD += r.CostUSD
	return errors.Join(s.Duration.MergeEncoded(r.Duration), s.FirstToken.MergeEncoded(r.FirstToken), s.Decision.MergeEncoded(r.Decision))
}

func stat(at time.Time, s *rollup.Sums) api.Stat {
	return api.Stat{
		At: at, Runs: api.StatRuns{Succeeded: s.Succeeded, Failed: s.Failed, Cancelled: s.Cancelled},
		DurationMS: percentiles(s.Duration, 1), FirstTokenMS: percentiles(s.FirstToken, 1), DecisionS: percentiles(s.Decision, 1000),
		Approvals:  api.StatApprovals{Requested: s.Requested, Decided: s.Decided, Expired: s.Expired},
		Deliveries: api.StatDeliveries{Succeeded: s.Delivered, Failed: s.Undelivered},
		TokensIn:   s.TokensIn, TokensOut: s.TokensOut, CostUSD: s.CostUSD,
	}
}

// percentiles returns milliseconds in units of so many milliseconds, rounded to a millisecond.
func percentiles(h rollup.Histogram, unit float64) *api.Percentiles {
	if len(h) == 0 {
		return nil
	}
	return &api.Percentiles{P50: math.Round(h.Percentile(0.5)) / unit, P95: math.Round(h.Percentile(0.95)) / unit}
}

func spread(ranges []rollup.Range) (minutes []int32, since, until []time.Time) {
	minutes, since, until = []int32{}, []time.Time{}, []time.Time{}
	for _, r := range ranges {
		minutes, since, until = append(minutes, int32(r.Minutes)), append(since, r.From), append(until, r.To)
	}
	return minutes, since, until
}

// failingFrom and failingPart are when an agent fails: at least so many runs ended in the last 24
// hours, and at least this part of them failed (console.md, Settled).
const (
	failingFrom = 5
	failingPart = 0.5
)

const day = 24 * time.Hour

// oneDay returns the bounds of the 24 hours before now, in whole minutes.
func oneDay(now time.Time) []time.Time {
	end := now.UTC().Truncate(time.Minute).Add(time.Minute)
	return []time.Time{end.Add(-day), end}
}

// Viewer is the caller to whom an Overview is shown.
type Viewer struct {
	Approver
	Voter string // its name in the ledgers of approvals
	Admin bool   // it sees what only admins manage
}

type attentionRow struct {
	ID       id.UUID
	ParentID *id.UUID // of sources
	Title    string
	Count    int64
	Since    time.Time
}

// Overview returns what happens now and what needs attention. now is the time of the node.
func (v View) Overview(ctx context.Context, by Viewer, now time.Time) (*api.Overview, error) {
	bounds := oneDay(now)
	minutes, since, until := spread(rollup.Ranges(bounds))
	out := &api.Overview{At: now.UTC().Truncate(time.Millisecond), Attention: []api.Attention{}}
	var (
		open []struct {
			Status lifecycle.RunStatus
			N      int64
		}
		approvals []struct {
			Risk          lifecycle.Risk
			Pending       int64
			NextExpiresAt *time.Time
			Mine          int64
			Since         *time.Time
		}
		pending                    []int64
		sources, endpoints, firing []attentionRow
		servers                    []attentionRow
		agents                     []agentDay
		day                        = &rollup.Sums{}
		fresh                      = map[id.AgentID]*agentDay{}
	)
	if by.Nodes == nil {
		by.Nodes = []id.NodeID{}
	}
	from := id.At(bounds[0])
	err := v.q.together(ctx, func(b *pgx.Batch) {
		collect(b, "overview_open", &open, pgx.RowToStructByName, v.tenant)
		collect(b, "overview_approvals", &approvals, pgx.RowToStructByName, v.tenant, by.roles(), by.Nodes, by.Voter)
		collect(b, "attention_sources", &sources, pgx.RowToStructByNameLax[attentionRow], v.tenant)
		if by.Admin {
			collect(b, "overview_deliveries", &pending, pgx.RowTo[int64], v.tenant)
			collect(b, "attention_endpoints", &endpoints, pgx.RowToStructByNameLax[attentionRow], v.tenant, from)
			collect(b, "attention_servers", &servers, pgx.RowToStructByNameLax[attentionRow], v.tenant)
			collect(b, "attention_triggers", &firing, pgx.RowToStructByNameLax[attentionRow], v.tenant, from)
		}
		b.Queue(queries.Get("stats_sums"), v.tenant, id.AgentID{}, minutes, since, until).Query(func(rows pgx.Rows) error {
			var r statRow
			_, err := pgx.ForEachRow(rows, []any{&r.At, &r.Succeeded, &r.Failed, &r.Cancelled, &r.Requested, &r.Decided, &r.Expired, &r.Delivered, &r.Undelivered,
				&r.TokensIn, &r.TokensOut, &r.CostUSD, &r.Duration, &r.FirstToken, &r.Decision}, func() error { return r.addTo(day) })
			return err
		})
		b.Queue(queries.Get("stats_rest"), v.tenant, bounds[0], bounds[1], nil).Query(func(rows pgx.Rows) error {
			var t rollup.Tally
			_, err := pgx.ForEachRow(rows, tallyColumns(&t), func() error {
				day.Count(&t)
				if t.AgentID != nil {
					if fresh[*t.AgentID] == nil {
						fresh[*t.AgentID] = &agentDay{}
					}
					fresh[*t.AgentID].count(&t)
				}
				return nil
			})
			return err
		})
		collect(b, "stats_of_agents", &agents, pgx.RowToStructByName[agentDay], v.tenant, bounds[0].Truncate(time.Hour), minutes, since, until)
	})
	if err != nil {
		return nil, err
	}
	for _, o := range open {
		switch o.Status {
		case lifecycle.RunQueued:
			out.Runs.Queued = o.N
		case lifecycle.RunRunning:
			out.Runs.Running = o.N
		case lifecycle.RunWaitingApproval:
			out.Runs.WaitingApproval = o.N
		}
	}
	out.Runs.Succeeded24h, out.Runs.Failed24h, out.Runs.Cancelled24h = day.Succeeded, day.Failed, day.Cancelled
	var waiting *time.Time
	for _, a := range approvals {
		out.Approvals.Pending += a.Pending
		out.Approvals.Mine += a.Mine
		switch a.Risk {
		case lifecycle.RiskLow:
			out.Approvals.ByRisk.Low = a.Pending
		case lifecycle.RiskMedium:
			out.Approvals.ByRisk.Medium = a.Pending
		case lifecycle.RiskHigh:
			out.Approvals.ByRisk.High = a.Pending
		case lifecycle.RiskCritical:
			out.Approvals.ByRisk.Critical = a.Pending
		}
		out.Approvals.NextExpiresAt = earlier(out.Approvals.NextExpiresAt, a.NextExpiresAt)
		waiting = earlier(waiting, a.Since)
	}
	if by.Admin {
		out.Deliveries = &api.OverviewDeliveries{Failed24h: day.Undelivered}
		for _, n := range pending {
			out.Deliveries.Pending += n
		}
	}
	if waiting != nil {
		out.Attention = append(out.Attention, api.Attention{Kind: api.AttentionApprovals, Title: "Approvals", Count: out.Approvals.Mine, Since: *waiting})
	}
	failing, err := v.failing(ctx, agents, fresh)
	if err != nil {
		return nil, err
	}
	out.Attention = append(out.Attention, failing...)
	attend := func(kind api.AttentionKind, rows []attentionRow) {
		for _, r := range rows {
			out.Attention = append(out.Attention, api.Attention{Kind: kind, ID: &r.ID, ParentID: r.ParentID, Title: r.Title, Count: r.Count, Since: r.Since})
		}
	}
	attend(api.AttentionFailingEndpoint, endpoints)
	attend(api.AttentionUnreachableServer, servers)
	attend(api.AttentionFailedSource, sources)
	attend(api.AttentionFailedTrigger, firing)
	return out, nil
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// agentDay is what ended of one agent in 24 hours.
type agentDay struct {
	AgentID                      id.AgentID
	Succeeded, Failed, Cancelled int64
	Since                        *time.Time // of the first failed run
}

func (a *agentDay) count(t *rollup.Tally) {
	switch t.What {
	case lifecycle.TallySucceeded:
		a.Succeeded++
	case lifecycle.TallyCancelled:
		a.Cancelled++
	case lifecycle.TallyFailed:
		a.Failed++
		a.Since = earlier(a.Since, &t.At)
	}
}

func (a *agentDay) fails() bool {
	all := a.Succeeded + a.Failed + a.Cancelled
	return all >= failingFrom && float64(a.Failed) >= failingPart*float64(all)
}

// failing returns the agents that fail. fresh is what is not in the sums of days yet.
func (v View) failing(ctx context.Context, days []agentDay, fresh map[id.AgentID]*agentDay) ([]api.Attention, error) {
	bad := map[id.AgentID]*agentDay{}
	var ids []id.AgentID
	for i := range days {
		d := &days[i]
		if f := fresh[d.AgentID]; f != nil {
			d.Succeeded, d.Failed, d.Cancelled = d.Succeeded+f.Succeeded, d.Failed+f.Failed, d.Cancelled+f.Cancelled
			d.Since = earlier(d.Since, f.Since)
		}
		if d.fails() {
			bad[d.AgentID] = d
			ids = append(ids, d.AgentID)
		}
	}
	if len(bad) == 0 {
		return nil, nil
	}
	names, err := all[struct {
		ID    id.AgentID
		Title string
	}](ctx, v, "attention_agents", v.tenant, ids)
	if err != nil {
		return nil, err
	}
	var out []api.Attention
	for _, n := range names {
		out = append(out, api.Attention{Kind: api.AttentionFailingAgent, ID: &n.ID.UUID, Title: n.Title, Count: bad[n.ID].Failed, Since: *bad[n.ID].Since})
	}
	slices.SortFunc(out, func(a, b api.Attention) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return out[:min(len(out), 20)], nil
}
