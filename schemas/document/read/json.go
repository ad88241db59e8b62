package read

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// level is an object or array that is open.
type level struct {
	array bool
	key   string // the key whose value comes next
	shown bool   // a line has the whole key
	value bool   // the next token is a value
	any   bool   // it held something
}

// The keys of a line are limited: the last ones are shown, and a long one is whole only in its first line. So a key that
// leads to many values is not repeated with each of them.
const (
	longestPath = 8
	longestKey  = 200 // bytes
)

// readJSON makes a line of each value, with the keys that lead to it: "address.city: Oslo".
// The values of an array are on one line. An element of an array is a paragraph, as is a value
// of the outermost object that holds others.
func readJSON(f *file) error {
	dec := json.NewDecoder(f.decoded())
	dec.UseNumber()
	var open []level
	p := &paragraph{f: f}
	var current string // the path of the last line
	put := func(value string) error {
		path := pathOf(open)
		inArray := len(open) > 0 && open[len(open)-1].array
		if p.text.Len() > 0 && inArray && path == current {
			return p.add(", "+value, true)
		}
		current = path
		if path != "" {
			value = path + ": " + value
		}
		return p.add(value, false)
	}
	for {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged(err, "the JSON")
		}
		d, isDelim := t.(json.Delim)
		if n := len(open); n > 0 && !open[n-1].array && !open[n-1].value && !isDelim {
			open[n-1].key, open[n-1].shown, open[n-1].value = t.(string), false, true
			continue
		}
		switch {
		case isDelim && (d == '{' || d == '['):
			if n := len(open); n > 0 {
				open[n-1].any = true
			}
			if len(open) >= maxDepth {
				return faultf("the JSON is nested more than %d deep", maxDepth)
			}
			open = append(open, level{array: d == '['})
			continue
		case isDelim:
			was := open[len(open)-1]
			open = open[:len(open)-1]
			if !was.any && len(open) > 0 {
				err = put("")
			}
			if !was.array && (len(open) <= 1 || open[len(open)-1].array) && err == nil {
				err, current = p.put(), ""
			}
		default:
			if n := len(open); n > 0 {
				open[n-1].any = true
			}
			switch v := t.(type) {
			case string:
				err = put(v)
			case json.Number:
				err = put(v.String())
			case bool:
				if v {
					err = put("true")
				} else {
					err = put("false")
				}
			case nil:
				err = put("null")
			}
			if len(open) == 0 && err == nil {
				err, current = p.put(), ""
			}
		}
		if n := len(open); n > 0 {
			open[n-1].value = false
		}
		if err != nil {
			return damaged(err, "the JSON")
		}
		if p.text.Len() > pieceBytes {
			if err := p.put(); err != nil {
				return damaged(err, "the JSON")
			}
			p.continues = true
		}
	}
	if len(open) > 0 {
		return fault("the JSON is cut off")
	}
	return damaged(p.put(), "the JSON")
}

// shows returns the key of a level as the next line shows it.
func (l *level) shows() string {
	if len(l.key) <= longestKey || !l.shown {
		l.shown = true
		return l.key
	}
	return strings.ToValidUTF8(l.key[:longestKey], "") + "…"
}

// pathOf returns the keys of the next line.
func pathOf(open []level) string {
	var keys []string
	for i := len(open) - 1; i >= 0 && len(keys) < longestPath; i-- {
		if !open[i].array && open[i].key != "" {
			keys = append(keys, open[i].shows())
		}
	}
	var b strings.Builder
	for i := len(keys) - 1; i >= 0; i-- {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(keys[i])
	}
	return b.String()
}
