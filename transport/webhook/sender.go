package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"

	"agentsvc/schemas/id"
	schema "agentsvc/schemas/webhook"
	"agentsvc/transport/egress"
)

const (
	defaultTimeout = 10 * time.Second
	defaultGrace   = 2 * time.Second
	idlePerHost    = 32
	// drainMost and drainFor limit how much of a response body is read, and for how long, so
	// that the connection can be reused.
	drainMost = 4 << 10
	drainFor  = 50 * time.Millisecond
	// anyBody permits a response to declare any length: its body is not read.
	anyBody = 1 << 62
)

// Config holds the settings of a Sender. Guard is required.
type Config struct {
	Guard *egress.Guard
	// Timeout covers a whole attempt, from resolving the name to the head of the response; 0
	// means 10 s.
	Timeout time.Duration
	// Grace is how long a cancelled attempt waits for the response to a request already sent;
	// 0 means 2 s.
	Grace time.Duration
	// RequireTLS refuses plain http except to ranges on the guard's allow list.
	RequireTLS bool
	Version    string           // version of the service, for User-Agent
	Now        func() time.Time // clock for signatures; nil: time.Now
}

// Message is one attempt.
type Message struct {
	URL, Secret string
	Delivery    id.DeliveryID
	Body        []byte
}

// Outcome is the result of an attempt.
type Outcome struct {
	HTTPStatus int           // 0: there was no response
	Error      string        // "" for a success; otherwise the reason, safe to show
	Duration   time.Duration // until the head of the response, or the failure
	Unsent     bool          // the endpoint cannot have the whole body
}

// Sender sends attempts. It is safe for concurrent use.
type Sender struct {
	cfg Config
	hc  *http.Client
}

// New returns a Sender. Close it when done.
func New(cfg Config) *Sender {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Grace <= 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Sender{cfg: cfg, hc: cfg.Guard.Client(egress.Options{
		RequireTLS:    cfg.RequireTLS,
		MaxBody:       anyBody,
		HeaderTimeout: cfg.Timeout,
		IdlePerHost:   idlePerHost,
	})}
}

// Close closes idle connections.
func (s *Sender) Close() { s.hc.CloseIdleConnections() }

// Send makes one attempt. The end of ctx cancels it.
func (s *Sender) Send(ctx context.Context, m Message) Outcome {
	inFlight.Inc()
	defer inFlight.Dec()
	out, class := s.send(ctx, m)
	seconds.Observe(out.Duration.Seconds())
	attempts.WithLabelValues(class).Inc()
	return out
}

func (s *Sender) send(ctx context.Context, m Message) (out Outcome, class string) {
	began := time.Now()
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	t := &trip{}
	defer context.AfterFunc(ctx, func() {
		if t.callOff() {
			cancel()
			return
		}
		time.AfterFunc(s.cfg.Grace, cancel)
	})()
	r, err := s.request(attempt, t, m)
	if err != nil {
		return Outcome{Error: "the endpoint's URL cannot be used", Duration: time.Since(began)}, "refused"
	}
	// Use the transport, not the client: it follows no redirect and does not parse Location,
	// which might be malformed.
	resp, err := s.hc.Transport.RoundTrip(r)
	took := time.Since(began)
	if err != nil {
		out, class = t.failed(err)
		out.Duration = took
		return out, class
	}
	drain(resp, cancel)
	out, class = answered(resp)
	out.Duration = took
	return out, class
}

// request returns the signed request of m; t tracks its progress.
func (s *Sender) request(ctx context.Context, t *trip, m Message) (*http.Request, error) {
	ctx = httptrace.WithClientTrace(ctx, t.hooks())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, nil)
	if err != nil {
		return nil, err
	}
	if r.URL.Host == "" || r.URL.User != nil {
		return nil, errors.New("no host, or user info in a URL")
	}
	r.ContentLength = int64(len(m.Body))
	r.GetBody = func() (io.ReadCloser, error) { return t.body(m.Body), nil }
	r.Body = t.body(m.Body)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "svc-webhook/"+s.cfg.Version)
	r.Header.Set(schema.DeliveryHeader, m.Delivery.String())
	r.Header.Set(schema.SignatureHeader, schema.Sign(m.Secret, s.cfg.Now(), m.Body))
	return r, nil
}

// drain reads a short body, and gives up on a long or late one, which closes its connection.
func drain(resp *http.Response, cancel context.CancelFunc) {
	defer resp.Body.Close()
	late := time.AfterFunc(drainFor, cancel)
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, drainMost)
}

// answered returns the outcome of a response.
func answered(resp *http.Response) (Outcome, string) {
	out, code := Outcome{HTTPStatus: resp.StatusCode}, resp.StatusCode
	switch {
	case code >= 200 && code < 300:
		return out, "succeeded"
	case code >= 300 && code < 400 && resp.Header.Get("Location") != "":
		out.Error = fmt.Sprintf("the endpoint answered with a redirect (%d), which is not followed", code)
		return out, "redirect"
	}
	out.Error = fmt.Sprintf("the endpoint answered with status %d", code)
	return out, "status"
}
