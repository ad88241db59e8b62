package notice

import (
	"context"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// peer is another member: what this node watches there, and what it is owed.
type peer struct {
	b    *Board
	id   id.MemberID
	bell chan struct{}
	end  context.CancelFunc

	// Guarded by Board.mu.
	ok      bool      // it reports the changes of all tenants up to acked
	acked   uint64    // the version that it has acknowledged
	renewed time.Time // when it did last
	watched time.Time // of the next Watch
	lostAt  time.Time // when readers were told that it does not answer

	heard  uint64    // the number of its last Watch
	until  time.Time // of its own watch; zero: it watches nothing
	tenant map[id.TenantID]struct{}
	out    map[id.TenantID]*names
	due    time.Time // of the next Hints; zero: nothing is owed
}

// Follow sets the other members. It does not block.
func (b *Board) Follow(others []id.MemberID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped || b.peers == nil {
		return
	}
	live := map[id.MemberID]bool{}
	for _, m := range others {
		live[m] = true
		if b.members[m] == nil {
			ctx, cancel := context.WithCancel(b.life)
			p := &peer{b: b, id: m, bell: make(chan struct{}, 1), end: cancel, tenant: map[id.TenantID]struct{}{}, out: map[id.TenantID]*names{}}
			b.members[m] = p
			b.wg.Go(func() { p.loop(ctx) })
			p.kick()
		}
	}
	for m, p := range b.members {
		if !live[m] {
			p.end()
			p.forget()
			delete(b.members, m)
			b.loseAll(true) // what it committed last may not have been reported
			b.awake()
		}
	}
}

// awake wakes readers that wait for members; mu is held.
func (b *Board) awake() {
	close(b.acked)
	b.acked = make(chan struct{})
}

// Serve answers the calls of other boards.
func (b *Board) Serve(_ context.Context, from id.MemberID, m any) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch m := m.(type) {
	case Watch:
		p := b.members[from]
		if p == nil {
			return nil, fmt.Errorf("notice: %s is not a member here yet", from)
		}
		if m.Number != 0 && m.Number <= p.heard {
			break
		}
		p.heard = m.Number
		p.watch(m.Tenants)
	case Hints:
		for _, h := range m.Tenants {
			if d := b.desks[h.Tenant]; d != nil {
				b.add(d, func(n *names) {
					n.lose(h.Lost & All)
					if h.Managers {
						n.managers++
					}
					for _, c := range h.Changes {
						n.add(c)
					}
				})
			}
		}
	default:
		return nil, fmt.Errorf("notice: unexpected %T", m)
	}
	return msg.Done{}, nil
}

// watch replaces what the peer watches; mu is held.
func (p *peer) watch(tenants []id.TenantID) {
	b := p.b
	before := p.tenant
	p.tenant = make(map[id.TenantID]struct{}, len(tenants))
	for _, t := range tenants {
		p.tenant[t] = struct{}{}
		if _, there := before[t]; there {
			delete(before, t)
			continue
		}
		if b.watchers[t] == nil {
			b.watchers[t] = map[id.MemberID]struct{}{}
		}
		b.watchers[t][p.id] = struct{}{}
		b.wanted.Store(t, struct{}{})
	}
	p.until = time.Now().Add(watchLife)
	p.drop(before)
	if len(tenants) > 0 {
		p.kick() // its loop sees the watch end
	}
}

// drop ends the peer's watch of tenants; mu is held.
func (p *peer) drop(tenants map[id.TenantID]struct{}) {
	for t := range tenants {
		delete(p.b.watchers[t], p.id)
		delete(p.out, t)
		p.b.unwant(t)
	}
}

// forget ends the peer's watch; mu is held.
func (p *peer) forget() {
	p.drop(p.tenant)
	p.tenant, p.until, p.due = map[id.TenantID]struct{}{}, time.Time{}, time.Time{}
	clear(p.out)
}

// add owes the peer a change; mu is held.
func (p *peer) add(t id.TenantID, c msg.Change) {
	n := p.out[t]
	if n == nil {
		n = newNames()
		p.out[t] = n
	}
	n.add(c)
	if p.due.IsZero() {
		p.due = time.Now().Add(collect)
		p.kick()
	}
}

func (p *peer) kick() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// loop calls the peer's board until the member is gone.
func (p *peer) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.renew(ctx)
		p.report(ctx)
		timer.Reset(max(time.Until(p.next()), 0))
		select {
		case <-timer.C:
		case <-p.bell:
		case <-ctx.Done():
			return
		}
	}
}

// next returns when the loop has something to do.
func (p *peer) next() time.Time {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	at := time.Now().Add(time.Hour)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if len(b.desks) > 0 {
		earlier(p.watched)
		if p.ok && p.acked < b.version {
			earlier(time.Now())
		}
	}
	earlier(p.due)
	earlier(p.until)
	return at
}

// renew watches the tenants with readers here, if it is time or there are new ones.
func (p *peer) renew(ctx context.Context) {
	b := p.b
	b.mu.Lock()
	now := time.Now()
	if len(b.desks) == 0 || now.Before(p.watched) && (!p.ok || p.acked == b.version) {
		b.mu.Unlock()
		return
	}
	version := b.version
	b.watches++
	m := Watch{Number: b.watches, Tenants: make([]id.TenantID, 0, len(b.desks))}
	for t := range b.desks {
		m.Tenants = append(m.Tenants, t)
	}
	b.mu.Unlock()
	err := p.call(ctx, m)
	b.mu.Lock()
	defer b.mu.Unlock()
	now = time.Now()
	if ctx.Err() != nil {
		return
	}
	if len(b.desks) == 0 { // the last reader went meanwhile: the next one begins with a Watch
		p.ok, p.watched = false, time.Time{}
		return
	}
	if err != nil {
		if p.ok || now.Sub(p.lostAt) >= pollEvery {
			b.loseAll(false)
			p.lostAt = now
		}
		p.ok, p.watched = false, now.Add(retryAfter)
		return
	}
	if !p.ok || now.Sub(p.renewed) > watchLife/2 {
		b.loseAll(true) // it may have reported nothing until now
	}
	p.ok, p.acked, p.renewed, p.watched = true, version, now, now.Add(watchEvery)
	b.awake()
}

// report sends the peer the changes that it is owed, if it is time.
func (p *peer) report(ctx context.Context) {
	b := p.b
	b.mu.Lock()
	now := time.Now()
	if !p.until.IsZero() && !now.Before(p.until) {
		p.forget()
	}
	if p.due.IsZero() || now.Before(p.due) {
		b.mu.Unlock()
		return
	}
	out := p.out
	p.out, p.due = map[id.TenantID]*names{}, time.Time{}
	m := Hints{}
	for t, n := range out {
		h := Hint{Tenant: t, Lost: n.lost, Managers: n.managers > 0}
		for c := range n.changed {
			h.Changes = append(h.Changes, c)
		}
		m.Tenants = append(m.Tenants, h)
	}
	b.mu.Unlock()
	if err := p.call(ctx, m); err == nil || ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for t, n := range out { // once more
		if _, watches := p.tenant[t]; !watches {
			continue
		}
		if now := p.out[t]; now != nil {
			n.merge(now)
		}
		p.out[t] = n
		p.due = time.Now().Add(retryAfter)
	}
}

func (p *peer) call(ctx context.Context, m any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := p.b.peers.Call(ctx, p.id, Service, m)
	return err
}
