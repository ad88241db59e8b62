package sweep

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Rows are read and claimed over all tenants (feed.Sweep).
type Rows interface {
	ReleaseTimers(ctx context.Context, shards []id.Shard) error
	ClaimTimers(ctx context.Context, c feed.Claim) ([]feed.Timer, error)
	ReturnTimers(ctx context.Context, timers []feed.Timer) error
	OpenRuns(ctx context.Context, shards []id.Shard, after id.RunID, limit int) (feed.Page, error)
	DueEndpoints(ctx context.Context, shards []id.Shard, after id.WebhookID, limit int) (feed.EndpointPage, error)
	Retentions() []feed.Retention
	DeletedPeople(ctx context.Context, after feed.Person, limit int) ([]feed.Person, error)
	LostThreads(ctx context.Context, people []feed.Person, shards []id.Shard, limit int) ([]feed.LostThread, error)
	EraseRuns(ctx context.Context, people []feed.Person, limit int, settled time.Duration) (int, error)
	EraseThreads(ctx context.Context, people []feed.Person, limit int, settled time.Duration) (int, error)
	ErasePeople(ctx context.Context, people []feed.Person, age time.Duration) (int, error)
}

// Node is where the owners are.
type Node interface {
	// Shards are those of this node, in ascending order.
	Shards() []id.Shard
	Owns(s id.Shard) bool
	Active(a cluster.Address) bool
	Tell(a cluster.Address, m any)
}

// Config is what a sweep needs. Zero values mean the defaults beside them.
type Config struct {
	Rows Rows
	Node Node
	Log  zerolog.Logger
	// Member is the lease under which timers are claimed; none: claims need none.
	Member id.MemberID
	// Suspended, where set, says that nothing is to be begun now.
	Suspended func() bool
	// Files, where set, are looked through for what no row names.
	Files Files
	// FilesEvery is the time between two looks at unfinished files, 10 s.
	FilesEvery time.Duration
	// Every is the time between two ticks, 250 ms: expiry happens within a second
	// of its time (open-parts.md, Questions settled).
	Every time.Duration
	// RunsEvery is the time between two passes over the open runs, 5 s.
	RunsEvery time.Duration
	// EndpointsEvery is the time between two passes over the webhook endpoints that
	// have something pending, 1 s.
	EndpointsEvery time.Duration
	// RetainEvery is the time between two passes of retention over a kind of rows,
	// 1 min; a batch that was full is followed by another after Every.
	RetainEvery time.Duration
	// EraseEvery is the time between two looks at what deleted end users left behind,
	// 5 s from the end of the first; one that leaves something is followed sooner.
	EraseEvery time.Duration
	Now        func() time.Time
}

// What is done at most in one tick.
const (
	claimBatch  = 500
	claimRounds = 20
	runsPage    = 2000
	gainedPages = 32 // of shards that were gained just now
	runsPages   = 8  // of others
	wakes       = 1000

	endpointsPage  = 1000
	endpointsPages = 4
)

const (
	claimHold   = 10 * time.Second
	queueLimit  = 1 << 16
	onceTimeout = 30 * time.Second
	pageTimeout = 5 * time.Second
	// echoAfter is when the open runs of gained shards are looked at once more: a
	// former owner that lives may have begun some until it heard of the move.
	echoAfter = time.Second
	// lateAfter is how overdue a delivery is of which an activation that lives has not
	// heard, as it seems.
	lateAfter = time.Second
)

