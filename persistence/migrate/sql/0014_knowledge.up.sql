-- Knowledge bases: their documents, the sources that bring documents, and the chunks that
-- searches find.

CREATE TABLE knowledge_bases (
  tenant_id          uuid NOT NULL REFERENCES tenants,
  id                 uuid NOT NULL,
  number             bigint GENERATED ALWAYS AS IDENTITY, -- marks the lexemes of its chunks, so that an index scan reads one base
  name               text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  description        text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
  max_tokens         int  NOT NULL DEFAULT 400,
  overlap_tokens     int  NOT NULL DEFAULT 60,
  embedding_provider text,
  embedding_model    text,
  settings           int  NOT NULL DEFAULT 1, -- counts changes of chunking and embedding
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  deleted_at         timestamptz,
  PRIMARY KEY (tenant_id, id),
  CHECK (max_tokens > 0 AND overlap_tokens >= 0 AND overlap_tokens < max_tokens),
  CHECK ((embedding_provider IS NULL) = (embedding_model IS NULL))
);
CREATE UNIQUE INDEX knowledge_bases_number ON knowledge_bases (number);
CREATE INDEX knowledge_bases_deleted ON knowledge_bases (deleted_at) WHERE deleted_at IS NOT NULL;

-- A source's row is the snapshot of the actor that syncs it. The API writes it too: every
-- change of the row counts version up.
CREATE TABLE knowledge_sources (
  tenant_id       uuid NOT NULL,
  id              uuid NOT NULL,
  base_id         uuid NOT NULL,
  kind            text NOT NULL CONSTRAINT knowledge_sources_kind_check CHECK (kind IN ('upload', 'office_drive', 'wiki', 'cloud_drive', 'object_store', 'web')),
  name            text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 120),
  config          json NOT NULL DEFAULT '{}',
  credentials     bytea, -- sealed
  credential_keys text[] NOT NULL DEFAULT '{}',
  cron            text,
  timezone        text NOT NULL DEFAULT 'UTC',
  enabled         boolean NOT NULL DEFAULT true,
  status          text NOT NULL DEFAULT 'idle' CONSTRAINT knowledge_sources_status_check CHECK (status IN ('idle', 'queued', 'syncing', 'ok', 'failed')),
  last_synced_at  timestamptz,
  last_error      text,
  next_sync_at    timestamptz, -- its timer has the same time
  sync            bigint NOT NULL DEFAULT 0, -- the number of the last sync that was begun
  resume          text, -- where the sync that is under way goes on
  delta           text, -- where the next sync begins; NULL: a full listing
  listed          int NOT NULL DEFAULT 0, -- documents that the sync under way has met
  version         bigint NOT NULL DEFAULT 1,
  owner_epoch     bigint NOT NULL DEFAULT 0,
  last_op         uuid,
  created_at      timestamptz NOT NULL DEFAULT now(),
  updated_at      timestamptz NOT NULL DEFAULT now(),
  deleted_at      timestamptz,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, base_id) REFERENCES knowledge_bases
);
CREATE INDEX knowledge_sources_base ON knowledge_sources (tenant_id, base_id);
CREATE INDEX knowledge_sources_work ON knowledge_sources (coalesce(shard_of(id), -1), id) WHERE status IN ('queued', 'syncing') AND deleted_at IS NULL;
CREATE INDEX knowledge_sources_deleted ON knowledge_sources (deleted_at) WHERE deleted_at IS NOT NULL;

