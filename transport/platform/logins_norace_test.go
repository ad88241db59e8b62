//go:build !race

package platform

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
)

// Logins from one address wait for each other and never delay others: a login from another
// address takes the next slot, however many of the first are in progress.
func TestOneAddressDoesNotHoldUpOtherLogins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember)
	g := newGate(1)
	g.patience = time.Minute
	w.Sessions.hashes = g
	login := func(ctx context.Context, addr, email, secret string) error {
		in := &loginInput{}
		in.Body.Email, in.Body.Password = email, secret
		_, err := w.Platform.login(ctx, &edge.Caller{IP: netip.MustParseAddr(addr)}, in)
		return err
	}
	g.slots <- struct{}{} // a password is being checked
	flood, stop := context.WithCancel(t.Context())
	defer stop()
	const many = maxHashQueue + 20
	refused := make(chan error, many)
	for i := range many {
		go func() { // all addresses of an IPv6 client's /64 count as one
			refused <- login(flood, fmt.Sprintf("2001:db8:1:2::%x", i), fmt.Sprintf("nobody%d@example.com", i), "wrong")
		}()
	}
	for range many - 1 - maxHashQueue {
		if err := <-refused; !isProblem(err, problem.CodeRateLimited) || !strings.Contains(err.Error(), "scope login") {
			t.Fatalf("a login above the limit of one address: %v", err)
		}
	}
	others := make(chan error, 2)
	for i := range cap(others) {
		go func() { others <- login(t.Context(), fmt.Sprintf("192.0.2.%d", i), "kim@example.com", goodPassword) }()
	}
	testkit.Eventually(t, "three clients wait for a slot", func() bool { return len(g.queue) == 3 })
	<-g.slots
	for range cap(others) {
		if err := <-others; err != nil {
			t.Errorf("a login from another address: %v", err)
		}
	}
	if n := len(refused); n > 3 {
		t.Errorf("%d logins of the flood were served before two from other addresses", n)
	}
	stop()
	testkit.Eventually(t, "every place is given back", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.lines) == 0 && len(g.slots) == 0 && len(g.queue) == 0
	})
	// The wait behind logins from the same address is bounded too.
	g.patience = time.Millisecond
	hold, held := make(chan struct{}), make(chan struct{})
	go func() { refused <- g.do(t.Context(), "client", func() { close(held); <-hold }) }()
	<-held
	if err := g.do(t.Context(), "client", func() {}); !isProblem(err, problem.CodeRateLimited) {
		t.Error(err)
	}
	close(hold)
}
