package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"agentsvc/schemas/redact"
)

// redacted is what a person may leave in edited arguments: see tool.Unmask.
const redacted = redact.Mark

// shortest is the length from which a credential is looked for inside of longer
// text; a shorter one is only a whole value, or every answer would be in shreds.
const shortest = 4

// mask knows the shapes in which one credential may come back.
type mask struct {
	secret string
	forms  []string // longest first
}

func newMask(secret string) *mask {
	m := &mask{secret: secret}
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
	// Within the base64 of something longer, only the characters that no
	// neighbouring byte has a part in are known; there are three alignments.
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
	return m
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
	if e.Encode(s) != nil { // a string always encodes
		return []byte(`""`)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// text removes the credential from s.
func (m *mask) text(s string) string {
	if m == nil || m.secret == "" {
		return s
	}
	if s == m.secret {
		return redacted
	}
	for _, f := range m.forms {
		if strings.Contains(s, f) {
			pairs := make([]string, 0, 2*len(m.forms))
			for _, f := range m.forms {
				pairs = append(pairs, f, redacted)
			}
			s = strings.NewReplacer(pairs...).Replace(s)
			break
		}
	}
	if len(m.forms) > 0 && (strings.Contains(s, `\u`) || strings.Contains(s, `\/`)) {
		s = m.escaped(s)
	}
	return s
}

// escaped removes the credential where any of its characters are written as JSON
// escapes.
func (m *mask) escaped(s string) string {
	var out strings.Builder
	from := 0
	for i := 0; i < len(s); {
		if s[i] != '\\' && s[i] != m.secret[0] {
			i++
			continue
		}
		if end := m.reads(s, i); end > 0 {
			out.WriteString(s[from:i])
			out.WriteString(redacted)
			i, from = end, end
			continue
		}
		_, n := unescape(s[i:])
		i += n
	}
	if from == 0 {
		return s
	}
	return out.String() + s[from:]
}

// reads is where the credential ends that begins at i, 0 where none does.
func (m *mask) reads(s string, i int) int {
	for left := m.secret; left != ""; {
		if i == len(s) {
			return 0
		}
		c, n := unescape(s[i:])
		if !strings.HasPrefix(left, c) {
			return 0
		}
		left, i = left[len(c):], i+n
	}
	return i
}

// unescape is the first character of s, which is not empty, and how much of s it
// takes.
func unescape(s string) (c string, n int) {
	if s[0] != '\\' || len(s) < 2 {
		return s[:1], 1
	}
	switch s[1] {
	case '/', '"', '\\':
		return s[1:2], 2
	case 'u':
		r := hex4(s[2:])
		if utf16.IsSurrogate(r) {
			if r = utf8.RuneError; len(s) >= 12 && s[6:8] == `\u` {
				r = utf16.DecodeRune(hex4(s[2:]), hex4(s[8:]))
			}
			if r != utf8.RuneError {
				return string(r), 12
			}
		} else if r >= 0 {
			return string(r), 6
		}
	}
	return s[:1], 1
}

// hex4 is the number that s begins with, of four digits; -1 where there is none.
func hex4(s string) rune {
	if len(s) < 4 {
		return -1
	}
	var r rune
	for _, c := range []byte(s[:4]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// json removes the credential from the strings of v, keys too, and where it is a
// number, as a value. All other bytes stay as they are. v must be valid.
func (m *mask) json(v []byte) []byte {
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
				if hidden := m.text(s); hidden != s {
					put(i, end, quote(hidden, false))
				}
			}
		case c == '-' || c >= '0' && c <= '9':
			for end < len(v) && strings.IndexByte("+-.eE0123456789", v[end]) >= 0 {
				end++
			}
			if string(v[i:end]) == m.secret {
				put(i, end, quote(redacted, false))
			}
		}
		i = end
	}
	if from == 0 {
		return v
	}
	return append(out, v[from:]...)
}
