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

// What a Revoked is about.
type What string

// Values of What. A value is never used for anything else again: nodes of two
// versions may meet.
const (
	// RevokedKey: the API key Key was revoked. Its streams are cut.
	RevokedKey What = "key"
	// RevokedSession: Session of User has ended. Its streams are cut.
	RevokedSession What = "session"
	// RevokedUser: User was removed or has another password; all his sessions have
	// ended. His streams are cut.
	RevokedUser What = "user"
	// ChangedUser: User has another role.
	ChangedUser What = "user_changed"
	// ChangedAgent: Agent has another published version, or is archived; EmbedKeys are
	// those that ended with it, and their visitors' streams are cut.
	ChangedAgent What = "agent"
	// ChangedServer: the tool server Server or one of its connections was changed or
	// removed.
	ChangedServer What = "server"
	// ChangedAccess: what decides on tool calls was changed: grants, policies, the
	// place of agents in the organisation.
	ChangedAccess What = "access"
	// ChangedWebhook: the webhook endpoint Webhook was changed or removed, or has
	// another secret; zero: there is a new one.
	ChangedWebhook What = "webhook"
	// ChangedTrigger: Trigger was changed or removed, or has another secret.
	ChangedTrigger What = "trigger"
	// ChangedEmbedKey: the embed key EmbedKey was changed, and its sessions go on.
	ChangedEmbedKey What = "embed_key"
	// RevokedEmbedKey: sessions of EmbedKey have ended: it was rotated, paused or
	// revoked, or has other origins. Its visitors' streams are cut; who may go on comes
	// back and is judged anew.
	RevokedEmbedKey What = "embed_key_ended"
	// RevokedEndUser: EndUser was deleted; his sessions have ended. His streams are cut.
	RevokedEndUser What = "end_user"
)

// Revoked says that what nodes remember of something is wrong from now on. It
// goes to every node; what is not about What is zero.
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

	// Number is its place in the order of all revocations, where there are several
	// nodes.
	Number int64 `json:"number,omitzero"`
}

// AddMessages lets the messages of this package cross nodes.
func AddMessages(c *msg.Codec) { c.Add("revoked", Revoked{}) }

// Revoker reaches all nodes.
type Revoker interface {
	// Revoke makes every node Forget r. When it returns nil no node acts any more on
	// what it remembered: each has said so or lost its lease. An error is
	// UNAVAILABLE; the change that r is about stands then, and a repeat is harmless.
	Revoke(ctx context.Context, r Revoked) error
	// Suspect is for a change of which nobody knows whether it was made. It returns
	// at once: this node forgets r now, the others in a moment.
	Suspect(ctx context.Context, r Revoked)
}

// alone is the Revoker of the only node.
type alone struct{ p *Platform }

func (a alone) Revoke(ctx context.Context, r Revoked) error { return a.p.Forget(ctx, r) }

// Suspect has nobody to tell of an error: it could only be an unknown What.
func (a alone) Suspect(ctx context.Context, r Revoked) { _ = a.p.Forget(ctx, r) }

// Forget drops what this node remembers of r and cuts its streams: when it
// returns, everything about r is looked up anew, also what is being looked up
// meanwhile. An error says that it does not know what r is about, as that of a
// newer node: then nothing short of ForgetAll and a look at every stream will do.
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
		return fmt.Errorf("platform: nobody here knows what to forget of %q", r.What)
	}
	return nil
}

// forgetEmbedKey drops what is remembered of an embed key and, where its sessions have
// ended, cuts their streams: a session that is judged meanwhile is cut as well.
func (p *Platform) forgetEmbedKey(t id.TenantID, k id.EmbedKeyID, ended bool) {
	if p.Embeds != nil {
		p.Embeds.Forget(t, k)
	}
	if ended && p.EndVisits != nil {
		p.EndVisits(t, k, id.EndUserID{})
	}
}

// ForgetAll drops everything that this node remembers and that may become wrong.
// Open streams stay: who may still watch is asked by the edge's Recheck, after it.
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

// revoke is what stands between a commit and its answer.
func (p *Platform) revoke(ctx context.Context, r Revoked) error {
	if p.Revoker == nil {
		return alone{p}.Revoke(ctx, r)
	}
	return p.Revoker.Revoke(ctx, r)
}

// told gives the answer of a change once every node knows of it. A problem and a
// replay say that nothing was changed; of any other error nobody knows.
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

// removed is told for a removal. NOT_FOUND may be the answer to a repeat of one
// that was made and whose answer was never given: it is told as well.
func removed[Out any](ctx context.Context, p *Platform, r Revoked, out *Out, err error) (*Out, error) {
	if errors.Is(err, problem.New(problem.CodeNotFound, "")) {
		if failed := p.revoke(ctx, r); failed != nil {
			return nil, failed
		}
	}
	return told(ctx, p, r, out, err)
}

// again is told before a kept answer is given a second time: the first may not
// have been given because not every node knew.
func again[In any](p *Platform, of func(c *edge.Caller, in *In) Revoked) func(context.Context, *edge.Caller, any) error {
	return func(ctx context.Context, c *edge.Caller, in any) error {
		typed, ok := in.(*In)
		if !ok {
			return fmt.Errorf("platform: %T is the input of another route", in)
		}
		return p.revoke(ctx, of(c, typed))
	}
}
