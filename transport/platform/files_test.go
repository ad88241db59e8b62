package platform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
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
