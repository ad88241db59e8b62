package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// city is a few real nodes, the connections between them, and runs that behave as real ones do: an
// activation abandons its hub when it is loaded, publishes what it committed, and ends without
// notice.
type city struct {
	*world
	t     testing.TB
	nodes []*quarter
}

// quarter is one node of the city.
type quarter struct {
	*house
	city *city
	hs   *Hubs
}

// wires are a quarter's connections.
type wires struct {
	from id.MemberID
	city *city
}

func (w wires) to(m id.MemberID) (*cluster.Node, error) {
	for _, q := range w.city.nodes {
		if q.id == m {
			return q.node, nil
		}
	}
	return nil, cluster.ErrUnknownMember
}

func (w wires) Ask(ctx context.Context, to id.MemberID, a cluster.Address, m any) (any, error) {
	n, err := w.to(to)
	if err != nil {
		return nil, err
	}
	got := make(chan any, 1)
	until, _ := ctx.Deadline()
	n.Receive(a, m, until, func(v any) { got <- v })
	v := <-got
	if err, ok := v.(error); ok {
		return nil, err
	}
	return v, nil
}

func (w wires) Tell(to id.MemberID, a cluster.Address, m any) error {
	n, err := w.to(to)
	if err != nil {
		return err
	}
	go func() { _ = n.ReceiveTold(a, m) }()
	return nil
}

func (w wires) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	n, err := w.to(to)
	if err != nil {
		return nil, err
	}
	return n.Served(ctx, w.from, service, m)
}

// line is a message to a run: a function that gets the hubs of the run's node, and commits and
// publishes.
type line func(hs *Hubs)

// player is a run's activation.
type player struct {
	q   *quarter
	k   key
	seq int64 // as this activation knows it; 0 before it has loaded
}

func (p *player) Receive(c cluster.Context, m any) {
	if p.seq == 0 {
		p.seq = p.q.city.seq(p.k)
		p.q.hs.Abandon(p.k.tenant, p.k.run)
	}
	if p.seq != p.q.city.seq(p.k) { // another activation has committed
		c.Reply(cluster.ErrMoved)
		c.Stop()
		return
	}
	m.(line)(p.q.hs)
	p.seq = p.q.city.seq(p.k)
}

func (p *player) Stopped() {}

func (w *world) seq(k key) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.facts[k].Seq
}

