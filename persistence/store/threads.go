package store

import (
	"bytes"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Attachment returns the metadata of one attachment.
func (v View) Attachment(ctx context.Context, a id.AttachmentID) (*api.Attachment, error) {
	return found[api.Attachment]("attachment")(one[api.Attachment](ctx, v, "attachment", v.tenant, a))
}

// Attachments returns the attachments with these ids, in their order, each once; an unknown
// id makes the whole call NOT_FOUND.
func (v View) Attachments(ctx context.Context, ids []id.AttachmentID) ([]api.Attachment, error) {
	rows, err := all[api.Attachment](ctx, v, "attachments", v.tenant, ids)
	if err != nil {
		return nil, err
	}
	byID := make(map[id.AttachmentID]api.Attachment, len(rows))
	for _, r := range rows {
		byID[r.ID] = r
	}
	var out []api.Attachment
	for i, a := range ids {
		row, ok := byID[a]
		if !ok {
			return nil, problem.NotFound("attachment")
		}
		if !slices.Contains(ids[:i], a) {
			out = append(out, row)
		}
	}
	return out, nil
}

// NewAttachment describes a file that is stored under its id.
type NewAttachment struct {
	ID              id.AttachmentID
	Name, MediaType string
	SizeBytes       int64
	SHA256          [32]byte
}

// CreateAttachment creates the row of a stored file.
func (t *Tx) CreateAttachment(ctx context.Context, a NewAttachment) (*api.Attachment, error) {
	row, err := one[api.Attachment](ctx, t.View, "attachment_insert", t.tenant, a.ID, a.Name, a.MediaType, a.SizeBytes, a.SHA256[:], t.by.Actor)
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "attachment.create", "attachment", a.ID.UUID, nil)
}

// Threads returns threads, newest first.
func (v View) Threads(ctx context.Context, at id.ThreadID, limit int) ([]api.Thread, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Thread](ctx, v, "threads", v.tenant, from, n)
}

// Thread returns one thread; a deleted one is NOT_FOUND.
func (v View) Thread(ctx context.Context, t id.ThreadID) (*api.Thread, error) {
	return found[api.Thread]("thread")(one[api.Thread](ctx, v, "thread", v.tenant, t))
}

// CreateThread creates an empty thread.
func (t *Tx) CreateThread(ctx context.Context, thread id.ThreadID, a id.AgentID, title *string) error {
	if _, err := t.exec(ctx, "thread_insert", t.tenant, thread, a, title, t.by.Actor); err != nil {
		return err
	}
	return t.Audit(ctx, "thread.create", "thread", thread.UUID, nil)
}

// NewestMessages is how many messages a thread shows without paging (open-parts.md).
const NewestMessages = 1000

// Placed is a message with its position in the thread.
type Placed struct {
	Seq int64
	api.Message
}

type messageRow struct {
	Seq         int64
	ID          id.MessageID
	Role        string
	Content     string
	Attachments []api.Attachment
	Citations   []knowledge.Citation
	RunID       *id.RunID
	CreatedAt   time.Time
}

func (r messageRow) placed() Placed {
	if r.Attachments == nil {
		r.Attachments = []api.Attachment{}
	}
	if r.Citations == nil {
		r.Citations = []knowledge.Citation{}
	}
	return Placed{r.Seq, api.Message{ID: r.ID, Role: r.Role, Content: r.Content, Attachments: r.Attachments, Citations: r.Citations, RunID: r.RunID, CreatedAt: r.CreatedAt}}
}

// BeforeNewest returns the position before the thread's newest messages.
func (v View) BeforeNewest(ctx context.Context, thread id.ThreadID) (int64, error) {
	rows, err := scalars[int64](ctx, v, "messages_newest", v.tenant, thread, NewestMessages)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return rows[0], nil
}

// Messages returns the messages after the position after, oldest first; there may be one more
// than limit.
func (v View) Messages(ctx context.Context, thread id.ThreadID, after int64, limit int) ([]Placed, error) {
	rows, err := listed[messageRow](ctx, v, "messages_after", v.tenant, thread, after, limit+1)
	return placed(rows), err
}

func placed(rows []messageRow) []Placed {
	out := make([]Placed, len(rows))
	for i, r := range rows {
		out[i] = r.placed()
	}
	return out
}

// RunFilter narrows a list of runs; zero fields match all.
type RunFilter struct {
	Agent    *id.AgentID
	Workflow *id.WorkflowID
	Statuses []lifecycle.RunStatus
	Origin   *lifecycle.OriginKind
	Trigger  *id.TriggerID
	EndUser  *id.EndUserID
	Thread   *id.ThreadID
	Parent   *id.RunID
	TopLevel bool // only runs without a parent
	Code     *string
	Since    *time.Time
	Until    *time.Time // exclusive
	Summary  bool       // without contents, with what was asked
}

// minted bounds how far the clock of a node that mints ids may be ahead of the one that sets
// created_at. The time in an id may also be much older: a schedule that fires late.
const minted = time.Hour

// before returns the position that the list begins at: at, or where runs were created before
// Until.
func (f *RunFilter) before(at id.UUID) id.UUID {
	if f.Until == nil {
		return at
	}
	if late := id.At(f.Until.Add(minted)); bytes.Compare(late[:], at[:]) < 0 {
		return late
	}
	return at
}

