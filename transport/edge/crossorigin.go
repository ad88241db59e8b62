package edge

import (
	"bytes"
	"net/http"
)

// SchemeEmbedKey is the Scheme of routes that take a publishable key.
const SchemeEmbedKey = "embed_key"

// Answers to a CORS preflight (open-parts.md, Questions settled).
const (
	crossMethods = "GET, POST"
	crossHeaders = "Authorization, Content-Type, X-Svc-Embed-Key, Idempotency-Key, Last-Event-ID"
	crossExpose  = "Retry-After"
	crossMaxAge  = "7200" // seconds; browsers cap it at this value
)

// CrossOrigin declares that browsers call the paths below prefix, "/…/", from pages of other
// origins (service.md, Embed). OPTIONS of any such path is answered 204; the call itself
// decides who is allowed. Every response lets the page read it, except one that refuses the
// caller's origin.
func (t *Table) CrossOrigin(prefix string) { t.cross = append(t.cross, prefix) }

func (t *Table) isCrossOrigin(path []byte) bool {
	for _, p := range t.cross {
		if bytes.HasPrefix(path, []byte(p)) {
			return true
		}
	}
	return false
}

// crossOrigin returns the CORS header fields of a response.
func (rq *request) crossOrigin() []Header {
	if !rq.srv.cfg.Table.isCrossOrigin(rq.path) {
		return nil
	}
	vary := Header{"Vary", "Origin"}
	if len(rq.head.origin) == 0 || rq.denied {
		return []Header{vary}
	}
	return []Header{vary, {"Access-Control-Allow-Origin", string(rq.head.origin)}, {"Access-Control-Expose-Headers", crossExpose}}
}

// preflight answers a CORS preflight request.
func (rq *request) preflight() {
	h := &rq.fc.Response.Header
	h.Set("Access-Control-Allow-Methods", crossMethods)
	h.Set("Access-Control-Allow-Headers", crossHeaders)
	h.Set("Access-Control-Max-Age", crossMaxAge)
	rq.answer(http.StatusNoContent, "", nil)
}
