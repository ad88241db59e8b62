package consolecheck

import (
	"encoding/json"
	"regexp"
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
