package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/transport/model/fake"
)

// Shared parts of the tests of tools and approvals: tool servers of tenants, scripted models, agents between them,
// and checks of their visible state.

// The tools that a toolHost lists by default.
const (
	lookupTool = `{"name":"orders.lookup","description":"Look up one order.","inputSchema":{"type":"object","required":["id"],"properties":{"id":{"type":"integer"}},"additionalProperties":false},"annotations":{"readOnlyHint":true}}`
	refundTool = `{"name":"orders.refund","description":"Pay money back.","inputSchema":{"type":"object","required":["id","amount"],"properties":{"id":{"type":"integer"},"amount":{"type":"number","maximum":100},"password":{"type":"string"},"note":{"type":"string"},"idempotency_key":{"type":"string"}},"additionalProperties":false}}`
	deleteTool = `{"name":"admin.delete","description":"Delete everything.","inputSchema":{"type":"object"}}`
)

// toolHost is a tool server that a test controls.
type toolHost struct {
	*httptest.Server

	mu     sync.Mutex // guards the fields below
	header string     // that must carry the credential; empty: none is required
	value  string
	tools  []string
	list   func(w http.ResponseWriter, r *http.Request, m rpc) // nil lists tools
	call   func(w http.ResponseWriter, r *http.Request, m rpc) // nil echoes the arguments
	calls  []hostCall
	heads  []http.Header // of every request

	sessions bool // it issues session ids
}

