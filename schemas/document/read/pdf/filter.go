package pdf

import (
	"bufio"
	"bytes"
	"compress/flate"
	"errors"
	"io"
)

// errFilter means that a stream is compressed in a way that text is not.
var errFilter = errors.New("not a filter of text")

// data returns what a stream holds. With an error, it returns what could be read.
func (d *Doc) data(s *stream) ([]byte, error) {
	var in io.Reader = io.NewSectionReader(d.in, s.at, s.size)
	filters := listOf(d.resolve(s.dict["Filter"]))
	params := listOf(d.resolve(s.dict["DecodeParms"]))
	if d.crypt != nil && s.id != (ref{}) && s.dict["Type"] != name("XRef") {
		raw, err := io.ReadAll(io.LimitReader(in, longestStream))
		if err != nil {
			return nil, err
		}
		named := name("")
		if len(filters) > 0 && d.resolve(filters[0]) == name("Crypt") {
			p, _ := d.resolve(first(params)).(dict)
			if named, _ = p["Name"].(name); named == "" {
				named = "Identity"
			}
		}
		in = bytes.NewReader(d.crypt.stream(raw, s.id, named))
	}
	if len(filters) > 10 {
		return nil, errFilter
	}
	for i, f := range filters {
		var p dict
		if i < len(params) {
			p, _ = d.resolve(params[i]).(dict)
		}
		switch d.resolve(f) {
		case name("FlateDecode"), name("Fl"):
			in = d.predicted(inflate(in), p)
		case name("LZWDecode"), name("LZW"):
			early := 1
			if n, ok := integer(d.resolve(p["EarlyChange"])); ok {
				early = n
			}
			in = d.predicted(&lzw{in: bufio.NewReader(in), early: early, prev: -1}, p)
		case name("ASCII85Decode"), name("A85"):
			in = &ascii85{in: bufio.NewReader(in)}
		case name("ASCIIHexDecode"), name("AHx"):
			in = &asciiHex{in: bufio.NewReader(in)}
		case name("RunLengthDecode"), name("RL"):
			in = &runLength{in: bufio.NewReader(in)}
		case name("Crypt"):
		default:
			return nil, errFilter
		}
	}
	most := min(int64(longestStream), d.left)
	out, err := io.ReadAll(io.LimitReader(in, most+1))
	d.left -= int64(len(out))
	d.step(1 + len(out)>>8)
	if int64(len(out)) > most {
		return nil, ErrExpands
	}
	return out, err
}

func listOf(o object) array {
	switch o := o.(type) {
	case nil:
		return nil
	case array:
		return o
	}
	return array{o}
}

func first(a array) object {
	if len(a) == 0 {
		return nil
	}
	return a[0]
}

// inflate reads zlib data without its checksum, which files with an end cut off lack.
func inflate(in io.Reader) io.Reader {
	b := bufio.NewReader(in)
	if head, err := b.Peek(2); err == nil && head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		_, _ = b.Discard(2) // it was peeked
	}
	return flate.NewReader(b)
}

// predicted undoes the prediction that a filter's parameters name.
func (d *Doc) predicted(in io.Reader, p dict) io.Reader {
	kind, _ := integer(d.resolve(p["Predictor"]))
	if kind < 2 {
		return in
	}
	get := func(key name, or int) int {
		if n, ok := integer(d.resolve(p[key])); ok && n > 0 && n < 1<<16 {
			return n
		}
		return or
	}
	colors, bits, columns := get("Colors", 1), get("BitsPerComponent", 8), get("Columns", 1)
	if colors > 64 || bits > 16 {
		return in
	}
	pixel := max(1, colors*bits/8)
	row := (colors*bits*columns + 7) / 8
	return &predictor{in: bufio.NewReader(in), png: kind >= 10, pixel: pixel, row: make([]byte, row), prev: make([]byte, row), out: 0, have: 0}
}

type predictor struct {
	in        *bufio.Reader
	png       bool
	pixel     int
	row, prev []byte
	out, have int
	err       error
}

func (p *predictor) Read(b []byte) (int, error) {
	if p.out == p.have {
		if p.err != nil {
			return 0, p.err
		}
		p.fill()
		if p.have == 0 {
			return 0, p.err
		}
	}
	n := copy(b, p.row[p.out:p.have])
	p.out += n
	return n, nil
}

