package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/check"
	"agentsvc/schemas/problem"
)

const (
	maxDepth  = 128     // levels of nesting of arguments and schemas
	maxDigits = 400     // of a number
	maxValues = 200_000 // names and values of arguments: each takes many times its text in memory
)

var (
	errNoJSON = errors.New("is not JSON")
	errMany   = errors.New("hold more than " + strconv.Itoa(maxValues) + " names and values")
	errDeep   = errors.New("nests deeper than " + strconv.Itoa(maxDepth) + " levels")
)

// value is one value inside a JSON text: its position and its contents. With it, parts of a
// text are replaced without changing the rest.
type value struct {
	kind     byte // '{', '[' or '"', 0 for all others
	huge     bool // a number that no float holds
	from, to int
	members  []member
}

// member is an entry of an object or, without a key, of an array.
type member struct {
	key string
	value
}

// parse locates the values of a JSON text.
func parse(text []byte) (*value, error) {
	if !json.Valid(text) {
		return nil, errNoJSON
	}
	sizes, err := sizes(text)
	if err != nil {
		return nil, err
	}
	p := parser{text: text, sizes: sizes}
	v, err := p.value(1)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// parser passes once over valid JSON.
type parser struct {
	text  []byte
	at    int
	sizes []int32 // sizes of the objects and arrays still to come
}

// sizes returns the numbers of members of all objects and arrays in valid JSON, in the order
// in which they begin.
func sizes(text []byte) ([]int32, error) {
	var out []int32
	var open []int // indexes in out
	values := 0
	p := parser{text: text}
	for p.space(); p.at < len(text); p.space() {
		c := text[p.at]
		if c == '}' || c == ']' {
			open = open[:len(open)-1]
			p.at++
			continue
		}
		if values++; values > maxValues {
			return nil, errMany
		}
		if len(open) > 0 {
			out[open[len(open)-1]]++
		}
		switch c {
		case '{', '[':
			if len(open) >= maxDepth {
				return nil, errDeep
			}
			open = append(open, len(out))
			out = append(out, 0)
			p.at++
		case '"':
			p.string()
		default:
			p.literal()
		}
	}
	return out, nil
}

// literal steps over a number, true, false or null.
func (p *parser) literal() {
	for p.at < len(p.text) && bytes.IndexByte([]byte(",]} \t\r\n"), p.text[p.at]) < 0 {
		p.at++
	}
}

// space steps over white space, commas and colons, which carry no information in valid JSON.
func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r', ',', ':':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) value(depth int) (value, error) {
	p.space()
	v := value{from: p.at}
	switch c := p.text[p.at]; c {
	case '{', '[':
		if depth > maxDepth {
			return v, errDeep
		}
		v.kind = c
		n := p.sizes[0]
		if c == '{' {
			n /= 2
		}
		p.sizes = p.sizes[1:]
		if n > 0 {
			v.members = make([]member, 0, n)
		}
		p.at++
		for p.space(); p.text[p.at] != '}' && p.text[p.at] != ']'; p.space() {
			var m member
			if c == '{' {
				from := p.at
				p.string()
				m.key = unquote(p.text[from:p.at])
			}
			var err error
			if m.value, err = p.value(depth + 1); err != nil {
				return v, err
			}
			v.members = append(v.members, m)
		}
		p.at++
	case '"':
		v.kind = c
		p.string()
	default:
		p.literal()
		v.huge = huge(string(p.text[v.from:p.at]))
	}
	v.to = p.at
	return v, nil
}

// huge reports whether a number has so many digits, as written or by its exponent, that exact
// arithmetic with it is an attack.
func huge(number string) bool {
	if len(number) > maxDigits {
		return true
	}
	i := strings.IndexAny(number, "eE")
	if i < 0 || number == "true" || number == "false" {
		return false
	}
	exponent, err := strconv.Atoi(number[i+1:])
	return err != nil || exponent > maxDigits || exponent < -maxDigits
}

// string steps over a string.
func (p *parser) string() {
	for p.at++; p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			p.at++
		}
	}
	p.at++
}

// unquote decodes a string of valid JSON.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		panic(err) // the text is valid JSON
	}
	return s
}

func quoteJSON(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return b
}

// text returns the value of a string.
func (v *value) text(in []byte) string { return unquote(in[v.from:v.to]) }

// member returns the last member with this key, as JSON readers choose it; nil if v is nil,
// not an object, or has none.
func (v *value) member(key string) *value {
	if v == nil || v.kind != '{' {
		return nil
	}
	for i := len(v.members) - 1; i >= 0; i-- {
		if v.members[i].key == key {
			return &v.members[i].value
		}
	}
	return nil
}

// told returns the last member whose key is shown by this name in an error of the schema.
func (v *value) told(name string) *value {
	if v == nil || v.kind != '{' {
		return nil
	}
	start, clipped := strings.CutSuffix(name, "…")
	for i := len(v.members) - 1; i >= 0; i-- {
		if key := v.members[i].key; key == name || clipped && strings.HasPrefix(key, start) && check.Clip(key) == name {
			return &v.members[i].value
		}
	}
	return nil
}

// item returns the i-th item of an array; nil if v is nil, not an array, or shorter.
func (v *value) item(i int) *value {
	if v == nil || v.kind != '[' || i >= len(v.members) {
		return nil
	}
	return &v.members[i].value
}

// cut is a part of a text and its replacement.
type cut struct {
	from, to int
	with     []byte
}

// splice applies the cuts, which must be in order, to a copy of the text.
func splice(text json.RawMessage, cuts []cut) json.RawMessage {
	if len(cuts) == 0 {
		return text
	}
	out := make([]byte, 0, len(text)+len(cuts)*48)
	kept := 0
	for _, c := range cuts {
		out = append(out, text[kept:c.from]...)
		out = append(out, c.with...)
		kept = c.to
	}
	return append(out, text[kept:]...)
}

// under and item extend a path like customer.cards[0].number; a key that could be misread is
// quoted.
func under(at, key string) string {
	if !plain(key) {
		return at + "[" + strconv.Quote(problem.ClipBytes(key, 64)) + "]"
	}
	if at == "" {
		return key
	}
	return at + "." + key
}

func item(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// path returns a path in readable form.
func path(at string) string {
	if at == "" {
		return "arguments"
	}
	return at
}

func plain(key string) bool {
	if key == "" || len(key) > 64 {
		return false
	}
	return strings.IndexFunc(key, func(r rune) bool {
		return !(r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) < 0
}
