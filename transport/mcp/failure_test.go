package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
)

// TestWhatCanGoWrongWithACall is service.md, Tool server contract, and the
// list of bad servers: one row, one way to fail, its kind and whether the call may
// have run. Each server says the credential wherever it can; nothing of it may
// come out.
func TestWhatCanGoWrongWithACall(t *testing.T) {
	type answer = func(w http.ResponseWriter, r *http.Request, m message)
	status := func(code int) answer {
		return func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no entry with %s"}}`, r.Header.Get("Authorization"))
		}
	}
	body := func(kind, text string) answer {
		return func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, text)
		}
	}
	endless := func(kind, head, more string) answer {
		return func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, head)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, more); err != nil {
					return
				}
			}
		}
	}
	away := func(code int) answer {
		return func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, "http://tools.test/elsewhere", code)
		}
	}
	hang := func(w http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }
	mb := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		name   string
		answer answer
		kind   Kind
		maybe  bool
		says   string
	}{
		{"401", status(401), Unauthorized, false, "refused the credential (401)"},
		{"403", status(403), Unauthorized, false, "refused the credential (403)"},
		{"500", status(500), Unreachable, true, "status 500"},
		{"502", status(502), Unreachable, true, "status 502"},
		{"503", status(503), Unreachable, true, "status 503"},
		{"400 with a JSON-RPC error", status(400), Protocol, false, "status 400: no entry with"},
		{"404 without a session", status(404), Protocol, false, "status 404"},
		{"408", status(408), Protocol, true, "status 408"},
		{"429", status(429), Protocol, false, "status 429"},
		{"a redirect, 302", away(302), Redirect, true, "redirect (302)"},
		{"a redirect, 303", away(303), Redirect, true, "redirect (303)"},
		{"a redirect, 307", away(307), Redirect, false, "redirect (307)"},
		{"a redirect, 308", away(308), Redirect, false, "redirect (308)"},
		{"HTML", body("text/html", "<h1>hello</h1>"), Protocol, true, `content type "text/html"`},
		{"a content type that is none", body(";;;", "x"), Protocol, true, "content type"},
		{"garbage", body("application/json", "\x00\xff garbage"), Protocol, true, "could not be understood"},
		{"nothing at all", body("application/json", ""), Protocol, true, ""},
		{"JSON cut short", body("application/json", `{"jsonrpc":"2.0","id":4,"result":{"content":[{"ty`), Protocol, true, "could not be understood"},
		{"JSON that is no message", body("application/json", `[1,2,3]`), Protocol, true, "could not be understood"},
		{"an answer without id", body("application/json", `{"jsonrpc":"2.0","result":{"content":[]}}`), Protocol, true, "could not be understood"},
		{"another request's answer", body("application/json", `{"jsonrpc":"2.0","id":4711,"result":{"content":[]}}`), Protocol, true, "another request"},
		{"a result that is null", func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, `null`) }, Protocol, true, "could not be understood"},
		{"a result without content", func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, `{}`) }, Protocol, true, "could not be understood"},
		{"content that is no list", func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, `{"content":"hello"}`) }, Protocol, true, "could not be understood"},
		{"a request for input", func(w http.ResponseWriter, _ *http.Request, m message) {
			result(w, m, `{"resultType":"input_required","inputRequests":{},"requestState":"x"}`)
		}, Protocol, true, "asks for input"},
		{"a JSON-RPC error", func(w http.ResponseWriter, r *http.Request, m message) {
			reply(w, m, fmt.Sprintf(`"error":{"code":-32602,"message":"bad \u202e %s \u0000"}`, r.Header.Get("Authorization")))
		}, Protocol, false, "refused the request: bad"},
		{"a JSON-RPC error from within", func(w http.ResponseWriter, r *http.Request, m message) {
			reply(w, m, `"error":{"code":-32603,"message":"panic"}`)
		}, Protocol, true, "refused the request: panic (-32603)"},
		{"202 and no answer", func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(202) }, Protocol, true, ""},
		{"204", func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(204) }, Protocol, true, ""},
		{"gigabytes of JSON", endless("application/json", `{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":"`, mb), TooLarge, true, "larger than allowed"},
		{"gigabytes of events", endless("text/event-stream", "data: ", mb), TooLarge, true, "larger than allowed"},
		{"gigabytes of small events", endless("text/event-stream", "", strings.Repeat(": ping\n\n", 1<<17)), TooLarge, true, "than allowed"},
		{"endless values", endless("application/json", `{"jsonrpc":"2.0","id":4,"result":{"structuredContent":[`, strings.Repeat("{},", 1<<18)), TooLarge, true, "more values"},
		{"an event of endless lines", endless("text/event-stream", "", strings.Repeat("data:\n", 1<<10)), TooLarge, true, "more values"},
		{"a length that is too large", func(w http.ResponseWriter, _ *http.Request, _ message) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{").Close()
		}, TooLarge, true, "larger than allowed"},
		{"the connection breaks before the answer", func(w http.ResponseWriter, _ *http.Request, _ message) {
			c := hijack(w, "")
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}, Unreachable, true, "broke"},
		{"the connection breaks within the answer", func(w http.ResponseWriter, _ *http.Request, _ message) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"jsonrpc\"").Close()
		}, Unreachable, true, "broke"},
		{"the stream breaks", func(w http.ResponseWriter, _ *http.Request, _ message) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\ndata: {\"json").Close()
		}, Unreachable, true, "broke"},
		{"not HTTP", func(w http.ResponseWriter, _ *http.Request, _ message) { hijack(w, "SSH-2.0-hello\r\n\r\n").Close() }, Unreachable, true, "broke"},
		{"the stream ends without an answer", body("text/event-stream", ": hello\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n"), Protocol, true, "could not be understood"},
		{"silence", hang, Timeout, true, "in time"},
		{"silence after the head", func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, Timeout, true, "in time"},
		{"silence within a stream", func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, ": wait\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, Timeout, true, "in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(f *fake) { f.call = c.answer })
			g := gateway(t, func(cfg *Config) {
				if c.kind == Timeout {
					cfg.Timeout = 3 * time.Second // for the way to the call too
				}
			})
			to := target(f.URL)
			if _, err := g.Tools(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			a, err := g.Call(t.Context(), to, "write", json.RawMessage(`{}`))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("answered %+v, %v", a, err)
			}
			if e.Kind != c.kind || e.MaybeRan != c.maybe || !strings.Contains(e.Message, c.says) {
				t.Fatalf("%s, maybe ran %v: %v", e.Kind, e.MaybeRan, err)
			}
			all := fmt.Sprintf("%v %+v %q", err, e, e.Message)
			if l := leaks(all); l != "" {
				t.Fatalf("the credential is in %s", all)
			}
			if strings.ContainsAny(e.Message, "\x00\u202e") {
				t.Fatalf("hostile text in %q", e.Message)
			}
			if n := f.count("tools/call"); n != 1 {
				t.Fatalf("called %d times", n)
			}
		})
	}
}

