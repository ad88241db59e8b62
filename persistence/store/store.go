// Package store reads and changes the tables that no actor owns, and reads the ones that
// actors own (threads, messages, runs, steps). Syncs writes the documents that the sync of a source finds.
//
// Every operation of a View and of a change belongs to one tenant: each query names the tenant first, and the role of
// the connections sees only the rows of the tenant in the setting svc.tenant, so that another
// tenant's id matches no row by construction. A change is one transaction with its audit rows
// and, if the request had an Idempotency-Key, the kept response: all of it or nothing.
//
// SystemStore, Directory, Files, Noted, Hooks and EmbedKeys see all tenants, over connections of svc_system.
// Schedules, SkillRuns and Syncs use such connections too, with a tenant named in each query.
//
// The package keeps in memory the bounded Caches that callers create, the callers that wait for their turn, and what
// Noted has not written yet. Limits: every call ends within Timeout, or LongTimeout; a change waits up to Timeout for
// its place before that. One tenant has so many reads and changes at a time, and fewer changes of many documents. Loss:
// the notes of one second (Noted); a call that ends with ErrUnavailable may have committed, and its Idempotency-Key tells.
package store

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/turn"
)

//go:embed queries/*.sql
var files embed.FS

var queries = searches(arms(approvalColumns(pg.Queries(files))))

// Timeout bounds one read or one change, including the wait for a connection.
const Timeout = 5 * time.Second

// LongTimeout bounds a change that may touch each document of a knowledge base.
const LongTimeout = time.Minute

// Outcomes that are not a *problem.Error.
var (
	// ErrReplay: a response is already kept under the request's Idempotency-Key; nothing was
	// changed.
	ErrReplay = errors.New("store: the idempotency key was used before")
	// ErrUnavailable: the database cannot serve now.
	ErrUnavailable = errors.New("store: storage is not available")
)

// A read may take Timeout, and changes of a tenant may wait for each other's locks for as long as a change of many
// documents takes. Each holds one of the connections that all tenants share, 16 for the API, so they wait for a place
// before they have one: of a tenant at a time.
const (
	readsEach   = 8
	changesEach = 6
	longEach    = 1 // changes of many documents
	longAll     = 4
	unbounded   = 1 << 20 // of all tenants
	waiting     = 1000    // of a tenant; further ones are refused at once
)

// Store gives access to the tables. It is safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	vault   *vault.Vault
	changed func(id.TenantID, []msg.Change)
	live    func() bool // nil: always
	reads   *turn.Places
	changes *turn.Places
	long    *turn.Places
	conns   *turn.Places // one for each connection: tenants that want more than all of them take turns
}

// New returns a Store over a pool of the role svc_api.
func New(pool *pgxpool.Pool, v *vault.Vault) *Store {
	return &Store{pool: pool, vault: v, changed: func(id.TenantID, []msg.Change) {},
		reads: turn.New(unbounded, readsEach), changes: turn.New(unbounded, changesEach), long: turn.New(longAll, longEach),
		conns: turn.New(int(pool.Config().MaxConns), unbounded)}
}

// OnChange sets what is called with the changed objects of each committed change. It must not
// block. Call it before the store is used.
func (s *Store) OnChange(f func(id.TenantID, []msg.Change)) { s.changed = f }

// OnlyWhile sets what says, just before each COMMIT, whether this process holds its lease: a process that was stopped
// so long that others have declared it dead changes nothing when it goes on. Call it before the store is used.
func (s *Store) OnlyWhile(live func() bool) { s.live = live }

// By is the caller on whose behalf a change is made.
type By struct {
	Tenant id.TenantID
	Actor  string // apikey:<id>, user:<id>, msg.System
	IP     string
	Idem   *Idem // nil without an Idempotency-Key
	Long   bool  // the change ends within LongTimeout
	// Patience is how long the change waits for a place of the tenant; 0: Timeout.
	Patience time.Duration
	// Again, if set, reports whether the caller is still allowed to, once the change has its place.
	Again func() error
}

// Idem is the key under which the response of a change is kept.
type Idem struct {
	Digest      [32]byte // hash of principal, method, path and key
	Fingerprint [32]byte // hash of the request
	Status      int
}

// Kept is a kept response.
type Kept struct {
	Fingerprint [32]byte
	Status      int
	Body        []byte
}

