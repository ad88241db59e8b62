package event

import (
	"encoding/json"
	"slices"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

const retrievedOutput = `{"results":[{"kb":"a","chunks":[{"text":"<é>"}]},{"kb":"b","chunks":[]}]}`

func retrievalFacts() *Facts {
	return &Facts{Run: id.RunID{UUID: id.NewAnywhere()}, Status: lifecycle.RunRunning, Started: true, Seq: 8, Steps: []StepFacts{
		{Idx: 0, Kind: lifecycle.StepRetrieval, Name: "builtin:kb.search", Status: lifecycle.StepSucceeded, BeganSeq: 2, CalledSeq: 3, EndedSeq: 6,
			Input: json.RawMessage(`{"query":"q"}`), Output: json.RawMessage(retrievedOutput)},
		{Idx: 1, Kind: lifecycle.StepRetrieval, Name: "builtin:kb.search", Status: lifecycle.StepAbandoned, BeganSeq: 7, CalledSeq: 8, Output: json.RawMessage(retrievedOutput)},
	}}
}

func shown(frames []*Frame) (out []string) {
	for _, f := range frames {
		out = append(out, f.Pos.String()+" "+string(f.Type))
	}
	return out
}

// open-parts.md, Threads, runs: the frames of a search are tool.called, retrieval.result for each
// base, tool.result. A reader that resumes at any of them gets exactly the rest.
func TestFramesOfARetrieval(t *testing.T) {
	f := retrievalFacts()
	all := Replay(f, Cursor{Full: true})
	want := []string{"1 run.started", "2 step.started", "3 tool.called", "4 retrieval.result", "5 retrieval.result", "6 tool.result", "7 step.started", "8 tool.called"}
	if got := shown(all); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	if got, want := string(all[3].Data()), `{"type":"retrieval.result","idx":0,"kb":"a","chunks":[{"text":"<é>"}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i, at := range all {
		if got := shown(Replay(f, Cursor{After: at.Pos})); !slices.Equal(got, want[i+1:]) {
			t.Errorf("after %s: %v", at.Pos, got)
		}
	}
	live := Retrieved(6, 0, json.RawMessage(retrievedOutput))
	for i, l := range live {
		if string(l.Bytes()) != string(all[3+i].Bytes()) {
			t.Errorf("live %s, replayed %s", l.Bytes(), all[3+i].Bytes())
		}
		if l.Relay() != nil {
			t.Error("it is relayed")
		}
	}
	if got := shown(ReplayRelay(f, Cursor{Full: true, Since: -1})); !slices.Equal(got, []string{"1 run.started", "3 tool.called", "6 tool.result", "8 tool.called"}) {
		t.Errorf("relayed %v", got)
	}
	if got := shown(Replay(f, Cursor{Since: -1})); !slices.Equal(got, []string{"1 run.started", "2 step.started", "7 step.started"}) {
		t.Errorf("since: %v", got)
	}
}

func TestOutputsThatAreNoRetrieval(t *testing.T) {
	for _, output := range []string{``, `null`, `"x"`, `[]`, `{}`, `{"error":"TOOL_FAILED"}`, `{"responded":true}`, `{"results":null}`, `{"results":"x"}`, `{"results":[]}`} {
		if n, frames := CountRetrieved(json.RawMessage(output)), Retrieved(9, 0, json.RawMessage(output)); n != 0 || len(frames) != 0 {
			t.Errorf("%s: %d, %d frames", output, n, len(frames))
		}
	}
	if f := Retrieved(9, 0, json.RawMessage(`{"results":[{}]}`)); len(f) != 1 || string(f[0].Data()) != `{"type":"retrieval.result","idx":0,"kb":null,"chunks":null}` {
		t.Errorf("%s", f[0].Data())
	}
}
