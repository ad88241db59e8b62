package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// lines records the lines of the log.
type lines struct {
	mu  sync.Mutex // guards the field below
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// tools is a fake of the tool gateway.
type tools struct {
	mu        sync.Mutex // guards the fields below
	offers    []tool.Offer
	listed    []tool.Listed
	agents    []id.AgentID // those that Verdicts knows; nil: all
	explained *tool.Explanation
	specs     []tool.Spec
	fail      error
	asked     []string // arguments of Known, joined
	tested    []*id.ConnectionID
	forgotten []id.ServerID
	anew      int // how often it was told that access changed
	checked   []string
	meanwhile func() // is called while an endpoint is checked
}

// builtins are the tools that every tenant has, as tokens for a turn.
var builtins = []string{"kb.search", "kb.*", "*", "builtin:kb.search", "builtin:*", "handoff", "builtin:handoff"}

func (f *tools) Offered(context.Context, id.TenantID, id.AgentID) ([]tool.Offer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.offers, f.fail
}

func (f *tools) All(_ context.Context, _ id.TenantID, after string, limit int) ([]tool.Listed, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.listed)
	for _, o := range f.offers {
		out = append(out, tool.Listed{Spec: o.Spec})
	}
	out = slices.DeleteFunc(out, func(l tool.Listed) bool { return l.Qualified() <= after })
	slices.SortFunc(out, func(a, b tool.Listed) int { return strings.Compare(a.Qualified(), b.Qualified()) })
	return out[:min(len(out), limit)], len(out) > limit, f.fail
}

func (f *tools) Verdicts(ctx context.Context, t id.TenantID, a id.AgentID, specs []tool.Spec) ([]tool.Verdict, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]tool.Verdict, len(specs))
	for i := range out {
		out[i] = []tool.Verdict{tool.Callable, tool.Gated, tool.Refused}[i%3]
	}
	if f.agents != nil && !slices.Contains(f.agents, a) {
		return nil, problem.NotFound("agent")
	}
	return out, f.fail
}

func (f *tools) Explain(_ context.Context, _ id.TenantID, _ id.AgentID, name string) (*tool.Explanation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.explained != nil || f.fail != nil {
		return f.explained, f.fail
	}
	return &tool.Explanation{Tool: name, Verdict: tool.Refused, Why: "No tool has this name."}, nil
}

func (f *tools) Known(_ context.Context, _ id.TenantID, tokens []string) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, strings.Join(tokens, " "))
	known := make([]bool, len(tokens))
	for i, token := range tokens {
		known[i] = slices.Contains(builtins, token)
	}
	return known, f.fail
}

func (f *tools) Test(_ context.Context, _ id.TenantID, _ id.ServerID, c *id.ConnectionID) ([]tool.Spec, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tested = append(f.tested, c)
	return f.specs, f.fail
}

func (f *tools) Forget(_ id.TenantID, s id.ServerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, s)
}

func (f *tools) ForgetAccess(id.TenantID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.anew++
}

func (f *tools) ForgetAll() { f.ForgetAccess(id.TenantID{}) }

func (f *tools) CheckEndpoint(_ context.Context, transport tool.Transport, auth tool.AuthKind, endpoint string) error {
	f.mu.Lock()
	f.checked = append(f.checked, fmt.Sprint(transport, " ", auth, " ", endpoint))
	meanwhile := f.meanwhile
	f.mu.Unlock()
	if meanwhile != nil {
		meanwhile()
	}
	switch {
	case transport == tool.Stdio && endpoint != "allowed":
		return errors.New("names no command that this deployment allows")
	case transport == tool.Stdio && auth != tool.AuthNone:
		return errors.New("takes no credential")
	case transport == tool.HTTP && (!strings.HasPrefix(endpoint, "http") || strings.Contains(endpoint, "localhost")):
		return errors.New("refused by the outbound guard: not public")
	}
	return nil
}

// with changes the answers of the gateway.
func (f *tools) with(set func(*tools)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set(f)
}

// forgot returns the list of dropped servers and empties it.
func (f *tools) forgot() []id.ServerID {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.forgotten
	f.forgotten = nil
	return was
}

// hidden is the credential of every party's connection.
const hidden = "tok-hidden-5f3a"

// giveTools creates an org node, a tool server with a connection, a grant that pins it, and a
// policy.
func (w *world) giveTools(p *party) error {
	ctx := w.t.Context()
	p.node = id.NodeID{UUID: id.NewAnywhere()}
	if _, err := w.admin.Exec(ctx, "INSERT INTO org_nodes (tenant_id, id, name) VALUES ($1, $2, 'Node')", p.tenant, p.node); err != nil {
		return err
	}
	return w.Store.Change(ctx, store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		s, err := tx.CreateServer(ctx, &api.MCPServerCreate{Slug: "orders", Name: "Orders", Transport: tool.HTTP, Endpoint: "https://t.example/mcp", AuthKind: tool.AuthBearer})
		if err != nil {
			return nil, err
		}
		c, err := tx.CreateConnection(ctx, &api.ConnectionCreate{MCPServerID: s.ID, Name: "Account", Credentials: api.ConnectionCredentials{Token: ptr(hidden)}})
		if err != nil {
			return nil, err
		}
		g, err := tx.CreateGrant(ctx, &api.ToolGrantCreate{Source: "mcp", MCPServerID: &s.ID, ToolPattern: "*", Effect: tool.Allow, ConnectionID: &c.ID})
		if err != nil {
			return nil, err
		}
		y, err := tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "Policy", ToolPattern: "orders.*"})
		if err != nil {
			return nil, err
		}
		p.server, p.connection, p.grant, p.policy = s.ID, c.ID, g.ID, y.ID
		return nil, nil
	})
}

// fill returns a Replacer that fills in the ids of a party; {unknown} belongs to no tenant.
func (p party) fill() *strings.Replacer {
	return strings.NewReplacer("{agent}", p.agent.String(), "{draft}", p.draft.String(), "{thread}", p.thread.String(), "{node}", p.node.String(),
		"{server}", p.server.String(), "{connection}", p.connection.String(), "{grant}", p.grant.String(), "{policy}", p.policy.String(),
		"{webhook}", p.webhook.String(), "{delivery}", p.delivery.String(), "{listener}", p.listener.String(), "{hook}", p.hook.String(), "{schedule}", p.schedule.String(),
		"{workflow}", p.workflow.String(), "{base}", p.base.String(), "{document}", p.document.String(), "{source}", p.source.String(), "{skill}", p.skill.String(), "{embed_key}", p.embedKey.String(), "{end_user}", p.endUser.String(), "{unknown}", id.NewAnywhere().String())
}

