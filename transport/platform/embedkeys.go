package platform

import (
	"context"
	"fmt"
	"html"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// Embeds is this node's cache of embed keys and end users.
type Embeds interface {
	// Forget drops a cached embed key: later calls with it, or with one of its sessions, are
	// checked against the tables.
	Forget(t id.TenantID, k id.EmbedKeyID)
	// ForgetEndUser drops a cached end user.
	ForgetEndUser(t id.TenantID, u id.EndUserID)
	// ForgetAll drops every entry for which a change may have been missed.
	ForgetAll()
}

type listEmbedKeys struct {
	api.PageOrAll
	Agent          *id.AgentID `query:"agent_id"`
	IncludeRevoked bool        `query:"include_revoked"`
}

func (p *Platform) deniedOrigins(ctx context.Context, c *edge.Caller, in *oneEmbedKey) (*api.Items[api.DeniedOrigin], error) {
	rows, err := p.Store.View(c.Tenant).DeniedOrigins(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &api.Items[api.DeniedOrigin]{Items: rows}, nil
}

type createEmbedKey struct{ Body api.EmbedKeyCreate }

type oneEmbedKey struct {
	ID id.EmbedKeyID `path:"id"`
}

type patchEmbedKey struct {
	ID   id.EmbedKeyID `path:"id"`
	Body api.EmbedKeyPatch
}

const embedKeys = "Embed keys"

func (p *Platform) embedKeyRoutes(t *edge.Table) {
	describeEmbedKeys(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/embed-keys", ID: "listEmbedKeys", Answer: api.All([]api.EmbedKey{sampleEmbedKey}),
		Summary:     "List embed keys",
		Description: "Newest first; revoked ones with include_revoked only. Without limit and cursor the whole list, without next_cursor.", Tag: embedKeys, Role: lifecycle.RoleAdmin}, p.listEmbedKeys)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/embed-keys", ID: "createEmbedKey",
		Answer:  api.EmbedKeyCreated{EmbedKey: shownEmbedKey, Key: samplePublishable, IdentitySecret: sampleIdentitySecret},
		Summary: "Create an embed key",
		Description: "It lets a chat widget in a browser talk to one agent. The publishable key goes into the page, the identity secret into your back end; both are shown in this response only. " +
			"Origins are https://host[:port], http:// for this machine only and outside production, or * for everywhere.",
		Tag: embedKeys, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true, Codes: []problem.Code{problem.CodeNameTaken},
		Example: map[string]any{"agent_id": sampleAgentID, "name": "Shop", "allowed_origins": []string{"https://shop.example.com"}, "with_identity_secret": true,
			"theme": map[string]any{"accent": "#0f766e"}, "config": map[string]any{"greeting": "Hello! What may I do for you?", "starter_prompts": []string{"Where is my order?"}}}}, p.createEmbedKey)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/embed-keys/{id}", ID: "getEmbedKey", Answer: sampleEmbedKey,
		Summary: "Read an embed key", Description: "Revoked keys too.", Tag: embedKeys, Role: lifecycle.RoleAdmin}, p.getEmbedKey)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/embed-keys/{id}/denied-origins", ID: "getDeniedOrigins", Answer: api.Items[api.DeniedOrigin]{Items: []api.DeniedOrigin{sampleDenied}},
		Summary: "Show the origins that an embed key refused",
		Description: "In the last 30 days, the latest first, at most 100: those that came most often, and those that came last. Whoever has the publishable key can send any Origin. " +
			"An origin that is allowed by now stays in the list.", Tag: embedKeys, Role: lifecycle.RoleAdmin}, p.deniedOrigins)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/embed-keys/{id}", ID: "updateEmbedKey", Answer: sampleEmbedKey,
		Summary: "Change, pause or resume an embed key",
		Description: "theme and config replace the former ones. enabled: false ends its sessions and streams at once; allowed_origins ends the sessions that began at an origin no longer listed. " +
			"A revoked key is 404.",
		Tag: embedKeys, Role: lifecycle.RoleAdmin, Codes: []problem.Code{problem.CodeNameTaken},
		Example: map[string]any{"allowed_origins": []string{"https://shop.example.com", "https://www.example.com"}}}, p.updateEmbedKey)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/embed-keys/{id}/rotate", ID: "rotateEmbedKey",
		Answer: api.EmbedKeyRotated{EmbedKey: shownEmbedKey, Key: samplePublishable}, Summary: "Rotate an embed key",
		Description: "The new value is shown in this response only. The former value is refused at once, and its sessions and streams end. A revoked key is 404.", Tag: embedKeys, Role: lifecycle.RoleAdmin, Idempotent: true,
		Again: again(p, func(c *edge.Caller, in *oneEmbedKey) msg.Revoked { return endedEmbedKey(c, in.ID) })}, p.rotateEmbedKey)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/embed-keys/{id}/identity-secret", ID: "makeEmbedIdentitySecret",
		Answer: api.EmbedIdentitySecret{ID: sampleEmbedKey.ID, IdentitySecret: sampleIdentitySecret}, Summary: "Create or replace an embed key's identity secret",
		Description: "Identity tokens signed with the former secret are refused at once; sessions that began with them continue. The secret is shown in this response only. A revoked key is 404.",
		Tag:         embedKeys, Role: lifecycle.RoleAdmin, Idempotent: true,
		Again: again(p, func(c *edge.Caller, in *oneEmbedKey) msg.Revoked { return changedEmbedKey(c, in.ID) })}, p.makeIdentitySecret)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/embed-keys/{id}", ID: "revokeEmbedKey", Summary: "Revoke an embed key",
		Description: "Permanent: its sessions and streams end at once, and its name is free. Revoking a revoked key changes nothing.", Tag: embedKeys, Role: lifecycle.RoleAdmin}, p.revokeEmbedKey)
}

