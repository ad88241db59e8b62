package consolecheck

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// These have a service of their own: the counts are exact, and it is killed.
func TestLive(t *testing.T) {
	t.Parallel()
	s := own(t)
	t.Run("changes elsewhere", func(t *testing.T) { changesElsewhere(t, s) })
	t.Run("the service is killed", func(t *testing.T) { theServiceIsKilled(t, s) })
}

// Section 4: what changes elsewhere shows by itself, and nothing moves under the hand.
func changesElsewhere(t *testing.T, s *service) {
	agent, _ := s.policed(t, policy("low"))
	email := s.person(t, "admin")
	v := visit(t, s, look{})
	p := v.signedIn(email, "/console/approvals")
	must(t, expect.Locator(p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No approvals yet"})).ToBeVisible())
	// In an empty list a new item shows at once.
	a := s.refund(t, agent, 1, "one")
	must(t, expect.Locator(p.items()).ToHaveCount(1))
	b := s.refund(t, agent, 2, "two")
	s.refund(t, agent, 3, "three")
	must(t, expect.Page(p.Page).ToHaveTitle("(3) Approvals · svc"))
	visible(t, p.button("Show 2 new"))
	must(t, expect.Locator(p.items()).ToHaveCount(1))
	s.call(t, "POST", "/v1/approvals/"+a.ID+"/decision", object{"action": "reject"}, nil)
	must(t, expect.Locator(p.item(a.ID).GetByRole("link")).ToHaveAccessibleName(tool+", rejected"))
	must(t, p.button("Show 2 new").Click())
	must(t, expect.Locator(p.items()).ToHaveCount(3))
	visible(t, p.item(b.ID))
	must(t, expect.Page(p.Page).ToHaveTitle("(2) Approvals · svc"))
	must(t, expect.Locator(p.byRole("status", "Connection")).ToHaveText("Live"))
	// The audit follows decisions, and what is done to runs, without any change of another object.
	run := s.run(t, agent, "/delay 1s\n/tokens 60")
	s.reaches(t, run, "running")
	entries := p.byRole("table", "Audit").Locator("tr[data-id]")
	p.goTo("/console/audit?target=" + b.ID)
	contains(t, p.Locator("main"), "Nothing fits these filters")
	s.call(t, "POST", "/v1/approvals/"+b.ID+"/decision", object{"action": "reject"}, nil)
	contains(t, entries.First(), "approval.decide")
	p.goTo("/console/audit?target=" + run)
	contains(t, entries.First(), "run.manual")
	s.call(t, "POST", "/v1/runs/"+run+"/cancel", nil, nil)
	click(t, p.button("Show 1 new"))
	contains(t, entries.First(), "run.cancel")
}

// Section 4: the service is killed and comes back: data stays, and all is fresh without a reload.
func theServiceIsKilled(t *testing.T, s *service) {
	agent, _ := s.policed(t, policy("low"))
	a := s.refund(t, agent, 1, "one")
	v := visit(t, s, look{})
	p := v.signedIn(s.person(t, "admin"), "/console/approvals/"+a.ID)
	visible(t, p.region())
	must(t, p.region().GetByRole("button", named0("Reject")).Click())
	must(t, p.box("Reason").Fill("typed before the crash"))
	s.kill()
	must(t, expect.Locator(p.Locator("[role=status][aria-label=Connection]")).ToHaveText("Reconnecting"))
	must(t, p.byRole("dialog", "Reject "+tool).GetByRole("button", named0("Reject")).Click())
	must(t, expect.Locator(p.byRole("dialog", "Reject "+tool).GetByRole("alert")).ToContainText("Not sent"))
	must(t, s.start())
	must(t, expect.Locator(p.Locator("[role=status][aria-label=Connection]")).ToHaveText("Live"))
	if typed, err := p.box("Reason").InputValue(); err != nil || typed != "typed before the crash" {
		t.Errorf("the reason is %q, %v", typed, err)
	}
	must(t, p.button("Try again").Click())
	until(t, "it is rejected", func() bool { return s.approval(t, a.ID).Status == "rejected" })
	must(t, expect.Locator(p.region()).ToContainText("rejected"))
}

// Section 4: eight tabs over HTTP/1.1 share one feed.
func TestEightTabs(t *testing.T) {
	t.Parallel()
	email := shared.person(t, "member")
	v := visit(t, shared, look{})
	p := v.signedIn(email, "/console/")
	p.heading("Home")
	var last *tab
	for range 7 {
		last = v.tab()
		last.goTo("/console/approvals")
		last.heading("Approvals")
		must(t, expect.Locator(last.byRole("status", "Connection")).ToHaveText("Live"))
	}
	if res, err := http.Get(shared.url() + "/healthz"); err != nil || res.StatusCode != 200 {
		t.Error(err)
	}
}

// Section 4: another version runs: a bar says so, and nothing is reloaded by itself.
func TestAnotherVersionRuns(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	// A feed that the service ends again and again.
	must(t, v.Route(regexp.MustCompile(`/v1/feed`), func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("text/event-stream"), Body: "event: feed.ready\ndata: {\"type\":\"feed.ready\"}\n\n"})
	}))
	p := v.signedIn(shared.person(t, "member"), "/console/")
	p.heading("Home")
	must(t, expect.Locator(p.byRole("status", "Connection")).ToHaveText("Live"))
	if n, err := p.button("Reload").Count(); err != nil || n != 0 {
		t.Errorf("%d bars before, %v", n, err)
	}
	must(t, p.Route(regexp.MustCompile(`/console/$`), func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), Headers: map[string]string{"ETag": `"another"`, "Content-Type": "text/html"}, Body: "<!doctype html>"})
	}))
	visible(t, p.button("Reload"))
}
