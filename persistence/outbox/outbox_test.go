package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
)

func TestQueriesParse(t *testing.T) { pgtest.Prepare(t, queries) }

// Plans made on an empty table are used on a full one: all of them must use the indexes whose
// size follows the work and not the backlog.
func TestPlansFollowTheWork(t *testing.T) {
	x := newWorld(t, nil)
	conn, err := connect(t.Context(), x.pool)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp(conn)
	nulls := map[string]int{"settle": 12, "unsettled": 6, "claim": 9, "next": 4}
	for name := range nulls {
		if _, err := conn.Exec(t.Context(), "PREPARE plan_"+name+" AS "+queries.Get(name)); err != nil {
			t.Fatal(err)
		}
	}
	look := func(when string) {
		for name, n := range nulls {
			rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE plan_"+name+"(NULL"+strings.Repeat(", NULL", n-1)+")")
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			for _, bad := range []string{"Seq Scan", "Sort", "Hash", "Merge", "Bitmap"} {
				if strings.Contains(plan, bad) {
					t.Errorf("%s, %s has a %s:\n%s", when, name, bad, plan)
				}
			}
			if (name == "claim" || name == "next") && !strings.Contains(plan, "webhook_deliveries_due") {
				t.Errorf("%s, %s does not go by what is due:\n%s", when, name, plan)
			}
		}
	}
	look("on an empty table")
	for range 20 {
		x.backlog(x.endpoint(), 500, []byte("{}"))
	}
	if _, err := x.db.Admin(t).Exec(t.Context(), "ANALYZE webhook_deliveries, webhooks"); err != nil {
		t.Fatal(err)
	}
	look("on a full table")
}

// An attempt's life, result by result.
func TestAResultIsWhatBecomesOfADelivery(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	later := noon.Add(time.Hour)
	for _, c := range []struct {
		name   string
		result Result // without Delivery and N, which is the attempt's plus this
		want   row    // without the body
	}{
		{"it succeeded", Result{Status: lifecycle.DeliverySucceeded, HTTPStatus: 204, Duration: 12345678 * time.Nanosecond},
			row{Status: "succeeded", Attempts: 1, LastHTTPStatus: ptr(204), AttemptLog: []logged{{noon, ptr(204), nil, ptr(12)}}}},
		{"it failed, and another follows", Result{Status: lifecycle.DeliveryPending, HTTPStatus: 500, Error: "status 500", Duration: time.Second, NextAt: later},
			row{Status: "pending", Attempts: 1, NextAttemptAt: &later, LastHTTPStatus: ptr(500), LastError: ptr("status 500"),
				AttemptLog: []logged{{noon, ptr(500), ptr("status 500"), ptr(1000)}}}},
		{"it failed without an answer", Result{Status: lifecycle.DeliveryPending, Error: "reset", NextAt: later},
			row{Status: "pending", Attempts: 1, NextAttemptAt: &later, LastError: ptr("reset"), AttemptLog: []logged{{noon, nil, ptr("reset"), ptr(0)}}}},
		{"it failed for good", Result{Status: lifecycle.DeliveryFailed, HTTPStatus: 410, Error: "gone"},
			row{Status: "failed", Attempts: 1, LastHTTPStatus: ptr(410), LastError: ptr("gone"), AttemptLog: []logged{{noon, ptr(410), ptr("gone"), ptr(0)}}}},
		{"it was not sent", Result{Unsent: true, Status: "anything", HTTPStatus: -7, Error: "dropped"},
			row{Status: "pending", NextAttemptAt: &noon}},
		{"its error is not storable as it is", Result{Status: lifecycle.DeliveryFailed, Error: "a\x00b\xff\xfec"},
			row{Status: "failed", Attempts: 1, LastError: ptr("a�b�c"), AttemptLog: []logged{{noon, nil, ptr("a�b�c"), ptr(0)}}}},
		{"it is of a later attempt", Result{N: 1, Status: lifecycle.DeliverySucceeded},
			row{Status: "pending", Attempts: 1, BegunAt: &noon, NextAttemptAt: ptr(noon.Add(timeout + Grace + backoff))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := x.endpoint()
			d := x.pending(e, noon)
			a := x.claim(e)
			if a.N != 1 || !a.BegunAt.Equal(noon) && a.BegunAt.Sub(noon) > time.Millisecond {
				t.Fatalf("claimed %+v", a)
			}
			x.exec(`UPDATE webhook_deliveries SET begun_at = $2, next_attempt_at = $3 WHERE id = $1`, d, noon, noon.Add(timeout+Grace+backoff)) // flushes bump the clock
			c.result.Delivery, c.result.N = d, c.result.N+a.N
			for range 2 { // a result that comes twice changes nothing more
				x.must(Turn{Endpoint: e, Results: []Result{c.result}})
				got := x.row(d)
				got.Body = ""
				if c.result.Unsent {
					if got.NextAttemptAt == nil || got.NextAttemptAt.Sub(noon) > time.Millisecond {
						t.Errorf("due again at %v", got.NextAttemptAt)
					}
					got.NextAttemptAt = &noon
				}
				if g, w := show(got), show(c.want); g != w {
					t.Errorf("got  %s\nwant %s", g, w)
				}
			}
		})
	}
}