// changedEmbedKey is the revocation for a change after which the key's sessions continue.
func changedEmbedKey(c *edge.Caller, k id.EmbedKeyID) msg.Revoked {
	return msg.Revoked{What: msg.ChangedEmbedKey, Tenant: c.Tenant, EmbedKey: k}
}

// endedEmbedKey is the revocation for a change that ended sessions of the key.
func endedEmbedKey(c *edge.Caller, k id.EmbedKeyID) msg.Revoked {
	return msg.Revoked{What: msg.RevokedEmbedKey, Tenant: c.Tenant, EmbedKey: k}
}

func (p *Platform) listEmbedKeys(ctx context.Context, c *edge.Caller, in *listEmbedKeys) (*api.Whole[api.EmbedKey], error) {
	f := store.EmbedKeyFilter{Agent: in.Agent, Revoked: in.IncludeRevoked}
	return whole(ctx, p.Store.View(c.Tenant), in.Page(), "embed-keys", id.EmbedKeyID{}, 0, func(v store.View, ctx context.Context, at id.EmbedKeyID, limit int) ([]api.EmbedKey, error) {
		keys, err := v.EmbedKeys(ctx, f, at, limit)
		for i := range keys {
			p.begins(&keys[i])
		}
		return keys, err
	}, func(k api.EmbedKey) id.EmbedKeyID { return k.ID })
}

func (p *Platform) createEmbedKey(ctx context.Context, c *edge.Caller, in *createEmbedKey) (*api.EmbedKeyCreated, error) {
	b := &in.Body
	if err := p.checkEmbedKey(&b.Name, &b.AllowedOrigins, b.Theme, b.Config); err != nil {
		return nil, err
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.EmbedKeyCreated, error) {
		made, err := tx.CreateEmbedKey(ctx, b)
		if err != nil {
			return nil, err
		}
		made.Snippet = p.snippet(made.Key)
		return made, nil
	})
}

// snippet returns the script element of a page that uses a publishable key.
func (p *Platform) snippet(key string) string {
	return fmt.Sprintf(`<script async src="%s/embed/v1/widget.js" data-key="%s"></script>`, html.EscapeString(strings.TrimSuffix(p.PublicURL, "/")), html.EscapeString(key))
}

// begins sets the snippet of a key of which only the beginning is known.
func (p *Platform) begins(k *api.EmbedKey) { k.Snippet = p.snippet(k.KeyPrefix + "…") }

// checkEmbedKey validates the fields of a request; each may be nil. It rewrites the origins
// in the form that browsers send.
func (p *Platform) checkEmbedKey(name *string, origins *[]string, theme *api.EmbedTheme, config *api.EmbedDisplayConfig) error {
	var bad, wrong []problem.Field
	if name != nil && embed.HasControl(*name, "") {
		bad = append(bad, problem.Field{Path: "name", Message: "must not have control characters"})
	}
	if origins != nil {
		*origins, wrong = embed.Origins(*origins, p.Production)
		bad = append(bad, wrong...)
	}
	if theme != nil {
		bad = append(bad, embed.CheckTheme(theme)...)
	}
	if config != nil {
		bad = append(bad, embed.CheckConfig(config)...)
	}
	if len(bad) > 0 {
		return problem.Validation(bad...)
	}
	return nil
}

func (p *Platform) getEmbedKey(ctx context.Context, c *edge.Caller, in *oneEmbedKey) (*api.EmbedKey, error) {
	k, err := p.Store.View(c.Tenant).EmbedKey(ctx, in.ID)
	if err == nil {
		p.begins(k)
	}
	return k, err
}

// updateEmbedKey returns once every node applies the key as it is now. Whether sessions may
// have ended follows from the request, not from the change: a repeated request changes
// nothing.
func (p *Platform) updateEmbedKey(ctx context.Context, c *edge.Caller, in *patchEmbedKey) (*api.EmbedKey, error) {
	b := &in.Body
	if err := p.checkEmbedKey(b.Name, b.AllowedOrigins, b.Theme, b.Config); err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.EmbedKey, error) {
		k, err := tx.UpdateEmbedKey(ctx, in.ID, b)
		if err == nil {
			p.begins(k)
		}
		return k, err
	})
	r := changedEmbedKey(c, in.ID)
	if b.AllowedOrigins != nil || b.Enabled != nil && !*b.Enabled || b.IdentityRequired != nil && *b.IdentityRequired {
		r = endedEmbedKey(c, in.ID)
	}
	return told(ctx, p, r, out, err)
}

func (p *Platform) rotateEmbedKey(ctx context.Context, c *edge.Caller, in *oneEmbedKey) (*api.EmbedKeyRotated, error) {
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.EmbedKeyRotated, error) {
		made, err := tx.RotateEmbedKey(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		made.Snippet = p.snippet(made.Key)
		return made, nil
	})
	return told(ctx, p, endedEmbedKey(c, in.ID), out, err)
}

func (p *Platform) makeIdentitySecret(ctx context.Context, c *edge.Caller, in *oneEmbedKey) (*api.EmbedIdentitySecret, error) {
	out, err := change(ctx, p, c, with1((*store.Tx).SetIdentitySecret, in.ID))
	return told(ctx, p, changedEmbedKey(c, in.ID), out, err)
}

// revokeEmbedKey returns only once no node accepts the key any more. That also holds for a
// key that was revoked before, since the first response may have been lost.
func (p *Platform) revokeEmbedKey(ctx context.Context, c *edge.Caller, in *oneEmbedKey) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).RevokeEmbedKey, in.ID))
	return told(ctx, p, endedEmbedKey(c, in.ID), out, err)
}