// TestWhatCanGoWrongBeforeACall: nothing was sent, and MaybeRan says so.
func TestWhatCanGoWrongBeforeACall(t *testing.T) {
	plain := newFake(t, nil)
	wrongPath := httptest.NewServer(http.NotFoundHandler())
	defer wrongPath.Close()
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }))
	defer html.Close()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }))
	defer locked.Close()
	tls := httptest.NewTLSServer(plain)
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer tls.Close()
	with := func(url string, change func(*Target)) Target {
		to := target(url)
		if change != nil {
			change(&to)
		}
		return to
	}
	for _, c := range []struct {
		name string
		to   Target
		tool string
		kind Kind
		says string
	}{
		{"connection refused", with("http://"+testkit.Reserved(t), nil), "write", Unreachable, "connection refused"},
		{"a name that does not resolve", with("http://nowhere.test/mcp", nil), "write", Unreachable, "does not resolve"},
		{"a certificate nobody trusts", with(tls.URL, nil), "write", Unreachable, "certificate is not trusted"},
		{"no tool server at the path", with(wrongPath.URL, nil), "write", Protocol, "status 404"},
		{"a web page", with(html.URL, nil), "write", Protocol, "content type"},
		{"401 at the first word", with(locked.URL, nil), "write", Unauthorized, "401"},
		{"the guard refuses", with("http://169.254.169.254/latest", nil), "write", Refused, "outbound guard"},
		{"the guard refuses a mapped address", with("http://[::ffff:10.0.0.1]/", nil), "write", Refused, "outbound guard"},
		{"not a URL", with("http://[::1", nil), "write", Refused, "endpoint"},
		{"not HTTP", with("file:///etc/passwd", nil), "write", Refused, "endpoint"},
		{"user info", with("http://a:b@tools.test/", nil), "write", Refused, "endpoint"},
		{"a stdio command nobody allowed", with("rm", func(to *Target) { to.Transport = tool.Stdio }), "write", Refused, "no stdio command"},
		{"no connection", with(plain.URL, func(to *Target) { to.Connection, to.Credential = nil, nil }), "write", NoCredential, "no connection"},
		{"a credential that cannot be opened", with(plain.URL, func(to *Target) {
			to.Credential = func(context.Context) (string, error) { return "", errors.New("sealed for another row") }
		}), "write", NoCredential, "could not be opened"},
		{"a credential that no header may hold", with(plain.URL, func(to *Target) {
			to.Credential = func(context.Context) (string, error) { return secret + "\r\nX-Evil: 1", nil }
		}), "write", NoCredential, "no header may hold"},
		{"an empty credential", with(plain.URL, func(to *Target) {
			to.Credential = func(context.Context) (string, error) { return "", nil }
		}), "write", NoCredential, "empty"},
		{"no such tool", with(plain.URL, nil), "delete", UnknownTool, "no such tool"},
		{"a name in another case", with(plain.URL, nil), "Write", UnknownTool, "no such tool"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gateway(t, nil)
			_, err := g.Call(t.Context(), c.to, c.tool, nil)
			var e *Error
			if !errors.As(err, &e) || e.Kind != c.kind || e.MaybeRan || !strings.Contains(e.Message, c.says) {
				t.Fatalf("%v", err)
			}
			if l := leaks(fmt.Sprintf("%v %+v", err, e)); l != "" {
				t.Fatalf("the credential is in %v", err)
			}
		})
	}
	if n := plain.count("tools/call"); n != 0 {
		t.Fatalf("%d calls were sent", n)
	}
}

