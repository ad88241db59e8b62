package blackbox

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/id"
)

// bucketLaws are those of buckets that are emptied.
var bucketLaws = []string{lawAdmits, lawRetry, lawFlows}

// drained is a bucket that no other part of the load asks, small enough to be emptied.
// The embed API's hold as much as flows in within a minute.
type drained struct {
	id    string
	size  int
	ahead int // tokens that nodes may hold for a moment which did not ask for them
	yes   int // the status of a request that got a token
}

// drawing is the key of a context that says which bucket its requests are charged to.
type drawing struct{}

// sorts are the buckets that a load empties, those first that refill fast. Each
// makes one and returns what takes a token of it, the i-th time.
var sorts = []struct {
	name      string
	size, yes int
	ask       func(l *load, ctx context.Context, name string) (func(ctx context.Context, i int) (answer, error), error)
}{
	{"config reads of an address", 60, http.StatusOK, func(l *load, _ context.Context, _ string) (func(context.Context, int) (answer, error), error) {
		g := newGuest(l.c, l.public, "")
		return func(ctx context.Context, _ int) (answer, error) { return g.do(ctx, "GET", "/v1/embed/config", nil) }, nil
	}},
	{"reads of a visitor", 60, http.StatusOK, func(l *load, ctx context.Context, _ string) (func(context.Context, int) (answer, error), error) {
		g := newGuest(l.c, l.public, "")
		return func(ctx context.Context, _ int) (answer, error) { return g.do(ctx, "GET", "/v1/embed/threads", nil) }, g.begin(ctx)
	}},
	{"sessions of a key", 30, http.StatusOK, func(l *load, ctx context.Context, name string) (func(context.Context, int) (answer, error), error) {
		key, err := l.smallKey(ctx, name, 3)
		return func(ctx context.Context, _ int) (answer, error) {
			return newGuest(l.c, key, "").do(ctx, "POST", "/v1/embed/session", object{}) // from another address each time
		}, err
	}},
	{"messages of a key", 30, http.StatusNotFound, func(l *load, ctx context.Context, name string) (func(context.Context, int) (answer, error), error) {
		key, err := l.smallKey(ctx, name, 30)
		if err != nil {
			return nil, err
		}
		all := make([]*guest, 12) // none of them posts as much as a visitor may
		for i := range all {
			all[i] = newGuest(l.c, key, "")
			if err := all[i].begin(ctx); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, i int) (answer, error) { return all[i%len(all)].postsNowhere(ctx) }, nil
	}},
	{"messages of a visitor", 20, http.StatusNotFound, func(l *load, ctx context.Context, _ string) (func(context.Context, int) (answer, error), error) {
		g := newGuest(l.c, l.public, "")
		return func(ctx context.Context, _ int) (answer, error) { return g.postsNowhere(ctx) }, g.begin(ctx)
	}},
}

// smallKey is an embed key of so many messages a minute.
func (l *load) smallKey(ctx context.Context, name string, perMinute int) (string, error) {
	var k embedKeyView
	err := l.scene.post(ctx, l.c, "/v1/embed-keys", name, object{"agent_id": l.helper, "name": name, "allowed_origins": []string{page}, "rate_limit_per_min": perMinute}, &k)
	return k.Key, err
}

// postsNowhere costs what a message costs and makes no run.
func (g *guest) postsNowhere(ctx context.Context) (answer, error) {
	return g.do(ctx, "POST", "/v1/embed/messages", object{"content": "/say no", "thread_id": id.NewAnywhere().String()})
}

// askedAgain is the event of a bucket that was asked, in a calm time, all that its
// laws are about.
const askedAgain = "a bucket that was empty was asked again"

