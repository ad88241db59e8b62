package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/clitest"
)

func nodeStarted(idx int, id, kind string) []string {
	return []string{fmt.Sprintf(`{"type":"step.started","idx":%d,"kind":"node","name":%q}`, idx, id), fmt.Sprintf(`{"type":"node.started","node_id":%q,"node_type":%q}`, id, kind)}
}

func nodeCompleted(id, kind, status, child string) string {
	if child != "" {
		child = `,"child_run_id":"` + child + `"`
	}
	return fmt.Sprintf(`{"type":"node.completed","node_id":%q,"node_type":%q,"status":%q%s}`, id, kind, status, child)
}

const (
	runStarted = `{"type":"run.started","run_id":"r","agent_id":null,"status":"running"}`
	runRejects = `{"type":"run.failed","code":"GATE_REJECTED","message":"The node ask was not approved: rejected."}`
)

// refundFrames are the frames of a run that waits for a person, and of what follows.
func refundFrames() (before, after []string) {
	before = append(before, runStarted)
	before = append(before, nodeStarted(0, "classify", "agent")...)
	before = append(before, nodeCompleted("classify", "agent", "succeeded", threadID))
	before = append(before, nodeStarted(1, "large", "condition")...)
	before = append(before, nodeCompleted("large", "condition", "succeeded", ""), nodeCompleted("small", "set", "skipped", ""))
	before = append(before, nodeStarted(2, "ask", "gate")...)
	before = append(before, nodeCompleted("ask", "gate", "waiting", ""), requiredFrame(firstID, "workflow:gate"), waitingFrame)
	after = append(after, resumed(firstID, "approve"), nodeCompleted("ask", "gate", "succeeded", ""))
	after = append(after, nodeStarted(3, "refund", "tool")...)
	after = append(after, `{"type":"tool.called","idx":3,"tool":"demo.refund","args_preview":"{}"}`, `{"type":"tool.result","idx":3,"ok":true,"output_preview":"{}"}`,
		nodeCompleted("refund", "tool", "succeeded", ""), completedFrame)
	return before, after
}

// detailOf is the detail of a workflow run whose first two steps have ended.
func detailOf(status string) object {
	return object{"run": object{"id": runID, "status": status, "workflow_id": workflowID, "agent_id": nil, "started_at": "2030-01-02T03:04:05Z", "finished_at": nil},
		"steps": []object{{"name": "classify", "started_at": "2030-01-02T03:04:05Z", "finished_at": "2030-01-02T03:04:08.5Z"},
			{"name": "large", "started_at": "2030-01-02T03:04:08.5Z", "finished_at": "2030-01-02T03:04:08.5Z"}, {"name": "ask", "started_at": "2030-01-02T03:04:09Z", "finished_at": nil}}}
}

// Without a terminal a workflow run is a line for each event.
func TestWatchOfAWorkflowIsLines(t *testing.T) {
	f := newFakeAPI(t)
	f.detail = detailOf("running")
	var out, errs bytes.Buffer
	ended := make(chan int)
	ctx := within(t, time.Minute)
	go func() { ended <- execute(ctx, []string{"runs", "watch", runID}, strings.NewReader(""), &out, &errs) }()
	before, after := refundFrames()
	f.send(t, append(before, after...)...)
	want := `[classify (agent): running]
[classify (agent): succeeded after 3.5s, run 000000b1]
[large (condition): running]
[large (condition): succeeded after 0ms]
[small (set): skipped]
[ask (gate): running]
[ask (gate): waiting]
[workflow:gate needs an approval until 2030-01-02T03:04:05Z: svc approvals approve ` + firstID + `]
[waiting for a decision]
[approval ` + firstID + `: approve]
[ask (gate): succeeded after T]
[refund (tool): running]
[demo.refund {}]
[ok {}]
[refund (tool): succeeded after T]
[3 tokens in, 4 out, 0.5000 USD]
`
	code := <-ended
	got := regexp.MustCompile(`((?:ask|refund) \(\w+\): succeeded after) \S+\]`).ReplaceAllString(out.String(), "$1 T]")
	if code != 0 || got != want || errs.String() != "" {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, errs.String(), got, want)
	}

	// With --json it is the frames, without further requests.
	f.took()
	go func() {
		out.Reset()
		ended <- execute(ctx, []string{"runs", "watch", runID, "--json"}, strings.NewReader(""), &out, &errs)
	}()
	f.send(t, before...)
	f.send(t, runRejects)
	if code := <-ended; code != 1 || out.String() != strings.Join(append(before, runRejects), "\n")+"\n" || len(f.took()) != 0 {
		t.Errorf("code %d %s", code, out.String())
	}
}

