//go:build failpoints

package skillrun_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// job is what the process that is killed does.
type job struct {
	DB       *pgtest.DB
	Tenant   id.TenantID
	Agent    id.AgentID
	Skill    id.SkillID
	Start    msg.StartSkill
	Approval id.ApprovalID
	Args     json.RawMessage
	Fails    bool // a check fails, so that the run compensates
}

// TestKilledAtEachPoint kills the process that drives a run at each commit boundary and each step
// that it reaches: the first time, the second time, and so on until it ends without being killed.
// Afterwards another process goes on. At most one click is made for the approval, by whichever
// process; a run whose receipt was written is not driven again, and any other commits once.
func TestKilledAtEachPoint(t *testing.T) {
	if todo := os.Getenv("VICTIM_JOB"); todo != "" {
		victim(t, todo)
		return
	}
	w := newWorld(t)
	if _, err := w.db.Admin(t).Exec(t.Context(), `CREATE TABLE clicks (run uuid, amount text); GRANT ALL ON clicks TO svc_system`); err != nil {
		t.Fatal(err)
	}
	s := newSite()
	s.ledger = w.pool
	n := w.node(s)
	for _, fails := range []bool{false, true} {
		for _, name := range failpoint.Names() {
			// The points of the journal and of the host do not depend on what the checks say.
			if !strings.HasPrefix(name, "skillrun.") && (fails || !strings.HasPrefix(name, "journal.") && !strings.HasPrefix(name, "durable.")) {
				continue
			}
			kills := 0
			for w.killedAt(n, s, name, kills+1, fails) {
				kills++
			}
			if kills < 1 && (fails || name != "skillrun.compensated") {
				t.Errorf("%s: never killed", name)
			}
		}
	}
}

// killedAt makes a run in a process that dies at the n-th hit of point, and goes on with it here.
// It reports whether the process reached point.
func (w *world) killedAt(node *cluster.Node, s *site, point string, n int, fails bool) bool {
	w.t.Helper()
	c := w.calls(node, w.agentRun(), 7)
	todo, err := json.Marshal(job{w.db, w.tenant, w.agent, w.of, c.start, c.approval, c.args, fails})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachPoint$")
	cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+point+":"+string(rune('0'+n)), "VICTIM_JOB="+string(todo))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed {
		w.t.Fatalf("%s:%d: %v\n%s", point, n, err, out)
	}
	at := func() string { return c.row() }
	left, clicks := at(), w.text(`SELECT count(*) FROM clicks WHERE run = $1`, c.id())
	s.fails.Store(fails)
	// The agent's run goes on as after a crash: the same messages, which are idempotent.
	c.must(c.start)
	testkit.Eventually(w.t, "it is prepared or ended", func() bool {
		return strings.HasPrefix(at(), "prepared") || strings.Contains(at(), "ended") || driven(at())
	})
	if strings.HasPrefix(at(), "prepared") {
		c.asked(c.args)
		c.decides("approved", c.args)
	}
	if w.text(`SELECT count(*) FROM approvals WHERE id = $1`, c.approval) == "1" {
		c.must(c.commit())
	}
	testkit.Eventually(w.t, "it ends", func() bool { return strings.Contains(at(), "ended") })
	total, row := w.text(`SELECT count(*) FROM clicks WHERE run = $1`, c.id()), at()
	receipt := strings.HasPrefix(left, "committing") || strings.HasPrefix(left, "committed")
	switch {
	case total != "0" && total != "1":
		w.t.Errorf("%s:%d: %s clicks, it was %q and became %q", point, n, total, left, row)
	case receipt && !strings.Contains(left, "ended"):
		// A commit that the process had sent may still have taken effect after its death.
		if !strings.HasSuffix(row, " unknown_outcome, ended, held") && !(total == "1" && row == done[fails]) || total != clicks {
			w.t.Errorf("%s:%d: after the receipt it was %q and became %q with %s clicks", point, n, left, row, total)
		}
	case killed && beforeReceipt[point] && (total != "1" || row != done[fails]):
		w.t.Errorf("%s:%d: before the receipt it was %q and became %q with %s clicks", point, n, left, row, total)
	case total != "1" && !(killed && strings.HasSuffix(row, " unknown_outcome, ended, held")):
		w.t.Errorf("%s:%d: no click, it was %q and became %q", point, n, left, row)
	case row != done[fails] && !(killed && strings.HasSuffix(row, " unknown_outcome, ended, held")):
		w.t.Errorf("%s:%d: it was %q and became %q", point, n, left, row)
	}
	if got := w.text(`SELECT count(*) FROM usage_records WHERE run_id = $1`, c.run); got != "1" {
		w.t.Errorf("%s:%d: %s usage records", point, n, got)
	}
	return killed
}

// beforeReceipt are points at which the receipt has not been sent to the database.
var beforeReceipt = map[string]bool{"skillrun.prepared": true, "skillrun.ready": true}

// done is the row of a run that was not cut off, by whether its check fails.
var done = map[bool]string{false: "succeeded, ended, held", true: "verification_failed verification_failed, ended, held"}

func driven(row string) bool {
	return strings.HasPrefix(row, "committ") || strings.HasPrefix(row, "verification_failed")
}

// victim makes a run from its start to its end.
func victim(t *testing.T, todo string) {
	var j job
	if err := json.Unmarshal([]byte(todo), &j); err != nil {
		t.Fatal(err)
	}
	w := open(t, j.DB)
	w.tenant, w.agent, w.of = j.Tenant, j.Agent, j.Skill
	s := newSite()
	s.ledger = w.pool
	s.fails.Store(j.Fails)
	c := &call{w: w, n: w.node(s), run: *j.Start.AgentRun, start: j.Start, approval: j.Approval, args: j.Args}
	c.prepared().approves()
	testkit.Eventually(t, "it ends", func() bool { return strings.Contains(c.row(), "ended") })
}
