// Package connectortest gives tests small servers that speak the interfaces of the vendors of
// knowledge sources over HTTP: Microsoft Graph, Confluence Cloud, Google Drive, S3 and a website.
// They count calls, and a test can make any call fail first.
package connectortest

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Credentials that the servers accept.
const (
	Token  = "token-canary-1"
	Email  = "ada@example.com"
	KeyID  = "KEYCANARY1"
	Secret = "secret-canary-1"
)

// Server is what all fakes have in common.
type Server struct {
	*httptest.Server
	mu     sync.Mutex // guards the fields below and those of the fakes
	calls  []string   // "listing" or "content <id>"
	before func(w http.ResponseWriter, r *http.Request) bool
	leaked []string
}

// Before sets what handles a request first; it returns true if it answered.
func (s *Server) Before(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// Calls returns the calls since the last call of it, and forgets them.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls
	s.calls = nil
	return c
}

// Count counts calls by their first word.
func Count(calls []string, word string) int {
	n := 0
	for _, c := range calls {
		if first, _, _ := strings.Cut(c, " "); first == word {
			n++
		}
	}
	return n
}

func (s *Server) start(t testing.TB, handle func(w http.ResponseWriter, r *http.Request)) {
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		before := s.before
		s.mu.Unlock()
		if before != nil && before(w, r) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		handle(w, r)
	}))
	t.Cleanup(s.Close)
}

func (s *Server) note(call string) { s.calls = append(s.calls, call) }

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

func bearer(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Authorization") != "Bearer "+Token {
		http.Error(w, `{"error":{"code":"InvalidAuthenticationToken","message":"`+r.Header.Get("Authorization")+`"}}`, http.StatusUnauthorized)
		return false
	}
	return true
}

// File is a file of a fake.
type File struct {
	Name, Text, Kind string
	Parent           string // cloud drive: a folder's id
	edit             int    // changes of the content
	at               int    // the last change of anything
	gone, folder     bool
}

// Graph is a drive of Microsoft Graph with a host of its own for contents.
type Graph struct {
	Server
	Downloads *httptest.Server
	PerPage   int
	files     map[string]*File
	clock     int
	forgets   int // delta tokens before it are answered with 410
}

// NewGraph starts a drive with the id "drive-1".
func NewGraph(t testing.TB) *Graph {
	g := &Graph{files: map[string]*File{}, PerPage: 2}
	g.start(t, g.handle)
	g.Downloads = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if h := r.Header.Get("Authorization"); h != "" {
			g.leaked = append(g.leaked, h)
		}
		id := strings.TrimPrefix(r.URL.Path, "/")
		g.note("content " + id)
		f := g.files[id]
		if f == nil || f.gone {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, f.Text)
	}))
	t.Cleanup(g.Downloads.Close)
	return g
}

// Leaked returns credentials that reached the host of contents.
func (s *Server) Leaked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.leaked)
}

// Put creates a file or changes its content.
func (g *Graph) Put(id, name, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock++
	f := g.files[id]
	if f == nil {
		f = &File{}
		g.files[id] = f
	}
	f.Name, f.Text, f.at, f.gone = name, text, g.clock, false
	f.edit++
}

// Rename changes the name only.
func (g *Graph) Rename(id, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock++
	g.files[id].Name, g.files[id].at = name, g.clock
}

// Delete deletes a file. With a folder's facet the server says that it was one.
func (g *Graph) Delete(id string, folder bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock++
	if g.files[id] == nil {
		g.files[id] = &File{}
	}
	g.files[id].gone, g.files[id].folder, g.files[id].at = true, folder, g.clock
}

// Vanish deletes a file without an entry in the delta, as happens below a deleted folder.
func (g *Graph) Vanish(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.files, id)
}

// Forget makes all delta tokens so far be answered with 410.
func (g *Graph) Forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock++
	g.forgets = g.clock
}

