package browser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/playwright-community/playwright-go"
)

// silent takes what libraries log: it may quote pages.
var silent = log.New(io.Discard, "", 0)

// sandbox is what this machine was found to allow.
type sandbox int

const (
	sandboxUnknown sandbox = iota
	sandboxUsed
	sandboxNone
)

const launchTimeout = 30 * time.Second

// engine is one driver with one Chromium. It never recovers: its end is the end of both, and the
// next job starts another.
type engine struct {
	home     *home
	identity *identity // of its proxies: a Chromium of our own accepts it as any site
	browser  playwright.Browser
	spare    chan *session // holds one that was made ahead and has no job yet
	dead     chan struct{} // closed when it ends
	gone     chan struct{} // closed when no process of it is left

	once sync.Once
	why  error // set before dead is closed
}

// end ends the engine. why is shown in reports and is no text of a page.
func (e *engine) end(why error) {
	e.once.Do(func() {
		e.why = why
		close(e.dead)
	})
}

// launching is an engine that is being started.
type launching struct {
	done chan struct{} // closed when the fields below are set
	e    *engine       // nil: it did not start
	err  error
}

// running returns the engine, which it starts if there is none. Jobs that come meanwhile wait for the same start, which goes
// on if they leave.
func (b *Browser) running(ctx context.Context) (*engine, error) {
	e, l, err := b.current(ctx)
	if l == nil {
		return e, err
	}
	select {
	case <-l.done:
		return l.e, l.err
	case <-b.stopping:
		return nil, errStopping
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// current returns the engine that runs, or else its start.
func (b *Browser) current(ctx context.Context) (*engine, *launching, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.available(); err != nil {
		return nil, nil, err
	}
	if e := b.engine; e != nil {
		select {
		case <-e.dead:
			b.engine = nil
		default:
			return e, nil, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if b.starting == nil {
		b.starting = &launching{done: make(chan struct{})}
		go b.begin(b.starting)
	}
	return nil, b.starting, nil
}

// begin starts an engine for all who wait for it.
func (b *Browser) begin(l *launching) {
	l.e, l.err = b.launch()
	b.mu.Lock()
	b.engine, b.starting = l.e, nil
	if l.e != nil && b.stops() {
		l.e.end(errStopping)
	}
	b.mu.Unlock()
	close(l.done)
}

// found notes what the machine allows.
func (b *Browser) found(s sandbox) {
	b.mu.Lock()
	b.sandbox = s
	b.mu.Unlock()
}

// launch starts driver and Chromium.
func (b *Browser) launch() (*engine, error) {
	tries := []bool{true, false}
	b.mu.Lock()
	if b.sandbox == sandboxNone {
		tries = []bool{false}
	}
	b.mu.Unlock()
	var err error
	for _, sandboxed := range tries {
		var e *engine
		if e, err = b.start(sandboxed); err == nil {
			if b.cfg.CDP == "" && sandboxed {
				b.found(sandboxUsed)
			}
			return e, nil
		}
		if b.stops() {
			return nil, errStopping
		}
		if errors.Is(err, errNoSandboxElsewhere) || errors.Is(err, errOpenElsewhere) {
			b.cfg.Log.Error().Err(err).Msg("browser skills are refused")
			return nil, err
		}
		if b.cfg.CDP != "" || !sandboxed || !strings.Contains(err.Error(), "sandbox") {
			break
		}
		b.found(sandboxNone)
		if b.cfg.Production && !b.cfg.NoSandbox {
			b.cfg.Log.Error().Err(errNoSandbox).Msg("browser skills are refused")
			return nil, errNoSandbox
		}
		b.cfg.Log.Warn().Msg("chromium runs without its own sandbox: this machine does not allow it")
	}
	b.cfg.Log.Error().Str("err", brief(err)).Msg("no browser could be started")
	return nil, fmt.Errorf("%w: Chromium did not start: %s", ErrUnavailable, brief(err))
}

// proxied are the arguments that keep pages from sending datagrams past the proxy.
var proxied = []string{"--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--disable-quic"}

// args are Chromium's arguments besides Playwright's own.
var args = []string{
	proxied[0], proxied[1], "--webrtc-ip-handling-policy=disable_non_proxied_udp",
	"--disable-gpu", "--disable-dev-shm-usage", "--js-flags=--max-old-space-size=384", "--disable-breakpad", "--disable-crash-reporter", "--no-pings",
}

// giveUp ends the processes of an engine that takes too long to start, or whose node stops, until its start returns: it may be
// about to make another.
func (b *Browser) giveUp(h *home, returned <-chan struct{}) {
	late := time.NewTimer(launchTimeout)
	defer late.Stop()
	select {
	case <-returned:
		return
	case <-b.stopping:
	case <-late.C:
	}
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		h.kill()
		select {
		case <-returned:
			return
		case <-again.C:
		}
	}
}

func (b *Browser) start(sandboxed bool) (*engine, error) {
	driver, err := b.driver()
	if err != nil {
		return nil, err
	}
	chromium := ""
	if b.cfg.CDP == "" {
		if chromium, err = b.chromium(); err != nil {
			return nil, err
		}
	}
	h, err := newHome(b.cfg.Dir, b.cfg.Name)
	if err != nil {
		return nil, err
	}
	for _, v := range b.cfg.Display {
		name, value, _ := strings.Cut(v, "=")
		h.display += "export " + name + "=" + quote(value) + "\n"
	}
	if err := h.fill(b.cfg.Command, driver, chromium); err != nil {
		h.remove()
		return nil, fmt.Errorf("prepare the directory of a browser: %w", err)
	}
	e := &engine{home: h, spare: make(chan *session, 1), dead: make(chan struct{}), gone: make(chan struct{})}
	if e.identity, err = newIdentity(); err != nil {
		h.remove()
		return nil, fmt.Errorf("make the key of a browser's proxies: %w", err)
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the driver dies with the thread that starts it
		defer runtime.UnlockOSThread()
		returned := make(chan struct{})
		go b.giveUp(h, returned)
		// The driver's standard error ends with the driver, of which the library says nothing.
		said, unheard := &tail{}, make(chan struct{})
		hear, say, err := os.Pipe()
		var pw *playwright.Playwright
		if err == nil {
			go func() {
				defer close(unheard)
				_, _ = io.Copy(said, hear)
				hear.Close()
				e.end(errDied)
			}()
			pw, err = playwright.Run(&playwright.RunOptions{DriverDirectory: h.path, SkipInstallBrowsers: true, Stdout: io.Discard, Stderr: say, Logger: slog.New(slog.DiscardHandler)})
			say.Close()
		} else {
			close(unheard)
		}
		if err == nil {
			if err = addEngines(pw.Selectors); err == nil {
				err = b.connect(e, pw, sandboxed)
			}
		} else {
			err = fmt.Errorf("%w: %s", err, said.String())
		}
		close(returned)
		if err != nil {
			e.end(err)
		}
		started <- err
		<-e.dead
		h.kill()
		if pw != nil {
			_ = pw.Stop()
		}
		h.kill()
		<-unheard
		h.remove()
		close(e.gone)
	}()
	if err := <-started; err != nil {
		<-e.gone
		return nil, err
	}
	b.cfg.Log.Info().Str("version", e.browser.Version()).Bool("sandbox", sandboxed && b.cfg.CDP == "").Msg("browser started")
	go b.attend(e)
	go b.keepAhead(e)
	return e, nil
}

// connect starts Chromium, or connects to the one elsewhere.
func (b *Browser) connect(e *engine, pw *playwright.Playwright, sandboxed bool) (err error) {
	if b.cfg.CDP != "" {
		e.browser, err = pw.Chromium.ConnectOverCDP(b.cfg.CDP, playwright.BrowserTypeConnectOverCDPOptions{Timeout: ms(launchTimeout)})
	} else {
		e.browser, err = pw.Chromium.Launch(playwright.BrowserTypeLaunchOptions{
			ExecutablePath: playwright.String(e.home.path + "/chromium"), Headless: playwright.Bool(len(b.cfg.Display) == 0), ChromiumSandbox: playwright.Bool(sandboxed),
			Args: append(slices.Clip(args), "--ignore-certificate-errors-spki-list="+e.identity.pin), IgnoreDefaultArgs: []string{"--disable-popup-blocking"}, Timeout: ms(launchTimeout),
			HandleSIGHUP: playwright.Bool(false), HandleSIGINT: playwright.Bool(false), HandleSIGTERM: playwright.Bool(false),
			// What belongs to no session goes to a port without a listener.
			Proxy: &playwright.Proxy{Server: "http://127.0.0.1:9", Bypass: playwright.String("<-loopback>")},
		})
	}
	if err != nil {
		return err
	}
	if b.cfg.CDP != "" {
		if err := b.confinedElsewhere(e.browser); err != nil {
			return err
		}
	}
	e.browser.OnDisconnected(func(playwright.Browser) { e.end(errDied) })
	return nil
}

var errDied = errors.New("the browser ended")

// confinedElsewhere refuses, in production, a Chromium elsewhere that says of itself that it has no
// sandbox, or that its pages may send past the proxy. One that does not answer is the operator's to
// confine.
func (b *Browser) confinedElsewhere(of playwright.Browser) error {
	var said any
	s, err := of.NewBrowserCDPSession()
	if err == nil {
		said, err = s.Send("SystemInfo.getInfo", nil)
		_ = s.Detach()
	}
	if err != nil {
		b.cfg.Log.Warn().Str("err", brief(err)).Msg("the chromium elsewhere does not say how it was started")
		return nil
	}
	info, _ := said.(map[string]any)
	line, _ := info["commandLine"].(string)
	started := strings.Fields(line)
	if b.cfg.Production && !b.cfg.NoSandbox && slices.Contains(started, "--no-sandbox") {
		return errNoSandboxElsewhere
	}
	for _, arg := range proxied {
		switch {
		case slices.Contains(started, arg):
		case b.cfg.Production:
			return errOpenElsewhere
		default:
			b.cfg.Log.Warn().Str("without", arg).Msg("the chromium elsewhere lets pages send past the proxy, which production refuses")
		}
	}
	return nil
}

// attend lowers the priority of an engine's sessions and watches its memory until it ends.
func (b *Browser) attend(e *engine) {
	lowered := giveWay(familyOf(e.home.path))
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-e.dead:
			reason := "died"
			switch {
			case errors.Is(e.why, errMemory):
				reason = "memory"
			case errors.Is(e.why, errStuck):
				reason = "stuck"
			case !errors.Is(e.why, errDied):
				reason = "closed"
			}
			ends.WithLabelValues(reason).Inc()
			if reason != "closed" {
				b.cfg.Log.Warn().Str("reason", reason).Msg("browser ended")
			}
			return
		case <-look.C:
			if !lowered {
				lowered = giveWay(familyOf(e.home.path))
			}
			if b.places.busy() || b.records() {
				e.weigh(b.cfg.Memory)
			}
		}
	}
}

// keepAhead makes a session for the next job whenever the browser has none, until the engine ends: most of the
// time until a job has its page goes into the start of the page's process. A Chromium elsewhere keeps no
// page that is not needed, and one with windows would show it.
func (b *Browser) keepAhead(e *engine) {
	if b.cfg.CDP != "" || len(b.cfg.Display) > 0 {
		return
	}
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-e.dead:
			e.ahead() // which ends it
			return
		case <-look.C:
		}
		if len(e.spare) > 0 || b.places.busy() || b.records() {
			continue
		}
		s := b.newSession(e)
		if err := s.begin(context.Background()); err != nil {
			s.teardown()
			continue
		}
		e.spare <- s // nothing else sends
	}
}

