package mcp

const (
	maxAnswer = 8 << 20 // bytes of one call's response
	// smallAnswer is how much of a response is read without a place of the node.
	smallAnswer = 64 << 10
	maxList     = 4 << 20 // bytes of one list of tools, all pages
	maxHello    = 1 << 20 // bytes for beginning a session
	maxValues   = 250_000 // JSON values of one exchange
	maxLines    = 1_024   // lines of one server-sent event
)

// scanner counts what can make a hostile response far more expensive than its size: JSON
// values outside strings, because a decoder spends a hundred bytes on what two describe, and
// lines per event, because joining them takes quadratic time. It inspects the bytes as they
// stream by.
type scanner struct {
	events   bool // server-sent events: count lines
	values   int
	size     int // bytes of the response, or of the current event
	lines    int // lines of the current event
	column   int // bytes of the current line, without CR
	inString bool
	escaped  bool
}

// fits reports whether the response may still be decoded.
func (s *scanner) fits(p []byte) bool {
	for _, c := range p {
		s.size++
		if c == '\n' {
			// A JSON string holds no line feed, so each line begins outside a string.
			s.inString, s.escaped = false, false
			if s.column == 0 {
				if s.lines = 0; s.events {
					s.size = 0
				}
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
