package embed

import (
	"context"
	"errors"
	"strconv"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
	"agentsvc/transport/embed/identity"
	"agentsvc/transport/embed/session"
)

type readConfig struct{}

type beginSession struct {
	Body api.EmbedSessionCreate `required:"false"`
}

// again returns the key that a call was authenticated with. If the key has changed since, it
// returns the error that a new call would get.
func (e *Embed) again(ctx context.Context, c *edge.Caller) (*store.EmbedAccess, error) {
	key, err := e.find(ctx, c.Embed.Key)
	if err != nil {
		return nil, err
	}
	switch {
	case key == nil:
		return nil, unauthorized()
	case !c.Embed.Visitor.IsZero():
		if err := e.live(ctx, key, c.Embed); err != nil {
			return nil, err
		}
	case key.Revoked, !key.Enabled:
		return nil, disabled(key)
	case key.Generation != c.Embed.Generation:
		return nil, problem.New(problem.CodeEmbedKeyInvalid, "The embed key was changed while it was used. Try again.")
	}
	if !embed.Allowed(key.Origins, c.Embed.Origin) {
		return nil, deniedOrigin(c.Embed.Origin)
	}
	return key, nil
}

func (e *Embed) config(ctx context.Context, c *edge.Caller, _ *readConfig) (*api.EmbedConfig, error) {
	key, err := e.again(ctx, c)
	if err != nil {
		return nil, err
	}
	return &api.EmbedConfig{KeyID: key.ID, Agent: api.EmbedAgent{Name: key.AgentName, Emoji: key.AgentEmoji},
		Theme: embed.FilledTheme(key.Theme), Config: embed.FilledConfig(key.Config), IdentityRequired: key.IdentityRequired}, nil
}

// session mints a session. It verifies the visitor's identity, charges the key's bucket, and
// then runs one transaction that stores the end user and the audit row.
func (e *Embed) session(ctx context.Context, c *edge.Caller, in *beginSession) (*api.EmbedSession, error) {
	key, err := e.again(ctx, c)
	if err != nil {
		return nil, err
	}
	person, err := e.identify(key, in.Body.User)
	if err != nil {
		return nil, err
	}
	if err := e.Limits.Mint(ctx, key.Tenant, key.ID, key.RateLimitPerMin); err != nil {
		return nil, err
	}
	visitor, ok := e.Signer.OpenVisitor(in.Body.Visitor, key.Tenant, key.ID)
	if !ok {
		visitor = id.VisitorID{UUID: id.NewAnywhere()}
	}
	by := store.By{Tenant: key.Tenant, Actor: "embed:vid:" + visitor.String(), IP: c.IP.String()}
	user, err := e.Store.BeginVisit(ctx, by, store.Visit{Key: key.ID, Visitor: visitor, Origin: c.Embed.Origin, Person: person})
	if err != nil {
		return nil, err
	}
	expires := e.Now().Add(e.TokenTTL + time.Second - 1).Truncate(time.Second).UTC() // rounded up to whole seconds
	claims := session.Claims{Tenant: key.Tenant, Key: key.ID, Generation: key.Generation, Visitor: visitor, Origin: c.Embed.Origin, Expires: expires}
	if user != nil {
		claims.EndUser = *user
	}
	sessionsMinted.WithLabelValues(strconv.FormatBool(user != nil)).Inc()
	return &api.EmbedSession{Token: e.Signer.Mint(claims), ExpiresAt: expires, VisitorID: visitor,
		Visitor: e.Signer.MintVisitor(key.Tenant, key.ID, visitor), EndUserID: user}, nil
}

// identify returns the visitor as the tenant's back end identifies it, nil for an anonymous
// one.
func (e *Embed) identify(key *store.EmbedAccess, user *api.EmbedUserIdentity) (*store.Person, error) {
	switch {
	case user == nil && key.IdentityRequired:
		return nil, problem.New(problem.CodeEmbedIdentityRequired, "This key serves identified visitors only: send user.token, a JWT that your back end signs with the key's identity secret.")
	case user == nil:
		return nil, nil
	case len(key.IdentitySecret) == 0:
		return nil, problem.New(problem.CodeEmbedIdentityUnavailable, "The key has no identity secret: make one with POST /v1/embed-keys/{id}/identity-secret.")
	default:
		secret, err := e.Rows.Open(key)
		if err != nil {
			return nil, err
		}
		claims, err := identity.Verify(user.Token, secret.Reveal(), e.Now())
		var refused *identity.Error
		if errors.As(err, &refused) {
			identitiesRefused.WithLabelValues(string(refused.Reason)).Inc()
			p := problem.New(problem.CodeEmbedIdentityInvalid, refused.Error())
			p.Extensions = map[string]any{"reason": string(refused.Reason)}
			return nil, p
		}
		if err != nil {
			return nil, err
		}
		person := &store.Person{ExternalID: claims.Subject, Meta: claims.Meta}
		if claims.HasName {
			person.Name = &claims.Name
		}
		if claims.HasEmail {
			person.Email = &claims.Email
		}
		return person, nil
	}
}
