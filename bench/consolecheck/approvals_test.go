package consolecheck

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

func named0(name string) playwright.LocatorGetByRoleOptions {
	return playwright.LocatorGetByRoleOptions{Name: name, Exact: playwright.Bool(true)}
}

const tool = "demo.orders.refund"

func (p *tab) items() playwright.Locator { return p.byRole("list", "Approvals").Locator("li[data-id]") }
func (p *tab) item(id string) playwright.Locator {
	return p.byRole("list", "Approvals").Locator(`li[data-id="` + id + `"]`)
}
func (p *tab) region() playwright.Locator { return p.byRole("region", tool) }

// Section 6: low and medium at once, high and critical after a question that shows the arguments.
func TestApproving(t *testing.T) {
	t.Parallel()
	low, _ := shared.policed(t, policy("low"))
	high, _ := shared.policed(t, policy("critical"))
	a, b := shared.refund(t, low, 12.5, "broken"), shared.refund(t, high, 13.5, "late")
	email := shared.person(t, "admin")
	v := visit(t, shared, look{})
	p := v.signedIn(email, "/console/approvals/"+a.ID)
	visible(t, p.region())
	must(t, expect.Locator(p.region().GetByRole("table", playwright.LocatorGetByRoleOptions{Name: "Arguments"})).ToContainText("12.5"))
	must(t, expect.Locator(p.region()).ToContainText("0 of 1"))
	p.accessible("an open approval")
	must(t, p.region().GetByRole("button", named0("Approve")).Dblclick())
	must(t, expect.Locator(p.region().GetByRole("status")).ToContainText("Approved"))
	until(t, "it is approved", func() bool { return shared.approval(t, a.ID).Status == "approved" })
	if n := v.called("POST /v1/approvals/" + a.ID); n != 1 {
		t.Errorf("a double click made %d calls", n)
	}
	// It was opened by its link: it stays.
	if !strings.Contains(p.URL(), a.ID) {
		t.Errorf("left for %s", p.URL())
	}
	p.goTo("/console/approvals/" + b.ID)
	must(t, p.region().GetByRole("button", named0("Approve")).Click())
	ask := p.byRole("alertdialog", "Approve "+tool+"?")
	visible(t, ask)
	must(t, expect.Locator(ask).ToContainText("13.5"))
	must(t, expect.Locator(ask.GetByRole("button", named0("Approve"))).ToBeFocused())
	p.accessible("the question")
	p.press("Escape")
	gone(t, ask)
	must(t, expect.Locator(p.region().GetByRole("button", named0("Approve"))).ToBeFocused())
	if shared.approval(t, b.ID).Status != "pending" {
		t.Error("Escape decided")
	}
	p.press("a")
	must(t, expect.Locator(ask.GetByRole("button", named0("Approve"))).ToBeFocused())
	p.press("Enter")
	until(t, "it is approved", func() bool { return shared.approval(t, b.ID).Status == "approved" })
}

