package edge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"

	"github.com/klauspost/compress/gzip" // its best is one percent smaller
)

// Static is a file that is served often, compressed once. Its bytes are shared and must not be
// changed.
type Static struct {
	ContentType string
	Body, Gzip  []byte // Gzip: nil where it would not be smaller
	ETag        string // quoted, derived from the content
}

// NewStatic takes ownership of body.
func NewStatic(contentType string, body []byte) *Static {
	sum := sha256.Sum256(body)
	f := &Static{ContentType: contentType, Body: body, ETag: `"` + hex.EncodeToString(sum[:16]) + `"`}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		panic(err) // the level exists
	}
	w.Write(body) // to memory: it cannot fail
	w.Close()
	if out.Len() < len(body) {
		f.Gzip = out.Bytes()
	}
	return f
}

// Answer sends the file with these headers, or 304 to a client that has it.
func (f *Static) Answer(in *Raw, headers ...Header) *RawAnswer {
	headers = append(slices.Clip(headers), Header{"ETag", f.ETag}, Header{"Vary", "Accept-Encoding"})
	switch {
	case matches(in.Header("If-None-Match"), f.ETag):
		return &RawAnswer{Status: http.StatusNotModified, Headers: headers}
	case f.Gzip != nil && in.acceptsGzip():
		return &RawAnswer{ContentType: f.ContentType, Body: f.Gzip, Headers: append(headers, Header{"Content-Encoding", "gzip"})}
	}
	return &RawAnswer{ContentType: f.ContentType, Body: f.Body, Headers: headers}
}
