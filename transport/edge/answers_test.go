package edge

import (
	"testing"

	"agentsvc/schemas/id"
)

// The accounts of a node share a limit, above which each may hold one answer.
func TestAnswersOfANodeAreBounded(t *testing.T) {
	var a large
	for range heldAll / heldEach {
		of := account{tenant: id.TenantID{UUID: id.NewAnywhere()}}
		for range 2 {
			if !a.take(of, heldEach/2) {
				t.Fatal("an account may not hold as much as it may")
			}
		}
		if a.take(of, 1) {
			t.Fatal("an account may hold more than it may")
		}
	}
	of := account{tenant: id.TenantID{UUID: id.NewAnywhere()}}
	if !a.take(of, heldEach) || a.take(of, 1) {
		t.Error("with everything taken, an account may hold one answer")
	}
	if a.over(of) {
		t.Error("reads alone keep an account from changes")
	}
}
