package deliverable

import (
	"context"
	"strconv"
	"strings"
)

// blockKind is what a block of Markdown is.
type blockKind int

const (
	paragraph blockKind = iota
	heading
	item // of a list
	code
	rule
	table
)

// block is one block. Lists and quotations are flat: an item has the depth of its list.
type block struct {
	kind  blockKind
	text  string // the source of its inline content; of code: the content
	level int    // of a heading, 1 to 6
	depth int    // lists around it; of an item at least 1
	quote int    // quotations around it

	ordered bool // of an item
	number  int  // of an ordered item

	rows  [][]string // of a table: sources of cells; the first row is the header
	align []byte     // of a table's columns: l, c, r or 0
	chart chartKind  // of a table
}

// doc is a parsed text.
type doc struct{ blocks []block }

const (
	maxDepth = 6 // of lists and of quotations; what is deeper is shown at this depth
	tab      = 4
)

// parser reads line by line.
type parser struct {
	ctx    context.Context
	rest   string
	line   int
	blocks []block

	open   *block   // the paragraph or item that the next line may continue
	text   []string // its lines
	lists  []int    // where the content of each open list begins
	after  bool     // the last line was blank
	mark   chartKind
	cells  int
	tables int
}

// parse reads a clean text. Its cost is linear in the length of the text.
func parse(ctx context.Context, text string) (*doc, error) {
	p := &parser{ctx: ctx, rest: text}
	for p.rest != "" {
		if p.line++; p.line%1000 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := p.read(p.next()); err != nil {
			return nil, err
		}
		if len(p.blocks) > maxBlocks {
			return nil, fault("the text has more than %d paragraphs", maxBlocks)
		}
	}
	p.close()
	return &doc{p.blocks}, nil
}

// next takes a line.
func (p *parser) next() string {
	line, rest, _ := strings.Cut(p.rest, "\n")
	p.rest = rest
	return line
}

func (p *parser) peek() string {
	line, _, _ := strings.Cut(p.rest, "\n")
	return line
}

// close ends the open paragraph or item.
func (p *parser) close() {
	if p.open != nil {
		p.open.text = strings.Join(p.text, "\n")
		p.blocks = append(p.blocks, *p.open)
	}
	p.open, p.text = nil, nil
}

func (p *parser) add(b block) {
	p.close()
	b.depth = len(p.lists)
	p.blocks = append(p.blocks, b)
}

// indent returns the columns of white space at the start of a line, and the rest.
func indent(line string) (int, string) {
	n := 0
	for i := range len(line) {
		switch line[i] {
		case ' ':
			n++
		case '\t':
			n += tab - n%tab
		default:
			return n, line[i:]
		}
	}
	return n, ""
}

// unquote takes the marks of quotations from a line.
func unquote(line string) (int, string) {
	quote := 0
	for {
		n, rest := indent(line)
		if n >= tab || !strings.HasPrefix(rest, ">") {
			return min(quote, maxDepth), line
		}
		quote++
		line = strings.TrimPrefix(rest[1:], " ")
	}
}

