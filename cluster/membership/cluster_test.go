package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// lists are what a member was told.
type lists struct {
	mu  sync.Mutex // guards the fields below
	all [][]Member
	log []string
}

func (l *lists) heard(list []Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, list)
	l.log = append(l.log, fmt.Sprintf("members %d", len(list)))
}

func (l *lists) drains(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, fmt.Sprintf("drain %v", on))
}

func (l *lists) last() []Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[len(l.all)-1]
}

func (l *lists) said() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.log)
}

// shows reports whether the last list is exactly of these members.
func (l *lists) shows(members ...*Membership) bool {
	return slices.Equal(ids(l.last()), sorted(members...))
}

func ids(list []Member) []id.MemberID {
	out := make([]id.MemberID, len(list))
	for i, m := range list {
		out[i] = m.ID
	}
	return out
}

func sorted(members ...*Membership) []id.MemberID {
	out := make([]id.MemberID, len(members))
	for i, m := range members {
		out[i] = m.Member()
	}
	slices.SortFunc(out, func(a, b id.MemberID) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// journal is a log that may be read while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// peer joins a member with an address, and records its lists.
func peer(t *testing.T, pool *pgxpool.Pool, cfg Config) (*Membership, *lists) {
	t.Helper()
	l := &lists{}
	cfg.Address, cfg.OnMembers, cfg.OnDrain = "127.0.0.1:1", l.heard, l.drains
	return join(t, pool, cfg), l
}

// renewed waits until m has renewed its lease n times from now on.
func renewed(t *testing.T, m *Membership, n int) {
	t.Helper()
	for range n {
		before := m.Deadline()
		testkit.Eventually(t, "it renews", func() bool { return m.Deadline().After(before) })
	}
}

// calm waits until m may mark members dead.
func calm(t *testing.T, m *Membership) {
	t.Helper()
	start := time.Now()
	testkit.Eventually(t, "a lease has passed", func() bool { return time.Since(start) > m.cfg.Lease })
}

func TestMembersHearOfJoinsDrainsAndLeaves(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, heardA := peer(t, pool, Config{Lease: long})
	if !heardA.shows(a) || len(a.Members()) != 1 {
		t.Fatal("Join returned before the first list was told")
	}
	begun := time.Now()
	b, heardB := peer(t, pool, Config{Lease: long, Version: "v2"})
	if !heardB.shows(a, b) {
		t.Fatal("who joins does not know who is there")
	}
	testkit.Eventually(t, "a hears that b joined", func() bool { return heardA.shows(a, b) })
	if took := time.Since(begun); took > long/4 { // the next beat of its own comes after a third
		t.Errorf("it took %v of a lease of %v", took, long)
	}
	of := func(l *lists, m *Membership) Member {
		list := l.last()
		return list[slices.Index(ids(list), m.Member())]
	}
	if m := of(heardA, b); m.Address != "127.0.0.1:1" || m.Version != "v2" || m.Draining || time.Until(m.LeaseUntil) < long/2 {
		t.Errorf("%+v", m)
	}
	if err := Drain(t.Context(), pool, b.Member(), true); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "both hear that b drains", func() bool { return of(heardA, b).Draining && of(heardB, b).Draining })
	if !heardA.shows(a, b) || of(heardA, a).Draining {
		t.Error("who drains stays a member, and drains alone")
	}
	if err := Drain(t.Context(), pool, b.Member(), false); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "both hear that b does not drain", func() bool { return !of(heardA, b).Draining && !of(heardB, b).Draining })
	if want := []string{"members 2", "drain true", "members 2", "drain false", "members 2"}; !slices.Equal(heardB.said(), want) {
		t.Errorf("b was told %q, want %q", heardB.said(), want)
	}
	if slices.ContainsFunc(heardA.said(), func(s string) bool { return strings.HasPrefix(s, "drain") }) {
		t.Errorf("a was told %q", heardA.said())
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.Suspended() {
		t.Error("who left counts on its lease")
	}
	testkit.Eventually(t, "a hears that b left", func() bool { return heardA.shows(a) })
	if err := Drain(t.Context(), pool, b.Member(), true); !errors.Is(err, ErrUnknown) {
		t.Errorf("draining who left: %v", err)
	}
}

func TestTwentyThatJoinAtOnceKnowEachOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := db.Pool(t, pg.Options{Role: pg.System, MaxConns: 16})
	const n = 20
	var members [n]*Membership
	var heard [n]lists
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			m, err := Join(t.Context(), pool, Config{Member: member(), Address: "here", Lease: long, OnMembers: heard[i].heard})
			if err != nil {
				t.Error(err)
				return
			}
			members[i] = m
			t.Cleanup(m.halt)
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i := range n {
		testkit.Eventually(t, "everybody knows everybody", func() bool { return heard[i].shows(members[:]...) })
		for _, list := range heard[i].all {
			if !slices.Contains(ids(list), members[i].Member()) {
				t.Error("a list without oneself was told")
			}
		}
	}
}

