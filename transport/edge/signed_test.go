package edge

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/problem"
)

// door is a signed route: the call's header decides whether its target is known, its body
// whether it is accepted.
type door struct{ of Identity }

func (d door) Known(in *Raw) bool { return in.Header("X-Known") != "" }

func (d door) Verify(_ context.Context, in *Raw) (Identity, SignedCall, error) {
	if string(in.Body) != "open" {
		return Identity{}, nil, problem.New(problem.CodeInvalidSignature, "")
	}
	return d.of, entered{}, nil
}

type entered struct{}

func (entered) Check() error                             { return nil }
func (entered) Do(context.Context, *Caller) (any, error) { return map[string]string{}, nil }

func newDoor(t *testing.T) *world {
	t.Helper()
	return newWorld(t, func(c *Config) {
		HandleSigned(c.Table, Route{Method: "POST", Path: "/door", ID: "door", Summary: "Enter", Tag: "Service", Status: 202, Codes: []problem.Code{problem.CodeInvalidSignature},
			Answer: map[string]string{}, MediaType: "application/json"}, door{c.Auth.(*stubAuth).keys["member"]})
	})
}

// A call that its address cannot pay for is refused before its body has come, where
// it is not known, and where the address has just failed to pay.
func TestARefusedCallCostsNoBody(t *testing.T) {
	w := newDoor(t)
	// half sends a call whose body never completes.
	half := func(head string) (answer, error) {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		return exchange(c, bufio.NewReader(c), "POST /door HTTP/1.1\r\nHost: x\r\n"+head+"Content-Length: 1000000\r\n\r\n"+strings.Repeat("x", 16<<10))
	}
	w.limits.ip = 0
	if got, err := half(""); err != nil || got.status != 429 {
		t.Fatalf("not known: %v %+v", err, got)
	}
	if got := w.call("POST", "/door", "open", "X-Known: 1"); got.status != 202 {
		t.Fatalf("known and accepted: %+v", got)
	}
	if got := w.call("POST", "/door", "closed", "X-Known: 1"); got.status != 429 {
		t.Fatalf("known and refused: %+v", got)
	}
	if got, err := half("X-Known: 1\r\n"); err != nil || got.status != 429 {
		t.Fatalf("known, from an address that has just failed: %v %+v", err, got)
	}
	if got := w.call("POST", "/door", "open", "X-Known: 1"); got.status != 429 {
		t.Errorf("accepted, from an address that has just failed: %+v", got)
	}
	w.limits.mu.Lock()
	w.limits.ip = 1
	w.limits.mu.Unlock()
	for range 3 {
		if got := w.call("POST", "/door", "open", "X-Known: 1"); got.status != 202 {
			t.Errorf("accepted, from an address that has a token again: %+v", got)
		}
	}
}

// A bucket that cannot be reached does not mark the address as out of tokens.
func TestAnAddressWhoseBucketIsAwayIsNotBroke(t *testing.T) {
	w := newDoor(t)
	w.limits.away = true
	if got := w.call("POST", "/door", "closed", "X-Known: 1"); got.status != 503 {
		t.Fatalf("%+v", got)
	}
	w.limits.mu.Lock()
	w.limits.away, w.limits.ip = false, 0
	w.limits.mu.Unlock()
	if got := w.call("POST", "/door", "open", "X-Known: 1"); got.status != 202 {
		t.Errorf("%+v", got)
	}
}

func TestAnAddressIsBrokeForAMoment(t *testing.T) {
	now := time.Now()
	b := &broke{now: func() time.Time { return now }}
	ip := netip.MustParseAddr("192.0.2.1")
	b.add(ip)
	now = now.Add(brokeFor - 1)
	b.add(ip) // makes it no longer
	if !b.has(ip) || b.has(netip.MustParseAddr("192.0.2.2")) {
		t.Error("not before the moment is over, and nobody else")
	}
	if now = now.Add(1); b.has(ip) {
		t.Error("the moment is over")
	}
	ip = netip.MustParseAddr("2001:db8::")
	for range 2 * maxBroke {
		b.add(ip)
		if !b.has(ip) {
			t.Fatal("the last one is not among them")
		}
		ip = ip.Next()
	}
	if len(b.until) > maxBroke {
		t.Errorf("%d addresses are remembered", len(b.until))
	}
}
