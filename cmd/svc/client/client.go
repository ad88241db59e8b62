// Package client is the command line as a client of the HTTP API: agents, chats, runs,
// approvals, knowledge bases, webhooks, triggers and embed keys of a tenant.
package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
)

// settings are the settings of the environment for calls of the service.
type settings struct{ url, tenant, key string }

func loadSettings() settings {
	return settings{
		url:    strings.TrimRight(cmp.Or(os.Getenv("SVC_URL"), "http://127.0.0.1:8080"), "/"),
		tenant: os.Getenv("SVC_TENANT"), key: os.Getenv("SVC_API_KEY"),
	}
}

// Commands returns the commands that call the API. teach opens a browser on this machine.
func Commands(teach Teacher) []*cobra.Command {
	return []*cobra.Command{
		loginCommand(), logoutCommand(), agentsCommand(), workflowsCommand(), knowledgeCommand(), threadsCommand(), serversCommand(), policiesCommand(), chatCommand(), runsCommand(),
		approvalsCommand(), grantsCommand(), webhooksCommand(), listenCommand(), triggersCommand(), skillsCommand(teach), embedKeysCommand(), endUsersCommand(), findCommand(), toolsCommand(), statusCommand(), tailCommand(),
	}
}

const (
	// usualPatience is how long a call waits for its answer, and how long commands wait for a
	// service that is away.
	usualPatience = time.Minute
	// usualSilence is the time of three heartbeats: a stream that says nothing for so long is lost.
	usualSilence = 45 * time.Second
)

// Client calls the HTTP API as a tenant's back end would.
type Client struct {
	Base, Tenant string
	Key          string // an API key, or
	session      string // the cookie of a person's session
	HTTP         *http.Client
	patience     time.Duration // with a service that does not answer; 0: usualPatience
	silence      time.Duration // after which a stream counts as broken; 0: usualSilence
}

// newClient returns a client with the key of the environment, or else with the session that
// svc login has stored.
func newClient() (*Client, error) {
	cfg := loadSettings()
	c := &Client{Base: cfg.url, Key: cfg.key, Tenant: cfg.tenant, HTTP: &http.Client{}}
	if c.Key != "" {
		if c.Tenant == "" {
			return nil, cli.WrongUse(errors.New("SVC_API_KEY is set and SVC_TENANT is not: set both (svc dev prints them)"))
		}
		return c, nil
	}
	s, err := keptSession(cfg.url, cfg.tenant)
	if err != nil {
		return nil, cli.WrongUse(err)
	}
	if s == nil {
		return nil, cli.WrongUse(errors.New("set SVC_URL, SVC_TENANT and SVC_API_KEY (svc dev prints them), or run svc login"))
	}
	c.session, c.Tenant = s.Cookie, s.TenantID
	return c, nil
}

// APIError is a problem in an answer of the service.
type APIError struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// RetryAfter is in seconds, 0 where the problem names no time.
	RetryAfter float64 `json:"retry_after"`
	Errors     []any   `json:"errors,omitempty"`
}

// codeOfProxy is the code of an answer that is no problem of the service: a proxy's in front of it.
const codeOfProxy = "FAILED"

// later reports whether the same call may be answered soon: the tenant's bucket is empty, the service
// is busy, or a proxy has no node to ask.
func (e *APIError) later() bool {
	return e.Status == http.StatusTooManyRequests || e.Code == string(problem.CodeUnavailable) || e.Code == codeOfProxy && e.Status >= http.StatusBadGateway
}

// pause is how long to wait before the same call, usual where the service does not say.
func (e *APIError) pause(usual time.Duration) time.Duration {
	if e.RetryAfter > 0 {
		return time.Duration(e.RetryAfter * float64(time.Second))
	}
	return usual
}

func (e *APIError) Error() string {
	if e.Detail != "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Detail)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Title)
}

// Explain completes an error as --json shows it.
func (e *APIError) Explain(r *cli.Reported) {
	r.Code, r.Status, r.Title, r.Errors, r.RetryAfter = e.Code, e.Status, e.Title, e.Errors, e.RetryAfter
	if r.Detail == e.Error() {
		r.Detail = cmp.Or(e.Detail, e.Title)
	}
}

// authorize adds the credentials. Changes by a session carry the header that no foreign page
// can set.
func (c *Client) authorize(req *http.Request) {
	if c.Tenant != "" {
		req.Header.Set("X-Tenant-Id", c.Tenant)
	}
	switch {
	case c.Key != "":
		req.Header.Set("Authorization", "Bearer "+c.Key)
	case c.session != "":
		req.Header.Set("Cookie", sessionCookie+"="+c.session)
		req.Header.Set("X-Svc-CSRF", "1")
	}
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Response, error) {
	return c.keyed(ctx, method, path, "", body)
}

