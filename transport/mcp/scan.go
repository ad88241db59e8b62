package mcp

const (
	maxAnswer = 8 << 20 // bytes of one call's answer
	maxList   = 4 << 20 // bytes of one list of tools, all pages
	maxHello  = 1 << 20 // bytes of beginning a session
	maxValues = 250_000 // JSON values of one exchange
	maxLines  = 1_024   // lines of one server-sent event
)

// scanner counts what a hostile answer could be made of to cost far more than its
// size: JSON values outside of strings, because a decoder spends a hundred bytes
// on what two describe, and lines of one event, because joining them takes
// quadratic time. It sees the bytes as they stream by.
type scanner struct {
	events   bool // server-sent events: lines count
	values   int
	lines    int // of the event so far
	column   int // of the line so far, CR left out
	inString bool
	escaped  bool
}

// fits reports whether the answer is still one that may be decoded.
func (s *scanner) fits(p []byte) bool {
	for _, c := range p {
		if c == '\n' {
			// A string of JSON holds no line feed, so each line begins outside of one.
			s.inString, s.escaped = false, false
			if s.column == 0 {
				s.lines = 0
			} else {
				s.lines++
			}
			s.column = 0
			continue
		}
		if c != '\r' {
			s.column++
		}
		switch {
		case s.escaped:
			s.escaped = false
		case s.inString:
			s.escaped = c == '\\'
			s.inString = c != '"'
		case c == '"':
			s.inString = true
		case c == ',' || c == '[' || c == '{' || c == ':':
			s.values++
		}
	}
	return s.values <= maxValues && (!s.events || s.lines <= maxLines)
}
