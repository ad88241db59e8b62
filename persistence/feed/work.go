package feed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var findWhereSQL = queries.Get("find_where")

// Work describes how the sweep finds the entities of a kind with open work. The zero value
// of a field means the default in its comment.
type Work struct {
	// Find reads one page.
	Find Finder
	// Through is the kind of Found.Through.
	Through string
	// Every is the time between two passes over all shards of a node, 5 s.
	Every time.Duration
	// Page is the number of entities that a page reads, 2000.
	Page int
	// Pages is the number of pages of such a pass that one tick reads, 8.
	Pages int
	// Wakes is the number of entities that one tick wakes, 1000.
	Wakes int
}

// Finder reads up to limit entities after the entity after, or from the beginning if that is
// zero. The page has those of them that are in the shards and have open work. Shards are in
// ascending order, and the same throughout a pass.
type Finder func(ctx context.Context, pool *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (Page, error)

// Found is an entity with open work.
type Found struct {
	Tenant id.TenantID
	ID     id.UUID
	// Through is the entity of the kind Work.Through to wake instead; nil: this one.
	Through *id.UUID
	// Overdue is the time for which the work has been due; 0 if the finder does not know it.
	Overdue time.Duration
}

// Page is a part of a pass.
type Page struct {
	Found []Found
	Next  id.UUID // the last entity read: the next page begins after it
	More  bool    // false: it was the last one
}

// Find reads a page of w.
func (s *Sweep) Find(ctx context.Context, w *Work, shards []id.Shard, after id.UUID, limit int) (Page, error) {
	if len(shards) == 0 {
		return Page{}, nil
	}
	return w.Find(ctx, s.pool, shards, after, limit)
}

// Where returns a Finder of the entities of a table for which an SQL condition holds. The
// migration of the table makes its index:
//
//	CREATE INDEX ON table (coalesce(shard_of(id), -1), id) WHERE condition
func Where(table, condition string) Finder {
	sql := whereSQL(table, condition)
	return func(ctx context.Context, pool *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (p Page, err error) {
		var (
			f Found
			n int
			b pgx.Batch // one transaction
		)
		b.Queue(inOrderSQL)
		b.Queue(sql, from(shards, after), after, limit).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&f.Tenant, &f.ID}, func() error {
				if n, p.Next = n+1, f.ID; here(f.ID, shards) {
					p.Found = append(p.Found, f)
				}
				return nil
			})
			return err
		})
		if err := pool.SendBatch(ctx, &b).Close(); err != nil {
			return Page{}, fmt.Errorf("read work of %s: %w", table, err)
		}
		p.More = n == limit
		return p, nil
	}
}

func whereSQL(table, condition string) string {
	return strings.NewReplacer("{table}", table, "{condition}", condition).Replace(findWhereSQL)
}

// from returns the lines that a page reads, beginning with the line of the entity after.
func from(shards []id.Shard, after id.UUID) []int32 {
	first, rest := line(after), lines(shards)
	behind, _ := slices.BinarySearch(rest, first+1)
	return append([]int32{first}, rest[behind:]...)
}

// here reports whether an entity is in the shards. For a foreign id the database's answer is
// not enough, because its shard is a hash.
func here(u id.UUID, shards []id.Shard) bool {
	return line(u) != noShard || slices.Contains(shards, u.Shard())
}

// noShard is the line of foreign ids, before all others.
const noShard = -1

// line returns the place of an entity in a pass: the shard that its id carries, as shard_of
// in SQL, or noShard.
func line(u id.UUID) int32 {
	if u[6]>>4 != 7 {
		return noShard
	}
	return int32(u.Shard())
}

// lines returns the shards as numbers of the database.
func lines(shards []id.Shard) []int32 {
	out := make([]int32, len(shards))
	for i, s := range shards {
		out[i] = int32(s)
	}
	return out
}
