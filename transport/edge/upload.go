package edge

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"time"
	"unicode/utf8"

	"agentsvc/schemas/problem"
)

// Upload hands a handler the files of a request one by one, as they arrive. The handler must
// call Next until io.EOF before it commits: only then is the request complete.
type Upload struct {
	rq    *request
	parts *multipart.Reader
	body  *counted
	sum   hash.Hash
	count int
	open  *File
	bad   error
	done  bool
}

// File is one file of an upload. Reading ends with io.EOF, or with the problem for the
// client.
type File struct {
	Name      string
	MediaType string

	up   *Upload
	part *multipart.Part
	size int64
}

func newUpload(rq *request) (*Upload, error) {
	mediaType, params, err := mime.ParseMediaType(string(rq.head.contentType))
	if err != nil || mediaType != "multipart/form-data" || params["boundary"] == "" || len(params["boundary"]) > 70 {
		return nil, problem.New(problem.CodeUnsupportedMediaType, "The body must be multipart/form-data with a boundary.")
	}
	if rq.length() > rq.ep.MaxBody {
		return nil, rq.tooLarge(rq.ep.MaxBody)
	}
	stream := rq.stream()
	if stream == nil {
		stream = bytes.NewReader(nil)
	}
	up := &Upload{rq: rq, sum: sha256.New(), body: &counted{rq: rq, r: stream, left: rq.ep.MaxBody, head: -1}}
	up.parts = multipart.NewReader(up.body, params["boundary"])
	fmt.Fprintf(up.sum, "%s\n", rq.query)
	return up, nil
}

// Next returns the next file, io.EOF after the last one. The caller was then authenticated
// again.
func (u *Upload) Next() (*File, error) {
	if u.bad != nil {
		return nil, u.bad
	}
	if u.done {
		return nil, io.EOF
	}
	if u.open != nil {
		if _, err := io.Copy(io.Discard, u.open); err != nil {
			return nil, err
		}
	}
	u.body.head = maxPartHead
	part, err := u.parts.NextRawPart()
	u.body.head = -1
	if errors.Is(err, io.EOF) {
		if u.count == 0 {
			return nil, u.fail(problem.Invalid("file", "is required"))
		}
		if err := u.rq.arrived(); err != nil {
			return nil, u.fail(err)
		}
		u.done = true
		if u.rq.caller.Idem != nil {
			var hash [sha256.Size]byte
			u.sum.Sum(hash[:0])
			u.rq.caller.Idem.describe(hash)
		}
		return nil, io.EOF
	}
	if err != nil {
		return nil, u.fail(u.read(err))
	}
	if part.FormName() != "file" {
		return nil, u.fail(problem.Invalid(problem.ClipBytes(part.FormName(), 64), "unexpected field"))
	}
	if u.count++; u.count > u.rq.ep.MaxFiles {
		return nil, u.fail(problem.Invalid("file", fmt.Sprintf("expected at most %d files", u.rq.ep.MaxFiles)))
	}
	f := &File{Name: part.FileName(), MediaType: part.Header.Get("Content-Type"), up: u, part: part}
	if f.Name == "" || utf8.RuneCountInString(f.Name) > 255 || !clean(f.Name) {
		return nil, u.fail(problem.Invalid("file", "needs a file name of 1 to 255 characters"))
	}
	if mediaType, _, err := mime.ParseMediaType(f.MediaType); err != nil || len(mediaType) > maxMediaType {
		f.MediaType = "application/octet-stream"
	} else {
		f.MediaType = mediaType
	}
	fmt.Fprintf(u.sum, "%q %q\n", f.Name, f.MediaType)
	u.open = f
	return f, nil
}

// Read reads from the file. Past the size limit of one file it returns the problem.
func (f *File) Read(b []byte) (int, error) {
	u := f.up
	if u.bad != nil {
		return 0, u.bad
	}
	if u.open != f {
		return 0, io.EOF
	}
	n, err := f.part.Read(b)
	f.size += int64(n)
	if f.size > u.rq.ep.MaxFile {
		return 0, u.fail(u.rq.tooLarge(u.rq.ep.MaxFile))
	}
	u.sum.Write(b[:n])
	if err == io.EOF {
		u.open = nil
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(f.size))
		u.sum.Write(size[:])
		return n, io.EOF
	}
	if err != nil {
		return n, u.fail(u.read(err))
	}
	return n, nil
}

func (u *Upload) fail(err error) error {
	if u.bad == nil {
		u.bad = err
	}
	return u.bad
}

// read returns the problem for a failed read of the body.
func (u *Upload) read(err error) *problem.Error {
	var p *problem.Error
	if errors.As(err, &p) {
		return p
	}
	if p := readProblem(err); p.Code != problem.CodeBadRequest {
		return p
	}
	return problem.Invalid("body", "is no complete multipart body")
}

// drain reads the rest of the body, to complete the fingerprint.
func (u *Upload) drain() ([sha256.Size]byte, error) {
	for !u.done {
		if _, err := u.Next(); err != nil && err != io.EOF {
			return [sha256.Size]byte{}, err
		}
	}
	var sum [sha256.Size]byte
	u.sum.Sum(sum[:0])
	return sum, nil
}

// counted fails a body that exceeds its limit, and extends the deadline of a client that is
// still sending.
type counted struct {
	rq   *request
	r    io.Reader
	left int64
	head int64 // what may be read before the content of a part; negative: its content is read
}

// maxMediaType bounds the media type of a file, which each message that names the file repeats: RFC 6838 allows
// 127 bytes on either side of the slash.
const maxMediaType = 255

// maxPartHead bounds the headers of a part, which are kept in memory, and what stands before the first
// part. The package mime/multipart allows 10 MiB.
const maxPartHead = 64 << 10

func (c *counted) Read(b []byte) (int, error) {
	if c.head == 0 {
		return 0, problem.Invalid("file", "the headers of a part are larger than 64 KiB")
	}
	if c.head > 0 {
		b = b[:min(int64(len(b)), c.head)]
	}
	_ = c.rq.fc.Conn().SetReadDeadline(time.Now().Add(c.rq.srv.cfg.ReadTimeout))
	n, err := c.r.Read(b)
	if c.head > 0 {
		c.head -= int64(n)
	}
	if c.left -= int64(n); c.left < 0 {
		return 0, c.rq.tooLarge(c.rq.ep.MaxBody)
	}
	if err == io.EOF {
		c.rq.drained = true
	}
	return n, err
}
