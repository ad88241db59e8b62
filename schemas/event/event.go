// Package event holds the frames of the run event streams (service.md, Events):
// their types, their positions and their bytes on the wire.
//
// A frame is a committed fact of its run or live text of an unfinished step. A
// position orders all frames of a run and never changes: live, replayed and
// after a restart it is the same. A frame is encoded once and shared by all of
// its readers.
package event

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"agentsvc/schemas/jsontext"
)

// Type is the type of a frame.
type Type string

// Types of the platform stream (service.md, Run event stream).
const (
	RunStarted       Type = "run.started"
	StepStarted      Type = "step.started"
	LLMDelta         Type = "llm.delta"
	LLMThinking      Type = "llm.thinking"
	ToolCalled       Type = "tool.called"
	ToolResult       Type = "tool.result"
	RetrievalResult  Type = "retrieval.result"
	ApprovalRequired Type = "approval.required"
	RunWaiting       Type = "run.waiting"
	RunResumed       Type = "run.resumed"
	RunCompleted     Type = "run.completed"
	RunFailed        Type = "run.failed"
	NodeStarted      Type = "node.started"
	NodeCompleted    Type = "node.completed"
	Handoff          Type = "handoff"
	Heartbeat        Type = "heartbeat"
)

// Types lists every type of the platform stream, in the specification's order.
var Types = []Type{RunStarted, StepStarted, LLMDelta, LLMThinking, ToolCalled, ToolResult, RetrievalResult, ApprovalRequired,
	RunWaiting, RunResumed, RunCompleted, RunFailed, NodeStarted, NodeCompleted, Handoff, Heartbeat}

// Terminal reports whether a stream ends after a frame of this type.
func (t Type) Terminal() bool { return t == RunCompleted || t == RunFailed }

// Pos is the position of a frame in its run: the number of the fact and, for
// live text, the count of UTF-8 bytes of the step's thinking and text up to and
// including the frame. The zero Pos is before every frame.
type Pos struct{ Seq, Offset int64 }

// Before reports whether p comes before q.
func (p Pos) Before(q Pos) bool {
	return p.Seq < q.Seq || p.Seq == q.Seq && p.Offset < q.Offset
}

// String returns the SSE id: "<seq>" or "<seq>.<offset>".
func (p Pos) String() string { return string(p.append(nil)) }

func (p Pos) append(b []byte) []byte {
	b = strconv.AppendInt(b, p.Seq, 10)
	if p.Offset > 0 {
		b = append(b, '.')
		b = strconv.AppendInt(b, p.Offset, 10)
	}
	return b
}

// ParsePos parses an SSE id. ok is false for ids that no frame can have: an unusable
// Last-Event-ID counts as none (open-parts.md, Questions settled).
func ParsePos(s string) (p Pos, ok bool) {
	seq, off, cut := strings.Cut(s, ".")
	if p.Seq, ok = decimal(seq); !ok || p.Seq < 1 {
		return Pos{}, false
	}
	if cut {
		if p.Offset, ok = decimal(off); !ok || p.Offset < 1 {
			return Pos{}, false
		}
	}
	return p, true
}

