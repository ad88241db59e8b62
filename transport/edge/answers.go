package edge

import (
	"bytes"
	"net/http"
	"sync"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Bytes of large JSON answers that wait for their clients to read them.
const (
	smallAnswer = 256 << 10
	answersEach = 64 << 20  // of an account on this node
	answersAll  = 256 << 20 // of this node
)

// account is whose answers count together: a tenant's people and keys, or its visitors, who are
// anyone.
type account struct {
	tenant   id.TenantID
	visitors bool
}

// answers counts the large answers of this node that were not read yet. An account without one
// may always send one, however large it is and however much the others hold. Small ones are not
// counted.
type answers struct {
	mu  sync.Mutex // guards the fields below
	all int64
	of  map[account]int64
}

// take counts an answer of n bytes. It reports false if the account holds too much for another one.
func (a *answers) take(of account, n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[of] > 0 && (a.of[of]+n > answersEach || a.all+n > answersAll) {
		return false
	}
	a.add(of, n)
	return true
}

// change counts n more bytes, or fewer, whatever the account holds.
func (a *answers) change(of account, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(of, n)
}

func (a *answers) add(of account, n int64) {
	if a.of == nil {
		a.of = map[account]int64{}
	}
	a.all += n
	if a.of[of] += n; a.of[of] == 0 {
		delete(a.of, of)
	}
}

// over reports whether the account holds more than reads alone can.
func (a *answers) over(of account) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[of] > answersEach
}

func unread() *problem.Error {
	return problem.RateLimited("The node holds large answers that clients of the tenant have asked for and not read. "+
		"Read them or close their connections first (scope: answers).", time.Second)
}

func (rq *request) account() account {
	return account{rq.caller.Tenant, !rq.caller.Embed.Key.IsZero()}
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
	if len(body) <= smallAnswer || rq.method == http.MethodHead {
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
