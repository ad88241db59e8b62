package connector_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/blob/blobtest"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/source"
	"agentsvc/transport/connector"
	"agentsvc/transport/connector/connectortest"
	"agentsvc/transport/connector/vendor"
	"agentsvc/transport/egress"
)

// quick are time-outs of tests.
var quick = vendor.Timing{Call: 10 * time.Second, File: 10 * time.Second, Silence: 5 * time.Second, Backoff: time.Millisecond, MaxWait: 50 * time.Millisecond, Polite: -1}

func open(t *testing.T, kind source.Kind, base string, config map[string]any, credentials map[string]string) source.Source {
	t.Helper()
	return openWith(t, quick, kind, base, config, credentials)
}

func openWith(t *testing.T, timing vendor.Timing, kind source.Kind, base string, config map[string]any, credentials map[string]string) source.Source {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c, bad := source.ParseConfig(kind, raw)
	if bad != nil {
		t.Fatal(bad)
	}
	guard := egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Observe: func(to netip.AddrPort, _ error) error {
		if !to.Addr().Unmap().IsLoopback() {
			return errors.New("tests dial loopback only")
		}
		return nil
	}})
	all := connector.New(connector.Config{Guard: guard, OfficeDriveURL: base, CloudDriveURL: base, RequireTLS: true, Version: "test", Timing: timing})
	t.Cleanup(all.Close)
	s, err := all.Open(kind, c, credentials)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// walked is the result of a walk.
type walked struct {
	items   []source.Item
	text    map[string]string // of contents that came with the listing
	last    source.Page
	resumes []string // after each page
	restart bool
}

