package event

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// history is a run as it was seen live, and what is durable of it.
type history struct {
	facts Facts
	live  []*Frame
}

func (h *history) next() int64 { h.facts.Seq++; return h.facts.Seq }

func (h *history) say(f *Frame) { h.live = append(h.live, f) }

// random makes a run of a few steps; open says that it has not ended.
func random(r *rand.Rand, open bool) *history {
	agent := id.AgentID{UUID: id.UUID{1}}
	h := &history{facts: Facts{Run: id.RunID{UUID: id.UUID{2}}, Agent: &agent, Status: lifecycle.RunRunning, Started: true}}
	h.next()
	h.say(Started(h.facts.Run, h.facts.Agent))
	for idx := range 1 + r.IntN(5) {
		s := StepFacts{Idx: idx, BeganSeq: h.next(), Status: lifecycle.StepSucceeded}
		switch r.IntN(4) {
		case 0:
			s.Kind, s.Name, s.Input, s.Output = lifecycle.StepTool, "crm.read", json.RawMessage(`{"id":7}`), json.RawMessage(`{"ok":true}`)
			h.say(StepBegan(s.BeganSeq, idx, s.Kind, s.Name))
			gated := r.IntN(3) == 0
			if gated { // the call comes after the decision, if it comes
				seq := h.next()
				h.facts.Marks = append(h.facts.Marks, MarkFacts{seq, RunWaiting, json.RawMessage(`{"status":"waiting_approval"}`)})
				h.say(Marked(seq, RunWaiting, json.RawMessage(`{"status":"waiting_approval"}`)))
			}
			if !gated || r.IntN(3) > 0 {
				s.CalledSeq = h.next()
				h.say(Called(s.CalledSeq, idx, s.Name, s.Input))
			}
			switch r.IntN(3) {
			case 0:
				s.Status = lifecycle.StepRunning
			case 1:
				s.Status = lifecycle.StepFailed
				fallthrough
			default:
				s.EndedSeq = h.next()
				h.say(Resulted(s.EndedSeq, idx, s.Status == lifecycle.StepSucceeded, s.Output))
			}
		default:
			s.Kind, s.Name, s.Relayed = lifecycle.StepLLM, "m", r.IntN(3) > 0
			h.say(StepBegan(s.BeganSeq, idx, s.Kind, s.Name))
			if r.IntN(6) == 0 {
				s.Status = lifecycle.StepAbandoned
				break
			}
			h.speak(r, &s)
		}
		h.facts.Steps = append(h.facts.Steps, s)
	}
	if !open {
		h.facts.Status, h.facts.Output = lifecycle.RunSucceeded, json.RawMessage(`{"text":"x"}`)
		h.say(Completed(h.next(), h.facts.Output, 0, 0, 0))
	}
	return h
}

func (h *history) speak(r *rand.Rand, s *StepFacts) {
	var texts [2]strings.Builder // thinking, text
	pos := Pos{Seq: s.BeganSeq}
	if r.IntN(2) == 0 { // thinking comes first, if at all
		s.Segments = append(s.Segments, 0)
	}
	for range r.IntN(6) {
		if len(s.Segments) == 0 || r.IntN(3) == 0 {
			s.Segments = append(s.Segments, 0)
		}
		kind := (len(s.Segments) - 1) % 2
		word := []string{"a", "bc", "déf", "😀", " \"q\"\n"}[r.IntN(5)]
		texts[kind].WriteString(word)
		s.Segments[len(s.Segments)-1] += int32(len(word))
		pos.Offset += int64(len(word))
		f := Delta([]Type{LLMThinking, LLMDelta}[kind], pos, s.Idx, word)
		if s.Relayed {
			f.AllowRelay()
		}
		h.say(f)
	}
	out := map[string]any{"text": texts[1].String()}
	if texts[0].Len() > 0 {
		out["thinking"] = texts[0].String()
	}
	s.Output, _ = json.Marshal(out)
}

// told is what frames say: every frame with its position, neighbouring text of
// one kind as one.
func told(frames []*Frame) []string {
	var out []string
	var last *Frame
	for _, f := range frames {
		if f.Text == "" {
			out = append(out, string(f.Bytes()))
			last = nil
			continue
		}
		if last != nil {
			if m, ok := last.Merged(f); ok {
				last = m
				out[len(out)-1] = string(m.Bytes())
				continue
			}
		}
		last = f
		out = append(out, string(f.Bytes()))
	}
	return out
}

