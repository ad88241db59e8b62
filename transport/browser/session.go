package browser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/playwright-community/playwright-go"

	"agentsvc/schemas/skill"
)

// session is one job in a context of its own. It may be made before its job is known, but has one only.
type session struct {
	b        *Browser
	e        *engine
	job      *skill.Job
	scope    skill.Scope
	proxy    *proxy
	context  playwright.BrowserContext
	page     playwright.Page
	devtools playwright.CDPSession // of the page
	release  func()
	step     time.Duration // the time of one step
	closing  sync.Once
	expiry   *time.Timer
	calls    sync.WaitGroup

	secrets secrets
	fields  []secretField     // into which secrets were typed
	wall    *skill.Step       // the last step that typed a secret into a password field
	read    map[string]string // what bound fields held when they were filled, by step
	shots   int
	unkept  bool // the store of files did not take a picture in time

	byHand  atomic.Bool      // a person sees the page and answers its dialogs
	visited func(url string) // is called with each address of the main frame; may be nil

	left chan struct{} // closed when the main frame landed out of scope
	lost chan struct{} // closed when the page crashed or was closed

	mu        sync.Mutex // guards what is below
	notes     []string
	popups    int
	confirm   bool   // the commit's own click is under way: a confirm is accepted
	leftAt    string // the address out of scope
	isLost    bool
	inFlight  map[playwright.Request]bool // value: it decides whether the commit was answered
	requested int                         // how many there were
	failed    bool                        // one of those failed
	changed   chan struct{}               // closed and replaced when a request ends
	over      bool                        // nothing is begun any more
}

// Faults of a session itself.
var (
	errLeft = errors.New("the page left the skill's hosts")
	errLost = errors.New("the browser or its page ended")
)

const maxPopups = 20

// The size of pages.
const viewWidth, viewHeight = 1024, 720

// open makes a session: a place, a running browser, a proxy, a context and a page.
func (b *Browser) open(ctx context.Context, j *skill.Job) (*session, error) {
	if err := b.Available(); err != nil {
		return nil, err
	}
	release, err := b.places.take(ctx, j.Tenant)
	if err != nil {
		return nil, err
	}
	scope := skill.Scope{Hosts: j.Definition.TargetHosts, Residency: j.Residency}
	return b.openAt(ctx, j, scope, nil, release, 3*b.cfg.JobTimeout)
}

// openAt makes a session for a place that was taken. It ends after longest, if its caller forgot
// it.
func (b *Browser) openAt(ctx context.Context, j *skill.Job, scope skill.Scope, visited func(string), release func(), longest time.Duration) (_ *session, err error) {
	open.Inc()
	for try := 0; ; try++ { // a browser that just died is replaced once
		var e *engine
		if e, err = b.running(ctx); err != nil {
			break
		}
		s := e.ahead()
		if s == nil {
			s = b.newSession(e)
			err = s.begin(ctx)
		}
		if err == nil {
			s.job, s.release, s.scope, s.visited = j, release, scope, visited
			s.expiry = time.AfterFunc(longest, s.Close)
			return s, nil
		}
		s.teardown()
		if try > 0 || ctx.Err() != nil {
			break
		}
	}
	open.Dec()
	release()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, ErrUnavailable):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s", ErrUnavailable, brief(err))
}

// newSession returns a session without a job.
func (b *Browser) newSession(e *engine) *session {
	return &session{b: b, e: e, step: b.cfg.StepTimeout, read: map[string]string{}, left: make(chan struct{}), lost: make(chan struct{}),
		inFlight: map[playwright.Request]bool{}, changed: make(chan struct{})}
}