// show is a row in one line, its pointers followed.
func show(r row) string {
	s := fmt.Sprint(r.Status, " ", r.Attempts, " begun ", follow(r.BegunAt), " next ", follow(r.NextAttemptAt), " last ", follow(r.LastHTTPStatus), " ", follow(r.LastError))
	for _, l := range r.AttemptLog {
		s += fmt.Sprint(" [", l.At.UTC(), " ", follow(l.HTTPStatus), " ", follow(l.Error), " ", follow(l.DurationMS), "]")
	}
	return s
}

func follow[T any](p *T) any {
	if p == nil {
		return nil
	}
	if at, ok := any(*p).(time.Time); ok {
		return at.UTC()
	}
	return *p
}

// Only results of the endpoint's own deliveries count.
func TestAResultOfAnothersDeliveryChangesNothing(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	mine, neighbour, foreign := x.endpoint(), x.endpoint(), x.endpointOf(pgtest.Tenant(x.t, x.pool))
	for name, of := range map[string]Endpoint{"another endpoint's": neighbour, "another tenant's": foreign} {
		d := x.pending(of, noon)
		x.claim(of)
		before := show(x.row(d))
		x.must(Turn{Endpoint: mine, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliverySucceeded}}})
		x.must(Turn{Endpoint: Endpoint{mine.Tenant, of.ID}, Results: []Result{{Delivery: id.DeliveryID{UUID: id.NewAnywhere()}, N: 1, Status: lifecycle.DeliverySucceeded}}})
		if after := show(x.row(d)); after != before {
			t.Errorf("%s: %s", name, after)
		}
	}
}

