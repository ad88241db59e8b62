package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/api"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/webhook"
)

const (
	listenPause    = time.Second      // after an empty pull
	listenPace     = listenPause / 2  // after a pull that is not full
	listenPatience = 10 * time.Second // for one attempt, as in the service
	callPatience   = 30 * time.Second // for one call to the service
)

// pulled is an attempt that the service asks a listener to make.
type pulled struct {
	DeliveryID string `json:"delivery_id"`
	EventID    string `json:"event_id"`
	Type       string `json:"type"`
	Attempt    int    `json:"attempt"`
	Signature  string `json:"signature"`
	Body       string `json:"body"`
}

// attempted is the result of an attempt.
type attempted struct {
	DeliveryID string `json:"delivery_id"`
	Attempt    int    `json:"attempt"`
	HTTPStatus int    `json:"http_status,omitempty"`
	Error      string `json:"error,omitempty"`
	DurationMS int64  `json:"duration_ms"`
}

func listenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "listen [--events TYPES] [--forward URL]",
		Short: "show events as webhook endpoints get them, or forward them to a local server",
		Long: "Deliveries reach URL as an endpoint would get them: the same bytes, headers and signature, made with the secret that is printed first.\n" +
			"What URL does not answer with 2xx comes again, up to five times in all. Without --forward events are only shown.",
		Args: cobra.NoArgs,
	}
	events := eventsFlag(cmd)
	forward := cmd.Flags().String("forward", "", "a server to send them to, as http://localhost:3000/hooks")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		to, err := forwardURL(*forward)
		if err != nil {
			return cli.WrongUse(fmt.Errorf("--forward: %w", err))
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		body := map[string]any{}
		if cmd.Flags().Changed("events") {
			body["events"] = *events
		}
		return Listen(cmd, c, body, to)
	})
	return cmd
}

// forwardURL checks the URL of --forward. "" means none.
func forwardURL(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", errors.New("must be a URL, as http://localhost:3000/hooks")
	}
	return text, nil
}

