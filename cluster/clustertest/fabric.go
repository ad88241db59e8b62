package clustertest

import (
	"context"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// Node makes a node that owns every shard and knows no other. testkit.Start starts it.
func Node() *cluster.Node {
	return cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
}

// Fabric joins real nodes. A message to another node is encoded and decoded. What is
// told may be lost.
type Fabric struct {
	codec *msg.Codec

	mu    sync.Mutex // guards the fields below
	nodes map[id.MemberID]*cluster.Node
	lost  func(m any) bool
}

// NewFabric makes a fabric without nodes. The codec encodes every message that crosses
// nodes.
func NewFabric(codec *msg.Codec) *Fabric {
	codec.AddError("moved", cluster.ErrMoved)
	codec.AddError("owner", cluster.ErrNotOwner)
	return &Fabric{codec: codec, nodes: map[id.MemberID]*cluster.Node{}, lost: func(any) bool { return false }}
}

func (f *Fabric) node(m id.MemberID) *cluster.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[m]
}

func (f *Fabric) wire(v any) (any, error) {
	name, body, err := f.codec.Encode(v)
	if err != nil {
		return nil, err
	}
	return f.codec.Decode(name, body)
}

// Lose says which messages are lost of those that are told.
func (f *Fabric) Lose(lost func(m any) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = lost
}

// end is a member's end of a fabric.
type end struct {
	*Fabric
	self id.MemberID
}

func (e end) Ask(ctx context.Context, to id.MemberID, a cluster.Address, m any) (any, error) {
	n := e.node(to)
	if n == nil {
		return nil, cluster.ErrUnknownMember
	}
	m, err := e.wire(m)
	if err != nil {
		return nil, err
	}
	out := make(chan any, 1)
	until, _ := ctx.Deadline()
	n.Receive(a, m, until, func(v any) { out <- v })
	select {
	case v := <-out:
		if v, err = e.wire(v); err != nil {
			return nil, err
		}
		if err, ok := v.(error); ok {
			return nil, err
		}
		return v, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e end) Tell(to id.MemberID, a cluster.Address, m any) error {
	n := e.node(to)
	e.mu.Lock()
	lost := e.lost(m)
	e.mu.Unlock()
	if n == nil || lost {
		return nil
	}
	m, err := e.wire(m)
	if err != nil {
		return err
	}
	return n.ReceiveTold(a, m)
}

func (e end) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	n := e.node(to)
	if n == nil {
		return nil, cluster.ErrUnknownMember
	}
	m, err := e.wire(m)
	if err != nil {
		return nil, err
	}
	v, err := n.Served(ctx, e.self, service, m)
	if err != nil {
		return nil, err
	}
	return e.wire(v)
}

// Join adds a node to the fabric, which the others do not know of yet.
func (f *Fabric) Join(t *testing.T, register func(n *cluster.Node)) *cluster.Node {
	t.Helper()
	self := id.MemberID{UUID: id.NewAnywhere()}
	n := cluster.New(cluster.Config{Member: self, Log: zerolog.Nop(), Peers: end{f, self}})
	register(n)
	testkit.Start(t, n)
	f.mu.Lock()
	f.nodes[self] = n
	f.mu.Unlock()
	return n
}

// Kill ends a node without a word.
func (f *Fabric) Kill(n *cluster.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, n.Member())
}

// Know tells all nodes of the members.
func (f *Fabric) Know(t *testing.T) {
	t.Helper()
	members := f.Members()
	for _, m := range members {
		if err := f.node(m).SetMembers(members); err != nil {
			t.Fatal(err)
		}
	}
}

// Members are the nodes of the fabric.
func (f *Fabric) Members() []id.MemberID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var members []id.MemberID
	for m := range f.nodes {
		members = append(members, m)
	}
	return members
}
