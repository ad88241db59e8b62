package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/problem"
)

const (
	// probeEvery is the time between two probes of a node.
	probeEvery   = 250 * time.Millisecond
	probeTimeout = time.Second
)

// Balancer is the small load balancer of svc dev with several nodes. It sends a request to
// the ready node with the fewest requests in flight. A request that never reached its node
// is sent to another one.
type Balancer struct {
	nodes []*backend
	next  atomic.Uint32
	probe *http.Client
	log   zerolog.Logger
}

// backend is one node behind the balancer.
type backend struct {
	url   *url.URL
	proxy *httputil.ReverseProxy
	ready atomic.Bool
	open  atomic.Int64 // requests in flight, streams included
}

// NewBalancer returns a balancer for the nodes at these addresses. A node is
// ready once a probe of Watch succeeds.
func NewBalancer(addrs []string, log zerolog.Logger) *Balancer {
	dialer := &net.Dialer{Timeout: 2 * time.Second}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second, DisableCompression: true}
	b := &Balancer{probe: &http.Client{Timeout: probeTimeout}, log: log}
	for _, addr := range addrs {
		to := &url.URL{Scheme: "http", Host: addr}
		b.nodes = append(b.nodes, &backend{url: to, proxy: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Host = r.In.Host
				r.SetXForwarded()
			},
			Transport:     transport,
			FlushInterval: -1,
			ErrorHandler:  b.failed,
		}})
	}
	return b
}

// attemptKey carries the attempt of a request to its error handler.
type attemptKey struct{}

// attempt is one try to send a request.
type attempt struct {
	body   *sent
	unsent bool // it never reached the node
}

// sent is a request's body that records whether it was read.
type sent struct {
	body interface {
		Read([]byte) (int, error)
		Close() error
	}
	read atomic.Bool
}

func (s *sent) Read(p []byte) (int, error) { s.read.Store(true); return s.body.Read(p) }

// Close leaves the body open for the next attempt; the server closes it.
func (s *sent) Close() error { return nil }

func (b *Balancer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tried := map[*backend]bool{}
	for {
		to := b.choose(tried)
		if to == nil {
			unavailable(w)
			return
		}
		tried[to] = true
		a := &attempt{body: &sent{body: r.Body}}
		try := r.Clone(context.WithValue(r.Context(), attemptKey{}, a))
		if r.Body != http.NoBody {
			try.Body = a.body
		}
		to.open.Add(1)
		to.proxy.ServeHTTP(w, try)
		to.open.Add(-1)
		if !a.unsent {
			return
		}
		to.ready.Store(false) // until the next probe
	}
}

// choose returns the ready node with the fewest open requests that was not tried, or nil.
func (b *Balancer) choose(tried map[*backend]bool) *backend {
	var best *backend
	first := int(b.next.Add(1))
	for i := range b.nodes {
		n := b.nodes[(first+i)%len(b.nodes)]
		if n.ready.Load() && !tried[n] && (best == nil || n.open.Load() < best.open.Load()) {
			best = n
		}
	}
	return best
}

// failed answers a request that its node did not answer. If the request never reached the
// node, it only marks it as unsent, and another node is tried.
func (b *Balancer) failed(w http.ResponseWriter, r *http.Request, err error) {
	a, _ := r.Context().Value(attemptKey{}).(*attempt)
	var op *net.OpError
	if a != nil && errors.As(err, &op) && op.Op == "dial" && !a.body.read.Load() {
		a.unsent = true
		return
	}
	if r.Context().Err() == nil {
		b.log.Warn().Err(err).Msg("a node did not answer")
	}
	unavailable(w)
}

// unavailable answers while no node can be reached.
func unavailable(w http.ResponseWriter) {
	p := problem.Unavailable("No node can be reached now.", time.Second)
	body, err := p.MarshalJSON()
	if err != nil {
		panic(err) // plain strings and numbers
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", fmt.Sprint(p.RetryAfterSeconds()))
	w.WriteHeader(p.Status())
	_, _ = w.Write(body) // the client left
}

// Watch probes the nodes until ctx ends.
func (b *Balancer) Watch(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		for _, n := range b.nodes {
			n.ready.Store(b.answers(ctx, n))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (b *Balancer) answers(ctx context.Context, n *backend) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url.String()+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := b.probe.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Ready reports whether a node was ready at its last probe. The index is that of its
// address.
func (b *Balancer) Ready(node int) bool { return b.nodes[node].ready.Load() }

// anyReady reports whether any node is ready.
func (b *Balancer) anyReady() bool {
	for _, n := range b.nodes {
		if n.ready.Load() {
			return true
		}
	}
	return false
}
