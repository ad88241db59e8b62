package blackbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/cli"
	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// Responses to calls of hooks, by the real server (service.md, Hook endpoint; open-parts.md, Hooks).

const (
	signedIn    = "X-Svc-Signature-256"
	hubSignedIn = "X-Hub-Signature-256"
)

// signature is the header value for a body that is signed with secret.
func signature(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// knock sends a request to a hook without a key and without adding a signature.
func (c *caller) knock(ctx context.Context, method, path string, body any, header ...string) (answer, error) {
	return c.do(ctx, method, path, body, append([]string{"Authorization", "", "X-Tenant-Id", ""}, header...)...)
}

// hooked calls a hook, signed with the secret.
func (c *caller) hooked(ctx context.Context, hook, secret, body string, header ...string) (answer, error) {
	return c.knock(ctx, "POST", "/hooks/"+hook, body, append([]string{signedIn, signature(secret, body)}, header...)...)
}

// fires calls a hook that must start a run, and returns the run.
func (c *caller) fires(t *testing.T, ctx context.Context, hook client.TriggerView, body string, header ...string) string {
	t.Helper()
	a, err := c.hooked(ctx, hook.ID, hook.Secret, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return a.run(t)
}

// run returns the run that the response names.
func (a answer) run(t *testing.T) string {
	t.Helper()
	var started struct {
		RunID string `json:"run_id"`
	}
	if err := json.Unmarshal(a.body, &started); err != nil || a.status != 202 || !isFullID(started.RunID) {
		t.Fatalf("%s, want 202 and a run", a)
	}
	return started.RunID
}

// whole returns everything in a response that a caller can learn from.
func (a answer) whole() string {
	var fields []string
	for name, values := range a.header {
		if !slices.Contains([]string{"Date", "X-Request-Id", "Ratelimit-Remaining", "Ratelimit-Reset"}, name) {
			fields = append(fields, fmt.Sprintf("%s: %s", name, values))
		}
	}
	slices.Sort(fields)
	return fmt.Sprintf("%s %s", a, strings.Join(fields, "; "))
}

// hidden returns the paths of hooks that answer 404, each for another reason, with the secrets of those that
// had one.
func (n *node) hidden(t *testing.T, ctx context.Context, c *caller) map[string]client.TriggerView {
	t.Helper()
	agent := c.publish(t, "Hidden", simulatedModel)
	disabled := c.trigger(t, ctx, object{"name": "disabled", "kind": "hook", "target": object{"agent_id": agent}, "enabled": false})
	paused := c.trigger(t, ctx, object{"name": "paused", "kind": "hook", "target": object{"agent_id": agent}})
	c.fires(t, ctx, paused, `{"text":"/say yet"}`)
	c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+paused.ID, object{"enabled": false}, nil)
	scheduled := c.trigger(t, ctx, object{"name": "schedule", "kind": "schedule", "target": object{"agent_id": agent}, "schedule": object{"cron": "0 0 1 1 *"}})
	deleted := c.trigger(t, ctx, object{"name": "deleted", "kind": "hook", "target": object{"agent_id": agent}})
	c.fires(t, ctx, deleted, `{"text":"/say yet"}`)
	c.ask(t, ctx, 204, "DELETE", "/v1/triggers/"+deleted.ID, nil, nil)
	gone := c.publish(t, "Archived", simulatedModel)
	archived := c.trigger(t, ctx, object{"name": "archived", "kind": "hook", "target": object{"agent_id": gone}})
	c.fires(t, ctx, archived, `{"text":"/say yet"}`)
	c.ask(t, ctx, 204, "DELETE", "/v1/agents/"+gone, nil, nil)
	other := n.tenant("hidden, another")
	theirs := other.trigger(t, ctx, object{"name": "theirs", "kind": "hook", "target": object{"agent_id": other.publish(t, "Theirs", simulatedModel)}})
	other.ask(t, ctx, 204, "DELETE", "/v1/triggers/"+theirs.ID, nil, nil)
	return map[string]client.TriggerView{
		"unknown": {ID: id.NewAnywhere().String()}, "no id": {ID: "nope"}, "an id of another version": {ID: "7f1f2a30-5d4e-4c6b-9a0e-0123456789ab"},
		"zero": {ID: "00000000-0000-0000-0000-000000000000"}, "an agent's id": {ID: agent}, "no text": {ID: "%ff%00"},
		"disabled from the start": disabled, "paused": paused, "a schedule": scheduled, "deleted": deleted, "its agent is archived": archived, "another tenant's, deleted": theirs,
	}
}

// "Order: unknown or disabled 404, signature 401 (missing too), body that is no
// JSON object 400 INVALID_BODY, target unpublished 409."
func TestHookOrder(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("hook order")
	anyone := n.stranger()
	agent, draft := c.publish(t, "Helper", simulatedModel), c.makesAgent(t, ctx, object{"name": "Draft", "manifest": simulatedModel})
	hook := c.trigger(t, ctx, object{"name": "hook", "kind": "hook", "target": object{"agent_id": agent}})
	unpublished := c.trigger(t, ctx, object{"name": "unpublished", "kind": "hook", "target": object{"agent_id": draft}})
	const good = `{"text":"/say ok"}`

	t.Run("hooks that answer 404", func(t *testing.T) {
		first := ""
		for name, h := range n.hidden(t, ctx, c) {
			for what, header := range map[string][]string{
				"signed": {signedIn, signature(h.Secret, good)}, "not signed": nil, "wrongly signed": {signedIn, signature("x", good)},
				"with a delivery's id": {signedIn, signature(h.Secret, good), "Svc-Delivery-Id", "1"}, "with a key": {signedIn, signature(h.Secret, good), "Authorization", "Bearer " + c.Key, "X-Tenant-Id", c.Tenant},
			} {
				for _, body := range []string{good, "[]"} {
					a, err := anyone.knock(ctx, "POST", "/hooks/"+h.ID, body, header...)
					if err != nil {
						t.Fatal(err)
					}
					checkProblem(t, name, a)
					if first == "" {
						first = a.whole()
					}
					if a.status != 404 || a.code() != "NOT_FOUND" || a.whole() != first {
						t.Errorf("%s, %s, %s: %s, want %s", name, what, body, a.whole(), first)
					}
				}
			}
		}
	})

	right := signature(hook.Secret, good)
	for _, row := range []struct {
		name   string
		hook   client.TriggerView
		body   string
		header []string
		status int
		code   string
	}{
		{"no signature", hook, good, nil, 401, "INVALID_SIGNATURE"},
		{"an empty signature", hook, good, []string{signedIn, " "}, 401, "INVALID_SIGNATURE"},
		{"the scheme alone", hook, good, []string{signedIn, "sha256="}, 401, "INVALID_SIGNATURE"},
		{"no scheme", hook, good, []string{signedIn, right[len("sha256="):]}, 401, "INVALID_SIGNATURE"},
		{"another scheme", hook, good, []string{signedIn, "sha1=" + right[len("sha256="):]}, 401, "INVALID_SIGNATURE"},
		{"a scheme in capitals", hook, good, []string{signedIn, "SHA256=" + right[len("sha256="):]}, 401, "INVALID_SIGNATURE"},
		{"another secret", hook, good, []string{signedIn, signature("hksec_x", good)}, 401, "INVALID_SIGNATURE"},
		{"no secret", hook, good, []string{signedIn, signature("", good)}, 401, "INVALID_SIGNATURE"},
		{"another hook's secret", hook, good, []string{signedIn, signature(unpublished.Secret, good)}, 401, "INVALID_SIGNATURE"},
		{"another body", hook, good + " ", []string{signedIn, right}, 401, "INVALID_SIGNATURE"},
		{"a digit less", hook, good, []string{signedIn, right[:len(right)-1]}, 401, "INVALID_SIGNATURE"},
		{"a byte less", hook, good, []string{signedIn, right[:len(right)-2]}, 401, "INVALID_SIGNATURE"},
		{"a byte more", hook, good, []string{signedIn, right + "00"}, 401, "INVALID_SIGNATURE"},
		{"no hex", hook, good, []string{signedIn, right[:len(right)-1] + "g"}, 401, "INVALID_SIGNATURE"},
		{"base64", hook, good, []string{signedIn, "sha256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}, 401, "INVALID_SIGNATURE"},
		{"a space in front", hook, good, []string{signedIn, "sha256= " + right[len("sha256="):]}, 401, "INVALID_SIGNATURE"},
		{"two in one", hook, good, []string{signedIn, right + "," + right}, 401, "INVALID_SIGNATURE"},
		{"very long", hook, good, []string{signedIn, "sha256=" + strings.Repeat("a", 4096)}, 401, "INVALID_SIGNATURE"},
		{"X-Hub-Signature", hook, good, []string{"X-Hub-Signature", right}, 401, "INVALID_SIGNATURE"},
		{"Svc-Signature", hook, good, []string{"Svc-Signature", right}, 401, "INVALID_SIGNATURE"},
		{"X-Signature-256", hook, good, []string{"X-Signature-256", right}, 401, "INVALID_SIGNATURE"},
		{"a key instead", hook, good, []string{"Authorization", "Bearer " + c.Key, "X-Tenant-Id", c.Tenant}, 401, "INVALID_SIGNATURE"},
		{"X-Hub-Signature-256, wrong", hook, good, []string{hubSignedIn, signature("x", good)}, 401, "INVALID_SIGNATURE"},
		{"both fields, ours wrong", hook, good, []string{signedIn, signature("x", good), hubSignedIn, right}, 401, "INVALID_SIGNATURE"},
		{"no signature, and no JSON either", hook, "[", nil, 401, "INVALID_SIGNATURE"},
		{"no signature of one whose agent is unpublished", unpublished, good, nil, 401, "INVALID_SIGNATURE"},
		{"no JSON object to one whose agent is unpublished", unpublished, "[]", []string{signedIn, signature(unpublished.Secret, "[]")}, 400, "INVALID_BODY"},
		{"its agent is unpublished", unpublished, good, []string{signedIn, signature(unpublished.Secret, good)}, 409, "AGENT_NOT_PUBLISHED"},
		{"X-Svc-Signature-256", hook, good, []string{signedIn, right}, 202, ""},
		{"X-Hub-Signature-256", hook, good, []string{hubSignedIn, right}, 202, ""},
		{"digits in capitals", hook, good, []string{signedIn, "sha256=" + strings.ToUpper(right[len("sha256="):])}, 202, ""},
		{"both fields, ours right", hook, good, []string{signedIn, right, hubSignedIn, signature("x", good)}, 202, ""},
		{"an id in capitals", client.TriggerView{ID: strings.ToUpper(hook.ID)}, good, []string{signedIn, right}, 202, ""},
		{"a wrong key beside", hook, good, []string{signedIn, right, "Authorization", "Bearer svc_wrong", "X-Tenant-Id", "x"}, 202, ""},
		{"a page's origin beside", hook, good, []string{signedIn, right, "Origin", "https://example.com", "Cookie", "svc_session=x"}, 202, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			a, err := anyone.knock(ctx, "POST", "/hooks/"+row.hook.ID, row.body, row.header...)
			if err != nil {
				t.Fatal(err)
			}
			checkProblem(t, row.name, a)
			if a.status != row.status || a.code() != row.code {
				t.Errorf("%s, want %d %s", a, row.status, row.code)
			}
			if row.status == 202 {
				c.poll(t, ctx, a.run(t), "succeeded")
			}
			for name := range a.header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("it answers %s", name)
				}
			}
		})
	}

	t.Run("bodies", func(t *testing.T) {
		t.Parallel()
		for name, body := range map[string]string{
			"an array": `[{"text":"x"}]`, "a text": `"text"`, "a number": `1`, "true": `true`, "null": `null`, "nothing": ``, "a space": ` `, "no JSON": `text=x`,
			"half an object": `{"text":"x"`, "two objects": `{}{}`, "a comma too many": `{"text":"x",}`, "a name twice": `{"text":"x","text":"y"}`, "a name twice below": `{"a":{"b":1,"b":2}}`,
			"no quotes": `{text:"x"}`, "not UTF-8": "{\"text\":\"\xff\"}", "half a character": `{"text":"\ud800"}`, "a zero character": `{"text":"\u0000"}`, "a number out of range": `{"a":1e400}`, "a byte order mark": "\xef\xbb\xbf{}", "NaN": `{"a":NaN}`,
			"a comment": `{/**/}`, "very deep": strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000), "deep arrays": `{"a":` + strings.Repeat("[", 500_000) + "}",
		} {
			a, err := anyone.hooked(ctx, hook.ID, hook.Secret, body)
			if err != nil {
				t.Fatal(err)
			}
			checkProblem(t, name, a)
			if a.status != 400 || a.code() != "INVALID_BODY" {
				t.Errorf("%s: %s", name, a)
			}
			if a, err = anyone.hooked(ctx, hook.ID, hook.Secret+"x", body); err != nil || a.status != 401 {
				t.Errorf("%s, wrongly signed: %v %s", name, err, a)
			}
		}
	})

	t.Run("content types", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "multipart/form-data; boundary=x", "rubbish"} {
			c.poll(t, ctx, anyone.fires(t, ctx, hook, good, "Content-Type", kind), "succeeded")
		}
	})

	t.Run("sizes", func(t *testing.T) {
		t.Parallel()
		const limit = 2 << 20
		sized := func(size int) string {
			head, tail := `{"text":"/say ok","pad":"`, `"}`
			return head + strings.Repeat("a", size-len(head)-len(tail)) + tail
		}
		for _, row := range []struct {
			name    string
			hook    client.TriggerView
			size    int
			chunked bool
			status  int
		}{
			{"at the limit", hook, limit, false, 202}, {"one past it", hook, limit + 1, false, 413}, {"at the limit, in chunks", hook, limit, true, 202}, {"one past it, in chunks", hook, limit + 1, true, 413},
			{"small, in chunks", hook, 64, true, 202}, {"one past it to nobody", client.TriggerView{ID: id.NewAnywhere().String()}, limit + 1, false, 413},
		} {
			body := sized(row.size)
			req, err := http.NewRequestWithContext(ctx, "POST", n.base+"/hooks/"+row.hook.ID, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if row.chunked {
				req.Body, req.ContentLength = io.NopCloser(struct{ io.Reader }{strings.NewReader(body)}), -1
			}
			req.Header.Set(signedIn, signature(row.hook.Secret, body))
			resp, err := anyone.HTTP.Do(req)
			if err != nil {
				t.Fatalf("%s: %v", row.name, err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			a := answer{resp.StatusCode, resp.Header, b}
			checkProblem(t, row.name, a)
			switch {
			case err != nil || a.status != row.status:
				t.Errorf("%s: %v %s, want %d", row.name, err, a, row.status)
			case row.status == 413 && a.code() != "PAYLOAD_TOO_LARGE":
				t.Errorf("%s: %s", row.name, a)
			case row.status == 202:
				if r := c.poll(t, ctx, a.run(t), "succeeded"); len(r.Run.Input) != row.size || r.text() != "ok" {
					t.Errorf("%s: %d bytes of input, %q", row.name, len(r.Run.Input), r.text())
				}
			}
		}
	})

	t.Run("methods", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE"} {
			for name, path := range map[string]string{"there": "/hooks/" + hook.ID, "not there": "/hooks/" + id.NewAnywhere().String()} {
				a, err := anyone.knock(ctx, method, path, good, signedIn, right)
				if err != nil {
					t.Fatal(err)
				}
				if a.status != 405 || method != "HEAD" && a.code() != "METHOD_NOT_ALLOWED" || !strings.Contains(a.header.Get("Allow"), "POST") {
					t.Errorf("%s of a hook that is %s: %s, allow %q", method, name, a, a.header.Get("Allow"))
				}
			}
		}
		a, err := anyone.knock(ctx, "OPTIONS", "/hooks/"+hook.ID, nil, "Origin", "https://example.com", "Access-Control-Request-Method", "POST")
		if err != nil || a.header.Get("Access-Control-Allow-Origin") != "" || a.status >= 500 {
			t.Errorf("a browser page is accepted: %v %s", err, a.whole())
		}
	})
}