func increasing(t *testing.T, frames []*Frame) {
	t.Helper()
	for i := 1; i < len(frames); i++ {
		if !frames[i-1].Pos.Before(frames[i].Pos) {
			t.Fatalf("%v comes after %v", frames[i].Pos, frames[i-1].Pos)
		}
	}
}

func TestACutAnywhereAndReplayIsTheWholeStream(t *testing.T) {
	cuts := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := random(r, seed%3 == 0)
		want := told(h.live)
		for cut := 0; cut <= len(h.live); cut++ {
			c := Cursor{Full: true}
			if cut > 0 {
				c = ReadCursor(h.live[cut-1].Pos.String(), -1, false)
			}
			rest := Replay(&h.facts, c)
			all := append(slices.Clone(h.live[:cut]), rest...)
			increasing(t, all)
			if got := told(all); !slices.Equal(got, want) {
				t.Fatalf("seed %d cut %d:\n got %q\nwant %q", seed, cut, got, want)
			}
			cuts++
		}
	}
	if cuts < 10000 {
		t.Errorf("only %d cuts", cuts)
	}
}

// sample is one run with every kind of step, ended.
func sample() *Facts {
	agent := id.AgentID{UUID: id.UUID{1}}
	return &Facts{
		Run: id.RunID{UUID: id.UUID{2}}, Agent: &agent, Status: lifecycle.RunSucceeded, Started: true, Seq: 12, Output: json.RawMessage(`{"text":"done"}`),
		Steps: []StepFacts{
			{Idx: 0, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepSucceeded, BeganSeq: 2, Segments: []int32{3, 2, 4, 1},
				Output: json.RawMessage(`{"text":"xyz","thinking":"aaabbbb","tool_calls":[]}`)},
			{Idx: 1, Kind: lifecycle.StepTool, Name: "a.b", Status: lifecycle.StepFailed, BeganSeq: 3, CalledSeq: 4, EndedSeq: 6, Input: json.RawMessage(`{}`), Output: json.RawMessage(`{"error":"x"}`)},
			{Idx: 2, Kind: lifecycle.StepTool, Name: "c.d", Status: lifecycle.StepAbandoned, BeganSeq: 8, CalledSeq: 9, EndedSeq: 0, Input: json.RawMessage(`{}`)},
			{Idx: 3, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepAbandoned, BeganSeq: 10},
			{Idx: 4, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepSucceeded, BeganSeq: 11, Segments: []int32{0, 4}, Output: json.RawMessage(`{"text":"done"}`)},
		},
		Marks: []MarkFacts{
			{5, RunWaiting, json.RawMessage(`{"status":"waiting_approval"}`)},
			{7, RunResumed, json.RawMessage(`{}`)},
			{12, RunCompleted, json.RawMessage(`{}`)},
		},
	}
}

func list(frames []*Frame) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "%s %s %s\n", f.Pos, f.Type, f.Text)
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

func TestReadModes(t *testing.T) {
	queued := &Facts{Status: lifecycle.RunQueued}
	cancelled := &Facts{Status: lifecycle.RunCancelled, Seq: 1, ErrorCode: "CANCELLED"}
	running := sample()
	running.Status, running.Seq = lifecycle.RunRunning, 11
	running.Steps[4].Status, running.Steps[4].Output = lifecycle.StepRunning, nil
	for _, c := range []struct {
		name   string
		facts  *Facts
		cursor Cursor
		want   string
	}{
		{"default: run.started first, steps, thinking, terminal", sample(), ReadCursor("", -1, false),
			"1 run.started\n2 step.started\n2.3 llm.thinking aaa\n2.9 llm.thinking bbbb\n3 step.started\n8 step.started\n10 step.started\n11 step.started\n12 run.completed\n"},
		{"since: steps after it, no run.started", sample(), ReadCursor("", 2, false), "10 step.started\n11 step.started\n12 run.completed\n"},
		{"since is a number, steps are whole", sample(), ReadCursor("", 2.7, false), "10 step.started\n11 step.started\n12 run.completed\n"},
		{"since beyond the steps", sample(), ReadCursor("", 1e30, false), "12 run.completed\n"},
		{"since that is no number at all", sample(), ReadCursor("12", math.NaN(), false), ""},
		{"Last-Event-ID inside thinking", sample(), ReadCursor("2.4", -1, false),
			"2.5 llm.delta y\n2.9 llm.thinking bbbb\n2.10 llm.delta z\n3 step.started\n4 tool.called\n5 run.waiting\n6 tool.result\n7 run.resumed\n8 step.started\n9 tool.called\n10 step.started\n11 step.started\n11.4 llm.delta done\n12 run.completed\n"},
		{"Last-Event-ID goes before since and full", sample(), ReadCursor("11.1", 0, true), "11.4 llm.delta one\n12 run.completed\n"},
		{"Last-Event-ID is the terminal frame's", sample(), ReadCursor("12", -1, false), ""},
		{"Last-Event-ID of no frame counts as none", sample(), ReadCursor("13", 3, false), "11 step.started\n12 run.completed\n"},
		{"full", sample(), ReadCursor("", -1, true),
			"1 run.started\n2 step.started\n2.3 llm.thinking aaa\n2.5 llm.delta xy\n2.9 llm.thinking bbbb\n2.10 llm.delta z\n3 step.started\n4 tool.called\n5 run.waiting\n6 tool.result\n7 run.resumed\n8 step.started\n9 tool.called\n10 step.started\n11 step.started\n11.4 llm.delta done\n12 run.completed\n"},
		{"queued: nothing", queued, ReadCursor("", -1, true), ""},
		{"queued: an id it cannot have had", queued, ReadCursor("1", -1, false), ""},
		{"cancelled while queued: only the terminal frame", cancelled, ReadCursor("", -1, false), "1 run.failed\n"},
		{"running: its unfinished step has begun", running, ReadCursor("", 3, false), "11 step.started\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Replay(c.facts, c.cursor)
			increasing(t, got)
			if list(got) != c.want {
				t.Errorf("got\n%swant\n%s", list(got), c.want)
			}
		})
	}
}

