// Package vendor makes the requests of all connectors, through the outbound guard and within
// bounds of time and size. Only requests to the origin that a credential belongs to carry it. A
// request that fails by a fault of the vendor (429, 5xx, a broken connection) is repeated, after
// the pause that the vendor asks for if that is short. Errors are source.Fault, in our own words:
// they quote neither URLs nor anything that the vendor said.
package vendor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/source"
	"agentsvc/transport/egress"
)

// Bounds of requests.
const (
	MaxFile   = 50 << 20
	maxAnswer = 16 << 20
	maxError  = 16 << 10
	attempts  = 3
	redirects = 5
	// maxValues bounds the values and members of a JSON answer. Each takes a few bytes there, and some hundred
	// once it is decoded. A page of a listing has some ten thousand.
	maxValues = 200_000
	maxHead   = 64 << 10 // bytes of the head of an answer
	// MaxPosition bounds an address or token with which a listing continues, in bytes: a position keeps it.
	MaxPosition = 16 << 10
)

// TooLarge is the reason of a fault for a file that is not fetched.
const TooLarge = "the file is larger than 50 MiB"

// Timing is how long things may take; zero values mean the defaults.
type Timing struct {
	Call    time.Duration // a request of a listing, with its body: 30 s
	File    time.Duration // a request of a file, with its body: 80 s
	Silence time.Duration // without a byte: 20 s
	Backoff time.Duration // first pause before a repeated request: 500 ms
	MaxWait time.Duration // longest pause that a vendor may ask for within a call: 30 s
	Polite  time.Duration // pause between two requests of a crawl: 100 ms; negative: none
}

func (t Timing) filled() Timing {
	for at, value := range map[*time.Duration]time.Duration{
		&t.Call: 30 * time.Second, &t.File: 80 * time.Second, &t.Silence: 20 * time.Second,
		&t.Backoff: 500 * time.Millisecond, &t.MaxWait: 30 * time.Second, &t.Polite: 100 * time.Millisecond,
	} {
		if *at == 0 {
			*at = value
		}
	}
	return t
}

// Clients are the HTTP clients of all sources of a node. They hold no state of tenants but idle
// connections.
type Clients struct {
	Timing Timing
	agent  string
	tables map[string]*http.Client
}

// names of clients.
const (
	calls  = "calls"  // JSON and XML, https only
	files  = "files"  // contents, https only
	crawls = "crawls" // pages, http too
	starts = "starts" // of which the caller reads the start only, http too
)

// NewClients returns clients that use a guard. version is that of the service. With https, plain
// http is refused except to ranges that the operator allows.
func NewClients(g *egress.Guard, version string, https bool, t Timing) *Clients {
	t = t.filled()
	client := func(https bool, most int64, hops int) *http.Client {
		return g.Client(egress.Options{RequireTLS: https, MaxBody: most, MaxHead: maxHead, HeaderTimeout: t.Silence, IdleTimeout: t.Silence, Redirects: hops, IdlePerHost: 4})
	}
	return &Clients{Timing: t, agent: "svc-crawler/" + version, tables: map[string]*http.Client{
		calls: client(https, maxAnswer, 0), files: client(https, MaxFile, redirects), crawls: client(false, MaxFile, 0), starts: client(false, math.MaxInt64-1, 0),
	}}
}

// Close closes idle connections.
func (c *Clients) Close() {
	for _, hc := range c.tables {
		hc.CloseIdleConnections()
	}
}

// Client makes the requests of one source.
type Client struct {
	// Name is what faults call the vendor: "the wiki".
	Name string
	// Base is where the requests of listings go. Its origin gets the credentials.
	Base *url.URL
	// Authorize adds the credentials to a request to Base's origin; nil: there are none.
	Authorize func(*http.Request)
	// Statuses are words for statuses that mean something particular.
	Statuses map[int]string
	// Judge, if set, may say what an error means, from its body of at most 16 KiB. nil: the
	// status says it.
	Judge func(status int, body []byte) *source.Fault

	clients *Clients
}

