package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// shortest is the minimum length of a credential that is searched for inside longer text. A
// shorter one is hidden only as a whole value; otherwise it would destroy every answer.
const shortest = 4

// Known is one credential and the forms in which it may come back: plain, base64, hex, URL
// and JSON. A nil Known hides nothing.
//
// It is found also if characters stand between its own that are dropped, replaced or
// invisible on the way to a reader (noise), and if its characters are written as escapes. So
// hiding works both before and after a text is cleaned; text to show is still cleaned first.
type Known struct {
	secret string
	forms  []string   // longest first
	plain  []*pattern // the forms
	clean  []*pattern // the forms without noise, longest first
	spaces bool       // white space counts as noise
}

// minBroken is the minimum length, without white space, of a credential that is found across white space: parts of an answer
// were joined, base64 was wrapped, a header was folded or a text indented, and one that has spaces itself came with others.
const minBroken = 8

// NewKnown returns the forms of a credential.
func NewKnown(secret string) *Known {
	m := &Known{secret: secret, spaces: len(strings.Join(strings.Fields(secret), "")) >= minBroken}
	if len(secret) < shortest {
		return m
	}
	add := func(forms ...string) {
		for _, f := range forms {
			if len(f) >= shortest && !slices.Contains(m.forms, f) {
				m.forms = append(m.forms, f)
			}
		}
	}
	add(secret)
	for _, s := range []string{secret, "Bearer " + secret} {
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
			add(e.EncodeToString([]byte(s)))
		}
	}
	// Inside the base64 of a longer text, only the characters that no neighbouring byte
	// affects are known; there are three alignments.
	for before, skip := range []int{0, 2, 3} {
		padded := append(make([]byte, before), secret...)
		whole := len(padded) * 8 / 6
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			if core := e.EncodeToString(padded)[skip:whole]; len(core) >= 8 {
				add(core)
			}
		}
	}
	add(hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))))
	for _, esc := range []string{url.QueryEscape(secret), url.PathEscape(secret)} {
		add(esc, lowerEscapes(esc))
	}
	for _, html := range []bool{true, false} {
		quoted := quote(secret, html)
		inner := string(quoted[1 : len(quoted)-1])
		add(inner, strings.ReplaceAll(inner, "/", `\/`))
	}
	slices.SortStableFunc(m.forms, func(a, b string) int { return len(b) - len(a) })
	for _, f := range m.forms {
		m.plain = append(m.plain, newPattern(f))
		kept := m.read(f, raw)
		if utf8.RuneCountInString(kept) >= shortest && !slices.ContainsFunc(m.clean, func(p *pattern) bool { return p.text == kept }) {
			m.clean = append(m.clean, newPattern(kept))
		}
	}
	slices.SortStableFunc(m.clean, func(a, b *pattern) int { return len(b.text) - len(a.text) })
	return m
}

// Forms returns the forms that are searched for.
func (m *Known) Forms() []string { return m.forms }

