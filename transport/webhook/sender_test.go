package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/testkit"
	schema "agentsvc/schemas/webhook"
	"agentsvc/transport/egress"
)

// service.md, Events, Webhooks: the headers, the signature over the raw body with
// the secret of the attempt, identical bytes.
func TestWhatIsSent(t *testing.T) {
	type got struct {
		method, path string
		length       int64
		h            http.Header
		body         []byte
	}
	var mu sync.Mutex
	var all []got
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, got{r.Method, r.URL.String(), r.ContentLength, r.Header.Clone(), b})
	})
	plain, sealed := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	sealed.EnableHTTP2 = true
	sealed.StartTLS()
	defer plain.Close()
	defer sealed.Close()
	now := time.Unix(1_700_000_000, 0)
	s := newSender(t, Config{Now: func() time.Time { return now }})
	for name, url := range map[string]string{"plain, where it is allowed": plain.URL, "TLS and HTTP/2": sealed.URL} {
		t.Run(name, func(t *testing.T) {
			all = nil
			m := message(url + "/hook?a=1")
			for i, key := range []string{secret, "whsec_rotated"} {
				m.Secret = key
				if out := s.Send(t.Context(), m); out.HTTPStatus != 200 || out.Error != "" || out.Unsent || out.Duration <= 0 {
					t.Fatalf("%+v", out)
				}
				g := all[i]
				if g.method != "POST" || g.path != "/hook?a=1" || g.length != int64(len(event)) || string(g.body) != event {
					t.Errorf("%s %s, %d bytes: %q", g.method, g.path, g.length, g.body)
				}
				if err := schema.Verify(key, g.h.Get("Svc-Signature"), g.body, now); err != nil {
					t.Errorf("%s: %v", g.h.Get("Svc-Signature"), err)
				}
				for k, want := range map[string]string{"Content-Type": "application/json", "User-Agent": "svc-webhook/1.2.3", "Svc-Delivery-Id": m.Delivery.String()} {
					if g.h.Get(k) != want {
						t.Errorf("%s: %q, want %q", k, g.h.Get(k), want)
					}
				}
			}
			if len(all) != 2 {
				t.Errorf("%d requests for 2 attempts", len(all))
			}
		})
	}
}