// service.md, Tool servers, connections, grants; open-parts.md, Tools: each row is one case, and
// the cases run in order on one tenant.
func TestToolRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	object := func(n int) string { return `{"k":"` + x(n-8) + `"}` } // of n bytes
	none := w.call(w.a, "POST", "/v1/mcp-servers", `{"slug": "open", "name": "Open", "transport": "http", "endpoint": "https://o.example", "auth_kind": "none"}`)
	keyed := w.call(w.a, "POST", "/v1/mcp-servers", `{"slug": "keyed", "name": "Keyed", "transport": "http", "endpoint": "https://k.example", "auth_kind": "api_key"}`)
	static := w.call(w.a, "POST", "/v1/mcp-servers", `{"slug": "static", "name": "Static", "transport": "http", "endpoint": "https://s.example", "auth_kind": "oauth"}`)
	other := w.call(w.a, "POST", "/v1/connections", `{"mcp_server_id": "`+keyed.get("id").(string)+`", "name": "Other", "credentials": {"value": "key-hidden-77"}}`)
	if none.status+keyed.status+static.status+other.status != 4*201 {
		t.Fatal(none, keyed, static, other)
	}
	w.must(w.skillGrant(w.a))
	base := w.a.fill()
	fill := strings.NewReplacer("{none}", none.get("id").(string), "{keyed}", keyed.get("id").(string), "{static}", static.get("id").(string),
		"{other}", other.get("id").(string), "{skillgrant}", w.call(w.a, "GET", "/v1/tool-grants?limit=1", "").get("items.0.id").(string))
	server := func(fields string) string {
		doc := map[string]any{"slug": "new", "name": "New", "transport": "http", "endpoint": "https://n.example/mcp", "auth_kind": "bearer"}
		w.must(json.Unmarshal([]byte("{"+fields+"}"), &doc))
		for k, v := range doc {
			if v == "(none)" {
				delete(doc, k)
			}
		}
		b, err := json.Marshal(doc)
		w.must(err)
		return string(b)
	}
	connection := func(server, credentials, more string) string {
		return `{"mcp_server_id": "` + server + `", "name": "C", "credentials": ` + credentials + more + `}`
	}
	grant := func(fields string) string { return `{"effect": "allow", ` + fields + `}` }
	mcp := func(fields string) string { return grant(`"source": "mcp", "mcp_server_id": "{server}"` + fields) }
	policy := func(fields string) string { return `{"name": "P", "tool_pattern": "*"` + fields + `}` }
	rows := []route{
		// MCP server.
		{"list tool servers, newest first", "GET", "/v1/mcp-servers", "", 200, "", `{"items":[{"id":"{static}"`, ""},
		{"read a tool server", "GET", "/v1/mcp-servers/{server}", "", 200, "", `{"id":"{server}","slug":"orders","name":"Orders","transport":"http","endpoint":"https://t.example/mcp","auth_kind":"bearer","enabled":true,"meta":{},"created_at":"`, ""},
		{"read an unknown tool server", "GET", "/v1/mcp-servers/{unknown}", "", 404, "NOT_FOUND", "tool server", ""},
		{"an id that is no UUID", "GET", "/v1/mcp-servers/nonsense", "", 404, "NOT_FOUND", "", ""},
		{"add a tool server", "POST", "/v1/mcp-servers", server(`"slug": "made", "meta": {"team": "x", "n": [1]}`), 201, "", `"enabled":true,"meta":{"n":[1],"team":"x"}`, "mcp_server.create"},
		{"add a disabled one", "POST", "/v1/mcp-servers", server(`"slug": "off", "enabled": false`), 201, "", `"enabled":false,"meta":{}`, "mcp_server.create"},
		{"add a stdio server of the deployment", "POST", "/v1/mcp-servers", server(`"slug": "std", "transport": "stdio", "endpoint": "allowed", "auth_kind": "none"`), 201, "", `"transport":"stdio","endpoint":"allowed"`, "mcp_server.create"},
		{"a stdio server names an allowed command", "POST", "/v1/mcp-servers", server(`"transport": "stdio", "endpoint": "rm", "auth_kind": "none"`), 400, "VALIDATION", "endpoint: names no command that this deployment allows", ""},
		{"an endpoint that the guard refuses", "POST", "/v1/mcp-servers", server(`"endpoint": "http://localhost/mcp"`), 400, "VALIDATION", "endpoint: refused by the outbound guard", ""},
		{"a taken slug", "POST", "/v1/mcp-servers", server(`"slug": "orders"`), 409, "SLUG_TAKEN", "", ""},
		{"a slug of 63", "POST", "/v1/mcp-servers", server(`"slug": "` + x(63) + `"`), 201, "", "", "mcp_server.create"},
		{"a slug of 64", "POST", "/v1/mcp-servers", server(`"slug": "` + x(64) + `"`), 400, "VALIDATION", "slug", ""},
		{"a slug with a capital", "POST", "/v1/mcp-servers", server(`"slug": "Orders"`), 400, "VALIDATION", "slug", ""},
		{"a slug is required", "POST", "/v1/mcp-servers", server(`"slug": "(none)"`), 400, "VALIDATION", "slug: is required", ""},
		{"a name of 120", "POST", "/v1/mcp-servers", server(`"slug": "n120", "name": "` + x(120) + `"`), 201, "", "", "mcp_server.create"},
		{"a name of 121", "POST", "/v1/mcp-servers", server(`"name": "` + x(121) + `"`), 400, "VALIDATION", "name", ""},
		{"an empty name", "POST", "/v1/mcp-servers", server(`"name": ""`), 400, "VALIDATION", "name", ""},
		{"a name is required", "POST", "/v1/mcp-servers", server(`"name": "(none)"`), 400, "VALIDATION", "name: is required", ""},
		{"a transport is required", "POST", "/v1/mcp-servers", server(`"transport": "(none)"`), 400, "VALIDATION", "transport: is required", ""},
		{"an unknown transport", "POST", "/v1/mcp-servers", server(`"transport": "sse"`), 400, "VALIDATION", "transport", ""},
		{"an endpoint is required", "POST", "/v1/mcp-servers", server(`"endpoint": "(none)"`), 400, "VALIDATION", "endpoint: is required", ""},
		{"an empty endpoint", "POST", "/v1/mcp-servers", server(`"endpoint": ""`), 400, "VALIDATION", "endpoint", ""},
		{"an endpoint of 2000", "POST", "/v1/mcp-servers", server(`"slug": "e2000", "endpoint": "https://` + x(1992) + `"`), 201, "", "", "mcp_server.create"},
		{"an endpoint of 2001", "POST", "/v1/mcp-servers", server(`"endpoint": "https://` + x(1993) + `"`), 400, "VALIDATION", "endpoint", ""},
		{"an auth kind is required", "POST", "/v1/mcp-servers", server(`"auth_kind": "(none)"`), 400, "VALIDATION", "auth_kind: is required", ""},
		{"an unknown auth kind", "POST", "/v1/mcp-servers", server(`"auth_kind": "basic"`), 400, "VALIDATION", "auth_kind", ""},
		{"meta of 16 KiB", "POST", "/v1/mcp-servers", server(`"slug": "m16", "meta": ` + object(16384)), 201, "", "", "mcp_server.create"},
		{"meta beyond 16 KiB", "POST", "/v1/mcp-servers", server(`"meta": ` + object(16385)), 400, "VALIDATION", "meta: must have at most 16384 bytes", ""},
		{"meta that is no object", "POST", "/v1/mcp-servers", server(`"meta": [1]`), 400, "VALIDATION", "meta", ""},
		{"an unknown field", "POST", "/v1/mcp-servers", server(`"token": "x"`), 400, "VALIDATION", "token", ""},
		{"rename a tool server", "PATCH", "/v1/mcp-servers/{server}", `{"name": "Renamed", "meta": {"a": 1}}`, 200, "", `"slug":"orders","name":"Renamed","transport":"http","endpoint":"https://t.example/mcp","auth_kind":"bearer","enabled":true,"meta":{"a":1}`, "mcp_server.update"},
		{"a patch leaves what it does not name", "PATCH", "/v1/mcp-servers/{server}", `{}`, 200, "", `"name":"Renamed","transport":"http","endpoint":"https://t.example/mcp","auth_kind":"bearer","enabled":true,"meta":{"a":1}`, "mcp_server.update"},
		{"empty the meta", "PATCH", "/v1/mcp-servers/{server}", `{"meta": null}`, 200, "", `"meta":{}`, "mcp_server.update"},
		{"disable a tool server", "PATCH", "/v1/mcp-servers/{server}", `{"enabled": false}`, 200, "", `"enabled":false`, "mcp_server.update"},
		{"change an endpoint", "PATCH", "/v1/mcp-servers/{server}", `{"endpoint": "https://u.example", "enabled": true}`, 200, "", `"transport":"http","endpoint":"https://u.example","auth_kind":"bearer"`, "mcp_server.update"},
		{"its connection has no credential then", "POST", "/v1/mcp-servers/{server}/test", "", 502, "MCP_UNREACHABLE", "no tenant-wide connection with a credential", ""},
		{"nor where it is named", "POST", "/v1/mcp-servers/{server}/test", `{"connection_id": "{connection}"}`, 502, "MCP_UNREACHABLE", "the connection lost its credential", ""},
		{"it is given one", "PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "` + hidden + `"}}`, 200, "", `"has_credential":true`, "connection.update connection.rotate"},
		{"change a path", "PATCH", "/v1/mcp-servers/{server}", `{"endpoint": "https://u.example/mcp"}`, 200, "", `"endpoint":"https://u.example/mcp"`, "mcp_server.update"},
		{"change an endpoint to a refused one", "PATCH", "/v1/mcp-servers/{server}", `{"endpoint": "http://localhost"}`, 400, "VALIDATION", "endpoint: refused", ""},
		{"an endpoint is checked for the new transport", "PATCH", "/v1/mcp-servers/{server}", `{"transport": "stdio"}`, 400, "VALIDATION", "endpoint: names no command", ""},
		{"and for the new auth kind", "PATCH", "/v1/mcp-servers/{server}", `{"transport": "stdio", "endpoint": "allowed"}`, 400, "VALIDATION", "endpoint: takes no credential", ""},
		{"change a slug to a taken one", "PATCH", "/v1/mcp-servers/{server}", `{"slug": "keyed"}`, 409, "SLUG_TAKEN", "", ""},
		{"change a slug", "PATCH", "/v1/mcp-servers/{server}", `{"slug": "orders-2"}`, 200, "", `"slug":"orders-2"`, "mcp_server.update"},
		{"a patch's name of 121", "PATCH", "/v1/mcp-servers/{server}", `{"name": "` + x(121) + `"}`, 400, "VALIDATION", "name", ""},
		{"a patch's meta beyond 16 KiB", "PATCH", "/v1/mcp-servers/{server}", `{"meta": ` + object(16385) + `}`, 400, "VALIDATION", "meta: must have at most 16384 bytes", ""},
		{"change an unknown tool server", "PATCH", "/v1/mcp-servers/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"change an unknown one's endpoint", "PATCH", "/v1/mcp-servers/{unknown}", `{"endpoint": "http://localhost"}`, 404, "NOT_FOUND", "", ""},
		{"test a tool server", "POST", "/v1/mcp-servers/{server}/test", "", 200, "", `{"ok":true,"tools":[{"name":"orders.read","description":"Reads."},{"name":"orders.refund","description":""}]}`, ""},
		{"test it with a connection", "POST", "/v1/mcp-servers/{server}/test", `{"connection_id": "{connection}"}`, 200, "", `"ok":true`, ""},
		{"test it with another server's connection", "POST", "/v1/mcp-servers/{server}/test", `{"connection_id": "{other}"}`, 404, "NOT_FOUND", "connection", ""},
		{"test it with an unknown connection", "POST", "/v1/mcp-servers/{server}/test", `{"connection_id": "{unknown}"}`, 404, "NOT_FOUND", "connection", ""},
		{"test one that takes no credential", "POST", "/v1/mcp-servers/{none}/test", "{}", 200, "", `"ok":true`, ""},
		{"test one that has no connection", "POST", "/v1/mcp-servers/{static}/test", "{}", 502, "MCP_UNREACHABLE", `"errors":["auth_kind is oauth and there is no tenant-wide connection`, ""},
		{"test an unknown tool server", "POST", "/v1/mcp-servers/{unknown}/test", "", 404, "NOT_FOUND", "tool server", ""},

		// Connection.
		{"list connections", "GET", "/v1/connections", "", 200, "", `{"items":[{"id":"{other}","mcp_server_id":"{keyed}","name":"Other","credential_meta":{},"node_id":null,"created_at":"`, ""},
		{"read a connection", "GET", "/v1/connections/{connection}", "", 200, "", `{"id":"{connection}","mcp_server_id":"{server}","name":"Account","credential_meta":{},"node_id":null`, ""},
		{"read an unknown connection", "GET", "/v1/connections/{unknown}", "", 404, "NOT_FOUND", "connection", ""},
		{"bearer takes a token", "POST", "/v1/connections", connection("{server}", `{"token": "tok-hidden-1"}`, `, "credential_meta": {"l": 1}, "node_id": "{node}"`), 201, "", `"credential_meta":{"l":1},"node_id":"{node}"`, "connection.create"},
		{"bearer takes no API key", "POST", "/v1/connections", connection("{server}", `{"api_key": "key-hidden-1"}`, ""), 400, "VALIDATION", "credentials.api_key: does not belong to auth_kind bearer; credentials.token: is required", ""},
		{"bearer takes no value", "POST", "/v1/connections", connection("{server}", `{"value": "key-hidden-1"}`, ""), 400, "VALIDATION", "credentials.value: does not belong", ""},
		{"oauth takes a token", "POST", "/v1/connections", connection("{static}", `{"token": "tok-hidden-1"}`, ""), 201, "", "", "connection.create"},
		{"api_key takes an API key", "POST", "/v1/connections", connection("{keyed}", `{"api_key": "key-hidden-1"}`, ""), 201, "", "", "connection.create"},
		{"api_key reads a value", "POST", "/v1/connections", connection("{keyed}", `{"value": "key-hidden-1"}`, ""), 201, "", "", "connection.create"},
		{"api_key takes no token", "POST", "/v1/connections", connection("{keyed}", `{"token": "tok-hidden-1"}`, ""), 400, "VALIDATION", "credentials.token: does not belong to auth_kind api_key; credentials.api_key: is required", ""},
		{"one credential, not two", "POST", "/v1/connections", connection("{keyed}", `{"api_key": "key-hidden-1", "value": "key-hidden-2"}`, ""), 400, "VALIDATION", "credentials: hold more than one credential", ""},
		{"a server without credentials keeps one for later", "POST", "/v1/connections", connection("{none}", `{"token": "tok-hidden-1"}`, ""), 201, "", "", "connection.create"},
		{"but not nothing", "POST", "/v1/connections", connection("{none}", `{}`, ""), 400, "VALIDATION", "credentials: token or api_key is required", ""},
		{"credentials are not empty", "POST", "/v1/connections", connection("{server}", `{}`, ""), 400, "VALIDATION", "credentials.token: is required", ""},
		{"a token is not empty", "POST", "/v1/connections", connection("{server}", `{"token": ""}`, ""), 400, "VALIDATION", "credentials.token", ""},
		{"a token is text", "POST", "/v1/connections", connection("{server}", `{"token": {"hidden-1": 1}}`, ""), 400, "VALIDATION", "credentials.token", ""},
		{"credentials are required", "POST", "/v1/connections", `{"mcp_server_id": "{server}", "name": "C"}`, 400, "VALIDATION", "credentials: is required", ""},
		{"unknown credentials", "POST", "/v1/connections", connection("{server}", `{"password": "hidden-1"}`, ""), 400, "VALIDATION", "credentials.password", ""},
		{"a token that would break a header", "POST", "/v1/connections", connection("{server}", `{"token": "hidden-1\r\nX-A: b"}`, ""), 400, "VALIDATION", "credentials.token: must be visible ASCII", ""},
		{"a token with a space around", "POST", "/v1/connections", connection("{server}", `{"token": " hidden-1"}`, ""), 400, "VALIDATION", "credentials.token: must be visible ASCII", ""},
		{"a token beyond ASCII", "POST", "/v1/connections", connection("{server}", `{"token": "hidden-1é"}`, ""), 400, "VALIDATION", "credentials.token: must be visible ASCII", ""},
		{"a token of 8192", "POST", "/v1/connections", connection("{server}", `{"token": "`+x(8192)+`"}`, ""), 201, "", "", "connection.create"},
		{"a token of 8193", "POST", "/v1/connections", connection("{server}", `{"token": "`+x(8193)+`"}`, ""), 400, "VALIDATION", "credentials.token", ""},
		{"a connection's name of 121", "POST", "/v1/connections", `{"mcp_server_id": "{server}", "credentials": {"token": "t"}, "name": "` + x(121) + `"}`, 400, "VALIDATION", "name", ""},
		{"a connection's empty name", "POST", "/v1/connections", `{"mcp_server_id": "{server}", "credentials": {"token": "t"}, "name": ""}`, 400, "VALIDATION", "name", ""},
		{"a connection's name of 120", "POST", "/v1/connections", `{"mcp_server_id": "{server}", "credentials": {"token": "t"}, "name": "` + x(120) + `"}`, 201, "", "", "connection.create"},
		{"a label of 16 KiB", "POST", "/v1/connections", connection("{server}", `{"token": "t"}`, `, "credential_meta": `+object(16384)), 201, "", "", "connection.create"},
		{"a label beyond 16 KiB", "POST", "/v1/connections", connection("{server}", `{"token": "t"}`, `, "credential_meta": `+object(16385)), 400, "VALIDATION", "credential_meta: must have at most 16384 bytes", ""},
		{"a label that is no object", "POST", "/v1/connections", connection("{server}", `{"token": "t"}`, `, "credential_meta": "x"`), 400, "VALIDATION", "credential_meta", ""},
		{"a connection of an unknown server", "POST", "/v1/connections", connection("{unknown}", `{"token": "t"}`, ""), 400, "VALIDATION", "mcp_server_id: there is no such tool server", ""},
		{"a connection for an unknown node", "POST", "/v1/connections", connection("{server}", `{"token": "t"}`, `, "node_id": "{unknown}"`), 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"rename a connection", "PATCH", "/v1/connections/{connection}", `{"name": "Renamed", "node_id": "{node}", "credential_meta": {"a": 1}}`, 200, "", `"name":"Renamed","credential_meta":{"a":1},"node_id":"{node}"`, "connection.update"},
		{"a patch leaves the rest of a connection", "PATCH", "/v1/connections/{connection}", `{}`, 200, "", `"name":"Renamed","credential_meta":{"a":1},"node_id":"{node}"`, "connection.update"},
		{"take a connection off its node", "PATCH", "/v1/connections/{connection}", `{"node_id": null, "credential_meta": null}`, 200, "", `"credential_meta":{},"node_id":null`, "connection.update"},
		{"rotate a credential", "PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "tok-hidden-2"}}`, 200, "", `{"id":"{connection}"`, "connection.update connection.rotate"},
		{"rotate to the wrong kind", "PATCH", "/v1/connections/{connection}", `{"credentials": {"api_key": "key-hidden-2"}}`, 400, "VALIDATION", "credentials.api_key: does not belong", ""},
		{"a connection stays with its server", "PATCH", "/v1/connections/{connection}", `{"mcp_server_id": "{keyed}"}`, 400, "VALIDATION", "mcp_server_id", ""},
		{"put a connection on an unknown node", "PATCH", "/v1/connections/{connection}", `{"node_id": "{unknown}"}`, 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"change an unknown connection", "PATCH", "/v1/connections/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "connection", ""},
		{"remove a connection that a grant pins", "DELETE", "/v1/connections/{connection}", "", 409, "IN_USE", "", ""},
		{"remove a connection", "DELETE", "/v1/connections/{other}", "", 204, "", "", "connection.delete"},
		{"remove it again", "DELETE", "/v1/connections/{other}", "", 404, "NOT_FOUND", "connection", ""},

		// Tool grant.
		{"list grants, those of skills too", "GET", "/v1/tool-grants", "", 200, "", `{"items":[{"id":"{skillgrant}","source":"browser_skill","mcp_server_id":null,"browser_skill_id":"`, ""},
		{"read a grant", "GET", "/v1/tool-grants/{grant}", "", 200, "", `{"id":"{grant}","source":"mcp","mcp_server_id":"{server}","browser_skill_id":null,"tool_pattern":"*","effect":"allow","agent_id":null,"node_id":null,"connection_id":"{connection}"`, ""},
		{"read an unknown grant", "GET", "/v1/tool-grants/{unknown}", "", 404, "NOT_FOUND", "tool grant", ""},
		{"grant a server's tools to an agent", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "orders.*", "agent_id": "{agent}"`), 201, "", `"tool_pattern":"orders.*","effect":"allow","agent_id":"{agent}","node_id":null,"connection_id":null`, "tool_grant.create"},
		{"grant them to a node", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "orders.read", "node_id": "{node}", "connection_id": "{connection}"`), 201, "", `"agent_id":null,"node_id":"{node}","connection_id":"{connection}"`, "tool_grant.create"},
		{"deny them to all", "POST", "/v1/tool-grants", `{"source": "mcp", "mcp_server_id": "{server}", "tool_pattern": "orders.*", "effect": "deny"}`, 201, "", `"effect":"deny"`, "tool_grant.create"},
		{"grant a builtin tool by its bare name", "POST", "/v1/tool-grants", grant(`"source": "builtin", "tool_pattern": "kb.search"`), 201, "", `"source":"builtin"`, "tool_grant.create"},
		{"a2a is reserved and stored", "POST", "/v1/tool-grants", grant(`"source": "a2a", "tool_pattern": "a2a:x.*"`), 201, "", `"source":"a2a"`, "tool_grant.create"},
		{"connector too", "POST", "/v1/tool-grants", grant(`"source": "connector", "tool_pattern": "connector:x.y"`), 201, "", `"source":"connector"`, "tool_grant.create"},
		{"grants of browser skills are made with the skill", "POST", "/v1/tool-grants", grant(`"source": "browser_skill", "tool_pattern": "*"`), 400, "VALIDATION", "source", ""},
		{"an unknown source", "POST", "/v1/tool-grants", grant(`"source": "x", "tool_pattern": "*"`), 400, "VALIDATION", "source", ""},
		{"a source is required", "POST", "/v1/tool-grants", grant(`"tool_pattern": "*"`), 400, "VALIDATION", "source: is required", ""},
		{"mcp needs a server", "POST", "/v1/tool-grants", grant(`"source": "mcp", "tool_pattern": "*"`), 400, "VALIDATION", "mcp_server_id: is required with source mcp", ""},
		{"others have none", "POST", "/v1/tool-grants", grant(`"source": "builtin", "tool_pattern": "*", "mcp_server_id": "{server}"`), 400, "VALIDATION", "mcp_server_id: belongs to source mcp only", ""},
		{"nor a connection", "POST", "/v1/tool-grants", grant(`"source": "builtin", "tool_pattern": "*", "connection_id": "{connection}"`), 400, "VALIDATION", "connection_id: belongs to source mcp only", ""},
		{"an agent or a node, not both", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*", "agent_id": "{agent}", "node_id": "{node}"`), 400, "VALIDATION", "node_id: cannot be given together with agent_id", ""},
		{"a connection of another server", "POST", "/v1/tool-grants", `{"source": "mcp", "mcp_server_id": "{keyed}", "tool_pattern": "*", "effect": "allow", "connection_id": "{connection}"}`, 400, "VALIDATION", "connection_id: the tool server has no such connection", ""},
		{"an unknown connection", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*", "connection_id": "{unknown}"`), 400, "VALIDATION", "connection_id: the tool server has no such connection", ""},
		{"an unknown server", "POST", "/v1/tool-grants", grant(`"source": "mcp", "mcp_server_id": "{unknown}", "tool_pattern": "*"`), 400, "VALIDATION", "mcp_server_id: there is no such tool server", ""},
		{"an unknown agent", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*", "agent_id": "{unknown}"`), 400, "VALIDATION", "agent_id: there is no such agent", ""},
		{"an unknown node", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*", "node_id": "{unknown}"`), 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"an effect is required", "POST", "/v1/tool-grants", `{"source": "builtin", "tool_pattern": "*"}`, 400, "VALIDATION", "effect: is required", ""},
		{"an unknown effect", "POST", "/v1/tool-grants", `{"source": "builtin", "tool_pattern": "*", "effect": "ask"}`, 400, "VALIDATION", "effect", ""},
		{"a pattern is required", "POST", "/v1/tool-grants", grant(`"source": "builtin"`), 400, "VALIDATION", "tool_pattern: is required", ""},
		{"a pattern of 200", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "` + x(200) + `"`), 201, "", "", "tool_grant.create"},
		{"a pattern of 201", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "` + x(201) + `"`), 400, "VALIDATION", "tool_pattern", ""},
		{"an empty pattern", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": ""`), 400, "VALIDATION", "tool_pattern", ""},
		{"a star behind a letter", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "orders*"`), 400, "VALIDATION", "tool_pattern: must be a tool pattern", ""},
		{"two stars", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*.*"`), 400, "VALIDATION", "tool_pattern: must be a tool pattern", ""},
		{"a space in a pattern", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "a b"`), 400, "VALIDATION", "tool_pattern: must be a tool pattern", ""},
		{"a skill in a grant", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*", "browser_skill_id": "{unknown}"`), 400, "VALIDATION", "browser_skill_id", ""},
		{"change a grant", "PATCH", "/v1/tool-grants/{grant}", `{"tool_pattern": "orders.read", "effect": "deny", "agent_id": "{agent}", "connection_id": null}`, 200, "", `"tool_pattern":"orders.read","effect":"deny","agent_id":"{agent}","node_id":null,"connection_id":null`, "tool_grant.update"},
		{"a patch leaves the rest of a grant", "PATCH", "/v1/tool-grants/{grant}", `{}`, 200, "", `"tool_pattern":"orders.read","effect":"deny","agent_id":"{agent}"`, "tool_grant.update"},
		{"a node beside the agent it has", "PATCH", "/v1/tool-grants/{grant}", `{"node_id": "{node}"}`, 400, "VALIDATION", "node_id: cannot be given together", ""},
		{"a node instead of it", "PATCH", "/v1/tool-grants/{grant}", `{"node_id": "{node}", "agent_id": null}`, 200, "", `"agent_id":null,"node_id":"{node}"`, "tool_grant.update"},
		{"pin a connection", "PATCH", "/v1/tool-grants/{grant}", `{"connection_id": "{connection}"}`, 200, "", `"connection_id":"{connection}"`, "tool_grant.update"},
		{"pin an unknown connection", "PATCH", "/v1/tool-grants/{grant}", `{"connection_id": "{unknown}"}`, 400, "VALIDATION", "connection_id: the tool server has no such connection", ""},
		{"an unknown agent in a patch", "PATCH", "/v1/tool-grants/{grant}", `{"agent_id": "{unknown}", "node_id": null}`, 400, "VALIDATION", "agent_id: there is no such agent", ""},
		{"an unknown node in a patch", "PATCH", "/v1/tool-grants/{grant}", `{"node_id": "{unknown}"}`, 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"a bad pattern in a patch", "PATCH", "/v1/tool-grants/{grant}", `{"tool_pattern": "a*"}`, 400, "VALIDATION", "tool_pattern: must be a tool pattern", ""},
		{"a grant keeps its source", "PATCH", "/v1/tool-grants/{grant}", `{"source": "builtin"}`, 400, "VALIDATION", "source", ""},
		{"and its server", "PATCH", "/v1/tool-grants/{grant}", `{"mcp_server_id": "{keyed}"}`, 400, "VALIDATION", "mcp_server_id", ""},
		{"a skill's grant is changed with the skill", "PATCH", "/v1/tool-grants/{skillgrant}", `{"effect": "deny"}`, 400, "VALIDATION", "source: grants of browser skills", ""},
		{"change an unknown grant", "PATCH", "/v1/tool-grants/{unknown}", `{"effect": "deny"}`, 404, "NOT_FOUND", "tool grant", ""},
		{"take a grant back", "DELETE", "/v1/tool-grants/{skillgrant}", "", 204, "", "", "tool_grant.delete"},
		{"take it back again", "DELETE", "/v1/tool-grants/{skillgrant}", "", 404, "NOT_FOUND", "tool grant", ""},

		// Approval policy.
		{"list policies", "GET", "/v1/approval-policies", "", 200, "", `{"items":[{"id":"{policy}"`, ""},
		{"a policy's defaults", "GET", "/v1/approval-policies/{policy}", "", 200, "", `{"id":"{policy}","name":"Policy","tool_pattern":"orders.*","source":null,"agent_id":null,"risk":"medium","required_approvals":1,"approver_role":"admin","sla_minutes":1440,"escalate_to_role":null,"enabled":true`, ""},
		{"read an unknown policy", "GET", "/v1/approval-policies/{unknown}", "", 404, "NOT_FOUND", "approval policy", ""},
		{"make a policy with every field", "POST", "/v1/approval-policies", `{"name": "All", "tool_pattern": "builtin:kb.search", "source": "builtin", "agent_id": "{agent}", "risk": "critical", "required_approvals": 5, "approver_role": "manager", "sla_minutes": 0.5, "escalate_to_role": "owner", "enabled": false}`,
			201, "", `"name":"All","tool_pattern":"builtin:kb.search","source":"builtin","agent_id":"{agent}","risk":"critical","required_approvals":5,"approver_role":"manager","sla_minutes":0.5,"escalate_to_role":"owner","enabled":false`, "approval_policy.create"},
		{"nulls are nothing", "POST", "/v1/approval-policies", policy(`, "source": null, "agent_id": null, "escalate_to_role": null`), 201, "", `"source":null,"agent_id":null,"risk":"medium"`, "approval_policy.create"},
		{"reserved sources are stored", "POST", "/v1/approval-policies", policy(`, "source": "a2a"`), 201, "", `"source":"a2a"`, "approval_policy.create"},
		{"a policy names no browser skill source", "POST", "/v1/approval-policies", policy(`, "source": "browser_skill"`), 400, "VALIDATION", "source", ""},
		{"but may name a skill's tool", "POST", "/v1/approval-policies", `{"name": "P", "tool_pattern": "browser_skill:claim.run"}`, 201, "", `"tool_pattern":"browser_skill:claim.run"`, "approval_policy.create"},
		{"a policy needs a name", "POST", "/v1/approval-policies", `{"tool_pattern": "*"}`, 400, "VALIDATION", "name: is required", ""},
		{"of 1", "POST", "/v1/approval-policies", `{"tool_pattern": "*", "name": ""}`, 400, "VALIDATION", "name", ""},
		{"to 120", "POST", "/v1/approval-policies", `{"tool_pattern": "*", "name": "` + x(120) + `"}`, 201, "", "", "approval_policy.create"},
		{"and no more", "POST", "/v1/approval-policies", `{"tool_pattern": "*", "name": "` + x(121) + `"}`, 400, "VALIDATION", "name", ""},
		{"a policy needs a pattern", "POST", "/v1/approval-policies", `{"name": "P"}`, 400, "VALIDATION", "tool_pattern: is required", ""},
		{"a policy's pattern of 200", "POST", "/v1/approval-policies", `{"name": "P", "tool_pattern": "` + x(200) + `"}`, 201, "", "", "approval_policy.create"},
		{"a policy's pattern of 201", "POST", "/v1/approval-policies", `{"name": "P", "tool_pattern": "` + x(201) + `"}`, 400, "VALIDATION", "tool_pattern", ""},
		{"a policy's bad pattern", "POST", "/v1/approval-policies", `{"name": "P", "tool_pattern": "a*"}`, 400, "VALIDATION", "tool_pattern: must be a tool pattern", ""},
		{"an unknown risk", "POST", "/v1/approval-policies", policy(`, "risk": "none"`), 400, "VALIDATION", "risk", ""},
		{"no approval is too few", "POST", "/v1/approval-policies", policy(`, "required_approvals": 0`), 400, "VALIDATION", "required_approvals", ""},
		{"six are too many", "POST", "/v1/approval-policies", policy(`, "required_approvals": 6`), 400, "VALIDATION", "required_approvals", ""},
		{"half of one is none", "POST", "/v1/approval-policies", policy(`, "required_approvals": 1.5`), 400, "VALIDATION", "required_approvals", ""},
		{"an unknown approver", "POST", "/v1/approval-policies", policy(`, "approver_role": "root"`), 400, "VALIDATION", "approver_role", ""},
		{"a member may approve", "POST", "/v1/approval-policies", policy(`, "approver_role": "member"`), 201, "", `"approver_role":"member"`, "approval_policy.create"},
		{"no time", "POST", "/v1/approval-policies", policy(`, "sla_minutes": 0`), 400, "VALIDATION", "sla_minutes", ""},
		{"time below nothing", "POST", "/v1/approval-policies", policy(`, "sla_minutes": -1`), 400, "VALIDATION", "sla_minutes", ""},
		{"a second", "POST", "/v1/approval-policies", policy(`, "sla_minutes": 0.0166`), 201, "", `"sla_minutes":0.0166`, "approval_policy.create"},
		{"a year", "POST", "/v1/approval-policies", policy(`, "sla_minutes": 525600`), 201, "", `"sla_minutes":525600`, "approval_policy.create"},
		{"more than a year", "POST", "/v1/approval-policies", policy(`, "sla_minutes": 525600.01`), 400, "VALIDATION", "sla_minutes", ""},
		{"an unknown role to escalate to", "POST", "/v1/approval-policies", policy(`, "escalate_to_role": "root"`), 400, "VALIDATION", "escalate_to_role", ""},
		{"a policy for an unknown agent", "POST", "/v1/approval-policies", policy(`, "agent_id": "{unknown}"`), 400, "VALIDATION", "agent_id: there is no such agent", ""},
		{"a policy has no node", "POST", "/v1/approval-policies", policy(`, "node_id": "{node}"`), 400, "VALIDATION", "node_id", ""},
		{"change a policy", "PATCH", "/v1/approval-policies/{policy}", `{"name": "N", "tool_pattern": "*", "source": "mcp", "agent_id": "{agent}", "risk": "low", "required_approvals": 2, "approver_role": "owner", "sla_minutes": 1.5, "escalate_to_role": "owner", "enabled": false}`,
			200, "", `"name":"N","tool_pattern":"*","source":"mcp","agent_id":"{agent}","risk":"low","required_approvals":2,"approver_role":"owner","sla_minutes":1.5,"escalate_to_role":"owner","enabled":false`, "approval_policy.update"},
		{"a patch leaves the rest of a policy", "PATCH", "/v1/approval-policies/{policy}", `{"enabled": true}`, 200, "", `"name":"N","tool_pattern":"*","source":"mcp","agent_id":"{agent}","risk":"low","required_approvals":2,"approver_role":"owner","sla_minutes":1.5,"escalate_to_role":"owner","enabled":true`, "approval_policy.update"},
		{"null takes away", "PATCH", "/v1/approval-policies/{policy}", `{"source": null, "agent_id": null, "escalate_to_role": null}`, 200, "", `"source":null,"agent_id":null,"risk":"low","required_approvals":2,"approver_role":"owner","sla_minutes":1.5,"escalate_to_role":null`, "approval_policy.update"},
		{"six in a patch", "PATCH", "/v1/approval-policies/{policy}", `{"required_approvals": 6}`, 400, "VALIDATION", "required_approvals", ""},
		{"no time in a patch", "PATCH", "/v1/approval-policies/{policy}", `{"sla_minutes": 0}`, 400, "VALIDATION", "sla_minutes", ""},
		{"a skill's source in a patch", "PATCH", "/v1/approval-policies/{policy}", `{"source": "browser_skill"}`, 400, "VALIDATION", "source", ""},
		{"an unknown role in a patch", "PATCH", "/v1/approval-policies/{policy}", `{"escalate_to_role": "root"}`, 400, "VALIDATION", "escalate_to_role", ""},
		{"a bad pattern in a policy's patch", "PATCH", "/v1/approval-policies/{policy}", `{"tool_pattern": "**"}`, 400, "VALIDATION", "tool_pattern: must be a tool pattern", ""},
		{"an unknown agent in a policy's patch", "PATCH", "/v1/approval-policies/{policy}", `{"agent_id": "{unknown}"}`, 400, "VALIDATION", "agent_id: there is no such agent", ""},
		{"change an unknown policy", "PATCH", "/v1/approval-policies/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "approval policy", ""},
		{"remove a policy", "DELETE", "/v1/approval-policies/{policy}", "", 204, "", "", "approval_policy.delete"},
		{"remove a policy again", "DELETE", "/v1/approval-policies/{policy}", "", 404, "NOT_FOUND", "approval policy", ""},

		// What agents may call.
		{"what an agent may call", "GET", "/v1/agents/{agent}/tools", "", 200, "", `{"items":[{"tool":"orders.orders.read","source":"mcp","description":"Reads.","input_schema":{"type":"object","required":["id"]}},` +
			`{"tool":"builtin:kb.search","source":"builtin","description":"","input_schema":{"type":"object"},"gated_by":{"id":null,"name":"rule","kind":"manifest"}}]}`, ""},
		{"what an unknown agent may call", "GET", "/v1/agents/{unknown}/tools", "", 404, "NOT_FOUND", "agent", ""},
		{"explain a tool", "GET", "/v1/agents/{agent}/tools/explain?tool=orders.refund", "", 200, "", `{"tool":"orders.refund","verdict":"deny","why":"No tool has this name.","steps":[],"grant_id":null,"connection_id":null,"approval":null}`, ""},
		{"explain nothing", "GET", "/v1/agents/{agent}/tools/explain", "", 400, "VALIDATION", "tool: is required", ""},
		{"explain an empty name", "GET", "/v1/agents/{agent}/tools/explain?tool=", "", 400, "VALIDATION", "tool", ""},
		{"explain a name of 300", "GET", "/v1/agents/{agent}/tools/explain?tool=" + x(300), "", 200, "", "", ""},
		{"explain a name of 301", "GET", "/v1/agents/{agent}/tools/explain?tool=" + x(301), "", 400, "VALIDATION", "tool", ""},
		{"explain for an unknown agent", "GET", "/v1/agents/{unknown}/tools/explain?tool=x", "", 404, "NOT_FOUND", "agent", ""},

		// Agents on org nodes.
		{"an agent on a node", "POST", "/v1/agents", `{"name": "x", "node_id": "{node}"}`, 201, "", `"node_id":"{node}"`, "agent.create"},
		{"put an agent on a node", "PATCH", "/v1/agents/{draft}", `{"node_id": "{node}"}`, 200, "", `"node_id":"{node}"`, "agent.update"},
		{"a patch leaves it there", "PATCH", "/v1/agents/{draft}", `{"name": "y"}`, 200, "", `"node_id":"{node}"`, "agent.update"},
		{"take it off", "PATCH", "/v1/agents/{draft}", `{"node_id": null}`, 200, "", `"node_id":null`, "agent.update"},

		// Objects that are deleted with an agent or a server.
		{"archive an agent that has grants", "DELETE", "/v1/agents/{agent}", "", 204, "", "", "agent.delete embed_key.revoke trigger.update trigger.update"},
		{"an archived agent is none", "POST", "/v1/tool-grants", mcp(`, "tool_pattern": "*", "agent_id": "{agent}"`), 400, "VALIDATION", "agent_id: there is no such agent", ""},
		{"what an archived agent may call", "GET", "/v1/agents/{agent}/tools", "", 404, "NOT_FOUND", "agent", ""},
		{"remove a tool server", "DELETE", "/v1/mcp-servers/{server}", "", 204, "", "", "mcp_server.delete"},
		{"its connections are gone", "GET", "/v1/connections/{connection}", "", 404, "NOT_FOUND", "", ""},
		{"its grants are gone", "GET", "/v1/tool-grants/{grant}", "", 404, "NOT_FOUND", "", ""},
		{"it is gone", "DELETE", "/v1/mcp-servers/{server}", "", 404, "NOT_FOUND", "tool server", ""},
		{"its slug is free", "POST", "/v1/mcp-servers", server(`"slug": "orders-2"`), 201, "", "", "mcp_server.create"},
	}
	for i := range rows {
		rows[i].path, rows[i].body, rows[i].has = fill.Replace(rows[i].path), fill.Replace(rows[i].body), fill.Replace(rows[i].has)
	}
	w.tools.with(func(f *tools) {
		f.specs = []tool.Spec{{Source: tool.MCP, Owner: "orders", Name: "orders.read", Description: "Reads."}, {Source: tool.MCP, Owner: "orders", Name: "orders.refund"}}
		f.offers = []tool.Offer{
			{Spec: tool.Spec{Source: tool.MCP, Owner: "orders", Name: "orders.read", Description: "Reads.", Schema: json.RawMessage(`{"type":"object","required":["id"]}`)}, Resolution: tool.Resolution{Verdict: tool.Callable}},
			{Spec: tool.Spec{Source: tool.Builtin, Name: "kb.search"}, Resolution: tool.Resolution{Verdict: tool.Gated, Terms: &tool.Terms{Policy: tool.PolicyRef{Name: "rule", Kind: tool.KindManifest}}}},
			{Spec: tool.Spec{Source: tool.MCP, Owner: "orders", Name: "orders.refund"}, Resolution: tool.Resolution{Verdict: tool.Refused}},
		}
	})
	w.routes(base, rows, "hidden-")
}

// Of two changes of one tool server at the same time neither is lost, and what they make together
// was checked.
func TestConcurrentChangesOfAToolServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		patch  string
		others []string // one is made while the endpoint of the patch is checked
		status int
		code   string
		last   string // what was checked last
		server string
	}{
		"both last": {`{"auth_kind": "api_key"}`, []string{`{"endpoint": "https://moved.example/mcp"}`}, 200, "", "http api_key https://moved.example/mcp",
			`"transport":"http","endpoint":"https://moved.example/mcp","auth_kind":"api_key"`},
		"the same values again": {`{"auth_kind": "api_key"}`, []string{`{"endpoint": "https://t.example/mcp"}`}, 200, "", "http bearer https://t.example/mcp",
			`"transport":"http","endpoint":"https://t.example/mcp","auth_kind":"api_key"`},
		"together they are refused": {`{"auth_kind": "api_key"}`, []string{`{"transport": "stdio", "endpoint": "allowed", "auth_kind": "none"}`}, 400, "VALIDATION", "stdio api_key allowed",
			`"transport":"stdio","endpoint":"allowed","auth_kind":"none"`},
		"another field is changed": {`{"auth_kind": "api_key"}`, []string{`{"name": "Renamed"}`}, 200, "", "http api_key https://t.example/mcp",
			`"name":"Renamed","transport":"http","endpoint":"https://t.example/mcp","auth_kind":"api_key"`},
		"others go on and on": {`{"auth_kind": "api_key"}`, []string{`{"endpoint": "https://1.example"}`, `{"endpoint": "https://2.example"}`, `{"endpoint": "https://3.example"}`, `{"endpoint": "https://4.example"}`},
			503, "UNAVAILABLE", "http bearer https://3.example", `"transport":"http","endpoint":"https://3.example","auth_kind":"bearer"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			path := "/v1/mcp-servers/" + w.a.server.String()
			others := make(chan string, len(c.others))
			for _, o := range c.others {
				others <- o
			}
			var inside atomic.Bool
			w.tools.with(func(f *tools) {
				f.meanwhile = func() {
					if len(others) == 0 || !inside.CompareAndSwap(false, true) {
						return
					}
					defer inside.Store(false)
					if got := w.call(w.a, "PATCH", path, <-others); got.status != 200 {
						t.Errorf("the other change: %d %s", got.status, got.body)
					}
				}
			})
			got := w.call(w.a, "PATCH", path, c.patch)
			if got.status != c.status || c.code != "" && got.code() != c.code || c.status == 503 && got.header.Get("Retry-After") != "1" {
				t.Errorf("%d %s", got.status, got.body)
			}
			if server := w.call(w.a, "GET", path, ""); !strings.Contains(server.body, c.server) {
				t.Errorf("the server is %s", server.body)
			}
			w.tools.with(func(f *tools) {
				if f.checked[len(f.checked)-1] != c.last {
					t.Errorf("checked %q", f.checked)
				}
			})
		})
	}
}

// skillGrant creates a grant as the routes of browser skills do.
func (w *world) skillGrant(p party) error {
	_, err := w.admin.Exec(w.t.Context(), `INSERT INTO tool_grants (tenant_id, id, source, browser_skill_id, tool_pattern, effect) VALUES ($1, $2, 'browser_skill', $3, 'browser_skill:x.run', 'allow')`,
		p.tenant, id.NewAnywhere(), p.skill)
	return err
}

// security.md, invariant 16: foreign ids in a body are answered like unknown ones.
func TestForeignIDsInBodiesAnswerLikeRandomOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := w.b.fill()
	for _, c := range []struct{ method, path, body, of string }{
		{"POST", "/v1/agents", `{"name": "x", "node_id": "?"}`, w.a.node.String()},
		{"PATCH", "/v1/agents/{agent}", `{"node_id": "?"}`, w.a.node.String()},
		{"POST", "/v1/mcp-servers/{server}/test", `{"connection_id": "?"}`, w.a.connection.String()},
		{"POST", "/v1/connections", `{"mcp_server_id": "?", "name": "x", "credentials": {"token": "t"}}`, w.a.server.String()},
		{"POST", "/v1/connections", `{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "t"}, "node_id": "?"}`, w.a.node.String()},
		{"PATCH", "/v1/connections/{connection}", `{"node_id": "?"}`, w.a.node.String()},
		{"POST", "/v1/tool-grants", `{"source": "mcp", "mcp_server_id": "?", "tool_pattern": "*", "effect": "allow"}`, w.a.server.String()},
		{"POST", "/v1/tool-grants", `{"source": "mcp", "mcp_server_id": "{server}", "tool_pattern": "*", "effect": "allow", "connection_id": "?"}`, w.a.connection.String()},
		{"POST", "/v1/tool-grants", `{"source": "builtin", "tool_pattern": "*", "effect": "allow", "agent_id": "?"}`, w.a.agent.String()},
		{"POST", "/v1/tool-grants", `{"source": "builtin", "tool_pattern": "*", "effect": "allow", "node_id": "?"}`, w.a.node.String()},
		{"PATCH", "/v1/tool-grants/{grant}", `{"connection_id": "?"}`, w.a.connection.String()},
		{"PATCH", "/v1/tool-grants/{grant}", `{"agent_id": "?"}`, w.a.agent.String()},
		{"PATCH", "/v1/tool-grants/{grant}", `{"node_id": "?"}`, w.a.node.String()},
		{"POST", "/v1/approval-policies", `{"name": "x", "tool_pattern": "*", "agent_id": "?"}`, w.a.agent.String()},
		{"PATCH", "/v1/approval-policies/{policy}", `{"agent_id": "?"}`, w.a.agent.String()},
	} {
		path, body := own.Replace(c.path), own.Replace(c.body)
		theirs := w.call(w.b, c.method, path, strings.ReplaceAll(body, "?", c.of))
		unknowns := w.call(w.b, c.method, path, strings.ReplaceAll(body, "?", id.NewAnywhere().String()))
		if theirs.status < 400 || theirs.status >= 500 || theirs.status != unknowns.status || theirs.body != unknowns.body {
			t.Errorf("%s %s %s: foreign %d %s\nrandom %d %s", c.method, c.path, c.body, theirs.status, theirs.body, unknowns.status, unknowns.body)
		}
	}
	for _, list := range []string{"/v1/mcp-servers", "/v1/connections", "/v1/tool-grants", "/v1/approval-policies"} {
		got := w.call(w.b, "GET", list, "")
		if items, ok := got.get("items").([]any); !ok || len(items) != 1 {
			t.Errorf("%s: %s", list, got.body)
		}
		for _, theirs := range []string{w.a.server.String(), w.a.connection.String(), w.a.grant.String(), w.a.policy.String()} {
			if strings.Contains(got.body, theirs) {
				t.Errorf("%s shows another tenant's %s", list, theirs)
			}
		}
	}
}

// service.md, Connection: whatever is done with a credential, no response, row or log line
// contains it.
func TestACredentialIsNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	for _, c := range [][3]string{
		{"POST", "/v1/connections", `{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "` + hidden + `"}}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "` + hidden + `"}}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": {"api_key": "` + hidden + `"}}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "` + hidden + `\n"}}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": "` + hidden + `"}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": ["` + hidden + `"]}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "` + hidden + `", "token": "` + hidden + `"}}`},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "` + hidden},
		{"PATCH", "/v1/connections/{connection}", `{"name": 1, "credentials": {"token": "` + hidden + `"}}`},
		{"POST", "/v1/mcp-servers/{server}/test", `{}`},
		{"GET", "/v1/connections", ""},
		{"GET", "/v1/connections/{connection}", ""},
		{"DELETE", "/v1/connections/{connection}", ""},
		{"DELETE", "/v1/mcp-servers/{server}", ""},
	} {
		for _, header := range [][]string{nil, {"Idempotency-Key", "k"}} {
			if got := w.call(w.a, c[0], fill.Replace(c[1]), fill.Replace(c[2]), header...); strings.Contains(got.body, hidden) || strings.Contains(fmt.Sprint(got.header), hidden) {
				t.Errorf("%s %s %s: %s", c[0], c[1], c[2], got.body)
			}
		}
		w.nowhere(hidden)
	}
	// A failure of the storage is logged with its cause.
	_, err := w.db.Admin(t).Exec(t.Context(), "ALTER TABLE connections ADD CONSTRAINT broken CHECK (name <> 'broken')")
	w.must(err)
	if got := w.call(w.b, "POST", "/v1/connections", w.b.fill().Replace(`{"mcp_server_id": "{server}", "name": "broken", "credentials": {"token": "`+hidden+`"}, "credential_meta": {"a": 1}}`)); got.status != 500 {
		t.Fatal(got)
	}
	if !strings.Contains(w.logs.String(), "broken") {
		t.Error("the fault is not logged: the test proves nothing")
	}
	w.nowhere(hidden)
}

// nowhere fails the test if a secret is in a row of any table, or in the log.
func (w *world) nowhere(secret string) {
	w.t.Helper()
	admin := w.db.Admin(w.t)
	rows, err := admin.Query(w.t.Context(), "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
	w.must(err)
	var tables []string
	for rows.Next() {
		var name string
		w.must(rows.Scan(&name))
		tables = append(tables, name)
	}
	w.must(rows.Err())
	if len(tables) < 10 {
		w.t.Fatalf("only %v are searched: the test proves nothing", tables)
	}
	for _, table := range tables {
		var n int
		w.must(admin.QueryRow(w.t.Context(), `SELECT count(*)::int FROM "`+table+`" x WHERE position($1 in x::text) > 0 OR position(encode(convert_to($1, 'UTF8'), 'hex') in x::text) > 0`, secret).Scan(&n))
		if n > 0 {
			w.t.Errorf("%d rows of %s hold the secret", n, table)
		}
	}
	if strings.Contains(w.logs.String(), secret) {
		w.t.Error("the log holds the secret")
	}
}

// open-parts.md: a repeat gets the whole first response and has no second effect.
func TestRepeatsOfToolRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.with(func(f *tools) { f.specs = []tool.Spec{{Source: tool.MCP, Name: "a.b"}} })
	fill := w.a.fill()
	for _, c := range []struct {
		path, body, other string
		status            int
	}{
		{"/v1/mcp-servers", `{"slug": "once", "name": "x", "transport": "http", "endpoint": "https://o.example", "auth_kind": "none"}`, `{"slug": "twice", "name": "x", "transport": "http", "endpoint": "https://o.example", "auth_kind": "none"}`, 201},
		{"/v1/connections", `{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "t"}}`, `{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "u"}}`, 201},
		{"/v1/tool-grants", `{"source": "builtin", "tool_pattern": "*", "effect": "allow"}`, `{"source": "builtin", "tool_pattern": "*", "effect": "deny"}`, 201},
		{"/v1/approval-policies", `{"name": "x", "tool_pattern": "*"}`, `{"name": "y", "tool_pattern": "*"}`, 201},
		{"/v1/mcp-servers/{server}/test", `{}`, `{"connection_id": "{connection}"}`, 200},
	} {
		path, body, other := fill.Replace(c.path), fill.Replace(c.body), fill.Replace(c.other)
		first := w.call(w.a, "POST", path, body, "Idempotency-Key", "one")
		before := w.audited(w.a.tenant)
		again := w.call(w.a, "POST", path, body, "Idempotency-Key", "one")
		if first.status != c.status || again.status != c.status || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %d %s\nagain: %d %s", path, first.status, first.body, again.status, again.body)
		}
		if fmt.Sprint(w.audited(w.a.tenant)) != fmt.Sprint(before) {
			t.Errorf("%s: the repeat changed something", path)
		}
		if got := w.call(w.a, "POST", path, other, "Idempotency-Key", "one"); got.code() != "IDEMPOTENCY_CONFLICT" {
			t.Errorf("%s with another body: %d %s", path, got.status, got.body)
		}
	}
	if n := len(w.tools.tested); n != 1 {
		t.Errorf("the server was tested %d times", n)
	}
	// Only 2xx responses are kept: a failed test is tried again.
	w.tools.with(func(f *tools) {
		f.fail = &problem.Error{Code: problem.CodeMCPUnreachable, Extensions: map[string]any{"errors": []string{"dial: refused"}}}
	})
	path := fill.Replace("/v1/mcp-servers/{server}/test")
	if got := w.call(w.a, "POST", path, "", "Idempotency-Key", "two"); got.status != 502 || got.get("errors.0") != "dial: refused" || got.code() != "MCP_UNREACHABLE" {
		t.Errorf("%d %s", got.status, got.body)
	}
	w.tools.with(func(f *tools) { f.fail = nil })
	if got := w.call(w.a, "POST", path, "", "Idempotency-Key", "two"); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// open-parts.md, Questions settled: the sections of tools are for admins, and so is what names
// their entries; every role may read what an agent may call.
func TestToolsAreForAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	seen := 0
	for _, r := range w.table.Routes() {
		var section string
		for _, prefix := range []string{"/v1/mcp-servers", "/v1/connections", "/v1/tool-grants", "/v1/approval-policies"} {
			if strings.HasPrefix(r.Path, prefix) {
				section = prefix
			}
		}
		if section == "" {
			continue
		}
		seen++
		path := strings.ReplaceAll(r.Path, "{id}", id.NewAnywhere().String())
		if got := w.person("member", r.Method, path, "{}"); got.status != 403 || got.code() != "FORBIDDEN" {
			t.Errorf("%s %s as a member: %d %s", r.Method, r.Path, got.status, got.body)
		}
	}
	if seen != 21 {
		t.Errorf("%d routes were tried", seen)
	}
	for path, want := range map[string]int{"/v1/agents/{agent}/tools": 200, "/v1/agents/{agent}/tools/explain?tool=x": 403} {
		if got := w.person("member", "GET", fill.Replace(path), ""); got.status != want {
			t.Errorf("%s as a member: %d %s", path, got.status, got.body)
		}
	}
	if got := w.person("owner", "POST", "/v1/approval-policies", `{"name": "x", "tool_pattern": "*"}`); got.status != 201 {
		t.Errorf("as an owner: %d %s", got.status, got.body)
	}
}

// Every change of a server or a credential drops the cached state before it is answered.
func TestChangesDropTheGatewaysCache(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	for _, c := range []struct {
		method, path, body string
		status             int
		forgets            bool
	}{
		{"PATCH", "/v1/mcp-servers/{server}", `{"name": "x"}`, 200, true},
		{"POST", "/v1/connections", `{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "t"}}`, 201, true},
		{"PATCH", "/v1/connections/{connection}", `{"credentials": {"token": "t"}}`, 200, true},
		{"PATCH", "/v1/tool-grants/{grant}", `{"connection_id": null}`, 200, false},
		{"GET", "/v1/mcp-servers/{server}", "", 200, false},
		{"POST", "/v1/mcp-servers/{server}/test", "", 200, false},
		{"DELETE", "/v1/connections/{connection}", "", 204, true},
		{"DELETE", "/v1/mcp-servers/{server}", "", 204, true},
	} {
		if got := w.call(w.a, c.method, fill.Replace(c.path), fill.Replace(c.body)); got.status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, got.status, got.body)
		}
		if got := w.tools.forgot(); slices.Contains(got, w.a.server) != c.forgets {
			t.Errorf("%s %s: forgot %v", c.method, c.path, got)
		}
	}
}

// open-parts.md, Tools: the test route uses the newest tenant-wide connection.
func TestTheConnectionOfATest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	path := fill.Replace("/v1/mcp-servers/{server}/test")
	last := func() *id.ConnectionID { return w.tools.tested[len(w.tools.tested)-1] }
	test := func(want *id.ConnectionID, body string) {
		t.Helper()
		if got := w.call(w.a, "POST", path, body); got.status != 200 {
			t.Fatal(got)
		}
		if got := last(); (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("tested with %v, want %v", got, want)
		}
	}
	add := func(more string) *id.ConnectionID {
		t.Helper()
		got := w.call(w.a, "POST", "/v1/connections", fill.Replace(`{"mcp_server_id": "{server}", "name": "x", "credentials": {"token": "t"}`+more+`}`))
		text, _ := got.get("id").(string)
		u, err := id.Parse(text)
		w.must(err)
		return &id.ConnectionID{UUID: u}
	}
	test(&w.a.connection, "")
	newer := add("")
	test(newer, "{}")
	onNode := add(fill.Replace(`, "node_id": "{node}"`))
	test(newer, "{}")
	test(onNode, `{"connection_id": "`+onNode.String()+`"}`)
	test(newer, `{"connection_id": null}`)
	// With auth kind none no connection is used.
	if got := w.call(w.a, "PATCH", fill.Replace("/v1/mcp-servers/{server}"), `{"auth_kind": "none"}`); got.status != 200 {
		t.Fatal(got)
	}
	test(nil, "")
}

// open-parts.md, Tools: an unknown token in the tools of a turn.
func TestUnknownTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := "/v1/threads/" + w.a.thread.String() + "/messages"
	asked := func() int { return len(w.tools.asked) }
	for _, c := range []struct {
		name, body string
		status     int
		code       string
		asks       int
	}{
		{"no tools named", `{"content": "x"}`, 202, "", 0},
		{"none wanted", `{"content": "x", "tools": []}`, 202, "", 0},
		{"known ones", `{"content": "x", "tools": ["kb.search", "*"]}`, 202, "", 1},
		{"one of several is unknown", `{"content": "x", "tools": ["kb.search", "orders.refund", "x"]}`, 400, "UNKNOWN_TOOL", 1},
		{"validation goes first", `{"content": "", "tools": ["orders.refund"]}`, 400, "VALIDATION", 0},
		{"100 tokens", `{"content": "x", "tools": ["*"` + strings.Repeat(`,"*"`, 99) + `]}`, 202, "", 1},
		{"101 tokens", `{"content": "x", "tools": ["*"` + strings.Repeat(`,"*"`, 100) + `]}`, 400, "VALIDATION", 0},
	} {
		before := asked()
		got := w.call(w.a, "POST", path, c.body)
		if got.status != c.status || got.code() != c.code {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
		if c.code == "UNKNOWN_TOOL" && !strings.Contains(got.body, "orders.refund") {
			t.Errorf("%s: the token is not named: %s", c.name, got.body)
		}
		if n := asked() - before; n != c.asks {
			t.Errorf("%s: the gateway was asked %d times", c.name, n)
		}
	}
	w.tools.with(func(f *tools) { f.fail = store.ErrUnavailable })
	if got := w.call(w.a, "POST", path, `{"content": "x", "tools": ["*"]}`); got.status != 503 {
		t.Errorf("without storage: %d %s", got.status, got.body)
	}
	posts := 0
	for _, o := range w.actors.orders() {
		if _, ok := o.(msg.Post); ok {
			posts++
		}
	}
	if posts != 4 {
		t.Errorf("%d messages were posted", posts)
	}
}

func TestPagesOfTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	for i := range 4 {
		for path, body := range map[string]string{
			"/v1/mcp-servers":       `{"slug": "p%[1]d", "name": "page %[1]d", "transport": "http", "endpoint": "https://o.example", "auth_kind": "none"}`,
			"/v1/connections":       `{"mcp_server_id": "{server}", "name": "page %[1]d", "credentials": {"token": "t"}}`,
			"/v1/tool-grants":       `{"source": "builtin", "tool_pattern": "page%[1]d", "effect": "allow"}`,
			"/v1/approval-policies": `{"name": "page %[1]d", "tool_pattern": "*"}`,
		} {
			if got := w.call(w.a, "POST", path, fmt.Sprintf(fill.Replace(body), i)); got.status != 201 {
				t.Fatal(got)
			}
		}
	}
	for path, want := range map[string][]string{
		"/v1/mcp-servers":       {"page 3", "page 2", "page 1", "page 0", "Orders"},
		"/v1/connections":       {"page 3", "page 2", "page 1", "page 0", "Account"},
		"/v1/tool-grants":       {"page3", "page2", "page1", "page0", "*"},
		"/v1/approval-policies": {"page 3", "page 2", "page 1", "page 0", "Policy"},
	} {
		field := "name"
		if path == "/v1/tool-grants" {
			field = "tool_pattern"
		}
		var got []string
		cursor := ""
		for range 9 {
			a := w.call(w.a, "GET", path+"?limit=2&cursor="+cursor, "")
			items, ok := a.get("items").([]any)
			if !ok || len(items) > 2 {
				t.Fatalf("%s: %s", path, a.body)
			}
			for _, it := range items {
				got = append(got, it.(map[string]any)[field].(string))
			}
			next, more := a.get("next_cursor").(string)
			if !more {
				break
			}
			cursor = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
		if got := w.call(w.a, "GET", "/v1/threads?cursor="+cursor, ""); got.code() != "VALIDATION" {
			t.Errorf("a cursor of %s pages threads: %d", path, got.status)
		}
	}
}

// An explanation gives every reason for the decision on a tool.
func TestExplanations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.with(func(f *tools) {
		f.explained = &tool.Explanation{Tool: "orders.refund", Source: tool.MCP, Verdict: tool.Gated, Why: "because",
			Steps:   []tool.ExplainedStep{{What: "grant", ID: w.a.grant.String(), Pattern: "*", Matched: true, Decided: true, Note: "allow"}},
			GrantID: &w.a.grant, Connection: &w.a.connection,
			Approval: &tool.Terms{Risk: lifecycle.RiskHigh, Required: 2, Role: lifecycle.RoleManager, SLAMinutes: 0.5, Escalate: lifecycle.RoleOwner, OnTimeout: "reject",
				Policy: tool.PolicyRef{ID: &w.a.policy, Name: "Policy", Kind: tool.KindPolicy}}}
	})
	got := w.call(w.a, "GET", "/v1/agents/"+w.a.agent.String()+"/tools/explain?tool=orders.refund", "")
	want, err := json.Marshal(w.tools.explained)
	w.must(err)
	if got.status != 200 || got.body != string(want) {
		t.Errorf("%d %s\nwant %s", got.status, got.body, want)
	}
	if err := newDocument(t).conforms("GET", "/v1/agents/"+w.a.agent.String()+"/tools/explain", got); err != nil {
		t.Error(err)
	}
	w.tools.with(func(f *tools) { f.fail = store.ErrUnavailable })
	for _, path := range []string{"/tools", "/tools/explain?tool=x"} {
		if got := w.call(w.a, "GET", "/v1/agents/"+w.a.agent.String()+path, ""); got.status != 503 {
			t.Errorf("%s without storage: %d %s", path, got.status, got.body)
		}
	}
}
