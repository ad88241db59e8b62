package journal

import (
	"errors"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

func TestTicketsAreShared(t *testing.T) {
	tk := newTickets(80)
	a, b, c := newTenantID(), newTenantID(), newTenantID()
	fill := func(tenant id.TenantID) (n int) {
		for tk.take(tenant) {
			n++
		}
		return n
	}
	if n := fill(a); n != 70 {
		t.Errorf("alone a tenant got %d of 80, want all but an eighth", n)
	}
	if n := fill(b); n != 9 {
		t.Errorf("the next one got %d, want all but one of the 10 that were left for it", n)
	}
	if tk.take(a) {
		t.Error("a tenant above its share got another ticket while others hold some")
	}
	if !tk.take(c) {
		t.Error("the third got nothing")
	}
	if d := newTenantID(); tk.take(d) {
		t.Error("a ticket was given where none was free")
	}
	tk.release(c)
	// Both want all that they can get, and give back what they have used.
	for range 200 {
		for _, tenant := range []id.TenantID{a, b} {
			tk.release(tenant)
			fill(a)
			fill(b)
		}
	}
	for _, tenant := range []id.TenantID{a, b} {
		if n := tk.held[tenant]; n < 33 || n > 41 {
			t.Errorf("one of two tenants holds %d of 80", n)
		}
	}
	if !tk.take(c) {
		t.Error("beside two that want all, a third got nothing")
	}
	tk.release(c)
	for tk.held[b] > 0 {
		tk.release(b)
	}
	fill(a)
	if n := tk.held[a]; n != 70 {
		t.Errorf("alone again the first holds %d, want 70", n)
	}
}

func TestEveryTenantGetsATicketOfMany(t *testing.T) {
	tk := newTickets(4)
	given := 0
	for range 10 {
		if tk.take(newTenantID()) {
			given++
		}
	}
	if given != 4 {
		t.Errorf("%d of 4 tickets were given to ten tenants", given)
	}
}

func TestAdmit(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Queue = 8 })
	var releases []func()
	for range 7 {
		release, err := x.w.Admit(t.Context(), x.tenant)
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	_, err := x.w.Admit(t.Context(), x.tenant)
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != problem.CodeUnavailable || p.RetryAfterSeconds() < 1 {
		t.Errorf("past the share: %v", err)
	}
	releases[0]()
	releases[0]() // once is enough
	if _, err := x.w.Admit(t.Context(), x.tenant); err != nil {
		t.Errorf("after a release: %v", err)
	}
	if _, err := x.w.Admit(t.Context(), x.tenant); err == nil {
		t.Error("a ticket that was given back twice counts twice")
	}
}
