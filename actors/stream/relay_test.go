package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// Each view of a run in the middle of a step, on its node and on another one.
func TestRelayReadersOfAnOpenRun(t *testing.T) {
	for _, c := range []struct {
		name     string
		withheld bool
		cursor   event.Cursor
		want     string // the frames before the run goes on
		then     string
	}{
		{"default: all that is relayed, the step's text so far as one llm.delta", false, event.ReadCursor("", -1, false), "1 run.started ;3 tool.called ;4 tool.result ;5.9 llm.delta abcd;", "5.10 llm.delta e;6 run.completed ;"},
		{"since: the steps after it", false, event.ReadCursor("", 0, false), "5.9 llm.delta abcd;", "5.10 llm.delta e;6 run.completed ;"},
		{"since names the running step: nothing older than the connection", false, event.ReadCursor("", 1, false), "", "5.10 llm.delta e;6 run.completed ;"},
		{"Last-Event-ID before the step", false, event.ReadCursor("3", 7, false), "4 tool.result ;5.9 llm.delta abcd;", "5.10 llm.delta e;6 run.completed ;"},
		{"Last-Event-ID inside the running step: the rest", false, event.ReadCursor("5.4", -1, false), "5.9 llm.delta bcd;", "5.10 llm.delta e;6 run.completed ;"},
		{"Last-Event-ID at its very position: nothing yet", false, event.ReadCursor("5.9", -1, false), "", "5.10 llm.delta e;6 run.completed ;"},
		{"Last-Event-ID of no frame counts as none", false, event.ReadCursor("77", -1, false), "1 run.started ;3 tool.called ;4 tool.result ;5.9 llm.delta abcd;", "5.10 llm.delta e;6 run.completed ;"},
		{"withheld: only the final text arrives", true, event.ReadCursor("", -1, false), "1 run.started ;3 tool.called ;4 tool.result ;", "6 run.completed ;"},
		{"withheld: Last-Event-ID inside the step", true, event.ReadCursor("5.4", -1, false), "", "6 run.completed ;"},
	} {
		for node, where := range []string{"on the run's node", "on another"} {
			t.Run(c.name+" "+where, func(t *testing.T) {
				w := newTown(t, 2, 200*time.Millisecond)
				p := w.newPlay(1)
				p.publish(p.start())
				p.tool()
				p.publish(p.beginLLM())
				l := p.hs.Begin(p.k.tenant, p.k.run, 5, 1, !c.withheld)
				for _, s := range []string{"tt", "t"} {
					l.Thinking(s)
				}
				l.Text("a")
				l.Text("bc")
				l.Thinking("tt")
				l.Text("d")
				cn := newConn(-1)
				w.nodes[node].hs.join = testkit.Patience // else a reader that waits for long begins with the facts alone
				r := openRelay(t, w.nodes[node].hs, p.k, c.cursor, cn)
				if got := list(cn.got()); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				n := len(cn.got())
				l.Text("e")
				p.publish(p.end())
				cn.wait(t)
				r.Gone()
				if got := list(cn.got()[n:]); got != c.then || cn.wasCut() {
					t.Errorf("then %s, want %s", got, c.then)
				}
				testkit.Eventually(t, "nothing stays", w.empty)
			})
		}
	}
}

func TestAnEndedRunIsRelayedAndClosed(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	p.publish(p.beginLLM())
	p.speak(9)
	p.tool()
	p.publish(p.end())
	whole := relayTold(relayOf(p.all))
	for _, c := range []struct {
		cursor event.Cursor
		from   int
	}{{event.ReadCursor("", -1, false), 0}, {event.ReadCursor("", 0, false), 2}, {event.ReadCursor("4", -1, false), 3}, {event.ReadCursor("6", -1, false), 5}} {
		cn := newConn(-1)
		r := openRelay(t, hs, p.k, c.cursor, cn)
		cn.wait(t)
		r.Gone()
		if got := relayTold(cn.got()); !slices.Equal(got, whole[c.from:]) || cn.wasCut() {
			t.Errorf("%+v: %q, want %q", c.cursor, got, whole[c.from:])
		}
	}
	if _, err := hs.OpenRelay(t.Context(), id.TenantID{UUID: id.NewAnywhere()}, p.k.run, event.Cursor{Since: -1}); !errors.Is(err, problem.NotFound("run")) {
		t.Errorf("a foreign tenant: %v", err)
	}
	testkit.Eventually(t, "no hub stays", func() bool { return hubsOf(hs) == 0 })
}

