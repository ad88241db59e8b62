package embed

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// maxOrigin limits the length of an origin in bytes: a host has at most 253.
const maxOrigin = 300

// byKey authenticates calls that carry a publishable key.
type byKey struct {
	*Embed
	scope string // scope of the address's bucket
}

// Authenticate implements edge.Authenticator. It checks the address's bucket, the key and the
// origin, in this order.
func (a byKey) Authenticate(ctx context.Context, c edge.Credentials) (edge.Identity, error) {
	if !c.Again {
		if err := a.Limits.IP(ctx, a.scope, c.IP); err != nil {
			return edge.Identity{}, err
		}
	}
	key, err := a.presented(ctx, c.EmbedKey)
	if err != nil {
		return edge.Identity{}, err
	}
	origin := a.page(c)
	if !embed.Allowed(key.Origins, origin) || !plausible(origin) {
		return edge.Identity{}, a.deny(key, origin)
	}
	return edge.Identity{Tenant: key.Tenant, Principal: "embed:key:" + key.ID.String(),
		Embed: edge.Embedded{Key: key.ID, Generation: key.Generation, Origin: origin}}, nil
}

// plausible reports whether a browser may have sent this origin. A key for all origins would
// accept any text, which must not be repeated in answers, tokens and the audit log.
func plausible(origin string) bool {
	return len(origin) <= maxOrigin && !strings.ContainsFunc(origin, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// presented looks up the key of a call. A value that was never issued and one that was
// rotated away get the same error.
func (e *Embed) presented(ctx context.Context, value string) (*store.EmbedAccess, error) {
	invalid := problem.New(problem.CodeEmbedKeyInvalid, "There is no such publishable key, or it was rotated. It goes into the header X-Svc-Embed-Key.")
	k, hash, err := apikey.ParsePublishable(value)
	if err != nil {
		return nil, invalid
	}
	key, err := e.find(ctx, k)
	if err != nil {
		return nil, err
	}
	if key == nil || !key.Hash.Equal(hash) {
		return nil, invalid
	}
	return key, disabled(key)
}

// disabled returns the error for a call with a paused or revoked key, or with a session token
// of one.
func disabled(key *store.EmbedAccess) error {
	switch {
	case key.Revoked:
		return problem.New(problem.CodeEmbedKeyDisabled, "The embed key was revoked.")
	case !key.Enabled:
		return problem.New(problem.CodeEmbedKeyDisabled, "The embed key is paused.")
	}
	return nil
}

func unauthorized() error {
	return problem.New(problem.CodeEmbedUnauthorized, "The session token is missing, malformed or expired: begin a new session with POST /v1/embed/session.")
}

// bySession authenticates calls that carry a session token.
type bySession struct{ *Embed }

// Authenticate implements edge.Authenticator. It checks the token, then the origin.
func (a bySession) Authenticate(ctx context.Context, c edge.Credentials) (edge.Identity, error) {
	claims, err := a.Signer.Open(c.Bearer, a.Now())
	if err != nil {
		return edge.Identity{}, unauthorized()
	}
	key, err := a.find(ctx, claims.Key)
	if err != nil {
		return edge.Identity{}, err
	}
	if key == nil || key.Tenant != claims.Tenant {
		return edge.Identity{}, unauthorized()
	}
	who := edge.Embedded{Key: key.ID, Generation: claims.Generation, Visitor: claims.Visitor, EndUser: claims.EndUser, Origin: listed(key.Origins, claims.Origin)}
	if err := a.live(ctx, key, who); err != nil {
		return edge.Identity{}, err
	}
	origin := a.page(c)
	if origin != claims.Origin && !(c.Origin == "" && claims.Origin == "") {
		return edge.Identity{}, problem.New(problem.CodeEmbedOriginMismatch, fmt.Sprintf("The session was begun from %s and is valid there only; this call comes from %s.", named(claims.Origin), named(origin)))
	}
	if !embed.Allowed(key.Origins, claims.Origin) {
		return edge.Identity{}, a.deny(key, claims.Origin)
	}
	return edge.Identity{Tenant: key.Tenant, Principal: principal(who), Embed: who, Until: claims.Expires}, nil
}

// live returns an error if a session has ended before its token expired: its key was paused,
// revoked or rotated, its end user was deleted, or the key no longer serves anonymous
// visitors.
func (e *Embed) live(ctx context.Context, key *store.EmbedAccess, who edge.Embedded) error {
	if err := disabled(key); err != nil {
		return err
	}
	if key.Generation != who.Generation || key.IdentityRequired && who.EndUser.IsZero() {
		return unauthorized()
	}
	if who.EndUser.IsZero() {
		return nil
	}
	there, err := e.there(ctx, key.Tenant, who.EndUser)
	if err == nil && !there {
		err = unauthorized()
	}
	return err
}

// listed returns the origin as stored in the list, if it is there, so that many sessions
// share one string.
func listed(origins []string, origin string) string {
	if i := slices.Index(origins, origin); i >= 0 {
		return origins[i]
	}
	return origin
}

// principal returns the created_by of a visitor's threads (service.md, Thread).
func principal(who edge.Embedded) string {
	if !who.EndUser.IsZero() {
		return "embed:eu:" + who.EndUser.String()
	}
	return "embed:vid:" + who.Visitor.String()
}

// page returns the normalised origin that a call comes from. A browser omits Origin on a
// same-origin GET: then the Referer's origin counts, or else the service's own. Host is never
// used, because the caller chooses it. "" means a client that is not a browser.
func (e *Embed) page(c edge.Credentials) string {
	switch {
	case c.Origin != "":
		return embed.Normal(c.Origin)
	case c.Method != "GET" && c.Method != "HEAD":
		return ""
	}
	if o := embed.OfURL(c.Referer); o != "" {
		return o
	}
	return e.public
}

func named(origin string) string {
	if origin == "" {
		return "a client without an Origin"
	}
	return origin
}

// deny notes an origin that a key does not allow, if a browser may have sent it, and returns the
// error.
func (e *Embed) deny(key *store.EmbedAccess, origin string) error {
	if origin != "" && plausible(origin) {
		e.Denied(key.Tenant, key.ID, origin)
	}
	return deniedOrigin(origin)
}

// deniedOrigin returns the error for an origin that is not allowed. It suggests adding the
// origin only if a list can hold it.
func deniedOrigin(origin string) error {
	originsDenied.Inc()
	const everywhere = "Only a key whose allowed_origins is [\"*\"] serves "
	detail := fmt.Sprintf("The embed key does not allow this origin. Add %q to its allowed_origins.", origin)
	if _, err := embed.ParseOrigin(origin); err != nil {
		detail = "The call comes from an origin that cannot be listed. " + everywhere + "such pages."
	}
	switch {
	case origin == "":
		detail = "The call has no Origin. " + everywhere + "clients that are no browsers."
	case !plausible(origin):
		detail = "The call's Origin is none that a browser sends."
	}
	return problem.New(problem.CodeEmbedOriginDenied, detail)
}
