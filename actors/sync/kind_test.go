package sync_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/actors/ingest"
	syncs "agentsvc/actors/sync"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/connector/connectortest"
)

// TestEachKind is open-parts.md, Changes, "Knowledge", Sync, over each vendor: changed contents
// only are fetched, ids and ACLs stay over edits, renames and moves, what is gone is deleted.
func TestEachKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g, d, k, f, s := connectortest.NewGraph(t), connectortest.NewDrive(t), connectortest.NewWiki(t), connectortest.NewS3(t), connectortest.NewSite(t)
	w.office, w.cloud = g.URL+"/v1.0", d.URL+"/drive/v3"
	n := w.start(syncs.Config{})
	token := map[string]string{"access_token": connectortest.Token}
	file := func(name, text string) connectortest.File {
		return connectortest.File{Name: name, Kind: "text/plain", Text: text}
	}
	for name, c := range map[string]struct {
		in     api.SourceCreate
		server *connectortest.Server
		put    func(id, name, text string)
		remove func(id string)
		id     func(id string) string
	}{
		"office_drive": {api.SourceCreate{Kind: lifecycle.SourceOfficeDrive, Config: config(map[string]any{"drive_id": "drive-1"}), Credentials: token}, &g.Server,
			func(id, name, text string) {
				g.Put(id, name, text)
			}, func(id string) { g.Delete(id, false) }, nil},
		"cloud_drive": {api.SourceCreate{Kind: lifecycle.SourceCloudDrive, Credentials: token}, &d.Server,
			func(id, name, text string) { d.Put(id, file(name, text)) }, d.Delete, nil},
		"wiki": {api.SourceCreate{Kind: lifecycle.SourceWiki, Config: config(map[string]any{"base_url": k.URL}), Credentials: map[string]string{"email": connectortest.Email, "api_token": connectortest.Token}}, &k.Server,
			func(id, name, text string) { k.Put(id, "10", name, "<p>"+text+"</p>") }, k.Delete, nil},
		"object_store": {api.SourceCreate{Kind: lifecycle.SourceObjectStore, Config: config(map[string]any{"endpoint": f.URL, "region": "r", "bucket": "docs"}),
			Credentials: map[string]string{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret}}, &f.Server,
			func(id, _, text string) { f.Put(id, text) }, f.Delete, nil},
		"web": {api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"url": s.URL + "/start"})}, &s.Server,
			func(id, name, text string) { s.Page("/"+id, name, text) }, func(id string) { s.Remove("/" + id) }, func(id string) string { return s.URL + "/" + id }},
	} {
		at := func(id string) string {
			if c.id != nil {
				return c.id(id)
			}
			return id
		}
		s.Page("/start", "start", "start", "/a", "/b", "/c", "/d")
		c.put("a", "same.txt", "text of a")
		c.put("b", "same.txt", "text of b")
		c.put("c", "other.txt", "text of c")
		want := map[string]string{at("a"): "text of a", at("b"): "text of b", at("c"): "text of c"}
		if name == "web" {
			want[at("start")] = "start"
		}
		src := w.source(c.in)
		if row := w.row(src); row.Status != lifecycle.SourceIdle || len(c.server.Calls()) != 0 {
			t.Fatalf("%s: creating a source syncs: %s", name, row.Status)
		}
		w.syncs(n, src)
		first := w.holds(src, want)
		for _, doc := range first {
			w.mu.Lock()
			if !w.woken[doc.id.UUID] || !doc.owes || doc.status != "queued" {
				t.Errorf("%s: %s is not indexed", name, doc.item)
			}
			w.mu.Unlock()
		}
		w.settles()
		w.exec(`UPDATE kb_documents SET acl = '{group:staff}' WHERE id = $1`, first[at("a")].id)

		c.server.Calls()
		w.syncs(n, src)
		if calls := c.server.Calls(); connectortest.Count(calls, "content") != 0 {
			t.Errorf("%s: an unchanged source: %v", name, calls)
		}
		for item, doc := range w.holds(src, want) {
			if doc.content != 1 || doc.owes {
				t.Errorf("%s: %s changed without a change", name, item)
			}
		}

		c.put("a", "renamed.txt", "another text of a")
		c.put("d", "new.txt", "text of d")
		c.remove("c")
		if name == "web" {
			s.Page("/start", "start", "start", "/a", "/b", "/d")
		}
		delete(want, at("c"))
		want[at("a")], want[at("d")] = "another text of a", "text of d"
		w.syncs(n, src)
		second := w.holds(src, want)
		a := second[at("a")]
		if a.id != first[at("a")].id || a.content != 2 || !a.owes || name != "object_store" && a.name != "renamed.txt" ||
			w.count(`SELECT count(*) FROM kb_documents WHERE id = $1 AND acl = '{group:staff}'`, a.id) != 1 {
			t.Errorf("%s: %+v after %+v", name, a, first[at("a")])
		}
		if b := second[at("b")]; b.content != 1 || b.owes {
			t.Errorf("%s: %+v", name, b)
		}
		if w.count(`SELECT count(*) FROM kb_documents WHERE id = $1 AND deleted_at IS NOT NULL AND owes`, first[at("c")].id) != 1 {
			t.Errorf("%s: the document that is gone is not cleaned up", name)
		}
		w.settles()
	}
}

// TestAVendorThatFailsDeletesNothing, whatever it fails with and however far the walk was, and its
// error is plain and holds no secret.
func TestAVendorThatFailsDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.PerPage = 2
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	want := map[string]string{}
	for i := range 6 {
		want[fmt.Sprint("k", i)] = "canary"
		f.Put(fmt.Sprint("k", i), "canary")
	}
	w.syncs(n, src)
	for i := range 6 {
		f.Delete(fmt.Sprint("k", i)) // all of it is gone, and the vendor fails while it says so
		f.Put(fmt.Sprint("z", i), "new")
	}
	for _, after := range []int32{0, 1, 2} {
		for _, answer := range []func(w http.ResponseWriter){
			func(w http.ResponseWriter) { connectortest.S3Error(w, http.StatusForbidden, "ExpiredToken") },
			func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
			func(w http.ResponseWriter) { fmt.Fprint(w, "<html></html>") },
			func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		} {
			var calls atomic.Int32
			f.Before(func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("list-type") == "" || calls.Add(1) <= after {
					return false
				}
				answer(rw)
				return true
			})
			row := w.sync(n, src)
			if row.Status != lifecycle.SourceFailed || said(row) == "" {
				t.Errorf("%s %q", row.Status, said(row))
			}
			for _, canary := range []string{connectortest.KeyID, connectortest.Secret, "127.0.0.1"} {
				if strings.Contains(said(row), canary) {
					t.Errorf("%q holds %s", said(row), canary)
				}
			}
		}
	}
	have := w.documents(src)
	for item := range want {
		if have[item].text != "canary" {
			t.Errorf("%s was deleted by a vendor that fails", item)
		}
	}
	f.Before(nil)
	w.syncs(n, src)
	if have := w.documents(src); len(have) != 6 || have["z0"].text != "new" {
		t.Errorf("%d documents", len(have))
	}
}

