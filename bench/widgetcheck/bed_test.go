package widgetcheck

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

var (
	binary   = flag.String("svc", "../../bin/svc", "the service's binary, with the widget in it")
	pictures = flag.String("pictures", "", "write the pictures of the documentation to this folder")
)

// patience is how long anything may take that a test waits for.
const patience = 30 * time.Second

const chromium = "/usr/lib/chromium/chromium-headless-shell" // itself: the file in /usr/bin is a wrapper whose end nobody notices

var (
	modules string // the installed node_modules
	browser playwright.Browser
	shared  *service // of all tests that do nothing to it
	expect  = playwright.NewPlaywrightAssertions(float64(patience.Milliseconds()))
)

func TestMain(m *testing.M) {
	flag.Parse()
	// More pages at once than processors only wait for each other.
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err)
	}
	code, err := all(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func all(m *testing.M) (code int, err error) {
	dir, err := install()
	if err != nil {
		return 0, err
	}
	modules = filepath.Join(dir, "node_modules")
	pw, err := playwright.Run(&playwright.RunOptions{DriverDirectory: filepath.Join(dir, "driver"), SkipInstallBrowsers: true})
	if err != nil {
		return 0, fmt.Errorf("start the driver: %w", err)
	}
	defer pw.Stop()
	if browser, err = pw.Chromium.Launch(playwright.BrowserTypeLaunchOptions{
		ExecutablePath:  playwright.String(chromium),
		ChromiumSandbox: playwright.Bool(os.Getuid() != 0), // root may not have one
		Args:            []string{"--disable-dev-shm-usage", "--disable-gpu", "--font-render-hinting=none"},
	}); err != nil {
		return 0, fmt.Errorf("start %s: %w", chromium, err)
	}
	defer browser.Close()
	// Every test has addresses of its own behind its gate, so that the limits by
	// address, which are fixed, are not those of the whole suite.
	if shared, err = newService("SVC_TRUSTED_PROXIES=127.0.0.0/8"); err != nil {
		return 0, err
	}
	defer shared.remove()
	if err := shared.start(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// install puts the packages of package-lock.json into the cache, whole or not at
// all, with the folder that the driver is started from.
func install() (string, error) {
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "agentsvc", "widgetcheck-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(fresh, name), b, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	ci := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	ci.Dir = fresh
	if out, err := ci.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return "", err
	}
	driver := filepath.Join(fresh, "driver")
	if err := errors.Join(os.Mkdir(driver, 0o755), os.Symlink(node, filepath.Join(driver, "node")),
		os.Symlink("../node_modules/playwright-core", filepath.Join(driver, "package"))); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(dir); there == nil {
			return dir, nil // somebody else was quicker
		}
		return "", err
	}
	return dir, nil
}

// service is a `svc dev` with a private Postgres: a tenant, an agent on the
// simulated model, tools of which one needs an approval.
type service struct {
	dir  string
	addr string
	env  []string

	cmd    *exec.Cmd
	ended  chan struct{}
	tenant string
	key    string
	agent  string
}

func newService(env ...string) (*service, error) {
	file, err := filepath.Abs(*binary)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("no service to test: %w (make build)", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &service{addr: l.Addr().String()}
	l.Close()
	if s.dir, err = os.MkdirTemp("", "svc-widget-"); err != nil {
		return nil, err
	}
	// Postgres, which never runs as root, goes through it.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return nil, err
	}
	s.env = append(append(os.Environ(), "SVC_ADDR="+s.addr, "SVC_DATA_DIR="+filepath.Join(s.dir, "data"), "SVC_LOG_FORMAT=json",
		"SVC_RATE_CAPACITY=100000", "SVC_RATE_REFILL=100000", "SVC_CLUSTER_LEASE=1s"), env...)
	return s, nil
}

func (s *service) url() string { return "http://" + s.addr }

// start runs the service until it is ready.
func (s *service) start() error {
	file, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(file, "dev", "--json")
	s.cmd.Env, s.cmd.Stderr = s.env, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := s.cmd, make(chan struct{})
	s.ended = ended
	first := make(chan []byte, 1)
	go func() {
		defer close(ended)
		r := bufio.NewReader(out)
		line, _ := r.ReadBytes('\n')
		first <- line
		_, _ = io.Copy(io.Discard, r)
		_ = cmd.Wait()
	}()
	select {
	case line := <-first:
		var sample struct {
			TenantID string `json:"tenant_id"`
			APIKey   string `json:"api_key"`
			AgentID  string `json:"agent_id"`
		}
		if err := json.Unmarshal(line, &sample); err != nil {
			said, _ := os.ReadFile(log.Name())
			return fmt.Errorf("svc dev did not start: %s%s", line, said)
		}
		s.tenant, s.key, s.agent = sample.TenantID, sample.APIKey, sample.AgentID
		return nil
	case <-time.After(2 * patience):
		return errors.New("svc dev is not ready")
	}
}

// kill ends the service as a crash does.
func (s *service) kill() { s.end(syscall.SIGKILL) }

func (s *service) end(how syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(how)
	<-s.ended
	s.cmd = nil
}

func (s *service) remove() {
	s.end(syscall.SIGTERM)
	os.RemoveAll(s.dir)
}

// own is a service of one test's.
func own(t *testing.T, env ...string) *service {
	t.Helper()
	s, err := newService(env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.remove)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// call is the platform API, as the tenant's back end calls it.
func (s *service) call(t *testing.T, method, path string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(b)
	}
	q, err := http.NewRequest(method, s.url()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+s.key)
	q.Header.Set("X-Tenant-Id", s.tenant)
	if in != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	answer, err := (&http.Client{Timeout: patience}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s", method, path, answer.Status, b)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			t.Fatal(err)
		}
	}
}

