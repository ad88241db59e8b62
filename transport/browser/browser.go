package browser

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/skill"
	"agentsvc/transport/egress"
)

// ErrUnavailable is wrapped by errors that mean that this node performs no browser skills, now or
// at all: BROWSER_SKILL_UNAVAILABLE. Its text names what is missing.
var ErrUnavailable = errors.New("browser skills are not available")

// Config configures a Browser. Guard and, unless CDP is set, Command are required.
type Config struct {
	Guard   *egress.Guard
	Command []string // starts a child of this package: the binary and Command
	Dir     string   // holds the directories of running browsers; empty: chosen by Places
	Name    string   // of this installation: nodes with the same Name clean up after each other

	Driver   string // the Playwright driver's directory; empty: the usual places
	DataDir  string // of the service, one of the usual places
	Chromium string // its path; empty: the usual places
	CDP      string // the URL of a Chromium elsewhere; then none is started here
	// ProxyListen is the address at which the sessions' proxies listen, without a port; empty:
	// loopback. A Chromium elsewhere must reach it.
	ProxyListen string

	// Display is the environment of a display, such as DISPLAY=:0. Not empty: pages are shown in
	// windows on this machine, for Teach.
	Display []string

	Pages       int           // sessions at a time; 0: 4
	TenantPages int           // of one tenant; 0: half of Pages, at least 1
	Queue       int           // sessions that wait; 0: 64
	Memory      int64         // bytes that the driver and Chromium may have together; 0: 1.5 GiB
	StepTimeout time.Duration // 0: 10 s
	JobTimeout  time.Duration // 0: 2 min
	// NoSandbox allows a Chromium without its own sandbox in Production, here or elsewhere (CDP).
	// In development it runs so where the machine allows no sandbox, with a warning.
	NoSandbox  bool
	Production bool

	Log zerolog.Logger

	anyCertificate bool           // for tests
	roots          *x509.CertPool // of the proxies, for tests; nil: the machine's
}

// Browser performs jobs. It is safe for concurrent use.
type Browser struct {
	cfg    Config
	places *places

	stopping chan struct{} // closed by Close, which holds mu

	mu       sync.Mutex // guards what is below
	engine   *engine    // nil: none is running
	starting *launching // nil: none is being started
	sandbox  sandbox    // what the machine was found to allow
	recorder *Recorder  // nil: there is none
}

// New returns a Browser. It starts no process; it ends those that a killed process of the same
// installation left.
func New(cfg Config) (*Browser, error) {
	if cfg.Guard == nil || cfg.CDP == "" && len(cfg.Command) == 0 {
		return nil, errors.New("a browser needs the outbound guard and the command of its children")
	}
	if cfg.Pages <= 0 {
		cfg.Pages = 4
	}
	if cfg.TenantPages <= 0 {
		cfg.TenantPages = max(1, cfg.Pages/2)
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 64
	}
	if cfg.Memory <= 0 {
		cfg.Memory = 1536 << 20
	}
	if cfg.StepTimeout <= 0 {
		cfg.StepTimeout = 10 * time.Second
	}
	if cfg.JobTimeout <= 0 {
		cfg.JobTimeout = 2 * time.Minute
	}
	if cfg.Name == "" {
		cfg.Name = "svc"
	}
	if cfg.Dir == "" {
		cfg.Dir = homeOf(cfg.DataDir)
	}
	b := &Browser{cfg: cfg, places: newPlaces(cfg.Pages, cfg.TenantPages, cfg.Queue), stopping: make(chan struct{})}
	return b, sweep(cfg.Dir, cfg.Name)
}

// homeOf returns where directories of running browsers are made. As root, the browser's own user
// must reach it, so it is not in the data directory.
func homeOf(data string) string {
	if os.Geteuid() != 0 && data != "" {
		if abs, err := filepath.Abs(data); err == nil {
			return filepath.Join(abs, "browser")
		}
	}
	if os.Geteuid() == 0 {
		return "/var/lib/svc/browser"
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("svc-browser-%d", os.Geteuid()))
}