// Five claims of which nothing is heard: each comes when the one after a failure
// would have, each says so in the log, and there is no sixth.
func TestClaimsWithoutResults(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	told := make(chan id.DeliveryID, 10)
	x := newWorld(t, func(c *Config) {
		c.Metrics = NewMetrics(reg)
		c.OnChange = func(_ id.TenantID, d id.DeliveryID) { told <- d }
	})
	e := x.endpoint()
	d := x.pending(e, noon)
	body := x.row(d).Body
	now := noon
	for n, wait := range []time.Duration{22 * time.Second, 27 * time.Second, 37 * time.Second, 57 * time.Second, 17 * time.Second} {
		a := x.claim(e)
		if a.Delivery != d || a.N != n+1 || string(a.Body) != body || !a.BegunAt.Equal(now) {
			t.Fatalf("attempt %d: %+v at %v", n+1, a, now)
		}
		next := now.Add(wait)
		if got := x.row(d); got.Status != "pending" || got.Attempts != n+1 || !got.NextAttemptAt.Equal(next) || len(got.AttemptLog) != n {
			t.Fatalf("after claim %d: %s", n+1, show(got))
		}
		x.clock.set(next.Add(-time.Millisecond))
		if c := x.must(Turn{Endpoint: e, Want: 1}); len(c.Attempts) != 0 || !c.Next.Equal(next) {
			t.Fatalf("a millisecond before it is due: %+v", c)
		}
		now = next
		x.clock.set(now)
	}
	for range 2 {
		if c := x.must(Turn{Endpoint: e, Want: 1}); len(c.Attempts) != 0 || !c.Next.IsZero() {
			t.Errorf("a sixth: %+v", c)
		}
		got := x.row(d)
		if got.Status != "failed" || got.Attempts != 5 || got.BegunAt != nil || got.NextAttemptAt != nil || *got.LastError != lostWords || len(got.AttemptLog) != 5 {
			t.Fatalf("in the end: %s", show(got))
		}
		at := noon
		for n, l := range got.AttemptLog {
			if !l.At.Equal(at) || *l.Error != lostWords || l.HTTPStatus != nil || l.DurationMS != nil {
				t.Errorf("entry %d: %s", n+1, show(got))
			}
			wait, _ := webhook.Pause(backoff, n+1)
			at = at.Add(timeout + Grace + wait)
		}
	}
	if len(told) != 6 { // five claims, and the end
		t.Errorf("feeds were told %d times", len(told))
	}
	for range len(told) {
		if got := <-told; got != d {
			t.Errorf("told %s", got)
		}
	}
	// A result that is too late is not accepted.
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: 5, Status: lifecycle.DeliverySucceeded}}})
	if got := x.row(d); got.Status != "failed" {
		t.Errorf("after a late result: %s", show(got))
	}
	want := map[string]float64{"svc_webhook_claimed_total": 5, "svc_webhook_lost_attempts_total": 5, "svc_webhook_settled_total failed": 1, "svc_webhook_settled_total stale": 1}
	if got := counters(t, reg); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// counters are the counters that are not nought, with their labels.
func counters(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if v := m.GetCounter().GetValue(); v != 0 {
				out[name] = v
			}
		}
	}
	return out
}

// The round that a person asks for begins with the first attempt again, and the log
// goes on with its last 20 entries.
func TestTheLogKeepsTwenty(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	n := 0
	for range 5 {
		for try := 1; try <= 5; try++ {
			a := x.claim(e)
			if a.N != try {
				t.Fatalf("attempt %d, want %d", a.N, try)
			}
			n++
			r := Result{Delivery: d, N: try, Status: lifecycle.DeliveryPending, Error: fmt.Sprint(n), NextAt: noon}
			if try == 5 {
				r.Status = lifecycle.DeliveryFailed
			}
			x.must(Turn{Endpoint: e, Results: []Result{r}})
		}
		x.exec(`UPDATE webhook_deliveries SET status = 'pending', attempts = 0, next_attempt_at = $2 WHERE id = $1`, d, noon)
	}
	log := x.row(d).AttemptLog
	if len(log) != 20 || *log[0].Error != "6" || *log[19].Error != "25" {
		t.Errorf("%d entries, from %v", len(log), log)
	}
}

func TestWhoIsClaimed(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	for _, c := range []struct {
		name    string
		of      func() Endpoint
		asks    func(Endpoint) Endpoint // nil: itself
		due     time.Duration           // from the time of the flush
		claimed bool
	}{
		{"due to the microsecond", x.endpoint, nil, 0, true},
		{"due a microsecond later", x.endpoint, nil, time.Microsecond, false},
		{"a disabled endpoint's", func() Endpoint {
			e := x.endpoint()
			x.exec(`UPDATE webhooks SET enabled = false WHERE id = $1`, e.ID)
			return e
		}, nil, -time.Hour, false},
		{"a living listener's", func() Endpoint { return x.listener(noon.Add(time.Hour + time.Microsecond)) }, nil, 0, true},
		{"a listener's that expires now", func() Endpoint { return x.listener(noon.Add(time.Hour)) }, nil, 0, false},
		{"another endpoint's", x.endpoint, func(Endpoint) Endpoint { return x.endpoint() }, 0, false},
		{"an endpoint's under another tenant", x.endpoint, func(e Endpoint) Endpoint { return Endpoint{pgtest.Tenant(x.t, x.pool), e.ID} }, 0, false},
		{"an unknown endpoint's", x.endpoint, func(e Endpoint) Endpoint { return Endpoint{e.Tenant, id.WebhookID{UUID: id.NewAnywhere()}} }, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, o := x.process(func(cfg *Config) { cfg.Now = func() time.Time { return noon.Add(time.Hour) } })
			e := c.of()
			d := x.pending(e, noon.Add(time.Hour+c.due))
			if c.asks != nil {
				e = c.asks(e)
			}
			got, err := o.Turn(t.Context(), Turn{Endpoint: e, Want: 5})
			if err != nil || (len(got.Attempts) == 1) != c.claimed || x.row(d).Attempts != len(got.Attempts) {
				t.Errorf("%+v %v", got, err)
			}
			if hasNext := !got.Next.IsZero(); hasNext != (c.due > 0) {
				t.Errorf("next %v", got.Next)
			}
		})
	}
}

