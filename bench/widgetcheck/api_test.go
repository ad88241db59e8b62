package widgetcheck

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// token is a JWT of the page's back end.
func (b *bed) token(sub, secret string) string {
	part := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			b.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	text := part(object{"alg": "HS256", "typ": "JWT"}) + "." + part(object{"sub": sub, "name": "Ada", "email": "ada@example.com", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()})
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func TestThePagesInterface(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(b.shop(`<script>
window.heard = [];
addEventListener("svcwidget", () => {
  for (const name of ["ready", "open", "close", "session", "message", "waiting", "error"]) SvcWidget.on(name, (e) => heard.push([name, e]));
  window.off = SvcWidget.on("open", () => heard.push(["once"]));
  SvcWidget.on("open", () => { throw new Error("a listener of the page's") });
});
</script>`))
	b.mayComplain("a listener of the page's")
	p.must(expect.Locator(p.launcher()).ToBeVisible())
	names := func() string {
		return p.eval("() => heard.map((h) => h[0]).join(' ')").(string)
	}
	p.eval("() => SvcWidget.open()")
	p.must(expect.Locator(p.field()).ToBeFocused())
	p.eval("() => { off(); SvcWidget.close(); SvcWidget.open(); SvcWidget.close(); SvcWidget.open(); }")
	if got := names(); got != "ready open once close open close open" {
		t.Errorf("heard %s", got)
	}
	p.say("/say Hello.")
	p.finished(1)
	if got := names(); got != "ready open once close open close open session message message" {
		t.Errorf("heard %s", got)
	}
	if got := fmt.Sprint(p.eval("() => heard.filter((h) => h[0] === 'message').map((h) => h[1].role + ': ' + h[1].text)")); got != "[user: /say Hello. assistant: Hello.]" {
		t.Errorf("heard %s", got)
	}
	p.eval("() => { window.host = document.querySelector('[data-floating]'); SvcWidget.destroy(); }")
	p.must(expect.Locator(p.launcher()).ToHaveCount(0))
	if p.eval("() => host.isConnected") != false {
		t.Error("the host element is still there")
	}
	// Again, by hand.
	p.eval("(key) => SvcWidget.mount({ key })", b.key)
	p.must(expect.Locator(p.answer()).ToHaveText("Hello.")) // it was open
}

func TestIdentifyAndLogout(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.mayComplain(failedRequest)
	p := b.visit(b.shop(`<script>
window.ids = []; window.codes = [];
addEventListener("svcwidget", () => {
  SvcWidget.on("session", (e) => ids.push(e.endUserId)); SvcWidget.on("error", (e) => codes.push(e.code + " " + e.reason));
});
</script>`))
	p.open()
	p.say("/say To nobody.")
	p.finished(1)

	ada := b.token("ada", b.identity)
	p.eval("(token) => { window.asked = 0; SvcWidget.identify(async () => { asked++; return token; }); }", ada)
	p.must(expect.Locator(p.asked()).ToHaveCount(0)) // what was said before stays with nobody
	p.say("/say To Ada.")
	p.finished(1)
	if got := p.eval("() => ids.length === 2 && ids[0] === null && typeof ids[1] === 'string' && asked === 1"); got != true {
		t.Errorf("sessions of %v", p.eval("() => ids"))
	}

	// Another browser of hers finds it.
	other := newBedOf(b)
	q := other.visit(strings.Replace(b.shop(), "data-key=", fmt.Sprintf("data-user-token=%q data-key=", ada), 1))
	q.open()
	q.must(q.button("Earlier chats").Click())
	q.must(q.GetByRole("button", playwright.PageGetByRoleOptions{Name: "/say To Ada."}).Click())
	q.must(expect.Locator(q.answers()).ToHaveText([]string{"To Ada."}))

	p.eval("() => SvcWidget.logout()")
	p.must(expect.Locator(p.asked()).ToHaveCount(0))
	p.must(p.button("Earlier chats").Click())
	items := p.GetByRole("list", playwright.PageGetByRoleOptions{Name: "Earlier chats"}).GetByRole("button")
	p.must(expect.Locator(items).ToHaveCount(1))
	p.must(expect.Locator(items).ToContainText("/say To nobody."))
	p.must(p.button("Back to the chat").Click())

	// A token that somebody else signed.
	p.eval("(token) => SvcWidget.identify(token)", b.token("ada", "guessed"))
	p.say("/say As Ada?")
	p.must(expect.Locator(p.GetByRole("alert")).ToContainText("We could not confirm who you are."))
	p.must(expect.Locator(p.field()).ToHaveValue("/say As Ada?"))
	p.must(expect.Locator(p.asked()).ToHaveCount(0))
	if got := fmt.Sprint(p.eval("() => codes")); got != "[EMBED_IDENTITY_INVALID signature]" {
		t.Errorf("errors %s", got)
	}
}

// newBedOf is another browser before the same site.
func newBedOf(b *bed) *bed {
	b.t.Helper()
	ctx, err := browser.NewContext(playwright.BrowserNewContextOptions{Locale: playwright.String("en-GB"), Viewport: &playwright.Size{Width: 1000, Height: 760}})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx.SetDefaultTimeout(float64(patience.Milliseconds()))
	b.t.Cleanup(func() { _ = ctx.Close() })
	return &bed{t: b.t, svc: b.svc, gate: b.gate, site: b.site, base: b.base, key: b.key, keyID: b.keyID, identity: b.identity, ctx: ctx}
}

func TestTheElementIsPartOfThePage(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"config": object{"greeting": "Hello from within."}}})
	p := b.visit(fmt.Sprintf(`<!doctype html><html lang=en><title>Inline</title><body style="margin:0"><h1>Inline</h1><main style="width:500px;margin:20px"><svc-chat id=chat key="%s" style="height:420px"></svc-chat></main>
<script async src="%s/embed/v1/widget.js"></script></body></html>`, b.key, b.base))
	p.must(expect.Locator(p.GetByText("Hello from within.")).ToBeVisible())
	p.must(expect.Locator(p.panel()).ToHaveAttribute("role", "region"))
	p.must(expect.Locator(p.launcher()).ToHaveCount(0))
	p.must(expect.Locator(p.button("Close chat")).ToHaveCount(0))
	box, err := p.GetByRole("main").BoundingBox()
	p.must(err)
	p.lies(p.panel(), box.X, box.Y, 500, 420)
	p.say("/say Inline.")
	p.sees("Inline.")
	// Moved within the page it stays what it is; removed it is gone.
	p.eval("() => document.body.append(document.querySelector('#chat'))")
	p.say("/say Moved.")
	p.sees("Moved.")
	p.eval("() => document.querySelector('#chat').remove()")
	p.must(expect.Locator(p.panel()).ToHaveCount(0))
	p.eval(`(key) => { const e = document.createElement("svc-chat"); e.setAttribute("key", key); document.querySelector("main").append(e); }`, b.key)
	p.sees("Moved.")
}

