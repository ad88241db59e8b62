package blackbox

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentsvc/transport/mcp/leak"
)

// The outbound guard checks a tool server's address when it is saved and at each use (open-parts.md,
// Questions settled).
func TestTheGuardOfToolServers(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	n, key := newNode(t), "SVC_MASTER_KEY="+masterKey(7)
	n.start("SVC_OUTBOUND_ALLOW=127.0.0.0/8", key)
	c := n.tenant("guarded")
	s := c.shop(t, ctx, "bearer", canary)
	agent := c.publish(t, "Clerk", object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": s.slug}}}})
	c.poll(t, ctx, c.runOnce(t, ctx, agent, `/call orders.lookup {"id":1}`), "succeeded")
	if len(s.called()) != 1 {
		t.Errorf("called %v", s.called())
	}
	if err := n.signal(syscall.SIGTERM, 15*time.Second); err != nil {
		t.Fatal(err)
	}

	// In production, with no exception allowed.
	n.start("SVC_OUTBOUND_ALLOW=", "SVC_ENV=production", "SVC_PUBLIC_URL=https://svc.example.com", key)
	before := len(s.heard())
	r := c.poll(t, ctx, c.runOnce(t, ctx, agent, `/call orders.lookup {"id":1}`), "succeeded")
	if got := string(r.Steps[1].Output); !strings.Contains(got, `"error":"TOOL_FAILED"`) || !strings.Contains(got, "Nothing was run.") {
		t.Errorf("the model gets %s", got)
	}
	if a := c.ask(t, ctx, 502, "POST", "/v1/mcp-servers/"+s.id+"/test", nil, nil); a.code() != "MCP_UNREACHABLE" || !strings.Contains(string(a.body), "outbound guard") {
		t.Errorf("%s", a)
	}
	if len(s.heard()) != before {
		t.Error("a server that the guard refuses was asked")
	}
	for _, endpoint := range []string{s.URL, "http://tools.example.com/mcp", "https://127.0.0.1/mcp", "https://10.1.2.3/mcp", "https://169.254.169.254/latest", "https://[::1]/mcp", "https://[::ffff:10.0.0.1]/mcp",
		"https://2130706433/mcp", "https://0x7f.1/mcp", "https://localhost/mcp", "https://tools/mcp", "https://a.internal/mcp", "https://a.local/mcp", "https://me:pw@tools.example.com/mcp",
		"ftp://tools.example.com/mcp", "file:///etc/passwd", "not a url", "https://tools.example.com/mcp#x"} {
		body := object{"slug": "x", "name": "x", "transport": "http", "endpoint": endpoint, "auth_kind": "none"}
		if a := c.ask(t, ctx, 400, "POST", "/v1/mcp-servers", body, nil); a.code() != "VALIDATION" || !strings.Contains(string(a.body), "endpoint: ") {
			t.Errorf("%s: %s", endpoint, a)
		}
		if a := c.ask(t, ctx, 400, "PATCH", "/v1/mcp-servers/"+s.id, object{"endpoint": endpoint}, nil); a.code() != "VALIDATION" {
			t.Errorf("%s: %s", endpoint, a)
		}
	}
	for _, body := range []object{{"transport": "stdio", "endpoint": "/bin/sh", "auth_kind": "none"}, {"transport": "stdio", "endpoint": s.URL, "auth_kind": "none"}} {
		body["slug"], body["name"] = "x", "x"
		if a := c.ask(t, ctx, 400, "POST", "/v1/mcp-servers", body, nil); a.code() != "VALIDATION" || !strings.Contains(string(a.body), "SVC_STDIO_SERVERS") {
			t.Errorf("%v: %s", body, a)
		}
	}
}

// Every change of grants is audited, without a credential.
func TestToolChangesAreAudited(t *testing.T) {
	t.Parallel()
	ctx := within(t, 20*time.Second)
	c := sharedNode(t).tenant("audited")
	s := c.shop(t, ctx, "bearer", canary)
	policy := c.policy(t, ctx, object{})
	c.ask(t, ctx, 200, "PATCH", "/v1/mcp-servers/"+s.id, object{"name": "New"}, nil)
	c.ask(t, ctx, 200, "PATCH", "/v1/connections/"+s.connection, object{"credentials": object{"token": canary}}, nil)
	c.ask(t, ctx, 200, "PATCH", "/v1/tool-grants/"+s.grant, object{"tool_pattern": "orders.*"}, nil)
	c.ask(t, ctx, 200, "PATCH", "/v1/approval-policies/"+policy, object{"enabled": false}, nil)
	for _, path := range []string{"/v1/approval-policies/" + policy, "/v1/tool-grants/" + s.grant, "/v1/connections/" + s.connection, "/v1/mcp-servers/" + s.id} {
		c.ask(t, ctx, 204, "DELETE", path, nil, nil)
	}
	for target, kind := range map[string]string{s.id: "mcp_server", s.connection: "connection", s.grant: "tool_grant", policy: "approval_policy"} {
		var got []string
		for _, row := range c.audited(t, ctx, target) {
			if leak.Find(canary, row) != "" {
				t.Errorf("the audit log shows the credential: %s", row)
			}
			actor, rest, _ := strings.Cut(row, " ")
			action, _, _ := strings.Cut(rest, " ")
			if !strings.HasPrefix(actor, "apikey:") {
				t.Errorf("by %s", actor)
			}
			got = append(got, action)
		}
		want := []string{kind + ".create", kind + ".update", kind + ".delete"}
		if kind == "connection" {
			want = slices.Insert(want, 1, "connection.rotate")
		}
		sameLines(t, kind, got, want)
	}
	// A credential must fit into a header field.
	server := c.server(t, ctx, "headers", s.URL, "bearer")
	for _, token := range []string{"", "two\nlines", "nul\x00"} {
		body := object{"mcp_server_id": server, "name": "x", "credentials": object{"token": token}}
		if a := c.ask(t, ctx, 400, "POST", "/v1/connections", body, nil); a.code() != "VALIDATION" {
			t.Errorf("%q: %s", token, a)
		}
	}
	for _, credentials := range []object{{}, {"api_key": "x"}, {"token": "x", "api_key": "y"}, {"value": "x"}, {"token": "x", "more": 1}} {
		if a := c.ask(t, ctx, 400, "POST", "/v1/connections", object{"mcp_server_id": server, "name": "x", "credentials": credentials}, nil); a.code() != "VALIDATION" {
			t.Errorf("%v: %s", credentials, a)
		}
	}
}
