package run

import (
	"slices"
	"strings"
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// leaves returns the decision on m of a run whose node drains.
func leaves(t testing.TB, s State, m any) decision {
	t.Helper()
	return decide(t, s, durable.Leaving{Msg: m}, t0)
}

func statuses(s *State) string {
	var out []string
	for _, k := range s.Calls {
		out = append(out, string(k.Status))
	}
	return strings.Join(out, " ")
}

func TestARunOnADrainingNodeBeginsNothing(t *testing.T) {
	running := runningRun(t, handsOff)
	calls := decide(t, running, asks(0, freeCall, repeatCall), t0).Next
	queued := queuedRun(t, handsOff)
	for _, c := range []struct {
		name string
		from State
		msg  any
	}{
		{"a queued one does not start", queued, msg.Proceed{}},
		{"nor with a place", queued, msg.SlotGranted{}},
		{"a timer comes again elsewhere", running, durable.TimerDue{Name: "x"}},
		{"nobody wakes it", running, durable.Wake{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := leaves(t, c.from, c.msg); d.Changed {
				t.Errorf("%+v", kinds(d.Facts))
			}
		})
	}
	t.Run("the turn in flight may end it", func(t *testing.T) {
		if d := leaves(t, running, answer("hello")); d.Next.Status != lifecycle.RunSucceeded {
			t.Errorf("it is %s", d.Next.Status)
		}
	})
	t.Run("a cancel ends it", func(t *testing.T) {
		if d := leaves(t, calls, msg.CancelRun{}); d.Next.Status != lifecycle.RunCancelled || len(Machine{}.Owed(d.Next)) != 0 {
			t.Errorf("it is %s", d.Next.Status)
		}
	})
	t.Run("the next model's step is begun by the next activation", func(t *testing.T) {
		one := leaves(t, calls, ToolAnswered{Idx: 1})
		if got := kinds(one.Facts); !slices.Equal(got, []string{"StepEnded"}) || len(Machine{}.Owed(one.Next)) != 1 {
			t.Fatalf("%v, owes %d", got, len(Machine{}.Owed(one.Next)))
		}
		two := leaves(t, one.Next, ToolAnswered{Idx: 2})
		if got := kinds(two.Facts); !slices.Equal(got, []string{"StepEnded"}) || len(Machine{}.Owed(two.Next)) != 0 || two.Next.Status != lifecycle.RunRunning || two.Next.Open != nil {
			t.Fatalf("%v, %+v", got, two.Next.Open)
		}
		three := decide(t, two.Next, durable.Activated{Epoch: 2}, t0)
		if got := kinds(three.Facts); !slices.Equal(got, []string{"StepBegan"}) || three.Next.Open == nil {
			t.Errorf("%v", got)
		}
	})
	t.Run("a failed turn is asked again by the next activation", func(t *testing.T) {
		d := leaves(t, running, ModelFailed{Broken: true})
		if d.Next.Open != nil || d.Next.Status != lifecycle.RunRunning || !d.Next.Retried {
			t.Errorf("%+v", d.Next)
		}
	})
}

func TestCallsOfATurnThatEndsOnADrainingNode(t *testing.T) {
	d := leaves(t, runningRun(t, handsOff), asks(0, freeCall, refusedCall, gatedCall, handoffCall))
	if got := statuses(&d.Next); got != "waiting failed waiting running" || len(d.Next.Calls) != 4 {
		t.Fatalf("the calls are %s", got)
	}
	for _, f := range d.Facts { // no receipt: no call was sent, and none will be on this node
		if b, ok := f.(StepBegan); ok && b.Called > 0 && b.Idx == 1 {
			t.Errorf("%+v", b)
		}
	}
	if slices.Contains(kinds(d.Facts), "Asked") {
		t.Error("people are asked before the ungated calls have ended")
	}
	next := decide(t, d.Next, durable.Activated{Epoch: 2}, t0)
	if got := statuses(&next.Next); got != "running failed waiting running" {
		t.Fatalf("after loading, the calls are %s", got)
	}
	if got := kinds(next.Facts); !slices.Equal(got, []string{"StepCalled"}) {
		t.Errorf("%v", got)
	}
	owed := Machine{}.Owed(next.Next)
	if len(owed) != 1 || owed[0].Key() != "tool/1" {
		t.Fatalf("owes %v", owed)
	}
	ended := decide(t, next.Next, ToolAnswered{Idx: 1}, t0)
	if ended.Next.Status != lifecycle.RunWaitingApproval || !slices.Contains(kinds(ended.Facts), "Asked") {
		t.Errorf("it is %s", ended.Next.Status)
	}
	// If all calls need an approval, the run begins to wait at once.
	gated := leaves(t, runningRun(t, handsOff), asks(0, gatedCall))
	if gated.Next.Status != lifecycle.RunWaitingApproval {
		t.Errorf("it is %s", gated.Next.Status)
	}
	// A run with a decided approval does not resume on a draining node.
	c := gated.Next.Calls[0]
	c.Approval.Status = lifecycle.ApprovalRejected
	if d := leaves(t, gated.Next, msg.ApprovalsDecided{}); d.Changed {
		t.Errorf("%v", kinds(d.Facts))
	}
	if d := decide(t, gated.Next, msg.ApprovalsDecided{}, t0); !d.Changed {
		t.Error("on another node it does not resume")
	}
}
