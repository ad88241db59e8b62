package platform

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// Query is a search in one knowledge base.
type Query struct {
	Base   id.KnowledgeBaseID
	Text   string
	TopK   int
	Viewer []string // principals of the person for whom it is made (knowledge.Viewer)
	// Explain makes hits say why they were found.
	Explain bool
}

// Searcher finds chunks in knowledge bases, best first, as kb.search does. Only documents that the
// viewer may see count.
type Searcher interface {
	Search(ctx context.Context, t id.TenantID, q Query) ([]knowledge.Hit, error)
}

type createBase struct{ Body api.KnowledgeBaseCreate }

type oneBase struct {
	ID id.KnowledgeBaseID `path:"id"`
}

type patchBase struct {
	ID   id.KnowledgeBaseID `path:"id"`
	Body api.KnowledgeBasePatch
}

type searchBase struct {
	ID   id.KnowledgeBaseID `path:"id"`
	Body api.KnowledgeSearch
}

type listDocuments struct {
	api.Page
	ID       id.KnowledgeBaseID        `path:"id"`
	Status   *lifecycle.DocumentStatus `query:"status"`
	SourceID *id.SourceID              `query:"source_id" doc:"documents of this source only"`
}

type oneDocument struct {
	ID    id.KnowledgeBaseID `path:"id"`
	DocID id.DocumentID      `path:"docId"`
}

type putACL struct {
	ID    id.KnowledgeBaseID `path:"id"`
	DocID id.DocumentID      `path:"docId"`
	Body  api.ACL
}

const knowledgeTag = "Knowledge bases"

