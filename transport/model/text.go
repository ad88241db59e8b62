package model

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// text collects one kind of a model's output. Input pieces may be cut anywhere, also inside a
// character. The output is valid UTF-8 without U+0000; an incomplete character waits for its
// rest.
type text struct {
	b    strings.Builder
	tail []byte // the beginning of an incomplete character
}

// add appends a piece and returns the text gained, which shares memory with the whole text.
func (t *text) add(p []byte) string {
	start := t.b.Len()
	if len(t.tail) == 0 && utf8.Valid(p) && bytes.IndexByte(p, 0) < 0 {
		t.b.Write(p)
		return t.b.String()[start:]
	}
	rest := append(t.tail, p...)
	for len(rest) > 0 {
		size, r, whole := character(rest)
		if !whole {
			break
		}
		if r != 0 {
			t.b.WriteRune(r)
		}
		rest = rest[size:]
	}
	t.tail = append([]byte(nil), rest...)
	return t.b.String()[start:]
}

// flush stops waiting for the rest of an incomplete character.
func (t *text) flush() string {
	if len(t.tail) == 0 {
		return ""
	}
	t.tail = nil
	start := t.b.Len()
	t.b.WriteRune(utf8.RuneError)
	return t.b.String()[start:]
}

// character returns the first character of b; whole is false if its rest may still come. A
// surrogate pair encoded as two times three bytes is one character.
func character(b []byte) (size int, r rune, whole bool) {
	if len(b) < 2 || b[0] != 0xED || b[1] < 0xA0 {
		if !utf8.FullRune(b) {
			return 0, 0, false
		}
		r, size = utf8.DecodeRune(b)
		return size, r, true
	}
	if len(b) < 3 && b[1] <= 0xBF {
		return 0, 0, false
	}
	if len(b) < 3 {
		return 1, utf8.RuneError, true
	}
	high, ok := half(b)
	switch {
	case !ok:
		return 1, utf8.RuneError, true
	case high >= 0xDC00: // the low half came first
		return 3, utf8.RuneError, true
	}
	low := b[3:]
	if len(low) >= 3 {
		if l, ok := half(low); ok && l >= 0xDC00 {
			return 6, 0x10000 + (high-0xD800)<<10 + (l - 0xDC00), true
		}
		return 3, utf8.RuneError, true
	}
	waits := len(low) == 0 || low[0] == 0xED && (len(low) == 1 || low[1] >= 0xB0 && low[1] <= 0xBF)
	return 3, utf8.RuneError, !waits
}

// half decodes half a surrogate pair from three bytes.
func half(b []byte) (r rune, ok bool) {
	if b[0] != 0xED || b[1] < 0xA0 || b[1] > 0xBF || b[2]&0xC0 != 0x80 {
		return 0, false
	}
	return 0xD000 | rune(b[1]&0x3F)<<6 | rune(b[2]&0x3F), true
}
