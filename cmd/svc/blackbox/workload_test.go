package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"agentsvc/cmd/svc/client"
)

// job is one message that a back end sends and follows to its end.
type job struct {
	thread, run string
	content     string
	frames      []client.Frame
}

// workload sends messages on threads of its own, each under an Idempotency-Key, and follows every run by a stream that
// it resumes after the last received frame.
func workload(ctx context.Context, c *caller, agent, name string, threads, messages int, content func(thread, message int) string) ([]*job, error) {
	jobs := make([]*job, 0, threads*messages)
	var mu sync.Mutex
	errs := make(chan error, threads)
	for i := range threads {
		go func() {
			errs <- func() error {
				var thread struct{ ID string }
				if err := c.once(ctx, "/v1/threads", fmt.Sprintf("%s-t%d", name, i), map[string]any{"agent_id": agent}, &thread); err != nil {
					return err
				}
				for m := range messages {
					j := &job{thread: thread.ID, content: content(i, m)}
					var posted struct {
						RunID string `json:"run_id"`
					}
					if err := c.once(ctx, "/v1/threads/"+thread.ID+"/messages", fmt.Sprintf("%s-t%d-m%d", name, i, m), map[string]any{"content": j.content}, &posted); err != nil {
						return err
					}
					j.run = posted.RunID
					if err := c.Follow(ctx, j.run, "?replay=full", func(f client.Frame) error { j.frames = append(j.frames, f); return nil }); err != nil {
						return err
					}
					mu.Lock()
					jobs = append(jobs, j)
					mu.Unlock()
				}
				return nil
			}()
		}()
	}
	var first error
	for range threads {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return jobs, first
}

// checkStream asserts that the frames of one run, read over any number of reconnects, are exact: ids strictly increase,
// one terminal frame is at the end, and the text of the last model step is the answer.
func checkStream(t *testing.T, j *job) {
	t.Helper()
	var text strings.Builder
	var last [2]int64
	for i, f := range j.frames {
		seq, off, _ := strings.Cut(f.ID, ".")
		var at [2]int64
		at[0], _ = strconv.ParseInt(seq, 10, 64)
		at[1], _ = strconv.ParseInt(off, 10, 64)
		if at[0] < last[0] || at[0] == last[0] && at[1] <= last[1] {
			t.Errorf("run %s: frame id %s does not follow the one before", j.run, f.ID)
		}
		last = at
		var d struct {
			Type, Kind, Text string
			Output           struct{ Text string }
		}
		if err := json.Unmarshal(f.Data, &d); err != nil || d.Type != f.Type {
			t.Errorf("run %s: frame %s: %v: %s", j.run, f.Type, err, f.Data)
		}
		switch f.Type {
		case "step.started":
			if d.Kind == "llm" {
				text.Reset() // of two llm steps without a tool between them the earlier one was abandoned
			}
		case "llm.delta":
			text.WriteString(d.Text)
		case "run.failed":
			t.Errorf("run %s failed: %s", j.run, f.Data)
		case "run.completed":
			if text.String() != d.Output.Text {
				t.Errorf("run %s: streamed %q, completed with %q", j.run, text.String(), d.Output.Text)
			}
		}
		if f.Terminal() != (i == len(j.frames)-1) {
			t.Errorf("run %s: terminal frame at %d of %d", j.run, i, len(j.frames))
		}
	}
	if len(j.frames) == 0 || j.frames[0].Type != "run.started" {
		t.Errorf("run %s: the stream does not begin with run.started", j.run)
	}
}

// checkStore asserts the durable state by polling: every accepted run once, ended, with steps without a gap, and a
// consistent history of the thread.
func checkStore(t *testing.T, c *caller, agent string, jobs []*job, messages int) {
	t.Helper()
	ctx := t.Context()
	accepted := map[string]*job{}
	byThread := map[string][]*job{}
	for _, j := range jobs {
		if accepted[j.run] != nil {
			t.Errorf("run %s answers two messages", j.run)
		}
		accepted[j.run] = j
		byThread[j.thread] = append(byThread[j.thread], j)
	}
	listed := 0
	for cursor := ""; ; {
		var page struct {
			Items      []client.RunView
			NextCursor *string `json:"next_cursor"`
		}
		if err := c.Call(ctx, "GET", "/v1/runs?limit=100&agent_id="+agent+cursor, nil, &page); err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Items {
			listed++
			if accepted[r.ID] == nil {
				t.Errorf("run %s was never answered with 202", r.ID)
			}
		}
		if page.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + *page.NextCursor
	}
	if listed != len(jobs) {
		t.Errorf("%d runs are listed, %d were accepted", listed, len(jobs))
	}
	for run := range accepted {
		var got struct {
			Run   client.RunView
			Steps []struct {
				Idx    int
				Kind   string
				Status string
			}
		}
		if err := c.Call(ctx, "GET", "/v1/runs/"+run, nil, &got); err != nil {
			t.Fatal(err)
		}
		if got.Run.Status != "succeeded" {
			t.Errorf("run %s is %s", run, got.Run.Status)
		}
		done := 0
		for i, s := range got.Steps {
			if s.Idx != i {
				t.Errorf("run %s: step %d has idx %d", run, i, s.Idx)
			}
			switch s.Status {
			case "succeeded":
				done++
			case "abandoned":
			default:
				t.Errorf("run %s: step %d is %s after the end", run, i, s.Status)
			}
		}
		if done != 1 {
			t.Errorf("run %s: %d succeeded steps, want the one of its one model call", run, done)
		}
	}
	for thread, sent := range byThread {
		var got struct {
			Items []struct {
				Role, Content string
				RunID         string `json:"run_id"`
			}
		}
		if err := c.Call(ctx, "GET", "/v1/threads/"+thread+"/messages", nil, &got); err != nil {
			t.Fatal(err)
		}
		if len(sent) != messages || len(got.Items) != 2*messages {
			t.Errorf("thread %s: %d messages sent, %d listed", thread, len(sent), len(got.Items))
			continue
		}
		for i, j := range sent {
			user, reply := got.Items[2*i], got.Items[2*i+1]
			if user.Role != "user" || user.Content != j.content || user.RunID != j.run || reply.Role != "assistant" || reply.RunID != j.run {
				t.Errorf("thread %s, message %d: %+v, %+v", thread, i, user, reply)
			}
		}
	}
}
