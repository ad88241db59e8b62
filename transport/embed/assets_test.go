package embed_test

import (
	"bytes"
	"html"
	"io"
	"net/http"
	"strings"
	"testing"

	"agentsvc/transport/edge"
	"agentsvc/transport/embed"
)

const script = "/embed/v1/widget.js"

// a bundle that compresses.
func (w *world) bundled() *edge.Static {
	a := edge.NewStatic("text/javascript; charset=utf-8", []byte(strings.Repeat("console.log(1);", 500)))
	w.bundle.Store(a)
	return a
}

// open-parts.md, Embed: GET /embed/v1/widget.js, one file, cacheable by content hash with
// an ETag; service.md, Errors: EMBED_BUNDLE_UNAVAILABLE.
func TestTheWidgetIsServed(t *testing.T) {
	w := newWorld(t)
	for _, method := range []string{"GET", "HEAD"} {
		got := w.send(method, script, "")
		if got.status != 503 || method == "GET" && got.code() != "EMBED_BUNDLE_UNAVAILABLE" || got.header.Get("ETag") != "" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s without a bundle: %d %s %v", method, got.status, got.body, got.header)
		}
	}
	asset := w.bundled()
	plain := &http.Transport{DisableCompression: true}
	defer plain.CloseIdleConnections()
	for _, c := range []struct {
		name, method string
		fields       []string
		status       int
		gzipped      bool
	}{
		{"plain", "GET", nil, 200, false},
		{"plain, HEAD", "HEAD", nil, 200, false},
		{"gzip", "GET", []string{"Accept-Encoding", "gzip, deflate, br"}, 200, true},
		{"gzip, HEAD", "HEAD", []string{"Accept-Encoding", "gzip"}, 200, true},
		{"GZIP with a weight", "GET", []string{"Accept-Encoding", "br;q=1.0, GZIP;q=0.5"}, 200, true},
		{"anything", "GET", []string{"Accept-Encoding", "*"}, 200, false},
		{"gzip is refused", "GET", []string{"Accept-Encoding", "gzip;q=0"}, 200, false},
		{"gzip is refused, with digits", "GET", []string{"Accept-Encoding", "identity, gzip; q=0.000"}, 200, false},
		{"another coding that is called alike", "GET", []string{"Accept-Encoding", "x-gzippy"}, 200, false},
		{"its ETag", "GET", []string{"If-None-Match", asset.ETag}, 304, false},
		{"its ETag, HEAD", "HEAD", []string{"If-None-Match", asset.ETag}, 304, false},
		{"its ETag, weak", "GET", []string{"If-None-Match", "W/" + asset.ETag}, 304, false},
		{"its ETag among others", "GET", []string{"If-None-Match", `"x", W/"y" , ` + asset.ETag}, 304, false},
		{"any ETag", "GET", []string{"If-None-Match", "*"}, 304, false},
		{"its ETag, and gzip", "GET", []string{"If-None-Match", asset.ETag, "Accept-Encoding", "gzip"}, 304, false},
		{"another ETag", "GET", []string{"If-None-Match", `"x"`}, 200, false},
		{"from another page", "GET", []string{"Origin", "https://evil.example"}, 200, false},
	} {
		req, err := http.NewRequest(c.method, "http://"+w.addr+script+"?v=1", nil)
		w.must(err)
		for i := 0; i < len(c.fields); i += 2 {
			req.Header.Set(c.fields[i], c.fields[i+1])
		}
		resp, err := plain.RoundTrip(req)
		w.must(err)
		body, err := io.ReadAll(resp.Body)
		w.must(err)
		resp.Body.Close()
		want, coding := asset.Body, ""
		if c.gzipped {
			want, coding = asset.Gzip, "gzip"
		}
		if c.status == 304 || c.method == "HEAD" {
			if len(body) != 0 || c.status == 200 && resp.ContentLength != int64(len(want)) {
				t.Errorf("%s: %d bytes, Content-Length %d, want %d", c.name, len(body), resp.ContentLength, len(want))
			}
		} else if !bytes.Equal(body, want) {
			t.Errorf("%s: %d bytes, want %d", c.name, len(body), len(want))
		}
		h := resp.Header
		if resp.StatusCode != c.status || h.Get("Content-Encoding") != coding {
			t.Errorf("%s: %d %v", c.name, resp.StatusCode, h)
		}
		if c.status == 200 && h.Get("Content-Type") != "text/javascript; charset=utf-8" {
			t.Errorf("%s: %s", c.name, h.Get("Content-Type"))
		}
		for name, want := range map[string]string{"ETag": asset.ETag, "Vary": "Accept-Encoding", "Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin", "X-Content-Type-Options": "nosniff"} {
			if got := h.Values(name); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s is %q, want %q", c.name, name, got, want)
			}
		}
		if !strings.HasPrefix(h.Get("Cache-Control"), "public, max-age=") || h.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", c.name, h)
		}
	}
	// It needs no key, is charged to no bucket and is only a script.
	address := stranger()
	for range 300 {
		if got := w.send("HEAD", script, "", "X-Forwarded-For", address); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if got := w.send("POST", script, "{}"); got.status != 405 {
		t.Errorf("POST: %d %s", got.status, got.body)
	}
}

// A demo page is at /embed/v1/demo?key=… outside production.
func TestTheDemoPage(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	const path = "/embed/v1/demo"
	got := w.send("GET", path+"?key="+k.Key, "")
	if got.status != 200 || got.header.Get("Content-Type") != "text/html; charset=utf-8" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", got.status, got.header)
	}
	for _, want := range []string{`src="` + script + `"`, html.EscapeString(`src="` + service + script + `"`), `data-key="` + k.Key + `"`} {
		if !strings.Contains(got.body, want) {
			t.Errorf("no %s in\n%s", want, got.body)
		}
	}
	policy := got.header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("no %s in %s", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") || strings.Contains(policy, "https:") {
		t.Errorf("the policy allows too much: %s", policy)
	}
	for _, hostile := range []string{`%22%3E%3Cscript%3Ealert(1)%3C/script%3E`, `'%20onload='alert(1)`, `%3C/title%3E%3Cimg%20src=x%20onerror=alert(1)%3E`} {
		got := w.send("GET", path+"?key="+hostile, "")
		if strings.Contains(got.body, "<script>alert") || strings.Contains(got.body, "<img src=x") || strings.Contains(got.body, `"'" onload=`) || got.status != 200 {
			t.Errorf("%s: %d\n%s", hostile, got.status, got.body)
		}
	}

	hidden := worldWith(t, func(c *embed.Config) { c.Production = true })
	nowhere := hidden.send("GET", "/embed/v1/nowhere?key="+k.Key, "")
	if got := hidden.send("GET", path+"?key="+k.Key, ""); got.status != 404 || got.body != nowhere.body {
		t.Errorf("in production: %d %s, and what is not there %s", got.status, got.body, nowhere.body)
	}
	hidden.bundled()
	if got := hidden.send("HEAD", script, ""); got.status != 200 {
		t.Errorf("the widget in production: %d", got.status)
	}
}
