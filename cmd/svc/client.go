package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// client calls the HTTP API as a tenant's back end would.
type client struct {
	base, tenant string
	key          string // an API key, or
	session      string // the cookie of a person's session
	http         *http.Client
	patience     time.Duration // with a service that has gone away, 0 is a minute
}

// newClient calls as the key of the environment, else as the session that svc
// login has kept.
func newClient() (*client, error) {
	var cfg Config
	cfg.loadClient(environment)
	c := &client{base: cfg.URL, key: cfg.APIKey, tenant: cfg.Tenant, http: &http.Client{}}
	if c.key != "" {
		if c.tenant == "" {
			return nil, cli.WrongUse(errors.New("SVC_API_KEY is set and SVC_TENANT is not: set both (svc dev prints them)"))
		}
		return c, nil
	}
	s, err := keptSession(cfg.URL, cfg.Tenant)
	if err != nil {
		return nil, cli.WrongUse(err)
	}
	if s == nil {
		return nil, cli.WrongUse(errors.New("set SVC_URL, SVC_TENANT and SVC_API_KEY (svc dev prints them), or run svc login"))
	}
	c.session, c.tenant = s.Cookie, s.TenantID
	return c, nil
}

// apiError is a problem that the service answered.
type apiError struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// RetryAfter is in seconds, 0 where the problem names no time.
	RetryAfter float64 `json:"retry_after"`
	Errors     []any   `json:"errors,omitempty"`
}

func (e *apiError) Error() string {
	if e.Detail != "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Detail)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Title)
}

// Explain completes an error as --json shows it.
func (e *apiError) Explain(r *cli.Reported) {
	r.Code, r.Status, r.Title, r.Errors, r.RetryAfter = e.Code, e.Status, e.Title, e.Errors, e.RetryAfter
	if r.Detail == e.Error() {
		r.Detail = cmp.Or(e.Detail, e.Title)
	}
}

// authorize says who calls. A session's changes carry the header that no foreign
// page can set.
func (c *client) authorize(req *http.Request) {
	if c.tenant != "" {
		req.Header.Set("X-Tenant-Id", c.tenant)
	}
	switch {
	case c.key != "":
		req.Header.Set("Authorization", "Bearer "+c.key)
	case c.session != "":
		req.Header.Set("Cookie", sessionCookie+"="+c.session)
		req.Header.Set("X-Svc-CSRF", "1")
	}
}

func (c *client) request(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return nil, err
	}
	c.authorize(req)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.http.Do(req)
}

// patient is call that waits as long as the service says while the tenant's bucket
// is empty or the service is busy.
func (c *client) patient(ctx context.Context, method, path string, body, out any) error {
	return c.waiting(ctx, method, path, body, out, math.MaxInt64)
}

// maxWait is how long a look-up waits in all.
const maxWait = time.Minute

// fetch is patient for a look-up, for up to maxWait.
func (c *client) fetch(ctx context.Context, path string, out any) error {
	return c.waiting(ctx, http.MethodGet, path, nil, out, maxWait)
}