// The oldest first, as many as are wanted, and then the time of what follows.
func TestTheOldestComeFirst(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	future := noon.Add(time.Minute)
	last := x.pending(e, future)
	third, first, second := x.pending(e, noon), x.pending(e, noon.Add(-2*time.Second)), x.pending(e, noon.Add(-time.Second))
	c := x.must(Turn{Endpoint: e, Want: 2})
	if got := deliveries(c); !slices.Equal(got, []id.DeliveryID{first, second}) || !c.Next.Equal(noon) {
		t.Errorf("%v, next %v", got, c.Next)
	}
	c = x.must(Turn{Endpoint: e, Want: 0})
	if len(c.Attempts) != 0 || !c.Next.Equal(noon) {
		t.Errorf("nothing is wanted: %+v", c)
	}
	c = x.must(Turn{Endpoint: e, Want: 5})
	// Two are in flight from before: the first of them would be attempted again first.
	if got := deliveries(c); !slices.Equal(got, []id.DeliveryID{third}) || c.Next.Sub(noon.Add(timeout+Grace+backoff)) > time.Millisecond {
		t.Errorf("%v, next %v", got, c.Next)
	}
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: first, N: 1, Status: lifecycle.DeliverySucceeded}, {Delivery: second, N: 1, Status: lifecycle.DeliverySucceeded}}})
	c = x.must(Turn{Endpoint: e, Results: []Result{{Delivery: third, N: 1, Status: lifecycle.DeliverySucceeded}}, Want: 5})
	if len(c.Attempts) != 0 || !c.Next.Equal(future) {
		t.Errorf("only %v is left: %+v", last, c)
	}
}

func deliveries(c Claimed) []id.DeliveryID {
	var out []id.DeliveryID
	for _, a := range c.Attempts {
		out = append(out, a.Delivery)
	}
	return out
}

// A result and the claim of what it makes due are one Turn.
func TestWhatAResultMakesDueIsClaimedInTheSameTurn(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	x.claim(e)
	c := x.must(Turn{Endpoint: e, Want: 1, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliveryPending, Error: "e", NextAt: noon}}})
	if len(c.Attempts) != 1 || c.Attempts[0].Delivery != d || c.Attempts[0].N != 2 {
		t.Errorf("%+v", c)
	}
}

// The database's clock runs ahead, and is set right. A failed attempt is followed by the next one after its pause by the right
// clock, and not in the flush that writes its result.
func TestAfterTheClockWasSetBackRetriesKeepTheirPauses(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	x.clock.set(noon.Add(time.Hour))
	x.must(Turn{Endpoint: e, Want: 1})
	x.clock.set(noon)
	d := x.pending(e, noon)
	if a := x.claim(e); !a.BegunAt.Equal(noon) {
		t.Errorf("the attempt began at %v", a.BegunAt)
	}
	again := noon.Add(backoff)
	c := x.must(Turn{Endpoint: e, Want: 1, Results: []Result{{Delivery: d, N: 1, Status: lifecycle.DeliveryPending, Error: "e", NextAt: again}}})
	if len(c.Attempts) != 0 || !c.Next.Equal(again) {
		t.Errorf("%+v, want nothing before %v", c, again)
	}
	x.clock.set(again)
	if a := x.claim(e); a.N != 2 {
		t.Errorf("claimed %+v", a)
	}
}

