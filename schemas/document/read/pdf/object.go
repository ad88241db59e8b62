package pdf

import (
	"bytes"
	"errors"
	"strconv"
)

// An object is nil, bool, int, float64, name, string, array, dict, ref, keyword or *stream.
type object any

type (
	name    string
	keyword string
	array   []object
	dict    map[name]object
	ref     struct{ num, gen int }
)

// stream is a dictionary with data in the file, or in memory if raw is set.
type stream struct {
	dict
	at   int64
	size int64
	id   ref // for its decryption; zero: it is not encrypted
}

const (
	mostDepth = 100     // of arrays and dictionaries in each other
	mostItems = 1 << 20 // of an array or dictionary
)

// errMore means that an object goes on behind the bytes at hand.
var errMore = errors.New("more bytes are needed")

var errSyntax = errors.New("not an object")

// lexer reads objects from bytes.
type lexer struct {
	b     []byte
	at    int
	whole bool // nothing follows b
	// refs: "1 0 R" is a reference. Content streams hold none.
	refs bool
	key  func(string) string // decrypts strings; nil: they are not encrypted
}

func isSpace(c byte) bool {
	return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\f' || c == 0
}

func isDelim(c byte) bool {
	switch c {
	case '(', ')', '<', '>', '[', ']', '{', '}', '/', '%':
		return true
	}
	return false
}

// skip passes white space and comments.
func (l *lexer) skip() {
	for l.at < len(l.b) {
		switch c := l.b[l.at]; {
		case isSpace(c):
			l.at++
		case c == '%':
			for l.at < len(l.b) && l.b[l.at] != '\n' && l.b[l.at] != '\r' {
				l.at++
			}
		default:
			return
		}
	}
}

func (l *lexer) short() error {
	if l.whole {
		return errSyntax
	}
	return errMore
}

// next reads an object. At the end of the bytes it returns errMore, or errSyntax if they are
// all there is.
func (l *lexer) next(depth int) (object, error) {
	if depth > mostDepth {
		return nil, errSyntax
	}
	l.skip()
	if l.at >= len(l.b) {
		return nil, l.short()
	}
	switch c := l.b[l.at]; c {
	case '/':
		return l.name()
	case '(':
		return l.text()
	case '<':
		if l.at+1 >= len(l.b) {
			return nil, l.short()
		}
		if l.b[l.at+1] == '<' {
			l.at += 2
			return l.dict(depth)
		}
		return l.hex()
	case '[':
		l.at++
		return l.array(depth)
	case ']', ')', '}', '{':
		l.at++
		return keyword(c), nil
	case '>':
		l.at++
		if l.at < len(l.b) && l.b[l.at] == '>' {
			l.at++
			return keyword(">>"), nil
		}
		return keyword(">"), nil
	}
	return l.word()
}

func (l *lexer) name() (object, error) {
	l.at++
	start, escaped := l.at, false
	for l.at < len(l.b) && !isSpace(l.b[l.at]) && !isDelim(l.b[l.at]) {
		escaped = escaped || l.b[l.at] == '#'
		l.at++
	}
	if l.at >= len(l.b) && !l.whole {
		return nil, errMore
	}
	raw := l.b[start:l.at]
	if !escaped {
		return name(raw), nil
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] == '#' && i+2 < len(raw) && hexDigit(raw[i+1]) >= 0 && hexDigit(raw[i+2]) >= 0 {
			out = append(out, byte(hexDigit(raw[i+1])<<4|hexDigit(raw[i+2])))
			i += 2
			continue
		}
		out = append(out, raw[i])
	}
	return name(out), nil
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func (l *lexer) hex() (object, error) {
	l.at++
	var out []byte
	half := -1
	for l.at < len(l.b) {
		c := l.b[l.at]
		l.at++
		if c == '>' {
			if half >= 0 {
				out = append(out, byte(half<<4))
			}
			return l.plain(out), nil
		}
		d := hexDigit(c)
		switch {
		case d < 0:
		case half < 0:
			half = d
		default:
			out = append(out, byte(half<<4|d))
			half = -1
		}
	}
	return nil, l.short()
}

func (l *lexer) plain(b []byte) string {
	if l.key != nil {
		return l.key(string(b))
	}
	return string(b)
}