func TestOfThreeTheHaltedOneIsMarkedWithinALeaseAndASecond(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, heardA := peer(t, pool, Config{Lease: DefaultLease})
	b, heardB := peer(t, pool, Config{Lease: DefaultLease})
	for try := 1; ; try++ { // a busy machine may delay one
		c, _ := peer(t, pool, Config{Lease: DefaultLease})
		testkit.Eventually(t, "all know all", func() bool { return heardA.shows(a, b, c) && heardB.shows(a, b, c) })
		calm(t, c)
		c.halt()
		halted := time.Now()
		testkit.Eventually(t, "the others go on without it", func() bool { return heardA.shows(a, b) && heardB.shows(a, b) })
		took := time.Since(halted)
		var early bool
		if err := pool.QueryRow(t.Context(), `SELECT dead_at < lease_until FROM members WHERE id = $1`, c.Member()).Scan(&early); err != nil || early {
			t.Errorf("marked before its lease ran out: %v %v", early, err)
		}
		if took <= DefaultLease+time.Second {
			break
		}
		if try == 3 {
			t.Errorf("it took %v", took)
			break
		}
	}
	if a.Fenced() || b.Fenced() || stored(t, pool, a.Member()).dead || stored(t, pool, b.Member()).dead {
		t.Error("a living one was marked")
	}
}

func TestWhoRefusesAndMissedABeatIsMarkedBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, heard := peer(t, pool, Config{Lease: DefaultLease})
	var c *Membership
	for try := 1; ; try++ { // a busy machine may delay one
		c, _ = peer(t, pool, Config{Lease: DefaultLease})
		testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, c) })
		calm(t, a)
		c.halt()
		a.Refused(c.Member())
		testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
		var left time.Duration
		if err := pool.QueryRow(t.Context(), `SELECT lease_until - dead_at FROM members WHERE id = $1`, c.Member()).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left >= DefaultLease/2 {
			t.Errorf("marked %v before its lease ended", left)
		}
		if left > 0 {
			break
		}
		if try == 3 {
			t.Errorf("marked %v after its lease ended", -left)
			break
		}
	}
	// A revocation waits for the lease that it may still count on.
	if _, err := a.Announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := stored(t, pool, c.Member()); a.Now().Before(r.lease.Add(-50 * time.Millisecond)) {
		t.Errorf("Announce returned %v before", r.lease.Sub(a.Now()))
	}
}

// Two that die one after the other: while Announce waits for the lease of the first,
// the second leaves the list with a lease that still holds.
func TestAnnounceWaitsForWhoIsMarkedMeanwhile(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, _ := peer(t, pool, Config{Lease: long})
	for lease := time.Second; ; lease *= 2 { // a busy machine may let the first's lease end before the second is marked
		if lease > testkit.Patience {
			t.Fatal("the second was never marked in time")
		}
		first, second := member(), member()
		exec(t, pool, `INSERT INTO members (id, address, lease, lease_until, dead_at) VALUES ($1, 'x', $2, clock_timestamp() + $2::interval, clock_timestamp())`, first, lease)
		exec(t, pool, `INSERT INTO members (id, address, lease, lease_until) VALUES ($1, 'y', $2, clock_timestamp() + $2::interval)`, second, 2*lease)
		var before, n int64
		last := func(n *int64) {
			if err := pool.QueryRow(t.Context(), `SELECT last_value FROM revocations`).Scan(n); err != nil {
				t.Fatal(err)
			}
		}
		last(&before)
		done := make(chan error, 1)
		go func() { _, err := a.Announce(context.Background()); done <- err }()
		testkit.Eventually(t, "it has looked", func() bool { last(&n); return n > before && len(a.asking) == 0 })
		exec(t, pool, `UPDATE members SET dead_at = clock_timestamp() WHERE id = $1`, second)
		var inTime bool
		if err := pool.QueryRow(t.Context(), `SELECT clock_timestamp() < lease_until FROM members WHERE id = $1`, first).Scan(&inTime); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if !inTime {
			continue
		}
		if r := stored(t, pool, second); a.Now().Before(r.lease.Add(-50 * time.Millisecond)) {
			t.Errorf("Announce returned %v before the second's lease ended", r.lease.Sub(a.Now()))
		}
		return
	}
}

