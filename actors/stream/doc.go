// Package stream brings a run's events to those who watch it (service.md, Run
// event stream).
//
// Two things live here. A hub stands for one run on this node: the run publishes
// its committed facts to it and writes live text into it, under the hub's own
// lock and never through the run's mailbox. A Reader is one open event stream,
// an actor of kind stream that lives where its socket is and in memory only.
//
//	Open ──attach to the hub, read the facts──► catching up ──Attach──► live ──terminal──► over
//	                                                 ▲                   │                  ▲
//	                                                 └──── a gap ────────┘      Gone, Cut ──┘
//
// A Reader that catches up first marks, under the hub's lock, the position up to
// which the hub has published, and from then on keeps what the hub says in a
// bounded queue. What lies before the mark it takes from the committed facts,
// the text of the unfinished step from the hub, and everything behind it from
// the queue: no gap and no frame twice. Where nobody owns the hub (the run rests
// or has ended) there is no mark and the facts say all. Live frames go from the
// hub straight to the connection. A Reader that sees a number missing (its
// publisher died between commit and publish), or whose queue ran over, catches
// up again from where it stands; one of a hub without an owner does so when the
// watch finds that the run has gone on.
//
// Where a run lives on another node, its hub here is a mirror of the hub there,
// as long as somebody here reads it:
//
//	reader's node                                          run's node
//	hub ── Watch (a call) ────────────────────────────────► hub: an outlet
//	    ◄── Snapshot: number n, position, text so far ─────   │
//	    ◄── messages n+1, n+2, … (Carrier: Redis) ────────────┘ every frame, delta,
//	    ── renewal each second, with what came ───────────►       begin and rest
//
// To its readers a mirror is a publisher like any other. A message that is
// missing, an owner that is silent or has changed, a Carrier that is down: the
// mirror is given up, its readers follow the committed facts, and it is asked
// for again. So the Carrier may lose anything; only live text comes later then.
// Text has no number of its own. A Reader in the middle of a step therefore does
// not trust the first frame of another publisher: it catches up.
//
// A publisher may end without a word: its activation ends when its shard moves,
// when its node rests, or when it has failed. So a hub has a publisher only while
// its run lives on this node, or on the one that it mirrors: each new member list
// is followed by a review of all hubs, and whoever publishes looks again after it
// has spoken. As a last resort every fifth look of the watch asks for the runs
// that are read and whose publisher was silent since the one before: one that is
// behind the facts then is lost, and its readers follow the facts.
//
// A Reader has one of two views: the platform's stream, or the embed relay, which
// shows a visitor the frames that event.Frame.Relay makes of it. Only its connection knows
// the view. A relay Reader takes every frame, keeps the same positions, and misses
// and catches up like any other; what is not relayed it does not send. Whether the
// text of a step is relayed is said when the step begins to be spoken, and goes to
// other nodes with that; a node that does not say so, one of an older version,
// withholds it, because what was sent too much cannot be taken back, and what was
// withheld comes with run.completed.
//
// Order: a Reader is sent frames in the order of their positions. Limits: reads
// at a time, queued frames for each Reader; a hub with many readers shares the
// sending among a fixed set of workers, and those that fell behind together read
// the facts together; one feed for each node that watches, messages up to 64 KiB,
// a watch ends when it is not renewed for ten seconds. Loss: text of an unfinished step is lost
// with its process; a connection that is too slow is cut by the edge and its
// client resumes by id. A Reader leaves memory when its connection has gone.
//
// Locks: a shard's lock and a hub's lock are never held together. Under a hub's
// lock connections are written (which never blocks), actors are sent to, and then
// these are taken, in this order: Hubs.linking, link.mu, Hubs.mu.
package stream
