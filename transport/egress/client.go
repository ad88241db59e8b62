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

// An HTTP/2 connection carries many requests. If it dies silently, each of them would wait
// for its own time-out. So a connection that is silent for a while is pinged, and closed if
// no answer comes. Both times together are shorter than one attempt of a delivery may take.
const (
	pingAfter   = 5 * time.Second
	pingTimeout = 3 * time.Second
)

// Options configure one kind of client.
type Options struct {
	// RequireTLS refuses plain http except to an allowed range.
	RequireTLS bool
	// MaxBody caps a response after decompression; reading past it fails with ErrTooLarge. 0
	// means 1 MiB.
	MaxBody int64
	// MaxHead caps a response's head. In memory small fields take some ten times their size. 0 means 16 KiB.
	MaxHead int64
	// HeaderTimeout limits the wait for the response's head. 0 means 10 s.
	HeaderTimeout time.Duration
	// IdleTimeout, if set, aborts a response that sends nothing for this long while it is
	// being read.
	IdleTimeout time.Duration
	// Redirects is how many redirects are followed. Each hop is checked like the first;
	// credentials are dropped when the host changes. 0 means none: the redirect itself is the
	// response.
	Redirects int
	// IdlePerHost is how many idle connections are kept per host. 0 means 8.
	IdlePerHost int
}

// Client returns an HTTP client with connections of its own. Make one per purpose and keep
// it; set a request's deadline through its context.
func (g *Guard) Client(o Options) *http.Client {
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.MaxHead == 0 {
		o.MaxHead = 16 << 10
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
		MaxResponseHeaderBytes: o.MaxHead,
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
					r.Header.Del(name) // net/http drops Authorization and Cookie, but not X-Api-Key
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
	if t.guard.suspended() { // check first: a failed write would spoil a kept connection
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
		// If a write fails without the lease, the transport may report the end of the
		// connection instead.
		if !errors.Is(err, ErrSuspended) && t.guard.suspended() {
			err = fmt.Errorf("%w: %w", ErrSuspended, err)
		}
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

// CloseIdleConnections closes idle connections. http.Client.CloseIdleConnections calls it.
func (t *roundTripper) CloseIdleConnections() { t.base.CloseIdleConnections() }

func hasKey(h http.Header) bool {
	_, a := h["Idempotency-Key"]
	_, b := h["X-Idempotency-Key"]
	return a || b
}

// ErrSilent is returned by a read of a response that sent nothing for the client's
// IdleTimeout.
var ErrSilent = errors.New("the other side fell silent")

// body caps a response, detects silence, and cancels the request's context when it ends.
type body struct {
	rc     io.ReadCloser
	left   int64
	cancel context.CancelFunc // cancels this one request
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
	// Ask for one byte more than allowed, to distinguish a full response from one that is too
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