// begin makes what belongs to any job: the proxy, the context and its empty page.
func (s *session) begin(ctx context.Context) (err error) {
	if s.proxy, err = newProxy(s.b.cfg.Guard, s.b.cfg.ProxyListen); err != nil {
		return fmt.Errorf("start a proxy: %w", err)
	}
	s.proxy.anyCertificate, s.proxy.roots = s.b.cfg.anyCertificate, s.b.cfg.roots
	out := &playwright.Proxy{Server: s.proxy.url(), Bypass: playwright.String("<-loopback>")}
	if s.proxy.password != "" {
		out.Username, out.Password = playwright.String("svc"), playwright.String(s.proxy.password)
	}
	limit, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	err = s.do(limit, func() (err error) {
		c, err := s.e.browser.NewContext(playwright.BrowserNewContextOptions{AcceptDownloads: playwright.Bool(false), ServiceWorkers: playwright.ServiceWorkerPolicyBlock,
			Viewport: &playwright.Size{Width: viewWidth, Height: viewHeight}, Locale: playwright.String("en-US"), TimezoneId: playwright.String("UTC"), Permissions: []string{}, Proxy: out, IgnoreHttpsErrors: playwright.Bool(s.b.cfg.anyCertificate)})
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.context = c
		s.mu.Unlock()
		c.SetDefaultTimeout(*ms(s.step))
		page, err := c.NewPage()
		if err != nil {
			return err
		}
		s.watch(c, page)
		s.page = page
		s.devtools, err = c.NewCDPSession(page)
		return err
	})
	// Chromium goes on when the process is killed that makes those for its pages, and answers nothing.
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s.e.end(errStuck)
	}
	return err
}

// do runs calls of the library, which know no context. It returns when they end, or before if
// ctx, the page or the browser does; what still runs then ends with the session.
func (s *session) do(ctx context.Context, f func() error) error {
	if err := s.trouble(); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.spawn(func() {
		defer func() {
			if p := recover(); p != nil { // the library panics on answers that it does not expect
				done <- fmt.Errorf("%w: unexpected answer of the driver", errLost)
			}
		}()
		done <- f()
	})
	select {
	case err := <-done:
		if t := s.trouble(); t != nil {
			return t
		}
		if isClosed(err) {
			return errLost
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.e.dead:
		return errLost
	case <-s.lost:
		return errLost
	case <-s.left:
		return errLeft
	}
}

// isClosed reports whether a call failed because the page, the browser or the driver ended.
func isClosed(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return errors.Is(err, playwright.ErrTargetClosed) || slices.ContainsFunc([]string{"Connection closed", "transport closed", "could not send message", "has been closed", "crashed"}, func(s string) bool { return strings.Contains(text, s) })
}

// spawn runs f in a goroutine for which the session's end waits.
func (s *session) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.calls.Go(f)
	}
}

// trouble returns why the session is over, if it is.
func (s *session) trouble() error {
	for _, t := range []struct {
		c   <-chan struct{}
		err error
	}{{s.left, errLeft}, {s.lost, errLost}, {s.e.dead, errLost}} {
		select {
		case <-t.c:
			return t.err
		default:
		}
	}
	return nil
}

// note records what else happened in a step.
func (s *session) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notes) < 5 && !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

func (s *session) takeNotes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.notes, "; ")
	s.notes = nil
	return out
}

func (s *session) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isLost {
		s.isLost = true
		close(s.lost)
	}
}

