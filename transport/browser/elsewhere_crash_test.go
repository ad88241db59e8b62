//go:build failpoints

package browser

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/browser/site"
	"agentsvc/transport/egress"
)

// remote is a Chromium that another machine might run: a process that no Browser has started.
type remote struct {
	t    testing.TB
	port int
	stop func()
}

// startRemote starts a Chromium with its debugging port on loopback. port 0 takes a free one.
func startRemote(t testing.TB, port int, args ...string) *remote {
	t.Helper()
	chromium, err := (&Browser{}).chromium()
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHome(homeOf(""), fmt.Sprintf("remote-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	line := append([]string{Command, fmt.Sprint(h.uid), fmt.Sprint(h.gid), "0", h.work(), chromium, "--user-data-dir=" + h.work() + "/profile",
		fmt.Sprintf("--remote-debugging-port=%d", port), "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"}, args...)
	cmd := exec.Command(self, line...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // it dies with the thread that starts it
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	r := &remote{t: t, port: port}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		h.kill()
		<-ended
		h.remove()
	}
	t.Cleanup(r.stop)
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if _, at, ok := strings.Cut(lines.Text(), "DevTools listening on ws://127.0.0.1:"); ok {
			if _, err := fmt.Sscanf(at, "%d/", &r.port); err != nil {
				t.Fatal(at, err)
			}
			go func() {
				for lines.Scan() { // so that it never waits for a reader
				}
			}()
			return r
		}
	}
	t.Fatal("the remote Chromium did not start")
	return nil
}

func (r *remote) url() string { return fmt.Sprintf("http://127.0.0.1:%d", r.port) }

