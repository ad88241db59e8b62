// Package revocation makes every node of a cluster forget what was revoked, before the
// change is answered: commit, announce, then wait until each other node has confirmed or
// lost its lease (security.md, invariant 17).
package revocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster/membership"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
)

// Service is the node service that takes a msg.Revoked and answers msg.Done once this
// node has forgotten what it names (Revoker.Serve).
const Service = "revoked"

// Times of a revocation. How long it may take at most follows from the lease.
const (
	callTime  = time.Second            // one try to tell a node
	queryTime = 2 * time.Second        // one question to the database
	firstLook = 50 * time.Millisecond  // until the database is asked about those who are silent
	lastLook  = 250 * time.Millisecond // and how often at least
	firstCall = 20 * time.Millisecond  // until a node that did not answer is told again
	lastCall  = 200 * time.Millisecond
	firstOwed = 50 * time.Millisecond // until an announcement that failed is made again
	lastOwed  = time.Second
	slackTime = 2 * time.Second // beyond what the lease gives
	maxHeard  = 1 << 14         // revocations that a node was told of between two beats
)

// Members are the nodes of a cluster; membership.Membership implements it.
type Members interface {
	// Announce takes the next number of the order of revocations. A node whose beat
	// sees a number that it was not told of forgets everything (Revoker.OnRevoked).
	Announce(ctx context.Context) (number int64, err error)
	// Members returns, after an Announce, all nodes that may have read what was true
	// before it, those that joined a moment ago too.
	Members() []membership.Member
	// Forgotten returns the given members that may still rely on what they read before
	// number: they hold a lease and have not acted on the number.
	Forgotten(ctx context.Context, number int64, of []id.MemberID) (missing []id.MemberID, err error)
}

// Caller calls services of members; cluster.Node implements it.
type Caller interface {
	Call(ctx context.Context, to id.MemberID, service string, msg any) (any, error)
}

// Memory is what this node remembers of what may be revoked.
type Memory interface {
	// Forget drops what is remembered of r and cuts its streams. It fails if this build
	// does not know what r is about, or if ctx ends while work goes on that relies on it.
	Forget(ctx context.Context, r msg.Revoked) error
	// ForgetAll drops everything.
	ForgetAll()
	// Recheck asks the database which owners of open streams may still watch, and cuts
	// the streams of the others.
	Recheck(ctx context.Context) error
}

// fellows are the other nodes.
type fellows struct {
	members Members
	caller  Caller
}

// Revoker tells the other nodes of revocations that this node made, and answers those of
// the other nodes. It implements platform.Revoker. A revocation is over when each live
// node has answered, or its row shows that it acted on the number, or its lease ended.
type Revoker struct {
	self  id.MemberID
	lease time.Duration
	log   zerolog.Logger

	fellows atomic.Pointer[fellows] // nil: this node is alone
	memory  atomic.Pointer[Memory]  // nil: nothing is remembered yet
	heard   heard

	owed chan struct{} // capacity 1: holds a value while an announcement is due
	quit context.CancelFunc
	wg   sync.WaitGroup
}

// New returns the Revoker of a node that is alone (Join) and remembers nothing (Bind).
func New(self id.MemberID, lease time.Duration, log zerolog.Logger) *Revoker {
	return &Revoker{self: self, lease: lease, log: log, owed: make(chan struct{}, 1), quit: func() {}}
}

// Join sets how the other nodes are reached. Call it before the first request.
func (r *Revoker) Join(m Members, c Caller) { r.fellows.Store(&fellows{m, c}) }

// Bind sets what this node remembers. Before that it remembers nothing, and confirms
// every revocation: Bind comes before the first actor and the first request.
func (r *Revoker) Bind(m Memory) { r.memory.Store(&m) }

// Start begins to make owed announcements. It fails if nothing is bound.
func (r *Revoker) Start(context.Context) error {
	if r.memory.Load() == nil {
		return errors.New("revocation: Bind was not called: this node would confirm revocations without clearing a cache")
	}
	ctx, quit := context.WithCancel(context.Background())
	r.quit = quit
	r.wg.Go(func() { r.pay(ctx) })
	return nil
}

