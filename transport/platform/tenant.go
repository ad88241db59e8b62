package platform

import (
	"context"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// nothing is the input of a route without input.
type nothing struct{}

type patchTenant struct{ Body api.TenantPatch }

func (p *Platform) tenantRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/auth/me", ID: "getMe", Answer: api.Me{Principal: "apikey:" + sampleKeyID.String(), Role: lifecycle.RoleAdmin, Tenant: &sampleTenant},
		Summary: "Identify the caller", Tag: "Tenant", Role: lifecycle.RoleMember}, p.me)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/tenant", ID: "getTenant", Answer: sampleTenant,
		Summary: "Read the tenant", Tag: "Tenant", Role: lifecycle.RoleMember}, p.tenant)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/tenant", ID: "updateTenant", Answer: sampleTenant,
		Summary:     "Change the tenant",
		Description: "For owners only; an API key is not an owner.", Tag: "Tenant", Role: lifecycle.RoleOwner,
		Example: map[string]any{"residency": map[string]any{"allowed_hosts": []string{"*.example.com"}}}}, p.updateTenant)
}

func (p *Platform) me(ctx context.Context, c *edge.Caller, _ *nothing) (*api.Me, error) {
	v := p.Store.View(c.Tenant)
	tenant, err := v.Tenant(ctx)
	if err != nil {
		return nil, err
	}
	me := &api.Me{Principal: c.Principal, Role: c.Role, Tenant: tenant}
	if !c.User.IsZero() {
		if me.User, err = v.User(ctx, c.User); err != nil {
			return nil, err
		}
	}
	return me, nil
}

func (p *Platform) tenant(ctx context.Context, c *edge.Caller, _ *nothing) (*api.Tenant, error) {
	return p.Store.View(c.Tenant).Tenant(ctx)
}

func (p *Platform) updateTenant(ctx context.Context, c *edge.Caller, in *patchTenant) (*api.Tenant, error) {
	if r, ok := in.Body.Residency.Get(); ok {
		for i, host := range r.AllowedHosts {
			if !validHost(host) {
				return nil, problem.Invalid(entry("residency.allowed_hosts", i), "must be a host name, or *. and a suffix")
			}
		}
	}
	return change(ctx, p, c, with1((*store.Tx).UpdateTenant, &in.Body))
}
