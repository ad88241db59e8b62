package connector_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/source"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/connector/connectortest"
)

func openSite(t *testing.T, s *connectortest.Site, more map[string]any) source.Source {
	config := map[string]any{"url": s.URL + "/"}
	for k, v := range more {
		config[k] = v
	}
	return open(t, source.Web, "", config, nil)
}

// at returns the ids of a walk as paths.
func at(w walked, s *connectortest.Site) string { return strings.ReplaceAll(w.ids(), s.URL, "") }

// TestWebDepth: the start page has depth 0, the default is 2, links of links; other hosts and
// what is no page are left out; linked pdf and txt files are documents.
func TestWebDepth(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "welcome", "/one", "/data.pdf", "notes.txt", "/picture.png", "http://127.0.0.2:1/other", "mailto:a@b", "/missing", "javascript:x", "/one#part")
	s.Page("/one", "One", "text one", "/two", "/")
	s.Page("/two", "Two", "text two", "/three")
	s.Page("/three", "Three", "text three")
	s.File("/data.pdf", "application/pdf", "%PDF-1.4")
	s.File("/notes.txt", "text/plain", "notes")
	s.File("/picture.png", "image/png", "png")
	w := walk(t, openSite(t, s, nil), source.Position{})
	if at(w, s) != "/ /data.pdf /notes.txt /one /two" || !w.last.Full {
		t.Fatal(at(w, s))
	}
	if one := w.item(t, s.URL+"/one"); one.Name != "One" || one.URI != s.URL+"/one" || one.MediaType != "text/html" || !strings.Contains(w.text[one.ID], "text one") {
		t.Fatalf("%+v", one)
	}
	if notes := w.item(t, s.URL+"/notes.txt"); notes.Name != "notes.txt" || w.text[notes.ID] != "notes" || notes.MediaType != "text/plain" {
		t.Fatalf("%+v", notes)
	}
	for depth, want := range map[int]string{0: "/", 1: "/ /data.pdf /notes.txt /one", 3: "/ /data.pdf /notes.txt /one /three /two"} {
		if w := walk(t, openSite(t, s, map[string]any{"depth": depth}), source.Position{}); at(w, s) != want {
			t.Errorf("depth %d: %s", depth, at(w, s))
		}
	}
	if w := walk(t, openSite(t, s, map[string]any{"max_pages": 2}), source.Position{}); at(w, s) != "/ /one" {
		t.Error(at(w, s))
	}
	before := w.item(t, s.URL+"/one").Version
	s.Page("/one", "One", "other text")
	again := walk(t, openSite(t, s, nil), source.Position{})
	if again.item(t, s.URL+"/one").Version == before || again.item(t, s.URL+"/").Version != w.item(t, s.URL+"/").Version {
		t.Error("versions do not follow the contents")
	}
}

