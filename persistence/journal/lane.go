package journal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/schemas/id"
)

const (
	maxFlush      = 512     // commits
	maxFlushBytes = 4 << 20 // of rows, about
	commitSize    = 256     // bytes of a commit without its texts and documents, about
	freshShare    = 8       // new work gets at least one in so many places of a full flush
	minPause      = 5 * time.Millisecond
	maxPause      = 500 * time.Millisecond
	connectTime   = 5 * time.Second
	idleCheck     = time.Second
	// After a flush of at least restFrom commits and fewer than restBelow a lane rests.
	restFrom, restBelow = 8, 64
	restAlone           = 20 * time.Millisecond // at most, and half as long as the flush took
	restBeside          = 10 * time.Millisecond // at most, and twice as long as the flush took
	restHeldBack        = 15 * time.Millisecond // beside others while flushes are slow
)

// entry is a commit on its way.
type entry struct {
	c      *Commit
	size   int
	own    []id.UUID  // entities whose commits do not share a flush with it
	misfit error      // of a row that does not fit its table
	values Values     // to measure rows
	until  time.Time  // of new work: nobody waits for its answer any more; zero: never
	done   chan error // capacity 1: the lane never waits for a caller

	// Guarded by the lane's mutex.
	queued    bool // in the lane's queue, or held by a lane that has no database
	abandoned bool // its caller has left
	fits      bool // new work that may go with the next flush
}

var entries = sync.Pool{New: func() any { return &entry{done: make(chan error, 1)} }}

func newEntry(ctx context.Context, c *Commit) *entry {
	e := entries.Get().(*entry)
	e.c, e.size, e.own, e.misfit, e.until, e.queued, e.abandoned = c, commitSize, e.own[:0], nil, time.Time{}, false, false
	c.each(func(r Row) {
		e.values.measure(r)
		e.size += e.values.size
		if e.values.of.entity {
			e.own = append(e.own, e.values.ids[0])
		}
		if e.misfit == nil {
			e.misfit = e.values.err
		}
	})
	if c.New {
		e.until = c.Until
		if end, ok := ctx.Deadline(); ok && (e.until.IsZero() || end.Before(e.until)) {
			e.until = end
		}
	}
	return e
}

// freeEntry is for entries that were answered and that the lane has left.
func freeEntry(e *entry) {
	e.c = nil
	entries.Put(e)
}

// idemKey is an idempotency key of a tenant.
type idemKey struct {
	tenant id.TenantID
	digest [32]byte
}

// lane writes the commits of its shards, one flush after another.
type lane struct {
	w    *Writer
	n    int
	wake chan struct{} // capacity 1
	down atomic.Pointer[error]

	mu       sync.Mutex // guards the fields below
	accepted []*entry
	fresh    []*entry // new work
	stopping bool

	// Of the lane's goroutine alone.
	conn     *conn
	lost     backend       // of the last lost connection
	failures int           // since the last flush that the database answered
	uid      id.UUID       // of the lane in the table flushes
	sent     int64         // flushes, also those that failed: the number of the last one
	kept     int64         // the evidence of earlier flushes is deleted
	patience time.Duration // with a flush; see lessAtOnce
	each     time.Duration // how long the last flush took for each of its commits
	rows     *rows
	batch    []*entry
	later    []*entry
	entities map[id.UUID]struct{}
	keys     map[idemKey]struct{}
	filled   map[id.TenantID]int // whose commits the last flush had
}

func newLane(w *Writer, n int) *lane {
	return &lane{w: w, n: n, wake: make(chan struct{}, 1), uid: id.NewAnywhere(), kept: 1, rows: newRows(w.schema), entities: map[id.UUID]struct{}{},
		keys: map[idemKey]struct{}{}, filled: map[id.TenantID]int{}}
}

func (l *lane) push(e *entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopping || !l.w.running.Load():
		return fmt.Errorf("%w: %w", ErrUnavailable, errNotRunning)
	case !e.c.New:
		l.accepted = append(l.accepted, e)
		l.w.metrics.queue.WithLabelValues("accepted").Inc()
	case len(l.fresh) >= l.w.cfg.Queue:
		return fmt.Errorf("%w: the queue of new work is full", ErrUnavailable)
	default:
		l.fresh = append(l.fresh, e)
		l.w.metrics.queue.WithLabelValues("new").Inc()
	}
	e.queued = true
	l.signal()
	return nil
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// withdraw takes new work back that was not sent; else its caller leaves it.
func (l *lane) withdraw(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.abandoned = true
	if !e.queued || !e.c.New {
		return false
	}
	e.queued = false
	if i := slices.Index(l.fresh, e); i >= 0 {
		l.fresh = slices.Delete(l.fresh, i, i+1)
		l.w.metrics.queue.WithLabelValues("new").Dec()
		l.w.routes.ended(e.c, l) // of what a lane holds it says so itself: resume
	}
	return true
}

