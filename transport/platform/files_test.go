package platform

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// A file that the store has lost is 404 on every route that downloads one, and its row stays.
func TestALostFileIsNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	artifact := id.ArtifactID{UUID: id.NewAnywhere()}
	_, err := w.admin.Exec(t.Context(), `INSERT INTO artifacts (tenant_id, id, run_id, kind, name, media_type, size_bytes, sha256, created_at)
		VALUES ($1, $2, $3, 'html', 'report.html', 'text/html', 5, $4, now())`, w.a.tenant, artifact, w.a.run, make([]byte, 32))
	w.must(err)
	_, _, err = w.files.PutNamed(t.Context(), store.ArtifactFile(w.a.tenant, artifact), strings.NewReader("hello"), 100)
	w.must(err)
	attachment, run := "/v1/attachments/"+w.a.attachment.String(), "/v1/runs/"+w.a.run.String()+"/artifacts"
	downloads := []string{attachment + "/content", run + "/" + artifact.String(), w.a.fill().Replace("/v1/knowledge-bases/{base}/documents/{document}/content")}
	for _, path := range downloads {
		if got := w.call(w.a, "GET", path, ""); got.status != 200 || got.body != "hello" {
			t.Errorf("before: %s: %d %s", path, got.status, got.body)
		}
	}
	for _, kind := range []string{"attachments", "artifacts", "documents"} {
		w.must(os.RemoveAll(filepath.Join(w.dir, kind)))
	}
	for _, path := range downloads {
		if got := w.call(w.a, "GET", path, ""); got.status != 404 || got.code() != string(problem.CodeNotFound) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for _, path := range []string{attachment, run} {
		if got := w.call(w.a, "GET", path, ""); got.status != 200 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// A request that is cancelled while its COMMIT is on its way keeps its file: the row may be there.
func TestAFileInDoubtIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.db.Admin(t).Exec(t.Context(), `CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER held AFTER INSERT ON attachments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held();
		CREATE CONSTRAINT TRIGGER held AFTER INSERT ON kb_documents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held()`)
	w.must(err)
	holder, err := w.admin.Begin(t.Context())
	w.must(err)
	defer holder.Rollback(context.Background())
	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	w.must(err)
	count := func(kind string) int {
		all, err := os.ReadDir(filepath.Join(w.dir, kind, w.a.tenant.String()))
		w.must(err)
		return len(all)
	}
	attachments, documents, notes := count("attachments"), count("documents"), w.notes()
	answers := make(chan answer, 2)
	go func() { answers <- w.upload(w.a, "in-doubt.txt", "text/plain", "kept") }()
	go func() { answers <- w.put(w.a, []upload{{"in-doubt.txt", "text/plain", "kept"}}) }()
	testkit.Eventually(t, "both commits wait", func() bool {
		var n int
		w.must(w.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&n))
		return n == 2
	})
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond) // requests are cancelled a second before its end
	defer cancel()
	w.must(w.srv.Shutdown(ctx))
	for range cap(answers) {
		if got := <-answers; got.status != 503 {
			t.Errorf("answered %d %s", got.status, got.body)
		}
	}
	if a, d, n := count("attachments")-attachments, count("documents")-documents, w.notes()-notes; a != 1 || d != 1 || n != 2 {
		t.Errorf("%d attachments, %d documents and %d notes are kept, want 1, 1 and 2", a, d, n)
	}
}
