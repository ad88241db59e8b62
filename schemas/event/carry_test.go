package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

func carriedFrames() []*Frame {
	agent := id.AgentID{UUID: id.NewAnywhere()}
	long := json.RawMessage(`{"text":"` + strings.Repeat("é\\u2028", 5000) + `"}`)
	return []*Frame{
		Started(id.RunID{UUID: id.NewAnywhere()}, &agent),
		StepBegan(2, 0, lifecycle.StepLLM, "m \"q\"\n"),
		Delta(LLMDelta, Pos{2, 3}, 0, "é\n"),
		Delta(LLMThinking, Pos{math.MaxInt64, math.MaxInt64}, math.MaxInt32, "\x00\u2028\"\\"),
		Delta(LLMDelta, Pos{7, 1}, 1, "\xff"),
		Called(3, 1, "a.b", json.RawMessage(`{"a":[1,2]}`)),
		Resulted(4, 1, false, long),
		Marked(5, RunWaiting, WaitingData()),
		Marked(5, ApprovalRequired, RequiredData(id.ApprovalID{UUID: id.NewAnywhere()}, "a.b", time.Unix(1, 0))),
		Marked(6, Handoff, HandoffData("a", "b")),
		Marked(6, "run.paused_by_a_later_version", json.RawMessage(`{}`)),
		Completed(8, long, 1, 2, 3),
		Failed(9, "CANCELLED", "by a\r\nperson"),
	}
}

func TestACarriedFrameIsTheFrame(t *testing.T) {
	for _, f := range carriedFrames() {
		b := f.Carry([]byte("before"))
		got, err := Carried(b[len("before"):])
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if got.Type != f.Type || got.Pos != f.Pos || got.Idx != f.Idx || got.Text != f.Text || !bytes.Equal(got.wire, f.wire) {
			t.Errorf("got %q want %q", got.wire, f.wire)
		}
		clear(b)
		if !bytes.Equal(got.wire, f.wire) || got.Text != f.Text {
			t.Errorf("%s shares its bytes", f.Type)
		}
	}
}

func TestWhatIsNoFrameIsNotCarried(t *testing.T) {
	whole := StepBegan(2, 0, lifecycle.StepLLM, "m").Carry(nil)
	for name, b := range map[string][]byte{
		"nothing":             nil,
		"a later version":     append([]byte{carryVersion + 1}, whole[1:]...),
		"half a frame":        whole[:len(whole)-1],
		"no fields at all":    whole[:16],
		"two events in one":   append(whole[:len(whole):len(whole)], "\n\nevent: run.completed\ndata: {}"...),
		"no position":         Beat.Carry(nil),
		"a type of two lines": append([]byte{carryVersion, 3, 'a', '\n', 'b', 1, 0}, '}'),
		"a type too long":     append([]byte{carryVersion, 0xff, 0x7f}, make([]byte, 1<<15)...),
		"text of no length":   {carryVersion, 9, 'l', 'l', 'm', '.', 'd', 'e', 'l', 't', 'a', 1, 1, 0},
		"text before itself":  {carryVersion, 9, 'l', 'l', 'm', '.', 'd', 'e', 'l', 't', 'a', 1, 1, 0, 'a', 'b'},
	} {
		if f, err := Carried(b); !errors.Is(err, ErrNotCarried) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
}

func FuzzCarried(f *testing.F) {
	for _, fr := range carriedFrames() {
		f.Add(fr.Carry(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := Carried(b)
		if err != nil {
			return
		}
		if strings.Count(string(fr.wire), "\n") != 4 || !strings.HasSuffix(string(fr.wire), "\n\n") || !json.Valid(fr.Data()) {
			t.Fatalf("%q is not one event", fr.wire)
		}
		again, err := Carried(fr.Carry(nil))
		if err != nil || !bytes.Equal(again.wire, fr.wire) || again.Pos != fr.Pos || again.Text != fr.Text {
			t.Fatalf("%q comes back as %q, %v", fr.wire, again.wire, err)
		}
	})
}

func BenchmarkCarry(b *testing.B) {
	f := Delta(LLMDelta, Pos{12, 3456}, 2, " token-ish")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Carried(f.Carry(make([]byte, 0, 64))); err != nil {
			b.Fatal(err)
		}
	}
}
