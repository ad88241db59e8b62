package event

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// relayOf is what a reader of the relay sees of live frames.
func relayOf(frames []*Frame) (out []*Frame) {
	for _, f := range frames {
		if f = f.Relay(); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// said is what frames of the relay say, the text of a step as one: where it is cut
// says nothing.
func said(frames []*Frame) (out []string) {
	var last *Frame
	for _, f := range frames {
		if last != nil && f.Text != "" && last.Text != "" && last.Pos.Seq == f.Pos.Seq {
			f = Delta(f.Type, f.Pos, f.Idx, last.Text+f.Text)
			out = out[:len(out)-1]
		}
		last = f
		out = append(out, string(f.Bytes()))
	}
	return out
}

// service.md, Embed relay, row by row: live, of another node, and replayed.
func TestTheRelaysTable(t *testing.T) {
	agent := id.AgentID{UUID: id.UUID{1}}
	run := id.RunID{UUID: id.UUID{2}}
	step := func(s StepFacts) *Facts {
		return &Facts{Run: run, Status: lifecycle.RunRunning, Seq: 9, Steps: []StepFacts{s}}
	}
	mark := func(t Type, data json.RawMessage) *Facts {
		return &Facts{Run: run, Status: lifecycle.RunRunning, Seq: 9, Marks: []MarkFacts{{6, t, data}}}
	}
	tool := StepFacts{Idx: 3, Kind: lifecycle.StepTool, Name: "crm.read", Status: lifecycle.StepRunning, BeganSeq: 4, CalledSeq: 5, Input: json.RawMessage(`{"a":1}`)}
	result := tool
	result.CalledSeq, result.EndedSeq, result.Status, result.Output = 0, 6, lifecycle.StepSucceeded, json.RawMessage(`{"b":2}`)
	failed := result
	failed.Status = lifecycle.StepFailed
	lookUp := tool
	lookUp.Kind = lifecycle.StepRetrieval
	llm := StepFacts{Idx: 0, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepSucceeded, BeganSeq: 2, Segments: []int32{3, 2}, Output: json.RawMessage(`{"thinking":"hmm","text":"<é"}`), Relayed: true}
	withheld := llm
	withheld.Relayed = false
	answered := func(output string) *Facts {
		return &Facts{Run: run, Status: lifecycle.RunSucceeded, Seq: 7, Output: json.RawMessage(output), TokensIn: 1, TokensOut: 2, CostUSD: 3}
	}
	answer := func(output string) *Frame { return Completed(7, json.RawMessage(output), 1, 2, 3) }
	expires := time.Unix(1, 0)
	for _, c := range []struct {
		name  string
		live  *Frame
		facts *Facts
		want  string
	}{
		{"run.started { run_id, status }", Started(run, &agent), &Facts{Run: run, Agent: &agent, Started: true, Seq: 1, Status: lifecycle.RunRunning},
			"event: run.started\nid: 1\ndata: {\"type\":\"run.started\",\"run_id\":\"02000000-0000-0000-0000-000000000000\",\"status\":\"running\"}\n\n"},
		{"llm.delta { idx, text }", Delta(LLMDelta, Pos{2, 6}, 0, "<é").AllowRelay(), step(llm),
			"event: llm.delta\nid: 2.6\ndata: {\"type\":\"llm.delta\",\"idx\":0,\"text\":\"<é\"}\n\n"},
		{"llm.delta is withheld when the agent has output guardrails", Delta(LLMDelta, Pos{2, 6}, 0, "<é"), step(withheld), ""},
		{"tool.called { idx } (no name, no arguments)", Called(5, 3, "crm.read", json.RawMessage(`{"a":1}`)), step(tool),
			"event: tool.called\nid: 5\ndata: {\"type\":\"tool.called\",\"idx\":3}\n\n"},
		{"a look-up in a knowledge base is called like a tool", Called(5, 3, "kb.search", json.RawMessage(`{"query":1}`)), step(lookUp),
			"event: tool.called\nid: 5\ndata: {\"type\":\"tool.called\",\"idx\":3}\n\n"},
		{"tool.result { idx, ok } (no output)", Resulted(6, 3, true, json.RawMessage(`{"b":2}`)), step(result),
			"event: tool.result\nid: 6\ndata: {\"type\":\"tool.result\",\"idx\":3,\"ok\":true}\n\n"},
		{"tool.result of a failed call", Resulted(6, 3, false, json.RawMessage(`{"b":2}`)), step(failed),
			"event: tool.result\nid: 6\ndata: {\"type\":\"tool.result\",\"idx\":3,\"ok\":false}\n\n"},
		{"run.waiting {}", Marked(6, RunWaiting, WaitingData()), mark(RunWaiting, WaitingData()),
			"event: run.waiting\nid: 6\ndata: {\"type\":\"run.waiting\"}\n\n"},
		{"run.resumed {}", Marked(6, RunResumed, ResumedData(id.ApprovalID{}, lifecycle.ActionApprove)), mark(RunResumed, ResumedData(id.ApprovalID{}, lifecycle.ActionApprove)),
			"event: run.resumed\nid: 6\ndata: {\"type\":\"run.resumed\"}\n\n"},
		{"run.completed { status, text }", answer(`{"text":"It is <b>.","json":{"n":1}}`), answered(`{"text":"It is <b>.","json":{"n":1}}`),
			"event: run.completed\nid: 7\ndata: {\"type\":\"run.completed\",\"status\":\"succeeded\",\"text\":\"It is <b>.\"}\n\n"},
		{"text is the final assistant text, as short as it may be", answer(`{"text":""}`), answered(`{"text":""}`),
			"event: run.completed\nid: 7\ndata: {\"type\":\"run.completed\",\"status\":\"succeeded\",\"text\":\"\"}\n\n"},
		{"or null: an output without text", answer(`{"json":{"text":"x"}}`), answered(`{"json":{"text":"x"}}`),
			"event: run.completed\nid: 7\ndata: {\"type\":\"run.completed\",\"status\":\"succeeded\",\"text\":null}\n\n"},
		{"or null: a text that is none", answer(`{"text":{"a":1}}`), answered(`{"text":{"a":1}}`),
			"event: run.completed\nid: 7\ndata: {\"type\":\"run.completed\",\"status\":\"succeeded\",\"text\":null}\n\n"},
		{"or null: no output", answer(`null`), answered(``),
			"event: run.completed\nid: 7\ndata: {\"type\":\"run.completed\",\"status\":\"succeeded\",\"text\":null}\n\n"},
		{"run.failed { code }", Failed(7, "CANCELLED", "The run was cancelled by Kim."), &Facts{Run: run, Status: lifecycle.RunCancelled, Seq: 7, ErrorCode: "CANCELLED", ErrorMessage: "The run was cancelled by Kim."},
			"event: run.failed\nid: 7\ndata: {\"type\":\"run.failed\",\"code\":\"CANCELLED\"}\n\n"},
		{"not relayed: step.started", StepBegan(4, 3, lifecycle.StepTool, "crm.read"), step(StepFacts{Idx: 3, Kind: lifecycle.StepTool, BeganSeq: 4}), ""},
		{"not relayed: llm.thinking", Delta(LLMThinking, Pos{2, 3}, 0, "hmm").AllowRelay(), step(StepFacts{Kind: lifecycle.StepLLM, Status: lifecycle.StepSucceeded, BeganSeq: 2, Output: json.RawMessage(`{"thinking":"hmm"}`), Relayed: true}), ""},
		{"not relayed: approval.required", Marked(6, ApprovalRequired, RequiredData(id.ApprovalID{}, "a.b", expires)), mark(ApprovalRequired, RequiredData(id.ApprovalID{}, "a.b", expires)), ""},
		{"not relayed: retrieval.result", Marked(6, RetrievalResult, json.RawMessage(`{"idx":1,"kb":"x","chunks":[]}`)), mark(RetrievalResult, json.RawMessage(`{}`)), ""},
		{"not relayed: node.started", Marked(6, NodeStarted, json.RawMessage(`{"node_id":"x"}`)), mark(NodeStarted, json.RawMessage(`{}`)), ""},
		{"not relayed: node.completed", Marked(6, NodeCompleted, json.RawMessage(`{"node_id":"x"}`)), mark(NodeCompleted, json.RawMessage(`{}`)), ""},
		{"not relayed: handoff", Marked(6, Handoff, HandoffData("a", "b")), mark(Handoff, HandoffData("a", "b")), ""},
		{"not relayed: what a later version says", Marked(6, "run.annotated", json.RawMessage(`{"text":"x","idx":1}`)), mark("run.annotated", json.RawMessage(`{}`)), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			carried, err := Carried(c.live.Carry(nil))
			if err != nil {
				t.Fatal(err)
			}
			if c.live.allowed {
				carried.AllowRelay() // as the mirror does
			}
			for name, frames := range map[string][]*Frame{"live": relayOf([]*Frame{c.live}), "of another node": relayOf([]*Frame{carried}), "replayed": ReplayRelay(c.facts, Cursor{Since: -1, Full: true})} {
				if got := strings.Join(said(frames), ""); got != c.want {
					t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
				}
			}
			if r := c.live.Relay(); r != nil && (r.Pos != c.live.Pos || r.Relay() != r || r.Type != c.live.Type) {
				t.Errorf("%v %s at %v of one at %v", r.Type, r.Bytes(), r.Pos, c.live.Pos)
			}
		})
	}
	if Beat.Relay() != Beat {
		t.Error("heartbeat {}: there is none")
	}
}

// Every type of the platform's stream is either relayed or listed as not relayed: add a new
// type to this list.
func TestWhatBecomesOfEveryType(t *testing.T) {
	becomes := map[Type]bool{
		RunStarted: true, LLMDelta: true, ToolCalled: true, ToolResult: true, RunWaiting: true, RunResumed: true, RunCompleted: true, RunFailed: true, Heartbeat: true,
		StepStarted: false, LLMThinking: false, RetrievalResult: false, ApprovalRequired: false, NodeStarted: false, NodeCompleted: false, Handoff: false,
	}
	for _, typ := range Types {
		want, listed := becomes[typ]
		f := Marked(3, typ, json.RawMessage(`{"run_id":"02000000-0000-0000-0000-000000000000","idx":1,"ok":true,"text":"x","status":"s","output":{"text":"x"},"code":"C"}`))
		f.AllowRelay()
		if got := f.Relay() != nil; !listed || got != want {
			t.Errorf("%s: relayed %v, listed %v", typ, got, listed)
		}
	}
	if len(becomes) != len(Types) {
		t.Errorf("%d types are listed, %d there are", len(becomes), len(Types))
	}
}

// A node of another version may use other fields in a known type. The end of a run is always
// relayed.
func TestFieldsThatAreNotAsTheyWere(t *testing.T) {
	for _, c := range []struct{ t, data, want string }{
		{"run.started", `{"run_id":7}`, ``},
		{"tool.called", `{"idx":"one"}`, ``},
		{"tool.result", `{"idx":1,"ok":"yes"}`, ``},
		{"run.waiting", `{"for":"kim"}`, `{"type":"run.waiting"}`},
		{"run.completed", `{"output":"said"}`, `{"type":"run.completed","status":"succeeded","text":null}`},
		{"run.completed", `{}`, `{"type":"run.completed","status":"succeeded","text":null}`},
		{"run.failed", `{"code":{"a":1},"message":"m"}`, `{"type":"run.failed","code":"INTERNAL"}`},
	} {
		got := ""
		if r := Marked(3, Type(c.t), json.RawMessage(c.data)).Relay(); r != nil {
			got = string(r.Data())
		}
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.t, c.data, got, c.want)
		}
	}
}

