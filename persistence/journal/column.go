package journal

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"agentsvc/schemas/id"
)

// arrayHead is the wire form's head of a one-dimensional array: dimensions, has
// NULLs, element type, length, index of the first element.
const arrayHead = 20

// column is one array parameter in the database's binary wire form. Its memory
// is kept from flush to flush, so that a row costs no allocation.
type column struct {
	buf   []byte
	elem  uint32
	n     uint32
	nulls uint32
}

func (c *column) reset(elem uint32) {
	c.elem, c.n, c.nulls = elem, 0, 0
	c.buf = append(c.buf[:0], make([]byte, arrayHead)...)
}

// value is the parameter for the only element, nil for NULL; it is valid until
// the next reset.
func (c *column) value() []byte {
	if c.nulls != 0 {
		return nil
	}
	return c.buf[arrayHead+4:] // behind its length
}

// param is the finished parameter; it is valid until the next reset.
func (c *column) param() []byte {
	if c.n == 0 {
		binary.BigEndian.PutUint32(c.buf, 0)
		binary.BigEndian.PutUint32(c.buf[4:], 0)
		binary.BigEndian.PutUint32(c.buf[8:], c.elem)
		return c.buf[:12]
	}
	binary.BigEndian.PutUint32(c.buf, 1)
	binary.BigEndian.PutUint32(c.buf[4:], c.nulls)
	binary.BigEndian.PutUint32(c.buf[8:], c.elem)
	binary.BigEndian.PutUint32(c.buf[12:], c.n)
	binary.BigEndian.PutUint32(c.buf[16:], 1)
	return c.buf
}

func (c *column) size(n int) {
	c.n++
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(n))
}

func (c *column) null() {
	c.n++
	c.nulls = 1
	c.buf = binary.BigEndian.AppendUint32(c.buf, math.MaxUint32)
}

func (c *column) uuid(u id.UUID) {
	c.size(16)
	c.buf = append(c.buf, u[:]...)
}

func (c *column) text(s string) {
	c.size(len(s))
	c.buf = append(c.buf, s...)
}

func (c *column) bytes(b []byte) {
	c.size(len(b))
	c.buf = append(c.buf, b...)
}

func (c *column) int4(n int) {
	c.size(4)
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(int32(n)))
}

func (c *column) int8(n int64) {
	c.size(8)
	c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(n))
}

// int8Param is a bigint parameter that is no array.
func int8Param(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func (c *column) float8(f float64) {
	c.size(8)
	c.buf = binary.BigEndian.AppendUint64(c.buf, math.Float64bits(f))
}

func (c *column) boolean(b bool) {
	c.size(1)
	if b {
		c.buf = append(c.buf, 1)
		return
	}
	c.buf = append(c.buf, 0)
}

// epoch2000 is the database's zero of time, in microseconds of Unix time.
var epoch2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func (c *column) time(t time.Time) { c.int8(t.UnixMicro() - epoch2000) }

// ints is an int[] as text: arrays of arrays of different lengths have no wire
// form.
func (c *column) ints(v []int32) {
	at := len(c.buf)
	c.size(0)
	c.buf = append(c.buf, '{')
	for i, n := range v {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.buf = strconv.AppendInt(c.buf, int64(n), 10)
	}
	c.buf = append(c.buf, '}')
	binary.BigEndian.PutUint32(c.buf[at:], uint32(len(c.buf)-at-4))
}

// maxKeptColumn is how much memory a column keeps after a flush of large rows.
const maxKeptColumn = 1 << 20

// bulk is the rows of one statement, as its columns.
type bulk struct {
	fields []field
	cols   []column
	rows   int
	of     *entry // of a row that is a statement of its own

	params [][]byte
}

func newBulk(fields []field) *bulk {
	b := &bulk{fields: fields, cols: make([]column, len(fields)), params: make([][]byte, len(fields))}
	b.reset()
	return b
}

func (b *bulk) reset() {
	b.rows, b.of = 0, nil
	for i := range b.cols {
		if cap(b.cols[i].buf) > maxKeptColumn {
			b.cols[i].buf = nil
		}
		b.cols[i].reset(b.fields[i].oid)
	}
}

// arrays returns the parameters of the statement for many rows, valid until the next reset.
func (b *bulk) arrays() [][]byte {
	for i := range b.cols {
		b.params[i] = b.cols[i].param()
	}
	return b.params
}

// values returns the parameters of the statement for one row, valid until the next reset.
func (b *bulk) values() [][]byte {
	for i := range b.cols {
		b.params[i] = b.cols[i].value()
	}
	return b.params
}
