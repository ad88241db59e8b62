package main

import (
	"fmt"
	"net"
	"testing"
)

// Outbound calls never reach the service's own listeners, however their addresses
// are written.
func TestOwnAddresses(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for metrics, want := range map[string]string{
		"": "", "127.0.0.1:9090": " 127.0.0.1:9090", "[::1]:9090": " [::1]:9090", ":9090": " [::]:9090", "0.0.0.0:9090": " 0.0.0.0:9090",
	} {
		got := ""
		for _, a := range ownAddresses(ln, metrics) {
			got += fmt.Sprint(" ", a)
		}
		if got != " "+ln.Addr().String()+want {
			t.Errorf("%q: %s", metrics, got)
		}
	}
}
