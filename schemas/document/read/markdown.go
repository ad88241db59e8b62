package read

import (
	"regexp"
	"strings"
	"unicode"

	"agentsvc/schemas/document"
)

var (
	mdATX        = regexp.MustCompile(`^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$`)
	mdItem       = regexp.MustCompile(`^([ \t]*)([-*+]|\d+[.)])(?:[ \t]+(.*)|[ \t]*)$`)
	mdOpenFence  = regexp.MustCompile("^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$")
	mdRule       = regexp.MustCompile(`^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$`)
	mdUnderline  = regexp.MustCompile(`^ {0,3}(=+|-+)[ \t]*$`)
	mdDelimiters = regexp.MustCompile(`^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$`)
	mdDefinition = regexp.MustCompile(`^ {0,3}\[([^\]]+)\]:[ \t]*(\S+)[ \t]*(.*)$`)
)

// mostLabels limits the labels of links that are remembered.
const mostLabels = 10_000

// markdown reads Markdown line by line: CommonMark with tables, without its rare corners.
type markdown struct {
	f      *file
	labels map[string]bool // of link definitions
	front  int             // the last line of the front matter; 0: there is none
	closed int             // the last line that ends a comment

	n         int // lines so far
	para      []string
	size      int // of para
	kind      document.Kind
	level     int
	indents   []int // of the list items that are open
	continues bool

	fence   string // that is open
	code    strings.Builder
	indent  int  // of the fence
	blank   bool // the line before was
	comment bool
	table   *table
}

// readMarkdown reads Markdown as text free of its marks. A link is followed by its address.
func readMarkdown(f *file) error {
	m := &markdown{f: f, labels: map[string]bool{}, blank: true}
	n := 0
	front := false
	err := newLines(f.decoded()).each(func(text string, more bool) error {
		n++
		if d := mdDefinition.FindStringSubmatch(text); d != nil && len(m.labels) < mostLabels && len(text) < 2000 {
			m.labels[label(d[1])] = true
		}
		if strings.Contains(text, "-->") {
			m.closed = n
		}
		switch trimmed := strings.TrimRight(text, " \t"); {
		case n == 1 && trimmed == "---":
			front = true
		case front && n > 200:
			front = false
		case front && n > 1 && (trimmed == "---" || trimmed == "..."):
			m.front, front = n, false
		}
		return nil
	})
	if err != nil {
		return damaged(err, "the file")
	}
	if err := newLines(f.decoded()).each(m.line); err != nil {
		return damaged(err, "the file")
	}
	if m.fence != "" || m.code.Len() > 0 {
		if err := m.putCode(); err != nil {
			return damaged(err, "the file")
		}
	}
	return damaged(m.put(), "the file")
}

func label(text string) string { return strings.ToLower(line(text)) }