// rpc is a request to a toolHost.
type rpc struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"params"`
}

// hostCall is a tools/call to a toolHost with the required credential.
type hostCall struct {
	tool string
	args string
	head http.Header
}

func newToolHost(t *testing.T) *toolHost {
	t.Helper()
	h := &toolHost{tools: []string{lookupTool, refundTool, deleteTool}}
	l, err := net.Listen("tcp", reserved(t)) // no other process listens there after it is closed
	if err != nil {
		t.Fatal(err)
	}
	h.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	h.Start()
	t.Cleanup(h.Server.Close)
	return h
}

func (h *toolHost) set(change func(*toolHost)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// wants makes the host require a credential.
func (h *toolHost) wants(auth, secret string) {
	h.set(func(h *toolHost) {
		switch auth {
		case "none":
			h.header, h.value = "", ""
		case "api_key":
			h.header, h.value = "X-Api-Key", secret
		default:
			h.header, h.value = "Authorization", "Bearer "+secret
		}
	})
}

// called returns the tools and arguments of the calls so far, in order.
func (h *toolHost) called() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]string, len(h.calls))
	for i, c := range h.calls {
		out[i] = c.tool + " " + c.args
	}
	return out
}

func (h *toolHost) heard() []http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.heads)
}

func (h *toolHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m rpc
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	_ = json.Unmarshal(body, &m)
	h.mu.Lock()
	h.heads = append(h.heads, r.Header.Clone())
	admitted := h.header == "" || r.Header.Get(h.header) == h.value
	list, call, tools, sessions := h.list, h.call, strings.Join(h.tools, ","), h.sessions
	if m.Method == "tools/call" && admitted {
		h.calls = append(h.calls, hostCall{m.Params.Name, string(m.Params.Arguments), r.Header.Clone()})
	}
	h.mu.Unlock()
	switch {
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case !admitted:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"unauthorized"}}`)
	case m.Method == "initialize":
		if sessions {
			w.Header().Set("Mcp-Session-Id", "session-of-the-host")
		}
		rpcResult(w, m, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"host","version":"1"}}`)
	case m.Method == "tools/list" && list != nil:
		list(w, r, m)
	case m.Method == "tools/list":
		rpcResult(w, m, `{"tools":[`+tools+`]}`)
	case m.Method == "tools/call" && call != nil:
		call(w, r, m)
	case m.Method == "tools/call":
		rpcText(w, m, `{"ok":true}`)
	case len(m.ID) > 0:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func rpcResult(w http.ResponseWriter, m rpc, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func rpcText(w http.ResponseWriter, m rpc, text string) {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	rpcResult(w, m, `{"content":[{"type":"text","text":`+string(quoted)+`}]}`)
}

func rpcFailure(w http.ResponseWriter, m rpc, text string) {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	rpcResult(w, m, `{"isError":true,"content":[{"type":"text","text":`+string(quoted)+`}]}`)
}

// shop is a toolHost that a tenant has registered.
type shop struct {
	*toolHost
	slug, id, connection, grant string
}

var shops atomic.Int64 // counts the shops, for their slugs

// shop registers a new tool server with a credential and a tenant-wide grant of
// all its tools.
func (c *caller) shop(t *testing.T, ctx context.Context, auth, secret string) *shop {
	t.Helper()
	s := &shop{toolHost: newToolHost(t), slug: fmt.Sprintf("shop%d", shops.Add(1))}
	s.wants(auth, secret)
	s.id = c.server(t, ctx, s.slug, s.URL, auth)
	if auth != "none" {
		s.connection = c.connection(t, ctx, s.id, auth, secret, nil)
	}
	s.grant = c.grant(t, ctx, object{"source": "mcp", "mcp_server_id": s.id, "tool_pattern": "*", "effect": "allow"})
	return s
}

func (c *caller) server(t *testing.T, ctx context.Context, slug, endpoint, auth string) string {
	t.Helper()
	return c.makes(t, ctx, "/v1/mcp-servers", object{"slug": slug, "name": "Shop", "transport": "http", "endpoint": endpoint, "auth_kind": auth})
}

func (c *caller) connection(t *testing.T, ctx context.Context, server, auth, secret string, more object) string {
	t.Helper()
	field := "token"
	if auth == "api_key" {
		field = "api_key"
	}
	body := object{"mcp_server_id": server, "name": "Account", "credentials": object{field: secret}}
	for k, v := range more {
		body[k] = v
	}
	return c.makes(t, ctx, "/v1/connections", body)
}

func (c *caller) grant(t *testing.T, ctx context.Context, grant object) string {
	t.Helper()
	return c.makes(t, ctx, "/v1/tool-grants", grant)
}

func (c *caller) policy(t *testing.T, ctx context.Context, policy object) string {
	t.Helper()
	body := object{"name": "Careful", "tool_pattern": "*"}
	for k, v := range policy {
		body[k] = v
	}
	return c.makes(t, ctx, "/v1/approval-policies", body)
}

// makes posts body, which must get 201, and returns the new id.
func (c *caller) makes(t *testing.T, ctx context.Context, path string, body any) string {
	t.Helper()
	var made struct{ ID string }
	c.ask(t, ctx, 201, "POST", path, body, &made)
	return made.ID
}

// human returns a client of a person of the tenant who may decide: another approver than its keys.
func (c *caller) human(t *testing.T, ctx context.Context) *caller {
	t.Helper()
	email := fmt.Sprintf("human%d@example.com", ownProviders.Add(1))
	c.makes(t, ctx, "/v1/users", object{"email": email, "name": "Human", "role": "admin", "password": passphrase})
	return c.person(t, ctx, email)
}

// colleague returns a client with another API key of the tenant: another principal, but the same approver.
func (c *caller) colleague(t *testing.T, ctx context.Context) *caller {
	t.Helper()
	var made struct{ Secret string }
	c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "colleague"}, &made)
	other := *c
	other.Key = made.Secret
	return &other
}

// modelled gives the tenant a model of this wire with these replies.
func modelled(t *testing.T, ctx context.Context, c *caller, kind string, replies ...fake.Reply) (wire, string) {
	t.Helper()
	server, err := fake.New(replies...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	w := wire{kind: kind, fake: server}
	slug := fmt.Sprintf("model-%d", ownProviders.Add(1))
	c.makes(t, ctx, "/v1/model-providers", object{"slug": slug, "kind": kind, "base_url": w.url(), "credentials": object{"api_key": "sk-model"}})
	return w, slug
}

// clerk publishes an agent on a model with all tools of the shops.
func (c *caller) clerk(t *testing.T, model string, more object, shops ...*shop) string {
	t.Helper()
	use := make([]object, len(shops))
	for i, s := range shops {
		use[i] = object{"server": s.slug, "allow": []string{"*"}}
	}
	manifest := object{"model": object{"provider": model, "name": "m"}, "tools": object{"mcp": use}}
	for k, v := range more {
		manifest[k] = v
	}
	return c.publish(t, fmt.Sprintf("Clerk %d", ownProviders.Add(1)), manifest)
}

// asks is a model's turn that makes calls: alternating names and arguments. The ids of the calls are c1, c2 and
// so on.
func asks(nameAndArgs ...string) fake.Reply {
	r := fake.Reply{In: 1, Out: 1}
	for i := 0; i < len(nameAndArgs); i += 2 {
		r.Calls = append(r.Calls, fake.Call{ID: fmt.Sprintf("c%d", i/2+1), Name: nameAndArgs[i], Args: []string{nameAndArgs[i+1]}})
	}
	return r
}

func says(text string) fake.Reply { return fake.Reply{Text: []string{text}, In: 1, Out: 1} }

// dialogue returns the messages of one request to a model, after the system prompt: one line per message or tool
// result, the same for both wires.
func dialogue(t *testing.T, r *fake.Request) []string {
	t.Helper()
	var body struct {
		Messages []struct {
			Role       string
			Content    json.RawMessage
			ToolCallID string `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range body.Messages {
		var text string
		var blocks []struct {
			Type, Text, ID, Name string
			Input                json.RawMessage
			ToolUseID            string `json:"tool_use_id"`
			Content              string
			IsError              bool `json:"is_error"`
		}
		switch {
		case m.Role == "system":
		case m.Role == "tool":
			_ = json.Unmarshal(m.Content, &text)
			out = append(out, "result "+m.ToolCallID+" "+text)
		case json.Unmarshal(m.Content, &text) == nil:
			if text != "" {
				out = append(out, m.Role+" "+text)
			}
		case json.Unmarshal(m.Content, &blocks) == nil:
			for _, b := range blocks {
				switch b.Type {
				case "text":
					out = append(out, m.Role+" "+b.Text)
				case "tool_use":
					out = append(out, "call "+b.ID+" "+b.Name+" "+string(b.Input))
				case "tool_result":
					out = append(out, "result "+b.ToolUseID+" "+b.Content)
				}
			}
		default:
			t.Fatalf("a message of unknown form: %s", r.Body)
		}
		for _, c := range m.ToolCalls {
			out = append(out, "call "+c.ID+" "+c.Function.Name+" "+c.Function.Arguments)
		}
	}
	return out
}

