package store

import (
	"context"
	"encoding/json"
	"fmt"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Providers returns model providers, newest first.
func (v View) Providers(ctx context.Context, at id.ProviderID, limit int) ([]api.ModelProvider, error) {
	from, n := before(at.UUID, limit)
	return listed[api.ModelProvider](ctx, v, "providers", v.tenant, from, n)
}

// Provider returns one model provider.
func (v View) Provider(ctx context.Context, p id.ProviderID) (*api.ModelProvider, error) {
	return found[api.ModelProvider]("model provider")(one[api.ModelProvider](ctx, v, "provider", v.tenant, p))
}

// HasProvider reports whether the tenant has a model provider with that slug.
func (v View) HasProvider(ctx context.Context, slug string) (bool, error) {
	rows, err := scalars[id.ProviderID](ctx, v, "provider_slug", v.tenant, slug)
	return len(rows) > 0, err
}

// ProviderKind returns the kind of the tenant's model provider with that slug, "" if it has none.
func (v View) ProviderKind(ctx context.Context, slug string) (string, error) {
	rows, err := scalars[string](ctx, v, "provider_kind", v.tenant, slug)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	return rows[0], nil
}

// SealedProvider is a model provider with its sealed credentials.
type SealedProvider struct {
	ID          id.ProviderID
	Kind        string
	BaseURL     string
	Prices      map[string]api.Price
	Credentials vault.Sealed // empty if dropped with the old origin
}

// SealedProvider returns a tenant's provider by its slug, nil if there is none.
func (v View) SealedProvider(ctx context.Context, slug string) (*SealedProvider, error) {
	return one[SealedProvider](ctx, v, "provider_sealed", v.tenant, slug)
}

// CredentialsAt returns the AAD of a provider's credentials, which are the JSON of
// api.ProviderCredentials.
func CredentialsAt(t id.TenantID, p id.ProviderID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "model_providers", Row: p.String(), Column: "credentials"}
}

func (t *Tx) sealCredentials(p id.ProviderID, c api.ProviderCredentials) ([]byte, error) {
	doc, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	sealed, err := t.vault.Seal(CredentialsAt(t.tenant, p), doc)
	if err != nil {
		return nil, fmt.Errorf("seal credentials: %w", err)
	}
	return sealed, nil
}

func pricesArg(p map[string]api.Price) (any, error) {
	if len(p) == 0 {
		return nil, nil
	}
	doc, err := json.Marshal(p)
	return jsonArg(doc), err
}

// CreateProvider creates a model provider and seals its credentials.
func (t *Tx) CreateProvider(ctx context.Context, in *api.ModelProviderCreate) (*api.ModelProvider, error) {
	p := id.ProviderID{UUID: id.NewAnywhere()}
	sealed, err := t.sealCredentials(p, in.Credentials)
	if err != nil {
		return nil, err
	}
	prices, err := pricesArg(in.Prices)
	if err != nil {
		return nil, err
	}
	row, err := one[api.ModelProvider](ctx, t.View, "provider_insert", t.tenant, p, in.Slug, in.Kind, in.BaseURL, sealed, prices)
	if pg.IsUnique(err, "model_providers_slug_key") {
		return nil, slugTaken()
	}
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "model_provider.create", "model_provider", p.UUID, nil)
}

// UpdateProvider changes the fields set in the patch; new credentials replace the old ones. A
// provider that moves to another origin keeps only credentials from the same patch.
func (t *Tx) UpdateProvider(ctx context.Context, p id.ProviderID, in *api.ModelProviderPatch) (*api.ModelProviderUpdated, error) {
	row, err := found[api.ModelProvider]("model provider")(one[api.ModelProvider](ctx, t.View, "provider_lock", t.tenant, p))
	if err != nil {
		return nil, err
	}
	old := api.OriginOf(row.BaseURL)
	set(&row.Slug, in.Slug)
	set(&row.Kind, in.Kind)
	set(&row.BaseURL, in.BaseURL)
	now := api.OriginOf(row.BaseURL)
	prices, err := pricesArg(in.Prices.Or(row.Prices))
	if err != nil {
		return nil, err
	}
	var sealed []byte
	if in.Credentials != nil {
		if sealed, err = t.sealCredentials(p, *in.Credentials); err != nil {
			return nil, err
		}
	}
	out := &api.ModelProviderUpdated{}
	if now != old && in.Credentials == nil {
		n, err := t.exec(ctx, "provider_empty", t.tenant, p)
		if err != nil {
			return nil, err
		}
		out.CredentialsDropped = n > 0
	}
	row, err = one[api.ModelProvider](ctx, t.View, "provider_update", t.tenant, p, row.Slug, row.Kind, row.BaseURL, sealed, prices)
	if pg.IsUnique(err, "model_providers_slug_key") {
		return nil, slugTaken()
	}
	if err != nil {
		return nil, err
	}
	out.ModelProvider = *row
	detail := map[string]any{"credentials": in.Credentials != nil}
	if now != old {
		detail["old_origin"], detail["new_origin"], detail["credentials_dropped"] = old, now, out.CredentialsDropped
	}
	return out, t.Audit(ctx, "model_provider.update", "model_provider", p.UUID, detail)
}

// DeleteProvider deletes a model provider with its credentials.
func (t *Tx) DeleteProvider(ctx context.Context, p id.ProviderID) error {
	if err := t.execFound(ctx, problem.NotFound("model provider"), "provider_delete", t.tenant, p); err != nil {
		return err
	}
	return t.Audit(ctx, "model_provider.delete", "model_provider", p.UUID, nil)
}
