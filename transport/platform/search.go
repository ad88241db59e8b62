package platform

import (
	"context"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/api"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type searchAll struct {
	Q string `query:"q" required:"true" minLength:"2" maxLength:"200" doc:"an id, the last 8 or more digits of one, or the beginning of a name, slug, title, external id or e-mail; names of objects that tenants have few of are found by any part"`
}

func (p *Platform) searchRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/search", ID: "search", Answer: api.Items[api.Found]{Items: sampleFound},
		Summary: "Find objects",
		Description: "At most 20, the best first: ids before the beginnings of texts before other parts of them. Case does not matter. Members find neither objects that admins manage nor e-mails, " +
			"and only approvals that they may read. Agents, workflows and what admins manage are found among the newest 2,000 of a kind, by their whole id among all.", Tag: "Tenant", Role: lifecycle.RoleMember}, p.searchAll)
}

func (p *Platform) searchAll(ctx context.Context, c *edge.Caller, in *searchAll) (*api.Items[api.Found], error) {
	q := strings.TrimSpace(in.Q)
	if utf8.RuneCountInString(q) < 2 {
		return nil, problem.Invalid("q", "expected length >= 2 without spaces around it")
	}
	who, err := p.approver(ctx, c)
	if err != nil {
		return nil, err
	}
	found, err := p.Store.View(c.Tenant).Search(ctx, who, q)
	if err != nil {
		return nil, err
	}
	return &api.Items[api.Found]{Items: found}, nil
}