// A relay reader that misses a frame it would not be shown keeps its position.
func TestAGapInTheRelayIsFilled(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	cn := newConn(-1)
	r := openRelay(t, hs, p.k, event.ReadCursor("", -1, false), cn)
	p.commit(func(f *event.Facts) []*event.Frame { // never published
		f.Seq += 2
		f.Marks = append(f.Marks, event.MarkFacts{Seq: f.Seq - 1, Type: event.ApprovalRequired, Data: json.RawMessage(`{}`)},
			event.MarkFacts{Seq: f.Seq, Type: event.RunWaiting, Data: event.WaitingData()})
		return nil
	})
	p.publish(p.beginLLM())
	hs.Begin(p.k.tenant, p.k.run, 4, 0, true).Text("x")
	cn.until(t, "what was missed and the text", has(3))
	p.publish(p.end())
	cn.wait(t)
	r.Gone()
	if got, want := list(cn.got()), "1 run.started ;3 run.waiting ;4.1 llm.delta x;5 run.completed ;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

// A thousand relay readers and one of the platform: each frame is made once in either form, and
// both share the frames of text.
func TestAFrameOfTheRelayIsSharedByItsReaders(t *testing.T) {
	hs, w, _ := setUp(t)
	hs.workers = 4 // possibly more than the machine has cores
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	plain := newConn(-1)
	defer open(t, hs, p.k, event.ReadCursor("", -1, true), plain).Gone()
	conns := make([]*conn, 1000)
	for i := range conns {
		conns[i] = newConn(-1)
		defer openRelay(t, hs, p.k, event.ReadCursor("", -1, false), conns[i]).Gone()
	}
	p.tool()
	p.publish(p.beginLLM())
	hs.Begin(p.k.tenant, p.k.run, 5, 1, true).Text("x")
	all, one := plain.got(), conns[0].got()
	if got, want := list(one), "1 run.started ;3 tool.called ;4 tool.result ;5.1 llm.delta x;"; got != want {
		t.Fatalf("got %s want %s", got, want)
	}
	for i, cn := range conns {
		got := cn.got()
		if len(got) != len(one) || got[1] != one[1] || got[2] != one[2] || got[3] != all[len(all)-1] {
			t.Fatalf("reader %d does not share the frames: %s", i, list(got))
		}
	}
}

// old turns a message into that of a version before the relay.
func old(m []byte) []byte {
	if msg, ok := readMessage(m); ok && msg.op == opBegan {
		return m[:len(m)-1]
	}
	return m
}

// The nodes of a cluster may have two versions. A step of an older node, which does not say whether
// its text is relayed, counts as withheld; the platform's readers are not affected.
func TestStepsOfAnOlderNodeAreWithheld(t *testing.T) {
	for name, joins := range map[string]bool{"the step begins before the reader comes": true, "after": false} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t, 2, time.Second)
			w.ages = true
			p := w.newPlay(1)
			p.publish(p.start())
			begin := func() *speech {
				p.publish(p.beginLLM())
				l := p.hs.Begin(p.k.tenant, p.k.run, 2, 0, true).(*speech)
				l.Text("ab")
				return l
			}
			var l *speech
			if joins {
				l = begin()
			}
			plain, relay := newConn(-1), newConn(-1)
			a := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), plain)
			b := openRelay(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), relay)
			w.nodes[1].mirrored(t, p.k)
			if !joins {
				l = begin()
			}
			l.Text("cd")
			p.publish(p.end())
			plain.wait(t)
			relay.wait(t)
			a.Gone()
			b.Gone()
			if got := text(plain.got(), event.LLMDelta); got != "abcd" {
				t.Errorf("the platform's reader got %q", got)
			}
			if got, want := list(relay.got()), "1 run.started ;3 run.completed ;"; got != want {
				t.Errorf("the relay sent %s, want %s", got, want)
			}
		})
	}
}

