package thread

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

var (
	t0     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tenant = id.TenantID{UUID: id.NewAnywhere()}
	it     = id.ThreadID{UUID: id.NewAnywhere()}
	agent  = id.AgentID{UUID: id.NewAnywhere()}
)

func fresh() State {
	return State{Tenant: tenant, ID: it, Agent: agent, NextSeq: 1, Row: Row{Version: 1, Epoch: 0, Claim: 1}}
}

func newRun() id.RunID { return id.RunID{UUID: id.New(it.Shard())} }

func post(run id.RunID) msg.Post {
	return msg.Post{Run: run, Message: id.MessageID{UUID: id.New(it.Shard())}, AgentID: agent, AgentVersion: 1, Content: "hi", Input: json.RawMessage(`{"text":"hi"}`)}
}

func decide(t testing.TB, s State, m any) decision {
	t.Helper()
	d, err := Machine{}.Decide(s, m, t0)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return d
}

// A Post that names no agent is of the thread's, in the version that the node knows;
// where it knows none, and in threads of the embed API, its sender judges it.
func TestAPostWithoutAnAgent(t *testing.T) {
	knows := func(n int) Machine {
		return Machine{published: func(t id.TenantID, a id.AgentID) int {
			if t != tenant || a != agent {
				return 99
			}
			return n
		}}
	}
	embed, deleted := fresh(), fresh()
	embed.Embed, deleted.Deleted = true, true
	p := post(newRun())
	p.AgentID, p.AgentVersion = id.AgentID{}, 0
	taken := msg.Posted{Run: p.Run, Message: p.Message, Agent: agent}
	for _, c := range []struct {
		name  string
		by    Machine
		in    State
		reply any
		facts int
	}{
		{"the version is known", knows(7), fresh(), taken, 1},
		{"it is not", knows(0), fresh(), msg.Posted{Agent: agent}, 0},
		{"nobody can know", Machine{}, fresh(), msg.Posted{Agent: agent}, 0},
		{"a thread of the embed API", knows(7), embed, msg.Posted{Agent: agent, Embed: true}, 0},
		{"a deleted thread", knows(7), deleted, msg.Posted{Run: p.Run, Message: p.Message}, 1}, // unless it came before
	} {
		d, err := c.by.Decide(c.in, p, t0)
		if err != nil || d.Reply != c.reply || len(d.Facts) != c.facts {
			t.Errorf("%s: %+v, %v", c.name, d, err)
			continue
		}
		if c.facts == 0 && (d.Changed || !reflect.DeepEqual(d.Next, c.in)) {
			t.Errorf("%s: changed to %+v", c.name, d.Next)
		}
		if posted, ok := append(d.Facts, nil)[0].(Posted); ok && (posted.Accepted.AgentID != agent || posted.Accepted.AgentVersion != 7) {
			t.Errorf("%s: accepted %+v", c.name, posted.Accepted)
		}
	}
	d, err := knows(7).Decide(fresh(), p, t0)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := knows(0).Decide(d.Next, p, t0); err != nil || again.Changed || again.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		t.Errorf("it comes again: %+v, %v", again, err)
	}
}

func TestAPostTakesTwoPlacesAndStartsItsRun(t *testing.T) {
	run := newRun()
	p := post(run)
	d := decide(t, fresh(), p)
	if d.Reply != any(msg.Posted{Run: run, Message: p.Message}) || d.Next.NextSeq != 3 || len(d.Facts) != 1 {
		t.Fatalf("%+v", d)
	}
	a := d.Facts[0].(Posted).Accepted
	if a.ThreadSeq != 1 || *a.ThreadID != it || a.Run != run || !a.CreatedAt.Equal(t0) {
		t.Errorf("%+v", a)
	}
	owed := Machine{}.Owed(d.Next)
	if len(owed) != 1 || owed[0].(Next).Run != run || owed[0].(Next).Accepted != a {
		t.Errorf("owes %+v", owed)
	}
}

