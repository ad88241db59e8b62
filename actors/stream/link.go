package stream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
)

// Peers are the members of the cluster (cluster.Node).
type Peers interface {
	Member() id.MemberID
	Owner(s id.Shard) id.MemberID
	OnChange(f func(cluster.Change))
	Call(ctx context.Context, to id.MemberID, service string, m any) (any, error)
}

// Carrier sends messages to other members. Messages of one sender to one member keep their
// order; any may be lost or repeated.
type Carrier interface {
	// Send does not block. m is shared and must not be changed.
	Send(to id.MemberID, m []byte)
	// Receive sets the callbacks: take gets the messages for this member, and lost is called
	// when some may be missing. It is called once, before anything else.
	Receive(take func(m []byte), lost func())
	// Up reports whether messages can be sent and received.
	Up() bool
}

// Limits of one Watch.
const (
	maxBegin    = 256
	maxRenew    = 4096
	callTimeout = 2 * time.Second
)

// link holds this node's mirrors of one member. At most one call is in flight.
type link struct {
	all *Hubs
	to  id.MemberID

	mu      sync.Mutex // guards the fields below; taken with a hub's lock held
	want    []*mirror  // to request
	due     []*mirror  // to renew
	end     []uint64   // feeds to end
	have    map[*mirror]struct{}
	heard   time.Time // when the member last answered
	failing bool
	busy    bool
}

// ask requests m from a member. Like the functions below, it may be called with a hub's lock
// held. A link with work to do stays.
func (hs *Hubs) ask(to id.MemberID, m *mirror) {
	hs.linking.Lock()
	defer hs.linking.Unlock()
	l := hs.links[to]
	if l == nil {
		l = &link{all: hs, to: to, have: map[*mirror]struct{}{}, heard: time.Now()}
		hs.links[to] = l
	}
	m.link = l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want = append(l.want, m)
	l.work()
}

// work starts the link's goroutine unless it is running; l.mu is held.
func (l *link) work() {
	if !l.busy {
		l.busy = l.all.spawn(l.run)
	}
}

// attach keeps m renewed.
func (l *link) attach(m *mirror) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.have[m] = struct{}{}
	watchesOut.Inc()
}

// forget reverts attach.
func (l *link) forget(m *mirror) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.have[m]; ok {
		delete(l.have, m)
		watchesOut.Dec()
	}
}

// stopFeed asks the member to stop a feed.
func (l *link) stopFeed(feed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, feed)
	l.work()
}

// tick renews the link's mirrors, and drops those that were not renewed for long.
func (l *link) tick(now time.Time) {
	l.mu.Lock()
	var silent []*mirror
	if len(l.have) > 0 {
		if now.Sub(l.heard) > l.all.silence {
			for m := range l.have {
				silent = append(silent, m)
			}
		} else if len(l.due) == 0 {
			for m := range l.have {
				l.due = append(l.due, m)
			}
			l.work()
		}
	}
	l.mu.Unlock()
	for _, m := range silent {
		m.lose()
	}
}

// idle reports whether the link has no work left and can go.
func (l *link) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.busy && len(l.have) == 0 && len(l.want) == 0 && len(l.end) == 0
}

// mirrors returns the link's mirrors.
func (l *link) mirrors() []*mirror {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*mirror, 0, len(l.have))
	for m := range l.have {
		out = append(out, m)
	}
	return out
}

// run does the link's work until none is left.
func (l *link) run() {
	for {
		l.mu.Lock()
		if len(l.want) == 0 && len(l.due) == 0 && len(l.end) == 0 || l.all.life.Err() != nil {
			l.busy = false
			l.mu.Unlock()
			return
		}
		due, end := first(&l.due, maxRenew), first(&l.end, maxRenew)
		var want []*mirror
		if len(l.end) == 0 { // a feed that is begun must not be ended by a later call
			want = first(&l.want, maxBegin)
		}
		l.mu.Unlock()
		l.exchange(want, due, end)
	}
}

// first removes up to n elements from the front of s.
func first[T any](s *[]T, n int) []T {
	n = min(n, len(*s))
	out := (*s)[:n:n]
	if *s = (*s)[n:]; len(*s) == 0 {
		*s = nil
	}
	return out
}

