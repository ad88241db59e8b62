package consolecheck

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// complaints is a definition with an agent, a decision by its answer, and a person's approval.
func complaints(agent string) object {
	return object{
		"nodes": []object{
			{"id": "classify", "type": "agent", "agent_id": agent, "input": object{"text": "{{input.text}}"}},
			{"id": "big", "type": "condition", "expression": "double(input.amount) > 50.0"},
			{"id": "approve", "type": "gate", "title": "Pay back {{input.amount}}?", "risk": "high", "approver_role": "member"},
			{"id": "small", "type": "set", "values": object{"decided": "by rule"}},
			{"id": "pay", "type": "set", "values": object{"paid": "{{input.amount}}"}},
			{"id": "thank", "type": "agent", "agent_id": agent, "input": object{"text": "Thank them."}},
		},
		"edges": []object{{"from": "classify", "to": "big"}, {"from": "big", "to": "approve", "when": "true"}, {"from": "big", "to": "small", "when": "false"},
			{"from": "approve", "to": "pay"}, {"from": "small", "to": "pay"}, {"from": "pay", "to": "thank"}},
	}
}

func (s *service) workflow(t *testing.T, name string, definition object) (id string) {
	t.Helper()
	var made struct{ Workflow struct{ ID string } }
	s.call(t, "POST", "/v1/workflows", object{"name": name, "definition": definition}, &made)
	return made.Workflow.ID
}

// node is a node of the graph in some state.
func (p *tab) node(name string) playwright.Locator {
	return p.byRole("group", "Graph").GetByRole("button", playwright.LocatorGetByRoleOptions{Name: name, Exact: playwright.Bool(true)})
}

// Section 5, workflows: made, written with complaints at their paths, saved, published, compared, archived.
func TestAWorkflowFromTheConsole(t *testing.T) {
	t.Parallel()
	_, agent := shared.policed(t)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/workflows")
	p.heading("Workflows")
	must(t, p.button("New workflow").Click())
	dialog := p.byRole("dialog", "New workflow")
	name := fmt.Sprintf("Answers %d", numbered.Add(1))
	must(t, dialog.GetByLabel("Name").Fill(name))
	choose(t, dialog.GetByLabel("Agent", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}), labelled(agent))
	p.accessible("New workflow")
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	p.heading(name)
	visible(t, p.node("ask, agent"))
	visible(t, p.node("approve, gate"))

	// What is wrong is told at its path while it is written, and what the service finds when it is saved.
	must(t, p.byRole("tab", "Definition").Click())
	box := p.box("Definition")
	was := written(t, box)
	rewrite(t, box, strings.Replace(was, `"ask"`, `"ask`, 1))
	problems := p.byRole("list", "Problems")
	contains(t, problems, "Not JSON")
	must(t, expect.Locator(p.button("Save draft")).ToBeDisabled())
	rewrite(t, box, strings.Replace(was, `"to": "done"`, `"to": "dune"`, 1))
	contains(t, problems, `definition.edges[1].to`)
	contains(t, problems, `names no node of the definition: "dune"`)
	must(t, expect.Locator(box).ToHaveAttribute("aria-invalid", "true"))
	rewrite(t, box, strings.Replace(was, `"risk": "medium"`, `"risk": "terrible"`, 1))
	gone(t, problems)
	must(t, p.button("Save draft").Click())
	contains(t, problems, `definition.nodes[1].risk`)
	p.accessible("a definition with a problem")
	// It is marked at its line, and its link leads there.
	must(t, expect.Locator(box.Locator(".cm-lintRange-error")).ToHaveText(`"terrible"`))
	must(t, problems.GetByRole("button").Click())
	must(t, expect.Locator(box).ToBeFocused())
	p.press("Delete")
	gone(t, box.Locator(".cm-lintRange-error").Filter(playwright.LocatorFilterOptions{HasText: "terrible"}))
	must(t, expect.Locator(box).Not().ToContainText("terrible"))
	// What is typed stays while another tab is looked at.
	rewrite(t, box, strings.Replace(was, `"risk": "medium"`, `"risk": "high"`, 1))
	must(t, p.byRole("tab", "Table").Click())
	contains(t, p.byRole("table", "Nodes"), "Send this?")
	must(t, p.byRole("tab", "Definition").Click())
	until(t, "it holds what was typed", func() bool { return strings.Contains(written(t, box), `"risk": "high"`) })
	must(t, p.button("Save draft").Click())
	hasURL(t, p, `version=2`)
	until(t, "it holds what was typed", func() bool { return strings.Contains(written(t, box), `"risk": "high"`) })

	must(t, p.button("Publish").Click())
	must(t, p.GetByRole("alertdialog").GetByRole("button", named0("Publish")).Click())
	visible(t, p.GetByText("version 2 is published"))
	gone(t, p.button("Publish"))
	must(t, p.byRole("tab", "Versions").Click())
	must(t, p.byRole("table", "Versions").GetByRole("link", named0("Version 2")).Click())
	changes := p.byRole("region", "Changes")
	contains(t, changes, "nodes[1].risk")
	contains(t, changes, "medium")
	contains(t, changes, "high")
	p.accessible("changes between versions")
	must(t, p.button("Archive").Click())
	confirm := p.GetByRole("alertdialog")
	must(t, expect.Locator(confirm.GetByRole("button", named0("Cancel"))).ToBeFocused())
	must(t, confirm.GetByRole("button", named0("Archive")).Click())
	p.heading("Workflows")
	gone(t, p.GetByText(name))
}

