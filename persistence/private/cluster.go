package private

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// socketMax limits the path of the socket's directory: the name of a unix socket has at most
// 103 bytes on the strictest system, and Postgres appends 14.
const socketMax = 103 - len("/.s.PGSQL.5432")

// childEnv is the whole environment of the server's processes. Ours holds keys and is not
// passed on.
var childEnv = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}

// cluster is the location of one private Postgres.
type cluster struct {
	home string
	hash string // hash of the data directory: names paths outside it
	// uid and gid run the server; -1 means this process's own.
	uid, gid int
}

func (c *cluster) data() string     { return filepath.Join(c.home, "data") }
func (c *cluster) password() string { return filepath.Join(c.home, "password") }
func (c *cluster) owner() string    { return filepath.Join(c.home, "owner") }
func (c *cluster) logFile() string  { return filepath.Join(c.home, "postgres.log") }

func (c *cluster) socket() string {
	dir := filepath.Join(c.home, "run")
	if len(dir) <= socketMax {
		return dir
	}
	if c.uid >= 0 { // root: a place where no other user can create directories
		return "/run/svc-" + c.hash
	}
	return "/tmp/svc-" + c.hash
}

// locate finds the location of the cluster without changing anything.
func locate(cfg Config) (*cluster, error) {
	sum := sha256.Sum256([]byte(cfg.DataDir))
	home, err := homeOf(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	c := &cluster{home: home, hash: hex.EncodeToString(sum[:8]), uid: -1, gid: -1}
	if err := c.ownedBy(cfg.DataDir); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return c, nil
	}
	if info, err := os.Stat(c.home); err == nil {
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 {
			c.uid, c.gid = int(st.Uid), int(st.Gid)
			return c, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		if c.uid, err = strconv.Atoi(u.Uid); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		if c.gid, err = strconv.Atoi(u.Gid); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return c, nil
	}
	return nil, errors.New("the private Postgres must not run as root, and this machine has neither a user postgres nor nobody: " +
		"install the package postgresql, which makes one, or run svc under another user")
}

// homeOf returns the directory of the cluster of a data directory.
func homeOf(dataDir string) (string, error) {
	moved, err := os.ReadFile(filepath.Join(dataDir, "postgres.location"))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(dataDir, "postgres"), nil
	}
	return strings.TrimSpace(string(moved)), err
}

// ownedBy returns an error if the cluster belongs to another data directory than this one. A copy of a
// data directory names the cluster of its original, and would otherwise work on the original's rows.
func (c *cluster) ownedBy(dataDir string) error {
	recorded, err := os.ReadFile(c.owner())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		// Never started, or by a version that recorded no owner; or this process may not enter the directory,
		// and opens nothing in it.
		return nil
	}
	owner := strings.TrimSpace(string(recorded))
	if err != nil || owner == dataDir {
		return err
	}
	home, err := homeOf(owner)
	if err != nil {
		return fmt.Errorf("the private Postgres in %s belongs to the data directory %s: %w", c.home, owner, err)
	}
	if home != c.home || sameDir(owner, dataDir) { // the data directory was moved, the cluster copied, or the path is another one
		return nil
	}
	return fmt.Errorf("the file postgres.location of %s names the private Postgres in %s, which belongs to the data directory %s: "+
		"copy that Postgres too (cp -a) and write the path of its copy into the file", dataDir, c.home, owner)
}

// claim records the data directory in the cluster.
func (c *cluster) claim(dataDir string) error {
	recorded, err := os.ReadFile(c.owner())
	if err == nil && strings.TrimSpace(string(recorded)) == dataDir {
		return nil
	}
	return writeFile(c.owner(), []byte(dataDir+"\n"), 0o600, c.uid, c.gid)
}

