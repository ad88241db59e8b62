package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/blob/blobtest"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/private"
	"agentsvc/schemas/id"
)

// inBucket are the settings of a node that keeps its files at a server, which it finds at addr.
func inBucket(addr string) []string {
	return []string{"SVC_FILES_URL=s3://" + blobtest.Bucket + "/svc?" + url.Values{"endpoint": {"http://" + addr}, "region": {blobtest.Region}}.Encode(),
		"AWS_ACCESS_KEY_ID=" + blobtest.KeyID, "AWS_SECRET_ACCESS_KEY=" + blobtest.Secret}
}

// kept returns what a server has of us: the keys of files, how many notes, and how many unfinished
// uploads.
func kept(t *testing.T, s *blobtest.Server) (keys []string, notes, unfinished int) {
	t.Helper()
	c, err := minio.New(s.Addr, &minio.Options{Creds: credentials.NewStaticV4(blobtest.KeyID, blobtest.Secret, ""), Region: blobtest.Region})
	if err != nil {
		t.Fatal(err)
	}
	for o := range c.ListObjectsIter(t.Context(), blobtest.Bucket, minio.ListObjectsOptions{Prefix: "svc/", Recursive: true}) {
		switch key := strings.TrimPrefix(o.Key, "svc/"); {
		case o.Err != nil:
			t.Fatal(o.Err)
		case strings.HasPrefix(key, ".tmp/"):
			notes++
		case key != ".id":
			keys = append(keys, key)
		}
	}
	for u := range c.ListIncompleteUploads(t.Context(), blobtest.Bucket, "svc/", true) {
		if u.Err != nil {
			t.Fatal(u.Err)
		}
		unfinished++
	}
	return keys, notes, unfinished
}

// longDead makes the processes that this node's data directory had before look dead for so long that their files go.
func (n *node) longDead(ctx context.Context) {
	n.t.Helper()
	server, err := private.Connect(ctx, n.dataDir())
	if err != nil {
		n.t.Fatal(err)
	}
	pool, err := pg.Open(ctx, server.URL(), pg.Options{Role: pg.System, MaxConns: 1})
	if err != nil {
		n.t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `UPDATE members SET dead_at = dead_at - interval '10 minutes'`); err != nil {
		n.t.Fatal(err)
	}
}

