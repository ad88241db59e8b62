//go:build failpoints

package blackbox

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
)

// crashedSkill is what a kill at a point of a browser skill's run leads to after the restart.
type crashedSkill struct {
	approved bool   // the point lies behind the decision
	of       string // whose skill: one that compensates because a check fails, or one that reads; empty: one that commits
	hangs    string // the request that the site does not answer while the node is killed from outside; ORDER is the order's number
	row      string // status and code of the run of the skill
	effects  int
	hears    string // what the model hears
}

// Values of crashedSkill.of.
const (
	undoes = "undoes"
	reads  = "reads"
)

// whilePeopleDecide is no request, but also a kill from outside.
const whilePeopleDecide = "while people decide"

// crashedSkills is service.md, Browser skill run outcomes, "crash between the receipt and the verification",
// and open-parts.md: a kill in prepare prepares again, in re-prepare it goes on and commits once.
var crashedSkills = map[string]crashedSkill{
	"skillrun.prepared":      {row: "succeeded ", effects: 1, hears: `"status":"succeeded"`},
	"skillrun.ready":         {approved: true, row: "succeeded ", effects: 1, hears: `"status":"succeeded"`},
	"skillrun.before_click":  {approved: true, row: "committing unknown_outcome", hears: `"error":"unknown_outcome"`},
	"skillrun.clicked":       {approved: true, row: "committing unknown_outcome", effects: 1, hears: `"error":"unknown_outcome"`},
	"skillrun.before_checks": {approved: true, row: "committed unknown_outcome", effects: 1, hears: `"error":"unknown_outcome"`},
	"skillrun.checked":       {approved: true, row: "committed unknown_outcome", effects: 1, hears: `"error":"unknown_outcome"`},
	"skillrun.compensated":   {approved: true, of: undoes, row: "verification_failed verification_failed", effects: 1, hears: `"error":"verification_failed"`},
	// No points: the node is killed from outside, in the middle of a part. What had the receipt is not done again.
	"in a prepare":      {hangs: "GET /orders/ORDER/cancel", row: "succeeded ", effects: 1, hears: `"status":"succeeded"`},
	whilePeopleDecide:   {row: "succeeded ", effects: 1, hears: `"status":"succeeded"`},
	"in a re-prepare":   {approved: true, hangs: "GET /orders/ORDER/cancel", row: "succeeded ", effects: 1, hears: `"status":"succeeded"`},
	"no answer":         {approved: true, hangs: "POST /orders/ORDER/cancel", row: "committing unknown_outcome", effects: 1, hears: `"error":"unknown_outcome"`},
	"in a compensation": {approved: true, of: undoes, hangs: "POST /orders/ORDER/restore", row: "verification_failed verification_failed", effects: 1, hears: `"error":"verification_failed"`},
	"in a read":         {of: reads, hangs: "GET /orders/ORDER", row: "succeeded ", hears: `"status":"succeeded"`},
}

