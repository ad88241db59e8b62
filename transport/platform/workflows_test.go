package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
)

const oneDelay = `{"nodes": [{"id": "rest", "type": "delay", "seconds": 1}]}`

// giveWorkflow creates a workflow with a published version.
func (w *world) giveWorkflow(p *party) error {
	return w.Store.Change(w.t.Context(), store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		plan, err := flow.Load(json.RawMessage(oneDelay))
		if err != nil {
			return nil, err
		}
		wf, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "Flow"})
		if err != nil {
			return nil, err
		}
		p.workflow = wf.ID
		if _, _, err := tx.CreateWorkflowVersion(ctx, wf.ID, json.RawMessage(oneDelay), plan.Definition()); err != nil {
			return nil, err
		}
		_, _, err = tx.PublishWorkflow(ctx, wf.ID, 1)
		return nil, err
	})
}

// padded returns a valid definition of n bytes.
func padded(n int) string {
	head, tail := `{"nodes":[{"id":"rest","type":"delay","seconds":1}],"variables":{"x":"`, `"}}`
	return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
}

// chained returns a valid definition of n nodes in a row, with e edges.
func chained(n, e int) string {
	var nodes, edges []string
	for i := range n {
		nodes = append(nodes, fmt.Sprintf(`{"id":"n%d","type":"delay","seconds":0}`, i))
	}
	for step := 1; len(edges) < e; step++ {
		for i := 0; i+step < n && len(edges) < e; i++ {
			edges = append(edges, fmt.Sprintf(`{"from":"n%d","to":"n%d"}`, i, i+step))
		}
	}
	return `{"nodes":[` + strings.Join(nodes, ",") + `],"edges":[` + strings.Join(edges, ",") + `]}`
}

