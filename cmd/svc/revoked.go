package main

import (
	"context"

	"agentsvc/cluster/revocation"
	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
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
	// decided has the commits that may lack an event, because they were decided on what was
	// remembered of endpoints (journal.Writer).
	decided interface {
		Outdate(ctx context.Context, t id.TenantID) error
		OutdateAll(ctx context.Context) error
	}
}

// Forget implements revocation.Memory.
func (m remembered) Forget(ctx context.Context, r msg.Revoked) error {
	if err := m.Platform.Forget(ctx, r); err != nil || r.What != msg.ChangedWebhook {
		return err
	}
	return m.decided.Outdate(ctx, r.Tenant)
}

// Recheck implements revocation.Memory. It comes after ForgetAll.
func (m remembered) Recheck(ctx context.Context) error {
	if err := m.decided.OutdateAll(ctx); err != nil {
		return err
	}
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
