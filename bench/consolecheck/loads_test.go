package consolecheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// The budgets of section 8: on loopback with two cores.
const (
	coldContent  = 1000 * time.Millisecond
	warmContent  = 500 * time.Millisecond
	linkedUsable = 1000 * time.Millisecond
	crowdUsable  = 1500 * time.Millisecond
	scrollTask   = 200 * time.Millisecond
	streamTask   = 50 * time.Millisecond
	maxCalls     = 6
	maxNodes     = 3000
)

// watchTasks keeps every task that blocked the page for 50 ms or longer.
const watchTasks = `window.tasks = []; new PerformanceObserver((l) => { for (const e of l.getEntries()) window.tasks.push([e.startTime, e.duration]); }).observe({ type: "longtask", buffered: true });`

// observed is a browser of its own whose long tasks are counted.
func observed(t *testing.T, s *service, role string) *visitor {
	t.Helper()
	v := visit(t, s, look{bare: true})
	must(t, v.AddInitScript(playwright.Script{Content: playwright.String(watchTasks)}))
	must(t, v.AddCookies(s.one(t, role).cookies))
	return v
}

// since returns the longest task after a moment of the page's clock.
func (p *tab) since(begin float64) time.Duration {
	p.t.Helper()
	ms, err := p.Evaluate("(from) => Math.max(0, ...window.tasks.filter((t) => t[0] + t[1] > from).map((t) => t[1]))", begin)
	must(p.t, err)
	return took(ms)
}

func took(ms any) time.Duration {
	switch n := ms.(type) {
	case int:
		return time.Duration(n) * time.Millisecond
	case float64:
		return time.Duration(n * float64(time.Millisecond))
	}
	return -1
}

func (p *tab) clock() float64 {
	p.t.Helper()
	ms, err := p.Evaluate("performance.now()")
	must(p.t, err)
	return float64(took(ms)) / float64(time.Millisecond)
}

// opened is how a page came up.
type arrival struct {
	content, usable time.Duration // since the navigation began
	nodes, calls    int
}

func (o arrival) String() string {
	return fmt.Sprintf("first content %v, usable %v, %d nodes, %d calls", o.content.Round(time.Millisecond), o.usable.Round(time.Millisecond), o.nodes, o.calls)
}

// reach waits until one of the elements is there, enabled, in view and not covered, and returns the time of the page's clock.
const reach = `(sel) => new Promise((done) => {
	const look = () => {
		for (const e of document.querySelectorAll(sel)) {
			const r = e.getClientRects()[0];
			if (!r || e.disabled || e.closest("[aria-busy=true]")) continue;
			if (e.contains(document.elementFromPoint(r.x + Math.min(r.width / 2, 20), r.y + r.height / 2))) return done(performance.now());
		}
		if (performance.now() > 30000) return done(-1);
		requestAnimationFrame(look);
	};
	look();
})`

// open opens a page and waits until an element can be used, and then until the page has
// nothing left to read.
func (p *tab) open(v *visitor, path, selector string) (o arrival) {
	p.t.Helper()
	v.forget()
	_, err := p.Goto(path, playwright.PageGotoOptions{WaitUntil: playwright.WaitUntilStateCommit})
	must(p.t, err)
	at, err := p.Evaluate(reach, selector)
	must(p.t, err)
	o.usable = took(at)
	p.settle(v)
	first, err := p.Evaluate(`performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1`)
	must(p.t, err)
	o.content = took(first)
	o.nodes, o.calls = p.nodes(), v.reads()
	p.t.Logf("%s: %v, longest task %v, %v", strings.TrimPrefix(path, "/console/"), o, p.since(0), v.list())
	return o
}

func (p *tab) nodes() int {
	p.t.Helper()
	n, err := p.Evaluate("document.getElementsByTagName('*').length")
	must(p.t, err)
	return n.(int)
}

// settle waits until the page has sent no call for a second, twice as long as the least time between two reads.
func (p *tab) settle(v *visitor) {
	p.t.Helper()
	last, at := -1, time.Now()
	until(p.t, "the page is at rest", func() bool {
		if n := v.reads(); n != last {
			last, at = n, time.Now()
		}
		return time.Since(at) > time.Second
	})
}

func (v *visitor) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls = nil
}

func (v *visitor) list() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.calls...)
}

// reads counts calls of the API. The feed and the stream of a run are connections that stay, not calls.
func (v *visitor) reads() int {
	return len(v.list()) - v.called("GET /v1/feed") - v.called("/events")
}

