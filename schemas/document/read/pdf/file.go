package pdf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Errors of a file.
var (
	ErrPassword = errors.New("the file is protected by a password")
	ErrExpands  = errors.New("the streams of the file expand to too much")
	ErrPages    = errors.New("the file has too many pages")
	ErrTooMuch  = errors.New("the file takes too many steps")
	ErrDamaged  = errors.New("the file is damaged")
)

// Limits bound what a file may cost. Zero fields have generous defaults.
type Limits struct {
	ExpandedBytes int64 // of all streams together
	Pages         int
	Steps         int // operators and objects, for all pages
	// Panics lets a panic over a damaged file through, for a fuzzer: usually it is caught, and what was read counts.
	Panics bool
}

const (
	mostObjects   = 4 << 20  // numbers of objects
	longestStream = 64 << 20 // what a stream may expand to
	longestObject = 8 << 20  // outside of streams
	keptObjects   = 4096     // in memory
	keptStreams   = 8        // object streams in memory
	mostPages     = 100_000
)

// entry says where an object is.
type entry struct {
	at int64 // offset, or the number of the object stream
	// gen is the generation, or the index in the object stream.
	gen  int32
	kind byte // 0: none, 1: at an offset, 2: in an object stream
}

// Doc is a file that is open.
type Doc struct {
	in      io.ReaderAt
	size    int64
	lim     Limits
	left    int64 // bytes that streams may still expand to
	steps   int
	xref    []entry
	trailer dict
	crypt   *crypt
	rebuilt bool
	cache   map[int]object
	packed  map[int]*packed
	busy    map[int]bool // objects that are being read: a circle ends there
	sizes   map[int]int  // letters by their size, of the pages so far
	fonts   map[ref]*font
}

// packed is an object stream.
type packed struct {
	data    []byte
	offsets []int
	nums    []int
}

// Open reads the structure of a file.
func Open(in io.ReaderAt, size int64, lim Limits) (d *Doc, err error) {
	defer func() {
		if p := recover(); p != nil {
			d, err = nil, lim.caught(p)
		}
	}()
	if lim.ExpandedBytes <= 0 {
		lim.ExpandedBytes = 256 << 20
	}
	if lim.Pages <= 0 {
		lim.Pages = 5000
	}
	if lim.Steps <= 0 {
		lim.Steps = 200_000_000
	}
	d = &Doc{lim: lim, left: lim.ExpandedBytes, cache: map[int]object{}, packed: map[int]*packed{}, busy: map[int]bool{}, sizes: map[int]int{}, fonts: map[ref]*font{}}
	head := make([]byte, min(size, 1024))
	n, _ := in.ReadAt(head, 0) // a short file has no header
	start := max(0, bytes.Index(head[:n], []byte("%PDF-")))
	d.in, d.size = io.NewSectionReader(in, int64(start), size-int64(start)), size-int64(start)
	if err := d.readXref(); err != nil || !d.hasPages() {
		if fatal(err) {
			return nil, err
		}
		if err := d.rebuild(); err != nil {
			return nil, err
		}
		if d.crypt == nil && d.trailer["Encrypt"] == nil && !d.hasPages() && d.anyPage() == 0 {
			return nil, ErrDamaged
		}
	}
	return d, d.openCrypt()
}

// stop carries an error up to Open or Pages.
type stop struct{ err error }

func (l Limits) caught(p any) error {
	if s, is := p.(stop); is {
		return s.err
	}
	if l.Panics {
		panic(p)
	}
	if err, is := p.(error); is && !errors.Is(err, errSyntax) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return ErrDamaged
}

// fatal reports whether an error ends the reading, damage or not.
func fatal(err error) bool {
	return errors.Is(err, ErrExpands) || errors.Is(err, ErrTooMuch) || errors.Is(err, ErrPages) || errors.Is(err, ErrPassword)
}

func (d *Doc) step(n int) {
	if d.steps += n; d.steps > d.lim.Steps {
		panic(stop{ErrTooMuch})
	}
}

