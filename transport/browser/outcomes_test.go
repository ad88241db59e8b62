package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/jpeg"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/browser/site"
	"agentsvc/transport/egress"
)

// quick is a second browser with short times, for what never happens.
var quick oneBrowser

func quickly(t testing.TB) *Browser {
	t.Helper()
	quick.once.Do(func() {
		c := config(t)
		c.StepTimeout, c.JobTimeout, c.Pages, c.TenantPages = 5*time.Second, time.Minute, 4, 4
		c.anyCertificate = true
		quick.b, quick.err = New(c)
	})
	if quick.err != nil {
		t.Fatal(quick.err)
	}
	return quick.b
}

func code(r *skill.Report) skill.Code {
	if r == nil || r.Fault == nil {
		return ""
	}
	return r.Fault.Code
}

// TestOutcomes is service.md, Browser skill run outcomes: each row with the effects at the site.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name     string
		knobs    site.Knobs
		edit     [2]string // of the definition
		prepare  skill.Event
		code     skill.Code
		commit   skill.Event
		verify   skill.Event
		effects  int
		mismatch string // the field that differs from what was asked
		tls      bool
	}{
		{name: "success", prepare: skill.Landed, commit: skill.Clicked, verify: skill.Verified, effects: 1},
		{name: "the form comes late", knobs: site.Knobs{Late: 300 * time.Millisecond}, prepare: skill.Landed, commit: skill.Clicked, verify: skill.Verified, effects: 1},
		{name: "renamed fields are found by candidates and text", knobs: site.Knobs{Renamed: true}, prepare: skill.Landed, commit: skill.Clicked, verify: skill.Verified, effects: 1},
		{name: "a confirm of the commit is accepted", knobs: site.Knobs{Confirm: true}, prepare: skill.Landed, commit: skill.Clicked, verify: skill.Verified, effects: 1},
		{name: "a commit by script", knobs: site.Knobs{Script: true}, prepare: skill.Landed, commit: skill.Clicked, verify: skill.Verified, effects: 1},
		{name: "selector not found before commit", edit: [2]string{`"#cancel"`, `"#nowhere"`}, prepare: skill.Fails, code: skill.CodeNotFound},
		{name: "the commit's target is not found", edit: [2]string{`{"selector":"#confirm","text":"Cancel the order"}`, `{"selector":"#nowhere"}`}, prepare: skill.Fails, code: skill.CodeNotFound},
		{name: "login wall still showing after sign-in steps", knobs: site.Knobs{SignInFails: true}, prepare: skill.Fails, code: skill.CodeSessionExpired},
		{name: "the session ends in the middle", knobs: site.Knobs{Expired: true}, prepare: skill.Fails, code: skill.CodeSessionExpired},
		{name: "a wall that asks for a picture", knobs: site.Knobs{Captcha: true}, prepare: skill.Fails, code: skill.CodeNotFound},
		{name: "a bound field does not hold the value", knobs: site.Knobs{Refund: "1.00"}, prepare: skill.Landed, mismatch: "refund"},
		{name: "a list forgets what was selected", knobs: site.Knobs{ResetReason: true}, prepare: skill.Landed, mismatch: "reason_code"},
		{name: "another page than the one expected", knobs: site.Knobs{ElsewherePath: true}, prepare: skill.Landed, mismatch: "url"},
		{name: "committed, a check failed", knobs: site.Knobs{Refuse: true}, edit: [2]string{`"value":"cancelled"`, `"value":"gone"`}, prepare: skill.Landed, commit: skill.Clicked, verify: skill.ChecksFailed, effects: 1},
		{name: "landing outside the skill's hosts by the commit", knobs: site.Knobs{Away: "/away"}, prepare: skill.Landed, commit: skill.LeftScope, effects: 1},
		{name: "landing outside the skill's hosts by the commit over https", tls: true, knobs: site.Knobs{Away: "/away"}, prepare: skill.Landed, commit: skill.LeftScope, effects: 1},
		{name: "a connection cut at the commit", knobs: site.Knobs{Cut: true}, prepare: skill.Landed, commit: skill.Lost, effects: 1},
		{name: "a cut commit by script", knobs: site.Knobs{Cut: true, Script: true}, prepare: skill.Landed, commit: skill.Lost, effects: 1},
		{name: "success over https", tls: true, prepare: skill.Landed, commit: skill.Clicked, verify: skill.Verified, effects: 1},
		{name: "a connection cut at the commit over https", tls: true, knobs: site.Knobs{Cut: true}, prepare: skill.Landed, commit: skill.Lost, effects: 1},
		{name: "a cut commit by script over https", tls: true, knobs: site.Knobs{Cut: true, Script: true}, prepare: skill.Landed, commit: skill.Lost, effects: 1},
		{name: "no answer to the commit", knobs: site.Knobs{Silent: true}, prepare: skill.Landed, commit: skill.Lost, effects: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, w := quickly(t), newWorld(t)
			if c.tls {
				w = newWorldOver(t, httptest.NewTLSServer)
			}
			var asked atomic.Int32
			if c.knobs.Away != "" {
				elsewhere := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
				elsewhere.Listener.Close()
				var err error
				if elsewhere.Listener, err = net.Listen("tcp", "127.0.0.2:0"); err != nil {
					t.Fatal(err)
				}
				elsewhere.Start()
				t.Cleanup(elsewhere.Close)
				c.knobs.Away = elsewhere.URL + c.knobs.Away
			}
			w.Set(c.knobs)
			definition := cancelOrder
			if c.edit[0] != "" {
				if definition = strings.Replace(cancelOrder, c.edit[0], c.edit[1], 1); definition == cancelOrder {
					t.Fatal("nothing was edited")
				}
			}
			j := w.job(t, definition, values)
			s, r, err := b.Prepare(context.Background(), j)
			if err != nil || r.Event != c.prepare || code(r) != c.code {
				t.Fatal(err, show(t, r))
			}
			if s == nil {
				if n := w.Effects("1001"); n != 0 || c.prepare == skill.Landed {
					t.Fatal(n, show(t, r))
				}
				return
			}
			defer s.Close()
			if m := j.Definition.Compare(w.url+"/orders/1001/cancel", r.Page.URL, j.Values, r.Read); c.mismatch != "" || m != nil {
				if m == nil || m.Field != c.mismatch && (c.mismatch != "url" || m.URL == "") || w.Effects("1001") != 0 {
					t.Fatal(m, show(t, r))
				}
				return
			}
			if c.knobs.Silent {
				s.(*session).step = time.Second
			}
			if r := s.Commit(context.Background()); r.Event != c.commit {
				t.Fatal(show(t, r))
			} else if c.knobs.Confirm && !strings.Contains(r.Steps[0].Note, "confirm") {
				t.Fatal(show(t, r))
			}
			if c.verify != "" {
				if r := s.Verify(context.Background()); r.Event != c.verify {
					t.Fatal(show(t, r))
				}
			}
			if n := w.Effects("1001"); n != c.effects {
				t.Fatalf("%d effects, not %d", n, c.effects)
			}
			if n := asked.Load(); n != 0 {
				t.Errorf("%d requests outside of the skill's hosts", n)
			}
		})
	}
}

