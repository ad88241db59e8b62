package feed

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

var (
	retainBoundsSQL    = queries.Get("retain_bounds")
	dropIdempotencySQL = queries.Get("drop_idempotency")
	dropDeliveriesSQL  = queries.Get("drop_deliveries")
	dropSessionsSQL    = queries.Get("drop_sessions")
	dropLoginLinksSQL  = queries.Get("drop_login_links")
	dropUnheardSQL     = queries.Get("drop_unheard")
	dropListenersSQL   = queries.Get("drop_listeners")
	endDisabledSQL     = queries.Get("end_disabled")
)

// How long rows are kept.
const (
	idempotencyAge = 24 * time.Hour // open-parts.md: remembered 24 h
	deliveryAge    = 30 * 24 * time.Hour
	// sessionAge is longer than a session can live (store.SessionLife), so that the
	// clocks of nodes do not matter.
	sessionAge = 8 * 24 * time.Hour
	// linkAge is how long a login link stays after it expired.
	linkAge = time.Hour
	// lateCommit is longer than a commit can be under way that read an endpoint before
	// it was disabled.
	lateCommit = 10 * time.Minute
)

// Mark is where a pass of retention begins: behind the rows that earlier passes
// deleted. The zero Mark begins with the oldest row. A pass that begins at a mark misses
// rows behind it that were locked when they were passed, or became old later; a pass
// from the zero Mark finds them.
type Mark struct {
	at       time.Time
	webhook  id.WebhookID // whose deliveries up to delivery were deleted by the last batch
	delivery id.DeliveryID
}

// Retention is one kind of rows that go when they are old enough.
type Retention struct {
	Name string
	// Pass takes up to limit rows behind the mark and returns how many it took, and the
	// mark of the next pass.
	Pass func(ctx context.Context, from Mark, limit int) (n int, next Mark, err error)
}

// Retentions are all kinds. Each works for itself.
func (s *Sweep) Retentions() []Retention {
	aged := func(name, sql string, age time.Duration) Retention {
		return Retention{name, func(ctx context.Context, from Mark, limit int) (int, Mark, error) {
			return s.retain(ctx, name, sql, from, limit, age)
		}}
	}
	return []Retention{
		aged("idempotency", dropIdempotencySQL, idempotencyAge),
		aged("webhook_deliveries", dropDeliveriesSQL, deliveryAge),
		aged("sessions", dropSessionsSQL, sessionAge),
		aged("login_links", dropLoginLinksSQL, linkAge),
		{"listeners", s.dropListeners},
		aged("deliveries of disabled endpoints", endDisabledSQL, lateCommit),
	}
}

// retain runs a statement that answers a count and the time of the next mark.
func (s *Sweep) retain(ctx context.Context, name, sql string, from Mark, limit int, more ...any) (n int, next Mark, err error) {
	err = s.within(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, append([]any{limit, from.at}, more...)...).Scan(&n, &next.at)
	})
	if err != nil {
		return 0, from, fmt.Errorf("retention of %s: %w", name, err)
	}
	return n, next, nil
}

// within runs a transaction within the bounds of retention. They are set in a round trip
// of their own: already the parsing of a statement waits for locks on its tables.
func (s *Sweep) within(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, retainBoundsSQL); err != nil {
			return err
		}
		return do(tx)
	})
}

// dropListeners deletes deliveries of listeners that have expired, and those listeners
// once they have none.
func (s *Sweep) dropListeners(ctx context.Context, from Mark, limit int) (n int, next Mark, err error) {
	next = from
	err = s.within(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, dropUnheardSQL, limit, from.at, from.webhook, from.delivery)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&next.webhook, &next.delivery}, func() error {
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
	listeners, next, err := s.retain(ctx, "listeners", dropListenersSQL, from, limit)
	return n + listeners, next, err
}
