//go:build !race

package workflow_test

import (
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// A run that holds as much as it may is read and goes on, one that wants more fails. Neither
// leaves more in the database.
func TestARunHoldsABoundedAmount(t *testing.T) {
	w := newWorld(t)
	var doubles []string
	for range 10 {
		doubles = append(doubles, `"type": "set", "values": {"x": "{{variables.x}}{{variables.x}}"}`)
	}
	first := `{"x": "` + strings.Repeat("x", 1_000) + `"}`
	// Each node is walked by itself, so that no walk is near the budget of its work.
	for range 5 {
		doubles = append(doubles, `"type": "delay", "seconds": 0.001`, `"type": "set", "values": {"y": "{{variables.x}}"}`)
	}
	r := w.begin(chain(first, append(doubles, `"type": "wait_event", "event": "go"`)...), `null`, ``)
	waits := func() bool { return strings.HasSuffix(w.nodes(r), " w:n20") }
	w.eventually("it waits", waits)
	w.restart(0, false)
	began := time.Now()
	w.inject(r, "other", `1`, "")
	t.Logf("it is read in %v", time.Since(began))
	w.inject(r, "go", `1`, "")
	if got := w.ended(r); got != "succeeded" {
		t.Error(got)
	}
	if n := len(w.output(r)); n > flow.MaxData {
		t.Errorf("an output of %d bytes", n)
	}

	for range 150 {
		doubles = append(doubles, `"type": "set", "values": {"y": "{{variables.x}}"}`)
	}
	more := w.begin(chain(first, doubles[:170]...), `null`, ``)
	if got := w.ended(more); got != "failed LIMIT_EXCEEDED" {
		t.Error(got)
	}
	for _, r := range []id.RunID{r, more} {
		for column, most := range map[string]int{"input::text": flow.MaxData, "output::text": flow.MaxData, "sealed": 3 * flow.MaxData / 2} { // base64
			if got := w.text(`SELECT coalesce(sum(octet_length(`+column+`)), 0) <= $2 FROM run_steps WHERE run_id = $1`, r, most); got != "true" {
				t.Errorf("%s holds %s", column, w.text(`SELECT sum(octet_length(`+column+`)) FROM run_steps WHERE run_id = $1`, r))
			}
		}
	}
}

// Many runs that grow large at the same time go on one after the other, are read again when their timers are due,
// and end, those that are cancelled too.
func TestManyLargeRunsGoOn(t *testing.T) {
	w := newWorld(t)
	var nodes []string
	for range 10 {
		nodes = append(nodes, `"type": "set", "values": {"x": "{{variables.x}}{{variables.x}}"}`)
	}
	nodes = append(nodes, `"type": "delay", "seconds": 0.05`, `"type": "set", "values": {"y": "{{variables.x}}"}`, `"type": "wait_event", "event": "go"`)
	_, start := w.started(chain(`{"x": "`+strings.Repeat("x", 700)+`"}`, nodes...), `null`, ``)
	var runs []id.RunID
	for range 18 { // more than have a place
		start.Run = id.RunID{UUID: id.NewAnywhere()}
		runs = append(runs, start.Run)
		w.ask(start.Run, start)
	}
	w.eventually("all wait for their event", func() bool {
		return w.text(`SELECT count(*) FROM run_steps WHERE name = 'n12' AND status = 'waiting'`) == "18"
	})
	w.restart(0, false)
	for i, r := range runs {
		w.eventually("it has a place", func() bool {
			var err error
			if i%3 == 0 {
				_, err = w.try(r, msg.CancelRun{})
			} else {
				_, err = w.try(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "go", ID: "once"})
			}
			return err == nil
		})
	}
	for i, r := range runs {
		if got := w.ended(r); got != "succeeded" && i%3 != 0 || got != "cancelled CANCELLED" && i%3 == 0 {
			t.Error(got)
		}
	}
}
