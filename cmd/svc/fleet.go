package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cmd/svc/dev"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
)

// A fleet is svc dev with several nodes: Postgres, Redis and each node as a
// process of its own on this machine, and a small load balancer in front. What
// ends by itself, or is killed, is started again.

const (
	// restartPause is how long a process that ended stays away.
	restartPause = time.Second
	// childStop is how long a child may take to end before it is killed, beside what a
	// node finishes.
	childStop = 12 * time.Second
	// fleetReady bounds the start of the first node.
	fleetReady = 60 * time.Second
)

// child is a process that is kept running.
type child struct {
	name string
	env  []string
	argv []string
	out  io.Writer
	log  zerolog.Logger

	mu   sync.Mutex // guards cmd
	cmd  *exec.Cmd
	quit chan struct{}
	done chan struct{}
}

func (c *child) start() {
	c.quit, c.done = make(chan struct{}), make(chan struct{})
	go c.run()
}

// run keeps its thread: the parent-death signal follows the thread that forked.
func (c *child) run() {
	runtime.LockOSThread()
	defer close(c.done)
	for {
		err := c.once()
		select {
		case <-c.quit:
			return
		default:
		}
		c.log.Warn().Err(err).Str("process", c.name).Msg("ended, starting it again")
		pause := time.NewTimer(restartPause)
		select {
		case <-pause.C:
		case <-c.quit:
			pause.Stop()
			return
		}
	}
}

func (c *child) once() error {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Env = c.env
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	cmd.Stdout = cmd.Stderr
	// Its own group: the terminal's interrupt is for us, who stop it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
	c.mu.Lock()
	select {
	case <-c.quit:
		c.mu.Unlock()
		return nil
	default:
	}
	err = cmd.Start()
	if err == nil {
		c.cmd = cmd
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Fprintf(c.out, "%s  %s\n", c.name, lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, out) // behind a line that is too long: who writes is not held up
	return cmd.Wait()
}

// stop ends the process, by force where it does not end by itself. hurry tells it once
// more: a node then cuts what it would have finished.
func (c *child) stop(hurry, force <-chan struct{}) {
	c.mu.Lock()
	close(c.quit)
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	}
	c.mu.Unlock()
	select {
	case <-c.done:
		return
	case <-hurry:
		c.mu.Lock()
		if c.cmd != nil {
			_ = c.cmd.Process.Signal(syscall.SIGTERM)
		}
		c.mu.Unlock()
	case <-force:
	}
	select {
	case <-c.done:
	case <-force:
		if c.cmd != nil { // since quit is closed it stays what it is
			_ = c.cmd.Process.Kill()
		}
		<-c.done
	}
}

// fleet is what runs.
type fleet struct {
	nodes    []*child
	addrs    []string // of the nodes' edges
	redis    *child
	balancer *dev.Balancer
	server   *http.Server
	quit     context.CancelFunc
	wg       sync.WaitGroup
}