// TestOneBadFile does not block the others: one without rights, one that is too large, one that
// fails for the moment, one that vanishes, and a picture.
func TestOneBadFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := connectortest.NewGraph(t)
	w.office = g.URL + "/v1.0"
	n := w.start(syncs.Config{})
	src := w.officeDrive()
	for _, id := range []string{"good", "forbidden", "broken", "vanished", "late"} {
		g.Put(id, id+".txt", "text of "+id)
	}
	g.Put("picture", "picture.PNG", "png")
	g.Downloads.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch id := strings.TrimPrefix(r.URL.Path, "/"); id {
		case "forbidden":
			rw.WriteHeader(http.StatusForbidden)
		case "broken":
			rw.WriteHeader(http.StatusInternalServerError)
		case "vanished":
			rw.WriteHeader(http.StatusNotFound)
		default:
			fmt.Fprint(rw, "text of "+id)
		}
	})
	row := w.sync(n, src)
	if row.Status != lifecycle.SourceOK || !strings.Contains(said(row), "2 files could not be read") || !strings.Contains(said(row), ".txt: ") {
		t.Fatalf("%s %q", row.Status, said(row))
	}
	have := w.documents(src)
	if len(have) != 3 || have["good"].text != "text of good" || have["late"].text != "text of late" || have["forbidden"].status != "failed" || !strings.Contains(have["forbidden"].error, "(403)") {
		t.Fatalf("%+v", have)
	}
	// A delta that named a file which could not be read is asked for again.
	g.Downloads.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, "text of "+strings.TrimPrefix(r.URL.Path, "/"))
	})
	w.syncs(n, src)
	if have := w.documents(src); len(have) != 5 || have["broken"].text != "text of broken" || have["forbidden"].text != "text of forbidden" {
		t.Fatalf("%+v", have)
	}
}

// TestAFileThatIsNotThereOnce, although the listing of changes names it, is fetched by the next sync: the listing would not name it
// again. If it is gone indeed, the next listing says so.
func TestAFileThatIsNotThereOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := connectortest.NewGraph(t)
	w.office = g.URL + "/v1.0"
	n := w.start(syncs.Config{})
	src := w.officeDrive()
	g.Put("first", "first.txt", "text of first")
	contents := g.Downloads.Config.Handler
	misses := func(files string) {
		t.Helper()
		g.Downloads.Config.Handler = http.NotFoundHandler()
		if row := w.sync(n, src); row.Status != lifecycle.SourceOK || !strings.Contains(said(row), files+" could not be read") || !strings.Contains(said(row), "no longer in the office drive") {
			t.Errorf("%s %q", row.Status, said(row))
		}
		g.Downloads.Config.Handler = contents
	}
	misses("1 file") // in the first listing
	w.holds(src, nil)
	w.syncs(n, src)
	w.holds(src, map[string]string{"first": "text of first"})
	g.Put("first", "first.txt", "another text")
	g.Put("gone", "gone.txt", "text of gone")
	misses("2 files") // in one of changes
	w.holds(src, map[string]string{"first": "text of first"})
	g.Delete("gone", false)
	w.syncs(n, src)
	w.holds(src, map[string]string{"first": "another text"})
	g.Calls()
	w.syncs(n, src)
	if calls := g.Calls(); len(calls) != 1 {
		t.Errorf("what was read is asked for again: %v", calls)
	}
}

// TestAFileThatIsNoTextAnyMore is gone, also where the listing names changes only.
func TestAFileThatIsNoTextAnyMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := connectortest.NewGraph(t)
	w.office = g.URL + "/v1.0"
	n := w.start(syncs.Config{})
	src := w.officeDrive()
	g.Put("notes", "notes.txt", "canary")
	g.Put("other", "other.txt", "other")
	w.syncs(n, src)
	w.holds(src, map[string]string{"notes": "canary", "other": "other"})
	g.Put("notes", "notes.zip", "PK")
	g.Put("picture", "picture.png", "png")
	w.syncs(n, src)
	w.holds(src, map[string]string{"other": "other"})
}

// TestAnotherAddressOfTheOfficeDrive, which the operator sets, begins the listing of changes anew.
func TestAnotherAddressOfTheOfficeDrive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g, other := connectortest.NewGraph(t), connectortest.NewGraph(t)
	w.office = g.URL + "/v1.0"
	src := w.officeDrive()
	for _, drive := range []*connectortest.Graph{g, other} {
		drive.Put("a", "a.txt", "text of a")
	}
	g.Put("b", "b.txt", "text of b")
	w.syncs(w.start(syncs.Config{}), src)
	first := w.holds(src, map[string]string{"a": "text of a", "b": "text of b"})
	w.office = other.URL + "/v1.0"
	n := w.start(syncs.Config{})
	for range 2 {
		w.syncs(n, src)
		if have := w.holds(src, map[string]string{"a": "text of a"}); have["a"].id != first["a"].id {
			t.Errorf("%+v", have)
		}
	}
}

// TestADeletedDocumentComesBackWithItsACL: whoever deletes a restricted document of a source does not
// publish it with the next sync, whether the source gives it at once or refuses it first.
func TestADeletedDocumentComesBackWithItsACL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src, other := w.bucket(f), w.bucket(f)
	for _, key := range []string{"a", "b", "c"} {
		f.Put(key, "text of "+key)
	}
	w.syncs(n, src)
	w.syncs(n, other)
	acl := func(s id.SourceID, key string) (list string) {
		w.must(w.admin.QueryRow(context.Background(), `SELECT array_to_string(acl, ' ') FROM kb_documents WHERE source_id = $1 AND item = $2 AND deleted_at IS NULL`, s, key).Scan(&list))
		return list
	}
	first := w.documents(src)
	remove := func(key string) {
		w.must(w.change(func(ctx context.Context, tx *store.Tx) error {
			return tx.DeleteDocument(ctx, w.base, w.documents(src)[key].id)
		}))
	}
	w.exec(`UPDATE kb_documents SET acl = '{group:former}' WHERE source_id = $1 AND item = 'a'`, src)
	remove("a")
	w.syncs(n, src)
	if got := acl(src, "a"); got != "group:former" {
		t.Errorf("the ACL of a: %q", got)
	}
	w.exec(`UPDATE kb_documents SET acl = '{group:staff,group:board}' WHERE source_id = $1 AND item IN ('a', 'b') AND deleted_at IS NULL`, src)
	remove("a")
	remove("b")
	f.Declare("b", 50<<20+1)
	w.syncs(n, src)
	if d := w.documents(src)["b"]; d.status != "failed" {
		t.Errorf("%+v", d)
	}
	f.Put("b", "another text of b")
	w.syncs(n, src)
	have := w.holds(src, map[string]string{"a": "text of a", "b": "another text of b", "c": "text of c"})
	for key, want := range map[string]string{"a": "group:staff group:board", "b": "group:staff group:board", "c": ""} {
		if got := acl(src, key); got != want || (have[key].id == first[key].id) != (key == "c") {
			t.Errorf("%s: ACL %q, want %q", key, got, want)
		}
	}
	if got := acl(other, "a"); got != "" {
		t.Errorf("the ACL of another source's document: %q", got)
	}
}

