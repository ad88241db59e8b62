package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"
)

// toolServer is the smallest MCP server over Streamable HTTP with one tool,
// orders.refund, that notes when it was called for which order.
type toolServer struct {
	url     string
	mu      sync.Mutex // guards the fields below
	called  map[int]time.Time
	awaited map[int]*calls
}

// calls closes done when left more calls have come.
type calls struct {
	left int
	done chan struct{}
}

func newToolServer() (*toolServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &toolServer{url: "http://" + l.Addr().String() + "/mcp", called: map[int]time.Time{}, awaited: map[int]*calls{}}
	go fasthttp.Serve(l, t.serve)
	return t, nil
}

func (t *toolServer) serve(r *fasthttp.RequestCtx) {
	if !r.IsPost() {
		r.SetStatusCode(fasthttp.StatusMethodNotAllowed)
		return
	}
	now := time.Now()
	var in struct {
		ID     json.RawMessage
		Method string
		Params struct {
			ProtocolVersion string
			Arguments       struct{ Order int }
		}
	}
	if json.Unmarshal(r.PostBody(), &in) != nil {
		r.SetStatusCode(fasthttp.StatusBadRequest)
		return
	}
	if len(in.ID) == 0 { // a notification
		r.SetStatusCode(fasthttp.StatusAccepted)
		return
	}
	var result any
	switch in.Method {
	case "initialize":
		result = map[string]any{"protocolVersion": in.Params.ProtocolVersion, "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "bench", "version": "1"}}
	case "tools/list":
		result = map[string]any{"tools": []any{map[string]any{"name": "orders.refund", "inputSchema": map[string]any{
			"type": "object", "properties": map[string]any{"order": map[string]any{"type": "integer"}, "idempotency_key": map[string]any{"type": "string"}}}}}}
	case "tools/call":
		t.mu.Lock()
		order := in.Params.Arguments.Order
		t.called[order] = now
		if a := t.awaited[order]; a != nil {
			if a.left--; a.left == 0 {
				close(a.done)
				delete(t.awaited, order)
			}
		}
		t.mu.Unlock()
		result = map[string]any{"content": []any{map[string]any{"type": "text", "text": `{"ok":true}`}}}
	}
	out := map[string]any{"jsonrpc": "2.0", "id": in.ID, "result": result}
	if result == nil {
		out = map[string]any{"jsonrpc": "2.0", "id": in.ID, "error": map[string]any{"code": -32601, "message": "method not found"}}
	}
	r.SetContentType("application/json")
	json.NewEncoder(r).Encode(out)
}

func (t *toolServer) at(order int) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.called[order]
	return at, ok
}

// await returns a channel that is closed at the nth call from now on for an order.
func (t *toolServer) await(order, n int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &calls{n, make(chan struct{})}
	t.awaited[order] = a
	return a.done
}

// withTools starts the service with a tool server whose tools are granted to the tenant.
func (b *bed) withTools(ctx context.Context, t *toolServer, env ...string) error {
	if err := b.serve(ctx, simulated, append(env, "SVC_OUTBOUND_ALLOW=127.0.0.0/8")...); err != nil {
		return err
	}
	var server struct{ ID string }
	if err := b.call("POST", "/v1/mcp-servers", map[string]any{"slug": "shop", "name": "Shop", "transport": "http", "endpoint": t.url, "auth_kind": "none"}, &server); err != nil {
		return err
	}
	return b.call("POST", "/v1/tool-grants", map[string]any{"source": "mcp", "mcp_server_id": server.ID, "tool_pattern": "*", "effect": "allow"}, nil)
}

