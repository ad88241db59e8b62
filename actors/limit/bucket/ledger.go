package bucket

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
)

const (
	// tickEvery is how often idle tokens are looked for: they are back after two
	// to three ticks.
	tickEvery = 50 * time.Millisecond
	// books spread the accounts; their number is a power of two.
	books = 64
	// sharedBuckets serve the strangers for whom there is no account left.
	sharedBuckets = 1024
	// askTimeout bounds one message to an owner: what is granted later is not taken,
	// because the owner may count it as spent by then.
	askTimeout = time.Second
	// askFor is how long a request waits for an owner, who may be on the move or not
	// be known yet to have died: that takes a second and a half, or three and a half
	// where its port does not refuse. It leaves whoever serves the request some of the
	// time that clients wait.
	askFor = 3500 * time.Millisecond
	// askPause is the pause before an owner is asked again.
	askPause = recallWait / 10
	// holdTicks is how long tokens are held at most.
	holdTicks = 20
	// slowRest is the ticks after which an untouched bucket is full again that is
	// refilled by the minute.
	slowRest = uint32(slowest/tickEvery) + 2
	// againTicks is when what was given back is said once more: it may have been lost
	// because the bucket was on the move.
	againTicks = 10
)

// Node is what a Ledger needs of the cluster.
type Node interface {
	Member() id.MemberID
	Ask(ctx context.Context, a cluster.Address, m any) (any, error)
	Tell(a cluster.Address, m any)
}

// LedgerConfig is what a Ledger needs.
type LedgerConfig struct {
	Node Node
	Rate Rate // of the buckets of tenants, users and client IPs
	// MaxStrangers is how many client IPs have an account at a time in each scope,
	// 65,536 where it is 0.
	MaxStrangers int
}

// Ledger is the edge's side of the buckets on one node.
type Ledger struct {
	node      Node
	rate      Rate
	made      time.Time
	rest      uint32        // ticks after which an untouched bucket is full again
	seq       atomic.Uint64 // of the last Lease
	strangers [ipScopes]atomic.Int64
	max       int64
	seed      maphash.Seed
	tick      atomic.Uint32
	books     [books]book

	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

type book struct {
	mu       sync.Mutex // guards accounts and what they hold
	accounts map[name]*account
}

// account is what this node holds of one bucket. What every request touches comes
// first: in its size class of 96 bytes that never lies across two cache lines.
type account struct {
	tokens   int64
	spent    [2]int64      // in this tick and in the one before
	since    uint32        // the tick that spent[0] is of
	used     uint32        // the tick of the last touch
	lot      uint64        // the number of the Lease whose tokens these are; 0: what was spent of them is said
	minute   uint32        // the bucket's rate as in Spec
	leased   uint32        // the tick of the last grant
	said     uint32        // the tick in which something was given back
	left     uint32        // what the owner held beside, at the last grant
	emptied  time.Duration // when the last token was spent, since the ledger was made; 0: never
	returned int64         // given back so far
	open     uint64        // the number of a Lease that was not answered, or 0
	waiting  int64         // requests that wait for the ask under way
	asking   *asking
	reported bool // the owner knows that nothing is held
	recalled bool // while it asked, for longer than a Recall waits
}

// asking is one Lease under way; what it says holds for all who wait for it.
type asking struct {
	done     chan struct{}
	answered bool // else those who wait ask again, each for its own time
	retry    time.Duration
	no       bool
	minute   uint32 // the rate that it went by
}

// NewLedger makes an empty ledger.
func NewLedger(cfg LedgerConfig) *Ledger {
	if cfg.MaxStrangers <= 0 {
		cfg.MaxStrangers = 1 << 16
	}
	l := &Ledger{node: cfg.Node, rate: cfg.Rate, made: time.Now(), max: int64(cfg.MaxStrangers), seed: maphash.MakeSeed(), stop: make(chan struct{})}
	full := time.Duration(cfg.Rate.Capacity) * cfg.Rate.Every
	l.rest = uint32(min(full/tickEvery+2, 1<<30))
	for i := range l.books {
		l.books[i].accounts = map[name]*account{}
	}
	return l
}

// Start begins to give idle tokens back.
func (l *Ledger) Start(context.Context) error {
	l.wg.Go(func() {
		tick := time.NewTicker(tickEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.runOnce()
			case <-l.stop:
				return
			}
		}
	})
	return nil
}

// Stop ends that. What the owners may not know of is given back.
func (l *Ledger) Stop() {
	l.once.Do(func() { close(l.stop) })
	l.wg.Wait()
	for i := range l.books {
		b := &l.books[i]
		b.mu.Lock()
		for h, a := range b.accounts {
			if a.asking == nil && (!a.reported || l.tick.Load()-a.said <= againTicks) {
				l.node.Tell(h.address(), l.giveBack(a, a.tokens))
			}
		}
		b.mu.Unlock()
	}
}

