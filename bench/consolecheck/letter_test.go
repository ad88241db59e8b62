package consolecheck

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

func problem(r playwright.Route, status int, code string, headers map[string]string) {
	body, _ := json.Marshal(object{"type": "about:blank", "title": "Refused", "status": status, "code": code, "detail": "By the test."})
	_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(status), ContentType: playwright.String("application/problem+json"), Headers: headers, Body: body})
}

// Section 2: TENANT_REQUIRED shows Tenant ID, the rest stays; 429 tells the seconds left.
func TestTheSignInAsksForTheTenant(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.tab()
	var asked atomic.Int32
	sent := make(chan object, 4)
	must(t, p.Route("**/v1/auth/login", func(r playwright.Route) {
		var in object
		_ = r.Request().PostDataJSON(&in)
		sent <- in
		if asked.Add(1) == 1 {
			problem(r, 400, "TENANT_REQUIRED", nil)
			return
		}
		problem(r, 429, "RATE_LIMITED", map[string]string{"Retry-After": "40"})
	}))
	p.goTo("/console/login")
	gone(t, p.box("Tenant ID"))
	p.signIn("kim@example.com", password)
	must(t, expect.Locator(p.box("Tenant ID")).ToBeFocused())
	must(t, expect.Locator(p.box("E-mail")).ToHaveValue("kim@example.com"))
	must(t, expect.Locator(p.box("Password")).ToHaveValue(password))
	p.accessible("the sign-in with a tenant")
	if first := <-sent; first["tenant_id"] != nil {
		t.Errorf("sent at first: %v", first)
	}
	must(t, p.box("Tenant ID").Fill(shared.tenant))
	must(t, p.button("Sign in").Click())
	if second := <-sent; second["tenant_id"] != shared.tenant || second["email"] != "kim@example.com" || second["password"] != password {
		t.Errorf("sent then: %v", second)
	}
	must(t, expect.Locator(p.GetByRole("alert")).ToHaveText(regexp.MustCompile(`\b(39|40) s\b`)))
	must(t, expect.Locator(p.GetByRole("alert")).ToHaveText(regexp.MustCompile(`\b37 s\b`))) // it counts, and is spoken every 3 s
}

// Section 2: the one-time link leads to its next; a hostile one is refused, and uses nothing up.
func TestTheOneTimeLinkLeadsOn(t *testing.T) {
	t.Parallel()
	admin := shared.bySession(t)
	user := admin("POST", "/v1/users", object{"email": fmt.Sprintf("linked-%d@example.com", numbered.Add(1)), "name": "Linked", "role": "member"})
	link := admin("POST", "/v1/users/"+user["id"].(string)+"/login-link", object{})["url"].(string)
	for _, next := range []string{"//evil.example/", "https://evil.example/console/", "/console/../x", "javascript:alert(1)"} {
		if res, body := shared.fetch(t, strings.TrimPrefix(link, shared.url())+"?next="+url.QueryEscape(next)); res.StatusCode != 400 || strings.Contains(body, "evil.example") {
			t.Errorf("%s: %s", next, res.Status)
		}
	}
	p := visit(t, shared, look{}).tab()
	p.goTo(link + "?next=" + url.QueryEscape("/console/approvals?tab=decided"))
	must(t, p.button("Sign in").Click())
	hasURL(t, p, `/console/approvals\?tab=decided$`)
	p.heading("Approvals")
}

// bySession returns calls of the API with an admin's session.
func (s *service) bySession(t *testing.T) func(method, path string, in object) object {
	t.Helper()
	m := s.one(t, "admin")
	return func(method, path string, in object) object {
		t.Helper()
		body, err := json.Marshal(in)
		must(t, err)
		q, err := http.NewRequest(method, s.url()+path, strings.NewReader(string(body)))
		must(t, err)
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("X-Svc-CSRF", "1")
		for _, c := range m.cookies {
			q.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
		}
		res, err := http.DefaultClient.Do(q)
		must(t, err)
		defer res.Body.Close()
		var out object
		must(t, json.NewDecoder(res.Body).Decode(&out))
		if res.StatusCode >= 300 {
			t.Fatalf("%s %s: %s %v", method, path, res.Status, out)
		}
		return out
	}
}

