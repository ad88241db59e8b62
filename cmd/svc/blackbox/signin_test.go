package blackbox

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// A person signs in on the command line: decisions carry the person's name until the session ends.
func TestLoginOfTheCommandLine(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	n := sharedNode(t)
	c := n.tenant("Signs in")
	email := "signs-in@example.com" // unknown in every other tenant at first
	if out, code := n.svc("user", "create", "--tenant", c.Tenant, "--email", email, "--role", "admin", "--password", passphrase); code != 0 {
		t.Fatal(out)
	}
	approval := c.asked(t, ctx)
	config := t.TempDir()
	env := []string{"SVC_URL=" + c.Base, "SVC_TENANT=", "SVC_API_KEY=", "XDG_CONFIG_HOME=" + config}
	files := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(config, "svc", "sessions", "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	cli := func(code int, wants string, env []string, stdin string, args ...string) string {
		t.Helper()
		out, stderr, got := n.run(env, stdin, args...)
		if got != code || !strings.Contains(out+stderr, wants) {
			t.Errorf("svc %s: code %d, want %d and %q\n%s%s", strings.Join(args, " "), got, code, wants, out, stderr)
		}
		return out
	}
	cli(2, "or run svc login", env, "", "approvals", "ls")
	cli(1, "e-mail or password is wrong", env, "wrong\n", "login", "--email", email)
	cli(2, "--email: is required", env, "", "login")
	cli(1, "nothing was entered", env, "", "login", "--email", email)
	if found := files(); len(found) != 0 {
		t.Errorf("kept %v", found)
	}
	cli(0, "signed in as "+email+" (admin) in tenant "+c.Tenant, env, passphrase+"\n", "login", "--email", email)
	found := files()
	if len(found) != 1 || filepath.Base(found[0]) != c.Tenant+".json" {
		t.Fatalf("kept %v", found)
	}
	for path, want := range map[string]os.FileMode{found[0]: 0o600, filepath.Dir(found[0]): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if b, err := os.ReadFile(found[0]); err != nil || strings.Contains(string(b), passphrase) {
		t.Errorf("the password is kept: %v", err)
	}
	cli(0, "user:", env, "", "status")
	cli(0, "approved", env, "", "approvals", "approve", approval[28:], "--yes")
	var got client.ApprovalView
	c.ask(t, ctx, 200, "GET", "/v1/approvals/"+approval, nil, &got)
	if len(got.Decisions) != 1 || !strings.HasPrefix(got.Decisions[0].Principal, "user:") {
		t.Errorf("decided by %+v", got.Decisions)
	}
	cli(0, "apikey:", append(env, "SVC_API_KEY="+c.Key, "SVC_TENANT="+c.Tenant), "", "status") // a key takes precedence
	cli(2, "SVC_TENANT is not", append(env, "SVC_API_KEY="+c.Key), "", "status")

	// A file that others can read is refused: its content acts as its owner.
	if err := os.Chmod(found[0], 0o644); err != nil {
		t.Fatal(err)
	}
	cli(2, "can be read by others", env, "", "status")
	cli(0, `"role": "admin"`, env, passphrase, "login", "--email", email, "--json")
	cli(0, "user:", env, "", "status")

	// Another tenant's user has the same e-mail and password.
	other := n.tenant("Signs in too")
	if out, code := n.svc("user", "create", "--tenant", other.Tenant, "--email", email, "--role", "member", "--password", passphrase); code != 0 {
		t.Fatal(out)
	}
	cli(1, "TENANT_REQUIRED: your e-mail and password fit several tenants: give the full id of one with --tenant", env, passphrase, "login", "--email", email)
	for _, name := range []string{other.Tenant[24:], "signs-in-too", "x"} { // the other tenant is not known yet
		cli(2, "--tenant: \""+name+"\" names no tenant that you have a session of: login needs the full id of the tenant", env, passphrase, "login", "--email", email, "--tenant", name)
	}
	cli(0, "(member) in tenant "+other.Tenant, env, passphrase, "login", "--email", email, "--tenant", other.Tenant)
	for _, name := range []string{other.Tenant[24:], "signs-in-too", strings.ToUpper(other.Tenant)} {
		cli(0, "(member) in tenant "+other.Tenant, env, passphrase, "login", "--email", email, "--tenant", name)
	}
	cli(2, "you are signed in to 2 tenants", env, "", "status")
	cli(0, "in tenant "+other.Tenant, append(env, "SVC_TENANT="+other.Tenant), "", "status")
	cli(0, "in tenant "+c.Tenant, append(env, "SVC_TENANT=signs-in"), "", "status")
	cli(0, "in tenant "+c.Tenant, append(env, "SVC_TENANT="+c.Tenant[24:]), "", "status")
	cli(2, "SVC_TENANT: ", append(env, "SVC_TENANT="+c.Tenant[:8]), "", "status")
	cli(2, "you are signed in to 2 tenants", env, "", "logout")
	cli(0, "signed out", append(env, "SVC_TENANT="+other.Tenant), "", "logout")

	// A session ended elsewhere, like by a new password, is reported.
	kept := c.person(t, ctx, email)
	kept.ask(t, ctx, 204, "POST", "/v1/auth/password", object{"current": passphrase, "new": passphrase + "!"}, nil)
	cli(1, "the session has ended: run svc login", env, "", "runs", "ls")
	var problem struct{ Code, Detail string }
	if _, stderr, _ := n.run(env, "", "runs", "ls", "--json"); json.Unmarshal([]byte(stderr), &problem) != nil || problem.Code != "UNAUTHORIZED" || !strings.Contains(problem.Detail, "svc login") {
		t.Errorf("in JSON: %s", stderr)
	}

	// A one-time link works once.
	var link struct{ URL string }
	out, _ := n.svc("user", "login-link", "--tenant", c.Tenant, "--email", email, "--json")
	if err := json.Unmarshal([]byte(out), &link); err != nil {
		t.Fatal(err)
	}
	cli(0, "signed in as "+email, env, "", "login", "--link", link.URL)
	cli(0, "user:", env, "", "status")
	cli(1, "the link cannot be used", env, "", "login", "--link", link.URL)
	cli(2, "--link: must be a login link", env, "", "login", "--link", "https://agents.example.com/console")
	cli(0, "user:", env, "", "status")

	// The session has ended at the service too.
	b, err := os.ReadFile(files()[0])
	if err != nil {
		t.Fatal(err)
	}
	cli(0, "signed out", env, "", "logout")
	if found := files(); len(found) != 0 {
		t.Errorf("kept %v", found)
	}
	if err := os.WriteFile(found[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	cli(1, "the session has ended", env, "", "runs", "ls")
	cli(0, "signed out", env, "", "logout") // it has ended already
	cli(1, "you are not signed in", env, "", "logout")
	cli(1, "not reachable", append(env, "SVC_URL=http://127.0.0.1:1"), passphrase, "login", "--email", email)
}
