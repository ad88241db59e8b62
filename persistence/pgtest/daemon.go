package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/private"
)

const (
	// asDaemon tells a test binary to run as the daemon; it holds the shared directory.
	asDaemon = "SVC_PGTEST_DAEMON"

	idleTime   = 30 * time.Second // the linking of the next test binaries may take as long
	idlePoll   = 250 * time.Millisecond
	lockPoll   = 5 * time.Millisecond
	patience   = time.Minute // limit for a daemon to start or end
	memoryRoom = 2 << 30     // what /dev/shm must have free
)

// shared is the directory of the shared server.
type shared string

func (s shared) cluster() string   { return filepath.Join(string(s), "cluster") }
func (s shared) prepared() string  { return filepath.Join(string(s), "prepared") }
func (s shared) users() string     { return filepath.Join(string(s), "users.lock") }
func (s shared) starting() string  { return filepath.Join(string(s), "starting.lock") }
func (s shared) preparing() string { return filepath.Join(string(s), "preparing.lock") }
func (s shared) log() string       { return filepath.Join(string(s), "daemon.log") }

func init() {
	if dir := os.Getenv(asDaemon); dir != "" {
		os.Exit(daemon(shared(dir)))
	}
}

// daemon owns the shared server for as long as tests use it.
func daemon(s shared) int {
	log := zerolog.New(os.Stderr).With().Timestamp().Int("pid", os.Getpid()).Logger()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)

	server, err := openServer(ctx, s, log)
	if errors.Is(err, private.ErrInUse) {
		return 0 // another daemon is running
	}
	if err != nil {
		log.Error().Err(err).Msg("shared postgres does not start")
		return 1
	}
	last := time.Now()
	poll := time.NewTicker(idlePoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			server.Stop(context.Background())
			return 0
		case <-poll.C:
		}
		alone, err := lockFile(s.users(), syscall.LOCK_EX)
		if err != nil {
			last = time.Now()
			continue
		}
		if time.Since(last) > idleTime {
			// The lock is held until the end: a test that arrives now waits, and then starts
			// a daemon of its own.
			server.Stop(context.Background())
			os.RemoveAll(s.cluster())
			os.RemoveAll(s.prepared())
			alone.Close()
			return 0
		}
		alone.Close()
	}
}

func openServer(ctx context.Context, s shared, log zerolog.Logger) (*private.Server, error) {
	cfg := private.Config{DataDir: s.cluster(), Log: log, Wait: 20 * time.Second, Unsafe: true, Settings: map[string]string{
		"max_connections": "400",
		"max_wal_size":    "256MB",
		"min_wal_size":    "32MB",
		// It wakes up more often the more databases there are.
		"autovacuum": "off",
	}}
	server, err := private.Open(ctx, cfg)
	if err == nil || errors.Is(err, private.ErrInUse) || ctx.Err() != nil {
		return server, err
	}
	log.Warn().Err(err).Msg("shared postgres is broken, making it anew")
	if err := os.RemoveAll(s.cluster()); err != nil {
		return nil, err
	}
	return private.Open(ctx, cfg)
}

// place returns the directory of the shared server: in memory if there is room.
func place() (shared, error) {
	dir := filepath.Join(memory(), "svc-pgtest-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s is not a directory of ours", dir)
	}
	return shared(dir), nil
}

// memory returns a directory in memory, or the one for temporary files.
func memory() string {
	const shm = "/dev/shm"
	var st syscall.Statfs_t
	if err := syscall.Statfs(shm, &st); err == nil && uint64(st.Bavail)*uint64(st.Bsize) >= memoryRoom {
		if f, err := os.CreateTemp(shm, "svc-pgtest-probe-"); err == nil {
			f.Close()
			os.Remove(f.Name())
			return shm
		}
	}
	return os.TempDir()
}

// join connects to the shared server and starts it if none runs. The caller must keep the
// returned lock as long as it uses the server.
func join(ctx context.Context, s shared) (*private.Server, *os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	using, err := waitLock(ctx, s.users(), syscall.LOCK_SH)
	if err != nil {
		return nil, nil, err
	}
	server, err := startOnce(ctx, s)
	if err != nil {
		using.Close()
		return nil, nil, err
	}
	return server, using, nil
}

// startOnce lets exactly one of the processes that need the server start it.
func startOnce(ctx context.Context, s shared) (*private.Server, error) {
	if server, err := private.Connect(ctx, s.cluster()); err == nil {
		return server, nil
	}
	starting, err := waitLock(ctx, s.starting(), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer starting.Close()
	server, err := private.Connect(ctx, s.cluster())
	if err == nil {
		return server, nil
	}
	pid, err := spawn(s)
	if err != nil {
		return nil, err
	}
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		if server, err = private.Connect(ctx, s.cluster()); err == nil {
			return server, nil
		}
		var status syscall.WaitStatus
		if ended, _ := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); ended == pid && status.ExitStatus() != 0 {
			log, _ := os.ReadFile(s.log())
			return nil, fmt.Errorf("the daemon of the shared server ended: %s", log)
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(s.log())
			return nil, fmt.Errorf("the shared server is not ready: %w; its daemon says: %s", err, log)
		case <-poll.C:
		}
	}
}

// spawn starts the daemon and detaches it: `go test` waits for every process that holds the
// test's output, so the daemon writes to a file.
func spawn(s shared) (pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(self)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), asDaemon+"="+string(s))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the daemon of the shared server: %w", err)
	}
	return cmd.Process.Pid, nil
}

// lockFile locks without waiting.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// waitLock polls: the daemon tries the users' lock now and then, for a moment.
func waitLock(ctx context.Context, path string, how int) (*os.File, error) {
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		f, err := lockFile(path, how)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-poll.C:
		}
	}
}
