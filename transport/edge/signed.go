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

// Signed judges the calls of a route that authenticates by a signature of the raw
// body (service.md, Hook endpoint).
type Signed interface {
	// Known says, without waiting, whether what is called is there, Verify needs no
	// look-up, and the call is signed, rightly or not. The body was not read yet.
	Known(in *Raw) bool
	// Verify finds out on whose behalf the call is. Its *problem.Error is the answer
	// to a call that is not accepted.
	Verify(ctx context.Context, in *Raw) (Identity, SignedCall, error)
}

// SignedCall is a call that was accepted.
type SignedCall interface {
	// Check says what is wrong with the body.
	Check() error
	// Do carries the call out; what it commits is kept with c.Idem, where there is
	// one.
	Do(ctx context.Context, c *Caller) (any, error)
}

// deliveries are the header fields that name a delivery, beside Idempotency-Key and
// after it: who sends a delivery once more may say more than the first time, and is
// answered the same (open-parts.md, triggers and hooks).
var deliveries = []string{"svc-delivery-id", "x-github-delivery"}

// HandleSigned adds a public route whose calls are signed. A call that is accepted
// is charged to its tenant and to nobody else; one that is not is charged to its
// client's address as a call with a bad key is, before it costs a look-up. An address
// that had nothing left to pay with pays in advance for a moment, also for calls that
// are accepted, which gives it back.
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
		in.Body = bytes.Clone(in.Body) // what is begun with it may outlast the request
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
		// Not the path as it was sent: an id may be spelled in more than one way, and the
		// principal says which.
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
			k.Path, k.Key = e.Path+" "+header, key // a delivery's id is no Idempotency-Key
			return s.keyed(rq, k, anyBody, false, do)
		}
		return s.plain(rq, do)
	}
	t.add(e)
}

// anyBody is the fingerprint of requests that are the same whatever they carry.
func anyBody() ([sha256.Size]byte, error) { return [sha256.Size]byte{}, nil }

// verify reads the body and has the call judged. Where nothing is known of what it
// calls, its address pays first, and gets it back if the call is accepted: the
// search for something to call has a limit before it reads anything. So has a flood
// of wrong signatures, once it has emptied its address's bucket.
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

// broke are addresses that could not pay for a call a moment ago. Nobody's moment
// gets longer: who signs correctly behind the same address as a flood is not kept
// waiting for its end.
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

// add makes room by forgetting an address whose moment is over, or any.
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

// Object is the complaint about a body that is not one JSON object, read as
// strictly as every other body; nil is none.
func (r *Raw) Object() *problem.Error {
	v, bad := strictJSON(r.Body)
	if bad != nil {
		return bad
	}
	if _, is := v.(map[string]any); !is {
		return problem.Invalid("body", "must be a JSON object")
	}
	return nil
}
