package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// A connection of HTTP/2 carries many requests, and one that has died silently would
// fail each of them by its own time-out: who hears nothing for a while asks, and gives
// the connection up when there is no answer. Together they are less than what an
// attempt of a delivery may take.
const (
	pingAfter   = 5 * time.Second
	pingTimeout = 3 * time.Second
)

// Options of one kind of client.
type Options struct {
	// RequireTLS refuses plain http except to an allowed range.
	RequireTLS bool
	// MaxBody caps an answer after decompression; reading on fails with
	// ErrTooLarge. 0 is 1 MiB.
	MaxBody int64
	// HeaderTimeout is how long an answer may take to begin. 0 is 10 s.
	HeaderTimeout time.Duration
	// IdleTimeout, if set, breaks off an answer that stays silent for so long
	// while somebody reads it.
	IdleTimeout time.Duration
	// Redirects is how many redirects are followed, each hop judged like the
	// first; headers stay behind when the host changes. 0 is none: the redirect
	// itself is the answer.
	Redirects int
	// IdlePerHost is how many idle connections are kept to one host. 0 is 8.
	IdlePerHost int
}

// Client makes an HTTP client with connections of its own. Make one per purpose
// and keep it; give a request its deadline by its context.
func (g *Guard) Client(o Options) *http.Client {
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.HeaderTimeout == 0 {
		o.HeaderTimeout = 10 * time.Second
	}
	if o.IdlePerHost == 0 {
		o.IdlePerHost = 8
	}
	tr := &http.Transport{
		Proxy:                  nil,
		DialContext:            g.Dial,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    o.IdlePerHost,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    tlsTimeout,
		ResponseHeaderTimeout:  o.HeaderTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	return &http.Client{Transport: &roundTripper{base: tr, o: o, guard: g}, CheckRedirect: redirect(o.Redirects)}
}

func redirect(most int) func(*http.Request, []*http.Request) error {
	return func(r *http.Request, via []*http.Request) error {
		if most == 0 {
			return http.ErrUseLastResponse
		}
		if len(via) > most {
			return fmt.Errorf("%w: more than %d redirects", ErrRefused, most)
		}
		if r.URL.User != nil {
			return fmt.Errorf("%w: user info in a URL", ErrRefused)
		}
		if first := via[0].URL; r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
			for name := range r.Header {
				switch name {
				case "Accept", "Accept-Language", "User-Agent":
				default:
					r.Header.Del(name) // net/http knows Authorization and Cookie, not X-Api-Key
				}
			}
		}
		return nil
	}
}

type roundTripper struct {
	base  *http.Transport
	o     Options
	guard *Guard
}

// RoundTrip implements http.RoundTripper.
func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.guard.suspended() { // before a kept connection is spoilt by a write that fails
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, ErrSuspended
	}
	ctx, cancel := context.WithCancel(r.Context())
	if t.o.RequireTLS && r.URL.Scheme != "https" {
		ctx = context.WithValue(ctx, plainKey{}, true)
	}
	r = r.WithContext(ctx)
	if hasKey(r.Header) {
		r.Header = r.Header.Clone()
		r.Header.Del("Idempotency-Key")
		r.Header.Del("X-Idempotency-Key")
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.ContentLength > t.o.MaxBody {
		cancel()
		resp.Body.Close()
		return nil, ErrTooLarge
	}
	resp.Body = &body{rc: resp.Body, left: t.o.MaxBody, cancel: cancel, idle: t.o.IdleTimeout}
	return resp, nil
}

// CloseIdleConnections is what http.Client.CloseIdleConnections calls.
func (t *roundTripper) CloseIdleConnections() { t.base.CloseIdleConnections() }

func hasKey(h http.Header) bool {
	_, a := h["Idempotency-Key"]
	_, b := h["X-Idempotency-Key"]
	return a || b
}

// ErrSilent is what reading an answer returns that said nothing for the
// client's IdleTimeout.
var ErrSilent = errors.New("the other side fell silent")

// body caps an answer, watches its silence and ends its context with it.
type body struct {
	rc     io.ReadCloser
	left   int64
	cancel context.CancelFunc // of this one request
	idle   time.Duration
	watch  *time.Timer
	silent atomic.Bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.idle > 0 {
		if b.watch == nil {
			b.watch = time.AfterFunc(b.idle, func() { b.silent.Store(true); b.cancel() })
		} else {
			b.watch.Reset(b.idle)
		}
		defer b.watch.Stop()
	}
	// One byte more than allowed is asked for, to tell a full answer from one too
	// large.
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.rc.Read(p)
	if int64(n) > b.left {
		n, err = int(b.left), ErrTooLarge
	}
	b.left -= int64(n)
	if err != nil && err != io.EOF && b.silent.Load() {
		err = ErrSilent
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	err := b.rc.Close()
	b.cancel()
	return err
}