func (p *Platform) knowledgeRoutes(t *edge.Table) {
	describeKnowledge(t)
	const member, admin = lifecycle.RoleMember, lifecycle.RoleAdmin
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases", ID: "listKnowledgeBases", Answer: listed(sampleBase),
		Summary: "List knowledge bases", Tag: knowledgeTag, Role: member}, p.listBases)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/knowledge-bases", ID: "createKnowledgeBase", Answer: sampleBase,
		Summary:     "Create a knowledge base",
		Description: "Without embedding, searches are lexical: by words in any language. With it they are hybrid: by words and by vectors, both rankings fused.", Tag: knowledgeTag, Role: admin, Status: 201, Idempotent: true,
		Example: map[string]any{"name": "Returns", "description": "How customers send things back.", "chunking": map[string]any{"max_tokens": 300, "overlap_tokens": 40}}}, p.createBase)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}", ID: "getKnowledgeBase", Answer: sampleBase,
		Summary: "Read a knowledge base", Tag: knowledgeTag, Role: member}, p.getBase)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/knowledge-bases/{id}", ID: "updateKnowledgeBase", Answer: sampleBase,
		Summary:     "Change a knowledge base",
		Description: "Another chunking or embedding indexes all documents anew, in the background: searches find a document's old chunks until its new ones are ready.", Tag: knowledgeTag, Role: admin,
		Example: map[string]any{"description": "How customers send things back."}}, p.updateBase)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/knowledge-bases/{id}", ID: "deleteKnowledgeBase", Summary: "Delete a knowledge base",
		Description: "With its documents and sources. Agents that name it find nothing in it from then on.", Tag: knowledgeTag, Role: admin}, p.deleteBase)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/knowledge-bases/{id}/search", ID: "searchKnowledgeBase", Answer: api.KnowledgeHits{Items: []knowledge.Hit{sampleHit}},
		Summary:     "Search a knowledge base",
		Description: "Best first. It finds what the person of end_user_id may see; without one, documents that are public or have no ACL. The score is above 0 and at most 1 and compares results of one response. Lexical: the part of the score that a text would have that repeats every word of the query without end. Hybrid: the mean of 61/(60+place) in the rankings by words and by vectors.",
		Tag:         knowledgeTag, Role: member, Idempotent: true, Example: map[string]any{"query": "How long may I send shoes back?", "top_k": 3}}, p.search)

	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}/documents", ID: "listDocuments", Answer: listed(sampleKBDocument),
		Summary: "List the documents of a knowledge base", Tag: knowledgeTag, Role: member}, p.listDocuments)
	edge.HandleUpload(t, edge.Route{Method: "POST", Path: "/v1/knowledge-bases/{id}/documents", ID: "uploadDocuments", Answer: api.Items[api.Document]{Items: []api.Document{sampleKBDocument}},
		Summary: "Upload documents",
		Description: "Up to 20 fields `file` of up to 50 MiB each: txt, md, html, pdf, docx, pptx, xlsx, csv, json, known by their contents. All of them or none are accepted; then each is indexed in the background, and its status tells how that went. " +
			"A name that an uploaded document has already replaces that document, which keeps its id and its ACL. A name that comes twice counts once: the last file wins.",
		Tag: knowledgeTag, Role: admin, Status: 202, Idempotent: true, MaxFile: edge.MaxDocument, MaxFiles: knowledge.MaxFiles,
		Example: map[string]any{"file": []string{"(the bytes of a file)"}}}, p.uploadDocuments)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}/documents/{docId}", ID: "getDocument", Answer: sampleKBDocument,
		Summary: "Read a document's state", Tag: knowledgeTag, Role: member}, p.getDocument)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/knowledge-bases/{id}/documents/{docId}", ID: "deleteDocument", Summary: "Delete a document",
		Description: "No search finds it from then on. A document that is still at its source comes back under a new id: from an office drive when it changes there, from other sources with the next sync. " +
			"It then has the ACL of the deleted document, however long ago that was deleted.", Tag: knowledgeTag, Role: admin}, p.deleteDocument)
	edge.HandleDownload(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}/documents/{docId}/content", ID: "downloadDocument", Summary: "Download a document", Tag: knowledgeTag, Role: member}, p.downloadDocument)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/knowledge-bases/{id}/documents/{docId}/acls", ID: "getDocumentAcls", Answer: sampleACL,
		Summary: "Read who may find a document", Tag: knowledgeTag, Role: member}, p.getACL)
	edge.Handle(t, edge.Route{Method: "PUT", Path: "/v1/knowledge-bases/{id}/documents/{docId}/acls", ID: "setDocumentAcls", Answer: sampleACL,
		Summary:     "Set who may find a document",
		Description: "Replaces all entries. Searches that begin afterwards obey the new ones, on every node. An end user who is erased later stays as an entry that matches nobody; setting such an entry again is NOT_FOUND.",
		Tag:         knowledgeTag, Role: admin, Example: sampleACL}, p.setACL)
	p.sourceRoutes(t)
}

// wake makes the actor of a row look at it. A message that is lost only costs time: the search for
// open work finds the row.
func (p *Platform) wake(c *edge.Caller, kind string, actor id.UUID) {
	if p.Wake != nil {
		p.Wake(kind, c.Tenant, actor)
	}
}

// checkEmbedding refuses a provider that neither the tenant nor the deployment has, and one without
// embeddings. The tenant's own goes before the deployment's.
func (p *Platform) checkEmbedding(ctx context.Context, tx *store.Tx, e *api.Embedding) error {
	if e == nil {
		return nil
	}
	own, err := tx.ProviderKind(ctx, e.Provider)
	switch {
	case err != nil:
		return err
	case own == agent.ProviderAnthropic:
		return problem.Invalid("embedding.provider", "that model provider is of the kind "+own+", which has no embeddings; name one of the kind openai")
	case own == "" && (p.Embedding == nil || !p.Embedding(e.Provider)):
		return problem.Invalid("embedding.provider", "neither the tenant nor the deployment has a provider of embeddings of that name")
	}
	return nil
}

func (p *Platform) listBases(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.KnowledgeBase], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "knowledge-bases", store.View.KnowledgeBases, func(b api.KnowledgeBase) id.KnowledgeBaseID { return b.ID })
}