// Client returns a client for a base URL.
func (c *Clients) Client(name, base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, &source.Fault{Reason: "the address of " + name + " is not a URL", Lasting: true}
	}
	return &Client{Name: name, Base: u, clients: c}, nil
}

// Anonymous returns a client without the credentials.
func (c *Client) Anonymous() *Client {
	one := *c
	one.Authorize = nil
	return &one
}

// At returns the URL of a path below Base. Segments are escaped.
func (c *Client) At(query url.Values, segments ...string) string {
	var b strings.Builder
	b.WriteString(strings.TrimRight(c.Base.String(), "/"))
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	if len(query) > 0 {
		b.WriteString("?" + query.Encode())
	}
	return b.String()
}

// Follow resolves an address that the vendor's answer gave for the next page. It must be at the
// origin of Base, and no longer than MaxPosition.
func (c *Client) Follow(next string) (string, error) {
	if len(next) > MaxPosition {
		return "", c.Strange()
	}
	u, err := c.Base.Parse(next)
	if err != nil || source.Origin(u) != source.Origin(c.Base) {
		return "", c.fault("%s continues its listing at another address, which is refused", c.Name)
	}
	return u.String(), nil
}

func (c *Client) fault(format string, args ...any) *source.Fault {
	return &source.Fault{Reason: fmt.Sprintf(format, args...)}
}

// Strange returns a fault for an answer that is not what the vendor's interface promises.
func (c *Client) Strange() *source.Fault {
	return c.fault("%s gave an answer that cannot be read", c.Name)
}

// JSON reads an answer into a value.
func (c *Client) JSON(ctx context.Context, at string, into any) error {
	body, err := c.Small(ctx, at, "application/json")
	if err != nil {
		return err
	}
	if jsontext.Values(body) > maxValues || json.Unmarshal(body, into) != nil {
		return c.Strange()
	}
	return nil
}

// Small returns an answer of at most 16 MiB.
func (c *Client) Small(ctx context.Context, at, accept string) ([]byte, error) {
	_, body, err := c.small(ctx, c.get(at, accept))
	return body, err
}

func (c *Client) small(ctx context.Context, make request) (*http.Response, []byte, error) {
	var resp *http.Response
	var body []byte
	err := c.again(ctx, func() (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, c.clients.Timing.Call)
		defer cancel()
		r, wait, err := c.once(ctx, calls, make)
		if err != nil {
			return wait, err
		}
		defer r.Body.Close()
		if body, err = io.ReadAll(r.Body); err != nil {
			return 0, c.broken(ctx, calls, err)
		}
		resp = r
		return 0, nil
	})
	return resp, body, err
}

// File returns an answer of at most 50 MiB, following redirects. A read that fails returns a
// fault of the item.
func (c *Client) File(ctx context.Context, at, accept string) (*http.Response, error) {
	return c.open(ctx, files, c.get(at, accept))
}

// Page is File for a crawl: a redirect is an answer, and plain http is allowed.
func (c *Client) Page(ctx context.Context, at, accept string) (*http.Response, error) {
	return c.open(ctx, crawls, c.get(at, accept))
}

// Start is Page for a caller that reads the start of the answer only: it may be of any length.
func (c *Client) Start(ctx context.Context, at, accept string) (*http.Response, error) {
	return c.open(ctx, starts, c.get(at, accept))
}

func (c *Client) open(ctx context.Context, which string, make request) (*http.Response, error) {
	var resp *http.Response
	err := c.again(ctx, func() (time.Duration, error) {
		life, cancel := context.WithTimeout(ctx, c.clients.Timing.File)
		r, wait, err := c.once(life, which, make)
		if err != nil {
			cancel()
			return wait, err
		}
		r.Body = &body{ReadCloser: r.Body, client: c, ctx: life, cancel: cancel}
		resp = r
		return 0, nil
	})
	return resp, err
}

