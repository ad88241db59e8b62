package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	chainNodes = 10 // tool nodes of a run, one after another
	quietNodes = 50 // set and condition nodes of a run, one after another
	fanNodes   = 100
)

type node = map[string]any

// workflow makes and publishes a workflow and returns its id. The nodes of a chain follow
// each other.
func (b *bed) workflow(name string, chain bool, nodes ...node) (string, error) {
	edges := []any{}
	for i := 1; chain && i < len(nodes); i++ {
		edges = append(edges, map[string]any{"from": nodes[i-1]["id"], "to": nodes[i]["id"]})
	}
	var made struct{ Workflow struct{ ID string } }
	if err := b.call("POST", "/v1/workflows", map[string]any{"name": name, "definition": map[string]any{"nodes": nodes, "edges": edges}}, &made); err != nil {
		return "", err
	}
	return made.Workflow.ID, b.call("POST", "/v1/workflows/"+made.Workflow.ID+"/versions/1/publish", nil, nil)
}

// begin starts a run of a workflow.
func (b *bed) begin(workflow string, input any) (string, error) {
	var r struct {
		RunID string `json:"run_id"`
	}
	err := b.call("POST", "/v1/workflows/"+workflow+"/runs", map[string]any{"input": input}, &r)
	return r.RunID, err
}

// benchWorkflows measures what the nodes of workflows cost. In a chain of tool nodes each node is
// one commit: the end of a call, the start of the next node and the receipt of its call. A River
// job beside it makes the same: it calls the same tool server, and then writes the result, the
// receipt of the next call, its completion and the next job in one transaction. In both cases
// 256 runs of ten nodes are under way at a time.
func benchWorkflows(ctx context.Context, b *bed) error {
	tools, err := newToolServer()
	if err != nil {
		return err
	}
	if err := b.withTools(ctx, tools); err != nil {
		return err
	}
	_, agentRun, err := b.agentRuns(ctx)
	if err != nil {
		return err
	}
	nodes, err := b.toolNodes(ctx, tools, agentRun)
	if err != nil {
		return err
	}
	if err := b.quietChain(); err != nil {
		return err
	}
	if err := b.fanOut(); err != nil {
		return err
	}
	if err := b.gates(ctx); err != nil {
		return err
	}
	if err := b.waitingWorkflows(ctx); err != nil {
		return err
	}
	b.stopService()
	jobs, err := b.riverChains(ctx, tools)
	if err != nil {
		return err
	}
	fmt.Printf("  River: %.0f jobs/s of the same commits; tool nodes/s against it: %.1f (budget: at least 4)\n", jobs, nodes/jobs)
	return nil
}

// chains runs chains of calls with 256 under way: a client begins the next one when the last
// call of its chain has come.
func (b *bed) chains(ctx context.Context, db, open string, tools *toolServer, from, n int, begin func(order int) error) (float64, error) {
	return load(ctx, b.dsn(db), open, n, func(_, i int) error {
		last := tools.await(from+i, chainNodes)
		if err := begin(from + i); err != nil {
			return err
		}
		select {
		case <-last:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
			return fmt.Errorf("chain %d has not ended after a minute", from+i)
		}
	})
}

func (b *bed) toolNodes(ctx context.Context, tools *toolServer, agentRun time.Duration) (perSecond float64, err error) {
	var nodes []node
	for i := range chainNodes {
		nodes = append(nodes, node{"id": fmt.Sprintf("n%d", i), "type": "tool", "tool": "shop.orders.refund", "args": map[string]any{"order": "{{input.order}}"}})
	}
	workflow, err := b.workflow("Chain", true, nodes...)
	if err != nil {
		return 0, err
	}
	n := b.total / chainNodes
	begin := func(order int) error {
		_, err := b.begin(workflow, map[string]any{"order": order})
		return err
	}
	if _, err := b.chains(ctx, "svc", openRuns, tools, 0, n/10, begin); err != nil { // warm
		return 0, err
	}
	runs, each, err := b.spends(n*chainNodes, func() (float64, error) {
		return b.chains(ctx, "svc", openRuns, tools, n/10, n, begin)
	})
	if err != nil {
		return 0, err
	}
	fmt.Printf("  %d tool nodes one after another, %d runs at a time: %.0f runs/s, %.0f nodes/s, %d µs of the service's CPU a node; against a run of an agent: %.2f (budget: at most 0.6)\n",
		chainNodes, clients, runs, runs*chainNodes, each.Microseconds(), float64(each)/float64(agentRun))
	return runs * chainNodes, nil
}

