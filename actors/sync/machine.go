package sync

import (
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Machine decides for sources.
type Machine struct{}

type decision = durable.Decision[State]

// Decide returns what m changes. See the drawing in doc.go. A decision without facts changes only
// what the activation remembers.
func (Machine) Decide(s State, m any, now time.Time) (decision, error) {
	now = now.UTC().Truncate(time.Microsecond) // the precision of the database
	next := s
	switch m := m.(type) {
	case durable.Activated:
		if !s.walks() {
			return decision{Next: s}, nil
		}
		next.Fresh = true
		return decision{Next: next, Changed: true, Facts: []any{Claimed{}}}, nil
	case durable.Wake:
		switch {
		case s.Fresh:
			next.Fresh = false
			return decision{Next: next, Changed: true}, nil
		case s.walks(): // the API has changed the row, most likely: the swap shows it
			return decision{Next: next, Changed: true, Facts: []any{Claimed{}}}, nil
		}
	case durable.TimerDue:
		s.Fresh = false
		return s.due(now), nil
	case Ended:
		if !s.walks() {
			return decision{Next: s}, nil
		}
		next.Status = lifecycle.SourceFailed
		if m.OK {
			next.Status = lifecycle.SourceOK
		}
		return decision{Next: next, Changed: true, Facts: []any{Finished{m, now}}}, nil
	case Lost:
		next.Try++
		return decision{Next: next, Changed: true, Facts: []any{Claimed{}}}, nil
	case Again:
		next.Try++
		next.Idle = m.Idle
		return decision{Next: next, Changed: true}, nil
	case durable.EffectFailed:
		if s.walks() {
			next.Status = lifecycle.SourceFailed
			return decision{Next: next, Changed: true, Facts: []any{Finished{Ended{Error: internal}, now}}}, nil
		}
	case durable.Refused:
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	return decision{Next: s}, nil
}

// internal is the reason that a tenant reads where ours is in the log.
const internal = "an internal error ended the sync"

// due handles the timer. A due time while a sync is queued or on its way passes.
func (s State) due(now time.Time) decision {
	if s.Missing || s.Due.IsZero() || now.Before(s.Due) {
		return decision{Next: s, Changed: true, Facts: []any{Aligned{}}}
	}
	next, walked := s, s.walks()
	next.Due = time.Time{}
	if s.Times != nil {
		next.Due = s.Times.Next(now)
	}
	if walked || !s.Enabled {
		return decision{Next: next, Changed: true, Facts: []any{Moved{}}}
	}
	next.Status, next.Sync = lifecycle.SourceQueued, s.Sync+1
	return decision{Next: next, Changed: true, Facts: []any{Queued{}}}
}

// Owed is the walk of a sync that is queued or on its way.
func (Machine) Owed(s State) []durable.Effect {
	if !s.walks() {
		return nil
	}
	return []durable.Effect{Walk{Try: s.Try, Idle: s.Idle}}
}

// Walk is the effect that syncs the source. A walk that was interrupted goes on behind its last
// step.
type Walk struct {
	Try  int
	Idle int // see Again
}

// Key returns another key for each try.
func (e Walk) Key() string { return "walk/" + strconv.Itoa(e.Try) }
