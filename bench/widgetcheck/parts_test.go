package widgetcheck

import (
	"fmt"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// lines is a message that makes the simulated model answer with these lines.
func lines(all ...string) string { return "/say " + strings.Join(all, "\n/say ") }

// inside evaluates an expression of the widget's shadow root, which is named root.
func (p *tab) inside(expression string) any {
	p.b.t.Helper()
	return p.eval(`() => { const root = (document.querySelector("[data-floating]") ?? document.querySelector("svc-chat")).shadowRoot; return ` + expression + `; }`)
}

var wideTable = []string{
	"| Tent | Sleeps | Weight | Price | Entrances | In stock |",
	"|:-----|-------:|:------:|-------|-----------|----------|",
	"| **Halden 4** | 4 | 3.9 kg | 420 | two | yes |",
	"| Halden 4 Light | 4 | 2.9 kg | 560 \\| 590 | two |",
}

func TestTablesQuotesRulesAndTasksAreRendered(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{context: playwright.BrowserNewContextOptions{Permissions: []string{"clipboard-read", "clipboard-write"}}})
	p := b.visit(b.shop())
	p.open()
	p.say(lines(append(append([]string{"The tents:"}, wideTable...), "Then ~~old~~ and new.", "> Out there,", "> and **warm** at night.", "> - packed", "> > twice", "---", "- [x] ask", "- [ ] pay", "```sh",
		"curl -sS https://shop.example.com/v1/orders/1042?with=everything-that-there-is", "echo done", "```")...))
	p.finished(1)
	a := p.answer()
	for selector, text := range map[string]string{
		"thead th >> nth=5": "In stock", "tbody tr >> nth=0 >> td >> nth=0 >> strong": "Halden 4", "tbody tr >> nth=1 >> td >> nth=3": "560 | 590", "del": "old",
		"blockquote >> nth=0 >> strong": "warm", "blockquote li": "packed", "blockquote blockquote": "twice", "li.task >> nth=1": "pay",
	} {
		p.must(expect.Locator(a.Locator(selector)).ToHaveText(text))
	}
	p.must(expect.Locator(a.Locator("hr")).ToHaveCount(1))
	p.must(expect.Locator(a.Locator("table")).ToHaveCount(1))
	p.must(expect.Locator(a.Locator("tbody td")).ToHaveCount(12))
	p.must(expect.Locator(a.Locator("th").Nth(1)).ToHaveCSS("text-align", "end"))
	p.must(expect.Locator(a.Locator("th").Nth(2)).ToHaveCSS("text-align", "center"))
	for i, done := range []bool{true, false} {
		p.must(expect.Locator(p.GetByRole("checkbox").Nth(i)).ToBeChecked(playwright.LocatorAssertionsToBeCheckedOptions{Checked: playwright.Bool(done)}))
		p.must(expect.Locator(p.GetByRole("checkbox").Nth(i)).ToBeDisabled())
	}

	// What is wider than the chat scrolls in its own place, with the keys, too.
	if got := p.inside(`root.querySelector(".log").scrollWidth <= root.querySelector(".log").clientWidth`); got != true {
		t.Error("the chat itself scrolls sideways")
	}
	for _, name := range []string{"Table", "Code"} {
		box := a.GetByRole("group", playwright.LocatorGetByRoleOptions{Name: name})
		if wider, err := box.Evaluate("(e) => e.scrollWidth > e.clientWidth", nil); err != nil || wider != true {
			t.Errorf("%s does not scroll (%v)", name, err)
		}
		p.must(box.Focus())
		p.must(p.Keyboard().Press("ArrowRight"))
		until(t, name+" is scrolled by the keys", func() bool {
			left, err := box.Evaluate("(e) => e.scrollLeft", nil)
			return err == nil && fmt.Sprint(left) != "0"
		})
	}

	// The code is copied without what is around it.
	p.must(a.GetByRole("button", playwright.LocatorGetByRoleOptions{Name: "Copy"}).Click())
	p.must(expect.Locator(p.Locator("[role=status].sr")).ToHaveText("Copied"))
	until(t, "the code is copied", func() bool {
		return p.eval("() => navigator.clipboard.readText()") == "curl -sS https://shop.example.com/v1/orders/1042?with=everything-that-there-is\necho done"
	})
}

