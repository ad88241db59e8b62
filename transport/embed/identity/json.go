package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"

	"agentsvc/schemas/model"
)

// maxDepth limits how deep a document may nest; the document is the first level.
const maxDepth = 32

var errNoJSON = errors.New("is not JSON")

// object reads the members of a JSON object. Unlike encoding/json it refuses, at any depth, a
// member given twice, a number that no double can hold, U+0000, half a surrogate pair and
// invalid UTF-8, so that later parsers read the same. The error text continues a sentence
// that begins with the name of the input.
func object(b []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(b) || !json.Valid(b) {
		return nil, errNoJSON
	}
	if !bytes.Equal(model.CleanJSON(b), b) {
		return nil, errors.New("holds U+0000 or half a surrogate pair")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := walk(d, 1); err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil || members == nil {
		return nil, errors.New("is not an object")
	}
	return members, nil
}

// walk reads one value.
func walk(d *json.Decoder, depth int) error {
	t, err := d.Token()
	if err != nil {
		return errNoJSON
	}
	if n, ok := t.(json.Number); ok {
		if _, err := strconv.ParseFloat(n.String(), 64); err != nil {
			return errors.New("holds a number out of range")
		}
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if depth > maxDepth {
		return errors.New("nests deeper than " + strconv.Itoa(maxDepth) + " levels")
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			name, err := d.Token()
			if err != nil {
				return errNoJSON
			}
			if s, ok := name.(string); !ok || seen[s] {
				return errors.New("holds a member twice")
			} else {
				seen[s] = true
			}
		}
		if err := walk(d, depth+1); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil { // the closing one
		return errNoJSON
	}
	return nil
}

// text reads a JSON string.
func text(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}
