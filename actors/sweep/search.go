package sweep

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
)

const (
	queueLimit = 1 << 16
	// echoAfter is the time until gained shards are searched again: a live former owner may
	// have begun work there until it learned of the move.
	echoAfter = time.Second
	// lateAfter is how overdue the work of an entity with an activation is when the sweep
	// wakes it: the activation probably does not know of the work.
	lateAfter = time.Second
)

// search finds the entities of one kind with open work and no activation.
type search struct {
	*feed.Work
	s      *Sweep
	kind   string
	gains  gains
	woken  prometheus.Counter
	queued prometheus.Gauge

	fresh    shards // gained and not searched yet
	again    shards // searched, but the queue had no room for some of the entities found
	echo     shards // gained a moment ago, to be searched again
	echoAt   time.Time
	pass     *pass
	queue    *queue
	taking   takeover
	nextPass time.Time
}

// pass is a search of some shards, page by page.
type pass struct {
	shards []id.Shard
	after  id.UUID
	pages  int  // pages that one tick may read
	gained bool // of gained shards, before all other passes
	late   bool // also finds late entities with an activation
}

// takeover counts the work of gained shards, for the log.
type takeover struct {
	since         time.Time // zero: there is none
	shards, woken int
}

func (s *Sweep) newSearch(k durable.Traits) *search {
	w := *k.Work
	if w.Every <= 0 {
		w.Every = 5 * time.Second
	}
	if w.Page <= 0 {
		w.Page = 2000
	}
	if w.Pages <= 0 {
		w.Pages = 8
	}
	if w.Wakes <= 0 {
		w.Wakes = 1000
	}
	return &search{Work: &w, s: s, kind: k.Name, gains: newGains(), queue: newQueue(queueLimit),
		woken: woken.WithLabelValues(k.Name), queued: queued.WithLabelValues(k.Name)}
}

// once continues the search and wakes some of the entities found. It returns the number of
// entities woken.
func (w *search) once(ctx context.Context) (n int, err error) {
	if !w.s.cfg.Live() {
		return 0, nil
	}
	defer func() { w.woken.Add(float64(n)) }()
	gained, own := w.gains.take(w.s.cfg.Node)
	w.take(gained, own)
	err = w.find(ctx, own)
	for n < w.Wakes {
		f, ok := w.queue.pop()
		if !ok {
			break
		}
		if w.wanted(f) {
			w.wake(f)
			n++
		}
	}
	w.queued.Set(float64(w.queue.n))
	if !w.taking.since.IsZero() {
		w.taking.woken += n
		if err == nil && w.pass == nil && w.queue.n == 0 && w.fresh.empty() && w.again.empty() {
			took := w.s.cfg.Now().Sub(w.taking.since)
			takeovers.Observe(took.Seconds())
			w.s.cfg.Log.Info().Str("kind", w.kind).Int("shards", w.taking.shards).Int("woken", w.taking.woken).Dur("took_ms", took).Msg("shards taken over")
			w.taking = takeover{}
		}
	}
	return n, err
}

// take adds the gained shards.
func (w *search) take(gained shards, own []id.Shard) {
	now := w.s.cfg.Now()
	if w.nextPass.IsZero() {
		w.nextPass = now.Add(w.Every)
	}
	if gained.empty() {
		return
	}
	w.echo.union(gained)
	w.echoAt = now.Add(echoAfter)
	w.fresh.union(gained)
	if w.taking.since.IsZero() {
		w.taking = takeover{since: now}
	}
	w.taking.shards += len(gained.of(own))
}

// find continues the current pass or begins one: over gained shards, over shards whose
// entities had no room in the queue, or over all shards when Every has passed.
func (w *search) find(ctx context.Context, own []id.Shard) error {
	if now := w.s.cfg.Now(); w.pass != nil && !w.pass.gained && (!w.fresh.empty() || w.echoes(now)) {
		w.pass, w.nextPass = nil, now // it starts again after the gained shards
	}
	for pages := 0; ; pages++ {
		if w.pass == nil && !w.begin(own) || pages >= w.pass.pages {
			return nil
		}
		var page feed.Page
		if err := bounded(ctx, func(ctx context.Context) (err error) {
			page, err = w.s.cfg.Rows.Find(ctx, w.Work, w.pass.shards, w.pass.after, w.Page)
			return err
		}); err != nil {
			return err // the next tick continues here
		}
		for _, f := range page.Found {
			if !w.pass.late {
				f.Overdue = 0
			}
			if w.wanted(f) && !w.queue.push(f) {
				w.again.add(f.ID.Shard())
			}
		}
		if w.pass.after = page.Next; !page.More {
			w.pass = nil
		}
	}
}

// begin begins the next pass, if one is due, and reports whether it did.
func (w *search) begin(own []id.Shard) bool {
	now := w.s.cfg.Now()
	if w.queue.n == 0 {
		w.fresh.union(w.again)
		w.again = shards{}
	}
	switch {
	case !w.fresh.empty():
		w.pass = &pass{shards: w.fresh.of(own), pages: gainedPages * w.Pages, gained: true, late: true}
		w.fresh = shards{}
	case w.echoes(now):
		w.pass = &pass{shards: w.echo.of(own), pages: gainedPages * w.Pages, gained: true}
		w.echo = shards{}
	case w.queue.n == 0 && !now.Before(w.nextPass):
		w.pass = &pass{shards: own, pages: w.Pages, late: true}
		w.nextPass = now.Add(w.Every)
	default:
		return false
	}
	return true
}

// echoes reports whether gained shards are due to be searched again.
func (w *search) echoes(now time.Time) bool { return !w.echo.empty() && !now.Before(w.echoAt) }

// wanted reports whether this node wakes the entity: it owns it, and the entity has no
// activation or is late.
func (w *search) wanted(f feed.Found) bool {
	return w.s.cfg.Node.Owns(f.ID.Shard()) &&
		(f.Overdue >= lateAfter || !w.s.cfg.Node.Active(cluster.Address{Kind: w.kind, Tenant: f.Tenant, ID: f.ID}))
}

// wake wakes the entity, or the one that it names instead.
func (w *search) wake(f feed.Found) {
	to := cluster.Address{Kind: w.kind, Tenant: f.Tenant, ID: f.ID}
	if f.Through != nil {
		to.Kind, to.ID = w.Through, *f.Through
	}
	w.s.cfg.Node.Tell(to, durable.Wake{})
}