// gated makes the bed's agent one whose only tool needs an approval.
func (b *bed) gated(ctx context.Context, t *toolServer, env ...string) error {
	if err := b.withTools(ctx, t, env...); err != nil {
		return err
	}
	if err := b.call("POST", "/v1/approval-policies", map[string]any{"name": "Refunds", "tool_pattern": "orders.refund"}, nil); err != nil {
		return err
	}
	if err := b.call("POST", "/v1/agents/"+b.agent+"/versions", map[string]any{"manifest": map[string]any{
		"model": json.RawMessage(simulated), "tools": map[string]any{"mcp": []any{map[string]any{"server": "shop"}}}}}, nil); err != nil {
		return err
	}
	return b.call("POST", "/v1/agents/"+b.agent+"/versions/2/publish", nil, nil)
}

// waiting starts n runs that wait for an approval and answers the approvals' ids,
// by order.
func (b *bed) waiting(ctx context.Context, from, n int) ([]string, error) {
	runs := make([]string, n)
	for i := range n {
		var r struct {
			RunID string `json:"run_id"`
		}
		if err := b.call("POST", "/v1/agents/"+b.agent+"/runs", map[string]any{"input": fmt.Sprintf("/call orders.refund {\"order\":%d}\n/say done", from+i)}, &r); err != nil {
			return nil, err
		}
		runs[i] = r.RunID
	}
	return b.approvals(ctx, runs)
}

