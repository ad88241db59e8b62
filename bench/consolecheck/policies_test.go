package consolecheck

import (
	"testing"

	"github.com/playwright-community/playwright-go"
)

// Section 5: policies are made, changed, disabled and deleted, and the region says what a call would meet.
func TestPolicies(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/policies")
	p.heading("Policies")
	region := p.byRole("region", "Would this call stop?")
	contains(t, region, "Choose an agent and name a tool")
	pick(t, field(region, "Agent"), name)
	must(t, field(region, "Tool").Fill("demo.orders.get"))
	contains(t, region, "No: it runs at once.")
	hasURL(t, p, `agent=`+agent+`&tool=demo\.orders\.get$`)
	p.reload()
	contains(t, region, "No: it runs at once.")
	must(t, expect.Locator(field(region, "Tool")).ToHaveValue("demo.orders.get"))

	// The dialog begins with the call that was asked about; what is wrong stands at its field.
	click(t, p.button("New policy"))
	dialog := p.dialog("New policy")
	must(t, expect.Locator(field(dialog, "Tool pattern")).ToHaveValue("demo.orders.get"))
	must(t, expect.Locator(field(dialog, "Agent")).ToHaveValue(agent))
	title := "Reads " + hostile
	must(t, field(dialog, "Name").Fill(title))
	must(t, field(dialog, "Tool pattern").Fill("demo.*.get"))
	pick(t, field(dialog, "Risk"), "critical")
	pick(t, field(dialog, "Required approvals"), "2")
	must(t, field(dialog, "SLA minutes").Fill("0"))
	must(t, expect.Locator(field(dialog, "SLA minutes")).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(within(dialog, "button", "Create")).ToBeDisabled())
	must(t, field(dialog, "SLA minutes").Fill("90"))
	contains(t, dialog, "The call waits 90 min at most.")
	p.accessible("New policy")
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Tool pattern")).ToHaveAttribute("aria-invalid", "true"))
	must(t, field(dialog, "Tool pattern").Fill("demo.orders.get"))
	// Escape asks, because something was typed.
	p.press("Escape")
	click(t, within(p.alertdialog("Discard what you typed?"), "button", "Cancel"))
	must(t, within(dialog, "button", "Create").Dblclick())
	gone(t, dialog)
	row := p.byRole("table", "Policies").Locator("tr", playwright.LocatorLocatorOptions{HasText: name})
	must(t, expect.Locator(row).ToHaveCount(1))
	contains(t, row, "<img src=x onerror=alert(1)>[U+202E]reversed[U+0007]")
	contains(t, row, "2 admins")
	contains(t, region, "Yes, it stops: a person decides first.")
	contains(t, region, "It waits for 2 admins, at most 90 min")
	contains(t, row, "stops it")
	p.accessible("Policies")

	// Its link opens it; the address can be sent.
	click(t, row.GetByRole("link"))
	dialog = p.dialog("Edit policy")
	must(t, expect.Locator(field(dialog, "Name")).ToHaveValue(title))
	p.reload()
	pick(t, field(dialog, "Required approvals"), "1")
	p.accessible("Edit policy")
	click(t, within(dialog, "button", "Save"))
	gone(t, dialog)
	contains(t, region, "It waits for an admin, at most 90 min")
	contains(t, row, "an admin")

	// Disabling asks first, with the focus on Cancel.
	click(t, within(row, "button", "Disable"))
	ask := p.GetByRole("alertdialog")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	p.press("Enter")
	gone(t, ask)
	contains(t, row, "enabled")
	click(t, within(row, "button", "Disable"))
	click(t, within(ask, "button", "Disable"))
	contains(t, row, "disabled")
	contains(t, region, "No: it runs at once.")
	click(t, within(row, "button", "Enable"))
	contains(t, region, "Yes, it stops")

	// What changes elsewhere shows.
	shared.call(t, "POST", "/v1/tool-grants", object{"source": "mcp", "mcp_server_id": shared.demo(t), "tool_pattern": "demo.orders.get", "effect": "deny", "agent_id": agent}, nil)
	contains(t, region, "It does not run at all.")

	click(t, within(row, "button", "Delete"))
	click(t, within(ask, "button", "Delete"))
	gone(t, row)
	if n := v.called("POST /v1/approval-policies"); n != 2 {
		t.Errorf("%d creates: one was refused, one made by a double click", n)
	}
	// Unknown values are ignored; an agent that is not there is told.
	p.goTo("/console/policies?agent=nobody&tool=demo.orders.get&colour=red")
	contains(t, region, "Choose an agent.")
	p.goTo("/console/policies?tool=demo.orders.get&agent=0193a000-0000-7000-8000-000000000000")
	contains(t, region.GetByRole("alert"), "There is no such agent")
	p.goTo("/console/policies?tool=no.such&agent=" + agent)
	contains(t, region, "It does not run at all.")
}

// demo is the id of the demo tool server.
func (s *service) demo(t *testing.T) (id string) {
	t.Helper()
	var list struct{ Items []struct{ ID, Slug string } }
	s.call(t, "GET", "/v1/mcp-servers?limit=100", nil, &list)
	for _, i := range list.Items {
		if i.Slug == "demo" {
			id = i.ID
		}
	}
	return id
}

// A failed change keeps what was typed and can be repeated under its key.
func TestAPolicyIsNotSent(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/policies")
	p.heading("Policies")
	click(t, p.button("New policy"))
	dialog := p.dialog("New policy")
	must(t, field(dialog, "Name").Fill("Kept"))
	must(t, field(dialog, "Tool pattern").Fill("kept.never"))
	var keys []string
	must(t, p.Route("**/v1/approval-policies", func(r playwright.Route) {
		if r.Request().Method() != "POST" {
			_ = r.Continue()
			return
		}
		keys = append(keys, r.Request().Headers()["idempotency-key"])
		if len(keys) == 1 {
			_ = r.Abort()
			return
		}
		_ = r.Continue()
	}))
	click(t, within(dialog, "button", "Create"))
	contains(t, dialog.GetByRole("alert"), "Not sent")
	must(t, expect.Locator(field(dialog, "Name")).ToHaveValue("Kept"))
	p.accessible("Not sent")
	click(t, within(dialog, "button", "Try again"))
	gone(t, dialog)
	if len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("keys %v", keys)
	}
}
