package run

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/model"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
)

// What steps and runs show of themselves. Shown values are redacted here, once.

type shownCall struct {
	ID   string          `json:"id"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"`
}

// shownTurn is the output of a model's step.
type shownTurn struct {
	Text     string      `json:"text"`
	Thinking string      `json:"thinking,omitempty"`
	Calls    []shownCall `json:"calls,omitempty"`
	Error    string      `json:"error,omitempty"`
}

// showTurn shows calls as they are planned, if they are: the plan knows what is
// secret whatever its key.
func showTurn(r *model.Result, plan []tool.Planned) []byte {
	out := shownTurn{Text: r.Text, Thinking: r.ThinkingText()}
	for i := range r.Calls {
		c := &r.Calls[i]
		shown := shownCall{ID: c.ID, Tool: cut(c.Name, maxName), Args: shownArgs(c)}
		if len(plan) == len(r.Calls) && len(plan[i].Shown) > 0 {
			shown.Args = plan[i].Shown
		}
		out.Calls = append(out.Calls, shown)
	}
	return encode(out)
}

// showModel is the input of a model's step.
func showModel(m agent.Model) []byte {
	return encode(struct {
		Provider string `json:"provider"`
		Model    string `json:"model"`
	}{m.Provider, m.Name})
}

// showOutput is the output of an agent run (service.md, Thread, run, step).
func showOutput(a guardrail.Answer) json.RawMessage {
	return encode(struct {
		Text string          `json:"text"`
		JSON json.RawMessage `json:"json,omitempty"`
	}{a.Text, a.JSON})
}

// What the model hears of a call that people did not let pass (service.md,
// Approval status), and of a handoff.

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
	doc := encode(v)
	return tool.Outcome{Content: string(doc), Shown: doc}
}

// reasoning is what people who decide on a call are told of the model's why: the
// turn's text, else the start of its thinking.
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

// encode is json.Marshal without its escapes for HTML: texts stay readable, and
// nobody puts them into a page as they are.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // texts, numbers and documents that were checked always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// maxName bounds the shown name of a tool: a model may make up any.
const maxName = 200

// cut is the start of s, at most n bytes, whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// shownArgs is the input of a tool's step. What was no JSON object is shown as
// the text it was, where nothing says which part of it is secret: not at all.
func shownArgs(c *model.Call) []byte {
	if c.Malformed != "" {
		return encode(map[string]string{"malformed": redact.Mark})
	}
	return redact.JSON(c.Args)
}

// showSaid is the output of a model's step that did not come to its end.
func showSaid(s Said, message string) []byte {
	return encode(shownTurn{Text: s.Text, Thinking: s.Thinking, Error: message})
}
