package engine

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
)

//go:embed queries/*.sql
var queryFiles embed.FS

var queries = pg.Queries(queryFiles)

var (
	beginSQL     = queries.Get("begin")
	commitSQL    = queries.Get("commit")
	runSQL       = queries.Get("run")
	openStepsSQL = queries.Get("open_steps")
	sealedSQL    = queries.Get("sealed")
	citedSQL     = queries.Get("cited")
	manifestSQL  = queries.Get("manifest")
	publishedSQL = queries.Get("published")
	slugSQL      = queries.Get("slug")
	messagesSQL  = queries.Get("messages")
	threadSQL    = queries.Get("thread")
	openRunsSQL  = queries.Get("open_runs")
	askedSQL     = queries.Get("asked")
	auditedSQL   = queries.Get("audited")
	acceptedSQL  = queries.Get("accepted")
	standingSQL  = queries.Get("standing")
)

// Store reads rows for actors.
type Store struct{ pool *pgxpool.Pool }

// New returns a Store over a pool of the role system.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Run is a run's row with its open steps.
type Run struct {
	Status       lifecycle.RunStatus
	AgentID      *id.AgentID
	AgentVersion *int
	ThreadID     *id.ThreadID
	ThreadSeq    *int64
	ParentRunID  *id.RunID // of the child run of a workflow's node
	Input        json.RawMessage
	Output       json.RawMessage
	ErrorCode    *string
	ErrorMessage *string
	OriginKind   lifecycle.OriginKind
	OriginID     id.UUID
	EndUserID    *id.EndUserID
	TokensIn     int64
	TokensOut    int64
	CostUSD      float64
	CreatedAt    time.Time
	StartedAt    *time.Time
	FinishedAt   *time.Time
	Seq          int64
	Steps        int
	Version      int64
	Epoch        int64
	State        []byte
	Open         []OpenStep // in order
}

// OpenStep is a step that began and has not ended.
type OpenStep struct {
	Idx      int
	Kind     lifecycle.StepKind
	Name     string
	Status   lifecycle.StepStatus // running or waiting
	BeganSeq int64
	Sealed   []byte
	Asked    *Asked // for a waiting step, once its approval is open
}

// Asked is the state of a step's approval.
type Asked struct {
	ID       id.ApprovalID
	Status   lifecycle.ApprovalStatus
	Decision lifecycle.Action // empty while pending
	Feedback string
	// Edited are the sealed arguments to call if the status is edited, else nil.
	Edited []byte
	// Shown are the edited arguments as their editor sent them, without secrets.
	Shown     json.RawMessage
	Digest    []byte // digest of the arguments to call
	OnTimeout string
	Risk      lifecycle.Risk
	Assignee  lifecycle.Role // after an escalation the higher role
	ExpiresAt time.Time
}

// Sealed is what a step keeps for the model's history.
type Sealed struct {
	Idx   int
	Value []byte
}

// Message is one message of a thread.
type Message struct {
	Seq         int64
	Role        string
	Content     string
	Attachments json.RawMessage
}

// Thread is a thread's row with its open runs.
type Thread struct {
	AgentID   id.AgentID
	CreatedBy string
	EndUserID *id.EndUserID
	NextSeq   int64
	DeletedAt *time.Time
	Version   int64
	Epoch     int64
	Open      []OpenRun  // the first ones, in order
	Asked     []id.RunID // runs of the newest messages, newest first
}

// Standing counts a thread's messages and open runs at one moment.
type Standing struct {
	Messages int
	Owed     int // replies still to come: the number of open runs
	// Open is the newest open run; nil if all have ended.
	Open       *id.RunID
	OpenStatus *lifecycle.RunStatus
	Before     bool // the run in question belongs to the thread
}

// OpenRun is an open run and its position in the thread.
type OpenRun struct {
	Run id.RunID
	Seq int64
}

// Run returns the run and its open steps, as of one moment; nil if there is none.
func (s *Store) Run(ctx context.Context, tenant id.TenantID, run id.RunID) (*Run, error) {
	var (
		r     Run
		found bool
	)
	err := s.together(ctx, func(b *pgx.Batch) {
		b.Queue(runSQL, tenant, run).QueryRow(r.scan(&found))
		b.Queue(openStepsSQL, tenant, run).Query(r.scanOpen)
	})
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", run, err)
	}
	if !found {
		return nil, nil
	}
	return &r, nil
}

func (r *Run) scan(found *bool) func(pgx.Row) error {
	return func(row pgx.Row) (err error) {
		*found, err = one(row.Scan(r.columns()...))
		return err
	}
}

// columns returns the scan targets of the query run.
func (r *Run) columns() []any {
	return []any{&r.Status, &r.AgentID, &r.AgentVersion, &r.ThreadID, &r.ThreadSeq, &r.ParentRunID, &r.Input, &r.Output,
		&r.ErrorCode, &r.ErrorMessage, &r.OriginKind, &r.OriginID, &r.EndUserID, &r.TokensIn, &r.TokensOut, &r.CostUSD,
		&r.CreatedAt, &r.StartedAt, &r.FinishedAt, &r.Seq, &r.Steps, &r.Version, &r.Epoch, &r.State}
}

