//go:build !race

package platform

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/problem"
)

func TestTheDocumentIsComplete(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	for name, op := range d.operations() {
		if op["summary"] == nil || op["description"] == nil {
			t.Errorf("%s: no summary or description", name)
		}
		contents := map[string]any{"request": at(op, "requestBody", "content")}
		responses, _ := op["responses"].(map[string]any)
		for status, r := range responses {
			contents[status] = at(r, "content")
		}
		for where, content := range contents {
			content, _ := content.(map[string]any)
			for mediaType, media := range content {
				media, _ := media.(map[string]any)
				shown := examples(media)
				if len(shown) == 0 && mediaType != "application/octet-stream" {
					t.Errorf("%s: %s: no example of %s", name, where, mediaType)
				}
				for example, v := range shown {
					if err := d.check(media["schema"], v); err != nil {
						t.Errorf("%s: %s: example %s: %v", name, where, example, err)
					}
				}
			}
		}
	}
	schemas, _ := at(d.tree, "components", "schemas").(map[string]any)
	for name, s := range schemas {
		if at(s, "description") == nil {
			t.Errorf("schema %s has no description", name)
		}
		properties, _ := at(s, "properties").(map[string]any)
		for field, p := range properties {
			if at(p, "description") == nil && at(p, "$ref") == nil && at(p, "anyOf") == nil && at(p, "enum") == nil {
				t.Errorf("schema %s: %s has no description", name, field)
			}
		}
		list, _ := at(s, "examples").([]any)
		for _, v := range list {
			if err := d.check(s, v); err != nil {
				t.Errorf("schema %s: example: %v", name, err)
			}
		}
	}
}

