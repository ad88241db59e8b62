package deliverable

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kind is a kind of file. Its value is the extension of the name too.
type Kind string

// The kinds of service.md, Threads.
const (
	XLSX Kind = "xlsx"
	PPTX Kind = "pptx"
	HTML Kind = "html"
)

// Kinds lists them.
var Kinds = []Kind{XLSX, PPTX, HTML}

// Valid reports whether k is one of Kinds.
func (k Kind) Valid() bool { return k == XLSX || k == PPTX || k == HTML }

// MediaType returns the media type of the files of a kind.
func (k Kind) MediaType() string {
	switch k {
	case XLSX:
		return "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
	case PPTX:
		return "application/vnd.openxmlformats-officedocument.presentationml.presentation"
	case HTML:
		return "text/html; charset=utf-8"
	}
	return "application/octet-stream"
}

// Limits of a rendering.
const (
	MaxInput  = 4 << 20  // bytes of Markdown
	MaxOutput = 64 << 20 // bytes of the file

	maxBlocks  = 50_000  // headings, paragraphs, list items, tables
	maxCells   = 200_000 // of all tables
	maxColumns = 500     // of one table
	maxTables  = 200
	maxSlides  = 1000
	maxLinks   = 1000 // links that lead somewhere, in a workbook or in slides
)

// Fault says why a text cannot be rendered. Its reason is safe to show.
type Fault struct{ Reason string }

func (f *Fault) Error() string { return "deliverable: " + f.Reason }

func fault(format string, args ...any) *Fault { return &Fault{fmt.Sprintf(format, args...)} }

// File is a rendered file.
type File struct {
	Name      string
	MediaType string
	Content   []byte
}

// Render makes the file of a kind. at is the time that the file says it was made. The error is a
// *Fault, or ctx's.
func Render(ctx context.Context, kind Kind, markdown string, at time.Time) (*File, error) {
	if len(markdown) > MaxInput {
		return nil, fault("the text is longer than %d MiB", MaxInput>>20)
	}
	d, err := parse(ctx, clean(markdown))
	if err != nil {
		return nil, err
	}
	f := &File{Name: d.name() + "." + string(kind), MediaType: kind.MediaType()}
	at = at.UTC().Truncate(time.Second)
	switch kind {
	case XLSX:
		f.Content, err = workbook(ctx, d, at)
	case PPTX:
		f.Content, err = slides(ctx, d, at)
	case HTML:
		f.Content, err = page(ctx, d)
	default:
		return nil, fault("%q is no kind of deliverable", kind)
	}
	switch {
	case err != nil:
		return nil, err
	case len(f.Content) > MaxOutput:
		return nil, fault("the file would be larger than %d MiB", MaxOutput>>20)
	}
	return f, nil
}

// clean removes what no file may contain: bytes that are no UTF-8, and characters that XML forbids.
func clean(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return '\n'
		case r == '\n', r == '\t':
			return r
		case r < ' ', r >= 0x7f && r < 0xa0, r == '\uFFFE', r == '\uFFFF':
			return -1
		}
		return r
	}, s)
}

// title returns the first heading, or a default.
func (d *doc) title() string {
	for i := range d.blocks {
		if d.blocks[i].kind == heading {
			if t := strings.TrimSpace(d.blocks[i].plain()); t != "" {
				return cutRunes(t, 200)
			}
		}
	}
	return "Answer"
}

// maxName bounds a name without its extension, in bytes.
const maxName = 100

// name returns the name of the file without its extension: the title's letters and digits. It is
// safe in headers and on every file system.
func (d *doc) name() string {
	var b strings.Builder
	gap := false
	for _, r := range d.title() {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
			gap = gap || b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte('-')
		}
		gap = false
		if b.Len()+utf8.RuneLen(r) > maxName {
			break
		}
		b.WriteRune(r)
	}
	name := strings.Trim(b.String(), "-")
	if name == "" {
		name = "answer"
	}
	return reserved(name)
}

// reserved changes the names that Windows keeps for devices.
func reserved(name string) string {
	switch up := strings.ToUpper(name); {
	case up == "CON", up == "PRN", up == "AUX", up == "NUL",
		len(up) == 4 && (strings.HasPrefix(up, "COM") || strings.HasPrefix(up, "LPT")):
		return name + "-"
	}
	return name
}

// cutRunes returns the first n characters of s.
func cutRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// cutUnits returns the longest start of s of at most n units of UTF-16, in which spreadsheets count.
func cutUnits(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i, r := range s {
		n--
		if r > 0xffff {
			n--
		}
		if n < 0 {
			return s[:i]
		}
	}
	return s
}
