package delivery

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/outbox"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/span"
	"agentsvc/schemas/turn"
	"agentsvc/schemas/webhook"
)

const (
	defaultPlaces = 4096
	placeBytes    = 64 << 10 // of a body; a larger one takes several places
	// While no place is free, so many endpoints of the node and of a tenant may have one attempt
	// each beyond the places.
	beyondMost = 256
	beyondEach = 32
	// Time that an attempt takes besides its time-out.
	readTimeout = 2 * time.Second // to read an endpoint
	turnTimeout = outbox.Grace - readTimeout
)

var (
	pointBeforeSend = failpoint.Declare("delivery.before_send")
	pointAfterSend  = failpoint.Declare("delivery.after_send")
)

// Config holds the kind's dependencies. Outbox, Endpoints and Sender are required.
type Config struct {
	Outbox    Outbox
	Endpoints Endpoints
	Sender    Sender
	Spans     Spans // nil: nothing is told
	// Backoff is the pause after the first failed attempt; 0: webhook.FirstPause.
	Backoff time.Duration
	// Places limits the attempts in flight on the node; each 64 KiB of a body, rounded up,
	// count as one. 0 means 4096, which is 256 MiB.
	Places int
	// Live reports whether this node still holds its lease; while it does not, no attempt
	// begins, and the sweep wakes the endpoints with due deliveries afterwards. nil means
	// always.
	Live func() bool
	Now  func() time.Time // the clock of the outbox; nil: time.Now
	Log  zerolog.Logger
}

// Register makes n host the kind. Call it before n starts; n's Stop waits for the attempts in
// flight.
func Register(n *cluster.Node, cfg Config) { register(n, cfg) }

func register(n *cluster.Node, cfg Config) *hosting {
	if cfg.Outbox == nil || cfg.Endpoints == nil || cfg.Sender == nil {
		panic("delivery: Outbox, Endpoints and Sender are required")
	}
	if cfg.Backoff <= 0 {
		cfg.Backoff = webhook.FirstPause
	}
	if cfg.Places <= 0 {
		cfg.Places = defaultPlaces
	}
	if cfg.Live == nil {
		cfg.Live = func() bool { return true }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &hosting{Config: cfg, node: n, beyond: turn.New(beyondMost, beyondEach)}
	n.Register(msg.KindDelivery, func(a cluster.Address) cluster.Behavior {
		return &actor{h: h, at: outbox.Endpoint{Tenant: a.Tenant, ID: id.WebhookID{UUID: a.ID}}}
	})
	n.OnStop(h.wait)
	return h
}

// Address returns the address of an endpoint's actor.
func Address(t id.TenantID, w id.WebhookID) cluster.Address {
	return cluster.Address{Kind: msg.KindDelivery, Tenant: t, ID: w.UUID}
}

// hosting is the state shared by all endpoints of a node.
type hosting struct {
	Config
	node   *cluster.Node
	taken  atomic.Int64 // places taken
	beyond *turn.Places // for attempts of endpoints that have none and find no free place
	wg     sync.WaitGroup
}

// wait returns when all goroutines of endpoints have ended, or with ctx.
func (h *hosting) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { h.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for deliveries: %w", ctx.Err())
	}
}

// take takes up to want places for an endpoint: at most a quarter of the free ones.
func (h *hosting) take(want int) int {
	for {
		taken := h.taken.Load()
		n := max(0, min(want, int(int64(h.Places)-taken)/4))
		if h.taken.CompareAndSwap(taken, taken+int64(n)) {
			return n
		}
	}
}

func (h *hosting) giveBack(places int) { h.taken.Add(int64(-places)) }

// placesOf returns how many places an attempt takes.
func placesOf(a outbox.Attempt) int { return max(1, (len(a.Body)+placeBytes-1)/placeBytes) }

// turn runs a turn for an actor and posts the result. It returns the places that its claims
// do not need; claims may need more than were taken, by at most those of one body.
func (h *hosting) turn(d *actor, ref cluster.Ref, t outbox.Turn) { h.run(d, ref, t, false) }

// turnBeyond is turn for one attempt of an endpoint that has none, when no place is free. It
// waits until attempts beyond the places end, in turn with other tenants, or until the actor
// has ended.
func (h *hosting) turnBeyond(ctx context.Context, d *actor, ref cluster.Ref, t outbox.Turn) {
	if h.beyond.Take(ctx, t.Endpoint.Tenant) != nil {
		return
	}
	if t.Want = 0; h.Live() { // the sweep wakes the endpoint again
		t.Want, t.Bytes = 1, placeBytes
	}
	h.taken.Add(int64(t.Want))
	h.run(d, ref, t, true)
}

func (h *hosting) run(d *actor, ref cluster.Ref, t outbox.Turn, beyond bool) {
	c, err := h.ask(t)
	spare := t.Want
	for _, a := range c.Attempts {
		spare -= placesOf(a)
	}
	h.giveBack(spare)
	if beyond && len(c.Attempts) == 0 {
		h.beyond.Give(t.Endpoint.Tenant)
		beyond = false
	}
	d.post(ref, turned{results: t.Results, claimed: c, beyond: beyond, err: err})
}

