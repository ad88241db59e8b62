package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
)

// The characters that a reader would not see, or would see elsewhere, are shown.
func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"plain äöü 漢字 👍 – “x”"}`: `{"a":"plain äöü 漢字 👍 – “x”"}`,
		"a\nb\tc\rd":                                    `a\nb\tc\rd`,
		"\x1b[2J\x00\x7f":                               `\u001b[2J\u0000\u007f`,
		"a\u202eb\u2066c\u2069\u200f":                   `a\u202eb\u2066c\u2069\u200f`,
		"zero\u200b\u200d\ufeffwidth":                   `zero\u200b\u200d\ufeffwidth`,
		"no\u00a0break\u2028line\u3000":                 `no\u00a0break\u2028line\u3000`,
		"fill\u3164\u2800\ufe0f\u034f":                  `fill\u3164\u2800\ufe0f\u034f`,
		"tag\U000e0041\U000e0101":                       `tag\U000e0041\U000e0101`,
		"private\ue000 \u0378":                          `private\ue000 \u0378`,
		"bytes \xff\xc3 and \ufffd":                     `bytes \xff\xc3 and ` + "\ufffd",
		"next line\u0085, a csi \u009b2J, soft\u00adhy": `next line\u0085, a csi \u009b2J, soft\u00adhy`,
	} {
		if got := Visible(in); got != want {
			t.Errorf("visible(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"two\nlines\tand 👩\u200d🚀": "two\nlines\tand 👩\u200d🚀",
		"\x1b]0;title\x07\r":       `\u001b]0;title\u0007\r`,
		"a\u202eb\u2067 \u009b2J":  `a\u202eb\u2067 \u009b2J`,
	} {
		if got := Harmless(in); got != want {
			t.Errorf("harmless(%q) = %q, want %q", in, got, want)
		}
	}
}

// JSON is printed so that it cannot control a terminal either, and stays the same JSON.
func TestPrintedJSONIsHarmless(t *testing.T) {
	t.Parallel()
	raw := json.RawMessage("{\"input\": \"a\u009b2J\u202e<b>\x7f👩\\u001b\\n\"}")
	var want map[string]string
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	for shown, show := range map[string]func(io.Writer, any) error{"{\n  \"input\": %s\n}\n": PrintJSON, "{\"input\":%s}\n": PrintJSONLine} {
		for _, v := range []any{raw, want} {
			var b strings.Builder
			if err := show(&b, v); err != nil {
				t.Fatal(err)
			}
			if b.String() != fmt.Sprintf(shown, `"a\u009b2J\u202e<b>\u007f👩\u001b\n"`) {
				t.Errorf("%q", b.String())
			}
			var got map[string]string
			if err := json.Unmarshal([]byte(b.String()), &got); err != nil || got["input"] != want["input"] {
				t.Errorf("%v %q", err, got)
			}
		}
	}
	var b strings.Builder
	if err := PrintJSON(&b, json.RawMessage("\"\x9b\"")); err != nil || b.String() != "\"\ufffd\"\n" {
		t.Errorf("%v %q", err, b.String())
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\u202e\x1b[2J\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Visible(s) {
			if !strconv.IsPrint(r) {
				t.Fatalf("%q shows %q", s, r)
			}
		}
		for _, r := range Harmless(s) {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || turns(r) {
				t.Fatalf("%q lets %q through", s, r)
			}
		}
	})
}
