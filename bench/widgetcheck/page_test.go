package widgetcheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// hostile is a page that does to everything what careless style sheets do.
const hostile = `<style>
*, *::before, *::after { color: #f0f !important; background: #ff0 !important; font: italic 30px/3 fantasy !important; margin: 13px !important; padding: 11px !important; border: 5px dotted red !important;
  box-sizing: content-box !important; letter-spacing: 9px !important; text-transform: uppercase !important; visibility: hidden;
  position: static !important; float: left !important; width: 50px !important; animation: none !important; direction: rtl !important; writing-mode: vertical-rl !important; z-index: 1 !important }
body * { opacity: .3 !important; transform: rotate(3deg) !important; filter: invert(1) !important; clip-path: circle(9px) !important; contain: strict !important }
div, section, button, textarea, form { display: none !important }
html { font-size: 40px !important; zoom: 1 }
:root { --accent: red; --bg: black; --fg: red; --r: 99px; --font: cursive; --ink: red; --soft: red }
.panel, .launcher, .root, .turn { display: none !important }
body > div { z-index: -5 !important }
</style>
<div style="position:fixed;inset:0;z-index:2147482999;background:#fff !important;display:block !important;visibility:visible;opacity:1 !important;transform:none !important;filter:none !important;width:auto !important;margin:0 !important;border:0 !important">above all</div>`

const plain = `<style>body, html { background: #fff }</style>`

// still is a picture of a region of the page in which nothing moves.
func (p *tab) still(x, y, w, h float64) []byte {
	p.b.t.Helper()
	shot, err := p.Screenshot(playwright.PageScreenshotOptions{Clip: &playwright.Rect{X: x, Y: y, Width: w, Height: h},
		Animations: playwright.ScreenshotAnimationsDisabled, Caret: playwright.ScreenshotCaretHide})
	p.must(err)
	return shot
}

// differing is the part of the pixels that two pictures differ in.
func differing(t *testing.T, one, other []byte) float64 {
	t.Helper()
	var img [2]image.Image
	for i, b := range [][]byte{one, other} {
		var err error
		if img[i], err = png.Decode(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	size := img[0].Bounds()
	if size != img[1].Bounds() {
		t.Fatalf("the pictures are %v and %v", size, img[1].Bounds())
	}
	n := 0
	near := func(a, b uint32) bool { return max(a, b)-min(a, b) < 0x1800 }
	for y := range size.Dy() {
		for x := range size.Dx() {
			r1, g1, b1, _ := img[0].At(x, y).RGBA()
			r2, g2, b2, _ := img[1].At(x, y).RGBA()
			if !near(r1, r2) || !near(g1, g2) || !near(b1, b2) {
				n++
			}
		}
	}
	return float64(n) / float64(size.Dx()*size.Dy())
}

func TestNoStyleOfThePageReachesTheWidget(t *testing.T) {
	t.Parallel()
	seen := map[string][2][]byte{}
	for _, style := range []string{plain, hostile} {
		b := newBed(t, options{key: object{"config": object{"greeting": "Hello! *How* can we help?", "starter_prompts": []string{"Where is my order?", "How do I return it?"}, "disclaimer": "Answers may be wrong."}}})
		p := b.visit("<!doctype html><html lang=en><head><title>A shop</title></head><body>" + style + b.tag() + "</body></html>")
		p.must(expect.Locator(p.launcher()).ToBeVisible())
		closed := p.still(934, 694, 36, 36) // within the circle: around it is the page
		p.open()
		p.say("/say Take it **back**:\n/say - by [post](https://example.com)\n/say - `in person`")
		p.finished(1)
		p.must(p.Mouse().Move(5, 5))
		// The time of day is none of it.
		p.eval(`() => document.querySelector("[data-floating]").shadowRoot.querySelectorAll("time").forEach((t) => (t.textContent = "12:00"))`)
		p.lies(p.panel(), 600, 70, 380, 600)
		seen[style] = [2][]byte{closed, p.still(604, 74, 372, 592)}
	}
	for i, what := range []string{"closed", "open"} {
		if d := differing(t, seen[plain][i], seen[hostile][i]); d > 0.002 {
			for name, s := range map[string]string{"plain": plain, "hostile": hostile} {
				_ = os.WriteFile(filepath.Join(os.TempDir(), "widgetcheck-"+what+"-"+name+".png"), seen[s][i], 0o644)
			}
			t.Errorf("%s: %.2f%% of it looks different", what, 100*d)
		}
	}
}

// Nothing of the widget reaches the page either.
func TestNothingOfTheWidgetReachesThePage(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop("<script>window.before = Object.keys(window); document.addEventListener('keydown', (e) => (window.keys ??= []).push(e.key));</script>"))
	before := p.still(0, 0, 560, 700)
	p.open()
	p.say("/say Hello.")
	p.finished(1)
	p.must(p.field().PressSequentially("/?g"))
	if keys := p.eval("() => window.keys ?? null"); keys != nil {
		t.Errorf("the page's shortcuts heard %v", keys)
	}
	if d := differing(t, before, p.still(0, 0, 560, 700)); d != 0 {
		t.Errorf("%.2f%% of the page looks different", 100*d)
	}
	got := fmt.Sprint(p.eval("() => Object.keys(window).filter((k) => !before.includes(k) && !['before', 'keys'].includes(k))"))
	if got != "[SvcWidget]" {
		t.Errorf("new in window: %s", got)
	}
	if got := p.eval("() => document.head.querySelectorAll('style').length"); got != 1 {
		t.Errorf("%v style sheets in the head", got)
	}
}

func TestAStrictContentSecurityPolicy(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	policy := fmt.Sprintf("default-src 'none'; script-src %s; connect-src %s; style-src 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'", b.base, b.base)
	p := b.visitWith("<!doctype html><html lang=en><title>Strict</title><body><h1>Strict</h1>"+b.tag()+"</body></html>", policy)
	p.open()
	p.must(expect.Locator(p.panel()).ToHaveCSS("width", "380px"))
	p.must(expect.Locator(p.launcher()).ToHaveCSS("background-color", "rgb(37, 99, 235)"))
	p.say("/say Within the policy, **too**.")
	p.finished(1)
	p.sees("Within the policy, too.")
}

// A frame of an opaque origin has neither storage nor locks: what the widget knows is
// in memory.
func TestASandboxedFrame(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"allowed_origins": []string{"*"}}})
	p := b.visit("<!doctype html><html lang=en><title>Framed</title><body><iframe title=shop sandbox=allow-scripts style='width:600px;height:700px' src='" + b.site.page("/framed", b.shop(), "") + "'></iframe></body></html>")
	shop := p.FrameLocator("iframe")
	p.must(shop.Locator(".launcher").Click())
	for i, text := range []string{"Framed.", "Again."} {
		p.must(shop.GetByRole("textbox", playwright.FrameLocatorGetByRoleOptions{Name: "Message", Exact: playwright.Bool(true)}).Fill("/say " + text))
		p.must(shop.GetByRole("button", playwright.FrameLocatorGetByRoleOptions{Name: "Send", Exact: playwright.Bool(true)}).Click())
		p.must(expect.Locator(shop.Locator(".turn.bot.done .bubble")).ToHaveCount(i + 1))
		p.must(expect.Locator(shop.Locator(".turn.bot .bubble").Last()).ToHaveText(text))
	}
}