// results returns the tool results at the end of a request, and the user messages after them.
func results(t *testing.T, r *fake.Request) []string {
	t.Helper()
	lines := dialogue(t, r)
	last := 0
	for i, l := range lines {
		if strings.HasPrefix(l, "call ") {
			last = i + 1
		}
	}
	return lines[last:]
}

// offered returns the names of the tools that a model was offered, sorted.
func offered(t *testing.T, r *fake.Request) []string {
	t.Helper()
	var body struct {
		Tools []struct {
			Name     string
			Function struct{ Name string }
		}
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		t.Fatal(err)
	}
	out := make([]string, len(body.Tools))
	for i, tool := range body.Tools {
		out[i] = tool.Name + tool.Function.Name
	}
	slices.Sort(out)
	return out
}

// approvalAnswer is an approval as the API shows it.
type approvalAnswer struct {
	ID              string
	RunID           string `json:"run_id"`
	AgentID         string `json:"agent_id"`
	StepIdx         int    `json:"step_idx"`
	Status, Risk    string
	AssigneeRole    string `json:"assignee_role"`
	Required        int    `json:"required_approvals"`
	SoFar           int    `json:"approvals_so_far"`
	RequestedAction struct {
		Tool         string
		Args, Schema json.RawMessage
	} `json:"requested_action"`
	Reasoning string `json:"reasoning_summary"`
	Policy    struct {
		ID   *string
		Name string
		Kind string
	}
	Decisions []struct {
		Principal, Action string
		Feedback          *string
		EditedArgs        json.RawMessage `json:"edited_args"`
		At                time.Time
	}
	EscalatedAt *time.Time `json:"escalated_at"`
	ExpiresAt   time.Time  `json:"expires_at"`
	CreatedAt   time.Time  `json:"created_at"`
	DecidedAt   *time.Time `json:"decided_at"`
}

