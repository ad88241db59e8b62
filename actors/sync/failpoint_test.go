//go:build failpoints

package sync_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	syncs "agentsvc/actors/sync"
	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/connector/connectortest"
)

// job is what the process that is killed does.
type job struct {
	DB     *pgtest.DB
	Dir    string
	Tenant id.TenantID
	Base   id.KnowledgeBaseID
	Source id.SourceID
}

// TestKilledAtEachPoint kills the process that syncs a source at each commit boundary and each
// step of the walk that it reaches: the first time, the second time, and so on until it syncs
// without being killed. Afterwards the sync goes on in another process: each document is there
// once with its content, and what is gone is gone.
func TestKilledAtEachPoint(t *testing.T) {
	if todo := os.Getenv("VICTIM_JOB"); todo != "" {
		victim(t, todo)
		return
	}
	dir := t.TempDir()
	w := open(t, pgtest.New(t), dir)
	w.begin()
	n := w.start(syncs.Config{})
	f := connectortest.NewS3(t)
	f.PerPage = 2
	src := w.bucket(f)
	round := 0
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "journal.") && !strings.HasPrefix(name, "durable.") && !strings.HasPrefix(name, "sync.") {
			continue
		}
		kills := 0
		for w.killedAt(n, f, src, dir, &round, fmt.Sprintf("%s:%d", name, kills+1)) {
			kills++
		}
		if kills < 1 {
			t.Errorf("%s: never killed", name)
		}
	}
}

// killedAt changes the bucket, syncs it in a process that dies at point, and then on n. It reports
// whether the process reached point.
func (w *world) killedAt(n *cluster.Node, f *connectortest.S3, src id.SourceID, dir string, round *int, point string) bool {
	w.t.Helper()
	*round++
	want := map[string]string{"stays": "stays"}
	f.Put("stays", "stays")
	for i := range 5 {
		f.Delete(fmt.Sprintf("k%d-%d", i, *round-1))
		key, text := fmt.Sprintf("k%d-%d", i, *round), fmt.Sprint("text of ", *round)
		f.Put(key, text)
		want[key] = text
	}
	w.must(w.queue(src))
	todo, err := json.Marshal(job{w.db, dir, w.tenant, w.base, src})
	w.must(err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachPoint$")
	cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+point, "VICTIM_JOB="+string(todo))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed {
		w.t.Fatalf("%s: %v\n%s", point, err, out)
	}
	w.wake(n, src)
	if row := w.ends(n, src); row.Status != lifecycle.SourceOK || row.LastError != nil {
		w.t.Fatalf("%s: %s %s", point, row.Status, said(row))
	}
	have := w.holds(src, want)
	if have["stays"].content != 1 {
		w.t.Errorf("%s: an unchanged document was put %d times", point, have["stays"].content)
	}
	for item, d := range have {
		if d.content != 1 {
			w.t.Errorf("%s: %s was put %d times", point, item, d.content)
		}
	}
	return killed
}

// victim syncs a source that is queued.
func victim(t *testing.T, todo string) {
	var j job
	if err := json.Unmarshal([]byte(todo), &j); err != nil {
		t.Fatal(err)
	}
	w := open(t, j.DB, j.Dir)
	w.tenant, w.base = j.Tenant, j.Base
	n := w.start(syncs.Config{})
	w.wake(n, j.Source)
	w.ends(n, j.Source)
}
