package consolecheck

import (
	"fmt"
	"net/url"
	"regexp"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// Section 2: wrong, right, and where it leads.
func TestSigningIn(t *testing.T) {
	t.Parallel()
	email := fmt.Sprintf("jörg-%d@bücher.example", numbered.Add(1))
	shared.call(t, "POST", "/v1/users", object{"email": email, "name": "Jörg", "role": "member", "password": password}, nil)
	v := visit(t, shared, look{})
	p := v.tab()
	p.goTo("/console/approvals?risk=high")
	p.heading("Sign in")
	if at := p.URL(); at != shared.url()+"/console/login?next="+url.QueryEscape("/console/approvals?risk=high") {
		t.Errorf("the sign-in is at %s", at)
	}
	p.accessible("the sign-in")
	until(t, "the password is refused", func() bool { // passwords are hashed a few at a time: a busy machine answers 503
		p.signIn(email, "the wrong password")
		visible(t, p.GetByRole("alert").First())
		said, err := p.GetByRole("alert").First().TextContent()
		must(t, err)
		return said == "E-mail or password is wrong."
	})
	if typed, err := p.box("E-mail").InputValue(); err != nil || typed != email {
		t.Errorf("the e-mail is %q, %v", typed, err)
	}
	p.signIn(email, password)
	p.heading("Approvals")
	if at := p.URL(); at != shared.url()+"/console/approvals?risk=high" {
		t.Errorf("signed in to %s", at)
	}
	must(t, expect.Page(p.Page).ToHaveTitle(regexp.MustCompile(`^(\(\d+\) )?Approvals · svc$`)))
	// Signed in already: a hostile next leads nowhere else.
	for _, next := range []string{"//evil.example/", "https://evil.example/", "/console/../x", "javascript:alert(1)", "/console/\\evil", "/v1/auth/me", "/console/login"} {
		p.goTo("/console/login?next=" + url.QueryEscape(next))
		must(t, expect.Page(p.Page).ToHaveURL(regexp.MustCompile(`:[0-9]+/console/$`)))
		p.heading("Home")
	}
	// No secret is kept where scripts read it.
	kept, err := p.Evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
	must(t, err)
	if kept != `[{},{},""]` {
		t.Errorf("kept: %s", kept)
	}
}

// Section 2: one-time links. A GET uses nothing up.
func TestTheOneTimeLink(t *testing.T) {
	t.Parallel()
	s := shared
	for range 2 {
		if res, _ := s.fetch(t, s.link[len(s.url()):]); res.StatusCode != 200 {
			t.Fatalf("a previewer: %d", res.StatusCode)
		}
	}
	v := visit(t, s, look{})
	p := v.tab()
	p.goTo(s.link)
	must(t, p.button("Sign in").Click())
	must(t, expect.Page(p.Page).Not().ToHaveURL(regexp.MustCompile("/login/[A-Za-z0-9_-]{80,}")))
	p.goTo("/console/")
	p.heading("Home")
	if res, _ := s.fetch(t, s.link[len(s.url()):]); res.StatusCode != 401 {
		t.Errorf("used: %d", res.StatusCode)
	}
}

// Section 2: a session that ends under an open page, and what was typed.
func TestASessionEndsUnderAForm(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("low"))
	email := shared.person(t, "admin")
	a := shared.refund(t, agent, 12.5, "broken")
	v := visit(t, shared, look{})
	p := v.signedIn(email, "/console/approvals/"+a.ID)
	must(t, p.button("Reject").Click())
	must(t, p.box("Reason").Fill("too much"))
	must(t, v.ClearCookies())
	must(t, p.byRole("dialog", "Reject demo.orders.refund").GetByRole("button", named0("Reject")).Click())
	dialog := p.byRole("dialog", "Sign in again")
	visible(t, dialog)
	p.accessible("Sign in again")
	if known, err := p.box("E-mail").InputValue(); err != nil || known != email {
		t.Errorf("the e-mail is %q, %v", known, err)
	}
	must(t, p.box("Password").Fill(password))
	must(t, p.button("Sign in").Click())
	gone(t, dialog)
	if typed, err := p.box("Reason").InputValue(); err != nil || typed != "too much" {
		t.Errorf("the reason is %q, %v", typed, err)
	}
	must(t, p.button("Try again").Click())
	until(t, "it is rejected", func() bool { return shared.approval(t, a.ID).Status == "rejected" })
}

// Section 2: signing out reaches all tabs; another person gets nothing of the one before.
func TestSigningOutReachesAllTabs(t *testing.T) {
	t.Parallel()
	email, other := shared.person(t, "admin"), shared.person(t, "member")
	v := visit(t, shared, look{})
	p := v.signedIn(email, "/console/approvals")
	p.heading("Approvals")
	q := v.tab()
	q.goTo("/console/")
	q.heading("Home")
	must(t, p.button("Account").Click())
	must(t, p.byRole("menuitem", "Sign out").Click())
	p.heading("Sign in")
	q.heading("Sign in")
	q.signIn(other, password)
	q.heading("Home")
	p.heading("Home") // the tab that waited at the sign-in went on
}