func sameDir(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// settle creates the cluster's directory, finds the binaries that fit, and places the cluster
// outside the data directory if the server's user cannot reach that.
func (c *cluster) settle(ctx context.Context, cfg Config) (binaries, error) {
	if err := c.makeDir(c.home); err != nil {
		return binaries{}, err
	}
	bin, err := c.binaries(ctx, cfg)
	if err != nil {
		return binaries{}, err
	}
	err = c.reach(ctx, bin)
	if err == nil || c.uid < 0 {
		return bin, err
	}
	if _, statErr := os.Stat(filepath.Join(c.data(), "PG_VERSION")); statErr == nil {
		// A fresh cluster elsewhere would look like the loss of all data.
		return binaries{}, fmt.Errorf("the user %d can no longer reach the private Postgres in %s: %w", c.uid, c.home, err)
	}
	if c.home == filepath.Join(cfg.fallback, c.hash) {
		return binaries{}, fmt.Errorf("the user %d cannot reach %s: %w", c.uid, c.home, err)
	}
	if err := os.RemoveAll(c.home); err != nil {
		return binaries{}, err
	}
	if err := os.MkdirAll(cfg.fallback, 0o755); err != nil {
		return binaries{}, fmt.Errorf("make the directory of the private Postgres: %w", err)
	}
	c.home = filepath.Join(cfg.fallback, c.hash)
	if err := c.makeDir(c.home); err != nil {
		return binaries{}, err
	}
	if bin, err = c.binaries(ctx, cfg); err != nil {
		return binaries{}, err
	}
	if err := c.reach(ctx, bin); err != nil {
		return binaries{}, fmt.Errorf("the user %d can reach neither %s nor %s: %w", c.uid, cfg.DataDir, c.home, err)
	}
	return bin, writeFile(filepath.Join(cfg.DataDir, "postgres.location"), []byte(c.home+"\n"), 0o644, -1, -1)
}

// binaries finds the server that fits the cluster: first among the installed ones, then among
// those downloaded before, at last by downloading.
func (c *cluster) binaries(ctx context.Context, cfg Config) (binaries, error) {
	major := 0
	text, err := os.ReadFile(filepath.Join(c.data(), "PG_VERSION"))
	switch {
	case err == nil:
		if major, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return binaries{}, fmt.Errorf("read PG_VERSION of the private Postgres: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return binaries{}, err
	}
	fetched := filepath.Join(c.home, "dist")
	dirs := append(cfg.search(), filepath.Join(fetched, "bin"))
	if b, ok := pick(ctx, dirs, major); ok {
		return b, nil
	}
	cfg.Log.Info().Msg("no installed postgres found, downloading one")
	if err := os.RemoveAll(fetched); err != nil {
		return binaries{}, err
	}
	if err := cfg.fetch(ctx, major, fetched); err != nil {
		return binaries{}, missing(major, err)
	}
	b, ok := pick(ctx, []string{filepath.Join(fetched, "bin")}, major)
	if !ok {
		return binaries{}, missing(major, errors.New("the downloaded binaries do not run"))
	}
	return b, nil
}

// lock takes the lock of the cluster's own directory: ErrInUse if another process holds it.
func (c *cluster) lock() (*os.File, error) {
	f, err := tryLock(filepath.Join(c.home, "lock"))
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("private Postgres in %s: %w: the file postgres.location names a cluster that another svc runs (is this a copy of its data directory?)", c.home, ErrInUse)
	}
	if err := f.Chown(c.uid, c.gid); err != nil { // svc may run under the server's user from now on
		f.Close()
		return nil, err
	}
	return f, nil
}

// reach runs the server's --version as the server's user in the cluster's directory. This
// proves that the user can reach the directory and run the binary.
func (c *cluster) reach(ctx context.Context, bin binaries) error {
	cmd := c.command(ctx, bin.path("postgres"), "--version")
	return cmd.Run()
}

// command runs a program as the server's user, in the cluster's directory.
func (c *cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.home
	cmd.Env = childEnv
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if c.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.gid)}
	}
	return cmd
}