func TestWhoRefusesButBeatsIsNeverMarked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	const lease = 2 * DefaultLease // a beat may be a second late on a busy machine
	a, heard := peer(t, pool, Config{Lease: lease})
	b, _ := peer(t, pool, Config{Lease: lease, OnFenced: func() { t.Error("fenced") }})
	testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, b) })
	calm(t, a)
	start := time.Now()
	testkit.Eventually(t, "a lease has passed", func() bool {
		a.Refused(b.Member())
		return time.Since(start) > lease
	})
	if stored(t, pool, b.Member()).dead || !heard.shows(a, b) {
		t.Error("a member that renews was marked")
	}
}

func TestAPausedMemberThatWasMarkedIsFencedWhenItWakes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	var fenced atomic.Int32
	a, heard := peer(t, pool, Config{Lease: time.Second})
	b, heardB := peer(t, pool, Config{Lease: time.Second, OnFenced: func() { fenced.Add(1) }})
	testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, b) })
	b.halt()
	testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
	b.start() // wakes
	b.wg.Wait()
	if fenced.Load() != 1 || !b.Fenced() || !b.Suspended() {
		t.Errorf("fenced %d times, %v, suspended %v", fenced.Load(), b.Fenced(), b.Suspended())
	}
	if !heardB.shows(a, b) {
		t.Error("it was told a list without itself")
	}
	// It leaves; what happened stays known.
	if err := b.Leave(t.Context()); err != nil || !stored(t, pool, b.Member()).dead {
		t.Errorf("the row of a dead member is gone: %v", err)
	}
}

func TestACommitOfAStoppedMemberIsCutOff(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool, theirs := db.System(t), db.Writer(t)
	a, heard := peer(t, pool, Config{Lease: time.Second})
	b, _ := peer(t, pool, Config{Lease: time.Second})
	testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, b) })
	// Two lanes of its writer are stopped between the fence and the commit.
	var commits []interface{ Commit(context.Context) error }
	for range 2 {
		tx, err := theirs.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background()) // the database is not dropped while it is open
		if _, err := tx.Exec(t.Context(), `SELECT 1 FROM members WHERE id = $1 AND dead_at IS NULL FOR KEY SHARE`, b.Member()); err != nil {
			t.Fatal(err)
		}
		commits = append(commits, tx)
	}
	b.halt()
	testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
	for _, tx := range commits {
		if err := tx.Commit(context.Background()); err == nil {
			t.Error("a commit came after the mark")
		}
	}
}

func TestARowThatWasRenewedSinceItWasSeenIsNotMarked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, _ := peer(t, pool, Config{Lease: long})
	b, _ := peer(t, pool, Config{Lease: long})
	s := seen{ID: b.Member(), LeaseUntil: stored(t, pool, b.Member()).lease}
	exec(t, pool, `UPDATE members SET lease_until = lease_until + interval '1 microsecond' WHERE id = $1`, b.Member())
	a.bury(t.Context(), death{s, whyLapsed})
	if stored(t, pool, b.Member()).dead {
		t.Fatal("it was marked")
	}
	s.LeaseUntil = stored(t, pool, b.Member()).lease
	a.bury(t.Context(), death{s, whyLapsed})
	if !stored(t, pool, b.Member()).dead {
		t.Fatal("as seen, it was not marked")
	}
}

func TestWhoIsMarked(t *testing.T) {
	self, who := member(), member()
	clock := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	const lease = 3 * time.Second
	row := func(sinceRenewal time.Duration) seen {
		return seen{ID: who, Lease: lease, LeaseUntil: clock.Add(lease - sinceRenewal), Clock: clock}
	}
	ago := func(d time.Duration) *time.Time { at := clock.Add(-d); return &at }
	dead, own := row(time.Hour), row(time.Hour)
	dead.Dead, own.ID = true, self
	other := row(2 * time.Second)
	other.Lease, other.LeaseUntil = time.Minute, clock.Add(58*time.Second)
	for _, tt := range []struct {
		name    string
		row     seen
		refused *time.Time
		why     string
	}{
		{"a lease that holds", row(2900 * time.Millisecond), nil, ""},
		{"a lease that has run out", row(3001 * time.Millisecond), nil, whyLapsed},
		{"already marked", dead, nil, ""},
		{"oneself", own, nil, ""},
		{"refuses and missed a beat", row(1600 * time.Millisecond), ago(time.Second), whyRefuses},
		{"refuses, the next beat may be under way", row(1400 * time.Millisecond), ago(time.Second), ""},
		{"refused before it renewed", row(1600 * time.Millisecond), ago(1700 * time.Millisecond), ""},
		{"refuses, with a longer lease than ours it has missed nothing", other, ago(time.Second), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			refused := map[id.MemberID]time.Time{}
			if tt.refused != nil {
				refused[tt.row.ID] = *tt.refused
			}
			why := ""
			for _, d := range doomed([]seen{tt.row}, self, refused) {
				why = d.why
			}
			if why != tt.why {
				t.Errorf("%q, want %q", why, tt.why)
			}
		})
	}
}

