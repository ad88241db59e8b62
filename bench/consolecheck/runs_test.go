package consolecheck

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// run starts a run of an agent.
func (s *service) run(t *testing.T, agent, input string) (run string) {
	t.Helper()
	var made struct {
		RunID string `json:"run_id"`
	}
	s.call(t, "POST", "/v1/agents/"+agent+"/runs", object{"input": input}, &made)
	return made.RunID
}

// reaches waits until a run has a status.
func (s *service) reaches(t *testing.T, run, status string) {
	t.Helper()
	until(t, "run "+run+" is "+status, func() bool {
		var got struct{ Run struct{ Status string } }
		s.call(t, "GET", "/v1/runs/"+run, nil, &got)
		return got.Run.Status == status
	})
}

func short(id string) string { return id[len(id)-8:] }

// flow makes a published workflow of one agent node.
func (s *service) flow(t *testing.T, agent string) (id string) {
	t.Helper()
	var made struct{ Workflow struct{ ID string } }
	s.call(t, "POST", "/v1/workflows", object{"name": fmt.Sprintf("Flow %d", numbered.Add(1)), "definition": object{
		"nodes": []object{{"id": "ask", "type": "agent", "agent_id": agent, "input": "{{input.text}}"}}, "edges": []object{}}}, &made)
	s.call(t, "POST", "/v1/workflows/"+made.Workflow.ID+"/versions/1/publish", nil, nil)
	return made.Workflow.ID
}

func (p *tab) row(name string) playwright.Locator {
	return p.byRole("grid", "Steps").GetByRole("row", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile(name)})
}

func (p *tab) reload() {
	p.t.Helper()
	_, err := p.Reload()
	must(p.t, err)
}

func (p *tab) back() {
	p.t.Helper()
	_, err := p.GoBack()
	must(p.t, err)
}

func hasURL(t *testing.T, p *tab, pattern string) {
	t.Helper()
	must(t, expect.Page(p.Page).ToHaveURL(regexp.MustCompile(pattern)))
}

