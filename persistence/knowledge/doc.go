// Package knowledge writes and searches the chunks of knowledge bases (open-parts.md, Knowledge
// bases, Knowledge).
//
// Chunks belong to a document and a generation. The actor of the document writes a generation that
// nothing shows yet, and one change of the document's row shows it instead of the one before: a
// search sees the old text of a document or the new one, never both and never a part.
//
// A search is one statement that names the tenant, the base and the principals of the viewer, so
// that chunks that the viewer may not see do not reach this package. It ranks by BM25: the words of
// each candidate are counted in kb_chunks.terms, and how rare a word is follows from the candidates
// and from the number of chunks that the viewer may see. Lexemes are marked with the base's number, so that an index scan reads the
// chunks of one base.
//
// Limits: at most MaxCandidates chunks are ranked; of a query that matches more, an arbitrary
// choice. Each call ends within Timeout. Loss: none; nothing is kept in memory.
package knowledge
