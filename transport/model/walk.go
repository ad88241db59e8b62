package model

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// walk reads JSON that is known to be valid, without allocating: a stream has hundreds of
// small objects with three interesting fields each. A value of another type than requested is
// skipped and reads as zero.
type walk struct {
	b   []byte
	i   int
	buf []byte // the unescaped strings of this text, one after the other
}

// reset begins another text in the same memory; earlier strings become invalid.
func (w *walk) reset(b []byte) { w.b, w.i, w.buf = b, 0, w.buf[:0] }

// peek returns the first byte of the next value, key or bracket.
func (w *walk) peek() byte {
	for ; w.i < len(w.b); w.i++ {
		switch c := w.b[w.i]; c {
		case ' ', '\t', '\n', '\r', ',', ':':
		default:
			return c
		}
	}
	return 0
}

// object enters an object: for w.object() { for w.key(…) {…} }.
func (w *walk) object() bool { return w.enter('{') }

// array enters an array: if w.array() { for w.elem() {…} }.
func (w *walk) array() bool { return w.enter('[') }

func (w *walk) enter(c byte) bool {
	if w.peek() == c {
		w.i++
		return true
	}
	w.skip()
	return false
}

// key returns the next key of the current object; at its end it leaves the object. The caller
// must read or skip the value.
func (w *walk) key() (k []byte, ok bool) {
	if w.peek() != '"' {
		w.i++
		return nil, false
	}
	return w.str(), true
}

// elem reports whether the current array has another element; at its end it leaves the array.
// The caller must read or skip the element.
func (w *walk) elem() bool {
	if w.peek() == ']' || w.i >= len(w.b) {
		w.i++
		return false
	}
	return true
}

// raw returns the next value as written.
func (w *walk) raw() []byte {
	w.peek()
	start := w.i
	w.skip()
	return w.b[start:w.i]
}

// skip skips the next value.
func (w *walk) skip() {
	depth := 0
	for {
		switch c := w.peek(); c {
		case 0:
			return
		case '{', '[':
			depth++
			w.i++
		case '}', ']':
			depth--
			w.i++
		case '"':
			w.i++
			for w.i < len(w.b) && w.b[w.i] != '"' {
				if w.b[w.i] == '\\' {
					w.i++
				}
				w.i++
			}
			w.i++
		default:
			for w.i < len(w.b) && !isEnd(w.b[w.i]) {
				w.i++
			}
		}
		if depth <= 0 {
			return
		}
	}
}

func isEnd(c byte) bool {
	return c == ',' || c == ']' || c == '}' || c == ':' || c == ' ' || c == '\n' || c == '\t' || c == '\r'
}

// int returns the next value as an integer, 0 if it is not a number.
func (w *walk) int() int64 {
	if c := w.peek(); c != '-' && (c < '0' || c > '9') {
		w.skip()
		return 0
	}
	n, err := strconv.ParseInt(string(w.raw()), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// str returns the next value as the bytes of a string, nil if it is not a string. They are
// valid until the next reset. Invalid UTF-8 is kept, and so is half a surrogate pair, encoded
// in three bytes: its other half may follow (see text).
func (w *walk) str() []byte {
	if w.peek() != '"' {
		w.skip()
		return nil
	}
	w.i++
	rest := w.b[w.i:]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		w.i = len(w.b)
		return nil
	}
	if bytes.IndexByte(rest[:end], '\\') < 0 {
		w.i += end + 1
		return rest[:end:end]
	}
	start, buf := len(w.buf), w.buf
	for w.i < len(w.b) {
		c := w.b[w.i]
		w.i++
		if c == '"' {
			break
		}
		if c != '\\' || w.i >= len(w.b) {
			buf = append(buf, c)
			continue
		}
		c = w.b[w.i]
		w.i++
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			buf = w.unicode(buf)
			continue
		}
		buf = append(buf, c)
	}
	w.buf = buf
	return buf[start:len(buf):len(buf)]
}

func (w *walk) unicode(buf []byte) []byte {
	u := w.hex4()
	if u >= 0xD800 && u < 0xDC00 && w.i+6 <= len(w.b) && w.b[w.i] == '\\' && w.b[w.i+1] == 'u' {
		at := w.i
		w.i += 2
		if low := w.hex4(); low >= 0xDC00 && low < 0xE000 {
			return utf8.AppendRune(buf, 0x10000+(u-0xD800)<<10+(low-0xDC00))
		}
		w.i = at
	}
	if u >= 0xD800 && u < 0xE000 {
		return append(buf, 0xE0|byte(u>>12), 0x80|byte(u>>6)&0x3F, 0x80|byte(u)&0x3F)
	}
	return utf8.AppendRune(buf, u)
}

func (w *walk) hex4() (u rune) {
	for n := 0; n < 4 && w.i < len(w.b); n++ {
		c := w.b[w.i] | 0x20
		if c >= 'a' {
			c -= 'a' - 10
		} else {
			c -= '0'
		}
		u = u<<4 | rune(c&0xF)
		w.i++
	}
	return u
}
