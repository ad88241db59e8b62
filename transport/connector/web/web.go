// Package web crawls a website: from the start pages along links of the same host, breadth first,
// within a depth and a number of documents. It obeys robots.txt and the robots element, reads
// sitemaps, merges pages by their canonical address, and makes one request at a time with a pause
// in between.
//
// HTML pages are read into memory, at most 10 MiB at a time, because their links lead on; other
// documents (pdf, txt, md) are handed on as streams. A page comes with its content, so a walk
// fetches everything, and the version shows what changed.
package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"agentsvc/schemas/pause"
	"agentsvc/schemas/source"
	"agentsvc/transport/connector/vendor"
)

const (
	maxPage     = 10 << 20
	maxQueue    = 5_000   // addresses of one crawl
	maxBytes    = 1 << 20 // of all addresses of one crawl
	maxAddress  = 2048    // bytes of one
	maxLooked   = 20_000  // links that are compared with robots.txt, each in up to 2 ms
	maxRedirect = 5
	accept      = "text/html,application/xhtml+xml,application/pdf,text/plain,text/markdown;q=0.9,*/*;q=0.1"
)

type site struct {
	client *vendor.Client
	c      source.Config
	pause  time.Duration
	call   time.Duration // after which no further request is made for one address
}

// Open returns a website.
func Open(clients *vendor.Clients, c source.Config) (source.Source, error) {
	if len(c.URLs) == 0 {
		return nil, &source.Fault{Reason: "the source has no start page", Lasting: true}
	}
	client, err := clients.Client("the website", c.URLs[0])
	if err != nil {
		return nil, err
	}
	client.Statuses = map[int]string{
		http.StatusForbidden: "the website denied access",
		http.StatusNotFound:  "there is no such page",
		http.StatusGone:      "there is no such page",
	}
	client.Judge = judge
	return &site{client, c, max(0, clients.Timing.Polite), clients.Timing.Call}, nil
}

// judge keeps 401 from reading as refused credentials of the whole source: a website gets none.
func judge(status int, _ []byte) *source.Fault {
	if status != http.StatusUnauthorized {
		return nil
	}
	return &source.Fault{Reason: "the website asks for a login (401)", Lasting: true}
}

// entry is an address that the crawl has found.
type entry struct {
	URL   string `json:"u"`
	Depth int    `json:"d,omitempty"`
	Named bool   `json:"n,omitempty"` // its document is listed
}

// position is the state of a crawl: the addresses in the order in which they were found, and how
// many of them are read.
type position struct {
	Queue []entry  `json:"q"`
	Read  int      `json:"r"`
	Hosts []string `json:"h"`           // host and port of the start pages
	Docs  int      `json:"c"`           // documents listed
	Other []string `json:"o,omitempty"` // listed under a canonical address that is not in Queue
}

// crawl is a walk on its way.
type crawl struct {
	*site
	at     position
	known  map[string]int  // address to its place in Queue
	named  map[string]bool // documents listed
	bytes  int
	rules  map[string]robots // by scheme and host
	last   time.Time         // of the last request
	began  time.Time         // when the first request for the address was made that is being read
	each   func(context.Context, source.Page) error
	saved  int           // entries read at the last saved position
	looked int           // links compared with robots.txt
	unread []source.Item // sitemaps that could not be read in this step
}

// Walk implements source.Source.
func (s *site) Walk(ctx context.Context, from source.Position, each func(context.Context, source.Page) error) error {
	c := &crawl{site: s, known: map[string]int{}, named: map[string]bool{}, rules: map[string]robots{}, each: each}
	if vendor.Load(from.Resume, &c.at) && len(c.at.Queue) > 0 {
		for i, e := range c.at.Queue {
			c.known[e.URL], c.bytes, c.named[e.URL] = i, c.bytes+len(e.URL), e.Named
		}
		for _, u := range c.at.Other {
			c.named[u] = true
		}
		c.saved = c.at.Read
	} else {
		c.at = position{}
		for _, raw := range s.c.URLs {
			u, err := url.Parse(raw)
			if err != nil {
				return s.client.Strange()
			}
			u = normal(u)
			c.at.Hosts = append(c.at.Hosts, hostOf(u))
			c.add(u, 0)
		}
	}
	for c.at.Read < len(c.at.Queue) && c.at.Docs < s.c.Pages {
		if err := c.step(ctx); err != nil {
			return err
		}
	}
	return each(ctx, source.Page{Last: true, Full: true})
}