type object = map[string]any

var numbered atomic.Int64

// gate stands between the browsers of one test and the service. It gives them an
// address of their own, sees what they ask, and can be shut.
type gate struct {
	*httptest.Server
	shut atomic.Bool

	mu    sync.Mutex // guards asked
	asked []asked
}

type asked struct {
	method, path, after string // after: Last-Event-ID
	status              int
}

// newGate forwards to a service. What breaks behind it breaks before it, too.
func newGate(t *testing.T, s *service) *gate {
	target, err := url.Parse(s.url())
	if err != nil {
		t.Fatal(err)
	}
	n := numbered.Add(1)
	from := fmt.Sprintf("10.1.%d.%d", n>>8&255, n&255)
	g := &gate{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("X-Forwarded-For", from)
		},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(r *http.Response) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.asked = append(g.asked, asked{r.Request.Method, r.Request.URL.Path, r.Request.Header.Get("Last-Event-ID"), r.StatusCode})
			return nil
		},
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.shut.Load() {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

// cut breaks all connections at once.
func (g *gate) cut() { g.CloseClientConnections() }

// count is how many requests had an answer of that status; 0: of any.
func (g *gate) count(method, part string, status int) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.asked {
		if a.method == method && strings.Contains(a.path, part) && (status == 0 || a.status == status) {
			n++
		}
	}
	return n
}

// resumed is the Last-Event-ID of each stream that was opened.
func (g *gate) resumed() (after []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.asked {
		if a.method == "GET" && strings.HasSuffix(a.path, "/events") && a.status == 200 {
			after = append(after, a.after)
		}
	}
	return after
}

// site is somebody's web site, on an origin of its own.
type site struct {
	*httptest.Server

	mu    sync.Mutex // guards pages
	pages map[string]webpage
}

type webpage struct {
	html string
	csp  string
}

