package sync_test

import (
	"testing"

	syncs "agentsvc/actors/sync"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// TestDeletedSourcesGo a week after their deletion, behind their documents.
func TestDeletedSourcesGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var list []id.SourceID
	for range 4 {
		list = append(list, w.source(api.SourceCreate{Kind: lifecycle.SourceUpload}))
	}
	lives, fresh, old, full := list[0], list[1], list[2], list[3]
	w.exec(`UPDATE knowledge_sources SET deleted_at = now() - interval '6 days' WHERE id = $1`, fresh)
	w.exec(`UPDATE knowledge_sources SET deleted_at = now() - interval '8 days' WHERE id IN ($1, $2)`, old, full)
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, name, media_type, size_bytes, file, sha256, deleted_at) VALUES ($1, $2, $3, $4, 'x', 'x', 'x', 0, $2, '', now())`, w.tenant, id.NewAnywhere(), w.base, full)
	n, _, err := syncs.Traits.Keep[0].Pass(t.Context(), w.db.System(t), feed.Mark{}, 100)
	w.must(err)
	if n != 1 || w.count(`SELECT count(*) FROM knowledge_sources WHERE id IN ($1, $2, $3)`, lives, fresh, full) != 3 {
		t.Errorf("%d rows went", n)
	}
}

// TestTheSweepFindsWork: queued and syncing sources, and no deleted ones.
func TestTheSweepFindsWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var list []id.SourceID
	for range 4 {
		list = append(list, w.source(api.SourceCreate{Kind: lifecycle.SourceUpload}))
	}
	w.exec(`UPDATE knowledge_sources SET status = 'queued' WHERE id IN ($1, $2)`, list[0], list[1])
	w.exec(`UPDATE knowledge_sources SET deleted_at = now() WHERE id = $1`, list[1])
	w.exec(`UPDATE knowledge_sources SET status = 'syncing' WHERE id = $1`, list[2])
	shards := make([]id.Shard, id.Shards)
	for i := range shards {
		shards[i] = id.Shard(i)
	}
	page, err := syncs.Traits.Work.Find(t.Context(), w.db.System(t), shards, id.UUID{}, 100)
	w.must(err)
	found := map[id.UUID]bool{}
	for _, f := range page.Found {
		found[f.ID] = true
	}
	if len(found) != 2 || !found[list[0].UUID] || !found[list[2].UUID] {
		t.Errorf("%v", page.Found)
	}
}
