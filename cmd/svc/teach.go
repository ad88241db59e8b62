package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cmd/svc/client"
	"agentsvc/transport/browser"
	"agentsvc/transport/egress"
)

// teach records a browser skill in a window on this machine, with the recorder of a node. The
// person may go wherever this machine reaches.
func teach(ctx context.Context, url string, said func(string), done <-chan struct{}) (_ client.Lesson, err error) {
	var display []string
	for _, name := range []string{"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR"} {
		if v := os.Getenv(name); v != "" {
			display = append(display, name+"="+v)
		}
	}
	if runtime.GOOS == "linux" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return nil, errors.New("this machine has no display (neither DISPLAY nor WAYLAND_DISPLAY is set): record over the API, as docs/api-guide.md says, or run this on your own computer")
	}
	if len(display) == 0 {
		display = []string{"SVC=window"}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this binary, which starts browsers: %w", err)
	}
	dir, err := os.MkdirTemp("", "svc-record-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // root's browser runs as another user, who passes through
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	everywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	b, err := browser.New(browser.Config{Guard: egress.New(egress.Config{Allow: everywhere}), Command: []string{self, browser.Command}, Name: "record", Dir: filepath.Join(dir, "browser"),
		Driver: os.Getenv("PLAYWRIGHT_DRIVER_PATH"), Chromium: os.Getenv("SVC_BROWSER"), Display: display, Log: zerolog.Nop()})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	lesson, err := b.Teach(ctx, url, said, done)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return nil, errors.Join(err, b.Close(closing), os.RemoveAll(dir))
	}
	return taught{lesson, dir}, nil
}

// taught is a lesson with the directory of its browser.
type taught struct {
	*browser.Lesson
	dir string
}

func (t taught) Close() error { return errors.Join(t.Lesson.Close(), os.RemoveAll(t.dir)) }
