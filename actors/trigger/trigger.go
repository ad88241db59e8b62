package trigger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/schedule"
)

// Rows are the rows of schedules (store.Schedules).
type Rows interface {
	// Schedule is nil where there is none that is enabled.
	Schedule(ctx context.Context, t id.TenantID, g id.TriggerID) (*store.Schedule, error)
	// Published is an agent's published version, 0 for none.
	Published(ctx context.Context, t id.TenantID, a id.AgentID) (int, error)
	// Move takes a schedule from the time it was due to its next one; fired is nil
	// where it did not fire.
	Move(ctx context.Context, t id.TenantID, g id.TriggerID, due, next time.Time, fired *time.Time) error
	// Align makes a trigger's timer say what its row says.
	Align(ctx context.Context, t id.TenantID, g id.TriggerID) error
}

// Runs reaches the owners of runs.
type Runs interface {
	Ask(ctx context.Context, kind string, tenant id.TenantID, actor id.UUID, message any) (any, error)
}

// Config is what schedules need. Rows and Runs are required.
type Config struct {
	Rows Rows
	Runs Runs
	Now  func() time.Time // the cluster's clock; nil: time.Now
	Most int              // firings at work at a time; 0: 32
	Log  zerolog.Logger
}

const (
	mostFirings = 32
	// firingTime bounds one firing. It is less than the sweep's hold of a timer: who is
	// told again finds the former firing ended.
	firingTime = 8 * time.Second
)

// Register makes n host triggers. It is called before n starts.
func Register(n *cluster.Node, cfg Config) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Most <= 0 {
		cfg.Most = mostFirings
	}
	k := &kind{cfg: cfg, places: make(chan struct{}, cfg.Most)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	n.Register(msg.KindTrigger, func(a cluster.Address) cluster.Behavior { return &host{k: k, addr: a} })
	n.OnStop(k.stop)
}

// kind is what all activations of a node share.
type kind struct {
	cfg    Config
	places chan struct{} // one for each firing at work

	ctx    context.Context // ends when the node stops
	cancel context.CancelFunc
	wg     sync.WaitGroup // of firings, also of those that wait for a place
}

// stop gives up what is under way: its timer is still there.
func (k *kind) stop(ctx context.Context) error {
	k.cancel()
	ended := make(chan struct{})
	go func() { k.wg.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for firings: %w", ctx.Err())
	}
}

// host is one activation.
type host struct {
	k      *kind
	addr   cluster.Address
	firing bool
	again  bool // a timer came due meanwhile: what was read may be older than it
}

// ended tells an activation that its firing has come to its end.
type ended struct{}

// Receive implements cluster.Behavior.
func (h *host) Receive(c cluster.Context, m any) {
	switch m.(type) {
	case durable.TimerDue:
		if h.firing {
			h.again = true
			return
		}
		h.begin(c)
		return
	case ended:
		h.firing = false
		if h.again {
			h.again = false
			h.begin(c)
		}
	}
	if !h.firing {
		c.Stop()
	}
}

func (h *host) begin(c cluster.Context) {
	h.firing = true
	ref := c.Ref()
	h.k.wg.Go(func() {
		h.k.work(h.addr)
		ref.Send(ended{})
	})
}

// Stopped implements cluster.Behavior.
func (h *host) Stopped() {}

// work is one firing, when its turn has come.
func (k *kind) work(a cluster.Address) {
	select {
	case k.places <- struct{}{}:
		defer func() { <-k.places }()
	case <-k.ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(k.ctx, firingTime)
	defer cancel()
	if err := k.fire(ctx, a.Tenant, id.TriggerID{UUID: a.ID}); err != nil && k.ctx.Err() == nil {
		failures.Inc()
		k.log(k.cfg.Log.Warn(), a.Tenant, a.ID).Err(err).Msg("a schedule could not be fired, its timer comes again")
	}
}

func (k *kind) log(e *zerolog.Event, t id.TenantID, g id.UUID) *zerolog.Event {
	return e.Stringer("tenant", t).Stringer("trigger", g)
}

// fire works off the time that the schedule is due at.
func (k *kind) fire(ctx context.Context, t id.TenantID, g id.TriggerID) error {
	s, err := k.cfg.Rows.Schedule(ctx, t, g)
	if err != nil {
		return fmt.Errorf("read schedule: %w", err)
	}
	now := k.cfg.Now()
	if s == nil || now.Before(s.Due) {
		return k.cfg.Rows.Align(ctx, t, g)
	}
	times, err := schedule.Parse(s.Cron, s.Timezone)
	if err != nil {
		return fmt.Errorf("read the times of a schedule: %w", err)
	}
	why, err := k.start(ctx, t, g, s)
	if err != nil {
		return fmt.Errorf("start the run of a schedule: %w", err)
	}
	fired := &now
	if why != "" {
		fired = nil
	}
	if err := k.cfg.Rows.Move(ctx, t, g, s.Due, times.Next(now), fired); err != nil {
		return fmt.Errorf("move schedule: %w", err)
	}
	if why != "" {
		skipped.Inc()
		k.log(k.cfg.Log.Warn(), t, g.UUID).Time("due", s.Due).Str("why", why).Msg("a schedule was passed over")
		return nil
	}
	firings.WithLabelValues(bySchedule).Inc()
	return nil
}

// start starts the run of a due time, if it was not started before. why says that
// it never will be.
func (k *kind) start(ctx context.Context, t id.TenantID, g id.TriggerID, s *store.Schedule) (why string, err error) {
	version, err := k.cfg.Rows.Published(ctx, t, s.Agent)
	if err != nil {
		return "", err
	}
	if version == 0 {
		return "the agent has no published version", nil
	}
	run := RunAt(g, s.Due)
	order := msg.StartOne{Run: run, AgentID: s.Agent, AgentVersion: version, Input: json.RawMessage(s.Input),
		Origin: msg.Origin{Kind: lifecycle.OriginTrigger, ID: g.UUID}, By: msg.By{Actor: "trigger:" + g.String()}}
	if order.Input == nil {
		order.Input = json.RawMessage("null")
	}
	_, err = k.cfg.Runs.Ask(ctx, msg.KindRun, t, run.UUID, order)
	var refused *problem.Error
	if errors.As(err, &refused) && refused.Status() < http.StatusInternalServerError && refused.Code != problem.CodeRateLimited {
		return refused.Error(), nil
	}
	return "", err
}

// RunAt is the run of a trigger's due time: the same one whoever starts it, in the
// trigger's shard.
func RunAt(g id.TriggerID, due time.Time) id.RunID {
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(due.UnixMicro()))
	sum := sha256.Sum256(append(g.UUID[:], at[:]...))
	// A UUID of version 7, as package id has it.
	u := id.UUID(sum[:16])
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(due.UnixMilli()))
	copy(u[:6], ms[2:])
	u[6] = 7<<4 | u[6]&0xf
	binary.BigEndian.PutUint16(u[8:], 1<<15|uint16(g.Shard())<<4|uint16(u[9]&0xf))
	return id.RunID{UUID: u}
}
