package consolecheck

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
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
	binary   = flag.String("svc", "../../bin/svc", "the service's binary, with the console in it")
	pictures = flag.String("pictures", "", "write the pictures of the documentation to this folder")
)

// patience is how long anything may take that a test waits for: budgets are measured, not waited for.
const patience = time.Minute

const chromium = "/usr/lib/chromium/chromium-headless-shell" // itself: the file in /usr/bin is a wrapper whose end is not noticed

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
	if shared, err = newService(); err != nil {
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
	dir := filepath.Join(cache, "agentsvc", "consolecheck-"+hex.EncodeToString(sum[:8]))
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
	link   string // signs the owner in, once
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
	if s.dir, err = os.MkdirTemp("", "svc-console-"); err != nil {
		return nil, err
	}
	// Postgres, which never runs as root, goes through it.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return nil, err
	}
	s.env = append(append(os.Environ(), "SVC_ADDR="+s.addr, "SVC_DATA_DIR="+filepath.Join(s.dir, "data"), "SVC_LOG_FORMAT=json",
		"SVC_RATE_CAPACITY=100000", "SVC_RATE_REFILL=100000", "SVC_CLUSTER_LEASE=10s", "SVC_TRUSTED_PROXIES=127.0.0.0/8"), env...)
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
			Console  string `json:"console_url"`
		}
		if err := json.Unmarshal(line, &sample); err != nil {
			said, _ := os.ReadFile(log.Name())
			return fmt.Errorf("svc dev did not start: %s%s", line, said)
		}
		s.tenant, s.key, s.agent, s.link = sample.TenantID, sample.APIKey, sample.AgentID, sample.Console
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
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			t.Fatal(err)
		}
	}
	var answer *http.Response
	var b []byte
	until(t, method+" "+path+" is answered", func() bool {
		q, err := http.NewRequest(method, s.url()+path, bytes.NewReader(body))
		must(t, err)
		q.Header.Set("Authorization", "Bearer "+s.key)
		q.Header.Set("X-Tenant-Id", s.tenant)
		if in != nil {
			q.Header.Set("Content-Type", "application/json")
		}
		answer, err = (&http.Client{Timeout: 2 * time.Minute}).Do(q) // as long as a dry run may take
		must(t, err)
		defer answer.Body.Close()
		b, err = io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode != 429 // passwords are hashed a few at a time
	})
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

const password = "correct horse battery"

// person makes a user with a password.
func (s *service) person(t *testing.T, role string) (email string) {
	t.Helper()
	email = fmt.Sprintf("%s-%d@example.com", role, numbered.Add(1))
	s.call(t, "POST", "/v1/users", object{"email": email, "name": "A " + role, "role": role, "password": password}, nil)
	return email
}

// policed makes a published agent that may call the desk's tools, and policies for its refunds.
func (s *service) policed(t *testing.T, policies ...object) (id, name string) {
	t.Helper()
	name = fmt.Sprintf("Agent %d", numbered.Add(1))
	var made struct {
		Agent struct{ ID string }
	}
	s.call(t, "POST", "/v1/agents", object{"name": name, "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}, "instructions": "Help.",
		"tools": object{"mcp": []object{{"server": "demo"}}}}}, &made)
	s.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
	for _, p := range policies {
		p["agent_id"] = made.Agent.ID
		s.call(t, "POST", "/v1/approval-policies", p, nil)
	}
	return made.Agent.ID, name
}

func policy(risk string, more ...any) object {
	p := object{"name": "Refunds " + risk, "tool_pattern": "demo.orders.refund", "risk": risk}
	for i := 0; i < len(more); i += 2 {
		p[more[i].(string)] = more[i+1]
	}
	return p
}

type approval struct {
	ID        string
	RunID     string `json:"run_id"`
	Status    string
	Decisions []struct {
		Action     string
		Feedback   *string
		EditedArgs map[string]any `json:"edited_args"`
	}
}

// refund starts a run whose refund waits, and returns its approval.
func (s *service) refund(t *testing.T, agent string, amount float64, reason string) approval {
	t.Helper()
	args, err := json.Marshal(object{"order_id": "1001", "amount": amount, "reason": reason})
	if err != nil {
		t.Fatal(err)
	}
	var run struct {
		RunID string `json:"run_id"`
	}
	s.call(t, "POST", "/v1/agents/"+agent+"/runs", object{"input": "/call orders.refund " + string(args)}, &run)
	var found approval
	until(t, "the refund waits", func() bool {
		var list struct{ Items []approval }
		s.call(t, "GET", "/v1/approvals?run_id="+run.RunID, nil, &list)
		if len(list.Items) == 1 {
			found = list.Items[0]
		}
		return len(list.Items) == 1
	})
	return found
}