// The previous version reads the begin of a step up to the end of its own format.
func TestAnOlderNodeReadsThatAStepBegan(t *testing.T) {
	for _, relayed := range []bool{true, false} {
		b := appendBegan(nil, &speech{seq: 300, idx: 200, relayed: relayed})
		seq, n := binary.Uvarint(b)
		idx, k := binary.Uvarint(b[n:])
		if seq != 300 || idx != 200 || k <= 0 {
			t.Errorf("the old version reads %d, %d", seq, idx)
		}
		if l, ok := readBegan(b); !ok || l.seq != 300 || l.idx != 200 || l.relayed != relayed {
			t.Errorf("this version reads %+v, %v", l, ok)
		}
		if l, ok := readBegan(b[:len(b)-1]); !ok || l.seq != 300 || l.idx != 200 || l.relayed {
			t.Errorf("of an older message it reads %+v, %v", l, ok)
		}
	}
}

// Canaries in three shapes in which content could leak.
const (
	canary      = "CANARY"
	canaryCount = 7531902468
	canaryUUID  = "ca9a27ca-9a27-4a27-8a27-ca9a27ca9a27"
)

// spy is a run in which everything that must not be relayed contains a canary.
type spy struct {
	*play
	frames int
}

// say commits a fact with its own number and publishes it with unknown fields, as a node of another
// version might.
func (s *spy) say(fact func(f *event.Facts, seq int64), t event.Type, fields map[string]any) {
	s.sayMany(1, func(f *event.Facts, seq int64) ([]event.Type, []map[string]any) {
		fact(f, seq)
		return []event.Type{t}, []map[string]any{fields}
	})
}

func (s *spy) sayMany(n int64, fact func(f *event.Facts, seq int64) ([]event.Type, []map[string]any)) {
	frames := s.commit(func(f *event.Facts) (out []*event.Frame) {
		first := f.Seq + 1
		f.Seq += n
		types, fields := fact(f, first)
		for i, t := range types {
			fields[i]["future"], fields[i]["Idx2"] = canary, map[string]any{"text": canary, "code": canary}
			fr, err := event.New(t, event.Pos{Seq: first + int64(i)}, fields[i])
			if err != nil {
				panic(err)
			}
			out = append(out, fr)
		}
		return out
	})
	s.frames += len(frames)
	s.publish(frames)
}

// mark commits a fact that has no row of its own.
func (s *spy) mark(t event.Type, fields map[string]any) {
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	s.say(func(f *event.Facts, seq int64) {
		f.Marks = append(f.Marks, event.MarkFacts{Seq: seq, Type: t, Data: data})
	}, t, fields)
}

func (s *spy) start() {
	agent := id.AgentID{}
	if err := agent.UnmarshalText([]byte(canaryUUID)); err != nil {
		panic(err)
	}
	s.say(func(f *event.Facts, _ int64) {
		f.Status, f.Started, f.Agent = lifecycle.RunRunning, true, &agent
	}, event.RunStarted, map[string]any{"run_id": s.k.run, "agent_id": agent, "status": "running", "agent": canary})
}

// model is a model's step. Its thinking and its calls contain canaries, and so does its text if it is
// not relayed.
func (s *spy) model(relayed bool, words int) {
	var idx int
	var seq int64
	s.say(func(f *event.Facts, n int64) {
		idx, seq = len(f.Steps), n
		f.Steps = append(f.Steps, event.StepFacts{Idx: idx, Kind: lifecycle.StepLLM, Name: canary, Status: lifecycle.StepRunning, BeganSeq: n,
			Relayed: relayed, Input: json.RawMessage(`{"provider":"` + canary + `"}`)})
	}, event.StepStarted, map[string]any{"idx": idx, "kind": "llm", "name": canary})
	l := s.hs.Begin(s.k.tenant, s.k.run, seq, idx, relayed)
	text, thinking := "", ""
	pos := event.Pos{Seq: seq}
	for range words {
		word, t := canary, event.LLMThinking
		if s.r.IntN(3) > 0 {
			t = event.LLMDelta
			if relayed {
				word = "plain "
			}
		}
		pos.Offset += int64(len(word))
		f := event.Delta(t, pos, idx, word)
		if relayed {
			f.AllowRelay()
		}
		s.all = append(s.all, f)
		if t == event.LLMDelta {
			text += word
			l.Text(word)
		} else {
			thinking += word
			l.Thinking(word)
		}
		s.frames++
		s.pause()
	}
	s.commit(func(f *event.Facts) []*event.Frame {
		st := &f.Steps[idx]
		st.Status, st.Segments = lifecycle.StepSucceeded, slices.Clone(l.(*speech).segments)
		st.Output, _ = json.Marshal(map[string]any{"text": text, "thinking": thinking, "calls": []any{map[string]any{"tool": canary, "args": canary}}, "error": canary})
		return nil
	})
}

