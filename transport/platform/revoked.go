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

// Revoker broadcasts revocations to all nodes.
type Revoker interface {
	// Revoke makes every node Forget r. When it returns nil, no node uses its stale cache any
	// more: each has acknowledged or lost its lease. An error is UNAVAILABLE; the change
	// behind r stands then, and a repeat is harmless.
	Revoke(ctx context.Context, r msg.Revoked) error
	// Suspect is for a change whose outcome is unknown. It returns at once: this node forgets
	// r now, the others a moment later.
	Suspect(ctx context.Context, r msg.Revoked)
}

// alone is the Revoker of a single node.
type alone struct{ p *Platform }

func (a alone) Revoke(ctx context.Context, r msg.Revoked) error { return a.p.Forget(ctx, r) }

// Suspect drops the error: it could only be an unknown What.
func (a alone) Suspect(ctx context.Context, r msg.Revoked) { _ = a.p.Forget(ctx, r) }

// Forget drops this node's cached state of r and cuts its streams. After it returns,
// everything about r is looked up again, including look-ups that were in progress. It returns
// an error if it does not know r.What, for example from a newer node; then the caller must
// use ForgetAll and recheck every stream.
func (p *Platform) Forget(ctx context.Context, r msg.Revoked) error {
	switch r.What {
	case msg.RevokedKey:
		p.Auth.Forget(r.Tenant, r.Key)
		if p.Revoked != nil {
			return p.Revoked(ctx, r.Tenant, r.Key)
		}
	case msg.RevokedSession:
		p.Sessions.Forget(r.Tenant, r.Session)
		return p.Sessions.cfg.Ended(ctx, r.Tenant, r.User, r.Session)
	case msg.RevokedUser, msg.ChangedUser: // streams of a former role end too: what they show depends on it
		p.Sessions.ForgetUser(r.Tenant, r.User)
		return p.Sessions.cfg.Ended(ctx, r.Tenant, r.User, id.SessionID{})
	case msg.ChangedAgent:
		p.ForgetAgent(r.Tenant, r.Agent)
		p.Tools.ForgetAccess(r.Tenant)
		for _, k := range r.EmbedKeys {
			p.forgetEmbedKey(r.Tenant, k, true)
		}
	case msg.ChangedServer:
		p.Tools.Forget(r.Tenant, r.Server)
		p.Tools.ForgetAccess(r.Tenant)
	case msg.ChangedAccess:
		p.Tools.ForgetAccess(r.Tenant)
	case msg.ChangedWebhook:
		if p.Deliveries != nil {
			p.Deliveries.Forget(r.Tenant, r.Webhook)
		}
	case msg.ChangedTrigger:
		if p.Hooks != nil {
			p.Hooks.Forget(r.Trigger)
			for _, g := range r.Triggers {
				p.Hooks.Forget(g)
			}
		}
	case msg.ChangedEmbedKey:
		p.forgetEmbedKey(r.Tenant, r.EmbedKey, false)
		for _, k := range r.EmbedKeys {
			p.forgetEmbedKey(r.Tenant, k, false)
		}
	case msg.RevokedEmbedKey:
		p.forgetEmbedKey(r.Tenant, r.EmbedKey, true)
	case msg.RevokedEndUser:
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
func (p *Platform) revoke(ctx context.Context, r msg.Revoked) error {
	if p.Revoker == nil {
		return alone{p}.Revoke(ctx, r)
	}
	return p.Revoker.Revoke(ctx, r)
}

// told returns the response of a change once every node knows of it. A problem or a replay
// means that nothing was changed; any other error leaves the outcome unknown.
func told[Out any](ctx context.Context, p *Platform, r msg.Revoked, out *Out, err error) (*Out, error) {
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
func removed[Out any](ctx context.Context, p *Platform, r msg.Revoked, out *Out, err error) (*Out, error) {
	if errors.Is(err, problem.New(problem.CodeNotFound, "")) {
		if failed := p.revoke(ctx, r); failed != nil {
			return nil, failed
		}
	}
	return told(ctx, p, r, out, err)
}

// again broadcasts once more before a kept response is replayed: the first response may have
// been withheld because not every node had acknowledged.
func again[In any](p *Platform, of func(c *edge.Caller, in *In) msg.Revoked) func(context.Context, *edge.Caller, any) error {
	return func(ctx context.Context, c *edge.Caller, in any) error {
		typed, ok := in.(*In)
		if !ok {
			return fmt.Errorf("platform: input %T belongs to another route", in)
		}
		return p.revoke(ctx, of(c, typed))
	}
}
