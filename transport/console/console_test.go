package console

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"agentsvc/transport/edge"
)

const (
	scriptName = "main-5XKLFD7W.js"
	shellText  = `<!doctype html><script type="module" src="/console/assets/` + scriptName + `"></script>`
)

var scriptText = strings.Repeat("console.log(1);", 200)

func builtFiles() fstest.MapFS {
	return fstest.MapFS{
		"dist/.gitignore":                   {Data: []byte("*")},
		"dist/index.html":                   {Data: []byte(strings.Repeat(shellText, 4))},
		"dist/assets/" + scriptName:         {Data: []byte(scriptText)},
		"dist/assets/console-WEFJ24LX.css":  {Data: []byte("a{color:red}")},
		"dist/assets/licences-ABCDEFG2.txt": {Data: []byte("MIT")},
		"dist/assets/unhashed.js":           {Data: []byte("1")},
	}
}

func built4Test(t *testing.T, files fstest.MapFS) *Bundle {
	t.Helper()
	b, ok, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return nil
	}
	return b
}

// serve runs an edge with the console's routes and returns its address.
func serve(t *testing.T, b *Bundle) string {
	t.Helper()
	table := edge.NewTable()
	New(func() *Bundle { return b }).Register(table)
	s, err := edge.NewServer(edge.Config{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		<-done
	})
	return "http://" + ln.Addr().String()
}

func fetch(t *testing.T, method, url string, fields ...string) (*http.Response, []byte) {
	t.Helper()
	q, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		q.Header.Set(fields[i], fields[i+1])
	}
	wire := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	res, err := wire.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

// Section 1: "/" → 302 /console/. Every path under /console is the HTML shell (200, no-cache, ETag,
// 304) except the assets.
func TestTheShell(t *testing.T) {
	t.Parallel()
	b := built4Test(t, builtFiles())
	at := serve(t, b)
	if res, _ := fetch(t, "GET", at+"/"); res.StatusCode != 302 || res.Header.Get("Location") != "/console/" {
		t.Errorf("/: %d to %q", res.StatusCode, res.Header.Get("Location"))
	}
	for _, path := range []string{"/console", "/console/", "/console/approvals", "/console/runs/0192", "/console/a/b/c/d/e", "/console/login?next=%2Fconsole%2Fruns",
		"/console/assetsx", "/console/%2e%2e/v1", "/console/index.html", "/console/a%00b"} {
		for _, method := range []string{"GET", "HEAD"} {
			res, body := fetch(t, method, at+path)
			if res.StatusCode != 200 || method == "GET" && !bytes.Equal(body, b.Shell.Body) || method == "HEAD" && len(body) != 0 {
				t.Errorf("%s %s: %d %.80s", method, path, res.StatusCode, body)
			}
			for name, want := range map[string]string{
				"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-cache", "ETag": b.Shell.ETag, "Content-Security-Policy": Policy,
				"Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin", "X-Content-Type-Options": "nosniff", "Vary": "Accept-Encoding",
			} {
				if got := res.Header.Values(name); len(got) != 1 || got[0] != want {
					t.Errorf("%s %s: %s is %q, want %q", method, path, name, got, want)
				}
			}
		}
		if res, body := fetch(t, "GET", at+path, "If-None-Match", b.Shell.ETag); res.StatusCode != 304 || len(body) != 0 || res.Header.Get("ETag") != b.Shell.ETag || res.Header.Get("Content-Security-Policy") != Policy {
			t.Errorf("%s, known: %d %v", path, res.StatusCode, res.Header)
		}
		if res, _ := fetch(t, "GET", at+path, "If-None-Match", `"other"`); res.StatusCode != 200 {
			t.Errorf("%s, another one known: %d", path, res.StatusCode)
		}
		if res, body := fetch(t, "GET", at+path, "Accept-Encoding", "gzip"); res.StatusCode != 200 || res.Header.Get("Content-Encoding") != "gzip" || !bytes.Equal(body, b.Shell.Gzip) {
			t.Errorf("%s, compressed: %d %v", path, res.StatusCode, res.Header)
		}
		if res, _ := fetch(t, "POST", at+path); res.StatusCode != 405 {
			t.Errorf("POST %s: %d", path, res.StatusCode)
		}
	}
}