func TestWhenALookMayBeActedOn(t *testing.T) {
	const lease = 3 * time.Second
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	for _, tt := range []struct {
		name           string
		b              beat
		sent, received time.Duration
		want           bool
	}{
		{"a beat ago, long after the first", beat{sent: at(0)}, time.Second, time.Second, true},
		{"within a lease after the first renewal, or the first after an outage", beat{sent: at(0), quiet: at(2 * time.Second)}, time.Second, time.Second, false},
		{"since the last beat failed", beat{sent: at(0), outage: true}, time.Second, time.Second, false},
		{"the own last renewal is old: Postgres may have stood still", beat{sent: at(0)}, 1600 * time.Millisecond, 1600 * time.Millisecond, false},
		{"the refresh took long: Postgres may have stood still", beat{sent: at(0)}, 0, 1100 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.b.mayMark(at(tt.sent), at(tt.received), lease); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
	t.Run("after an outage a lease is waited", func(t *testing.T) {
		b := beat{outage: true}
		b.renewed(time.Now(), lease, false)
		if b.outage || time.Until(b.quiet) < lease-time.Second {
			t.Errorf("%+v", b)
		}
		quiet := b.quiet
		b.renewed(time.Now(), lease, false)
		if b.quiet != quiet {
			t.Error("a beat as always prolonged it")
		}
		b.renewed(time.Now(), lease, true)
		if b.quiet == quiet {
			t.Error("a beat that was held up did not prolong it")
		}
	})
}

func TestAfterAnOutageNobodyIsMarkedForALease(t *testing.T) {
	t.Parallel()
	server := pgtest.Private(t, pgtest.PrivateOptions{})
	const lease = DefaultLease
	alive := func() { t.Error("fenced") }
	a, heardA := peer(t, server.System(t), Config{Lease: lease, OnFenced: alive})
	b, heardB := peer(t, server.System(t), Config{Lease: lease, OnFenced: alive})
	c, _ := peer(t, server.System(t), Config{Lease: lease})
	testkit.Eventually(t, "all know all", func() bool { return heardA.shows(a, b, c) && heardB.shows(a, b, c) })
	renewed(t, a, 1)
	c.halt() // dies just before
	server.Stop(t)
	testkit.Eventually(t, "all leases have run out", func() bool { return a.Suspended() && b.Suspended() })
	told := len(heardA.said())
	server.Start(t)
	up := time.Now()
	testkit.Eventually(t, "they go on", func() bool { return !a.Suspended() && !b.Suspended() })
	testkit.Eventually(t, "the one that died is marked", func() bool { return heardA.shows(a, b) && heardB.shows(a, b) })
	if took := time.Since(up); took < lease {
		t.Errorf("it was marked %v after the outage", took)
	}
	if n := len(heardA.said()); n != told+1 {
		t.Errorf("told %q", heardA.said())
	}
	if stored(t, server.System(t), a.Member()).dead || stored(t, server.System(t), b.Member()).dead {
		t.Error("a living one was marked")
	}
}

// The clock of Postgres' host is set forward by more than a lease: all leases have expired by
// it, though their holders renew as before. No member is marked dead for a lease, not even one
// that does not renew any more.
func TestAfterAStepOfPostgresClockNobodyIsMarkedForALease(t *testing.T) {
	t.Parallel()
	const lease, step = DefaultLease, time.Hour
	pool := pgtest.New(t).System(t)
	a, heard := peer(t, pool, Config{Lease: lease})
	c, _ := peer(t, pool, Config{Lease: lease})
	testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, c) })
	calm(t, a)
	c.halt()
	// Instead of setting the machine's clock, set back what was measured and written before.
	stepped := time.Now()
	a.clock.offset.Add(-int64(step))
	exec(t, pool, `UPDATE members SET lease_until = lease_until - $2::interval WHERE id = $1`, c.Member(), step)
	testkit.Eventually(t, "the step was noticed", func() bool { return time.Until(a.Now()).Abs() < time.Minute })
	testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
	if took := time.Since(stepped); took < lease {
		t.Errorf("it was marked %v after the step", took)
	}
}

