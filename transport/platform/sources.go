package platform

import (
	"context"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type listSources struct {
	api.Page
	ID id.KnowledgeBaseID `path:"id"`
}

type createSource struct {
	ID   id.KnowledgeBaseID `path:"id"`
	Body api.SourceCreate
}

type oneSource struct {
	ID  id.KnowledgeBaseID `path:"id"`
	CID id.SourceID        `path:"cid"`
}

type patchSource struct {
	ID   id.KnowledgeBaseID `path:"id"`
	CID  id.SourceID        `path:"cid"`
	Body api.SourcePatch
}

func (p *Platform) sourceRoutes(t *edge.Table) {
	const member, admin = lifecycle.RoleMember, lifecycle.RoleAdmin
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}/connectors", ID: "listSources", Answer: listed(sampleSource),
		Summary: "List the sources of a knowledge base", Tag: knowledgeTag, Role: member}, p.listSources)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/knowledge-bases/{id}/connectors", ID: "createSource", Answer: sampleSource,
		Summary:     "Add a source",
		Description: "Nothing is read before the first sync, which is also the test of address and credentials. The credentials are stored encrypted and never returned.",
		Tag:         knowledgeTag, Role: admin, Status: 201, Idempotent: true,
		Example: map[string]any{"kind": "web", "name": "Help pages", "config": map[string]any{"url": "https://shop.example.com/help/", "depth": 1}, "schedule": "0 4 * * *", "timezone": "Europe/Berlin"}}, p.createSource)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}/connectors/{cid}", ID: "getSource", Answer: sampleSource,
		Summary: "Read a source", Tag: knowledgeTag, Role: member}, p.getSource)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/knowledge-bases/{id}/connectors/{cid}", ID: "updateSource", Answer: api.SourceUpdated{Source: sampleSource},
		Summary:     "Change, pause or resume a source",
		Description: "Its kind cannot change. A config at another origin (scheme, host, port) drops the stored credentials, unless the same body has some; the response then has credentials_dropped. With enabled false its documents stay and it does not sync.",
		Tag:         knowledgeTag, Role: admin, Example: map[string]any{"enabled": false}}, p.updateSource)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/knowledge-bases/{id}/connectors/{cid}", ID: "deleteSource", Summary: "Remove a source",
		Description: "With its documents.", Tag: knowledgeTag, Role: admin}, p.deleteSource)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/knowledge-bases/{id}/connectors/{cid}/sync", ID: "syncSource", Answer: api.SourceSync{Status: lifecycle.SourceQueued},
		Summary:     "Sync a source now",
		Description: "While a sync is on its way no second one is started. Its result is in the source's status and last_error.", Tag: knowledgeTag, Role: admin, Status: 202, Idempotent: true,
		Codes: []problem.Code{problem.CodeSourceDisabled}}, p.syncSource)
}

func (p *Platform) checkSource(ctx context.Context, kind lifecycle.SourceKind, config []byte, credentials map[string]string) error {
	return store.CheckSource(ctx, p.SourceURLs, kind, config, credentials)
}

func (p *Platform) listSources(ctx context.Context, c *edge.Caller, in *listSources) (*api.List[api.Source], error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.KnowledgeBase(ctx, in.ID); err != nil {
		return nil, err
	}
	return list(ctx, v, in.Page, "connectors", func(v store.View, ctx context.Context, at id.SourceID, limit int) ([]api.Source, error) {
		return v.Sources(ctx, in.ID, at, limit)
	}, func(s api.Source) id.SourceID { return s.ID })
}

func (p *Platform) createSource(ctx context.Context, c *edge.Caller, in *createSource) (*api.Source, error) {
	if _, err := p.Store.View(c.Tenant).KnowledgeBase(ctx, in.ID); err != nil {
		return nil, err
	}
	if err := p.checkSource(ctx, in.Body.Kind, in.Body.Config, in.Body.Credentials); err != nil {
		return nil, err
	}
	return change(ctx, p, c, with2((*store.Tx).CreateSource, in.ID, &in.Body))
}

func (p *Platform) getSource(ctx context.Context, c *edge.Caller, in *oneSource) (*api.Source, error) {
	return p.Store.View(c.Tenant).Source(ctx, in.ID, in.CID)
}

func (p *Platform) updateSource(ctx context.Context, c *edge.Caller, in *patchSource) (*api.SourceUpdated, error) {
	s, err := p.Store.View(c.Tenant).Source(ctx, in.ID, in.CID)
	if err != nil {
		return nil, err
	}
	config := []byte(s.Config)
	if in.Body.Config != nil {
		config = in.Body.Config
	}
	if in.Body.Config != nil || in.Body.Credentials != nil {
		if err := p.checkSource(ctx, s.Kind, config, in.Body.Credentials); err != nil {
			return nil, err
		}
	}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.SourceUpdated, error) {
		return tx.UpdateSource(ctx, in.ID, in.CID, &in.Body)
	})
	if err == nil {
		p.wake(c, msg.KindSync, in.CID.UUID)
	}
	return out, err
}

func (p *Platform) deleteSource(ctx context.Context, c *edge.Caller, in *oneSource) (*edge.Empty, error) {
	out, err := changeLong(ctx, p, c, none2((*store.Tx).DeleteSource, in.ID, in.CID))
	if err == nil {
		p.wake(c, msg.KindSync, in.CID.UUID)
	}
	return out, err
}

func (p *Platform) syncSource(ctx context.Context, c *edge.Caller, in *oneSource) (*api.SourceSync, error) {
	var queued bool
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (out *api.SourceSync, err error) {
		out, queued, err = tx.SyncSource(ctx, in.ID, in.CID)
		return out, err
	})
	if err == nil && queued { // a sync that is on its way goes on undisturbed
		p.wake(c, msg.KindSync, in.CID.UUID)
	}
	return out, err
}