// Sweep is the loops of one node. Timers, open runs and webhook endpoints have a loop
// each, and so has every kind of retention, so that none waits for another's statement.
type Sweep struct {
	cfg Config

	// Each of these hears what was gained for itself.
	toTimers, toRuns, toEndpoints gains

	claimed shards // touched by the loop of the timers only: gained, and the claims on their timers hold still

	// Touched by the loop of the open runs only.
	fresh    shards // gained, and their open runs were not looked at
	again    shards // looked at, and not all of what was found had room
	echo     shards // gained a moment ago, to be looked at once more
	echoAt   time.Time
	pass     *pass
	queue    *queue
	taking   takeover
	nextPass time.Time

	// Touched by the loop of the endpoints only.
	endpointsFrom *id.WebhookID // where the pass over the endpoints goes on; nil: there is none
	nextEndpoints time.Time

	retentions []*retention // each touched by its own loop only
	erasure    erasure      // touched by its own loop only

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// gains are the shards that one loop has yet to hear of.
type gains struct {
	bell chan struct{} // capacity 1: gained is not empty

	mu     sync.Mutex // guards the fields below
	begun  bool
	gained shards
}

func (g *gains) add(gained []id.Shard) {
	g.mu.Lock()
	for _, n := range gained {
		g.gained.add(n)
	}
	g.mu.Unlock()
	select {
	case g.bell <- struct{}{}:
	default:
	}
}

// take returns what was gained since the last call, at the first one everything, and the
// shards of the node. The gains are read first: the node has all of them by then.
func (g *gains) take(node Node) (gained shards, own []id.Shard) {
	g.mu.Lock()
	gained, g.gained = g.gained, shards{}
	first := !g.begun
	g.begun = true
	g.mu.Unlock()
	own = node.Shards()
	if first {
		for _, n := range own {
			gained.add(n)
		}
	}
	return gained, own
}

// pass goes over the open runs of some shards, page by page.
type pass struct {
	shards []id.Shard
	after  id.RunID
	gained bool
}

// takeover is the work that gained shards brought, for the log.
type takeover struct {
	since         time.Time // zero: there is none
	shards, woken int
}

// New makes a sweep that rests.
func New(cfg Config) *Sweep {
	if cfg.Every <= 0 {
		cfg.Every = 250 * time.Millisecond
	}
	if cfg.RunsEvery <= 0 {
		cfg.RunsEvery = 5 * time.Second
	}
	if cfg.EndpointsEvery <= 0 {
		cfg.EndpointsEvery = time.Second
	}
	if cfg.RetainEvery <= 0 {
		cfg.RetainEvery = time.Minute
	}
	if cfg.FilesEvery <= 0 {
		cfg.FilesEvery = 10 * time.Second
	}
	if cfg.EraseEvery <= 0 {
		cfg.EraseEvery = 5 * time.Second
	}
	if cfg.Suspended == nil {
		cfg.Suspended = func() bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Sweep{cfg: cfg, queue: newQueue(queueLimit), erasure: newErasure()}
	for _, g := range []*gains{&s.toTimers, &s.toRuns, &s.toEndpoints} {
		g.bell = make(chan struct{}, 1)
	}
	for _, r := range cfg.Rows.Retentions() {
		s.retentions = append(s.retentions, &retention{Retention: r, batch: retainBatch})
	}
	return s
}

// Start begins to sweep. The shards that the node has then are gained.
func (s *Sweep) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	for _, l := range []struct {
		name string
		bell <-chan struct{}
		once func(context.Context) (int, error)
	}{
		{"timers", s.toTimers.bell, s.timers},
		{"open runs", s.toRuns.bell, s.runs},
		{"webhook endpoints", s.toEndpoints.bell, s.endpoints},
	} {
		s.wg.Go(func() { s.loop(ctx, l.name, l.bell, l.once) })
	}
	s.wg.Go(func() { s.erasing(ctx) })
	if s.cfg.Files != nil {
		s.wg.Go(func() { s.tidying(ctx) })
	}
	share := make(chan struct{}, retainConns)
	for _, r := range s.retentions {
		s.wg.Go(func() { s.retaining(ctx, r, share) })
	}
	return nil
}

// Stop ends that; what it was doing is given up.
func (s *Sweep) Stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.wg.Wait()
}

// Gained says that the node owns these shards from now on: what their former
// owner was told may have died with it, so all of it is done again at once. It
// does not block.
func (s *Sweep) Gained(gained []id.Shard) {
	if len(gained) == 0 {
		return
	}
	s.toTimers.add(gained)
	s.toRuns.add(gained)
	s.toEndpoints.add(gained)
}