// Available returns nil if jobs can be performed, else an error that wraps ErrUnavailable and
// names what is missing. It starts nothing.
func (b *Browser) Available() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.available()
}

func (b *Browser) available() error {
	if b.stops() {
		return errStopping
	}
	if _, err := b.driver(); err != nil {
		return err
	}
	if b.cfg.CDP != "" {
		return nil
	}
	if _, err := b.chromium(); err != nil {
		return err
	}
	if b.cfg.Production && !b.cfg.NoSandbox && b.sandbox == sandboxNone {
		return errNoSandbox
	}
	return nil
}

// stops reports whether Close was called.
func (b *Browser) stops() bool {
	select {
	case <-b.stopping:
		return true
	default:
		return false
	}
}

var errStopping = fmt.Errorf("%w: this node is stopping", ErrUnavailable)

var errNoSandbox = fmt.Errorf("%w: this machine does not let Chromium use its sandbox: allow unprivileged user namespaces, "+
	"or set SVC_BROWSER_NO_SANDBOX=true if something else confines the service", ErrUnavailable)

var errNoSandboxElsewhere = fmt.Errorf("%w: the Chromium of SVC_BROWSER_CDP runs without its sandbox: start it without --no-sandbox, "+
	"or set SVC_BROWSER_NO_SANDBOX=true if something else confines it", ErrUnavailable)

var errOpenElsewhere = fmt.Errorf("%w: the Chromium of SVC_BROWSER_CDP lets pages send past the proxy: start it with %s", ErrUnavailable, strings.Join(proxied, " "))

// Prepare signs in and performs the steps before the commit in a fresh context, locates the
// commit's target and reads the page back. The session is not nil only if that landed; the caller
// closes it. The error wraps ErrUnavailable or is that of ctx.
func (b *Browser) Prepare(ctx context.Context, j *skill.Job) (Session, *skill.Report, error) {
	s, err := b.open(ctx, j)
	if err != nil {
		return nil, nil, err
	}
	r, err := s.prepare(ctx)
	if err != nil || r.Event != skill.Landed {
		s.Close()
		return nil, r, err
	}
	return s, r, nil
}

// Read performs a skill without a commit step: all steps, the checks in order, and the result
// fields.
func (b *Browser) Read(ctx context.Context, j *skill.Job) (*skill.Report, error) {
	return b.whole(ctx, j, (*session).readAll)
}

// Compensate performs the compensation steps in a fresh session, signed in again.
func (b *Browser) Compensate(ctx context.Context, j *skill.Job) (*skill.Report, error) {
	return b.whole(ctx, j, (*session).compensate)
}

func (b *Browser) whole(ctx context.Context, j *skill.Job, do func(*session, context.Context) (*skill.Report, error)) (*skill.Report, error) {
	s, err := b.open(ctx, j)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return do(s, ctx)
}

// Session is a page that stands before its commit. One goroutine uses it; Close may be called by
// any, and more than once.
type Session interface {
	// Commit performs the commit step once: Clicked, LeftScope, Lost or Fails.
	Commit(ctx context.Context) *skill.Report
	// Verify performs the later steps, the checks and the result fields: Verified,
	// ChecksFailed, Fails, LeftScope or Lost.
	Verify(ctx context.Context) *skill.Report
	Close()
}

// Close ends all sessions and the browser, also one that is being started. It waits for the end of their processes until
// ctx ends.
func (b *Browser) Close(ctx context.Context) error {
	b.mu.Lock()
	if !b.stops() {
		close(b.stopping)
	}
	e, l, r := b.engine, b.starting, b.recorder
	b.mu.Unlock()
	b.places.close()
	if e != nil {
		e.end(errStopping)
	}
	if r != nil {
		r.close()
	}
	if l != nil {
		select {
		case <-l.done:
			e = l.e
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if e == nil {
		return nil
	}
	select {
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
