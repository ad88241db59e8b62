package consolecheck

import (
	"fmt"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// Section 5, API: an operation is found, sent (changes ask first), answered with status, headers
// and body, and copied as curl with placeholders.
func TestTheAPIPage(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	v := visit(t, shared, look{width: 1300, height: 900})
	must(t, v.GrantPermissions([]string{"clipboard-read", "clipboard-write"}))
	p := v.signedIn(shared.person(t, "admin"), "/console/api")
	p.heading("API")
	list := p.byRole("navigation", "Operations")
	visible(t, list.GetByRole("link").First())
	must(t, p.GetByLabel("Find an operation").Fill("get agent versions"))
	must(t, p.GetByLabel("Find an operation").Fill("getAgent"))
	must(t, list.Locator(`[data-id="getAgent"]`).GetByRole("link").Click())
	hasURL(t, p, `/console/api\?op=getAgent$`)
	p.reload()
	one := p.byRole("region", "getAgent")
	visible(t, one)
	// What is required is asked for.
	must(t, one.GetByRole("button", named0("Send")).Click())
	must(t, expect.Locator(p.box("id")).ToHaveAttribute("aria-invalid", "true"))
	if v.called("GET /v1/agents/") > 0 {
		t.Error("it was sent without its id")
	}
	must(t, p.box("id").Fill(agent))
	p.press("Enter")
	answer := p.byRole("region", "Response")
	must(t, expect.Locator(answer).ToContainText("200"))
	must(t, expect.Locator(answer).ToContainText(name))
	gone(t, answer.GetByRole("table", named0("Headers"))) // folded
	must(t, answer.GetByText("Headers (").Click())
	must(t, expect.Locator(answer.GetByRole("table", named0("Headers"))).ToContainText("x-request-id"))
	p.accessible("an answer")
	must(t, one.GetByRole("button", named0("Copy as curl")).Click())
	copied, err := p.Evaluate("navigator.clipboard.readText()")
	must(t, err)
	if text := copied.(string); !strings.Contains(text, shared.url()+"/v1/agents/"+agent+"'") || !strings.Contains(text, "$SVC_API_KEY") || !strings.Contains(text, "$SVC_TENANT") || strings.Contains(text, "svc_session") {
		t.Errorf("copied %s", text)
	}
	must(t, p.box("id").Fill("01a1fe1a-f0b8-76f3-9442-f6225bb3af00"))
	p.press("Enter")
	must(t, expect.Locator(answer).ToContainText("404"))
	must(t, expect.Locator(answer).ToContainText("NOT_FOUND"))

	// A change asks first, with the focus on Cancel; it is one change with a key.
	p.goTo("/console/api?op=createApiKey")
	fresh := fmt.Sprintf("From the page %d", numbered.Add(1))
	rewrite(t, p.box("JSON"), `{"name": `)
	must(t, expect.Locator(p.box("JSON")).ToHaveAttribute("aria-invalid", "true"))
	rewrite(t, p.box("JSON"), `{"name": "`+fresh+`"}`)
	must(t, p.byRole("tab", "Form").Click())
	must(t, expect.Locator(p.GetByLabel("Name (required)")).ToHaveValue(fresh))
	// A form that is not complete has no JSON; what is typed is not lost by another operation.
	must(t, p.GetByLabel("Name (required)").Fill(""))
	must(t, p.byRole("tab", "JSON").Click())
	must(t, expect.Locator(p.byRole("region", "createApiKey").GetByRole("alert")).ToContainText("not complete"))
	must(t, expect.Locator(p.GetByLabel("Name (required)")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.GetByLabel("Name (required)").Fill(fresh))
	must(t, p.GetByLabel("Find an operation").Fill("getAgent"))
	must(t, list.Locator(`[data-id="getAgent"]`).GetByRole("link").Click())
	ask := p.GetByRole("alertdialog")
	must(t, ask.GetByRole("button", named0("Cancel")).Click())
	must(t, expect.Locator(p.GetByLabel("Name (required)")).ToHaveValue(fresh))
	must(t, p.byRole("tab", "JSON").Click())
	must(t, p.button("Send").Click())
	must(t, expect.Locator(ask).ToContainText("POST /v1/api-keys"))
	must(t, expect.Locator(ask.GetByRole("button", named0("Cancel"))).ToBeFocused())
	p.accessible("the question")
	must(t, ask.GetByRole("button", named0("Cancel")).Click())
	if v.called("POST /v1/api-keys") > 0 {
		t.Error("it was sent without a yes")
	}
	// A change that was not sent is tried again as it was asked for, and not with what was typed since.
	must(t, p.Route("**/v1/api-keys", func(r playwright.Route) { _ = r.Abort() }))
	must(t, p.button("Send").Click())
	must(t, ask.GetByRole("button", named0("Send")).Click())
	visible(t, p.button("Try again"))
	rewrite(t, p.box("JSON"), `{"name":"`+fresh+`"}`)
	gone(t, p.button("Try again"))
	must(t, p.Unroute("**/v1/api-keys"))
	must(t, p.button("Send").Click())
	must(t, ask.GetByRole("button", named0("Send")).Click())
	secret := p.stored("secret")
	must(t, expect.Locator(answer).ToContainText("201"))
	must(t, expect.Locator(answer).ToContainText("[shown once]"))
	p.forgotten(secret)
	var keys struct{ Items []struct{ Name string } }
	shared.call(t, "GET", "/v1/api-keys", nil, &keys)
	n := 0
	for _, k := range keys.Items {
		if k.Name == fresh {
			n++
		}
	}
	if n != 1 || !strings.HasPrefix(secret, "svc_") {
		t.Errorf("%d keys were made, %.8q", n, secret)
	}

	// A stream goes on until it is stopped.
	p.goTo("/console/api?op=watchTenant")
	must(t, p.button("Send").Click())
	must(t, expect.Locator(answer).ToContainText("feed.ready"))
	must(t, p.button("Stop").Click())
	gone(t, p.button("Stop"))
	must(t, expect.Locator(answer).ToContainText("text/event-stream"))

	// A file is uploaded and comes back as one.
	p.goTo("/console/api?op=createAttachment")
	must(t, p.GetByLabel("File").SetInputFiles([]playwright.InputFile{{Name: "note.txt", MimeType: "text/plain", Buffer: []byte("hello")}}))
	must(t, p.button("Send").Click())
	must(t, ask.GetByRole("button", named0("Send")).Click())
	must(t, expect.Locator(answer).ToContainText("201"))
	must(t, expect.Locator(answer).ToContainText("note.txt"))

	// What a widget calls can be copied only.
	p.goTo("/console/api?op=postEmbedMessage")
	visible(t, p.button("Copy as curl"))
	gone(t, p.button("Send"))
	p.goTo("/console/api?op=nonsense")
	visible(t, p.byRole("region", "About"))
}

// A member sends what a member may. A text of a stranger in an answer is plain.
func TestTheAPIPageForMembers(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "<img src=x onerror=alert(1)> ‮gnp")
	shared.reaches(t, run, "succeeded")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/api?op=createAgent")
	visible(t, p.GetByText("It needs the role admin"))
	gone(t, p.button("Send"))
	p.goTo("/console/api?op=getRun")
	must(t, p.box("id").Fill(run))
	p.press("Enter")
	answer := p.byRole("region", "Response")
	must(t, expect.Locator(answer).ToContainText("<img src=x onerror=alert(1)>"))
	visible(t, answer.Locator("mark.hidden-char").First())

	// The document does not come: it is said, and tried again.
	q := v.tab()
	down := true
	must(t, q.Route("**/v1/openapi.json", func(r playwright.Route) {
		if down {
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"title":"Internal error","status":500,"code":"INTERNAL"}`})
			return
		}
		_ = r.Continue()
	}))
	q.goTo("/console/api")
	must(t, expect.Locator(q.GetByRole("alert")).ToContainText("Internal error"))
	down = false
	must(t, q.button("Try again").Click())
	visible(t, q.byRole("region", "About"))
	// Other pages do not load it.
	w := visit(t, shared, look{})
	w.signedIn(shared.person(t, "member"), "/console/").heading("Home")
	if w.called("openapi.json") > 0 {
		t.Error("Home loads the description")
	}
}

func TestTheTourOfTheAPI(t *testing.T) {
	agent, _ := shared.policed(t)
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {width: 1300, height: 900}, "dark": {width: 1300, height: 900, dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/api")
			visible(t, p.byRole("region", "About"))
			p.accessible("API in " + name)
			for _, op := range []string{"listRuns", "createAgent", "getAgent"} {
				p.goTo("/console/api?op=" + op)
				visible(t, p.byRole("region", op))
				p.accessible(op + " in " + name)
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("%s scrolls sideways by %v", op, wide)
				}
			}
			must(t, p.box("id").Fill(agent))
			p.press("Enter")
			visible(t, p.byRole("region", "Response"))
			must(t, expect.Locator(p.byRole("region", "Response")).ToContainText("200"))
			p.accessible("a response in " + name)
		})
	}
}