// Section 7: from the list two clicks lead to why a run failed, with the step that failed.
func TestAFailedRunIsFound(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	run := shared.run(t, agent, `/call demo.orders.get {"order_id":"1001"}`+"\n/fail The provider is overloaded.")
	shared.reaches(t, run, "failed")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs?agent="+agent)
	p.heading("Runs")
	row := p.byRole("table", "Runs").Locator(`[data-id="` + run + `"]`)
	must(t, expect.Locator(row).ToContainText("MODEL_ERROR"))
	must(t, expect.Locator(row).ToContainText(name))
	must(t, row.GetByRole("link").Click())
	p.heading("Run " + short(run))
	failure := p.byRole("alert", "Failure")
	must(t, expect.Locator(failure).ToContainText("MODEL_ERROR"))
	must(t, expect.Locator(failure).ToContainText("The provider is overloaded."))
	visible(t, failure.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Step 2")}))
	step := p.byRole("region", "Step 2")
	must(t, expect.Locator(step).ToContainText("The provider is overloaded."))
	must(t, expect.Locator(p.row("^Step 2, llm, sim-1, failed")).ToHaveAttribute("aria-selected", "true"))
	p.accessible("a failed run")

	// Keys go through the steps; the step is in the address, survives a reload, and Back leads to the list.
	p.press("k")
	visible(t, p.byRole("region", "Step 1"))
	hasURL(t, p, `\?step=1$`)
	must(t, p.byRole("region", "Step 1").GetByRole("tab", named0("Input")).Click())
	must(t, expect.Locator(p.byRole("region", "Step 1")).ToContainText("1001"))
	p.reload()
	visible(t, p.byRole("region", "Step 1"))
	p.press("f")
	visible(t, p.byRole("region", "Step 2"))
	must(t, p.byRole("tab", "JSON").Click())
	must(t, expect.Locator(p.byRole("group", "Run as JSON")).ToContainText("MODEL_ERROR"))
	p.back()
	p.heading("Runs")
	hasURL(t, p, `agent=`+agent)
	visible(t, row)
}

// Section 7: of a failed child its cause.
func TestAFailedChildTellsItsCause(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	flow := shared.flow(t, agent)
	var made struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/workflows/"+flow+"/runs", object{"input": object{"text": "/fail No more paper."}}, &made)
	shared.reaches(t, made.RunID, "failed")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs/"+made.RunID)
	failure := p.byRole("alert", "Failure")
	must(t, expect.Locator(failure).ToContainText("No more paper."))
	// The steps of the child lie below the step that started it.
	must(t, p.button("Steps below step 0").Click())
	visible(t, p.row(`^Step 0\.0, llm, sim-1, failed`))
	must(t, p.row(`^Step 0\.0,`).Click())
	must(t, expect.Locator(p.byRole("region", "Step 0.0")).ToContainText("No more paper."))
	p.reload()
	visible(t, p.byRole("region", "Step 0.0"))
	// Both ways: to the child and from it to its parent.
	must(t, failure.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Run ")}).Click())
	must(t, expect.Locator(p.byRole("alert", "Failure")).ToContainText("MODEL_ERROR"))
	must(t, p.byRole("link", "Run "+short(made.RunID)).Click())
	p.heading("Run " + short(made.RunID))
}

// Section 3: filters are in the address; a reload, a copied link and Back show the same.
func TestFiltersOfRuns(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	bad, good := shared.run(t, agent, "/fail no"), shared.run(t, agent, "hello")
	shared.reaches(t, bad, "failed")
	shared.reaches(t, good, "succeeded")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs?agent="+agent+"&colour=red&status=odd")
	rows := p.byRole("table", "Runs").Locator("[data-id]")
	must(t, expect.Locator(rows).ToHaveCount(2))
	must(t, expect.Locator(p.GetByLabel("Agent", playwright.PageGetByLabelOptions{Exact: playwright.Bool(true)})).ToHaveValue(agent))
	must(t, p.byRole("checkbox", "failed").Check())
	must(t, expect.Locator(rows).ToHaveCount(1))
	hasURL(t, p, `\?status=failed&agent=`+agent+`$`)
	p.reload()
	must(t, expect.Locator(rows).ToHaveCount(1))
	must(t, expect.Locator(p.byRole("checkbox", "failed")).ToBeChecked())
	_, err := p.GetByLabel("Origin", playwright.PageGetByLabelOptions{Exact: playwright.Bool(true)}).SelectOption(playwright.SelectOptionValues{Values: &[]string{"trigger"}})
	must(t, err)
	visible(t, p.GetByText("Nothing fits these filters"))
	// The link to the bare page resets the filters, Back restores them.
	must(t, p.byRole("navigation", "Main").GetByRole("link", named0("Runs")).Click())
	hasURL(t, p, `/console/runs$`)
	p.back()
	hasURL(t, p, `origin=trigger`)
	must(t, p.button("Clear filters").First().Click())
	hasURL(t, p, `/console/runs$`)
	// On a phone the same is a list.
	phone := visit(t, shared, look{width: 360, height: 740})
	q := phone.signedIn(shared.person(t, "member"), "/console/runs?agent="+agent)
	must(t, expect.Locator(q.byRole("list", "Runs").Locator("li[data-id]")).ToHaveCount(2))
	must(t, expect.Locator(q.byRole("list", "Runs")).ToContainText(name))
}

// Section 4: what changes elsewhere shows without a reload, and nothing moves under the hand.
func TestRunsAreLive(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	first := shared.run(t, agent, "/delay 300ms\n/tokens 600")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs?agent="+agent)
	row := p.byRole("table", "Runs").Locator(`[data-id="` + first + `"]`)
	must(t, expect.Locator(row).ToContainText("running"))
	second := shared.run(t, agent, "hello")
	show := p.button("Show 1 new")
	visible(t, show)
	gone(t, p.byRole("table", "Runs").Locator(`[data-id="`+second+`"]`))
	must(t, show.Click())
	visible(t, p.byRole("table", "Runs").Locator(`[data-id="`+second+`"]`))
	shared.call(t, "POST", "/v1/runs/"+first+"/cancel", nil, nil)
	must(t, expect.Locator(row).ToContainText("cancelled"))
}

// Section 7: text appears as it is written; Cancel run asks first.
func TestARunningRun(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "/delay 60ms\n/tokens 2000")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs/"+run)
	text := p.byRole("group", "Text so far")
	must(t, expect.Locator(text).ToHaveAttribute("aria-busy", "true"))
	length := func() int {
		s, err := text.TextContent()
		must(t, err)
		return len(s)
	}
	before := length()
	until(t, "the text grows", func() bool { return length() > before+100 })
	must(t, expect.Locator(p.button("Follow")).ToHaveAttribute("aria-pressed", "true"))
	p.accessible("a running run")
	must(t, p.byRole("tab", "Conversation").Click())
	hasURL(t, p, `tab=conversation`)
	conversation := p.byRole("group", "Conversation")
	must(t, expect.Locator(conversation).ToContainText("simulated model"))
	must(t, p.button("Cancel run").Click())
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(ask).ToContainText(short(run)))
	must(t, expect.Locator(ask.GetByRole("button", named0("Cancel"))).ToBeFocused())
	must(t, ask.GetByRole("button", named0("Cancel run")).Click())
	must(t, expect.Locator(p.Locator(".run-status")).ToHaveText("cancelled"))
	gone(t, p.button("Cancel run"))
	must(t, expect.Locator(conversation).ToContainText("CANCELLED"))
	shared.reaches(t, run, "cancelled")
	// Run again starts another one.
	must(t, p.button("Run again").Click())
	must(t, expect.Page(p.Page).Not().ToHaveURL(regexp.MustCompile(run)))
	must(t, expect.Locator(p.Locator(".run-status")).ToHaveText("running"))
	shared.call(t, "POST", "/v1/runs/"+regexp.MustCompile(`[0-9a-f-]{36}`).FindString(p.URL())+"/cancel", nil, nil)
}