// The clock of Postgres' host is set back by an hour: the row of a member that has died says that its lease holds for an
// hour. It is marked a lease after it was last seen to renew.
func TestAfterPostgresClockWasSetBackTheDeadAreMarked(t *testing.T) {
	t.Parallel()
	const lease = 500 * time.Millisecond
	pool := pgtest.New(t).System(t)
	a, heard := peer(t, pool, Config{Lease: lease})
	c, _ := peer(t, pool, Config{Lease: lease})
	testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, c) })
	calm(t, a)
	c.halt()
	exec(t, pool, `UPDATE members SET lease_until = lease_until + interval '1 hour' WHERE id = $1`, c.Member())
	testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
	if !stored(t, pool, c.Member()).dead || a.Fenced() {
		t.Error("the wrong one was marked")
	}
}

// A revocation waits for a lease that may still hold, and not for the step: neither for a member that died before the clock
// was set back and is marked after it, nor for one whose mark is older than the step.
func TestAnnounceDoesNotWaitForAStepOfPostgresClock(t *testing.T) {
	t.Parallel()
	const lease = 500 * time.Millisecond
	for name, before := range map[string]bool{"marked after the step": false, "marked before the step": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t).System(t)
			a, heard := peer(t, pool, Config{Lease: lease})
			c, _ := peer(t, pool, Config{Lease: lease})
			testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, c) })
			calm(t, a)
			c.halt()
			if before {
				testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
			}
			exec(t, pool, `UPDATE members SET lease_until = lease_until + interval '1 hour', dead_at = dead_at + interval '1 hour' WHERE id = $1`, c.Member())
			testkit.Eventually(t, "it is marked", func() bool { return heard.shows(a) })
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			if _, err := a.Announce(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that starts after that waits for the length of the lease, not for the step of the clock, and says for whose.
func TestAJoinDoesNotWaitForAStepOfPostgresClock(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	const lease = 300 * time.Millisecond
	former := join(t, pool, Config{Lease: lease})
	former.halt()
	exec(t, pool, `UPDATE members SET lease_until = lease_until + interval '1 hour' WHERE id = $1`, former.Member())
	var log journal
	begun := time.Now()
	join(t, pool, Config{Lease: lease, Log: zerolog.New(&log)})
	if took := time.Since(begun); took < lease {
		t.Errorf("it joined after %v: the former process may have relied on its lease", took)
	}
	if said := log.String(); strings.Count(said, "waiting for the end of the lease") != 1 || !strings.Contains(said, former.Member().String()) {
		t.Errorf("it said: %s", said)
	}
}

// Two machines with one address, such as that of the loopback interface: the later one ends, and the earlier one stays.
func TestOfTwoMembersWithOneAddressTheLaterEnds(t *testing.T) {
	t.Parallel()
	const lease = 500 * time.Millisecond
	pool := pgtest.New(t).System(t)
	var first, second atomic.Int32
	a := join(t, pool, Config{Lease: lease, Address: "127.0.0.1:7070", OnTwin: func() { first.Add(1) }})
	b := join(t, pool, Config{Lease: lease, Address: "127.0.0.1:7070", OnTwin: func() { second.Add(1) }})
	testkit.Eventually(t, "the later one is told", func() bool { return second.Load() == 1 })
	renewed(t, a, 3)
	renewed(t, b, 3)
	if first.Load() != 0 || second.Load() != 1 {
		t.Errorf("told %d and %d times", first.Load(), second.Load())
	}
}

// A process that starts at the address of a killed one goes on: the row of that one is there until it is marked.
func TestAFormerProcessOfTheAddressIsNoTwin(t *testing.T) {
	t.Parallel()
	const lease = 500 * time.Millisecond
	pool := pgtest.New(t).System(t)
	former, _ := peer(t, pool, Config{Lease: lease})
	renewed(t, former, 2)
	former.halt()
	var told atomic.Bool
	b, heard := peer(t, pool, Config{Lease: lease, OnTwin: func() { told.Store(true) }}) // peers have one address
	testkit.Eventually(t, "the former one is marked", func() bool { return heard.shows(b) })
	if told.Load() {
		t.Error("it was taken for a living one")
	}
}

func TestWithAndWithoutAnAddressNobodyMeets(t *testing.T) {
	for _, tt := range []struct{ name, first, second string }{
		{"a cluster's member beside a process that is alone", "", "127.0.0.1:1"},
		{"a process that is alone beside a cluster's member", "127.0.0.1:1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t).System(t)
			first := join(t, pool, Config{Lease: DefaultLease, Address: tt.first})
			_, err := Join(t.Context(), pool, Config{Member: member(), Lease: DefaultLease, Address: tt.second})
			if !errors.Is(err, ErrOccupied) || !strings.Contains(err.Error(), first.Member().String()) {
				t.Fatalf("err = %v", err)
			}
			if first.Fenced() || stored(t, pool, first.Member()).dead {
				t.Fatal("the living one was declared dead")
			}
		})
	}
	t.Run("a cluster's member after a process that crashed alone", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: 500 * time.Millisecond})
		first.halt()
		second := join(t, pool, Config{Lease: long, Address: "127.0.0.1:1"})
		if !stored(t, pool, first.Member()).dead || len(second.Members()) != 1 {
			t.Fatal("it was not marked")
		}
	})
	t.Run("a cluster's member does not wait for a crashed one of the cluster", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t).System(t)
		first := join(t, pool, Config{Lease: time.Hour, Address: "127.0.0.1:1"})
		first.halt()
		second := join(t, pool, Config{Lease: long, Address: "127.0.0.1:2"})
		if stored(t, pool, first.Member()).dead || len(second.Members()) != 2 {
			t.Fatal("a lease that holds was not respected")
		}
	})
}

