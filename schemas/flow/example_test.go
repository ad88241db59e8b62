package flow_test

import (
	"context"
	"encoding/json"
	"fmt"

	"agentsvc/schemas/flow"
)

// A run, as its actor drives it: each call decides one thing that happened outside.
func Example() {
	ctx := context.Background()
	p, _, err := flow.Parse(ctx, "definition", json.RawMessage(`{
		"nodes": [
			{"id": "price", "type": "tool", "tool": "shop.price", "args": {"order": "{{input.order}}"}},
			{"id": "large", "type": "condition", "expression": "nodes.price.json.eur > 100"},
			{"id": "ask", "type": "gate", "title": "Refund {{nodes.price.json.eur}} EUR?"},
			{"id": "refund", "type": "tool", "tool": "shop.refund", "args": {"order": "{{input.order}}"}}
		],
		"edges": [
			{"from": "price", "to": "large"},
			{"from": "large", "to": "ask", "when": "true"},
			{"from": "large", "to": "refund", "when": "false"},
			{"from": "ask", "to": "refund"}
		]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	show := func(facts []flow.Fact, err error) {
		for _, f := range facts {
			fmt.Printf("%c %s%s\n", f.Status, p.Node(f.Node).ID, f.Input)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	s, facts, err := p.Start(ctx, json.RawMessage(`{"order": 7}`), nil)
	show(facts, err)
	s, facts, err = p.End(ctx, s, 0, flow.ToolOutput(`{"eur": 120}`))
	show(facts, err)
	stored := s.Progress() // and the input, the variables and the outputs
	s, err = p.Resume(stored, flow.Data{Input: s.Input(), Variables: s.Variables(), Outputs: p.Outputs(s)})
	if err != nil {
		fmt.Println(err)
	}
	ask := s.Active()[0]
	_, facts, err = p.End(ctx, s, ask, flow.Output{})
	show(facts, err)
	fmt.Println(stored)
	// Output:
	// a price{"order":7}
	// e price
	// a large{"expression":"nodes.price.json.eur > 100"}
	// e large
	// a ask{"title":"Refund 120 EUR?"}
	// e ask
	// a refund{"order":7}
	// eeap/ttn-/136
}