func (w walked) ids() string {
	var ids []string
	for _, i := range w.items {
		id := i.ID
		if i.Deleted {
			id = "-" + id
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

func (w walked) item(t *testing.T, id string) source.Item {
	t.Helper()
	for _, i := range w.items {
		if i.ID == id {
			return i
		}
	}
	t.Fatalf("%s is not among %s", id, w.ids())
	return source.Item{}
}

func tryWalk(s source.Source, from source.Position) (walked, error) {
	w := walked{text: map[string]string{}}
	err := s.Walk(context.Background(), from, func(_ context.Context, p source.Page) error {
		if p.Restart {
			w.items, w.restart = nil, true
		}
		for _, i := range p.Items {
			if i.Content != nil {
				b, err := io.ReadAll(i.Content.Body)
				if err != nil {
					return err
				}
				w.text[i.ID] = string(b)
			}
			w.items = append(w.items, i)
		}
		if p.Resume != "" {
			w.resumes = append(w.resumes, p.Resume)
		}
		w.last = p
		return nil
	})
	return w, err
}

func walk(t *testing.T, s source.Source, from source.Position) walked {
	t.Helper()
	w, err := tryWalk(s, from)
	if err != nil {
		t.Fatal(err)
	}
	if !w.last.Last {
		t.Fatal("the walk ended without its last page")
	}
	return w
}

func fetch(t *testing.T, s source.Source, i source.Item) (string, source.Content) {
	t.Helper()
	c, err := s.Fetch(context.Background(), i)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Body.Close()
	b, err := io.ReadAll(c.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), c
}

func fault(t *testing.T, err error) *source.Fault {
	t.Helper()
	f := new(source.Fault)
	if !errors.As(err, &f) {
		t.Fatalf("%v is no fault", err)
	}
	for _, canary := range []string{connectortest.Token, connectortest.Secret, connectortest.KeyID, connectortest.Email, "http://"} {
		if strings.Contains(f.Reason, canary) {
			t.Errorf("%q holds %s", f.Reason, canary)
		}
	}
	return f
}

func openGraph(t *testing.T, g *connectortest.Graph) source.Source {
	return open(t, source.OfficeDrive, g.URL+"/v1.0", map[string]any{"drive_id": "drive-1"}, map[string]string{"access_token": connectortest.Token})
}

// TestOfficeDrive: nextLink and deltaLink, what changed only, contents without Authorization, ids
// that stay.
func TestOfficeDrive(t *testing.T) {
	t.Parallel()
	g := connectortest.NewGraph(t)
	s := openGraph(t, g)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		g.Put(id, id+".txt", "text of "+id)
	}
	w := walk(t, s, source.Position{})
	if w.ids() != "a b c d e" || !w.last.Full || w.last.Delta == "" {
		t.Fatalf("%s %+v", w.ids(), w.last)
	}
	a := w.item(t, "a")
	if a.Name != "a.txt" || a.URI != "https://office.example/a.txt" || a.Size != 9 || a.MediaType != "text/plain" {
		t.Fatalf("%+v", a)
	}
	if text, _ := fetch(t, s, a); text != "text of a" {
		t.Fatal(text)
	}
	if leaked := g.Leaked(); len(leaked) > 0 {
		t.Fatalf("the host of contents got %v", leaked)
	}

	g.Rename("a", "renamed.txt")
	g.Put("b", "b.txt", "another text")
	g.Delete("c", false)
	g.Calls()
	d := walk(t, s, source.Position{Delta: w.last.Delta})
	if d.ids() != "-c a b" || d.last.Full || connectortest.Count(g.Calls(), "listing") != 2 {
		t.Fatalf("%s %+v", d.ids(), d.last)
	}
	if d.item(t, "a").Version != a.Version || d.item(t, "a").Name != "renamed.txt" {
		t.Fatal("a renamed file counts as changed")
	}
	if d.item(t, "b").Version == w.item(t, "b").Version {
		t.Fatal("a changed file counts as unchanged")
	}
	if again := walk(t, s, source.Position{Delta: d.last.Delta}); again.ids() != "" || !again.last.Last {
		t.Fatalf("nothing changed, and %s is listed", again.ids())
	}
	if text, _ := fetch(t, s, source.Item{ID: "b", Link: g.Downloads.URL + "/old-link"}); text != "another text" {
		t.Fatalf("with a link that has expired: %q", text)
	}
}

// TestOfficeDriveStartsOver: 410 starts over, and so does a deleted folder, whose files have no
// entries of their own.
func TestOfficeDriveStartsOver(t *testing.T) {
	t.Parallel()
	g := connectortest.NewGraph(t)
	s := openGraph(t, g)
	g.Put("a", "a.txt", "a")
	g.Put("b", "b.txt", "b")
	g.Put("c", "c.txt", "c")
	w := walk(t, s, source.Position{})
	g.Vanish("a")
	g.Forget()
	over := walk(t, s, source.Position{Delta: w.last.Delta})
	if !over.restart || over.ids() != "b c" || !over.last.Full || over.last.Delta == "" {
		t.Fatalf("%v %s %+v", over.restart, over.ids(), over.last)
	}
	g.Vanish("b")
	g.Delete("folder", true)
	over = walk(t, s, source.Position{Delta: over.last.Delta})
	if !over.restart || over.ids() != "c" || !over.last.Full {
		t.Fatalf("%v %s %+v", over.restart, over.ids(), over.last)
	}
}

func openDrive(t *testing.T, d *connectortest.Drive, folder string) source.Source {
	config := map[string]any{}
	if folder != "" {
		config["folder_id"] = folder
	}
	return open(t, source.CloudDrive, d.URL+"/drive/v3", config, map[string]string{"access_token": connectortest.Token})
}

// TestCloudDrive: files.list, alt=media, exports of editors' documents, forms and shortcuts
// skipped, a folder with its subfolders.
func TestCloudDrive(t *testing.T) {
	t.Parallel()
	d := connectortest.NewDrive(t)
	const google = "application/vnd.google-apps."
	d.Put("f1", connectortest.File{Name: "top", Kind: google + "folder"})
	d.Put("f2", connectortest.File{Name: "below", Kind: google + "folder", Parent: "f1"})
	d.Put("f3", connectortest.File{Name: "deepest", Kind: google + "folder", Parent: "f2"})
	d.Put("a", connectortest.File{Name: "a.txt", Kind: "text/plain", Text: "text a", Parent: "f1"})
	d.Put("b", connectortest.File{Name: "a.txt", Kind: "text/plain", Text: "text b", Parent: "f3"})
	d.Put("doc", connectortest.File{Name: "Plan", Kind: google + "document", Text: "the plan", Parent: "f2"})
	d.Put("form", connectortest.File{Name: "Form", Kind: google + "form", Parent: "f1"})
	d.Put("link", connectortest.File{Name: "Link", Kind: google + "shortcut", Parent: "f1"})
	d.Put("other", connectortest.File{Name: "other.txt", Kind: "text/plain", Text: "elsewhere"})
	if w := walk(t, openDrive(t, d, ""), source.Position{}); w.ids() != "a b doc other" || !w.last.Full {
		t.Fatal(w.ids())
	}
	s := openDrive(t, d, "f1")
	w := walk(t, s, source.Position{})
	if w.ids() != "a b doc" || !w.last.Full || w.last.Delta != "" {
		t.Fatal(w.ids())
	}
	if text, c := fetch(t, s, w.item(t, "doc")); text != "the plan" || c.MediaType != "text/html" {
		t.Fatal(text, c.MediaType)
	}
	if text, c := fetch(t, s, w.item(t, "b")); text != "text b" || c.MediaType != "text/plain" {
		t.Fatal(text, c.MediaType)
	}
	before := w.item(t, "a").Version
	d.Put("a", connectortest.File{Name: "moved.txt", Kind: "text/plain", Text: "text a", Parent: "f3"})
	if w := walk(t, s, source.Position{}); w.item(t, "a").Version != before || w.item(t, "a").Name != "moved.txt" {
		t.Fatal("a moved file counts as changed")
	}
}

// TestCloudDriveEmptyFolders, however many one after the other, are no listing without an end.
func TestCloudDriveEmptyFolders(t *testing.T) {
	t.Parallel()
	d := connectortest.NewDrive(t)
	d.PerPage = 1000
	const folder = "application/vnd.google-apps.folder"
	d.Put("f1", connectortest.File{Name: "top", Kind: folder})
	for i := range 250 {
		d.Put(fmt.Sprintf("f2-%03d", i), connectortest.File{Name: "customer", Kind: folder, Parent: "f1"})
	}
	d.Put("a", connectortest.File{Name: "a.txt", Kind: "text/plain", Text: "text a", Parent: "f2-249"})
	if w := walk(t, openDrive(t, d, "f1"), source.Position{}); w.ids() != "a" || !w.last.Full {
		t.Errorf("%s %+v", w.ids(), w.last)
	}
}

// TestCloudDriveLimitOf403: the vendor reports limits as 403, which is not a lack of rights.
func TestCloudDriveLimitOf403(t *testing.T) {
	t.Parallel()
	d := connectortest.NewDrive(t)
	d.Put("a", connectortest.File{Name: "a.txt", Kind: "text/plain", Text: "text a"})
	var failed atomic.Bool
	d.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		if !failed.CompareAndSwap(false, true) {
			return false
		}
		http.Error(w, `{"error":{"errors":[{"reason":"userRateLimitExceeded"}]}}`, http.StatusForbidden)
		return true
	})
	if w := walk(t, openDrive(t, d, ""), source.Position{}); w.ids() != "a" {
		t.Fatal(w.ids())
	}
}