// Stop ends it. What is owed then is not announced: what other nodes remember
// ends by its time to live.
func (r *Revoker) Stop() {
	r.quit()
	r.wg.Wait()
}

// AtMost is how long a revocation may take on nodes with the given lease.
func AtMost(lease time.Duration) time.Duration { return 2*lease + slackTime }

// Revoke implements platform.Revoker.
func (r *Revoker) Revoke(ctx context.Context, what msg.Revoked) error {
	began := time.Now()
	// A node that is not reached has acted within two beats, or its lease is over: one
	// lease. An announcement waits for half of one where a node has just died.
	ctx, cancel := context.WithTimeout(ctx, AtMost(r.lease))
	defer cancel()
	f := r.fellows.Load()
	if err := r.forget(ctx, what); err != nil {
		if f != nil {
			r.owe()
		}
		return r.unconfirmed(what, "forget", err)
	}
	if f == nil {
		return nil
	}
	number, err := r.announce(ctx, f)
	if err != nil {
		r.owe()
		return r.unconfirmed(what, "announce", err)
	}
	what.Number = number
	r.heard.add(number)
	var others []id.MemberID
	for _, m := range f.members.Members() {
		if m.ID != r.self {
			others = append(others, m.ID)
		}
	}
	if missing := r.collect(ctx, f, what, others); len(missing) > 0 {
		return r.unconfirmed(what, "wait for the members", fmt.Errorf("%d of %d have not answered: %w", len(missing), len(others), context.Cause(ctx)))
	}
	revocationSeconds.Observe(time.Since(began).Seconds())
	return nil
}

// Suspect implements platform.Revoker: every node forgets everything, in place of
// what may have been revoked.
func (r *Revoker) Suspect(ctx context.Context, what msg.Revoked) {
	if err := r.forget(ctx, what); err != nil {
		r.log.Error().Err(err).Msg("this node's caches could not be cleared after a revocation with an unknown outcome")
	}
	if r.fellows.Load() != nil {
		r.owe()
	}
}

// Serve answers Service.
func (r *Revoker) Serve(ctx context.Context, _ id.MemberID, m any) (any, error) {
	what, ok := m.(msg.Revoked)
	if !ok {
		return nil, fmt.Errorf("the service %s takes no %T", Service, m)
	}
	// A message of a newer version that this node does not know is not noted as heard:
	// the beat sees its number and forgets everything.
	if err := r.forget(ctx, what); err != nil {
		return nil, err
	}
	r.heard.add(what.Number)
	return msg.Done{}, nil
}

func (r *Revoker) forget(ctx context.Context, what msg.Revoked) error {
	m := r.memory.Load()
	if m == nil {
		return nil
	}
	return (*m).Forget(ctx, what)
}

// OnRevoked is called by the beat alone, when the numbers have moved up to upTo, and not twice
// at a time. When it returns nil this node has acted on all of them: it has received each, or
// has forgotten everything and asked about every stream.
func (r *Revoker) OnRevoked(ctx context.Context, upTo int64) error {
	if r.heard.all(upTo) {
		r.heard.passed(upTo)
		return nil
	}
	if m := r.memory.Load(); m != nil {
		(*m).ForgetAll()
		if err := (*m).Recheck(ctx); err != nil {
			return fmt.Errorf("ask who may still watch: %w", err)
		}
		forgetsAll.Inc()
	}
	r.heard.passed(upTo)
	return nil
}

// collect tells each of the members and waits until none is missing; those that
// still are when ctx ends are returned.
func (r *Revoker) collect(ctx context.Context, f *fellows, what msg.Revoked, missing []id.MemberID) []id.MemberID {
	telling, stop := context.WithCancel(ctx)
	done := make(chan id.MemberID, len(missing))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for _, m := range missing {
		wg.Go(func() {
			if tell(telling, f.caller, m, what) {
				done <- m
			}
		})
	}
	missing = slices.Clone(missing)
	wait := firstLook
	look := time.NewTimer(wait)
	defer look.Stop()
	for len(missing) > 0 {
		select {
		case m := <-done:
			missing = slices.DeleteFunc(missing, func(x id.MemberID) bool { return x == m })
		case <-look.C:
			ask, cancel := context.WithTimeout(ctx, queryTime)
			still, err := f.members.Forgotten(ask, what.Number, missing)
			cancel()
			if err == nil { // else the next look may tell, or they answer
				missing = slices.DeleteFunc(missing, func(x id.MemberID) bool { return !slices.Contains(still, x) })
			}
			wait = min(2*wait, lastLook)
			look.Reset(wait)
		case <-ctx.Done():
			return missing
		}
	}
	return nil
}

