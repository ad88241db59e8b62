package edge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"sync"
	"time"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
)

// Signed verifies the calls of a route that authenticates by a signature of the raw body
// (service.md, Hook endpoint).
type Signed interface {
	// Known reports, without waiting, whether the target of the call is cached, so that
	// Verify needs no look-up, and whether the call carries a signature, valid or not. The
	// body was not read yet.
	Known(in *Raw) bool
	// Verify identifies the caller. Its *problem.Error is the response to a refused call.
	Verify(ctx context.Context, in *Raw) (Identity, SignedCall, error)
}

// SignedCall is a call that was accepted.
type SignedCall interface {
	// Check validates the body.
	Check() error
	// Do executes the call. Its commit is kept with c.Idem, if that is set.
	Do(ctx context.Context, c *Caller) (any, error)
}

// deliveries are the header fields that serve as an idempotency key besides Idempotency-Key,
// which takes precedence. A sender that repeats a delivery may send a different body and
// still gets the first response (open-parts.md, triggers and hooks).
var deliveries = []string{"svc-delivery-id", "x-github-delivery"}

// HandleSigned adds a public route whose calls are signed. An accepted call is charged to its
// tenant only. A refused one is charged to the client's address before it costs a look-up, as
// a call with a bad key is. For a moment after an address has run out of tokens, its calls
// are charged in advance; accepted calls get the token back.
func HandleSigned(t *Table, r Route, h Signed) {
	e := &endpoint{Route: r, kind: kindRaw, signed: true}
	e.answers(t, r.Answer)
	broke := &broke{now: time.Now}
	e.serve = func(s *Server, rq *request) error {
		in := &Raw{Method: rq.method, Path: string(rq.path), Query: string(rq.query), rq: rq}
		defer func() { in.rq = nil }()
		call, err := s.verify(rq, h, in, broke)
		if err != nil {
			return err
		}
		in.Body = bytes.Clone(in.Body) // work that it starts may outlast the request
		if err := s.chargeIdentity(rq.ctx, rq.caller.Identity); err != nil {
			return err
		}
		if err := call.Check(); err != nil {
			return err
		}
		do := func() (int, []byte, error) {
			out, err := call.Do(rq.ctx, rq.caller)
			if err != nil {
				return 0, nil, err
			}
			body, err := Encode(out)
			return e.Status, body, err
		}
		// The principal stands for the path: one id can be spelled in more than one way in a
		// path.
		k := IdemKey{Tenant: rq.caller.Tenant, Principal: rq.caller.Principal, Method: rq.method, Path: e.Path}
		if rq.head.hasIdem {
			k.Key = string(rq.head.idempotency)
			if bad := checkKey("Idempotency-Key", k.Key); bad != nil {
				return bad
			}
			return s.keyed(rq, k, rq.fingerprint, false, do)
		}
		for _, header := range deliveries {
			key, there := rq.head.value(header)
			if !there {
				continue
			}
			if bad := checkKey(header, key); bad != nil {
				return bad
			}
			k.Path, k.Key = e.Path+" "+header, key // a delivery id does not share keys with Idempotency-Key
			return s.keyed(rq, k, anyBody, false, do)
		}
		return s.plain(rq, do)
	}
	t.add(e)
}

// anyBody is a fingerprint that ignores the body: equal keys always mean the same request.
func anyBody() ([sha256.Size]byte, error) { return [sha256.Size]byte{}, nil }

// verify reads the body and verifies the call. If the target is not cached, the address pays
// first and gets the token back when the call is accepted, so that probing for targets is
// limited before anything is read. The same holds for a flood of wrong signatures once it has
// emptied its address's bucket.
func (s *Server) verify(rq *request, h Signed, in *Raw, b *broke) (SignedCall, error) {
	ip := rq.caller.IP
	first := !h.Known(in) || b.has(bucketIP(ip))
	if first {
		if err := s.chargeIP(rq.ctx, ip); err != nil {
			return nil, err
		}
	}
	body, err := rq.readBody()
	if err == nil {
		in.Body = body
		var call SignedCall
		if rq.caller.Identity, call, err = h.Verify(rq.ctx, in); err == nil {
			if first {
				s.cfg.Limits.RefundIP(bucketIP(ip))
				rq.caller.quota = quota.Quota{}
			}
			return call, nil
		}
	}
	if !first {
		if err := s.chargeIP(rq.ctx, ip); err != nil {
			if errors.Is(err, problem.New(problem.CodeRateLimited, "")) {
				b.add(bucketIP(ip))
			}
			return nil, err
		}
	}
	return nil, err
}

const (
	brokeFor = 5 * time.Second
	maxBroke = 1 << 12
)

// broke holds addresses that recently could not pay for a call. An entry's time is never
// extended: a valid caller behind the same address as a flood waits no longer because of it.
type broke struct {
	now func() time.Time

	mu    sync.Mutex // guards until
	until map[netip.Addr]time.Time
}

func (b *broke) has(ip netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	until, there := b.until[ip]
	if there && !b.now().Before(until) {
		delete(b.until, ip)
		return false
	}
	return there
}

// add makes room by dropping an address whose time is over, or else any address.
func (b *broke) add(ip netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if until, there := b.until[ip]; there && now.Before(until) {
		return
	}
	if b.until == nil {
		b.until = map[netip.Addr]time.Time{}
	}
	if len(b.until) >= maxBroke {
		seen := 0
		for old, until := range b.until {
			if seen++; seen == 8 || !now.Before(until) {
				delete(b.until, old)
				break
			}
		}
	}
	b.until[ip] = now.Add(brokeFor)
}

// Object returns the complaint about a body that is not one JSON object, parsed as strictly
// as every other body; nil if it is one.
func (r *Raw) Object() *problem.Error {
	if bad := new(registry).check(nil, r.Body); bad != nil {
		return bad
	}
	if bytes.TrimLeft(r.Body, " \t\r\n")[0] != '{' {
		return problem.Invalid("body", "must be a JSON object")
	}
	return nil
}