// "The run's input is the trigger's input with the body's fields over it; an agent
// whose input has neither text nor input reads the input as JSON text."
func TestHookInput(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("hook input")
	anyone := n.stranger()
	target := object{"agent_id": c.publish(t, "Helper", simulatedModel)}
	for name, row := range map[string]struct{ of, body, want, text string }{
		"nothing of the trigger's":    {``, `{"text":"/say a"}`, `{"text":"/say a"}`, "a"},
		"nothing of the body's":       {`{"text":"/say a","b":1}`, `{}`, `{"text":"/say a","b":1}`, "a"},
		"the body's over it":          {`{"text":"/say a","b":{"c":1,"d":2}}`, `{"text":"/say z","b":{"c":3}}`, `{"text":"/say z","b":{"c":3}}`, "z"},
		"both":                        {`{"text":"/say a"}`, `{"b":[1,null]}`, `{"text":"/say a","b":[1,null]}`, "a"},
		"null is a value":             {`{"text":"/say a","b":1}`, `{"b":null}`, `{"text":"/say a","b":null}`, "a"},
		"numbers stay as they are":    {`{"text":"/say a","big":12345678901234567890}`, `{"one":1.00,"far":1e300}`, `{"text":"/say a","big":12345678901234567890,"one":1.00,"far":1e300}`, "a"},
		"text stays as it is":         {`{"text":"/say a"}`, `{"t":"<&>\u2028é"}`, `{"text":"/say a","t":"<&>\u2028é"}`, "a"},
		"input is read":               {``, `{"input":"/say i"}`, `{"input":"/say i"}`, "i"},
		"neither text nor input":      {`{"a":1}`, `{"b":"x"}`, `{"a":1,"b":"x"}`, `{"a":1,"b":"x"}`},
		"an empty object":             {``, `{}`, `{}`, `{}`},
		"a name is one in every case": {`{"Text":"/say a"}`, `{"text":"/say b"}`, `{"Text":"/say a","text":"/say b"}`, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := object{"name": name, "kind": "hook", "target": target}
			if row.of != "" {
				body["input"] = json.RawMessage(row.of)
			}
			r := c.poll(t, ctx, anyone.fires(t, ctx, c.trigger(t, ctx, body), row.body), "succeeded")
			if got, want := fieldsOf(t, string(r.Run.Input)), fieldsOf(t, row.want); got != want {
				t.Errorf("input %s, want %s", got, want)
			}
			if text := r.text(); text != row.text && !strings.Contains(strings.ReplaceAll(text, " ", ""), `Yousaid:"`+row.text+`"`) {
				t.Errorf("the agent answered %q, want %s", text, row.text)
			}
		})
	}
}

