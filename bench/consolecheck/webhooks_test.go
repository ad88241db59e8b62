package consolecheck

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// receiver is an endpoint of the tenant's, which refuses while it is broken.
type receiver struct {
	url    string
	broken atomic.Bool

	mu  sync.Mutex     // guards the field below
	got map[string]int // attempts, by delivery: runs of other tests are told to it too
}

// attempts returns how often a delivery was sent.
func (r *receiver) attempts(delivery string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[delivery]
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{got: map[string]int{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		r.mu.Lock()
		r.got[q.Header.Get("Svc-Delivery-Id")]++
		r.mu.Unlock()
		if r.broken.Load() {
			w.WriteHeader(500)
		}
	}))
	t.Cleanup(s.Close)
	r.url = s.URL + "/hook"
	return r
}

// hook registers an endpoint and returns its id.
func (s *service) hook(t *testing.T, url string, events ...string) string {
	t.Helper()
	var made struct {
		ID      string
		Webhook struct{ ID string }
	}
	s.call(t, "POST", "/v1/webhooks", object{"url": url, "events": events, "description": "Of the tests"}, &made)
	if made.ID == "" {
		return made.Webhook.ID
	}
	return made.ID
}

// Section 5, webhooks: one is made, tested, looked at, and its deliveries are sent again; its secret is shown once.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/webhooks")
	p.heading("Webhooks")
	click(t, p.button("New webhook").First())
	dialog := p.dialog("New webhook")
	must(t, field(dialog, "URL").Fill("https://10.0.0.1/hook"))
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "URL")).ToHaveAttribute("aria-invalid", "true"))
	must(t, field(dialog, "URL").Fill(to.url))
	must(t, field(dialog, "Description").Fill("For "+hostile))
	must(t, dialog.GetByLabel("All events").Uncheck())
	p.accessible("New webhook")
	must(t, dialog.GetByLabel("run.completed").Check())
	click(t, within(dialog, "button", "Create"))
	once := p.dialog("Shown once")
	secret, err := once.GetByRole("textbox").InputValue()
	must(t, err)
	p.accessible("a webhook's secret")
	click(t, within(once, "button", "I have stored it"))
	gone(t, once)
	left, err := p.Evaluate(`(s) => document.documentElement.innerHTML.includes(s) || JSON.stringify(localStorage).includes(s)`, secret)
	must(t, err)
	if secret == "" || left.(bool) {
		t.Error("the secret is still in the page")
	}
	row := p.byRole("table", "Webhooks").Locator("tr", playwright.LocatorLocatorOptions{HasText: to.url})
	contains(t, row, "U+202E")
	click(t, row.GetByRole("link"))
	hasURL(t, p, `/console/webhooks/[0-9a-f-]+$`)

	click(t, p.button("Send test").First())
	one := p.Locator("section.delivery")
	contains(t, one, "succeeded")
	must(t, expect.Locator(one.GetByRole("list", named0("Attempts")).Locator("li")).ToHaveCount(1))
	contains(t, one.GetByRole("list", named0("Attempts")), "200")
	click(t, one.GetByText("Body", playwright.LocatorGetByTextOptions{Exact: playwright.Bool(true)}))
	contains(t, one.Locator("pre"), `"type"`)
	p.accessible("a delivery")
	hasURL(t, p, `delivery=[0-9a-f-]+$`)
	at, err := url.Parse(p.URL())
	must(t, err)
	tested := at.Query().Get("delivery")
	p.reload()
	contains(t, one, "succeeded")
	click(t, one.GetByRole("button", named0("Redeliver")))
	until(t, "it is sent again", func() bool { return to.attempts(tested) == 2 })
	must(t, expect.Locator(one.GetByRole("list", named0("Attempts")).Locator("li")).ToHaveCount(2))

	// A receiver that fails: the delivery waits for its next attempt. What changes shows without a reload.
	click(t, one.GetByRole("button", named0("Close")))
	to.broken.Store(true)
	agent, _ := shared.policed(t)
	shared.reaches(t, shared.run(t, agent, "/say done"), "succeeded")
	failing := p.byRole("table", "Deliveries").Locator("tr", playwright.LocatorLocatorOptions{HasText: "run.completed"})
	click(t, p.GetByRole("button", playwright.PageGetByRoleOptions{Name: regexp.MustCompile(`^Show \d+ new$`)})) // what is new waits until it is asked for
	contains(t, failing.First(), "pending")
	contains(t, failing.First(), "500")
	pick(t, p.Locator("main").GetByLabel("Status"), "failed")
	contains(t, p.Locator("main"), "Nothing fits these filters")
	p.accessible("no deliveries that fit")
	click(t, p.button("Clear filters"))
	visible(t, failing.First())

	tests := p.byRole("table", "Deliveries").Locator("tr", playwright.LocatorLocatorOptions{HasText: "webhook.test"})
	pick(t, p.Locator("main").GetByLabel("Type"), "webhook.test")
	hasURL(t, p, `type=webhook\.test$`)
	visible(t, tests.First())
	gone(t, failing)
	p.goTo(strings.Replace(p.URL(), "webhook.test", "webhook.tes", 1)) // an unknown value is ignored
	visible(t, failing.First())

	click(t, p.button("Rotate secret"))
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	click(t, within(ask, "button", "Rotate secret"))
	click(t, within(once, "button", "I have stored it"))
	click(t, p.button("Recover"))
	dialog = p.dialog("Recover")
	must(t, field(dialog, "Since").Fill("2026-01-01T00:00"))
	p.accessible("Recover")
	click(t, within(dialog, "button", "Recover"))
	gone(t, dialog)
	click(t, p.button("Disable"))
	click(t, within(ask, "button", "Disable"))
	visible(t, p.button("Enable"))
	click(t, p.button("Delete"))
	click(t, within(ask, "button", "Delete"))
	must(t, expect.Locator(p.byRole("table", "Webhooks").Locator("tr", playwright.LocatorLocatorOptions{HasText: to.url})).ToHaveCount(0))
}

