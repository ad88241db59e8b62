package sync

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/msg"
)

// keep is how long the row of a deleted source stays, so that its documents go first.
const keep = 7 * 24 * time.Hour

// Traits describe the kind sync.
var Traits = durable.Traits{
	Name:   msg.KindSync,
	Tables: []*journal.Table{sources},
	Sealed: []reseal.Column{{Table: "knowledge_sources", Name: "credentials", By: reseal.ByID}},
	Work:   &feed.Work{Find: feed.Where("knowledge_sources", "status IN ('queued', 'syncing') AND deleted_at IS NULL")},
	Keep: []feed.Retention{feed.Aged("knowledge_sources", "deleted_at",
		"deleted_at IS NOT NULL AND NOT EXISTS (SELECT FROM kb_documents d WHERE d.tenant_id = knowledge_sources.tenant_id AND d.source_id = knowledge_sources.id)", keep)},
	Collectors: []prometheus.Collector{syncs, documents, running, waiting},
}