// noise reports whether a character between those of a credential may be dropped or invisible
// for a reader: control characters, invisible characters, replacements of invalid UTF-8, and white space.
func (m *Known) noise(r rune) bool {
	switch {
	case r == ' ' || r == '\n' || r == '\r' || r == '\t':
		return m.spaces
	case r < 0x20, r >= 0x7f && r < 0xa0, r == utf8.RuneError:
		return true
	case r < 0x7f:
		return false
	case m.spaces && unicode.IsSpace(r):
		return true
	case r < 0xad:
		return false
	}
	return r == 0xad || r == 0x34f || r == 0x61c || r == 0x115f || r == 0x1160 || r == 0x17b4 || r == 0x17b5 || r >= 0x180b && r <= 0x180f ||
		r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2060 && r <= 0x206f || r == 0x3164 || r >= 0xfe00 && r <= 0xfe0f ||
		r == 0xfeff || r == 0xffa0 || r >= 0xfff0 && r <= 0xfffc || r >= 0xd800 && r <= 0xdfff || r >= 0xe0000 && r <= 0xe0fff
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

func quote(s string, html bool) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(s) != nil { // a string can always be encoded
		return []byte(`""`)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Text returns s without the credential.
func (m *Known) Text(s string) string {
	if m == nil || m.secret == "" {
		return s
	}
	if s == m.secret {
		return Mark
	}
	s = m.replace(s)
	if len(s) < 2*shortest && len(m.forms) == 0 { // a short credential is hidden as a whole value
		return m.short(s)
	}
	if m.noisy(s) {
		s = m.hide(s, raw)
	}
	escaped, percent := strings.IndexByte(s, '\\') >= 0, strings.IndexByte(s, '%') >= 0
	if escaped {
		s = m.hide(s, unescaped(raw))
	}
	if percent {
		s = m.hide(s, percents(raw))
	}
	if escaped && (percent || strings.Contains(s, `\u0025`)) {
		s = m.hide(s, percents(unescaped(raw)))
	}
	return s
}

// short hides a credential that is too short to search for inside longer text.
func (m *Known) short(s string) string {
	kept := strings.Map(func(r rune) rune {
		if m.noise(r) {
			return -1
		}
		return r
	}, s)
	if kept == m.secret {
		return Mark
	}
	return s
}

// noisy reports whether s holds any noise.
func (m *Known) noisy(s string) bool {
	for _, r := range s {
		if m.noise(r) {
			return true
		}
	}
	return false
}

// reader decodes the character of a text at i, in the way of one kind of reader, and returns
// where the next one begins.
type reader func(s string, i int) (r rune, next int)

// raw reads a text as it is.
func raw(s string, i int) (rune, int) {
	r, n := utf8.DecodeRuneInString(s[i:])
	return r, i + n
}

// unescaped decodes JSON escapes in the characters that in returns.
func unescaped(in reader) reader {
	hex4 := func(s string, i int) (r rune, next int, ok bool) {
		for range 4 {
			if i >= len(s) {
				return 0, i, false
			}
			var c rune
			c, i = in(s, i)
			d := digit(c)
			if d < 0 {
				return 0, i, false
			}
			r = r<<4 | d
		}
		return r, i, true
	}
	return func(s string, i int) (rune, int) {
		c, next := in(s, i)
		if c != '\\' || next >= len(s) {
			return c, next
		}
		switch d, after := in(s, next); d {
		case '/', '"', '\\':
			return d, after
		case 'n':
			return '\n', after
		case 'r':
			return '\r', after
		case 't':
			return '\t', after
		case 'b', 'f':
			return '\b', after
		case 'u':
			r, end, ok := hex4(s, after)
			if !ok {
				break
			}
			if !utf16.IsSurrogate(r) || end >= len(s) {
				return r, end
			}
			if c, i := in(s, end); c == '\\' && i < len(s) {
				if c, i = in(s, i); c == 'u' {
					if low, both, ok := hex4(s, i); ok && utf16.DecodeRune(r, low) != utf8.RuneError {
						return utf16.DecodeRune(r, low), both
					}
				}
			}
			return r, end // half of a pair: noise
		}
		return c, next
	}
}

// percents decodes percent-encoding in the characters that in returns.
func percents(in reader) reader {
	octet := func(s string, i int) (b byte, next int, ok bool) {
		c, i := in(s, i)
		if c != '%' {
			return 0, i, false
		}
		for range 2 {
			if i >= len(s) {
				return 0, i, false
			}
			c, i = in(s, i)
			d := digit(c)
			if d < 0 {
				return 0, i, false
			}
			b = b<<4 | byte(d)
		}
		return b, i, true
	}
	return func(s string, i int) (rune, int) {
		b, next, ok := octet(s, i)
		if !ok {
			return in(s, i)
		}
		bytes := []byte{b}
		for !utf8.FullRune(bytes) && next < len(s) {
			b, after, ok := octet(s, next)
			if !ok {
				break
			}
			bytes, next = append(bytes, b), after
		}
		r, _ := utf8.DecodeRune(bytes)
		return r, next
	}
}

// digit returns the value of a hexadecimal digit, -1 for other characters.
func digit(c rune) rune {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return -1
}

// replace replaces the forms that occur literally.
func (m *Known) replace(s string) string {
	f := newFinder(m.plain, s)
	var out strings.Builder
	end := 0
	for from, to, ok := f.next(); ok; from, to, ok = f.next() {
		out.WriteString(s[end:from])
		out.WriteString(Mark)
		end = to
	}
	if end == 0 {
		return s
	}
	out.WriteString(s[end:])
	return out.String()
}

// hide replaces the credential where in decodes it. It decodes the whole text first and then
// searches it; a second pass finds the positions of the matches in s. So the work grows only
// with the length of the text.
func (m *Known) hide(s string, in reader) string {
	f := newFinder(m.clean, m.read(s, in))
	from, to, ok := f.next()
	if !ok {
		return s
	}
	var out strings.Builder
	end, start, at := 0, 0, 0 // at is the position in the decoded text
	for i := 0; i < len(s) && ok; {
		r, next := in(s, i)
		if !m.noise(r) {
			if at == from {
				start = i
			}
			if at += utf8.RuneLen(r); at == to {
				out.WriteString(s[end:start])
				out.WriteString(Mark)
				end = next
				from, to, ok = f.next()
			}
		}
		i = next
	}
	out.WriteString(s[end:])
	return out.String()
}

// read returns s as in decodes it, without noise.
func (m *Known) read(s string, in reader) string {
	var b strings.Builder
	b.Grow(len(s)) // decoding never makes a text longer
	for i := 0; i < len(s); {
		if c := s[i]; c > ' ' && c < 0x7f && c != '\\' && c != '%' { // the same for every reader
			b.WriteByte(c)
			i++
			continue
		}
		r, next := in(s, i)
		if !m.noise(r) {
			b.WriteRune(r)
		}
		i = next
	}
	return b.String()
}

// JSON returns v with the credential removed from its strings, including keys, and replaced
// where it is a number. All other bytes stay as they are. v must be valid.
func (m *Known) JSON(v []byte) []byte {
	if m == nil || m.secret == "" {
		return v
	}
	var out []byte // nil while nothing has changed
	from := 0
	put := func(start, end int, with []byte) {
		out = append(append(out, v[from:start]...), with...)
		from = end
	}
	for i := 0; i < len(v); {
		end := i + 1
		switch c := v[i]; {
		case c == '"':
			for v[end] != '"' {
				if v[end] == '\\' {
					end++
				}
				end++
			}
			end++
			var s string
			if json.Unmarshal(v[i:end], &s) == nil {
				if hidden := m.Text(s); hidden != s {
					put(i, end, quote(hidden, false))
				}
			}
		case c == '-' || c >= '0' && c <= '9':
			for end < len(v) && strings.IndexByte("+-.eE0123456789", v[end]) >= 0 {
				end++
			}
			if string(v[i:end]) == m.secret {
				put(i, end, quote(Mark, false))
			}
		}
		i = end
	}
	if from == 0 {
		return v
	}
	return append(out, v[from:]...)
}
