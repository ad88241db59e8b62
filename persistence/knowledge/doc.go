// Package knowledge writes and searches the chunks of knowledge bases (open-parts.md, Knowledge
// bases, Knowledge).
//
// Chunks belong to a document and a generation. The actor of the document writes a generation that
// nothing shows yet, and one change of the document's row shows it instead of the one before: a
// search sees the old text of a document or the new one, never both and never a part.
//
// Each statement of a search names the tenant, the base and the principals of the viewer, so that
// chunks that the viewer may not see do not reach this package. All statements see one state of the
// rows. The ranking by words is BM25: the words of each candidate are counted in kb_chunks.terms, and
// how rare a word is follows from the candidates and from the number of chunks that the viewer may
// see. Lexemes are marked with the base's number, so that an index scan reads the chunks of one base.
//
// Where the base has a model of embeddings, the query's vector is compared with those of all chunks
// that the viewer may see, and the two rankings are fused by their places. Vectors of a generation
// never change; those used last stay in memory. Vectors of another model than the base's, from before
// a change, are compared with the query's vector of that model. Without the provider, and for phrases
// in quotes, a search goes by words only.
//
// Where the viewer may see few chunks, or a small part of a large base, all of these are compared, and the index
// of words, which names chunks of the whole base, is not asked: what others may see costs such a search nothing,
// and does not show in its time.
//
// Limits: at most MaxCandidates chunks are ranked by words. Where the viewer may see more, each word
// brings a share: all chunks with a rare word are ranked, and an arbitrary choice of those with frequent
// ones. A node carries out so many searches of a tenant, and of all, at a time (places.go). At most MaxScanned are
// compared by vectors. A call ends within Timeout, and waits EmbedTimeout of it for a provider at most. Memory: 128 MiB of vectors. Loss: none; the usage of a
// query's vector is written before the search returns.
package knowledge
