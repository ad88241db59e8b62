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
	// drainMost and drainFor are how much of an answer's body is read, and for how
	// long, so that its connection can be used again.
	drainMost = 4 << 10
	drainFor  = 50 * time.Millisecond
	// anyBody lets an answer say that it is as long as it likes: it is not read.
	anyBody = 1 << 62
)

// Config is what a Sender needs. Guard is required.
type Config struct {
	Guard *egress.Guard
	// Timeout is for a whole attempt, from the look-up of the name to the head of the
	// answer; 0: 10 s.
	Timeout time.Duration
	// Grace is how long the answer to what was sent is awaited when the attempt is
	// called off; 0: 2 s.
	Grace time.Duration
	// RequireTLS refuses plain http except to a range that the guard's allow list names.
	RequireTLS bool
	Version    string           // of the service, for User-Agent
	Now        func() time.Time // the time of signatures; nil: time.Now
}

// Message is one attempt.
type Message struct {
	URL, Secret string
	Delivery    id.DeliveryID
	Body        []byte
}

// Outcome is what became of an attempt.
type Outcome struct {
	HTTPStatus int           // 0: there was no answer
	Error      string        // "" for a success; else why not, fit to be shown
	Duration   time.Duration // until the head of the answer, or the failure
	Unsent     bool          // the endpoint cannot have the whole of the body
}

// Sender sends attempts. It is safe for concurrent use.
type Sender struct {
	cfg Config
	hc  *http.Client
}

// New makes a Sender. Close it in the end.
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

// Close drops the connections that are kept.
func (s *Sender) Close() { s.hc.CloseIdleConnections() }

// Send makes one attempt. The end of ctx calls it off.
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
	// The transport and not the client: it follows nothing, and reads no Location that
	// might be malformed.
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

// request makes the signed request of m, of which t is told how it goes.
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

// drain reads the little that may stand behind a head, and gives up on what is
// long or late: its connection is closed.
func drain(resp *http.Response, cancel context.CancelFunc) {
	defer resp.Body.Close()
	late := time.AfterFunc(drainFor, cancel)
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, drainMost)
}

// answered is the outcome of an answer.
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
