package private

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const logMax = 16 << 20 // above this size the server's log is started anew

// process keeps one server running until it is stopped.
type process struct {
	cluster  *cluster
	bin      binaries
	settings []string
	log      zerolog.Logger

	halt chan struct{} // closed by stop
	done chan struct{} // closed when run has ended and no server is left

	mu      sync.Mutex // guards the fields below
	running *os.Process
	halted  bool
	ready   bool // it has accepted a connection: from now on it is restarted when it dies
	err     error
}

func newProcess(c *cluster, bin binaries, cfg Config) *process {
	settings := map[string]string{
		"listen_addresses":        "",
		"port":                    "5432",
		"unix_socket_directories": c.socket(),
		"unix_socket_permissions": "0700",
		"max_connections":         "100",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_destination":         "stderr",
		"logging_collector":       "off",
		// Statements may hold a tenant's data: keep them out of the log.
		"log_min_error_statement": "panic",
		"log_error_verbosity":     "terse",
		// There is no replica.
		"wal_level":       "minimal",
		"max_wal_senders": "0",
	}
	if cfg.Unsafe {
		settings["fsync"] = "off"
		settings["synchronous_commit"] = "off"
		settings["full_page_writes"] = "off"
	}
	if runtime.GOOS == "linux" {
		// After a crash the server makes its files durable before it recovers. One by one, that takes seconds.
		settings["recovery_init_sync_method"] = "syncfs"
	}
	for k, v := range cfg.Settings {
		settings[k] = v
	}
	p := &process{cluster: c, bin: bin, log: cfg.Log, halt: make(chan struct{}), done: make(chan struct{})}
	for k, v := range settings {
		p.settings = append(p.settings, k+"="+v)
	}
	sort.Strings(p.settings)
	return p
}

// run owns the server process. The parent-death signal follows the thread that forked, so run
// keeps its thread to itself as long as a server lives; the thread ends with it.
func (p *process) run() {
	runtime.LockOSThread()
	defer close(p.done)
	pause := 50 * time.Millisecond
	for {
		begun := time.Now()
		err := p.runOnce()
		p.mu.Lock()
		halted, ready := p.halted, p.ready
		if err == nil {
			err = errors.New("it ended unexpectedly")
		}
		p.err = err
		p.mu.Unlock()
		if halted || !ready {
			return
		}
		p.log.Warn().Err(err).Msg("private postgres ended, starting it again")
		if time.Since(begun) > time.Minute {
			pause = 50 * time.Millisecond
		}
		select {
		case <-p.halt:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		if err := p.cluster.stopSurvivors(ctx); err != nil {
			p.log.Error().Err(err).Msg("private postgres left processes behind")
		}
		cancel()
	}
}

// runOnce starts the server and waits until it ends.
func (p *process) runOnce() error {
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-D", p.cluster.data()}
	for _, s := range p.settings {
		args = append(args, "-c", s)
	}
	cmd := p.cluster.command(context.Background(), p.bin.path("postgres"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A process group of its own: the terminal's interrupt goes to us, and we stop it in
	// order.
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr)
	if err := p.start(cmd); err != nil {
		return err
	}
	err = cmd.Wait()
	p.mu.Lock()
	p.running = nil
	p.mu.Unlock()
	return err
}

// start fails once stop was called, so that stop's signal reaches whatever runs.
func (p *process) start(cmd *exec.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.halted {
		return errors.New("stopped")
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	p.running = cmd.Process
	return nil
}

func (p *process) openLog() (*os.File, error) {
	path := p.cluster.logFile()
	if info, err := os.Stat(path); err == nil && info.Size() > logMax {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

func (p *process) currentPid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return 0
	}
	return p.running.Pid
}

func (p *process) markReady() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = true
}

// failure returns how the last server ended.
func (p *process) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		p.running.Signal(sig) // a process that has just ended is fine
	}
}

// stop ends the server: fast; at once when ctx ends; by force after that.
func (p *process) stop(ctx context.Context) error {
	p.mu.Lock()
	if !p.halted {
		p.halted = true
		close(p.halt)
	}
	p.mu.Unlock()
	p.signal(syscall.SIGINT)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	p.signal(syscall.SIGQUIT)
	select {
	case <-p.done:
	case <-time.After(haste):
		p.signal(syscall.SIGKILL)
		<-p.done
	}
	return fmt.Errorf("the private Postgres was stopped at once: %w", ctx.Err())
}
