package main

import (
	"context"

	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/cluster/membership"
	"agentsvc/schemas/msg"
)

// limits is the part of a node that limits requests and streams over all nodes.
type limits struct {
	ledger *bucket.Ledger
	holds  *hold.Semaphores
}

func (s *service) addLimits(context.Context) error {
	s.onStop(s.mesh.stop) // after the node: the actors that it hands over while it ends leave through the mesh
	rate := bucket.PerSecond(int64(s.c.RateCapacity), s.c.RateRefill)
	for kind, rate := range map[string]bucket.Rate{msg.KindLimit: rate, bucket.KindLogin: bucket.LoginRate} {
		buckets := bucket.KeeperConfig{Kind: kind, Rate: rate, Lapse: bucket.DefaultLapse - membership.DefaultLease + s.c.Lease, Log: s.log}
		if s.mesh != nil {
			buckets.Peers, buckets.Living, buckets.Refresh = s.node, s.living, s.member.Refresh
		}
		keeper := bucket.NewKeeper(buckets)
		s.node.RegisterShared(kind, keeper.Behavior)
		s.node.Serve(keeper.Service(), keeper.Served)
		s.node.OnChange(keeper.Changed)
		s.onStop(keeper.Stop)
	}
	held := hold.Config{Node: s.node}
	if s.mesh != nil {
		held.Living, held.Refresh = s.living, s.member.Refresh
	}
	s.holds = hold.New(held)
	s.node.RegisterShared(hold.Kind, s.holds.Behavior)
	s.node.Serve(hold.Service, s.holds.Served)
	s.node.OnChange(s.holds.Changed)
	s.onStop(infallible(s.holds.Stop))
	s.ledger = bucket.NewLedger(bucket.LedgerConfig{Node: s.node, Rate: rate})
	s.node.Serve(bucket.ServiceRecall, s.ledger.Served)
	return nil
}
