package blackbox

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
)

// identityToken is a token that a tenant's back end signs for a visitor (service.md, Authentication, Embed),
// made with HMAC only.
func identityToken(t *testing.T, secret string, claims object) string {
	t.Helper()
	if claims["exp"] == nil {
		claims["exp"] = time.Now().Add(time.Hour).Unix()
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc.EncodeToString(body)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(signed))
	return signed + "." + enc.EncodeToString(mac.Sum(nil))
}

// visiting is a session of a visitor.
type visiting struct {
	*caller
	Token     string
	Visitor   string
	EndUserID string `json:"end_user_id"`
}

// page is the origin that tests visit from.
const page = "https://shop.example.com"

// visit begins a session of the tenant's person sub, or an anonymous one.
func (c *caller) visit(t *testing.T, ctx context.Context, key, secret, sub string) *visiting {
	t.Helper()
	body := object{}
	if sub != "" {
		body["user"] = object{"token": identityToken(t, secret, object{"sub": sub, "name": "Kim"})}
	}
	bare := *c
	bare.Key, bare.Tenant = "", ""
	v := &visiting{caller: &bare}
	a, err := v.do(ctx, "POST", "/v1/embed/session", body, "X-Svc-Embed-Key", key, "Origin", page)
	// Tests on the shared node share the rate limit of its address.
	for tick := time.NewTicker(time.Second); err == nil && a.status == 429; {
		select {
		case <-tick.C:
			a, err = v.do(ctx, "POST", "/v1/embed/session", body, "X-Svc-Embed-Key", key, "Origin", page)
		case <-ctx.Done():
			t.Fatal("no session was admitted")
		}
	}
	if err != nil || a.status != 200 || json.Unmarshal(a.body, v) != nil {
		t.Fatalf("%v %s", err, a)
	}
	return v
}

// call makes a call with the session's token.
func (v *visiting) call(t *testing.T, ctx context.Context, method, path string, body any) answer {
	t.Helper()
	a, err := v.do(ctx, method, path, body, "Authorization", "Bearer "+v.Token, "Origin", page)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

type embedKeyView struct {
	ID             string
	Key            string
	IdentitySecret string `json:"identity_secret"`
}

// embedKey creates an embed key with an identity secret.
func (c *caller) embedKey(t *testing.T, ctx context.Context, agent, name string) (k embedKeyView) {
	t.Helper()
	c.ask(t, ctx, 201, "POST", "/v1/embed-keys", object{"agent_id": agent, "name": name, "allowed_origins": []string{page}, "with_identity_secret": true}, &k)
	return k
}

// endUser returns the id of an end user that has visited.
func (c *caller) endUser(t *testing.T, ctx context.Context, sub string) string {
	t.Helper()
	k := c.embedKey(t, ctx, c.publish(t, "Visited", simulatedModel), "of "+sub)
	return c.visit(t, ctx, k.Key, k.IdentitySecret, sub).EndUserID
}

// docs/adr/0027, on a whole node: a person who is deleted in the middle of an answer is gone at once, and a
// moment later no table holds any of the person's data.
func TestADeletedEndUserIsErased(t *testing.T) {
	t.Parallel()
	ctx := within(t, 90*time.Second)
	db := pgtest.New(t)
	n := newNode(t, "SVC_DATABASE_URL="+db.URL, "SVC_OUTBOUND_ALLOW=127.0.0.0/8")
	n.start()
	c := n.tenant("erasing")
	ear := newSink(t, answers(200))
	c.subscribe(t, ctx, ear, "*")
	agent := c.publish(t, "Listener", simulatedModel)
	k := c.embedKey(t, ctx, agent, "Shop")
	kim := c.visit(t, ctx, k.Key, k.IdentitySecret, "customer-1")
	lee := c.visit(t, ctx, k.Key, k.IdentitySecret, "customer-2")
	const canary = "my number is 4711-kim"
	say := func(v *visiting, text string) (posted struct {
		ThreadID string `json:"thread_id"`
		RunID    string `json:"run_id"`
	}) {
		t.Helper()
		if a := v.call(t, ctx, "POST", "/v1/embed/messages", object{"content": text}); a.status != 202 || json.Unmarshal(a.body, &posted) != nil {
			t.Fatal(a)
		}
		return posted
	}
	theirs := say(lee, "/echo something of lee's")
	c.poll(t, ctx, theirs.RunID, "succeeded")
	ended := say(kim, "/echo "+canary)
	c.poll(t, ctx, ended.RunID, "succeeded")
	// A run by the tenant's own back end, in the person's thread.
	var backend struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/threads/"+ended.ThreadID+"/messages", object{"content": "/echo about " + canary}, &backend)
	c.poll(t, ctx, backend.RunID, "succeeded")
	// A file that was made in the person's thread.
	var report struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/threads/"+ended.ThreadID+"/messages", object{"content": "/say # Report " + canary, "deliverable": "html"}, &report)
	c.poll(t, ctx, report.RunID, "succeeded")
	var made struct{ Items []struct{ ID string } }
	c.ask(t, ctx, 200, "GET", "/v1/runs/"+report.RunID+"/artifacts", nil, &made)
	if len(made.Items) != 1 {
		t.Fatalf("%d artifacts", len(made.Items))
	}
	artifact := "/v1/runs/" + report.RunID + "/artifacts/" + made.Items[0].ID
	if got := c.ask(t, ctx, 200, "GET", artifact, nil, nil); !strings.Contains(string(got.body), "4711-kim") {
		t.Errorf("the file is %s", got)
	}
	running := say(kim, "/delay 80s\n/echo "+canary)
	c.poll(t, ctx, running.RunID, "running")

	admin := db.Admin(t)
	left := func() string {
		t.Helper()
		var found []string
		for _, table := range []string{"threads", "messages", "runs", "run_steps", "run_marks", "artifacts", "webhook_deliveries", "audit_log", "usage_records", "end_users"} {
			var rows int
			if err := admin.QueryRow(ctx, "SELECT count(*) FROM "+table+" x WHERE x::text LIKE '%4711-kim%' OR x::text LIKE '%' || encode('4711-kim', 'hex') || '%'").Scan(&rows); err != nil {
				t.Fatal(err)
			}
			if rows > 0 {
				found = append(found, table)
			}
		}
		return strings.Join(found, " ")
	}
	if before := left(); before != "threads messages runs run_steps artifacts webhook_deliveries" {
		t.Errorf("the person's data is in %s", before)
	}
	c.ask(t, ctx, 204, "DELETE", "/v1/end-users/"+kim.EndUserID, nil, nil)
	if a := kim.call(t, ctx, "GET", "/v1/embed/threads", nil); a.status != 401 || a.code() != "EMBED_UNAUTHORIZED" {
		t.Errorf("the deleted person's session is accepted: %s", a)
	}
	c.ask(t, ctx, 404, "GET", "/v1/end-users/"+kim.EndUserID, nil, nil)
	c.ask(t, ctx, 404, "GET", "/v1/threads/"+ended.ThreadID, nil, nil)
	if again := c.visit(t, ctx, k.Key, k.IdentitySecret, "customer-1"); again.EndUserID == kim.EndUserID {
		t.Error("the new session has the deleted end user")
	} else if a := again.call(t, ctx, "GET", "/v1/embed/threads", nil); a.status != 200 || strings.Contains(string(a.body), ended.ThreadID) {
		t.Errorf("the new session finds %s", a)
	}

	for tick := time.NewTicker(200 * time.Millisecond); left() != ""; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("data is left in %s", left())
		}
	}
	for _, run := range []string{ended.RunID, backend.RunID, report.RunID, running.RunID} {
		c.ask(t, ctx, 404, "GET", "/v1/runs/"+run, nil, nil)
	}
	c.ask(t, ctx, 404, "GET", artifact, nil, nil)
	// No row names the file any more, so the walk over the store removes it (persistence/store).
	var rows int
	if err := admin.QueryRow(ctx, "SELECT count(*) FROM artifacts").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows of artifacts, %v", rows, err)
	}
	c.ask(t, ctx, 200, "GET", "/v1/runs/"+theirs.RunID, nil, nil)
	var usage struct{ Items []any }
	c.ask(t, ctx, 200, "GET", "/v1/usage/records?run_id="+ended.RunID, nil, &usage)
	if len(usage.Items) == 0 {
		t.Error("the usage records are gone")
	}
}