// approvals returns the approvals of a run that the client may see, oldest first.
func (c *caller) approvals(t *testing.T, ctx context.Context, query string) []approvalAnswer {
	t.Helper()
	var list struct{ Items []approvalAnswer }
	c.ask(t, ctx, 200, "GET", "/v1/approvals?"+query, nil, &list)
	slices.Reverse(list.Items)
	return list.Items
}

func (c *caller) approval(t *testing.T, ctx context.Context, id string) *approvalAnswer {
	t.Helper()
	a := new(approvalAnswer)
	c.ask(t, ctx, 200, "GET", "/v1/approvals/"+id, nil, a)
	return a
}

// waits polls until the run waits and returns its approvals.
func (c *caller) waits(t *testing.T, ctx context.Context, run string) []approvalAnswer {
	t.Helper()
	c.poll(t, ctx, run, "waiting_approval")
	return c.approvals(t, ctx, "run_id="+run)
}

// decides decides an approval and returns its status and the approvals so far.
func (c *caller) decides(t *testing.T, ctx context.Context, approval string, body object) string {
	t.Helper()
	var d struct {
		Status string
		SoFar  int `json:"approvals_so_far"`
	}
	c.ask(t, ctx, 200, "POST", "/v1/approvals/"+approval+"/decision", body, &d)
	return fmt.Sprint(d.Status, " ", d.SoFar)
}

// refused sends a decision that must get this status.
func (c *caller) refused(t *testing.T, ctx context.Context, status int, approval string, body object) answer {
	t.Helper()
	return c.ask(t, ctx, status, "POST", "/v1/approvals/"+approval+"/decision", body, nil)
}

// audited returns the audit rows of one target, oldest first: actor, action and detail.
func (c *caller) audited(t *testing.T, ctx context.Context, target string) []string {
	t.Helper()
	var list struct {
		Items []struct {
			Actor, Action string
			Detail        json.RawMessage
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/audit?limit=100&target="+target, nil, &list)
	slices.Reverse(list.Items)
	out := make([]string, len(list.Items))
	for i, a := range list.Items {
		out[i] = strings.TrimSuffix(a.Actor+" "+a.Action+" "+string(a.Detail), " null")
	}
	return out
}

var (
	expiresAt = regexp.MustCompile(`"expires_at":"[^"]*"`)
	ownKey    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// transcript returns the content of frames, one line each, without frame ids: neighbouring live texts of one step
// are joined, and values that differ from run to run are replaced. names holds alternating values and
// replacements.
func transcript(frames []client.Frame, names ...string) string {
	var lines []string
	for _, l := range told(frames) {
		_, rest, _ := strings.Cut(l, " ")
		kind, data, _ := strings.Cut(rest, " ")
		if kind != "llm.delta" && kind != "llm.thinking" {
			data = strings.Replace(data, `"type":"`+kind+`",`, "", 1)
		}
		lines = append(lines, kind+" "+data)
	}
	text := strings.NewReplacer(names...).Replace(strings.Join(lines, "\n"))
	text = expiresAt.ReplaceAllString(text, `"expires_at":"…"`)
	return ownKey.ReplaceAllString(text, "KEY")
}

func sameLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (a answer) decode(out any) error { return json.Unmarshal(a.body, out) }