// keyed makes a request under an Idempotency-Key, or without one if key is empty.
func (c *Client) keyed(ctx context.Context, method, path, key string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, r)
	if err != nil {
		return nil, err
	}
	c.authorize(req)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return c.HTTP.Do(req)
}

// Patient is Call, except that it waits and tries again, as the service says, while the
// tenant's bucket is empty or the service is busy.
func (c *Client) Patient(ctx context.Context, method, path string, body, out any) error {
	return c.waiting(ctx, method, path, body, out, math.MaxInt64)
}

// maxWait is how long a look-up waits in all.
const maxWait = time.Minute

// fetch is Patient for a look-up, for up to maxWait.
func (c *Client) fetch(ctx context.Context, path string, out any) error {
	return c.waiting(ctx, http.MethodGet, path, nil, out, maxWait)
}

func (c *Client) waiting(ctx context.Context, method, path string, body, out any, most time.Duration) error {
	for waited := time.Duration(0); ; {
		err := c.Call(ctx, method, path, body, out)
		var p *APIError
		if !errors.As(err, &p) || !p.later() {
			return err
		}
		wait := p.pause(time.Second / 2)
		if waited += wait; waited > most {
			return err
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// unansweredError is the error of a call without an answer.
type unansweredError struct {
	base    string
	changed bool // the call may have changed something
	err     error
}

func (e *unansweredError) Error() string {
	if e.changed {
		return fmt.Sprintf("no answer from %s, so it may have been done: %v", e.base, e.err)
	}
	return fmt.Sprintf("%s is not reachable: %v", e.base, e.err)
}

func (e *unansweredError) Unwrap() error { return e.err }

// Call sends body and reads the answer into out, which may be nil. A POST is sent again for up to a
// minute if its answer was lost or the service is busy. All its tries have one Idempotency-Key, so
// that it is done once.
func (c *Client) Call(ctx context.Context, method, path string, body, out any) error {
	if method != http.MethodPost || strings.HasPrefix(path, "/v1/auth/") { // sessions take no key
		return c.once(ctx, method, path, "", body, out)
	}
	return c.post(ctx, path, body, out, false)
}

// post makes a POST as Call does. A service that cannot be reached at all is waited for if answered
// is set: it has answered this command before.
func (c *Client) post(ctx context.Context, path string, body, out any, answered bool) error {
	key, wait, away, maybe := rand.Text(), 100*time.Millisecond, time.Time{}, false
	for {
		err := c.once(ctx, http.MethodPost, path, key, body, out)
		var refused *APIError
		var lost *unansweredError
		switch {
		case errors.As(err, &refused) && (refused.later() || refused.Code == string(problem.CodeIdempotencyInProgress)):
			wait = refused.pause(wait)
			maybe = maybe || refused.Status != http.StatusTooManyRequests
		case errors.As(err, &lost) && (lost.changed || maybe || answered):
			maybe = maybe || lost.changed
		default:
			return err
		}
		if away.IsZero() {
			away = time.Now()
		}
		if time.Since(away)+wait > cmp.Or(c.patience, usualPatience) || !pause.For(ctx, wait) {
			if maybe && (lost == nil || !lost.changed) {
				err = fmt.Errorf("%w (it may have been done)", err)
			}
			return err
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// once sends one request and reads its answer.
func (c *Client) once(ctx context.Context, method, path, key string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.patience, usualPatience))
	defer cancel()
	sent := false
	resp, err := c.keyed(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }}), method, path, key, body)
	var answer []byte
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode >= 300 {
			return c.problemOf(resp)
		}
		if out == nil {
			return nil
		}
		answer, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return &unansweredError{c.Base, sent && method != http.MethodGet, err}
	}
	return json.Unmarshal(answer, out)
}

