package journal

import (
	"encoding/binary"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

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

func (c *column) textOrNull(s *string) {
	if s == nil {
		c.null()
		return
	}
	c.text(*s)
}

func (c *column) bytes(b []byte) {
	c.size(len(b))
	c.buf = append(c.buf, b...)
}

// bytesOrNull is for bytes and JSON alike: nil is NULL.
func (c *column) bytesOrNull(b []byte) {
	if b == nil {
		c.null()
		return
	}
	c.bytes(b)
}

func (c *column) int4(n int) {
	c.size(4)
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(int32(n)))
}

func (c *column) int4OrNull(n *int) {
	if n == nil {
		c.null()
		return
	}
	c.int4(*n)
}

func (c *column) int8(n int64) {
	c.size(8)
	c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(n))
}

// int8Param is a bigint parameter that is no array.
func int8Param(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func (c *column) int8OrNull(n *int64) {
	if n == nil {
		c.null()
		return
	}
	c.int8(*n)
}

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

func (c *column) timeOrNull(t *time.Time) {
	if t == nil {
		c.null()
		return
	}
	c.time(*t)
}

// ints is an int[] as text: arrays of arrays of different lengths have no wire
// form.
func (c *column) ints(v []int32) {
	if v == nil {
		c.null()
		return
	}
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

// uuidOrNull takes every pointer to a typed id.
func uuidOrNull[T interface{ Bytes16() [16]byte }](c *column, u *T) {
	if u == nil {
		c.null()
		return
	}
	c.uuid((*u).Bytes16())
}

// bulk is one prepared bulk statement and its columns.
type bulk struct {
	name  string // of the statement with arrays
	one   string // of the statement for one row
	elems []uint32
	cols  []column
	rows  int

	params [][]byte
}

func newBulk(name string, elems ...uint32) *bulk {
	b := &bulk{name: name, one: name + "_one", elems: elems, cols: make([]column, len(elems)), params: make([][]byte, len(elems))}
	b.reset()
	return b
}

func (b *bulk) reset() {
	b.rows = 0
	for i := range b.cols {
		if cap(b.cols[i].buf) > maxKeptColumn {
			b.cols[i].buf = nil
		}
		b.cols[i].reset(b.elems[i])
	}
}

// maxKeptColumn is how much memory a column keeps after a flush of large rows.
const maxKeptColumn = 1 << 20

// arrays takes the arrays out of a bulk statement.
var arrays = regexp.MustCompile(`unnest\(([^()]*)\)(\s+AS u \()`)

// forOne is the bulk statement sql for one row: the same with values instead of
// arrays. The database takes a third less time for it, since each array costs it
// a table of its own.
func forOne(sql string) string {
	return strings.ReplaceAll(arrays.ReplaceAllStringFunc(sql, func(from string) string {
		of := arrays.FindStringSubmatch(from)
		return "(SELECT " + strings.ReplaceAll(of[1], "[]", "") + ")" + of[2]
	}), "cardinality($1)", "1")
}

// statement is the name of the statement for the rows, and its parameters, valid
// until the next reset.
func (b *bulk) statement() (name string, params [][]byte) {
	if b.rows != 1 {
		return b.name, b.finish()
	}
	for i := range b.cols {
		b.params[i] = b.cols[i].value()
	}
	return b.one, b.params
}

// finish are the parameters of the statement with arrays, valid until the next
// reset.
func (b *bulk) finish() [][]byte {
	for i := range b.cols {
		b.params[i] = b.cols[i].param()
	}
	return b.params
}

// Element types, by the names the statements use.
const (
	tUUID   = pgtype.UUIDOID
	tText   = pgtype.TextOID
	tBytes  = pgtype.ByteaOID
	tJSON   = pgtype.JSONOID
	tInt4   = pgtype.Int4OID
	tInt8   = pgtype.Int8OID
	tFloat8 = pgtype.Float8OID
	tBool   = pgtype.BoolOID
	tTime   = pgtype.TimestamptzOID
)
