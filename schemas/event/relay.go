package event

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// The embed relay (service.md, Embed relay) shows strangers a run by an allow list of types,
// and for each type only the fields in its row. Each row of the table has code here that
// makes the relay's frame from typed values; a frame of the platform is never filtered. Types
// and fields added later are not relayed unless this file names them.
//
// A relayed frame has the position of the platform's frame with the same meaning. An
// llm.delta is the same frame, if AllowRelay was called on it: text without that permission
// is withheld.

func relayedStart(run id.RunID) *Frame {
	return relayed(RunStarted, Pos{Seq: SeqStarted}, struct {
		RunID  id.RunID            `json:"run_id"`
		Status lifecycle.RunStatus `json:"status"`
	}{run, lifecycle.RunRunning})
}

func relayedCall(seq int64, idx int) *Frame {
	return relayed(ToolCalled, Pos{Seq: seq}, struct {
		Idx int `json:"idx"`
	}{idx})
}

func relayedResult(seq int64, idx int, ok bool) *Frame {
	return relayed(ToolResult, Pos{Seq: seq}, struct {
		Idx int  `json:"idx"`
		OK  bool `json:"ok"`
	}{idx, ok})
}

// relayedWait returns run.waiting or run.resumed: a visitor learns that a decision is
// pending, but not whose, for what, or its result.
func relayedWait(seq int64, t Type) *Frame { return relayed(t, Pos{Seq: seq}, struct{}{}) }

// relayedAnswer returns run.completed. The relay shows only the final text of an agent's
// output, after the output guardrails.
func relayedAnswer(seq int64, output json.RawMessage) *Frame {
	var answer struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(output, &answer) != nil {
		answer.Text = nil // an output of another shape has no text
	}
	return relayed(RunCompleted, Pos{Seq: seq}, struct {
		Status lifecycle.RunStatus `json:"status"`
		Text   *string             `json:"text"`
	}{lifecycle.RunSucceeded, answer.Text})
}

func relayedFailure(seq int64, code string) *Frame {
	return relayed(RunFailed, Pos{Seq: seq}, struct {
		Code string `json:"code"`
	}{code})
}

func relayed(t Type, pos Pos, v any) *Frame {
	f := must(New(t, pos, v))
	f.relayed = true
	return f
}

// AllowRelay lets the relay show f if it is an llm.delta, and returns f. Only the code that
// made f may call it, if the step's agent has no output guardrails.
func (f *Frame) AllowRelay() *Frame {
	f.allowed = true
	return f
}

// Relay returns the relay's version of f, nil for none. It is made at the first request, and
// shared.
func (f *Frame) Relay() *Frame {
	if f.relayed || f.allowed && f.Type == LLMDelta {
		return f
	}
	r := f.relay.Load()
	if r == nil {
		if r = f.relayForm(); r != nil && !f.relay.CompareAndSwap(nil, r) {
			r = f.relay.Load()
		}
	}
	return r
}

// relayForm makes the relay's version of f, which may come from a node of another version: it
// reads only the fields that a relayed frame needs.
func (f *Frame) relayForm() *Frame {
	switch f.Type {
	case RunStarted:
		var d struct {
			RunID id.RunID `json:"run_id"`
		}
		if f.read(&d) {
			return relayedStart(d.RunID)
		}
	case ToolCalled:
		var d struct {
			Idx int `json:"idx"`
		}
		if f.read(&d) {
			return relayedCall(f.Pos.Seq, d.Idx)
		}
	case ToolResult:
		var d struct {
			Idx int  `json:"idx"`
			OK  bool `json:"ok"`
		}
		if f.read(&d) {
			return relayedResult(f.Pos.Seq, d.Idx, d.OK)
		}
	case RunWaiting, RunResumed:
		return relayedWait(f.Pos.Seq, f.Type)
	case RunCompleted:
		var d struct {
			Output json.RawMessage `json:"output"`
		}
		f.read(&d) // whatever its fields, it is the end
		return relayedAnswer(f.Pos.Seq, d.Output)
	case RunFailed:
		var d struct {
			Code string `json:"code"`
		}
		if !f.read(&d) {
			d.Code = string(lifecycle.FailInternal)
		}
		return relayedFailure(f.Pos.Seq, d.Code)
	case Heartbeat:
		return f
	}
	return nil
}

// read decodes the fields of f that v has.
func (f *Frame) read(v any) bool { return json.Unmarshal(f.Data(), v) == nil }

// ReplayRelay is Replay for a reader of the relay. With a position, it returns every relayed
// frame after it. Without one, it returns those of the steps after Since, including
// everything since the first of them began; run.started, as on the platform's stream, only if
// Since names no step. The text of a finished step is one llm.delta. The facts must be those
// of a cursor with Full set.
func ReplayRelay(f *Facts, c Cursor) []*Frame {
	c = c.Within(f)
	r := replay{facts: f, cursor: c}
	since, from := c.Since, int64(math.MaxInt64)
	if c.After != (Pos{}) || since < 0 {
		since, from = -1, 0
		if f.Started {
			r.add(Pos{Seq: SeqStarted}, func() *Frame { return relayedStart(f.Run) })
		}
	}
	for i := range f.Steps {
		if s := &f.Steps[i]; int64(s.Idx) > since {
			from = min(from, s.BeganSeq)
			r.relayStep(s)
		}
	}
	for _, m := range f.Marks {
		if m.Seq > from && (m.Type == RunWaiting || m.Type == RunResumed) {
			r.add(Pos{Seq: m.Seq}, func() *Frame { return relayedWait(m.Seq, m.Type) })
		}
	}
	if f.Status.Terminal() {
		r.add(Pos{Seq: f.Seq}, f.relayedEnd)
	}
	slices.SortStableFunc(r.frames, byPosition)
	return r.frames
}

func (f *Facts) relayedEnd() *Frame {
	if f.Status == lifecycle.RunSucceeded {
		return relayedAnswer(f.Seq, f.Output)
	}
	return relayedFailure(f.Seq, f.ErrorCode)
}

func (r *replay) relayStep(s *StepFacts) {
	switch s.Kind {
	case lifecycle.StepLLM:
		if s.ended() && s.Relayed {
			r.relayText(s)
		}
	case lifecycle.StepTool, lifecycle.StepRetrieval:
		if s.CalledSeq > 0 {
			r.add(Pos{Seq: s.CalledSeq}, func() *Frame { return relayedCall(s.CalledSeq, s.Idx) })
		}
		if s.ended() && s.EndedSeq > 0 {
			r.add(Pos{Seq: s.EndedSeq}, func() *Frame { return relayedResult(s.EndedSeq, s.Idx, s.Status == lifecycle.StepSucceeded) })
		}
	}
}

// relayText makes one frame of the part of a step's text that the reader has not received.
func (r *replay) relayText(s *StepFacts) {
	var text strings.Builder
	var at Pos
	r.parts(s, false, func(t Type, pos Pos, part string) {
		if t != LLMDelta {
			return
		}
		if part = textAfter(part, pos, r.cursor.After); part != "" {
			text.WriteString(part)
			at = pos
		}
	})
	if text.Len() > 0 {
		r.frames = append(r.frames, Delta(LLMDelta, at, s.Idx, text.String()).AllowRelay())
	}
}
