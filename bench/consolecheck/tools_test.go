package consolecheck

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

func (p *tab) label(name string) playwright.Locator {
	return p.GetByLabel(name, playwright.PageGetByLabelOptions{Exact: playwright.Bool(true)})
}

// dialog is an open dialog or alertdialog by its name.
func (p *tab) dialog(name string) playwright.Locator      { return p.byRole("dialog", name) }
func (p *tab) alertdialog(name string) playwright.Locator { return p.byRole("alertdialog", name) }

func within(l playwright.Locator, role, name string) playwright.Locator {
	return l.GetByRole(playwright.AriaRole(role), named0(name))
}

func field(l playwright.Locator, name string) playwright.Locator {
	return l.GetByLabel(name, playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)})
}

func pick(t *testing.T, l playwright.Locator, label string) {
	t.Helper()
	_, err := l.SelectOption(playwright.SelectOptionValues{Labels: &[]string{label}})
	must(t, err)
}

func click(t *testing.T, l playwright.Locator) {
	t.Helper()
	must(t, l.Click())
}

// narrow fails if the page scrolls sideways.
func (p *tab) narrow(what string) {
	p.t.Helper()
	wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
	must(p.t, err)
	if wide.(int) > 0 {
		p.t.Errorf("%s scrolls sideways by %v", what, wide)
	}
}

// nowhere fails if a secret is in the page, in storage or in the address.
func (p *tab) nowhere(secret string) {
	p.t.Helper()
	found, err := p.Evaluate(`(s) => {
		const values = [...document.querySelectorAll("input, textarea")].map((e) => e.value);
		return [document.documentElement.outerHTML, JSON.stringify(localStorage), JSON.stringify(sessionStorage), location.href, JSON.stringify(history.state), ...values].some((t) => t.includes(s));
	}`, secret)
	must(p.t, err)
	if found.(bool) {
		p.t.Error("a secret is still in the page")
	}
}

const hostile = "<img src=x onerror=alert(1)>\u202ereversed\u0007"

// toolbox is a tool server of this test with two tools; it wants a token.
func toolbox(t *testing.T, token string) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if q.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		var in struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string `json:"protocolVersion"`
			} `json:"params"`
		}
		if json.NewDecoder(q.Body).Decode(&in) != nil || len(in.ID) == 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		var result any = object{}
		switch in.Method {
		case "initialize":
			result = object{"protocolVersion": in.Params.ProtocolVersion, "capabilities": object{"tools": object{}}, "serverInfo": object{"name": "toolbox", "version": "1"}}
		case "tools/list":
			result = object{"tools": []object{{"name": "stock.read", "description": "Reads the stock. " + hostile, "inputSchema": object{"type": "object"}},
				{"name": "stock.order", "description": "Orders more.", "inputSchema": object{"type": "object"}}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object{"jsonrpc": "2.0", "id": in.ID, "result": result})
	}))
	t.Cleanup(s.Close)
	return s.URL + "/mcp"
}

