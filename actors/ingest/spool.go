package ingest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"agentsvc/schemas/document"
)

// mostSpooled bounds the chunks of a document in a spool, in bytes.
const mostSpooled = 256 << 20

// spool keeps the chunks of a document in a file without a name. A document that gets vectors is read to
// its end before its provider is asked: a slow provider holds no parser, and a file that cannot be read costs
// no vectors.
type spool struct {
	file  *os.File
	w     *bufio.Writer
	out   *json.Encoder
	count int
	bytes int
	most  int // mostSpooled
}

// newSpool makes the directory if it is not there. An empty one is the system's for temporary files, which a
// container may not have.
func newSpool(dir string) (*spool, error) {
	var file *os.File
	var err error
	if dir != "" {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		file, err = os.CreateTemp(dir, "document-*")
	}
	if err != nil {
		return nil, fmt.Errorf("keep the chunks of a document: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("keep the chunks of a document: %w", err)
	}
	s := &spool{file: file, w: bufio.NewWriterSize(file, 64<<10), most: mostSpooled}
	s.out = json.NewEncoder(s.w)
	s.out.SetEscapeHTML(false)
	return s, nil
}

// add keeps a chunk. A document of too many is a fault.
func (s *spool) add(c document.Chunk) error {
	s.count, s.bytes = s.count+1, s.bytes+len(c.Text)+len(c.Heading)
	if s.count > mostChunks || s.bytes > s.most {
		return errTooMuch
	}
	if err := s.out.Encode(&c); err != nil {
		return fmt.Errorf("keep the chunks of a document: %w", err)
	}
	return nil
}

// each calls do for the chunks, in their order. An error of do is returned as it is.
func (s *spool) each(do func(document.Chunk) error) error {
	err := s.w.Flush()
	if err == nil {
		_, err = s.file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("read the chunks of a document again: %w", err)
	}
	in := json.NewDecoder(bufio.NewReaderSize(s.file, 64<<10))
	for range s.count {
		var c document.Chunk
		if err := in.Decode(&c); err != nil {
			return fmt.Errorf("read the chunks of a document again: %w", err)
		}
		if err := do(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *spool) close() { s.file.Close() }