// States: "success on any 2xx"; everything else is a failure that says what it was.
func TestStatuses(t *testing.T) {
	var elsewhere atomic.Int64
	other := server(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	url := server(t, func(w http.ResponseWriter, r *http.Request) {
		var code int
		fmt.Sscan(r.URL.Path[1:], &code)
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", to)
		}
		w.WriteHeader(code)
	})
	s := newSender(t, Config{})
	for code := 200; code < 300; code++ {
		if out := s.Send(t.Context(), message(fmt.Sprintf("%s/%d", url, code))); out.HTTPStatus != code || out.Error != "" || out.Unsent {
			t.Errorf("%d: %+v", code, out)
		}
	}
	for _, code := range []int{300, 304, 400, 401, 404, 408, 410, 418, 429, 499, 500, 502, 503, 599, 600, 999} {
		want := fmt.Sprintf("the endpoint answered with status %d", code)
		if out := s.Send(t.Context(), message(fmt.Sprintf("%s/%d", url, code))); out.HTTPStatus != code || out.Error != want || out.Unsent {
			t.Errorf("%d: %+v", code, out)
		}
	}
	for _, to := range []string{other, "/200", "http://169.254.169.254/", "://malformed%zz"} {
		for _, code := range []int{301, 302, 303, 307, 308} {
			want := fmt.Sprintf("the endpoint answered with a redirect (%d), which is not followed", code)
			if out := s.Send(t.Context(), message(fmt.Sprintf("%s/%d?to=%s", url, code, strings.ReplaceAll(to, "%", "%25")))); out.HTTPStatus != code || out.Error != want || out.Unsent {
				t.Errorf("%d to %q: %+v", code, to, out)
			}
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// selfSigned is a TLS server on 127.0.0.1 with an untrusted certificate.
func selfSigned(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(nil)
	s.Config.ErrorLog = quiet
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// Retry: "any non-2xx, timeout or TLS failure"; addresses are checked at each use.
func TestFailures(t *testing.T) {
	sealed := httptest.NewUnstartedServer(http.NotFoundHandler())
	sealed.Config.ErrorLog = quiet
	sealed.StartTLS()
	defer sealed.Close()
	_, port, _ := net.SplitHostPort(sealed.Listener.Addr().String())
	plain := server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	handshake, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer handshake.Close()
	go func() {
		for c, err := handshake.Accept(); err == nil; c, err = handshake.Accept() {
			c.Close()
		}
	}()
	say := func(s string) string { return raw(t, func(c net.Conn) { io.WriteString(c, s) }) }
	lookups := &names{list: map[string][]string{"wrong.example": {"127.0.0.1"}, "private.example": {"10.1.2.3"}, "public.example": {"93.184.216.34"}}}
	for _, c := range []struct {
		name, url string
		want      string
		status    int
	}{
		{"nobody listens", "http://" + testkit.Reserved(t), "the endpoint refused the connection", 0},
		{"the name does not resolve", "https://nowhere.example/", "the endpoint's name does not resolve", 0},
		{"the name resolves to a private address", "https://private.example/", "the outbound guard refused the endpoint's address", 0},
		{"a private literal", "http://192.168.7.7/", "the outbound guard refused the endpoint's address", 0},
		{"metadata", "http://169.254.169.254/latest", "the outbound guard refused the endpoint's address", 0},
		{"plain http to a public host", "http://public.example/", "the outbound guard refused the endpoint's address", 0},
		{"a certificate for another name", "https://wrong.example:" + port, "the endpoint's certificate is not trusted", 0},
		{"a certificate that nobody has signed", selfSigned(t), "the endpoint's certificate is not trusted", 0},
		{"plain http behind https", strings.Replace(plain, "http", "https", 1), "TLS with the endpoint failed", 0},
		{"closed in the handshake", "https://" + handshake.Addr().String(), "TLS with the endpoint failed", 0},
		{"https behind plain http", strings.Replace(sealed.URL, "https", "http", 1), "the endpoint answered with status 400", 400},
		{"never answers", raw(t, hold), "the endpoint did not answer in time", 0},
		{"closes without an answer", raw(t, func(net.Conn) {}), "the connection to the endpoint broke", 0},
		{"resets", raw(t, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }), "the connection to the endpoint broke", 0},
		{"resets in its head", raw(t, func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nA: ")
			readable(c)
			c.(*net.TCPConn).SetLinger(0)
		}), "the endpoint's answer broke off or is not HTTP", 0},
		{"not HTTP", say("220 mail.example ESMTP\r\n"), "the endpoint's answer broke off or is not HTTP", 0},
		{"a head that breaks off", say("HTTP/1.1 200 OK\r\nContent-Ty"), "the endpoint's answer broke off or is not HTTP", 0},
		{"a malformed header", say("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), "the endpoint's answer broke off or is not HTTP", 0},
		{"two lengths", say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), "the endpoint's answer broke off or is not HTTP", 0},
		{"headers without end", raw(t, func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			flood(c, strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 64))
		}), "the endpoint's answer broke off or is not HTTP", 0},
		{"one header without end", raw(t, func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nA: ")
			flood(c, strings.Repeat("x", 64<<10))
		}), "the endpoint's answer broke off or is not HTTP", 0},
		{"informational answers without end", raw(t, func(c net.Conn) {
			flood(c, strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 1000))
		}), "the endpoint's answer broke off or is not HTTP", 0},
		{"another protocol", say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), "the endpoint answered with status 101", 101},
		{"no URL", "http://[::1", "the endpoint's URL cannot be used", 0},
		{"no host", "https:///x", "the endpoint's URL cannot be used", 0},
		{"user info", "http://user:hunter2@127.0.0.1/", "the endpoint's URL cannot be used", 0},
		{"another scheme", "ftp://public.example/", "the connection to the endpoint broke", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v record
			patience := 10 * time.Second
			if c.want == "the endpoint did not answer in time" {
				patience = 300 * time.Millisecond
			}
			s := newSender(t, Config{Guard: egress.New(egress.Config{Allow: loopback, Resolver: lookups, Observe: v.observe}), Timeout: patience})
			m := message(c.url)
			if strings.HasPrefix(c.url, "http") && strings.Count(c.url, "/") == 2 {
				m.URL += "/hook?key=hunter2"
			}
			out := s.Send(t.Context(), m)
			if out.Error != c.want || out.HTTPStatus != c.status || out.Unsent {
				t.Fatalf("%+v (%s)", out, &v)
			}
			if out.Duration > 5*time.Second {
				t.Errorf("it took %v", out.Duration)
			}
			if strings.Contains(out.Error, "hunter2") || strings.Contains(out.Error, secret) {
				t.Errorf("it says too much: %s", out.Error)
			}
		})
	}
}

