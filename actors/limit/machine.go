package limit

import (
	"cmp"
	"slices"
	"time"

	"agentsvc/schemas/id"
)

// Rate is the size of a bucket: Capacity tokens, one more each Every.
type Rate struct {
	Capacity int64
	Every    time.Duration
}

// PerSecond is the Rate of capacity tokens that refill so many times a second.
// What is no whole number of nanoseconds is rounded to the slower side.
func PerSecond(capacity int64, refill float64) Rate {
	every := time.Duration(float64(time.Second) / refill)
	if float64(every)*refill < float64(time.Second) {
		every++
	}
	return Rate{Capacity: capacity, Every: every}
}

// bucket counts in time: a token is worth rate.Every, and time makes credit, so
// that nothing is lost to rounding.
type bucket struct {
	rate   Rate
	credit time.Duration
	at     time.Time
	leased map[id.MemberID]*lease
	total  int64 // of all leases
}

// lease is what a node may still hold.
type lease struct {
	tokens   int64
	recalled time.Time // zero: it was not asked to give them back
}

func newBucket(r Rate, now time.Time) bucket {
	return bucket{rate: r, credit: time.Duration(r.Capacity) * r.Every, at: now, leased: map[id.MemberID]*lease{}}
}

// fill adds what time has made. Leased tokens count as still in the bucket.
func (b *bucket) fill(now time.Time) {
	d := now.Sub(b.at)
	if d <= 0 {
		return
	}
	b.at = now
	b.credit += max(min(d, b.room()), 0)
}

func (b *bucket) room() time.Duration {
	return time.Duration(b.rate.Capacity-b.total)*b.rate.Every - b.credit
}

// answer is what a bucket says to a node that asks for tokens.
type answer struct {
	granted int64
	retry   time.Duration // with a refusal: when there is a token, in whole seconds
	recall  []id.MemberID // ask these to give back
	wait    bool          // somebody may still give back: nothing is refused yet
}

// recallWait is how long a node has to answer a recall.
const recallWait = 50 * time.Millisecond

// lease grants node up to want tokens: for the requests that wait there, which
// spend theirs at once, and as many as it spent lately to hold. A node asks when
// it holds none, so whatever it held was spent.
func (b *bucket) lease(now time.Time, node id.MemberID, want, spent int64) answer {
	b.fill(now)
	b.forget(node)
	if n := min(int64(b.credit/b.rate.Every), max(want, 1)); n > 0 {
		b.credit -= time.Duration(n) * b.rate.Every
		if held := n - max(want-spent, 0); held > 0 {
			b.leased[node] = &lease{tokens: held}
			b.total += held
		}
		return answer{granted: n}
	}
	var a answer
	for m, l := range b.leased {
		switch {
		case l.recalled.IsZero():
			l.recalled = now
			a.recall = append(a.recall, m)
			a.wait = true
		case now.Sub(l.recalled) < recallWait:
			a.wait = true
		}
	}
	if !a.wait {
		a.retry = (b.rate.Every - b.credit + time.Second - 1).Truncate(time.Second)
	}
	return a
}

// giveBack returns what node does not need: it holds nothing any more.
func (b *bucket) giveBack(now time.Time, node id.MemberID, tokens int64) {
	b.fill(now)
	b.forget(node)
	b.credit += max(min(time.Duration(tokens)*b.rate.Every, b.room()), 0)
}

func (b *bucket) forget(node id.MemberID) {
	if l := b.leased[node]; l != nil {
		b.total -= l.tokens
		delete(b.leased, node)
	}
}

// restful is how long it takes until the bucket is as a new one would be; it is
// not ok while tokens are leased.
func (b *bucket) restful(now time.Time) (d time.Duration, ok bool) {
	b.fill(now)
	return b.room(), b.total == 0
}

// slots are the running places of one tenant.
type slots struct {
	limit   int // 0: as many as ask
	running map[id.RunID]time.Time
	waiting []waiter // the oldest first
}

type waiter struct {
	run     id.RunID
	created time.Time
}

func (w waiter) compare(o waiter) int {
	return cmp.Or(w.created.Compare(o.created), slices.Compare(w.run.UUID[:], o.run.UUID[:]))
}

func newSlots(limit int) slots { return slots{limit: limit, running: map[id.RunID]time.Time{}} }

// acquire notes the wish of a run and returns the runs that may run now. A run
// that holds a place is told again.
func (s *slots) acquire(now time.Time, run id.RunID, created time.Time) []id.RunID {
	if _, ok := s.running[run]; ok {
		return []id.RunID{run}
	}
	if !slices.ContainsFunc(s.waiting, func(w waiter) bool { return w.run == run }) {
		w := waiter{run, created}
		i, _ := slices.BinarySearchFunc(s.waiting, w, waiter.compare)
		s.waiting = slices.Insert(s.waiting, i, w)
	}
	return s.grant(now)
}

// release takes the place, or the wish for one, and returns the runs that may
// run now.
func (s *slots) release(now time.Time, run id.RunID) []id.RunID {
	delete(s.running, run)
	s.withdraw(run)
	return s.grant(now)
}

// take counts a run that goes on after it waited for people, also beyond the
// limit: it has waited long enough.
func (s *slots) take(now time.Time, run id.RunID) {
	s.running[run] = now
	s.withdraw(run)
}

func (s *slots) withdraw(run id.RunID) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w waiter) bool { return w.run == run })
}

func (s *slots) grant(now time.Time) []id.RunID {
	var granted []id.RunID
	for len(s.waiting) > 0 && (s.limit <= 0 || len(s.running) < s.limit) {
		run := s.waiting[0].run
		s.waiting = s.waiting[1:]
		s.running[run] = now
		granted = append(granted, run)
	}
	return granted
}

// reconcile takes what Postgres says is running, as it was read after asked. A
// run that got its place longer than grace before and does not run has lost it:
// nobody is left to give it back.
func (s *slots) reconcile(asked time.Time, running []id.RunID, grace time.Duration) []id.RunID {
	for run, since := range s.running {
		if asked.Sub(since) > grace && !slices.Contains(running, run) {
			delete(s.running, run)
		}
	}
	for _, run := range running {
		if _, ok := s.running[run]; !ok {
			s.running[run] = asked
			s.withdraw(run)
		}
	}
	return s.grant(asked)
}

func (s *slots) idle() bool { return len(s.running) == 0 && len(s.waiting) == 0 }
