package dev

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"

	"agentsvc/cmd/svc/client"
	"agentsvc/docs"
	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// The sample knowledge base holds the guides of the service. The agent guide answers from it, with
// citations.
const (
	guideAgent = "guide"
	guideBase  = "Guides of the service"
)

// makeGuide makes the base, and the agent that may search it.
func (s *sample) makeGuide(ctx context.Context, view store.View, tx *store.Tx) error {
	if s.BaseID == "" {
		bases, err := view.KnowledgeBases(ctx, id.KnowledgeBaseID{}, store.All)
		if err != nil {
			return err
		}
		for _, b := range bases {
			if b.Name == guideBase {
				s.BaseID = b.ID.String()
			}
		}
	}
	if s.BaseID == "" {
		base, err := tx.CreateKnowledgeBase(ctx, &api.KnowledgeBaseCreate{Name: guideBase, Description: "Put here by svc dev."})
		if err != nil {
			return err
		}
		s.BaseID, s.Guides = base.ID.String(), ""
	}
	if s.GuideID != "" {
		return nil
	}
	if err := s.makeAgent(ctx, view, tx, &s.GuideID, guideAgent, &api.AgentCreate{Name: "Guide", Emoji: "📖", Description: "Answers from the guides of the service, on the built-in simulated model."},
		map[string]any{"model": simulated, "instructions": "Answer questions about this service from its guides, and cite them.", "knowledge_bases": []string{s.BaseID},
			"tools": map[string]any{"builtin": []string{agent.BuiltinKBSearch}}}); err != nil {
		return err
	}
	u, err := id.Parse(s.GuideID)
	if err != nil {
		return err
	}
	of := id.AgentID{UUID: u}
	grants, err := view.Grants(ctx, id.GrantID{}, store.All)
	if err != nil {
		return err
	}
	for _, g := range grants {
		if g.AgentID != nil && *g.AgentID == of && g.ToolPattern == agent.BuiltinKBSearch {
			return nil
		}
	}
	_, err = tx.CreateGrant(ctx, &api.ToolGrantCreate{Source: api.ToolSource(tool.Builtin), ToolPattern: agent.BuiltinKBSearch, Effect: tool.Allow, AgentID: &of})
	return err
}

// putGuides uploads the guides of this binary, unless the base has them.
func (s *sample) putGuides(ctx context.Context, c *client.Client) error {
	names, err := fs.Glob(docs.Guides, "*.md")
	if err != nil {
		return err
	}
	sum := sha256.New()
	for _, name := range names {
		content, err := docs.Guides.ReadFile(name)
		if err != nil {
			return err
		}
		sum.Write([]byte(name))
		sum.Write(content)
	}
	is := hex.EncodeToString(sum.Sum(nil))
	if s.Guides == is {
		return nil
	}
	err = c.PutDocuments(ctx, s.BaseID, docs.Guides, names)
	var gone *client.APIError
	if errors.As(err, &gone) && gone.Status == http.StatusNotFound {
		err = nil // the tenant deleted the base: it stays deleted
	}
	if err == nil {
		s.Guides = is
	}
	return err
}
