package thread

import (
	"slices"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// State is a thread's row, and its open runs as the activation knows them.
type State struct {
	Tenant  id.TenantID
	ID      id.ThreadID
	Agent   id.AgentID
	NextSeq int64 // of the next message
	Deleted bool
	// CreatedBy is the principal that began the thread.
	CreatedBy string
	// EndUserID is the person to whom the conversation and all its messages belong.
	EndUserID *id.EndUserID
	// Unborn is a thread without a row: the Post that is being decided creates it.
	Unborn bool
	// Queue holds the open runs as the activation knows them. It is not stored: runs end
	// by their own commits, and the next activation reads the queue again.
	Queue Queue
}

// Embed reports whether it is a thread of the embed API.
func (s State) Embed() bool { return lifecycle.EmbedThread(s.CreatedBy) }

// belongs reports whether the visitor may use the thread; nil is the tenant.
func (s State) belongs(to *msg.Visitor) bool {
	return to == nil || s.Embed() && *to == msg.Visitor{Agent: s.Agent, CreatedBy: s.CreatedBy}
}

// window is how many open runs, and how many recent posts, are in memory.
const window = 64

// OpenRun is an open run and the number of its message.
type OpenRun struct {
	Run id.RunID
	Seq int64
}

// Queue is the start of the queue of open runs.
type Queue struct {
	Open []OpenRun // in order, at most window
	More bool      // there may be more, after the last of Open
	// First is the first run if this activation has just committed it: the run starts
	// without a read. Else nil.
	First *msg.Accepted
	// Asked are the runs of the newest messages, at most window, oldest first.
	Asked []id.RunID
	// Reads counts the reads of the queue, Told the rounds of telling runs. They give
	// repeated effects new keys.
	Reads, Told int
	// Reading says that a read of the queue is in flight.
	Reading bool
	// By requested the thread's deletion; zero if an earlier activation decided it.
	By msg.By
	// Purged says that the messages of the deleted thread were deleted after its last
	// run had ended. It is false after a load, because a run may have written its reply
	// before its cancel.
	Purged bool
}

// with returns the queue with one more run at its end; a is the row of the run.
func (q Queue) with(r OpenRun, a *msg.Accepted) Queue {
	n := q
	if q.More || q.Reading || len(q.Open) >= window {
		n.More = true // in order: the run follows those that are not in memory
	} else {
		n.Open = append(slices.Clip(q.Open), r)
		if len(n.Open) == 1 {
			n.First = a
		}
	}
	n.Asked = append(slices.Clip(q.Asked), r.Run)
	if over := len(n.Asked) - window; over > 0 {
		n.Asked = n.Asked[over:]
	}
	return n
}

// without returns the queue after a run has ended.
func (q Queue) without(run id.RunID) Queue {
	at := slices.IndexFunc(q.Open, func(r OpenRun) bool { return r.Run == run })
	if at < 0 {
		return q
	}
	if at == 0 {
		q.First = nil
	}
	q.Open = slices.Concat(q.Open[:at], q.Open[at+1:])
	return q
}

// knows reports whether the run is open or of a recent post.
func (q Queue) knows(run id.RunID) bool {
	return slices.Contains(q.Asked, run) || slices.ContainsFunc(q.Open, func(r OpenRun) bool { return r.Run == run })
}

// empty reports whether no run is open.
func (q Queue) empty() bool { return len(q.Open) == 0 && !q.More && !q.Reading }

// reread begins a read of the queue. The result of a read in flight is dropped.
func (q Queue) reread() Queue {
	q.Reading = true
	q.Reads++
	return q
}

// refilled begins a read of the queue if the window is empty and there may be more runs.
func (q Queue) refilled() Queue {
	if len(q.Open) == 0 && q.More && !q.Reading {
		return q.reread()
	}
	return q
}
