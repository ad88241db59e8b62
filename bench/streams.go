package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// open opens n streams of the runs, round robin, and hands over each line with
// the reader's number. It returns once every stream has shown its first bytes.
func (b *bed) open(ctx context.Context, runs []string, n int, line func(reader int, l []byte) bool) (wait func(), err error) {
	return openEach(ctx, n, func(i int, line func([]byte) bool) error { return b.follow(runs[i%len(runs)], "", line) }, line)
}

// openEach is open for n readers of any streams.
func openEach(ctx context.Context, n int, follow func(reader int, line func([]byte) bool) error, line func(reader int, l []byte) bool) (wait func(), err error) {
	var ready, done sync.WaitGroup
	var failed atomic.Pointer[error]
	gate := make(chan struct{}, 64)
	for i := range n {
		ready.Add(1)
		done.Add(1)
		gate <- struct{}{}
		go func() {
			defer done.Done()
			var once sync.Once
			up := func() { ready.Done(); <-gate }
			err := follow(i, func(l []byte) bool {
				if len(l) > 0 && l[0] == ':' {
					once.Do(up)
				}
				return ctx.Err() == nil && (line == nil || line(i, l))
			})
			once.Do(func() { failed.Store(&err); up() })
		}()
	}
	ready.Wait()
	if e := failed.Load(); e != nil {
		return nil, fmt.Errorf("a stream ended before its first bytes: %w", *e)
	}
	return done.Wait, nil
}

