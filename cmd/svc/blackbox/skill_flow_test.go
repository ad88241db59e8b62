package blackbox

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// flowOf makes a workflow on an org node and publishes it: the first of its nodes, and behind it the
// others side by side. It returns the workflow and the warnings.
func (c *caller) flowOf(t *testing.T, name, node string, nodes ...object) (id string, warnings []string) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	edges := []object{}
	for _, n := range nodes[1:] {
		edges = append(edges, object{"from": nodes[0]["id"], "to": n["id"]})
	}
	var made struct{ Workflow struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/workflows", object{"name": name, "node_id": node, "definition": object{"nodes": nodes, "edges": edges}}, &made)
	var published struct{ Warnings []string }
	c.ask(t, ctx, 200, "POST", "/v1/workflows/"+made.Workflow.ID+"/versions/1/publish", nil, &published)
	return made.Workflow.ID, published.Warnings
}

// A workflow tries a skill and then runs it: the dry run submits nothing, the form is filled before people
// are asked, and what they approve is committed once, also where two branches call it with the same values. A form that cannot be filled asks people nothing; an
// edit obeys the skill's policy; a run that is cancelled, and a grant that is withdrawn while people decide,
// commit nothing. kb.search is no tool for a node, which publishing says.
func TestAWorkflowRunsABrowserSkill(t *testing.T) { // not parallel: a browser has a low priority
	c := sharedNode(t).tenant("skills of workflows")
	b := c.backOffice(t, "Cancel by a workflow", object{})
	ctx := within(t, 4*time.Minute)
	node := c.makes(t, ctx, "/v1/org-nodes", object{"name": "Desk"})
	var grants struct{ Items []struct{ ID, Op string } }
	c.ask(t, ctx, 201, "POST", "/v1/browser-skills/"+b.skill+"/grants", object{"node_id": node, "ops": []string{"run", "dry_run"}}, &grants)
	skill := "browser_skill:" + b.slug
	tries := object{"id": "try", "type": "tool", "tool": skill + ".dry_run", "args": object{"order": "{{input.order}}", "cause": "stock"}}
	does := object{"id": "do", "type": "tool", "tool": skill + ".run", "args": object{"order": "{{input.order}}", "cause": "stock", "reason": "order {{input.order}} is late"}}
	again := object{"id": "again", "type": "tool", "tool": skill + ".run", "args": does["args"]}
	both, warnings := c.flowOf(t, "Tries and does", node, tries, does, again)
	if len(warnings) > 0 {
		t.Errorf("warnings %v", warnings)
	}
	only, _ := c.flowOf(t, "Does", node, does)
	starts := func(workflow, order string) string {
		t.Helper()
		var started struct {
			RunID string `json:"run_id"`
		}
		c.ask(t, ctx, 202, "POST", "/v1/workflows/"+workflow+"/runs", object{"input": object{"order": order}}, &started)
		return started.RunID
	}
	waits := func(run string) (skillApproval, string) {
		t.Helper()
		c.poll(t, ctx, run, "waiting_approval")
		a := c.pendingOf(t, run)
		if a.SkillRun == nil {
			t.Fatalf("people decide on nothing that they can see: %+v", a)
		}
		return a, *a.SkillRun
	}

	run := starts(both, "1001")
	a, of := waits(run)
	before := c.skillRun(t, of)
	if before.Status != "prepared" || before.AgentRunID == nil || *before.AgentRunID != run || before.Precommit == nil || before.Precommit.Values["cause"] != "stock" || b.Effects("1001") != 0 {
		t.Errorf("%+v, %d effects", before, b.Effects("1001"))
	}
	if got := string(c.ask(t, ctx, 200, "GET", "/v1/browser-skills/runs/"+of, nil, nil).body); !strings.Contains(got, `"screenshot_key":"browser-skills/`) {
		t.Errorf("there is no picture of the form: %s", got)
	}
	if a.Reasoning != "order 1001 is late" || a.Policy.Kind != "skill" {
		t.Errorf("%+v", a)
	}
	if x := c.refused(t, ctx, 422, a.ID, object{"action": "edit", "edited_args": object{"order": "1002", "cause": "stock"}}); x.code() != "INVALID_ARGS" || !strings.Contains(string(x.body), "does not allow edits") {
		t.Errorf("an edit: %s", x)
	}
	c.decides(t, ctx, a.ID, object{"action": "approve"})
	r := c.poll(t, ctx, run, "succeeded")
	type output struct {
		JSON struct {
			OK, Committed, Duplicate bool
			RunID                    string `json:"run_id"`
			Result                   map[string]any
		}
	}
	var out struct{ Outputs map[string]output }
	if err := json.Unmarshal(r.Run.Output, &out); err != nil {
		t.Fatal(err)
	}
	try, do, second := out.Outputs["try"].JSON, out.Outputs["do"].JSON, out.Outputs["again"].JSON
	if !try.OK || try.Committed || !do.OK || !do.Committed || do.Result["order"] != 1001.0 || b.Effects("1001") != 1 {
		t.Errorf("%s, %d effects", r.Run.Output, b.Effects("1001"))
	}
	if do.Duplicate == second.Duplicate || do.RunID != of || second.RunID != of || !second.OK {
		t.Errorf("two branches with the same call: %s", r.Run.Output)
	}
	if got := c.skillRun(t, of); got.Status != "succeeded" || !got.Duplicate {
		t.Errorf("%+v", got)
	}
	var list struct{ Items []skillRun }
	if c.ask(t, ctx, 200, "GET", "/v1/browser-skills/runs?agent_run_id="+run, nil, &list); len(list.Items) != 2 {
		t.Errorf("%d runs of the skill", len(list.Items))
	}

	failed := c.poll(t, ctx, starts(only, "404404"), "failed")
	if failed.Run.Error.Code != "TOOL_FAILED" || !strings.Contains(toolOutput(failed), `"committed":false`) {
		t.Errorf("a form that cannot be filled: %+v, %s", failed.Run.Error, toolOutput(failed))
	}
	var asked struct{ Items []skillApproval }
	if c.ask(t, ctx, 200, "GET", "/v1/approvals?run_id="+failed.Run.ID, nil, &asked); len(asked.Items) > 0 {
		t.Errorf("people are asked about it: %+v", asked.Items)
	}

	cancelled := starts(only, "1003")
	_, of = waits(cancelled)
	c.ask(t, ctx, 200, "POST", "/v1/runs/"+cancelled+"/cancel", nil, nil)
	eventually(t, ctx, "what a cancelled run prepared is rejected", func() bool { return c.skillRun(t, of).Status == "rejected" })

	revoked := starts(only, "1002")
	a, of = waits(revoked)
	for _, g := range grants.Items {
		c.ask(t, ctx, 204, "DELETE", "/v1/browser-skills/"+b.skill+"/grants/"+g.ID, nil, nil)
	}
	c.decides(t, ctx, a.ID, object{"action": "approve"})
	if r := c.poll(t, ctx, revoked, "failed"); r.Run.Error.Code != "TOOL_FAILED" || !strings.Contains(toolOutput(r), "not granted to this workflow any more") {
		t.Errorf("a grant that is withdrawn: %+v, %s", r.Run.Error, toolOutput(r))
	}
	eventually(t, ctx, "what was prepared under it has ended", func() bool { return c.skillRun(t, of).Status == "failed" })
	if b.Effects("1002")+b.Effects("1003") != 0 {
		t.Errorf("%d and %d effects", b.Effects("1002"), b.Effects("1003"))
	}

	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "*", "effect": "allow"})
	const noSearch = "a tool node cannot call kb.search: use an agent node"
	searches, warnings := c.flowOf(t, "Searches", node, object{"id": "s", "type": "tool", "tool": "kb.search", "args": object{"query": "x"}})
	if len(warnings) != 1 || warnings[0] != "definition.nodes[0].tool: "+noSearch {
		t.Errorf("warnings %v", warnings)
	}
	if r := c.poll(t, ctx, starts(searches, "1"), "failed"); !strings.Contains(toolOutput(r), "A tool node cannot call kb.search: use an agent node.") {
		t.Errorf("a search: %s", toolOutput(r))
	}
}
