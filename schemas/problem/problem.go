// Package problem is the catalogue of the errors a client can see (service.md,
// Errors; open-parts.md, Our own codes): every code once, with its status and
// title. Everything that is not an *Error is internal and never shown.
package problem

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Code is the stable code of a problem, on which clients branch.
type Code string

// Entry is one row of the catalogue.
type Entry struct {
	Code   Code
	Status int
	Title  string
	When   string // the condition, in the specification's words
}

// Field is one complaint of a VALIDATION problem.
type Field struct{ Path, Message string }

// Error is a failure that is reported to the client, as application/problem+json.
type Error struct {
	Code       Code
	Detail     string
	RetryAfter time.Duration  // if positive: Retry-After header and retry_after, rounded up to seconds
	Extensions map[string]any // further members besides the problem fields
}

// Error returns the code and the detail, for logs; clients get JSON.
func (e *Error) Error() string {
	if e.Detail == "" {
		return string(e.Code)
	}
	return string(e.Code) + ": " + e.Detail
}

// Is makes errors.Is compare by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Status returns the HTTP status of the code.
func (e *Error) Status() int { return Lookup(e.Code).Status }

// RetryAfterSeconds returns RetryAfter rounded up to whole seconds.
func (e *Error) RetryAfterSeconds() int {
	return int((e.RetryAfter + time.Second - 1) / time.Second)
}

// MarshalJSON returns the RFC 9457 body.
func (e *Error) MarshalJSON() ([]byte, error) {
	c := Lookup(e.Code)
	body := map[string]any{"type": "about:blank", "title": c.Title, "status": c.Status, "code": c.Code}
	if e.Detail != "" {
		body["detail"] = e.Detail
	}
	if e.RetryAfter > 0 {
		body["retry_after"] = e.RetryAfterSeconds()
	}
	for k, v := range e.Extensions {
		body[k] = v
	}
	return json.Marshal(body)
}

// New returns a problem with a code of the catalogue.
func New(code Code, detail string) *Error { return &Error{Code: code, Detail: detail} }

// NotFound returns a problem for an object that does not exist in this tenant.
func NotFound(what string) *Error {
	return &Error{Code: CodeNotFound, Detail: fmt.Sprintf("There is no such %s in this tenant.", what)}
}

// Clip returns a text of at most n characters as a message quotes it: a longer one is cut, with an ellipsis.
func Clip(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i] + "…"
		}
		n--
	}
	return s
}

// ClipBytes is Clip with at most n bytes before the ellipsis, and no partial character.
func ClipBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return CutBytes(s, n) + "…"
}

// CutBytes returns the start of s: at most n bytes, without a partial character.
func CutBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Validation joins the complaints in the form of service.md, Errors.
func Validation(fields ...Field) *Error {
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = f.Path + ": " + f.Message
	}
	return &Error{Code: CodeValidation, Detail: strings.Join(parts, "; ")}
}

// Invalid is Validation with one field.
func Invalid(path, message string) *Error { return Validation(Field{path, message}) }

// Unavailable returns a problem for storage or a queue that cannot serve now.
func Unavailable(detail string, retry time.Duration) *Error {
	return &Error{Code: CodeUnavailable, Detail: detail, RetryAfter: retry}
}

// RateLimited returns a problem for a bucket that is empty until retry has passed.
func RateLimited(detail string, retry time.Duration) *Error {
	return &Error{Code: CodeRateLimited, Detail: detail, RetryAfter: retry}
}

// Lookup returns the row of a code; an unknown code is a programmer's error and gives
// INTERNAL.
func Lookup(code Code) Entry {
	if e, ok := byCode[code]; ok {
		return e
	}
	return byCode[CodeInternal]
}