func (c *client) waiting(ctx context.Context, method, path string, body, out any, most time.Duration) error {
	for waited := time.Duration(0); ; {
		err := c.call(ctx, method, path, body, out)
		var p *apiError
		if !errors.As(err, &p) || p.RetryAfter <= 0 || p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
			return err
		}
		pause := time.Duration(p.RetryAfter * float64(time.Second))
		if waited += pause; waited > most {
			return err
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

// call sends body and reads the answer into out, which may be nil.
func (c *client) call(ctx context.Context, method, path string, body, out any) error {
	resp, err := c.request(ctx, method, path, body)
	if err != nil {
		return fmt.Errorf("%s is not reachable: %w", c.base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return c.problemOf(resp)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// pages reads up to most items of a list, page by page. next is the cursor of
// what is left, nil for nothing.
func (c *client) pages(ctx context.Context, path string, q url.Values, most int) (items []json.RawMessage, next *string, err error) {
	items = []json.RawMessage{}
	for {
		q.Set("limit", strconv.Itoa(min(most-len(items), 100)))
		var page struct {
			Items      []json.RawMessage
			NextCursor *string `json:"next_cursor"`
		}
		if err := c.fetch(ctx, path+"?"+q.Encode(), &page); err != nil {
			return nil, nil, err
		}
		items = append(items, page.Items...)
		if page.NextCursor == nil || len(items) >= most {
			return items, page.NextCursor, nil
		}
		q.Set("cursor", *page.NextCursor)
	}
}

// problemOf reads the problem that the service answered.
func (c *client) problemOf(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	p := &apiError{Status: resp.StatusCode}
	if json.Unmarshal(b, p) != nil || p.Code == "" {
		return fmt.Errorf("the service answered %s", resp.Status)
	}
	if p.Status == http.StatusUnauthorized && c.session != "" {
		p.Detail = "the session has ended: run svc login"
	}
	return p
}

// frame is one event of a run's stream.
type frame struct {
	ID, Type string
	Data     json.RawMessage
}

func (f frame) terminal() bool { return f.Type == "run.completed" || f.Type == "run.failed" }

// follow reads a run's stream to its end and hands over each frame exactly
// once: a stream that breaks is resumed at the last frame seen, as long as the
// service comes back within a minute. A run that waits sends heartbeats only,
// for as long as it waits.
func (c *client) follow(ctx context.Context, run, query string, each func(frame) error) error {
	last, pause := "", 100*time.Millisecond
	lost := time.Time{}
	for {
		ended, err := c.followOnce(ctx, run, query, &last, func(f frame) error {
			lost, pause = time.Time{}, 100*time.Millisecond
			return each(f)
		})
		var refused *apiError
		var broken brokenStream
		switch {
		case ended:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		case err != nil && !errors.As(err, &broken) && !errors.As(err, &refused):
			return err
		}
		if broken.heard {
			lost, pause = time.Time{}, 100*time.Millisecond
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if time.Since(lost) > cmp.Or(c.patience, time.Minute) {
			return fmt.Errorf("the stream of run %s was lost: %w", run, err)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// brokenStream is a stream that ended without its terminal frame.
type brokenStream struct {
	err   error
	heard bool // the service had sent something before, if only a heartbeat
}

func (b brokenStream) Error() string { return "the stream broke: " + b.err.Error() }
func (b brokenStream) Unwrap() error { return b.err }

func (c *client) followOnce(ctx context.Context, run, query string, last *string, each func(frame) error) (ended bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/runs/"+run+"/events"+query, nil)
	if err != nil {
		return false, err
	}
	c.authorize(req)
	req.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return false, brokenStream{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, c.problemOf(resp)
	}
	in := bufio.NewReader(resp.Body)
	var f frame
	heard := false
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false, brokenStream{err, heard}
		}
		heard = true
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			f.Type = value
		case "id":
			f.ID = value
		case "data":
			f.Data = append(f.Data, value...)
		case "":
			if line != "\n" && line != "\r\n" {
				continue // a comment
			}
			if f.Type != "" && f.Type != "heartbeat" {
				if f.ID != "" {
					*last = f.ID
				}
				if err := each(f); err != nil {
					return false, err
				}
				if f.terminal() {
					return true, nil
				}
			}
			f = frame{}
		}
	}
}

// callAndShow calls and shows what is answered: as it came with --json, else by show.
func callAndShow[V any](cmd *cobra.Command, c *client, method, path string, body any, show func(w io.Writer, v *V) error) error {
	var raw json.RawMessage
	if err := c.call(cmd.Context(), method, path, body, &raw); err != nil {
		return err
	}
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), raw)
	}
	v := new(V)
	if err := json.Unmarshal(raw, v); err != nil {
		return err
	}
	return show(cmd.OutOrStdout(), v)
}

// remove deletes what is at path, and says so.
func remove(cmd *cobra.Command, c *client, path string) error {
	if err := c.call(cmd.Context(), http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), map[string]bool{"removed": true})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), "removed")
	return err
}
