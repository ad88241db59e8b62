package ingest

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func decide(t testing.TB, s State, m any) decision {
	t.Helper()
	d, err := (Machine{}).Decide(s, m, noon)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return d
}

// fresh is a document that was just uploaded.
func fresh() State {
	var s State
	s.Row.Status, s.Row.Content, s.Row.Settings, s.Row.Owes = lifecycle.DocumentQueued, 1, 1, true
	return s
}

// begin activates a document and gives it its place.
func begin(t testing.TB, s State) State {
	t.Helper()
	waits := decide(t, s, durable.Activated{Epoch: 1})
	if len(waits.Facts) != 0 || waits.Next.Row.Status != s.Row.Status || waits.Next.Row.Attempts != s.Row.Attempts {
		t.Errorf("a document that waits for its place has changed: %+v", waits)
	}
	return decide(t, waits.Next, Entered{}).Next
}

func TestADocumentIsRead(t *testing.T) {
	t.Parallel()
	begun := begin(t, fresh())
	if r := begun.Row; r.Status != lifecycle.DocumentProcessing || r.Generation != 1 || r.Attempts != 1 || len(Machine{}.Owed(begun)) != 1 {
		t.Fatalf("begun: %+v", begun)
	}
	if woken := decide(t, decide(t, fresh(), durable.Activated{}).Next, durable.Wake{}); len(woken.Facts) != 0 || !woken.Next.Entering {
		t.Error("the message that led to the activation claims the row again")
	}
	if d := decide(t, begun, Built{Generation: 2}); d.Changed {
		t.Error("the end of another generation counts")
	}
	built := decide(t, begun, Built{Generation: 1, Chunks: 3, MediaType: "text/plain"}).Next
	if r := built.Row; r.Status != lifecycle.DocumentReady || r.Shown != 1 || r.Chunks != 3 || !r.Owes || built.stale() {
		t.Errorf("built: %+v", built)
	}
	clean := decide(t, built, Cleaned{}).Next
	if clean.Row.Owes || len(Machine{}.Owed(clean)) != 0 {
		t.Errorf("clean: %+v", clean)
	}
}

func TestAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := fresh()
	s.Row.Shown, s.Row.Content, s.Row.ReadContent, s.Row.ReadSettings, s.Row.Chunks = 4, 2, 1, 1, 7
	begun := begin(t, s)
	failed := decide(t, begun, Unreadable{Generation: 1, Reason: "the file is damaged"}).Next
	if r := failed.Row; r.Status != lifecycle.DocumentFailed || *r.Error != "the file is damaged" || r.Shown != 4 || r.Chunks != 7 {
		t.Errorf("%+v", r)
	}
	done := decide(t, failed, Cleaned{}).Next
	if d := decide(t, done, durable.Wake{}); len(d.Facts) != 0 || d.Next.Building {
		t.Error("a failed document is read again without a change")
	}
	done.Row.Settings, done.Row.Owes = 2, true
	if d := decide(t, done, durable.Activated{}); !d.Next.Entering {
		t.Error("other settings do not begin a failed document again")
	}
}

// A document whose reading no process survives is failed in the end, and so is one that the service cannot index. Neither is
// for good: the content counts as not read, and what is left of it is removed all the same.
func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	s := fresh()
	for range mostAttempts {
		for range 10 { // killed while it waits for its place: no attempt
			if s = decide(t, s, durable.Activated{}).Next; !s.Entering {
				t.Fatalf("%+v", s)
			}
			s.Entering, s.Fresh = false, false
		}
		if s = begin(t, s); !s.Building {
			t.Fatalf("%+v", s)
		}
		s.Building, s.Fresh = false, false // killed
	}
	if s = decide(t, s, durable.Activated{}).Next; s.Row.Status != lifecycle.DocumentFailed || *s.Row.Error != endsNodes {
		t.Errorf("%+v", s)
	}
	given(t, s, 1)
	s = fresh()
	for i := range mostAttempts {
		if i > 0 {
			s = decide(t, s, durable.TimerDue{Name: timerAgain}).Next
		} else {
			s = decide(t, s, durable.Activated{}).Next
		}
		s = decide(t, s, Entered{}).Next
		d := decide(t, s, Interrupted{Generation: s.Row.Generation})
		s = d.Next
		if i == mostAttempts-1 {
			break
		}
		if p, later := d.Facts[0].(Postponed); !later || !p.At.Equal(noon.Add(pauses[i+1])) || s.Row.Owes || s.Row.Status != lifecycle.DocumentQueued {
			t.Fatalf("attempt %d: %+v", i+1, d)
		}
	}
	if s.Row.Status != lifecycle.DocumentFailed || *s.Row.Error != unavailable {
		t.Errorf("%+v", s)
	}
	given(t, s, 1)
}

// given checks a document whose content was given up, although its file may be read: it is not begun again by itself, also after a
// restart, but with another content or other settings of the base.
func given(t testing.TB, s State, content int) {
	t.Helper()
	if s.Row.ReadContent != -content || s.stale() || !s.Cleaning {
		t.Errorf("given up: %+v", s)
	}
	s.Cleaning, s.Fresh = false, false // the node is restarted
	again := decide(t, s, durable.Activated{}).Next
	if again.Entering || !again.Cleaning {
		t.Errorf("begun again: %+v", again)
	}
	again = decide(t, again, Cleaned{}).Next
	if d := decide(t, again, durable.Wake{}); d.Next.Entering || again.Row.Owes {
		t.Errorf("%+v", d.Next)
	}
	for _, change := range []func(*Row){func(r *Row) { r.Content++ }, func(r *Row) { r.Settings++ }} {
		s := again
		change(&s.Row)
		s.Row.Owes = true
		if d := decide(t, s, durable.Activated{}); !d.Next.Entering {
			t.Errorf("it is not begun with what changed: %+v", d.Next)
		}
	}
}

