// Package webhook sends one attempt of a webhook delivery (service.md, Events,
// Webhooks): signed at the moment of sending, through the outbound guard, with the
// bytes it is given. Which delivery is sent when, and what follows from an Outcome,
// is the caller's.
//
// Success is any 2xx, as soon as the head of the answer has arrived; what comes
// behind it is read no further than a few KiB and for no longer than a moment, so
// that the connection can be used again. Everything else is a failure with a short
// text of our own that quotes neither the endpoint nor its URL: another status, a
// redirect (which is not followed), no answer in time, no connection, TLS, an
// address that the guard refuses, an answer that is not HTTP.
//
// The first read of the body divides what may have been received from what cannot
// have been. An attempt that is called off before it, or whose sending broke off
// because this process lost its lease, is Unsent and does not count. One that is
// called off behind it has a short grace for its answer, and counts.
//
// Connections are kept per host, at most idlePerHost of them idle, and are shared
// by all endpoints of that host: nothing of a tenant is tied to one.
package webhook