// service.md, Agents and workflows; open-parts.md, Workflows: each row is one case, and the cases
// run in order on one tenant.
func TestWorkflowRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	const versions = "/v1/workflows/{workflow}/versions"
	version := func(definition string) string { return `{"definition": ` + definition + `}` }
	w.routes(w.a.fill(), []route{
		{"list workflows", "GET", "/v1/workflows", "", 200, "", `{"items":[{"id":"{workflow}","slug":"flow","name":"Flow","node_id":null,"published_version":1,"latest_version":1,"created_at":"`, ""},
		{"a page of workflows", "GET", "/v1/workflows?limit=100", "", 200, "", `"next_cursor":null`, ""},
		{"a page of more than 100", "GET", "/v1/workflows?limit=101", "", 400, "VALIDATION", "limit", ""},
		{"a cursor that is not ours", "GET", "/v1/workflows?cursor=x", "", 400, "VALIDATION", "cursor", ""},
		{"read a workflow", "GET", "/v1/workflows/{workflow}", "", 200, "", `"versions":[{"workflow_id":"{workflow}","version":1,"status":"published","definition":{"nodes":[{"id":"rest","type":"delay","seconds":1}]},"created_at":"`, ""},
		{"without versions to come", "GET", "/v1/workflows/{workflow}?limit=1", "", 200, "", `"next_cursor":null`, ""},
		{"read an unknown one", "GET", "/v1/workflows/{unknown}", "", 404, "NOT_FOUND", "workflow", ""},
		{"an id that is no UUID", "GET", "/v1/workflows/nonsense", "", 404, "NOT_FOUND", "", ""},
		{"make a workflow", "POST", "/v1/workflows", `{"name": "Refund orders"}`, 201, "", `"slug":"refund-orders","name":"Refund orders","node_id":null,"published_version":null,"latest_version":0,`, "workflow.create"},
		{"with a definition", "POST", "/v1/workflows", `{"name": "Second", "slug": "s", "definition": ` + oneDelay + `}`, 201, "", `"version":1,"status":"draft","definition":{"nodes":[`, "workflow.create workflow.version.create"},
		{"null is no definition", "POST", "/v1/workflows", `{"name": "Third", "definition": null}`, 400, "VALIDATION", "definition: must not be null", ""},
		{"with a bad definition", "POST", "/v1/workflows", `{"name": "x", "definition": {"nodes": []}}`, 400, "VALIDATION", "definition.nodes: ", ""},
		{"with an unknown agent", "POST", "/v1/workflows", `{"name": "x", "definition": {"nodes": [{"id": "a", "type": "agent", "agent_id": "{unknown}", "input": ""}]}}`, 400, "VALIDATION", "definition.nodes[0].agent_id: there is no such agent", ""},
		{"on an org node", "POST", "/v1/workflows", `{"name": "On a node", "node_id": "{node}"}`, 201, "", `"node_id":"{node}"`, "workflow.create"},
		{"on an org node that is not there", "POST", "/v1/workflows", `{"name": "x", "node_id": "{unknown}"}`, 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"a taken slug", "POST", "/v1/workflows", `{"name": "x", "slug": "flow"}`, 409, "SLUG_TAKEN", "", ""},
		{"a bad slug", "POST", "/v1/workflows", `{"name": "x", "slug": "-a"}`, 400, "VALIDATION", "slug", ""},
		{"no name", "POST", "/v1/workflows", `{}`, 400, "VALIDATION", "name: is required", ""},
		{"a name of 120", "POST", "/v1/workflows", `{"name": "` + x(120) + `"}`, 201, "", "", "workflow.create"},
		{"a name of 121", "POST", "/v1/workflows", `{"name": "` + x(121) + `"}`, 400, "VALIDATION", "name", ""},
		{"an unknown field", "POST", "/v1/workflows", `{"name": "x", "description": "d"}`, 400, "VALIDATION", "description", ""},
		{"change a workflow", "PATCH", "/v1/workflows/{workflow}", `{"name": "Renamed", "slug": "renamed", "node_id": "{node}"}`, 200, "", `"slug":"renamed","name":"Renamed","node_id":"{node}"`, "workflow.update"},
		{"what is omitted stays", "PATCH", "/v1/workflows/{workflow}", `{}`, 200, "", `"slug":"renamed","name":"Renamed","node_id":"{node}"`, "workflow.update"},
		{"the response is that of the read", "PATCH", "/v1/workflows/{workflow}", `{}`, 200, "", `"versions":[{"workflow_id":"{workflow}","version":`, "workflow.update"},
		{"take it off its node", "PATCH", "/v1/workflows/{workflow}", `{"node_id": null}`, 200, "", `"node_id":null`, "workflow.update"},
		{"to an unknown node", "PATCH", "/v1/workflows/{workflow}", `{"node_id": "{unknown}"}`, 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"to a taken slug", "PATCH", "/v1/workflows/{workflow}", `{"slug": "s"}`, 409, "SLUG_TAKEN", "", ""},
		{"a definition is changed by a version", "PATCH", "/v1/workflows/{workflow}", `{"definition": ` + oneDelay + `}`, 400, "VALIDATION", "definition", ""},
		{"change an unknown one", "PATCH", "/v1/workflows/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"add a version", "POST", versions, version(oneDelay), 201, "", `{"version":{"workflow_id":"{workflow}","version":2,"status":"draft"`, "workflow.version.create"},
		{"without a definition", "POST", versions, `{}`, 400, "VALIDATION", "definition: is required", ""},
		{"of null", "POST", versions, version("null"), 400, "VALIDATION", "definition", ""},
		{"that is no object", "POST", versions, version("[]"), 400, "VALIDATION", "definition: ", ""},
		{"with a cycle", "POST", versions, version(`{"nodes": [{"id": "a", "type": "delay", "seconds": 1}, {"id": "b", "type": "delay", "seconds": 1}], "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]}`), 400, "VALIDATION", "definition.edges", ""},
		{"with an edge to nowhere", "POST", versions, version(`{"nodes": [{"id": "a", "type": "delay", "seconds": 1}], "edges": [{"from": "a", "to": "b"}]}`), 400, "VALIDATION", "definition.edges[0].to", ""},
		{"with two faults", "POST", versions, version(`{"nodes": [{"id": "a b", "type": "delay", "seconds": 1}, {"id": "c", "type": "sleep"}]}`), 400, "VALIDATION", "definition.nodes[1].type", ""},
		{"200 nodes and 400 edges", "POST", versions, version(chained(200, 400)), 201, "", `"version":3`, "workflow.version.create"},
		{"201 nodes", "POST", versions, version(chained(201, 200)), 400, "VALIDATION", "definition.nodes", ""},
		{"401 edges", "POST", versions, version(chained(200, 401)), 400, "VALIDATION", "definition.edges", ""},
		{"256 KiB", "POST", versions, version(padded(256 << 10)), 201, "", `"version":4`, "workflow.version.create"},
		{"one byte more", "POST", versions, version(padded(256<<10 + 1)), 400, "VALIDATION", "definition: ", ""},
		{"to an unknown workflow", "POST", "/v1/workflows/{unknown}/versions", version(oneDelay), 404, "NOT_FOUND", "", ""},
		{"a refused version takes no number", "GET", "/v1/workflows/{workflow}?limit=1", "", 200, "", `"latest_version":4`, ""},
		{"read a version", "GET", versions + "/2", "", 200, "", `{"workflow_id":"{workflow}","version":2,"status":"draft","definition":{"nodes":[{"id":"rest","type":"delay","seconds":1}]},`, ""},
		{"read an unknown version", "GET", versions + "/9", "", 404, "NOT_FOUND", "", ""},
		{"a version that is no number", "GET", versions + "/x", "", 404, "NOT_FOUND", "", ""},
		{"a version beyond every number", "GET", versions + "/99999999999", "", 404, "NOT_FOUND", "", ""},
		{"publish a version", "POST", versions + "/2/publish", "", 200, "", `"published_version":2`, "workflow.publish"},
		{"with no warnings", "POST", versions + "/2/publish", "", 200, "", `"warnings":[]}`, ""},
		{"roll back", "POST", versions + "/1/publish", "", 200, "", `"published_version":1`, "workflow.publish"},
		{"what was published is superseded", "GET", versions + "/2", "", 200, "", `"status":"superseded"`, ""},
		{"publish an unknown version", "POST", versions + "/9/publish", "", 404, "NOT_FOUND", "", ""},
		{"publish of an unknown workflow", "POST", "/v1/workflows/{unknown}/versions/1/publish", "", 404, "NOT_FOUND", "", ""},
		{"archive a workflow", "DELETE", "/v1/workflows/{workflow}", "", 204, "", "", "workflow.delete"},
		{"read an archived one", "GET", "/v1/workflows/{workflow}", "", 404, "NOT_FOUND", "", ""},
		{"read its version", "GET", versions + "/1", "", 404, "NOT_FOUND", "", ""},
		{"add a version to it", "POST", versions, version(oneDelay), 404, "NOT_FOUND", "", ""},
		{"publish it", "POST", versions + "/1/publish", "", 404, "NOT_FOUND", "", ""},
		{"archive it again", "DELETE", "/v1/workflows/{workflow}", "", 404, "NOT_FOUND", "", ""},
		{"its slug is free again", "POST", "/v1/workflows", `{"name": "x", "slug": "renamed"}`, 201, "", `"slug":"renamed"`, "workflow.create"},
	})
	if got := w.call(w.a, "PUT", w.a.fill().Replace("/v1/workflows/{workflow}"), `{}`); got.status != 405 || got.code() != "METHOD_NOT_ALLOWED" {
		t.Errorf("another method: %d %s", got.status, got.body)
	}
}

