package platform

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// prices are those of n models.
func prices(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(`"m%d": {"input_per_mtok": 1, "output_per_mtok": 1}`, i)
	}
	return strings.Join(out, ",")
}

// A change of an object takes no more than its create: each field that both have has the same bounds.
func TestAChangeHasTheBoundsOfItsCreate(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	type schema = map[string]any
	var doc struct {
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	// bounds describes what a schema allows besides null.
	var bounds func(s schema) string
	bounds = func(s schema) string {
		if any, ok := s["anyOf"].([]any); ok {
			for _, one := range any {
				if one := one.(schema); one["type"] != "null" {
					return bounds(one)
				}
			}
		}
		var out []string
		for _, rule := range []string{"$ref", "maxLength", "minLength", "pattern", "maxItems", "minItems", "maxProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} {
			if v, ok := s[rule]; ok {
				out = append(out, fmt.Sprint(rule, " ", v))
			}
		}
		if items, ok := s["items"].(schema); ok {
			out = append(out, "items: "+bounds(items))
		}
		return strings.Join(out, ", ")
	}
	field := func(of, name string) schema {
		properties, _ := doc.Components.Schemas[of]["properties"].(schema)
		s, _ := properties[name].(schema)
		return s
	}
	compared := 0
	for change, s := range doc.Components.Schemas {
		kind, ok := strings.CutSuffix(change, "Patch")
		if !ok {
			continue
		}
		for name := range s["properties"].(schema) {
			create := field(kind+"Create", name)
			if create == nil {
				continue
			}
			compared++
			want, got := bounds(create), bounds(field(change, name))
			got = strings.NewReplacer("SchedulePatch", "Schedule", "SkillPolicyPatch", "Policy").Replace(got)
			if got != want {
				t.Errorf("%s.%s: %q, want %q", change, name, got, want)
			}
		}
	}
	if compared < 50 {
		t.Errorf("%d fields were compared: the check is void", compared)
	}
}
