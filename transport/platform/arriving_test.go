package platform

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
)

// arriving sends a request without the end of its body, and returns once its caller is
// authenticated. The function that it returns sends the rest.
func (w *world) arriving(c edge.Credentials, method, path, body string, header ...string) (end func(rest string) answer) {
	w.t.Helper()
	r, send := io.Pipe()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.addr+path, r)
	w.must(err)
	req.Header.Set("X-Svc-CSRF", "1")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	cached := func() bool { return w.Sessions.Cached(c) }
	if c.Bearer != "" {
		cached = func() bool { return w.Auth.Cached(c) }
		req.Header.Set("Authorization", "Bearer "+c.Bearer)
		req.Header.Set("X-Tenant-Id", c.Tenant)
	} else {
		req.Header.Set("Cookie", "svc_session="+c.Cookie)
	}
	if cached() {
		w.t.Fatal("the caller has made another request before")
	}
	type result struct {
		resp *http.Response
		err  error
	}
	done := make(chan result, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		done <- result{resp, err}
	}()
	_, err = io.WriteString(send, body)
	w.must(err)
	testkit.Eventually(w.t, "the caller is authenticated", cached)
	return func(rest string) answer {
		w.t.Helper()
		_, err := io.WriteString(send, rest)
		w.must(err)
		w.must(send.Close())
		got := <-done
		w.must(got.err)
		defer got.resp.Body.Close()
		b, err := io.ReadAll(got.resp.Body)
		w.must(err)
		return answer{got.resp.StatusCode, got.resp.Header, string(b)}
	}
}

// service.md, API key: in-flight requests with the old key fail with 401. The same holds for
// sessions, and for a role that was taken away, whatever the client does with its body.
func TestWhatIsRevokedWhileABodyArrivesChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	count := func(table string) (n int) {
		w.must(w.admin.QueryRow(t.Context(), "SELECT count(*)::int FROM "+table+" WHERE tenant_id = $1", w.a.tenant).Scan(&n))
		return n
	}
	documents := w.a.fill().Replace("/v1/knowledge-bases/{base}/documents")
	form, formHead := w.form(upload{"late.txt", "text/plain", "late"})
	for _, c := range []struct {
		path, begin, rest, table string
		header                   []string
	}{
		{"/v1/api-keys", `{"name": `, `"fresh"}`, "api_keys", nil},
		{"/v1/attachments", form[:len(form)-8], form[len(form)-8:], "attachments", formHead},
		{documents, form[:len(form)-8], form[len(form)-8:], "kb_documents", formHead},
	} {
		key := w.call(w.a, "POST", "/v1/api-keys", `{"name": "old"}`)
		secret, _ := key.get("secret").(string)
		kim := w.newHuman(w.a, fmt.Sprintf("kim%d@example.com", count("users")), lifecycle.RoleAdmin)
		cookie := w.enter(kim)
		before := count(c.table)
		withKey := w.arriving(edge.Credentials{Bearer: secret, Tenant: w.a.tenant.String()}, "POST", c.path, c.begin, c.header...)
		withSession := w.arriving(edge.Credentials{Cookie: cookie}, "POST", c.path, c.begin, c.header...)
		if got := w.call(w.a, "DELETE", "/v1/api-keys/"+fmt.Sprint(key.get("id")), ""); got.status != 204 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if got := w.person("owner", "DELETE", "/v1/users/"+kim.id.String(), ""); got.status != 204 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for name, end := range map[string]func(string) answer{"a revoked key": withKey, "a removed user": withSession} {
			if got := end(c.rest); got.status != 401 || got.code() != "UNAUTHORIZED" {
				t.Errorf("%s: %s: %d %s", c.path, name, got.status, got.body)
			}
		}
		if now := count(c.table); now != before {
			t.Errorf("%s: %d rows in %s, before %d", c.path, now, c.table, before)
		}
	}
	if got := w.stored(w.a); strings.Contains(fmt.Sprint(got), "late") {
		t.Errorf("stored: %q", got)
	}
	lee := w.newHuman(w.a, "lee@example.com", lifecycle.RoleAdmin)
	end := w.arriving(edge.Credentials{Cookie: w.enter(lee)}, "PATCH", "/v1/users/"+lee.id.String(), `{"role": `)
	if got := w.person("owner", "PATCH", "/v1/users/"+lee.id.String(), `{"role": "member"}`); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := end(`"admin"}`); got.status != 403 || got.code() != "FORBIDDEN" {
		t.Errorf("a former admin: %d %s", got.status, got.body)
	}
	if got := w.person("owner", "GET", "/v1/users/"+lee.id.String(), ""); !strings.Contains(got.body, `"role":"member"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
}
