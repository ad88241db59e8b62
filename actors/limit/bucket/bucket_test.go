package bucket

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
)

// over returns how many of the admitted requests a bucket that is told of each at once
// would have refused.
func over(r Rate, capacity int64, admitted []time.Time) (over int64) {
	slices.SortFunc(admitted, time.Time.Compare)
	full := time.Duration(capacity) * r.Every
	level, at := full, time.Time{}
	for i, t := range admitted {
		if i == 0 {
			at = t
		}
		level, at = min(level+t.Sub(at), full), t
		if level -= r.Every; level < 0 {
			level += r.Every
			over++
		}
	}
	return over
}

// A bucket never admits more than one that is told of each request at once, though nodes
// report late, and messages are delayed, doubled or lost. A bucket whose rate changes, with
// a different rate on each node, never admits more than one with the highest rate.
func TestLawOfTheBucket(t *testing.T) {
	refused, granted, healed, priced, forgot := 0, 0, 0, 0, 0
	const seeds = 1000
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		rate := Rate{1 + r.Int64N(20), time.Duration(1+r.IntN(1000)) * time.Millisecond}
		var rates []int64 // by the minute, if the Lease has the rate
		o := all
		if seed%2 == 1 {
			rates = []int64{1 + r.Int64N(20), 1 + r.Int64N(20)}
			rate = perMinute(slices.Max(rates))
			o.lapse = time.Hour // nodes here hold tokens for as long as it takes to make some
		}
		price := func() int64 { // mostly the highest, so that what is wrong shows
			switch {
			case rates == nil:
				return 0
			case r.IntN(10) == 0:
				return slices.Min(rates)
			}
			return slices.Max(rates)
		}
		keeper := &Keeper{cfg: KeeperConfig{Rate: rate}}
		now, n := epoch, price()
		b, known := keeper.bucket(n, now), true
		type node struct {
			*edge
			held     int64
			emptied  time.Time
			asking   bool
			answered bool
		}
		var nodes []*node
		for i := range 3 {
			nodes = append(nodes, &node{edge: newEdge(byte(i)), answered: true, emptied: epoch})
		}
		type later struct {
			at time.Time
			f  func()
		}
		var queue []later
		var spent []time.Time
		after := func(d time.Duration, f func()) { queue = append(queue, later{now.Add(d), f}) }
		delay := func() time.Duration { return time.Duration(r.Int64N(int64(rate.Every))) / 2 }
		lossy := r.IntN(2) == 0
		lost := func() bool { return lossy && r.IntN(5) == 0 }
		say := func(n *node) { // a GiveBack
			back := n.held
			n.held = 0
			n.Returned += back
			g := GiveBack{Node: n.node, Seq: n.Seq, Returned: n.Returned}
			if back == 0 {
				g.Idle = now.Sub(n.emptied)
			}
			n.answered = true
			if !lost() {
				after(delay(), func() { b.giveBack(now, g, o) })
			} else {
				healed++
			}
		}
		ask := func(n *node) {
			if n.answered {
				n.Seq++
			}
			n.asking, n.answered = true, false
			m := Lease{Node: n.node, Seq: n.Seq, Want: 1 + r.Int64N(6), Returned: n.Returned, Idle: now.Sub(n.emptied), PerMinute: price()}
			send := func() {
				if !known {
					b, known = keeper.bucket(m.PerMinute, now), true
				}
				if b.minute != m.PerMinute {
					priced++
				}
				a := b.lease(now, m, o)
				for _, to := range a.recall {
					if k := nodes[to.UUID[15]]; !k.asking && r.IntN(4) > 0 {
						after(delay(), func() {
							if !k.asking {
								say(k)
							}
						})
					}
				}
				if a.granted == 0 && !a.wait {
					refused++
				}
				at := delay()
				if lost() {
					return
				}
				after(at, func() {
					if n.Seq != m.Seq || !n.asking {
						return
					}
					n.asking = false
					if n.answered = !a.wait; a.granted > 0 {
						granted++
						n.held = a.granted
					}
				})
			}
			if !lost() {
				after(delay(), send)
			}
			if r.IntN(10) == 0 {
				after(delay(), send) // it comes twice
			}
			after(2*rate.Every, func() {
				if n.Seq == m.Seq {
					n.asking = false
				}
			})
		}
		for range 300 {
			until := now.Add(time.Duration(r.Int64N(int64(rate.Every))))
			for {
				i := -1
				for j, q := range queue {
					if !q.at.After(until) && (i < 0 || q.at.Before(queue[i].at)) {
						i = j
					}
				}
				if i < 0 {
					break
				}
				q := queue[i]
				queue = slices.Delete(queue, i, i+1)
				now = q.at
				q.f()
			}
			now = until
			if b.restful(now, o) && known {
				forgot++
				known = false
			}
			n := nodes[r.IntN(len(nodes))]
			switch {
			case n.held > 0 && r.IntN(4) > 0:
				spent = append(spent, now)
				if n.held--; n.held == 0 {
					n.emptied = now
				}
			case n.asking:
			case n.held > 0 || r.IntN(8) == 0:
				say(n)
			default:
				ask(n)
			}
		}
		if n := over(rate, rate.Capacity, spent); n != 0 {
			t.Fatalf("seed %d: %d of %d too many, rate %+v", seed, n, len(spent), rate)
		}
	}
	if void := seeds / 10; refused < void || granted < void || healed < void || priced < void || forgot < void {
		t.Errorf("%d refusals, %d grants, %d lost, %d rates changed, %d forgotten: void", refused, granted, healed, priced, forgot)
	}
}