// Section 2: who signs in again as somebody else comes to Home, and nothing is kept.
func TestSignedInAgainAsSomebodyElse(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a := shared.refund(t, agent, 12.5, "broken")
	other := shared.person(t, "member")
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/approvals/"+a.ID)
	must(t, p.region().GetByRole("button", named0("Reject")).Click())
	must(t, p.box("Reason").Fill("typed by the first person"))
	must(t, v.ClearCookies())
	must(t, p.byRole("dialog", "Reject "+tool).GetByRole("button", named0("Reject")).Click())
	visible(t, p.byRole("dialog", "Sign in again"))
	must(t, p.box("E-mail").Fill(other))
	must(t, p.box("Password").Fill(password))
	must(t, p.button("Sign in").Click())
	p.heading("Home")
	hasURL(t, p, `/console/$`)
	gone(t, p.GetByRole("dialog"))
	p.nowhere("typed by the first person")
	if got := shared.approval(t, a.ID).Status; got != "pending" {
		t.Errorf("it is %s", got)
	}
}

// Section 2: a change carries its headers; a repeat after a lost answer carries the same key.
func TestARepeatIsTheSameChange(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a := shared.refund(t, agent, 12.5, "broken")
	p := visit(t, shared, look{}).as("admin", "/console/approvals/"+a.ID)
	keys := make(chan string, 4)
	must(t, p.Route("**/decision", func(r playwright.Route) {
		h := r.Request().Headers()
		if h["x-svc-csrf"] != "1" {
			t.Errorf("X-Svc-CSRF: %q", h["x-svc-csrf"])
		}
		keys <- h["idempotency-key"]
		if len(keys) == 1 {
			// It is done, but the answer is lost.
			if _, err := r.Fetch(); err != nil {
				t.Error(err)
			}
			_ = r.Abort("connectionreset")
			return
		}
		_ = r.Continue()
	}))
	must(t, p.region().GetByRole("button", named0("Approve")).Click())
	contains(t, p.region().GetByRole("alert"), "Not sent")
	must(t, p.region().GetByRole("alert").GetByRole("button", named0("Try again")).Click())
	contains(t, p.region().GetByRole("status"), "Approved")
	first, second := <-keys, <-keys
	if first == "" || first != second {
		t.Errorf("the keys are %q and %q", first, second)
	}
	if n := len(shared.approval(t, a.ID).Decisions); n != 1 {
		t.Errorf("%d decisions", n)
	}
}

// Section 3: the navigation is in the order of section 5; members see no links to what is above them.
func TestTheOrderOfTheNavigation(t *testing.T) {
	t.Parallel()
	for role, want := range map[string][]string{
		"admin":  {"Home", "Approvals", "Playground", "Runs", "Agents", "Workflows", "Triggers", "Tools", "Policies", "Knowledge", "Browser skills", "Webhooks", "Embed", "End users", "Usage", "Audit", "Settings", "API"},
		"member": {"Home", "Approvals", "Playground", "Runs", "Agents", "Workflows", "Knowledge", "Browser skills", "End users", "Usage", "API"},
	} {
		p := visit(t, shared, look{}).as(role, "/console/")
		p.heading("Home")
		got, err := p.byRole("navigation", "Main").Locator("a span:not(.badge)").AllTextContents()
		must(t, err)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v", role, got)
		}
	}
}

// Section 3: times are relative, exact on focus, and follow the setting; the setting is kept.
func TestTimesFollowTheSetting(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "hello")
	shared.reaches(t, run, "succeeded")
	p := visit(t, shared, look{}).as("member", "/console/runs/"+run)
	at := p.Locator(".facts-grid time").First()
	must(t, expect.Locator(at).ToHaveText(regexp.MustCompile(`^(just now|\d+ (s|min) ago)$`)))
	iso, err := at.GetAttribute("datetime")
	must(t, err)
	when, err := time.Parse(time.RFC3339, iso)
	if err != nil || time.Since(when) > time.Hour {
		t.Errorf("datetime is %q, %v", iso, err)
	}
	exact := func() string {
		t.Helper()
		must(t, at.Focus())
		shown, err := at.Evaluate(`e => getComputedStyle(e, "::after").content`, nil)
		must(t, err)
		return shown.(string)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	if got, want := exact(), when.In(berlin).Format("2006-01-02 15:04:05.000"); !strings.Contains(got, want) {
		t.Errorf("exact: %s, want %s", got, want)
	}
	must(t, p.button("Account").Click())
	must(t, p.byRole("menuitemradio", "UTC").Click())
	p.press("Escape")
	for range 2 {
		if got, want := exact(), when.UTC().Format("2006-01-02 15:04:05.000")+" UTC"; !strings.Contains(got, want) {
			t.Errorf("exact in UTC: %s, want %s", got, want)
		}
		p.reload()
		visible(t, at)
	}
	must(t, expect.Locator(p.button("Copy ID")).ToBeVisible())
}

