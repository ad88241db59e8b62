package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

func call(t testing.TB, g *Gateway, to Target, name, args string) Answer {
	t.Helper()
	a, err := g.Call(context.Background(), to, name, json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAnswers is how content becomes text.
func TestAnswers(t *testing.T) {
	for _, c := range []struct{ name, result, want string }{
		{"text", `{"content":[{"type":"text","text":"hello"}]}`, "hello"},
		{"several texts", `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "a\nb"},
		{"no content", `{"content":[]}`, ""},
		{"structured beside text", `{"content":[{"type":"text","text":"{\"a\":1}"}],"structuredContent":{"a":1}}`, `{"a":1}`},
		{"structured alone", `{"content":[],"structuredContent":{"a": 1, "n": 12345678901234567890}}`, `{"a":1,"n":12345678901234567890}`},
		{"structured without content", `{"structuredContent":{"a":1}}`, `{"a":1}`},
		{"a picture without its bytes", `{"content":[{"type":"image","mimeType":"image/png","data":"AAAAAAAA"}]}`, `{"type":"image","mimeType":"image/png","bytes":6}`},
		{"sound without its bytes", `{"content":[{"type":"audio","mimeType":"audio/wav","data":"AAAA"}]}`, `{"type":"audio","mimeType":"audio/wav","bytes":3}`},
		{"a resource", `{"content":[{"type":"resource","resource":{"uri":"x:1","text":"hello"}}]}`, `{"type":"resource","resource":{"uri":"x:1","text":"hello"}}`},
		{"a binary resource without its bytes", `{"content":[{"type":"resource","resource":{"uri":"x:1","blob":"AAAA"}}]}`, `{"type":"resource","uri":"x:1","bytes":3}`},
		{"a link", `{"content":[{"type":"resource_link", "uri":"x:1"}]}`, `{"type":"resource_link","uri":"x:1"}`},
		{"a kind of the future", `{"content":[{"type":"smell","notes":["rose"]}]}`, `{"type":"smell","notes":["rose"]}`},
		{"NUL", `{"content":[{"type":"text","text":"a\u0000b"}]}`, "a\uFFFDb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.call = func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, c.result) }
			})
			if a := call(t, gateway(t, nil), target(f.URL), "write", `{}`); a.Content != c.want || a.IsError {
				t.Fatalf("%+v", a)
			}
		})
	}
	t.Run("a business failure", func(t *testing.T) {
		f := newFake(t, func(f *fake) {
			f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
				result(w, m, `{"content":[{"type":"text","text":"{\"error\":\"NOT_FOUND\",\"message\":\"no\"}"}],"isError":true}`)
			}
		})
		if a := call(t, gateway(t, nil), target(f.URL), "write", `{}`); !a.IsError || a.Content != `{"error":"NOT_FOUND","message":"no"}` {
			t.Fatalf("%+v", a)
		}
	})
	t.Run("over server-sent events", func(t *testing.T) {
		f := newFake(t, func(f *fake) {
			f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, ": hello\r\n\r\nevent: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\r\n\r\n")
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}}\n\n", m.ID)
			}
		})
		if a := call(t, gateway(t, nil), target(f.URL), "write", `{}`); a.Content != "done" {
			t.Fatalf("%+v", a)
		}
	})
	t.Run("arguments arrive as they were", func(t *testing.T) {
		f := newFake(t, nil)
		args := `{"n":12345678901234567890,"f":1.10,"e":1e400,"s":"<&>\u2028","deep":{"b":1,"a":[null,true]}}`
		got := call(t, gateway(t, nil), target(f.URL), "write", args).Content
		unescaped := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(got)
		if unescaped != args {
			t.Fatalf("got %s", got)
		}
	})
}

// TestAnAnswerOfAlmostTheCap comes through whole.
func TestAnAnswerOfAlmostTheCap(t *testing.T) {
	big := strings.Repeat("x", maxAnswer-1000)
	f := newFake(t, func(f *fake) {
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) { text(w, m, big) }
	})
	if a := call(t, gateway(t, nil), target(f.URL), "write", `{}`); a.Content != big {
		t.Fatalf("%d bytes", len(a.Content))
	}
}

// TestHostileLists: names and descriptions are hostile text.
func TestHostileLists(t *testing.T) {
	entry := func(name, description, schema string) string {
		n, _ := json.Marshal(name)
		d, _ := json.Marshal(description)
		return fmt.Sprintf(`{"name":%s,"description":%s,"inputSchema":%s}`, n, d, schema)
	}
	long := strings.Repeat("n", maxName)
	pages := [][]string{
		{
			entry("orders.refund", "Pays", `{"type":"object","oneOf":[{"x-own":true}]}`),
			entry("orders.refund", "A double", `{"type":"object"}`),
			entry("", "No name", `{}`),
			entry(long, "Just fits", `{}`),
			entry(long+"n", "Too long", `{}`),
			entry("builtin:handoff", "Another source", `{}`),
			entry("orders.*", "A pattern", `{}`),
			entry("white space", "x", `{}`),
			entry("über", "x", `{}`),
			entry("zero\u200bwidth", "x", `{}`),
			`{"name":7,"inputSchema":{}}`, `"hello"`, `null`,
		},
		{
			entry("big.schema", "x", `{"type":"object","description":"`+strings.Repeat("s", maxSchema)+`"}`),
			entry("list.schema", "x", `[]`),
			entry("nul.schema", "x", `{"description":"\u0000"}`),
			`{"name":"no.schema"}`,
			entry("long.description", strings.Repeat("é", maxDescription), `{}`),
			entry("invisible", "a\u202eb\u200bc\U000e0041d\x00e\nf", `{}`),
			`{"name":"titled","title":"A title","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"idempotentHint":true}}`,
		},
	}
	f := newFake(t, func(f *fake) {
		f.list = func(w http.ResponseWriter, _ *http.Request, m message) {
			if m.Params.Cursor == "" {
				result(w, m, `{"tools":[`+strings.Join(pages[0], ",")+`],"nextCursor":"2"}`)
			} else {
				result(w, m, `{"tools":[`+strings.Join(pages[1], ",")+`]}`)
			}
		}
	})
	specs, err := gateway(t, nil).Tools(t.Context(), target(f.URL))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]tool.Spec{}
	var names []string
	for _, s := range specs {
		got[s.Name] = s
		names = append(names, s.Name)
		if s.Source != tool.MCP || s.Owner != "crm" || !json.Valid(s.Schema) {
			t.Errorf("%+v", s)
		}
	}
	if want := "orders.refund " + long + " no.schema long.description invisible titled"; strings.Join(names, " ") != want {
		t.Fatalf("listed %v", names)
	}
	if s := got["orders.refund"]; s.Description != "Pays" || string(s.Schema) != `{"type":"object","oneOf":[{"x-own":true}]}` || s.ReadOnly || s.Idempotent {
		t.Errorf("%+v", s)
	}
	if s := got["no.schema"]; string(s.Schema) != `{"type":"object"}` {
		t.Errorf("%+v", s)
	}
	if s := got["long.description"].Description; len(s) > maxDescription || len(s) < maxDescription-4 || !strings.HasSuffix(s, "é") {
		t.Errorf("a description of %d bytes", len(s))
	}
	if s := got["invisible"].Description; s != "abcde\nf" {
		t.Errorf("%q", s)
	}
	if s := got["titled"]; s.Description != "A title" || !s.ReadOnly || !s.Idempotent {
		t.Errorf("%+v", s)
	}
}

// TestListsAreBounded: one row, one bound.
func TestListsAreBounded(t *testing.T) {
	n := 0
	many := func(count int) string {
		var out []string
		for range count {
			n++
			out = append(out, fmt.Sprintf(`{"name":"t%d","inputSchema":{}}`, n))
		}
		return strings.Join(out, ",")
	}
	for _, c := range []struct {
		name string
		list func(w http.ResponseWriter, r *http.Request, m message)
		want int
		kind Kind
	}{
		{"1,000 tools of one page", func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, `{"tools":[`+many(1500)+`]}`) }, 1000, ""},
		{"1,000 tools of many pages", func(w http.ResponseWriter, _ *http.Request, m message) {
			result(w, m, `{"tools":[`+many(300)+`],"nextCursor":"`+fmt.Sprint(n)+`"}`)
		}, 1000, ""},
		{"100 pages", func(w http.ResponseWriter, _ *http.Request, m message) {
			result(w, m, `{"tools":[`+many(1)+`],"nextCursor":"`+fmt.Sprint(n)+`"}`)
		}, 100, ""},
		{"a cursor that comes again", func(w http.ResponseWriter, _ *http.Request, m message) {
			result(w, m, `{"tools":[`+many(1)+`],"nextCursor":"again"}`)
		}, 0, Protocol},
		{"4 MiB", func(w http.ResponseWriter, _ *http.Request, m message) {
			result(w, m, `{"tools":[{"name":"big","inputSchema":{},"x":"`+strings.Repeat("x", maxList)+`"}]}`)
		}, 0, TooLarge},
		{"no list", func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, `{"tools":{}}`) }, 0, Protocol},
		{"nothing", func(w http.ResponseWriter, _ *http.Request, m message) { result(w, m, `{}`) }, 0, Protocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			n = 0
			f := newFake(t, func(f *fake) { f.list = c.list })
			specs, err := gateway(t, nil).Tools(t.Context(), target(f.URL))
			if len(specs) != c.want || kindOf(err) != c.kind {
				t.Fatalf("%d tools, %v", len(specs), err)
			}
		})
	}
}