// Section 5: New server, New connection, Test; the credential goes in and is nowhere afterwards.
func TestToolServers(t *testing.T) {
	t.Parallel()
	const secret, second = "tok-1f4e9a-secret", "tok-77c0de-secret"
	endpoint := toolbox(t, second)
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/tools")
	p.heading("Tools")
	visible(t, p.byRole("table", "Tools"))
	n := numbered.Add(1)
	name, slug := fmt.Sprintf("Stock & Co %d", n), fmt.Sprintf("stock-co-%d", n)

	// The service complains at the field; nothing typed is lost.
	click(t, p.button("New server"))
	dialog := p.dialog("New server")
	must(t, expect.Locator(field(dialog, "Name")).ToBeFocused())
	must(t, field(dialog, "Name").Fill(name))
	must(t, expect.Locator(field(dialog, "Slug")).ToHaveValue(slug))
	must(t, field(dialog, "Endpoint").Fill("ftp://example.com/mcp"))
	pick(t, field(dialog, "Auth kind"), "bearer token")
	p.accessible("New server")
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Endpoint")).ToHaveAttribute("aria-invalid", "true"))
	must(t, expect.Locator(field(dialog, "Name")).ToHaveValue(name))
	must(t, field(dialog, "Endpoint").Fill(endpoint))
	must(t, within(dialog, "button", "Create").Dblclick())
	gone(t, dialog)
	region := p.byRole("region", name)
	visible(t, region)
	row := p.byRole("table", "Tools").Locator("tr", playwright.LocatorLocatorOptions{HasText: name})
	must(t, expect.Locator(row).ToHaveCount(1)) // at once, and once
	contains(t, row, "unknown")

	// A test without a credential says so, and says nothing of the server.
	click(t, within(row, "button", "Test"))
	contains(t, region.GetByRole("alert"), "no tenant-wide connection")
	contains(t, row, "unknown")

	// A connection; its dialog holds the secret in a password field.
	click(t, p.byRole("tab", "Connections"))
	visible(t, p.byRole("table", "Connections"))
	click(t, p.button("New connection"))
	dialog = p.dialog("New connection")
	pick(t, field(dialog, "MCP server"), name)
	must(t, field(dialog, "Name").Fill("Warehouse"))
	must(t, expect.Locator(field(dialog, "Token")).ToHaveAttribute("type", "password"))
	must(t, field(dialog, "Token").Fill(secret))
	must(t, field(dialog, "Credential meta").Fill("{oops"))
	must(t, expect.Locator(field(dialog, "Credential meta")).ToHaveAttribute("aria-invalid", "true"))
	must(t, field(dialog, "Credential meta").Fill(`{"account":"warehouse@example.com"}`))
	p.accessible("New connection")
	click(t, within(dialog, "button", "Create"))
	gone(t, dialog)
	p.nowhere(secret)
	region = p.byRole("region", "Warehouse")
	contains(t, region, "warehouse@example.com")
	contains(t, region, "stored, never shown")

	// The wrong credential fails the test; the row tells.
	click(t, within(region, "button", "Test"))
	contains(t, region.GetByRole("alert"), "The test failed")
	p.accessible("a failed test")

	// Another credential asks first, then works.
	click(t, within(region, "button", "Edit"))
	dialog = p.dialog("Edit connection")
	must(t, expect.Locator(field(dialog, "Token")).ToHaveValue(""))
	must(t, field(dialog, "Token").Fill(second))
	click(t, within(dialog, "button", "Save"))
	ask := p.alertdialog("Rotate the credential of Warehouse?")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	p.accessible("rotate?")
	click(t, within(ask, "button", "Rotate"))
	gone(t, dialog)
	p.nowhere(second)
	click(t, within(region, "button", "Test"))
	contains(t, region, "It lists 2 tools")
	contains(t, region, "stock.order")
	contains(t, region, "<img src=x onerror=alert(1)>") // as text

	// The server is well, and its page is a deep link.
	click(t, region.GetByRole("link", named0(name)))
	region = p.byRole("region", name)
	contains(t, region, "ok")
	p.reload()
	contains(t, region, endpoint)
	contains(t, row, "ok")

	// At another origin the credentials are dropped, and both say so.
	click(t, within(region, "button", "Edit"))
	dialog = p.dialog("Edit server")
	must(t, field(dialog, "Endpoint").Fill(strings.Replace(endpoint, "127.0.0.1", "localhost", 1)))
	contains(t, dialog, "lose their credentials")
	click(t, within(dialog, "button", "Cancel"))
	gone(t, dialog)
	click(t, within(region, "button", "Edit"))
	must(t, field(dialog, "Endpoint").Fill(toolbox(t, second)))
	click(t, within(dialog, "button", "Save"))
	contains(t, region, "The connections have lost their credentials")
	click(t, region.GetByRole("link", named0("its connections")))
	contains(t, p.byRole("table", "Connections").Locator("tr", playwright.LocatorLocatorOptions{HasText: name}), "missing")
	p.back()

	// Disabling asks; deleting wants the name.
	click(t, within(region, "button", "Disable"))
	off := p.alertdialog("Disable " + name + "?")
	must(t, expect.Locator(within(off, "button", "Disable")).ToBeDisabled())
	must(t, off.GetByRole("textbox").Fill(name))
	click(t, within(off, "button", "Disable"))
	contains(t, row, "disabled")
	click(t, within(region, "button", "Delete"))
	ask = p.alertdialog("Delete " + name + "?")
	must(t, expect.Locator(within(ask, "button", "Delete")).ToBeDisabled())
	must(t, ask.GetByRole("textbox").Fill(name))
	click(t, within(ask, "button", "Delete"))
	gone(t, region)
	gone(t, row)
	must(t, expect.Locator(p.Locator("h1")).ToBeFocused()) // the button that asked is gone
	if n := v.called("POST /v1/mcp-servers") - v.called("/test"); n != 2 {
		t.Errorf("%d creates: one was refused, one made by a double click", n)
	}
}

