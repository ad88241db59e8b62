package bucket

import (
	"slices"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/quota"
)

// Rate is the size and speed of a bucket: Capacity tokens, and one more each Every.
type Rate struct {
	Capacity int64
	Every    time.Duration
}

// PerSecond returns the Rate of a bucket with this capacity and refill tokens a second. The
// time for a token is rounded up to whole nanoseconds.
func PerSecond(capacity int64, refill float64) Rate {
	every := time.Duration(float64(time.Second) / refill)
	if float64(every)*refill < float64(time.Second) {
		every++
	}
	return Rate{Capacity: capacity, Every: every}
}

// perMinute returns the Rate of a bucket with capacity n and n tokens a minute.
func perMinute(n int64) Rate {
	return Rate{Capacity: n, Every: (time.Minute + time.Duration(n-1)) / time.Duration(n)}
}

// slowest is an upper bound of the time in which such a bucket is full.
const slowest = time.Minute + time.Second

// bucket stores credit as time: a token costs rate.Every, and passing time adds credit, so
// nothing is lost to rounding. A bucket with a rate by the minute stores a minute of credit.
// Another rate is another price of a token; so whatever its rates were, the bucket never
// admits more than one that has had the highest of them all the time.
//
// Leased tokens count as still in the bucket until their node reports them as spent. The
// report comes late, but it also says how long ago the last token was spent, and the bucket
// then counts the time since as if it had known. So it never has more than a bucket that
// is told of each request at once.
type bucket struct {
	rate   Rate
	minute int64 // the rate is perMinute(minute), from the last Lease; 0: the Keeper's rate
	credit time.Duration
	at     time.Time     // the time up to which credit was added; it stays behind while the bucket is full
	leases []*lease      // one for each node; few, and there may be a bucket for each visitor: no map
	out    time.Duration // the worth of all leased tokens
}

// lease is the account of one node with a bucket.
type lease struct {
	node     id.MemberID
	tokens   int64         // granted, and not reported yet
	each     time.Duration // the worth of each token: the rate may have changed since
	granted  int64         // the answer to the Lease numbered seq
	seq      uint64        // the number of the last Lease that got tokens
	done     uint64        // leases up to this number are reported
	returned int64         // the total that the node gave back so far
	at       time.Time     // the time of the last grant
	recalled time.Time     // zero: the node was not asked to give the tokens back
	listed   bool          // the node was in the list of living members once: if it is missing now, it is dead, and not new
}

// worth returns the worth of the lease's tokens.
func (l *lease) worth() time.Duration { return time.Duration(l.tokens) * l.each }

// newBucket makes a full bucket.
func newBucket(r Rate, now time.Time) *bucket {
	return &bucket{rate: r, credit: r.full(), at: now}
}

// of returns the lease of a node, or nil.
func (b *bucket) of(node id.MemberID) *lease {
	if i := slices.IndexFunc(b.leases, func(l *lease) bool { return l.node == node }); i >= 0 {
		return b.leases[i]
	}
	return nil
}

// full returns the time in which an empty bucket is full.
func (r Rate) full() time.Duration { return time.Duration(r.Capacity) * r.Every }

// quota returns the quota of a bucket with left tokens.
func (r Rate) quota(left int64) quota.Quota {
	left = min(max(left, 0), r.Capacity)
	return quota.Quota{Limit: r.Capacity, Remaining: left, Reset: time.Duration(r.Capacity-left) * r.Every}
}

// fill adds the credit for the time since the last fill, as far as there is room.
func (b *bucket) fill(now time.Time) {
	if d := min(now.Sub(b.at), b.room()); d > 0 {
		b.credit += d
		b.at = b.at.Add(d)
	}
}

// room returns how much credit the bucket may still get.
func (b *bucket) room() time.Duration { return b.rate.full() - b.out - b.credit }

// since begins the time that adds credit at from: before it the bucket was full.
func (b *bucket) since(from time.Time) {
	if b.at.Before(from) {
		b.at = from
	}
}

// reprice gives the bucket the rate perMinute(n) from now on.
func (b *bucket) reprice(now time.Time, n int64) {
	if n <= 0 || n == b.minute {
		return
	}
	b.fill(now)
	b.since(now)
	b.rate, b.minute = perMinute(n), n
	b.trim()
}

// trim drops credit beyond the capacity.
func (b *bucket) trim() { b.credit = max(b.credit+min(b.room(), 0), 0) }

// answer is a bucket's answer to a node that asks for tokens.
type answer struct {
	granted int64
	left    int64         // with a grant: the tokens left in the bucket
	retry   time.Duration // with a refusal: when there is a token, in whole seconds
	recall  []id.MemberID // the nodes to recall from
	wait    bool          // a node may still give back: nothing is refused yet
}

const (
	// recallWait is how long a node has to answer a recall.
	recallWait = 50 * time.Millisecond
	// recallAgain is when a node that did not answer is recalled again.
	recallAgain = time.Second
)

// others is what a bucket has to know of the nodes.
type others struct {
	living func(id.MemberID) bool
	lapse  time.Duration // after it a node spends no unreported token any more
}

// take grants one token that is spent at once.
func (b *bucket) take(now time.Time, o others) answer {
	if b.some(now, 1, o) > 0 {
		b.since(now)
		b.credit -= b.rate.Every
		return answer{granted: 1, left: b.left()}
	}
	return b.refuse(now, o)
}

// some returns how many of want tokens the bucket has.
func (b *bucket) some(now time.Time, want int64, o others) int64 {
	b.fill(now)
	if b.credit < b.rate.Every {
		b.lapse(now, o)
	}
	return min(int64(b.credit/b.rate.Every), max(want, 1))
}