// TestWebObeys: robots.txt, the robots element and header, rel=nofollow.
func TestWebObeys(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.File("/robots.txt", "text/plain", "User-agent: *\nDisallow: /secret\n")
	s.Page("/", "Home", "x", "/secret/a", "/noindex", "/header", "/alias")
	s.Page("/secret/a", "Secret", "canary")
	s.File("/noindex", "text/html", `<meta name="robots" content="noindex"><a href="/behind">`)
	s.Page("/behind", "Behind", "x")
	s.Serve("/header", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Robots-Tag", "noindex")
		w.Header().Set("Content-Type", "text/html")
	})
	s.Serve("/alias", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/secret/b", http.StatusFound) })
	w := walk(t, openSite(t, s, nil), source.Position{})
	if at(w, s) != "/ /behind" {
		t.Fatal(at(w, s))
	}
	for _, c := range s.Calls() {
		if strings.Contains(c, "/secret") {
			t.Error(c)
		}
	}
	s.File("/robots.txt", "text/plain", "User-agent: svc-crawler\nDisallow: /\n")
	if _, err := tryWalk(openSite(t, s, nil), source.Position{}); !strings.Contains(fault(t, err).Reason, "robots.txt forbids it") {
		t.Fatal(err)
	}
	s.Serve("/robots.txt", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if _, err := tryWalk(openSite(t, s, nil), source.Position{}); !strings.Contains(fault(t, err).Reason, "robots.txt cannot be read") {
		t.Fatal(err)
	}
}

// TestWebSitemap: pages that no page links to, a sitemap of sitemaps, gzip, other hosts left out.
func TestWebSitemap(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x")
	for _, p := range []string{"/a", "/b", "/c"} {
		s.Page(p, p, p)
	}
	s.File("/robots.txt", "text/plain", "Sitemap: "+s.URL+"/index.xml\n")
	s.File("/sitemap.xml", "application/xml", `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc> `+s.URL+`/a </loc></url><url><loc>http://127.0.0.2/x</loc></url></urlset>`)
	s.File("/index.xml", "application/xml", `<sitemapindex><sitemap><loc>`+s.URL+`/more.xml.gz</loc></sitemap><sitemap><loc>`+s.URL+`/index.xml</loc></sitemap></sitemapindex>`)
	s.Serve("/more.xml.gz", func(w http.ResponseWriter, _ *http.Request) {
		z := gzip.NewWriter(w)
		fmt.Fprintf(z, "<urlset><url><loc>%s/b</loc></url></urlset>", s.URL)
		z.Close()
	})
	if w := walk(t, openSite(t, s, nil), source.Position{}); at(w, s) != "/ /a /b" {
		t.Fatal(at(w, s))
	}
	if w := walk(t, openSite(t, s, map[string]any{"depth": 0}), source.Position{}); at(w, s) != "/" {
		t.Fatal(at(w, s))
	}
}

// TestWebAChainOfRedirects that takes long, each of them answered in time, is given up, and holds up no other page.
func TestWebAChainOfRedirects(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x", "/slow/0", "/a")
	s.Page("/a", "A", "x")
	var asked atomic.Int32
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/slow/") {
			return false
		}
		select {
		case <-time.After(60 * time.Millisecond):
		case <-r.Context().Done():
		}
		http.Redirect(w, r, fmt.Sprint("/slow/", asked.Add(1)), http.StatusFound)
		return true
	})
	timing := quick
	timing.Call = 100 * time.Millisecond
	w := walk(t, openWith(t, timing, source.Web, "", map[string]any{"url": s.URL + "/"}, nil), source.Position{})
	if n := asked.Load(); n > 2 || len(w.items) != 3 || w.item(t, s.URL+"/a").Fault != nil {
		t.Errorf("%d requests, %s", n, at(w, s))
	}
	for _, i := range w.items {
		if strings.Contains(i.ID, "/slow/") && (i.Fault == nil || i.Fault.Lasting || i.Fault.Reason != "the website did not answer in time") {
			t.Errorf("%+v", i.Fault)
		}
	}
}

// TestWebSitemapsThatFail, slowly and for the moment, take the time of one call together, and are named with their faults.
func TestWebSitemapsThatFail(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	var robots strings.Builder
	for i := range 9 {
		fmt.Fprintf(&robots, "Sitemap: %s/map%d.xml.gz\n", s.URL, i)
	}
	s.File("/robots.txt", "text/plain", robots.String())
	s.Page("/", "Home", "x", "/a")
	s.Page("/a", "A", "x")
	var asked atomic.Int32
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/map") {
			return false
		}
		asked.Add(1)
		select {
		case <-time.After(30 * time.Millisecond):
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	timing := quick
	timing.Call = 100 * time.Millisecond
	w := walk(t, openWith(t, timing, source.Web, "", map[string]any{"url": s.URL + "/"}, nil), source.Position{})
	if n := asked.Load(); n < 3 || n > 6 { // three attempts each
		t.Errorf("sitemaps were asked for %d times", n)
	}
	if i := w.item(t, s.URL+"/map0.xml.gz"); i.Fault == nil || i.Fault.Lasting || !i.Leads || w.item(t, s.URL+"/a").Fault != nil {
		t.Errorf("%s", at(w, s))
	}
}

// TestWebCanonical: one document for all addresses of a page; a canonical address at another host
// does not count.
func TestWebCanonical(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x", "/p?utm=1", "/p?utm=2", "/p", "/q", "/moved", "/target")
	for _, p := range []string{"/p?utm=1", "/p?utm=2", "/p"} {
		s.File(p, "text/html", `<title>P</title><link rel="canonical" href="/p">text`)
	}
	s.File("/q", "text/html", `<link rel="canonical" href="http://127.0.0.2/q">text`)
	s.Serve("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/target", http.StatusMovedPermanently)
	})
	s.Page("/target", "Target", "x")
	w := walk(t, openSite(t, s, nil), source.Position{})
	if at(w, s) != "/ /p /q /target" {
		t.Fatal(at(w, s))
	}
}

