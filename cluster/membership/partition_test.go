package membership

import (
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/testkit"
)

// link is a member's way to Postgres, which can be held up: nothing is lost, and
// nothing arrives, as on a network that drops packets for a while.
type link struct {
	url  string
	mu   sync.Mutex // guards the fields below
	open chan struct{}
	live []net.Conn
	wg   sync.WaitGroup
}

func newLink(t *testing.T, dsn string) *link {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network, addr := pgNetwork(cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: ln.Addr().String(), Path: "/" + cfg.Database, RawQuery: "sslmode=disable"}
	l := &link{url: u.String(), open: make(chan struct{})}
	close(l.open)
	l.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.carry(in, network, addr) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		l.heal()
		l.mu.Lock()
		for _, c := range l.live {
			c.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

func pgNetwork(cfg *pgx.ConnConfig) (network, addr string) {
	if filepath.IsAbs(cfg.Host) {
		return "unix", filepath.Join(cfg.Host, ".s.PGSQL."+portOf(cfg))
	}
	return "tcp", net.JoinHostPort(cfg.Host, portOf(cfg))
}

func portOf(cfg *pgx.ConnConfig) string { return strconv.Itoa(int(cfg.Port)) }

// carry carries one connection.
func (l *link) carry(in net.Conn, network, addr string) {
	l.wait()
	out, err := net.Dial(network, addr)
	if err != nil {
		in.Close()
		return
	}
	l.mu.Lock()
	l.live = append(l.live, in, out)
	l.mu.Unlock()
	pump := func(to, from net.Conn) {
		defer to.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			l.wait()
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	l.wg.Go(func() { pump(out, in) })
	pump(in, out)
}

// wait waits while the link is cut.
func (l *link) wait() {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	<-open
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
	default:
		close(l.open)
	}
}

// through opens the lease's pool, as large as the service's.
func (l *link) through(t *testing.T) *pg.Pool {
	return (&pgtest.DB{URL: l.url}).Pool(t, pg.Options{Role: pg.System, MaxConns: 4})
}

func TestWhenPostgresHangsForAllNobodyIsMarked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const lease = 2 * time.Second
	l := newLink(t, db.URL)
	alive := func() { t.Error("fenced") }
	a, heardA := peer(t, l.through(t), Config{Lease: lease, OnFenced: alive})
	b, heardB := peer(t, l.through(t), Config{Lease: lease, OnFenced: alive})
	testkit.Eventually(t, "they know each other", func() bool { return heardA.shows(a, b) && heardB.shows(a, b) })
	calm(t, a)
	l.cut()
	cut := time.Now()
	testkit.Eventually(t, "it hangs for five leases", func() bool { return time.Since(cut) > 5*lease && a.Suspended() && b.Suspended() })
	l.heal()
	healed := time.Now()
	testkit.Eventually(t, "they go on", func() bool { return !a.Suspended() && !b.Suspended() })
	t.Logf("on again after %v", time.Since(healed))
	calm(t, a)
	calm(t, a)
	if a.Suspended() || b.Suspended() || !heardA.shows(a, b) || !heardB.shows(a, b) || len(heardA.said()) > 2 {
		t.Errorf("told %q and %q", heardA.said(), heardB.said())
	}
}

func TestAMemberCutOffFromPostgresIsSuspendedMarkedAndFenced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const lease = DefaultLease
	l := newLink(t, db.URL)
	var suspended, fenced atomic.Int32
	a, heardA := peer(t, db.System(t), Config{Lease: lease})
	b, heardB := peer(t, l.through(t), Config{Lease: lease, OnFenced: func() { fenced.Add(1) }, OnSuspended: func() { suspended.Add(1) }})
	testkit.Eventually(t, "they know each other", func() bool { return heardA.shows(a, b) && heardB.shows(a, b) })
	calm(t, a)
	l.cut()
	testkit.Eventually(t, "it is marked", func() bool { return heardA.shows(a) })
	if !b.Suspended() || b.Fenced() || suspended.Load() != 1 {
		t.Errorf("marked while it counts on its lease (%v left), suspended %d times", time.Until(b.Deadline()), suspended.Load())
	}
	l.heal()
	b.wg.Wait()
	if fenced.Load() != 1 || !b.Fenced() || !heardB.shows(a, b) {
		t.Errorf("fenced %d times, told %q", fenced.Load(), heardB.said())
	}
}
