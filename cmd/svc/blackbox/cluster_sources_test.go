//go:build storm

package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/transport/connector/connectortest"
)

// The laws of sources under kills.
const (
	lawSourceOnce    = "each document of a source is ready once, with each of its chunks once"
	lawSourceWhole   = "a source's documents are what the vendor has, in the last version"
	lawSourceGone    = "a deleted source leaves no document, no chunk and no result"
	lawSourceSecret  = "a search finds nothing that an ACL forbids"
	lawSourceVersion = "one search sees one version of a document"
)

// rule notes a broken law.
type rule func(law, format string, args ...any)

// vendor is a place from which documents come.
type vendor struct {
	id      string // of its source
	name    string // begins the names of its documents
	put     func(key, text string)
	remove  func(key string)
	crates  []*crate
	deleted atomic.Bool // the deletion of the source was acknowledged
}

// crate is one document at a vendor. One goroutine has it.
type crate struct {
	of      *vendor
	name    string
	canary  bool // its ACL is for the group board
	flips   bool // its ACL changes all the time
	hidden  bool // it is for the board now, as was acknowledged
	there   bool
	version int
}

func (x *crate) key() string { return x.name + ".md" }

// ships puts another version at the vendor.
func (x *crate) ships() {
	x.version++
	word := "plain"
	if x.canary {
		word = "secretcanary"
	}
	x.of.put(x.key(), string(pages(x.name, x.version, word)))
	x.there = true
}

// depot is a base that is filled by sources only.
type depot struct {
	*shelf
	bed     *bed
	vendors []*vendor
	doomed  *vendor
	lee     string // an end user who is in no group
	boss    string // one of the board
	kept    int64  // searches that a canary was looked for in
}

// seek searches as an end user, or without one.
func (d *depot) seek(ctx context.Context, as, words string) (hits []found, ok bool) {
	q := object{"query": words, "top_k": 50}
	if as != "" {
		q["end_user_id"] = as
	}
	body, _ := json.Marshal(q)
	a, err := d.c.do(ctx, "POST", "/v1/knowledge-bases/"+d.base+"/search", body)
	var list struct{ Items []found }
	if err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &list) != nil {
		return nil, false
	}
	d.searches.Add(1)
	return list.Items, true
}

// looks holds the laws of what searches find against one document.
func (d *depot) looks(ctx context.Context, x *crate, broken rule) {
	for _, as := range []string{"", d.lee} {
		gone := x.of.deleted.Load()
		hits, ok := d.seek(ctx, as, x.name)
		if !ok {
			continue
		}
		versions := map[string]bool{}
		for _, h := range hits {
			if !strings.Contains(h.Text, "document "+x.name+" ") {
				continue
			}
			if gone {
				broken(lawSourceGone, "a search finds %s", x.name)
			}
			if x.hidden {
				broken(lawSourceSecret, "end user %q finds %s", as, x.name)
			}
			for _, part := range strings.Split(h.Text, "which is version ")[1:] {
				versions[strings.Fields(part)[0]] = true
			}
		}
		if len(versions) > 1 {
			broken(lawSourceVersion, "one search finds %v of %s", slices.Sorted(maps.Keys(versions)), x.name)
		}
	}
}

// watches looks for canaries until stop is closed.
func (d *depot) watches(ctx context.Context, stop <-chan struct{}, broken rule) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		if hits, ok := d.seek(ctx, []string{"", d.lee}[i%2], "secretcanary plain"); ok {
			atomic.AddInt64(&d.kept, 1)
			for _, h := range hits {
				if strings.Contains(h.Text, "secretcanary") {
					broken(lawSourceSecret, "a search finds %.60q", h.Text)
				}
			}
		}
	}
}

// allow sets the ACL of a document, and returns once that is acknowledged.
func (d *depot) allow(t *testing.T, ctx context.Context, document string, acl ...object) {
	t.Helper()
	body, _ := json.Marshal(object{"items": append([]object{}, acl...)})
	eventually(t, ctx, "an ACL is set", func() bool {
		a, err := d.c.do(ctx, "PUT", "/v1/knowledge-bases/"+d.base+"/documents/"+document+"/acls", body)
		return err == nil && a.status == http.StatusOK
	})
}