func (d *Doc) hasPages() bool {
	root, _ := d.resolve(d.trailer["Root"]).(dict)
	if root == nil {
		return d.trailer["Encrypt"] != nil // names in the catalogue are plain, but it may be in an encrypted stream
	}
	pages, _ := d.resolve(root["Pages"]).(dict)
	return pages != nil
}

// window returns up to n bytes at an offset, and whether the file ends there.
func (d *Doc) window(at int64, n int) ([]byte, bool) {
	if at < 0 || at >= d.size {
		return nil, true
	}
	n = int(min(int64(n), d.size-at))
	b := make([]byte, n)
	k, _ := d.in.ReadAt(b, at) // what cannot be read is not there
	d.step(1 + n>>12)
	return b[:k], at+int64(k) >= d.size || k < n
}

// parseAt calls parse with more and more bytes until it has enough.
func (d *Doc) parseAt(at int64, parse func(*lexer) error) error {
	for n := 2048; ; n *= 8 {
		b, whole := d.window(at, n)
		err := parse(&lexer{b: b, whole: whole || n > longestObject, refs: true})
		if !errors.Is(err, errMore) {
			return err
		}
	}
}

// readXref follows the chain of cross-reference sections.
func (d *Doc) readXref() error {
	tail, _ := d.window(max(0, d.size-2048), 2048)
	i := bytes.LastIndex(tail, []byte("startxref"))
	if i < 0 {
		return ErrDamaged
	}
	l := &lexer{b: tail[i+9:], whole: true}
	o, err := l.next(0)
	if err != nil {
		return err
	}
	at, ok := o.(int)
	if !ok {
		return ErrDamaged
	}
	seen := map[int]bool{}
	for next := []int{at}; len(next) > 0; {
		at, next = next[0], next[1:]
		if seen[at] || len(seen) > 1000 {
			continue
		}
		seen[at] = true
		t, err := d.section(int64(at))
		if err != nil {
			if d.trailer == nil || fatal(err) {
				return err
			}
			continue // an older part is damaged
		}
		if d.trailer == nil {
			d.trailer = t
		}
		for _, key := range []name{"XRefStm", "Prev"} {
			if n, ok := integer(t[key]); ok {
				next = append(next, n)
			}
		}
	}
	return nil
}

func (d *Doc) setEntry(num int, e entry) bool {
	if num < 0 || num >= mostObjects {
		return false
	}
	if num >= len(d.xref) {
		d.xref = append(d.xref, make([]entry, num+1-len(d.xref))...)
	}
	if d.xref[num].kind == 0 {
		d.xref[num] = e
	}
	return true
}

// section reads a table or stream of cross-references and returns its trailer.
func (d *Doc) section(at int64) (dict, error) {
	head, _ := d.window(at, 32)
	if bytes.HasPrefix(bytes.TrimLeft(head, " \r\n\t\x00\f"), []byte("xref")) {
		return d.tableSection(at)
	}
	o, _, err := d.objectAt(at, false)
	if err != nil {
		return nil, err
	}
	s, is := o.(*stream)
	if !is || s.dict["Type"] != name("XRef") {
		return nil, ErrDamaged
	}
	s.id = ref{}
	data, err := d.data(s)
	if err != nil && (len(data) == 0 || fatal(err)) {
		return nil, err
	}
	w, _ := s.dict["W"].(array)
	if len(w) < 3 {
		return nil, ErrDamaged
	}
	var width [3]int
	for i := range width {
		width[i], _ = integer(w[i])
		if width[i] < 0 || width[i] > 8 {
			return nil, ErrDamaged
		}
	}
	total := width[0] + width[1] + width[2]
	index, _ := s.dict["Index"].(array)
	if len(index) < 2 {
		index = array{0, s.dict["Size"]}
	}
	for i := 0; i+1 < len(index) && total > 0; i += 2 {
		first, _ := integer(index[i])
		count, _ := integer(index[i+1])
		for n := 0; n < count && len(data) >= total; n++ {
			var field [3]int
			if width[0] == 0 {
				field[0] = 1
			}
			for j := range width {
				for k := 0; k < width[j]; k++ {
					field[j] = field[j]<<8 | int(data[k])
				}
				data = data[width[j]:]
			}
			ok := true
			switch field[0] {
			case 1:
				ok = d.setEntry(first+n, entry{int64(field[1]), int32(field[2]), 1})
			case 2:
				ok = d.setEntry(first+n, entry{int64(field[1]), int32(field[2]), 2})
			}
			if !ok {
				return nil, ErrDamaged
			}
		}
	}
	return s.dict, nil
}

