package consolecheck

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// outOfView lets a test put a tab out of view: in a headless browser every tab is in view.
const outOfView = `(() => {
	let out = false;
	Object.defineProperty(document, "visibilityState", { get: () => (out ? "hidden" : "visible") });
	window.putOut = (o) => { out = o; document.dispatchEvent(new Event("visibilitychange")); };
})()`

func (p *tab) inView(on bool) {
	p.t.Helper()
	_, err := p.Evaluate("(out) => window.putOut(out)", !on)
	must(p.t, err)
}

// Section 4: eight tabs on a running run work over HTTP/1.1, where a browser has six connections to
// a host: they share one feed, and only the one in view reads the run's stream. Another tab takes
// the feed over when the one that holds it is closed.
func TestEightTabsShareOneFeed(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "/delay 100ms\n/tokens 5000")
	v := visit(t, shared, look{})
	must(t, v.AddInitScript(playwright.Script{Content: playwright.String(outOfView)}))
	var tabs []*tab
	for i := range 8 {
		if i > 0 {
			tabs[i-1].inView(false)
		}
		p := v.as("member", "/console/runs/"+run)
		tabs = append(tabs, p)
		p.heading("Run " + short(run))
		visible(t, p.byRole("group", "Text so far"))
		must(t, expect.Locator(p.byRole("status", "Connection")).ToHaveText("Live"))
	}
	if n := v.called("GET /v1/feed"); n != 1 {
		t.Errorf("eight tabs hold %d feeds", n)
	}
	// The last tab hears of a change through the feed of the first one.
	last := tabs[7]
	second := shared.run(t, agent, "hello")
	must(t, last.byRole("navigation", "Main").GetByRole("link", named0("Runs")).Click())
	visible(t, last.byRole("table", "Runs").Locator(`[data-id="`+second+`"]`))
	third := shared.run(t, agent, "hello again")
	visible(t, last.button("Show 1 new"))
	must(t, tabs[0].Close())
	until(t, "another tab holds the feed", func() bool { return v.called("GET /v1/feed") == 2 })
	must(t, last.button("Show 1 new").Click())
	visible(t, last.byRole("table", "Runs").Locator(`[data-id="`+third+`"]`))
	shared.run(t, agent, "and again")
	visible(t, last.button("Show 1 new"))
	// A tab that comes into view reads what it missed, and its stream.
	last.inView(false)
	shared.call(t, "POST", "/v1/runs/"+run+"/cancel", nil, nil)
	for _, p := range tabs[1:7] {
		p.inView(true)
		must(t, expect.Locator(p.Locator(".run-status")).ToHaveText("cancelled"))
		p.inView(false)
	}
}

// loads counts how often a tab's document was loaded.
func (p *tab) loads() func() int {
	n := 0
	p.OnLoad(func(playwright.Page) { n++ })
	return func() int { return n }
}

// missing answers 404 for a part of the console, as after an update, the first so many times.
func (p *tab) missing(part string, times int) (asked func() int) {
	p.t.Helper()
	n := 0
	must(p.t, p.Route(regexp.MustCompile(`/console/assets/`+part+`-[A-Z0-9]{8}\.js`), func(r playwright.Route) {
		if n++; n <= times {
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(404)})
			return
		}
		_ = r.Continue()
	}))
	return func() int { return n }
}

// Section 4: another version was installed, so a part is missing that a page needs. The page reloads
// once by itself, and shows.
func TestAMissingPartReloadsOnce(t *testing.T) {
	t.Parallel()
	p := visit(t, shared, look{}).as("member", "/console/")
	p.heading("Home")
	p.missing("usage", 1)
	loads := p.loads()
	must(t, p.byRole("navigation", "Main").GetByRole("link", named0("Usage")).Click())
	p.heading("Usage")
	visible(t, p.Locator("main figure").First())
	gone(t, p.button("Reload"))
	if n := loads(); n != 1 {
		t.Errorf("the page was loaded %d times", n)
	}
}

