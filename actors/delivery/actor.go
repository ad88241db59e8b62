package delivery

import (
	"context"
	"errors"
	"time"

	"agentsvc/cluster"
	"agentsvc/persistence/outbox"
)

// Messages of an actor to itself. Every other message, usually durable.Wake, makes it check
// for due deliveries.
type (
	// nudge reports that the inbox holds something.
	nudge struct{}
	// ring is an alarm that was set for a time.
	ring struct{ at time.Time }
)

// Entries of the inbox.
type (
	// turned is the result of the turn in flight and the results that it settled.
	turned struct {
		results []outbox.Result
		claimed outbox.Claimed
		beyond  bool // the one attempt in claimed is beyond the node's places
		err     error
	}
	// ended is the result of an attempt.
	ended struct{ outbox.Result }
)

// minAlarm is the shortest time until an alarm.
const minAlarm = time.Millisecond

// actor handles the deliveries of one endpoint.
type actor struct {
	h  *hosting
	at outbox.Endpoint

	in     inbox
	w      window
	set    time.Time // the earliest alarm that has not rung; zero: none
	born   bool      // counted in metrics
	ctx    context.Context
	cancel context.CancelFunc
}

// Receive handles one message and starts the work that follows.
func (d *actor) Receive(c cluster.Context, m any) {
	if !d.born {
		d.born = true
		d.ctx, d.cancel = context.WithCancel(context.Background())
		endpoints.Inc()
	}
	now := d.h.Now()
	switch m := m.(type) {
	case nudge:
	case ring:
		if m.at.Equal(d.set) {
			d.set = time.Time{}
		}
		d.w.rang(now)
	default:
		d.w.woken = true
	}
	for m, ok := d.in.next(); ok; m, ok = d.in.next() {
		switch m := m.(type) {
		case turned:
			d.turned(c, m, now)
		case ended:
			d.w.end(m.Result, now)
		}
	}
	d.proceed(c, now)
}

func (d *actor) turned(c cluster.Context, m turned, now time.Time) {
	if m.err != nil {
		turnFailures.Inc()
		if d.w.failures == 0 {
			d.h.log(d.h.Log.Warn(), d.at).Err(m.err).Msg("turn failed, deliveries are delayed")
		}
		if errors.Is(m.err, outbox.ErrRefused) { // the same request would be refused again
			d.h.lost(d.at, d.w.asked, m.err)
			d.w.asked = nil
		}
		d.w.failed(now)
		return
	}
	d.w.answered(m.claimed)
	ref := c.Ref()
	for _, a := range m.claimed.Attempts {
		d.h.wg.Go(func() { d.h.attempt(d.ctx, d, ref, a, m.beyond) })
	}
}

// proceed requests the next turn, waits, or leaves memory.
func (d *actor) proceed(c cluster.Context, now time.Time) {
	live := d.h.Live()
	if d.w.wants(live) {
		d.ask(c, live)
	}
	if d.w.empty() || !live && !d.w.busy() {
		c.Stop()
		return
	}
	if at := d.w.alarm(); !at.IsZero() && (d.set.IsZero() || at.Before(d.set)) {
		d.set = at
		ref := c.Ref()
		c.Node().After(max(at.Sub(now), minAlarm), func() { ref.Send(ring{at}) })
	}
}

// ask requests a turn, unless it would neither settle nor claim anything. Without a free
// place results are settled at once, and an endpoint with nothing in flight then waits for an
// attempt beyond the places.
func (d *actor) ask(c cluster.Context, live bool) {
	want := 0
	if live {
		want = d.h.take(d.w.room())
	}
	ref := c.Ref()
	if want == 0 && len(d.w.ended) == 0 {
		if d.w.inFlight == 0 {
			t := outbox.Turn{Endpoint: d.at, Results: d.w.ask()}
			d.h.wg.Go(func() { d.h.turnBeyond(d.ctx, d, ref, t) })
		}
		return // or an attempt that ends frees a place
	}
	t := outbox.Turn{Endpoint: d.at, Results: d.w.ask(), Want: want, Bytes: want * placeBytes}
	d.h.wg.Go(func() { d.h.turn(d, ref, t) })
}

// post puts m, from a goroutine of the actor, into its inbox. If the actor has ended, post
// handles m itself.
func (d *actor) post(ref cluster.Ref, m any) {
	if d.in.put(m) {
		ref.Send(nudge{}) // if it does not arrive, Stopped finds m
		return
	}
	d.h.finish(d.at, nil, []any{m})
}

// Stopped cancels unsent attempts, settles those that have ended, and gives back what was
// claimed.
func (d *actor) Stopped() {
	came := d.in.close()
	if !d.born {
		return
	}
	d.cancel()
	endpoints.Dec()
	if ended := d.w.ended; len(ended)+len(came) > 0 {
		d.h.wg.Go(func() { d.h.finish(d.at, ended, came) })
	}
}
