//go:build failpoints

package journal

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// TestKilledAtEachPoint kills a process at every point of this package and looks
// what of its commit is there: all before the answer, and nothing before the flush, whose
// end is sent with the statements.
func TestKilledAtEachPoint(t *testing.T) {
	if os.Getenv("SVC_FAILPOINT") != "" {
		victim(t)
		return
	}
	want := map[string][]int{
		"journal.before_flush":     {0},
		"journal.after_statements": {0, 1},
		"journal.after_commit":     {1},
	}
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "journal.") {
			continue
		}
		rows, known := want[name]
		if !known {
			t.Fatalf("nobody says what %s leaves behind", name)
		}
		for _, work := range []string{"accepted", "new"} {
			t.Run(name+" "+work, func(t *testing.T) { killedAt(t, name, work, rows) })
		}
	}
}

// killedAt kills a process at the point of that name.
func killedAt(t *testing.T, name, work string, rows []int) {
	db := pgtest.New(t)
	x := worldIn(t, db, nil)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachPoint$")
	cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+name, "VICTIM_URL="+db.URL, "VICTIM_WORK="+work,
		"VICTIM_TENANT="+x.tenant.String(), "VICTIM_MEMBER="+x.member.String())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	testkit.Eventually(x.t, "the dead process's backends are gone", func() bool {
		return x.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'victim'`) == 0
	})
	if n := x.count(`SELECT count(*) FROM audit_log`); !slices.Contains(rows, n) {
		t.Errorf("%d rows are there, want one of %v", n, rows)
	}
}

// victim is the process that dies.
func victim(t *testing.T) {
	tenant, err := id.Parse(os.Getenv("VICTIM_TENANT"))
	if err != nil {
		t.Fatal(err)
	}
	member, err := id.Parse(os.Getenv("VICTIM_MEMBER"))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pg.Open(t.Context(), os.Getenv("VICTIM_URL"), pg.Options{Role: pg.System, Writer: true, AppName: "victim"})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	w := New(Config{Pool: pool, Member: id.MemberID{UUID: member}})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := &world{t: t, tenant: id.TenantID{UUID: tenant}}
	c := x.auditOnly(0)
	c.New = os.Getenv("VICTIM_WORK") == "new"
	t.Log(w.Do(context.Background(), c.commit()))
}