// open-parts.md, Workflows: any member reads, an admin changes.
func TestWorkflowRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	begun := w.call(w.a, "POST", fill.Replace("/v1/workflows/{workflow}/runs"), "")
	events := fmt.Sprintf("/v1/workflows/runs/%v/events", begun.get("run_id"))
	for _, c := range []struct {
		method, path, body string
		member             int
	}{
		{"GET", "/v1/workflows", "", 200}, {"GET", "/v1/workflows/{workflow}", "", 200}, {"GET", "/v1/workflows/{workflow}/versions/1", "", 200},
		{"POST", "/v1/workflows/{workflow}/runs", "", 202}, {"POST", "/v1/workflows/{workflow}/test-run", "", 202}, {"POST", events, `{"name": "x"}`, 202},
		{"POST", "/v1/workflows", `{"name": "x"}`, 403}, {"PATCH", "/v1/workflows/{workflow}", `{"name": "x"}`, 403},
		{"POST", "/v1/workflows/{workflow}/versions", `{"definition": ` + oneDelay + `}`, 403},
		{"POST", "/v1/workflows/{workflow}/versions/1/publish", "", 403}, {"DELETE", "/v1/workflows/{workflow}", "", 403},
	} {
		if got := w.person("member", c.method, fill.Replace(c.path), c.body); got.status != c.member || c.member == 403 && got.code() != "FORBIDDEN" {
			t.Errorf("member, %s %s: %d %s", c.method, c.path, got.status, got.body)
		}
		if got := w.person("admin/"+w.a.owner.String(), c.method, fill.Replace(c.path), c.body); got.status >= 300 {
			t.Errorf("admin, %s %s: %d %s", c.method, c.path, got.status, got.body)
		}
	}
}