// The schema of a manifest in the document accepts what schemas/agent accepts, field by field
// (open-parts.md, Manifest).
func TestTheManifestSchemaMatchesItsValidation(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	list := func(n int, one string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]"
	}
	const slug, id = `"a-0"`, `"01a1fe1a-f0b8-76f3-9442-f6225bb3af01"`
	model := func(fields string) string { return `{"model": {"provider": "simulated", "name": "sim"` + fields + `}}` }
	with := func(name, value string) string {
		return `{"model": {"provider": "simulated", "name": "sim"}, "` + name + `": ` + value + `}`
	}
	rule := func(fields string) string { return with("hitl", `{"rules": [{"tool": "a"`+fields+`}]}`) }
	for _, c := range []struct {
		name  string
		good  []string
		wrong []string
	}{
		{"the document", []string{model("")}, []string{`{}`, `[]`, `"x"`, with("extra", "1"), with("Model", "{}")}},
		{"model", nil, []string{`{"model": 1}`, `{"model": {}}`, `{"model": {"provider": "simulated"}}`, `{"model": {"name": "x"}}`, model(`, "x": 1`)}},
		{"model.provider", []string{`{"model": {"provider": ` + slug + `, "name": "x"}}`},
			[]string{`{"model": {"provider": "", "name": "x"}}`, `{"model": {"provider": "A", "name": "x"}}`, `{"model": {"provider": ` + text(64) + `, "name": "x"}}`}},
		{"model.name", []string{`{"model": {"provider": "openai", "name": ` + text(200) + `}}`},
			[]string{`{"model": {"provider": "openai", "name": ` + text(201) + `}}`, `{"model": {"provider": "openai", "name": ""}}`}},
		{"model.temperature", []string{model(`, "temperature": 0`), model(`, "temperature": 2`)}, []string{model(`, "temperature": -0.1`), model(`, "temperature": 2.1`), model(`, "temperature": "1"`)}},
		{"model.max_output_tokens", []string{model(`, "max_output_tokens": 1`), model(`, "max_output_tokens": 10000000`)},
			[]string{model(`, "max_output_tokens": 0`), model(`, "max_output_tokens": 10000001`), model(`, "max_output_tokens": 1.5`)}},
		{"model.thinking", []string{model(`, "thinking": {"budget_tokens": 1}`)}, []string{model(`, "thinking": {}`), model(`, "thinking": {"budget_tokens": 0}`), model(`, "thinking": {"budget_tokens": 1, "x": 1}`)}},
		{"instructions", []string{with("instructions", text(64000)), with("instructions", `""`)}, []string{with("instructions", text(64001)), with("instructions", "1")}},
		{"tools", []string{with("tools", `{}`)}, []string{with("tools", `[]`), with("tools", `{"x": []}`)}},
		{"tools.builtin", []string{with("tools", `{"builtin": ["kb.search"]}`), with("tools", `{"builtin": []}`)}, []string{with("tools", `{"builtin": ["x"]}`), with("tools", `{"builtin": "kb.search"}`), with("tools", `{"builtin": `+list(101, `"kb.search"`)+`}`)}},
		{"tools.mcp", []string{with("tools", `{"mcp": [{"server": "a"}, {"server": "b", "allow": []}]}`), with("tools", `{"mcp": [{"server": "a", "allow": ["*", "x", "x.y", "x.*", "mcp:*"]}]}`)},
			[]string{with("tools", `{"mcp": [{}]}`), with("tools", `{"mcp": [{"server": "A"}]}`), with("tools", `{"mcp": [{"server": "a", "x": 1}]}`), with("tools", `{"mcp": `+list(101, `{"server": "a"}`)+`}`),
				with("tools", `{"mcp": [{"server": "a", "allow": ["x*"]}]}`), with("tools", `{"mcp": [{"server": "a", "allow": ["*.x"]}]}`), with("tools", `{"mcp": [{"server": "a", "allow": [""]}]}`),
				with("tools", `{"mcp": [{"server": "a", "allow": ["a b"]}]}`), with("tools", `{"mcp": [{"server": "a", "allow": ["**"]}]}`), with("tools", `{"mcp": [{"server": "a", "allow": [`+text(201)+`]}]}`),
				with("tools", `{"mcp": [{"server": "a", "allow": `+list(101, `"x"`)+`}]}`)}},
		{"tools.browser_skills", []string{with("tools", `{"browser_skills": [{"skill": "a"}, {"skill": "b", "allow": ["run", "dry_run"]}]}`)},
			[]string{with("tools", `{"browser_skills": [{"skill": "a", "allow": ["*"]}]}`), with("tools", `{"browser_skills": [{"allow": []}]}`), with("tools", `{"browser_skills": [{"skill": "a", "allow": ["run", "run", "run"]}]}`)}},
		{"knowledge_bases", []string{with("knowledge_bases", list(100, id))}, []string{with("knowledge_bases", list(101, id)), with("knowledge_bases", `["x"]`), with("knowledge_bases", `[1]`)}},
		{"hitl", []string{with("hitl", `{}`), with("hitl", `{"rules": `+list(100, `{"tool": "*"}`)+`}`)}, []string{with("hitl", `{"x": 1}`), with("hitl", `{"rules": [{}]}`), with("hitl", `{"rules": `+list(101, `{"tool": "*"}`)+`}`)}},
		{"hitl.rules.tool", []string{with("hitl", `{"rules": [{"tool": "builtin:*"}]}`)}, []string{with("hitl", `{"rules": [{"tool": "a*b"}]}`), with("hitl", `{"rules": [{"tool": ""}]}`)}},
		{"hitl.rules.source", []string{rule(`, "source": "mcp"`), rule(`, "source": "builtin"`), rule(`, "source": "a2a"`), rule(`, "source": "connector"`)}, []string{rule(`, "source": "browser_skill"`)}},
		{"hitl.rules.risk", []string{rule(`, "risk": "low"`), rule(`, "risk": "medium"`), rule(`, "risk": "high"`), rule(`, "risk": "critical"`)}, []string{rule(`, "risk": "none"`)}},
		{"hitl.rules.required_approvals", []string{rule(`, "required_approvals": 1`), rule(`, "required_approvals": 5`)}, []string{rule(`, "required_approvals": 0`), rule(`, "required_approvals": 6`)}},
		{"hitl.rules.approver_role", []string{rule(`, "approver_role": "owner"`), rule(`, "approver_role": "manager"`)}, []string{rule(`, "approver_role": "root"`)}},
		{"hitl.rules.sla_minutes", []string{rule(`, "sla_minutes": 0.5`), rule(`, "sla_minutes": 525600`)}, []string{rule(`, "sla_minutes": 0`), rule(`, "sla_minutes": 525600.1`)}},
		{"hitl.rules.escalate_to_role", []string{rule(`, "escalate_to_role": "member"`)}, []string{rule(`, "escalate_to_role": "x"`)}},
		{"hitl.rules.on_timeout", []string{rule(`, "on_timeout": "reject"`), rule(`, "on_timeout": "cancel_run"`)}, []string{rule(`, "on_timeout": "approve"`), rule(`, "x": 1`)}},
		{"output_schema", []string{with("output_schema", `{"type": "object"}`)}, []string{with("output_schema", `"x"`), with("output_schema", "[]"), with("output_schema", "true")}},
		{"guardrails", []string{with("guardrails", `{"output": [{"kind": "regex", "pattern": "a", "action": "redact"}, {"kind": "max_chars", "value": 1000000, "action": "block"}]}`)},
			[]string{with("guardrails", `{"output": [{"kind": "x", "action": "block"}]}`), with("guardrails", `{"output": [{"kind": "regex", "pattern": "a"}]}`), with("guardrails", `{"output": [{"kind": "regex", "pattern": "a", "action": "warn"}]}`),
				with("guardrails", `{"output": [{"kind": "regex", "pattern": `+text(1001)+`, "action": "block"}]}`), with("guardrails", `{"output": [{"kind": "max_chars", "value": 0, "action": "block"}]}`),
				with("guardrails", `{"output": [{"kind": "max_chars", "value": 1000001, "action": "block"}]}`), with("guardrails", `{"input": []}`)}},
		{"limits", []string{with("limits", `{}`), with("limits", `{"max_steps": 10000, "max_seconds": 604800, "max_tokens": 1000000000000, "max_cost_usd": 1000000}`), with("limits", `{"max_steps": 1, "max_seconds": 1, "max_tokens": 1, "max_cost_usd": 0.001}`)},
			[]string{with("limits", `{"max_steps": 0}`), with("limits", `{"max_steps": 10001}`), with("limits", `{"max_seconds": 0}`), with("limits", `{"max_seconds": 604801}`), with("limits", `{"max_tokens": 0}`),
				with("limits", `{"max_tokens": 1000000000001}`), with("limits", `{"max_cost_usd": 0}`), with("limits", `{"max_cost_usd": 1000001}`), with("limits", `{"x": 1}`)}},
		{"memory", []string{with("memory", `{}`), with("memory", `{"max_messages": 1}`), with("memory", `{"max_messages": 1000}`)}, []string{with("memory", `{"max_messages": 0}`), with("memory", `{"max_messages": 1001}`), with("memory", `{"x": 1}`)}},
		{"handoffs", []string{with("handoffs", list(100, slug))}, []string{with("handoffs", list(101, slug)), with("handoffs", `["A"]`), with("handoffs", `[""]`), with("handoffs", `"a"`)}},
	} {
		for i, doc := range append(append([]string{}, c.good...), c.wrong...) {
			valid := i < len(c.good)
			var v any
			if err := json.Unmarshal([]byte(doc), &v); err != nil {
				t.Fatalf("%s: %s: %v", c.name, doc, err)
			}
			_, err := agent.Parse(t.Context(), "manifest", json.RawMessage(doc))
			var refused *problem.Error
			if (err == nil) != valid || err != nil && !errors.As(err, &refused) {
				t.Errorf("%s: %.200s: schemas/agent returns %v", c.name, doc, err)
			}
			if err := d.check(map[string]any{"$ref": "#/components/schemas/Manifest"}, v); (err == nil) != valid {
				t.Errorf("%s: %.200s: the schema returns %v", c.name, doc, err)
			}
		}
	}
}