// TestListIsCached is service.md, Limits, "MCP gateway": tools/list cached 5 min.
func TestListIsCached(t *testing.T) {
	at := newClock()
	f := newFake(t, nil)
	g := gateway(t, func(c *Config) { c.Now = at.now })
	to := target(f.URL)
	tools := func() {
		t.Helper()
		if s, err := g.Tools(t.Context(), to); err != nil || len(s) != 2 {
			t.Fatal(s, err)
		}
	}
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"first", tools, 1},
		{"again", tools, 1},
		{"a call", func() { call(t, g, to, "write", `{}`) }, 1},
		{"just before 5 min", func() { at.pass(5*time.Minute - time.Second); tools() }, 1},
		{"after 5 min", func() { at.pass(time.Second); tools() }, 2},
		{"fresh", func() {
			if _, err := g.Fresh(t.Context(), to); err != nil {
				t.Fatal(err)
			}
		}, 3},
		{"fresh filled the cache", tools, 3},
		{"another version", func() { to.Version = to.Version.Add(time.Second); tools() }, 4},
		{"another connection", func() { c := id.ConnectionID{UUID: id.NewAnywhere()}; to.Connection = &c; tools() }, 5},
		{"forgotten", func() { g.Forget(to.Tenant, to.Server); tools() }, 6},
		{"another tenant's server was forgotten", func() { g.Forget(id.TenantID{UUID: id.NewAnywhere()}, to.Server); tools() }, 6},
	} {
		step.do()
		if n := f.count("tools/list"); n != step.want {
			t.Fatalf("%s: listed %d times, want %d", step.name, n, step.want)
		}
	}
}

