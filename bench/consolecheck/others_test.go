package consolecheck

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// Section 4: nothing moves under the hand. Somebody else saves a version while this one is looked at.
func TestAWorkflowStaysWhenOthersSave(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	id := shared.workflow(t, "Complaints", complaints(agent))
	save := func() {
		t.Helper()
		shared.call(t, "POST", "/v1/workflows/"+id+"/versions", object{"definition": complaints(agent)}, nil)
	}
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/workflows")
	// The heading has the focus after a navigation, also once the workflow is read.
	click(t, p.byRole("table", "Workflows").Locator(`[data-id="`+id+`"]`).GetByRole("link"))
	p.heading("Complaints")
	must(t, expect.Locator(p.Locator("h1")).ToBeFocused())
	p.goTo("/console/workflows/" + id + "?version=99&tab=definition")
	box := p.box("Definition")
	typed := `{"nodes": [], "edges": []}`
	rewrite(t, box, typed)
	click(t, p.button("Publish"))
	visible(t, p.alertdialog("Publish version 1 of Complaints?"))
	save()
	visible(t, p.GetByText("Version 2 was saved meanwhile."))
	visible(t, p.alertdialog("Publish version 1 of Complaints?"))
	p.press("Escape")
	must(t, expect.Locator(box).ToHaveText(typed))

	// What is typed for a test run stays as well, and is not lost without a question.
	click(t, p.button("Test run"))
	dialog := p.dialog("Test run")
	must(t, field(dialog, "Input").Fill(`{"text": "mine", "amount": 9007199254740993}`))
	click(t, within(dialog, "button", "Start"))
	contains(t, dialog, "amount: a number that a browser cannot hold exactly")
	save()
	contains(t, dialog, "version 3")
	must(t, expect.Locator(field(dialog, "Input")).ToHaveValue(`{"text": "mine", "amount": 9007199254740993}`))
	p.press("Escape")
	click(t, within(p.alertdialog("Discard what you typed?"), "button", "Discard"))

	// Links within the page lose nothing and do not ask; leaving it does, also after a version was saved.
	click(t, p.GetByRole("link", playwright.PageGetByRoleOptions{Name: "Open version 3"}))
	hasURL(t, p, `version=3`)
	click(t, p.byRole("tab", "Versions"))
	click(t, p.byRole("table", "Versions").GetByRole("link", named0("Version 2")))
	hasURL(t, p, `version=2`)
	gone(t, p.GetByRole("alertdialog"))
	pick(t, p.Locator("main").GetByLabel("Version", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}), "1")
	click(t, p.byRole("tab", "Definition"))
	must(t, expect.Locator(box).ToHaveText(typed))
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Runs")))
	click(t, within(p.alertdialog("Leave without saving?"), "button", "Cancel"))
	must(t, expect.Locator(box).ToHaveText(typed))
}

// Section 5: an edit sends what was changed and nothing else; changing a tab keeps the focus.
func TestToolFormsKeepWhatOthersChange(t *testing.T) {
	t.Parallel()
	n := numbered.Add(1)
	var server struct{ ID, Name, Endpoint string }
	shared.call(t, "POST", "/v1/mcp-servers", object{"name": fmt.Sprintf("Edited %d", n), "slug": fmt.Sprintf("edited-%d", n), "transport": "http", "endpoint": nowhere(t), "auth_kind": "none"}, &server)
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/tools?open="+server.ID)
	region := p.byRole("region", server.Name)
	click(t, region.GetByRole("button", named0("Edit")))
	dialog := p.dialog("Edit server")
	must(t, field(dialog, "Name").Fill(server.Name+" here"))
	shared.call(t, "PATCH", "/v1/mcp-servers/"+server.ID, object{"meta": object{"by": "somebody else"}}, nil)
	contains(t, region, "somebody else")
	click(t, within(dialog, "button", "Save"))
	gone(t, dialog)
	var now struct {
		Name string
		Meta map[string]string
	}
	shared.call(t, "GET", "/v1/mcp-servers/"+server.ID, nil, &now)
	if now.Name != server.Name+" here" || now.Meta["by"] != "somebody else" {
		t.Errorf("after both edits: %+v", now)
	}
	must(t, p.byRole("tab", "Servers").Focus())
	p.press("ArrowRight")
	visible(t, p.button("New connection"))
	must(t, expect.Locator(p.byRole("tab", "Connections")).ToBeFocused())
	p.press("ArrowRight")
	visible(t, p.button("New grant"))
	must(t, expect.Locator(p.byRole("tab", "Access")).ToBeFocused())
}