// Tenant takes a token of a tenant's bucket. Where there is none, ok is false
// and a request after retry passes. Where nobody says in time whether there is
// one, err is UNAVAILABLE. The request of ctx is told of the bucket (quota.Note), by
// this method and the others that take a token.
func (l *Ledger) Tenant(ctx context.Context, t id.TenantID) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, name{t, t.UUID}, 0, ScopeTenant)
	return retry, ok, err
}

// User takes a token of the bucket of a user of a tenant, as Tenant does.
func (l *Ledger) User(ctx context.Context, t id.TenantID, u id.UserID) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, of(ScopeUser, t, u.UUID), 0, ScopeUser)
	return retry, ok, err
}

// Public takes a token of the bucket that a client has for public routes, as Tenant
// does.
func (l *Ledger) Public(ctx context.Context, addr netip.Addr) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, l.own(client(ScopePublic, addr), ScopePublic), 0, ScopePublic)
	return retry, ok, err
}

// IP takes a token of a client's bucket, as Tenant does.
func (l *Ledger) IP(ctx context.Context, addr netip.Addr) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, l.own(client(ScopeIP, addr), ScopeIP), 0, ScopeIP)
	return retry, ok, err
}

// RefundIP gives a client's token back: the call turned out to be of a tenant.
func (l *Ledger) RefundIP(addr netip.Addr) {
	h := l.own(client(ScopeIP, addr), ScopeIP)
	b := l.book(h)
	b.mu.Lock()
	defer b.mu.Unlock()
	// What the owner takes as spent stays so.
	if a := b.accounts[h]; a != nil && a.asking == nil && !a.reported {
		l.unspend(a)
	}
}

// Taken is a token that was taken, for Refund.
type Taken struct {
	from name
	lot  uint64
}

// Take takes a token of a bucket, as Tenant does. A bucket's rate is that of the
// last Take: when it was lowered to n, no more than n are in the bucket, beside what
// other nodes spend of what they have leased.
func (l *Ledger) Take(ctx context.Context, b Spec) (t Taken, retry time.Duration, ok bool, err error) {
	t.from = l.own(b.name, b.scope)
	t.lot, retry, ok, err = l.take(ctx, t.from, b.perMinute, b.scope)
	return t, retry, ok, err
}

// Refund gives a token back that turned out not to be needed, if it was taken in the
// last 100 ms: what the owner takes as spent stays so.
func (l *Ledger) Refund(t Taken) {
	b := l.book(t.from)
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[t.from]; a != nil && a.lot == t.lot && t.lot != 0 {
		l.unspend(a)
	}
}

func (l *Ledger) unspend(a *account) {
	l.turn(a)
	a.tokens++
	a.spent[0]--
}

// own is the bucket itself, or that which its client shares when too many strangers
// are here.
func (l *Ledger) own(h name, s Scope) name {
	if !h.stranger() || l.guests(h).Load() < l.max {
		return h
	}
	b := l.book(h)
	b.mu.Lock()
	_, known := b.accounts[h]
	b.mu.Unlock()
	if known {
		return h
	}
	sharing.Inc()
	return sharedBucket(s, maphash.Comparable(l.seed, h.id)%sharedBuckets)
}

// guests is how many accounts there are of strangers of h's scope.
func (l *Ledger) guests(h name) *atomic.Int64 { return &l.strangers[h.id[7]>>4] }

func (l *Ledger) book(h name) *book {
	return &l.books[(binary.LittleEndian.Uint64(h.id[:8])^binary.LittleEndian.Uint64(h.id[8:]))*0x9e3779b97f4a7c15>>58%books]
}

// turn moves the account's counts to this tick.
func (l *Ledger) turn(a *account) {
	now := l.tick.Load()
	switch now - a.since {
	case 0:
	case 1:
		a.spent[1], a.spent[0] = a.spent[0], 0
	default:
		a.spent = [2]int64{}
	}
	a.since, a.used = now, now
}

// take takes a token of a bucket of that rate, and says of which Lease it is.
func (l *Ledger) take(ctx context.Context, h name, minute uint32, s Scope) (lot uint64, retry time.Duration, ok bool, err error) {
	b := l.book(h)
	b.mu.Lock()
	a := b.accounts[h]
	if a == nil {
		a = &account{since: l.tick.Load(), minute: minute, reported: true}
		b.accounts[h] = a
		accounts.Inc()
		if h.stranger() {
			l.guests(h).Add(1)
		}
	}
	l.turn(a)
	if a.minute != minute {
		l.reprice(h, a, minute)
	}
	if a.tokens > 0 {
		l.spend(a)
		lot = a.lot
		q := l.quota(a)
		b.mu.Unlock()
		quota.Note(ctx, q)
		return lot, 0, true, nil
	}
	return l.wait(ctx, h, s, b, a)
}