// Section 3: shortcuts do nothing with modifiers, on key repeat, in fields and in dialogs.
func TestShortcutsKeepOut(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("member", "/console/runs")
	p.heading("Runs")
	key := func(k, more string) {
		t.Helper()
		_, err := p.Evaluate(fmt.Sprintf(`document.body.dispatchEvent(new KeyboardEvent("keydown", {key: %q, bubbles: true, cancelable: true, %s}))`, k, more))
		must(t, err)
	}
	for _, more := range []string{"ctrlKey: true", "altKey: true", "metaKey: true", "repeat: true", "isComposing: true"} {
		key("?", more)
		key("g", more)
		key("h", more)
	}
	must(t, p.Locator("main select").First().Focus())
	p.press("?")
	gone(t, p.GetByRole("dialog"))
	p.heading("Runs")
	must(t, p.Locator("h1").Focus())
	p.press("?")
	list := p.byRole("dialog", "Keyboard shortcuts")
	for _, k := range []string{"?", "/", "g then h", "g then a", "g then p", "g then r", "j, k", "a, e, r, b", "x", "Enter", "f", "Esc"} {
		contains(t, list, k)
	}
	p.press("g", "h")
	visible(t, list)
	p.press("Escape")
	p.heading("Runs")
	p.press("g", "p")
	p.heading("Playground")
	p.press("g", "r") // the focus is on the heading
	p.heading("Runs")
}

// Section 3: Change password; the wrong one is told at its field.
func TestChangingThePassword(t *testing.T) {
	t.Parallel()
	email := shared.person(t, "member")
	v := visit(t, shared, look{})
	p := v.signedIn(email, "/console/")
	must(t, p.button("Account").Click())
	must(t, p.byRole("menuitem", "Change password").Click())
	dialog := p.byRole("dialog", "Change password")
	current, fresh := field(dialog, "Current password"), field(dialog, "New password")
	must(t, current.Fill("the wrong password"))
	must(t, fresh.Fill("another long password"))
	p.accessible("Change password")
	send := dialog.Locator("button[type=submit]")
	// answer sends the form and returns what the dialog says of it, "" once it is gone. Passwords are hashed a few at
	// a time, and attempts are limited: it is sent again only if there was no place.
	answer := func() (said string) {
		for said = "UNAVAILABLE"; strings.Contains(said, "UNAVAILABLE"); {
			before := said
			must(t, send.Click())
			until(t, "it is answered", func() bool {
				all, err := dialog.Locator("[role=alert], [aria-invalid=true]").AllInnerTexts()
				must(t, err)
				n, err := dialog.Count()
				must(t, err)
				said = strings.Join(all, " ")
				return n == 0 || len(all) > 0 && said != before
			})
		}
		return said
	}
	answer()
	must(t, expect.Locator(dialog).ToBeVisible())
	must(t, expect.Locator(fresh).ToHaveValue("another long password"))
	must(t, current.Fill(password))
	must(t, send.Click())
	must(t, expect.Locator(dialog).ToHaveCount(0))
	q := visit(t, shared, look{}).tab()
	q.goTo("/console/login")
	q.signIn(email, "another long password")
	q.heading("Home")
}

// Section 4: after 15 s without the service the status is Offline, with its time; data stays.
func TestOfflineSaysSinceWhen(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "hello")
	v := visit(t, shared, look{})
	var lost atomic.Bool
	must(t, v.Route(regexp.MustCompile(`/v1/feed`), func(r playwright.Route) {
		if lost.Load() {
			_ = r.Abort("connectionrefused")
			return
		}
		// A feed that ends again and again, so that the next one can be refused.
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("text/event-stream"), Body: "event: feed.ready\ndata: {\"type\":\"feed.ready\"}\n\n"})
	}))
	p := v.as("member", "/console/runs?agent="+agent)
	row := p.byRole("table", "Runs").Locator(`[data-id="` + run + `"]`)
	visible(t, row)
	status := p.Locator("[role=status][aria-label=Connection]")
	must(t, expect.Locator(status).ToHaveText("Live"))
	lost.Store(true)
	must(t, expect.Locator(status).ToHaveText("Reconnecting"))
	must(t, expect.Locator(status).ToHaveText(regexp.MustCompile(`^Offline, as of \d+ \w+ \d{4}, \d\d:\d\d (CET|CEST|GMT\+[12])$`)))
	visible(t, row)
	p.accessible("offline")
	lost.Store(false)
	must(t, expect.Locator(status).ToHaveText("Live"))
	visible(t, row)
}