// TestAFailureIsNotCached: a server that is back is used at once.
func TestAFailureIsNotCached(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	f := newFake(t, func(f *fake) {
		list := f.list
		f.list = func(w http.ResponseWriter, r *http.Request, m message) {
			if down.Load() {
				w.WriteHeader(503)
				return
			}
			list(w, r, m)
		}
	})
	g := gateway(t, nil)
	to := target(f.URL)
	if _, err := g.Tools(t.Context(), to); kindOf(err) != Unreachable {
		t.Fatal(err)
	}
	down.Store(false)
	if s, err := g.Tools(t.Context(), to); err != nil || len(s) != 2 {
		t.Fatal(err)
	}
}

// TestOneClientAndOneListForAll is the pool: 64 callers, one session, one list.
func TestOneClientAndOneListForAll(t *testing.T) {
	release := make(chan struct{})
	f := newFake(t, func(f *fake) {
		list := f.list
		f.list = func(w http.ResponseWriter, r *http.Request, m message) { <-release; list(w, r, m) }
	})
	g := gateway(t, nil)
	to := target(f.URL)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if i%2 == 0 {
				call(t, g, to, "write", `{}`)
			} else if _, err := g.Tools(context.Background(), to); err != nil {
				t.Error(err)
			}
		})
	}
	// A caller that gives up takes nothing from the others.
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		if _, err := g.Tools(ctx, to); kindOf(err) != Cancelled {
			t.Error(err)
		}
	}()
	testkit.Eventually(t, "the list is asked for, and all 65 and the asking are inside", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return f.count("tools/list") == 1 && g.entries[to.key()].busy == 66
	})
	cancel()
	<-left // first: once the list is there, that caller may take it
	close(release)
	wg.Wait()
	if f.count("initialize") != 1 || f.count("tools/list") != 1 || f.count("tools/call") != 32 {
		t.Fatalf("heard %v", f.heard)
	}
}

