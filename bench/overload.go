package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// What the scenario overload measures at each number of clients, and how long. The
// saturating number is the smallest that reaches nine tenths of the peak.
var overloadClients = []int{64, 256, 1024, 2048}

const (
	overloadRamp  = 4 * time.Second // until as many posts are answered as come
	overloadFor   = 5 * time.Second
	overloadFloor = 0.8 // of the peak, at four times the saturating number
	saturated     = 0.9
	// A refused client waits for as long as it is told, at most.
	overloadPause = 2 * time.Second
)

// overloadPoint is what so many clients got.
type overloadPoint struct {
	clients               int
	perSecond             float64 // accepted
	refused, other        int64
	slowest, p50, refusal time.Duration
}

// benchOverload posts from more and more clients. Each posts again as soon as it is
// answered, or after Retry-After where it is refused. The posts go to the same number of
// threads at every point: a thread answers one message at a time, so fewer threads would
// leave more runs waiting and the machine to the posts.
func benchOverload(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	threads, err := b.threads(overloadClients[len(overloadClients)-1])
	if err != nil {
		return err
	}
	b.http = newClient()
	b.http.MaxConnsPerHost = 2 * overloadClients[len(overloadClients)-1]
	if _, err := b.overload(ctx, 256, threads); err != nil {
		return err
	}
	var points []overloadPoint
	peak := 0.0
	for _, n := range overloadClients {
		p, err := b.overload(ctx, n, threads)
		if err != nil {
			return err
		}
		points = append(points, p)
		peak = max(peak, p.perSecond)
		if err := poll(ctx, 2*time.Minute, "the end of the runs", func() bool { return b.none(ctx, openRunsIndexed) }); err != nil {
			return err
		}
	}
	full := 0
	for _, p := range points {
		if full == 0 && p.perSecond >= saturated*peak {
			full = p.clients
		}
		fmt.Printf("  %5d clients: %5.0f accepted/s (%.2f of the peak), p50 %v, slowest %v; %d refused with Retry-After (slowest after %v), %d other answers\n",
			p.clients, p.perSecond, p.perSecond/peak, p.p50.Round(time.Millisecond), p.slowest.Round(time.Millisecond), p.refused, p.refusal.Round(time.Millisecond), p.other)
	}
	worst := 1.0
	for _, p := range points {
		if p.clients >= 4*full {
			worst = min(worst, p.perSecond/peak)
		}
	}
	fmt.Printf("  saturated by %d clients; from %d on at least %.2f of the peak (budget: %.1f)\n", full, 4*full, worst, overloadFloor)
	return nil
}

// overload posts with so many clients, each to its share of the threads in turn, and
// counts what is answered after the ramp.
func (b *bed) overload(ctx context.Context, clients int, threads []string) (overloadPoint, error) {
	p := overloadPoint{clients: clients}
	var mu sync.Mutex // guards the fields below and p
	var took []time.Duration
	var failed error
	var refused, other atomic.Int64
	ctx, stop := context.WithTimeout(ctx, overloadRamp+overloadFor)
	defer stop()
	start := time.Now().Add(overloadRamp)
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for next := client; ctx.Err() == nil; next += clients {
				code, after, took1, err := b.postOnce(threads[next%len(threads)])
				mu.Lock()
				switch {
				case err != nil:
					failed = errors.Join(failed, err)
				case code == fasthttp.StatusAccepted:
					if ctx.Err() == nil && time.Now().After(start) {
						took = append(took, took1)
					}
				case code == fasthttp.StatusServiceUnavailable && after > 0:
					refused.Add(1)
					p.refusal = max(p.refusal, took1)
				default:
					other.Add(1)
				}
				mu.Unlock()
				if err != nil {
					return
				}
				if after > 0 {
					pause := time.NewTimer(min(after, overloadPause))
					select {
					case <-pause.C:
					case <-ctx.Done():
						pause.Stop()
					}
				}
			}
		})
	}
	<-ctx.Done()
	over := time.Since(start)
	wg.Wait()
	p.perSecond, p.refused, p.other = float64(len(took))/over.Seconds(), refused.Load(), other.Load()
	p.p50, p.slowest = quantile(took, .5), quantile(took, 1)
	return p, failed
}

// postOnce posts one message and answers the status, what Retry-After says, and how long
// it took.
func (b *bed) postOnce(thread string) (code int, after, took time.Duration, err error) {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod("POST")
	req.SetRequestURI(b.any() + "/v1/threads/" + thread + "/messages")
	req.Header.Set("Authorization", "Bearer "+b.key)
	req.Header.Set("X-Tenant-Id", b.tenant)
	req.Header.SetContentType("application/json")
	req.SetBodyString(`{"content":"/say ok"}`)
	start := time.Now()
	if err := b.http.Do(req, resp); err != nil {
		return 0, 0, 0, err
	}
	if seconds, err := fasthttp.ParseUint(resp.Header.Peek("Retry-After")); err == nil {
		after = time.Duration(seconds) * time.Second
	}
	return resp.StatusCode(), after, time.Since(start), nil
}
