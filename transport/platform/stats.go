package platform

import (
	"context"
	"time"

	"agentsvc/persistence/rollup"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/schedule"
	"agentsvc/transport/edge"
)

type getStats struct {
	From    *time.Time  `query:"from" doc:"the first period contains it; default 24 hours before to"`
	To      *time.Time  `query:"to" doc:"periods begin before it; default now"`
	Step    rollup.Step `query:"step" enum:"minute,hour,day" doc:"default hour"`
	TZ      string      `query:"tz" maxLength:"64" doc:"IANA name of the zone of hours and days; default UTC"`
	AgentID *id.AgentID `query:"agent_id" doc:"figures of one agent; deliveries belong to none"`
}

const overviewTag = "Feed, overview, stats"

func (p *Platform) overviewRoutes(t *edge.Table) {
	edge.Enum(t, api.AttentionKinds...)
	edge.Enum(t, rollup.Steps...)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/overview", ID: "getOverview", Answer: sampleOverview,
		Summary: "What happens now", Description: "Counts, and what needs attention: pending approvals of the caller, agents of which at least half of at least 5 runs failed in 24 hours, endpoints with failed deliveries, " +
			"tool servers that do not answer, sources whose last sync failed, triggers whose runs failed. Endpoints, servers, triggers and deliveries are for admins.",
		Tag: overviewTag, Role: lifecycle.RoleMember}, p.overview)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/stats", ID: "getStats", Answer: api.Items[api.Stat]{Items: []api.Stat{sampleStat}},
		Summary:     "Figures by minute, hour or day",
		Description: "Oldest first, without gaps: empty periods too. More than 400 periods are VALIDATION.", Tag: overviewTag, Role: lifecycle.RoleMember}, p.stats)
}

func (p *Platform) overview(ctx context.Context, c *edge.Caller, _ *struct{}) (*api.Overview, error) {
	who, err := p.approver(ctx, c)
	if err != nil {
		return nil, err
	}
	voter := c.Principal
	if !c.Key.IsZero() {
		voter = "apikey" // all keys of a tenant are one person
	}
	return p.Store.View(c.Tenant).Overview(ctx, store.Viewer{Approver: who, Voter: voter, Admin: c.Role.Satisfies(lifecycle.RoleAdmin)}, time.Now())
}

// statsHours is how far back stats go by default.
const statsHours = 24

func (p *Platform) stats(ctx context.Context, c *edge.Caller, in *getStats) (*api.Items[api.Stat], error) {
	to := time.Now()
	if in.To != nil {
		to = *in.To
	}
	from := to.Add(-statsHours * time.Hour)
	if in.From != nil {
		from = *in.From
	}
	if from.After(to) {
		return nil, problem.Invalid("from", "must not be later than to")
	}
	step := in.Step
	if step == "" {
		step = rollup.Hour
	}
	zone := time.UTC
	if in.TZ != "" {
		var err error
		if zone, err = schedule.Zone(in.TZ); err != nil {
			return nil, problem.Invalid("tz", err.Error())
		}
	}
	bounds, ok := rollup.Periods(step, from, to, zone, api.MaxStats)
	if !ok {
		return nil, problem.Invalid("from", "at most 400 periods")
	}
	items, err := p.Store.View(c.Tenant).Stats(ctx, bounds, in.AgentID)
	if err != nil {
		return nil, err
	}
	return &api.Items[api.Stat]{Items: items}, nil
}
