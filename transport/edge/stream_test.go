package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

func beatFrame(seq int64) *event.Frame {
	f, err := event.New(event.RunWaiting, event.Pos{Seq: seq}, map[string]string{"status": "waiting_approval"})
	if err != nil {
		panic(err)
	}
	return f
}

// client reads one stream.
type client struct {
	net.Conn
	r    *bufio.Reader
	head *http.Response
}

// open starts a stream and reads its head and first comment.
func (w *world) open(t testing.TB, path string, headers ...string) *client {
	t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	extra := ""
	for _, h := range headers {
		extra += h + "\r\n"
	}
	if !strings.Contains(extra, "Authorization") && !strings.Contains(extra, "Cookie") {
		extra += "Authorization: Bearer member\r\n"
	}
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nX-Tenant-Id: %s\r\n%s\r\n", path, w.tenant, extra)
	cl := &client{Conn: c, r: bufio.NewReader(c)}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if cl.head, err = http.ReadResponse(cl.r, nil); err != nil {
		t.Fatal(err)
	}
	if cl.head.StatusCode == 200 {
		if first := cl.block(t); first != ": ok" {
			t.Fatalf("the first block is %q", first)
		}
	}
	return cl
}

// block reads up to the next empty line.
func (c *client) block(t testing.TB) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	var lines []string
	for {
		l, err := c.r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %q", err, lines)
		}
		if l = strings.TrimSuffix(l, "\n"); l == "" {
			return strings.Join(lines, "\n")
		}
		lines = append(lines, l)
	}
}

// ended says that the server closed, after reading what is left.
func (c *client) ended() (rest string, err error) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c.r)
	return string(b), err
}

func runPath(w *world) string { return "/v1/runs/" + w.thread.String() + "/events" }

// both runs a test on taken-over descriptors and on goroutines.
func both(t *testing.T, test func(t *testing.T, w *world)) {
	for _, fallback := range []bool{false, true} {
		t.Run(fmt.Sprintf("goroutines=%v", fallback), func(t *testing.T) {
			test(t, newWorld(t, func(c *Config) { c.Streams.Goroutines = fallback }))
		})
	}
}

func TestStreamHead(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for _, h := range [][]string{nil, {"Connection: close"}, {"Accept: text/event-stream"}, {"Accept: text/html, */*;q=0.1"}} {
			c := w.open(t, runPath(w), append(h, "X-Request-Id: r1")...)
			f := <-w.subs
			conn := <-f.conn
			if ct := c.head.Header.Get("Content-Type"); ct != "text/event-stream" {
				t.Fatal(ct)
			}
			for name, want := range map[string]string{"Cache-Control": "no-cache, no-store", "X-Accel-Buffering": "no", "X-Request-Id": "r1", "Content-Length": ""} {
				if got := c.head.Header.Get(name); got != want {
					t.Fatalf("%s: %q", name, got)
				}
			}
			if !c.head.Close {
				t.Fatal("Connection: close is missing")
			}
			if !conn.Send(beatFrame(3)) {
				t.Fatal("Send said false")
			}
			if got := c.block(t); got != "event: run.waiting\nid: 3\ndata: {\"type\":\"run.waiting\",\"status\":\"waiting_approval\"}" {
				t.Fatalf("%q", got)
			}
			conn.Send(beatFrame(4))
			conn.Close()
			rest, err := c.ended()
			if err != nil || !strings.HasPrefix(rest, "event: run.waiting\nid: 4\n") {
				t.Fatalf("%v %q", err, rest)
			}
			f.waitGone()
			if conn.Send(beatFrame(5)) {
				t.Fatal("Send on an ended stream said true")
			}
			_ = c.Close()
		}
	})
}

// open-parts.md, Threads, runs: an unusable Last-Event-ID counts as none.
func TestALastEventIDThatIsNoText(t *testing.T) {
	w := newWorld(t)
	for _, last := range []string{"\xff", "1.\xe9", "\xed\xa0\x80"} {
		c := w.open(t, runPath(w), "Last-Event-ID: "+last)
		if c.head.StatusCode != 200 {
			t.Errorf("%q: %d", last, c.head.StatusCode)
		}
		_ = c.Close()
	}
}

func TestStreamRefusals(t *testing.T) {
	w := newWorld(t)
	if a := w.call("GET", runPath(w), "", "Accept: application/json"); a.status != 400 || a.problem(t).Code != "VALIDATION" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := w.call("GET", runPath(w), "", "Last-Event-ID: refuse"); a.status != 404 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := w.call("HEAD", runPath(w), ""); a.status != 200 || a.header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", a.status, a.header)
	}
	(<-w.subs).waitGone() // HEAD opens nothing that stays
	if a := w.call("HEAD", runPath(w), "", "Last-Event-ID: refuse"); a.status != 404 {
		t.Fatalf("HEAD answers %d where GET answers 404", a.status)
	}
}

// security.md, Edge: a closed client frees its slot at once.
func TestHangupIsNoticedAtOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		c := w.open(t, runPath(w))
		f := <-w.subs
		<-f.conn
		_ = c.Close()
		f.waitGone()
		testkit.Eventually(t, "no stream is open", func() bool { return w.srv.Streams() == 0 })
	})
}