// A bucket that is refilled by the minute keeps how full it is when its rate changes,
// and what is leased keeps its worth.
func TestARateThatChanges(t *testing.T) {
	type step struct {
		after time.Duration
		rate  int64
		want  int64 // asked for, and spent at once
		got   int64
	}
	for name, steps := range map[string][]step{
		"the first lease says the rate":            {{0, 7, 99, 7}},
		"raised while full":                        {{0, 10, 1, 1}, {6 * time.Second, 40, 99, 40}},
		"raised while empty":                       {{0, 10, 10, 10}, {0, 60, 1, 0}, {5 * time.Second, 60, 99, 5}},
		"lowered while full":                       {{0, 40, 1, 1}, {2 * time.Second, 10, 99, 10}, {0, 10, 1, 0}},
		"lowered while half full":                  {{0, 40, 20, 20}, {0, 10, 99, 5}},
		"lowered while empty":                      {{0, 40, 40, 40}, {0, 10, 1, 0}, {6 * time.Second, 10, 99, 1}},
		"lowered and raised":                       {{0, 60, 30, 30}, {0, 10, 1, 1}, {0, 60, 99, 24}},
		"lowered and raised when it would be full": {{0, 60, 60, 60}, {0, 1, 1, 0}, {time.Minute, 60, 99, 60}},
	} {
		b, e, now := (&Keeper{}).bucket(steps[0].rate, epoch), newEdge(1), epoch
		for i, s := range steps {
			now = now.Add(s.after)
			e.PerMinute = s.rate
			got := e.lease(b, now, s.want, s.after)
			if got.granted != s.got {
				t.Errorf("%s, step %d: %+v", name, i+1, got)
			}
			if then := *b; s.got == 0 && then.take(now.Add(got.retry), all).granted != 1 {
				t.Errorf("%s, step %d: refused after Retry-After %v", name, i+1, got.retry)
			}
		}
	}
}

// A lease keeps its worth when the rate changes.
func TestALeaseOutlivesTheRateThatItWasGrantedBy(t *testing.T) {
	b, a, c := (&Keeper{}).bucket(15, epoch), newEdge(1), newEdge(2)
	a.PerMinute = 15
	if got := a.lease(b, epoch, 10, 0); got.granted != 10 {
		t.Fatalf("%+v", got)
	}
	c.PerMinute = 2
	if got := c.lease(b, epoch, 1, 0); got.granted != 0 || !got.wait { // 5 of 15 are no token of 2
		t.Fatalf("%+v", got)
	}
	a.giveBack(b, epoch, 5, 0)
	if got := c.lease(b, epoch, 9, 0); got.granted != 1 {
		t.Errorf("%+v", got)
	}
	c.giveBack(b, epoch, 1, 0)
	c.PerMinute = 15
	if got := c.lease(b, epoch, 99, 0); got.granted != 10 {
		t.Errorf("%+v", got)
	}
}