// TestAnACLOutlivesItsDocument: a restricted document that was gone for weeks, deleted here or gone at its source, is restricted when it
// comes back. The rows that keep the ACL go once it is taken over, and with their source.
func TestAnACLOutlivesItsDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	rows := func() int { return w.count(`SELECT count(*) FROM kb_documents WHERE deleted_at IS NOT NULL`) }
	weeks := func(want int) { // pass, and retention leaves so many rows of deleted documents
		t.Helper()
		w.exec(`UPDATE kb_documents SET owes = false, deleted_at = deleted_at - interval '3 weeks' WHERE deleted_at IS NOT NULL`)
		_, _, err := ingest.Traits.Keep[0].Pass(t.Context(), w.db.System(t), feed.Mark{}, 100)
		w.must(err)
		if got := rows(); got != want {
			t.Errorf("%d rows of deleted documents stay, want %d", got, want)
		}
	}
	give := func() {
		for _, key := range []string{"a", "b", "c", "open"} {
			f.Put(key, "text of "+key)
		}
	}
	give()
	w.syncs(n, src)
	w.exec(`UPDATE kb_documents SET acl = '{group:staff}' WHERE source_id = $1 AND item <> 'open'`, src)
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteDocument(ctx, w.base, w.documents(src)["a"].id)
	}))
	for _, key := range []string{"a", "b", "c", "open"} {
		f.Delete(key)
	}
	w.syncs(n, src)
	weeks(3)
	give()
	f.Declare("c", 50<<20+1) // its content cannot be had
	w.syncs(n, src)
	if got := w.count(`SELECT count(*) FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL AND acl = CASE item WHEN 'open' THEN '{}'::text[] ELSE '{group:staff}' END`, src); got != 4 {
		t.Errorf("%d of 4 documents have the ACL that they had", got)
	}
	weeks(0)
	f.Delete("a")
	w.syncs(n, src)
	weeks(1)
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error { return tx.DeleteSource(ctx, w.base, src) }))
	weeks(0)
}

// TestADeletionOnItsWay: a sync that finds a document being deleted puts it anew with its ACL.
func TestADeletionOnItsWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("a", "one")
	w.syncs(n, src)
	w.exec(`UPDATE kb_documents SET acl = '{group:staff}' WHERE source_id = $1`, src)
	first := w.documents(src)["a"].id
	f.Put("a", "two")
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeleteDocument(ctx, w.base, first); err != nil {
			return err
		}
		w.must(w.queue(src))
		w.wake(n, src)
		pgtest.Blocked(t, w.admin) // the step
		return nil
	}))
	w.ends(n, src)
	if d := w.holds(src, map[string]string{"a": "two"})["a"]; d.id == first {
		t.Error("the document that was deleted is there")
	}
	if n := w.count(`SELECT count(*) FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL AND acl = '{group:staff}'`, src); n != 1 {
		t.Error("the document came back without its ACL")
	}
}

// TestOtherSettingsKeepWhyAFileFailed: a document that its source never gave keeps the reason, one with
// an older content is indexed anew and keeps it too, and a file that the source gives again is read.
func TestOtherSettingsKeepWhyAFileFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("fine", "fine")
	f.Put("grown", "small")
	f.Put("never", "large")
	f.Declare("never", 50<<20+1)
	w.syncs(n, src)
	w.settles()
	f.Put("grown", "large")
	f.Declare("grown", 50<<20+1)
	w.syncs(n, src)
	w.exec(`UPDATE kb_documents SET attempts = 4`)
	tokens := 200
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error {
		_, _, err := tx.UpdateKnowledgeBase(ctx, w.base, &api.KnowledgeBasePatch{Chunking: &api.ChunkingSet{MaxTokens: &tokens}})
		return err
	}))
	const why = "the file is larger than 50 MiB"
	have := w.documents(src)
	if d := have["never"]; d.owes || d.status != "failed" || d.error != why {
		t.Errorf("%+v", d)
	}
	for _, key := range []string{"fine", "grown"} {
		if !have[key].owes || w.count(`SELECT attempts FROM kb_documents WHERE id = $1`, have[key].id) != 0 {
			t.Errorf("%+v", have[key])
		}
	}
	if w.count(`SELECT count(*) FROM kb_documents WHERE item IN ('grown', 'never') AND source_error = $1`, why) != 2 {
		t.Error("the reasons are not kept")
	}
	// It is being indexed anew when the source gives it again, with the text that it had.
	w.exec(`UPDATE kb_documents SET status = 'processing', error = NULL WHERE item = 'grown'`)
	f.Put("grown", "small")
	w.syncs(n, src)
	if d := w.documents(src)["grown"]; d.status != "queued" || !d.owes || w.count(`SELECT count(*) FROM kb_documents WHERE id = $1 AND source_error IS NULL`, d.id) != 1 {
		t.Errorf("%+v", d)
	}
}

// TestAFileThatGivesARightLater is read by the next sync, although a listing of changes does not name
// it: rights are no change of a file. The others are not asked for.
func TestAFileThatGivesARightLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := connectortest.NewGraph(t)
	g.PerPage = 100
	w.office = g.URL + "/v1.0"
	n := w.start(syncs.Config{})
	src := w.officeDrive()
	var closed atomic.Bool
	closed.Store(true)
	contents := g.Downloads.Config.Handler
	g.Downloads.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/closed" && closed.Load() {
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		contents.ServeHTTP(rw, r)
	})
	for _, name := range []string{"open", "closed"} {
		g.Put(name, name+".txt", "text of "+name)
	}
	w.syncs(n, src)
	first := w.documents(src)
	if d := first["closed"]; d.status != "failed" || !strings.Contains(d.error, "(403)") || len(first) != 2 {
		t.Fatalf("%+v", first)
	}
	w.exec(`UPDATE kb_documents SET acl = '{group:staff}'`)
	w.settles()
	w.syncs(n, src) // nothing changed
	if d := w.documents(src)["closed"]; d.status != "failed" || !strings.Contains(d.error, "(403)") {
		t.Errorf("%+v", d)
	}
	closed.Store(false)
	g.Calls()
	w.syncs(n, src)
	if calls := g.Calls(); connectortest.Count(calls, "listing") != 1 || strings.Contains(strings.Join(calls, " "), "open") {
		t.Errorf("%v", calls)
	}
	have := w.holds(src, map[string]string{"open": "text of open", "closed": "text of closed"})
	if d := have["closed"]; d.id != first["closed"].id || d.name != "closed.txt" || d.uri != first["closed"].uri || d.status != "queued" || d.error != "" {
		t.Errorf("%+v", d)
	}
	if w.count(`SELECT count(*) FROM kb_documents WHERE acl = '{group:staff}'`) != 2 {
		t.Error("an ACL is lost")
	}
	w.settles()
	w.syncs(n, src)
	if calls := g.Calls(); len(calls) != 1 {
		t.Errorf("a file that was read is asked for again: %v", calls)
	}
	g.Put("closed", "closed.txt", "another text")
	w.syncs(n, src)
	w.holds(src, map[string]string{"open": "text of open", "closed": "another text"})
}