// noise is content that is different for each seed.
func noise(seed byte, size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// attach uploads a file, which must succeed, and returns its id.
func (c *caller) attach(t *testing.T, ctx context.Context, name string, content []byte) string {
	t.Helper()
	a, err := upload(ctx, c, name, content)
	if err != nil || a.status != http.StatusCreated {
		t.Fatalf("upload %s: %v %s", name, err, a)
	}
	return attached(t, a)
}

func attached(t *testing.T, a answer) string {
	t.Helper()
	var made struct{ ID string }
	if err := json.Unmarshal(a.body, &made); err != nil || made.ID == "" {
		t.Fatalf("%v: %s", err, a)
	}
	return made.ID
}

// holds reports unless the file has this content.
func (c *caller) holds(t *testing.T, ctx context.Context, file string, content []byte) {
	t.Helper()
	if a := c.ask(t, ctx, 200, "GET", "/v1/attachments/"+file+"/content", nil, nil); !bytes.Equal(a.body, content) {
		t.Errorf("%s has %d bytes, others than the %d that were uploaded", file, len(a.body), len(content))
	}
}

// Attachments in a bucket: they are their tenants' alone, the server may go and come, and no log
// has its secret.
func TestFilesInABucket(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ctx := within(t, 2*time.Minute)
	n := newNode(t, inBucket(server.Addr)...)
	n.start()
	a, b := n.tenant("a"), n.tenant("b")
	large := noise(1, 20<<20-1) // sent in parts
	files := map[string][]byte{a.attach(t, ctx, "large.bin", large): large, a.attach(t, ctx, "empty.txt", nil): {}}
	note := a.attach(t, ctx, "note.txt", []byte("a canary sings"))
	files[note] = []byte("a canary sings")
	for id, content := range files {
		a.holds(t, ctx, id, content)
		for _, path := range []string{"", "/content"} {
			b.ask(t, ctx, 404, "GET", "/v1/attachments/"+id+path, nil, nil)
		}
	}
	keys, notes, unfinished := kept(t, server)
	if len(keys) != len(files) || notes+unfinished != 0 || !strings.HasPrefix(keys[0], "attachments/"+a.Tenant+"/") {
		t.Errorf("the server has %v, %d notes, %d unfinished uploads", keys, notes, unfinished)
	}
	if _, err := os.Stat(filepath.Join(n.dataDir(), "blobs")); !os.IsNotExist(err) {
		t.Errorf("there is a directory of files: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(n.dataDir(), "uploads")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if out, _, code := n.run(nil, "", "doctor"); code != 0 || !strings.Contains(out, "the bucket files at http://"+server.Addr+", prefix svc") || strings.Contains(out, blobtest.Secret) {
		t.Errorf("doctor: %d %s", code, out)
	}

	server.Kill()
	for _, call := range []func() (answer, error){
		func() (answer, error) { return upload(ctx, a, "while.txt", []byte("x")) },
		func() (answer, error) { return a.do(ctx, "GET", "/v1/attachments/"+note+"/content", nil) },
	} {
		if got, err := call(); err != nil || got.status != 503 || got.code() != "UNAVAILABLE" || got.header.Get("Retry-After") == "" || bytes.Contains(got.body, []byte(server.Addr)) {
			t.Errorf("without the server: %v %s", err, got)
		}
	}
	if out, _, code := n.run(nil, "", "doctor"); code != 1 || !strings.Contains(out, "BAD  files") || strings.Contains(out, blobtest.Secret) {
		t.Errorf("doctor without the server: %d %s", code, out)
	}
	if status, _ := n.readiness(ctx); status != 200 {
		t.Errorf("without the server /readyz is %d", status)
	}
	agent := a.publish(t, "Reads", simulatedModel)
	thread := a.thread(t, ctx, agent)
	var posted struct {
		RunID string `json:"run_id"`
	}
	a.ask(t, ctx, 202, "POST", "/v1/threads/"+thread+"/messages", object{"content": "/echo", "attachment_ids": []string{note}}, &posted)
	other := a.thread(t, ctx, agent)
	a.poll(t, ctx, a.say(t, ctx, other, "/say there"), "succeeded") // other work goes on, and the turn with the file waits
	eventually(t, ctx, "the run that needs the file has begun", func() bool { return a.read(t, ctx, posted.RunID).Run.Status == "running" })
	server.Start()
	a.poll(t, ctx, posted.RunID, "succeeded")
	for id, content := range files {
		a.holds(t, ctx, id, content)
	}
	again := a.attach(t, ctx, "while.txt", []byte("x"))
	a.holds(t, ctx, again, []byte("x"))
	if log := n.logged(); strings.Contains(log, blobtest.Secret) || strings.Contains(log, url.QueryEscape(blobtest.Secret)) {
		t.Errorf("the secret is in the log: %s", log)
	}
	n.kill()
	n.refused(2, []string{"SVC_FILES_URL=s3://Not_A_Bucket"}, "SVC_FILES_URL", "not a name of a bucket")
	if _, stderr, code := n.run([]string{"SVC_FILES_URL=s3://key:" + blobtest.Secret + "@bucket"}, "", "serve"); code != 2 || !strings.Contains(stderr, "percent-encoded") || strings.Contains(stderr, blobtest.Secret) {
		t.Errorf("with a secret that is not encoded: %d %s", code, stderr)
	}
	n.refused(2, []string{"SVC_FILES_URL=gs://bucket"}, "SVC_FILES_URL", "the scheme must be s3 or file")
	n.refused(2, []string{"AWS_ACCESS_KEY_ID="}, "SVC_FILES_URL", "AWS_ACCESS_KEY_ID")
	n.refused(1, []string{"AWS_SECRET_ACCESS_KEY=wrong"}, "the secret access key does not belong to the access key id")
	server.Kill()
	n.refused(1, nil, "the store of files is not available", server.Addr, "connection refused")
}

// floodgate lets bytes through to a server, and after a number of them holds back what follows until
// it is closed. held is closed when it begins to hold.
type floodgate struct {
	net.Listener
	held chan struct{}
}

func newFloodgate(t *testing.T, to string, after int64) *floodgate {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &floodgate{ln, make(chan struct{})}
	over := make(chan struct{})
	t.Cleanup(func() { close(over); ln.Close() })
	var mu sync.Mutex
	left, closed := after, false
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go func() { _, _ = io.Copy(c, up); c.Close() }()
			go func() {
				defer up.Close()
				for buf := make([]byte, 32<<10); ; {
					n, err := c.Read(buf)
					mu.Lock()
					left -= int64(n)
					if left < 0 && !closed {
						closed = true
						close(g.held)
					}
					holds := closed
					mu.Unlock()
					if holds {
						<-over
						return
					}
					if _, failed := up.Write(buf[:n]); err != nil || failed != nil {
						return
					}
				}
			}()
		}
	}()
	return g
}

