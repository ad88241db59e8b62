package journal

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/webhook"
)

// When a node has forgotten which endpoints a tenant has, a commit that was decided before is
// written before Outdate returns, or never. One in a flush is written, one that waits for the
// next flush is answered ErrOutdated, and so is one that comes later.
func TestOutdatedCommits(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	other, _ := x.newTenant()
	x.endpoint(x.tenant, webhook.All)
	of := func(tenant id.TenantID, basis uint64) *Commit {
		c := x.reporting(1, event(webhook.RunCompleted)).commit()
		c.Tenant, c.Basis = tenant, basis
		return c
	}
	do := func(c *Commit) error {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		return x.w.Do(ctx, c)
	}
	was := x.w.Basis()
	cases := []struct {
		name string
		c    *Commit
		want error
	}{
		{"decided before", of(x.tenant, was), ErrOutdated},
		{"of another tenant", of(other, was), nil},
		{"not dependent on it", of(x.tenant, 0), nil},
	}

	release := x.block() // each lane is in a flush
	got := make([]chan error, len(cases))
	for i, c := range cases {
		queued := x.queued()
		got[i] = make(chan error, 1)
		go func() { got[i] <- do(c.c) }()
		testkit.Eventually(t, "the commit is queued", func() bool { return x.queued() > queued })
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := x.w.Outdate(short, x.tenant); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while a flush is in flight, Outdate returns %v", err)
	}
	release()
	if err := x.w.Outdate(t.Context(), x.tenant); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		if err := <-got[i]; !errors.Is(err, c.want) {
			t.Errorf("a commit %s: %v, want %v", c.name, err, c.want)
		}
		if n, want := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.c.Audit[0].ID), 1; c.want == nil && n != want || c.want != nil && n != 0 {
			t.Errorf("a commit %s has %d rows", c.name, n)
		}
	}

	now := x.w.Basis()
	for name, c := range map[string]struct {
		basis uint64
		want  error
	}{"from before": {was, ErrOutdated}, "from now": {now, nil}} {
		if err := do(of(x.tenant, c.basis)); !errors.Is(err, c.want) {
			t.Errorf("a later commit %s: %v, want %v", name, err, c.want)
		}
	}
	if err := x.w.OutdateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tenant := range map[string]id.TenantID{"the tenant": x.tenant, "another tenant": other} {
		if err := do(of(tenant, now)); !errors.Is(err, ErrOutdated) {
			t.Errorf("after OutdateAll, a commit of %s: %v", name, err)
		}
		if err := do(of(tenant, x.w.Basis())); err != nil {
			t.Errorf("after OutdateAll, a new commit of %s: %v", name, err)
		}
	}
}

// A commit whose caller has left is not decided again: if it is outdated when the lane takes
// it, it is not written.
func TestAnOutdatedCommitWithoutItsCaller(t *testing.T) {
	t.Parallel()
	x := newWorld(t, nil)
	release := x.block()
	c := x.auditOnly(1).commit()
	c.Basis = x.w.Basis()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := x.w.Do(ctx, c); !errors.Is(err, ErrUnsettled) {
		t.Fatal(err)
	}
	x.w.basis.forget(x.tenant)
	release()
	if err := x.w.Outdate(t.Context(), x.tenant); err != nil {
		t.Fatal(err)
	}
	x.must(x.auditOnly(1)) // behind it
	if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// A basis keeps a bounded number of tenants apart: beyond it, everything is outdated once.
func TestABasisIsBounded(t *testing.T) {
	t.Parallel()
	b := newBasis()
	tenant := func() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }
	own := &Commit{Tenant: tenant(), Basis: b.now.Load()}
	for i := range 3 * maxOutdated {
		if want := i > maxOutdated; b.outdated(own) != want {
			t.Fatalf("after %d tenants: outdated %v", i, !want)
		}
		b.forget(tenant())
		if n := len(b.of); n > maxOutdated {
			t.Fatalf("%d tenants", n)
		}
	}
	own.Basis = b.now.Load()
	if b.outdated(own) {
		t.Error("a commit of now is outdated")
	}
}
