package durable

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// TestCrashLaw drives random histories through the real host. At any step the
// activation's memory may be lost: before a commit, after it and before reply
// and effects, while an effect runs, after it and before its result; or the
// whole process ends and another one goes on. Whatever happened, in the end:
//
//   - the state moved by committed decisions only, version by version;
//   - every acknowledged order is there, and every order is counted once;
//   - every plain order was sent at least once, under its key;
//   - nothing was performed for an order that was not committed;
//   - no charge was performed twice, and none of unknown outcome is repeated.
func TestCrashLaw(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMemory()
		crashLaw(rt, rapid.IntRange(1, 40).Draw(rt, "steps"), m, m.load, func(a cluster.Address) (row, ledger) { return m.row(a) }, m.put)
	})
}

// audited wraps storage: it checks the version law and injects the crashes.
type audited struct {
	Writer
	mu      sync.Mutex
	next    []string // crashes of the next commits
	ended   bool     // the process is gone: nothing is written any more
	commits int64
}

func (w *audited) Do(ctx context.Context, c *journal.Commit) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return journal.ErrFenced
	}
	crash := ""
	if len(w.next) > 0 {
		crash, w.next = w.next[0], w.next[1:]
	}
	if crash == "before" {
		return journal.ErrUnavailable
	}
	err := w.Writer.Do(ctx, c)
	if err == nil {
		w.commits++
		if crash == "after" {
			return journal.ErrUnsettled
		}
	}
	return err
}

func crashLaw(rt *rapid.T, steps int, storage Writer,
	load func(context.Context, cluster.Address) (Loaded[ledger], error),
	read func(cluster.Address) (row, ledger), put func(cluster.Address, ledger)) {
	var (
		w      = newWorld()
		a      = address()
		writer *audited
		n      *cluster.Node
		hold   = map[string]int{} // results kept back, by key: the crash between effect and result
		acked  = map[string]bool{}
		sums   = map[string]int64{}
		total  int64
	)
	var holdMu sync.Mutex
	w.gate = func(ctx context.Context, key string) bool {
		holdMu.Lock()
		kind := hold[key]
		delete(hold, key)
		holdMu.Unlock()
		switch kind {
		case 1: // during: it hangs until its activation is gone
			<-ctx.Done()
		case 2: // done, and its result is lost with its activation
			n := n
			n.Tell(a, boom{})
			<-ctx.Done()
		}
		return true
	}
	boot := func() {
		writer = &audited{Writer: storage}
		n = cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}})
		k := toyKind(newMemory(), w)
		k.Load = load
		Register(n, writer, k, Config{})
		if err := n.Start(context.Background()); err != nil {
			rt.Fatal(err)
		}
	}
	kill := func() {
		writer.mu.Lock()
		writer.ended = true
		total += writer.commits
		writer.mu.Unlock()
		if err := n.Stop(context.Background()); err != nil {
			rt.Fatal(err)
		}
	}
	put(a, ledger{Orders: []order{}})
	boot()
	for i := range steps {
		switch rapid.SampledFrom([]string{"add", "add", "add", "charge", "repeat", "kill", "panic", "before", "after"}).Draw(rt, "step") {
		case "add", "charge":
			o := add{ID: fmt.Sprint(i), N: int64(i) + 1, Charge: rapid.Bool().Draw(rt, "charge")}
			sums[o.ID] = o.N
			holdMu.Lock()
			hold["send:"+o.ID] = rapid.IntRange(0, 2).Draw(rt, "hold")
			hold["charge:"+o.ID] = hold["send:"+o.ID]
			holdMu.Unlock()
			if rapid.Bool().Draw(rt, "tell") {
				n.Tell(a, o)
			} else if _, err := n.Ask(context.Background(), a, o); err == nil {
				acked[o.ID] = true
			}
		case "repeat":
			for id, sum := range sums {
				if _, err := n.Ask(context.Background(), a, add{ID: id, N: sum}); err == nil {
					acked[id] = true
				}
				break
			}
		case "kill":
			kill()
			boot()
		case "panic":
			if _, err := n.Ask(context.Background(), a, boom{}); err == nil {
				rt.Fatal("a panic was answered")
			}
		case "before", "after":
			c := rapid.SampledFrom([]string{"before", "after"}).Draw(rt, "crash")
			writer.mu.Lock()
			writer.next = append(writer.next, c)
			writer.mu.Unlock()
		}
	}
	// The last process is a healthy one: everything owed comes to its end.
	kill()
	w.mu.Lock()
	w.gate = nil
	w.mu.Unlock()
	boot()
	n.Tell(a, Wake{})
	var s ledger
	var r row
	testkit.Eventually(rt, "all that is owed is done", func() bool {
		r, s = read(a)
		return len(toy{}.Owed(s)) == 0 || rt.Failed()
	})
	kill()
	r, s = read(a)
	if r.version != 1+total {
		rt.Fatalf("version %d after %d commits", r.version, total)
	}
	var count int64
	seen := map[string]bool{}
	for _, o := range s.Orders {
		if seen[o.ID] {
			rt.Fatalf("order %s twice", o.ID)
		}
		seen[o.ID] = true
		count += sums[o.ID]
		sends, charges := w.times(a, "send:"+o.ID), w.times(a, "charge:"+o.ID)
		switch {
		case o.Charge && (charges > 1 || sends > 0):
			rt.Fatalf("charge %s: %d times", o.ID, charges)
		case o.Charge && o.Status == "sent" && charges != 1:
			rt.Fatalf("charge %s is said to be done and was performed %d times", o.ID, charges)
		case !o.Charge && (o.Status != "sent" || sends < 1):
			rt.Fatalf("order %s is %s, sent %d times", o.ID, o.Status, sends)
		}
	}
	if s.Count != count {
		rt.Fatalf("count %d, orders sum to %d", s.Count, count)
	}
	for id := range sums {
		if !seen[id] && w.times(a, "send:"+id)+w.times(a, "charge:"+id) > 0 {
			rt.Fatalf("order %s was performed and never committed", id)
		}
	}
	for id := range acked {
		if !seen[id] {
			rt.Fatalf("order %s was acknowledged and is gone", id)
		}
	}
}