// visit judges an address that the main frame requests or has landed on.
func (s *session) visit(url string) {
	if url == "" || url == "about:blank" || strings.HasPrefix(url, "chrome-error:") {
		return
	}
	if s.scope.Allows(url) == "" {
		if s.visited != nil {
			s.visited(url)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leftAt == "" {
		s.leftAt = url
		close(s.left)
	}
}

// watch sets the handlers of a page's events. They run in the library's reader, so that they do
// not wait for it.
func (s *session) watch(c playwright.BrowserContext, page playwright.Page) {
	main := page.MainFrame()
	c.OnPage(func(p playwright.Page) {
		if p == page {
			return
		}
		s.note("a popup was closed")
		s.mu.Lock()
		s.popups++
		n := s.popups
		s.mu.Unlock()
		if n > maxPopups {
			s.lose()
			return
		}
		s.spawn(func() { _ = p.Close() })
	})
	page.OnFrameNavigated(func(f playwright.Frame) {
		if f == main {
			s.visit(f.URL())
		}
	})
	page.OnCrash(func(playwright.Page) { s.lose() })
	page.OnClose(func(playwright.Page) { s.lose() })
	page.OnDialog(func(d playwright.Dialog) {
		if s.byHand.Load() {
			return
		}
		s.mu.Lock()
		accept := s.confirm && d.Type() == "confirm"
		if accept {
			s.confirm = false
		}
		s.mu.Unlock()
		switch {
		case accept:
			s.note("a confirm dialog of the commit was accepted")
		case d.Type() == "beforeunload":
			s.note("a question about leaving the page was accepted")
			accept = true
		default:
			s.note("a dialog (" + d.Type() + ") was dismissed")
		}
		s.spawn(func() {
			if accept {
				_ = d.Accept()
				return
			}
			_ = d.Dismiss()
		})
	})
	page.OnDownload(func(d playwright.Download) {
		s.note("a download was refused")
		s.spawn(func() { _ = d.Cancel() })
	})
	page.OnFileChooser(func(playwright.FileChooser) { s.note("a file chooser was refused") })
	page.OnRequest(func(r playwright.Request) {
		navigates := r.IsNavigationRequest() && r.Frame() == main
		if navigates {
			s.visit(r.URL())
		}
		kind := r.ResourceType()
		decides := navigates || r.Method() != "GET" && (kind == "document" || kind == "xhr" || kind == "fetch")
		s.mu.Lock()
		defer s.mu.Unlock()
		if from := r.RedirectedFrom(); from != nil {
			delete(s.inFlight, from)
		}
		if decides {
			s.requested++
		}
		if decides && len(s.inFlight) < 1000 {
			s.inFlight[r] = navigates
		}
	})
	ended := func(r playwright.Request, failed bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, ok := s.inFlight[r]; ok {
			delete(s.inFlight, r)
			// A failed request to a host that the skill does not name, such as one that counts visitors, is not noted here: most
			// were never sent. The proxy reports those that were lost.
			s.failed = s.failed || failed && s.scope.Allows(r.URL()) == "" && r.Failure() != nil && !strings.Contains(r.Failure().Error(), "ERR_ABORTED")
			close(s.changed)
			s.changed = make(chan struct{})
		}
	}
	page.OnRequestFinished(func(r playwright.Request) { ended(r, false) })
	page.OnRequestFailed(func(r playwright.Request) { ended(r, true) })
}

// fresh begins a commit: each request goes over a connection of its own, and the proxy reads it and sends none
// that leads a page out of the skill's scope. A Chromium
// elsewhere does not know the proxy's key, so it is told to judge no certificate of this page's any more: the
// proxy does. If the proxy cannot read the skill's hosts, their tunnels stay, and Chromium judges.
func (s *session) fresh(ctx context.Context) {
	s.proxy.mu.Lock()
	s.proxy.within = func(url string) bool { return s.scope.Allows(url) == "" }
	s.proxy.mu.Unlock()
	if s.b.cfg.CDP == "" {
		s.proxy.fresh(ctx, s.e.identity, nil)
		return
	}
	hosts := slices.Clone(s.scope.Hosts)
	if host, ok := hostOf(s.page.URL()); ok {
		hosts = append(hosts, host)
	}
	if !s.proxy.readable(ctx, hosts) {
		s.proxy.fresh(ctx, nil, nil)
		return
	}
	s.proxy.fresh(ctx, s.e.identity, func() error {
		limit, cancel := context.WithTimeout(ctx, s.step)
		defer cancel()
		return s.do(limit, func() error {
			_, err := s.devtools.Send("Security.setIgnoreCertificateErrors", map[string]any{"ignore": true}) // for as long as the page lasts
			return err
		})
	})
}

// requests returns how many requests that matter the page has begun.
func (s *session) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requested
}

// idle waits until no request that matters is in flight.
func (s *session) idle(ctx context.Context) error {
	for {
		s.mu.Lock()
		n, changed := len(s.inFlight), s.changed
		s.mu.Unlock()
		if err := s.trouble(); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.e.dead:
			return errLost
		case <-s.lost:
			return errLost
		case <-s.left:
			return errLeft
		case <-s.proxy.cut:
			return errLost
		}
	}
}

// Close ends the session and frees its place.
func (s *session) Close() {
	s.closing.Do(func() {
		if s.expiry != nil {
			s.expiry.Stop()
		}
		s.teardown()
		open.Dec()
		s.release()
	})
}

// teardown ends the context before its proxy, so that Chromium repeats nothing whose connection the
// end of the proxy cuts.
func (s *session) teardown() {
	if s.proxy != nil {
		s.proxy.seal()
		defer s.proxy.close()
	}
	s.mu.Lock()
	s.over = true
	if !s.isLost {
		s.isLost = true
		close(s.lost)
	}
	c := s.context
	s.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if c != nil {
			_ = c.Close()
		}
		s.calls.Wait()
	}()
	select {
	case <-closed:
	case <-s.e.dead:
		<-closed
	case <-time.After(5 * time.Second):
		s.e.end(errStuck)
		<-closed
	}
}
