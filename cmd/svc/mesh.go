package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/actors/limit/bucket"
	"agentsvc/actors/limit/hold"
	"agentsvc/actors/limit/slot"
	"agentsvc/actors/notice"
	"agentsvc/actors/stream"
	"agentsvc/cluster"
	"agentsvc/cluster/membership"
	"agentsvc/cluster/remote"
	"agentsvc/persistence/cache"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// mesh is what only a node of a cluster of several has: its port for the other nodes and
// the Redis that they share. In a single node it is nil.
type mesh struct {
	log    zerolog.Logger
	ln     net.Listener
	remote *remote.Remote
	redis  *cache.Cache
	feed   *cache.Feed

	member atomic.Pointer[membership.Membership]
}

// openMesh opens the node's port for its peers. Nothing is answered there before start.
func (s *service) openMesh(c *Config, self id.MemberID, log zerolog.Logger) (*mesh, error) {
	if c.ClusterAddr == "" {
		return nil, nil
	}
	m := &mesh{log: log}
	var err error
	if m.ln, err = net.Listen("tcp", c.ClusterAddr); err != nil {
		return nil, fmt.Errorf("SVC_CLUSTER_ADDR: %w", err)
	}
	s.onStop(func(context.Context) error { m.ln.Close(); return nil }) // closed already, unless the remote plane never started
	if m.redis, err = cache.Open(c.RedisURL); err != nil {
		return nil, fmt.Errorf("SVC_REDIS_URL: %w", err)
	}
	s.onStop(func(context.Context) error { return m.redis.Close() })
	m.feed = m.redis.NewFeed(self, log)
	m.remote, err = remote.New(remote.Config{
		Self: self, Build: version, Listen: m.ln, Secret: c.ClusterSecret, Codec: wireCodec(), Log: log,
		OnRefused: func(who id.MemberID) {
			if member := m.member.Load(); member != nil {
				member.Refused(who)
			}
		},
	})
	return m, err
}

// redisPatience is how long a start waits for an answer from Redis.
const redisPatience = time.Second

// start lets the other nodes in. It is called once the node receives.
func (m *mesh) start(ctx context.Context, node *cluster.Node) error {
	if m == nil {
		return nil
	}
	if err := m.feed.Start(ctx); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	if err := m.redis.Ping(asking); err != nil { // Redis may come up later
		m.log.Warn().Err(err).Msg("Redis does not answer: live text reaches readers on a run's own node only")
	}
	return m.remote.Start(ctx, node)
}

func (m *mesh) stop(ctx context.Context) error {
	if m == nil {
		return nil
	}
	err := m.remote.Stop(ctx)
	m.feed.Stop()
	return err
}

// follow places the shards by a new list of members.
func (m *mesh) follow(node *cluster.Node, members []membership.Member) {
	peers := make(map[id.MemberID]string, len(members))
	for _, p := range members {
		if p.ID != node.Member() {
			peers[p.ID] = p.Address
		}
	}
	m.remote.SetPeers(peers)
	if err := node.SetMembers(membership.Owners(members)); err != nil {
		m.log.Error().Err(err).Int("members", len(members)).Msg("member list not followed")
	}
}

// wireCodec knows the messages that may cross nodes.
func wireCodec() *msg.Codec {
	c := msg.NewCodec(messages()...)
	durable.AddTo(c)
	bucket.AddTo(c)
	slot.AddTo(c)
	hold.AddTo(c)
	stream.AddTo(c)
	notice.AddTo(c)
	c.AddError("replay", journal.ErrReplay)
	return c
}

// handOver is how long a node that stops has to move its actors to other nodes before it
// refuses requests.
const handOver = 2 * time.Second

// leave gives the node's work to the other nodes before it stops: its row drains, and its
// actors in memory move. A node that is alone keeps everything.
func (m *mesh) leave(ctx context.Context, pool *pg.Pool, node *cluster.Node) {
	if m == nil || len(m.member.Load().Members()) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOver)
	defer cancel()
	if err := membership.Drain(ctx, pool, node.Member(), true); err != nil {
		m.log.Warn().Err(err).Msg("the node's work is not handed over")
		return // the other nodes notice by its lease, or when its row is gone
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(node.Shards()) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
