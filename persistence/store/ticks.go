package store

import (
	"context"
	"sync"
	"time"
)

const (
	tickEvery = time.Second
	tickTime  = 5 * time.Second // of one run
)

// ticks calls run once a second, and once more when it is stopped.
type ticks struct {
	run    func(context.Context) error
	failed func(error) // logs that run failed; called once until it works again

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Start starts the loop.
func (t *ticks) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	t.wg.Go(func() { t.loop(ctx) })
	return nil
}

// Stop ends the loop and runs once more, if ctx allows.
func (t *ticks) Stop(ctx context.Context) error {
	if t.cancel == nil {
		return nil
	}
	t.cancel()
	t.wg.Wait()
	return t.run(ctx)
}

func (t *ticks) loop(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		once, cancel := context.WithTimeout(ctx, tickTime)
		err := t.run(once)
		cancel()
		if err != nil && !failing && ctx.Err() == nil {
			t.failed(err)
		}
		failing = err != nil
	}
}