// tell tells one member until it has answered; false when ctx ended before.
func tell(ctx context.Context, c Caller, to id.MemberID, what msg.Revoked) bool {
	for wait := firstCall; ; wait = min(2*wait, lastCall) {
		once, cancel := context.WithTimeout(ctx, callTime)
		v, err := c.Call(once, to, Service, what)
		cancel()
		if _, ok := v.(msg.Done); ok && err == nil {
			return true
		}
		if !pause.For(ctx, wait) {
			return false
		}
	}
}

func (r *Revoker) announce(ctx context.Context, f *fellows) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.lease+queryTime)
	defer cancel()
	return f.members.Announce(ctx)
}

// unconfirmed returns the error of a change that was made but not confirmed by every node.
func (r *Revoker) unconfirmed(what msg.Revoked, doing string, err error) error {
	revocationsUnconfirmed.Inc()
	if !errors.Is(err, context.Canceled) { // the caller has left
		r.log.Warn().Err(err).Stringer("tenant", what.Tenant).Str("what", string(what.What)).Str("doing", doing).Msg("a revocation is not confirmed by every node")
	}
	return fmt.Errorf("%s: %w: %w", doing, err, problem.Unavailable(
		"The change was made, but not every node has confirmed yet that it acts on it. Repeat the request: a repeat changes nothing more.", time.Second))
}

// owe makes an announcement later, until it succeeds. One is enough for whatever
// is owed: who was not told forgets everything.
func (r *Revoker) owe() {
	select {
	case r.owed <- struct{}{}:
	default:
	}
}

func (r *Revoker) pay(ctx context.Context) {
	for {
		select {
		case <-r.owed:
		case <-ctx.Done():
			return
		}
		f := r.fellows.Load()
		if f == nil {
			continue
		}
		for wait := firstOwed; ; wait = min(2*wait, lastOwed) {
			if _, err := r.announce(ctx, f); err == nil {
				break
			}
			if !pause.For(ctx, wait) {
				return
			}
		}
	}
}

// Leased is a node's lease; membership.Membership implements it.
type Leased interface {
	Deadline() time.Time
	Fenced() bool
}

// Trusts returns whether a node may act on what it remembers: until half a second before
// its lease ends, or a sixth of a lease that is shorter than three seconds.
func Trusts(m Leased, lease time.Duration) func() bool {
	margin := min(500*time.Millisecond, lease/6)
	return func() bool { return !m.Fenced() && time.Until(m.Deadline()) > margin }
}

// heard are the numbers of the revocations that this node was told of, and has
// acted on, since the last beat that looked.
type heard struct {
	mu    sync.Mutex // guards the fields below
	upTo  int64      // all up to here were acted on
	known bool       // upTo is
	above map[int64]struct{}
}

// add notes a number. With too many it is dropped, which costs forgetting
// everything.
func (h *heard) add(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known && n <= h.upTo || len(h.above) >= maxHeard {
		return
	}
	if h.above == nil {
		h.above = map[int64]struct{}{}
	}
	h.above[n] = struct{}{}
}

// all reports whether each number up to upTo was acted on.
func (h *heard) all(upTo int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.known || upTo < h.upTo || upTo-h.upTo > int64(len(h.above)) {
		return false
	}
	for n := h.upTo + 1; n <= upTo; n++ {
		if _, ok := h.above[n]; !ok {
			return false
		}
	}
	return true
}

// passed says that everything up to upTo was acted on.
func (h *heard) passed(upTo int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.upTo, h.known = upTo, true
	for n := range h.above {
		if n <= upTo {
			delete(h.above, n)
		}
	}
}