// TestADocumentThatCouldNotBeIndexed, for a reason that is not the file's, is fetched again by the next sync, although the source did not
// change: by a listing of everything, and by one of changes, which names nothing. A file that cannot be read is not.
func TestADocumentThatCouldNotBeIndexed(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func(*testing.T, *world) (src func() id.SourceID, put func(name, text string)){
		"a listing of everything": func(t *testing.T, w *world) (func() id.SourceID, func(string, string)) {
			f := connectortest.NewS3(t)
			return func() id.SourceID { return w.bucket(f) }, f.Put
		},
		"a listing of changes": func(t *testing.T, w *world) (func() id.SourceID, func(string, string)) {
			g := connectortest.NewGraph(t)
			w.office = g.URL + "/v1.0"
			return func() id.SourceID {
				return w.officeDrive()
			}, func(name, text string) { g.Put(name, name, text) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			src, put := source(t, w)
			n, s := w.start(syncs.Config{}), src()
			for _, name := range []string{"fine.txt", "damaged.txt", "late.txt"} {
				put(name, "text of "+name)
			}
			w.syncs(n, s)
			w.settles()
			w.exec(`UPDATE kb_documents SET read_content = content`)
			fails := func(item string, read int) {
				w.exec(`UPDATE kb_documents SET status = 'failed', error = 'x', read_content = $2, owes = false, version = version + 1 WHERE item = $1`, item, read)
			}
			fails("damaged.txt", 1)
			contents := func() [3]int {
				have := w.documents(s)
				return [3]int{have["fine.txt"].content, have["damaged.txt"].content, have["late.txt"].content}
			}
			for i := range 2 { // it may fail again
				fails("late.txt", -1-i)
				w.syncs(n, s)
				if got, want := contents(), [3]int{1, 1, 2 + i}; got != want {
					t.Errorf("contents %v, want %v", got, want)
				}
				if d := w.documents(s)["late.txt"]; d.status != "queued" || !d.owes || d.error != "" || d.text != "text of late.txt" || !w.woken[d.id.UUID] {
					t.Errorf("%+v", d)
				}
			}
			w.settles()
			w.exec(`UPDATE kb_documents SET read_content = content WHERE item = 'late.txt'`)
			w.syncs(n, s)
			if got, want := contents(), [3]int{1, 1, 3}; got != want {
				t.Errorf("contents %v, want %v: one that was indexed is fetched again", got, want)
			}
		})
	}
}

// TestManyBadFiles do not block the others either, however many come one after the other and however
// often: neither those of a crawl and a listing that name them between unchanged ones, nor those of a
// listing of changes that names nothing else. A source that gives no file any more ends the sync.
func TestManyBadFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, g, s := connectortest.NewS3(t), connectortest.NewGraph(t), connectortest.NewSite(t)
	w.office = g.URL + "/v1.0"
	n := w.start(syncs.Config{})
	var down atomic.Bool
	fails := func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "bad") && !(down.Load() && (strings.Contains(r.URL.Path, "good") || r.URL.Path == "/")) {
			return false
		}
		rw.WriteHeader(http.StatusInternalServerError)
		return true
	}
	f.Before(fails)
	s.Before(fails)
	contents := g.Downloads.Config.Handler
	g.Downloads.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !fails(rw, r) {
			contents.ServeHTTP(rw, r)
		}
	})
	var pages []string
	putPage := func(name string) {
		pages = append(pages, "/"+name)
		s.Page("/"+name, name, "text of "+name)
		s.Page("/", "Home", "home", pages...)
	}
	for name, c := range map[string]struct {
		src id.SourceID
		put func(name string)
		at  string // before the name of an item
		top int    // documents beside those of names
	}{
		"object_store": {w.bucket(f), func(name string) { f.Put(name, "text of "+name) }, "", 0},
		"office_drive": {w.officeDrive(),
			func(name string) { g.Put(name, name+".txt", "text of "+name) }, "", 0},
		"web": {w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"url": s.URL + "/"})}), putPage, s.URL + "/", 1},
	} {
		c.put("a-good")
		w.syncs(n, c.src)
		for i := range 12 {
			c.put(fmt.Sprint("b-bad-", i))
		}
		good := 1
		for _, more := range []string{"c-good", "d-good", "e-good"} {
			c.put(more)
			good++
			row := w.sync(n, c.src)
			if row.Status != lifecycle.SourceOK || !strings.Contains(said(row), "12 files could not be read") {
				t.Errorf("%s: %s %q", name, row.Status, said(row))
			}
			if have := w.documents(c.src); len(have) != good+c.top || !strings.Contains(have[c.at+more].text, "text of "+more) {
				t.Errorf("%s: %d documents after %s", name, len(have), more)
			}
			w.settles()
		}
		down.Store(true)
		c.put("f-good")
		if row := w.sync(n, c.src); row.Status != lifecycle.SourceFailed || !strings.Contains(said(row), "failed (500)") {
			t.Errorf("%s: a source that gives no file: %s %q", name, row.Status, said(row))
		}
		down.Store(false)
	}
}

// TestOneFileThatAsksToWait for long does not end the sync; a limit of requests does.
func TestOneFileThatAsksToWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	for _, key := range []string{"a", "b", "c"} {
		f.Put(key, "text of "+key)
	}
	var asked atomic.Int32
	waits := func(status int) {
		f.Before(func(rw http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/docs/b" {
				return false
			}
			asked.Add(1)
			rw.Header().Set("Retry-After", "3600")
			rw.WriteHeader(status)
			return true
		})
	}
	waits(http.StatusServiceUnavailable)
	if row := w.sync(n, src); row.Status != lifecycle.SourceOK || !strings.Contains(said(row), "it asks to wait 1h0m0s") || asked.Load() != 1 {
		t.Errorf("%s %q, asked %d times", row.Status, said(row), asked.Load())
	}
	w.holds(src, map[string]string{"a": "text of a", "c": "text of c"})
	waits(http.StatusTooManyRequests)
	if row := w.sync(n, src); row.Status != lifecycle.SourceFailed || !strings.Contains(said(row), "it asks to wait 1h0m0s") {
		t.Errorf("%s %q", row.Status, said(row))
	}
}

