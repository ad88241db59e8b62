package browser

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/egress"
)

// TestCutTunnelGetsNoSecondRequest: Chromium repeats a request whose kept connection is cut. Over
// the proxy, a connection that was open before the commit is closed first, and one that is cut
// before its answer is held open.
func TestCutTunnelGetsNoSecondRequest(t *testing.T) {
	t.Parallel()
	t.Run("closed", func(t *testing.T) {
		cutTunnel(t, func(c net.Conn) { c.Close() })
	})
	// The alert arrives before the end of the connection, or without one.
	t.Run("alert", func(t *testing.T) {
		cutTunnel(t, func(c net.Conn) {
			t.Cleanup(func() { c.Close() })
			_ = c.(*tls.Conn).CloseWrite()
		})
	})
	t.Run("reset", func(t *testing.T) {
		cutTunnel(t, func(c net.Conn) {
			raw := c.(*tls.Conn).NetConn()
			_ = raw.(*net.TCPConn).SetLinger(0)
			raw.Close()
		})
	})
}

func cutTunnel(t *testing.T, cut func(net.Conn)) {
	var posts atomic.Int64
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				cut(c)
			}
			return
		}
		fmt.Fprint(w, "hello")
	}))
	t.Cleanup(site.Close)
	p, err := newProxy(egress.New(egress.Config{Allow: loopback}), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	// A client as a browser is one: it keeps its tunnel, and repeats a request that a kept one
	// lost.
	through, err := url.Parse(p.url())
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(tr.CloseIdleConnections)
	client := &http.Client{Transport: tr}
	get := func() {
		resp, err := client.Get(site.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	send := func(ctx context.Context) error {
		// A body that can be read again and a key make net/http repeat it as Chromium does.
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL, strings.NewReader("x=1"))
		if err != nil {
			return err
		}
		r.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	get()
	if err := send(t.Context()); err == nil || posts.Load() != 2 {
		t.Fatalf("the client is no browser: %d requests, %v", posts.Load(), err)
	}
	posts.Store(0)
	get()
	p.fresh(t.Context(), nil, nil)
	get() // a page's own request makes a kept connection again, after the old ones were closed
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- send(ctx) }()
	select {
	case <-p.cut:
	case err := <-done:
		t.Fatal("the cut was passed on: ", err)
	case <-time.After(10 * time.Second):
		t.Fatal("the cut was not noticed")
	}
	cancel()
	<-done
	if n := posts.Load(); n != 1 {
		t.Fatalf("%d requests", n)
	}
	if resp, err := client.Get(site.URL); err == nil {
		resp.Body.Close()
		t.Fatal("a session whose commit was cut sends on")
	}
}

// From the commit on, no page is led elsewhere; what pages load from other hosts is.
func TestProxyKeepsPagesInTheirScope(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(site.Close)
	p, err := newProxy(egress.New(egress.Config{Allow: loopback}), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	through, err := url.Parse(p.url())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(through), DisableKeepAlives: true}}
	for i, c := range []struct {
		path, field, value string
		status             int
	}{
		{"/away", "Sec-Fetch-Dest", "document", 403}, {"/away", "Upgrade-Insecure-Requests", "1", 403},
		{"/away", "Sec-Fetch-Dest", "image", 200}, {"/away", "Sec-Fetch-Dest", "iframe", 200}, {"/away", "X", "", 200}, {"/here", "Sec-Fetch-Dest", "document", 200},
	} {
		for _, begun := range []bool{false, true} {
			before, status := asked.Load(), 200
			p.mu.Lock()
			if p.within = nil; begun {
				p.within, status = func(url string) bool { return strings.HasSuffix(url, "/here") }, c.status
			}
			p.mu.Unlock()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, site.URL+c.path, strings.NewReader("x=1"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(c.field, c.value)
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != status || (asked.Load() > before) != (status == 200) {
				t.Errorf("%d, begun %t: %d, asked %d times", i, begun, resp.StatusCode, asked.Load()-before)
			}
		}
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	other, err := newProxy(egress.New(egress.Config{}), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.close)
	p, err := newProxy(egress.New(egress.Config{Allow: loopback}), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	ask := func(line, head string) string {
		c, err := net.Dial("tcp", p.ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n", line, head)
		s, _ := bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(s)
	}
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth("svc", p.password)
	ok := "Proxy-Authorization: " + r.Header.Get("Authorization") + "\r\n"
	for _, c := range []struct{ line, head, want string }{
		{"CONNECT " + other.ln.Addr().String(), "", "407"},
		{"CONNECT " + other.ln.Addr().String(), "Proxy-Authorization: Basic c3ZjOg==\r\n", "407"},
		{"CONNECT " + other.ln.Addr().String(), ok, "403"},
		{"CONNECT 169.254.169.254:80", ok, "403"},
		{"GET http://10.0.0.1/", ok, "403"},
		{"GET /path", ok, "400"},
		{"GET ftp://127.0.0.1/", ok, "400"},
	} {
		if got := ask(c.line, c.head); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", c.line, got)
		}
	}
}

// A browser that hangs while it starts holds back neither those who ask whether there is one, nor a job that leaves, nor the
// end of the node, and leaves no process.
func TestABrowserThatHangsWhileItStarts(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "hang") // the browser's user reaches it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	chromium := filepath.Join(dir, "chromium")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(chromium, []byte("#!/bin/sh\nsleep 100\ntrue\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"driver":   func(c *Config) { c.Command = []string{"/bin/sh", "-c", "sleep 100; true"} },
		"chromium": func(c *Config) { c.Chromium = chromium },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			cfg.Name += "-hang-" + name
			change(&cfg)
			b, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			w := serves(t, "")
			left, leave := context.WithCancel(t.Context())
			ended := make(chan error, 2)
			for _, ctx := range []context.Context{left, t.Context()} {
				go func() {
					_, err := b.Read(ctx, w.job(t, page("/", false), `{}`))
					ended <- err
				}()
			}
			family := func() (pids []int) {
				homes, _ := filepath.Glob(filepath.Join(b.cfg.Dir, cfg.Name+"-*"))
				for _, h := range homes {
					pids = append(pids, familyOf(h)...)
				}
				return pids
			}
			testkit.Eventually(t, "it hangs", func() bool {
				return slices.ContainsFunc(family(), func(pid int) bool {
					line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
					return string(line) == "sleep\x00100\x00"
				})
			})
			begin := time.Now()
			if err := b.Available(); err != nil {
				t.Error(err)
			}
			leave()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a job that left: %v", err)
			}
			limit, cancel := context.WithTimeout(t.Context(), launchTimeout/2)
			defer cancel()
			if err := b.Close(limit); err != nil {
				t.Errorf("the end of the node: %v", err)
			}
			if err := <-ended; !errors.Is(err, ErrUnavailable) {
				t.Errorf("a job that waits: %v", err)
			}
			if took := time.Since(begin); took > launchTimeout/2 || len(family()) > 0 || b.Available() == nil {
				t.Errorf("after %v there are %d processes; available: %v", took, len(family()), b.Available())
			}
		})
	}
}