func TestTheCachesAreEmptyBeforeTheLeaseIsExtended(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	var before atomic.Pointer[time.Time]
	var m atomic.Pointer[Membership]
	entered, leave := make(chan int64), make(chan error)
	first, _ := peer(t, pool, Config{Lease: 10 * time.Second, OnRevoked: func(ctx context.Context, upTo int64) error {
		d := m.Load().Deadline()
		before.Store(&d)
		for entered := entered; ; {
			select {
			case entered <- upTo:
				entered = nil
			case err := <-leave: // also where a busy machine has let ctx end, and this is the next beat
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}})
	m.Store(first)
	forgot := func() (n int64) {
		if err := pool.QueryRow(t.Context(), `SELECT forgot FROM members WHERE id = $1`, first.Member()).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	n, err := first.Announce(t.Context())
	if err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	if upTo := <-entered; upTo != n {
		t.Errorf("revoked up to %d", upTo)
	}
	// Its beat has been written; what it counts on has not moved.
	if !first.Deadline().Equal(*before.Load()) || forgot() != 0 {
		t.Error("extended before the caches were empty")
	}
	if missing, err := first.Forgotten(t.Context(), n, []id.MemberID{first.Member()}); err != nil || len(missing) != 1 {
		t.Errorf("%v, %v", missing, err)
	}
	leave <- nil
	testkit.Eventually(t, "the row says so", func() bool { return forgot() == n && first.Deadline().After(*before.Load()) })
	if missing, err := first.Forgotten(t.Context(), n, []id.MemberID{first.Member()}); err != nil || len(missing) != 0 {
		t.Errorf("%v, %v", missing, err)
	}
	// A new member has nothing to drop.
	second, _ := peer(t, pool, Config{Lease: DefaultLease, OnRevoked: func(context.Context, int64) error { t.Error("asked to forget"); return nil }})
	renewed(t, second, 2)
	if missing, err := first.Forgotten(t.Context(), n, []id.MemberID{second.Member()}); err != nil || len(missing) != 0 {
		t.Errorf("%v, %v", missing, err)
	}
}

func TestTheRowSaysWhatWasForgottenByTheSameBeat(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	calls := 0
	m, _ := peer(t, pool, Config{Lease: long, OnRevoked: func(context.Context, int64) error { calls++; return nil }})
	m.halt()
	exec(t, pool, `SELECT nextval('revocations') FROM generate_series(1, 3)`)
	if !m.renew(context.Background()) || calls != 1 {
		t.Fatalf("asked to forget %d times", calls)
	}
	all, err := List(t.Context(), pool)
	if err != nil || len(all) != 1 || all[0].Forgot != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
}

// The result of a refresh is in the list when it returns, not a quarter of a second later.
func TestARefreshSeesNewMembers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, _ := peer(t, pool, Config{Lease: long})
	for range 5 {
		b, _ := peer(t, pool, Config{Lease: long})
		if err := a.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(ids(a.Members()), b.Member()) {
			t.Error("who has just joined is not in the list")
		}
	}
}

func TestAMemberThatCannotForgetIsSuspended(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	var broken atomic.Bool
	broken.Store(true)
	suspended := make(chan struct{}, 8)
	m, _ := peer(t, pool, Config{Lease: time.Second,
		OnSuspended: func() { suspended <- struct{}{} },
		OnRevoked: func(ctx context.Context, _ int64) error {
			if broken.Load() {
				return errors.New("not now")
			}
			return ctx.Err()
		}})
	if _, err := m.Announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-suspended // perhaps by a first beat that came late
	testkit.Eventually(t, "it is suspended", m.Suspended)
	if m.Fenced() {
		t.Error("it is fenced")
	}
	broken.Store(false)
	testkit.Eventually(t, "it goes on", func() bool { return !m.Suspended() })
}

func TestForgottenCountsWhoMayStillRelyOnIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	m, _ := peer(t, pool, Config{Lease: long})
	n, err := m.Announce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, left, dead string
		forgot           int64
		missing          bool
	}{
		{"it has not forgotten and its lease holds", "1 hour", "NULL", n - 1, true},
		{"it has forgotten", "1 hour", "NULL", n, false},
		{"it has forgotten more", "1 hour", "NULL", n + 1, false},
		{"its lease has run out", "-1 second", "NULL", n - 1, false},
		{"it was marked dead, its lease has run out", "-1 second", "now()", n - 1, false},
		{"it was marked dead, by its own lease it may live", "1 hour", "now()", n - 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			who := member()
			exec(t, pool, `INSERT INTO members (id, address, lease_until, forgot, dead_at) VALUES ($1, 'x', clock_timestamp() + $2::text::interval, $3, `+tt.dead+`)`, who, tt.left, tt.forgot)
			missing, err := m.Forgotten(t.Context(), n, []id.MemberID{who, member()})
			if err != nil || (len(missing) == 1) != tt.missing || tt.missing && missing[0] != who {
				t.Errorf("%v, %v", missing, err)
			}
		})
	}
	if missing, err := m.Forgotten(t.Context(), n, nil); err != nil || missing != nil {
		t.Errorf("of nobody: %v, %v", missing, err)
	}
}

