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
	// lateCommit is longer than a commit can be under way that read an endpoint before
	// it was disabled.
	lateCommit = 10 * time.Minute
)

// OldDeliveries are the retention of webhook deliveries, of listeners that have expired
// and of what a commit has put into the outbox while its endpoint was being disabled.
var OldDeliveries = []Retention{
	Aged("webhook_deliveries", "created_at", "status <> 'pending'", deliveryAge),
	{"listeners", dropListeners},
	{"deliveries of disabled endpoints", func(ctx context.Context, pool *pgxpool.Pool, from Mark, limit int) (int, Mark, error) {
		return retain(ctx, pool, "deliveries of disabled endpoints", endDisabledSQL, from, limit, lateCommit)
	}},
}

// DueEndpoints is a Finder of the webhook endpoints that have a delivery to begin.
// Disabled endpoints and listeners are not among them. It looks at the endpoints that
// have something pending, of all shards.
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

// dropListeners deletes deliveries of listeners that have expired, and those listeners
// once they have none.
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