// TestIdleClientsAreDropped is service.md, Limits, "MCP gateway": idle clients
// dropped after 5 min.
func TestIdleClientsAreDropped(t *testing.T) {
	at := newClock()
	f := newFake(t, func(f *fake) { f.sessions = true })
	g := gateway(t, func(c *Config) { c.Now = at.now })
	to := target(f.URL)
	call(t, g, to, "write", `{}`)
	at.pass(4 * time.Minute)
	g.sweep()
	call(t, g, to, "write", `{}`)
	if f.count("initialize") != 1 {
		t.Fatal("dropped too early")
	}
	at.pass(5 * time.Minute)
	g.sweep()
	testkit.Eventually(t, "the session is ended", func() bool { return f.count("DELETE") == 1 })
	call(t, g, to, "write", `{}`)
	if f.count("initialize") != 2 {
		t.Fatalf("heard %v", f.heard)
	}
}

// TestABusyClientIsNotDropped: what happens to a call while its client goes.
func TestABusyClientIsNotDropped(t *testing.T) {
	at := newClock()
	release := make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.sessions = true
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) { <-release; text(w, m, "done") }
	})
	g := gateway(t, func(c *Config) { c.Now = at.now })
	to := target(f.URL)
	got := make(chan error, 1)
	go func() {
		a, err := g.Call(context.Background(), to, "write", nil)
		if err == nil && a.Content != "done" {
			err = errors.New(a.Content)
		}
		got <- err
	}()
	testkit.Eventually(t, "the call is there", func() bool { return f.count("tools/call") == 1 })
	at.pass(time.Hour)
	g.sweep()
	g.Forget(to.Tenant, to.Server)
	if f.count("DELETE") != 0 {
		t.Fatal("the session was ended under a call")
	}
	close(release)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the session is ended", func() bool { return f.count("DELETE") == 1 })
}

// TestALostSessionIsRenewed: 404 to a session means that nothing was processed;
// the call is made once more, for all callers with one new session.
func TestALostSessionIsRenewed(t *testing.T) {
	f := newFake(t, func(f *fake) { f.sessions = true })
	g := gateway(t, nil)
	to := target(f.URL)
	for round := 1; round <= 3; round++ {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { call(t, g, to, "write", `{}`) })
		}
		wg.Wait()
		if n := f.count("initialize"); n != round {
			t.Fatalf("round %d: %d sessions", round, n)
		}
		f.forget()
	}
	if n := f.count("tools/list"); n != 1 {
		t.Fatalf("listed %d times", n)
	}
}

// TestAServerThatAnswersEverything: {} is no answer to server/discover.
func TestAServerThatAnswersEverything(t *testing.T) {
	f := newFake(t, func(f *fake) { f.sessions, f.polite = true, true })
	if call(t, gateway(t, nil), target(f.URL), "write", `{}`); f.count("initialize") != 1 {
		t.Fatalf("heard %v", f.heard)
	}
}

