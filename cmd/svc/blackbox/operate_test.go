package blackbox

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/private"
	"agentsvc/schemas/id"
	"agentsvc/transport/model/fake"
)

// refused runs svc serve, which must not start: it ends by itself with this exit code, and names the reason.
func (n *node) refused(code int, env []string, texts ...string) {
	n.t.Helper()
	_, stderr, got := n.run(env, "", "serve")
	if got != code {
		n.t.Errorf("svc serve: exit code %d, want %d\n%s", got, code, stderr)
	}
	for _, text := range texts {
		if !strings.Contains(stderr, text) {
			n.t.Errorf("svc serve does not name %q:\n%s", text, stderr)
		}
	}
}

// dataDir returns the node's data directory.
func (n *node) dataDir() string {
	for _, e := range slices.Backward(n.env) {
		if dir, ok := strings.CutPrefix(e, "SVC_DATA_DIR="); ok {
			return dir
		}
	}
	n.t.Fatal("the node has no data directory")
	return ""
}

// A master key that does not open the database is refused before the node serves, also if only the canary is
// sealed yet, and after a rotation.
func TestAWrongMasterKeyIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	key := func(b byte, previous ...string) []string {
		return []string{"SVC_MASTER_KEY=" + masterKey(b), "SVC_MASTER_KEY_PREVIOUS=" + strings.Join(previous, ",")}
	}
	n.start(key(1)...)
	n.kill()
	n.refused(1, key(2), "SVC_MASTER_KEY", "does not open this database")
	_, stderr, code := n.run(key(2), "", "doctor")
	if out, _, _ := n.run(key(2), "", "doctor"); code != 1 || !strings.Contains(out, "BAD  master key") || !strings.Contains(out, "SVC_MASTER_KEY") {
		t.Errorf("doctor with a wrong key: code %d\n%s%s", code, out, stderr)
	}
	if out, _, code := n.run(key(1), "", "doctor"); code != 0 || !strings.Contains(out, "opens this database") {
		t.Errorf("doctor with the key: code %d\n%s", code, out)
	}
	n.start(key(2, masterKey(1))...)
	n.kill()
	n.refused(1, key(1), "SVC_MASTER_KEY", "does not open this database", "svc reseal") // taken back half-way
	if out, _, code := n.run(key(2, masterKey(1)), "", "reseal"); code != 0 {
		t.Errorf("reseal: code %d\n%s", code, out)
	}
	n.refused(1, key(1), "SVC_MASTER_KEY", "does not open this database")
	n.start(key(2)...)
}

// The private Postgres is reached by its own address, whatever the shell says about another server.
func TestVariablesOfPostgresClientsAreAboutAnotherServer(t *testing.T) {
	t.Parallel()
	n := newNode(t, "PGPORT=5433", "PGSERVICE=elsewhere", "PGTARGETSESSIONATTRS=standby", "PGSSLROOTCERT=/nowhere", "PGOPTIONS=-c statement_timeout=1")
	n.start()
	if out, stderr, code := n.run(nil, "", "doctor"); code != 0 {
		t.Errorf("doctor beside the server: code %d\n%s%s", code, out, stderr)
	}
}

// A development database without its key file is refused, and no new key is made; with the file back, it
// starts.
func TestALostKeyFileIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.kill()
	file := filepath.Join(n.dataDir(), "master.key")
	if err := os.Rename(file, file+".lost"); err != nil {
		t.Fatal(err)
	}
	n.refused(1, nil, "the master key is missing", file)
	if _, err := os.Stat(file); err == nil {
		t.Error("another key was made")
	}
	if out, _, code := n.run(nil, "", "doctor"); code != 1 || !strings.Contains(out, "the master key is missing") {
		t.Errorf("doctor: code %d\n%s", code, out)
	}
	if err := os.Rename(file+".lost", file); err != nil {
		t.Fatal(err)
	}
	n.start()
}

