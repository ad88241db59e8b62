package pdf

import (
	"strings"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/traditionalchinese"
)

// font turns the codes of a string into text and widths.
type font struct {
	composite bool
	unicode   *cmap // from the file; may be nil
	table     [256]string
	widths    [256]float64 // of a simple font, in thousandths of its size
	cids      map[int]float64
	wide      float64 // width of glyphs that are not listed
	codes     *cmap   // how long the codes of a composite font are; nil: two bytes
	utf16     bool    // codes are UTF-16
	charset   encoding.Encoding
	vertical  bool
}

type glyph struct {
	text  string
	width float64
	space bool // a single byte 32, which word spacing widens
}

const (
	mostCodes = 1 << 18 // entries of a map of codes
	mostFonts = 256     // in memory
)

func (d *Doc) font(o object) *font {
	r, isRef := o.(ref)
	if isRef {
		if f := d.fonts[r]; f != nil {
			return f
		}
	}
	fd, _ := d.resolve(o).(dict)
	f := d.makeFont(fd)
	if isRef {
		if len(d.fonts) >= mostFonts {
			clear(d.fonts)
		}
		d.fonts[r] = f
	}
	return f
}

func (d *Doc) makeFont(fd dict) *font {
	f := &font{}
	if s, is := d.resolve(fd["ToUnicode"]).(*stream); is {
		if data, err := d.data(s); err == nil || len(data) > 0 {
			f.unicode = d.parseCmap(data)
		} else if fatal(err) {
			panic(stop{err})
		}
	}
	if d.resolve(fd["Subtype"]) == name("Type0") {
		d.compositeFont(f, fd)
		return f
	}
	base, _ := d.resolve(fd["BaseFont"]).(name)
	if i := strings.IndexByte(string(base), '+'); i == 6 {
		base = base[7:]
	}
	encodingName := "StandardEncoding"
	switch {
	case strings.HasPrefix(string(base), "Symbol"):
		encodingName = "Symbol"
	case strings.HasPrefix(string(base), "ZapfDingbats"), strings.HasPrefix(string(base), "Wingdings"):
		encodingName = "ZapfDingbats"
	case d.resolve(fd["Subtype"]) == name("TrueType"):
		encodingName = "WinAnsiEncoding"
	}
	var differences array
	switch e := d.resolve(fd["Encoding"]).(type) {
	case name:
		encodingName = string(e)
	case dict:
		if n, is := d.resolve(e["BaseEncoding"]).(name); is {
			encodingName = string(n)
		}
		differences, _ = d.resolve(e["Differences"]).(array)
	}
	f.table = encodingTable(encodingName)
	code := 0
	for _, o := range differences {
		switch o := d.resolve(o).(type) {
		case int:
			code = o
		case name:
			if code >= 0 && code < 256 {
				f.table[code] = glyphText(string(o))
			}
			code++
		}
	}
	descriptor, _ := d.resolve(fd["FontDescriptor"]).(dict)
	missing := num(d.resolve(descriptor["MissingWidth"]))
	widths, _ := d.resolve(fd["Widths"]).(array)
	if len(widths) == 0 {
		for c := range f.widths {
			f.widths[c] = usualWidth(string(base), byte(c))
		}
		return f
	}
	scale := 1.0
	if d.resolve(fd["Subtype"]) == name("Type3") { // its widths are in units of its own
		if m, _ := d.resolve(fd["FontMatrix"]).(array); len(m) == 6 {
			scale = 1000 * num(d.resolve(m[0]))
		}
	}
	for c := range f.widths {
		f.widths[c] = missing
	}
	firstChar, _ := integer(d.resolve(fd["FirstChar"]))
	for i, w := range widths {
		if c := firstChar + i; c >= 0 && c < 256 {
			f.widths[c] = num(d.resolve(w)) * scale
		}
	}
	return f
}

// usualWidth is about the width of a character in the fonts that every reader has.
func usualWidth(base string, c byte) float64 {
	if strings.HasPrefix(base, "Courier") {
		return 600
	}
	switch {
	case strings.IndexByte("ijlI.,:;'|! ft()[]/\\", c) >= 0:
		return 278
	case strings.IndexByte("mwMW@%", c) >= 0:
		return 833
	case c >= 'A' && c <= 'Z':
		return 680
	case strings.IndexByte("rs-ckvxyz", c) >= 0:
		return 480
	}
	return 540
}

