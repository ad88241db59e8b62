package blackbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/private"
	"agentsvc/transport/mcp/leak"
)

// canary is a credential that must never appear anywhere but in the header of a request to its own server.
const canary = "cAnArY/7f3a+9b==qZ"

// dataDir returns the process's data directory.
func (p *process) dataDir() string {
	dir := ""
	for _, v := range p.env {
		if value, ok := strings.CutPrefix(v, "SVC_DATA_DIR="); ok {
			dir = value
		}
	}
	return dir
}

// noLeakInStorage checks every column of every row of the node's database.
func noLeakInStorage(t *testing.T, ctx context.Context, p *process, secret string) {
	t.Helper()
	server, err := private.Connect(ctx, p.dataDir())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pg.Open(ctx, server.URL(), pg.Options{Role: pg.System, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	rows, err := pool.Query(ctx, `SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND c.relname <> 'schema_migrations'`)
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, name)
	}
	if rows.Err() != nil || len(tables) < 20 || !slices.Contains(tables, "run_steps") || !slices.Contains(tables, "connections") {
		t.Fatalf("%v: tables %v", rows.Err(), tables)
	}
	seen := 0
	for _, table := range tables {
		var all, found int
		// A bytea prints text as hex.
		if err := pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT 1 FROM unnest($1::text[]) f WHERE strpos(replace(t::text, '\\', '\'), f) > 0)) FROM `+table+` t`,
			leak.Forms(secret)).Scan(&all, &found); err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		if seen += all; found > 0 {
			t.Errorf("%d rows of %s hold the credential", found, table)
		}
	}
	if seen < 100 {
		t.Errorf("only %d rows were checked: the test is void", seen)
	}
}

// everything returns all that the API shows of a run.
func (c *caller) everything(t *testing.T, ctx context.Context, run string) string {
	t.Helper()
	var b strings.Builder
	for _, path := range []string{"/v1/runs/" + run, "/v1/runs/" + run + "/events?replay=full", "/v1/approvals?run_id=" + run, "/v1/audit?limit=100", "/v1/connections",
		"/v1/mcp-servers", "/v1/usage/records?run_id=" + run} {
		b.Write(c.ask(t, ctx, 200, "GET", path, nil, nil).body)
	}
	return b.String()
}

// echo returns the credential of a request as a server sees it.
func echo(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// Tool servers that are slow, dead, restarting, redirecting, or that answer garbage, gigabytes, wrong content types
// or 401: each has its specified failure, and the run continues. Wherever a server puts its credential, no one
// sees it.
func TestBadToolServers(t *testing.T) {
	t.Parallel()
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_TOOL_TIMEOUT=6s", "SVC_LOG_LEVEL=trace")
	n.start()
	c := n.tenant("bad servers")

	// Another host, the target of redirects. It must never get a request.
	var mu sync.Mutex
	var stranger []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		stranger = append(stranger, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header))
	}))
	t.Cleanup(other.Close)

	abort := func(http.ResponseWriter, *http.Request, rpc) { panic(http.ErrAbortHandler) }
	raw := func(status int, contentType, body string) func(http.ResponseWriter, *http.Request, rpc) {
		return func(w http.ResponseWriter, r *http.Request, _ rpc) {
			w.Header().Set("Content-Type", strings.ReplaceAll(contentType, "CREDENTIAL", echo(r)))
			w.WriteHeader(status)
			fmt.Fprint(w, strings.ReplaceAll(body, "CREDENTIAL", echo(r)))
		}
	}
	redirect := func(status int) func(http.ResponseWriter, *http.Request, rpc) {
		return func(w http.ResponseWriter, r *http.Request, _ rpc) { http.Redirect(w, r, other.URL+"/mcp", status) }
	}
	endless := func(contentType, head, piece string) func(http.ResponseWriter, *http.Request, rpc) {
		return func(w http.ResponseWriter, r *http.Request, _ rpc) {
			w.Header().Set("Content-Type", contentType)
			fmt.Fprint(w, head)
			chunk := bytes.Repeat([]byte(piece), 1<<20/len(piece))
			for r.Context().Err() == nil {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}
	}
	cancelled := make(chan struct{})
	const (
		unknown = ". It is not known whether the tool did its work."
		nothing = ". Nothing was run."
	)
	failed := func(code, message string) string {
		b, err := json.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		return `{"error":"` + code + `","message":` + string(b) + `}`
	}
	rows := []struct {
		name  string
		call  func(w http.ResponseWriter, r *http.Request, m rpc)
		hook  func(s *shop) // after the tools are known, before the call
		hears string
		ok    bool // the call succeeds
		calls int  // that reach the server
		after func(t *testing.T, ctx context.Context)
	}{
		{name: "slow: cancelled after SVC_TOOL_TIMEOUT", call: func(_ http.ResponseWriter, r *http.Request, _ rpc) {
			<-r.Context().Done()
			close(cancelled)
		}, hears: failed("TOOL_TIMEOUT", "The tool server did not answer in time"+unknown), calls: 1,
			after: func(t *testing.T, ctx context.Context) {
				select {
				case <-cancelled:
				case <-ctx.Done():
					t.Error("the call was not cancelled at the server")
				}
			}},
		{name: "dead", hook: func(s *shop) { s.Server.Close() }, hears: failed("TOOL_FAILED", "Could not connect to the tool server: connection refused"+nothing)},
		{name: "dies in the middle", call: abort, hears: failed("TOOL_FAILED", "The connection to the tool server broke"+unknown), calls: 1},
		{name: "redirects (307)", call: redirect(307), hears: failed("TOOL_FAILED", "The tool server answered with a redirect (307), which is not followed"+nothing), calls: 1},
		{name: "redirects (302)", call: redirect(302), hears: failed("TOOL_FAILED", "The tool server answered with a redirect (302), which is not followed"+unknown), calls: 1},
		{name: "garbage", call: raw(200, "application/json", "}{ CREDENTIAL"), hears: failed("TOOL_FAILED", "The tool server's answer could not be understood"+unknown), calls: 1},
		{name: "nothing at all", call: raw(200, "application/json", ""), hears: failed("TOOL_FAILED", "The tool server's answer could not be understood"+unknown), calls: 1},
		{name: "gigabytes", call: endless("application/json", `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"`, "cAnArY "),
			hears: failed("TOOL_FAILED", "The tool server's answer is larger than allowed"+unknown), calls: 1},
		{name: "gigabytes of events", call: endless("text/event-stream", "", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n"),
			hears: failed("TOOL_FAILED", "The tool server's answer holds more values than allowed"+unknown), calls: 1},
		{name: "wrong content type", call: raw(200, "text/html; note=\"CREDENTIAL\"", "<h1>CREDENTIAL</h1>"),
			hears: failed("TOOL_FAILED", `The tool server answered with content type "text/html; note=\"CREDENTIAL\""`+unknown), calls: 1},
		{name: "401", call: raw(401, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"CREDENTIAL is wrong"}}`),
			hears: failed("TOOL_FAILED", "The tool server refused the credential (401)"+nothing), calls: 1},
		{name: "500", call: raw(500, "application/json", `{"error":"CREDENTIAL"}`), hears: failed("TOOL_FAILED", "The tool server answered with status 500"+unknown), calls: 1},
		{name: "a refusal that quotes the credential", call: func(w http.ResponseWriter, r *http.Request, m rpc) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad token %s"}}`, m.ID, echo(r))
		}, hears: failed("TOOL_FAILED", "The tool server refused the request: bad token [redacted] (-32602)"+nothing), calls: 1},
		{name: "a business failure that quotes the credential", call: func(w http.ResponseWriter, r *http.Request, m rpc) {
			rpcFailure(w, m, `{"error":"NO_MONEY","message":"account `+echo(r)+` is empty"}`)
		}, hears: `{"error":"NO_MONEY","message":"account [redacted] is empty"}`, calls: 1},
		{name: "a result that shows the credential in every form", call: func(w http.ResponseWriter, r *http.Request, m rpc) {
			s := echo(r)
			b64 := base64.StdEncoding
			rpcText(w, m, strings.Join([]string{s, url.QueryEscape(s), url.PathEscape(s), b64.EncodeToString([]byte(s)), b64.EncodeToString([]byte("Bearer " + s)),
				b64.EncodeToString([]byte("user:" + s)), base64.RawURLEncoding.EncodeToString([]byte(s)), hex.EncodeToString([]byte(s))}, " | "))
		}, ok: true, calls: 1},
		{name: "a JSON result that hides the credential behind escapes", call: func(w http.ResponseWriter, r *http.Request, m rpc) {
			rpcText(w, m, `{"a":"`+strings.ReplaceAll(echo(r), "a", `\u0061`)+`","b":["`+strings.ReplaceAll(echo(r), "/", `\/`)+`"],"c":{"`+strings.ReplaceAll(echo(r), "/", `\u002f`)+`":1}}`)
		}, ok: true, calls: 1},
		{name: "restarted: the server has lost its sessions, the call is made once", call: func(w http.ResponseWriter, r *http.Request, m rpc) { rpcText(w, m, "fine") },
			hook: func(s *shop) {
				old := true
				s.set(func(s *toolHost) {
					answer := s.call
					s.call = func(w http.ResponseWriter, r *http.Request, m rpc) {
						if old {
							old = false
							w.WriteHeader(http.StatusNotFound)
							return
						}
						answer(w, r, m)
					}
				})
			}, calls: 2, ok: true, hears: "fine"},
	}
	t.Run("a call", func(t *testing.T) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				t.Parallel()
				ctx := within(t, 20*time.Second)
				s := c.shop(t, ctx, "bearer", canary)
				s.set(func(s *toolHost) { s.call, s.sessions = row.call, strings.HasPrefix(row.name, "restarted") })
				model, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_admin_delete", `{}`), says("I go on."))
				agent := c.clerk(t, provider, nil, s)
				c.ask(t, ctx, 200, "GET", "/v1/agents/"+agent+"/tools", nil, nil)
				if row.hook != nil {
					row.hook(s)
				}
				run := c.runOnce(t, ctx, agent, "do it")
				frames := c.stream(t, ctx, run, "?replay=full", "", nil)
				r := c.poll(t, ctx, run, "succeeded")
				if r.text() != "I go on." {
					t.Errorf("the run answers %q", r.text())
				}
				got := results(t, model.fake.Requests()[1])
				if want := strings.ReplaceAll(row.hears, "CREDENTIAL", "[redacted]"); row.hears != "" && (len(got) != 1 || got[0] != "result c1 "+want) {
					t.Errorf("the model gets %q, want %q", got, want)
				}
				status := map[bool]string{true: "succeeded", false: "failed"}[row.ok]
				if r.shape() != "llm:succeeded tool:"+status+" llm:succeeded" {
					t.Errorf("steps %s", r.shape())
				}
				if want := "run.started step.started step.started tool.called tool.result step.started llm.delta run.completed"; types(frames) != want {
					t.Errorf("frames %s", types(frames))
				}
				if got := len(s.called()); got != row.calls {
					t.Errorf("%d calls reached the server: %v", got, s.called())
				}
				if row.after != nil {
					row.after(t, ctx)
				}
				for what, text := range map[string]string{"the API": c.everything(t, ctx, run), "the model": string(model.fake.Requests()[1].Body)} {
					if f := leak.Find(canary, text); f != "" {
						t.Errorf("%s shows the credential as %q", what, f)
					}
				}
			})
		}
	})

	t.Run("the test route", func(t *testing.T) {
		for _, row := range []struct {
			name   string
			list   func(w http.ResponseWriter, r *http.Request, m rpc)
			hook   func(t *testing.T, ctx context.Context, s *shop)
			errors string
		}{
			{name: "dead", hook: func(_ *testing.T, _ context.Context, s *shop) { s.Server.Close() }, errors: "could not connect to the tool server: connection refused"},
			{name: "slow", list: func(_ http.ResponseWriter, r *http.Request, _ rpc) { <-r.Context().Done() }, errors: "the tool server did not answer in time"},
			{name: "redirects", list: redirect(308), errors: "the tool server answered with a redirect (308), which is not followed"},
			{name: "garbage", list: raw(200, "application/json", "{\"jsonrpc\":\"2.0\",\"CREDENTIAL\""), errors: "the tool server's answer could not be understood"},
			{name: "gigabytes", list: endless("application/json", `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"`, "x"), errors: "the tool server's answer is larger than allowed"},
			{name: "wrong content type", list: raw(200, "text/html", "CREDENTIAL"), errors: `the tool server answered with content type "text/html"`},
			{name: "401", hook: func(_ *testing.T, _ context.Context, s *shop) { s.wants("bearer", "another") }, errors: "the tool server refused the credential (401)"},
			{name: "500", list: raw(500, "text/plain", "CREDENTIAL"), errors: "the tool server answered with status 500"},
			{name: "no connection", hook: func(t *testing.T, ctx context.Context, s *shop) {
				c.ask(t, ctx, 204, "DELETE", "/v1/connections/"+s.connection, nil, nil)
			},
				errors: "auth_kind is bearer and there is no tenant-wide connection with a credential: add one or name a connection_id"},
		} {
			t.Run(row.name, func(t *testing.T) {
				t.Parallel()
				ctx := within(t, 10*time.Second)
				s := c.shop(t, ctx, "bearer", canary)
				s.set(func(s *toolHost) { s.list = row.list })
				if row.hook != nil {
					row.hook(t, ctx, s)
				}
				var p struct {
					Code, Detail string
					Errors       []string
				}
				a := c.ask(t, ctx, 502, "POST", "/v1/mcp-servers/"+s.id+"/test", object{}, &p)
				if p.Code != "MCP_UNREACHABLE" || len(p.Errors) != 1 || p.Errors[0] != row.errors || p.Detail == "" {
					t.Errorf("%s, want errors %q", a, row.errors)
				}
				if f := leak.Find(canary, string(a.body)); f != "" {
					t.Errorf("the answer shows the credential as %q", f)
				}
			})
		}
		t.Run("success", func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 10*time.Second)
			s := c.shop(t, ctx, "bearer", canary)
			s.set(func(s *toolHost) {
				s.tools = append(s.tools, `{"name":"show","description":"`+canary+`","inputSchema":{"type":"object","properties":{"`+canary+`":{}}}}`)
			})
			a := c.ask(t, ctx, 200, "POST", "/v1/mcp-servers/"+s.id+"/test", object{"connection_id": s.connection}, nil)
			if want := `{"ok":true,"tools":[{"name":"orders.lookup","description":"Look up one order."},{"name":"orders.refund","description":"Pay money back."},` +
				`{"name":"admin.delete","description":"Delete everything."},{"name":"show","description":"[redacted]"}]}`; strings.TrimSpace(string(a.body)) != want {
				t.Errorf("%s, want %s", a, want)
			}
		})
	})

	ctx := within(t, 10*time.Second)
	noLeakInStorage(t, ctx, n.process, canary)
	if f := leak.Find(canary, n.logged()); f != "" {
		t.Errorf("the log shows the credential as %q", f)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(stranger) > 0 {
		t.Errorf("another host received %v", stranger)
	}
}