// A table or a fence that is still being written never shows as the marks it is made of,
// and what a reader does with what is there already is not undone by what follows.
func TestWhatIsBeingWrittenIsSmooth(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	p.inside(`(window.bad = [], new MutationObserver(() => {
    const text = root.querySelector(".turn.bot .bubble")?.innerText ?? "";
    if (/[|\x60]|--/.test(text)) bad.push(text);
  }).observe(root, { subtree: true, childList: true, characterData: true }), 0)`)
	rows := make([]string, 30)
	for i := range rows {
		rows[i] = "| cell of a long table | another cell | and a third one | and one more |"
	}
	p.say("/delay 10ms\n" + lines(append([]string{"The list:", "| thefirstcolumn | thesecondcolumn | thethirdcolumn | thefourthcolumn |", "|---|---|:--:|--:|"}, rows...)...) + "\n" + lines("", "```", "a line of code that is rather longer than a bubble is wide, and so scrolls", "```"))
	table := p.Locator(".turn.bot.live .wide")
	p.must(expect.Locator(table.Locator("tbody tr").Nth(1)).ToBeAttached())
	_, err := table.Evaluate("(e) => { e.focus(); e.scrollLeft = 30; window.kept = e; }", nil)
	p.must(err)
	p.must(expect.Locator(table.Locator("tbody tr").Nth(6)).ToBeAttached())
	if got := p.inside(`[window.kept.isConnected, window.kept.scrollLeft, root.activeElement === window.kept].join()`); got != "true,30,true" {
		t.Errorf("the table that grows is another one: %v", got)
	}
	p.finished(1)
	p.must(expect.Locator(p.answer().Locator("tbody tr")).ToHaveCount(30))
	if got := p.eval("() => bad.slice(0, 3)"); fmt.Sprint(got) != "[]" {
		t.Errorf("shown meanwhile: %q", got)
	}
}

// side says on which side of another box a box begins and ends.
func (p *tab) x(selector string) (left, right float64) {
	p.b.t.Helper()
	box, err := p.Locator(selector).First().BoundingBox()
	p.must(err)
	if box == nil {
		p.b.t.Fatalf("%s is not to be seen", selector)
	}
	return box.X, box.X + box.Width
}

const hebrew = "שלום, איך אפשר לעזור?"

// Where the language is written from right to left, the whole widget is mirrored.
func TestFromRightToLeft(t *testing.T) {
	t.Parallel()
	shop := func(b *bed) string { return b.shop() }
	for _, c := range []struct {
		name   string
		rtl    bool
		config object
		page   func(b *bed) string
		locale string
	}{
		{"the tag's locale", true, object{}, func(b *bed) string { return strings.Replace(b.shop(), "data-key", `data-locale="ar-EG" data-key`, 1) }, "en-GB"},
		{"the key's locale", true, object{"locale": "he"}, shop, "en-GB"},
		{"the visitor's language", true, object{}, shop, "fa-IR"},
		{"the page's direction", true, object{}, func(b *bed) string { return strings.Replace(b.shop(), "<html ", `<html dir="rtl" `, 1) }, "en-GB"},
		{"the greeting", true, object{"greeting": hebrew}, shop, "en-GB"},
		{"the title", true, object{"title": "שירות", "greeting": "Hello"}, shop, "en-GB"},
		{"a locale before the page", false, object{"locale": "de"}, func(b *bed) string { return strings.Replace(b.shop(), "<html ", `<html dir="rtl" `, 1) }, "en-GB"},
		{"none of it", false, object{"greeting": "Hello"}, shop, "en-GB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, options{key: object{"config": c.config}, context: playwright.BrowserNewContextOptions{Locale: &c.locale}})
			p := b.visit(c.page(b))
			p.must(p.launcher().Click())
			field := p.Locator("textarea")
			p.must(field.Fill(lines("1. אחד", "2. שתיים")))
			p.must(field.Press("Enter"))
			p.finished(1)
			face, _ := p.x(".face")
			title, _ := p.x("h2")
			tool, _ := p.x("header .tool")
			mine, _ := p.x(".turn.user")
			theirs, _ := p.x(".turn.bot")
			send, _ := p.x("footer .form")
			text, _ := p.x("textarea")
			if got := face > title && title > tool && mine < theirs && text-send > 30; c.rtl && !got {
				t.Errorf("not mirrored: face %v, title %v, tools %v, mine %v, theirs %v", face, title, tool, mine, theirs)
			} else if !c.rtl && (face > title || title > tool || mine < theirs) {
				t.Errorf("mirrored: face %v, title %v, tools %v, mine %v, theirs %v", face, title, tool, mine, theirs)
			}
		})
	}
}

