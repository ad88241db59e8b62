package password

import (
	"fmt"
	"strings"
	"testing"
)

func TestHashMatchesItsPasswordOnly(t *testing.T) {
	h := Hash("correct horse battery")
	if !Matches(h, "correct horse battery") {
		t.Error("the password does not match")
	}
	for _, p := range []string{"", "correct horse batter", "Correct horse battery", "correct horse battery\x00"} {
		if Matches(h, p) {
			t.Errorf("%q matches", p)
		}
	}
	if h == Hash("correct horse battery") {
		t.Error("two hashes share a salt")
	}
}

func TestMatchesRefusesWhatIsNoHashOfOurs(t *testing.T) {
	h := Hash("correct horse battery")
	for _, bad := range []string{"", "plain", strings.Replace(h, "argon2id", "argon2i", 1), strings.Replace(h, "v=19", "v=16", 1),
		strings.Replace(h, fmt.Sprintf("m=%d", memoryKiB), "m=99999999", 1), strings.Replace(h, "t=2", "t=0", 1), strings.Replace(h, "p=1", "p=300", 1), h[:len(h)-4], h + "$x"} {
		if Matches(bad, "correct horse battery") {
			t.Errorf("%q matches", bad)
		}
	}
}
