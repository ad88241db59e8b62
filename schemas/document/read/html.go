package read

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"

	"agentsvc/schemas/document"
)

const (
	// longestTag limits a tag, or a text between tags, in bytes.
	longestTag = 16 << 20
	// longestCell limits what is kept of a cell or paragraph before it is passed on.
	longestCell = 256 << 10
)

// unseen are elements whose content is no text for people.
var unseen = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Noscript: true, atom.Template: true, atom.Svg: true, atom.Iframe: true, atom.Object: true,
	atom.Canvas: true, atom.Audio: true, atom.Video: true, atom.Select: true, atom.Datalist: true, atom.Button: true, atom.Noframes: true, atom.Noembed: true,
}

// borders are elements that end a paragraph.
var borders = map[atom.Atom]bool{
	atom.P: true, atom.Div: true, atom.Section: true, atom.Article: true, atom.Header: true, atom.Footer: true, atom.Main: true, atom.Aside: true,
	atom.Ul: true, atom.Ol: true, atom.Dl: true, atom.Dt: true, atom.Dd: true, atom.Li: true, atom.Blockquote: true, atom.Figure: true, atom.Figcaption: true,
	atom.Form: true, atom.Fieldset: true, atom.Legend: true, atom.Address: true, atom.Hr: true, atom.Body: true, atom.Html: true, atom.Head: true,
	atom.Details: true, atom.Summary: true, atom.Pre: true, atom.Table: true, atom.Caption: true, atom.Option: true, atom.Textarea: true, atom.Center: true,
	atom.H1: true, atom.H2: true, atom.H3: true, atom.H4: true, atom.H5: true, atom.H6: true,
}

// empty are elements without an end.
var empty = map[atom.Atom]bool{
	atom.Area: true, atom.Base: true, atom.Br: true, atom.Col: true, atom.Embed: true, atom.Hr: true, atom.Img: true, atom.Input: true,
	atom.Link: true, atom.Meta: true, atom.Source: true, atom.Track: true, atom.Wbr: true,
}

// skipper leaves out elements with all they hold. The parser of browsers would build a tree;
// this one goes through the tags, so depth costs nothing.
type skipper struct {
	rawOnly bool // leave out scripts and the like only, because navigation is not closed
	skips   string
	depth   int
}

// sees reports whether a token is outside of what is left out.
func (s *skipper) sees(t html.TokenType, z *html.Tokenizer) (tag html.Token, seen bool) {
	if s.depth == 0 && t == html.TextToken {
		return html.Token{}, true
	}
	if t == html.TextToken || t == html.CommentToken || t == html.DoctypeToken {
		return html.Token{}, false
	}
	tag = z.Token()
	switch {
	case s.depth > 0:
		if tag.Data == s.skips {
			switch t {
			case html.StartTagToken:
				s.depth++
			case html.EndTagToken:
				s.depth--
			}
		}
		return tag, false
	case t == html.StartTagToken && s.hides(tag):
		s.skips, s.depth = tag.Data, 1
		return tag, false
	}
	return tag, true
}

func (s *skipper) hides(tag html.Token) bool {
	if unseen[tag.DataAtom] {
		return true
	}
	if s.rawOnly || empty[tag.DataAtom] || tag.DataAtom == atom.Body || tag.DataAtom == atom.Html || tag.DataAtom == atom.Main || tag.DataAtom == atom.Article {
		return false
	}
	if tag.DataAtom == atom.Nav {
		return true
	}
	for _, a := range tag.Attr {
		switch a.Key {
		case "hidden":
			return a.Val != "until-found"
		case "aria-hidden":
			if a.Val == "true" {
				return true
			}
		case "role":
			if a.Val == "navigation" || a.Val == "search" {
				return true
			}
		case "style":
			style := strings.ToLower(strings.ReplaceAll(a.Val, " ", ""))
			if strings.Contains(style, "display:none") {
				return true
			}
		}
	}
	return false
}

type list struct {
	ordered bool
	n       int
}

// htmlReader makes blocks of tags.
type htmlReader struct {
	f       *file
	skip    skipper
	text    strings.Builder
	spaced  bool // text ends with white space
	pending string
	inTitle bool
	title   strings.Builder
	level   int // of the heading that is open
	pre     int
	lists   []list
	item    string // what stands before the next item
	cont    bool   // text goes on a block

	tables int // that are open
	table  *table
	cells  []string
	inCell bool
	heads  int
	thead  bool
}

