package feed

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	eraseThreadsSQL       = queries.Get("erase_threads")
	eraseConversationsSQL = queries.Get("erase_conversations")
)

// PersonalThreads are the threads of an end user: their actors delete them, and then what
// is left in them goes.
var PersonalThreads = &Erasure{Table: "threads", Person: "end_user_id", Lost: lostThreads, Erase: eraseThreads}

// lookAhead is how many threads are looked at for each one that a node is to delete: the
// others' nodes have theirs.
const lookAhead = 20

func lostThreads(ctx context.Context, pool *pgxpool.Pool, people []Person, shards []id.Shard, limit int) ([]Entity, error) {
	tenants, ids := columns(people)
	lost, err := collect[Entity](ctx, pool, eraseThreadsSQL, tenants, ids, append(lines(shards), noShard), limit, lookAhead*limit)
	if err != nil {
		return nil, fmt.Errorf("read threads of deleted end users: %w", err)
	}
	return lost, nil
}

// eraseThreads empties threads that have no open run; their rows stay.
func eraseThreads(ctx context.Context, pool *pgxpool.Pool, people []Person, limit int, settled time.Duration) (int, error) {
	return erase(ctx, pool, "erase threads of deleted end users", eraseConversationsSQL, people, limit, settled, func(ctx context.Context, tx pgx.Tx, of erased) error {
		return of.each(ctx, tx, "erase_messages", "erase_titles")
	})
}
