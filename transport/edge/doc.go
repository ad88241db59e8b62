// Package edge is the HTTP edge: the one place where bytes from the network become typed
// calls, and results and errors become HTTP responses.
//
// A Table holds one row for each route. Router, roles, limits, validation and the OpenAPI
// document all read that row; there is no route outside it. Inputs are structs whose tags say
// where a field comes from and what it may hold; they are compiled when the row is added.
//
// The order of every request is: strict HTTP, route, authentication, role, bucket, body,
// idempotency, handler. An accepted call is charged to its tenant, a session's call to its
// user, a refused call to the client's address, a public route to another bucket of the
// address, a stream once when it starts, a health route never. So other clients behind an
// address cannot lock out a valid key. On a signed route (HandleSigned) the raw body is the
// credential: it is read first, and the call is charged like a call with a key. If the target
// of the call is not cached, or the address has just run out of tokens, the address pays
// before anything is read; an accepted call gets that token back.
//
// A body is parsed and compared with the schema of its route in one pass that keeps neither
// the value nor more than a few complaints: a body costs a small multiple of its size,
// whatever it holds. A GET does not read its body.
//
// A client decides how long its body takes, so at the end of a body that was not there with its
// head the caller is authenticated again, and has the role that it has then. That charges nothing.
// Handlers do the same after they have waited for a place (Caller.Again).
//
// A node without its lease serves only its health routes. A draining node serves everything
// and closes each connection after its response.
//
// A handler's error that is not a *problem.Error becomes INTERNAL; its cause goes to the log
// with the request id. No fasthttp type leaves the package, and no part of a request outlives
// its handler.
//
// Streams are handed to package sse and live there until they are cut, drained or closed.
package edge
