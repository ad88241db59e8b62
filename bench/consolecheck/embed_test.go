package consolecheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/playwright-community/playwright-go"
)

type embedKey struct {
	ID             string
	Key            string
	IdentitySecret string   `json:"identity_secret"`
	AllowedOrigins []string `json:"allowed_origins"`
	Enabled        bool
	RevokedAt      *string `json:"revoked_at"`
	Theme          struct{ Accent, Radius, Position string }
	Config         struct {
		Greeting string
		Prompts  []string `json:"starter_prompts"`
	}
}

func (s *service) embedKey(t *testing.T, id string) (k embedKey) {
	t.Helper()
	s.call(t, "GET", "/v1/embed-keys/"+id, nil, &k)
	return k
}

// config reads a key's configuration as a page of that origin does.
func (s *service) config(t *testing.T, key, origin string) int {
	t.Helper()
	q, err := http.NewRequest("GET", s.url()+"/v1/embed/config", nil)
	must(t, err)
	q.Header.Set("X-Svc-Embed-Key", key)
	q.Header.Set("Origin", origin)
	q.Header.Set("X-Forwarded-For", address())
	res, err := http.DefaultClient.Do(q)
	must(t, err)
	res.Body.Close()
	return res.StatusCode
}

// asVisitor calls the embed API from an origin.
func (s *service) asVisitor(t *testing.T, path, origin string, head [2]string, in, out any) {
	t.Helper()
	b, err := json.Marshal(in)
	must(t, err)
	q, err := http.NewRequest("POST", s.url()+path, bytes.NewReader(b))
	must(t, err)
	q.Header.Set(head[0], head[1])
	q.Header.Set("Origin", origin)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Forwarded-For", address())
	res, err := http.DefaultClient.Do(q)
	must(t, err)
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		t.Fatalf("POST %s: %s", path, res.Status)
	}
	must(t, json.NewDecoder(res.Body).Decode(out))
}

// stored closes the dialog Shown once and returns what it showed, which is then nowhere.
func (p *tab) stored(label string) string {
	p.t.Helper()
	dialog := p.byRole("dialog", "Shown once")
	visible(p.t, dialog)
	secret, err := inside(dialog, "textbox", label).InputValue()
	must(p.t, err)
	p.press("Escape")
	visible(p.t, dialog)
	must(p.t, dialog.GetByRole("button", named0("I have stored it")).Click())
	return secret
}

func (p *tab) forgotten(secret string) {
	p.t.Helper()
	all, err := p.Evaluate(`(s) => document.documentElement.outerHTML.includes(s) || [...document.querySelectorAll("input, textarea")].some((i) => i.value.includes(s)) || location.href.includes(s) || JSON.stringify({ ...localStorage, ...sessionStorage }).includes(s)`, secret)
	must(p.t, err)
	if secret == "" || all.(bool) {
		p.t.Errorf("the secret %.12q… is still there", secret)
	}
}

