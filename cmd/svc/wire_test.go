package main

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
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

func TestClosingConnectionsEndsWithTheNodesTime(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), pgtest.New(t).URL, pg.Options{Role: pg.System, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context()) // as one that waits for an answer
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if closePool(ctx, pool) {
		t.Error("a connection that is in use has ended")
	}
	conn.Release()
	if !closePool(t.Context(), pool) {
		t.Error("a connection that is free has not ended")
	}
}