// A name that was public when it was saved, and is not at the second look-up.
func TestANameThatChangesItsMind(t *testing.T) {
	var v record
	dns := &names{list: map[string][]string{"rebound.example": {"93.184.216.34", "127.0.0.1"}}}
	g := egress.New(egress.Config{Resolver: dns, Observe: v.observe})
	if err := g.CheckURL(t.Context(), "https://rebound.example/", egress.Rules{HTTPSOnly: true}); err != nil {
		t.Fatal(err)
	}
	out := newSender(t, Config{Guard: g}).Send(t.Context(), message("https://rebound.example/"))
	if out.Error != "the outbound guard refused the endpoint's address" || v.String() != "127.0.0.1:443 false" {
		t.Errorf("%+v, %s", out, &v)
	}
}

// A head that trickles is bounded by the attempt's time, not by that between two bytes.
func TestAHeadThatTrickles(t *testing.T) {
	url := raw(t, func(c net.Conn) {
		for i := 0; ; i++ {
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Slow: "[min(i, 24):min(i, 24)+1]); err != nil {
				return
			}
			if !pause(c, 20*time.Millisecond) {
				return
			}
		}
	})
	out := newSender(t, Config{Timeout: 400 * time.Millisecond}).Send(t.Context(), message(url))
	if out.Error != "the endpoint did not answer in time" || out.Duration < 400*time.Millisecond || out.Duration > defaultTimeout {
		t.Errorf("%+v", out)
	}
}

// Success is any 2xx as soon as its head has arrived: no body is waited for, and
// none is read to its end.
func TestNoBodyIsWaitedFor(t *testing.T) {
	chunk := strings.Repeat("x", 1<<20)
	for name, head := range map[string]string{
		"declared":   "HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n",
		"undeclared": "HTTP/1.1 200 OK\r\n\r\n",
		"in chunks":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n",
		"a failure":  "HTTP/1.1 500 No\r\nContent-Length: 9000000000\r\n\r\n",
		"zipped":     "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
	} {
		t.Run("gigabytes, "+name, func(t *testing.T) {
			var wrote atomic.Int64
			done := make(chan struct{})
			url := raw(t, func(c net.Conn) {
				defer close(done)
				io.WriteString(c, head)
				for {
					n, err := io.WriteString(c, chunk)
					if wrote.Add(int64(n)) > 1<<30 || err != nil {
						return
					}
				}
			})
			out := newSender(t, Config{}).Send(t.Context(), message(url))
			status, failure := 200, ""
			if name == "a failure" {
				status, failure = 500, "the endpoint answered with status 500"
			}
			if out.HTTPStatus != status || out.Error != failure || out.Duration > defaultTimeout*4/5 {
				t.Errorf("%+v", out)
			}
			<-done
			if n := wrote.Load(); n > 16<<20 { // more than sockets hold
				t.Errorf("%d bytes were taken", n)
			}
		})
	}
	for name, head := range map[string]string{
		"never comes": "HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\n",
		"trickles":    "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run("a body that "+name, func(t *testing.T) {
			url := raw(t, func(c net.Conn) {
				io.WriteString(c, head)
				for name == "trickles" && pause(c, 10*time.Millisecond) {
					if _, err := io.WriteString(c, "1\r\nx\r\n"); err != nil {
						return
					}
				}
				hold(c)
			})
			began := time.Now()
			out := newSender(t, Config{}).Send(t.Context(), message(url))
			if took := time.Since(began); out.HTTPStatus != 202 || out.Error != "" || took > defaultTimeout*4/5 {
				t.Errorf("%+v after %v", out, took)
			}
		})
	}
}