// Section 5: 429 and 503 wait their Retry-After, and go on by themselves.
func TestARefusedListWaits(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 503} {
		p := visit(t, shared, look{}).as("member", "/console/")
		p.heading("Home")
		var calls atomic.Int32
		must(t, p.Route(regexp.MustCompile(`/v1/agents\?`), func(r playwright.Route) {
			if calls.Add(1) <= 1 {
				problem(r, status, map[int]string{429: "RATE_LIMITED", 503: "UNAVAILABLE"}[status], map[string]string{"Retry-After": "2", "X-Request-Id": "req-of-the-test"})
				return
			}
			_ = r.Continue()
		}))
		p.goTo("/console/agents")
		alert := p.Locator("main").GetByRole("alert")
		contains(t, alert, "By the test.")
		contains(t, alert, "req-of-the-test")
		must(t, expect.Locator(alert.GetByRole("button", named0("Try again"))).ToBeDisabled())
		gone(t, p.GetByText("No agents yet"))
		visible(t, p.byRole("table", "Agents"))
		gone(t, alert)
	}
}

// Section 5, once more: a page that is opened while the service refuses, and the next page of a list, go on by themselves as well.
func TestWhatIsRefusedGoesOn(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("member", "/console/")
	p.heading("Home")
	var who, pages atomic.Int32
	refusal := object{"title": "Refused", "status": 503, "code": "UNAVAILABLE", "detail": "By the test.", "retry_after": 2}
	must(t, p.Route("**/v1/auth/me", func(r playwright.Route) {
		if who.Add(1) == 1 {
			problem(r, 503, "UNAVAILABLE", map[string]string{"Retry-After": "2"})
			return
		}
		_ = r.Continue()
	}))
	p.answered(`/v1/agents\?`, func(q url.Values) (int, any) {
		n := 1
		out := object{"next_cursor": "next"}
		if q.Get("cursor") != "" {
			if pages.Add(1) == 1 {
				return 503, refusal
			}
			n, out = 2, object{"next_cursor": nil}
		}
		out["items"] = []object{{"id": fmt.Sprintf("01a2161d-0000-7000-8000-%012x", n), "slug": fmt.Sprintf("agent-%d", n), "name": fmt.Sprintf("Agent number %d", n), "emoji": "", "description": "", "published_version": 1, "latest_version": 1, "node_id": nil, "created_at": "2026-11-26T04:00:00Z", "updated_at": "2026-11-26T04:00:00Z"}}
		return 200, out
	})
	p.goTo("/console/agents")
	contains(t, p.GetByRole("alert"), "It is tried again in")
	p.heading("Agents")
	contains(t, p.Locator("main").GetByRole("alert"), "By the test.")
	visible(t, p.byRole("table", "Agents").GetByRole("link", named0("Agent number 2")))
	gone(t, p.GetByRole("alert"))
}

// Section 5: 100 a page, more by Load more and on scrolling; above 200 rows the table is virtual and says how long it is.
func TestALongList(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("member", "/console/")
	p.heading("Home")
	const all = 430
	page := func(from int) object {
		items := []object{}
		for i := from; i < min(from+100, all); i++ {
			id := fmt.Sprintf("01a2161d-0000-7000-8000-%012x", i)
			items = append(items, object{"id": id, "slug": fmt.Sprintf("agent-%d", i), "name": fmt.Sprintf("Agent number %d", i), "emoji": "", "description": "", "published_version": 1, "latest_version": 1, "node_id": nil, "created_at": "2026-11-26T04:00:00Z", "updated_at": "2026-11-26T04:00:00Z"})
		}
		out := object{"items": items, "next_cursor": nil}
		if from+100 < all {
			out["next_cursor"] = fmt.Sprint(from + 100)
		}
		return out
	}
	p.answered(`/v1/agents\?`, func(q url.Values) (int, any) {
		if l := q.Get("limit"); l != "100" {
			t.Errorf("limit is %q", l)
		}
		from := 0
		_, _ = fmt.Sscan(q.Get("cursor"), &from)
		return 200, page(from)
	})
	p.goTo("/console/agents")
	table := p.byRole("table", "Agents")
	must(t, expect.Locator(table.Locator("tbody tr[data-id]")).ToHaveCount(100))
	must(t, p.button("Load more").Click())
	until(t, "all is read by scrolling", func() bool {
		_, err := p.Evaluate("scrollTo(0, document.documentElement.scrollHeight)")
		must(t, err)
		n, err := p.button("Load more").Count()
		must(t, err)
		return n == 0
	})
	must(t, expect.Locator(table).ToHaveAttribute("aria-rowcount", fmt.Sprint(all+1)))
	last := table.Locator(`tr[data-id="01a2161d-0000-7000-8000-` + fmt.Sprintf("%012x", all-1) + `"]`)
	until(t, "the last row is scrolled to", func() bool {
		_, err := p.Evaluate("scrollTo(0, document.documentElement.scrollHeight)")
		must(t, err)
		n, err := last.Count()
		must(t, err)
		return n == 1
	})
	must(t, expect.Locator(last).ToHaveAttribute("aria-rowindex", fmt.Sprint(all+1)))
	must(t, expect.Locator(last.GetByRole("link")).ToHaveCount(1))
	n, err := table.Locator("tbody tr[data-id]").Count()
	must(t, err)
	if n > 150 {
		t.Errorf("%d of %d rows are drawn", n, all)
	}
	p.accessible("a long list")
}

