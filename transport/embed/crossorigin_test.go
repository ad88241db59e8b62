package embed_test

import (
	"net/http"
	"strings"
	"testing"

	"agentsvc/schemas/id"
)

// readable complains of an answer that a page of that origin cannot read.
func readable(t *testing.T, what string, h http.Header, origin string) {
	t.Helper()
	for name, want := range map[string]string{"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "Retry-After"} {
		if got := h.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %s is %q, want %q", what, name, got, want)
		}
	}
	varies(t, what, h)
}

// varies complains of an answer that a cache could give to another page.
func varies(t *testing.T, what string, h http.Header) {
	t.Helper()
	if got := h.Values("Vary"); len(got) != 1 || got[0] != "Origin" {
		t.Errorf("%s: Vary is %q", what, got)
	}
	if h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%s: a page may send cookies", what)
	}
}

// service.md, Embed: OPTIONS /v1/embed/* answers 204 and reflects the request origin;
// enforcement happens on the actual request. open-parts.md, Questions settled: CORS of
// the embed API allows these request headers and exposes Retry-After.
func TestABrowserMayAskBeforeItCalls(t *testing.T) {
	w := newWorld(t)
	one := id.NewAnywhere().String()
	address := stranger()
	for _, path := range []string{"/v1/embed/config", "/v1/embed/session", "/v1/embed/messages", "/v1/embed/threads", "/v1/embed/threads/" + one + "/messages",
		"/v1/embed/runs/" + one + "/cancel", "/v1/embed/runs/" + one + "/events", "/v1/embed/", "/v1/embed/unknown", "/v1/embed/a/b/c?d=e", "/v1/embed/threads/nonsense/messages"} {
		for _, origin := range []string{page, "https://evil.example", "null", "http://localhost:3000", "https://SHOP.example.com:443"} {
			got := w.send("OPTIONS", path, "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-other", "X-Forwarded-For", address)
			what := "OPTIONS " + path + " from " + origin
			if got.status != 204 || got.body != "" {
				t.Errorf("%s: %d %s", what, got.status, got.body)
			}
			readable(t, what, got.header, origin)
			allowed := map[string]bool{}
			for name := range strings.SplitSeq(got.header.Get("Access-Control-Allow-Headers"), ", ") {
				allowed[name] = true
			}
			for _, name := range []string{"Authorization", "Content-Type", "X-Svc-Embed-Key", "Idempotency-Key", "Last-Event-ID"} {
				if !allowed[name] {
					t.Errorf("%s: %s is not allowed", what, name)
				}
			}
			if len(allowed) != 5 || got.header.Get("Access-Control-Allow-Methods") != "GET, POST" {
				t.Errorf("%s: allowed are %v, %s", what, allowed, got.header.Get("Access-Control-Allow-Methods"))
			}
		}
		got := w.send("OPTIONS", path, "")
		if got.status != 204 || got.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("OPTIONS %s without an Origin: %d %v", path, got.status, got.header)
		}
		varies(t, "OPTIONS "+path, got.header)
	}
	// That cost the address nothing.
	k := w.newKey(w.a, w.a.agent, "")
	w.ok(w.send("POST", "/v1/embed/session", "", of(k, "X-Forwarded-For", address)...), 200)

	w.down.Store(true)
	if got := w.send("OPTIONS", "/v1/embed/session", "", "Origin", page); got.status != 204 {
		t.Errorf("on a node without its lease: %d %s", got.status, got.body)
	}
}