// A body of a few bytes does not cost the connection.
func TestConnectionsAreKept(t *testing.T) {
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.(http.Flusher).Flush() // the head alone
		io.WriteString(w, `{"ok":true}`)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	sender := newSender(t, Config{})
	for range 50 {
		if out := sender.Send(t.Context(), message(s.URL)); out.Error != "" {
			t.Fatalf("%+v", out)
		}
	}
	if n := conns.Load(); n > 10 { // a late chunk may cost one on a busy machine
		t.Errorf("%d connections for 50 attempts one after the other", n)
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() { sender.Send(t.Context(), message(s.URL)) })
	}
	wg.Wait()
	sender.Close()
}

// An attempt that is called off before its body was taken is not sent; one that
// was sent may be answered for a while.
func TestCalledOff(t *testing.T) {
	t.Run("while the name is looked up", func(t *testing.T) {
		var asked atomic.Int64
		url := server(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
		looking := make(chan struct{})
		s := newSender(t, Config{Guard: open(hanging(looking))})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-looking; cancel() }()
		out := s.Send(ctx, message(strings.Replace(url, "127.0.0.1", "slow.example", 1)))
		if !out.Unsent || out.HTTPStatus != 0 || out.Duration > defaultTimeout*4/5 || asked.Load() != 0 {
			t.Errorf("%+v", out)
		}
	})
	t.Run("before it begins", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var whole atomic.Int64
		url := server(t, func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err == nil {
				whole.Add(1)
			}
		})
		s, sent := newSender(t, Config{}), int64(0)
		for range 200 { // either it never arrives, or it is sent and counts
			switch out := s.Send(ctx, message(url)); {
			case out.HTTPStatus == 200:
				sent++
			case !out.Unsent:
				t.Fatalf("%+v", out)
			}
		}
		if n := whole.Load(); n != sent {
			t.Errorf("%d arrived, %d count", n, sent)
		}
	})
	for name, answer := range map[string]bool{"sent, and answered in the grace": true, "sent, and not answered": false} {
		t.Run(name, func(t *testing.T) {
			arrived, left := make(chan struct{}), make(chan struct{})
			url := raw(t, func(c net.Conn) {
				close(arrived)
				<-left
				if answer {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
				hold(c)
			})
			cfg := Config{Grace: 300 * time.Millisecond}
			if answer {
				cfg.Grace, cfg.Timeout = testkit.Patience, testkit.Patience
			}
			s := newSender(t, cfg)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-arrived; cancel(); close(left) }()
			out := s.Send(ctx, message(url))
			if answer && (out.HTTPStatus != 200 || out.Error != "") || !answer && out.Error != "the node ended before the endpoint answered" || out.Unsent {
				t.Errorf("%+v", out)
			}
			if !answer && (out.Duration < 300*time.Millisecond || out.Duration > defaultTimeout*4/5) {
				t.Errorf("it took %v", out.Duration)
			}
		})
	}
}

// security.md, Invariants 23: a node without its lease sends nothing, and what it
// did not send does not count.
func TestWithoutTheLease(t *testing.T) {
	var whole atomic.Int64
	url := server(t, func(_ http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err == nil && len(b) > 0 {
			whole.Add(1)
		}
	})
	var looks, most atomic.Int64
	most.Store(1 << 40)
	s := newSender(t, Config{Guard: egress.New(egress.Config{Allow: loopback, Live: func() bool { return looks.Add(1) <= most.Load() }})})
	large := message(url)
	large.Body = bytes.Repeat([]byte("x"), 8<<20)
	if out := s.Send(t.Context(), large); out.HTTPStatus != 200 || whole.Load() != 1 {
		t.Fatalf("%+v", out)
	}
	// How many looks there are depends on the pace of the endpoint, but it is one at least for each
	// 32 KiB, in which the body is copied.
	const middle = 100
	if n := looks.Load(); n < 2*middle {
		t.Fatalf("only %d looks at the lease", n)
	}
	for _, n := range []int64{0, 1, 2, 3, 5, middle} {
		s.Close()
		looks.Store(0)
		most.Store(n)
		if out := s.Send(t.Context(), large); !out.Unsent || out.Duration > defaultTimeout*4/5 {
			t.Errorf("lost after %d looks: %+v", n, out)
		}
	}
	if n := whole.Load(); n != 1 {
		t.Errorf("%d arrived whole without the lease", n-1)
	}
}