// TestASessionIsRenewedOnce: a server that forgets each session at once.
func TestASessionIsRenewedOnce(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.sessions = true
		f.call = func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(404) }
	})
	g := gateway(t, nil)
	_, err := g.Call(t.Context(), target(f.URL), "write", nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != Protocol || e.MaybeRan || f.count("tools/call") != 2 {
		t.Fatalf("%v after %d calls", err, f.count("tools/call"))
	}
}

// TestASessionRefusedWith400: some servers answer 400 where the protocol wants
// 404; then only what may be repeated is repeated, and the next call is well.
func TestASessionRefusedWith400(t *testing.T) {
	var old atomic.Bool
	f := newFake(t, func(f *fake) {
		f.sessions = true
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
			if old.Swap(false) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(400)
				io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
				return
			}
			text(w, m, "done")
		}
	})
	g := gateway(t, nil)
	to := target(f.URL)
	call(t, g, to, "write", `{}`)
	old.Store(true)
	if a := call(t, g, to, "echo", `{}`); a.Content != "done" || f.count("initialize") != 2 {
		t.Fatal("a read was not repeated")
	}
	old.Store(true)
	_, err := g.Call(t.Context(), to, "write", nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != Protocol || e.MaybeRan {
		t.Fatal(err)
	}
	if call(t, g, to, "write", `{}`); f.count("initialize") != 3 {
		t.Fatal("the next call had the old session")
	}
}

// TestTheServerRestarts: kill and start again on the same port, with and without sessions,
// with a call in flight.
func TestTheServerRestarts(t *testing.T) {
	for _, sessions := range []bool{false, true} {
		t.Run(fmt.Sprintf("sessions %v", sessions), func(t *testing.T) {
			hold := make(chan struct{}, 1)
			f := newFake(t, func(f *fake) {
				f.sessions = sessions
				f.call = func(w http.ResponseWriter, r *http.Request, m message) {
					if strings.Contains(string(m.Params.Arguments), "hold") {
						hold <- struct{}{}
						<-r.Context().Done()
						return
					}
					text(w, m, "done")
				}
			})
			g := gateway(t, nil)
			to := target(f.URL)
			call(t, g, to, "write", `{}`)
			got := make(chan error, 1)
			go func() {
				_, err := g.Call(context.Background(), to, "write", json.RawMessage(`{"hold":1}`))
				got <- err
			}()
			<-hold
			f.CloseClientConnections()
			f.forget()
			var e *Error
			if err := <-got; !errors.As(err, &e) || e.Kind != Unreachable || !e.MaybeRan {
				t.Fatal(err)
			}
			if n := f.count("tools/call"); n != 2 {
				t.Fatalf("%d calls", n)
			}
			call(t, g, to, "write", `{}`)
		})
	}
}

// TestATimeOutCancels: the server sees the request go, and hears
// notifications/cancelled for it where it has sessions.
func TestATimeOutCancels(t *testing.T) {
	for _, c := range []struct {
		name     string
		sessions bool
		events   bool
		cancel   bool // by the caller
		kind     Kind
	}{
		{"time-out", false, false, false, Timeout},
		{"time-out with a session", true, false, false, Timeout},
		{"time-out of a stream", true, true, false, Timeout},
		{"the caller goes", true, true, true, Cancelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began, saw := make(chan json.RawMessage, 1), make(chan struct{})
			var cancelled atomic.Value
			f := newFake(t, func(f *fake) {
				f.sessions = c.sessions
				f.hear = func(r *http.Request, m message) {
					if m.Method == "notifications/cancelled" {
						cancelled.Store(string(m.Params.RequestID) + r.Header.Get("Authorization"))
					}
				}
				f.call = func(w http.ResponseWriter, r *http.Request, m message) {
					if c.events {
						w.Header().Set("Content-Type", "text/event-stream")
						w.(http.Flusher).Flush()
					}
					began <- m.ID
					<-r.Context().Done()
					close(saw)
				}
			})
			g := gateway(t, func(cfg *Config) {
				if !c.cancel {
					cfg.Timeout = 3 * time.Second
				}
			})
			to := target(f.URL)
			if _, err := g.Tools(t.Context(), to); err != nil { // so that no more than the call takes of the time
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := make(chan error, 1)
			go func() {
				_, err := g.Call(ctx, to, "write", nil)
				got <- err
			}()
			var asked json.RawMessage
			select {
			case asked = <-began:
			case err := <-got:
				t.Fatalf("before the call arrived: %v", err)
			}
			if c.cancel {
				cancel()
			}
			var e *Error
			if err := <-got; !errors.As(err, &e) || e.Kind != c.kind || !e.MaybeRan {
				t.Fatal(err)
			}
			<-saw
			if c.sessions {
				testkit.Eventually(t, "the server hears of it", func() bool { return cancelled.Load() != nil })
				if s := cancelled.Load(); s != string(asked)+"Bearer "+secret {
					t.Fatalf("cancelled %v, asked %s", s, asked)
				}
			}
		})
	}
}

