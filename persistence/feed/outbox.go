package feed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"agentsvc/schemas/id"
)

var (
	dueEndpointsSQL = queries.Get("due_endpoints")
	byIndexSQL      = queries.Get("by_index")
)

// DueEndpoint is a webhook endpoint that has a delivery to begin.
type DueEndpoint struct {
	Tenant  id.TenantID
	Webhook id.WebhookID
	Overdue time.Duration // of its oldest
}

// EndpointPage is a part of a pass over the endpoints that have something pending.
type EndpointPage struct {
	Due  []DueEndpoint
	Next id.WebhookID // the last endpoint looked at: the next page begins behind it
	More bool         // false: it was the last one
}

// DueEndpoints looks at up to limit endpoints that have something pending, behind the
// endpoint after or, where that is zero, from the first. Of them the page has those
// of the shards of which something is due. Disabled endpoints and listeners are not
// among them.
func (s *Sweep) DueEndpoints(ctx context.Context, shards []id.Shard, after id.WebhookID, limit int) (EndpointPage, error) {
	if len(shards) == 0 {
		return EndpointPage{}, nil
	}
	var (
		p       EndpointPage
		e       DueEndpoint
		overdue *time.Duration
		place   int
		b       pgx.Batch // one transaction
	)
	b.Queue(inOrderSQL)
	b.Queue(byIndexSQL)
	b.Queue(dueEndpointsSQL, append(lines(shards), noShard), after, limit).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&e.Tenant, &e.Webhook, &overdue, &place}, func() error {
			if p.Next = e.Webhook; overdue != nil && (line(e.Webhook.UUID) != noShard || slices.Contains(shards, e.Webhook.Shard())) {
				e.Overdue = *overdue
				p.Due = append(p.Due, e)
			}
			return nil
		})
		return err
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return EndpointPage{}, fmt.Errorf("read endpoints with due deliveries: %w", err)
	}
	p.More = place == limit
	return p, nil
}

// byIndex changes rows and says how many.
func (s *Sweep) byIndex(ctx context.Context, what, sql string, args ...any) (n int, err error) {
	var b pgx.Batch // one transaction
	b.Queue(byIndexSQL)
	b.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
		n = int(tag.RowsAffected())
		return nil
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return n, nil
}