// Pages reads up to most items of a list, page by page. next is the cursor of the rest, nil
// at the end.
func (c *Client) Pages(ctx context.Context, path string, q url.Values, most int) (items []json.RawMessage, next *string, err error) {
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

// problemOf reads the problem in an answer.
func (c *Client) problemOf(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	p := &APIError{Status: resp.StatusCode}
	if json.Unmarshal(b, p) != nil || p.Code == "" {
		return &APIError{Status: resp.StatusCode, Code: codeOfProxy, Title: "the service answered " + resp.Status}
	}
	if p.Status == http.StatusUnauthorized && c.session != "" {
		p.Detail = "the session has ended: run svc login"
	}
	return p
}

// Frame is one event of a run's stream.
type Frame struct {
	ID, Type string
	Data     json.RawMessage
}

// Terminal reports whether the frame ends its stream.
func (f Frame) Terminal() bool { return f.Type == "run.completed" || f.Type == "run.failed" }

// Follow reads a run's stream to its end and delivers each frame exactly once. It resumes a
// broken stream after the last frame, if the service is back within a minute. The stream of
// a run that waits has heartbeats only.
func (c *Client) Follow(ctx context.Context, run, query string, each func(Frame) error) error {
	last, wait := "", 100*time.Millisecond
	lost := time.Time{}
	for {
		ended, err := c.FollowOnce(ctx, run, query, &last, func(f Frame) error {
			lost, wait = time.Time{}, 100*time.Millisecond
			return each(f)
		})
		var refused *APIError
		var broken BrokenStream
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
		if broken.Heard {
			lost, wait = time.Time{}, 100*time.Millisecond
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if time.Since(lost) > cmp.Or(c.patience, usualPatience) {
			return fmt.Errorf("the stream of run %s was lost: %w", run, err)
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// BrokenStream is a stream that ended without its terminal frame.
type BrokenStream struct {
	Err   error
	Heard bool // the service had sent something before, at least a heartbeat
}

func (b BrokenStream) Error() string { return "the stream broke: " + b.Err.Error() }
func (b BrokenStream) Unwrap() error { return b.Err }

// FollowOnce reads a stream after the frame *last until it ends or breaks.
func (c *Client) FollowOnce(ctx context.Context, run, query string, last *string, each func(Frame) error) (ended bool, err error) {
	return c.stream(ctx, "/v1/runs/"+run+"/events"+query, last, each)
}

// stream reads an event stream after the frame *last until it ends, breaks, or says nothing for
// the time of three heartbeats.
func (c *Client) stream(ctx context.Context, path string, last *string, each func(Frame) error) (ended bool, err error) {
	most := cmp.Or(c.silence, usualSilence)
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(most, cancel)
	defer silent.Stop()
	heard := false
	broken := func(err error) error {
		if reading.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the service said nothing for %v", most)
		}
		return BrokenStream{err, heard}
	}
	req, err := http.NewRequestWithContext(reading, http.MethodGet, c.Base+path, nil)
	if err != nil {
		return false, err
	}
	c.authorize(req)
	req.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return false, broken(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, c.problemOf(resp)
	}
	in := bufio.NewReader(resp.Body)
	var f Frame
	for {
		silent.Reset(most)
		line, err := in.ReadString('\n')
		silent.Stop() // what each does takes its own time
		if err != nil {
			return false, broken(err)
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
				if f.Terminal() {
					return true, nil
				}
			}
			f = Frame{}
		}
	}
}

// callAndShow calls and shows the answer: unchanged with --json, else by show.
func callAndShow[V any](cmd *cobra.Command, c *Client, method, path string, body any, show func(w io.Writer, v *V) error) error {
	var raw json.RawMessage
	if err := c.Call(cmd.Context(), method, path, body, &raw); err != nil {
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

// asking adds --yes to a command that calls agreed.
func asking(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Bool("yes", false, "ask nothing; only at a terminal is anything asked")
	return cmd
}

// agreed asks a person at a terminal before something is done that cannot be undone, and shows what the
// resource at path is. Scripts are not asked.
func agreed(cmd *cobra.Command, c *Client, path, what string) error {
	if yes, err := cmd.Flags().GetBool("yes"); yes || err != nil || !isTerminal(cmd.InOrStdin()) {
		return err
	}
	var thing json.RawMessage
	var wrapped struct{ Skill json.RawMessage }
	_ = c.Call(cmd.Context(), http.MethodGet, path, nil, &thing) // a grant cannot be read: it is asked about by its id
	_ = json.Unmarshal(thing, &wrapped)
	label := cli.ShortID(path[strings.LastIndexByte(path, '/')+1:])
	for _, item := range []json.RawMessage{wrapped.Skill, thing} {
		if of, err := nameOf(item); err == nil && of.Label != "" {
			label += "  " + of.Label
			break
		}
	}
	return confirm(cmd, false, what+": "+label+". Go on?")
}

// remove deletes the resource at path and reports it. Its commands are asking.
func remove(cmd *cobra.Command, c *Client, path string) error {
	return removeThat(cmd, c, path, cmd.Short)
}

// removeThat is remove with a text that says what is deleted.
func removeThat(cmd *cobra.Command, c *Client, path, what string) error {
	if err := agreed(cmd, c, path, what); err != nil {
		return err
	}
	if err := c.Call(cmd.Context(), http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), map[string]bool{"removed": true})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), "removed")
	return err
}