// Section 8: of a thousand tools those in view are drawn, and of a level of the tree two hundred nodes at a time.
func TestLongTablesOfAnAgentAndTheTree(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	p := visit(t, shared, look{}).as("admin", "/console/")
	p.heading("Home")
	p.answered("/v1/agents/"+agent+"/tools", func(url.Values) (int, any) {
		items := []object{}
		for i := range 1000 {
			items = append(items, object{"tool": fmt.Sprintf("demo.tool%04d", i), "source": "mcp", "description": strings.Repeat("It does this and that. ", 20), "input_schema": object{}})
		}
		return 200, object{"items": items, "next_cursor": nil}
	})
	p.goTo("/console/agents/" + agent + "?tab=tools")
	table := p.byRole("table", "Callable tools")
	must(t, expect.Locator(table).ToHaveAttribute("aria-rowcount", "1001"))
	contains(t, table, "demo.tool0000")
	until(t, "the last tool is scrolled to", func() bool {
		_, err := p.Evaluate("scrollTo(0, document.documentElement.scrollHeight)")
		must(t, err)
		n, err := table.GetByText("demo.tool0999").Count()
		must(t, err)
		return n == 1
	})
	if n := p.nodes(); n > maxNodes {
		t.Errorf("%d nodes, budget %d", n, maxNodes)
	}
	p.accessible("a thousand tools")

	p.answered(`/v1/org-nodes\?`, func(url.Values) (int, any) {
		items := []object{}
		for i := range 450 {
			items = append(items, object{"id": fmt.Sprintf("01a2161d-0000-7000-8000-%012x", i), "name": fmt.Sprintf("Node %04d", i), "parent_id": nil, "manager_ids": []string{}})
		}
		return 200, object{"items": items, "next_cursor": nil}
	})
	p.goTo("/console/settings?tab=org")
	nodes := p.byRole("list", "Org nodes").Locator("> li[data-id]")
	must(t, expect.Locator(nodes).ToHaveCount(200))
	click(t, p.button("Show more"))
	must(t, expect.Locator(nodes).ToHaveCount(400))
	must(t, expect.Locator(nodes.Nth(200).GetByRole("button").First()).ToBeFocused())
	click(t, p.button("Show more"))
	must(t, expect.Locator(nodes).ToHaveCount(450))
	must(t, expect.Locator(nodes.Nth(400).GetByRole("button").First()).ToBeFocused())
	gone(t, p.button("Show more"))
}

