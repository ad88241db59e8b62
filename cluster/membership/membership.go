package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
)

// DefaultLease is the lease if Config has none.
const DefaultLease = 3 * time.Second

var (
	// ErrOccupied: another process serves the database.
	ErrOccupied = errors.New("another process serves this database, and one without a cluster address serves it alone: stop one of them")
	// ErrStranger: this process does not share the secret, keys or files of the other nodes.
	ErrStranger = errors.New("this process uses another cluster secret, master key or store of files than the cluster")
	// ErrUnknown: no living member has this id.
	ErrUnknown = errors.New("no living member has this id")

	errFenced = errors.New("this process was declared dead")
)

// Config describes a member.
type Config struct {
	Member  id.MemberID
	Address string // where peers connect; empty: the one-node rule holds
	Version string // of the program, shown to operators
	// Secret identifies the cluster's secret, Uploads the directory of files, and Keys the
	// master keys, the sealing one first. All members of a cluster must have the same secret
	// and directory, and each must hold every key that another one seals under.
	Secret  string
	Uploads string
	Keys    []string
	Lease   time.Duration
	Log     zerolog.Logger
	// OnFenced is called once, from the beat, when this process was declared
	// dead. It must not wait for Leave.
	OnFenced func()
	// OnTwin, if set, is called once when another living member, which joined before this one, has its address: messages
	// for the one reach the other. The process must end. It must not wait for Leave.
	OnTwin func()
	// OnSuspended, if set, is called each time the lease expires: it must stop the process's
	// work in flight. It must not block.
	OnSuspended func()
	// OnMembers, if set, is called with all living members, including this one, sorted by id,
	// when their list has changed: a member joined, left, died, started draining or stopped.
	// Calls come one at a time, the first one before Join returns; if changes come faster
	// than it returns, it sees only the latest.
	OnMembers func([]Member)
	// OnDrain, if set, is called when the draining flag of this process's row has changed,
	// before the OnMembers that shows it and never concurrently with it.
	OnDrain func(on bool)
	// OnRevoked, if set, empties the caches of everything that may have been revoked up to
	// that number, and checks open streams again. A read in progress must not fill a cache
	// afterwards. The lease is not extended until it has returned nil. It is called from the
	// beat and must return when ctx ends.
	OnRevoked func(ctx context.Context, upTo int64) error
	// Exclusive says that no other process can be alive, because this one holds the lock of
	// the private Postgres: former members are marked dead at once.
	Exclusive bool
}

// Member is a process that holds a lease, as of the last read of the list.
type Member struct {
	ID         id.MemberID
	Address    string
	Version    string
	Draining   bool      // it owns no shards
	LeaseUntil time.Time // by Postgres' clock
}

// Owners returns the members that own shards: those that do not drain. If all drain, all
// own shards, so that no shard is without an owner.
func Owners(members []Member) []id.MemberID {
	var own, all []id.MemberID
	for _, m := range members {
		all = append(all, m.ID)
		if !m.Draining {
			own = append(own, m.ID)
		}
	}
	if len(own) == 0 {
		return all
	}
	return own
}

// Membership is a held lease.
type Membership struct {
	cfg   Config
	pool  *pgxpool.Pool
	clock *clock

	deadline atomic.Pointer[time.Time]
	fenced   atomic.Bool
	failing  atomic.Bool // the last renewal failed
	members  atomic.Pointer[[]Member]

	renewals   chan struct{} // capacity 1: the deadline has moved
	gone       chan struct{} // capacity 1: a read did not find the own row
	changes    chan struct{} // capacity 1: the list has changed
	deaths     chan []death  // capacity 1: the findings of the last read
	refreshing chan struct{} // capacity 1: held by the read in progress
	asking     chan struct{} // capacity 1: held by the caller's question in progress

	mu      sync.Mutex // guards refused
	refused map[id.MemberID]time.Time

	states map[id.MemberID]state // of the rows of the last read; used only while holding refreshing

	beat beat   // used only by the loop
	told told   // the state that OnMembers and OnDrain know: set by Join, then by the teller
	quit func() // stops the goroutines
	wg   sync.WaitGroup
	once sync.Once
}

