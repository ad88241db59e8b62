package consolecheck

import (
	"fmt"
	"testing"
)

// Section 8: axe finds nothing serious on any page, in light, dark and at 360 px; section 1: no
// violation of the policy and no foreign request over the tour (visit fails on both).
func TestTheTour(t *testing.T) {
	agent, _ := shared.policed(t, policy("high"))
	a := shared.refund(t, agent, 12.5, "arrived broken")
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {}, "dark": {dark: true}, "a phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/")
			for path, heading := range map[string]string{"": "Home", "approvals": "Approvals", "approvals?tab=decided": "Approvals", "approvals/" + a.ID: "Approvals", "nowhere": "Not found"} {
				p.goTo("/console/" + path)
				p.heading(heading)
				must(t, expect.Locator(p.Locator("[aria-busy=true]")).ToHaveCount(0))
				p.accessible(fmt.Sprintf("/console/%s in %s", path, name))
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("/console/%s scrolls sideways by %v", path, wide)
				}
			}
			p.goTo("/console/")
			p.heading("Home")
			must(t, p.button("Account").Click())
			visible(t, p.byRole("menu", "Account"))
			p.accessible("the menu Account in " + name)
			must(t, p.byRole("menuitem", "Keyboard shortcuts").Click())
			p.accessible("Keyboard shortcuts in " + name)
			p.press("Escape")
			must(t, expect.Locator(p.button("Account")).ToBeFocused())
			p.press("Control+k")
			dialog := p.byRole("dialog", "Search")
			must(t, dialog.GetByRole("combobox").Fill("appr"))
			visible(t, dialog.GetByRole("option").First())
			p.accessible("Search in " + name)
			p.press("Enter")
			p.heading("Approvals")
		})
	}
}

// Section 3: the first stop skips to the content, the heading has the focus after a navigation,
// and shortcuts lead to pages.
func TestTheFrame(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/approvals")
	p.heading("Approvals")
	p.goTo("/console/approvals")
	p.heading("Approvals")
	p.press("Tab")
	must(t, expect.Locator(p.byRole("link", "Skip to content")).ToBeFocused())
	visible(t, p.GetByRole("banner").GetByText("Development"))
	p.press("Enter", "g", "h")
	p.heading("Home")
	must(t, expect.Locator(p.Locator("h1")).ToBeFocused())
	must(t, expect.Locator(p.byRole("navigation", "Main").GetByRole("link", named0("Home"))).ToHaveAttribute("aria-current", "page"))
	p.press("/")
	visible(t, p.byRole("dialog", "Search"))
	p.press("Escape")
	p.press("g", "a")
	p.heading("Approvals")
	_, err := p.GoBack()
	must(t, err)
	p.heading("Home")
	// The theme is kept over a load.
	must(t, p.button("Account").Click())
	must(t, p.byRole("menuitemradio", "Dark").Click())
	p.goTo("/console/")
	must(t, expect.Locator(p.Locator("html")).ToHaveAttribute("data-theme", "dark"))
	p.heading("Home")
}
