//go:build failpoints

package blackbox

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
)

// A node that is alone is told to stop while it fills a form for a decision, or for a preview. No process goes on with that page, so it
// waits for nothing; the next process fills the form anew, and the order is cancelled once.
func TestSIGTERMWhileABrowserSkillFillsItsForm(t *testing.T) { // not parallel: a browser has a low priority
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_SKILL_STEP_TIMEOUT=30s", "SVC_DRAIN_TIMEOUT=2m")
	n.start()
	c := n.tenant("drain")
	b := c.backOffice(t, "Cancel", object{})
	for i, filled := range []string{"for a preview", "for a decision"} {
		t.Run(filled, func(t *testing.T) {
			order := fmt.Sprint(3000 + i)
			b.Add(site.Order{ID: order, Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
			slow := site.Knobs{Late: 8 * time.Second}
			if filled == "for a preview" {
				b.Set(slow)
			}
			ctx := within(t, 3*time.Minute)
			run := c.runOnce(t, ctx, b.agent, `/call browser_skill:`+b.slug+`.run {"order":"`+order+`","cause":"stock","reason":"r"}`)
			status := func(want string) {
				t.Helper()
				eventually(t, ctx, "the run of the skill is "+want, func() bool {
					var list struct{ Items []skillRun }
					c.ask(t, ctx, 200, "GET", "/v1/browser-skills/runs?agent_run_id="+run, nil, &list)
					return len(list.Items) == 1 && list.Items[0].Status == want
				})
			}
			if filled == "for a decision" {
				c.poll(t, ctx, run, "waiting_approval")
				b.Set(slow)
				c.decides(t, ctx, c.pendingOf(t, run).ID, object{"action": "approve"})
			}
			status("running")
			n.tells(syscall.SIGTERM)
			ended(t, n, 45*time.Second)
			b.Set(site.Knobs{})
			n.start()
			if filled == "for a preview" {
				c.poll(t, ctx, run, "waiting_approval")
				c.decides(t, ctx, c.pendingOf(t, run).ID, object{"action": "approve"})
			}
			c.poll(t, ctx, run, "succeeded")
			if got := b.Effects(order); got != 1 {
				t.Errorf("the order was cancelled %d times", got)
			}
			status("succeeded")
		})
	}
}
