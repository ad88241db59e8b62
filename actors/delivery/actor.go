package delivery

import (
	"context"
	"errors"
	"time"

	"agentsvc/cluster"
	"agentsvc/persistence/outbox"
)

// Messages of an actor to itself. Every other message, durable.Wake as a rule, asks
// it to look whether something is due.
type (
	// turned is the answer to the turn under way.
	turned struct {
		claimed outbox.Claimed
		err     error
	}
	// ended is the result of an attempt.
	ended struct{ outbox.Result }
	// ring is an alarm that was set for a time.
	ring struct{ at time.Time }
)

// minAlarm is how soon an alarm rings at the soonest.
const minAlarm = time.Millisecond

// actor is the deliveries of one endpoint.
type actor struct {
	h  *hosting
	at outbox.Endpoint

	w      window
	set    time.Time // the alarm that was set last and has not rung; zero: none
	born   bool      // counted in metrics
	ctx    context.Context
	cancel context.CancelFunc
}

// Receive takes one message and begins what follows.
func (d *actor) Receive(c cluster.Context, m any) {
	if !d.born {
		d.born = true
		d.ctx, d.cancel = context.WithCancel(context.Background())
		endpoints.Inc()
	}
	now := d.h.Now()
	switch m := m.(type) {
	case turned:
		d.turned(c, m, now)
	case ended:
		d.w.end(m.Result, now)
	case ring:
		if m.at.Equal(d.set) {
			d.set = time.Time{}
		}
		d.w.rang(now)
	default:
		d.w.woken = true
	}
	d.proceed(c, now)
}

func (d *actor) turned(c cluster.Context, m turned, now time.Time) {
	if m.err != nil {
		turnFailures.Inc()
		if d.w.failures == 0 {
			d.h.log(d.h.Log.Warn(), d.at).Err(m.err).Msg("deliveries cannot go on")
		}
		if errors.Is(m.err, outbox.ErrRefused) { // to ask again with the same would come to the same
			d.h.lost(d.at, d.w.asked, m.err)
			d.w.asked = nil
		}
		d.w.failed(now)
		return
	}
	d.w.answered(m.claimed)
	ref := c.Ref()
	for _, a := range m.claimed.Attempts {
		d.h.wg.Go(func() { d.h.attempt(d.ctx, ref, d.at, a) })
	}
}

// proceed asks the next turn, or rests, or leaves.
func (d *actor) proceed(c cluster.Context, now time.Time) {
	suspended := d.h.Suspended()
	if d.w.wants(!suspended) {
		d.ask(c, suspended)
	}
	if d.w.empty() || suspended && !d.w.busy() {
		c.Stop()
		return
	}
	if at := d.w.alarm(); !at.IsZero() && (d.set.IsZero() || at.Before(d.set)) {
		d.set = at
		ref := c.Ref()
		c.Node().After(max(at.Sub(now), minAlarm), func() { ref.Send(ring{at}) })
	}
}

// ask asks a turn, unless it would neither settle nor claim anything.
func (d *actor) ask(c cluster.Context, suspended bool) {
	want := 0
	if !suspended {
		want = d.h.take(d.w.room(), d.w.inFlight == 0)
	}
	if want == 0 && len(d.w.ended) == 0 {
		return // an attempt that ends makes room
	}
	t := outbox.Turn{Endpoint: d.at, Results: d.w.ask(), Want: want}
	ref := c.Ref()
	d.h.wg.Go(func() { d.h.turn(ref, t) })
}

// Stopped calls off what was not sent and settles what has ended.
func (d *actor) Stopped() {
	if !d.born {
		return
	}
	d.cancel()
	endpoints.Dec()
	if left := d.w.ended; len(left) > 0 {
		d.h.wg.Go(func() { d.h.settle(d.at, left) })
	}
}
