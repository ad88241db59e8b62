package turn

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"agentsvc/schemas/id"
)

func tenant() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

// A tenant that waits is served before the second piece of work of a busy one.
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy, quiet := tenant(), tenant()
		p := New(1, 1)
		if err := p.Take(t.Context(), busy); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex // guards got
		var got []id.TenantID
		var wg sync.WaitGroup
		for _, who := range []id.TenantID{busy, busy, busy, quiet} {
			wg.Go(func() {
				if err := p.Take(t.Context(), who); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				got = append(got, who)
				mu.Unlock()
				p.Give(who)
			})
			synctest.Wait() // they wait in this order
		}
		if !p.Wanted() {
			t.Error("nobody waits")
		}
		p.Give(busy)
		wg.Wait()
		if want := []id.TenantID{busy, quiet, busy, busy}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if p.Wanted() || p.free != 1 || len(p.held)+len(p.lines)+len(p.order) > 0 {
			t.Errorf("left: %+v", p)
		}
	})
}

// One tenant has at most its part of the places, and what it may not have stays free for others.
func TestOneTenantHasItsPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := tenant(), tenant()
		p := New(3, 2)
		for range 2 {
			if err := p.Take(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		third := make(chan error, 1)
		go func() { third <- p.Take(ctx, a) }()
		synctest.Wait()
		if err := p.Take(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-third; !errors.Is(err, context.Canceled) {
			t.Errorf("the third: %v", err)
		}
		p.Give(a)
		p.Give(a)
		p.Give(b)
		if p.free != 3 || len(p.held)+len(p.lines)+len(p.order) > 0 {
			t.Errorf("left: %+v", p)
		}
	})
}

// Work that yields goes on at once unless another tenant waits, goes before the rest of its own, and loses no place.
func TestYield(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := tenant(), tenant()
		p := New(1, 1)
		must := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		var got []string
		begin := func(name string, wait func() error) {
			go func() {
				must(wait())
				got = append(got, name)
			}()
			synctest.Wait()
		}
		had := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
		}
		must(p.Take(t.Context(), a))
		must(p.Yield(t.Context(), a)) // nobody waits
		begin("its own", func() error { return p.Take(t.Context(), a) })
		must(p.Yield(t.Context(), a)) // no other tenant waits
		begin("other", func() error { return p.Take(t.Context(), b) })
		must(p.Yield(t.Context(), a)) // it is its tenant's turn
		begin("yielded", func() error { return p.Yield(t.Context(), a) })
		had("other")
		p.Give(b)
		had("other", "yielded")
		p.Give(a)
		had("other", "yielded", "its own")
		begin("other", func() error { return p.Take(t.Context(), b) })
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- p.Yield(ctx, a) }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("one that leaves: %v", err)
		}
		p.Give(b)
		if p.free != 1 || len(p.held)+len(p.lines)+len(p.order) > 0 {
			t.Errorf("left: %+v", p)
		}
	})
}

// A place that is given to work which has just left goes to the next one.
func TestNoPlaceIsLost(t *testing.T) {
	t.Parallel()
	p := New(2, 2)
	var wg sync.WaitGroup
	for range 8 {
		who := tenant()
		wg.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if i%3 == 0 {
					go cancel()
				}
				if p.Take(ctx, who) == nil {
					p.Give(who)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if p.free != 2 || p.Wanted() {
		t.Errorf("%d places are free", p.free)
	}
}

// Work waits only while there is room for it, and work that need not wait needs none.
func TestRoomToWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := tenant(), tenant()
		p := New(1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var saw [][2]int
		take := func(who id.TenantID, most int) bool {
			var mu sync.Mutex // guards took
			took := true
			go func() {
				ok, _ := p.TakeIf(ctx, who, func(mine, all int) bool { saw = append(saw, [2]int{mine, all}); return mine < most })
				mu.Lock()
				defer mu.Unlock()
				took = ok
			}()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return took
		}
		for i, want := range []bool{true, true, true, false} { // one has the place, two wait
			if got := take(a, 2); got != want {
				t.Errorf("%d: %v", i, got)
			}
		}
		if !take(b, 1) || take(b, 1) {
			t.Error("another tenant's room is not its own")
		}
		if want := [][2]int{{0, 0}, {1, 1}, {2, 2}, {0, 2}, {1, 3}}; !slices.Equal(saw, want) {
			t.Errorf("saw %v, want %v", saw, want)
		}
		cancel()
		synctest.Wait()
		p.Give(a)
		if p.free != 1 || len(p.held)+len(p.lines)+len(p.order) > 0 {
			t.Errorf("left: %+v", p)
		}
	})
}

// Work that needs many places gets them together: less work does not pass it by, and goes on once it leaves.
func TestManyPlacesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := tenant(), tenant(), tenant()
		p := New(4, 3)
		take := func(ctx context.Context, who id.TenantID, n int) <-chan int {
			got := make(chan int, 1)
			go func() {
				if n, err := p.TakeSome(ctx, who, n); err == nil {
					got <- n
				}
			}()
			synctest.Wait()
			return got
		}
		ctx, cancel := context.WithCancel(t.Context())
		if n, err := p.TakeSome(t.Context(), a, 9); n != 3 || err != nil {
			t.Fatalf("%d places, %v", n, err)
		}
		many, one := take(ctx, b, 2), take(t.Context(), c, 1)
		own := take(t.Context(), a, 1) // beyond its part: it holds up nobody
		if len(many)+len(one)+len(own) != 0 {
			t.Error("what needs two places is passed by")
		}
		cancel()
		synctest.Wait()
		if len(many) != 0 || len(one) != 1 || len(own) != 0 {
			t.Errorf("after it left: %d %d %d", len(many), len(one), len(own))
		}
		many = take(t.Context(), b, 2)
		p.GiveSome(a, 3)
		synctest.Wait()
		if len(many) != 1 || len(own) != 1 {
			t.Errorf("after places are back: %d %d", len(many), len(own))
		}
		p.GiveSome(b, 2)
		p.Give(c)
		p.Give(a)
		if p.free != 4 || len(p.held)+len(p.lines)+len(p.order) > 0 {
			t.Errorf("left: %+v", p)
		}
	})
}

// Work that comes first is served before what else waits of its tenant, in the order in which it came, and takes no other tenant's turn.
func TestWorkThatComesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mine, other := tenant(), tenant()
		p := New(1, 1)
		if err := p.Take(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		any := func(int, int) bool { return true }
		var mu sync.Mutex // guards got
		var got []string
		var wg sync.WaitGroup
		for _, work := range []struct {
			name  string
			of    id.TenantID
			ahead bool
		}{{"a", mine, false}, {"b", mine, false}, {"other", other, false}, {"first", mine, true}, {"second", mine, true}} {
			take := p.TakeIf
			if work.ahead {
				take = p.TakeAhead
			}
			wg.Go(func() {
				if ok, err := take(t.Context(), work.of, any); !ok || err != nil {
					t.Error(ok, err)
					return
				}
				mu.Lock()
				got = append(got, work.name)
				mu.Unlock()
				p.Give(work.of)
			})
			synctest.Wait() // they wait in this order
		}
		if ok, err := p.TakeAhead(t.Context(), mine, func(mine, all int) bool { return mine < 4 || all < 5 }); ok || err != nil {
			t.Errorf("without room: %v, %v", ok, err)
		}
		p.Give(mine)
		wg.Wait()
		if want := []string{"first", "other", "second", "a", "b"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
