package revocation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster/membership"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

// roster stands for the members' table and the network between the nodes.
type roster struct {
	mu     sync.Mutex // guards the fields below
	number int64
	rows   map[id.MemberID]*rosterRow
	down   bool // the database
	call   func(ctx context.Context, to id.MemberID, what msg.Revoked) error
	polls  int
}

type rosterRow struct {
	until  time.Time // of the lease, by the roster's clock
	forgot int64
}

var errRosterDown = errors.New("no database")

func newRoster() *roster { return &roster{rows: map[id.MemberID]*rosterRow{}} }

// with works on the table.
func (d *roster) with(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *roster) add() id.MemberID {
	m := id.MemberID{UUID: id.NewAnywhere()}
	d.with(func() { d.rows[m] = &rosterRow{until: time.Now().Add(time.Hour)} })
	return m
}

func (d *roster) Announce(context.Context) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return 0, errRosterDown
	}
	d.number++
	return d.number, nil
}

func (d *roster) Members() (all []membership.Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for m := range d.rows {
		all = append(all, membership.Member{ID: m})
	}
	return all
}

func (d *roster) Forgotten(_ context.Context, n int64, of []id.MemberID) (missing []id.MemberID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.polls++
	if d.down {
		return nil, errRosterDown
	}
	for _, m := range of {
		if row := d.rows[m]; row != nil && row.forgot < n && time.Now().Before(row.until) {
			missing = append(missing, m)
		}
	}
	return missing, nil
}

func (d *roster) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	if service != Service {
		return nil, fmt.Errorf("no service %q", service)
	}
	if err := d.call(ctx, to, m.(msg.Revoked)); err != nil {
		return nil, err
	}
	return msg.Done{}, nil
}

// noted is a memory that notes what it is told.
type noted struct {
	mu       sync.Mutex // guards the fields below
	forgot   []msg.Revoked
	all      int
	rechecks int
	fail     error // of Forget
	failed   error // of Recheck
}

func (n *noted) Forget(_ context.Context, r msg.Revoked) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail == nil {
		n.forgot = append(n.forgot, r)
	}
	return n.fail
}

func (n *noted) ForgetAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all++
}

func (n *noted) Recheck(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rechecks++
	return n.failed
}

func (n *noted) counts() [3]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return [3]int{len(n.forgot), n.all, n.rechecks}
}

func isUnavailable(err error) bool {
	return errors.Is(err, problem.New(problem.CodeUnavailable, ""))
}

// aRevoker is the one of the node that makes the change, with a table that knows
// it and n others.
func aRevoker(t *testing.T, lease time.Duration, n int) (r *Revoker, d *roster, own *noted, others []id.MemberID) {
	t.Helper()
	d = newRoster()
	r = New(d.add(), lease, zerolog.New(zerolog.NewTestWriter(t)))
	for range n {
		others = append(others, d.add())
	}
	own = &noted{}
	r.Bind(own)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	r.Join(d, d)
	return r, d, own, others
}

// A node that would forget nothing does not start: what its actors remember would outlive the
// revocations that it confirms.
func TestANodeThatForgetsNothingDoesNotStart(t *testing.T) {
	t.Parallel()
	r := New(id.MemberID{UUID: id.NewAnywhere()}, time.Second, zerolog.New(zerolog.NewTestWriter(t)))
	if err := r.Start(t.Context()); err == nil {
		t.Fatal("it starts")
	}
	r.Bind(&noted{})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Stop()
}

func aKey() msg.Revoked {
	return msg.Revoked{What: msg.RevokedKey, Tenant: id.TenantID{UUID: id.NewAnywhere()}, Key: id.KeyID{UUID: id.NewAnywhere()}}
}

