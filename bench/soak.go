package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	soakRate = 60 // runs a second, over all nodes
	// soakSettles is how much of a soak is warming up: pools, caches and heaps fill.
	soakSettles = 5 // one part in so many
)

// held is what a node holds at a moment.
type held struct{ goroutines, descriptors, heap, resident float64 }

func (b *bed) held() held {
	return held{b.metric("go_goroutines"), b.metric("process_open_fds"), b.metric("go_memstats_heap_inuse_bytes") / (1 << 20), b.metric("process_resident_memory_bytes") / (1 << 20)}
}

// benchSoak runs three nodes under an even load for long and tells whether what
// they hold grows: the median of the last third against that of the first third
// after warming up. Of the clients a third polls, a third reads the stream to its
// end, and a third vanishes in the middle of it.
func benchSoak(ctx context.Context, b *bed) error {
	p, err := clustered(ctx, b, "SVC_RUN_CONCURRENCY=64")
	if err != nil {
		return err
	}
	defer p.close()
	for range 2 {
		if err := p.join(ctx); err != nil {
			return err
		}
	}
	threads, err := b.threads(500)
	if err != nil {
		return err
	}
	any := func() *bed { return p.nodes[rand.IntN(len(p.nodes))] }
	var done atomic.Int64
	var failed atomic.Pointer[error]
	one := func(i int) error {
		run, err := any().post(threads[i%len(threads)], "/delay 10ms\n/tokens 40")
		if err != nil {
			return err
		}
		lines := 0
		switch i % 3 {
		case 0:
			return any().ended(run, 50*time.Millisecond)
		case 1:
			return any().follow(run, "", func(l []byte) bool { return !bytes.Equal(l, []byte("event: run.completed")) })
		}
		return any().follow(run, "", func([]byte) bool { lines++; return lines < 20 })
	}
	fmt.Printf("  %d runs/s for %v\n", soakRate, b.soak)
	samples := make([][]held, len(p.nodes))
	var wg sync.WaitGroup
	start, tick, sample := time.Now(), time.NewTicker(time.Second/soakRate), time.NewTicker(5*time.Second)
	defer tick.Stop()
	defer sample.Stop()
	room := make(chan struct{}, clients)
	for i := 0; time.Since(start) < b.soak && failed.Load() == nil && ctx.Err() == nil; {
		select {
		case <-tick.C:
			room <- struct{}{}
			wg.Go(func() {
				if err := one(i); err != nil {
					failed.Store(&err)
				}
				done.Add(1)
				<-room
			})
			i++
		case <-sample.C:
			for n, node := range p.nodes {
				samples[n] = append(samples[n], node.held())
			}
		case <-ctx.Done():
		}
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Printf("  %d runs\n", done.Load())
	grown := false
	for n, s := range samples {
		s = s[len(s)/soakSettles:]
		third := len(s) / 3
		if third == 0 {
			return errors.New("too short to tell")
		}
		for _, what := range []struct {
			name  string
			of    func(held) float64
			slack float64 // what may come and go
		}{
			{"goroutines", func(h held) float64 { return h.goroutines }, 20},
			{"descriptors", func(h held) float64 { return h.descriptors }, 20},
			{"heap MiB", func(h held) float64 { return h.heap }, 8},
			{"resident MiB", func(h held) float64 { return h.resident }, 16},
		} {
			mid := func(s []held) float64 {
				v := make([]float64, len(s))
				for i := range s {
					v[i] = what.of(s[i])
				}
				return median(v)
			}
			first, last := mid(s[:third]), mid(s[len(s)-third:])
			verdict := ""
			if last > first*1.1+what.slack {
				verdict, grown = ": GROWN", true
			}
			fmt.Printf("  node %d, %s: %.0f in the first third, %.0f in the last%s\n", n+1, what.name, first, last, verdict)
		}
	}
	if grown {
		return errors.New("something grows")
	}
	return nil
}