func (g *Graph) entry(id string, f *File) map[string]any {
	if f.gone {
		e := map[string]any{"id": id, "deleted": map[string]any{"state": "deleted"}}
		if f.folder {
			e["folder"] = map[string]any{}
		}
		return e
	}
	return map[string]any{"id": id, "name": f.Name, "size": len(f.Text), "webUrl": "https://office.example/" + f.Name, "eTag": fmt.Sprint("e", f.at), "cTag": fmt.Sprint("c", f.edit),
		"file": map[string]any{"mimeType": "text/plain"}, "@microsoft.graph.downloadUrl": g.Downloads.URL + "/" + id}
}

func (g *Graph) handle(w http.ResponseWriter, r *http.Request) {
	if !bearer(w, r) {
		return
	}
	if id, ok := strings.CutPrefix(r.URL.Path, "/v1.0/drives/drive-1/items/"); ok {
		g.note("item " + id)
		if f := g.files[id]; f != nil && !f.gone {
			answer(w, g.entry(id, f))
			return
		}
		http.NotFound(w, r)
		return
	}
	if r.URL.Path != "/v1.0/drives/drive-1/root/delta" {
		http.NotFound(w, r)
		return
	}
	g.note("listing")
	since, skip := 0, 0
	if t := r.URL.Query().Get("token"); t != "" {
		fmt.Sscanf(t, "%d.%d", &since, &skip)
		if since > 0 && since < g.forgets {
			http.Error(w, `{"error":{"code":"resyncRequired"}}`, http.StatusGone)
			return
		}
	}
	var ids []string
	for id, f := range g.files {
		if f.at > since && (since > 0 || !f.gone) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return g.files[a].at - g.files[b].at })
	value := []any{}
	if since == 0 && skip == 0 {
		value = append(value, map[string]any{"id": "root", "name": "root", "root": map[string]any{}, "folder": map[string]any{}})
	}
	for _, id := range ids[min(skip, len(ids)):min(skip+g.PerPage, len(ids))] {
		value = append(value, g.entry(id, g.files[id]))
	}
	a := map[string]any{"value": value}
	at := g.URL + r.URL.Path + "?token="
	if skip+g.PerPage < len(ids) {
		a["@odata.nextLink"] = at + fmt.Sprintf("%d.%d", since, skip+g.PerPage)
	} else {
		a["@odata.deltaLink"] = at + fmt.Sprintf("%d.0", max(1, g.clock))
	}
	answer(w, a)
}

// Drive is Google Drive.
type Drive struct {
	Server
	PerPage int
	files   map[string]*File
	clock   int
}

// NewDrive starts a drive.
func NewDrive(t testing.TB) *Drive {
	d := &Drive{files: map[string]*File{}, PerPage: 2}
	d.start(t, d.handle)
	return d
}

// Put creates a file or changes it.
func (d *Drive) Put(id string, f File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clock++
	f.at = d.clock
	d.files[id] = &f
}

// Delete deletes a file.
func (d *Drive) Delete(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, id)
}

