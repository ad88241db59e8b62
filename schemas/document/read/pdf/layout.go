package pdf

import (
	"math"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is a line of text on a page.
type Line struct {
	Text    string
	Begins  bool // a paragraph
	Heading int  // level by its size, from 1; 0: it is running text
}

// longestLine limits a line, in bytes.
const longestLine = 16 << 10

type row struct {
	span
	words int
}

// layout makes lines of spans. Programs write text in reading order, columns one after the
// other, so that order is kept; if it jumps about, the text is read from top to bottom.
func (d *Doc) layout(spans []span) []Line {
	rows := inRows(spans)
	if up := jumps(rows); up > 4 && up*5 > len(rows) {
		sort.SliceStable(spans, func(i, j int) bool {
			a, b := spans[i], spans[j]
			if math.Abs(a.y-b.y) > 0.3*math.Max(a.size, b.size) {
				return a.y > b.y
			}
			return a.x0 < b.x0
		})
		rows = inRows(spans)
	}
	for _, r := range rows {
		if len(d.sizes) < 1000 {
			d.sizes[sizeOf(r.size)] += utf8.RuneCountInString(r.text)
		}
	}
	body, most := 0, 0
	for size, n := range d.sizes {
		if n > most || n == most && size < body {
			body, most = size, n
		}
	}
	var out []Line
	for i, r := range rows {
		l := Line{Text: strings.TrimSpace(r.text), Begins: true}
		if l.Text == "" {
			continue
		}
		l.Heading = headingLevel(r, body, most)
		if i > 0 {
			before := rows[i-1]
			down := before.y - r.y
			size := math.Max(before.size, r.size)
			near := down >= 0 && down < 1.75*size && math.Abs(before.size-r.size) < 0.1*size
			indented := r.x0 > before.x0+0.9*size && r.x0 < before.x0+6*size && before.x1 > r.x1-10*size && !startsLower(l.Text) && !bullet(strings.TrimSpace(before.text))
			l.Begins = !near || indented || bullet(l.Text)
			if n := len(out); n > 0 && near && l.Heading > 0 && out[n-1].Heading == l.Heading && len(out[n-1].Text) < 200 {
				out[n-1].Text += " " + l.Text
				continue
			}
		}
		out = append(out, l)
	}
	return out
}

func sizeOf(size float64) int { return int(math.Round(math.Min(size, 1e6) * 4)) }

// headingLevel takes short large lines for headings. body is the size of most of the text.
func headingLevel(r row, body, most int) int {
	text := strings.TrimSpace(r.text)
	if most < 100 || body == 0 || utf8.RuneCountInString(text) > 150 || strings.IndexFunc(text, unicode.IsLetter) < 0 {
		return 0
	}
	switch ratio := float64(sizeOf(r.size)) / float64(body); {
	case ratio >= 1.8:
		return 1
	case ratio >= 1.4:
		return 2
	case ratio >= 1.15:
		return 3
	}
	return 0
}

func startsLower(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return unicode.IsLower(r)
}

// bullet reports whether a line begins an item of a list.
func bullet(text string) bool {
	r, n := utf8.DecodeRuneInString(text)
	if strings.ContainsRune("•‣▪■●○◦–*", r) {
		return true
	}
	return r == '-' && strings.HasPrefix(text[n:], " ")
}

// inRows joins spans that follow each other on a line.
func inRows(spans []span) []row {
	var rows []row
	for _, s := range spans {
		if n := len(rows); n > 0 && len(rows[n-1].text) < longestLine {
			r := &rows[n-1]
			size := math.Max(r.size, s.size)
			gap := s.x0 - r.x1
			raised := math.Abs(s.y-r.y) < 0.6*size && math.Min(r.size, s.size) < 0.8*size && gap > -0.3*size && gap < 0.5*size // an index or exponent
			if (math.Abs(s.y-r.y) < 0.35*size && gap > -0.5*size) || raised {
				var b strings.Builder
				b.WriteString(r.text)
				if !strings.HasSuffix(r.text, " ") && !strings.HasPrefix(s.text, " ") && (gap > 0.12*size) {
					if gap > 1.5*size {
						b.WriteByte('\t')
					} else {
						b.WriteByte(' ')
					}
				}
				b.WriteString(s.text)
				r.text = b.String()
				r.x1 = math.Max(r.x1, s.x1)
				if utf8.RuneCountInString(s.text) > r.words {
					r.size, r.y, r.words = s.size, s.y, utf8.RuneCountInString(s.text)
				}
				continue
			}
		}
		rows = append(rows, row{s, utf8.RuneCountInString(s.text)})
	}
	return rows
}

// jumps counts rows that are above the one before.
func jumps(rows []row) int {
	n := 0
	for i := 1; i < len(rows); i++ {
		if rows[i].y > rows[i-1].y+rows[i].size {
			n++
		}
	}
	return n
}