// Only serve, dev and migrate create data: every other command names the place where it looked, exits with 1,
// and leaves nothing behind.
func TestManagementMakesNoData(t *testing.T) {
	t.Parallel()
	commands := [][]string{
		{"doctor"}, {"reseal"}, {"cluster", "status"}, {"cluster", "drain", "127.0.0.1:1"},
		{"tenant", "create", "--name", "Acme", "--owner-email", "o@example.com"},
		{"key", "create", "--tenant", "01890a5d-ac96-774b-bcce-b302099a8057", "--name", "k"},
		{"user", "create", "--tenant", "01890a5d-ac96-774b-bcce-b302099a8057", "--email", "o@example.com", "--role", "owner"},
		{"user", "login-link", "--tenant", "01890a5d-ac96-774b-bcce-b302099a8057", "--email", "o@example.com"},
		{"tenant", "ls"}, {"files", "accept-loss"}, {"files", "check"}, {"files", "move", "--to", "file://" + filepath.Join(dataDir(t), "new")},
	}
	n := newNode(t)
	empty := filepath.Join(n.dataDir(), "elsewhere")
	db := pgtest.Empty(t).URL
	for _, args := range commands {
		out, stderr, code := n.run([]string{"SVC_DATA_DIR=" + empty}, "", args...)
		if all := out + stderr; code != 1 || !strings.Contains(all, "no data of this service in "+empty) || !strings.Contains(all, "SVC_DATA_DIR") {
			t.Errorf("svc %v: code %d\n%s", args, code, all)
		}
		if _, err := os.Stat(empty); err == nil {
			t.Fatalf("svc %v made %s", args, empty)
		}
		out, stderr, code = n.run([]string{"SVC_DATABASE_URL=" + db}, "", args...)
		if all := out + stderr; code != 1 || !strings.Contains(all, "no data of this service in "+pg.Describe(db)) || !strings.Contains(all, "SVC_DATABASE_URL") {
			t.Errorf("svc %v on an empty database: code %d\n%s", args, code, all)
		}
	}
	if out, _, code := n.run([]string{"SVC_DATABASE_URL=" + db}, "", "migrate"); code != 0 {
		t.Fatalf("migrate: %s", out)
	}
	out, stderr, code := n.run([]string{"SVC_DATABASE_URL=" + db}, "", "tenant", "create", "--name", "Acme", "--owner-email", "o@example.com")
	if code != 0 {
		t.Errorf("after svc migrate: code %d\n%s%s", code, out, stderr)
	}
	if out, _, _ := n.run([]string{"SVC_DATABASE_URL=" + db}, "", "doctor"); !strings.Contains(out, pg.Describe(db)) || !strings.Contains(out, "1 tenant") {
		t.Errorf("doctor does not say which database it looks at:\n%s", out)
	}
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	n := newNode(t)
	_, stderr, _ := n.run([]string{"SVC_DATABSE_URL=postgres://u:secret@h/d"}, "", "runs", "ls")
	if !strings.Contains(stderr, "SVC_DATABSE_URL is not known; did you mean SVC_DATABASE_URL?") || strings.Contains(stderr, "secret") {
		t.Errorf("runs ls: %s", stderr)
	}
	n.start("SVC_TRUSTED_PROXY=10.0.0.0/8")
	if !strings.Contains(n.logged(), "did you mean SVC_TRUSTED_PROXIES?") {
		t.Errorf("serve: %s", n.logged())
	}
}

// Without SVC_PUBLIC_URL production does not start.
func TestProductionNeedsAPublicAddress(t *testing.T) {
	newNode(t).refused(2, []string{"SVC_ENV=production", "SVC_MASTER_KEY=" + masterKey(1)}, "SVC_PUBLIC_URL")
}