// What is said is in the page's language, and the widget's own words are in one that it has.
func TestAnswersAreMarkedWithThePagesLanguage(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"config": object{"locale": "fr", "title": "Aide", "greeting": "Bonjour !", "disclaimer": "Sans garantie."}}})
	p := b.visit(b.shop())
	p.open()
	p.say("/say Bien sûr.")
	p.finished(1)
	for selector, lang := range map[string]string{".turn .bubble >> nth=0": "fr", ".turn.bot .bubble": "fr", ".turn.user .bubble": "fr", "h2": "fr", "textarea": "fr", "p.small[dir=auto]": "fr", ".turn.bot .meta": "en"} {
		got, err := p.Locator(selector).Evaluate("(e) => e.closest('[lang]').lang", nil)
		p.must(err)
		if got != lang {
			t.Errorf("%s is in %v, not in %s", selector, got, lang)
		}
	}
}

// An answer has the direction of its own text, block by block, with its bullets and
// columns, in a widget of either direction.
func TestEachBlockHasItsDirection(t *testing.T) {
	t.Parallel()
	for _, locale := range []string{"en", "he"} {
		t.Run(locale, func(t *testing.T) {
			b := newBed(t, options{key: object{"config": object{"locale": locale}}})
			p := b.visit(b.shop())
			p.open()
			p.say(lines("`npm` עם שלום", "", "- אחד", "- two", "- שלוש", "", "> ציטוט", "", "| שם | מחיר |", "|---|--:|", "| אוהל | 420 |", "", "Hello there:", "", "- one", "- two", "", "> quoted"))
			p.finished(1)
			a := p.answer()
			for i, selector := range []string{"p >> nth=0", "ul >> nth=0", "ul >> nth=0 >> li >> nth=1", "blockquote >> nth=0", ".wide", "p:text('Hello')", "ul >> nth=1", "ul >> nth=1 >> li >> nth=1", "blockquote >> nth=1"} {
				want := "rtl"
				if i > 4 {
					want = "ltr"
				}
				p.must(expect.Locator(a.Locator(selector)).ToHaveCSS("direction", want))
			}
			// The bullets are in the room that the list leaves for them.
			p.must(expect.Locator(a.Locator("ul").First()).ToHaveCSS("padding-left", "0px"))
			p.must(expect.Locator(a.Locator("ul").First()).Not().ToHaveCSS("padding-right", "0px"))
			p.must(expect.Locator(a.Locator("ul").Nth(1)).ToHaveCSS("padding-right", "0px"))
			p.must(expect.Locator(a.Locator("blockquote").First()).ToHaveCSS("border-right-width", "3px"))
			p.must(expect.Locator(a.Locator("blockquote").Nth(1)).ToHaveCSS("border-left-width", "3px"))
			first, _ := p.x(".turn.bot th >> nth=0")
			second, _ := p.x(".turn.bot th >> nth=1")
			if first < second {
				t.Error("the first column is not on the right")
			}
		})
	}
}