// runner runs one query, or several at one moment. The rows are valid only inside scan.
type runner interface {
	run(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error
	together(ctx context.Context, queue func(*pgx.Batch)) error
}

// View reads one tenant.
type View struct {
	q      runner
	tenant id.TenantID
	bound  *Bound // bound of lists; nil: none
}

// View returns a reader of the tenant; each call is one round trip of its own.
func (s *Store) View(t id.TenantID) View {
	return View{q: single{pool: s.pool, tenant: t, reads: s.reads, conns: s.conns}, tenant: t}
}

// single runs each query in a transaction of its own: the setting and the query travel in one
// pipeline, which Postgres treats as one transaction.
type single struct {
	pool    *pgxpool.Pool
	tenant  id.TenantID
	reads   *turn.Places // nil: as many as the pool has connections
	conns   *turn.Places // nil if reads is
	planned bool         // the query is planned with its arguments
}

// planned returns the view with queries planned with their arguments: for filters that are mostly
// absent, of which a plan for all arguments would use no index.
func (v View) planned() View {
	if q, ok := v.q.(single); ok {
		q.planned = true
		v.q = q
	}
	return v
}

const setPlanned = "SELECT set_config('plan_cache_mode', 'force_custom_plan', true)"

const setTenant = "SELECT set_config('svc.tenant', $1, true)"

func (s single) run(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	return s.acquire(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		b := &pgx.Batch{}
		b.Queue(setTenant, s.tenant.String())
		if s.planned {
			b.Queue(setPlanned)
		}
		b.Queue(sql, args...)
		r := c.SendBatch(ctx, b)
		defer r.Close()
		for range b.Len() - 1 {
			if _, err := r.Exec(); err != nil {
				return err
			}
		}
		rows, err := r.Query()
		if err != nil {
			return err
		}
		if err := scan(rows); err != nil {
			return err
		}
		return r.Close()
	})
}

// acquire runs read with a connection, in the tenant's turn.
func (s single) acquire(ctx context.Context, read func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if s.reads != nil {
		if !enter(ctx, s.reads, s.tenant) {
			return fmt.Errorf("%w: too many reads of the tenant", ErrUnavailable)
		}
		defer s.reads.Give(s.tenant)
		if !enter(ctx, s.conns, s.tenant) {
			return errNoConn
		}
		defer s.conns.Give(s.tenant)
	}
	return named(s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		inUTC(c.Conn())
		return read(ctx, c)
	}))
}

var (
	errNoConn  = fmt.Errorf("%w: no connection is free", ErrUnavailable)
	errNoLease = fmt.Errorf("%w: this process has lost its lease", ErrUnavailable)
)

// enter waits for a place. It reports false if there is none before ctx ends, or too much of the tenant waits already.
func enter(ctx context.Context, p *turn.Places, t id.TenantID) bool {
	ok, err := p.TakeIf(ctx, t, func(mine, _ int) bool { return mine < waiting })
	return ok && err == nil
}

// Tx is one change in progress. Its reads see its own writes.
type Tx struct {
	View
	by    By
	tx    pgx.Tx
	vault *vault.Vault

	changes []msg.Change
}

func (t *Tx) run(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return scan(rows)
}

func (t *Tx) exec(ctx context.Context, name string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, queries.Get(name), args...)
	return tag.RowsAffected(), err
}

// execFound is exec where a row must exist: if no row changed, it returns missing.
func (t *Tx) execFound(ctx context.Context, missing error, name string, args ...any) error {
	n, err := t.exec(ctx, name, args...)
	if err == nil && n == 0 {
		err = missing
	}
	return err
}

// Change runs fn in one transaction and keeps the response that fn returns, sealed, under
// by.Idem. Of two changes with one key the second waits for the first and then ends with
// ErrReplay. An error of fn changes nothing.
func (s *Store) Change(ctx context.Context, by By, fn func(ctx context.Context, tx *Tx) (answer []byte, err error)) error {
	leave, err := s.enter(ctx, by)
	if err != nil {
		return err
	}
	defer leave()
	if by.Again != nil {
		if err := by.Again(); err != nil {
			return err
		}
	}
	within := Timeout + lockPatience
	if by.Long {
		within = LongTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if !enter(ctx, s.conns, by.Tenant) {
		return errNoConn
	}
	defer s.conns.Give(by.Tenant)
	var changes []msg.Change
	err = named(s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		inUTC(c.Conn())
		// One round trip: without arguments the statements travel as one text. The text form
		// of a tenant id holds only hexadecimal digits and dashes.
		begin := "BEGIN; SELECT set_config('svc.tenant', '" + by.Tenant.String() + "', true)"
		if by.Idem != nil {
			lock := int64(binary.BigEndian.Uint64(by.Idem.Digest[:8]))
			begin += "; SET LOCAL lock_timeout = '" + lockPatience.String() + "'; SELECT pg_advisory_xact_lock(" +
				strconv.FormatInt(lock, 10) + "); SET LOCAL lock_timeout = 0"
		}
		err := pgx.BeginTxFunc(ctx, c, pgx.TxOptions{BeginQuery: begin}, func(raw pgx.Tx) error {
			tx := &Tx{by: by, tx: raw, vault: s.vault}
			tx.View = View{q: tx, tenant: by.Tenant}
			if by.Idem != nil {
				if kept, err := tx.kept(ctx, by.Idem.Digest); err != nil || kept {
					return errors.Join(err, onlyIf(kept, ErrReplay))
				}
			}
			answer, err := fn(ctx, tx)
			changes = tx.changes
			if err == nil && by.Idem != nil {
				err = tx.keep(ctx, answer)
			}
			if err == nil && s.live != nil && !s.live() {
				err = errNoLease
			}
			return err
		})
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "55P03" && by.Idem != nil { // lock_not_available
			return &problem.Error{Code: problem.CodeIdempotencyInProgress, RetryAfter: time.Second,
				Detail: "The first request with this Idempotency-Key has not ended yet."}
		}
		return err
	}))
	// After an error of the connection the change may be durable.
	if len(changes) > 0 && (err == nil || errors.Is(err, ErrUnavailable)) {
		s.changed(by.Tenant, changes)
	}
	return err
}

