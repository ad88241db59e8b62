package skill

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/tool"
)

// The OpenAPI document's schemas, made of the tags, accept what Parse returns and say what it
// refuses.
func TestTagsMakeADocument(t *testing.T) {
	t.Parallel()
	registry := huma.NewMapRegistry("#/$defs/", huma.DefaultSchemaNamer)
	registry.Schema(reflect.TypeFor[Definition](), true, "")
	registry.Schema(reflect.TypeFor[Policy](), true, "")
	defs, err := json.Marshal(registry.Map())
	if err != nil {
		t.Fatal(err)
	}
	judge := func(of string, doc []byte) error {
		return tool.Check(t.Context(), json.RawMessage(`{"$ref": "#/$defs/`+of+`", "$defs": `+string(defs)+`}`), doc)
	}
	s, err := Parse(input(t))
	if err != nil {
		t.Fatal(err)
	}
	doc, _ := json.Marshal(s.Definition)
	if err := judge("Definition", doc); err != nil {
		t.Errorf("a definition that is returned: %v", err)
	}
	policy, _ := json.Marshal(s.Policy)
	if err := judge("Policy", policy); err != nil {
		t.Errorf("a policy that is returned: %v", err)
	}
	if err := judge("Policy", []byte(`{}`)); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, c := range []at{
		{"steps", "[]"}, {"steps", list(61, `{"id": "s%d", "kind": "wait"}`)}, {"steps[0].kind", `"drag"`}, {"steps[0].phase", `"pre"`}, {"steps[0].id", `"a b"`}, {"steps[0].extra", "1"},
		{"target_hosts", "[]"}, {"params", list(21, `{"name": "p%d", "type": "string"}`)}, {"params[0].type", `"time"`}, {"params[2].max_length", "2001"}, {"assertions", list(11, `{"kind": "text_present"}`)},
		{"result_fields", list(21, `{"name": "f%d", "selector": "a"}`)}, {"result_fields[0].attr", `"src"`}, {"compensation", list(11, `{"id": "s%d", "kind": "wait"}`)}, {"auth.kind", `"oauth"`}, {"auth.secret_refs", `["A"]`},
		{"start_url", "-"}, {"steps", "-"}, {"steps[9].target.candidates", list(11, `"a"`)}, {"steps[9].target.selector", long(1001)},
	} {
		changed := change(t, string(doc), c)
		if judge("Definition", changed) == nil {
			t.Errorf("%s %.40s is valid in the document", c.path, c.value)
		}
		if _, err := Parse(Input{Definition: changed, Auth: json.RawMessage(fullAuth), OwnerAttested: true}); err == nil || !strings.HasPrefix(err.Error(), "VALIDATION") {
			t.Errorf("%s %.40s: %v", c.path, c.value, err)
		}
	}
	for _, p := range []string{`{"sla_minutes": 4}`, `{"sla_minutes": 10081}`, `{"required_approvals": 4}`, `{"approval": "never"}`, `{"risk_level": "none"}`, `{"approver_role": "guest"}`} {
		if judge("Policy", []byte(p)) == nil {
			t.Errorf("%s is valid in the document", p)
		}
	}
}
