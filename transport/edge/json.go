package edge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"agentsvc/schemas/problem"
)

// maxDepth limits how deep a body may nest.
const maxDepth = 64

// maxComplaints bounds how many complaints one answer holds.
const maxComplaints = 32

// check parses one JSON value and compares it with its shape, in one pass: it keeps neither the
// value nor more than maxComplaints complaints, however much a body holds or gets wrong. Unlike
// encoding/json it refuses duplicate names, invalid UTF-8, unpaired surrogates, U+0000 and
// trailing data, so that no later parser reads the body differently. A nil shape is any value.
func (r *registry) check(s *shape, b []byte) *problem.Error {
	if !utf8.Valid(b) {
		return problem.Invalid("body", "is not valid UTF-8")
	}
	p := parser{reg: r, b: b}
	p.space()
	p.value(s)
	if p.err == nil {
		if p.space(); p.i < len(b) {
			p.malformed()
		}
	}
	if p.err != nil || len(p.wrong) == 0 {
		return p.err
	}
	slices.SortStableFunc(p.wrong, func(a, b problem.Field) int { return strings.Compare(a.Path, b.Path) })
	return problem.Validation(slices.Compact(p.wrong)...)
}

type parser struct {
	reg   *registry
	b     []byte
	i     int
	depth int
	path  []step
	names []string // of the members so far of the objects that are open
	wrong []problem.Field
	err   *problem.Error
}

// step is a name, or an index where name is empty and index is not negative.
type step struct {
	name  string
	index int
}

// complain notes what is wrong with the value at the path; an empty message is no complaint.
func (p *parser) complain(message string) {
	if message != "" && len(p.wrong) < maxComplaints {
		p.wrong = append(p.wrong, problem.Field{Path: p.where(), Message: message})
	}
}

func (p *parser) fail(message string) {
	if p.err == nil {
		p.err = problem.Invalid(p.where(), message)
	}
}

func (p *parser) malformed() {
	if p.err == nil {
		p.err = problem.Invalid("body", "malformed JSON at byte "+strconv.Itoa(p.i))
	}
}

func (p *parser) where() string {
	if len(p.path) == 0 {
		return "body"
	}
	var b []byte
	for _, s := range p.path {
		if s.index >= 0 {
			b = append(b, '[')
			b = strconv.AppendInt(b, int64(s.index), 10)
			b = append(b, ']')
			continue
		}
		if len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, problem.ClipBytes(s.name, 64)...)
	}
	return problem.ClipBytes(string(b), 256)
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// value parses a value of the shape.
func (p *parser) value(s *shape) {
	if p.i >= len(p.b) {
		p.malformed()
		return
	}
	if len(p.wrong) == maxComplaints {
		s = nil // the rest must still be JSON
	}
	var v any
	switch c := p.b[p.i]; {
	case c == '{':
		p.object(s)
		return
	case c == '[':
		p.array(s)
		return
	case c == '"':
		v = p.text()
	case c == 't':
		p.word("true")
		v = true
	case c == 'f':
		p.word("false")
		v = false
	case c == 'n':
		p.word("null")
		if s != nil {
			p.complain(s.null)
		}
		return
	case c == '-' || '0' <= c && c <= '9':
		v = p.number()
	default:
		p.malformed()
	}
	if s != nil && p.err == nil {
		p.complain(p.reg.complaint(s.schema, v))
	}
}

func (p *parser) word(w string) {
	if len(p.b)-p.i < len(w) || string(p.b[p.i:p.i+len(w)]) != w {
		p.malformed()
		return
	}
	p.i += len(w)
}

func (p *parser) enter() bool {
	p.i++
	if p.depth++; p.depth > maxDepth {
		p.fail("nests deeper than " + strconv.Itoa(maxDepth) + " levels")
		return false
	}
	p.space()
	return true
}

func (p *parser) object(s *shape) {
	if !p.enter() {
		return
	}
	if s != nil && s.schema.Type != huma.TypeObject {
		p.complain(p.reg.complaint(s.schema, map[string]any(nil)))
		s = nil
	}
	before, base := len(p.wrong), len(p.names)
	var many map[string]struct{} // the names, if they are too many for p.names
	given := func(name string) bool {
		if many == nil {
			return slices.Contains(p.names[base:], name)
		}
		_, is := many[name]
		return is
	}
	n := 0
	for last := p.at('}'); !last; n++ {
		if n > 0 && !p.comma() || p.i >= len(p.b) || p.b[p.i] != '"' {
			p.malformed()
			return
		}
		name := p.text()
		if p.err != nil {
			return
		}
		p.path = append(p.path, step{name, -1})
		if given(name) {
			p.fail("is given twice")
			return
		}
		if many != nil {
			many[name] = struct{}{}
		} else if p.names = append(p.names, name); len(p.names)-base > fewNames {
			many = make(map[string]struct{}, 4*fewNames)
			for _, name := range p.names[base:] {
				many[name] = struct{}{}
			}
			p.names = p.names[:base]
		}
		p.space()
		if !p.at(':') {
			p.malformed()
			return
		}
		p.space()
		p.value(p.member(s, name))
		if p.err != nil {
			return
		}
		p.path = p.path[:len(p.path)-1]
		p.space()
		last = p.at('}')
	}
	p.depth--
	if s != nil {
		for _, name := range s.required {
			if !given(name) {
				p.path = append(p.path, step{name, -1})
				p.complain("is required")
				p.path = p.path[:len(p.path)-1]
			}
		}
		p.count(n, s.schema.MinProperties, s.schema.MaxProperties, validation.MsgExpectedMinProperties, validation.MsgExpectedMaxProperties, before)
	}
	p.names = p.names[:base]
}

