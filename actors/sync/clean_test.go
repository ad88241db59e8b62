package sync

import (
	"strings"
	"testing"
)

// TestClean: what a vendor supplies for people to read.
func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a\x00b\r\n c": "ab c", "\u202eevil": "evil", "": "id", "\xff\xfe": "id", "  x ": "x"} {
		if got := cleanName(in, "id"); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	for in, ok := range map[string]bool{"https://x/": true, "s3://b/k": true, "javascript:alert(1)": false, "data:text/html,x": false, "": false, "https://x/\u202e": false} {
		if (cleanURI(in) != nil) != ok {
			t.Errorf("%q", in)
		}
	}
	long := strings.Repeat("v", maxVersion+1)
	for in, want := range map[string]string{"c:1\x00": "c:1", long[1:]: long[1:]} {
		if got := cleanVersion(in); got != want {
			t.Errorf("%.20q: %.20q", in, got)
		}
	}
	if a, b := cleanVersion(long), cleanVersion(long+"w"); a == b || len(a) > maxVersion || a != cleanVersion(long) {
		t.Errorf("%q, %q", a, b)
	}
}
