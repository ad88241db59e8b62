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
	// nudge says that there is something in the inbox.
	nudge struct{}
	// ring is an alarm that was set for a time.
	ring struct{ at time.Time }
)

// What comes by the inbox.
type (
	// turned is the answer to the turn under way, which was asked to settle results.
	turned struct {
		results []outbox.Result
		claimed outbox.Claimed
		err     error
	}
	// ended is the result of an attempt.
	ended struct{ outbox.Result }
)

// minAlarm is how soon an alarm rings at the soonest.
const minAlarm = time.Millisecond

// actor is the deliveries of one endpoint.
type actor struct {
	h  *hosting
	at outbox.Endpoint

	in     inbox
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
		d.h.wg.Go(func() { d.h.attempt(d.ctx, d, ref, a) })
	}
}

// proceed asks the next turn, or rests, or leaves.
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

// ask asks a turn, unless it would neither settle nor claim anything.
func (d *actor) ask(c cluster.Context, live bool) {
	want := 0
	if live {
		want = d.h.take(d.w.room(), d.w.inFlight == 0)
	}
	if want == 0 && len(d.w.ended) == 0 {
		return // an attempt that ends makes room
	}
	t := outbox.Turn{Endpoint: d.at, Results: d.w.ask(), Want: want, Bytes: want * placeBytes}
	ref := c.Ref()
	d.h.wg.Go(func() { d.h.turn(d, ref, t) })
}

// post brings m from a goroutine of the actor into its inbox, or sees to it where the
// actor has ended.
func (d *actor) post(ref cluster.Ref, m any) {
	if d.in.put(m) {
		ref.Send(nudge{}) // where it does not arrive, Stopped finds m
		return
	}
	d.h.finish(d.at, nil, []any{m})
}

// Stopped calls off what was not sent, settles what has ended, and gives back what was
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