// Section 6: Edit, by form and by JSON; what is wrong stands at its field.
func TestEditingArguments(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("high"))
	a, b := shared.refund(t, agent, 12.5, "broken"), shared.refund(t, agent, 20, "late")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/approvals/"+a.ID)
	visible(t, p.region())
	p.press("e")
	dialog := p.byRole("dialog", "Edit arguments")
	amount := dialog.GetByRole("textbox", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Amount")})
	must(t, amount.Fill("none"))
	must(t, expect.Locator(amount).ToHaveAttribute("aria-invalid", "true"))
	must(t, amount.Fill("10"))
	must(t, expect.Locator(dialog.GetByRole("list", named0List("Changes"))).ToHaveText("amount 12.5 → 10"))
	p.accessible("Edit arguments")
	must(t, dialog.GetByRole("textbox", named0("Note")).Fill("Half is enough."))
	p.picture("console-edit")
	must(t, dialog.GetByRole("button", named0("Approve with changes")).Click())
	gone(t, dialog)
	until(t, "it is edited", func() bool { return shared.approval(t, a.ID).Status == "edited" })
	if d := shared.approval(t, a.ID).Decisions[0]; d.EditedArgs["amount"] != 10.0 || d.Feedback == nil || *d.Feedback != "Half is enough." {
		t.Errorf("%+v", d)
	}
	p.goTo("/console/approvals/" + b.ID)
	visible(t, p.region())
	p.press("e")
	must(t, p.byRole("tab", "JSON").Click())
	must(t, p.box("JSON").Fill(`{"order_id": "1001"`))
	must(t, expect.Locator(p.box("JSON")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.box("JSON").Fill(`{"order_id": "1001", "amount": "much", "reason": "late", "idempotency_key": ""}`))
	must(t, expect.Locator(dialog.GetByRole("button", named0("Approve with changes"))).ToBeDisabled())
	p.press("Escape")
	discard := p.byRole("alertdialog", "Discard what you typed?")
	must(t, discard.GetByRole("button", named0("Discard")).Click())
	gone(t, dialog)
}

// Sections 5 and 6: a task of a workflow is answered with its form, and what the form refuses stands at its field.
func TestAnsweringATask(t *testing.T) {
	t.Parallel()
	id := shared.workflow(t, "Asks a person", object{"nodes": []object{{"id": "inspect", "type": "human_task", "title": "What did {{input.what}} weigh?", "risk": "low",
		"form": object{"type": "object", "required": []string{"grams", "shelf"}, "properties": object{"grams": object{"type": "number"}, "shelf": object{"type": "string", "pattern": "^[A-Z][0-9]$"}, "intact": object{"type": "boolean"}}}}},
		"edges": []object{}})
	asked := func() (a approval) {
		t.Helper()
		var run struct {
			RunID string `json:"run_id"`
		}
		shared.call(t, "POST", "/v1/workflows/"+id+"/test-run", object{"input": object{"what": "the parcel"}}, &run)
		shared.reaches(t, run.RunID, "waiting_approval")
		var list struct{ Items []approval }
		shared.call(t, "GET", "/v1/approvals?run_id="+run.RunID, nil, &list)
		return list.Items[0]
	}
	a := asked()
	p := visit(t, shared, look{}).as("admin", "/console/approvals/"+a.ID)
	task := p.byRole("region", "workflow:human_task")
	must(t, task.GetByRole("button", named0("Edit")).Click())
	dialog := p.byRole("dialog", "Edit arguments")
	contains(t, dialog, "What did the parcel weigh?")
	grams := dialog.GetByRole("textbox", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Grams")})
	shelf := dialog.GetByRole("textbox", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Shelf")})
	send := dialog.GetByRole("button", named0("Approve with changes"))
	must(t, expect.Locator(send).ToBeDisabled())
	must(t, grams.Fill("830"))
	must(t, shelf.Fill("somewhere"))
	must(t, expect.Locator(dialog.GetByRole("list", named0("Changes")).GetByRole("listitem")).ToHaveText([]string{"grams added 830", `shelf added "somewhere"`}))
	p.accessible("the form of a task")
	must(t, send.Click())
	must(t, expect.Locator(shelf).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(grams).ToHaveValue("830"))
	must(t, shelf.Fill("B7"))
	must(t, send.Click())
	gone(t, dialog)
	until(t, "it is edited", func() bool { return shared.approval(t, a.ID).Status == "edited" })
	if got := shared.approval(t, a.ID).Decisions[0].EditedArgs; got["grams"] != 830.0 || got["shelf"] != "B7" || len(got) != 2 {
		t.Errorf("the answer is %v", got)
	}
	shared.reaches(t, a.RunID, "succeeded")

	// An answer in words is the output as well, and the console says so.
	b := asked()
	p.goTo("/console/approvals/" + b.ID)
	must(t, task.GetByRole("button", named0("Respond")).Click())
	words := p.byRole("dialog", "Respond to workflow:human_task")
	contains(t, words, "the text is the node's output")
	must(t, words.GetByRole("textbox", named0("Answer")).Fill("It was lost."))
	must(t, words.GetByRole("button", named0("Respond")).Click())
	contains(t, task.GetByRole("status"), "Responded: the answer is the node's output")
	shared.reaches(t, b.RunID, "succeeded")
}

// Section 6: the service says when the time is over; a clock that runs ahead closes no button.
func TestAClockThatRunsAhead(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a := shared.refund(t, agent, 12.5, "broken")
	v := visit(t, shared, look{})
	must(t, v.AddInitScript(playwright.Script{Content: playwright.String("const real = Date.now; Date.now = () => real() + 400 * 86_400_000;")}))
	p := v.as("admin", "/console/approvals/"+a.ID)
	visible(t, p.region())
	contains(t, p.region(), "no time")
	must(t, p.region().GetByRole("button", named0("Approve")).Click())
	until(t, "it is approved", func() bool { return shared.approval(t, a.ID).Status == "approved" })
}

// Section 2: an approval that a higher role decides has no access, and the role that it needs.
func TestAnApprovalAboveOnesRole(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low", "approver_role", "owner"))
	run := shared.run(t, agent, `/call orders.refund {"order_id":"1001","amount":12.5,"reason":"broken"}`)
	shared.reaches(t, run, "waiting_approval")
	var id string
	must(t, shared.database(t).QueryRow(t.Context(), "SELECT id::text FROM approvals WHERE run_id = $1", run).Scan(&id)) // the key of the tests is an admin too
	p := visit(t, shared, look{}).as("admin", "/console/approvals/"+id)
	p.heading("No access")
	contains(t, p.Locator("main"), "decided by the role owner. Yours is admin.")
	gone(t, p.byRole("region", "No access"))
	must(t, p.byRole("navigation", "Main").GetByRole("link", playwright.LocatorGetByRoleOptions{Name: "Approvals"}).Click())
	p.heading("Approvals")
}

func named0List(name string) playwright.LocatorGetByRoleOptions { return named0(name) }

// Section 6: Reject and Respond; the list opens the next one; the 500 ms rule; keys.
func TestTheQueue(t *testing.T) {
	t.Parallel()
	s := shared
	agent, name := s.policed(t, policy("low"))
	var all []approval
	for i := range 4 {
		all = append(all, s.refund(t, agent, float64(10+i), "broken"))
	}
	v := visit(t, s, look{})
	p := v.signedIn(s.person(t, "admin"), "/console/approvals?agent="+agent)
	must(t, expect.Locator(p.items()).ToHaveCount(4))
	must(t, expect.Page(p.Page).ToHaveTitle(regexp.MustCompile(`^\(\d+\) Approvals · svc$`)))
	visible(t, p.GetByRole("link", playwright.PageGetByRoleOptions{Name: regexp.MustCompile(`^Approvals, \d+ waiting$`)}))
	p.accessible("the list")
	first := p.items().First().GetByRole("link")
	must(t, expect.Locator(first).ToHaveAccessibleName(regexp.MustCompile(`^demo\.orders\.refund, low risk, \d+ h left$`)))
	p.press("j", "Enter")
	visible(t, p.region())
	must(t, expect.Locator(p.region()).ToContainText(name))
	opened := func() string {
		path, _, _ := strings.Cut(p.URL(), "?")
		return path[strings.LastIndexByte(path, '/')+1:]
	}
	one := opened()
	must(t, expect.Locator(p.region().GetByRole("button", named0("Approve"))).ToBeEnabled())
	p.press("r")
	must(t, p.byRole("dialog", "Reject "+tool).GetByRole("textbox", named0("Reason")).Fill("No receipt."))
	must(t, p.byRole("dialog", "Reject "+tool).GetByRole("button", named0("Reject")).Click())
	until(t, "the next one opens", func() bool { return opened() != one })
	two := opened()
	if a := s.approval(t, one); a.Status != "rejected" || *a.Decisions[0].Feedback != "No receipt." {
		t.Errorf("%+v", a)
	}
	// What was decided stays in place, with its new state.
	must(t, expect.Locator(p.item(one).GetByRole("link")).ToHaveAccessibleName(tool+", rejected"))
	must(t, expect.Locator(p.items()).ToHaveCount(4))
	must(t, expect.Locator(p.region().GetByRole("button", named0("Approve"))).ToBeEnabled())
	p.press("b")
	answer := p.byRole("dialog", "Respond to "+tool)
	must(t, expect.Locator(answer.GetByRole("button", named0("Respond"))).ToBeDisabled())
	must(t, answer.GetByRole("textbox", named0("Answer")).Fill("Ask for a photo."))
	// At once when the next item comes under the buttons, neither key nor click decides.
	_, err := p.Evaluate(`() => {
		const open = () => document.querySelector("section.open-item");
		const before = open();
		const seen = new MutationObserver(() => {
			const approve = open() && open() !== before && [...open().querySelectorAll("button")].find((b) => b.textContent.trim() === "Approve");
			if (!approve) return;
			seen.disconnect();
			window.wasDisabled = approve.disabled;
			approve.click();
			document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "a", bubbles: true, cancelable: true }));
		});
		seen.observe(document.body, { subtree: true, childList: true });
	}`)
	must(t, err)
	must(t, answer.GetByRole("button", named0("Respond")).Click())
	until(t, "the next one opens", func() bool { return opened() != two })
	three := opened()
	must(t, expect.Locator(p.region().GetByRole("button", named0("Approve"))).ToBeEnabled())
	if was, err := p.Evaluate("window.wasDisabled"); err != nil || was != true {
		t.Errorf("the button was disabled: %v, %v", was, err)
	}
	if got := s.approval(t, three).Status; got != "pending" {
		t.Errorf("decided within 500 ms: %s", got)
	}
	// Single keys: never in fields, and not if they are switched off.
	p.press("?")
	must(t, p.byRole("dialog", "Keyboard shortcuts").GetByRole("checkbox", named0("Single-key shortcuts")).Uncheck())
	p.press("Escape")
	p.press("a")
	p.press("Escape")
	gone(t, p.region())
	if got := s.approval(t, three).Status; got != "pending" {
		t.Errorf("decided by a key that is off: %s", got)
	}
}

// A decision whose answer comes late leads nobody away from where they went meanwhile, and nothing that is typed there is lost.
func TestALateDecisionLeadsNobodyAway(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	for i := range 4 {
		shared.refund(t, agent, float64(10+i), "broken")
	}
	p := visit(t, shared, look{}).as("admin", "/console/approvals?agent="+agent)
	must(t, expect.Locator(p.items()).ToHaveCount(4))
	var ids []string
	for i := range 4 {
		id, err := p.items().Nth(i).GetAttribute("data-id")
		must(t, err)
		ids = append(ids, id)
	}
	under, answer := p.held("**/decision", "POST")
	approve := within(p.region(), "button", "Approve")
	answered := func() {
		t.Helper()
		_, err := p.ExpectResponse(regexp.MustCompile("/decision$"), func() error { answer <- struct{}{}; return nil })
		must(t, err)
		p.drawn()
	}
	// To another item.
	click(t, p.item(ids[0]).GetByRole("link"))
	click(t, approve)
	<-under
	click(t, p.item(ids[2]).GetByRole("link"))
	hasURL(t, p, ids[2])
	must(t, expect.Locator(within(p.region(), "button", "Reject")).ToBeEnabled())
	p.press("r")
	reason := field(p.dialog("Reject "+tool), "Reason")
	must(t, reason.Fill("No receipt."))
	answered()
	must(t, expect.Locator(reason).ToHaveValue("No receipt."))
	hasURL(t, p, ids[2])
	must(t, expect.Locator(p.item(ids[0]).GetByRole("link")).ToHaveAccessibleName(tool+", approved"))
	// To another page, from an item that the list opened.
	p.press("Escape")
	click(t, within(p.alertdialog("Discard what you typed?"), "button", "Discard"))
	click(t, approve)
	<-under
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Usage")))
	p.heading("Usage")
	answered()
	hasURL(t, p, "/console/usage$")
	// Who stays is led to the next one, as ever.
	p.goTo("/console/approvals?agent=" + agent)
	must(t, expect.Locator(p.items()).ToHaveCount(2))
	click(t, p.item(ids[1]).GetByRole("link"))
	click(t, approve)
	<-under
	answered()
	hasURL(t, p, ids[3])
}

// Section 6: one that the search opened was opened by its link: it stays, on the page of the list as elsewhere.
func TestAnApprovalFromTheSearchStays(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a, b := shared.refund(t, agent, 12.5, "broken"), shared.refund(t, agent, 13.5, "late")
	p := visit(t, shared, look{}).as("admin", "/console/approvals?agent="+agent)
	must(t, expect.Locator(p.items()).ToHaveCount(2))
	p.press("Control+k")
	must(t, p.byRole("dialog", "Search").GetByRole("combobox", named0("Search")).Fill(short(a.ID)))
	visible(t, p.byRole("dialog", "Search").GetByRole("option").First())
	p.press("ArrowDown", "Enter")
	hasURL(t, p, a.ID)
	must(t, p.region().GetByRole("button", named0("Approve")).Click())
	contains(t, p.region().GetByRole("status"), "Approved, done")
	hasURL(t, p, a.ID)
	if got := shared.approval(t, b.ID).Status; got != "pending" {
		t.Errorf("the other one is %s", got)
	}
	// From the list the next one opens, as before.
	c := shared.refund(t, agent, 14.5, "lost")
	p.goTo("/console/approvals?agent=" + agent)
	must(t, expect.Locator(p.items()).ToHaveCount(2))
	click(t, p.item(b.ID).GetByRole("link"))
	hasURL(t, p, b.ID)
	must(t, p.region().GetByRole("button", named0("Approve")).Click())
	hasURL(t, p, c.ID)
}

// Section 6: two approvers in two browsers, and one who is too late. The first one edits: the second
// one is shown the arguments that will run, and who changed what.
func TestTwoApprovers(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("high", "required_approvals", 2))
	a := shared.refund(t, agent, 99, "all of it")
	p := visit(t, shared, look{}).signedIn(shared.person(t, "admin"), "/console/approvals/"+a.ID)
	q := visit(t, shared, look{}).signedIn(shared.person(t, "admin"), "/console/approvals/"+a.ID)
	late := visit(t, shared, look{}).signedIn(shared.person(t, "admin"), "/console/approvals/"+a.ID)
	for _, x := range []*tab{p, q, late} {
		must(t, expect.Locator(x.region()).ToContainText("0 of 2"))
	}
	must(t, late.Context().SetOffline(true)) // sees nothing of what follows
	must(t, p.region().GetByRole("button", named0("Edit")).Click())
	edit := func(p *tab) playwright.Locator { return p.byRole("dialog", "Edit arguments") }
	amount := playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Amount")}
	must(t, edit(p).GetByRole("textbox", amount).Fill("50"))
	must(t, edit(p).GetByRole("button", named0("Approve with changes")).Click())
	must(t, expect.Locator(p.region().GetByRole("status")).ToContainText("Approved, waiting for 1 other"))
	must(t, expect.Locator(p.region()).ToContainText("You approved"))
	gone(t, p.region().GetByRole("button", named0("Approve")))
	must(t, expect.Locator(q.region()).ToContainText("1 of 2"))
	runs := func(l playwright.Locator) {
		t.Helper()
		contains(t, l.GetByRole("table", named0("Arguments")), "amount50")
	}
	runs(q.region())
	must(t, expect.Locator(q.region().GetByRole("list", named0("Changes"))).ToHaveText("amount 99 → 50"))
	must(t, q.region().GetByRole("button", named0("Edit")).Click())
	must(t, expect.Locator(edit(q).GetByRole("textbox", amount)).ToHaveValue("50"))
	q.press("Escape")
	must(t, q.region().GetByRole("button", named0("Approve")).Click())
	ask := q.byRole("alertdialog", "Approve "+tool+"?")
	runs(ask)
	must(t, ask.GetByRole("button", named0("Approve")).Click())
	must(t, expect.Locator(p.region().GetByRole("status")).Not().ToContainText("1 other"))
	if got := shared.approval(t, a.ID).Status; got != "edited" {
		t.Errorf("it is %s", got)
	}
	must(t, late.Context().SetOffline(false))
	late.reject(t)
	must(t, expect.Locator(late.region().GetByRole("alert")).ToContainText("Already decided"))
}

// reject presses Reject while the page may already learn that it is too late.
func (p *tab) reject(t *testing.T) {
	t.Helper()
	_, err := p.Evaluate(`async (id) => {
		for (const b of document.querySelectorAll("section button")) if (b.textContent.trim() === "Reject") b.click();
		await new Promise((r) => setTimeout(r, 50));
		for (const b of document.querySelectorAll("dialog button")) if (b.textContent.trim() === "Reject") b.click();
	}`, nil)
	must(t, err)
}

// Section 6: texts of models and tools are hostile.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("high"))
	evil := "<img src=x onerror=alert(1)>\u202egnp.exe\u0007[x](javascript:alert(1))" + strings.Repeat(" long", 60)
	a := shared.refund(t, agent, 1, evil)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/approvals/"+a.ID)
	must(t, expect.Locator(p.region()).ToContainText("<img src=x onerror=alert(1)>"))
	must(t, expect.Locator(p.region()).ToContainText("U+202E"))
	must(t, expect.Locator(p.region()).ToContainText("U+0007"))
	if n, err := p.Locator("img, iframe, a[href^='javascript']").Count(); err != nil || n != 0 {
		t.Errorf("%d elements of the text, %v", n, err)
	}
	p.accessible("a hostile approval")
}

// Section 6: many at once: 200 a call, and those that were decided meanwhile stay selected with the reason.
func TestBulk(t *testing.T) {
	t.Parallel()
	s := shared
	agent, _ := s.policed(t, policy("low"))
	var all []approval
	for i := range 6 {
		all = append(all, s.refund(t, agent, float64(i+1), "broken"))
	}
	v := visit(t, s, look{})
	p := v.signedIn(s.person(t, "admin"), "/console/approvals?agent="+agent)
	must(t, expect.Locator(p.items()).ToHaveCount(6))
	must(t, p.item(all[0].ID).GetByRole("checkbox", named0("Select "+tool)).Check())
	bar := p.byRole("toolbar", "Bulk")
	must(t, bar.GetByRole("button", named0("Select all 6")).Click())
	visible(t, bar.GetByRole("button", named0("Approve 6")))
	visible(t, bar.GetByRole("button", named0("Respond to 6")))
	p.accessible("the toolbar")
	must(t, bar.GetByRole("button", named0("Reject 6")).Click())
	ask := p.byRole("alertdialog", "Reject 6?")
	must(t, expect.Locator(ask).ToContainText(tool))
	must(t, expect.Locator(ask.GetByRole("button", named0("Cancel"))).ToBeFocused())
	// One is decided elsewhere before the answer.
	s.call(t, "POST", "/v1/approvals/"+all[3].ID+"/decision", object{"action": "approve"}, nil)
	must(t, ask.GetByRole("button", named0("Reject 6")).Click())
	gone(t, ask)
	until(t, "the others are rejected", func() bool {
		n := 0
		for _, a := range all {
			if s.approval(t, a.ID).Status == "rejected" {
				n++
			}
		}
		return n == 5
	})
	must(t, expect.Locator(p.item(all[3].ID)).ToContainText("ALREADY_DECIDED"))
	for i, a := range all {
		if want := fmt.Sprintf("%s, rejected", tool); i != 3 {
			must(t, expect.Locator(p.item(a.ID).GetByRole("link")).ToHaveAccessibleName(want))
		}
	}
}

// Section 6: on phones the buttons stay at the bottom and are large; nothing scrolls sideways.
func TestOnAPhone(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a := shared.refund(t, agent, 5, strings.Repeat("a_very_long_word_without_any_blank_", 12))
	v := visit(t, shared, look{width: 360, height: 640, dark: true})
	p := v.signedIn(shared.person(t, "admin"), "/console/approvals/"+a.ID)
	visible(t, p.region())
	for _, name := range []string{"Approve", "Edit", "Reject", "Respond"} {
		box, err := p.region().GetByRole("button", named0(name)).BoundingBox()
		must(t, err)
		if box.Height < 44 || box.Width < 44 || box.Y+box.Height > 640 || box.Y < 500 {
			t.Errorf("%s is at %+v", name, *box)
		}
	}
	wide, err := p.Evaluate("document.documentElement.scrollWidth")
	must(t, err)
	if wide.(int) > 360 {
		t.Errorf("the page is %v wide", wide)
	}
	p.accessible("an approval on a phone")
	must(t, p.button("Menu").Click())
	menu := p.byRole("dialog", "Menu")
	visible(t, menu.GetByRole("navigation", named0("Main")))
	p.accessible("the menu")
	must(t, menu.GetByRole("link", named0("Home")).Click())
	gone(t, menu)
	p.heading("Home")
	p.accessible("Home on a phone")
}
