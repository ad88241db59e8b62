-- The number of a base, and whether it has a model of embeddings.
-- name: base
SELECT b.number, b.embedding_model IS NOT NULL FROM knowledge_bases b WHERE b.tenant_id = $1 AND b.id = $2 AND b.deleted_at IS NULL

-- The number of chunks of a base that the viewer ($3) may see, and of all.
-- name: visible
SELECT coalesce(sum(d.chunks) FILTER (WHERE d.acl = '{}' OR d.acl && $3::text[]), 0)::bigint AS visible, coalesce(sum(d.chunks), 0)::bigint AS every FROM kb_documents d
WHERE d.tenant_id = $1 AND d.base_id = $2 AND d.deleted_at IS NULL AND d.shown > 0

-- The models of the vectors of documents that the viewer ($3) may see, that of the base first, then that of the most
-- documents. While a base changes its model there are two, and more if it changes again meanwhile. Without a row: the base has no model now, or no vectors yet.
-- name: models
SELECT d.embedded_by FROM knowledge_bases b
JOIN kb_documents d ON d.tenant_id = b.tenant_id AND d.base_id = b.id AND d.deleted_at IS NULL AND d.shown > 0 AND d.chunks > 0 AND (d.acl = '{}' OR d.acl && $3::text[])
WHERE b.tenant_id = $1 AND b.id = $2 AND b.deleted_at IS NULL AND b.embedding_model IS NOT NULL AND d.embedded_by IS NOT NULL
GROUP BY d.embedded_by ORDER BY bool_or(d.embedded_by = b.embedding_provider || '/' || b.embedding_model) DESC, count(*) DESC, d.embedded_by LIMIT 4

-- The usage of a search's embedding.
-- name: bill
INSERT INTO usage_records (tenant_id, id, at, kind, run_id, agent_id, model, tokens_in, cost_usd, detail)
VALUES ($1, $2, now(), 'embedding', $3, $4, $5, $6, $7, $8)

-- The $5 newest documents with vectors of one model ($4) that the viewer ($3) may see, the newest first.
-- name: documents
SELECT d.id, d.shown, d.chunks, 0 FROM kb_documents d
WHERE d.tenant_id = $1 AND d.base_id = $2 AND d.deleted_at IS NULL AND d.shown > 0 AND d.chunks > 0 AND (d.acl = '{}' OR d.acl && $3::text[]) AND d.embedded_by = $4
ORDER BY d.id DESC LIMIT $5

-- The vectors of parts of documents: of so many chunks from a position on.
-- name: vectors
SELECT c.document_id, c.position, c.vector
FROM unnest($2::uuid[], $3::int[], $4::int[], $5::int[]) AS u (document_id, generation, first, chunks)
JOIN kb_chunks c ON c.tenant_id = $1 AND c.document_id = u.document_id AND c.generation = u.generation AND c.position >= u.first AND c.position < u.first + u.chunks
WHERE c.vector IS NOT NULL

-- Chunks that match a part of a query ($4; $6 says which), that are shown and that the viewer ($3)
-- may see, at most $5 of each part.
-- OFFSET 0 keeps the planner, which cannot know how rare the words are, from reading all chunks of
-- all documents instead of the index. IS TRUE keeps it from a second bitmap, of all chunks of the tenant, which
-- took longer than that of the words: a lexeme names its base.
-- name: candidates
SELECT c.document_id, c.generation, c.position, c.length, c.terms, false AS prefix, w.part
FROM unnest($4::text[], $6::int[]) AS w (match, part) CROSS JOIN LATERAL (
  SELECT k.document_id, k.generation, k.position, k.length, k.terms
  FROM (SELECT document_id, generation, position, length, terms FROM kb_chunks WHERE (tenant_id = $1) IS TRUE AND lexemes @@ w.match::tsquery OFFSET 0) k
  JOIN kb_documents d ON d.tenant_id = $1 AND d.id = k.document_id AND d.shown = k.generation
  WHERE d.base_id = $2 AND d.deleted_at IS NULL AND (d.acl = '{}' OR d.acl && $3::text[])
  LIMIT $5
) c

-- All chunks of the documents that the viewer may see, where these are few, and none of the others.
-- Those with the phrases of the query only ($4; NULL: it has none); which of them have a word of it is
-- seen from terms, which costs less than to read lexemes. $5 is the unfinished last word, NULL if there
-- is none. OFFSET 0 keeps the index of words out of it.
-- name: few
SELECT d.id, k.generation, k.position, k.length, k.terms, coalesce(k.lexemes @@ $5::tsquery, false) AS prefix, 1 AS part
FROM kb_documents d CROSS JOIN LATERAL (
  SELECT c.generation, c.position, c.length, c.terms, c.lexemes FROM kb_chunks c WHERE c.tenant_id = $1 AND c.document_id = d.id AND c.generation = d.shown OFFSET 0
) k
WHERE d.tenant_id = $1 AND d.base_id = $2 AND d.deleted_at IS NULL AND d.shown > 0 AND (d.acl = '{}' OR d.acl && $3::text[])
  AND ($4::tsquery IS NULL OR k.lexemes @@ $4::tsquery)
LIMIT $6