// A page that spins has a processor until its step is over, and holds up no other job: pages of two jobs share no process, and all
// of them give way to the service.
func TestASpinningPageHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.StepTimeout, cfg.JobTimeout = time.Minute, 2*time.Minute
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	spinning := make(chan struct{})
	go func() {
		defer close(spinning)
		_, _ = b.Read(ctx, w.job(t, page("/lab/loop", false), `{}`))
	}()
	testkit.Eventually(t, "the page is asked for", func() bool { return w.Hits("GET /lab/loop") > 0 })
	if r, err := b.Read(context.Background(), w.job(t, page("/lab/plain", false), `{}`)); err != nil || r.Event != skill.Verified {
		t.Error(err, show(t, r))
	}
	select {
	case <-spinning:
		t.Error("the page that spins had ended before")
	default:
	}
	cancel()
	<-spinning
}

// TestMemoryIsBounded: a page that takes more memory than it may have is ended, the browser stays.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Memory, cfg.StepTimeout = 700<<20, 20*time.Second
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	definition := strings.Replace(page("/lab/bomb", false), `"}],"result`, `"},{"id":"wait","kind":"wait","target":{"selector":"#never"},"value":""}],"result`, 1)
	r, err := b.Read(context.Background(), w.job(t, definition, `{}`))
	if err != nil || r.Event != skill.Lost {
		t.Fatal(err, show(t, r))
	}
	b.mu.Lock()
	e := b.engine
	b.mu.Unlock()
	select {
	case <-e.dead:
		t.Fatal("the browser was ended with its page")
	default:
	}
	if r, err := b.Read(context.Background(), w.job(t, page("/lab/plain", false), `{}`)); err != nil || r.Event != skill.Verified {
		t.Fatal(err, show(t, r))
	}
}