// A definition is returned byte for byte as it was sent.
func TestADefinitionIsKeptAsItWasSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sent := `{"variables":{"z":1.0,"a":"é\u0001 x"},"nodes":[{"type":"delay","seconds":1e0,"id":"rest"}]}`
	made := w.call(w.a, "POST", "/v1/workflows", `{"name": "Kept", "definition": `+sent+`}`)
	var got struct {
		Version struct{ Definition json.RawMessage }
	}
	if err := json.Unmarshal([]byte(made.body), &got); err != nil || string(got.Version.Definition) != sent {
		t.Fatalf("%d %s %v", made.status, made.body, err)
	}
	read := w.call(w.a, "GET", "/v1/workflows/"+made.get("workflow.id").(string), "")
	if !strings.Contains(read.body, sent) {
		t.Errorf("%s", read.body)
	}
}

// One Idempotency-Key has one effect, also for concurrent requests.
func TestWorkflowCallsAreIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	for _, c := range []struct{ path, body, action string }{
		{"/v1/workflows", `{"name": "Once", "definition": ` + oneDelay + `}`, "workflow.create"},
		{"/v1/workflows/{workflow}/versions", `{"definition": ` + oneDelay + `}`, "workflow.version.create"},
		{"/v1/workflows/{workflow}/versions/2/publish", "", "workflow.publish"},
	} {
		before := w.audited(w.a.tenant)[c.action]
		answers := make([]answer, 6)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() { answers[i] = w.call(w.a, "POST", fill.Replace(c.path), c.body, "Idempotency-Key", c.action) })
		}
		wg.Wait()
		for _, a := range answers {
			if a.status >= 300 || a.body != answers[0].body {
				t.Errorf("%s: %d %s, another %s", c.path, a.status, a.body, answers[0].body)
			}
		}
		if n := w.audited(w.a.tenant)[c.action] - before; n != 1 {
			t.Errorf("%s: happened %d times", c.path, n)
		}
	}
	if got := w.call(w.a, "POST", "/v1/workflows", `{"name": "Other"}`, "Idempotency-Key", "workflow.create"); got.status != 409 || got.code() != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("another body: %d %s", got.status, got.body)
	}
}