// newCity returns a city. Without doubt it does not check silent publishers: each node must learn
// of a move by itself.
func newCity(t testing.TB, nodes int, every time.Duration, carried, doubt bool) *city {
	t.Helper()
	w := &city{world: &world{facts: map[key]*event.Facts{}}, t: t}
	under := &town{world: w.world, t: t}
	for range nodes {
		h := &house{town: under, id: id.MemberID{UUID: id.NewAnywhere()}, wake: make(chan struct{}, 1)}
		q := &quarter{house: h, city: w}
		h.node = cluster.New(cluster.Config{Member: h.id, Log: zerolog.Nop(), Peers: wires{h.id, w}})
		cfg := Config{Node: h.node, Source: w, Heads: w, Log: zerolog.Nop(), Watch: every, Peers: h.node}
		if carried {
			cfg.Carrier = h
		}
		q.hs = New(cfg)
		h.hs = q.hs
		if !doubt {
			q.hs.doubt = math.MaxInt
		}
		h.node.Serve(Service, q.hs.ServeWatch)
		h.node.Register(msg.KindRun, func(a cluster.Address) cluster.Behavior {
			return &player{q: q, k: key{a.Tenant, id.RunID{UUID: a.ID}}}
		})
		w.nodes = append(w.nodes, q)
		under.nodes = append(under.nodes, h)
	}
	for _, q := range w.nodes {
		if err := errors.Join(q.node.Start(t.Context()), q.hs.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		if carried {
			q.done.Go(func() { q.deliver(stop) })
		}
		t.Cleanup(func() {
			close(stop)
			q.done.Wait()
			q.hs.Stop()
			testkit.Stop(t, q.node.Stop)
		})
	}
	for i := range w.nodes {
		w.lists(i, 0)
	}
	return w
}

// lists gives a node a member list: the nodes with these numbers.
func (w *city) lists(node int, members ...int) {
	w.t.Helper()
	var list []id.MemberID
	for _, m := range members {
		list = append(list, w.nodes[m].id)
	}
	w.nodes[node].node.Yield(!slices.Contains(members, node))
	if err := w.nodes[node].node.SetMembers(list); err != nil {
		w.t.Fatal(err)
	}
}

// listed gives all nodes a member list.
func (w *city) listed(members ...int) {
	w.t.Helper()
	for i := range w.nodes {
		w.lists(i, members...)
	}
}

// abandoned ends a step whose text is lost.
func (p *play) abandoned() {
	p.commit(func(f *event.Facts) []*event.Frame {
		f.Steps[len(f.Steps)-1].Status = lifecycle.StepAbandoned
		return nil
	})
}

func (p *play) address() cluster.Address {
	return cluster.Address{Kind: msg.KindRun, Tenant: p.k.tenant, ID: p.k.run.UUID}
}

// ask sends a message to the run, wherever that node believes it to be.
func (w *city) ask(node int, p *play, do func()) {
	w.t.Helper()
	if _, err := w.nodes[node].node.Ask(w.t.Context(), p.address(), line(func(hs *Hubs) { p.hs = hs; do() })); err != nil {
		w.t.Fatal(err)
	}
}

// A run moves while it is read on the node that it leaves, on the node that it moves to and on a
// third one: its readers get the rest.
func TestAReaderGetsTheRestOfARunThatMoves(t *testing.T) {
	for _, c := range []struct {
		name  string
		moves func(w *city, p *play)
		deaf  bool // the former owner never learns of the move
	}{
		{"its shard moves", func(w *city, _ *play) { w.listed(1) }, false},
		{"the new owner knows last", func(w *city, _ *play) { w.lists(0, 1); w.lists(2, 1); w.lists(1, 1) }, false},
		{"the new owner knows first", func(w *city, _ *play) { w.lists(1, 1); w.lists(2, 1); w.lists(0, 1) }, false},
		{"its node drains", func(w *city, _ *play) { w.listed(1, 2); w.listed(1) }, false},
		{"it comes back", func(w *city, _ *play) { w.listed(1); w.listed(0) }, false},
		{"it comes back after it went on", func(w *city, p *play) {
			w.listed(1)
			w.ask(1, p, p.tool)
			w.listed(0)
		}, false},
		{"its node is suspended", func(w *city, _ *play) { w.nodes[0].node.Suspend(msg.KindRun) }, false},
		{"its node is suspended, and it moves", func(w *city, _ *play) {
			w.nodes[0].node.Suspend(msg.KindRun)
			w.listed(1)
		}, false},
		{"in the middle of a step", func(w *city, p *play) {
			w.ask(0, p, func() {
				p.publish(p.beginLLM())
				l := p.hs.Begin(p.k.tenant, p.k.run, w.seq(p.k), 1, true)
				l.Text("said ")
				w.listed(1)
				l.Text("late")
				p.abandoned()
			})
		}, false},
		{"before the text of a step begins", func(w *city, p *play) {
			w.ask(0, p, func() {
				p.publish(p.beginLLM())
				w.listed(1)
				for _, q := range w.nodes {
					q.hs.review()
				}
				p.hs.Begin(p.k.tenant, p.k.run, w.seq(p.k), 1, true).Text("late")
				p.abandoned()
			})
		}, false},
		{"between a commit and its publication", func(w *city, p *play) {
			w.ask(0, p, func() {
				frames := p.commit(func(f *event.Facts) []*event.Frame {
					f.Seq++
					f.Marks = append(f.Marks, event.MarkFacts{Seq: f.Seq, Type: event.Handoff, Data: json.RawMessage(`{}`)})
					return []*event.Frame{event.Marked(f.Seq, event.Handoff, json.RawMessage(`{}`))}
				})
				w.listed(1)
				for _, q := range w.nodes { // the new member list is applied before the commit
					q.hs.review()
				}
				p.publish(frames)
			})
		}, false},
		{"a commit of the former owner comes too late", func(w *city, p *play) {
			w.lists(1, 1)
			w.lists(2, 1)
			w.ask(2, p, p.tool)
			got := make(chan any, 1)
			w.nodes[0].node.Receive(p.address(), line(func(*Hubs) { t.Error("the former owner still runs it") }), time.Now().Add(time.Minute), func(v any) { got <- v })
			if v := <-got; v != cluster.ErrMoved {
				t.Errorf("got %v", v)
			}
			w.lists(0, 1)
		}, false},
		{"the former owner never hears of it", func(w *city, _ *play) { w.lists(1, 1); w.lists(2, 1) }, true},
		{"only the new owner hears of it", func(w *city, _ *play) { w.lists(1, 1) }, true},
		{"the former owner commits in vain and never hears of it", func(w *city, p *play) {
			w.lists(1, 1)
			w.lists(2, 1)
			w.ask(2, p, p.tool)
			got := make(chan any, 1)
			w.nodes[0].node.Receive(p.address(), line(func(*Hubs) {}), time.Now().Add(time.Minute), func(v any) { got <- v })
			<-got
		}, true},
	} {
		for name, carried := range map[string]bool{"": true, ", with nothing to carry messages": false} {
			t.Run(c.name+name, func(t *testing.T) {
				w := newCity(t, 3, 10*time.Millisecond, carried, c.deaf)
				p := newPlay(w.world, nil, 1)
				conns, readers := make([]*conn, 3), make([]*Reader, 3)
				for i, q := range w.nodes {
					conns[i] = newConn(-1)
					readers[i] = open(t, q.hs, p.k, event.ReadCursor("", -1, true), conns[i])
				}
				w.ask(0, p, func() { p.publish(p.start()) })
				w.ask(0, p, p.tool)
				for i, cn := range conns {
					cn.until(t, fmt.Sprint("node ", i, " hears it"), has(4))
				}
				if carried {
					for _, q := range w.nodes[1:] {
						q.mirrored(t, p.k)
					}
				}
				c.moves(w, p)
				heard := func() {
					t.Helper()
					for i, cn := range conns {
						cn.until(t, fmt.Sprint("node ", i, " hears the rest"), func(fs []*event.Frame) bool {
							return len(fs) > 0 && fs[len(fs)-1].Pos.Seq == w.seq(p.k)
						})
					}
				}
				heard()
				w.ask(1, p, p.tool)
				heard() // not only at the end of the run
				w.ask(1, p, func() { p.publish(p.end()) })
				without := func(fs []*event.Frame) []string {
					return told(slices.DeleteFunc(slices.Clone(fs), func(f *event.Frame) bool { return f.Type.Text() }))
				}
				for i, cn := range conns {
					cn.wait(t)
					readers[i].Gone()
					increasing(t, cn.got())
					if got, want := without(cn.got()), without(p.all); !slices.Equal(got, want) {
						t.Errorf("node %d got %q want %q", i, got, want)
					}
				}
				testkit.Eventually(t, "nothing stays", func() bool {
					for _, q := range w.nodes {
						if hubsOf(q.hs) > 0 || len(q.hs.allLinks()) > 0 {
							return false
						}
					}
					return true
				})
			})
		}
	}
}

// A publisher that is lost without notice is detected, and a silent one is not taken for lost.
func TestASilentPublisherIsDoubted(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	cn := newConn(-1)
	r := open(t, hs, p.k, event.ReadCursor("", -1, true), cn)
	defer r.Gone()
	p.publish(p.start())
	p.publish(p.beginLLM())
	l := hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
	l.Text("a")
	cn.until(t, "the text", has(3))
	look := func() {
		t.Helper()
		if n, err := hs.runOnce(t.Context(), hs.doubted()); n > 0 || err != nil {
			t.Fatalf("%d readers are behind; %v", n, err)
		}
	}
	reads := w.count()
	for range 5 {
		look()
	}
	l.Text("b")
	cn.until(t, "text goes on", has(4))
	if n := w.count() - reads; n > 0 {
		t.Errorf("the facts were read %d times", n)
	}
	lost := value(t, lostPublishers)
	p.speak(0)
	p.end() // the end is not published
	cn.wait(t)
	increasing(t, cn.got())
	if n := value(t, lostPublishers) - lost; n != 1 {
		t.Errorf("%v publishers were lost", n)
	}
}

func value(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(c)
	got, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return got[0].GetMetric()[0].GetCounter().GetValue()
}
