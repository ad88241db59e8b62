// Package embed is the public API that chat widgets in browsers call (service.md,
// Embed): configuration, sessions, messages, history, and the redacted event stream.
// It also serves the widget itself.
//
// A call carries a publishable key, or a session token that was minted for one, and
// comes from an origin that the key allows. What is checked, and in which order, is
// fixed (open-parts.md, Embed): the address's bucket, key, origin, body, identity, the
// key's bucket; with a token: token, origin, buckets, body, and then the thread.
//
// A visitor is a browser to one key. What proves it is a value that the service has
// signed; its threads are those begun by it. An identified visitor is an end user,
// whose threads are those of the end user, whichever browser. Everything else is no
// row: a foreign thread or run is NOT_FOUND by construction.
//
// A session is no row. Its token says what it is and is judged on each call by what
// the node remembers of the key; a rotation, a pause and a revocation are answered when
// no node remembers the key as it was (package platform, Revoked). Its streams end with
// its token, so that a client renews it and resumes.
package embed