// add appends an address to the queue, if it is a new one and there is room.
func (c *crawl) add(u *url.URL, depth int) {
	s := u.String()
	if _, ok := c.known[s]; ok || len(s) > maxAddress || len(c.at.Queue) >= maxQueue || c.bytes+len(s) > maxBytes {
		return
	}
	c.known[s] = len(c.at.Queue)
	c.bytes += len(s)
	c.at.Queue = append(c.at.Queue, entry{URL: s, Depth: depth})
}

// step reads the next address.
func (c *crawl) step(ctx context.Context) error {
	e := c.at.Queue[c.at.Read]
	if e.Named { // it was read under another address
		c.at.Read++
		return nil
	}
	isStart := e.Depth == 0
	c.began = time.Now()
	item, err := c.read(ctx, e)
	f := new(source.Fault)
	if errors.As(err, &f) && f.Again && f.Item && c.inTime() == nil { // the answer broke off
		item, err = c.read(ctx, e)
	}
	switch {
	case err != nil && !errors.As(err, &f):
		return err
	case err != nil && isStart && !c.hasOtherStart():
		// A site of which no start page can be read has failed. Of several, the others are read.
		one := *f
		one.Reason, one.Gone = "the start page cannot be read: "+f.Reason, false
		return &one
	case err != nil && f.Gone:
		item = nil
	case err != nil:
		at := e.URL
		if item != nil && !c.named[item.ID] { // where the address redirects to
			at = item.ID
		}
		item = &source.Item{ID: at, Name: at, URI: at, Fault: f, Size: -1, Leads: true, Linked: !isStart}
	}
	c.at.Read++
	var p source.Page // without a document too: the walk is alive, and others may have their turn
	p.Items, c.unread = c.unread, nil
	if item != nil {
		p.Items = append(p.Items, *item)
		if item.Fault == nil {
			c.list(item.ID)
		}
	}
	if c.at.Read >= c.saved+1+len(c.at.Queue)/50 { // a position holds the whole queue
		p.Resume, c.saved = vendor.Save(c.at), c.at.Read
	}
	err = c.each(ctx, p)
	if item != nil && item.Content != nil {
		item.Content.Body.Close()
	}
	return err
}

// list notes that a document is listed.
func (c *crawl) list(id string) {
	c.at.Docs++
	c.named[id] = true
	if i, ok := c.known[id]; ok {
		c.at.Queue[i].Named = true
	} else {
		c.at.Other = append(c.at.Other, id)
	}
}

// hasOtherStart reports whether another start page was read or is still to be read.
func (c *crawl) hasOtherStart() bool {
	for i, e := range c.at.Queue {
		if e.Depth == 0 && i != c.at.Read && (i > c.at.Read || e.Named) {
			return true
		}
	}
	return false
}

