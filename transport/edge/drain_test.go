package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// A node that is asked to drain serves as before, closes each connection, and can
// take it back.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	if a, err := w.raw("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil || a.close || w.srv.Draining() {
		t.Fatalf("%v %+v", err, a)
	}
	before := w.open(t, runPath(w))
	defer before.Close()
	old := <-(<-w.subs).conn
	kept, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	in := bufio.NewReader(kept)
	const health = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	if a, err := exchange(kept, in, health); err != nil || a.close {
		t.Fatalf("%v %+v", err, a)
	}

	w.srv.Drain(true)
	if !w.srv.Draining() {
		t.Fatal("not draining")
	}
	if a, err := exchange(kept, in, health); err != nil || a.status != 200 || !a.close {
		t.Fatalf("on a connection from before: %v %+v", err, a)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Fatal("the connection stays open")
	}
	for _, request := range []string{health, "GET /nope HTTP/1.1\r\nHost: x\r\n\r\n", "POST /v1/boom/x HTTP/1.1\r\nHost: x\r\n\r\n"} {
		if a, err := w.raw(request); err != nil || !a.close {
			t.Fatalf("%q: %v %+v", request, err, a)
		}
	}
	if a := w.call("POST", "/v1/poke", ""); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	during := w.open(t, runPath(w))
	defer during.Close()
	fresh := <-(<-w.subs).conn
	if !old.Send(beatFrame(1)) || !fresh.Send(beatFrame(1)) || before.block(t) == "" || during.block(t) == "" {
		t.Fatal("a stream was cut")
	}

	w.srv.Drain(false)
	if a, err := w.raw(health); err != nil || a.close || w.srv.Draining() {
		t.Fatalf("taken back: %v %+v", err, a)
	}
}

// Shutdown is red for a while before it begins.
func TestShutdownGivesNotice(t *testing.T) {
	shutdown := func(w *world, ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() { done <- w.srv.Shutdown(ctx) }()
		testkit.Eventually(t, "the node is red", w.srv.Draining)
		return done
	}
	t.Run("it serves meanwhile", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.DrainNotice = 2 * time.Second })
		began := time.Now()
		done := shutdown(w, context.Background())
		served := 0
		for time.Since(began) < 500*time.Millisecond {
			if a, err := w.raw("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err == nil && a.status == 200 && a.close {
				served++
			} else if time.Since(began) < 1500*time.Millisecond {
				t.Fatalf("%v %+v", err, a)
			}
		}
		if err := <-done; err != nil || served == 0 || time.Since(began) < 2*time.Second {
			t.Fatalf("%v, %d served, within %v", err, served, time.Since(began))
		}
		if _, err := net.Dial("tcp", w.addr); err == nil {
			t.Fatal("still accepting")
		}
	})
	t.Run("a Drain before it counts", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.DrainNotice = time.Hour })
		w.srv.Drain(true)
		long := time.Now().Add(-time.Hour)
		w.srv.leaving.Store(&long)
		if err := <-shutdown(w, context.Background()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("the end of ctx ends it", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.DrainNotice = time.Hour })
		ctx, cancel := context.WithCancel(context.Background())
		done := shutdown(w, ctx)
		cancel()
		<-done
	})
	t.Run("at most a third of the time there is", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.DrainNotice = time.Hour })
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		if err := errors.Join(<-shutdown(w, ctx), ctx.Err()); err != nil {
			t.Fatal(err)
		}
	})
}

// A client that has connected and sent no request, or only part of one, does not delay
// Shutdown; a client whose request is complete gets its answer.
func TestShutdownDropsIncompleteRequests(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(c *Config) {
		c.ReadTimeout = time.Hour
		Handle(c.Table, Route{Method: "GET", Path: "/slow", ID: "slow", Bucket: BucketNone},
			func(context.Context, *Caller, *nothing) (*Empty, error) {
				close(began)
				<-goOn
				return nil, nil
			})
	})
	finished := make(chan answer, 1)
	go func() {
		a, _ := w.raw("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		finished <- a
	}()
	<-began
	head := fmt.Sprintf(" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer member\r\nX-Tenant-Id: %s\r\nContent-Length: 100000\r\nContent-Type: ", w.tenant)
	var ended sync.WaitGroup
	for name, said := range map[string]string{
		"nothing":          "",
		"half a head":      "GET /healthz HTTP/1.1\r\nHo",
		"half a body":      "POST /v1/threads" + head + "application/json\r\n\r\n{",
		"half an upload":   "POST /v1/attachments" + head + "multipart/form-data; boundary=b\r\n\r\n--b\r\n",
		"one byte a while": "POST /v1/threads" + head + "application/json\r\n\r\n{ ",
	} {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, said); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(said, " ") {
			ended.Go(func() {
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for range tick.C {
					if _, err := io.WriteString(c, " "); err != nil {
						return
					}
				}
			})
		}
		ended.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: it is waited for", name)
			}
		})
	}
	w.srv.mu.Lock()
	l := w.srv.listeners[0]
	w.srv.mu.Unlock()
	served := func(n int) func() bool {
		return func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.asks) == n }
	}
	testkit.Eventually(t, "all are served", served(6))
	done := make(chan error, 1)
	go func() { done <- w.srv.Shutdown(context.Background()) }()
	ended.Wait()
	select {
	case err := <-done:
		t.Fatalf("a request that was sent is not waited for: %v", err)
	default:
	}
	close(goOn)
	if a := <-finished; a.status != 204 {
		t.Errorf("%+v", a)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "no request is served", served(0))
}

