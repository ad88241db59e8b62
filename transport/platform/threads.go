package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type createThread struct{ Body api.ThreadCreate }

type oneThread struct {
	ID id.ThreadID `path:"id"`
}

type listMessages struct {
	ID id.ThreadID `path:"id"`
	api.PageOrAll
}

type postMessage struct {
	ID   id.ThreadID `path:"id"`
	Body api.MessagePost
}

func (p *Platform) threadRoutes(t *edge.Table) {
	const tag = "Threads"
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/threads", ID: "listThreads", Answer: listed(sampleThread),
		Summary: "List threads", Tag: tag, Role: lifecycle.RoleMember}, p.listThreads)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/threads", ID: "createThread", Answer: sampleThreadCreated,
		Summary: "Start a conversation", Tag: tag, Role: lifecycle.RoleMember,
		Idempotent: true, Codes: []problem.Code{problem.CodeNotFound},
		Example: map[string]any{"agent_id": "01890a5d-ac96-774b-bcce-b302099a8057", "title": "Order 1001"}}, p.createThread)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/threads/{id}", ID: "getThread", Answer: sampleThread,
		Summary: "Read a thread", Tag: tag, Role: lifecycle.RoleMember}, p.getThread)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/threads/{id}", ID: "deleteThread", Summary: "Delete a thread",
		Description: "Its messages are deleted and its open runs cancelled.", Tag: tag, Role: lifecycle.RoleMember}, p.deleteThread)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/threads/{id}/messages", ID: "listMessages", Answer: api.All([]api.Message{sampleMessage}),
		Summary:     "Read a thread's messages",
		Description: "Oldest first. Without limit and cursor the newest 1,000, without next_cursor.", Tag: tag, Role: lifecycle.RoleMember}, p.listMessages)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/threads/{id}/messages", ID: "postMessage", Answer: api.MessagePosted{RunID: sampleRunID, MessageID: sampleMessageID},
		Summary:     "Send a message",
		Description: "A run answers it. Runs of one thread run one after another, in the order in which their messages were accepted. In a thread of the embed API a message is accepted once the previous one is answered or waits for an approval.", Tag: tag, Role: lifecycle.RoleMember,
		Status: 202, Idempotent: true, Codes: []problem.Code{problem.CodeUnknownTool, problem.CodeAgentNotPublished, problem.CodeEmbedRunInFlight, problem.CodeEmbedThreadFull},
		Example: map[string]any{"content": "Where is my order?"}}, p.postMessage)
}

func (p *Platform) listThreads(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Thread], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "threads", store.View.Threads, func(t api.Thread) id.ThreadID { return t.ID })
}

func (p *Platform) createThread(ctx context.Context, c *edge.Caller, in *createThread) (*api.ThreadCreated, error) {
	version, ok, err := p.version(ctx, c.Tenant, in.Body.AgentID)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, problem.NotFound("agent")
	}
	if version == 0 {
		return nil, notPublished(problem.CodeNotFound, in.Body.AgentID)
	}
	thread := id.ThreadID{UUID: id.New(p.Actors.MintShard())}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.ThreadCreated, error) {
		return &api.ThreadCreated{ID: thread}, tx.CreateThread(ctx, thread, in.Body.AgentID, in.Body.Title)
	})
	return out, err
}

func (p *Platform) getThread(ctx context.Context, c *edge.Caller, in *oneThread) (*api.Thread, error) {
	return p.Store.View(c.Tenant).Thread(ctx, in.ID)
}

func (p *Platform) deleteThread(ctx context.Context, c *edge.Caller, in *oneThread) (*edge.Empty, error) {
	order := msg.DeleteThread{Op: id.OpID{UUID: id.New(in.ID.Shard())}, By: sender(c)}
	_, err := ask[msg.Done](ctx, p, c, msg.KindThread, in.ID.UUID, order)
	return nil, err
}

func (p *Platform) listMessages(ctx context.Context, c *edge.Caller, in *listMessages) (*api.Whole[api.Message], error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.Thread(ctx, in.ID); err != nil {
		return nil, err
	}
	var before int64
	if !in.Page().Given() {
		var err error
		if before, err = v.BeforeNewest(ctx, in.ID); err != nil {
			return nil, err
		}
	}
	l, err := whole(ctx, v, in.Page(), "messages", before, store.NewestMessages, func(v store.View, ctx context.Context, after int64, limit int) ([]store.Placed, error) {
		return v.Messages(ctx, in.ID, after, limit)
	}, func(m store.Placed) int64 { return m.Seq })
	if err != nil {
		return nil, err
	}
	out := api.MapWhole(l, func(m store.Placed) api.Message { return m.Message })
	return out, v.CiteBases(ctx, out.Items)
}

// options are the per-message options in the form of the run's input.
type options struct {
	Autonomy    string    `json:"autonomy,omitempty"`
	Evidence    bool      `json:"evidence,omitempty"`
	Deliverable string    `json:"deliverable,omitempty"`
	Tools       *[]string `json:"tools,omitempty"`
}

// answering is the input of a run that answers a message (open-parts.md, Threads, runs).
type answering struct {
	Text          string            `json:"text"`
	AttachmentIDs []id.AttachmentID `json:"attachment_ids,omitempty"`
	Options       *options          `json:"options,omitempty"`
}

// checkMessage checks what the schema of the body cannot express.
func checkMessage(b *api.MessagePost) error {
	var bad []problem.Field
	if b.Content == "" && len(b.AttachmentIDs) == 0 {
		bad = append(bad, problem.Field{Path: "content", Message: "text or attachments are required"})
	}
	if b.Evidence != nil && !*b.Evidence {
		bad = append(bad, problem.Field{Path: "evidence", Message: "can only be true"})
	}
	if len(bad) > 0 {
		return problem.Validation(bad...)
	}
	return nil
}