func TestBodiesOfATurnAreBounded(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		bodies []int
		want   []int // claimed by Turn after Turn
	}{
		{"until the bound is passed", []int{3 * mib, 3 * mib, 3 * mib, 3 * mib}, []int{3, 1}},
		{"to the byte", []int{4 * mib, 4 * mib, 1}, []int{2, 1}},
		{"a byte less", []int{4 * mib, 4*mib - 1, 1}, []int{3}},
		{"one that is larger, alone", []int{9 * mib, 1}, []int{1, 1}},
	} {
		e := x.endpoint()
		for i, n := range c.bodies {
			x.pendingOf(e, noon.Add(time.Duration(i-len(c.bodies))*time.Second), make([]byte, n))
		}
		left := len(c.bodies)
		for i, want := range c.want {
			got := x.must(Turn{Endpoint: e, Want: 32})
			left -= want
			// Deliveries that do not fit are due now; otherwise only those in flight have a
			// time.
			if len(got.Attempts) != want || got.Next.IsZero() != (i == 0 && left == 0) || (left > 0) != (!got.Next.IsZero() && got.Next.Before(noon)) {
				t.Errorf("%s, turn %d: %d attempts, next %v", c.name, i+1, len(got.Attempts), got.Next)
			}
		}
	}
}

// The bodies of a flush are bounded too, however many Turns it has, and a Turn for which no
// room was left gets its claims later.
func TestBodiesOfAFlushAreBounded(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	const size, fit, all = 4 << 20, maxFlushBytes / (4 << 20), maxFlushBytes/(4<<20) + 5
	var turns []Turn
	for range all {
		e := x.endpoint()
		x.backlog(e, 2, make([]byte, size))
		turns = append(turns, Turn{Endpoint: e, Want: 1})
	}
	claimed, errs := x.all(turns)
	var left []Turn
	for i, c := range claimed {
		switch {
		case errs[i] != nil:
			t.Error(errs[i])
		case len(c.Attempts) == 0:
			left = append(left, turns[i])
			if wait := c.Next.Sub(noon); wait < lockedLater || wait > lockedLater+time.Second {
				t.Errorf("asked again after %v", wait)
			}
		}
	}
	if len(left) != all-fit {
		t.Fatalf("%d of %d turns have nothing, want %d", len(left), all, all-fit)
	}
	if n := x.count(`SELECT count(*) FROM webhook_deliveries WHERE begun_at IS NOT NULL`); n != fit {
		t.Errorf("%d deliveries are claimed, want %d", n, fit)
	}
	claimed, errs = x.all(left)
	for i, c := range claimed {
		if errs[i] != nil || len(c.Attempts) != 1 || len(c.Attempts[0].Body) != size {
			t.Errorf("turn %d, again: %d attempts, %v", i, len(c.Attempts), errs[i])
		}
	}
}

// A Turn's own bound, beside the one of all: exact to the byte, and never without one.
func TestBytesThatATurnAsksFor(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		bytes  int
		bodies []int
		want   int
	}{
		{"to the byte", 300, []int{100, 200, 1}, 2},
		{"a byte more", 301, []int{100, 200, 1}, 3},
		{"less than the first", 1, []int{100, 1}, 1},
		{"more than fits in a turn", 100 * mib, []int{4 * mib, 4 * mib, 1}, 2},
	} {
		e, other := x.endpoint(), x.endpoint()
		for i, n := range c.bodies {
			x.pendingOf(e, noon.Add(time.Duration(i-len(c.bodies))*time.Second), make([]byte, n))
			x.pendingOf(other, noon.Add(-time.Minute), []byte("{}"))
		}
		got := x.must(Turn{Endpoint: e, Want: 32, Bytes: c.bytes})
		if n := len(got.Attempts); n != c.want || n < len(c.bodies) && !got.Next.Before(noon) {
			t.Errorf("%s: %d attempts, next %v", c.name, n, got.Next)
		}
		if n := len(x.must(Turn{Endpoint: other, Want: 32}).Attempts); n != len(c.bodies) {
			t.Errorf("%s: another endpoint has %d", c.name, n)
		}
	}
}

