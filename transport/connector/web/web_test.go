package web

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

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