func (b *bed) riverChains(ctx context.Context, tools *toolServer) (perSecond float64, err error) {
	base, stop, err := b.startRiver(ctx)
	if err != nil {
		return 0, err
	}
	defer stop()
	n := b.total / chainNodes / 2
	begin := func(order int) error {
		return b.toRiver(base+"/chains", fmt.Sprintf(`{"order":%d,"of":%d,"tool":%q}`, order, chainNodes, tools.url))
	}
	if _, err := b.chains(ctx, "river", openJobs, tools, 0, n/10, begin); err != nil {
		return 0, err
	}
	runs, err := b.chains(ctx, "river", openJobs, tools, n/10, n, begin)
	return runs * chainNodes, err
}

// quietChain counts the commits of runs of set and condition nodes, one after another: the one that accepts a
// run, and those of its nodes.
func (b *bed) quietChain() error {
	var nodes []node
	for i := range quietNodes {
		n := node{"id": fmt.Sprintf("q%d", i), "type": "set", "values": map[string]any{"n": i}}
		if i%2 == 1 {
			n = node{"id": fmt.Sprintf("q%d", i), "type": "condition", "expression": fmt.Sprintf("variables.n == %d", i-1)}
		}
		nodes = append(nodes, n)
	}
	workflow, err := b.workflow("Quiet", true, nodes...)
	if err != nil {
		return err
	}
	const n, written = 500, `svc_journal_commits_total{outcome="written"}`
	before := b.metric(written)
	for range n {
		run, err := b.begin(workflow, nil)
		if err != nil {
			return err
		}
		if err := b.follow(run, "", func(l []byte) bool { return string(l) != "event: run.completed" }); err != nil {
			return err
		}
	}
	fmt.Printf("  %d set and condition nodes one after another: %.2f commits a run, %d runs (budget: 2)\n", quietNodes, (b.metric(written)-before)/n, n)
	return nil
}

// fanOut measures runs of parallel delays, from the POST to the run's end as its stream tells it.
func (b *bed) fanOut() error {
	var nodes []node
	for i := range fanNodes {
		nodes = append(nodes, node{"id": fmt.Sprintf("d%d", i), "type": "delay", "seconds": 1})
	}
	workflow, err := b.workflow("Fan", false, nodes...)
	if err != nil {
		return err
	}
	took := make([]time.Duration, 10)
	for i := range took {
		start := time.Now()
		run, err := b.begin(workflow, nil)
		if err != nil {
			return err
		}
		if err := b.follow(run, "", func(l []byte) bool { return string(l) != "event: run.completed" }); err != nil {
			return err
		}
		took[i] = time.Since(start)
	}
	fmt.Printf("  %d parallel delays of 1 s: p50 %v, max %v of %d runs (budget: 1.5 s)\n", fanNodes, quantile(took, .5).Round(time.Millisecond), quantile(took, 1).Round(time.Millisecond), len(took))
	return nil
}

