package mcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"

	"agentsvc/transport/egress"
)

// Kind is why a tool server gave no usable response.
type Kind string

// Values of Kind.
const (
	Unreachable  Kind = "unreachable"   // no connection, a broken one, or a 5xx
	Unauthorized Kind = "unauthorized"  // 401 or 403
	Timeout      Kind = "timeout"       // the call's time ran out
	TooLarge     Kind = "too_large"     // the response is over a cap
	Redirect     Kind = "redirect"      // the server redirects; redirects are not followed
	Protocol     Kind = "protocol"      // the server refused the request, or its response is not MCP
	Refused      Kind = "refused"       // by the outbound guard, or a command that is not allowed
	UnknownTool  Kind = "unknown_tool"  // the server lists no tool of this name
	Cancelled    Kind = "cancelled"     // the caller left, the gateway closed, or this node lost its lease or had no room
	NoCredential Kind = "no_credential" // the server requires a credential and none can be sent
)

// Error is the error type of every method of a Gateway.
type Error struct {
	Kind Kind
	// Message may be shown to the tenant. It may quote the server, shortened and without the
	// credential.
	Message string
	// MaybeRan means that the call was sent and its outcome is unknown; false means that it
	// was not sent, or was refused before any work.
	MaybeRan bool
	// Err is the cause for logs, without credential and URL; nil if Message is complete.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return "tool server: " + e.Message
	}
	return "tool server: " + e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// opaque is a cause with a safe text. It matches the original by errors.Is but keeps nothing
// else of it.
type opaque struct {
	text string
	is   error
}

func (o *opaque) Error() string { return o.text }
func (o *opaque) Unwrap() error { return o.is }

// cause makes an error safe to keep: without URL (a query may hold a key) and credential, and
// of limited length.
func (o *op) cause(err error) error {
	if err == nil {
		return nil
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	c := &opaque{text: o.said(err.Error())}
	for _, known := range []error{egress.ErrRefused, egress.ErrTooLarge, egress.ErrSuspended, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			c.is = known
			break
		}
	}
	return c
}

// ended returns the error of a call whose context has ended. It distinguishes the caller's
// cancellation from a time-out.
func ended(parent context.Context, maybeRan bool) *Error {
	if errors.Is(parent.Err(), context.Canceled) {
		return &Error{Kind: Cancelled, Message: "the call was cancelled", MaybeRan: maybeRan, Err: context.Canceled}
	}
	return &Error{Kind: Timeout, Message: "the tool server did not answer in time", MaybeRan: maybeRan, Err: context.DeadlineExceeded}
}

// suspended returns the error of an exchange that ended because this process does not hold
// its lease. The server is not to blame.
func suspended(maybeRan bool) *Error {
	return &Error{Kind: Cancelled, Message: "the call was cancelled: this node is cut off and sends nothing", MaybeRan: maybeRan, Err: egress.ErrSuspended}
}

// errMissed is errProcessedNothing of a process that missed a message, this one or an earlier
// one, because the lease was lost. If it is back, the request can go to another process.
var errMissed = fmt.Errorf("%w; %w", egress.ErrSuspended, errProcessedNothing)

// missed returns the error of a request that was not written because of errMissed.
func missed() *Error {
	e := suspended(false)
	e.Err = errMissed
	return e
}

// dialError describes why a request got no connection, or lost it.
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

// clean makes hostile text fit for one line: it removes control, bidirectional and invisible
// characters.
func clean(s string) string {
	s = visible(strings.Join(strings.Fields(s), " "))
	return strings.Join(strings.Fields(s), " ") // what was between spaces may be gone
}

// shorten cuts a text after most characters.
func shorten(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// visible removes characters that are invisible to people but not to a model: NUL and other
// control characters except line feed and tab, bidirectional overrides and isolates, and
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
