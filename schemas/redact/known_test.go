package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
)

const known = "s3cr3t-t0ken/with+odd=chars"

// between puts a piece between all characters of s.
func between(s, piece string) string { return strings.Join(strings.Split(s, ""), piece) }

// each writes every byte of s by a format.
func each(s, format string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

// TestKnownIsSeenThroughWhatIsCleaned: one row, one way to write each of the forms
// such that what is dropped, replaced or decoded later makes it whole again.
func TestKnownIsSeenThroughWhatIsCleaned(t *testing.T) {
	forms := map[string]string{
		"plain": known, "bearer": "Bearer " + known,
		"base64": base64.StdEncoding.EncodeToString([]byte(known)), "base64, URL, no padding": base64.RawURLEncoding.EncodeToString([]byte(known)),
		"within base64": base64.StdEncoding.EncodeToString([]byte("user:" + known + ":x")),
		"query":         url.QueryEscape(known), "path": url.PathEscape(known),
		"hex": each(known, "%02x"),
	}
	ways := map[string]func(string) string{
		"as it is":                   func(s string) string { return s },
		"NUL":                        func(s string) string { return between(s, "\x00") },
		"several NULs":               func(s string) string { return between(s, "\x00\x00\x00") },
		"a control character":        func(s string) string { return between(s, "\x1b") },
		"a C1 control character":     func(s string) string { return between(s, "\u0085") },
		"delete":                     func(s string) string { return between(s, "\x7f") },
		"invalid bytes":              func(s string) string { return between(s, "\xff") },
		"the start of a character":   func(s string) string { return between(s, "\xe2\x80") },
		"the replacement character":  func(s string) string { return between(s, "\uFFFD") },
		"zero width":                 func(s string) string { return between(s, "\u200b") },
		"a joiner and a byte order":  func(s string) string { return between(s, "\u200d\ufeff") },
		"soft hyphens":               func(s string) string { return between(s, "\u00ad") },
		"overrides":                  func(s string) string { return between(s, "\u202e\u2066") },
		"tags":                       func(s string) string { return between(s, "\U000e0041") },
		"a surrogate in three bytes": func(s string) string { return between(s, "\xed\xa0\x80") },
		"line breaks":                func(s string) string { return s[:10] + "\n" + s[10:20] + "\r\n" + s[20:] },
		"spaces":                     func(s string) string { return between(s, " ") },
		"tabs":                       func(s string) string { return between(s, "\t") },
		"no-break spaces":            func(s string) string { return between(s, "\u00a0") },
		"ideographic spaces":         func(s string) string { return between(s, "\u3000") },
		"an indented line break":     func(s string) string { return s[:10] + "\n    " + s[10:] },
		"an escaped tab":             func(s string) string { return s[:10] + `\t` + s[10:] },
		"an escape of a space":       func(s string) string { return s[:10] + `\u0020` + s[10:] },
		"an escape of NUL":           func(s string) string { return between(s, `\u0000`) },
		"an escape of half a pair":   func(s string) string { return between(s, `\ud800`) },
		"an escape of zero width":    func(s string) string { return between(s, `\u200B`) },
		"an escaped line break":      func(s string) string { return s[:10] + `\n` + s[10:] },
		"every character escaped":    func(s string) string { return each(s, `\u%04x`) },
		"every second one":           func(s string) string { return s[:5] + each(s[5:9], `\u%04X`) + s[9:] },
		"escaped with NUL between":   func(s string) string { return between(s[:3], `\u0000`) + `\u0000` + each(s[3:], "\\u%04x\x00") },
		"slashes":                    func(s string) string { return strings.ReplaceAll(s, "/", `\/`) },
		"percent":                    func(s string) string { return each(s, "%%%02X") },
		"percent in lower case":      func(s string) string { return each(s, "%%%02x") },
		"percent with NUL":           func(s string) string { return strings.ReplaceAll(each(s, "%%%02x"), "%", "%00%") },
		"percent, escaped":           func(s string) string { return each(s, `\u0025%02x`) },
	}
	m := NewKnown(known)
	for way, write := range ways {
		for form, s := range forms {
			disguised := write(s)
			got := m.Text("before " + disguised + " after")
			if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || !strings.Contains(got, Mark) {
				t.Errorf("%s, %s: %q -> %q", form, way, disguised, got)
				continue
			}
			// Of a form within something longer a few characters at its ends may stay.
			if left := strings.TrimSpace(strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(got, "before "), " after"), Mark, "")); form != "bearer" && form != "within base64" && strings.Trim(left, "=%3Dd\x00\\u025") != "" {
				t.Errorf("%s, %s: left %q", form, way, left)
			}
			// In JSON, as a value and as a key, and as text that is JSON itself.
			quoted, err := json.Marshal(disguised)
			if err != nil {
				t.Fatal(err)
			}
			doc := m.JSON([]byte(`{"k":[` + string(quoted) + `],` + string(quoted) + `:1}`))
			if !json.Valid(doc) || strings.Count(string(doc), Mark) < 2 {
				t.Errorf("%s, %s: in JSON %s", form, way, doc)
			}
			text := m.Text(`{"k":` + string(quoted) + `}`)
			if !json.Valid([]byte(text)) {
				t.Errorf("%s, %s: as JSON text %s", form, way, text)
			}
		}
	}
}