func TestASilentNodeIsWaitedForOnce(t *testing.T) {
	b := newBucket(Rate{4, time.Hour}, epoch)
	a, c := newEdge(1), newEdge(2)
	a.lease(b, epoch, 4, 0)
	first := c.lease(b, epoch, 1, 0)
	if !first.wait || !slices.Equal(first.recall, []id.MemberID{a.node}) {
		t.Fatalf("%+v", first)
	}
	if again := c.lease(b, epoch.Add(recallWait-1), 1, 0); !again.wait || again.recall != nil {
		t.Errorf("%+v", again)
	}
	if last := c.lease(b, epoch.Add(recallWait), 1, 0); last.wait || last.granted != 0 {
		t.Errorf("%+v", last)
	}
	if anew := c.lease(b, epoch.Add(recallAgain), 1, 0); !anew.wait || !slices.Equal(anew.recall, []id.MemberID{a.node}) {
		t.Errorf("a recall may be lost: %+v", anew)
	}
	a.giveBack(b, epoch.Add(recallAgain), 3, 0)
	if got := c.lease(b, epoch.Add(recallAgain), 9, 0); got.granted != 3 {
		t.Errorf("%+v", got)
	}
}

func TestALeaseThatComesTwiceIsGrantedOnce(t *testing.T) {
	b, a, c := newBucket(Rate{4, time.Hour}, epoch), newEdge(1), newEdge(2)
	if got := a.lease(b, epoch, 3, 0); got.granted != 3 {
		t.Fatalf("%+v", got)
	}
	if again := b.lease(epoch.Add(time.Second), a.Lease, all); again.granted != 3 || b.out != 3*time.Hour {
		t.Errorf("%+v, %v leased", again, b.out)
	}
	first := a.Lease
	a.giveBack(b, epoch, 3, 0)
	if late := b.lease(epoch, first, all); late.granted != 0 || b.out != 0 {
		t.Errorf("after its tokens came back: %+v", late)
	}
	if got := c.lease(b, epoch, 9, 0); got.granted != 4 {
		t.Errorf("%+v", got)
	}
}

func TestALostGiveBackIsSaidByTheNextLease(t *testing.T) {
	b, a, c := newBucket(Rate{4, time.Hour}, epoch), newEdge(1), newEdge(2)
	a.lease(b, epoch, 4, 0)
	a.Returned += 3 // and the message is lost
	if got := a.lease(b, epoch, 1, 0); got.granted != 1 {
		t.Fatalf("%+v", got)
	}
	if got := c.lease(b, epoch, 9, 0); got.granted != 2 {
		t.Errorf("%+v", got)
	}
}

func TestLeasesOfWhoLeftAreSpentAndTheirRoomIsFree(t *testing.T) {
	gone := memberID(1)
	o := others{living: func(m id.MemberID) bool { return m != gone }, lapse: time.Hour}
	b, a, c := newBucket(Rate{4, time.Second}, epoch), newEdge(1), newEdge(2) // all live when a leases
	a.lease(b, epoch, 4, 0)
	c.Lease = Lease{Node: c.node, Seq: 1, Want: 1}
	if got := b.lease(epoch.Add(time.Minute), c.Lease, o); got.wait || got.granted != 0 || got.retry != time.Second || b.out != 0 {
		t.Fatalf("%+v, %v leased", got, b.out)
	}
	if got := b.lease(epoch.Add(time.Minute+time.Second), c.Lease, o); got.granted != 1 {
		t.Errorf("%+v", got)
	}
}

// A member that has just joined is missing in the list too, and its tokens are not spent. If
// it was in the list once and is missing, it is dead.
func TestALeaseIsNotOverBecauseItsNodeIsNewToTheList(t *testing.T) {
	listed := false
	o := others{living: func(id.MemberID) bool { return listed }, lapse: time.Hour}
	b := newBucket(Rate{1, time.Minute}, epoch)
	newcomer, other := Lease{Node: memberID(1), Seq: 1, Want: 1}, Lease{Node: memberID(2), Seq: 1, Want: 1}
	if got := b.lease(epoch, newcomer, o); got.granted != 1 {
		t.Fatalf("%+v", got)
	}
	for _, seen := range []bool{false, true} {
		listed = seen
		if got := b.lease(epoch, other, o); !got.wait && got.granted != 0 || b.out == 0 {
			t.Fatalf("in the list %v: %+v, %v leased", seen, got, b.out)
		}
	}
	listed = false
	if b.lease(epoch, other, o); b.out != 0 {
		t.Errorf("%v are leased to who is gone", b.out)
	}
}

// A node spent its tokens, forgot the bucket, and asks again after other nodes were told that
// its lease is over. Its report of tokens that it does not know is not used.
func TestWhoHasForgottenWhatItSpentTakesNothingFromOthers(t *testing.T) {
	b, a, c := newBucket(Rate{1, 100 * time.Millisecond}, epoch), newEdge(1), newEdge(2)
	a.lease(b, epoch, 1, 0)
	c.lease(b, epoch, 1, 0) // a is asked, and silent
	now := epoch.Add(recallWait)
	got := c.lease(b, now, 1, 0)
	if got.wait || got.granted > 0 {
		t.Fatalf("%+v", got)
	}
	if then := a.lease(b, now.Add(got.retry), 1, 0); then.granted != 1 {
		t.Errorf("refused after Retry-After %v: %+v", got.retry, then)
	}
}

