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

// Erasure is what goes of a kind's rows once the end user whom they are about was deleted.
type Erasure struct {
	// Table and Person are where the kind says whose an entity is. The end user's own row
	// stays until no row of the table names it.
	Table, Person string
	// Lost, where set, finds entities of the people in the shards, up to limit, that their
	// actors end first.
	Lost func(ctx context.Context, pool *pgxpool.Pool, people []Person, shards []id.Shard, limit int) ([]Entity, error)
	// Erase deletes what is left of up to limit entities of the people that ended settled
	// ago or earlier, and returns how many it found. Of one entity it deletes everything or
	// nothing.
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

// DeletedPeople returns up to limit people behind after, of which DeletedAt and ID
// count, in the order in which they were deleted. What they left behind is looked for by
// them, some people at a time.
func (s *Sweep) DeletedPeople(ctx context.Context, after Person, limit int) ([]Person, error) {
	people, err := collect[Person](ctx, s.pool, eraseWhoseSQL, after.DeletedAt, after.ID, limit)
	if err != nil {
		return nil, fmt.Errorf("read deleted end users: %w", err)
	}
	return people, nil
}

// columns are the people as the queries take them, in another order each time: nobody
// who left much behind is always before the same others.
func columns(people []Person) (tenants []id.TenantID, ids []id.EndUserID) {
	for _, i := range rand.Perm(len(people)) {
		tenants, ids = append(tenants, people[i].Tenant), append(ids, people[i].ID)
	}
	return tenants, ids
}

// collect is what a query finds that goes by indexes.
func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (found []T, err error) {
	var b pgx.Batch // one transaction
	b.Queue(byIndexSQL)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return found, pool.SendBatch(ctx, &b).Close()
}

// Lost finds what the actors of a kind end first.
func (s *Sweep) Lost(ctx context.Context, e *Erasure, people []Person, shards []id.Shard, limit int) ([]Entity, error) {
	if len(shards) == 0 || len(people) == 0 {
		return nil, nil
	}
	return e.Lost(ctx, s.pool, people, shards, limit)
}

// Erase makes one step of e.
func (s *Sweep) Erase(ctx context.Context, e *Erasure, people []Person, limit int, settled time.Duration) (int, error) {
	return e.Erase(ctx, s.pool, people, limit, settled)
}

// ErasePeople deletes those of the people who were deleted age ago or earlier and of
// whom no kind has anything left, and returns how many that were.
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

// peopleSQL is erase_people for the tables in which something of a person may be left.
func peopleSQL(all []*Erasure) string {
	var left strings.Builder
	for _, e := range all {
		fmt.Fprintf(&left, "AND NOT EXISTS (SELECT FROM %s l WHERE l.%s = e.id AND (l.tenant_id = e.tenant_id) IS TRUE OFFSET 0) ", e.Table, e.Person)
	}
	return strings.ReplaceAll(erasePeopleSQL, "{left}", left.String())
}

// erased are rows that are locked to be erased.
type erased struct {
	tenants []id.TenantID
	ids     []id.UUID
	at      []time.Time // of those that have a time
}

func (e erased) each(ctx context.Context, tx pgx.Tx, steps ...string) error {
	for _, step := range steps {
		if _, err := tx.Exec(ctx, queries.Get(step), e.tenants, e.ids); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

// erase locks what a query finds and erases it, in one transaction.
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
