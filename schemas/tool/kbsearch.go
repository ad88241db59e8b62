package tool

import (
	"encoding/json"
	"strconv"
	"strings"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/problem"
)

// Base is a knowledge base of an agent as the tool kb.search describes it.
type Base struct {
	ID          id.KnowledgeBaseID
	Name        string
	Description string
}

const (
	maxBaseWords    = 200  // bytes of a base's description
	maxBasesWords   = 8000 // bytes of all of them
	noBases         = "none of the knowledge bases of the agent's manifest exists"
	searchDescribed = "Searches the knowledge bases and returns the passages that fit best, each with its mark. " +
		"Cite a passage by its mark, as [kb:<document_id>#<position>], directly after the statement that rests on it."
)

// KBSearch is the qualified name of the tool kb.search.
var KBSearch = (&Spec{Source: Builtin, Name: agent.BuiltinKBSearch}).Qualified()

// IsKBSearch reports whether the tool is the builtin kb.search.
func (s *Spec) IsKBSearch() bool { return s.Source == Builtin && s.Name == agent.BuiltinKBSearch }

// KBSearchSpec returns the tool `kb.search { query, knowledge_base_id?, top_k? }` of an agent
// with these bases (open-parts.md, Threads, runs). Without a base it is Unusable. Policies
// match builtin:kb.search.
func KBSearchSpec(bases []Base) Spec {
	s := Spec{Source: Builtin, Name: agent.BuiltinKBSearch, ReadOnly: true, Idempotent: true, Description: searchDescribed}
	if len(bases) == 0 {
		s.Unusable = noBases
		return s
	}
	ids := make([]string, len(bases))
	var about strings.Builder
	about.WriteString("Searches this base only. Omitted: all of them.")
	for i, b := range bases {
		ids[i] = b.ID.String()
		words := " " + ids[i] + " is " + strconv.Quote(b.Name)
		if d := problem.ClipBytes(strings.TrimSpace(b.Description), maxBaseWords); d != "" {
			words += " (" + d + ")"
		}
		if about.Len()+len(words) < maxBasesWords {
			about.WriteString(words + ".")
		}
	}
	schema, err := json.Marshal(map[string]any{
		"type": "object",
		"properties": map[string]any{
			"query":             map[string]any{"type": "string", "minLength": 1, "maxLength": knowledge.MaxQueryRunes, "description": "What to look for, in words that the passage may have."},
			"knowledge_base_id": map[string]any{"type": "string", "enum": ids, "description": about.String()},
			"top_k":             map[string]any{"type": "integer", "minimum": 1, "maximum": knowledge.MaxTopK, "description": "How many passages; " + strconv.Itoa(knowledge.DefaultTopK) + " if omitted."},
		},
		"required":             []string{"query"},
		"additionalProperties": false,
	})
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	s.Schema = schema
	return s
}
