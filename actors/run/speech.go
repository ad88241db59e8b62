package run

import (
	"strings"
	"sync"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
)

// speech is the live text of one model step. It passes each piece on to the readers and
// keeps it, so that the row of a step that is cut off holds exactly what its readers
// have seen. The kind makes it when the begin of the step is durable, the effect writes
// to it, and the commit that cuts the step off takes the text. The state of the run does
// not refer to it.
type speech struct {
	idx int // of the step

	mu       sync.Mutex // guards the fields below
	live     model.Sink
	over     func() // called once, if the text gets too long
	thinking strings.Builder
	text     strings.Builder
	segments []int32
	closed   bool
	now      func() time.Time
	first    time.Time // when the first piece came
}

// speeches follows the model steps that a durable decision has begun and ended. It runs
// before the effects of the decision begin.
func (k *kind) speeches(run id.RunID, facts []any) {
	for _, f := range facts {
		switch f := f.(type) {
		case StepEnded:
			if f.Kind == lifecycle.StepLLM {
				k.speaking.Delete(run)
			}
		case StepBegan:
			if f.Kind == lifecycle.StepLLM {
				k.speaking.Store(run, &speech{idx: f.Idx})
			}
		}
	}
}

// speech returns the live text of a step, nil if this activation did not begin the step
// or the step has ended.
func (k *kind) speech(run id.RunID, idx int) *speech {
	v, _ := k.speaking.Load(run)
	if sp, _ := v.(*speech); sp != nil && sp.idx == idx {
		return sp
	}
	return nil
}

// begin sets the sink of the readers, before the first piece. over is called once if the
// text gets too long.
func (s *speech) begin(live model.Sink, over func(), now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.over, s.now = live, over, now
}

// heard returns when the first piece came, the zero time if none did.
func (s *speech) heard() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first
}

// Text implements model.Sink.
func (s *speech) Text(t string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hear(&s.text, 1, t) {
		s.live.Text(t)
	}
}

// Thinking implements model.Sink.
func (s *speech) Thinking(t string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hear(&s.thinking, 0, t) {
		s.live.Thinking(t)
	}
}

// hear appends t to b and to the segments, of which the even ones are thinking. It reports
// whether readers get t.
func (s *speech) hear(b *strings.Builder, parity int, t string) bool {
	if s.closed || t == "" {
		return false
	}
	if s.first.IsZero() {
		s.first = s.now()
	}
	if s.thinking.Len()+s.text.Len()+len(t) > MaxSaid || len(s.segments) >= maxSegments {
		s.closed = true
		s.over()
		return false
	}
	switch n := len(s.segments); {
	case n == 0 && parity == 1:
		s.segments = append(s.segments, 0, int32(len(t)))
	case n > 0 && (n-1)%2 == parity:
		s.segments[n-1] += int32(len(t))
	default:
		s.segments = append(s.segments, int32(len(t)))
	}
	b.WriteString(t)
	return true
}

// said returns the text so far.
func (s *speech) said() Said {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Said{Thinking: s.thinking.String(), Text: s.text.String(), Segments: s.segments}
}

// cut ends the speech and returns its text; later pieces are dropped.
func (s *speech) cut() Said {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.said()
}