var board = object{"principal": "group", "name": "board"}

// lives is the story of one document at its vendor. document is its id; it keeps it unless it goes.
func (d *depot) lives(t *testing.T, ctx context.Context, x *crate, document string, stop <-chan struct{}, broken rule) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		switch {
		case x.flips:
			x.ships()
			if x.hidden {
				x.hidden = false
				d.allow(t, ctx, document)
			} else {
				d.allow(t, ctx, document, board)
				x.hidden = true
			}
		case !x.canary && i%4 == 3 && x.there:
			x.of.remove(x.key())
			x.there = false
		default:
			x.ships()
		}
		for range 3 {
			d.looks(ctx, x, broken)
			pauseFor(ctx, rand.N(100*time.Millisecond))
		}
	}
}

// syncs asks for syncs of a source all the time.
func (d *depot) syncs(ctx context.Context, v *vendor, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if !v.deleted.Load() {
			d.c.do(ctx, "POST", "/v1/knowledge-bases/"+d.base+"/connectors/"+v.id+"/sync", nil) //nolint:errcheck // the next one
		}
		pauseFor(ctx, rand.N(200*time.Millisecond))
	}
}

// synced waits until a sync that begins now has ended well.
func (d *depot) synced(t *testing.T, ctx context.Context, v *vendor) {
	t.Helper()
	path := "/v1/knowledge-bases/" + d.base + "/connectors/" + v.id
	var s struct {
		Status string
		Last   *time.Time `json:"last_synced_at"`
		Error  *string    `json:"last_error"`
	}
	reads := func() bool {
		a, err := d.c.do(ctx, "GET", path, nil)
		return err == nil && a.status == http.StatusOK && a.decode(&s) == nil
	}
	eventually(t, ctx, "no sync is under way", func() bool { return reads() && s.Status != "queued" && s.Status != "syncing" })
	var before time.Time
	if s.Last != nil {
		before = *s.Last
	}
	eventually(t, ctx, "source "+v.name+" is synced", func() bool {
		if !reads() || s.Last != nil && s.Last.After(before) && s.Status == "ok" {
			return s.Status == "ok"
		}
		if s.Status != "queued" && s.Status != "syncing" {
			d.c.do(ctx, "POST", path+"/sync", nil) //nolint:errcheck // the next one
		}
		return false
	})
}

// indexed waits until no document of the base has work.
func (d *depot) indexed(t *testing.T, ctx context.Context) {
	t.Helper()
	eventually(t, ctx, "all documents are indexed", func() bool { return d.text(t, ctx, "SELECT count(*)::text FROM kb_documents WHERE owes") == "0" })
}

