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
	dueEndpointsSQL  = queries.Get("due_endpoints")
	dropUnheardSQL   = queries.Get("drop_unheard")
	dropListenersSQL = queries.Get("drop_listeners")
	endDisabledSQL   = queries.Get("end_disabled")
)

const (
	deliveryAge = 30 * 24 * time.Hour
	// lateCommit is an upper bound on the time in flight of a commit that read an endpoint
	// before it was disabled.
	lateCommit = 10 * time.Minute
)

// OldDeliveries are the retention of webhook deliveries and of expired listeners, and the
// end of deliveries that a commit added while their endpoint was being disabled.
var OldDeliveries = []Retention{
	Aged("webhook_deliveries", "created_at", "status <> 'pending'", deliveryAge),
	{"listeners", dropListeners},
	{"deliveries of disabled endpoints", func(ctx context.Context, pool *pgxpool.Pool, from Mark, limit int) (int, Mark, error) {
		return retain(ctx, pool, "deliveries of disabled endpoints", endDisabledSQL, from, limit, lateCommit)
	}},
}

// DueEndpoints is a Finder of the enabled webhook endpoints with a due delivery. It returns
// no listeners. A page covers the endpoints of all shards that have a pending delivery.
func DueEndpoints(ctx context.Context, pool *pgxpool.Pool, shards []id.Shard, after id.UUID, limit int) (p Page, err error) {
	var (
		f       Found
		overdue *time.Duration // of the endpoint's oldest delivery
		place   int
		b       pgx.Batch // one transaction
	)
	b.Queue(inOrderSQL)
	b.Queue(byIndexSQL)
	b.Queue(dueEndpointsSQL, append(lines(shards), noShard), after, limit).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&f.Tenant, &f.ID, &overdue, &place}, func() error {
			if p.Next = f.ID; overdue != nil && here(f.ID, shards) {
				f.Overdue = *overdue
				p.Found = append(p.Found, f)
			}
			return nil
		})
		return err
	})
	if err := pool.SendBatch(ctx, &b).Close(); err != nil {
		return Page{}, fmt.Errorf("read endpoints with due deliveries: %w", err)
	}
	p.More = place == limit
	return p, nil
}

// dropListeners deletes the deliveries of expired listeners, and then the listeners without
// deliveries.
func dropListeners(ctx context.Context, pool *pgxpool.Pool, from Mark, limit int) (n int, next Mark, err error) {
	next = from
	err = within(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, dropUnheardSQL, limit, from.at, from.within, from.detail)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&next.within, &next.detail}, func() error {
			n++
			return nil
		})
		return err
	})
	if err != nil {
		return 0, from, fmt.Errorf("retention of deliveries of expired listeners: %w", err)
	}
	if n == limit {
		return n, next, nil
	}
	listeners, next, err := retain(ctx, pool, "listeners", dropListenersSQL, from, limit)
	return n + listeners, next, err
}
