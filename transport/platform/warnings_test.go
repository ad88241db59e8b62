package platform

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/tool"
)

func many(n int, of string) string { return strings.TrimSuffix(strings.Repeat(of+",", n), ",") }

// open-parts.md, Publishing: creating and publishing a version warns of names in its manifest that
// do not exist or that no grant allows.
func TestWarningsOfVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	described := newDocument(t)
	for name, c := range map[string]struct {
		manifest string
		want     []string
	}{
		"nothing to say": {`{"model": {"provider": "simulated", "name": "sim"}}`, []string{}},
		"what is there":  {`{"model": {"provider": "mine", "name": "m"}, "tools": {"mcp": [{"server": "orders"}]}, "handoffs": ["agent"]}`, []string{}},
		"what is not": {`{"model": {"provider": "nobodys", "name": "m"}, "tools": {"builtin": ["kb.search"], "mcp": [{"server": "none"}], "browser_skills": [{"skill": "shop"}]},
			"knowledge_bases": ["01a1fe1b-401d-7000-8000-000000000001"], "handoffs": ["agent", "gone"]}`, []string{
			`model.provider: neither the tenant nor the deployment has a model provider "nobodys", the model "m" cannot be asked`,
			`tools.mcp[0].server: there is no tool server "none"`,
			`tools.builtin[0]: no grant allows "builtin:kb.search"`,
			`tools.browser_skills[0].skill: there is no browser skill "shop"`,
			`knowledge_bases[0]: there is no knowledge base 01a1fe1b-401d-7000-8000-000000000001`,
			`handoffs[1]: there is no agent "gone"`}},
		"more than is compared": {`{"model": {"provider": "mine", "name": "m"}, "tools": {"mcp": [` + many(100, `{"server": "orders", "allow": [`+many(100, `"*"`)+`]}`) + `]}}`, []string{tool.Unchecked}},
		"a provider that the deployment has not": {`{"model": {"provider": "openai", "name": "m"}}`, []string{
			`model.provider: neither the tenant nor the deployment has a model provider "openai", the model "m" cannot be asked`}},
	} {
		made := w.call(w.a, "POST", fill.Replace("/v1/agents/{draft}/versions"), `{"manifest": `+c.manifest+`}`, "Idempotency-Key", name)
		number, _ := made.get("version.version").(json.Number)
		published := w.call(w.a, "POST", fill.Replace("/v1/agents/{draft}/versions/")+number.String()+"/publish", "")
		again := w.call(w.a, "POST", fill.Replace("/v1/agents/{draft}/versions"), `{"manifest": `+c.manifest+`}`, "Idempotency-Key", name)
		if made.status != 201 || published.status != 200 || again.body != made.body {
			t.Fatalf("%s: %d %s, %d %s", name, made.status, made.body, published.status, published.body)
		}
		for path, a := range map[string]answer{"/v1/agents/{id}/versions": made, "/v1/agents/{id}/versions/{version}/publish": published} {
			var got struct{ Warnings []string }
			if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Warnings == nil || !slices.Equal(got.Warnings, c.want) {
				t.Errorf("%s: %s: %q, want %q", name, path, got.Warnings, c.want)
			}
			if err := described.conforms("POST", path, a); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	// Once the missing parts exist, publishing again returns no warnings.
	published := w.call(w.a, "POST", fill.Replace("/v1/agents/{draft}/versions/1/publish"), "")
	if published.status != 200 || published.get("warnings") == nil {
		t.Errorf("%d %s", published.status, published.body)
	}
}