// fewNames is up to how many names of an object are compared one by one.
const fewNames = 16

// member returns the shape of a member, and complains about one that the object must not have.
func (p *parser) member(s *shape, name string) *shape {
	if s == nil {
		return nil
	}
	if m := s.members[name]; m != nil {
		return m
	}
	switch {
	case s.closed:
		p.complain(validation.MsgUnexpectedProperty)
	case s.other != nil && len(name) > maxName:
		p.complain("expected a name of at most " + strconv.Itoa(maxName) + " bytes")
	}
	return s.other
}

// maxName limits the names that a client chooses, such as those of the models that have prices.
const maxName = 256

func (p *parser) array(s *shape) {
	if !p.enter() {
		return
	}
	if s != nil && s.schema.Type != huma.TypeArray {
		p.complain(p.reg.complaint(s.schema, []any(nil)))
		s = nil
	}
	var items *shape
	if s != nil {
		items = s.other
	}
	before, n := len(p.wrong), 0
	for last := p.at(']'); !last; n++ {
		if n > 0 && !p.comma() {
			p.malformed()
			return
		}
		if s != nil && s.schema.MaxItems != nil && n == *s.schema.MaxItems {
			items = nil // it is too long, which is the one complaint
		}
		p.path = append(p.path, step{index: n})
		p.value(items)
		if p.err != nil {
			return
		}
		p.path = p.path[:len(p.path)-1]
		p.space()
		last = p.at(']')
	}
	p.depth--
	if s != nil {
		p.count(n, s.schema.MinItems, s.schema.MaxItems, validation.MsgExpectedMinItems, validation.MsgExpectedMaxItems, before)
	}
}

// comma consumes what separates two members or items.
func (p *parser) comma() bool {
	if !p.at(',') {
		return false
	}
	p.space()
	return true
}

// count complains about a value that holds fewer or more than it may. Of one that holds more, the
// complaints since before are left out.
func (p *parser) count(n int, least, most *int, few, many string, before int) {
	if least != nil && n < *least {
		p.complain(fmt.Sprintf(few, *least))
	}
	if most != nil && n > *most {
		p.wrong = p.wrong[:before]
		p.complain(fmt.Sprintf(many, *most))
	}
}

// at consumes c if it is the next byte.
func (p *parser) at(c byte) bool {
	if p.i < len(p.b) && p.b[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *parser) number() float64 {
	start := p.i
	p.at('-')
	switch {
	case p.at('0'):
	case p.digits() == 0:
		p.malformed()
		return 0
	}
	if p.at('.') && p.digits() == 0 {
		p.malformed()
		return 0
	}
	if p.at('e') || p.at('E') {
		if !p.at('+') {
			p.at('-')
		}
		if p.digits() == 0 {
			p.malformed()
			return 0
		}
	}
	f, err := strconv.ParseFloat(string(p.b[start:p.i]), 64)
	if err != nil {
		p.fail("is a number out of range")
	}
	return f
}

func (p *parser) digits() int {
	n := 0
	for p.i < len(p.b) && '0' <= p.b[p.i] && p.b[p.i] <= '9' {
		p.i++
		n++
	}
	return n
}

func (p *parser) text() string {
	p.i++
	start := p.i
	for p.i < len(p.b) {
		switch c := p.b[p.i]; {
		case c == '"':
			s := string(p.b[start:p.i])
			p.i++
			return s
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			p.malformed()
			return ""
		}
		p.i++
	}
	p.malformed()
	return ""
}

// escaped parses the rest of a string, from its first escape on.
func (p *parser) escaped(start int) string {
	out := append(make([]byte, 0, len(p.b[start:p.i])+64), p.b[start:p.i]...)
	for p.i < len(p.b) {
		c := p.b[p.i]
		switch {
		case c == '"':
			p.i++
			return string(out)
		case c < ' ':
			p.malformed()
			return ""
		case c != '\\':
			out = append(out, c)
			p.i++
			continue
		}
		if p.i++; p.i >= len(p.b) {
			break
		}
		c = p.b[p.i]
		p.i++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := p.hex4()
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if p.i+1 < len(p.b) && p.b[p.i] == '\\' && p.b[p.i+1] == 'u' {
					p.i += 2
					low = p.hex4()
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					p.fail("holds an unpaired surrogate")
				}
			} else if r == 0 {
				p.fail("holds the character U+0000")
			}
			if p.err != nil {
				return ""
			}
			out = utf8.AppendRune(out, r)
		default:
			p.malformed()
			return ""
		}
	}
	p.malformed()
	return ""
}

func (p *parser) hex4() rune {
	if p.i+4 > len(p.b) {
		p.malformed()
		return -1
	}
	var r rune
	for _, c := range p.b[p.i : p.i+4] {
		d := unhex(c)
		if d < 0 {
			p.malformed()
			return -1
		}
		r = r<<4 | rune(d)
	}
	p.i += 4
	return r
}