// fieldsOf returns an object's fields by name, each as it was written.
func fieldsOf(t *testing.T, raw string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(raw), &fields); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	var lines []string
	for name, value := range fields {
		lines = append(lines, fmt.Sprintf("%s=%s", name, plainly(string(value))))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// plainly returns a text value in canonical form.
func plainly(value string) string {
	var text string
	if json.Unmarshal([]byte(value), &text) != nil || value == "null" {
		return value
	}
	return fmt.Sprintf("%q", text)
}

// metered counts the bytes written to a database.
type metered struct {
	net.Conn
	bytes *atomic.Int64
}

func (m metered) Write(b []byte) (int, error) {
	m.bytes.Add(int64(len(b)))
	return m.Conn.Write(b)
}

// recorded keeps what is written to a database.
type recorded struct {
	net.Conn
	to *recording
}

func (r recorded) Write(b []byte) (int, error) {
	r.to.mu.Lock()
	r.to.sent.Write(b)
	r.to.mu.Unlock()
	return r.Conn.Write(b)
}

type recording struct {
	mu   sync.Mutex
	sent bytes.Buffer
}

// cut returns what was written since the last cut.
func (r *recording) cut() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := bytes.Clone(r.sent.Bytes())
	r.sent.Reset()
	return sent
}

