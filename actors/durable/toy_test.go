package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The toy kind is a ledger of orders. An order's sum is counted once; a plain
// order is sent, at least once and under its key; a charge is committed as begun
// and, when its activation ends before its result is known, becomes unknown.
type (
	ledger struct {
		Count  int64
		Orders []order
	}
	order struct {
		ID     string
		N      int64
		Charge bool
		Status string // owed, begun, sent, unknown, failed
	}

	open  struct{ N int64 } // creates the ledger
	add   order             // replies total
	total int64
	sum   struct{}             // replies total
	sent  struct{ ID string }  // result of send and charge
	drops struct{ ID string }  // gives an order up; replies total
	boom  struct{}             // panics
	quirk struct{ Then error } // its rows are refused, then Then or failed orders
	// priced adds an order of a price that the machine asks for.
	priced struct{ ID string }
	price  struct{ ID string }
	rings  struct{} // deletes a timer, and changes nothing else
)

type send struct{ ID string }
type charge struct{ ID string }

func (e send) Key() string   { return "send:" + e.ID }
func (e charge) Key() string { return "charge:" + e.ID }

// passed counts results that a machine leaves to the next activation.
var passed atomic.Int32

var errOrder = errors.New("toy: no such order")

type toy struct{}

func (toy) Decide(s ledger, m any, _ time.Time) (Decision[ledger], error) {
	l, leaving := m.(Leaving)
	if leaving {
		m = l.Msg
	}
	change := func(orders []order, count int64) (Decision[ledger], error) {
		return Decision[ledger]{Next: ledger{count, orders}, Changed: true, Reply: total(count)}, nil
	}
	set := func(id, status string) (Decision[ledger], error) {
		i := slices.IndexFunc(s.Orders, func(o order) bool { return o.ID == id })
		if i < 0 {
			return Decision[ledger]{}, errOrder
		}
		if s.Orders[i].Status == status {
			return Decision[ledger]{Reply: total(s.Count)}, nil
		}
		next := slices.Clone(s.Orders)
		next[i].Status = status
		return change(next, s.Count)
	}
	switch m := m.(type) {
	case open:
		if s.Orders != nil {
			return Decision[ledger]{Reply: total(s.Count)}, nil
		}
		return change([]order{}, m.N)
	case Activated:
		next := slices.Clone(s.Orders)
		for i := range next {
			if next[i].Status == "begun" {
				next[i].Status = "unknown"
			}
		}
		if slices.Equal(next, s.Orders) {
			return Decision[ledger]{}, nil
		}
		return change(next, s.Count)
	case add:
		if slices.ContainsFunc(s.Orders, func(o order) bool { return o.ID == m.ID }) {
			return Decision[ledger]{Reply: total(s.Count)}, nil
		}
		if m.N < 0 {
			return Decision[ledger]{}, problem.Invalid("n", "negative")
		}
		m.Status = "owed"
		if m.Charge && !leaving {
			m.Status = "begun"
		}
		return change(append(slices.Clone(s.Orders), order(m)), s.Count+m.N)
	case priced:
		return Decision[ledger]{Question: price(m)}, nil
	case Answered:
		p := m.Msg.(priced)
		if m.Question != any(price(p)) {
			return Decision[ledger]{}, fmt.Errorf("answered %v on %v", m.Question, p)
		}
		return change(append(slices.Clone(s.Orders), order{ID: p.ID, N: m.Answer.(int64), Status: "sent"}), s.Count+m.Answer.(int64))
	case Repeated:
		if _, ok := m.Msg.(add); ok {
			return Decision[ledger]{Reply: total(s.Count)}, nil
		}
		return change(s.Orders, s.Count+1)
	case sent:
		if leaving && strings.HasPrefix(m.ID, "later") { // for the next activation
			passed.Add(1)
			return Decision[ledger]{}, nil
		}
		return set(m.ID, "sent")
	case EffectFailed:
		for _, o := range s.Orders {
			if (send{o.ID}).Key() == m.Key {
				return set(o.ID, "failed")
			}
		}
		return Decision[ledger]{}, errOrder
	case drops:
		return set(m.ID, "failed")
	case sum:
		return Decision[ledger]{Reply: total(s.Count)}, nil
	case quirk:
		return change(s.Orders, s.Count+1000)
	case Refused:
		q, ok := m.Msg.(quirk)
		if !ok {
			return Decision[ledger]{}, nil // it cannot do without
		}
		if q.Then != nil {
			return Decision[ledger]{}, q.Then
		}
		return change(s.Orders, s.Count+1)
	case rings:
		return change(s.Orders, s.Count)
	case boom:
		panic("boom")
	}
	return Decision[ledger]{}, nil
}

func (toy) Owed(s ledger) []Effect {
	var out []Effect
	for _, o := range s.Orders {
		switch o.Status {
		case "owed":
			out = append(out, send{o.ID})
		case "begun":
			out = append(out, charge{o.ID})
		}
	}
	return out
}

// toys is the table of the kind, which no product file knows.
var (
	toys     = journal.Actors("toys", "id uuid")
	toyBegin = toys.Begin("state json")
	toySwap  = toys.Swap("state json")
)

// toyRow is what a decision writes.
type toyRow struct {
	ID id.UUID
	journal.Guard
	State []byte
}