// A revocation is over when each node has answered, or acted by its row, or lost
// its lease: one row, one way to get there.
func TestARevocationIsOver(t *testing.T) {
	t.Parallel()
	silent := func(context.Context, id.MemberID, msg.Revoked) error { return errors.New("no way there") }
	for name, c := range map[string]struct {
		nodes int
		call  func(r *Revoker, d *roster) func(context.Context, id.MemberID, msg.Revoked) error
		then  func(d *roster, m id.MemberID) // behind the first call of a node, with the table in hand
		polls bool
	}{
		"alone": {0, nil, nil, false},
		"both answer": {2, func(*Revoker, *roster) func(context.Context, id.MemberID, msg.Revoked) error {
			return func(context.Context, id.MemberID, msg.Revoked) error { return nil }
		}, nil, false},
		"the beat of a node that cannot be reached acts": {2, nil, func(d *roster, m id.MemberID) { d.rows[m].forgot = d.number }, true},
		"the lease of a node that does nothing ends":     {2, nil, func(d *roster, m id.MemberID) { d.rows[m].until = time.Now().Add(80 * time.Millisecond) }, true},
		"a node leaves":                   {2, nil, func(d *roster, m id.MemberID) { delete(d.rows, m) }, true},
		"a node answers the third try":    {2, nil, nil, false},
		"a node does not know the number": {1, nil, func(d *roster, m id.MemberID) { d.rows[m].forgot = d.number }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, d, own, others := aRevoker(t, 30*time.Second, c.nodes)
			tries := map[id.MemberID]int{}
			answered := c.call
			d.call = func(ctx context.Context, to id.MemberID, what msg.Revoked) error {
				if to == r.self {
					t.Error("it called itself")
				}
				if what.Number == 0 || what.What != msg.RevokedKey {
					t.Errorf("told %+v", what)
				}
				if answered != nil {
					return answered(r, d)(ctx, to, what)
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if tries[to]++; tries[to] == 1 && c.then != nil {
					c.then(d, to)
				}
				if c.then == nil && tries[to] == 3 {
					return nil
				}
				return silent(ctx, to, what)
			}
			if err := r.Revoke(t.Context(), aKey()); err != nil {
				t.Fatal(err)
			}
			if got := own.counts(); got != [3]int{1, 0, 0} {
				t.Errorf("here: %v", got)
			}
			d.with(func() {
				if polled := d.polls > 0; c.polls && !polled {
					t.Error("the table was not asked")
				}
				if answered == nil && len(tries) != len(others) {
					t.Errorf("%d of %d were called", len(tries), len(others))
				}
			})
		})
	}
}

