package thread

import (
	"slices"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Machine decides for threads. A decision without facts is about the queue: it
// changes what is known, and nothing is written for it.
type Machine struct {
	published func(id.TenantID, id.AgentID) int // Config.Published
	turn      []byte                            // Config.Turn
}

type decision = durable.Decision[State]

// Decide returns what m changes.
func (f Machine) Decide(s State, m any, now time.Time) (decision, error) {
	same := decision{Next: s}
	switch m := m.(type) {
	case durable.Activated:
		same.Changed, same.Next.Row.Claim = true, m.Epoch
		return same, nil
	case msg.Post:
		reply := msg.Posted{Run: m.Run, Message: m.Message}
		if s.Queue.knows(m.Run) {
			same.Reply = reply
			return same, nil
		}
		if s.Deleted || m.New != nil && !s.Unborn {
			return s.again(reply, problem.NotFound("thread")), nil
		}
		if m.AgentID.IsZero() {
			if m.AgentID, m.AgentVersion = s.Agent, f.version(s); m.AgentVersion == 0 {
				same.Reply = msg.Posted{Agent: s.Agent, Embed: s.Embed}
				return same, nil
			}
			reply.Agent, reply.Embed = s.Agent, s.Embed
		}
		if newest := s.Queue.newest(); s.Embed && m.Behind != newest {
			return s.overtaken(reply, m.Behind, newest)
		}
		a := &msg.Accepted{
			Run: m.Run, AgentID: m.AgentID, AgentVersion: m.AgentVersion, ThreadID: &s.ID, ThreadSeq: s.NextSeq,
			Input: m.Input, Origin: m.Origin, EndUserID: m.EndUserID, CreatedAt: now,
		}
		if s.Queue.empty() {
			a.State = f.turn
		}
		next := s
		next.Row = s.Row.written()
		if s.Unborn {
			next.Row, next.Unborn = first, false
		}
		next.NextSeq += 2
		next.Queue = s.Queue.with(Turn{Run: m.Run, Seq: s.NextSeq}, a)
		return decision{Next: next, Changed: true, Facts: []any{Posted{a}}, Reply: reply}, nil
	case msg.DeleteThread:
		if s.Deleted {
			return s.again(msg.Done{}, problem.NotFound("thread")), nil
		}
		next := s
		next.Row, next.Deleted = s.Row.written(), true
		next.Queue.By, next.Queue.First, next.Queue.Purged = m.By, nil, s.Queue.empty()
		return decision{Next: next, Changed: true, Facts: []any{Deleted{}}, Reply: msg.Done{}}, nil
	case msg.RunEnded:
		q := s.Queue.without(m.Run)
		if q.Reading {
			q = q.look() // what is being read may be from before this end
		}
		return s.knowing(q.refilled()), nil
	case durable.Wake:
		return s.knowing(s.Queue.look()), nil
	case Line:
		if m.Look != s.Queue.Look || !s.Queue.Reading {
			return same, nil
		}
		q := s.Queue
		q.Reading, q.Open, q.More, q.First = false, m.Open, m.More || m.NextSeq != s.NextSeq, nil
		q.Told++
		return s.knowing(q.refilled()), nil
	case durable.EffectFailed:
		// Whatever panicked, another look at the line sets it right.
		return s.knowing(s.Queue.look()), nil
	case durable.Refused:
		if _, ok := m.Msg.(msg.Post); ok {
			return decision{}, problem.Invalid("content", "cannot be stored")
		}
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	return same, nil
}

// version is the version that answers a Post whose sender does not know the thread's
// agent; 0 where that is not known here, or the thread is one whose sender has to know
// more.
func (f Machine) version(s State) int {
	if f.published == nil || s.Embed {
		return 0
	}
	return f.published(s.Tenant, s.Agent)
}

// again is the decision on an order that is not carried out now: if it was before,
// it is answered as then.
func (s State) again(reply, otherwise any) decision {
	return decision{Next: s, Changed: true, Facts: []any{Again{Else: otherwise}}, Reply: reply}
}

// overtaken is the decision on a post in an embed thread that was admitted behind
// another run than the newest. Where that one is remembered here, others were accepted
// since. Where it is not, it is the rows' to say who is behind: it was accepted by
// another activation since, or so long ago that the post may be one that comes again.
func (s State) overtaken(reply msg.Posted, behind, newest id.RunID) (decision, error) {
	if behind.IsZero() {
		// An embed thread is never without a run: the sender is a node that does not know
		// of Behind, and would take Newest for a yes.
		return decision{}, problem.Unavailable("The thread cannot take messages by this node yet.", time.Second)
	}
	look := msg.Posted{Newest: newest}
	if slices.Contains(s.Queue.Asked, behind) {
		return decision{Next: s, Reply: look}, nil
	}
	d := s.again(reply, look)
	d.Facts = []any{Again{Else: look, Unheard: true}}
	return d, nil
}

// knowing is the decision to know better how runs stand. A deleted thread commits
// once more when its last run has ended.
func (s State) knowing(q Queue) decision {
	d := decision{Next: s, Changed: true}
	if s.Deleted && q.empty() && !q.Purged {
		d.Next.Row, q.Purged = s.Row.written(), true
		d.Facts = []any{Emptied{}}
	}
	d.Next.Queue = q
	return d
}

// Owed is the turn of the first open run or, in a deleted thread, the end of
// each; and the look at the line where the window does not say it.
func (Machine) Owed(s State) []durable.Effect {
	q := s.Queue
	var owed []durable.Effect
	if q.Reading {
		owed = append(owed, ReadLine{Look: q.Look, NextSeq: s.NextSeq})
	}
	if s.Deleted {
		for _, t := range q.Open {
			owed = append(owed, Cancel{Run: t.Run, By: q.By, Round: q.Told})
		}
		return owed
	}
	if len(q.Open) > 0 {
		owed = append(owed, Next{Run: q.Open[0].Run, Accepted: q.First, Round: q.Told})
	}
	return owed
}
