package deliverable

import (
	"html"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// span is a piece of text of one appearance. A "\n" in its text is a break of the line.
type span struct {
	text                       string
	bold, italic, strike, code bool
	link                       string // http, https or mailto; empty: none
}

const (
	// maxTokens bounds the marks of one block: what follows is plain text.
	maxTokens = 4096
	// maxSearch bounds how far back a mark looks for its opening.
	maxSearch = 64
	maxURL    = 2048
	// maxPairs bounds the brackets and backticks of one block that may belong together, and
	// maxFails what looks like a link and is none.
	maxPairs = 2 * maxTokens
	maxFails = 32
)

// token is a piece of inline source: text, or a run of marks of emphasis.
type token struct {
	text        string
	code        bool
	mark        byte // *, _ or ~; 0: text
	n           int  // marks that are left
	open, close bool
	// The changes of appearance before and behind the token.
	on, off []byte
	link    int // >0: a link opens, the number of its target; <0: it closes
}

// inline reads the source of a block. The result's texts have no markup left.
func inline(src string) []span {
	l := lexer{s: src}
	l.pair()
	l.run()
	l.match()
	return l.spans()
}

// plain returns the text of a block without markup.
func (b *block) plain() string { return plainText(b.text) }

func plainText(src string) string {
	if !strings.ContainsAny(src, "\\`*_~[!<&:\n") {
		return src
	}
	var b strings.Builder
	for _, s := range inline(src) {
		b.WriteString(s.text)
	}
	return b.String()
}

type lexer struct {
	s      string
	tokens []token
	urls   []string
	text   strings.Builder
	// closing holds the position of the bracket that closes the one at a position.
	closing map[int]int
	fails   int
	// ticks holds the positions of runs of backticks by their length, in order.
	ticks map[int][]int
}

// pair finds brackets and backticks that belong together.
func (l *lexer) pair() {
	l.closing, l.ticks = map[int]int{}, map[int][]int{}
	var open []int
	runs := 0
	for i := 0; i < len(l.s); i++ {
		switch l.s[i] {
		case '\\':
			i++
		case '[':
			if len(open) < maxPairs {
				open = append(open, i)
			}
		case ']':
			if n := len(open); n > 0 && len(l.closing) < maxPairs {
				l.closing[open[n-1]] = i
				open = open[:n-1]
			}
		case '`':
			n := run(l.s[i:])
			if runs++; runs <= maxPairs {
				l.ticks[n] = append(l.ticks[n], i)
			}
			i += n - 1
		}
	}
}

// run returns how often the first byte is repeated.
func run(s string) int {
	n := 1
	for n < len(s) && s[n] == s[0] {
		n++
	}
	return n
}

func (l *lexer) flush() {
	if l.text.Len() > 0 {
		l.tokens = append(l.tokens, token{text: html.UnescapeString(l.text.String())})
		l.text.Reset()
	}
}

func (l *lexer) run() {
	linkEnd, after := -1, 0 // where the link that is open ends, and where to go on
	for i := 0; i < len(l.s); {
		if i == linkEnd {
			l.flush()
			l.tokens = append(l.tokens, token{link: -1})
			i, linkEnd = after, -1
			continue
		}
		if len(l.tokens) > maxTokens {
			end := len(l.s)
			if linkEnd >= 0 {
				end = linkEnd
			}
			l.text.WriteString(strings.ReplaceAll(l.s[i:end], "\n", " "))
			if i = end; linkEnd < 0 {
				break
			}
			continue
		}
		c := l.s[i]
		switch c {
		case '\\':
			switch {
			case i+1 == len(l.s):
				i++
			case l.s[i+1] == '\n':
				l.text.WriteByte('\n')
				i += 2
			case strings.IndexByte("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", l.s[i+1]) >= 0:
				l.flush()
				l.tokens = append(l.tokens, token{text: l.s[i+1 : i+2]})
				i += 2
			default:
				l.text.WriteByte('\\')
				i++
			}
			continue
		case '\n':
			l.text.WriteByte(' ')
			i++
			continue
		case '`':
			if n := l.codeSpan(i); n > 0 {
				i += n
				continue
			}
			n := run(l.s[i:])
			l.text.WriteString(l.s[i : i+n])
			i += n
			continue
		case '!':
			if end, ok := l.image(i); ok {
				i = end
				continue
			}
		case '[':
			if end, next, target, ok := l.target(i); ok && linkEnd < 0 {
				l.flush()
				l.urls = append(l.urls, target)
				l.tokens = append(l.tokens, token{link: len(l.urls)})
				linkEnd, after = end, next
				i++
				continue
			}
		case '<':
			if n := l.angle(i, linkEnd >= 0); n > 0 {
				i += n
				continue
			}
		case 'h':
			if n := l.bareURL(i); n > 0 && linkEnd < 0 {
				l.linked(l.s[i:i+n], l.s[i:i+n])
				i += n
				continue
			}
		case '*', '_', '~':
			i += l.emphasis(i)
			continue
		}
		l.text.WriteByte(c)
		i++
	}
	l.flush()
}

// codeSpan reads code at i and returns its length in the source, 0 if it does not end.
func (l *lexer) codeSpan(i int) int {
	n := run(l.s[i:])
	at := l.ticks[n]
	for len(at) > 0 && at[0] <= i {
		at = at[1:]
	}
	if l.ticks[n] = at; len(at) == 0 {
		return 0
	}
	text := strings.ReplaceAll(l.s[i+n:at[0]], "\n", " ")
	if len(text) > 2 && text[0] == ' ' && text[len(text)-1] == ' ' && strings.Trim(text, " ") != "" {
		text = text[1 : len(text)-1]
	}
	l.flush()
	l.tokens = append(l.tokens, token{text: text, code: true})
	return at[0] + n - i
}

// target reads the target of a link whose text begins at i: "[text](target "title")".
func (l *lexer) target(i int) (end, next int, target string, ok bool) {
	end, found := l.closing[i]
	if !found || end+1 >= len(l.s) || l.s[end+1] != '(' || l.fails >= maxFails {
		return 0, 0, "", false
	}
	depth := 0
	for j := end + 1; j < len(l.s) && j < end+maxURL; j++ {
		switch l.s[j] {
		case '\\':
			j++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				target, _, _ = strings.Cut(strings.TrimSpace(l.s[end+2:j]), " ")
				target = strings.TrimSuffix(strings.TrimPrefix(target, "<"), ">")
				return end, j + 1, html.UnescapeString(target), true
			}
		}
	}
	l.fails++
	return 0, 0, "", false
}