// quota is what this node knows of a bucket: its own tokens, what the owner held at
// the last grant, and what has come back since. Other nodes may have taken some.
func (l *Ledger) quota(a *account) quota.Quota {
	rate := l.rateOf(a)
	back := int64(time.Duration(l.tick.Load()-a.leased) * tickEvery / rate.Every)
	return rate.quota(a.tokens + int64(a.left) + back)
}

func (l *Ledger) rateOf(a *account) Rate {
	if a.minute > 0 {
		return perMinute(int64(a.minute))
	}
	return l.rate
}

// reprice has the bucket's new rate hold at once: what was leased by the former one
// goes back.
func (l *Ledger) reprice(h name, a *account, minute uint32) {
	a.minute = minute
	if a.tokens > 0 {
		l.node.Tell(h.address(), l.giveBack(a, a.tokens))
	}
}

// wait takes a token that the owner is asked for. It is called with b.mu held and
// unlocks it.
func (l *Ledger) wait(ctx context.Context, h name, s Scope, b *book, a *account) (uint64, time.Duration, bool, error) {
	a.waiting++
	defer func() {
		a.waiting--
		b.mu.Unlock()
	}()
	until := time.Now().Add(askFor)
	for {
		ask := a.asking
		if ask == nil {
			ask = l.lease(ctx, until, h, b, a)
		} else if !b.await(ctx, until, ask) {
			return unanswered()
		}
		l.turn(a)
		switch {
		case a.tokens > 0:
			l.spend(a)
			quota.Note(ctx, l.quota(a))
			return a.lot, 0, true, nil
		case ask.no && ask.minute == a.minute: // else the rate has changed meanwhile
			refusals[s].Inc()
			quota.Note(ctx, l.rateOf(a).quota(0))
			return 0, ask.retry, false, nil
		case !ask.answered && l.over(ctx, until):
			return unanswered()
		}
	}
}

// unanswered is the answer where nobody knows whether there are tokens: not that
// there are none.
func unanswered() (uint64, time.Duration, bool, error) {
	unavailable.Inc()
	return 0, 0, false, problem.Unavailable("The rate limit could not be asked for in time.", time.Second)
}

// over reports whether nobody asks any more for a request that may wait until then.
func (l *Ledger) over(ctx context.Context, until time.Time) bool {
	select {
	case <-l.stop:
		return true
	case <-ctx.Done():
		return true
	default:
		return !time.Now().Before(until)
	}
}

