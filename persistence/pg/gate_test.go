package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// begin begins an attempt; the returned function ends it.
func (g *Gate) begin() (end func(error)) {
	ctx := g.TraceConnectStart(context.Background(), pgx.TraceConnectStartData{})
	return func(err error) { g.TraceConnectEnd(ctx, pgx.TraceConnectEndData{Err: err}) }
}

func (g *Gate) ends(err error) { g.begin()(err) }

// One pool has connected when another hears that the server starts: an older fact, which closes nothing.
func TestAnAnswerFromBeforeClosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(Gate)
		older := g.begin()
		time.Sleep(time.Millisecond)
		g.ends(nil)
		older(syscall.ECONNREFUSED)
		if err := g.enter(t.Context(), nil); err != nil {
			t.Error(err)
		}
		g.ends(syscall.ECONNREFUSED)
		if err := g.enter(t.Context(), nil); err == nil {
			t.Error("a newer fact does not close the gate")
		}
	})
}

func TestAnAbsentServerIsAskedByOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starting := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "57P03"})
		for _, failure := range []error{starting, syscall.ECONNREFUSED, syscall.ENOENT} {
			g := new(Gate)
			for range 3 { // all may ask a server that is there
				if err := g.enter(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			g.ends(failure)
			for _, after := range []time.Duration{0, pause - 1} {
				time.Sleep(after)
				if err := g.enter(t.Context(), nil); !errors.Is(err, failure) {
					t.Errorf("%v: the next attempt %s later: %v", failure, after, err)
				}
			}
			time.Sleep(time.Nanosecond)
			if err := g.enter(t.Context(), nil); err != nil {
				t.Errorf("%v: no attempt after the pause: %v", failure, err)
			}
			if err := g.enter(t.Context(), nil); !errors.Is(err, failure) {
				t.Errorf("%v: a second attempt at the same time: %v", failure, err)
			}
			g.ends(nil)
			for range 2 {
				if err := g.enter(t.Context(), nil); err != nil {
					t.Errorf("the server is back: %v", err)
				}
			}
		}
	})
}

// Another failure says nothing about the next attempt: the caller's deadline, a limit of the server, a wrong
// password.
func TestOtherFailuresLimitNothing(t *testing.T) {
	for _, failure := range []error{context.DeadlineExceeded, context.Canceled, &pgconn.PgError{Code: "53300"}, &pgconn.PgError{Code: "28P01"}} {
		g := new(Gate)
		g.ends(failure)
		if err := g.enter(t.Context(), nil); err != nil {
			t.Errorf("after %v: %v", failure, err)
		}
		g.ends(syscall.ECONNREFUSED)
		g.next = time.Time{}
		if err := g.enter(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		g.ends(failure) // the one attempt under way
		if err := g.enter(t.Context(), nil); err != nil {
			t.Errorf("%v ends the only attempt, and there is no other: %v", failure, err)
		}
	}
}

// Many callers of a pool wait for a server that starts: it sees few attempts, and all callers hear that it
// starts.
func TestAPoolAsksAStartingServerRarely(t *testing.T) {
	var attempts atomic.Int64
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			attempts.Add(1)
			server := pgproto3.NewBackend(c, c)
			if _, err := server.ReceiveStartupMessage(); err == nil {
				server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03", Message: "the database system is starting up"})
				server.Flush()
			}
			c.Close()
		}
	}()
	cfg, err := pgxpool.ParseConfig("host=" + filepath.Dir(socket.Addr().String()) + " user=x sslmode=disable pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	g := new(Gate)
	cfg.BeforeConnect, cfg.ConnConfig.Tracer = g.enter, g
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	begin := time.Now()
	const callers, calls = 20, 100
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls {
				if err := pool.Ping(t.Context()); !absent(err) || !IsUnavailable(err) {
					t.Errorf("a caller hears %v", err)
				}
			}
		})
	}
	wg.Wait()
	// Those that were under way together at first, and then one in each pause.
	if most := int64(callers + 2 + time.Since(begin)/pause); attempts.Load() > most {
		t.Errorf("%d calls made %d attempts, want at most %d", callers*calls, attempts.Load(), most)
	}
}