// answer tells e's caller how it ended.
func (l *lane) answer(e *entry, err error) {
	l.w.routes.ended(e.c, l)
	e.done <- err
}

func (l *lane) answerAll(batch []*entry, err error) {
	for _, e := range batch {
		l.answer(e, err)
	}
}

func (l *lane) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopping = true
	l.signal()
}

func (l *lane) loop() {
	defer func() {
		if l.conn != nil {
			l.conn.close()
		}
	}()
	idle := time.NewTicker(idleCheck)
	defer idle.Stop()
	flushed := false
	for {
		if l.conn == nil && !l.reconnect() {
			l.refuseAll()
			return
		}
		batch, last := l.take()
		if len(batch) > 0 {
			n, start := len(batch), l.w.cfg.Now()
			l.tally(batch)
			l.flush(batch)
			flushed = true
			l.rest(n, l.w.cfg.Now().Sub(start))
			continue
		}
		if last {
			return
		}
		l.up() // nothing that is known to be unwritable waits
		select {
		case <-l.wake:
		case <-idle.C:
			// Who is asked for admission must know that the database is gone.
			if !flushed {
				l.check()
			}
			flushed = false
		}
	}
}

// tally notes whose commits fill the batch: once answered they are their callers'.
func (l *lane) tally(batch []*entry) {
	clear(l.filled)
	for _, e := range batch {
		l.filled[e.c.Tenant]++
	}
}

// rest lets commits gather after a flush of n that took so long. Who had few in that
// flush takes the side lane meanwhile, which does not rest; where all had few there is
// nobody to rest for.
func (l *lane) rest(n int, took time.Duration) {
	beside, heldBack := l.w.turns.shared()
	d := restAfter(n, took, beside, heldBack)
	if d <= 0 || l == l.w.routes.side || !slices.ContainsFunc(slices.Collect(maps.Values(l.filled)), func(n int) bool { return n >= fewCommits }) {
		return
	}
	l.w.metrics.rests.Add(d.Seconds())
	l.w.routes.rests(l, l.filled)
	pause(l.w.hard, d)
	l.w.routes.rested(l)
}

// restAfter is how long a lane rests after a flush of n that took so long. What a flush
// costs beside its commits is the same for few and for many, and whoever else is on the
// machines of the node and of the database waits for it: the longer flushes take, the
// more commits share one. A few wait for nobody, and a full flush costs little as it is.
// Beside other tenants there is more to be saved, for them, and most while tenants are
// held back because flushes are slow.
func restAfter(n int, took time.Duration, beside, heldBack bool) time.Duration {
	switch {
	case n < restFrom || n >= restBelow:
		return 0
	case beside && heldBack:
		return restHeldBack
	case beside:
		return min(2*took, restBeside)
	}
	return min(took/2, restAlone)
}

// check finds out whether an idle connection still lives.
func (l *lane) check() {
	ctx, cancel := context.WithTimeout(l.w.hard, connectTime)
	defer cancel()
	if err := l.conn.raw.Ping(ctx); err != nil {
		l.broken(err)
	}
}

// late reports whether e's caller will most likely have stopped waiting when a flush of n
// commits that is sent now is written. It may take twice as long as the last one did.
func (l *lane) late(e *entry, now time.Time, n int) bool {
	return !e.until.IsZero() && e.until.Sub(now) <= 2*time.Duration(n)*l.each
}

// shed withdraws the new work that nobody waits for any more, and marks up to n others that
// can be written in time beside so much accepted work, the oldest first. The flush is as
// large as it can be for the newest to be in time: the fewer it has, the sooner it is
// written. Where all would be too late the newest one goes alone, and shows how long a
// flush takes now. The lock is held.
func (l *lane) shed(n, accepted int) {
	now := time.Now()
	kept := l.fresh[:0]
	for _, e := range l.fresh {
		if !e.until.IsZero() && !now.Before(e.until) {
			e.queued = false
			l.answer(e, ErrWithdrawn)
			continue
		}
		e.fits = false
		kept = append(kept, e)
	}
	l.w.metrics.queue.WithLabelValues("new").Sub(float64(len(l.fresh) - len(kept)))
	clear(l.fresh[len(kept):])
	l.fresh = kept
	fit := 0
	for i := len(kept) - 1; i >= 0 && fit < n; i-- {
		if !l.late(kept[i], now, accepted+fit+1) {
			fit++
		}
	}
	for i, left := 0, fit; i < len(kept) && left > 0; i++ {
		if !l.late(kept[i], now, accepted+fit) {
			kept[i].fits = true
			left--
		}
	}
	if fit+accepted == 0 && len(kept) > 0 {
		kept[len(kept)-1].fits = true
	}
}

