package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/failpoint"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/webhook"
)

// verdict is the outcome of a transaction.
type verdict string

const (
	committed verdict = ""
	refused   verdict = "refused" // the database rejects these rows
	busy      verdict = "busy"    // rows or locks were held by others
	gone      verdict = "gone"    // no database: the outcome is unknown
	fenced    verdict = "fenced"  // this process was declared dead
)

const (
	flushTimeout = 10 * time.Second
	tries        = 4 // attempts of a flush that meets locks; then it is halved
)

var (
	pointBeforeFlush = failpoint.Declare("outbox.before_flush")
	pointAfterCommit = failpoint.Declare("outbox.after_commit")
)

// lostWords is the attempt log's text for an attempt without a result.
const lostWords = "the outcome of this attempt is not known"

// flush writes batch and answers its entries, except those to retry, which it queues.
func (o *Outbox) flush(batch []*entry) {
	for again := 0; len(batch) > 0; {
		if o.conn == nil && !o.reconnect() {
			o.answerAll(batch, fmt.Errorf("%w: it was stopped", ErrUnavailable))
			return
		}
		// While the database was down callers may have left, and their results may be
		// outdated.
		if batch = o.withoutAbandoned(batch); len(batch) == 0 {
			return
		}
		found, how, err := o.transact(batch)
		if how != committed {
			o.metrics.redone.WithLabelValues(string(how)).Inc()
		}
		switch how {
		case committed:
			o.up()
			o.settled(batch, found)
			return
		case fenced:
			o.fence()
			o.answerAll(batch, ErrFenced)
			return
		case gone:
			// Results are written again. Claims that were committed are lost: their
			// deliveries come due again automatically.
			o.broken(err)
			continue
		case busy:
			o.up()
			if again++; again < tries && pause.For(o.hard, minPause<<again) {
				continue
			}
		case refused:
			o.up()
		}
		if len(batch) == 1 || o.hard.Err() != nil {
			what := ErrRefused
			if how == busy || o.hard.Err() != nil {
				what = ErrUnavailable
			}
			o.answerAll(batch, fmt.Errorf("%w: %w", what, err))
			return
		}
		o.flush(slices.Clone(batch[:len(batch)/2]))
		batch, again = batch[len(batch)/2:], 0
	}
}

// findings are the results of a transaction, indexed by the positions of its Turns.
type findings struct {
	attempts [][]Attempt
	failed   [][]id.DeliveryID // whose last attempt was lost
	next     []time.Time
	locked   map[int][]int // positions of results whose rows are locked by others, by Turn
}

// settled answers the entries of a flush that was committed.
func (o *Outbox) settled(batch []*entry, f *findings) {
	var held []*entry
	for i, e := range batch {
		if o.cfg.OnChange != nil {
			for _, r := range e.Results {
				o.cfg.OnChange(e.Endpoint.Tenant, r.Delivery)
			}
			for _, a := range f.attempts[i] {
				o.cfg.OnChange(e.Endpoint.Tenant, a.Delivery)
			}
			for _, d := range f.failed[i] {
				o.cfg.OnChange(e.Endpoint.Tenant, d)
			}
		}
		e.claimed = append(e.claimed, f.attempts[i]...)
		if places := f.locked[i]; len(places) > 0 {
			open := make([]Result, len(places))
			for n, place := range places {
				open[n] = e.Results[place]
			}
			e.Results, e.held = open, true
			e.claimedNow(f.attempts[i])
			held = append(held, e)
			continue
		}
		next := f.next[i]
		if !next.IsZero() && !next.After(o.began) && len(e.claimed) == 0 && e.Want > 0 {
			// Another session holds the due rows, or the flush was full: asking again at once would
			// find the same.
			next = o.began.Add(lockedLater)
		}
		o.answer(e, reply{claimed: Claimed{Attempts: e.claimed, Next: next}})
	}
	o.putBack(held)
}

// claimedNow moves claimed attempts out of what e still wants.
func (e *entry) claimedNow(attempts []Attempt) {
	e.Want = max(0, e.Want-len(attempts))
	if e.Bytes == 0 {
		return
	}
	for _, a := range attempts {
		e.Bytes -= len(a.Body)
	}
	if e.Bytes <= 0 {
		e.Want, e.Bytes = 0, 0
	}
}

