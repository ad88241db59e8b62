//go:build storm

package blackbox

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// stormLease is short, so that a storm is short too, and long enough that no node loses it
// because the machine is busy for a moment.
const stormLease = 2 * time.Second

// TestClusterOfOne is the storm on a node of its own: what it takes to restart is
// all that is lost.
func TestClusterOfOne(t *testing.T) {
	b := newBed(t, 1, stormLease)
	b.start()
	l := newLoad(t, b, b.book)
	l.subscribes(t, nil)
	s := &shaker{load: l}
	crowd := crowd{talkers: 2, clerks: 3, tellers: 5, flows: 3, revokers: 1, stalled: 1, visitors: 2, fillers: 1, drainers: 2}
	before := l.warm(t, crowd)
	l.run(t, 3*time.Minute, crowd, func(ctx context.Context) {
		for range 3 {
			s.kill(ctx)
		}
		s.cutOff(ctx, b.nodes[0], dropped)
		s.crash(ctx, 2*b.lease) // long enough for requests that begin and end in it
		s.roll(ctx)
		s.seen(ctx)
	})
	s.judged(t, before)
}

// TestClusterStorm kills, pauses and cuts nodes off while tenants are at work,
// and holds what they saw against the invariants. `make storm` does it for longer.
func TestClusterStorm(t *testing.T) {
	b := newBed(t, 3, stormLease)
	b.start()
	l := newLoad(t, b, b.book)
	l.subscribes(t, nil)
	s := &shaker{load: l}
	crowd := crowd{talkers: 3, clerks: 4, tellers: 5, flows: 3, revokers: 1, stalled: 1, visitors: 2, fillers: 1, drainers: 2}
	before := l.warm(t, crowd)
	const kills = 20
	x, y, z := b.nodes[0], b.nodes[1], b.nodes[2]
	between := map[int]func(ctx context.Context){
		3:  func(ctx context.Context) { s.pause(ctx, x) },
		6:  func(ctx context.Context) { s.crash(ctx, 2*b.lease) }, // long enough for requests that begin and end in it
		9:  func(ctx context.Context) { s.loseRedis(ctx, 3*time.Second) },
		12: func(ctx context.Context) { s.partition(ctx, x, y, refused, 3*time.Second) },
		15: func(ctx context.Context) { s.partition(ctx, y, z, dropped, 5*time.Second) },
		17: func(ctx context.Context) { s.cutOff(ctx, z, dropped) },
	}
	l.run(t, 10*time.Minute, crowd, func(ctx context.Context) {
		for range kills {
			s.kill(ctx)
			if also := between[s.kills]; also != nil {
				also(ctx)
			}
		}
		s.roll(ctx)
		s.seen(ctx)
	})
	s.judged(t, before)
}

// stormKills says how long the long storm is, in kills.
const stormKills = "SVC_STORM_KILLS"

// TestClusterLongStorm is the storm for a quarter of an hour and more: each thing
// that may happen happens again and again, in any order, and the nodes have
// networks of their own where we may make them.
func TestClusterLongStorm(t *testing.T) {
	const size = 3
	kills := 300
	if v, ok := os.LookupEnv(stormKills); ok {
		var err error
		if kills, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	each := max(kills/25, 1) // something else after so many kills
	var between network
	if n := newNamespaces(t, size); n != nil {
		between = n
	}
	b := newBedOn(t, between, size, stormLease)
	b.start()
	l := newLoad(t, b, b.book)
	l.subscribes(t, nil)
	s := &shaker{load: l}
	crowd := crowd{talkers: 3, clerks: 4, tellers: 5, flows: 3, revokers: 1, stalled: 1, visitors: 2, fillers: 1, drainers: 2}
	before := l.warm(t, crowd)
	any := func() *member { return b.nodes[rand.IntN(size)] }
	two := func() (x, y *member) {
		i := rand.IntN(size)
		return b.nodes[i], b.nodes[(i+1)%size]
	}
	things := []func(ctx context.Context){
		func(ctx context.Context) { s.pause(ctx, any()) },
		func(ctx context.Context) { s.crash(ctx, 2*b.lease) },
		func(ctx context.Context) { s.crash(ctx, b.lease/3) },
		func(ctx context.Context) { s.loseRedis(ctx, 3*time.Second) },
		func(ctx context.Context) { x, y := two(); s.partition(ctx, x, y, refused, 4*time.Second) },
		func(ctx context.Context) { x, y := two(); s.partition(ctx, x, y, dropped, 6*time.Second) },
		func(ctx context.Context) { s.cutOff(ctx, any(), dropped) },
		func(ctx context.Context) { s.cutOff(ctx, any(), refused) },
		s.roll,
	}
	l.run(t, time.Hour, crowd, func(ctx context.Context) {
		var order []int
		for s.kills < kills && ctx.Err() == nil {
			s.kill(ctx)
			if s.kills%each != 0 {
				continue
			}
			if len(order) == 0 {
				order = rand.Perm(len(things))
			}
			things[order[0]](ctx)
			order = order[1:]
		}
		s.roll(ctx)
		s.seen(ctx)
	})
	s.judged(t, before)
}