func (s *spy) call(kind lifecycle.StepKind, ok bool) {
	var idx int
	s.sayMany(2, func(f *event.Facts, seq int64) ([]event.Type, []map[string]any) {
		idx = len(f.Steps)
		f.Steps = append(f.Steps, event.StepFacts{Idx: idx, Kind: kind, Name: canary, Status: lifecycle.StepRunning, BeganSeq: seq, CalledSeq: seq + 1,
			Input: json.RawMessage(`{"args":"` + canary + `"}`)})
		return []event.Type{event.StepStarted, event.ToolCalled}, []map[string]any{{"idx": idx, "kind": kind, "name": canary},
			{"idx": idx, "tool": canary, "args_preview": canary}}
	})
	if kind == lifecycle.StepRetrieval {
		s.mark(event.RetrievalResult, map[string]any{"idx": idx, "kb": canaryUUID, "chunks": []string{canary}})
	}
	s.say(func(f *event.Facts, seq int64) {
		st := &f.Steps[idx]
		st.Status, st.EndedSeq, st.Output = lifecycle.StepSucceeded, seq, json.RawMessage(`{"out":"`+canary+`"}`)
		if !ok {
			st.Status = lifecycle.StepFailed
		}
	}, event.ToolResult, map[string]any{"idx": idx, "ok": ok, "output_preview": canary, "error": canary})
}

func (s *spy) asks() {
	s.mark(event.ApprovalRequired, map[string]any{"approval_id": canaryUUID, "tool": canary, "expires_at": canary})
	s.mark(event.RunWaiting, map[string]any{"status": canary})
	s.mark(event.RunResumed, map[string]any{"approval_id": canaryUUID, "decision": canary, "feedback": canary})
}

func (s *spy) wanders() {
	s.mark(event.Handoff, map[string]any{"from": canary, "to": canary})
	s.mark(event.NodeStarted, map[string]any{"node_id": canary, "node_type": canary})
	s.mark(event.NodeCompleted, map[string]any{"node_id": canary, "node_type": canary, "status": canary, "child_run_id": canaryUUID})
	s.mark("run.annotated", map[string]any{"idx": 1, "ok": true, "text": canary, "code": canary})
	s.mark("llm.redacted", map[string]any{"idx": 1, "text": canary})
}

func (s *spy) finish(ok bool) {
	if !ok {
		s.say(func(f *event.Facts, _ int64) {
			f.Status, f.ErrorCode, f.ErrorMessage = lifecycle.RunFailed, "OUTPUT_INVALID", canary
		}, event.RunFailed, map[string]any{"code": "OUTPUT_INVALID", "message": canary})
		return
	}
	output := map[string]any{"text": "the final text", "json": map[string]any{"text": canary}, "raw": canary}
	s.say(func(f *event.Facts, _ int64) {
		f.Status, f.TokensIn, f.TokensOut, f.CostUSD = lifecycle.RunSucceeded, canaryCount, canaryCount, canaryCount
		f.Output, _ = json.Marshal(output)
	}, event.RunCompleted, map[string]any{"status": "succeeded", "output": output, "tokens_in": int64(canaryCount), "tokens_out": int64(canaryCount), "cost_usd": int64(canaryCount), "text": canary})
}

