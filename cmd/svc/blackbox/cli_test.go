package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/cmd/svc/clitest"
)

// Exit codes: 0 done, 1 failed, 2 wrong use (open-parts.md, Command line).
func TestExitCodes(t *testing.T) {
	t.Parallel()
	n := newNode(t) // never started: no command here may need it
	closed := "SVC_URL=" + n.base
	some := []string{closed, "SVC_TENANT=01890a5d-ac96-774b-bcce-b302099a8057", "SVC_API_KEY=svc_x"}
	long := strings.Repeat("n", 121)
	for name, row := range map[string]struct {
		env  []string
		args []string
		code int
	}{
		"no command shows the commands":   {nil, nil, 0},
		"help":                            {nil, []string{"help"}, 0},
		"help of a command":               {nil, []string{"runs", "ls", "--help"}, 0},
		"version":                         {nil, []string{"version"}, 0},
		"openapi":                         {nil, []string{"openapi"}, 0},
		"unknown command":                 {nil, []string{"bogus"}, 2},
		"unknown command of a group":      {nil, []string{"runs", "bogus"}, 2},
		"unknown command of tenant":       {nil, []string{"tenant", "bogus"}, 2},
		"unknown flag":                    {nil, []string{"version", "--bogus"}, 2},
		"too many arguments":              {nil, []string{"version", "x"}, 2},
		"an argument is missing":          {some, []string{"runs", "get"}, 2},
		"serve, wrong address":            {nil, []string{"serve", "--addr", "nope"}, 2},
		"serve, wrong duration":           {[]string{"SVC_SSE_HEARTBEAT=soon"}, []string{"serve"}, 2},
		"serve, production without a key": {[]string{"SVC_ENV=production"}, []string{"serve"}, 2},
		"dev in production":               {[]string{"SVC_ENV=production", "SVC_MASTER_KEY=" + masterKey(1)}, []string{"dev"}, 2},
		"dev, one address for metrics":    {[]string{"SVC_METRICS_ADDR=127.0.0.1:1"}, []string{"dev", "--nodes", "2"}, 2},
		"migrate, wrong configuration":    {[]string{"SVC_RATE_REFILL=x"}, []string{"migrate"}, 2},
		"migrate, no such database":       {[]string{"SVC_DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, []string{"migrate"}, 1},
		"doctor, no such database":        {[]string{"SVC_DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, []string{"doctor"}, 1},
		"doctor, wrong configuration":     {[]string{"SVC_RATE_REFILL=x"}, []string{"doctor"}, 1},
		"serve, no such database":         {[]string{"SVC_DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, []string{"serve"}, 1},
		"tenant create without a name":    {nil, []string{"tenant", "create", "--owner-email", "a@b.example"}, 2},
		"tenant create, long name":        {nil, []string{"tenant", "create", "--name", long, "--owner-email", "a@b.example"}, 2},
		"tenant create, no e-mail":        {nil, []string{"tenant", "create", "--name", "n", "--owner-email", "a b"}, 2},
		"tenant create, short password":   {nil, []string{"tenant", "create", "--name", "n", "--owner-email", "a@b.example", "--owner-password", "short"}, 2},
		"key create, no tenant":           {nil, []string{"key", "create", "--tenant", "", "--name", "n"}, 2},
		"user create, unknown role":       {nil, []string{"user", "create", "--tenant", "01890a5d-ac96-774b-bcce-b302099a8057", "--email", "a@b.example", "--role", "manager"}, 2},
		"login link, no tenant":           {nil, []string{"user", "login-link", "--tenant", "", "--email", "a@b.example"}, 2},
		"login link, no e-mail":           {nil, []string{"user", "login-link", "--tenant", "01890a5d-ac96-774b-bcce-b302099a8057"}, 2},
		"a client without its settings":   {[]string{"SVC_API_KEY=", "SVC_TENANT="}, []string{"runs", "ls"}, 2},
		"status of a node that is down":   {some, []string{"status"}, 1},
		"chat with a node that is down":   {some, []string{"chat", "hello"}, 1},
		"runs of a node that is down":     {some, []string{"runs", "ls"}, 1},
		"get from a node that is down":    {some, []string{"runs", "get", "01890a5d-ac96-774b-bcce-b302099a8057"}, 1},
		"cancel at a node that is down":   {some, []string{"runs", "cancel", "01890a5d-ac96-774b-bcce-b302099a8057"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := n.run(row.env, "", row.args...)
			if code != row.code {
				t.Errorf("exit code %d, want %d\n%s%s", code, row.code, stdout, stderr)
			}
			if code == 0 && (stdout == "" || stderr != "") || code != 0 && !strings.HasPrefix(stderr, "svc: ") && !strings.Contains(stderr, "\nsvc: ") {
				t.Errorf("out %q, err %q", stdout, stderr)
			}
		})
	}
}

const (
	uuidPattern   = `[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`
	secretPattern = `svc_[A-Za-z0-9_-]{40,}`
)

// The management commands work on a private Postgres before its first start, while the server runs, after
// an orderly stop and after kill -9. What they create is used over HTTP.
func TestManagementWithAndWithoutAServer(t *testing.T) {
	t.Parallel()
	ctx := within(t, 80*time.Second)
	n := newNode(t)
	if out, code := n.svc("migrate"); code != 0 {
		t.Fatalf("migrate: %s", out)
	}
	tenant := ""
	var keys []string
	emails := 0
	// Each command without a server starts a Postgres: all commands once without it, once beside it, then those
	// that write.
	manage := func(when string, all bool) {
		t.Helper()
		text := func(pattern string, args ...string) {
			t.Helper()
			out, stderr, code := n.run(nil, "", args...)
			if code != 0 || !regexp.MustCompile(`\A(?:`+pattern+`)\z`).MatchString(out) {
				t.Errorf("%s: svc %s: code %d\n%s%s", when, strings.Join(args, " "), code, out, stderr)
			}
		}
		asJSON := func(into any, args ...string) {
			t.Helper()
			out, stderr, code := n.run(nil, "", append(args, "--json")...)
			if code != 0 || json.Unmarshal([]byte(out), into) != nil {
				t.Errorf("%s: svc %s: code %d\n%s%s", when, strings.Join(args, " "), code, out, stderr)
			}
		}
		var made struct {
			TenantID string `json:"tenant_id"`
			OwnerID  string `json:"owner_id"`
			APIKey   string `json:"api_key"`
		}
		asJSON(&made, "tenant", "create", "--name", "T "+when, "--owner-email", "o@example.com", "--owner-password", "a long password")
		if made.OwnerID == "" {
			t.Errorf("%s: tenant create: %+v", when, made)
		}
		text(`tenant   `+uuidPattern+`\nowner    `+uuidPattern+`\nAPI key  `+secretPattern+`   \(shown once\)\n`, "tenant", "create", "--name", "T", "--owner-email", "o@example.com")
		if tenant == "" {
			tenant = made.TenantID
			keys = append(keys, made.APIKey)
		}
		var key struct{ ID, Name, Prefix, Secret string }
		asJSON(&key, "key", "create", "--tenant", tenant, "--name", "k "+when)
		if key.ID == "" || key.Name != "k "+when || !strings.HasPrefix(key.Secret, key.Prefix) || len(key.Prefix) < 5 {
			t.Errorf("%s: key create: %+v", when, key)
		}
		keys = append(keys, key.Secret)
		if !all {
			return
		}
		text(`API key  `+secretPattern+`   \(shown once\)\n`, "key", "create", "--tenant", tenant[24:], "--name", "by the end of its id")
		text(`TENANT +ID +NAME +SINCE\n(?s:.*)`+tenant+`(?s:.*)`, "tenant", "ls")
		if out, stderr, code := n.run(nil, "", "key", "create", "--tenant", tenant[:8], "--name", "n"); code != 1 || out != "" || !strings.Contains(stderr, "--tenant: ") {
			t.Errorf("%s: a tenant by a prefix of its id: code %d %s%s", when, code, out, stderr)
		}
		text(`API key  `+secretPattern+`   \(shown once\)\n`, "key", "create", "--tenant", tenant, "--name", "other")
		emails++
		var user struct{ ID, Email, Role string }
		asJSON(&user, "user", "create", "--tenant", tenant, "--email", "u"+string(rune('a'+emails))+"@example.com", "--role", "member")
		if user.ID == "" || user.Role != "member" {
			t.Errorf("%s: user create: %+v", when, user)
		}
		text(`user  `+uuidPattern+`\n`, "user", "create", "--tenant", tenant, "--email", "v"+string(rune('a'+emails))+"@example.com", "--role", "admin", "--password", "a long password")
		text(regexp.QuoteMeta(n.base)+`/login/[A-Za-z0-9_-]{86}\n`, "user", "login-link", "--tenant", tenant, "--email", "O@example.com")
		var link struct {
			URL       string
			ExpiresAt time.Time `json:"expires_at"`
		}
		asJSON(&link, "user", "login-link", "--tenant", tenant, "--email", "o@example.com")
		if left := time.Until(link.ExpiresAt); !strings.HasPrefix(link.URL, n.base+"/login/") || left < 13*time.Minute || left > 15*time.Minute {
			t.Errorf("%s: login link: %+v", when, link)
		}
		if out, stderr, code := n.run(nil, "", "user", "login-link", "--tenant", tenant, "--email", "nobody@example.com"); code != 1 || out != "" || !strings.Contains(stderr, "NOT_FOUND") {
			t.Errorf("%s: a link for an unknown user: code %d %s%s", when, code, out, stderr)
		}
		production := []string{"SVC_ENV=production", "SVC_MASTER_KEY=" + masterKey(1)}
		if out, stderr, code := n.run(production, "", "user", "login-link", "--tenant", tenant, "--email", "o@example.com"); code != 1 || out != "" || !strings.Contains(stderr, "SVC_PUBLIC_URL") {
			t.Errorf("%s: a link for an invalid address: code %d %s%s", when, code, out, stderr)
		}
		if out, stderr, code := n.run(nil, "", "user", "create", "--tenant", tenant, "--email", "O@example.com", "--role", "member"); code != 1 || out != "" || !strings.Contains(stderr, "EMAIL_TAKEN") {
			t.Errorf("%s: a taken e-mail: code %d %s%s", when, code, out, stderr)
		}
		if _, stderr, code := n.run(nil, "", "key", "create", "--tenant", "01890a5d-ac96-774b-bcce-b302099a8057", "--name", "n"); code != 1 || !strings.Contains(stderr, "NOT_FOUND") && !strings.Contains(stderr, "no tenant") {
			t.Errorf("%s: an unknown tenant: code %d %s", when, code, stderr)
		}
		var migrated struct {
			UpToDate bool `json:"up_to_date"`
		}
		if asJSON(&migrated, "migrate"); !migrated.UpToDate {
			t.Errorf("%s: migrate", when)
		}
		text(`the database is up to date\n`, "migrate")
		var health struct {
			OK       bool
			Findings []object
		}
		if asJSON(&health, "doctor"); !health.OK || len(health.Findings) < 5 {
			t.Errorf("%s: doctor: %+v", when, health)
		}
		text(`(?:ok  .*\n){5,}`, "doctor")
	}
	manage("before the first start", true)
	n.start()
	works := func(when string) {
		t.Helper()
		for _, key := range keys {
			c := n.stranger()
			c.Key, c.Tenant = key, tenant
			c.ask(t, ctx, 200, "GET", "/v1/auth/me", nil, nil)
		}
	}
	works("at first")
	manage("while it runs", true)
	works("made while it runs")
	if err := n.signal(syscall.SIGTERM, 10*time.Second); err != nil || n.exit() != 0 {
		t.Errorf("SIGTERM: %v, exit code %d", err, n.exit())
	}
	manage("after its end", false)
	n.start()
	n.kill()
	manage("after kill -9", false)
	n.start()
	works("in the end")
}

// The commands that are clients of the API, as text and as JSON.
func TestClientCommands(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("client")
	agent := c.publish(t, "Helper", simulatedModel)
	env := c.environment()
	cli := func(code int, stdin string, args ...string) (string, string) {
		t.Helper()
		out, stderr, got := n.run(env, stdin, args...)
		if got != code {
			t.Errorf("svc %s: code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, stderr)
		}
		return out, stderr
	}

	out, _ := cli(0, "", "status")
	if !strings.Contains(out, c.Base+"  up=true ready=true\n") || !strings.Contains(out, `in tenant `+c.Tenant+` "client"`) {
		t.Errorf("status: %s", out)
	}
	var status struct {
		URL       string
		Up, Ready bool
		Me        struct {
			Role   string
			Tenant struct{ ID string }
		}
	}
	out, _ = cli(0, "", "status", "--json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || !status.Up || !status.Ready || status.Me.Role != "admin" || status.Me.Tenant.ID != c.Tenant {
		t.Errorf("status --json: %v %s", err, out)
	}
	if out, stderr, code := n.run(append(env, "SVC_API_KEY=svc_wrong"), "", "status"); code != 1 || !strings.Contains(stderr, "UNAUTHORIZED") {
		t.Errorf("status with a wrong key: %d %s%s", code, out, stderr)
	}

	out, _ = cli(0, "/say first answer\n/say second answer\n\nnot read\n", "chat", "helper")
	if !regexp.MustCompile(`thread `+uuidPattern).MatchString(out) || !strings.Contains(out, "first answer\n[") || !strings.Contains(out, "second answer\n[") || strings.Contains(out, "not read") {
		t.Errorf("chat: %s", out)
	}
	out, _ = cli(0, "/say by id", "chat", agent, "--json")
	var kinds []string
	for line := range strings.Lines(out) {
		var f struct{ Type string }
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("chat --json: %v: %s", err, line)
		}
		if len(kinds) == 0 || kinds[len(kinds)-1] != f.Type {
			kinds = append(kinds, f.Type)
		}
	}
	if want := []string{"thread", "run.started", "step.started", "llm.delta", "run.completed"}; !slices.Equal(kinds, want) {
		t.Errorf("chat --json: %v, want %v", kinds, want)
	}
	if _, stderr := cli(1, "/fail no luck\n/say still here\n", "chat", "helper"); !strings.Contains(stderr, "MODEL_ERROR") || !strings.HasSuffix(stderr, "svc: 1 of 2 answers failed\n") {
		t.Errorf("chat over a failed answer: %s", stderr)
	}
	cli(1, "", "chat", "nobody")

	run := c.runOnce(t, ctx, agent, "/say watched")
	out, _ = cli(0, "", "runs", "watch", run)
	if !strings.Contains(out, "watched") {
		t.Errorf("watch: %s", out)
	}
	out, _ = cli(0, "", "runs", "watch", run, "--json")
	if !strings.HasPrefix(out, `{"type":"run.started"`) || strings.Count(out, "\n") < 4 {
		t.Errorf("watch --json: %s", out)
	}
	for _, args := range [][]string{{"runs", "get", run}, {"runs", "get", run, "--json"}} {
		var got runAnswer
		out, _ = cli(0, "", args...)
		if err := json.Unmarshal([]byte(out), &got); err != nil || got.Run.ID != run || got.text() != "watched" || got.shape() != "llm:succeeded" {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	cli(1, "", "runs", "get", "01890a5d-ac96-774b-bcce-b302099a8057")
	cli(1, "", "runs", "get", "../agents")

	out, more := cli(0, "", "runs", "ls", "--status", "succeeded", "--limit", "2")
	if rows := strings.Split(strings.TrimSpace(out), "\n"); len(rows) != 3 || more != "there are more: --limit 20\n" || !strings.HasPrefix(rows[0], "RUN ") || !strings.HasPrefix(rows[1], run[28:]+"  succeeded  helper ") {
		t.Errorf("ls: %s%s", out, more)
	}
	var page struct {
		Items      []client.RunView
		NextCursor *string `json:"next_cursor"`
	}
	out, _ = cli(0, "", "runs", "ls", "--agent", agent, "--limit", "3", "--json")
	if err := json.Unmarshal([]byte(out), &page); err != nil || len(page.Items) != 3 || page.NextCursor == nil {
		t.Errorf("ls --json: %v %s", err, out)
	}
	cli(1, "", "runs", "ls", "--status", "sleeping")

	failed := c.runOnce(t, ctx, agent, "/fail no luck")
	if _, stderr := cli(1, "", "runs", "watch", failed); !strings.Contains(stderr, "MODEL_ERROR") {
		t.Errorf("watch of a failed run: %s", stderr)
	}
	for _, extra := range []string{"", "--json"} {
		slow := c.runOnce(t, ctx, agent, "/delay 1s\n/tokens 100")
		args := []string{"runs", "cancel", slow}
		if extra != "" {
			args = append(args, extra)
		}
		if out, _ = cli(0, "", args...); !strings.Contains(out, "cancelled") || extra != "" && !json.Valid([]byte(out)) {
			t.Errorf("cancel %s: %s", extra, out)
		}
		c.poll(t, ctx, slow, "cancelled")
	}
	cli(1, "", "runs", "cancel", "01890a5d-ac96-774b-bcce-b302099a8057")
}

// sample is the part of dev.json, and of the output of svc dev --json, that tests read.
type sample struct {
	TenantID   string `json:"tenant_id"`
	APIKey     string `json:"api_key"`
	AgentID    string `json:"agent_id"`
	ServerID   string `json:"server_id"`
	EmbedKeyID string `json:"embed_key_id"`
	DeskURL    string `json:"desk_url"`
	WorkflowID string `json:"workflow_id"`
	HookURL    string `json:"hook_url"`
	HookSecret string `json:"hook_secret"`
}

const sampleFile = "dev.json"

// devProcess is a `svc dev` that a test started.
type devProcess struct {
	cmd   *exec.Cmd
	end   <-chan struct{} // closed when it has ended
	lines <-chan string
	errs  bytes.Buffer
}

func startDev(t *testing.T, env []string, args ...string) *devProcess {
	t.Helper()
	d := &devProcess{cmd: exec.Command(binary(t), append([]string{"dev"}, args...)...)}
	d.cmd.Env, d.cmd.Stderr = env, &d.errs
	out, in := io.Pipe()
	d.cmd.Stdout = in
	end, err := startChild(d.cmd)
	if err != nil {
		t.Fatal(err)
	}
	d.end = end
	go func() {
		<-end
		in.Close()
	}()
	d.lines = lines(out)
	t.Cleanup(func() {
		d.cmd.Process.Kill()
		<-d.end
	})
	return d
}

// until reads the output of dev up to the line that contains text.
func (d *devProcess) until(t *testing.T, ctx context.Context, text string) string {
	t.Helper()
	var b strings.Builder
	for {
		select {
		case line, ok := <-d.lines:
			b.WriteString(line + "\n")
			if strings.Contains(line, text) {
				return b.String()
			}
			if !ok {
				t.Fatalf("svc dev ended: %s\n%s", b.String(), d.errs.String())
			}
		case <-ctx.Done():
			t.Fatalf("svc dev printed no %q: %s", text, b.String())
		}
	}
}

func (d *devProcess) stop(t *testing.T) {
	t.Helper()
	d.cmd.Process.Signal(syscall.SIGINT)
	for range d.lines {
	}
	<-d.end
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("svc dev: exit code %d\n%s", code, d.errs.String())
	}
}

// The first minutes: the commands that svc dev prints work when pasted, stream a token, and stay the same
// over restarts. The time to the first token is measured by first-token of bench, on an idle machine.
func TestDev(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	addr := reserved(t)
	binary(t) // so that the build does not count
	env := append(os.Environ(), "SVC_ADDR="+addr, "SVC_DATA_DIR="+dataDir(t))

	begin := time.Now()
	d := startDev(t, env)
	printed := d.until(t, ctx, "Or talk to it:")
	_, paste, _ := strings.Cut(printed, "Paste this for a streamed answer:\n")
	paste, refund, _ := strings.Cut(paste, "A refund waits for a person.")
	if !strings.Contains(refund, "/call orders.refund {") {
		t.Errorf("no refund is proposed: %s", printed)
	}
	shell := exec.CommandContext(ctx, "bash")
	shell.Stdin = strings.NewReader(paste)
	var errs bytes.Buffer
	shell.Stderr = &errs
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for line := range lines(out) {
		if line == "event: llm.delta" && !slices.Contains(seen, line) {
			t.Logf("the first token came %s after the start", time.Since(begin).Round(time.Millisecond))
		}
		seen = append(seen, line)
	}
	if err := shell.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("the pasted calls: %v %s", err, errs.String())
	}
	all := strings.Join(seen, "\n")
	if strings.Count(all, "event: llm.delta\n") < 3 || !strings.Contains(all, "event: run.completed\n") || !strings.Contains(all, "Hello there!") {
		t.Errorf("the pasted calls streamed:\n%s", all)
	}
	settings := regexp.MustCompile(`(?m)export (SVC_URL=\S+) (SVC_TENANT=\S+) (SVC_API_KEY=\S+)$`).FindStringSubmatch(paste)
	if len(settings) != 4 {
		t.Fatalf("no settings in %s", paste)
	}
	_, talk, _ := strings.Cut(printed, "Or talk to it:")
	chat := exec.CommandContext(ctx, "bash", "-c", talk)
	chat.Env, chat.Stdin = append(os.Environ(), settings[1:]...), strings.NewReader("/say as printed\n")
	if out, err := chat.CombinedOutput(); err != nil || !strings.Contains(string(out), "as printed") {
		t.Errorf("%s: %v %s", strings.TrimSpace(talk), err, out)
	}
	theWidget(t, ctx, printed)
	d.stop(t)

	again := startDev(t, env)
	link := regexp.MustCompile(`/login/[A-Za-z0-9_-]{86}`) // a new one at each start
	if second := again.until(t, ctx, "Or talk to it:"); link.ReplaceAllString(second, "") != link.ReplaceAllString(printed, "") || link.FindString(second) == link.FindString(printed) {
		t.Errorf("the second start prints\n%s\nthe first printed\n%s", second, printed)
	}
	again.stop(t)

	asJSON := startDev(t, env, "--json")
	var s sample
	if line := asJSON.until(t, ctx, "}"); json.Unmarshal([]byte(line), &s) != nil || s.AgentID == "" || !strings.Contains(paste, "SVC_API_KEY="+s.APIKey) || !strings.Contains(paste, s.AgentID) {
		t.Errorf("svc dev --json: %s", line)
	}
	asJSON.stop(t)

	// At another address the key is the same, and the page there may use it. The tenant's changes of the key
	// stay: origins that it adds, and its revocation.
	first := theKey.FindString(printed)
	for _, then := range []func(*caller){
		func(api *caller) {
			var key struct {
				AllowedOrigins []string `json:"allowed_origins"`
			}
			api.ask(t, ctx, 200, "GET", "/v1/embed-keys/"+s.EmbedKeyID, nil, &key)
			api.ask(t, ctx, 200, "PATCH", "/v1/embed-keys/"+s.EmbedKeyID, object{"allowed_origins": append(key.AllowedOrigins, "https://shop.example")}, nil)
		},
		func(api *caller) {
			var key struct {
				AllowedOrigins []string `json:"allowed_origins"`
			}
			api.ask(t, ctx, 200, "GET", "/v1/embed-keys/"+s.EmbedKeyID, nil, &key)
			if len(key.AllowedOrigins) != 3 || key.AllowedOrigins[2] != "https://shop.example" {
				t.Errorf("the key's origins are %q", key.AllowedOrigins)
			}
			api.ask(t, ctx, 204, "DELETE", "/v1/embed-keys/"+s.EmbedKeyID, nil, nil)
		},
	} {
		at := reserved(t)
		moved := startDev(t, append(slices.Clone(env), "SVC_ADDR="+at))
		second := moved.until(t, ctx, "Or talk to it:")
		theWidget(t, ctx, second)
		if key := theKey.FindString(second); key != first {
			t.Errorf("the key of the demo page was %s and is %s", first, key)
		}
		then(&caller{client.Client{Base: "http://" + at, Key: s.APIKey, Tenant: s.TenantID, HTTP: http.DefaultClient}})
		moved.stop(t)
	}
	revoked := startDev(t, append(slices.Clone(env), "SVC_ADDR="+reserved(t)))
	revoked.until(t, ctx, "Or talk to it:")
	revoked.stop(t)
}

// theKey matches the publishable key of the demo page, as svc dev prints it.
var theKey = regexp.MustCompile(`svc_pk_\w+`)

// theWidget checks the demo page at the link that svc dev printed: the page exists, and the key works for
// its origin and no other.
func theWidget(t *testing.T, ctx context.Context, printed string) {
	t.Helper()
	link := regexp.MustCompile(`(?m)^  Widget +((http://[^/]+)/embed/v1/demo\?key=(\S+))$`).FindStringSubmatch(printed)
	if len(link) != 4 {
		t.Fatalf("no link to the demo page in %s", printed)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(link[2], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	get := func(url, origin string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			r.Header.Set("Origin", origin)
			r.Header.Set("X-Svc-Embed-Key", link[3])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if status, body := get(link[1], ""); status != 200 || !strings.Contains(body, link[3]) {
		t.Errorf("the demo page: %d %s", status, body)
	}
	for origin, want := range map[string]int{link[2]: 200, "http://localhost:" + port: 200, "http://localhost:1": 403} {
		if status, body := get(link[2]+"/v1/embed/config", origin); status != want {
			t.Errorf("the config for %s: %d %s", origin, status, body)
		}
	}
}

// atTerminal runs a command of the binary with a terminal as its input.
func atTerminal(t *testing.T, args ...string) *clitest.Terminal {
	t.Helper()
	file := binary(t)
	return clitest.AtTerminal(t, func(ctx context.Context, in *os.File, out, errs *clitest.Output) int {
		cmd := exec.CommandContext(ctx, file, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errs
		end, err := startChild(cmd)
		if err != nil {
			t.Error(err)
			return -1
		}
		<-end
		return cmd.ProcessState.ExitCode()
	})
}

// command runs a command of the binary without input, with the test's environment.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(within(t, time.Minute), binary(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// A refund of the sample waits for a person and is decided in every possible way. The client's tests use a
// fake API with the same responses.
func TestApprovalsOfTheSample(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	addr := reserved(t)
	d := startDev(t, append(os.Environ(), "SVC_ADDR="+addr, "SVC_DATA_DIR="+dataDir(t)), "--json")
	var s sample
	if err := json.Unmarshal([]byte(d.until(t, ctx, "}")), &s); err != nil {
		t.Fatal(err)
	}
	defer d.stop(t)
	c := &caller{client.Client{Base: "http://" + addr, Key: s.APIKey, Tenant: s.TenantID, HTTP: &http.Client{}}}
	t.Setenv("SVC_URL", c.Base)
	t.Setenv("SVC_API_KEY", c.Key)
	t.Setenv("SVC_TENANT", c.Tenant)
	run := func(code int, args ...string) string {
		t.Helper()
		out, stderr, got := command(t, args...)
		if got != code {
			t.Errorf("svc %s: code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, stderr)
		}
		return out + stderr
	}
	const refund = `/call orders.refund {"order_id":"1001","amount":12.5,"reason":"arrived broken"}`
	asks := func() (run, approval string) {
		t.Helper()
		run = c.runOnce(t, ctx, s.AgentID, refund)
		c.poll(t, ctx, run, "waiting_approval")
		var list struct{ Items []client.ApprovalView }
		c.ask(t, ctx, 200, "GET", "/v1/approvals?run_id="+run, nil, &list)
		if len(list.Items) != 1 || list.Items[0].RequestedAction.Tool != "demo.orders.refund" {
			t.Fatalf("%+v", list)
		}
		return run, list.Items[0].ID
	}

	if out := run(0, "grants", "explain", "hello", "orders.refund"); !strings.HasPrefix(out, "demo.orders.refund may be called once it is approved: ") || !strings.Contains(out, "\nWHAT ") {
		t.Errorf("explain: %s", out)
	}
	if out := run(0, "grants", "explain", s.AgentID, "nothing"); !strings.HasPrefix(out, "nothing may not be called: ") {
		t.Errorf("explain: %s", out)
	}

	edited, approval := asks()
	if out := run(0, "approvals", "ls", "--run", edited, "--agent", "hello", "--risk", "high"); !strings.Contains(out, approval[28:]+"  high  23h59m  demo.orders.refund  admin     0/1\n    args      {\"order_id\":\"1001\",\"amount\":12.5,") {
		t.Errorf("ls: %s", out)
	}
	if out := run(1, "approvals", "edit", approval, "--args", `{"amount":"all"}`, "--yes"); !strings.Contains(out, "\nsvc: INVALID_ARGS: ") {
		t.Errorf("edit: %s", out)
	}
	if out := run(0, "approvals", "edit", approval[28:], "--yes", "--args", `{"order_id":"1001","amount":7,"reason":"half of it"}`); !strings.HasPrefix(out, approval[28:]+"  edited\n") || !strings.Contains(out, "asked by  the agent hello in run "+edited[28:]+", begun by api key ") {
		t.Errorf("edit: %s", out)
	}
	c.poll(t, ctx, edited, "succeeded")
	out := run(0, "runs", "watch", edited)
	for _, want := range []string{"[demo.orders.refund needs an approval until ", "[waiting for a decision]\n[approval " + approval + ": edit]\n[demo.orders.refund {", `[ok {"amount":7,`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if out := run(1, "approvals", "approve", approval[28:], "--yes"); !strings.HasPrefix(out, "svc: ALREADY_DECIDED: the approval "+approval[28:]+" of demo.orders.refund is decided: edited at ") {
		t.Errorf("again: %s", out)
	}

	rejected, approval := asks()
	if out := run(0, "approvals", "reject", approval, "--feedback", "no money", "--yes"); !strings.HasPrefix(out, approval[28:]+"  rejected\n") {
		t.Errorf("reject: %s", out)
	}
	c.poll(t, ctx, rejected, "succeeded")
	responded, approval := asks()
	if out := run(0, "approvals", "respond", approval, "--feedback", "/say as you were told", "--yes"); !strings.HasPrefix(out, approval[28:]+"  responded\n") {
		t.Errorf("respond: %s", out)
	}
	c.poll(t, ctx, responded, "succeeded")

	one, first := asks()
	two, second := asks()
	if out := run(1, "approvals", "approve", first, second, s.AgentID, "--yes"); !strings.Contains(out, first[28:]+"  approved\n"+second[28:]+"  approved\n") || !strings.HasPrefix(out, s.AgentID[28:]+"  NOT_FOUND: ") || !strings.Contains(out, "svc: 1 of 3 could not be decided\n") {
		t.Errorf("bulk: %s", out)
	}
	c.poll(t, ctx, one, "succeeded")
	c.poll(t, ctx, two, "succeeded")
	if out := run(0, "approvals", "ls"); out != "no pending approvals\n" {
		t.Errorf("nothing is pending: %s", out)
	}

	tt := atTerminal(t, "chat", "hello")
	tt.Sees("> ")
	tt.Types(refund + "\n")
	tt.Sees("demo.orders.refund wants an approval, high risk, 0/1 of role admin so far, ")
	tt.Sees(clitest.Choice)
	tt.Types("a\n")
	tt.Sees("[approve: approved]\n")
	tt.Sees(": approve]\n[demo.orders.refund {")
	tt.Sees(`[ok {"amount":12.5,`)
	tt.Sees(" USD]\n> ")
	tt.Types(refund + "\n")
	tt.Sees(clitest.Choice)
	run(1, "approvals", "reject", "0", "--yes")
	var waits struct{ Items []client.ApprovalView }
	c.ask(t, ctx, 200, "GET", "/v1/approvals?status=pending", nil, &waits)
	run(0, "approvals", "reject", waits.Items[0].ID[28:], "--yes")
	tt.Sees(": reject]\n")
	tt.Sees(" USD]\n> ")
	tt.Types("\n")
	tt.Leaves(0)
}
