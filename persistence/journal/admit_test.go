package journal

import (
	"errors"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

func TestTicketsAreShared(t *testing.T) {
	now := noon
	tk := newTickets(80, func() time.Time { return now })
	a, b, c := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	fill := func(tenant id.TenantID) (n int) {
		for tk.take(tenant) {
			n++
		}
		return n
	}
	free := func(tenant id.TenantID, n int) {
		for range n {
			tk.release(tenant)
		}
	}
	if n := fill(a); n != 70 {
		t.Errorf("alone a tenant got %d of 80, want all but an eighth", n)
	}
	if n := fill(b); n != 10 {
		t.Errorf("the next one got %d, want the 10 that were left for it", n)
	}
	free(a, 20)
	if tk.take(a) {
		t.Error("a tenant above its share got another ticket while others hold some")
	}
	if n := fill(b); n != 20 {
		t.Errorf("the second got %d more, want the 20 that came free", n)
	}
	if tk.take(c) {
		t.Error("a ticket was given where none was free")
	}
	free(b, 10) // the third wants: 80 for three
	if tk.take(a) || tk.take(b) == (tk.held[b] > 80/3) {
		t.Error("the shares did not become smaller for the one who was turned away")
	}
	if !tk.take(c) {
		t.Error("the third got nothing after tickets came free")
	}
	free(b, tk.held[b])
	free(c, tk.held[c])
	now = now.Add(2 * wantFor)
	if n := fill(a); n+50 != 70 {
		t.Errorf("alone again the first holds %d, want 70", n+50)
	}
}

func TestEveryTenantGetsATicketOfMany(t *testing.T) {
	tk := newTickets(4, func() time.Time { return noon })
	given := 0
	for range 10 {
		if tk.take(id.TenantID{UUID: id.NewAnywhere()}) {
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