// drain empties a bucket, three at a time on random nodes. Then one at a time does
// what Retry-After says, and later takes all that has flowed in.
func (l *load) drain(ctx context.Context) error {
	sort := sorts[int(l.drains.Add(1)-1)%len(sorts)]
	x := &drained{id: l.name("bucket") + ", " + sort.name, size: sort.size, ahead: (len(l.nodes) - 1) * sort.size / 60, yes: sort.yes}
	ctx = context.WithValue(ctx, telling{}, x.id)
	take, err := sort.ask(l, ctx, x.id)
	if err != nil {
		return fmt.Errorf("%s: %w", x.id, err)
	}
	l.book.drains(x)
	var n atomic.Int64
	var lost atomic.Bool // an answer is missing: its request may have got a token
	ask := func() answer {
		i := int(n.Add(1))
		a, err := take(context.WithValue(ctx, drawing{}, x.id), i)
		if err != nil || a.status >= 500 {
			lost.Store(true)
			l.goesOn(ctx, 20*time.Millisecond)
		}
		return a
	}
	empty := func(atATime int) bool {
		var wg sync.WaitGroup
		var emptied atomic.Bool
		until := n.Load() + int64(3*x.size) // of a bucket without an end it is enough
		for range atATime {
			wg.Go(func() {
				for !emptied.Load() && n.Load() < until && l.goesOn(ctx, 0) {
					if ask().status == http.StatusTooManyRequests {
						emptied.Store(true)
					}
				}
			})
		}
		wg.Wait()
		return emptied.Load()
	}
	empty(3)
	for range 2 {
		begun, a := time.Now(), ask()
		told := a.status == http.StatusTooManyRequests
		if told {
			if retry := retryAfter(a.header); retry > 10*time.Second || !l.goesOn(ctx, retry) {
				return nil
			}
			ask()
		}
		tokens := 1.25
		if l.hasMet(askedAgain) {
			tokens += float64(rand.IntN(3))
		}
		if !l.goesOn(ctx, time.Duration(tokens*float64(time.Minute)/float64(x.size))) {
			return nil
		}
		emptied := empty(1)
		if lost.Load() { // the laws say little of it
			return nil
		}
		if _, calm := l.book.calmSince(begun, time.Now()); calm && told && emptied {
			l.meets(askedAgain)
		}
	}
	return nil
}

// goesOn waits for some time, and reports whether the test goes on asking a bucket. After the
// load has stopped it goes on until there was a case.
func (l *load) goesOn(ctx context.Context, after time.Duration) bool {
	timer := time.NewTimer(after)
	defer timer.Stop()
	for stop := l.stop; ; stop = nil {
		select {
		case <-timer.C:
			return ctx.Err() == nil && (stop != nil || !l.hasMet(askedAgain))
		case <-ctx.Done():
			return false
		case <-stop:
			if l.hasMet(askedAgain) {
				return false
			}
		}
	}
}

// retryAfter is what a refusal says, 0: nothing.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// unrest is a time in which the owners of buckets may be others, or may not answer.
type unrest struct {
	from  time.Time
	over  time.Time     // from here on the test does nothing to a node; zero: it still does
	ready time.Time     // all nodes that it has hit are ready again; zero: they are not
	grace time.Duration // until what has gone is known to have gone, and all that moved has arrived
	crash bool          // what nodes knew may be lost
}

// movesWithin is how long it takes at most, once the members are known, until
// buckets are where they are asked for: a node that does not answer is waited for a
// second. Where there is one node they never move.
const movesWithin = 1500 * time.Millisecond

// disturbs says that from now on nodes crash, or do what is like it to the others.
func (s *shaker) disturbs() *unrest {
	u := &unrest{from: time.Now(), crash: true}
	if len(s.nodes) > 1 {
		u.grace = s.lease + movesWithin
	}
	s.book.disturbed(u)
	return u
}

func (b *book) disturbed(u *unrest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unrests = append(b.unrests, u)
}

// calms says that this is over, and whether all nodes are ready.
func (b *book) calms(u *unrest, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if u.over.IsZero() {
		u.over = now
	}
	if ready {
		u.ready = now
	}
}

// drains has the laws of buckets look at one.
func (b *book) drains(x *drained) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drained = append(b.drained, x)
}

