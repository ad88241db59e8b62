package bucket

import (
	"testing"
	"time"

	"agentsvc/schemas/id"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func memberID(n byte) id.MemberID { return id.MemberID{UUID: id.UUID{15: n}} }

// edge asks a bucket as a Ledger does.
type edge struct {
	node id.MemberID
	Lease
}

func newEdge(n byte) *edge { return &edge{node: memberID(n)} }

// lease sends a Lease of an edge that spent its last token idle ago.
func (e *edge) lease(b *bucket, now time.Time, want int64, idle time.Duration) answer {
	e.Lease = Lease{Node: e.node, Seq: e.Seq + 1, Want: want, Returned: e.Returned, Idle: idle, PerMinute: e.PerMinute}
	return b.lease(now, e.Lease, all)
}

func (e *edge) giveBack(b *bucket, now time.Time, n int64, idle time.Duration) {
	e.Returned += n
	b.giveBack(now, GiveBack{Node: e.node, Seq: e.Seq, Returned: e.Returned, Idle: idle}, all)
}

var all = others{living: func(id.MemberID) bool { return true }, lapse: 6 * time.Second}

func TestABucketAdmitsItsCapacityAndThenItsRefill(t *testing.T) {
	b, e := newBucket(PerSecond(120, 20), epoch), newEdge(1)
	for i := range 120 {
		if a := e.lease(b, epoch, 1, 0); a.granted != 1 {
			t.Fatalf("request %d is refused", i)
		}
	}
	a := e.lease(b, epoch, 1, 0)
	if a.granted != 0 || a.retry != time.Second {
		t.Fatalf("%+v", a)
	}
	if a := e.lease(b, epoch.Add(a.retry), 100, 0); a.granted != 20 {
		t.Errorf("a second later %d", a.granted)
	}
}

func TestRetryAfterIsRoundedUpAndKept(t *testing.T) {
	for _, c := range []struct {
		every time.Duration
		wait  time.Duration
		want  time.Duration
	}{
		{50 * time.Millisecond, 0, time.Second},
		{10 * time.Second, 0, 10 * time.Second},
		{10 * time.Second, 1, 10 * time.Second},
		{10 * time.Second, time.Second, 9 * time.Second},
		{10 * time.Second, 9*time.Second + 1, time.Second},
		{1500 * time.Millisecond, 0, 2 * time.Second},
	} {
		b := newBucket(Rate{1, c.every}, epoch)
		e := newEdge(1)
		e.lease(b, epoch, 1, 0)
		now := epoch.Add(c.wait)
		a := e.lease(b, now, 1, c.wait)
		if a.granted != 0 || a.retry != c.want {
			t.Errorf("every %v after %v: %+v, want %v", c.every, c.wait, a, c.want)
		}
		if a := e.lease(b, now.Add(a.retry), 1, 0); a.granted != 1 {
			t.Errorf("every %v: refused after Retry-After", c.every)
		}
	}
}

func TestPerSecondNeverRunsFast(t *testing.T) {
	for _, refill := range []float64{0.1, 1, 3, 7, 20, 60, 999, 1e6} {
		r := PerSecond(10, refill)
		if float64(r.Every)*refill < 1e9 {
			t.Errorf("%v a second becomes one each %v", refill, r.Every)
		}
	}
}