// A skill runs in a Chromium elsewhere, through a proxy of the session with its password. When that
// Chromium dies, the jobs that it had are lost, further ones are unavailable, and once it is back
// they run again.
func TestAChromiumElsewhere(t *testing.T) {
	t.Parallel()
	far, log := startRemote(t, 0), &lines{}
	cfg := config(t)
	cfg.CDP, cfg.ProxyListen, cfg.Log = far.url(), "127.0.0.1", zerolog.New(log)
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	prepare := func() Session {
		t.Helper()
		s, r, err := b.Prepare(context.Background(), w.job(t, cancelOrder, values))
		if err != nil || s == nil {
			t.Fatal(err, show(t, r))
		}
		return s
	}
	s := prepare()
	for _, pid := range familyOf(b.engine.home.path) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(line), "chromium") {
			t.Errorf("a Chromium was started here: %q", line)
		}
	}
	if r := s.Commit(context.Background()); r.Event != skill.Clicked {
		t.Fatal(show(t, r))
	}
	if r := s.Verify(context.Background()); r.Event != skill.Verified || w.Effects("1001") != 1 {
		t.Fatal(show(t, r))
	}
	s.Close()

	w.Add(site.Order{ID: "1001", Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
	s = prepare()
	e := b.engine
	far.stop()
	if r := s.Commit(context.Background()); r.Event != skill.Lost || w.Effects("1001") != 1 {
		t.Fatalf("%s, %d effects", show(t, r), w.Effects("1001"))
	}
	s.Close()
	<-e.gone // the driver goes with the connection
	if _, _, err := b.Prepare(context.Background(), w.job(t, cancelOrder, values)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("without a browser: %v", err)
	}
	if strings.Contains(log.String(), "sandbox\":true") {
		t.Errorf("the sandbox of a Chromium elsewhere is not ours to tell: %s", log)
	}

	startRemote(t, far.port)
	s = prepare()
	defer s.Close()
	if r := s.Commit(context.Background()); r.Event != skill.Clicked || w.Effects("1001") != 2 {
		t.Fatal(show(t, r))
	}
}

// certified are sites with a key of their own, whose certificates a Chromium elsewhere accepts and a Browser
// checks.
type certified struct {
	key   *identity
	of    map[string]tls.Certificate // by address
	roots *x509.CertPool
}

func newCertified(t testing.TB) *certified {
	t.Helper()
	key, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	c := &certified{key, map[string]tls.Certificate{}, x509.NewCertPool()}
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		made, err := key.certificate(host)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(made.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		c.of[host] = *made
		c.roots.AddCert(leaf)
	}
	return c
}

func (c *certified) serve(h http.Handler) *httptest.Server {
	s := listen(httptest.NewUnstartedServer(h))
	host, _, _ := net.SplitHostPort(s.Listener.Addr().String())
	s.TLS, s.Config.ErrorLog = &tls.Config{Certificates: []tls.Certificate{c.of[host]}}, silent
	s.StartTLS()
	return s
}

// elsewhere returns a Browser that performs in a Chromium elsewhere, which takes the sites' certificates.
func (c *certified) elsewhere(t testing.TB) *Browser {
	t.Helper()
	cfg := config(t)
	cfg.CDP, cfg.ProxyListen, cfg.roots = startRemote(t, 0, "--ignore-certificate-errors-spki-list="+c.key.pin).url(), "127.0.0.1", c.roots
	cfg.JobTimeout, cfg.Pages, cfg.TenantPages, cfg.Queue = time.Minute, 4, 4, 200
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

// Over https a Chromium elsewhere sends nothing twice either: what the site answers, in whichever way a page
// commits, frames of other sites and workers included.
func TestAChromiumElsewhereSendsNothingTwice(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	b := c.elsewhere(t)
	sites := map[string]func(http.Handler) *httptest.Server{"https": c.serve}
	nothingIsSentTwice(t, b, sites)
	everyWayToCommit(t, b, sites)
}

// From the commit on, the proxy alone judges the certificates of sites for a Chromium elsewhere. A page that then
// calls a site with a bad one sends it nothing. If the skill's own site does not check, the tunnels stay: Chromium judges.
func TestAChromiumElsewhereTrustsNoOtherSite(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	b := c.elsewhere(t)
	fine := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }
	for _, checks := range []bool{true, false} {
		bad := newShop(t, b, https, "a form", fine)
		s := newShop(t, b, c.serve, "a script", fine)
		p := s.before(t).(*session)
		if !checks {
			p.proxy.roots = x509.NewCertPool()
		}
		if r := p.Commit(context.Background()); r.Event != skill.Clicked || s.posts.Load() != 1 || p.proxy.judges != checks {
			t.Fatalf("checks %v: %d posts, the proxy judges %v, %s", checks, s.posts.Load(), p.proxy.judges, show(t, r))
		}
		said, err := p.page.Evaluate(`async url => {
  const said = [];
  for (const of of [url + '/act', location.origin + '/ping']) {
    try { said.push((await fetch(of, { method: of.endsWith('act') ? 'POST' : 'GET', mode: 'no-cors', body: of.endsWith('act') ? 'x=1' : undefined })).type) } catch { said.push('refused') }
  }
  return said.join(' ');
}`, bad.url)
		if err != nil || said != "refused basic" || bad.posts.Load() != 0 {
			t.Errorf("checks %v: %v %v, %d posts", checks, said, err, bad.posts.Load())
		}
		p.Close()
	}
}

// In production a Chromium elsewhere that runs without its sandbox is refused, unless the operator
// says so.
func TestAChromiumElsewhereWithoutASandbox(t *testing.T) {
	t.Parallel()
	far := startRemote(t, 0, append([]string{"--no-sandbox"}, proxied...)...)
	cfg := config(t)
	cfg.CDP, cfg.Production = far.url(), true
	w := newWorld(t)
	for _, allowed := range []bool{false, true} {
		cfg.NoSandbox = allowed
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		r, err := b.Read(context.Background(), w.job(t, page("/lab/plain", false), `{}`))
		if allowed && (err != nil || r.Event != skill.Verified) || !allowed && !errors.Is(err, errNoSandboxElsewhere) {
			t.Fatalf("allowed %v: %v %s", allowed, err, show(t, r))
		}
	}
}

// TestAChromiumElsewhereThatSendsPastTheProxy: WebRTC and QUIC of a Chromium that was started without our arguments reach what the
// guard refuses. In production it is not used, whatever the operator says of its sandbox; in development the log says so.
func TestAChromiumElsewhereThatSendsPastTheProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		args       []string
		production bool
		refused    bool
		warns      int
	}{
		"in production, with both":      {proxied, true, false, 0},
		"in production, WebRTC is open": {proxied[1:], true, true, 0},
		"in production, QUIC is on":     {proxied[:1], true, true, 0},
		"in development":                {nil, false, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &lines{}
			cfg := config(t)
			cfg.CDP, cfg.Production, cfg.NoSandbox, cfg.Log = startRemote(t, 0, c.args...).url(), c.production, true, zerolog.New(log)
			b, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close(context.Background()) })
			r, err := b.Read(context.Background(), w.job(t, page("/lab/plain", false), `{}`))
			if c.refused != errors.Is(err, errOpenElsewhere) || c.refused != errors.Is(err, ErrUnavailable) || !c.refused && (err != nil || r.Event != skill.Verified) {
				t.Error(err, show(t, r))
			}
			if got := strings.Count(log.String(), "lets pages send past the proxy, which"); got != c.warns {
				t.Errorf("%d warnings: %s", got, log.String())
			}
		})
	}
}

