// Package jsontext encodes values as JSON without escapes for HTML, so that texts stay readable and
// keep their size: <, > and & would have six bytes each. Pages escape what they show themselves.
// It also tells how much work a strange JSON text is, before it is decoded.
//
// It is not an actor and holds nothing.
package jsontext

import (
	"bytes"
	"encoding/json"
)

// Marshal is json.Marshal without escapes for HTML.
func Marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Must is Marshal for values that always have a JSON form, such as texts, ids and documents that were
// checked. It panics if v has none.
func Must(v any) json.RawMessage {
	raw, err := Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// Values returns how many values and members a JSON text has at most. What is no JSON has any number.
func Values(text []byte) int {
	n, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			n++
		}
	}
	return n
}