// open-parts.md, Publishing: what a run would fail on in the present state.
func TestWarningsOfWorkflows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	agent := func(slug, manifest string) string {
		made := w.call(w.a, "POST", "/v1/agents", `{"name": "x", "slug": "`+slug+`", "manifest": {"model": {"provider": "simulated", "name": "sim"}`+manifest+`}}`)
		a, _ := made.get("agent.id").(string)
		if got := w.call(w.a, "POST", "/v1/agents/"+a+"/versions/1/publish", ""); got.status != 200 {
			t.Fatalf("%s: %s %s", slug, made.body, got.body)
		}
		return a
	}
	orders := `, "tools": {"mcp": [{"server": "orders", "allow": ["refund"]}]}`
	calls, ruled := agent("calls", orders), agent("ruled", orders+`, "hitl": {"rules": [{"tool": "orders.refund"}]}`)
	hands := agent("hands", `, "handoffs": ["front"]`)
	agent("front", `, "handoffs": ["hands", "ruled"]`)
	gone := agent("gone", "")
	w.call(w.a, "POST", "/v1/tool-grants", w.a.fill().Replace(`{"source": "mcp", "mcp_server_id": "{server}", "tool_pattern": "secret", "effect": "deny"}`))
	below := w.call(w.a, "POST", "/v1/org-nodes", w.a.fill().Replace(`{"name": "Below", "parent_id": "{node}"}`)).get("id").(string)
	other := w.call(w.a, "POST", "/v1/mcp-servers", `{"slug": "desk", "name": "Desk", "transport": "http", "endpoint": "https://d.example", "auth_kind": "none"}`).get("id").(string)
	w.call(w.a, "POST", "/v1/tool-grants", w.a.fill().Replace(`{"source": "mcp", "mcp_server_id": "`+other+`", "tool_pattern": "open", "effect": "allow", "node_id": "{node}"}`))

	node := func(a string) string { return `{"id": "a", "type": "agent", "agent_id": "` + a + `", "input": "x"}` }
	call := func(name string) string { return `{"id": "t", "type": "tool", "tool": "` + name + `"}` }
	on := func(n string) {
		if got := w.call(w.a, "PATCH", w.a.fill().Replace("/v1/workflows/{workflow}"), `{"node_id": `+n+`}`); got.status != 200 {
			t.Fatal(got)
		}
	}
	asks := func(slug, rule string) []string {
		return []string{`definition.nodes[0].agent_id: a run of the agent "` + slug + `" could meet an approval (` + rule + `), which would fail the workflow: use a gate`}
	}
	last := 1
	check := func(what string, nodes []string, want []string) {
		t.Helper()
		path := w.a.fill().Replace("/v1/workflows/{workflow}/versions")
		made := w.call(w.a, "POST", path, `{"definition": {"nodes": [`+strings.Join(nodes, ",")+`]}}`)
		last++
		published := w.call(w.a, "POST", fmt.Sprintf("%s/%d/publish", path, last), "")
		for _, a := range []answer{made, published} {
			var got struct{ Warnings []string }
			if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status >= 300 || got.Warnings == nil || !slices.Equal(got.Warnings, want) {
				t.Errorf("%s: %d %q, want %q (%v)", what, a.status, got.Warnings, want, err)
			}
		}
	}
	none := []string{}
	check("an agent without tools", []string{node(w.a.agent.String())}, none)
	check("a draft", []string{node(w.a.draft.String())}, []string{`definition.nodes[0].agent_id: the agent "agent-2" has no published version`})
	check("a policy of the tenant", []string{node(calls)}, asks("calls", `the policy "Policy"`))
	check("by a handoff, in a circle", []string{node(hands)}, []string{`definition.nodes[0].agent_id: a run of the agent "hands" could hand over to "ruled" and meet an approval there (the policy "Policy"), which would fail the workflow: use a gate`})
	check("each node", []string{node(calls), `{"id": "b", "type": "agent", "agent_id": "` + calls + `", "input": "x"}`}, append(asks("calls", `the policy "Policy"`), strings.Replace(asks("calls", `the policy "Policy"`)[0], "[0]", "[1]", 1)))
	if got := w.call(w.a, "PATCH", w.a.fill().Replace("/v1/approval-policies/{policy}"), `{"enabled": false}`); got.status != 200 {
		t.Fatal(got)
	}
	check("the policy is off", []string{node(calls)}, none)
	check("a rule of the manifest", []string{node(ruled)}, asks("ruled", `the manifest's rule "orders.refund"`))
	check("a granted tool, qualified and bare", []string{call("orders.refund"), strings.Replace(call("refund"), `"t"`, `"u"`, 1)}, none)
	check("a denied tool", []string{call("orders.secret")}, []string{`definition.nodes[0].tool: no grant allows "orders.secret"`})
	check("a tool that nothing grants", []string{call("desk.open")}, []string{`definition.nodes[0].tool: no grant allows "desk.open"`})
	check("an unknown server", []string{call("shop.open")}, none) // orders may have a tool of this name
	check("kb.search", []string{call("builtin:kb.search")}, []string{`definition.nodes[0].tool: a tool node cannot call kb.search: use an agent node`})
	on(`"` + below + `"`)
	check("a grant to a node above", []string{call("desk.open")}, none)
	on("null")
	check("and not below it any more", []string{call("desk.open")}, []string{`definition.nodes[0].tool: no grant allows "desk.open"`})
	if got := w.call(w.a, "DELETE", w.a.fill().Replace("/v1/tool-grants/{grant}"), ""); got.status != 204 {
		t.Fatal(got)
	}
	check("without a grant nothing is asked for", []string{node(ruled)}, none)
	check("an unknown server, and no grant", []string{call("shop.open")}, []string{`definition.nodes[0].tool: there is no tool server "shop"`})

	// The agent is archived after the version was created.
	path := w.a.fill().Replace("/v1/workflows/{workflow}/versions")
	w.call(w.a, "POST", path, `{"definition": {"nodes": [`+node(gone)+`]}}`)
	w.call(w.a, "DELETE", "/v1/agents/"+gone, "")
	last++
	if got := w.call(w.a, "POST", fmt.Sprintf("%s/%d/publish", path, last), ""); got.status != 200 || !strings.Contains(got.body, `"warnings":["definition.nodes[0].agent_id: there is no such agent"]`) {
		t.Errorf("an archived agent: %d %s", got.status, got.body)
	}
}

