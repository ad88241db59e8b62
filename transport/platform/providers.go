package platform

import (
	"context"
	"strconv"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type createProvider struct{ Body api.ModelProviderCreate }

type oneProvider struct {
	ID id.ProviderID `path:"id"`
}

type patchProvider struct {
	ID   id.ProviderID `path:"id"`
	Body api.ModelProviderPatch
}

func (p *Platform) providerRoutes(t *edge.Table) {
	const tag = "Model providers"
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/model-providers", ID: "listModelProviders", Answer: listed(sampleProvider),
		Summary: "List model providers", Tag: tag, Role: lifecycle.RoleAdmin}, p.listProviders)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/model-providers", ID: "createModelProvider", Answer: sampleProvider,
		Summary:     "Add a model provider",
		Description: "Manifests name it by its slug. The slug openai or anthropic replaces the deployment's provider. Credentials are stored encrypted and never returned.",
		Tag:         tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true, Codes: []problem.Code{problem.CodeSlugTaken},
		Example: map[string]any{"slug": "local", "kind": "openai", "base_url": "https://models.example.com/v1", "credentials": map[string]any{"api_key": "…"},
			"prices": map[string]any{"large": map[string]any{"input_per_mtok": 2.5, "output_per_mtok": 10}}}}, p.createProvider)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/model-providers/{id}", ID: "getModelProvider", Answer: sampleProvider,
		Summary: "Read a model provider", Tag: tag, Role: lifecycle.RoleAdmin}, p.getProvider)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/model-providers/{id}", ID: "updateModelProvider", Answer: api.ModelProviderUpdated{ModelProvider: sampleProvider},
		Summary:     "Change a model provider",
		Description: "Credentials in the body replace the stored ones. A base_url at another origin (scheme, host, port) drops the stored credentials unless the body has new ones; the response then has credentials_dropped.", Tag: tag, Role: lifecycle.RoleAdmin, Codes: []problem.Code{problem.CodeSlugTaken},
		Example: map[string]any{"credentials": map[string]any{"api_key": "…"}}}, p.updateProvider)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/model-providers/{id}", ID: "deleteModelProvider", Summary: "Remove a model provider", Tag: tag, Role: lifecycle.RoleAdmin}, p.deleteProvider)
}

func entry(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// validHost accepts a host name, or *. and a suffix.
func validHost(host string) bool {
	name := strings.TrimPrefix(host, "*.")
	if name == "" || len(name) > 253 {
		return false
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, r := range label {
			if ('a' > r || r > 'z') && ('A' > r || r > 'Z') && ('0' > r || r > '9') && r != '-' {
				return false
			}
		}
	}
	return true
}

// checkProvider checks what the schema of a body cannot express.
func (p *Platform) checkProvider(ctx context.Context, slug, baseURL *string) error {
	if slug != nil && *slug == agent.ProviderSimulated {
		return problem.Invalid("slug", "is the name of the built-in provider")
	}
	if baseURL != nil {
		// Request paths are appended to the base URL.
		if strings.ContainsAny(*baseURL, "?#") {
			return problem.Invalid("base_url", "must hold neither a query nor a fragment")
		}
		if err := p.URLs.CheckURL(ctx, *baseURL); err != nil {
			return problem.Invalid("base_url", err.Error())
		}
	}
	return nil
}

func (p *Platform) listProviders(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.ModelProvider], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "model-providers", store.View.Providers, func(m api.ModelProvider) id.ProviderID { return m.ID })
}

func (p *Platform) createProvider(ctx context.Context, c *edge.Caller, in *createProvider) (*api.ModelProvider, error) {
	if err := p.checkProvider(ctx, &in.Body.Slug, &in.Body.BaseURL); err != nil {
		return nil, err
	}
	return change(ctx, p, c, with1((*store.Tx).CreateProvider, &in.Body))
}

func (p *Platform) getProvider(ctx context.Context, c *edge.Caller, in *oneProvider) (*api.ModelProvider, error) {
	return p.Store.View(c.Tenant).Provider(ctx, in.ID)
}

func (p *Platform) updateProvider(ctx context.Context, c *edge.Caller, in *patchProvider) (*api.ModelProviderUpdated, error) {
	if err := p.checkProvider(ctx, in.Body.Slug, in.Body.BaseURL); err != nil {
		return nil, err
	}
	return change(ctx, p, c, with2((*store.Tx).UpdateProvider, in.ID, &in.Body))
}

func (p *Platform) deleteProvider(ctx context.Context, c *edge.Caller, in *oneProvider) (*edge.Empty, error) {
	return change(ctx, p, c, none1((*store.Tx).DeleteProvider, in.ID))
}