// onDatabase runs work on a private Postgres that runs or is started for it.
func onDatabase(t *testing.T, dir string, work func(ctx context.Context, pool *pg.Pool)) {
	t.Helper()
	ctx := within(t, time.Minute)
	server, err := private.Open(ctx, private.Config{DataDir: dir, Wait: 10 * time.Second, Share: true, Existing: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop(context.WithoutCancel(ctx))
	pool, err := pg.Open(ctx, server.URL(), pg.Options{Role: pg.System, MaxConns: 1, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	work(ctx, pool)
}

// There is one development tenant with one sample of each kind, whatever happens to svc dev: a rate limit that
// is nearly used up, kills during seeding, a lost file, a taken port.
func TestOneDevelopmentTenant(t *testing.T) {
	ctx := within(t, 3*time.Minute)
	binary(t)
	dir := dataDir(t)
	env := append(os.Environ(), "SVC_ADDR="+reserved(t), "SVC_DATA_DIR="+dir)
	small := append(slices.Clone(env), "SVC_RATE_CAPACITY=1", "SVC_RATE_REFILL=0.001")
	kept := func() (s sample) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, sampleFile))
		if err != nil || json.Unmarshal(b, &s) != nil {
			t.Fatalf("%s: %v", b, err)
		}
		return s
	}
	counted := func(when string) {
		t.Helper()
		onDatabase(t, dir, func(ctx context.Context, pool *pg.Pool) {
			for table, want := range map[string]int{"tenants": 1, "agents": 5, "mcp_servers": 1, "connections": 1, "tool_grants": 4, "browser_skills": 1, "knowledge_bases": 1, "approval_policies": 1, "embed_keys": 1,
				"workflows": 1, "workflow_versions": 1, "triggers": 1} {
				n := 0
				if err := pool.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != want {
					t.Errorf("%s: %d %s, want %d (%v)", when, n, table, want, err)
				}
			}
		})
	}

	// Killed between the plan and the end of seeding, several times.
	for range 3 {
		d := startDev(t, small)
		for {
			if b, err := os.ReadFile(filepath.Join(dir, sampleFile)); err == nil && strings.Contains(string(b), `"tenant_id":"0`) {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatal(d.errs.String())
			case <-d.end:
				t.Fatalf("svc dev ended: %s", d.errs.String())
			case <-time.After(time.Millisecond):
			}
		}
		d.cmd.Process.Signal(syscall.SIGKILL)
		<-d.end
	}
	first := startDev(t, small)
	first.until(t, ctx, "Or talk to it:")
	first.stop(t)
	counted("a small bucket, after kills")
	whole := kept()

	// The demo server's port is taken: it uses another one, and the tenant's server follows.
	desk, err := url.Parse(whole.DeskURL)
	if err != nil {
		t.Fatal(err)
	}
	at, err := net.Listen("tcp", desk.Host)
	if err != nil {
		t.Fatal(err)
	}
	moved := startDev(t, env)
	moved.until(t, ctx, "Or talk to it:")
	if s := kept(); s.DeskURL == whole.DeskURL || s.TenantID != whole.TenantID || s.APIKey != whole.APIKey {
		t.Errorf("after the move: %+v, before %+v", s, whole)
	}
	api := &caller{client.Client{Base: "http://" + strings.TrimPrefix(env[len(env)-2], "SVC_ADDR="), Key: whole.APIKey, Tenant: whole.TenantID, HTTP: http.DefaultClient}}
	var tested struct{ Tools []struct{ Name string } }
	if err := api.Call(ctx, "POST", "/v1/mcp-servers/"+whole.ServerID+"/test", map[string]any{}, &tested); err != nil || len(tested.Tools) == 0 {
		t.Errorf("the moved demo server: %+v %v", tested, err)
	}
	moved.stop(t)
	at.Close()
	counted("a taken port")

	// Its key is revoked: the next start creates another one.
	revoking := startDev(t, env)
	revoking.until(t, ctx, "Or talk to it:")
	var keys struct{ Items []struct{ ID, Name string } }
	if err := api.Call(ctx, "GET", "/v1/api-keys", nil, &keys); err != nil || len(keys.Items) != 1 {
		t.Fatalf("%+v %v", keys, err)
	}
	if err := api.Call(ctx, "DELETE", "/v1/api-keys/"+keys.Items[0].ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	revoking.stop(t)
	fresh := startDev(t, env)
	fresh.until(t, ctx, "Or talk to it:")
	api.Key = kept().APIKey
	if err := api.Call(ctx, "GET", "/v1/agents", nil, nil); err != nil || api.Key == whole.APIKey {
		t.Errorf("after its key was revoked: %v", err)
	}
	fresh.stop(t)

	// The file is lost: the tenant is found, and gets a new key.
	if err := os.Remove(filepath.Join(dir, sampleFile)); err != nil {
		t.Fatal(err)
	}
	again := startDev(t, small)
	again.until(t, ctx, "Or talk to it:")
	again.stop(t)
	counted("a lost file")
	if s := kept(); s.TenantID != whole.TenantID || s.AgentID != whole.AgentID || s.WorkflowID != whole.WorkflowID || s.HookURL != whole.HookURL ||
		s.HookSecret == "" || s.HookSecret == whole.HookSecret {
		t.Errorf("after the loss: %+v, before %+v", s, whole)
	}
}

// A failed run is one line of the log that names tenant, run, agent, code and provider, and the user gets the
// provider's name; no message is logged.
func TestAFailedRunIsLogged(t *testing.T) {
	t.Parallel()
	ctx := within(t, time.Minute)
	model, err := fake.New()
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8")
	n.start()
	c := n.tenant("failing")
	c.ask(t, ctx, 201, "POST", "/v1/model-providers", object{"slug": "acme-llm", "kind": "openai", "base_url": model.OpenAI(), "credentials": object{"api_key": "sk-own"}}, nil)
	agent := c.publish(t, "On its own model", object{"model": object{"provider": "acme-llm", "name": "m"}})
	model.Script(fake.Reply{Status: 413})
	run := c.runOnce(t, ctx, agent, "a private question")
	r := c.poll(t, ctx, run, "failed")
	if r.Run.Error == nil || r.Run.Error.Code != "MODEL_ERROR" || !strings.Contains(r.Run.Error.Message, `"acme-llm"`) {
		t.Errorf("the run's error does not name the provider: %+v", r.Run.Error)
	}
	gone := c.runOnce(t, ctx, c.publish(t, "On none", object{"model": object{"provider": "nowhere", "name": "m"}}), "x")
	c.poll(t, ctx, gone, "failed")
	ok := c.runOnce(t, ctx, c.publish(t, "Fine", simulatedModel), "x")
	c.poll(t, ctx, ok, "succeeded")

	lines := map[string][]map[string]any{}
	for line := range strings.SplitSeq(n.logged(), "\n") {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["message"] == "run failed" {
			id, _ := entry["run"].(string)
			lines[id] = append(lines[id], entry)
		}
	}
	if len(lines) != 2 || len(lines[run]) != 1 || len(lines[gone]) != 1 {
		t.Fatalf("lines of failed runs: %v", lines)
	}
	got := lines[run][0]
	for field, want := range map[string]string{"level": "warn", "tenant": c.Tenant, "agent": agent, "code": "MODEL_ERROR", "provider": "acme-llm"} {
		if got[field] != want {
			t.Errorf("%s is %v, want %s", field, got[field], want)
		}
	}
	if strings.Contains(n.logged(), "a private question") {
		t.Error("a message is in the log")
	}
}

// A log to a file has no colour codes, and its durations have units.
func TestLogsOfFiles(t *testing.T) {
	t.Parallel()
	ctx := within(t, time.Minute)
	n := newNode(t, "SVC_LOG_FORMAT=console", "SVC_LOG_LEVEL=debug")
	n.start()
	n.tenant("logged").ask(t, ctx, 200, "GET", "/v1/agents", nil, nil)
	if log := n.logged(); strings.Contains(log, "\x1b[") || !strings.Contains(log, "serving") || !strings.Contains(log, "took_ms=") {
		t.Errorf("%q", log)
	}
	if _, stderr, _ := n.run([]string{"SVC_DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, "", "migrate"); strings.Contains(stderr, "\x1b[") {
		t.Errorf("%q", stderr)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, args := range [][]string{{"health"}, {"health", "--ready"}, {"health", "--json"}} {
		if out, stderr, code := n.run(nil, "", args...); code != 1 {
			t.Errorf("svc %v before the start: %d %s%s", args, code, out, stderr)
		}
	}
	n.start()
	for _, args := range [][]string{{"health"}, {"health", "--ready"}, {"health", "--json"}} {
		if out, stderr, code := n.run(nil, "", args...); code != 0 || !strings.Contains(out, "ok") || stderr != "" {
			t.Errorf("svc %v: %d %s%s", args, code, out, stderr)
		}
	}
}

// The files in deploy/ set the addresses that production needs, and every container has a health check.
func TestDeployFiles(t *testing.T) {
	for file, services := range map[string]int{"compose.yaml": 2, "cluster.compose.yaml": 5} {
		b, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, want := range []string{"SVC_PUBLIC_URL: ${SVC_PUBLIC_URL:?", "SVC_TRUSTED_PROXIES: ", `["CMD", "/svc", "health", "--ready"]`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", file, want)
			}
		}
		if n := strings.Count(text, "healthcheck:"); n != services {
			t.Errorf("%s has %d health checks, want %d", file, n, services)
		}
	}
}

// The image is built with all that make build generates, so that it has the console, and from the sources alone.
func TestTheImageHasWhatTheBinaryHas(t *testing.T) {
	read := func(path ...string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(append([]string{"..", "..", ".."}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	_, generate, found := strings.Cut(read("Makefile"), "\t$(GO) generate ")
	packages, _, _ := strings.Cut(generate, "\n")
	if image := read("deploy", "Dockerfile"); !found || !strings.Contains(image, "go generate "+packages+" ") {
		t.Errorf("deploy/Dockerfile does not generate %q", packages)
	}
	ignored := strings.Fields(read(".dockerignore"))
	for _, want := range []string{".git", "bin", "data", "**/node_modules"} {
		if !slices.Contains(ignored, want) {
			t.Errorf(".dockerignore lacks %s", want)
		}
	}
}

// A drained node reports it, also the only node: it continues to serve, and nothing needs to be moved.
func TestDrainOfTheOnlyNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	ctx := within(t, 20*time.Second)
	c := n.tenant("drained")
	var seen struct{ Items []nodeInfo }
	status := func() nodeInfo {
		t.Helper()
		out, code := n.svc("cluster", "status", "--json")
		if err := json.Unmarshal([]byte(out), &seen); err != nil || code != 0 || len(seen.Items) != 1 {
			t.Fatalf("cluster status: code %d, %v: %s", code, err, out)
		}
		return seen.Items[0]
	}
	node := status().ID.String()
	for _, row := range []struct {
		args  []string
		state string
		ready int
	}{{nil, stateDraining, 503}, {[]string{"--undo"}, stateServing, 200}} {
		if _, code := n.svc(append([]string{"cluster", "drain", node}, row.args...)...); code != 0 {
			t.Fatalf("drain %v: code %d", row.args, code)
		}
		eventually(t, ctx, "/readyz follows", func() bool { code, _ := n.readiness(ctx); return code == row.ready })
		if now := status(); now.State != row.state || now.Shards != id.Shards {
			t.Errorf("drain %v: %+v", row.args, now)
		}
		c.ask(t, ctx, 200, "GET", "/v1/agents", nil, nil)
	}
}