// initialise creates the database files unless they exist. They get their final name only
// when complete, so a kill in the middle needs no repair.
func (c *cluster) initialise(ctx context.Context, bin binaries, cfg Config) error {
	// A link to a file system that is not mounted exists too: nothing may be made in its place.
	if _, err := os.Lstat(c.data()); err == nil {
		return nil
	}
	unfinished := c.data() + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	var secret [32]byte
	rand.Read(secret[:])
	if err := writeFile(c.password(), []byte(hex.EncodeToString(secret[:])), 0o600, c.uid, c.gid); err != nil {
		return fmt.Errorf("write the password of the private Postgres: %w", err)
	}
	out, err := c.initdb(ctx, bin, unfinished, "C.UTF-8", cfg.Unsafe)
	if err != nil && bytes.Contains(out, []byte("locale")) {
		if err := os.RemoveAll(unfinished); err != nil {
			return err
		}
		out, err = c.initdb(ctx, bin, unfinished, "C", cfg.Unsafe)
	}
	if err != nil {
		return fmt.Errorf("make the private Postgres: initdb: %w: %s", err, tail(out))
	}
	if !cfg.Unsafe {
		if err := syncFileSystem(unfinished); err != nil {
			return fmt.Errorf("make the private Postgres: %w", err)
		}
	}
	if err := os.Rename(unfinished, c.data()); err != nil {
		return err
	}
	return syncDir(c.home)
}

func (c *cluster) initdb(ctx context.Context, bin binaries, dir, locale string, unsafe bool) ([]byte, error) {
	auth := "scram-sha-256"
	if unsafe {
		auth = "trust"
	}
	// No parent-death signal: this runs on any thread. An initdb that outlives us writes into
	// a directory that is never used as a cluster.
	return c.command(ctx, bin.path("initdb"), "-D", dir, "-U", admin, "-A", auth, "--pwfile="+c.password(),
		"--no-sync", "--locale="+locale, "-E", "UTF8").CombinedOutput()
}

// What a server says about itself.
const (
	starting = "starting" // also while it recovers
	accepts  = "ready"
)

// status returns what the server with the process id pid says about itself in its lock file, "" if it says nothing.
// pg_ctl reads the same line.
func (c *cluster) status(pid int) string {
	file, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return ""
	}
	lines := strings.Split(string(file), "\n")
	const status = 7
	if len(lines) <= status || lines[0] != strconv.Itoa(pid) {
		return ""
	}
	return strings.TrimSpace(lines[status])
}

// makeDir creates a directory that only the server's user (and root) may enter.
func (c *cluster) makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		return os.Chown(dir, c.uid, c.gid)
	}
	if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory of the private Postgres: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	owner := c.uid
	if owner < 0 {
		owner = os.Geteuid()
	}
	if c.uid >= 0 && st.Uid == 0 && info.IsDir() { // killed between Mkdir and Chown
		return os.Chown(dir, c.uid, c.gid)
	}
	if !info.IsDir() || int(st.Uid) != owner || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s must be a directory of user %d that nobody else may enter", dir, owner)
	}
	return nil
}

func (c *cluster) makeSocketDir() error { return c.makeDir(c.socket()) }

// removeSocket removes a socket directory outside the cluster.
func (c *cluster) removeSocket() {
	if filepath.Dir(c.socket()) != c.home {
		os.Remove(c.socket())
	}
}

// logTail returns the end of the server's log, for an error.
func (c *cluster) logTail() string {
	b, err := os.ReadFile(c.logFile())
	if err != nil {
		return err.Error()
	}
	return tail(b)
}

func tail(b []byte) string {
	const most = 600
	b = bytes.TrimSpace(b)
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return string(b)
}

// writeFile creates a file atomically, owned by uid and gid (-1: this process's own).
func writeFile(path string, content []byte, mode fs.FileMode, uid, gid int) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Chown(uid, gid), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
