package sync

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/schedule"
	"agentsvc/schemas/turn"
	"agentsvc/schemas/webhook"
)

// Config configures syncs. Store, Files, Connect and Tell are required.
type Config struct {
	Store   Store
	Files   Files
	Connect Connect
	Tell    Teller
	// Hears reports whether the tenant may have a webhook endpoint; it does not block. nil: none
	// has.
	Hears func(id.TenantID) bool
	// Patience is how long a walk goes on without a page or a file that could be read; 0: 100 s.
	Patience time.Duration
	Log      zerolog.Logger
}

const (
	mostSyncs = 4 // at a time
	timerDue  = "due"
)

type kind struct {
	cfg    Config
	places *turn.Places
}

// Register makes n the host of sources that write through w. It is called before n starts.
func Register(n *cluster.Node, w durable.Writer, cfg Config, host durable.Config) {
	if cfg.Patience <= 0 {
		cfg.Patience = patience
	}
	k := &kind{cfg, turn.New(mostSyncs, 1)}
	durable.Register(n, w, durable.Kind[State]{
		Name: msg.KindSync, Machine: Machine{}, Load: k.load, Rows: k.rows, After: k.after, Perform: k.perform,
		Idle: 0, // the API writes this row too
	}, host)
}

// load reads the source. It also succeeds without a row, so that a decision deletes the timer.
func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	r, err := k.cfg.Store.Sync(ctx, a.Tenant, id.SourceID{UUID: a.ID})
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	if r == nil {
		return durable.Loaded[State]{State: State{Missing: true}}, nil
	}
	s := State{Base: r.Base, Enabled: r.Enabled, Status: r.Status, Sync: r.Number}
	if r.Due != nil && r.Cron != nil {
		s.Due = *r.Due
		if s.Times, err = schedule.Parse(*r.Cron, r.Timezone); err != nil {
			k.log(k.cfg.Log.Error(), a).Err(err).Msg("a knowledge source has an invalid expression or time zone")
		}
	}
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: r.Version, Epoch: r.Epoch}}, nil
}

// The table of sources. Transactions of the API lock a source's row and then its timer; a commit
// locks them in the same order, without waiting for the row. An empty text of delta, resume and
// last_error stands for none.
var (
	sources   = journal.Actors("knowledge_sources", "id uuid")
	sourceSet = sources.SwapUnlessHeld("t.deleted_at IS NULL", "status text keep, next_sync_at timestamptz, sync bigint greatest, last_synced_at timestamptz greatest, last_error text keep, delta text keep, resume text keep")
)

// Update is what a decision changes in a source's row; nil keeps a value, except Due.
type Update struct {
	ID id.SourceID
	journal.Guard
	Status *lifecycle.SourceStatus
	Sync   int64      // the number of the last sync; it never goes back
	Due    *time.Time // nil: none
	Synced *time.Time
	Error  *string
	Delta  *string
	Resume *string
}

// Write returns the swap of a source's row.
func (*Update) Write() *journal.Write { return sourceSet }

// Changed names the source.
func (u *Update) Changed() msg.Change { return msg.Change{Kind: "kb.source", ID: u.ID.UUID} }

// Put puts the values of the swap.
func (u *Update) Put(v *journal.Values) {
	var status *string
	if u.Status != nil {
		s := string(*u.Status)
		status = &s
	}
	v.UUID(u.ID.UUID).Guard(u.Guard).TextOrNull(status).TimeOrNull(u.Due).Int8(u.Sync).TimeOrNull(u.Synced).TextOrNull(u.Error).TextOrNull(u.Delta).TextOrNull(u.Resume)
}

// rows returns the commit of a decision: the source's row, its timer, and the event of a sync that
// ended. A decision without facts has none.
func (k *kind) rows(a cluster.Address, prev durable.Loaded[State], d durable.Decision[State], _ any, _ id.OpID, now time.Time) *journal.Commit {
	if len(d.Facts) == 0 {
		return nil
	}
	c, due := &journal.Commit{}, d.Next.Due
	u := &Update{ID: id.SourceID{UUID: a.ID}, Guard: prev.Guard, Sync: d.Next.Sync}
	if !due.IsZero() {
		u.Due = &due
	}
	none := ""
	switch f := d.Facts[0].(type) {
	case Queued:
		u.Status, u.Resume = &d.Next.Status, &none
	case Finished:
		u.Status, u.Resume, u.Error = &d.Next.Status, &none, &f.Error
		if f.OK {
			u.Synced, u.Delta = &f.At, &f.Delta
		}
		if k.cfg.Hears != nil && k.cfg.Hears(a.Tenant) {
			c.Events = []journal.Event{event(a, d.Next, f, now)}
		}
	}
	switch d.Facts[0].(type) {
	case Queued, Moved, Aligned:
		timer := journal.TimerKey{Kind: msg.KindSync, Entity: a.ID, Name: timerDue}
		if due.IsZero() {
			c.TimersDone = []journal.TimerKey{timer}
		} else {
			c.Timers = []journal.Timer{{TimerKey: timer, DueAt: due}}
		}
	}
	if !prev.State.Missing {
		c.Rows = []journal.Row{u}
	}
	return c
}

func event(a cluster.Address, s State, f Finished, now time.Time) journal.Event {
	data := webhook.SourceEnded{KnowledgeBaseID: s.Base.String(), SourceID: a.ID.String(), Status: string(s.Status), Documents: f.Documents}
	if f.Error != "" {
		data.Error = &f.Error
	}
	t := webhook.SourceFailed
	if f.OK {
		t = webhook.SourceSynced
	}
	return journal.NewEvent(a.Shard(), t, data, now)
}

// after counts the syncs.
func (k *kind) after(a cluster.Address, _, next State, d durable.Decision[State]) {
	for _, f := range d.Facts {
		if f, ended := f.(Finished); ended {
			syncs.WithLabelValues(string(next.Status)).Inc()
			if !f.OK {
				k.log(k.cfg.Log.Info(), a).Str("why", f.Error).Msg("a sync of a knowledge source failed")
			}
		}
	}
}

func (k *kind) log(e *zerolog.Event, a cluster.Address) *zerolog.Event {
	return e.Stringer("tenant", a.Tenant).Stringer("source", a.ID)
}
