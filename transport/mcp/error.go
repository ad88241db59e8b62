package mcp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"
	"syscall"

	"agentsvc/transport/egress"
)

// Kind says what kept a tool server from answering.
type Kind string

// Values of Kind.
const (
	Unreachable  Kind = "unreachable"   // no connection, a broken one, or a 5xx
	Unauthorized Kind = "unauthorized"  // 401 or 403
	Timeout      Kind = "timeout"       // the call's time ran out
	TooLarge     Kind = "too_large"     // the answer is over a cap
	Redirect     Kind = "redirect"      // the server points elsewhere; nobody goes there
	Protocol     Kind = "protocol"      // the server refused the request or its answer is not MCP
	Refused      Kind = "refused"       // by the outbound guard, or a command nobody allowed
	UnknownTool  Kind = "unknown_tool"  // the server lists no tool of this name
	Cancelled    Kind = "cancelled"     // the caller went away, the gateway closed, or this node lost its lease
	NoCredential Kind = "no_credential" // the server takes one and there is none that can be sent
)

// Kinds lists every value.
var Kinds = []Kind{Unreachable, Unauthorized, Timeout, TooLarge, Redirect, Protocol, Refused, UnknownTool, Cancelled, NoCredential}

// Error is how every method of a Gateway fails.
type Error struct {
	Kind Kind
	// Message may be shown to the tenant. It may quote the server, shortened and
	// without the credential.
	Message string
	// MaybeRan says that the call was sent and nobody knows what became of it; false
	// says that it was not sent, or turned away before any work.
	MaybeRan bool
	// Err is the cause for logs, without credential and URL; nil where Message says
	// it all.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return "tool server: " + e.Message
	}
	return "tool server: " + e.Message + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// opaque is a cause whose text is safe and which keeps nothing of the original
// but what it is.
type opaque struct {
	text string
	is   error
}

func (o *opaque) Error() string { return o.text }
func (o *opaque) Unwrap() error { return o.is }

// cause makes an error safe to keep: no URL (a query may hold a key), no
// credential, no length without end.
func (o *op) cause(err error) error {
	if err == nil {
		return nil
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	c := &opaque{text: clean(o.hide(err.Error()), 500)}
	for _, known := range []error{egress.ErrRefused, egress.ErrTooLarge, egress.ErrSuspended, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			c.is = known
			break
		}
	}
	return c
}

// ended is the error of a call whose context has ended. The caller's cancellation
// is told from time running out.
func ended(parent context.Context, maybeRan bool) *Error {
	if errors.Is(parent.Err(), context.Canceled) {
		return &Error{Kind: Cancelled, Message: "the call was cancelled", MaybeRan: maybeRan, Err: context.Canceled}
	}
	return &Error{Kind: Timeout, Message: "the tool server did not answer in time", MaybeRan: maybeRan, Err: context.DeadlineExceeded}
}

// suspended is the error of an exchange that ended because this process does not
// hold its lease. It is nobody's failure but ours.
func suspended(maybeRan bool) *Error {
	return &Error{Kind: Cancelled, Message: "the call was cancelled: this node is cut off and sends nothing", MaybeRan: maybeRan, Err: egress.ErrSuspended}
}

// dialError names why a request found no connection, or lost it.
func dialError(err error) string {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var ne net.Error
	switch {
	case errors.As(err, &dns):
		return "could not connect to the tool server: its name does not resolve"
	case errors.As(err, &cert):
		return "could not connect to the tool server: its certificate is not trusted"
	case errors.As(err, &record), errors.As(err, &alert):
		return "could not connect to the tool server: TLS failed"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "could not connect to the tool server: connection refused"
	case errors.As(err, &ne) && ne.Timeout():
		return "could not connect to the tool server: no answer in time"
	}
	return "the connection to the tool server broke"
}

// clean makes hostile text fit for one line: control, bidirectional and invisible
// characters go, and it ends after most characters.
func clean(s string, most int) string {
	s = strings.TrimSpace(visible(strings.Join(strings.Fields(s), " ")))
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// visible drops what can't be seen but can be read: NUL and other control
// characters but line feed and tab, bidirectional overrides and isolates, and
// Unicode tags.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r >= 0x7f && r < 0xa0,
			r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c,
			r == 0x200b, r == 0x2060, r == 0xfeff, r >= 0xe0000 && r <= 0xe007f:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