func (d *Drive) handle(w http.ResponseWriter, r *http.Request) {
	if !bearer(w, r) {
		return
	}
	q := r.URL.Query()
	if r.URL.Path == "/drive/v3/files" {
		d.note("listing")
		var ids []string
		for id, f := range d.files {
			if parent, _, ok := strings.Cut(q.Get("q"), "' in parents"); !ok || strings.TrimPrefix(parent, "'") == f.Parent {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		skip, _ := strconv.Atoi(q.Get("pageToken"))
		files := []any{}
		for _, id := range ids[min(skip, len(ids)):min(skip+d.PerPage, len(ids))] {
			f := d.files[id]
			e := map[string]any{"id": id, "name": f.Name, "mimeType": f.Kind, "modifiedTime": fmt.Sprint(f.at), "webViewLink": "https://drive.example/" + id}
			if !strings.HasPrefix(f.Kind, "application/vnd.google-apps.") {
				sum := md5.Sum([]byte(f.Text))
				e["md5Checksum"], e["size"] = hex.EncodeToString(sum[:]), fmt.Sprint(len(f.Text))
			}
			files = append(files, e)
		}
		a := map[string]any{"files": files}
		if skip+d.PerPage < len(ids) {
			a["nextPageToken"] = fmt.Sprint(skip + d.PerPage)
		}
		answer(w, a)
		return
	}
	id, isExport := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/drive/v3/files/"), "/export")
	f := d.files[id]
	switch native := f != nil && strings.HasPrefix(f.Kind, "application/vnd.google-apps."); {
	case f == nil:
		http.NotFound(w, r)
	case isExport && native:
		d.note("export " + id + " " + q.Get("mimeType"))
		if q.Get("mimeType") == "text/markdown" {
			http.Error(w, `{"error":{"errors":[{"reason":"badRequest"}]}}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", q.Get("mimeType"))
		fmt.Fprint(w, f.Text)
	case !isExport && !native && q.Get("alt") == "media":
		d.note("content " + id)
		w.Header().Set("Content-Type", f.Kind)
		fmt.Fprint(w, f.Text)
	default:
		http.Error(w, `{"error":{"errors":[{"reason":"fileNotDownloadable"}]}}`, http.StatusForbidden)
	}
}

// Wiki is Confluence Cloud.
type Wiki struct {
	Server
	PerPage int
	pages   map[string]*File // Parent is the space's id
}

// NewWiki starts a wiki with the spaces ENG (id 10) and OPS (id 20).
func NewWiki(t testing.TB) *Wiki {
	k := &Wiki{pages: map[string]*File{}, PerPage: 2}
	k.start(t, k.handle)
	return k
}

// Put creates a page or changes it.
func (k *Wiki) Put(id, space, title, storage string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.pages[id]
	if f == nil {
		f = &File{}
		k.pages[id] = f
	}
	f.Name, f.Parent, f.Text = title, space, storage
	f.edit++
}

// Delete deletes a page.
func (k *Wiki) Delete(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pages, id)
}

func (k *Wiki) handle(w http.ResponseWriter, r *http.Request) {
	if user, token, _ := r.BasicAuth(); user != Email || token != Token {
		http.Error(w, "no "+token, http.StatusUnauthorized)
		return
	}
	entry := func(id string, f *File, body bool) map[string]any {
		e := map[string]any{"id": id, "status": "current", "title": f.Name, "spaceId": f.Parent, "version": map[string]any{"number": f.edit}, "_links": map[string]any{"webui": "/spaces/x/pages/" + id}}
		if body {
			e["body"] = map[string]any{"storage": map[string]any{"value": f.Text, "representation": "storage"}}
		}
		return e
	}
	q := r.URL.Query()
	at, _ := strings.CutPrefix(r.URL.Path, "/wiki/api/v2/")
	switch {
	case at == "spaces":
		results := []any{}
		for key, id := range map[string]string{"ENG": "10", "OPS": "20"} {
			if q.Get("keys") == key {
				results = append(results, map[string]any{"id": id, "key": key})
			}
		}
		answer(w, map[string]any{"results": results})
	case at == "pages":
		k.note("listing")
		var ids []string
		for id, f := range k.pages {
			if s := q.Get("space-id"); s == "" || s == f.Parent {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		skip, _ := strconv.Atoi(q.Get("cursor"))
		results := []any{}
		for _, id := range ids[min(skip, len(ids)):min(skip+k.PerPage, len(ids))] {
			results = append(results, entry(id, k.pages[id], q.Get("body-format") == "storage"))
		}
		links := map[string]any{"base": k.URL + "/wiki"}
		if skip+k.PerPage < len(ids) {
			q.Set("cursor", fmt.Sprint(skip+k.PerPage))
			links["next"] = "/wiki/api/v2/pages?" + q.Encode()
		}
		answer(w, map[string]any{"results": results, "_links": links})
	case strings.HasPrefix(at, "pages/"):
		id := strings.TrimPrefix(at, "pages/")
		k.note("content " + id)
		f := k.pages[id]
		if f == nil || q.Get("body-format") != "storage" {
			http.NotFound(w, r)
			return
		}
		answer(w, entry(id, f, true))
	default:
		http.NotFound(w, r)
	}
}

// S3 is an object store. It checks who signed a request, and not the signature.
type S3 struct {
	Server
	PerPage int
	objects map[string]string
	sizes   map[string]int // that listings say instead of the true ones
}

// NewS3 starts an object store with the bucket "docs".
func NewS3(t testing.TB) *S3 {
	s := &S3{objects: map[string]string{}, sizes: map[string]int{}, PerPage: 1000}
	s.start(t, s.handle)
	return s
}

// Put stores an object.
func (s *S3) Put(key, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = text
	delete(s.sizes, key)
}

// Declare makes listings say another size of an object, until it is put again.
func (s *S3) Declare(key string, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sizes[key] = size
}

// Delete deletes an object.
func (s *S3) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
}

func s3Error(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s %s</Message></Error>", code, KeyID, Secret)
}

// S3Error answers with an error of S3.
func S3Error(w http.ResponseWriter, status int, code string) { s3Error(w, status, code) }

func (s *S3) handle(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="+KeyID+"/") {
		s3Error(w, http.StatusForbidden, "InvalidAccessKeyId")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != "docs" {
		s3Error(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	if key != "" {
		s.note("content " + key)
		text, ok := s.objects[key]
		if !ok {
			s3Error(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", etag(text))
		w.Header().Set("Last-Modified", time.Unix(1e9, 0).UTC().Format(http.TimeFormat))
		fmt.Fprint(w, text)
		return
	}
	s.note("listing")
	q := r.URL.Query()
	var keys []string
	for k := range s.objects {
		if strings.HasPrefix(k, q.Get("prefix")) && k > q.Get("start-after") && k > q.Get("continuation-token") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	type content struct {
		Key          string
		LastModified string
		ETag         string
		Size         int
	}
	list := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name                  string
		EncodingType          string
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []content
	}{Name: bucket, EncodingType: "url"}
	for _, k := range keys[:min(s.PerPage, len(keys))] {
		size, ok := s.sizes[k]
		if !ok {
			size = len(s.objects[k])
		}
		list.Contents = append(list.Contents, content{url.QueryEscape(k), "2026-01-02T03:04:05Z", etag(s.objects[k]), size})
	}
	if len(keys) > s.PerPage {
		list.IsTruncated, list.NextContinuationToken = true, keys[s.PerPage-1]
	}
	w.Header().Set("Content-Type", "application/xml")
	if err := xml.NewEncoder(w).Encode(list); err != nil {
		panic(err)
	}
}

func etag(text string) string {
	sum := md5.Sum([]byte(text))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// Site is a website.
type Site struct {
	Server
	pages map[string]func(w http.ResponseWriter, r *http.Request)
}

// NewSite starts a website without pages. Its robots.txt is 404.
func NewSite(t testing.TB) *Site {
	s := &Site{pages: map[string]func(http.ResponseWriter, *http.Request){}}
	s.start(t, func(w http.ResponseWriter, r *http.Request) {
		s.note("get " + r.URL.RequestURI())
		page := s.pages[r.URL.RequestURI()]
		if page == nil {
			http.NotFound(w, r)
			return
		}
		page(w, r)
	})
	return s
}

// Serve sets what answers a path with its query.
func (s *Site) Serve(path string, f func(w http.ResponseWriter, r *http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = f
}

// Page sets an HTML page with a title, a text and links.
func (s *Site) Page(path, title, text string, links ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "<html><head><title>%s</title></head><body><p>%s</p>", title, text)
	for _, l := range links {
		fmt.Fprintf(&b, `<a href="%s">x</a>`, l)
	}
	s.File(path, "text/html; charset=utf-8", b.String()+"</body></html>")
}

// File sets a document of any media type.
func (s *Site) File(path, kind, text string) {
	s.Serve(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, text)
	})
}

// Remove removes a page.
func (s *Site) Remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pages, path)
}
