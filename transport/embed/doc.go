// Package embed is the public API that chat widgets in browsers call (service.md, Embed):
// configuration, sessions, messages, history, and the redacted event stream. It also serves
// the widget itself.
//
// A call carries a publishable key, or a session token that was minted for one, and comes
// from an origin that the key allows. The checks have a fixed order (open-parts.md, Embed):
// the address's bucket, key, origin, body, identity, the key's bucket; with a token: token,
// origin, buckets, body, and then the thread.
//
// A visitor is a browser known to one key by a value that the service signed. Its threads are
// those it began. An identified visitor is an end user and sees the end user's threads in any
// browser. Queries return only these rows, so a foreign thread or run is NOT_FOUND by
// construction.
//
// A session has no row. Its token holds its claims, and each call checks them against the
// node's cached key. A rotation, pause or revocation is answered once no node holds the old
// key (package platform, Revoked). The session's streams end with its token, so that a client
// renews it and resumes.
package embed
