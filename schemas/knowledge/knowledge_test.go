package knowledge

import (
	"slices"
	"testing"

	"agentsvc/schemas/id"
)

func TestMarks(t *testing.T) {
	t.Parallel()
	a, b := id.DocumentID{UUID: id.NewAnywhere()}, id.DocumentID{UUID: id.NewAnywhere()}
	text := "As [" + Cite(a, 3) + "] says, and [" + Cite(b, 0) + "][" + Cite(a, 3) + "]. Not [kb:x#1], kb:" + a.String() + "#4 or [kb:" + a.String() + "#]."
	if got, want := Marks(text), []Mark{{a, 3}, {b, 0}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestViewer(t *testing.T) {
	t.Parallel()
	u := id.EndUserID{UUID: id.NewAnywhere()}
	if got := Viewer(nil, []string{"staff"}); !slices.Equal(got, []string{Public}) {
		t.Errorf("nobody: %v", got)
	}
	if got, want := Viewer(&u, []string{"staff", "public"}), []string{"public", "end_user:" + u.String(), "group:staff", "group:public"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
