package workflow_test

import (
	"strings"
	"sync"
	"testing"

	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// slots grants what the test allows, and notes what runs want.
type slots struct {
	w *world

	mu     sync.Mutex // guards the field below
	orders []string
}

func (s *slots) note(order string, r id.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = append(s.orders, order+" "+r.String())
}

func (s *slots) Acquire(_ id.TenantID, m msg.AcquireSlot) { s.note("acquire", m.Run) }
func (s *slots) Release(_ id.TenantID, m msg.ReleaseSlot) { s.note("release", m.Run) }
func (s *slots) take(_ id.TenantID, m msg.TakeSlot)       { s.note("take", m.Run) }
func (s *slots) grant(r id.RunID)                         { s.w.node.Tell(s.w.address(r), msg.SlotGranted{}) }
func (s *slots) had(order string, r id.RunID) (times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.orders {
		if o == order+" "+r.String() {
			times++
		}
	}
	return times
}

// last is the last order of a run.
func (s *slots) last(r id.RunID) (order string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.orders {
		if name, ok := strings.CutSuffix(o, " "+r.String()); ok {
			order = name
		}
	}
	return order
}

// A run waits for a slot of its tenant, gives it back while it waits for people and takes it again.
// Its child runs take none. A run that is cancelled while it is queued gives up its wish.
func TestSlots(t *testing.T) {
	w := newWorld(t)
	w.stop()
	s := &slots{w: w}
	w.node = cluster.New(cluster.Config{Member: w.member})
	w.host(w.node, w.tags, workflow.Config{Slots: s, TakeSlot: s.take})
	testkit.Start(t, w.node)
	w.stop = w.sweep(w.node)
	definition := `{"nodes": [{"id": "g", "type": "gate", "title": "x"}, {"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/say hi"}], "edges": [{"from": "g", "to": "a"}]}`
	r := w.begin(definition, `null`, ``)
	w.eventually("it wants a slot", func() bool { return s.had("acquire", r) > 0 })
	if got := w.status(r); got != "queued" {
		t.Fatalf("it is %s without a slot", got)
	}
	s.grant(r)
	a := w.approval(r, "g")
	w.eventually("it gives its slot back", func() bool { return s.had("release", r) > 0 })
	if n := s.had("take", r); n != 0 {
		t.Errorf("it took %d slots before it was decided", n)
	}
	if err := w.decide(a, lifecycle.ActionApprove, "", ""); err != nil {
		t.Fatal(err)
	}
	w.eventually("it takes its slot again", func() bool { return s.had("take", r) > 0 })
	if got := w.ended(r); got != "succeeded" {
		t.Error(got)
	}
	w.eventually("it gives its slot back at its end", func() bool { return s.last(r) == "release" })
	u, err := id.Parse(w.text(`SELECT id FROM runs WHERE parent_run_id = $1`, r))
	if err != nil {
		t.Fatal(err)
	}
	child := id.RunID{UUID: u}
	if n := s.had("acquire", child) + s.had("take", child) + s.had("release", child); n != 0 {
		t.Errorf("its child run asked for a slot %d times", n)
	}

	r = w.begin(definition, `null`, ``)
	w.eventually("it wants a slot", func() bool { return s.had("acquire", r) > 0 })
	w.ask(r, msg.CancelRun{})
	if got := w.ended(r); got != "cancelled CANCELLED" {
		t.Error(got)
	}
	w.eventually("it gives up its wish", func() bool { return s.had("release", r) > 0 })
	s.grant(r) // too late
	w.ask(r, msg.CancelRun{})
	if got := w.text(`SELECT count(*) FROM run_steps WHERE run_id = $1`, r); got != "0" {
		t.Errorf("it began %s nodes", got)
	}
	w.exact(r)
}
