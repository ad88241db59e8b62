package read

import (
	"html"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mark is a piece of a text: a text, or a run of marks that may begin or end an emphasis.
type mark struct {
	text        string
	char        byte // of a run; 0: text
	n           int  // marks of the run that are left
	opens, ends bool
}

var (
	mdAutolink = regexp.MustCompile(`^<([A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[^\s<>@]+@[^\s<>@]+)>`)
	mdTag      = regexp.MustCompile(`^</?[A-Za-z][A-Za-z0-9-]*(?:\s[^<>]*)?/?>`)
	mdEntity   = regexp.MustCompile(`^&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});`)
)

// mostInLink limits the pieces of text and marks inside a link.
const mostInLink = 100

// unmark returns a text of Markdown without the marks inside lines: emphasis, code, links,
// images, tags, escapes. The address of a link stays, in parentheses. What is no mark, because
// it has no partner, stays. Its time grows with the text.
func unmark(text string, labels map[string]bool) string {
	if !strings.ContainsAny(text, "*_~`[]<&\\!") {
		return text
	}
	var out []mark
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			out = append(out, mark{text: plain.String()})
			plain.Reset()
		}
	}
	noTicks := map[int]bool{} // lengths of runs that nothing closes
	noTag := false            // no tag ends in the rest
	var brackets []int        // places in out where a bracket opened
	for i := 0; i < len(text); {
		c := text[i]
		switch c {
		case '\\':
			if i+1 < len(text) && escapable(text[i+1]) {
				plain.WriteByte(text[i+1])
				i += 2
				continue
			}
			if i+1 < len(text) && text[i+1] == '\n' { // a hard break
				i++
				continue
			}
		case '`':
			n := run(text[i:], '`')
			if !noTicks[n] {
				if at := closing(text[i+n:], n); at >= 0 {
					code := text[i+n : i+n+at]
					code = strings.ReplaceAll(code, "\n", " ")
					if len(code) > 2 && code[0] == ' ' && code[len(code)-1] == ' ' && strings.TrimSpace(code) != "" {
						code = code[1 : len(code)-1]
					}
					plain.WriteString(code)
					i += n + at + n
					continue
				}
				noTicks[n] = true
			}
			plain.WriteString(text[i : i+n])
			i += n
			continue
		case '*', '_', '~':
			n := run(text[i:], c)
			before, _ := utf8.DecodeLastRuneInString(text[:i])
			after, _ := utf8.DecodeRuneInString(text[i+n:])
			if i == 0 {
				before = ' '
			}
			if i+n == len(text) {
				after = ' '
			}
			left, right := flanks(before, after)
			opens, ends := left, right
			if c == '_' {
				opens = left && (!right || isPunct(before))
				ends = right && (!left || isPunct(after))
			}
			if c == '~' && n != 2 {
				opens, ends = false, false
			}
			flush()
			out = append(out, mark{char: c, n: n, opens: opens, ends: ends})
			i += n
			continue
		case '!':
			if i+1 < len(text) && text[i+1] == '[' {
				flush()
				brackets = append(brackets, len(out))
				out = append(out, mark{text: "!["})
				i += 2
				continue
			}
		case '[':
			if note := footnote(text[i:]); note > 0 {
				plain.WriteString("[" + text[i+2:i+note] + "]")
				i += note + 1
				continue
			}
			flush()
			brackets = append(brackets, len(out))
			out = append(out, mark{text: "["})
			i++
			continue
		case ']':
			if len(brackets) == 0 {
				break
			}
			at := brackets[len(brackets)-1]
			brackets = brackets[:len(brackets)-1]
			flush()
			// Brackets that hold many others are no link.
			inside := ""
			if len(out)-at < mostInLink {
				inside = written(out[at+1:])
			}
			end, address, is := target(text[i+1:])
			if !is {
				is = labels[label(inside)]
				if ref, n := reference(text[i+1:]); n > 0 && (labels[label(ref)] || ref == "" && is) {
					is, end = true, n
				}
			}
			if is {
				out[at].text = ""
				switch {
				case address == "" || address == inside:
				case strings.TrimSpace(inside) == "":
					plain.WriteString(address)
				default:
					plain.WriteString(" (" + address + ")")
				}
				i += 1 + end
				continue
			}
		case '<':
			rest := text[i:]
			if noTag {
				break
			}
			if !strings.Contains(rest, ">") {
				noTag = true
				break
			}
			if strings.HasPrefix(rest, "<!--") {
				if n := strings.Index(rest, "-->"); n >= 0 {
					i += n + 3
					continue
				}
				break
			}
			rest = rest[:min(len(rest), 2000)]
			if m := mdAutolink.FindStringSubmatch(rest); m != nil {
				plain.WriteString(m[1])
				i += len(m[0])
				continue
			}
			if m := mdTag.FindString(rest); m != "" {
				name := strings.ToLower(strings.Trim(m, "</> "))
				if strings.HasPrefix(name, "br") || strings.HasPrefix(name, "p") || strings.HasPrefix(name, "div") || strings.HasPrefix(name, "t") || strings.HasPrefix(name, "li") {
					plain.WriteByte('\n')
				}
				i += len(m)
				continue
			}
		case '&':
			if m := mdEntity.FindString(text[i:min(len(text), i+40)]); m != "" {
				plain.WriteString(html.UnescapeString(m))
				i += len(m)
				continue
			}
		}
		plain.WriteByte(c)
		i++
	}
	flush()
	emphasis(out)
	return written(out)
}