// Section 4: what is deleted elsewhere is not shown as if it were there. A deletion of one's own leads away, also when the page
// learns first that the thing is gone.
func TestWhatIsGone(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	thread := func() string {
		t.Helper()
		var made struct{ ID string }
		shared.call(t, "POST", "/v1/threads", object{"agent_id": agent, "title": "Parcels"}, &made)
		return made.ID
	}
	theirs, mine := thread(), thread()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/threads/"+theirs)
	p.heading("Parcels")
	shared.call(t, "DELETE", "/v1/threads/"+theirs, nil, nil)
	p.heading("Not found")

	p.goTo("/console/threads/" + mine)
	p.heading("Parcels")
	heard := make(chan struct{})
	must(t, p.Route("**/v1/threads/"+mine, func(r playwright.Route) {
		if r.Request().Method() != "DELETE" {
			_ = r.Continue()
			return
		}
		go func() {
			done, err := r.Fetch()
			<-heard
			if err == nil {
				err = r.Fulfill(playwright.RouteFulfillOptions{Response: done})
			}
			if err != nil {
				t.Error(err)
			}
		}()
	}))
	click(t, p.button("Delete"))
	click(t, within(p.GetByRole("alertdialog"), "button", "Delete"))
	p.heading("Not found")
	close(heard)
	p.heading("Runs")

	n := numbered.Add(1)
	var server struct{ ID, Name string }
	shared.call(t, "POST", "/v1/mcp-servers", object{"name": fmt.Sprintf("Gone %d", n), "slug": fmt.Sprintf("gone-%d", n), "transport": "http", "endpoint": nowhere(t), "auth_kind": "none"}, &server)
	p.goTo("/console/tools?open=" + server.ID)
	visible(t, p.byRole("region", server.Name))
	shared.call(t, "DELETE", "/v1/mcp-servers/"+server.ID, nil, nil)
	contains(t, p.byRole("region", "Server"), "There is no such server.")
}

// held holds the calls of a method back: each is told on under, and goes on when answer is sent to.
func (p *tab) held(pattern any, method string) (under, answer chan struct{}) {
	p.t.Helper()
	under, answer = make(chan struct{}, 8), make(chan struct{}, 8)
	must(p.t, p.Route(pattern, func(r playwright.Route) {
		if r.Request().Method() != method {
			_ = r.Continue()
			return
		}
		under <- struct{}{}
		go func() {
			<-answer
			_ = r.Continue()
		}()
	}))
	return under, answer
}