func (r *toyRow) Write() *journal.Write {
	if r.Version == 0 {
		return toyBegin
	}
	return toySwap
}

func (r *toyRow) Put(v *journal.Values) {
	v.UUID(r.ID)
	if r.Version > 0 {
		v.Guard(r.Guard)
	}
	v.JSON(r.State)
}

func toyRows(a cluster.Address, prev Loaded[ledger], d Decision[ledger], m any, _ id.OpID, _ time.Time) *journal.Commit {
	state, err := json.Marshal(d.Next)
	if err != nil {
		panic(err)
	}
	switch m.(type) {
	case quirk:
		state = []byte("refused")
	case rings:
		return &journal.Commit{TimersDone: []journal.TimerKey{{Kind: a.Kind, Entity: a.ID, Name: "rings"}}}
	}
	return &journal.Commit{Rows: []journal.Row{&toyRow{a.ID, prev.Guard, state}}}
}

// row is a ledger as it is stored.
type row struct {
	state          []byte
	version, epoch int64
}

// memory is storage with faults: what a fault returns is what the writer
// answers, after or instead of the write.
type memory struct {
	mu      sync.Mutex
	rows    map[id.UUID]row
	loads   int
	commits int
	fault   func() (err error, written bool)
	loadErr func() error
}

func newMemory() *memory { return &memory{rows: map[id.UUID]row{}} }

func (m *memory) Basis() uint64 { return 0 }

func (m *memory) Do(_ context.Context, c *journal.Commit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	written := true
	if m.fault != nil {
		err, written = m.fault()
	}
	if !written {
		return err
	}
	if len(c.Rows) == 0 { // a timer alone
		m.commits++
		return err
	}
	toy := c.Rows[0].(*toyRow)
	if string(toy.State) == "refused" {
		return journal.ErrRefused
	}
	r, exists := m.rows[toy.ID]
	if r.version != toy.Version || r.epoch != toy.Epoch {
		return journal.ErrConflict
	}
	next := row{toy.State, toy.Version + 1, toy.SetEpoch}
	if !exists {
		next.epoch = 0
	}
	m.rows[toy.ID] = next
	m.commits++
	return err
}

func (m *memory) load(_ context.Context, a cluster.Address) (Loaded[ledger], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loads++
	if m.loadErr != nil {
		if err := m.loadErr(); err != nil {
			return Loaded[ledger]{}, err
		}
	}
	r, ok := m.rows[a.ID]
	if !ok {
		return Loaded[ledger]{}, problem.NotFound("toy")
	}
	return r.loaded()
}

func (r row) loaded() (Loaded[ledger], error) {
	l := Loaded[ledger]{Guard: journal.Guard{Version: r.version, Epoch: r.epoch}}
	return l, json.Unmarshal(r.state, &l.State)
}

func (m *memory) put(a cluster.Address, s ledger) {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rows[a.ID]
	m.rows[a.ID] = row{b, r.version + 1, r.epoch}
}

func (m *memory) row(a cluster.Address) (row, ledger) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rows[a.ID]
	l, err := r.loaded()
	if r.version > 0 && err != nil {
		panic(err)
	}
	return r, l.State
}

func (m *memory) set(fault func() (error, bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

func (m *memory) counts() (loads, commits int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loads, m.commits
}

// world performs the toy's effects and remembers them.
type world struct {
	mu     sync.Mutex
	done   map[string]int
	epochs map[string]int64
	gate   func(ctx context.Context, key string) bool // false: keep the result back
}

func newWorld() *world { return &world{done: map[string]int{}, epochs: map[string]int64{}} }

func (w *world) perform(ctx context.Context, a Activation, e Effect) any {
	key := a.Address.ID.String() + " " + e.Key()
	w.mu.Lock()
	w.done[key]++
	w.epochs[key] = a.Epoch
	gate := w.gate
	w.mu.Unlock()
	if gate != nil && !gate(ctx, e.Key()) {
		return nil
	}
	switch e := e.(type) {
	case send:
		return sent(e)
	case charge:
		return sent(e)
	}
	panic("toy: unknown effect")
}

func (w *world) times(a cluster.Address, key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done[a.ID.String()+" "+key]
}

func toyKind(m *memory, w *world) Kind[ledger] {
	return Kind[ledger]{
		Name: "toy", Machine: toy{}, Load: m.load, Rows: toyRows, Perform: w.perform, Idle: time.Minute,
		Create: func(_ cluster.Address, m any) (ledger, bool) { _, ok := m.(open); return ledger{}, ok },
	}
}

func node(t testing.TB, register ...func(*cluster.Node)) *cluster.Node {
	t.Helper()
	n := clustertest.Node()
	for _, r := range register {
		r(n)
	}
	return testkit.Start(t, n)
}

func host(k Kind[ledger], w Writer, cfg Config) func(*cluster.Node) {
	return func(n *cluster.Node) { Register(n, w, k, cfg) }
}

func address() cluster.Address {
	return cluster.Address{Kind: "toy", Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: id.NewAnywhere()}
}

func status(s ledger, id string) string {
	for _, o := range s.Orders {
		if o.ID == id {
			return o.Status
		}
	}
	return fmt.Sprintf("no order %s", id)
}