// Section 5, Home: what is needed links to its place; First steps can be dismissed for good; the chart follows what happens.
func TestHome(t *testing.T) {
	t.Parallel()
	s := own(t)
	v := visit(t, s, look{})
	p := v.signedIn(s.person(t, "admin"), "/console/")
	p.heading("Home")
	steps := p.byRole("list", "First steps")
	must(t, expect.Locator(steps.GetByRole("listitem")).ToHaveCount(4))
	figure := p.GetByRole("figure", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^Runs of the last 24 hours")})
	contains(t, figure, "0 succeeded")
	needs := p.byRole("list", "What needs you")
	must(t, expect.Locator(needs.GetByRole("listitem")).ToHaveText("Nothing needs you."))
	agent, _ := s.policed(t, policy("high"))
	s.reaches(t, s.run(t, agent, "hello"), "succeeded")
	contains(t, figure, "1 succeeded") // without a reload
	contains(t, steps.GetByRole("listitem").Filter(playwright.LocatorFilterOptions{HasText: "Talk to an agent"}), "(done)")
	s.refund(t, agent, 12.5, "broken")
	must(t, expect.Locator(needs.GetByRole("link")).ToHaveText("1 approval waiting for you"))
	visible(t, p.byRole("link", "1 waiting for you"))
	waiting := p.byRole("list", "Now").GetByRole("listitem").First()
	contains(t, waiting, "next expires")
	above, _ := s.policed(t, policy("high", "approver_role", "owner"))
	s.reaches(t, s.run(t, above, `/call orders.refund {"order_id":"1001","amount":9,"reason":"late"}`), "waiting_approval")
	must(t, expect.Locator(waiting).Not().ToContainText("next expires")) // it may be the owner's
	visible(t, p.byRole("link", "1 waiting for you"))
	arrives := steps.GetByRole("listitem").Filter(playwright.LocatorFilterOptions{HasText: "See a webhook arrive"})
	hook := s.hook(t, newReceiver(t).url, "approval.decided")
	p.reload()
	contains(t, steps.GetByRole("listitem").Filter(playwright.LocatorFilterOptions{HasText: "Talk to an agent"}), "(done)")
	must(t, expect.Locator(arrives).Not().ToContainText("(done)"))
	s.call(t, "POST", "/v1/webhooks/"+hook+"/test", nil, nil)
	contains(t, arrives, "(done)")
	must(t, figure.GetByRole("button", named0("Show as table")).Click())
	must(t, expect.Locator(figure.GetByRole("table").Locator("tbody tr")).ToHaveCount(24))
	p.accessible("Home with its table")
	must(t, p.button("Dismiss").Click())
	gone(t, steps)
	p.reload()
	p.heading("Home")
	visible(t, needs)
	gone(t, steps)
	must(t, needs.GetByRole("link").Click())
	p.heading("Approvals")
}

// Section 6: what has become of a call is told by its effect, and no more; a redacted value is read-only.
func TestWhatHasBecomeOfACall(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	a := shared.refund(t, agent, 12.5, "broken")
	p := visit(t, shared, look{}).as("admin", "/console/")
	p.heading("Home")
	var real object
	shared.call(t, "GET", "/v1/approvals/"+a.ID, nil, &real)
	var change atomic.Pointer[object]
	p.answered("/v1/approvals/"+a.ID, func(url.Values) (int, any) {
		out := object{}
		for k, v := range real {
			out[k] = v
		}
		for k, v := range *change.Load() {
			out[k] = v
		}
		return 200, out
	})
	for said, state := range map[string]object{
		"Approved, waiting for 2 others": {"state": "waiting", "waiting_for": 2, "at": nil},
		"Approved, running":              {"state": "running", "waiting_for": 0, "at": nil},
		"Approved, done":                 {"state": "succeeded", "waiting_for": 0, "at": nil},
		"Approved, failed: ":             {"state": "failed", "waiting_for": 0, "at": nil},
		"Approved, outcome unknown":      {"state": "unknown", "waiting_for": 0, "at": nil},
	} {
		change.Store(&object{"status": "approved", "effect": state})
		p.goTo("/console/approvals/" + a.ID)
		contains(t, p.region().GetByRole("status"), said)
		gone(t, p.region().GetByRole("button", named0("Approve")))
	}
	change.Store(&object{"requested_action": object{"tool": tool, "args": object{"order_id": "1001\nfragile", "amount": 5, "reason": "[redacted]"}, "schema": object{"type": "object", "properties": object{"order_id": object{"type": "string"}, "amount": object{"type": "number"}, "reason": object{"type": "string"}}}}})
	p.goTo("/console/approvals/" + a.ID)
	visible(t, p.region())
	p.press("e")
	dialog := p.byRole("dialog", "Edit arguments")
	must(t, expect.Locator(dialog.GetByLabel("Reason")).ToHaveValue("[redacted]"))
	must(t, expect.Locator(dialog.GetByLabel("Reason")).Not().ToBeEditable())
	must(t, expect.Locator(dialog.GetByLabel("Order id")).ToHaveValue("1001\nfragile")) // the line break is in the value, and in the field
	must(t, dialog.GetByRole("tab", named0("JSON")).Click())
	must(t, dialog.GetByRole("textbox", named0("JSON")).Fill(`{"order_id": "1001", "amount": 4, "reason": "mine"}`))
	must(t, expect.Locator(dialog.GetByRole("textbox", named0("JSON"))).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(dialog.GetByRole("button", named0("Approve with changes"))).ToBeDisabled())
}

// Section 6: the gate of a workflow has no Edit, but the reason in words; the items of the list are told apart.
func TestTheInboxTellsCallsApart(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t, policy("low"))
	a, b := shared.refund(t, agent, 12.5, "arrived broken"), shared.refund(t, agent, 48, "wrong size")
	p := visit(t, shared, look{}).as("admin", "/console/approvals?agent="+agent)
	contains(t, p.item(a.ID), name+" · amount 12.5, order_id 1001, reason arrived broken")
	contains(t, p.item(b.ID), "amount 48, order_id 1001, reason wrong size")
	id := shared.workflow(t, "Gated", complaints(agent))
	var run struct {
		RunID string `json:"run_id"`
	}
	shared.call(t, "POST", "/v1/workflows/"+id+"/test-run", object{"input": object{"text": "Broken.", "amount": 80}}, &run)
	shared.reaches(t, run.RunID, "waiting_approval")
	var list struct{ Items []approval }
	shared.call(t, "GET", "/v1/approvals?run_id="+run.RunID, nil, &list)
	p.goTo("/console/approvals/" + list.Items[0].ID)
	gate := p.byRole("region", "workflow:gate")
	visible(t, gate.GetByRole("button", named0("Approve")))
	gone(t, gate.GetByRole("button", named0("Edit")))
	contains(t, gate, "has no arguments to edit")
	must(t, gate.GetByRole("button", named0("Respond")).Click())
	contains(t, p.byRole("dialog", "Respond to workflow:gate"), "The run fails with GATE_REJECTED")
	p.press("Escape")
	must(t, gate.GetByRole("button", named0("Approve")).Click())
	contains(t, p.byRole("alertdialog", "Approve workflow:gate?"), "The workflow goes on.")
	p.press("e")
	gone(t, p.GetByRole("dialog"))
}

