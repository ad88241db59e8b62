package revocation

import (
	"context"
	_ "embed" // watchers.sql
	"fmt"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

//go:embed watchers.sql
var mayWatch string

// Watcher is the owner of an open event stream: an API key, a user's session, or a
// visitor of a page with a chat widget. Fields of the other two are zero.
type Watcher struct {
	Tenant   id.TenantID
	Key      id.KeyID
	User     id.UserID
	Session  id.SessionID
	Role     lifecycle.Role // of the user when the stream was opened
	EmbedKey id.EmbedKeyID
	KeyEpoch int64        // the embed key's generation when the visitor's session was minted
	EndUser  id.EndUserID // zero for an anonymous visitor
	Origin   string       // of the visitor's page
}

// MayWatch returns for each watcher whether its key is not revoked, or its session has not
// ended and its user still has that role, or the session of a visitor has not ended. A watcher without any of these may not watch. The pool
// must see all tenants.
func MayWatch(ctx context.Context, pool *pg.Pool, watchers []Watcher) (live []bool, err error) {
	tenants, keys := make([]id.TenantID, len(watchers)), make([]id.KeyID, len(watchers))
	sessions, users := make([]id.SessionID, len(watchers)), make([]id.UserID, len(watchers))
	embeds, epochs, people := make([]id.EmbedKeyID, len(watchers)), make([]int64, len(watchers)), make([]id.EndUserID, len(watchers))
	origins, roles := make([]string, len(watchers)), make([]string, len(watchers))
	for i, w := range watchers {
		embeds[i], epochs[i], people[i], origins[i] = w.EmbedKey, w.KeyEpoch, w.EndUser, w.Origin
		tenants[i], keys[i], sessions[i], users[i] = w.Tenant, w.Key, w.Session, w.User
		roles[i] = string(w.Role)
	}
	rows, err := pool.Query(ctx, mayWatch, tenants, keys, sessions, users, embeds, epochs, people, origins, roles)
	if err != nil {
		return nil, fmt.Errorf("read the owners of streams: %w", err)
	}
	defer rows.Close()
	live = make([]bool, len(watchers))
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, fmt.Errorf("read the owners of streams: %w", err)
		}
		if n < 1 || n > int64(len(watchers)) {
			return nil, fmt.Errorf("read the owners of streams: row %d of %d", n, len(watchers))
		}
		live[n-1] = true
	}
	return live, rows.Err()
}
