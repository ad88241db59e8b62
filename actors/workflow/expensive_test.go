package workflow_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// chain makes a definition of nodes one after another.
func chain(variables string, nodes ...string) string {
	var edges []string
	nodes = slices.Clone(nodes)
	for i := range nodes {
		if nodes[i] = fmt.Sprintf(`{"id": "n%d", %s}`, i, nodes[i]); i > 0 {
			edges = append(edges, fmt.Sprintf(`{"from": "n%d", "to": "n%d"}`, i-1, i))
		}
	}
	return `{"nodes": [` + strings.Join(nodes, ",") + `], "edges": [` + strings.Join(edges, ",") + `], "variables": ` + variables + `}`
}

// costly is a definition whose first walk takes a quarter of the work that package flow allows.
func costly() (definition, input string) {
	var nodes []string
	for range 190 {
		nodes = append(nodes, `"type": "condition", "expression": "input.all(a, input.all(b, a == b))"`)
	}
	return chain(`{}`, nodes...), `[` + strings.Repeat("1,", 18) + `1]`
}

// Runs whose walks are made to be expensive do not hold up others.
func TestExpensiveRunsHoldUpNoOthers(t *testing.T) {
	w := newWorld(t)
	definition, input := costly()
	_, start := w.started(definition, input, ``)
	var slow []id.RunID
	for range 8 {
		start.Run = id.RunID{UUID: id.NewAnywhere()}
		slow = append(slow, start.Run)
		w.ask(start.Run, start)
	}
	r := w.begin(`{"nodes": [{"id": "d", "type": "delay", "seconds": 0.01}, {"id": "s", "type": "set", "values": {"x": 1}}], "edges": [{"from": "d", "to": "s"}]}`, `null`, ``)
	w.eventually("the simple run ends", func() bool { return w.text(`SELECT finished_at IS NOT NULL FROM runs WHERE id = $1`, r) == "true" })
	// In the order of the commits, which a slow look from here does not change.
	if got := w.text(`SELECT count(*) FROM runs s, runs r WHERE s.id = ANY($1) AND r.id = $2 AND (s.finished_at IS NULL OR s.finished_at > r.finished_at)`, slow, r); got == "0" {
		t.Error("the simple run ended after all expensive ones")
	}
	for _, s := range slow {
		if got := w.ended(s); got != "succeeded" {
			t.Errorf("%s: %s", got, w.text(`SELECT error_message FROM runs WHERE id = $1`, s))
		}
	}
}

// The events that wait for their nodes are bounded in number and in size.
func TestTheEventsOfARunAreBounded(t *testing.T) {
	w := newWorld(t)
	r := w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "go"}]}`, `null`, ``)
	large := json.RawMessage(`"` + strings.Repeat("x", 2<<20-2) + `"`)
	send := func(name string, payload json.RawMessage) error {
		_, err := w.try(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: name, Payload: payload})
		return err
	}
	refused := func(err error) bool { return errors.Is(err, problem.Invalid("", "")) }
	for range 3 {
		if err := send("x", large); err != nil {
			t.Fatal(err)
		}
	}
	w.restart(0, false) // what counts is in the rows
	if err := send("x", large); !refused(err) {
		t.Errorf("8 MiB and some bytes wait: %v", err)
	}
	if err := send("x", large[:len(large)-10]); err == nil {
		t.Error("an event that is no JSON is accepted")
	}
	if err := send("x", json.RawMessage(`"`+strings.Repeat("x", 2<<20-2-4)+`"`)); err != nil {
		t.Errorf("8 MiB wait: %v", err)
	}
	if err := send("go", nil); err == nil { // its name is two bytes too many
		t.Error("one more is accepted")
	}
	w.ask(r, msg.CancelRun{})
	w.ended(r)

	r = w.begin(`{"nodes": [{"id": "e", "type": "wait_event", "event": "go"}]}`, `null`, ``)
	for range 1_000 {
		if err := send("x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := send("go", nil); !refused(err) {
		t.Errorf("1,001 events: %v", err)
	}
	w.node.Tell(w.address(r), durable.Wake{})
	w.ask(r, msg.CancelRun{})
	w.ended(r)
}