// tableSection reads "xref", lines of entries, "trailer" and its dictionary.
func (d *Doc) tableSection(at int64) (dict, error) {
	const piece = 1 << 16
	var l *lexer
	base := at
	next := func() (object, error) {
		for {
			start := l.at
			o, err := l.next(0)
			if !errors.Is(err, errMore) {
				return o, err
			}
			base += int64(start)
			b, whole := d.window(base, piece+len(l.b)-start)
			l = &lexer{b: b, whole: whole || len(b) > longestObject}
		}
	}
	b, whole := d.window(at, piece)
	l = &lexer{b: b, whole: whole}
	if o, err := next(); err != nil || o != keyword("xref") {
		return nil, ErrDamaged
	}
	for {
		o, err := next()
		if err != nil {
			return nil, err
		}
		if o == keyword("trailer") {
			break
		}
		first, ok := o.(int)
		o, err = next()
		count, ok2 := o.(int)
		if err != nil || !ok || !ok2 || count < 0 {
			return nil, ErrDamaged
		}
		for n := range count {
			o, err := next()
			if err != nil {
				return nil, err
			}
			if o == keyword("trailer") { // fewer entries than declared
				return d.trailerAt(base + int64(l.at))
			}
			at, ok := o.(int)
			g, err1 := next()
			gen, ok2 := g.(int)
			kind, err2 := next()
			if !ok || !ok2 || err1 != nil || err2 != nil {
				return nil, ErrDamaged
			}
			if kind == keyword("n") && at > 0 && !d.setEntry(first+n, entry{int64(at), int32(gen), 1}) {
				return nil, ErrDamaged
			}
			d.step(1)
		}
	}
	return d.trailerAt(base + int64(l.at))
}

func (d *Doc) trailerAt(at int64) (t dict, err error) {
	err = d.parseAt(at, func(l *lexer) error {
		o, err := l.next(0)
		if err != nil {
			return err
		}
		var is bool
		if t, is = o.(dict); !is {
			return ErrDamaged
		}
		return nil
	})
	return t, err
}