// 100,000 frames, through the hubs of two nodes and from the facts: no byte of a canary is relayed, and
// everything allowed is.
func TestRelayLeaksNothing(t *testing.T) {
	want := 100_000
	if testing.Short() {
		want = 5_000
	}
	w := newTown(t, 2, time.Second)
	frames, runs, watched := 0, 0, 0
	seen := map[event.Type]int{}
	for frames < want {
		runs++
		s := &spy{play: w.newPlay(uint64(runs))}
		type client struct {
			frames []*event.Frame
			err    error
		}
		clients := make([]client, 4) // two on each node
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				c, r := &clients[i], rand.New(rand.NewPCG(uint64(runs), uint64(i)+20))
				for range r.IntN(100) * i {
					runtime.Gosched()
				}
				for cursor := event.ReadCursor("", -1, false); ; {
					left := -1
					if r.IntN(2) == 0 {
						left = 1 + r.IntN(20)
					}
					cn := newConn(left)
					rd, err := w.nodes[(i+r.IntN(2))%2].hs.OpenRelay(t.Context(), s.k.tenant, s.k.run, cursor)
					if err != nil {
						c.err = err
						return
					}
					rd.Attach(cn)
					select {
					case <-cn.over:
					case <-time.After(time.Minute):
						c.err = fmt.Errorf("the relay does not end: %s", list(cn.got()))
						return
					}
					rd.Gone()
					c.frames = append(c.frames, cn.got()...)
					last := c.frames[len(c.frames)-1]
					if last.Type.Terminal() {
						return
					}
					cursor = event.ReadCursor(last.Pos.String(), -1, false)
				}
			})
		}
		s.start()
		for range 6 {
			s.model(s.r.IntN(2) == 0, 40+s.r.IntN(200))
			switch s.r.IntN(4) {
			case 0:
				s.asks()
			case 1:
				s.wanders()
			}
			s.call([]lifecycle.StepKind{lifecycle.StepTool, lifecycle.StepRetrieval}[s.r.IntN(2)], s.r.IntN(2) == 0)
		}
		s.finish(s.r.IntN(4) > 0)
		wg.Wait()
		frames += s.frames

		facts, err := w.Facts(t.Context(), s.k.tenant, s.k.run, event.Cursor{Full: true, Since: -1})
		if err != nil {
			t.Fatal(err)
		}
		whole := relayTold(relayOf(s.all))
		views := map[string][]*event.Frame{"replayed": event.ReplayRelay(facts, event.Cursor{Full: true, Since: -1})}
		for i, c := range clients {
			if c.err != nil {
				t.Fatal(c.err)
			}
			views[fmt.Sprint("client ", i)] = c.frames
			watched += len(c.frames)
		}
		for name, got := range views {
			if told := relayTold(got); !slices.Equal(told, whole) {
				t.Fatalf("run %d, %s:\n got %q\nwant %q", runs, name, told, whole)
			}
		}
		for i, k := range []int64{0, 3, 7, 99} {
			cursor := event.Cursor{Full: true, Since: k}
			if i == 3 {
				cursor.After = s.all[s.r.IntN(len(s.all))].Pos
			}
			views[fmt.Sprintf("replayed from %+v", cursor)] = event.ReplayRelay(facts, cursor)
		}
		for name, got := range views {
			for _, f := range got {
				seen[f.Type]++
				b := bytes.ToLower(f.Bytes())
				for _, secret := range []string{canary, fmt.Sprint(canaryCount), canaryUUID, "ca9a27"} {
					if bytes.Contains(b, bytes.ToLower([]byte(secret))) {
						t.Fatalf("run %d, %s: %q", runs, name, f.Bytes())
					}
				}
				if f.Text != "" && strings.Trim(f.Text, "plain ") != "" {
					t.Fatalf("run %d, %s: %q", runs, name, f.Bytes())
				}
			}
		}
	}
	for _, typ := range []event.Type{event.RunStarted, event.LLMDelta, event.ToolCalled, event.ToolResult, event.RunWaiting, event.RunResumed, event.RunCompleted, event.RunFailed} {
		if seen[typ] == 0 {
			t.Errorf("no %s was relayed: the test proves nothing", typ)
		}
		delete(seen, typ)
	}
	if len(seen) > 0 || watched < frames/4 {
		t.Errorf("%d frames in %d runs, %d relayed; not of the table: %v", frames, runs, watched, seen)
	}
	t.Logf("%d frames in %d runs, %d relayed", frames, runs, watched)
	testkit.Eventually(t, "nothing stays", w.empty)
}
