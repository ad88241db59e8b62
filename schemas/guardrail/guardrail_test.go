package guardrail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/check/checktest"
)

func rules(t *testing.T, manifest string) *Rules {
	t.Helper()
	m, err := agent.Load(json.RawMessage(manifest))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Compile(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGuardrails(t *testing.T) {
	for _, c := range []struct{ name, guards, in, want, violation string }{
		{"regex redact replaces every match", `{"kind":"regex","pattern":"[0-9]{4}","action":"redact"}`, "a 1234 b 5678", "a [redacted] b [redacted]", ""},
		{"regex redact does not expand templates", `{"kind":"regex","pattern":"(x)","action":"redact"}`, "x$1", "[redacted]$1", ""},
		{"regex block names the guardrail, not the text", `{"kind":"regex","pattern":"secret","action":"block"}`, "my secret", "", "guardrails.output[0]: it matches"},
		{"regex block lets others through", `{"kind":"regex","pattern":"secret","action":"block"}`, "fine", "fine", ""},
		{"max_chars block counts characters", `{"kind":"max_chars","value":3,"action":"block"}`, "äöü", "äöü", ""},
		{"max_chars block", `{"kind":"max_chars","value":3,"action":"block"}`, "äöüß", "", "more than 3 characters"},
		{"max_chars redact cuts", `{"kind":"max_chars","value":2,"action":"redact"}`, "äöüß", "äö", ""},
		{"in the manifest's order", `{"kind":"regex","pattern":"aaaa","action":"redact"},{"kind":"max_chars","value":4,"action":"redact"}`, "aaaab", "[red", ""},
		{"the second one blocks", `{"kind":"max_chars","value":9,"action":"block"},{"kind":"regex","pattern":"b","action":"block"}`, "ab", "", "guardrails.output[1]"},
		{"an empty match changes nothing", `{"kind":"regex","pattern":"z*","action":"redact"}`, "ab", "ab", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, rules(t, `{"guardrails":{"output":[`+c.guards+`]}}`), c.in, c.want, "", c.violation)
		})
	}
}

func TestOutputSchema(t *testing.T) {
	const schema = `{"output_schema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}`
	for _, c := range []struct{ name, in, json, violation string }{
		{"the whole text", ` {"n":1} `, `{"n":1}`, ""},
		{"inside a fence", "Here:\n```json\n{\"n\": 12345678901234567890}\n```\nDone.", `{"n": 12345678901234567890}`, ""},
		{"a fence without a language", "```\n{\"n\":2}\n```", `{"n":2}`, ""},
		{"a fence on one line", "```{\"n\":3}```", `{"n":3}`, ""},
		{"the first fence that is JSON", "```sh\nls\n```\n```json\n{\"n\":4}\n```", `{"n":4}`, ""},
		{"no JSON", "four", "", "not JSON"},
		{"an open fence", "```json\n{\"n\":4}", "", "not JSON"},
		{"wrong type", `{"n":"x"}`, "", "'/n'"},
		{"missing", `{}`, "", "missing property 'n'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, rules(t, schema), c.in, c.in, c.json, c.violation)
		})
	}
}

func expect(t *testing.T, r *Rules, in, text, doc, violation string) {
	t.Helper()
	a, err := r.Check(t.Context(), in)
	if violation != "" {
		if err == nil || !strings.Contains(err.Error(), violation) || strings.Contains(err.Error(), "svc:") {
			t.Fatalf("got %v, want a violation with %q", err, violation)
		}
		return
	}
	if err != nil || a.Text != text || string(a.JSON) != doc {
		t.Fatalf("got %q %s %v, want %q %s", a.Text, a.JSON, err, text, doc)
	}
}