// TestWebFaults: an unreachable start page fails the walk; a page that fails or is refused is named with its
// fault, at the address that it redirects to, and one that is gone or has moved away is not named.
func TestWebFaults(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	if _, err := tryWalk(openSite(t, s, nil), source.Position{}); !strings.Contains(fault(t, err).Reason, "the start page cannot be read: there is no such page (404)") {
		t.Fatal(err)
	}
	closed := open(t, source.Web, "", map[string]any{"url": "http://" + testkit.Reserved(t) + "/"}, nil)
	if _, err := tryWalk(closed, source.Position{}); !strings.Contains(fault(t, err).Reason, "broke or was refused") {
		t.Fatal(err)
	}
	s.Page("/", "Home", "x", "/fails", "/gone", "/loop", "/out", "/moved", "/private", "/to-private", "/ok")
	s.Page("/ok", "OK", "x")
	s.Serve("/fails", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	s.Serve("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	s.Serve("/out", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
	})
	s.Serve("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://10.0.0.1/", http.StatusMovedPermanently)
	})
	s.Serve("/private", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	s.Serve("/to-private", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/hidden", http.StatusFound) })
	s.Serve("/hidden", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	w := walk(t, openSite(t, s, nil), source.Position{})
	if at(w, s) != "/ /fails /hidden /loop /ok /out /private" {
		t.Fatal(at(w, s))
	}
	for path, lasting := range map[string]bool{"/fails": false, "/hidden": true, "/loop": true, "/out": true, "/private": true} {
		if i := w.item(t, s.URL+path); i.Fault == nil || i.Fault.Lasting != lasting || i.Fault.Gone || !i.Leads || !i.Linked {
			t.Errorf("%s: %+v %+v", path, i, i.Fault)
		}
	}
	s.Serve("/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
	})
	if _, err := tryWalk(openSite(t, s, nil), source.Position{}); !strings.Contains(fault(t, err).Reason, "redirects to another host") {
		t.Fatal(err)
	}
}

// TestWebOneOfSeveralStartPages that fails does not block the others, and one that is gone has no document. What a certificate that cannot be
// verified hides is not known to be gone: the fault may pass.
func TestWebOneOfSeveralStartPages(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/a", "A", "x")
	s.Serve("/private", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	c := open(t, source.Web, "", map[string]any{"urls": []string{s.URL + "/none", s.URL + "/private", s.URL + "/a"}}, nil)
	w := walk(t, c, source.Position{})
	if at(w, s) != "/a /private" || !w.last.Full {
		t.Fatal(at(w, s))
	}
	if i := w.item(t, s.URL+"/private"); i.Fault == nil || !i.Leads || i.Linked {
		t.Errorf("%+v", i)
	}
	closed := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(closed.Close)
	closed.Config.ErrorLog = log.New(io.Discard, "", 0)
	c = open(t, source.Web, "", map[string]any{"urls": []string{closed.URL + "/b", s.URL + "/a"}}, nil)
	if f := walk(t, c, source.Position{}).item(t, closed.URL+"/b").Fault; f == nil || f.Lasting || f.Reason != "the TLS certificate of the website cannot be verified" {
		t.Errorf("%+v", f)
	}
}

// TestWebResume: behind any saved position the crawl continues without reading pages again, and
// names the rest.
func TestWebResume(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x", "/a", "/b", "/p?x")
	s.Page("/a", "A", "x", "/c")
	s.Page("/b", "B", "x", "/d")
	s.Page("/c", "C", "x")
	s.Page("/d", "D", "x")
	s.File("/p?x", "text/html", `<link rel="canonical" href="/p">text`)
	whole := walk(t, openSite(t, s, nil), source.Position{})
	if at(whole, s) != "/ /a /b /c /d /p" || len(whole.resumes) != 6 {
		t.Fatal(at(whole, s), len(whole.resumes))
	}
	s.Calls()
	for i, from := range whole.resumes {
		rest := walk(t, openSite(t, s, nil), source.Position{Resume: from})
		if len(rest.items) != 5-i {
			t.Fatalf("%d: %s", i, at(rest, s))
		}
		for _, item := range whole.items[i+1:] {
			rest.item(t, item.ID)
		}
		if calls := s.Calls(); len(calls) > 6-i { // robots.txt and the pages
			t.Fatalf("%d: %v", i, calls)
		}
	}
}

// TestWebIsPolite: one request at a time, with a pause.
func TestWebIsPolite(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x", "/a", "/b")
	s.Page("/a", "A", "x")
	s.Page("/b", "B", "x")
	var now, most, requests atomic.Int32
	s.Before(func(http.ResponseWriter, *http.Request) bool {
		most.Store(max(most.Load(), now.Add(1)))
		requests.Add(1)
		defer now.Add(-1)
		return false
	})
	timing := quick
	timing.Polite = 20 * time.Millisecond
	began := time.Now()
	walk(t, openWith(t, timing, source.Web, "", map[string]any{"url": s.URL}, nil), source.Position{})
	if least := time.Duration(requests.Load()-1) * timing.Polite; most.Load() != 1 || time.Since(began) < least {
		t.Errorf("%d at a time, %d requests in %s", most.Load(), requests.Load(), time.Since(began))
	}
}

// TestWebEndlessSite: a site that links to ever new pages ends at its number of pages, and one
// whose pages all fail ends too.
func TestWebEndlessSite(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	var n, status atomic.Int64
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/robots.txt" {
			return false
		}
		if r.URL.Path != "/" && status.Load() != 0 {
			w.WriteHeader(int(status.Load()))
			return true
		}
		w.Header().Set("Content-Type", "text/html")
		for range 3000 {
			fmt.Fprintf(w, `<a href="/page%d">`, n.Add(1))
		}
		return true
	})
	if w := walk(t, openSite(t, s, map[string]any{"max_pages": 30, "depth": 10}), source.Position{}); len(w.items) != 30 {
		t.Fatal(len(w.items))
	}
	status.Store(http.StatusNotFound)
	if w := walk(t, openSite(t, s, map[string]any{"max_pages": 30, "depth": 10}), source.Position{}); len(w.items) != 1 {
		t.Fatal(len(w.items))
	}
}