// A key that needs to know its visitors offers to sign in: nothing is sent that is
// refused.
func TestSignIn(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"identity_required": true, "config": object{"greeting": "Hello!", "starter_prompts": []string{"/say Prompted."}}}})
	p := b.visit(b.shop("<script>addEventListener('svcwidget', () => { window.asked = 0; SvcWidget.onSignIn(() => { asked++; }); })</script>"))
	p.must(p.launcher().Click())
	p.must(expect.Locator(p.button("Sign in")).ToBeVisible())
	p.must(expect.Locator(p.Locator(".gate")).ToContainText("Please sign in to chat."))
	p.must(expect.Locator(p.field()).ToBeHidden())
	p.must(expect.Locator(p.button("/say Prompted.")).ToBeHidden())
	p.must(p.button("Sign in").Click())
	if got := p.eval("() => asked"); fmt.Sprint(got) != "1" {
		t.Errorf("the page was asked %v times", got)
	}
	if n := b.gate.count("POST", "/v1/embed/", 0); n != 0 {
		t.Errorf("%d calls before anybody signed in", n)
	}
	p.eval("(token) => SvcWidget.identify(token)", b.token("ada", b.identity))
	p.must(expect.Locator(p.button("Sign in")).ToBeHidden())
	p.must(p.button("/say Prompted.").Click())
	p.sees("Prompted.")
	p.finished(1)
	p.eval("() => SvcWidget.logout()")
	p.must(expect.Locator(p.button("Sign in")).ToBeVisible())
	p.must(expect.Locator(p.field()).ToBeHidden())
	p.must(expect.Locator(p.asked()).ToHaveCount(0))

	// Without a function of the page's the text says what to do.
	p.eval("() => SvcWidget.onSignIn(null)")
	p.must(expect.Locator(p.button("Sign in")).ToHaveCount(0))
	p.must(expect.Locator(p.Locator(".gate")).ToContainText("Please sign in on this page to chat."))

	// A function that knows nobody: the text stays with whoever signs in.
	b.mayComplain(failedRequest)
	p.eval("() => { SvcWidget.onSignIn(() => asked++); SvcWidget.identify(async () => ''); }")
	p.say("/say Kept.")
	p.must(expect.Locator(p.button("Sign in")).ToBeVisible())
	p.must(expect.Locator(p.asked()).ToHaveCount(0))
	p.eval("(token) => SvcWidget.identify(async () => token)", b.token("ada", b.identity))
	p.must(expect.Locator(p.field()).ToHaveValue("/say Kept."))
	p.must(p.button("Send").Click())
	p.sees("Kept.")
}

func TestSignInOfAChatInThePage(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"identity_required": true}})
	p := b.visit(fmt.Sprintf(`<!doctype html><html lang=en><body><svc-chat key="%s" base-url="%s"></svc-chat>
<script>document.addEventListener("svc-chat", (e) => { window.chat = e.detail; chat.onSignIn(() => chat.identify(%q)); })</script>
<script async src="%s/embed/v1/widget.js"></script></body></html>`, b.key, b.base, b.token("bob", b.identity), b.base))
	p.must(p.button("Sign in").Click())
	p.say("/say Hello Bob.")
	p.sees("Hello Bob.")
}

