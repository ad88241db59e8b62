package workflow_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"agentsvc/actors/approval"
	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// pair are two nodes over one database. The first one has all shards.
type pair struct {
	*world
	from, to *cluster.Node
}

func newPair(t *testing.T) *pair {
	t.Helper()
	w := newWorld(t)
	w.stop() // its only node
	codec := msg.NewCodec(slices.Concat(run.Traits.Messages, workflow.Traits.Messages, approval.Traits.Messages)...)
	durable.AddTo(codec)
	f := clustertest.NewFabric(codec)
	p := &pair{world: w}
	var sweeps []func()
	for _, to := range []**cluster.Node{&p.from, &p.to} {
		*to = f.Join(t, func(n *cluster.Node) {
			n.Yield(true)
			durable.ServeHolder(n)
			w.host(n, w.tags, workflow.Config{Holder: durable.Holder(n, f.Members)})
		})
	}
	p.gives(p.from, p.from, p.to)
	for _, n := range []*cluster.Node{p.from, p.to} {
		sweeps = append(sweeps, w.sweep(n))
	}
	w.node = p.from
	w.stop = func() {
		for _, stop := range sweeps {
			stop()
		}
	}
	return p
}

// gives gives all shards to a node, as far as some nodes know.
func (p *pair) gives(owner *cluster.Node, told ...*cluster.Node) {
	p.t.Helper()
	for _, n := range told {
		if err := n.SetMembers([]id.MemberID{owner.Member()}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// A run moves to another node while its nodes are at work. The call is finished where it was begun,
// and made once; what comes meanwhile reaches the run by either node; the other branches go on;
// and nothing is lost if the shard comes back.
func TestARunThatMovesWhileItsNodesAreAtWork(t *testing.T) {
	for name, moves := range map[string]int{"it moves": 1, "it moves and comes back": 2} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			held := make(chan struct{})
			p.mu.Lock()
			p.held = held
			p.mu.Unlock()
			r := p.begin(`{"nodes": [
				{"id": "c", "type": "tool", "tool": "shop.once", "args": {"n": 1}}, {"id": "e", "type": "wait_event", "event": "go"}, {"id": "d", "type": "delay", "seconds": 0.02},
				{"id": "g", "type": "gate", "title": "x"}, {"id": "a", "type": "agent", "agent_id": "AGENT", "input": "/say hi"},
				{"id": "later", "type": "tool", "tool": "shop.again", "args": {"n": 2}},
				{"id": "z", "type": "set", "values": {"z": "{{nodes.c.json.n}} {{nodes.e.text}} {{nodes.a.text}} {{nodes.later.json.n}}"}}],
				"edges": [{"from": "e", "to": "later"}, {"from": "c", "to": "z"}, {"from": "later", "to": "z"}, {"from": "d", "to": "z"}, {"from": "g", "to": "z"}, {"from": "a", "to": "z"}]}`, `null`, ``)
			p.eventually("it is called", func() bool { return len(p.calls("shop.once", r)) == 1 })
			p.gives(p.to, p.to, p.from)
			p.node = p.to
			p.inject(r, "go", `"ev"`, "1")
			p.node = p.from
			p.inject(r, "go", `"twice"`, "1") // the same event, by the other node
			p.insist(r, "g", lifecycle.ActionApprove)
			if got := p.status(r); got == "succeeded" {
				t.Fatal("it ends before its call is answered")
			}
			if moves == 2 {
				p.gives(p.from, p.from, p.to)
			}
			close(held)
			if moves == 1 {
				p.node = p.to
			}
			if got := p.ended(r); got != "succeeded" {
				t.Fatalf("it is %s: %s", got, p.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			if got := p.text(`SELECT output -> 'variables' ->> 'z' FROM runs WHERE id = $1`, r); got != "1 ev hi 2" {
				t.Error(got)
			}
			if got := slices.Collect(maps.Values(p.calls("shop.once", r))); !slices.Equal(got, []int{1}) {
				t.Errorf("calls %v", got)
			}
			if got := p.text(`SELECT count(*) FROM workflow_events WHERE run_id = $1`, r); got != "1" {
				t.Errorf("%s events", got)
			}
		})
	}
}

// Two nodes that both take themselves for the owner of a run have activations of it. One of them
// commits each change: no event is lost or counts twice, and no node runs twice.
func TestTwoActivationsOfARun(t *testing.T) {
	p := newPair(t)
	const n = 12
	definition := `{"nodes": [`
	for i := range n {
		definition += fmt.Sprintf(`{"id": "e%d", "type": "wait_event", "event": "x"}, {"id": "t%d", "type": "tool", "tool": "shop.again", "args": {"n": "{{nodes.e%d.json.n}}"}},`, i, i, i)
	}
	definition += `{"id": "z", "type": "set", "values": {}}], "edges": [`
	for i := range n {
		if i > 0 {
			definition += ","
		}
		definition += fmt.Sprintf(`{"from": "e%d", "to": "t%d"}, {"from": "t%d", "to": "z"}`, i, i, i)
	}
	r := p.begin(definition+`]}`, `null`, ``)
	p.eventually("it waits", func() bool {
		return p.text(`SELECT count(*) FROM run_steps WHERE run_id = $1 AND status = 'waiting'`, r) == fmt.Sprint(n)
	})
	p.gives(p.to, p.to) // the first one has not heard of it
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			node := []*cluster.Node{p.from, p.to}[i%2]
			op := msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "x", Payload: []byte(fmt.Sprintf(`{"n": %d}`, i))}
			p.eventually("the event is accepted", func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_, err := node.Ask(ctx, p.address(r), op)
				return err == nil
			})
		})
	}
	all.Wait()
	p.gives(p.to, p.from)
	p.node = p.to
	if got := p.ended(r); got != "succeeded" {
		t.Fatalf("it is %s: %s", got, p.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	if got := p.text(`SELECT count(*) || ' ' || count(DISTINCT step_idx) FROM workflow_events WHERE run_id = $1`, r); got != fmt.Sprint(n, " ", n) {
		t.Errorf("events and the steps that they woke: %s", got)
	}
	if got := p.text(`SELECT count(DISTINCT value ->> 'text') FROM json_each((SELECT output -> 'outputs' FROM runs WHERE id = $1)) WHERE key LIKE 't%'`, r); got != fmt.Sprint(n) {
		t.Errorf("%s payloads arrive", got)
	}
	if got := p.text(`SELECT count(*) = count(DISTINCT (data ->> 'node_id', data ->> 'status', type)) FROM run_marks WHERE run_id = $1 AND type LIKE 'node.%'`, r); got != "true" {
		t.Error("a node ran twice")
	}
}
