package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"
)

const clients = 256

// load sends total posts from the given number of clients, then asks the
// database, by the query open, how many have not ended until none is left; both
// peers are driven and observed by it in the same way.
func load(ctx context.Context, dsn, open string, total int, post func(client, n int) error) (perSecond float64, err error) {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for i := range clients {
		wg.Go(func() {
			for n := int(next.Add(1)); n <= total && failed.Load() == nil && ctx.Err() == nil; n = int(next.Add(1)) {
				if err := post(i, n); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	accepted := time.Since(start)
	deadline := time.Now().Add(2 * time.Minute)
	for {
		var left int
		if err := c.QueryRow(ctx, open).Scan(&left); err != nil {
			return 0, err
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%d of %d have not ended", left, total)
		}
		time.Sleep(10 * time.Millisecond)
	}
	all := time.Since(start)
	fmt.Printf("  %d accepted after %v, ended after %v\n", total, accepted.Round(time.Millisecond), all.Round(time.Millisecond))
	return float64(total) / all.Seconds(), nil
}

// What has not ended; of ours through the index of open runs where the table is
// large.
const (
	openRuns        = `select count(*) from runs where status not in ('succeeded', 'failed', 'cancelled')`
	openRunsIndexed = `select count(*) from runs where finished_at is null`
	openJobs        = `select count(*) from bench_runs where status <> 'done'`
)

func (b *bed) threads(n int) ([]string, error) {
	out := make([]string, n)
	errs := make(chan error, 32)
	var next atomic.Int64
	for range cap(errs) {
		go func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				var err error
				if out[i], err = b.thread(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var first error
	for range cap(errs) {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return out, first
}

func (b *bed) runLoad(ctx context.Context, threads []string, open string, total int) (float64, error) {
	per := len(threads) / clients
	return load(ctx, b.dsn("svc"), open, total, func(client, n int) error {
		_, err := b.post(threads[client*per+n%per], "/say ok")
		return err
	})
}

func benchRuns(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	ours, _, err := b.agentRuns(ctx)
	if err != nil {
		return err
	}
	b.stopService()

	base, stop, err := b.startRiver(ctx)
	if err != nil {
		return err
	}
	defer stop()
	post := func(int, int) error { return b.toRiver(base+"/runs", `{"content":"/say ok"}`) }
	if _, err := load(ctx, b.dsn("river"), openJobs, b.total/10, post); err != nil {
		return err
	}
	river, err := load(ctx, b.dsn("river"), openJobs, b.total, post)
	if err != nil {
		return err
	}
	fmt.Printf("  River:   %.0f jobs/s\n  ratio:   %.1f (budget: at least 4, floor 2)\n", river, ours/river)
	return nil
}

// agentRuns measures runs of one step: how many end in a second, and the CPU of the service for each.
func (b *bed) agentRuns(ctx context.Context) (perSecond float64, each time.Duration, err error) {
	threads, err := b.threads(clients * 16)
	if err != nil {
		return 0, 0, err
	}
	if _, err := b.runLoad(ctx, threads, openRuns, b.total/10); err != nil { // warm
		return 0, 0, err
	}
	perSecond, each, err = b.spends(b.total, func() (float64, error) { return b.runLoad(ctx, threads, openRuns, b.total) })
	if err == nil {
		fmt.Printf("  service: %.0f runs/s, %d µs of its CPU a run\n", perSecond, each.Microseconds())
	}
	return perSecond, each, err
}

// spends returns the CPU of the service for each of n parts of a load.
func (b *bed) spends(n int, load func() (float64, error)) (perSecond float64, each time.Duration, err error) {
	u0, err := b.usage()
	if err != nil {
		return 0, 0, err
	}
	if perSecond, err = load(); err != nil {
		return 0, 0, err
	}
	u1, err := b.usage()
	return perSecond, (u1.cpu - u0.cpu) / time.Duration(n), err
}

// startRiver starts the River peer and returns its address.
func (b *bed) startRiver(ctx context.Context) (base string, stop func(), err error) {
	addr, err := freePort()
	if err != nil {
		return "", nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	peer := exec.CommandContext(ctx, self, peerCommand, b.dsn("river"), addr)
	peer.Stderr, peer.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := peer.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { peer.Process.Signal(syscall.SIGTERM); peer.Wait() }
	if err := poll(ctx, 20*time.Second, "the River peer", func() bool {
		code, _, err := fasthttp.Get(nil, "http://"+addr+"/readyz")
		return err == nil && code == 200
	}); err != nil {
		stop()
		return "", nil, err
	}
	return "http://" + addr, stop, nil
}

func (b *bed) toRiver(url, body string) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod("POST")
	req.SetRequestURI(url)
	req.SetBodyString(body)
	if err := b.http.Do(req, resp); err != nil {
		return err
	}
	if resp.StatusCode() != 202 {
		return fmt.Errorf("peer: %d %s", resp.StatusCode(), resp.Body())
	}
	return nil
}

// benchLatency compares POST to terminal, seen by a reader of the stream, with
// the single commit measured beside it.
func benchLatency(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	const n, perSecond, commits, talks = 1000, 100, 3, 250
	threads, err := b.threads(talks)
	if err != nil {
		return err
	}
	for _, thread := range threads { // a talk's first message reads its thread
		if _, err := b.post(thread, "/say ok"); err != nil {
			return err
		}
	}
	alone, err := b.singleCommit(ctx, 500, 0)
	if err != nil {
		return err
	}
	type probed struct {
		p50 time.Duration
		err error
	}
	beside := make(chan probed, 1)
	go func() { // at the same pace, on the same machine, in the same seconds
		p50, err := b.singleCommit(ctx, n, time.Second/perSecond)
		beside <- probed{p50, err}
	}()
	took := make([]time.Duration, n)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		wg.Go(func() {
			start := time.Now()
			run, err := b.post(threads[i%talks], "/say ok")
			if err == nil {
				err = b.follow(run, "", func(l []byte) bool { return string(l) != "event: run.completed" })
			}
			if err != nil {
				failed.Store(&err)
			}
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	single := <-beside
	if single.err != nil {
		return single.err
	}
	p50 := quantile(took, .5)
	fmt.Printf("  POST to terminal p50 %v p99 %v\n  single commit p50 %v at the same pace beside it, %v back to back alone\n  ratio to %d commits: %.2f (budget: at most 3), %.2f against those back to back\n",
		p50, quantile(took, .99), single.p50, alone, commits, float64(p50)/float64(commits*single.p50), float64(p50)/float64(commits*alone))
	return nil
}

// singleCommit is the p50 of one small insert committed alone, n times, one
// every pace.
func (b *bed) singleCommit(ctx context.Context, n int, pace time.Duration) (time.Duration, error) {
	c, err := pgx.Connect(ctx, b.dsn("river"))
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, `create table if not exists single_commit (id bigserial primary key, body text)`); err != nil {
		return 0, err
	}
	took := make([]time.Duration, n)
	next := time.Now()
	for i := range took {
		time.Sleep(time.Until(next))
		next = next.Add(pace)
		start := time.Now()
		if _, err := c.Exec(ctx, `insert into single_commit (body) values ($1)`, "one row"); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	return quantile(took, .5), nil
}

func benchDecay(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	const slices, each = 5, 20000
	var first float64
	for slice := range slices {
		// Threads of its own, so that every slice asks for the same work: on old
		// ones the history that the model is shown would grow.
		threads, err := b.threads(clients * 16)
		if err != nil {
			return err
		}
		v, err := b.runLoad(ctx, threads, openRunsIndexed, each)
		if err != nil {
			return err
		}
		if slice == 0 {
			first = v
		}
		fmt.Printf("  %6d runs: %.0f runs/s (%.2f of the first slice)\n", (slice+1)*each, v, v/first)
	}
	return nil
}
