package edge

import (
	"bytes"
	"net/http"
)

// SchemeEmbedKey is the Scheme of routes that a publishable key calls.
const SchemeEmbedKey = "embed_key"

// What browsers ask for before a call from another origin (open-parts.md,
// Questions settled).
const (
	crossMethods = "GET, POST"
	crossHeaders = "Authorization, Content-Type, X-Svc-Embed-Key, Idempotency-Key, Last-Event-ID"
	crossExpose  = "Retry-After"
	crossMaxAge  = "7200" // seconds; the most that browsers keep
)

// CrossOrigin says that browsers call what lies under prefix, "/…/", from pages of
// other origins (service.md, Embed). OPTIONS of any path there is answered 204; who may
// call is decided on the call itself. An answer that refuses the caller's origin
// does not allow the page to read it; every other one does.
func (t *Table) CrossOrigin(prefix string) { t.cross = append(t.cross, prefix) }

func (t *Table) isCrossOrigin(path []byte) bool {
	for _, p := range t.cross {
		if bytes.HasPrefix(path, []byte(p)) {
			return true
		}
	}
	return false
}

// crossOrigin are the header fields of an answer to a page of another origin.
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

// preflight answers what a browser asks before a call.
func (rq *request) preflight() {
	h := &rq.fc.Response.Header
	h.Set("Access-Control-Allow-Methods", crossMethods)
	h.Set("Access-Control-Allow-Headers", crossHeaders)
	h.Set("Access-Control-Max-Age", crossMaxAge)
	rq.answer(http.StatusNoContent, "", nil)
}