// Transport returns a round tripper for a library that makes requests of its own. They end with
// ctx. Failures are faults. A listing's answer is read whole, and check says whether it is one.
func (c *Client) Transport(ctx context.Context, check func(body []byte) bool) http.RoundTripper {
	return transport{c, ctx, check}
}

type transport struct {
	client *Client
	ctx    context.Context // of the one call that the library makes
	check  func([]byte) bool
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body.Close() // of a GET
	}
	make := func(ctx context.Context) (*http.Request, error) {
		if source.Origin(r.URL) != source.Origin(t.client.Base) {
			return nil, t.client.Strange() // it is signed
		}
		one := r.Clone(ctx)
		one.Body = nil
		return one, nil
	}
	if t.check == nil {
		resp, err := t.client.open(t.ctx, files, make)
		if err == nil && resp.Header.Get("Last-Modified") == "" {
			resp.Header.Set("Last-Modified", time.Unix(0, 0).UTC().Format(http.TimeFormat)) // the library insists on one
		}
		return resp, err
	}
	resp, body, err := t.client.small(t.ctx, make)
	if err != nil {
		return nil, err
	}
	if !t.check(body) {
		return nil, t.client.Strange()
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// body reports failures as faults of the item.
type body struct {
	io.ReadCloser
	client *Client
	ctx    context.Context
	cancel context.CancelFunc
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.client.broken(b.ctx, files, err)
		if f := new(source.Fault); errors.As(err, &f) {
			f.Item = true
		}
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// again repeats a call that failed by a fault of the vendor.
func (c *Client) again(ctx context.Context, call func() (time.Duration, error)) error {
	t := c.clients.Timing
	for attempt := 1; ; attempt++ {
		asked, err := call()
		f := new(source.Fault)
		if err == nil || !errors.As(err, &f) || !f.Again {
			return err
		}
		if asked > t.MaxWait {
			f.RetryAfter = asked
			f.Reason += "; it asks to wait " + asked.Round(time.Second).String()
			return f
		}
		if attempt == attempts {
			return err
		}
		wait := t.Backoff << (attempt - 1)
		wait += rand.N(wait/2 + 1)
		if !pause.For(ctx, max(wait, asked)) {
			return ctx.Err()
		}
	}
}

// request makes a request anew for each attempt.
type request func(context.Context) (*http.Request, error)

// get returns a GET of an address, with the credentials if it is at Base's origin.
func (c *Client) get(at, accept string) request {
	return func(ctx context.Context) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil || req.URL.Host == "" || req.URL.User != nil {
			return nil, c.Strange()
		}
		req.Header.Set("User-Agent", c.clients.agent)
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		if c.Authorize != nil && source.Origin(req.URL) == source.Origin(c.Base) {
			c.Authorize(req)
		}
		return req, nil
	}
}

// once makes one request. Any status but 2xx is a fault, except redirects of a crawl. wait is the
// pause that the vendor asks for.
func (c *Client) once(ctx context.Context, which string, make request) (_ *http.Response, wait time.Duration, _ error) {
	req, err := make(ctx)
	if err != nil {
		return nil, 0, err
	}
	resp, err := c.clients.tables[which].Do(req)
	if err != nil {
		return nil, 0, c.broken(ctx, which, err)
	}
	if resp.StatusCode/100 == 2 || (which == crawls || which == starts) && resp.StatusCode/100 == 3 {
		return resp, 0, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	return nil, RetryAfter(resp.Header), c.refused(resp.StatusCode, text)
}

// refused says what a status means.
func (c *Client) refused(status int, text []byte) *source.Fault {
	if c.Judge != nil {
		if f := c.Judge(status, text); f != nil {
			f.Status = status
			return f
		}
	}
	f := &source.Fault{Lasting: true, Status: status, Login: status == http.StatusUnauthorized}
	words, ok := c.Statuses[status]
	switch {
	case ok:
	case status == http.StatusUnauthorized:
		words = "the credentials were refused"
	case status == http.StatusForbidden:
		words = "access was denied"
	case status == http.StatusTooManyRequests:
		words = c.Name + " limits the number of requests"
	case status >= 500:
		words = c.Name + " failed"
	case status/100 == 3:
		words = c.Name + " answered with a redirect, which is not followed"
	default:
		words = c.Name + " refused the request"
	}
	f.Reason = fmt.Sprintf("%s (%d)", words, status)
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500 && status != http.StatusNotImplemented:
		f.Again, f.Lasting = true, false
	case status == http.StatusNotFound, status == http.StatusGone:
		f.Gone = true
	}
	return f
}

// broken says what an error of the connection means.
func (c *Client) broken(ctx context.Context, which string, err error) error {
	if errors.Is(err, egress.ErrSuspended) {
		return egress.ErrSuspended // without the URL, which may hold a key
	}
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.Is(err, egress.ErrRefused):
		return &source.Fault{Reason: "the address is refused by the outbound guard: it must be public, and https", Lasting: true}
	case errors.Is(err, egress.ErrTooLarge):
		if which == calls {
			return &source.Fault{Reason: "an answer of " + c.Name + " is larger than 16 MiB", Lasting: true}
		}
		return &source.Fault{Reason: TooLarge, Lasting: true, Content: true}
	case errors.Is(err, egress.ErrSilent):
		return c.fault("%s stopped in the middle of an answer", c.Name)
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return c.fault("%s did not answer in time", c.Name)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &dns):
		return c.fault("the host name of %s cannot be resolved", c.Name)
	case errors.As(err, &certificate):
		return c.fault("the TLS certificate of %s cannot be verified", c.Name)
	}
	f := c.fault("the connection to %s broke or was refused", c.Name)
	f.Again = true
	return f
}

