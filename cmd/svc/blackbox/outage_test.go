package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/private"
)

// hammer sends every kind of new work, one try each, and records what was acknowledged, while the storage
// comes and goes.
type hammer struct {
	c             *caller
	agent, thread string

	mu       sync.Mutex // guards what follows
	acked    map[string]string
	accepted int // 2xx responses in all
	refused  int // 503 responses in all
	slowest  time.Duration
	wrong    []string
}

func newHammer(t *testing.T, ctx context.Context, c *caller, agent string) *hammer {
	t.Helper()
	return &hammer{c: c, agent: agent, thread: c.thread(t, ctx, agent), acked: map[string]string{}}
}

// run sends from several clients until stop is closed.
func (h *hammer) run(ctx context.Context, stop <-chan struct{}, clients int) {
	rows := []struct {
		path   string
		status int
		body   func(i int) any
		id     func(b []byte) string // the path of the created object
	}{
		{"/v1/threads/" + h.thread + "/messages", 202, func(i int) any { return object{"content": fmt.Sprint("/say ", i)} }, made("run_id", "/v1/runs/")},
		{"/v1/agents/" + h.agent + "/runs", 202, func(i int) any { return object{"input": fmt.Sprint("/say ", i)} }, made("run_id", "/v1/runs/")},
		{"/v1/threads", 200, func(int) any { return object{"agent_id": h.agent} }, made("id", "/v1/threads/")},
		{"/v1/api-keys", 201, func(i int) any { return object{"name": fmt.Sprint("key ", i)} }, made("id", "/v1/api-keys#")},
	}
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-ctx.Done():
					return
				default:
				}
				row := rows[(client+i)%len(rows)]
				begin := time.Now()
				key := []string{"Idempotency-Key", fmt.Sprintf("h%d-%d", client, i)}
				if i%3 == 0 {
					key = nil
				}
				a, err := h.c.do(ctx, "POST", row.path, row.body(client*1_000_000+i), key...)
				h.note(row.path, a, err, row.status, time.Since(begin), row.id)
			}
		})
	}
	wg.Wait()
}

func made(field, under string) func([]byte) string {
	return func(b []byte) string {
		var v map[string]any
		_ = json.Unmarshal(b, &v)
		id, _ := v[field].(string)
		return under + id
	}
}

func (h *hammer) note(path string, a answer, err error, status int, took time.Duration, id func([]byte) string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slowest = max(h.slowest, took)
	switch {
	case err != nil:
		h.wrong = append(h.wrong, fmt.Sprintf("POST %s: %v after %s", path, err, took))
	case a.status == status:
		h.accepted++
		h.acked[id(a.body)] = path
	case a.status == 503 && a.code() == "UNAVAILABLE" && a.header.Get("Retry-After") != "" && strings.HasPrefix(a.header.Get("Content-Type"), "application/problem+json"):
		h.refused++
	default:
		h.wrong = append(h.wrong, fmt.Sprintf("POST %s: %s, Retry-After %q", path, a, a.header.Get("Retry-After")))
	}
}

func (h *hammer) counts() (accepted, refused int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.accepted, h.refused
}

// check asserts that every acknowledged object exists and every run succeeds.
func (h *hammer) check(t *testing.T, ctx context.Context) {
	t.Helper()
	for i, w := range h.wrong {
		if i == 10 {
			t.Errorf("and %d more", len(h.wrong)-i)
			break
		}
		t.Error(w)
	}
	t.Logf("%d acknowledged, %d refused with 503, the slowest answer took %s", h.accepted, h.refused, h.slowest.Round(time.Millisecond))
	if h.slowest > 10*time.Second {
		t.Errorf("an answer took %s", h.slowest)
	}
	var keys struct{ Items []struct{ ID string } }
	h.c.ask(t, ctx, 200, "GET", "/v1/api-keys", nil, &keys)
	there := map[string]bool{}
	for _, k := range keys.Items {
		there["/v1/api-keys#"+k.ID] = true
	}
	for path := range h.acked {
		switch {
		case strings.Contains(path, "#"):
			if !there[path] {
				t.Errorf("%s was acknowledged and does not exist", path)
			}
		case strings.HasPrefix(path, "/v1/runs/"):
			h.c.poll(t, ctx, strings.TrimPrefix(path, "/v1/runs/"), "succeeded")
		default:
			if a, err := h.c.do(ctx, "GET", path, nil); err != nil || a.status != 200 {
				t.Errorf("%s was acknowledged and answers %v %s", path, err, a)
			}
		}
	}
}

