package widgetcheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Browsers report by themselves each request that failed.
const failedRequest = "Failed to load resource"

// watchNotes keeps what the visitor is told of connections and failures.
const watchNotes = `() => {
  const root = document.querySelector("[data-floating]").shadowRoot;
  const notes = (window.notes = new Set());
  new MutationObserver(() => {
    for (const n of root.querySelectorAll(".now:not([hidden]), .notice, .note")) notes.add(n.textContent);
  }).observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
}`

func TestALostConnectionIsResumedExactly(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.mayComplain(failedRequest, "ERR_")
	p := b.visit(b.shop())
	p.open()
	p.eval(watchGrowth, 0)
	p.say("/delay 60ms\n/tokens 150")
	p.begun(0)
	for n := range 3 {
		until(t, "a stream is open", func() bool { return len(b.gate.resumed()) > n })
		b.gate.cut()
	}
	p.finished(1)
	p.sees(words(150))
	p.grew()
	after := b.gate.resumed()
	if len(after) < 4 || after[0] != "" || slices.Contains(after[1:], "") {
		t.Errorf("streams were opened after %q", after)
	}
	if n := b.gate.count("POST", "/messages", 0); n != 1 {
		t.Errorf("the message was sent %d times", n)
	}
}

// The service dies in the middle of an answer and comes back: the answer is there
// once, and nobody had to do anything.
func TestTheServiceIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	svc := own(t)
	b := newBed(t, options{service: svc, direct: true})
	b.mayComplain(failedRequest, "ERR_", "blocked by CORS")
	p := b.visit(b.shop("<script>addEventListener('svcwidget', () => { window.errors = []; window.said = []; SvcWidget.on('error', (e) => errors.push(e.code)); SvcWidget.on('message', (e) => said.push(e)); })</script>"))
	p.open()

	// For a moment.
	p.say("/delay 50ms\n/tokens 100")
	p.begun(0)
	svc.kill()
	p.must(expect.Locator(p.Locator(".now")).ToContainText("Connection lost"))
	if err := svc.start(); err != nil {
		t.Fatal(err)
	}
	p.finished(1)
	p.sees(words(100))

	// For longer than three retries.
	p.say("/delay 50ms\n/tokens 100")
	p.begun(1)
	svc.kill()
	until(t, "STREAM_LOST is reported", func() bool { return p.eval("() => errors.includes('STREAM_LOST')") == true })
	p.must(expect.Locator(p.Locator(".now")).ToContainText("Connection lost"))
	if err := svc.start(); err != nil {
		t.Fatal(err)
	}
	p.finished(2)
	p.must(expect.Locator(p.answers()).ToHaveText([]string{words(100), words(100)}))
	if n := p.eval("() => errors.filter((c) => c === 'STREAM_LOST').length"); n != 1 {
		t.Errorf("STREAM_LOST was reported %v times", n)
	}
	thread := p.eval("() => said[0].threadId").(string)
	want := []string{"user: /delay 50ms\n/tokens 100", "assistant: " + words(100), "user: /delay 50ms\n/tokens 100", "assistant: " + words(100)}
	if got := b.messages(thread); !slices.Equal(got, want) {
		t.Errorf("the thread is %q", got)
	}
	if n := p.eval("() => said.filter((m) => m.role === 'assistant').length"); n != 2 {
		t.Errorf("the page was told of %v answers", n)
	}

	// A message that is sent while nobody is there is not lost, and not sent twice.
	svc.kill()
	p.say("/say Still here.")
	p.must(expect.Locator(p.Locator(".turn.user.unsent")).ToHaveCount(1))
	if err := svc.start(); err != nil {
		t.Fatal(err)
	}
	p.must(p.button("Try again").Click())
	p.finished(3)
	p.sees("Still here.")
	if got := b.messages(thread); len(got) != 6 {
		t.Errorf("the thread is %q", got)
	}
}