// A person who leaves the page while a change is under way, or opens another dialog, is neither
// led away nor interrupted by its answer; the change is made.
func TestAChangeUnderWayIsAbandoned(t *testing.T) {
	t.Parallel()
	kept, deleted := shared.hook(t, newReceiver(t).url, "run.failed"), shared.hook(t, newReceiver(t).url, "run.failed")
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/webhooks/"+kept)
	under, answer := make(chan struct{}, 2), make(chan struct{})
	must(t, p.Route(regexp.MustCompile(`/v1/webhooks/[0-9a-f-]+$`), func(r playwright.Route) {
		if m := r.Request().Method(); m != "DELETE" && m != "PATCH" {
			_ = r.Continue()
			return
		}
		under <- struct{}{}
		go func() {
			<-answer
			_ = r.Continue()
		}()
	}))
	ask := p.GetByRole("alertdialog")
	click(t, p.button("Disable"))
	click(t, within(ask, "button", "Disable"))
	<-under
	p.press("Escape")
	gone(t, ask)
	click(t, p.button("Rotate secret"))
	answer <- struct{}{}
	until(t, "it is disabled", func() bool {
		var w struct{ Enabled bool }
		shared.call(t, "GET", "/v1/webhooks/"+kept, nil, &w)
		return !w.Enabled
	})
	visible(t, p.Locator("main").GetByText("disabled").First()) // by the feed
	visible(t, within(ask, "button", "Rotate secret"))
	must(t, expect.Locator(ask.GetByRole("alert")).ToHaveCount(0))
	click(t, within(ask, "button", "Cancel"))

	p.goTo("/console/webhooks/" + deleted)
	click(t, p.button("Delete"))
	click(t, within(ask, "button", "Delete"))
	<-under
	p.press("Escape")
	gone(t, ask)
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Usage")))
	p.heading("Usage")
	said, err := p.ExpectResponse(regexp.MustCompile(deleted), func() error { answer <- struct{}{}; return nil })
	must(t, err)
	if said.Status() != 204 {
		t.Errorf("it is not deleted: %d", said.Status())
	}
	_, err = p.Evaluate(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))`) // what follows an answer has followed
	must(t, err)
	p.heading("Usage")
	hasURL(t, p, `/console/usage$`)
}

// A value that is shown once is not lost while its answer is under way: the dialog stays, and leaving the page asks. Where the browser
// has no clipboard, as over plain HTTP, Copy says so and selects the value.
func TestASecretUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	hook := shared.hook(t, newReceiver(t).url, "run.failed")
	v := visit(t, shared, look{})
	must(t, v.AddInitScript(playwright.Script{Content: playwright.String(`Object.defineProperty(navigator, "clipboard", { value: undefined });`)}))
	p := v.as("admin", "/console/webhooks")
	click(t, p.byRole("table", "Webhooks").Locator(`[data-id="`+hook+`"]`).GetByRole("link"))
	under, answer := make(chan struct{}), make(chan struct{})
	must(t, p.Route("**/rotate-secret", func(r playwright.Route) {
		close(under)
		go func() {
			<-answer
			_ = r.Continue()
		}()
	}))
	click(t, p.button("Rotate secret"))
	ask := p.GetByRole("alertdialog")
	click(t, within(ask, "button", "Rotate secret"))
	<-under
	p.press("Escape")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeDisabled())
	_, err := p.Evaluate("history.back()")
	must(t, err)
	leave := p.alertdialog("Leave without saving?")
	contains(t, leave, "shown once: wait for it")
	click(t, within(leave, "button", "Cancel"))
	close(answer)
	once := p.dialog("Shown once")
	box := field(once, "Secret")
	click(t, within(once, "button", "Copy"))
	contains(t, once.GetByRole("alert"), "The value is selected")
	must(t, expect.Locator(box).ToBeFocused())
	value, err := box.InputValue()
	must(t, err)
	if selected, err := p.Evaluate("getSelection().toString()"); err != nil || value == "" || selected != value {
		t.Errorf("%q is selected of %q, %v", selected, value, err)
	}
	p.accessible("a value that cannot be copied")
	click(t, within(once, "button", "I have stored it"))
	gone(t, once)
}

// Section 5: webhooks and the audit are for admins.
func TestWebhooksAndAuditAreForAdmins(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("member", "/console/webhooks")
	for _, path := range []string{"webhooks", "audit"} {
		p.goTo("/console/" + path)
		p.heading("No access")
		contains(t, p.Locator("main"), "admin")
		must(t, expect.Locator(p.byRole("navigation", "Main").Locator(`a[href$="/`+path+`"]`)).ToHaveCount(0))
	}
}

// Section 5, audit: what was done elsewhere shows; filters are in the address.
func TestAudit(t *testing.T) {
	t.Parallel()
	hook := shared.hook(t, newReceiver(t).url, "run.failed")
	p := visit(t, shared, look{}).as("admin", "/console/audit?target="+hook)
	p.heading("Audit")
	rows := p.byRole("table", "Audit").Locator("tr[data-id]")
	must(t, expect.Locator(rows).ToHaveCount(1))
	contains(t, rows.First(), "webhook.create")
	shared.call(t, "PATCH", "/v1/webhooks/"+hook, object{"description": "changed " + hostile}, nil)
	must(t, p.button("Show 1 new").Or(rows.Nth(1)).First().WaitFor())
	p.reload()
	must(t, expect.Locator(rows).ToHaveCount(2))
	must(t, field(p.Locator("main"), "Action").Fill("webhook.create"))
	p.press("Enter")
	must(t, expect.Locator(rows).ToHaveCount(1))
	hasURL(t, p, `action=webhook\.create`)
	must(t, field(p.Locator("main"), "Action").Fill("agent.publish"))
	p.press("Enter")
	contains(t, p.Locator("main"), "Nothing fits these filters")
	click(t, p.button("Clear filters").First())
	visible(t, rows.First())
	must(t, field(p.Locator("main"), "Actor").Fill("nobody"))
	p.press("Enter")
	contains(t, p.Locator("main"), "Nothing fits these filters")
	p.accessible("a filter that nothing fits")
}