func (l *lexer) text() (object, error) {
	l.at++
	var out []byte
	for depth := 1; l.at < len(l.b); {
		c := l.b[l.at]
		l.at++
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return l.plain(out), nil
			}
		case '\r':
			if l.at < len(l.b) && l.b[l.at] == '\n' {
				l.at++
			}
			c = '\n'
		case '\\':
			if l.at >= len(l.b) {
				return nil, l.short()
			}
			c = l.b[l.at]
			l.at++
			switch c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case 'f':
				c = '\f'
			case '\r':
				if l.at < len(l.b) && l.b[l.at] == '\n' {
					l.at++
				}
				continue
			case '\n':
				continue
			case '0', '1', '2', '3', '4', '5', '6', '7':
				n := int(c - '0')
				for i := 0; i < 2 && l.at < len(l.b) && l.b[l.at] >= '0' && l.b[l.at] <= '7'; i++ {
					n = n<<3 | int(l.b[l.at]-'0')
					l.at++
				}
				c = byte(n)
			}
		}
		out = append(out, c)
	}
	return nil, l.short()
}

func (l *lexer) array(depth int) (object, error) {
	var out array
	for {
		o, err := l.next(depth + 1)
		if err != nil {
			return nil, err
		}
		switch o {
		case keyword("]"):
			return out, nil
		case keyword(">>"), keyword("endobj"):
			return out, nil // the end is missing
		}
		if k, is := o.(keyword); is {
			o = nil
			if k == "R" && l.refs && len(out) >= 2 { // "1 0 R" that was not seen as one
				continue
			}
		}
		if out = append(out, o); len(out) > mostItems {
			return nil, errSyntax
		}
	}
}

func (l *lexer) dict(depth int) (object, error) {
	out := dict{}
	for {
		k, err := l.next(depth + 1)
		if err != nil {
			return nil, err
		}
		switch k := k.(type) {
		case keyword:
			if k == ">>" || k == "endobj" || k == "stream" {
				if k != ">>" {
					l.at -= len(k)
				}
				return out, nil
			}
		case name:
			v, err := l.next(depth + 1)
			if err != nil {
				return nil, err
			}
			if v == keyword(">>") {
				return out, nil
			}
			if _, is := v.(keyword); !is {
				out[k] = v
			}
			if len(out) > mostItems {
				return nil, errSyntax
			}
		}
	}
}

// word reads a number, a reference, a constant or an operator.
func (l *lexer) word() (object, error) {
	start := l.at
	for l.at < len(l.b) && !isSpace(l.b[l.at]) && !isDelim(l.b[l.at]) {
		l.at++
	}
	if l.at >= len(l.b) && !l.whole {
		return nil, errMore
	}
	w := l.b[start:l.at]
	if c := w[0]; c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.' {
		if n, ok := number(w); ok {
			if i, is := n.(int); is && l.refs && c >= '0' && c <= '9' {
				return l.reference(i)
			}
			return n, nil
		}
	}
	switch string(w) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "null":
		return nil, nil
	}
	return keyword(w), nil
}

// reference looks whether "0 R" follows a number.
func (l *lexer) reference(n int) (object, error) {
	at := l.at
	l.skip()
	start := l.at
	for l.at < len(l.b) && l.b[l.at] >= '0' && l.b[l.at] <= '9' {
		l.at++
	}
	if digits := l.b[start:l.at]; len(digits) > 0 && len(digits) < 6 {
		gen, _ := strconv.Atoi(string(digits)) // digits only
		l.skip()
		if l.at+1 < len(l.b) && l.b[l.at] == 'R' && (isSpace(l.b[l.at+1]) || isDelim(l.b[l.at+1])) || l.whole && l.at+1 == len(l.b) && l.b[l.at] == 'R' {
			l.at++
			return ref{n, gen}, nil
		}
	}
	if l.at+1 >= len(l.b) && !l.whole {
		return nil, errMore
	}
	l.at = at
	return n, nil
}

func number(w []byte) (object, bool) {
	if i, err := strconv.Atoi(string(w)); err == nil {
		return i, true
	}
	if bytes.ContainsAny(w, "eExXnNpP_iI") {
		return nil, false
	}
	if f, err := strconv.ParseFloat(string(w), 64); err == nil {
		return f, true
	}
	// "1.2.3", "--5" and "5-3", which some programs write
	s := bytes.TrimLeft(w, "+-")
	sign := 1.0
	if w[0] == '-' {
		sign = -1
	}
	if i := bytes.IndexByte(s, '-'); i > 0 {
		s = s[:i]
	}
	if f, err := strconv.ParseFloat(string(s), 64); err == nil {
		return sign * f, true
	}
	return nil, false
}

func num(o object) float64 {
	switch n := o.(type) {
	case int:
		return float64(n)
	case float64:
		return n
	}
	return 0
}

func integer(o object) (int, bool) {
	switch n := o.(type) {
	case int:
		return n, true
	case float64:
		if n > -1e9 && n < 1e9 {
			return int(n), true
		}
	}
	return 0, false
}
