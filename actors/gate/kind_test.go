// Package gate is a made-up kind, in test files only: a gate is opened with sealed
// arguments, somebody decides before it is due, and what was decided is carried out at the
// door. It shows what a new durable kind consists of, and its tests prove that nothing
// outside its folder has to know it (docs/architecture.md, How to add a kind).
//
//	          Decide(pass)            door
//	open ──────────────────► passed ────────► passed, carried out
//	  │
//	  ├──Decide(no)──► refused
//	  └──due_at──────► expired
package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
)

// migration is the kind's one migration.
const migration = `
CREATE TABLE gates (
  tenant_id   uuid NOT NULL REFERENCES tenants (id),
  id          uuid NOT NULL PRIMARY KEY,
  status      text NOT NULL CHECK (status IN ('open', 'passed', 'refused', 'expired')),
  args        bytea NOT NULL,
  due_at      timestamptz NOT NULL,
  decided_by  uuid,
  finished_at timestamptz,
  version     bigint NOT NULL DEFAULT 1,
  owner_epoch bigint NOT NULL DEFAULT 0,
  last_op     uuid
);
CREATE INDEX gates_work ON gates (coalesce(shard_of(id), -1), id) WHERE status = 'passed' AND finished_at IS NULL;
CREATE INDEX gates_old ON gates (finished_at) WHERE finished_at IS NOT NULL;
ALTER TABLE gates ENABLE ROW LEVEL SECURITY;
ALTER TABLE gates FORCE ROW LEVEL SECURITY;
CREATE POLICY gates_api ON gates TO svc_api USING (tenant_id = svc_tenant());
CREATE POLICY gates_system ON gates TO svc_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON gates TO svc_api, svc_system`

// Kind is the kind's name.
const Kind = "gate"

// Messages that a gate accepts, and its replies.
type (
	// Open begins a gate. Replies Stands.
	Open struct {
		Args  json.RawMessage `json:"args"`
		DueAt time.Time       `json:"due_at"`
	}
	// Decide decides it. Replies Stands; another decision is ALREADY_DECIDED.
	Decide struct {
		Op   id.OpID `json:"op"`
		Pass bool    `json:"pass"`
	}
	// Stands says how a gate stands.
	Stands struct {
		Status string `json:"status"`
	}
)

// Repeatable: a gate that is open already is answered as the first time.
func (Open) Repeatable() {}

// Repeatable: the row says which operation decided.
func (Decide) Repeatable() {}

// Facts of a decision, and the result of the effect.
type (
	opened  struct{}
	decided struct{}
	expired struct{}
	acted   struct{}
)

const expire = "expire" // the timer

// The events that webhooks hear.
const (
	GateOpened  webhook.Type = "gate.opened"
	GateDecided webhook.Type = "gate.decided"
	GateExpired webhook.Type = "gate.expired"
)

var decisions = prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_gate_decisions_total", Help: "Gates that were decided."})

// Traits describe the kind gate.
var Traits = durable.Traits{
	Name:       Kind,
	Tables:     []*journal.Table{gates},
	Work:       &feed.Work{Find: feed.Where("gates", "status = 'passed' AND finished_at IS NULL")},
	Keep:       []feed.Retention{feed.Aged("gates", "finished_at", "finished_at IS NOT NULL", 30*24*time.Hour)},
	Sealed:     []reseal.Column{{Table: "gates", Name: "args", By: reseal.ByID}},
	Messages:   []msg.Type{msg.Of[Open]("gate_open"), msg.Of[Decide]("gate_decide"), msg.Of[Stands]("gate_stands")},
	Checks:     []feed.Check{{Name: "open gates that do not expire", SQL: missingTimers}},
	Collectors: []prometheus.Collector{decisions},
}

const missingTimers = `SELECT count(*), coalesce(min(g.id::text), '') FROM gates g
WHERE g.status = 'open' AND NOT EXISTS (SELECT FROM timers t WHERE t.tenant_id = g.tenant_id AND t.kind = 'gate' AND t.entity_id = g.id)`

// State is a gate's row. The zero State is before its beginning.
type State struct {
	Status string
	Args   json.RawMessage
	DueAt  time.Time
	By     id.OpID // decided it
	Acted  bool
}

// Act carries a passed gate out at the door.
type Act struct{ Args json.RawMessage }

// Key implements durable.Effect.
func (Act) Key() string { return "act" }

// Machine decides.
type Machine struct{}

// Decide implements durable.Machine.
func (Machine) Decide(s State, m any, now time.Time) (durable.Decision[State], error) {
	change := func(fact any) (durable.Decision[State], error) {
		return durable.Decision[State]{Next: s, Changed: true, Facts: []any{fact}, Reply: Stands{s.Status}}, nil
	}
	same := durable.Decision[State]{Reply: Stands{s.Status}}
	switch m := m.(type) {
	case Open:
		if s.Status != "" {
			return same, nil
		}
		s.Status, s.Args, s.DueAt = "open", m.Args, m.DueAt
		return change(opened{})
	case Decide:
		switch {
		case s.Status == "open":
			if s.Status, s.By = "refused", m.Op; m.Pass {
				s.Status = "passed"
			}
			return change(decided{})
		case s.By != m.Op:
			return same, problem.New(problem.CodeAlreadyDecided, "The gate was decided before.")
		}
	case durable.TimerDue:
		if s.Status == "open" && !now.Before(s.DueAt) {
			s.Status = "expired"
			return change(expired{})
		}
	case acted:
		if !s.Acted {
			s.Acted = true
			return change(acted{})
		}
	}
	return same, nil
}

