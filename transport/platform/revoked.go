package platform

import (
	"context"
	"errors"
	"fmt"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// What is the kind of a Revoked.
type What string

// Values of What. Never reuse a value with another meaning: nodes of two versions may run
// together.
const (
	// RevokedKey: the API key Key was revoked. Its streams are cut.
	RevokedKey What = "key"
	// RevokedSession: Session of User has ended. Its streams are cut.
	RevokedSession What = "session"
	// RevokedUser: User was removed or has a new password; all sessions of the user have
	// ended. The user's streams are cut.
	RevokedUser What = "user"
	// ChangedUser: User has another role.
	ChangedUser What = "user_changed"
	// ChangedAgent: Agent has another published version, or is archived. EmbedKeys are the
	// keys that ended with it; their visitors' streams are cut.
	ChangedAgent What = "agent"
	// ChangedServer: the tool server Server or one of its connections was changed or
	// removed.
	ChangedServer What = "server"
	// ChangedAccess: an input of tool-call decisions changed: grants, policies, the place of
	// agents in the organisation.
	ChangedAccess What = "access"
	// ChangedWebhook: the webhook endpoint Webhook was changed, removed, or got another
	// secret; zero means that a new endpoint was added.
	ChangedWebhook What = "webhook"
	// ChangedTrigger: Trigger was changed, removed, or got another secret.
	ChangedTrigger What = "trigger"
	// ChangedEmbedKey: the embed key EmbedKey was changed, and its sessions continue.
	ChangedEmbedKey What = "embed_key"
	// RevokedEmbedKey: sessions of EmbedKey have ended, because it was rotated, paused or
	// revoked, or has other origins. Its visitors' streams are cut; visitors that are still
	// allowed reconnect and are checked again.
	RevokedEmbedKey What = "embed_key_ended"
	// RevokedEndUser: EndUser was deleted and its sessions have ended. Its streams are cut.
	RevokedEndUser What = "end_user"
)

// Revoked tells every node that its cached state of something is stale. Fields that What does
// not use are zero.
type Revoked struct {
	What   What        `json:"what"`
	Tenant id.TenantID `json:"tenant"`

	Key     id.KeyID     `json:"key,omitzero"`
	User    id.UserID    `json:"user,omitzero"`
	Session id.SessionID `json:"session,omitzero"`
	Agent   id.AgentID   `json:"agent,omitzero"`
	Server  id.ServerID  `json:"server,omitzero"`
	Webhook id.WebhookID `json:"webhook,omitzero"`
	Trigger id.TriggerID `json:"trigger,omitzero"`

	EmbedKey  id.EmbedKeyID   `json:"embed_key,omitzero"`
	EmbedKeys []id.EmbedKeyID `json:"embed_keys,omitempty"`
	EndUser   id.EndUserID    `json:"end_user,omitzero"`

	// Number is the position in the order of all revocations, in a cluster of several nodes.
	Number int64 `json:"number,omitzero"`
}

// AddMessages registers the messages of this package for transport between nodes.
func AddMessages(c *msg.Codec) { c.Add("revoked", Revoked{}) }

// Revoker broadcasts revocations to all nodes.
type Revoker interface {
	// Revoke makes every node Forget r. When it returns nil, no node uses its stale cache any
	// more: each has acknowledged or lost its lease. An error is UNAVAILABLE; the change
	// behind r stands then, and a repeat is harmless.
	Revoke(ctx context.Context, r Revoked) error
	// Suspect is for a change whose outcome is unknown. It returns at once: this node forgets
	// r now, the others a moment later.
	Suspect(ctx context.Context, r Revoked)
}

// alone is the Revoker of a single node.
type alone struct{ p *Platform }

func (a alone) Revoke(ctx context.Context, r Revoked) error { return a.p.Forget(ctx, r) }

// Suspect drops the error: it could only be an unknown What.
func (a alone) Suspect(ctx context.Context, r Revoked) { _ = a.p.Forget(ctx, r) }

// Forget drops this node's cached state of r and cuts its streams. After it returns,
// everything about r is looked up again, including look-ups that were in progress. It returns
// an error if it does not know r.What, for example from a newer node; then the caller must
// use ForgetAll and recheck every stream.
func (p *Platform) Forget(ctx context.Context, r Revoked) error {
	switch r.What {
	case RevokedKey:
		p.Auth.Forget(r.Tenant, r.Key)
		if p.Revoked != nil {
			return p.Revoked(ctx, r.Tenant, r.Key)
		}
	case RevokedSession:
		p.Sessions.Forget(r.Tenant, r.Session)
		return p.Sessions.cfg.Ended(ctx, r.Tenant, r.User, r.Session)
	case RevokedUser:
		p.Sessions.ForgetUser(r.Tenant, r.User)
		return p.Sessions.cfg.Ended(ctx, r.Tenant, r.User, id.SessionID{})
	case ChangedUser:
		p.Sessions.ForgetUser(r.Tenant, r.User)
	case ChangedAgent:
		p.ForgetAgent(r.Tenant, r.Agent)
		p.Tools.ForgetAccess(r.Tenant)
		for _, k := range r.EmbedKeys {
			p.forgetEmbedKey(r.Tenant, k, true)
		}
	case ChangedServer:
		p.Tools.Forget(r.Tenant, r.Server)
		p.Tools.ForgetAccess(r.Tenant)
	case ChangedAccess:
		p.Tools.ForgetAccess(r.Tenant)
	case ChangedWebhook:
		if p.Deliveries != nil {
			p.Deliveries.Forget(r.Tenant, r.Webhook)
		}
	case ChangedTrigger:
		if p.Hooks != nil {
			p.Hooks.Forget(r.Trigger)
		}
	case ChangedEmbedKey:
		p.forgetEmbedKey(r.Tenant, r.EmbedKey, false)
	case RevokedEmbedKey:
		p.forgetEmbedKey(r.Tenant, r.EmbedKey, true)
	case RevokedEndUser:
		if p.Embeds != nil {
			p.Embeds.ForgetEndUser(r.Tenant, r.EndUser)
		}
		if p.EndVisits != nil {
			p.EndVisits(r.Tenant, id.EmbedKeyID{}, r.EndUser)
		}
	default:
		return fmt.Errorf("platform: unknown kind of revocation %q", r.What)
	}
	return nil
}

// forgetEmbedKey drops a cached embed key and, if its sessions have ended, cuts their
// streams. A session that is being checked meanwhile is cut too.
func (p *Platform) forgetEmbedKey(t id.TenantID, k id.EmbedKeyID, ended bool) {
	if p.Embeds != nil {
		p.Embeds.Forget(t, k)
	}
	if ended && p.EndVisits != nil {
		p.EndVisits(t, k, id.EndUserID{})
	}
}

// ForgetAll drops everything that this node caches and that may become stale. Open streams
// stay: the caller rechecks them afterwards with the edge's Recheck.
func (p *Platform) ForgetAll() {
	p.Auth.ForgetAll()
	p.Sessions.ForgetAll()
	p.Versions.cache.Clear()
	p.Tools.ForgetAll()
	if p.Deliveries != nil {
		p.Deliveries.ForgetAll()
	}
	if p.Hooks != nil {
		p.Hooks.ForgetAll()
	}
	if p.Embeds != nil {
		p.Embeds.ForgetAll()
	}
}

// revoke broadcasts a change after its commit and before its response.
func (p *Platform) revoke(ctx context.Context, r Revoked) error {
	if p.Revoker == nil {
		return alone{p}.Revoke(ctx, r)
	}
	return p.Revoker.Revoke(ctx, r)
}

// told returns the response of a change once every node knows of it. A problem or a replay
// means that nothing was changed; any other error leaves the outcome unknown.
func told[Out any](ctx context.Context, p *Platform, r Revoked, out *Out, err error) (*Out, error) {
	var known *problem.Error
	switch {
	case err == nil:
		if err = p.revoke(ctx, r); err != nil {
			return nil, err
		}
		return out, nil
	case errors.As(err, &known), errors.Is(err, edge.ErrReplay):
	case p.Revoker == nil:
		alone{p}.Suspect(ctx, r)
	default:
		p.Revoker.Suspect(ctx, r)
	}
	return nil, err
}

// removed is told for a removal. NOT_FOUND may answer the repeat of a removal whose first
// response was lost, so it is broadcast as well.
func removed[Out any](ctx context.Context, p *Platform, r Revoked, out *Out, err error) (*Out, error) {
	if errors.Is(err, problem.New(problem.CodeNotFound, "")) {
		if failed := p.revoke(ctx, r); failed != nil {
			return nil, failed
		}
	}
	return told(ctx, p, r, out, err)
}

// again broadcasts once more before a kept response is replayed: the first response may have
// been withheld because not every node had acknowledged.
func again[In any](p *Platform, of func(c *edge.Caller, in *In) Revoked) func(context.Context, *edge.Caller, any) error {
	return func(ctx context.Context, c *edge.Caller, in any) error {
		typed, ok := in.(*In)
		if !ok {
			return fmt.Errorf("platform: input %T belongs to another route", in)
		}
		return p.revoke(ctx, of(c, typed))
	}
}
