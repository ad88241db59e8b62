package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/blob"
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

// A taken port ends the start before anything else has begun, and the error names the setting.
func TestATakenAddressIsNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for env, c := range map[string]Config{
		"SVC_ADDR":         {Addr: taken.Addr().String()},
		"SVC_METRICS_ADDR": {Addr: "127.0.0.1:0", MetricsAddr: taken.Addr().String()},
	} {
		s := &service{c: &c}
		if err := s.takeAddress(t.Context()); err == nil || !strings.HasPrefix(err.Error(), env+": listen tcp "+taken.Addr().String()) {
			t.Errorf("%s: %v", env, err)
		}
		if err := s.stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A directory of files that cannot be written is refused when it is opened, not by the first upload.
func TestADirectoryOfFilesThatCannotBeWrittenIsRefused(t *testing.T) {
	at := filepath.Join(t.TempDir(), "blobs")
	if err := errors.Join(os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, ".tmp"), nil, 0o600)); err != nil { // root may write to a directory of any mode
		t.Fatal(err)
	}
	if _, err := openFiles(t.Context(), blob.Location{Dir: at}, "", "node"); err == nil || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), "uid") {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(at, ".tmp")); err != nil {
		t.Fatal(err)
	}
	s, err := openFiles(t.Context(), blob.Location{Dir: at}, "", "node")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The node is on this machine: a proxy of the environment does not lead there.
func TestTheHealthCheckUsesNoProxy(t *testing.T) {
	if direct.Transport.(*http.Transport).Proxy != nil {
		t.Error("it uses one")
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