// start posts one message on each of n new threads.
func (b *bed) start(n int, content string) ([]string, error) {
	threads, err := b.threads(n)
	if err != nil {
		return nil, err
	}
	runs := make([]string, n)
	for i := range runs {
		if runs[i], err = b.post(threads[i], content); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

func benchIdleStreams(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated, "SVC_SSE_HEARTBEAT=10m", usualGC); err != nil {
		return err
	}
	runs, err := b.start(100, endless)
	if err != nil {
		return err
	}
	each, g0, g1, err := b.idle(ctx, func(i int, line func([]byte) bool) error { return b.follow(runs[i%len(runs)], "", line) })
	if err != nil {
		return err
	}
	fmt.Printf("  %d idle streams: %.2f KiB of the process's memory each (budget: at most 4), goroutines %.0f before, %.0f with them\n", idleStreams, each, g0, g1)
	return nil
}

const (
	idleStreams = 10000
	idleWarm    = 500
	// usualGC is the setting of a process whose memory is compared: what is left to be
	// collected is as little as it can be.
	usualGC = "GOGC=100"
	// endless is the message of a run that says nothing while it is measured.
	endless = "/delay 60s\n/tokens 3"
)

// idle opens idleStreams streams that have nothing to say, behind idleWarm others,
// and answers what each takes of the process's memory in KiB, and the goroutines
// before and with them. It closes none of them.
func (b *bed) idle(ctx context.Context, follow func(reader int, line func([]byte) bool) error) (each, g0, g1 float64, err error) {
	if _, err := openEach(ctx, idleWarm, follow, nil); err != nil {
		return 0, 0, 0, err
	}
	before, err := b.usage()
	if err != nil {
		return 0, 0, 0, err
	}
	g0 = b.metric("go_goroutines")
	if _, err := openEach(ctx, idleStreams, func(i int, line func([]byte) bool) error { return follow(idleWarm+i, line) }, nil); err != nil {
		return 0, 0, 0, err
	}
	after, err := b.usage()
	return float64(after.rssKiB-before.rssKiB) / idleStreams, g0, b.metric("go_goroutines"), err
}

func benchStreams(ctx context.Context, b *bed) error {
	const runs, tokensPerSecond, seconds = 1000, 50, 12
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	threads, err := b.threads(runs)
	if err != nil {
		return err
	}
	ids := make([]string, runs)
	content := fmt.Sprintf("/delay %dms\n/tokens %d", 1000/tokensPerSecond, tokensPerSecond*seconds)
	for i := range ids {
		if ids[i], err = b.post(threads[i], content); err != nil {
			return err
		}
	}
	var frames, bytesIn atomic.Int64
	wait, err := b.open(ctx, ids, runs, func(_ int, l []byte) bool {
		bytesIn.Add(int64(len(l)) + 1)
		if bytes.HasPrefix(l, []byte("event: ")) {
			frames.Add(1)
		}
		return true
	})
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // steady state
	f0, t0 := frames.Load(), time.Now()
	u0, err := b.usage()
	if err != nil {
		return err
	}
	time.Sleep(5 * time.Second)
	f1, t1 := frames.Load(), time.Now()
	u1, err := b.usage()
	if err != nil {
		return err
	}
	cpu := (u1.cpu - u0.cpu).Seconds()
	fmt.Printf("  %.0f frames/s to %d readers, server CPU %.2f cores: %.0f frames/s per core (budget: at least 100,000)\n",
		float64(f1-f0)/t1.Sub(t0).Seconds(), runs, cpu/t1.Sub(t0).Seconds(), float64(f1-f0)/cpu)
	wait()
	return nil
}

// benchDelivery measures from the model's wire to the reader: the fake upstream
// of this process writes its clock into each token.
func benchDelivery(ctx context.Context, b *bed) error {
	const runs, every, tokens = 1000, 20 * time.Millisecond, 500
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	epoch := time.Now()
	go upstream(ln, epoch, every, tokens)
	if err := b.serve(ctx, simulated, "SVC_OUTBOUND_ALLOW=127.0.0.0/8"); err != nil {
		return err
	}
	if err := b.call("POST", "/v1/model-providers", map[string]any{"slug": "upstream", "kind": "openai", "base_url": "http://" + ln.Addr().String(),
		"credentials": map[string]string{"api_key": "x"}}, nil); err != nil {
		return err
	}
	var made struct{ Agent struct{ ID string } }
	if err := b.call("POST", "/v1/agents", map[string]any{"name": "Delivery", "manifest": map[string]any{"model": map[string]string{"provider": "upstream", "name": "m"}}}, &made); err != nil {
		return err
	}
	b.agent = made.Agent.ID
	if err := b.call("POST", "/v1/agents/"+b.agent+"/versions/1/publish", nil, nil); err != nil {
		return err
	}
	ids, err := b.start(runs, "go")
	if err != nil {
		return err
	}
	var steady atomic.Bool // all streams are open; their opening is not measured
	took := make([][]time.Duration, runs)
	wait, err := b.open(ctx, ids, runs, func(reader int, l []byte) bool {
		now := time.Since(epoch)
		if !steady.Load() {
			return true
		}
		data, ok := bytes.CutPrefix(l, []byte(`data: {"type":"llm.delta"`))
		if !ok {
			return true
		}
		// A merged or joined frame holds several tokens; its last one is the newest.
		at := bytes.LastIndexByte(data, '@')
		sp := bytes.IndexByte(data[at:], ' ')
		if at < 0 || sp < 0 {
			return true
		}
		if sent, err := strconv.ParseInt(string(data[at+1:at+sp]), 10, 64); err == nil {
			took[reader] = append(took[reader], now-time.Duration(sent))
		}
		return true
	})
	if err != nil {
		return err
	}
	u0, err := b.usage()
	if err != nil {
		return err
	}
	start := time.Now()
	steady.Store(true)
	time.Sleep(4 * time.Second)
	steady.Store(false)
	u1, err := b.usage()
	if err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	wait()
	all := slices.Concat(took...)
	fmt.Printf("  %.0f frames/s, server CPU %.2f cores; from the upstream's write to the reader: p50 %v p99 %v (budget: p99 under 3 ms)\n",
		float64(len(all))/seconds, (u1.cpu-u0.cpu).Seconds()/seconds, quantile(all, .5), quantile(all, .99))
	return nil
}

// upstream speaks the OpenAI wire to whoever connects, as cheaply as it can, since
// it shares the machine with what is measured: one goroutine writes to all.
func upstream(ln net.Listener, epoch time.Time, every time.Duration, tokens int) {
	type answer struct {
		conn net.Conn
		due  time.Duration
		left int
	}
	arrived := make(chan net.Conn, 1024)
	go func() {
		defer close(arrived)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				r := bufio.NewReader(c)
				req, err := http.ReadRequest(r)
				if err != nil {
					c.Close()
					return
				}
				io.Copy(io.Discard, req.Body)
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
				arrived <- c
			}()
		}
	}()
	var open []*answer
	var buf []byte
	for {
		select {
		case c, ok := <-arrived:
			if !ok {
				for _, a := range open {
					a.conn.Close()
				}
				return
			}
			open = append(open, &answer{c, time.Since(epoch) + every, tokens})
			continue
		case <-time.After(100 * time.Microsecond): // in small bursts: what waits behind its own burst measures the load, not the service
		}
		kept := open[:0]
		for _, a := range open {
			now := time.Since(epoch)
			if now < a.due {
				kept = append(kept, a)
				continue
			}
			a.due += every
			if a.left--; a.left < 0 {
				io.WriteString(a.conn, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":400}}\n\ndata: [DONE]\n\n")
				a.conn.Close()
				continue
			}
			buf = fmt.Appendf(buf[:0], "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@%d \"},\"finish_reason\":null}]}\n\n", now.Nanoseconds())
			if _, err := a.conn.Write(buf); err == nil {
				kept = append(kept, a)
			}
		}
		open = kept
	}
}

