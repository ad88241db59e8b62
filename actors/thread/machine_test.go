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
	"agentsvc/cluster"
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
	return State{Tenant: tenant, ID: it, Agent: agent, NextSeq: 1}
}

func newRun() id.RunID { return id.RunID{UUID: id.New(it.Shard())} }

func post(run id.RunID) msg.Post {
	return msg.Post{Run: run, Message: id.MessageID{UUID: id.New(it.Shard())}, Content: "hi", Input: json.RawMessage(`{"text":"hi"}`)}
}

// remembers is the machine of a node that remembers which version of the agent is
// published; 0: it does not.
func remembers(version int) Machine {
	return Machine{published: func(t id.TenantID, a id.AgentID) int {
		if t != tenant || a != agent {
			return 99
		}
		return version
	}}
}

func decide(t testing.TB, s State, m any) decision {
	t.Helper()
	d, err := remembers(1).Decide(s, m, t0)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return d
}

// A message is answered by the version of the thread's agent that is published. What the
// node remembers is enough; else it is read, by the question that also asks how a thread
// of the embed API stands.
func TestTheVersionThatAnswers(t *testing.T) {
	embed, unborn := embedded(), embedded()
	unborn.Unborn = true
	p := post(newRun())
	taken := msg.Posted{Run: p.Run, Message: p.Message}
	begins := p
	begins.New, begins.Visitor = true, &msg.Visitor{Agent: agent, CreatedBy: embed.CreatedBy}
	silent := problem.New(problem.CodeAgentNotPublished, "")
	for _, c := range []struct {
		name     string
		by       Machine
		in       State
		m        msg.Post
		question any // nil: it is accepted at once
		version  int
	}{
		{"the version is known", remembers(7), fresh(), p, nil, 7},
		{"it is not", remembers(0), fresh(), p, Admission{Run: p.Run, Agent: agent}, 5},
		{"nobody can know", Machine{}, fresh(), p, Admission{Run: p.Run, Agent: agent}, 5},
		{"a thread of the embed API", remembers(7), embed, p, Admission{Run: p.Run, Embed: true, NextSeq: 1}, 7},
		{"one, and it is not known", remembers(0), embed, p, Admission{Run: p.Run, Embed: true, NextSeq: 1, Agent: agent}, 5},
		{"one that begins", remembers(7), unborn, begins, nil, 7},
		{"one that begins, and it is not known", remembers(0), unborn, begins, Admission{Run: p.Run, Agent: agent}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := c.by.Decide(c.in, c.m, t0)
			if err != nil || d.Question != c.question {
				t.Fatalf("%+v, %v", d, err)
			}
			if c.question != nil {
				if d.Changed || len(d.Facts) > 0 {
					t.Errorf("it decides and asks: %+v", d)
				}
				asked := d.Question.(Admission)
				answered := func(q any, a Admitted) (decision, error) {
					return c.by.Decide(c.in, durable.Answered{Msg: c.m, Question: q, Answer: a}, t0)
				}
				// An answer to something else is none.
				other := asked
				other.Run = newRun()
				for _, q := range []any{other, Accepted{p.Run}} {
					if d, err := answered(q, Admitted{Version: 5}); err != nil || d.Question != c.question {
						t.Errorf("with the answer to %+v: %+v, %v", q, d, err)
					}
				}
				if _, err := answered(asked, Admitted{Silent: silent}); !errors.Is(err, silent) {
					t.Errorf("no version is published: %v", err)
				}
				full := problem.New(problem.CodeEmbedThreadFull, "")
				if _, err := answered(asked, Admitted{Refusal: full, Silent: silent}); !errors.Is(err, full) {
					t.Errorf("the thread comes before the agent: %v", err)
				}
				if d, err := answered(asked, Admitted{Before: true, Refusal: full, Silent: silent}); err != nil || d.Changed || d.Question != nil || d.Reply != any(taken) {
					t.Errorf("it was accepted before: %+v, %v", d, err)
				}
				a := Admitted{}
				if !asked.Agent.IsZero() {
					a.Version = 5
				}
				if d, err = answered(asked, a); err != nil || d.Question != nil {
					t.Fatalf("%+v, %v", d, err)
				}
				// The read makes the node remember: it is not asked again for that.
				remembered := remembers(6)
				if d, err := remembered.Decide(c.in, durable.Answered{Msg: c.m, Question: asked, Answer: a}, t0); err != nil || d.Question != nil || len(d.Facts) != 1 {
					t.Errorf("it is remembered by then: %+v, %v", d, err)
				}
			}
			if d.Reply != any(taken) || len(d.Facts) != 1 || d.Next.NextSeq != 3 || d.Next.Unborn {
				t.Fatalf("%+v", d)
			}
			if a := d.Facts[0].(Posted).Accepted; a.AgentID != agent || a.AgentVersion != c.version {
				t.Errorf("accepted %+v", a)
			}
			for _, by := range []Machine{c.by, remembers(0)} {
				if again, err := by.Decide(d.Next, c.m, t0); err != nil || again.Changed || again.Question != nil || again.Reply != any(taken) {
					t.Errorf("it comes again: %+v, %v", again, err)
				}
			}
		})
	}
	// Nobody's version matters in a deleted thread, but to one that came before.
	deleted := fresh()
	deleted.Deleted = true
	if d := decide(t, deleted, p); d.Question != any(Accepted{p.Run}) {
		t.Errorf("%+v", d)
	}
}