func TestEnterDuringAnAnswerQueuesTheText(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	queue := func(text string) {
		t.Helper()
		p.must(p.field().Fill(text))
		p.must(p.field().Press("Enter"))
		p.must(expect.Locator(p.Locator(".queued")).ToContainText("Sent after this answer:"))
		p.must(expect.Locator(p.field()).ToHaveValue(""))
	}
	p.say("/delay 100ms\n/tokens 400")
	p.begun(0)
	queue("/say Two.")
	p.must(expect.Locator(p.Locator(".queued span")).ToHaveText("/say Two."))
	p.must(expect.Locator(p.Locator("[role=status].sr")).ToHaveText("Sent after this answer:"))
	p.must(expect.Locator(p.asked()).ToHaveCount(1))

	// It can be taken back, thrown away, and added to.
	p.must(p.button("Edit").Click())
	p.must(expect.Locator(p.field()).ToHaveValue("/say Two."))
	p.must(expect.Locator(p.field()).ToBeFocused())
	p.must(expect.Locator(p.Locator(".queued")).ToBeHidden())
	queue("/say Three.")
	p.must(p.button("Discard").Click())
	p.must(expect.Locator(p.Locator(".queued")).ToBeHidden())
	p.must(expect.Locator(p.field()).ToHaveValue(""))
	queue("/say Four.")
	queue("/say Five.")
	p.must(expect.Locator(p.Locator(".queued span")).ToHaveText("/say Four.\n/say Five."))

	// A reload loses nothing of it, and sends nothing.
	_, err := p.Reload()
	p.must(err)
	p.must(expect.Locator(p.field()).ToHaveValue("/say Four.\n/say Five."))
	p.must(expect.Locator(p.button("Stop")).ToBeVisible())
	p.must(p.button("Send").Click()) // the mouse queues as well
	p.must(expect.Locator(p.Locator(".queued")).ToBeVisible())

	// Whoever stops the answer means to go on with it.
	p.must(p.button("Stop").Click())
	p.must(expect.Locator(p.asked()).ToHaveText([]string{"/delay 100ms\n/tokens 400", "/say Four.\n/say Five."}))
	p.finished(1)
	p.must(expect.Locator(p.Locator(".queued")).ToBeHidden())
	if got := p.eval("() => Object.keys(localStorage).filter((k) => k.endsWith(':draft')).length"); fmt.Sprint(got) != "0" {
		t.Error("what was sent is still kept as a draft")
	}

	// After an answer that is whole it goes out by itself; after one that failed it is
	// the visitor's to send.
	p.say("/delay 100ms\n/tokens 15")
	p.begun(2)
	queue("/delay 200ms\n/tokens 12\n/fail on purpose")
	p.must(expect.Locator(p.asked()).ToHaveCount(4))
	p.begun(3)
	queue("/say Six.")
	p.must(expect.Locator(p.field()).ToHaveValue("/say Six."))
	p.must(expect.Locator(p.Locator(".turn.bot").Last()).ToContainText("That did not work."))
	p.must(expect.Locator(p.Locator(".queued")).ToBeHidden())
	if n := b.gate.count("POST", "/messages", 202); n != 4 {
		t.Errorf("%d messages were sent", n)
	}
}

func TestALongTextIsCounted(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	count := p.Locator("#svc-count")
	for _, c := range []struct {
		n     int
		shown string
		sends bool
	}{{7500, "", true}, {7501, "7501 / 8000", true}, {8000, "8000 / 8000", true}, {8001, "8001 / 8000", false}} {
		// Characters, not the two halves that a browser keeps some of them in.
		p.must(p.field().Fill("/say " + strings.Repeat("😀", c.n-5)))
		p.must(expect.Locator(count).ToHaveText(c.shown))
		p.must(expect.Locator(p.field()).ToHaveAttribute("aria-invalid", fmt.Sprint(!c.sends)))
		if c.sends {
			p.must(expect.Locator(p.button("Send")).ToBeEnabled())
		} else {
			p.must(expect.Locator(p.button("Send")).ToBeDisabled())
		}
	}
	p.must(p.field().Press("Enter"))
	p.must(expect.Locator(p.asked()).ToHaveCount(0))
	p.must(p.field().Press("Backspace"))
	p.must(p.field().Press("Enter"))
	p.finished(1)
	p.must(expect.Locator(count).ToHaveText(""))

	// What is queued and what is typed go out as one message.
	p.say("/delay 100ms\n/tokens 400")
	p.begun(1)
	p.must(p.field().Fill(strings.Repeat("q", 5000)))
	p.must(p.field().Press("Enter"))
	p.must(expect.Locator(p.Locator(".queued")).ToBeVisible())
	p.must(p.field().Fill(strings.Repeat("t", 3000)))
	p.must(expect.Locator(count).ToHaveText("8001 / 8000"))
	p.must(expect.Locator(p.button("Send")).ToBeDisabled())
	p.must(p.button("Discard").Click())
	p.must(expect.Locator(count).ToHaveText(""))
	p.must(expect.Locator(p.button("Send")).ToBeEnabled())
}

