package platform

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"agentsvc/schemas/api"
)

// open-parts.md, Questions settled: a cursor that is not ours is VALIDATION. A client can put any
// position into one, and every list either refuses it or begins there: it is never an error of
// storage.
func TestCursorsWithAnyPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(w.skillGrant(w.a))
	fill := w.a.fill()
	kinds := map[string][]string{ // by path; with its query, where the kind depends on it
		"/v1/agents":                          {"agents"},
		"/v1/agents/{id}/versions":            {"agent-versions"},
		"/v1/agents/{id}/tools":               {"agent-tools"},
		"/v1/api-keys":                        {"api-keys"},
		"/v1/approval-policies":               {"approval-policies"},
		"/v1/approvals":                       {"approvals", "approvals by risk?sort=risk", "approvals by expires?sort=expires"},
		"/v1/audit":                           {"audit"},
		"/v1/browser-skills":                  {"browser-skills"},
		"/v1/browser-skills/runs":             {"skill-runs"},
		"/v1/browser-skills/{id}/grants":      {"skill-grants"},
		"/v1/browser-skills/{id}/runs":        {"skill-runs"},
		"/v1/connections":                     {"connections"},
		"/v1/embed-keys":                      {"embed-keys"},
		"/v1/end-users":                       {"end-users"},
		"/v1/knowledge-bases":                 {"knowledge-bases"},
		"/v1/knowledge-bases/{id}/documents":  {"documents"},
		"/v1/knowledge-bases/{id}/connectors": {"connectors"},
		"/v1/mcp-servers":                     {"mcp-servers"},
		"/v1/model-providers":                 {"model-providers"},
		"/v1/org-nodes":                       {"org-nodes"},
		"/v1/runs":                            {"runs"},
		"/v1/runs/{id}":                       {"steps"},
		"/v1/runs/{id}/artifacts":             {"artifacts"},
		"/v1/threads":                         {"threads"},
		"/v1/threads/{id}/messages":           {"messages"},
		"/v1/tool-grants":                     {"tool-grants"},
		"/v1/tools":                           {"tools"},
		"/v1/triggers":                        {"triggers"},
		"/v1/usage/records":                   {"usage-records"},
		"/v1/users":                           {"users"},
		"/v1/webhooks":                        {"webhooks"},
		"/v1/webhooks/{id}/deliveries":        {"webhook-deliveries"},
		"/v1/workflows":                       {"workflows"},
		"/v1/workflows/{id}":                  {"workflow-versions"},
	}
	own := map[string]string{"runs": w.a.run.String(), "agents": "{agent}", "browser-skills": "{skill}", "knowledge-bases": "{base}", "threads": "{thread}",
		"webhooks": "{webhook}", "workflows": "{workflow}"}
	const of, none = `"0198c0de-0000-7000-8000-000000000000"`, `"00000000-0000-0000-0000-000000000000"`
	positions := []string{"7", "-1", "1.5", "2147483648", "-99999999999", "9223372036854775808", "1e400", `""`, `"\u0000"`, `"a\u0000b"`, of, none, "{}",
		`{"id":"\u0000"}`, `{"r":99999999999,"id":` + of + `}`, `{"r":-1,"id":` + none + `}`, `{"r":1,"e":"9999999-01-01T00:00:00Z","id":` + of + `}`,
		`{"r":1,"e":"9999-12-31T23:59:59.999999999-23:59","id":` + of + `}`, `{"r":1,"e":"0000-01-01T00:00:00+23:59","id":` + of + `}`}
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(w.call(w.a, "GET", "/v1/openapi.json", "").body), &doc); err != nil {
		t.Fatal(err)
	}
	lists := 0
	for path, methods := range doc.Paths {
		paged := false
		for _, p := range methods["get"].Parameters {
			paged = paged || p.Name == "cursor"
		}
		if !paged {
			continue
		}
		lists++
		if kinds[path] == nil {
			t.Errorf("the list %s is not tested: add the kind of its cursors", path)
		}
		at := strings.ReplaceAll(path, "{id}", fill.Replace(own[strings.Split(path, "/")[2]]))
		for _, kind := range kinds[path] {
			kind, query, _ := strings.Cut(kind, "?")
			begun := 0
			for _, position := range positions {
				a := w.call(w.a, "GET", at+"?"+query+"&cursor="+api.Cursor(kind, json.RawMessage(position)), "")
				switch {
				case a.status == http.StatusOK:
					begun++
				case a.status != http.StatusBadRequest || a.code() != "VALIDATION" || !strings.HasPrefix(a.detail(), "cursor: "):
					t.Errorf("%s?%s from %s: %d %s", path, query, position, a.status, a.body)
				case !strings.Contains(a.detail(), "is not a cursor of this list"):
					begun++
				}
			}
			if begun == 0 || begun == len(positions) {
				t.Errorf("%s?%s: %d of %d positions of the kind %q are accepted", path, query, begun, len(positions), kind)
			}
		}
	}
	if lists < 30 {
		t.Errorf("only %d lists were found", lists)
	}
}