func openWiki(t *testing.T, k *connectortest.Wiki, suffix, space string) source.Source {
	config := map[string]any{"base_url": k.URL + suffix}
	if space != "" {
		config["space_key"] = space
	}
	return open(t, source.Wiki, "", config, map[string]string{"email": connectortest.Email, "api_token": connectortest.Token})
}

// TestWiki: base_url with / and /wiki at its end, one space, versions, storage bodies.
func TestWiki(t *testing.T) {
	t.Parallel()
	k := connectortest.NewWiki(t)
	for i := range 5 {
		k.Put(fmt.Sprint(100+i), "10", fmt.Sprint("Page ", i), "<p>hello</p>")
	}
	k.Put("200", "20", "Ops", "<p>ops</p>")
	for _, suffix := range []string{"", "/", "/wiki", "/wiki/"} {
		if w := walk(t, openWiki(t, k, suffix, ""), source.Position{}); w.ids() != "100 101 102 103 104 200" || !w.last.Full {
			t.Fatalf("%q: %s", suffix, w.ids())
		}
	}
	s := openWiki(t, k, "/wiki", "OPS")
	w := walk(t, s, source.Position{})
	if w.ids() != "200" || w.items[0].Name != "Ops" || w.items[0].URI != k.URL+"/wiki/spaces/x/pages/200" {
		t.Fatalf("%+v", w.items)
	}
	text, c := fetch(t, s, w.items[0])
	if c.MediaType != "text/html" || !strings.Contains(text, "<p>ops</p>") || !strings.Contains(text, "<title>Ops</title>") {
		t.Fatal(text)
	}
	before := w.items[0].Version
	k.Put("200", "20", "Ops", "<p>new</p>")
	if w := walk(t, s, source.Position{}); w.items[0].Version == before {
		t.Fatal("a changed page counts as unchanged")
	}
	if _, err := tryWalk(openWiki(t, k, "", "NONE"), source.Position{}); !strings.Contains(fault(t, err).Reason, "no space with this key") {
		t.Fatal(err)
	}
}