func TestAPhone(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{context: playwright.BrowserNewContextOptions{Viewport: &playwright.Size{Width: 390, Height: 844}, HasTouch: playwright.Bool(true), IsMobile: playwright.Bool(true), DeviceScaleFactor: playwright.Float(2)}})
	p := b.visit(b.shop())
	p.must(p.launcher().Tap())
	p.must(expect.Locator(p.panel()).ToBeVisible())
	p.lies(p.panel(), 0, 0, 390, 844)
	p.must(expect.Locator(p.launcher()).ToBeHidden())
	p.must(expect.Locator(p.field()).Not().ToBeFocused()) // the keyboard would hide what there is to read
	p.must(p.field().Fill("/say On a phone."))
	p.must(p.button("Send").Tap())
	p.sees("On a phone.")
	if size := p.eval(`() => parseFloat(getComputedStyle(document.querySelector("[data-floating]").shadowRoot.querySelector("textarea")).fontSize)`); fmt.Sprint(size) != "16" {
		t.Errorf("a phone zooms into a field of %v pixels", size)
	}
	if wide := p.eval("() => document.documentElement.scrollWidth"); fmt.Sprint(wide) != "390" {
		t.Errorf("the page is %v wide", wide)
	}
	p.must(p.button("Close chat").First().Tap())
	p.must(expect.Locator(p.panel()).ToBeHidden())
	p.must(p.launcher().Tap())
	p.must(expect.Locator(p.panel()).ToBeVisible())
	_, err := p.Reload() // there, nobody asked for a chat that hides the page
	p.must(err)
	p.must(expect.Locator(p.launcher()).ToBeVisible())
}