// args returns the arguments of the query.
func (f *RunFilter) args(t id.TenantID, at id.RunID, limit int) []any {
	from, n := before(at.UUID, limit)
	var statuses []string
	for _, s := range f.Statuses {
		statuses = append(statuses, string(s))
	}
	open, bad, others := f.classes()
	return []any{t, f.before(from), f.Agent, f.Workflow, statuses, open, bad, others, (*string)(f.Origin), f.EndUser, f.Thread, f.Parent, f.TopLevel, f.Code, f.Since, f.Until, f.Summary, n, f.Trigger}
}

// classes reports whether the filter admits runs that are open, that ended with an error code, and
// others.
func (f *RunFilter) classes() (open, bad, others bool) {
	if len(f.Statuses) == 0 {
		return true, true, true
	}
	for _, s := range f.Statuses {
		switch {
		case !s.Terminal():
			open = true
		case s == lifecycle.RunFailed || s == lifecycle.RunCancelled:
			bad = true
		default:
			others = true
		}
	}
	return open, bad, others
}

type runRow struct {
	ID              id.RunID
	Status          lifecycle.RunStatus
	AgentID         *id.AgentID
	AgentVersion    *int
	WorkflowID      *id.WorkflowID
	WorkflowVersion *int
	ThreadID        *id.ThreadID
	ParentRunID     *id.RunID
	Input           api.Value
	Output          api.Value
	Asked           *string
	ErrorCode       *string
	ErrorMessage    *string
	OriginKind      lifecycle.OriginKind
	OriginID        id.UUID
	EndUserID       *id.EndUserID
	TokensIn        int64
	TokensOut       int64
	CostUSD         float64
	CreatedAt       time.Time
	StartedAt       *time.Time
	FinishedAt      *time.Time
}

func (r *runRow) run() *api.Run {
	out := &api.Run{ID: r.ID, Status: r.Status, AgentID: r.AgentID, AgentVersion: r.AgentVersion, WorkflowID: r.WorkflowID, WorkflowVersion: r.WorkflowVersion, ThreadID: r.ThreadID,
		ParentRunID: r.ParentRunID, Input: r.Input, Output: r.Output, Origin: api.Origin{Kind: r.OriginKind, ID: r.OriginID}, EndUserID: r.EndUserID,
		TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostUSD: r.CostUSD, CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt}
	if r.Asked != nil {
		out.Asked = api.Some(api.Asked(*r.Asked))
	}
	if r.ErrorCode != nil {
		out.Error = &api.RunError{Code: *r.ErrorCode}
		if r.ErrorMessage != nil {
			out.Error.Message = *r.ErrorMessage
		}
	}
	return out
}

// Runs returns runs, newest first.
func (v View) Runs(ctx context.Context, f RunFilter, at id.RunID, limit int) ([]api.Run, error) {
	if slices.Equal(f.Statuses, []lifecycle.RunStatus{lifecycle.RunExpired}) {
		return []api.Run{}, nil // no run has this status
	}
	rows, err := listed[runRow](ctx, v.planned(), "runs", f.args(v.tenant, at, limit)...)
	out := make([]api.Run, len(rows))
	for i := range rows {
		out[i] = *rows[i].run()
		out[i].Shown(!f.Summary)
	}
	return out, err
}

// Step returns one step of a run.
func (v View) Step(ctx context.Context, r id.RunID, idx int) (*api.Step, error) {
	step, err := found[api.Step]("step")(one[api.Step](ctx, v, "step", v.tenant, r, idx))
	if err != nil {
		return nil, err
	}
	step.Shown(true)
	return step, nil
}

// Artifacts returns the files that a run made, newest first.
func (v View) Artifacts(ctx context.Context, r id.RunID, at id.ArtifactID, limit int) ([]api.Artifact, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Artifact](ctx, v, "artifacts", v.tenant, r, from, n)
}

// HasRun is NOT_FOUND if there is no such run.
func (v View) HasRun(ctx context.Context, r id.RunID) error {
	rows, err := scalars[id.RunID](ctx, v, "run_exists", v.tenant, r)
	if err == nil && len(rows) == 0 {
		err = problem.NotFound("run")
	}
	return err
}

// Artifact returns the metadata of a file that a run made.
func (v View) Artifact(ctx context.Context, r id.RunID, a id.ArtifactID) (*api.Artifact, error) {
	return found[api.Artifact]("artifact")(one[api.Artifact](ctx, v, "artifact", v.tenant, r, a))
}

// RunAndSteps returns a run with its steps after the step after, in order, as of one moment;
// -1 means all. A summary has no contents.
func (v View) RunAndSteps(ctx context.Context, r id.RunID, after int, summary bool) (*api.Run, []api.Step, error) {
	var rows []runRow
	var steps []api.Step
	bound := v.bound
	if bound == nil {
		bound = &Bound{Bytes: math.MaxInt}
	}
	err := v.q.together(ctx, func(b *pgx.Batch) {
		collect(b, "run", &rows, pgx.RowToStructByName[runRow], v.tenant, r, summary)
		b.Queue(bounded("steps", 5), v.tenant, r, after, summary, bound.Bytes).Query(func(found pgx.Rows) (err error) {
			steps, err = within[api.Step](bound, found)
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if len(rows) == 0 {
		return nil, nil, problem.NotFound("run")
	}
	run := rows[0].run()
	run.Shown(!summary)
	for i := range steps {
		steps[i].Shown(!summary)
	}
	return run, steps, nil
}
