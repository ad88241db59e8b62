package main

import (
	"context"
	"fmt"
	"slices"

	"agentsvc/actors/notice"
	"agentsvc/cluster"
	"agentsvc/cluster/membership"
	"agentsvc/cluster/remote"
	"agentsvc/cluster/revocation"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

// place is the part of a node that places it: its actors, its lease and the other nodes.
type place struct {
	node    *cluster.Node
	member  *membership.Membership
	revoker *revocation.Revoker
	mesh    *mesh // nil: a single node
	board   *notice.Board
	live    func() bool // the lease holds
	trusted func() bool // the lease holds long enough for cached authorizations
}

func (s *service) joinCluster(ctx context.Context) (err error) {
	if s.mesh, err = s.openMesh(s.c, s.self, s.log); err != nil {
		return err
	}
	placed := cluster.Config{Member: s.self, Log: s.log}
	if s.mesh != nil {
		placed.Peers = s.mesh.remote
	}
	s.node = cluster.New(placed)
	s.revoker = revocation.New(s.self, s.c.Lease, s.log)
	s.node.Serve(revocation.Service, s.revoker.Serve)
	s.openBoard()
	uploads, err := s.blobs.ID(ctx)
	if err != nil {
		return err
	}
	joining := membership.Config{
		Member: s.self, Address: s.c.ClusterAddr, Version: version, Lease: s.c.Lease, Log: s.log, OnFenced: s.declaredDead, OnSuspended: s.suspend,
		OnRevoked: s.revoker.OnRevoked, Exclusive: s.exclusive, Uploads: uploads, Keys: s.keys.Names(),
		OnTwin: func() {
			s.lost(fmt.Errorf("another living node has the address %s too: give each node its own SVC_CLUSTER_ADDR, at which the others reach this machine: ending", s.c.ClusterAddr))
		},
		OnDrain: func(on bool) {
			s.node.Yield(on)
			s.drain(on)
		},
	}
	if s.mesh != nil {
		if joining.Secret, err = remote.NameOf(s.c.ClusterSecret); err != nil {
			return err
		}
		joining.OnMembers = func(members []membership.Member) {
			s.mesh.follow(s.node, members)
			s.board.Follow(others(members, s.self))
		}
	}
	if s.member, err = membership.Join(ctx, s.pools.lease, joining); err != nil {
		return err
	}
	s.onStop(s.member.Leave)
	if err := reseal.Begin(ctx, s.pools.system, s.keys); err != nil { // joined: a node that is refused leaves no trace
		return sealedOtherwise(s.c, err)
	}
	if s.mesh != nil {
		s.mesh.member.Store(s.member)
		s.revoker.Join(s.member, s.node)
	}
	s.live = func() bool { return !s.member.Suspended() }
	s.tables.OnlyWhile(s.live)
	s.trusted = revocation.Trusts(s.member, s.c.Lease)
	return nil
}

// suspend suspends the node, which has lost its lease: nothing is performed. Every durable
// kind leaves memory, and the sweep wakes the entities with open work once the database
// is back.
func (s *service) suspend() {
	for _, k := range kinds {
		s.node.Suspend(k.Name)
	}
	if server := s.server.Load(); server != nil && s.mesh != nil { // other nodes serve the readers, and know every revocation
		server.CloseWhere(func(edge.Owner) bool { return true })
	}
}

// others returns the members but one, draining ones included.
func others(members []membership.Member, self id.MemberID) []id.MemberID {
	var ids []id.MemberID
	for _, m := range members {
		if m.ID != self {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// living returns the members that hold a lease, this one and draining ones included.
func (p *place) living() []id.MemberID {
	members := p.member.Members()
	ids := make([]id.MemberID, len(members))
	for i, m := range members {
		ids[i] = m.ID
	}
	return ids
}

// lives reports whether a member holds a lease.
func (p *place) lives(m id.MemberID) bool { return slices.Contains(p.living(), m) }
