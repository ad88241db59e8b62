// Package stream delivers a run's events to its readers (service.md, Run event stream).
//
// It has two parts. A hub represents one run on this node: the run publishes its committed
// facts to it and writes live text into it, under the hub's own lock and never through the
// run's mailbox. A Reader is one open event stream: an actor of kind stream on the node with
// the socket, in memory only.
//
//	Open ──attach to the hub, read the facts──► catching up ──Attach──► live ──terminal──► over
//	                                                 ▲                   │                  ▲
//	                                                 └──── a gap ────────┘      Gone, Cut ──┘
//
// A Reader that catches up first marks, under the hub's lock, the position up to which the
// hub has published, and from then on queues the hub's frames, within a bound. It takes
// everything before the mark from the committed facts, the text of the unfinished step from
// the hub, and everything after the mark from the queue: no gap and no frame twice. If the
// hub has no owner (the run rests or has ended) there is no mark and the facts are complete.
// Live frames go from the hub straight to the connection. A Reader that detects a missing
// number (its publisher died between commit and publish), or whose queue overflowed, catches
// up again from its position. A Reader of a hub without an owner does so when the watch finds
// that the run has continued.
//
// If a run lives on another node, its hub here mirrors the hub there, as long as it has
// readers here:
//
//	reader's node                                          run's node
//	hub ── Watch (a call) ────────────────────────────────► hub: an outlet
//	    ◄── Snapshot: number n, position, text so far ─────   │
//	    ◄── messages n+1, n+2, … (Carrier: Redis) ────────────┘ every frame, delta,
//	    ── renewal each second, with what came ───────────►       begin and rest
//
// To its readers a mirror is a publisher like any other. If a message is missing, the owner
// is silent or has changed, or the Carrier is down, the mirror is dropped, its readers follow
// the committed facts, and a new mirror is requested. So the Carrier may lose any message;
// only live text is delayed then. Text has no number of its own. A Reader in the middle of a
// step therefore does not trust the first frame of another publisher: it catches up.
//
// A publisher may end silently: its activation ends when its shard moves, when its node
// suspends, or when it fails. So a hub has a publisher only while its run lives on this node,
// or on the node that it mirrors. A review of all hubs follows each new member list, and a
// publisher checks its ownership again after it has published. As a last resort, every fifth
// round of the watch checks the runs that have readers and whose publisher was silent since
// the previous round: if the hub is behind the facts, the publisher is lost, and the readers
// follow the facts.
//
// A Reader has one of two views: the platform's stream, or the embed relay, which shows a
// visitor the frames that event.Frame.Relay makes. Only its connection knows the view. A
// relay Reader takes every frame, keeps the same positions, and misses and catches up like
// any other; it sends only what is relayed. Whether a step's text is relayed is decided when
// the step begins to speak, and sent to other nodes with its begin. Without that decision, as
// from a node of an older version, the text is withheld: text sent by mistake cannot be taken
// back, and withheld text arrives with run.completed.
//
// Order: a Reader is sent frames in the order of their positions. Limits: concurrent reads, for
// which tenants take turns; the bytes that were read for clients that have not taken them yet,
// by tenant and in all; queued frames for each Reader; a hub with many readers spreads the sending over a fixed
// set of workers, and readers that fell behind together share one read of the facts; one feed
// for each watching node, messages up to 64 KiB; a watch ends when it is not renewed for ten
// seconds. Loss: text of an unfinished step is lost with its process; the edge cuts a
// connection that is too slow, and its client resumes by id. A Reader leaves memory when its
// connection has ended.
//
// Locks: a shard's lock and a hub's lock are never held together. Under a hub's lock
// connections are written (which never blocks), messages are sent to actors, and then these
// locks are taken, in this order: Hubs.linking, link.mu, Hubs.mu, replays.mu.
package stream
