package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"

	"agentsvc/transport/egress"
)

// trip tracks the progress of an attempt.
type trip struct {
	state     atomic.Int32
	broken    atomic.Bool // the request was not written completely, and will not be
	suspended atomic.Bool // because the lease was lost
	answers   atomic.Bool // the first byte of a response has arrived
	tlsFailed atomic.Bool // during its handshake
}

// Values of trip.state. It leaves resting only once.
const (
	resting   int32 = iota // no byte of the body was read
	begun                  // the endpoint may have the whole body
	calledOff              // no byte of the body will be read
)

// errCalledOff is returned by reading the body of a cancelled attempt.
var errCalledOff = fmt.Errorf("the attempt was called off: %w", context.Canceled)

// callOff cancels the attempt if nothing was sent yet, and reports whether it did.
func (t *trip) callOff() bool { return t.state.CompareAndSwap(resting, calledOff) }

// body returns the request body. The transport may read it again if it is certain that
// nothing was received.
func (t *trip) body(b []byte) io.ReadCloser {
	t.broken.Store(false)
	t.suspended.Store(false)
	return &payload{t: t, r: bytes.NewReader(b)}
}

type payload struct {
	t *trip
	r *bytes.Reader
}

// Read implements io.Reader.
func (p *payload) Read(b []byte) (int, error) {
	if !p.t.state.CompareAndSwap(resting, begun) && p.t.state.Load() == calledOff {
		return 0, errCalledOff
	}
	return p.r.Read(b)
}

// Close implements io.Closer.
func (p *payload) Close() error { return nil }

// hooks returns the trace that keeps the trip up to date.
func (t *trip) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			t.broken.Store(i.Err != nil)
			t.suspended.Store(errors.Is(i.Err, egress.ErrSuspended))
		},
		GotFirstResponseByte: func() { t.answers.Store(true) },
		TLSHandshakeDone:     func(_ tls.ConnectionState, err error) { t.tlsFailed.Store(err != nil) },
	}
}

// failed returns the outcome of a request without a response. Its text is our own: an error
// may name the URL, or quote the other side.
func (t *trip) failed(err error) (Outcome, string) {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	var late net.Error
	fail := func(class, text string) (Outcome, string) { return Outcome{Error: text}, class }
	switch {
	// Only the caller and the lost lease cancel. The transport may report the end of the connection instead of
	// the write that failed without the lease.
	case t.suspended.Load(), errors.Is(err, context.Canceled) && (t.state.Load() != begun || t.broken.Load()):
		return Outcome{Error: "the node ended before it sent anything", Unsent: true}, "unsent"
	case errors.Is(err, context.Canceled):
		return fail("cut", "the node ended before the endpoint answered")
	case errors.Is(err, egress.ErrRefused):
		return fail("refused", "the outbound guard refused the endpoint's address")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return fail("timeout", "the endpoint did not answer in time")
	case errors.As(err, &dns):
		return fail("unreachable", "the endpoint's name does not resolve")
	case errors.As(err, &cert):
		return fail("tls", "the endpoint's certificate is not trusted")
	case t.tlsFailed.Load(), errors.As(err, &alert), errors.Is(err, http.ErrSchemeMismatch):
		return fail("tls", "TLS with the endpoint failed")
	case errors.Is(err, syscall.ECONNREFUSED):
		return fail("unreachable", "the endpoint refused the connection")
	case t.answers.Load():
		return fail("malformed", "the endpoint's answer broke off or is not HTTP")
	}
	return fail("broken", "the connection to the endpoint broke")
}
