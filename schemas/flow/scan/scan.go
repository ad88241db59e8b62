// Package scan reads parts of a JSON text without decoding the rest. Documents of tenants are
// read this way because a decoded value can take fifty times the memory of its text.
//
// Every function takes valid JSON (encoding/json.Valid); the result of anything else is
// undefined. Time is linear in the length of the text, nesting takes no stack, and the parts
// returned are slices of the text.
package scan

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// Kind is the type of a JSON value.
type Kind byte

// Values of Kind.
const (
	Object Kind = '{'
	List   Kind = '['
	String Kind = '"'
	Number Kind = '0'
	Bool   Kind = 't'
	Null   Kind = 'n'
)

// KindOf returns the type of a value; an empty text counts as null.
func KindOf(raw []byte) Kind {
	i := space(raw, 0)
	if i == len(raw) {
		return Null
	}
	switch c := raw[i]; c {
	case '{', '[', '"', 'n':
		return Kind(c)
	case 't', 'f':
		return Bool
	}
	return Number
}

// Trim returns the text without the white space around it.
func Trim(raw []byte) []byte {
	i, j := space(raw, 0), len(raw)
	for j > i && blank(raw[j-1]) {
		j--
	}
	return raw[i:j]
}

// Members calls f with each member of an object, in the order of the text, until f returns
// false. A text that is no object has no members.
func Members(raw []byte, f func(key string, value []byte) bool) {
	i := space(raw, 0)
	if i == len(raw) || raw[i] != '{' {
		return
	}
	for i = space(raw, i+1); raw[i] != '}'; i = space(raw, i) {
		if raw[i] == ',' {
			i = space(raw, i+1)
		}
		end := stringEnd(raw, i)
		key := Text(raw[i:end])
		i = space(raw, space(raw, end)+1) // behind the colon
		end = valueEnd(raw, i)
		if !f(key, raw[i:end]) {
			return
		}
		i = end
	}
}

// Items calls f with each item of a list, in order, until f returns false. A text that is no
// list has no items.
func Items(raw []byte, f func(value []byte) bool) {
	i := space(raw, 0)
	if i == len(raw) || raw[i] != '[' {
		return
	}
	for i = space(raw, i+1); raw[i] != ']'; i = space(raw, i) {
		if raw[i] == ',' {
			i = space(raw, i+1)
		}
		end := valueEnd(raw, i)
		if !f(raw[i:end]) {
			return
		}
		i = end
	}
}

// Member returns the value of a member; of several with the same name the last, as
// encoding/json does.
func Member(raw []byte, name string) (value []byte, ok bool) {
	Members(raw, func(key string, v []byte) bool {
		if key == name {
			value, ok = v, true
		}
		return true
	})
	return value, ok
}

// Item returns an item of a list by its position.
func Item(raw []byte, position int) (value []byte, ok bool) {
	n := 0
	Items(raw, func(v []byte) bool {
		if n == position {
			value, ok = v, true
		}
		n++
		return !ok
	})
	return value, ok
}

// Text returns the value of a string, always valid UTF-8.
func Text(raw []byte) string {
	raw = Trim(raw)
	body := raw[1 : len(raw)-1]
	if bytes.IndexByte(body, '\\') < 0 && utf8.Valid(body) {
		return string(body)
	}
	var s string
	_ = json.Unmarshal(raw, &s) // cannot fail: raw is a valid string
	return s
}

func blank(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func space(raw []byte, i int) int {
	for i < len(raw) && blank(raw[i]) {
		i++
	}
	return i
}

// stringEnd returns the position behind the string that begins at i.
func stringEnd(raw []byte, i int) int {
	for i++; raw[i] != '"'; i++ {
		if raw[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// valueEnd returns the position behind the value that begins at i.
func valueEnd(raw []byte, i int) int {
	depth := 0
	for i < len(raw) {
		switch raw[i] {
		case '"':
			if i = stringEnd(raw, i); depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}

// MaxDepth is how deep a value may nest that is kept inside of other documents, as what the nodes of a
// workflow work with and leave, and the arguments of a call: a chain of nodes could otherwise wrap a value
// until no document can hold it. encoding/json reads 10,000 levels.
const MaxDepth = 500

// Depth returns how deep a value nests: 0 for one that is neither object nor list.
func Depth(raw []byte) int {
	depth, most := 0, 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			i = stringEnd(raw, i) - 1
		case '{', '[':
			depth++
			most = max(most, depth)
		case '}', ']':
			depth--
		}
	}
	return most
}
