package sse

import (
	"strings"
	"sync"

	"agentsvc/schemas/event"
)

const chunkSize = 16 << 10

var (
	outboxes = sync.Pool{New: func() any { return new(outbox) }}
	chunks   = sync.Pool{New: func() any { return new([chunkSize]byte) }}
)

// outbox holds what a full socket did not take: the rest of the current write and the frames
// after it. Frames are shared, not copied.
type outbox struct {
	tail   []byte
	chunk  *[chunkSize]byte // pooled; tail points into it
	lent   bool             // a write outside the stream's lock is reading the chunk
	frames []*event.Frame
	size   int // bytes of tail and frames
	fresh  int // bytes of frames added since the last merge
}

// add keeps f. It returns false if the size exceeds limit even after merging live text.
// Merging waits until the fresh bytes reach a sixteenth of the limit, so that its cost stays
// proportional to what is added.
func (o *outbox) add(f *event.Frame, limit int) bool {
	first := len(o.frames) == 0
	o.frames = append(o.frames, f)
	o.size += len(f.Bytes())
	o.fresh += len(f.Bytes())
	if o.fresh > limit/4 || o.size > limit && o.fresh > limit/16 {
		o.merge()
	}
	return first || o.size <= limit
}

func (o *outbox) merge() {
	o.fresh = 0
	before, after := 0, 0
	for _, f := range o.frames {
		before += len(f.Bytes())
	}
	o.frames = merge(o.frames)
	for _, f := range o.frames {
		after += len(f.Bytes())
	}
	o.size += after - before
}

// next returns the bytes to write now, empty when nothing is left. They stay the same until
// took has covered them.
func (o *outbox) next() []byte {
	if len(o.tail) > 0 || len(o.frames) == 0 {
		return o.tail
	}
	if o.fresh > 0 {
		o.merge()
	}
	took := 1
	if len(o.frames) == 1 || len(o.frames[0].Bytes()) >= chunkSize {
		o.tail = o.frames[0].Bytes()
	} else {
		if o.chunk == nil {
			o.chunk = chunks.Get().(*[chunkSize]byte)
		}
		o.tail, took = fill(o.chunk[:0], o.frames)
	}
	left := copy(o.frames, o.frames[took:])
	clear(o.frames[left:])
	o.frames = o.frames[:left]
	return o.tail
}

// took records that n bytes of next were written.
func (o *outbox) took(n int) {
	o.tail = o.tail[n:]
	o.size -= n
}

func (o *outbox) reset() {
	if o.chunk != nil && !o.lent { // a lent chunk stays with its write: the pool would give it to another stream
		chunks.Put(o.chunk)
	}
	clear(o.frames)
	frames := o.frames[:0]
	if cap(frames) > 1024 {
		frames = nil
	}
	*o = outbox{frames: frames}
}

// fill puts as many whole frames into b as fit, at least one, which may then lie elsewhere.
func fill(b []byte, frames []*event.Frame) ([]byte, int) {
	if len(frames[0].Bytes()) > cap(b) {
		return frames[0].Bytes(), 1
	}
	n := 0
	for n < len(frames) && len(b)+len(frames[n].Bytes()) <= cap(b) {
		b = append(b, frames[n].Bytes()...)
		n++
	}
	return b, n
}

// merge joins each run of neighbouring live text into one frame, with the same result as
// merging pairs by event.Frame.Merged, but copies every text once.
func merge(frames []*event.Frame) []*event.Frame {
	kept := frames[:0]
	for i := 0; i < len(frames); {
		end := i + 1
		for end < len(frames) && follows(frames[end-1], frames[end]) {
			end++
		}
		f := frames[i]
		if end > i+1 {
			var text strings.Builder
			size := 0
			for _, g := range frames[i:end] {
				size += len(g.Text)
			}
			text.Grow(size)
			for _, g := range frames[i:end] {
				text.WriteString(g.Text)
			}
			f = event.Delta(f.Type, frames[end-1].Pos, f.Idx, text.String())
		}
		kept = append(kept, f)
		i = end
	}
	clear(frames[len(kept):])
	return kept
}

// follows reports whether two frames may be merged: live text of the same kind and step, the
// second directly after the first.
func follows(f, next *event.Frame) bool {
	return f.Type == next.Type && (f.Type == event.LLMDelta || f.Type == event.LLMThinking) &&
		f.Text != "" && next.Text != "" && f.Idx == next.Idx && f.Pos.Seq == next.Pos.Seq &&
		f.Pos.Offset+int64(len(next.Text)) == next.Pos.Offset
}
