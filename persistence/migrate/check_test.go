package migrate_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"agentsvc/persistence/migrate"
	"agentsvc/persistence/pgtest"
)

func TestADirectConnectionPassesTheCheck(t *testing.T) {
	if err := migrate.Check(t.Context(), pgtest.New(t).URL); err != nil {
		t.Fatal(err)
	}
}

func TestATransactionPoolIsFound(t *testing.T) {
	for _, size := range []int{2, 3} {
		p := startPooler(t, pgtest.New(t).URL, size)
		if err := migrate.Check(t.Context(), p); !errors.Is(err, migrate.ErrPooled) {
			t.Errorf("%d server connections: got %v", size, err)
		}
	}
}

// pooler gives each transaction of a client the server connection that was free
// last, as transaction pools do.
type pooler struct {
	mu   sync.Mutex
	free []*pgproto3.Frontend
}

// startPooler returns the URL of a pool of size connections to the server dsn.
func startPooler(t *testing.T, dsn string, size int) string {
	t.Helper()
	p := &pooler{}
	for range size {
		conn, err := pgconn.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		h, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Conn.Close() })
		p.free = append(p.free, h.Frontend)
	}
	dir, err := os.MkdirTemp("", "pool-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	t.Cleanup(clients.Wait)
	t.Cleanup(func() { l.Close() })
	clients.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			clients.Go(func() {
				defer conn.Close()
				p.serve(conn)
			})
		}
	})
	u := url.URL{Scheme: "postgres", User: url.User("someone"), Path: "/any", RawQuery: url.Values{"host": {dir}}.Encode()}
	return u.String()
}

// serve ends with its client; it knows the simple protocol only.
func (p *pooler) serve(conn net.Conn) {
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	var server *pgproto3.Frontend
	for {
		msg, err := client.Receive()
		query, ok := msg.(*pgproto3.Query)
		if err != nil || !ok {
			return
		}
		if server == nil {
			p.mu.Lock()
			server = p.free[len(p.free)-1]
			p.free = p.free[:len(p.free)-1]
			p.mu.Unlock()
		}
		server.Send(query)
		if server.Flush() != nil {
			return
		}
		for ready := false; !ready; {
			answer, err := server.Receive()
			if err != nil {
				return
			}
			client.Send(answer)
			if r, ok := answer.(*pgproto3.ReadyForQuery); ok {
				ready = true
				if r.TxStatus == 'I' {
					p.mu.Lock()
					p.free = append(p.free, server)
					p.mu.Unlock()
					server = nil
				}
			}
		}
		if client.Flush() != nil {
			return
		}
	}
}

func TestTheCheckEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := migrate.Check(ctx, pgtest.New(t).URL); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}