// Claims of a flush that met a locked result count against the bound.
func TestBytesOfATurnThatIsHeld(t *testing.T) {
	for _, c := range []struct{ bytes, want int }{{0, 3}, {201, 3}, {200, 0}, {199, 0}} {
		e := &entry{Turn: Turn{Want: 5, Bytes: c.bytes}}
		e.claimedNow([]Attempt{{Body: make([]byte, 100)}, {Body: make([]byte, 100)}})
		if e.Want != c.want || (e.Bytes > 0) != (c.bytes > 200) {
			t.Errorf("of %d bytes: %d are wanted, %d bytes", c.bytes, e.Want, e.Bytes)
		}
	}
}

// While an attempt is in flight its endpoint is disabled, enabled again, and the delivery
// recovered: its first attempt is another one now, which the result of the former does not
// settle. A result without the time of its attempt settles the one in flight.
func TestAResultOfAFormerRound(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	former := x.claim(e)
	x.exec(`UPDATE webhook_deliveries SET status = 'pending', attempts = 0, begun_at = NULL, next_attempt_at = $2 WHERE id = $1`, d, noon)
	latter := x.claim(e)
	if former.N != latter.N || former.BegunAt.Equal(latter.BegunAt) {
		t.Fatalf("%+v, %+v: void", former, latter)
	}
	before := show(x.row(d))
	for _, r := range []Result{{Status: lifecycle.DeliverySucceeded}, {Status: lifecycle.DeliveryFailed, Error: "e"}, {Unsent: true}} {
		r.Delivery, r.N, r.BegunAt = d, former.N, former.BegunAt
		x.must(Turn{Endpoint: e, Results: []Result{r}})
		if after := show(x.row(d)); after != before {
			t.Fatalf("%+v: %s, was %s", r, after, before)
		}
	}
	// Nor does it wait for the row of the latter.
	tx, err := x.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM webhook_deliveries WHERE id = $1 FOR UPDATE`, d); err != nil {
		t.Fatal(err)
	}
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: former.N, BegunAt: former.BegunAt, Status: lifecycle.DeliverySucceeded}}})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: latter.N, BegunAt: latter.BegunAt.In(time.Local), Status: lifecycle.DeliveryPending, Error: "e", NextAt: noon}}})
	if r := x.row(d); r.BegunAt != nil || r.Attempts != 1 || len(r.AttemptLog) != 1 {
		t.Errorf("its own: %s", show(r))
	}
	second := x.claim(e)
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: second.N, Status: lifecycle.DeliverySucceeded}}})
	if r := x.row(d); r.Status != "succeeded" {
		t.Errorf("of no time: %s", show(r))
	}
}

// The last attempt's success counts as late as its result may come.
func TestALateSuccessOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	x.exec(`UPDATE webhook_deliveries SET attempts = 4 WHERE id = $1`, d)
	a := x.claim(e)
	x.clock.set(noon.Add(timeout + 2*time.Second + 5*time.Second - time.Millisecond)) // time-out, its endpoint is read, a turn
	x.must(Turn{Endpoint: e, Want: 1})
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: a.N, BegunAt: a.BegunAt, Status: lifecycle.DeliverySucceeded, HTTPStatus: 200}}})
	if r := x.row(d); r.Status != "succeeded" || r.LastError != nil {
		t.Errorf("%s", show(r))
	}
}

// While an endpoint's attempt is in flight the endpoint is disabled, which ends pending
// deliveries. Only a success overrides that.
func TestAnAttemptOfAnEndpointThatWasDisabled(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	const words = "the endpoint was disabled"
	for name, c := range map[string]struct {
		result Result
		want   string
		last   *string
		log    int
	}{
		"it succeeded": {Result{Status: lifecycle.DeliverySucceeded, HTTPStatus: 200}, "succeeded", nil, 1},
		"it failed":    {Result{Status: lifecycle.DeliveryPending, Error: "e", NextAt: noon}, "failed", ptr(words), 1},
		"not sent":     {Result{Unsent: true}, "failed", ptr(words), 0},
	} {
		e := x.endpoint()
		d := x.pending(e, noon)
		x.claim(e)
		x.exec(`UPDATE webhooks SET enabled = false WHERE id = $1`, e.ID)
		x.exec(`UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL, last_error = $2 WHERE id = $1`, d, words)
		c.result.Delivery, c.result.N = d, 1
		x.must(Turn{Endpoint: e, Results: []Result{c.result}, Want: 1})
		if got := x.row(d); got.Status != c.want || got.NextAttemptAt != nil || got.BegunAt != nil || fmt.Sprint(follow(got.LastError)) != fmt.Sprint(follow(c.last)) || len(got.AttemptLog) != c.log {
			t.Errorf("%s: %s", name, show(got))
		}
	}
}

func TestWhatNoAttemptCanHaveComeTo(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	good, bad := x.pending(e, noon.Add(-time.Second)), x.pending(e, noon)
	x.must(Turn{Endpoint: e, Want: 2})
	for name, r := range map[string]Result{
		"attempt 0":                  {N: 0, Status: lifecycle.DeliverySucceeded},
		"attempt 6":                  {N: 6, Status: lifecycle.DeliverySucceeded},
		"unsent attempt 0":           {N: 0, Unsent: true},
		"no status":                  {N: 1},
		"an unknown status":          {N: 1, Status: "done"},
		"pending without a time":     {N: 1, Status: lifecycle.DeliveryPending},
		"pending after the fifth":    {N: 5, Status: lifecycle.DeliveryPending, NextAt: noon},
		"an HTTP status below 0":     {N: 1, Status: lifecycle.DeliveryFailed, HTTPStatus: -1},
		"an HTTP status of 4 digits": {N: 1, Status: lifecycle.DeliveryFailed, HTTPStatus: 1000},
	} {
		r.Delivery = bad
		if _, err := x.turn(Turn{Endpoint: e, Results: []Result{{Delivery: good, N: 1, Status: lifecycle.DeliverySucceeded}, r}}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := x.turn(Turn{Endpoint: e, Want: -1}); !errors.Is(err, ErrRefused) {
		t.Errorf("less than nothing is wanted: %v", err)
	}
	for _, d := range []id.DeliveryID{good, bad} {
		if r := x.row(d); r.BegunAt == nil || len(r.AttemptLog) != 0 {
			t.Errorf("something was written: %s", show(r))
		}
	}
	long := strings.Repeat("a", maxError-1) + "é" // its second byte is one too many
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: good, N: 1, Status: lifecycle.DeliveryFailed, HTTPStatus: 999, Error: long}}})
	if r := x.row(good); *r.LastError != long[:maxError-1] {
		t.Errorf("%d bytes of the error are kept", len(*r.LastError))
	}
}

// held keeps the outbox busy with a first flush until release.
func (x *world) held() (release func()) {
	return x.heldBy(func() { x.must(Turn{Endpoint: Endpoint{x.tenant, id.WebhookID{UUID: id.NewAnywhere()}}}) }, func() {})
}

// heldBy is held with a first Turn of the test's choice, and what happens while its
// flush waits: its fence does, for the member's row.
func (x *world) heldBy(turn, meanwhile func()) (release func()) {
	x.t.Helper()
	tx, err := x.pool.Begin(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	var first sync.WaitGroup
	var once sync.Once
	release = func() {
		once.Do(func() {
			if err := tx.Rollback(context.Background()); err != nil {
				x.t.Error(err)
			}
			first.Wait()
		})
	}
	x.t.Cleanup(release) // a test that failed meanwhile
	if _, err := tx.Exec(context.Background(), `SELECT FROM members WHERE id = $1 FOR UPDATE`, x.member); err != nil {
		x.t.Fatal(err)
	}
	first.Go(turn)
	admin := x.db.Admin(x.t)
	testkit.Eventually(x.t, "the flush waits", func() bool {
		var n int
		if err := admin.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`).Scan(&n); err != nil {
			x.t.Fatal(err)
		}
		return n == 1
	})
	meanwhile()
	return release
}

