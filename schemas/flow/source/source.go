// Package source reads a definition from a file that a person wrote, in JSON or YAML, and finds
// the line and column of a fault's path in it. It is the one door to the YAML library.
package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/flow/scan"
)

// Position is a place in a file. Both numbers begin at 1; Column counts characters.
type Position struct{ Line, Column int }

// String returns the place as compilers write it.
func (p Position) String() string { return strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column) }

// Document is a definition with its places.
type Document struct {
	JSON json.RawMessage
	root *node
}

// node is a value and its places.
type node struct {
	at       Position
	members  map[string]*node // of an object
	names    map[string]Position
	items    []*node
	isObject bool
}

// Error is why a file cannot be read, and where.
type Error struct {
	At      Position
	Message string
}

// Error returns the place and the message.
func (e *Error) Error() string { return e.At.String() + ": " + e.Message }

const (
	maxBytes = 4 * flow.MaxBytes // of a file: white space and comments are not sent
	maxDepth = 100
	maxNodes = 200_000 // values, those that aliases repeat counted each time
)

// Read reads a file. The error is an *Error. A text that begins with { or [ is JSON; anything
// else is YAML, with the tags of its core schema and without merge keys.
func Read(text []byte) (*Document, error) {
	text = trimMark(text)
	if len(text) > maxBytes {
		return nil, &Error{Position{1, 1}, fmt.Sprintf("must have at most %d bytes", maxBytes)}
	}
	if !utf8.Valid(text) {
		n := 0
		for n < len(text) {
			r, size := utf8.DecodeRune(text[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		return nil, &Error{position(text, n), "is not UTF-8"}
	}
	if k := scan.KindOf(text); k == scan.Object || k == scan.List {
		return readJSON(text)
	}
	return readYAML(text)
}

func trimMark(text []byte) []byte {
	if len(text) >= 3 && text[0] == 0xef && text[1] == 0xbb && text[2] == 0xbf {
		return text[3:]
	}
	return text
}

// position returns the place of a byte.
func position(text []byte, offset int) Position {
	before := string(text[:min(offset, len(text))])
	line := strings.Count(before, "\n")
	return Position{line + 1, utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1}
}

// At returns the place of a path that begins with the given name, as flow.Validate writes it.
// For a value that is missing it is the place of what should hold it.
func (d *Document) At(path, name string) Position {
	rest := strings.TrimPrefix(path, name)
	at, of := d.root.at, d.root
	for rest != "" && of != nil {
		m := part.FindStringSubmatch(rest)
		if m == nil {
			break
		}
		rest = rest[len(m[0]):]
		switch {
		case m[1] != "": // a position
			i, err := strconv.Atoi(m[1])
			if err != nil || i >= len(of.items) {
				return at
			}
			of = of.items[i]
			at = of.at
		default:
			key := m[3]
			if m[2] != "" {
				if plain, err := strconv.Unquote(m[2]); err == nil {
					key = plain
				}
			}
			next, ok := of.members[key]
			if !ok {
				return at
			}
			at, of = of.names[key], next
			if rest == "" && next.isValue() {
				at = next.at
			}
		}
	}
	return at
}

// isValue reports whether a fault of this value is shown at the value, not at its name.
func (n *node) isValue() bool { return n.members == nil && n.items == nil && !n.isObject }

// part is one part of a path: [3], ["a name"] or .name.
var part = regexp.MustCompile(`^(?:\[([0-9]+)\]|\[("(?:[^"\\]|\\.)*")\]|\.([^.\[\]]+))`)

func readJSON(text []byte) (*Document, error) {
	var any json.RawMessage
	if err := json.Unmarshal(text, &any); err != nil {
		at := len(text)
		message := "is not JSON: " + err.Error()
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = max(int(syntax.Offset)-1, 0)
		}
		return nil, &Error{position(text, at), message}
	}
	if scan.Depth(text) > maxDepth {
		return nil, &Error{Position{1, 1}, fmt.Sprintf("nests deeper than %d", maxDepth)}
	}
	r := &jsonReader{text: text, line: 1, column: 1}
	r.white()
	return &Document{JSON: any, root: r.value()}, nil
}

// jsonReader walks over valid JSON once and counts lines and characters.
type jsonReader struct {
	text         []byte
	at           int
	line, column int
}

func (r *jsonReader) here() Position { return Position{r.line, r.column} }

func (r *jsonReader) next() {
	c, size := utf8.DecodeRune(r.text[r.at:])
	r.at += size
	r.column++
	if c == '\n' {
		r.line, r.column = r.line+1, 1
	}
}

func (r *jsonReader) white() {
	for r.at < len(r.text) && strings.IndexByte(" \t\r\n", r.text[r.at]) >= 0 {
		r.next()
	}
}

// name reads a string.
func (r *jsonReader) name() string {
	from := r.at
	for r.next(); r.text[r.at] != '"'; r.next() {
		if r.text[r.at] == '\\' {
			r.next()
		}
	}
	r.next()
	return scan.Text(r.text[from:r.at])
}

func (r *jsonReader) value() *node {
	n := &node{at: r.here()}
	switch r.text[r.at] {
	case '{':
		n.isObject, n.members, n.names = true, map[string]*node{}, map[string]Position{}
		for r.next(); ; {
			r.white()
			if r.text[r.at] == '}' {
				r.next()
				return n
			}
			if r.text[r.at] == ',' {
				r.next()
				continue
			}
			at := r.here()
			key := r.name()
			r.white()
			r.next() // the colon
			r.white()
			n.members[key], n.names[key] = r.value(), at // of two the last, which is the fault
		}
	case '[':
		n.items = []*node{}
		for r.next(); ; {
			r.white()
			switch r.text[r.at] {
			case ']':
				r.next()
				return n
			case ',':
				r.next()
			default:
				n.items = append(n.items, r.value())
			}
		}
	case '"':
		r.name()
	default:
		for r.at < len(r.text) && strings.IndexByte(",]} \t\r\n", r.text[r.at]) < 0 {
			r.next()
		}
	}
	return n
}

var yamlLine = regexp.MustCompile(`line ([0-9]+): `)

func readYAML(text []byte) (*Document, error) {
	var top yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	if err := dec.Decode(&top); err != nil {
		at := Position{1, 1}
		message := strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine.FindStringSubmatch(message); m != nil {
			at.Line, _ = strconv.Atoi(m[1])
			message = strings.Replace(message, m[0], "", 1)
		} else if i := bytes.IndexFunc(text, unprintable); i >= 0 { // the library names no place
			at = position(text, i)
		}
		return nil, &Error{at, "is not YAML: " + message}
	}
	r := &yamlReader{}
	n, err := r.value(top.Content[0], 0)
	if err != nil {
		return nil, err
	}
	var more yaml.Node
	if dec.Decode(&more) == nil {
		return nil, &Error{Position{max(more.Line, 1), max(more.Column, 1)}, "holds a second document"}
	}
	return &Document{JSON: r.out, root: n}, nil
}

// unprintable reports whether YAML forbids a character.
func unprintable(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r <= 0x9f && r != 0x85
}

// yamlReader writes YAML as JSON.
type yamlReader struct {
	out  []byte
	seen int
}

func (r *yamlReader) value(y *yaml.Node, depth int) (*node, error) {
	n := &node{at: Position{y.Line, y.Column}}
	bad := func(format string, args ...any) (*node, error) {
		return nil, &Error{n.at, fmt.Sprintf(format, args...)}
	}
	if r.seen++; r.seen > maxNodes || len(r.out) > maxBytes {
		return bad("holds too much")
	}
	if depth > maxDepth {
		return bad("nests deeper than %d", maxDepth)
	}
	switch y.Kind {
	case yaml.AliasNode:
		return r.value(y.Alias, depth+1)
	case yaml.MappingNode:
		n.isObject, n.members, n.names = true, map[string]*node{}, map[string]Position{}
		r.out = append(r.out, '{')
		for i := 0; i+1 < len(y.Content); i += 2 {
			key := y.Content[i]
			at := Position{key.Line, key.Column}
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
				return nil, &Error{at, "a name must be text"}
			}
			if i > 0 {
				r.out = append(r.out, ',')
			}
			if err := r.scalar(key.Value); err != nil {
				return nil, err
			}
			r.out = append(r.out, ':')
			v, err := r.value(y.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			n.members[key.Value], n.names[key.Value] = v, at
		}
		r.out = append(r.out, '}')
	case yaml.SequenceNode:
		n.items = []*node{}
		r.out = append(r.out, '[')
		for i, item := range y.Content {
			if i > 0 {
				r.out = append(r.out, ',')
			}
			v, err := r.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, v)
		}
		r.out = append(r.out, ']')
	case yaml.ScalarNode:
		v, err := plain(y)
		if err != nil {
			return bad("%v", err)
		}
		return n, r.scalar(v)
	default:
		return bad("cannot be read")
	}
	return n, nil
}

func (r *yamlReader) scalar(v any) error {
	b, err := json.Marshal(v)
	r.out = append(r.out, b...)
	return err
}

// plain returns a scalar as JSON has it. Numbers keep their text where JSON allows it.
func plain(y *yaml.Node) (any, error) {
	switch tag := y.ShortTag(); tag {
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		err := y.Decode(&b)
		return b, err
	case "!!int", "!!float":
		if json.Valid([]byte(y.Value)) {
			return json.Number(y.Value), nil
		}
		var f float64
		if err := y.Decode(&f); err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("the number %s has no form in JSON", y.Value)
		}
		return f, nil
	case "!!str", "!!timestamp":
		return y.Value, nil
	default:
		return nil, fmt.Errorf("the tag %s has no form in JSON", tag)
	}
}