// lookups returns how often sent names an id, as a parameter of a query does.
func lookups(t *testing.T, sent []byte, ids ...string) int {
	t.Helper()
	n := 0
	for _, text := range ids {
		key, err := id.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(sent, key[:])
	}
	return n
}

// A flood of wrongly signed calls is refused by the rate limit of its address and hardly reaches the database.
// Signed calls are served at the same time. Guessing does not show which hooks exist.
func TestHookFlood(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	db := pgtest.New(t)
	admin := db.Admin(t)
	database, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	socket := database.Query().Get("host")
	var asked recording // what the node has sent to the database
	between := newFront(t, func() (net.Conn, error) {
		c, err := net.Dial("unix", filepath.Join(socket, ".s.PGSQL.5432"))
		return recorded{c, &asked}, err
	}, nil)
	const capacity, refill = 120, 20
	n := newNode(t, calm, "SVC_DATABASE_URL="+atAddress(database, between.addr, "flooded"), "SVC_TRUSTED_PROXIES=127.0.0.0/8",
		fmt.Sprintf("SVC_RATE_CAPACITY=%d", capacity), fmt.Sprintf("SVC_RATE_REFILL=%d", refill))
	n.start()
	c := n.tenant("flooded")
	anyone := n.stranger()
	target := object{"agent_id": c.publish(t, "Helper", simulatedModel)}
	hook := c.trigger(t, ctx, object{"name": "hook", "kind": "hook", "target": target})
	disabled := c.trigger(t, ctx, object{"name": "disabled", "kind": "hook", "target": target, "enabled": false})
	const good = `{"text":"/say ok"}`
	addresses := 0
	from := func() []string {
		addresses++
		return []string{"X-Forwarded-For", fmt.Sprintf("198.51.%d.%d", 100+addresses/250, 1+addresses%250)}
	}
	// served returns how long a signed call takes.
	served := func() time.Duration {
		began := time.Now()
		anyone.fires(t, ctx, hook, good, from()...)
		return time.Since(began)
	}
	const times = 25
	var before, beside []time.Duration
	for range times {
		before = append(before, served())
	}
	eventually(t, ctx, "all runs have ended", func() bool {
		open := -1
		return admin.QueryRow(ctx, `SELECT count(*) FROM runs WHERE finished_at IS NULL`).Scan(&open) == nil && open == 0
	})
	if lookups(t, asked.cut(), hook.ID) == 0 {
		t.Error("no look-up of the hook was seen: the counts below mean nothing")
	}
	var strangers struct {
		sync.Mutex
		ids []string
	}

	for _, flood := range []struct {
		name, from string
		hook       func() string
		status     int
	}{
		{"wrongly signed", "203.0.113.1", func() string { return hook.ID }, 401},
		{"to a disabled one", "203.0.113.2", func() string { return disabled.ID }, 404},
		{"to ids of nobody", "203.0.113.3", func() string {
			stranger := id.NewAnywhere().String()
			strangers.Lock()
			defer strangers.Unlock()
			strangers.ids = append(strangers.ids, stranger)
			return stranger
		}, 404},
		{"to what is no id", "203.0.113.4", func() string { return "x" }, 404},
	} {
		const calls, callers = 2000, 8
		var refused, limited atomic.Int64
		var left atomic.Int64
		left.Store(calls)
		began := time.Now()
		asked.cut()
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for left.Add(-1) >= 0 {
					a, err := anyone.hooked(ctx, flood.hook(), "wrong", good, "X-Forwarded-For", flood.from)
					switch {
					case err != nil:
						t.Error(err)
					case a.status == flood.status:
						refused.Add(1)
					case a.status == 429 && a.code() == "RATE_LIMITED" && a.header.Get("Retry-After") != "":
						limited.Add(1)
					default:
						t.Errorf("%s: %s", flood.name, a.whole())
						return
					}
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		ids := strangers.ids // the others are looked up again from time to time, also during this flood
		if flood.name != "to ids of nobody" {
			ids = []string{hook.ID, disabled.ID}
		}
		named := lookups(t, asked.cut(), ids...)
		t.Logf("%s: %d calls in %s, %d refused, %d limited, %d look-ups", flood.name, calls, took.Round(time.Millisecond), refused.Load(), limited.Load(), named)
		if most := int64(capacity + refill*took.Seconds() + callers); refused.Load() < capacity || refused.Load() > most {
			t.Errorf("%s: %d calls were judged, want %d to %d", flood.name, refused.Load(), capacity, most)
		}
		// Each judged call of an unknown id makes one look-up. Those of a known one share one a second, and calls
		// that miss it together make one each. The limited ones make none.
		most := 0
		switch flood.name {
		case "to ids of nobody":
			most = int(refused.Load())
		case "wrongly signed", "to a disabled one":
			most = callers + 2 + 2*int(took.Seconds()) // of both
		}
		if named > most {
			t.Errorf("%s: %d look-ups in the database, want at most %d", flood.name, named, most)
		}
	}

	over := make(chan struct{})
	var flooding sync.WaitGroup
	for range 4 {
		flooding.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if a, err := anyone.hooked(ctx, hook.ID, "wrong", good, "X-Forwarded-For", "203.0.113.1"); err != nil || a.status != 401 && a.status != 429 {
					t.Errorf("flooding: %v %s", err, a)
					return
				}
			}
		})
	}
	for range times {
		beside = append(beside, served())
	}
	close(over)
	flooding.Wait()
	a, b := median(before), median(beside)
	t.Logf("a signed call takes %s, beside a flood %s", a, b)
	if b > 5*a+100*time.Millisecond {
		t.Errorf("a signed call takes %s beside a flood, %s without", b, a)
	}

	// Neither a first nor a repeated call shows whether a hook exists.
	const samples = 60
	made := make([]client.TriggerView, samples)
	for i := range made {
		eventually(t, ctx, "there is room for another trigger", func() bool {
			a, err := c.do(ctx, "POST", "/v1/triggers", object{"name": "disabled", "kind": "hook", "target": target, "enabled": false})
			return err == nil && a.status == 201 && json.Unmarshal(a.body, &made[i]) == nil
		})
	}
	var took [2][2][]time.Duration // of the first and second call to disabled and to unknown hooks
	first := ""
	for i := range samples {
		ids := [2]string{made[i].ID, id.NewAnywhere().String()}
		for _, which := range rand.Perm(2) {
			for call := range 2 {
				began := time.Now()
				a, err := anyone.hooked(ctx, ids[which], "wrong", good, from()...)
				took[call][which] = append(took[call][which], time.Since(began))
				if err != nil {
					t.Fatal(err)
				}
				if first == "" {
					first = a.whole()
				}
				if a.whole() != first || a.status != 404 {
					t.Errorf("call %d: %s, want %s", call, a.whole(), first)
				}
			}
		}
	}
	for call, both := range took {
		d, u := median(both[0]), median(both[1])
		t.Logf("call %d: a disabled hook takes %s, an unknown one %s", call, d, u)
		if d > 2*u || u > 2*d {
			t.Errorf("call %d takes %s to a disabled hook, %s to an unknown one", call, d, u)
		}
	}
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func isFullID(s string) bool {
	_, is := cli.FullID(s)
	return is
}