// all queues every Turn behind a flush that is held, and returns when all are done.
func (x *world) all(turns []Turn) ([]Claimed, []error) {
	x.t.Helper()
	release := x.held()
	claimed, errs := make([]Claimed, len(turns)), make([]error, len(turns))
	var wg sync.WaitGroup
	for i, turn := range turns {
		wg.Go(func() { claimed[i], errs[i] = x.turn(turn) })
		testkit.Eventually(x.t, "the turn is queued", func() bool { return x.queued() == i+1 })
	}
	release()
	wg.Wait()
	return claimed, errs
}

func (x *world) queued() int {
	x.o.mu.Lock()
	defer x.o.mu.Unlock()
	return len(x.o.queue)
}

// Turns that arrive during a flush are one transaction.
func TestTurnsOfAllEndpointsAreOneFlush(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	x := newWorld(t, func(c *Config) { c.Metrics = NewMetrics(reg) })
	turns := make([]Turn, 20)
	for i := range turns {
		turns[i] = Turn{Endpoint: x.endpoint(), Want: 2}
		x.backlog(turns[i].Endpoint, 3, []byte("{}"))
	}
	claimed, errs := x.all(turns)
	for i, c := range claimed {
		if errs[i] != nil || len(c.Attempts) != 2 || c.Next.IsZero() {
			t.Errorf("turn %d: %+v %v", i, c, errs[i])
		}
	}
	if n := x.count(`SELECT count(DISTINCT xmin::text) FROM webhook_deliveries WHERE attempts = 1`); n != 1 {
		t.Errorf("%d transactions", n)
	}
}