func TestARelayedFrameIsMadeOnce(t *testing.T) {
	for range 200 {
		f := Called(5, 3, "crm.read", json.RawMessage(`{"a":1}`))
		made := make([]*Frame, 8)
		var wg sync.WaitGroup
		for i := range made {
			wg.Go(func() { made[i] = f.Relay() })
		}
		wg.Wait()
		for _, r := range made {
			if r != made[0] {
				t.Fatal("two readers are given different frames")
			}
		}
	}
}

// Frames made from others stay withheld unless all of them may be relayed.
func TestPartsOfTextAreRelayedAsTheWholeIs(t *testing.T) {
	text := func(end int64, relayed bool) *Frame {
		f := Delta(LLMDelta, Pos{2, end}, 0, "abcd")
		if relayed {
			f.AllowRelay()
		}
		return f
	}
	for _, c := range []struct{ first, second bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		m, ok := text(4, c.first).Merged(text(8, c.second))
		if !ok || (m.Relay() != nil) != (c.first && c.second) {
			t.Errorf("%+v: merged %v, relayed %v", c, ok, m.Relay() != nil)
		}
		if tail := text(4, c.first).After(Pos{2, 2}); tail.Text != "cd" || (tail.Relay() != nil) != c.first {
			t.Errorf("%+v: the rest %q is relayed: %v", c, tail.Text, tail.Relay() != nil)
		}
	}
}