// TestWebEndsWithItsContext.
func TestWebEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x", "/a", "/b")
	ctx, cancel := context.WithCancel(context.Background())
	err := openSite(t, s, nil).Walk(ctx, source.Position{}, func(context.Context, source.Page) error { cancel(); return nil })
	if err != context.Canceled {
		t.Fatal(err)
	}
}

// TestWebRobotsOfGigabytes: the start of a robots.txt of any length counts.
func TestWebRobotsOfGigabytes(t *testing.T) {
	t.Parallel()
	for name, length := range map[string]string{"declared": "10000000000", "not declared": ""} {
		s := connectortest.NewSite(t)
		s.Before(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/robots.txt" && r.URL.Path != "/sitemap.xml" {
				return false
			}
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			if r.URL.Path == "/robots.txt" {
				fmt.Fprint(w, "User-agent: *\nDisallow: /no\n")
			} else {
				fmt.Fprintf(w, "<urlset><url><loc>%s/mapped</loc></url>", s.URL)
			}
			for line := []byte(strings.Repeat("# more\n", 10_000)); ; {
				if _, err := w.Write(line); err != nil {
					return true
				}
			}
		})
		s.Page("/", "Home", "x", "/no", "/yes")
		s.Page("/no", "No", "x")
		s.Page("/yes", "Yes", "x")
		s.Page("/mapped", "Mapped", "x")
		if w := walk(t, openSite(t, s, nil), source.Position{}); at(w, s) != "/ /mapped /yes" {
			t.Errorf("%s: %s", name, at(w, s))
		}
	}
}

// TestWebWithoutDocuments: each address that is read is a page of the walk, also without a document,
// so that a long crawl that finds nothing is seen to live and can be resumed.
func TestWebWithoutDocuments(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	s.Page("/", "Home", "x", "/a", "/b", "/c")
	pages, resumes := 0, 0
	err := openSite(t, s, nil).Walk(context.Background(), source.Position{}, func(_ context.Context, p source.Page) error {
		pages++
		if p.Resume != "" {
			resumes++
		}
		return nil
	})
	if err != nil || pages != 6 || resumes != 4 { // the sitemap is one
		t.Errorf("%d pages, %d of them with a position, %v", pages, resumes, err)
	}
}

// TestWebLongAddresses: an address that is too long for an identity is no document's and in no position.
func TestWebLongAddresses(t *testing.T) {
	t.Parallel()
	s := connectortest.NewSite(t)
	long := "/" + strings.Repeat("l", 3000)
	s.Page("/", "Home", "x", long, "/canonical", "/moved")
	s.File("/canonical", "text/html", `<link rel="canonical" href="`+long+`">text`)
	s.Serve("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, long, http.StatusFound) })
	s.Page(long, "Long", "x")
	w := walk(t, openSite(t, s, nil), source.Position{})
	if at(w, s) != "/ /canonical" {
		t.Errorf("%.200s", at(w, s))
	}
	for _, r := range w.resumes {
		if strings.Contains(r, "lll") {
			t.Errorf("a position of %d bytes", len(r))
		}
	}
}
