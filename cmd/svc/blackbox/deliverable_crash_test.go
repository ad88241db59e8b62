//go:build failpoints

package blackbox

import (
	"testing"
	"time"
)

// deliverablePoint reports whether only a run that makes a file meets a point.
func deliverablePoint(name string) bool { return name == "run.deliverable_stored" }

// A process that dies between the file and the commit that names it makes the file again, from the same
// answer.
func TestCrashBetweenAFileAndItsRow(t *testing.T) {
	n := newNode(t)
	n.start()
	c := n.tenant("crash")
	before := within(t, time.Minute)
	thread := c.thread(t, before, c.reader(t, false, c.library(t, before, "sales.txt", "The report of the year: sales grew.")))
	n.kill()
	n.launch("SVC_FAILPOINT=run.deliverable_stored:1")
	if err := n.ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 2*time.Minute)
	var posted struct {
		RunID string `json:"run_id"`
	}
	end := n.ended()
	c.ask(t, ctx, 202, "POST", "/v1/threads/"+thread+"/messages", object{"content": "/cite # Report", "deliverable": "html", "evidence": true}, &posted)
	select {
	case <-end:
	case <-ctx.Done():
		t.Fatal("the failpoint was never hit")
	}
	n.launch()
	if err := n.ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	r := c.poll(t, ctx, posted.RunID, "")
	if r.Run.Status != "succeeded" || len(r.Steps) != 2 { // the search, and one turn
		t.Errorf("%+v with %d steps", r.Run, len(r.Steps))
	}
	var list struct{ Items []struct{ ID string } }
	c.ask(t, ctx, 200, "GET", "/v1/runs/"+posted.RunID+"/artifacts", nil, &list)
	if len(list.Items) != 1 {
		t.Fatalf("%d artifacts", len(list.Items))
	}
	c.ask(t, ctx, 200, "GET", "/v1/runs/"+posted.RunID+"/artifacts/"+list.Items[0].ID, nil, nil)
	var messages struct {
		Items []struct {
			Role      string
			Citations []citation
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, &messages)
	cited := 0
	for _, m := range messages.Items {
		if m.Role == "assistant" {
			cited += len(m.Citations)
		}
	}
	if cited != 1 {
		t.Errorf("the answer has %d citations", cited)
	}
}