func (d *depot) text(t *testing.T, ctx context.Context, sql string, args ...any) (out string) {
	t.Helper()
	if err := d.bed.admin.QueryRow(ctx, sql, args...).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// opens makes a base with a bucket and a drive that stay, and a bucket whose source will be deleted. Nothing secret
// is at a vendor before its ACL is set.
func opens(t *testing.T, ctx context.Context, b *bed, graph *connectortest.Graph) *depot {
	t.Helper()
	c := b.client(b.desk.tenant("depot"), b.book)
	d := &depot{bed: b}
	d.shelf = &shelf{c: c, base: c.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Depot", "chunking": object{"max_tokens": 60, "overlap_tokens": 0}})}
	d.lee, d.boss = c.endUser(t, ctx, "lee"), c.endUser(t, ctx, "boss")
	c.ask(t, ctx, 200, "PATCH", "/v1/end-users/"+d.boss, object{"attributes": object{"groups": []string{"board"}}}, nil)
	c.ask(t, ctx, 200, "PATCH", "/v1/end-users/"+d.lee, object{"attributes": object{"groups": []string{"staff"}}}, nil)
	kept, doomed := connectortest.NewS3(t), connectortest.NewS3(t)
	kept.PerPage, doomed.PerPage, graph.PerPage = 3, 3, 100
	bucket := func(name string, s *connectortest.S3) *vendor {
		v := &vendor{name: name, put: s.Put, remove: s.Delete}
		v.id = c.makes(t, ctx, "/v1/knowledge-bases/"+d.base+"/connectors", object{"kind": "object_store", "name": name, "config": object{"endpoint": s.URL, "region": "eu-1", "bucket": "docs"},
			"credentials": object{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret}})
		return v
	}
	drive := &vendor{name: "drive", put: func(key, text string) { graph.Put(key, key, text) }, remove: func(key string) { graph.Delete(key, false) }}
	drive.id = c.makes(t, ctx, "/v1/knowledge-bases/"+d.base+"/connectors", object{"kind": "office_drive", "name": "drive", "config": object{"drive_id": "drive-1"}, "credentials": object{"access_token": connectortest.Token}})
	d.doomed = bucket("doomed", doomed)
	d.vendors = []*vendor{bucket("bucket", kept), drive, d.doomed}
	for _, v := range d.vendors {
		for i := range 5 {
			x := &crate{of: v, name: fmt.Sprintf("%s%d", v.name, i), canary: i == 0, flips: i == 1, there: true}
			v.crates = append(v.crates, x)
			v.put(x.key(), "empty")
		}
		d.synced(t, ctx, v)
	}
	return d
}

// ids returns the documents of the base by name.
func (d *depot) ids(t *testing.T, ctx context.Context) map[string]string {
	return d.c.documents(t, ctx, d.base)
}

// hides sets the ACLs of the canaries, and ships the first version of everything.
func (d *depot) hides(t *testing.T, ctx context.Context) {
	t.Helper()
	ids := d.ids(t, ctx)
	for _, v := range d.vendors {
		for _, x := range v.crates {
			if x.canary {
				d.allow(t, ctx, ids[x.key()], board)
				x.hidden = true
			}
			x.ships()
		}
	}
}

// drops deletes the doomed source, whatever dies meanwhile.
func (d *depot) drops(t *testing.T, ctx context.Context) {
	t.Helper()
	eventually(t, ctx, "the source is deleted", func() bool {
		a, err := d.c.do(ctx, "DELETE", "/v1/knowledge-bases/"+d.base+"/connectors/"+d.doomed.id, nil)
		return err == nil && (a.status == http.StatusNoContent || a.status == http.StatusNotFound)
	})
	d.doomed.deleted.Store(true)
}

// judge holds all laws against the depot at rest.
func (d *depot) judge(t *testing.T, ctx context.Context, broken rule) {
	t.Helper()
	for _, v := range d.vendors {
		for _, x := range v.crates {
			d.looks(ctx, x, broken)
		}
	}
	for _, as := range []string{"", d.lee} {
		if hits, ok := d.seek(ctx, as, "secretcanary"); !ok || len(hits) > 0 {
			broken(lawSourceSecret, "end user %q finds %d canaries", as, len(hits))
		}
	}
	seen, _ := d.seek(ctx, d.boss, "secretcanary")
	for _, v := range d.vendors {
		var want []string
		for _, x := range v.crates {
			if x.there && v != d.doomed {
				want = append(want, x.key())
			}
		}
		if got := d.text(t, ctx, "SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL", v.id); got != strings.Join(want, " ") {
			law := lawSourceWhole
			if v == d.doomed {
				law = lawSourceGone
			}
			broken(law, "source %s has %q, its vendor %q", v.name, got, want)
		}
		for _, x := range v.crates {
			if !x.there || v == d.doomed {
				continue
			}
			hits, _ := d.seek(ctx, d.boss, x.name)
			if len(hits) == 0 || !strings.Contains(hits[0].Text, fmt.Sprintf("document %s ", x.name)) || !strings.Contains(hits[0].Text, fmt.Sprintf("version v%d ", x.version)) {
				broken(lawSourceWhole, "%s is not found in its last version v%d", x.name, x.version)
			}
			if x.canary && !slices.ContainsFunc(seen, func(h found) bool { return strings.Contains(h.Text, x.name) }) {
				broken(lawSourceWhole, "the board does not find canary %s", x.name)
			}
		}
	}
	if got := d.text(t, ctx, "SELECT count(*)::text FROM kb_chunks c JOIN kb_documents x ON x.tenant_id = c.tenant_id AND x.id = c.document_id WHERE x.source_id = $1", d.doomed.id); got != "0" {
		broken(lawSourceGone, "%s chunks are left", got)
	}
	if got := d.text(t, ctx, `SELECT coalesce(string_agg(d.name || ' ' || d.status, ', '), '') FROM kb_documents d LEFT JOIN LATERAL (
			SELECT count(*) AS n, coalesce(max(position) + 1, 0) AS last, count(DISTINCT generation) AS generations FROM kb_chunks c WHERE c.tenant_id = d.tenant_id AND c.document_id = d.id) c ON true
		WHERE d.deleted_at IS NULL AND (d.status <> 'ready' OR d.owes OR d.chunks = 0 OR d.chunks <> c.n OR d.chunks <> c.last OR c.generations <> 1)`); got != "" {
		broken(lawSourceOnce, "%s", got)
	}
}

// TestClusterSources kills nodes at random while two buckets and a drive are synced whose files change all the time,
// and while one of the sources is deleted. Two people search all the time who may not see the canaries.
func TestClusterSources(t *testing.T) {
	graph := connectortest.NewGraph(t)
	b := newBed(t, 3, time.Second, "SVC_OFFICE_DRIVE_URL="+graph.URL+"/v1.0")
	b.start()
	ctx := within(t, 5*time.Minute)
	d := opens(t, ctx, b, graph)
	d.hides(t, ctx)
	broken := func(law, format string, args ...any) { t.Errorf(law+": "+format, args...) }
	ids := d.ids(t, ctx)
	stop := make(chan struct{})
	var owners sync.WaitGroup
	for range 2 {
		owners.Go(func() { d.watches(ctx, stop, broken) })
	}
	for _, v := range d.vendors {
		owners.Go(func() { d.syncs(ctx, v, stop) })
		for _, x := range v.crates {
			if v == d.doomed { // its documents may be deleted at any moment: it is changed by one goroutine, below
				continue
			}
			owners.Go(func() { d.lives(t, ctx, x, ids[x.key()], stop, broken) })
		}
	}
	owners.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, x := range d.doomed.crates {
				if !x.flips {
					x.ships()
				}
				d.looks(ctx, x, broken)
			}
		}
	})
	const kills = 6
	for i := range kills {
		pauseFor(ctx, 500*time.Millisecond+rand.N(time.Second))
		m := b.nodes[i%len(b.nodes)]
		m.kill()
		if i == kills/2 {
			d.drops(t, ctx)
		}
		pauseFor(ctx, rand.N(1500*time.Millisecond))
		m.back(ctx)
	}
	close(stop)
	owners.Wait()
	for _, v := range d.vendors {
		if v == d.doomed {
			continue
		}
		for _, x := range v.crates {
			if !x.there {
				continue
			}
			x.ships()
		}
		d.synced(t, ctx, v)
	}
	d.indexed(t, ctx)
	kept := d.kept
	d.judge(t, ctx, broken)
	versions := 0
	for _, v := range d.vendors {
		for _, x := range v.crates {
			versions += x.version
		}
	}
	if d.searches.Load() < 100 || kept < 30 || versions < 50 {
		t.Errorf("%d searches, %d for canaries, %d versions: the test is void", d.searches.Load(), kept, versions)
	}
	t.Logf("%d kills, %d versions of %d files, %d searches, %d of them for canaries", kills, versions, 15, d.searches.Load(), kept)
}

