package main

import (
	"context"
	_ "embed" // revoke.sql
	"errors"
	"fmt"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

//go:embed revoke.sql
var ownersLive string

// remembered is the memory of a node that serves HTTP: the platform's caches and
// the edge's open streams.
type remembered struct {
	*platform.Platform
	server *edge.Server
	// pool sees all tenants. It is the lease's own: a beat waits for it.
	pool *pg.Pool
}

// Recheck implements memory.
func (m remembered) Recheck(ctx context.Context) error {
	_, err := m.server.Recheck(func(owners []edge.Owner) ([]bool, error) { return liveOwners(ctx, m.pool, owners) })
	return err
}

// liveOwners says of each owner of streams whether his key is not revoked, or his
// session, or that of a visitor, has not ended. Who has none of them is nobody.
func liveOwners(ctx context.Context, pool *pg.Pool, owners []edge.Owner) (live []bool, err error) {
	tenants, keys := make([]id.TenantID, len(owners)), make([]id.KeyID, len(owners))
	sessions, users := make([]id.SessionID, len(owners)), make([]id.UserID, len(owners))
	embeds, epochs, people := make([]id.EmbedKeyID, len(owners)), make([]int64, len(owners)), make([]id.EndUserID, len(owners))
	origins := make([]string, len(owners))
	for i, o := range owners {
		embeds[i], epochs[i], people[i], origins[i] = o.EmbedKey, o.KeyEpoch, o.EndUser, o.Origin
		tenants[i], keys[i], sessions[i], users[i] = o.Tenant, o.Key, o.Session, o.User
	}
	rows, err := pool.Query(ctx, ownersLive, tenants, keys, sessions, users, embeds, epochs, people, origins)
	if err != nil {
		return nil, fmt.Errorf("read the owners of streams: %w", err)
	}
	defer rows.Close()
	live = make([]bool, len(owners))
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, fmt.Errorf("read the owners of streams: %w", err)
		}
		if n < 1 || n > int64(len(owners)) {
			return nil, errors.New("read the owners of streams: one that nobody asked for")
		}
		live[n-1] = true
	}
	return live, rows.Err()
}

// lessee holds a lease; membership.Membership is one.
type lessee interface {
	Deadline() time.Time
	Fenced() bool
}

// trusts says whether a node may act on what it remembers: until half a second
// before the end of its lease (house.md, Cluster), or a sixth of one that is
// shorter than three seconds.
func trusts(m lessee, lease time.Duration) func() bool {
	margin := min(500*time.Millisecond, lease/6)
	return func() bool { return !m.Fenced() && time.Until(m.Deadline()) > margin }
}