func TestReplayedFramesAreTheLiveOnes(t *testing.T) {
	f := sample()
	byPos := map[Pos]string{}
	for _, g := range Replay(f, Cursor{Full: true}) {
		byPos[g.Pos] = string(g.Bytes())
	}
	for _, g := range []*Frame{Started(f.Run, f.Agent), StepBegan(3, 1, lifecycle.StepTool, "a.b"), Called(4, 1, "a.b", json.RawMessage(`{}`)),
		Resulted(6, 1, false, json.RawMessage(`{"error":"x"}`)), Marked(5, RunWaiting, json.RawMessage(`{"status":"waiting_approval"}`)),
		Completed(12, json.RawMessage(`{"text":"done"}`), 0, 0, 0)} {
		if byPos[g.Pos] != string(g.Bytes()) {
			t.Errorf("%v: replayed %q, live %q", g.Pos, byPos[g.Pos], g.Bytes())
		}
	}
}

func TestSegmentsThatDoNotFitLoseNoText(t *testing.T) {
	for _, segments := range [][]int32{nil, {0}, {1, 1}, {100, 100}, {-1, 2}} {
		f := &Facts{Status: lifecycle.RunRunning, Started: true, Seq: 2, Steps: []StepFacts{{Kind: lifecycle.StepLLM, Status: lifecycle.StepSucceeded,
			BeganSeq: 2, Segments: segments, Output: json.RawMessage(`{"text":"hello","thinking":"hm"}`)}}}
		var thinking, text string
		frames := Replay(f, Cursor{Full: true})
		increasing(t, frames)
		for _, g := range frames {
			switch g.Type {
			case LLMThinking:
				thinking += g.Text
			case LLMDelta:
				text += g.Text
			}
		}
		if thinking != "hm" || text != "hello" {
			t.Errorf("%v: %q %q", segments, thinking, text)
		}
	}
}

func FuzzLastEventID(f *testing.F) {
	for _, s := range []string{"", "1", "2.4", "2.99999", "12", "13", "999999999999999999.1", "-1", "1.", "x", "2.4\n"} {
		f.Add(s, -1.0)
	}
	f.Add("", math.Inf(1))
	f.Fuzz(func(t *testing.T, s string, since float64) {
		facts := sample()
		c := ReadCursor(s, since, false)
		frames := Replay(facts, c)
		increasing(t, frames)
		within := c.Within(facts)
		if within.After == (Pos{}) {
			if string(frames[len(frames)-1].Bytes()) == "" || !frames[len(frames)-1].Type.Terminal() {
				t.Fatal("the terminal frame is missing")
			}
			return
		}
		for _, g := range frames {
			if !within.After.Before(g.Pos) {
				t.Fatalf("%v is not after %v", g.Pos, within.After)
			}
			if g.Text != "" && strings.ContainsRune(g.Text, '\ufffd') {
				t.Fatalf("%q cuts a character", g.Text)
			}
		}
	})
}
