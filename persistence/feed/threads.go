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

// PersonalThreads is the erasure of an end user's threads: their actors delete the threads,
// and then Erase empties them.
var PersonalThreads = &Erasure{Table: "threads", Person: "end_user_id", Lost: lostThreads, Erase: eraseThreads}

// lookAhead is the number of threads that are read for each thread that a node may delete;
// other nodes own some of them.
const lookAhead = 20

func lostThreads(ctx context.Context, pool *pgxpool.Pool, people []Person, shards []id.Shard, limit int) ([]Entity, error) {
	tenants, ids := columns(people)
	lost, err := collect[Entity](ctx, pool, eraseThreadsSQL, tenants, ids, append(lines(shards), noShard), limit, lookAhead*limit)
	if err != nil {
		return nil, fmt.Errorf("read threads of deleted end users: %w", err)
	}
	return lost, nil
}

// eraseThreads empties threads without an open run. Their rows stay.
func eraseThreads(ctx context.Context, pool *pgxpool.Pool, people []Person, limit int, settled time.Duration) (int, error) {
	return erase(ctx, pool, "erase threads of deleted end users", eraseConversationsSQL, people, limit, settled, func(ctx context.Context, tx pgx.Tx, of erased) error {
		return of.each(ctx, tx, "erase_messages", "erase_titles")
	})
}
