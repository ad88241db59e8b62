package trigger

import (
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/problem"
)

// Machine decides for schedules.
type Machine struct{}

type decision = durable.Decision[State]

// Decide returns what m changes. See the drawing in doc.go. A decision without facts
// changes only what the activation remembers.
func (Machine) Decide(s State, m any, now time.Time) (decision, error) {
	now = now.UTC().Truncate(time.Microsecond) // the precision of the database
	switch m := m.(type) {
	case durable.TimerDue:
		if !s.due(now) {
			return decision{Next: s, Changed: true, Facts: []any{Aligned{}}}, nil
		}
		return s.fire(now), nil
	case durable.Wake:
		return s.fire(now), nil
	case Started:
		return s.move(m, now), nil
	case Failed, durable.EffectFailed:
		next := s
		next.Firing = time.Time{}
		return decision{Next: next, Changed: true}, nil
	case durable.Refused:
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	return decision{Next: s}, nil
}

// due reports whether a due time has come.
func (s State) due(now time.Time) bool { return !s.Due.IsZero() && !now.Before(s.Due) }

// fire begins to start the run of a due time. Times that cannot be read fire nothing.
func (s State) fire(now time.Time) decision {
	if !s.due(now) || s.Times == nil || !s.Firing.IsZero() {
		return decision{Next: s}
	}
	next := s
	next.Firing = now
	return decision{Next: next, Changed: true}
}

// move takes the schedule to its next due time, which is counted from the start of the
// firing: one that came meanwhile fires at once.
func (s State) move(m Started, now time.Time) decision {
	if s.Firing.IsZero() || !m.Due.Equal(s.Due) {
		return decision{Next: s}
	}
	next := s
	next.Due, next.Firing = s.Times.Next(s.Firing), time.Time{}
	next = next.fire(now).Next
	return decision{Next: next, Changed: true, Facts: []any{Moved{Due: s.Due, Fired: s.Firing, Why: m.Why}}}
}

// Owed is the start of the run of the due time that fires.
func (Machine) Owed(s State) []durable.Effect {
	if s.Firing.IsZero() {
		return nil
	}
	return []durable.Effect{Start{Due: s.Due}}
}
