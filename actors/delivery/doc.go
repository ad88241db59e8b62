// Package delivery sends webhook deliveries to their endpoints (service.md, Events,
// Webhooks).
//
// An actor of kind delivery handles one endpoint, under the endpoint's id, in memory only:
// its deliveries and their results are rows of the outbox. Hearers send it durable.Wake when
// an event was committed. So do the routes that make deliveries due, and the sweep, which
// also finds what is due after a crash or a move. While Hearers remember that a tenant has no
// endpoint, decisions make no events for it; when they forget that, journal.Writer.Outdate
// has commits that wait decided again, with their events.
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
// A turn (outbox.Turn) makes the results so far durable and claims as many due deliveries as
// the actor has room for, in one transaction. One turn is in flight at a time; results that
// arrive meanwhile go into the next one, and so do the results of a failed turn. An attempt
// is a goroutine: it reads the endpoint's URL and secret, through a cache that follows
// revocations, and has the delivery signed and sent. Its result, like that of a turn, arrives
// through an inbox, which outlives the mailbox: when the actor ends, the entries left in the
// inbox, and those that arrive later, are settled or given back.
//
// Order: none between deliveries; the oldest due ones begin first. Limits: 32 attempts per
// endpoint, so that a slow or dead endpoint delays only its own deliveries. All attempts of a
// node share its places: an endpoint takes at most a quarter of the free ones at a time. While
// none is free, an endpoint with nothing in flight may have one attempt beyond the places, at
// most 256 endpoints of a node and 32 of a tenant; further ones wait, and tenants take turns. A
// place is one attempt or 64 KiB of its body, so that the bodies in flight total at most the
// places' 256 MiB, plus one body for each endpoint with an attempt: its last body may be larger
// than its places. While results cannot be made durable nothing is claimed, so attempts in
// flight and unsettled results are at most 32 together. A delivery has at most webhook.Attempts
// attempts; its row counts them when they are claimed. For a listener, and for a disabled or
// deleted endpoint, nothing is claimed and nothing sent.
//
// Loss: a result that cannot be made durable before the actor ends leaves its row claimed,
// and the row comes due again automatically: the endpoint may receive an event twice, never
// not at all. When the actor ends (the shard moves, the node stops or loses its lease),
// unsent attempts are cancelled and given back. Attempts already sent may end within the
// sender's grace; their results are then made durable, and the next actor of the endpoint is
// woken. The actor leaves memory when nothing is pending, in flight or unsettled.
package delivery