// Nobody reads lines of a whole screen's width.
func TestLinesOfAChatInThePageAreReadable(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{context: playwright.BrowserNewContextOptions{Viewport: &playwright.Size{Width: 1600, Height: 900}}})
	p := b.visit(fmt.Sprintf(`<!doctype html><html lang=en><body style="margin:0"><svc-chat key="%s" base-url="%s" style="height:800px"></svc-chat><script async src="%s/embed/v1/widget.js"></script></body></html>`, b.key, b.base, b.base))
	const text = "For four people we would take the Halden 4: it has two entrances, stands up to a storm, and packs small enough for one rucksack. Its inner tent is light, dries overnight, and can be pitched alone when the weather is kind. If you carry it far, the Light saves a kilogram and costs a little room."
	p.say(lines(text, "", "- "+text, "", "> "+text))
	p.finished(1)
	longest := p.inside(`(() => {
    let most = 0;
    for (const block of root.querySelectorAll(".turn.bot .bubble > p, .turn.bot li, .turn.bot blockquote > p, .turn.user .bubble")) {
      const walk = document.createTreeWalker(block, NodeFilter.SHOW_TEXT), counts = new Map();
      for (let n; (n = walk.nextNode()); )
        for (let i = 0; i < n.length; i++) {
          const r = document.createRange();
          r.setStart(n, i), r.setEnd(n, i + 1);
          const y = Math.round(r.getBoundingClientRect().y);
          counts.set(y, (counts.get(y) ?? 0) + 1);
        }
      most = Math.max(most, ...counts.values());
    }
    return most;
  })()`)
	n := int(p.number(longest))
	if n > 72 || n < 45 {
		t.Errorf("a line has %d characters", n)
	}
	left, right := p.x("footer .form")
	if right-left > 700 || left < 400 {
		t.Errorf("the field lies from %v to %v", left, right)
	}
}

func (p *tab) number(v any) float64 {
	p.b.t.Helper()
	switch v := v.(type) {
	case int:
		return float64(v)
	case float64:
		return v
	}
	p.b.t.Fatalf("%v is no number", v)
	return 0
}

// An answer that failed can be asked for again, once, and says where else to turn.
func TestAFailedAnswerOffersAnotherTryAndAPerson(t *testing.T) {
	t.Parallel()
	for _, contact := range []string{"https://shop.example.com/contact", "mailto:help@shop.example.com", ""} {
		t.Run("contact "+contact, func(t *testing.T) {
			config := object{}
			if contact != "" {
				config["contact_url"] = contact
			}
			b := newBed(t, options{key: object{"config": config}})
			p := b.visit(b.shop())
			p.open()
			link := p.GetByRole("link", playwright.PageGetByRoleOptions{Name: "Contact us"})
			p.say("/fail on purpose")
			failed := p.Locator(".turn.bot.failed")
			p.must(expect.Locator(failed).ToHaveCount(1))
			if contact == "" {
				p.must(expect.Locator(link).ToHaveCount(0))
			} else {
				p.must(expect.Locator(link).ToHaveAttribute("href", contact))
				p.must(expect.Locator(link).ToHaveAttribute("rel", "noopener noreferrer nofollow"))
			}

			// Twice at once is once, also where the second answer fails as quickly.
			p.must(p.button("Try again").Dblclick())
			p.must(expect.Locator(failed).ToHaveCount(2))
			p.must(expect.Locator(p.asked()).ToHaveText([]string{"/fail on purpose", "/fail on purpose"}))
			p.must(expect.Locator(p.button("Try again")).ToHaveCount(1))
			if n := b.gate.count("POST", "/messages", 202); n != 2 {
				t.Errorf("%d messages were sent", n)
			}

			p.must(p.button("New chat").Click())
			p.say(`/call orders.refund {"order_id":"1004","amount":1,"reason":"late"}`)
			p.must(expect.Locator(p.Locator(".now.card")).ToBeVisible())
			if contact != "" {
				p.must(expect.Locator(link).ToHaveAttribute("href", contact))
			}
			// A visitor's own stop is no failure.
			p.must(p.button("Stop").Click())
			p.must(expect.Locator(p.Locator(".turn.bot.failed .note")).ToContainText("Stopped."))
			p.must(expect.Locator(link).ToHaveCount(0))
		})
	}
}
