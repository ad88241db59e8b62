package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"
)

// bed is what a scenario stands on: a fresh Postgres, and the service with one
// tenant and one published agent on the simulated model.
type bed struct {
	svcFile string
	total   int
	quiet   int
	soak    time.Duration
	chunks  int
	great   int
	other   string // another binary
	dir     string
	keep    bool   // dir outlives the scenario, and one that is there is used again
	bin     string // of Postgres
	socket  string
	pg      *exec.Cmd

	svc    *exec.Cmd
	env    []string // of svc
	base   string
	others []string // bases of further nodes: each request goes to a random one of all
	tenant string
	key    string
	agent  string
	http   *fasthttp.Client
}

func newBed(ctx context.Context, svc, dir, keep string) (*bed, error) {
	b := &bed{svcFile: svc, http: newClient(), dir: keep, keep: keep != ""}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return nil, errors.New("no PostgreSQL under /usr/lib/postgresql: install the package postgresql")
	}
	slices.Sort(found)
	b.bin = found[len(found)-1]
	if b.keep {
		err = os.MkdirAll(b.dir, 0o700)
	} else {
		b.dir, err = os.MkdirTemp(dir, "svc-bench-")
	}
	if err != nil {
		return nil, err
	}
	cred, err := b.unprivileged()
	if err != nil {
		return nil, err
	}
	b.socket = b.dir
	data := filepath.Join(b.dir, "pg")
	_, err = os.Stat(data)
	fresh := errors.Is(err, os.ErrNotExist)
	if fresh {
		init := exec.CommandContext(ctx, filepath.Join(b.bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
		init.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		if out, err := init.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("initdb: %w: %s", err, out)
		}
	}
	b.pg = exec.Command(filepath.Join(b.bin, "postgres"), "-D", data, "-k", b.socket, "-c", "listen_addresses=", "-c", "max_connections=400",
		"-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB", "-c", "min_wal_size=3GB")
	b.pg.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Pdeathsig: syscall.SIGQUIT}
	if err := b.pg.Start(); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx, fresh); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// prepare makes the databases of a fresh Postgres once it answers.
func (b *bed) prepare(ctx context.Context, fresh bool) error {
	var c *pgx.Conn
	if err := poll(ctx, time.Minute, "Postgres", func() (ready bool) {
		var err error
		c, err = pgx.Connect(ctx, b.dsn("postgres"))
		return err == nil
	}); err != nil {
		return err
	}
	defer c.Close(ctx)
	if !fresh {
		return nil
	}
	for _, name := range []string{"svc", "river"} {
		if _, err := c.Exec(ctx, "create database "+name); err != nil {
			return err
		}
	}
	return fillWAL(ctx, c)
}

// fillWAL gives a fresh Postgres as many segments of its log to use again as it has
// after some time under load. It would make each of them new until its second
// checkpoint, 16 MiB of zeros and an fsync, and nobody's commit ends meanwhile: under
// load 60 ms every three seconds, which is more than one in a hundred.
func fillWAL(ctx context.Context, c *pgx.Conn) error {
	const segments = 3 << 30 / (16 << 20) // min_wal_size
	for range segments {
		if _, err := c.Exec(ctx, "select pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()"); err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, "checkpoint")
	return err
}

// newClient lets go of a connection before the service does, which is after a minute
// without a request: a post that meets its end is not sent again.
func newClient() *fasthttp.Client {
	return &fasthttp.Client{MaxConnsPerHost: 4096, ReadTimeout: 60 * time.Second, MaxIdleConnDuration: 30 * time.Second}
}

// none reports whether a count of what is open is zero.
func (b *bed) none(ctx context.Context, open string) bool {
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return false
	}
	defer c.Close(ctx)
	var n int
	return c.QueryRow(ctx, open).Scan(&n) == nil && n == 0
}

// unprivileged gives the bed to a user Postgres accepts; root is refused by it.
func (b *bed) unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(b.dir, uid, gid)
}

func (b *bed) dsn(db string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s", db, b.socket)
}

func (b *bed) close() {
	b.stopService()
	if b.pg != nil {
		b.pg.Process.Signal(syscall.SIGINT)
		b.pg.Wait()
	}
	if !b.keep {
		os.RemoveAll(b.dir)
	}
}

// serve starts the service with further settings and makes the tenant and the
// agent, whose manifest's model may be given.
func (b *bed) serve(ctx context.Context, model string, env ...string) error {
	if err := b.run(ctx, env...); err != nil {
		return err
	}
	return b.account(ctx, model)
}

// account makes the tenant and the agent.
func (b *bed) account(ctx context.Context, model string) error {
	make := exec.CommandContext(ctx, b.svcFile, "tenant", "create", "--name", "bench", "--owner-email", "bench@example.com", "--json")
	make.Env, make.Stderr = b.env, os.Stderr
	out, err := make.Output()
	if err != nil {
		return fmt.Errorf("tenant create: %w", err)
	}
	var t struct {
		TenantID string `json:"tenant_id"`
		APIKey   string `json:"api_key"`
	}
	if err := json.Unmarshal(out, &t); err != nil {
		return err
	}
	b.tenant, b.key = t.TenantID, t.APIKey
	var made struct{ Agent struct{ ID string } }
	if err := b.call("POST", "/v1/agents", map[string]any{"name": "Bench", "manifest": map[string]any{"model": json.RawMessage(model)}}, &made); err != nil {
		return err
	}
	b.agent = made.Agent.ID
	return b.call("POST", "/v1/agents/"+b.agent+"/versions/1/publish", nil, nil)
}