// calmSince is since when no bucket is on the move, zero: it never was; where one may
// have been between at and end, it is not ok.
func (b *book) calmSince(at, end time.Time) (since time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.unrests {
		if u.from.After(end) {
			continue
		}
		calm := u.ready.Add(u.grace)
		if u.ready.IsZero() || calm.After(at) {
			return since, false
		}
		if calm.After(since) {
			since = calm
		}
	}
	return since, true
}

// crashes counts those that a bucket may have had, which was asked from a time to
// another one.
func (b *book) crashes(from, to time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.unrests {
		if u.crash && u.from.Before(to) && (u.over.IsZero() || u.over.Add(u.grace).After(from)) {
			n++
		}
	}
	return n
}

// drainsHold holds the laws of buckets against what was answered of those that were
// emptied (security.md, Invariants 10).
func (b *book) drainsHold() {
	asks := map[string][]*exchange{}
	for _, a := range b.requests() {
		if a.bucket != "" {
			asks[a.bucket] = append(asks[a.bucket], a)
		}
	}
	for _, x := range b.drained {
		all := asks[x.id]
		slices.SortFunc(all, func(p, q *exchange) int { return p.at.Compare(q.at) })
		x.admits(b, all)
		x.keepsItsWord(b, all)
		x.flows(b, all)
	}
}

// flow is how many tokens come in a time.
func (x *drained) flow(d time.Duration) float64 { return float64(x.size) * max(d.Minutes(), 0) }

// answered reports whether it is certain if the request has got a token.
func answered(a *exchange) bool { return a.err == nil && a.status != 0 && a.status < 500 }

func isRefused(a *exchange) bool { return answered(a) && a.status == http.StatusTooManyRequests }

// abandoned is for how long a request that was not answered may still take a token.
const abandoned = 10 * time.Second

// last is when the request has taken its token, if it has, at the latest.
func last(a *exchange) time.Time {
	if answered(a) {
		return a.end
	}
	return a.end.Add(abandoned)
}

// admits looks at each time from the beginning of a request to the end of another
// one: those that lie within it have got their tokens within it.
func (x *drained) admits(b *book, asks []*exchange) {
	var got []*exchange
	emptied := false
	for _, a := range asks {
		emptied = emptied || isRefused(a)
		if answered(a) && a.status == x.yes {
			got = append(got, a)
		}
	}
	for i, first := range got {
		ends := slices.SortedFunc(slices.Values(got[i:]), func(p, q *exchange) int { return p.end.Compare(q.end) })
		for n, a := range ends {
			took := a.end.Sub(first.at)
			most := float64(x.size) + x.flow(took+skew)
			if float64(n+1) <= most {
				continue
			}
			if crashes := b.crashes(first.at, a.end); float64(n+1) > most+float64(crashes*x.size) {
				b.breaks(lawAdmits, "%s of %d a minute admitted %d within %s, in which were %d crashes", x.id, x.size, n+1, took, crashes)
				return
			}
		}
	}
	if emptied {
		b.rule(lawAdmits, true, "")
	}
}

// keepsItsWord checks requests that were refused and came again after Retry-After, with no
// other request in between.
func (x *drained) keepsItsWord(b *book, asks []*exchange) {
	for i, a := range asks[:max(len(asks)-1, 0)] {
		next := asks[i+1]
		if !isRefused(a) || !answered(next) || next.at.Before(a.end.Add(a.retry)) {
			continue
		}
		others := slices.ContainsFunc(asks, func(p *exchange) bool {
			return p != a && p != next && !p.at.After(next.end) && !last(p).Before(a.at)
		})
		if _, calm := b.calmSince(a.at, next.end); calm && !others {
			b.rule(lawRetry, !isRefused(next), "%s refused at node %s and said %s, and %s after that it refused at node %s", x.id, a.node.name, a.retry, next.at.Sub(a.end), next.node.name)
		}
	}
}