func decimal(s string) (int64, bool) {
	if s == "" || len(s) > 18 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	var n int64
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// Frame is one event of one run. It is immutable once made.
type Frame struct {
	Type Type
	Pos  Pos    // zero for heartbeats, which have no id
	Idx  int    // the step, for llm.delta and llm.thinking
	Text string // the text, for llm.delta and llm.thinking
	wire []byte

	allowed bool                  // if it is an llm.delta, the embed relay may show it
	relayed bool                  // it is a frame of the relay
	relay   atomic.Pointer[Frame] // the relay's version of it, once requested
}

// New encodes a frame whose data are the fields of v, a struct or map; the type is inserted
// before them.
func New(t Type, pos Pos, v any) (*Frame, error) {
	data, err := encode(v)
	if err != nil {
		return nil, err
	}
	f := &Frame{Type: t, Pos: pos}
	b := f.head(make([]byte, 0, len(data)+2*len(t)+48))
	if len(data) > 2 {
		b = append(b, ',')
		b = append(b, data[1:]...)
	} else {
		b = append(b, '}')
	}
	f.wire = append(b, '\n', '\n')
	return f, nil
}

// encode is json.Marshal without escapes for HTML: a frame is as large as what it holds. Like
// appendString it escapes U+2028 and U+2029, in documents too.
func encode(v any) ([]byte, error) {
	data, err := jsontext.Marshal(v)
	if err != nil {
		return nil, err
	}
	for raw, escaped := range map[string]string{"\u2028": `\u2028`, "\u2029": `\u2029`} {
		if bytes.Contains(data, []byte(raw)) {
			data = bytes.ReplaceAll(data, []byte(raw), []byte(escaped))
		}
	}
	return data, nil
}

// Delta encodes live text: an llm.delta or an llm.thinking whose position is the one after
// the text. The embed relay does not show it unless AllowRelay is called.
func Delta(t Type, pos Pos, idx int, text string) *Frame {
	f := &Frame{Type: t, Pos: pos, Idx: idx, Text: text}
	b := f.head(make([]byte, 0, len(text)+len(text)/8+88))
	b = append(b, `,"idx":`...)
	b = strconv.AppendInt(b, int64(idx), 10)
	b = append(b, `,"text":`...)
	b = appendString(b, text)
	f.wire = append(b, "}\n\n"...)
	return f
}

// Merged returns one frame with the text of f and then of next. ok is false unless both are
// text of one kind and step and next follows f directly.
func (f *Frame) Merged(next *Frame) (m *Frame, ok bool) {
	if f.Type != next.Type || f.Type != LLMDelta && f.Type != LLMThinking || f.Idx != next.Idx ||
		f.Pos.Seq != next.Pos.Seq || f.Pos.Offset+int64(len(next.Text)) != next.Pos.Offset {
		return nil, false
	}
	m = Delta(f.Type, next.Pos, f.Idx, f.Text+next.Text)
	m.allowed = f.allowed && next.allowed
	return m, true
}

// After returns the part of a text frame after pos: all of it, none (nil) or its tail. Other
// frames are returned whole or not at all.
func (f *Frame) After(pos Pos) *Frame {
	if !pos.Before(f.Pos) {
		return nil
	}
	text := textAfter(f.Text, f.Pos, pos)
	if len(text) == len(f.Text) {
		return f
	}
	rest := Delta(f.Type, f.Pos, f.Idx, text)
	rest.allowed = f.allowed
	return rest
}

// textAfter returns the part after pos of a text that ends at end.
func textAfter(text string, end, pos Pos) string {
	start := end.Offset - int64(len(text))
	if pos.Seq != end.Seq || pos.Offset <= start {
		if pos.Before(end) {
			return text
		}
		return ""
	}
	cut := int(min(pos.Offset-start, int64(len(text))))
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++ // no frame ended inside a character
	}
	return text[cut:]
}

// Bytes returns the frame on the wire. The bytes are shared: never change them.
func (f *Frame) Bytes() []byte { return f.wire }

// Data returns the JSON of the frame's data line.
func (f *Frame) Data() json.RawMessage {
	_, data, _ := strings.Cut(string(f.wire), "\ndata: ")
	return json.RawMessage(strings.TrimSuffix(data, "\n\n"))
}

func (f *Frame) head(b []byte) []byte {
	b = append(b, "event: "...)
	b = append(b, f.Type...)
	if f.Pos != (Pos{}) {
		b = append(b, "\nid: "...)
		b = f.Pos.append(b)
	}
	b = append(b, "\ndata: {\"type\":\""...)
	b = append(b, f.Type...)
	return append(b, '"')
}

// Beat is the heartbeat frame, the same for every stream.
var Beat = &Frame{Type: Heartbeat, wire: []byte("event: heartbeat\ndata: {\"type\":\"heartbeat\"}\n\n")}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Besides what JSON requires, it escapes U+2028 and
// U+2029, which some readers take for line ends.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, s[start:i]...), `\ufffd`...)
			} else if r == '\u2028' || r == '\u2029' {
				b = append(append(b, s[start:i]...), `\u202`...)
				b = append(b, hexDigits[r&0xf])
			} else {
				i += size
				continue
			}
			i += size
			start = i
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
