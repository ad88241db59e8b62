package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"agentsvc/schemas/check"
	"agentsvc/schemas/check/checktest"
	"agentsvc/schemas/problem"
)

const model = `"model": {"provider": "simulated", "name": "sim"}`

// The manifest table of open-parts.md and the rules around it: what is refused,
// and under which path.
func TestManifestFieldsAreChecked(t *testing.T) {
	long := strings.Repeat("x", 64_001)
	for _, c := range []struct{ name, doc, want string }{
		{"model is required", `{}`, "manifest.model: required"},
		{"model.provider is required", `{"model": {"name": "m"}}`, "manifest.model.provider: required"},
		{"model.name is required", `{"model": {"provider": "openai"}}`, "manifest.model.name: required"},
		{"provider is a slug", `{"model": {"provider": "Open AI", "name": "m"}}`, "manifest.model.provider: must be a slug"},
		{"temperature is from 0 to 2", `{"model": {"provider": "openai", "name": "m", "temperature": 2.1}}`, "manifest.model.temperature: must be from 0 to 2"},
		{"max_output_tokens is positive", `{"model": {"provider": "openai", "name": "m", "max_output_tokens": 0}}`, "manifest.model.max_output_tokens: must be from 1"},
		{"thinking needs a budget", `{"model": {"provider": "openai", "name": "m", "thinking": {}}}`, "manifest.model.thinking.budget_tokens: required"},
		{"instructions up to 64,000 chars", `{` + model + `, "instructions": "` + long + `"}`, "manifest.instructions: must have at most 64000 characters"},
		{"instructions is text", `{` + model + `, "instructions": 1}`, "manifest.instructions: must be a string"},
		{"kb.search is the only builtin", `{` + model + `, "tools": {"builtin": ["kb.search", "web.fetch"]}}`, "manifest.tools.builtin[1]: must be one of kb.search"},
		{"a server is a slug", `{` + model + `, "tools": {"mcp": [{"server": "", "allow": ["*"]}]}}`, "manifest.tools.mcp[0].server: must be a slug"},
		{"a pattern has its * at the end", `{` + model + `, "tools": {"mcp": [{"server": "shop", "allow": ["*.read"]}]}}`, "manifest.tools.mcp[0].allow[0]: must be a tool pattern"},
		{"a skill allows run and dry_run", `{` + model + `, "tools": {"browser_skills": [{"skill": "s", "allow": ["*"]}]}}`, "manifest.tools.browser_skills[0].allow[0]: must be one of run, dry_run"},
		{"knowledge bases are ids", `{` + model + `, "knowledge_bases": ["docs"]}`, "manifest.knowledge_bases[0]: must be the id of a knowledge base"},
		{"a rule needs a tool", `{` + model + `, "hitl": {"rules": [{}]}}`, "manifest.hitl.rules[0].tool: required"},
		{"a rule's source", `{` + model + `, "hitl": {"rules": [{"tool": "*", "source": "webhook"}]}}`, "manifest.hitl.rules[0].source: must be one of mcp, builtin, a2a, connector"},
		{"a rule's risk", `{` + model + `, "hitl": {"rules": [{"tool": "*", "risk": "huge"}]}}`, "manifest.hitl.rules[0].risk: must be one of low, medium, high, critical"},
		{"required_approvals is 1 to 5", `{` + model + `, "hitl": {"rules": [{"tool": "*", "required_approvals": 6}]}}`, "manifest.hitl.rules[0].required_approvals: must be from 1 to 5"},
		{"approver_role", `{` + model + `, "hitl": {"rules": [{"tool": "*", "approver_role": "root"}]}}`, "manifest.hitl.rules[0].approver_role: must be one of"},
		{"sla_minutes > 0", `{` + model + `, "hitl": {"rules": [{"tool": "*", "sla_minutes": 0}]}}`, "manifest.hitl.rules[0].sla_minutes: must be above 0"},
		{"sla_minutes at most 525,600", `{` + model + `, "hitl": {"rules": [{"tool": "*", "sla_minutes": 525600.5}]}}`, "manifest.hitl.rules[0].sla_minutes: must be above 0 and at most 525600"},
		{"escalate_to_role", `{` + model + `, "hitl": {"rules": [{"tool": "*", "escalate_to_role": 1}]}}`, "manifest.hitl.rules[0].escalate_to_role: must be one of"},
		{"on_timeout", `{` + model + `, "hitl": {"rules": [{"tool": "*", "on_timeout": "ignore"}]}}`, "manifest.hitl.rules[0].on_timeout: must be one of reject, cancel_run"},
		{"output_schema is an object", `{` + model + `, "output_schema": true}`, "manifest.output_schema: must be an object"},
		{"output_schema compiles", `{` + model + `, "output_schema": {"type": "strin"}}`, "manifest.output_schema: must be a JSON Schema"},
		{"output_schema refers to no file", `{` + model + `, "output_schema": {"$ref": "file:///etc/passwd"}}`, "cannot refer to anything outside itself"},
		{"output_schema refers to no host", `{` + model + `, "output_schema": {"$ref": "https://example.com/s.json"}}`, "cannot refer to anything outside itself"},
		{"output_schema refers to no draft outside", `{` + model + `, "output_schema": {"$schema": "https://example.com/draft"}}`, "cannot refer to anything outside itself"},
		{"output_schema doubles its references", `{` + model + `, "output_schema": ` + doubling(23) + `}`, "manifest.output_schema.$defs"},
		{"output_schema doubles its references 40 times", `{` + model + `, "output_schema": ` + doubling(40) + `}`, "its references multiply"},
		{"output_schema refers to itself", `{` + model + `, "output_schema": {"anyOf": [{"$ref": "#"}]}}`, "it refers to itself for ever"},
		{"output_schema with a number that is a weapon", `{` + model + `, "output_schema": {"minimum": 1e999999}}`, "manifest.output_schema: cannot be used as a schema: it holds a number of too many digits"},
		{"output_schema with an expensive pattern", `{` + model + `, "output_schema": {"properties": {"a": {"pattern": "` + strings.Repeat(".{0,1000}", 400) + `"}}}}`, "manifest.output_schema.properties.a.pattern: cannot be used as a schema: it has a pattern that is too expensive"},
		{"output_schema with a pattern of 1,500 repeats", `{` + model + `, "output_schema": {"properties": {"a": {"pattern": "` + strings.Repeat(".{0,1000}", 1500) + `"}}}}`, "manifest.output_schema: must be a JSON Schema"},
		{"output_schema with many subschemas", `{` + model + `, "output_schema": {"allOf": [` + strings.TrimSuffix(strings.Repeat("{},", 20_000), ",") + `]}}`, "manifest.output_schema.allOf"},
		{"an expensive guardrail", `{` + model + `, "guardrails": {"output": [{"kind": "regex", "pattern": "` + strings.Repeat(".{0,1000}", 100) + `", "action": "block"}]}}`, "manifest.guardrails.output[0].pattern: is too expensive"},
		{"a nested one", `{` + model + `, "guardrails": {"output": [{"kind": "regex", "pattern": "((a{0,100}){0,100}){0,10}", "action": "block"}]}}`, "manifest.guardrails.output[0].pattern: must be a regular expression"},
		{"many guardrails that are too expensive together", `{` + model + `, "guardrails": {"output": [` + strings.TrimSuffix(expensive(50), ",") + `]}}`, "manifest.guardrails.output[24].pattern: is too expensive"},
		{"guardrails and output_schema that are too expensive together", `{` + model + `, "guardrails": {"output": [` + strings.TrimSuffix(expensive(15), ",") + `]}, "output_schema": {"allOf": [` + strings.TrimSuffix(patterns(15), ",") + `]}}`, "too expensive"},
		{"many small values", `{` + model + `, "limits": [` + strings.TrimSuffix(strings.Repeat(`{"":0},`, 70_000), ",") + `]}`, "manifest: holds too many values"},
		{"a guardrail needs kind and action", `{` + model + `, "guardrails": {"output": [{}]}}`, "manifest.guardrails.output[0].kind: required; manifest.guardrails.output[0].action: required"},
		{"a regex guardrail compiles", `{` + model + `, "guardrails": {"output": [{"kind": "regex", "pattern": "(", "action": "block"}]}}`, "manifest.guardrails.output[0].pattern: must be a regular expression"},
		{"a regex guardrail is RE2", `{` + model + `, "guardrails": {"output": [{"kind": "regex", "pattern": "(?=x)", "action": "block"}]}}`, "manifest.guardrails.output[0].pattern: must be a regular expression"},
		{"a regex guardrail needs a pattern", `{` + model + `, "guardrails": {"output": [{"kind": "regex", "action": "block"}]}}`, "manifest.guardrails.output[0].pattern: required"},
		{"max_chars needs a value", `{` + model + `, "guardrails": {"output": [{"kind": "max_chars", "action": "redact"}]}}`, "manifest.guardrails.output[0].value: required"},
		{"max_chars takes no pattern", `{` + model + `, "guardrails": {"output": [{"kind": "max_chars", "value": 5, "pattern": "x", "action": "redact"}]}}`, "manifest.guardrails.output[0].pattern: does not belong to max_chars"},
		{"a guardrail's action", `{` + model + `, "guardrails": {"output": [{"kind": "max_chars", "value": 5, "action": "warn"}]}}`, "manifest.guardrails.output[0].action: must be one of block, redact"},
		{"max_steps is positive", `{` + model + `, "limits": {"max_steps": 0}}`, "manifest.limits.max_steps: must be from 1"},
		{"max_seconds is an integer", `{` + model + `, "limits": {"max_seconds": 1.5}}`, "manifest.limits.max_seconds: must be an integer"},
		{"max_tokens is positive", `{` + model + `, "limits": {"max_tokens": -1}}`, "manifest.limits.max_tokens: must be from 1"},
		{"max_cost_usd is above 0", `{` + model + `, "limits": {"max_cost_usd": 0}}`, "manifest.limits.max_cost_usd: must be above 0"},
		{"a number beyond every number", `{` + model + `, "limits": {"max_cost_usd": 1e999, "max_steps": 99999999999999999999}}`, "manifest.limits.max_steps: must be from 1"},
		{"max_messages is positive", `{` + model + `, "memory": {"max_messages": 0}}`, "manifest.memory.max_messages: must be from 1"},
		{"handoffs are slugs", `{` + model + `, "handoffs": ["Billing"]}`, "manifest.handoffs[0]: must be a slug"},
		{"an unknown field", `{` + model + `, "tool": {}}`, "manifest.tool: unknown field"},
		{"an unknown field deep inside", `{` + model + `, "limits": {"steps": 3}}`, "manifest.limits.steps: unknown field"},
		{"field names match in case too", `{"Model": {"provider": "simulated", "name": "sim"}}`, "manifest.Model: unknown field; manifest.model: required"},
		{"a field named twice", `{` + model + `, ` + model + `}`, `manifest: names "model" twice in one object`},
		{"no object", `[]`, "manifest: must be an object"},
		{"null", `null`, "manifest: required"},
		{"a limit that is null is not none", `{` + model + `, "limits": {"max_cost_usd": null}}`, "manifest.limits.max_cost_usd: must not be null"},
		{"allow that is null is not everything", `{` + model + `, "tools": {"mcp": [{"server": "s", "allow": null}], "browser_skills": [{"skill": null, "allow": null}]}}`,
			"manifest.tools.mcp[0].allow: must not be null; manifest.tools.browser_skills[0].skill: must not be null; manifest.tools.browser_skills[0].allow: must not be null"},
		{"a section that is null", `{"model": null, "instructions": null, "tools": null, "knowledge_bases": null, "hitl": null, "output_schema": null, "guardrails": null, "limits": null, "memory": null, "handoffs": null}`,
			"manifest.model: must not be null; manifest.instructions: must not be null; manifest.tools: must not be null; manifest.knowledge_bases: must not be null; manifest.hitl: must not be null; " +
				"manifest.output_schema: must not be null; manifest.guardrails: must not be null; manifest.limits: must not be null; manifest.memory: must not be null; manifest.handoffs: must not be null"},
		{"a model without a name", `{"model": {"provider": "openai", "name": null, "temperature": null, "thinking": null}}`, "manifest.model.name: must not be null; manifest.model.temperature: must not be null"},
		{"null in lists", `{` + model + `, "tools": {"mcp": [null]}, "hitl": {"rules": [{"tool": "*", "on_timeout": null}]}}`, "manifest.tools.mcp[0]: must be an object; manifest.hitl.rules[0].on_timeout: must not be null"},
		{"not JSON", `{"model": `, "manifest: is not JSON"},
		{"two documents", `{` + model + `} {}`, "manifest: has data after the end of the JSON document"},
		{"not UTF-8", "{\"instructions\": \"\xff\"}", "manifest: is not UTF-8"},
		{"too deep", strings.Repeat("[", 100) + strings.Repeat("]", 100), "manifest: nests deeper"},
		{"too large", `{` + model + `, "instructions": "` + strings.Repeat("x", MaxBytes) + `"}`, "manifest: must have at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(t.Context(), "manifest", json.RawMessage(c.doc))
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != problem.CodeValidation || !strings.Contains(p.Detail, c.want) {
				t.Fatalf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestSeveralComplaintsAreOneProblem(t *testing.T) {
	_, err := Parse(t.Context(), "manifest", json.RawMessage(`{"limits": {"max_steps": 0, "max_seconds": 0}}`))
	want := "VALIDATION: manifest.model: required; manifest.limits.max_steps: must be from 1 to 10000; manifest.limits.max_seconds: must be from 1 to 604800"
	if err == nil || err.Error() != want {
		t.Fatalf("got %v", err)
	}
}

func TestTheSmallestManifestGetsTheDefaults(t *testing.T) {
	m, err := Parse(t.Context(), "manifest", json.RawMessage(`{`+model+`, "tools": {"mcp": [{"server": "shop"}, {"server": "none", "allow": []}], "browser_skills": [{"skill": "s"}]},
		"hitl": {"rules": [{"tool": "shop.*"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Manifest{
		Model:  Model{Provider: "simulated", Name: "sim"},
		Limits: Limits{MaxSteps: 32, MaxSeconds: 900},
		Memory: Memory{MaxMessages: 40},
		Tools: Tools{MCP: []MCPTools{{"shop", []string{"*"}}, {"none", []string{}}},
			BrowserSkills: []BrowserSkillUse{{"s", []string{"run", "dry_run"}}}},
		HITL: HITL{Rules: []Rule{{Tool: "shop.*", OnTimeout: "reject"}}},
	}
	if !reflect.DeepEqual(m, want) {
		t.Fatalf("got  %+v\nwant %+v", m, want)
	}
}

// Null is for what may be null, and for what is not the manifest's own: a schema. Manifests that were
// stored with null before it was refused are read, and a skill can be added to them.
func TestNullWhereItMayBe(t *testing.T) {
	if _, err := Parse(t.Context(), "manifest", json.RawMessage(`{"model": {"provider": "openai", "name": "m", "thinking": null}, "output_schema": {"enum": [1, null], "default": null}}`)); err != nil {
		t.Error(err)
	}
	stored := json.RawMessage(`{` + model + `, "limits": null, "output_schema": null, "tools": {"mcp": [{"server": "shop", "allow": null}]}}`)
	m, err := Load(stored)
	if err != nil || m.OutputSchema != nil || m.Limits.MaxSteps != DefaultMaxSteps || m.Tools.MCP[0].Allow[0] != "*" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, changed, err := WithSkill(t.Context(), stored, "book", []string{"run"}); err != nil || !changed {
		t.Errorf("%v, %v", changed, err)
	}
}

func TestAFullManifestIsAccepted(t *testing.T) {
	doc := `{
		"model": {"provider": "anthropic", "name": "large", "temperature": 0.5, "max_output_tokens": 1000, "thinking": {"budget_tokens": 2048}},
		"instructions": "Be brief.",
		"tools": {"builtin": ["kb.search"], "mcp": [{"server": "shop", "allow": ["orders.*", "shop.refund", "*"]}], "browser_skills": [{"skill": "portal", "allow": ["dry_run"]}]},
		"knowledge_bases": ["01890a5d-ac96-774b-bcce-b302099a8057"],
		"hitl": {"rules": [{"tool": "builtin:handoff", "source": "builtin", "risk": "high", "required_approvals": 2, "approver_role": "manager", "sla_minutes": 0.5, "escalate_to_role": "owner", "on_timeout": "cancel_run"}]},
		"output_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}},
		"guardrails": {"output": [{"kind": "regex", "pattern": "\\d{16}", "action": "redact"}, {"kind": "max_chars", "value": 4000, "action": "block"}]},
		"limits": {"max_steps": 5, "max_seconds": 60, "max_tokens": 10000, "max_cost_usd": 0.25},
		"memory": {"max_messages": 10},
		"handoffs": ["billing"]
	}`
	m, err := Parse(t.Context(), "manifest", json.RawMessage(doc))
	if err != nil {
		t.Fatal(err)
	}
	if !m.WithholdsDeltas() || !m.HasBuiltin("kb.search") || m.Limits.MaxCostUSD != 0.25 || m.Model.Thinking.BudgetTokens != 2048 ||
		m.HITL.Rules[0].SLAMinutes != 0.5 || len(m.KnowledgeBases) != 1 {
		t.Fatalf("%+v", m)
	}
	if s, err := check.Compile(t.Context(), m.OutputSchema, check.Options{}); err != nil || s.Check(t.Context(), map[string]any{"n": "one"}) == nil {
		t.Fatalf("the compiled schema accepts everything, %v", err)
	}
}

// open-parts.md, Tools: at most one *, at the end, alone or after . or :
func TestToolPatterns(t *testing.T) {
	for pattern, want := range map[string]bool{
		"*": true, "orders.refund": true, "shop.orders.*": true, "builtin:*": true, "a2a:peer.*": true, "browser_skill:portal.run": true, "x": true,
		"": false, "**": false, "*.x": false, "orders*": false, "or*ders": false, "orders.*.*": false, "a b": false, "a\n": false, "*:": false,
		strings.Repeat("x", 200): true, strings.Repeat("x", 201): false,
	} {
		if got := ValidPattern(pattern); got != want {
			t.Errorf("%q: %v", pattern, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{` + model + `, "limits": {"max_steps": 3}}`))
	f.Add([]byte(`{` + model + `, "output_schema": {"type": "object"}, "hitl": {"rules": [{"tool": "*"}]}}`))
	f.Add([]byte(`{"model": null, "tools": {"builtin": [null], "mcp": [null, {"allow": [null]}], "browser_skills": [3]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		m, err := Parse(t.Context(), "manifest", doc)
		var p *problem.Error
		switch {
		case err == nil && (m.Limits.MaxSteps < 1 || m.Limits.MaxSeconds < 1 || m.Memory.MaxMessages < 1 || m.Model.Name == ""):
			t.Fatalf("%s\nreads as %+v", doc, m)
		case err != nil && !errors.As(err, &p):
			t.Fatalf("%s\nis refused as a fault of ours: %v", doc, err)
		}
	})
}

func ExampleParse() {
	_, err := Parse(context.Background(), "manifest", json.RawMessage(`{"model": {"provider": "simulated", "name": "sim"}, "limits": {"max_steps": "many"}}`))
	fmt.Println(err)
	// Output: VALIDATION: manifest.limits.max_steps: must be an integer
}

// doubling is a schema of n levels, each of which refers to the next one twice.
func doubling(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{}}}`, n)
	return b.String()
}

// expensive are n guardrails of about a thousand instructions, all different.
func expensive(n int) (out string) {
	for i := range n {
		out += fmt.Sprintf(`{"kind": "regex", "pattern": "[a-c]{%d}", "action": "block"},`, 400+i)
	}
	return out
}

func patterns(n int) (out string) {
	for i := range n {
		out += fmt.Sprintf(`{"pattern": "[x-z]{%d}"},`, 400+i)
	}
	return out
}

// TestAManifestTakesLittle: what one post may cost, at the worst.
func TestAManifestTakesLittle(t *testing.T) {
	for name, doc := range map[string]string{
		"40 levels":        `{` + model + `, "output_schema": ` + doubling(40) + `}`,
		"many patterns":    `{` + model + `, "guardrails": {"output": [` + strings.TrimSuffix(expensive(99), ",") + `]}}`,
		"large patterns":   `{` + model + `, "guardrails": {"output": [` + strings.TrimSuffix(strings.Repeat(`{"kind": "regex", "pattern": "`+strings.Repeat(".{0,1000}", 110)+`", "action": "block"},`, 100), ",") + `]}}`,
		"large classes":    `{` + model + `, "guardrails": {"output": [` + strings.TrimSuffix(strings.Repeat(`{"kind": "regex", "pattern": "`+strings.Repeat(`\\pL`, 330)+`", "action": "block"},`, 100), ",") + `]}}`,
		"many subschemas":  `{` + model + `, "output_schema": {"allOf": [` + strings.TrimSuffix(strings.Repeat(`{"type":"string"},`, 2_900), ",") + `]}}`,
		"many values":      `{` + model + `, "limits": [` + strings.TrimSuffix(strings.Repeat(`0,`, 250_000), ",") + `]}`,
		"many small lists": `{` + model + `, "limits": [` + strings.TrimSuffix(strings.Repeat(`[],`, 170_000), ",") + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			n := checktest.Grows(func() { _, err = Parse(t.Context(), "manifest", json.RawMessage(doc)) })
			if n > checktest.Most {
				t.Errorf("%d MB: %.200v", n>>20, err)
			}
		})
	}
}
