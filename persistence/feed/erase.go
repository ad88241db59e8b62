package feed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	byIndexSQL     = queries.Get("by_index")
	eraseWhoseSQL  = queries.Get("erase_whose")
	erasePeopleSQL = queries.Get("erase_people")
)

// Erasure describes how the rows of a kind are erased after their end user was deleted.
type Erasure struct {
	// Table has the kind's entities, and its column Person the end user of each. The end
	// user's own row stays until no row of the table names it.
	Table, Person string
	// Lost, if set, returns up to limit entities of the people, in the shards, that their
	// actors must end before Erase deletes them.
	Lost func(ctx context.Context, pool *pgxpool.Pool, people []Person, shards []id.Shard, limit int) ([]Entity, error)
	// Erase deletes the rows of up to limit entities of the people that ended at least
	// settled ago, and returns the number of these entities. It deletes either all rows of
	// an entity or none.
	Erase func(ctx context.Context, pool *pgxpool.Pool, people []Person, limit int, settled time.Duration) (int, error)
}

// Entity is a row that an actor owns.
type Entity struct {
	Tenant id.TenantID
	ID     id.UUID
}

// Person is a deleted end user whose row is still there.
type Person struct {
	Tenant    id.TenantID
	ID        id.EndUserID
	DeletedAt time.Time
}

// DeletedPeople returns up to limit people after a person, in the order of DeletedAt and ID.
func (s *Sweep) DeletedPeople(ctx context.Context, after Person, limit int) ([]Person, error) {
	people, err := collect[Person](ctx, s.pool, eraseWhoseSQL, after.DeletedAt, after.ID, limit)
	if err != nil {
		return nil, fmt.Errorf("read deleted end users: %w", err)
	}
	return people, nil
}

// columns returns the people as parameters of a query, in random order, so that a person
// with many rows does not always delay the same others.
func columns(people []Person) (tenants []id.TenantID, ids []id.EndUserID) {
	for _, i := range rand.Perm(len(people)) {
		tenants, ids = append(tenants, people[i].Tenant), append(ids, people[i].ID)
	}
	return tenants, ids
}

// collect returns the rows of a query that must use indexes.
func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (found []T, err error) {
	var b pgx.Batch // one transaction
	b.Queue(byIndexSQL)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return found, pool.SendBatch(ctx, &b).Close()
}

// Lost returns the entities that the actors of a kind must end first.
func (s *Sweep) Lost(ctx context.Context, e *Erasure, people []Person, shards []id.Shard, limit int) ([]Entity, error) {
	if len(shards) == 0 || len(people) == 0 {
		return nil, nil
	}
	return e.Lost(ctx, s.pool, people, shards, limit)
}

// Erase deletes one batch of e.
func (s *Sweep) Erase(ctx context.Context, e *Erasure, people []Person, limit int, settled time.Duration) (int, error) {
	return e.Erase(ctx, s.pool, people, limit, settled)
}

// ErasePeople deletes the rows of those people who were deleted at least age ago and of whom
// no kind has a row left. It returns their number.
func (s *Sweep) ErasePeople(ctx context.Context, all []*Erasure, people []Person, age time.Duration) (n int, err error) {
	tenants, ids := columns(people)
	var b pgx.Batch // one transaction
	b.Queue(byIndexSQL)
	b.Queue(peopleSQL(all), tenants, ids, age).Exec(func(tag pgconn.CommandTag) error {
		n = int(tag.RowsAffected())
		return nil
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return 0, fmt.Errorf("erase deleted end users: %w", err)
	}
	return n, nil
}

// peopleSQL returns erase_people for the tables that may still have rows of a person.
func peopleSQL(all []*Erasure) string {
	var left strings.Builder
	for _, e := range all {
		fmt.Fprintf(&left, "AND NOT EXISTS (SELECT FROM %s l WHERE l.%s = e.id AND (l.tenant_id = e.tenant_id) IS TRUE OFFSET 0) ", e.Table, e.Person)
	}
	return strings.ReplaceAll(erasePeopleSQL, "{left}", left.String())
}

// erased are locked rows that a transaction deletes.
type erased struct {
	tenants []id.TenantID
	ids     []id.UUID
	at      []time.Time // zero if the query returns no time
}

// each executes the steps on these rows.
func (e erased) each(ctx context.Context, tx pgx.Tx, steps ...string) error {
	for _, step := range steps {
		if _, err := tx.Exec(ctx, queries.Get(step), e.tenants, e.ids); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

// erase locks the rows that a query finds and calls fn with them, in one transaction. It
// returns their number.
func erase(ctx context.Context, pool *pgxpool.Pool, what, find string, people []Person, limit int, settled time.Duration, fn func(ctx context.Context, tx pgx.Tx, of erased) error) (int, error) {
	var of erased
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		tenants, ids := columns(people)
		rows, err := tx.Query(ctx, find, tenants, ids, limit, settled)
		if err != nil {
			return err
		}
		var t id.TenantID
		var u id.UUID
		var at time.Time
		into := []any{&t, &u, &at}[:len(rows.FieldDescriptions())]
		if _, err := pgx.ForEachRow(rows, into, func() error {
			of.tenants, of.ids, of.at = append(of.tenants, t), append(of.ids, u), append(of.at, at)
			return nil
		}); err != nil || len(of.ids) == 0 {
			return err
		}
		return fn(ctx, tx, of)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return len(of.ids), nil
}