// RetryAfter returns how long an answer asks to wait, 0 if it does not. A date counts from the
// vendor's own clock, because ours may differ from it.
func RetryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		if !(seconds > 0) {
			return 0
		}
		return time.Duration(min(seconds, 365*24*3600) * float64(time.Second))
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, at.Sub(now))
}

// Walk counts what a listing names, so that a vendor cannot let it go on for ever.
type Walk struct {
	Pages int `json:"p,omitempty"`
	Items int `json:"n,omitempty"`
	Empty int `json:"e,omitempty"` // pages without an item, one after the other
}

// Bounds of a listing.
const (
	maxItems = 500_000
	maxPages = 50_000
	maxEmpty = 200
)

// Count counts a page of a listing.
func (w *Walk) Count(items int) error {
	w.Pages++
	w.Items += items
	if w.Empty++; items > 0 {
		w.Empty = 0
	}
	if w.Items > maxItems || w.Pages > maxPages || w.Empty > maxEmpty {
		return &source.Fault{Reason: "the listing does not end: more than 500,000 files, or pages without files", Lasting: true}
	}
	return nil
}

// Save encodes a position.
func Save(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types of positions hold strings and numbers
	}
	return string(b)
}

// Load decodes a position of Save, and reports whether there is one.
func Load(position string, v any) bool {
	return position != "" && json.NewDecoder(bytes.NewReader([]byte(position))).Decode(v) == nil
}

// MediaType returns the media type of an answer without its parameters; "" if it says nothing.
func MediaType(h http.Header) string {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	if kind == "application/octet-stream" || kind == "binary/octet-stream" {
		return ""
	}
	return kind
}

// OfItem makes a fault one of the item, unless it says that the credentials are refused.
func OfItem(err error) error {
	f := new(source.Fault)
	if errors.As(err, &f) && !f.Login {
		one := *f
		one.Item = true
		return &one
	}
	return err
}