// emphasis takes away the marks that have a partner.
func emphasis(out []mark) {
	open := map[byte][]int{}
	for i := range out {
		m := &out[i]
		if m.char == 0 {
			continue
		}
		if m.ends {
			for stack := open[m.char]; m.n > 0 && len(stack) > 0; stack = open[m.char] {
				o := &out[stack[len(stack)-1]]
				n := min(o.n, m.n)
				o.n -= n
				m.n -= n
				if o.n == 0 {
					open[m.char] = stack[:len(stack)-1]
				}
			}
		}
		if m.opens && m.n > 0 {
			open[m.char] = append(open[m.char], i)
		}
	}
}

func written(out []mark) string {
	if len(out) == 1 && out[0].char == 0 {
		return out[0].text
	}
	var b strings.Builder
	for _, m := range out {
		if m.char != 0 {
			for range m.n {
				b.WriteByte(m.char)
			}
			continue
		}
		b.WriteString(m.text)
	}
	return b.String()
}

func run(text string, c byte) int {
	n := 0
	for n < len(text) && text[n] == c {
		n++
	}
	return n
}

// closing returns where a run of exactly n backticks begins; -1 if there is none.
func closing(text string, n int) int {
	for i := 0; i < len(text); {
		at := strings.IndexByte(text[i:], '`')
		if at < 0 {
			return -1
		}
		i += at
		k := run(text[i:], '`')
		if k == n {
			return i
		}
		i += k
	}
	return -1
}

// flanks reports whether a run of marks touches the text after it, and the text before it.
func flanks(before, after rune) (left, right bool) {
	left = !unicode.IsSpace(after) && (!isPunct(after) || unicode.IsSpace(before) || isPunct(before))
	right = !unicode.IsSpace(before) && (!isPunct(before) || unicode.IsSpace(after) || isPunct(after))
	return left, right
}

func isPunct(r rune) bool { return unicode.IsPunct(r) || unicode.IsSymbol(r) }

// footnote returns the length of "[^1]" without the bracket that closes it; 0 if there is none.
func footnote(text string) int {
	if !strings.HasPrefix(text, "[^") {
		return 0
	}
	end := strings.IndexByte(text[:min(len(text), 60)], ']')
	if end < 3 || strings.ContainsAny(text[:end], " \n") {
		return 0
	}
	return end
}

// target reads "(address "title")" behind the text of a link.
func target(text string) (n int, address string, is bool) {
	if !strings.HasPrefix(text, "(") {
		return 0, "", false
	}
	text = text[:min(len(text), 4000)]
	depth, quote := 0, byte(0)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case (c == '"' || c == '\'') && i > 0 && (text[i-1] == ' ' || text[i-1] == '\n'):
			quote = c
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth > 0 {
				continue
			}
			inside := strings.TrimSpace(text[1:i])
			address, title := inside, ""
			if rest, is := strings.CutPrefix(inside, "<"); is && strings.Contains(rest, ">") {
				address, title, _ = strings.Cut(rest, ">")
			} else if at := strings.IndexAny(inside, " \n"); at >= 0 {
				address, title = inside[:at], inside[at:]
			}
			if strings.HasPrefix(address, "#") {
				address = ""
			}
			if title = strings.Trim(strings.TrimSpace(title), `"'()`); title != "" {
				address = strings.TrimPrefix(address+", "+title, ", ")
			}
			return i + 1, address, true
		}
	}
	return 0, "", false
}

// reference reads "[label]" behind the text of a link.
func reference(text string) (string, int) {
	if !strings.HasPrefix(text, "[") {
		return "", 0
	}
	end := strings.IndexByte(text[:min(len(text), 300)], ']')
	if end < 0 {
		return "", 0
	}
	return text[1:end], end + 1
}