func (p *predictor) fill() {
	p.row, p.prev = p.prev, p.row
	kind := byte(2)
	if p.png {
		if kind, p.err = p.in.ReadByte(); p.err != nil {
			p.out, p.have = 0, 0
			return
		}
	}
	n, err := io.ReadFull(p.in, p.row)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	p.out, p.have, p.err = 0, n, err
	if !p.png {
		for i := p.pixel; i < n; i++ {
			p.row[i] += p.row[i-p.pixel]
		}
		return
	}
	for i := range n {
		var a, b, c int
		b = int(p.prev[i])
		if i >= p.pixel {
			a, c = int(p.row[i-p.pixel]), int(p.prev[i-p.pixel])
		}
		switch kind {
		case 1:
			p.row[i] += byte(a)
		case 2:
			p.row[i] += byte(b)
		case 3:
			p.row[i] += byte((a + b) / 2)
		case 4:
			pa, pb, pc := abs(b-c), abs(a-c), abs(a+b-2*c)
			switch {
			case pa <= pb && pa <= pc:
				p.row[i] += byte(a)
			case pb <= pc:
				p.row[i] += byte(b)
			default:
				p.row[i] += byte(c)
			}
		}
	}
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

// lzw reads LZW as PDF has it: most significant bits first, codes from 9 to 12 bits.
type lzw struct {
	in     *bufio.Reader
	early  int
	bits   uint32
	n      uint
	width  uint
	prefix [4096]int16
	suffix [4096]byte
	length [4096]int32
	next   int
	prev   int
	buf    []byte
	out    int
	err    error
}

func (z *lzw) Read(b []byte) (int, error) {
	for z.out == len(z.buf) {
		if z.err != nil {
			return 0, z.err
		}
		z.decode()
	}
	n := copy(b, z.buf[z.out:])
	z.out += n
	return n, nil
}

func (z *lzw) decode() {
	z.buf, z.out = z.buf[:0], 0
	if z.width == 0 {
		z.width, z.next = 9, 258
	}
	for z.n < z.width {
		c, err := z.in.ReadByte()
		if err != nil {
			z.err = io.EOF
			return
		}
		z.bits = z.bits<<8 | uint32(c)
		z.n += 8
	}
	code := int(z.bits>>(z.n-z.width)) & (1<<z.width - 1)
	z.n -= z.width
	switch {
	case code == 256:
		z.width, z.next, z.prev = 9, 258, -1
		return
	case code == 257:
		z.err = io.EOF
		return
	case code > z.next || code == z.next && z.prev < 0:
		z.err = errSyntax
		return
	}
	if code < z.next {
		z.expand(code)
		if z.prev >= 0 {
			z.add(z.buf[0])
		}
	} else {
		z.expand(z.prev)
		z.buf = append(z.buf, z.buf[0])
		z.add(z.buf[0])
	}
	z.prev = code
	if z.next+z.early >= 1<<z.width && z.width < 12 {
		z.width++
	}
}

func (z *lzw) add(c byte) {
	if z.next >= 4096 {
		return
	}
	z.prefix[z.next], z.suffix[z.next] = int16(z.prev), c
	z.length[z.next] = z.size(z.prev) + 1
	z.next++
}

func (z *lzw) size(code int) int32 {
	if code < 256 {
		return 1
	}
	return z.length[code]
}

func (z *lzw) expand(code int) {
	n := int(z.size(code))
	z.buf = append(z.buf[:0], make([]byte, n)...)
	for i := n - 1; i >= 0; i-- {
		if code < 256 {
			z.buf[i] = byte(code)
			break
		}
		z.buf[i] = z.suffix[code]
		code = int(z.prefix[code])
	}
}

type ascii85 struct {
	in   *bufio.Reader
	buf  [4]byte
	out  int
	have int
	end  bool
}

func (a *ascii85) Read(b []byte) (int, error) {
	for a.out == a.have {
		if a.end {
			return 0, io.EOF
		}
		a.fill()
	}
	n := copy(b, a.buf[a.out:a.have])
	a.out += n
	return n, nil
}

func (a *ascii85) fill() {
	a.out, a.have = 0, 0
	var v uint32
	n := 0
	for n < 5 {
		c, err := a.in.ReadByte()
		if err != nil || c == '~' {
			a.end = true
			break
		}
		switch {
		case c == 'z' && n == 0:
			a.buf, a.have = [4]byte{}, 4
			return
		case c >= '!' && c <= 'u':
			v = v*85 + uint32(c-'!')
			n++
		}
	}
	if n < 2 {
		return
	}
	for i := n; i < 5; i++ {
		v = v*85 + 84
	}
	a.buf = [4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
	a.have = n - 1
}

type asciiHex struct{ in *bufio.Reader }

func (a *asciiHex) Read(b []byte) (int, error) {
	for n := range b {
		v, got := 0, 0
		for got < 2 {
			c, err := a.in.ReadByte()
			if err != nil || c == '>' {
				if got == 1 {
					b[n] = byte(v << 4)
					n++
				}
				return n, io.EOF
			}
			if d := hexDigit(c); d >= 0 {
				v = v<<4 | d
				got++
			}
		}
		b[n] = byte(v)
	}
	return len(b), nil
}

type runLength struct {
	in  *bufio.Reader
	buf []byte
}

func (r *runLength) Read(b []byte) (int, error) {
	if len(r.buf) == 0 {
		n, err := r.in.ReadByte()
		if err != nil || n == 128 {
			return 0, io.EOF
		}
		if n < 128 {
			r.buf = make([]byte, int(n)+1)
			if _, err := io.ReadFull(r.in, r.buf); err != nil {
				return 0, io.EOF
			}
		} else {
			c, err := r.in.ReadByte()
			if err != nil {
				return 0, io.EOF
			}
			r.buf = bytes.Repeat([]byte{c}, 257-int(n))
		}
	}
	n := copy(b, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}
