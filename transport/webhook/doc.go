// Package webhook sends one attempt of a webhook delivery (service.md, Events, Webhooks):
// signed at the moment of sending, through the outbound guard, with the given bytes. The
// caller decides which delivery is sent when, and what follows from an Outcome.
//
// Any 2xx is a success, as soon as the head of the response has arrived. At most a few KiB of
// its body are read, for a moment only, so that the connection can be reused. Everything else
// is a failure with a short text of our own that quotes neither the endpoint nor its URL:
// another status, a redirect (which is not followed), a time-out, no connection, TLS, an
// address that the guard refuses, a response that is not HTTP.
//
// The first read of the body separates attempts that cannot have been received from those
// that may have been. An attempt that is cancelled before it, or that broke off because this
// process lost its lease, is Unsent and does not count. An attempt that is cancelled after it
// gets a short grace for its response, and counts.
//
// Connections are kept per host, at most idlePerHost idle ones, and are shared by all
// endpoints of that host. They hold no tenant state.
package webhook
