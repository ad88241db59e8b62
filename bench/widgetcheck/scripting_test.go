package widgetcheck

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/playwright-community/playwright-go"
)

// trap makes whatever a script of a stranger would do be seen: every vector calls
// pwn, or asks evil.example for something.
const trap = `<script nonce="trap">
window.pwned = [];
window.pwn = (...a) => { pwned.push(String(a[0] ?? "called")); return ""; };
for (const name of ["alert", "confirm", "prompt", "print", "open"]) window[name] = (...a) => window.pwn(name + " " + a.join());
window.reports = [];
document.addEventListener("securitypolicyviolation", (e) => reports.push(e.violatedDirective + " " + e.blockedURI));
</script>`

// vectors are the lines of testdata/vectors.txt; \u{…} stands for a character that
// cannot be seen.
func vectors(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	escape := regexp.MustCompile(`\\u\{([0-9a-f]+)\}`)
	var all []string
	for line := range strings.SplitSeq(string(raw), "\n") {
		if line == "" || strings.HasPrefix(line, "## ") {
			continue
		}
		all = append(all, escape.ReplaceAllStringFunc(line, func(s string) string {
			var r rune
			fmt.Sscanf(escape.FindStringSubmatch(s)[1], "%x", &r)
			return string(r)
		}))
	}
	if len(all) < 100 {
		t.Fatalf("only %d vectors: the file is cut off", len(all))
	}
	return all
}

// judge looks at the whole shadow tree: only what the widget itself makes is in it,
// and nothing has run.
const judge = `() => {
  const host = document.querySelector("[data-floating]");
  const bad = [];
  const tags = new Set("DIV SPAN P STRONG EM CODE PRE UL OL LI A BDI BR B I H2 DEL HR BLOCKQUOTE TABLE THEAD TBODY TR TH TD LABEL INPUT SECTION HEADER FOOTER FORM TEXTAREA BUTTON TIME SVG PATH svg path IMG".split(" "));
  const attributes = new Set("class style role id lang dir tabindex hidden type rows maxlength placeholder enterkeyhint title datetime start href target rel d viewBox alt src referrerpolicy disabled checked".split(" "));
  for (const e of host.shadowRoot.querySelectorAll("*")) {
    if (!tags.has(e.tagName)) bad.push("element " + e.outerHTML);
    for (const a of e.attributes) {
      if (!attributes.has(a.name) && !a.name.startsWith("aria-")) bad.push("attribute " + a.name + " of " + e.outerHTML);
      if (a.name === "style" && /url|expression|evil/i.test(a.value)) bad.push("style " + a.value);
    }
    if (e.tagName === "A") {
      const u = new URL(e.href);
      if (!["https:", "mailto:"].includes(u.protocol) || e.rel !== "noopener noreferrer nofollow" || e.target !== "_blank" || u.username) bad.push("link " + e.outerHTML);
    }
    if (e.tagName === "IMG") bad.push("picture " + e.src);
  }
  return JSON.stringify({ bad, pwned, reports, body: document.querySelectorAll("body > *:not(script):not(h1):not([data-floating])").length });
}`

func (p *tab) judged(what string) {
	p.b.t.Helper()
	var got struct {
		Bad, Pwned, Reports []string
		Body                int
	}
	if err := json.Unmarshal([]byte(p.eval(judge).(string)), &got); err != nil {
		p.b.t.Fatal(err)
	}
	if len(got.Bad)+len(got.Pwned)+len(got.Reports)+got.Body > 0 {
		p.b.t.Errorf("%s: %+v", what, got)
	}
}

// guarded is a page that reports what it would have been made to do.
func (b *bed) guarded() *tab {
	b.t.Helper()
	policy := fmt.Sprintf("default-src 'none'; script-src 'nonce-trap' %s; connect-src %s", b.base, b.base)
	p := b.visitWith("<!doctype html><html lang=en><title>Trap</title><body><h1>Trap</h1>"+trap+b.tag()+"</body></html>", policy)
	p.must(expect.Locator(p.launcher()).ToBeVisible())
	return p
}

// What a model says is text, whatever it says: each vector alone and as a part of
// Markdown, while it streams and when it is read again.
func TestNoScriptOfAModelRuns(t *testing.T) {
	t.Parallel()
	// One policy would keep scripts from running that the widget let through, so a
	// page without one is looked at, too.
	for _, c := range []struct {
		name string
		open func(b *bed) *tab
	}{
		{"with a policy", (*bed).guarded},
		{"without", func(b *bed) *tab {
			p := b.visit("<!doctype html><html lang=en><title>Trap</title><body><h1>Trap</h1>" + trap + b.tag() + "</body></html>")
			p.must(expect.Locator(p.launcher()).ToBeVisible())
			return p
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, options{})
			p := c.open(b)
			p.open()
			all := vectors(t)
			n := 0
			for len(all) > 0 {
				var message strings.Builder
				for len(all) > 0 && message.Len()+2*len(all[0]) < 3500 {
					v := strings.ReplaceAll(all[0], "\x00", "") // which no message may hold
					all = all[1:]
					fmt.Fprintf(&message, "/say %s\n/say - **%s** and [a link](https://example.com) %s\n", v, v, v)
				}
				n++
				p.say(message.String())
				p.finished(n)
				p.judged("written")
			}
			// Everything that can be pressed or pointed at is.
			p.eval(`() => { for (const e of document.querySelector("[data-floating]").shadowRoot.querySelectorAll(".log *")) { if (e.tagName === "A") e.addEventListener("click", (x) => x.preventDefault());
  for (const kind of ["mouseover", "mouseenter", "focus", "pointerover", "click", "toggle", "error", "load"]) if (e.tagName !== "BUTTON") e.dispatchEvent(new Event(kind, { bubbles: true, cancelable: true, composed: true })); } }`)
			p.judged("touched")
			_, err := p.Reload()
			p.must(err)
			p.finished(n)
			p.judged("read again")
			p.must(p.button("Earlier chats").Click())
			p.must(expect.Locator(p.Locator(".list li")).ToHaveCount(1))
			p.judged("listed")
		})
	}
}