// readHTML reads a page without scripts, styles and navigation.
func readHTML(f *file) error {
	// Navigation that is never closed would hide the rest of the page.
	s := skipper{}
	z := f.tokenizer()
	for {
		t := z.Next()
		if t == html.ErrorToken {
			break // the second pass reports it
		}
		s.sees(t, z)
	}
	h := &htmlReader{f: f, skip: skipper{rawOnly: s.depth > 0}}
	z = f.tokenizer()
	for {
		t := z.Next()
		if t == html.ErrorToken {
			switch err := z.Err(); {
			case errors.Is(err, io.EOF):
				return damaged(h.end(), "the file")
			case errors.Is(err, html.ErrBufferExceeded):
				return faultf("the page holds a tag or text of more than %d MiB", longestTag>>20)
			default:
				return damaged(err, "the file")
			}
		}
		tag, seen := h.skip.sees(t, z)
		if !seen {
			continue
		}
		var err error
		switch t {
		case html.TextToken:
			err = h.write(string(z.Text()))
		case html.StartTagToken, html.SelfClosingTagToken:
			err = h.start(tag)
		case html.EndTagToken:
			err = h.stop(tag)
		}
		if err != nil {
			return damaged(err, "the file")
		}
	}
}

// tokenizer reads the file in the encoding that a mark, the page or its bytes say.
func (f *file) tokenizer() *html.Tokenizer {
	head := make([]byte, min(f.size, sampleBytes))
	n, _ := f.in.ReadAt(head, 0) // read again below
	d := encodingOf(head[:n])
	// A page that says windows-1252 or UTF-8 is judged by its bytes; another charset is believed.
	enc, name, _ := charset.DetermineEncoding(head[:n], "")
	if name != "utf-8" && name != "windows-1252" && name != "replacement" && !strings.HasPrefix(name, "utf-16") {
		d = decoder{enc}
	}
	z := html.NewTokenizer(f.decodedAs(d))
	z.SetMaxBuf(longestTag)
	return z
}

func (h *htmlReader) write(text string) error {
	text = html.UnescapeString(text)
	switch {
	case h.inTitle:
		if h.title.Len() < longestHeader {
			h.title.WriteString(text)
		}
		return nil
	case h.pre > 0 && !h.inCell:
		h.text.WriteString(text)
	default:
		for _, r := range text {
			if unicode.IsSpace(r) {
				if !h.spaced && h.text.Len() > 0 {
					h.text.WriteByte(' ')
				}
				h.spaced = true
				continue
			}
			h.spaced = false
			h.text.WriteRune(r)
		}
	}
	if h.text.Len() > longestCell {
		if h.inCell {
			h.endCell()
			return h.endRow()
		}
		if err := h.put(); err != nil {
			return err
		}
		h.cont = true
	}
	return nil
}

func (h *htmlReader) newline() {
	if h.text.Len() > 0 {
		h.text.WriteByte('\n')
	}
	h.spaced = true
}

// block passes a block on, below the title of the page.
func (h *htmlReader) block(b document.Block) error {
	if strings.TrimSpace(b.Text) == "" {
		return nil
	}
	if title := h.pending; title != "" {
		h.pending = ""
		if b.Kind != document.Heading || line(b.Text) != title {
			if err := h.f.block(document.Block{Kind: document.Heading, Level: 1, Text: title}); err != nil {
				return err
			}
		}
	}
	return h.f.block(b)
}

// put passes on the paragraph, heading or item that is open.
func (h *htmlReader) put() error {
	if h.inCell {
		h.newline()
		return nil
	}
	text := h.text.String()
	h.text.Reset()
	h.spaced = false
	b := document.Block{Text: text, Continues: h.cont}
	h.cont = false
	switch {
	case h.level > 0:
		b.Kind, b.Level, b.Text = document.Heading, h.level, line(text)
		h.level = 0
	case h.pre > 0:
		b.Kind = document.Code
	case len(h.lists) > 0:
		b.Kind, b.Level = document.List, min(len(h.lists), 20)
		if strings.TrimSpace(text) != "" {
			b.Text = h.item + text
			h.item = ""
		}
	}
	if !b.Continues && b.Kind != document.Code {
		b.Text = strings.TrimSpace(b.Text)
	}
	return h.block(b)
}

