package sync_test

import (
	"context"
	"flag"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	syncs "agentsvc/actors/sync"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/connector/connectortest"
)

// The files testdata/stored-*.jsonl are rows of sources as an earlier build left them
// (pgtest.Stored). -stored=NAME writes one.
var stored = flag.String("stored", "", "write the rows of this stored source anew")

// storedRows are the rows of a source of a server at this address.
func (w *world) storedRows(address string) *pgtest.Stored {
	at := func(r *pgtest.StoredRow) vault.AAD {
		return store.SourceAt(id.TenantID{UUID: r.ID(w.t, "tenant_id")}, id.SourceID{UUID: r.ID(w.t, "id")})
	}
	return &pgtest.Stored{
		Tables: []string{"tenants", "knowledge_bases", "knowledge_sources", "kb_documents", "timers"},
		Names:  map[string]string{"@VENDOR@": address},
		Sealed: map[string][]string{"knowledge_sources": {"credentials"}},
		Open:   func(r *pgtest.StoredRow, _ string, sealed []byte) ([]byte, error) { return w.keys.Open(at(r), sealed) },
		Seal:   func(r *pgtest.StoredRow, _ string, plain []byte) ([]byte, error) { return w.keys.Seal(at(r), plain) },
	}
}

// restore inserts the rows of a file and returns the source that they are of.
func (w *world) restore(file, address string) (s id.SourceID) {
	w.t.Helper()
	for _, r := range w.storedRows(address).Restore(w.t, w.admin, file) {
		switch r.Table {
		case "tenants":
			w.tenant = id.TenantID{UUID: r.ID(w.t, "id")}
		case "knowledge_bases":
			w.base = id.KnowledgeBaseID{UUID: r.ID(w.t, "id")}
		case "knowledge_sources":
			s = id.SourceID{UUID: r.ID(w.t, "id")}
		}
	}
	return s
}

// list describes the documents of a source, whose files need not be there.
func (w *world) list(s id.SourceID) (list string) {
	w.t.Helper()
	w.must(w.admin.QueryRow(context.Background(), `SELECT coalesce(string_agg(concat_ws(' ', item, name, size_bytes, content, item_version), ', ' ORDER BY item), '')
		FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL`, s).Scan(&list))
	return list
}

// fetched returns the contents that a server gave, and how many listings.
func fetched(s *connectortest.Server) (contents string, listings int) {
	calls := s.Calls()
	var list []string
	for _, c := range calls {
		if item, ok := strings.CutPrefix(c, "content "); ok {
			list = append(list, item)
		}
	}
	slices.Sort(list)
	return strings.Join(list, " "), connectortest.Count(calls, "listing")
}

