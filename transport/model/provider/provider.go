// Package provider asks the model that a manifest names. A tenant's own provider of that
// slug takes precedence over the deployment's (open-parts.md, Configuration). Credentials
// are opened for one turn.
package provider

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	schema "agentsvc/schemas/model"
	"agentsvc/schemas/turn"
	"agentsvc/transport/model"
)

// Providers are the model providers of all tenants and of the deployment.
type Providers struct {
	Tables   *store.Store
	Vault    *vault.Vault
	Registry *model.Registry
}

// Stream asks the model of for one turn of a tenant. It returns the price of the model's
// tokens too.
func (p *Providers) Stream(ctx context.Context, tenant id.TenantID, of agent.Model, req *schema.Request, sink schema.Sink) (*schema.Result, schema.Price, error) {
	found, price, err := p.provider(ctx, tenant, of)
	if err != nil {
		return nil, price, err
	}
	result, err := p.Registry.Client(found).Stream(ctx, req, sink)
	if of.Provider != model.Simulated {
		err = naming(of.Provider, err)
	}
	return result, price, err
}

// Embed makes vectors of texts for a tenant, with their cost by the tenant's prices.
func (p *Providers) Embed(ctx context.Context, tenant id.TenantID, of schema.EmbeddingModel, texts []string) (schema.Embedded, error) {
	found, price, err := p.provider(ctx, tenant, agent.Model{Provider: of.Provider, Name: of.Name})
	if err != nil {
		return schema.Embedded{}, err
	}
	out, err := p.Registry.Embedder(found).Embed(turn.With(ctx, tenant), of.Name, texts)
	out.CostUSD = price.Cost(out.TokensIn, 0)
	if of.Provider != model.Simulated {
		err = naming(of.Provider, err)
	}
	return out, err
}

// naming puts the provider's slug before a failure's message, which does not say which of a
// tenant's providers failed.
func naming(provider string, err error) error {
	var failure *schema.Error
	if !errors.As(err, &failure) || strings.Contains(failure.Message, provider) {
		return err
	}
	named := *failure
	named.Message = fmt.Sprintf("Model provider %q: %s", provider, cmp.Or(failure.Message, "it failed ("+string(failure.Kind)+")"))
	return &named
}

func (p *Providers) provider(ctx context.Context, tenant id.TenantID, of agent.Model) (found model.Provider, price schema.Price, err error) {
	if of.Provider == model.Simulated {
		found, _ = p.Registry.Builtin(of.Provider) // tenants cannot use its name
		return found, price, nil
	}
	own, err := p.Tables.View(tenant).SealedProvider(ctx, of.Provider)
	if err != nil {
		return found, price, err
	}
	if own == nil {
		builtin, ok := p.Registry.Builtin(of.Provider)
		if !ok {
			return found, price, &schema.Error{Kind: schema.Refused, BeforeFirstToken: true,
				Message: fmt.Sprintf("There is no model provider %q in this tenant, and this deployment has none of that name.", of.Provider)}
		}
		return builtin, price, nil
	}
	if len(own.Credentials) == 0 {
		return found, price, &schema.Error{Kind: schema.Refused, BeforeFirstToken: true,
			Message: fmt.Sprintf("The model provider %q lost its credentials when its base_url changed. Set them again.", of.Provider)}
	}
	plain, err := p.Vault.Open(store.CredentialsAt(tenant, own.ID), own.Credentials)
	if err != nil {
		return found, price, fmt.Errorf("open the credentials of model provider %s: %w", own.ID, err)
	}
	var credentials api.ProviderCredentials
	if err := json.Unmarshal(plain, &credentials); err != nil {
		return found, price, fmt.Errorf("read the credentials of model provider %s: %w", own.ID, err)
	}
	return model.Provider{Kind: own.Kind, BaseURL: own.BaseURL, APIKey: model.Secret(credentials.APIKey)}, schema.Price(own.Prices[of.Name]), nil
}
