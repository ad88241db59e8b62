// Package egress is the one way out: every connection that leaves the service
// because a tenant asked for it (tool servers, webhooks, models, crawls, object
// stores, the browser) is dialled here.
//
// The Guard decides on the address a connection is about to be made to, after
// the name was resolved, so that a name that changes its mind between check and
// use (rebinding) gains nothing. It refuses everything that is not public
// unicast and our own listeners; SVC_OUTBOUND_ALLOW lifts named ranges, never
// our own listeners. CheckURL gives the same verdict early, when a URL is saved;
// it is courtesy, the dialler is the law.
//
// Clients made by a Guard use no proxy, follow no redirect unless told to, carry
// no cookies, bound the time of each phase and the size of each answer, and
// never send an Idempotency-Key header, because net/http would silently send
// such a request again.
//
// A process that lost its lease must not act: another one may be doing its work
// already. With Config.Live each write asks for the lease immediately before the
// system call, on kept connections and below TLS too, so that a process that was
// stopped for a while and goes on in the middle of a request sends no more of it.
package egress
