package stream

import (
	"sync"
	"time"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Bytes of facts that replays hold until their clients have taken the frames. The frames take
// about three times as much.
const (
	smallReplay = 64 << 10  // not more than each open stream may keep for its client anyway
	replaysEach = 16 << 20  // of a tenant on this node
	replaysAll  = 128 << 20 // of this node
)

// replays counts what the replays of this node hold. A tenant without one may always begin
// one, however large it is and however much the others hold. Small ones are not counted.
type replays struct {
	mu  sync.Mutex // guards the fields below
	all int64
	of  map[id.TenantID]int64
}

// take begins a replay of n bytes. The error is RATE_LIMITED.
func (p *replays) take(t id.TenantID, n int64) error {
	if n == 0 { // small: opened whatever the others hold
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[t] > 0 && (p.of[t]+n > replaysEach || p.all+n > replaysAll) {
		return problem.RateLimited("The tenant has large replays of runs open, which their clients have not read yet. "+
			"Read or close one of them first (scope: streams).", time.Second)
	}
	p.add(t, n)
	return nil
}

// change changes the bytes of a replay that has begun.
func (p *replays) change(t id.TenantID, by int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(t, by)
}

func (p *replays) add(t id.TenantID, n int64) {
	p.all += n
	if p.of[t] += n; p.of[t] == 0 {
		delete(p.of, t)
	}
}

// weight returns what a replay of these facts counts, with the text of the unfinished step.
func (m *mark) weight(facts *event.Facts) int64 {
	n := facts.Bytes() + int64(len(m.said))
	if n <= smallReplay {
		return 0
	}
	return n
}

// hold begins to count the Reader's replay, or counts it anew after another read. With the
// hub's lock held.
func (r *Reader) hold(n int64) {
	r.all.replays.change(r.hub.key.tenant, n-r.held)
	r.held = n
}
