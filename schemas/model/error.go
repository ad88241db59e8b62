package model

import (
	"strconv"
	"time"

	"agentsvc/schemas/lifecycle"
)

// Kind classifies a failed turn.
type Kind string

// Values of Kind.
const (
	Unavailable Kind = "unavailable" // connection, 429 or 5xx before the first token, after all attempts
	Refused     Kind = "refused"     // the provider refused the request; a retry would not help
	Broken      Kind = "broken"      // the stream ended early or was invalid; worth one more step
	Cancelled   Kind = "cancelled"   // our own context ended
)

// Error is the only error type of a Client.
type Error struct {
	Kind             Kind
	Status           int           // the HTTP status, where there was one
	RetryAfter       time.Duration // as the provider requested, else 0
	Message          string        // safe to show: no key, no address of ours, short
	BeforeFirstToken bool          // nothing of the response had arrived
	Err              error         // the cause, for logs and errors.Is
}

// Error returns a text for logs.
func (e *Error) Error() string {
	s := "model " + string(e.Kind)
	if e.Status != 0 {
		s += " (" + strconv.Itoa(e.Status) + ")"
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Failure returns the run failure code (open-parts.md, Run failure codes) of a run that ends
// with this error.
func (e *Error) Failure() lifecycle.Failure {
	switch e.Kind {
	case Unavailable:
		return lifecycle.FailModelUnavailable
	case Cancelled:
		return lifecycle.FailCancelled
	default:
		return lifecycle.FailModelError
	}
}
