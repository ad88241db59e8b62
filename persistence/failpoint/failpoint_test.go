package failpoint

import (
	"slices"
	"testing"
)

func TestDeclaredPointsAreListedSorted(t *testing.T) {
	Declare("test.b")
	Declare("test.a")
	names := Names()
	if !slices.IsSorted(names) || !slices.Contains(names, "test.a") || !slices.Contains(names, "test.b") {
		t.Errorf("names: %v", names)
	}
}

func TestANameIsDeclaredOnce(t *testing.T) {
	Declare("test.once")
	defer func() {
		if recover() == nil {
			t.Error("the second declaration did not panic")
		}
	}()
	Declare("test.once")
}

func TestHitOfAnotherPointReturns(t *testing.T) {
	Hit("test.never")
}
