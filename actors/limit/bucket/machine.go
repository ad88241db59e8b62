package bucket

import (
	"slices"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/quota"
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

// perMinute is the Rate of a bucket to which n tokens come back in a minute, and
// which holds as many.
func perMinute(n int64) Rate {
	return Rate{Capacity: n, Every: (time.Minute + time.Duration(n-1)) / time.Duration(n)}
}

// slowest is at least how long a bucket of such a Rate takes to be full.
const slowest = time.Minute + time.Second

// bucket counts in time: a token is worth rate.Every, and time makes credit, so
// that nothing is lost to rounding. A bucket whose rate is by the minute is a minute
// of credit: another rate is another price of a token, and whatever the rates were, it
// never admits more than a bucket that has had the highest of them all the time.
//
// Leased tokens count as still in the bucket until their node has said that they
// are spent. It says so late, but also how long ago the last one was spent, and
// the bucket then takes the time since as if it had known: it never has more
// than one that is told of every request at once.
type bucket struct {
	rate   Rate
	minute int64 // the rate is perMinute of it, as who asked last said; 0: it is the Keeper's
	credit time.Duration
	at     time.Time     // up to here time has made credit; behind while there is no room
	leases []*lease      // one for each node; few, and there may be a bucket for each visitor: no map
	out    time.Duration // what the tokens of all leases are worth
}

// lease is what a bucket knows of a node.
type lease struct {
	node     id.MemberID
	tokens   int64         // granted and not accounted for
	each     time.Duration // what each is worth: the rate may have changed since
	granted  int64         // by the Lease numbered seq
	seq      uint64        // of the last Lease that was granted something
	done     uint64        // leases up to here are accounted for
	returned int64         // what the node has given back so far
	at       time.Time     // of the last grant
	recalled time.Time     // zero: it was not asked to give them back
	listed   bool          // the node was seen among those who live: where it is missing there, it is dead, and not new
}

func (l *lease) worth() time.Duration { return time.Duration(l.tokens) * l.each }

// newBucket is a full one.
func newBucket(r Rate, now time.Time) *bucket {
	return &bucket{rate: r, credit: r.full(), at: now}
}

// of is what the bucket knows of a node, or nil.
func (b *bucket) of(node id.MemberID) *lease {
	if i := slices.IndexFunc(b.leases, func(l *lease) bool { return l.node == node }); i >= 0 {
		return b.leases[i]
	}
	return nil
}

// full is how long an empty bucket needs to be full.
func (r Rate) full() time.Duration { return time.Duration(r.Capacity) * r.Every }

// quota is that of a bucket with so many tokens left.
func (r Rate) quota(left int64) quota.Quota {
	left = min(max(left, 0), r.Capacity)
	return quota.Quota{Limit: r.Capacity, Remaining: left, Reset: time.Duration(r.Capacity-left) * r.Every}
}

// fill adds what time has made, as far as there is room.
func (b *bucket) fill(now time.Time) {
	if d := min(now.Sub(b.at), b.room()); d > 0 {
		b.credit += d
		b.at = b.at.Add(d)
	}
}

func (b *bucket) room() time.Duration { return b.rate.full() - b.out - b.credit }

// since says that from now on there is room, and that there was none before from:
// time before it makes nothing any more.
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

// trim drops what there is no room for.
func (b *bucket) trim() { b.credit = max(b.credit+min(b.room(), 0), 0) }

// answer is what a bucket says to a node that asks for tokens.
type answer struct {
	granted int64
	left    int64         // with a grant: what the bucket still holds
	retry   time.Duration // with a refusal: when there is a token, in whole seconds
	recall  []id.MemberID // ask these to give back
	wait    bool          // somebody may still give back: nothing is refused yet
}

const (
	// recallWait is how long a node has to answer a recall.
	recallWait = 50 * time.Millisecond
	// recallAgain is when a node that did not answer is asked again.
	recallAgain = time.Second
)

// others is what a bucket is told about the nodes.
type others struct {
	living func(id.MemberID) bool
	lapse  time.Duration // after it a node spends nothing any more of what it does not account for
}

// take is for one who spends a token at once.
func (b *bucket) take(now time.Time, o others) answer {
	if b.some(now, 1, o) > 0 {
		b.since(now)
		b.credit -= b.rate.Every
		return answer{granted: 1, left: b.left()}
	}
	return b.refuse(now, o)
}

// some are up to want tokens, as many as there are.
func (b *bucket) some(now time.Time, want int64, o others) int64 {
	b.fill(now)
	if b.credit < b.rate.Every {
		b.lapse(now, o)
	}
	return min(int64(b.credit/b.rate.Every), max(want, 1))
}

// lease grants a node up to m.Want tokens. It asks when it holds none, so
// whatever it held was spent or given back.
func (b *bucket) lease(now time.Time, m Lease, o others) answer {
	l := b.of(m.Node)
	if l == nil {
		l = &lease{node: m.Node, returned: m.Returned}
		b.leases = append(b.leases, l)
	}
	switch {
	case m.Seq <= l.done || m.Seq < l.seq:
		return answer{} // it came late, and nobody waits for its answer
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

// left is how many tokens are there now.
func (b *bucket) left() int64 { return int64(b.credit / b.rate.Every) }

// refuse says when there will be a token, unless others hold some that they may
// give back.
func (b *bucket) refuse(now time.Time, o others) answer {
	var a answer
	var lapses time.Time // the first of the leases that nobody accounts for
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
	if b.rate.full()-b.out < b.rate.Every { // nothing is made while all is out
		a.retry = lapses.Sub(now) + b.rate.Every
	}
	a.retry = (max(a.retry, 1) + time.Second - 1).Truncate(time.Second)
	return a
}

// lapse ends the leases of nodes that are no members any more, or have kept silent
// for longer than they may spend. Their tokens count as spent.
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

// giveBack takes what a node says of its leases up to m.Seq.
func (b *bucket) giveBack(now time.Time, m GiveBack, o others) {
	l := b.of(m.Node)
	if l == nil || m.Seq < l.seq || m.Seq < l.done { // a later Lease has said it, or a later GiveBack
		return
	}
	l.done = m.Seq
	b.settle(now, l, m.Returned, m.Idle, o)
}

// settle closes what is open with a node. One that has forgotten when it spent what it
// had says now; it was not after they lapsed, and others were told so.
func (b *bucket) settle(now time.Time, l *lease, returned int64, idle time.Duration, o others) {
	back := returned - l.returned
	if back < 0 { // the node has forgotten the bucket meanwhile and begun anew
		back = returned
	}
	l.returned = returned
	if l.tokens > 0 {
		idle = max(idle, now.Sub(l.at.Add(o.lapse)), 0)
		b.release(now, l, min(back, l.tokens), now.Add(-idle))
	}
}

// release ends a lease: back tokens were not spent, the others not after spent.
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

// restful reports whether the bucket is as a new one would be: full, and nothing is
// leased.
func (b *bucket) restful(now time.Time, o others) bool {
	b.fill(now)
	b.lapse(now, o)
	return b.out == 0 && b.room() <= 0
}

// carried is the bucket for another node.
func (b *bucket) carried(h name, now time.Time) Carried {
	b.fill(now)
	c := Carried{Tenant: h.tenant, ID: h.id, Credit: b.credit, PerMinute: b.minute}
	for _, l := range b.leases {
		c.Leases = append(c.Leases, CarriedLease{Node: l.node, Tokens: l.tokens, Each: l.each, Granted: l.granted, Seq: l.seq, Done: l.done, Returned: l.returned, Age: now.Sub(l.at)})
	}
	return c
}

// merge makes b not more than c: each of them may know of something that the
// other does not.
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
		if l.each == 0 { // it comes from a node that knows one rate
			l.each = b.rate.Every
		}
		b.out += l.worth()
	}
	b.trim()
}