func TestReadAndCompensate(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	read := strings.NewReplacer(`"commit_step_id": "commit",`, ``, `,
  {"id":"begin"`, `],"unused":[{"id":"begin"`, `"value":"cancelled"`, `"value":"open"`).Replace(cancelOrder)
	r, err := b.Read(context.Background(), w.job(t, read, `{"order":"1002"}`))
	if err != nil || r.Event != skill.Verified || !strings.Contains(string(r.Result), `"order":1002,"total":1280`) {
		t.Fatal(err, show(t, r))
	}
	s, r, err := b.Prepare(context.Background(), w.job(t, cancelOrder, values))
	if err != nil || s == nil {
		t.Fatal(err, show(t, r))
	}
	s.Commit(context.Background())
	s.Close()
	r, err = b.Compensate(context.Background(), w.job(t, cancelOrder, values))
	if err != nil || r.Event != skill.Compensated || w.Restores("1001") != 1 {
		t.Fatal(err, show(t, r))
	}
}

// The checks say what became of a commit. What the page does once they are made, while results and picture are taken, changes
// that no more.
func TestTheChecksSayWhatBecameOfACommit(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	for value, want := range map[string]skill.Event{"done": skill.Verified, "gone": skill.ChecksFailed} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			w := serves(t, `<p id=said>done</p><button id=act onclick="Object.defineProperty(document.getElementById('said'), 'innerText', { get() { location.href = 'http://127.0.0.2:9/'; return 'done' } })">A</button>`)
			s, r, err := b.Prepare(t.Context(), w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"steps":[{"id":"act","kind":"click","target":{"selector":"#act"}}],"commit_step_id":"act",
				"assertions":[{"kind":"text_present","value":"`+value+`"}],"result_fields":[{"name":"said","selector":"#said"}]}`, `{}`))
			if err != nil || s == nil {
				t.Fatal(err, show(t, r))
			}
			defer s.Close()
			if r := s.Commit(t.Context()); r.Event != skill.Clicked {
				t.Fatal(show(t, r))
			}
			if want == skill.ChecksFailed {
				s.(*session).step = time.Second // it waits for the check in vain
			}
			if r := s.Verify(t.Context()); r.Event != want || r.Fault != nil || len(r.Checks) != 1 || r.Result == nil {
				t.Error(show(t, r), string(r.Result))
			}
		})
	}
}

// A site that asks for the password again is seen whatever found the field: a selector of it, its label, or the label's text. A page
// behind the sign-in may have that text.
func TestTheWallIsSeenByAnyTarget(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	for name, target := range map[string]string{"a selector": `{"selector":"#p"}`, "its label": `{"selector":"label"}`, "a text": `{"text":"Password"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serves(t, `<form><label><span>Password</span> <input id=p type=password name=p></label><button id=go>Go</button></form>`)
			j := w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"credentials","secret_refs":["password"]},"steps":[
				{"id":"p","phase":"auth","kind":"type","target":`+target+`,"value":null,"secret":true,"secret_ref":"password"},
				{"id":"go","phase":"auth","kind":"click","target":{"selector":"#go"}}]}`, `{}`)
			s, err := b.open(t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			if err := s.goTo(t.Context(), w.url); err != nil {
				t.Fatal(err)
			}
			if err := s.run(t.Context(), &skill.Report{}, j.Definition.SignInSteps()); err != nil {
				t.Fatal(err)
			}
			if walled, err := s.walled(t.Context()); err != nil || !walled {
				t.Errorf("the form that comes again is a wall: %v, %v", walled, err)
			}
			if err := s.page.SetContent(`<label><input type=checkbox> Password of others</label><input type=submit value=Password>`); err != nil {
				t.Fatal(err)
			}
			if walled, err := s.walled(t.Context()); err != nil || walled {
				t.Errorf("a page behind the sign-in is a wall: %v, %v", walled, err)
			}
		})
	}
}

// A page that leaves before the click has got none, and the report says so.
func TestAPageThatLeavesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	s, r, err := b.Prepare(t.Context(), w.job(t, cancelOrder, values))
	if err != nil || s == nil {
		t.Fatal(err, show(t, r))
	}
	defer s.Close()
	s.(*session).visit("https://elsewhere.example/login")
	if r := s.Commit(t.Context()); r.Event != skill.LeftScope || !strings.HasSuffix(r.Fault.Message, "Nothing was clicked.") || w.Effects("1001") != 0 {
		t.Error(show(t, r), w.Effects("1001"))
	}
}

// A store of files that does not answer in time costs pictures, and is asked once by a session.
func TestAStoreThatDoesNotAnswerFailsNothing(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), serves(t, `<p id=a>A</p>`)
	j := w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"steps":[{"id":"a","kind":"wait","target":{"selector":"#a"},"value":""},{"id":"b","kind":"wait","target":{"selector":"#a"},"value":""}]}`, `{}`)
	asked := 0
	j.Keep = func(ctx context.Context, _ string, _ []byte) (string, error) {
		asked++
		if by, ok := ctx.Deadline(); !ok || time.Until(by) > shotTimeout {
			t.Errorf("it may take until %v", by)
		}
		return "", context.DeadlineExceeded
	}
	r, err := b.Read(t.Context(), j)
	if err != nil || r.Event != skill.Verified || r.Shots != 0 || asked != 1 || !strings.Contains(show(t, r), "the screenshot could not be stored") {
		t.Error(err, show(t, r), asked)
	}
}