func openS3(t *testing.T, endpoint, region, bucket, prefix, key, secret string) source.Source {
	config := map[string]any{"endpoint": endpoint, "region": region, "bucket": bucket}
	if prefix != "" {
		config["prefix"] = prefix
	}
	return open(t, source.ObjectStore, "", config, map[string]string{"access_key_id": key, "secret_access_key": secret})
}

// TestObjectStore speaks to a real S3-compatible server, which checks signatures.
func TestObjectStore(t *testing.T) {
	t.Parallel()
	real := blobtest.New(t)
	s := openS3(t, "http://"+real.Addr, blobtest.Region, blobtest.Bucket, "", blobtest.KeyID, blobtest.Secret)
	if w := walk(t, s, source.Position{}); w.ids() != "" || !w.last.Full {
		t.Fatal(w.ids())
	}
	files, err := blob.Open(context.Background(), location(t, real), t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if _, _, err := files.Put(context.Background(), "docs/a.txt", strings.NewReader("text of a"), 100); err != nil {
		t.Fatal(err)
	}
	under := openS3(t, "http://"+real.Addr, blobtest.Region, blobtest.Bucket, "docs/", blobtest.KeyID, blobtest.Secret)
	w := walk(t, under, source.Position{})
	if w.ids() != "docs/a.txt" || w.items[0].Version == "" || w.items[0].Size != 9 {
		t.Fatalf("%+v", w.items)
	}
	if text, _ := fetch(t, under, w.items[0]); text != "text of a" {
		t.Fatal(text)
	}
	for status, c := range map[string]source.Source{
		"secret access key was refused": openS3(t, "http://"+real.Addr, blobtest.Region, blobtest.Bucket, "", blobtest.KeyID, "wrong"),
		"does not know the access key":  openS3(t, "http://"+real.Addr, blobtest.Region, blobtest.Bucket, "", "nobody", blobtest.Secret),
		"bucket does not exist":         openS3(t, "http://"+real.Addr, blobtest.Region, "other-bucket", "", blobtest.KeyID, blobtest.Secret),
	} {
		if _, err := tryWalk(c, source.Position{}); !strings.Contains(fault(t, err).Reason, status) {
			t.Errorf("%s: %v", status, err)
		}
	}
}

func location(t *testing.T, real *blobtest.Server) blob.Location {
	t.Helper()
	at, err := blob.ParseLocation(real.URL(""), blob.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestObjectStoreListing: pages, prefix, ETags as versions, odd keys, contents.
func TestObjectStoreListing(t *testing.T) {
	t.Parallel()
	f := connectortest.NewS3(t)
	f.PerPage = 2
	keys := []string{"docs/a.txt", "docs/b c+d%20.txt", "docs/sub/a.txt", "docs/ü/日本.md", "docs/folder/"}
	for _, k := range keys {
		f.Put(k, "text of "+k)
	}
	f.Put("other/z.txt", "z")
	s := openS3(t, f.URL, "eu-test-1", "docs", "docs/", connectortest.KeyID, connectortest.Secret)
	w := walk(t, s, source.Position{})
	if len(w.items) != 4 || !w.last.Full {
		t.Fatal(w.ids())
	}
	for _, k := range keys[:4] {
		i := w.item(t, k)
		if text, _ := fetch(t, s, i); text != "text of "+k || i.Version == "" || i.Name != k[strings.LastIndex(k, "/")+1:] {
			t.Fatalf("%+v %q", i, text)
		}
	}
	before := w.item(t, "docs/a.txt").Version
	f.Put("docs/a.txt", "other")
	f.Delete("docs/sub/a.txt")
	if w := walk(t, s, source.Position{}); w.item(t, "docs/a.txt").Version == before || len(w.items) != 3 {
		t.Fatal(w.ids())
	}
}

// TestTenThousandObjects: nothing but listing calls, ten of them.
func TestTenThousandObjects(t *testing.T) {
	t.Parallel()
	f := connectortest.NewS3(t)
	for i := range 10_000 {
		f.Put(fmt.Sprintf("k/%05d.txt", i), "x")
	}
	s := openS3(t, f.URL, "eu-test-1", "docs", "", connectortest.KeyID, connectortest.Secret)
	w := walk(t, s, source.Position{})
	if calls := f.Calls(); len(w.items) != 10_000 || len(calls) != 10 || connectortest.Count(calls, "listing") != 10 {
		t.Fatalf("%d items by %d calls", len(w.items), len(calls))
	}
}

// vendors are all sources with some files and pages of a listing, for what holds for each kind.
func vendors(t *testing.T) map[string]struct {
	server *connectortest.Server
	source source.Source
	all    string
} {
	g := connectortest.NewGraph(t)
	d := connectortest.NewDrive(t)
	k := connectortest.NewWiki(t)
	f := connectortest.NewS3(t)
	f.PerPage = 2
	for i := range 5 {
		id := fmt.Sprint("id", i)
		g.Put(id, id, "text")
		d.Put(id, connectortest.File{Name: id, Kind: "text/plain", Text: "text"})
		k.Put(id, "10", id, "<p>text</p>")
		f.Put(id, "text")
	}
	type row = struct {
		server *connectortest.Server
		source source.Source
		all    string
	}
	const all = "id0 id1 id2 id3 id4"
	return map[string]row{
		"office_drive": {&g.Server, openGraph(t, g), all},
		"cloud_drive":  {&d.Server, openDrive(t, d, ""), all},
		"wiki":         {&k.Server, openWiki(t, k, "", ""), all},
		"object_store": {&f.Server, openS3(t, f.URL, "eu-test-1", "docs", "", connectortest.KeyID, connectortest.Secret), all},
	}
}

// TestResume: a walk that was killed behind any page continues there, and both parts together
// name everything.
func TestResume(t *testing.T) {
	t.Parallel()
	for name, v := range vendors(t) {
		whole := walk(t, v.source, source.Position{})
		if whole.ids() != v.all || len(whole.resumes) < 2 {
			t.Fatalf("%s: %s %d", name, whole.ids(), len(whole.resumes))
		}
		for i, at := range whole.resumes {
			rest := walk(t, v.source, source.Position{Resume: at})
			if rest.restart || !rest.last.Full || len(rest.items) != len(whole.items)-2*(i+1) && name != "office_drive" {
				t.Errorf("%s, page %d: %s", name, i, rest.ids())
			}
			if rest.last.Delta != whole.last.Delta {
				t.Errorf("%s: another delta after a pause", name)
			}
			for _, item := range whole.items[len(whole.items)-len(rest.items):] {
				rest.item(t, item.ID)
			}
		}
	}
}

// TestOneVendorFaultIsRetried: 429 with and without Retry-After, 5xx, a broken connection, a
// broken answer.
func TestOneVendorFaultIsRetried(t *testing.T) {
	t.Parallel()
	for name, v := range vendors(t) {
		for fault, answer := range map[string]func(w http.ResponseWriter){
			"429": func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
			"429 in a sec": func(w http.ResponseWriter) {
				w.Header().Set("Retry-After", "0.01")
				w.WriteHeader(http.StatusTooManyRequests)
			},
			"a date by a clock that is far off": func(w http.ResponseWriter) {
				w.Header().Set("Date", "Fri, 01 Jan 2038 00:00:00 GMT")
				w.Header().Set("Retry-After", "Fri, 01 Jan 2038 00:00:00 GMT")
				w.WriteHeader(http.StatusTooManyRequests)
			},
			"500":    func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
			"503":    func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
			"broken": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
			"broken in the middle": func(w http.ResponseWriter) {
				w.Header().Set("Content-Length", "1000")
				fmt.Fprint(w, "half")
				panic(http.ErrAbortHandler)
			},
		} {
			var failed atomic.Bool
			v.server.Before(func(w http.ResponseWriter, _ *http.Request) bool {
				if !failed.CompareAndSwap(false, true) {
					return false
				}
				answer(w)
				return true
			})
			w, err := tryWalk(v.source, source.Position{})
			if err != nil || w.ids() != v.all || !failed.Load() {
				t.Errorf("%s, %s: %s %v", name, fault, w.ids(), err)
			}
		}
	}
}

// TestAVendorThatFails: the walk ends with a fault in plain words, and never with a last page.
func TestAVendorThatFails(t *testing.T) {
	t.Parallel()
	for name, v := range vendors(t) {
		for what, c := range map[string]struct {
			answer func(w http.ResponseWriter)
			want   string
			of     string // the vendor that it is about; empty: each
		}{
			"a clock that is far off": {answer: func(w http.ResponseWriter) { connectortest.S3Error(w, http.StatusForbidden, "RequestTimeTooSkewed") },
				want: "the clock of the object store and ours differ too much (403)", of: "object_store"},
			"401":          {answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, want: "refused (401)"},
			"403":          {answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) }, want: "(403)"},
			"500":          {answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }, want: "failed (500)"},
			"429 for ages": {answer: func(w http.ResponseWriter) { w.Header().Set("Retry-After", "3600"); w.WriteHeader(429) }, want: "it asks to wait 1h0m0s"},
			"a login page": {answer: func(w http.ResponseWriter) {
				w.Header().Set("Content-Type", "text/html")
				fmt.Fprint(w, "<html></html>")
			}, want: "cannot be read"},
			"empty JSON": {answer: func(w http.ResponseWriter) { fmt.Fprint(w, "{}") }, want: "cannot be read"},
			"nothing":    {answer: func(http.ResponseWriter) {}, want: "cannot be read"},
			"a redirect to a private address": {answer: func(w http.ResponseWriter) {
				w.Header().Set("Location", "http://10.0.0.1/")
				w.WriteHeader(http.StatusFound)
			}, want: "redirect"},
			"gigabytes": {answer: func(w http.ResponseWriter) {
				for chunk := bytes.Repeat([]byte(" "), 1<<20); ; {
					if _, err := w.Write(chunk); err != nil {
						return
					}
				}
			}, want: "larger than 16 MiB"},
		} {
			if c.of != "" && c.of != name {
				continue
			}
			v.server.Before(func(w http.ResponseWriter, _ *http.Request) bool { c.answer(w); return true })
			w, err := tryWalk(v.source, source.Position{})
			if f := fault(t, err); !strings.Contains(f.Reason, c.want) || w.last.Last {
				t.Errorf("%s, %s: %q", name, what, f.Reason)
			}
		}
	}
}