// TestClusterSourcesDefects plants a fault for each law into a depot at rest, which the judge finds.
func TestClusterSourcesDefects(t *testing.T) {
	graph := connectortest.NewGraph(t)
	b := newBed(t, 1, time.Second, "SVC_OFFICE_DRIVE_URL="+graph.URL+"/v1.0")
	b.start()
	ctx := within(t, 3*time.Minute)
	d := opens(t, ctx, b, graph)
	d.hides(t, ctx)
	for _, v := range d.vendors {
		d.synced(t, ctx, v)
	}
	d.drops(t, ctx)
	d.indexed(t, ctx)
	eventually(t, ctx, "nothing of the deleted source is left", func() bool {
		return d.text(t, ctx, "SELECT count(*)::text FROM kb_chunks c JOIN kb_documents x ON x.tenant_id = c.tenant_id AND x.id = c.document_id WHERE x.source_id = $1", d.doomed.id) == "0"
	})
	judged := func() map[string]bool {
		laws := map[string]bool{}
		d.judge(t, ctx, func(law, format string, args ...any) {
			if !laws[law] {
				t.Logf(law+": "+format, args...)
			}
			laws[law] = true
		})
		return laws
	}
	if laws := judged(); len(laws) > 0 {
		t.Fatalf("without a fault: %v", laws)
	}
	one := "(SELECT id FROM kb_documents WHERE name = 'bucket2.md' AND deleted_at IS NULL)"
	for _, row := range []struct{ name, law, do, undo string }{
		{"an ACL is forgotten", lawSourceSecret, "UPDATE kb_documents SET acl = '{}' WHERE name = 'bucket0.md'", "UPDATE kb_documents SET acl = '{group:board}' WHERE name = 'bucket0.md'"},
		{"an ACL names another group", lawSourceSecret, "UPDATE kb_documents SET acl = '{group:staff}' WHERE name = 'drive0.md'", "UPDATE kb_documents SET acl = '{group:board}' WHERE name = 'drive0.md'"},
		{"a chunk is doubled", lawSourceOnce, "INSERT INTO kb_chunks SELECT tenant_id, document_id, generation, position + 1000, base_id, gen_random_uuid(), text, heading, page, overlap, tokens, length, terms, lexemes, vector FROM kb_chunks WHERE position = 0 AND document_id = " + one,
			"DELETE FROM kb_chunks WHERE position = 1000"},
		{"an index is never ready", lawSourceOnce, "UPDATE kb_documents SET status = 'processing' WHERE name = 'drive3.md'", "UPDATE kb_documents SET status = 'ready' WHERE name = 'drive3.md'"},
		{"a document is lost", lawSourceWhole, "UPDATE kb_documents SET deleted_at = now() WHERE id = " + one, "UPDATE kb_documents SET deleted_at = NULL WHERE name = 'bucket2.md'"},
		{"an older version is shown", lawSourceWhole, "UPDATE kb_chunks SET text = replace(text, 'version v1 ', 'version v0 ') WHERE document_id = " + one, "UPDATE kb_chunks SET text = replace(text, 'version v0 ', 'version v1 ') WHERE document_id = " + one},
		{"two versions are shown", lawSourceVersion, "UPDATE kb_chunks SET text = replace(text, 'version v1 ', 'version v0 ') WHERE position % 2 = 0 AND document_id = " + one, "UPDATE kb_chunks SET text = replace(text, 'version v0 ', 'version v1 ') WHERE document_id = " + one},
		{"a document of the deleted source is there", lawSourceGone, "UPDATE kb_documents SET source_id = '" + d.doomed.id + "' WHERE id = " + one, "UPDATE kb_documents SET source_id = '" + d.vendors[0].id + "' WHERE id = " + one},
	} {
		if _, err := b.admin.Exec(ctx, row.do); err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
		if laws := judged(); !laws[row.law] {
			t.Errorf("%s: not found; broken are %v", row.name, laws)
		}
		if _, err := b.admin.Exec(ctx, row.undo); err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
	}
	if laws := judged(); len(laws) > 0 {
		t.Errorf("after all faults: %v", laws)
	}
}
