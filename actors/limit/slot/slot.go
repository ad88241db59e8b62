package slot

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Kind is the kind of the actors that grant slots.
const Kind = "slots"

// Address returns the address of a tenant's slots.
func Address(t id.TenantID) cluster.Address {
	return cluster.Address{Kind: Kind, Tenant: t, ID: t.UUID}
}

const (
	// grace is how long a run that was granted a slot may take to be running, or to ask for it
	// again: its node repeats that every wishEvery.
	grace = 15 * time.Second
	// reconcileEvery is how often slots are compared with Postgres while runs wait for them.
	reconcileEvery = 5 * time.Second
	// startEvery is the same while runs are starting.
	startEvery = time.Second
	// settleTime is how long slots that may have been on another node wait before they
	// grant. The runs that the other node granted are running by then, or ask again.
	settleTime    = 500 * time.Millisecond
	defaultAgreed = 15 * time.Second
	defaultRest   = 10 * time.Second
	readRetry     = 250 * time.Millisecond
	readTimeout   = 5 * time.Second
)

// Running reads which runs of a tenant are running.
type Running interface {
	Running(ctx context.Context, t id.TenantID) ([]id.RunID, error)
}

// Config is what slots need.
type Config struct {
	Limit   int // SVC_RUN_CONCURRENCY
	Running Running
	Agreed  time.Duration    // how long after a change of the member list another member may still follow the former list; 0: 15 s
	Rest    time.Duration    // how long unused slots stay in memory; 0: 10 s
	Now     func() time.Time // a clock that never steps, for tests; nil: this machine's monotonic one
	Log     zerolog.Logger
}

// New makes the kind, for node.Register(Kind, …).
func New(cfg Config) func(cluster.Address) cluster.Behavior {
	if cfg.Agreed <= 0 {
		cfg.Agreed = defaultAgreed
	}
	if cfg.Rest <= 0 {
		cfg.Rest = defaultRest
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return func(cluster.Address) cluster.Behavior {
		s := &slotActor{cfg: cfg, slots: newSlots(cfg.Limit)}
		s.slots.unknown = true
		return s
	}
}

// slotActor is the slots of one tenant.
type slotActor struct {
	cfg      Config
	slots    slots
	cancel   context.CancelFunc // of the read in flight
	reading  bool
	ended    []id.RunID // runs that released their slots during the read
	settled  bool       // a former owner of the slots grants nothing any more
	armed    bool
	retiring bool      // a retire is on its way
	used     time.Time // when the last message other than retire came
	counted  int       // waiting runs that are counted in runsWaiting
	wg       sync.WaitGroup
}

type (
	// read is the result of a read of Postgres that began at a time.
	read struct {
		at      time.Time
		running []id.RunID
		err     error
	}
	// reread makes the slots read again.
	reread struct{}
	// retire ends the slots if they are unused.
	retire struct{}
)

func (s *slotActor) Receive(c cluster.Context, m any) {
	if _, ok := m.(retire); ok {
		s.retiring = false
	} else {
		s.used = s.cfg.Now()
	}
	defer func() { s.count(len(s.slots.waiting)) }()
	switch m := m.(type) {
	case retire:
	case read:
		s.reading = false
		if m.err != nil {
			s.cfg.Log.Warn().Err(m.err).Stringer("tenant", c.Self().Tenant).Msg("cannot read running runs")
			s.later(c, readRetry)
			return
		}
		if !s.settled && len(c.Node().Members()) > 1 && time.Since(c.Node().Since()) < s.cfg.Agreed {
			s.settled = true
			s.later(c, settleTime)
			return
		}
		m.running = slices.DeleteFunc(m.running, func(run id.RunID) bool { return slices.Contains(s.ended, run) })
		s.tell(c, s.slots.reconcile(m.at, m.running, grace))
	case reread:
		s.armed = false
		s.read(c)
		return
	default:
		s.order(c, m)
		if s.slots.unknown {
			if !s.armed {
				s.read(c)
			}
			return
		}
	}
	switch {
	case s.slots.idle() && !s.reading:
		s.retire(c)
	case s.slots.starting():
		s.later(c, startEvery)
	case len(s.slots.waiting) > 0:
		s.later(c, reconcileEvery)
	}
}

// retire ends slots that were unused for Config.Rest, and checks others again later. They
// are kept so long because new slots begin with a read, which each run would wait for.
func (s *slotActor) retire(c cluster.Context) {
	left := s.cfg.Rest - s.cfg.Now().Sub(s.used)
	if left <= 0 {
		c.Stop()
		return
	}
	if !s.retiring {
		s.retiring = true
		ref := c.Ref()
		c.Node().After(left, func() { ref.Send(retire{}) })
	}
}

// order handles the messages of runs and Queues.
func (s *slotActor) order(c cluster.Context, m any) {
	switch m := m.(type) {
	case msg.AcquireSlot:
		s.tell(c, s.slots.acquire(s.cfg.Now(), m.Run, m.CreatedAt))
	case msg.TakeSlot:
		s.slots.take(s.cfg.Now(), m.Run)
	case msg.ReleaseSlot:
		s.release(c, m.Run)
	case Wishes:
		var g Granted
		for _, run := range m.Released {
			s.release(c, run)
		}
		for _, w := range m.Waiting {
			s.tell(c, s.slots.acquire(s.cfg.Now(), w.Run, w.CreatedAt))
			if s.slots.runs(w.Run) {
				g.Running = append(g.Running, w.Run)
			}
		}
		for _, run := range m.Taken {
			switch { // it may have ended since; Postgres knows
			case s.slots.runs(run):
			case !s.reading:
				s.read(c)
			case !s.slots.unknown: // the read in flight may have begun before the run went on
				s.later(c, startEvery)
			}
		}
		c.Reply(g)
	}
}

func (s *slotActor) release(c cluster.Context, run id.RunID) {
	if s.reading {
		s.ended = append(s.ended, run)
	}
	s.tell(c, s.slots.release(s.cfg.Now(), run))
}

// tell tells runs that they were granted a slot.
func (s *slotActor) tell(c cluster.Context, granted []id.RunID) {
	for _, run := range granted {
		c.Node().Tell(cluster.Address{Kind: msg.KindRun, Tenant: c.Self().Tenant, ID: run.UUID}, msg.SlotGranted{})
	}
}

// read reads Postgres outside the mailbox. At most one read is in flight.
func (s *slotActor) read(c cluster.Context) {
	if s.reading {
		return
	}
	s.reading, s.ended = true, nil
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	s.cancel = cancel
	ref, tenant, at := c.Ref(), c.Self().Tenant, s.cfg.Now()
	s.wg.Go(func() {
		defer cancel()
		running, err := s.cfg.Running.Running(ctx, tenant)
		ref.Send(read{at, running, err})
	})
}

// later makes the slots read again after d. At most one such timer runs.
func (s *slotActor) later(c cluster.Context, d time.Duration) {
	if s.armed {
		return
	}
	s.armed = true
	ref := c.Ref()
	c.Node().After(d, func() { ref.Send(reread{}) })
}

// count sets how many runs wait here.
func (s *slotActor) count(n int) {
	runsWaiting.Add(float64(n - s.counted))
	s.counted = n
}

func (s *slotActor) Stopped() {
	s.count(0)
	if s.cancel != nil {
		s.cancel()
	}
	s.wg.Wait()
}