// drawn waits until what follows from an answer or a key is drawn.
func (p *tab) drawn() {
	p.t.Helper()
	_, err := p.Evaluate(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))`)
	must(p.t, err)
}

// doubleClick is a double click on a button whose first click is answered before the second one. change is the call that the first
// one makes, again the number of these calls in the end: whatever the second one asked for was asked for before the reads that follow.
func (p *tab) doubleClick(v *visitor, button playwright.Locator, change string, answered func()) {
	p.t.Helper()
	before := v.called(change)
	must(p.t, button.ScrollIntoViewIfNeeded())
	box, err := button.BoundingBox()
	must(p.t, err)
	must(p.t, p.Mouse().Move(box.X+box.Width/2, box.Y+box.Height/2))
	for n := range 2 {
		must(p.t, p.Mouse().Down(playwright.MouseDownOptions{ClickCount: playwright.Int(n + 1)}))
		must(p.t, p.Mouse().Up(playwright.MouseUpOptions{ClickCount: playwright.Int(n + 1)}))
		if n == 0 {
			until(p.t, change+" is called", func() bool { return v.called(change) > before })
			answered()
			p.drawn()
		}
	}
	_, err = p.Evaluate(`async () => { for (let n = 0; n < 5; n++) await fetch("/v1/auth/me", { cache: "no-store" }); }`)
	must(p.t, err)
	if n := v.called(change) - before; n != 1 {
		p.t.Errorf("a double click: %d calls of %s", n, change)
	}
}

// Section 2: a double click is one change, also when the first click is answered before the second one; what it changed stays in its
// place, so that the second one does not change the next thing.
func TestADoubleClickIsOneChange(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/")
	n := numbered.Add(1)

	var k embedKey
	shared.call(t, "POST", "/v1/embed-keys", object{"agent_id": shared.agent, "name": fmt.Sprintf("Shop %d", n), "allowed_origins": []string{}}, &k)
	origins := []string{"https://one.example.com", "https://two.example.com", "https://three.example.com"}
	for _, o := range origins {
		shared.config(t, k.Key, o)
	}
	p.goTo("/console/embed/" + k.ID)
	denied := p.byRole("list", "Denied origins").Locator("li")
	allow := denied.GetByRole("button", named0("Allow"))
	must(t, expect.Locator(allow).ToHaveCount(3))
	first, err := denied.First().GetAttribute("data-id")
	must(t, err)
	p.doubleClick(v, allow.First(), "PATCH /v1/embed-keys/"+k.ID, func() { must(t, expect.Locator(allow).ToHaveCount(2)) })
	if got := shared.embedKey(t, k.ID).AllowedOrigins; len(got) != 1 || got[0] != first {
		t.Errorf("allowed: %q, want %s", got, first)
	}
	must(t, expect.Locator(denied).ToHaveCount(3))
	// One that tries while the list is open comes last.
	shared.config(t, k.Key, "https://four.example.com")
	must(t, expect.Locator(denied).ToHaveCount(4))
	must(t, expect.Locator(denied.First()).ToHaveAttribute("data-id", first))
	must(t, expect.Locator(denied.Last()).ToHaveAttribute("data-id", "https://four.example.com"))

	var node struct{ ID string }
	shared.call(t, "POST", "/v1/org-nodes", object{"name": fmt.Sprintf("Double %d", n)}, &node)
	for i := range 3 {
		var user struct{ ID string }
		shared.call(t, "POST", "/v1/users", object{"email": fmt.Sprintf("double-%d-%d@example.com", n, i), "name": "A manager", "role": "member", "password": password}, &user)
		shared.call(t, "PUT", "/v1/org-nodes/"+node.ID+"/managers/"+user.ID, nil, nil)
	}
	p.goTo("/console/settings?tab=org")
	click(t, within(p.byRole("group", fmt.Sprintf("Double %d", n)), "button", "Managers"))
	dialog := p.dialog(fmt.Sprintf("Managers of Double %d", n))
	remove := dialog.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Remove"})
	must(t, expect.Locator(remove).ToHaveCount(3))
	p.doubleClick(v, remove.First(), "DELETE /v1/org-nodes/"+node.ID, func() { must(t, expect.Locator(remove).ToHaveCount(2)) })
	rows := dialog.GetByRole("list", named0("Managers")).Locator("li")
	must(t, expect.Locator(rows).ToHaveCount(3))
	contains(t, rows.First(), "removed")

	hook := shared.hook(t, newReceiver(t).url, "run.failed")
	p.goTo("/console/webhooks/" + hook)
	p.doubleClick(v, p.button("Send test").First(), "POST /v1/webhooks/"+hook+"/test", func() { contains(t, p.Locator("section.delivery"), "succeeded") })
	p.doubleClick(v, p.button("Redeliver"), "/redeliver", func() {
		must(t, expect.Locator(p.byRole("list", "Attempts").Locator("li")).ToHaveCount(2))
		visible(t, p.button("Redeliver"))
	})

	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "/say done")
	shared.reaches(t, run, "succeeded")
	p.goTo("/console/runs/" + run)
	p.doubleClick(v, p.button("Run again"), "POST /v1/agents/"+agent+"/runs", func() {
		must(t, expect.Page(p.Page).Not().ToHaveURL(regexp.MustCompile(run)))
		gone(t, p.button("Cancel run"))
		visible(t, p.button("Run again"))
	})
}

// A person who discards a form while it is sent, and goes elsewhere, is not led away by its answer.
func TestADiscardedFormLeadsNobodyAway(t *testing.T) {
	t.Parallel()
	_, name := shared.policed(t)
	p := visit(t, shared, look{}).as("admin", "/console/")
	for _, c := range []struct {
		page, opens, api string
		fill             func(dialog playwright.Locator)
	}{
		{"triggers", "New trigger", "/v1/triggers$", func(d playwright.Locator) {
			must(t, field(d, "Name").Fill("Discarded"))
			choose(t, field(d, "Agent"), labelled(name))
		}},
		{"tools", "New server", "/v1/mcp-servers$", func(d playwright.Locator) {
			must(t, field(d, "Name").Fill(fmt.Sprintf("Discarded %d", numbered.Add(1))))
			must(t, field(d, "Endpoint").Fill(nowhere(t)))
		}},
	} {
		p.goTo("/console/" + c.page)
		under, answer := p.held(regexp.MustCompile(c.api), "POST")
		click(t, p.button(c.opens).First())
		dialog := p.dialog(c.opens)
		c.fill(dialog)
		click(t, within(dialog, "button", "Create"))
		<-under
		p.press("Escape")
		click(t, within(p.alertdialog("Discard what you typed?"), "button", "Discard"))
		gone(t, dialog)
		click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Usage")))
		p.heading("Usage")
		said, err := p.ExpectResponse(regexp.MustCompile(c.api), func() error { answer <- struct{}{}; return nil })
		must(t, err)
		if said.Status() != 201 {
			t.Errorf("%s: %d", c.page, said.Status())
		}
		p.drawn()
		p.heading("Usage")
		hasURL(t, p, "/console/usage$")
	}
}

// Section 2: a double click is one change; an edit of a trigger leaves its other fields, and numbers that a browser rounds.
func TestATriggerIsFiredOnceAndEdited(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	made := shared.trigger(t, agent, object{"name": "Nightly", "kind": "schedule", "schedule": object{"cron": "0 3 * * *"}, "input": json.RawMessage(`{"text":"hi","account":9007199254740993}`)})
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/triggers/"+made.ID)
	must(t, p.button("Fire now").Click(playwright.LocatorClickOptions{ClickCount: playwright.Int(2), Delay: playwright.Float(150)}))
	contains(t, p.Locator("main p[role=status]"), "started.")
	click(t, p.button("Edit"))
	dialog := p.dialog("Edit trigger")
	must(t, field(dialog, "Name").Fill("Nightly, mine"))
	shared.call(t, "PATCH", "/v1/triggers/"+made.ID, object{"schedule": object{"cron": "0 4 * * *"}}, nil)
	click(t, within(dialog, "button", "Save"))
	gone(t, dialog)
	var now struct {
		Name     string
		Schedule struct{ Cron string }
		Input    struct{ Account json.Number }
	}
	shared.call(t, "GET", "/v1/triggers/"+made.ID, nil, &now)
	if now.Name != "Nightly, mine" || now.Schedule.Cron != "0 4 * * *" || now.Input.Account != "9007199254740993" {
		t.Errorf("after both edits: %+v", now)
	}
	click(t, p.button("Edit"))
	must(t, field(dialog, "Input").Fill(`{"account": 12345678901234567890}`))
	click(t, within(dialog, "button", "Save"))
	contains(t, dialog, "account: a number that a browser cannot hold exactly")
	if n := v.called("POST /v1/triggers/" + made.ID + "/fire"); n != 1 {
		t.Errorf("a double click fired %d times", n)
	}
}

// Section 5, secrets: going Back does not lose the value without a question.
func TestAPIKeysAreNotLostByGoingBack(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/")
	p.press("g", "h")
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Settings")))
	p.heading("Settings")
	click(t, p.button("New API key").First())
	dialog := p.dialog("New API key")
	must(t, field(dialog, "Name").Fill(fmt.Sprintf("back end %d", numbered.Add(1))))
	click(t, within(dialog, "button", "Create"))
	once := p.dialog("Shown once")
	visible(t, once)
	_, err := p.Evaluate("history.back()")
	must(t, err)
	ask := p.alertdialog("Leave without saving?")
	contains(t, ask, "The value is not shown again")
	click(t, within(ask, "button", "Cancel"))
	visible(t, once)
	click(t, within(once, "button", "I have stored it"))
	gone(t, once)
	p.heading("Settings")
	_, err = p.Evaluate("history.back()")
	must(t, err)
	p.heading("Home")
	gone(t, p.GetByRole("alertdialog"))
}
