package store

import (
	"context"
	"slices"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/tool"
)

// What runs and visitors read of knowledge bases.

type namedBase struct {
	ID          id.KnowledgeBaseID
	Name        string
	Description *string
}

// NamedBases returns those of the knowledge bases that exist.
func (v View) NamedBases(ctx context.Context, bases []id.UUID) ([]tool.Base, error) {
	if len(bases) == 0 {
		return nil, nil
	}
	rows, err := all[namedBase](ctx, v, "knowledge_bases_named", v.tenant, bases)
	out := make([]tool.Base, len(rows))
	for i, r := range rows {
		out[i] = tool.Base{ID: r.ID, Name: r.Name}
		if r.Description != nil {
			out[i].Description = *r.Description
		}
	}
	return out, err
}

// SeenBy removes the citations of documents that are gone, or that a visitor may not see now
// (open-parts.md, Embed). Groups do not count: only an ACL that is empty, is public or holds
// the end user itself does.
func (v View) SeenBy(ctx context.Context, u *id.EndUserID, messages []api.EmbedMessage) error {
	var documents []id.DocumentID
	for i := range messages {
		for _, c := range messages[i].Citations {
			documents = append(documents, c.DocumentID)
		}
	}
	if len(documents) == 0 {
		return nil
	}
	seen, err := scalars[id.DocumentID](ctx, v, "documents_seen", v.tenant, documents, knowledge.Viewer(u, nil))
	if err != nil {
		return err
	}
	for i := range messages {
		m := &messages[i]
		m.Citations = slices.DeleteFunc(m.Citations, func(c knowledge.Citation) bool { return !slices.Contains(seen, c.DocumentID) })
	}
	return nil
}

// CiteBases adds to the citations of messages the bases of the documents that are still there.
func (v View) CiteBases(ctx context.Context, messages []api.Message) error {
	var documents []id.DocumentID
	for i := range messages {
		for _, c := range messages[i].Citations {
			documents = append(documents, c.DocumentID)
		}
	}
	if len(documents) == 0 {
		return nil
	}
	rows, err := all[struct {
		ID   id.DocumentID
		Base id.KnowledgeBaseID
	}](ctx, v, "documents_bases", v.tenant, documents)
	if err != nil {
		return err
	}
	bases := make(map[id.DocumentID]*id.KnowledgeBaseID, len(rows))
	for i := range rows {
		bases[rows[i].ID] = &rows[i].Base
	}
	for i := range messages {
		for j := range messages[i].Citations {
			c := &messages[i].Citations[j]
			c.Base = bases[c.DocumentID]
		}
	}
	return nil
}