// lease grants a node up to m.Want tokens. A node asks when it has none, so all tokens that it
// had were spent or given back.
func (b *bucket) lease(now time.Time, m Lease, o others) answer {
	l := b.of(m.Node)
	if l == nil {
		l = &lease{node: m.Node, returned: m.Returned}
		b.leases = append(b.leases, l)
	}
	switch {
	case m.Seq <= l.done || m.Seq < l.seq:
		return answer{} // it came late, and no request waits for its answer
	case m.Seq == l.seq && l.tokens > 0:
		l.at = now
		return answer{granted: l.granted, left: b.left()}
	}
	b.settle(now, l, m.Returned, m.Idle, o)
	b.reprice(now, m.PerMinute)
	n := b.some(now, m.Want, o)
	if n <= 0 {
		return b.refuse(now, o)
	}
	l.tokens, l.each, l.granted, l.seq, l.at, l.recalled = n, b.rate.Every, n, m.Seq, now, time.Time{}
	l.listed = l.listed || o.living(m.Node)
	b.credit -= l.worth()
	b.out += l.worth()
	return answer{granted: n, left: b.left()}
}

// left returns the tokens in the bucket.
func (b *bucket) left() int64 { return int64(b.credit / b.rate.Every) }

// refuse answers when there will be a token, unless nodes may still give some back.
func (b *bucket) refuse(now time.Time, o others) answer {
	var a answer
	var lapses time.Time // when the first unreported lease lapses
	for _, l := range b.leases {
		if l.tokens == 0 {
			continue
		}
		if end := l.at.Add(o.lapse); lapses.IsZero() || end.Before(lapses) {
			lapses = end
		}
		switch silent := now.Sub(l.recalled); {
		case l.recalled.IsZero() || silent >= recallAgain:
			l.recalled = now
			a.recall = append(a.recall, l.node)
			a.wait = true
		case silent < recallWait:
			a.wait = true
		}
	}
	if a.wait {
		return a
	}
	a.retry = b.rate.Every - b.credit
	if b.rate.full()-b.out < b.rate.Every { // no credit comes while all tokens are leased
		a.retry = lapses.Sub(now) + b.rate.Every
	}
	a.retry = (max(a.retry, 1) + time.Second - 1).Truncate(time.Second)
	return a
}

// lapse ends the leases of nodes that are no members any more, or that were silent for
// longer than they may spend tokens. Their tokens count as spent.
func (b *bucket) lapse(now time.Time, o others) {
	for _, l := range b.leases {
		switch end := l.at.Add(o.lapse); {
		case l.tokens == 0:
		case now.After(end):
			b.release(now, l, 0, end)
		case o.living(l.node):
			l.listed = true
		case l.listed:
			b.release(now, l, 0, now)
		}
	}
}

// giveBack takes a node's report of its leases up to m.Seq.
func (b *bucket) giveBack(now time.Time, m GiveBack, o others) {
	l := b.of(m.Node)
	if l == nil || m.Seq < l.seq || m.Seq < l.done { // a later Lease or GiveBack has reported it
		return
	}
	l.done = m.Seq
	b.settle(now, l, m.Returned, m.Idle, o)
}

// settle ends the open lease of a node. A node that has forgotten when it spent its tokens
// reports the present. It was not after the lease lapsed, and other nodes were told so.
func (b *bucket) settle(now time.Time, l *lease, returned int64, idle time.Duration, o others) {
	back := returned - l.returned
	if back < 0 { // the node has forgotten the bucket meanwhile and counts anew
		back = returned
	}
	l.returned = returned
	if l.tokens > 0 {
		idle = max(idle, now.Sub(l.at.Add(o.lapse)), 0)
		b.release(now, l, min(back, l.tokens), now.Add(-idle))
	}
}

// release ends a lease: back tokens were not spent, and the others were spent by the time
// spent at the latest.
func (b *bucket) release(now time.Time, l *lease, back int64, spent time.Time) {
	b.fill(now)
	if spent.Before(l.at) {
		spent = l.at
	}
	b.since(spent)
	b.out -= l.worth()
	b.credit += time.Duration(back) * l.each
	b.trim()
	l.tokens, l.recalled = 0, time.Time{}
	b.fill(now)
}

// restful reports whether the bucket is in the state of a new one: full, with nothing
// leased.
func (b *bucket) restful(now time.Time, o others) bool {
	b.fill(now)
	b.lapse(now, o)
	return b.out == 0 && b.room() <= 0
}

// carried returns the bucket as it is sent to another node.
func (b *bucket) carried(h name, now time.Time) Carried {
	b.fill(now)
	c := Carried{Tenant: h.tenant, ID: h.id, Credit: b.credit, PerMinute: b.minute}
	for _, l := range b.leases {
		c.Leases = append(c.Leases, CarriedLease{Node: l.node, Tokens: l.tokens, Each: l.each, Granted: l.granted, Seq: l.seq, Done: l.done, Returned: l.returned, Age: now.Sub(l.at)})
	}
	return c
}

// merge combines b with c, so that b has no more than either: each may know of spendings
// that the other does not know. It is idempotent.
func (b *bucket) merge(c Carried, now time.Time) {
	b.fill(now)
	b.since(now)
	b.credit = min(b.credit, c.Credit)
	for _, k := range c.Leases {
		l := b.of(k.Node)
		switch {
		case l == nil:
			l = &lease{}
			b.leases = append(b.leases, l)
		case l.seq > k.Seq || l.done > k.Done:
			continue
		}
		b.out -= l.worth()
		*l = lease{node: k.Node, tokens: k.Tokens, each: k.Each, granted: k.Granted, seq: k.Seq, done: k.Done, returned: k.Returned, at: now.Add(-k.Age)}
		b.out += l.worth()
	}
	b.trim()
}