func TestGuardrailsComeBeforeTheSchema(t *testing.T) {
	r := rules(t, `{"output_schema":{"type":"object"},"guardrails":{"output":[{"kind":"regex","pattern":"[0-9]{4}","action":"redact"}]}}`)
	a, err := r.Check(t.Context(), `{"card":"1234"}`)
	if err != nil || string(a.JSON) != `{"card":"[redacted]"}` {
		t.Fatalf("got %s, %v", a.JSON, err)
	}
}

func TestNoRules(t *testing.T) {
	r := rules(t, `{}`)
	if r != nil {
		t.Fatal("rules without anything to check")
	}
	if a, err := r.Check(t.Context(), "x"); err != nil || a.Text != "x" || a.JSON != nil {
		t.Fatal(a, err)
	}
}

func FuzzCheck(f *testing.F) {
	m, err := agent.Load(json.RawMessage(`{"output_schema":{"type":["object","array","string","number","null","boolean"]},"guardrails":{"output":[{"kind":"max_chars","value":200,"action":"redact"},{"kind":"regex","pattern":"b+","action":"redact"}]}}`))
	if err != nil {
		f.Fatal(err)
	}
	r, err := Compile(m)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"{}", "```json\n{}\n```", "``````", "```\n```\n```{}```", "bbb", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := r.Check(t.Context(), s)
		if err == nil && !json.Valid(a.JSON) {
			t.Fatalf("%q gave %q", s, a.JSON)
		}
		if err == nil && strings.Contains(a.Text, "b") {
			t.Fatalf("%q left %q", s, a.Text)
		}
	})
}

// TestTheWorkOnOneAnswerIsBounded: rules as they may be in the database, saved
// before there were bounds, and rules that are fine until they meet a long text.
func TestTheWorkOnOneAnswerIsBounded(t *testing.T) {
	doubling := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
		}
		fmt.Fprintf(&b, `"d%d":{}}}`, n)
		return b.String()
	}
	regex := func(pattern, action string) string {
		return fmt.Sprintf(`{"guardrails":{"output":[{"kind":"max_chars","value":9000000,"action":"block"},{"kind":"regex","pattern":%q,"action":%q}]}}`, pattern, action)
	}
	many := `{"guardrails":{"output":[` + strings.Repeat(`{"kind":"regex","pattern":"^(x|y|a){1,500}b","action":"block"},`, 99) + `{"kind":"max_chars","value":9,"action":"block"}]}}`
	grow := `{"guardrails":{"output":[` + strings.TrimSuffix(strings.Repeat(`{"kind":"regex","pattern":".","action":"redact"},`, 50), ",") + `]}}`
	long := strings.Repeat("a", 1<<20)
	for name, c := range map[string]struct{ manifest, text, want string }{
		"23 levels":                        {`{"output_schema":` + doubling(23) + `}`, `{"a":1}`, "output_schema cannot be used"},
		"40 levels":                        {`{"output_schema":` + doubling(40) + `}`, `{"a":1}`, "output_schema cannot be used"},
		"twice down the answer":            {`{"output_schema":{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}}`, strings.Repeat(`{"a":`, 60) + `1` + strings.Repeat(`}`, 60), "too much work"},
		"a number in the schema":           {`{"output_schema":{"minimum":1e999999}}`, `1`, "output_schema cannot be used"},
		"a number in the answer":           {`{"output_schema":{"minimum":1}}`, `1e999999`, "too many digits"},
		"many of them":                     {`{"output_schema":{"items":{"minimum":1}}}`, `[` + strings.TrimSuffix(strings.Repeat("1e999999,", 10_000), ",") + `]`, "too many digits"},
		"small objects":                    {`{"output_schema":{}}`, `[` + strings.TrimSuffix(strings.Repeat(`{"":0},`, 500_000), ",") + `]`, "too many values"},
		"a deep answer":                    {`{"output_schema":{}}`, strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000), "nests deeper"},
		"1,500 repeats":                    {regex(strings.Repeat(".{0,1000}", 1500), "block"), "x", "guardrails.output[1] cannot be used"},
		"100 repeats":                      {regex(strings.Repeat(".{0,1000}", 100), "redact"), "x", "guardrails.output[1] cannot be used"},
		"a large pattern on a long text":   {regex("(x|y|a){1,500}b", "block"), long, "guardrails.output[1] takes too much work"},
		"many patterns on a longer text":   {many, "q" + strings.Repeat("a", 20_000), "takes too much work"},
		"redacting that makes a text grow": {grow, strings.Repeat("a", 1000), "guardrails.output["},
	} {
		t.Run(name, func(t *testing.T) {
			r := rules(t, c.manifest)
			var err error
			n := checktest.Grows(func() { _, err = r.Check(t.Context(), c.text) })
			var v *Violation
			if !errors.As(err, &v) || !strings.Contains(v.Reason, c.want) || len(v.Reason) > 600 {
				t.Errorf("got %.300v, want %s", err, c.want)
			}
			if n > checktest.Most {
				t.Errorf("it took %d MB", n>>20)
			}
		})
	}
}