// rebuild finds the objects of a file whose table is damaged: all "1 0 obj" and trailers.
func (d *Doc) rebuild() error {
	d.rebuilt = true
	d.xref, d.cache, d.packed = nil, map[int]object{}, map[int]*packed{}
	trailer := dict{}
	const piece, overlap = 1 << 20, 64
	var streams []int
	for at := int64(0); at < d.size; at += piece {
		b, _ := d.window(max(0, at-overlap), piece+overlap)
		from := at - max(0, at-overlap)
		for i := 0; ; {
			k := bytes.Index(b[i:], []byte("obj"))
			if k < 0 {
				break
			}
			i += k
			end := i
			i += 3
			if int64(end)+3 <= from && at > 0 { // seen with the piece before
				continue
			}
			gen, p, ok := intBefore(b, end)
			if !ok {
				continue
			}
			num, p, ok := intBefore(b, p)
			if !ok || num >= mostObjects || num == 0 {
				continue
			}
			offset := max(0, at-overlap) + int64(p)
			if num < len(d.xref) {
				d.xref[num].kind = 0 // the last one counts
			}
			d.setEntry(num, entry{offset, int32(gen), 1})
			near := b[i:min(len(b), i+200)]
			if bytes.Contains(near, []byte("/ObjStm")) && len(streams) < 100_000 {
				streams = append(streams, num)
			}
			if bytes.Contains(near, []byte("/XRef")) || bytes.Contains(near, []byte("/Catalog")) {
				o, _, err := d.objectAt(offset, false)
				if fatal(err) {
					return err
				}
				switch o := o.(type) {
				case *stream:
					for _, k := range []name{"Root", "Encrypt", "ID", "Info"} {
						if v, has := o.dict[k]; has {
							trailer[k] = v
						}
					}
				case dict:
					if o["Type"] == name("Catalog") && trailer["Root"] == nil {
						trailer["Root"] = ref{num, gen}
					}
				}
			}
		}
		for i := 0; ; {
			k := bytes.Index(b[i:], []byte("trailer"))
			if k < 0 {
				break
			}
			i += k + 7
			t, err := d.trailerAt(max(0, at-overlap) + int64(i))
			if fatal(err) {
				return err
			}
			for k, v := range t {
				trailer[k] = v
			}
		}
	}
	d.trailer = trailer
	if err := d.openCrypt(); err != nil {
		return err
	}
	for _, num := range streams {
		p := d.unpack(num)
		if p == nil {
			continue
		}
		for i, n := range p.nums {
			d.setEntry(n, entry{int64(num), int32(i), 2})
		}
	}
	if d.trailer["Root"] == nil {
		for num, e := range d.xref {
			if e.kind == 0 {
				continue
			}
			if c, is := d.resolve(ref{num, 0}).(dict); is && c["Type"] == name("Catalog") {
				d.trailer["Root"] = ref{num, 0}
			}
		}
	}
	return nil
}

// intBefore reads a whole number that ends before a position, with the white space after it.
func intBefore(b []byte, end int) (n, start int, ok bool) {
	for end > 0 && isSpace(b[end-1]) {
		end--
	}
	start = end
	for start > 0 && b[start-1] >= '0' && b[start-1] <= '9' && end-start < 10 {
		start--
	}
	if start == end {
		return 0, 0, false
	}
	for _, c := range b[start:end] {
		n = n*10 + int(c-'0')
	}
	return n, start, true
}

// objectAt reads "1 0 obj" and what follows.
func (d *Doc) objectAt(at int64, decrypt bool) (out object, id ref, err error) {
	var dataAt int64 = -1
	err = d.parseAt(at, func(l *lexer) error {
		l.refs = false
		n, err1 := l.next(0)
		g, err2 := l.next(0)
		k, err3 := l.next(0)
		if err := errors.Join(err1, err2, err3); err != nil {
			if l.whole {
				return errSyntax
			}
			return errMore
		}
		num, ok1 := n.(int)
		gen, ok2 := g.(int)
		if !ok1 || !ok2 || k != keyword("obj") {
			return errSyntax
		}
		id = ref{num, gen}
		l.refs = true
		if decrypt && d.crypt != nil {
			l.key = func(s string) string { return d.crypt.text(s, id) }
		}
		o, err := l.next(0)
		if err != nil {
			return err
		}
		out = o
		if _, is := o.(dict); !is {
			return nil
		}
		l.skip()
		if len(l.b)-l.at < 16 && !l.whole {
			return errMore
		}
		if bytes.HasPrefix(l.b[l.at:], []byte("stream")) {
			p := l.at + 6
			if p < len(l.b) && l.b[p] == '\r' {
				p++
			}
			if p < len(l.b) && l.b[p] == '\n' {
				p++
			}
			dataAt = at + int64(p)
		}
		return nil
	})
	if err != nil || dataAt < 0 {
		return out, id, err
	}
	s := &stream{dict: out.(dict), at: dataAt, id: id}
	length, ok := integer(d.resolve(s.dict["Length"]))
	if ok && length >= 0 && d.endsAt(dataAt+int64(length)) {
		s.size = int64(length)
	} else {
		s.size = d.findEnd(dataAt)
	}
	return s, id, nil
}

