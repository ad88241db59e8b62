package browser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// unconfined is a Chromium on a machine that does not allow its sandbox: it starts only without, and
// notes its starts.
type unconfined struct{ program, notes string }

func newUnconfined(t testing.TB) *unconfined {
	t.Helper()
	dir, err := os.MkdirTemp("", "svc-unconfined-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	chromium, err := (&Browser{}).chromium()
	if err != nil {
		t.Fatal(err)
	}
	u := &unconfined{filepath.Join(dir, "chromium"), filepath.Join(dir, "notes")}
	script := fmt.Sprintf(`#!/bin/sh
case " $* " in
*" --no-sandbox "*) echo without >>%[1]s; exec %[2]s "$@" ;;
esac
echo sandboxed >>%[1]s
echo "[7:7:FATAL:content/browser/zygote_host/zygote_host_impl_linux.cc:132] No usable sandbox! If this is a Debian system" >&2
exit 1
`, u.notes, chromium)
	// The browser's user reads, starts and writes these.
	for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(u.program, []byte(script), 0o755), os.WriteFile(u.notes, nil, 0o666), os.Chmod(u.notes, 0o666)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// starts returns how the browser was started, in order.
func (u *unconfined) starts(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(u.notes)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

// lines is a log that tests read.
type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// In production a Chromium without a sandbox is never started unless the operator says so (design:
// what the page does must not reach the node). The refusal says what to do, and starts nothing again.
func TestProductionNeedsASandbox(t *testing.T) {
	t.Parallel()
	u, log := newUnconfined(t), &lines{}
	cfg := config(t)
	cfg.Chromium, cfg.Production, cfg.Log = u.program, true, zerolog.New(log)
	refuses, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for range 2 {
		_, err := refuses.Read(context.Background(), w.job(t, page("/lab/plain", false), `{}`))
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "does not let Chromium use its sandbox: allow unprivileged user namespaces, or set SVC_BROWSER_NO_SANDBOX=true") {
			t.Fatal(err)
		}
		if err := refuses.Available(); !errors.Is(err, errNoSandbox) {
			t.Errorf("it is available: %v", err)
		}
	}
	if got := u.starts(t); got != "sandboxed" {
		t.Errorf("started %q", got)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"level":"error"`) || !strings.Contains(got, "SVC_BROWSER_NO_SANDBOX=true") {
		t.Errorf("the operator reads %s", got)
	}
	if w.Hits("GET /lab/plain")+w.Hits("GET /login") != 0 {
		t.Error("a page was opened")
	}
}
