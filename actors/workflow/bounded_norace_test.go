//go:build !race

package workflow_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/check/checktest"
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

// A run of 200 nodes that all join, but for the first ten, takes a commit for each end of a node at most, and little
// memory. Each node starts once, after the last of those before it.
func TestARunOfNodesThatAllJoin(t *testing.T) {
	const wide, nodes = 10, flow.MaxNodes // rows of ten delays; each waits for two or more of the row before
	before := make([][]int, nodes)
	var list, edges []string
	for i := range nodes {
		list = append(list, fmt.Sprintf(`{"id": "n%d", "type": "delay", "seconds": 0.001}`, i))
		for more := 0; i >= wide && (more < 2 || more < 4 && i >= nodes-wide); more++ {
			from := i - i%wide - wide + (i+more)%wide
			before[i] = append(before[i], from)
			edges = append(edges, fmt.Sprintf(`{"from": "n%d", "to": "n%d"}`, from, i))
		}
	}
	if len(edges) != flow.MaxEdges {
		t.Fatalf("%d edges", len(edges))
	}
	w := newWorld(t)
	var r id.RunID
	var got string
	grew := checktest.Grows(func() {
		r = w.begin(`{"nodes": [`+strings.Join(list, ",")+`], "edges": [`+strings.Join(edges, ",")+`]}`, `null`, ``)
		got = w.ended(r)
	})
	if got != "succeeded" || grew > checktest.Most {
		t.Errorf("%s, %d MB", got, grew>>20)
	}
	if n := w.tags.commits(); n > nodes+2 { // it is accepted, and walks to the first nodes
		t.Errorf("%d commits", n)
	}
	at := map[string]int{}
	told := strings.Fields(w.nodes(r))
	for i, f := range told {
		at[f] = i + 1
	}
	if len(told) != 3*nodes || len(at) != 3*nodes { // started, waiting, ended
		t.Errorf("%d frames of nodes, %d of them differ", len(told), len(at))
	}
	for i, all := range before {
		for _, from := range all {
			if begun, ended := at[fmt.Sprintf("+n%d", i)], at[fmt.Sprintf("s:n%d", from)]; ended == 0 || begun < ended {
				t.Errorf("node %d starts at %d, and %d before it ends at %d", i, begun, from, ended)
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