// service.md, Embed: on denial no Access-Control-Allow-Origin header is sent;
// security.md, Embed: Vary: Origin always.
func TestAPageReadsEveryAnswerThatDoesNotDenyIt(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	off := w.newKey(w.a, w.a.agent, "")
	paused(w, off)
	g, s := w.talked(k)
	w.models.Hold()
	running := g.say("hello", "")
	nothing := id.NewAnywhere().String()
	address, streamer := stranger(), w.visit(k, "")
	_, limited := w.emptied(func() answer { return w.send("POST", "/v1/embed/session", "", of(k, "X-Forwarded-For", address)...) })
	streamed := streamer.say("hello", "")
	for range 2 {
		e, _ := streamer.open(streamed.Run, "")
		defer e.close()
	}
	_, third := streamer.open(streamed.Run, "")
	for _, c := range []struct {
		name   string
		got    answer
		status int
	}{
		{"config", w.send("GET", "/v1/embed/config", "", of(k)...), 200},
		{"config, HEAD", w.send("HEAD", "/v1/embed/config", "", of(k)...), 200},
		{"session", w.send("POST", "/v1/embed/session", "", of(k)...), 200},
		{"threads", g.send("GET", "/v1/embed/threads", ""), 200},
		{"history", g.send("GET", "/v1/embed/threads/"+s.Thread+"/messages", ""), 200},
		{"cancel", g.send("POST", "/v1/embed/runs/"+s.Run+"/cancel", ""), 200},
		{"message", g.send("POST", "/v1/embed/messages", message("hi", s.Thread)), 202},
		{"events", g.send("GET", "/v1/embed/runs/"+s.Run+"/events", ""), 200},
		{"events, HEAD", g.send("HEAD", "/v1/embed/runs/"+s.Run+"/events", ""), 200},
		{"VALIDATION", g.send("POST", "/v1/embed/messages", "{}"), 400},
		{"a wrong Accept", g.send("GET", "/v1/embed/runs/"+s.Run+"/events", "", "Accept", "image/png"), 400},
		{"EMBED_KEY_INVALID", w.send("GET", "/v1/embed/config", "", "Origin", page), 401},
		{"EMBED_KEY_DISABLED", w.send("GET", "/v1/embed/config", "", of(off)...), 401},
		{"EMBED_UNAUTHORIZED", w.send("GET", "/v1/embed/threads", "", "Origin", page), 401},
		{"EMBED_IDENTITY_UNAVAILABLE", w.send("POST", "/v1/embed/session", `{"user": {"token": "x"}}`, of(k)...), 401},
		{"NOT_FOUND of a thread", g.send("GET", "/v1/embed/threads/"+nothing+"/messages", ""), 404},
		{"NOT_FOUND of a run", g.send("GET", "/v1/embed/runs/"+nothing+"/events", ""), 404},
		{"NOT_FOUND of a route", w.send("GET", "/v1/embed/unknown", "", "Origin", page), 404},
		{"METHOD_NOT_ALLOWED", w.send("DELETE", "/v1/embed/config", "", "Origin", page), 405},
		{"METHOD_NOT_ALLOWED, unknown method", w.send("PROPFIND", "/v1/embed/config", "", "Origin", page), 405},
		{"EMBED_RUN_IN_FLIGHT", g.send("POST", "/v1/embed/messages", message("hi", running.Thread)), 409},
		{"EMBED_THREAD_FULL", g.send("POST", "/v1/embed/messages", message("hi", w.filled(g, 200).Thread)), 409},
		{"PAYLOAD_TOO_LARGE", g.send("POST", "/v1/embed/messages", message(strings.Repeat("a", 3<<20), "")), 413},
		{"UNSUPPORTED_MEDIA_TYPE", g.send("POST", "/v1/embed/messages", "x", "Content-Type", "text/plain"), 415},
		{"RATE_LIMITED", limited, 429},
		{"EMBED_TOO_MANY_STREAMS", third, 429},
	} {
		if c.got.status != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, c.got.status, c.got.body, c.status)
		}
		readable(t, c.name, c.got.header, page)
	}
	for name, got := range map[string]answer{
		"EMBED_ORIGIN_DENIED":               w.send("GET", "/v1/embed/config", "", of(k, "Origin", "https://evil.example")...),
		"EMBED_ORIGIN_DENIED of a session":  w.send("POST", "/v1/embed/session", "", of(k, "Origin", "https://evil.example")...),
		"EMBED_ORIGIN_DENIED of null":       w.send("POST", "/v1/embed/session", "", of(k, "Origin", "null")...),
		"EMBED_ORIGIN_MISMATCH":             g.send("GET", "/v1/embed/threads", "", "Origin", "https://evil.example"),
		"EMBED_ORIGIN_MISMATCH of a stream": g.send("GET", "/v1/embed/runs/"+s.Run+"/events", "", "Origin", "https://evil.example"),
	} {
		if got.status != 403 || got.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %v", name, got.status, got.header)
		}
		varies(t, name, got.header)
	}
	// A client without an Origin gets none back.
	got := w.send("GET", "/v1/embed/config", "", "X-Svc-Embed-Key", k.Key, "Referer", page+"/")
	if got.status != 200 || got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("without an Origin: %d %v", got.status, got.header)
	}
	varies(t, "without an Origin", got.header)

	w.down.Store(true)
	got = w.send("GET", "/v1/embed/config", "", of(k)...)
	if got.status != 503 {
		t.Errorf("on a node without its lease: %d %s", got.status, got.body)
	}
	readable(t, "on a node without its lease", got.header, page)
}

func TestThePlatformIsNotForOtherPages(t *testing.T) {
	w := newWorld(t)
	for name, got := range map[string]answer{
		"a read":             w.call(w.a, "GET", "/v1/threads", "", "Origin", page),
		"embed keys":         w.call(w.a, "GET", "/v1/embed-keys", "", "Origin", page),
		"end users":          w.call(w.a, "GET", "/v1/end-users", "", "Origin", page),
		"a refusal":          w.send("GET", "/v1/threads", "", "Origin", page),
		"an unknown route":   w.send("GET", "/v1/embedding", "", "Origin", page),
		"a preflight":        w.send("OPTIONS", "/v1/threads", "", "Origin", page, "Access-Control-Request-Method", "GET"),
		"a preflight, keys":  w.send("OPTIONS", "/v1/embed-keys", "", "Origin", page, "Access-Control-Request-Method", "GET"),
		"a preflight, /v1":   w.send("OPTIONS", "/v1/embed", "", "Origin", page, "Access-Control-Request-Method", "GET"),
		"a preflight, path":  w.send("OPTIONS", "/v1/../v1/embed/config", "", "Origin", page),
		"a preflight, quote": w.send("OPTIONS", "/v1/threads/%2e%2e/embed/config", "", "Origin", page),
	} {
		for field := range got.header {
			if strings.HasPrefix(field, "Access-Control-") || field == "Vary" {
				t.Errorf("%s: %s: %s", name, field, got.header.Get(field))
			}
		}
	}
}
