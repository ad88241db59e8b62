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
	// tickEvery is how often the ledger checks for idle tokens, which go back after two to
	// three ticks.
	tickEvery = 50 * time.Millisecond
	// books is the number of parts of the accounts, a power of two.
	books = 64
	// sharedBuckets is how many buckets the strangers beyond MaxStrangers share.
	sharedBuckets = 1024
	// askTimeout bounds one message to an owner. A later grant is not used, because the owner
	// may count its tokens as spent by then.
	askTimeout = time.Second
	// askFor is how long a request waits for an owner. The shard may be moving, or the owner
	// may be dead and not marked yet: marking takes 1.5 s, or 3.5 s if its port does not
	// refuse connections. The handler needs the rest of the time that clients wait.
	askFor = 3500 * time.Millisecond
	// askPause is the pause before an owner is asked again.
	askPause = recallWait / 10
	// holdTicks bounds how long a node keeps leased tokens.
	holdTicks = 20
	// slowRest is the number of ticks after which an unused bucket with a rate by the minute
	// is full again.
	slowRest = uint32(slowest/tickEvery) + 2
	// againTicks is when a GiveBack is sent once more: it may have been lost because the
	// bucket was moving.
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
	// MaxStrangers bounds the client IPs with an account in each scope. 0: 65,536.
	MaxStrangers int
}

// Ledger is the account of the tokens that one node leased, for the node's edge.
type Ledger struct {
	node      Node
	rate      Rate
	made      time.Time
	rest      uint32        // ticks after which an unused bucket is full again
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
	mu       sync.Mutex // guards accounts and their fields
	accounts map[name]*account
}

// account has the tokens that this node leased of one bucket. The fields that every request
// touches come first: in the size class of 96 bytes they never cross a cache line.
type account struct {
	tokens   int64
	spent    [2]int64      // tokens, in the tick since and in the one before
	since    uint32        // the tick of spent[0]
	used     uint32        // the tick of the last request
	lot      uint64        // the number of the Lease of these tokens; 0: the owner knows what was spent
	minute   uint32        // the bucket's rate, as in Spec
	leased   uint32        // the tick of the last grant
	said     uint32        // the tick of the last GiveBack
	left     uint32        // the tokens that the owner had left at the last grant
	emptied  time.Duration // when the last token was spent, since Ledger.made; 0: never
	returned int64         // the total given back so far
	open     uint64        // the number of a Lease without an answer, or 0
	waiting  int64         // requests that wait for the ask in flight
	asking   *asking
	reported bool // the owner knows that this node has no token
	recalled bool // a Recall gave up waiting for the ask in flight
}

// asking is one Lease in flight. Its answer is for all requests that wait for it.
type asking struct {
	done     chan struct{}
	answered bool // false: the waiting requests ask again, each until its own deadline
	retry    time.Duration
	no       bool
	minute   uint32 // the rate of the Lease
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

// Stop ends that, and gives back the tokens that the owners may not know of.
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

// Tenant takes a token of a tenant's bucket. If there is none, ok is false and a request
// after retry passes. If the owner does not answer in time, err is UNAVAILABLE. This method
// and the others that take a token tell the request of ctx of the quota (quota.Note).
func (l *Ledger) Tenant(ctx context.Context, t id.TenantID) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, name{t, t.UUID}, 0, ScopeTenant)
	return retry, ok, err
}

// User takes a token of the bucket of a user of a tenant, as Tenant does.
func (l *Ledger) User(ctx context.Context, t id.TenantID, u id.UserID) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, of(ScopeUser, t, u.UUID), 0, ScopeUser)
	return retry, ok, err
}

// Public takes a token of a client's bucket for public routes, as Tenant does.
func (l *Ledger) Public(ctx context.Context, addr netip.Addr) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, l.own(client(ScopePublic, addr), ScopePublic), 0, ScopePublic)
	return retry, ok, err
}

// IP takes a token of a client's bucket, as Tenant does.
func (l *Ledger) IP(ctx context.Context, addr netip.Addr) (retry time.Duration, ok bool, err error) {
	_, retry, ok, err = l.take(ctx, l.own(client(ScopeIP, addr), ScopeIP), 0, ScopeIP)
	return retry, ok, err
}

// RefundIP gives a client's token back, when the call turns out to be a tenant's.
func (l *Ledger) RefundIP(addr netip.Addr) {
	h := l.own(client(ScopeIP, addr), ScopeIP)
	b := l.book(h)
	b.mu.Lock()
	defer b.mu.Unlock()
	// A token that the owner counts as spent stays spent.
	if a := b.accounts[h]; a != nil && a.asking == nil && !a.reported {
		l.unspend(a)
	}
}

// Taken is a token that was taken, for Refund.
type Taken struct {
	from name
	lot  uint64
}

// Take takes a token of a bucket, as Tenant does. The bucket's rate is that of the last Take:
// after it was lowered to n the bucket has at most n tokens, apart from tokens that other
// nodes leased before.
func (l *Ledger) Take(ctx context.Context, b Spec) (t Taken, retry time.Duration, ok bool, err error) {
	t.from = l.own(b.name, b.scope)
	t.lot, retry, ok, err = l.take(ctx, t.from, b.perMinute, b.scope)
	return t, retry, ok, err
}