// What a page says reaches the service cut, whatever its length, and the page goes on.
func TestMessagesOfPagesAreBounded(t *testing.T) {
	t.Parallel()
	b, err := New(config(t)) // its driver has work with such messages
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	hostile := serves(t, `<script>document.title = 'x'.repeat(1 << 20); setTimeout(() => { throw new Error('y'.repeat(9 << 20)) }, 0)</script>`) // it is said twice
	s, err := b.open(t.Context(), hostile.job(t, page("/", false), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	thrown := make(chan string, 1)
	s.page.OnPageError(func(err error) { thrown <- err.Error() })
	if err := s.goTo(t.Context(), hostile.url); err != nil {
		t.Fatal(err)
	}
	const longest = 2<<20 + 100 // of an error, with where it was thrown
	select {
	case text := <-thrown:
		if len(text) > longest {
			t.Errorf("an error has %d bytes", len(text))
		}
	case <-time.After(testkit.Patience):
		t.Error("no error is heard of")
	}
	v, err := s.page.Evaluate("() => ['z'.repeat(17 << 20), 'end']")
	if all, ok := v.([]any); err != nil || !ok || len(all) != 2 || len(all[0].(string)) > longest || all[1] != "end" {
		t.Errorf("a text is not cut: %T %v", v, err)
	}
	if title, err := s.title(t.Context()); err != nil || len(title) > maxTitle+3 || !strings.HasPrefix(title, "xxx") {
		t.Errorf("the title has %d bytes: %v", len(title), err)
	}
}

// TestFramesEndNoBrowser: a page whose frames of several sites, each a process of its own, take more memory than a browser may
// have loses frames. The browser stays, with the pages of others.
func TestFramesEndNoBrowser(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Memory = 700 << 20
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	other, err := b.open(t.Context(), w.job(t, page("/lab/plain", false), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if err := other.goTo(t.Context(), w.url+"/lab/plain"); err != nil {
		t.Fatal(err)
	}
	const frames = 8
	html, ended := "<!doctype html>", atomic.Int64{}
	for i := range frames {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+2))
		if err != nil {
			t.Fatal(err)
		}
		of := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			if r.URL.Path == "/while" { // its connection lasts as long as the frame
				fmt.Fprint(w, "begun")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				ended.Add(1)
				return
			}
			fmt.Fprint(w, `<script>fetch('/while').then(() => { const a = new Uint8Array(100 << 20); a.fill(1); window.kept = a })</script>`)
		}))
		of.Listener.Close()
		of.Listener = ln
		of.Start()
		t.Cleanup(of.Close)
		html += `<iframe src="` + of.URL + `"></iframe>`
	}
	hostile := serves(t, html)
	s, err := b.open(t.Context(), hostile.job(t, page("/", false), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.goTo(t.Context(), hostile.url); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "frames are ended until the rest fits", func() bool {
		select {
		case <-s.e.dead:
			t.Fatal("the browser was ended: ", s.e.why)
		default:
		}
		return ended.Load() > 0 && resident(familyOf(s.e.home.path)) < cfg.Memory
	})
	if n := ended.Load(); n == frames {
		t.Error("every frame was ended")
	}
	if title, err := other.title(t.Context()); err != nil || title == "" || other.trouble() != nil {
		t.Errorf("the page of another job: %q %v %v", title, err, other.trouble())
	}
}

