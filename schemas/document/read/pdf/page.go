package pdf

import (
	"errors"
	"math"
	"strings"
)

type matrix [6]float64

var identity = matrix{1, 0, 0, 1, 0, 0}

// times returns the transformation m followed by n.
func (m matrix) times(n matrix) matrix {
	return matrix{
		m[0]*n[0] + m[1]*n[2], m[0]*n[1] + m[1]*n[3],
		m[2]*n[0] + m[3]*n[2], m[2]*n[1] + m[3]*n[3],
		m[4]*n[0] + m[5]*n[2] + n[4], m[4]*n[1] + m[5]*n[3] + n[5],
	}
}

// state is the graphics state, as far as it matters for text.
type state struct {
	ctm                                       matrix
	font                                      *font
	size, charSpace, wordSpace, leading, rise float64
	scale                                     float64
}

// span is text on one line, without a gap.
type span struct {
	x0, x1, y, size float64
	text            string
}

const (
	mostForms  = 12      // in each other
	mostStates = 1000    // that are saved
	mostSpans  = 400_000 // of a page
	mostText   = 8 << 20 // of a page, in bytes
)

// interpreter reads the content of a page.
type interpreter struct {
	d       *Doc
	state   state
	saved   []state
	tm, tlm matrix
	spans   []span
	cur     strings.Builder
	curSpan span
	end     float64 // of cur, before the spacing of its last character
	open    bool
	bytes   int
	forms   []ref
	// actual text: what stands for the glyphs of marked content
	marks    []bool
	replaced int    // depth of the marked content whose glyphs are replaced
	instead  string // what its first glyph becomes
}

// Pages calls each for the pages in their order, from 1, with their lines of text.
func (d *Doc) Pages(each func(page int, lines []Line) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s, is := p.(stop)
			if !is {
				panic(p) // of each
			}
			err = s.err
		}
	}()
	n := 0
	show := func(page dict, resources object) error {
		n++
		if n > d.lim.Pages {
			return ErrPages
		}
		lines, err := d.page(page, resources)
		if err != nil {
			return err
		}
		return each(n, lines)
	}
	root, _ := d.resolve(d.trailer["Root"]).(dict)
	if err := d.walk(root["Pages"], nil, map[int]bool{}, 0, show); err != nil {
		return err
	}
	if n > 0 {
		return nil
	}
	// The tree is damaged: all pages that there are.
	for num, e := range d.xref {
		if e.kind == 0 {
			continue
		}
		if page, is := d.guarded(ref{num, 0}).(dict); is && page["Type"] == name("Page") {
			if err := show(page, page["Resources"]); err != nil {
				return err
			}
		}
	}
	if n == 0 {
		return ErrDamaged
	}
	return nil
}

// anyPage returns the number of a page that is in no tree; 0 if there is none.
func (d *Doc) anyPage() int {
	for num, e := range d.xref {
		if e.kind != 0 {
			if page, is := d.resolve(ref{num, 0}).(dict); is && page["Type"] == name("Page") {
				return num
			}
		}
	}
	return 0
}

// guarded resolves an object of a damaged file.
func (d *Doc) guarded(o object) (out object) {
	defer func() {
		if p := recover(); p != nil {
			if s, is := p.(stop); is {
				panic(s)
			}
			d.lim.caught(p)
			out = nil
		}
	}()
	return d.resolve(o)
}

func (d *Doc) walk(o, resources object, seen map[int]bool, depth int, show func(dict, object) error) error {
	if r, is := o.(ref); is {
		if seen[r.num] || len(seen) > mostPages {
			return nil
		}
		seen[r.num] = true
	}
	node, _ := d.guarded(o).(dict)
	if node == nil || depth > 60 {
		return nil
	}
	if own, has := node["Resources"]; has {
		resources = own
	}
	kids, isTree := d.guarded(node["Kids"]).(array)
	if !isTree {
		if node["Type"] == name("Pages") {
			return nil
		}
		return show(node, resources)
	}
	for _, k := range kids {
		d.step(1)
		if err := d.walk(k, resources, seen, depth+1, show); err != nil {
			return err
		}
	}
	return nil
}

