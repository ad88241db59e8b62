package platform

import (
	"context"
	"encoding/json"
	"fmt"

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
	api.Page
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
		Description: "A run answers it. Runs of one thread go one after another, in the order in which their messages were accepted.", Tag: tag, Role: lifecycle.RoleMember,
		Status: 202, Idempotent: true, Codes: []problem.Code{problem.CodeUnknownTool, problem.CodeAgentNotPublished},
		Example: map[string]any{"content": "Where is my order?"}}, p.postMessage)
}

func (p *Platform) listThreads(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Thread], error) {
	return list(ctx, *in, "threads", p.Store.View(c.Tenant).Threads, func(t api.Thread) any { return t.ID })
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
		return nil, problem.New(problem.CodeNotFound, "The agent has no published version.")
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
	defer p.threads.Drop(threadKey{c.Tenant, in.ID})
	order := msg.DeleteThread{Op: id.OpID{UUID: id.New(in.ID.Shard())}, By: sender(c)}
	_, err := ask[msg.Done](ctx, p, c, msg.KindThread, in.ID.UUID, order)
	return nil, err
}

func (p *Platform) listMessages(ctx context.Context, c *edge.Caller, in *listMessages) (*api.Whole[api.Message], error) {
	after, err := page[int64](in.Page, "messages")
	if err != nil {
		return nil, err
	}
	v := p.Store.View(c.Tenant)
	if _, err := v.Thread(ctx, in.ID); err != nil {
		return nil, err
	}
	var rows []store.Placed
	if in.Given() {
		rows, err = v.Messages(ctx, in.ID, after, in.Size())
	} else {
		rows, err = v.Newest(ctx, in.ID)
	}
	if err != nil {
		return nil, err
	}
	list := paged(in.Page, rows, "messages", func(m store.Placed) any { return m.Seq })
	out := &api.Whole[api.Message]{Items: make([]api.Message, len(list.Items)), NextCursor: list.NextCursor}
	for i, m := range list.Items {
		out.Items[i] = m.Message
	}
	return out, nil
}

// options are the per-turn options as the run's input shows them.
type options struct {
	Autonomy string    `json:"autonomy,omitempty"`
	Tools    *[]string `json:"tools,omitempty"`
}

// turn is the input of a run that answers a message (open-parts.md, Threads,
// runs).
type turn struct {
	Text          string            `json:"text"`
	AttachmentIDs []id.AttachmentID `json:"attachment_ids,omitempty"`
	Options       *options          `json:"options,omitempty"`
}

// checkMessage checks what the schema of the body cannot say.
func checkMessage(b *api.MessagePost) error {
	var bad []problem.Field
	if b.Content == "" && len(b.AttachmentIDs) == 0 {
		bad = append(bad, problem.Field{Path: "content", Message: "text or attachments are required"})
	}
	switch {
	case b.Evidence == nil:
	case !*b.Evidence:
		bad = append(bad, problem.Field{Path: "evidence", Message: "can only be true"})
	default:
		bad = append(bad, problem.Field{Path: "evidence", Message: "is not available in this deployment yet"})
	}
	if b.Deliverable != "" {
		bad = append(bad, problem.Field{Path: "deliverable", Message: "is not available in this deployment yet"})
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
			return problem.New(problem.CodeUnknownTool, fmt.Sprintf("No tool of this tenant matches %q.", clip(token)))
		}
	}
	return nil
}

func clip(s string) string {
	if r := []rune(s); len(r) > 80 {
		return string(r[:80]) + "…"
	}
	return s
}

// postMessage reads nothing when the thread and its agent were used lately and
// no tools are named: the thread itself answers whether it is there.
func (p *Platform) postMessage(ctx context.Context, c *edge.Caller, in *postMessage) (*api.MessagePosted, error) {
	agentID, _, err := p.threads.Load(ctx, threadKey{c.Tenant, in.ID}, func(ctx context.Context) (id.AgentID, bool, error) {
		t, err := p.Store.View(c.Tenant).Thread(ctx, in.ID)
		if err != nil {
			return id.AgentID{}, false, err
		}
		return t.AgentID, true, nil
	})
	if err != nil {
		return nil, err
	}
	b := &in.Body
	if err := checkMessage(b); err != nil {
		return nil, err
	}
	if err := p.checkTools(ctx, c.Tenant, b.Tools); err != nil {
		return nil, err
	}
	version, ok, err := p.version(ctx, c.Tenant, agentID)
	if err != nil {
		return nil, err
	}
	if !ok || version == 0 { // archived, or never published
		return nil, problem.New(problem.CodeAgentNotPublished, "The thread's agent has no published version any more.")
	}
	post := msg.Post{
		Message: id.MessageID{UUID: id.New(in.ID.Shard())}, Run: id.RunID{UUID: id.New(in.ID.Shard())},
		AgentID: agentID, AgentVersion: version, Content: b.Content, Origin: origin(c), By: sender(c),
	}
	input := turn{Text: b.Content}
	if len(b.AttachmentIDs) > 0 {
		files, err := p.Store.View(c.Tenant).Attachments(ctx, b.AttachmentIDs)
		if err != nil {
			return nil, err
		}
		if post.Attachments, err = json.Marshal(files); err != nil {
			return nil, err
		}
		for _, f := range files {
			input.AttachmentIDs = append(input.AttachmentIDs, f.ID)
		}
	}
	if b.Autonomy != "" || b.Tools != nil {
		input.Options = &options{b.Autonomy, b.Tools}
	}
	if post.Input, err = json.Marshal(input); err != nil {
		return nil, err
	}
	out := &api.MessagePosted{RunID: post.Run, MessageID: post.Message}
	if post.Idempotency, err = p.keep(c, out); err != nil {
		return nil, err
	}
	if _, err := ask[msg.Posted](ctx, p, c, msg.KindThread, in.ID.UUID, post); err != nil {
		return nil, err
	}
	return out, nil
}
