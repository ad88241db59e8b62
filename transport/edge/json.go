package edge

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"agentsvc/schemas/problem"
)

// maxDepth limits how deep a body may nest.
const maxDepth = 64

// strictJSON parses one JSON value into the types that huma validates: maps, slices, strings,
// float64, bool and nil. Unlike encoding/json it refuses duplicate names, invalid UTF-8,
// unpaired surrogates, U+0000 and trailing data, so that no later parser reads the body
// differently.
func strictJSON(b []byte) (any, *problem.Error) {
	if !utf8.Valid(b) {
		return nil, problem.Invalid("body", "is not valid UTF-8")
	}
	p := parser{b: b}
	p.space()
	v := p.value()
	if p.err == nil {
		if p.space(); p.i < len(b) {
			p.malformed()
		}
	}
	return v, p.err
}

type parser struct {
	b     []byte
	i     int
	depth int
	path  []step
	err   *problem.Error
}

// step is a name, or an index where name is empty and index is not negative.
type step struct {
	name  string
	index int
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
		b = append(b, cut(s.name, 64)...)
	}
	return cut(string(b), 256)
}

// cut shortens a client's text before it is quoted in an answer.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
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

func (p *parser) value() any {
	if p.i >= len(p.b) {
		p.malformed()
		return nil
	}
	switch c := p.b[p.i]; {
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '"':
		return p.text()
	case c == 't':
		p.word("true")
		return true
	case c == 'f':
		p.word("false")
		return false
	case c == 'n':
		p.word("null")
		return nil
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	}
	p.malformed()
	return nil
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

func (p *parser) object() any {
	if !p.enter() {
		return nil
	}
	m := map[string]any{}
	if p.at('}') {
		p.depth--
		return m
	}
	for {
		if p.i >= len(p.b) || p.b[p.i] != '"' {
			p.malformed()
			return nil
		}
		name := p.text()
		if p.err != nil {
			return nil
		}
		p.path = append(p.path, step{name, -1})
		if _, twice := m[name]; twice {
			p.fail("is given twice")
			return nil
		}
		p.space()
		if !p.at(':') {
			p.malformed()
			return nil
		}
		p.space()
		v := p.value()
		if p.err != nil {
			return nil
		}
		m[name] = v
		p.path = p.path[:len(p.path)-1]
		p.space()
		if p.at('}') {
			p.depth--
			return m
		}
		if !p.at(',') {
			p.malformed()
			return nil
		}
		p.space()
	}
}

func (p *parser) array() any {
	if !p.enter() {
		return nil
	}
	a := []any{}
	if p.at(']') {
		p.depth--
		return a
	}
	for {
		p.path = append(p.path, step{index: len(a)})
		v := p.value()
		if p.err != nil {
			return nil
		}
		a = append(a, v)
		p.path = p.path[:len(p.path)-1]
		p.space()
		if p.at(']') {
			p.depth--
			return a
		}
		if !p.at(',') {
			p.malformed()
			return nil
		}
		p.space()
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

func (p *parser) number() any {
	start := p.i
	p.at('-')
	switch {
	case p.at('0'):
	case p.digits() == 0:
		p.malformed()
		return nil
	}
	if p.at('.') && p.digits() == 0 {
		p.malformed()
		return nil
	}
	if p.at('e') || p.at('E') {
		if !p.at('+') {
			p.at('-')
		}
		if p.digits() == 0 {
			p.malformed()
			return nil
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