// Nor does one of what the tenant, or somebody at the tenant's, has set: as far as
// the API takes it, and as it is where it would take all of it.
func TestNoScriptOfAKeyRuns(t *testing.T) {
	t.Parallel()
	all := vectors(t)
	for at := 0; at < len(all); at += 30 {
		some := all[at:min(at+30, len(all))]
		pick := func(i, n int) string { return cut(printable(some[i%len(some)]), n) }
		config := func(pick func(i, n int) string) object {
			return object{"title": pick(1, 60), "greeting": cut(pick(7, 400)+"\n"+pick(8, 400)+"\n- "+pick(9, 400), 400), "starter_prompts": []string{pick(5, 100), pick(11, 100), pick(13, 100), pick(17, 100)},
				"placeholder": pick(2, 60), "disclaimer": pick(4, 150), "launcher_label": pick(6, 30)}
		}
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			b := newBed(t, options{agent: object{"name": pick(3, 100), "emoji": "<b>"}, key: object{"config": config(pick)}})
			p := b.guarded()
			p.judged("closed")
			p.must(p.launcher().Click())
			p.must(expect.Locator(p.panel()).ToBeVisible())
			p.judged("open")
			p.must(p.Locator(".prompts button").First().Click())
			p.finished(1)
			p.judged("prompted")
			p.must(p.button("Earlier chats").Click())
			p.must(expect.Locator(p.Locator(".list li")).ToHaveCount(1))
			p.judged("listed")

			raw := config(func(i, n int) string { return some[i%len(some)] })
			raw["greeting"], raw["locale"] = strings.Join(some, "\n"), pick(10, 100)
			answer, err := json.Marshal(object{"key_id": some[0], "agent": object{"name": some[3%len(some)], "emoji": some[12%len(some)]}, "theme": object{}, "config": raw})
			if err != nil {
				t.Fatal(err)
			}
			p.must(p.Route("**/v1/embed/config", func(r playwright.Route) {
				_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("application/json"), Headers: map[string]string{"Access-Control-Allow-Origin": b.site.URL}, Body: answer})
			}))
			_, err = p.Reload()
			p.must(err)
			p.must(expect.Locator(p.panel()).ToBeVisible())
			p.judged("as they are")
		})
	}
}

func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return strings.TrimSpace(string(r[:n]))
	}
	return s
}

// printable leaves out what the API takes in no such text.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return -1
		}
		return r
	}, s)
	if s = strings.TrimSpace(s); s == "" {
		return "<i>x</i>"
	}
	return s
}

// A theme is put into style sheets and requests, and so is worth a lie.
func TestNoThemeLoadsOrRunsAnything(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	address := b.site.page("/theme", "<!doctype html><html lang=en><title>Trap</title><body><h1>Trap</h1>"+trap+b.tag()+"</body></html>", "")
	p := b.visit("<!doctype html><html lang=en><title>Trap</title><body><h1>Trap</h1></body></html>")
	// The API refuses most of these; the widget does not count on it.
	for _, theme := range []string{
		`{"accent":"red;background:url(https://evil.example/a)"}`, `{"accent":"#12345;"}`, `{"accent":"url(https://evil.example/a)"}`,
		`{"font_family":"x;}*{background:url(https://evil.example/f)}"}`, `{"font_family":"url(https://evil.example/f)"}`, `{"font_family":"'"}`, `{"font_family":"a\\22 b"}`,
		`{"avatar_url":"https://evil.example/a.png"}`, `{"avatar_url":"javascript:pwn(1)"}`, `{"avatar_url":"//evil.example/a.png"}`, `{"avatar_url":"data:text/html,<script>pwn(2)</script>"}`, `{"avatar_url":"http://user@evil.example"}`,
		`{"z_index":"1;background:url(https://evil.example/z)"}`, `{"position":"left;x"}`, `{"radius":"</style>"}`, `{"color_scheme":{}}`,
	} {
		config := fmt.Sprintf(`{"key_id":"k","agent":{"name":"A","emoji":""},"theme":%s,"config":{"starter_prompts":[]},"identity_required":false}`, theme)
		p.must(p.Route("**/v1/embed/config", func(r playwright.Route) {
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("application/json"), Headers: map[string]string{"Access-Control-Allow-Origin": b.site.URL}, Body: config})
		}))
		_, err := p.Goto(address)
		p.must(err)
		p.eval("() => localStorage.clear()")
		p.open()
		p.must(expect.Locator(p.panel()).ToHaveCSS("width", "380px"))
		if got := p.eval(`() => JSON.stringify(pwned) + document.querySelector("[data-floating]").shadowRoot.querySelectorAll("img").length`); got != "[]0" {
			t.Errorf("%s: %v", theme, got)
		}
		p.must(p.Unroute("**/v1/embed/config"))
		p.eval("() => SvcWidget.close()")
	}
}