// Section 5: the table Access and the dialog Why; grants are listed, made and revoked.
func TestToolAccess(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t, policy("high"))
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/tools?tab=access&agent="+agent)
	p.heading("Tools")
	table := p.byRole("table", "Access")
	visible(t, p.button(name+", demo.orders.refund: gate"))
	visible(t, p.button(name+", demo.orders.get: allow"))
	visible(t, p.button(name+", builtin:kb.search: deny"))
	p.accessible("Access")

	// Why: what was checked, in order, with the policy that decides; a deep link.
	opener := p.button(name + ", demo.orders.refund: gate")
	click(t, opener)
	why := p.dialog("Why")
	contains(t, why, "Refunds high")
	contains(t, why, "It waits for an admin, at most 24 h")
	contains(t, why.GetByRole("list", named0("What was checked")), "decides")
	p.accessible("Why")
	hasURL(t, p, `why=`+agent)
	p.reload()
	contains(t, why, "Refunds high")
	click(t, within(why, "button", "Close"))
	gone(t, why)
	click(t, opener)
	p.press("Escape")
	gone(t, why)
	must(t, expect.Locator(opener).ToBeFocused())
	click(t, opener)
	p.back()
	gone(t, why)

	// A grant that denies shows in the table without a reload; revoking it asks.
	click(t, p.button("New grant"))
	dialog := p.dialog("New grant")
	pick(t, field(dialog, "MCP server"), "Order desk (demo)")
	must(t, field(dialog, "Tool pattern").Fill("orders.*x"))
	pick(t, field(dialog, "Effect"), "deny")
	pick(t, field(dialog, "For"), "One agent")
	pick(t, field(dialog, "Agent"), name)
	p.accessible("New grant")
	click(t, within(dialog, "button", "Create"))
	must(t, expect.Locator(field(dialog, "Tool pattern")).ToHaveAttribute("aria-invalid", "true"))
	must(t, field(dialog, "Tool pattern").Fill("demo.orders.get"))
	click(t, within(dialog, "button", "Create"))
	gone(t, dialog)
	visible(t, p.button(name+", demo.orders.get: deny"))
	row := p.byRole("table", "Grants").Locator("tr", playwright.LocatorLocatorOptions{HasText: name})
	contains(t, row, "demo.orders.get")
	click(t, p.button(name+", demo.orders.get: deny"))
	contains(t, why, "deny")
	gone(t, within(why, "button", "Grant it")) // a deny beats every grant
	click(t, within(why, "button", "Close"))
	click(t, within(row, "button", "Revoke"))
	ask := p.alertdialog("Revoke the grant of demo.orders.get?")
	must(t, expect.Locator(within(ask, "button", "Cancel")).ToBeFocused())
	p.press("Escape")
	gone(t, ask)
	visible(t, row)
	click(t, within(row, "button", "Revoke"))
	click(t, within(ask, "button", "Revoke"))
	gone(t, row)
	visible(t, p.button(name+", demo.orders.get: allow"))

	// What is changed elsewhere shows too.
	var made struct{ ID string }
	shared.call(t, "POST", "/v1/approval-policies", object{"name": "Reads", "tool_pattern": "demo.orders.get", "agent_id": agent}, &made)
	visible(t, p.button(name+", demo.orders.get: gate"))

	// Filters are in the address.
	must(t, p.label("Tool").Fill("refund"))
	must(t, expect.Locator(table.Locator("tbody tr[data-id]")).ToHaveCount(1))
	hasURL(t, p, `tool=refund`)
	must(t, p.label("Tool").Fill("nothing like it"))
	visible(t, p.GetByText("Nothing fits these filters"))
	click(t, p.button("Clear filters").First())
	// All agents are shown again, six at a time: those of other tests may stand before this one.
	visible(t, table.Locator(`tbody tr[data-id="demo.orders.refund"]`))
	must(t, expect.Locator(p.label("Agent")).ToHaveValue(""))
}

