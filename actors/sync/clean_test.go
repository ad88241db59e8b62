package sync

import "testing"

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
}