func (s *service) approval(t *testing.T, id string) (a approval) {
	t.Helper()
	s.call(t, "GET", "/v1/approvals/"+id, nil, &a)
	return a
}

// until polls.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// tab is a page of one person's browser.
type tab struct {
	playwright.Page
	t *testing.T
	s *service
}

// visitor is a person's browser. Whatever the console may never do is noticed: violations of
// its policy, requests to other hosts, errors of its own.
type visitor struct {
	playwright.BrowserContext
	t *testing.T
	s *service

	mu     sync.Mutex // guards faults, calls, assets
	faults []string
	calls  []string // method and path of calls of the API
	assets []string // names of parts of the console
}

type look struct {
	width, height int
	dark          bool
	bare          bool // without axe, whose code each page has to read
}

func visit(t *testing.T, s *service, l look) *visitor {
	t.Helper()
	if l.width == 0 {
		l.width, l.height = 1200, 800
	}
	scheme := playwright.ColorSchemeLight
	if l.dark {
		scheme = playwright.ColorSchemeDark
	}
	c, err := browser.NewContext(playwright.BrowserNewContextOptions{Viewport: &playwright.Size{Width: l.width, Height: l.height}, ColorScheme: scheme, BaseURL: playwright.String(s.url()), Locale: playwright.String("en-GB"), ExtraHttpHeaders: map[string]string{"X-Forwarded-For": address()}, TimezoneId: playwright.String("Europe/Berlin")})
	if err != nil {
		t.Fatal(err)
	}
	c.SetDefaultTimeout(float64(patience.Milliseconds()))
	v := &visitor{BrowserContext: c, t: t, s: s}
	axe, err := os.ReadFile(filepath.Join(modules, "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	watch := `document.addEventListener("securitypolicyviolation", (e) => console.error("policy violated: " + e.violatedDirective + " " + e.blockedURI + " " + e.sample));`
	if l.bare {
		axe = nil
	}
	if err := c.AddInitScript(playwright.Script{Content: playwright.String(watch + "\n" + string(axe))}); err != nil {
		t.Fatal(err)
	}
	c.OnConsole(func(m playwright.ConsoleMessage) {
		if text := m.Text(); m.Type() == "error" && !strings.Contains(text, "Failed to load resource") && !strings.Contains(text, "net::ERR_") {
			v.fault("console: " + text)
		}
	})
	c.OnWebError(func(e playwright.WebError) { v.fault("error: " + e.Error().Error()) })
	c.OnRequest(func(r playwright.Request) {
		u, err := url.Parse(r.URL())
		if err != nil || u.Scheme == "data" || u.Scheme == "blob" {
			return
		}
		if u.Host != s.addr {
			v.fault("a request to " + r.URL())
		}
		if name, ok := strings.CutPrefix(u.Path, "/console/assets/"); ok {
			v.mu.Lock()
			v.assets = append(v.assets, name)
			v.mu.Unlock()
		}
		if strings.HasPrefix(u.Path, "/v1/") {
			v.mu.Lock()
			v.calls = append(v.calls, r.Method()+" "+u.Path)
			v.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		c.Close()
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, f := range v.faults {
			t.Error(f)
		}
	})
	return v
}

func (v *visitor) fault(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.faults = append(v.faults, text)
}

// called returns how many calls of the API there were whose method and path contain part.
func (v *visitor) called(part string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.calls {
		if strings.Contains(c, part) {
			n++
		}
	}
	return n
}

// loaded returns how many parts of the console were asked for whose name begins with prefix.
func (v *visitor) loaded(prefix string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, a := range v.assets {
		if strings.HasPrefix(a, prefix) {
			n++
		}
	}
	return n
}

func (v *visitor) tab() *tab {
	v.t.Helper()
	p, err := v.NewPage()
	if err != nil {
		v.t.Fatal(err)
	}
	return &tab{Page: p, t: v.t, s: v.s}
}

// signedIn opens a page of the console as that person.
func (v *visitor) signedIn(email, path string) *tab {
	v.t.Helper()
	body, err := json.Marshal(object{"email": email, "password": password})
	must(v.t, err)
	q, err := http.NewRequest("POST", v.s.url()+"/v1/auth/login", bytes.NewReader(body))
	must(v.t, err)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Forwarded-For", address())
	var res *http.Response
	until(v.t, "the sign-in is answered", func() bool {
		q.Body = io.NopCloser(bytes.NewReader(body))
		res, err = http.DefaultClient.Do(q)
		must(v.t, err)
		res.Body.Close()
		return res.StatusCode != 503 // passwords are hashed a few at a time
	})
	for _, c := range res.Cookies() {
		must(v.t, v.AddCookies([]playwright.OptionalCookie{{Name: c.Name, Value: c.Value, URL: playwright.String(v.s.url()), HttpOnly: playwright.Bool(true)}}))
	}
	if res.StatusCode != 200 {
		v.t.Fatalf("sign in as %s: %d", email, res.StatusCode)
	}
	p := v.tab()
	p.goTo(path)
	return p
}

// address is one of its own: logins are limited by address.
func address() string {
	n := numbered.Add(1)
	return fmt.Sprintf("10.1.%d.%d", n/250, n%250+1)
}

func (p *tab) signIn(email, password string) {
	p.t.Helper()
	must(p.t, p.box("E-mail").Fill(email))
	must(p.t, p.box("Password").Fill(password))
	must(p.t, p.button("Sign in").Click())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *tab) goTo(path string) {
	p.t.Helper()
	_, err := p.Goto(path)
	must(p.t, err)
}

func (p *tab) byRole(role, name string) playwright.Locator {
	return p.GetByRole(playwright.AriaRole(role), playwright.PageGetByRoleOptions{Name: name, Exact: playwright.Bool(true)})
}
func (p *tab) button(name string) playwright.Locator { return p.byRole("button", name) }
func (p *tab) box(name string) playwright.Locator    { return p.byRole("textbox", name) }

// written returns the text of an editor, also what of it is not drawn.
func written(t *testing.T, editor playwright.Locator) string {
	t.Helper()
	visible(t, editor)
	text, err := editor.Evaluate(`e => e.cmTile.view.state.doc.toString()`, nil)
	must(t, err)
	return text.(string)
}

// rewrite replaces the text of an editor as a person does who selects all of it and pastes. Fill has the browser edit the lines
// itself, and Chromium then sometimes sets an inline style, which the policy forbids.
func rewrite(t *testing.T, editor playwright.Locator, text string) {
	t.Helper()
	must(t, expect.Locator(editor).ToBeEditable())
	must(t, editor.Press("Control+a"))
	_, err := editor.Evaluate(`(e, text) => {
		const clipboardData = new DataTransfer();
		clipboardData.setData("text/plain", text);
		e.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
	}`, text)
	must(t, err)
	if now := written(t, editor); now != text {
		t.Fatalf("the editor holds %.200q", now)
	}
}

func (p *tab) heading(name string) {
	p.t.Helper()
	must(p.t, expect.Locator(p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: name, Exact: playwright.Bool(true), Level: playwright.Int(1)})).ToBeVisible())
}

// thing waits for the page of one thing of a section: the heading is the section's, its name stands below.
func (p *tab) thing(section, name string) {
	p.t.Helper()
	visible(p.t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: name, Exact: playwright.Bool(true), Level: playwright.Int(2)}))
	p.heading(section)
}

