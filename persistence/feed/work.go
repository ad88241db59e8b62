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

// Work is how the sweep finds the entities of a kind that have something to do. The zero
// value of a field means the default beside it.
type Work struct {
	// Find reads one page.
	Find Finder
	// Through is the kind of Found.Through.
	Through string
	// Every is the time between two passes over all shards of a node, 5 s.
	Every time.Duration
	// Page is how many entities a page looks at, 2000.
	Page int
	// Pages is how many pages one tick reads of such a pass, 8.
	Pages int
	// Wakes is how many entities one tick wakes, 1000.
	Wakes int
}

// Finder looks at up to limit entities behind the entity after or, where that is zero,
// from the beginning. Of them the page has those of the shards that have something to
// do. Shards are in ascending order, the same all through a pass.
type Finder func(ctx context.Context, pool *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (Page, error)

// Found is an entity that has something to do.
type Found struct {
	Tenant id.TenantID
	ID     id.UUID
	// Through is another entity, of the kind Work.Through, that is woken in its place.
	Through *id.UUID
	// Overdue is how long the work has been due, where a finder knows it.
	Overdue time.Duration
}

// Page is a part of a pass.
type Page struct {
	Found []Found
	Next  id.UUID // the last entity looked at: the next page begins behind it
	More  bool    // false: it was the last one
}

// Find reads a page of w.
func (s *Sweep) Find(ctx context.Context, w *Work, shards []id.Shard, after id.UUID, limit int) (Page, error) {
	if len(shards) == 0 {
		return Page{}, nil
	}
	return w.Find(ctx, s.pool, shards, after, limit)
}

// Where finds the entities of a table that a condition in SQL holds for. The migration of
// the table makes the index for it:
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

// from are the lines that a page reads, the one of the entity after first.
func from(shards []id.Shard, after id.UUID) []int32 {
	first, rest := line(after), lines(shards)
	behind, _ := slices.BinarySearch(rest, first+1)
	return append([]int32{first}, rest[behind:]...)
}

// here reports whether an entity is of the shards. What the database says of ids that the
// service did not mint is not enough: their shard is a hash.
func here(u id.UUID, shards []id.Shard) bool {
	return line(u) != noShard || slices.Contains(shards, u.Shard())
}

// noShard is the line of ids that were not minted by the service, before all
// others.
const noShard = -1

// line is where an entity stands in a pass: at the shard that its id carries, as
// shard_of says it.
func line(u id.UUID) int32 {
	if u[6]>>4 != 7 {
		return noShard
	}
	return int32(u.Shard())
}

// lines are shards as the database counts them.
func lines(shards []id.Shard) []int32 {
	out := make([]int32, len(shards))
	for i, s := range shards {
		out[i] = int32(s)
	}
	return out
}