// exchange makes one call. Mirrors that have been dropped since they were requested are left
// out: a member has one feed of a run, so stopping that of a dropped mirror would stop that of
// its successor.
func (l *link) exchange(want, due []*mirror, end []uint64) {
	want = slices.DeleteFunc(want, func(m *mirror) bool { return !m.wanted() })
	if len(want)+len(due)+len(end) == 0 {
		return
	}
	ask := Watch{End: end}
	for _, m := range want {
		ask.Begin = append(ask.Begin, WatchedRun{m.hub.key.tenant, m.hub.key.run})
	}
	for _, m := range due {
		ask.Renew = append(ask.Renew, m.feed)
	}
	ctx, cancel := context.WithTimeout(l.all.life, callTimeout)
	v, err := l.all.peers.Call(ctx, l.to, Service, ask)
	cancel()
	got, ok := v.(Watched)
	if err == nil && (!ok || len(got.Renewed) != len(due) || len(got.Begun) > len(want) || len(want) > 0 && len(got.Begun) == 0) {
		err = fmt.Errorf("%T is not an answer to a watch", v)
	}
	l.mu.Lock()
	fails := err != nil && !l.failing
	l.failing = err != nil
	if err == nil {
		l.heard = time.Now()
	}
	l.mu.Unlock()
	if err != nil {
		if fails && l.all.life.Err() == nil {
			l.all.log.Warn().Err(err).Stringer("node", l.to).Msg("cannot watch runs of a member")
		}
		for _, m := range want {
			m.refused()
		}
		return // tick requests again, or drops, what was not renewed
	}
	for i, m := range want[:len(got.Begun)] {
		m.install(got.Begun[i])
	}
	if rest := want[len(got.Begun):]; len(rest) > 0 {
		l.mu.Lock()
		l.want = append(rest, l.want...)
		l.mu.Unlock()
	}
	var behind []*mirror
	for i, m := range due {
		if m.renewed(got.Renewed[i]) {
			behind = append(behind, m)
		}
	}
	if len(behind) > 0 {
		l.all.node.After(l.all.grace, func() {
			l.all.spawn(func() {
				for _, m := range behind {
					m.overdue()
				}
			})
		})
	}
}

// changed handles a new member list.
func (hs *Hubs) changed(cluster.Change) {
	for s := range id.Shard(id.Shards) {
		if hs.peers.Owner(s) != hs.self {
			hs.left[s].Add(1)
		}
	}
	select {
	case hs.moved <- struct{}{}:
	default:
	}
}

// lost drops every mirror: messages to this node may be missing.
func (hs *Hubs) lost() {
	for _, l := range hs.allLinks() {
		for _, m := range l.mirrors() {
			m.lose()
		}
	}
}

// review brings every hub in line with the current owner of its run. A mirror of another node
// is dropped, unless the run is finishing work there. A run that has moved away has no
// publisher here any more (its activation ends without telling the hub). For every run with
// readers and without a publisher a mirror is requested at once.
func (hs *Hubs) review() {
	for _, h := range hs.allHubs() {
		h.mu.Lock()
		if h.gone {
			h.mu.Unlock()
			continue
		}
		h.aim()
		h.pause = 0
		if h.owned && h.mirror == nil && (!hs.mine(h.key) || h.left != hs.left[h.key.run.Shard()].Load() && !hs.finishes(h.key)) {
			h.yield()
		}
		h.want()
		h.release()
	}
}

// tend keeps mirrors and outlets up to date, independent of the database.
func (hs *Hubs) tend() {
	tick := time.NewTicker(hs.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			hs.renew()
		case <-hs.moved:
			hs.review()
		case <-hs.life.Done():
			return
		}
	}
}

// renew renews the mirrors and ends the watches that were not renewed.
func (hs *Hubs) renew() {
	now := time.Now()
	for _, l := range hs.allLinks() {
		l.tick(now)
	}
	hs.linking.Lock()
	for to, l := range hs.links {
		if l.idle() {
			delete(hs.links, to)
		}
	}
	hs.linking.Unlock()
	hs.expireWatches(now)
}

func (hs *Hubs) allLinks() []*link {
	hs.linking.Lock()
	defer hs.linking.Unlock()
	out := make([]*link, 0, len(hs.links))
	for _, l := range hs.links {
		out = append(out, l)
	}
	return out
}
