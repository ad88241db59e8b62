package consolecheck

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// sending is what a page sent to one route: bodies and keys, in their order.
type sending struct {
	mu     sync.Mutex
	keys   []string
	bodies []object
}

// lost lets the first n POSTs of a route fail on their way to the service, and notes all.
func (p *tab) lost(pattern string, n int) *sending {
	p.t.Helper()
	s := &sending{}
	must(p.t, p.Route(pattern, func(r playwright.Route) {
		if r.Request().Method() != "POST" {
			_ = r.Fallback()
			return
		}
		var body object
		if text, err := r.Request().PostData(); err == nil {
			_ = json.Unmarshal([]byte(text), &body)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keys, s.bodies = append(s.keys, r.Request().Headers()["idempotency-key"]), append(s.bodies, body)
		if len(s.keys) <= n {
			_ = r.Abort("connectionrefused")
			return
		}
		_ = r.Continue()
	}))
	return s
}

// Sections 2 and 4: `Try again` sends what the dialog shows by then: the same under its key, anything else under another.
func TestTryingAgainSendsWhatIsShown(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("high"))
	a := shared.refund(t, agent, 12.5, "broken")
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/approvals/"+a.ID)
	sent := p.lost("**/decision", 2)
	must(t, p.region().GetByRole("button", named0("Edit")).Click())
	dialog := p.dialog("Edit arguments")
	amount := dialog.GetByRole("textbox", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Amount")})
	must(t, amount.Fill("10"))
	click(t, within(dialog, "button", "Approve with changes"))
	contains(t, dialog.GetByRole("alert"), "Not sent")
	click(t, within(dialog, "button", "Try again"))
	contains(t, dialog.GetByRole("alert"), "Not sent")
	must(t, amount.Fill("8"))
	contains(t, within(dialog, "list", "Changes"), "amount 12.5 → 8")
	click(t, within(dialog, "button", "Try again"))
	gone(t, dialog)
	if got := shared.approval(t, a.ID).Decisions[0].EditedArgs["amount"]; got != 8.0 {
		t.Errorf("approved an amount of %v", got)
	}
	sent.mu.Lock()
	if k := sent.keys; len(k) != 3 || k[0] != k[1] || k[1] == k[2] {
		t.Errorf("the keys of 10, 10 and 8: %q", k)
	}
	sent.mu.Unlock()

	// On a page: what was typed after the failure is saved, and not lost.
	p.goTo("/console/agents/" + agent)
	p.lost("**/versions", 1)
	instructions := p.box("Instructions")
	must(t, instructions.Fill("First."))
	click(t, p.button("Save draft"))
	visible(t, p.button("Try again"))
	must(t, instructions.Fill("First, then second."))
	click(t, p.button("Try again"))
	hasURL(t, p, "version=2")
	var saved struct{ Manifest struct{ Instructions string } }
	shared.call(t, "GET", "/v1/agents/"+agent+"/versions/2", nil, &saved)
	if got := saved.Manifest.Instructions; got != "First, then second." {
		t.Errorf("version 2 says %q", got)
	}
}

// Section 5: a question about switching something off never switches it on, whatever became of it meanwhile.
func TestPausingWhatIsPaused(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	n := numbered.Add(1)
	trigger := shared.trigger(t, agent, object{"name": "Nightly", "kind": "schedule", "schedule": object{"cron": "0 3 * * *"}})
	var server struct{ ID, Name string }
	shared.call(t, "POST", "/v1/mcp-servers", object{"name": fmt.Sprintf("Paused %d", n), "slug": fmt.Sprintf("paused-%d", n), "transport": "http", "endpoint": nowhere(t), "auth_kind": "none"}, &server)
	hook := shared.hook(t, newReceiver(t).url, "run.failed")
	p := visit(t, shared, look{}).as("admin", "/console/triggers/"+trigger.ID)
	for _, c := range []struct{ page, path, action, undo, title, typed string }{
		{"triggers/" + trigger.ID, "/v1/triggers/" + trigger.ID, "Pause", "Resume", "Pause Nightly?", ""},
		{"tools?open=" + server.ID, "/v1/mcp-servers/" + server.ID, "Disable", "Enable", "Disable " + server.Name + "?", server.Name},
		{"webhooks/" + hook, "/v1/webhooks/" + hook, "Disable", "Enable", "", ""},
	} {
		p.goTo("/console/" + c.page)
		click(t, p.button(c.action))
		ask := p.GetByRole("alertdialog")
		if c.title != "" {
			ask = p.alertdialog(c.title)
		}
		visible(t, ask)
		shared.call(t, "PATCH", c.path, object{"enabled": false}, nil)
		// The page behind the question knows; the question is what it was.
		visible(t, p.GetByRole("button", playwright.PageGetByRoleOptions{Name: c.undo, Exact: playwright.Bool(true), IncludeHidden: playwright.Bool(true)}))
		if c.typed != "" {
			must(t, ask.GetByRole("textbox").Fill(c.typed))
		}
		click(t, within(ask, "button", c.action))
		gone(t, ask)
		var now struct{ Enabled bool }
		shared.call(t, "GET", c.path, nil, &now)
		if now.Enabled {
			t.Errorf("%s: %q switched it on", c.page, c.action)
		}
	}
}

// Section 4: nothing moves under the hand: what a form offered first stays chosen when others make another.
func TestAFirstChoiceStays(t *testing.T) {
	t.Parallel()
	server := func() (id string) {
		t.Helper()
		var made struct{ ID string }
		n := numbered.Add(1)
		shared.call(t, "POST", "/v1/mcp-servers", object{"name": fmt.Sprintf("First %d", n), "slug": fmt.Sprintf("first-%d", n), "transport": "http", "endpoint": nowhere(t), "auth_kind": "bearer"}, &made)
		return made.ID
	}
	agent := func() (id string) {
		t.Helper()
		id, _ = shared.policed(t)
		return id
	}
	p := visit(t, shared, look{}).as("admin", "/console/")
	for _, c := range []struct {
		page, opens, label string
		another            func() string
	}{
		{"tools?tab=connections", "New connection", "MCP server", server},
		{"tools?tab=access", "New grant", "MCP server", server},
		{"workflows", "New workflow", "Agent", agent},
		{"playground", "", "Agent", agent},
	} {
		c.another()
		p.goTo("/console/" + c.page)
		in := p.Locator("main")
		if c.opens != "" {
			click(t, p.button(c.opens).First())
			in = p.dialog(c.opens)
		}
		choice := field(in, c.label)
		visible(t, choice)
		must(t, expect.Locator(choice).Not().ToHaveValue(""))
		was, err := choice.InputValue()
		must(t, err)
		if c.opens == "" {
			must(t, p.box("Message").Fill("For the first one."))
		}
		made := c.another()
		must(t, expect.Locator(choice.Locator(`option[value="`+made+`"]`)).ToHaveCount(1))
		if now, err := choice.InputValue(); err != nil || now != was {
			t.Errorf("%s: %s was %s and is %s, %v", c.page, c.label, was, now, err)
		}
		if c.opens == "" {
			must(t, p.box("Message").Fill(""))
		}
	}
}

// Section 5: a new thread is a new one, whatever failed in the thread before.
func TestANewThreadAfterAFailure(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	p := visit(t, shared, look{}).as("admin", "/console/playground?agent="+agent)
	message, log := p.box("Message"), p.byRole("log", "Conversation")
	must(t, message.Fill("/say One."))
	click(t, p.button("Send"))
	contains(t, log, "One.")
	hasURL(t, p, "thread=")
	_, first, _ := strings.Cut(p.URL(), "thread=")
	must(t, expect.Locator(log).ToHaveAttribute("aria-busy", "false"))
	p.lost("**/messages", 1)
	must(t, message.Fill("/say Two."))
	click(t, p.button("Send"))
	contains(t, p.GetByRole("alert"), "Not sent")
	click(t, p.button("New thread"))
	gone(t, p.GetByRole("alert"))
	must(t, expect.Locator(message).ToHaveValue("/say Two."))
	click(t, p.button("Send"))
	contains(t, log, "Two.")
	hasURL(t, p, "thread=")
	if _, second, _ := strings.Cut(p.URL(), "thread="); second == first {
		t.Error("a new thread was the thread before")
	}
	var list struct{ Items []object }
	shared.call(t, "GET", "/v1/threads/"+first+"/messages", nil, &list)
	if len(list.Items) != 2 {
		t.Errorf("%d messages in the first thread", len(list.Items))
	}
}