func (p *parser) read(line string) error {
	quote, line := unquote(line)
	in, s := indent(line)
	if s == "" {
		p.close()
		p.after = true
		return nil
	}
	blank := p.after
	p.after = false
	if p.open != nil && p.open.quote != quote && quote > 0 {
		p.close()
	}
	// After a blank line a paragraph belongs to the lists whose content it is indented to.
	number, ordered, marker, isItem := listMarker(s)
	if blank && !isItem {
		for len(p.lists) > 0 && in < p.lists[len(p.lists)-1] {
			p.lists = p.lists[:len(p.lists)-1]
		}
	}
	if p.open == nil && len(p.lists) == 0 && in >= tab {
		p.indented(line, quote)
		return nil
	}
	trimmed := strings.TrimSpace(s)
	mark := p.mark
	p.mark = ""
	switch {
	case strings.HasPrefix(trimmed, "<!--") && strings.HasSuffix(trimmed, "-->"):
		p.close()
		p.mark = readMark(trimmed)
	case fence(s) != "":
		p.fenced(s, in, quote)
	case p.underlined(trimmed, quote):
	case isRule(trimmed):
		p.lists = nil
		p.add(block{kind: rule, quote: quote})
	case headingLevel(s) > 0:
		n := headingLevel(s)
		p.lists = nil
		p.add(block{kind: heading, level: n, text: closeHeading(s[n:]), quote: quote})
	case strings.Contains(s, "|") && p.isTable(s):
		return p.table(s, quote, mark)
	case isItem:
		p.close()
		for len(p.lists) > 0 && in < p.lists[len(p.lists)-1] {
			p.lists = p.lists[:len(p.lists)-1]
		}
		if len(p.lists) < maxDepth {
			p.lists = append(p.lists, in+marker)
		}
		p.open = &block{kind: item, depth: len(p.lists), ordered: ordered, number: number, quote: quote}
		p.text = append(p.text, hardBreak(strings.TrimLeft(s[min(marker, len(s)):], " \t")))
	default:
		if p.open == nil {
			if !blank {
				p.lists = nil
			}
			p.open = &block{kind: paragraph, depth: len(p.lists), quote: quote}
		}
		p.text = append(p.text, hardBreak(s))
	}
	return nil
}

// hardBreak keeps the end of a line that asks for a break: a backslash. Two spaces become one.
func hardBreak(s string) string {
	if strings.HasSuffix(s, "  ") {
		return strings.TrimRight(s, " \t") + `\`
	}
	return strings.TrimRight(s, " \t")
}

// underlined makes the open paragraph a heading, if the line underlines it.
func (p *parser) underlined(s string, quote int) bool {
	if p.open == nil || p.open.kind != paragraph || p.open.quote != quote {
		return false
	}
	switch {
	case strings.Trim(s, "=") == "":
		p.open.level = 1
	case strings.Trim(s, "-") == "" && len(s) > 1:
		p.open.level = 2
	default:
		return false
	}
	p.open.kind, p.lists = heading, nil
	p.close()
	return true
}

// isRule reports whether a line is a thematic break.
func isRule(s string) bool {
	c := s[0]
	if c != '-' && c != '*' && c != '_' {
		return false
	}
	n := 0
	for i := range len(s) {
		switch s[i] {
		case c:
			n++
		case ' ', '\t':
		default:
			return false
		}
	}
	return n >= 3
}

func headingLevel(s string) int {
	n := 0
	for n < len(s) && s[n] == '#' {
		n++
	}
	if n == 0 || n > 6 || n < len(s) && s[n] != ' ' && s[n] != '\t' {
		return 0
	}
	return n
}

// closeHeading removes the marks that may follow a heading.
func closeHeading(s string) string {
	s = strings.TrimSpace(s)
	if open := strings.TrimRight(s, "#"); open == "" || strings.HasSuffix(open, " ") {
		s = strings.TrimSpace(open)
	}
	return s
}

// listMarker reads the mark of an item: its number, and the width of the mark with the space behind it.
func listMarker(s string) (number int, ordered bool, width int, ok bool) {
	i := 0
	switch {
	case s[0] == '-' || s[0] == '*' || s[0] == '+':
		i = 1
	default:
		for i < len(s) && i < 9 && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		if i == 0 || i == len(s) || s[i] != '.' && s[i] != ')' {
			return 0, false, 0, false
		}
		number, _ = strconv.Atoi(s[:i])
		ordered = true
		i++
	}
	if i < len(s) && s[i] != ' ' && s[i] != '\t' {
		return 0, false, 0, false
	}
	return number, ordered, i + 1, true
}

// fence returns the marks that open a block of code.
func fence(s string) string {
	n := 0
	for n < len(s) && s[n] == s[0] {
		n++
	}
	if n < 3 || s[0] != '`' && s[0] != '~' || s[0] == '`' && strings.Contains(s[n:], "`") {
		return ""
	}
	return s[:n]
}