// Section 5: a test run lights up its nodes without a reload, waits for a person, and can be looked at again.
func TestATestRunLightsUp(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	id := shared.workflow(t, "Complaints", complaints(agent))
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/workflows/"+id)
	p.heading("Complaints")
	gone(t, p.button("Publish"))
	must(t, p.button("Test run").Click())
	dialog := p.byRole("dialog", "Test run")
	input := dialog.GetByLabel("Input")
	must(t, expect.Locator(input).ToHaveValue(regexp.MustCompile(`"text": "",\s+"amount": ""`)))
	must(t, input.Fill("{"))
	must(t, dialog.GetByRole("button", named0("Start")).Click())
	must(t, expect.Locator(input).ToHaveAttribute("aria-invalid", "true"))
	p.accessible("Test run")
	must(t, input.Fill(`{"text":"It arrived broken.","amount":80}`))
	must(t, dialog.GetByRole("button", named0("Start")).Click())
	hasURL(t, p, `\?run=[0-9a-f-]{36}$`)
	visible(t, p.node("classify, agent, succeeded"))
	visible(t, p.node("big, condition, succeeded"))
	visible(t, p.node("approve, gate, waiting"))
	visible(t, p.node("small, set, skipped"))
	visible(t, p.node("pay, set, not started"))
	bar := p.GetByRole("region", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^Run ")})
	link := bar.GetByRole("link", named0("workflow:gate, high risk"))
	visible(t, link)
	p.accessible("a run that waits")

	// By the keyboard: from node to node, and into one.
	must(t, p.node("classify, agent, succeeded").Focus())
	p.press("ArrowRight")
	must(t, expect.Locator(p.node("big, condition, succeeded")).ToBeFocused())
	p.press("ArrowLeft", "Enter")
	region := p.byRole("region", "Node classify")
	visible(t, region.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Run ")}))
	contains(t, region, "It arrived broken.")
	hasURL(t, p, `node=classify`)
	p.reload()
	visible(t, region)
	visible(t, p.node("approve, gate, waiting"))
	must(t, region.GetByRole("button", named0("Close")).Click())
	must(t, expect.Locator(p.node("classify, agent, succeeded")).ToBeFocused())

	// Decided elsewhere: the rest follows by itself.
	href, err := link.GetAttribute("href")
	must(t, err)
	shared.call(t, "POST", "/v1/approvals/"+href[strings.LastIndex(href, "/")+1:]+"/decision", object{"action": "approve"}, nil)
	visible(t, p.node("thank, agent, succeeded"))
	contains(t, bar, "succeeded")
	gone(t, link)
	must(t, p.byRole("tab", "Table").Click())
	row := p.byRole("table", "Nodes").Locator(`[data-id=small]`)
	contains(t, row, "skipped")
	contains(t, row, "big if false")
	p.accessible("a run as a table")
	must(t, p.byRole("tab", "Runs").Click())
	must(t, p.byRole("table", "Runs").GetByRole("link").First().Click())
	visible(t, p.node("pay, set, succeeded"))

	// A run is drawn on its own version, and on no other one.
	shared.call(t, "POST", "/v1/workflows/"+id+"/versions", object{"definition": object{"nodes": []object{{"id": "alone", "type": "set", "values": object{"a": "b"}}}, "edges": []object{}}}, nil)
	p.goTo("/console/workflows/" + id + "?tab=runs")
	must(t, p.byRole("table", "Runs").GetByRole("link").First().Click())
	hasURL(t, p, `version=1`)
	visible(t, p.node("pay, set, succeeded"))
	p.goTo(strings.Replace(p.URL(), "version=1", "version=2", 1))
	contains(t, bar, "It is a run of another version.")
	visible(t, p.node("alone, set"))
	must(t, bar.GetByRole("link", named0("Open version 1")).Click())
	visible(t, p.node("pay, set, succeeded"))
}

// A failed run tells why on the graph; hostile texts are plain; dark and on a phone.
func TestWorkflowsAreQuiet(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	d := complaints(agent)
	nodes := d["nodes"].([]object)
	nodes[2]["title"] = `<img src=x onerror=alert(1)> ` + "\u202e" + `gnp`
	nodes[0]["input"] = object{"text": "/fail {{input.text}} <b>no</b>"}
	id := shared.workflow(t, `<script>alert(1)</script>`, d)
	var run struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/workflows/"+id+"/test-run", object{"input": object{"text": "No paper.", "amount": 80}}, &run)
	shared.reaches(t, run.RunID, "failed")
	good := shared.workflow(t, "Complaints", complaints(agent))
	var waits struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/workflows/"+good+"/test-run", object{"input": object{"text": "Broken.", "amount": 80}}, &waits)
	shared.reaches(t, waits.RunID, "waiting_approval")
	email := shared.person(t, "member")
	for name, l := range map[string]look{"dark": {dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/workflows")
			p.heading("Workflows")
			p.accessible("workflows in " + name)
			p.goTo("/console/workflows/" + id + "?run=" + run.RunID)
			p.heading("<script>alert(1)</script>")
			visible(t, p.node("classify, agent, failed"))
			visible(t, p.node("pay, set, not reached"))
			bar := p.GetByRole("region", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^Run ")})
			contains(t, bar, "CHILD_FAILED")
			must(t, bar.GetByRole("button", named0("Show node classify")).Click())
			visible(t, p.byRole("region", "Node classify"))
			gone(t, p.Locator("main img"))
			p.accessible("a failed run in " + name)
			wide(t, p)
			p.goTo("/console/workflows/" + good + "?run=" + waits.RunID)
			visible(t, p.node("approve, gate, waiting"))
			p.accessible("a run that waits in " + name)
			for _, tab := range []string{"table", "definition", "versions", "runs"} {
				p.goTo("/console/workflows/" + id + "?tab=" + tab)
				visible(t, p.byRole("tab", strings.ToUpper(tab[:1])+tab[1:]))
				must(t, expect.Locator(p.Locator("[aria-busy=true]")).ToHaveCount(0))
				p.accessible(tab + " in " + name)
				wide(t, p)
			}
			p.goTo("/console/workflows/" + id + "?tab=definition")
			must(t, expect.Locator(p.box("Definition")).ToHaveAttribute("aria-readonly", "true"))
		})
	}
}

func wide(t *testing.T, p *tab) {
	t.Helper()
	got, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
	must(t, err)
	if got.(int) > 0 {
		t.Errorf("%s scrolls sideways by %v", p.URL(), got)
	}
}

// The largest definition is drawn, and zooming stays within its bounds.
func TestALargeWorkflow(t *testing.T) {
	t.Parallel()
	var nodes, edges []object
	for i := range 200 {
		nodes = append(nodes, object{"id": fmt.Sprintf("n%d", i), "type": "set", "values": object{"v": i}})
		if i > 0 {
			edges = append(edges, object{"from": fmt.Sprintf("n%d", (i-1)/3), "to": fmt.Sprintf("n%d", i)})
		}
		if i > 60 {
			edges = append(edges, object{"from": fmt.Sprintf("n%d", i%20), "to": fmt.Sprintf("n%d", i)})
		}
	}
	id := shared.workflow(t, "Large", object{"nodes": nodes, "edges": edges})
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/workflows/"+id)
	visible(t, p.node("n0, set"))
	must(t, expect.Locator(p.byRole("list", "Nodes").GetByRole("listitem")).ToHaveCount(200))
	for range 12 {
		if off, err := p.button("Zoom out").IsDisabled(); err == nil && off {
			break
		}
		must(t, p.button("Zoom out").Click())
	}
	must(t, expect.Locator(p.button("Zoom out")).ToBeDisabled())
	must(t, p.button("Fit").Click())
	count, err := p.Evaluate("document.querySelectorAll('*').length")
	must(t, err)
	if n := count.(int); n > 6000 {
		t.Errorf("%d elements", n)
	}
}

// A member reads and does not write; an unknown workflow is not found; what is not read is not empty.
func TestWorkflowsOfOthers(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/workflows/00000000-0000-7000-8000-000000000000")
	p.heading("Not found")
	must(t, p.Route("**/v1/workflows?*", func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"status":500,"code":"INTERNAL","title":"Internal error"}`})
	}))
	p.goTo("/console/workflows")
	contains(t, p.GetByRole("alert"), "INTERNAL")
	gone(t, p.GetByText("No workflows yet"))
	gone(t, p.button("New workflow"))
	must(t, p.Unroute("**/v1/workflows?*"))
	empty, err := json.Marshal(object{"items": []object{}, "next_cursor": nil})
	must(t, err)
	must(t, p.Route("**/v1/workflows?*", func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{ContentType: playwright.String("application/json"), Body: empty})
	}))
	must(t, p.button("Try again").Click())
	visible(t, p.byRole("heading", "No workflows yet"))
}