// loop calls once every Every, and when its bell rings.
func (s *Sweep) loop(ctx context.Context, name string, bell <-chan struct{}, once func(context.Context) (int, error)) {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	var failing trouble
	for {
		bounded, cancel := context.WithTimeout(ctx, onceTimeout)
		_, err := once(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		failing.note(s.cfg.Log, name, err)
		select {
		case <-tick.C:
		case <-bell:
		case <-ctx.Done():
			return
		}
	}
}

// trouble is whether a loop fails just now: its beginning and its end are logged.
type trouble bool

func (t *trouble) note(log zerolog.Logger, who string, err error) {
	if err != nil {
		failures.Inc()
		if !*t {
			log.Warn().Err(err).Str("loop", who).Msg("a loop of the sweep cannot do its work")
		}
	} else if *t {
		log.Info().Str("loop", who).Msg("a loop of the sweep works again")
	}
	*t = err != nil
}

// timers claims due timers and tells their owners. It returns how many.
func (s *Sweep) timers(ctx context.Context) (n int, err error) {
	if s.cfg.Suspended() {
		return 0, nil
	}
	defer func() { timersTold.Add(float64(n)) }()
	gained, own := s.toTimers.take(s.cfg.Node)
	if s.claimed.union(gained); !s.claimed.empty() {
		if held := s.claimed.of(own); len(held) > 0 {
			if err := s.cfg.Rows.ReleaseTimers(ctx, held); err != nil {
				return 0, err
			}
		}
		s.claimed = shards{}
	}
	for range claimRounds {
		due, err := s.cfg.Rows.ClaimTimers(ctx, feed.Claim{Shards: own, Limit: claimBatch, Hold: claimHold, By: s.cfg.Member})
		var moved []feed.Timer
		for _, t := range due {
			if !s.cfg.Node.Owns(t.Entity.Shard()) { // since own was read
				moved = append(moved, t)
				continue
			}
			s.cfg.Node.Tell(cluster.Address{Kind: t.Kind, Tenant: t.Tenant, ID: t.Entity}, durable.TimerDue{Name: t.Name})
			n++
		}
		if len(moved) > 0 {
			err = errors.Join(err, s.cfg.Rows.ReturnTimers(ctx, moved))
		}
		if err != nil {
			return n, err
		}
		if len(due) < claimBatch || len(moved) > 0 {
			break
		}
	}
	return n, nil
}

// runs looks for open runs that nobody works on and wakes some of those that
// were found. It returns how many.
func (s *Sweep) runs(ctx context.Context) (n int, err error) {
	if s.cfg.Suspended() {
		return 0, nil
	}
	defer func() { runsWoken.Add(float64(n)) }()
	gained, own := s.toRuns.take(s.cfg.Node)
	s.take(gained, own)
	err = s.find(ctx, own)
	for n < wakes {
		o, ok := s.queue.pop()
		if !ok {
			break
		}
		if s.wanted(o) {
			s.wake(o)
			n++
		}
	}
	runsQueued.Set(float64(s.queue.n))
	if !s.taking.since.IsZero() {
		s.taking.woken += n
		if err == nil && s.pass == nil && s.queue.n == 0 && s.fresh.empty() && s.again.empty() {
			took := s.cfg.Now().Sub(s.taking.since)
			takeovers.Observe(took.Seconds())
			s.cfg.Log.Info().Int("shards", s.taking.shards).Int("runs", s.taking.woken).Dur("took_ms", took).Msg("shards taken over")
			s.taking = takeover{}
		}
	}
	return n, err
}

// take notes what was gained.
func (s *Sweep) take(gained shards, own []id.Shard) {
	now := s.cfg.Now()
	if s.nextPass.IsZero() {
		s.nextPass = now.Add(s.cfg.RunsEvery)
	}
	if !s.echo.empty() && !now.Before(s.echoAt) {
		s.fresh.union(s.echo)
		s.echo = shards{}
	}
	if gained.empty() {
		return
	}
	s.echo.union(gained)
	s.echoAt = now.Add(echoAfter)
	s.fresh.union(gained)
	if s.taking.since.IsZero() {
		s.taking = takeover{since: now}
	}
	s.taking.shards += len(gained.of(own))
}

// find goes on with the pass over the open runs, or begins one: over what was
// gained, over what had no room, or over everything when its time has come.
func (s *Sweep) find(ctx context.Context, own []id.Shard) error {
	if s.pass != nil && !s.pass.gained && !s.fresh.empty() {
		s.pass, s.nextPass = nil, s.cfg.Now() // it begins anew afterwards
	}
	for pages := 0; ; pages++ {
		if s.pass == nil && !s.begin(own) || pages >= s.pass.pages() {
			return nil
		}
		bounded, cancel := context.WithTimeout(ctx, pageTimeout)
		page, err := s.cfg.Rows.OpenRuns(bounded, s.pass.shards, s.pass.after, runsPage)
		cancel()
		if err != nil {
			return err // the next tick goes on from here
		}
		for _, o := range page.Runs {
			if s.wanted(o) && !s.queue.push(o) {
				s.again.add(o.Run.Shard())
			}
		}
		if s.pass.after = page.Next; !page.More {
			s.pass = nil
		}
	}
}

// begin reports whether there is a pass to begin.
func (s *Sweep) begin(own []id.Shard) bool {
	now := s.cfg.Now()
	if s.queue.n == 0 {
		s.fresh.union(s.again)
		s.again = shards{}
	}
	over, gained := own, true
	switch {
	case !s.fresh.empty():
		over, s.fresh = s.fresh.of(own), shards{}
	case s.queue.n == 0 && !now.Before(s.nextPass):
		gained, s.nextPass = false, now.Add(s.cfg.RunsEvery)
	default:
		return false
	}
	s.pass = &pass{shards: over, gained: gained}
	return true
}

// pages is how many of them a tick may read.
func (p *pass) pages() int {
	if p.gained {
		return gainedPages
	}
	return runsPages
}

// wanted reports whether this node is to wake the run: its own and not alive.
func (s *Sweep) wanted(o feed.OpenRun) bool {
	return s.cfg.Node.Owns(o.Run.Shard()) && !s.cfg.Node.Active(cluster.Address{Kind: msg.KindRun, Tenant: o.Tenant, ID: o.Run.UUID})
}

// wake tells the one who can make the run go on.
func (s *Sweep) wake(o feed.OpenRun) {
	to := cluster.Address{Kind: msg.KindRun, Tenant: o.Tenant, ID: o.Run.UUID}
	if o.Held && o.Thread != nil {
		to = cluster.Address{Kind: msg.KindThread, Tenant: o.Tenant, ID: o.Thread.UUID}
	}
	s.cfg.Node.Tell(to, durable.Wake{})
}

// endpoints tells the webhook endpoints that have a delivery to begin and, as it
// seems, do not know it: they have no activation here, or have let it become late.
// It returns how many.
func (s *Sweep) endpoints(ctx context.Context) (n int, err error) {
	if s.cfg.Suspended() {
		return 0, nil
	}
	defer func() { endpointsTold.Add(float64(n)) }()
	now := s.cfg.Now()
	gained, own := s.toEndpoints.take(s.cfg.Node)
	if !gained.empty() {
		s.endpointsFrom, s.nextEndpoints = nil, now
	}
	if s.endpointsFrom == nil {
		if now.Before(s.nextEndpoints) {
			return 0, nil
		}
		s.endpointsFrom, s.nextEndpoints = &id.WebhookID{}, now.Add(s.cfg.EndpointsEvery)
	}
	for range endpointsPages {
		bounded, cancel := context.WithTimeout(ctx, pageTimeout)
		page, err := s.cfg.Rows.DueEndpoints(bounded, own, *s.endpointsFrom, endpointsPage)
		cancel()
		if err != nil {
			return n, err // the next tick goes on from here
		}
		for _, e := range page.Due {
			to := cluster.Address{Kind: msg.KindDelivery, Tenant: e.Tenant, ID: e.Webhook.UUID}
			if s.cfg.Node.Owns(e.Webhook.Shard()) && (e.Overdue >= lateAfter || !s.cfg.Node.Active(to)) {
				s.cfg.Node.Tell(to, durable.Wake{})
				n++
			}
		}
		if !page.More {
			s.endpointsFrom = nil
			break
		}
		s.endpointsFrom = &page.Next
	}
	return n, nil
}
