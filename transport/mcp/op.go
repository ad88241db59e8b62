package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
)

// op is one operation on a server (beginning a session, a list, a call): its
// credential, what it may still spend, and what its exchanges came to. The
// library hands only a context through to where requests are made, so an op
// travels in it, from Gateway to tripper, and nowhere else.
type op struct {
	header, value string // the credential's header; empty: none
	mask          *mask

	left     atomic.Int64 // bytes of answers
	requests atomic.Int32 // HTTP requests left
	asked    atomic.Int32 // server requests left that are answered

	mu      sync.Mutex // guards the fields below
	dropped int        // tools left out of the list
	// Of the exchange under way:
	method string
	sent   bool
	raw    json.RawMessage
	broke  *Error // what the library would swallow
}

const (
	maxRequests = 256 // of one op: list pages, resumed streams
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

// fail keeps the first thing that broke the exchange.
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

// hide removes the credential.
func (o *op) hide(s string) string { return o.mask.Text(s) }

// said quotes the server in a message.
func (o *op) said(s string) string {
	return strings.ReplaceAll(clean(o.hide(s), 500), "\u0000", "")
}