func TestPlainHTTPIsRefusedWhereTLSIsRequired(t *testing.T) {
	f := newFake(t, nil)
	// The range is not allowed, so that loopback is like any public host.
	seen := 0
	g := gateway(t, func(c *Config) {
		c.RequireTLS = true
		c.Guard = egress.New(egress.Config{Resolver: nowhere{}, Observe: func(_ netip.AddrPort, verdict error) error { seen++; return verdict }})
	})
	if _, err := g.Tools(t.Context(), target(f.URL)); kindOf(err) != Refused || seen == 0 {
		t.Fatal(err, seen)
	}
	if f.count("initialize") != 0 {
		t.Fatal("reached")
	}
}

// TestNoCredentialOnAnotherHost: a redirect to another host, at any step, is not followed.
func TestNoCredentialOnAnotherHost(t *testing.T) {
	for _, at := range []string{"server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"} {
		for _, code := range []int{301, 302, 303, 307, 308} {
			t.Run(fmt.Sprintf("%s %d", at, code), func(t *testing.T) {
				other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("somebody went there") }))
				defer other.Close()
				f := newFake(t, func(f *fake) { f.sessions = true })
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					rec := peek(r)
					if rec.Method == at || r.Method == at {
						http.Redirect(w, r, other.URL+"/there", code)
						return
					}
					f.ServeHTTP(w, r)
				}))
				defer front.Close()
				g := New(Config{Guard: egress.New(egress.Config{Allow: loopback, Observe: noNetwork})})
				_, err := g.Call(t.Context(), target(front.URL), "write", nil)
				g.Close(t.Context())
				// A server that cannot say server/discover is asked the older way.
				if fine := at == "DELETE" || at == "server/discover"; fine != (err == nil) || !fine && kindOf(err) != Redirect {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestCredentialsHeader: one row for each auth kind.
func TestCredentialsHeader(t *testing.T) {
	for kind, want := range map[tool.AuthKind]string{
		tool.AuthNone:   "",
		tool.AuthBearer: "Authorization: Bearer " + secret,
		tool.AuthOAuth:  "Authorization: Bearer " + secret,
		tool.AuthAPIKey: "X-Api-Key: " + secret,
	} {
		t.Run(string(kind), func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.sessions = true
				f.hear = func(r *http.Request, m message) {
					got := ""
					for _, h := range []string{"Authorization", "X-Api-Key"} {
						if v := r.Header.Get(h); v != "" {
							got += h + ": " + v
						}
					}
					if got != want {
						t.Errorf("%s came with %q", m.Method, got)
					}
				}
			})
			g := New(Config{Guard: egress.New(egress.Config{Allow: loopback})})
			to := target(f.URL)
			to.AuthKind = kind
			if _, err := g.Call(t.Context(), to, "write", nil); err != nil {
				t.Fatal(err)
			}
			g.Close(t.Context())
			for _, m := range []string{"initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"} {
				if f.count(m) != 1 {
					t.Errorf("%s came %d times", m, f.count(m))
				}
			}
		})
	}
}

