package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"io"
	"net/url"
	"strings"
)

const (
	maxSitemaps = 10 // files of one site
	maxSitemap  = 10 << 20
)

// sitemaps adds the pages of the site's sitemaps, as if its start page linked to them. A sitemap
// that cannot be read is left out.
func (c *crawl) sitemaps(ctx context.Context, start *url.URL) {
	origin := start.Scheme + "://" + start.Host
	queue := append([]string{origin + "/sitemap.xml"}, c.rules[origin].sitemaps...)
	seen := map[string]bool{}
	for len(queue) > 0 && len(seen) < maxSitemaps && ctx.Err() == nil {
		u, err := start.Parse(queue[0])
		queue = queue[1:]
		if err != nil || !c.isHere(normal(u)) || seen[normal(u).String()] || c.learn(ctx, normal(u)) != nil {
			continue
		}
		seen[normal(u).String()] = true
		text, err := c.small(ctx, normal(u).String(), maxSitemap)
		if err != nil {
			continue
		}
		pages, more := parseSitemap(text, maxQueue)
		for _, p := range pages {
			if u, err := start.Parse(p); err == nil {
				c.consider(u, 1)
			}
		}
		queue = append(queue, more[:min(len(more), maxSitemaps)]...)
	}
}

// parseSitemap returns the addresses of pages and of further sitemaps, at most so many of each.
// It reads gzip, and the plain form with one address a line.
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
	d := xml.NewDecoder(bytes.NewReader(text))
	d.Strict = false
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	inside, loc := "", false
	for len(pages) < most && len(more) < most {
		t, err := d.Token()
		if err != nil {
			break
		}
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "url", "sitemap":
				inside = t.Name.Local
			}
			loc = t.Name.Local == "loc"
		case xml.EndElement:
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