func (d *Doc) endsAt(at int64) bool {
	if at > d.size {
		return false
	}
	b, _ := d.window(at, 32)
	return bytes.HasPrefix(bytes.TrimLeft(b, " \r\n\t"), []byte("endstream"))
}

// findEnd returns the length of a stream's data whose declared length is wrong.
func (d *Doc) findEnd(from int64) int64 {
	const piece = 1 << 16
	for at := from; at < d.size; at += piece - 16 {
		b, whole := d.window(at, piece)
		if i := bytes.Index(b, []byte("endstream")); i >= 0 {
			end := at + int64(i) - from
			for end > 0 && i > 0 && (b[i-1] == '\n' || b[i-1] == '\r') && end > at-from {
				end--
				i--
			}
			return end
		}
		if whole {
			break
		}
	}
	return d.size - from
}

// resolve follows references. What is not there, or leads in a circle, is nil.
func (d *Doc) resolve(o object) object {
	for range 32 {
		r, is := o.(ref)
		if !is {
			return o
		}
		o = d.get(r)
	}
	return nil
}

func (d *Doc) get(r ref) object {
	if o, has := d.cache[r.num]; has {
		return o
	}
	if r.num < 0 || r.num >= len(d.xref) || d.busy[r.num] {
		return nil
	}
	d.step(1)
	e := d.xref[r.num]
	var o object
	switch e.kind {
	case 1:
		d.busy[r.num] = true
		got, id, err := d.objectAt(e.at, true)
		delete(d.busy, r.num)
		if err != nil || id.num != r.num {
			if !d.rebuilt && id.num != r.num { // the table is wrong
				if d.rebuild() == nil {
					return d.get(r)
				}
			}
			return nil
		}
		o = got
	case 2:
		d.busy[r.num] = true
		p := d.unpack(int(e.at))
		delete(d.busy, r.num)
		if p == nil {
			return nil
		}
		i := int(e.gen)
		if i < 0 || i >= len(p.nums) || p.nums[i] != r.num {
			i = -1
			for k, n := range p.nums {
				if n == r.num {
					i = k
				}
			}
			if i < 0 {
				return nil
			}
		}
		l := &lexer{b: p.data[min(p.offsets[i], len(p.data)):], whole: true, refs: true}
		got, err := l.next(0)
		if err != nil {
			return nil
		}
		o = got
	}
	if len(d.cache) >= keptObjects {
		clear(d.cache)
	}
	d.cache[r.num] = o
	return o
}

// unpack reads an object stream.
func (d *Doc) unpack(num int) *packed {
	if p, has := d.packed[num]; has {
		return p
	}
	if num < 0 || num >= len(d.xref) || d.xref[num].kind != 1 {
		return nil
	}
	s, is := d.get(ref{num, 0}).(*stream)
	if !is {
		return nil
	}
	data, err := d.data(s)
	if err != nil && len(data) == 0 {
		return nil
	}
	n, _ := integer(d.resolve(s.dict["N"]))
	first, _ := integer(d.resolve(s.dict["First"]))
	p := &packed{data: data}
	l := &lexer{b: data, whole: true}
	for i := 0; i < n; i++ {
		a, err1 := l.next(0)
		b, err2 := l.next(0)
		num, ok1 := a.(int)
		off, ok2 := b.(int)
		if err1 != nil || err2 != nil || !ok1 || !ok2 || off < 0 || first < 0 || first > len(data) || off > len(data)-first {
			break
		}
		p.nums, p.offsets = append(p.nums, num), append(p.offsets, first+off)
	}
	if len(d.packed) >= keptStreams {
		clear(d.packed)
	}
	d.packed[num] = p
	return p
}

// Title returns the title in the properties of the file.
func (d *Doc) Title() (title string) {
	defer func() {
		if p := recover(); p != nil {
			d.lim.caught(p)
			title = ""
		}
	}()
	info, _ := d.resolve(d.trailer["Info"]).(dict)
	s, _ := d.resolve(info["Title"]).(string)
	return textString(s)
}