func TestTheColourSchemeAndMotionFollow(t *testing.T) {
	t.Parallel()
	const light, dark = "rgb(255, 255, 255)", "rgb(22, 24, 29)"
	for _, c := range []struct {
		theme          string
		atDay, atNight string
	}{{"auto", light, dark}, {"light", light, light}, {"dark", dark, dark}} {
		t.Run(c.theme, func(t *testing.T) {
			b := newBed(t, options{key: object{"theme": object{"color_scheme": c.theme, "accent": "#ffd400", "position": "left"}},
				context: playwright.BrowserNewContextOptions{ColorScheme: playwright.ColorSchemeLight}})
			p := b.visit(b.shop())
			p.open()
			p.must(expect.Locator(p.panel()).ToHaveCSS("background-color", c.atDay))
			p.must(p.EmulateMedia(playwright.PageEmulateMediaOptions{ColorScheme: playwright.ColorSchemeDark}))
			p.must(expect.Locator(p.panel()).ToHaveCSS("background-color", c.atNight))
			p.must(expect.Locator(p.launcher()).ToHaveCSS("background-color", "rgb(255, 212, 0)"))
			p.must(expect.Locator(p.launcher()).ToHaveCSS("color", "rgb(0, 0, 0)"))
			p.lies(p.panel(), 20, 70, 380, 600)
			p.must(expect.Locator(p.panel()).Not().ToHaveCSS("animation-name", "none"))
			p.must(p.EmulateMedia(playwright.PageEmulateMediaOptions{ReducedMotion: playwright.ReducedMotionReduce}))
			p.must(expect.Locator(p.panel()).ToHaveCSS("animation-name", "none"))
			p.must(expect.Locator(p.launcher()).ToHaveCSS("transition-duration", "0s"))
		})
	}
}

// focused is what has the focus: a label, or what it is.
func (p *tab) focused() string {
	return p.eval(`() => { let e = document.activeElement; while (e?.shadowRoot?.activeElement) e = e.shadowRoot.activeElement; return e?.getAttribute("aria-label") || e?.textContent?.trim().slice(0, 40) || e?.tagName }`).(string)
}

func TestTheKeyboardIsEnough(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"config": object{"title": "Help desk", "starter_prompts": []string{"/say A prompt."}}}})
	p := b.visit(b.shop())
	p.must(expect.Locator(p.launcher()).ToBeVisible())
	press := func(keys ...string) {
		t.Helper()
		for _, k := range keys {
			p.must(p.Keyboard().Press(k))
		}
	}
	press("Tab", "Tab")
	if got := p.focused(); got != "Open chat" {
		t.Fatalf("the focus is on %q", got)
	}
	press("Enter")
	p.must(expect.Locator(p.field()).ToBeFocused())

	// Backwards through the panel: what is seen first comes first.
	var order []string
	for range 6 {
		press("Shift+Tab")
		order = append(order, p.focused())
	}
	if got := strings.Join(order, ", "); got != "/say A prompt., Help desk, Close chat, New chat, Earlier chats, Help desk" && got != "/say A prompt., Help desk, Close chat, New chat, Earlier chats, More" {
		t.Errorf("backwards the order is %s", got)
	}
	p.must(p.field().Focus())
	p.must(p.Keyboard().Type("/delay 100ms"))
	press("Shift+Enter")
	p.must(p.Keyboard().Type("/tokens 200"))
	press("Enter")
	p.must(expect.Locator(p.answer()).ToContainText(words(3)))
	p.must(expect.Locator(p.asked()).ToHaveText("/delay 100ms\n/tokens 200"))
	press("Tab")
	if got := p.focused(); got != "Stop" {
		t.Fatalf("behind the field comes %q", got)
	}
	press("Enter")
	p.must(expect.Locator(p.Locator(".turn.bot.failed .note")).ToContainText("Stopped."))
	press("Shift+Tab")
	p.must(p.Keyboard().Type("/say Again."))
	press("Enter")
	p.sees("Again.")
	p.must(expect.Locator(p.field()).ToBeFocused())
	press("Escape")
	p.must(expect.Locator(p.panel()).ToBeHidden())
	p.must(expect.Locator(p.launcher()).ToBeFocused())
	press("Space")
	p.must(expect.Locator(p.field()).ToBeFocused())
}

// Those who do not see are told of an answer once, when it is there.
func TestAnAnswerIsAnnouncedOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop())
	p.open()
	p.say("/delay 20ms\n/tokens 40")
	p.must(expect.Locator(p.answer()).ToContainText(words(3)))
	p.must(expect.Locator(p.Locator(".turn.bot")).ToHaveAttribute("aria-live", "off"))
	p.must(expect.Locator(p.Locator(".turn.bot")).ToHaveAttribute("aria-busy", "true"))
	p.finished(1)
	p.must(expect.Locator(p.log()).ToHaveAttribute("aria-live", "polite"))
	if got := p.eval(`() => { const e = document.querySelector("[data-floating]").shadowRoot.querySelector(".turn.bot"); return e.hasAttribute("aria-live") || e.hasAttribute("aria-busy") }`); got != false {
		t.Error("the finished answer is not announced")
	}
}