func (m *markdown) line(text string, more bool) error {
	m.n++
	if more {
		if m.fence != "" {
			return m.addCode(text, true)
		}
		return m.add(text, true)
	}
	if m.n <= m.front {
		if m.n == 1 || m.n == m.front {
			return m.put()
		}
		if title, is := strings.CutPrefix(text, "title:"); is {
			m.f.setTitle(strings.Trim(strings.TrimSpace(title), `"'`))
		}
		return m.add(text, false)
	}
	if m.fence != "" {
		trimmed := strings.TrimSpace(text)
		if strings.HasPrefix(trimmed, m.fence) && strings.Trim(trimmed, m.fence[:1]) == "" {
			return m.putCode()
		}
		for i := 0; i < m.indent && strings.HasPrefix(text, " "); i++ {
			text = text[1:]
		}
		return m.addCode(text, false)
	}
	if m.comment {
		_, after, ends := strings.Cut(text, "-->")
		if !ends {
			return nil
		}
		m.comment = false
		text = after
		if strings.TrimSpace(text) == "" {
			return nil
		}
	}
	if at := strings.Index(text, "<!--"); at >= 0 && !strings.Contains(text[at:], "-->") && m.closed > m.n && !strings.Contains(text[:at], "`") {
		m.comment = true
		if text = text[:at]; strings.TrimSpace(text) == "" {
			return nil
		}
	}
	was := m.blank
	m.blank = false
	if strings.TrimSpace(text) == "" {
		m.blank = true
		if m.code.Len() > 0 {
			return m.addCode("", false)
		}
		return m.put()
	}
	// Code by indentation: after a blank line, outside lists.
	if spaces := indentOf(text); spaces >= 4 && (was && len(m.para) == 0 || m.code.Len() > 0) && len(m.indents) == 0 {
		return m.addCode(unindent(text, 4), false)
	}
	if m.code.Len() > 0 {
		if err := m.putCode(); err != nil {
			return err
		}
	}
	for i := 0; i < 50; i++ { // quotes within quotes
		trimmed := strings.TrimLeft(text, " ")
		if !strings.HasPrefix(trimmed, ">") || len(text)-len(trimmed) > 3 {
			break
		}
		text = strings.TrimPrefix(trimmed[1:], " ")
	}
	if strings.TrimSpace(text) == "" {
		m.blank = true
		return m.put()
	}
	if d := mdOpenFence.FindStringSubmatch(strings.TrimLeft(text, " \t")); d != nil {
		if err := m.put(); err != nil {
			return err
		}
		m.fence, m.indent = d[1], indentOf(text)
		return nil
	}
	if d := mdATX.FindStringSubmatch(text); d != nil {
		if err := m.put(); err != nil {
			return err
		}
		m.indents = nil
		return m.heading(len(d[1]), d[2])
	}
	if u := mdUnderline.FindStringSubmatch(text); u != nil && len(m.para) > 0 && m.kind == document.Paragraph && m.table == nil && !m.continues {
		level := 2
		if u[1][0] == '=' {
			level = 1
		}
		title := strings.Join(m.para, " ")
		if !(len(m.para) == 1 && strings.Contains(title, "|") && u[1] == "-") {
			m.para, m.size = nil, 0
			return m.heading(level, title)
		}
	}
	if mdRule.MatchString(text) {
		m.indents = nil
		return m.put()
	}
	if m.table != nil {
		if strings.Contains(text, "|") && mdItem.FindStringSubmatch(text) == nil {
			return m.table.row(m.cells(text))
		}
		if err := m.put(); err != nil {
			return err
		}
	}
	if n := len(m.para); n > 0 && m.kind == document.Paragraph && strings.Contains(m.para[n-1], "|") && strings.Contains(text, "-") && mdDelimiters.MatchString(text) &&
		(strings.Contains(text, "|")) && len(splitCells(text)) == len(splitCells(m.para[n-1])) {
		head := m.para[n-1]
		m.para = m.para[:n-1]
		if err := m.put(); err != nil {
			return err
		}
		m.table = &table{f: m.f}
		return m.table.row(m.cells(head))
	}
	if d := mdItem.FindStringSubmatch(text); d != nil && (len(m.para) == 0 || m.kind == document.List || d[2] == "1." || d[2] == "1)" || strings.ContainsAny(d[2], "-*+")) && (d[3] != "" || len(m.para) == 0) {
		if err := m.put(); err != nil {
			return err
		}
		indent := indentOf(d[1] + "x")
		for len(m.indents) > 0 && m.indents[len(m.indents)-1] >= indent+1 {
			m.indents = m.indents[:len(m.indents)-1]
		}
		if len(m.indents) == 0 || indent > m.indents[len(m.indents)-1]+1 {
			if len(m.indents) < 20 {
				m.indents = append(m.indents, indent)
			}
		}
		m.kind, m.level = document.List, len(m.indents)
		item := d[3]
		if rest, is := strings.CutPrefix(item, "[ ] "); is {
			item = "☐ " + rest
		} else if rest, is := strings.CutPrefix(strings.Replace(item, "[X] ", "[x] ", 1), "[x] "); is && (strings.HasPrefix(item, "[x] ") || strings.HasPrefix(item, "[X] ")) {
			item = "☑ " + rest
		}
		if d[2][0] >= '0' && d[2][0] <= '9' {
			item = d[2] + " " + item
		}
		if strings.TrimSpace(item) == "" {
			return nil
		}
		return m.add(item, false)
	}
	if d := mdDefinition.FindStringSubmatch(text); d != nil && len(m.para) == 0 && !strings.HasPrefix(d[1], "^") {
		note := strings.Trim(d[3], `"'() `)
		return m.f.block(document.Block{Text: unmark(d[1], m.labels) + ": " + strings.TrimSpace(strings.Trim(d[2], "<>")+" "+note)})
	}
	if len(m.para) == 0 && !m.continues {
		m.kind = document.Paragraph
		if len(m.indents) > 0 && indentOf(text) > m.indents[0] {
			m.kind, m.level = document.List, len(m.indents)
		} else {
			m.indents = nil
		}
	}
	return m.add(strings.TrimLeft(text, " \t"), false)
}

