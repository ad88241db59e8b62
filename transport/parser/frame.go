package parser

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"agentsvc/schemas/document"
)

// maxFrame bounds what a child writes at a time. A chunk has at most a few hundred KiB of text.
const maxFrame = 4 << 20

// frame is what a child writes: a chunk, or how the parse ended.
type frame struct {
	Chunk *document.Chunk `json:"chunk,omitempty"`
	Fault string          `json:"fault,omitempty"`
	Error string          `json:"error,omitempty"` // ours, not the file's
	Info  *document.Info  `json:"info,omitempty"`
}

func write(w io.Writer, f *frame) error {
	body, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(body)))
	if _, err := w.Write(size[:]); err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}

func next(r *bufio.Reader) (*frame, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return nil, errors.New("a frame of a parser is too large")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	f := new(frame)
	return f, json.Unmarshal(body, f)
}