func (p *tab) press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		must(p.t, p.Keyboard().Press(k))
	}
}

func visible(t *testing.T, l playwright.Locator) {
	t.Helper()
	must(t, expect.Locator(l).ToBeVisible())
}

func contains(t *testing.T, l playwright.Locator, text any) {
	t.Helper()
	must(t, expect.Locator(l).ToContainText(text))
}

func gone(t *testing.T, l playwright.Locator) {
	t.Helper()
	must(t, expect.Locator(l).ToHaveCount(0))
}

// accessible fails for each serious finding of axe on the page as it is.
func (p *tab) accessible(what string) {
	p.t.Helper()
	found, err := p.Evaluate("async () => JSON.stringify((await axe.run(document, { resultTypes: ['violations'] })).violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').map((v) => v.id + ' ' + v.impact + ': ' + v.nodes.map((n) => n.html.slice(0, 200) + ' ' + n.failureSummary).join(' | ')))")
	must(p.t, err)
	if found != "[]" {
		p.t.Errorf("axe on %s: %s", what, found)
	}
}

// picture writes a picture of the documentation.
func (p *tab) picture(name string) {
	p.t.Helper()
	if *pictures == "" {
		return
	}
	shot, err := p.Screenshot()
	must(p.t, err)
	small, err := palette(shot)
	must(p.t, err)
	must(p.t, os.WriteFile(filepath.Join(*pictures, name+".png"), small, 0o644))
}