func (d *Doc) compositeFont(f *font, fd dict) {
	f.composite, f.wide = true, 1000
	switch e := d.resolve(fd["Encoding"]).(type) {
	case name:
		n := string(e)
		f.vertical = strings.HasSuffix(n, "-V")
		switch {
		case strings.HasPrefix(n, "Identity"):
		case strings.Contains(n, "UCS2"), strings.Contains(n, "UTF16"):
			f.utf16 = true
		case strings.Contains(n, "RKSJ"):
			f.charset = japanese.ShiftJIS
		case strings.HasPrefix(n, "EUC"):
			f.charset = japanese.EUCJP
		case strings.HasPrefix(n, "GB"):
			f.charset = simplifiedchinese.GBK
		case strings.HasPrefix(n, "B5"), strings.HasPrefix(n, "ETen"), strings.HasPrefix(n, "HKscs"):
			f.charset = traditionalchinese.Big5
		case strings.HasPrefix(n, "KSC"):
			f.charset = korean.EUCKR
		}
	case *stream:
		if data, err := d.data(e); err == nil {
			f.codes = d.parseCmap(data)
		} else if fatal(err) {
			panic(stop{err})
		}
	}
	list, _ := d.resolve(fd["DescendantFonts"]).(array)
	child, _ := d.resolve(first(list)).(dict)
	if w, has := child["DW"]; has {
		f.wide = num(d.resolve(w))
	}
	f.cids = map[int]float64{}
	ws, _ := d.resolve(child["W"]).(array)
	for i := 0; i < len(ws); {
		from, ok := integer(d.resolve(ws[i]))
		if !ok || i+1 >= len(ws) {
			break
		}
		d.step(1)
		switch next := d.resolve(ws[i+1]).(type) {
		case array:
			for k, w := range next {
				if len(f.cids) >= mostCodes {
					break
				}
				f.cids[from+k] = num(d.resolve(w))
			}
			i += 2
		default:
			to, ok := integer(next)
			if !ok || i+2 >= len(ws) || to-from > 1<<16 {
				return
			}
			w := num(d.resolve(ws[i+2]))
			for c := from; c <= to && len(f.cids) < mostCodes; c++ {
				f.cids[c] = w
			}
			d.step(max(0, to-from))
			i += 3
		}
	}
}

// glyphs calls put for each code of a string.
func (f *font) glyphs(s string, put func(glyph)) {
	if !f.composite {
		for i := range len(s) {
			c := s[i]
			text := f.table[c]
			if f.unicode != nil {
				if t, has := f.unicode.text(int(c), 1); has {
					text = t
				}
			}
			put(glyph{text, f.widths[c], c == ' '})
		}
		return
	}
	for len(s) > 0 {
		n := 2
		switch {
		case f.charset != nil:
			if s[0] < 0x80 {
				n = 1
			}
		case f.codes != nil:
			n = f.codes.codeLength(s)
		case f.unicode != nil && len(f.unicode.spaces) > 0 && !f.utf16:
			n = f.unicode.codeLength(s)
			if n == 1 { // the codes of Identity-H have two bytes, whatever this map says
				n = 2
			}
		}
		n = min(n, len(s))
		code := 0
		for i := range n {
			code = code<<8 | int(s[i])
		}
		w, has := f.cids[code]
		if !has || f.charset != nil || f.utf16 {
			w = f.wide
			if n == 1 && f.charset != nil || f.utf16 && code < 0x250 {
				w = 500
			}
		}
		text, has := "", false
		if f.unicode != nil {
			text, has = f.unicode.text(code, n)
		}
		switch {
		case has:
		case f.charset != nil:
			if t, err := f.charset.NewDecoder().String(s[:n]); err == nil {
				text = t
			}
		case f.utf16:
			if code >= 0xd800 && code < 0xdc00 && len(s) >= 4 {
				n = 4
			}
			text = utf16String(s[:n], false)
		}
		put(glyph{text, w, n == 1 && code == ' '})
		s = s[n:]
	}
}

// cmap maps codes to text.
type cmap struct {
	spaces []codespace
	single map[int]string
	ranges []codeRange
}

type codespace struct {
	low, high int
	n         int // bytes
}

type codeRange struct {
	low, high int
	text      string
}

// codeLength returns how many bytes the first code of a string has.
func (m *cmap) codeLength(s string) int {
	code := 0
	for n := 1; n <= 4 && n <= len(s); n++ {
		code = code<<8 | int(s[n-1])
		for _, c := range m.spaces {
			if c.n == n && code >= c.low && code <= c.high {
				return n
			}
		}
	}
	if len(m.spaces) == 0 {
		return 2
	}
	n := m.spaces[0].n
	for _, c := range m.spaces {
		n = min(n, c.n)
	}
	return n
}

func (m *cmap) text(code, _ int) (string, bool) {
	if t, has := m.single[code]; has {
		return t, true
	}
	low, high := 0, len(m.ranges)
	for low < high { // the last range that begins at or below code
		mid := (low + high) / 2
		if m.ranges[mid].low <= code {
			low = mid + 1
		} else {
			high = mid
		}
	}
	for i := low - 1; i >= 0 && i >= low-4; i-- { // ranges may overlap
		if r := m.ranges[i]; code <= r.high {
			return shift(r.text, code-r.low), true
		}
	}
	return "", false
}

// shift adds n to the last character of a text.
func shift(text string, n int) string {
	r := []rune(text)
	if len(r) == 0 || n < 0 || n > 1<<16 {
		return ""
	}
	r[len(r)-1] += rune(n)
	return string(r)
}