-- The texts of chunks whose words begin like those of the query ($4): among them the words that
-- were meant are looked for.
-- name: similar
SELECT left(c.text, 4000)
FROM (SELECT document_id, generation, text FROM kb_chunks WHERE (tenant_id = $1) IS TRUE AND lexemes @@ $4::tsquery OFFSET 0) c
JOIN kb_documents d ON d.tenant_id = $1 AND d.id = c.document_id AND d.shown = c.generation
WHERE d.base_id = $2 AND d.deleted_at IS NULL AND (d.acl = '{}' OR d.acl && $3::text[])
LIMIT $5

-- The same, where the viewer may see little.
-- name: few_similar
SELECT left(k.text, 4000)
FROM kb_documents d CROSS JOIN LATERAL (
  SELECT c.text, c.lexemes FROM kb_chunks c WHERE c.tenant_id = $1 AND c.document_id = d.id AND c.generation = d.shown OFFSET 0
) k
WHERE d.tenant_id = $1 AND d.base_id = $2 AND d.deleted_at IS NULL AND d.shown > 0 AND (d.acl = '{}' OR d.acl && $3::text[]) AND k.lexemes @@ $4::tsquery
LIMIT $5

-- The chunks that were found, with their neighbours' places. What is no longer shown, or no longer
-- the viewer's ($3), is left out.
-- name: texts
SELECT u.rank, c.id, c.document_id, d.name, d.uri, c.text, c.overlap, c.position,
  (SELECT p FROM unnest($3::text[]) WITH ORDINALITY AS v (p, n) WHERE p = ANY (d.acl) ORDER BY n LIMIT 1) AS principal
FROM unnest($4::uuid[], $5::int[], $6::int[], $7::int[]) AS u (document_id, generation, position, rank)
JOIN kb_documents d ON d.tenant_id = $1 AND d.id = u.document_id AND d.shown = u.generation
JOIN kb_chunks c ON c.tenant_id = $1 AND c.document_id = u.document_id AND c.generation = u.generation AND c.position = u.position
WHERE d.base_id = $2 AND d.deleted_at IS NULL AND (d.acl = '{}' OR d.acl && $3::text[])
ORDER BY u.rank

-- The document of a generation that is being written; no row if another one was begun, the content
-- changed or the document was deleted. The lock is one that the journal's swap of the row does not
-- meet: that would count as a change of the row.
-- name: hold
SELECT id FROM kb_documents WHERE tenant_id = $1 AND id = $2 AND generation = $3 AND content = $4 AND deleted_at IS NULL FOR KEY SHARE

-- name: write
INSERT INTO kb_chunks (tenant_id, document_id, generation, position, base_id, id, text, overlap, heading, page, tokens, length, terms, lexemes, vector)
SELECT $1, $2, $3, u.position, $4, u.id, u.text, u.overlap, u.heading, u.page, u.tokens, u.length, u.terms, u.lexemes::tsvector, u.vector
FROM unnest($5::int[], $6::uuid[], $7::text[], $8::int[], $9::text[], $10::int[], $11::int[], $12::int[], $13::bytea[], $14::text[], $15::bytea[])
  AS u (position, id, text, overlap, heading, page, tokens, length, terms, lexemes, vector)

-- The vectors of a generation, with the texts that they were made of.
-- name: made
SELECT position, heading, text, vector FROM kb_chunks
WHERE tenant_id = $1 AND document_id = $2 AND generation = $3 AND position = ANY ($4::int[]) AND vector IS NOT NULL

-- Waits until no transaction writes chunks of a document any more: see hold. One that begins later sees the row as it is now.
-- name: await_writers
SELECT id FROM kb_documents WHERE tenant_id = $1 AND id = $2 FOR UPDATE

-- An attempt of a generation that its node has ended itself. The first one stays: it says that the generation may have vectors of this
-- content, which the next attempt takes. The version lets an activation that has read the row read it again.
-- name: take_back
UPDATE kb_documents SET attempts = greatest(attempts - 1, 1), version = version + 1
WHERE tenant_id = $1 AND id = $2 AND generation = $3 AND content = $4 AND status = 'processing' AND attempts > 0

-- Deletes up to $5 chunks of a document that belong to another generation than $3, up to $4. A generation
-- that is begun later is behind $4, so nothing is deleted of what a later activation writes or shows.
-- They are named by their places: a join of chunks with chunks compared, in a table without statistics, each with
-- each. IS TRUE keeps the planner from all chunks of the tenant. Two ranges, because a generation that is kept may have 200,000 chunks, which <> would read.
-- name: drop
DELETE FROM kb_chunks WHERE (tenant_id = $1) IS TRUE AND ctid = ANY (ARRAY(
  (SELECT ctid FROM kb_chunks WHERE tenant_id = $1 AND document_id = $2 AND generation < $3 AND generation <= $4 LIMIT $5)
  UNION ALL
  (SELECT ctid FROM kb_chunks WHERE tenant_id = $1 AND document_id = $2 AND generation > $3 AND generation <= $4 LIMIT $5)
  LIMIT $5))

-- name: load
SELECT d.name, d.media_type, d.size_bytes AS size, d.content, d.file, d.status, d.error, d.source_error, d.attempts, d.chunks, d.shown, d.generation, d.read_content, d.read_settings, d.owes,
  d.deleted_at IS NOT NULL AS deleted, d.version, d.owner_epoch AS epoch,
  b.id AS base, b.number, b.settings, b.max_tokens, b.overlap_tokens, b.embedding_provider AS embed_provider, b.embedding_model AS embed_model, d.embedded_by
FROM kb_documents d JOIN knowledge_bases b ON b.tenant_id = d.tenant_id AND b.id = d.base_id
WHERE d.tenant_id = $1 AND d.id = $2
