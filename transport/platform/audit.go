package platform

import (
	"context"
	"strings"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type listAudit struct {
	api.Page
	Actor  *string    `query:"actor" maxLength:"200" doc:"exactly, as apikey:<id> or user:<id>"`
	Action *string    `query:"action" maxLength:"200" doc:"exactly, as agent.publish"`
	Target *string    `query:"target" maxLength:"200" doc:"an id, or kind:id as agent:<id>"`
	Since  *time.Time `query:"since" doc:"this time and later"`
	Until  *time.Time `query:"until" doc:"before this time"`
}

type listUsage struct {
	From    *time.Time       `query:"from" doc:"this time and later; default 30 days before to"`
	To      *time.Time       `query:"to" doc:"before this time; default now"`
	GroupBy store.UsageGroup `query:"group_by" enum:"day,agent,model,kind" doc:"default day"`
}

type listUsageRecords struct {
	api.Page
	Kind  *lifecycle.UsageKind `query:"kind"`
	RunID *id.RunID            `query:"run_id"`
}

const tagAudit = "Audit and usage"

func (p *Platform) auditRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/audit", ID: "listAudit", Answer: listed(sampleAudit),
		Summary:     "Read the audit log",
		Description: "Every change by a person or a key, and what the service did automatically. All filters given must match.", Tag: tagAudit, Role: lifecycle.RoleAdmin}, p.listAudit)
}

// targetFilter parses an id, or kind:id.
func targetFilter(f *store.AuditFilter, text string) error {
	kind, rest, both := strings.Cut(text, ":")
	if both {
		f.TargetKind, text = &kind, rest
	}
	target, err := id.Parse(text)
	if err != nil || both && kind == "" {
		return problem.Invalid("target", "must be an id, or kind:id")
	}
	f.Target = &target
	return nil
}

func (p *Platform) listAudit(ctx context.Context, c *edge.Caller, in *listAudit) (*api.List[api.AuditEntry], error) {
	f := store.AuditFilter{Actor: in.Actor, Action: in.Action, Since: in.Since, Until: in.Until}
	if in.Target != nil {
		if err := targetFilter(&f, *in.Target); err != nil {
			return nil, err
		}
	}
	return list(ctx, p.Store.View(c.Tenant), in.Page, "audit", func(v store.View, ctx context.Context, at id.AuditID, limit int) ([]api.AuditEntry, error) {
		return v.AuditLog(ctx, f, at, limit)
	}, func(e api.AuditEntry) id.AuditID { return e.ID })
}

func (p *Platform) usageRoutes(t *edge.Table) {
	edge.Enum(t, lifecycle.UsageKinds...)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/usage", ID: "getUsage", Answer: api.Items[api.UsageGroup]{Items: []api.UsageGroup{sampleUsage}},
		Summary:     "Sum up usage",
		Description: "By day (UTC, newest first), agent, model or kind (highest cost first). Without from and to: the last 30 days.", Tag: tagAudit, Role: lifecycle.RoleMember}, p.usage)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/usage/records", ID: "listUsageRecords", Answer: listed(sampleUsageRecord),
		Summary: "List billed uses", Tag: tagAudit, Role: lifecycle.RoleMember}, p.usageRecords)
}

// usageDays is how many days are summed up by default (open-parts.md, Audit, usage).
const usageDays = 30

func (p *Platform) usage(ctx context.Context, c *edge.Caller, in *listUsage) (*api.Items[api.UsageGroup], error) {
	to := time.Now()
	if in.To != nil {
		to = *in.To
	}
	from := to.AddDate(0, 0, -usageDays)
	if in.From != nil {
		from = *in.From
	}
	if from.After(to) {
		return nil, problem.Invalid("from", "must not be later than to")
	}
	by := in.GroupBy
	if by == "" {
		by = store.UsageByDay
	}
	rows, err := p.Store.View(c.Tenant).Usage(ctx, by, from, to)
	if err != nil {
		return nil, err
	}
	return &api.Items[api.UsageGroup]{Items: rows}, nil
}

func (p *Platform) usageRecords(ctx context.Context, c *edge.Caller, in *listUsageRecords) (*api.List[api.UsageRecord], error) {
	f := store.UsageFilter{Kind: in.Kind, Run: in.RunID}
	return list(ctx, p.Store.View(c.Tenant), in.Page, "usage-records", func(v store.View, ctx context.Context, at id.UsageID, limit int) ([]api.UsageRecord, error) {
		return v.UsageRecords(ctx, f, at, limit)
	}, func(r api.UsageRecord) id.UsageID { return r.ID })
}