// ofBrowsers is what the processes of a browser have as their environment, with what a shell and Playwright add.
var ofBrowsers = []string{"PATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "LC_ALL", "TZ", "PWD", "OLDPWD", "SHLVL", "_"}

// TestABrowserGivesWay: the processes of a browser have a low priority, also among sessions, another user than root, nothing of our
// environment, and leave no picture of their memory when they crash.
func TestABrowserGivesWay(t *testing.T) {
	t.Parallel()
	b, err := New(config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	if r, err := b.Read(context.Background(), newWorld(t).job(t, page("/lab/plain", false), `{}`)); err != nil || r.Event != skill.Verified {
		t.Fatal(err, show(t, r))
	}
	b.mu.Lock()
	home := b.engine.home.path
	b.mu.Unlock()
	if family := familyOf(home); len(family) < 2 {
		t.Fatalf("%d processes", len(family))
	}
	for _, pid := range familyOf(home) {
		if nice, err := syscall.Getpriority(syscall.PRIO_PROCESS, pid); err == nil && 20-nice < niceness {
			t.Errorf("process %d has the priority %d", pid, 20-nice)
		}
	}
	for _, pid := range familyOf(home) {
		read := func(name string) string {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			return string(text)
		}
		status, limits := read("status"), read("limits")
		if os.Geteuid() == 0 && strings.Contains(status, "\nUid:\t0\t") {
			t.Errorf("process %d is root", pid)
		}
		if limits != "" && !regexp.MustCompile(`Max core file size +0 +0 `).MatchString(limits) {
			t.Errorf("process %d may write its memory to a file: %s", pid, limits)
		}
		// Chromium writes over what the kernel shows of its helpers' environments.
		for _, v := range strings.Split(read("environ"), "\x00") {
			if name, _, is := strings.Cut(v, "="); is && regexp.MustCompile(`^[A-Z_]+$`).MatchString(name) && !slices.Contains(ofBrowsers, name) {
				t.Errorf("process %d has %s", pid, v)
			}
		}
	}
	testkit.Eventually(t, "every session of the browser has the priority", func() bool {
		for _, pid := range familyOf(home) {
			// There is no such file where the kernel has no groups of sessions.
			if group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", pid)); err == nil && !strings.HasSuffix(strings.TrimSpace(string(group)), fmt.Sprintf("nice %d", niceness)) {
				return false
			}
		}
		return true
	})
}

// TestLeftoversOfAKilledProcess: the next process of the installation ends and removes what a
// killed one left, and nothing of one that lives.
func TestLeftoversOfAKilledProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left, alive := filepath.Join(dir, "one-left"), filepath.Join(dir, "one-alive")
	for _, d := range []string{left, alive, filepath.Join(dir, "other-x")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := lockFile(filepath.Join(alive, lockName))
	if err != nil || lock == nil {
		t.Fatal(err)
	}
	defer lock.Close()
	run := func(d string) *exec.Cmd {
		c := exec.Command("/bin/sh", "-c", "sleep 60; : "+d+"/x; exit 1") // also if its child is ended first
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	dead, live := run(left), run(alive)
	defer func() { _ = live.Process.Kill(); _ = live.Wait() }()
	testkit.Eventually(t, "the leftover is seen with its child", func() bool { return len(familyOf(left)) == 2 })
	if err := sweep(dir, "one"); err != nil {
		t.Fatal(err)
	}
	if err := dead.Wait(); err == nil {
		t.Fatal("it was not ended")
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Fatal("its directory is there")
	}
	if len(familyOf(alive)) == 0 {
		t.Fatal("a living one was ended")
	}
	for _, pid := range familyOf(alive) {
		endProcess(pid)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"driver":   func(c *Config) { c.Driver = "/nowhere" },
		"program":  func(c *Config) { c.Chromium = "/nowhere" },
		"sandbox":  func(c *Config) { c.Production = true },
		"stopping": nil,
	} {
		cfg := config(t)
		if change != nil {
			change(&cfg)
		}
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		switch name {
		case "sandbox":
			b.sandbox = sandboxNone
		case "stopping":
			_ = b.Close(context.Background())
		}
		if err := b.Available(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := b.Prepare(context.Background(), &skill.Job{Definition: &skill.Definition{}}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		b.sandbox, b.cfg.NoSandbox = sandboxNone, true
		if err := b.Available(); name == "sandbox" && err != nil {
			t.Error(err)
		}
	}
}

func TestRedaction(t *testing.T) {
	t.Parallel()
	var s secrets
	s.add("p&ss word+1")
	s.add("ab") // too short to be told from other text
	for in, want := range map[string]string{
		"the P&SS word+1 is":                  "the " + mark + " is",
		"?p=p%26ss+word%2B1":                  "?p=" + mark,
		"?p=p%26ss%20word%2B1":                "?p=" + mark,
		"p&amp;ss word+1":                     mark,
		"p&s\u202es word+1":                   mark,
		"p&s\u200bs word+1":                   mark,
		"p&s\ns wor\r\nd+1":                   mark, // lines that a page breaks
		`p\u0026ss word\u002b1`:               mark,
		`{"p":"p\u0026ss word\u002b1"}`:       `{"p":"` + mark + `"}`,
		"%70%26%73%73%20%77%6f%72%64%2B%31":   mark,
		"P%26SS%20WORD%2b1":                   mark,
		"7026737320776f72642b31":              mark,
		"cCZzcyB3b3JkKzE":                     mark, // without its padding
		"cCZzcyB3\nb3JkKzE=":                  mark,
		"Basic dXNlcjpwJnNzIHdvcmQrMTp4 sent": "Basic dXNlcjp" + mark + "Tp4 sent", // of user:p&ss word+1:x
		"cCZzcyB3b3JkKzE=":                    mark,
		"ab and nothing":                      "ab and nothing",
		"a\u0000b\u202ec\n d":                 "abc  d",
	} {
		if got := s.clean(in, 100); got != want {
			t.Errorf("%q became %q, not %q", in, got, want)
		}
	}
	if got := s.clean(strings.Repeat("é", 100), 9); got != "éééé…" {
		t.Error(got)
	}
}

func TestNumbersOfPages(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		"$1,280.00": "1280", "1.280,50 €": "1280.5", "1 280,5": "1280.5", "49.90": "49.9", "1,280": "1280", "12,5": "12.5", "-3": "-3", "0": "0", "-0.0": "0", "No. 007": "7",
		"1'000'000": "1000000", "1.234.567": "1234567", "none": nil, "": nil, "1.234": "1.234",
	} {
		got := typed(skill.Number, text)
		if want == nil && got != nil || want != nil && fmt.Sprint(got) != want {
			t.Errorf("%q: %v, not %v", text, got, want)
		}
	}
	for text, want := range map[string]any{"1,280 orders": int64(1280), "3.5": nil, "3.0": int64(3), "x": nil} {
		if got := typed(skill.Integer, text); got != want {
			t.Errorf("%q: %v, not %v", text, got, want)
		}
	}
}

// TestASessionIsMadeAhead: a browser without a job holds one session for the next, which is as fresh as any: its
// page is empty, and its context and proxy are no other job's. It ends with the browser.
func TestASessionIsMadeAhead(t *testing.T) {
	t.Parallel()
	b, err := New(config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	begin := func() *session {
		s, err := b.open(t.Context(), w.job(t, page("/lab/plain", false), `{}`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	first := begin()
	first.Close()
	waitAhead(t, b)
	spare := b.engine.spare
	second := begin()
	if len(spare) != 0 || second.page.URL() != "about:blank" || second.context == first.context || second.proxy == first.proxy {
		t.Fatal("the session made ahead was not taken, or was another job's")
	}
	third := begin()
	if third.context == second.context || third.proxy == second.proxy {
		t.Fatal("two jobs share a session")
	}
	second.Close()
	third.Close()
	waitAhead(t, b)

	release, err := b.places.take(t.Context(), third.job.Tenant) // none is made meanwhile
	if err != nil {
		t.Fatal(err)
	}
	ended := <-spare
	_ = ended.page.Close()
	testkit.Eventually(t, "the end of the page is noticed", func() bool { return ended.trouble() != nil })
	spare <- ended
	release()
	if s := begin(); s == ended {
		t.Fatal("a session was taken whose page has ended")
	} else {
		s.Close()
	}

	waitAhead(t, b)
	_ = b.Close(context.Background())
	testkit.Eventually(t, "the session made ahead ends with the browser", func() bool { return len(spare) == 0 })
}

// waitAhead waits until a browser has made a session ahead.
func waitAhead(t testing.TB, b *Browser) {
	t.Helper()
	b.mu.Lock()
	e := b.engine
	b.mu.Unlock()
	testkit.Eventually(t, "a session is made ahead", func() bool { return len(e.spare) == 1 })
}

// BenchmarkContextReady reports the median time until a session of a warm browser has its page: of one that had
// nothing to do and made it ahead, of one that had not yet, and of a plain script.
func BenchmarkContextReady(b *testing.B) {
	br, w := shared.get(b), newWorld(b)
	j := w.job(b, page("/lab/plain", false), `{}`)
	open := func() time.Duration {
		begun := time.Now()
		s, err := br.open(b.Context(), j)
		if err != nil {
			b.Fatal(err)
		}
		took := time.Since(begun)
		s.Close()
		return took
	}
	open() // the browser is started
	p, err := newProxy(br.cfg.Guard, "")
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	var ahead, fresh, script []time.Duration
	for b.Loop() {
		waitAhead(b, br)
		ahead = append(ahead, open())
		waitAhead(b, br)
		first, err := br.open(b.Context(), j)
		if err != nil {
			b.Fatal(err)
		}
		fresh = append(fresh, open())
		begun := time.Now()
		c, _, err := plainPage(br.engine, p.url())
		if err != nil {
			b.Fatal(err)
		}
		script = append(script, time.Since(begun))
		_ = c.Close()
		first.Close()
	}
	b.ReportMetric(median(ahead), "p50-ms")
	b.ReportMetric(float64(ahead[len(ahead)*99/100])/float64(time.Millisecond), "p99-ms")
	b.ReportMetric(median(fresh), "not-ahead-p50-ms")
	b.ReportMetric(median(script), "plain-p50-ms")
}

// median sorts times and returns their median in milliseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2]) / float64(time.Millisecond)
}

// BenchmarkOverPlain performs the same steps by the executor and by a plain script in turn, and reports the medians of
// both.
func BenchmarkOverPlain(b *testing.B) {
	br, w := shared.get(b), newWorld(b)
	executor := func() {
		s, r, err := br.Prepare(b.Context(), w.job(b, cancelOrder, values))
		if err != nil || s == nil {
			b.Fatal(err, show(b, r))
		}
		defer s.Close()
		if r := s.Commit(b.Context()); r.Event != skill.Clicked {
			b.Fatal(show(b, r))
		}
		if r := s.Verify(b.Context()); r.Event != skill.Verified {
			b.Fatal(show(b, r))
		}
	}
	executor() // a browser that was just started is slower
	p, err := newProxy(br.cfg.Guard, "")
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	script := func() {
		if err := plain(br.engine, w, p.url()); err != nil {
			b.Fatal(err)
		}
	}
	var took [2][]time.Duration
	for b.Loop() {
		for i, run := range []func(){executor, script} {
			o, _ := w.Order("1001")
			o.Status = "open"
			w.Add(o)
			waitAhead(b, br) // for the script as well, so that nothing is made beside it
			begun := time.Now()
			run()
			took[i] = append(took[i], time.Since(begun))
		}
	}
	one, other := median(took[0]), median(took[1])
	b.ReportMetric(one, "executor-ms")
	b.ReportMetric(other, "plain-ms")
	b.ReportMetric(one/other, "ratio")
}