// A stream keeps its connection's place for its client until it ends.
func TestStreamsCountAsConnections(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConnsPerIP = 1 })
	c := w.open(t, runPath(w))
	f := <-w.subs
	<-f.conn
	if a, err := w.raw("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil || a.status != 429 {
		t.Fatalf("%v %d", err, a.status)
	}
	_ = c.Close()
	f.waitGone()
	testkit.Eventually(t, "the place is free", func() bool {
		a, err := w.raw("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		return err == nil && a.status == 200
	})
}

func TestPipelinedRequestBehindAStreamIsNotRun(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		one := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer member\r\nX-Tenant-Id: %s\r\n\r\n", runPath(w), w.tenant)
		_, _ = io.WriteString(c, one+one)
		f := <-w.subs
		conn := <-f.conn
		conn.Send(beatFrame(1))
		conn.Close()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		all, _ := io.ReadAll(c)
		if n := strings.Count(string(all), "HTTP/1.1 200"); n != 1 || len(w.subs) != 0 {
			t.Fatalf("%d answers: %q", n, all)
		}
	})
}

// A stream is owned by the session that opened it.
func TestASessionsStreamsEndWithIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		mine, user := id.SessionID{UUID: id.NewAnywhere()}, id.UserID{UUID: id.NewAnywhere()}
		w.auth.mu.Lock()
		for cookie, session := range map[string]id.SessionID{"one": mine, "two": {UUID: id.NewAnywhere()}} {
			w.auth.keys[cookie] = Identity{Tenant: w.tenant, Role: lifecycle.RoleMember, Principal: "user:" + user.String(), User: user, Session: session, Until: time.Now().Add(time.Hour)}
		}
		w.auth.mu.Unlock()
		first := w.open(t, runPath(w), "Cookie: svc_session=one")
		defer first.Close()
		f := <-w.subs
		owner := (<-f.conn).Owner()
		until := owner.Until
		if owner.Role != lifecycle.RoleMember {
			t.Errorf("the owner's role is %q", owner.Role)
		}
		second := w.open(t, runPath(w), "Cookie: svc_session=two")
		defer second.Close()
		g := <-w.subs
		still := <-g.conn
		if n := w.srv.CloseWhere(func(o Owner) bool { return o.Tenant == w.tenant && o.User == user && o.Session == mine }); n != 1 || until.IsZero() {
			t.Fatalf("%d streams were closed, the other ends at %v", n, until)
		}
		if rest, err := first.ended(); err != nil || rest != "" {
			t.Fatalf("%v %q", err, rest)
		}
		f.waitGone()
		if !still.Send(beatFrame(1)) || second.block(t) == "" {
			t.Fatal("the other session's stream was touched")
		}
	})
}

// security.md, Keys: streams of a revoked key are closed within a second,
// without a terminal frame.
func TestRevokedKey(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		mine := w.open(t, runPath(w))
		defer mine.Close()
		f := <-w.subs
		<-f.conn
		other := w.open(t, runPath(w), "Authorization: Bearer admin")
		defer other.Close()
		g := <-w.subs
		still := <-g.conn
		key := w.auth.keys["member"].Key
		if n := w.srv.CloseWhere(func(o Owner) bool { return o.Key == key && o.Tenant == w.tenant }); n != 1 {
			t.Fatalf("%d streams were closed", n)
		}
		if rest, err := mine.ended(); err != nil || rest != "" {
			t.Fatalf("%v %q", err, rest)
		}
		f.waitGone()
		if !still.Send(beatFrame(1)) || other.block(t) == "" {
			t.Fatal("the other key's stream was touched")
		}
	})
}

// The owner's key ends between the look at it and the stream's beginning.
func TestAStreamThatOpensWhileItsOwnerEndsIsCut(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.opening = func() {
			if n := w.srv.CloseWhere(func(o Owner) bool { return o.Key == w.auth.keys["member"].Key }); n != 0 {
				t.Errorf("%d streams were open already", n)
			}
		}
		mine := w.open(t, runPath(w))
		defer mine.Close()
		f := <-w.subs
		if rest, err := mine.ended(); err != nil || rest != "" {
			t.Fatalf("%v %q", err, rest)
		}
		f.waitGone()
		w.opening = func() {}
		later := w.open(t, runPath(w))
		defer later.Close()
		g := <-w.subs
		if !(<-g.conn).Send(beatFrame(1)) || later.block(t) == "" {
			t.Fatal("a stream that came later was cut")
		}
	})
}

func TestShutdownDrains(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var feeds []*feed
		for range 20 {
			c := w.open(t, runPath(w))
			defer c.Close()
			f := <-w.subs
			<-f.conn
			feeds = append(feeds, f)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.srv.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		for _, f := range feeds {
			f.waitGone()
		}
		if !w.srv.Draining() || w.srv.Streams() != 0 {
			t.Fatal("streams are left")
		}
		if _, err := net.Dial("tcp", w.addr); err == nil {
			t.Fatal("still accepting")
		}
	})
}