func (h *htmlReader) start(tag html.Token) error {
	a := tag.DataAtom
	if borders[a] {
		if err := h.put(); err != nil {
			return err
		}
	}
	switch a {
	case atom.Title:
		h.inTitle = h.title.Len() == 0
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		if !h.inCell {
			h.level = int(tag.Data[1] - '0')
		}
	case atom.Br:
		if h.pre > 0 {
			h.text.WriteByte('\n')
		} else {
			h.newline()
		}
	case atom.Pre:
		if !h.inCell {
			h.pre++
		}
	case atom.Ul, atom.Ol:
		if len(h.lists) < maxDepth {
			h.lists = append(h.lists, list{ordered: a == atom.Ol})
		}
	case atom.Li:
		h.item = ""
		if n := len(h.lists); n > 0 && h.lists[n-1].ordered {
			h.lists[n-1].n++
			h.item = strconv.Itoa(h.lists[n-1].n) + ". "
		}
		if h.inCell && h.item != "" {
			h.text.WriteString(h.item)
			h.item = ""
		}
	case atom.Img:
		for _, attr := range tag.Attr {
			if attr.Key == "alt" && strings.TrimSpace(attr.Val) != "" {
				return h.write(" " + html.EscapeString(attr.Val) + " ")
			}
		}
	case atom.Table:
		h.tables++
		if h.tables == 1 {
			h.table, h.cells, h.heads = &table{f: h.f}, nil, 0
		}
	case atom.Thead:
		h.thead = true
	case atom.Tr:
		if h.tables == 1 {
			h.endCell()
			return h.endRow()
		}
		h.newline()
	case atom.Td, atom.Th:
		if h.tables != 1 {
			return h.write(" ")
		}
		h.endCell()
		h.inCell = true
		if a == atom.Th {
			h.heads++
		}
	}
	return nil
}

func (h *htmlReader) stop(tag html.Token) error {
	a := tag.DataAtom
	switch a {
	case atom.Title:
		if h.inTitle {
			h.inTitle = false
			h.pending = line(clean(h.title.String()))
			h.f.setTitle(h.pending)
		}
		return nil
	case atom.Td, atom.Th:
		if h.tables == 1 {
			h.endCell()
		}
		return nil
	case atom.Tr:
		if h.tables == 1 {
			h.endCell()
			return h.endRow()
		}
		return nil
	case atom.Thead:
		h.thead = false
		return nil
	case atom.Table:
		if h.tables > 0 {
			h.tables--
		}
		if h.tables > 0 {
			return nil
		}
		if h.table == nil {
			return nil
		}
		h.endCell()
		if err := h.endRow(); err != nil {
			return err
		}
		err := h.table.end()
		h.table = nil
		return err
	}
	if !borders[a] {
		return nil
	}
	if err := h.put(); err != nil {
		return err
	}
	switch a {
	case atom.Pre:
		h.pre = max(0, h.pre-1)
	case atom.Ul, atom.Ol:
		h.lists = h.lists[:max(0, len(h.lists)-1)]
	}
	return nil
}

func (h *htmlReader) endCell() {
	if !h.inCell {
		return
	}
	h.inCell = false
	h.cells = append(h.cells, h.text.String())
	h.text.Reset()
	h.spaced = false
}

// endRow passes on a row. A row of one cell is a paragraph: such tables place things on a page.
func (h *htmlReader) endRow() error {
	cells, heads := h.cells, h.heads
	h.cells, h.heads = nil, 0
	if len(cells) == 0 || h.table == nil {
		return nil
	}
	if h.pending != "" && strings.TrimSpace(strings.Join(cells, "")) != "" {
		title := h.pending
		h.pending = ""
		if err := h.f.block(document.Block{Kind: document.Heading, Level: 1, Text: title}); err != nil {
			return err
		}
	}
	if len(cells) == 1 && (h.table.rows == 0 || h.table.plain) {
		return h.block(document.Block{Text: strings.TrimSpace(cells[0])})
	}
	if h.table.rows == 0 {
		h.table.plain = heads < len(cells) && !h.thead
	}
	return h.table.row(cells)
}

func (h *htmlReader) end() error {
	h.endCell()
	if h.table != nil {
		if err := h.endRow(); err != nil {
			return err
		}
		if err := h.table.end(); err != nil {
			return err
		}
		h.table = nil
	}
	if h.inTitle {
		h.pending = line(clean(h.title.String()))
	}
	if err := h.put(); err != nil {
		return err
	}
	if h.pending != "" {
		return h.f.block(document.Block{Kind: document.Heading, Level: 1, Text: h.pending})
	}
	return nil
}
