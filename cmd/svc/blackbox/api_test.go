package blackbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// runID is the id of no run.
const runID = "0193a000-0000-7000-8000-0000000000c1"

// caller calls the API of a node as the command line does.
type caller struct{ client.Client }

// Shared requests and checks of the tests against the real server.

type object = map[string]any

// within returns a test's deadline: limit is generous on an idle machine, and a busy one gets eight
// times that, because parallel subtests wait for theirs.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*limit)
	t.Cleanup(cancel)
	return ctx
}

// answer is an HTTP response of any status.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) code() string {
	var p client.APIError
	if json.Unmarshal(a.body, &p) != nil {
		return ""
	}
	return p.Code
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// stranger returns a client without a key.
func (n *node) stranger() *caller {
	return &caller{client.Client{Base: n.base, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}}
}

// do sends one request unchanged: body is bytes, text, or a value to encode as JSON; header holds names
// and values. It never retries.
func (c *caller) do(ctx context.Context, method, path string, body any, header ...string) (answer, error) {
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(b)
	case string:
		r = strings.NewReader(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return answer{}, err
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, r)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Key)
	req.Header.Set("X-Tenant-Id", c.Tenant)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Del(header[i])
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, b}, err
}

// ask is do for a response that must have this status; out may be nil.
func (c *caller) ask(t *testing.T, ctx context.Context, status int, method, path string, body, out any, header ...string) answer {
	t.Helper()
	a, err := c.do(ctx, method, path, body, header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.status != status {
		t.Fatalf("%s %s: %s, want %d", method, path, a, status)
	}
	if out != nil {
		if err := json.Unmarshal(a.body, out); err != nil {
			t.Fatalf("%s %s: %v: %s", method, path, err, a.body)
		}
	}
	return a
}

func (c *caller) thread(t *testing.T, ctx context.Context, agent string) string {
	t.Helper()
	var made struct{ ID string }
	c.ask(t, ctx, 200, "POST", "/v1/threads", object{"agent_id": agent}, &made)
	return made.ID
}

// say posts a message and returns its run.
func (c *caller) say(t *testing.T, ctx context.Context, thread, content string) string {
	t.Helper()
	var posted struct {
		RunID     string `json:"run_id"`
		MessageID string `json:"message_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/threads/"+thread+"/messages", object{"content": content}, &posted)
	if posted.RunID == "" || posted.MessageID == "" {
		t.Fatalf("posted: %+v", posted)
	}
	return posted.RunID
}

// runOnce starts a run without a thread.
func (c *caller) runOnce(t *testing.T, ctx context.Context, agent string, input any) string {
	t.Helper()
	var started struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/agents/"+agent+"/runs", object{"input": input}, &started)
	return started.RunID
}

type runAnswer struct {
	Run struct {
		client.RunView
		Input      json.RawMessage
		Origin     struct{ Kind, ID string }
		StartedAt  *time.Time `json:"started_at"`
		FinishedAt *time.Time `json:"finished_at"`
	}
	Steps []stepView
}

type stepView struct {
	Idx                int
	Kind, Name, Status string
	Input, Output      json.RawMessage
	TokensIn           int64   `json:"tokens_in"`
	TokensOut          int64   `json:"tokens_out"`
	CostUSD            float64 `json:"cost_usd"`
}

func (r *runAnswer) text() string {
	var o struct{ Text string }
	_ = json.Unmarshal(r.Run.Output, &o)
	return o.Text
}

// shape returns the kinds and statuses of the steps, in order.
func (r *runAnswer) shape() string {
	var s []string
	for i, step := range r.Steps {
		if step.Idx != i {
			s = append(s, fmt.Sprintf("(idx %d at %d)", step.Idx, i))
		}
		s = append(s, step.Kind+":"+step.Status)
	}
	return strings.Join(s, " ")
}

func (c *caller) read(t *testing.T, ctx context.Context, run string) *runAnswer {
	t.Helper()
	r := new(runAnswer)
	c.ask(t, ctx, 200, "GET", "/v1/runs/"+run, nil, r)
	return r
}

var terminalStatus = map[string]bool{"succeeded": true, "failed": true, "cancelled": true, "expired": true}

// poll reads a run until it has the wanted status, or any terminal status for "".
func (c *caller) poll(t *testing.T, ctx context.Context, run, status string) *runAnswer {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		r := c.read(t, ctx, run)
		if r.Run.Status == status || status == "" && terminalStatus[r.Run.Status] {
			return r
		}
		if terminalStatus[r.Run.Status] {
			t.Fatalf("run %s ended as %s (%+v), want %s", run, r.Run.Status, r.Run.Error, status)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("run %s is still %s", run, r.Run.Status)
		}
	}
}

var errCut = errors.New("the reader hangs up")

// stream reads a run's stream once, without a retry, until it ends or each returns false; each may be
// nil. The test fails unless the stream ends with its terminal frame or each ended it.
func (c *caller) stream(t *testing.T, ctx context.Context, run, query, last string, each func(client.Frame) bool) []client.Frame {
	t.Helper()
	frames, err := c.streamOnce(ctx, run, query, last, each)
	if err != nil && !errors.Is(err, errCut) {
		t.Fatalf("stream of run %s%s after %q: %v, %d frames", run, query, last, err, len(frames))
	}
	return frames
}

func (c *caller) streamOnce(ctx context.Context, run, query, last string, each func(client.Frame) bool) ([]client.Frame, error) {
	var frames []client.Frame
	_, err := c.FollowOnce(ctx, run, query, &last, func(f client.Frame) error {
		frames = append(frames, f)
		if each != nil && !each(f) {
			return errCut
		}
		return nil
	})
	return frames, err
}

// watch opens a run's stream and delivers its frames when it has ended. It returns once the server has
// accepted the reader. The end of the test closes the stream.
func (c *caller) watch(t *testing.T, ctx context.Context, run, query string) <-chan []client.Frame {
	t.Helper()
	watcher, open, done := *c, make(chan struct{}), make(chan []client.Frame, 1)
	watcher.HTTP = &http.Client{Transport: opening{c.HTTP.Transport, open}}
	go func() {
		frames, err := watcher.streamOnce(ctx, run, query, "", nil)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("stream of run %s: %v", run, err)
		}
		done <- frames
	}()
	select {
	case <-open:
	case <-ctx.Done():
		t.Fatalf("the stream of run %s was not opened", run)
	}
	return done
}

// opening signals the arrival of the response's header.
type opening struct {
	http.RoundTripper
	done chan struct{}
}

func (o opening) RoundTrip(r *http.Request) (*http.Response, error) {
	defer close(o.done)
	return o.RoundTripper.RoundTrip(r)
}

// rawStream returns all bytes that the server sends on a run's stream until it closes the stream.
func (c *caller) rawStream(t *testing.T, ctx context.Context, run, query string) string {
	t.Helper()
	a := c.ask(t, ctx, 200, "GET", "/v1/runs/"+run+"/events"+query, nil, nil, "Accept", "text/event-stream")
	if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("content type %q", ct)
	}
	return string(a.body)
}

// told returns the content of frames with neighbouring live texts merged: the texts of one step and kind
// are one line, with the last one's id.
func told(frames []client.Frame) []string {
	type line struct {
		id, kind, text string
		idx            int
		live           bool
	}
	var lines []line
	for _, f := range frames {
		if f.Type != "llm.delta" && f.Type != "llm.thinking" {
			lines = append(lines, line{id: f.ID, kind: f.Type, text: string(f.Data)})
			continue
		}
		var d struct {
			Idx  int
			Text string
		}
		_ = json.Unmarshal(f.Data, &d)
		if n := len(lines); n > 0 && lines[n-1].live && lines[n-1].kind == f.Type && lines[n-1].idx == d.Idx {
			lines[n-1].text += d.Text
			lines[n-1].id = f.ID
			continue
		}
		lines = append(lines, line{f.ID, f.Type, d.Text, d.Idx, true})
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = fmt.Sprintf("%s %s %s", l.id, l.kind, l.text)
	}
	return out
}

// types returns the types of frames, with repeated live texts merged.
func types(frames []client.Frame) string {
	var s []string
	for _, f := range frames {
		if live := f.Type == "llm.delta" || f.Type == "llm.thinking"; live && len(s) > 0 && s[len(s)-1] == f.Type {
			continue
		}
		s = append(s, f.Type)
	}
	return strings.Join(s, " ")
}

// textOf returns the live text of one type in frames.
func textOf(frames []client.Frame, kind string) string {
	var b strings.Builder
	for _, f := range frames {
		if f.Type == kind {
			var d struct{ Text string }
			_ = json.Unmarshal(f.Data, &d)
			b.WriteString(d.Text)
		}
	}
	return b.String()
}

// eventually repeats ok until it returns true, at most until ctx ends.
func eventually(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within the test's time", what)
		}
	}
}

// lines reads r line by line into a channel that is closed at its end.
func lines(r io.Reader) <-chan string {
	out := make(chan string, 1024)
	go func() {
		defer close(out)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			select {
			case out <- s.Text():
			default: // the reader has enough lines
			}
		}
	}()
	return out
}
