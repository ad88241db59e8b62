package thread

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

func embedded() State {
	s := fresh()
	s.Embed = true
	return s
}

func behind(p msg.Post, run id.RunID) msg.Post {
	p.Behind = run
	return p
}

// A message begins its thread: what is not there yet has no version, and is version 1
// of epoch 0 with the commit.
func TestAThreadBegins(t *testing.T) {
	p := post(newRun())
	if _, ok := create(cluster.Address{}, p); ok {
		t.Error("begun by a Post without New")
	}
	if _, ok := create(cluster.Address{}, msg.DeleteThread{}); ok {
		t.Error("begun by its deletion")
	}
	p.New = &msg.NewThread{CreatedBy: "embed:vid:1"}
	s, ok := create(cluster.Address{Tenant: tenant, ID: it.UUID}, p)
	if !ok || !s.Embed || !s.Unborn || s.ID != it || s.Tenant != tenant {
		t.Fatalf("%+v", s)
	}
	d := decide(t, s, p)
	if d.Next.Unborn || d.Next.Row != (Row{Version: 1, Epoch: 0, Claim: 1}) || d.Next.NextSeq != 3 || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		t.Fatalf("%+v", d)
	}
	// The first claims with its next commit.
	if d = decide(t, d.Next, behind(post(newRun()), p.Run)); d.Next.Row != (Row{Version: 2, Epoch: 1, Claim: 1}) {
		t.Errorf("%+v", d.Next.Row)
	}
	// It comes again: as the first time. Another one: nobody's.
	if d := decide(t, d.Next, p); d.Changed || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
		t.Errorf("%+v", d)
	}
	other := post(newRun())
	other.New = p.New
	begun := d.Next
	d = decide(t, begun, other)
	if a, ok := again(d.Facts); !ok || a.Unheard || !isNotFound(a.Else) || !reflect.DeepEqual(d.Next, begun) {
		t.Errorf("%+v", d)
	}
}

func TestTheTitleOfAThread(t *testing.T) {
	long := strings.Repeat("ab ", 40)
	for content, want := range map[string]string{
		"Where is my order?":        "Where is my order?",
		"  one\n\ttwo\r\nthree\x07": "one two three",
		"\n \t":                     "",
		strings.Repeat("ä", 80):     strings.Repeat("ä", 80),
		strings.Repeat("ä", 81):     strings.Repeat("ä", 80) + "…",
		long:                        strings.TrimSpace(long[:80]) + "…",
	} {
		got := title(content)
		if (got == nil) != (want == "") || got != nil && *got != want {
			t.Errorf("%q: %v, want %q", content, got, want)
		}
	}
}

func TestAPostBehindAnother(t *testing.T) {
	a, b := post(newRun()), post(newRun())
	s := decide(t, decide(t, embedded(), a).Next, behind(b, a.Run)).Next
	for _, row := range []struct {
		name    string
		behind  id.RunID
		unheard bool
	}{{"one that is remembered", a.Run, false}, {"one that nobody here has heard of", newRun(), true}} {
		d := decide(t, s, behind(post(newRun()), row.behind))
		look := any(msg.Posted{Newest: b.Run})
		if f, ok := again(d.Facts); ok != row.unheard || ok && (!f.Unheard || f.Else != look) || !ok && (d.Changed || d.Reply != look) || !reflect.DeepEqual(d.Next, s) {
			t.Errorf("%s: %+v", row.name, d)
		}
	}
	if _, err := (Machine{}).Decide(s, post(newRun()), t0); !errors.Is(err, problem.Unavailable("", 0)) {
		t.Errorf("behind nothing: %v", err)
	}
	// In a thread of the platform it means nothing.
	s.Embed = false
	if d := decide(t, s, behind(post(newRun()), a.Run)); len(d.Facts) != 1 || d.Next.NextSeq != s.NextSeq+2 {
		t.Errorf("%+v", d)
	}
}

// TestEmbedLaws drives random histories of posts behind the newest run, behind older
// and unknown ones, ends, wakes, repeats and crashes: a message is accepted if and only
// if it is behind the newest run; who is not accepted writes nothing, and is told the
// newest, or that the rows have to say it; and one that comes again is answered as the
// first time.
func TestEmbedLaws(t *testing.T) {
	accepted, refused, repeated := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		first := post(newRun())
		first.New = &msg.NewThread{CreatedBy: "embed:vid:1"}
		s, _ := create(cluster.Address{Tenant: tenant, ID: it.UUID}, first)
		w, sent := &world{open: []Turn{{first.Run, 1}}}, []msg.Post{first} // accepted, in order
		hear := func(m any) decision {
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
			return d
		}
		newest := func() id.RunID { return sent[len(sent)-1].Run }
		hear(first)
		for range rapid.IntRange(1, 250).Draw(t, "length") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0, 1, 2:
				p := behind(post(newRun()), newest())
				d := hear(p)
				if len(d.Facts) != 1 || d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) {
					t.Fatalf("behind the newest: %+v", d)
				}
				w.open = append(w.open, Turn{p.Run, d.Facts[0].(Posted).Accepted.ThreadSeq})
				sent = append(sent, p)
				accepted++
			case 3: // admitted behind another one
				other := newRun()
				if len(sent) > 1 && rapid.Bool().Draw(t, "older") {
					other = sent[rapid.IntRange(0, len(sent)-2).Draw(t, "which")].Run
				}
				before := s
				d := hear(behind(post(newRun()), other))
				f, unheard := again(d.Facts)
				look := any(msg.Posted{Newest: newest()})
				if unheard && f.Else != look || !unheard && (len(d.Facts) > 0 || d.Reply != look) || unheard == slices.Contains(before.Queue.Asked, other) || !reflect.DeepEqual(before, s) {
					t.Fatalf("behind another: %+v", d)
				}
				refused++
			case 4:
				if len(w.open) > 0 {
					run := w.open[0].Run
					w.end(run)
					hear(msg.RunEnded{Run: run})
				}
			case 5:
				hear(durable.Wake{})
			case 6: // a crash: memory is lost, the rows are not
				n := min(len(w.open), window)
				q := Queue{Open: slices.Clone(w.open[:n]), More: len(w.open) > window}
				for _, p := range sent[max(0, len(sent)-window):] {
					q.Asked = append(q.Asked, p.Run)
				}
				s = State{Tenant: s.Tenant, ID: s.ID, NextSeq: s.NextSeq, Row: s.Row, Queue: q, Embed: true}
				hear(durable.Activated{Epoch: s.Row.Claim + 1})
			case 7: // the answer of one was lost: whatever it is behind by now
				p, before := sent[rapid.IntRange(0, len(sent)-1).Draw(t, "again")], s
				d := hear(p)
				_, long := again(d.Facts) // ago: the rows say it
				if d.Reply != any(msg.Posted{Run: p.Run, Message: p.Message}) || long == before.Queue.knows(p.Run) || d.Changed != long || !reflect.DeepEqual(before, s) {
					t.Fatalf("a post that came again: %+v", d)
				}
				repeated++
			}
		}
		if s.NextSeq != int64(2*len(sent)+1) {
			t.Fatalf("next place %d after %d messages", s.NextSeq, len(sent))
		}
	})
	if accepted == 0 || refused == 0 || repeated == 0 {
		t.Errorf("%d accepted, %d refused, %d came again: void", accepted, refused, repeated)
	}
}
