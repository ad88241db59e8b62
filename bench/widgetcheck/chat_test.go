package widgetcheck

import (
	"strings"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// watchGrowth keeps every text that an answer has had.
const watchGrowth = `(n) => {
  const root = document.querySelector("[data-floating]").shadowRoot;
  const seen = (window.seen = []);
  new MutationObserver(() => {
    const text = root.querySelectorAll(".turn.bot .bubble")[n]?.textContent ?? "";
    if (text && seen[seen.length - 1] !== text) seen.push(text);
  }).observe(root, { subtree: true, childList: true, characterData: true });
}`

// grew is every text that the answer has had: each must hold the one before.
func (p *tab) grew() []string {
	p.b.t.Helper()
	var all []string
	for _, v := range p.eval("() => window.seen").([]any) {
		all = append(all, v.(string))
	}
	for i := 1; i < len(all); i++ {
		if !strings.HasPrefix(all[i], all[i-1]) {
			p.b.t.Fatalf("the answer did not grow: %q was followed by %q", all[i-1], all[i])
		}
	}
	return all
}

// words is what /tokens n says.
func words(n int) string {
	filler := strings.Fields("these words come from a simulated model and mean nothing")
	out := make([]string, n)
	for i := range out {
		out[i] = filler[i%len(filler)]
	}
	return strings.Join(out, " ")
}

func TestAnAnswerGrowsUntilItIsWhole(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	p.must(expect.Locator(p.panel()).ToHaveAttribute("role", "dialog"))
	p.eval(watchGrowth, 0)
	p.say("/delay 100ms\n/tokens 40") // so long that the busiest browser paints it in parts
	p.must(expect.Locator(p.button("Stop")).ToBeVisible())
	p.finished(1)
	p.sees(words(40))
	if all := p.grew(); len(all) < 8 || all[len(all)-1] != words(40) {
		t.Errorf("%d texts, the last %q", len(all), all[len(all)-1])
	}
	p.must(expect.Locator(p.button("Send")).ToBeDisabled()) // there is nothing to send
	p.must(expect.Locator(p.field()).ToBeFocused())
}

func TestMarkdownIsRendered(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	p.say(strings.Join([]string{"/say # Returns", "/say Take it **back** within *30 days*, with `the receipt`:", "/say - by [post](https://example.com/post)", "/say - in the shop",
		"/say 1. ask", "/say 2. go", "/say ```", "/say if (a < b) { return; }", "/say ```", "/say Write to [us](mailto:shop@example.com)."}, "\n"))
	p.finished(1)
	a := p.answer()
	for selector, text := range map[string]string{
		"p > strong >> nth=0": "Returns", "p > strong >> nth=1": "back", "em": "30 days", "p > code": "the receipt",
		"ul > li >> nth=1": "in the shop", "ol > li >> nth=1": "go", "pre > code": "if (a < b) { return; }",
	} {
		p.must(expect.Locator(a.Locator(selector)).ToHaveText(text))
	}
	for i, href := range []string{"https://example.com/post", "mailto:shop@example.com"} {
		link := a.Locator("a").Nth(i)
		p.must(expect.Locator(link).ToHaveAttribute("href", href))
		p.must(expect.Locator(link).ToHaveAttribute("rel", "noopener noreferrer nofollow"))
		p.must(expect.Locator(link).ToHaveAttribute("target", "_blank"))
	}
}

func TestAReloadKeepsItsPlace(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	p.say("/say The first answer.")
	p.finished(1)
	p.say("/delay 30ms\n/tokens 120")
	p.begun(1)
	p.must(p.field().Fill("a draft"))
	_, err := p.Reload()
	p.must(err)

	p.must(expect.Locator(p.panel()).ToBeVisible())
	p.must(expect.Locator(p.field()).ToHaveValue("a draft"))
	p.must(expect.Locator(p.asked()).ToHaveText([]string{"/say The first answer.", "/delay 30ms\n/tokens 120"}))
	p.eval(watchGrowth, 1)
	p.begun(1)
	p.must(expect.Locator(p.button("Stop")).ToBeVisible())
	p.finished(2)
	p.must(expect.Locator(p.answers()).ToHaveText([]string{"The first answer.", words(120)}))
	p.grew()

	_, err = p.Reload()
	p.must(err)
	p.must(expect.Locator(p.answers()).ToHaveText([]string{"The first answer.", words(120)}))
	p.must(p.button("Close chat").First().Click())
	_, err = p.Reload()
	p.must(err)
	p.must(expect.Locator(p.launcher()).ToHaveAttribute("aria-expanded", "false"))
	p.must(expect.Locator(p.panel()).ToBeHidden())
}

func TestAnswersThatEndBeforeTheReload(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	p.say("/fail on purpose")
	p.must(expect.Locator(p.Locator(".turn.bot.failed")).ToHaveCount(1))
	_, err := p.Reload()
	p.must(err)
	p.must(expect.Locator(p.asked()).ToHaveText([]string{"/fail on purpose"}))
	p.must(expect.Locator(p.Locator(".turn.bot.failed .note")).ToBeVisible())
	p.say("/say It goes on.")
	p.sees("It goes on.")
}

func TestTwoTabsAreOneVisitorAndAThirdOnePolls(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.mayComplain("429")
	html := b.shop()
	first, second, third := b.visit(html), b.visit(html), b.visit(html)
	for _, p := range []*tab{first, second, third} { // one that comes later opens by itself
		p.must(expect.Locator(p.launcher()).ToBeVisible())
	}
	first.open()
	first.say("/say Hello from the first.")
	first.finished(1)
	second.open()
	second.sees("Hello from the first.")
	third.open()
	third.sees("Hello from the first.")
	if n := b.gate.count("POST", "/v1/embed/session", 200); n != 3 {
		t.Errorf("%d sessions", n)
	}

	first.say("/delay 60ms\n/tokens 120")
	first.must(expect.Locator(first.button("Stop")).ToBeVisible())
	for _, p := range []*tab{second, third} { // each shows the answer under way
		_, err := p.Reload()
		p.must(err)
		p.must(expect.Locator(p.asked()).ToHaveCount(2))
	}
	until(t, "the stream cap refuses one", func() bool { return b.gate.count("GET", "/events", 429) > 0 })
	for _, p := range []*tab{first, second, third} {
		p.finished(2)
		p.must(expect.Locator(p.answers()).ToHaveText([]string{"Hello from the first.", words(120)}))
	}
	third.say("/say And the third goes on.")
	third.sees("And the third goes on.")
	first.must(first.BringToFront())
	first.sees("And the third goes on.")
}

func TestToolsApprovalsStopRetryCopyHistory(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{context: playwright.BrowserNewContextOptions{Permissions: []string{"clipboard-read", "clipboard-write"}}})
	p := b.visit(b.shop("<script>addEventListener('svcwidget', () => { window.waits = []; SvcWidget.on('waiting', (e) => waits.push(e.runId)); })</script>"))
	p.open()

	// A tool is at work, and its result is told.
	p.say("/call orders.list {}\n/delay 300ms\n/say There are four orders.")
	p.finished(1)
	p.sees("There are four orders.")

	// A person has to decide.
	p.say(`/call orders.refund {"order_id":"1001","amount":1,"reason":"late"}` + "\n/say It is paid back.")
	p.must(expect.Locator(p.Locator(".now.card")).ToHaveText("A person is checking this – you may close this window."))
	_, err := p.Reload()
	p.must(err)
	p.must(expect.Locator(p.Locator(".now.card")).ToBeVisible())
	until(t, "the page is told", func() bool { return len(p.eval("() => window.waits ?? []").([]any)) == 1 })
	run := p.eval("() => window.waits[0]").(string)
	b.decide(run, "approve")
	p.sees("It is paid back.")
	p.finished(2)

	// Copy.
	p.must(p.Locator(".turn.bot").Last().Hover())
	p.must(p.button("Copy").Last().Click())
	if got := p.eval("() => navigator.clipboard.readText()"); got != "It is paid back." {
		t.Errorf("copied %q", got)
	}

	// Stop, and try again.
	p.say("/delay 100ms\n/tokens 300")
	p.begun(2)
	p.must(p.button("Stop").Click())
	p.must(expect.Locator(p.Locator(".turn.bot").Last()).ToContainText("Stopped."))
	p.must(p.button("Try again").Last().Click())
	p.must(expect.Locator(p.asked()).ToHaveCount(4))
	p.begun(3)
	p.must(p.button("Stop").Click())

	// A new chat, and back to the earlier one.
	p.must(p.button("New chat").Click())
	p.must(expect.Locator(p.asked()).ToHaveCount(0))
	p.say("/say A new beginning.")
	p.finished(1)
	p.must(p.button("Earlier chats").Click())
	items := p.GetByRole("list", playwright.PageGetByRoleOptions{Name: "Earlier chats"}).GetByRole("button")
	p.must(expect.Locator(items).ToHaveCount(2))
	p.must(items.Nth(1).Click())
	p.must(expect.Locator(p.asked()).ToHaveCount(4))
	p.must(expect.Locator(p.done().Nth(0)).ToHaveText("There are four orders."))
}