// TestCrashInABrowserSkill kills a node in the middle of an agent's run of a browser skill, at each point that
// the run has, in the middle of its parts and while people decide, over HTTP and with a real browser. After the restart the order is
// cancelled at most once, and the run ends as the contract says. Every browser of the killed node ends by itself, long before the next start
// would end it.
func TestCrashInABrowserSkill(t *testing.T) {
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_SKILL_STEP_TIMEOUT=20s")
	n.start()
	c := n.tenant("crash")
	offices := map[string]*backOffice{
		"":     c.backOffice(t, "Cancel", object{}),
		undoes: c.backOfficeOf(t, "Cancel in vain", object{}, undone, byPassword),
		reads:  c.backOfficeOf(t, "Look up", readsOnly, readsOrder, byPassword),
	}
	var points []string
	for _, name := range failpoints(t) {
		if strings.HasPrefix(name, "skillrun.") {
			points = append(points, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(crashedSkills)) {
		if !strings.HasPrefix(name, "skillrun.") {
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
			b, order, args := offices[want.of], fmt.Sprint(2000+i), `","cause":"stock","reason":"r"}`
			switch want.of {
			case undoes:
				order = "1001" // of its compensation
			case reads:
				args = `","reason":"r"}`
			}
			b.Add(site.Order{ID: order, Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
			before, restored := b.Effects(order), b.Restores(order)
			hangs := strings.Replace(want.hangs, "ORDER", order, 1)
			hang := func() {
				if b.Set(site.Knobs{Hangs: hangs}); point == "no answer" {
					b.Set(site.Knobs{Silent: true}) // the order is cancelled
				}
			}
			ctx := within(t, 3*time.Minute)
			n.kill()
			if hangs != "" || point == whilePeopleDecide {
				n.launch()
			} else {
				n.launch("SVC_FAILPOINT=" + point + ":1")
			}
			if err := n.ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			end := n.ended()
			family := watchBrowsers(t, n, end)
			if !want.approved {
				hang()
			}
			run := c.runOnce(t, ctx, b.agent, `/call browser_skill:`+b.slug+`.run {"order":"`+order+args)
			var decided chan error
			var approval skillApproval
			approve := func() {
				t.Helper()
				c.poll(t, ctx, run, "waiting_approval")
				if b.Effects(order) != before {
					t.Fatal("it is cancelled before the decision")
				}
				a := c.pendingOf(t, run)
				if approval.ID != "" && (a.ID != approval.ID || *a.SkillRun != *approval.SkillRun) {
					t.Errorf("after the restart people decide on %+v, not on %+v", a, approval)
				}
				// The node may die before it answers. What is sent again is one decision.
				decided = make(chan error, 1)
				go func() {
					decided <- c.once(ctx, "/v1/approvals/"+a.ID+"/decision", "decision of "+point, object{"action": "approve"}, &object{})
				}()
			}
			if want.approved {
				c.poll(t, ctx, run, "waiting_approval")
				hang()
			}
			seen := b.Hits(hangs)
			if want.approved {
				approve()
			}
			switch {
			case point == whilePeopleDecide:
				c.poll(t, ctx, run, "waiting_approval")
				approval = c.pendingOf(t, run)
				seen = b.Hits("POST /login")
				n.kill()
			case hangs != "":
				eventually(t, ctx, "the site has the request", func() bool { return b.Hits(hangs) > seen })
				n.kill()
			}
			select {
			case <-end:
			case <-ctx.Done():
				t.Fatal("the failpoint was never hit")
			}
			died := time.Now()
			// No node runs, so they end by themselves: in far less than a second, unless the machine is busy.
			kin := <-family
			if len(kin) < 3 { // the driver, Chromium, and what it makes for pages
				t.Errorf("the node had %d processes of a browser: the test is void", len(kin))
			}
			eventually(t, within(t, 5*time.Second), "no browser of the killed node is left", func() bool {
				return len(browsers(t, n)) == 0 && !slices.ContainsFunc(kin, kinsman.lives)
			})
			t.Logf("%d processes of its browser ended in %v", len(kin), time.Since(died).Round(time.Millisecond))
			b.Set(site.Knobs{})
			n.launch()
			if err := n.ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			if !want.approved && want.of != reads {
				if approve(); point == whilePeopleDecide && b.Hits("POST /login") != seen {
					t.Error("the form was filled again while people decided")
				}
			}
			if decided != nil {
				if err := <-decided; err != nil {
					t.Fatal(err)
				}
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
			if got := b.Effects(order) - before; got != want.effects {
				t.Errorf("the order was cancelled %d times, want %d", got, want.effects)
			}
			if got := b.Restores(order) - restored; got > 1 || got > 0 && want.of != undoes {
				t.Errorf("it was taken back %d times", got)
			}
			if point == "in a compensation" && b.Hits(hangs) != seen+1 {
				t.Errorf("the site was asked %d times to take it back", b.Hits(hangs)-seen)
			}
		})
	}
}

// kinsman is a process of a browser: those that Chromium makes do not name the browser's directory, and lose their parents when
// these die.
type kinsman struct {
	pid, parent int
	since       string // when it was started: another process may get its number
}

// kinsmanOf reads what the kernel says of a process; false: it has ended.
func kinsmanOf(pid int) (k kinsman, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return k, false
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	k.pid, k.since = pid, fields[19]
	k.parent, err = strconv.Atoi(fields[1])
	return k, err == nil && fields[0] != "Z" && fields[0] != "X"
}

func (k kinsman) lives() bool {
	now, ok := kinsmanOf(k.pid)
	return ok && now.since == k.since
}

// watchBrowsers notes the processes of a node's browsers, and those that descend from them, until the node has ended.
func watchBrowsers(t *testing.T, n *node, end <-chan struct{}) <-chan []kinsman {
	noted := make(chan []kinsman, 1)
	seen := map[kinsman]bool{}
	look := func() {
		entries, _ := filepath.Glob("/proc/[0-9]*")
		of := map[int]bool{}
		for _, pid := range browsers(t, n) {
			at, _ := strconv.Atoi(pid)
			of[at] = true
		}
		var all []kinsman
		for _, at := range entries {
			pid, _ := strconv.Atoi(filepath.Base(at))
			if k, ok := kinsmanOf(pid); ok {
				all = append(all, k)
			}
		}
		for grown := true; grown; {
			grown = false
			for _, k := range all {
				if (of[k.pid] || of[k.parent]) && !seen[k] {
					of[k.pid], seen[k], grown = true, true, true
				} else if seen[k] && !of[k.pid] {
					of[k.pid], grown = true, true
				}
			}
		}
	}
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				noted <- slices.Collect(maps.Keys(seen))
				return
			case <-tick.C:
				look()
			}
		}
	}()
	return noted
}