// Section 7: a waiting run has its approvals with their buttons, in place.
func TestAWaitingRunIsDecidedInPlace(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a := shared.refund(t, agent, 12.5, "arrived broken")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/runs/"+a.RunID)
	visible(t, p.region())
	visible(t, p.row(`^Step 1, tool, demo\.orders\.refund, waiting`))
	p.accessible("a waiting run")
	must(t, p.region().GetByRole("button", named0("Approve")).Click())
	must(t, expect.Locator(p.Locator(".run-status")).ToHaveText("succeeded"))
	visible(t, p.row(`^Step 1, tool, demo\.orders\.refund, succeeded`))
	must(t, expect.Locator(p.region()).ToContainText("You approved"))
}

// Section 7: a search that a policy stops is decided on the run's page, as a tool's call is.
func TestASearchThatWaitsIsDecidedInPlace(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Handbook")
	var made struct{ Agent struct{ ID string } }
	shared.call(t, "POST", "/v1/agents", object{"name": fmt.Sprintf("Reader %d", numbered.Add(1)), "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"},
		"tools": object{"builtin": []string{"kb.search"}}, "knowledge_bases": []string{base}}}, &made)
	shared.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
	shared.call(t, "POST", "/v1/tool-grants", object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow", "agent_id": made.Agent.ID}, nil)
	shared.call(t, "POST", "/v1/approval-policies", object{"name": "Searches", "tool_pattern": "builtin:kb.search", "risk": "low", "agent_id": made.Agent.ID}, nil)
	run := shared.run(t, made.Agent.ID, `/call kb.search {"query":"holidays"}`)
	shared.reaches(t, run, "waiting_approval")
	p := visit(t, shared, look{}).as("admin", "/console/runs/"+run)
	asks := p.byRole("region", "builtin:kb.search")
	click(t, within(asks, "button", "Approve"))
	must(t, expect.Locator(p.Locator(".run-status")).ToHaveText("succeeded"))
	contains(t, asks, "You approved")
}

