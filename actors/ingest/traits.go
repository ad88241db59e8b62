package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/msg"
)

// keep is how long the row of a deleted document stays.
const keep = 24 * time.Hour

// wakes is how many documents a tick of the sweep wakes: more than a node indexes in that time. Those that find
// too many others waiting leave memory again.
const wakes = 50

// Traits describe the kind ingest.
var Traits = durable.Traits{
	Name:       msg.KindIngest,
	Tables:     []*journal.Table{documents},
	Work:       &feed.Work{Find: feed.Where("kb_documents", "owes"), Wakes: wakes},
	Keep:       []feed.Retention{feed.Aged("kb_documents", "deleted_at", "deleted_at IS NOT NULL AND NOT owes AND NOT EXISTS (SELECT FROM kb_chunks c WHERE c.tenant_id = kb_documents.tenant_id AND c.document_id = kb_documents.id)", keep)},
	Collectors: []prometheus.Collector{indexed, building},
}