// TestAVendorThatAsksToWait is given the pause, and the sync goes on where it was: in the middle of a listing and of its files no content is
// fetched twice. One that asks again and again fails the sync, which deletes nothing.
func TestAVendorThatAsksToWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.PerPage = 5
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	want := map[string]string{}
	for i := range 12 {
		key := fmt.Sprintf("k%02d", i)
		want[key] = "text of " + key
		f.Put(key, want[key])
	}
	var listings, refused atomic.Int32
	f.Before(func(rw http.ResponseWriter, r *http.Request) bool {
		listing := r.URL.Query().Get("list-type") != ""
		if !(listing && listings.Add(1) == 2 || r.URL.Path == "/docs/k08" && refused.Add(1) <= 2) {
			return false
		}
		rw.Header().Set("Retry-After", "0.2") // a call waits for 50 ms at most
		rw.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	w.syncs(n, src)
	w.holds(src, want)
	calls := f.Calls()
	if got := connectortest.Count(calls, "content"); got != len(want) {
		t.Errorf("%d contents of %d: %v", got, len(want), calls)
	}
	if refused.Load() != 3 {
		t.Errorf("a file was asked for %d times", refused.Load())
	}
	if e := w.events("kb.source.failed"); len(e) != 0 {
		t.Errorf("%v", e)
	}
	for key := range want {
		f.Delete(key)
	}
	var asked atomic.Int32
	f.Before(func(rw http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		rw.Header().Set("Retry-After", "0.1")
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if row := w.sync(n, src); row.Status != lifecycle.SourceFailed || !strings.Contains(said(row), "it asks to wait") || asked.Load() != 4 {
		t.Errorf("%s %q after %d calls", row.Status, said(row), asked.Load())
	}
	if have := w.documents(src); len(have) != len(want) {
		t.Errorf("%d documents of %d", len(have), len(want))
	}
}

// TestCredentialsThatExpireAmongTheFiles end the sync with that reason: the files are no bad ones, and stay as they were.
func TestCredentialsThatExpireAmongTheFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bucket, wiki := connectortest.NewS3(t), connectortest.NewWiki(t)
	n := w.start(syncs.Config{})
	pages := w.source(api.SourceCreate{Kind: lifecycle.SourceWiki, Config: config(map[string]any{"base_url": wiki.URL + "/wiki"}),
		Credentials: map[string]string{"email": connectortest.Email, "api_token": connectortest.Token}})
	for name, c := range map[string]struct {
		src     id.SourceID
		server  *connectortest.Server
		put     func(key, text string)
		content string // the path of a file, without its key
		refuse  func(http.ResponseWriter)
		want    string
	}{
		"object_store": {w.bucket(bucket), &bucket.Server, bucket.Put, "/docs/",
			func(rw http.ResponseWriter) { connectortest.S3Error(rw, http.StatusForbidden, "ExpiredToken") }, "the session token has expired or is invalid (403)"},
		"wiki": {pages, &wiki.Server, func(key, text string) { wiki.Put(key, "10", key, "<p>"+text+"</p>") }, "/wiki/api/v2/pages/",
			func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusUnauthorized) }, "(401)"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := []string{"a", "b", "c", "d"}
			for _, key := range keys {
				c.put(key, "old "+key)
			}
			w.syncs(n, c.src)
			w.settles()
			for _, key := range keys {
				c.put(key, "new "+key)
			}
			var files atomic.Int32
			c.server.Before(func(rw http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, c.content) || files.Add(1) < 3 {
					return false
				}
				c.refuse(rw)
				return true
			})
			row := w.sync(n, c.src)
			if row.Status != lifecycle.SourceFailed || !strings.Contains(said(row), c.want) || files.Load() != 3 {
				t.Errorf("%s %q after %d files", row.Status, said(row), files.Load())
			}
			for key, d := range w.documents(c.src) {
				if d.status == "failed" || !strings.Contains(d.text, "old "+key) && !strings.Contains(d.text, "new "+key) {
					t.Errorf("%+v", d)
				}
			}
			c.server.Before(nil)
			w.syncs(n, c.src)
			w.holds(c.src, map[string]string{"a": "new a", "b": "new b", "c": "new c", "d": "new d"})
		})
	}
}

// TestAStartPageThatAsksForALogin, one of several, does not block the others.
func TestAStartPageThatAsksForALogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := connectortest.NewSite(t)
	n := w.start(syncs.Config{})
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"urls": []string{s.URL + "/private", s.URL + "/open"}})})
	s.Serve("/private", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusUnauthorized) })
	s.Page("/open", "Open", "open")
	w.syncs(n, src)
	have := w.documents(src)
	if d := have[s.URL+"/private"]; len(have) != 2 || !strings.Contains(have[s.URL+"/open"].text, "open") || d.status != "failed" || d.error != "the website asks for a login (401)" {
		t.Errorf("%+v", have)
	}
}

// TestAFileThatIsTooLarge is not fetched, and its document says why; the text before it stays.
func TestAFileThatIsTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("a.txt", "small")
	w.syncs(n, src)
	f.Put("a.txt", "large")
	f.Declare("a.txt", 50<<20+1)
	f.Calls()
	w.syncs(n, src)
	d := w.documents(src)["a.txt"]
	if d.status != "failed" || d.error != "the file is larger than 50 MiB" || connectortest.Count(f.Calls(), "content") != 0 || d.content != 1 {
		t.Fatalf("%+v", d)
	}
	w.syncs(n, src)
	f.Put("a.txt", "endless") // and the listing does not say so
	f.Before(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/a.txt") {
			return false
		}
		for chunk := make([]byte, 1<<20); ; {
			if _, err := rw.Write(chunk); err != nil {
				return true
			}
		}
	})
	w.syncs(n, src)
	if d := w.documents(src)["a.txt"]; d.status != "failed" || d.error != "the file is larger than 50 MiB" || d.content != 1 {
		t.Fatalf("%+v", d)
	}
	f.Before(nil)
	f.Calls()
	w.syncs(n, src)
	if calls := f.Calls(); connectortest.Count(calls, "content") != 0 {
		t.Errorf("a file that was too large is fetched again: %v", calls)
	}
	f.Put("a.txt", "small again")
	w.syncs(n, src)
	if d := w.documents(src)["a.txt"]; d.status != "queued" || d.text != "small again" || d.error != "" {
		t.Fatalf("%+v", d)
	}
}