// TestTheCallersDeadlineHolds: the shorter one of both times wins.
func TestTheCallersDeadlineHolds(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.call = func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }
	})
	g := gateway(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := g.Call(ctx, target(f.URL), "write", nil); kindOf(err) != Timeout {
		t.Fatal(err)
	}
}

// TestASlowServerDelaysNobodyElse: 64 calls hang in one server, another answers.
func TestASlowServerDelaysNobodyElse(t *testing.T) {
	release := make(chan struct{})
	slow := newFake(t, func(f *fake) {
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) { <-release; text(w, m, "late") }
	})
	quick := newFake(t, nil)
	g := gateway(t, nil)
	a, b := target(slow.URL), target(quick.URL)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() { call(t, g, a, "write", `{}`) })
	}
	testkit.Eventually(t, "all 64 are there", func() bool { return slow.count("tools/call") == 64 })
	for range 10 {
		call(t, g, b, "write", `{}`)
	}
	close(release)
	wg.Wait()
}

// TestCallsOfOneClientAreBounded: 256 at once, the rest wait within their time.
func TestCallsOfOneClientAreBounded(t *testing.T) {
	release := make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) { <-release; text(w, m, "done") }
	})
	g := gateway(t, nil)
	to := target(f.URL)
	var wg sync.WaitGroup
	for range maxInFlight {
		wg.Go(func() { call(t, g, to, "write", `{}`) })
	}
	testkit.Eventually(t, "256 are there", func() bool { return f.count("tools/call") == maxInFlight })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := g.Call(ctx, to, "write", nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != Timeout || e.MaybeRan {
		t.Fatal(err)
	}
	wg.Go(func() { call(t, g, to, "write", `{}`) }) // waits
	close(release)
	wg.Wait()
	if n := f.count("tools/call"); n != maxInFlight+1 {
		t.Fatalf("%d calls", n)
	}
}

// TestServerRequestsAreRefused: sampling, elicitation and roots; ping is answered,
// and a flood is not.
func TestServerRequestsAreRefused(t *testing.T) {
	var mu sync.Mutex
	said := map[string]string{}
	f := newFake(t, func(f *fake) {
		f.sessions = true
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i, method := range []string{"ping", "sampling/createMessage", "elicitation/create", "roots/list", "tools/call", "nonsense"} {
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"s%d\",\"method\":%q,\"params\":{}}\n\n", i, method)
			}
			for i := range 1000 {
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"flood%d\",\"method\":\"roots/list\"}\n\n", i)
			}
			w.(http.Flusher).Flush()
			testkit.Eventually(t, "16 are answered", func() bool { mu.Lock(); defer mu.Unlock(); return len(said) >= maxAsked })
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", m.ID)
		}
	})
	front := newFront(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		var m struct {
			ID     string
			Method string
			Result json.RawMessage
			Error  struct{ Code int }
		}
		if json.Unmarshal(body, &m) == nil && m.Method == "" && m.ID != "" {
			mu.Lock()
			said[m.ID] = fmt.Sprintf("%s %d", m.Result, m.Error.Code)
			mu.Unlock()
		}
		f.ServeHTTP(w, r)
	})
	g := gateway(t, nil)
	call(t, g, target(front), "write", `{}`)
	mu.Lock()
	defer mu.Unlock()
	for k, v := range said {
		if want := map[bool]string{true: "{} 0", false: " -32601"}[k == "s0"]; v != want {
			t.Errorf("%s was answered %q", k, v)
		}
	}
	if len(said) != maxAsked {
		t.Errorf("%d were answered", len(said))
	}
}

