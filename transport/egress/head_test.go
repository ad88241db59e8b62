package egress

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
)

// The head of a response is refused before its fields have taken much memory, and one that servers send passes. The test does
// not run beside others, because it counts what the process allocates.
func TestHeadsAreCapped(t *testing.T) {
	g := New(Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	var small strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&small, "%c%c%c:\r\n", 'a'+i%26, 'a'+i/26%26, 'a'+i/676%26)
	}
	for name, c := range map[string]struct {
		head string
		most int64
		ok   bool
	}{
		"small fields":             {small.String(), 0, false},
		"small fields, no end":     {strings.TrimSuffix(small.String(), "\r\n"), 0, false},
		"a large field":            {"x: " + strings.Repeat("x", 16<<10) + "\r\n", 0, false},
		"as large as allowed":      {"x: " + strings.Repeat("x", 12<<10) + "\r\n", 0, true},
		"a client that needs more": {"x: " + strings.Repeat("x", 32<<10) + "\r\n", 64 << 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan struct{})
			go func() {
				defer close(served)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					return
				}
				fmt.Fprintf(conn, "HTTP/1.1 204 No Content\r\n%s\r\n", c.head) // fails where the head is refused
			}()
			defer func() { ln.Close(); <-served }()
			hc := g.Client(Options{MaxHead: c.most})
			defer hc.CloseIdleConnections()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			resp, err := hc.Get("http://" + ln.Addr().String())
			runtime.ReadMemStats(&after)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 2<<20 {
				t.Errorf("took %d KiB", took>>10)
			}
		})
	}
}