// gates measures from the decision of a gate to the frame of the next node's start.
func (b *bed) gates(ctx context.Context) error {
	workflow, err := b.workflow("Gate", true, node{"id": "gate", "type": "gate", "title": "Go on?"}, node{"id": "next", "type": "wait_event", "event": "never"})
	if err != nil {
		return err
	}
	const n, commits = 300, 3
	const pace = 20 * time.Millisecond
	runs := make([]string, n)
	for i := range runs {
		if runs[i], err = b.begin(workflow, nil); err != nil {
			return err
		}
	}
	approvals, err := b.approvals(ctx, runs)
	if err != nil {
		return err
	}
	next := make([]chan time.Time, n)
	errs := make(chan error, n)
	var opened atomic.Int64
	for i, run := range runs {
		next[i] = make(chan time.Time, 1)
		var once sync.Once
		go func() {
			errs <- b.follow(run, "", func(l []byte) bool {
				if bytes.HasPrefix(l, []byte("event: step.started")) {
					once.Do(func() { opened.Add(1) })
				}
				if !bytes.Contains(l, []byte(`"node_id":"next"`)) {
					return true
				}
				next[i] <- time.Now()
				return false
			})
		}()
	}
	if err := poll(ctx, 20*time.Second, "the streams", func() bool { return opened.Load() == n }); err != nil {
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
	took := make([]time.Duration, n)
	spent, flushes := b.metric("svc_journal_flush_seconds_sum"), b.metric("svc_journal_flush_seconds_count")
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i, approval := range approvals {
		<-tick.C
		start := time.Now()
		if err := b.call("POST", "/v1/approvals/"+approval+"/decision", map[string]any{"action": "approve"}, nil); err != nil {
			return err
		}
		if err := <-errs; err != nil {
			return err
		}
		took[i] = (<-next[i]).Sub(start)
	}
	single := <-beside
	if single.err != nil {
		return single.err
	}
	spent, flushes = b.metric("svc_journal_flush_seconds_sum")-spent, b.metric("svc_journal_flush_seconds_count")-flushes
	p50 := quantile(took, .5)
	fmt.Printf("  gate's decision to the next node's start p50 %v p99 %v\n", p50, quantile(took, .99))
	for _, c := range []struct {
		what string
		one  time.Duration
	}{{"single commits at the same pace beside it", single.p50}, {"commits of the service's own writer (mean)", time.Duration(spent / flushes * float64(time.Second))}} {
		fmt.Printf("  ratio to %d %s (%v): %.2f (budget: at most 1)\n", commits, c.what, c.one.Round(time.Microsecond), float64(p50)/float64(commits*c.one))
	}
	return nil
}

// waitingWorkflows measures what 10,000 runs that wait for an event cost in memory, and which
// of their rows a start reads.
func (b *bed) waitingWorkflows(ctx context.Context) error {
	workflow, err := b.workflow("Wait", false, node{"id": "w", "type": "wait_event", "event": "never"})
	if err != nil {
		return err
	}
	env := append(b.svc.Env, usualGC)
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	restart := func() (s started, reads int, err error) {
		const (
			others = `select count(*) from pg_stat_activity where datname = 'svc' and backend_type = 'client backend' and pid <> pg_backend_pid()`
			read   = `select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int from pg_stat_user_tables
				where relname in ('workflow_runs', 'workflow_events', 'run_steps', 'run_marks')`
		)
		b.stopService()
		if err := poll(ctx, 20*time.Second, "the end of the connections", func() bool { // they count what they read when they end
			var n int
			return c.QueryRow(ctx, others).Scan(&n) == nil && n == 0
		}); err != nil {
			return s, 0, err
		}
		var before int
		if err := c.QueryRow(ctx, read).Scan(&before); err != nil {
			return s, 0, err
		}
		if s, err = b.atRest(ctx, env); err != nil {
			return s, 0, err
		}
		err = c.QueryRow(ctx, read).Scan(&reads)
		return s, reads - before, err
	}
	without, _, err := restart()
	if err != nil {
		return err
	}
	const n = 10_000
	const open = `select 10000 - count(*) from run_steps where status = 'waiting' and name = 'w'`
	if _, err := load(ctx, b.dsn("svc"), open, n, func(int, int) error {
		_, err := b.begin(workflow, nil)
		return err
	}); err != nil {
		return err
	}
	with, reads, err := restart()
	if err != nil {
		return err
	}
	fmt.Printf("  %d runs that wait for an event: %.3f KiB of memory each 15 s after a start (budget: 1); ready after %v, %v without them; rows of workflows read by then: %d (budget: 0)\n",
		n, float64(with.rssKiB-without.rssKiB)/n, with.ready.Round(time.Millisecond), without.ready.Round(time.Millisecond), reads)
	fmt.Printf("  CPU of the idle service over 10 s: %v without them, %v with\n", without.idle, with.idle)
	return nil
}
