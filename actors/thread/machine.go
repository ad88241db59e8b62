package thread

import (
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Machine decides for threads. A decision without facts changes only the queue in memory, and
// writes nothing.
type Machine struct {
	published func(id.TenantID, id.AgentID) int // Config.Published
	ready     []byte                            // Config.Ready
}

type decision = durable.Decision[State]

// Decide returns what m changes.
func (f Machine) Decide(s State, m any, now time.Time) (decision, error) {
	same := decision{Next: s}
	var known durable.Answered
	if a, ok := m.(durable.Answered); ok {
		known, m = a, a.Msg
	}
	switch m := m.(type) {
	case msg.Post:
		return f.post(s, m, known, now)
	case msg.DeleteThread:
		return remove(s, m, known)
	case durable.Repeated:
		if post, ok := m.Msg.(msg.Post); ok {
			same.Reply = msg.Posted{Run: post.Run, Message: post.Message}
		}
		return same, nil
	case msg.RunEnded:
		q := s.Queue.without(m.Run)
		if q.Reading {
			q = q.reread() // the read in flight may be from before this end
		}
		return s.remember(q.refilled()), nil
	case durable.Wake, durable.TimerDue:
		return s.remember(s.Queue.reread()), nil
	case QueueRead:
		if m.Read != s.Queue.Reads || !s.Queue.Reading {
			return same, nil
		}
		q := s.Queue
		q.Reading, q.Open, q.More, q.First = false, m.Open, m.More || m.NextSeq != s.NextSeq, nil
		q.Told++
		return s.remember(q.refilled()), nil
	case durable.EffectFailed:
		// Another read of the queue repairs whatever panicked.
		return s.remember(s.Queue.reread()), nil
	case durable.Refused:
		if _, ok := m.Msg.(msg.Post); ok {
			return decision{}, problem.Invalid("content", "cannot be stored")
		}
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	return same, nil
}

// post accepts a message and the run that answers it.
func (f Machine) post(s State, m msg.Post, known durable.Answered, now time.Time) (decision, error) {
	reply := msg.Posted{Run: m.Run, Message: m.Message}
	if s.Queue.knows(m.Run) {
		return decision{Next: s, Reply: reply}, nil
	}
	if s.Deleted || m.New != s.Unborn || !s.belongs(m.Visitor) {
		switch before, ok := answerTo[bool](known, Accepted{m.Run}); {
		case !ok:
			return decision{Question: Accepted{m.Run}}, nil
		case before:
			return decision{Next: s, Reply: reply}, nil
		}
		return decision{}, problem.NotFound("thread")
	}
	version := 0
	if f.published != nil {
		version = f.published(s.Tenant, s.Agent)
	}
	if q := s.admission(m, version, known); q.Embed || !q.Agent.IsZero() {
		a, ok := answerTo[Admitted](known, q)
		switch {
		case !ok:
			return decision{Question: q}, nil
		case a.Before:
			return decision{Next: s, Reply: reply}, nil
		case a.Refusal != nil:
			return decision{}, a.Refusal
		case a.Silent != nil:
			return decision{}, a.Silent
		case version == 0:
			version = a.Version
		}
	}
	a := &msg.Accepted{
		Run: m.Run, AgentID: s.Agent, AgentVersion: version, ThreadID: &s.ID, ThreadSeq: s.NextSeq,
		Input: m.Input, Origin: m.Origin, EndUserID: m.EndUserID, CreatedAt: now,
	}
	if s.Queue.empty() {
		a.State = f.ready
	}
	next := s
	next.Unborn = false
	next.NextSeq += 2
	next.Queue = s.Queue.with(OpenRun{Run: m.Run, Seq: s.NextSeq}, a)
	return decision{Next: next, Changed: true, Facts: []any{Posted{a}}, Reply: reply}, nil
}

// admission returns the question before m is accepted. An agent whose version was
// asked for stays in the question until the message is accepted, even if the node has the
// version in memory by then.
func (s State) admission(m msg.Post, version int, known durable.Answered) Admission {
	q := Admission{Run: m.Run}
	if s.Embed() && !s.Unborn {
		q.Embed, q.NextSeq = true, s.NextSeq
	}
	if asked, ok := known.Question.(Admission); version == 0 || ok && !asked.Agent.IsZero() {
		q.Agent = s.Agent
	}
	return q
}

// answerTo returns the answer to q; not ok if known answers another question.
func answerTo[T any](known durable.Answered, q any) (answer T, ok bool) {
	if known.Question != q {
		return answer, false
	}
	answer, ok = known.Answer.(T)
	return answer, ok
}

// remove deletes the thread.
func remove(s State, m msg.DeleteThread, known durable.Answered) (decision, error) {
	if s.Unborn {
		return decision{}, problem.NotFound("thread")
	}
	if !s.Deleted {
		next := s
		next.Deleted = true
		next.Queue.By, next.Queue.First, next.Queue.Purged = m.By, nil, s.Queue.empty()
		return decision{Next: next, Changed: true, Facts: []any{Deleted{}}, Reply: msg.Done{}}, nil
	}
	if !m.Op.IsZero() {
		switch before, ok := answerTo[bool](known, Erased{m.Op}); {
		case !ok:
			return decision{Question: Erased{m.Op}}, nil
		case before:
			return decision{Next: s, Reply: msg.Done{}}, nil
		}
	}
	return decision{}, problem.NotFound("thread")
}

// remember returns the decision that changes the queue. A deleted thread commits once more
// when its last run has ended.
func (s State) remember(q Queue) decision {
	d := decision{Next: s, Changed: true}
	if s.Deleted && q.empty() && !q.Purged {
		q.Purged = true
		d.Facts = []any{Emptied{}}
	}
	d.Next.Queue = q
	return d
}

// Owed returns Next for the first open run or, in a deleted thread, Cancel for each open run;
// and a read of the queue while one is needed.
func (Machine) Owed(s State) []durable.Effect {
	q := s.Queue
	var owed []durable.Effect
	if q.Reading {
		owed = append(owed, ReadQueue{Read: q.Reads, NextSeq: s.NextSeq})
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