// read reads an address and what it leads to. It returns nil if there is no document. With an error the item has at most
// the address that could not be read.
func (c *crawl) read(ctx context.Context, e entry) (*source.Item, error) {
	u, err := url.Parse(e.URL)
	if err != nil {
		return nil, nil
	}
	resp, u, err := c.follow(ctx, u, e.Depth == 0)
	if err != nil {
		return &source.Item{ID: u.String()}, err
	}
	if resp == nil {
		return nil, nil
	}
	keep := false
	defer func() {
		if !keep {
			resp.Body.Close()
		}
	}()
	id := u.String()
	if id != e.URL {
		if _, ok := c.known[id]; !ok {
			c.add(u, e.Depth)
		}
		if i, ok := c.known[id]; !ok || i < c.at.Read && c.named[id] {
			return nil, nil
		}
	}
	if c.named[id] {
		return nil, nil
	}
	var p page
	for _, line := range resp.Header.Values("X-Robots-Tag") {
		p.obey(line)
	}
	item := &source.Item{ID: id, URI: id, Name: nameOf(u), MediaType: vendor.MediaType(resp.Header), Size: resp.ContentLength}
	switch kind := item.MediaType; {
	case kind == "text/html" || kind == "application/xhtml+xml":
	case kind == "application/pdf" || kind == "text/plain" || kind == "text/markdown" || kind == "" && strings.HasSuffix(strings.ToLower(u.Path), ".pdf"):
		if p.noindex {
			return nil, nil
		}
		if tag := resp.Header.Get("Etag"); tag != "" {
			item.Version = "e:" + tag
		} else if at := resp.Header.Get("Last-Modified"); at != "" {
			item.Version = "m:" + at
		}
		item.Content = &source.Content{Body: resp.Body, MediaType: kind}
		keep = true
		return item, nil
	default:
		if e.Depth == 0 {
			return nil, &source.Fault{Reason: "it is neither HTML nor a document that can be read", Lasting: true}
		}
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return item, err
	}
	if len(body) > maxPage {
		return &source.Item{ID: id, URI: id, Name: nameOf(u), MediaType: "text/html", Size: int64(len(body)),
			Fault: &source.Fault{Reason: "the page is larger than 10 MiB", Lasting: true, Item: true}}, nil
	}
	directives := p
	p = parsePage(u, body)
	p.noindex, p.nofollow = p.noindex || directives.noindex, p.nofollow || directives.nofollow
	if e.Depth < c.c.Depth && !p.nofollow {
		for _, link := range p.links {
			c.consider(link, e.Depth+1)
		}
		if e.Depth == 0 && c.c.Pages > 1 {
			if err := c.sitemaps(ctx, u); err != nil {
				return nil, err
			}
		}
	}
	if p.canonical != nil {
		if canonical := normal(p.canonical); len(canonical.String()) <= maxAddress && c.isHere(canonical) && c.allowed(canonical) {
			item.ID, item.URI = canonical.String(), canonical.String()
		}
	}
	if p.noindex || c.named[item.ID] {
		return nil, nil
	}
	if p.title != "" {
		item.Name = p.title
	}
	sum := sha256.Sum256(body)
	item.Version, item.Size = "s:"+hex.EncodeToString(sum[:16]), int64(len(body))
	item.Content = &source.Content{Body: io.NopCloser(bytes.NewReader(body)), MediaType: "text/html"}
	return item, nil
}

// consider adds a link, if it leads to a page of this site that may be read.
func (c *crawl) consider(link *url.URL, depth int) {
	if link.Scheme != "http" && link.Scheme != "https" || link.Host == "" {
		return
	}
	link = normal(link)
	if len(c.at.Queue) >= maxQueue || c.looked >= maxLooked || !c.isHere(link) || isUnread(link) {
		return
	}
	if _, ok := c.known[link.String()]; ok {
		return
	}
	if c.looked++; c.allowed(link) {
		c.add(link, depth)
	}
}

// isHere reports whether an address belongs to a host of the start pages.
func (c *crawl) isHere(u *url.URL) bool {
	h := hostOf(u)
	for _, own := range c.at.Hosts {
		if h == own {
			return true
		}
	}
	return false
}

// hostOf returns host and port; http and https at their usual ports are one host.
func hostOf(u *url.URL) string { return strings.ToLower(u.Host) }

// allowed reports whether robots.txt allows an address of a host whose rules are known. Rules of
// other hosts are read before the request.
func (c *crawl) allowed(u *url.URL) bool {
	r, ok := c.rules[u.Scheme+"://"+u.Host]
	return !ok || r.allows(u)
}

// follow requests an address, and follows redirects within the site. It returns nil if the
// address moved out of the site, or robots.txt forbids it, and with an error the address that it was at.
// A redirect out of the site that is not for good is a fault: it leads to a login, most likely.
func (c *crawl) follow(ctx context.Context, u *url.URL, isStart bool) (*http.Response, *url.URL, error) {
	for i := range maxRedirect + 1 {
		if err := c.inTime(); i > 0 && err != nil {
			return nil, u, err
		}
		if err := c.learn(ctx, u); err != nil {
			return nil, u, err
		}
		if !c.allowed(u) {
			if isStart {
				return nil, u, &source.Fault{Reason: "robots.txt forbids it", Lasting: true}
			}
			return nil, nil, nil
		}
		resp, err := c.get(ctx, u, c.client.Page)
		if err != nil {
			return nil, u, err
		}
		if resp.StatusCode/100 != 3 {
			return resp, u, nil
		}
		resp.Body.Close()
		next, err := u.Parse(resp.Header.Get("Location"))
		if err != nil || next.Host == "" || next.Scheme != "http" && next.Scheme != "https" || resp.Header.Get("Location") == "" {
			return nil, u, &source.Fault{Reason: "the website answered with a redirect to nowhere", Lasting: true}
		}
		next = normal(next)
		if !c.isHere(next) {
			if !isStart && (resp.StatusCode == http.StatusMovedPermanently || resp.StatusCode == http.StatusPermanentRedirect) {
				return nil, nil, nil
			}
			if !isStart || strings.TrimPrefix(hostOf(next), "www.") != strings.TrimPrefix(hostOf(u), "www.") {
				return nil, u, &source.Fault{Reason: "it redirects to another host", Lasting: true}
			}
			c.at.Hosts = append(c.at.Hosts, hostOf(next)) // the same site, with www. or without
		}
		u = next
	}
	return nil, u, &source.Fault{Reason: "the website redirects too often", Lasting: true, Status: http.StatusLoopDetected}
}

