// Package thread is one conversation: it gives messages their places and lets
// its runs go one after another, in the order in which their messages were
// accepted (open-parts.md, Threads, runs, attachments).
//
// I am the row threads/<id>; my address is thread/<tenant>/<thread id>. The edge
// asks me Post and DeleteThread; runs tell me RunEnded; a sweep may tell me Wake.
// I tell runs Proceed when their turn has come, and CancelRun when I am deleted.
// A run that is accepted while no other is open has its turn with its row, and
// Proceed only begins it.
//
//	Post with New: thread, message and run, in one commit
//	   │
//	   │  Post: message and run          DeleteThread
//	   ▼ ┌──────────────┐             ┌───────────────► deleted ──► (nothing open)
//	   live ◄───────────┴─────────────┘                 cancels what is open
//
// A thread of the embed API begins with its first message; where there is no row,
// everything but a Post with New is NOT_FOUND. One that is there belongs to whom it
// belongs: a Post with New is nothing to it, unless it is the one that began it.
//
// In an embed thread one reply is made at a time, and no 201st message is written
// (service.md, Embed rules). Both depend on how runs stand, which I do not know for
// sure, and who posts reads it from the rows (store.View.Standing): the messages, the
// replies still owed, the newest run and the newest open one. Where he is admitted, he
// names the newest run he saw (Post.Behind), and I take the message only if that is
// the newest still; else I write nothing and say which is, and he looks again. So
// between his look and my commit nobody else was accepted, and what can have happened
// besides makes no harm: a run that ended turned its place into a message or gave it
// back, and freed the turn; a run that waited for an approval may have gone on, and
// then the post is as good as come a moment earlier, when it waited. Each round of
// looking again means that another post was accepted. My memory alone decides nothing:
// where I am an old activation and agree, the swap of the row refuses me; where I am
// told of a run that I do not remember, I look whether the row is still mine.
//
// A Post that names no agent is of mine, in the version that my node remembers; where it
// remembers none, and in embed threads, I take nothing and say whose I am: its sender
// judges it and posts it again.
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
