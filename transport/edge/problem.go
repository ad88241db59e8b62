package edge

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/valyala/fasthttp"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
)

const problemType = "application/problem+json"

// problemOf is the one place where an error becomes a problem for the client. It also returns
// the cause to log, nil when the problem already tells everything.
func (s *Server) problemOf(err error) (*problem.Error, error) {
	var p *problem.Error
	if errors.As(err, &p) {
		if p.Code == problem.CodeInternal {
			return problem.New(problem.CodeInternal, ""), err
		}
		return p, nil
	}
	if s.cfg.Classify != nil {
		if p := s.cfg.Classify(err); p != nil {
			return p, err
		}
	}
	return problem.New(problem.CodeInternal, ""), err
}

// fail writes err as the response.
func (s *Server) fail(rq *request, err error) {
	p, cause := s.problemOf(err)
	rq.cause = cause
	rq.denied = p.Code == problem.CodeEmbedOriginDenied || p.Code == problem.CodeEmbedOriginMismatch
	writeProblem(rq.fc, p)
}

func writeProblem(fc *fasthttp.RequestCtx, p *problem.Error) {
	body, err := json.Marshal(p)
	if err != nil { // extensions that cannot be encoded are a programmer's error
		p = problem.New(problem.CodeInternal, "")
		body, _ = json.Marshal(p)
	}
	h := &fc.Response.Header
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfterSeconds()))
	}
	if p.Code == problem.CodeUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	fc.Response.SetStatusCode(p.Status())
	h.SetContentType(problemType)
	fc.Response.SetBodyRaw(body)
}

// refuse answers a request that fasthttp could not read. The connection is closed afterwards.
func (s *Server) refuse(fc *fasthttp.RequestCtx, err error) {
	p := readProblem(err)
	fc.Response.Reset()
	writeProblem(fc, p)
	s.secure(fc, s.newRequestID())
	s.metrics.refused(p.Status())
	if c, ok := fc.Conn().(*conn); ok {
		c.linger = true
	}
}

// readProblem returns the problem for a failed read of a request.
func readProblem(err error) *problem.Error {
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.As(err, &small):
		return problem.New(problem.CodeHeadersTooLarge, "")
	case errors.As(err, &timeout) && timeout.Timeout():
		return problem.New(problem.CodeRequestTimeout, "")
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return problem.New(problem.CodePayloadTooLarge, "")
	}
	return badRequest("The request is not well-formed HTTP.")
}

// canned returns a complete response for a connection that is refused, with the limit that
// refuses it, if there is one.
func canned(p *problem.Error, q *quota.Quota) []byte {
	body, _ := json.Marshal(p)
	head := "HTTP/1.1 " + strconv.Itoa(p.Status()) + " " + http.StatusText(p.Status()) + "\r\n" +
		"Content-Type: " + problemType + "\r\n" +
		"Content-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
	if p.RetryAfter > 0 {
		head += "Retry-After: " + strconv.Itoa(p.RetryAfterSeconds()) + "\r\n"
	}
	if q != nil {
		for i, n := range rateValues(*q) {
			head += rateNames[i] + ": " + strconv.FormatInt(n, 10) + "\r\n"
		}
	}
	return append([]byte(head+"\r\n"), body...)
}