// It waits as long as a node may still rely on what it remembers.
func TestARevocationWaits(t *testing.T) {
	t.Parallel()
	r, d, _, others := aRevoker(t, 30*time.Second, 1)
	called := make(chan struct{}, 1)
	d.call = func(ctx context.Context, _ id.MemberID, _ msg.Revoked) error {
		select {
		case called <- struct{}{}:
		default:
		}
		<-ctx.Done() // it hangs
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() { done <- r.Revoke(t.Context(), aKey()) }()
	<-called
	for range 3 { // looks of the table
		before := 0
		d.with(func() { before = d.polls })
		testkit.Eventually(t, "the table is asked again", func() (more bool) {
			d.with(func() { more = d.polls > before })
			return more
		})
	}
	select {
	case err := <-done:
		t.Fatalf("answered while a node remembers: %v", err)
	default:
	}
	d.with(func() { d.down = true }) // for a while nobody can tell: that is no yes
	before := 0
	d.with(func() { before = d.polls })
	testkit.Eventually(t, "the table is asked", func() (more bool) {
		d.with(func() { more = d.polls > before })
		return more
	})
	select {
	case err := <-done:
		t.Fatalf("answered without the table: %v", err)
	default:
	}
	d.with(func() { d.down = false; d.rows[others[0]].forgot = d.number })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Where nobody can say who knows, the change stands, the answer says that a repeat
// is harmless, and every node is made to forget everything later.
func TestARevocationThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	t.Run("it cannot be announced", func(t *testing.T) {
		t.Parallel()
		r, d, own, _ := aRevoker(t, 30*time.Second, 1)
		d.call = func(context.Context, id.MemberID, msg.Revoked) error {
			t.Error("told without a number")
			return nil
		}
		d.with(func() { d.down = true })
		err := r.Revoke(t.Context(), aKey())
		if !isUnavailable(err) || !errors.Is(err, errRosterDown) || !strings.Contains(err.Error(), "UNAVAILABLE") && !strings.Contains(err.Error(), "repeat") {
			t.Fatal(err)
		}
		var p *problem.Error
		if !errors.As(err, &p) || !strings.Contains(p.Detail, "repeat changes nothing more") || p.RetryAfter <= 0 {
			t.Fatalf("%+v", p)
		}
		if own.counts()[0] != 1 {
			t.Error("not forgotten here")
		}
		d.with(func() { d.down = false })
		testkit.Eventually(t, "the announcement that is owed", func() (made bool) {
			d.with(func() { made = d.number == 1 })
			return made
		})
	})
	t.Run("a node neither answers nor loses its lease", func(t *testing.T) {
		t.Parallel()
		r, d, _, _ := aRevoker(t, 10*time.Millisecond, 2)
		d.call = func(ctx context.Context, _ id.MemberID, _ msg.Revoked) error { return errors.New("no") }
		began := time.Now()
		if err := r.Revoke(t.Context(), aKey()); !isUnavailable(err) || time.Since(began) < slackTime {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	})
	t.Run("who asked leaves", func(t *testing.T) {
		t.Parallel()
		r, d, _, _ := aRevoker(t, 30*time.Second, 1)
		ctx, leave := context.WithCancel(t.Context())
		d.call = func(context.Context, id.MemberID, msg.Revoked) error { leave(); return errors.New("no") }
		if err := r.Revoke(ctx, aKey()); err == nil {
			t.Fatal("confirmed by nobody")
		}
	})
	t.Run("nobody here knows what it is", func(t *testing.T) {
		t.Parallel()
		r, d, own, _ := aRevoker(t, 30*time.Second, 1)
		d.call = func(context.Context, id.MemberID, msg.Revoked) error { t.Error("told"); return nil }
		own.fail = errors.New("what is this")
		if err := r.Revoke(t.Context(), aKey()); !errors.Is(err, own.fail) {
			t.Fatal(err)
		}
	})
	t.Run("suspected", func(t *testing.T) {
		t.Parallel()
		r, d, own, _ := aRevoker(t, 30*time.Second, 1)
		d.with(func() { d.down = true })
		for range 10 {
			r.Suspect(t.Context(), aKey())
		}
		if own.counts()[0] != 10 {
			t.Error("not forgotten here")
		}
		d.with(func() { d.down = false })
		testkit.Eventually(t, "the announcement", func() (made bool) {
			d.with(func() { made = d.number > 0 })
			return made
		})
	})
}

// A node with nobody beside it asks nobody.
func TestARevocationOfTheOnlyNode(t *testing.T) {
	t.Parallel()
	r := New(id.MemberID{UUID: id.NewAnywhere()}, time.Second, zerolog.Nop())
	own := &noted{}
	if err := r.Revoke(t.Context(), aKey()); err != nil {
		t.Fatalf("before anything is remembered: %v", err)
	}
	r.Bind(own)
	r.Suspect(t.Context(), aKey())
	if err := r.Revoke(t.Context(), aKey()); err != nil || own.counts() != [3]int{2, 0, 0} || len(r.owed) != 0 {
		t.Fatal(err, own.counts())
	}
}

// What a node was told of costs its beat nothing; what it was not told of costs it
// everything that it remembers.
func TestWhatTheBeatForgets(t *testing.T) {
	t.Parallel()
	own := &noted{}
	r := New(id.MemberID{UUID: id.NewAnywhere()}, time.Second, zerolog.Nop())
	if err := r.OnRevoked(t.Context(), 6); err != nil {
		t.Fatalf("before anything is remembered: %v", err)
	}
	r.Bind(own)
	told := func(n int64) {
		t.Helper()
		what := aKey()
		what.Number = n
		if v, err := r.Serve(t.Context(), id.MemberID{}, what); err != nil || v != any(msg.Done{}) {
			t.Fatal(v, err)
		}
	}
	for _, step := range []struct {
		name  string
		told  []int64
		upTo  int64
		wants int // how often everything was forgotten by then
	}{
		{"told of the next", []int64{7}, 7, 0},
		{"told of several, in any order and twice", []int64{10, 8, 9, 8}, 10, 0},
		{"told of more than the beat saw", []int64{11, 12, 13}, 11, 0},
		{"which counts later", nil, 13, 0},
		{"nothing new", nil, 13, 0},
		{"one is missing", []int64{14, 16}, 16, 1},
		{"the last is missing", []int64{17}, 18, 2},
		{"all are missing", nil, 1_000_000_000_000, 3},
		{"told of old ones", []int64{3, 20}, 1_000_000_000_001, 4},
		{"the numbers begin anew", nil, 5, 5},
		{"and go on", []int64{6}, 6, 5},
	} {
		for _, n := range step.told {
			told(n)
		}
		if err := r.OnRevoked(t.Context(), step.upTo); err != nil {
			t.Fatal(err)
		}
		if got := own.counts(); got[1] != step.wants || got[2] != step.wants {
			t.Errorf("%s: everything forgotten %d times, streams looked at %d times; want %d", step.name, got[1], got[2], step.wants)
		}
	}
	own.failed = errors.New("down")
	for range 2 { // as long as it fails nothing is done with
		if err := r.OnRevoked(t.Context(), 20); !errors.Is(err, own.failed) {
			t.Fatal(err)
		}
	}
	own.failed = nil
	if err := r.OnRevoked(t.Context(), 20); err != nil || own.counts() != [3]int{own.counts()[0], 8, 8} {
		t.Fatal(err, own.counts())
	}
	own.fail = errors.New("a word of a newer node")
	what := aKey()
	what.Number = 21
	if _, err := r.Serve(t.Context(), id.MemberID{}, what); !errors.Is(err, own.fail) {
		t.Fatal(err)
	}
	if err := r.OnRevoked(t.Context(), 21); err != nil || own.counts()[1] != 9 {
		t.Fatal("what was not understood counts as heard")
	}
	if _, err := r.Serve(t.Context(), id.MemberID{}, msg.Done{}); err == nil {
		t.Error("it took another message")
	}
	own.fail = nil
	for n := range int64(2 * maxHeard) {
		r.heard.add(100 + n)
	}
	if len(r.heard.above) > maxHeard {
		t.Errorf("%d numbers are kept", len(r.heard.above))
	}
}

type lent struct {
	until  time.Time
	fenced bool
}

func (l lent) Deadline() time.Time { return l.until }
func (l lent) Fenced() bool        { return l.fenced }

// house.md, Cluster: past the lease's deadline minus 500 ms the cache counts as
// empty.
func TestWhatIsRememberedCountsUntilShortOfTheLease(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		lease time.Duration
		l     lent
		want  bool
	}{
		"fresh":                       {3 * time.Second, lent{until: now.Add(3 * time.Second)}, true},
		"within the margin":           {3 * time.Second, lent{until: now.Add(400 * time.Millisecond)}, false},
		"over":                        {3 * time.Second, lent{until: now.Add(-time.Second)}, false},
		"fenced":                      {3 * time.Second, lent{until: now.Add(time.Hour), fenced: true}, false},
		"a long lease, in the margin": {30 * time.Second, lent{until: now.Add(400 * time.Millisecond)}, false},
		"a long lease, before it":     {30 * time.Second, lent{until: now.Add(20 * time.Second)}, true},
		"a short lease, before it":    {60 * time.Second / 100, lent{until: now.Add(time.Minute)}, true},
	} {
		if got := Trusts(c.l, c.lease)(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// keyTable is the one database of two nodes: reads take a moment and see what was
// there at some time within it.
type keyTable struct {
	tenant id.TenantID
	mu     sync.Mutex // guards live
	live   map[id.KeyID]apikey.Hash
}

func (k *keyTable) find(_ context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
	k.mu.Lock()
	h, ok := k.live[key]
	k.mu.Unlock()
	if rand.IntN(4) == 0 { // the answer is on its way for a while
		time.Sleep(time.Duration(rand.IntN(3_000)) * time.Microsecond)
	}
	return h, ok && t == k.tenant, nil
}

// keyNode is a node: an Auth, a lease and the beat that renews it.
type keyNode struct {
	*platform.Auth
	id    id.MemberID
	r     *Revoker
	lease time.Duration

	until atomic.Pointer[time.Time]
	cut   atomic.Bool // off from the database's table of members
	deaf  atomic.Int32
}

func (n *keyNode) Deadline() time.Time { return *n.until.Load() }
func (n *keyNode) Fenced() bool        { return false }

// Forget, ForgetAll and Recheck make a node its own memory: it has no streams.
func (n *keyNode) Forget(_ context.Context, r msg.Revoked) error {
	n.Auth.Forget(r.Tenant, r.Key)
	return nil
}

func (n *keyNode) Recheck(context.Context) error { return nil }

// beat is what membership's beat does: the row is renewed and says what was acted
// on, and the own deadline moves only behind the act.
func (n *keyNode) beat(ctx context.Context, d *roster, acted int64, forgets bool) int64 {
	if n.cut.Load() {
		return acted
	}
	var counter int64
	sent := time.Now()
	d.with(func() {
		row := d.rows[n.id]
		row.until, row.forgot = time.Now().Add(n.lease), acted
		counter = d.number
	})
	if counter != acted && forgets {
		if n.r.OnRevoked(ctx, counter) != nil {
			return acted
		}
	}
	until := sent.Add(n.lease)
	n.until.Store(&until)
	return counter
}

// How a node hears of a revocation, or does not.
const (
	wordArrives    int32 = iota // at once
	wordLate                    // after a while
	wordUnanswered              // at once, and its answer is lost
	wordLost                    // the call is lost
	wordHangs                   // the call never ends
	words
)

// The faults that the law must catch.
type revokeFault int

const (
	nothingWrong       revokeFault = iota
	answersEarly                   // the answer does not wait for the others
	beatForgetsNothing             // the beat does not empty what is remembered
	leaseIsIgnored                 // what is remembered counts without the lease
	revokeFaults                   // how many there are
)

// security.md, Invariants 17: zero accepted requests after the 204 of a
// revocation. Two nodes over one table, and everything that can happen to the word
// between them.
func TestNoRequestIsAcceptedAfterARevocation(t *testing.T) {
	t.Parallel()
	for f := range revokeFaults {
		t.Run(fmt.Sprintf("fault %d", f), func(t *testing.T) {
			t.Parallel()
			accepted, cached := revocations(t, f)
			switch {
			case cached == 0:
				t.Error("void: no node remembered a key that was revoked")
			case f == nothingWrong && accepted > 0:
				t.Errorf("%d requests were accepted after the answer of a revocation", accepted)
			case f != nothingWrong && accepted == 0:
				t.Error("the law does not see the planted fault")
			}
		})
	}
}

// revocations revokes keys that both nodes use all the time. It counts requests
// that began after a revocation was answered and were accepted, and how often the
// other node remembered the key when it was revoked.
func revocations(t *testing.T, f revokeFault) (accepted, cached int64) {
	const lease, rounds = 300 * time.Millisecond, 40
	table := &keyTable{tenant: id.TenantID{UUID: id.NewAnywhere()}, live: map[id.KeyID]apikey.Hash{}}
	d := newRoster()
	nodes := make([]*keyNode, 2)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for i := range nodes {
		n := &keyNode{id: d.add(), lease: lease}
		n.r = New(n.id, lease, zerolog.Nop())
		now := time.Now().Add(lease)
		n.until.Store(&now)
		valid := Trusts(n, lease)
		if f == leaseIsIgnored {
			valid = nil
		}
		n.Auth = platform.NewAuth(platform.AuthConfig{Keys: table.find, Live: valid})
		n.r.Bind(n)
		n.r.Join(d, d)
		nodes[i] = n
		wg.Go(func() {
			tick := time.NewTicker(lease / 3)
			defer tick.Stop()
			for acted := int64(0); ; {
				acted = n.beat(ctx, d, acted, f != beatForgetsNothing)
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	d.call = func(ctx context.Context, to id.MemberID, what msg.Revoked) error {
		n := nodes[slices.IndexFunc(nodes, func(n *keyNode) bool { return n.id == to })]
		manner := n.deaf.Load()
		switch manner {
		case wordLate:
			pause.For(ctx, time.Duration(rand.IntN(40))*time.Millisecond)
		case wordLost:
			return errors.New("lost")
		case wordHangs:
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := n.r.Serve(ctx, to, what); err != nil || manner == wordUnanswered {
			return errors.Join(err, errors.New("lost"))
		}
		return nil
	}
	for round := range rounds {
		key := id.KeyID{UUID: id.NewAnywhere()}
		secret := apikey.Mint(key)
		_, hash, err := apikey.Parse(secret)
		if err != nil {
			t.Fatal(err)
		}
		table.mu.Lock()
		table.live[key] = hash
		table.mu.Unlock()
		creds := edge.Credentials{Bearer: secret, Tenant: table.tenant.String()}
		other := nodes[1]
		other.cut.Store(false)
		other.deaf.Store(int32(round) % words)
		testkit.Eventually(t, "the other node remembers the key", func() bool { // it may be short of its lease's end still
			if _, err := other.Authenticate(ctx, creds); err != nil {
				t.Fatal(err)
			}
			return other.Cached(creds)
		})
		other.cut.Store(round%3 == 0 && other.deaf.Load() >= wordUnanswered)

		var over atomic.Pointer[time.Time]
		var behind atomic.Int64 // requests that began behind the answer
		var users sync.WaitGroup
		quit := make(chan struct{})
		for _, n := range nodes {
			for range 2 {
				users.Go(func() {
					for {
						began := time.Now()
						_, err := n.Authenticate(ctx, creds)
						if end := over.Load(); end != nil && began.After(*end) {
							behind.Add(1)
							if err == nil {
								atomic.AddInt64(&accepted, 1)
							}
						}
						select {
						case <-quit:
							return
						case <-time.After(100 * time.Microsecond):
						}
					}
				})
			}
		}
		table.mu.Lock()
		delete(table.live, key)
		table.mu.Unlock()
		if other.Cached(creds) {
			cached++
		}
		what := msg.Revoked{What: msg.RevokedKey, Tenant: table.tenant, Key: key}
		if f == answersEarly {
			err = nodes[0].r.forget(ctx, what)
		} else {
			err = nodes[0].r.Revoke(ctx, what)
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		now := time.Now()
		over.Store(&now)
		testkit.Eventually(t, "the key was used behind the answer", func() bool { return behind.Load() > 40 })
		close(quit)
		users.Wait()
	}
	return accepted, cached
}
