package read

import (
	"strconv"
	"strings"

	"agentsvc/schemas/document"
)

// readPptx reads slides in their order: title, texts, tables, then the notes of the speaker. A
// slide is a page.
func readPptx(f *file, a *archive) error {
	if err := f.core(a); err != nil {
		return err
	}
	const main = "ppt/presentation.xml"
	targets, _, err := a.relations(main)
	if err != nil {
		return err
	}
	var slides []string
	err = a.xml(main, handler{start: func(e *element) (bool, error) {
		if e.Name.Local == "sldId" {
			if slides = append(slides, targets[e.relation("id")]); len(slides) > f.lim.Pages {
				return false, faultf("the presentation has more than %d slides", f.lim.Pages)
			}
		}
		return false, nil
	}})
	if err != nil {
		return err
	}
	for i, name := range slides {
		if !a.has(name) {
			continue
		}
		if err := f.slide(a, name, i+1); err != nil {
			return damaged(err, a.what)
		}
	}
	return nil
}

func (f *file) slide(a *archive, name string, page int) error {
	s := &slide{f: f, page: page}
	if err := a.xml(name, handler{start: s.start, end: s.end, text: s.chars}); err != nil {
		return err
	}
	if err := s.emit(); err != nil {
		return err
	}
	targets, types, err := a.relations(name)
	if err != nil {
		return err
	}
	for id, kind := range types {
		if kind == "notesSlide" && a.has(targets[id]) {
			n := &slide{f: f, page: page, notes: true, began: s.began}
			if err := a.xml(targets[id], handler{start: n.start, end: n.end, text: n.chars}); err != nil {
				return err
			}
			if err := n.emit(); err != nil {
				return err
			}
			break // a slide has one
		}
	}
	return nil
}

// slide reads one slide, or its notes.
type slide struct {
	f      *file
	page   int
	notes  bool
	began  bool // the heading was passed on
	title  []string
	blocks []document.Block
	size   int

	place  string // type of the placeholder that is open
	body   bool   // it lists points
	level  int
	inText bool
	text   strings.Builder
	tables int
	header string
	rows   int
	cells  []string
}

func (s *slide) start(e *element) (bool, error) {
	switch e.Name.Local {
	case "Fallback":
		return true, nil
	case "sp", "graphicFrame", "cxnSp":
		s.place, s.body = "", false
	case "ph":
		s.place = e.attr("type")
		s.body = s.place == "" || s.place == "body" || s.place == "obj"
		switch s.place {
		case "sldNum", "dt", "ftr", "hdr", "sldImg":
			s.place = "-"
		}
	case "p":
		s.level = 0
		if s.tables == 0 {
			s.text.Reset()
		}
	case "pPr":
		if n, err := strconv.Atoi(e.attr("lvl")); err == nil && n >= 0 && n < 9 {
			s.level = n
		}
	case "t":
		s.inText = true
	case "br":
		s.text.WriteByte('\n')
	case "tbl":
		s.tables++
		s.header, s.rows, s.cells = "", 0, nil
	case "tc":
		s.text.Reset()
	}
	return false, nil
}

func (s *slide) chars(text string) error {
	if s.inText {
		s.text.WriteString(text)
	}
	if s.text.Len() > longestToken {
		return faultf("a slide holds a paragraph of more than %d MiB", longestToken>>20)
	}
	return nil
}

func (s *slide) end(local string) error {
	switch local {
	case "t":
		s.inText = false
	case "p":
		if s.tables > 0 {
			s.text.WriteByte('\n')
			return nil
		}
		text := s.text.String()
		s.text.Reset()
		if s.place == "-" || strings.TrimSpace(text) == "" {
			return nil
		}
		switch {
		case !s.notes && (s.place == "title" || s.place == "ctrTitle"):
			s.title = append(s.title, line(clean(text)))
			return nil
		case !s.notes && s.body:
			return s.add(document.Block{Kind: document.List, Level: s.level + 1, Text: text})
		}
		return s.add(document.Block{Text: text})
	case "tc":
		if s.tables > 0 {
			s.cells = append(s.cells, line(s.text.String()))
			s.text.Reset()
		}
	case "tr":
		if s.tables == 0 {
			return nil
		}
		text := strings.TrimRight(strings.Join(s.cells, "\t"), "\t")
		s.cells = nil
		if strings.TrimSpace(text) == "" {
			return nil
		}
		if s.rows++; s.rows == 1 && len(text) <= longestHeader {
			s.header = text
			return nil
		}
		return s.add(document.Block{Kind: document.Row, Text: text, Header: s.header})
	case "tbl":
		s.tables = max(0, s.tables-1)
		if s.rows == 1 && s.header != "" {
			return s.add(document.Block{Kind: document.Row, Text: s.header})
		}
	}
	return nil
}

// add keeps a block until the title is known, unless there are too many.
func (s *slide) add(b document.Block) error {
	b.Page = s.page
	s.blocks = append(s.blocks, b)
	if s.size += len(b.Text) + 100; s.size > longestToken {
		return s.emit()
	}
	return nil
}

func (s *slide) emit() error {
	blocks := s.blocks
	s.blocks, s.size = nil, 0
	if len(blocks) == 0 && len(s.title) == 0 {
		return nil
	}
	if !s.began {
		s.began = true
		title := strings.Join(s.title, " ")
		if title == "" {
			title = "Slide " + strconv.Itoa(s.page)
		} else if s.page == 1 {
			s.f.setTitle(title)
		}
		s.title = nil
		if err := s.f.block(document.Block{Kind: document.Heading, Level: 1, Text: title, Page: s.page}); err != nil {
			return err
		}
	}
	for _, t := range s.title {
		blocks = append(blocks, document.Block{Text: t, Page: s.page})
	}
	s.title = nil
	for _, b := range blocks {
		if err := s.f.block(b); err != nil {
			return err
		}
	}
	return nil
}
