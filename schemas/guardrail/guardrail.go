// Package guardrail checks a run's final answer: against the output guardrails of a manifest,
// then against its output_schema (open-parts.md, Manifest).
//
// Guardrails run first and in the manifest's order, so that text that they remove cannot
// leave through output.json. A block ends the run with OUTPUT_INVALID and names the
// guardrail, never the text. A redact of a regex replaces each match by [redacted]; a redact
// of max_chars cuts the text.
package guardrail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/check"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
)

// Rules are the checks of one manifest. They are safe for concurrent use; nil Rules accept
// every text. Compiled patterns and schemas are in the cache of schemas/check, so that rules
// themselves are small.
type Rules struct {
	output   []guard
	patterns []string // of the guards, in their order
	schema   json.RawMessage
}

type guard struct {
	place   int // in guardrails.output
	regex   int // index in patterns; -1 for max_chars
	maxRune int // of max_chars
	block   bool
}

// Answer is the output of a run.
type Answer struct {
	Text string
	JSON json.RawMessage // nil without an output_schema
}

// Violation is why a text is not accepted as an answer. It is safe to show.
type Violation struct{ Reason string }

// Error returns the reason.
func (v *Violation) Error() string { return v.Reason }

// Limits of the work on one answer.
const (
	maxWork = 8_000_000 // steps of all patterns together (check.Pattern.Work)
	// maxRedacting limits the time of one pattern for removing its matches: each match may
	// read all the text after it.
	maxRedacting = 2 * time.Second
	// MaxText is the maximum length of a text after its matches are replaced.
	MaxText = 8 << 20
)

// Compile returns the rules of a manifest that was validated when it was saved.
func Compile(m *agent.Manifest) (*Rules, error) {
	if len(m.Guardrails.Output) == 0 && len(m.OutputSchema) == 0 {
		return nil, nil
	}
	r := &Rules{schema: m.OutputSchema}
	for i, g := range m.Guardrails.Output {
		c := guard{place: i, regex: -1, block: g.Action == agent.GuardBlock}
		switch g.Kind {
		case agent.GuardRegex:
			c.regex = len(r.patterns)
			r.patterns = append(r.patterns, g.Pattern)
		case agent.GuardMaxChars:
			c.maxRune = g.Value
		default:
			return nil, fmt.Errorf("guardrails.output[%d]: unknown kind %q", i, g.Kind)
		}
		r.output = append(r.output, c)
	}
	return r, nil
}

// Check makes an Answer from a model's final text, or fails with a *Violation, also if the
// check exceeds its limits, as rules saved before the limits existed may. The only other
// error is that of ctx.
func (r *Rules) Check(ctx context.Context, text string) (Answer, error) {
	if r == nil {
		return Answer{Text: text}, nil
	}
	text, err := r.guarded(ctx, text)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Text: text}
	if len(r.schema) == 0 {
		return a, nil
	}
	schema, err := check.Cached(ctx, r.schema, check.Options{Dynamic: true})
	var refused *check.Refusal
	switch {
	case errors.As(err, &refused):
		return Answer{}, &Violation{"The answer could not be checked: output_schema cannot be used, " + refused.Error() + "."}
	case err != nil:
		return Answer{}, err
	}
	doc, ok := document(text)
	if !ok {
		return Answer{}, &Violation{"The answer is not JSON, which output_schema asks for."}
	}
	v, err := check.Decode(doc)
	if err != nil {
		return Answer{}, &Violation{"The answer could not be checked against output_schema: it " + err.Error() + "."}
	}
	err = schema.Check(ctx, v)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		a.JSON = doc
		return a, nil
	case errors.As(err, &invalid):
		return Answer{}, &Violation{"The answer does not satisfy output_schema: " + reason(invalid)}
	case ctx.Err() != nil:
		return Answer{}, ctx.Err()
	}
	return Answer{}, &Violation{"The answer could not be checked against output_schema: " + err.Error() + "."}
}

