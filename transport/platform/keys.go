package platform

import (
	"context"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/transport/edge"
)

type createKey struct{ Body api.APIKeyName }

type renameKey struct {
	ID   id.KeyID `path:"id"`
	Body api.APIKeyName
}

type oneKey struct {
	ID id.KeyID `path:"id"`
}

func (p *Platform) keyRoutes(t *edge.Table) {
	const tag = "API keys"
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/api-keys", ID: "listApiKeys", Answer: api.All([]api.APIKey{sampleKey}),
		Summary:     "List API keys",
		Description: "Revoked keys too, newest first. Without limit and cursor the whole list, without next_cursor.", Tag: tag, Role: lifecycle.RoleAdmin}, p.listKeys)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/api-keys", ID: "createApiKey", Answer: api.APIKeyCreated{APIKey: sampleKey, Secret: sampleSecret},
		Summary:     "Create an API key",
		Description: "The secret is shown in this response only.", Tag: tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Example: map[string]any{"name": "backend"}}, p.createKey)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/api-keys/{id}", ID: "renameApiKey", Answer: sampleKey,
		Summary:     "Rename an API key",
		Description: "A revoked key is 404.", Tag: tag, Role: lifecycle.RoleAdmin, Example: map[string]any{"name": "backend, blue"}}, p.renameKey)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/api-keys/{id}", ID: "revokeApiKey", Summary: "Revoke an API key",
		Description: "Takes effect at once. Revoking a revoked key changes nothing.", Tag: tag, Role: lifecycle.RoleAdmin}, p.revokeKey)
}

func (p *Platform) listKeys(ctx context.Context, c *edge.Caller, in *api.PageOrAll) (*api.Whole[api.APIKey], error) {
	return whole(ctx, p.Store.View(c.Tenant), in.Page(), "api-keys", id.KeyID{}, 0, store.View.Keys, func(k api.APIKey) id.KeyID { return k.ID })
}

func (p *Platform) createKey(ctx context.Context, c *edge.Caller, in *createKey) (*api.APIKeyCreated, error) {
	return change(ctx, p, c, with1((*store.Tx).CreateKey, in.Body.Name))
}

func (p *Platform) renameKey(ctx context.Context, c *edge.Caller, in *renameKey) (*api.APIKey, error) {
	return change(ctx, p, c, with2((*store.Tx).RenameKey, in.ID, in.Body.Name))
}

// revokeKey returns only once no node accepts the key any more. That also holds for a key
// that was revoked before, since the first response may have been lost.
func (p *Platform) revokeKey(ctx context.Context, c *edge.Caller, in *oneKey) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).RevokeKey, in.ID))
	return told(ctx, p, msg.Revoked{What: msg.RevokedKey, Tenant: c.Tenant, Key: in.ID}, out, err)
}