func TestAnExpiredTokenIsRenewed(t *testing.T) {
	t.Parallel()
	svc := own(t, "SVC_EMBED_TOKEN_TTL=2s", "SVC_SSE_HEARTBEAT=500ms", // a stream ends at the first heartbeat behind its token
		"SVC_TRUSTED_PROXIES=127.0.0.0/8")
	b := newBed(t, options{service: svc})
	b.mayComplain(failedRequest)
	p := b.visit(b.shop())
	p.open()
	p.say("/say One.")
	p.finished(1)
	p.eval(watchGrowth, 1)
	p.eval(watchNotes)
	p.say("/delay 40ms\n/tokens 130") // over two lives of a token, each of which ends the stream
	p.finished(2)
	p.must(expect.Locator(p.answers()).ToHaveText([]string{"One.", words(130)}))
	p.grew()
	p.say("/say Three.")
	p.finished(3)
	if n := b.gate.count("POST", "/session", 200); n < 3 {
		t.Errorf("%d sessions", n)
	}
	if after := b.gate.resumed(); len(after) < 4 { // three runs, of which one outlived its token
		t.Errorf("streams were opened after %q", after)
	}
	if got := fmt.Sprint(p.eval("() => [...window.notes]")); got != "[]" {
		t.Errorf("the visitor was told %s", got)
	}
}

func TestOfflineForAWhile(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.mayComplain(failedRequest, "ERR_")
	p := b.visit(b.shop())
	p.open()
	p.eval(watchGrowth, 0)
	p.say("/delay 30ms\n/tokens 150")
	p.begun(0)
	p.must(b.ctx.SetOffline(true))
	b.gate.cut() // a browser that only plays at being offline keeps what is open
	p.must(expect.Locator(p.Locator(".now")).ToContainText("Connection lost"))
	p.must(b.ctx.SetOffline(false))
	p.finished(1)
	p.sees(words(150))
	p.grew()
}

func TestADeniedOriginSeesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"allowed_origins": []string{"https://elsewhere.example"}}})
	b.mayComplain("svc widget", "CORS", failedRequest)
	p := b.visit(b.shop())
	until(t, "the console says what to do", func() bool { return strings.Contains(b.said(), "svc widget: ") })
	if said := b.said(); !strings.Contains(said, b.site.URL) || !strings.Contains(said, "Add") && !strings.Contains(said, "add") {
		t.Errorf("the console says %q", said)
	}
	if n := p.eval("() => [...document.querySelectorAll('[data-floating]')].filter((e) => e.shadowRoot).length"); n != float64(0) && n != 0 {
		t.Errorf("%v widgets are shown", n)
	}
	p.must(expect.Locator(p.launcher()).ToHaveCount(0))
}

func TestAKeyThatIsPausedSaysSoOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{key: object{"enabled": false}})
	b.mayComplain("svc widget", failedRequest)
	p := b.visit(b.shop())
	until(t, "the console says what to do", func() bool { return strings.Contains(b.said(), "EMBED_KEY_DISABLED: The embed key is paused.") })
	p.must(expect.Locator(p.launcher()).ToHaveCount(0))
	if n := strings.Count(b.said(), "svc widget: "); n != 1 {
		t.Errorf("said %d times:\n%s", n, b.said())
	}
}

// A key that is paused while a visitor talks ends the talk, not the page.
func TestAKeyThatIsPausedInTheMiddle(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.mayComplain(failedRequest, "ERR_")
	p := b.visit(b.shop())
	p.open()
	p.say("/delay 50ms\n/tokens 400")
	p.begun(0)
	b.svc.call(t, "PATCH", "/v1/embed-keys/"+b.keyID, object{"enabled": false}, nil)
	p.must(expect.Locator(p.GetByRole("alert")).ToContainText("not available"))
	b.svc.call(t, "PATCH", "/v1/embed-keys/"+b.keyID, object{"enabled": true}, nil)
	p.must(expect.Locator(p.button("Try again")).ToBeVisible())
}
