package model

import (
	"strconv"
	"time"

	"agentsvc/schemas/lifecycle"
)

// Kind says what a failed turn means for the run.
type Kind string

// Values of Kind.
const (
	Unavailable Kind = "unavailable" // connection, 429 or 5xx before the first token, after all tries
	Refused     Kind = "refused"     // the provider understood and said no; asking again changes nothing
	Broken      Kind = "broken"      // the stream ended early or made no sense; worth one more step
	Cancelled   Kind = "cancelled"   // our own context ended
)

// Error is the one way in which a Client fails.
type Error struct {
	Kind             Kind
	Status           int           // the HTTP status, where there was one
	RetryAfter       time.Duration // as the provider asked, 0 if it did not
	Message          string        // safe to show: no key, no address of ours, short
	BeforeFirstToken bool          // nothing of the answer had arrived
	Err              error         // the cause, for logs and errors.Is
}

// Error is for logs.
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

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// Failure is the run failure code (open-parts.md, Run failure codes) of a run
// that ends with this error.
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
