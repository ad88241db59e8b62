package journal

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"agentsvc/schemas/id"
)

// Row is a row of a commit: a typed struct that knows how it is written.
type Row interface {
	// Write returns how the row is written. Its table is one of Config.Tables.
	Write() *Write
	// Put puts the row's values, in the order of the write's columns: the key, the guard
	// of a swap, then the others. It puts the same ones whenever it is called.
	Put(v *Values)
}

// Values takes the values of a row, one for each column. It writes them as the database
// reads them into the parameters of a statement, so that a row costs no allocation.
// A commit whose row puts other types, or another number of values, is an ErrRefused.
type Values struct {
	of   *Write
	cols []column   // nil: the values are measured only
	n    int        // values so far
	size int        // about how many bytes they take
	ids  [2]id.UUID // the row's own entity, and another one whose row is locked
	err  error
}

// measure computes the size of a row and finds its entities. It sets err where the row does
// not fit its write.
func (v *Values) measure(r Row) {
	*v = Values{of: r.Write()}
	r.Put(v)
	if v.n != len(v.of.values) && v.err == nil {
		v.err = fmt.Errorf("%s: %d values for %d columns", v.of.name, v.n, len(v.of.values))
	}
}

// next returns the column of the next value, nil where it is not kept.
func (v *Values) next(oid uint32, size int) *column {
	i := v.n
	v.n++
	v.size += size
	if i < len(v.cols) {
		return &v.cols[i]
	}
	if v.cols == nil && v.err == nil && (i >= len(v.of.values) || v.of.values[i].oid != oid) {
		v.err = fmt.Errorf("%s: value %d does not fit its column", v.of.name, i+1)
	}
	return nil
}

func (v *Values) null(oid uint32) *Values {
	if c := v.next(oid, 0); c != nil {
		c.null()
	}
	return v
}

// UUID puts a uuid.
func (v *Values) UUID(u id.UUID) *Values {
	if v.cols == nil {
		if v.of.entity && v.n == 0 {
			v.ids[0] = u
		} else if v.n == v.of.locking {
			v.ids[1] = u
		}
	}
	if c := v.next(pgtype.UUIDOID, 0); c != nil {
		c.uuid(u)
	}
	return v
}

// UUIDOrNull puts a typed id, or NULL for nil.
func UUIDOrNull[T interface{ Bytes16() [16]byte }](v *Values, u *T) *Values {
	if u == nil {
		return v.null(pgtype.UUIDOID)
	}
	return v.UUID((*u).Bytes16())
}

// Guard puts the guard of a swap.
func (v *Values) Guard(g Guard) *Values { return v.Int8(g.Version).Int8(g.Epoch).Int8(g.SetEpoch) }

// Text puts a text, or an enumerated value.
func (v *Values) Text(s string) *Values {
	if c := v.next(pgtype.TextOID, len(s)); c != nil {
		c.text(s)
	}
	return v
}

// TextOrNull puts a text, or NULL for nil.
func (v *Values) TextOrNull(s *string) *Values {
	if s == nil {
		return v.null(pgtype.TextOID)
	}
	return v.Text(*s)
}

// Bytes puts a bytea, or NULL for nil.
func (v *Values) Bytes(b []byte) *Values { return v.bytes(pgtype.ByteaOID, b) }

// JSON puts a document, or NULL for an empty one.
func (v *Values) JSON(doc []byte) *Values {
	if len(doc) == 0 {
		return v.null(pgtype.JSONOID)
	}
	return v.bytes(pgtype.JSONOID, doc)
}

func (v *Values) bytes(oid uint32, b []byte) *Values {
	if b == nil {
		return v.null(oid)
	}
	if c := v.next(oid, len(b)); c != nil {
		c.bytes(b)
	}
	return v
}

// Int puts an int.
func (v *Values) Int(n int) *Values {
	if c := v.next(pgtype.Int4OID, 0); c != nil {
		c.int4(n)
	}
	return v
}

// IntOrNull puts an int, or NULL for nil.
func (v *Values) IntOrNull(n *int) *Values {
	if n == nil {
		return v.null(pgtype.Int4OID)
	}
	return v.Int(*n)
}

// Int8 puts a bigint.
func (v *Values) Int8(n int64) *Values {
	if c := v.next(pgtype.Int8OID, 0); c != nil {
		c.int8(n)
	}
	return v
}

// Int8OrNull puts a bigint, or NULL for nil.
func (v *Values) Int8OrNull(n *int64) *Values {
	if n == nil {
		return v.null(pgtype.Int8OID)
	}
	return v.Int8(*n)
}

// Float8 puts a float8.
func (v *Values) Float8(f float64) *Values {
	if c := v.next(pgtype.Float8OID, 0); c != nil {
		c.float8(f)
	}
	return v
}

// Bool puts a boolean.
func (v *Values) Bool(b bool) *Values {
	if c := v.next(pgtype.BoolOID, 0); c != nil {
		c.boolean(b)
	}
	return v
}

// Time puts a timestamptz.
func (v *Values) Time(t time.Time) *Values {
	if c := v.next(pgtype.TimestamptzOID, 0); c != nil {
		c.time(t)
	}
	return v
}

// TimeOrNull puts a timestamptz, or NULL for nil.
func (v *Values) TimeOrNull(t *time.Time) *Values {
	if t == nil {
		return v.null(pgtype.TimestamptzOID)
	}
	return v.Time(*t)
}

// Ints puts an int[], or NULL for nil.
func (v *Values) Ints(n []int32) *Values {
	if n == nil {
		return v.null(pgtype.TextOID)
	}
	if c := v.next(pgtype.TextOID, 4*len(n)); c != nil {
		c.ints(n)
	}
	return v
}