// checkTools refuses a per-turn token that matches no tool of the tenant
// (open-parts.md, Tools).
func (p *Platform) checkTools(ctx context.Context, t id.TenantID, tokens *[]string) error {
	if tokens == nil || len(*tokens) == 0 {
		return nil
	}
	known, err := p.Tools.Known(ctx, t, *tokens)
	if err != nil {
		return err
	}
	for i, token := range *tokens {
		if !known[i] {
			return problem.New(problem.CodeUnknownTool, fmt.Sprintf("No tool of this tenant matches %q.", problem.Clip(token, 80)))
		}
	}
	return nil
}

// postMessage reads nothing if no tools and no attachments are named: the thread itself
// reports whether it exists and whether its agent has a published version.
func (p *Platform) postMessage(ctx context.Context, c *edge.Caller, in *postMessage) (*api.MessagePosted, error) {
	b := &in.Body
	if err := checkMessage(b); err != nil {
		return nil, err
	}
	if err := p.checkTools(ctx, c.Tenant, b.Tools); err != nil {
		return nil, err
	}
	say := Saying{Thread: &in.ID, Content: b.Content, Origin: origin(c), Answer: func(s Said) any { return posted(s) }}
	input := answering{Text: b.Content}
	if len(b.AttachmentIDs) > 0 {
		files, err := p.Store.View(c.Tenant).Attachments(ctx, b.AttachmentIDs)
		if err != nil {
			return nil, err
		}
		if say.Attachments, err = json.Marshal(files); err != nil {
			return nil, err
		}
		for _, f := range files {
			input.AttachmentIDs = append(input.AttachmentIDs, f.ID)
		}
	}
	if b.Autonomy != "" || b.Evidence != nil || b.Deliverable != "" || b.Tools != nil {
		input.Options = &options{b.Autonomy, b.Evidence != nil, b.Deliverable, b.Tools}
	}
	var err error
	if say.Input, err = json.Marshal(input); err != nil {
		return nil, err
	}
	said, err := p.Say(ctx, c, say)
	if err != nil {
		return nil, err
	}
	return posted(*said), nil
}

func posted(s Said) *api.MessagePosted { return &api.MessagePosted{RunID: s.Run, MessageID: s.Message} }

// Saying is a message to post in a thread.
type Saying struct {
	// Thread is the thread to post in; nil begins a thread of the Visitor's.
	Thread *id.ThreadID
	// Visitor is the required owner of the thread; nil accepts any owner.
	Visitor     *store.Visitor
	Content     string
	Attachments json.RawMessage // in the form that the message shows
	Input       json.RawMessage // input of the run
	Origin      msg.Origin
	EndUserID   *id.EndUserID
	// Answer returns the response to keep under the caller's Idempotency-Key.
	Answer func(Said) any
}

// Said is an accepted message and the run that answers it.
type Said struct {
	Thread  id.ThreadID
	Run     id.RunID
	Message id.MessageID
}

// Say posts a message in a thread, or begins a thread of the embed API with it. The thread
// decides (see the errors of msg.Post).
func (p *Platform) Say(ctx context.Context, c *edge.Caller, s Saying) (*Said, error) {
	post := msg.Post{
		Content: s.Content, Attachments: s.Attachments, Input: s.Input, Origin: s.Origin, EndUserID: s.EndUserID, By: sender(c), New: s.Thread == nil,
	}
	if v := s.Visitor; v != nil {
		post.Visitor = &msg.Visitor{Agent: v.Agent, CreatedBy: v.CreatedBy}
	}
	var said Said
	if s.Thread != nil {
		said.Thread = *s.Thread
	} else {
		said.Thread = id.ThreadID{UUID: id.New(p.Actors.MintShard())}
	}
	shard := said.Thread.Shard()
	post.Message, post.Run = id.MessageID{UUID: id.New(shard)}, id.RunID{UUID: id.New(shard)}
	said.Run, said.Message = post.Run, post.Message
	var err error
	if post.Idempotency, err = p.keep(c, s.Answer(said)); err != nil {
		return nil, err
	}
	accepted, err := ask[msg.Posted](ctx, p, c, msg.KindThread, said.Thread.UUID, post)
	var refused *problem.Error
	switch {
	case errors.As(err, &refused) && (refused.Code == problem.CodeEmbedThreadFull || refused.Code == problem.CodeEmbedRunInFlight):
		return nil, p.unlessKept(ctx, c, err)
	case err != nil:
		return nil, err
	case accepted.Run.IsZero(): // a node of a version that wants more of a Post
		return nil, problem.Unavailable("The thread cannot take messages by this node yet.", time.Second)
	}
	c.Run = said.Run
	return &said, nil
}

// notPublished returns the problem of an agent without a published version. It names the
// call that publishes one.
func notPublished(code problem.Code, a id.AgentID) error {
	agent := "/v1/agents/" + a.String()
	return problem.New(code, "The agent has no published version. Publish one with POST "+agent+"/versions/{version}/publish; GET "+agent+"/versions lists them.")
}

// unlessKept returns refusal, unless its cause is the first request with the caller's
// Idempotency-Key: then that request's run and its kept response are both committed.
func (p *Platform) unlessKept(ctx context.Context, c *edge.Caller, refusal error) error {
	if c.Idem == nil {
		return refusal
	}
	kept, err := p.Store.Kept(ctx, c.Tenant, digest(c.Idem.IdemKey))
	if err != nil {
		return err
	}
	if kept != nil {
		return edge.ErrReplay
	}
	return refusal
}
