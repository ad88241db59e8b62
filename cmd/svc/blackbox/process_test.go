package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/cmd/svc/clitest"
	"agentsvc/persistence/failpoint"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/model/fake"
)

var build struct {
	sync.Once
	dir  string
	file string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if prepared.dir != "" {
		os.RemoveAll(prepared.dir)
	}
	if build.dir != "" {
		os.RemoveAll(build.dir)
	}
	os.Exit(code)
}

// binary builds the service once for this test process, with the failpoints of this test's build.
func binary(t *testing.T) string {
	t.Helper()
	build.Do(func() {
		if build.dir, build.err = os.MkdirTemp("", "svc-test-bin-"); build.err != nil {
			return
		}
		build.file = filepath.Join(build.dir, "svc")
		args := []string{"build", "-o", build.file}
		if failpoint.Enabled {
			args = append(args, "-tags", "failpoints")
		}
		var out []byte
		if out, build.err = exec.Command("go", append(args, "agentsvc/cmd/svc")...).CombinedOutput(); build.err != nil {
			build.err = fmt.Errorf("%w: %s", build.err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.file
}

// node is a `svc serve` with the test that uses it.
type node struct {
	t *testing.T
	*process
}

// process is a running `svc serve` with a data directory that outlives it.
type process struct {
	addr string
	base string
	env  []string
	file string // of the binary; empty: built from this source
	tool string // of the binary of management commands; empty: built from this source

	leave func() // releases addr

	mu  sync.Mutex // guards the fields below
	cmd *exec.Cmd
	log *clitest.Output
	end chan struct{} // closed when cmd has ended
}

// calm is the lease of a node, unless its test sets another one: a lease that expires because the machine is busy would
// be a crash. On a private Postgres a node does not wait for the lease of the node before it.
const calm = "SVC_CLUSTER_LEASE=30s"

// brief is for tests that kill a node on a database that stays, or cut a node off from its database.
const brief = "SVC_CLUSTER_LEASE=3s"

// newNode prepares a node with a private Postgres; start runs it.
func newNode(t *testing.T, env ...string) *node {
	t.Helper()
	dir := dataDir(t)
	if !slices.ContainsFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "SVC_DATABASE_URL=") || strings.HasPrefix(v, "SVC_DATA_DIR=")
	}) {
		prepare(t, dir)
	}
	p, err := newProcess(dir, append([]string{calm}, env...)...)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t, p}
	t.Cleanup(func() {
		n.kill()
		p.leave()
		if t.Failed() && n.logged() != "" {
			t.Logf("the last node's log:\n%s", n.logged())
		}
	})
	return n
}

// prepared is a data directory with a migrated private Postgres that has never been served.
var prepared struct {
	sync.Once
	dir string
	err error
}