// Section 2: a one-time link that is used in one tab changes the person under all tabs, and one that waits goes on.
func TestALinkReachesAllTabs(t *testing.T) {
	t.Parallel()
	admin := shared.bySession(t)
	user := admin("POST", "/v1/users", object{"email": fmt.Sprintf("linked-%d@example.com", numbered.Add(1)), "name": "Linked", "role": "member"})
	link := func() string {
		t.Helper()
		return admin("POST", "/v1/users/"+user["id"].(string)+"/login-link", object{})["url"].(string)
	}
	use := func(v *visitor) {
		t.Helper()
		p := v.tab()
		p.goTo(link())
		must(t, p.button("Sign in").Click())
		p.heading("Home")
	}
	v := visit(t, shared, look{})
	waits := v.tab()
	waits.goTo("/console/usage")
	waits.heading("Sign in")
	use(v)
	waits.heading("Usage")

	// What the person before typed is gone without a question.
	w := visit(t, shared, look{})
	p := w.as("admin", "/console/webhooks")
	p.OnDialog(func(d playwright.Dialog) {
		t.Errorf("asked: %s", d.Type())
		_ = d.Accept()
	})
	must(t, p.button("New webhook").First().Click())
	must(t, p.byRole("dialog", "New webhook").GetByRole("textbox").First().Fill("https://typed.example.com"))
	use(w)
	p.heading("Home")
	gone(t, p.byRole("navigation", "Main").GetByRole("link", named0("Webhooks")))
	p.nowhere("https://typed.example.com")
}

// Sections 2 and 4: leaving a form asks, but not once its work is done.
func TestLeavingAfterTheWorkIsDone(t *testing.T) {
	t.Parallel()
	email := shared.person(t, "member")
	v := visit(t, shared, look{})
	p := v.signedIn(email, "/console/")
	p.OnDialog(func(d playwright.Dialog) {
		t.Errorf("asked: %s", d.Type())
		_ = d.Accept()
	})
	must(t, p.button("Account").Click())
	must(t, p.byRole("menuitem", "Change password").Click())
	dialog := p.byRole("dialog", "Change password")
	must(t, field(dialog, "Current password").Fill(password))
	must(t, field(dialog, "New password").Fill("another long password"))
	send := dialog.Locator("button[type=submit]")
	until(t, "the password is changed", func() bool { // passwords are hashed a few at a time: a busy machine answers 503
		if n, err := dialog.Count(); err == nil && n > 0 {
			_ = send.Click(playwright.LocatorClickOptions{Timeout: playwright.Float(1000)})
		}
		n, err := dialog.Count()
		return err == nil && n == 0
	})
	p.heading("Sign in")
	p.signIn(email, "another long password")
	p.heading("Home")
}

// Section 3 and 4: the name of the tenant and one's own role change elsewhere, and no page needs a reload.
func TestWhoOneIsIsLive(t *testing.T) {
	t.Parallel()
	s := own(t)
	var made struct{ ID string }
	email := fmt.Sprintf("rising-%d@example.com", numbered.Add(1))
	s.call(t, "POST", "/v1/users", object{"email": email, "name": "Rising", "role": "member", "password": password}, &made)
	v := visit(t, s, look{})
	p := v.signedIn(email, "/console/")
	p.heading("Home")
	must(t, expect.Locator(p.byRole("status", "Connection")).ToHaveText("Live"))
	contains(t, p.GetByRole("banner"), "Development")
	owner := visit(t, s, look{}).owner("/console/settings?tab=tenant")
	must(t, owner.label("Name").Fill("Renamed"))
	must(t, owner.button("Save").Click())
	contains(t, p.GetByRole("banner"), "Renamed")
	audit := p.byRole("navigation", "Main").GetByRole("link", named0("Audit"))
	gone(t, audit)
	s.call(t, "PATCH", "/v1/users/"+made.ID, object{"role": "admin"}, nil)
	visible(t, audit)
	must(t, audit.Click())
	p.heading("Audit")
	s.call(t, "PATCH", "/v1/users/"+made.ID, object{"role": "member"}, nil)
	p.heading("No access")
	gone(t, audit)
}

// Section 2: above one's role there is No access, and no link; unknown paths are Not found.
func TestRolesAndUnknownPaths(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/")
	p.heading("Home")
	for _, path := range []string{"/console/nowhere", "/console/approvals/nothing", "/console/approvals/0192a1b2-0000-7000-8000-000000000000", "/console/a/b/c", "/console/cluster", "/console/%ff", "/console/runs/%e0%a4"} {
		p.goTo(path)
		p.heading("Not found")
	}
	if n := v.called("/v1/webhooks") + v.called("/v1/audit") + v.called("/v1/users"); n > 0 {
		t.Errorf("a member's pages made %d calls for admins", n)
	}
}
