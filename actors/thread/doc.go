// Package thread is one conversation: it numbers the messages, and runs the runs one after
// another in the order in which their messages were accepted (open-parts.md, Threads, runs,
// attachments).
//
// A thread is the row threads/<id>; its address is thread/<tenant>/<thread id>. The edge
// asks it Post and DeleteThread; runs tell it RunEnded; a sweep may tell it Wake or TimerDue.
// It tells its first open run Proceed, and every open run CancelRun when it is deleted.
// If no run is open when a run is accepted, the run's row says that it is ready, and Proceed
// only begins it.
//
//	Post with New: thread, message and run, in one commit
//	   │
//	   │  Post: message and run          DeleteThread
//	   ▼ ┌──────────────┐             ┌───────────────► deleted ──► (nothing open)
//	   live ◄───────────┴─────────────┘                 cancels what is open
//
// A thread of the embed API begins with its first message; without a row everything
// but a Post with New is NOT_FOUND. NOT_FOUND is also the answer to a Post with New to a
// thread that exists, unless it is the one that began it, and to a Post of another visitor.
//
// The thread finds the agent's version itself: its node has it in memory, or the thread
// asks for it (Admission). This check comes last: a caller who may not post learns
// nothing about the agent.
//
// A thread of the embed API has one reply in progress at a time, and never a 201st message
// (service.md, Embed rules). Both depend on the status of the runs, which is in their rows and
// not in the thread. So each Post asks for these rows (Admission). If another Post was
// accepted before the answer, it asks again. Between the read and the commit runs can only end,
// which makes room and never takes it; if another activation accepted a Post, the swap of the
// row refuses this one. So a refusal is always based on the rows.
//
// A post takes two numbers: one for its message and one for the reply, which the run writes
// when it succeeds. Post is idempotent: the runs of the newest messages are in memory, and
// are read with the row. An older Post is found by the insert of its run
// (durable.Repeated), and one that is repeated after the deletion by its run's row.
// DeleteThread is idempotent by the id of its audit row, which the sender chose.
//
// A thread owes Proceed to its first open run or, once deleted, CancelRun to each. The rows
// of the runs say which runs are open; the thread does not store that. An activation reads
// the first open runs, and learns of changes by messages. These are decisions without
// rows, which stay in memory.
//
// The commit that deletes a thread with open runs sets its timer "empty". Until no run is open
// and what the runs wrote is deleted, the timer comes again and repeats the cancels: a crash
// loses both the cancels and the news of ends.
//
// Order: messages and runs are ordered by seq, never by id. Limits: at most a window of
// open runs and of recent posts is in memory, however many are queued; when the window is
// empty, the next open runs are read. Loss: none; a RunEnded that was lost is made good by Wake
// or by the next activation.
//
// A thread leaves memory some time after the last message if no run is open.
package thread
