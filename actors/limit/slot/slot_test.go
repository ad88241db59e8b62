package slot

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tenant() id.TenantID { return id.TenantID{UUID: id.NewAnywhere()} }

// codec knows the messages of this package.
func codec() *msg.Codec {
	c := msg.NewCodec()
	AddTo(c)
	return c
}

// A lost answer to Wishes is asked for again.
var _ cluster.Repeatable = Wishes{}

func TestMessagesCrossNodes(t *testing.T) {
	c, m := codec(), Granted{[]id.RunID{runID(1)}}
	name, body, err := c.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Decode(name, body)
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := v.(Granted); !ok || !slices.Equal(g.Running, m.Running) {
		t.Errorf("%+v", v)
	}
}

// table is Postgres for slots, runs are the actors that are told.
type table struct {
	mu      sync.Mutex
	running []id.RunID
	err     error
}

func (t *table) Running(context.Context, id.TenantID) ([]id.RunID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.running), t.err
}

type runActor struct {
	id  id.RunID
	out chan id.RunID
}

func (r *runActor) Receive(_ cluster.Context, m any) {
	if _, ok := m.(msg.SlotGranted); ok {
		r.out <- r.id
	}
}
func (r *runActor) Stopped() {}

func TestSlotsOnANode(t *testing.T) {
	rows := &table{running: []id.RunID{runID(9)}}
	granted := make(chan id.RunID, 100)
	n := clustertest.Node()
	n.Register(Kind, New(Config{Limit: 2, Running: rows, Rest: time.Millisecond, Now: time.Now, Log: zerolog.Nop()}))
	n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior {
		return &runActor{id: id.RunID{UUID: a.ID}, out: granted}
	})
	testkit.Start(t, n)
	who := tenant()
	at := Address(who)
	rows.err = errors.New("the database is away")
	for i := byte(1); i <= 3; i++ {
		n.Tell(at, msg.AcquireSlot{Run: runID(i), CreatedAt: epoch.Add(time.Duration(i))})
	}
	rows.mu.Lock()
	rows.err = nil
	rows.mu.Unlock()
	next := func(want id.RunID) {
		t.Helper()
		select {
		case got := <-granted:
			if got != want {
				t.Errorf("granted %v, want %v", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%v is not granted", want)
		}
	}
	next(runID(1)) // 9 ran before and holds the other place
	rows.mu.Lock()
	rows.running = nil
	rows.mu.Unlock()
	n.Tell(at, msg.ReleaseSlot{Run: runID(9)})
	next(runID(2))
	n.Tell(at, msg.AcquireSlot{Run: runID(2)})
	next(runID(2)) // told again
	n.Tell(at, msg.ReleaseSlot{Run: runID(1)})
	next(runID(3))
	n.Tell(at, msg.TakeSlot{Run: runID(4)}) // goes on after an approval
	n.Tell(at, msg.AcquireSlot{Run: runID(5)})
	n.Tell(at, msg.ReleaseSlot{Run: runID(2)}) // 3 and 4 run
	n.Tell(at, msg.ReleaseSlot{Run: runID(4)})
	next(runID(5))
	n.Tell(at, msg.ReleaseSlot{Run: runID(5)})
	n.Tell(at, msg.ReleaseSlot{Run: runID(3)})
	testkit.Eventually(t, "slots that nobody holds leave memory", func() bool { return !n.Active(at) })
	if len(granted) != 0 {
		t.Error("granted too much")
	}
}

// gate is a table that answers one read each time it is opened.
type gate struct {
	table
	open chan struct{}
}

func (g *gate) Running(ctx context.Context, t id.TenantID) ([]id.RunID, error) {
	select {
	case <-g.open:
		return g.table.Running(ctx, t)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func gatedSlots(t *testing.T) (n *cluster.Node, rows *gate, granted chan id.RunID) {
	rows, granted = &gate{open: make(chan struct{}, 1)}, make(chan id.RunID, 100)
	n = clustertest.Node()
	n.Register(Kind, New(Config{Limit: 1, Running: rows, Rest: time.Hour, Now: time.Now, Log: zerolog.Nop()}))
	n.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior {
		return &runActor{id: id.RunID{UUID: a.ID}, out: granted}
	})
	testkit.Start(t, n)
	return n, rows, granted
}

// Of all runs that asked before the first read, the oldest is served first. A slot that was
// released meanwhile is free, though the read still saw it taken.
func TestSlotsThatDoNotKnowWhoRuns(t *testing.T) {
	for _, seen := range [][]id.RunID{nil, {runID(4)}} {
		n, rows, granted := gatedSlots(t)
		rows.running = seen
		at := Address(tenant())
		wish := func(run byte) msg.AcquireSlot {
			return msg.AcquireSlot{Run: runID(run), CreatedAt: epoch.Add(time.Duration(run))}
		}
		n.Tell(at, wish(3))
		for range 2 { // repeated
			v, err := n.Ask(t.Context(), at, Wishes{Waiting: []msg.AcquireSlot{wish(1), wish(2)}, Released: []id.RunID{runID(4)}})
			if g, ok := v.(Granted); err != nil || !ok || len(g.Running) != 0 {
				t.Fatal(v, err)
			}
		}
		n.Tell(at, msg.ReleaseSlot{Run: runID(2)})
		if _, err := n.Ask(t.Context(), at, Wishes{}); err != nil {
			t.Fatal(err)
		}
		if len(granted) != 0 {
			t.Error("granted before it is known who runs")
		}
		rows.open <- struct{}{}
		var order []id.RunID
		for range 2 {
			select {
			case run := <-granted:
				order = append(order, run)
				n.Tell(at, msg.ReleaseSlot{Run: run})
			case <-time.After(time.Minute):
				t.Fatalf("nobody is granted a place after %v", order)
			}
		}
		if !slices.Equal(order, []id.RunID{runID(1), runID(3)}) {
			t.Errorf("granted %v", order)
		}
	}
}

// Slots that are unused for a moment still know the running runs: the next run waits for no
// read.
func TestSlotsRest(t *testing.T) {
	n, rows, granted := gatedSlots(t)
	at := Address(tenant())
	rows.open <- struct{}{} // one read and no other
	for run := range byte(3) {
		n.Tell(at, msg.AcquireSlot{Run: runID(run)})
		select {
		case got := <-granted:
			if got != runID(run) {
				t.Errorf("granted %v", got)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%v is not granted", runID(run))
		}
		n.Tell(at, msg.ReleaseSlot{Run: runID(run)})
		if _, err := n.Ask(t.Context(), at, Wishes{}); err != nil {
			t.Fatal(err)
		}
	}
}
