package web

import (
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"
)

// allocated returns how much do allocates, in MiB. Tests that call it do not run beside others.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) >> 20
}

// attributes are a million attributes of a tag.
func attributes() string {
	var b strings.Builder
	for i := range 1 << 20 {
		fmt.Fprintf(&b, " a%x", i)
	}
	return b.String()
}

// TestAPageOfOneTag: a tag of a million attributes costs little. Links before it are found, and links
// with fewer attributes than that.
func TestAPageOfOneTag(t *testing.T) {
	at, _ := url.Parse("http://h/")
	all := attributes()
	body := []byte(`<title>T</title><a href="/before"` + all[:500] + `><a` + all + `><a href="/behind">`)
	var p page
	if n := allocated(func() { p = parsePage(at, body) }); n > 200 {
		t.Errorf("%d MiB allocated", n)
	}
	if p.title != "T" || len(p.links) != 1 || p.links[0].Path != "/before" {
		t.Errorf("%+v", p)
	}
}

// TestHostileSitemaps cost little, and what stands before their trick is read.
func TestHostileSitemaps(t *testing.T) {
	const first = "<urlset><url><loc>http://h/a</loc></url>"
	for name, rest := range map[string]string{
		"depth": strings.Repeat("<a>", maxSitemap/3), "attributes": "<a" + attributes() + ">", "a text": strings.Repeat("a", maxSitemap), "a comment": "<!--" + strings.Repeat("a", maxSitemap),
		"entities": `<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><url><loc>&b;</loc></url>`, "endings": strings.Repeat("</a>", maxSitemap/4),
	} {
		var pages, more []string
		if n := allocated(func() { pages, more = parseSitemap([]byte(first+rest), 100) }); n > 100 {
			t.Errorf("%s: %d MiB allocated", name, n)
		}
		if len(pages) < 1 || pages[0] != "http://h/a" || len(more) != 0 || len(pages) > 2 {
			t.Errorf("%s: %.100q %.100q", name, pages, more)
		}
	}
}

// TestRobots is RFC 9309, with the crawler's own group before that of *.
func TestRobots(t *testing.T) {
	t.Parallel()
	const text = "\ufeffUser-agent: other\nDisallow: /\n\n" +
		"User-Agent: *\nCrawl-delay: 2\nDisallow: /private\nAllow: /private/open$\nDisallow: /*.cgi\nDisallow: /a*b*c$\nDisallow:\r\n" +
		"Disallow: /%E4%B8%AD # a comment\nSitemap: /map.xml\n"
	r := parseRobots([]byte(text))
	for path, want := range map[string]bool{
		"/": true, "/private": false, "/private/x": false, "/private/open": true, "/private/open/not": false, "/privately": false, "/x.cgi": false, "/x.cgi?q": false,
		"/axxbyyc": false, "/axxbyycd": true, "/abc": false, "/中": false, "/%e4%b8%ad/x": false, "/other": true, "/?private": true,
	} {
		u, err := url.Parse("http://h" + path)
		if err != nil {
			t.Fatal(err)
		}
		if r.allows(u) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
	if r.delay != 2*time.Second || len(r.sitemaps) != 1 {
		t.Errorf("%+v", r)
	}
	own := parseRobots([]byte("User-agent: *\nDisallow: /\nUser-agent: SVC-Crawler/1.0\nUser-agent: x\nDisallow: /no\nCrawl-delay: 9999\n"))
	if u := (&url.URL{Path: "/yes"}); !own.allows(u) || own.allows(&url.URL{Path: "/no"}) || own.delay != maxDelay {
		t.Errorf("%+v", own)
	}
}

// FuzzRobots: what a website supplies neither panics nor takes long.
func FuzzRobots(f *testing.F) {
	f.Add("User-agent: *\nDisallow: /*a*b*c$\nAllow: /", "/aabbcc")
	f.Fuzz(func(t *testing.T, text, path string) {
		r := parseRobots([]byte(text))
		r.allows(&url.URL{Path: path})
	})
}

// FuzzPage: any bytes are a page or a sitemap.
func FuzzPage(f *testing.F) {
	f.Add([]byte(`<base href="/x/"><a href="../y">z</a><link rel=canonical href=/c><meta name=robots content="noindex">`))
	f.Add([]byte(`<urlset><url><loc>http://h/a</loc></url></urlset>`))
	at, _ := url.Parse("http://h/a/b")
	f.Fuzz(func(t *testing.T, body []byte) {
		p := parsePage(at, body)
		if len(p.links) > maxLinks || len(p.title) > maxTitle {
			t.Fatal(len(p.links), len(p.title))
		}
		for _, l := range p.links {
			_ = normal(l).String()
		}
		if pages, more := parseSitemap(body, 10); len(pages) > 10 || len(more) > 10 {
			t.Fatal(len(pages), len(more))
		}
	})
}

func TestPage(t *testing.T) {
	t.Parallel()
	at, _ := url.Parse("http://h/a/b")
	p := parsePage(at, []byte(`<html><head><title> One
		&amp; two </title><base href="/base/"><link rel="Canonical" href="c"></head>
		<a href="x">1</a><a href="/y#frag">2</a><a rel="nofollow" href="z">3</a><a href="mailto:a@b">4</a><area href="http://other/w"><svg><title>no</title></svg>`))
	var links []string
	for _, l := range p.links {
		links = append(links, normal(l).String())
	}
	if p.title != "One & two" || p.canonical.String() != "http://h/base/c" || strings.Join(links, " ") != "http://h/base/x http://h/y mailto:a@b http://other/w" {
		t.Fatalf("%+v %v", p, links)
	}
	if p := parsePage(at, []byte(`<meta name="robots" content="NoIndex, nofollow"><a href="x">`)); !p.noindex || p.links != nil {
		t.Fatalf("%+v", p)
	}
	for in, want := range map[string]string{
		"HTTP://H:80": "http://h/", "https://h:443/x?q#f": "https://h/x?q", "http://h:8080/": "http://h:8080/", "http://u:p@h/": "http://h/",
	} {
		if u, _ := url.Parse(in); normal(u).String() != want {
			t.Errorf("%s: %s", in, normal(u))
		}
	}
}