// approvals waits for the approvals of runs and returns their ids, by run.
func (b *bed) approvals(ctx context.Context, runs []string) ([]string, error) {
	ids := make([]string, len(runs))
	for i, run := range runs {
		if err := poll(ctx, 20*time.Second, "an approval", func() bool {
			var list struct{ Items []struct{ ID, Status string } }
			if b.call("GET", "/v1/approvals?run_id="+run, nil, &list) != nil || len(list.Items) == 0 {
				return false
			}
			ids[i] = list.Items[0].ID
			return true
		}); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// benchApprovals measures from a decision to the call of the tool, and a bulk
// decision over a hundred runs.
func benchApprovals(ctx context.Context, b *bed) error {
	tools, err := newToolServer()
	if err != nil {
		return err
	}
	if err := b.gated(ctx, tools); err != nil {
		return err
	}
	const n, commits = 300, 4
	const pace = 20 * time.Millisecond
	approvals, err := b.waiting(ctx, 0, n)
	if err != nil {
		return err
	}
	type probed struct {
		p50 time.Duration
		err error
	}
	beside := make(chan probed, 1)
	go func() {
		p50, err := b.singleCommit(ctx, n, pace)
		beside <- probed{p50, err}
	}()
	took, direct := make([]time.Duration, n), make([]time.Duration, n)
	spent, flushes := b.metric("svc_journal_flush_seconds_sum"), b.metric("svc_journal_flush_seconds_count")
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i, approval := range approvals {
		<-tick.C
		start := time.Now()
		if err := b.call("POST", "/v1/approvals/"+approval+"/decision", map[string]any{"action": "approve"}, nil); err != nil {
			return err
		}
		if err := poll(ctx, 10*time.Second, "the call", func() bool { _, ok := tools.at(i); return ok }); err != nil {
			return err
		}
		at, _ := tools.at(i)
		took[i] = at.Sub(start)
		start = time.Now()
		if _, _, err := fasthttp.Post(nil, tools.url, nil); err != nil {
			return err
		}
		direct[i] = time.Since(start)
	}
	single := <-beside
	if single.err != nil {
		return single.err
	}
	spent, flushes = b.metric("svc_journal_flush_seconds_sum")-spent, b.metric("svc_journal_flush_seconds_count")-flushes
	flush := time.Duration(spent / flushes * float64(time.Second))
	p50, call := quantile(took, .5), quantile(direct, .5)
	fmt.Printf("  decision to tool called p50 %v p99 %v; a bare call p50 %v\n", p50, quantile(took, .99), call)
	for what, one := range map[string]time.Duration{"single commits at the same pace beside it": single.p50, "commits of the service's own writer (mean)": flush} {
		fmt.Printf("  ratio to %d %s (%v) and a call: %.2f (budget: at most 1)\n", commits, what, one.Round(time.Microsecond), float64(p50)/float64(commits*one+call))
	}

	approvals, err = b.waiting(ctx, n, 100)
	if err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	start := time.Now()
	if err := b.call("POST", "/v1/approvals/bulk-decision", map[string]any{"ids": approvals, "action": "approve"}, nil); err != nil {
		return err
	}
	answered := time.Since(start)
	if err := poll(ctx, 20*time.Second, "the runs", func() bool {
		var open int
		return c.QueryRow(ctx, openRuns).Scan(&open) == nil && open == 0
	}); err != nil {
		return err
	}
	fmt.Printf("  100 runs decided in bulk: answered after %v, all ended after %v (budget: 2 s)\n", answered.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	return nil
}

// benchWaiting measures what 100,000 runs that wait for an approval cost: at the
// start, in memory, and in the idle service's CPU.
func benchWaiting(ctx context.Context, b *bed) error {
	tools, err := newToolServer()
	if err != nil {
		return err
	}
	if err := b.gated(ctx, tools, usualGC); err != nil {
		return err
	}
	if _, err := b.waiting(ctx, 0, 1); err != nil {
		return err
	}
	without, err := b.restart(ctx)
	if err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	const n = 100_000
	if err := cloneWaiting(ctx, c, n); err != nil {
		return err
	}
	with, err := b.restart(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("  ready after %v with none, %v with %d waiting runs (budget: 1 s more)\n", without.ready.Round(time.Millisecond), with.ready.Round(time.Millisecond), n)
	fmt.Printf("  memory after 15 s: %d KiB with none, %d KiB with: %.3f KiB a waiting run (budget: 1)\n", without.rssKiB, with.rssKiB, float64(with.rssKiB-without.rssKiB)/n)
	fmt.Printf("  CPU of the idle service over 10 s: %v with none, %v with\n", without.idle, with.idle)
	return nil
}

type started struct {
	ready, idle time.Duration
	rssKiB      int
}

// restart stops the service, starts it again and looks at it at rest.
func (b *bed) restart(ctx context.Context) (s started, err error) {
	env := b.svc.Env
	b.stopService()
	return b.atRest(ctx, env)
}

// atRest starts the service and looks at it at rest.
func (b *bed) atRest(ctx context.Context, env []string) (s started, err error) {
	b.http.CloseIdleConnections()
	start := time.Now()
	if err := b.launch(ctx, env); err != nil {
		return s, err
	}
	s.ready = time.Since(start)
	time.Sleep(5 * time.Second)
	u0, err := b.usage()
	if err != nil {
		return s, err
	}
	time.Sleep(10 * time.Second)
	u1, err := b.usage()
	s.idle, s.rssKiB = u1.cpu-u0.cpu, u1.rssKiB
	return s, err
}

// cloneWaiting makes n copies of the one waiting run, with its steps, its
// approval and its timer.
func cloneWaiting(ctx context.Context, c *pgx.Conn, n int) error {
	for _, sql := range []string{
		fmt.Sprintf(`create temp table clone as select gen_random_uuid() run, gen_random_uuid() approval from generate_series(1, %d)`, n),
		cloneOf("runs", "id = (select id from runs where status = 'waiting_approval' limit 1)", "id", "clone.run"),
		cloneOf("run_steps", "run_id = (select run_id from approvals order by id limit 1)", "run_id", "clone.run"),
		cloneOf("approvals", "true", "id", "clone.approval", "run_id", "clone.run"),
		cloneOf("timers", "kind = 'approval'", "entity_id", "clone.approval"),
		`analyze`,
	} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// cloneOf is a statement that copies the rows of a table once for each row of
// clone, with some columns replaced.
func cloneOf(table, where string, replace ...string) string {
	members := ""
	for i := 0; i < len(replace); i += 2 {
		members += fmt.Sprintf("%s'%s', %s", ", "[:min(i, 2)], replace[i], replace[i+1])
	}
	return fmt.Sprintf(`insert into %[1]s select (made.row).* from (
		select jsonb_populate_record(o, jsonb_build_object(%[2]s)) as row from %[1]s o, clone where %[3]s offset 0) made`, table, members, where)
}
