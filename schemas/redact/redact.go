// Package redact makes the shown copy of a JSON value: values whose key looks secret are
// replaced (open-parts.md, Threads, runs, attachments, Redaction). Model and tool get the
// real value, which is kept sealed; the rule is applied once, when the shown copy is written.
//
// The rule looks at keys only. A secret under another key, or inside a text, is removed by
// the gateway that opened it and so knows it.
package redact

import (
	"encoding/json"
	"strings"
	"unicode"
)

// Mark replaces a removed value.
const Mark = "[redacted]"

var quoted = []byte(`"` + Mark + `"`)

// fragments make a key secret wherever they stand in it, tails only at its end.
// Both are compared with the key in lower case without separators.
var (
	fragments = []string{"password", "passwd", "passphrase", "passcode", "secret", "apikey", "authorization", "cookie", "credential",
		"privatekey", "accesskey", "signingkey", "encryptionkey", "masterkey", "bearer", "authtoken", "accesstoken", "refreshtoken", "sessiontoken"}
	tails  = []string{"token", "pwd", "jwt", "otp", "authheader", "connectionstring"}
	exact  = []string{"pass", "pin", "auth", "cvv", "cvc", "sessionid"}
	counts = "tokens" // secret unless it is a number, as in max_tokens
)

// Key reports whether a value under this key counts as secret.
func Key(key string) bool { return secret(plain(key)) }

func secret(k string) bool {
	for _, f := range fragments {
		if strings.Contains(k, f) {
			return true
		}
	}
	for _, t := range tails {
		if strings.HasSuffix(k, t) {
			return true
		}
	}
	for _, e := range exact {
		if k == e {
			return true
		}
	}
	return false
}

// plain returns the key in lower case with only its letters and digits.
func plain(key string) string {
	for i := 0; i < len(key); i++ {
		if c := key[i]; c < 'a' || c > 'z' {
			return strings.Map(func(r rune) rune {
				if unicode.IsLetter(r) || unicode.IsDigit(r) {
					return unicode.ToLower(r)
				}
				return -1
			}, key)
		}
	}
	return key
}

// JSON returns v with the secret values replaced, at any depth. Everything else keeps its
// bytes: the order of keys, the digits of numbers, white space. A value without secrets is
// returned as it is. Invalid JSON is replaced as a whole.
func JSON(v json.RawMessage) json.RawMessage {
	if len(v) == 0 {
		return v
	}
	if !json.Valid(v) {
		return quoted
	}
	w := walker{in: v}
	w.value()
	if w.out == nil {
		return v
	}
	return append(w.out, v[w.kept:]...)
}

// walker passes once over valid JSON. out holds everything before kept.
type walker struct {
	in   []byte
	at   int
	out  []byte
	kept int
}

func (w *walker) space() {
	for w.at < len(w.in) {
		switch w.in[w.at] {
		case ' ', '\t', '\n', '\r':
			w.at++
		default:
			return
		}
	}
}

func (w *walker) value() {
	w.space()
	switch w.in[w.at] {
	case '{':
		w.at++
		for w.more('}') {
			key := w.string()
			w.space()
			w.at++ // the colon
			w.space()
			start := w.at
			k := plain(key)
			if secret(k) || strings.HasSuffix(k, counts) && !w.number() {
				w.skip()
				w.replace(start)
				continue
			}
			w.value()
		}
	case '[':
		w.at++
		for w.more(']') {
			w.value()
		}
	case '"':
		w.pass()
	default:
		w.scalar()
	}
}

// more steps over separators; false is the end of the object or array.
func (w *walker) more(end byte) bool {
	w.space()
	if w.in[w.at] == ',' {
		w.at++
		w.space()
	}
	if w.in[w.at] == end {
		w.at++
		return false
	}
	return true
}

// pass steps over a string.
func (w *walker) pass() {
	for w.at++; w.in[w.at] != '"'; w.at++ {
		if w.in[w.at] == '\\' {
			w.at++
		}
	}
	w.at++
}

// string reads a string; escapes in a key are decoded.
func (w *walker) string() string {
	start := w.at
	w.pass()
	raw := w.in[start:w.at]
	for _, c := range raw {
		if c == '\\' {
			var s string
			if json.Unmarshal(raw, &s) == nil {
				return s
			}
			break
		}
	}
	return string(raw[1 : len(raw)-1])
}

func (w *walker) scalar() {
	for w.at < len(w.in) {
		switch w.in[w.at] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return
		}
		w.at++
	}
}

func (w *walker) number() bool {
	c := w.in[w.at]
	return c == '-' || c >= '0' && c <= '9'
}

// skip steps over a value, ignoring its keys.
func (w *walker) skip() {
	depth := 0
	for {
		w.space()
		switch w.in[w.at] {
		case '{', '[':
			depth++
			w.at++
		case '}', ']':
			depth--
			w.at++
		case '"':
			w.pass()
		case ',', ':':
			w.at++
			continue
		default:
			w.scalar()
		}
		if depth == 0 {
			return
		}
	}
}

// replace puts the mark in place of the text from start to here.
func (w *walker) replace(start int) {
	w.out = append(w.out, w.in[w.kept:start]...)
	w.out = append(w.out, quoted...)
	w.kept = w.at
}
