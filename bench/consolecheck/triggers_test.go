package consolecheck

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

type trigger struct {
	ID      string
	Name    string
	Enabled bool
	HookURL string `json:"hook_url"`
	Secret  string
}

// trigger makes a trigger of an agent.
func (s *service) trigger(t *testing.T, agent string, fields object) (made trigger) {
	t.Helper()
	fields["target"] = object{"agent_id": agent}
	s.call(t, "POST", "/v1/triggers", fields, &made)
	return made
}

func options(values ...string) playwright.SelectOptionValues {
	return playwright.SelectOptionValues{Values: &values}
}

func labelled(values ...string) playwright.SelectOptionValues {
	return playwright.SelectOptionValues{Labels: &values}
}

func choose(t *testing.T, l playwright.Locator, v playwright.SelectOptionValues) {
	t.Helper()
	_, err := l.SelectOption(v)
	must(t, err)
}

// Section 5, triggers: a schedule is made with its next times in view, fired, paused and deleted.
func TestAScheduleFromTheConsole(t *testing.T) {
	t.Parallel()
	_, name := shared.policed(t)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/triggers")
	p.heading("Triggers")
	must(t, p.button("New trigger").Click())
	dialog := p.byRole("dialog", "New trigger")
	field := func(label string) playwright.Locator {
		return dialog.GetByLabel(label, playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)})
	}
	must(t, field("Name").Fill("Morning report"))
	choose(t, field("Agent"), labelled(name))
	must(t, field("Timezone").Fill("Europe/Berlin"))
	must(t, expect.Locator(dialog.GetByRole("list", playwright.LocatorGetByRoleOptions{Name: "Next times"}).GetByRole("listitem")).ToHaveCount(3))
	must(t, field("Cron").Fill("0 9 * * XYZ"))
	contains(t, dialog, `day of week: "XYZ" is neither a number nor a name such as SUN`)
	// The service judges too, and marks the field; nothing typed is lost.
	must(t, dialog.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Create"}).Click())
	must(t, expect.Locator(field("Cron")).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(field("Name")).ToHaveValue("Morning report"))
	must(t, field("Cron").Fill("0 9 * * MON-FRI"))
	must(t, field("Input").Fill("What came in?"))
	must(t, dialog.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Create"}).Click())
	must(t, expect.Locator(field("Input")).ToHaveAttribute("aria-invalid", "true"))
	p.accessible("New trigger")
	must(t, field("Input").Fill(`{"text":"What came in since yesterday?"}`))
	must(t, dialog.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Create"}).Click())

	hasURL(t, p, `/console/triggers/[0-9a-f-]{36}$`)
	due := p.byRole("region", "Schedule").GetByRole("list", playwright.LocatorGetByRoleOptions{Name: "Next times"})
	must(t, expect.Locator(due.GetByRole("listitem")).ToHaveCount(5))
	must(t, expect.Locator(due).ToContainText(regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri)[^0-9]+\d+ \w+,? (at )?09:00`)))
	must(t, p.button("Fire now").Click())
	contains(t, p.Locator("main p[role=status]"), "started.")
	row := p.byRole("table", "Recent runs").Locator("tbody tr")
	must(t, expect.Locator(row).ToHaveCount(1))
	contains(t, row, "succeeded")
	contains(t, row, "What came in since yesterday?")

	// Fired with an input of its own.
	must(t, p.button("Fire with input").Click())
	fire := p.byRole("dialog", "Fire with input")
	must(t, fire.GetByRole("textbox").Fill(`{"text":"And since noon?"}`))
	must(t, fire.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Fire"}).Click())
	must(t, p.button("Show 1 new").Click())
	contains(t, row.First(), "And since noon?")

	// Pausing asks, with the focus on Cancel.
	must(t, p.button("Pause").Click())
	must(t, expect.Locator(p.GetByRole("alertdialog").GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Cancel"})).ToBeFocused())
	must(t, p.GetByRole("alertdialog").GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Pause"}).Click())
	must(t, expect.Locator(p.button("Fire now")).ToBeDisabled())
	must(t, p.button("Resume").Click())
	must(t, expect.Locator(p.button("Fire now")).ToBeEnabled())
	must(t, p.button("Edit").Click())
	edit := p.byRole("dialog", "Edit trigger")
	must(t, edit.GetByLabel("Name").Fill("Evening report"))
	must(t, edit.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Save"}).Click())
	contains(t, p.GetByRole("main"), "Evening report")
	must(t, p.button("Delete").Click())
	must(t, p.GetByRole("alertdialog").GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Delete"}).Click())
	hasURL(t, p, `/console/triggers$`)
}

// Section 5, secrets: a hook's secret is shown once, signs calls, and is in no page afterwards.
func TestAHookFromTheConsole(t *testing.T) {
	t.Parallel()
	_, name := shared.policed(t)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/triggers")
	must(t, p.button("New trigger").Click())
	dialog := p.byRole("dialog", "New trigger")
	must(t, dialog.GetByLabel("Name").Fill("Returns"))
	choose(t, dialog.GetByLabel("Kind"), options("hook"))
	choose(t, dialog.GetByLabel("Agent", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}), labelled(name))
	must(t, dialog.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Create"}).Click())
	secretOf := func() string {
		t.Helper()
		once := p.byRole("dialog", "Shown once")
		secret, err := once.GetByRole("textbox").InputValue()
		must(t, err)
		p.press("Escape")
		visible(t, once)
		must(t, once.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "I have stored it"}).Click())
		gone(t, once)
		return secret
	}
	first := secretOf()
	hasURL(t, p, `/console/triggers/[0-9a-f-]{36}$`)
	url, err := p.box("Hook URL").InputValue()
	must(t, err)
	call := func(secret, text string) int {
		t.Helper()
		body := `{"text":"` + text + `"}`
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		q, err := http.NewRequest("POST", url, strings.NewReader(body))
		must(t, err)
		q.Header.Set("X-Svc-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		answer, err := http.DefaultClient.Do(q)
		must(t, err)
		answer.Body.Close()
		return answer.StatusCode
	}
	if got := call(first, "Order 1042 was returned."); got != 202 {
		t.Errorf("a signed call: %d", got)
	}
	contains(t, p.byRole("table", "Recent runs").Locator("tbody tr"), "Order 1042 was returned.")
	sample := p.byRole("region", "Signed example")
	contains(t, sample, "openssl dgst -sha256 -hmac")
	contains(t, sample, url)
	p.accessible("a hook")
	must(t, p.byRole("tab", "Python").Click())
	contains(t, sample, "hmac.new")

	must(t, p.button("Rotate secret").Click())
	must(t, p.GetByRole("alertdialog").GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Rotate secret"}).Click())
	second := secretOf()
	if got := call(first, "again"); got != 401 {
		t.Errorf("the old secret: %d", got)
	}
	if got := call(second, "again"); got != 202 {
		t.Errorf("the new secret: %d", got)
	}
	page, err := p.Content()
	must(t, err)
	kept, err := p.Evaluate("JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage), location.href, history.state])")
	must(t, err)
	if all := page + kept.(string); strings.Contains(all, first) || strings.Contains(all, second) {
		t.Error("a secret is still in the page")
	}
}

// Names of strangers are plain; the list, its states and a trigger are accessible in dark and on a phone.
func TestTriggersAreQuiet(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	hostile := `<img src=x onerror=alert(1)> ` + "\u202e" + "gnp.exe " + strings.Repeat("long ", 12)
	hook := shared.trigger(t, agent, object{"name": hostile, "kind": "hook", "input": object{"source": "<b>shop</b>"}})
	plan := shared.trigger(t, agent, object{"name": "Every ten minutes", "kind": "schedule", "schedule": object{"cron": "*/10 * * * *", "timezone": "Europe/Berlin"}, "enabled": false})
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"dark": {dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/triggers")
			for path, text := range map[string]string{"triggers": "Every ten minutes", "triggers/" + hook.ID: "Signed example", "triggers/" + plan.ID: "It is paused."} {
				p.goTo("/console/" + path)
				p.heading("Triggers")
				visible(t, p.GetByText(text, playwright.PageGetByTextOptions{Exact: playwright.Bool(true)}).First())
				must(t, expect.Locator(p.Locator("[aria-busy=true]")).ToHaveCount(0))
				gone(t, p.Locator("main img"))
				p.accessible("/console/" + path + " in " + name)
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("/console/%s scrolls sideways by %v", path, wide)
				}
			}
		})
	}
}

// A member has no triggers; an unknown one is not found; what is not read is not empty.
func TestTriggersOfOthers(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/triggers")
	p.heading("No access")
	gone(t, p.byRole("navigation", "Main").GetByRole("link", named0("Triggers")))
	if n := v.called("/v1/triggers"); n > 0 {
		t.Errorf("%d calls of an admin's route", n)
	}
	admin := visit(t, shared, look{})
	a := admin.signedIn(shared.person(t, "admin"), "/console/triggers/00000000-0000-7000-8000-000000000000")
	a.heading("Not found")
	must(t, a.Route("**/v1/triggers?*", func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"status":500,"code":"INTERNAL","title":"Internal error"}`})
	}))
	a.goTo("/console/triggers")
	contains(t, a.GetByRole("alert"), "INTERNAL")
	gone(t, a.GetByText("No triggers yet"))
	must(t, a.Unroute("**/v1/triggers?*"))
	must(t, a.button("Try again").Click())
	visible(t, a.byRole("table", "Triggers"))
	must(t, a.Route("**/v1/triggers?*", func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{ContentType: playwright.String("application/json"), Body: `{"items":[],"next_cursor":null}`})
	}))
	a.goTo("/console/triggers")
	visible(t, a.byRole("heading", "No triggers yet"))
	must(t, expect.Locator(a.button("New trigger")).ToHaveCount(2))
	a.accessible("no triggers")
}