// Concurrent creations and publications: each version gets a number of its own, and one is
// published.
func TestConcurrentVersionsOfAWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := w.a.fill().Replace("/v1/workflows/{workflow}")
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			a := w.call(w.a, "POST", path+"/versions", `{"definition": `+oneDelay+`}`)
			if a.status != 201 {
				t.Errorf("%d. version: %d %s", i, a.status, a.body)
				return
			}
			if p := w.call(w.a, "POST", fmt.Sprintf("%s/versions/%v/publish", path, a.get("version.version")), ""); p.status != 200 {
				t.Errorf("%d. publication: %d %s", i, p.status, p.body)
			}
		})
	}
	wg.Wait()
	var got struct {
		Workflow struct {
			Published int `json:"published_version"`
			Latest    int `json:"latest_version"`
		}
		Versions []struct {
			Version int
			Status  string
		}
	}
	w.must(json.Unmarshal([]byte(w.call(w.a, "GET", path, "").body), &got))
	if got.Workflow.Latest != 11 || len(got.Versions) != 11 {
		t.Fatalf("%+v", got)
	}
	for i, v := range got.Versions {
		if v.Version != 11-i || (v.Status == "published") != (v.Version == got.Workflow.Published) {
			t.Errorf("%+v, published %d", v, got.Workflow.Published)
		}
	}
}

// Pages return each version of a workflow once.
func TestPagesOfWorkflowVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := w.a.fill().Replace("/v1/workflows/{workflow}")
	for range 4 {
		w.call(w.a, "POST", path+"/versions", `{"definition": `+oneDelay+`}`)
	}
	var seen []string
	for next := "?limit=2"; next != ""; {
		page := w.call(w.a, "GET", path+next, "")
		for i := range 3 {
			if n := page.get(fmt.Sprintf("versions.%d.version", i)); n != nil {
				seen = append(seen, fmt.Sprint(n))
			}
		}
		cursor, _ := page.get("next_cursor").(string)
		if next = ""; cursor != "" {
			next = "?limit=2&cursor=" + cursor
		}
	}
	if strings.Join(seen, " ") != "5 4 3 2 1" {
		t.Errorf("%q", seen)
	}
	if got := w.call(w.a, "GET", path+"?cursor="+api.Cursor("agents", id.NewAnywhere()), ""); got.status != 400 {
		t.Errorf("a cursor of another list: %d %s", got.status, got.body)
	}
}
