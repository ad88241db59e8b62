package web

import (
	"bytes"
	"net/url"
	"path"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

const (
	maxLinks = 2000 // of one page
	maxTitle = 500  // bytes
	// maxToken bounds a tag, and a text between two tags, in bytes: behind a longer one no links are looked for.
	// A tag of attributes alone takes some fifty times its size in memory.
	maxToken = 2 << 20
	// maxAttributes is how many attributes of a tag are read.
	maxAttributes = 100
)

// page is what a crawler reads in an HTML document.
type page struct {
	title     string
	canonical *url.URL // nil: none, or one that counts not
	links     []*url.URL
	noindex   bool
	nofollow  bool
}

// parsePage reads an HTML document at an address.
func parsePage(at *url.URL, body []byte) page {
	var p page
	base, titled := at, false
	var hrefs []string
	z := html.NewTokenizer(bytes.NewReader(body))
	z.SetMaxBuf(maxToken)
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		t, ok := tag(z)
		if !ok {
			continue
		}
		switch t.DataAtom {
		case atom.Title:
			if !titled && z.Next() == html.TextToken {
				p.title, titled = clean(z.Token().Data), true
			}
		case atom.Base:
			if u, err := at.Parse(attribute(t, "href")); err == nil && base == at {
				base = u
			}
		case atom.Meta:
			if strings.EqualFold(attribute(t, "name"), "robots") || strings.EqualFold(attribute(t, "name"), agent) {
				p.obey(attribute(t, "content"))
			}
		case atom.Link:
			if rel(t, "canonical") && p.canonical == nil {
				if u, err := base.Parse(strings.TrimSpace(attribute(t, "href"))); err == nil {
					p.canonical = u
				}
			}
		case atom.A, atom.Area:
			if href := attribute(t, "href"); href != "" && !rel(t, "nofollow") && len(hrefs) < maxLinks {
				hrefs = append(hrefs, href)
			}
		}
	}
	if p.nofollow {
		return p
	}
	for _, href := range hrefs {
		if u, err := base.Parse(strings.TrimSpace(href)); err == nil {
			p.links = append(p.links, u)
		}
	}
	return p
}

// tag returns a tag that a crawler reads, with its first attributes; of others, false.
func tag(z *html.Tokenizer) (t html.Token, ok bool) {
	name, more := z.TagName()
	switch t.DataAtom = atom.Lookup(name); t.DataAtom {
	case atom.Title, atom.Base, atom.Meta, atom.Link, atom.A, atom.Area:
	default:
		return t, false
	}
	for more && len(t.Attr) < maxAttributes {
		var key, value []byte
		key, value, more = z.TagAttr()
		t.Attr = append(t.Attr, html.Attribute{Key: string(key), Val: string(value)})
	}
	return t, true
}

// obey applies the directives of a robots element or header.
func (p *page) obey(directives string) {
	for d := range strings.SplitSeq(strings.ToLower(directives), ",") {
		switch strings.TrimSpace(d) {
		case "noindex":
			p.noindex = true
		case "nofollow":
			p.nofollow = true
		case "none":
			p.noindex, p.nofollow = true, true
		}
	}
}

func rel(t html.Token, value string) bool {
	for word := range strings.FieldsSeq(attribute(t, "rel")) {
		if strings.EqualFold(word, value) {
			return true
		}
	}
	return false
}

func attribute(t html.Token, name string) string {
	for _, a := range t.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// clean returns a title in one line.
func clean(title string) string {
	title = strings.Join(strings.Fields(title), " ")
	if len(title) > maxTitle {
		title = strings.ToValidUTF8(title[:maxTitle], "")
	}
	return title
}

// normal returns one form of an address: without fragment and default port, the host in lower
// case, the path resolved.
func normal(u *url.URL) *url.URL {
	n := *u
	n.Fragment, n.RawFragment, n.User = "", "", nil
	n.Scheme, n.Host = strings.ToLower(n.Scheme), strings.ToLower(n.Host)
	if n.Scheme == "http" {
		n.Host = strings.TrimSuffix(n.Host, ":80")
	} else {
		n.Host = strings.TrimSuffix(n.Host, ":443")
	}
	if n.Path == "" {
		n.Path = "/"
	}
	n.ForceQuery = false
	return &n
}

// unread are endings of files that a crawl does not ask for.
var unread = func() map[string]bool {
	m := map[string]bool{}
	for _, e := range strings.Fields(`png jpg jpeg gif webp svg ico bmp tif tiff avif css js mjs map woff woff2 ttf otf eot mp3 mp4 m4a m4v
		avi mov mkv webm ogg ogv wav flac zip gz tgz bz2 xz 7z rar tar dmg exe msi deb rpm apk iso jar bin wasm xml rss atom json`) {
		m["."+e] = true
	}
	return m
}()

func isUnread(u *url.URL) bool { return unread[strings.ToLower(path.Ext(u.Path))] }
