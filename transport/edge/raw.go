package edge

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Raw is a request as it arrived. Header and Param may be called until the handler returns;
// the handler may keep the fields.
type Raw struct {
	Method, Path, Query string
	Body                []byte

	rq *request
}

// Header returns a request header field, empty when absent.
func (r *Raw) Header(name string) string {
	v, _ := r.rq.head.value(strings.ToLower(name))
	return v
}

// Param returns a decoded path parameter, empty when it cannot be decoded.
func (r *Raw) Param(name string) string {
	v, ok := unescape(r.rq.param(name), false)
	if !ok || !clean(v) {
		return ""
	}
	return v
}

// Values returns the query parameters.
func (r *Raw) Values() url.Values {
	v, _ := url.ParseQuery(r.Query)
	return v
}

// RawAnswer is a response that is sent as it is. Status 0 means the route's status.
type RawAnswer struct {
	Status      int
	ContentType string
	Body        []byte
	Headers     []Header
}

func (rq *request) raw(a *RawAnswer) {
	status := a.Status
	if status == 0 {
		status = rq.ep.Status
	}
	for _, h := range a.Headers {
		rq.fc.Response.Header.Set(h.Name, h.Value)
	}
	rq.answer(status, a.ContentType, a.Body)
}

// Download is a file to send. The edge closes Body.
type Download struct {
	Name      string
	MediaType string
	Size      int64 // negative when unknown
	Body      io.ReadCloser
	Cache     string // Cache-Control; "": no-store
	Inline    bool   // shown by the browser instead of saved: only for media types that cannot hold a script
}

func (rq *request) download(d *Download) {
	h := &rq.fc.Response.Header
	disposition := "attachment"
	if d.Inline {
		disposition = "inline"
	}
	h.Set("Content-Disposition", fmt.Sprintf("%s; filename=%q; filename*=UTF-8''%s", disposition, plainName(d.Name), url.PathEscape(d.Name)))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if d.Cache != "" {
		h.Set("Cache-Control", d.Cache)
	}
	mediaType := d.MediaType
	if mediaType == "" || strings.ContainsAny(mediaType, "\r\n") {
		mediaType = "application/octet-stream"
	}
	rq.answer(rq.ep.Status, mediaType, nil)
	size := int(d.Size)
	if d.Size < 0 {
		size = -1
	}
	rq.fc.SetBodyStream(&patient{ReadCloser: d.Body, conn: rq.fc.Conn(), each: rq.srv.cfg.WriteTimeout}, size)
}

// plainName removes from a file name what a quoted string cannot hold.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, name)
}

// patient gives each part of a long response its own write deadline, so that a large file
// over a slow line gets through and a stopped reader is cut.
type patient struct {
	io.ReadCloser
	conn net.Conn
	each time.Duration
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.conn.SetWriteDeadline(time.Now().Add(p.each))
	return p.ReadCloser.Read(b)
}

// acceptsGzip reports whether the answer may be compressed with gzip.
func (r *Raw) acceptsGzip() bool {
	for one := range strings.SplitSeq(r.Header("Accept-Encoding"), ",") {
		name, q, weighted := strings.Cut(strings.ReplaceAll(one, " ", ""), ";q=")
		if !strings.EqualFold(name, "gzip") {
			continue
		}
		weight, err := strconv.ParseFloat(q, 64)
		return !weighted || err == nil && weight > 0
	}
	return false
}

// matches reports whether an If-None-Match field contains the tag.
func matches(field, tag string) bool {
	for one := range strings.SplitSeq(field, ",") {
		if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == tag {
			return true
		}
	}
	return false
}