func (p *Platform) createBase(ctx context.Context, c *edge.Caller, in *createBase) (*api.KnowledgeBase, error) {
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.KnowledgeBase, error) {
		if err := p.checkEmbedding(ctx, tx, in.Body.Embedding); err != nil {
			return nil, err
		}
		return tx.CreateKnowledgeBase(ctx, &in.Body)
	})
}

func (p *Platform) getBase(ctx context.Context, c *edge.Caller, in *oneBase) (*api.KnowledgeBase, error) {
	return p.Store.View(c.Tenant).KnowledgeBase(ctx, in.ID)
}

func (p *Platform) updateBase(ctx context.Context, c *edge.Caller, in *patchBase) (*api.KnowledgeBase, error) {
	var anew []id.DocumentID
	out, err := changeLong(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.KnowledgeBase, error) {
		b, documents, err := tx.UpdateKnowledgeBase(ctx, in.ID, &in.Body)
		if err != nil {
			return nil, err
		}
		anew = documents
		return b, p.checkEmbedding(ctx, tx, in.Body.Embedding.OrPtr(nil))
	})
	if err != nil {
		return nil, err
	}
	for _, d := range anew {
		p.wake(c, msg.KindIngest, d.UUID)
	}
	return out, nil
}

func (p *Platform) deleteBase(ctx context.Context, c *edge.Caller, in *oneBase) (*edge.Empty, error) {
	var documents []id.DocumentID
	var sources []id.SourceID
	out, err := changeLong(ctx, p, c, func(ctx context.Context, tx *store.Tx) (_ *edge.Empty, err error) {
		documents, sources, err = tx.DeleteKnowledgeBase(ctx, in.ID)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		p.wake(c, msg.KindSync, s.UUID)
	}
	for _, d := range documents {
		p.wake(c, msg.KindIngest, d.UUID)
	}
	return out, nil
}

func (p *Platform) search(ctx context.Context, c *edge.Caller, in *searchBase) (*api.KnowledgeHits, error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.KnowledgeBase(ctx, in.ID); err != nil {
		return nil, err
	}
	viewer, err := v.Viewer(ctx, in.Body.EndUserID)
	if err != nil {
		return nil, err
	}
	if p.Searcher == nil {
		return nil, problem.Unavailable("This node cannot search.", time.Second)
	}
	q := Query{Base: in.ID, Text: in.Body.Query, TopK: in.Body.TopK, Viewer: viewer, Explain: in.Body.Explain}
	if q.TopK == 0 {
		q.TopK = knowledge.DefaultTopK
	}
	hits, err := p.Searcher.Search(ctx, c.Tenant, q)
	if err != nil {
		return nil, err
	}
	out := &api.KnowledgeHits{Items: hits}
	if c.Idem == nil {
		return out, nil
	}
	return change(ctx, p, c, func(context.Context, *store.Tx) (*api.KnowledgeHits, error) { return out, nil })
}

func (p *Platform) listDocuments(ctx context.Context, c *edge.Caller, in *listDocuments) (*api.List[api.Document], error) {
	v := p.Store.View(c.Tenant)
	if _, err := v.KnowledgeBase(ctx, in.ID); err != nil {
		return nil, err
	}
	f := store.DocumentFilter{Status: in.Status, Source: in.SourceID}
	return list(ctx, v, in.Page, "documents", func(v store.View, ctx context.Context, at id.DocumentID, limit int) ([]api.Document, error) {
		return v.Documents(ctx, in.ID, f, at, limit)
	}, func(d api.Document) id.DocumentID { return d.ID })
}

// uploadDocuments stores all files before their rows: a row without its file would break a
// promise, a file without its row only wastes space.
func (p *Platform) uploadDocuments(ctx context.Context, c *edge.Caller, in *oneBase, up *edge.Upload) (_ *api.Items[api.Document], err error) {
	if _, err := p.Store.View(c.Tenant).KnowledgeBase(ctx, in.ID); err != nil {
		return nil, err
	}
	var put []store.NewDocument
	defer func() {
		for _, d := range put {
			switch key := store.DocumentFile(c.Tenant, d.File); {
			case err == nil:
				p.Files.Settle(key, true)
			case errors.Is(err, store.ErrUnavailable):
				p.Files.Settle(key, false) // the row may exist
			default:
				p.discard(ctx, key)
			}
		}
	}()
	for {
		f, err := up.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		d := store.NewDocument{File: id.FileID{UUID: id.NewAnywhere()}, Name: f.Name, MediaType: mediaType(f)}
		if d.SizeBytes, d.SHA256, err = p.Files.Put(ctx, store.DocumentFile(c.Tenant, d.File), f, edge.MaxDocument); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(put, func(o store.NewDocument) bool { return o.Name == d.Name }); i >= 0 {
			p.discard(ctx, store.DocumentFile(c.Tenant, put[i].File))
			put = slices.Delete(put, i, i+1)
		}
		put = append(put, d)
	}
	var old []id.FileID
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.Items[api.Document], error) {
		docs, replaced, err := tx.PutDocuments(ctx, in.ID, put)
		old = replaced
		return &api.Items[api.Document]{Items: docs}, err
	})
	if err != nil {
		return nil, err
	}
	for _, d := range out.Items {
		p.wake(c, msg.KindIngest, d.ID.UUID)
	}
	for _, f := range old {
		_ = p.Files.Delete(context.WithoutCancel(ctx), store.DocumentFile(c.Tenant, f)) // otherwise a walk over the store finds it
	}
	return out, nil
}

