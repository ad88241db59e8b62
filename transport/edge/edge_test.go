package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// security.md, Edge: what is rejected first thing. A second request rides
// behind each probe: it must never be answered.
func TestStrictHTTP(t *testing.T) {
	w, hasty := newWorld(t), newWorld(t, func(c *Config) { c.ReadTimeout = 300 * time.Millisecond })
	const chunk = "0\r\n\r\n"
	for _, tc := range []struct {
		name, request, code string
	}{
		{"Content-Length and Transfer-Encoding", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, "BAD_REQUEST"},
		{"Transfer-Encoding and Content-Length", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + chunk, "BAD_REQUEST"},
		{"two Content-Length", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "BAD_REQUEST"},
		{"two equal Content-Length", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "BAD_REQUEST"},
		{"Content-Length list", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na", "BAD_REQUEST"},
		{"Content-Length with sign", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na", "BAD_REQUEST"},
		{"negative Content-Length", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "BAD_REQUEST"},
		{"empty Content-Length", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n", "BAD_REQUEST"},
		{"huge Content-Length", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", "BAD_REQUEST"},
		{"Transfer-Encoding xchunked", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n" + chunk, "BAD_REQUEST"},
		{"Transfer-Encoding identity", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", "BAD_REQUEST"},
		{"Transfer-Encoding list", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + chunk, "BAD_REQUEST"},
		{"two Transfer-Encoding", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, "BAD_REQUEST"},
		{"Transfer-Encoding in 1.0", "POST /hooks/a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, "BAD_REQUEST"},
		{"space before colon", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\na", "BAD_REQUEST"},
		{"space in name", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo Bar: 1\r\n\r\n", "BAD_REQUEST"},
		{"no name", "GET /healthz HTTP/1.1\r\nHost: x\r\n: 1\r\n\r\n", "BAD_REQUEST"},
		{"no colon", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo\r\n\r\n", "BAD_REQUEST"},
		{"folded header", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo: a\r\n b\r\n\r\n", "BAD_REQUEST"},
		{"folded with tab", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo: a\r\n\tb\r\n\r\n", "BAD_REQUEST"},
		{"folded first header", "GET /healthz HTTP/1.1\r\n Host: x\r\n\r\n", "BAD_REQUEST"},
		{"bare LF in the head", "GET /healthz HTTP/1.1\r\nHost: x\nFoo: a\r\n\r\n", "BAD_REQUEST"},
		{"NUL in a value", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo: a\x00b\r\n\r\n", "BAD_REQUEST"},
		{"chunk extension with LF", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;\nx\r\na\r\n0\r\n\r\n", "BAD_REQUEST"},
		{"chunk size with sign", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", "BAD_REQUEST"},
		{"chunk size 0x", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", "BAD_REQUEST"},
		{"chunk too long", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", "BAD_REQUEST"},
		{"no Host", "GET /healthz HTTP/1.1\r\nFoo: a\r\n\r\n", "BAD_REQUEST"},
		{"no header at all", "GET /healthz HTTP/1.1\r\n\r\n", "BAD_REQUEST"},
		{"no Host in 1.0", "GET /healthz HTTP/1.0\r\n\r\n", "BAD_REQUEST"},
		{"empty Host", "GET /healthz HTTP/1.1\r\nHost: \r\n\r\n", "BAD_REQUEST"},
		{"two Host", "GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "BAD_REQUEST"},
		{"two Authorization", "GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", "BAD_REQUEST"},
		{"two X-Tenant-Id", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Tenant-Id: a\r\nx-tenant-id: b\r\n\r\n", "BAD_REQUEST"},
		{"absolute-form", "GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"authority-form", "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"asterisk-form", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"no slash", "GET healthz HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"fragment", "GET /healthz#a HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"raw byte in target", "GET /healthz\xff HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP_VERSION_NOT_SUPPORTED"},
		{"HTTP/2.0", "GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP_VERSION_NOT_SUPPORTED"},
		{"HTTP/1.2", "GET /healthz HTTP/1.2\r\nHost: x\r\n\r\n", "HTTP_VERSION_NOT_SUPPORTED"},
		{"HTTP/0.9", "GET /healthz\r\n\r\n", "BAD_REQUEST"},
		{"no version", "GET /healthz HTTP\r\nHost: x\r\n\r\n", "BAD_REQUEST"},
		{"garbage", "\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "BAD_REQUEST"},
		{"head too large", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", "HEADERS_TOO_LARGE"},
		{"head never ends", "GET /healthz HTTP/1.1\r\nHost: x\r\nFoo: ", "REQUEST_TIMEOUT"},
		{"body never comes", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", "REQUEST_TIMEOUT"},
		{"chunked body never comes", "POST /hooks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "REQUEST_TIMEOUT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, request := w.addr, tc.request+"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
			if tc.code == "REQUEST_TIMEOUT" {
				addr, request = hasty.addr, tc.request
			}
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			r := bufio.NewReader(c)
			a, err := exchange(c, r, request)
			if err != nil {
				t.Fatal(err)
			}
			if p := a.problem(t); p.Code != tc.code {
				t.Fatalf("got %s", a.body)
			}
			if a.header.Get("X-Request-Id") == "" || !a.close {
				t.Fatalf("header %v", a.header)
			}
			if rest, _ := io.ReadAll(r); len(rest) > 0 {
				t.Fatalf("a second answer: %q", rest)
			}
		})
	}
}

func TestHeadOfAnswers(t *testing.T) {
	w := newWorld(t)
	a := w.call("GET", "/healthz", "", "X-Request-Id: my.req-1")
	if a.status != 200 || a.body != `{"status":"ok"}` || a.header.Get("X-Request-Id") != "my.req-1" ||
		a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cache-Control") != "no-store" || a.header.Get("Server") != "" {
		t.Fatalf("%d %v %s", a.status, a.header, a.body)
	}
	if got := w.call("GET", "/healthz", "", "X-Request-Id: a b").header.Get("X-Request-Id"); got == "a b" || got == "" {
		t.Fatalf("request id %q", got)
	}
	if a := w.call("HEAD", "/v1/threads", ""); a.status != 200 || a.body != "" {
		t.Fatalf("HEAD: %d %q", a.status, a.body)
	}
	if a := w.call("OPTIONS", "/v1/threads", ""); a.status != 204 || a.header.Get("Allow") != "GET, HEAD, POST, OPTIONS" {
		t.Fatalf("OPTIONS: %d %v", a.status, a.header)
	}
	if a := w.call("OPTIONS", "*", ""); a.status != 204 {
		t.Fatalf("OPTIONS *: %d", a.status)
	}
	if a := w.call("GET", "/v1/threads/"+w.thread.String(), ""); a.header.Get("Set-Cookie") != "a=b" || strings.Contains(a.body, "a=b") {
		t.Fatalf("%v %s", a.header, a.body)
	}
}

// open-parts.md, Questions settled: routes, methods, ids.
func TestRouting(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		name, method, path, code string
		status                   int
	}{
		{"unknown route", "GET", "/v1/nope", "NOT_FOUND", 404},
		{"root", "GET", "/", "NOT_FOUND", 404},
		{"trailing slash", "GET", "/v1/threads/", "NOT_FOUND", 404},
		{"double slash", "GET", "/v1//threads", "NOT_FOUND", 404},
		{"dots are no way up", "GET", "/v1/x/../threads", "NOT_FOUND", 404},
		{"other case", "GET", "/V1/threads", "NOT_FOUND", 404},
		{"other method", "PUT", "/v1/threads", "METHOD_NOT_ALLOWED", 405},
		{"unknown method", "BREW", "/v1/threads", "METHOD_NOT_ALLOWED", 405},
		{"unknown method, unknown route", "BREW", "/v1/nope", "NOT_FOUND", 404},
		{"id that is no UUID", "GET", "/v1/threads/zz", "NOT_FOUND", 404},
		{"id with NUL", "GET", "/v1/threads/%00", "NOT_FOUND", 404},
		{"id with a broken escape", "GET", "/v1/threads/%zz", "NOT_FOUND", 404},
		{"UUID without dashes", "GET", "/v1/threads/0198c0de000070008000000000000000", "NOT_FOUND", 404},
		{"unknown id", "GET", "/v1/threads/0198c0de-0000-7000-8000-000000000000", "NOT_FOUND", 404},
		{"escaped slash is no slash", "GET", "/v1%2fthreads", "NOT_FOUND", 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := w.call(tc.method, tc.path, "")
			if p := a.problem(t); a.status != tc.status || p.Code != tc.code {
				t.Fatalf("got %d %s", a.status, a.body)
			}
			if tc.status == 405 && a.header.Get("Allow") != "GET, HEAD, POST" {
				t.Fatalf("Allow %q", a.header.Get("Allow"))
			}
		})
	}
	if a := w.call("GET", "/v1/threads/"+strings.ToUpper(w.thread.String()), ""); a.status != 200 {
		t.Fatalf("upper-case id: %d", a.status)
	}
}

// service.md, Authentication and Errors.
func TestAuthentication(t *testing.T) {
	w := newWorld(t)
	tenant := "X-Tenant-Id: " + w.tenant.String()
	for _, tc := range []struct {
		name, method, path string
		headers            []string
		status             int
		code               string
	}{
		{"a key and its tenant", "GET", "/v1/threads", []string{"Authorization: Bearer member", tenant}, 200, ""},
		{"lower-case scheme", "GET", "/v1/threads", []string{"Authorization: bearer member", tenant}, 200, ""},
		{"no credentials", "GET", "/v1/threads", []string{"Authorization: -", "X-Tenant-Id: -"}, 401, "UNAUTHORIZED"},
		{"tenant without key", "GET", "/v1/threads", []string{"Authorization: -", tenant}, 401, "UNAUTHORIZED"},
		{"key without X-Tenant-Id", "GET", "/v1/threads", []string{"Authorization: Bearer member", "X-Tenant-Id: -"}, 400, "TENANT_REQUIRED"},
		{"unknown key without X-Tenant-Id", "GET", "/v1/threads", []string{"Authorization: Bearer x", "X-Tenant-Id: -"}, 400, "TENANT_REQUIRED"},
		{"unknown key", "GET", "/v1/threads", []string{"Authorization: Bearer x", tenant}, 401, "UNAUTHORIZED"},
		{"another tenant's id", "GET", "/v1/threads", []string{"Authorization: Bearer member", "X-Tenant-Id: " + w.other.String()}, 401, "UNAUTHORIZED"},
		{"a tenant that is no UUID", "GET", "/v1/threads", []string{"Authorization: Bearer member", "X-Tenant-Id: x"}, 401, "UNAUTHORIZED"},
		{"other scheme", "GET", "/v1/threads", []string{"Authorization: Basic bWVtYmVy", tenant}, 401, "UNAUTHORIZED"},
		{"session cookie", "GET", "/v1/threads", []string{"Authorization: -", "X-Tenant-Id: -", "Cookie: a=b; svc_session=member"}, 200, ""},
		{"unknown cookie", "GET", "/v1/threads", []string{"Authorization: -", "X-Tenant-Id: -", "Cookie: svc_session=x"}, 401, "UNAUTHORIZED"},
		{"member on an admin route", "DELETE", "/v1/threads/" + w.thread.String(), nil, 403, "FORBIDDEN"},
		{"admin on an admin route", "DELETE", "/v1/threads/" + w.thread.String(), []string{"Authorization: Bearer admin"}, 204, ""},
		{"admin on an owner route", "PATCH", "/v1/tenant", []string{"Authorization: Bearer admin"}, 403, "FORBIDDEN"},
		{"owner on an owner route", "PATCH", "/v1/tenant", []string{"Authorization: Bearer owner"}, 204, ""},
		{"the role comes before the body", "PATCH", "/v1/tenant", []string{"Authorization: Bearer admin", "Content-Type: text/plain"}, 403, "FORBIDDEN"},
		{"openapi.json needs no key", "GET", "/v1/openapi.json", []string{"Authorization: -", "X-Tenant-Id: -"}, 200, ""},
		{"unknown route without key", "GET", "/v1/nope", []string{"Authorization: -", "X-Tenant-Id: -"}, 404, "NOT_FOUND"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := w.call(tc.method, tc.path, "", tc.headers...)
			if a.status != tc.status {
				t.Fatalf("got %d %s", a.status, a.body)
			}
			if tc.code != "" && a.problem(t).Code != tc.code {
				t.Fatalf("got %s", a.body)
			}
			if tc.status == 401 && a.header.Get("WWW-Authenticate") == "" {
				t.Fatal("no WWW-Authenticate")
			}
		})
	}
}

// A session is checked with the tenant named besides it, if any, and with the CSRF evidence.
func TestASessionsCredentials(t *testing.T) {
	w := newWorld(t)
	for _, tenant := range []string{"", w.tenant.String(), w.other.String(), "x"} {
		header := []string{"Authorization: -", "X-Tenant-Id: -", "Cookie: svc_session=member", "X-Svc-CSRF: 1", "Origin: https://console.example"}
		if tenant != "" {
			header[1] = "X-Tenant-Id: " + tenant
		}
		w.call("GET", "/v1/threads", "", header...)
		w.auth.mu.Lock()
		got := w.auth.seen[len(w.auth.seen)-1]
		w.auth.mu.Unlock()
		if got.Cookie != "member" || got.Bearer != "" || got.Tenant != tenant || got.CSRF != "1" || got.Origin != "https://console.example" || got.Method != "GET" {
			t.Errorf("%q: %+v", tenant, got)
		}
	}
}

// open-parts.md, Rate limits: which bucket a call is charged to. A call that is accepted
// never depends on the bucket of its address.
func TestBuckets(t *testing.T) {
	const none = "Authorization: -"
	session := []string{none, "X-Tenant-Id: -", "X-Svc-CSRF: 1", "Cookie: svc_session=session-member"}
	call := func(method, path, body string, h ...string) func(*world) answer {
		return func(w *world) answer { return w.call(method, path, body, h...) }
	}
	get := func(h ...string) func(*world) answer { return call("GET", "/v1/threads", "", h...) }
	empty := func(scopes ...string) func(*world) {
		return func(w *world) {
			for _, s := range scopes {
				*map[string]*int{"ip": &w.limits.ip, "tenant": &w.limits.tenant, "user": &w.limits.user, "public": &w.limits.public}[s] = 0
			}
		}
	}
	away := func(w *world) { w.auth.away = true }
	for _, tc := range []struct {
		name    string
		state   func(*world)
		call    func(*world) answer
		status  int
		charged string
		scope   string // of a 429
	}{
		{"a valid key", empty("ip", "user", "public"), get(), 200, "tenant 1", ""},
		{"a session", empty("ip", "tenant", "public"), get(session...), 200, "user 1", ""},
		{"a wrong key", nil, get("Authorization: Bearer x"), 401, "ip 1", ""},
		{"a wrong key with the form of a key", nil, get("Authorization: Bearer svc_x"), 401, "ip 1", ""},
		{"another tenant's key", nil, get("X-Tenant-Id: 0198c0de-0000-7000-8000-000000000000"), 401, "ip 1", ""},
		{"a wrong session", nil, get(none, "Cookie: svc_session=x"), 401, "ip 1", ""},
		{"a missing key", nil, get(none), 401, "ip 1", ""},
		{"a missing tenant", nil, get("X-Tenant-Id: -"), 400, "ip 1", ""},
		{"a wrong key, nothing left", empty("ip"), get("Authorization: Bearer x"), 429, "", "ip"},
		{"a missing key, nothing left", empty("ip"), get(none), 429, "", "ip"},
		{"a valid key, nothing left", empty("tenant"), get(), 429, "", "tenant"},
		{"a session, nothing left", empty("user"), get(session...), 429, "", "user"},
		{"storage is away", away, get(), 503, "", ""},
		{"health is never limited", empty("ip", "tenant", "public"), call("GET", "/healthz", ""), 200, "", ""},
		{"a public route", empty("ip", "tenant"), call("GET", "/v1/openapi.json", "", none), 200, "public 1", ""},
		{"a public route, with a key", empty("ip", "tenant"), call("POST", "/hooks/a", "{}"), 202, "public 1", ""},
		{"a public route, nothing left", empty("public"), call("GET", "/v1/openapi.json", ""), 429, "", "public"},
		{"no route, without a key", nil, call("GET", "/nope", "", none), 404, "ip 1", ""},
		{"no route, with a wrong key", nil, call("GET", "/nope", "", "Authorization: Bearer x"), 404, "ip 1", ""},
		{"no route, with a valid key", empty("ip"), call("GET", "/nope", ""), 404, "tenant 1", ""},
		{"no route, with a session", empty("ip"), call("GET", "/nope", "", session...), 404, "user 1", ""},
		{"no route, nothing left", empty("ip"), call("GET", "/nope", "", none), 429, "", "ip"},
		{"no route, nothing left of the tenant's", empty("tenant"), call("GET", "/nope", ""), 429, "", "tenant"},
		{"no route, storage is away", away, call("GET", "/nope", ""), 404, "", ""},
		{"another method, without a key", nil, call("DELETE", "/v1/threads", "", none), 405, "ip 1", ""},
		{"another method, with a valid key", empty("ip"), call("DELETE", "/v1/threads", ""), 405, "tenant 1", ""},
		{"a role that is not enough: the key was accepted", empty("ip"), call("PATCH", "/v1/tenant", "{}"), 403, "tenant 1", ""},
		{"the role comes before the bucket", empty("ip", "tenant"), call("PATCH", "/v1/tenant", "{}"), 403, "", ""},
		{"the bucket comes before the body", empty("tenant"), call("POST", "/v1/threads", "{bad"), 429, "", "tenant"},
		{"a bad body is charged", empty("ip"), call("POST", "/v1/threads", "{bad"), 400, "tenant 1", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			if tc.state != nil {
				tc.state(w)
			}
			a := tc.call(w)
			if a.status != tc.status || w.limits.counts() != tc.charged {
				t.Fatalf("got %d, charged %q: %s", a.status, w.limits.counts(), a.body)
			}
			fields := fmt.Sprint(a.header.Get("RateLimit-Limit"), " ", a.header.Get("RateLimit-Remaining"), " ", a.header.Get("RateLimit-Reset"))
			switch {
			case tc.status == 429:
				p := a.problem(t)
				if p.Code != "RATE_LIMITED" || p.RetryAfter != 2 || a.header.Get("Retry-After") != "2" || !strings.Contains(p.Detail, "scope "+tc.scope+" ") {
					t.Errorf("%v %s", a.header, a.body)
				}
				if fields != "5 0 3" {
					t.Errorf("RateLimit fields of a refused call: %s", fields)
				}
			case tc.charged != "":
				if fields != "5 -2 1" { // the stub's bucket began at -1
					t.Errorf("RateLimit fields of a charged call: %s", fields)
				}
			case tc.name != "the role comes before the bucket" && fields != "  ":
				t.Errorf("RateLimit fields of a call that was not charged: %s", fields)
			}
		})
	}
	t.Run("a stream counts once when it starts", func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t, "/v1/runs/"+w.thread.String()+"/events")
		defer c.Close()
		f := <-w.subs
		conn := <-f.conn
		conn.Send(beatFrame(1))
		if got := w.limits.counts(); got != "tenant 1" {
			t.Fatalf("charged %v", got)
		}
		if h := c.head.Header; h.Get("RateLimit-Limit") != "5" || h.Get("RateLimit-Remaining") != "-2" || h.Get("RateLimit-Reset") != "1" {
			t.Errorf("%v", h)
		}
	})
}

// The listener of the metrics alone has no buckets and no keys.
func TestAServerWithoutBuckets(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits, c.Auth = nil, nil })
	for path, status := range map[string]int{"/healthz": 200, "/nope": 404, "/v1/openapi.json": 200, "/v1/threads": 401} {
		if a := w.call("GET", path, "", "X-Tenant-Id: -", "Authorization: -"); a.status != status {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := w.call("GET", "/v1/threads", ""); a.status != 401 {
		t.Errorf("a key that nobody knows: %d %s", a.status, a.body)
	}
}

func TestClientIP(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, tc := range []struct{ name, remote, forwarded, want string }{
		{"a stranger's header is not believed", "8.8.8.8", "1.2.3.4", "8.8.8.8"},
		{"the right-most untrusted hop", "10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"},
		{"all trusted: the left-most", "10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"},
		{"no header", "10.0.0.1", "", "10.0.0.1"},
		{"garbage ends the walk", "10.0.0.1", "1.2.3.4, x, 10.0.0.2", "10.0.0.2"},
		{"with a port", "10.0.0.1", "1.2.3.4:99", "1.2.3.4"},
		{"mapped", "::ffff:10.0.0.1", "::ffff:1.2.3.4", "1.2.3.4"},
		{"IPv6 proxy", "fd00::1", "2001:db8::5", "2001:db8::5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := clientIP(netip.MustParseAddr(tc.remote), []byte(tc.forwarded), proxies); got.String() != tc.want {
				t.Fatalf("got %s", got)
			}
		})
	}
	if got := bucketIP(netip.MustParseAddr("2001:db8:1:2:3::5")).String(); got != "2001:db8:1:2::" {
		t.Fatalf("IPv6 counts by its /64: %s", got)
	}
	w := newWorld(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	w.call("GET", "/nope", "", "Authorization: -", "X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 1.2.3.4")
	if w.limits.last.String() != "1.2.3.4" {
		t.Fatalf("charged %s", w.limits.last)
	}
}

// service.md, Errors: VALIDATION names field paths.
func TestValidation(t *testing.T) {
	w := newWorld(t)
	agent := `"agent_id":"0198c0de-0000-7000-8000-000000000000"`
	deep := strings.Repeat(`[`, 70) + strings.Repeat(`]`, 70)
	for _, tc := range []struct {
		name, body, detail string
	}{
		{"malformed", `{bad`, "body: malformed JSON at byte 1"},
		{"empty", ``, "body: is required"},
		{"no object", `[]`, "body: expected object"},
		{"null", `null`, "body: expected object"},
		{"trailing data", `{` + agent + `} x`, "body: malformed JSON at byte 52"},
		{"two values", `{` + agent + `}{}`, "body: malformed JSON at byte 51"},
		{"duplicate name", `{` + agent + `,` + agent + `}`, "agent_id: is given twice"},
		{"duplicate name in free JSON", `{` + agent + `,"meta":{"a":[1,{"b":1,"b":2}]}}`, "meta.a[1].b: is given twice"},
		{"duplicate name in disguise", `{"meta":{"a":1,"\u0061":2},` + agent + `}`, "meta.a: is given twice"},
		{"invalid UTF-8", `{` + agent + `,"title":"` + "\xff" + `"}`, "body: is not valid UTF-8"},
		{"U+0000", `{` + agent + `,"title":"a\u0000b"}`, "title: holds the character U+0000"},
		{"U+0000 in a name", `{` + agent + `,"meta":{"a\u0000":1}}`, "meta: holds the character U+0000"},
		{"unpaired surrogate", `{` + agent + `,"title":"\ud800"}`, "title: holds an unpaired surrogate"},
		{"control character", `{` + agent + `,"title":"` + "\n" + `"}`, "body: malformed JSON at byte 60"},
		{"missing member", `{}`, "agent_id: is required"},
		{"missing nested member", `{` + agent + `,"nested":{}}`, "nested.name: is required"},
		{"nested rule", `{` + agent + `,"nested":{"name":""}}`, "nested.name: expected length >= 1"},
		{"unknown member", `{` + agent + `,"x":1}`, "x: unexpected property"},
		{"other case", `{` + agent + `,"Title":"a"}`, "Title: unexpected property"},
		{"too short", `{` + agent + `,"title":""}`, "title: expected length >= 1"},
		{"too long", `{` + agent + `,"title":"` + strings.Repeat("é", 201) + `"}`, "title: expected length <= 200"},
		{"wrong type", `{` + agent + `,"title":1}`, "title: expected string"},
		{"no UUID", `{"agent_id":"x"}`, "agent_id: expected a UUID"},
		{"UUID as URN", `{"agent_id":"urn:uuid:0198c0de-0000-7000-8000-000000000000"}`, "agent_id: expected length <= 36"},
		{"item of a list", `{` + agent + `,"attachment_ids":["0198c0de-0000-7000-8000-000000000000",1]}`, "attachment_ids[1]: expected string"},
		{"too many items", `{` + agent + `,"attachment_ids":[` + strings.Repeat(agent[11:]+",", 8) + agent[11:] + `]}`, "attachment_ids: expected array length <= 8"},
		{"enum", `{` + agent + `,"deliverable":"doc"}`, `deliverable: expected value to be one of "xlsx, pptx, html"`},
		{"pattern", `{` + agent + `,"slug":"-a"}`, "slug: expected string to match pattern ^[a-z0-9][a-z0-9-]{0,62}$"},
		{"maximum", `{` + agent + `,"minutes":525601}`, "minutes: expected number <= 525600"},
		{"no integer", `{` + agent + `,"count":1.5}`, "count: expected integer"},
		{"integer out of range", `{` + agent + `,"count":1e30}`, "count: expected a value that fits an integer"},
		{"number out of range", `{` + agent + `,"count":1e999}`, "count: is a number out of range"},
		{"date", `{` + agent + `,"since":"yesterday"}`, "since: expected string to be RFC 3339 date-time"},
		{"two wrong types", `{` + agent + `,"title":1,"count":"a"}`, "count: expected integer; title: expected string"},
		{"two integers out of range", `{"count":1e30,` + agent + `,"other_count":1e30}`, "count: expected a value that fits an integer; other_count: expected a value that fits an integer"},
		{"null for a text", `{` + agent + `,"title":null}`, "title: must not be null"},
		{"null for a required id", `{"agent_id":null}`, "agent_id: must not be null"},
		{"null for a number, a list, an enum and a pattern", `{` + agent + `,"minutes":null,"attachment_ids":null,"deliverable":null,"slug":null}`,
			"attachment_ids: must not be null; deliverable: must not be null; minutes: must not be null; slug: must not be null"},
		{"null for what is optional", `{` + agent + `,"since":null,"emoji":null,"tags":null,"by":null,"part":null}`,
			"by: must not be null; emoji: must not be null; part: must not be null; since: must not be null; tags: must not be null"},
		{"null in a list", `{` + agent + `,"attachment_ids":[null]}`, "attachment_ids[0]: must not be null"},
		{"null in an object", `{` + agent + `,"nested":{"name":null}}`, "nested.name: must not be null"},
		{"several", `{"title":"","x":1}`, "agent_id: is required; title: expected length >= 1; x: unexpected property"},
		{"too deep", `{` + agent + `,"meta":` + deep + `}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := w.call("POST", "/v1/threads", tc.body)
			p := a.problem(t)
			if a.status != 400 || p.Code != "VALIDATION" || tc.detail != "" && p.Detail != tc.detail {
				t.Fatalf("got %d %s", a.status, a.body)
			}
		})
	}
	for _, tc := range []struct{ name, body, want string }{
		{"free JSON is preserved", `{` + agent + `,"meta":{"b":1.50,"a":[null,"\u00e9"]}}`, `"meta":{"b":1.50,"a":[null,"\u00e9"]}`},
		{"big numbers are preserved", `{` + agent + `,"meta":123456789012345678901234567890}`, `"meta":123456789012345678901234567890`},
		{"absent", `{` + agent + `}`, `"node":""`},
		{"null", `{` + agent + `,"node_id":null}`, `"node":"null"`},
		{"value", `{` + agent + `,"node_id":"0198c0de-0000-7000-8000-000000000001"}`, `"node":"0198c0de-0000-7000-8000-000000000001"`},
		{"200 characters, not bytes", `{` + agent + `,"title":"` + strings.Repeat("é", 200) + `"}`, strings.Repeat("é", 200)},
		{"surrogate pair", `{` + agent + `,"title":"\ud83d\ude00"}`, "😀"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if a := w.call("POST", "/v1/threads", tc.body); a.status != 200 || !strings.Contains(a.body, tc.want) {
				t.Fatalf("got %d %s", a.status, a.body)
			}
		})
	}
}

// open-parts.md, Errors: null is for fields that have it, and for free JSON.
func TestNullWhereItIsAllowed(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{`"nested":null`, `"until":null`, `"node_id":null`, `"meta":null`, `"meta":{"a":null,"b":[null]}`, `"title":"null"`} {
		if a := w.call("POST", "/v1/threads", `{"agent_id":"0198c0de-0000-7000-8000-000000000000",`+body+`}`); a.status != 200 {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

// open-parts.md, Errors: a path id that is no UUID says so.
func TestAnIDThatIsNoUUID(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{
		"/v1/threads/42":                               `thread: "42" is not a valid id`,
		"/v1/threads/0198c0de":                         `thread: "0198c0de" is not a valid id`,
		"/v1/threads/%22%0A":                           `thread: "\"\n" is not a valid id`,
		"/v1/threads/" + strings.Repeat("%C3%A9", 100): `thread: "` + strings.Repeat("é", 32) + `…" is not a valid id`,
		"/v1/runs/{run}/events":                        `run: "{run}" is not a valid id`,
		"/v1/threads/%FF":                              "There is nothing at this path.",
	} {
		a := w.call("GET", path, "")
		if p := a.problem(t); a.status != 404 || p.Code != "NOT_FOUND" || p.Detail != want {
			t.Errorf("%s: %d %s, want %s", path, a.status, a.body, want)
		}
	}
	for name, want := range map[string]string{"ThreadID": "thread", "EmbedKeyID": "embed key", "EndUserID": "end user"} {
		if got := thing(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestQueryAndHeaders(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		query, detail string
	}{
		{"", ""},
		{"limit=2&status=running&deep=true&since=-1", ""},
		{"unknown=1&%zz=2", ""},
		{"agent_id=0198c0de-0000-7000-8000-000000000000", ""},
		{"cursor=" + api.Cursor("threads", 7), ""},
		{"limit=0", "limit: expected number >= 1"},
		{"limit=101", "limit: expected number <= 100"},
		{"limit=x", "limit: expected integer"},
		{"limit=1&limit=2", "limit: is given twice"},
		{"limit=%zz", "limit: is not escaped correctly"},
		{"status=nope", `status: expected value to be one of "queued, running, waiting_approval, succeeded, failed, cancelled, expired"`},
		{"status=", `status: expected value to be one of "queued, running, waiting_approval, succeeded, failed, cancelled, expired"`},
		{"agent_id=x", "agent_id: expected a UUID"},
		{"since=-2", "since: expected number >= -1"},
		{"deep=1", "deep: expected boolean"},
		{"status=%00", "status: holds characters that are no text"},
		{"cursor=zz", "cursor: is not a cursor of this list"},
		{"cursor=" + api.Cursor("runs", 7), "cursor: is not a cursor of this list"},
		{"cursor=" + api.Cursor("threads", "x"), "cursor: is not a cursor of this list"},
	} {
		t.Run(tc.query, func(t *testing.T) {
			a := w.call("GET", "/v1/threads?"+tc.query, "")
			if tc.detail == "" {
				if a.status != 200 {
					t.Fatalf("got %d %s", a.status, a.body)
				}
				return
			}
			if p := a.problem(t); a.status != 400 || p.Code != "VALIDATION" || p.Detail != tc.detail {
				t.Fatalf("got %d %s", a.status, a.body)
			}
		})
	}
	if a := w.call("GET", "/v1/threads?limit=2", ""); !strings.Contains(a.body, `"next_cursor":"`) {
		t.Fatal(a.body)
	}
	if a := w.call("GET", "/v1/threads", ""); !strings.HasSuffix(a.body, `"next_cursor":null}`) {
		t.Fatal(a.body)
	}
}

// open-parts.md, Questions settled: sizes and content types.
func TestBodies(t *testing.T) {
	w := newWorld(t)
	body := `{"agent_id":"0198c0de-0000-7000-8000-000000000000"}`
	large := `{"meta":"` + strings.Repeat("a", 3<<20) + `"}`
	for _, tc := range []struct {
		name, contentType, body string
		status                  int
	}{
		{"json", "application/json", body, 200},
		{"with charset", "application/json; charset=utf-8", body, 200},
		{"in other case", "Application/JSON;charset=UTF-8", body, 200},
		{"other charset", "application/json; charset=latin1", body, 415},
		{"text", "text/plain", body, 415},
		{"form", "application/x-www-form-urlencoded", body, 415},
		{"problem json", "application/problem+json", body, 415},
		{"over the limit", "application/json", large, 413},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if a := w.call("POST", "/v1/threads", tc.body, "Content-Type: "+tc.contentType); a.status != tc.status {
				t.Fatalf("got %d %s", a.status, a.body)
			}
		})
	}
	head := "POST /v1/threads HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer member\r\nX-Tenant-Id: " + w.tenant.String() + "\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	t.Run("chunked", func(t *testing.T) {
		a, err := w.raw(head + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body))
		if err != nil || a.status != 200 {
			t.Fatalf("%v %d %s", err, a.status, a.body)
		}
	})
	t.Run("chunked over the limit", func(t *testing.T) {
		a, err := w.raw(head + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(large), large))
		if err != nil || a.status != 413 {
			t.Fatalf("%v %d %s", err, a.status, a.body)
		}
	})
	t.Run("an optional body may be empty", func(t *testing.T) {
		if a := w.call("PATCH", "/v1/tenant", "", "Authorization: Bearer owner"); a.status != 204 || a.body != "" {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	// Routes without a body take none: unknown fields are refused, malformed JSON
	// and other types too (open-parts.md, Questions settled).
	for _, tc := range []struct {
		name, contentType, body string
		status                  int
		detail                  string
	}{
		{"nothing", "", "", 200, ""},
		{"nothing, with a type", "application/json", "", 200, ""},
		{"an empty object", "application/json", " {} ", 200, ""},
		{"an unknown field", "application/json", `{"x":1}`, 400, "x: unexpected property"},
		{"malformed JSON", "application/json", "{{", 400, "body: malformed JSON"},
		{"no object", "application/json", "[]", 400, "body: expected object"},
		{"text", "text/plain", "hello", 415, ""},
		{"over the limit", "application/json", large, 413, ""},
	} {
		t.Run("a route without a body: "+tc.name, func(t *testing.T) {
			a := w.call("POST", "/v1/poke", tc.body, "Content-Type: "+tc.contentType)
			if a.status != tc.status || tc.detail != "" && !strings.Contains(a.problem(t).Detail, tc.detail) {
				t.Fatalf("got %d %s", a.status, a.body)
			}
		})
	}
	// The unread rest of a refused request must never become the next request.
	for _, size := range []int{10, 9 << 10, 100 << 10, 1 << 20} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("unread body of %d, chunked %v", size, chunked), func(t *testing.T) {
				evil := "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: evil\r\n\r\n"
				payload := strings.Repeat("a", size) + evil
				request := fmt.Sprintf("POST /v1/threads HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(payload), payload)
				if chunked {
					request = fmt.Sprintf("POST /v1/threads HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(payload), payload)
				}
				c, err := net.Dial("tcp", w.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				r := bufio.NewReader(c)
				a, err := exchange(c, r, request)
				if err != nil || a.status != 401 {
					t.Fatalf("%v %d %s", err, a.status, a.body)
				}
				a, err = exchange(c, r, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: good\r\n\r\n")
				if err == nil && a.header.Get("X-Request-Id") != "good" {
					t.Fatalf("a smuggled request was answered: %v", a.header)
				}
				if size <= 100<<10 && err != nil {
					t.Fatalf("a small body cost the connection: %v", err)
				}
			})
		}
	}
}

// A GET route answers without the body that a client sends with it, and before it has come.
func TestAReadDoesNotWaitForABody(t *testing.T) {
	w := newWorld(t)
	for _, method := range []string{"GET", "HEAD"} {
		for _, path := range []string{"/healthz", "/v1/openapi.json", "/v1/threads"} {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			a, err := exchange(c, bufio.NewReader(c), method+" "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer member\r\nX-Tenant-Id: "+w.tenant.String()+
				"\r\nContent-Length: 2097152\r\n\r\n"+strings.Repeat("x", 16<<10))
			if err != nil || a.status != 200 || !a.close {
				t.Errorf("%s %s: %v %d %s", method, path, err, a.status, a.body)
			}
			_ = c.Close()
		}
	}
}

func TestProblems(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Slow = patience // a request that took longer is logged
		c.Classify = func(err error) *problem.Error {
			if errors.Is(err, errStorage) {
				return problem.Unavailable("Storage is not available.", 2*time.Second)
			}
			return nil
		}
	})
	for how, want := range map[string]struct {
		status int
		code   string
	}{
		"error": {500, "INTERNAL"}, "panic": {500, "INTERNAL"}, "deadline": {500, "INTERNAL"}, "storage": {503, "UNAVAILABLE"},
	} {
		a := w.call("POST", "/v1/boom/"+how, "", "X-Request-Id: req-"+how)
		if p := a.problem(t); a.status != want.status || p.Code != want.code || strings.Contains(a.body, "secret") {
			t.Fatalf("%s: %d %s", how, a.status, a.body)
		}
		if want.status == 503 && a.header.Get("Retry-After") != "2" {
			t.Fatalf("Retry-After %q", a.header.Get("Retry-After"))
		}
		if !strings.Contains(w.log.String(), `"req":"req-`+how+`"`) {
			t.Fatalf("%s is not in the log: %s", how, w.log.String())
		}
	}
	if log := w.log.String(); !strings.Contains(log, "secret detail") || !strings.Contains(log, "connection to storage refused") {
		t.Fatalf("causes are not in the log: %s", log)
	}
	lines := strings.Count(w.log.String(), "\n")
	w.call("GET", "/v1/threads", "")
	if strings.Count(w.log.String(), "\n") != lines {
		t.Fatal("a healthy request logs nothing")
	}
}

// open-parts.md, first paragraph: Idempotency-Key.
func TestIdempotency(t *testing.T) {
	const body = `{"agent_id":"0198c0de-0000-7000-8000-000000000000"}`
	post := func(w *world, body string, h ...string) answer {
		return w.call("POST", "/v1/threads", body, h...)
	}
	t.Run("a repeat answers the first answer", func(t *testing.T) {
		w := newWorld(t)
		first := post(w, body, "Idempotency-Key: k")
		again := post(w, body, "Idempotency-Key: k")
		if first.status != 200 || again.status != 200 || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
			t.Fatalf("%d %s, %d %s", first.status, first.body, again.status, again.body)
		}
		if len(w.replays.rows) != 1 {
			t.Fatalf("%d rows", len(w.replays.rows))
		}
	})
	t.Run("another body", func(t *testing.T) {
		w := newWorld(t)
		post(w, body, "Idempotency-Key: k")
		if a := post(w, body+" ", "Idempotency-Key: k"); a.status != 409 || a.problem(t).Code != "IDEMPOTENCY_CONFLICT" {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	t.Run("another principal", func(t *testing.T) {
		w := newWorld(t)
		post(w, body, "Idempotency-Key: k")
		post(w, body+" ", "Idempotency-Key: k", "Authorization: Bearer admin")
		if len(w.replays.rows) != 2 {
			t.Fatalf("%d rows", len(w.replays.rows))
		}
	})
	for _, bad := range []string{"", strings.Repeat("k", 256)} {
		t.Run(fmt.Sprintf("%d characters", len(bad)), func(t *testing.T) {
			w := newWorld(t)
			if a := post(w, body, "Idempotency-Key: "+bad); a.status != 400 || a.problem(t).Detail != "Idempotency-Key: expected 1 to 255 characters" {
				t.Fatalf("%d %s", a.status, a.body)
			}
		})
	}
	t.Run("authentication, role and bucket come before a replay", func(t *testing.T) {
		w := newWorld(t)
		post(w, body, "Idempotency-Key: k")
		if a := post(w, body, "Idempotency-Key: k", "Authorization: Bearer x"); a.status != 401 {
			t.Fatalf("%d", a.status)
		}
		w.limits.mu.Lock()
		w.limits.tenant = 0
		w.limits.mu.Unlock()
		if a := post(w, body, "Idempotency-Key: k"); a.status != 429 {
			t.Fatalf("%d", a.status)
		}
	})
	t.Run("an error is not kept", func(t *testing.T) {
		w := newWorld(t)
		post(w, `{"agent_id":"x"}`, "Idempotency-Key: k")
		if a := post(w, body, "Idempotency-Key: k"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	t.Run("fifty at once run once", func(t *testing.T) {
		w := newWorld(t)
		var wg sync.WaitGroup
		var replayed atomic.Int32
		for range 50 {
			wg.Go(func() {
				a := post(w, body, "Idempotency-Key: k")
				if a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
				}
				if a.header.Get("Idempotency-Replayed") == "true" {
					replayed.Add(1)
				}
			})
		}
		wg.Wait()
		if replayed.Load() != 49 || len(w.replays.rows) != 1 {
			t.Fatalf("%d replayed, %d rows", replayed.Load(), len(w.replays.rows))
		}
	})
	t.Run("another node was first", func(t *testing.T) {
		w := newWorld(t)
		k := IdemKey{Tenant: w.tenant, Principal: "apikey:member", Method: "POST", Path: "/v1/threads", Key: "k"}
		w.replays.rows[k] = &Stored{Fingerprint: sha256.Sum256([]byte(body + "?")), Status: 201, Body: []byte(`{"other":"node"}`)}
		late := &lateReplays{memReplays: w.replays, k: k}
		w.srv.cfg.Replays = late
		a := post(w, body, "Idempotency-Key: k")
		if a.status != 201 || a.body != `{"other":"node"}` {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	// A row tells nobody who guesses the body that it is right, and a node among others finds what it stored when it was alone,
	// as it finds the rows of an earlier build when it is alone.
	t.Run("what is kept of a body", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.KeyedFingerprints = true })
		among := newWorld(t)
		plain := sha256.Sum256([]byte(body + "?"))
		for _, first := range []*world{w, among} {
			alone := first == w
			one, again := post(first, body, "Idempotency-Key: k"), post(first, body, "Idempotency-Key: k")
			if one.status != 200 || again.body != one.body || len(first.replays.rows) != 1 {
				t.Fatalf("alone %v: %d, %d rows", alone, one.status, len(first.replays.rows))
			}
			for k, row := range first.replays.rows {
				if (row.Fingerprint == plain) == alone {
					t.Errorf("alone %v: the row has the hash of the body: %v", alone, row.Fingerprint == plain)
				}
				for _, second := range []bool{true, false} {
					i := &Idempotency{IdemKey: k, keyed: second}
					if i.describe(plain); !i.Matches(row.Fingerprint) {
						t.Errorf("alone %v, then %v: a repeat is refused", alone, second)
					}
					if i.describe(sha256.Sum256([]byte("another body?"))); i.Matches(row.Fingerprint) {
						t.Errorf("alone %v, then %v: another body passes", alone, second)
					}
					i.Key = "another"
					if i.describe(plain); alone && second && i.Fingerprint == row.Fingerprint {
						t.Error("the form does not depend on the key")
					}
				}
			}
		}
	})
	t.Run("a repeat while the first is in progress", func(t *testing.T) {
		w := newWorld(t)
		w.srv.flightWait = 30 * time.Millisecond
		k := IdemKey{Tenant: w.tenant, Principal: "apikey:member", Method: "POST", Path: "/v1/threads", Key: "k"}
		f, _ := w.srv.flights.join(k)
		a := post(w, body, "Idempotency-Key: k")
		if p := a.problem(t); a.status != 409 || p.Code != "IDEMPOTENCY_IN_PROGRESS" || a.header.Get("Retry-After") != "1" {
			t.Fatalf("%d %s", a.status, a.body)
		}
		w.srv.flights.end(k, f)
		if a := post(w, body, "Idempotency-Key: k"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
}

// open-parts.md, first paragraph: a repeat gets the first response, even if the first
// request, on another node, is committed after the repeat's look-up and makes the handler
// refuse.
func TestRefusedBecauseOfItsOwnFirst(t *testing.T) {
	refusal := func(code problem.Code) error { return problem.New(code, "Refused.") }
	type row struct {
		name     string
		err      error
		first    string // the body that was sent first, empty: there was no first
		failed   error  // of the second look
		unkeyed  bool
		status   int
		code     problem.Code // empty: the kept answer
		looks    int
		repeated bool
	}
	rows := []row{
		{name: "nobody was first", err: refusal(problem.CodeAlreadyDecided), status: 409, code: problem.CodeAlreadyDecided, looks: 2},
		{name: "another request was first", err: refusal(problem.CodeAlreadyDecided), first: `{"n":2}`, status: 409, code: problem.CodeIdempotencyConflict, looks: 2},
		{name: "the second look fails", err: refusal(problem.CodeAlreadyDecided), first: `{"n":1}`, failed: problem.Unavailable("Not now.", time.Second), status: 503,
			code: problem.CodeUnavailable, looks: 2},
		{name: "without a key", err: refusal(problem.CodeAlreadyDecided), first: `{"n":1}`, unkeyed: true, status: 409, code: problem.CodeAlreadyDecided},
		{name: "503 is repeated by the client", err: problem.Unavailable("Not now.", time.Second), first: `{"n":1}`, status: 503, code: problem.CodeUnavailable, looks: 1},
		{name: "500 is no refusal", err: errors.New("a fault"), first: `{"n":1}`, status: 500, code: problem.CodeInternal, looks: 1},
	}
	for _, code := range []problem.Code{problem.CodeAlreadyDecided, problem.CodeSlugTaken, problem.CodeNotFound, problem.CodeForbidden, problem.CodeInvalidArgs, problem.CodeValidation} {
		rows = append(rows, row{name: string(code), err: fmt.Errorf("ask: %w", refusal(code)), first: `{"n":1}`, status: 202, looks: 2, repeated: true})
	}
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			late := &lateReplays{failed: c.failed}
			var again atomic.Int32
			w := newWorld(t, func(cfg *Config) {
				late.memReplays, late.k = cfg.Replays.(*memReplays), IdemKey{Principal: "apikey:member", Method: "POST", Path: "/v1/refused", Key: "k"}
				cfg.Replays = late
				Handle(cfg.Table, Route{Method: "POST", Path: "/v1/refused", ID: "refused", Summary: "Refuse", Tag: "Service", Role: lifecycle.RoleMember, Idempotent: true,
					Again: func(context.Context, *Caller, any) error { again.Add(1); return nil }},
					func(context.Context, *Caller, *struct {
						Body struct {
							N int `json:"n"`
						}
					}) (*nothing, error) {
						return nil, c.err
					})
			})
			late.k.Tenant = w.tenant
			if c.first != "" {
				w.replays.rows[late.k] = &Stored{Fingerprint: sha256.Sum256([]byte(c.first + "?")), Status: 202, Body: []byte(`{"first":true}`)}
			}
			var header []string
			if !c.unkeyed {
				header = append(header, "Idempotency-Key: k")
			}
			a := w.call("POST", "/v1/refused", `{"n":1}`, header...)
			if a.status != c.status || (a.header.Get("Idempotency-Replayed") == "true") != c.repeated || again.Load() == 1 != c.repeated {
				t.Fatalf("%d %s, %v, %d times behind it", a.status, a.body, a.header, again.Load())
			}
			if c.repeated && a.body != `{"first":true}` || !c.repeated && a.problem(t).Code != string(c.code) {
				t.Errorf("%d %s", a.status, a.body)
			}
			if late.looks != c.looks {
				t.Errorf("%d looks, want %d", late.looks, c.looks)
			}
		})
	}
}

// lateReplays shows another node's row only after the first look, which is when
// the handler's commit has lost against it.
type lateReplays struct {
	*memReplays
	k      IdemKey
	looks  int
	failed error // of every look but the first
}

func (l *lateReplays) Find(ctx context.Context, k IdemKey) (*Stored, error) {
	if l.looks++; l.looks == 1 {
		return nil, nil
	}
	if l.failed != nil {
		return nil, l.failed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rows[k], nil
}

func form(files ...string) (contentType, body string) {
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	for i, f := range files {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="file"; filename="f%d.txt"`, i))
		h.Set("Content-Type", "text/plain; charset=utf-8")
		p, _ := m.CreatePart(h)
		_, _ = io.WriteString(p, f)
	}
	_ = m.Close()
	return m.FormDataContentType(), b.String()
}

// A file's handler may refuse before it has read the file: what is left of it is
// read to know whether the kept answer is its own.
func TestAnUploadRefusedBecauseOfItsOwnFirst(t *testing.T) {
	late := &lateReplays{}
	w := newWorld(t, func(cfg *Config) {
		late.memReplays = cfg.Replays.(*memReplays)
		HandleUpload(cfg.Table, Route{Method: "POST", Path: "/v1/refused", ID: "refused", Summary: "Refuse", Tag: "Service", Role: lifecycle.RoleMember, Idempotent: true},
			func(context.Context, *Caller, *nothing, *Upload) (*nothing, error) {
				return nil, problem.New(problem.CodeSlugTaken, "Refused.")
			})
		cfg.Replays = late
	})
	ct, same := form("same")
	late.looks = 1 // the first is not late
	if a := w.call("POST", "/v1/attachments", same, "Content-Type: "+ct, "Idempotency-Key: k"); a.status != 201 {
		t.Fatal(a.body)
	}
	for k, kept := range w.replays.rows {
		late.k = k
		late.k.Path = "/v1/refused"
		w.replays.rows[late.k] = &Stored{Fingerprint: kept.Fingerprint, Status: 201, Body: []byte(`{"first":true}`)}
		break
	}
	late.looks = 0
	if a := w.call("POST", "/v1/refused", same, "Content-Type: "+ct, "Idempotency-Key: k"); a.status != 201 || a.body != `{"first":true}` {
		t.Errorf("%d %s", a.status, a.body)
	}
	late.looks = 0
	ct, other := form("other")
	if a := w.call("POST", "/v1/refused", other, "Content-Type: "+ct, "Idempotency-Key: k"); a.status != 409 || a.problem(t).Code != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := w.call("POST", "/v1/refused", other, "Content-Type: "+ct, "Idempotency-Key: l"); a.status != 409 || a.problem(t).Code != "SLUG_TAKEN" {
		t.Errorf("another key: %d %s", a.status, a.body)
	}
}

func TestUploads(t *testing.T) {
	w := newWorld(t)
	send := func(ct, body string, h ...string) answer {
		return w.call("POST", "/v1/attachments", body, append(h, "Content-Type: "+ct)...)
	}
	ct, body := form("hello", strings.Repeat("x", 90<<10))
	if a := send(ct, body); a.status != 201 || a.body != `{"items":["f0.txt text/plain 5","f1.txt text/plain 92160"]}` {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for mediaType, want := range map[string]string{
		"a/" + strings.Repeat("x", 253): "a/" + strings.Repeat("x", 253), "a/" + strings.Repeat("x", 254): "application/octet-stream",
		"a/" + strings.Repeat("x", 60_000): "application/octet-stream", "?": "application/octet-stream",
	} {
		if a := send("multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\nContent-Type: "+mediaType+"\r\n\r\n1\r\n--b--\r\n"); a.status != 201 || a.body != `{"items":["f `+want+` 1"]}` {
			t.Errorf("a media type of %d bytes: %d, %d bytes", len(mediaType), a.status, len(a.body))
		}
	}
	for _, tc := range []struct {
		name   string
		ct     string
		body   string
		status int
		code   string
	}{
		{"no multipart", "application/json", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"no boundary", "multipart/form-data", "x", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"no file", "multipart/form-data; boundary=b", "--b--\r\n", 400, "VALIDATION"},
		{"cut short", ct, body[:200], 400, "VALIDATION"},
		{"other field", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--b--\r\n", 400, "VALIDATION"},
		{"no file name", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n1\r\n--b--\r\n", 400, "VALIDATION"},
		{"empty", "multipart/form-data; boundary=b", "", 400, "VALIDATION"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if a := send(tc.ct, tc.body); a.status != tc.status || a.problem(t).Code != tc.code {
				t.Fatalf("%d %s", a.status, a.body)
			}
		})
	}
	t.Run("a file over the limit", func(t *testing.T) {
		ct, body := form(strings.Repeat("x", 101<<10))
		if a := send(ct, body); a.status != 413 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	t.Run("files at the limit, and one byte past it", func(t *testing.T) {
		full := strings.Repeat("x", 100<<10)
		ct, body := form(full, full)
		if a := send(ct, body); a.status != 201 || a.body != `{"items":["f0.txt text/plain 102400","f1.txt text/plain 102400"]}` {
			t.Fatalf("%d %s", a.status, a.body)
		}
		ct, body = form(full, full+"x")
		if a := send(ct, body); a.status != 413 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	t.Run("all over the limit", func(t *testing.T) {
		ct, body := form(strings.Repeat("x", 1<<20))
		if a := send(ct, body); a.status != 413 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	t.Run("too many files", func(t *testing.T) {
		ct, body := form("a", "b", "c")
		if a := send(ct, body); a.status != 400 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
	t.Run("a repeat under another boundary is the same request", func(t *testing.T) {
		ct1, body1 := form("same", "files")
		ct2, body2 := form("same", "files")
		a1, a2 := send(ct1, body1, "Idempotency-Key: up"), send(ct2, body2, "Idempotency-Key: up")
		if a1.status != 201 || a2.status != 201 || a2.header.Get("Idempotency-Replayed") != "true" || a1.body != a2.body {
			t.Fatalf("%d %d %s", a1.status, a2.status, a2.body)
		}
		ct3, body3 := form("same", "filez")
		if a := send(ct3, body3, "Idempotency-Key: up"); a.status != 409 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	})
}

func TestDownloadsAndRaw(t *testing.T) {
	w := newWorld(t)
	a := w.call("GET", "/v1/files/a/b%20%C3%A9.jpg", "")
	if a.status != 200 || a.body != "hello" || a.header.Get("Content-Type") != "image/jpeg" ||
		a.header.Get("Content-Disposition") != `attachment; filename="a/b _.jpg"; filename*=UTF-8''a%2Fb%20%C3%A9.jpg` {
		t.Fatalf("%d %v %s", a.status, a.header, a.body)
	}
	a = w.call("POST", "/hooks/abc", "not json", "X-Sig: s", "Content-Type: x/y")
	if a.status != 202 || a.body != `{"trigger":"abc","sig":"s","n":8}` {
		t.Fatalf("%d %s", a.status, a.body)
	}
}

func TestConnectionLimits(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConnsPerIP = 2 })
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		if a, err := exchange(c, bufio.NewReader(c), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil || a.status != 200 {
			t.Fatalf("%v %d", err, a.status)
		}
	}
	a, err := w.raw("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if p := a.problem(t); p.Code != "RATE_LIMITED" || a.header.Get("Retry-After") == "" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	_ = open[0].Close()
	testkit.Eventually(t, "the place is free again", func() bool {
		a, err := w.raw("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		return err == nil && a.status == 200
	})
}

// dialFrom connects from an address of this machine and makes a request of health.
func (w *world) dialFrom(t *testing.T, ip string) (net.Conn, answer) {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	a, err := exchange(c, bufio.NewReader(c), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	return c, a
}

// open-parts.md, Operation: one address cannot take the connections that others need,
// whatever the node's limit. A trusted proxy's connections belong to many clients.
func TestAnAddressLeavesConnectionsToOthers(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.MaxConns, c.MaxConnsPerIP, c.TrustedProxies = 12, 8, []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}
	})
	// fill connects until it is refused, and says how often it was not.
	fill := func(ip string) (open []net.Conn, last answer) {
		for {
			c, a := w.dialFrom(t, ip)
			if a.status != 200 {
				_ = c.Close()
				return open, a
			}
			open = append(open, c)
		}
	}
	for i, want := range []int{6, 3, 2} { // of 12, 6 and 3 that are free
		open, a := fill(fmt.Sprintf("127.0.0.%d", i+1))
		if len(open) != want {
			t.Errorf("address %d has %d connections, want %d", i+1, len(open), want)
		}
		if p := a.problem(t); p.Code != "RATE_LIMITED" || !strings.Contains(p.Detail, "scope connections") || a.header.Get("Retry-After") == "" ||
			a.header.Get("RateLimit-Limit") != fmt.Sprint(want) || a.header.Get("RateLimit-Remaining") != "0" || a.header.Get("RateLimit-Reset") == "" {
			t.Errorf("%v %s", a.header, a.body)
		}
		if i > 0 {
			continue
		}
		for _, c := range open[:2] {
			_ = c.Close()
		}
		testkit.Eventually(t, "the places are free", func() bool { return w.srv.listeners[0].count() == 4 })
		if _, a := w.dialFrom(t, "127.0.0.1"); a.status != 200 {
			t.Errorf("after two were closed: %d", a.status)
		}
		if _, a := w.dialFrom(t, "127.0.0.1"); a.status != 200 {
			t.Errorf("after two were closed: %d", a.status)
		}
	}
	open, a := fill("127.0.0.9")
	if len(open) != 1 || a.status != 503 || a.problem(t).Code != "UNAVAILABLE" {
		t.Errorf("a trusted proxy has %d connections more, then %d %s", len(open), a.status, a.body)
	}
	w = newWorld(t, func(c *Config) {
		c.MaxConnsPerIP, c.TrustedProxies = 3, []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}
	})
	if open, a := fill("127.0.0.1"); len(open) != 3 || a.status != 429 {
		t.Errorf("%d connections of at most 3, then %d", len(open), a.status)
	}
	for range 10 {
		if _, a := w.dialFrom(t, "127.0.0.9"); a.status != 200 {
			t.Errorf("a trusted proxy: %d", a.status)
		}
	}
}

func (l *listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	a := w.call("GET", "/v1/openapi.json", "")
	if a.status != 200 || a.header.Get("ETag") == "" {
		t.Fatalf("%d %v", a.status, a.header)
	}
	if b := w.call("GET", "/v1/openapi.json", "", "If-None-Match: "+a.header.Get("ETag")); b.status != 304 || b.body != "" {
		t.Fatalf("%d", b.status)
	}
	if b := w.call("GET", "/v1/openapi.json", "", "Accept-Encoding: gzip"); b.header.Get("Content-Encoding") != "gzip" || !strings.HasPrefix(b.body, "\x1f\x8b") {
		t.Fatalf("%v", b.header)
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Responses   map[string]any
			Parameters  []struct{ Name, In string }
			Security    []map[string][]string
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Fatal(doc.OpenAPI)
	}
	for _, r := range w.table.Routes() {
		if r.Hidden {
			continue
		}
		op, ok := doc.Paths[strings.ReplaceAll(r.Path, "...}", "}")][strings.ToLower(r.Method)]
		if !ok || op.OperationID != r.ID || len(op.Responses) < 2 {
			t.Fatalf("%s is not described: %+v", r.ID, op)
		}
		if r.Idempotent && !strings.Contains(fmt.Sprint(op.Parameters), "Idempotency-Key") {
			t.Fatalf("%s: no Idempotency-Key", r.ID)
		}
		if (r.Role == "") != (len(op.Security) == 0) {
			t.Fatalf("%s: security %v", r.ID, op.Security)
		}
	}
	for _, want := range []string{
		`"agent_id":{"format":"uuid","maxLength":36,"minLength":36,"type":"string"}`,
		`"since":{"format":"date-time","type":"string"}`,
		`"title":{"type":["string","null"]}`,
		`{"anyOf":[{"$ref":"#/components/schemas/Nested"},{"type":"null"}]}`,
		`"meta":{}`,
		`"text/event-stream"`, `"llm.delta"`, `"VALIDATION"`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("%s is not in %s", want, a.body)
		}
	}
	again, err := w.table.OpenAPI(Info{Title: "Agent Platform Service", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		more, _ := w.table.OpenAPI(Info{Title: "Agent Platform Service", Version: "1"})
		if !bytes.Equal(again, more) {
			t.Fatal("the document differs from time to time")
		}
	}
}

// A row that cannot work is a panic when it is added, never a 500 later.
func TestTableRefuses(t *testing.T) {
	h := func(context.Context, *Caller, *nothing) (*Empty, error) { return nil, nil }
	ok := Route{Method: "GET", Path: "/a/{id}", ID: "a"}
	for name, add := range map[string]func(*Table){
		"a second row for a route": func(t *Table) { Handle(t, ok, h); Handle(t, Route{Method: "GET", Path: "/a/{x}", ID: "b"}, h) },
		"a second operation id":    func(t *Table) { Handle(t, ok, h); Handle(t, Route{Method: "GET", Path: "/b", ID: "a"}, h) },
		"a parameter the path does not have": func(t *Table) {
			Handle(t, Route{Method: "GET", Path: "/a", ID: "a"}, func(context.Context, *Caller, *oneThread) (*Empty, error) { return nil, nil })
		},
		"a field from nowhere": func(t *Table) {
			Handle(t, ok, func(context.Context, *Caller, *struct{ X string }) (*Empty, error) { return nil, nil })
		},
		"uniqueItems": func(t *Table) {
			Handle(t, ok, func(context.Context, *Caller, *struct {
				Body struct {
					X []string `json:"x" uniqueItems:"true"`
				}
			}) (*Empty, error) {
				return nil, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Fatal("no panic")
				}
			}()
			add(NewTable())
		})
	}
}

func TestAHandlerGetsItsCaller(t *testing.T) {
	table := NewTable()
	var seen *Caller
	Handle(table, Route{Method: "GET", Path: "/a", ID: "a", Role: lifecycle.RoleMember},
		func(_ context.Context, c *Caller, _ *nothing) (*Empty, error) {
			seen = c
			c.SetHeader("X-Mine", "1")
			return nil, nil
		})
	w := &world{t: t, tenant: id.TenantID{UUID: id.NewAnywhere()}}
	w.auth = &stubAuth{tenant: w.tenant, keys: map[string]Identity{"member": {Tenant: w.tenant, Role: lifecycle.RoleMember}}}
	w.limits = &stubLimits{ip: -1, tenant: -1}
	srv, err := NewServer(Config{Table: table, Auth: w.auth, Limits: w.limits})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	if a := w.call("GET", "/a", ""); a.status != 204 || a.header.Get("X-Mine") != "1" {
		t.Fatalf("%d %v", a.status, a.header)
	}
	if seen == nil || seen.Tenant != w.tenant || seen.IP.String() != "127.0.0.1" {
		t.Fatalf("%+v", seen)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := errors.Join(srv.Shutdown(ctx), <-done); err != nil {
		t.Fatal(err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, func(c *Config) { c.Metrics = reg; HandleMetrics(c.Table, "/metrics", reg) })
	w.call("GET", "/v1/threads", "")
	w.call("GET", "/v1/threads", "", "Authorization: Bearer x")
	w.call("GET", "/nope", "")
	c := w.open(t, runPath(w))
	defer c.Close()
	(<-(<-w.subs).conn).Send(beatFrame(1))
	a := w.call("GET", "/metrics", "", "Authorization: -")
	for _, want := range []string{
		`svc_edge_requests_total{code="200",route="listThreads"} 1`,
		`svc_edge_requests_total{code="401",route="listThreads"} 1`,
		`svc_edge_requests_total{code="404",route="none"} 1`,
		`svc_edge_request_seconds_count{route="listThreads"} 2`,
		`svc_edge_streams_open 1`,
		`svc_edge_frames_total 1`,
		`svc_edge_streams_ended_total{reason="overflow"} 0`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("%s is not in\n%s", want, a.body)
		}
	}
}

// Shutdown lets a request in progress finish.
func TestShutdownLetsRequestsFinish(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(c *Config) {
		Handle(c.Table, Route{Method: "GET", Path: "/slow", ID: "slow", Bucket: BucketNone},
			func(context.Context, *Caller, *nothing) (*Empty, error) {
				close(began)
				<-goOn
				return nil, nil
			})
	})
	got := make(chan answer, 1)
	go func() {
		a, _ := w.raw("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		got <- a
	}()
	<-began
	done := make(chan error, 1)
	go func() { done <- w.srv.Shutdown(context.Background()) }()
	testkit.Eventually(t, "nothing is accepted", func() bool {
		c, err := net.Dial("tcp", w.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	close(goOn)
	if a := <-got; a.status != 204 || !a.close {
		t.Fatalf("%d", a.status)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
