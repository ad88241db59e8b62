package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The quiet tenant starts so many runs a second, the loud one so many times as
// many.
const (
	quietRate = 5
	louder    = 50

	// companyFor is how long nodes take a tenant that came for company, beside which
	// they do less at a time: nobody's capacity is measured before.
	companyFor = 10 * time.Second
)

// another makes another tenant with an agent of its own on the running service.
func (b *bed) another(ctx context.Context, name string) (*bed, error) {
	cmd := exec.CommandContext(ctx, b.svcFile, "tenant", "create", "--name", name, "--owner-email", name+"@example.com", "--json")
	cmd.Env, cmd.Stderr = b.svc.Env, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tenant create: %w", err)
	}
	var t struct {
		TenantID string `json:"tenant_id"`
		APIKey   string `json:"api_key"`
	}
	if err := json.Unmarshal(out, &t); err != nil {
		return nil, err
	}
	o := *b
	o.tenant, o.key = t.TenantID, t.APIKey
	var made struct{ Agent struct{ ID string } }
	if err := o.call("POST", "/v1/agents", map[string]any{"name": name, "manifest": map[string]any{"model": json.RawMessage(simulated)}}, &made); err != nil {
		return nil, err
	}
	o.agent = made.Agent.ID
	return &o, o.call("POST", "/v1/agents/"+o.agent+"/versions/1/publish", nil, nil)
}

// quietly starts n runs at the quiet tenant's pace and answers how long each took
// from its post to its terminal frame.
func (b *bed) quietly(ctx context.Context, threads []string, n int) ([]time.Duration, error) {
	return b.paced(ctx, threads, n, quietRate)
}

// paced does the same at any rate a second.
func (b *bed) paced(ctx context.Context, threads []string, n, rate int) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := range n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		wg.Go(func() {
			start := time.Now()
			run, err := b.post(threads[i%len(threads)], "/say ok")
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
		return nil, *err
	}
	return took, nil
}

// floodCommand makes this binary the loud tenant's client, so that the quiet one's
// clock does not wait for it.
const floodCommand = "peer-flood"

// loud is what a flood needs, as JSON on its standard input. It ends when that does.
type loud struct {
	Base        string
	Others      []string
	Tenant, Key string
	Threads     []string
	Rate        int // posts a second
}

// flood runs a client of its own that posts at a rate until stop is closed, and
// answers how many runs a second it got accepted.
func (b *bed) flood(ctx context.Context, threads []string, rate int, stop <-chan struct{}) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	peer := exec.CommandContext(ctx, self, floodCommand)
	peer.Stderr = os.Stderr
	in, err := peer.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := peer.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := peer.Start(); err != nil {
		return 0, err
	}
	sent := json.NewEncoder(in).Encode(loud{b.base, b.others, b.tenant, b.key, threads, rate})
	<-stop
	in.Close()
	var accepted float64
	_, read := fmt.Fscan(out, &accepted)
	return accepted, errors.Join(sent, read, peer.Wait())
}

// floodPeer posts at a rate, with at most so many clients, until its standard input
// ends. Refusals for want of room are part of a flood.
func floodPeer(ctx context.Context) error {
	var l loud
	from := json.NewDecoder(os.Stdin)
	if err := from.Decode(&l); err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	b := &bed{base: l.Base, others: l.Others, tenant: l.Tenant, key: l.Key, http: newClient()}
	var accepted, next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for range clients {
		wg.Go(func() {
			for failed.Load() == nil && ctx.Err() == nil {
				n := next.Add(1)
				timer := time.NewTimer(time.Until(start.Add(time.Duration(n) * time.Second / time.Duration(l.Rate))))
				select {
				case <-timer.C:
				case <-stop:
					timer.Stop()
					return
				}
				_, err := b.post(l.Threads[int(n)%len(l.Threads)], "/say ok")
				switch {
				case err == nil:
					accepted.Add(1)
				case strings.Contains(err.Error(), ": 503 ") || strings.Contains(err.Error(), ": 429 "):
				default:
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	_, err := fmt.Println(float64(accepted.Load()) / time.Since(start).Seconds())
	return err
}

// benchQuiet measures what a tenant that floods does to one that is quiet, on one
// node and on three.
func benchQuiet(ctx context.Context, b *bed) error {
	p, err := clustered(ctx, b, "SVC_RUN_CONCURRENCY=64")
	if err != nil {
		return err
	}
	defer p.close()
	for _, nodes := range []int{1, 3} {
		for len(p.nodes) < nodes {
			if err := p.join(ctx); err != nil {
				return err
			}
			b.others = append(b.others, p.nodes[len(p.nodes)-1].base)
		}
		fmt.Printf("  nodes: %d\n", nodes)
		if err := b.quietBeside(ctx, fmt.Sprintf("of-%d", nodes)); err != nil {
			return err
		}
	}
	return nil
}

// quietBeside compares a quiet tenant's runs alone with those beside another one's
// flood, below and beyond what the nodes can do.
func (b *bed) quietBeside(ctx context.Context, name string) error {
	quiet, err := b.another(ctx, "quiet-"+name)
	if err != nil {
		return err
	}
	loud, err := b.another(ctx, "loud-"+name)
	if err != nil {
		return err
	}
	few, err := quiet.threads(50)
	if err != nil {
		return err
	}
	many, err := loud.threads(clients * 8)
	if err != nil {
		return err
	}
	time.Sleep(companyFor)
	capacity, err := loud.runLoad(ctx, many, openRunsIndexed, 10_000)
	if err != nil {
		return err
	}
	together := quietRate * (louder + 1)
	fmt.Printf("  capacity %.0f runs/s; both tenants together %d: %.0f %% of it (at most 60)\n", capacity, together, 100*float64(together)/capacity)
	if _, err := quiet.quietly(ctx, few, len(few)); err != nil { // a thread's first message reads it
		return err
	}
	const rounds = 3
	beyond := int(2 * capacity)
	each := max((b.quiet+3*rounds-1)/(3*rounds), 20)
	ratios := map[int][]float64{}
	for round := range rounds {
		alone, err := quiet.quietly(ctx, few, each)
		if err != nil {
			return err
		}
		for _, rate := range []int{quietRate * louder, beyond} {
			stop := make(chan struct{})
			var flooded float64
			var loudErr error
			var wg sync.WaitGroup
			wg.Go(func() { flooded, loudErr = loud.flood(ctx, many, rate, stop) })
			beside, err := quiet.quietly(ctx, few, each)
			close(stop)
			wg.Wait()
			if err := errors.Join(err, loudErr); err != nil {
				return err
			}
			ratio := float64(quantile(beside, .99)) / float64(quantile(alone, .99))
			ratios[rate] = append(ratios[rate], ratio)
			fmt.Printf("  round %d: alone p50 %v p99 %v; beside %.0f runs/s of the other p50 %v p99 %v: %.2f\n", round+1, quantile(alone, .5), quantile(alone, .99), flooded,
				quantile(beside, .5), quantile(beside, .99), ratio)
			if err := poll(ctx, 2*time.Minute, "the end of the flood", func() bool { return b.none(ctx, openRunsIndexed) }); err != nil {
				return err
			}
		}
	}
	fmt.Printf("  p99 of the quiet tenant against its p99 alone, medians of %d rounds of %d runs: %.2f (budget: at most 1.5), beyond saturation %.2f (budget: at most 3)\n",
		rounds, each, median(ratios[quietRate*louder]), median(ratios[beyond]))
	return nil
}
