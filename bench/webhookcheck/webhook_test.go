package webhookcheck

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/schedule"
	"agentsvc/schemas/webhook"
)

var modules string // the installed node_modules

func TestMain(m *testing.M) {
	dir, err := install()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	modules = filepath.Join(dir, "node_modules")
	os.Exit(m.Run())
}

// install puts the packages of package-lock.json into the cache, whole or not at
// all.
func install() (string, error) {
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "agentsvc", "webhookcheck-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(fresh, name), b, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	ci := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	ci.Dir = fresh
	if out, err := ci.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(dir); there == nil {
			return dir, nil // somebody else was quicker
		}
		return "", err
	}
	return dir, nil
}

// row is one of schemas/webhook/testdata/headers.json, filled up from the table.
type row struct {
	Name   string  `json:"name"`
	Secret string  `json:"secret"`
	Header string  `json:"header"`
	Body   string  `json:"body"`
	Now    float64 `json:"now"`
	Want   string  `json:"want"`
}

func headers(t *testing.T) []row {
	t.Helper()
	raw, err := os.ReadFile("../../schemas/webhook/testdata/headers.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		row
		Rows []json.RawMessage `json:"rows"`
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	var out []row
	for _, one := range table.Rows {
		c := table.row
		if err := json.Unmarshal(one, &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	if len(out) < 50 {
		t.Fatalf("only %d rows: the table is cut off", len(out))
	}
	return out
}

var block = regexp.MustCompile("(?ms)^```[a-z]+\n(?://|#) ([a-z]+\\.[a-z]+)\n.*?^```$")

// guide puts the pieces of a document's code that have a name into a directory, the
// wanted ones of TypeScript compiled in the compiler's strict mode.
func guide(t *testing.T, document string, want ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../docs", document))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	found := map[string]bool{}
	for _, m := range block.FindAllSubmatch(raw, -1) {
		_, code, _ := bytes.Cut(m[0], []byte("\n"))
		found[string(m[1])] = true
		write(t, dir, string(m[1]), string(bytes.TrimSuffix(code, []byte("```"))))
	}
	var ts []string
	for _, name := range want {
		if !found[name] {
			t.Fatalf("%s has no %s", document, name)
		}
		if strings.HasSuffix(name, ".ts") {
			ts = append(ts, name)
		}
	}
	if len(ts) == 0 {
		return dir
	}
	write(t, dir, "package.json", `{"type":"module"}`)
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, nil, "node", append([]string{filepath.Join(modules, "typescript/bin/tsc"), "--strict", "--noUncheckedIndexedAccess",
		"--noUnusedLocals", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--types", "node"}, ts...)...)
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run is what a program printed that was given stdin as JSON.
func run(t *testing.T, dir string, stdin any, name string, args ...string) []byte {
	t.Helper()
	in, err := json.Marshal(stdin)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, errs.Bytes())
	}
	return out
}

// Whoever copies a verifier from the guide has one that judges as ours does.
func TestTheGuidesVerifiersJudgeAsTheService(t *testing.T) {
	rows := headers(t)
	for _, c := range []struct{ name, file, runner, code, command string }{
		{"TypeScript", "verify.ts", "rows.mjs", `
import { readFileSync } from "node:fs";
import { verify } from "./verify.js";
const rows = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(rows.map((r) => verify(r.secret, r.header, Buffer.from(r.body), r.now) ?? "")));
`, "node"},
		{"Python", "verify.py", "rows.py", `
import json, sys
from verify import verify
rows = json.loads(sys.stdin.buffer.read())
print(json.dumps([verify(r["secret"], r["header"], r["body"].encode(), r["now"]) or "" for r in rows]))
`, "python3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := guide(t, "webhooks.md", c.file)
			write(t, dir, c.runner, c.code)
			var got []string
			if err := json.Unmarshal(run(t, dir, rows, c.command, c.runner), &got); err != nil {
				t.Fatal(err)
			}
			if len(got) != len(rows) {
				t.Fatalf("%d outcomes of %d rows", len(got), len(rows))
			}
			for i, r := range rows {
				if got[i] != r.Want {
					t.Errorf("%s: %q, want %q", r.Name, got[i], r.Want)
				}
			}
		})
	}
}

// start runs a receiver of the guide until the test ends, and answers its URL and
// what it has printed, to be read after stop.
func start(t *testing.T, dir, secret, name string, args ...string) (url string, stop func() string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PORT="+port, "SVC_WEBHOOK_SECRET="+secret)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stop = func() string {
		_ = cmd.Process.Kill()
		<-ended
		return out.String()
	}
	t.Cleanup(func() { stop() })
	for deadline := time.Now().Add(30 * time.Second); ; {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
			return "http://" + address, stop
		}
		select {
		case <-ended:
			t.Fatalf("%s has ended\n%s", name, errs.Bytes())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func deliver(t *testing.T, url, header string, body []byte) (status int, text string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), "POST", url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != "" {
		q.Header.Set(webhook.SignatureHeader, header)
	}
	q.Header.Set("Content-Type", "application/json")
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// A receiver of the guide takes what is genuine, handles it once, says why it
// refuses the rest, and outlives a sender that goes away.
func TestTheGuidesReceivers(t *testing.T) {
	for _, c := range []struct {
		name    string
		files   []string
		command string
	}{
		{"TypeScript", []string{"verify.ts", "server.ts"}, "node server.js"},
		{"Python", []string{"verify.py", "server.py"}, "python3 server.py"},
	} {
		t.Run(c.name, func(t *testing.T) {
			secret, now := webhook.NewSecret(), time.Now()
			name, arg, _ := strings.Cut(c.command, " ")
			url, stop := start(t, guide(t, "webhooks.md", c.files...), secret, name, arg)

			gone, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(gone, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
			gone.Close()

			large := "<b>" + strings.Repeat("ä☕", 1<<19) // over a megabyte, in many reads; JSON that others write otherwise
			first := webhook.Encode("e-1", webhook.RunCompleted, map[string]any{"output": large}, now)
			second := webhook.Encode("e-2", webhook.RunFailed, map[string]any{"code": "CANCELLED"}, now)
			for _, d := range []struct {
				what, header string
				body         []byte
				status       int
				text         string
			}{
				{"genuine", webhook.Sign(secret, now, first), first, 200, ""},
				{"again", webhook.Sign(secret, now, first), first, 200, ""},
				{"another", webhook.Sign(secret, now, second), second, 200, ""},
				{"unsigned", "", second, 401, "MALFORMED_HEADER"},
				{"stale", webhook.Sign(secret, now.Add(-time.Hour), second), second, 401, "STALE_TIMESTAMP"},
				{"forged", webhook.Sign("whsec_other", now, second), second, 401, "SIGNATURE_MISMATCH"},
			} {
				if status, text := deliver(t, url, d.header, d.body); status != d.status || text != d.text {
					t.Errorf("%s: %d %q, want %d %q", d.what, status, text, d.status, d.text)
				}
			}
			if got, want := stop(), "run.completed e-1\nrun.failed e-2\n"; got != want {
				t.Errorf("handled %q, want %q", got, want)
			}
		})
	}
}

// npm stripe's verifier takes our deliveries with our secrets as they are.
func TestStripeAcceptsOurSignatures(t *testing.T) {
	secret, now := webhook.NewSecret(), time.Now()
	body := string(webhook.Encode("e-1", webhook.RunCompleted, map[string]any{"output": "café ☕ <b>&</b>", "cost_usd": 0.25}, now))
	type delivery struct {
		Name   string `json:"name"`
		Secret string `json:"secret"`
		Header string `json:"header"`
		Body   string `json:"body"`
		want   string
	}
	sign := func(secret string, at time.Time) string { return webhook.Sign(secret, at, []byte(body)) }
	rows := []delivery{
		{"good", secret, sign(secret, now), body, "run.completed e-1"},
		{"four minutes old", secret, sign(secret, now.Add(-4*time.Minute)), body, "run.completed e-1"},
		{"six minutes old", secret, sign(secret, now.Add(-6*time.Minute)), body, "StripeSignatureVerificationError"},
		{"another secret", secret, sign("whsec_other", now), body, "StripeSignatureVerificationError"},
		{"after a rotation", webhook.NewSecret(), sign(secret, now), body, "StripeSignatureVerificationError"},
		{"another body", secret, sign(secret, now), strings.Replace(body, "0.25", "0.26", 1), "StripeSignatureVerificationError"},
		{"another time", secret, strings.Replace(sign(secret, now.Add(-time.Second)), fmt.Sprint(now.Unix()-1), fmt.Sprint(now.Unix()), 1), body, "StripeSignatureVerificationError"},
		{"no sum", secret, fmt.Sprintf("t=%d", now.Unix()), body, "StripeSignatureVerificationError"},
	}
	dir := t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "rows.mjs", `
import { readFileSync } from "node:fs";
import Stripe from "stripe";
const stripe = new Stripe("sk_test_none");
const outcome = (r) => {
  try {
    const event = stripe.webhooks.constructEvent(r.body, r.header, r.secret);
    return event.type + " " + event.id;
  } catch (e) {
    return e.type;
  }
};
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(outcome)));
`)
	var got []string
	if err := json.Unmarshal(run(t, dir, rows, "node", "rows.mjs"), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(rows) {
		t.Fatalf("%d outcomes of %d rows", len(got), len(rows))
	}
	for i, r := range rows {
		if got[i] != r.want {
			t.Errorf("%s: %q, want %q", r.Name, got[i], r.want)
		}
	}
}

// The Go of the guide is the package's example, which runs with its tests.
func TestTheGuidesGoIsTheExample(t *testing.T) {
	document, err := os.ReadFile("../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../schemas/webhook/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(document, []byte("```go\n"))
	code, _, found := bytes.Cut(rest, []byte("```"))
	if !found || len(code) < 200 {
		t.Fatal("the guide has no Go")
	}
	if !bytes.Contains(example, code) {
		t.Error("the Go of docs/webhooks.md is not in schemas/webhook/example_test.go")
	}
}

// The guide says that this file may be copied alone.
func TestTheSignatureStandsAlone(t *testing.T) {
	code, err := os.ReadFile("../../schemas/webhook/signature.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "signature.go", string(code))
	write(t, dir, "go.mod", "module receiver\n\ngo 1.26.0\n")
	run(t, dir, nil, "go", "vet", ".")
}

// What the guide's senders send is signed over the very bytes, and named.
func TestTheGuidesSenders(t *testing.T) {
	const secret = "whsec_a hook's secret, ä"
	for _, c := range []struct {
		name, file, runner, code, command string
		input                             string
	}{
		{"shell", "fire.sh", "", "", "sh fire.sh", `{"text":"Order 1042 was returned."}`},
		{"TypeScript", "fire.ts", "call.mjs", `
import { fire } from "./fire.js";
console.log(await fire(process.env.HOOK_URL, process.env.HOOK_SECRET, "return-1042", { text: "Größe ☕" }));
`, "node call.mjs", `{"text":"Größe ☕"}`},
		{"Python", "fire.py", "call.py", `
import os
from fire import fire
print(fire(os.environ["HOOK_URL"], os.environ["HOOK_SECRET"], "return-1042", {"text": "Größe ☕"}))
`, "python3 call.py", `{"text":"Größe ☕"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				h := hmac.New(sha256.New, []byte(secret))
				h.Write(body)
				if want := "sha256=" + hex.EncodeToString(h.Sum(nil)); r.Method != "POST" || r.Header.Get("X-Svc-Signature-256") != want {
					t.Errorf("%s signed %q, want %q", r.Method, r.Header.Get("X-Svc-Signature-256"), want)
				}
				if got := r.Header.Get("Idempotency-Key"); got != "return-1042" {
					t.Errorf("key %q", got)
				}
				var got, want map[string]string
				if err := json.Unmarshal(body, &got); err != nil {
					t.Error(err)
				}
				if err := json.Unmarshal([]byte(c.input), &want); err != nil {
					t.Error(err)
				}
				if len(got) != 1 || got["text"] != want["text"] {
					t.Errorf("sent %s, want %s", body, c.input)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusAccepted)
				fmt.Fprint(w, `{"run_id":"r-1"}`)
			}))
			defer hook.Close()
			t.Setenv("HOOK_URL", hook.URL+"/hooks/1")
			t.Setenv("HOOK_SECRET", secret)
			dir := guide(t, "triggers.md", c.file)
			if c.runner != "" {
				write(t, dir, c.runner, c.code)
			}
			name, arg, _ := strings.Cut(c.command, " ")
			if out := string(run(t, dir, nil, name, arg)); !strings.Contains(out, "r-1") {
				t.Errorf("answered %q", out)
			}
			if calls != 1 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

var dueRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (?:`([^`]+)`)? ?\\| `([^`]+)` \\| `([^`]+)` \\|$")

// The guide's schedules come due when it says.
func TestTheGuidesSchedules(t *testing.T) {
	raw, err := os.ReadFile("../../docs/triggers.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := dueRow.FindAllStringSubmatch(string(raw), -1)
	if len(rows) != 8 {
		t.Errorf("%d rows found", len(rows))
	}
	for _, r := range rows {
		s, err := schedule.Parse(r[1], r[2])
		if err != nil {
			t.Errorf("%s: %v", r[0], err)
			continue
		}
		after, err := time.Parse(time.RFC3339, r[3])
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(after).Format(time.RFC3339); got != r[4] {
			t.Errorf("%s: comes due at %s", r[0], got)
		}
	}
}
