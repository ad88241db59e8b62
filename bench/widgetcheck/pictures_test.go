package widgetcheck

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// The pictures of the documentation: what they show is there, also where nobody
// wants them anew.
func TestPictures(t *testing.T) {
	t.Parallel()
	key := object{"theme": object{"accent": "#0f766e", "z_index": 10}, "config": object{
		"title": "Fernweh Outfitters", "greeting": "Hi! I can help with **orders**, returns and sizes.",
		"starter_prompts": []string{"Where is my order?", "How do I return something?", "Which tent for four?"},
		"disclaimer":      "Answers are written by a machine and may be wrong."}}
	agent := object{"name": "Fernweh", "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}, "instructions": "You are a shop.",
		"tools": object{"mcp": []any{object{"server": "demo"}}}, "hitl": object{"rules": []any{object{"tool": "orders.refund"}}}}}
	const page = `<style>
:root{color-scheme:light dark}
body{margin:0;font:16px/1.6 "Liberation Sans",sans-serif;background:light-dark(#faf8f4,#14130f);color:light-dark(#2b2a27,#e9e6df)}
nav{display:flex;gap:32px;align-items:center;padding:18px 48px;border-bottom:1px solid light-dark(#e6e1d6,#2c2a25);font-size:15px}nav b{font:700 22px "Liberation Serif",serif;margin-right:auto}
main{padding:44px 48px;max-width:520px}h1{font:700 38px/1.15 "Liberation Serif",serif;margin:0 0 14px}.row{display:grid;grid-template-columns:1fr 1fr;gap:18px;margin-top:28px}
.row div{height:150px;border-radius:12px;background:#d9cfb8}.row div:nth-child(2){background:#c9d4d2}.row div:nth-child(3){background:#e2c7a6}.row div:nth-child(4){background:#cfc9dc}
@media(max-width:480px){nav span{display:none}main{padding:28px 22px}}
</style><nav><b>Fernweh</b><span>Tents</span><span>Packs</span><span>Boots</span></nav><main><h1>Out there, and warm at night.</h1><p>Tents, packs and boots that have been where you are going.</p><div class=row><div></div><div></div><div></div><div></div></div></main>`
	save := func(p *tab, name string) {
		t.Helper()
		p.eval("() => document.fonts.ready")
		b, err := p.Screenshot(playwright.PageScreenshotOptions{Animations: playwright.ScreenshotAnimationsDisabled, Caret: playwright.ScreenshotCaretHide})
		p.must(err)
		if *pictures == "" {
			return
		}
		if err := os.WriteFile(filepath.Join(*pictures, "widget-"+name+".png"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shop := func(o playwright.BrowserNewContextOptions) *tab {
		t.Helper()
		if o.Viewport == nil {
			o.Viewport = &playwright.Size{Width: 1040, Height: 720}
		}
		b := newBed(t, options{key: key, agent: agent, context: o})
		p := b.visit("<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'><title>Fernweh</title></head><body>" + page + b.tag() + "</body></html>")
		p.must(expect.Locator(p.launcher()).ToBeVisible())
		return p
	}
	// asks shows the visitor's words without what directs the simulated model.
	asks := func(p *tab, n int, words, directs string) {
		t.Helper()
		p.say(words + "\n" + directs)
		p.must(expect.Locator(p.asked()).ToHaveCount(n))
		p.eval(`([n, words]) => {
  const root = document.querySelector("[data-floating]").shadowRoot;
  const put = () => root.querySelectorAll(".turn.user .bubble").forEach((e, i) => { const w = window.words[i]; if (w && e.textContent !== w) e.textContent = w; });
  if (!window.words) new MutationObserver(put).observe(root, { subtree: true, childList: true });
  (window.words ??= [])[n] = words;
  put();
}`, []any{n - 1, words})
	}
	const answer = "/say Order **1042** left our warehouse this morning:\n/say - You can [follow the parcel](https://example.com/1042)\n/say - It should be with you **on Thursday**"

	for name, scheme := range map[string]*playwright.ColorScheme{"light": playwright.ColorSchemeLight, "dark": playwright.ColorSchemeDark} {
		p := shop(playwright.BrowserNewContextOptions{ColorScheme: scheme})
		p.open()
		if name == "light" {
			p.lies(p.panel(), 640, 30, 380, 600)
			save(p, "open")
		}
		asks(p, 1, "Where is my order?", answer)
		p.finished(1)
		p.must(expect.Locator(p.answer().Locator("li")).ToHaveCount(2))
		save(p, name)
	}

	p := shop(playwright.BrowserNewContextOptions{ColorScheme: playwright.ColorSchemeLight})
	p.open()
	asks(p, 1, "Where is my order?", answer)
	p.finished(1)
	asks(p, 2, "Which tent for four?", "/delay 200ms\n/say For four people we would take the **Halden 4**: it has two entrances, stands up to a storm, and packs small enough for one rucksack. Its inner tent is light, dries overnight, and can be pitched alone when the weather is kind. If you carry it far, the Halden 4 Light saves a kilogram and costs a little room. Both are in stock, and both may come back within thirty days.")
	p.must(expect.Locator(p.answer()).ToContainText("stands up to a storm, and packs"))
	save(p, "streaming")
	p.must(p.button("Stop").Click())
	p.must(expect.Locator(p.Locator(".turn.bot.failed")).ToHaveCount(1))
	p.must(p.button("New chat").Click())
	asks(p, 1, "Order 1001 arrived torn. I would like my money back.", `/call orders.refund {"order_id":"1001","amount":1,"reason":"torn"}`+"\n/say It is paid back.")
	p.must(expect.Locator(p.Locator(".now.card")).ToBeVisible())
	save(p, "waiting")
	p.must(p.button("Earlier chats").Click())
	p.must(expect.Locator(p.Locator(".list li")).ToHaveCount(2))
	p.eval(`() => document.querySelector("[data-floating]").shadowRoot.querySelectorAll(".list span").forEach((s) => (s.textContent = s.textContent.split("\n")[0].split("/")[0]))`)
	save(p, "history")

	phone := shop(playwright.BrowserNewContextOptions{Viewport: &playwright.Size{Width: 390, Height: 844}, HasTouch: playwright.Bool(true), IsMobile: playwright.Bool(true), ColorScheme: playwright.ColorSchemeLight})
	phone.must(phone.launcher().Tap())
	phone.lies(phone.panel(), 0, 0, 390, 844)
	asks(phone, 1, "Where is my order?", answer)
	phone.finished(1)
	save(phone, "phone")

	b := newBed(t, options{agent: object{"name": "Hello"}, context: playwright.BrowserNewContextOptions{Viewport: &playwright.Size{Width: 1040, Height: 720}}})
	b.svc.call(t, "PATCH", "/v1/embed-keys/"+b.keyID, object{"allowed_origins": []string{b.site.URL, b.svc.url()}}, nil)
	b.hosts[host(b.svc.url())] = true
	demo := b.goTo(b.svc.url() + "/embed/v1/demo?key=" + b.key)
	demo.open()
	demo.say("/say This is the demo page, and it works.")
	demo.finished(1)
	save(demo, "demo")
}