// Section 5: the steps of a child that cannot be read are no child without steps: why is said, and they are read again.
func TestStepsOfAChildThatCannotBeRead(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	var made struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/workflows/"+shared.flow(t, agent)+"/runs", object{"input": object{"text": "hello"}}, &made)
	shared.reaches(t, made.RunID, "succeeded")
	var list struct{ Items []struct{ ID string } }
	shared.call(t, "GET", "/v1/runs?parent_run_id="+made.RunID, nil, &list)
	p := visit(t, shared, look{}).as("member", "/console/runs/"+made.RunID)
	var down atomic.Bool
	down.Store(true)
	must(t, p.Route("**/v1/runs/"+list.Items[0].ID+"?*", func(r playwright.Route) {
		if down.Load() {
			problem(r, 503, "UNAVAILABLE", map[string]string{"Retry-After": "1"})
			return
		}
		_ = r.Continue()
	}))
	click(t, p.button("Steps below step 0"))
	contains(t, p.GetByRole("alert"), "UNAVAILABLE")
	p.accessible("a child that cannot be read")
	down.Store(false)
	visible(t, p.row(`^Step 0\.0, llm, sim-1, succeeded`))
	gone(t, p.GetByRole("alert"))
}

// Section 4: the tab JSON follows a run, too.
func TestTheJSONOfARunIsLive(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	flow := shared.workflow(t, "Two nodes", object{"nodes": []object{{"id": "before", "type": "agent", "agent_id": agent, "input": "/delay 100ms\n/tokens 40"}, {"id": "afterwards", "type": "agent", "agent_id": agent, "input": "/delay 100ms\n/tokens 2000"}},
		"edges": []object{{"from": "before", "to": "afterwards"}}})
	var made struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/workflows/"+flow+"/test-run", object{"input": object{}}, &made)
	p := visit(t, shared, look{}).as("member", "/console/runs/"+made.RunID+"?tab=json")
	value := p.byRole("group", "Run as JSON")
	contains(t, value, "before")
	contains(t, value, "afterwards")
	must(t, expect.Locator(p.Locator(".run-status")).ToHaveText("running"))
	shared.call(t, "POST", "/v1/runs/"+made.RunID+"/cancel", nil, nil)
	contains(t, value, "cancelled")
}

// Section 7: a number that a browser rounds is marked, and copied as it is.
func TestLongNumbersAreCopiedWhole(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, `/call orders.get {"order_id":"1001","account":12345678901234567891}`)
	shared.reaches(t, run, "succeeded")
	v := visit(t, shared, look{})
	must(t, v.GrantPermissions([]string{"clipboard-read", "clipboard-write"}))
	p := v.as("member", "/console/runs/"+run+"?step=1")
	step := p.byRole("region", "Step 1")
	click(t, within(step, "tab", "Input"))
	contains(t, step, "Rounded")
	p.accessible("a number that is rounded")
	copied := func(button playwright.Locator) {
		t.Helper()
		click(t, button)
		must(t, expect.Locator(button).ToHaveText("Copied"))
		text, err := p.Evaluate("navigator.clipboard.readText()")
		must(t, err)
		if s := fmt.Sprint(text); !strings.Contains(s, "12345678901234567891") {
			t.Errorf("copied: %s", s)
		}
	}
	copied(within(step, "button", "Copy"))
	click(t, p.byRole("tab", "JSON"))
	copied(p.Locator(".json .toolbar").GetByRole("button"))
}

// manySteps answers for a run of n steps, of which one failed, as the service would.
func manySteps(p *tab, run string, n, failed int) {
	p.t.Helper()
	at := func(ms int) string {
		return time.Date(2026, 11, 26, 4, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond).Format("2006-01-02T15:04:05.000Z")
	}
	step := func(i int) object {
		s := object{"idx": i, "kind": "llm", "name": "sim-1", "status": "succeeded", "tokens_in": 10, "tokens_out": 5, "cost_usd": 0.0001, "started_at": at(i * 400), "finished_at": at(i*400 + 300)}
		if i%2 == 1 {
			s["kind"], s["name"] = "tool", "demo.orders.get"
		}
		if i == failed {
			s["status"] = "failed"
		}
		return s
	}
	steps := make([]object, n)
	for i := range steps {
		steps[i] = step(i)
	}
	whole := object{"run": object{"id": run, "status": "failed", "agent_id": nil, "agent_version": nil, "workflow_id": nil, "thread_id": nil, "parent_run_id": nil, "asked": "Look at all orders.",
		"error": object{"code": "LIMIT_EXCEEDED", "message": "More than 2000 steps."}, "origin": object{"kind": "api_key", "id": nil}, "end_user_id": nil, "tokens_in": 10 * n, "tokens_out": 5 * n, "cost_usd": 0.2,
		"created_at": at(0), "started_at": at(0), "finished_at": at(n * 400)}, "steps": steps}
	must(p.t, p.Route(regexp.MustCompile("/v1/runs/"+run), func(r playwright.Route) {
		var out any = whole
		var idx int
		if _, err := fmt.Sscanf(r.Request().URL()[strings.Index(r.Request().URL(), run)+len(run):], "/steps/%d", &idx); err == nil {
			s := step(idx)
			s["input"], s["output"] = object{"order_id": fmt.Sprint(idx)}, object{"text": strings.Repeat("long ", 50_000), "then": "the end"}
			out = object{"step": s}
		}
		body, err := json.Marshal(out)
		if err == nil {
			err = r.Fulfill(playwright.RouteFulfillOptions{Body: body, ContentType: playwright.String("application/json")})
		}
		if err != nil {
			p.t.Error(err)
		}
	}))
}

