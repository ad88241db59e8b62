// Package egress is the one way out: every connection that leaves the service because a
// tenant asked for it (tool servers, webhooks, models, crawls, object stores, the browser) is
// dialled here.
//
// The Guard checks the address of a connection after the name was resolved, just before
// dialling, so that a name that resolves differently at use than at the check (DNS rebinding)
// gains nothing. It refuses everything that is not public unicast, and our own listeners.
// SVC_OUTBOUND_ALLOW permits named ranges, but never our own listeners. CheckURL gives the
// same verdict early, when a URL is saved, as a courtesy; only the check at dialling
// protects.
//
// Clients made by a Guard use no proxy, follow no redirect unless told to, carry no cookies,
// and limit the time of each phase and the size of each response. They never send an
// Idempotency-Key header, because net/http would silently send such a request again.
//
// A process that lost its lease must not act: another one may already have taken over its
// work. With Config.Live the lease is checked before every write, immediately before the
// system call, also on kept connections and below TLS. A process that was stopped in the
// middle of a request and continues later sends no more of it.
package egress
