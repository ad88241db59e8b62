package run

import (
	"encoding/json"
	"strings"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/model"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
)

// The shown inputs and outputs of steps and runs. Values are redacted here, once.

type shownCall struct {
	ID   string          `json:"id"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"`
}

// shownTurn is the output of a model's step.
type shownTurn struct {
	Text     string       `json:"text"`
	Thinking string       `json:"thinking,omitempty"`
	Calls    []shownCall  `json:"calls,omitempty"`
	Finish   model.Finish `json:"finish,omitempty"` // only if the model did not end by itself
	Error    string       `json:"error,omitempty"`
}

// showTurn returns the output of a model step. A planned call is shown as its plan says,
// which knows secrets whatever their key.
func showTurn(r *model.Result, plan []tool.Planned) []byte {
	out := shownTurn{Text: r.Text, Thinking: r.ThinkingText()}
	if r.Finish != model.FinishStop && r.Finish != model.FinishCalls {
		out.Finish = r.Finish
	}
	for i := range r.Calls {
		c := &r.Calls[i]
		shown := shownCall{ID: c.ID, Tool: problem.CutBytes(c.Name, maxName), Args: shownArgs(c)}
		if len(plan) == len(r.Calls) && len(plan[i].Shown) > 0 {
			shown.Args = plan[i].Shown
		}
		out.Calls = append(out.Calls, shown)
	}
	return jsontext.Must(out)
}

// showModel returns the input of a model step.
func showModel(m agent.Model) []byte {
	return jsontext.Must(struct {
		Provider string `json:"provider"`
		Model    string `json:"model"`
	}{m.Provider, m.Name})
}

// showOutput returns the output of an agent run (service.md, Thread, run, step).
func showOutput(a guardrail.Answer) json.RawMessage {
	return jsontext.Must(struct {
		Text string          `json:"text"`
		JSON json.RawMessage `json:"json,omitempty"`
	}{a.Text, a.JSON})
}

// The results for the model of a call that was not approved (service.md, Approval status),
// and of a handoff.

var responded = outcome(struct {
	Responded bool `json:"responded"`
}{true})

func rejected(feedback string) tool.Outcome {
	out := outcome(struct {
		Rejected bool   `json:"rejected"`
		Feedback string `json:"feedback"`
	}{true, feedback})
	out.IsError = true
	return out
}

func tookOver(from, to string) tool.Outcome {
	return outcome(struct {
		From string `json:"from"`
		To   string `json:"to"`
	}{from, to})
}

func outcome(v any) tool.Outcome {
	doc := jsontext.Must(v)
	return tool.Outcome{Content: string(doc), Shown: doc}
}

// reasoning returns the model's reason for a call, for the people who decide on it: the start
// of the turn's text, or of its thinking if there is no text.
func reasoning(r *model.Result) string {
	s := r.Text
	if strings.TrimSpace(s) == "" {
		s = r.ThinkingText()
	}
	n := 0
	for i := range s {
		if n == maxReasoning {
			return s[:i]
		}
		n++
	}
	return s
}

// maxName bounds the shown name of a tool, in bytes: a model may invent any name.
const maxName = 200

// shownArgs returns the input of a tool step. Arguments that are no JSON object are masked
// completely: nothing says which part of them is secret.
func shownArgs(c *model.Call) []byte {
	if c.Malformed != "" {
		return jsontext.Must(map[string]string{"malformed": redact.Mark})
	}
	return redact.JSON(c.Args)
}

// showSaid returns the output of a model step that was cut off.
func showSaid(s Said, message string) []byte {
	return jsontext.Must(shownTurn{Text: s.Text, Thinking: s.Thinking, Error: message})
}