// enter waits for the places of a change.
func (s *Store) enter(ctx context.Context, by By) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(by.Patience, Timeout))
	defer cancel()
	none := fmt.Errorf("%w: too many changes of the tenant are under way", ErrUnavailable)
	if by.Long {
		if !enter(ctx, s.long, by.Tenant) {
			return nil, none
		}
	}
	if !enter(ctx, s.changes, by.Tenant) {
		if by.Long {
			s.long.Give(by.Tenant)
		}
		return nil, none
	}
	return func() {
		s.changes.Give(by.Tenant)
		if by.Long {
			s.long.Give(by.Tenant)
		}
	}, nil
}

// lockPatience is how long a change waits for the first request with its key (open-parts.md:
// up to 5 s).
const lockPatience = 5 * time.Second

func onlyIf(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// place returns the AAD of a kept response.
func place(t id.TenantID, digest [32]byte) vault.AAD {
	return vault.AAD{Tenant: t, Table: "idempotency", Row: hex.EncodeToString(digest[:]), Column: "response"}
}

// SealAnswer seals a response that another writer stores in table idempotency.
func (s *Store) SealAnswer(t id.TenantID, digest [32]byte, answer []byte) ([]byte, error) {
	return s.vault.Seal(place(t, digest), answer)
}

type keptRow struct {
	Fingerprint []byte
	Status      int
	Response    []byte
	Expired     bool
}

// Kept returns the response kept under digest, nil if there is none. Responses older than 24
// h are deleted.
func (s *Store) Kept(ctx context.Context, t id.TenantID, digest [32]byte) (*Kept, error) {
	row, err := one[keptRow](ctx, s.View(t), "idempotency", t, digest[:])
	if err != nil || row == nil {
		return nil, err
	}
	if row.Expired {
		// Delete it, not just ignore it: the row would block the next request with this key.
		return nil, s.Change(ctx, By{Tenant: t}, func(ctx context.Context, tx *Tx) ([]byte, error) {
			_, err := tx.exec(ctx, "idempotency_forget", t, digest[:])
			return nil, err
		})
	}
	body, err := s.vault.Open(place(t, digest), row.Response)
	if err != nil {
		return nil, fmt.Errorf("open a kept answer: %w", err)
	}
	k := &Kept{Status: row.Status, Body: body}
	copy(k.Fingerprint[:], row.Fingerprint)
	return k, nil
}

func (t *Tx) kept(ctx context.Context, digest [32]byte) (bool, error) {
	if _, err := t.exec(ctx, "idempotency_forget", t.tenant, digest[:]); err != nil {
		return false, err
	}
	row, err := one[keptRow](ctx, t.View, "idempotency", t.tenant, digest[:])
	return row != nil, err
}

func (t *Tx) keep(ctx context.Context, answer []byte) error {
	idem := t.by.Idem
	sealed, err := t.vault.Seal(place(t.tenant, idem.Digest), answer)
	if err != nil {
		return fmt.Errorf("seal an answer: %w", err)
	}
	n, err := t.exec(ctx, "idempotency_insert", t.tenant, idem.Digest[:], idem.Fingerprint[:], idem.Status, []byte(sealed))
	if err == nil && n == 0 {
		return ErrReplay // an actor's commit was first; actors take no lock
	}
	return err
}

// Audit writes a row of the audit log; detail may be nil and must not hold a credential or
// content.
func (t *Tx) Audit(ctx context.Context, action, kind string, target id.UUID, detail any) error {
	var doc []byte
	if detail != nil {
		var err error
		if doc, err = json.Marshal(detail); err != nil {
			return fmt.Errorf("encode audit detail: %w", err)
		}
	}
	t.note(kind, target)
	_, err := t.exec(ctx, "audit_insert", t.tenant, id.AuditID{UUID: id.NewAnywhere()}, t.by.Actor, action, kind, target, t.by.IP, jsonArg(doc))
	return err
}

// auditAll is Audit for one change of many objects.
func (t *Tx) auditAll(ctx context.Context, action, kind string, targets []id.UUID) error {
	if len(targets) == 0 {
		return nil
	}
	rows := make([]id.AuditID, len(targets))
	for i, target := range targets {
		rows[i] = id.AuditID{UUID: id.NewAnywhere()}
		t.note(kind, target)
	}
	_, err := t.exec(ctx, "audit_insert_all", t.tenant, rows, t.by.Actor, action, kind, targets, t.by.IP)
	return err
}

// note reports a changed object after the commit (OnChange). Audit notes its own.
func (t *Tx) note(kind string, target id.UUID) {
	t.changes = append(t.changes, msg.Change{Kind: kind, ID: target})
}

// jsonArg returns a document in the form that the driver accepts: as text, NULL for none.
func jsonArg(doc []byte) any {
	if len(doc) == 0 {
		return nil
	}
	return string(doc)
}

// all returns the rows of a query of T's columns.
func all[T any](ctx context.Context, v View, name string, args ...any) ([]T, error) {
	var out []T
	err := v.q.run(ctx, queries.Get(name), args, func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, pgx.RowToStructByName[T])
		return err
	})
	return out, err
}

