package read

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"

	"agentsvc/schemas/document"
	"agentsvc/schemas/document/read/pdf"
)

// Limits bound what a file may hold. Zero fields have the defaults of DefaultLimits.
type Limits struct {
	Pages         int   // pages or slides
	Sheets        int   // of a workbook
	ExpandedBytes int64 // of all parts of an archive, or all streams of a PDF, together
	TextBytes     int64 // of the text
	// Panics lets a panic over a damaged file through, for a fuzzer: Read makes a fault of it.
	Panics bool
}

// DefaultLimits are the limits of Read where none are given.
var DefaultLimits = Limits{Pages: 5000, Sheets: 1000, ExpandedBytes: 256 << 20, TextBytes: 64 << 20}

func (l Limits) orDefault() Limits {
	if l.Pages <= 0 {
		l.Pages = DefaultLimits.Pages
	}
	if l.Sheets <= 0 {
		l.Sheets = DefaultLimits.Sheets
	}
	if l.ExpandedBytes <= 0 {
		l.ExpandedBytes = DefaultLimits.ExpandedBytes
	}
	if l.TextBytes <= 0 {
		l.TextBytes = DefaultLimits.TextBytes
	}
	return l
}

// Meta is what a file says of itself.
type Meta struct {
	MediaType string
	Title     string // may be empty
}

// pieceBytes is the length from which on a block is cut into several.
const pieceBytes = 32 << 10

// titleRunes limits a title.
const titleRunes = 300

// file is a file that is being read.
type file struct {
	in    io.ReaderAt
	size  int64
	hint  string // lower-case extension without the dot, or what the hint of the media type says
	lim   Limits
	sink  func(document.Block) error
	title string
	text  bool // something that is not white space was found
	bytes int64
}

// Read makes blocks of the file in, which has size bytes, and calls sink for each in reading
// order. name and mediaType are hints: they decide between plain text, Markdown, CSV and JSON
// where the content could be either, and nothing else.
//
// It returns a *document.Fault if the file cannot be read or holds no text, and an error of
// sink or in as it is. Blocks before a fault have been given to sink.
func Read(in io.ReaderAt, size int64, name, mediaType string, lim Limits, sink func(document.Block) error) (meta Meta, err error) {
	f := &file{in: in, size: size, hint: hintOf(name, mediaType), lim: lim.orDefault(), sink: sink}
	defer func() {
		// A reader that panics on a file has met one that it was not made for.
		if p := recover(); p != nil {
			if s, ok := p.(sinkPanic); ok {
				panic(s.value)
			}
			if lim.Panics {
				panic(p)
			}
			err = fault("the file is damaged")
		}
	}()
	f.sink = func(b document.Block) error {
		defer func() {
			if p := recover(); p != nil {
				panic(sinkPanic{p}) // not the file's fault
			}
		}()
		return sink(b)
	}
	kind, err := f.detect()
	if err != nil {
		return Meta{}, err
	}
	meta.MediaType = kind.mediaType
	if err = kind.read(f); err != nil {
		if s := new(sinkError); errors.As(err, &s) {
			err = s.err
		}
		return meta, err
	}
	if !f.text {
		if kind.mediaType == typePDF {
			return meta, fault("the file holds no text: its pages are pictures, a scan for example")
		}
		return meta, fault("the file holds no text")
	}
	meta.Title = f.title
	return meta, nil
}

type sinkPanic struct{ value any }

func fault(reason string) error { return &document.Fault{Reason: reason} }

func faultf(format string, args ...any) error {
	return &document.Fault{Reason: fmt.Sprintf(format, args...)}
}

// damaged turns an error of a library that reads into a fault; other errors stay.
func damaged(err error, what string) error {
	var f *document.Fault
	if err == nil || errors.As(err, &f) {
		return err
	}
	var s *sinkError
	if errors.As(err, &s) {
		return s.err
	}
	return faultf("%s is damaged", what)
}

// sinkError marks an error of the sink on its way through a library.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }

// block cleans a block's text and passes it on, in pieces if it is long.
func (f *file) block(b document.Block) error {
	b.Text, b.Header = clean(b.Text), clean(b.Header)
	f.bytes += int64(len(b.Text))
	if f.bytes > f.lim.TextBytes {
		return faultf("the file holds more than %d MiB of text", f.lim.TextBytes>>20)
	}
	if !f.text && strings.TrimSpace(b.Text) != "" {
		f.text = true
	}
	if len(b.Header) > pieceBytes {
		b.Header = b.Header[:runeStart(b.Header, pieceBytes)]
	}
	for len(b.Text) > pieceBytes {
		n := cutAt(b.Text, pieceBytes)
		piece := b
		piece.Text = b.Text[:n]
		if err := f.sink(piece); err != nil {
			return &sinkError{err}
		}
		b.Text, b.Continues = b.Text[n:], true
	}
	if b.Text == "" {
		return nil
	}
	if err := f.sink(b); err != nil {
		return &sinkError{err}
	}
	return nil
}