// TestCredentialIsOpenedForEachCall: a pooled client holds none, so that the next
// call has the next credential.
func TestCredentialIsOpenedForEachCall(t *testing.T) {
	f := newFake(t, nil)
	g := gateway(t, nil)
	to := target(f.URL)
	n := 0
	to.Credential = func(context.Context) (string, error) { n++; return fmt.Sprintf("token-%04d", n), nil }
	for range 3 {
		if _, err := g.Call(t.Context(), to, "write", nil); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, s := range f.tokens[len(f.tokens)-3:] {
		seen[s] = true
	}
	if len(seen) != 3 {
		t.Fatalf("calls came with %v", f.tokens)
	}
}

// TestAnswersComeWithoutTheCredential: results, lists and errors.
func TestAnswersComeWithoutTheCredential(t *testing.T) {
	b64 := base64.StdEncoding.EncodeToString([]byte("Bearer " + secret))
	f := newFake(t, func(f *fake) {
		f.list = func(w http.ResponseWriter, r *http.Request, m message) {
			d, _ := json.Marshal("Say " + r.Header.Get("Authorization"))
			result(w, m, fmt.Sprintf(`{"tools":[{"name":"write","description":%s,"inputSchema":{"type":"object","description":%s}}]}`, d, d))
		}
		f.call = func(w http.ResponseWriter, r *http.Request, m message) {
			got := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			inner, _ := json.Marshal(map[string]string{"header": got, "b64": base64.URLEncoding.EncodeToString([]byte("user:" + got))})
			block, _ := json.Marshal(string(inner))
			result(w, m, fmt.Sprintf(`{"content":[{"type":"text","text":%s},{"type":"resource_link","uri":"x:%s","name":%q}],"isError":true}`, block, b64, got))
		}
	})
	g := gateway(t, nil)
	to := target(f.URL)
	specs, err := g.Tools(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	if l := leaks(fmt.Sprintf("%s %s", specs[0].Description, specs[0].Schema)); l != "" || !strings.Contains(specs[0].Description, redacted) {
		t.Fatalf("the list says %+v", specs)
	}
	a, err := g.Call(t.Context(), to, "write", nil)
	if err != nil || !a.IsError {
		t.Fatal(a, err)
	}
	if l := leaks(a.Content); l != "" || strings.Count(a.Content, redacted) != 4 {
		t.Fatalf("the result says %s", a.Content)
	}
}

// TestTheHeaderIsForOneOrigin: a request of the session's client to another origin carries no
// credential.
func TestTheHeaderIsForOneOrigin(t *testing.T) {
	seen := map[string]string{}
	here := newFront(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) { seen["here"] = r.Header.Get("Authorization") })
	there := newFront(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) { seen["there"] = r.Header.Get("Authorization") })
	g := gateway(t, nil)
	o, err := g.newOp(t.Context(), target(here), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(here)
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{here, there} {
		r, err := http.NewRequestWithContext(with(t.Context(), o), http.MethodPost, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&tripper{base: g.http.Transport, to: u}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if r.Header.Get("Authorization") != "" {
			t.Error("the caller's request was changed")
		}
	}
	if seen["here"] != "Bearer "+secret || seen["there"] != "" {
		t.Fatalf("%v", seen)
	}
}

// A credential of words comes back with other white space than it has: the message, which is one line, must not make it whole.
func TestACredentialOfWordsIsHidden(t *testing.T) {
	for _, said := range []string{`correct  horse\tbattery`, `correct\n  horse\r\nbattery`, strings.Repeat("x", 480) + `correct  horse battery`} {
		f := newFake(t, func(f *fake) {
			f.call = func(w http.ResponseWriter, _ *http.Request, _ message) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				io.WriteString(w, `{"error":{"code":-32602,"message":"bad key: `+said+`"}}`)
			}
		})
		to := target(f.URL)
		to.Credential = func(context.Context) (string, error) { return "correct horse battery", nil }
		_, err := gateway(t, nil).Call(t.Context(), to, "write", json.RawMessage(`{}`))
		if e := new(Error); !errors.As(err, &e) || !strings.Contains(e.Message, "bad key") || strings.Contains(e.Message, "correct") {
			t.Errorf("%q -> %v", said, err)
		}
	}
}

// The library gets the fields of a response that it reads, and keeps no others while it reads the body.
func TestOnlyNeededFieldsAreKept(t *testing.T) {
	got := needed(http.Header{"Content-Type": {"text/event-stream", "x"}, "Mcp-Session-Id": {"s"}, "X-Other": {"y"}})
	if fmt.Sprint(got) != "map[Content-Type:[text/event-stream] Mcp-Session-Id:[s]]" || len(needed(nil)) != 0 {
		t.Errorf("%v", got)
	}
}
