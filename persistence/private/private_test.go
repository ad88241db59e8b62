package private

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/schemas/testkit"
)

// asOwner makes the test binary a process that owns the data directory it names
// and waits to be killed.
const asOwner = "SVC_TEST_PRIVATE_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asOwner); dir != "" {
		s, err := Open(context.Background(), Config{DataDir: dir, Log: zerolog.Nop(), Unsafe: true})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println("pid:", s.Pid())
		select {}
	}
	goleak.VerifyTestMain(m)
}

// dataDirectory is reachable for every user, which t.TempDir is not.
func dataDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "svc-private-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Unsafe = true
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.Stop(t, s.Stop) })
	return s
}

func exec1(t *testing.T, s *Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func query1(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var out string
	if err := conn.QueryRow(t.Context(), sql).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestARestartKeepsTheData(t *testing.T) {
	dir := dataDirectory(t)
	s := open(t, Config{DataDir: dir})
	exec1(t, s, "CREATE TABLE kept (v text); INSERT INTO kept VALUES ('still here')")
	testkit.Stop(t, s.Stop)
	if pids := serversOf(filepath.Join(dir, "postgres", "data")); len(pids) != 0 {
		t.Fatalf("after Stop these run: %v", pids)
	}
	s = open(t, Config{DataDir: dir})
	if got := query1(t, s, "SELECT v FROM kept"); got != "still here" {
		t.Fatalf("got %q", got)
	}
}

func TestTheServerIsConfiguredForItsWork(t *testing.T) {
	dir := dataDirectory(t)
	s, err := Open(t.Context(), Config{DataDir: dir, Settings: map[string]string{"max_connections": "33"}})
	if err != nil {
		t.Fatal(err)
	}
	defer testkit.Stop(t, s.Stop)
	for setting, want := range map[string]string{
		"listen_addresses": "", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"max_connections": "33", "TimeZone": "UTC", "server_encoding": "UTF8",
	} {
		if got := query1(t, s, "SHOW "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	if got := query1(t, s, "SELECT rolsuper || ' ' || rolbypassrls || ' ' || rolcreaterole FROM pg_roles WHERE rolname = current_user"); got != "false false true" {
		t.Errorf("the login's superuser, bypassrls, createrole: %s", got)
	}
	info, err := os.Stat(filepath.Join(dir, "postgres", "password"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the password file has mode %o", info.Mode().Perm())
	}
	cfg, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = "wrong"
	if conn, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		conn.Close(t.Context())
		t.Error("a wrong password was let in")
	}
	if os.Geteuid() == 0 {
		proc, err := os.Stat(fmt.Sprintf("/proc/%d", s.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if proc.Sys().(*syscall.Stat_t).Uid == 0 {
			t.Error("the server runs as root")
		}
	}
}

func TestASecondOpenFindsTheDirectoryInUse(t *testing.T) {
	dir := dataDirectory(t)
	first := open(t, Config{DataDir: dir})

	t.Run("without Wait it errs at once", func(t *testing.T) {
		if _, err := Open(t.Context(), Config{DataDir: dir}); !errors.Is(err, ErrInUse) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("with Share it connects, and its Stop does nothing", func(t *testing.T) {
		shared, err := Open(t.Context(), Config{DataDir: dir, Share: true})
		if err != nil {
			t.Fatal(err)
		}
		if shared.Owner() || shared.Pid() != 0 {
			t.Error("it believes that it owns the server")
		}
		testkit.Stop(t, shared.Stop)
		if got := query1(t, shared, "SELECT 'up'"); got != "up" {
			t.Fatal(got)
		}
	})
	t.Run("Connect connects", func(t *testing.T) {
		there, err := Connect(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if there.Owner() {
			t.Error("it believes that it owns the server")
		}
	})
	t.Run("Connect starts nothing", func(t *testing.T) {
		if _, err := Connect(t.Context(), dataDirectory(t)); !errors.Is(err, ErrNotRunning) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("with Wait it starts when the owner has gone", func(t *testing.T) {
		type result struct {
			s   *Server
			err error
		}
		got := make(chan result, 1)
		go func() {
			s, err := Open(t.Context(), Config{DataDir: dir, Wait: 10 * time.Second, Unsafe: true})
			got <- result{s, err}
		}()
		testkit.Stop(t, first.Stop)
		r := <-got
		if r.err != nil {
			t.Fatal(r.err)
		}
		if !r.s.Owner() {
			t.Error("it does not own the server")
		}
		testkit.Stop(t, r.s.Stop)
	})
}

func TestAKilledOwnerTakesItsServerAlong(t *testing.T) {
	dir := dataDirectory(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), asOwner+"="+dir)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid int
	if _, scanErr := fmt.Sscanf(line, "pid: %d", &pid); scanErr != nil || pid == 0 {
		owner.Process.Kill()
		t.Fatalf("the owner said %q (%v)", line, err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	testkit.Eventually(t, "the server is gone", func() bool {
		return len(serversOf(filepath.Join(dir, "postgres", "data"))) == 0
	})
	s := open(t, Config{DataDir: dir})
	if got := query1(t, s, "SELECT 'up'"); got != "up" {
		t.Fatal(got)
	}
}

func TestASurvivorIsReplacedNotAdopted(t *testing.T) {
	dir := dataDirectory(t)
	s := open(t, Config{DataDir: dir})
	exec1(t, s, "CREATE TABLE kept (v text); INSERT INTO kept VALUES ('still here')")
	c, bin := s.cluster, s.proc.bin
	testkit.Stop(t, s.Stop)

	survivor := c.command(context.Background(), bin.path("postgres"), "-D", c.data(),
		"-c", "listen_addresses=", "-c", "unix_socket_directories="+c.socket())
	if err := survivor.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- survivor.Wait() }()
	testkit.Eventually(t, "the survivor is up", func() bool {
		conn, err := pgx.Connect(t.Context(), s.URL())
		if err != nil {
			return false
		}
		conn.Close(t.Context())
		return true
	})

	s = open(t, Config{DataDir: dir})
	if err := <-gone; err != nil {
		t.Errorf("the survivor was not stopped in order: %v", err)
	}
	if s.Pid() == survivor.Process.Pid {
		t.Error("the survivor was adopted")
	}
	if got := query1(t, s, "SELECT v FROM kept"); got != "still here" {
		t.Fatal(got)
	}
}

func TestAStalePidFileOfAReusedProcessNumberIsNoObstacle(t *testing.T) {
	dir := dataDirectory(t)
	s := open(t, Config{DataDir: dir})
	c := s.cluster
	testkit.Stop(t, s.Stop)
	// This test's own process stands for a process that got the old process id.
	stale := fmt.Sprintf("%d\n%s\n1\n5432\n%s\n\n", os.Getpid(), c.data(), c.socket())
	if err := os.WriteFile(filepath.Join(c.data(), "postmaster.pid"), []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(c.socket(), ".s.PGSQL.5432.lock")
	if err := os.WriteFile(lock, []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, Config{DataDir: dir})
}

func TestAServerThatDiesIsStartedAgain(t *testing.T) {
	s := open(t, Config{DataDir: dataDirectory(t)})
	before := s.Pid()
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "another server answers", func() bool {
		conn, err := pgx.Connect(t.Context(), s.URL())
		if err != nil {
			return false
		}
		conn.Close(t.Context())
		return s.Pid() != before
	})
}

// A server that says that it starts is left to it, however long its recovery takes; one that says nothing is not.
func TestARecoveryMayTakeLong(t *testing.T) {
	const patience = 50 * time.Millisecond
	c := &cluster{home: t.TempDir(), uid: -1, gid: -1}
	s := &Server{cluster: c, proc: &process{cluster: c, running: &os.Process{Pid: 4711}, done: make(chan struct{})}}
	says := func(status string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(c.data(), 0o700), os.WriteFile(filepath.Join(c.data(), "postmaster.pid"), []byte("4711\n\n\n\n\n\n\n"+status+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	says("starting")
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	if err := s.awaitReady(ctx, zerolog.Nop(), patience); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it was given up while it recovered: %v", err)
	}
	says("stopping")
	if err := s.awaitReady(t.Context(), zerolog.Nop(), patience); err == nil || !strings.Contains(err.Error(), "not ready after") {
		t.Errorf("%v", err)
	}
}

// A copy of a data directory whose cluster lies outside names the cluster of the original.
func TestACopyDoesNotOpenTheOriginal(t *testing.T) {
	elsewhere, above := dataDirectory(t), dataDirectory(t)
	dir, twin := filepath.Join(above, "data"), filepath.Join(above, "twin")
	home, copied := filepath.Join(elsewhere, "home"), filepath.Join(elsewhere, "copied")
	names := func(dir, home string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(dir, 0o711), os.WriteFile(filepath.Join(dir, "postgres.location"), []byte(home+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	names(dir, home)
	names(twin, home)
	first := open(t, Config{DataDir: dir})
	exec1(t, first, "CREATE TABLE of (v text); INSERT INTO of VALUES ('both')")
	refused := func(when string) {
		t.Helper()
		for _, cfg := range []Config{{}, {Share: true}, {Share: true, Existing: true}} {
			cfg.DataDir = twin
			if s, err := Open(t.Context(), cfg); err == nil {
				t.Fatalf("%s: the copy opened %s", when, s.cluster.home)
			} else {
				wantWords(t, err, "postgres.location of "+twin, home+",", "belongs to the data directory "+dir, "write the path of its copy into the file")
			}
		}
	}
	before := first.Pid()
	refused("while the original runs")
	if got := query1(t, first, "SELECT v FROM of"); got != "both" || first.Pid() != before {
		t.Fatal("the original was stopped")
	}
	testkit.Stop(t, first.Stop)
	refused("while the original does not run")

	if out, err := exec.Command("cp", "-a", home, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names(twin, copied)
	second := open(t, Config{DataDir: twin})
	exec1(t, second, "UPDATE of SET v = 'the copy'")
	first = open(t, Config{DataDir: dir})
	if got := query1(t, first, "SELECT v FROM of"); got != "both" {
		t.Fatalf("the original holds %q", got)
	}
	testkit.Stop(t, first.Stop)
	testkit.Stop(t, second.Stop)

	moved := filepath.Join(above, "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if got := query1(t, open(t, Config{DataDir: moved}), "SELECT v FROM of"); got != "both" {
		t.Fatalf("the data directory that was moved holds %q", got)
	}
}

// A cluster of a version that recorded no owner: while the original runs it is not stopped by a copy.
func TestACopyDoesNotStopTheOriginal(t *testing.T) {
	dir, twin := dataDirectory(t), dataDirectory(t)
	first := open(t, Config{DataDir: dir})
	home := filepath.Join(dir, "postgres")
	if err := errors.Join(os.Remove(filepath.Join(home, "owner")), os.WriteFile(filepath.Join(twin, "postgres.location"), []byte(home+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, share := range []bool{false, true} {
		_, err := Open(t.Context(), Config{DataDir: twin, Share: share})
		if wantWords(t, err, "postgres.location", dir); !errors.Is(err, ErrInUse) {
			t.Errorf("got %v", err)
		}
	}
	before := first.Pid()
	if got := query1(t, first, "SELECT 'up'"); got != "up" || first.Pid() != before {
		t.Fatal("the original was stopped")
	}
}

// A link of the cluster's files to a file system that is not mounted.
func TestAClusterThatIsNotMountedIsNotMadeAnew(t *testing.T) {
	dir := dataDirectory(t)
	testkit.Stop(t, open(t, Config{DataDir: dir}).Stop)
	data, moved := filepath.Join(dir, "postgres", "data"), filepath.Join(dir, "postgres", "moved")
	if err := errors.Join(os.Rename(data, moved+".off"), os.Symlink(moved, data)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{DataDir: dir, Unsafe: true})
	wantWords(t, err, "data", "No such file")
	if err := os.Rename(moved+".off", moved); err != nil {
		t.Fatal(err)
	}
	if got := query1(t, open(t, Config{DataDir: dir}), "SELECT 'up'"); got != "up" {
		t.Fatal(got)
	}
}

func TestAHalfMadeClusterHeals(t *testing.T) {
	dir := dataDirectory(t)
	home := filepath.Join(dir, "postgres")
	unfinished := filepath.Join(home, "data.new")
	if err := os.MkdirAll(unfinished, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(unfinished, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{DataDir: dir})
	if got := query1(t, s, "SELECT 'up'"); got != "up" {
		t.Fatal(got)
	}
	if _, err := os.Stat(unfinished); !os.IsNotExist(err) {
		t.Errorf("%s is still there", unfinished)
	}
}

func TestMissingBinariesAreNamedByPackage(t *testing.T) {
	offline := func(context.Context, int, string) error { return errors.New("no network") }
	nothing := func() []string { return nil }

	t.Run("a new cluster", func(t *testing.T) {
		_, err := Open(t.Context(), Config{DataDir: dataDirectory(t), search: nothing, fetch: offline})
		wantWords(t, err, "apt-get install postgresql", "brew install postgresql", "SVC_DATABASE_URL", "no network")
	})
	t.Run("a cluster of a version that is not here", func(t *testing.T) {
		dir := dataDirectory(t)
		data := filepath.Join(dir, "postgres", "data")
		if err := os.MkdirAll(data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("12\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Config{DataDir: dir, fetch: offline})
		wantWords(t, err, "postgresql-12", "brew install postgresql@12", "no network")
	})
	t.Run("the error gives the directory back", func(t *testing.T) {
		dir := dataDirectory(t)
		if _, err := Open(t.Context(), Config{DataDir: dir, search: nothing, fetch: offline}); err == nil {
			t.Fatal("no error")
		}
		open(t, Config{DataDir: dir})
	})
}

func TestFetchedBinariesAreUsedWhereNoneAreInstalled(t *testing.T) {
	found, ok := pick(t.Context(), installed(), 0)
	if !ok {
		t.Fatal("the tests need an installed PostgreSQL")
	}
	fetched := 0
	fetch := func(_ context.Context, _ int, into string) error {
		fetched++
		if err := os.MkdirAll(into, 0o755); err != nil {
			return err
		}
		return os.Symlink(found.dir, filepath.Join(into, "bin"))
	}
	dir := dataDirectory(t)
	for range 2 {
		testkit.Stop(t, open(t, Config{DataDir: dir, search: func() []string { return nil }, fetch: fetch}).Stop)
	}
	if fetched != 1 {
		t.Errorf("fetched %d times, want once", fetched)
	}
}

func TestALongPathGetsAShortSocketDirectory(t *testing.T) {
	dir := filepath.Join(dataDirectory(t), strings.Repeat("long/", 20))
	s := open(t, Config{DataDir: dir})
	if got := query1(t, s, "SELECT 'up'"); got != "up" {
		t.Fatal(got)
	}
	short := s.cluster.socket()
	if len(short) > socketMax {
		t.Errorf("%s has %d bytes", short, len(short))
	}
	testkit.Stop(t, s.Stop)
	if _, err := os.Stat(short); !os.IsNotExist(err) {
		t.Errorf("%s is still there after Stop", short)
	}
}

func TestADirectoryThatTheServersUserCannotReachIsLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		// Without root the server runs as ourselves: there is nothing to leave.
		c, err := locate(Config{DataDir: "/d"})
		if err != nil || c.uid != -1 {
			t.Fatalf("uid %d, %v", c.uid, err)
		}
		return
	}
	closed := dataDirectory(t)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	elsewhere := dataDirectory(t)
	dir := filepath.Join(closed, "data")
	s := open(t, Config{DataDir: dir, fallback: elsewhere})
	exec1(t, s, "CREATE TABLE kept (v text); INSERT INTO kept VALUES ('still here')")
	testkit.Stop(t, s.Stop)
	named, err := os.ReadFile(filepath.Join(dir, "postgres.location"))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(strings.TrimSpace(string(named))) != elsewhere {
		t.Errorf("the file names %s", named)
	}
	s = open(t, Config{DataDir: dir, fallback: elsewhere})
	if got := query1(t, s, "SELECT v FROM kept"); got != "still here" {
		t.Fatal(got)
	}
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}
