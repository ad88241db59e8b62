// Package guardrail says what may leave a run as its answer: the output
// guardrails of a manifest, then its output_schema (open-parts.md, Manifest).
//
// Guardrails come first and in the manifest's order, so that nothing that they
// hold back can leave through output.json. A block ends the run with
// OUTPUT_INVALID and names the guardrail, never the text; a redact of a regex
// puts [redacted] in place of each match, a redact of max_chars cuts the text.
package guardrail

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/redact"
)

// Rules are the compiled checks of one manifest. They are safe for concurrent
// use; nil Rules let every text through.
type Rules struct {
	output []guard
	schema *jsonschema.Schema
}

type guard struct {
	place   int // in guardrails.output
	regex   *regexp.Regexp
	maxRune int // of max_chars
	block   bool
}

// Answer is what leaves a run.
type Answer struct {
	Text string
	JSON json.RawMessage // nil without an output_schema
}

// Violation says why a text is no answer. It is safe to show.
type Violation struct{ Reason string }

// Error is the reason.
func (v *Violation) Error() string { return v.Reason }

// Compile makes the rules of a manifest that was checked when it was saved.
func Compile(m *agent.Manifest) (*Rules, error) {
	if len(m.Guardrails.Output) == 0 && len(m.OutputSchema) == 0 {
		return nil, nil
	}
	r := &Rules{}
	for i, g := range m.Guardrails.Output {
		c := guard{place: i, block: g.Action == agent.GuardBlock}
		switch g.Kind {
		case agent.GuardRegex:
			var err error
			if c.regex, err = regexp.Compile(g.Pattern); err != nil {
				return nil, fmt.Errorf("guardrails.output[%d]: %w", i, err)
			}
		case agent.GuardMaxChars:
			c.maxRune = g.Value
		default:
			return nil, fmt.Errorf("guardrails.output[%d]: unknown kind %q", i, g.Kind)
		}
		r.output = append(r.output, c)
	}
	if len(m.OutputSchema) > 0 {
		var err error
		if r.schema, err = agent.CompileSchema(m.OutputSchema); err != nil {
			return nil, fmt.Errorf("output_schema: %w", err)
		}
	}
	return r, nil
}

// Check makes an answer of a model's final text, or fails with a *Violation.
func (r *Rules) Check(text string) (Answer, error) {
	if r == nil {
		return Answer{Text: text}, nil
	}
	for i := range r.output {
		var err error
		if text, err = r.output[i].apply(text); err != nil {
			return Answer{}, err
		}
	}
	a := Answer{Text: text}
	if r.schema == nil {
		return a, nil
	}
	doc, ok := document(text)
	if !ok {
		return Answer{}, &Violation{"The answer is not JSON, which output_schema asks for."}
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		return Answer{}, &Violation{"The answer is not JSON, which output_schema asks for."}
	}
	if err := r.schema.Validate(v); err != nil {
		return Answer{}, &Violation{"The answer does not satisfy output_schema: " + reason(err)}
	}
	a.JSON = doc
	return a, nil
}

func (g *guard) apply(text string) (string, error) {
	if g.regex == nil {
		// No text has more characters than bytes.
		if len(text) <= g.maxRune || utf8.RuneCountInString(text) <= g.maxRune {
			return text, nil
		}
		if g.block {
			return "", &Violation{fmt.Sprintf("The answer was blocked by guardrails.output[%d]: it has more than %d characters.", g.place, g.maxRune)}
		}
		n := 0
		for at := range text {
			if n == g.maxRune {
				return text[:at], nil
			}
			n++
		}
		return text, nil
	}
	if g.block {
		if g.regex.MatchString(text) {
			return "", &Violation{fmt.Sprintf("The answer was blocked by guardrails.output[%d]: it matches the pattern.", g.place)}
		}
		return text, nil
	}
	return g.regex.ReplaceAllStringFunc(text, func(match string) string {
		if match == "" {
			return "" // an empty match holds nothing to take out
		}
		return redact.Mark
	}), nil
}

// document finds the JSON of an answer: the whole text, or the first fenced
// block that is JSON.
func document(text string) (json.RawMessage, bool) {
	whole := strings.TrimSpace(text)
	if json.Valid([]byte(whole)) {
		return json.RawMessage(whole), true
	}
	const fence = "```"
	for {
		_, rest, ok := strings.Cut(whole, fence)
		if !ok {
			return nil, false
		}
		block, after, ok := strings.Cut(rest, fence)
		if !ok {
			return nil, false
		}
		// The first line may name the language.
		if first, body, ok := strings.Cut(block, "\n"); ok && !strings.ContainsAny(first, "{[\"") {
			block = body
		}
		if block = strings.TrimSpace(block); json.Valid([]byte(block)) {
			return json.RawMessage(block), true
		}
		whole = after
	}
}

// maxReason bounds what is said about a document that does not fit.
const maxReason = 500

// reason is the validator's complaint on one line, without the made-up address
// of the schema.
func reason(err error) string {
	_, said, ok := strings.Cut(err.Error(), "\n")
	if !ok {
		said = err.Error()
	}
	said = strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimSpace(said), "- ")), " ")
	if len(said) <= maxReason {
		return said
	}
	cut := maxReason
	for !utf8.RuneStart(said[cut]) {
		cut--
	}
	return said[:cut] + "…"
}