// On a terminal the nodes are drawn in place while they start and end.
func TestWatchDrawsAWorkflow(t *testing.T) {
	f := newFakeAPI(t)
	f.detail = detailOf("running")
	t.Setenv("TERM", "xterm")
	screen, terminal := clitest.OpenScreen(t, 100, 24)
	var errs clitest.Output
	ended := make(chan int)
	ctx := within(t, time.Minute)
	go func() {
		ended <- execute(ctx, []string{"runs", "watch", runID}, strings.NewReader(""), terminal, &errs)
	}()
	before, after := refundFrames()
	f.send(t, before...)
	screen.Shows(t, "workflow:refunds  run 000000c1  waiting_approval  ",
		"  ✓ classify  agent      succeeded  3.5s  run 000000b1\n  ✓ large     condition  succeeded  0ms\n  - small     set        skipped\n  ◌ ask       gate       waiting    ",
		"      svc approvals approve 00000001 decides it, ", " left\n")
	f.mu.Lock()
	run := f.detail["run"].(object)
	run["status"], run["finished_at"] = "succeeded", "2030-01-02T03:05:06Z"
	f.detail["steps"].([]object)[2]["finished_at"] = "2030-01-02T03:04:49Z"
	f.detail["steps"] = append(f.detail["steps"].([]object), object{"name": "refund", "started_at": "2030-01-02T03:04:49Z", "finished_at": "2030-01-02T03:04:50Z"})
	f.mu.Unlock()
	f.send(t, after...)
	if code := <-ended; code != 0 || errs.String() != "" {
		t.Errorf("code %d %s", code, errs.String())
	}
	want := `workflow:refunds  run 000000c1  succeeded  1m01s
  ✓ classify  agent      succeeded  3.5s  run 000000b1
  ✓ large     condition  succeeded  0ms
  - small     set        skipped
  ✓ ask       gate       succeeded  40s
  ✓ refund    tool       succeeded  1.0s  demo.refund
[3 tokens in, 4 out, 0.5000 USD]
`
	screen.Shows(t, "USD]\n")
	if got := screen.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A run that has ended is drawn at once, with the status of its detail.
func TestWatchDrawsAnEndedWorkflow(t *testing.T) {
	f := newFakeAPI(t)
	f.detail = detailOf("cancelled")
	f.detail["run"].(object)["finished_at"] = "2030-01-02T03:04:25Z"
	f.refuses("GET", "/v1/workflows/"+workflowID, "NOT_FOUND", "It is archived.", 404)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	screen, terminal := clitest.OpenScreen(t, 100, 24)
	var errs clitest.Output
	ended := make(chan int)
	ctx := within(t, time.Minute)
	go func() {
		ended <- execute(ctx, []string{"runs", "watch", runID}, strings.NewReader(""), terminal, &errs)
	}()
	before, _ := refundFrames()
	f.send(t, append(before, nodeCompleted("ask", "gate", "failed", ""), `{"type":"run.failed","code":"CANCELLED","message":"The run was cancelled."}`)...)
	if code := <-ended; code != 1 || errs.String() != "svc: the run failed: CANCELLED: The run was cancelled.\n" {
		t.Errorf("code %d %s", code, errs.String())
	}
	screen.Shows(t, "run 000000c1  cancelled  20s\n", "ask       gate       failed") // not a drawing before the last
	want := "workflow 000000f1  run 000000c1  cancelled  20s\n  ✓ classify  agent      succeeded  3.5s  run 000000b1\n  ✓ large     condition  succeeded  0ms\n  - small     set        skipped\n  ✗ ask       gate       failed"
	if got := screen.Text(); !strings.HasPrefix(got, want) || strings.Contains(got, "decides it") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A drawing that is higher or wider than the screen is cut, and drawn whole in the end.
func TestDrawingsFitTheScreen(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	g := &graph{run: runID, of: "workflow:wide", steps: map[int]string{}, times: map[string][2]time.Time{}, now: func() time.Time { return now }}
	to := &clitest.Screen{Columns: 30, Rows: 6}
	s := &screen{w: to, size: func() (int, int) { return to.Columns, to.Rows }}
	apply := func(frames ...string) {
		t.Helper()
		for _, data := range frames {
			var f struct{ Type string }
			if err := json.Unmarshal([]byte(data), &f); err != nil {
				t.Fatal(err)
			}
			if _, err := g.apply(Frame{Type: f.Type, Data: json.RawMessage(data)}); err != nil {
				t.Fatal(err)
			}
			if err := s.draw(g.lines()); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(runStarted)
	for i := range 40 {
		id := fmt.Sprintf("node%02d", i)
		apply(nodeStarted(i, id, "delay")...)
		if i != 1 && i != 39 {
			apply(nodeCompleted(id, "delay", "succeeded", ""))
		}
		now = now.Add(time.Second)
	}
	want := "workflow:wide  run 000000c1  …\n  … 37 more\n  ● node01  delay  running   …\n  ✓ node38  delay  succeeded …\n  ● node39  delay  running   …\n"
	if got := to.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	apply(nodeCompleted("node01", "delay", "succeeded", ""), nodeCompleted("node39", "delay", "waiting", ""), requiredFrame(firstID, "workflow:human_task"))
	if err := s.leave(g.lines()); err != nil {
		t.Fatal(err)
	}
	got := to.Text()
	if strings.Count(got, "\n") != 42 || strings.Count(got, "workflow:wide") != 1 || strings.Contains(got, "more") || !strings.Contains(got, "      svc approvals approve 0…\n") {
		t.Errorf("in the end\n%s", got)
	}
}