// guarded applies the guardrails.
func (r *Rules) guarded(ctx context.Context, text string) (string, error) {
	var patterns []*check.Pattern
	if len(r.patterns) > 0 {
		var err error
		patterns, err = check.CachedPatterns(ctx, r.patterns)
		var bad *check.PatternError
		switch {
		case errors.As(err, &bad):
			return "", &Violation{fmt.Sprintf("The answer could not be checked: the pattern of guardrails.output[%d] cannot be used.", r.place(bad.Place))}
		case err != nil:
			return "", err
		}
	}
	left := maxWork
	for i := range r.output {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		g := &r.output[i]
		var err error
		if g.regex < 0 {
			text, err = g.cut(text)
		} else {
			p := patterns[g.regex]
			if left -= p.Work(len(text)); left < 0 {
				return "", g.expensive()
			}
			text, err = g.match(ctx, p, text)
		}
		if err != nil {
			return "", err
		}
	}
	return text, nil
}

// place returns the index in guardrails.output of a pattern.
func (r *Rules) place(pattern int) int {
	for i := range r.output {
		if r.output[i].regex == pattern {
			return r.output[i].place
		}
	}
	return 0
}

func (g *guard) expensive() error {
	return &Violation{fmt.Sprintf("The answer could not be checked: guardrails.output[%d] takes too much work on a text of this length.", g.place)}
}

// cut applies max_chars.
func (g *guard) cut(text string) (string, error) {
	// A text has at most as many characters as bytes.
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

// match applies a pattern.
func (g *guard) match(ctx context.Context, p *check.Pattern, text string) (string, error) {
	if !p.MatchString(text) {
		return text, nil
	}
	if g.block {
		return "", &Violation{fmt.Sprintf("The answer was blocked by guardrails.output[%d]: it matches the pattern.", g.place)}
	}
	return g.redact(ctx, p, text)
}

// stop ends a replacement from within.
type stop struct{ err error }

// redact removes the matches.
func (g *guard) redact(ctx context.Context, p *check.Pattern, text string) (out string, err error) {
	bounded, cancel := context.WithTimeout(ctx, maxRedacting)
	defer cancel()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stop:
			out, err = "", r.err
		default:
			panic(r)
		}
	}()
	length := len(text)
	return p.ReplaceAllStringFunc(text, func(match string) string {
		if bounded.Err() != nil {
			if ctx.Err() != nil {
				panic(stop{ctx.Err()})
			}
			panic(stop{g.expensive()})
		}
		if match == "" {
			return "" // an empty match has nothing to remove
		}
		if length += len(redact.Mark) - len(match); length > MaxText {
			panic(stop{&Violation{fmt.Sprintf("The answer is longer than %d bytes once guardrails.output[%d] has taken its matches out.", MaxText, g.place)}})
		}
		return redact.Mark
	}), nil
}

// document returns the JSON of an answer: the whole text, or the first fenced block that is
// JSON.
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

// maxReason limits the error text of a document that does not match.
const maxReason = 500

// reason returns the validator's error on one line, without the internal address of the
// schema.
func reason(err *jsonschema.ValidationError) string {
	var b strings.Builder
	tell(&b, err)
	return problem.ClipBytes(b.String(), maxReason)
}

// tell writes an error and its causes, one after the other. It stops when the limit is
// reached: there may be a thousand errors.
func tell(b *strings.Builder, err *jsonschema.ValidationError) {
	if b.Len() > maxReason {
		return
	}
	_, top := err.ErrorKind.(*kind.Schema)
	_, reference := err.ErrorKind.(*kind.Reference)
	if !top && !(reference && len(err.Causes) == 1) {
		if b.Len() > 0 {
			b.WriteString(" - ")
		}
		alone := &jsonschema.ValidationError{InstanceLocation: err.InstanceLocation, ErrorKind: err.ErrorKind}
		b.WriteString(strings.Join(strings.Fields(check.WithoutAddress(alone.Error())), " "))
	}
	for _, cause := range err.Causes {
		if b.Len() > maxReason {
			return
		}
		tell(b, cause)
	}
}