func (m *markdown) heading(level int, text string) error {
	text = unmark(text, m.labels)
	if level == 1 {
		m.f.setTitle(text)
	}
	return m.f.block(document.Block{Kind: document.Heading, Level: level, Text: text})
}

func (m *markdown) add(text string, more bool) error {
	if m.size+len(text) > pieceBytes {
		if err := m.putPara(); err != nil {
			return err
		}
		m.continues = true
		if !more {
			text = "\n" + text
		}
	} else if more && len(m.para) > 0 {
		m.para[len(m.para)-1] += text
		m.size += len(text)
		return nil
	}
	m.para = append(m.para, text)
	m.size += len(text) + 1
	return nil
}

// putPara passes on the lines so far.
func (m *markdown) putPara() error {
	if len(m.para) == 0 {
		return nil
	}
	text := strings.Join(m.para, "\n")
	m.para, m.size = m.para[:0], 0
	b := document.Block{Kind: m.kind, Level: m.level, Text: unmark(text, m.labels), Continues: m.continues}
	if b.Kind == document.Paragraph {
		b.Level = 0
	}
	return m.f.block(b)
}

// put ends what is open: paragraph, list item or table.
func (m *markdown) put() error {
	err := m.putPara()
	m.kind, m.continues = document.Paragraph, false
	if m.table != nil && err == nil {
		err = m.table.end()
		m.table = nil
	}
	return err
}

func (m *markdown) addCode(text string, more bool) error {
	if m.code.Len()+len(text) > pieceBytes {
		if err := m.flushCode(); err != nil {
			return err
		}
		m.continues = true
	}
	m.code.WriteString(text)
	if !more || len(text) == 0 {
		m.code.WriteByte('\n')
	}
	return nil
}

func (m *markdown) flushCode() error {
	text := m.code.String()
	m.code.Reset()
	if strings.TrimSpace(text) == "" && !m.continues {
		return nil
	}
	return m.f.block(document.Block{Kind: document.Code, Text: text, Continues: m.continues})
}

func (m *markdown) putCode() error {
	text := strings.TrimRight(m.code.String(), "\n")
	m.code.Reset()
	m.code.WriteString(text)
	err := m.flushCode()
	m.fence, m.continues = "", false
	return err
}

func (m *markdown) cells(text string) []string {
	cells := splitCells(text)
	for i, c := range cells {
		cells[i] = unmark(c, m.labels)
	}
	return cells
}

// splitCells splits a row of a table.
func splitCells(text string) []string {
	text = strings.TrimSpace(text)
	text = strings.TrimPrefix(text, "|")
	var cells []string
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && text[i+1] == '|':
			b.WriteByte('|')
			i++
		case c == '|':
			cells = append(cells, strings.TrimSpace(b.String()))
			b.Reset()
		default:
			b.WriteByte(c)
		}
	}
	if rest := strings.TrimSpace(b.String()); rest != "" || len(cells) == 0 {
		cells = append(cells, rest)
	}
	return cells
}

func indentOf(text string) int {
	n := 0
	for _, r := range text {
		switch r {
		case ' ':
			n++
		case '\t':
			n += 4 - n%4
		default:
			return n
		}
	}
	return n
}

func unindent(text string, n int) string {
	for n > 0 && text != "" {
		switch text[0] {
		case ' ':
			n--
		case '\t':
			n -= 4
		default:
			return text
		}
		text = text[1:]
	}
	return text
}

// escapable reports whether a backslash takes c literally: punctuation.
func escapable(c byte) bool {
	return c < 0x80 && (unicode.IsPunct(rune(c)) || unicode.IsSymbol(rune(c)))
}
