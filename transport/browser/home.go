package browser

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// driverVersion is the driver that this playwright-go speaks to.
const driverVersion = "1.52.0"

// driver returns the directory of the Playwright driver: it holds package/cli.js and, unless the
// machine's own is used, node.
func (b *Browser) driver() (string, error) {
	var dirs []string
	if b.cfg.Driver != "" {
		dirs = []string{b.cfg.Driver}
	} else {
		if b.cfg.DataDir != "" {
			dirs = append(dirs, filepath.Join(b.cfg.DataDir, "playwright"))
		}
		dirs = append(dirs, "/usr/lib/svc/playwright", "/usr/local/lib/svc/playwright")
		if cache, err := os.UserCacheDir(); err == nil {
			dirs = append(dirs, filepath.Join(cache, "ms-playwright-go", driverVersion))
		}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "package", "cli.js")); err != nil {
			continue
		}
		if _, err := nodeOf(dir); err != nil {
			return "", fmt.Errorf("%w: no node for the Playwright driver in %s: install the package nodejs", ErrUnavailable, dir)
		}
		return filepath.Abs(dir)
	}
	return "", fmt.Errorf("%w: no Playwright driver %s found in %s (PLAYWRIGHT_DRIVER_PATH names its directory; the operator guide says how it is made)",
		ErrUnavailable, driverVersion, strings.Join(dirs, ", "))
}

func nodeOf(driver string) (string, error) {
	if p, err := filepath.EvalSymlinks(filepath.Join(driver, "node")); err == nil {
		return p, nil
	}
	p, err := exec.LookPath("node")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(p)
}

// chromium returns the path of Chromium. The packages' wrapper scripts are passed over: they do
// not pass the end of the program on.
func (b *Browser) chromium() (string, error) {
	names := []string{
		"/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium-browser/chromium-headless-shell",
		"/usr/lib/chromium/chromium", "/usr/lib64/chromium-browser/chromium-browser", "/opt/google/chrome/chrome",
		"/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
	}
	what := "chromium-headless-shell"
	if len(b.cfg.Display) > 0 { // that one has no windows
		names = slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, "headless") })
		what = "chromium"
	}
	if b.cfg.Chromium != "" {
		names = []string{b.cfg.Chromium}
	}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return name, nil
		}
	}
	if b.cfg.Chromium != "" {
		return "", fmt.Errorf("%w: %s is no program", ErrUnavailable, b.cfg.Chromium)
	}
	return "", fmt.Errorf("%w: no Chromium found on this machine: install the package %s (SVC_BROWSER names another)", ErrUnavailable, what)
}

// home is the directory of one running browser. Its lock is held while the process that made it
// lives. The browser's user may only write in the directory work below it: what we start from here
// is ours.
type home struct {
	path     string
	lock     *os.File
	uid, gid int    // of the browser; -1: this process's own
	display  string // lines of the program that starts Chromium: where its windows are
}

const (
	lockName = ".lock"
	workName = "work"
)

// newHome makes a directory with one for the browser, which as root is the browser's own user's.
func newHome(dir, name string) (*home, error) {
	h := &home{uid: -1, gid: -1}
	if os.Geteuid() == 0 {
		for _, n := range []string{"svc-browser", "nobody"} {
			u, err := user.Lookup(n)
			if err != nil {
				continue
			}
			uid, err1 := strconv.Atoi(u.Uid)
			gid, err2 := strconv.Atoi(u.Gid)
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("user %s: %w", n, err)
			}
			h.uid, h.gid = uid, gid
			break
		}
		if h.uid < 0 {
			return nil, fmt.Errorf("%w: a browser must not run as root, and this machine has neither a user svc-browser nor nobody", ErrUnavailable)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of browsers: %w", err)
	}
	var err error
	if h.path, err = os.MkdirTemp(dir, name+"-"); err != nil {
		return nil, fmt.Errorf("make the directory of a browser: %w", err)
	}
	if h.lock, err = lockFile(filepath.Join(h.path, lockName)); err == nil && h.lock == nil {
		err = errors.New("its lock is held")
	}
	if err == nil {
		err = os.Mkdir(h.work(), 0o700)
	}
	if err == nil && h.uid >= 0 {
		err = errors.Join(os.Chmod(h.path, 0o755), os.Chown(h.work(), h.uid, h.gid))
	}
	if err != nil {
		h.remove()
		return nil, fmt.Errorf("make the directory of a browser: %w", err)
	}
	return h, nil
}

func (h *home) work() string { return filepath.Join(h.path, workName) }

// lockFile takes the lock of a file; nil if another process holds it.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, err
	}
	return f, nil
}

// kill ends every process of the browser.
func (h *home) kill() { killFamily(h.path) }

// killFamily ends the processes that a directory marks. A second look finds those that were just
// being made.
func killFamily(dir string) {
	for range 20 {
		pids := familyOf(dir)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond) // the kernel needs a moment; there is nothing to wait on for a grandchild
	}
}

func (h *home) remove() {
	_ = os.RemoveAll(h.path)
	if h.lock != nil {
		h.lock.Close()
	}
}

// fill writes the driver's directory: programs that start node and Chromium by way of Child, and
// the driver's package, which root copies because the browser's user may not reach it.
func (h *home) fill(command []string, driver, chromium string) error {
	node, err := nodeOf(driver)
	if err != nil {
		return err
	}
	for name, program := range map[string]string{"node": node, "chromium": chromium} {
		if program == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(h.path, name), []byte(h.script(command, name == "node", program)), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(h.path, boundName), boundJS, 0o644); err != nil {
		return err
	}
	from, to := filepath.Join(driver, "package"), filepath.Join(h.path, "package")
	if h.uid < 0 {
		return os.Symlink(from, to)
	}
	return os.CopyFS(to, readable{os.DirFS(from)})
}

// boundJS bounds the messages of the driver to the service, and driverHeap the memory in which it makes them.
//
//go:embed page/bound.js
var boundJS []byte

const (
	boundName  = "bound.js"
	driverHeap = 512 << 20
)

// niceness is the priority of a browser: a tenth of the share that other processes get.
const niceness = 10

// readable makes what is copied readable by the browser's user.
type readable struct{ fs.FS }

// script returns the program that starts node by way of Child, or Chromium: by then the user is
// the browser's, who may not reach this binary, so setpriv of util-linux asks that it dies with the
// driver. Without it Chromium ends when the driver's pipe closes.
func (h *home) script(command []string, first bool, program string) string {
	if !first {
		return fmt.Sprintf("#!/bin/sh\n%sset -- %s \"$@\"\ncommand -v setpriv >/dev/null && exec setpriv --pdeathsig KILL \"$@\"\nexec \"$@\"\n", h.display, quote(program))
	}
	var quoted []string
	for _, w := range append(append([]string{}, command...), strconv.Itoa(h.uid), strconv.Itoa(h.gid), strconv.Itoa(os.Getpid()), h.work(), program,
		fmt.Sprintf("--max-old-space-size=%d", driverHeap>>20), "--require", filepath.Join(h.path, boundName)) {
		quoted = append(quoted, quote(w))
	}
	return "#!/bin/sh\nexec " + strings.Join(quoted, " ") + " \"$@\"\n"
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// sweep ends and removes what killed processes of this installation left.
func sweep(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for left browsers: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), name+"-") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		lock, err := lockFile(filepath.Join(path, lockName))
		if err != nil || lock == nil {
			continue // it lives, or is not ours
		}
		killFamily(path)
		_ = os.RemoveAll(path)
		lock.Close()
	}
	return nil
}
