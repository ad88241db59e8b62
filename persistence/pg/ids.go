package pg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5/pgtype"

	"agentsvc/schemas/id"
)

// The methods of schemas/id that the codecs use: every typed id has them through its id.UUID.
type (
	reads  interface{ Bytes16() [16]byte }
	writes interface{ SetBytes16([16]byte) }
)

// RegisterIDs teaches m to encode the typed ids of schemas/id as uuid: alone, behind a
// pointer (nil is NULL) and in slices. NULL for an id that is not a pointer is an error.
// Types that the driver could encode before still work.
func RegisterIDs(m *pgtype.Map) {
	scalar := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: uuidCodec{}}
	m.RegisterType(scalar)
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID,
		Codec: uuidArrayCodec{&pgtype.ArrayCodec{ElementType: scalar}}})
}

// uuidCodec is the driver's codec with typed ids encoded and decoded in place.
type uuidCodec struct{ pgtype.UUIDCodec }

func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(reads); ok {
		if format == pgtype.BinaryFormatCode {
			return encodeBinary{}
		}
		return encodeText{}
	}
	return c.UUIDCodec.PlanEncode(m, oid, format, value)
}

func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(writes); ok {
		if format == pgtype.BinaryFormatCode {
			return scanBinary{}
		}
		return scanText{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

// encodeBinary never sees a nil pointer: the driver has already made it NULL.
type encodeBinary struct{}

func (encodeBinary) Encode(value any, buf []byte) ([]byte, error) {
	b := value.(reads).Bytes16()
	return append(buf, b[:]...), nil
}

type encodeText struct{}

func (encodeText) Encode(value any, buf []byte) ([]byte, error) {
	return id.UUID(value.(reads).Bytes16()).AppendText(buf)
}

var errNull = errors.New("cannot read NULL into an id that is not behind a pointer")

type scanBinary struct{}

func (scanBinary) Scan(src []byte, dst any) error {
	if src == nil {
		return errNull
	}
	if len(src) != 16 {
		return fmt.Errorf("a uuid of %d bytes", len(src))
	}
	dst.(writes).SetBytes16([16]byte(src))
	return nil
}

type scanText struct{}

func (scanText) Scan(src []byte, dst any) error {
	if src == nil {
		return errNull
	}
	var u id.UUID
	if err := u.UnmarshalText(src); err != nil {
		return err
	}
	dst.(writes).SetBytes16(u)
	return nil
}

// uuidArrayCodec is the driver's array codec, except that slices of typed ids are encoded
// without an allocation per element: the writer sends hundreds per flush.
type uuidArrayCodec struct{ *pgtype.ArrayCodec }

var (
	readsType = reflect.TypeFor[reads]()
	uuidType  = reflect.TypeFor[id.UUID]()
)

func (c uuidArrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if t := reflect.TypeOf(value); format == pgtype.BinaryFormatCode && t != nil && t.Kind() == reflect.Slice {
		switch elem := t.Elem(); {
		case elem == uuidType:
			return encodeSlice{}
		case elem.Kind() == reflect.Struct && elem.NumField() == 1 && elem.Field(0).Type == uuidType && elem.Implements(readsType):
			return encodeSlice{wrapped: true}
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// encodeSlice writes the wire format of a one-dimensional array without NULLs.
type encodeSlice struct{ wrapped bool }

func (e encodeSlice) Encode(value any, buf []byte) ([]byte, error) {
	v := reflect.ValueOf(value)
	n := v.Len()
	if n == 0 {
		buf = binary.BigEndian.AppendUint32(buf, 0) // dimensions
		buf = binary.BigEndian.AppendUint32(buf, 0) // has NULLs
		return binary.BigEndian.AppendUint32(buf, pgtype.UUIDOID), nil
	}
	buf = binary.BigEndian.AppendUint32(buf, 1)
	buf = binary.BigEndian.AppendUint32(buf, 0)
	buf = binary.BigEndian.AppendUint32(buf, pgtype.UUIDOID)
	buf = binary.BigEndian.AppendUint32(buf, uint32(n))
	buf = binary.BigEndian.AppendUint32(buf, 1) // index of the first element
	for i := range n {
		elem := v.Index(i)
		if e.wrapped {
			elem = elem.Field(0)
		}
		buf = binary.BigEndian.AppendUint32(buf, 16)
		buf = append(buf, elem.Bytes()...)
	}
	return buf, nil
}
