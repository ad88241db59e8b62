package read

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"unicode"

	"agentsvc/schemas/document"
)

// table makes rows of cells. The first row that holds anything is the header of the others; a
// table of one row is a row without a header.
type table struct {
	f      *file
	page   int
	plain  bool   // the rows have no header
	header string // as in Block.Header
	held   bool   // header has not been in a block
	rows   int
}

// longestHeader is the length from which on a first row is taken for a row like the others.
const longestHeader = 4 << 10

func (t *table) row(cells []string) error {
	for len(cells) > 0 && strings.TrimSpace(cells[len(cells)-1]) == "" {
		cells = cells[:len(cells)-1]
	}
	if len(cells) == 0 {
		return nil
	}
	var b strings.Builder
	for i, c := range cells {
		if i > 0 {
			b.WriteByte('\t')
		}
		b.WriteString(line(c))
	}
	text := b.String()
	if strings.TrimSpace(text) == "" {
		return nil
	}
	t.rows++
	if t.rows == 1 && !t.plain {
		if len(text) <= longestHeader {
			t.header, t.held = text, true
			return nil
		}
		t.plain = true
	}
	t.held = false
	return t.f.block(document.Block{Kind: document.Row, Text: text, Header: t.header, Page: t.page})
}

// end ends the table.
func (t *table) end() error {
	if !t.held {
		return nil
	}
	t.held = false
	return t.f.block(document.Block{Kind: document.Row, Text: t.header, Page: t.page})
}

const (
	// longestRecord limits a row of a CSV file, in bytes; what is longer becomes two rows.
	longestRecord = 1 << 20
	// mostCells limits the cells of a row.
	mostCells = 20_000
)

// separatorOf finds what separates the fields of a CSV file: what is most often in its first
// lines outside quotes.
func separatorOf(sample string) byte {
	counts := map[byte]int{}
	quoted, seen := false, 0
	for i := 0; i < len(sample) && seen < 20; i++ {
		switch c := sample[i]; c {
		case '"':
			quoted = !quoted
		case '\n':
			seen++
		case ',', ';', '\t', '|':
			if !quoted {
				counts[c]++
			}
		}
	}
	best := byte(',')
	for _, c := range []byte{';', '\t', '|'} {
		if counts[c] > counts[best] {
			best = c
		}
	}
	return best
}

// readCSV reads rows of fields. A quote that is never closed costs one row, not the file.
func readCSV(f *file) error {
	in := bufio.NewReaderSize(f.decoded(), sampleBytes)
	sample, err := in.Peek(sampleBytes / 2)
	if err != nil && !errors.Is(err, io.EOF) {
		return damaged(err, "the file")
	}
	text := string(sample)
	if rest, is := strings.CutPrefix(text, "sep="); is && len(rest) > 1 && (rest[1] == '\n' || rest[1] == '\r') {
		_, _ = in.ReadString('\n') // it was peeked
		text = strings.Repeat(rest[:1], 1000)
	}
	sep := separatorOf(text)
	t := &table{f: f}
	var cells []string
	var cell strings.Builder
	size, quoted, begun, wasCR := 0, false, false, false
	endCell := func() {
		cells = append(cells, cell.String())
		cell.Reset()
		begun = false
	}
	endRow := func() error {
		endCell()
		err := t.row(cells)
		cells, size, quoted = cells[:0], 0, false
		return err
	}
	for {
		c, err := in.ReadByte()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged(err, "the file")
		}
		if size++; size > longestRecord || len(cells) > mostCells {
			if err := endRow(); err != nil {
				return damaged(err, "the file")
			}
		}
		lf := wasCR
		wasCR = c == '\r' && !quoted
		switch {
		case quoted && c == '"':
			if next, _ := in.Peek(1); len(next) == 1 && next[0] == '"' {
				_, _ = in.ReadByte() // it was peeked
				cell.WriteByte('"')
				continue
			}
			quoted = false
		case quoted:
			cell.WriteByte(c)
		case c == '"' && !begun:
			quoted, begun = true, true
		case c == sep:
			endCell()
		case c == '\n' && lf: // the end of the line came before
		case c == '\n', c == '\r':
			if err := endRow(); err != nil {
				return damaged(err, "the file")
			}
		default:
			begun = begun || !unicode.IsSpace(rune(c))
			cell.WriteByte(c)
		}
	}
	if err := endRow(); err != nil {
		return damaged(err, "the file")
	}
	return damaged(t.end(), "the file")
}
