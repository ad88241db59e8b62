package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// The changes of a tenant that wait for something leave connections to others, and so do its changes of many
// documents: one at a time.
func TestChangesLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.Pool(t, pg.Options{Role: pg.API, MaxConns: 16}), vault.New(vault.NewSecret32([32]byte{1})))
	a, b := pgtest.Tenant(t, db.Admin(t)), pgtest.Tenant(t, db.Admin(t))
	quick := func(by By) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

// Between the request and its place a caller may have been revoked: such a change is not begun.
func TestAChangeAsksAgainOnceItHasItsPlace(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.API(t), vault.New(vault.NewSecret32([32]byte{1})))
	tenant := pgtest.Tenant(t, db.Admin(t))
	for range changesEach {
		if err := s.changes.Take(t.Context(), tenant); err != nil {
			t.Fatal(err)
		}
	}
	revoked := errors.New("revoked")
	asked, said := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		said <- s.Change(t.Context(), By{Tenant: tenant, Again: func() error { asked <- struct{}{}; return revoked }},
			func(context.Context, *Tx) ([]byte, error) { t.Error("it was begun"); return nil, nil })
	}()
	testkit.Eventually(t, "the change waits", s.changes.Wanted)
	if len(asked) > 0 {
		t.Error("it was asked before it waited")
	}
	s.changes.Give(tenant)
	if err := <-said; !errors.Is(err, revoked) {
		t.Errorf("got %v", err)
	}
	if !s.changes.Try(tenant) {
		t.Error("it keeps its place")
	}
}

// Two tenants with all they may have at a time want more than all connections. A third one waits for one of
// them, not for all that the two have asked for before.
func TestTenantsTakeTurnsForConnections(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.Pool(t, pg.Options{Role: pg.API, MaxConns: 4}), vault.New(vault.NewSecret32([32]byte{1})))
	a, b, c := pgtest.Tenant(t, db.Admin(t)), pgtest.Tenant(t, db.Admin(t)), pgtest.Tenant(t, db.Admin(t))
	begun, goOn := make(chan id.TenantID, 2*readsEach+1), make(chan struct{})
	var wg sync.WaitGroup
	read := func(of id.TenantID) {
		wg.Go(func() {
			if err := s.View(of).q.run(t.Context(), "SELECT 1", nil, func(rows pgx.Rows) error { begun <- of; <-goOn; rows.Close(); return rows.Err() }); err != nil {
				t.Error(err)
			}
		})
	}
	waiting := func(want int) {
		testkit.Eventually(t, "the reads wait", func() (so bool) {
			_, _ = s.conns.TakeIf(t.Context(), c, func(_, all int) bool { so = all == want; return false })
			return so
		})
	}
	for range readsEach {
		read(a)
		read(b)
	}
	for range 4 {
		<-begun
	}
	waiting(2*readsEach - 4)
	read(c)
	waiting(2*readsEach - 3)
	free := 0
	for of := a; of != c; of = <-begun {
		goOn <- struct{}{}
		free++
	}
	if free > 3 {
		t.Errorf("the third tenant's turn came after %d others", free-1)
	}
	close(goOn)
	wg.Wait()
}

// The reads of a tenant that take long leave connections to others, beside as many changes as it may have.
func TestReadsLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.Pool(t, pg.Options{Role: pg.API, MaxConns: 16}), vault.New(vault.NewSecret32([32]byte{1})))
	a, b := pgtest.Tenant(t, db.Admin(t)), pgtest.Tenant(t, db.Admin(t))
	read := func(ctx context.Context, t id.TenantID, during func()) error {
		return s.View(t).q.run(ctx, "SELECT 1", nil, func(rows pgx.Rows) error { during(); rows.Close(); return rows.Err() })
	}
	held := make(chan struct{})
	begun := make(chan struct{}, readsEach+changesEach)
	hold := func() { begun <- struct{}{}; <-held }
	var wg sync.WaitGroup
	for range readsEach {
		wg.Go(func() {
			if err := read(t.Context(), a, hold); err != nil {
				t.Error(err)
			}
		})
	}
	for range changesEach {
		wg.Go(func() {
			if err := s.Change(t.Context(), By{Tenant: a}, func(context.Context, *Tx) ([]byte, error) { hold(); return nil, nil }); err != nil {
				t.Error(err)
			}
		})
	}
	for range readsEach + changesEach {
		<-begun
	}
	for name, more := range map[string]func(context.Context) error{
		"one read more": func(ctx context.Context) error { return read(ctx, a, func() {}) },
		"several reads at one moment": func(ctx context.Context) error {
			return s.View(a).q.together(ctx, func(b *pgx.Batch) { b.Queue("SELECT 1") })
		},
	} {
		late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := more(late); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	quick, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	if err := errors.Join(read(quick, b, func() {}), s.Change(quick, By{Tenant: b}, func(context.Context, *Tx) ([]byte, error) { return nil, nil })); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	close(held)
	wg.Wait()
	if err := read(quick, a, func() {}); err != nil {
		t.Error(err)
	}
}