// page is a skill that opens a page of the laboratory and, with act, clicks there.
func page(path string, act bool) string {
	steps := `{"id":"open","kind":"navigate","value":"URL` + path + `"}`
	if act {
		steps += `,{"id":"act","kind":"click","target":{"selector":"#act"}}`
	}
	return `{"start_url":"URL/login","target_hosts":["HOST"],"auth":{"kind":"none"},"steps":[` + steps + `],"result_fields":[{"name":"said","selector":"#said"}]}`
}

// namer resolves each name to one address, and keeps those that were asked for.
type namer struct {
	mu    sync.Mutex
	asked map[string]bool
}

func (n *namer) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[host] = true
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// names returns those of a site that were asked for, without its name.
func (n *namer) names(of string) (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.asked {
		if way, ok := strings.CutSuffix(name, of); ok {
			all = append(all, way)
		}
	}
	slices.Sort(all)
	return all
}

// waysOut are those of the laboratory's page that asks for a site in many ways, each by a name of its own. It opens a window too,
// which is closed, mostly before it asks.
var waysOut = []string{"audio", "beacon", "embed", "eventsource", "fetch", "font", "form", "frame", "image", "import", "object", "ping", "poster", "prefetch", "redirected", "script", "socket", "style", "track", "video", "worker", "xhr"}

// TestNoWayToPrivateAddresses: every way by which a page could reach an address that the guard
// refuses. Each reaches one that it allows. No way resolves a name in the browser: the names of these sites are known to the guard alone.
func TestNoWayToPrivateAddresses(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	reached := map[string]bool{} // by the name that was asked for
	serve := func() (addr string) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			host, _, _ := net.SplitHostPort(r.Host)
			reached[host] = true
			mu.Unlock()
			w.Header().Set("Access-Control-Allow-Origin", "*")
			fmt.Fprint(w, "SECRET METADATA")
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	inner, open := serve(), serve()
	known := &namer{asked: map[string]bool{}}
	cfg := config(t)
	cfg.Guard = egress.New(egress.Config{Allow: loopback, Own: []netip.AddrPort{netip.MustParseAddrPort(inner)}, Resolver: known})
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	hit := func(name string) bool {
		mu.Lock()
		defer mu.Unlock()
		return reached[name]
	}
	for _, c := range []struct {
		page string
		act  bool
		want skill.Event
	}{
		{"redirect", false, skill.LeftScope}, {"form", true, skill.LeftScope}, {"link", true, skill.LeftScope}, {"gone", false, skill.LeftScope},
	} {
		r, err := b.Read(context.Background(), w.job(t, page("/lab/"+c.page+"?to=http://"+inner, c.act), `{}`))
		if err != nil || r.Event != c.want && !(c.page == "gone" && r.Event == skill.Verified) {
			t.Fatal(c.page, err, show(t, r))
		}
		if hit("127.0.0.1") || strings.Contains(show(t, r), "METADATA") {
			t.Fatal(c.page, "reached a private address")
		}
	}
	for at, allowed := range map[string]bool{open: true, inner: false} {
		_, port, _ := net.SplitHostPort(at)
		suffix := fmt.Sprintf(".%v.test", allowed)
		s, err := b.open(t.Context(), w.job(t, page("/lab/plain", false), `{}`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if err := s.goTo(t.Context(), w.url+"/lab/ways?to="+url.QueryEscape(suffix+":"+port)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the guard was asked about %q", known.names(suffix))
			}
		})
		testkit.Eventually(t, "the guard is asked about each way", func() bool {
			asked := known.names(suffix)
			return !slices.ContainsFunc(waysOut, func(way string) bool { return !slices.Contains(asked, way) })
		})
		for _, way := range waysOut {
			if allowed {
				testkit.Eventually(t, way+" reaches what is allowed", func() bool { return hit(way + suffix) })
			}
		}
		if err := s.goTo(t.Context(), w.url+"/lab/plain"); err != nil { // behind all that the page has sent
			t.Fatal(err)
		}
		s.Close()
		for _, way := range append(waysOut, "window") {
			if !allowed && hit(way+suffix) {
				t.Error(way, "reached a private address")
			}
		}
	}
}