// TestTenThousandUnchanged: an unchanged store of 10,000 objects costs its ten listing calls and no
// version of a document.
func TestTenThousandUnchanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	for i := range 10_000 {
		f.Put(fmt.Sprintf("k/%05d.txt", i), "x")
	}
	sum := md5.Sum([]byte("x"))
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, item_version, name, uri, media_type, size_bytes, file, sha256, status, owes)
		SELECT $1, gen_random_uuid(), $2, $3, 'k/' || lpad(n::text, 5, '0') || '.txt', $4, lpad(n::text, 5, '0') || '.txt', 's3://docs/k/' || lpad(n::text, 5, '0') || '.txt', 'text/plain', 1, gen_random_uuid(), sha256('x'), 'ready', false
		FROM generate_series(0, 9999) n`, w.tenant, w.base, src, hex.EncodeToString(sum[:]))
	if _, err := w.db.Admin(t).Exec(t.Context(), `ANALYZE kb_documents`); err != nil { // as autovacuum does, long before there are so many
		t.Fatal(err)
	}
	f.Calls()
	w.syncs(n, src)
	if calls := f.Calls(); len(calls) != 10 || connectortest.Count(calls, "listing") != 10 {
		t.Errorf("%d calls, %d listings", len(calls), connectortest.Count(calls, "listing"))
	}
	if n := w.count(`SELECT count(*) FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL AND version = 1 AND NOT owes`, src); n != 10_000 {
		t.Errorf("%d documents are as they were", n)
	}
	if row := w.row(src); row.Listed != 10_000 {
		t.Errorf("%d listed", row.Listed)
	}
}

// TestProgress: a source is queued, then syncing with a growing number of documents; a sync
// meanwhile is 202 and starts none.
func TestProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.PerPage = 2
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	for i := range 6 {
		f.Put(fmt.Sprint("k", i), "x")
	}
	var listings atomic.Int32
	held, wait := make(chan struct{}), make(chan struct{})
	f.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("list-type") != "" && listings.Add(1) == 3 {
			close(held)
			<-wait
		}
		return false
	})
	w.must(w.queue(src))
	if row := w.row(src); row.Status != lifecycle.SourceQueued {
		t.Fatal(row.Status)
	}
	w.wake(n, src)
	<-held
	testkit.Eventually(t, "four documents are listed", func() bool { row := w.row(src); return row.Status == lifecycle.SourceSyncing && row.Listed == 4 })
	before := w.count(`SELECT sync::int FROM knowledge_sources WHERE id = $1`, src)
	w.must(w.queue(src))
	w.wake(n, src)
	close(wait)
	w.ends(n, src)
	if after := w.count(`SELECT sync::int FROM knowledge_sources WHERE id = $1`, src); after != before {
		t.Errorf("sync %d followed by %d", before, after)
	}
	w.holds(src, map[string]string{"k0": "x", "k1": "x", "k2": "x", "k3": "x", "k4": "x", "k5": "x"})
}

// holding makes the next listing call wait, and returns what lets it go on.
func holding(f *connectortest.S3) (held chan struct{}, free func()) {
	held, wait := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	f.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("list-type") != "" && once.CompareAndSwap(false, true) {
			close(held)
			<-wait
		}
		return false
	})
	return held, func() { close(wait) }
}

// TestDisabled: a disabled source keeps its documents and does not sync, and one that is disabled
// during a sync writes nothing more.
func TestDisabled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("a", "x")
	w.syncs(n, src)
	no, yes := false, true
	f.Put("b", "x")
	held, free := holding(f)
	w.must(w.queue(src))
	w.wake(n, src)
	<-held
	w.patch(src, api.SourcePatch{Enabled: &no})
	free()
	if row := w.ends(n, src); row.Status != lifecycle.SourceOK {
		t.Fatal(row.Status)
	}
	w.holds(src, map[string]string{"a": "x"})
	if err := w.queue(src); !errors.Is(err, problem.New(problem.CodeSourceDisabled, "")) {
		t.Fatal(err)
	}
	w.patch(src, api.SourcePatch{Enabled: &yes})
	w.syncs(n, src)
	w.holds(src, map[string]string{"a": "x", "b": "x"})
}

// TestDeleted: a source that is deleted during its sync leaves no document.
func TestDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("a", "x")
	w.syncs(n, src)
	f.Put("b", "x")
	held, free := holding(f)
	w.must(w.queue(src))
	w.wake(n, src)
	<-held
	w.must(w.change(func(ctx context.Context, tx *store.Tx) error { return tx.DeleteSource(ctx, w.base, src) }))
	w.wake(n, src)
	free()
	testkit.Eventually(t, "nothing works on it", func() bool { return !n.Active(w.at(src)) })
	if n := w.count(`SELECT count(*) FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL`, src); n != 0 {
		t.Errorf("%d documents of a deleted source", n)
	}
	if n := w.count(`SELECT count(*) FROM knowledge_sources WHERE id = $1 AND credentials IS NOT NULL`, src); n != 0 {
		t.Error("its credentials are still there")
	}
}

// TestAnotherConfiguration: a change during a sync makes it begin anew, and what the new
// configuration does not name is gone.
func TestAnotherConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("a/1", "x")
	f.Put("b/1", "x")
	held, free := holding(f)
	w.must(w.queue(src))
	w.wake(n, src)
	<-held
	w.patch(src, api.SourcePatch{Config: config(map[string]any{"endpoint": f.URL, "region": "r", "bucket": "docs", "prefix": "b/"})})
	w.wake(n, src)
	free()
	if row := w.ends(n, src); row.Status != lifecycle.SourceOK {
		t.Fatal(row.Status, said(row))
	}
	w.holds(src, map[string]string{"b/1": "x"})
}

// TestASchedule: a due time is one sync over two nodes that are told at once, the timer moves on,
// and a time that passes during a sync starts none.
func TestASchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.Put("a", "x")
	one, two := w.start(syncs.Config{}), w.start(syncs.Config{})
	cron := "0 2 * * *"
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceObjectStore, Config: config(map[string]any{"endpoint": f.URL, "region": "r", "bucket": "docs"}),
		Credentials: map[string]string{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret}, Schedule: &cron, Timezone: "Europe/Berlin"})
	due := time.Date(2026, 5, 6, 0, 0, 0, 0, time.UTC) // 02:00 in Berlin
	w.exec(`UPDATE knowledge_sources SET next_sync_at = $2 WHERE id = $1`, src, due)
	w.exec(`UPDATE timers SET due_at = $2, claimed_until = now() + interval '1 hour' WHERE entity_id = $1`, src, due)
	w.clock.set(due.Add(-time.Second))
	tell := func() {
		one.Tell(w.at(src), dueNow)
		two.Tell(w.at(src), dueNow)
	}
	tell()
	testkit.Eventually(t, "nothing works on it", func() bool { return !one.Active(w.at(src)) && !two.Active(w.at(src)) })
	if n := w.count(`SELECT sync::int FROM knowledge_sources WHERE id = $1`, src); n != 0 {
		t.Fatal("it synced before it was due")
	}
	w.clock.set(due.Add(72 * time.Hour)) // several due times have passed
	tell()
	testkit.Eventually(t, "it has synced", func() bool {
		row := w.row(src)
		return row.Status == lifecycle.SourceOK && !one.Active(w.at(src)) && !two.Active(w.at(src))
	})
	next := due.Add(96 * time.Hour)
	if n := w.count(`SELECT count(*) FROM knowledge_sources s JOIN timers t ON t.entity_id = s.id AND t.kind = 'sync' AND t.due_at = s.next_sync_at WHERE s.id = $1 AND s.sync = 1 AND s.next_sync_at = $2`, src, next); n != 1 {
		var number int
		var at time.Time
		w.must(w.admin.QueryRow(context.Background(), `SELECT sync::int, next_sync_at FROM knowledge_sources WHERE id = $1`, src).Scan(&number, &at))
		t.Errorf("sync %d, next at %v", number, at)
	}
	w.holds(src, map[string]string{"a": "x"})
}

// TestAWalkGoesOn behind due times and requests for a sync, however many come: each page is listed once.
func TestAWalkGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.PerPage = 2
	n := w.start(syncs.Config{})
	cron := "0 * * * *"
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceObjectStore, Config: config(map[string]any{"endpoint": f.URL, "region": "r", "bucket": "docs"}),
		Credentials: map[string]string{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret}, Schedule: &cron, Timezone: "UTC"})
	want := map[string]string{}
	for i := range 8 {
		want[fmt.Sprint("k", i)] = "x"
		f.Put(fmt.Sprint("k", i), "x")
	}
	var version int
	read := func() int { return w.count(`SELECT version::int FROM knowledge_sources WHERE id = $1`, src) }
	f.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("list-type") == "" {
			return false
		}
		w.clock.set(w.clock.now().Add(time.Hour))
		w.must(w.queue(src))
		for _, m := range []any{dueNow, durable.Wake{}} {
			if _, err := n.Ask(context.Background(), w.at(src), m); err != nil {
				t.Errorf("%T: %v", m, err)
			}
		}
		version = max(version, read())
		return false
	})
	w.syncs(n, src)
	if calls := f.Calls(); connectortest.Count(calls, "listing") != 4 || version < 8 {
		t.Errorf("%d listings, version %d", connectortest.Count(calls, "listing"), version)
	}
	w.holds(src, want)
	if n := w.count(`SELECT sync::int FROM knowledge_sources WHERE id = $1`, src); n != 1 {
		t.Errorf("sync %d", n)
	}
}

// TestTwoActivations walk at once: each document is there once, and one of them ends the sync.
func TestTwoActivations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.PerPage = 2
	one, two := w.start(syncs.Config{}), w.start(syncs.Config{})
	src := w.bucket(f)
	want := map[string]string{}
	for i := range 9 {
		want[fmt.Sprint("k", i)] = "x"
		f.Put(fmt.Sprint("k", i), "x")
	}
	held, free := holding(f)
	w.must(w.queue(src))
	w.wake(one, src)
	<-held // the first walk hangs in the middle, as on a node that was stopped
	w.wake(two, src)
	if row := w.ends(two, src); row.Status != lifecycle.SourceOK {
		t.Fatal(row.Status, said(row))
	}
	for item := range w.holds(src, want) {
		f.Delete(item)
	}
	f.Put("z", "z")
	w.syncs(two, src)
	free() // what it writes now would be of the past
	testkit.Eventually(t, "the first walk has ended", func() bool { return !one.Active(w.at(src)) })
	w.holds(src, map[string]string{"z": "z"})
	if n := w.count(`SELECT sync::int FROM knowledge_sources WHERE id = $1`, src); n != 2 {
		t.Errorf("sync %d", n)
	}
}

// lossy fails as storage does, at the calls that are listed.
type lossy struct {
	syncs.Store
	calls atomic.Int64
	fails func(call int64) bool
}

func (l *lossy) WriteWalk(ctx context.Context, w *store.Walk, p *store.WalkPage) ([]id.DocumentID, error) {
	if l.fails(l.calls.Add(1)) {
		return nil, store.ErrUnavailable
	}
	return l.Store.WriteWalk(ctx, w, p)
}

// TestStorageThatFails: the walk goes on behind its last step.
func TestStorageThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := connectortest.NewS3(t)
	f.PerPage = 2
	l := &lossy{Store: w.rows, fails: func(call int64) bool { return call == 2 }}
	n := w.start(syncs.Config{Store: l})
	src := w.bucket(f)
	want := map[string]string{}
	for i := range 6 {
		want[fmt.Sprint("k", i)] = "x"
		f.Put(fmt.Sprint("k", i), "x")
	}
	w.syncs(n, src)
	w.holds(src, want)
	// The page before the failure is not listed again, and contents only of the failed step are
	// fetched again.
	if calls := f.Calls(); connectortest.Count(calls, "listing") != 4 || connectortest.Count(calls, "content") != 8 {
		t.Errorf("%v", calls)
	}
}

// TestEvents: the commit that ends a sync holds its event.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://x.example', '{*}', 'x')`, w.tenant, id.NewAnywhere())
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	f.Put("a", "x")
	w.syncs(n, src)
	f.Before(func(rw http.ResponseWriter, _ *http.Request) bool {
		connectortest.S3Error(rw, 403, "ExpiredToken")
		return true
	})
	w.sync(n, src)
	for kind, want := range map[string]string{
		"kb.source.synced": fmt.Sprintf(`{"knowledge_base_id":%q,"source_id":%q,"status":"ok","documents":1,"error":null}`, w.base, src),
		"kb.source.failed": fmt.Sprintf(`{"knowledge_base_id":%q,"source_id":%q,"status":"failed","documents":1,"error":"the session token has expired or is invalid (403)"}`, w.base, src),
	} {
		var got struct{ Data json.RawMessage }
		events := w.events(kind)
		if len(events) != 1 || json.Unmarshal([]byte(events[0]), &got) != nil || string(got.Data) != want {
			t.Errorf("%s: %v, want %s", kind, events, want)
		}
	}
	if n := w.count(`SELECT count(*) FROM audit_log WHERE action = 'kb.source.sync' AND target_id = $1 AND actor = 'user:x'`, src); n != 2 {
		t.Errorf("%d syncs in the audit log", n)
	}
}

