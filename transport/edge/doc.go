// Package edge is the HTTP edge: the one place where bytes of strangers become
// typed calls, and answers and errors become HTTP again.
//
// A Table holds one row for each route. Router, roles, limits, validation and
// the OpenAPI document all read that row; there is no route outside it. Inputs
// are structs whose tags say where a field comes from and what it may hold;
// they are compiled when the row is added.
//
// The order of every request is: strict HTTP, route, authentication, role,
// bucket, body, idempotency, handler. Buckets are charged as security.md, Edge,
// has it: a key in the cache skips the IP bucket, a miss takes an IP token and
// gets it back if the key is valid, and the tenant's bucket is charged only
// after authentication. A public route is charged to the IP bucket, a stream
// once when it starts, a health route never. Of a signed route (HandleSigned) the
// raw body is the credential: it is read first, and the call is charged like one
// with a key, unless nothing is known of what it calls, or its address has just
// failed to pay: then the address pays before anything is read.
//
// A node without its lease serves nothing but its health, and one that drains
// serves everything and closes each connection behind its answer.
//
// Whatever a handler returns that is no *problem.Error becomes INTERNAL, its
// cause goes to the log with the request id. No fasthttp type leaves the
// package, and nothing of a request outlives its handler.
//
// Streams are handed to package sse and live there until they are cut, drained
// or closed.
package edge
