package dev

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
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const (
	// restartPause is the time between the end of a process and its next start.
	restartPause = time.Second
	// childStop is how long a child may take to end before it is killed, in addition to
	// the time for work in flight.
	childStop = 12 * time.Second
	// fleetReady is the deadline for the first ready node.
	fleetReady = 60 * time.Second
)

// child is a process that is started again when it ends.
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

// run keeps its thread, because the parent-death signal follows the thread that forked.
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
	// Its own group, so that the terminal's interrupt does not reach it: we stop all
	// children in order.
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
	_, _ = io.Copy(io.Discard, out) // after a line that is too long, so that the writer does not block
	return cmd.Wait()
}

// stop ends the process. At hurry it gets a second signal, with which a node cuts its work
// in flight; at force it is killed.
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
		if c.cmd != nil { // it does not change any more, because quit is closed
			_ = c.cmd.Process.Kill()
		}
		<-c.done
	}
}

// fleet is svc dev with several nodes: Redis and each node are processes of their own on
// this machine, with a small load balancer in front. A process that ends by itself, or is
// killed, is started again.
type fleet struct {
	nodes    []*child
	redis    *child
	balancer *Balancer
	server   *http.Server
	quit     context.CancelFunc
	wg       sync.WaitGroup
}

// serveFleet runs the nodes until ctx ends. It calls ready once one of them answers.
func (c *Config) serveFleet(ctx context.Context, ready func(ctx context.Context, nodes []string) error) (err error) {
	ln, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	defer ln.Close()
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	f := &fleet{}
	out := &wholeLines{w: c.Errs}
	redisURL := c.RedisURL
	if redisURL == "" {
		var dir string
		if f.redis, dir, redisURL, err = redisChild(out, c.Log); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	secret := rand.Text() + rand.Text()
	addrs := make([]string, c.Nodes)
	for i := range addrs {
		addr, peers, err := twoPorts()
		if err != nil {
			return err
		}
		addrs[i] = addr
		f.nodes = append(f.nodes, &child{name: fmt.Sprintf("node%d", i+1), argv: []string{exe, "serve"}, out: out, log: c.Log, env: append(append(os.Environ(), c.NodeEnv...),
			"SVC_ADDR="+addr, "SVC_CLUSTER_ADDR="+peers, "SVC_CLUSTER_SECRET="+secret, "SVC_DATABASE_URL="+db.URL, "SVC_REDIS_URL="+redisURL,
			"SVC_MASTER_KEY="+db.MasterKey, "SVC_TRUSTED_PROXIES=127.0.0.1/32")})
	}
	f.balancer = NewBalancer(addrs, c.Log)
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
	if err := ready(ctx, addrs); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// wait returns once a node answers.
func (f *fleet) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fleetReady)
	defer cancel()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for !f.balancer.anyReady() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no node became ready: %w", ctx.Err())
		}
	}
	return nil
}

// stop ends the nodes together, then Redis and the balancer. The nodes have finish for
// their work in flight; a second signal cuts it.
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

// redisChild returns a Redis without persistence, on a socket in dir.
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

// twoPorts returns two free addresses of this machine: for a node's edge and for its peers.
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

// wholeLines lets several processes write whole lines to one writer.
type wholeLines struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (l *wholeLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