// TestATokenThatExpiresInTheMiddle: the pages before it count, and the fault says what happened.
func TestATokenThatExpiresInTheMiddle(t *testing.T) {
	t.Parallel()
	for name, v := range vendors(t) {
		var calls atomic.Int32
		v.server.Before(func(w http.ResponseWriter, _ *http.Request) bool {
			if calls.Add(1) < 3 {
				return false
			}
			if name == "object_store" {
				connectortest.S3Error(w, http.StatusForbidden, "ExpiredToken")
			} else {
				w.WriteHeader(http.StatusUnauthorized)
			}
			return true
		})
		w, err := tryWalk(v.source, source.Position{})
		if f := fault(t, err); !f.Login || !f.Lasting || len(w.items) == 0 || w.last.Last {
			t.Errorf("%s: %+v after %s", name, f, w.ids())
		}
	}
}

// TestAVendorThatHangs is given up, also in the middle of a file.
func TestAVendorThatHangs(t *testing.T) {
	t.Parallel()
	f := connectortest.NewS3(t)
	f.Put("a.txt", "text")
	open := func(silence time.Duration) source.Source {
		timing := quick
		timing.Silence = silence
		return openWith(t, timing, source.ObjectStore, "", map[string]any{"endpoint": f.URL, "region": "r", "bucket": "docs"},
			map[string]string{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret})
	}
	f.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/a.txt") {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		return true
	})
	if _, err := tryWalk(open(50*time.Millisecond), source.Position{}); !strings.Contains(fault(t, err).Reason, "did not answer in time") {
		t.Fatal(err)
	}
	c, err := open(time.Second).Fetch(context.Background(), source.Item{ID: "a.txt"}) // it must come as far as the middle
	if err != nil {
		t.Fatal(err)
	}
	defer c.Body.Close()
	if _, err := io.ReadAll(c.Body); !strings.Contains(fault(t, err).Reason, "stopped in the middle") || !fault(t, err).Item {
		t.Fatal(err)
	}
}