// A beat that was on its way when the revocation was announced either sees it or
// is seen.
func TestABeatUnderWayDoesNotSlipPastARevocation(t *testing.T) {
	t.Run("the row is held up: the counter is read when it is free", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		pool, admin := db.System(t), db.Admin(t)
		var upTo atomic.Int64
		m, _ := peer(t, pool, Config{Lease: long, OnRevoked: func(_ context.Context, n int64) error { upTo.Store(n); return nil }})
		m.halt()
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), `SELECT FROM members WHERE id = $1 FOR UPDATE`, m.Member()); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := m.beatOnce(context.Background())
			done <- err
		}()
		testkit.Eventually(t, "the beat waits", func() bool { return waiting(t, admin, "%SET lease_until%") })
		exec(t, pool, `SELECT nextval('revocations')`)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || upTo.Load() != 1 {
			t.Fatalf("%v, revoked up to %d", err, upTo.Load())
		}
	})
	t.Run("a lease that has run out is being renewed: a revocation waits for it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		pool, admin := db.System(t), db.Admin(t)
		m, _ := peer(t, pool, Config{Lease: long})
		who := member()
		exec(t, pool, `INSERT INTO members (id, address, lease_until) VALUES ($1, 'x', clock_timestamp() - interval '1 second')`, who)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), queries.Get("beat"), who, long, int64(0)); err != nil {
			t.Fatal(err)
		}
		n, err := m.Announce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		type answer struct {
			missing []id.MemberID
			err     error
		}
		done := make(chan answer, 1)
		go func() {
			missing, err := m.Forgotten(context.Background(), n, []id.MemberID{who})
			done <- answer{missing, err}
		}()
		testkit.Eventually(t, "the revocation waits", func() bool { return waiting(t, admin, "%FOR SHARE%") })
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a := <-done; a.err != nil || len(a.missing) != 1 {
			t.Fatalf("%+v", a)
		}
	})
}

// waiting reports whether a statement like this waits for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool, like string) (yes bool) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1)`, like).Scan(&yes)
	if err != nil {
		t.Fatal(err)
	}
	return yes
}

func TestAnnounceKnowsWhoHasJustJoined(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, _ := peer(t, pool, Config{Lease: long})
	for i := range 5 {
		b, _ := peer(t, pool, Config{Lease: long})
		n, err := a.Announce(t.Context())
		if err != nil || n != int64(i+1) {
			t.Fatalf("%d, %v", n, err)
		}
		if !slices.Contains(ids(a.Members()), b.Member()) {
			t.Fatal("it does not know who joined before")
		}
	}
}

