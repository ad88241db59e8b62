// Package thread is one conversation: it gives messages their places and lets
// its runs go one after another, in the order in which their messages were
// accepted (open-parts.md, Threads, runs, attachments).
//
// A thread is the row threads/<id>; its address is thread/<tenant>/<thread id>. The edge
// asks it Post and DeleteThread; runs tell it RunEnded; a sweep may tell it Wake.
// It tells runs Proceed when their turn has come, and CancelRun when it is deleted.
// A run that is accepted while no other is open has its turn with its row, and
// Proceed only begins it.
//
//	Post with New: thread, message and run, in one commit
//	   │
//	   │  Post: message and run          DeleteThread
//	   ▼ ┌──────────────┐             ┌───────────────► deleted ──► (nothing open)
//	   live ◄───────────┴─────────────┘                 cancels what is open
//
// A thread of the embed API begins with its first message; without a row everything
// but a Post with New is NOT_FOUND. A Post with New to a thread that exists is
// NOT_FOUND too, unless it is the one that began it; so is a Post of a visitor whose
// thread it is not.
//
// The thread finds the agent's version itself: its node remembers it, or the thread
// asks for it (Admission). The agent is judged last: a caller who may not post learns
// nothing else.
//
// In a thread of the embed API one reply is made at a time, and no 201st message is
// written (service.md, Embed rules). Both depend on the status of the runs, which
// is in their rows and not here. So each Post asks how the rows stand (Admission), and
// is decided with the answer unless another Post was accepted in between: then it asks
// again. Between the read and the commit runs can only end, which makes room and
// never takes it; where another activation accepted a Post, the swap of the row
// refuses this one. A refusal is always made from the rows.
//
// A post takes two places: its message's and the one of the reply, which the run
// writes itself when it succeeds. A Post that comes twice is accepted once: the
// runs of the newest messages are remembered, and read again with the row. An older one
// is found by the insert of its run (durable.Repeated), and one that comes again after
// the deletion by its run's row. A DeleteThread that comes twice is found by its audit
// row, whose id its sender chose.
//
// What the thread owes follows from which runs are open: Proceed to the first of them
// or, once deleted, CancelRun to each. The runs' own rows say which are open, so the
// thread keeps no row of it: an activation reads the first ones and hears of changes.
// Those are decisions without rows, which are remembered and not written.
//
// Order: messages and queue places are ordered by seq, never by id. Limits: a
// window of open runs and of remembered posts is kept in memory, however many
// are queued; the rest is read when the window has run empty. Loss: none; a
// RunEnded that was lost is made good by Wake or by the next activation.
//
// A thread leaves memory some time after the last message when no run is open.
package thread