// finish settles the results that an ended actor left, those without a turn and those from
// its inbox. It gives claims back.
func (h *hosting) finish(at outbox.Endpoint, left []outbox.Result, came []any) {
	for _, m := range came {
		switch m := m.(type) {
		case ended:
			left = append(left, m.Result)
		case turned:
			if m.err != nil {
				h.lost(at, m.results, m.err)
			}
			for _, a := range m.claimed.Attempts {
				h.giveBack(placesOf(a))
				left = append(left, unsent(a))
			}
			if m.beyond {
				h.beyond.Give(at.Tenant)
			}
		}
	}
	h.settle(at, left)
}

// ask runs a turn. It claims nothing for an endpoint that nothing can be sent to.
func (h *hosting) ask(t outbox.Turn) (outbox.Claimed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), turnTimeout)
	defer cancel()
	if t.Want > 0 {
		_, open, err := h.target(ctx, t.Endpoint)
		if err != nil && len(t.Results) == 0 {
			return outbox.Claimed{}, err
		}
		if !open {
			t.Want = 0
		}
	}
	if t.Want == 0 && len(t.Results) == 0 {
		return outbox.Claimed{}, nil
	}
	c, err := h.Outbox.Turn(ctx, t)
	if err != nil {
		return outbox.Claimed{}, fmt.Errorf("ask a turn: %w", err)
	}
	return c, nil
}

// target returns where to send to; open is false if nothing may be sent.
func (h *hosting) target(ctx context.Context, at outbox.Endpoint) (to *store.Endpoint, open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	to, err = h.Endpoints.Endpoint(ctx, at.Tenant, at.ID)
	if err != nil {
		return nil, false, fmt.Errorf("read endpoint: %w", err)
	}
	return to, to != nil && to.Enabled && to.URL != "", nil
}

// attempt makes one attempt and posts its result to the actor that claimed it. beyond: it runs
// in a place beyond those of its endpoint.
func (h *hosting) attempt(ctx context.Context, d *actor, ref cluster.Ref, a outbox.Attempt, beyond bool) {
	r := h.perform(ctx, d.at, a)
	h.giveBack(placesOf(a))
	if beyond {
		h.beyond.Give(d.at.Tenant)
	}
	d.post(ref, ended{r})
}

func (h *hosting) perform(ctx context.Context, at outbox.Endpoint, a outbox.Attempt) (r outbox.Result) {
	defer func() {
		if v := recover(); v != nil {
			h.log(h.Log.Error(), at).Stringer("delivery", a.Delivery).Interface("panic", v).Bytes("stack", debug.Stack()).Msg("attempt panicked")
			r = h.result(a, Outcome{Error: "the attempt failed within the service"})
		}
	}()
	if ctx.Err() != nil {
		return unsent(a)
	}
	to, open, err := h.target(ctx, at)
	if err != nil || !open {
		return unsent(a)
	}
	failpoint.Hit(pointBeforeSend)
	sent := h.Sender.Send(ctx, to, a)
	failpoint.Hit(pointAfterSend)
	if h.Spans != nil {
		ended := h.Now()
		h.Spans.Delivery(span.Delivery{Tenant: at.Tenant, Webhook: at.ID, ID: a.Delivery, Attempt: a.N, Status: sent.HTTPStatus,
			OK: sent.Error == "" && !sent.Unsent, Began: ended.Add(-sent.Duration), Ended: ended})
	}
	return h.result(a, sent)
}

// result converts an outcome into the delivery's result (service.md, Events, Webhooks).
func (h *hosting) result(a outbox.Attempt, o Outcome) outbox.Result {
	r := outbox.Result{
		Delivery: a.Delivery, N: a.N, BegunAt: a.BegunAt, Status: lifecycle.DeliverySucceeded,
		HTTPStatus: o.HTTPStatus, Error: o.Error, Duration: o.Duration,
	}
	if o.Unsent {
		return unsent(a)
	}
	if o.Error != "" {
		r.Status = lifecycle.DeliveryFailed
		if pause, more := webhook.Pause(h.Backoff, a.N); more {
			r.Status, r.NextAt = lifecycle.DeliveryPending, h.Now().Add(pause)
		}
	}
	return r
}

// unsent gives an attempt back: it does not count.
func unsent(a outbox.Attempt) outbox.Result {
	return outbox.Result{Delivery: a.Delivery, N: a.N, BegunAt: a.BegunAt, Status: lifecycle.DeliveryPending, Unsent: true}
}

// settle makes results durable whose actor has ended, and wakes its successor, which does not
// know when they are due. Results that cannot be made durable are dropped: their rows come
// due again automatically.
func (h *hosting) settle(at outbox.Endpoint, results []outbox.Result) {
	if len(results) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), turnTimeout)
	defer cancel()
	if _, err := h.Outbox.Turn(ctx, outbox.Turn{Endpoint: at, Results: results}); err != nil {
		h.lost(at, results, err)
		return
	}
	h.node.Tell(Address(at.Tenant, at.ID), durable.Wake{})
}

func (h *hosting) lost(at outbox.Endpoint, results []outbox.Result, err error) {
	if len(results) > 0 {
		unsettled.Add(float64(len(results)))
		h.log(h.Log.Warn(), at).Err(err).Int("results", len(results)).Msg("results of attempts are lost")
	}
}

func (h *hosting) log(e *zerolog.Event, at outbox.Endpoint) *zerolog.Event {
	return e.Stringer("tenant", at.Tenant).Stringer("webhook", at.ID)
}