// The same node is recalled shortly before its lease ends, because another node asked, and it
// answers when the bucket has not noticed the end yet.
func TestWhoHasForgottenWhatItSpentAnswersARecallTooLate(t *testing.T) {
	b, a, c, late := newBucket(Rate{1, time.Second}, epoch), newEdge(1), newEdge(2), newEdge(3)
	a.lease(b, epoch, 1, 0)
	now := epoch.Add(time.Second)
	c.lease(b, now.Add(-recallWait), 1, 0) // a is asked, and silent
	got := c.lease(b, now, 1, 0)
	if got.wait || got.granted > 0 {
		t.Fatalf("%+v", got)
	}
	end := epoch.Add(all.lapse)
	if asked := late.lease(b, end.Add(-recallWait/2), 1, 0); !slices.Equal(asked.recall, []id.MemberID{a.node}) {
		t.Fatalf("%+v", asked)
	}
	a.giveBack(b, end.Add(recallWait/2-1), 0, 0)
	if then := c.lease(b, now.Add(got.retry), 1, 0); then.granted != 1 {
		t.Errorf("refused after Retry-After %v: %+v", got.retry, then)
	}
}

// All tokens are with a node that lives and does not answer: Retry-After knows
// when they lapse.
func TestRetryAfterHoldsThoughANodeKeepsSilent(t *testing.T) {
	for _, leased := range []int64{1, 3, 4} {
		b, a, c := newBucket(Rate{4, 700 * time.Millisecond}, epoch), newEdge(1), newEdge(2)
		a.lease(b, epoch, leased, 0)
		for c.lease(b, epoch, 1, 0).granted > 0 {
			c.giveBack(b, epoch, 0, 0)
		}
		now := epoch.Add(recallWait)
		got := c.lease(b, now, 1, 0)
		if got.wait || got.granted > 0 {
			t.Fatalf("%d leased: %+v", leased, got)
		}
		if then := c.lease(b, now.Add(got.retry), 1, 0); then.granted == 0 && !then.wait {
			t.Errorf("%d leased: refused after Retry-After %v: %+v", leased, got.retry, then)
		} else if last := c.lease(b, now.Add(got.retry+recallWait), 1, 0); then.granted+last.granted == 0 {
			t.Errorf("%d leased: refused after Retry-After %v: %+v", leased, got.retry, last)
		}
	}
}

// One request per refilled token always passes, whichever node asks.
func TestTheWholeRefillCanBeUsed(t *testing.T) {
	for _, capacity := range []int64{1, 2, 5} {
		rate := Rate{capacity, 50 * time.Millisecond}
		b, edges := newBucket(rate, epoch), []*edge{newEdge(1), newEdge(2)}
		now := epoch
		for i := range 500 {
			e := edges[i%2]
			a := e.lease(b, now, 1, 2*rate.Every)
			for a.wait { // the recalled nodes spent theirs long ago
				for _, to := range a.recall {
					o := edges[to.UUID[15]-1]
					o.giveBack(b, now, 0, rate.Every)
				}
				a = e.lease(b, now, 1, 2*rate.Every)
			}
			if a.granted != 1 {
				t.Fatalf("capacity %d: request %d is refused: %+v", capacity, i, a)
			}
			now = now.Add(rate.Every)
		}
	}
}

func TestABucketIsCarriedAsItIs(t *testing.T) {
	rate := Rate{10, time.Second}
	b, a, c := newBucket(rate, epoch), newEdge(1), newEdge(2)
	a.lease(b, epoch, 3, 0)
	c.lease(b, epoch, 2, 0)
	c.giveBack(b, epoch, 1, 0)
	now := epoch.Add(500 * time.Millisecond)
	wire, err := json.Marshal(b.carried(name{id: id.UUID{1}}, now))
	if err != nil {
		t.Fatal(err)
	}
	var over Carried
	if err := json.Unmarshal(wire, &over); err != nil {
		t.Fatal(err)
	}
	n := newBucket(rate, now)
	n.merge(over, now)
	n.merge(over, now) // twice is once
	if n.credit != 6500*time.Millisecond || n.out != 3*time.Second {
		t.Errorf("%v, %v leased", n.credit, n.out)
	}
	if again := n.lease(now, a.Lease, all); again.granted != 3 || n.out != 3*time.Second {
		t.Errorf("an answer that was lost by the move: %+v", again)
	}
	a.giveBack(n, now, 3, 0)
	if got := c.lease(n, now, 99, 0); got.granted != 9 {
		t.Errorf("%+v", got)
	}
	less := newBucket(rate, now)
	less.credit = time.Second
	less.merge(over, now)
	if less.credit != time.Second || less.out != 3*time.Second {
		t.Errorf("two that differ: %v, %v leased", less.credit, less.out)
	}
}