// Section 7, Copy as curl: where the browser has no clipboard, as over plain HTTP, the command is shown and selected.
func TestACommandThatCannotBeCopiedIsShown(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "/say done")
	shared.reaches(t, run, "succeeded")
	v := visit(t, shared, look{})
	must(t, v.AddInitScript(playwright.Script{Content: playwright.String(`Object.defineProperty(navigator, "clipboard", { value: undefined });`)}))
	p := v.as("admin", "/console/runs/"+run)
	click(t, p.button("Copy as curl"))
	dialog := p.dialog("Copy as curl")
	command := field(dialog, "Command")
	must(t, expect.Locator(command).ToHaveValue(regexp.MustCompile("^curl -sS ")))
	must(t, expect.Locator(command).ToBeFocused())
	selected, err := command.Evaluate("(e) => e.selectionEnd - e.selectionStart === e.value.length", nil)
	must(t, err)
	if selected != true {
		t.Error("the command is not selected")
	}
	p.accessible("a command that cannot be copied")
	click(t, within(dialog, "button", "Close"))
	gone(t, dialog)
	gone(t, p.GetByText("The console failed"))
}

// Section 8: a run of 2,000 steps is usable with at most 3,000 nodes; values come 64 KiB at a time.
func TestARunOfManySteps(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs")
	p.heading("Runs")
	run := "01a2161d-0000-7000-8000-0000000007d0"
	manySteps(p, run, 2000, 1500)
	nodes := func(when string) {
		t.Helper()
		n, err := p.Evaluate("document.getElementsByTagName('*').length")
		must(t, err)
		if n.(int) > 3000 {
			t.Errorf("%s: %d nodes", when, n)
		}
	}
	p.goTo("/console/runs/" + run)
	visible(t, p.row("^Step 1500, llm, sim-1, failed, 300 ms$"))
	must(t, expect.Locator(p.byRole("grid", "Steps")).ToHaveAttribute("aria-rowcount", "2001"))
	nodes("open")
	step := p.byRole("region", "Step 1500")
	until(t, "64 KiB of the output are there", func() bool {
		s, err := step.TextContent()
		must(t, err)
		return len(s) > 10_000 && len(s) < 66_000
	})
	gone(t, step.GetByText("the end"))
	for range 3 {
		must(t, step.GetByRole("button", named0("Show more")).Click())
	}
	visible(t, step.GetByText("the end"))
	// All of it by keys: to both ends, one by one, to the failed one.
	must(t, p.row("^Step 1500,").Focus())
	p.press("Home")
	must(t, expect.Locator(p.row("^Step 0,")).ToBeFocused())
	p.press("End")
	must(t, expect.Locator(p.row("^Step 1999,")).ToBeFocused())
	p.press("k", "k")
	visible(t, p.byRole("region", "Step 1997"))
	p.press("f")
	visible(t, p.byRole("region", "Step 1500"))
	nodes("after all keys")
	must(t, p.byRole("checkbox", "Only failed").Check())
	must(t, expect.Locator(p.byRole("grid", "Steps")).ToHaveAttribute("aria-rowcount", "2"))
}

