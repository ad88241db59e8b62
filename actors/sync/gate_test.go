package sync

import (
	"context"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// TestGate: one place for each tenant, waiting tenants in turn, no place lost by one that leaves.
func TestGate(t *testing.T) {
	t.Parallel()
	g := newGate(2)
	tenants := [3]id.TenantID{{UUID: id.NewAnywhere()}, {UUID: id.NewAnywhere()}, {UUID: id.NewAnywhere()}}
	got := make(chan int, 16)
	lines := func() (n int) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, l := range g.lines {
			n += len(l)
		}
		return n
	}
	queued := 0
	take := func(who int) {
		queued++
		go func() {
			if g.take(context.Background(), tenants[who]) == nil {
				got <- who
			}
		}()
		testkit.Eventually(t, "it waits", func() bool { return lines() == queued })
	}
	for who := range 2 {
		if err := g.take(context.Background(), tenants[who]); err != nil {
			t.Fatal(err)
		}
	}
	for _, who := range []int{0, 0, 0, 1, 2, 2} { // the first tenant has a long line
		take(who)
	}
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() { left <- g.take(ctx, tenants[2]) }()
	testkit.Eventually(t, "it waits", func() bool { return lines() == queued+1 })
	cancel()
	if err := <-left; err != context.Canceled {
		t.Fatal(err)
	}
	if !g.wanted() {
		t.Error("nothing is wanted")
	}
	running := [3]int{1, 1, 0}
	var order []int
	for len(order) < 6 {
		before := lines()
		for who := range running {
			if running[who] > 0 {
				running[who]--
				g.give(tenants[who])
				break
			}
		}
		for range before - lines() {
			who := <-got
			if running[who]++; running[who] > 1 {
				t.Fatal("two places of one tenant")
			}
			order = append(order, who)
		}
	}
	if seen := order[:3]; !(contains(seen, 0) && contains(seen, 2)) {
		t.Errorf("%v: a tenant with a long line goes before others", order)
	}
}

func contains(list []int, n int) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}

// TestClean: what a vendor supplies for people to read.
func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a\x00b\r\n c": "ab c", "\u202eevil": "evil", "": "id", "\xff\xfe": "id", "  x ": "x"} {
		if got := cleanName(in, "id"); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	for in, ok := range map[string]bool{"https://x/": true, "s3://b/k": true, "javascript:alert(1)": false, "data:text/html,x": false, "": false, "https://x/\u202e": false} {
		if (cleanURI(in) != nil) != ok {
			t.Errorf("%q", in)
		}
	}
}
