package msg

import "testing"

// repeatable is cluster.Repeatable.
type repeatable interface{ Repeatable() }

// Messages asked by the edge are repeated when their owner is lost; messages told between
// actors are not.
func TestWhatIsAskedIsRepeatable(t *testing.T) {
	for _, m := range []any{Post{}, DeleteThread{}, StartOne{}, CancelRun{}, Decide{}} {
		if _, ok := m.(repeatable); !ok {
			t.Errorf("%T is asked once", m)
		}
	}
	for _, m := range []any{Proceed{}, RunEnded{}, AcquireSlot{}, SlotGranted{}, ReleaseSlot{}, TakeSlot{}, ApprovalsDecided{}} {
		if _, ok := m.(repeatable); ok {
			t.Errorf("%T is told", m)
		}
	}
}