func TestEverybodyCanUseIt(t *testing.T) {
	t.Parallel()
	axe, err := os.ReadFile(filepath.Join(modules, "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []*playwright.ColorScheme{playwright.ColorSchemeLight, playwright.ColorSchemeDark} {
		t.Run(string(*scheme), func(t *testing.T) {
			b := newBed(t, options{key: object{"theme": object{"accent": "#8a5cf6"}, "config": object{"greeting": "Hello! [Our terms](https://example.com/terms) hold.", "starter_prompts": []string{"Where is my order?"}, "disclaimer": "Answers may be wrong."}},
				context: playwright.BrowserNewContextOptions{ColorScheme: scheme, ReducedMotion: playwright.ReducedMotionReduce}})
			b.mayComplain(failedRequest)
			p := b.visit(b.shop())
			p.must(expect.Locator(p.launcher()).ToBeVisible())
			judge := func(state string) {
				t.Helper()
				// Into the page's world, as its developer would paste it.
				found := p.eval("async (source) => { if (!window.axe) (0, eval)(source); const r = await axe.run(document, { resultTypes: ['violations'] }); return JSON.stringify(r.violations.map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.map((n) => n.html + ' ' + n.failureSummary) }))) }", string(axe)).(string)
				var all []struct {
					ID, Impact string
					Nodes      []string
				}
				if err := json.Unmarshal([]byte(found), &all); err != nil {
					t.Fatal(err)
				}
				for _, v := range all {
					t.Errorf("%s: %s (%s): %s", state, v.ID, v.Impact, strings.Join(v.Nodes, "\n"))
				}
			}
			judge("closed")
			p.open()
			judge("open")
			p.say("/delay 100ms\n/tokens 300")
			p.must(expect.Locator(p.answer()).ToContainText(words(3)))
			judge("streaming")
			p.must(p.button("Stop").Click())
			p.must(expect.Locator(p.Locator(".turn.bot.failed")).ToHaveCount(1))
			judge("stopped")
			p.say(lines("Take it **back**:", "- by [post](https://example.com)", "- `in person`", "- [x] packed", "```", "code", "```", "> quoted", "---", "| | a |", "|-|-:|", "| b | ~~c~~ |"))
			p.finished(1)
			judge("answered")
			p.must(p.field().Fill(strings.Repeat("long ", 1601) + "."))
			p.must(expect.Locator(p.Locator("#svc-count")).ToHaveText("8006 / 8000"))
			judge("too long")
			p.say("/delay 100ms\n/tokens 300")
			p.must(p.field().Fill("What comes next?"))
			p.must(p.field().Press("Enter"))
			p.must(expect.Locator(p.Locator(".queued")).ToBeVisible())
			judge("queued")
			p.must(p.button("Discard").Click())
			p.must(p.button("Stop").Click())
			p.must(expect.Locator(p.Locator(".turn.bot.failed")).ToHaveCount(2))
			p.say(`/call orders.refund {"order_id":"1002","amount":1,"reason":"late"}`)
			p.must(expect.Locator(p.Locator(".now.card")).ToBeVisible())
			judge("waiting")
			p.must(p.button("Earlier chats").Click())
			p.must(expect.Locator(p.Locator(".list li")).ToHaveCount(1))
			judge("history")
			p.must(p.button("Back to the chat").Click())
			p.eval("() => SvcWidget.onSignIn(() => {})")
			for _, refused := range []struct {
				code, shows string
				signIn      int
			}{{"VALIDATION", ".turn.user.unsent", 0}, {"EMBED_IDENTITY_INVALID", "[role=alert] .notice", 1}, {"EMBED_IDENTITY_REQUIRED", ".gate", 1}} {
				p.must(p.Unroute("**/v1/embed/messages"))
				p.must(p.Route("**/v1/embed/messages", func(r playwright.Route) {
					_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(401), ContentType: playwright.String("application/problem+json"),
						Headers: map[string]string{"Access-Control-Allow-Origin": b.site.URL}, Body: `{"status":401,"code":"` + refused.code + `","title":"x"}`})
				}))
				p.say("Refused")
				p.must(expect.Locator(p.Locator(refused.shows)).ToBeVisible())
				p.must(expect.Locator(p.button("Sign in")).ToHaveCount(refused.signIn))
				judge(refused.code)
			}
		})
	}
}
