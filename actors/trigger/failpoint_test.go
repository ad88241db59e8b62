//go:build failpoints

package trigger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/trigger"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// job is what the process that is killed does.
type job struct {
	DB      *pgtest.DB
	Tenant  id.TenantID
	Trigger id.TriggerID
	Due     time.Time
}

// TestKilledAtEachPoint kills the process that fires a schedule at each commit boundary
// that it reaches: the first time, the second time, and so on until it fires without being
// killed. Afterwards the timer comes again on another node, and the due time has one run.
func TestKilledAtEachPoint(t *testing.T) {
	if todo := os.Getenv("VICTIM_JOB"); todo != "" {
		victim(t, todo)
		return
	}
	w := newWorld(t)
	n := w.start(trigger.Config{}, nil)
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "journal.") && !strings.HasPrefix(name, "durable.") {
			continue
		}
		kills := 0
		for w.killedAt(n, fmt.Sprintf("%s:%d", name, kills+1)) {
			kills++
		}
		if kills < 2 { // one of the trigger's host at least, or of its run's start and its own commit
			t.Errorf("%s: killed %d times", name, kills)
		}
	}
}

// killedAt fires a schedule in a process that dies at point, and then on n. It reports
// whether the process reached point.
func (w *world) killedAt(n *cluster.Node, point string) bool {
	w.t.Helper()
	due := at(w.t, "2026-05-06T07:00:00Z")
	g := w.schedule("0 * * * *", "UTC", due)
	todo, err := json.Marshal(job{w.db, w.tenant, g, due})
	w.must(err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachPoint$")
	cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+point, "VICTIM_JOB="+string(todo))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed {
		w.t.Fatalf("%s: %v\n%s", point, err, out)
	}
	w.clock.set(due.Add(10 * time.Second))
	w.tell(n, g)
	w.moves(g, due.Add(time.Hour))
	w.rests(n, g)
	w.runs(g, due)
	var fired int
	w.must(w.admin.QueryRow(w.t.Context(), `SELECT count(*)::int FROM audit_log WHERE action = 'trigger.fire' AND target_id = $1`, g).Scan(&fired))
	if last := w.row(g).LastFiredAt; fired != 1 || last == nil || last.Before(due) {
		w.t.Errorf("%s: the log says %d times that it fired, the row that it fired at %v", point, fired, last)
	}
	return killed
}

// victim fires a schedule that is due.
func victim(t *testing.T, todo string) {
	var j job
	if err := json.Unmarshal([]byte(todo), &j); err != nil {
		t.Fatal(err)
	}
	db := j.DB
	keys := vault.New(vault.NewSecret32([32]byte{1}))
	w := &world{t: t, db: db, keys: keys, clock: &clock{}, tenant: j.Tenant,
		admin: db.System(t), tables: store.New(db.API(t), keys), schedules: store.NewSchedules(db.System(t))}
	w.clock.set(j.Due)
	w.writer = journaltest.Writer(t, db, journal.Config{Tables: append(engine.Tables, trigger.Traits.Tables...), Log: zerolog.Nop()})
	n := w.start(trigger.Config{}, nil)
	w.tell(n, j.Trigger)
	w.moves(j.Trigger, j.Due.Add(time.Hour))
	testkit.Eventually(w.t, "the run ends", func() bool {
		return !n.Active(cluster.Address{Kind: msg.KindRun, Tenant: j.Tenant, ID: trigger.RunAt(j.Trigger, j.Due).UUID})
	})
}