// The service is killed while an upload is half at the server. The next start removes what is
// there of it, and what is stored stays.
func TestKilledInTheMiddleOfAnUpload(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ctx := within(t, 2*time.Minute)
	g := newFloodgate(t, server.Addr, 18<<20)
	n := newNode(t, inBucket(g.Addr().String())...)
	n.start()
	c := n.tenant("killed")
	before := c.attach(t, ctx, "before.txt", []byte("before"))
	answered := make(chan error, 1)
	go func() {
		_, err := upload(ctx, c, "half.bin", noise(2, 20<<20-1))
		answered <- err
	}()
	select {
	case <-g.held:
	case <-ctx.Done():
		t.Fatal("the upload does not get that far")
	}
	n.kill()
	if err := <-answered; err == nil {
		t.Error("an upload that was cut is answered")
	}
	if keys, notes, unfinished := kept(t, server); len(keys) != 1 || notes != 1 || unfinished != 1 {
		t.Fatalf("%v, %d notes, %d unfinished uploads: the test shows nothing", keys, notes, unfinished)
	}
	n.start(inBucket(server.Addr)...)
	n.longDead(ctx)
	eventually(t, ctx, "what the dead process left is removed", func() bool {
		keys, notes, unfinished := kept(t, server)
		return len(keys) == 1 && notes == 0 && unfinished == 0
	})
	c.holds(t, ctx, before, []byte("before"))
}

