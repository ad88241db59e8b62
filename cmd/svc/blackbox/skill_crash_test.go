//go:build failpoints

package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
)

// crashedSkill is what a kill at a point of a browser skill's run leads to after the restart.
type crashedSkill struct {
	approved bool   // the point lies behind the decision
	fails    bool   // a check of the skill fails, and it compensates
	row      string // status and code of the run of the skill
	effects  int
	hears    string // what the model hears
}

// crashedSkills is service.md, Browser skill run outcomes, "crash between the receipt and the verification",
// and open-parts.md: a kill in prepare prepares again, in re-prepare it goes on and commits once.
var crashedSkills = map[string]crashedSkill{
	"skillrun.prepared":      {false, false, "succeeded ", 1, `"status":"succeeded"`},
	"skillrun.ready":         {true, false, "succeeded ", 1, `"status":"succeeded"`},
	"skillrun.before_click":  {true, false, "committing unknown_outcome", 0, `"error":"unknown_outcome"`},
	"skillrun.clicked":       {true, false, "committing unknown_outcome", 1, `"error":"unknown_outcome"`},
	"skillrun.before_checks": {true, false, "committed unknown_outcome", 1, `"error":"unknown_outcome"`},
	"skillrun.checked":       {true, false, "committed unknown_outcome", 1, `"error":"unknown_outcome"`},
	"skillrun.compensated":   {true, true, "verification_failed verification_failed", 1, `"error":"verification_failed"`},
	// Not a point: the site has the request and does not answer, and the node is killed from outside.
	"no answer": {true, false, "committing unknown_outcome", 1, `"error":"unknown_outcome"`},
}

// TestCrashInABrowserSkill kills a node in the middle of an agent's run of a browser skill, at each point that
// the run has and while the site is thinking, over HTTP and with a real browser. After the restart the order is
// cancelled at most once, the run ends as the contract says, and no browser of the killed node is left.
func TestCrashInABrowserSkill(t *testing.T) {
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_SKILL_STEP_TIMEOUT=20s")
	n.start()
	c := n.tenant("crash")
	credentials := func(*site.Site) object {
		return object{"mode": "credentials", "secrets": object{"user": site.User, "password": site.Password}}
	}
	good := c.backOffice(t, "Cancel", object{})
	undoes := strings.NewReplacer(`"value":"cancelled"`, `"value":"gone"`, `"compensation": []`,
		`"compensation": [{"id":"c1","kind":"navigate","value":"URL/orders/1001"},{"id":"c2","kind":"click","target":{"selector":"#restore"}}]`).Replace(cancelsOrder)
	bad := c.backOfficeOf(t, "Cancel in vain", object{}, undoes, credentials)
	points := []string{"no answer"}
	for _, name := range failpoints(t) {
		if strings.HasPrefix(name, "skillrun.") {
			points = append(points, name)
		}
	}
	if len(points) != len(crashedSkills) {
		t.Fatalf("%v: each has a row of crashedSkills", points)
	}
	for i, point := range points {
		t.Run(point, func(t *testing.T) {
			want, named := crashedSkills[point]
			if !named {
				t.Fatal("the point has no row of crashedSkills")
			}
			b, order := good, fmt.Sprint(2000+i)
			if want.fails {
				b, order = bad, "1001"
			}
			b.Add(site.Order{ID: order, Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
			b.Set(site.Knobs{Silent: point == "no answer"})
			ctx := within(t, 3*time.Minute)
			n.kill()
			if point == "no answer" {
				n.launch()
			} else {
				n.launch("SVC_FAILPOINT=" + point + ":1")
			}
			if err := n.ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			end := n.ended()
			run := c.runOnce(t, ctx, b.agent, `/call browser_skill:`+b.slug+`.run {"order":"`+order+`","cause":"stock","reason":"r"}`)
			var decided chan error
			approve := func() {
				t.Helper()
				c.poll(t, ctx, run, "waiting_approval")
				if b.Effects(order) != 0 {
					t.Fatal("it is cancelled before the decision")
				}
				a := c.pendingOf(t, run)
				// The node may die before it answers. What is sent again is one decision.
				decided = make(chan error, 1)
				go func() {
					decided <- c.once(ctx, "/v1/approvals/"+a.ID+"/decision", "decision of "+point, object{"action": "approve"}, &object{})
				}()
			}
			if want.approved {
				approve()
			}
			if point == "no answer" {
				eventually(t, ctx, "the site has the request", func() bool { return b.Effects(order) == 1 })
				n.kill()
			}
			select {
			case <-end:
			case <-ctx.Done():
				t.Fatal("the failpoint was never hit")
			}
			left := len(browsers(t, n))
			n.launch()
			if err := n.ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			if !want.approved {
				approve()
			}
			if err := <-decided; err != nil {
				t.Fatal(err)
			}
			r := c.poll(t, ctx, run, "succeeded") // the agent's own run: the model was told, and answered
			if got := toolOutput(r); !strings.Contains(got, want.hears) || strings.Contains(got, site.Password) {
				t.Errorf("the model heard %s, want %s", got, want.hears)
			}
			var list struct{ Items []skillRun }
			c.ask(t, ctx, 200, "GET", "/v1/browser-skills/runs?agent_run_id="+run, nil, &list)
			if len(list.Items) != 1 {
				t.Fatalf("%d runs of the skill", len(list.Items))
			}
			code := ""
			if list.Items[0].Code != nil {
				code = *list.Items[0].Code
			}
			if got := list.Items[0].Status + " " + code; got != want.row {
				t.Errorf("the run is %q, want %q", got, want.row)
			}
			if got := b.Effects(order); got != want.effects {
				t.Errorf("the order was cancelled %d times, want %d", got, want.effects)
			}
			if got := b.Restores(order); got > 1 {
				t.Errorf("it was restored %d times", got)
			}
			t.Logf("%d processes of a browser were left by the kill", left)
		})
	}
	n.kill()
	n.launch()
	if err := n.ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	eventually(t, within(t, 10*time.Second), "no browser is left", func() bool { return len(browsers(t, n)) == 0 })
}