// Section 1: the policy, to the letter.
func TestThePolicyOfTheShell(t *testing.T) {
	t.Parallel()
	const want = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	if Policy != want {
		t.Errorf("%s", Policy)
	}
}

// Section 1: assets are immutable and compressed; an unknown one is 404, never HTML.
func TestTheAssets(t *testing.T) {
	t.Parallel()
	b := built4Test(t, builtFiles())
	at := serve(t, b)
	for name, mediaType := range map[string]string{scriptName: "text/javascript; charset=utf-8", "console-WEFJ24LX.css": "text/css; charset=utf-8", "licences-ABCDEFG2.txt": "text/plain; charset=utf-8"} {
		res, body := fetch(t, "GET", at+"/console/assets/"+name)
		if res.StatusCode != 200 || !bytes.Equal(body, b.Assets[name].Body) || res.Header.Get("Content-Type") != mediaType ||
			res.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" || res.Header.Get("Vary") != "Accept-Encoding" || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", name, res.StatusCode, res.Header)
		}
		if res, body := fetch(t, "GET", at+"/console/assets/"+name, "If-None-Match", b.Assets[name].ETag); res.StatusCode != 304 || len(body) != 0 {
			t.Errorf("%s, known: %d", name, res.StatusCode)
		}
	}
	res, body := fetch(t, "GET", at+"/console/assets/"+scriptName, "Accept-Encoding", "gzip, br")
	if res.Header.Get("Content-Encoding") != "gzip" || len(body) >= len(scriptText) {
		t.Errorf("compressed: %v, %d bytes", res.Header, len(body))
	}
	if res, _ := fetch(t, "GET", at+"/console/assets/console-WEFJ24LX.css", "Accept-Encoding", "gzip"); res.Header.Get("Content-Encoding") != "" {
		t.Error("a file that grows by it is compressed")
	}
	for _, path := range []string{"/console/assets", "/console/assets/", "/console/assets/main-AAAAAAAA.js", "/console/assets/unhashed.js", "/console/assets/../index.html",
		"/console/assets/%2e%2e/index.html", "/console/assets/x/" + scriptName, "/console/assets/.gitignore"} {
		res, body := fetch(t, "GET", at+path)
		if res.StatusCode != 404 || strings.Contains(res.Header.Get("Content-Type"), "html") || bytes.Contains(body, []byte("<html")) || strings.Contains(res.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v %.60s", path, res.StatusCode, res.Header, body)
		}
	}
}

// Section 1: not built is a 503 page that says so.
func TestABinaryWithoutTheConsoleSaysSo(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]fstest.MapFS{
		"never built":  {"dist/.gitignore": {Data: []byte("*")}},
		"an empty one": {"dist/index.html": {}},
	} {
		b := built4Test(t, files)
		if b != nil {
			t.Fatalf("%s: there is a console", name)
		}
		at := serve(t, b)
		for _, path := range []string{"/console", "/console/", "/console/approvals"} {
			res, body := fetch(t, "GET", at+path)
			if res.StatusCode != 503 || !strings.Contains(string(body), "has no console") || res.Header.Get("Content-Type") != "text/html; charset=utf-8" ||
				res.Header.Get("Content-Security-Policy") != Policy || res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("ETag") != "" {
				t.Errorf("%s: %d %v %.80s", path, res.StatusCode, res.Header, body)
			}
		}
		if res, _ := fetch(t, "GET", at+"/console/assets/"+scriptName); res.StatusCode != 404 {
			t.Errorf("an asset: %d", res.StatusCode)
		}
		if res, _ := fetch(t, "GET", at+"/"); res.StatusCode != 302 {
			t.Errorf("/: %d", res.StatusCode)
		}
	}
}

// The embedded files are a console or none, never something between.
func TestTheEmbeddedConsoleIsWhole(t *testing.T) {
	t.Parallel()
	b, ok, err := load(dist)
	if err != nil {
		t.Fatal(err)
	}
	if ok != (Built() != nil) {
		t.Errorf("loaded: %v, served: %v", ok, Built() != nil)
	}
	if !ok {
		return // built without npm
	}
	for _, part := range strings.Split(string(b.Shell.Body), `"/console/assets/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if _, there := b.Assets[name]; !there {
			t.Errorf("the shell names %s, which is not there", name)
		}
	}
}