func (r *Run) scanOpen(rows pgx.Rows) error {
	var step openRow
	_, err := pgx.ForEachRow(rows, step.columns(), func() error { return r.began(&step) })
	return err
}

// began adds the step of a scanned row and makes room for the next row.
func (r *Run) began(row *openRow) error {
	step, err := row.step()
	r.Open = append(r.Open, step)
	*row = openRow{}
	return err
}

// openRow is a row of the query open_steps; its columns are NULL if no step is open.
type openRow struct {
	idx              *int
	kind             *lifecycle.StepKind
	name             *string
	status           *lifecycle.StepStatus
	began            *int64
	sealed           []byte
	approval         *id.ApprovalID
	decided          *lifecycle.ApprovalStatus
	decision         *lifecycle.Action
	edited           []byte
	decisions        json.RawMessage // of an edited approval
	digest           []byte
	feedback, expiry *string
	risk             *lifecycle.Risk
	assignee         *lifecycle.Role
	expires          *time.Time
}

func (o *openRow) columns() []any {
	return []any{&o.idx, &o.kind, &o.name, &o.status, &o.began, &o.sealed,
		&o.approval, &o.decided, &o.decision, &o.feedback, &o.edited, &o.decisions, &o.digest, &o.expiry, &o.risk, &o.assignee, &o.expires}
}

// step returns the step of a row that has one.
func (o *openRow) step() (OpenStep, error) {
	step := OpenStep{Idx: *o.idx, Kind: *o.kind, Name: *o.name, Status: *o.status, BeganSeq: *o.began, Sealed: o.sealed}
	if o.approval == nil {
		return step, nil
	}
	asked := &Asked{ID: *o.approval, Status: *o.decided, Edited: o.edited, Digest: o.digest, OnTimeout: *o.expiry,
		Risk: *o.risk, Assignee: *o.assignee, ExpiresAt: *o.expires}
	if o.decision != nil {
		asked.Decision = *o.decision
	}
	if o.feedback != nil {
		asked.Feedback = *o.feedback
	}
	step.Asked = asked
	var err error
	asked.Shown, err = lastEdit(o.decisions)
	return step, err
}

// lastEdit returns the arguments that the last editor among decisions sent.
func lastEdit(decisions json.RawMessage) (json.RawMessage, error) {
	if len(decisions) == 0 {
		return nil, nil
	}
	var ledger []struct {
		Action lifecycle.Action `json:"action"`
		Args   json.RawMessage  `json:"edited_args"`
	}
	if err := json.Unmarshal(decisions, &ledger); err != nil {
		return nil, fmt.Errorf("decode decisions: %w", err)
	}
	for _, d := range slices.Backward(ledger) {
		if d.Action == lifecycle.ActionEdit {
			return d.Args, nil
		}
	}
	return nil, nil
}

// Sealed returns the sealed values of a run's ended steps from one step on, in order, without
// abandoned steps, and their size. If they are larger than room, there are no values.
func (s *Store) Sealed(ctx context.Context, tenant id.TenantID, run id.RunID, from int, room int64) (out []Sealed, size int64, err error) {
	rows, err := s.pool.Query(ctx, sealedSQL, tenant, run, from, room)
	if err == nil {
		var v Sealed
		_, err = pgx.ForEachRow(rows, []any{&v.Idx, &v.Value, &size}, func() error {
			out, v = append(out, v), Sealed{}
			return nil
		})
	}
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("read the steps of run %s: %w", run, err)
	case size > room:
		return nil, size, nil
	}
	return out, size, nil
}

// Manifest returns the manifest of a version of an agent; nil if there is none.
func (s *Store) Manifest(ctx context.Context, tenant id.TenantID, agent id.AgentID, version int) (json.RawMessage, error) {
	var doc json.RawMessage
	found, err := one(s.pool.QueryRow(ctx, manifestSQL, tenant, agent, version).Scan(&doc))
	if err != nil || !found {
		return nil, err
	}
	return doc, nil
}

// Published returns the agent with that slug and its published version; ok is false if there
// is none.
func (s *Store) Published(ctx context.Context, tenant id.TenantID, slug string) (agent id.AgentID, version int, ok bool, err error) {
	ok, err = one(s.pool.QueryRow(ctx, publishedSQL, tenant, slug).Scan(&agent, &version))
	if err != nil {
		err = fmt.Errorf("read the published version of an agent: %w", err)
	}
	return agent, version, ok, err
}

