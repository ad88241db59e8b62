package read

import (
	"bytes"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	utf "golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"agentsvc/schemas/document"
)

// decoder is an encoding of a text; nil means UTF-8, in which bytes that fit nowhere are kept
// for clean.
type decoder struct{ enc encoding.Encoding }

func (d decoder) bytes(b []byte) (string, error) {
	if d.enc == nil {
		b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
		for i := 0; i < utf8.UTFMax && len(b) > 0; i++ { // a rune may be cut at the end
			if r, n := utf8.DecodeLastRune(b); r != utf8.RuneError || n != 1 {
				break
			}
			b = b[:len(b)-1]
		}
		return string(b), nil
	}
	out, err := d.enc.NewDecoder().Bytes(b)
	return string(out), err
}

// encodingOf guesses the encoding of a text by its first bytes: a byte order mark, zero bytes
// at odd or even places (UTF-16), valid UTF-8, otherwise Windows-1252, which holds Latin-1.
func encodingOf(head []byte) decoder {
	switch {
	case bytes.HasPrefix(head, []byte("\xef\xbb\xbf")):
		return decoder{}
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")):
		return decoder{utf.UTF16(utf.LittleEndian, utf.UseBOM)}
	}
	var zeros [2]int
	for i, c := range head {
		if c == 0 {
			zeros[i%2]++
		}
	}
	half := len(head) / 2
	switch {
	case half > 0 && zeros[1] > half/2 && zeros[0] <= half/20:
		return decoder{utf.UTF16(utf.LittleEndian, utf.IgnoreBOM)}
	case half > 0 && zeros[0] > half/2 && zeros[1] <= half/20:
		return decoder{utf.UTF16(utf.BigEndian, utf.IgnoreBOM)}
	}
	good, bad := 0, 0
	for b := head; len(b) > 0; {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1:
			if len(b) >= utf8.UTFMax || len(head) < sampleBytes {
				bad++
			}
		case n > 1:
			good++
		}
		b = b[n:]
	}
	if bad > good/4 {
		return decoder{charmap.Windows1252}
	}
	return decoder{}
}

// decoded returns the file as UTF-8.
func (f *file) decoded() io.Reader {
	head := make([]byte, min(f.size, sampleBytes))
	n, _ := f.in.ReadAt(head, 0) // read again below
	return f.decodedAs(encodingOf(head[:n]))
}

func (f *file) decodedAs(d decoder) io.Reader {
	all := io.NewSectionReader(f.in, 0, f.size)
	if d.enc == nil {
		var mark [3]byte
		if n, _ := f.in.ReadAt(mark[:], 0); string(mark[:n]) == "\xef\xbb\xbf" {
			_, _ = all.Seek(3, io.SeekStart) // cannot fail inside the section
		}
		return all
	}
	return transform.NewReader(all, d.enc.NewDecoder())
}

// lines reads a text line by line. A line longer than pieceBytes comes in pieces.
type lines struct {
	in     io.Reader
	buf    []byte
	at     int
	end    int
	eof    bool
	inLine bool // the piece before did not end its line
}

func newLines(in io.Reader) *lines { return &lines{in: in, buf: make([]byte, 2*pieceBytes)} }

// next returns the next line without its end, or a piece of it. more means that the piece goes
// on the line of the one before. The error is io.EOF after the last line.
func (l *lines) next() (text string, more bool, err error) {
	for {
		held := l.buf[l.at:l.end]
		at := bytes.IndexAny(held, "\n\r")
		if at >= 0 && at < len(held)-1 || at >= 0 && held[at] == '\n' || at >= 0 && l.eof {
			size := 1
			if held[at] == '\r' && at+1 < len(held) && held[at+1] == '\n' {
				size = 2
			}
			if at <= pieceBytes {
				l.at += at + size
				more, l.inLine = l.inLine, false
				return string(held[:at]), more, nil
			}
		}
		if len(held) > pieceBytes {
			n := cutAt(string(held[:pieceBytes+1]), pieceBytes)
			l.at += n
			more, l.inLine = l.inLine, true
			return string(held[:n]), more, nil
		}
		if l.eof {
			if len(held) == 0 {
				return "", false, io.EOF
			}
			l.at = l.end
			more, l.inLine = l.inLine, false
			return string(held), more, nil
		}
		l.end = copy(l.buf, held)
		l.at = 0
		n, err := l.in.Read(l.buf[l.end:])
		l.end += n
		if err == io.EOF {
			l.eof = true
		} else if err != nil {
			return "", false, err
		}
	}
}

// each calls do for each line or piece of a line.
func (l *lines) each(do func(text string, more bool) error) error {
	for {
		text, more, err := l.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(text, more); err != nil {
			return err
		}
	}
}

// paragraph collects lines until a paragraph ends, or until it is long.
type paragraph struct {
	f         *file
	text      strings.Builder
	continues bool
	page      int
}

func (p *paragraph) add(text string, more bool) error {
	if p.text.Len()+len(text) > pieceBytes {
		if err := p.put(); err != nil {
			return err
		}
		p.continues = true
		if !more {
			text = "\n" + text
		}
	} else if p.text.Len() > 0 && !more {
		p.text.WriteByte('\n')
	}
	p.text.WriteString(text)
	return nil
}

func (p *paragraph) put() error {
	text := p.text.String()
	p.text.Reset()
	if text == "" {
		return nil
	}
	err := p.f.block(document.Block{Text: text, Page: p.page, Continues: p.continues})
	p.continues = false
	return err
}

// readText reads plain text. Blank lines end paragraphs, form feeds end pages.
func readText(f *file) error {
	p := &paragraph{f: f}
	err := newLines(f.decoded()).each(func(text string, more bool) error {
		for {
			before, after, feed := strings.Cut(text, "\f")
			if strings.TrimFunc(before, unicode.IsSpace) == "" && !more {
				if err := p.put(); err != nil {
					return err
				}
			} else if err := p.add(before, more); err != nil {
				return err
			}
			if !feed {
				return nil
			}
			if err := p.put(); err != nil {
				return err
			}
			p.page = max(p.page, 1) + 1
			if p.page > f.lim.Pages {
				return faultf("the file has more than %d pages", f.lim.Pages)
			}
			text, more = after, false
		}
	})
	if err != nil {
		return damaged(err, "the file")
	}
	return damaged(p.put(), "the file")
}