// TestManyFetches: a server that lets a stream be fetched without end.
func TestManyFetches(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "id: 1\nretry: 1\ndata:\n\n")
		}
	})
	gets := 0
	front := newFront(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		if r.Method == http.MethodGet {
			gets++
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "id: 2\nretry: 1\ndata:\n\n")
			return
		}
		f.ServeHTTP(w, r)
	})
	_, err := gateway(t, nil).Call(t.Context(), target(front), "write", nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != TooLarge || !e.MaybeRan || gets >= maxRequests {
		t.Fatalf("%v after %d", err, gets)
	}
}

// TestClose: work in progress is waited for, then cancelled; nothing is done afterwards.
func TestClose(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.sessions = true
		f.call = func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }
	})
	g := gateway(t, nil)
	got := make(chan error, 1)
	go func() {
		_, err := g.Call(context.Background(), target(f.URL), "write", nil)
		got <- err
	}()
	testkit.Eventually(t, "the call is there", func() bool { return f.count("tools/call") == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	g.Close(ctx)
	var e *Error
	if err := <-got; !errors.As(err, &e) || e.Kind != Cancelled || !e.MaybeRan {
		t.Fatal(err)
	}
	if f.count("DELETE") != 1 {
		t.Error("the session was left")
	}
	if _, err := g.Tools(t.Context(), target(f.URL)); kindOf(err) != Cancelled {
		t.Fatal(err)
	}
}

// TestNothingIsLeft: after many servers, sessions and failures goroutines are as
// before.
func TestNothingIsLeft(t *testing.T) {
	f := newFake(t, func(f *fake) { f.sessions = true })
	at := newClock()
	g := gateway(t, func(c *Config) { c.Now = at.now })
	call(t, g, target(f.URL), "write", `{}`)
	g.http.CloseIdleConnections()
	runtime.GC()
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { call(t, g, target(f.URL), "write", `{}`) })
	}
	wg.Wait()
	at.pass(time.Hour)
	g.sweep()
	g.mu.Lock()
	left, size := len(g.entries), g.bytes
	g.mu.Unlock()
	if left != 0 || size != 0 {
		t.Fatalf("%d clients with %d bytes of lists", left, size)
	}
	testkit.Eventually(t, "all is quiet", func() bool {
		g.http.CloseIdleConnections()
		f.CloseClientConnections()
		return runtime.NumGoroutine() <= before
	})
}

// Fresh answers what the server offers now: a fetch that was in flight has read an older list, and
// does not replace the new one.
func TestFreshIsNotAnOlderFetch(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	var lists atomic.Int32
	f := newFake(t, func(f *fake) {
		f.list = func(w http.ResponseWriter, _ *http.Request, m message) {
			name := "new"
			if lists.Add(1) == 1 { // the list is read, and sent later
				name = "old"
				close(asked)
				<-release
			}
			result(w, m, `{"tools":[{"name":"`+name+`","inputSchema":{"type":"object"}}]}`)
		}
	})
	g, to := gateway(t, nil), target(f.URL)
	older := make(chan error, 1)
	go func() {
		specs, err := g.Tools(t.Context(), to)
		if err == nil && specs[0].Name != "old" {
			err = fmt.Errorf("it got %q", specs[0].Name)
		}
		older <- err
	}()
	<-asked
	bounded, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	specs, err := g.Fresh(bounded, to)
	close(release)
	if err != nil || specs[0].Name != "new" {
		t.Errorf("fresh: %v, %v", specs, err)
	}
	if err := <-older; err != nil {
		t.Error(err)
	}
	if specs, ok := g.Cached(to); !ok || specs[0].Name != "new" {
		t.Errorf("cached: %v, %v", specs, ok)
	}
}