// A click that opens hundreds of windows, which no blocker of popups stops, ends its own job. The browser and the pages of others
// stay, and no window is left open.
func TestTheWindowsOfAClickAreBounded(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.StepTimeout, cfg.JobTimeout = 30*time.Second, 2*time.Minute // windows take a busy machine a while
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	other, err := b.open(t.Context(), w.job(t, page("/lab/plain", false), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if err := other.goTo(t.Context(), w.url+"/lab/plain"); err != nil {
		t.Fatal(err)
	}
	e := other.e
	r, err := b.Read(t.Context(), w.job(t, page("/lab/clicks", true), `{}`))
	if err != nil || r.Event != skill.Lost || r.Fault.Message != "The page opened too many popups." || !strings.Contains(show(t, r), "a popup was closed") {
		t.Error(err, show(t, r))
	}
	if title, err := other.title(t.Context()); err != nil || title == "" || other.trouble() != nil || b.engine != e {
		t.Errorf("the page of another job: %q %v %v", title, err, other.trouble())
	}
	testkit.Eventually(t, "no window is left", func() bool {
		contexts := e.browser.Contexts()
		return len(contexts) == 1 && len(contexts[0].Pages()) == 1
	})
}

// TestHostilePages: what a page does costs its own job at most.
func TestHostilePages(t *testing.T) {
	for _, c := range []struct {
		page string
		act  bool
		want []skill.Event
		note string
	}{
		{"storm", false, []skill.Event{skill.Verified, skill.Lost, skill.Fails}, ""},
		{"popup", true, []skill.Event{skill.Verified}, "popup"},
		{"download", true, []skill.Event{skill.Verified}, "download"},
		{"chooser", true, []skill.Event{skill.Verified}, "file chooser"},
		{"alert", false, []skill.Event{skill.Verified}, "dialog"},
		{"worker", false, []skill.Event{skill.Verified}, ""},
		{"locate", false, []skill.Event{skill.Verified}, ""},
		{"forever", false, []skill.Event{skill.Verified, skill.Fails}, ""},
		{"loop", false, []skill.Event{skill.Fails}, ""},
		{"slow", false, []skill.Event{skill.Fails}, ""},
		{"endless", false, []skill.Event{skill.Fails, skill.Verified}, ""},
	} {
		t.Run(c.page, func(t *testing.T) {
			t.Parallel()
			b, w := quickly(t), newWorld(t)
			r, err := b.Read(context.Background(), w.job(t, page("/lab/"+c.page, c.act), `{}`))
			if err != nil {
				t.Fatal(err)
			}
			ok := false
			for _, e := range c.want {
				ok = ok || r.Event == e
			}
			if !ok || !strings.Contains(show(t, r), c.note) || strings.Contains(string(r.Result), "yes") || w.Hits("GET /lab/worker.js") > 0 || strings.Contains(string(r.Result), "located") {
				t.Fatal(show(t, r), string(r.Result))
			}
		})
	}
}

func TestSecretsAreInNoReport(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	definition := strings.Replace(cancelOrder, `"URL/orders/{{order}}"}`, `"URL/lab/secret"},{"id":"t","kind":"navigate","value":"URL/lab/title"}`, 1)
	definition = strings.NewReplacer(`"allow_in_url":true`, `"allow_in_url":false`).Replace(definition)
	i, j := strings.Index(definition, `,
  {"id":"begin"`), strings.Index(definition, `"assertions"`)
	definition = definition[:i] + `],` + definition[j:]
	definition = strings.Replace(definition, `"selector":"#number","type":"integer"`, `"selector":"#said"`, 1)
	r, err := b.Read(context.Background(), w.job(t, definition, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	all := show(t, r) + string(r.Result)
	if strings.Contains(all, site.Password) || strings.Contains(all, site.User) || !strings.Contains(all, mark) {
		t.Fatal(all)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, picture := range w.shots {
		if name == "user" || name == "pass" {
			t.Fatal("a picture was taken with a password field on the page: " + name)
		}
		if !bytes.HasPrefix(picture, []byte{0xff, 0xd8}) {
			t.Fatal(name)
		}
	}
	if fmt.Sprint(w.opened) != "[user password]" {
		t.Fatal(w.opened)
	}
}

// A value that a page shows with a secret in it is committed as it was approved, and shown without the secret. A number of which a
// secret is a part is null: what is left of it would be another number.
func TestAValueThatHoldsASecret(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	const args = `{"order":"1001","reason_code":"stock","note":"call ` + site.User + ` first"}`
	j := w.job(t, cancelOrder, args)
	s, r, err := b.Prepare(t.Context(), j)
	if err != nil || s == nil {
		t.Fatal(err, show(t, r))
	}
	defer s.Close()
	if m := j.Definition.Compare(w.url+"/orders/1001/cancel", r.Page.URL, j.Values, r.Read); m != nil {
		t.Errorf("%+v", m)
	}
	if r.Page.Values["note"] != "call "+mark+" first" || strings.Contains(show(t, r), site.User) {
		t.Error(show(t, r))
	}
	d := w.job(t, cancelOrder, args).Definition
	d.ResultFields = []skill.Field{}
	replay, err := b.replay(t.Context(), d, json.RawMessage(args), map[string]string{"user": site.User, "password": site.Password}, &skill.Job{Tenant: j.Tenant})
	if err != nil || replay.Status != skill.ReplayLanded || replay.Values["note"] != "call "+mark+" first" {
		t.Errorf("%v %+v", err, replay)
	}

	other := serves(t, `<input id=code><p id=total>1,280.00</p><p id=year>2026</p><p id=text>2026, 1280</p>`)
	of := other.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"credentials","secret_refs":["user"]},"steps":[
		{"id":"code","phase":"auth","kind":"type","target":{"selector":"#code"},"value":null,"secret":true,"secret_ref":"user"}],"result_fields":[
		{"name":"total","selector":"#total","type":"number"},{"name":"year","selector":"#year","type":"integer"},{"name":"text","selector":"#text","type":"string"}]}`, `{}`)
	of.Open = func(string) (string, error) { return "280", nil }
	if r, err = b.Read(t.Context(), of); err != nil || string(r.Result) != `{"text":"2026, 1`+mark+`","total":null,"year":2026}` {
		t.Errorf("%v %s %s", err, r.Result, show(t, r))
	}
}

// serves returns the world of a site with one page.
func serves(t *testing.T, html string) *world {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html>"+html)
	}))
	t.Cleanup(server.Close)
	return &world{url: server.URL, host: strings.TrimPrefix(server.URL, "http://"), shots: map[string][]byte{}}
}

// What is read back is what was filled: each of the fields of a parameter, and of elements that one selector finds, or of
// several selectors, those that are visible. Results are read in the same way.
func TestTheFilledFieldsAreReadBack(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	const two = `{"id":"a","kind":"type","target":{"selector":"#a"},"param":"x"},{"id":"b","kind":"type","target":{"selector":"#b"},"param":"x"}`
	for name, c := range map[string]struct{ page, steps, read, result string }{
		"two fields of a parameter":                 {`<input id=a><input id=b>`, two, "7", ""},
		"the first of two is changed by the second": {`<input id=a><input id=b oninput="document.getElementById('a').value = '8'">`, two, "8", ""},
		"the second of two is changed":              {`<input id=a><input id=b oninput="this.value = '9'">`, two, "9", ""},
		"the first of two was changed and is gone":  {`<input id=a oninput="this.value = '8'"><input id=b oninput="document.getElementById('a').remove()">`, two, "8", ""},
		"a field of the sign-in that is changed later": {`<input id=a><input id=b oninput="document.getElementById('a').value = '8'">`,
			`{"id":"a","phase":"auth","kind":"type","target":{"selector":"#a"},"param":"x"},{"id":"b","kind":"type","target":{"selector":"#b"},"value":"y"}`, "8", ""},
		"a field of the sign-in that is gone": {`<input id=a><input id=b oninput="document.getElementById('a').remove()">`,
			`{"id":"a","phase":"auth","kind":"type","target":{"selector":"#a"},"param":"x"},{"id":"b","kind":"type","target":{"selector":"#b"},"value":"y"}`, "7", ""},
		"a field by its label": {`<label for=a>Amount to pay</label><input id=a>`, `{"id":"a","kind":"type","target":{"text":"Amount to pay"},"param":"x"}`, "7", ""},
		"a list by its label":  {`<label for=a>Days to wait</label><select id=a><option>6<option>7</select>`, `{"id":"a","kind":"select","target":{"text":"Days to wait"},"param":"x"}`, "7", ""},
		"a hidden field before the one that is filled": {`<p style="display: none"><input class=q><b class=said>no</b></p><p><input class=q><b class=said>yes</b></p>`,
			`{"id":"a","kind":"type","target":{"selector":".q"},"param":"x"}`, "7", `{"said":"yes"}`},
		"a hidden field of the first selector": {`<p style="visibility: hidden"><input class=old><b class=said>no</b></p><p><input class=new><b class=now>yes</b></p>`,
			`{"id":"a","kind":"type","target":{"selector":".old","candidates":[".new"]},"param":"x"}`, "7", `{"said":"yes"}`},
		"a field that is hidden by another": {`<input id=a><input id=b oninput="document.getElementById('a').style.display = 'none'"><b class=said style="display: none">hidden</b>`,
			`{"id":"a","kind":"type","target":{"selector":"#a"},"param":"x"},{"id":"b","kind":"type","target":{"selector":"#b"},"value":"y"}`, "7", `{"said":"hidden"}`},
		"a box behind its label": {`<label><input class=tick type=checkbox style="display: none">Yes</label><input class=tick type=checkbox>`,
			`{"id":"a","kind":"check","target":{"selector":".tick"},"param":"yes"}`, "true", ""},
		"a box that is seen through": {`<label><input class=tick type=checkbox style="opacity: 0">Yes</label><input class=tick type=checkbox>`,
			`{"id":"a","kind":"check","target":{"selector":".tick"},"param":"yes"}`, "true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serves(t, `<title>Form</title>`+c.page+`<button id=go>Go</button>`)
			param, args := `"x","type":"string"`, `{"x":"7"}`
			if strings.Contains(c.steps, `"yes"`) {
				param, args = `"yes","type":"boolean"`, `{"yes":true}`
			}
			j := w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"none"},"params":[{"name":`+param+`}],"commit_step_id":"go",
				"steps":[`+c.steps+`,{"id":"go","kind":"click","target":{"selector":"#go"}}],"result_fields":[{"name":"said","selector":".said","candidates":[".now"]}]}`, args)
			s, r, err := b.Prepare(t.Context(), j)
			if err != nil || s == nil {
				t.Fatal(err, show(t, r))
			}
			defer s.Close()
			name := j.Values.Names()[0]
			want, _ := j.Values.Text(name)
			m := j.Definition.Compare("", r.Page.URL, j.Values, r.Read)
			if r.Read[name] != c.read || r.Page.Values[name] != c.read || (m == nil) != (c.read == want) {
				t.Errorf("%+v %+v", r.Read, m)
			}
			if c.result == "" {
				return
			}
			if r := s.Verify(t.Context()); r.Event != skill.Verified || string(r.Result) != c.result {
				t.Errorf("%s %s", r.Result, show(t, r))
			}
		})
	}
}

