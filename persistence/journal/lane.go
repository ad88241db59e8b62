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
	"agentsvc/schemas/pause"
)

const (
	maxFlush      = 512     // commits
	maxFlushBytes = 4 << 20 // of rows, approximately
	commitSize    = 256     // bytes of a commit without its texts and documents, approximately
	freshShare    = 8       // new work gets at least one commit of so many in a full flush
	minPause      = 5 * time.Millisecond
	maxPause      = 500 * time.Millisecond
	connectTime   = 5 * time.Second
	idleCheck     = time.Second
	// A lane rests after a flush of at least restFrom and fewer than restBelow commits.
	restFrom, restBelow = 8, 64
	restAlone           = 20 * time.Millisecond // at most, and half as long as the flush took
	restBeside          = 10 * time.Millisecond // at most, and twice as long as the flush took
	restHeldBack        = 15 * time.Millisecond // beside others while flushes are slow
)

// entry is a commit in the writer.
type entry struct {
	c      *Commit
	size   int
	own    []id.UUID  // entities of which a flush has one commit
	misfit error      // of a row that does not fit its table
	values Values     // to measure rows
	until  time.Time  // of new work: when its caller stops waiting; zero: never
	done   chan error // capacity 1: the lane never waits for a caller

	// Guarded by the lane's mutex.
	queued    bool // in the queue of the lane, or held until the database is available
	abandoned bool // its caller has left
	fits      bool // new work that may be in the next flush
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

// freeEntry returns an answered entry, which no lane uses any more, to the pool.
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
	// flushing, of capacity 1, holds a value while the lane writes a batch.
	flushing chan struct{}

	mu       sync.Mutex // guards the fields below
	accepted []*entry
	fresh    []*entry // new work
	stopping bool

	// Used by the lane's goroutine only.
	conn     *conn
	lost     backend       // of the last lost connection
	failures int           // since the last flush that the database answered
	uid      id.UUID       // of the lane in the table flushes
	sent     int64         // number of the last flush; failed ones count
	kept     int64         // first flush whose row in flushes is not deleted
	patience time.Duration // time limit of a flush; see lessAtOnce
	each     time.Duration // duration of the last flush for each of its commits
	rows     *rows
	batch    []*entry
	later    []*entry
	entities map[id.UUID]struct{}
	keys     map[idemKey]struct{}
	filled   map[id.TenantID]int // commits of the last flush, by tenant
}

func newLane(w *Writer, n int) *lane {
	return &lane{w: w, n: n, wake: make(chan struct{}, 1), flushing: make(chan struct{}, 1), uid: id.NewAnywhere(), kept: 1, rows: newRows(w.schema), entities: map[id.UUID]struct{}{},
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

// withdraw removes new work that was not sent. Otherwise it notes that the caller has left
// and returns false.
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
		l.w.routes.ended(e.c, l) // resume does this for entries that the lane holds
	}
	return true
}

// answer returns the outcome to e's caller.
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
		l.up() // no commit waits for the database
		select {
		case <-l.wake:
		case <-idle.C:
			// Admission depends on whether the database is available.
			if !flushed {
				l.check()
			}
			flushed = false
		}
	}
}

// tally counts the commits of the batch by tenant, before the callers get them back.
func (l *lane) tally(batch []*entry) {
	clear(l.filled)
	for _, e := range batch {
		l.filled[e.c.Tenant]++
	}
}

// rest pauses the lane after a flush of n commits, so that commits gather. Tenants with few
// commits in that flush use the side lane in the meantime, which does not rest. If every
// tenant had few, the lane does not rest.
func (l *lane) rest(n int, took time.Duration) {
	beside, heldBack := l.w.inflight.shared()
	d := restAfter(n, took, beside, heldBack)
	if d <= 0 || l == l.w.routes.side || !slices.ContainsFunc(slices.Collect(maps.Values(l.filled)), func(n int) bool { return n >= fewCommits }) {
		return
	}
	l.w.metrics.rests.Add(d.Seconds())
	l.w.routes.rests(l, l.filled)
	pause.For(l.w.hard, d)
	l.w.routes.rested(l)
}

// restAfter returns how long a lane rests after a flush of n commits. The cost of a flush
// beside that of its commits does not depend on n, and the other work of the node and of the
// database waits for it. So the longer flushes take, the more commits should share one. After
// a flush of a few commits or a full one the lane does not rest. While several tenants are
// present the rest is longer, and longest while slow flushes limit each tenant.
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

// check tests whether an idle connection still works.
func (l *lane) check() {
	ctx, cancel := context.WithTimeout(l.w.hard, connectTime)
	defer cancel()
	if err := l.conn.raw.Ping(ctx); err != nil {
		l.broken(err)
	}
}

// late reports whether e's caller has probably stopped waiting by the time at which a flush
// of n commits that is sent now is written. It allows for twice the duration of the last
// flush.
func (l *lane) late(e *entry, now time.Time, n int) bool {
	return !e.until.IsZero() && e.until.Sub(now) <= 2*time.Duration(n)*l.each
}

// shed withdraws new work whose caller has stopped waiting. Of the rest it marks up to n that
// can be written in time together with the accepted work, the oldest first. The flush is as
// large as it can be with the newest of them in time, since a smaller flush is written
// sooner. If all would be late, the newest goes alone and measures how long a flush takes
// now. The lock is held.
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

// take takes the commits of the next flush from the queues: accepted work first, with a
// share left for new work. Of two commits that must not share a flush the later one stays,
// with all that follow it on the same entities. last reports that the queues are empty and
// stay empty.
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

// takeFrom moves up to n entries of q to the batch and returns the others.
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

// meets reports whether e shares an entity or an idempotency key with an earlier commit of
// the flush, and adds its own.
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

// hold lets entries be withdrawn while the database is unavailable.
func (l *lane) hold(batch []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range batch {
		e.queued = true
	}
}

// resume takes entries again of which nothing is written or in flight: held ones, or those
// of a flush that was rolled back. New work whose caller has left is dropped, and late work
// is withdrawn.
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

// broken drops the connection. From now on new work is refused.
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

// up accepts new work again.
func (l *lane) up() {
	l.failures = 0
	if l.down.Load() != nil {
		l.down.Store(nil)
		l.w.metrics.down.Dec()
		l.w.cfg.Log.Info().Int("lane", l.n).Msg("storage is available again")
	}
}

// reconnect tries until it has a connection, with growing pauses. It returns false when the
// context of Stop has ended.
func (l *lane) reconnect() bool {
	for {
		if l.failures > 0 && !pause.For(l.w.hard, min(maxPause, minPause<<min(l.failures-1, 10))) {
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

// refuseAll answers all commits that are still queued when the lane ends.
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
