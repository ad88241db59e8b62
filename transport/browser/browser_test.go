package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
	"agentsvc/transport/browser/site"
	"agentsvc/transport/egress"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		fmt.Fprintln(os.Stderr, Child(os.Args[2:]))
		os.Exit(1)
	}
	code := m.Run()
	shared.close()
	quick.close()
	os.Exit(code)
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func config(t testing.TB) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Guard: egress.New(egress.Config{Allow: loopback}), Command: []string{self, Command}, Name: fmt.Sprintf("test-%d", os.Getpid()),
		StepTimeout: 5 * time.Second, JobTimeout: 30 * time.Second, Log: zerolog.Nop()}
}

// shared is one browser for the tests that do not end it.
var shared oneBrowser

type oneBrowser struct {
	once sync.Once
	b    *Browser
	err  error
}

func (o *oneBrowser) get(t testing.TB) *Browser {
	t.Helper()
	o.once.Do(func() { o.b, o.err = New(config(t)) })
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.b
}

func (o *oneBrowser) close() {
	if o.b != nil {
		_ = o.b.Close(context.Background())
	}
}

// world is a site and what a job on it kept.
type world struct {
	*site.Site
	url, host string
	mu        sync.Mutex
	shots     map[string][]byte
	opened    []string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOver(t, httptest.NewServer)
}

func newWorldOver(t testing.TB, serve func(http.Handler) *httptest.Server) *world {
	t.Helper()
	w := &world{Site: site.New(site.Options{Lab: true}), shots: map[string][]byte{}}
	server := serve(w.Site)
	t.Cleanup(server.Close)
	w.url = server.URL
	_, w.host, _ = strings.Cut(server.URL, "://")
	return w
}

const cancelOrder = `{
 "start_url": "URL/login", "target_hosts": ["HOST"],
 "auth": {"kind": "credentials", "secret_refs": ["user", "password"]},
 "params": [{"name":"order","type":"string","required":true,"allow_in_url":true},{"name":"reason_code","type":"enum","enum":["The customer asked","stock"],"required":true},{"name":"note","type":"string"},{"name":"notify","type":"boolean"},{"name":"refund","type":"number"}],
 "steps": [
  {"id":"user","phase":"auth","kind":"type","target":{"selector":"#user"},"value":null,"secret":true,"secret_ref":"user"},
  {"id":"pass","phase":"auth","kind":"type","target":{"selector":"#password"},"value":null,"secret":true,"secret_ref":"password"},
  {"id":"enter","phase":"auth","kind":"click","target":{"selector":"#sign-in"}},
  {"id":"open","kind":"navigate","value":"URL/orders/{{order}}"},
  {"id":"begin","kind":"click","target":{"selector":"#cancel"}},
  {"id":"reason","kind":"select","target":{"selector":"#reason","candidates":["#nothing","[data-field=reason]"]},"param":"reason_code"},
  {"id":"refund","kind":"type","target":{"selector":"#refund"},"param":"refund"},
  {"id":"note","kind":"type","target":{"selector":"#note"},"param":"note"},
  {"id":"notify","kind":"check","target":{"selector":"#notify"},"param":"notify"},
  {"id":"commit","kind":"click","target":{"selector":"#confirm","text":"Cancel the order"}}],
 "commit_step_id": "commit",
 "assertions": [{"kind":"url_contains","value":"/orders/"},{"kind":"element_text","selector":"#status","value":"cancelled","match":"equals"}],
 "result_fields": [{"name":"order","selector":"#number","type":"integer"},{"name":"total","selector":"#total","type":"number"},{"name":"note","selector":"#note-given"},{"name":"missing","selector":"#nothing"}],
 "compensation": [{"id":"c1","kind":"navigate","value":"URL/orders/1001"},{"id":"c2","kind":"click","target":{"selector":"#restore"}}]
}`

const values = `{"order":"1001","reason_code":"The customer asked","note":"as told by phone","notify":true,"refund":49.9}`

// job returns a job on the world's site.
func (w *world) job(t testing.TB, definition, args string) *skill.Job {
	t.Helper()
	definition = strings.NewReplacer("URL", w.url, "HOST", w.host).Replace(definition)
	d, err := skill.Load(json.RawMessage(definition))
	if err != nil {
		t.Fatal(err)
	}
	bound, faults, err := d.Bind(context.Background(), skill.ForDryRun, json.RawMessage(args))
	if err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	return &skill.Job{Tenant: id.TenantID{UUID: id.NewAnywhere()}, Skill: id.SkillID{UUID: id.NewAnywhere()}, Run: id.SkillRunID{UUID: id.NewAnywhere()}, Definition: d, Values: bound.Values,
		Open: func(ref string) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.opened = append(w.opened, ref)
			return map[string]string{"user": site.User, "password": site.Password}[ref], nil
		},
		Keep: func(_ context.Context, step string, jpeg []byte) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.shots[step] = jpeg
			return "shots/" + step + ".jpg", nil
		}}
}

func show(t testing.TB, r *skill.Report) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOrderIsCancelledOnce(t *testing.T) {
	b, w := shared.get(t), newWorld(t)
	s, r, err := b.Prepare(context.Background(), w.job(t, cancelOrder, values))
	if err != nil || s == nil {
		t.Fatal(err, show(t, r))
	}
	defer s.Close()
	if r.Event != skill.Landed || r.Page.URL != w.url+"/orders/1001/cancel" || r.Page.Title != "Cancel order 1001 · Back office" || r.Page.Shot == "" ||
		fmt.Sprint(r.Page.Values) != "map[note:as told by phone notify:true reason_code:The customer asked refund:49.9]" {
		t.Fatal(show(t, r))
	}
	if n := w.Effects("1001"); n != 0 {
		t.Fatalf("%d effects before the commit", n)
	}
	if r = s.Commit(context.Background()); r.Event != skill.Clicked {
		t.Fatal(show(t, r))
	}
	if r = s.Verify(context.Background()); r.Event != skill.Verified || string(r.Result) != `{"missing":null,"note":"as told by phone","order":1001,"total":49.9}` {
		t.Fatal(show(t, r), string(r.Result))
	}
	if n := w.Effects("1001"); n != 1 {
		t.Fatalf("%d effects", n)
	}
}
