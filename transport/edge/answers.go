package edge

import (
	"bytes"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Bytes of large JSON answers that wait for their clients to read them, and as many of large
// JSON bodies that arrive or whose requests are served.
const (
	small    = 256 << 10
	heldEach = 64 << 20  // of an account on this node
	heldAll  = 256 << 20 // of this node
)

// account is whose bytes count together: a tenant's people and keys, or its visitors, who are
// anyone, or an address whose request is of no tenant yet.
type account struct {
	tenant   id.TenantID
	visitors bool
	ip       netip.Addr
}

// large counts the large answers of this node that were not read yet, or its large bodies. An
// account without one may always have one, however large it is and however much the others hold.
// Small ones are not counted.
type large struct {
	mu  sync.Mutex // guards the fields below
	all int64
	of  map[account]int64
}

// take counts n bytes. It reports false if the account holds too much for another one.
func (a *large) take(of account, n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[of] > 0 && (a.of[of]+n > heldEach || a.all+n > heldAll) {
		return false
	}
	a.add(of, n)
	return true
}

// change counts n more bytes, or fewer, whatever the account holds.
func (a *large) change(of account, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(of, n)
}

func (a *large) add(of account, n int64) {
	if a.of == nil {
		a.of = map[account]int64{}
	}
	a.all += n
	if a.of[of] += n; a.of[of] == 0 {
		delete(a.of, of)
	}
}

// over reports whether the account holds more than reads alone can.
func (a *large) over(of account) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[of] > heldEach
}

func unread() *problem.Error {
	return problem.RateLimited("The node holds large answers that clients of the tenant have asked for and not read. "+
		"Read them or close their connections first (scope: answers).", time.Second)
}

func (rq *request) account() account {
	if rq.caller.Tenant.IsZero() {
		return account{ip: bucketIP(rq.caller.IP)}
	}
	return account{tenant: rq.caller.Tenant, visitors: !rq.caller.Embed.Key.IsZero()}
}

// hold counts the body of the request, if it is large, until the request is finished. n is its
// length, or the longest that it may have.
func (rq *request) hold(n int64) error {
	if n <= small || rq.held > 0 {
		return nil
	}
	of := rq.account()
	if !rq.srv.bodies.take(of, n) {
		return problem.RateLimited("Requests with large bodies are arriving or being served, as many as may at a time. Wait for their answers first (scope: bodies).", time.Second)
	}
	rq.heldBy, rq.held = of, n
	return nil
}

// reads reports whether the request changes nothing, so that it can be refused at its end too.
func (rq *request) reads() bool { return rq.method == http.MethodGet || rq.method == http.MethodHead }

// json answers with a JSON body. A large one counts until its client has read it. The answer to
// a change is always sent, because the change was made; an account whose answers to changes
// hold too much makes no further ones (Server.serve).
func (rq *request) json(status int, body []byte) error {
	if len(body) == 0 {
		rq.answer(status, "", nil)
		return nil
	}
	if len(body) <= small || rq.method == http.MethodHead {
		rq.answer(status, "application/json", body)
		return nil
	}
	of, n, held := rq.account(), int64(len(body)), &rq.srv.answers
	switch {
	case !rq.reads():
		held.change(of, n)
	case !held.take(of, n):
		return unread()
	}
	rq.answer(status, "application/json", nil)
	rq.fc.SetBodyStream(&heldAnswer{bytes.NewReader(body), func() { held.change(of, -n) }}, len(body))
	return nil
}

// heldAnswer is the body of a large answer. It is closed once it is written, or will not be.
type heldAnswer struct {
	*bytes.Reader
	give func()
}

func (h *heldAnswer) Close() error {
	h.give()
	h.give = func() {}
	return nil
}
