//go:build failpoints

package ingest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/actors/ingest"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/model/simulated"
)

// disk is a store of files that two processes share.
type disk string

func (s disk) path(f id.FileID) string { return filepath.Join(string(s), f.String()) }

func (s disk) Open(_ context.Context, _ id.TenantID, f id.FileID) (io.ReadCloser, error) {
	return os.Open(s.path(f))
}

func (s disk) Delete(_ context.Context, _ id.TenantID, f id.FileID) error {
	if err := os.Remove(s.path(f)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (disk) Away(error) bool { return false }

// counted is the simulated embedding, and counts the texts.
type counted struct{ texts int }

func (c *counted) Embed(ctx context.Context, _ id.TenantID, m model.EmbeddingModel, texts []string) (model.Embedded, error) {
	c.texts += len(texts)
	return simulated.Embedder{}.Embed(ctx, m.Name, texts)
}

// job is what the process that is killed does: it indexes the first document, and removes the second.
type job struct {
	DB        *pgtest.DB
	Dir       disk
	Tenant    id.TenantID
	Base      id.KnowledgeBaseID
	Documents [2]id.DocumentID
}

// TestKilledAtEachPoint kills the process that indexes a document with a new content, and removes another one, at each commit boundary and
// each step that it reaches: the first time, the second time, and so on until it ends without being killed. Afterwards another process goes on:
// the document is there once, with its new content only, and of the other one nothing is left. Vectors that were written are not made again, and
// a generation is billed at most once.
func TestKilledAtEachPoint(t *testing.T) {
	if todo := os.Getenv("VICTIM_JOB"); todo != "" {
		victim(t, todo)
		return
	}
	for _, embedding := range []string{"", "any"} {
		t.Run("embedding "+embedding, func(t *testing.T) {
			w := open(t, pgtest.New(t))
			w.begin()
			w.embeds(embedding)
			made := &counted{}
			j := job{DB: w.db, Dir: disk(t.TempDir()), Tenant: w.tenant, Base: w.base, Documents: [2]id.DocumentID{w.put("")}}
			n := w.startAt(j.Dir, made)
			round := 0
			for _, name := range failpoint.Names() {
				if !strings.HasPrefix(name, "journal.") && !strings.HasPrefix(name, "durable.") && !strings.HasPrefix(name, "ingest.") {
					continue
				}
				kills := 0
				for round++; w.killedAt(n, &j, made, round, fmt.Sprintf("%s:%d", name, kills+1)); round++ {
					kills++
				}
				if kills < 1 {
					t.Errorf("%s: never killed", name)
				}
			}
		})
	}
}

// startAt begins a node whose files lie in dir.
func (w *world) startAt(dir disk, e ingest.Embedder) *cluster.Node {
	w.Helper()
	n := clustertest.Node()
	ingest.Register(n, w.writer, ingest.Config{Store: w.chunks, Files: dir, Parser: w.files, Embedder: e, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
	return testkit.Start(w.T, n)
}

// killedAt gives the first document a new content and deletes another one, lets a process that dies at point do the work, and then n. It reports
// whether the process reached point.
func (w *world) killedAt(n *cluster.Node, j *job, made *counted, round int, point string) bool {
	w.Helper()
	const chunks = 18 // three transactions
	d, gone := j.Documents[0], w.put("left\nover")
	w.stores(j.Dir, gone, "left\nover")
	w.ends(n, gone)
	w.exec(`UPDATE kb_documents SET deleted_at = now(), owes = true, version = version + 1 WHERE id = $1`, gone)
	content := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("canary%d\n", round), chunks), "\n")
	w.replace(d, content)
	w.stores(j.Dir, d, content)
	w.exec(`DELETE FROM usage_records`)
	j.Documents[1] = gone
	todo, err := json.Marshal(j)
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachPoint$")
	cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+point, "VICTIM_JOB="+string(todo))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed {
		w.Fatalf("%s: %v\n%s", point, err, out)
	}
	// A statement of the killed process may end only now: then there are more vectors.
	var written int
	if err := w.admin.QueryRow(w.Context(), `SELECT count(vector) FROM kb_chunks c JOIN kb_documents d ON d.id = c.document_id AND d.generation = c.generation
		WHERE d.id = $1 AND (d.attempts > 0 OR d.read_content = d.content)`, d).Scan(&written); err != nil {
		w.Fatal(err)
	}
	made.texts = 0
	if got, want := w.ends(n, d), fmt.Sprintf("ready - %d %[1]d", chunks); got != want {
		w.Fatalf("%s: %s, want %s", point, got, want)
	}
	if got := w.one(`SELECT count(*) FROM kb_chunks WHERE document_id = $1 AND text = $2`, d, fmt.Sprint("canary", round)); got != fmt.Sprint(chunks) {
		w.Errorf("%s: %s chunks have the new text", point, got)
	}
	if got := w.ends(n, gone); !strings.HasSuffix(got, " 0") {
		w.Errorf("%s: of the deleted document: %s", point, got)
	}
	if _, err := os.Stat(j.Dir.path(w.fileOf(gone))); !errors.Is(err, os.ErrNotExist) {
		w.Errorf("%s: the file of the deleted document: %v", point, err)
	}
	vectors, bills := w.one(`SELECT count(vector) FROM kb_chunks WHERE document_id = $1`, d), w.one(`SELECT count(*) FROM usage_records`)
	switch embeds := w.one(`SELECT (embedding_model IS NOT NULL)::text FROM knowledge_bases WHERE id = $1`, w.base) == "true"; {
	case embeds && (vectors != fmt.Sprint(chunks) || bills > "1" || made.texts > chunks-written):
		w.Errorf("%s: %s vectors, %s usage records, and %d texts asked for again, of which %d were written", point, vectors, bills, made.texts, written)
	case !embeds && (vectors != "0" || bills != "0"):
		w.Errorf("%s: %s vectors and %s usage records", point, vectors, bills)
	}
	if n := w.found(fmt.Sprint("canary", round)); n == 0 {
		w.Errorf("%s: the document is not found", point)
	}
	return killed
}

// ends is settled with as few messages as it takes: each one to a document that is indexed is a commit.
func (w *world) ends(n *cluster.Node, d id.DocumentID) string {
	w.Helper()
	testkit.Eventually(w.T, "the document owes nothing", func() bool {
		if !n.Active(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}) {
			if w.one(`SELECT owes::text FROM kb_documents WHERE id = $1`, d) == "false" {
				return true
			}
			w.wake(n, d)
		}
		return false
	})
	return w.settled(n, d)
}

// stores puts the content of a document where both processes find it.
func (w *world) stores(dir disk, d id.DocumentID, content string) {
	w.Helper()
	if err := os.WriteFile(dir.path(w.fileOf(d)), []byte(content), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *world) fileOf(d id.DocumentID) (f id.FileID) {
	w.Helper()
	if err := w.admin.QueryRow(w.Context(), `SELECT file FROM kb_documents WHERE id = $1`, d).Scan(&f); err != nil {
		w.Fatal(err)
	}
	return f
}

func victim(t *testing.T, todo string) {
	var j job
	if err := json.Unmarshal([]byte(todo), &j); err != nil {
		t.Fatal(err)
	}
	w := open(t, j.DB)
	w.tenant, w.base = j.Tenant, j.Base
	n := w.startAt(j.Dir, &counted{})
	for _, d := range j.Documents {
		w.ends(n, d)
	}
}
