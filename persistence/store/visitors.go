package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Visitor is who talks to an agent through an embed key. Threads are a visitor's that
// it began, with that agent; whatever else there is is no row.
type Visitor struct {
	Agent     id.AgentID // of the key
	CreatedBy string     // embed:eu:<end_user_id> or embed:vid:<visitor_id>
}

const (
	// EmbedMessages is how many messages an embed thread holds (service.md, Limits).
	EmbedMessages = 200
	// EmbedHistory is how many of them its visitor reads.
	EmbedHistory = 100
)

// VisitorThreads lists the visitor's threads, newest first.
func (v View) VisitorThreads(ctx context.Context, who Visitor, at id.ThreadID, limit int) ([]api.EmbedThread, error) {
	from, n := before(at.UUID, limit)
	return listed[api.EmbedThread](ctx, v, "visitor_threads", v.tenant, who.CreatedBy, who.Agent, from, n)
}

// VisitorMessages are the newest EmbedHistory messages of a thread of the visitor,
// oldest first.
func (v View) VisitorMessages(ctx context.Context, who Visitor, thread id.ThreadID) ([]api.EmbedMessage, error) {
	var own []id.ThreadID
	items := []api.EmbedMessage{}
	err := v.q.together(ctx, func(b *pgx.Batch) {
		collect(b, "visitor_thread", &own, pgx.RowTo[id.ThreadID], v.tenant, thread, who.CreatedBy, who.Agent)
		collect(b, "visitor_messages", &items, pgx.RowToStructByName[api.EmbedMessage], v.tenant, thread, EmbedHistory, api.MaxListBytes)
	})
	if err != nil {
		return nil, err
	}
	if len(own) == 0 {
		return nil, problem.NotFound("thread")
	}
	return items, nil
}

// VisitorRun is NOT_FOUND unless the run is of a thread of the visitor.
func (v View) VisitorRun(ctx context.Context, who Visitor, run id.RunID) error {
	own, err := scalars[id.RunID](ctx, v, "visitor_run", v.tenant, run, who.CreatedBy, who.Agent)
	if err == nil && len(own) == 0 {
		err = problem.NotFound("run")
	}
	return err
}

// Standing is how an embed thread stands at one moment.
type Standing struct {
	Newest   *id.RunID // of the newest message, however it stands; nil: there is none
	Messages int
	Owed     int // replies: the runs that have not ended
	// Open is the newest run that has not ended; nil: all have.
	Open       *id.RunID
	OpenStatus *lifecycle.RunStatus
}

// Standing reads how an embed thread stands; one that is gone, or not the visitor's,
// is NOT_FOUND. Nil: whose it is does not matter.
func (v View) Standing(ctx context.Context, thread id.ThreadID, who *Visitor) (*Standing, error) {
	var agent *id.AgentID
	var createdBy *string
	if who != nil {
		agent, createdBy = &who.Agent, &who.CreatedBy
	}
	return found[Standing]("thread")(one[Standing](ctx, v, "standing", v.tenant, thread, agent, createdBy))
}

// Refusal is why a message is not accepted as the thread stands, nil where it is
// (service.md, Embed rules; open-parts.md, Embed): EMBED_THREAD_FULL, then
// EMBED_RUN_IN_FLIGHT with the run. Behind runs that wait for an approval it is queued.
func (s *Standing) Refusal() error {
	if s.Messages+s.Owed+2 > EmbedMessages {
		return problem.New(problem.CodeEmbedThreadFull, "The conversation is full. Start a new one.")
	}
	if s.Open != nil && *s.OpenStatus != lifecycle.RunWaitingApproval {
		return &problem.Error{Code: problem.CodeEmbedRunInFlight, Detail: "The last message has no reply yet. Wait for the run to end, or cancel it.",
			Extensions: map[string]any{"run_id": s.Open.String()}}
	}
	return nil
}