func TestListShowsTheDeadToo(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, _ := peer(t, pool, Config{Lease: long, Version: "v1"})
	dead := member()
	exec(t, pool, `INSERT INTO members (id, address, started_at, lease_until, dead_at) VALUES ($1, 'x', now() + interval '1 minute', now() - interval '1 minute', now())`, dead)
	if err := Drain(t.Context(), pool, a.Member(), true); err != nil {
		t.Fatal(err)
	}
	all, err := List(t.Context(), pool)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if l := all[0]; l.ID != a.Member() || l.Address != "127.0.0.1:1" || l.Version != "v1" || !l.Draining || !l.DeadAt.IsZero() ||
		l.LeaseLeft <= 0 || l.LeaseLeft > long || time.Since(l.StartedAt) > time.Minute {
		t.Errorf("%+v", l)
	}
	if l := all[1]; l.ID != dead || l.DeadAt.IsZero() || l.LeaseLeft > -time.Minute {
		t.Errorf("%+v", l)
	}
	// Members dead for long are dropped at the next join.
	exec(t, pool, `UPDATE members SET dead_at = now() - interval '25 hours' WHERE id = $1`, dead)
	peer(t, pool, Config{Lease: long})
	if all, err = List(t.Context(), pool); err != nil || len(all) != 2 || slices.ContainsFunc(all, func(l Listed) bool { return l.ID == dead }) {
		t.Errorf("%v, %v", all, err)
	}
}

func TestRefusalsOfStrangersAreNotKept(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).System(t)
	a, heard := peer(t, pool, Config{Lease: long})
	b, _ := peer(t, pool, Config{Lease: long})
	testkit.Eventually(t, "they know each other", func() bool { return heard.shows(a, b) })
	a.Refused(member())
	a.Refused(a.Member())
	a.Refused(b.Member())
	kept := func() int { a.mu.Lock(); defer a.mu.Unlock(); return len(a.refused) }
	if kept() != 1 {
		t.Errorf("%d refusals kept", kept())
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the refusals of members that left are dropped", func() bool { return kept() == 0 })
}

func TestMetricsAreThere(t *testing.T) {
	pool := pgtest.New(t).System(t)
	peer(t, pool, Config{Lease: long})
	deathsMarked.WithLabelValues(whyLapsed).Add(0)
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if m := f.GetMetric()[0]; m.GetGauge() != nil {
			got[f.GetName()] = m.GetGauge().GetValue()
		} else if m.GetCounter() != nil {
			got[f.GetName()] = m.GetCounter().GetValue()
		}
	}
	for _, name := range []string{"members_count", "lease_left_seconds", "deaths_marked_total", "suspensions_total", "beats_failed_total"} {
		if _, ok := got["svc_membership_"+name]; !ok {
			t.Errorf("no %s", name)
		}
	}
	if left := got["svc_membership_lease_left_seconds"]; left <= 0 || left > long.Seconds() {
		t.Errorf("%v seconds left", left)
	}
	if n := got["svc_membership_members_count"]; n != 1 {
		t.Errorf("%v members", n)
	}
}

// The cost of a refresh with 50 members, four times a second each.
func BenchmarkRefreshOfFifty(b *testing.B) {
	pool := pgtest.New(b).System(b)
	m, err := Join(context.Background(), pool, Config{Member: member(), Address: "here", Lease: long})
	if err != nil {
		b.Fatal(err)
	}
	defer m.halt()
	for range 49 {
		if _, err := pool.Exec(context.Background(), `INSERT INTO members (id, address, lease_until) VALUES ($1, '10.0.0.1:7946', now() + interval '1 hour')`, member()); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := m.refresh(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// A process that cannot open the others' sealed values, or keeps files elsewhere, does not
// join.
func TestAStrangerDoesNotJoin(t *testing.T) {
	db := pgtest.New(t)
	pool := db.System(t)
	join := func(address, secret, uploads string, keys ...string) (*Membership, error) {
		m, err := Join(t.Context(), pool, Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Address: address, Lease: 30 * time.Second,
			Secret: secret, Uploads: uploads, Keys: keys})
		if err == nil {
			t.Cleanup(func() {
				if err := m.Leave(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		return m, err
	}
	if _, err := join("a:1", "s", "files", "new", "old"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		uploads string
		keys    []string
		says    string // empty: it joins
	}{
		"the same":                                  {"files", []string{"new", "old"}, ""},
		"still under the former key, knows both":    {"files", []string{"old", "new"}, ""},
		"another directory":                         {"others", []string{"new", "old"}, "uploads"},
		"another key":                               {"files", []string{"other"}, "master key"},
		"the former key, and does not know the new": {"files", []string{"old"}, "master key"},
		"a key that the others do not know":         {"files", []string{"newer", "new"}, "master key"},
		"another secret":                            {"files", []string{"new", "old"}, "secret"},
	} {
		secret := "s"
		if c.says == "secret" {
			secret = "t"
		}
		_, err := join(name+":1", secret, c.uploads, c.keys...)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (!errors.Is(err, ErrStranger) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "a:1")):
			t.Errorf("%s: %v", name, err)
		}
	}
}
