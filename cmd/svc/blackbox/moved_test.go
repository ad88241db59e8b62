package blackbox

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// presented returns every credential that a tool server received.
func (h *toolHost) presented() (out []string) {
	for _, head := range h.heard() {
		for _, name := range []string{"Authorization", "X-Api-Key"} {
			if v := head.Get(name); v != "" {
				out = append(out, v)
			}
		}
	}
	return out
}

// open-parts.md, Credentials follow no changed address: a tool server whose endpoint moves to another origin.
func TestCredentialsStayWithTheirOrigin(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("moved")
	for _, row := range []struct {
		name   string
		pinned bool
		patch  func(from, to *toolHost) object
		drops  bool
	}{
		{"another port", false, func(_, to *toolHost) object { return object{"endpoint": to.URL} }, true},
		{"another port, the grant pins the connection", true, func(_, to *toolHost) object { return object{"endpoint": to.URL} }, true},
		{"another host", false, func(_, to *toolHost) object {
			return object{"endpoint": strings.Replace(to.URL, "127.0.0.1", "localhost", 1)}
		}, true},
		{"another scheme", false, func(from, _ *toolHost) object {
			return object{"endpoint": strings.Replace(from.URL, "http:", "https:", 1)}
		}, true},
		{"another path", false, func(from, _ *toolHost) object { return object{"endpoint": from.URL + "/v2?x=1"} }, false},
		{"the same endpoint in other words", false, func(from, _ *toolHost) object {
			return object{"endpoint": strings.Replace(from.URL, "http:", "HTTP:", 1)}
		}, false},
		{"another name alone", false, func(_, _ *toolHost) object { return object{"name": "Other"} }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 30*time.Second)
			g := gated(t, ctx, c, object{}, nil)
			if row.pinned {
				c.ask(t, ctx, 200, "PATCH", "/v1/tool-grants/"+g.shop.grant, object{"connection_id": g.shop.connection}, nil)
			}
			to := newToolHost(t)
			patch := row.patch(g.shop.toolHost, to)
			got := c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+g.shop.id, patch, nil)
			if bytes.Contains(got.body, []byte(`"credentials_dropped":true`)) != row.drops {
				t.Errorf("the answer of %v: %s", patch, got)
			}
			var kept struct {
				ID             string
				HasCredential  bool            `json:"has_credential"`
				CredentialMeta json.RawMessage `json:"credential_meta"`
			}
			c.ask(t, ctx, 200, "GET", "/v1/connections/"+g.shop.connection, nil, &kept)
			if kept.ID != g.shop.connection || kept.HasCredential == row.drops || string(kept.CredentialMeta) != "{}" {
				t.Errorf("the connection is %+v", kept)
			}
			audit := c.audited(t, ctx, g.shop.id)
			last := audit[len(audit)-1]
			from, _ := url.Parse(g.shop.URL)
			if row.drops != (strings.Contains(last, from.Host) && strings.Contains(last, "new_origin")) {
				t.Errorf("the audit log says %s", last)
			}
			if !row.drops {
				return
			}
			if endpoint, _ := patch["endpoint"].(string); !strings.Contains(last, strings.TrimSuffix(endpoint, "/")) {
				t.Errorf("the audit log says %s and not %s", last, endpoint)
			}
			if got := c.decides(t, ctx, g.a.ID, object{"action": "approve"}); got != "approved 1" {
				t.Errorf("decided: %s", got)
			}
			c.poll(t, ctx, g.run, "succeeded")
			heard := results(t, g.model.fake.Requests()[1])
			if len(heard) != 1 || !strings.Contains(heard[0], "NO_CONNECTION") {
				t.Errorf("the model gets %q", heard)
			}
			if got := to.presented(); len(got) > 0 {
				t.Errorf("the new address was shown %q", got)
			}
			c.ask(t, ctx, 502, "POST", "/v1/mcp-servers/"+g.shop.id+"/test", object{"connection_id": g.shop.connection}, nil)
			c.ask(t, ctx, 502, "POST", "/v1/mcp-servers/"+g.shop.id+"/test", nil, nil)
			why := c.ask(t, ctx, 200, "GET", "/v1/agents/"+g.agent+"/tools/explain?tool="+g.shop.slug+".orders.refund", nil, nil)
			if !bytes.Contains(why.body, []byte("lost its credential")) {
				t.Errorf("the explanation: %s", why)
			}
			// With a new credential the connection works again.
			c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+g.shop.id, object{"endpoint": to.URL}, nil)
			c.ask(t, ctx, 200, "PATCH", "/v1/connections/"+g.shop.connection, object{"credentials": object{"token": "fresh-token"}}, nil)
			c.ask(t, ctx, 200, "POST", "/v1/mcp-servers/"+g.shop.id+"/test", nil, nil)
			if got := slices.Compact(to.presented()); !slices.Equal(got, []string{"Bearer fresh-token"}) {
				t.Errorf("the new address was shown %q", got)
			}
		})
	}
}

