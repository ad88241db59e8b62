// Package delivery brings webhook deliveries to their endpoints (service.md,
// Events, Webhooks).
//
// I am one endpoint, an actor of kind delivery under the endpoint's id, in memory
// only: what is to be sent, and what became of it, are the rows of the outbox. I am
// told durable.Wake by Hearers when an event was committed, by the routes that make
// deliveries due, and by the sweep, which also finds what is due after a crash and
// after a move.
//
//	             Wake, or the alarm at Next
//	resting ─────────────────────────────────► asking a turn ◄──────────────┐
//	   ▲  (or not in memory)                    │   │   │                    │
//	   ├────nothing claimed, none under way─────┘   │   └──fails──► pausing ─┤
//	   │                                         claimed               ▲     │
//	   │                                            ▼                  │     │
//	   │                                  attempts under way ──unsent──┘     │
//	   └────────none is left────────────────────────┴────────ended───────────┘
//
// A turn (outbox.Turn) makes the results so far durable and claims as many due
// deliveries as I have room for, in one. One turn is asked at a time; what ends
// meanwhile goes into the next, and so do the results of one that failed. An attempt
// is a goroutine: it reads the endpoint's URL and secret, through a cache that follows
// revocations, and has the delivery signed and sent. Its result, like the answer to a
// turn, comes back through an inbox, which outlives my mailbox: when I end, what is in
// it and what comes too late for it is settled or given back.
//
// Order: none between deliveries; oldest due first into the attempts. Limits: 32
// attempts at a time, so that a slow or dead endpoint has only its own to wait for;
// beside those of one endpoint the attempts of a node share its places, of which
// nobody takes more than a quarter of what is left at a time, and everybody has one
// attempt. A place is an attempt or 64 KiB of its body, so that the bodies under way
// are at most the places' 256 MiB and one body of each endpoint. Attempts
// under way and results unsettled are at most 32 together while nothing can be made
// durable, for then nothing is claimed. A delivery has at most webhook.Attempts
// attempts, which its row counts when they are claimed. A listener, an endpoint that
// is disabled or gone: nothing is claimed and nothing sent.
//
// Loss: a result that cannot be made durable before I end leaves its row claimed,
// and the row comes due again by itself: the endpoint may hear twice, never not at
// all. When I end (the shard moves, the node stops or loses its lease), what has not
// been sent is called off and given back, what has been sent may end within the
// sender's grace; their results are made durable after me, and who has come after me
// is woken. I leave memory when nothing is pending, under way or unsettled.
package delivery
