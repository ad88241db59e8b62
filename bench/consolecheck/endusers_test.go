package consolecheck

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// signed is an identity token, as a tenant's back end makes it.
func signed(t *testing.T, secret string, claims object) string {
	t.Helper()
	claims["exp"] = time.Now().Add(time.Hour).Unix()
	b, err := json.Marshal(claims)
	must(t, err)
	enc := base64.RawURLEncoding
	head := enc.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc.EncodeToString(b)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(head))
	return head + "." + enc.EncodeToString(mac.Sum(nil))
}

const shop = "https://shop.example.com"

// customer makes an end user by what they do: they sign in on a page and ask.
func (s *service) customer(t *testing.T, agent string, claims object, asks ...string) (id string) {
	t.Helper()
	var k embedKey
	s.call(t, "POST", "/v1/embed-keys", object{"agent_id": agent, "name": fmt.Sprintf("Shop %d", numbered.Add(1)), "allowed_origins": []string{shop}, "with_identity_secret": true}, &k)
	var session struct {
		Token     string
		EndUserID string `json:"end_user_id"`
	}
	s.asVisitor(t, "/v1/embed/session", shop, [2]string{"X-Svc-Embed-Key", k.Key}, object{"user": object{"token": signed(t, k.IdentitySecret, claims)}}, &session)
	for _, text := range asks {
		var sent struct {
			RunID string `json:"run_id"`
		}
		s.asVisitor(t, "/v1/embed/messages", shop, [2]string{"Authorization", "Bearer " + session.Token}, object{"content": text}, &sent)
		s.reaches(t, sent.RunID, "succeeded")
	}
	return session.EndUserID
}

// Section 5, End users: list, search, groups, tags, threads; an admin edits and deletes.
func TestEndUsers(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	ext := fmt.Sprintf("kim-%d", numbered.Add(1))
	id := shared.customer(t, agent, object{"sub": ext, "name": "Kim Example", "email": ext + "@example.com", "meta": object{"groups": []string{"gold"}, "plan": "pro"}}, "Where is my order?", "And the other one?")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/end-users")
	p.heading("End users")
	gone(t, p.button("New end user"))
	search := p.byRole("searchbox", "Name, e-mail or external ID")
	for _, q := range []string{ext, ext[:len(ext)-1], "kim exam"} {
		must(t, search.Fill(q))
		p.press("Enter")
		visible(t, p.Locator(`[data-id="`+id+`"]`))
	}
	must(t, search.Fill(ext))
	p.press("Enter")
	hasURL(t, p, `/console/end-users\?q=`+ext+`$`)
	must(t, expect.Locator(p.Locator("li[data-id], tr[data-id]")).ToHaveCount(1))
	p.reload()
	visible(t, p.Locator(`[data-id="`+id+`"]`))
	must(t, search.Fill("nobody is called that"))
	p.press("Enter")
	visible(t, p.GetByText("Nothing fits these filters"))
	must(t, p.button("Clear filters").First().Click())
	hasURL(t, p, `/console/end-users$`)
	must(t, p.Locator(`[data-id="`+id+`"]`).GetByRole("link").Click())
	p.thing("End users", "Kim Example")
	facts := p.byRole("table", "Facts")
	must(t, expect.Locator(facts).ToContainText("gold"))
	threads := p.byRole("list", "Threads").Locator("> li")
	must(t, expect.Locator(threads).ToHaveCount(2))
	must(t, expect.Locator(threads.First()).ToContainText("And the other one?"))
	p.accessible("an end user")

	// Edit: what is wrong is told at its field, what is typed stays; only the admin's fields change.
	must(t, p.button("Edit").Click())
	dialog := p.byRole("dialog", "Edit end user")
	must(t, inside(dialog, "textbox", "Tags").Fill("vip\nearly"))
	must(t, inside(dialog, "textbox", "Groups").Fill("gold\nbeta testers"))
	must(t, inside(dialog, "textbox", "Residency").Fill(strings.Repeat("eu", 40)))
	must(t, dialog.GetByRole("button", named0("Save")).Click())
	must(t, expect.Locator(inside(dialog, "textbox", "Residency")).ToHaveAttribute("aria-invalid", "true"))
	must(t, inside(dialog, "textbox", "Residency").Fill("eu"))
	must(t, inside(dialog, "textbox", "Other attributes").Fill("{"))
	must(t, expect.Locator(dialog.GetByRole("button", named0("Save"))).ToBeDisabled())
	must(t, inside(dialog, "textbox", "Other attributes").Fill(`{"meta": {"plan": "free"}, "note": "<b>"}`))
	p.accessible("Edit end user")
	must(t, dialog.GetByRole("button", named0("Save")).Click())
	gone(t, dialog)
	must(t, expect.Locator(facts).ToContainText("beta testers"))
	must(t, expect.Locator(facts).ToContainText("early"))
	var u struct {
		Tags       []string
		Residency  string
		Name       string
		Attributes struct {
			Groups []string
			Note   string
		}
	}
	shared.call(t, "GET", "/v1/end-users/"+id, nil, &u)
	if len(u.Tags) != 2 || u.Residency != "eu" || u.Name != "Kim Example" || len(u.Attributes.Groups) != 2 || u.Attributes.Note != "<b>" {
		t.Errorf("saved: %+v", u)
	}
	// Changes elsewhere show.
	shared.call(t, "PATCH", "/v1/end-users/"+id, object{"tags": []string{"moved"}}, nil)
	must(t, expect.Locator(facts).ToContainText("moved"))
	p.goTo("/console/end-users?tag=moved")
	visible(t, p.Locator(`[data-id="`+id+`"]`))
	must(t, p.Locator(`[data-id="`+id+`"]`).GetByRole("link").Click())
	p.thing("End users", "Kim Example")
	// A thread is one click away.
	must(t, threads.First().GetByRole("link").Click())
	must(t, expect.Locator(p.Locator("main")).ToContainText("And the other one?"))
	p.back()
	p.thing("End users", "Kim Example")

	must(t, p.button("Delete").Click())
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(ask.GetByRole("button", named0("Cancel"))).ToBeFocused())
	must(t, expect.Locator(ask.GetByRole("button", named0("Delete"))).ToBeDisabled())
	must(t, ask.GetByRole("textbox").Fill("Kim Example"))
	p.accessible("Delete an end user")
	must(t, ask.GetByRole("button", named0("Delete")).Click())
	p.heading("End users")
	gone(t, p.Locator(`[data-id="`+id+`"]`))
	p.goTo("/console/end-users/" + id)
	p.heading("Not found")
}

