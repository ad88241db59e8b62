package skill_test

import (
	"context"
	"encoding/json"
	"fmt"

	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
)

func Example() {
	// An admin saves a skill.
	s, err := skill.Parse(skill.Input{
		Definition: json.RawMessage(`{
			"start_url": "https://shop.example.com/",
			"target_hosts": ["shop.example.com"],
			"steps": [
				{"id": "open", "kind": "navigate", "value": "https://shop.example.com/orders/{{order}}"},
				{"id": "why", "kind": "type", "target": {"selector": "#why"}, "param": "note"},
				{"id": "cancel", "kind": "click", "target": {"selector": "#cancel", "text": "Cancel order"}}
			],
			"params": [
				{"name": "order", "type": "integer", "required": true, "allow_in_url": true},
				{"name": "note", "type": "string", "max_length": 200}
			],
			"commit_step_id": "cancel"
		}`),
		Policy:        json.RawMessage(`{"risk_level": "high", "required_approvals": 2}`),
		OwnerAttested: true,
	})
	if err != nil {
		panic(err)
	}

	// Agents get two tools.
	for _, t := range skill.Tools(id.SkillID{}, "cancel-order", "Cancels an order.", s.Definition, s.Policy) {
		fmt.Println(t.Qualified())
	}

	// A model calls one of them.
	call, faults, err := s.Definition.Bind(context.Background(), skill.ForRun, json.RawMessage(`{"order": "4711", "note": "late\u0000", "reason": "The customer asked."}`))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(call.Values.JSON()), faults)
	open, _ := s.Definition.Steps[0].ValueOf(call.Values)
	fmt.Println(open, skill.Scope{Hosts: s.Definition.TargetHosts}.Allows(open) == "")

	// Its run fills the form before a person decides.
	plan := skill.PlanOf(skill.Run, s.Definition, s.Policy, false)
	state, work := skill.Begin(plan)
	fmt.Println(state.Status, work)
	state, work, _ = skill.Next(state, skill.Landed, "")
	fmt.Println(state.Status, work)
	// Output:
	// browser_skill:cancel-order.run
	// browser_skill:cancel-order.dry_run
	// {"note":"late","order":4711} []
	// https://shop.example.com/orders/4711 true
	// running prepare
	// prepared ask
}

func ExampleParse() {
	_, err := skill.Parse(skill.Input{
		Definition: json.RawMessage(`{
			"start_url": "https://shop.example.com/",
			"target_hosts": ["shop.example.com"],
			"steps": [{"id": "buy", "kind": "click", "target": {"selector": "#row-{{order}}"}}]
		}`),
		OwnerAttested: true,
	})
	fmt.Println(err)
	// Output: BROWSER_SKILL_INVALID: definition.steps[0].target.selector: must not hold {{: selectors are no templates; policy.approval: must not be at_commit_point: the skill has no commit step
}