// TestAReasonTakesLittle: hundreds of complaints, each of which tells a long part
// of the answer.
func TestAReasonTakesLittle(t *testing.T) {
	all := func(of string) string {
		return `{"output_schema":{"allOf":[` + strings.TrimSuffix(strings.Repeat(of+",", 450), ",") + `]}}`
	}
	key := strings.Repeat("k", 256<<10)
	for name, c := range map[string]struct{ manifest, text, want string }{
		"a surplus name":           {all(`{"additionalProperties":false}`), `{"` + key + `":1}`, "additional properties 'kkk"},
		"a surplus name of quotes": {all(`{"additionalProperties":false}`), `{"` + strings.Repeat(`\u0001`, 32<<10) + `":1}`, `additional properties '\x01`},
		"a name":                   {all(`{"propertyNames":{"maxLength":1}}`), `{"` + key + `":1}`, "invalid propertyName 'kkk"},
		"a text":                   {all(`{"pattern":"^x"}`), `"` + key[:16<<10] + `"`, "does not match pattern"},
		"a place":                  {all(`{"additionalProperties":{"type":"string"}}`), `{"` + key + `":1}`, "got number, want string"},
		"a deep place":             {all(`{"additionalProperties":{"additionalProperties":{"type":"string"}}}`), `{"` + key + `":{"` + key + `":1}}`, "got number, want string"},
		"unevaluated":              {all(`{"unevaluatedProperties":false}`), `{"` + key + `":1}`, "false schema"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rules(t, c.manifest)
			var err error
			n := checktest.Grows(func() { _, err = r.Check(t.Context(), c.text) })
			var v *Violation
			if !errors.As(err, &v) || !strings.Contains(v.Reason, c.want) || len(v.Reason) > 600 {
				t.Errorf("got %.600v, want %s", err, c.want)
			}
			if n > 20<<20 {
				t.Errorf("it took %d MB", n>>20)
			}
		})
	}
}

// TestACheckEndsWithItsContext: what is too late is no violation.
func TestACheckEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, m := range []string{`{"output_schema":{"type":"object"}}`, `{"guardrails":{"output":[{"kind":"regex","pattern":"a","action":"redact"}]}}`} {
		if _, err := rules(t, m).Check(ctx, `{}`); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", m, err)
		}
	}
}

// TestRedactingEndsInTime: each match looks at all that follows it, and there are
// as many as characters. Only a bound in time ends that.
func TestRedactingEndsInTime(t *testing.T) {
	r := rules(t, `{"guardrails":{"output":[{"kind":"regex","pattern":"a+b|a","action":"redact"}]}}`)
	var v *Violation
	if _, err := r.Check(t.Context(), strings.Repeat("a", 100_000)); !errors.As(err, &v) || !strings.Contains(v.Reason, "too much work") && !strings.Contains(v.Reason, "longer than") {
		t.Errorf("%.200v", err)
	}
}
