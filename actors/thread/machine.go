package thread

import (
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Machine decides for threads. A decision without facts is about the queue: it
// changes what is known, and nothing is written for it.
type Machine struct{}

type decision = durable.Decision[State]

// Decide returns what m changes.
func (Machine) Decide(s State, m any, now time.Time) (decision, error) {
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
		if s.Deleted {
			return s.again(reply), nil
		}
		a := &msg.Accepted{
			Run: m.Run, AgentID: m.AgentID, AgentVersion: m.AgentVersion, ThreadID: &s.ID, ThreadSeq: s.NextSeq,
			Input: m.Input, Origin: m.Origin, EndUserID: m.EndUserID, CreatedAt: now,
		}
		next := s
		next.Row = s.Row.written()
		next.NextSeq += 2
		next.Queue = s.Queue.with(Turn{Run: m.Run, Seq: s.NextSeq}, a)
		return decision{Next: next, Changed: true, Facts: []any{Posted{a}}, Reply: reply}, nil
	case msg.DeleteThread:
		if s.Deleted {
			return s.again(msg.Done{}), nil
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

// again is the decision on an order that comes to a deleted thread: if it was
// carried out before the deletion, or was the deletion, it is answered as then.
func (s State) again(reply any) decision {
	return decision{Next: s, Changed: true, Facts: []any{Again{}}, Reply: reply}
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