func benchFanout(ctx context.Context, b *bed) error {
	const readers = 1000
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	runs, err := b.start(1, "/delay 20ms\n/tokens 500")
	if err != nil {
		return err
	}
	var frames atomic.Int64
	wait, err := b.open(ctx, runs, readers, func(_ int, l []byte) bool {
		if bytes.HasPrefix(l, []byte("event: llm.delta")) {
			frames.Add(1)
		}
		return true
	})
	if err != nil {
		return err
	}
	f0 := frames.Load()
	u0, err := b.usage()
	if err != nil {
		return err
	}
	start := time.Now()
	time.Sleep(4 * time.Second)
	f1 := frames.Load()
	u1, err := b.usage()
	if err != nil {
		return err
	}
	cpu := (u1.cpu - u0.cpu).Seconds()
	fmt.Printf("  %.0f frames/s to %d readers of one run, %.0f frames/s per core\n", float64(f1-f0)/time.Since(start).Seconds(), readers, float64(f1-f0)/cpu)
	wait()
	return nil
}

func benchMemory(ctx context.Context, b *bed) error {
	const n = 10000
	if err := b.serve(ctx, simulated, usualGC); err != nil {
		return err
	}
	if _, err := b.runThreads(ctx, n); err != nil { // pools and bounded caches fill
		return err
	}
	heap := func() (float64, error) {
		// An activation leaves memory a while after its last message; what it left
		// behind counts until the collector has run, in an idle process after at
		// most two minutes.
		var empty time.Time
		err := poll(ctx, 5*time.Minute, "an empty and collected node", func() bool {
			time.Sleep(time.Second)
			if b.activations() > 0 {
				return false
			}
			if empty.IsZero() {
				empty = time.Now()
			}
			return b.metric("go_memstats_last_gc_time_seconds") > float64(empty.Unix()+1)
		})
		// What is allocated counts what is dead and not swept yet; the goal of the
		// next collection is twice what the last one found alive.
		return b.metric("go_memstats_next_gc_bytes") / 2, err
	}
	before, err := heap()
	if err != nil {
		return err
	}
	if _, err := b.runThreads(ctx, n); err != nil {
		return err
	}
	after, err := heap()
	if err != nil {
		return err
	}
	fmt.Printf("  live heap: before %.1f MiB, after %d threads with finished runs %.1f MiB; activations 0\n", before/(1<<20), n, after/(1<<20))
	return nil
}

// activations is the number of actors in memory, streams and limits aside.
func (b *bed) activations() int {
	return int(b.metric(`svc_durable_activations{kind="run"}`) + b.metric(`svc_durable_activations{kind="thread"}`))
}

func (b *bed) runThreads(ctx context.Context, n int) (float64, error) {
	threads, err := b.threads(n)
	if err != nil {
		return 0, err
	}
	return load(ctx, b.dsn("svc"), openRuns, n, func(_, i int) error {
		_, err := b.post(threads[i-1], "/say ok")
		return err
	})
}

// benchFirstToken runs the streaming call that svc dev prints and measures from
// the start of the process to the first llm.delta.
func benchFirstToken(ctx context.Context, b *bed) error {
	took, err := b.firstToken(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("  first start of svc dev, private Postgres made anew: first streamed token after %v (budget: 3 s)\n", took.Round(time.Millisecond))
	return nil
}

// devJSON is what svc dev --json prints once it is ready.
type devJSON struct {
	URL      string `json:"url"`
	TenantID string `json:"tenant_id"`
	APIKey   string `json:"api_key"`
	AgentID  string `json:"agent_id"`
}

func readDev(r *bufio.Reader) (d devJSON, err error) {
	for {
		l, err := r.ReadString('\n')
		if err != nil {
			return d, err
		}
		if strings.HasPrefix(l, "{") && json.Unmarshal([]byte(l), &d) == nil && d.APIKey != "" {
			return d, nil
		}
	}
}
