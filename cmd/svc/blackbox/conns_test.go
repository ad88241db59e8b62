package blackbox

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
)

// With few file descriptors, idle connections and event streams of one address leave room for all others,
// and for the node's own needs.
func TestOneAddressCannotTakeAllConnections(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	n := newNode(t, calm, "SVC_CONNS_PER_ADDRESS=1024", "SVC_DATABASE_URL="+pgtest.New(t).URL)
	n.file = filepath.Join(t.TempDir(), "svc")
	if err := os.WriteFile(n.file, []byte("#!/bin/sh\nulimit -n 400\nexec "+binary(t)+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.start()
	c := n.tenant("crowd")
	refused := 0
	for i := range 400 {
		conn, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		if b := make([]byte, 1); i > 0 {
			if k, _ := conn.Read(b); k > 0 {
				refused++
			}
		}
	}
	other := *c
	other.HTTP = &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext, DisableKeepAlives: true}}
	for range 50 {
		if a, err := other.do(ctx, "GET", "/v1/agents", nil); err != nil || a.status != 200 {
			t.Fatalf("from another address: %v %s", err, a.whole())
		}
	}
	agent := other.publish(t, "Helper", simulatedModel)
	other.poll(t, ctx, other.runOnce(t, ctx, agent, "/say ok"), "succeeded")
	if refused == 0 {
		t.Error("nothing was refused: the test is void")
	}
	eventually(t, ctx, "the address itself is told why it is refused", func() bool { // only a few at a time get the reason
		a, err := c.do(ctx, "GET", "/v1/agents", nil)
		return err == nil && a.status == 429 && strings.Contains(string(a.body), "scope connections")
	})
}
