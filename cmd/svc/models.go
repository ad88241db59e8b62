package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	schema "agentsvc/schemas/model"
	"agentsvc/transport/model"
)

// models asks the model that a manifest names. A tenant's own provider of that slug takes
// precedence over the deployment's (open-parts.md, Configuration). Credentials are opened
// for one turn.
type models struct {
	store    *store.Store
	vault    *vault.Vault
	registry *model.Registry
}

func (m *models) Stream(ctx context.Context, tenant id.TenantID, of agent.Model, req *schema.Request, sink schema.Sink) (*schema.Result, schema.Price, error) {
	p, price, err := m.provider(ctx, tenant, of)
	if err != nil {
		return nil, price, err
	}
	result, err := m.registry.Client(p).Stream(ctx, req, sink)
	if of.Provider != model.Simulated {
		err = naming(of.Provider, err)
	}
	return result, price, err
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

func (m *models) provider(ctx context.Context, tenant id.TenantID, of agent.Model) (p model.Provider, price schema.Price, err error) {
	if of.Provider == model.Simulated {
		p, _ = m.registry.Builtin(of.Provider) // tenants cannot use its name
		return p, price, nil
	}
	own, err := m.store.View(tenant).SealedProvider(ctx, of.Provider)
	if err != nil {
		return p, price, err
	}
	if own == nil {
		p, ok := m.registry.Builtin(of.Provider)
		if !ok {
			return p, price, &schema.Error{Kind: schema.Refused, BeforeFirstToken: true,
				Message: fmt.Sprintf("There is no model provider %q in this tenant, and this deployment has none of that name.", of.Provider)}
		}
		return p, price, nil
	}
	if len(own.Credentials) == 0 {
		return p, price, &schema.Error{Kind: schema.Refused, BeforeFirstToken: true,
			Message: fmt.Sprintf("The model provider %q lost its credentials when its base_url changed. Set them again.", of.Provider)}
	}
	plain, err := m.vault.Open(store.CredentialsAt(tenant, own.ID), own.Credentials)
	if err != nil {
		return p, price, fmt.Errorf("open the credentials of model provider %s: %w", own.ID, err)
	}
	var credentials api.ProviderCredentials
	if err := json.Unmarshal(plain, &credentials); err != nil {
		return p, price, fmt.Errorf("read the credentials of model provider %s: %w", own.ID, err)
	}
	return model.Provider{Kind: own.Kind, BaseURL: own.BaseURL, APIKey: model.Secret(credentials.APIKey)}, schema.Price(own.Prices[of.Name]), nil
}

// provides reports whether the deployment has a model provider of that name.
func (c *Config) provides(name string) bool {
	switch name {
	case model.Simulated:
		return true
	case model.OpenAI:
		return c.OpenAIKey != "" || c.OpenAIURL != ""
	case model.Anthropic:
		return c.AnthropicKey != "" || c.AnthropicURL != ""
	}
	return false
}

// attachments reads the beginning of attached files for models.
type attachments struct{ blobs *blob.Dir }

func (a attachments) Start(_ context.Context, tenant id.TenantID, attachment id.AttachmentID, max int) ([]byte, error) {
	f, _, err := a.blobs.Open(store.AttachmentFile(tenant, attachment))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(max)))
	return b, errors.Join(err, f.Close())
}

// files joins the directory of files with the rows that name them.
type files struct {
	blobs *blob.Dir
	rows  *store.Files
}

func (f files) Sweep(ctx context.Context) (int, error) { return f.blobs.Sweep(ctx, f.rows) }
func (f files) Walk(ctx context.Context) (int, error)  { return f.blobs.Walk(ctx, f.rows) }