// Section 6 (and everywhere): texts of strangers are plain, what cannot be seen in them is visible.
func TestHostileTextsOfRuns(t *testing.T) {
	t.Parallel()
	evil := "<img src=x onerror=alert(1)>\u202e\u200b\x1b[31m"
	var made struct{ Agent struct{ ID string } }
	shared.call(t, "POST", "/v1/agents", object{"name": "Evil " + evil[:28] + "\u202e", "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}}}, &made)
	shared.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
	var thread struct{ ID string }
	shared.call(t, "POST", "/v1/threads", object{"agent_id": made.Agent.ID, "title": evil}, &thread)
	var said struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/threads/"+thread.ID+"/messages", object{"content": "/say " + evil}, &said)
	shared.reaches(t, said.RunID, "succeeded")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/runs?agent="+made.Agent.ID)
	p.OnDialog(func(d playwright.Dialog) {
		t.Errorf("a dialog: %s", d.Message())
		_ = d.Dismiss()
	})
	for _, path := range []string{"runs?agent=" + made.Agent.ID, "runs/" + said.RunID, "runs/" + said.RunID + "?tab=conversation", "runs/" + said.RunID + "?tab=json", "runs/" + said.RunID + "?step=0", "threads/" + thread.ID, "playground?thread=" + thread.ID} {
		p.goTo("/console/" + path)
		must(t, expect.Locator(p.Locator("main")).ToContainText("U+202E"))
		must(t, expect.Locator(p.Locator(".loading")).ToHaveCount(0))
		found, err := p.Evaluate(`() => document.querySelectorAll("main img, main script").length + (/[\u202e\u200b\u001b]/.test(document.querySelector("main").textContent) ? 1000 : 0)`)
		must(t, err)
		if found != 0 {
			t.Errorf("%s: %v", path, found)
		}
	}
}

// Section 5: the playground streams an answer, shows what happens, decides in place, and links to runs.
func TestThePlayground(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	other, name := shared.policed(t)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/playground?agent="+agent)
	p.heading("Playground")
	message, log := p.box("Message"), p.byRole("log", "Conversation")
	must(t, message.Fill("/say Good morning."))
	p.press("Enter")
	must(t, expect.Locator(log).ToContainText("Good morning."))
	must(t, expect.Locator(message).ToHaveValue(""))
	must(t, expect.Locator(p.byRole("region", "Events")).ToContainText("run.completed"))
	hasURL(t, p, `agent=`+agent+`&thread=`)
	must(t, expect.Locator(log).ToHaveAttribute("aria-busy", "false"))
	must(t, message.Fill(`/call demo.orders.refund {"order_id":"1001","amount":3,"reason":"late"}`+"\n/say Refunded."))
	must(t, p.button("Send").Click())
	visible(t, log.GetByRole("region", named0(tool)))
	p.accessible("the playground with an approval")
	must(t, log.GetByRole("button", named0("Approve")).Click())
	must(t, expect.Locator(p.byRole("region", "Events").Locator("summary", playwright.LocatorLocatorOptions{HasText: "run.completed"})).ToHaveCount(2))
	must(t, expect.Locator(log.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Run ")})).ToHaveCount(2))
	// A reload shows the same conversation.
	p.reload()
	must(t, expect.Locator(log).ToContainText("Good morning."))
	// Stop ends an answer under way.
	must(t, message.Fill("/delay 100ms\n/tokens 2000"))
	p.press("Enter")
	must(t, expect.Locator(log).ToContainText("these words come from"))
	must(t, p.button("Stop").Click())
	must(t, expect.Locator(log).ToContainText("CANCELLED"))
	gone(t, p.button("Stop"))
	must(t, p.button("New thread").Click())
	must(t, expect.Locator(log).Not().ToContainText("Good morning."))
	p.back()
	must(t, expect.Locator(log).ToContainText("Good morning."))
	// What is typed stays when another agent is chosen, and leaving asks.
	must(t, message.Fill("Do not lose this."))
	pick(t, field(p.Locator("main"), "Agent"), name)
	hasURL(t, p, "agent="+other)
	must(t, expect.Locator(message).ToHaveValue("Do not lose this."))
	home := p.byRole("navigation", "Main").GetByRole("link", named0("Home"))
	click(t, home)
	click(t, within(p.alertdialog("Leave without saving?"), "button", "Cancel"))
	must(t, expect.Locator(message).ToHaveValue("Do not lose this."))
	// An answer that comes late leads nobody back.
	held := make(chan struct{})
	must(t, p.Route("**/messages", func(r playwright.Route) {
		go func() {
			<-held
			_ = r.Continue()
		}()
	}))
	click(t, p.button("Send"))
	click(t, home)
	click(t, within(p.alertdialog("Leave without saving?"), "button", "Leave"))
	p.heading("Home")
	_, err := p.ExpectResponse(regexp.MustCompile("/messages$"), func() error { close(held); return nil })
	must(t, err)
	_, err = p.Evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
	must(t, err)
	if strings.Contains(p.URL(), "agent=") {
		t.Errorf("led to %s", p.URL())
	}
}

// Section 8: axe finds nothing serious on these pages, in light, dark and at 360 px.
func TestTheTourOfRuns(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("high"))
	var thread struct{ ID string }
	shared.call(t, "POST", "/v1/threads", object{"agent_id": agent, "title": "Order 1001"}, &thread)
	say := func(text string) string {
		var said struct {
			RunID string `json:"run_id"`
		}
		shared.call(t, "POST", "/v1/threads/"+thread.ID+"/messages", object{"content": text}, &said)
		return said.RunID
	}
	shared.reaches(t, say("/think The order is on its way.\n/call demo.orders.get {\"order_id\":\"1001\"}\n/say It left the warehouse."), "succeeded")
	bad := say("/call demo.orders.get {\"order_id\":\"none\"}\n/fail The provider is overloaded.")
	shared.reaches(t, bad, "failed")
	waits := shared.refund(t, agent, 12.5, "arrived broken").RunID
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {width: 1360, height: 850}, "dark": {width: 1360, height: 850, dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/runs?agent="+agent)
			for _, stop := range []struct{ path, heading string }{
				{"runs?agent=" + agent, "Runs"},
				{"runs?agent=" + agent + "&origin=trigger", "Runs"},
				{"runs/" + bad, "Run " + short(bad)},
				{"runs/" + bad + "?tab=conversation", "Run " + short(bad)},
				{"runs/" + bad + "?tab=json", "Run " + short(bad)},
				{"runs/" + waits, "Run " + short(waits)},
				{"threads/" + thread.ID, "Order 1001"},
				{"playground?agent=" + agent + "&thread=" + thread.ID, "Playground"},
			} {
				p.goTo("/console/" + stop.path)
				p.heading(stop.heading)
				must(t, expect.Locator(p.Locator(".loading")).ToHaveCount(0))
				p.accessible(stop.path + " in " + name)
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("%s scrolls sideways by %v", stop.path, wide)
				}
			}
			must(t, p.box("Message").Fill("hello"))
			must(t, p.Locator("summary", playwright.PageLocatorOptions{HasText: "Options"}).Click())
			p.accessible("the options in " + name)
			p.goTo("/console/runs/" + waits)
			must(t, p.button("Cancel run").Click())
			visible(t, p.GetByRole("alertdialog"))
			p.accessible("Cancel run in " + name)
			p.press("Escape")
			must(t, expect.Locator(p.button("Cancel run")).ToBeFocused())
		})
	}
}

// An answer is read as Markdown, also while it is written; a link shows its host, and what cannot be seen is visible.
func TestAnAnswerIsMarkdown(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "/say - **first** and `code`\n/say - [the shop](https://shop.example/a)\n/say - hidden \u202eend <b>no</b>")
	shared.reaches(t, run, "succeeded")
	p := visit(t, shared, look{}).as("member", "/console/runs/"+run+"?tab=conversation")
	said := p.Locator(".said.assistant .marked")
	must(t, expect.Locator(said.Locator("li")).ToHaveCount(3))
	must(t, expect.Locator(said.Locator("strong")).ToHaveText("first"))
	must(t, expect.Locator(said.Locator("code")).ToHaveText("code"))
	link := said.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: "the shop"})
	must(t, expect.Locator(link).ToHaveAttribute("rel", "noopener noreferrer nofollow"))
	contains(t, said, "(shop.example)")
	contains(t, said, "U+202E")
	contains(t, said, "<b>no</b>")
	p.accessible("an answer in Markdown")
}