// Owed implements durable.Machine.
func (Machine) Owed(s State) []durable.Effect {
	if s.Status == "passed" && !s.Acted {
		return []durable.Effect{Act{s.Args}}
	}
	return nil
}

// Door is where a passed gate is carried out, once for each key.
type Door interface {
	Pass(ctx context.Context, key string, args []byte) error
}

// Deps are what the kind needs.
type Deps struct {
	Pool  *pgxpool.Pool
	Vault *vault.Vault
	Door  Door
}

// New is the kind.
func New(d Deps) durable.Kind[State] {
	return durable.Kind[State]{
		Name:    Kind,
		Machine: Machine{},
		Load:    d.load,
		Create: func(_ cluster.Address, m any) (State, bool) {
			_, begins := m.(Open)
			return State{}, begins
		},
		Rows: d.rows,
		Perform: func(ctx context.Context, a durable.Activation, e durable.Effect) any {
			if err := d.Door.Pass(ctx, a.Address.ID.String()+"/"+e.Key(), e.(Act).Args); err != nil {
				return nil
			}
			return acted{}
		},
		Idle: time.Minute,
	}
}

// place is what the arguments are sealed to.
func place(a cluster.Address) vault.AAD {
	return vault.AAD{Tenant: a.Tenant, Table: "gates", Row: a.ID.String(), Column: "args"}
}

func (d Deps) load(ctx context.Context, a cluster.Address) (l durable.Loaded[State], err error) {
	var sealed vault.Sealed
	var by *id.OpID
	err = d.Pool.QueryRow(ctx, `SELECT status, args, due_at, decided_by, finished_at IS NOT NULL, version, owner_epoch FROM gates WHERE tenant_id = $1 AND id = $2`, a.Tenant, a.ID).
		Scan(&l.State.Status, &sealed, &l.State.DueAt, &by, &l.State.Acted, &l.Guard.Version, &l.Guard.Epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return l, problem.NotFound("gate")
	}
	if err != nil {
		return l, fmt.Errorf("read gate: %w", err)
	}
	if by != nil {
		l.State.By = *by
	}
	l.State.Args, err = d.Vault.Open(place(a), sealed)
	return l, err
}

// The table as data, and its two rows.
var (
	gates     = journal.Actors("gates", "id uuid")
	gateBegin = gates.Begin("status text, args bytea, due_at timestamptz")
	gateSwap  = gates.Swap("status text, decided_by uuid keep, finished_at timestamptz")
)

// insert is a gate that begins.
type insert struct {
	ID     id.UUID
	Status string
	Args   vault.Sealed
	DueAt  time.Time
}

func (*insert) Write() *journal.Write { return gateBegin }

func (i *insert) Put(v *journal.Values) { v.UUID(i.ID).Text(i.Status).Bytes(i.Args).Time(i.DueAt) }

// update is what a decision changes.
type update struct {
	ID id.UUID
	journal.Guard
	Status     string
	By         id.OpID
	FinishedAt *time.Time
}

func (*update) Write() *journal.Write { return gateSwap }

func (u *update) Put(v *journal.Values) {
	v.UUID(u.ID).Guard(u.Guard).Text(u.Status)
	var by *id.OpID
	if !u.By.IsZero() {
		by = &u.By
	}
	journal.UUIDOrNull(v, by)
	v.TimeOrNull(u.FinishedAt)
}

// rows is what a decision makes durable.
func (d Deps) rows(a cluster.Address, prev durable.Loaded[State], dec durable.Decision[State], _ any, _ id.OpID, now time.Time) *journal.Commit {
	s, c := &dec.Next, &journal.Commit{}
	timer := journal.TimerKey{Kind: Kind, Entity: a.ID, Name: expire}
	report := func(t webhook.Type) {
		c.Events = append(c.Events, journal.NewEvent(a.Shard(), t, map[string]string{"gate_id": a.ID.String(), "status": s.Status}, now))
	}
	swap := func(finished bool) {
		row := &update{ID: a.ID, Guard: prev.Guard, Status: s.Status, By: s.By}
		if finished {
			row.FinishedAt = &now
		}
		c.Rows = append(c.Rows, row)
	}
	for _, f := range dec.Facts {
		switch f.(type) {
		case opened:
			sealed, err := d.Vault.Seal(place(a), s.Args)
			if err != nil {
				panic(err)
			}
			c.Rows = append(c.Rows, &insert{ID: a.ID, Status: s.Status, Args: sealed, DueAt: s.DueAt})
			c.Timers = append(c.Timers, journal.Timer{TimerKey: timer, DueAt: s.DueAt})
			report(GateOpened)
		case decided:
			swap(s.Status == "refused")
			c.TimersDone = append(c.TimersDone, timer)
			report(GateDecided)
			decisions.Inc()
		case expired:
			swap(true)
			c.TimersDone = append(c.TimersDone, timer)
			report(GateExpired)
		case acted:
			swap(true)
		}
	}
	return c
}
