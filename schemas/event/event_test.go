package event

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPosOrderAndText(t *testing.T) {
	order := []Pos{{}, {1, 0}, {2, 0}, {2, 1}, {2, 17}, {3, 0}}
	for i := range order {
		for j := range order {
			if got := order[i].Before(order[j]); got != (i < j) {
				t.Errorf("%v before %v = %v", order[i], order[j], got)
			}
		}
		if i > 0 {
			p, ok := ParsePos(order[i].String())
			if !ok || p != order[i] {
				t.Errorf("%v reads back as %v, %v", order[i], p, ok)
			}
		}
	}
	for _, s := range []string{"", "0", "-1", "1.", ".1", "1.0", "01", "1.01", "1.2.3", "1 ", "9999999999999999999", "x", "1.x"} {
		if p, ok := ParsePos(s); ok {
			t.Errorf("ParsePos(%q) = %v", s, p)
		}
	}
}

func TestFrameBytes(t *testing.T) {
	f, err := New(StepStarted, Pos{2, 0}, struct {
		Idx  int    `json:"idx"`
		Kind string `json:"kind"`
	}{0, "llm"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(f.Bytes()), "event: step.started\nid: 2\ndata: {\"type\":\"step.started\",\"idx\":0,\"kind\":\"llm\"}\n\n"; got != want {
		t.Errorf("got %q want %q", got, want)
	}
	empty, _ := New(RunWaiting, Pos{3, 0}, struct{}{})
	if got, want := string(empty.Data()), `{"type":"run.waiting"}`; got != want {
		t.Errorf("got %q want %q", got, want)
	}
	d := Delta(LLMDelta, Pos{2, 5}, 0, "hello")
	if got, want := string(d.Bytes()), "event: llm.delta\nid: 2.5\ndata: {\"type\":\"llm.delta\",\"idx\":0,\"text\":\"hello\"}\n\n"; got != want {
		t.Errorf("got %q want %q", got, want)
	}
	if got := string(Beat.Bytes()); strings.Contains(got, "id:") {
		t.Errorf("a heartbeat has an id: %q", got)
	}
}

func TestMergedOnlyNeighboursOfOneStepAndKind(t *testing.T) {
	a, b := Delta(LLMDelta, Pos{2, 3}, 0, "añ"), Delta(LLMDelta, Pos{2, 5}, 0, "bc")
	m, ok := a.Merged(b)
	if !ok || m.Text != "añbc" || m.Pos != (Pos{2, 5}) {
		t.Fatalf("merged %+v %v", m, ok)
	}
	for name, n := range map[string]*Frame{
		"another kind": Delta(LLMThinking, Pos{2, 5}, 0, "bc"),
		"another step": Delta(LLMDelta, Pos{3, 2}, 1, "bc"),
		"a gap":        Delta(LLMDelta, Pos{2, 6}, 0, "bc"),
	} {
		if _, ok := a.Merged(n); ok {
			t.Errorf("merged with %s", name)
		}
	}
}

func TestAfterCutsText(t *testing.T) {
	f := Delta(LLMDelta, Pos{2, 10}, 0, "abcdef") // bytes 4..10
	for _, c := range []struct {
		at   Pos
		want string
	}{{Pos{1, 9}, "abcdef"}, {Pos{2, 0}, "abcdef"}, {Pos{2, 4}, "abcdef"}, {Pos{2, 7}, "def"}, {Pos{2, 9}, "f"}} {
		if got := f.After(c.at); got == nil || got.Text != c.want || got.Pos != f.Pos {
			t.Errorf("after %v: %+v want %q", c.at, got, c.want)
		}
	}
	for _, at := range []Pos{{2, 10}, {2, 11}, {3, 0}} {
		if got := f.After(at); got != nil {
			t.Errorf("after %v: %+v", at, got)
		}
	}
}

// A frame has the characters of what it holds, live and as a mark; only what may end a line is escaped.
func TestFramesHoldTheirTextsAsTheyAre(t *testing.T) {
	const text = "<b>A & B</b>\u2028\u2029\n"
	const want = `<b>A & B</b>\u2028\u2029\n`
	output := json.RawMessage(`{"text":"<b>A & B</b>` + "\u2028\u2029" + `\n"}`)
	for name, f := range map[string]*Frame{
		"run.failed":       Failed(7, "MODEL_ERROR", text),
		"run.completed":    Completed(7, output, 1, 2, 3),
		"its relay":        Completed(7, output, 1, 2, 3).Relay(),
		"handoff":          Marked(7, Handoff, HandoffData(text, "b")),
		"llm.delta":        Delta(LLMDelta, Pos{2, 40}, 0, text),
		"retrieval.result": Retrieved(7, 0, json.RawMessage(`{"results":[{"kb":"a","chunks":[`+string(output)+`]}]}`))[0],
	} {
		if got := string(f.Data()); !strings.Contains(got, `"`+want+`"`) || !json.Valid(f.Data()) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func FuzzDeltaIsTheJSONOfItsText(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\\n\r\t\x00\x1f", "é\u2028\u2029😀", "\xff\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fr := Delta(LLMDelta, Pos{1, 1}, 3, s)
		var got struct {
			Type string `json:"type"`
			Idx  int    `json:"idx"`
			Text string `json:"text"`
		}
		if err := json.Unmarshal(fr.Data(), &got); err != nil {
			t.Fatalf("%q: %v", fr.Bytes(), err)
		}
		if want := strings.ToValidUTF8(s, ""); strings.ReplaceAll(got.Text, "\ufffd", "") != strings.ReplaceAll(want, "\ufffd", "") || got.Idx != 3 {
			t.Fatalf("%q reads as %q", s, got.Text)
		}
		if strings.Count(string(fr.Bytes()), "\n") != 4 {
			t.Fatalf("%q breaks the frame", s)
		}
	})
}

func BenchmarkDelta(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Delta(LLMDelta, Pos{12, 3456}, 2, " token-ish")
	}
}