// flows looks at what is refused of a bucket, and at all that is asked of it from
// then on: a request that finds a token is not refused.
func (x *drained) flows(b *book, asks []*exchange) {
	first := slices.IndexFunc(asks, isRefused)
	if first < 0 {
		return
	}
	for _, a := range asks[first:] {
		since, calm := b.calmSince(a.at, a.end)
		if !calm || !answered(a) {
			continue
		}
		if least := x.least(asks, a, since); least >= 1 {
			b.rule(lawFlows, !isRefused(a), "%s refused at node %s at %.3f, while it had %.1f tokens", x.id, a.node.name, a.end.Sub(b.begun).Seconds(), least)
		}
	}
}

// least is how many tokens there were for a request, whatever the others took while
// it was asked. A bucket never has less than none, neither when it came to where it is
// nor when a request was answered. What has flowed in from then on is there, as far as
// there was room.
func (x *drained) least(asks []*exchange, a *exchange, since time.Time) float64 {
	lately, from := false, []time.Time{since}
	var taken []time.Time // at the latest
	for _, p := range asks {
		if p == a || p.at.After(a.end) {
			continue
		}
		end := last(p)
		lately = lately || end.After(a.at.Add(-time.Second))
		if !isRefused(p) {
			taken = append(taken, end)
		}
		if end.After(since) && end.Before(a.at) {
			from = append(from, end)
		}
	}
	slices.SortFunc(taken, time.Time.Compare)
	size, best := float64(x.size), 0.0
	for _, at := range from {
		i := 0
		for i < len(taken) && !taken[i].After(at) {
			i++
		}
		level := min(size, x.flow(a.at.Sub(at)-skew)-float64(len(taken)-i))
		for ; i < len(taken); i++ { // it may have been full until then
			level = min(level, size+x.flow(a.at.Sub(taken[i])-skew)-float64(len(taken)-i))
		}
		best = max(best, level)
	}
	if lately { // a node has some time to give back what it holds
		best -= float64(x.ahead)
	}
	return best
}