// await waits, without the lock, for what another request asks.
func (b *book) await(ctx context.Context, until time.Time, ask *asking) bool {
	b.mu.Unlock()
	defer b.mu.Lock()
	late := time.NewTimer(time.Until(until))
	defer late.Stop()
	select {
	case <-ask.done:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// lease asks the owner, without the lock, for those who wait and for those who are
// expected.
func (l *Ledger) lease(ctx context.Context, until time.Time, h name, b *book, a *account) *asking {
	ask := &asking{done: make(chan struct{}), minute: a.minute}
	a.asking, a.lot = ask, 0
	lately := max(a.spent[0]+a.spent[1], 0)
	if a.minute > 0 { // what is made in a second: of a slow bucket no token is idle anywhere
		lately = min(lately, int64(a.minute)/60)
	}
	if a.open == 0 {
		a.open = l.seq.Add(1)
	}
	lease := Lease{Node: l.node.Member(), Seq: a.open, Want: a.waiting + lately, Returned: a.returned, Idle: l.idle(a), PerMinute: int64(a.minute)}
	b.mu.Unlock()
	leased, answered := l.ask(ctx, until, h, lease)
	b.mu.Lock()
	a.asking = nil
	if answered {
		a.open = 0
	}
	if leased.Granted > 0 {
		a.tokens += leased.Granted
		a.lot, a.reported, a.leased = lease.Seq, false, l.tick.Load()
		a.left = uint32(min(max(leased.Left, 0), math.MaxUint32))
	}
	if a.recalled {
		a.recalled = false
		l.node.Tell(h.address(), l.giveBack(a, max(a.tokens-a.waiting, 0)))
	}
	ask.answered, ask.no, ask.retry = answered, answered && leased.Granted == 0, max(leased.RetryAfter, 0)
	close(ask.done)
	return ask
}

func (l *Ledger) spend(a *account) {
	a.tokens--
	a.spent[0]++
	if a.tokens == 0 {
		a.emptied = max(time.Since(l.made), 1)
	}
}

// idle is how long ago the last token was spent, or less.
func (l *Ledger) idle(a *account) time.Duration {
	if a.tokens == 0 && a.emptied > 0 {
		return time.Since(l.made) - a.emptied
	}
	// The first of the ticks may have come right after the touch.
	return time.Duration(max(int64(l.tick.Load()-a.used)-1, 0)) * tickEvery
}

// ask leases tokens. An owner that does not answer admits nobody: else the bound
// would not hold. What was not answered may have been granted: the next Lease has
// the same number.
func (l *Ledger) ask(ctx context.Context, until time.Time, h name, lease Lease) (leased Leased, answered bool) {
	for {
		asks.Inc()
		one, done := context.WithTimeout(ctx, min(askTimeout, time.Until(until)))
		v, err := l.node.Ask(one, h.address(), lease)
		done()
		if leased, ok := v.(Leased); ok && err == nil && !leased.Wait {
			return leased, true
		}
		pause := time.NewTimer(askPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		case <-l.stop:
			pause.Stop()
		}
		if l.over(ctx, until) {
			failures.Inc()
			return Leased{}, false
		}
	}
}

// Served answers a Recall, for node.Serve under ServiceRecall: it gives back what
// this node holds of a bucket and does not use. Where tokens may be on their way
// here it waits for them.
func (l *Ledger) Served(ctx context.Context, _ id.MemberID, m any) (any, error) {
	r, ok := m.(Recall)
	if !ok {
		return nil, fmt.Errorf("%w: %T", msg.ErrUnknownType, m)
	}
	h := name{r.Bucket.Tenant, r.Bucket.ID}
	b := l.book(h)
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[h]; a != nil && a.asking != nil {
		ask := a.asking
		b.mu.Unlock()
		select {
		case <-ask.done:
			b.mu.Lock()
		case <-ctx.Done():
			b.mu.Lock()
			a.recalled = a.asking != nil
			return nil, nil
		}
	}
	switch a := b.accounts[h]; {
	case a == nil:
		return GiveBack{Node: l.node.Member(), Seq: l.seq.Load()}, nil
	case a.asking != nil: // its Lease says what a GiveBack would
		return nil, nil
	default:
		return l.giveBack(a, max(a.tokens-a.waiting, 0)), nil
	}
}

// giveBack returns tokens; what stays is spent at once by those who wait. A Lease
// that follows has a higher number, so it does not matter which is received
// first.
func (l *Ledger) giveBack(a *account, n int64) GiveBack {
	idle := time.Duration(0)
	if n == a.tokens {
		idle = l.idle(a)
	}
	if n > 0 && n == a.tokens {
		a.emptied = max(time.Since(l.made)-idle, 1)
	}
	a.tokens -= n
	a.returned += n
	a.lot, a.reported, a.open, a.said = 0, a.tokens == 0, 0, l.tick.Load()
	return GiveBack{Node: l.node.Member(), Seq: l.seq.Load(), Returned: a.returned, Idle: idle}
}

// runOnce gives back what was not used for the last two ticks, and forgets the
// accounts whose buckets are full again.
func (l *Ledger) runOnce() {
	now := l.tick.Add(1)
	for i := range l.books {
		b := &l.books[i]
		b.mu.Lock()
		for h, a := range b.accounts {
			if a.asking != nil || a.waiting > 0 {
				continue
			}
			idle := now - a.used
			switch {
			case !a.reported && (idle > 2 || a.tokens > a.recent(now) || now-a.leased > holdTicks):
				l.node.Tell(h.address(), l.giveBack(a, a.tokens))
			case a.reported && a.returned > 0 && now-a.said == againTicks:
				said := a.said
				l.node.Tell(h.address(), l.giveBack(a, 0))
				a.said = said
			}
			if a.reported && (a.untold() && idle > againTicks || idle > l.rest && (a.minute == 0 || idle > slowRest)) {
				delete(b.accounts, h)
				accounts.Dec()
				if h.stranger() {
					l.guests(h).Add(-1)
				}
			}
		}
		b.mu.Unlock()
	}
}

// untold reports whether the owner was told nothing that a new account would not say:
// every token that was granted was spent, and nothing is open.
func (a *account) untold() bool { return a.returned == 0 && a.open == 0 }

// recent is what was spent in the ticks now-1 and now-2.
func (a *account) recent(now uint32) int64 {
	switch now - a.since {
	case 1:
		return a.spent[0] + a.spent[1]
	case 2:
		return a.spent[0]
	}
	return 0
}