// serveFleet runs n nodes until ctx ends; given is what flags said to them. ready
// is called once one answers.
func serveFleet(ctx context.Context, c *Config, given []string, n int, log zerolog.Logger, errs io.Writer, ready func(ctx context.Context, f *fleet) error) (err error) {
	ln, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	defer ln.Close()
	st, err := openStorage(ctx, c, log, access{create: true, nodes: n})
	if err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		err = errors.Join(err, st.close(stopping))
	}()
	if err := shareKey(ctx, c, st.url); err != nil {
		return err
	}
	f := &fleet{}
	out := &wholeLines{w: errs}
	redisURL := c.RedisURL
	if redisURL == "" {
		var dir string
		if f.redis, dir, redisURL, err = redisChild(out, log); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	key := c.MasterKey
	if key == "" {
		text, err := os.ReadFile(vault.KeyFile(c.DataDir))
		if err != nil {
			return err
		}
		key = strings.TrimSpace(string(text))
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	secret := rand.Text() + rand.Text()
	addrs := make([]string, n)
	for i := range n {
		addr, peers, err := twoPorts()
		if err != nil {
			return err
		}
		addrs[i] = addr
		f.nodes = append(f.nodes, &child{name: fmt.Sprintf("node%d", i+1), argv: []string{exe, "serve"}, out: out, log: log, env: append(append(os.Environ(), given...),
			"SVC_ADDR="+addr, "SVC_CLUSTER_ADDR="+peers, "SVC_CLUSTER_SECRET="+secret, "SVC_DATABASE_URL="+st.url, "SVC_REDIS_URL="+redisURL,
			"SVC_MASTER_KEY="+key, "SVC_DATA_DIR="+c.DataDir, "SVC_PUBLIC_URL="+c.PublicURL, "SVC_TRUSTED_PROXIES=127.0.0.1/32",
			"SVC_OUTBOUND_ALLOW="+joinPrefixes(c.OutboundAllow), "SVC_LOG_LEVEL="+c.LogLevel.String(), "SVC_LOG_FORMAT="+c.LogFormat)})
	}
	f.addrs = addrs
	f.balancer = dev.NewBalancer(addrs, log)
	f.server = &http.Server{Handler: f.balancer, ReadHeaderTimeout: 10 * time.Second}
	life, quit := context.WithCancel(context.WithoutCancel(ctx))
	f.quit = quit
	defer f.stop(c.DrainTimeout)
	if f.redis != nil {
		f.redis.start()
	}
	for _, node := range f.nodes {
		node.start()
	}
	f.wg.Go(func() { f.balancer.Watch(life) })
	served := make(chan error, 1)
	f.wg.Go(func() { served <- f.server.Serve(ln) })
	if err := f.wait(ctx); err != nil {
		return err
	}
	if err := ready(ctx, f); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// shareKey makes the master key of a new database, which the nodes share, and
// refuses one that does not open the database.
func shareKey(ctx context.Context, c *Config, url string) error {
	pool, err := pg.Open(ctx, url, pg.Options{Role: pg.System, MaxConns: 1, AppName: "svc dev"})
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = unlock(ctx, c, pool, true)
	return err
}

// wait returns when a node answers.
func (f *fleet) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fleetReady)
	defer cancel()
	tick := time.NewTicker(dev.ProbeEvery)
	defer tick.Stop()
	for !f.balancer.AnyReady() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no node became ready: %w", ctx.Err())
		}
	}
	return nil
}

// stop ends the nodes together, then what they stand on. They may take so long for
// what they have begun; a second signal cuts it.
func (f *fleet) stop(finish time.Duration) {
	again, forget := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer forget()
	patience, cancel := context.WithTimeout(context.Background(), finish+childStop)
	defer cancel()
	var ending sync.WaitGroup
	for _, node := range f.nodes {
		ending.Go(func() { node.stop(again.Done(), patience.Done()) })
	}
	ending.Wait()
	_ = f.server.Close()
	if f.redis != nil {
		f.redis.stop(nil, patience.Done())
	}
	f.quit()
	f.wg.Wait()
}

// redisChild is a Redis that keeps nothing, on a socket of its own.
func redisChild(out io.Writer, log zerolog.Logger) (c *child, dir, url string, err error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, "", "", errors.New("several nodes need a Redis: install the package redis-server, or set SVC_REDIS_URL")
	}
	dir, err = os.MkdirTemp("", "svc-redis-") // a socket's path must be short
	if err != nil {
		return nil, "", "", err
	}
	socket := filepath.Join(dir, "redis.sock")
	return &child{name: "redis", out: out, log: log, env: os.Environ(), argv: []string{bin, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700",
		"--dir", dir, "--save", "", "--appendonly", "no", "--loglevel", "warning"}}, dir, "unix://" + socket, nil
}

// twoPorts are free addresses on this machine, of a node's edge and for its peers.
func twoPorts() (edge, peers string, err error) {
	var at [2]string
	for i := range at {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer ln.Close()
		at[i] = ln.Addr().String()
	}
	return at[0], at[1], nil
}

// wholeLines lets several processes write their lines to one place.
type wholeLines struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (l *wholeLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
