//go:build storm

package main

import (
	"context"
	"testing"
	"time"
)

// TestClusterStorm kills, pauses and cuts nodes off while tenants are at work,
// and holds what they saw against the invariants. `make storm` does it for longer.
func TestClusterStorm(t *testing.T) {
	b := newBed(t, 3, time.Second)
	b.start()
	l := newLoad(t, b, b.book)
	s := &shaker{load: l}
	crowd := crowd{talkers: 3, clerks: 4, tellers: 5, revokers: 1, stalled: 1}
	before := l.warm(t, crowd)
	const kills = 25
	x, y, z := b.nodes[0], b.nodes[1], b.nodes[2]
	between := map[int]func(ctx context.Context){
		4:  func(ctx context.Context) { s.pause(ctx, x) },
		8:  func(ctx context.Context) { s.crash(ctx, 2*b.lease) },
		12: func(ctx context.Context) { s.loseRedis(ctx, 3*time.Second) },
		15: func(ctx context.Context) { s.partition(ctx, x, y, refused, 3*time.Second) },
		18: func(ctx context.Context) { s.partition(ctx, y, z, dropped, 5*time.Second) },
		21: func(ctx context.Context) { s.cutOff(ctx, z, dropped) },
	}
	l.run(t, 10*time.Minute, crowd, func(ctx context.Context) {
		for range kills {
			s.kill(ctx)
			if also := between[s.kills]; also != nil {
				also(ctx)
			}
		}
		s.roll(ctx)
	})
	s.judged(t, before)
}
