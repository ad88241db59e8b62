package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/url"
	"strings"
	"time"

	"agentsvc/schemas/source"
)

const (
	maxSitemaps = 10 // files of one site
	maxSitemap  = 10 << 20
	// sitemapDepth is how deep the elements of a sitemap are nested at most: the decoder keeps those that are open.
	sitemapDepth = 20
	// sitemapToken bounds a tag or a text of a sitemap, in bytes. A tag of attributes alone takes some fifty
	// times its size in memory.
	sitemapToken = 64 << 10
)

// sitemaps adds the pages of the site's sitemaps, as if its start page linked to them. A sitemap
// that cannot be read is left out; if that may pass, it is listed as an item with its fault: the crawl
// does not show what is gone, and says why. Those that fail take the time of one call of a listing together; the others are left
// out then.
func (c *crawl) sitemaps(ctx context.Context, start *url.URL) error {
	origin := start.Scheme + "://" + start.Host
	queue := append([]string{origin + "/sitemap.xml"}, c.rules[origin].sitemaps...)
	seen := map[string]bool{}
	var failing time.Duration // sitemaps that could not be read now
	for len(queue) > 0 && len(seen) < maxSitemaps && ctx.Err() == nil {
		u, err := start.Parse(queue[0])
		queue = queue[1:]
		if err != nil || !c.isHere(normal(u)) || seen[normal(u).String()] {
			continue
		}
		seen[normal(u).String()] = true
		c.began = time.Now()
		err = c.learn(ctx, normal(u))
		var text []byte
		if err == nil {
			text, err = c.small(ctx, normal(u).String(), maxSitemap)
		}
		if err != nil {
			f := new(source.Fault)
			if !errors.As(err, &f) {
				return err
			}
			if !f.Lasting {
				at := normal(u).String()
				c.unread = append(c.unread, source.Item{ID: at, Name: at, URI: at, Size: -1, Fault: f, Leads: true, Linked: true})
				if failing += time.Since(c.began); failing > c.call {
					break
				}
				continue
			}
		}
		pages, more := parseSitemap(text, maxQueue)
		for _, p := range pages {
			if u, err := start.Parse(p); err == nil {
				c.consider(u, 1)
			}
		}
		queue = append(queue, more[:min(len(more), maxSitemaps)]...)
		if err := c.each(ctx, source.Page{}); err != nil { // the walk is alive
			return err
		}
	}
	return ctx.Err()
}

// parseSitemap returns the addresses of pages and of further sitemaps, at most so many of each.
// It reads gzip, and the plain form with one address a line. An element that is nested deeper than
// in a sitemap ends it, and so does a longer tag or text.
func parseSitemap(text []byte, most int) (pages, more []string) {
	if bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return nil, nil
		}
		if text, err = io.ReadAll(io.LimitReader(z, maxSitemap)); err != nil && len(text) == 0 {
			return nil, nil
		}
	}
	if trimmed := bytes.TrimSpace(text); bytes.HasPrefix(trimmed, []byte("http")) {
		for line := range bytes.SplitSeq(trimmed, []byte("\n")) {
			if len(pages) == most {
				break
			}
			pages = append(pages, strings.TrimSpace(string(line)))
		}
		return pages, nil
	}
	in := &tokens{Reader: bytes.NewReader(text)}
	d := xml.NewDecoder(in)
	d.Strict = false
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	inside, loc, depth := "", false, 0
	for len(pages) < most && len(more) < most && depth <= sitemapDepth {
		in.left = sitemapToken
		t, err := d.Token()
		if err != nil {
			break
		}
		switch t := t.(type) {
		case xml.StartElement:
			depth++
			switch t.Name.Local {
			case "url", "sitemap":
				inside = t.Name.Local
			}
			loc = t.Name.Local == "loc"
		case xml.EndElement:
			depth--
			loc = false
		case xml.CharData:
			if text := strings.TrimSpace(string(t)); loc && text != "" {
				if inside == "sitemap" {
					more = append(more, text)
				} else {
					pages = append(pages, text)
				}
			}
		}
	}
	return pages, more
}

// tokens is a text that a decoder reads a token at a time, each of at most left bytes.
type tokens struct {
	*bytes.Reader
	left int
}

// ReadByte implements io.ByteReader.
func (t *tokens) ReadByte() (byte, error) {
	if t.left--; t.left < 0 {
		return 0, io.ErrShortBuffer
	}
	return t.Reader.ReadByte()
}