func newSite(t *testing.T) *site {
	s := &site{pages: map[string]webpage{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		p, ok := s.pages[r.URL.Path]
		s.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		if strings.HasSuffix(r.URL.Path, ".js") {
			w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		} else {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
		}
		if p.csp != "" {
			w.Header().Set("Content-Security-Policy", p.csp)
		}
		io.WriteString(w, p.html)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// page puts a page on the site and answers its address.
func (s *site) page(path, html, csp string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = webpage{html, csp}
	return s.URL + path
}

// bed is what a scenario stands on: a service, a gate to it, a web site whose
// origin an embed key allows, and a browser with nothing in it.
type bed struct {
	t    *testing.T
	svc  *service
	gate *gate
	site *site
	base string // where the widget comes from
	key  string // publishable

	keyID    string
	identity string // the identity secret
	ctx      playwright.BrowserContext

	mu      sync.Mutex // guards the fields below
	faults  []string
	console []string
	allowed []string // parts of what the console may say
	hosts   map[string]bool
}

type options struct {
	service *service // nil: the shared one
	direct  bool     // without a gate
	key     object   // further members of the embed key
	agent   object   // an agent of its own
	context playwright.BrowserNewContextOptions
}

func newBed(t *testing.T, o options) *bed {
	t.Helper()
	b := &bed{t: t, svc: o.service, site: newSite(t)}
	if b.svc == nil {
		b.svc = shared
	}
	if b.base = b.svc.url(); !o.direct {
		b.gate = newGate(t, b.svc)
		b.base = b.gate.URL
	}
	agent := b.svc.agent
	if o.agent != nil {
		agent = newAgent(t, b.svc, o.agent)
	}
	key := object{"agent_id": agent, "name": fmt.Sprintf("%s %d", t.Name(), numbered.Add(1)), "allowed_origins": []string{b.site.URL}, "with_identity_secret": true}
	for name, v := range o.key {
		key[name] = v
	}
	var made struct {
		ID, Key  string
		Identity string `json:"identity_secret"`
	}
	b.svc.call(t, "POST", "/v1/embed-keys", key, &made)
	b.keyID, b.key, b.identity = made.ID, made.Key, made.Identity

	if o.context.Viewport == nil {
		o.context.Viewport = &playwright.Size{Width: 1000, Height: 760}
	}
	if o.context.Locale == nil {
		o.context.Locale = playwright.String("en-GB")
	}
	ctx, err := browser.NewContext(o.context)
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetDefaultTimeout(float64(patience.Milliseconds()))
	b.ctx = ctx
	b.hosts = map[string]bool{host(b.base): true, host(b.site.URL): true}
	ctx.OnRequest(func(r playwright.Request) {
		if u, err := url.Parse(r.URL()); err != nil || (u.Scheme == "http" || u.Scheme == "https") && !b.knows(u.Host) {
			b.fault("request to " + r.URL())
		}
	})
	ctx.OnConsole(func(m playwright.ConsoleMessage) {
		b.mu.Lock()
		b.console = append(b.console, m.Type()+": "+m.Text())
		b.mu.Unlock()
		if m.Type() == "error" || m.Type() == "warning" {
			b.complain("console: " + m.Text())
		}
	})
	ctx.OnWebError(func(e playwright.WebError) { b.fault("error on the page: " + e.Error().Error()) })
	ctx.OnDialog(func(d playwright.Dialog) {
		b.fault("dialog: " + d.Message())
		_ = d.Dismiss()
	})
	t.Cleanup(func() {
		if t.Failed() {
			b.picture()
		}
		_ = ctx.Close()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, f := range b.faults {
			t.Error(f)
		}
	})
	return b
}

// newAgent makes an agent on the simulated model and publishes it.
func newAgent(t *testing.T, s *service, more object) string {
	t.Helper()
	agent := object{"name": "Ada", "slug": fmt.Sprintf("a-%d", numbered.Add(1)),
		"manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}, "instructions": "You are a test."}}
	for name, v := range more {
		agent[name] = v
	}
	var made struct{ Agent struct{ ID string } }
	s.call(t, "POST", "/v1/agents", agent, &made)
	s.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
	return made.Agent.ID
}

func host(address string) string {
	u, _ := url.Parse(address)
	return u.Host
}

func (b *bed) knows(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosts[host]
}

func (b *bed) fault(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, text)
}

func (b *bed) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, part := range b.allowed {
		if strings.Contains(text, part) {
			return
		}
	}
	b.faults = append(b.faults, text)
}

// mayComplain names what the console may say: a browser itself reports each
// connection that is lost.
func (b *bed) mayComplain(parts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allowed = append(b.allowed, parts...)
}

func (b *bed) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.console, "\n")
}

// picture keeps what was to be seen when a test failed.
func (b *bed) picture() {
	for i, p := range b.ctx.Pages() {
		file := filepath.Join(os.TempDir(), fmt.Sprintf("widgetcheck-%s-%d.png", strings.ReplaceAll(b.t.Name(), "/", "-"), i))
		if _, err := p.Screenshot(playwright.PageScreenshotOptions{Path: &file}); err == nil {
			b.t.Logf("seen at last: %s", file)
		}
	}
}

// tag is the script tag that the documentation shows.
func (b *bed) tag() string {
	return fmt.Sprintf(`<script async src="%s/embed/v1/widget.js" data-key="%s"></script>`, b.base, b.key)
}

// shop is an ordinary page with the widget on it.
func (b *bed) shop(extra ...string) string {
	return "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'><title>A shop</title>" +
		"<style>body{font:17px/1.6 Georgia,serif;margin:48px;max-width:34em;color:#222}</style></head><body><main><h1>A shop</h1><p>Whatever is sold here, there is a page about it.</p><p><a href='#more'>More</a></p></main>" +
		strings.Join(extra, "") + b.tag() + "</body></html>"
}

// visit opens a page of the site in a new tab.
func (b *bed) visit(html string) *tab {
	b.t.Helper()
	return b.visitWith(html, "")
}