// Requests still in progress when the time is over are cancelled early enough to answer the
// client.
func TestShutdownCancelsWhatTakesTooLong(t *testing.T) {
	shutdown := func() (answer, error) {
		began := make(chan struct{})
		w := newWorld(t, func(c *Config) {
			c.Classify = func(err error) *problem.Error {
				if errors.Is(err, context.Canceled) {
					return problem.Unavailable("It ends.", time.Second)
				}
				return nil
			}
			Handle(c.Table, Route{Method: "GET", Path: "/hangs", ID: "hangs", Bucket: BucketNone},
				func(ctx context.Context, _ *Caller, _ *nothing) (*Empty, error) {
					close(began)
					<-ctx.Done()
					return nil, ctx.Err()
				})
		})
		finished := make(chan answer, 1)
		go func() {
			a, _ := w.raw("GET /hangs HTTP/1.1\r\nHost: x\r\n\r\n")
			finished <- a
		}()
		<-began
		ctx, cancel := context.WithTimeout(context.Background(), answering+100*time.Millisecond)
		defer cancel()
		err := w.srv.Shutdown(ctx)
		return <-finished, err
	}
	a, err := shutdown()
	for try := 1; err != nil && try < 3; try++ { // a busy machine may take more than the second
		a, err = shutdown()
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.status != 503 || a.problem(t).Code != "UNAVAILABLE" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A node whose lease has expired is suspended: 503. The edge keeps its sockets; a cluster
// node has it cut them (decision 35).
func TestWithoutTheLease(t *testing.T) {
	var live atomic.Bool
	live.Store(true)
	w := newWorld(t, func(c *Config) { c.Live = live.Load })
	c := w.open(t, runPath(w))
	defer c.Close()
	conn := <-(<-w.subs).conn
	looks := func() int {
		w.auth.mu.Lock()
		defer w.auth.mu.Unlock()
		return len(w.auth.seen)
	}
	seen := looks()
	live.Store(false)
	for _, r := range [][2]string{{"GET", "/v1/threads"}, {"POST", "/v1/poke"}, {"GET", runPath(w)}, {"POST", "/hooks/x"}, {"GET", "/v1/files/a"}, {"GET", "/v1/openapi.json"}} {
		a := w.call(r[0], r[1], "", "Idempotency-Key: k")
		if p := a.problem(t); a.status != 503 || p.Code != "UNAVAILABLE" || a.header.Get("Retry-After") == "" {
			t.Errorf("%v: %d %s", r, a.status, a.body)
		}
	}
	if a := w.call("GET", "/v1/threads", "", "Authorization: Bearer nobody"); a.status != 503 {
		t.Errorf("a wrong key: %d", a.status)
	}
	if looks() != seen {
		t.Error("somebody was authenticated")
	}
	if a := w.call("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("health: %d", a.status)
	}
	if a := w.call("GET", "/nope", ""); a.status != 404 {
		t.Errorf("no route: %d", a.status)
	}
	if !conn.Send(beatFrame(1)) || c.block(t) == "" {
		t.Error("the stream was cut")
	}
	live.Store(true)
	if a := w.call("GET", "/v1/threads", ""); a.status != 200 {
		t.Errorf("with the lease again: %d", a.status)
	}
}

// Work that a handler does after its commit is done before a kept response is replayed, too.
func TestAgain(t *testing.T) {
	type in struct {
		ID string `path:"id"`
	}
	var committed, again atomic.Int64
	var refuse atomic.Bool
	w := newWorld(t)
	table := NewTable()
	replays := w.replays
	after := func() error {
		again.Add(1)
		if refuse.Load() {
			return problem.Unavailable("Not confirmed.", time.Second)
		}
		return nil
	}
	Handle(table, Route{Method: "POST", Path: "/v1/things/{id}", ID: "thing", Summary: "A thing", Role: "member", Idempotent: true,
		Again: func(_ context.Context, c *Caller, of any) error {
			if of.(*in).ID != "seven" || c.Tenant != w.tenant {
				return errors.New("another one's")
			}
			return after()
		}},
		func(_ context.Context, c *Caller, _ *in) (*nothing, error) {
			if err := replays.put(c.Idem, []byte(`{}`)); err != nil {
				return nil, err
			}
			committed.Add(1)
			return nil, after()
		})
	srv, err := NewServer(Config{Table: table, Auth: w.auth, Replays: replays})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	}()
	w.addr = ln.Addr().String()
	for i, c := range []struct {
		refuse   bool
		status   int
		replayed string
	}{{true, 503, ""}, {true, 503, ""}, {false, 200, "true"}, {false, 200, "true"}, {true, 503, ""}} {
		refuse.Store(c.refuse)
		a := w.call("POST", "/v1/things/seven", "", "Idempotency-Key: k")
		if a.status != c.status || a.header.Get("Idempotency-Replayed") != c.replayed || committed.Load() != 1 || again.Load() != int64(i+1) {
			t.Fatalf("%d: %d %s, %d commits, %d times behind one", i, a.status, a.body, committed.Load(), again.Load())
		}
		if c.refuse && !strings.Contains(a.body, "Not confirmed") {
			t.Fatal(fmt.Sprint(i, a.body))
		}
	}
}