// TestEndlessPages: a listing that never ends is given up: one of pages without files soon, any other at 500,000 files or 50,000 pages,
// which a walk that goes on after a kill counts from where it was.
func TestEndlessPages(t *testing.T) {
	t.Parallel()
	more := map[string]string{ // a page without files and with a next one
		"office_drive": `{"value":[],"@odata.nextLink":"http://%[1]s%[2]s?token=0.%[3]d"}`,
		"cloud_drive":  `{"files":[],"nextPageToken":"%[3]d"}`,
		"wiki":         `{"results":[],"_links":{"next":"%[2]s?cursor=%[3]d"}}`,
		"object_store": `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%[3]d</NextContinuationToken></ListBucketResult>`,
	}
	for name, v := range vendors(t) {
		whole := walk(t, v.source, source.Position{})
		for member, at := range map[string]int{"n": 499_999, "p": 49_999} {
			var position map[string]any
			if err := json.Unmarshal([]byte(whole.resumes[0]), &position); err != nil || position[member] == nil {
				t.Fatalf("%s: the position %s has no %q", name, whole.resumes[0], member)
			}
			position[member] = at
			b, err := json.Marshal(position)
			if err != nil {
				t.Fatal(err)
			}
			rest, err := tryWalk(v.source, source.Position{Resume: string(b)})
			if f := fault(t, err); !strings.Contains(f.Reason, "does not end") || rest.last.Last {
				t.Errorf("%s behind %d of %q: %s", name, at, member, f.Reason)
			}
		}
		var n atomic.Int64
		v.server.Before(func(w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, more[name], r.Host, r.URL.Path, n.Add(1))
			return true
		})
		_, err := tryWalk(v.source, source.Position{})
		if f := fault(t, err); !strings.Contains(f.Reason, "does not end") || n.Load() > 1000 {
			t.Errorf("%s: %s after %d calls", name, f.Reason, n.Load())
		}
	}
	g := connectortest.NewGraph(t)
	g.Before(func(w http.ResponseWriter, r *http.Request) bool {
		fmt.Fprint(w, `{"value":[],"@odata.nextLink":"http://127.0.0.1:9/elsewhere"}`)
		return true
	})
	if _, err := tryWalk(openGraph(t, g), source.Position{}); !strings.Contains(fault(t, err).Reason, "another address") {
		t.Fatal(err)
	}
}