// Section 7: a long wait is folded and labelled, and bars are at least 3 px.
func TestALongWaitIsFolded(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("member", "/console/runs")
	p.heading("Runs")
	run := "01a2161d-0000-7000-8000-00000000f01d"
	at := func(s string) string { return "2026-11-2" + s + "Z" }
	step := func(i int, kind, name, from, to string) object {
		return object{"idx": i, "kind": kind, "name": name, "status": "succeeded", "tokens_in": 0, "tokens_out": 0, "cost_usd": 0, "started_at": at(from), "finished_at": at(to)}
	}
	p.answered("/v1/runs/"+run, func(url.Values) (int, any) {
		return 200, object{"run": object{"id": run, "status": "succeeded", "agent_id": nil, "agent_version": nil, "workflow_id": nil, "thread_id": nil, "parent_run_id": nil, "asked": "Refund.", "error": nil, "origin": object{"kind": "api_key", "id": nil}, "end_user_id": nil,
			"tokens_in": 0, "tokens_out": 0, "cost_usd": 0, "created_at": at("5T20:00:00"), "started_at": at("5T20:00:00"), "finished_at": at("6T06:00:04")},
			"steps": []object{step(0, "llm", "sim-1", "5T20:00:00", "5T20:00:02"), step(1, "tool", "demo.orders.get", "5T20:00:02", "5T20:00:02.001"), step(2, "llm", "sim-1", "6T06:00:02", "6T06:00:04")}}
	})
	p.goTo("/console/runs/" + run)
	visible(t, p.row("^Step 2, llm, sim-1, succeeded, 2.0 s$"))
	must(t, expect.Locator(p.byRole("grid", "Steps").Locator(".folded")).ToHaveText("10 h"))
	widths, err := p.Evaluate(`[...document.querySelectorAll(".tl-bar")].map((b) => b.getBoundingClientRect().width)`)
	must(t, err)
	for _, w := range widths.([]any) {
		if n := fmt.Sprint(w); n == "0" || strings.HasPrefix(n, "0.") || n == "1" || n == "2" {
			t.Errorf("a bar is %s px wide", n)
		}
	}
	if len(widths.([]any)) != 3 {
		t.Errorf("bars: %v", widths)
	}
	for _, tab := range []string{"Input", "Output", "Details"} {
		must(t, p.row("^Step 0,").Click())
		must(t, p.byRole("region", "Step 0").GetByRole("tab", named0(tab)).Click())
	}
	visible(t, p.byRole("region", "Step 0").GetByRole("button", named0("Copy")))
}

// Section 3, audit and end users: Back shows the filters of its entry, also in their fields; a value that is none is ignored.
func TestFiltersInFieldsFollowBack(t *testing.T) {
	t.Parallel()
	hook := shared.hook(t, newReceiver(t).url, "run.failed")
	p := visit(t, shared, look{}).as("admin", "/console/audit?action=webhook.create&since=yesterday&until=2001-13-01")
	p.heading("Audit")
	rows := p.byRole("table", "Audit").Locator("tr[data-id]")
	visible(t, rows.First())
	gone(t, p.GetByRole("alert"))
	action := field(p.Locator("main"), "Action")
	must(t, expect.Locator(action).ToHaveValue("webhook.create"))
	must(t, expect.Locator(field(p.Locator("main"), "Since")).ToHaveValue(""))
	p.goTo("/console/audit?target=" + hook)
	must(t, expect.Locator(rows).ToHaveCount(1))
	must(t, p.byRole("navigation", "Main").GetByRole("link", named0("Audit")).Click())
	hasURL(t, p, `/console/audit$`)
	must(t, expect.Locator(field(p.Locator("main"), "Target")).ToHaveValue(""))
	p.back()
	must(t, expect.Locator(field(p.Locator("main"), "Target")).ToHaveValue(hook))
	must(t, expect.Locator(rows).ToHaveCount(1))
	must(t, field(p.Locator("main"), "Since").Fill("2001-01-01T00:00"))
	hasURL(t, p, `since=2000-12-31T23%3A00%3A00Z`)
	must(t, expect.Locator(rows).ToHaveCount(1))
	must(t, p.button("Clear filters").First().Click())
	hasURL(t, p, `/console/audit$`)

	p.goTo("/console/end-users?q=nobody-at-all")
	visible(t, p.GetByText("Nothing fits these filters"))
	must(t, p.byRole("navigation", "Main").GetByRole("link", named0("End users")).Click())
	must(t, expect.Locator(p.GetByRole("searchbox").First()).ToHaveValue(""))
	p.back()
	must(t, expect.Locator(p.GetByRole("searchbox").First()).ToHaveValue("nobody-at-all"))
}