// transact writes batch in one transaction, in one round trip.
func (o *Outbox) transact(batch []*entry) (*findings, verdict, error) {
	ctx, cancel := context.WithTimeout(o.hard, flushTimeout)
	defer cancel()
	start := time.Now()
	o.began = o.tick()
	f := &findings{attempts: make([][]Attempt, len(batch)), failed: make([][]id.DeliveryID, len(batch)), next: make([]time.Time, len(batch)), locked: map[int][]int{}}
	var tally tally
	var b pgx.Batch
	b.Queue(prefix+"fence", o.cfg.Member)
	o.queueResults(&b, batch, f, &tally)
	o.queueClaims(&b, batch, f, &tally)
	failpoint.Hit(pointBeforeFlush)
	if err := o.conn.SendBatch(ctx, &b).Close(); err != nil {
		return nil, sortFailure(o.conn, err), err
	}
	failpoint.Hit(pointAfterCommit)
	o.metrics.flushed(len(batch), time.Since(start))
	tally.count(o.metrics)
	return f, committed, nil
}

// setBack is how far behind the time of the last flush the clock is if it was set back.
const setBack = time.Second

// tick returns the time of a flush with the database's precision, so that the flush
// recognises its own claims by it: no two flushes have the same time. It follows a clock that
// was set back, because by a time ahead of the clock every retry would be due at once.
func (o *Outbox) tick() time.Time {
	now := o.cfg.Now().UTC().Truncate(time.Microsecond)
	if ahead := o.began.Sub(now); ahead >= 0 && ahead < setBack {
		now = o.began.Add(time.Microsecond)
	}
	return now
}

// tally counts a flush's work for the metrics.
type tally struct {
	settled                map[string]int
	results, locked        int
	claimed, lost, lastOne int
}

func (t *tally) count(m *Metrics) {
	stale := t.results - t.locked
	for status, n := range t.settled {
		m.settled.WithLabelValues(status).Add(float64(n))
		stale -= n
	}
	if stale > 0 {
		m.settled.WithLabelValues("stale").Add(float64(stale))
	}
	m.claimed.Add(float64(t.claimed))
	m.lost.Add(float64(t.lost))
	if t.lastOne > 0 {
		m.settled.WithLabelValues(string(lifecycle.DeliveryFailed)).Add(float64(t.lastOne))
	}
}

// place is the position of a result in the batch.
type place struct{ turn, result int }

// queueResults adds the statements that write the results, in the same order in every
// process.
func (o *Outbox) queueResults(b *pgx.Batch, batch []*entry, f *findings, t *tally) {
	var places []place
	for i, e := range batch {
		for n := range e.Results {
			places = append(places, place{i, n})
		}
	}
	n := len(places)
	if n == 0 {
		return
	}
	result := func(p place) *Result { return &batch[p.turn].Results[p.result] }
	slices.SortFunc(places, func(a, b place) int {
		return slices.Compare(result(a).Delivery.UUID[:], result(b).Delivery.UUID[:])
	})
	var (
		ords, tries = make([]int32, n), make([]int32, n)
		tenants     = make([]id.TenantID, n)
		webhooks    = make([]id.WebhookID, n)
		deliveries  = make([]id.DeliveryID, n)
		beguns      = make([]*time.Time, n)
		statuses    = make([]string, n)
		codes       = make([]*int32, n)
		errs        = make([]*string, n)
		durations   = make([]int64, n)
		nexts       = make([]*time.Time, n)
		unsent      = make([]bool, n)
	)
	for i, p := range places {
		e, r := batch[p.turn], result(p)
		ords[i], tenants[i], webhooks[i], deliveries[i], tries[i] = int32(i), e.Endpoint.Tenant, e.Endpoint.ID, r.Delivery, int32(r.N)
		statuses[i], durations[i], unsent[i] = string(r.Status), r.Duration.Milliseconds(), r.Unsent
		if !r.BegunAt.IsZero() {
			beguns[i] = &r.BegunAt
		}
		if r.HTTPStatus != 0 {
			code := int32(r.HTTPStatus)
			codes[i] = &code
		}
		if r.Error != "" {
			errs[i] = &r.Error
		}
		switch {
		case r.Unsent:
			nexts[i] = &o.began
		case r.Status == lifecycle.DeliveryPending:
			nexts[i] = &r.NextAt
		}
	}
	t.results, t.settled = n, map[string]int{}
	b.Queue(prefix+"settle", tenants, webhooks, deliveries, tries, beguns, statuses, codes, errs, durations, nexts, unsent, o.began).Query(func(rows pgx.Rows) error {
		var status string
		_, err := pgx.ForEachRow(rows, []any{&status}, func() error {
			t.settled[status]++
			return nil
		})
		return err
	})
	b.Queue(prefix+"unsettled", ords, tenants, webhooks, deliveries, tries, beguns).Query(func(rows pgx.Rows) error {
		var ord int
		_, err := pgx.ForEachRow(rows, []any{&ord}, func() error {
			p := places[ord]
			f.locked[p.turn] = append(f.locked[p.turn], p.result)
			t.locked++
			return nil
		})
		return err
	})
}