// A member reads and changes nothing; texts of strangers are plain.
func TestEndUsersForMembers(t *testing.T) {
	t.Parallel()
	s := own(t)
	email := s.person(t, "member")
	v := visit(t, s, look{})
	p := v.signedIn(email, "/console/end-users")
	p.heading("End users")
	visible(t, p.GetByText("No end users yet"))
	id := s.customer(t, s.agent, object{"sub": "<script>alert(1)</script>‮gnp", "name": "<img src=x onerror=alert(2)>", "email": "a@example.com", "meta": object{"groups": []string{"<i>g</i>", "two"}}}, "<b>hello</b>")
	// The first item of an empty list shows at once.
	row := p.Locator(`[data-id="` + id + `"]`)
	must(t, expect.Locator(row).ToContainText("<script>alert(1)</script>[U+202E]gnp"))
	must(t, row.GetByRole("link").Click())
	p.thing("End users", "<img src=x onerror=alert(2)>")
	must(t, expect.Locator(p.byRole("table", "Facts")).ToContainText("<i>g</i>"))
	gone(t, p.button("Edit"))
	gone(t, p.button("Delete"))
	must(t, expect.Locator(p.byRole("list", "Threads").Locator("> li")).ToHaveCount(1))
	s.call(t, "DELETE", "/v1/end-users/"+id, nil, nil)
	p.heading("Not found")

	q := v.tab()
	must(t, q.Route(regexp.MustCompile(`/v1/end-users\?`), func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"title":"Internal error","status":500,"code":"INTERNAL"}`})
	}))
	q.goTo("/console/end-users")
	must(t, expect.Locator(q.GetByRole("alert")).ToContainText("Internal error"))
	gone(t, q.GetByText("No end users yet"))
}

func TestTheTourOfEndUsers(t *testing.T) {
	agent, _ := shared.policed(t)
	id := shared.customer(t, agent, object{"sub": fmt.Sprintf("customer-%d", numbered.Add(1)), "name": "Robin Example", "email": "robin@example.com", "meta": object{"groups": []string{"gold", "beta testers"}, "plan": "pro", "seats": 12}}, "Where is my order 1001?", "Can I return the blue one?")
	shared.call(t, "PATCH", "/v1/end-users/"+id, object{"tags": []string{"vip", "berlin"}, "residency": "eu"}, nil)
	shared.customer(t, agent, object{"sub": fmt.Sprintf("customer-%d", numbered.Add(1)), "name": "Sam Example", "email": "sam@example.com"})
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {}, "dark": {dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/end-users")
			visible(t, p.Locator(`[data-id="`+id+`"]`))
			p.accessible("the list of end users in " + name)
			p.goTo("/console/end-users/" + id)
			must(t, expect.Locator(p.byRole("list", "Threads").Locator("> li")).ToHaveCount(2))
			p.accessible("an end user in " + name)
			wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
			must(t, err)
			if wide.(int) > 0 {
				t.Errorf("it scrolls sideways by %v", wide)
			}
		})
	}
}