// image reads an image at i and leaves its description: images are never loaded.
func (l *lexer) image(i int) (next int, ok bool) {
	if i+1 >= len(l.s) || l.s[i+1] != '[' {
		return 0, false
	}
	end, next, _, ok := l.target(i + 1)
	if !ok {
		return 0, false
	}
	alt := strings.TrimSpace(strings.ReplaceAll(l.s[i+2:end], "\n", " "))
	if alt == "" {
		alt = "image"
	}
	l.text.WriteString("[" + alt + "]")
	return next, true
}

// angle reads an automatic link or a break of the line at i and returns its length.
func (l *lexer) angle(i int, linked bool) int {
	end := strings.IndexByte(l.s[i:min(len(l.s), i+maxURL)], '>')
	if end < 0 {
		return 0
	}
	inner := l.s[i+1 : i+end]
	switch strings.ToLower(strings.TrimSuffix(strings.TrimSpace(inner), "/")) {
	case "br", "br ":
		l.text.WriteByte('\n')
		return end + 1
	}
	if !linked && !strings.ContainsAny(inner, " \t\n<") && safeURL(inner) != "" {
		l.linked(inner, inner)
		return end + 1
	}
	return 0
}

// linked adds a link.
func (l *lexer) linked(text, target string) {
	l.flush()
	l.urls = append(l.urls, target)
	l.tokens = append(l.tokens, token{link: len(l.urls)}, token{text: text}, token{link: -1})
}

// bareURL returns the length of an address that begins at i.
func (l *lexer) bareURL(i int) int {
	s, rest := l.s, l.s[i:min(len(l.s), i+maxURL+1)]
	if l.fails >= maxFails || !strings.HasPrefix(rest, "http://") && !strings.HasPrefix(rest, "https://") {
		return 0
	}
	if i > 0 {
		if r, _ := utf8.DecodeLastRuneInString(s[:i]); unicode.IsLetter(r) || unicode.IsDigit(r) {
			return 0
		}
	}
	n := strings.IndexAny(rest, " \t\n<>\"'`*|[]")
	if n < 0 {
		n = len(rest)
	}
	if n > maxURL {
		l.fails++
		return 0
	}
	u := strings.TrimRight(rest[:n], ".,:;!?_~")
	for strings.HasSuffix(u, ")") && strings.Count(u, ")") > strings.Count(u, "(") {
		u = strings.TrimRight(u[:len(u)-1], ".,:;!?_~")
	}
	if safeURL(u) == "" {
		l.fails++
		return 0
	}
	return len(u)
}

