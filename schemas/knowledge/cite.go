package knowledge

import (
	"agentsvc/schemas/id"
)

// Found is what a run's search found in one base (service.md, Run event stream,
// retrieval.result).
type Found struct {
	Base   id.KnowledgeBaseID `json:"kb"`
	Chunks []Hit              `json:"chunks"`
}

// Citation is a chunk that an answer cites by its mark.
type Citation struct {
	DocumentID   id.DocumentID `json:"document_id" doc:"The document."`
	DocumentName string        `json:"document_name" doc:"Its name when it was cited."`
	URI          *string       `json:"uri" doc:"Its address at its source; null: it was uploaded."`
	Position     int           `json:"position" doc:"Of the chunk in its document, from 0."`
	Cite         string        `json:"cite" doc:"The mark in the text, without its brackets: kb:<document_id>#<position>."`
	// Base is known when messages are read, and not to visitors.
	Base *id.KnowledgeBaseID `json:"knowledge_base_id,omitempty" doc:"In the messages of a thread: the knowledge base of the document, if the document is still there."`
}

// MaxMarks is how many different marks of a text count.
const MaxMarks = 200

// Cites returns the marks of a text as Hit.Cite has them.
func Cites(text string) []string {
	list := Marks(text)
	out := make([]string, len(list))
	for i, m := range list {
		out[i] = Cite(m.Document, m.Position)
	}
	return out
}
