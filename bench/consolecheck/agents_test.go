package consolecheck

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// Section 5, agents: one is made, changed, compared, published and archived.
func TestAgents(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/agents")
	p.heading("Agents")
	click(t, p.button("New agent"))
	dialog := p.dialog("New agent")
	p.accessible("New agent")
	must(t, field(dialog, "Name").Fill(strings.Repeat("x", 1000)))
	must(t, field(dialog, "Instructions").Fill("Answer in one sentence."))
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Name")).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(field(dialog, "Instructions")).ToHaveValue("Answer in one sentence."))
	must(t, field(dialog, "Name").Fill("Clerk "+hostile))
	must(t, within(dialog, "button", "Create").Dblclick())
	shown := "Clerk <img src=x onerror=alert(1)>[U+202E]reversed[U+0007]"
	p.heading(shown)
	if n := v.called("POST /v1/agents"); n != 2 {
		t.Errorf("%d creates: one was refused, one made by a double click", n)
	}
	contains(t, p.Locator("main"), "not published yet")

	// A change is saved as the next version; leaving it unsaved asks.
	must(t, field(p.Locator("main"), "Instructions").Fill("Answer in two sentences."))
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Runs")))
	click(t, within(p.GetByRole("alertdialog"), "button", "Cancel"))
	// What is typed while it is saved would be lost: nothing can be typed.
	held := make(chan struct{})
	must(t, p.Route("**/versions", func(r playwright.Route) {
		go func() {
			<-held
			_ = r.Continue()
		}()
	}))
	click(t, p.button("Save draft"))
	must(t, expect.Locator(field(p.Locator("main"), "Instructions")).ToBeDisabled())
	close(held)
	hasURL(t, p, `/console/agents/[0-9a-f-]+\?version=2$`)
	pick(t, p.Locator("main").GetByLabel("Compare with"), "1")
	changes := p.byRole("region", "Changes")
	contains(t, changes, "instructions")
	contains(t, changes.Locator("del"), "Answer in one sentence.")
	contains(t, changes.Locator("ins"), "Answer in two sentences.")
	hasURL(t, p, `version=2&compare=1$`)
	p.reload()
	visible(t, changes)
	p.accessible("changes of an agent")

	// What is refused at a place that the form does not draw is told as well, until something is changed.
	refused := make(chan struct{}, 1)
	refused <- struct{}{}
	must(t, p.Route("**/versions", func(r playwright.Route) {
		select {
		case <-refused:
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(400), ContentType: playwright.String("application/problem+json"),
				Body: `{"title":"Validation failed","status":400,"code":"VALIDATION","detail":"manifest.nowhere: is not known"}`})
		default:
			_ = r.Continue()
		}
	}))
	form := p.Locator("form.manifest")
	must(t, field(form, "Instructions").Fill("Answer in three sentences."))
	click(t, p.button("Save draft"))
	contains(t, form.GetByRole("alert"), "manifest.nowhere: is not known")
	must(t, field(form, "Instructions").Fill("Answer in two sentences."))
	gone(t, form.GetByRole("alert"))

	// As JSON, with what is wrong at its place.
	click(t, p.byRole("tab", "JSON"))
	text := p.box("JSON")
	was := written(t, text)
	rewrite(t, text, was+"}")
	must(t, expect.Locator(text).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(p.button("Save draft")).ToBeDisabled())
	var manifest map[string]any
	must(t, json.Unmarshal([]byte(was), &manifest))
	manifest["max_turns"] = -1
	bad, err := json.Marshal(manifest)
	must(t, err)
	rewrite(t, text, string(bad))
	click(t, p.button("Save draft"))
	must(t, expect.Locator(text).ToHaveAttribute("aria-invalid", "true"))
	rewrite(t, text, was)
	must(t, expect.Locator(p.button("Save draft")).ToBeDisabled())

	click(t, p.button("Publish"))
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	p.accessible("publish an agent")
	click(t, within(ask, "button", "Publish"))
	contains(t, p.Locator("main"), "version 2 is published")
	click(t, p.byRole("tab", "Versions"))
	must(t, expect.Locator(p.byRole("table", "Versions").Locator("tr[data-id]")).ToHaveCount(2))
	p.accessible("versions of an agent")
	click(t, p.Locator("main").GetByRole("tab").Last())
	contains(t, p.Locator("main"), "It may call no tools")

	click(t, p.button("Archive"))
	must(t, expect.Locator(within(ask, "button", "Archive")).ToBeDisabled())
	contains(t, ask, "Its embed keys are revoked for good, and its triggers are paused.")
	must(t, ask.GetByRole("textbox").Fill(shown))
	p.accessible("archive an agent")
	click(t, within(ask, "button", "Archive"))
	p.heading("Agents")
}

// Members read agents and write none; what is not there says so.
func TestAgentsForMembers(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	p := visit(t, shared, look{}).as("member", "/console/agents/"+agent)
	p.heading(name)
	must(t, expect.Locator(p.box("Instructions")).ToBeDisabled())
	for _, b := range []string{"Save draft", "Publish", "Archive"} {
		must(t, expect.Locator(p.button(b)).ToHaveCount(0))
	}
	p.goTo("/console/agents")
	p.heading("Agents")
	must(t, expect.Locator(p.button("New agent")).ToHaveCount(0))
	p.goTo("/console/agents/0193a000-0000-7000-8000-000000000000")
	p.heading("Not found")
	// What an agent may call follows the policies, of which a member's feed says nothing.
	p.goTo("/console/agents/" + agent + "?tab=tools")
	row := p.rowOf("Callable tools", "demo.orders.get")
	contains(t, row, "allowed")
	shared.call(t, "POST", "/v1/approval-policies", object{"name": "Reads", "tool_pattern": "demo.orders.get", "agent_id": agent}, nil)
	contains(t, row, "asks a person")
	// An unknown version is ignored, as all unknown values of the address are.
	p.goTo("/console/agents/" + agent + "?version=99&compare=98")
	p.heading(name)
	must(t, expect.Locator(p.Locator("main").GetByLabel("Version", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)})).ToHaveValue("1"))
	gone(t, p.GetByRole("alert"))
	must(t, p.Route("**/v1/agents?*", func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"),
			Body: `{"title":"Internal","status":500,"code":"INTERNAL","detail":"It broke."}`})
	}))
	p.goTo("/console/agents")
	contains(t, p.GetByRole("alert"), "It broke.")
	must(t, p.Unroute("**/v1/agents?*"))
	click(t, p.button("Try again"))
	visible(t, p.byRole("table", "Agents"))
}

// Section 8: agents, webhooks and the audit in light, dark and at 360 px.
func TestTheTourOfAgentsWebhooksAndAudit(t *testing.T) {
	agent, name := shared.policed(t)
	hook := shared.hook(t, newReceiver(t).url, "run.completed", "run.failed")
	for look, l := range map[string]look{"light": {}, "dark": {dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(look, func(t *testing.T) {
			t.Parallel()
			p := visit(t, shared, l).as("admin", "/console/agents")
			for _, page := range []struct{ path, heading string }{
				{"agents", "Agents"}, {"agents/" + agent, name}, {"webhooks", "Webhooks"},
				{"webhooks/" + hook, "Webhooks"}, {"audit", "Audit"},
			} {
				p.goTo("/console/" + page.path)
				p.heading(page.heading)
				must(t, expect.Locator(p.Locator("[aria-busy=true]")).ToHaveCount(0))
				p.accessible(page.path + " in " + look)
				p.narrow(page.path)
			}
		})
	}
}