// Why leads to the grant that is missing.
func TestGrantingFromWhy(t *testing.T) {
	t.Parallel()
	n := numbered.Add(1)
	slug := fmt.Sprintf("lager-%d", n)
	var server, agent struct {
		ID    string
		Agent struct{ ID string }
	}
	shared.call(t, "POST", "/v1/mcp-servers", object{"slug": slug, "name": "Lager " + hostile, "transport": "http", "endpoint": toolbox(t, "t"), "auth_kind": "bearer"}, &server)
	shared.call(t, "POST", "/v1/connections", object{"mcp_server_id": server.ID, "name": "c", "credentials": object{"token": "t"}}, nil)
	shared.call(t, "POST", "/v1/mcp-servers/"+server.ID+"/test", nil, nil)
	name := fmt.Sprintf("Keeper %d", n)
	shared.call(t, "POST", "/v1/agents", object{"name": name, "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}, "tools": object{"mcp": []object{{"server": slug}}}}}, &agent)
	shared.call(t, "POST", "/v1/agents/"+agent.Agent.ID+"/versions/1/publish", nil, nil)
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/tools?tab=access&agent="+agent.Agent.ID+"&tool="+slug)
	click(t, p.button(name+", "+slug+".stock.read: deny"))
	why := p.dialog("Why")
	contains(t, why, "no grant allows it")
	click(t, within(why, "button", "Grant it"))
	dialog := p.dialog("New grant")
	must(t, expect.Locator(field(dialog, "Tool pattern")).ToHaveValue(slug+".stock.read"))
	must(t, expect.Locator(field(dialog, "MCP server")).ToHaveValue(server.ID))
	must(t, expect.Locator(field(dialog, "Agent")).ToHaveValue(agent.Agent.ID))
	click(t, within(dialog, "button", "Create"))
	gone(t, dialog)
	visible(t, p.button(name+", "+slug+".stock.read: allow"))
	visible(t, p.button(name+", "+slug+".stock.order: deny"))
	// A hostile name is text, and can be typed as it is shown.
	p.goTo("/console/tools?open=" + server.ID)
	contains(t, p.Locator("section.opened h2"), "<img src=x onerror=alert(1)>[U+202E]reversed[U+0007]")
	p.accessible("a hostile server")
	click(t, within(p.Locator("section.opened"), "button", "Delete"))
	ask := p.GetByRole("alertdialog")
	must(t, ask.GetByRole("textbox").Fill("Lager <img src=x onerror=alert(1)>[U+202E]reversed[U+0007]"))
	click(t, within(ask, "button", "Delete"))
	gone(t, ask)
	p.goTo("/console/tools?tab=access&agent=" + agent.Agent.ID + "&tool=" + slug)
	visible(t, p.GetByText("Nothing fits these filters"))
}

// answer makes a route of the API answer something else.
func (p *tab) answer(pattern string, status int, body string) {
	p.t.Helper()
	must(p.t, p.Route(regexp.MustCompile(pattern), func(r playwright.Route) {
		if r.Request().Method() != "GET" {
			_ = r.Continue()
			return
		}
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(status), ContentType: playwright.String("application/json"), Body: body, Headers: map[string]string{"X-Request-Id": "req-1", "Content-Type": "application/json"}})
	}))
}

