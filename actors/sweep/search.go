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
	// echoAfter is when the entities of gained shards are looked at once more: a former
	// owner that lives may have begun some until it heard of the move.
	echoAfter = time.Second
	// lateAfter is how overdue the work of an entity is that has an activation, but has not
	// heard of the work, as it seems.
	lateAfter = time.Second
)

// search finds the entities of one kind that have something to do and no activation.
type search struct {
	*feed.Work
	s      *Sweep
	kind   string
	gains  gains
	woken  prometheus.Counter
	queued prometheus.Gauge

	fresh    shards // gained, and their entities were not looked at
	again    shards // looked at, and not all of what was found had room
	echo     shards // gained a moment ago, to be looked at once more
	echoAt   time.Time
	pass     *pass
	queue    *queue
	taking   takeover
	nextPass time.Time
}

// pass goes over the entities of some shards, page by page.
type pass struct {
	shards []id.Shard
	after  id.UUID
	pages  int  // that a tick may read
	gained bool // before all other passes
	late   bool // finds those, too, that have an activation and are late
}

// takeover is the work that gained shards brought, for the log.
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

// once looks for entities that nobody works on and wakes some of those that were found. It
// returns how many.
func (w *search) once(ctx context.Context) (n int, err error) {
	if w.s.cfg.Suspended() {
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

// take notes what was gained.
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

// find goes on with the pass, or begins one: over what was gained, over what had no room,
// or over everything when its time has come.
func (w *search) find(ctx context.Context, own []id.Shard) error {
	if now := w.s.cfg.Now(); w.pass != nil && !w.pass.gained && (!w.fresh.empty() || w.echoes(now)) {
		w.pass, w.nextPass = nil, now // it begins anew afterwards
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
			return err // the next tick goes on from here
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

// begin reports whether there is a pass to begin.
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

// echoes reports whether the time has come to look once more at what was gained.
func (w *search) echoes(now time.Time) bool { return !w.echo.empty() && !now.Before(w.echoAt) }

// wanted reports whether this node is to wake the entity: its own, and not alive or late.
func (w *search) wanted(f feed.Found) bool {
	return w.s.cfg.Node.Owns(f.ID.Shard()) &&
		(f.Overdue >= lateAfter || !w.s.cfg.Node.Active(cluster.Address{Kind: w.kind, Tenant: f.Tenant, ID: f.ID}))
}

// wake tells the entity, or the one through which it is woken.
func (w *search) wake(f feed.Found) {
	to := cluster.Address{Kind: w.kind, Tenant: f.Tenant, ID: f.ID}
	if f.Through != nil {
		to.Kind, to.ID = w.Through, *f.Through
	}
	w.s.cfg.Node.Tell(to, durable.Wake{})
}