// A run that is accepted while no other is open, as far as can be known, has its turn
// with that; any other is told.
func TestWhoIsAcceptedWithTheTurn(t *testing.T) {
	f := Machine{turn: []byte("its turn")}
	behind := fresh()
	behind.Queue.Open = []Turn{{newRun(), 1}}
	reading, more, unborn, ended := fresh(), fresh(), fresh(), decide(t, behind, msg.RunEnded{Run: behind.Queue.Open[0].Run}).Next
	reading.Queue.Reading, more.Queue.More, unborn.Unborn = true, true, true
	for _, c := range []struct {
		name string
		in   State
		want string
	}{
		{"nobody is before it", fresh(), "its turn"},
		{"the thread begins with it", unborn, "its turn"},
		{"who was before it has ended", ended, "its turn"},
		{"somebody is before it", behind, ""},
		{"who is before it is being read", reading, ""},
		{"there are more than were read", more, ""},
	} {
		d, err := f.Decide(c.in, post(newRun()), t0)
		if err != nil {
			t.Fatal(err)
		}
		if a := d.Facts[0].(Posted).Accepted; string(a.State) != c.want {
			t.Errorf("%s: accepted with %q", c.name, a.State)
		}
	}
}

func TestRunsGoOneAfterAnother(t *testing.T) {
	s, runs := fresh(), []id.RunID{newRun(), newRun(), newRun()}
	for _, r := range runs {
		s = decide(t, s, post(r)).Next
	}
	if s.NextSeq != 7 {
		t.Errorf("next place %d", s.NextSeq)
	}
	for i, r := range runs {
		owed := Machine{}.Owed(s)
		if len(owed) != 1 || owed[0].(Next).Run != r || (owed[0].(Next).Accepted != nil) != (i == 0) {
			t.Fatalf("turn %d: owes %+v", i, owed)
		}
		d := decide(t, s, msg.RunEnded{Run: r})
		if len(d.Facts) != 0 || d.Next.Row != s.Row {
			t.Fatalf("the end of a run is written: %+v", d)
		}
		s = d.Next
	}
	if owed := (Machine{}).Owed(s); len(owed) != 0 || !s.Queue.empty() {
		t.Errorf("owes %v", owed)
	}
}

func TestAPostThatComesTwiceIsAcceptedOnce(t *testing.T) {
	p := post(newRun())
	s := decide(t, fresh(), p).Next
	for _, ended := range []bool{false, true} {
		if ended {
			s = decide(t, s, msg.RunEnded{Run: p.Run}).Next
		}
		d := decide(t, s, p)
		if d.Changed || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
			t.Errorf("ended %v: %+v", ended, d)
		}
	}
}

func isNotFound(v any) bool {
	err, ok := v.(error)
	return ok && errors.Is(err, problem.NotFound(""))
}

func TestADeletedThread(t *testing.T) {
	a, b := newRun(), newRun()
	early := post(a)
	s := decide(t, decide(t, fresh(), early).Next, post(b)).Next
	by := msg.By{Actor: "apikey:1"}
	d := decide(t, s, msg.DeleteThread{By: by})
	if d.Reply != any(msg.Done{}) || !d.Next.Deleted || len(d.Facts) != 1 || d.Facts[0] != any(Deleted{}) {
		t.Fatalf("%+v", d)
	}
	s = d.Next
	// Whether what comes now came before the deletion, or was it, is for the rows to say.
	late := post(newRun())
	for _, c := range []struct{ m, reply any }{{late, msg.Posted{Run: late.Run, Message: late.Message}}, {msg.DeleteThread{}, msg.Done{}}} {
		d := decide(t, s, c.m)
		if otherwise, ok := again(d.Facts); !ok || !isNotFound(otherwise.Else) || d.Reply != c.reply || !reflect.DeepEqual(d.Next, s) {
			t.Errorf("%T: %+v", c.m, d)
		}
	}
	if d := decide(t, s, early); d.Changed || d.Reply != any(msg.Posted{Run: a, Message: early.Message}) {
		t.Errorf("a post from before the deletion: %+v", d)
	}
	owed := Machine{}.Owed(s)
	if len(owed) != 2 || owed[0] != durable.Effect(Cancel{Run: a, By: by}) || owed[1] != durable.Effect(Cancel{Run: b, By: by}) {
		t.Fatalf("owes %+v", owed)
	}
	s = decide(t, s, msg.RunEnded{Run: b}).Next
	d = decide(t, s, msg.RunEnded{Run: a})
	if len(d.Facts) != 1 || d.Facts[0] != any(Emptied{}) || d.Next.Row.Version != s.Row.Version+1 || !d.Next.Queue.empty() {
		t.Errorf("%+v: what the last run wrote stays", d)
	}
	if d := decide(t, d.Next, msg.RunEnded{Run: a}); len(d.Facts) != 0 {
		t.Error("emptied twice")
	}
}