// A thread is the visitor's whom a Post names, or it is not there for it.
func TestAPostToAThreadOfAnotherVisitor(t *testing.T) {
	embed, platform := embedded(), fresh()
	platform.CreatedBy = "apikey:1"
	his := msg.Visitor{Agent: agent, CreatedBy: embed.CreatedBy}
	for _, c := range []struct {
		name string
		in   State
		who  *msg.Visitor
		ok   bool
	}{
		{"his", embed, &his, true},
		{"the tenant's back end", embed, nil, true},
		{"another visitor", embed, &msg.Visitor{Agent: agent, CreatedBy: "embed:vid:2"}, false},
		{"of another agent", embed, &msg.Visitor{Agent: id.AgentID{UUID: id.NewAnywhere()}, CreatedBy: embed.CreatedBy}, false},
		{"of the platform", platform, &his, false},
		{"of the platform, by who claims to be its maker", platform, &msg.Visitor{Agent: agent, CreatedBy: platform.CreatedBy}, false},
		{"of the platform, by the back end", platform, nil, true},
	} {
		p := post(newRun())
		p.Visitor = c.who
		d := decide(t, c.in, p)
		if c.ok {
			if _, asks := d.Question.(Admission); asks != c.in.Embed() || asks == d.Changed {
				t.Errorf("%s: %+v", c.name, d)
			}
			continue
		}
		if d.Question != any(Accepted{p.Run}) || d.Changed {
			t.Errorf("%s: %+v", c.name, d)
		}
		if _, err := remembers(1).Decide(c.in, durable.Answered{Msg: p, Question: d.Question, Answer: false}, t0); !isNotFound(err) {
			t.Errorf("%s: %v", c.name, err)
		}
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
	f := remembers(1)
	f.ready = []byte("its turn")
	behind := fresh()
	behind.Queue.Open = []OpenRun{{newRun(), 1}}
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
		p := post(newRun())
		p.New = c.in.Unborn
		d, err := f.Decide(c.in, p, t0)
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
		if len(d.Facts) != 0 || written(s, d, msg.RunEnded{Run: r}) {
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
	late, deletion := post(newRun()), msg.DeleteThread{Op: id.OpID{UUID: id.New(it.Shard())}}
	for _, c := range []struct{ m, question, reply any }{
		{late, Accepted{late.Run}, msg.Posted{Run: late.Run, Message: late.Message}}, {deletion, Erased{deletion.Op}, msg.Done{}},
	} {
		if d := decide(t, s, c.m); d.Question != c.question || d.Changed {
			t.Errorf("%T: %+v", c.m, d)
		}
		if d := decide(t, s, durable.Answered{Msg: c.m, Question: c.question, Answer: true}); d.Question != nil || d.Changed || d.Reply != c.reply || !reflect.DeepEqual(d.Next, s) {
			t.Errorf("%T that came before: %+v", c.m, d)
		}
		if _, err := remembers(1).Decide(s, durable.Answered{Msg: c.m, Question: c.question, Answer: false}, t0); !isNotFound(err) {
			t.Errorf("%T that did not: %v", c.m, err)
		}
	}
	if _, err := remembers(1).Decide(s, msg.DeleteThread{By: by}, t0); !isNotFound(err) {
		t.Errorf("a deletion that nobody can recognise: %v", err)
	}
	if d := decide(t, s, early); d.Changed || d.Reply != any(msg.Posted{Run: a, Message: early.Message}) {
		t.Errorf("a post from before the deletion: %+v", d)
	}
	owed := Machine{}.Owed(s)
	if len(owed) != 2 || owed[0] != durable.Effect(Cancel{Run: a, By: by}) || owed[1] != durable.Effect(Cancel{Run: b, By: by}) {
		t.Fatalf("owes %+v", owed)
	}
	// The timer of the deletion reads the queue and tells again what is open.
	told := decide(t, s, durable.TimerDue{Name: emptyTimer(it).Name}).Next
	reads, ok := Machine{}.Owed(told)[0].(ReadQueue)
	if !ok {
		t.Fatalf("owes %+v", Machine{}.Owed(told))
	}
	told = decide(t, told, QueueRead{Read: reads.Read, Open: []OpenRun{{b, 3}}, NextSeq: reads.NextSeq}).Next
	if owed := (Machine{}).Owed(told); len(owed) != 1 || owed[0].(Cancel).Run != b || owed[0].Key() == (Cancel{Run: b}).Key() {
		t.Errorf("owes %+v", owed)
	}
	s = decide(t, s, msg.RunEnded{Run: b}).Next
	d = decide(t, s, msg.RunEnded{Run: a})
	if len(d.Facts) != 1 || d.Facts[0] != any(Emptied{}) || !written(s, d, msg.RunEnded{Run: a}) || !d.Next.Queue.empty() {
		t.Errorf("%+v: what the last run wrote stays", d)
	}
	if d := decide(t, d.Next, msg.RunEnded{Run: a}); len(d.Facts) != 0 || written(s, d, msg.RunEnded{Run: a}) {
		t.Error("emptied twice")
	}
}

// A thread that is deleted while a question on a Post is open does not accept it.
func TestADeletionOvertakesAPost(t *testing.T) {
	for name, c := range map[string]struct {
		in State
		by Machine
	}{"of the embed API": {embedded(), remembers(1)}, "of the platform": {fresh(), remembers(0)}} {
		p := post(newRun())
		asked, err := c.by.Decide(c.in, p, t0)
		if err != nil || asked.Question == nil {
			t.Fatalf("%s: %+v, %v", name, asked, err)
		}
		s := decide(t, c.in, msg.DeleteThread{}).Next
		d, err := c.by.Decide(s, durable.Answered{Msg: p, Question: asked.Question, Answer: Admitted{Version: 1}}, t0)
		if err != nil || d.Question != any(Accepted{p.Run}) || d.Changed {
			t.Fatalf("%s: %+v, %v", name, d, err)
		}
		if _, err := c.by.Decide(s, durable.Answered{Msg: p, Question: d.Question, Answer: false}, t0); !isNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Post whose rows are there already was accepted before, and is answered as then.
func TestARepeatedPostIsAnswered(t *testing.T) {
	p := post(newRun())
	for _, s := range []State{fresh(), embedded()} {
		if d := decide(t, s, durable.Repeated{Msg: p}); d.Changed || d.Question != nil || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) || !reflect.DeepEqual(d.Next, s) {
			t.Errorf("%+v", d)
		}
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
	read := Machine{}.Owed(s)[0].(ReadQueue)
	// Its end was never told; the line says it.
	s = decide(t, s, QueueRead{Read: read.Read, NextSeq: read.NextSeq, Open: []OpenRun{{next, 3}}}).Next
	owed := Machine{}.Owed(s)
	if len(owed) != 1 || owed[0].(Next).Run != next || owed[0].Key() == before || s.Queue.More {
		t.Fatalf("owes %+v", owed)
	}
	// The same run again is told again too.
	s = decide(t, s, durable.Wake{}).Next
	read = Machine{}.Owed(s)[0].(ReadQueue)
	again := Machine{}.Owed(decide(t, s, QueueRead{Read: read.Read, NextSeq: read.NextSeq, Open: []OpenRun{{next, 3}}}).Next)
	if len(again) != 1 || again[0].Key() == owed[0].Key() {
		t.Errorf("owes %+v", again)
	}
}

func TestALookFromBeforeAnEndDoesNotCount(t *testing.T) {
	run := newRun()
	s := decide(t, decide(t, fresh(), post(run)).Next, durable.Wake{}).Next
	old := Machine{}.Owed(s)[0].(ReadQueue)
	s = decide(t, s, msg.RunEnded{Run: run}).Next
	if d := decide(t, s, QueueRead{Read: old.Read, NextSeq: old.NextSeq, Open: []OpenRun{{run, 1}}}); d.Changed {
		t.Error("a run that has ended is open again")
	}
}

// written reports whether the decision has rows.
func written(s State, d decision, m any) bool {
	return rows(cluster.Address{}, durable.Loaded[State]{State: s}, d, m, id.OpID{}, t0) != nil
}

// world is the table of runs behind a thread: what is true whatever the thread
// knows of it.
type world struct {
	open  []OpenRun // in order
	ended []id.RunID
}

func (w *world) end(run id.RunID) {
	w.open = slices.DeleteFunc(slices.Clone(w.open), func(t OpenRun) bool { return t.Run == run })
	w.ended = append(w.ended, run)
}

func (w *world) line(e ReadQueue) QueueRead {
	n := min(len(w.open), window)
	return QueueRead{Read: e.Read, NextSeq: e.NextSeq, Open: slices.Clone(w.open[:n]), More: len(w.open) > window}
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
		var told []id.RunID     // whose turn it was, in order
		var reading []QueueRead // read, not yet heard
		done := map[string]bool{}
		perform := func() {
			for _, e := range (Machine{}).Owed(s) {
				if done[e.Key()] {
					continue
				}
				done[e.Key()] = true
				switch e := e.(type) {
				case ReadQueue:
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
			before.Queue.Open, before.Queue.Asked = slices.Clone(s.Queue.Open), slices.Clone(s.Queue.Asked)
			d, err := remembers(1).Decide(s, m, t0)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(before, s) {
				t.Fatalf("%T mutated the state", m)
			}
			if d.Question != nil {
				t.Fatalf("%T: a question: %+v", m, d.Question)
			}
			if _, accepts := m.(msg.Post); written(s, d, m) != accepts {
				t.Fatalf("%T: written %v", m, !accepts)
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
					w.open = append(w.open, OpenRun{run, s.NextSeq})
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
				s = State{Tenant: s.Tenant, ID: s.ID, Agent: s.Agent, NextSeq: s.NextSeq, Queue: q}
				reading, done = nil, map[string]bool{}
				hear(durable.Activated{Epoch: 1})
			case 9:
				if len(reading) > 0 {
					line := reading[0]
					reading = reading[1:]
					hear(line)
				}
			case 10: // the answer of one was lost
				if len(sent) > 0 {
					p := sent[len(sent)-1-rapid.IntRange(0, min(len(sent), window)-1).Draw(t, "again")]
					if d, err := remembers(1).Decide(s, p, t0); err != nil || d.Changed || d.Question != nil || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) || !reflect.DeepEqual(d.Next, s) {
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