// A provider that refuses fails a document with its reason, which is not the file's.
func TestAReasonThatIsNotTheFiles(t *testing.T) {
	t.Parallel()
	s := fresh()
	s.Row.Content = 3
	s = decide(t, begin(t, s), Unreadable{Generation: 1, Reason: "no vectors", Ours: true}).Next
	if s.Row.Status != lifecycle.DocumentFailed || *s.Row.Error != "no vectors" {
		t.Errorf("%+v", s)
	}
	given(t, s, 3)
}

// A provider of embeddings or a store of files that is down for long fails no document, nor does a restart meanwhile.
func TestWhatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := begin(t, fresh())
	for i := range 3 * mostAttempts {
		d := decide(t, s, Interrupted{Generation: s.Row.Generation, Away: true, Used: Used{Model: "m", TokensIn: 3}})
		if p, later := d.Facts[0].(Postponed); !later || p.Used.TokensIn != 3 || p.At.Before(noon.Add(pauses[1])) {
			t.Fatalf("%d: %+v", i, d)
		}
		s = decide(t, decide(t, d.Next, durable.TimerDue{Name: timerAgain}).Next, Entered{}).Next
		s.Building = false // the node is restarted
		if s = begin(t, s); !s.Building {
			t.Fatalf("%d: %+v", i, s.Row)
		}
	}
}

// Whatever happens, in any order: a document that owes nothing is read or failed or waits for its
// timer; a generation is shown only if it was written whole; numbers never go back; a document that its
// source does not give says why.
func TestLaws(t *testing.T) {
	t.Parallel()
	closed := "closed"
	rapid.Check(t, func(t *rapid.T) {
		s := fresh()
		s = decideIn(t, s, durable.Activated{})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before := s
			switch rapid.IntRange(0, 14).Draw(t, "event") {
			case 0: // killed
				s.Entering, s.Building, s.Cleaning, s.Fresh, s.Try = false, false, false, false, 0
				s = decideIn(t, s, durable.Activated{})
			case 1: // the API
				s.Row.Content, s.Row.Status, s.Row.Attempts, s.Row.Owes, s.Row.Error = s.Row.Content+1, lifecycle.DocumentQueued, 0, true, nil
				s.Row.SourceError = nil
				s.Entering, s.Building, s.Cleaning = false, false, false
				s = decideIn(t, s, durable.Activated{})
			case 2:
				s = decideIn(t, s, durable.Wake{})
			case 3:
				s = decideIn(t, s, durable.TimerDue{Name: timerAgain})
			case 4:
				s = decideIn(t, s, Built{Generation: s.Row.Generation, Chunks: 1})
			case 5:
				s = decideIn(t, s, Built{Generation: s.Row.Generation - 1, Chunks: 1})
			case 6:
				s = decideIn(t, s, Unreadable{Generation: s.Row.Generation, Reason: "x", Ours: rapid.Bool().Draw(t, "not the file's reason")})
			case 7:
				s = decideIn(t, s, Interrupted{Generation: s.Row.Generation, Away: rapid.Bool().Draw(t, "away")})
			case 8:
				s = decideIn(t, s, Cleaned{})
			case 9:
				s = decideIn(t, s, Dirty{})
			case 10:
				s = decideIn(t, s, Overtaken{s.Row.Generation})
			case 11:
				s = decideIn(t, s, Entered{})
			case 12:
				s = decideIn(t, s, Full{})
			case 13: // the source refuses the next content
				s.Row.Owes = s.Row.Owes || s.Row.Status == lifecycle.DocumentQueued
				s.Row.Status, s.Row.Error, s.Row.SourceError = lifecycle.DocumentFailed, &closed, &closed
				s.Entering, s.Building, s.Cleaning = false, false, false
				s = decideIn(t, s, durable.Activated{})
			case 14: // other settings of the base
				s.Row.Settings, s.Row.Owes, s.Row.Attempts = s.Row.Settings+1, true, 0
				s.Entering, s.Building, s.Cleaning = false, false, false
				s = decideIn(t, s, durable.Activated{})
			}
			r := s.Row
			if r.Shown > r.Generation || r.Generation < before.Row.Generation || r.Shown < before.Row.Shown {
				t.Fatalf("numbers: %+v after %+v", r, before.Row)
			}
			if !r.Owes && s.stale() && r.Status != lifecycle.DocumentQueued {
				t.Fatalf("it is forgotten: %+v", r)
			}
			if r.Status == lifecycle.DocumentProcessing && !s.Building && !r.Owes {
				t.Fatalf("it is processed by nobody: %+v", s)
			}
			if r.Attempts > before.Row.Attempts && !s.Building {
				t.Fatalf("an attempt without a place: %+v", s)
			}
			if (r.Status == lifecycle.DocumentFailed) != (r.Error != nil) || r.Attempts > mostAttempts {
				t.Fatalf("%+v", r)
			}
			if r.SourceError != nil && r.Status != lifecycle.DocumentQueued && r.Status != lifecycle.DocumentProcessing && (r.Error == nil || *r.Error != closed) {
				t.Fatalf("it is no longer said why its source does not give it: %+v", r)
			}
			if s.Building && s.Cleaning || s.Entering && (s.Building || s.Cleaning) {
				t.Fatalf("two things at once: %+v", s)
			}
		}
	})
}

func decideIn(t *rapid.T, s State, m any) State {
	d, err := (Machine{}).Decide(s, m, noon)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return d.Next
}