// Messages between nodes contain no time of day: the clocks of nodes may differ, and step.
func TestBucketsAreCarriedWithoutATimeOfDay(t *testing.T) {
	var walk func(reflect.Type, string)
	walk = func(v reflect.Type, path string) {
		switch {
		case v == reflect.TypeFor[time.Time]():
			t.Errorf("%s is a time of day", path)
		case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
			walk(v.Elem(), path+"[]")
		case v.Kind() == reflect.Pointer:
			walk(v.Elem(), path)
		case v.Kind() == reflect.Map:
			walk(v.Key(), path+"[key]")
			walk(v.Elem(), path+"[]")
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i).Type, path+"."+v.Field(i).Name)
			}
		}
	}
	for _, m := range []any{Lease{}, Take{}, Leased{}, GiveBack{}, Recall{}, Fetch{}, Fetched{}, Push{}} {
		walk(reflect.TypeOf(m), fmt.Sprintf("%T", m))
	}
	// A bucket of a node whose clock is an hour ahead, and back.
	now, ahead := epoch, epoch.Add(time.Hour)
	b, all := newBucket(Rate{10, time.Second}, now), others{living: func(id.MemberID) bool { return true }, lapse: time.Minute}
	for range 10 {
		b.take(now, all)
	}
	for i := range 20 {
		h := nameOf(tenantBucket(tenant()))
		from, to := now, ahead
		if i%2 == 1 {
			from, to = to, from
		}
		c := b.carried(h, from)
		b = newBucket(Rate{10, time.Second}, to)
		b.merge(c, to)
		if a := b.take(to, all); a.granted != 0 {
			t.Fatalf("move %d fills the bucket", i+1)
		}
		now, ahead = now.Add(time.Second), ahead.Add(time.Second)
		if a := b.take(map[bool]time.Time{true: now, false: ahead}[i%2 == 1], all); a.granted != 1 {
			t.Fatalf("move %d stops the bucket: %+v", i+1, a)
		}
	}
}

// A bucket is handed over with its rate and the worth of its leases. One from a version
// without rates gets the rate of the next Lease.
func TestARateIsCarried(t *testing.T) {
	b, a := (&Keeper{}).bucket(15, epoch), newEdge(1)
	a.PerMinute = 15
	a.lease(b, epoch, 10, 0)
	b.reprice(epoch, 30)
	wire, err := json.Marshal(b.carried(name{id: id.UUID{6: version8}}, epoch))
	if err != nil {
		t.Fatal(err)
	}
	var c Carried
	if err := json.Unmarshal(wire, &c); err != nil {
		t.Fatal(err)
	}
	k := NewKeeper(KeeperConfig{Rate: Rate{100, time.Second}, Now: func() time.Time { return epoch }})
	defer k.Stop(t.Context())
	arrive := func(c Carried) *bucket {
		k.shards = [id.Shards]shard{}
		k.accept(Push{Buckets: []Carried{c}}, epoch)
		return k.shards[c.ID.Shard()].buckets[name{id: c.ID}]
	}
	n := arrive(c)
	if n.rate != perMinute(30) || n.out != 10*perMinute(15).Every {
		t.Errorf("%+v, %v leased", n.rate, n.out)
	}
	a.PerMinute = 30
	a.giveBack(n, epoch, 10, 0)
	if got := a.lease(n, epoch, 99, 0); got.granted != 30 {
		t.Errorf("%+v", got)
	}
	c.PerMinute, c.Leases = 0, nil
	n, a = arrive(c), newEdge(1)
	if n.rate != k.cfg.Rate {
		t.Errorf("%+v", n.rate)
	}
	a.PerMinute = 30
	if got := a.lease(n, epoch, 99, 0); got.granted != 10 { // a third of a minute
		t.Errorf("%+v", got)
	}
}

// An Ask whose answer was lost is sent again.
var _ = []cluster.Repeatable{Lease{}}