// Section 2: above one's role there is No access with the role it needs, and no link; nothing above it is asked for.
func TestEveryPageAboveOnesRole(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("member", "/console/")
	p.heading("Home")
	for _, path := range []string{"triggers", "tools", "tools?tab=access", "policies", "webhooks", "embed", "audit", "settings", "settings?tab=members", "triggers/01a2161d-0000-7000-8000-000000000001"} {
		p.goTo("/console/" + path)
		p.heading("No access")
		contains(t, p.Locator("main"), "needs the role admin. Yours is member.")
	}
	for _, path := range []string{"/v1/triggers", "/v1/mcp-servers", "/v1/tools", "/v1/approval-policies", "/v1/webhooks", "/v1/embed-keys", "/v1/audit", "/v1/users", "/v1/api-keys", "/v1/connections"} {
		if n := v.called("GET " + path); n > 0 {
			t.Errorf("a member's pages asked for %s %d times", path, n)
		}
	}
	a := visit(t, shared, look{}).as("admin", "/console/settings?tab=tenant")
	a.heading("No access")
	contains(t, a.Locator("main"), "needs the role owner. Yours is admin.")
	a.goTo("/console/settings")
	a.heading("Settings")
	gone(t, a.byRole("tab", "Tenant"))
}

// Section 3: Search finds pages, objects by name, and runs by the last digits of their id; Enter opens one.
func TestSearch(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	run := shared.run(t, agent, "hello")
	shared.reaches(t, run, "succeeded")
	p := visit(t, shared, look{}).as("member", "/console/")
	p.heading("Home")
	p.press("Control+k")
	box := p.byRole("dialog", "Search").GetByRole("combobox", named0("Search"))
	must(t, expect.Locator(box).ToBeFocused())
	option := func(text string) playwright.Locator {
		return p.byRole("dialog", "Search").GetByRole("option").Filter(playwright.LocatorFilterOptions{HasText: text})
	}
	must(t, box.Fill(name))
	visible(t, option(name).First())
	must(t, box.Fill("webhook")) // an admin's page
	gone(t, option("Webhooks"))
	// What was found for another text is not offered, and nothing is said of what was not looked for yet.
	must(t, box.Fill(name))
	visible(t, option(name).First())
	held := make(chan struct{})
	must(t, p.Route("**/v1/search?**", func(r playwright.Route) {
		go func() {
			<-held
			_ = r.Continue()
		}()
	}))
	must(t, box.Fill(short(run)))
	contains(t, p.byRole("dialog", "Search"), "Searching")
	gone(t, p.byRole("dialog", "Search").GetByRole("option"))
	close(held)
	visible(t, option("run").First())
	must(t, expect.Locator(p.byRole("dialog", "Search").GetByRole("option")).ToHaveCount(1))
	p.press("ArrowDown", "Enter")
	p.heading("Run " + short(run))
	must(t, expect.Locator(p.Locator("h1")).ToBeFocused())
	// The button does the same, and gives the focus back.
	must(t, p.button("Search").Click())
	must(t, box.Fill("no such thing at all"))
	contains(t, p.byRole("dialog", "Search"), "Nothing found.")
	p.accessible("a search that finds nothing")
	// What cannot be searched says why, and is looked for again.
	must(t, p.Route("**/v1/search?q=broken", func(r playwright.Route) {
		problem(r, 500, "INTERNAL", map[string]string{"X-Request-Id": "req-of-the-test"})
	}))
	must(t, box.Fill("broken"))
	alert := p.byRole("dialog", "Search").GetByRole("alert")
	contains(t, alert, "INTERNAL")
	contains(t, alert, "req-of-the-test")
	p.accessible("a search that fails")
	must(t, p.UnrouteAll())
	must(t, alert.GetByRole("button", named0("Try again")).Click())
	contains(t, p.byRole("dialog", "Search"), "Nothing found.")
	p.press("Escape")
	must(t, expect.Locator(p.button("Search")).ToBeFocused())
}