// take takes the next flush's commits out of the queues: accepted work first,
// with a share left for new work. Of two commits that must not meet in one flush
// the later stays, and all that follow it on the same entities. last says that
// the queues are empty and stay so.
func (l *lane) take() (batch []*entry, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.entities)
	clear(l.keys)
	l.batch = l.batch[:0]
	bytes := 0
	share, acceptedBytes := min(len(l.fresh), max(maxFlush/freshShare, maxFlush-len(l.accepted))), maxFlushBytes
	if share > 0 {
		acceptedBytes -= maxFlushBytes / freshShare
	}
	l.accepted = l.takeFrom(l.accepted, maxFlush-share, acceptedBytes, &bytes, "accepted")
	l.shed(maxFlush-len(l.batch), len(l.batch))
	l.fresh = l.takeFrom(l.fresh, maxFlush-len(l.batch), maxFlushBytes, &bytes, "new")
	return l.batch, l.stopping && len(l.accepted)+len(l.fresh) == 0
}

// takeFrom moves up to n entries of q to the batch and returns what stays.
func (l *lane) takeFrom(q []*entry, n, maxBytes int, bytes *int, work string) []*entry {
	l.later = l.later[:0]
	i, taken := 0, 0
	for ; i < len(q) && taken < n && (*bytes < maxBytes || len(l.batch) == 0); i++ {
		e := q[i]
		if e.c.New && !e.fits || l.meets(e) {
			l.later = append(l.later, e)
			continue
		}
		e.queued = false
		l.batch = append(l.batch, e)
		*bytes += e.size
		taken++
	}
	gone := i - len(l.later)
	l.w.metrics.queue.WithLabelValues(work).Sub(float64(gone))
	copy(q[gone:i], l.later)
	n = copy(q, q[gone:])
	clear(q[n:])
	clear(l.later)
	return q[:n]
}

// meets reports whether e shares an entity or an idempotency key with a commit
// before it, and notes its own.
func (l *lane) meets(e *entry) bool {
	met := false
	for _, u := range e.own {
		if _, there := l.entities[u]; there {
			met = true
			continue
		}
		l.entities[u] = struct{}{}
	}
	if c := e.c; c.Idempotency != nil {
		key := idemKey{c.Tenant, c.Idempotency.Digest}
		if _, there := l.keys[key]; there {
			met = true
		}
		l.keys[key] = struct{}{}
	}
	return met
}

// hold makes entries withdrawable while there is no database.
func (l *lane) hold(batch []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range batch {
		e.queued = true
	}
}

// resume takes entries again, of which nothing is written and nothing under way: those that
// were held, or a flush that the database has refused. New work whose caller has left is
// dropped, and what is late is withdrawn.
func (l *lane) resume(batch []*entry) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	kept := batch[:0]
	for _, e := range batch {
		if e.c.New && e.abandoned {
			l.w.routes.ended(e.c, l)
			continue
		}
		e.queued = false
		if l.late(e, now, len(batch)) {
			l.answer(e, ErrWithdrawn)
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

// broken drops the connection and closes the door for new work.
func (l *lane) broken(err error) {
	if l.down.Swap(&err) == nil {
		l.w.metrics.down.Inc()
		l.w.cfg.Log.Warn().Err(err).Int("lane", l.n).Msg("storage is not available, commits wait")
	}
	l.failures++
	if l.conn != nil {
		l.lost = l.conn.backend
		l.conn.close()
		l.conn = nil
	}
}

// up opens the door again.
func (l *lane) up() {
	l.failures = 0
	if l.down.Load() != nil {
		l.down.Store(nil)
		l.w.metrics.down.Dec()
		l.w.cfg.Log.Info().Int("lane", l.n).Msg("storage is available again")
	}
}

// reconnect tries until it has a connection, with growing pauses; false: Stop's
// patience has ended.
func (l *lane) reconnect() bool {
	for {
		if l.failures > 0 && !pause(l.w.hard, min(maxPause, minPause<<min(l.failures-1, 10))) {
			return false
		}
		ctx, cancel := context.WithTimeout(l.w.hard, connectTime)
		c, err := connect(ctx, l.w.cfg.Pool, l.w.schema.texts, l.lost)
		cancel()
		if err == nil {
			l.conn, l.lost = c, backend{}
			l.w.metrics.reconnects.Inc()
			return true
		}
		if l.w.hard.Err() != nil {
			return false
		}
		l.broken(err)
	}
}

// refuseAll answers everything that is still queued when the lane ends.
func (l *lane) refuseAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range [][]*entry{l.accepted, l.fresh} {
		for _, e := range q {
			e.queued = false
			l.answer(e, fmt.Errorf("%w: %w", ErrUnavailable, errNotRunning))
		}
	}
	l.w.metrics.queue.WithLabelValues("accepted").Sub(float64(len(l.accepted)))
	l.w.metrics.queue.WithLabelValues("new").Sub(float64(len(l.fresh)))
	l.accepted, l.fresh = nil, nil
}