// TestUploads: the sync of a source of uploads finds nothing and deletes nothing.
func TestUploads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start(syncs.Config{})
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceUpload})
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, name, media_type, size_bytes, file, sha256) VALUES ($1, $2, $3, $4, 'x', 'x', 'x', 0, $2, '')`, w.tenant, id.NewAnywhere(), w.base, src)
	w.syncs(n, src)
	if n := w.count(`SELECT count(*) FROM kb_documents WHERE source_id = $1 AND deleted_at IS NULL`, src); n != 1 {
		t.Errorf("%d documents are left, want the one that was uploaded", n)
	}
}

// TestWithoutCredentials: a source whose credentials were dropped fails and says so, and they are
// not in its row in plain.
func TestWithoutCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, other := connectortest.NewS3(t), connectortest.NewS3(t)
	n := w.start(syncs.Config{})
	src := w.bucket(f)
	if w.count(`SELECT count(*) FROM knowledge_sources WHERE position($1::bytea IN credentials) > 0`, []byte(connectortest.Secret)) != 0 {
		t.Error("the credentials are not sealed")
	}
	w.patch(src, api.SourcePatch{Config: config(map[string]any{"endpoint": other.URL, "region": "r", "bucket": "docs"})})
	row := w.sync(n, src)
	if row.Status != lifecycle.SourceFailed || said(row) != "the source has no credentials" || len(other.Calls()) != 0 || len(row.CredentialMeta.Keys) != 0 {
		t.Fatalf("%s %q", row.Status, said(row))
	}
}

// TestAWebPageThatFails: a known page that fails keeps what it leads to; a hostile address is not
// shown.
func TestAWebPageThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := connectortest.NewSite(t)
	n := w.start(syncs.Config{})
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"url": s.URL + "/"})})
	s.Page("/", "Home", "home", "/list", "/gone")
	s.Page("/list", "List", "list", "/deep")
	s.Page("/deep", "Deep", "deep")
	s.Page("/gone", "Gone", "gone")
	w.syncs(n, src)
	all := map[string]string{s.URL + "/": "home", s.URL + "/list": "list", s.URL + "/deep": "deep", s.URL + "/gone": "gone"}
	w.holds(src, all)
	s.Remove("/gone")
	s.Serve("/list", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusBadGateway) })
	if row := w.sync(n, src); row.Status != lifecycle.SourceOK || !strings.Contains(said(row), "could not be read") {
		t.Fatal(row.Status, said(row))
	}
	w.holds(src, all)
	s.Page("/list", "List", "list", "/deep")
	w.syncs(n, src)
	delete(all, s.URL+"/gone")
	w.holds(src, all)
}

// TestAWebPageThatIsRefused, for whatever reason and for however long, keeps its text, its name and its ACL, and what
// only it leads to. The sync says why nothing is deleted. Links that always were refused make no documents.
func TestAWebPageThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start(syncs.Config{})
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
	}
	redirect := func(to string) func(http.ResponseWriter, *http.Request) {
		return func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, to, http.StatusFound) }
	}
	for name, c := range map[string]struct {
		refuse func(http.ResponseWriter, *http.Request)
		second bool // it is a start page
	}{
		"403": {status(http.StatusForbidden), false}, "401": {status(http.StatusUnauthorized), false}, "a start page": {status(http.StatusForbidden), true},
		"a login": {redirect("http://127.0.0.2/login"), false}, "a loop": {redirect("/list/"), false},
	} {
		s := connectortest.NewSite(t)
		starts := []string{s.URL + "/"}
		if c.second {
			starts = append(starts, s.URL+"/list/")
		}
		src := w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"urls": starts})})
		s.Page("/", "Home", "home", "/list", "/gone", "/closed")
		s.Serve("/closed", c.refuse)
		s.Serve("/list", redirect("/list/"))
		s.Page("/list/", "List", "list", "/deep")
		s.Page("/deep", "Deep", "deep")
		s.Page("/gone", "Gone", "gone")
		all := map[string]string{s.URL + "/": "home", s.URL + "/list/": "list", s.URL + "/deep": "deep", s.URL + "/gone": "gone"}
		if name == "a loop" {
			s.Remove("/closed") // else it leads to a page
		}
		w.syncs(n, src)
		first := w.holds(src, all)
		w.settles()
		w.exec(`UPDATE kb_documents SET acl = '{group:staff}'`)
		s.Remove("/gone")
		s.Serve("/list/", c.refuse)
		for range 2 {
			if row := w.sync(n, src); row.Status != lifecycle.SourceOK || !strings.Contains(said(row), "could not be read") || !strings.Contains(said(row), "/list/: ") {
				t.Errorf("%s: %s %q", name, row.Status, said(row))
			}
			have := w.documents(src)
			list := have[s.URL+"/list/"]
			if len(have) != 4 || have[s.URL+"/deep"].text != first[s.URL+"/deep"].text || list.status != "failed" || list.name != "List" || list.uri != s.URL+"/list/" {
				t.Errorf("%s: %+v", name, have)
			}
		}
		s.Page("/list/", "List", "list", "/deep")
		w.syncs(n, src)
		delete(all, s.URL+"/gone")
		for item, d := range w.holds(src, all) {
			if d.id != first[item].id || w.count(`SELECT count(*) FROM kb_documents WHERE id = $1 AND acl = '{group:staff}'`, d.id) != 1 {
				t.Errorf("%s: %s is another document, or has another ACL", name, item)
			}
		}
	}
}

// TestAPageThatMovedAway, for good and to another host, is gone, and so is a start page, one of several, that is not there
// any more.
func TestAPageThatMovedAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := connectortest.NewSite(t)
	n := w.start(syncs.Config{})
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"urls": []string{s.URL + "/a", s.URL + "/b"}})})
	s.Page("/a", "A", "text of a", "/c")
	s.Page("/b", "B", "text of b")
	s.Page("/c", "C", "text of c")
	w.syncs(n, src)
	w.holds(src, map[string]string{s.URL + "/a": "text of a", s.URL + "/b": "text of b", s.URL + "/c": "text of c"})
	s.Remove("/b")
	s.Serve("/c", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "http://127.0.0.2/c", http.StatusMovedPermanently)
	})
	w.syncs(n, src)
	w.holds(src, map[string]string{s.URL + "/a": "text of a"})
}

// TestWhatAFailingAddressLedTo: documents that are known under another address than the one that
// fails for the moment stay, with their ACLs, and so does what a page without a document and a
// sitemap lead to.
func TestWhatAFailingAddressLedTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := connectortest.NewSite(t)
	n := w.start(syncs.Config{})
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"urls": []string{s.URL + "/", s.URL + "/second"}})})
	moved := func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, "/target", http.StatusFound) }
	works := map[string]func(http.ResponseWriter, *http.Request){
		"/moved":       moved,
		"/p?utm=1":     html(`<title>P</title><link rel="canonical" href="/p">text of p`),
		"/hub":         html(`<meta name="robots" content="noindex"><a href="/behind">x</a>`),
		"/second":      html(`<link rel="canonical" href="/2nd">text of second<a href="/deep">x</a>`),
		"/sitemap.xml": html(`<urlset><url><loc>` + s.URL + `/mapped</loc></url></urlset>`),
	}
	for path, page := range works {
		s.Serve(path, page)
	}
	s.Page("/", "Home", "home", "/moved", "/p?utm=1", "/hub", "/gone")
	want := map[string]string{s.URL + "/": "home", s.URL + "/p": "text of p", s.URL + "/2nd": "text of second"}
	for _, name := range []string{"target", "behind", "deep", "mapped", "gone"} {
		s.Page("/"+name, name, "text of "+name)
		want[s.URL+"/"+name] = "text of " + name
	}
	w.syncs(n, src)
	first := w.holds(src, want)
	w.exec(`UPDATE kb_documents SET acl = '{group:staff}'`)
	for path, page := range works {
		for name, fails := range map[string]func(rw http.ResponseWriter){
			"502":           func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusBadGateway) },
			"429":           func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusTooManyRequests) },
			"no connection": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		} {
			s.Serve(path, func(rw http.ResponseWriter, _ *http.Request) { fails(rw) })
			if row := w.sync(n, src); row.Status != lifecycle.SourceOK || !strings.Contains(said(row), path) {
				t.Errorf("%s, %s: %s %q", path, name, row.Status, said(row))
			}
			w.holds(src, want)
		}
		s.Serve(path, page)
	}
	s.Remove("/gone")
	delete(want, s.URL+"/gone")
	w.syncs(n, src)
	for item, d := range w.holds(src, want) {
		if d.id != first[item].id || w.count(`SELECT count(*) FROM kb_documents WHERE id = $1 AND acl = '{group:staff}'`, d.id) != 1 {
			t.Errorf("%s is another document, or has another ACL", item)
		}
	}
}

// html answers with a page.
func html(text string) func(http.ResponseWriter, *http.Request) {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprint(rw, text)
	}
}

// TestAListingThatHangs without an end, with many requests for one page of which each is answered in time, ends the sync and
// deletes nothing.
func TestAListingThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "home", "/known")
	s.Page("/known", "Known", "known")
	src := w.source(api.SourceCreate{Kind: lifecycle.SourceWeb, Config: config(map[string]any{"url": s.URL + "/"})})
	w.syncs(w.start(syncs.Config{}), src)
	const patience = 300 * time.Millisecond
	var asked atomic.Int32
	s.Before(func(rw http.ResponseWriter, r *http.Request) bool {
		select {
		case <-time.After(patience / 2):
		case <-r.Context().Done():
		}
		http.Redirect(rw, r, fmt.Sprint("/", asked.Add(1)), http.StatusFound)
		return true
	})
	row := w.sync(w.start(syncs.Config{Patience: patience}), src)
	if row.Status != lifecycle.SourceFailed || said(row) != "the source did not answer in time" {
		t.Errorf("%s %q", row.Status, said(row))
	}
	if n := asked.Load(); n > 3 { // of the six that redirects take, for robots.txt alone
		t.Errorf("%d requests", n)
	}
	w.holds(src, map[string]string{s.URL + "/": "home", s.URL + "/known": "known"})
}

// TestAVendorThatHangs: a file that hangs does not end the sync at once, one after the other does,
// and nothing is deleted.
func TestAVendorThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.silence = 2 * time.Second
	f := connectortest.NewS3(t)
	n := w.start(syncs.Config{Patience: 5*time.Second + 2*time.Second}) // a file needs 5 s at least
	src := w.bucket(f)
	f.Put("gone", "canary")
	w.syncs(n, src)
	f.Delete("gone")
	for i := range 9 {
		f.Put(fmt.Sprint("k", i), "x")
	}
	hang := func(names string) {
		f.Before(func(_ http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.URL.Path, names) {
				return false
			}
			<-r.Context().Done()
			return true
		})
	}
	hang("/docs/k")
	if row := w.sync(n, src); row.Status != lifecycle.SourceFailed || !strings.Contains(said(row), "did not answer in time") {
		t.Fatal(row.Status, said(row))
	}
	if w.documents(src)["gone"].text != "canary" {
		t.Error("a vendor that hangs deletes")
	}
	hang("/docs/k0")
	patient := w.start(syncs.Config{Patience: time.Minute})
	if row := w.sync(patient, src); row.Status != lifecycle.SourceOK || !strings.Contains(said(row), "k0: the object store did not answer in time") {
		t.Fatal(row.Status, said(row))
	}
	if have := w.documents(src); len(have) != 8 {
		t.Errorf("%d documents", len(have))
	}
}