// In production the operator may say that something else confines a Chromium without a sandbox. It is
// started without as in development, with a warning, after it was tried with its sandbox.
func TestTheOperatorDoesWithoutASandbox(t *testing.T) {
	t.Parallel()
	u, log := newUnconfined(t), &lines{}
	cfg := config(t)
	cfg.Chromium, cfg.Production, cfg.NoSandbox, cfg.Log = u.program, true, true, zerolog.New(log)
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	if r, err := b.Read(context.Background(), w.job(t, page("/lab/plain", false), `{}`)); err != nil || r.Event != skill.Verified {
		t.Fatal(err, show(t, r))
	}
	if got := u.starts(t); got != "sandboxed without" {
		t.Errorf("started %q", got)
	}
	if got := log.String(); !strings.Contains(got, `"level":"warn","message":"chromium runs without its own sandbox: this machine does not allow it"`) {
		t.Errorf("the operator reads %s", got)
	}
}

// silence is a UDP socket and a TCP listener of one port that pages are not to reach.
type silence struct {
	at      string
	packets atomic.Int64
	conns   atomic.Int64
}

func newSilence(t testing.TB) *silence {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	s := &silence{at: tcp.Addr().String()}
	go func() {
		for b := make([]byte, 2048); ; s.packets.Add(1) {
			if _, _, err := udp.ReadFrom(b); err != nil {
				return
			}
		}
	}()
	go func() {
		for ; ; s.conns.Add(1) {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return s
}

// guardWithout allows loopback but one listener, which it takes for our own.
func guardWithout(addr string) *egress.Guard {
	return egress.New(egress.Config{Allow: loopback, Own: []netip.AddrPort{netip.MustParseAddrPort(addr)}})
}

// peers is a skill that opens a page with WebRTC, and waits until that has gathered its ways out.
func peers(at string) string {
	return strings.Replace(page("/lab/peer?to="+at, false), `"result_fields"`, `"assertions":[{"kind":"element_text","selector":"#said","value":"gathered"}],"result_fields"`, 1)
}

// TestNoDatagramLeaves: WebRTC with a STUN server, a TURN server over TCP and a peer's own address
// sends nothing past the proxy, and neither does HTTP/3 that a site offers. The same page in a
// Chromium without our arguments, as an operator might start one elsewhere, does.
func TestNoDatagramLeaves(t *testing.T) {
	t.Parallel()
	quiet := newSilence(t)
	cfg := config(t)
	cfg.Guard, cfg.anyCertificate = guardWithout(quiet.at), true
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	_, port, _ := net.SplitHostPort(quiet.at)
	w := newWorldOver(t, func(h http.Handler) *httptest.Server {
		return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Alt-Svc", `h3=":`+port+`"; ma=3600`)
			h.ServeHTTP(w, r)
		}))
	})
	for range 2 { // the second one knows of HTTP/3
		if r, err := b.Read(context.Background(), w.job(t, peers(quiet.at), `{}`)); err != nil || r.Event != skill.Verified {
			t.Fatal(err, show(t, r))
		}
	}
	if quiet.packets.Load() != 0 || quiet.conns.Load() != 0 {
		t.Errorf("%d datagrams and %d connections came through", quiet.packets.Load(), quiet.conns.Load())
	}

	heard := newSilence(t)
	cfg.CDP, cfg.Guard = startRemote(t, 0).url(), guardWithout(heard.at)
	far, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close(context.Background()) })
	if r, err := far.Read(context.Background(), w.job(t, peers(heard.at), `{}`)); err != nil {
		t.Fatal(err, show(t, r))
	}
	testkit.Eventually(t, "the page sends datagrams where nothing keeps it from it", func() bool { return heard.packets.Load() > 0 })
}
