package trigger

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/schedule"
)

func times(t testing.TB, cron string) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(cron, "UTC")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each row is a state, a message, and what is decided on it.
func TestDecide(t *testing.T) {
	due := time.Date(2026, 5, 6, 7, 0, 0, 0, time.UTC)
	now := due.Add(1500 * time.Millisecond)
	waiting := State{Due: due, Times: times(t, "* * * * *")}
	with := func(s State, change func(s *State)) State { change(&s); return s }
	firing := with(waiting, func(s *State) { s.Firing = now })
	paused := with(waiting, func(s *State) { s.Due, s.Times = time.Time{}, nil })
	missing := State{Missing: true}
	unreadable := with(waiting, func(s *State) { s.Times = nil })
	moved := with(waiting, func(s *State) { s.Due = due.Add(time.Minute) })
	starts := []string{"start/2026-05-06T07:00:00Z"}

	for name, c := range map[string]struct {
		state State
		msg   any
		now   time.Time
		want  State
		facts []any
		owed  []string
	}{
		"activated":                       {waiting, durable.Activated{Epoch: 2}, now, waiting, nil, nil},
		"due":                             {waiting, durable.TimerDue{Name: "due"}, now, firing, nil, starts},
		"due to the microsecond":          {waiting, durable.TimerDue{Name: "due"}, due, with(firing, func(s *State) { s.Firing = due }), nil, starts},
		"due, after a commit was lost":    {waiting, durable.Wake{}, now, firing, nil, starts},
		"due, with unreadable times":      {unreadable, durable.TimerDue{Name: "due"}, now, unreadable, nil, nil},
		"told while it fires":             {firing, durable.TimerDue{Name: "due"}, now.Add(time.Second), firing, nil, starts},
		"early":                           {waiting, durable.TimerDue{Name: "due"}, due.Add(-time.Microsecond), waiting, []any{Aligned{}}, nil},
		"early, after a commit was lost":  {waiting, durable.Wake{}, due.Add(-time.Microsecond), waiting, nil, nil},
		"paused":                          {paused, durable.TimerDue{Name: "due"}, now, paused, []any{Aligned{}}, nil},
		"paused, after a commit was lost": {paused, durable.Wake{}, now, paused, nil, nil},
		"deleted":                         {missing, durable.TimerDue{Name: "due"}, now, missing, []any{Aligned{}}, nil},
		"started":                         {firing, Started{Due: due}, now.Add(time.Second), moved, []any{Moved{Due: due, Fired: now}}, nil},
		"it cannot be started":            {firing, Started{Due: due, Why: "x"}, now, moved, []any{Moved{Due: due, Fired: now, Why: "x"}}, nil},
		"started, and due again meanwhile": {firing, Started{Due: due}, due.Add(time.Minute), with(moved, func(s *State) { s.Firing = due.Add(time.Minute) }),
			[]any{Moved{Due: due, Fired: now}}, []string{"start/2026-05-06T07:01:00Z"}},
		"due times that passed are one": {with(firing, func(s *State) { s.Firing = due.Add(time.Hour) }), Started{Due: due}, due.Add(time.Hour),
			with(waiting, func(s *State) { s.Due = due.Add(time.Hour + time.Minute) }), []any{Moved{Due: due, Fired: due.Add(time.Hour)}}, nil},
		"the start of another due time":  {firing, Started{Due: due.Add(-time.Minute)}, now, firing, nil, starts},
		"a start that nothing waits for": {waiting, Started{Due: due}, now, waiting, nil, nil},
		"failed":                         {firing, Failed{}, now, waiting, nil, nil},
		"panicked":                       {firing, durable.EffectFailed{Key: "x"}, now, waiting, nil, nil},
		"a stranger":                     {waiting, "no message", now, waiting, nil, nil},
	} {
		d, err := Machine{}.Decide(c.state, c.msg, c.now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(d.Next, c.want) || !reflect.DeepEqual(d.Facts, c.facts) {
			t.Errorf("%s: %+v", name, d)
		}
		if changes := len(c.facts) > 0 || !reflect.DeepEqual(c.state, c.want); d.Changed != changes || d.Question != nil || d.Reply != nil {
			t.Errorf("%s: changed %v, want %v: %+v", name, d.Changed, changes, d)
		}
		if owed := keys(d.Next); !slices.Equal(owed, c.owed) {
			t.Errorf("%s: owes %v, want %v", name, owed, c.owed)
		}
	}
	if _, err := (Machine{}).Decide(firing, durable.Refused{Msg: Started{Due: due}}, now); !errors.Is(err, problem.New(problem.CodeInternal, "")) {
		t.Errorf("refused rows: %v", err)
	}
	if e := (Machine{}).Owed(firing)[0]; !reflect.DeepEqual(e, Start{Due: due}) {
		t.Errorf("it owes %+v", e)
	}
}

func keys(s State) (all []string) {
	for _, e := range (Machine{}).Owed(s) {
		all = append(all, e.Key())
	}
	return all
}

// Over random histories with crashes, lost results and lost commits: due times increase,
// each one that is over was asked to start under its own key, none comes before its time,
// and no due time that was current is left out.
func TestLaws(t *testing.T) {
	everyMinute := times(t, "* * * * *")
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Date(2026, 5, 6, 7, 0, 30, 0, time.UTC)
		stored := State{Due: everyMinute.Next(now), Times: everyMinute}
		live, started := stored, map[string]bool{}
		lossy := true
		decide := func(m any) {
			d, err := Machine{}.Decide(live, m, now)
			if err != nil {
				rt.Fatal(err)
			}
			if len(d.Facts) > 0 && lossy && rapid.IntRange(0, 3).Draw(rt, "commit") == 0 { // lost: the host drops its memory
				live = stored
				return
			}
			live = d.Next
			for _, f := range d.Facts {
				switch f := f.(type) {
				case Moved:
					switch {
					case !f.Due.Equal(stored.Due):
						rt.Fatalf("%v is over, %v was due", f.Due, stored.Due)
					case !started[Start{Due: f.Due}.Key()]:
						rt.Fatalf("%v is over and was not started", f.Due)
					case f.Fired.Before(f.Due) || !live.Due.Equal(everyMinute.Next(f.Fired)):
						rt.Fatalf("%v fired at %v, next is %v", f.Due, f.Fired, live.Due)
					}
				case Aligned:
					if !live.Due.Equal(stored.Due) {
						rt.Fatal("a timer that is made to agree moves the schedule")
					}
				}
			}
			if len(d.Facts) > 0 {
				stored = live
				stored.Firing = time.Time{}
			}
		}
		perform := func() {
			for _, e := range (Machine{}).Owed(live) {
				s := e.(Start)
				if s.Due.After(now) {
					rt.Fatalf("%v starts at %v", s.Due, now)
				}
				started[s.Key()] = true
				decide(Started{Due: s.Due})
			}
		}
		for range 40 {
			switch rapid.IntRange(0, 5).Draw(rt, "event") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(0, 150).Draw(rt, "seconds")) * time.Second)
			case 1:
				decide(durable.TimerDue{Name: "due"})
			case 2:
				live = stored // a crash
				decide(durable.Wake{})
			case 3:
				decide(Failed{})
			default:
				perform()
			}
		}
		// A healthy node: the timer comes again, and nothing that is due is left.
		lossy, live = false, stored
		decide(durable.TimerDue{Name: "due"})
		perform()
		if !stored.Due.After(now) {
			rt.Fatalf("%v is due at %v, and does not fire", stored.Due, now)
		}
	})
}