// Refund gives back a token that was not needed, if it was taken in the last 100 ms. A token
// that the owner counts as spent stays spent.
func (l *Ledger) Refund(t Taken) {
	b := l.book(t.from)
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[t.from]; a != nil && a.lot == t.lot && t.lot != 0 {
		l.unspend(a)
	}
}

// unspend takes back the spending of a token.
func (l *Ledger) unspend(a *account) {
	l.advance(a)
	a.tokens++
	a.spent[0]--
}

// own returns the bucket itself, or a shared one if its client has no account and there are
// too many strangers.
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

// guests returns the number of accounts of strangers in h's scope.
func (l *Ledger) guests(h name) *atomic.Int64 { return &l.strangers[h.id[7]>>4] }

func (l *Ledger) book(h name) *book {
	return &l.books[(binary.LittleEndian.Uint64(h.id[:8])^binary.LittleEndian.Uint64(h.id[8:]))*0x9e3779b97f4a7c15>>58%books]
}

// advance moves the account's counts to the present tick.
func (l *Ledger) advance(a *account) {
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

// take takes a token of a bucket with this rate, and returns the number of its Lease.
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
	l.advance(a)
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

// quota returns the quota as far as this node knows: its own tokens, those that the owner
// had left at the last grant, and those that came back since. Other nodes may have taken
// some.
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

// reprice applies a bucket's new rate at once: tokens leased at the former rate go back.
func (l *Ledger) reprice(h name, a *account, minute uint32) {
	a.minute = minute
	if a.tokens > 0 {
		l.node.Tell(h.address(), l.giveBack(a, a.tokens))
	}
}

// wait asks the owner for a token and takes it. It is called with b.mu held and unlocks it.
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
		l.advance(a)
		switch {
		case a.tokens > 0:
			l.spend(a)
			quota.Note(ctx, l.quota(a))
			return a.lot, 0, true, nil
		case ask.no && ask.minute == a.minute: // otherwise the rate has changed meanwhile
			refusals[s].Inc()
			quota.Note(ctx, l.rateOf(a).quota(0))
			return 0, ask.retry, false, nil
		case !ask.answered && l.over(ctx, until):
			return unanswered()
		}
	}
}

// unanswered is the answer if the owner could not be asked: UNAVAILABLE, not a refusal.
func unanswered() (uint64, time.Duration, bool, error) {
	unavailable.Inc()
	return 0, 0, false, problem.Unavailable("The rate limit could not be asked for in time.", time.Second)
}

// over reports whether a request that may wait until then must stop waiting.
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

// await waits, without the lock, for the answer to another request's ask.
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

// lease asks the owner, without the lock, for tokens for the waiting requests and for the
// expected ones.
func (l *Ledger) lease(ctx context.Context, until time.Time, h name, b *book, a *account) *asking {
	ask := &asking{done: make(chan struct{}), minute: a.minute}
	a.asking, a.lot = ask, 0
	lately := max(a.spent[0]+a.spent[1], 0)
	if a.minute > 0 { // what comes back in a second: a slow bucket's tokens are never idle on a node
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

// spend spends a token of an account.
func (l *Ledger) spend(a *account) {
	a.tokens--
	a.spent[0]++
	if a.tokens == 0 {
		a.emptied = max(time.Since(l.made), 1)
	}
}

// idle returns at most the time since the last token was spent.
func (l *Ledger) idle(a *account) time.Duration {
	if a.tokens == 0 && a.emptied > 0 {
		return time.Since(l.made) - a.emptied
	}
	// The first tick may have come right after the request.
	return time.Duration(max(int64(l.tick.Load()-a.used)-1, 0)) * tickEvery
}

// ask leases tokens. Without an answer no request is admitted, otherwise the limit would
// not hold. A Lease without an answer may have been granted, so the next one has the same
// number.
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

// Served answers a Recall, for node.Serve under ServiceRecall: it gives back the unused
// tokens of a bucket. If a Lease is in flight, it waits for the answer first.
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
	case a.asking != nil: // its Lease reports what a GiveBack would
		return nil, nil
	default:
		return l.giveBack(a, max(a.tokens-a.waiting, 0)), nil
	}
}

// giveBack returns n tokens. The waiting requests spend the others at once. A later Lease
// has a higher number, so it does not matter which of the messages is received first.
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

// runOnce gives back tokens that were not used in the last two ticks, and removes the
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

// untold reports whether a new account would be in the same state for the owner: every
// granted token was spent, and no Lease is open.
func (a *account) untold() bool { return a.returned == 0 && a.open == 0 }

// recent returns the tokens spent in the ticks now-1 and now-2.
func (a *account) recent(now uint32) int64 {
	switch now - a.since {
	case 1:
		return a.spent[0] + a.spent[1]
	case 2:
		return a.spent[0]
	}
	return 0
}