func (b *bed) visitWith(html, csp string) *tab {
	b.t.Helper()
	return b.goTo(b.site.page(fmt.Sprintf("/%d", numbered.Add(1)), html, csp))
}

func (b *bed) goTo(address string) *tab {
	b.t.Helper()
	p, err := b.ctx.NewPage()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := p.Goto(address); err != nil {
		b.t.Fatal(err)
	}
	return &tab{p, b}
}

// decide decides the one approval that is open for a run.
func (b *bed) decide(run, action string) {
	b.t.Helper()
	var open struct{ Items []struct{ ID string } }
	b.svc.call(b.t, "GET", "/v1/approvals?run_id="+run, nil, &open)
	if len(open.Items) != 1 {
		b.t.Fatalf("%d approvals of run %s", len(open.Items), run)
	}
	b.svc.call(b.t, "POST", "/v1/approvals/"+open.Items[0].ID+"/decision", object{"action": action}, nil)
}

// messages are those of a thread, as the tenant reads them.
func (b *bed) messages(thread string) (all []string) {
	b.t.Helper()
	var got struct {
		Items []struct{ Role, Content string }
	}
	b.svc.call(b.t, "GET", "/v1/threads/"+thread+"/messages", nil, &got)
	for _, m := range got.Items {
		all = append(all, m.Role+": "+m.Content)
	}
	return all
}

// tab is a page with a widget, as a person uses it.
type tab struct {
	playwright.Page
	b *bed
}

func (p *tab) must(err error) {
	p.b.t.Helper()
	if err != nil {
		text := err.Error()
		if len(text) > 1500 {
			text = text[:1500] + "…"
		}
		p.b.t.Fatal(text)
	}
}

func (p *tab) button(name string) playwright.Locator {
	return p.GetByRole("button", playwright.PageGetByRoleOptions{Name: name, Exact: playwright.Bool(true)})
}

func (p *tab) launcher() playwright.Locator { return p.Locator(".launcher") }
func (p *tab) panel() playwright.Locator    { return p.Locator("#svc-panel") }
func (p *tab) field() playwright.Locator {
	return p.GetByRole("textbox", playwright.PageGetByRoleOptions{Name: "Message", Exact: playwright.Bool(true)})
}
func (p *tab) log() playwright.Locator     { return p.GetByRole("log") }
func (p *tab) answers() playwright.Locator { return p.Locator(".turn.bot .bubble") }
func (p *tab) answer() playwright.Locator  { return p.answers().Last() }
func (p *tab) done() playwright.Locator    { return p.Locator(".turn.bot.done .bubble") }
func (p *tab) asked() playwright.Locator   { return p.Locator(".turn.user .bubble") }

// open opens the panel with the launcher.
func (p *tab) open() {
	p.b.t.Helper()
	p.must(p.launcher().Click())
	p.must(expect.Locator(p.field()).ToBeVisible())
}

// say types a message and sends it.
func (p *tab) say(text string) {
	p.b.t.Helper()
	p.must(p.field().Fill(text))
	p.must(p.button("Send").Click())
}

// sees waits for the text of the last answer.
func (p *tab) sees(text string) {
	p.b.t.Helper()
	p.must(expect.Locator(p.answer()).ToHaveText(text))
}

// begun waits until the answer with that index, which says /tokens, is on its way.
func (p *tab) begun(i int) {
	p.b.t.Helper()
	p.must(expect.Locator(p.Locator(".turn.bot").Nth(i).Locator(".bubble")).ToContainText(words(5)))
}

// lies waits until an element is where it belongs, and so has stopped moving.
func (p *tab) lies(l playwright.Locator, x, y, w, h float64) {
	p.b.t.Helper()
	want := playwright.Rect{X: x, Y: y, Width: w, Height: h}
	until(p.b.t, fmt.Sprintf("%+v", want), func() bool {
		box, err := l.BoundingBox()
		p.must(err)
		return box != nil && *box == want
	})
}

// finished waits until so many answers are complete.
func (p *tab) finished(n int) {
	p.b.t.Helper()
	p.must(expect.Locator(p.done()).ToHaveCount(n))
}

// eval runs script in the page.
func (p *tab) eval(script string, arg ...any) any {
	p.b.t.Helper()
	v, err := p.Evaluate(script, arg...)
	p.must(err)
	return v
}

// text is what an element holds now.
func (p *tab) text(l playwright.Locator) string {
	p.b.t.Helper()
	s, err := l.TextContent()
	p.must(err)
	return s
}

// until waits for a condition of the test's own.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}
