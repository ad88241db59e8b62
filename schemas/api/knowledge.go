package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
)

// KnowledgeBase is a knowledge base (open-parts.md, Knowledge bases).
type KnowledgeBase struct {
	ID          id.KnowledgeBaseID `json:"id" doc:"The id, a version 7 UUID."`
	Name        string             `json:"name" doc:"For people."`
	Description string             `json:"description" doc:"For people, and for the models that choose a base to search."`
	Chunking    Chunking           `json:"chunking" doc:"How documents are cut."`
	Embedding   *Embedding         `json:"embedding" doc:"What makes vectors of texts, so that searches go by meaning too; null: searches go by words only."`
	CreatedAt   time.Time          `json:"created_at" doc:"UTC."`
	UpdatedAt   time.Time          `json:"updated_at" doc:"UTC."`
}

// Chunking is how the documents of a base are cut into chunks.
type Chunking struct {
	MaxTokens     int `json:"max_tokens" doc:"Tokens of a chunk at most."`
	OverlapTokens int `json:"overlap_tokens" doc:"Tokens that a chunk repeats of the one before, at most: a chunk repeats no more than half of max_tokens, whatever this says."`
}

// ChunkingSet is the chunking in the body of a create or a PATCH.
type ChunkingSet struct {
	MaxTokens     *int `json:"max_tokens,omitempty" minimum:"10" maximum:"8000" doc:"Tokens of a chunk at most. Omitted in a create: 400."`
	OverlapTokens *int `json:"overlap_tokens,omitempty" minimum:"0" maximum:"7999" doc:"Tokens that a chunk repeats of the one before, at most: less than max_tokens. What is above half of max_tokens is kept and counts as half, so that each chunk has something new. Omitted in a create: 60, or 15 % of max_tokens if 60 is too much."`
}

// Embedding names the model that makes vectors of texts.
type Embedding struct {
	Provider string `json:"provider" minLength:"1" maxLength:"63" doc:"The slug of a model provider of the tenant or the deployment."`
	Model    string `json:"model" minLength:"1" maxLength:"200" doc:"The provider's name of the model."`
}

// KnowledgeBaseCreate is the body of POST /v1/knowledge-bases.
type KnowledgeBaseCreate struct {
	Name        string       `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Description string       `json:"description,omitempty" maxLength:"2000" doc:"For people, and for the models that choose a base to search."`
	Chunking    *ChunkingSet `json:"chunking,omitempty" doc:"How documents are cut."`
	Embedding   *Embedding   `json:"embedding,omitempty" null:"true" doc:"What makes vectors of texts, so that searches go by meaning too; null: searches go by words only."`
}

// KnowledgeBasePatch is the body of PATCH /v1/knowledge-bases/{id}; omitted fields stay.
type KnowledgeBasePatch struct {
	Name        *string        `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Description *string        `json:"description,omitempty" maxLength:"2000" doc:"For people, and for models."`
	Chunking    *ChunkingSet   `json:"chunking,omitempty" doc:"How documents are cut from now on. A change indexes all documents anew, in the background."`
	Embedding   Opt[Embedding] `json:"embedding,omitzero" doc:"What makes vectors of texts; null: nothing. A change indexes all documents anew, in the background; until then they are found by their old vectors."`
}

// Document is a document of a knowledge base.
type Document struct {
	ID        id.DocumentID            `json:"id" doc:"The id, a version 7 UUID. It stays when the document is replaced."`
	Name      string                   `json:"name" doc:"The file's name, or the title at the source."`
	MediaType string                   `json:"media_type" doc:"As it was sent, until its contents were read."`
	SizeBytes int64                    `json:"size" doc:"Bytes."`
	Status    lifecycle.DocumentStatus `json:"status" doc:"How its index stands. While a document is replaced, searches find its old text until it is ready."`
	Error     *string                  `json:"error" doc:"Why it failed, in plain words; null: it has not."`
	Chunks    int                      `json:"chunks" doc:"How many chunks searches can find now."`
	SourceID  *id.SourceID             `json:"source_id" doc:"The source that it comes from; null: it was uploaded."`
	URI       *string                  `json:"uri" doc:"Its address at the source; null: it was uploaded."`
	CreatedAt time.Time                `json:"created_at" doc:"UTC."`
	UpdatedAt time.Time                `json:"updated_at" doc:"UTC."`
}

// ACL is the whole ACL of a document: who may find it. Without entries all of the tenant may.
type ACL struct {
	Items []ACLEntry `json:"items" maxItems:"200" doc:"Principals; without any, every search of the tenant finds the document."`
}

// ACLEntry is one principal of an ACL.
type ACLEntry struct {
	Principal string        `json:"principal" enum:"public,end_user,group" doc:"public: everybody, also searches without an end user."`
	ID        *id.EndUserID `json:"id,omitempty" doc:"Of an end_user: which one."`
	Name      string        `json:"name,omitempty" maxLength:"255" doc:"Of a group: its name, exactly as in the end users' attributes.groups."`
}

// KnowledgeSearch is the body of POST /v1/knowledge-bases/{id}/search.
type KnowledgeSearch struct {
	Query     string        `json:"query" minLength:"1" maxLength:"2000" doc:"Words, a phrase in quotes, or a question."`
	TopK      int           `json:"top_k,omitempty" minimum:"1" maximum:"50" default:"5" doc:"How many results at most."`
	EndUserID *id.EndUserID `json:"end_user_id,omitempty" nullable:"true" doc:"Find what this person may see. null or omitted: documents that are public or have no ACL."`
	Explain   bool          `json:"explain,omitempty" doc:"Each result says why it was found: its places in the rankings, and what lets the search see it."`
}

// KnowledgeHits is the response of POST /v1/knowledge-bases/{id}/search.
type KnowledgeHits = Items[knowledge.Hit]
