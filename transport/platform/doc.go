// Package platform holds the /v1 routes of a tenant's back end, one file for each section of
// the specification, and the edge's Authenticator and Replays.
//
// A handler checks what the schema of its body cannot express, makes one Ask or one change of
// the store, and shapes the response. A resource without an actor is changed in one
// transaction with its audit row and its kept response. A resource that an actor owns is
// changed by asking the actor, with the sealed response in the message; the actor's commit
// keeps both. Reads go to the store.
//
// The package caches, within bounds: accepted API keys, which version of an agent is
// published, and which agent a thread belongs to, so that a message to a thread in use reads
// nothing. Revoking and publishing drop the cached entries before they are answered.
package platform