// Kills at random under uploads: whatever was acknowledged is there, and nothing else is.
func TestKilledUnderUploads(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ctx := within(t, 4*time.Minute)
	n := newNode(t, inBucket(server.Addr)...)
	n.start()
	c := n.tenant("killed")
	var mu sync.Mutex
	files := map[string][]byte{} // acknowledged
	for round := range 4 {
		enough := make(chan struct{})
		var uploads sync.WaitGroup
		for i := range 4 {
			uploads.Go(func() {
				for j := 0; ; j++ {
					content := noise(byte(round*64+i*16+j), 1<<(10+(i*3+j)%14))
					if i == 0 {
						content = noise(byte(round), 17<<20)
					}
					a, err := upload(ctx, c, "x.bin", content)
					if err != nil {
						return
					}
					if a.status != http.StatusCreated {
						t.Errorf("upload: %s", a)
						return
					}
					mu.Lock()
					if files[attached(t, a)] = content; len(files) == 12*(round+1) {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		select {
		case <-enough:
		case <-ctx.Done():
			t.Fatal("uploads take too long")
		}
		n.kill()
		uploads.Wait()
		n.start()
	}
	for id, content := range files {
		c.holds(t, ctx, id, content)
	}
	n.longDead(ctx)
	eventually(t, ctx, "what the dead processes left is removed", func() bool {
		keys, notes, unfinished := kept(t, server)
		for _, key := range keys { // of the others the row may be committed, and the answer was cut
			if id := key[strings.LastIndex(key, "/")+1:]; files[id] == nil {
				if a, err := c.do(ctx, "GET", "/v1/attachments/"+id, nil); err != nil || a.status != 200 {
					return false
				}
			}
		}
		return len(keys) >= len(files) && notes == 0 && unfinished == 0
	})
}

// Nodes with different data directories and one bucket join each other and serve the same files.
// One with a directory of its own does not join.
func TestNodesShareABucket(t *testing.T) {
	server := blobtest.New(t)
	b := newBed(t, 3, time.Second, inBucket(server.Addr)...)
	ctx := within(t, 2*time.Minute)
	for _, m := range b.nodes {
		m.env = append(m.env, "SVC_DATA_DIR="+dataDir(t))
	}
	b.start()
	c := b.client(b.desk.tenant("shares"), b.book)
	content := noise(3, 1<<20)
	for _, from := range b.nodes {
		id := c.attach(t, from.on(ctx), "x.bin", content)
		for _, to := range b.nodes {
			c.holds(t, to.on(ctx), id, content)
		}
	}
	last := b.nodes[2]
	last.expect()
	last.kill()
	last.refused(1, []string{"SVC_FILES_URL="}, "uploads are kept in another directory or bucket", "SVC_FILES_URL")
	last.refused(1, []string{strings.Replace(inBucket(server.Addr)[0], "/svc?", "/other?", 1)}, "uploads are kept in another directory or bucket", "SVC_FILES_URL")
}

// svc dev --nodes 3 with a bucket.
func TestDevNodesWithABucket(t *testing.T) {
	server := blobtest.New(t)
	ctx := within(t, 2*time.Minute)
	addr := reserved(t)
	d := startDev(t, append(append(os.Environ(), "SVC_ADDR="+addr, "SVC_DATA_DIR="+dataDir(t)), inBucket(server.Addr)...), "--json", "--nodes", "3")
	var s sample
	if err := json.Unmarshal([]byte(d.until(t, ctx, "}")), &s); err != nil {
		t.Fatal(err)
	}
	defer d.stop(t)
	c := &caller{client.Client{Base: "http://" + addr, Key: s.APIKey, Tenant: s.TenantID, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}}
	for i := range 6 { // over the nodes in turn
		content := noise(byte(i), 1000)
		c.holds(t, ctx, c.attach(t, ctx, "x.bin", content), content)
	}
	keys, _, _ := kept(t, server)
	keys = slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, "attachments/") }) // the guides are documents
	if len(keys) != 6 {
		t.Errorf("the server has %v", keys)
	}
}

// A node with a database that names files does not start with an empty store: the place is not mounted, or another
// one is set. With the files it starts, and without them when the operator says that they are lost.
func TestAnEmptyStoreOfFilesIsRefused(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ctx := within(t, time.Minute)
	n := newNode(t, brief, "SVC_DATABASE_URL="+pgtest.New(t).URL)
	n.start()
	c := n.tenant("mounted")
	n.kill()
	blobs := filepath.Join(n.dataDir(), "blobs")
	empty := "SVC_FILES_URL=file://" + filepath.Join(dataDir(t), "early")
	n.start(empty) // the database names no file yet: any place will do
	n.kill()
	n.start()
	c.Base = n.base
	file := c.attach(t, ctx, "note.txt", []byte("kept"))
	n.kill()

	wrong := filepath.Join(dataDir(t), "wrong")
	if err := os.Rename(blobs, blobs+".away"); err != nil {
		t.Fatal(err)
	}
	const says = "the store of files is empty, and the database names files"
	if out, _, code := n.run(nil, "", "doctor"); code != 1 || !strings.Contains(out, "BAD  files that the database names") || !strings.Contains(out, says) {
		t.Errorf("doctor without the directory: %d %s", code, out)
	}
	if _, err := os.Stat(blobs); !os.IsNotExist(err) {
		t.Errorf("doctor made the directory: %v", err)
	}
	n.refused(1, nil, says, blobs, "svc files accept-loss")
	n.refused(1, nil, says) // the refused start has not made it a store
	// Neither has a move from it, which would look complete, and names no store.
	target := filepath.Join(dataDir(t), "target")
	if out, stderr, code := n.run(nil, "", "files", "move", "--to", "file://"+target); code != 1 || !strings.Contains(stderr, says) || !strings.Contains(stderr, blobs) {
		t.Errorf("move from an empty store: %d %s%s", code, out, stderr)
	}
	if _, err := os.Stat(target); !os.IsNotExist(err) {
		t.Errorf("the refused move made its target: %v", err)
	}
	n.refused(1, nil, says)
	n.refused(1, []string{"SVC_FILES_URL=file://" + target}, says)
	if out, stderr, code := n.run(nil, "", "files", "check"); code != 1 || !strings.Contains(stderr, says) {
		t.Errorf("check of an empty store: %d %s%s", code, out, stderr)
	}
	n.refused(1, []string{"SVC_FILES_URL=file://" + wrong}, says, wrong)
	n.refused(1, inBucket(server.Addr), says, server.Addr)
	if out, _, code := n.run(inBucket(server.Addr), "", "doctor"); code != 1 || !strings.Contains(out, "BAD  files that the database names") {
		t.Errorf("doctor with an empty bucket: %d %s", code, out)
	}
	nowhere := filepath.Join(dataDir(t), "nowhere")
	for _, args := range [][]string{{"doctor"}, {"files", "check"}} {
		n.run(append(inBucket(server.Addr), "SVC_DATA_DIR="+nowhere), "", args...)
		if _, err := os.Stat(nowhere); !os.IsNotExist(err) {
			t.Errorf("svc %v with a bucket made a directory: %v", args, err)
		}
	}

	// The files without the mark, as a copy by other means leaves them.
	if err := errors.Join(os.RemoveAll(blobs), os.Rename(blobs+".away", blobs), os.Remove(filepath.Join(blobs, ".id"))); err != nil {
		t.Fatal(err)
	}
	if out, _, code := n.run(nil, "", "doctor"); code != 0 {
		t.Errorf("doctor with the files: %d %s", code, out)
	}
	n.start()
	c.Base = n.base
	c.holds(t, ctx, file, []byte("kept"))
	n.kill()
	for args, want := range map[string]string{"check": "checked 1 file in the directory " + blobs, "accept-loss": "nothing to accept"} {
		if out, stderr, code := n.run(nil, "", "files", args); code != 0 || !strings.Contains(out, want) {
			t.Errorf("svc files %s with the files: %d %s%s", args, code, out, stderr)
		}
	}

	lost := []string{"SVC_FILES_URL=file://" + wrong}
	if out, stderr, code := n.run(lost, "", "files", "accept-loss"); code != 0 || !strings.Contains(out, wrong) {
		t.Errorf("accept-loss: %d %s%s", code, out, stderr)
	}
	if out, _, code := n.run(lost, "", "doctor"); code != 0 {
		t.Errorf("doctor after accept-loss: %d %s", code, out)
	}
	if out, stderr, code := n.run(lost, "", "files", "check"); code != 1 || !strings.Contains(out, "attachments/"+c.Tenant+"/"+file) || !strings.Contains(stderr, "1 file that the database names") {
		t.Errorf("check after accept-loss: %d %s%s", code, out, stderr)
	}
	n.start(lost...)
}

// Files move from a directory to a bucket while the service runs, and back: attachments, documents, what runs made,
// and screenshots.
func TestFilesMove(t *testing.T) {
	t.Parallel()
	server := blobtest.New(t)
	ctx := within(t, 2*time.Minute)
	db := pgtest.New(t)
	n := newNode(t, brief, "SVC_DATABASE_URL="+db.URL)
	n.start()
	c := n.tenant("moves")
	files := map[string][]byte{}
	add := func(seed byte, size int) {
		t.Helper()
		content := noise(seed, size)
		files[c.attach(t, ctx, fmt.Sprint(seed), content)] = content
	}
	for i := range 10 {
		add(byte(i), i*100_000)
	}
	// And a file that a run made.
	var posted struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/threads/"+c.thread(t, ctx, c.publish(t, "Moves", simulatedModel))+"/messages", object{"content": "/say # A report that moves", "deliverable": "html"}, &posted)
	c.poll(t, ctx, posted.RunID, "succeeded")
	var made struct{ Items []struct{ ID string } }
	c.ask(t, ctx, 200, "GET", "/v1/runs/"+posted.RunID+"/artifacts", nil, &made)
	if len(made.Items) != 1 {
		t.Fatalf("%d artifacts", len(made.Items))
	}
	artifact := "/v1/runs/" + posted.RunID + "/artifacts/" + made.Items[0].ID
	report := c.ask(t, ctx, 200, "GET", artifact, nil, nil).body
	reported := func() {
		t.Helper()
		if got := c.ask(t, ctx, 200, "GET", artifact, nil, nil); !bytes.Equal(got.body, report) {
			t.Errorf("the run's file is %s", got)
		}
	}
	// And a document, whose search results need no file, and a screenshot.
	handbook := noise(11, 300_000)
	copy(handbook, "Shoes may be returned within 30 days.")
	l := c.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Moves"})
	if a, err := putDocuments(ctx, c, l, map[string][]byte{"handbook.txt": handbook}); err != nil || a.status != 202 {
		t.Fatal(err, a)
	}
	document := "/v1/knowledge-bases/" + l + "/documents/" + c.documents(t, ctx, l)["handbook.txt"] + "/content"
	skill, skillRun := id.NewAnywhere().String(), id.NewAnywhere().String()
	for _, sql := range []string{
		"INSERT INTO browser_skills (tenant_id, id, slug, name, definition, policy) VALUES ($1, $2, 's', 's', '{}', '{}')",
		"INSERT INTO browser_skill_runs (tenant_id, skill_id, id, slug, revision, created_by, mode, status, key, args, state, created_at, finished_at) VALUES ($1, $2, '" + skillRun + "', 's', 1, 'x', 'dry_run', 'succeeded', 'k', '', '', now(), now())",
	} {
		if _, err := db.Admin(t).Exec(ctx, sql, c.Tenant, skill); err != nil {
			t.Fatal(err)
		}
	}
	shotKey, jpeg := "browser-skills/"+c.Tenant+"/"+skillRun+"/fill.jpg", noise(12, 50_000)
	shot := filepath.Join(n.dataDir(), "blobs", filepath.FromSlash(shotKey))
	if err := errors.Join(os.MkdirAll(filepath.Dir(shot), 0o700), os.WriteFile(shot, jpeg, 0o600)); err != nil {
		t.Fatal(err)
	}
	others := func() {
		t.Helper()
		reported()
		for path, want := range map[string][]byte{document: handbook, "/v1/browser-skills/artifacts/" + shotKey: jpeg} {
			if got := c.ask(t, ctx, 200, "GET", path, nil, nil); !bytes.Equal(got.body, want) {
				t.Errorf("%s has %d bytes, others than the %d that were stored", path, len(got.body), len(want))
			}
		}
	}
	others()
	bucket := inBucket(server.Addr)
	to := strings.TrimPrefix(bucket[0], "SVC_FILES_URL=")
	var out struct {
		Copied, Bytes, There int64
		Failed               []struct{ Key, Error string }
	}
	moves := func(code int, args ...string) string {
		t.Helper()
		stdout, stderr, got := n.run(bucket[1:], "", append([]string{"files", "move", "--json"}, args...)...)
		if got != code {
			t.Fatalf("svc files move %v: code %d, want %d\n%s%s", args, got, code, stdout, stderr)
		}
		if out.Failed = nil; code < 2 && stdout != "" {
			if err := json.Unmarshal([]byte(stdout), &out); err != nil {
				t.Fatalf("%v: %s", err, stdout)
			}
		}
		if strings.Contains(stdout+stderr, blobtest.Secret) {
			t.Errorf("the secret is printed: %s%s", stdout, stderr)
		}
		return stderr
	}
	if moves(0, "--to", to); out.Copied != 13 || out.Bytes != 4_500_000+int64(len(report)+len(handbook)+len(jpeg)) || out.There != 0 {
		t.Errorf("first: %+v", out)
	}
	entries, err := os.ReadDir(n.dataDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // the user of the command may be another one than the server's
		if e.Name() == "uploads" || strings.Contains(e.Name(), "move") {
			t.Errorf("the move left %s in the data directory", e.Name())
		}
	}
	add(10, 17<<20)
	if moves(0, "--to", to); out.Copied != 1 || out.There != 13 {
		t.Errorf("then: %+v", out)
	}
	for wrong, args := range map[string][]string{
		"required flag": {}, "the scheme must be": {"--to", "ftp://x"}, "--from: ": {"--from", "s3://", "--to", to},
		"is the store that the files are in": {"--to", "file://" + filepath.Join(n.dataDir(), "blobs")}, "unexpected": {"more", "--to", to},
		"overlaps the old store": {"--to", "file://" + filepath.Join(n.dataDir(), "blobs", "new")},
	} {
		if text := moves(2, args...); !strings.Contains(text, wrong) && wrong != "unexpected" {
			t.Errorf("%v: %s", args, text)
		}
	}
	if text := moves(1, "--to", strings.Replace(to, blobtest.Region, "us-east-1", 1)); !strings.Contains(text, "region=us-east-1") {
		t.Errorf("another region: %s", text)
	}
	if text := moves(1, "--from", "file:///nowhere/at/all", "--to", to); !strings.Contains(text, "no such file or directory") {
		t.Errorf("from nowhere: %s", text)
	}
	n.kill()
	n.start(bucket...)
	for id, content := range files {
		c.holds(t, ctx, id, content)
	}
	others()
	// A file that does not match its row is not moved on.
	damaged := slices.Collect(maps.Keys(files))[0]
	key := "attachments/" + c.Tenant + "/" + damaged
	if err := os.WriteFile(filepath.Join(n.dataDir(), "blobs", key), []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	var checked struct {
		Checked int
		Failed  []struct{ Key, Error string }
	}
	stdout, stderr, code := n.run([]string{"SVC_FILES_URL=file://" + filepath.Join(n.dataDir(), "blobs")}, "", "files", "check", "--json")
	if err := json.Unmarshal([]byte(stdout), &checked); err != nil || code != 1 || checked.Checked != 13 || len(checked.Failed) != 1 || checked.Failed[0].Key != key || !strings.Contains(checked.Failed[0].Error, "damaged") {
		t.Errorf("check of the old store: %d, %v, %s%s", code, err, stdout, stderr)
	}
	if stdout, stderr, code := n.run(bucket, "", "files", "check"); code != 0 || !strings.Contains(stdout, "checked 13 files in the bucket") {
		t.Errorf("check of the bucket: %d %s%s", code, stdout, stderr)
	}
	elsewhere := "file://" + filepath.Join(dataDir(t), "files")
	if moves(1, "--from", "file://"+filepath.Join(n.dataDir(), "blobs"), "--to", elsewhere); out.Copied != 13 || len(out.Failed) != 1 || out.Failed[0].Key != key {
		t.Errorf("a damaged file: %+v", out)
	}
	if moves(0, "--from", to, "--to", elsewhere); out.Copied != 1 || out.There != 13 {
		t.Errorf("and from the other store: %+v", out)
	}
	if moves(0, "--from", to, "--to", elsewhere, "--verify"); out.Copied != 0 || out.There != 14 {
		t.Errorf("verified: %+v", out)
	}
	n.kill()
	n.start("SVC_FILES_URL=" + elsewhere)
	for id, content := range files {
		c.holds(t, ctx, id, content)
	}
	others()
}
