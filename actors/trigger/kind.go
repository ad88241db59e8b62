package trigger

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/schedule"
	"agentsvc/schemas/turn"
)

// Config configures schedules. Store and Runs are required.
type Config struct {
	Store Store
	Runs  Runs
	Most  int // firings at a time; 0: 32
	Each  int // firings of one tenant at a time; 0: 8
	Log   zerolog.Logger
}

const (
	mostFirings = 32 // the default of Config.Most
	eachFirings = 8  // the default of Config.Each
	// mostWaiting limits the firings that wait for their tenant's turn or are performed. Further
	// firings wait in the order in which they came due, whichever tenant's they are.
	mostWaiting = 1 << 16
	timerDue    = "due"
)

type kind struct {
	cfg    Config
	places *turn.Places
}

// Register makes n the host of schedules that write through w. It is called before n starts.
func Register(n *cluster.Node, w durable.Writer, cfg Config, host durable.Config) {
	if cfg.Most <= 0 {
		cfg.Most = mostFirings
	}
	if cfg.Each <= 0 {
		cfg.Each = eachFirings
	}
	k := &kind{cfg: cfg, places: turn.New(cfg.Most, cfg.Each)}
	host.MaxEffects = mostWaiting
	durable.Register(n, w, durable.Kind[State]{
		Name: msg.KindTrigger, Machine: Machine{}, Load: k.load, Rows: rows, After: k.after, Perform: k.perform,
		Idle: 0, // the API writes this row too
	}, host)
}

// load reads the trigger. It also succeeds without a row, so that a decision deletes the
// timer.
func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	r, err := k.cfg.Store.Schedule(ctx, a.Tenant, id.TriggerID{UUID: a.ID})
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	if r == nil {
		return durable.Loaded[State]{State: State{Missing: true}}, nil
	}
	var s State
	if r.Due != nil {
		s.Due = *r.Due
		if s.Times, err = schedule.Parse(*r.Cron, *r.Timezone); err != nil {
			failures.Inc()
			k.log(k.cfg.Log.Error(), a).Err(err).Msg("a schedule has an invalid expression or time zone")
		}
	}
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: r.Version, Epoch: r.Epoch}}, nil
}

// The table of triggers. Transactions of the API lock a trigger's row and then its timer;
// a commit locks them in the same order, without waiting for the row.
var (
	triggers   = journal.Actors("triggers", "id uuid")
	triggerSet = triggers.SwapUnlessHeld("(t.enabled OR u.next_fire_at IS NULL)", "next_fire_at timestamptz, last_fired_at timestamptz greatest")
)

// Update is what a decision changes in a trigger's row.
type Update struct {
	ID id.TriggerID
	journal.Guard
	Due   *time.Time // nil: none
	Fired *time.Time // nil or earlier than in the row: the row keeps its value
}

// Write returns the swap of a trigger's row.
func (*Update) Write() *journal.Write { return triggerSet }

// Changed names the trigger.
func (u *Update) Changed() msg.Change { return msg.Change{Kind: "trigger", ID: u.ID.UUID} }

// Put puts the values of the swap.
func (u *Update) Put(v *journal.Values) {
	v.UUID(u.ID.UUID).Guard(u.Guard).TimeOrNull(u.Due).TimeOrNull(u.Fired)
}

// rows returns the commit of a decision: the trigger's row and its timer. A decision
// without facts has none.
func rows(a cluster.Address, prev durable.Loaded[State], d durable.Decision[State], _ any, _ id.OpID, _ time.Time) *journal.Commit {
	if len(d.Facts) == 0 {
		return nil
	}
	c, due := &journal.Commit{}, d.Next.Due
	timer := journal.TimerKey{Kind: msg.KindTrigger, Entity: a.ID, Name: timerDue}
	if due.IsZero() {
		c.TimersDone = []journal.TimerKey{timer}
	} else {
		c.Timers = []journal.Timer{{TimerKey: timer, DueAt: due}}
	}
	if prev.State.Missing {
		return c
	}
	u := &Update{ID: id.TriggerID{UUID: a.ID}, Guard: prev.Guard}
	if !due.IsZero() {
		u.Due = &due
	}
	if f, ok := d.Facts[0].(Moved); ok && f.Why == "" {
		u.Fired = &f.Fired
	}
	c.Rows = []journal.Row{u}
	return c
}

// after counts the firings.
func (k *kind) after(a cluster.Address, _, _ State, d durable.Decision[State]) {
	for _, f := range d.Facts {
		switch f, moved := f.(Moved); {
		case !moved:
		case f.Why == "":
			firings.WithLabelValues(bySchedule).Inc()
		default:
			skipped.Inc()
			k.log(k.cfg.Log.Warn(), a).Time("due", f.Due).Str("why", f.Why).Msg("a schedule was passed over")
		}
	}
}

func (k *kind) log(e *zerolog.Event, a cluster.Address) *zerolog.Event {
	return e.Stringer("tenant", a.Tenant).Stringer("trigger", a.ID)
}