// Cited returns the chunks among those that the run's searches found which have one of these
// marks (knowledge.Cite), by mark.
func (s *Store) Cited(ctx context.Context, tenant id.TenantID, run id.RunID, cites []string) (map[string]knowledge.Citation, error) {
	rows, err := s.pool.Query(ctx, citedSQL, tenant, run, cites)
	if err != nil {
		return nil, fmt.Errorf("read what run %s retrieved: %w", run, err)
	}
	out := map[string]knowledge.Citation{}
	var c knowledge.Citation
	if _, err := pgx.ForEachRow(rows, []any{&c.Cite, &c.DocumentID, &c.DocumentName, &c.URI, &c.Position}, func() error {
		out[c.Cite] = c
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read what run %s retrieved: %w", run, err)
	}
	return out, nil
}

// Slug returns the slug of an agent, archived ones included; empty if there is none.
func (s *Store) Slug(ctx context.Context, tenant id.TenantID, agent id.AgentID) (string, error) {
	var slug string
	if _, err := one(s.pool.QueryRow(ctx, slugSQL, tenant, agent).Scan(&slug)); err != nil {
		return "", fmt.Errorf("read the slug of an agent: %w", err)
	}
	return slug, nil
}

// Messages returns the last limit messages of a thread up to and including the position upTo,
// oldest first, and their size. The oldest that do not fit into room bytes are left out, and
// size counts them too.
func (s *Store) Messages(ctx context.Context, tenant id.TenantID, thread id.ThreadID, upTo int64, limit int, room int64) (out []Message, size int64, err error) {
	rows, err := s.pool.Query(ctx, messagesSQL, tenant, thread, upTo, limit, room)
	if err == nil {
		var m Message
		_, err = pgx.ForEachRow(rows, []any{&m.Seq, &m.Role, &m.Content, &m.Attachments, &size}, func() error {
			out, m = append(out, m), Message{}
			return nil
		})
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the messages of thread %s: %w", thread, err)
	}
	slices.Reverse(out)
	return out, size, nil
}

// Thread returns the thread, its first open runs and the runs of its newest messages, at most
// window of each, as of one moment; nil if there is none.
func (s *Store) Thread(ctx context.Context, tenant id.TenantID, thread id.ThreadID, window int) (*Thread, error) {
	var (
		t     Thread
		found bool
	)
	err := s.together(ctx, func(b *pgx.Batch) {
		b.Queue(threadSQL, tenant, thread).QueryRow(func(row pgx.Row) (err error) {
			found, err = one(row.Scan(&t.AgentID, &t.CreatedBy, &t.EndUserID, &t.NextSeq, &t.DeletedAt, &t.Version, &t.Epoch))
			return err
		})
		b.Queue(openRunsSQL, tenant, thread, int64(0), window).Query(func(rows pgx.Rows) (err error) {
			t.Open, err = pgx.CollectRows(rows, pgx.RowToStructByPos[OpenRun])
			return err
		})
		b.Queue(askedSQL, tenant, thread, window).Query(func(rows pgx.Rows) (err error) {
			t.Asked, err = pgx.CollectRows(rows, pgx.RowTo[id.RunID])
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read thread %s: %w", thread, err)
	}
	if !found {
		return nil, nil
	}
	return &t, nil
}

// OpenRuns returns the first limit open runs of a thread after a position, in order.
func (s *Store) OpenRuns(ctx context.Context, tenant id.TenantID, thread id.ThreadID, after int64, limit int) ([]OpenRun, error) {
	rows, err := s.pool.Query(ctx, openRunsSQL, tenant, thread, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the open runs of thread %s: %w", thread, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[OpenRun])
	if err != nil {
		return nil, fmt.Errorf("read the open runs of thread %s: %w", thread, err)
	}
	return out, nil
}

// Accepted reports whether the run belongs to the thread.
func (s *Store) Accepted(ctx context.Context, tenant id.TenantID, thread id.ThreadID, run id.RunID) (is bool, err error) {
	if err := s.pool.QueryRow(ctx, acceptedSQL, tenant, thread, run).Scan(&is); err != nil {
		return false, fmt.Errorf("read run %s: %w", run, err)
	}
	return is, nil
}

// Standing returns the state of a thread's messages and runs, and whether the run belongs to it.
func (s *Store) Standing(ctx context.Context, tenant id.TenantID, thread id.ThreadID, run id.RunID) (st Standing, err error) {
	if err := s.pool.QueryRow(ctx, standingSQL, tenant, thread, run).Scan(&st.Messages, &st.Owed, &st.Open, &st.OpenStatus, &st.Before); err != nil {
		return st, fmt.Errorf("read how thread %s stands: %w", thread, err)
	}
	return st, nil
}

// Audited reports whether the audit log has the row, with that action and target.
func (s *Store) Audited(ctx context.Context, tenant id.TenantID, row id.AuditID, action string, target id.UUID) (there bool, err error) {
	if err = s.pool.QueryRow(ctx, auditedSQL, tenant, row, action, target).Scan(&there); err != nil {
		err = fmt.Errorf("look for row %s of the audit log: %w", row, err)
	}
	return there, err
}

// together sends queries in one round trip and reads them at one moment.
func (s *Store) together(ctx context.Context, queue func(*pgx.Batch)) error {
	var b pgx.Batch
	b.Queue(beginSQL)
	queue(&b)
	b.Queue(commitSQL)
	// A transaction left open by a failure ends with its connection: the pool does not keep
	// one that is in a transaction.
	return s.pool.SendBatch(ctx, &b).Close()
}

// one turns "no rows" into false.
func one(err error) (bool, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
