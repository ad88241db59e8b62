package model

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxLine bounds one line and one event of a stream.
const maxLine = 1 << 20

var errLineTooLong = errors.New("a line of the stream is too long")

// sseReader splits a stream into the data of its events. It ignores event names and ids: both
// protocols repeat them in the data. Lines end in LF or CRLF.
type sseReader struct {
	br    *bufio.Reader
	data  []byte // data of the current event, reused
	long  []byte // a line longer than br's buffer, reused
	begun bool
	room  *room // of the turn
}

// next returns the data of the next event, valid until the next call. At the end of the
// stream it returns the rest, and then io.EOF.
func (r *sseReader) next() ([]byte, error) {
	r.data = r.data[:0]
	some := false
	for {
		line, err := r.line()
		if err != nil && (err != io.EOF || len(line) == 0) {
			if err == io.EOF && some {
				return r.data, nil
			}
			return nil, err
		}
		if len(line) == 0 {
			if some {
				return r.data, nil
			}
			continue
		}
		d, ok := bytes.CutPrefix(line, dataField)
		if !ok {
			if string(line) != "data" {
				continue // a comment or another field
			}
			d = nil
		}
		if len(d) > 0 && d[0] == ' ' {
			d = d[1:]
		}
		if some {
			r.data = append(r.data, '\n')
		}
		some = true
		if len(r.data)+len(d) > maxLine {
			return nil, errLineTooLong
		}
		if err := r.room.hold(len(r.data) + len(d)); err != nil {
			return nil, err
		}
		r.data = append(r.data, d...)
	}
}

var dataField, byteOrderMark = []byte("data:"), []byte("\uFEFF")

// line returns one line without its line end; the last one may come with io.EOF.
func (r *sseReader) line() ([]byte, error) {
	line, err := r.br.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		r.long = r.long[:0]
		for err == bufio.ErrBufferFull {
			if len(r.long)+len(line) > maxLine {
				return nil, errLineTooLong
			}
			if err := r.room.hold(len(r.long) + len(line)); err != nil {
				return nil, err
			}
			r.long = append(r.long, line...)
			line, err = r.br.ReadSlice('\n')
		}
		r.long = append(r.long, line...)
		line = r.long
	}
	if len(line) > maxLine+2 {
		return nil, errLineTooLong
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if !r.begun {
		r.begun = true
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	return line, err
}