func TestARefusedPostIsAnswered(t *testing.T) {
	if _, err := (Machine{}).Decide(fresh(), durable.Refused{Msg: post(newRun())}, t0); !errors.Is(err, problem.Invalid("", "")) {
		t.Error(err)
	}
	if _, err := (Machine{}).Decide(fresh(), durable.Refused{Msg: msg.DeleteThread{}}, t0); !errors.Is(err, problem.New(problem.CodeInternal, "")) {
		t.Error(err)
	}
}

func TestWakeLooksAtTheLineAndTellsAgain(t *testing.T) {
	lost, next := newRun(), newRun()
	s := decide(t, decide(t, fresh(), post(lost)).Next, post(next)).Next
	before := Machine{}.Owed(s)[0].Key()
	s = decide(t, s, durable.Wake{}).Next
	read := Machine{}.Owed(s)[0].(ReadLine)
	// Its end was never told; the line says it.
	s = decide(t, s, Line{Look: read.Look, NextSeq: read.NextSeq, Open: []Turn{{next, 3}}}).Next
	owed := Machine{}.Owed(s)
	if len(owed) != 1 || owed[0].(Next).Run != next || owed[0].Key() == before || s.Queue.More {
		t.Fatalf("owes %+v", owed)
	}
	// The same run again is told again too.
	s = decide(t, s, durable.Wake{}).Next
	read = Machine{}.Owed(s)[0].(ReadLine)
	again := Machine{}.Owed(decide(t, s, Line{Look: read.Look, NextSeq: read.NextSeq, Open: []Turn{{next, 3}}}).Next)
	if len(again) != 1 || again[0].Key() == owed[0].Key() {
		t.Errorf("owes %+v", again)
	}
}

func TestALookFromBeforeAnEndDoesNotCount(t *testing.T) {
	run := newRun()
	s := decide(t, decide(t, fresh(), post(run)).Next, durable.Wake{}).Next
	old := Machine{}.Owed(s)[0].(ReadLine)
	s = decide(t, s, msg.RunEnded{Run: run}).Next
	if d := decide(t, s, Line{Look: old.Look, NextSeq: old.NextSeq, Open: []Turn{{run, 1}}}); d.Changed {
		t.Error("a run that has ended is open again")
	}
}

// world is the table of runs behind a thread: what is true whatever the thread
// knows of it.
type world struct {
	open  []Turn // in order
	ended []id.RunID
}

func (w *world) end(run id.RunID) {
	w.open = slices.DeleteFunc(slices.Clone(w.open), func(t Turn) bool { return t.Run == run })
	w.ended = append(w.ended, run)
}

func (w *world) line(e ReadLine) Line {
	n := min(len(w.open), window)
	return Line{Look: e.Look, NextSeq: e.NextSeq, Open: slices.Clone(w.open[:n]), More: len(w.open) > window}
}

