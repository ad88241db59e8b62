package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// consolesCommand makes this binary the consoles of a tenant, so that the clock of its runs does
// not wait for them.
const consolesCommand = "consoles"

const (
	consoles  = 200
	feedRate  = 500 // runs a second, where one node with its load carries it
	namedRate = 20  // runs a second of which a feed names each change
)

// watched is what consolesPeer is told.
type watched struct{ Base, Tenant, Key string }

// seen is what the consoles of a tenant have received.
type seen struct{ Changes, Lost, Bytes int64 }

// benchFeed compares runs of a tenant whose feed nobody reads with the same runs beside 200 open
// feeds: at a rate at which a feed says mostly that it has lost changes, and at one at which it
// names each change.
func benchFeed(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	threads, err := b.threads(500)
	if err != nil {
		return err
	}
	rate, err := b.carried(ctx, threads)
	if err != nil {
		return err
	}
	for _, c := range []struct{ rate, rounds, seconds int }{{rate, 3, 6}, {namedRate, 3, 3}} {
		if err := b.besideConsoles(ctx, threads, c.rate, c.rounds, c.seconds); err != nil {
			return err
		}
	}
	return nil
}

// carried returns the highest rate, up to feedRate, that the node serves without a queue: half of
// the runs take no longer than twice the time of the lowest rate. It warms the threads too.
func (b *bed) carried(ctx context.Context, threads []string) (int, error) {
	rates := []int{feedRate, 350, 250, 150, 100}
	if _, err := b.paced(ctx, threads, len(threads), 100); err != nil { // a thread's first message reads it
		return 0, err
	}
	slow, err := b.paced(ctx, threads, 100, 50)
	if err != nil {
		return 0, err
	}
	for _, rate := range rates {
		began := time.Now()
		took, err := b.paced(ctx, threads, 2*rate, rate)
		if err != nil {
			return 0, err
		}
		late := time.Since(began) > 2200*time.Millisecond
		if !late && quantile(took, .5) <= 2*quantile(slow, .5) {
			return rate, nil
		}
		fmt.Printf("  %d runs/s: p50 %v against %v at 50 runs/s: a queue\n", rate, quantile(took, .5), quantile(slow, .5))
	}
	return rates[len(rates)-1], nil
}

// besideConsoles measures rounds of runs, each without and with consoles, in turn.
func (b *bed) besideConsoles(ctx context.Context, threads []string, rate, rounds, seconds int) error {
	n := rate * seconds
	var medians, tails, costs []float64
	var all [2][]time.Duration
	for round := range rounds {
		var each [2]time.Duration // CPU of the service for a run
		var took [2][]time.Duration
		for _, with := range []int{round % 2, 1 - round%2} {
			var perSecond float64
			var got seen
			measure := func() (err error) {
				perSecond, each[with], err = b.spends(n, func() (float64, error) {
					began := time.Now()
					var err error
					took[with], err = b.paced(ctx, threads, n, rate)
					return float64(n) / time.Since(began).Seconds(), err
				})
				return err
			}
			var err error
			if with == 1 {
				got, err = b.withConsoles(ctx, measure)
			} else {
				err = measure()
			}
			if err != nil {
				return err
			}
			all[with] = append(all[with], took[with]...)
			fmt.Printf("  %d consoles: %.0f runs/s, p50 %v p99 %v, %d µs of the service's CPU a run", with*consoles, perSecond, quantile(took[with], .5), quantile(took[with], .99), each[with].Microseconds())
			if with == 1 {
				fmt.Printf("; a console got %.1f changes and %.1f feed.lost a second", float64(got.Changes)/consoles/float64(seconds), float64(got.Lost)/consoles/float64(seconds))
			}
			fmt.Println()
		}
		medians = append(medians, float64(quantile(took[1], .5))/float64(quantile(took[0], .5)))
		tails = append(tails, float64(quantile(took[1], .99))/float64(quantile(took[0], .99)))
		costs = append(costs, float64(each[1])/float64(each[0]))
	}
	fmt.Printf("  %d runs/s with %d consoles against without, medians of %d rounds: p50 %.2f, p99 %.2f (budget: at most 1.2), CPU %.2f; p99 of all rounds together %.2f\n", rate, consoles, rounds,
		median(medians), median(tails), median(costs), float64(quantile(all[1], .99))/float64(quantile(all[0], .99)))
	return nil
}

// withConsoles calls during while the consoles are connected.
func (b *bed) withConsoles(ctx context.Context, during func() error) (got seen, err error) {
	self, err := os.Executable()
	if err != nil {
		return got, err
	}
	peer := exec.CommandContext(ctx, self, consolesCommand)
	peer.Stderr = os.Stderr
	in, err := peer.StdinPipe()
	if err != nil {
		return got, err
	}
	out, err := peer.StdoutPipe()
	if err != nil {
		return got, err
	}
	if err := peer.Start(); err != nil {
		return got, err
	}
	var up string
	err = json.NewEncoder(in).Encode(watched{b.base, b.tenant, b.key})
	if err == nil {
		_, err = fmt.Fscanln(out, &up)
	}
	if err == nil {
		err = during()
	}
	in.Close()
	if err == nil {
		err = json.NewDecoder(out).Decode(&got)
	} else {
		_, _ = io.Copy(io.Discard, out)
	}
	return got, errors.Join(err, peer.Wait())
}

// consolesPeer opens the feeds, says so, and counts what they get until its standard input ends.
func consolesPeer(ctx context.Context) error {
	var w watched
	from := json.NewDecoder(os.Stdin)
	if err := from.Decode(&w); err != nil {
		return err
	}
	b := &bed{base: w.Base, tenant: w.Tenant, key: w.Key}
	var got seen
	var up, done sync.WaitGroup
	var failed atomic.Pointer[error]
	var ended atomic.Bool
	for range consoles {
		up.Add(1)
		done.Go(func() {
			ready := sync.OnceFunc(up.Done)
			err := b.read("/v1/feed", "Authorization: Bearer "+b.key+"\r\nX-Tenant-Id: "+b.tenant+"\r\n", func(l []byte) bool {
				atomic.AddInt64(&got.Bytes, int64(len(l)))
				switch {
				case bytes.HasPrefix(l, []byte("event: feed.ready")):
					ready()
				case bytes.HasPrefix(l, []byte("event: feed.lost")):
					atomic.AddInt64(&got.Lost, 1)
				case bytes.HasSuffix(l, []byte(".changed")):
					atomic.AddInt64(&got.Changes, 1)
				}
				return !ended.Load()
			})
			if err != nil && !ended.Load() {
				failed.Store(&err)
			}
			ready()
		})
	}
	up.Wait()
	if _, err := fmt.Println("up"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := failed.Load(); err != nil {
		return fmt.Errorf("a feed ended: %w", *err)
	}
	ended.Store(true)
	return json.NewEncoder(os.Stdout).Encode(seen{atomic.LoadInt64(&got.Changes), atomic.LoadInt64(&got.Lost), atomic.LoadInt64(&got.Bytes)})
}