func (f *file) setTitle(title string) {
	title = strings.Join(strings.Fields(clean(title)), " ")
	if f.title != "" || title == "" {
		return
	}
	if utf8.RuneCountInString(title) > titleRunes {
		title = string([]rune(title)[:titleRunes-1]) + "…"
	}
	f.title = title
}

// cutAt returns where to cut a text so that at most most bytes are before: after the last white
// space of the second half, otherwise before a rune.
func cutAt(text string, most int) int {
	if at := strings.LastIndexFunc(text[most/2:most], func(r rune) bool { return r < utf8.RuneSelf && unicode.IsSpace(r) }); at >= 0 {
		return most/2 + at + 1
	}
	if at := runeStart(text, most); at > 0 {
		return at
	}
	return most
}

func runeStart(text string, at int) int {
	for back := 0; at > 0 && !utf8.RuneStart(text[at]) && back < utf8.UTFMax; back++ {
		at--
	}
	return at
}

// clean makes a text valid UTF-8 without control characters. Bytes that are no UTF-8 are read
// as Windows-1252.
func clean(text string) string {
	dirty := false
	for _, r := range text {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == 0xad || r == 0xfeff || r == utf8.RuneError || r >= 0x80 && r < 0xa0 {
			dirty = true
			break
		}
	}
	if !dirty {
		return text
	}
	var b strings.Builder
	b.Grow(len(text))
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			if q := charmap.Windows1252.DecodeByte(text[i]); q >= 0xa0 {
				b.WriteRune(q)
			} else {
				b.WriteRune(utf8.RuneError)
			}
		case r == '\r':
			if i+1 >= len(text) || text[i+1] != '\n' {
				b.WriteByte('\n')
			}
		case r == '\v' || r == '\f' || r == 0x85:
			b.WriteByte('\n')
		case r < ' ' && r != '\n' && r != '\t', r >= 0x7f && r < 0xa0, r == 0xad, r == 0xfeff:
		default:
			b.WriteString(text[i : i+n])
		}
		i += n
	}
	return b.String()
}

// line is a text on one line, white space collapsed.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

// readPDF reads a PDF page by page.
func readPDF(f *file) error {
	doc, err := pdf.Open(f.in, f.size, pdf.Limits{ExpandedBytes: f.lim.ExpandedBytes, Pages: f.lim.Pages, Panics: f.lim.Panics})
	if err != nil {
		return pdfFault(err, f.lim)
	}
	f.setTitle(doc.Title())
	err = doc.Pages(func(page int, lines []pdf.Line) error { return f.pdfPage(page, lines) })
	return pdfFault(err, f.lim)
}

func pdfFault(err error, lim Limits) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pdf.ErrPassword):
		return fault("the PDF is protected by a password")
	case errors.Is(err, pdf.ErrExpands):
		return faultf("the PDF expands to more than %d MiB", lim.ExpandedBytes>>20)
	case errors.Is(err, pdf.ErrPages):
		return faultf("the PDF has more than %d pages", lim.Pages)
	case errors.Is(err, pdf.ErrTooMuch):
		return fault("a page of the PDF is too complex to be read")
	case errors.Is(err, pdf.ErrDamaged):
		return fault("the PDF is damaged")
	}
	return err
}

// pdfPage makes paragraphs of the lines of a page, and headings of large short ones.
func (f *file) pdfPage(page int, lines []pdf.Line) error {
	for i := 0; i < len(lines); {
		l := lines[i]
		if l.Heading > 0 {
			if err := f.block(document.Block{Kind: document.Heading, Level: l.Heading, Text: l.Text, Page: page}); err != nil {
				return err
			}
			i++
			continue
		}
		var b strings.Builder
		b.WriteString(l.Text)
		for i++; i < len(lines) && !lines[i].Begins && lines[i].Heading == 0 && b.Len() < pieceBytes/2; i++ {
			joinLines(&b, lines[i].Text)
		}
		if err := f.block(document.Block{Text: b.String(), Page: page}); err != nil {
			return err
		}
	}
	return nil
}

// joinLines adds a line to a paragraph. A word that is divided at the end of the line before
// stays whole.
func joinLines(b *strings.Builder, next string) {
	text := b.String()
	r, _ := utf8.DecodeRuneInString(next)
	if head, divided := strings.CutSuffix(text, "-"); divided && unicode.IsLower(r) {
		if l, _ := utf8.DecodeLastRuneInString(head); unicode.IsLetter(l) {
			b.Reset()
			b.WriteString(head)
			b.WriteString(next)
			return
		}
	}
	l, _ := utf8.DecodeLastRuneInString(text)
	if l < 0x2e80 || r < 0x2e80 { // Chinese and Japanese lines join without a space
		b.WriteByte(' ')
	}
	b.WriteString(next)
}