// safeURL returns a link's target if it may be followed, else an empty string.
func safeURL(s string) string {
	if len(s) > maxURL || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '\\' || r == '"' || unicode.Is(unicode.Cf, r) }) {
		return ""
	}
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	switch u.Scheme {
	case "http", "https":
		if u.Host == "" {
			return ""
		}
	case "mailto":
		if u.Opaque == "" {
			return ""
		}
	default:
		return ""
	}
	return u.String()
}

// emphasis adds a run of marks and returns its length.
func (l *lexer) emphasis(i int) int {
	c, n := l.s[i], run(l.s[i:])
	before, _ := utf8.DecodeLastRuneInString(l.s[:i])
	after, _ := utf8.DecodeRuneInString(l.s[i+n:])
	if i == 0 {
		before = ' '
	}
	if i+n == len(l.s) {
		after = ' '
	}
	word := func(r rune) bool { return !unicode.IsSpace(r) && !unicode.IsPunct(r) && !unicode.IsSymbol(r) }
	left := !unicode.IsSpace(after) && (word(after) || !word(before))
	right := !unicode.IsSpace(before) && (word(before) || !word(after))
	t := token{mark: c, n: n, open: left, close: right}
	switch {
	case c == '_':
		t.open, t.close = left && (!right || !word(before)), right && (!left || !word(after))
	case c == '~' && n != 2:
		t.open, t.close = false, false
	}
	if !t.open && !t.close {
		l.text.WriteString(l.s[i : i+n])
		return n
	}
	l.flush()
	l.tokens = append(l.tokens, t)
	return n
}

// match pairs the marks of emphasis.
func (l *lexer) match() {
	var open []int
	for i := range l.tokens {
		t := &l.tokens[i]
		if t.link != 0 { // emphasis does not cross the border of a link
			open = open[:0]
		}
		if t.mark == 0 {
			continue
		}
		for t.close && t.n > 0 {
			j := len(open) - 1
			for ; j >= 0 && len(open)-j <= maxSearch; j-- {
				if l.tokens[open[j]].mark == t.mark {
					break
				}
			}
			if j < 0 || l.tokens[open[j]].mark != t.mark {
				break
			}
			o := &l.tokens[open[j]]
			style, use := byte('i'), 1
			switch {
			case t.mark == '~':
				style, use = 's', 2
			case o.n >= 2 && t.n >= 2:
				style, use = 'b', 2
			}
			o.n, t.n = o.n-use, t.n-use
			o.on, t.off = append(o.on, style), append(t.off, style)
			if open = open[:j+1]; o.n == 0 {
				open = open[:j]
			}
		}
		if t.open && t.n > 0 {
			open = append(open, i)
		}
	}
}

// spans returns the pieces of text with their appearance.
func (l *lexer) spans() []span {
	var out []span
	var bold, italic, strike int
	link := ""
	count := func(styles []byte, by int) {
		for _, s := range styles {
			switch s {
			case 'b':
				bold += by
			case 'i':
				italic += by
			case 's':
				strike += by
			}
		}
	}
	for i := range l.tokens {
		t := &l.tokens[i]
		count(t.off, -1)
		text := t.text
		if t.mark != 0 {
			text = strings.Repeat(string(rune(t.mark)), t.n)
		}
		switch {
		case t.link > 0:
			link = safeURL(l.urls[t.link-1])
		case t.link < 0:
			link = ""
		}
		if text != "" {
			s := span{text: text, bold: bold > 0, italic: italic > 0, strike: strike > 0, code: t.code, link: link}
			if n := len(out); n > 0 && out[n-1].same(s) {
				out[n-1].text += s.text
			} else {
				out = append(out, s)
			}
		}
		count(t.on, 1)
	}
	return out
}

// same reports whether two spans look the same. Long texts are not joined, so that joining stays
// linear.
func (s span) same(o span) bool {
	a, b := s, o
	a.text, b.text = "", ""
	return a == b && len(s.text) < 4096
}