// A part that is still missing after that does not reload the page for ever: a bar says what to do,
// and the rest of the console works.
func TestAPartThatStaysMissing(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	flow := shared.flow(t, agent)
	p := visit(t, shared, look{}).as("admin", "/console/")
	p.heading("Home")
	for _, part := range []string{"usage", "graph"} {
		p.missing(part, 1000)
	}
	loads := p.loads()
	must(t, p.byRole("navigation", "Main").GetByRole("link", named0("Usage")).Click())
	bar := p.byRole("status", "Version")
	contains(t, bar, "A new version is running")
	visible(t, bar.GetByRole("button", named0("Reload")))
	p.heading("Usage")
	visible(t, p.Locator("main").GetByRole("alert"))
	visible(t, p.button("Try again"))
	p.accessible("a missing page")
	if n := loads(); n != 1 {
		t.Errorf("the page was loaded %d times", n)
	}
	// A part of a page that is there: the page says so, and the rest of it works.
	p.goTo("/console/workflows/" + flow)
	contains(t, p.Locator("main").GetByRole("alert"), "could not be loaded")
	visible(t, bar.GetByRole("button", named0("Reload")))
	must(t, p.byRole("tab", "Table").Click())
	contains(t, p.byRole("table", "Nodes"), "ask")
	if n := loads(); n != 2 {
		t.Errorf("the page was loaded %d times", n)
	}
}

// A form with unsaved input is never reloaded: the bar waits for the person.
func TestAMissingPartLeavesAFormAlone(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	flow := shared.flow(t, agent)
	p := visit(t, shared, look{}).as("admin", "/console/")
	p.heading("Home")
	typed := make(chan struct{})
	must(t, p.Route(regexp.MustCompile(`/console/assets/graph-[A-Z0-9]{8}\.js`), func(r playwright.Route) {
		go func() {
			<-typed
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(404)})
		}()
	}))
	p.goTo("/console/workflows/" + flow + "?tab=definition")
	loads := p.loads()
	box := p.box("Definition")
	rewrite(t, box, strings.Replace(written(t, box), "{{input.text}}", "Answer: {{input.text}}", 1))
	close(typed)
	visible(t, p.byRole("status", "Version").GetByRole("button", named0("Reload")))
	contains(t, box, "Answer: ")
	if n := loads(); n != 0 {
		t.Errorf("the page was loaded %d times", n)
	}
}

// Section 8: with prefers-reduced-motion nothing moves.
func TestNothingMoves(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	run := shared.run(t, agent, "/delay 200ms\n/tokens 3000")
	moving := func(p *tab) any {
		t.Helper()
		found, err := p.Evaluate(`() => [...document.getAnimations().map((a) => a.animationName ?? a.transitionProperty),
			...[...document.querySelectorAll("*")].filter((e) => ["", "::before", "::after"].some((part) => { const s = getComputedStyle(e, part || null); return s.scrollBehavior === "smooth" || s.animationName !== "none"; })).map((e) => e.className)].join(", ")`)
		must(t, err)
		return found
	}
	for _, still := range []bool{false, true} {
		p := visit(t, shared, look{}).as("member", "/console/login")
		if still {
			must(t, p.EmulateMedia(playwright.PageEmulateMediaOptions{ReducedMotion: playwright.ReducedMotionReduce}))
		}
		// Placeholders: the list does not answer.
		must(t, p.Route(regexp.MustCompile(`/v1/runs\?`), func(playwright.Route) {}))
		p.goTo("/console/runs")
		visible(t, p.byRole("group", "Filters")) // the page is there: its own placeholders follow
		visible(t, p.Locator(".ghost").First())
		if found := moving(p); (found == "") != still {
			t.Errorf("placeholders with reduced motion %v: %q", still, found)
		}
		if !still {
			continue // the check is not void
		}
		p.goTo("/console/runs/" + run)
		visible(t, p.byRole("group", "Text so far"))
		rests := func(what string) {
			t.Helper()
			if found := moving(p); found != "" {
				t.Errorf("%s: %v moves", what, found)
			}
		}
		rests("a running run")
		must(t, p.byRole("tab", "Conversation").Click())
		rests("a conversation")
		p.press("Control+k") // last: nothing below a dialog can be clicked
		visible(t, p.byRole("dialog", "Search"))
		rests("a dialog")
	}
	shared.call(t, "POST", "/v1/runs/"+run+"/cancel", nil, nil)
}