// storedSources are sources of which there are rows: how they came to be, and how they go on.
var storedSources = []struct {
	name string
	run  func(t *testing.T, w *world, file string) // without a file: from the beginning to the rows
}{
	{
		name: "walking", // a sync was cut off in the middle of the listing
		run: func(t *testing.T, w *world, file string) {
			g := connectortest.NewGraph(t)
			for _, item := range []string{"a", "b", "c", "d", "e"} {
				g.Put(item, item+".txt", "text of "+item)
			}
			w.office = g.URL + "/v1.0"
			if file == "" {
				began, over := make(chan struct{}), make(chan struct{})
				begin := sync.OnceFunc(func() { close(began) })
				t.Cleanup(func() { close(over) })
				g.Before(func(_ http.ResponseWriter, r *http.Request) bool {
					if strings.HasSuffix(r.URL.Query().Get("token"), ".2") {
						begin()
						select {
						case <-over:
						case <-r.Context().Done():
						}
						panic(http.ErrAbortHandler)
					}
					return false
				})
				n := w.start(syncs.Config{})
				src := w.officeDrive()
				w.must(w.queue(src))
				w.wake(n, src)
				<-began
				w.storedRows(g.URL).Write(t, w.admin, filepath.Join("testdata", "stored-walking.jsonl"))
				return
			}
			src := w.restore(file, g.URL)
			before := w.list(src)
			if before == "" || strings.Contains(before, "c.txt") {
				t.Fatalf("it began with %q", before)
			}
			n := w.start(syncs.Config{})
			w.wake(n, src)
			if row := w.ends(n, src); row.Status != lifecycle.SourceOK || row.Listed != 5 {
				t.Fatalf("%s %s, %d documents", row.Status, said(row), row.Listed)
			}
			// What was fetched before is not fetched again.
			if contents, listings := fetched(&g.Server); contents != "c d e" || listings != 2 {
				t.Errorf("%d listings, fetched %s", listings, contents)
			}
			if got := w.list(src); got != before+", c c.txt 9 1 c:c1, d d.txt 9 1 c:c1, e e.txt 9 1 c:c1" {
				t.Errorf("documents %s", got)
			}
		},
	},
	{
		name: "synced", // and the vendor says where the next sync begins
		run: func(t *testing.T, w *world, file string) {
			g := connectortest.NewGraph(t)
			for _, item := range []string{"a", "b", "c"} {
				g.Put(item, item+".txt", "text of "+item)
			}
			w.office = g.URL + "/v1.0"
			if file == "" {
				n := w.start(syncs.Config{})
				src := w.officeDrive()
				w.syncs(n, src)
				w.settles()
				w.storedRows(g.URL).Write(t, w.admin, filepath.Join("testdata", "stored-synced.jsonl"))
				return
			}
			src := w.restore(file, g.URL)
			g.Put("a", "a.txt", "another text of a")
			g.Rename("b", "renamed.txt")
			g.Delete("c", false)
			w.syncs(w.start(syncs.Config{}), src)
			if contents, _ := fetched(&g.Server); contents != "a" {
				t.Errorf("fetched %s", contents)
			}
			if got := w.list(src); got != "a a.txt 17 2 c:c2, b renamed.txt 9 1 c:c1" {
				t.Errorf("documents %s", got)
			}
		},
	},
	{
		name: "scheduled", // and its time came while no node ran
		run: func(t *testing.T, w *world, file string) {
			f := connectortest.NewS3(t)
			f.Put("k", "text")
			if file == "" {
				src := w.bucket(f)
				zone := "Europe/Berlin"
				w.patch(src, api.SourcePatch{Schedule: api.Some("30 2 * * *"), Timezone: &zone})
				w.storedRows(f.URL).Write(t, w.admin, filepath.Join("testdata", "stored-scheduled.jsonl"))
				return
			}
			src := w.restore(file, f.URL)
			var due, next time.Time
			w.must(w.admin.QueryRow(t.Context(), `SELECT next_sync_at FROM knowledge_sources WHERE id = $1`, src).Scan(&due))
			w.clock.set(due.Add(time.Second))
			n := w.start(syncs.Config{})
			n.Tell(w.at(src), dueNow)
			testkit.Eventually(t, "the sync ends", func() bool { return w.row(src).Status == lifecycle.SourceOK })
			if got := w.list(src); !strings.HasPrefix(got, "k k 4 1 ") {
				t.Errorf("documents %s", got)
			}
			w.must(w.admin.QueryRow(t.Context(), `SELECT due_at FROM timers WHERE entity_id = $1 AND due_at = (SELECT next_sync_at FROM knowledge_sources WHERE id = $1)`, src).Scan(&next))
			berlin, err := time.LoadLocation("Europe/Berlin")
			w.must(err)
			if local := next.In(berlin); local.Hour() != 2 || local.Minute() != 30 || !next.After(due) || next.Sub(due) > 26*time.Hour {
				t.Errorf("due at %s, then at %s", due, local)
			}
		},
	},
}

// Sources that an earlier build synced go on: rows that it left are read.
func TestStoredSourcesGoOn(t *testing.T) {
	t.Parallel()
	for _, c := range storedSources {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if *stored == c.name {
				c.run(t, newWorld(t), "")
			}
			c.run(t, open(t, pgtest.New(t), t.TempDir()), filepath.Join("testdata", "stored-"+c.name+".jsonl"))
		})
	}
}
