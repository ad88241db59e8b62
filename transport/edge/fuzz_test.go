package edge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// security.md, Invariant 20: every error is problem+json, no input makes a 5xx.
// 505 is the one that the specification asks for.
func FuzzRawRequest(f *testing.F) {
	const auth = "Authorization: Bearer member\r\nX-Tenant-Id: TENANT\r\n"
	for _, seed := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/threads?limit=1&cursor=x HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
		"POST /v1/threads HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}",
		"POST /v1/threads HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /v1/attachments HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 86\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nhello\r\n--b--\r\n",
		"POST /hooks/%41 HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"GET /v1/files/a HTTP/1.0\r\nHost: x\r\n" + auth + "\r\n",
		"GET /v1/runs/0198c0de-0000-7000-8000-000000000000/events HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n" + auth + "\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /hooks/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na",
	} {
		f.Add([]byte(seed))
	}
	w := newWorld(f, func(c *Config) { c.ReadTimeout = 100 * time.Millisecond; c.IdleTimeout = 50 * time.Millisecond })
	f.Fuzz(func(t *testing.T, in []byte) {
		in = bytes.ReplaceAll(in, []byte("TENANT"), []byte(w.tenant.String()))
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for len(w.subs) > 0 {
			<-w.subs
		}
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		_, _ = c.Write(in)
		_ = c.(*net.TCPConn).CloseWrite()
		r := bufio.NewReader(c)
		method, _, _ := strings.Cut(string(in), " ")
		for {
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				return // what is left is no answer: the connection was closed
			}
			if resp.StatusCode == 100 {
				continue
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode >= 500 && resp.StatusCode != 505 {
				t.Fatalf("%q made %d %s", in, resp.StatusCode, body)
			}
			if resp.StatusCode >= 400 && method != "HEAD" {
				var p struct{ Code string }
				if resp.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(body, &p) != nil || p.Code == "" {
					t.Fatalf("%q made no problem: %d %v %s", in, resp.StatusCode, resp.Header, body)
				}
			}
			method = "" // only the first is known
		}
	})
}

// Input that check accepts, encoding/json accepts too, with the same texts and numbers and without
// a name that is given twice; input that it refuses is a VALIDATION with a detail.
func FuzzStrictJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e3,"x\u00e9\ud83d\ude00",true,false,null,{}]}`, `{"a":1,"a":2}`, `"\u0000"`, `"\ud800"`, `[[[[]]]]`, `01`, `1e`, "{\"\xff\":1}", ` {} `, `1e999`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bad := new(registry).check(nil, b); bad != nil {
			if bad.Code != "VALIDATION" || !strings.Contains(bad.Detail, ": ") || !utf8.ValidString(bad.Detail) {
				t.Fatalf("%q: %v", b, bad)
			}
			return
		}
		if !json.Valid(b) {
			t.Fatalf("%q was taken", b)
		}
		var walk func(d *json.Decoder)
		walk = func(d *json.Decoder) {
			start := d.InputOffset()
			token, err := d.Token()
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			p := parser{b: bytes.TrimLeft(b[start:], " \t\r\n,:")}
			switch token := token.(type) {
			case string:
				if got := p.text(); got != token {
					t.Fatalf("%q reads as %q, not %q", b, got, token)
				}
			case float64:
				if got := p.number(); got != token {
					t.Fatalf("%q reads as %v, not %v", b, got, token)
				}
			case json.Delim:
				names := map[any]bool{}
				for d.More() {
					if token == '{' {
						name, err := d.Token()
						if err != nil || names[name] {
							t.Fatalf("%q: %v %v", b, err, name)
						}
						names[name] = true
					}
					walk(d)
				}
				_, _ = d.Token() // the end
			}
		}
		walk(json.NewDecoder(bytes.NewReader(b)))
	})
}

// Parsing the head of any input is consistent and never panics.
func FuzzHead(f *testing.F) {
	f.Add([]byte("Host: x\r\nContent-Length: 1\r\n\r\n"))
	f.Add([]byte("Host: x\r\nCookie: a=b; svc_session=c\r\nAccept: a\r\nAccept: b\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h head
		if h.read(b) != nil {
			return
		}
		if v, ok := h.value("host"); !ok || v != string(h.host) {
			t.Fatalf("%q: host %q and %q", b, v, h.host)
		}
		h.bearer()
		h.cookieValue("svc_session")
		acceptsStream(h.accept)
		jsonType(h.contentType)
	})
}