// Connections are created and rotated while the server moves: credentials saved before the move are dropped,
// and no address gets another's token.
func TestConnectionsDuringAMove(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	c := sharedNode(t).tenant("meets a move")
	s := c.shop(t, ctx, "bearer", "old-token")
	to := newToolHost(t)
	for i := range 10 {
		endpoint := [...]string{to.URL, s.URL}[i%2]
		var wg sync.WaitGroup
		made := make(chan string, 4)
		for range 4 {
			wg.Go(func() {
				got, err := c.do(ctx, http.MethodPost, "/v1/connections", object{"mcp_server_id": s.id, "name": "x", "credentials": object{"token": "old-token"}})
				var out struct{ ID string }
				if err == nil && got.status == 201 && json.Unmarshal(got.body, &out) == nil {
					made <- out.ID
				}
			})
		}
		before := c.connection(t, ctx, s.id, "bearer", "old-token", nil)
		c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+s.id, object{"endpoint": endpoint}, nil)
		wg.Wait()
		close(made)
		var one struct {
			HasCredential bool `json:"has_credential"`
		}
		c.ask(t, ctx, 200, "GET", "/v1/connections/"+before, nil, &one)
		if one.HasCredential {
			t.Fatal("a connection from before the move kept its credential")
		}
		for id := range made {
			c.ask(t, ctx, 204, "DELETE", "/v1/connections/"+id, nil, nil)
		}
		c.ask(t, ctx, 204, "DELETE", "/v1/connections/"+before, nil, nil)
	}
}

// open-parts.md, Credentials follow no changed address: a model provider.
func TestProviderCredentialsStayWithTheirOrigin(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("moved providers")
	ctx := within(t, 30*time.Second)
	first, slug := modelled(t, ctx, c, "openai", says("one"))
	second, _ := modelled(t, ctx, c, "openai", says("two"), says("three"))
	var list struct {
		Items []struct{ ID, Slug string }
	}
	c.ask(t, ctx, 200, "GET", "/v1/model-providers", nil, &list)
	i := slices.IndexFunc(list.Items, func(p struct{ ID, Slug string }) bool { return p.Slug == slug })
	path := "/v1/model-providers/" + list.Items[i].ID
	agent := c.clerk(t, slug, nil)

	// A move within the origin keeps the credential.
	if got := c.ask(t, ctx, 200, "PATCH", path, object{"base_url": first.url() + "/"}, nil); bytes.Contains(got.body, []byte("credentials_dropped")) {
		t.Errorf("dropped within the origin: %s", got)
	}
	c.ask(t, ctx, 200, "PATCH", path, object{"base_url": first.url()}, nil)
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "hello"), "succeeded")

	got := c.ask(t, ctx, 200, "PATCH", path, object{"base_url": second.url()}, nil)
	if !bytes.Contains(got.body, []byte(`"credentials_dropped":true`)) || !bytes.Contains(got.body, []byte(`"has_credentials":false`)) {
		t.Errorf("the answer of the move: %s", got)
	}
	audit := c.audited(t, ctx, list.Items[i].ID)
	a, _ := url.Parse(first.url())
	b, _ := url.Parse(second.url())
	if last := audit[len(audit)-1]; !strings.Contains(last, a.Scheme+"://"+a.Host) || !strings.Contains(last, b.Scheme+"://"+b.Host) {
		t.Errorf("the audit log says %s", last)
	}
	failed := c.poll(t, ctx, c.runOnce(t, ctx, agent, "hello"), "failed")
	if !strings.Contains(failed.Run.Error.Message, "lost its credentials") {
		t.Errorf("the run says %+v", failed.Run.Error)
	}
	if n := len(second.fake.Requests()); n > 0 {
		t.Errorf("the new address was asked %d times", n)
	}
	// A move with new credentials keeps those, and so does a move back.
	c.ask(t, ctx, 200, "PATCH", path, object{"credentials": object{"api_key": "sk-second"}}, nil)
	c.ask(t, ctx, 200, "PATCH", path, object{"base_url": first.url()}, nil)
	got = c.ask(t, ctx, 200, "PATCH", path, object{"base_url": second.url(), "credentials": object{"api_key": "sk-second"}}, nil)
	if bytes.Contains(got.body, []byte("credentials_dropped")) {
		t.Errorf("the answer of a move with credentials: %s", got)
	}
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "hello"), "succeeded")
	for _, r := range second.fake.Requests() {
		if auth := r.Header.Get("Authorization"); auth != "Bearer sk-second" {
			t.Errorf("the new address was shown %q", auth)
		}
	}
}

// A call reads the old address before the move and continues after it: it does not send the old address the
// credential that the connection got for the new one.
func TestACallDuringAMoveSendsNoNewCredential(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	c := sharedNode(t).tenant("call meets a move")
	g := gated(t, ctx, c, object{}, nil)
	// The list is fetched again between reading the address and the call.
	c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+g.shop.id, object{"name": "Forgotten"}, nil)
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	g.shop.set(func(h *toolHost) {
		h.list = func(w http.ResponseWriter, _ *http.Request, m rpc) {
			once.Do(func() { close(asked) })
			<-goOn
			rpcResult(w, m, `{"tools":[`+lookupTool+`,`+refundTool+`]}`)
		}
	})
	if got := c.decides(t, ctx, g.a.ID, object{"action": "approve"}); got != "approved 1" {
		t.Errorf("decided: %s", got)
	}
	select {
	case <-asked:
	case <-ctx.Done():
		t.Fatal("the server was not asked for its tools")
	}
	c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+g.shop.id, object{"endpoint": newToolHost(t).URL}, nil)
	c.ask(t, ctx, 200, "PATCH", "/v1/connections/"+g.shop.connection, object{"credentials": object{"token": "token-of-the-new-address"}}, nil)
	close(goOn)
	c.poll(t, ctx, g.run, "succeeded")
	if got := g.shop.presented(); slices.Contains(got, "Bearer token-of-the-new-address") {
		t.Errorf("the old address was shown %q", slices.Compact(got))
	}
	if heard := results(t, g.model.fake.Requests()[1]); len(heard) != 1 || !strings.Contains(heard[0], "NO_CONNECTION") {
		t.Errorf("the model gets %q", heard)
	}
}