// one returns the first row, nil if there is none.
func one[T any](ctx context.Context, v View, name string, args ...any) (*T, error) {
	rows, err := all[T](ctx, v, name, args...)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// scalars returns the values of a query of one column.
func scalars[T any](ctx context.Context, v View, name string, args ...any) ([]T, error) {
	var out []T
	err := v.q.run(ctx, queries.Get(name), args, func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, pgx.RowTo[T])
		return err
	})
	return out, err
}

// found turns nil into NOT_FOUND.
func found[T any](what string) func(*T, error) (*T, error) {
	return func(row *T, err error) (*T, error) {
		if err == nil && row == nil {
			err = problem.NotFound(what)
		}
		return row, err
	}
}

// named wraps the errors that mean that the database cannot serve in ErrUnavailable, and those of a caller that left:
// a COMMIT whose answer it does not wait for may take effect.
func named(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	var p *problem.Error
	if errors.As(err, &p) {
		return err
	}
	if pg.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || givenUp(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// givenUp reports whether the database aborted a change in favour of another one: nothing was
// changed, and a retry may succeed.
func givenUp(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001") // deadlock_detected, serialization_failure
}

// inUTC makes a connection read times in UTC, as the API shows them.
func inUTC(c *pgx.Conn) {
	const mark = "store.utc"
	if custom := c.PgConn().CustomData(); custom[mark] == nil {
		custom[mark] = true
		c.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
			Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
	}
}

// last is greater than every id: a newest-first list begins there.
var last = id.UUID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// before returns where a page begins, and how many rows to read: one more than the page has,
// to know whether there is a next one. All means no limit.
func before(at id.UUID, limit int) (id.UUID, *int) {
	if at.IsZero() {
		at = last
	}
	if limit == All {
		return at, nil
	}
	limit++
	return at, &limit
}

// idSlack is how far the clocks of nodes, which ids are minted by, may be from the times of rows.
const idSlack = 24 * time.Hour

// idSkew is how far the ids of two nodes that were minted at the same time may be apart.
const idSkew = time.Hour

// around narrows ids, from least on and before end, to those that any node may have minted between two times. A time
// that is nil narrows nothing.
func around(from, to *time.Time, least, end id.UUID) (id.UUID, id.UUID) {
	if from != nil {
		if u := id.At(from.Add(-idSkew)); bytes.Compare(u[:], least[:]) > 0 {
			least = u
		}
	}
	if to != nil {
		if u := id.At(to.Add(idSkew)); bytes.Compare(u[:], end[:]) < 0 {
			end = u
		}
	}
	return least, end
}

// since returns an id that those of all rows from t on are not below: a list that begins at a time
// reads no older rows. nil: the least id.
func since(t *time.Time) id.UUID {
	if t == nil {
		return id.UUID{}
	}
	return id.At(t.Add(-idSlack))
}

// until returns an id that those of all rows before t are below, or at if that is less: a list that
// ends at a time reads no newer rows. nil: at.
func until(t *time.Time, at id.UUID) id.UUID {
	if t == nil {
		return at
	}
	if end := id.At(t.Add(idSlack)); bytes.Compare(end[:], at[:]) < 0 {
		return end
	}
	return at
}

// All as a limit reads the whole list.
const All = -1
