// Package platform holds the /v1 routes of a tenant's back end, one file for
// each section of the specification, and the edge's Authenticator and Replays.
//
// A handler checks what the schema of its body cannot say, makes one Ask or one
// change of the store, and shapes the answer. What no actor owns is changed in
// one transaction with its audit row and its kept answer; what an actor owns is
// asked of it, with the sealed answer in the message, and the actor's commit
// keeps both. Reads go to the store.
//
// It remembers, bounded: accepted API keys, which version of an agent is
// published, and which agent a thread belongs to, so that a message to a thread
// in use reads nothing. Revoking and publishing drop what is remembered before
// they are answered.
package platform
