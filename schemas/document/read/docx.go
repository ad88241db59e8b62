package read

import (
	"strconv"
	"strings"

	"agentsvc/schemas/document"
)

// docxParagraph is a paragraph that is open.
type docxParagraph struct {
	text      strings.Builder
	style     string
	outline   int
	list      int
	continues bool
}

// docx reads the body of a document.
type docx struct {
	f      *file
	levels map[string]int // heading level by style
	open   []*docxParagraph
	inText bool
	tables int
	table  *table
	cells  []string
	cell   *strings.Builder
}

// readDocx reads paragraphs, headings by their style, lists and tables in order, then notes and
// comments. Deleted text is left out.
func readDocx(f *file, a *archive) error {
	if err := f.core(a); err != nil {
		return err
	}
	levels, err := docxStyles(a)
	if err != nil {
		return err
	}
	for _, name := range []string{"word/document.xml", "word/footnotes.xml", "word/endnotes.xml", "word/comments.xml"} {
		if name != "word/document.xml" && !a.has(name) {
			continue
		}
		d := &docx{f: f, levels: levels}
		if err := a.xml(name, handler{start: d.start, end: d.end, text: d.chars}); err != nil {
			return damaged(err, a.what)
		}
	}
	return nil
}

// docxStyles returns the heading level of each style that has one.
func docxStyles(a *archive) (map[string]int, error) {
	levels, based := map[string]int{}, map[string]string{}
	if !a.has("word/styles.xml") {
		return levels, nil
	}
	id := ""
	err := a.xml("word/styles.xml", handler{start: func(e *element) (bool, error) {
		switch e.Name.Local {
		case "style":
			id = e.attr("styleId")
		case "name":
			name := strings.ToLower(e.attr("val"))
			if n, is := strings.CutPrefix(name, "heading "); is {
				if level, err := strconv.Atoi(n); err == nil && level > 0 && level < 10 {
					levels[id] = level
				}
			}
			if name == "title" {
				levels[id] = 1
			}
		case "basedOn":
			based[id] = e.attr("val")
		case "outlineLvl":
			if n, err := strconv.Atoi(e.attr("val")); err == nil && n >= 0 && n < 9 && levels[id] == 0 {
				levels[id] = n + 1
			}
		}
		return false, nil
	}})
	for style := range based {
		for at, n := style, 0; n < 20 && levels[style] == 0 && at != ""; n++ {
			at = based[at]
			if levels[at] > 0 {
				levels[style] = levels[at]
			}
		}
	}
	return levels, err
}

func (d *docx) top() *docxParagraph {
	if len(d.open) == 0 {
		return nil
	}
	return d.open[len(d.open)-1]
}

func (d *docx) start(e *element) (bool, error) {
	p := d.top()
	switch e.Name.Local {
	case "del", "moveFrom", "Fallback", "instrText", "delText", "rt":
		return true, nil
	case "p":
		if len(d.open) < maxDepth {
			d.open = append(d.open, &docxParagraph{outline: -1})
		}
	case "pStyle":
		if p != nil {
			p.style = e.attr("val")
		}
	case "outlineLvl":
		if n, err := strconv.Atoi(e.attr("val")); err == nil && p != nil && n >= 0 && n < 9 {
			p.outline = n
		}
	case "numPr":
		if p != nil {
			p.list = max(p.list, 1)
		}
	case "ilvl":
		if n, err := strconv.Atoi(e.attr("val")); err == nil && p != nil && n >= 0 && n < 9 {
			p.list = n + 1
		}
	case "numId":
		if p != nil && e.attr("val") == "0" {
			p.list = 0
		}
	case "t":
		d.inText = true
	case "tab":
		if p != nil && len(e.parents) > 0 && e.parents[len(e.parents)-1] == "r" {
			p.text.WriteByte('\t')
		}
	case "br", "cr":
		if p != nil {
			p.text.WriteByte('\n')
		}
	case "noBreakHyphen":
		if p != nil {
			p.text.WriteByte('-')
		}
	case "tbl":
		d.tables++
		if d.tables == 1 {
			d.table, d.cells = &table{f: d.f}, nil
		}
	case "tc":
		if d.tables == 1 {
			d.cell = &strings.Builder{}
		}
	}
	return false, nil
}

func (d *docx) chars(text string) error {
	p := d.top()
	if !d.inText || p == nil {
		return nil
	}
	p.text.WriteString(text)
	if p.text.Len() > longestCell && d.cell == nil {
		return d.put(p)
	}
	return nil
}

func (d *docx) end(local string) error {
	switch local {
	case "t":
		d.inText = false
	case "p":
		p := d.top()
		if p == nil {
			return nil
		}
		d.open = d.open[:len(d.open)-1]
		return d.put(p)
	case "tc":
		if d.tables == 1 && d.cell != nil {
			d.cells = append(d.cells, d.cell.String())
			d.cell = nil
		}
	case "tr":
		if d.tables == 1 && d.table != nil {
			cells := d.cells
			d.cells = nil
			return d.table.row(cells)
		}
	case "tbl":
		if d.tables--; d.tables == 0 && d.table != nil {
			t := d.table
			d.table = nil
			return t.end()
		}
	}
	return nil
}

// put passes on a paragraph, or adds it to the cell that it is in.
func (d *docx) put(p *docxParagraph) error {
	text := p.text.String()
	p.text.Reset()
	if d.cell != nil {
		if d.cell.Len() > 0 {
			d.cell.WriteByte('\n')
		}
		d.cell.WriteString(text)
		if d.cell.Len() > longestToken {
			return faultf("a cell of a table holds more than %d MiB of text", longestToken>>20)
		}
		return nil
	}
	b := document.Block{Text: text, Continues: p.continues}
	level := d.levels[p.style]
	if level == 0 && p.outline >= 0 {
		level = p.outline + 1
	}
	switch {
	case level > 0:
		b.Kind, b.Level = document.Heading, level
		if level == 1 {
			d.f.setTitle(text)
		}
	case p.list > 0:
		b.Kind, b.Level = document.List, p.list
	}
	p.continues = true
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return d.f.block(b)
}