// fenced reads a block of code to its end, or to the end of the text.
func (p *parser) fenced(s string, in, quote int) {
	open := fence(s)
	var b strings.Builder
	for p.rest != "" {
		_, line := unquoteAtMost(p.next(), quote)
		_, t := indent(line)
		if strings.HasPrefix(t, open) && strings.Trim(t, open[:1]+" \t") == "" {
			break
		}
		b.WriteString(outdent(line, in) + "\n")
	}
	p.add(block{kind: code, text: strings.TrimSuffix(b.String(), "\n"), quote: quote})
}

// unquoteAtMost takes up to most marks of quotations from a line.
func unquoteAtMost(line string, most int) (int, string) {
	for i := range most {
		n, rest := indent(line)
		if n >= tab || !strings.HasPrefix(rest, ">") {
			return i, line
		}
		line = strings.TrimPrefix(rest[1:], " ")
	}
	return most, line
}

// outdent removes up to n spaces.
func outdent(s string, n int) string {
	for n > 0 && strings.HasPrefix(s, " ") {
		s, n = s[1:], n-1
	}
	return s
}

// indented reads a block of indented code.
func (p *parser) indented(line string, quote int) {
	var b strings.Builder
	b.WriteString(outdent(strings.ReplaceAll(line, "\t", "    "), tab))
	for p.rest != "" {
		_, next := unquoteAtMost(p.peek(), quote)
		if in, s := indent(next); in < tab || s == "" {
			break
		}
		p.next()
		b.WriteString("\n" + outdent(strings.ReplaceAll(next, "\t", "    "), tab))
	}
	p.add(block{kind: code, text: b.String(), quote: quote})
}

// isTable reports whether s is the header of a table: the next line says so.
func (p *parser) isTable(s string) bool {
	_, next := unquote(p.peek())
	next = strings.TrimSpace(next)
	return strings.Contains(next, "-") && strings.Trim(next, "|:- \t") == "" && delimiters(next) != nil && len(delimiters(next)) == len(cells(s))
}

// delimiters returns the alignment of each column, nil if the line is no row of delimiters.
func delimiters(s string) []byte {
	var out []byte
	for _, c := range cells(s) {
		left, right := strings.HasPrefix(c, ":"), strings.HasSuffix(c, ":")
		if dashes := strings.TrimSuffix(strings.TrimPrefix(c, ":"), ":"); dashes == "" || strings.Trim(dashes, "-") != "" {
			return nil
		}
		switch {
		case left && right:
			out = append(out, 'c')
		case right:
			out = append(out, 'r')
		case left:
			out = append(out, 'l')
		default:
			out = append(out, 0)
		}
	}
	return out
}

// cells splits a row. A bar in code or after a backslash separates nothing, as in GFM a bar in code
// must be escaped: only the backslash counts.
func cells(s string) []string {
	s = strings.TrimSpace(s)
	s = strings.TrimPrefix(s, "|")
	var out []string
	from := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '|':
			out = append(out, cell(s[from:i]))
			from = i + 1
		}
	}
	if last := cell(s[from:]); last != "" || len(out) == 0 {
		out = append(out, last)
	}
	return out
}

func cell(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), `\|`, "|") }

// table reads a table to its last row. A row has as many cells as the header: further ones are
// dropped as GFM says, missing ones are empty.
func (p *parser) table(header string, quote int, mark chartKind) error {
	_, line := unquote(p.next())
	b := block{kind: table, rows: [][]string{cells(header)}, align: delimiters(line), quote: quote, chart: mark}
	columns := len(b.rows[0])
	if columns > maxColumns {
		return fault("a table has more than %d columns", maxColumns)
	}
	if p.tables++; p.tables > maxTables {
		return fault("the text has more than %d tables", maxTables)
	}
	p.cells += columns
	for p.rest != "" {
		q, line := unquote(p.peek())
		s := strings.TrimSpace(line)
		if s == "" || q != quote || !strings.Contains(s, "|") {
			break
		}
		p.next()
		if p.cells += columns; p.cells > maxCells {
			return fault("the tables have more than %d cells", maxCells)
		}
		if len(b.rows)%1000 == 0 && p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		row := cells(s)
		for len(row) < columns {
			row = append(row, "")
		}
		b.rows = append(b.rows, row[:columns:columns])
	}
	p.add(b)
	return nil
}
