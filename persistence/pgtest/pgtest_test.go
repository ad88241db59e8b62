package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"agentsvc/persistence/private"
	"agentsvc/schemas/testkit"
)

// asUser makes the test binary a test run of its own on another shared
// directory: it takes a database and waits to be killed or for its input to end.
const asUser = "SVC_TEST_PGTEST_USER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asUser); dir != "" {
		server, using, err := join(context.Background(), shared(dir))
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		defer using.Close()
		fmt.Println("url:", server.URL())
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestADatabaseIsMigratedAndOnesOwn(t *testing.T) {
	a, b := New(t), New(t)
	for _, db := range []*DB{a, b} {
		pool := db.System(t)
		if _, err := pool.Exec(t.Context(), "INSERT INTO tenants (id, name) VALUES ('00000000-0000-7000-8000-000000000001', 'one')"); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM tenants").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != 1 {
			t.Errorf("%d tenants", n)
		}
	}
	var n int
	if err := a.API(t).QueryRow(t.Context(), "SELECT count(*) FROM tenants").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("without a tenant the API role sees %d tenants", n)
	}
	var super bool
	if err := a.Admin(t).QueryRow(t.Context(), "SELECT rolsuper FROM pg_roles WHERE rolname = current_user").Scan(&super); err != nil || !super {
		t.Errorf("the administrator is no superuser: %v", err)
	}
}

func TestADatabaseGoesWithItsTest(t *testing.T) {
	var url string
	t.Run("one", func(t *testing.T) {
		db := New(t)
		url = db.URL
		db.System(t)
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		conn.Close(t.Context())
		t.Error("it is still there")
	}
}

func TestPrepareReadsQueries(t *testing.T) {
	Prepare(t, map[string]string{"one": "SELECT id FROM tenants WHERE id = $1"})
}

func TestAPrivateServerStopsStartsAndCrashes(t *testing.T) {
	c := Private(t, PrivateOptions{Fsync: true})
	pool := c.System(t)
	if _, err := pool.Exec(t.Context(), "INSERT INTO tenants (id, name) VALUES ('00000000-0000-7000-8000-000000000001', 'one')"); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(testing.TB){"stop": c.Stop, "crash": c.Crash} {
		end(t)
		if c.Pid() != 0 {
			t.Errorf("%s: it still runs", name)
		}
		if err := pool.Ping(t.Context()); err == nil {
			t.Errorf("%s: it still answers", name)
		}
		c.Start(t)
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM tenants").Scan(&n); err != nil || n != 1 {
			t.Errorf("%s: %d tenants, %v", name, n, err)
		}
	}
}

// elsewhere is a shared directory of its own.
func elsewhere(t *testing.T) shared {
	t.Helper()
	dir, err := os.MkdirTemp(memory(), "svc-pgtest-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return shared(dir)
}

type user struct {
	cmd  *exec.Cmd
	said chan string
	quit func()
}

func newUser(t *testing.T, s shared) *user {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asUser+"="+string(s))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u := &user{cmd: cmd, said: make(chan string, 1)}
	u.quit = func() { in.Close(); cmd.Wait() }
	go func() {
		buf := make([]byte, 4096)
		n, _ := out.Read(buf)
		u.said <- strings.TrimSpace(string(buf[:n]))
	}()
	return u
}

func TestTestProcessesShareAServerThatEndsAfterThem(t *testing.T) {
	s := elsewhere(t)
	users := []*user{newUser(t, s), newUser(t, s), newUser(t, s)}
	var first string
	for _, u := range users {
		said := <-u.said
		if !strings.HasPrefix(said, "url: ") || first != "" && said != first {
			t.Fatalf("%q, another said %q", said, first)
		}
		first = said
	}
	// One is killed, the others end: the server has no user left.
	users[0].cmd.Process.Kill()
	users[0].cmd.Wait()
	users[1].quit()
	users[2].quit()
	testkit.Within(t, idleTime+deadline, "the server ends after its users", func() bool {
		_, statErr := os.Stat(s.cluster())
		_, err := private.Connect(t.Context(), s.cluster())
		return err != nil && os.IsNotExist(statErr)
	})
	// The leftovers of the killed run do no harm.
	next := newUser(t, s)
	if said := <-next.said; !strings.HasPrefix(said, "url: ") {
		t.Fatal(said)
	}
	next.quit()
	// Nor is a killed daemon.
	endDaemons(t, s, syscall.SIGKILL)
	last := newUser(t, s)
	if said := <-last.said; !strings.HasPrefix(said, "url: ") {
		t.Fatal(said)
	}
	last.quit()
	endDaemons(t, s, syscall.SIGTERM)
}

// endDaemons ends the daemon of s before its idle time has passed.
func endDaemons(t *testing.T, s shared, how syscall.Signal) {
	t.Helper()
	pids := daemons(t, s)
	if len(pids) == 0 {
		t.Fatal("there is no daemon")
	}
	for _, pid := range pids {
		syscall.Kill(pid, how)
	}
	// Its server ends a moment later: a user in between would get a server that is about to
	// end.
	testkit.Within(t, deadline, "the daemon and its server end", func() bool {
		_, err := private.Connect(t.Context(), s.cluster())
		return err != nil && len(daemons(t, s)) == 0
	})
}

// daemons finds the daemons of s by their environment.
func daemons(t *testing.T, s shared) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !strings.Contains(string(env), asDaemon+"="+string(s)+"\x00") {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func BenchmarkNew(b *testing.B) {
	New(b)
	for b.Loop() {
		New(b)
	}
}