// inTime returns a fault if the address that is being read has taken so long that no further request is made for it: a redirect, or
// a repeated one. Each request has bounds of its own, and a page has the time of one or two.
func (c *crawl) inTime() error {
	if time.Since(c.began) > c.call {
		return &source.Fault{Reason: "the website did not answer in time"}
	}
	return nil
}

// get makes one request, after a pause.
func (c *crawl) get(ctx context.Context, u *url.URL, open func(ctx context.Context, at, accept string) (*http.Response, error)) (*http.Response, error) {
	wait := max(c.pause, c.rules[u.Scheme+"://"+u.Host].delay)
	if c.pause == 0 {
		wait = 0
	}
	if !c.last.IsZero() && !pause.For(ctx, wait-time.Since(c.last)) {
		return nil, ctx.Err()
	}
	defer func() { c.last = time.Now() }()
	return open(ctx, u.String(), accept)
}

// learn reads the robots.txt of a host once. A host without one allows everything; one whose
// robots.txt cannot be read now allows nothing (RFC 9309).
func (c *crawl) learn(ctx context.Context, u *url.URL) error {
	origin := u.Scheme + "://" + u.Host
	if _, ok := c.rules[origin]; ok {
		return nil
	}
	text, err := c.small(ctx, origin+"/robots.txt", maxRobots)
	f := new(source.Fault)
	switch {
	case err == nil:
		c.rules[origin] = parseRobots(text)
	case !errors.As(err, &f):
		return err
	case f.Status/100 == 4 && f.Status != http.StatusTooManyRequests:
		c.rules[origin] = robots{}
	case f.Status != 0:
		one := *f
		one.Reason = "robots.txt cannot be read: " + f.Reason
		return &one
	default:
		return f // the host cannot be reached
	}
	return nil
}

// small reads an answer, following redirects, and cuts it at most bytes.
func (c *crawl) small(ctx context.Context, at string, most int64) ([]byte, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, c.client.Strange()
	}
	for i := range maxRedirect + 1 {
		if err := c.inTime(); i > 0 && err != nil {
			return nil, err
		}
		resp, err := c.get(ctx, u, c.client.Start)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode/100 != 3 {
			defer resp.Body.Close()
			return io.ReadAll(io.LimitReader(resp.Body, most))
		}
		resp.Body.Close()
		if u, err = u.Parse(resp.Header.Get("Location")); err != nil || u.Host == "" {
			break
		}
	}
	return nil, &source.Fault{Reason: "the website redirects to nowhere", Lasting: true, Status: http.StatusNotFound}
}

// nameOf names a document without a title.
func nameOf(u *url.URL) string {
	if name := path.Base(u.Path); name != "/" && name != "." {
		return name
	}
	return u.Host
}

// Fetch implements source.Source, for a document whose stream broke. The address was allowed when
// the walk listed it.
func (s *site) Fetch(ctx context.Context, item source.Item) (source.Content, error) {
	resp, err := s.client.Page(ctx, item.ID, accept)
	if err != nil {
		return source.Content{}, vendor.OfItem(err)
	}
	if resp.StatusCode/100 != 2 {
		resp.Body.Close()
		return source.Content{}, &source.Fault{Reason: "the website redirects the page", Item: true}
	}
	return source.Content{Body: resp.Body, MediaType: vendor.MediaType(resp.Header)}, nil
}
