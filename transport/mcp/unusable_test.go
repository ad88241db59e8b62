package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/check/checktest"
	"agentsvc/schemas/tool"
)

// TestASchemaThatCannotBeUsed: the tool is listed with the reason and without its
// schema, and the server's other tools are as they were.
func TestASchemaThatCannotBeUsed(t *testing.T) {
	var doubling strings.Builder
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	bad := map[string]string{
		"doubling": `{"$ref":"#/$defs/d0","$defs":{` + doubling.String() + `"d40":{}}}`,
		"number":   `{"properties":{"a":{"minimum":1e999999}}}`,
		"pattern":  `{"properties":{"a":{"pattern":"` + strings.Repeat(".{0,1000}", 400) + `"}}}`,
		"deep":     strings.Repeat(`{"not":`, 500) + `{}` + strings.Repeat(`}`, 500),
		"outside":  `{"$ref":"http://127.0.0.1:1/secret"}`,
		"invalid":  `{"type":"nothing"}`,
		"large":    `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{},`, 40_000), ",") + `]}`,
		"long":     `{"description":"` + strings.Repeat("x", 200<<10) + `"}`,
	}
	f := newFake(t, func(f *fake) {
		f.list = func(w http.ResponseWriter, _ *http.Request, m message) {
			tools := echoTool
			for name, schema := range bad {
				tools += fmt.Sprintf(`,{"name":%q,"inputSchema":%s}`, name, schema)
			}
			result(w, m, `{"tools":[`+tools+`]}`)
		}
	})
	g := gateway(t, nil)
	var specs []tool.Spec
	var err error
	n := checktest.Grows(func() { specs, err = g.Fresh(t.Context(), target(f.URL)) })
	if err != nil || len(specs) != 1+len(bad) {
		t.Fatalf("%d tools, %v", len(specs), err)
	}
	if n > checktest.Most {
		t.Errorf("the list took %d MB", n>>20)
	}
	for _, s := range specs {
		switch {
		case bad[s.Name] == "":
			if s.Unusable != "" || len(s.Schema) == 0 {
				t.Errorf("%+v", s)
			}
		case s.Unusable == "" || s.Schema != nil || strings.Contains(s.Unusable, "127.0.0.1"):
			t.Errorf("%s: %q, %.100s", s.Name, s.Unusable, s.Schema)
		default:
			if r := tool.Resolve(&tool.Access{}, &agent.Manifest{}, tool.Options{}, s); r.Verdict != tool.Refused || r.Why != s.Unusable {
				t.Errorf("%s: %+v", s.Name, r)
			}
		}
	}
}