func TestTheClientWithoutAnInterface(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	p := b.visit(fmt.Sprintf(`<!doctype html><html lang=en><title>Headless</title><body><h1>Headless</h1><script src="%s/embed/v1/widget.js"></script></body></html>`, b.base))
	got := p.eval(`async (key) => {
  const client = new SvcWidget.Client({ key });
  const sent = await client.send("/delay 5ms\n/tokens 20");
  const types = new Set();
  let streamed = "", final = null;
  for await (const e of client.stream({ threadId: sent.thread_id, runId: sent.run_id })) {
    types.add(e.type);
    if (e.type === "llm.delta") streamed += e.text;
    if (e.type === "run.completed") final = e.text;
  }
  const history = await client.history(sent.thread_id);
  const threads = await client.threads();
  const ended = await client.cancel(sent.run_id);
  let refused = "";
  try { await client.history("01a20149-08c6-7a0e-ba17-c0d2df2b176e"); } catch (e) { refused = e instanceof SvcWidget.Error ? e.code : String(e); }
  const second = await client.send("/delay 200ms\n/tokens 500", { threadId: sent.thread_id });
  let inFlight = "";
  try { await client.send("too early", { threadId: sent.thread_id }); } catch (e) { inFlight = e.code + (e.runId === second.run_id); }
  const stopped = await client.cancel(second.run_id);
  client.close();
  return JSON.stringify({ types: [...types], same: streamed === final, final, roles: history.items.map((m) => m.role), threads: threads.items.length, ended: ended.status, refused, inFlight, stopped: stopped.status });
}`, b.key).(string)
	b.mu.Lock()
	b.faults = nil // the browser's own words on the refusals above
	b.mu.Unlock()
	want := fmt.Sprintf(`{"types":["run.started","llm.delta","run.completed"],"same":true,"final":%q,"roles":["user","assistant"],"threads":1,"ended":"succeeded","refused":"NOT_FOUND","inFlight":"EMBED_RUN_IN_FLIGHTtrue","stopped":"cancelled"}`, words(20))
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
