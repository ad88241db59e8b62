package main

import (
	"context"

	"agentsvc/cluster/revocation"
	"agentsvc/persistence/pg"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

// remembered is what a node may still hold of a revoked value: the platform's caches and
// the edge's open streams.
type remembered struct {
	*platform.Platform
	server *edge.Server
	// pool sees all tenants. It is the pool of the lease, because a beat waits for Recheck.
	pool *pg.Pool
}

// Recheck implements revocation.Memory.
func (m remembered) Recheck(ctx context.Context) error {
	_, err := m.server.Recheck(func(owners []edge.Owner) ([]bool, error) {
		watchers := make([]revocation.Watcher, len(owners))
		for i, o := range owners {
			watchers[i] = revocation.Watcher{
				Tenant: o.Tenant, Key: o.Key, User: o.User, Session: o.Session, Role: o.Role,
				EmbedKey: o.EmbedKey, KeyEpoch: o.KeyEpoch, EndUser: o.EndUser, Origin: o.Origin,
			}
		}
		return revocation.MayWatch(ctx, m.pool, watchers)
	})
	return err
}
