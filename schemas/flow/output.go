package flow

import (
	"encoding/json"

	"agentsvc/schemas/flow/scan"
)

// The outputs of node types (open-parts.md, Workflows, and Gate and human task). An agent's
// output comes from its child run; a gate and a delay leave an empty Output.

// ToolOutput is the output of a tool: its text, and json where the text parses.
func ToolOutput(text string) Output {
	o := Output{Text: text}
	if json.Valid([]byte(text)) {
		o.JSON = compact(scan.Trim([]byte(text)))
	}
	return o
}

// EventOutput is the output of a node that waited for an event: an object is json, another
// value is text.
func EventOutput(payload json.RawMessage) Output {
	switch payload = scan.Trim(payload); scan.KindOf(payload) {
	case scan.Object:
		return Output{JSON: payload}
	case scan.String:
		return Output{Text: scan.Text(payload)}
	case scan.Null:
		return Output{}
	}
	return Output{Text: string(compact(payload))}
}

// HumanOutput is the output of a human task: feedback is text (none gives ""), edited
// arguments are json.
func HumanOutput(feedback string, edited json.RawMessage) Output {
	return Output{Text: feedback, JSON: edited}
}

// resultOutput is the output of a condition: its result, and the result's text.
func resultOutput(value json.RawMessage) Output {
	if scan.KindOf(value) == scan.String {
		return Output{Text: scan.Text(value), JSON: value}
	}
	return Output{Text: string(value), JSON: value}
}