// A tool of the demo server answers sooner than anybody sees: the stream is held
// where it has been called.
func TestAToolAtWorkIsSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		show bool
	}{{"shown", true}, {"not shown", false}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, options{key: object{"config": object{"show_tool_activity": c.show}}})
			p := b.visit(b.shop())
			p.open()
			streams := make(chan playwright.Route, 8)
			p.must(p.Route("**/v1/embed/runs/*/events", func(r playwright.Route) { streams <- r }))
			answer := func(frames ...string) {
				t.Helper()
				select {
				case r := <-streams:
					p.must(r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("text/event-stream"),
						Headers: map[string]string{"Access-Control-Allow-Origin": b.site.URL}, Body: strings.Join(frames, "")}))
				case <-time.After(patience):
					t.Fatal("no stream is opened")
				}
			}
			p.say("Which orders are there?")
			answer("id: 0\ndata: {\"type\":\"run.started\",\"run_id\":\"r\",\"status\":\"running\"}\n\n", "id: 1.0\ndata: {\"type\":\"tool.called\",\"idx\":1}\n\n")
			if c.show {
				p.must(expect.Locator(p.Locator(".turn.bot .now")).ToHaveText("working…"))
			} else {
				p.must(expect.Locator(p.Locator(".turn.bot .dots")).ToBeVisible())
			}
			answer("id: 1.1\ndata: {\"type\":\"tool.result\",\"idx\":1,\"ok\":true}\n\n", "id: 3\ndata: {\"type\":\"run.completed\",\"status\":\"succeeded\",\"text\":\"Four.\"}\n\n")
			p.sees("Four.")
			p.finished(1)
		})
	}
}