// A key that ends its sessions cuts their streams, and the next call gets the reason.
func TestAnEmbedKeyThatEndsItsSessions(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := newNode(t)
	n.start()
	c := n.tenant("ending")
	agent := c.publish(t, "Slow", simulatedModel)
	for name, row := range map[string]struct {
		end  func(k embedKeyView)
		want string // the code of the next call
	}{
		"paused": {func(k embedKeyView) {
			c.ask(t, ctx, 200, "PATCH", "/v1/embed-keys/"+k.ID, object{"enabled": false}, nil)
		}, "EMBED_KEY_DISABLED"},
		"rotated": {func(k embedKeyView) { c.ask(t, ctx, 200, "POST", "/v1/embed-keys/"+k.ID+"/rotate", nil, nil) }, "EMBED_UNAUTHORIZED"},
		"revoked": {func(k embedKeyView) { c.ask(t, ctx, 204, "DELETE", "/v1/embed-keys/"+k.ID, nil, nil) }, "EMBED_KEY_DISABLED"},
		"without its origin": {func(k embedKeyView) {
			c.ask(t, ctx, 200, "PATCH", "/v1/embed-keys/"+k.ID, object{"allowed_origins": []string{"https://b.example"}}, nil)
		}, "EMBED_ORIGIN_DENIED"},
		"its end user erased": {nil, "EMBED_UNAUTHORIZED"},
	} {
		k := c.embedKey(t, ctx, agent, name)
		v := c.visit(t, ctx, k.Key, k.IdentitySecret, "customer of "+name)
		var posted struct {
			RunID string `json:"run_id"`
		}
		if a := v.call(t, ctx, "POST", "/v1/embed/messages", object{"content": "/delay 50s"}); a.status != 202 || json.Unmarshal(a.body, &posted) != nil {
			t.Fatal(name, a)
		}
		req, err := http.NewRequestWithContext(ctx, "GET", v.Base+"/v1/embed/runs/"+posted.RunID+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+v.Token)
		req.Header.Set("Origin", page)
		req.Header.Set("Accept", "text/event-stream")
		stream, err := v.HTTP.Do(req)
		if err != nil || stream.StatusCode != 200 {
			t.Fatal(name, err, stream)
		}
		cut := make(chan struct{})
		go func() {
			defer close(cut)
			_, _ = io.Copy(io.Discard, stream.Body)
			stream.Body.Close()
		}()
		if row.end == nil {
			row.end = func(embedKeyView) { c.ask(t, ctx, 204, "DELETE", "/v1/end-users/"+v.EndUserID, nil, nil) }
		}
		row.end(k)
		a := v.call(t, ctx, "GET", "/v1/embed/threads", nil)
		if a.code() != row.want {
			t.Errorf("%s: %s, want %s", name, a, row.want)
		}
		select {
		case <-cut:
		case <-ctx.Done():
			t.Fatalf("%s: its stream is still open", name)
		}
	}
}