// page reads a page. What is damaged ends its text.
func (d *Doc) page(page dict, resources object) (lines []Line, err error) {
	in := &interpreter{d: d, state: state{ctm: identity, scale: 1}, tm: identity, tlm: identity}
	func() {
		defer func() {
			if p := recover(); p != nil {
				caught := d.lim.caught(p)
				if _, is := p.(stop); is {
					err = caught
				}
			}
		}()
		var data []byte
		for _, o := range listOf(d.resolve(page["Contents"])) {
			s, is := d.resolve(o).(*stream)
			if !is {
				continue
			}
			b, err := d.data(s)
			if fatal(err) {
				panic(stop{err})
			}
			if len(data)+len(b) > longestStream {
				panic(stop{ErrExpands})
			}
			data = append(append(data, b...), '\n')
		}
		res, _ := d.resolve(resources).(dict)
		in.run(data, res)
	}()
	if err != nil {
		return nil, err
	}
	in.flush()
	return d.layout(in.spans), nil
}

// run carries out the operators of a content stream.
func (in *interpreter) run(data []byte, resources dict) {
	d := in.d
	l := &lexer{b: data, whole: true}
	args := make([]object, 0, 16)
	arg := func(i int) object {
		if i < len(args) {
			return args[i]
		}
		return nil
	}
	n := func(i int) float64 { return num(arg(i)) }
	for {
		o, err := l.next(0)
		if err != nil {
			if errors.Is(err, errSyntax) && l.at < len(l.b) {
				l.at++
				continue
			}
			return
		}
		d.step(1)
		op, is := o.(keyword)
		if !is {
			if len(args) < 64 {
				args = append(args, o)
			}
			continue
		}
		s := &in.state
		switch op {
		case "q":
			if len(in.saved) < mostStates {
				in.saved = append(in.saved, *s)
			}
		case "Q":
			if k := len(in.saved); k > 0 {
				*s = in.saved[k-1]
				in.saved = in.saved[:k-1]
			}
		case "cm":
			s.ctm = matrix{n(0), n(1), n(2), n(3), n(4), n(5)}.times(s.ctm)
		case "BT":
			in.tm, in.tlm = identity, identity
		case "Tc":
			s.charSpace = n(0)
		case "Tw":
			s.wordSpace = n(0)
		case "Tz":
			s.scale = n(0) / 100
		case "TL":
			s.leading = n(0)
		case "Ts":
			s.rise = n(0)
		case "Tf":
			if f, is := arg(0).(name); is {
				fonts, _ := d.resolve(resources["Font"]).(dict)
				s.font = d.font(fonts[f])
			}
			s.size = n(1)
		case "Td":
			in.move(n(0), n(1))
		case "TD":
			s.leading = -n(1)
			in.move(n(0), n(1))
		case "Tm":
			in.tm = matrix{n(0), n(1), n(2), n(3), n(4), n(5)}
			in.tlm = in.tm
		case "T*":
			in.move(0, -s.leading)
		case "Tj":
			in.show(arg(0))
		case "'":
			in.move(0, -s.leading)
			in.show(arg(0))
		case "\"":
			s.wordSpace, s.charSpace = n(0), n(1)
			in.move(0, -s.leading)
			in.show(arg(2))
		case "TJ":
			list, _ := arg(0).(array)
			for _, o := range list {
				if text, is := o.(string); is {
					in.show(text)
					continue
				}
				in.advance(-num(o) / 1000 * s.size * s.scale)
			}
		case "Do":
			if x, is := arg(0).(name); is {
				objects, _ := d.resolve(resources["XObject"]).(dict)
				in.form(objects[x], resources)
			}
		case "BMC":
			in.mark("")
		case "BDC":
			props, _ := arg(1).(dict)
			if p, is := arg(1).(name); is {
				all, _ := d.resolve(resources["Properties"]).(dict)
				props, _ = d.resolve(all[p]).(dict)
			}
			text, _ := d.resolve(props["ActualText"]).(string)
			in.mark(textString(text))
		case "EMC":
			if k := len(in.marks); k > 0 {
				if in.marks[k-1] {
					in.replaced = 0
					in.instead = ""
				}
				in.marks = in.marks[:k-1]
			}
		case "BI":
			skipImage(l)
		}
		args = args[:0]
	}
}

// mark begins marked content, whose glyphs stand for another text if instead is not empty.
func (in *interpreter) mark(instead string) {
	if len(in.marks) >= mostStates {
		return
	}
	own := instead != "" && in.replaced == 0
	in.marks = append(in.marks, own)
	if own {
		in.replaced, in.instead = 1, instead
	}
}

// skipImage passes an image in a content stream: its data ends with EI between white space.
func skipImage(l *lexer) {
	for {
		o, err := l.next(0)
		if err != nil || o == keyword("EI") {
			return
		}
		if o == keyword("ID") {
			break
		}
	}
	for i := l.at + 1; i+2 <= len(l.b); i++ {
		if l.b[i] == 'E' && l.b[i+1] == 'I' && isSpace(l.b[i-1]) && (i+2 == len(l.b) || isSpace(l.b[i+2])) {
			l.at = i + 2
			return
		}
	}
	l.at = len(l.b)
}

