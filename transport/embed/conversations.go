package embed

import (
	"context"
	"encoding/json"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

type postMessage struct{ Body api.EmbedMessagePost }

type oneThread struct {
	ID id.ThreadID `path:"id"`
}

type oneRun struct {
	ID id.RunID `path:"id"`
}

type watchRun struct {
	ID          id.RunID `path:"id"`
	Since       *float64 `query:"since" doc:"The last step seen: frames of later steps follow. Omitted: everything."`
	LastEventID string   `header:"Last-Event-ID" doc:"The last id seen: every later frame follows, exactly once."`
}

// visitor returns the filter for the caller's threads: those that it began with the key's
// agent.
func (e *Embed) visitor(ctx context.Context, c *edge.Caller) (*store.EmbedAccess, store.Visitor, error) {
	key, err := e.again(ctx, c)
	if err != nil {
		return nil, store.Visitor{}, err
	}
	return key, store.Visitor{Agent: key.Agent, CreatedBy: c.Principal}, nil
}

// attributed is the origin of an embed run as its input shows it (service.md, Thread, run,
// step).
type attributed struct {
	EmbedKeyID id.EmbedKeyID `json:"embed_key_id"`
	VisitorID  id.VisitorID  `json:"visitor_id"`
	EndUserID  *id.EndUserID `json:"end_user_id,omitempty"`
}

func (e *Embed) post(ctx context.Context, c *edge.Caller, in *postMessage) (*api.EmbedMessagePosted, error) {
	key, whose, err := e.visitor(ctx, c)
	if err != nil {
		return nil, err
	}
	from := attributed{EmbedKeyID: key.ID, VisitorID: c.Embed.Visitor}
	if u := c.Embed.EndUser; !u.IsZero() {
		from.EndUserID = &u
	}
	input, err := json.Marshal(struct {
		Text   string     `json:"text"`
		Origin attributed `json:"_origin"`
	}{in.Body.Content, from})
	if err != nil {
		return nil, err
	}
	s := platform.Saying{Thread: in.Body.ThreadID, Visitor: &whose, Content: in.Body.Content, Input: input,
		Origin: msg.Origin{Kind: lifecycle.OriginEmbedKey, ID: key.ID.UUID}, EndUserID: from.EndUserID,
		Answer: func(said platform.Said) any { return posted(said) }}
	said, err := e.host.Say(ctx, c, s)
	if err != nil {
		return nil, err
	}
	return posted(*said), nil
}

func posted(s platform.Said) *api.EmbedMessagePosted {
	return &api.EmbedMessagePosted{ThreadID: s.Thread, RunID: s.Run, MessageID: s.Message}
}

func (e *Embed) threads(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.EmbedThread], error) {
	_, whose, err := e.visitor(ctx, c)
	if err != nil {
		return nil, err
	}
	var at id.ThreadID
	if _, err := in.From("embed-threads", &at); err != nil {
		return nil, err
	}
	bound := store.Bound{Bytes: api.MaxListBytes}
	rows, err := e.Store.View(c.Tenant).Bounded(&bound).VisitorThreads(ctx, whose, at, in.Size())
	if err != nil {
		return nil, err
	}
	list := api.Paged(rows, in.Size(), bound.Cut, "embed-threads", func(t api.EmbedThread) any { return t.ID })
	return &list, nil
}

func (e *Embed) history(ctx context.Context, c *edge.Caller, in *oneThread) (*api.EmbedMessages, error) {
	key, whose, err := e.visitor(ctx, c)
	if err != nil {
		return nil, err
	}
	items, err := e.Store.View(c.Tenant).VisitorMessages(ctx, whose, in.ID)
	if err != nil {
		return nil, err
	}
	if err := e.sources(ctx, c, key, items); err != nil {
		return nil, err
	}
	return &api.EmbedMessages{Items: items}, nil
}

// sources removes the citations that the visitor is not shown.
func (e *Embed) sources(ctx context.Context, c *edge.Caller, key *store.EmbedAccess, items []api.EmbedMessage) error {
	if show := key.Config.ShowSources; show == nil || !*show {
		for i := range items {
			items[i].Citations = nil
		}
		return nil
	}
	var who *id.EndUserID
	if u := c.Embed.EndUser; !u.IsZero() {
		who = &u
	}
	return e.Store.View(c.Tenant).SeenBy(ctx, who, items)
}

func (e *Embed) cancel(ctx context.Context, c *edge.Caller, in *oneRun) (*api.RunStatus, error) {
	_, whose, err := e.visitor(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := e.Store.View(c.Tenant).VisitorRun(ctx, whose, in.ID); err != nil {
		return nil, err
	}
	return e.host.Cancel(ctx, c, in.ID)
}

func (e *Embed) watch(ctx context.Context, c *edge.Caller, in *watchRun) (edge.Subscriber, error) {
	_, whose, err := e.visitor(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := e.Store.View(c.Tenant).VisitorRun(ctx, whose, in.ID); err != nil {
		return nil, err
	}
	since := -1.0
	if in.Since != nil {
		since = *in.Since
	}
	release, err := e.Limits.Stream(ctx, c.Tenant, c.Embed.Key, c.Embed.Visitor)
	if err != nil {
		return nil, err
	}
	sub, err := e.Streams.OpenRelay(ctx, c.Tenant, in.ID, event.ReadCursor(in.LastEventID, since, true))
	if err != nil {
		release()
		return nil, err
	}
	return held{sub, release}, nil
}

// held releases a stream's place when the stream has ended.
type held struct {
	edge.Subscriber
	release func()
}

func (h held) Gone() {
	h.Subscriber.Gone()
	h.release()
}
