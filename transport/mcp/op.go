package mcp

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// op is one operation on a server (beginning a session, a list, a call): its credential, its
// remaining budget, and the results of its exchanges. The library passes only a context to
// the code that sends requests, so an op travels in the context, from Gateway to tripper, and
// nowhere else.
type op struct {
	header, value string // the credential's header; empty if there is none
	mask          *mask

	left     atomic.Int64 // bytes of answers
	requests atomic.Int32 // HTTP requests left
	asked    atomic.Int32 // server requests that may still be answered

	places Places // for a large answer; nil: it needs none
	tenant id.TenantID

	mu      sync.Mutex // guards the fields below
	placed  bool       // it has a place
	over    bool       // it has ended, and takes none
	dropped int        // tools left out of the list
	// The current exchange:
	method string
	sent   bool
	raw    json.RawMessage
	broke  *Error // an error that the library would swallow
}

const (
	maxRequests = 256 // per op: list pages, resumed streams
	maxAsked    = 16
)

func newOp(budget int64) *op {
	o := &op{}
	o.left.Store(budget)
	o.requests.Store(maxRequests)
	o.asked.Store(maxAsked)
	return o
}

type opKey struct{}

func with(ctx context.Context, o *op) context.Context { return context.WithValue(ctx, opKey{}, o) }

func opOf(ctx context.Context) *op {
	o, _ := ctx.Value(opKey{}).(*op)
	return o
}

// enter waits for the place that a large answer needs, until leave. While it waits, the answer
// is not read on.
func (o *op) enter(ctx context.Context) error {
	o.mu.Lock()
	needs := o.places != nil && !o.placed && !o.over
	o.mu.Unlock()
	if !needs {
		return nil
	}
	if err := o.places.Take(ctx, o.tenant); err != nil {
		e := &Error{Kind: Cancelled, Message: "this node had no room for the tool server's answer in time", MaybeRan: true, Err: err}
		o.fail(e)
		return e
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.placed || o.over {
		o.places.Give(o.tenant)
	}
	o.placed = !o.over
	return nil
}

// leave ends the operation. Its place is given back, or kept by the caller with the answer.
func (o *op) leave(ctx context.Context) {
	o.mu.Lock()
	placed := o.placed
	o.placed, o.over = false, true
	o.mu.Unlock()
	if placed {
		tool.Kept(ctx, func() { o.places.Give(o.tenant) })
	}
}

// begin starts the next exchange.
func (o *op) begin(method string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.method, o.sent, o.raw, o.broke = method, false, nil, nil
}

func (o *op) wrote() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = true
}

func (o *op) wasSent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent
}

func (o *op) exchange() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.method
}

// fail keeps the first error of the exchange.
func (o *op) fail(e *Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broke == nil {
		o.broke = e
	}
}

func (o *op) failed() *Error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.broke
}

func (o *op) leaveOut(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped += n
}

func (o *op) leftOut() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}

func (o *op) took(raw json.RawMessage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.raw = raw
}

func (o *op) answer() json.RawMessage {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.raw
}

// hide removes the credential from s.
func (o *op) hide(s string) string { return o.mask.Text(s) }

// said quotes a server's text for a message: it is cleaned, then freed of the credential, then cut. A cut before would leave a
// part of the credential, and cleaning after it would make one whole that has spaces.
func (o *op) said(s string) string { return shorten(o.hide(clean(s)), 500) }
