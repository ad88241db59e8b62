//go:build !race

package workflow_test

import (
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
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
