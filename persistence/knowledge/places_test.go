package knowledge

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
)

func tenants(n int) []id.TenantID {
	list := make([]id.TenantID, n)
	for i := range list {
		list[i] = id.TenantID{UUID: id.NewAnywhere()}
	}
	return list
}

// A tenant has so many searches under way, all tenants together so many, and a free place goes to the tenant
// with the fewest.
func TestPlacesOfSearches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, of := newPlaces(3, 5, 50), tenants(3)
		ctx, cancel := context.WithCancel(t.Context())
		entered := make(chan id.TenantID, 100)
		enter := func(who id.TenantID, n int) {
			for range n {
				go func() {
					if p.enter(ctx, who) {
						entered <- who
					}
				}()
				synctest.Wait()
			}
		}
		count := func() (n [3]int) {
			for {
				select {
				case who := <-entered:
					for i := range of {
						if of[i] == who {
							n[i]++
						}
					}
				default:
					return n
				}
			}
		}
		enter(of[0], 20)
		if got := count(); got != [3]int{3, 0, 0} {
			t.Errorf("a tenant alone: %v", got)
		}
		enter(of[1], 20)
		if got := count(); got != [3]int{0, 2, 0} {
			t.Errorf("with another one: %v", got)
		}
		enter(of[2], 1)
		if got := count(); got != [3]int{} {
			t.Errorf("all are under way: %v", got)
		}
		p.leave(of[0])
		synctest.Wait()
		if got := count(); got != [3]int{0, 0, 1} {
			t.Errorf("the one with the fewest is next, though it came last: %v", got)
		}
		p.leave(of[2])
		p.leave(of[1])
		synctest.Wait()
		if got := count(); got != [3]int{1, 1, 0} {
			t.Errorf("then they are even: %v", got)
		}
		cancel() // none of those that wait has a place afterwards
		synctest.Wait()
		for range 3 {
			p.leave(of[0])
		}
		for range 2 {
			p.leave(of[1])
		}
		synctest.Wait()
		if got := count(); got != [3]int{} || p.total != 0 || len(p.under) != 0 || len(p.waiting) != 0 {
			t.Errorf("left: %v, %+v", got, p)
		}
	})
}

// So many searches of a tenant wait; one more is refused at once, and others' are not.
func TestSearchesThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, of := newPlaces(1, 2, 2), tenants(2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p.enter(ctx, of[0])
		for range 2 {
			go p.enter(ctx, of[0])
		}
		synctest.Wait()
		if p.enter(ctx, of[0]) {
			t.Error("one too many has a place")
		}
		if !p.enter(ctx, of[1]) {
			t.Error("another tenant has none")
		}
	})
}

// A search without a place in time is refused as unavailable, and takes no connection meanwhile.
func TestASearchWithoutAPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("doc", nil, "Every car needs oil.")
	for range searchesEach {
		if !w.index.places.enter(t.Context(), w.tenant) {
			t.Fatal("no place")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	q := Query{Tenant: w.tenant, Base: w.base, Text: "oil", TopK: 1, Viewer: []string{knowledge.Public}}
	if hits, err := w.index.Search(ctx, q); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("found %v, %v", hits, err)
	}
	w.index.places.leave(w.tenant)
	if got := w.names("oil"); got != "doc" {
		t.Errorf("found %q", got)
	}
}