func inTime(t *testing.T, what string, got, budget time.Duration) {
	t.Helper()
	if got < 0 || got > budget {
		t.Errorf("%s: %v, budget %v", what, got.Round(time.Millisecond), budget)
	}
}

func (o arrival) check(t *testing.T, what string, content, usable time.Duration) {
	t.Helper()
	inTime(t, what+": first content", o.content, content)
	inTime(t, what+": usable", o.usable, usable)
	if o.nodes > maxNodes {
		t.Errorf("%s: %d nodes, budget %d", what, o.nodes, maxNodes)
	}
	if o.calls > maxCalls {
		t.Errorf("%s: %d calls, budget %d", what, o.calls, maxCalls)
	}
}

// Section 8. The test is not parallel: while it runs, no other one measures or disturbs.
func TestLoads(t *testing.T) {
	s := own(t)
	began := time.Now()
	c := seeded(t, s)
	t.Logf("seeded in %v", time.Since(began).Round(time.Millisecond))
	t.Run("figures", c.figures)
	t.Run("pages", c.pages)
	t.Run("scrolling", c.scrolling)
	t.Run("streaming", c.streaming)
}

// figures reads what pages count and find: half of the answers come within 50 ms.
func (c *crowd) figures(t *testing.T) {
	for name, path := range map[string]string{
		"overview": "/v1/overview", "stats, hours": "/v1/stats?step=hour", "stats, 400 days": "/v1/stats?step=day&tz=Asia/Kolkata&from=" + time.Now().AddDate(0, 0, -399).UTC().Format(time.RFC3339),
		"search, a short id": "/v1/search?q=" + short(c.long), "search, an id": "/v1/search?q=" + c.long, "search, a text": "/v1/search?q=order",
		"runs": "/v1/runs?view=summary&limit=100", "failed runs": "/v1/runs?view=summary&limit=100&status=failed", "approvals": "/v1/approvals?status=pending&mine=true&sort=risk&limit=100",
	} {
		var all []time.Duration
		for range 21 {
			began := time.Now()
			c.call(t, "GET", path, nil, nil)
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		t.Logf("%s: median %v, most %v", name, all[10].Round(100*time.Microsecond), all[20].Round(100*time.Microsecond))
		inTime(t, name, all[10], 50*time.Millisecond)
	}
}

// pages opens the pages of a crowded tenant in a new browser, and again in the same one.
func (c *crowd) pages(t *testing.T) {
	linked := c.refund(t, c.gated(t), 20, "linked").ID
	for _, page := range []struct {
		name, path, usable string
		budget             time.Duration
	}{
		{"Home", "/console/", ".counters a", crowdUsable},
		{"Runs", "/console/runs", "table [data-id] a", crowdUsable},
		{"Runs, failed", "/console/runs?status=failed", "table [data-id] a", crowdUsable},
		{"Approvals", "/console/approvals", "li[data-id] a", crowdUsable},
		{"a linked approval", "/console/approvals/" + linked, ".decide .primary", linkedUsable},
		{"a run that waits", "/console/runs/" + c.approval(t, linked).RunID, ".decide .primary", crowdUsable},
		{"a run of a workflow", "/console/runs/" + c.flowed(t), "[data-row]", crowdUsable},
		{"a run of 2,000 steps", "/console/runs/" + c.long, "[data-row]", crowdUsable},
		{"Usage", "/console/usage", "main figure", crowdUsable},
	} {
		t.Run(page.name, func(t *testing.T) {
			v := observed(t, c.service, "admin")
			p := v.tab()
			p.open(v, page.path, page.usable).check(t, "cold", coldContent, page.budget)
			p.open(v, page.path, page.usable).check(t, "warm", warmContent, page.budget)
		})
	}
}

// flowed is a run of a workflow that has ended.
func (c *crowd) flowed(t *testing.T) string {
	var made struct {
		RunID string `json:"run_id"`
	}
	c.call(t, "POST", "/v1/workflows/"+c.flow(t, c.agent)+"/runs", object{"input": object{"text": "hello"}}, &made)
	c.reaches(t, made.RunID, "succeeded")
	return made.RunID
}

// gated is an agent whose refunds wait.
func (c *crowd) gated(t *testing.T) string {
	agent, _ := c.policed(t, policy("low"))
	return agent
}

// scrolling goes through long lists.
func (c *crowd) scrolling(t *testing.T) {
	for _, page := range []struct {
		name, path, row string
		rows            int
	}{
		{"Runs", "/console/runs", "table [data-id]", min(3000, *crowdRuns)},
		{"Approvals", "/console/approvals?sort=expires", "li[data-id]", *crowdRuns / 10},
	} {
		t.Run(page.name, func(t *testing.T) {
			v := observed(t, c.service, "admin")
			p := v.tab()
			p.open(v, page.path, page.row)
			from, most := p.clock(), 0
			// Down to the end, a page of the list at a time.
			seen := 0
			until(t, fmt.Sprintf("%d rows are there", page.rows), func() bool {
				n, err := p.Evaluate(`async (row) => {
					scrollTo(0, document.documentElement.scrollHeight);
					await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
					const last = [...document.querySelectorAll(row)].pop();
					return Number(last?.getAttribute("aria-posinset") ?? last?.getAttribute("aria-rowindex") ?? 0);
				}`, page.row)
				must(t, err)
				seen, most = n.(int), max(most, p.nodes())
				return seen >= page.rows
			})
			// And up again by the wheel, through all that was read.
			must(t, p.Mouse().Move(600, 400))
			for range 60 {
				must(t, p.Mouse().Wheel(0, -4000))
				most = max(most, p.nodes())
			}
			longest := p.since(from)
			t.Logf("%d rows, at most %d nodes, longest task %v", seen, most, longest)
			inTime(t, "the longest task", longest, scrollTask)
			if most > maxNodes {
				t.Errorf("%d nodes, budget %d", most, maxNodes)
			}
		})
	}
	t.Run("a run of 2,000 steps", func(t *testing.T) {
		v := observed(t, c.service, "admin")
		p := v.tab()
		p.open(v, "/console/runs/"+c.long, "[data-row]")
		from, most := p.clock(), 0
		box, err := p.Locator(".timeline-box").BoundingBox()
		must(t, err)
		must(t, p.Mouse().Move(box.X+100, box.Y+100))
		for _, dy := range []float64{-3000, 3000} {
			for range 30 {
				must(t, p.Mouse().Wheel(0, dy))
				most = max(most, p.nodes())
			}
		}
		longest := p.since(from)
		t.Logf("at most %d nodes, longest task %v", most, longest)
		inTime(t, "the longest task", longest, scrollTask)
		if most > maxNodes {
			t.Errorf("%d nodes, budget %d", most, maxNodes)
		}
	})
}

// streaming reads 100 tokens/s on every page that shows text as it is written.
func (c *crowd) streaming(t *testing.T) {
	const input = "/delay 10ms\n/tokens 1000"
	ends := func(t *testing.T, run string) {
		t.Helper()
		status := ""
		for deadline := time.Now().Add(patience); status != "succeeded"; time.Sleep(500 * time.Millisecond) { // seldom: reads disturb what is measured
			var got struct{ Run struct{ Status string } }
			c.call(t, "GET", "/v1/runs/"+run+"?view=summary", nil, &got)
			if status = got.Run.Status; time.Now().After(deadline) {
				t.Fatalf("the run is %s", status)
			}
		}
	}
	// begun is the page's time once the page itself is loaded.
	begun := func(p *tab) float64 {
		t.Helper()
		visible(t, p.Locator("main [aria-busy=true]").First())
		time.Sleep(1500 * time.Millisecond)
		return p.clock()
	}
	for _, tab := range []string{"timeline", "conversation"} {
		t.Run("a run, "+tab, func(t *testing.T) {
			run := c.run(t, c.agent, input)
			v := observed(t, c.service, "admin")
			p := v.tab()
			p.goTo("/console/runs/" + run + map[string]string{"conversation": "?tab=conversation"}[tab])
			from := begun(p)
			ends(t, run)
			longest := p.since(from)
			t.Logf("longest task %v, %d nodes", longest, p.nodes())
			inTime(t, "the longest task", longest, streamTask)
		})
	}
	t.Run("the playground", func(t *testing.T) {
		v := observed(t, c.service, "admin")
		p := v.tab()
		p.goTo("/console/playground?agent=" + c.agent)
		must(t, p.box("Message").Fill(input))
		must(t, p.button("Send").Click())
		from := begun(p)
		var newest struct{ Items []struct{ ID string } }
		c.call(t, "GET", "/v1/runs?limit=1&agent_id="+c.agent, nil, &newest)
		ends(t, newest.Items[0].ID)
		longest := p.since(from)
		t.Logf("longest task %v, %d nodes", longest, p.nodes())
		inTime(t, "the longest task", longest, streamTask)
	})
}