func (in *interpreter) form(o object, outer dict) {
	r, _ := o.(ref)
	s, is := in.d.resolve(o).(*stream)
	if !is || in.d.resolve(s.dict["Subtype"]) != name("Form") || len(in.forms) >= mostForms {
		return
	}
	for _, f := range in.forms {
		if f == r {
			return
		}
	}
	data, err := in.d.data(s)
	if fatal(err) {
		panic(stop{err})
	}
	resources, _ := in.d.resolve(s.dict["Resources"]).(dict)
	if resources == nil {
		resources = outer
	}
	was, saved, tm, tlm := in.state, in.saved, in.tm, in.tlm
	in.saved = nil
	if m, _ := in.d.resolve(s.dict["Matrix"]).(array); len(m) == 6 {
		var own matrix
		for i := range own {
			own[i] = num(in.d.resolve(m[i]))
		}
		in.state.ctm = own.times(in.state.ctm)
	}
	in.forms = append(in.forms, r)
	in.run(data, resources)
	in.forms = in.forms[:len(in.forms)-1]
	in.state, in.saved, in.tm, in.tlm = was, saved, tm, tlm
}

func (in *interpreter) move(x, y float64) {
	in.tlm = matrix{1, 0, 0, 1, x, y}.times(in.tlm)
	in.tm = in.tlm
}

func (in *interpreter) advance(x float64) {
	if f := in.state.font; f != nil && f.vertical {
		in.tm = matrix{1, 0, 0, 1, 0, x}.times(in.tm)
		return
	}
	in.tm = matrix{1, 0, 0, 1, x, 0}.times(in.tm)
}

// show places the glyphs of a string.
func (in *interpreter) show(o object) {
	text, is := o.(string)
	s := &in.state
	if !is || s.font == nil {
		return
	}
	in.d.step(len(text))
	s.font.glyphs(text, func(g glyph) {
		m := matrix{s.size * s.scale, 0, 0, s.size, 0, s.rise}.times(in.tm).times(s.ctm)
		x, y := m[4], m[5]
		size := math.Hypot(m[2], m[3])
		// Coordinates along the line of writing, so that turned text has lines too.
		if long := math.Hypot(m[0], m[1]); long > 0 && m[1] != 0 {
			cos, sin := m[0]/long, m[1]/long
			x, y = x*cos+y*sin, y*cos-x*sin
		}
		width := g.width / 1000 * math.Hypot(m[0], m[1])
		if s.font.vertical {
			in.advance(-(s.size + s.charSpace))
			width = size
		} else {
			space := s.charSpace
			if g.space {
				space += s.wordSpace
			}
			in.advance((g.width/1000*s.size + space) * s.scale)
		}
		shown := g.text
		if in.replaced > 0 {
			shown, in.instead = in.instead, ""
		}
		in.put(shown, x, y, width, size, s.font.vertical)
	})
}

// put adds a glyph to the span that is open, or begins one.
func (in *interpreter) put(text string, x, y, width, size float64, vertical bool) {
	if math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) || size <= 0 || math.IsInf(size, 0) || math.IsNaN(width) {
		return
	}
	if in.open {
		s := &in.curSpan
		gap := x - in.end
		same := math.Abs(y-s.y) < 0.35*s.size && gap > -0.6*s.size && gap < 1.5*s.size && math.Abs(size-s.size) < 0.8*s.size
		if vertical {
			same = math.Abs(x-s.x0) < 0.5*s.size && math.Abs(y-in.end) < 0.6*s.size
			gap = 0
		}
		if same {
			if gap > 0.18*s.size && !strings.HasSuffix(in.cur.String(), " ") && text != " " {
				in.cur.WriteByte(' ')
			}
			in.cur.WriteString(text)
			if in.end = x + width; vertical {
				in.end = y - size
			}
			s.x1 = x + width
			return
		}
		in.flush()
	}
	if text == "" || strings.TrimSpace(text) == "" && !vertical {
		return
	}
	in.open = true
	in.cur.WriteString(text)
	in.curSpan = span{x0: x, x1: x + width, y: y, size: size}
	if in.end = x + width; vertical {
		in.end = y - size
	}
}

func (in *interpreter) flush() {
	if !in.open {
		return
	}
	in.open = false
	in.curSpan.text = in.cur.String()
	in.cur.Reset()
	in.bytes += len(in.curSpan.text)
	if len(in.spans) >= mostSpans || in.bytes > mostText {
		panic(stop{ErrTooMuch})
	}
	in.spans = append(in.spans, in.curSpan)
}
