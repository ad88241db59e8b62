package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Visitor identifies a visitor that talks to an agent through an embed key. A visitor has the
// threads that it began with that agent; queries find no others.
type Visitor struct {
	Agent     id.AgentID // agent of the key
	CreatedBy string     // embed:eu:<end_user_id> or embed:vid:<visitor_id>
}

const (
	// EmbedHistory is how many messages of a thread its visitor reads.
	EmbedHistory = 100
)

// VisitorThreads returns the visitor's threads, newest first.
func (v View) VisitorThreads(ctx context.Context, who Visitor, at id.ThreadID, limit int) ([]api.EmbedThread, error) {
	from, n := before(at.UUID, limit)
	return listed[api.EmbedThread](ctx, v, "visitor_threads", v.tenant, who.CreatedBy, who.Agent, from, n)
}

// VisitorMessages returns the newest EmbedHistory messages of a visitor's thread, oldest
// first.
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

// VisitorRun returns NOT_FOUND unless the run belongs to a thread of the visitor.
func (v View) VisitorRun(ctx context.Context, who Visitor, run id.RunID) error {
	own, err := scalars[id.RunID](ctx, v, "visitor_run", v.tenant, run, who.CreatedBy, who.Agent)
	if err == nil && len(own) == 0 {
		err = problem.NotFound("run")
	}
	return err
}