// discard removes a stored file that no row names.
func (p *Platform) discard(ctx context.Context, key string) {
	err := p.Files.Delete(context.WithoutCancel(ctx), key)
	p.Files.Settle(key, err == nil) // otherwise a sweep removes it
}

// extensions are the media types of files whose sender named none.
var extensions = map[string]string{
	".txt": "text/plain", ".md": "text/markdown", ".html": "text/html", ".htm": "text/html", ".csv": "text/csv", ".json": "application/json", ".pdf": "application/pdf",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

func mediaType(f *edge.File) string {
	if known := extensions[strings.ToLower(path.Ext(f.Name))]; known != "" && f.MediaType == "application/octet-stream" {
		return known
	}
	return f.MediaType
}

func (p *Platform) getDocument(ctx context.Context, c *edge.Caller, in *oneDocument) (*api.Document, error) {
	return p.Store.View(c.Tenant).Document(ctx, in.ID, in.DocID)
}

func (p *Platform) deleteDocument(ctx context.Context, c *edge.Caller, in *oneDocument) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none2((*store.Tx).DeleteDocument, in.ID, in.DocID))
	if err == nil {
		p.wake(c, msg.KindIngest, in.DocID.UUID)
	}
	return out, err
}

// downloadDocument reads the row again if the file is gone: the document may just have been
// replaced.
func (p *Platform) downloadDocument(ctx context.Context, c *edge.Caller, in *oneDocument) (*edge.Download, error) {
	var last id.FileID
	for {
		d, err := p.Store.View(c.Tenant).DocumentContent(ctx, in.ID, in.DocID)
		if err != nil {
			return nil, err
		}
		body, size, err := p.Files.Open(ctx, store.DocumentFile(c.Tenant, d.File))
		switch {
		case err == nil:
			return &edge.Download{Name: d.Name, MediaType: d.MediaType, Size: size, Body: body}, nil
		case !errors.Is(err, blob.ErrNotFound):
			return nil, err
		case d.File == last: // a source's document whose contents could not be fetched
			return nil, problem.NotFound("content of the document")
		}
		last = d.File
	}
}

func (p *Platform) getACL(ctx context.Context, c *edge.Caller, in *oneDocument) (*api.ACL, error) {
	return p.Store.View(c.Tenant).ACL(ctx, in.ID, in.DocID)
}

func (p *Platform) setACL(ctx context.Context, c *edge.Caller, in *putACL) (*api.ACL, error) {
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.ACL, error) {
		return tx.SetACL(ctx, in.ID, in.DocID, &in.Body)
	})
}