const (
	nothing = `{"items":[],"next_cursor":null}`
	broken  = `{"type":"about:blank","title":"Internal error","status":500,"code":"INTERNAL","detail":"It broke."}`
)

// Section 5: empty lists say so and offer the first step; an unread list is never empty.
func TestToolsAreEmptyOrBroken(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/approvals")
	p.answer(`/v1/(mcp-servers|connections|tool-grants|tools|approval-policies|model-providers|org-nodes|agents)(\?|$)`, 200, nothing)
	for path, title := range map[string]string{"tools": "No servers yet", "tools?tab=connections": "No connections yet", "tools?tab=access": "No grants yet", "policies": "No policies yet",
		"settings?tab=org": "No org nodes yet", "settings?tab=models": "No model providers yet"} {
		p.goTo("/console/" + path)
		visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: title}))
		p.accessible("empty " + path)
	}
	must(t, p.UnrouteAll())
	p.answer(`/v1/(mcp-servers|connections|tool-grants|tools|approval-policies|model-providers|org-nodes|tenant)(\?|$)`, 500, broken)
	for _, path := range []string{"tools", "tools?tab=connections", "tools?tab=access", "policies", "settings?tab=org", "settings?tab=models"} {
		p.goTo("/console/" + path)
		alert := p.GetByRole("alert").First()
		for _, text := range []string{"Internal error", "It broke.", "INTERNAL", "req-1"} {
			contains(t, alert, text)
		}
		gone(t, p.Locator(".empty"))
	}
	// It is read again by the button.
	must(t, p.UnrouteAll())
	click(t, p.button("Try again").First())
	gone(t, p.GetByRole("alert"))
}

// Section 5: choices of a form that cannot be read are not shown as none.
func TestChoicesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("admin", "/console/")
	p.heading("Home")
	p.answer(`/v1/(mcp-servers|connections|org-nodes|agents|workflows|webhooks/event-types)(\?|$)`, 500, broken)
	for path, makes := range map[string]string{"webhooks": "New webhook", "tools?tab=connections": "New connection", "tools?tab=access": "New grant", "triggers": "New trigger", "workflows": "New workflow", "policies": "New policy"} {
		p.goTo("/console/" + path)
		click(t, p.button(makes).First())
		dialog := p.dialog(makes)
		visible(t, dialog)
		if path == "webhooks" {
			must(t, dialog.GetByLabel("All events").Uncheck())
		}
		contains(t, dialog.GetByRole("alert").First(), "It broke.")
		p.accessible(makes + " without its choices")
	}
	p.goTo("/console/runs")
	contains(t, p.byRole("group", "Filters").GetByRole("alert").First(), "It broke.")
	// They are read again by the button.
	p.goTo("/console/policies")
	click(t, p.button("New policy").First())
	dialog := p.dialog("New policy")
	again := dialog.GetByRole("button", named0("Try again"))
	visible(t, again)
	must(t, p.UnrouteAll())
	click(t, again)
	visible(t, field(dialog, "Agent"))
	gone(t, dialog.GetByRole("alert"))
}

// Sections 2 and 5: what is above one's role is not linked, and its address says which role it needs.
func TestToolsAreForAdmins(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.as("member", "/console/approvals")
	p.heading("Approvals")
	for _, name := range []string{"Tools", "Policies", "Settings"} {
		gone(t, p.byRole("navigation", "Main").GetByRole("link", named0(name)))
	}
	for _, path := range []string{"tools", "tools?tab=access", "policies", "settings?tab=org", "settings?tab=members"} {
		p.goTo("/console/" + path)
		p.heading("No access")
		contains(t, p.Locator("main"), "admin")
	}
	for _, path := range []string{"/v1/mcp-servers", "/v1/connections", "/v1/tool-grants", "/v1/approval-policies", "/v1/tools"} {
		if n := v.called(path); n > 0 {
			t.Errorf("a member's page called %s", path)
		}
	}
}

