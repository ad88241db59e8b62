package consolecheck

import (
	"fmt"
	"net/http"
	"regexp"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// rowOf is the row of a table that holds a text.
func (p *tab) rowOf(table, text string) playwright.Locator {
	return p.byRole("table", table).Locator("tbody tr", playwright.LocatorLocatorOptions{HasText: text})
}

// accepted is whether the service accepts an API key.
func (s *service) accepted(t *testing.T, key string) bool {
	t.Helper()
	res, _ := s.fetch(t, "/v1/auth/me", "Authorization", "Bearer "+key, "X-Tenant-Id", s.tenant)
	return res.StatusCode == http.StatusOK
}

// Section 5: a key is shown once, then the value is nowhere; revoking it wants its name.
func TestAPIKeys(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/settings")
	p.heading("Settings")
	visible(t, p.byRole("table", "API keys"))
	name := fmt.Sprintf("Back end %d", numbered.Add(1))
	click(t, p.button("New API key"))
	dialog := p.dialog("New API key")
	must(t, field(dialog, "Name").Fill(name+regexp.MustCompile(".").ReplaceAllString(fmt.Sprintf("%0130d", 0), "x")))
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Name")).ToHaveAttribute("aria-invalid", "true"))
	must(t, field(dialog, "Name").Fill(name))
	p.accessible("New API key")
	must(t, within(dialog, "button", "Create").Dblclick())
	once := p.dialog("Shown once")
	visible(t, once)
	box := field(once, "API key")
	must(t, expect.Locator(box).ToHaveAttribute("readonly", ""))
	key, err := box.InputValue()
	must(t, err)
	if !shared.accepted(t, key) {
		t.Fatal("the key that is shown is not accepted")
	}
	// Only its own button closes it.
	p.press("Escape")
	visible(t, once)
	must(t, p.Mouse().Click(5, 5))
	visible(t, once)
	visible(t, within(once, "button", "Copy"))
	p.accessible("Shown once")
	click(t, within(once, "button", "I have stored it"))
	gone(t, once)
	p.nowhere(key)
	row := p.rowOf("API keys", name)
	must(t, expect.Locator(row).ToHaveCount(1))
	contains(t, row, "active")
	p.reload()
	contains(t, row, "active")
	p.nowhere(key)

	click(t, within(row, "button", "Revoke"))
	ask := p.alertdialog("Revoke " + name + "?")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	must(t, expect.Locator(within(ask, "button", "Revoke")).ToBeDisabled())
	must(t, ask.GetByRole("textbox").Fill("another name"))
	must(t, expect.Locator(within(ask, "button", "Revoke")).ToBeDisabled())
	must(t, ask.GetByRole("textbox").Fill(name))
	p.accessible("revoke?")
	click(t, within(ask, "button", "Revoke"))
	gone(t, ask)
	contains(t, row, "revoked")
	gone(t, within(row, "button", "Revoke"))
	if shared.accepted(t, key) {
		t.Error("a revoked key is accepted")
	}
	// A key that is made elsewhere waits behind a button.
	other := fmt.Sprintf("Elsewhere %d", numbered.Add(1))
	shared.call(t, "POST", "/v1/api-keys", object{"name": other}, nil)
	click(t, p.GetByRole("button", playwright.PageGetByRoleOptions{Name: regexp.MustCompile(`^Show \d+ new$`)}))
	visible(t, p.rowOf("API keys", other))
}

// owner is the person that svc dev made: the only owner. It opens a page by the one-time link.
func (v *visitor) owner(path string) *tab {
	v.t.Helper()
	p := v.tab()
	p.goTo(v.s.link)
	click(v.t, p.button("Sign in"))
	p.heading("Home")
	p.goTo(path)
	return p
}

// Section 5: admins change members and admins, make login links of members, and leave owners alone.
func TestMembers(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	me := shared.one(t, "admin").email
	p := v.as("admin", "/console/settings?tab=members")
	visible(t, p.byRole("table", "Members"))
	email := fmt.Sprintf("New.Person-%d@example.com", numbered.Add(1))
	click(t, p.button("New user"))
	dialog := p.dialog("New user")
	must(t, field(dialog, "E-mail").Fill(email))
	must(t, field(dialog, "Name").Fill("A new person "+hostile))
	must(t, field(dialog, "Password").Fill("short"))
	gone(t, field(dialog, "Role").Locator("option", playwright.LocatorLocatorOptions{HasText: "owner"}))
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Password")).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(field(dialog, "E-mail")).ToHaveValue(email))
	must(t, field(dialog, "Password").Fill(password))
	p.accessible("New user")
	click(t, within(dialog, "button", "Create"))
	gone(t, dialog)
	row := p.byRole("table", "Members").Locator("tbody tr", playwright.LocatorLocatorOptions{HasText: regexp.MustCompile("(?i)" + regexp.QuoteMeta(email))})
	contains(t, row, "member")

	// The link signs in as the person, once, and is shown once.
	click(t, within(row, "button", "Login link"))
	once := p.dialog("Shown once")
	url, err := field(once, "Login link").InputValue()
	must(t, err)
	click(t, within(once, "button", "I have stored it"))
	p.nowhere(url)
	other := visit(t, shared, look{}).tab()
	other.goTo(url)
	click(t, other.button("Sign in"))
	other.heading("Home")
	gone(t, other.byRole("navigation", "Main").GetByRole("link", named0("Settings")))

	// A lower role asks; a higher one takes effect at once, in the other browser too.
	click(t, within(row, "button", "Edit"))
	dialog = p.dialog("Edit user")
	pick(t, field(dialog, "Role"), "admin")
	click(t, within(dialog, "button", "Save"))
	gone(t, dialog)
	contains(t, row, "admin")
	gone(t, within(row, "button", "Login link"))
	other.goTo("/console/settings")
	other.heading("Settings")
	click(t, within(row, "button", "Edit"))
	pick(t, field(dialog, "Role"), "member")
	click(t, within(dialog, "button", "Save"))
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	click(t, within(ask, "button", "Change"))
	gone(t, dialog)
	contains(t, row, "member")

	// An address that is taken stands at its field.
	click(t, within(row, "button", "Edit"))
	must(t, field(dialog, "E-mail").Fill(me))
	click(t, within(dialog, "button", "Save"))
	must(t, expect.Locator(field(dialog, "E-mail")).ToHaveAttribute("aria-invalid", "true"))
	click(t, within(dialog, "button", "Cancel"))
	click(t, within(row, "button", "Delete"))
	click(t, within(ask, "button", "Delete"))
	gone(t, row)
	other.goTo("/console/settings")
	other.heading("Sign in")

	// Owners are left alone, and so is oneself.
	owners := p.byRole("table", "Members").Locator("tbody tr", playwright.LocatorLocatorOptions{Has: p.GetByRole("cell", playwright.PageGetByRoleOptions{Name: "owner", Exact: playwright.Bool(true)})})
	visible(t, owners.First())
	gone(t, owners.GetByRole("button"))
	gone(t, within(p.rowOf("Members", me), "button", "Delete"))
	// The tab of owners is not there, and its address says why.
	gone(t, p.byRole("tab", "Tenant"))
	p.goTo("/console/settings?tab=tenant")
	p.heading("No access")
	contains(t, p.Locator("main"), "owner")
}

// Section 5: the tree of org nodes is made, renamed, moved and deleted; managers are named.
func TestOrgNodes(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	person := shared.one(t, "member").email
	p := v.as("admin", "/console/settings?tab=org")
	n := numbered.Add(1)
	top, below, far := fmt.Sprintf("Shop %d", n), fmt.Sprintf("Returns %d", n), fmt.Sprintf("Abroad %d", n)
	node := func(name string) playwright.Locator {
		return p.byRole("list", "Org nodes").Locator("li", playwright.LocatorLocatorOptions{Has: p.Locator("> .org-row > .org-name", playwright.PageLocatorOptions{HasText: name})})
	}
	row := func(name string) playwright.Locator { return p.byRole("group", name) }
	make0 := func(name string) {
		dialog := p.dialog("New org node")
		must(t, field(dialog, "Name").Fill(name))
		click(t, within(dialog, "button", "Create"))
		gone(t, dialog)
	}
	click(t, p.button("New org node").First())
	p.accessible("New org node")
	make0(top)
	click(t, within(row(top), "button", "Add below"))
	make0(below)
	visible(t, node(top).Locator("ul").GetByText(below))
	click(t, p.button("New org node"))
	make0(far)

	// A node cannot move below itself; it takes its nodes along.
	click(t, within(row(top), "button", "Edit"))
	dialog := p.dialog("Edit org node")
	gone(t, field(dialog, "Parent").Locator("option", playwright.LocatorLocatorOptions{HasText: below}))
	pick(t, field(dialog, "Parent"), far)
	contains(t, dialog, "All nodes below it move along")
	must(t, field(dialog, "Name").Fill(top+" "+hostile))
	p.accessible("Edit org node")
	click(t, within(dialog, "button", "Save"))
	gone(t, dialog)
	visible(t, node(far).Locator("ul ul").GetByText(below))
	p.accessible("Org")
	p.reload()
	visible(t, node(far).Locator("ul ul").GetByText(below))
	toggle := p.button("Nodes below " + far)
	must(t, expect.Locator(toggle).ToHaveAttribute("aria-expanded", "true"))
	click(t, toggle)
	gone(t, p.GetByText(below))
	contains(t, node(far), "2 below")
	click(t, toggle)

	// Managers.
	click(t, within(row(below), "button", "Managers"))
	dialog = p.dialog("Managers of " + below)
	contains(t, dialog, "There are none.")
	pick(t, field(dialog, "User"), person+" (member)")
	click(t, within(dialog, "button", "Add manager"))
	visible(t, dialog.GetByRole("list", named0("Managers")).GetByText(person))
	p.accessible("Managers")
	click(t, within(dialog, "button", "Close"))
	contains(t, node(below), "1 manager")

	// A node in use stays, and the reason is shown.
	click(t, within(row(far), "button", "Delete"))
	ask := p.alertdialog("Delete " + far + "?")
	click(t, within(ask, "button", "Delete"))
	contains(t, ask.GetByRole("alert"), "IN_USE")
	click(t, within(ask, "button", "Cancel"))
	click(t, within(row(below), "button", "Delete"))
	click(t, within(p.alertdialog("Delete "+below+"?"), "button", "Delete"))
	gone(t, p.GetByText(below))
	// What is made elsewhere shows.
	elsewhere := fmt.Sprintf("Elsewhere %d", n)
	shared.call(t, "POST", "/v1/org-nodes", object{"name": elsewhere}, nil)
	visible(t, row(elsewhere))
}

// Section 5: model providers; the key goes in and is nowhere afterwards.
func TestModelProviders(t *testing.T) {
	t.Parallel()
	const secret, second = "sk-aa11-secret", "sk-bb22-secret"
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/settings?tab=models")
	slug := fmt.Sprintf("local-%d", numbered.Add(1))
	click(t, p.button("New model provider").First())
	dialog := p.dialog("New model provider")
	must(t, field(dialog, "Slug").Fill("simulated"))
	must(t, field(dialog, "Base URL").Fill("http://127.0.0.1:9/v1"))
	must(t, expect.Locator(field(dialog, "API key")).ToHaveAttribute("type", "password"))
	must(t, field(dialog, "API key").Fill(secret))
	click(t, within(dialog, "button", "Add a price"))
	must(t, field(dialog, "Model").Fill("large"))
	must(t, field(dialog, "Input per million tokens").Fill("2,5"))
	contains(t, dialog, "must be numbers")
	must(t, field(dialog, "Output per million tokens").Fill("10"))
	p.accessible("New model provider")
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Slug")).ToHaveAttribute("aria-invalid", "true"))
	must(t, field(dialog, "Slug").Fill(slug))
	click(t, within(dialog, "button", "Create"))
	gone(t, dialog)
	p.nowhere(secret)
	row := p.rowOf("Model providers", slug)
	contains(t, row, "stored")
	contains(t, row, "1 model")

	// Another key asks first.
	click(t, within(row, "button", "Edit"))
	dialog = p.dialog("Edit model provider")
	must(t, expect.Locator(field(dialog, "API key")).ToHaveValue(""))
	must(t, expect.Locator(field(dialog, "Input per million tokens")).ToHaveValue("2.5"))
	must(t, field(dialog, "API key").Fill(second))
	click(t, within(dialog, "button", "Save"))
	ask := p.alertdialog("Rotate the API key of " + slug + "?")
	click(t, within(ask, "button", "Rotate"))
	gone(t, dialog)
	p.nowhere(second)

	// At another origin the key is dropped, which is told before and after.
	click(t, row.GetByRole("link", named0(slug)))
	must(t, field(dialog, "Base URL").Fill("http://127.0.0.1:10/v1"))
	contains(t, dialog, "the stored API key is dropped")
	p.accessible("Edit model provider")
	click(t, within(dialog, "button", "Save"))
	gone(t, dialog)
	contains(t, p.Locator("main"), slug+" has lost its API key")
	contains(t, row, "missing")
	p.accessible("Models")
	click(t, within(row, "button", "Delete"))
	click(t, within(p.alertdialog("Delete "+slug+"?"), "button", "Delete"))
	gone(t, row)
}

// Section 5: owners change the tenant, owners and all login links; in light, dark and at 360 px.
func TestOwnersSettings(t *testing.T) {
	t.Parallel()
	s := own(t)
	v := visit(t, s, look{})
	p := v.owner("/console/settings?tab=tenant")
	p.settled("Settings")
	must(t, expect.Locator(p.byRole("tab", "Tenant")).ToHaveAttribute("aria-selected", "true"))
	must(t, expect.Locator(p.label("Name")).ToHaveValue("Development"))
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	must(t, p.label("Name").Fill("Shop & Sons"))
	must(t, p.GetByRole("checkbox").Check())
	must(t, p.label("Allowed hosts").Fill("shop.example.com\nhttps://x.example.com/"))
	must(t, expect.Locator(p.label("Allowed hosts")).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	must(t, p.label("Allowed hosts").Fill("shop.example.com\n*.example.org"))
	// Leaving asks: something was typed.
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Home")))
	click(t, within(p.alertdialog("Leave without saving?"), "button", "Cancel"))
	// Another tab would lose it as well.
	click(t, p.byRole("tab", "Members"))
	click(t, within(p.alertdialog("Leave without saving?"), "button", "Cancel"))
	must(t, expect.Locator(p.label("Name")).ToHaveValue("Shop & Sons"))
	// Signing out too, and a changed password ends the session.
	click(t, p.button("Account"))
	click(t, p.byRole("menuitem", "Sign out"))
	click(t, within(p.alertdialog("Leave without saving?"), "button", "Cancel"))
	must(t, expect.Locator(p.label("Name")).ToHaveValue("Shop & Sons"))
	click(t, p.byRole("menuitem", "Change password"))
	contains(t, p.dialog("Change password"), "What you typed on this page is lost")
	p.press("Escape")
	click(t, p.button("Save"))
	visible(t, p.Locator("form [role=status]", playwright.PageLocatorOptions{HasText: "Saved"}))
	visible(t, p.GetByRole("banner").GetByText("Shop & Sons"))
	p.reload()
	must(t, expect.Locator(p.label("Allowed hosts")).ToHaveValue("shop.example.com\n*.example.org"))
	// Lifting the limit asks.
	must(t, p.GetByRole("checkbox").Uncheck())
	click(t, p.button("Save"))
	click(t, within(p.alertdialog("Lift the limit of hosts?"), "button", "Cancel"))
	click(t, p.button("Reset"))
	must(t, expect.Locator(p.GetByRole("checkbox")).ToBeChecked())

	// The last owner stays one; another owner can be made and changed.
	p.goTo("/console/settings?tab=members")
	mine := p.rowOf("Members", "(you)")
	click(t, within(mine, "button", "Edit"))
	dialog := p.dialog("Edit user")
	pick(t, field(dialog, "Role"), "admin")
	click(t, within(dialog, "button", "Save"))
	click(t, within(p.GetByRole("alertdialog"), "button", "Change"))
	contains(t, dialog.GetByRole("alert"), "LAST_OWNER")
	click(t, within(dialog, "button", "Cancel"))
	click(t, p.button("New user"))
	dialog = p.dialog("New user")
	must(t, field(dialog, "E-mail").Fill("second@example.com"))
	must(t, field(dialog, "Name").Fill("Second"))
	must(t, field(dialog, "Password").Fill(password))
	pick(t, field(dialog, "Role"), "owner")
	click(t, within(dialog, "button", "Create"))
	row := p.rowOf("Members", "second@example.com")
	contains(t, row, "owner")
	visible(t, within(row, "button", "Login link"))
	visible(t, within(row, "button", "Edit"))
	visible(t, within(row, "button", "Delete"))

	ids := map[string]string{}
	for _, n := range [][2]string{{"Shop", ""}, {"Returns", "Shop"}, {"Warehouse", "Shop"}, {"North", "Warehouse"}, {"Office", ""}} {
		var made struct{ ID string }
		body := object{"name": n[0]}
		if n[1] != "" {
			body["parent_id"] = ids[n[1]]
		}
		s.call(t, "POST", "/v1/org-nodes", body, &made)
		ids[n[0]] = made.ID
	}
	s.call(t, "POST", "/v1/model-providers", object{"slug": "in-house", "kind": "openai", "base_url": "http://127.0.0.1:9/v1", "credentials": object{"api_key": "k"}, "prices": object{"large": object{"input_per_mtok": 2.5, "output_per_mtok": 10}}}, nil)
	for name, l := range map[string]look{"light": {}, "dark": {dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			v := visit(t, s, l)
			p := v.signedIn("second@example.com", "/console/settings")
			for _, tab := range []string{"keys", "members", "org", "models", "tenant"} {
				p.goTo("/console/settings?tab=" + tab)
				p.settled("Settings")
				p.check("settings, "+tab, name)
			}
		})
	}
}