// Section 5, Embed: a key is made, its secrets are shown once; origins, theme with a live preview,
// snippet; a denied origin is allowed; rotate, disable and revoke ask for the name.
func TestEmbedKeys(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{width: 1300, height: 900})
	must(t, v.GrantPermissions([]string{"clipboard-read", "clipboard-write"}))
	p := v.signedIn(shared.person(t, "admin"), "/console/embed")
	p.heading("Embed")
	name := fmt.Sprintf("Shop %d", numbered.Add(1))
	must(t, p.button("New embed key").First().Click())
	dialog := p.byRole("dialog", "New embed key")
	must(t, dialog.GetByLabel("Name", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}).Fill(name))
	origins := dialog.GetByLabel("Allowed origins")
	must(t, origins.Fill("https://shop.example.com\nhttps://shop.example.com/path"))
	must(t, dialog.GetByLabel("With identity secret").Check())
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	must(t, expect.Locator(origins).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(dialog).ToContainText("line 2"))
	must(t, expect.Locator(dialog.GetByLabel("Name", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)})).ToHaveValue(name))
	p.accessible("New embed key")
	must(t, origins.Fill("https://shop.example.com"))
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	// The value alone is a field to copy from; the snippet is text.
	once := p.byRole("dialog", "Shown once")
	contains(t, once.Locator("pre"), "/embed/v1/widget.js")
	must(t, expect.Locator(once.GetByRole("textbox")).ToHaveCount(1))
	must(t, expect.Locator(once.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Copy"})).ToHaveCount(1))
	p.accessible("Shown once")
	key := p.stored("Embed key")
	identity := p.stored("Identity secret")
	p.thing("Embed", name)
	p.forgotten(key)
	p.forgotten(identity)
	if shared.config(t, key, "https://shop.example.com") != 200 || !strings.HasPrefix(key, "svc_pk_") || identity == "" {
		t.Fatalf("the key %.12q does not work", key)
	}
	url := p.URL()
	id := url[strings.LastIndex(url, "/")+1:]

	// The preview is the widget; it follows what is typed, and no other page is asked.
	preview := p.byRole("region", "Preview")
	visible(t, preview.GetByRole("dialog"))
	must(t, preview.Locator("textarea").Fill("Hello?"))
	p.press("Enter")
	visible(t, preview.GetByText("This is a preview"))
	must(t, p.box("Accent").Fill("#b45309"))
	must(t, p.box("Greeting").Fill("Good day <b>& welcome</b>"))
	must(t, p.box("Starter prompts").Fill("Where is my order?\nTalk to a person"))
	_, err := p.GetByLabel("Radius").SelectOption(playwright.SelectOptionValues{Values: &[]string{"round"}})
	must(t, err)
	visible(t, preview.GetByText("Good day <b>& welcome</b>"))
	must(t, expect.Locator(preview.Locator(".root")).ToHaveClass(regexp.MustCompile(`\bround\b`)))
	color, err := preview.Locator(".go").Evaluate("(e) => getComputedStyle(e.closest('.root')).getPropertyValue('--accent').trim()", nil)
	must(t, err)
	if color != "#b45309" {
		t.Errorf("the accent of the preview is %v", color)
	}
	p.accessible("an embed key")
	must(t, p.button("Save").Click())
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	until(t, "it is saved", func() bool { return shared.embedKey(t, id).Theme.Accent == "#b45309" })
	if k := shared.embedKey(t, id); k.Theme.Accent != "#b45309" || k.Theme.Radius != "round" || k.Config.Greeting != "Good day <b>& welcome</b>" || len(k.Config.Prompts) != 2 || len(k.AllowedOrigins) != 1 {
		t.Errorf("saved: %+v", k)
	}
	must(t, p.box("Accent").Fill("red"))
	must(t, p.button("Save").Click())
	must(t, expect.Locator(p.box("Accent")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.box("Accent").Fill("#b45309"))

	// The snippet has no secret in it.
	must(t, p.button("Copy").Click())
	copied, err := p.Evaluate("navigator.clipboard.readText()")
	must(t, err)
	if text := copied.(string); !strings.Contains(text, shared.url()+"/embed/v1/widget.js") || strings.Contains(text, key) {
		t.Errorf("copied %s", text)
	}

	// A refused origin appears by itself, and is allowed by one click; what is typed stays.
	if got := shared.config(t, key, "https://www.example.com"); got != 403 {
		t.Fatalf("an origin that is not allowed: %d", got)
	}
	must(t, p.box("Placeholder").Fill("Ask us"))
	denied := p.byRole("list", "Denied origins").Locator("li")
	must(t, expect.Locator(denied).ToContainText("https://www.example.com"))
	p.accessible("denied origins")
	must(t, denied.GetByRole("button", named0("Allow")).Click())
	contains(t, denied, "allowed")
	gone(t, denied.GetByRole("button"))
	must(t, expect.Locator(p.box("Allowed origins")).ToHaveValue("https://shop.example.com\nhttps://www.example.com"))
	must(t, expect.Locator(p.box("Placeholder")).ToHaveValue("Ask us"))
	until(t, "the origin is allowed", func() bool { return shared.config(t, key, "https://www.example.com") == 200 })

	// Leaving asks.
	must(t, p.byRole("link", "All embed keys").Click())
	visible(t, p.GetByRole("alertdialog"))
	must(t, p.GetByRole("alertdialog").GetByRole("button", named0("Cancel")).Click())
	must(t, p.button("Save").Click())
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	// What was refused before it was allowed does not come back.
	reads := v.called("/denied-origins")
	p.reload()
	until(t, "the refused origins are read", func() bool { return v.called("/denied-origins") > reads })
	visible(t, p.box("Allowed origins"))
	gone(t, p.byRole("list", "Denied origins"))

	// Rotate: the name is typed, the new value is shown once, the old one is dead.
	must(t, p.button("Rotate").Click())
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(ask.GetByRole("button", named0("Cancel"))).ToBeFocused())
	must(t, expect.Locator(ask.GetByRole("button", named0("Rotate"))).ToBeDisabled())
	must(t, ask.GetByRole("textbox").Fill(name))
	p.accessible("Rotate")
	must(t, ask.GetByRole("button", named0("Rotate")).Click())
	fresh := p.stored("Embed key")
	p.forgotten(fresh)
	if shared.config(t, key, "https://shop.example.com") != 401 || shared.config(t, fresh, "https://shop.example.com") != 200 {
		t.Error("rotated: the old key lives, or the new one does not")
	}
	must(t, p.button("Disable").Click())
	must(t, ask.GetByRole("textbox").Fill(name))
	must(t, ask.GetByRole("button", named0("Disable")).Click())
	visible(t, p.button("Enable"))
	// Changes elsewhere show.
	shared.call(t, "PATCH", "/v1/embed-keys/"+id, object{"enabled": true}, nil)
	visible(t, p.button("Disable"))
	must(t, p.button("Revoke").Click())
	must(t, ask.GetByRole("textbox").Fill(name))
	must(t, ask.GetByRole("button", named0("Revoke")).Click())
	p.heading("Embed")
	gone(t, p.Locator(`[data-id="`+id+`"]`))
	must(t, p.GetByLabel("Show revoked keys").Check())
	must(t, expect.Locator(p.Locator(`[data-id="`+id+`"]`)).ToContainText("revoked"))
	hasURL(t, p, `\?revoked=1$`)
	p.goTo("/console/embed/" + id)
	p.thing("Embed", name)
	gone(t, p.button("Rotate"))
	gone(t, p.button("Save"))
	p.goTo("/console/embed/01a1fe1a-f0b8-76f3-9442-f6225bb3af00")
	p.heading("Not found")
}

// The agents that a form offers are not read: it says so, tries again, and then has a choice that stays.
func TestEmbedWithoutAgents(t *testing.T) {
	t.Parallel()
	shared.policed(t)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/")
	p.heading("Home")
	var down atomic.Bool
	down.Store(true)
	must(t, p.Route(regexp.MustCompile(`/v1/agents(\?|$)`), func(r playwright.Route) {
		if down.Load() {
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"title":"Internal error","status":500,"code":"INTERNAL"}`})
			return
		}
		_ = r.Continue()
	}))
	p.goTo("/console/embed")
	must(t, p.button("New embed key").First().Click())
	dialog := p.byRole("dialog", "New embed key")
	must(t, expect.Locator(dialog.GetByRole("alert")).ToContainText("Internal error"))
	p.accessible("a form without its agents")
	down.Store(false)
	must(t, dialog.GetByRole("button", named0("Try again")).Click())
	agent := dialog.GetByLabel("Agent", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)})
	visible(t, agent)
	chosen, err := agent.InputValue()
	must(t, err)
	_, name := shared.policed(t) // it comes first in the list
	must(t, expect.Locator(agent.GetByRole("option", playwright.LocatorGetByRoleOptions{Name: name})).ToHaveCount(1))
	must(t, expect.Locator(agent).ToHaveValue(chosen))
}

// A member has no access; an empty list says so; names of strangers are plain text.
func TestEmbedForOthers(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/embed")
	p.heading("No access")
	gone(t, p.byRole("navigation", "Main").GetByRole("link", named0("Embed")))
	if n := v.called("/v1/embed-keys"); n > 0 {
		t.Errorf("%d calls of an admin's route", n)
	}
	hostile := fmt.Sprintf("<img src=x onerror=alert(1)> %d", numbered.Add(1))
	var k embedKey
	shared.call(t, "POST", "/v1/embed-keys", object{"agent_id": shared.agent, "name": hostile, "allowed_origins": []string{}}, &k)
	a := visit(t, shared, look{}).signedIn(shared.person(t, "admin"), "/console/embed/"+k.ID)
	visible(t, a.byRole("region", "Preview").GetByRole("dialog"))
	a.thing("Embed", hostile)
	must(t, a.button("Revoke").Click())
	must(t, a.GetByRole("alertdialog").GetByRole("textbox").Fill(hostile))
	must(t, a.GetByRole("alertdialog").GetByRole("button", named0("Revoke")).Click())
	a.heading("Embed")
}

func TestTheTourOfEmbed(t *testing.T) {
	var k embedKey
	shared.call(t, "POST", "/v1/embed-keys", object{"agent_id": shared.agent, "name": fmt.Sprintf("Web shop %d", numbered.Add(1)), "allowed_origins": []string{"https://shop.example.com"},
		"theme": object{"accent": "#0f766e"}, "config": object{"greeting": "Hello! What may I do for you?", "starter_prompts": []string{"Where is my order?", "Return an item"}, "disclaimer": "Answers are made by a machine."}}, &k)
	for _, origin := range []string{"https://www.example.com", "https://staging.example.com", "https://staging.example.com"} {
		shared.config(t, k.Key, origin)
	}
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {width: 1300, height: 900}, "dark": {width: 1300, height: 900, dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/embed")
			visible(t, p.Locator(`[data-id="`+k.ID+`"]`))
			p.accessible("the list of embed keys in " + name)
			p.goTo("/console/embed/" + k.ID)
			visible(t, p.byRole("region", "Preview").GetByText("What may I do for you?"))
			visible(t, p.byRole("list", "Denied origins").Locator("li").First())
			p.accessible("an embed key in " + name)
			wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
			must(t, err)
			if wide.(int) > 0 {
				t.Errorf("it scrolls sideways by %v", wide)
			}
		})
	}
}
