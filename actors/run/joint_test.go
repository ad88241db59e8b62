package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// deciding is a decision on a call of a waiting run that comes to what a reader
// of its approval would find.
func deciding(s State, call int, becomes func(*Call) *Approval) *joint {
	c := s.Calls[call]
	a := becomes(c)
	return &joint{edited: a.Edited, shown: a.Shown, rows: &journal.Commit{Tenant: tenant, Approval: &journal.ApprovalUpdate{
		ID: *c.Plan.Approval, Run: theRun, Guard: journal.Guard{Version: 1, SetEpoch: 1}, Status: a.Status, Decision: a.Decision, Digest: a.Digest, Feedback: &a.Feedback,
	}}}
}

// opened is an approval as it was opened.
func opened(*Call) *Approval { return &Approval{Status: lifecycle.ApprovalPending, Version: 1} }

// A run that commits a decision itself does what it does when it reads one.
func TestAJointDecisionIsOneThatWasRead(t *testing.T) {
	editedBefore := func(c *Call) *Approval {
		a := edited(c)
		a.Status, a.Decision, a.Version = lifecycle.ApprovalPending, "", 1
		return a
	}
	for _, c := range []struct {
		name   string
		first  func(*Call) *Approval // of the other call
		before func(*Call) *Approval
		last   func(*Call) *Approval
	}{
		{"approved", rejectedBy, opened, approved},
		{"edited", approved, opened, edited},
		{"edited before, and approved", edited, editedBefore, func(c *Call) *Approval { a := edited(c); a.Decision = lifecycle.ActionApprove; return a }},
		{"rejected", approved, opened, rejectedBy},
		{"rejected after an edit", approved, editedBefore, rejectedBy},
		{"responded", respondedTo, opened, respondedTo},
		{"expired", approved, opened, expired},
		{"approved, of other arguments", approved, opened, func(c *Call) *Approval { a := approved(c); a.Digest[0]++; return a }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := calling(t, gatedCall, gatedCall)
			waiting := read(s, c.first, c.before)
			m := deciding(waiting, 1, c.last)
			if c.name == "edited before, and approved" {
				m.edited, m.shown = nil, nil // the rows have them
			}
			got, want := decide(t, waiting, m, t0), decide(t, read(s, c.first, c.last), told, t0)
			if !got.Changed || got.Reply != any(joined) {
				t.Fatalf("%t, replied %v", got.Changed, got.Reply)
			}
			for _, d := range []*decision{&got, &want} { // what is of no account once the call goes on
				d.Reply = nil
				for i, k := range d.Next.Calls {
					k := *k
					k.Approval, k.start = nil, nil
					d.Next.Calls[i] = &k
				}
				for i, f := range d.Facts {
					switch f := f.(type) {
					case StepCalled:
						k := *f.Call
						k.Approval, k.start = nil, nil
						f.Call = &k
						d.Facts[i] = f
					case Withdrawn:
						for i, k := range f.Calls {
							k := *k
							k.Approval = &Approval{Status: k.Approval.Status}
							f.Calls[i] = &k
						}
					}
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestAJointDecisionIsDeclined(t *testing.T) {
	s := calling(t, gatedCall, cancelCall)
	running := decide(t, read(calling(t, gatedCall), approved), told, t0).Next
	version := func(a Approval) func(*Call) *Approval {
		a.Status = lifecycle.ApprovalPending
		return func(*Call) *Approval { return &a }
	}
	for _, c := range []struct {
		name string
		s    State
		call int
		last func(*Call) *Approval
	}{
		{"another one is pending", read(s, opened, opened), 0, approved},
		{"it is decided", read(s, approved, approved), 0, approved},
		{"it moved on", read(s, version(Approval{Version: 2}), approved), 0, approved},
		{"it has another owner", read(s, version(Approval{Version: 1, Epoch: 1}), approved), 0, approved},
		{"it was cancelled", read(s, func(*Call) *Approval { return &Approval{Status: lifecycle.ApprovalCancelled, Version: 2} }, approved), 0, approved},
		{"its expiry ends the run", read(s, approved, opened), 1, expired},
		{"the expiry of another one ends the run", read(s, opened, expired), 0, approved},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, c.s, deciding(c.s, c.call, c.last), t0)
			if d.Changed || d.Reply != any(declined) || !reflect.DeepEqual(d.Next, c.s) {
				t.Errorf("%t, replied %v", d.Changed, d.Reply)
			}
		})
	}
	waiting := read(s, opened, approved)
	m := deciding(waiting, 0, approved)
	stranger := deciding(waiting, 0, approved)
	stranger.rows.Approval.ID = id.ApprovalID{UUID: id.NewAnywhere()}
	for name, c := range map[string]struct {
		s State
		m any
	}{
		"it is not this run's":      {waiting, stranger},
		"the run is queued":         {queuedRun(t, plain), m},
		"the model speaks":          {runningRun(t, plain), m},
		"the call is being made":    {running, m},
		"the run has ended":         {decide(t, waiting, msg.CancelRun{}, t0).Next, m},
		"the run was resumed by it": {decide(t, waiting, m, t0).Next, m},
	} {
		t.Run(name, func(t *testing.T) {
			if d := decide(t, c.s, c.m, t0); d.Changed || d.Reply != any(declined) {
				t.Errorf("%t, replied %v", d.Changed, d.Reply)
			}
		})
	}
	t.Run("its rows are refused", func(t *testing.T) {
		for _, s := range []State{waiting, running} {
			if d, err := (Machine{}).Decide(s, durable.Refused{Msg: m}, t0); !errors.Is(err, errNotJoined) || d.Changed {
				t.Errorf("%v, %t", err, d.Changed)
			}
		}
	})
}

// A decision that was taken back is not committed, and one that may have been
// committed cannot be taken back.
func TestWhoHasAJointDecision(t *testing.T) {
	j := &joint{}
	for range 2 { // a run that begins again takes it again
		if !j.take() {
			t.Error("a decision that nobody withdrew is not to be had")
		}
	}
	if j.withdraw() {
		t.Error("what is being committed was taken back")
	}
	j = &joint{}
	if !j.withdraw() || j.take() || j.withdraw() {
		t.Error("what was taken back is committed")
	}
	k := &kind{}
	w := writerFunc(func(context.Context, *journal.Commit) error { t.Error("it was written"); return nil })
	if err := k.commit(t.Context(), w, lawAddress, durable.Loaded[State]{}, &decision{}, j, &journal.Commit{}); !errors.Is(err, journal.ErrUnavailable) {
		t.Error(err)
	}
}

type writerFunc func(context.Context, *journal.Commit) error

func (f writerFunc) Do(ctx context.Context, c *journal.Commit) error { return f(ctx, c) }

// asker is a node whose run answers in one way.
type asker struct {
	owns  bool
	asked []*joint
	takes bool
	reply any
	err   error
}

func (a *asker) Owns(s id.Shard) bool { return a.owns && s == theRun.Shard() }

func (a *asker) Ask(_ context.Context, to cluster.Address, m any) (any, error) {
	if to != lawAddress {
		return nil, fmt.Errorf("%s was asked", to)
	}
	j := m.(*joint)
	if a.asked = append(a.asked, j); a.takes {
		j.take()
	}
	return a.reply, a.err
}

// TestWhatJoiningEndsWith: a decision is committed in another way only where it
// is known that the run has not.
func TestWhatJoiningEndsWith(t *testing.T) {
	lost := problem.Unavailable("The request could not be stored.", time.Second)
	for _, c := range []struct {
		name   string
		node   asker
		joined bool
		err    error
		asked  int
	}{
		{"the run is another node's", asker{}, false, nil, 0},
		{"joined", asker{owns: true, takes: true, reply: joined}, true, nil, 1},
		{"declined", asker{owns: true, reply: declined}, false, nil, 1},
		{"declined after its swap was lost", asker{owns: true, takes: true, reply: declined}, false, nil, 1},
		{"refused", asker{owns: true, takes: true, err: fmt.Errorf("decide: %w", errNotJoined)}, false, nil, 1},
		{"the key was used", asker{owns: true, takes: true, err: journal.ErrReplay}, false, journal.ErrReplay, 1},
		{"the run could not be read", asker{owns: true, err: lost}, false, nil, 1},
		{"there is no such run", asker{owns: true, err: problem.NotFound("run")}, false, nil, 1},
		{"the node stops", asker{owns: true, err: problem.Unavailable("The node is stopping.", time.Second)}, false, nil, 1},
		{"the run panicked before it committed", asker{owns: true, err: cluster.ErrPanicked}, false, nil, 1},
		{"not answered in time, and not begun", asker{owns: true, err: context.DeadlineExceeded}, false, nil, 1},
		{"not answered in time", asker{owns: true, takes: true, err: context.DeadlineExceeded}, false, journal.ErrUnsettled, 1},
		{"no storage", asker{owns: true, takes: true, err: lost}, false, journal.ErrUnsettled, 1},
		{"the run panicked", asker{owns: true, takes: true, err: cluster.ErrPanicked}, false, journal.ErrUnsettled, 1},
		{"no reply", asker{owns: true, takes: true}, false, journal.ErrUnsettled, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := deciding(read(calling(t, gatedCall), opened), 0, approved)
			ok, err := Join(&c.node)(t.Context(), nil, m.rows, json.RawMessage(`1`), json.RawMessage(`2`))
			if ok != c.joined || !errors.Is(err, c.err) || len(c.node.asked) != c.asked {
				t.Errorf("%t, %v, asked %d times", ok, err, len(c.node.asked))
			}
			for _, j := range c.node.asked {
				if j.rows != m.rows || string(j.edited) != "1" || string(j.shown) != "2" {
					t.Errorf("asked %+v", j)
				}
				if !ok && err == nil && !c.node.takes && c.node.err != nil && j.take() {
					t.Error("the run may commit it still")
				}
			}
		})
	}
}