// TestLaws drives random histories of posts, ends in any order, reads that take
// their time, wakes and crashes: only the first open run is told to proceed, in
// the order of acceptance; memory is bounded; nothing is forgotten; a post that comes
// again while it is remembered changes nothing and is answered as the first time.
func TestLaws(t *testing.T) {
	long, repeated := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w, s := &world{}, fresh()
		var sent []msg.Post
		var told []id.RunID // whose turn it was, in order
		var reading []Line  // read, not yet heard
		done := map[string]bool{}
		perform := func() {
			for _, e := range (Machine{}).Owed(s) {
				if done[e.Key()] {
					continue
				}
				done[e.Key()] = true
				switch e := e.(type) {
				case ReadLine:
					reading = append(reading, w.line(e))
				case Next:
					if len(w.open) > 0 && e.Run != w.open[0].Run && !slices.Contains(w.ended, e.Run) {
						t.Fatalf("told %s, %s is before it", e.Run, w.open[0].Run)
					}
					if !slices.Contains(told, e.Run) {
						told = append(told, e.Run)
					}
				}
			}
		}
		hear := func(m any) {
			before := s
			d, err := Machine{}.Decide(s, m, t0)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(before, s) {
				t.Fatalf("%T mutated the state", m)
			}
			if d.Changed {
				s = d.Next
			}
			if len(s.Queue.Open) > window || len(s.Queue.Asked) > window {
				t.Fatalf("%d open and %d asked runs in memory", len(s.Queue.Open), len(s.Queue.Asked))
			}
			perform()
		}
		posts := 0
		for range rapid.IntRange(1, 60).Draw(t, "length") {
			switch rapid.IntRange(0, 10).Draw(t, "what") {
			case 0, 1, 2:
				for range rapid.SampledFrom([]int{1, 2, 40, 90}).Draw(t, "burst") {
					run := newRun()
					w.open = append(w.open, Turn{run, s.NextSeq})
					posts++
					sent = append(sent, post(run))
					hear(sent[len(sent)-1])
				}
			case 3, 4, 5:
				if len(w.open) > 0 { // the first one ends
					run := w.open[0].Run
					w.end(run)
					hear(msg.RunEnded{Run: run})
				}
			case 6:
				if len(w.open) > 0 { // somebody cancels one of the line
					run := w.open[rapid.IntRange(0, len(w.open)-1).Draw(t, "cancelled")].Run
					w.end(run)
					hear(msg.RunEnded{Run: run})
				}
			case 7:
				hear(durable.Wake{})
			case 8: // a crash: memory is lost, the row is not
				n := min(len(w.open), window)
				q := Queue{Open: slices.Clone(w.open[:n]), More: len(w.open) > window}
				for _, p := range sent[max(0, len(sent)-window):] {
					q.Asked = append(q.Asked, p.Run)
				}
				s = State{Tenant: s.Tenant, ID: s.ID, NextSeq: s.NextSeq, Row: s.Row, Queue: q}
				reading, done = nil, map[string]bool{}
				hear(durable.Activated{Epoch: s.Row.Claim + 1})
			case 9:
				if len(reading) > 0 {
					line := reading[0]
					reading = reading[1:]
					hear(line)
				}
			case 10: // the answer of one was lost
				if len(sent) > 0 {
					p := sent[len(sent)-1-rapid.IntRange(0, min(len(sent), window)-1).Draw(t, "again")]
					if d, err := (Machine{}).Decide(s, p, t0); err != nil || d.Changed || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) || !reflect.DeepEqual(d.Next, s) {
						t.Fatalf("a post that came again: %+v, %v", d, err)
					}
					repeated++
				}
			}
		}
		if posts > window {
			long++
		}
		// Everybody ends; every run had its turn or ended without one, in order.
		for i := 0; len(w.open) > 0 || len(reading) > 0; i++ {
			if i > 10*posts+100 {
				t.Fatalf("%d runs are stuck, memory %+v", len(w.open), s.Queue)
			}
			if len(reading) > 0 {
				line := reading[0]
				reading = reading[1:]
				hear(line)
				continue
			}
			run := w.open[0].Run
			if !slices.Contains(told, run) {
				t.Fatalf("the first of %d runs was not told: %+v", len(w.open), s.Queue)
			}
			w.end(run)
			hear(msg.RunEnded{Run: run})
		}
		if !s.Queue.empty() {
			t.Fatalf("nothing is open, memory %+v", s.Queue)
		}
	})
	if long == 0 || repeated == 0 {
		t.Errorf("%d lines were longer than the window, %d posts came again: void", long, repeated)
	}
}