func TestARelayCutAnywhereAndResumedIsTheWholeRelay(t *testing.T) {
	cuts, withheld := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := random(r, seed%3 == 0)
		live := relayOf(h.live)
		want := said(live)
		for _, s := range h.facts.Steps {
			if s.Kind == lifecycle.StepLLM && !s.Relayed && len(s.Output) > 15 {
				withheld++
			}
		}
		for cut := 0; cut <= len(live); cut++ {
			c := Cursor{Since: -1, Full: true}
			if cut > 0 {
				c = ReadCursor(live[cut-1].Pos.String(), float64(r.IntN(5)-1), true)
			}
			all := append(slices.Clone(live[:cut]), ReplayRelay(&h.facts, c)...)
			increasing(t, all)
			if got := said(all); !slices.Equal(got, want) {
				t.Fatalf("seed %d cut %d:\n got %q\nwant %q", seed, cut, got, want)
			}
			cuts++
		}
	}
	if cuts < 10000 || withheld < 500 {
		t.Errorf("%d cuts, %d withheld texts: void", cuts, withheld)
	}
}

func TestSinceOfTheRelay(t *testing.T) {
	facts := sample()
	facts.Steps[0].Relayed, facts.Steps[4].Relayed = true, true
	running := sample()
	running.Status, running.Seq = lifecycle.RunRunning, 7
	running.Steps = running.Steps[:2]
	for _, c := range []struct {
		name   string
		facts  *Facts
		cursor Cursor
		want   string
	}{
		{"default replays all", facts, ReadCursor("", -1, true),
			"1 run.started\n2.10 llm.delta xyz\n4 tool.called\n5 run.waiting\n6 tool.result\n7 run.resumed\n9 tool.called\n11.4 llm.delta done\n12 run.completed\n"},
		{"since leaves out what belongs to the steps up to it", facts, ReadCursor("", 0, true),
			"4 tool.called\n5 run.waiting\n6 tool.result\n7 run.resumed\n9 tool.called\n11.4 llm.delta done\n12 run.completed\n"},
		{"and what happened before the first of the others began", facts, ReadCursor("", 1, true), "9 tool.called\n11.4 llm.delta done\n12 run.completed\n"},
		{"since names the last step", facts, ReadCursor("", 4, true), "12 run.completed\n"},
		{"since beyond the steps of a run that goes on", running, ReadCursor("", 1, true), ""},
		{"Last-Event-ID goes before since", facts, ReadCursor("9", 4, true), "11.4 llm.delta done\n12 run.completed\n"},
		{"Last-Event-ID inside a text", facts, ReadCursor("2.4", -1, true),
			"2.10 llm.delta yz\n4 tool.called\n5 run.waiting\n6 tool.result\n7 run.resumed\n9 tool.called\n11.4 llm.delta done\n12 run.completed\n"},
		{"Last-Event-ID of a frame that is not relayed", facts, ReadCursor("8", -1, true), "9 tool.called\n11.4 llm.delta done\n12 run.completed\n"},
		{"Last-Event-ID of no frame counts as none", facts, ReadCursor("13", 3, true), "11.4 llm.delta done\n12 run.completed\n"},
		{"Last-Event-ID is the terminal frame's", facts, ReadCursor("12", -1, true), ""},
		{"queued: nothing", &Facts{Status: lifecycle.RunQueued}, ReadCursor("", -1, true), ""},
		{"cancelled while queued: only the terminal frame", &Facts{Status: lifecycle.RunCancelled, Seq: 1, ErrorCode: "CANCELLED"}, ReadCursor("", -1, true), "1 run.failed\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ReplayRelay(c.facts, c.cursor)
			increasing(t, got)
			if list(got) != c.want {
				t.Errorf("got\n%swant\n%s", list(got), c.want)
			}
		})
	}
}

func BenchmarkRelay(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if Resulted(6, 3, true, json.RawMessage(`{"b":2}`)).Relay() == nil {
			b.Fatal("not relayed")
		}
	}
}
