package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/msg"
)

// keep is how long the row of a deleted document stays. One of a source with an ACL stays until the source is deleted: the source may
// give the document again, and what was restricted must not come back for everybody.
const (
	keep    = 24 * time.Hour
	deleted = `deleted_at IS NOT NULL AND NOT owes
  AND (source_id IS NULL OR acl = '{}' OR (tenant_id, source_id) IN (SELECT s.tenant_id, s.id FROM knowledge_sources s WHERE s.deleted_at IS NOT NULL))
  AND NOT EXISTS (SELECT FROM kb_chunks c WHERE c.tenant_id = kb_documents.tenant_id AND c.document_id = kb_documents.id)`
)

// wakes is how many documents a tick of the sweep wakes: more than a node indexes in that time. Those that find
// too many others waiting leave memory again.
const wakes = 50

// Traits describe the kind ingest.
var Traits = durable.Traits{
	Name:       msg.KindIngest,
	Tables:     []*journal.Table{documents},
	Work:       &feed.Work{Find: feed.Where("kb_documents", "owes"), Wakes: wakes},
	Keep:       []feed.Retention{feed.Aged("kb_documents", "deleted_at", deleted, keep)},
	Collectors: []prometheus.Collector{indexed, building},
}
