package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

const (
	baseWord     = "knowledge base"
	documentWord = "document"
)

// Woken is how many actors a change of many rows names at most, to be woken at once. The search
// for open work finds the others.
const Woken = 100

type baseRow struct {
	ID                id.KnowledgeBaseID
	Name              string
	Description       string
	MaxTokens         int
	OverlapTokens     int
	EmbeddingProvider *string
	EmbeddingModel    *string
	CreatedAt         time.Time
	UpdatedAt         time.Time
}

func (r *baseRow) shown() *api.KnowledgeBase {
	b := &api.KnowledgeBase{ID: r.ID, Name: r.Name, Description: r.Description, Chunking: api.Chunking{MaxTokens: r.MaxTokens, OverlapTokens: r.OverlapTokens},
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
	if r.EmbeddingProvider != nil {
		b.Embedding = &api.Embedding{Provider: *r.EmbeddingProvider, Model: *r.EmbeddingModel}
	}
	return b
}

// cuts applies the members of a body to the chunking of the row. fresh: the row is a new one, and
// the overlap gives way to max_tokens unless the body names it.
func (r *baseRow) cuts(in *api.ChunkingSet, fresh bool) error {
	if in != nil {
		set(&r.MaxTokens, in.MaxTokens)
		set(&r.OverlapTokens, in.OverlapTokens)
		if fresh && in.OverlapTokens == nil && r.OverlapTokens >= r.MaxTokens {
			r.OverlapTokens = r.MaxTokens * knowledge.DefaultOverlapTokens / knowledge.DefaultMaxTokens
		}
	}
	if r.OverlapTokens >= r.MaxTokens {
		return problem.Invalid("chunking.overlap_tokens", fmt.Sprintf("must be less than max_tokens, which is %d", r.MaxTokens))
	}
	return nil
}

func (r *baseRow) embeds(e *api.Embedding) {
	r.EmbeddingProvider, r.EmbeddingModel = nil, nil
	if e != nil {
		r.EmbeddingProvider, r.EmbeddingModel = &e.Provider, &e.Model
	}
}

// KnowledgeBases returns knowledge bases, newest first.
func (v View) KnowledgeBases(ctx context.Context, at id.KnowledgeBaseID, limit int) ([]api.KnowledgeBase, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[baseRow](ctx, v, "knowledge_bases", v.tenant, from, n)
	if err != nil {
		return nil, err
	}
	out := make([]api.KnowledgeBase, len(rows))
	for i := range rows {
		out[i] = *rows[i].shown()
	}
	return out, nil
}

// KnowledgeBase returns one knowledge base.
func (v View) KnowledgeBase(ctx context.Context, b id.KnowledgeBaseID) (*api.KnowledgeBase, error) {
	row, err := found[baseRow](baseWord)(one[baseRow](ctx, v, "knowledge_base", v.tenant, b))
	if err != nil {
		return nil, err
	}
	return row.shown(), nil
}

// LiveBases returns those of the knowledge bases that exist.
func (v View) LiveBases(ctx context.Context, bases []id.UUID) ([]id.UUID, error) {
	if len(bases) == 0 {
		return nil, nil
	}
	return scalars[id.UUID](ctx, v, "knowledge_bases_live", v.tenant, bases)
}

// CreateKnowledgeBase creates an empty base. The caller has checked the embedding provider.
func (t *Tx) CreateKnowledgeBase(ctx context.Context, in *api.KnowledgeBaseCreate) (*api.KnowledgeBase, error) {
	row := &baseRow{ID: id.KnowledgeBaseID{UUID: id.NewAnywhere()}, MaxTokens: knowledge.DefaultMaxTokens, OverlapTokens: knowledge.DefaultOverlapTokens}
	if err := row.cuts(in.Chunking, true); err != nil {
		return nil, err
	}
	row.embeds(in.Embedding)
	row, err := one[baseRow](ctx, t.View, "knowledge_base_insert", t.tenant, row.ID, in.Name, in.Description, row.MaxTokens, row.OverlapTokens, row.EmbeddingProvider, row.EmbeddingModel)
	if err != nil {
		return nil, fmt.Errorf("insert knowledge base: %w", err)
	}
	return row.shown(), t.Audit(ctx, "kb.create", "kb", row.ID.UUID, nil)
}

// UpdateKnowledgeBase changes the fields set in the patch. A change of chunking or embedding makes
// the actors of all documents index them anew: some of them are returned, to be woken. The caller
// has checked the embedding provider.
func (t *Tx) UpdateKnowledgeBase(ctx context.Context, b id.KnowledgeBaseID, in *api.KnowledgeBasePatch) (*api.KnowledgeBase, []id.DocumentID, error) {
	row, err := found[baseRow](baseWord)(one[baseRow](ctx, t.View, "knowledge_base_lock", t.tenant, b))
	if err != nil {
		return nil, nil, err
	}
	old := row.shown()
	set(&row.Name, in.Name)
	set(&row.Description, in.Description)
	if err := row.cuts(in.Chunking, false); err != nil {
		return nil, nil, err
	}
	if in.Embedding.Set {
		row.embeds(in.Embedding.OrPtr(nil))
	}
	next := row.shown()
	anew := next.Chunking != old.Chunking || (next.Embedding == nil) != (old.Embedding == nil) || next.Embedding != nil && *next.Embedding != *old.Embedding
	row, err = one[baseRow](ctx, t.View, "knowledge_base_update", t.tenant, b, row.Name, row.Description, row.MaxTokens, row.OverlapTokens, row.EmbeddingProvider, row.EmbeddingModel, anew)
	if err != nil {
		return nil, nil, fmt.Errorf("update knowledge base: %w", err)
	}
	var wake []id.DocumentID
	var detail any
	if anew {
		if _, err := t.exec(ctx, "sources_hold", t.tenant, b); err != nil {
			return nil, nil, fmt.Errorf("hold the sources of base %s: %w", b, err)
		}
		n, err := t.exec(ctx, "documents_index_anew", t.tenant, b)
		if err != nil {
			return nil, nil, fmt.Errorf("index the documents of base %s anew: %w", b, err)
		}
		if wake, err = scalars[id.DocumentID](ctx, t.View, "documents_owing", t.tenant, b, Woken); err != nil {
			return nil, nil, err
		}
		detail = map[string]int64{"documents": n}
	}
	return row.shown(), wake, t.Audit(ctx, "kb.update", "kb", b.UUID, detail)
}

// DeleteKnowledgeBase deletes a base with its sources and documents: after the commit no query
// finds them. Their actors remove what is left of them; some of each are returned, to be woken.
func (t *Tx) DeleteKnowledgeBase(ctx context.Context, b id.KnowledgeBaseID) (documents []id.DocumentID, sources []id.SourceID, err error) {
	if err := t.execFound(ctx, problem.NotFound(baseWord), "knowledge_base_delete", t.tenant, b); err != nil {
		return nil, nil, err
	}
	// Sources before documents: a walk that is about to write documents holds its source.
	if sources, err = scalars[id.SourceID](ctx, t.View, "sources_of_base", t.tenant, b, Woken); err != nil {
		return nil, nil, err
	}
	if err := t.deleteSources(ctx, b); err != nil {
		return nil, nil, err
	}
	n, err := t.exec(ctx, "documents_delete", t.tenant, b)
	if err != nil {
		return nil, nil, fmt.Errorf("delete the documents of base %s: %w", b, err)
	}
	if documents, err = scalars[id.DocumentID](ctx, t.View, "documents_owing", t.tenant, b, Woken); err != nil {
		return nil, nil, err
	}
	return documents, sources, t.Audit(ctx, "kb.delete", "kb", b.UUID, map[string]int64{"documents": n})
}

// DocumentFilter narrows a list of documents; nil fields match all.
type DocumentFilter struct {
	Status *lifecycle.DocumentStatus
	Source *id.SourceID
}

// args returns the query of the list and its arguments.
func (f *DocumentFilter) args(t id.TenantID, b id.KnowledgeBaseID, at id.DocumentID, limit int) (string, []any) {
	from, n := before(at.UUID, limit)
	if f.Source == nil {
		return "documents", []any{t, b, from, (*string)(f.Status), n}
	}
	var statuses []string
	for _, s := range lifecycle.DocumentStatuses {
		if f.Status == nil || s == *f.Status {
			statuses = append(statuses, string(s))
		}
	}
	return armed("documents_of_source", len(statuses)), []any{t, b, from, statuses, f.Source, n}
}

// Documents returns the documents of a base, newest first. A base that does not exist has none:
// callers look it up.
func (v View) Documents(ctx context.Context, b id.KnowledgeBaseID, f DocumentFilter, at id.DocumentID, limit int) ([]api.Document, error) {
	name, args := f.args(v.tenant, b, at, limit)
	return listed[api.Document](ctx, v.planned(), name, args...)
}

// Document returns one document of a base.
func (v View) Document(ctx context.Context, b id.KnowledgeBaseID, d id.DocumentID) (*api.Document, error) {
	return found[api.Document](documentWord)(one[api.Document](ctx, v, "document", v.tenant, b, d))
}

// DocumentContent is where the content of a document is stored, and as what.
type DocumentContent struct {
	Name      string
	MediaType string
	File      id.FileID
}

// DocumentContent returns where the content of a document is stored.
func (v View) DocumentContent(ctx context.Context, b id.KnowledgeBaseID, d id.DocumentID) (*DocumentContent, error) {
	return found[DocumentContent](documentWord)(one[DocumentContent](ctx, v, "document_file", v.tenant, b, d))
}

// NewDocument is a document to put, with its content in the store of files.
type NewDocument struct {
	File      id.FileID
	Name      string
	MediaType string
	SizeBytes int64
	SHA256    [sha256.Size]byte
}

// PutDocuments puts documents into a base, each under a name of its own, and returns them in the
// order given. A document of the same name is replaced: it keeps its id and its ACL, and its old
// file is returned, which no row names after the commit. The caller wakes the documents' actors.
func (t *Tx) PutDocuments(ctx context.Context, b id.KnowledgeBaseID, in []NewDocument) (docs []api.Document, old []id.FileID, err error) {
	if err := t.holdBase(ctx, b); err != nil {
		return nil, nil, err
	}
	order, names := make([]int, len(in)), make([]string, len(in)) // by name: two uploads never wait for each other
	for i := range in {
		order[i], names[i] = i, in[i].Name
	}
	slices.SortFunc(order, func(x, y int) int { return strings.Compare(in[x].Name, in[y].Name) })
	replaced, err := all[struct {
		Name string
		File id.FileID
	}](ctx, t.View, "documents_named", t.tenant, b, names)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range replaced {
		old = append(old, r.File)
	}
	docs = make([]api.Document, len(in))
	for _, i := range order {
		n := &in[i]
		fresh := id.DocumentID{UUID: id.NewAnywhere()}
		d, err := one[api.Document](ctx, t.View, "document_put", t.tenant, fresh, b, n.Name, n.MediaType, n.SizeBytes, n.File, n.SHA256[:])
		if err != nil {
			return nil, nil, fmt.Errorf("put a document: %w", err)
		}
		action := "kb.document.update"
		if d.ID == fresh {
			action = "kb.document.create"
		}
		if err := t.Audit(ctx, action, "kb.document", d.ID.UUID, ofBase{b}); err != nil {
			return nil, nil, err
		}
		docs[i] = *d
	}
	return docs, old, nil
}

// ofBase is the audit detail of a change of a document.
type ofBase struct {
	Base id.KnowledgeBaseID `json:"knowledge_base_id"`
}

// DeleteDocument deletes a document: after the commit no search finds it. The caller wakes its
// actor, which removes its chunks and its file.
func (t *Tx) DeleteDocument(ctx context.Context, b id.KnowledgeBaseID, d id.DocumentID) error {
	if err := t.execFound(ctx, problem.NotFound(documentWord), "document_delete", t.tenant, b, d); err != nil {
		return err
	}
	return t.Audit(ctx, "kb.document.delete", "kb.document", d.UUID, ofBase{b})
}

// Words of ACL entries.
const (
	aclPublic  = "public"
	aclEndUser = "end_user"
	aclGroup   = "group"
)

// ACL returns who may find a document.
func (v View) ACL(ctx context.Context, b id.KnowledgeBaseID, d id.DocumentID) (*api.ACL, error) {
	rows, err := scalars[[]string](ctx, v, "document_acl", v.tenant, b, d)
	if err == nil && len(rows) == 0 {
		err = problem.NotFound(documentWord)
	}
	if err != nil {
		return nil, err
	}
	return entries(rows[0])
}

// entries reads the principals of a row.
func entries(principals []string) (*api.ACL, error) {
	acl := &api.ACL{Items: []api.ACLEntry{}}
	for _, p := range principals {
		e := api.ACLEntry{Principal: aclPublic}
		if name, ok := strings.CutPrefix(p, aclGroup+":"); ok {
			e = api.ACLEntry{Principal: aclGroup, Name: name}
		} else if text, ok := strings.CutPrefix(p, aclEndUser+":"); ok {
			u, err := id.Parse(text)
			if err != nil {
				return nil, fmt.Errorf("read an ACL: %w", err)
			}
			e = api.ACLEntry{Principal: aclEndUser, ID: &id.EndUserID{UUID: u}}
		}
		acl.Items = append(acl.Items, e)
	}
	return acl, nil
}

// principals checks an ACL's entries, and returns them as rows hold them, each once.
func principals(acl *api.ACL) (out []string, people []id.EndUserID, err error) {
	var bad []problem.Field
	out = []string{}
	for i, e := range acl.Items {
		wrong := func(field, why string) {
			bad = append(bad, problem.Field{Path: fmt.Sprintf("items[%d].%s", i, field), Message: why})
		}
		if e.ID != nil && e.Principal != aclEndUser {
			wrong("id", "only an end_user has an id")
		}
		if e.Name != "" && e.Principal != aclGroup {
			wrong("name", "only a group has a name")
		}
		p := knowledge.Public
		switch e.Principal {
		case aclEndUser:
			if e.ID == nil {
				wrong("id", "is required for an end_user")
				continue
			}
			p = knowledge.EndUser(*e.ID)
			if !slices.Contains(people, *e.ID) {
				people = append(people, *e.ID)
			}
		case aclGroup:
			if e.Name == "" {
				wrong("name", "is required for a group")
			}
			if strings.ContainsRune(e.Name, 0) {
				wrong("name", "must not contain a NUL character")
			}
			p = knowledge.Group(e.Name)
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(bad) > 0 {
		return nil, nil, problem.Validation(bad...)
	}
	return out, people, nil
}

// SetACL replaces the ACL of a document. Searches that begin after the commit obey it. An end user
// that does not exist is NOT_FOUND. The principal of an end user who is erased later stays in the
// ACL and matches no viewer: no search is made for a person that does not exist.
func (t *Tx) SetACL(ctx context.Context, b id.KnowledgeBaseID, d id.DocumentID, in *api.ACL) (*api.ACL, error) {
	acl, people, err := principals(in)
	if err != nil {
		return nil, err
	}
	if err := t.execFound(ctx, problem.NotFound(documentWord), "document_acl_set", t.tenant, b, d, acl); err != nil {
		return nil, err
	}
	if len(people) > 0 {
		live, err := scalars[id.EndUserID](ctx, t.View, "acl_end_users", t.tenant, people)
		if err != nil {
			return nil, err
		}
		if len(live) < len(people) {
			return nil, problem.NotFound(endUserWord)
		}
	}
	out, err := entries(acl)
	if err != nil {
		return nil, err
	}
	detail := aclSet{Base: b, EndUsers: len(people)}
	for _, e := range out.Items {
		switch e.Principal {
		case aclPublic:
			detail.Public = true
		case aclGroup:
			detail.Groups++
		}
	}
	return out, t.Audit(ctx, "kb.document.acl.set", "kb.document", d.UUID, detail)
}

// aclSet is the audit detail of a new ACL: what kinds of principals it has.
type aclSet struct {
	Base     id.KnowledgeBaseID `json:"knowledge_base_id"`
	Public   bool               `json:"public"`
	EndUsers int                `json:"end_users"`
	Groups   int                `json:"groups"`
}

// Viewer returns the principals of the end user for whom a search is made, or of an anonymous viewer. An end
// user that does not exist is NOT_FOUND.
func (v View) Viewer(ctx context.Context, u *id.EndUserID) ([]string, error) {
	if u == nil {
		return knowledge.Viewer(nil, nil), nil
	}
	groups, err := scalars[[]string](ctx, v, "end_user_groups", v.tenant, *u)
	if err == nil && len(groups) == 0 {
		err = problem.NotFound(endUserWord)
	}
	if err != nil {
		return nil, err
	}
	return knowledge.Viewer(u, groups[0]), nil
}