// run starts the service on an address of its own.
func (b *bed) run(ctx context.Context, env ...string) error {
	addr, err := freePort()
	if err != nil {
		return err
	}
	b.base = "http://" + addr
	env = append(os.Environ(), append([]string{"SVC_ADDR=" + addr, "SVC_DATABASE_URL=" + b.dsn("svc"), "SVC_DATA_DIR=" + filepath.Join(b.dir, "data"),
		"SVC_CONNS_PER_ADDRESS=0", "SVC_TRUSTED_PROXIES=127.0.0.0/8", "SVC_RATE_CAPACITY=1000000000", "SVC_RATE_REFILL=100000000", "SVC_LOG_LEVEL=warn"}, env...)...)
	return b.launch(ctx, env)
}

// launch starts the service's process and waits until it serves.
func (b *bed) launch(ctx context.Context, env []string) error {
	b.svc = exec.Command(b.svcFile, "serve")
	b.env = env
	// As in deploy/. A scenario's own GOGC comes later in env, and the last value counts.
	env = append([]string{"GOGC=300", "GOMEMLIMIT=2GiB"}, env...)
	b.svc.Env, b.svc.Stderr, b.svc.Stdout = env, os.Stderr, os.Stderr
	b.svc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.svc.Start(); err != nil {
		return err
	}
	return poll(ctx, 20*time.Second, "the service", func() bool {
		code, _, err := fasthttp.Get(nil, b.base+"/readyz")
		return err == nil && code == 200
	})
}

const simulated = `{"provider":"simulated","name":"sim-1"}`

func (b *bed) stopService() {
	if b.svc != nil {
		b.svc.Process.Signal(syscall.SIGTERM)
		b.svc.Wait()
		b.svc = nil
	}
}

// any is the base of a random node.
func (b *bed) any() string {
	if i := rand.IntN(len(b.others) + 1); i > 0 {
		return b.others[i-1]
	}
	return b.base
}

// call sends one authenticated request and reads the answer.
func (b *bed) call(method, path string, body, out any) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod(method)
	req.SetRequestURI(b.any() + path)
	req.Header.Set("Authorization", "Bearer "+b.key)
	req.Header.Set("X-Tenant-Id", b.tenant)
	if body != nil {
		j, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req.Header.SetContentType("application/json")
		req.SetBody(j)
	}
	if err := b.http.Do(req, resp); err != nil {
		return err
	}
	if resp.StatusCode() >= 300 {
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode(), resp.Body())
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(resp.Body(), out)
}

// thread opens a thread of the agent.
func (b *bed) thread() (string, error) {
	var t struct{ ID string }
	err := b.call("POST", "/v1/threads", map[string]any{"agent_id": b.agent}, &t)
	return t.ID, err
}

// post sends a message and answers its run.
func (b *bed) post(thread, content string) (string, error) {
	var p struct {
		RunID string `json:"run_id"`
	}
	err := b.call("POST", "/v1/threads/"+thread+"/messages", map[string]any{"content": content}, &p)
	return p.RunID, err
}

// follow opens a run's event stream on a connection of its own and hands over
// each line until the stream ends.
func (b *bed) follow(run, query string, line func([]byte) bool) error {
	return b.read("/v1/runs/"+run+"/events"+query, "Authorization: Bearer "+b.key+"\r\nX-Tenant-Id: "+b.tenant+"\r\n", line)
}

// read opens an event stream with further header lines.
func (b *bed) read(path, header string, line func([]byte) bool) error {
	c, err := net.Dial("tcp", strings.TrimPrefix(b.any(), "http://"))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: bench\r\n%sAccept: text/event-stream\r\n\r\n", path, header); err != nil {
		return err
	}
	buf, have := make([]byte, 16<<10), 0
	for {
		n, err := c.Read(buf[have:])
		if n == 0 && err != nil {
			return err
		}
		have += n
		start := 0
		for {
			i := bytes.IndexByte(buf[start:have], '\n')
			if i < 0 {
				break
			}
			if !line(buf[start : start+i]) {
				return nil
			}
			start += i + 1
		}
		have = copy(buf, buf[start:have])
		if have == len(buf) {
			return errors.New("a line is longer than 16 KiB")
		}
	}
}

// usage is what the kernel says of the service's process.
type usage struct {
	rssKiB  int
	cpu     time.Duration
	threads int
}

func (b *bed) usage() (u usage, err error) {
	pid := strconv.Itoa(b.svc.Process.Pid)
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return u, err
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	utime, _ := strconv.Atoi(f[11])
	stime, _ := strconv.Atoi(f[12])
	u.cpu = time.Duration(utime+stime) * (time.Second / 100)
	u.threads, _ = strconv.Atoi(f[17])
	pages, _ := strconv.Atoi(f[21])
	u.rssKiB = pages * os.Getpagesize() / 1024
	return u, nil
}

// metric reads one number of /metrics; 0 when it is not there.
func (b *bed) metric(name string) float64 {
	_, body, err := fasthttp.Get(nil, b.base+"/metrics")
	if err != nil {
		return 0
	}
	for _, l := range strings.Split(string(body), "\n") {
		if v, ok := strings.CutPrefix(l, name+" "); ok {
			n, _ := strconv.ParseFloat(v, 64)
			return n
		}
	}
	return 0
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func poll(ctx context.Context, limit time.Duration, what string, ready func() bool) error {
	deadline := time.Now().Add(limit)
	for !ready() {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("%s did not become ready within %s", what, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(float64(len(d)-1)*q)]
}