// The laws of buckets know what was answered wrongly, and only that.
func TestClusterBucketLaws(t *testing.T) {
	t.Parallel()
	const (
		ms     = time.Millisecond
		size   = 60 // one a second
		none   = 0  // no answer
		second = time.Second
	)
	type ask struct {
		at     time.Duration
		status int
		retry  time.Duration
	}
	repeat := func(n int, from, each time.Duration, status int) (out []ask) {
		for i := range n {
			out = append(out, ask{from + time.Duration(i)*each, status, second})
		}
		return out
	}
	emptied := append(repeat(size, 0, ms, 200), ask{100 * ms, 429, second})
	and := func(more ...ask) []ask { return append(slices.Clip(emptied), more...) }
	for _, c := range []struct {
		name   string
		asks   []ask
		killed time.Duration // when a node was killed, 0: none was; it is ready a second later
		broken []string
		held   []string
	}{
		{"it holds what it may", and(ask{1400 * ms, 200, 0}), 0, nil, []string{lawAdmits, lawRetry, lawFlows}},
		{"one more than what has flowed in", append(repeat(size, 0, ms, 200), ask{500 * ms, 200, 0}), 0, []string{lawAdmits}, nil},
		{"a second capacity", and(repeat(size, 500*ms, ms, 200)...), 0, []string{lawAdmits}, nil},
		{"a second capacity long after the first one", and(repeat(size, 20*second, ms, 200)...), 0, []string{lawAdmits}, nil},
		{"a second capacity after a crash", and(repeat(size, 5*second, ms, 200)...), 2 * second, nil, []string{lawAdmits}},
		{"a third capacity after a crash", and(append(repeat(size, 5*second, ms, 200), repeat(size, 6*second, ms, 200)...)...), 2 * second, []string{lawAdmits}, nil},
		{"a second capacity after one that was full", append(repeat(size, 0, ms, 200), append(repeat(size, 61*second, ms, 200), ask{61*second + 70*ms, 429, second})...), 0, nil, []string{lawAdmits}},
		{"answers that are lost count for nobody", and(append(repeat(size, 200*ms, ms, none), ask{1200 * ms, 429, second}, ask{2300 * ms, 429, second})...), 0, nil, []string{lawAdmits}},
		{"Retry-After is not true", and(ask{1150 * ms, 429, second}), 0, []string{lawRetry}, nil},
		{"Retry-After says nothing", append(repeat(size, 0, ms, 200), ask{100 * ms, 429, 0}, ask{110 * ms, 429, 0}), 0, []string{lawRetry}, nil},
		{"who comes too early is told nothing", and(ask{1050 * ms, 429, second}), 0, nil, []string{lawAdmits}},
		{"others have taken the token", and(ask{1110 * ms, 200, 0}, ask{1120 * ms, 429, second}), 0, nil, []string{lawAdmits, lawRetry}},
		{"Retry-After over a crash", and(ask{1150 * ms, 429, second}), 500 * ms, nil, []string{lawAdmits}},
		{"Retry-After just after a crash", and(ask{6 * second, 429, second}, ask{7100 * ms, 429, second}), 4 * second, nil, []string{lawAdmits}},
		{"what has flowed in is refused", and(ask{4 * second, 200, 0}, ask{4050 * ms, 429, second}), 0, []string{lawFlows}, []string{lawRetry}},
		{"all that has flowed in is there", and(ask{4 * second, 200, 0}, ask{4010 * ms, 200, 0}, ask{4020 * ms, 200, 0}, ask{4030 * ms, 429, second}), 0, nil, []string{lawAdmits, lawRetry, lawFlows}},
		{"a full bucket refuses", append(repeat(size-1, 0, ms, 200), ask{100 * ms, 429, second}), 0, []string{lawFlows}, nil},
		{"what has flowed in since a crash is refused", and(ask{8 * second, 200, 0}, ask{20 * second, 429, second}), 2 * second, []string{lawFlows}, nil},
		{"a bucket that came where nobody knew it", append(repeat(2, 8*second, ms, 200), ask{8100 * ms, 429, second}), second, nil, []string{lawAdmits}},
		{"one that came long ago", append(repeat(2, 20*second, ms, 200), ask{20100 * ms, 429, second}), second, []string{lawFlows}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBook()
			at := func(d time.Duration) time.Time { return b.begun.Add(d) }
			x := &drained{id: "bucket", size: size, yes: 200}
			b.drains(x)
			for _, a := range c.asks {
				b.asked = append(b.asked, &exchange{at: at(a.at), end: at(a.at + 5*ms), node: &member{name: "a"}, bucket: x.id, status: a.status, retry: a.retry})
			}
			if c.killed > 0 {
				b.unrests = []*unrest{{from: at(c.killed), over: at(c.killed), ready: at(c.killed + second), grace: 2*second + movesWithin, crash: true}}
			}
			b.drainsHold()
			for _, law := range bucketLaws {
				if why := b.breaches(law); (len(why) > 0) != slices.Contains(c.broken, law) {
					t.Errorf("%s: %s", law, cmp.Or(fmt.Sprint(why), "not found"))
				}
				if slices.Contains(c.held, law) && b.held[law] == 0 {
					t.Errorf("%s: no case", law)
				}
			}
		})
	}
	// What a node may hold for others is not missed while they ask, and is after that.
	b, x := newBook(), &drained{size: size, ahead: 2}
	asks := []*exchange{{at: b.begun, end: b.begun, status: 429}, {at: b.begun.Add(4 * second), end: b.begun.Add(4 * second), status: 200}, {at: b.begun.Add(4100 * ms), end: b.begun.Add(4200 * ms), status: 429}}
	if before, after := x.least(asks, asks[1], b.begun), x.least(asks, asks[2], b.begun); before < 3.7 || after > before-2 {
		t.Errorf("%.1f tokens before somebody asked, %.1f after it", before, after)
	}
}