// queueClaims adds the statements that claim deliveries and read when the next one is due.
func (o *Outbox) queueClaims(b *pgx.Batch, batch []*entry, f *findings, t *tally) {
	n := len(batch)
	ords, tenants, webhooks, wants, bytes := make([]int32, n), make([]id.TenantID, n), make([]id.WebhookID, n), make([]int32, n), make([]int64, n)
	most := min(maxTurnBytes, maxFlushBytes/n)
	for i, e := range batch {
		bytes[i] = int64(min(most, cmp.Or(e.Bytes, most)))
		ords[i], tenants[i], webhooks[i], wants[i] = int32(i), e.Endpoint.Tenant, e.Endpoint.ID, int32(min(e.Want, maxWant))
	}
	if slices.ContainsFunc(wants, func(n int32) bool { return n > 0 }) {
		b.Queue(prefix+"claim", ords, tenants, webhooks, wants, o.began, o.begunAgain(), bytes, lostWords, int64(maxFlushBytes)).Query(func(rows pgx.Rows) error {
			return o.readClaims(rows, f, t)
		})
	}
	b.Queue(prefix+"next", ords, tenants, webhooks, o.began).Query(func(rows pgx.Rows) error {
		var ord int
		var next time.Time
		_, err := pgx.ForEachRow(rows, []any{&ord, &next}, func() error {
			f.next[ord] = next
			return nil
		})
		return err
	})
}

// maxWant limits the claims of a Turn.
const maxWant = 1000

// begunAgain returns, by attempt number, when a delivery whose attempt begins now is
// attempted again if no result arrives: at the time of the next attempt.
func (o *Outbox) begunAgain() []time.Time {
	at := make([]time.Time, webhook.Attempts)
	for i := range at {
		wait, _ := webhook.Pause(o.cfg.Backoff, i+1) // none after the last attempt: the delivery ends then
		at[i] = o.began.Add(o.cfg.Timeout + Grace + wait)
	}
	return at
}

// readClaims reads the claimed attempts, in the order in which they were due.
func (o *Outbox) readClaims(rows pgx.Rows, f *findings, t *tally) error {
	type claim struct {
		Attempt
		due time.Time
	}
	found := make([][]claim, len(f.attempts))
	var (
		c             claim
		ord           int
		lost, lastOne bool
	)
	_, err := pgx.ForEachRow(rows, []any{&ord, &c.due, &lost, &lastOne, &c.Delivery, &c.Event, &c.Type, &c.Body, &c.N}, func() error {
		if lost {
			t.lost++
		}
		if lastOne {
			t.lastOne++
			f.failed[ord] = append(f.failed[ord], c.Delivery)
		} else {
			c.BegunAt = o.began
			found[ord] = append(found[ord], c)
			t.claimed++
		}
		c.Body = nil // the next one gets its own
		return nil
	})
	if err != nil {
		return err
	}
	for ord, claims := range found {
		slices.SortStableFunc(claims, func(a, b claim) int {
			return cmp.Or(a.due.Compare(b.due), slices.Compare(a.Delivery.UUID[:], b.Delivery.UUID[:]))
		})
		for _, c := range claims {
			f.attempts[ord] = append(f.attempts[ord], c.Attempt)
		}
	}
	return nil
}