// In the pictures of a run, the field that a secret was typed into is painted over, the text that shows it, and frames,
// which may.
func TestSecretsArePaintedOver(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	w := serves(t, `<style>* { position: absolute; left: 0; width: 400px; margin: 0; border: 0 }</style>
<input id=code style="top: 0; height: 40px" oninput="document.getElementById('echo').textContent = 'It is ' + this.value">
<p id=echo style="top: 100px; height: 40px"></p><iframe style="top: 200px; height: 40px" srcdoc=""></iframe><p style="top: 300px; height: 40px">Nothing</p>`)
	r, err := b.Read(context.Background(), w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"credentials","secret_refs":["user"]},"steps":[
		{"id":"code","phase":"auth","kind":"type","target":{"selector":"#code"},"value":null,"secret":true,"secret_ref":"user"},
		{"id":"look","kind":"wait","target":{"selector":"#echo"},"value":""}]}`, `{}`))
	if err != nil || r.Event != skill.Verified || len(w.shots) != 3 {
		t.Fatal(err, show(t, r), len(w.shots))
	}
	for name, picture := range w.shots {
		img, err := jpeg.Decode(bytes.NewReader(picture))
		if err != nil {
			t.Fatal(name, err)
		}
		for what, y := range map[string]int{"the field": 20, "the text": 120, "the frame": 220, "": 320} {
			r, g, b, _ := img.At(390, y).RGBA()
			if dark := r>>8 < 0x50 && g>>8 < 0x50 && b>>8 < 0x50; dark != (what != "") {
				t.Errorf("%s: %s is painted over: %v", name, what, dark)
			}
		}
	}
}

// TestPicturesShowThePageAtRest: what moves is shown as it is when it has come to its end; a page at rest as it is.
func TestPicturesShowThePageAtRest(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	w := serves(t, `<style>@keyframes darken { from { background: #fff } to { background: #000 } }
* { margin: 0 } div { width: 1024px; height: 100px } .moves { animation: darken 3600s forwards }</style>
<div id=box style="background: #000"></div><div id=other></div>
<button id=start onclick="document.getElementById('other').className = 'moves'">Start</button>`)
	r, err := b.Read(context.Background(), w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"steps":[
		{"id":"rests","kind":"wait","target":{"selector":"#box"},"value":""},
		{"id":"moves","kind":"click","target":{"selector":"#start"}}]}`, `{}`))
	if err != nil || r.Event != skill.Verified || len(w.shots) != 3 {
		t.Fatal(err, show(t, r), len(w.shots))
	}
	for name, ended := range map[string]bool{"rests": false, "moves": true} {
		img, err := jpeg.Decode(bytes.NewReader(w.shots[name]))
		if err != nil {
			t.Fatal(name, err)
		}
		if size := img.Bounds().Size(); size.X != viewWidth || size.Y != viewHeight {
			t.Errorf("%s: the picture has %v", name, size)
		}
		for y, want := range map[int]bool{50: true, 150: ended, 400: false} {
			r, _, _, _ := img.At(500, y).RGBA()
			if dark := r>>8 < 0x50; dark != want {
				t.Errorf("%s: at %d it is dark: %v", name, y, dark)
			}
		}
	}
}

