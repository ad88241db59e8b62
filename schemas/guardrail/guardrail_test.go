package guardrail

import (
	"encoding/json"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
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
			check(t, rules(t, `{"guardrails":{"output":[`+c.guards+`]}}`), c.in, c.want, "", c.violation)
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
			check(t, rules(t, schema), c.in, c.in, c.json, c.violation)
		})
	}
}

func check(t *testing.T, r *Rules, in, text, doc, violation string) {
	t.Helper()
	a, err := r.Check(in)
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
	a, err := r.Check(`{"card":"1234"}`)
	if err != nil || string(a.JSON) != `{"card":"[redacted]"}` {
		t.Fatalf("got %s, %v", a.JSON, err)
	}
}

func TestNoRules(t *testing.T) {
	r := rules(t, `{}`)
	if r != nil {
		t.Fatal("rules without anything to check")
	}
	if a, err := r.Check("x"); err != nil || a.Text != "x" || a.JSON != nil {
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
		a, err := r.Check(s)
		if err == nil && !json.Valid(a.JSON) {
			t.Fatalf("%q gave %q", s, a.JSON)
		}
		if err == nil && strings.Contains(a.Text, "b") {
			t.Fatalf("%q left %q", s, a.Text)
		}
	})
}