// TestHostileListings: what makes a small answer a large value, or a position that grows, is refused.
func TestHostileListings(t *testing.T) {
	t.Parallel()
	k, f := connectortest.NewWiki(t), connectortest.NewS3(t)
	many, long := 300_000, strings.Repeat("n", 20<<10)
	listing := func(inner string) string {
		return "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>" + inner + "</ListBucketResult>"
	}
	wiki := open(t, source.Wiki, "", map[string]any{"base_url": k.URL}, map[string]string{"email": connectortest.Email, "api_token": connectortest.Token})
	bucket := openS3(t, f.URL, "r1", "docs", "", connectortest.KeyID, connectortest.Secret)
	for name, c := range map[string]struct {
		server *connectortest.Server
		source source.Source
		answer string
	}{
		"entries":    {&k.Server, wiki, `{"results":[` + strings.Repeat("{},", many) + "{}]}"},
		"a link":     {&k.Server, wiki, `{"results":[],"_links":{"next":"/wiki/api/v2/pages?cursor=` + long + `"}}`},
		"depth":      {&k.Server, wiki, `{"results":` + strings.Repeat("[", 100_000)},
		"objects":    {&f.Server, bucket, listing(strings.Repeat("<Contents/>", many))},
		"attributes": {&f.Server, bucket, listing("<Contents" + strings.Repeat(` a = ""`, many) + "/>")},
		"elements":   {&f.Server, bucket, listing(strings.Repeat("<a>", many))},
		"a token":    {&f.Server, bucket, strings.Replace(listing("<Contents><Key>a</Key></Contents>"), ">t<", ">"+long+"<", 1)},
	} {
		calls := 0
		c.server.Before(func(w http.ResponseWriter, _ *http.Request) bool {
			calls++
			fmt.Fprint(w, c.answer)
			return true
		})
		if _, err := tryWalk(c.source, source.Position{}); err == nil || !strings.Contains(fault(t, err).Reason, "cannot be read") || calls != 1 {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
		c.server.Before(nil)
	}
	k.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		fmt.Fprintf(w, `{"id":"1","title":"T","body":{"storage":{"value":"<p%s>"}}}`, strings.Repeat(" a", 2<<20))
		return true
	})
	if _, err := wiki.Fetch(context.Background(), source.Item{ID: "1"}); err == nil || !fault(t, err).Content || !fault(t, err).Item {
		t.Error(err)
	}
}

