package problem

import "testing"

// A cut text is no longer than it may be, and has no partial character.
func TestClip(t *testing.T) {
	for _, c := range []struct {
		s                   string
		n                   int
		byRune, clip, start string
	}{
		{"", 0, "", "", ""},
		{"abc", 3, "abc", "abc", "abc"},
		{"abcd", 3, "abc…", "abc…", "abc"},
		{"aéb", 4, "aéb", "aéb", "aéb"},
		{"aéb", 3, "aéb", "aé…", "aé"},
		{"aéb", 2, "aé…", "a…", "a"},
		{"aéb", 0, "…", "…", ""},
		{"\x80\x80", 1, "\x80…", "…", ""}, // no character begins in it
	} {
		if got := Clip(c.s, c.n); got != c.byRune {
			t.Errorf("Clip(%q, %d) is %q, want %q", c.s, c.n, got, c.byRune)
		}
		if got := ClipBytes(c.s, c.n); got != c.clip {
			t.Errorf("ClipBytes(%q, %d) is %q, want %q", c.s, c.n, got, c.clip)
		}
		if got := CutBytes(c.s, c.n); got != c.start {
			t.Errorf("CutBytes(%q, %d) is %q, want %q", c.s, c.n, got, c.start)
		}
	}
}