// Join takes the lease and keeps renewing it. The pool must see all tenants, encode typed
// ids, as package pg's pools of the system role do, and have at least four connections. Join
// fails with ErrOccupied by the one-node rule, with ErrStranger, or with ctx.
func Join(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Membership, error) {
	if cfg.Member.IsZero() {
		panic("membership: a member needs an id")
	}
	if cfg.Lease <= 0 {
		cfg.Lease = DefaultLease
	}
	m := &Membership{
		cfg: cfg, pool: pool, clock: newClock(),
		renewals: make(chan struct{}, 1), gone: make(chan struct{}, 1), changes: make(chan struct{}, 1),
		deaths: make(chan []death, 1), refreshing: make(chan struct{}, 1), asking: make(chan struct{}, 1),
		refused: map[id.MemberID]time.Time{},
	}
	if err := m.join(ctx); err != nil {
		return nil, fmt.Errorf("join the members of the database: %w", err)
	}
	held.Store(m)
	m.tell()
	m.start()
	return m, nil
}

// start starts the goroutines of a held lease.
func (m *Membership) start() {
	ctx, quit := context.WithCancel(context.Background())
	m.quit = quit
	m.wg.Go(func() { m.loop(ctx) })
	m.wg.Go(func() { m.watch(ctx) })
	m.wg.Go(func() { m.teller(ctx) })
	m.wg.Go(func() { m.marker(ctx) })
}

// Member returns the id that holds the lease.
func (m *Membership) Member() id.MemberID { return m.cfg.Member }

// Members returns the living members, including this one, sorted by id. The list is never
// empty.
func (m *Membership) Members() []Member { return slices.Clone(*m.members.Load()) }

// Deadline returns until when this process's lease certainly holds. It is monotonic, and
// counted from before the renewal was sent.
func (m *Membership) Deadline() time.Time { return *m.deadline.Load() }

// Suspended reports whether this process's lease may have expired, or is lost.
func (m *Membership) Suspended() bool {
	return m.fenced.Load() || !time.Now().Before(m.Deadline())
}

// Renews reports whether the last attempt to renew the lease succeeded.
func (m *Membership) Renews() bool { return !m.fenced.Load() && !m.failing.Load() }

// Fenced reports whether this process was declared dead.
func (m *Membership) Fenced() bool { return m.fenced.Load() }

// Now returns Postgres' clock, based on this process's monotonic one.
func (m *Membership) Now() time.Time { return m.clock.now() }

// Refused reports that the port of a member has just refused a connection. It does not block.
func (m *Membership) Refused(who id.MemberID) {
	at := m.Now()
	known := slices.ContainsFunc(*m.members.Load(), func(o Member) bool { return o.ID == who })
	if !known || who == m.cfg.Member {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[who] = at
}

// Leave stops the beat and gives the lease back; peers see it at their next read. From the
// call on this process counts as suspended, without OnSuspended. Later calls do nothing.
func (m *Membership) Leave(ctx context.Context) error {
	var err error
	m.once.Do(func() {
		m.halt()
		over := time.Now()
		m.deadline.Store(&over)
		if _, e := m.pool.Exec(ctx, queries.Get("leave"), m.cfg.Member); e != nil {
			err = fmt.Errorf("give the lease back: %w", e)
		}
	})
	return err
}

// halt stops the goroutines and leaves the row, as a crash does.
func (m *Membership) halt() {
	m.quit()
	m.wg.Wait()
	held.CompareAndSwap(m, nil)
}

// signal sets a signal of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// enter takes a slot of capacity 1; the caller releases it with leave.
func enter(ctx context.Context, place chan struct{}) error {
	select {
	case place <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func leave(place chan struct{}) { <-place }
