package event

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
)

// carryVersion is the version of Carry's format.
const carryVersion = 1

// maxType is the maximum length of a type that Carried accepts.
const maxType = 64

// ErrNotCarried means that bytes are not a frame of a known version. Nodes of two versions
// may run together.
var ErrNotCarried = errors.New("event: not a frame of a known version")

// Text reports whether frames of this type are live text of a step.
func (t Type) Text() bool { return t == LLMDelta || t == LLMThinking }

// Carry appends f to b in the form in which nodes send frames to each other: version, type,
// position, and then step and text of live text, or the fields of any other frame as they are
// on the wire. Carried decodes it to an equal frame.
func (f *Frame) Carry(b []byte) []byte {
	b = append(b, carryVersion)
	b = binary.AppendUvarint(b, uint64(len(f.Type)))
	b = append(b, f.Type...)
	b = binary.AppendUvarint(b, uint64(f.Pos.Seq))
	b = binary.AppendUvarint(b, uint64(f.Pos.Offset))
	if f.Type.Text() {
		b = binary.AppendUvarint(b, uint64(f.Idx))
		return append(b, f.Text...)
	}
	// The frame's head follows from type and position.
	_, data, _ := bytes.Cut(f.wire, []byte("\ndata: "))
	fields := data[len(`{"type":""`)+len(f.Type):]
	return append(b, bytes.TrimSuffix(fields, []byte("\n\n"))...)
}

// Carried decodes the output of Carry; the frame shares no memory with b. Unknown types are
// accepted. It returns ErrNotCarried for anything that could not be sent to a client as one
// event.
func Carried(b []byte) (*Frame, error) {
	r := carry{b}
	if v := r.bytes(1); v == nil || v[0] != carryVersion {
		return nil, ErrNotCarried
	}
	t := Type(r.bytes(int(r.number(maxType))))
	pos := Pos{Seq: r.number(math.MaxInt64), Offset: r.number(math.MaxInt64)}
	if t == "" || pos.Seq == 0 || !plain(t) {
		return nil, ErrNotCarried
	}
	if t.Text() {
		idx := int(r.number(math.MaxInt32))
		if len(r.rest) == 0 || pos.Offset < int64(len(r.rest)) {
			return nil, ErrNotCarried
		}
		return Delta(t, pos, idx, string(r.rest)), nil
	}
	f := &Frame{Type: t, Pos: pos}
	w := f.head(make([]byte, 0, len(r.rest)+2*len(t)+64))
	from := len(w) - len(t) - len(`{"type":""`)
	w = append(w, r.rest...)
	if bytes.ContainsAny(r.rest, "\r\n") || !json.Valid(w[from:]) {
		return nil, ErrNotCarried
	}
	f.wire = append(w, '\n', '\n')
	return f, nil
}

// plain reports whether t has the form of a type, without characters that have a meaning in
// an event stream.
func plain(t Type) bool {
	for _, c := range []byte(t) {
		if (c < 'a' || c > 'z') && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// carry decodes fields; past the end, and after a number that is too large, it returns zeros.
type carry struct{ rest []byte }

func (r *carry) bytes(n int) []byte {
	if n > len(r.rest) {
		r.rest = nil
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *carry) number(most uint64) int64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > most {
		r.rest = nil
		return 0
	}
	r.rest = r.rest[n:]
	return int64(v)
}