// A page hears no secret that was typed into another one, whatever functions it changes, and what it shows of one is painted
// over whatever it says of itself.
func TestAPageIsLookedAtUnheard(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	const echo = `<p style="top: 100px">It is clerk@shop.example</p>`
	const hook = `<script>
		const had = String.prototype.includes;
		for (const [of, name] of [[String.prototype, 'toLowerCase'], [String.prototype, 'includes'], [String.prototype, 'slice'], [Array.prototype, 'some'], [JSON, 'parse'], [window, 'decodeURIComponent']]) {
			const was = of[name];
			of[name] = function (...args) {
				for (const v of [this, ...args]) if (Reflect.apply(had, String(v), ['clerk@'])) document.getElementById('heard').textContent = name + ' ' + v;
				return name === 'includes' ? false : Reflect.apply(was, this, args);
			};
		}
	</script>`
	for name, html := range map[string]string{
		"functions that it changed":            hook + echo,
		"an element that hides a property":     `<img name=body>` + echo,
		"a text in a tree of an element's own": `<div id=host></div><script>document.getElementById('host').attachShadow({ mode: 'open' }).innerHTML = '<p style="position: absolute; width: 400px; height: 40px; margin: 0; top: 100px">clerk@shop.example</p>'</script>`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				fmt.Fprint(w, `<!doctype html><style>* { position: absolute; left: 0; width: 400px; height: 40px; margin: 0; border: 0 }</style>`)
				if r.URL.Path == "/next" {
					fmt.Fprint(w, `<p id=heard style="top: 300px">nothing</p>`+html)
					return
				}
				fmt.Fprint(w, `<input id=code>`)
			}))
			t.Cleanup(server.Close)
			w := &world{url: server.URL, host: strings.TrimPrefix(server.URL, "http://"), shots: map[string][]byte{}}
			r, err := b.Read(t.Context(), w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"credentials","secret_refs":["user"]},"steps":[
				{"id":"code","phase":"auth","kind":"type","target":{"selector":"#code"},"value":null,"secret":true,"secret_ref":"user"},
				{"id":"next","kind":"navigate","value":"URL/next"},{"id":"look","kind":"wait","target":{"selector":"#heard"},"value":""}],
				"result_fields":[{"name":"heard","selector":"#heard"}]}`, `{}`))
			if err != nil || r.Event != skill.Verified || string(r.Result) != `{"heard":"nothing"}` || len(w.shots) != 4 {
				t.Fatal(err, show(t, r), string(r.Result), len(w.shots))
			}
			for _, shot := range []string{"next", "look", "result"} {
				img, err := jpeg.Decode(bytes.NewReader(w.shots[shot]))
				if err != nil {
					t.Fatal(shot, err)
				}
				for y, want := range map[int]bool{120: true, 320: false} {
					r, g, b, _ := img.At(390, y).RGBA()
					if dark := r>>8 < 0x50 && g>>8 < 0x50 && b>>8 < 0x50; dark != want {
						t.Errorf("%s: at %d it is painted over: %v", shot, y, dark)
					}
				}
			}
		})
	}
}

// What shows a secret and is no text is painted over: an option of a list, what stands in an empty field or for a picture, and the
// field whose label a secret was typed by.
func TestWhatIsNoTextIsPaintedOver(t *testing.T) {
	t.Parallel()
	b := quickly(t)
	at := func(y int) string {
		return fmt.Sprintf(`style="position: absolute; left: 0; top: %dpx; width: 400px; height: 40px; box-sizing: border-box"`, y)
	}
	for name, c := range map[string]struct {
		target, shot, html string
		dark               map[int]bool // by y
	}{
		"what shows a secret": {`{"selector":"#code"}`, "next", `<input id=code style="width: 90px"><select ` + at(100) + `><option>12345678</option></select><select ` + at(200) + `><option label="12345678"></option></select>
			<textarea ` + at(300) + ` placeholder="Search 12345678"></textarea><img ` + at(400) + ` src="data:," alt="12345678"><p ` + at(500) + `>Another</p>`,
			map[int]bool{120: true, 220: true, 320: true, 420: true, 520: false}},
		"the field of a label": {`{"text":"Code"}`, "code", `<label for=code>Code</label><input id=code ` + at(100) + ` oninput="this.value = this.value.replace(/(....)/g, '$1 ').trim()"><select ` + at(200) + `><option>Another</option></select>`,
			map[int]bool{120: true, 220: false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serves(t, c.html)
			j := w.job(t, `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"credentials","secret_refs":["code"]},"steps":[
				{"id":"code","phase":"auth","kind":"type","target":`+c.target+`,"value":null,"secret":true,"secret_ref":"code"},
				{"id":"next","kind":"navigate","value":"URL/next"}]}`, `{}`)
			j.Open = func(string) (string, error) { return "12345678", nil }
			r, err := b.Read(t.Context(), j)
			if err != nil || r.Event != skill.Verified || w.shots[c.shot] == nil {
				t.Fatal(err, show(t, r), len(w.shots))
			}
			img, err := jpeg.Decode(bytes.NewReader(w.shots[c.shot]))
			if err != nil {
				t.Fatal(err)
			}
			for y, want := range c.dark {
				r, g, b, _ := img.At(380, y).RGBA()
				if dark := r>>8 < 0x50 && g>>8 < 0x50 && b>>8 < 0x50; dark != want {
					t.Errorf("at %d it is painted over: %v", y, dark)
				}
			}
		})
	}
}

// No picture is taken while a frame has a password field, also one of another site, into which the page cannot look.
func TestNoPictureOfAPasswordInAFrame(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	for kind, want := range map[string]bool{"password": false, "text": true} {
		other := listen(httptest.NewUnstartedServer(onOtherAddress{http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<input type="+kind+">")
		})}))
		other.Start()
		t.Cleanup(other.Close)
		s, err := b.open(context.Background(), w.job(t, page("/lab/plain", false), `{}`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if err := s.goTo(t.Context(), w.url+"/lab/frame?to="+other.URL); err != nil {
			t.Fatal(err)
		}
		if err := s.page.WaitForLoadState(); err != nil { // with its frames
			t.Fatal(err)
		}
		if got := s.shot(t.Context(), kind) != ""; got != want {
			t.Errorf("a frame with a field of type %s: a picture was taken: %v", kind, got)
		}
	}
}

// chromiums returns the processes of Chromium of a type; "" is the one that has made the others.
func chromiums(family []int, kind string) (pids []int) {
	for _, pid := range family {
		// Those of a type write their line anew, with spaces.
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := strings.FieldsFunc(string(line), func(r rune) bool { return r == 0 || r == ' ' })
		if len(words) == 0 || !strings.HasPrefix(filepath.Base(words[0]), "chromium") {
			continue
		}
		at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "--type=") })
		if kind == "" && at < 0 || kind != "" && at >= 0 && words[at] == "--type="+kind {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestDeathOfTheBrowser: in each phase the job is lost, nothing is left running, and the next job has a browser. Once
// all of it is killed, and once Chromium's main process alone, as the kernel does that runs out of memory.
func TestDeathOfTheBrowser(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*testing.T, *engine){
		"all": func(_ *testing.T, e *engine) { e.home.kill() },
		"the main process": func(t *testing.T, e *engine) {
			if pids := chromiums(familyOf(e.home.path), ""); len(pids) != 1 || syscall.Kill(pids[0], syscall.SIGKILL) != nil {
				t.Error("there is no one Chromium to kill: ", pids)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			cfg.StepTimeout, cfg.JobTimeout = 20*time.Second, 2*time.Minute // nothing waits for them: each death is noticed
			b, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close(context.Background()) })
			deaths(t, b, name != "all", func() {
				b.mu.Lock()
				e := b.engine
				b.mu.Unlock()
				kill(t, e)
				<-e.gone
				if left := familyOf(e.home.path); len(left) > 0 {
					t.Error("left running:", left)
				}
			})
		})
	}
}

// deaths lets a browser die in each phase of a job up to the commit, and in those that follow and those without one.
func deaths(t *testing.T, b *Browser, more bool, die func()) {
	w := newWorld(t)
	renew := func(k site.Knobs) {
		w.Set(k)
		w.Add(site.Order{ID: "1001", Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
	}
	leave := func() {}
	t.Cleanup(func() { leave() })
	prepare := func(definition string) Session {
		t.Helper()
		leave() // the places of the browser are few
		s, r, err := b.Prepare(context.Background(), w.job(t, definition, values))
		if err != nil || s == nil {
			t.Fatal(err, show(t, r))
		}
		leave = s.Close
		return s
	}
	effects := 0
	lost := func(phase string, r *skill.Report, err error) {
		t.Helper()
		if err != nil || r.Event != skill.Lost || w.Effects("1001") != effects {
			t.Fatalf("%s: %v %s, %d effects, want %d", phase, err, show(t, r), w.Effects("1001"), effects)
		}
	}
	// during performs a part that the site holds up, and lets the browser die meanwhile.
	during := func(phase string, reached func() bool, part func() (*skill.Report, error)) {
		t.Helper()
		type report struct {
			r   *skill.Report
			err error
		}
		done := make(chan report, 1)
		go func() { r, err := part(); done <- report{r, err} }()
		testkit.Eventually(t, phase, func() bool { return reached() || len(done) > 0 })
		die()
		got := <-done
		lost(phase, got.r, got.err)
	}

	s := prepare(cancelOrder)
	die()
	lost("before the commit", s.Commit(context.Background()), nil)

	s = prepare(cancelOrder)
	if r := s.Commit(context.Background()); r.Event != skill.Clicked {
		t.Fatal(show(t, r))
	}
	effects++
	die()
	lost("behind the commit", s.Verify(context.Background()), nil)

	renew(site.Knobs{})
	j := w.job(t, cancelOrder, values)
	open := j.Open
	j.Open = func(ref string) (string, error) { die(); return open(ref) } // its first secret
	s, r, err := b.Prepare(context.Background(), j)
	if lost("in a prepare", r, err); s != nil {
		t.Fatal("it is prepared")
	}

	renew(site.Knobs{Silent: true})
	s = prepare(cancelOrder)
	effects++
	during("in a commit", func() bool { return w.Effects("1001") == effects }, func() (*skill.Report, error) { return s.Commit(context.Background()), nil })

	if !more {
		return
	}

	// A later step asks for a page that is not answered, so that the checks do not begin.
	renew(site.Knobs{Hangs: "GET /orders/1002"})
	s = prepare(strings.Replace(cancelOrder, `"text":"Cancel the order"}}]`, `"text":"Cancel the order"}},{"id":"later","kind":"navigate","value":"URL/orders/1002"}]`, 1))
	if r := s.Commit(context.Background()); r.Event != skill.Clicked {
		t.Fatal(show(t, r))
	}
	effects++
	asked := w.Hits("GET /orders/1002")
	during("in a verify", func() bool { return w.Hits("GET /orders/1002") > asked }, func() (*skill.Report, error) { return s.Verify(context.Background()), nil })

	w.Set(site.Knobs{Hangs: "POST /orders/1001/restore"})
	during("in a compensation", func() bool { return w.Hits("POST /orders/1001/restore") > 0 }, func() (*skill.Report, error) {
		return b.Compensate(context.Background(), w.job(t, cancelOrder, values))
	})
	if w.Restores("1001") != 0 || w.Hits("POST /orders/1001/restore") != 1 {
		t.Errorf("%d requests to take it back", w.Hits("POST /orders/1001/restore"))
	}

	w.Set(site.Knobs{Hangs: "GET /orders/1003"})
	during("in a read", func() bool { return w.Hits("GET /orders/1003") > 0 }, func() (*skill.Report, error) {
		return b.Read(context.Background(), w.job(t, page("/orders/1003", false), `{}`))
	})

	renew(site.Knobs{})
	s = prepare(cancelOrder)
	if r := s.Commit(context.Background()); r.Event != skill.Clicked || w.Effects("1001") != effects+1 {
		t.Errorf("the next job: %s", show(t, r))
	}
}

// A Chromium that goes on but makes no page any more, because the process that makes those for pages was killed, is replaced.
func TestABrowserThatMakesNoPagesIsReplaced(t *testing.T) {
	t.Parallel()
	b, err := New(config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w := newWorld(t)
	read := func() *engine {
		t.Helper()
		if r, err := b.Read(t.Context(), w.job(t, page("/lab/plain", false), `{}`)); err != nil || r.Event != skill.Verified {
			t.Fatal(err, show(t, r))
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.engine
	}
	e := read()
	zygotes := chromiums(familyOf(e.home.path), "zygote")
	for _, pid := range zygotes {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if again := read(); len(zygotes) == 0 || again == e {
		t.Error("the browser was not replaced, or lost nothing: ", zygotes)
	}
	<-e.gone
}

func TestPlacesAreFair(t *testing.T) {
	t.Parallel()
	p := newPlaces(2, 1, 4)
	a, b, c := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	ctx := context.Background()
	first, err := p.take(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 8)
	wait := func(name string, t id.TenantID, queued int) {
		go func() {
			release, err := p.take(ctx, t)
			if err == nil {
				order <- name
				defer release()
			}
		}()
		for {
			p.mu.Lock()
			n := p.queued
			p.mu.Unlock()
			if n == queued {
				return
			}
		}
	}
	second, err := p.take(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	wait("a1", a, 1)
	wait("a2", a, 2)
	if _, err := p.take(ctx, a); err == nil { // half of the queue is the tenant's
		t.Fatal("a tenant filled the queue")
	}
	wait("c1", c, 3)
	first()
	got := []string{<-order, <-order, <-order}
	second()
	if fmt.Sprint(got) != "[a1 c1 a2]" && fmt.Sprint(got) != "[c1 a1 a2]" {
		t.Fatal(got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queued != 0 || len(p.waiting) != 0 || len(p.turns) != 0 {
		t.Fatal(p.queued, p.waiting, p.turns)
	}
}