// What is asked while a person decides is queued, and both are there after a reload.
func TestWhatIsAskedMeanwhileIsAnsweredAfterwards(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop("<script>addEventListener('svcwidget', () => { window.waits = []; SvcWidget.on('waiting', (e) => waits.push(e.runId)); })</script>"))
	p.open()
	p.say(`/call orders.refund {"order_id":"1003","amount":1,"reason":"late"}` + "\n/say It is paid back.")
	p.must(expect.Locator(p.Locator(".now.card")).ToBeVisible())
	p.say("/say And this comes second.")
	p.must(expect.Locator(p.asked()).ToHaveCount(2))
	p.must(expect.Locator(p.Locator(".turn.bot")).ToHaveCount(2))
	_, err := p.Reload()
	p.must(err)
	p.must(expect.Locator(p.Locator(".now.card")).ToBeVisible())
	p.must(expect.Locator(p.Locator(".turn.bot")).ToHaveCount(2))
	b.decide(p.eval("() => window.waits[0]").(string), "approve")
	p.finished(2)
	p.must(expect.Locator(p.answers()).ToHaveText([]string{"It is paid back.", "And this comes second."}))
}

func TestAFullThreadOffersANewChat(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.mayComplain("409")
	p := b.visit(b.shop())
	p.open()
	// Two hundred messages are four minutes of a visitor's allowance: what the
	// service answers then is answered by the browser.
	p.must(p.Route("**/v1/embed/messages", func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(409), ContentType: playwright.String("application/problem+json"),
			Headers: map[string]string{"Access-Control-Allow-Origin": b.site.URL},
			Body:    `{"type":"about:blank","title":"Thread full","status":409,"code":"EMBED_THREAD_FULL","detail":"the thread holds 200 messages"}`})
	}))
	p.say("One more?")
	notice := p.GetByRole("alert")
	p.must(expect.Locator(notice).ToContainText("This chat is full."))
	p.must(expect.Locator(p.field()).ToHaveValue("One more?"))
	p.must(p.Unroute("**/v1/embed/messages"))
	p.must(notice.GetByText("New chat").Click())
	p.must(expect.Locator(notice).Not().ToContainText("This chat is full."))
	p.must(expect.Locator(p.field()).ToHaveValue("One more?"))
	p.must(p.button("Send").Click())
	p.sees(`This is a simulated model. You said: "One more?"`)
}
