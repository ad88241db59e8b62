package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
)

func tenants(n int) []id.TenantID {
	list := make([]id.TenantID, n)
	for i := range list {
		list[i] = id.TenantID{UUID: id.NewAnywhere()}
	}
	return list
}

// A tenant has so many places, all tenants together so many, and a free place goes to the tenant
// with the fewest.
func TestPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, of := NewPlaces(3, 5, 50), tenants(3)
		ctx, cancel := context.WithCancel(t.Context())
		entered := make(chan id.TenantID, 100)
		enter := func(who id.TenantID, n int) {
			for range n {
				go func() {
					if p.Enter(ctx, who) {
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
		p.Leave(of[0])
		synctest.Wait()
		if got := count(); got != [3]int{0, 0, 1} {
			t.Errorf("the one with the fewest is next, though it came last: %v", got)
		}
		p.Leave(of[2])
		p.Leave(of[1])
		synctest.Wait()
		if got := count(); got != [3]int{1, 1, 0} {
			t.Errorf("then they are even: %v", got)
		}
		cancel() // none of those that wait has a place afterwards
		synctest.Wait()
		for range 3 {
			p.Leave(of[0])
		}
		for range 2 {
			p.Leave(of[1])
		}
		synctest.Wait()
		if got := count(); got != [3]int{} || p.total != 0 || len(p.under) != 0 || len(p.waiting) != 0 {
			t.Errorf("left: %v, %+v", got, p)
		}
	})
}

// So many callers of a tenant wait; one more is refused at once, and others' are not.
func TestCallersThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, of := NewPlaces(1, 2, 2), tenants(2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p.Enter(ctx, of[0])
		for range 2 {
			go p.Enter(ctx, of[0])
		}
		synctest.Wait()
		if p.Enter(ctx, of[0]) {
			t.Error("one too many has a place")
		}
		if !p.Enter(ctx, of[1]) {
			t.Error("another tenant has none")
		}
	})
}

// The changes of a tenant that wait for something leave connections to others, and so do its changes of many
// documents: one at a time.
func TestChangesLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.Pool(t, pg.Options{Role: pg.API, MaxConns: 16}), vault.New(vault.NewSecret32([32]byte{1})))
	a, b := pgtest.Tenant(t, db.Admin(t)), pgtest.Tenant(t, db.Admin(t))
	quick := func(by By) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return s.Change(ctx, by, func(context.Context, *Tx) ([]byte, error) { return nil, nil })
	}
	refused := func(by By) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		return errors.Is(s.Change(ctx, by, func(context.Context, *Tx) ([]byte, error) { return nil, nil }), ErrUnavailable)
	}
	held := make(chan struct{})
	begun := make(chan struct{}, changesEach)
	var wg sync.WaitGroup
	hold := func(by By) {
		wg.Go(func() {
			if err := s.Change(t.Context(), by, func(context.Context, *Tx) ([]byte, error) { begun <- struct{}{}; <-held; return nil, nil }); err != nil {
				t.Error(err)
			}
		})
		<-begun
	}
	hold(By{Tenant: a, Long: true})
	if !refused(By{Tenant: a, Long: true}) {
		t.Error("a second change of many documents has a connection")
	}
	if err := errors.Join(quick(By{Tenant: a}), quick(By{Tenant: b, Long: true})); err != nil {
		t.Error(err)
	}
	for range changesEach - 1 {
		hold(By{Tenant: a})
	}
	if !refused(By{Tenant: a}) {
		t.Errorf("%d changes have connections", changesEach+1)
	}
	if err := quick(By{Tenant: b}); err != nil {
		t.Error(err)
	}
	close(held)
	wg.Wait()
	if err := errors.Join(quick(By{Tenant: a}), quick(By{Tenant: a, Long: true})); err != nil {
		t.Error(err)
	}
}