// Listen makes a listener, pulls from it until ctx ends, and removes it.
func Listen(cmd *cobra.Command, c *Client, body any, to string) error {
	var made struct {
		ID        string    `json:"id"`
		Events    []string  `json:"events"`
		Secret    string    `json:"secret"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	ctx := cmd.Context()
	if err := c.Call(ctx, http.MethodPost, "/v1/webhooks/listeners", body, &made); err != nil {
		return err
	}
	path := "/v1/webhooks/listeners/" + url.PathEscape(made.ID)
	defer func() {
		// The service removes it after a minute; until then its events would be stored.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callPatience)
		defer cancel()
		var refused *APIError
		if err := c.Call(ctx, http.MethodDelete, path, nil, nil); err != nil && !(errors.As(err, &refused) && refused.Status == http.StatusNotFound) {
			fmt.Fprintln(cmd.ErrOrStderr(), "the listener could not be removed, it goes in a minute:", err)
		}
	}()
	l := &listening{c: c, path: path, to: to, out: cmd.OutOrStdout(), json: cli.WantsJSON(cmd), http: forwarder(), version: cmd.Root().Version}
	defer l.http.CloseIdleConnections()
	if l.json {
		if err := l.line(made); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(l.out, "listening to %s\nsecret  %s\n", cli.Visible(strings.Join(made.Events, ", ")), cli.Visible(made.Secret)); err != nil {
		return err
	}
	err := l.follow(ctx)
	if ctx.Err() != nil {
		return nil // interrupted by the user
	}
	return err
}

// forwarder sends attempts as the service does: it follows no redirects.
func forwarder() *http.Client {
	return &http.Client{
		Transport:     http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// listening is a running listener.
type listening struct {
	version  string // of this build
	c        *Client
	path, to string
	http     *http.Client
	json     bool

	mu  sync.Mutex // guards out
	out io.Writer
}

// line prints one JSON object.
func (l *listening) line(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cli.PrintJSONLine(l.out, v)
}

// follow pulls, makes the attempts, and reports them with the next pull. It waits up to a
// minute for a service that does not answer.
func (l *listening) follow(ctx context.Context) error {
	var done []attempted
	wait, lost, key := time.Duration(0), time.Time{}, rand.Text()
	for {
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
		items, err := l.pull(ctx, key, done)
		var refused *APIError
		switch {
		case err == nil:
			lost = time.Time{}
			if done, err = l.attemptAll(ctx, items); err != nil {
				return err
			}
			wait, key = pauseAfter(len(items)), rand.Text()
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status == http.StatusNotFound:
			return errors.New("the listener is gone: the service has heard nothing of it for a minute")
		case errors.As(err, &refused) && refused.Code == string(problem.CodeIdempotencyInProgress): // its first answer was lost
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		}
		if lost.IsZero() {
			lost, wait = time.Now(), 100*time.Millisecond
		}
		if time.Since(lost) > cmp.Or(l.c.patience, usualPatience) {
			return fmt.Errorf("the service was lost: %w", err)
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// pauseAfter returns how long to wait after a pull of n items. Every pull takes one of the
// tenant's tokens.
func pauseAfter(n int) time.Duration {
	switch {
	case n >= api.MaxPulled:
		return 0
	case n > 0:
		return listenPace
	}
	return listenPause
}

// pull reports done and fetches due attempts. With the same key it fetches the same again,
// so attempts claimed for a lost answer are not lost.
func (l *listening) pull(ctx context.Context, key string, done []attempted) ([]pulled, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	if done == nil {
		done = []attempted{}
	}
	var got struct{ Items []pulled }
	err := l.c.once(ctx, http.MethodPost, l.path+"/pull", key, map[string]any{"results": done}, &got)
	return got.Items, err
}

// attemptAll makes attempts concurrently and shows each when it ends.
func (l *listening) attemptAll(ctx context.Context, items []pulled) ([]attempted, error) {
	done, errs := make([]attempted, len(items)), make([]error, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() {
			done[i] = l.attempt(ctx, item)
			errs[i] = l.show(time.Now(), item, done[i])
		})
	}
	all.Wait()
	return done, errors.Join(errs...)
}

// attempt sends one attempt. Without a server it succeeds.
func (l *listening) attempt(ctx context.Context, item pulled) (out attempted) {
	out = attempted{DeliveryID: item.DeliveryID, Attempt: item.Attempt}
	if l.to == "" {
		out.HTTPStatus = http.StatusOK
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	start := time.Now()
	defer func() { out.DurationMS = time.Since(start).Milliseconds() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.to, bytes.NewReader([]byte(item.Body)))
	if err != nil {
		out.Error = plainError(err)
		return out
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "svc-webhook/"+l.version)
	req.Header.Set(webhook.SignatureHeader, item.Signature)
	req.Header.Set(webhook.DeliveryHeader, item.DeliveryID)
	resp, err := l.http.Do(req)
	if err != nil {
		out.Error = plainError(err)
		return out
	}
	defer resp.Body.Close()
	out.HTTPStatus = resp.StatusCode
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		out.Error = fmt.Sprintf("the answer was %d", resp.StatusCode)
	}
	return out
}

// plainError returns the text of an error without the URL, which may hold a secret, and no
// longer than the service accepts.
func plainError(err error) string {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v", listenPatience)
	}
	return cli.Shorten(cli.Visible(err.Error()), 500)
}

// show prints an attempt: a line, and the event if it is not forwarded.
func (l *listening) show(now time.Time, item pulled, out attempted) error {
	if l.json {
		line := struct {
			At      time.Time `json:"at"`
			Type    string    `json:"type"`
			EventID string    `json:"event_id"`
			attempted
			Event json.RawMessage `json:"event"`
		}{now.UTC(), item.Type, item.EventID, out, json.RawMessage(item.Body)}
		return l.line(line)
	}
	line := fmt.Sprintf("%s %s %s", now.Format(time.TimeOnly), cli.Visible(item.Type), cli.Visible(item.DeliveryID))
	if item.Attempt > 1 {
		line += fmt.Sprintf(" (attempt %d)", item.Attempt)
	}
	switch {
	case l.to == "":
		line += "\n    " + cli.Visible(compact(json.RawMessage(item.Body)))
	case out.HTTPStatus != 0:
		line += fmt.Sprintf(" → %d %d ms", out.HTTPStatus, out.DurationMS)
	default:
		line += fmt.Sprintf(" → %s, %d ms", out.Error, out.DurationMS)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintln(l.out, line)
	return err
}
