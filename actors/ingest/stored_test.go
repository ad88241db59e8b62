package ingest_test

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/knowledge"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	shared "agentsvc/schemas/knowledge"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// The files testdata/stored-*.jsonl are rows of documents as an earlier build left them
// (pgtest.Stored). -stored=NAME writes one.
var stored = flag.String("stored", "", "write the rows of this stored document anew")

var storedRows = pgtest.Stored{Tables: []string{"tenants", "knowledge_bases", "kb_documents", "kb_chunks", "timers"}}

// restore inserts the rows of a file and returns the document that they are of, whose file has this
// content.
func (w *world) restore(file, content string) (d id.DocumentID) {
	w.Helper()
	for _, r := range storedRows.Restore(w.T, w.admin, file) {
		switch r.Table {
		case "tenants":
			w.tenant = id.TenantID{UUID: r.ID(w.T, "id")}
		case "knowledge_bases":
			w.base = id.KnowledgeBaseID{UUID: r.ID(w.T, "id")}
		case "kb_documents":
			d = id.DocumentID{UUID: r.ID(w.T, "id")}
			w.files.content[id.FileID{UUID: r.ID(w.T, "file")}] = content
		}
	}
	return d
}

// storedDocuments are documents of which there are rows: how they came to be, and how they go on.
var storedDocuments = []struct {
	name   string
	begin  func(w *world) // up to the rows
	now    string         // the content of the file
	shows  string         // a word that is found before it goes on; empty: none
	goesOn func(w *world, n *cluster.Node, d id.DocumentID)
	row    string
	vector string // see embedded: the first and the last
	finds  string // what the best hit of its content has afterwards; empty: there is none
}{
	{
		name: "replaced", // it is shown with vectors, and its new content was being read
		begin: func(w *world) {
			n := w.start()
			w.embeds("m")
			d := w.put("apple pie\nbanana split")
			w.settled(n, d)
			gate := make(chan struct{})
			w.Cleanup(func() { close(gate) })
			w.files.mu.Lock()
			w.files.gate, w.files.reached = gate, make(chan struct{}, 1)
			w.files.mu.Unlock()
			w.replace(d, "cherry\ndate")
			w.wake(n, d)
			<-w.files.reached
		},
		now: "cherry\ndate", shows: "apple",
		goesOn: func(*world, *cluster.Node, id.DocumentID) {},
		row:    "ready - 2 2", vector: "p/m 2 … embedding m 2 0.5", finds: "cherry",
	},
	{
		name: "ready", // its base has other settings than those with which it was read
		begin: func(w *world) {
			w.embeds("m")
			w.settled(w.start(), w.put("apple pie\nbanana split"))
		},
		now: "apple pie\nbanana split", shows: "banana",
		goesOn: func(w *world, _ *cluster.Node, _ id.DocumentID) { w.embeds("m2") },
		row:    "ready - 2 2", vector: "p/m2 2 … embedding m2 2 0.5", finds: "apple",
	},
	{
		name: "waiting", // the store of files was down, and its timer is set
		begin: func(w *world) {
			w.files.down = true
			d := w.put("elder")
			w.wake(w.start(), d)
			testkit.Eventually(w.T, "the document waits", func() bool { return w.one(`SELECT count(*)::text FROM timers`) == "1" })
		},
		now: "elder",
		goesOn: func(w *world, n *cluster.Node, d id.DocumentID) {
			n.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}, durable.TimerDue{Name: w.one(`SELECT name FROM timers`)})
			testkit.Eventually(w.T, "the document is read", func() bool { return w.one(`SELECT count(*)::text FROM timers`) == "0" })
		},
		row: "ready - 1 1", vector: "- 0", finds: "elder",
	},
	{
		name: "deleted", // and its chunks and its file are there still
		begin: func(w *world) {
			d := w.put("fig")
			w.settled(w.start(), d)
			w.exec(`UPDATE kb_documents SET deleted_at = now(), owes = true, version = version + 1 WHERE id = $1`, d)
		},
		now:    "fig",
		goesOn: func(*world, *cluster.Node, id.DocumentID) {},
		row:    "ready - 1 0", vector: "- 0",
	},
}

// Documents that an earlier build read go on: rows that it left are read, and chunks that it wrote
// are found, by their words and by their vectors.
func TestStoredDocumentsGoOn(t *testing.T) {
	t.Parallel()
	for _, c := range storedDocuments {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join("testdata", "stored-"+c.name+".jsonl")
			if *stored == c.name {
				w := newWorld(t)
				c.begin(w)
				storedRows.Write(t, w.admin, file)
			}
			w := newWorld(t)
			w.exec(`DELETE FROM knowledge_bases`)
			d := w.restore(file, c.now)
			if c.shows != "" {
				if got := w.best(c.shows); !strings.Contains(got, c.shows) {
					t.Errorf("%s finds %q before", c.shows, got)
				}
				// No word of the document, and the direction of one of its vectors.
				if got := w.best(c.shows[:1] + "zzz"); !strings.Contains(got, c.shows) {
					t.Errorf("the vector of %s finds %q before", c.shows, got)
				}
			}
			n := w.start()
			c.goesOn(w, n, d)
			if got := w.settled(n, d); got != c.row {
				t.Errorf("it is %q, want %q", got, c.row)
			}
			shown, billed, _ := strings.Cut(c.vector, " … ") // searches are billed in between
			if got := w.embedded(d); !strings.HasPrefix(got, shown) || !strings.HasSuffix(got, billed) {
				t.Errorf("vectors %q, want %q", got, c.vector)
			}
			if got := w.best(c.now); (got != "") != (c.finds != "") || !strings.Contains(got, c.finds) {
				t.Errorf("%q finds %q", c.now, got)
			}
			if c.name == "deleted" && len(w.files.content) > 0 {
				t.Error("its file stays")
			}
		})
	}
}

// best returns the text of the best hit, empty if there is none.
func (w *world) best(text string) string {
	w.Helper()
	hits, err := w.index.Search(w.Context(), knowledge.Query{Tenant: w.tenant, Base: w.base, Text: text, TopK: 5, Viewer: []string{shared.Public}})
	if err != nil {
		w.Fatal(err)
	}
	if len(hits) == 0 {
		return ""
	}
	return hits[0].Text
}