// readiness returns the status of /readyz and its text.
func (n *process) readiness(ctx context.Context) (int, string) {
	req, err := http.NewRequestWithContext(ctx, "GET", n.base+"/readyz", nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// outage takes the storage away under load and gives it back: clients get only 503 and no false 2xx, streams
// can be resumed, and the node heals itself within ten seconds.
//
// during is called until it returns true: the outage has lasted long enough.
func outage(t *testing.T, n *node, down, up func(), during func(ctx context.Context, c *caller, refused int) bool) {
	t.Helper()
	ctx := within(t, 75*time.Second)
	c := n.tenant("outage")
	agent := c.publish(t, "Helper", simulatedModel)
	h := newHammer(t, ctx, c, c.publish(t, "Hammered", simulatedModel))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { h.run(ctx, stop, 8); close(stopped) }()
	type result struct {
		jobs []*job
		err  error
	}
	followed := make(chan result, 1)
	const messages = 6
	go func() {
		jobs, err := workload(ctx, c, agent, "outage", 8, messages, func(i, m int) string { return fmt.Sprintf("/delay 10ms\n/tokens %d", 40+10*m) })
		followed <- result{jobs, err}
	}()
	eventually(t, ctx, "load", func() bool { accepted, _ := h.counts(); return accepted > 100 })

	down()
	eventually(t, ctx, "readyz is 503", func() bool { status, _ := n.readiness(ctx); return status == 503 })
	_, before := h.counts()
	eventually(t, ctx, "posts are refused", func() bool { _, refused := h.counts(); return refused >= before+20 })
	eventually(t, ctx, "the outage has lasted", func() bool {
		_, refused := h.counts()
		return during(ctx, c, refused-before)
	})
	if status, text := n.readiness(ctx); status != 503 {
		t.Errorf("readyz answers %d %s", status, text)
	}

	up()
	back := time.Now()
	eventually(t, ctx, "readyz is 200", func() bool { status, _ := n.readiness(ctx); return status == 200 })
	accepted, _ := h.counts()
	eventually(t, ctx, "posts are accepted", func() bool { now, _ := h.counts(); return now > accepted+20 })
	if took := time.Since(back); took > 10*time.Second {
		t.Errorf("healed only after %s", took)
	} else {
		t.Logf("healed %s after the storage was back", took.Round(time.Millisecond))
	}
	close(stop)
	<-stopped
	got := <-followed
	if got.err != nil {
		t.Fatal(got.err)
	}
	for _, j := range got.jobs {
		checkStream(t, j)
	}
	checkStore(t, c, agent, got.jobs, messages)
	h.check(t, ctx)
	select {
	case <-n.ended():
		t.Error("the node has ended")
	default:
	}
}

// Postgres stops in order, or crashes; the lease outlives the outage or expires. This test and the next two have
// limits of time and load the machine: they are alone.
func TestPostgresGone(t *testing.T) {
	for _, row := range []struct {
		name  string
		lease string
		down  func(*pgtest.Cluster, testing.TB)
		says  string // of readyz, before Postgres is back
	}{
		{"stopped for a moment", "30s", (*pgtest.Cluster).Stop, ""},
		{"crashed for longer than the lease", "1s", (*pgtest.Cluster).Crash, "lease"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.Private(t, pgtest.PrivateOptions{Fsync: true})
			n := newNode(t, "SVC_DATABASE_URL="+cluster.URL, "SVC_CLUSTER_LEASE="+row.lease)
			n.start()
			outage(t, n, func() { row.down(cluster, t) }, func() { cluster.Start(t) }, func(ctx context.Context, c *caller, _ int) bool {
				a, err := c.do(ctx, "GET", "/v1/runs", nil)
				if err != nil || a.status != 503 || a.code() != "UNAVAILABLE" || a.header.Get("Retry-After") == "" {
					t.Errorf("a read answers %v %s", err, a)
				}
				_, text := n.readiness(ctx)
				return strings.Contains(text, row.says)
			})
		})
	}
}

// The disk of the data directory is full, then it has room again. If this machine permits to mount a small file
// system, a real one is filled; the database's own error is injected in any case.
func TestDiskFull(t *testing.T) {
	t.Run("a small file system", func(t *testing.T) {
		t.Parallel()
		dir := dataDir(t)
		if err := syscall.Mount("svc-test", dir, "tmpfs", 0, "size=224m,mode=0755"); err != nil {
			t.Logf("no file system can be mounted here (%v): only the injected error is tested", err)
			return
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		n := newNode(t, brief, "SVC_DATA_DIR="+dir) // its cleanup runs before the unmount
		n.start()
		ballast := filepath.Join(dir, "ballast")
		outage(t, n, func() { fill(t, ballast) }, func() {
			if err := os.Remove(ballast); err != nil {
				t.Error(err)
			}
		}, func(ctx context.Context, c *caller, refused int) bool {
			if a, err := upload(ctx, c, "note.txt", []byte("there is no room for this")); err != nil || a.status != 503 || a.code() != "UNAVAILABLE" {
				t.Errorf("an upload answers %v %s", err, a)
			}
			return refused > 500
		})
	})
	t.Run("the database says so", func(t *testing.T) {
		t.Parallel()
		dir := dataDir(t)
		n := newNode(t, brief, "SVC_DATA_DIR="+dir)
		n.start()
		server, err := private.Connect(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		rows, err := conn.Query(t.Context(), `SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'`)
		if err != nil {
			t.Fatal(err)
		}
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(tables) < 10 {
			t.Fatalf("%v, tables %v", err, tables)
		}
		exec := func(sql string) {
			t.Helper()
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		exec(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`)
		outage(t, n, func() {
			for _, table := range tables {
				exec(`CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON ` + table + ` FOR EACH STATEMENT EXECUTE FUNCTION full_disk()`)
			}
		}, func() {
			for _, table := range tables {
				exec(`DROP TRIGGER full_disk ON ` + table)
			}
		}, func(_ context.Context, _ *caller, refused int) bool { return refused > 200 })
	})
}

// fill uses all free space of a file system.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
}

// upload posts an attachment.
func upload(ctx context.Context, c *caller, name string, content []byte) (answer, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", name)
	if err != nil {
		return answer{}, err
	}
	if _, err := part.Write(content); err != nil {
		return answer{}, err
	}
	if err := w.Close(); err != nil {
		return answer{}, err
	}
	return c.do(ctx, "POST", "/v1/attachments", b.Bytes(), "Content-Type", w.FormDataContentType())
}

// The node's own Postgres is killed repeatedly: the node restarts it each time.
func TestPrivatePostgresKilled(t *testing.T) {
	ctx := within(t, 75*time.Second)
	dir := dataDir(t)
	n := newNode(t, brief, "SVC_DATA_DIR="+dir)
	n.start()
	c := n.tenant("killed")
	agent := c.publish(t, "Helper", simulatedModel)
	h := newHammer(t, ctx, c, c.publish(t, "Hammered", simulatedModel))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { h.run(ctx, stop, 8); close(stopped) }()
	type result struct {
		jobs []*job
		err  error
	}
	followed := make(chan result, 1)
	const messages = 6
	go func() {
		jobs, err := workload(ctx, c, agent, "killed", 8, messages, func(i, m int) string { return fmt.Sprintf("/delay 10ms\n/tokens %d", 40+10*m) })
		followed <- result{jobs, err}
	}()
	killed := 0
	for range 3 {
		accepted, _ := h.counts()
		eventually(t, ctx, "work is accepted", func() bool { now, _ := h.counts(); return now > accepted+30 })
		b, err := os.ReadFile(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(b), "\n")
		pid, err := strconv.Atoi(line)
		if err != nil || pid == killed {
			t.Fatalf("postmaster.pid says %q, %v", line, err)
		}
		_, refused := h.counts() // before the kill: the outage may be short
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		killed = pid
		eventually(t, ctx, "posts are refused", func() bool { _, now := h.counts(); return now > refused })
		accepted, _ = h.counts()
		eventually(t, ctx, "work is accepted again", func() bool { now, _ := h.counts(); return now > accepted+20 })
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("healed only after %s", took)
		} else {
			t.Logf("healed %s after the kill", took.Round(time.Millisecond))
		}
	}
	close(stop)
	<-stopped
	got := <-followed
	if got.err != nil {
		t.Fatal(got.err)
	}
	for _, j := range got.jobs {
		checkStream(t, j)
	}
	checkStore(t, c, agent, got.jobs, messages)
	h.check(t, ctx)
}