-- A document's row is the snapshot of the actor that indexes it. The API and the syncs of
-- sources write it too: every change of the row but one of acl counts version up.
--
-- content counts the contents that were put. An index of chunks is a generation; searches see
-- the generation shown, and no other, so that a replacement is one change of the row.
CREATE TABLE kb_documents (
  tenant_id      uuid NOT NULL,
  id             uuid NOT NULL,
  base_id        uuid NOT NULL,
  source_id      uuid,  -- NULL: an upload
  item           text,  -- its identity at the source
  item_version   text,  -- what the source says of its content's version
  seen           bigint NOT NULL DEFAULT 0, -- the last sync of the source that met it
  name           text NOT NULL CHECK (name <> ''),
  uri            text,
  media_type     text NOT NULL,
  size_bytes     bigint NOT NULL CHECK (size_bytes >= 0),
  content        int NOT NULL DEFAULT 1,
  file           uuid NOT NULL, -- names the content in the store of files
  sha256         bytea NOT NULL,
  status         text NOT NULL DEFAULT 'queued' CONSTRAINT kb_documents_status_check CHECK (status IN ('queued', 'processing', 'ready', 'failed')),
  error          text, -- plain text, for people
  attempts       int NOT NULL DEFAULT 0,
  chunks         int NOT NULL DEFAULT 0, -- of the generation shown
  shown          int NOT NULL DEFAULT 0, -- the generation that searches see; 0: none
  generation     int NOT NULL DEFAULT 0, -- the last generation that was begun
  read_content   int NOT NULL DEFAULT 0, -- the content that was last read to its end, well or not,
  read_settings  int NOT NULL DEFAULT 0, -- and the settings of the base then
  acl            text[] NOT NULL DEFAULT '{}', -- public, end_user:<id>, group:<name>; empty: all of the tenant
  owes           boolean NOT NULL DEFAULT true, -- its actor has work: an index to make, or rows and files to remove
  version        bigint NOT NULL DEFAULT 1,
  owner_epoch    bigint NOT NULL DEFAULT 0,
  last_op        uuid,
  created_at     timestamptz NOT NULL DEFAULT now(),
  updated_at     timestamptz NOT NULL DEFAULT now(),
  deleted_at     timestamptz,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, base_id) REFERENCES knowledge_bases,
  FOREIGN KEY (tenant_id, source_id) REFERENCES knowledge_sources,
  CHECK ((source_id IS NULL) = (item IS NULL))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX kb_documents_name ON kb_documents (tenant_id, base_id, name) WHERE source_id IS NULL AND deleted_at IS NULL;
CREATE UNIQUE INDEX kb_documents_item ON kb_documents (tenant_id, source_id, item) WHERE deleted_at IS NULL;
CREATE INDEX kb_documents_base ON kb_documents (tenant_id, base_id, id) WHERE deleted_at IS NULL;
CREATE INDEX kb_documents_work ON kb_documents (coalesce(shard_of(id), -1), id) WHERE owes;
CREATE INDEX kb_documents_file ON kb_documents (tenant_id, file);
CREATE INDEX kb_documents_deleted ON kb_documents (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE kb_chunks (
  tenant_id   uuid NOT NULL,
  document_id uuid NOT NULL,
  generation  int  NOT NULL,
  position    int  NOT NULL,
  base_id     uuid NOT NULL,
  id          uuid NOT NULL,
  text        text NOT NULL,
  heading     text NOT NULL DEFAULT '', -- the headings above it
  page        int  NOT NULL DEFAULT 0,  -- 0: the document has no pages
  overlap     int  NOT NULL DEFAULT 0,  -- bytes at the start of text that repeat the text before
  tokens      int  NOT NULL,
  length      int  NOT NULL, -- words, for the ranking
  terms       bytea NOT NULL, -- how often each word occurs, packed (persistence/knowledge)
  lexemes     tsvector NOT NULL, -- its words, each marked with the base's number
  vector      bytea, -- float32, little endian, of length 1; NULL: not embedded
  PRIMARY KEY (tenant_id, document_id, generation, position),
  FOREIGN KEY (tenant_id, document_id) REFERENCES kb_documents
);
ALTER TABLE kb_chunks ALTER COLUMN vector SET STORAGE EXTERNAL, ALTER COLUMN terms SET STORAGE MAIN;
CREATE INDEX kb_chunks_lexemes ON kb_chunks USING gin (lexemes) WITH (fastupdate = off);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['knowledge_bases', 'knowledge_sources', 'kb_documents', 'kb_chunks']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_api USING (tenant_id = svc_tenant())', t || '_api', t);
    EXECUTE format('CREATE POLICY %I ON %I TO svc_system USING (true)', t || '_system', t);
  END LOOP;
  REVOKE INSERT, UPDATE, DELETE ON kb_chunks FROM svc_api; -- only the actors of documents write chunks
END $$;
