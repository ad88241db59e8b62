// Package thread is one conversation: it gives messages their places and lets
// its runs go one after another, in the order in which their messages were
// accepted (open-parts.md, Threads, runs, attachments).
//
// I am the row threads/<id>; my address is thread/<tenant>/<thread id>. The edge
// asks me Post and DeleteThread; runs tell me RunEnded; a sweep may tell me Wake.
// I tell runs Proceed when their turn has come, and CancelRun when I am deleted.
//
//	      Post: message and run          DeleteThread
//	┌──────────────┐                  ┌───────────────► deleted ──► (nothing open)
//	└──► live ─────┴──────────────────┘                  cancels what is open
//
// A post takes two places: its message's and the one of the reply, which the run
// writes itself when it succeeds. A Post that comes twice is accepted once: the
// runs of the newest messages are remembered, and read again with the row; an older
// one, or one that comes again after the deletion, is found by its run's row. A
// DeleteThread that comes twice is found by its audit row, whose id its sender chose.
//
// What I owe follows from which runs are open: Proceed to the first of them or,
// once deleted, CancelRun to each. Which are open is the runs' own truth, so I
// keep no row of it: an activation reads the first ones and hears of changes,
// which are decisions without rows, not worth a commit.
//
// Order: messages and queue places are ordered by seq, never by id. Limits: a
// window of open runs and of remembered posts is kept in memory, however many
// are queued; the rest is read when the window has run empty. Loss: none; a
// RunEnded that was lost is made good by Wake or by the next activation.
//
// I leave memory a while after the last message when no run is open.
package thread