// Text that is not the credential keeps its bytes, including noise and escapes.
func TestKnownLeavesTheRest(t *testing.T) {
	m := NewKnown(known)
	for _, s := range []string{
		"", "plain", "a\x00b\u200bc\xff", `{"a":"\u0000\ud800 \/ \\ \" \n"}`, "100 % sure, %zz %4", `C:\users\u12`, `\`, `\u`, `\u00`, "%", "%4",
		known[:len(known)-1], between(known[:len(known)-1], "\x00") + "\x00x", between(known, "."), "s\u0301" + known[1:], strings.Repeat("s", 1000) + `\`,
	} {
		if got := m.Text(s); got != s {
			t.Errorf("%q -> %q", s, got)
		}
	}
	if got := NewKnown("abc").Text("a\x00b\x00c"); got != Mark {
		t.Errorf("a short one with NUL: %q", got)
	}
	// A short one is not looked for across white space: that would hide ordinary words.
	for secret, s := range map[string]string{"abcd": "ab cd", "to be it": "to\nbeit tobeit"} {
		if got := NewKnown(secret).Text(s); got != s {
			t.Errorf("%q in %q -> %q", secret, s, got)
		}
	}
	if got := (*Known)(nil).Text("x"); got != "x" {
		t.Error(got)
	}
}

// A credential that has spaces itself is found whatever white space it comes with.
func TestASecretOfWords(t *testing.T) {
	m := NewKnown("correct horse battery")
	for _, s := range []string{"correct horse battery", "correct  horse\tbattery", "correct\n  horse\nbattery", "correcthorsebattery", `correct\u00a0horse\tbattery`, "correct%20horse%09battery"} {
		if got := m.Text("key: " + s + "."); got != "key: "+Mark+"." {
			t.Errorf("%q -> %q", s, got)
		}
	}
}

// hostile are credentials, and texts that almost hold them at every place.
func hostile(n int) map[string][2]string {
	fill := func(s string) string { return strings.Repeat(s, n/len(s)+1)[:n] }
	run, period := strings.Repeat("a", 8191)+"b", strings.Repeat("abcdefghijklmnop", 511)+"!"
	return map[string][2]string{
		"a run":            {run, fill("a")},
		"a run, noise":     {run, fill("a\x00")},
		"only noise":       {run, "a" + fill("\x00")},
		"only spaces":      {run, "a" + fill(" ")},
		"a run, broken":    {run, fill(strings.Repeat("a", 8190) + "c")},
		"a period":         {period, fill("abcdefghijklmnop")},
		"escapes":          {run, fill(`\u0061`)},
		"escapes of noise": {run, fill(`a\u0000`)},
		"percent":          {run, fill("%61")},
		"percent, escaped": {run, fill(`\u002561`)},
		"half characters":  {run, fill("%e2%80")},
		"backslashes":      {run, fill(`\`)},
		"of a short one":   {"aaab", fill("a")},
	}
}

// TestWorkGrowsWithTheText: each reading reads a text a few times only, and each
// search passes over it once.
func TestWorkGrowsWithTheText(t *testing.T) {
	for says, c := range hostile(20_000) {
		m, text := NewKnown(c[0]), c[1]
		reads := 0
		counted := func(s string, i int) (rune, int) {
			reads++
			return raw(s, i)
		}
		for name, in := range map[string]reader{"raw": counted, "unescaped": unescaped(counted), "percents": percents(counted), "both": percents(unescaped(counted))} {
			if reads = 0; m.hide(text, in) != text || reads > 40*len(text) {
				t.Errorf("%s, %s: %d reads for %d bytes", says, name, reads, len(text))
			}
		}
		for _, p := range m.clean {
			s := search{pattern: p, in: text}
			for s.next() {
			}
			if s.steps > 2*len(text) {
				t.Errorf("%s, %.40s: %d steps for %d bytes", says, p.text, s.steps, len(text))
			}
		}
	}
	for says, c := range hostile(1 << 17) { // would take hours at the length of text by that of the credential
		text := c[1] + "\x00\\%"
		if got := NewKnown(c[0]).Text(text); got != text {
			t.Errorf("%s: %d bytes of %d", says, len(got), len(text))
		}
		if got := NewKnown(c[0]).Text(text + c[0]); got != text+Mark {
			t.Errorf("%s: ends with %q", says, got[max(0, len(got)-40):])
		}
	}
}

// TestFinder compares with a search that tries each pattern at each place.
func TestFinder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[r.IntN(2)]
		}
		return string(b)
	}
	for range 5_000 {
		var texts []string
		for range 1 + r.IntN(4) {
			texts = append(texts, draw(1+r.IntN(6)))
		}
		slices.SortStableFunc(texts, func(a, b string) int { return len(b) - len(a) })
		var patterns []*pattern
		for _, s := range texts {
			patterns = append(patterns, newPattern(s))
		}
		in := draw(r.IntN(60))
		var want, got [][2]int
		for i := 0; i < len(in); {
			if k := slices.IndexFunc(texts, func(s string) bool { return strings.HasPrefix(in[i:], s) }); k >= 0 {
				want = append(want, [2]int{i, i + len(texts[k])})
				i += len(texts[k])
			} else {
				i++
			}
		}
		f := newFinder(patterns, in)
		for from, to, ok := f.next(); ok; from, to, ok = f.next() {
			got = append(got, [2]int{from, to})
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q in %q: %v, want %v", texts, in, got, want)
		}
	}
}

// The time that a hostile text takes grows with its length and the credential's.
func BenchmarkKnownHostile(b *testing.B) {
	m := NewKnown(strings.Repeat("s", 63) + "x")
	for name, text := range map[string]string{"repeats": strings.Repeat("s", 1<<20), "noise": strings.Repeat("s\x00\x00\x00", 1<<18), "escapes": strings.Repeat(`\u0073`, 1<<17)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.Text(text)
			}
		})
	}
}
