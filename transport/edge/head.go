package edge

import (
	"bytes"
	"net/netip"

	"agentsvc/schemas/problem"
)

// head holds the parts of a request's head that the edge needs, read in one pass over its raw
// bytes. The slices are valid only during the request.
type head struct {
	raw           []byte
	host          []byte
	contentType   []byte
	authorization []byte
	tenant        []byte
	cookie        []byte
	idempotency   []byte
	accept        []byte
	requestID     []byte
	forwarded     []byte
	origin        []byte
	referer       []byte
	csrf          []byte
	embedKey      []byte
	ifNoneMatch   []byte
	encodings     []byte
	traceparent   []byte // not nil and empty if given more than once
	hasIdem       bool
	hasAuth       bool
}

// tokenByte marks the bytes that a header name may hold (RFC 9110, token).
var tokenByte = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		t[c] = true
	}
	return t
}()

func badRequest(detail string) *problem.Error { return problem.New(problem.CodeBadRequest, detail) }

// read parses the head. It refuses anything that two HTTP parsers could read differently:
// fasthttp joins folded lines, and silently prefers Transfer-Encoding to Content-Length.
func (h *head) read(raw []byte) *problem.Error {
	*h = head{raw: raw}
	hosts, lengths, codings := 0, 0, 0
	for rest := raw; ; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			break // a head without any field
		}
		if end == 0 || rest[end-1] != '\r' {
			return badRequest("A header line does not end with CR LF.")
		}
		line := rest[:end-1]
		rest = rest[end+1:]
		if len(line) == 0 {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			return badRequest("A header is folded over several lines.")
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return badRequest("A header line has no name.")
		}
		name := line[:colon]
		for _, c := range name {
			if !tokenByte[c] {
				return badRequest("A header name holds a character that it must not.")
			}
		}
		value := line[colon+1:]
		if bytes.IndexByte(value, '\r') >= 0 {
			return badRequest("A header value holds a line break.")
		}
		value = trimSpace(value)
		var slot *[]byte
		switch len(name) {
		case 4:
			if fold(name, "host") {
				hosts++
				h.host = value
			}
		case 6:
			switch {
			case fold(name, "accept"):
				if h.accept != nil { // a list may be spread over several lines
					h.accept = append(append(bytes.Clone(h.accept), ','), value...)
				} else {
					h.accept = value
				}
			case fold(name, "cookie"):
				if h.cookie != nil {
					h.cookie = append(append(bytes.Clone(h.cookie), ';'), value...)
				} else {
					h.cookie = value
				}
			case fold(name, "origin"):
				slot = &h.origin
			}
		case 7:
			if fold(name, "referer") {
				slot = &h.referer
			}
		case 10:
			if fold(name, "x-svc-csrf") {
				slot = &h.csrf
			}
		case 11:
			if fold(name, "x-tenant-id") {
				slot = &h.tenant
			} else if fold(name, "traceparent") {
				if h.traceparent != nil { // W3C Trace Context: it is ignored
					value = value[:0]
				}
				h.traceparent = value
			}
		case 12:
			if fold(name, "content-type") {
				slot = &h.contentType
			} else if fold(name, "x-request-id") {
				h.requestID = value
			}
		case 13:
			if fold(name, "authorization") {
				slot = &h.authorization
				h.hasAuth = true
			} else if fold(name, "if-none-match") {
				h.ifNoneMatch = value
			}
		case 14:
			if fold(name, "content-length") {
				if lengths++; lengths > 1 {
					return badRequest("Content-Length is given more than once.")
				}
				if len(value) == 0 {
					return badRequest("Content-Length is no number.")
				}
				for _, c := range value {
					if c < '0' || c > '9' {
						return badRequest("Content-Length is no number.")
					}
				}
			}
		case 15:
			if fold(name, "idempotency-key") {
				slot = &h.idempotency
				h.hasIdem = true
			} else if fold(name, "x-forwarded-for") {
				if h.forwarded != nil {
					h.forwarded = append(append(bytes.Clone(h.forwarded), ','), value...)
				} else {
					h.forwarded = value
				}
			} else if fold(name, "accept-encoding") {
				h.encodings = value
			} else if fold(name, "x-svc-embed-key") {
				slot = &h.embedKey
			}
		case 17:
			if fold(name, "transfer-encoding") {
				if codings++; codings > 1 || !fold(value, "chunked") {
					return badRequest("Transfer-Encoding is not exactly chunked.")
				}
			}
		}
		if slot != nil {
			if *slot != nil {
				return badRequest(string(name) + " is given more than once.")
			}
			*slot = value
		}
	}
	switch {
	case lengths > 0 && codings > 0:
		return badRequest("Content-Length and Transfer-Encoding are both given.")
	case hosts != 1 || len(h.host) == 0:
		return badRequest("Host must be given once.")
	}
	return nil
}

// value returns the header field with that name, given in lower case; several values are
// joined as a list.
func (h *head) value(name string) (string, bool) {
	var found []byte
	ok := false
	for rest := h.raw; ; {
		end := bytes.IndexByte(rest, '\n')
		if end < 2 {
			return string(found), ok
		}
		line := rest[:end-1]
		rest = rest[end+1:]
		if colon := bytes.IndexByte(line, ':'); colon == len(name) && fold(line[:colon], name) {
			if ok {
				found = append(found, ',')
			}
			found = append(found, trimSpace(line[colon+1:])...)
			ok = true
		}
	}
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// fold reports whether b equals s, which is in lower case, in any ASCII case.
func fold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range len(s) {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

// bearer returns the token of the Authorization field.
func (h *head) bearer() []byte {
	a := h.authorization
	if len(a) < 8 || !fold(a[:6], "bearer") || a[6] != ' ' {
		return nil
	}
	return trimSpace(a[7:])
}

// cookieValue returns the value of one cookie.
func (h *head) cookieValue(name string) []byte {
	for rest := h.cookie; len(rest) > 0; {
		var pair []byte
		pair, rest, _ = bytes.Cut(rest, []byte{';'})
		k, v, ok := bytes.Cut(trimSpace(pair), []byte{'='})
		if ok && string(k) == name {
			return v
		}
	}
	return nil
}

// target splits the request target into path and query. It refuses the forms that only
// proxies use.
func target(uri []byte) (path, query []byte, err *problem.Error) {
	if len(uri) == 0 || uri[0] != '/' {
		return nil, nil, badRequest("The request target is not a path.")
	}
	for _, c := range uri {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return nil, nil, badRequest("The request target holds a character that must be escaped.")
		}
	}
	path, query, _ = bytes.Cut(uri, []byte{'?'})
	return path, query, nil
}

// clientIP returns the right-most hop that is not a trusted proxy.
func clientIP(remote netip.Addr, forwarded []byte, trusted []netip.Prefix) netip.Addr {
	ip := remote.Unmap().WithZone("")
	for len(forwarded) > 0 && within(ip, trusted) {
		var last []byte
		if i := bytes.LastIndexByte(forwarded, ','); i >= 0 {
			last, forwarded = forwarded[i+1:], forwarded[:i]
		} else {
			last, forwarded = forwarded, nil
		}
		hop, ok := parseHop(string(trimSpace(last)))
		if !ok {
			return ip
		}
		ip = hop
	}
	return ip
}

// parseHop parses an address, with or without a port.
func parseHop(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap().WithZone(""), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	return netip.Addr{}, false
}

func within(ip netip.Addr, nets []netip.Prefix) bool {
	for _, n := range nets {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}

// bucketIP returns the address to charge: for IPv6 its /64, the usual size of one client's
// network.
func bucketIP(ip netip.Addr) netip.Addr {
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}
