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

// Kind is the kind of the actors that hand out running places.
const Kind = "slots"

// Address is the address of a tenant's slots.
func Address(t id.TenantID) cluster.Address {
	return cluster.Address{Kind: Kind, Tenant: t, ID: t.UUID}
}

const (
	// grace is how long a run that was granted a place may take to be running.
	grace = 15 * time.Second
	// reconcileEvery is how often slots that somebody waits for are compared with
	// Postgres, and how long they wait after a failed read.
	reconcileEvery = 5 * time.Second
	// startEvery is that while runs are starting.
	startEvery = time.Second
	// settleTime is how long slots that may have lived on another node wait before
	// they grant: what was granted there is running by then, or will be told again.
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
	Agreed  time.Duration    // how long after a change of the member list no member acts by the former one any more: leases have run out; 0: 15 s
	Rest    time.Duration    // how long slots that nobody holds or wants stay in memory; 0: 10 s
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

// slotActor owns the running places of one tenant.
type slotActor struct {
	cfg     Config
	slots   slots
	cancel  context.CancelFunc // of the read under way
	reading bool
	ended   []id.RunID // gave their places back while it reads
	settled bool       // whoever had the slots before grants nothing any more
	armed   bool
	resting bool      // a rest is on its way
	used    time.Time // when something last came but a rest
	counted int       // of those who wait, in runsWaiting
	wg      sync.WaitGroup
}

type (
	// read is what Postgres says, asked at a time.
	read struct {
		at      time.Time
		running []id.RunID
		err     error
	}
	// look asks to read again.
	look struct{}
	// rest asks whether they may leave memory.
	rest struct{}
)

func (s *slotActor) Receive(c cluster.Context, m any) {
	if _, ok := m.(rest); ok {
		s.resting = false
	} else {
		s.used = s.cfg.Now()
	}
	defer func() { s.count(len(s.slots.waiting)) }()
	switch m := m.(type) {
	case rest:
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
	case look:
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
		s.rest(c)
	case s.slots.starting():
		s.later(c, startEvery)
	case len(s.slots.waiting) > 0:
		s.later(c, reconcileEvery)
	}
}

// rest ends slots that nobody has used for so long, and looks again later at
// others: to know who is running takes a read, which not each run shall wait for.
func (s *slotActor) rest(c cluster.Context) {
	left := s.cfg.Rest - s.cfg.Now().Sub(s.used)
	if left <= 0 {
		c.Stop()
		return
	}
	if !s.resting {
		s.resting = true
		ref := c.Ref()
		c.Node().After(left, func() { ref.Send(rest{}) })
	}
}

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
			switch { // it may have ended since: Postgres says
			case s.slots.runs(run):
			case !s.reading:
				s.read(c)
			case !s.slots.unknown: // what is being read may be from before
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

func (s *slotActor) tell(c cluster.Context, granted []id.RunID) {
	for _, run := range granted {
		c.Node().Tell(cluster.Address{Kind: msg.KindRun, Tenant: c.Self().Tenant, ID: run.UUID}, msg.SlotGranted{})
	}
}

// read asks Postgres beside the mailbox; at most one read is under way.
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

func (s *slotActor) later(c cluster.Context, d time.Duration) {
	if s.armed {
		return
	}
	s.armed = true
	ref := c.Ref()
	c.Node().After(d, func() { ref.Send(look{}) })
}

// count says that n runs wait here.
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
