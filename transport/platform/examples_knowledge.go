package platform

import (
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

var (
	sampleEmbedding = api.Embedding{Provider: "local", Model: "small-embedding"}
	sampleBase      = api.KnowledgeBase{ID: id.KnowledgeBaseID{UUID: sample(0x50)}, Name: "Returns", Description: "How customers send things back.",
		Chunking: api.Chunking{MaxTokens: 400, OverlapTokens: 60}, Embedding: &sampleEmbedding, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleKBDocument = api.Document{ID: id.DocumentID{UUID: sample(0x51)}, Name: "returns.md", MediaType: "text/markdown", SizeBytes: 5210, Status: lifecycle.DocumentReady, Chunks: 4,
		CreatedAt: sampleTime, UpdatedAt: sampleEnd}
	sampleHit = knowledge.Hit{ChunkID: id.ChunkID{UUID: sample(0x52)}, DocumentID: sampleKBDocument.ID, DocumentName: sampleKBDocument.Name,
		Text: "Shoes may be sent back within 30 days.", Score: 0.83, Position: 2, Cite: knowledge.Cite(sampleKBDocument.ID, 2)}
	sampleACL = api.ACL{Items: []api.ACLEntry{{Principal: "end_user", ID: &sampleEndUser.ID}, {Principal: "group", Name: "staff"}}}

	sampleSource = api.Source{ID: id.SourceID{UUID: sample(0x53)}, Kind: lifecycle.SourceWeb, Name: "Help pages", Config: api.Value(`{"url":"https://shop.example.com/help/","depth":1}`),
		Schedule: ptr("0 4 * * *"), Timezone: "Europe/Berlin", Enabled: true, Status: lifecycle.SourceOK, LastSyncedAt: &sampleEnd, CredentialMeta: api.CredentialKeys{Keys: []string{}},
		Listed: 12, CreatedAt: sampleTime, UpdatedAt: sampleTime}
)

// describeKnowledge adds the descriptions of this section's types.
func describeKnowledge(t *edge.Table) {
	edge.Enum(t, lifecycle.DocumentStatuses...)
	edge.Enum(t, lifecycle.SourceKinds...)
	edge.Enum(t, lifecycle.SourceStatuses...)
	edge.Doc[api.KnowledgeBase](t, "Documents that agents search.")
	edge.Doc[api.List[api.KnowledgeBase]](t, "A page of knowledge bases.")
	edge.Doc[api.KnowledgeBaseCreate](t, "A knowledge base to create.")
	edge.Doc[api.KnowledgeBasePatch](t, "A change of a knowledge base; omitted fields stay.")
	edge.Doc[api.Chunking](t, "How documents are cut into chunks.")
	edge.Doc[api.ChunkingSet](t, "How documents are to be cut into chunks; omitted members stay.")
	edge.Doc[api.Embedding](t, "The model that makes vectors of texts.")
	edge.Doc[api.Document](t, "A document of a knowledge base.")
	edge.Doc[api.List[api.Document]](t, "A page of documents.")
	edge.Doc[api.Items[api.Document]](t, "The documents that were accepted.")
	edge.Doc[api.ACL](t, "Who may find a document.")
	edge.Doc[api.ACLEntry](t, "One who may find a document.")
	edge.Doc[api.KnowledgeSearch](t, "A search.")
	edge.Doc[api.KnowledgeHits](t, "What a search found, best first.")
	edge.Doc[knowledge.Hit](t, "A chunk that a search found.")
	edge.Doc[knowledge.Citation](t, "A chunk that an answer cites.")
	edge.Doc[knowledge.Why](t, "Why a search found a chunk.")
	edge.Doc[api.Source](t, "Brings documents into a knowledge base, without its credentials.")
	edge.Doc[api.List[api.Source]](t, "A page of sources.")
	edge.Doc[api.CredentialKeys](t, "Names of credentials.")
	edge.Doc[api.SourceCreate](t, "A source to add.")
	edge.Doc[api.SourcePatch](t, "A change of a source; omitted fields stay.")
	edge.Doc[api.SourceUpdated](t, "A source as it is now, and whether it lost its credentials.")
	edge.Doc[api.SourceSync](t, "A sync that was accepted.")
}
