package edge

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
)

// chargeAstray charges a call without a route. If authentication cannot be completed, nothing
// is charged: the answer reveals nothing.
func (s *Server) chargeAstray(rq *request, ip netip.Addr) error {
	creds := rq.credentials(ip)
	if s.cfg.Auth == nil || !creds.present() {
		return s.chargeIP(rq.ctx, ip)
	}
	if !s.live() {
		return nil
	}
	who, err := s.cfg.Auth.Authenticate(rq.ctx, creds)
	switch {
	case err == nil:
		return s.chargeIdentity(rq.ctx, who)
	case refused(err):
		return s.chargeIP(rq.ctx, ip)
	}
	return nil
}

// refused reports whether err is the caller's fault. Every other error says nothing about the
// caller.
func refused(err error) bool {
	var p *problem.Error
	return errors.As(err, &p) && p.Status() < http.StatusInternalServerError
}

func (c Credentials) present() bool { return c.Bearer != "" && c.Tenant != "" || c.Cookie != "" }

func (rq *request) credentials(ip netip.Addr) Credentials {
	h := &rq.head
	c := Credentials{Method: rq.method, IP: ip}
	if h.hasAuth {
		c.Bearer, c.Tenant = string(h.bearer()), string(h.tenant)
	} else if h.cookie != nil {
		if c.Cookie = string(h.cookieValue("svc_session")); c.Cookie != "" {
			c.Tenant = string(h.tenant)
		}
	}
	c.EmbedKey, c.CSRF, c.Origin, c.Referer = string(h.embedKey), string(h.csrf), string(h.origin), string(h.referer)
	c.Path = string(rq.path)
	return c
}

// admit authenticates the caller, checks the role and charges a bucket.
func (s *Server) admit(rq *request, ip netip.Addr) error {
	e := rq.ep
	if !e.Always && !s.live() {
		return problem.Unavailable("The node has lost touch with storage and serves nothing until it is back.", time.Second)
	}
	if e.public() {
		if e.Bucket == BucketNone || e.signed {
			return nil
		}
		return s.chargePublic(rq.ctx, ip)
	}
	rq.creds = rq.credentials(ip)
	who, err := s.authenticate(rq, rq.creds)
	if err != nil {
		return err
	}
	rq.caller.Identity = who
	if bad := e.mayCall(who.Role); bad != nil {
		if e.Bucket != BucketNone {
			// The key is valid, so the call is charged to its tenant; the missing role is the
			// error to report.
			_ = s.chargeIdentity(rq.ctx, who)
		}
		return bad
	}
	if e.Charge != nil {
		if err := e.Charge(rq.ctx, rq.caller); err != nil {
			return err
		}
	}
	if e.Bucket == BucketNone {
		return nil
	}
	return s.chargeIdentity(rq.ctx, who)
}

// mayCall returns the error for a role that does not suffice.
func (e *endpoint) mayCall(has lifecycle.Role) error {
	if e.Role == "" || has.Satisfies(e.Role) {
		return nil
	}
	return problem.New(problem.CodeForbidden, "This needs the role "+string(e.Role)+".")
}

// authenticateAgain identifies the caller anew after a wait whose length others decide: the
// client, who sends the body, another request with the same idempotency key, or the work before a
// place of the tenant. Credentials
// that were revoked meanwhile end there, and a changed role counts. Nothing is charged, and
// credentials that still hold are cached.
func (rq *request) authenticateAgain() error {
	if rq.ep.public() {
		return nil
	}
	rq.creds.Again = true
	who, err := rq.srv.identify(rq, rq.creds)
	if err != nil {
		return err
	}
	if who.Tenant != rq.caller.Tenant || who.Principal != rq.caller.Principal {
		return problem.New(problem.CodeUnauthorized, "The credentials stand for another caller than at the beginning of the request.")
	}
	rq.caller.Identity = who
	return rq.ep.mayCall(who.Role)
}

// arrived is called at the end of a body that was read from the stream.
func (rq *request) arrived() error {
	if n := rq.length(); n >= 0 && n <= readAhead {
		return nil // the body was there before the caller was authenticated
	}
	return rq.authenticateAgain()
}

// authenticate identifies the caller. Only a refused call is charged to its address: other
// clients behind that address cannot lock out a valid key.
func (s *Server) authenticate(rq *request, creds Credentials) (Identity, error) {
	if rq.ep.kind == kindStream {
		rq.mark = s.streams.Mark()
	}
	who, err := s.identify(rq, creds)
	if err != nil && rq.ep.Bucket != BucketNone && refused(err) {
		if err := s.chargeIP(rq.ctx, creds.IP); err != nil {
			return Identity{}, err
		}
	}
	return who, err
}

func (s *Server) identify(rq *request, creds Credentials) (Identity, error) {
	auth := rq.ep.Auth
	if auth == nil {
		auth = s.cfg.Auth
		switch {
		case creds.Bearer != "" && len(rq.head.tenant) == 0:
			return Identity{}, problem.New(problem.CodeTenantRequired, "A call with a key names its tenant in X-Tenant-Id.")
		case creds.present() && auth != nil:
		case rq.head.hasAuth && creds.Bearer == "":
			return Identity{}, problem.New(problem.CodeUnauthorized, "The Authorization header is malformed: it must be \"Bearer\", a space and an API key.")
		default:
			return Identity{}, problem.New(problem.CodeUnauthorized, "The call carries no credentials: send an API key as Authorization: Bearer svc_… with X-Tenant-Id, or the cookie of a session.")
		}
	}
	return auth.Authenticate(rq.ctx, creds)
}

func (s *Server) chargeIP(ctx context.Context, ip netip.Addr) error {
	retry, ok, err := s.cfg.Limits.IP(ctx, bucketIP(ip))
	return charged("ip", retry, ok, err)
}

func (s *Server) chargePublic(ctx context.Context, ip netip.Addr) error {
	retry, ok, err := s.cfg.Limits.Public(ctx, bucketIP(ip))
	return charged("public", retry, ok, err)
}

// chargeIdentity charges an accepted call: a session's call to its user, every other one to
// its tenant.
func (s *Server) chargeIdentity(ctx context.Context, who Identity) error {
	if !who.User.IsZero() {
		retry, ok, err := s.cfg.Limits.User(ctx, who.Tenant, who.User)
		return charged("user", retry, ok, err)
	}
	retry, ok, err := s.cfg.Limits.Tenant(ctx, who.Tenant)
	return charged("tenant", retry, ok, err)
}

// charged returns the problem for a bucket that refused, nil if it admitted the call.
func charged(scope string, retry time.Duration, ok bool, err error) error {
	if err == nil && !ok {
		return problem.RateLimited("Rate limit of scope "+scope+" exceeded.", max(retry, time.Millisecond))
	}
	return err
}

// rateFields adds the header fields of the limit that the request was charged to.
func (rq *request) rateFields() {
	if rq.caller == nil || rq.caller.quota.Limit == 0 {
		return
	}
	var b [20]byte
	for i, n := range rateValues(rq.caller.quota) {
		rq.fc.Response.Header.SetBytesV(rateNames[i], strconv.AppendInt(b[:0], n, 10))
	}
}

// rateNames are the header fields of rateValues.
var rateNames = [...]string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

func rateValues(q quota.Quota) [3]int64 {
	return [...]int64{q.Limit, q.Remaining, int64((q.Reset + time.Second - 1) / time.Second)}
}