// ahead takes the session that was made ahead; nil: there is none, or its page or the engine has ended.
func (e *engine) ahead() *session {
	select {
	case s := <-e.spare:
		if s.trouble() == nil {
			return s
		}
		s.teardown()
	default:
	}
	return nil
}

// records reports whether a recorder session is open.
func (b *Browser) records() bool {
	b.mu.Lock()
	r := b.recorder
	b.mu.Unlock()
	return r != nil && r.places.busy()
}

var (
	errMemory = errors.New("the browser needed more memory than it may have")
	errStuck  = errors.New("the browser did not make or close a page")
)

// weigh ends page processes, the largest first, until the browser has no more memory than it may have: a page has one
// process for itself and one for each other site in its frames. It ends the browser if its pages hold less than a third of
// that, so that their end would not help for long.
func (e *engine) weigh(most int64) {
	family := familyOf(e.home.path)
	// The exact sum costs the kernel a walk through all page tables, so the cheap upper bound is asked first.
	if mapped(family) <= most {
		return
	}
	type part struct {
		pid  int
		size int64
	}
	var pages []part
	var all, shown int64
	for _, pid := range family {
		n := resident([]int{pid})
		if all += n; isPage(pid) {
			shown += n
			pages = append(pages, part{pid, n})
		}
	}
	slices.SortFunc(pages, func(a, b part) int { return cmp.Compare(b.size, a.size) })
	for _, p := range pages {
		if all <= most || shown < most/3 {
			break
		}
		endProcess(p.pid)
		all, shown = all-p.size, shown-p.size
	}
	if all > most {
		e.end(errMemory)
	}
}

// brief returns the first line of an error of the library, without what it quotes: errors carry
// the whole command line and the browser's log.
func brief(err error) string {
	if err == nil {
		return ""
	}
	s, _, _ := strings.Cut(err.Error(), "\n")
	s, _, _ = strings.Cut(s, "Call log")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return strings.TrimSpace(s)
}

func ms(d time.Duration) *float64 {
	f := float64(max(d, time.Millisecond)) / float64(time.Millisecond)
	return &f
}

// tail keeps the first bytes that a child writes to its standard error.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 2048 - len(t.kept); room > 0 {
		t.kept = append(t.kept, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.kept)), " ")
}
