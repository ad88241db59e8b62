package event

import (
	"encoding/json"
	"math"
	"slices"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Facts are the durable facts of a run that its event stream shows. For a reader that needs
// less (see Cursor), parts may be missing.
type Facts struct {
	Run          id.RunID
	Agent        *id.AgentID
	Status       lifecycle.RunStatus
	Started      bool  // it left queued, other than by ending
	Seq          int64 // number of the last fact
	Output       json.RawMessage
	ErrorCode    string
	ErrorMessage string
	TokensIn     int64
	TokensOut    int64
	CostUSD      float64
	Steps        []StepFacts
	Marks        []MarkFacts
}

// Bytes returns how many bytes of contents the facts hold.
func (f *Facts) Bytes() (n int64) {
	n = int64(len(f.Output) + len(f.ErrorMessage))
	for i := range f.Steps {
		n += int64(len(f.Steps[i].Input) + len(f.Steps[i].Output))
	}
	for i := range f.Marks {
		n += int64(len(f.Marks[i].Data))
	}
	return n
}

// StepFacts is one step. Input and Output are the shown ones. Those of a call may be cut after
// what a preview shows.
type StepFacts struct {
	Idx      int
	Kind     lifecycle.StepKind
	Name     string
	Status   lifecycle.StepStatus
	BeganSeq int64
	// CalledSeq is the number of tool.called: 0 for a step that is not a call, and for a call
	// that was not made (yet).
	CalledSeq int64
	EndedSeq  int64 // 0: its end has no frame, or has not come
	Input     json.RawMessage
	Output    json.RawMessage
	// Segments are the byte lengths of an llm step's thinking and text, alternating in order
	// of arrival, thinking first.
	Segments []int32
	// Relayed means that the embed relay shows the text of an llm step: its agent has no
	// output guardrails.
	Relayed bool
}

// ended reports whether the step ended normally, so that its result is kept.
func (s *StepFacts) ended() bool {
	return s.Status == lifecycle.StepSucceeded || s.Status == lifecycle.StepFailed
}

// MarkFacts is one fact without a row of its own.
type MarkFacts struct {
	Seq  int64
	Type Type
	Data json.RawMessage
}

// Cursor is what a reader has or wants (service.md, Run event stream; open-parts.md, Threads,
// runs, attachments). After, the Last-Event-ID, takes precedence over Full, replay=full, and
// Full over Since.
type Cursor struct {
	Since int64 // only steps with a greater idx
	Full  bool
	After Pos // zero: none
}

// ReadCursor parses a client's request. Steps have whole numbers, so a since between two of
// them means the lower one; an unusable Last-Event-ID counts as none.
func ReadCursor(lastEventID string, since float64, full bool) Cursor {
	c := Cursor{Full: full}
	switch f := math.Floor(since); {
	case f >= math.MaxInt32:
		c.Since = math.MaxInt32
	case f >= 0:
		c.Since = int64(f)
	default: // below every step, or not a number
		c.Since = -1
	}
	c.After, _ = ParsePos(lastEventID)
	return c
}

// Exact reports whether the reader needs every frame after a position, rather than the steps
// after an idx.
func (c Cursor) Exact() bool { return c.Full || c.After != (Pos{}) }

// Within returns the cursor that applies to a run with these facts: an After that no frame of
// the run had is unusable and counts as none.
func (c Cursor) Within(f *Facts) Cursor {
	if c.After.Seq > f.Seq {
		c.After = Pos{}
	}
	return c
}

// Replay returns the frames of committed facts that a reader with this cursor has not
// received, in the order of their positions, which are those of the live frames.
//
// An Exact reader gets every frame after its position, including the text of finished steps.
// Any other reader gets run.started (unless Since names a step), the steps after Since as
// step.started with the thinking of their models, and the terminal frame. It does not get
// tool results, approval requests and model text, which it reads elsewhere. For an abandoned
// step only its begin is kept. A queued run has no frames.
func Replay(f *Facts, c Cursor) []*Frame {
	c = c.Within(f)
	r := replay{facts: f, cursor: c, exact: c.Exact()}
	if f.Started && (r.exact || c.Since < 0) {
		r.add(Pos{Seq: SeqStarted}, func() *Frame { return Started(f.Run, f.Agent) })
	}
	for i := range f.Steps {
		r.step(&f.Steps[i])
	}
	if r.exact {
		for _, m := range f.Marks {
			if !m.Type.Terminal() { // in the run's row
				r.add(Pos{Seq: m.Seq}, func() *Frame { return Marked(m.Seq, m.Type, m.Data) })
			}
		}
	}
	if f.Status.Terminal() {
		r.add(Pos{Seq: f.Seq}, f.end)
	}
	slices.SortStableFunc(r.frames, byPosition)
	return r.frames
}

func byPosition(a, b *Frame) int {
	switch {
	case a.Pos.Before(b.Pos):
		return -1
	case b.Pos.Before(a.Pos):
		return 1
	}
	return 0
}

func (f *Facts) end() *Frame {
	if f.Status == lifecycle.RunSucceeded {
		output := f.Output
		if len(output) == 0 {
			output = json.RawMessage("null")
		}
		return Completed(f.Seq, output, f.TokensIn, f.TokensOut, f.CostUSD)
	}
	return Failed(f.Seq, f.ErrorCode, f.ErrorMessage)
}

type replay struct {
	facts  *Facts
	cursor Cursor
	exact  bool
	frames []*Frame
}

// add makes the frame at pos unless the reader has it.
func (r *replay) add(pos Pos, make func() *Frame) {
	if r.cursor.After.Before(pos) {
		r.frames = append(r.frames, make())
	}
}

func (r *replay) step(s *StepFacts) {
	if !r.exact && int64(s.Idx) <= r.cursor.Since {
		return
	}
	r.add(Pos{Seq: s.BeganSeq}, func() *Frame { return StepBegan(s.BeganSeq, s.Idx, s.Kind, s.Name) })
	switch s.Kind {
	case lifecycle.StepLLM:
		if s.ended() {
			r.text(s)
		}
	case lifecycle.StepTool, lifecycle.StepRetrieval:
		if !r.exact {
			return
		}
		if s.CalledSeq > 0 {
			r.add(Pos{Seq: s.CalledSeq}, func() *Frame { return Called(s.CalledSeq, s.Idx, s.Name, s.Input) })
		}
		if s.ended() && s.EndedSeq > 0 {
			if s.Kind == lifecycle.StepRetrieval && r.cursor.After.Before(Pos{Seq: s.EndedSeq}) {
				for _, f := range Retrieved(s.EndedSeq, s.Idx, s.Output) {
					r.add(f.Pos, func() *Frame { return f })
				}
			}
			r.add(Pos{Seq: s.EndedSeq}, func() *Frame {
				return Resulted(s.EndedSeq, s.Idx, s.Status == lifecycle.StepSucceeded, s.Output)
			})
		}
	}
}

// text makes the frames of a model's text and thinking, one for each segment.
func (r *replay) text(s *StepFacts) {
	r.parts(s, !r.exact, func(t Type, pos Pos, text string) {
		if !r.exact && t != LLMThinking {
			return
		}
		if f := Delta(t, pos, s.Idx, text).After(r.cursor.After); f != nil && f.Text != "" {
			r.frames = append(r.frames, f)
		}
	})
}

// parts calls each with the segments of a model's step, and the positions after them.
// thinkingOnly means that the facts do not contain the text.
func (r *replay) parts(s *StepFacts, thinkingOnly bool, each func(t Type, pos Pos, text string)) {
	if len(s.Output) == 0 || r.cursor.After.Seq > s.BeganSeq {
		return
	}
	var said struct {
		Text     string `json:"text"`
		Thinking string `json:"thinking"`
	}
	if json.Unmarshal(s.Output, &said) != nil {
		return // a failed step's output may not be an answer
	}
	pos := Pos{Seq: s.BeganSeq}
	part := func(t Type, text string) {
		if text != "" {
			pos.Offset += int64(len(text))
			each(t, pos, text)
		}
	}
	for i, n := range s.Segments {
		rest, t := &said.Thinking, LLMThinking
		if i%2 == 1 {
			rest, t = &said.Text, LLMDelta
		}
		if thinkingOnly && t == LLMDelta {
			pos.Offset += int64(n) // its length gives the position of the next thinking
			continue
		}
		cut := min(max(int(n), 0), len(*rest))
		part(t, (*rest)[:cut])
		*rest = (*rest)[cut:]
	}
	// If segments are missing or too short, the rest follows in order.
	part(LLMThinking, said.Thinking)
	part(LLMDelta, said.Text)
}