// Two that speak for one endpoint at once, as when it moves, get nothing twice.
func TestTurnsOfOneEndpointGetDifferentDeliveries(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	e := x.endpoint()
	x.backlog(e, 10, []byte("{}"))
	turns := []Turn{{Endpoint: e, Want: 4}, {Endpoint: e, Want: 4}, {Endpoint: e, Want: 4}}
	claimed, errs := x.all(turns)
	seen, flushes := map[id.DeliveryID]bool{}, map[time.Time]bool{}
	for i, c := range claimed {
		if errs[i] != nil {
			t.Error(errs[i])
		}
		for _, a := range c.Attempts {
			if seen[a.Delivery] {
				t.Errorf("%s twice", a.Delivery)
			}
			seen[a.Delivery], flushes[a.BegunAt] = true, true
		}
	}
	if len(seen) != 10 || len(flushes) != 3 {
		t.Errorf("%d of 10, in %d flushes", len(seen), len(flushes))
	}
}

// However many processes ask for however many endpoints: every delivery is claimed
// once, and settled once.
func TestProcessesClaimNothingTwice(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	const endpoints, each = 6, 200
	boxes := []*Outbox{x.o}
	for range 2 {
		_, o := x.process(nil)
		boxes = append(boxes, o)
	}
	var mu sync.Mutex
	seen := map[id.DeliveryID]int{}
	by := map[*Outbox]int{}
	var wg sync.WaitGroup
	for range endpoints {
		e := x.endpoint()
		x.backlog(e, each, []byte("{}"))
		for _, o := range boxes {
			wg.Go(func() {
				turn := Turn{Endpoint: e, Want: 7}
				for {
					c, err := o.Turn(context.Background(), turn)
					if err != nil {
						t.Error(err)
						return
					}
					if len(c.Attempts) == 0 && (c.Next.IsZero() || c.Next.Sub(noon) > time.Second) {
						return // nothing is due, and no row is locked
					}
					turn.Results = nil
					mu.Lock()
					for _, a := range c.Attempts {
						seen[a.Delivery]++
						by[o]++
						turn.Results = append(turn.Results, Result{Delivery: a.Delivery, N: a.N, Status: lifecycle.DeliverySucceeded})
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if len(seen) != endpoints*each {
		t.Errorf("%d of %d", len(seen), endpoints*each)
	}
	for d, n := range seen {
		if n != 1 {
			t.Errorf("%s was claimed %d times", d, n)
		}
	}
	if n := x.count(`SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded' AND attempts = 1 AND json_array_length(attempt_log) = 1`); n != endpoints*each {
		t.Errorf("%d are settled once", n)
	}
	if len(by) < 2 {
		t.Errorf("one process did it all: void")
	}
}

func TestQueriesNameTheirTenant(t *testing.T) { pgtest.Tenants(t, queries, nil) }