// TestOneBadFile: its fault concerns the file alone.
func TestOneBadFile(t *testing.T) {
	t.Parallel()
	for name, v := range vendors(t) {
		w := walk(t, v.source, source.Position{})
		item := w.items[0]
		item.Link = ""
		for _, status := range []int{http.StatusForbidden, http.StatusNotFound, http.StatusInternalServerError} {
			v.server.Before(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true })
			_, err := v.source.Fetch(context.Background(), item)
			if f := fault(t, err); !f.Item || f.Gone != (status == http.StatusNotFound) {
				t.Errorf("%s, %d: %+v", name, status, f)
			}
		}
	}
}

// TestAFileOfGigabytes: no more than 50 MiB of it are read.
func TestAFileOfGigabytes(t *testing.T) {
	t.Parallel()
	f := connectortest.NewS3(t)
	f.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		for chunk := make([]byte, 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				return true
			}
		}
	})
	s := openS3(t, f.URL, "r1", "docs", "", connectortest.KeyID, connectortest.Secret)
	c, err := s.Fetch(context.Background(), source.Item{ID: "big.txt"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Body.Close()
	n, err := io.Copy(io.Discard, c.Body)
	if f := fault(t, err); f.Reason != vendor.TooLarge || !f.Item || !f.Lasting || n > vendor.MaxFile {
		t.Fatal(n, f)
	}
}

// TestOpenWithoutCredentials: a source whose credentials were dropped says so.
func TestOpenWithoutCredentials(t *testing.T) {
	t.Parallel()
	all := connector.New(connector.Config{Guard: egress.New(egress.Config{})})
	t.Cleanup(all.Close)
	for _, k := range lifecycle.SourceKinds {
		if _, err := all.Open(k, source.Config{}, nil); err == nil || fault(t, err).Reason == "" {
			t.Errorf("%s: %v", k, err)
		}
	}
}
