package thread

import (
	"slices"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// State is a thread's row and what its activation knows of its runs.
type State struct {
	Tenant  id.TenantID
	ID      id.ThreadID
	Agent   id.AgentID
	NextSeq int64 // of the next message
	Deleted bool
	// CreatedBy is the principal that began the thread.
	CreatedBy string
	// EndUserID is whose conversation it is, and all that is said in it.
	EndUserID *id.EndUserID
	// Unborn is a thread without a row: the Post that is decided on begins it.
	Unborn bool
	// Queue is the activation's knowledge of the open runs. It is no row of the
	// thread: runs end by their own commits, and what is known here of that may
	// be forgotten at any time.
	Queue Queue
}

// Embed reports whether it is a thread of the embed API.
func (s State) Embed() bool { return lifecycle.EmbedThread(s.CreatedBy) }

// belongs reports whether the thread is the visitor's. Nil: it is the tenant's.
func (s State) belongs(to *msg.Visitor) bool {
	return to == nil || s.Embed() && *to == msg.Visitor{Agent: s.Agent, CreatedBy: s.CreatedBy}
}

// window is how many open runs, and how many remembered posts, are in memory.
const window = 64

// Turn is an open run and its place.
type Turn struct {
	Run id.RunID
	Seq int64
}

// Queue is the beginning of the line of open runs.
type Queue struct {
	Open []Turn // in order, at most window
	More bool   // there may be further ones, behind the last of Open
	// First is the first run as it was committed here just now: it starts without
	// a read. Nil where it was read.
	First *msg.Accepted
	// Asked are the runs of the newest messages, at most window, oldest first.
	Asked []id.RunID
	// Look counts the reads of the line, Told the rounds of telling runs: they
	// make new effects of what is the same to look at.
	Look, Told int
	// Reading is whether the line is being read now.
	Reading bool
	// By asked for the thread's deletion; the zero value is nobody here.
	By msg.By
	// Purged says that the messages of the deleted thread went after its last run
	// had ended. An activation that read the row does not know: a run may have
	// been faster than its cancel.
	Purged bool
}

// with is the queue with a run behind its end.
func (q Queue) with(t Turn, a *msg.Accepted) Queue {
	n := q
	if q.More || q.Reading || len(q.Open) >= window {
		n.More = true // in order: nobody overtakes those who are not in memory
	} else {
		n.Open = append(slices.Clip(q.Open), t)
		if len(n.Open) == 1 {
			n.First = a
		}
	}
	n.Asked = append(slices.Clip(q.Asked), t.Run)
	if over := len(n.Asked) - window; over > 0 {
		n.Asked = n.Asked[over:]
	}
	return n
}

// without is the queue after a run has ended.
func (q Queue) without(run id.RunID) Queue {
	at := slices.IndexFunc(q.Open, func(t Turn) bool { return t.Run == run })
	if at < 0 {
		return q
	}
	if at == 0 {
		q.First = nil
	}
	q.Open = slices.Concat(q.Open[:at], q.Open[at+1:])
	return q
}

// knows reports whether the run was accepted here not long ago.
func (q Queue) knows(run id.RunID) bool {
	return slices.Contains(q.Asked, run) || slices.ContainsFunc(q.Open, func(t Turn) bool { return t.Run == run })
}

// empty reports whether no run is open.
func (q Queue) empty() bool { return len(q.Open) == 0 && !q.More && !q.Reading }

// look begins a read of the line; one that is under way does not count.
func (q Queue) look() Queue {
	q.Reading = true
	q.Look++
	return q
}

// refilled looks at the line where the window has run empty.
func (q Queue) refilled() Queue {
	if len(q.Open) == 0 && q.More && !q.Reading {
		return q.look()
	}
	return q
}