// cutOff lists what can be used or read but is not wholly within the page, nor in a box that scrolls sideways, and texts that their box cuts
// without a mark.
const cutOff = `() => {
	const out = [];
	const scrolls = (e) => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) { const x = getComputedStyle(p).overflowX; if (x === "auto" || x === "scroll") return true; } return false; };
	const name = (e) => e.tagName.toLowerCase() + " " + (e.getAttribute("aria-label") ?? e.textContent ?? "").trim().slice(0, 40);
	for (const e of document.querySelectorAll("a, button, input, select, textarea, h1, h2, h3, p, label, th, td, dt, dd, legend, [role=tab]")) {
		const r = e.getBoundingClientRect(), s = getComputedStyle(e);
		if (r.width <= 1 || r.height <= 1 || s.visibility === "hidden" || e.closest(".sr, .skip, [aria-hidden=true]")) continue;
		if ((r.left < -1 || r.right > innerWidth + 1) && !scrolls(e)) out.push("outside: " + name(e));
		if (s.overflowX === "hidden" && s.textOverflow !== "ellipsis" && e.scrollWidth > e.clientWidth + 1) out.push("cut: " + name(e));
		if (s.overflowY === "hidden" && e.scrollHeight > e.clientHeight + 2 && s.textOverflow !== "ellipsis" && s.webkitLineClamp === "none") out.push("cut below: " + name(e));
	}
	const d = document.scrollingElement;
	if (d.scrollWidth > d.clientWidth) out.push("the page scrolls sideways: " + d.scrollWidth + " of " + d.clientWidth);
	return out.slice(0, 10).join("; ");
}`

// Section 8: zoom 200 %. A window of 1280 by 800 has then 640 by 400 points, one of 1180 is narrow.
func TestZoom(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t, policy("high"))
	a := shared.refund(t, agent, 12.5, "arrived broken, and the customer wrote three times about the missing parcel")
	failed := shared.run(t, agent, "/fail The provider is overloaded.")
	shared.reaches(t, failed, "failed")
	for _, width := range []int{640, 590} {
		t.Run(fmt.Sprint(2*width), func(t *testing.T) {
			v := visit(t, shared, look{width: width, height: 400})
			p := v.as("admin", "/console/")
			fits := func(what string) {
				t.Helper()
				found, err := p.Evaluate(cutOff)
				must(t, err)
				if found != "" {
					t.Errorf("%s: %s", what, found)
				}
			}
			for _, page := range []string{"", "approvals", "approvals/" + a.ID, "playground", "runs", "runs/" + failed, "runs/" + failed + "?tab=conversation", "agents", "agents/" + agent, "workflows", "triggers", "tools", "tools?tab=access", "policies",
				"knowledge", "skills", "webhooks", "embed", "end-users", "usage", "audit", "settings", "settings?tab=members", "settings?tab=org", "settings?tab=models", "api"} {
				p.goTo("/console/" + page)
				visible(t, p.Locator("main h1"))
				must(t, p.WaitForLoadState(playwright.PageWaitForLoadStateOptions{State: playwright.LoadStateLoad}))
				must(t, expect.Locator(p.Locator("main [aria-busy=true]")).ToHaveCount(0))
				fits(page)
			}
			// All of a dialog can be reached.
			p.goTo("/console/approvals/" + a.ID)
			must(t, p.region().GetByRole("button", named0("Edit")).Click())
			dialog := p.byRole("dialog", "Edit arguments")
			visible(t, dialog)
			fits("Edit arguments")
			must(t, dialog.GetByRole("button", named0("Cancel")).Click())
			must(t, p.region().GetByRole("button", named0("Approve")).Click())
			ask := p.byRole("alertdialog", "Approve "+tool+"?")
			visible(t, ask)
			fits("the question")
			must(t, ask.GetByRole("button", named0("Cancel")).Click())
			p.goTo("/console/settings")
			must(t, p.button("New API key").Click())
			fits("New API key")
			must(t, p.GetByRole("dialog").GetByRole("button", named0("Cancel")).Click())
		})
	}
}