// Section 8, in light, dark and at 360 px.
func TestToolsLookGood(t *testing.T) {
	t.Parallel()
	s := own(t)
	agent := ""
	for _, a := range []struct{ name, risk string }{{"Assistant", "high"}, {"Back office", "critical"}, {"Courier", ""}} {
		agent = s.shopAgent(t, a.name, a.risk)
	}
	var server struct{ ID string }
	s.call(t, "POST", "/v1/mcp-servers", object{"slug": "stock", "name": "Warehouse stock", "transport": "http", "endpoint": toolbox(t, "t"), "auth_kind": "bearer", "meta": object{"team": "logistics"}}, &server)
	s.call(t, "POST", "/v1/connections", object{"mcp_server_id": server.ID, "name": "Warehouse account", "credentials": object{"token": "t"}, "credential_meta": object{"account": "warehouse@example.com"}}, nil)
	s.call(t, "POST", "/v1/mcp-servers/"+server.ID+"/test", nil, nil)
	s.call(t, "POST", "/v1/mcp-servers", object{"slug": "mail", "name": "Mail out", "transport": "http", "endpoint": "http://127.0.0.1:9/mcp", "auth_kind": "none"}, nil)
	for name, l := range map[string]look{"light": {}, "dark": {dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			v := visit(t, s, l)
			p := v.as("admin", "/console/tools?open="+server.ID)
			p.settled("Tools")
			click(t, within(p.Locator("[data-id]", playwright.PageLocatorOptions{HasText: "Mail out"}), "button", "Test"))
			contains(t, p.GetByRole("alert"), "The test failed")
			p.goTo("/console/tools?open=" + server.ID)
			p.settled("Tools")
			p.check("tools-servers", name)
			p.goTo("/console/tools?tab=connections")
			p.settled("Tools")
			p.check("tools-connections", name)
			p.goTo("/console/tools?tab=access")
			p.settled("Tools")
			p.check("tools-access", name)
			click(t, p.button("Back office, demo.orders.refund: gate"))
			visible(t, p.byRole("list", "What was checked"))
			p.check("tools-why", name)
			p.picture("console-tools-why-" + name)
			p.press("Escape")
			p.goTo("/console/policies?tool=demo.orders.refund&agent=" + agent)
			p.settled("Policies")
			visible(t, p.byRole("list", "What was checked"))
			p.check("policies", name)
			click(t, p.button("New policy"))
			visible(t, p.dialog("New policy"))
			p.check("policies-new", name)
		})
	}
}

// shopAgent is a published agent with the desk's tools; with a risk its refunds wait.
func (s *service) shopAgent(t *testing.T, name, risk string) string {
	t.Helper()
	var made struct{ Agent struct{ ID string } }
	s.call(t, "POST", "/v1/agents", object{"name": name, "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}, "tools": object{"mcp": []object{{"server": "demo"}}}}}, &made)
	s.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
	if risk != "" {
		s.call(t, "POST", "/v1/approval-policies", policy(risk, "agent_id", made.Agent.ID, "name", "Refunds of "+name, "required_approvals", 2), nil)
	}
	return made.Agent.ID
}

// settled waits until a page has read what it shows.
func (p *tab) settled(heading string) {
	p.t.Helper()
	p.heading(heading)
	must(p.t, expect.Locator(p.Locator("[aria-busy=true]")).ToHaveCount(0))
}

// check looks at a page: axe, no sideways scroll.
func (p *tab) check(what, look string) {
	p.t.Helper()
	p.accessible(what + " in " + look)
	if look == "phone" {
		p.narrow(what)
	}
}
