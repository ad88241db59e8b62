package ingest

import (
	"strconv"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// mostAttempts is how often a generation is begun for one content.
const mostAttempts = 5

// pauses are the times before the next attempt, by the number of attempts.
var pauses = [mostAttempts]time.Duration{0, 10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute}

// Reasons that do not come from the file.
const (
	endsNodes   = "reading the file was begun five times and never ended; upload it again, or sync its source again"
	unavailable = "the service could not index the file; upload it again later, or sync its source again"
)

// Machine decides for documents.
type Machine struct{}

type decision = durable.Decision[State]

// Decide returns what m changes. See the drawing in doc.go. A decision without facts changes only
// what the activation remembers.
func (Machine) Decide(s State, m any, now time.Time) (decision, error) {
	now = now.UTC().Truncate(time.Microsecond) // the precision of the database
	switch m := m.(type) {
	case durable.Activated:
		return s.begin(), nil
	case durable.Wake:
		return s.wake(), nil
	case durable.TimerDue:
		return s.again(), nil
	case Entered:
		return s.entered(), nil
	case Full:
		return s.full(), nil
	case Built:
		return s.built(m), nil
	case Unreadable:
		return s.end(m), nil
	case Interrupted:
		return s.postpone(m, now), nil
	case Overtaken:
		return s.overtaken(m.Generation), nil
	case Cleaned:
		return s.cleaned(), nil
	case Dirty:
		next := s
		next.Try++
		return decision{Next: next, Changed: true}, nil
	case durable.EffectFailed:
		if s.Building {
			return s.postpone(Interrupted{Generation: s.Row.Generation}, now), nil
		}
		next := s
		next.Try++
		return decision{Next: next, Changed: true}, nil
	case durable.Refused:
		return decision{}, problem.New(problem.CodeInternal, "")
	}
	return decision{Next: s}, nil
}

// begin begins what the row owes. A generation waits for a place of the node first.
func (s State) begin() decision {
	next := s
	switch {
	case s.Missing || !s.Row.Owes:
		return decision{Next: s}
	case s.Row.Deleted || !s.stale():
		next.Cleaning = true
		return decision{Next: next, Changed: true}
	case s.Row.Attempts >= mostAttempts:
		return s.failed(endsNodes, true, Used{})
	}
	next.Entering, next.Fresh = true, true
	return decision{Next: next, Changed: true}
}

// entered begins a generation. An attempt counts from here.
func (s State) entered() decision {
	if !s.Entering {
		return decision{Next: s}
	}
	next := s
	next.Row.Status, next.Row.Generation, next.Row.Attempts = lifecycle.DocumentProcessing, s.Row.Generation+1, s.Row.Attempts+1
	next.Row.Error, next.Entering, next.Building = nil, false, true
	return decision{Next: next, Changed: true, Facts: []any{Moved{}}}
}

// full leaves the work to another activation.
func (s State) full() decision {
	next := s
	next.Entering, next.Cleaning = false, false
	return decision{Next: next, Changed: s.Entering || s.Cleaning}
}

// wake handles a change of the row by the API, most likely: the swap shows it.
func (s State) wake() decision {
	next := s
	switch {
	case s.Fresh:
		next.Fresh = false
		return decision{Next: next, Changed: true}
	case s.Entering || s.Building || s.Cleaning:
		return decision{Next: next, Changed: true, Facts: []any{Claimed{}}}
	}
	return s.begin()
}

// again handles the timer of a generation that was postponed.
func (s State) again() decision {
	if s.Missing || s.Entering || s.Building || s.Cleaning || s.Row.Status != lifecycle.DocumentQueued || s.Row.Owes {
		return decision{Next: s, Changed: true, Facts: []any{Claimed{}}} // its commit removes the timer
	}
	next := s
	next.Row.Owes = true
	return next.begin()
}

// built shows a generation.
func (s State) built(m Built) decision {
	if !s.Building || m.Generation != s.Row.Generation {
		return decision{Next: s}
	}
	next := s
	next.Row.Status, next.Row.Error, next.Row.Attempts = lifecycle.DocumentReady, nil, 0
	if s.Row.SourceError != nil { // an older content was indexed
		next.Row.Status, next.Row.Error = lifecycle.DocumentFailed, s.Row.SourceError
	}
	next.Row.Shown, next.Row.Chunks, next.Row.MediaType, next.Row.EmbeddedBy = m.Generation, m.Chunks, m.MediaType, m.EmbeddedBy
	next.Row.ReadContent, next.Row.ReadSettings = s.Row.Content, s.Row.Settings
	next.Building, next.Cleaning = false, true
	return decision{Next: next, Changed: true, Facts: []any{Ended{next.Row.Status, m.Used}}}
}

func (s State) end(m Unreadable) decision {
	if !s.Building || m.Generation != s.Row.Generation {
		return decision{Next: s}
	}
	return s.failed(m.Reason, m.Ours, m.Used)
}

// failed ends the reading of a content. What was shown before stays. Where the reason is not the file's (ours), the
// next sync of its source fetches the file again.
func (s State) failed(reason string, ours bool, used Used) decision {
	next := s
	if s.Row.SourceError != nil {
		reason = *s.Row.SourceError
	}
	next.Row.Status, next.Row.Error, next.Row.Attempts = lifecycle.DocumentFailed, &reason, 0
	next.Row.ReadContent, next.Row.ReadSettings = s.Row.Content, s.Row.Settings // it is not begun again
	if ours {
		next.Row.ReadContent = -s.Row.Content
	}
	next.Building, next.Cleaning = false, true
	return decision{Next: next, Changed: true, Facts: []any{Ended{next.Row.Status, used}}}
}

// postpone sets the time of the next attempt. A provider of embeddings or a store of files that is down does not
// fail a document: it is waited for without end, also over a restart meanwhile.
func (s State) postpone(m Interrupted, now time.Time) decision {
	next := s
	switch {
	case !s.Building || m.Generation != s.Row.Generation:
		return decision{Next: s}
	case m.Away:
		next.Row.Attempts = min(s.Row.Attempts, mostAttempts-2)
	case s.Row.Attempts >= mostAttempts:
		return s.failed(unavailable, true, m.Used)
	}
	next.Row.Status, next.Row.Owes, next.Building = lifecycle.DocumentQueued, false, false
	return decision{Next: next, Changed: true, Facts: []any{Postponed{now.Add(pauses[next.Row.Attempts]), m.Used}}}
}

// overtaken begins again: the swap misses, and the document is read again as it is.
func (s State) overtaken(generation int) decision {
	if !s.Building || generation != s.Row.Generation {
		return decision{Next: s}
	}
	next := s
	next.Building = false
	return next.begin()
}

// cleaned ends what the row owes.
func (s State) cleaned() decision {
	if !s.Cleaning {
		return decision{Next: s}
	}
	next := s
	next.Cleaning, next.Row.Owes = false, false
	return decision{Next: next, Changed: true, Facts: []any{Moved{}}}
}

// Enter waits for a place of the node.
type Enter struct {
	Row Row
	Try int
}

// Key returns another key for each try.
func (e Enter) Key() string {
	return "enter/" + strconv.Itoa(e.Row.Generation) + "/" + strconv.Itoa(e.Try)
}

// Build writes a generation.
type Build struct{ Row Row }

// Key is the same for each performance of one generation.
func (e Build) Key() string { return "build/" + strconv.Itoa(e.Row.Generation) }

// Clean removes the chunks that nothing shows, and of a deleted document its file.
type Clean struct {
	Row Row
	Try int
}

// Key returns another key for each try.
func (e Clean) Key() string { return "clean/" + strconv.Itoa(e.Row.Shown) + "/" + strconv.Itoa(e.Try) }

// Owed is what this activation has begun.
func (Machine) Owed(s State) (owed []durable.Effect) {
	if s.Entering {
		owed = append(owed, Enter{s.Row, s.Try})
	}
	if s.Building {
		owed = append(owed, Build{s.Row})
	}
	if s.Cleaning {
		owed = append(owed, Clean{s.Row, s.Try})
	}
	return owed
}