// prepare copies a migrated Postgres into the data directory of a node, so that not every test pays for making
// one. First starts have tests of their own.
func prepare(t *testing.T, dir string) {
	t.Helper()
	prepared.Do(func() {
		if prepared.dir, prepared.err = reachableDir(); prepared.err != nil {
			return
		}
		migrate := exec.Command(binary(t), "migrate")
		migrate.Env = append(os.Environ(), "SVC_DATA_DIR="+prepared.dir)
		var out []byte
		if out, prepared.err = migrate.CombinedOutput(); prepared.err != nil {
			prepared.err = fmt.Errorf("%w: %s", prepared.err, out)
		}
	})
	if prepared.err != nil {
		t.Fatal(prepared.err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(prepared.dir, "postgres"), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func newProcess(dir string, env ...string) (*process, error) {
	addr, leave, err := testkit.Reserve()
	if err != nil {
		return nil, err
	}
	p := &process{addr: addr, base: "http://" + addr, leave: leave}
	p.env = append(append(os.Environ(), "SVC_ADDR="+addr, "SVC_DATA_DIR="+dir, "SVC_RATE_CAPACITY=1000000", "SVC_RATE_REFILL=1000000",
		"SVC_CONNS_PER_ADDRESS=0", "SVC_LOG_FORMAT=json"), env...)
	return p, nil
}

// reserved is testkit.Reserved.
func reserved(t *testing.T) string {
	t.Helper()
	return testkit.Reserved(t)
}

// dataDir returns a directory that an unprivileged Postgres can reach, unlike t.TempDir under a root-only
// parent.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := reachableDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func reachableDir() (string, error) {
	dir, err := os.MkdirTemp("", "svc-test-data-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// shared is one node for all tests that need only a tenant of their own. They never stop it, and may leave
// model turns in flight that would hold up its end for minutes: it finishes them for sharedDrain at most. Its
// deployment-wide model providers are fakes.
var shared struct {
	sync.Once
	process           *process
	dir               string
	openAI, anthropic *fake.Server
	err               error
}

const sharedDrain = time.Second

func sharedNode(t *testing.T) *node {
	t.Helper()
	shared.Do(func() {
		if shared.dir, shared.err = reachableDir(); shared.err != nil {
			return
		}
		if shared.openAI, shared.err = fake.New(); shared.err != nil {
			return
		}
		if shared.anthropic, shared.err = fake.New(); shared.err != nil {
			return
		}
		if shared.process, shared.err = newProcess(shared.dir, calm, behindProxy, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_SKILL_STEP_TIMEOUT=20s", "SVC_DRAIN_TIMEOUT="+sharedDrain.String(),
			"OPENAI_API_KEY=sk-deployment-openai", "OPENAI_BASE_URL="+shared.openAI.OpenAI(),
			"ANTHROPIC_API_KEY=sk-deployment-anthropic", "ANTHROPIC_BASE_URL="+shared.anthropic.Anthropic()); shared.err != nil {
			return
		}
		(&node{t, shared.process}).start()
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	n := &node{t, shared.process}
	if err := n.ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text := n.logged(); t.Failed() && text != "" {
			t.Logf("the end of the shared node's log:\n%s", text[max(0, len(text)-8<<10):])
		}
	})
	return n
}

// stopShared stops the shared node in order, so that its Postgres ends too. It returns an error with the node's
// goroutines if that takes far longer than SIGTERM may (docs/operator-guide.md): Postgres writes what all tests left to
// a disk that may be slow.
func stopShared() (err error) {
	if shared.process != nil {
		if err = shared.process.signal(syscall.SIGTERM, sharedDrain+30*time.Second); err != nil {
			shared.process.signal(syscall.SIGQUIT, 5*time.Second)
			_, goroutines, _ := strings.Cut(shared.process.logged(), "SIGQUIT: quit")
			err = fmt.Errorf("the shared node: %w\n%s", err, goroutines)
			shared.process.signal(syscall.SIGKILL, time.Second)
		}
		shared.process.leave()
		shared.openAI.Close()
		shared.anthropic.Close()
	}
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	return err
}

// start runs the node and waits until it is ready, or until it has ended if a failpoint may end it earlier.
func (n *node) start(env ...string) {
	n.t.Helper()
	n.launch(env...)
	if err := n.ready(time.Minute); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) launch(env ...string) {
	n.t.Helper()
	file := n.file
	if file == "" {
		file = binary(n.t)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = new(clitest.Output)
	n.cmd = exec.Command(file, "serve")
	n.cmd.Env, n.cmd.Stdout, n.cmd.Stderr = append(n.env[:len(n.env):len(n.env)], env...), n.log, n.log
	end, err := startChild(n.cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.end = end
}

// startChild starts a process that dies with this one; end is closed when it has ended. The parent-death signal
// is tied to the thread that forked, and a thread ends with a goroutine that was locked to it (like that of the
// private Postgres). So the child's thread lives as long as the child.
func startChild(cmd *exec.Cmd) (end chan struct{}, err error) {
	end = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			close(end)
		}
	}()
	return end, <-started
}

func (n *process) ready(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		resp, err := http.Get(n.base + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-n.ended():
			return fmt.Errorf("the node ended: %s", n.logged())
		default:
		}
		if time.Now().After(deadline) {
			break
		}
	}
	return fmt.Errorf("the node is not ready after %s", limit)
}

func (n *process) ended() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.end
}

// logged returns the log of the last start so far.
func (n *process) logged() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.log == nil {
		return ""
	}
	return n.log.String()
}

// exit returns the exit code of the process.
func (n *process) exit() int {
	<-n.ended()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cmd.ProcessState.ExitCode()
}

// signal sends s and waits for the end, which must come within limit.
func (n *process) signal(s os.Signal, limit time.Duration) error {
	n.mu.Lock()
	cmd, end := n.cmd, n.end
	n.mu.Unlock()
	if cmd == nil {
		return nil
	}
	cmd.Process.Signal(s)
	select {
	case <-end:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("the node has not ended %s after %s", limit, s)
	}
}

func (n *node) kill() {
	if err := n.signal(syscall.SIGKILL, time.Minute); err != nil {
		n.t.Error(err)
	}
}

// svc runs a command of the binary with the node's settings.
func (n *node) svc(args ...string) (stdout string, code int) {
	n.t.Helper()
	return n.svcWith(nil, "", args...)
}

func (n *node) svcWith(env []string, stdin string, args ...string) (stdout string, code int) {
	n.t.Helper()
	stdout, stderr, code := n.run(env, stdin, args...)
	if stderr != "" {
		n.t.Logf("svc %v: %s", args, stderr)
	}
	return stdout, code
}

// run runs a command of the binary with the node's settings; it must end within a minute.
func (n *node) run(env []string, stdin string, args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	file := n.tool
	if file == "" {
		file = binary(n.t)
	}
	cmd := exec.CommandContext(ctx, file, args...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(n.env[:len(n.env):len(n.env)], env...), bytes.NewBufferString(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// tenant creates a tenant through the command line and returns its client.
func (n *node) tenant(name string) *caller {
	n.t.Helper()
	out, code := n.svc("tenant", "create", "--name", name, "--owner-email", "owner@example.com", "--json")
	var made struct {
		TenantID string `json:"tenant_id"`
		OwnerID  string `json:"owner_id"`
		APIKey   string `json:"api_key"`
	}
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != 0 || made.APIKey == "" || made.OwnerID == "" {
		n.t.Fatalf("tenant create: code %d, %v: %s", code, err, out)
	}
	return &caller{client.Client{Base: n.base, Key: made.APIKey, Tenant: made.TenantID, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}}
}

// environment returns the variables with which a command acts as c.
func (c *caller) environment() []string {
	return []string{"SVC_URL=" + c.Base, "SVC_TENANT=" + c.Tenant, "SVC_API_KEY=" + c.Key}
}

// publish creates a published agent with the manifest and returns its id.
func (c *caller) publish(t *testing.T, name string, manifest map[string]any) string {
	t.Helper()
	var made struct {
		Agent struct{ ID string }
	}
	if err := c.Call(t.Context(), "POST", "/v1/agents", map[string]any{"name": name, "manifest": manifest}, &made); err != nil {
		t.Fatal(err)
	}
	if err := c.Call(t.Context(), "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil); err != nil {
		t.Fatal(err)
	}
	return made.Agent.ID
}

var simulatedModel = map[string]any{"model": map[string]any{"provider": "simulated", "name": "sim-1"}}

// once sends a POST under an Idempotency-Key until it gets a final response, over crashes and restarts, like a
// careful back end.
func (c *caller) once(ctx context.Context, path, key string, body, out any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, answer, err := c.tryOnce(ctx, path, key, b)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w (last: %d %s %v)", ctx.Err(), status, answer, err)
		case err == nil && status < 300:
			return json.Unmarshal(answer, out)
		case err == nil && status < 500 && status != http.StatusTooManyRequests && !bytes.Contains(answer, []byte("IDEMPOTENCY_IN_PROGRESS")):
			return fmt.Errorf("POST %s: %d %s", path, status, answer)
		case err == nil && status >= 500 && status != http.StatusServiceUnavailable:
			return fmt.Errorf("POST %s: %d %s", path, status, answer)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (c *caller) tryOnce(ctx context.Context, path, key string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Key)
	req.Header.Set("X-Tenant-Id", c.Tenant)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(resp.Body); err != nil {
		return 0, nil, err // an incomplete response counts as none
	}
	return resp.StatusCode, buf.Bytes(), nil
}
