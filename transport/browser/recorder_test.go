package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/playwright-community/playwright-go"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/browser/site"
)

// pupil is one person at a recorder.
type pupil struct {
	*testing.T
	r    *Recorder
	q    msg.Record
	last skill.RecorderSession
	all  bytes.Buffer // all that was answered
}

func newPupil(t *testing.T, r *Recorder, tenant id.TenantID) *pupil {
	user := id.NewAnywhere()
	return &pupil{T: t, r: r, q: msg.Record{Tenant: tenant, Home: user, Principal: "user:" + user.String()}}
}

func (p *pupil) ask(do msg.RecordDo, change func(*msg.Record)) error {
	p.Helper()
	q := p.q
	if q.Do = do; change != nil {
		change(&q)
	}
	got, err := p.r.Record(context.Background(), &q)
	if err != nil {
		return err
	}
	p.all.Write(got.Session)
	if got.Session != nil {
		p.last = skill.RecorderSession{}
		if err := json.Unmarshal(got.Session, &p.last); err != nil {
			p.Fatal(err)
		}
		p.q.Session = p.last.ID
	}
	return nil
}

func (p *pupil) start(url string) {
	p.Helper()
	if err := p.ask(msg.RecordStart, func(q *msg.Record) { q.URL = url }); err != nil {
		p.Fatal(err)
	}
	session := p.q.Session
	p.Cleanup(func() { _ = p.ask(msg.RecordEnd, func(q *msg.Record) { q.Session = session }) })
}

// try does an action, in which AT(selector) stands for the coordinates of an element.
func (p *pupil) try(action string) error {
	p.Helper()
	for {
		before, rest, ok := strings.Cut(action, "AT(")
		if !ok {
			break
		}
		selector, after, _ := strings.Cut(rest, ")")
		action = before + p.at(selector) + after
	}
	var a skill.Action
	if err := json.Unmarshal([]byte(action), &a); err != nil {
		p.Fatal(action, err)
	}
	if err := a.Check(); err != nil {
		p.Fatal(action, err)
	}
	return p.ask(msg.RecordAct, func(q *msg.Record) { q.Action = json.RawMessage(action) })
}

func (p *pupil) act(actions ...string) {
	p.Helper()
	for _, a := range actions {
		if err := p.try(a); err != nil {
			p.Fatalf("%s: %v", a, err)
		}
	}
}

// at returns the middle of an element as the coordinates of an action.
func (p *pupil) at(selector string) string {
	p.Helper()
	t := p.r.find(&p.q)
	box, err := t.s.page.Locator(selector).First().BoundingBox()
	if err != nil || box == nil {
		p.Fatal(selector, err)
	}
	return fmt.Sprintf(`"x":%v,"y":%v`, box.X+box.Width/2, box.Y+box.Height/2)
}

func (p *pupil) picture() []byte {
	p.Helper()
	got, err := p.r.Record(context.Background(), &msg.Record{Do: msg.RecordPicture, Tenant: p.q.Tenant, Principal: p.q.Principal, Session: p.q.Session, After: p.last.Shot})
	if err != nil {
		p.Fatal(err)
	}
	return got.JPEG
}

func is(err error, code problem.Code, text string) bool {
	var p *problem.Error
	return errors.As(err, &p) && p.Code == code && strings.Contains(p.Detail, text)
}

// The recording of the back office: performed by coordinates, elements and the keyboard, replayed
// as a dry run, and then run with other values. The password is in no step, answer or picture.
func TestARecordedOrderIsCancelledOnce(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	r := recorderOf(b)
	p := newPupil(t, r, id.TenantID{UUID: id.NewAnywhere()})
	p.start(w.url + "/orders")
	if p.last.Status != skill.RecorderLive || p.last.URL != w.url+"/login" || p.last.Shot == "" || len(p.last.Steps) != 0 {
		t.Fatalf("%+v", p.last)
	}
	p.act(`{"kind":"click",AT(#user)}`,
		`{"kind":"type","value":"`+site.User+`","secret_ref":"user"}`,
		`{"kind":"type",AT(#password),"value":"not-this-one"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"`+site.Password+`"}`)
	if n := len(p.last.Steps); n != 2 || p.last.Steps[1].SecretRef != "password" || p.last.Steps[1].Value != nil || !slices.Equal(p.last.Auth.SecretRefs, []string{"user", "password"}) {
		t.Fatalf("%+v %+v", p.last.Steps, p.last.Auth)
	}
	var x, y float64
	if _, err := fmt.Sscanf(p.at("#password"), `"x":%g,"y":%g`, &x, &y); err != nil {
		t.Fatal(err)
	}
	img, err := jpeg.Decode(bytes.NewReader(p.picture()))
	if err != nil {
		t.Fatal(err)
	}
	if r, g, b, _ := img.At(int(x), int(y)).RGBA(); r>>8 > 0x50 || g>>8 > 0x50 || b>>8 > 0x50 {
		t.Errorf("the password field is not painted over: %x %x %x", r>>8, g>>8, b>>8)
	}
	p.act(`{"kind":"press","value":"Enter"}`)
	if p.last.URL != w.url+"/orders" {
		t.Fatal(p.last.URL)
	}
	p.act(`{"kind":"navigate","value":"`+w.url+`/orders/1001"}`,
		`{"kind":"bind","step_id":"s4","param":"order","value":"1001"}`,
		`{"kind":"click","target":{"text":"Cancel this order"}}`,
		`{"kind":"select","target":{"selector":"#reason"},"value":"The customer asked","param":"cause"}`,
		`{"kind":"type",AT(#refund),"value":"12.50","param":"refund"}`,
		`{"kind":"type","target":{"selector":"#note"},"value":"as told by phone"}`,
		`{"kind":"click",AT(#notify)}`,
		`{"kind":"commit",AT(#confirm)}`)
	if n := w.Effects("1001"); n != 0 {
		t.Fatalf("marking the commit step committed: %d effects", n)
	}
	p.act(`{"kind":"pick","target":{"selector":"h1"},"name":"heading"}`, `{"kind":"expect","value":"is cancelled"}`)
	var phases, kinds []string
	for _, s := range p.last.Steps {
		phases, kinds = append(phases, string(s.Phase)), append(kinds, string(s.Kind))
	}
	if fmt.Sprint(phases) != "[auth auth auth main main main main main main main]" || fmt.Sprint(kinds) != "[type type press navigate click select type type check click]" {
		t.Fatal(phases, kinds)
	}
	if s := p.last.Steps[9]; s.ID != p.last.CommitStepID || s.Target.Selector != `button:has-text("Cancel the order")` || !slices.Contains(s.Target.Candidates, "#confirm") || s.Target.Text != "Cancel the order" {
		t.Errorf("%+v", s.Target)
	}
	if s := p.last.Steps[6]; s.Param != "refund" || s.Target.Selector != `label:has-text("Refund") input` {
		t.Errorf("%+v %+v", s, s.Target)
	}
	if n := len(p.last.Params); n != 3 || p.last.Params[0].AllowInURL != true || *p.last.Params[0].Example != "1001" || p.last.Params[1].Type != skill.Enum || len(p.last.Params[1].Enum) != 3 || p.last.Params[2].Type != skill.Number {
		t.Errorf("%+v", p.last.Params)
	}
	if _, err := r.Record(t.Context(), &msg.Record{Do: msg.RecordTaken, Tenant: p.q.Tenant, Principal: p.q.Principal, Session: p.q.Session}); !is(err, problem.CodeBrowserSkillNotFound, "") {
		t.Errorf("a live session was taken: %v", err)
	}
	if err := p.ask(msg.RecordFinish, func(q *msg.Record) {
		q.Values = json.RawMessage(`{"order":"404404","cause":"Out of stock","refund":1}`)
	}); err != nil {
		t.Fatal(err)
	}
	if d := p.last.DryRun; p.last.Status != skill.RecorderEnded || d == nil || d.Status != skill.ReplayFailed || d.Code != skill.CodeNotFound || d.StepID != "s5" {
		t.Fatalf("%+v", d)
	}
	taken := &msg.Record{Do: msg.RecordTaken, Tenant: p.q.Tenant, Principal: p.q.Principal, Session: p.q.Session}
	if _, err := r.Record(t.Context(), taken); !is(err, problem.CodeBrowserSkillInvalid, "did not land") {
		t.Errorf("a recording that did not land was taken: %v", err)
	}
	if err := p.ask(msg.RecordFinish, nil); err != nil {
		t.Fatal(err)
	}
	if d := p.last.DryRun; d.Status != skill.ReplayLanded || d.Values["cause"] != "The customer asked" || d.URL != w.url+"/orders/1001/cancel" || w.Effects("1001") != 0 {
		t.Fatalf("%+v, %d effects", d, w.Effects("1001"))
	}
	got, err := r.Record(t.Context(), taken)
	if err != nil || !strings.Contains(string(got.Steps), "{{order}}") {
		t.Fatal(err)
	}
	doc, err := json.Marshal(r.find(&p.q).rec.Definition())
	if err != nil {
		t.Fatal(err)
	}
	j := w.job(t, string(doc), `{"order":"1002","cause":"Out of stock","refund":5}`)
	s, report, err := b.Prepare(t.Context(), j)
	if err != nil || s == nil {
		t.Fatal(err, show(t, report))
	}
	defer s.Close()
	if report = s.Commit(t.Context()); report.Event != skill.Clicked {
		t.Fatal(show(t, report))
	}
	if report = s.Verify(t.Context()); report.Event != skill.Verified {
		t.Fatal(show(t, report))
	}
	if w.Effects("1002") != 1 || w.Effects("1001") != 0 {
		t.Errorf("%d and %d effects", w.Effects("1002"), w.Effects("1001"))
	}
	for _, secret := range []string{site.Password, "not-this-one", site.User} {
		if strings.Contains(p.all.String(), secret) {
			t.Errorf("an answer holds %s", secret)
		}
	}
	if err := p.ask(msg.RecordUsed, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.ask(msg.RecordRead, nil); !is(err, problem.CodeBrowserSkillNotFound, "") {
		t.Errorf("a used session: %v", err)
	}
}

// A recording types the secrets of its steps: one that was undone, renamed, or whose action failed is given to no replay, and
// leaves what was typed before as it was.
func TestSecretsOfARecordingAreThoseOfItsSteps(t *testing.T) {
	t.Parallel()
	p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
	w := serves(t, `<title>Sign in</title><form onsubmit="this.remove(); return false"><input id=user><input id=password type=password><input id=fixed type=password readonly><button>Sign in</button></form>
		<button id=send>Send</button>`)
	p.start(w.url + "/")
	p.act(`{"kind":"type","target":{"selector":"#user"},"value":"a-user-1","secret_ref":"name"}`,
		`{"kind":"type","target":{"selector":"#user"},"value":"a-user-2","secret_ref":"user"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"undone-3"}`,
		`{"kind":"undo"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"right-4","secret_ref":"pw"}`)
	if err := p.try(`{"kind":"type","target":{"selector":"#password"},"value":"bell\u0007"}`); !is(err, problem.CodeInvalidArgs, "value: must have 1 to 8192 bytes") {
		t.Error("a secret that cannot be saved: ", err)
	}
	if err := p.try(`{"kind":"press","target":{"selector":"#password"},"value":"r"}`); !is(err, problem.CodeInvalidArgs, "value: would be recorded as it is") {
		t.Error("a secret that is typed key by key: ", err)
	}
	s := p.r.find(&p.q)
	if s.visits(w.url + "/" + strings.Repeat("x", 1<<20)); len(s.hosts[len(s.hosts)-1]) > maxAnyURL {
		t.Error("an address is kept with its path")
	}
	step := s.s.step
	s.s.step = time.Second
	for ref, value := range map[string]string{"other": "failed-5", "pw": "failed-6"} {
		if err := p.try(`{"kind":"type","target":{"selector":"#fixed"},"value":"` + value + `","secret_ref":"` + ref + `"}`); !is(err, problem.CodeInvalidArgs, "target") {
			t.Error(err)
		}
	}
	s.s.step = step
	if want := map[string]string{"user": "a-user-2", "pw": "right-4"}; !maps.Equal(s.secrets, want) || !slices.Equal(p.last.Auth.SecretRefs, []string{"user", "pw"}) {
		t.Errorf("%v %v", s.secrets, p.last.Auth.SecretRefs)
	}
	p.act(`{"kind":"press","target":{"selector":"#password"},"value":"Enter"}`, `{"kind":"commit","target":{"selector":"#send"}}`)
	if err := p.ask(msg.RecordFinish, nil); err != nil || p.last.DryRun == nil || p.last.DryRun.Status != skill.ReplayLanded {
		t.Errorf("%v %+v", err, p.last.DryRun)
	}
	d := p.r.find(&p.q).rec.Definition()
	replay, err := p.r.b.replay(t.Context(), d, json.RawMessage(`{}`), map[string]string{"user": "a", "pw": "b", "surplus": "c"}, &skill.Job{Tenant: p.q.Tenant})
	if err != nil || replay.Status != skill.ReplayLanded {
		t.Errorf("a secret that no step types: %v %+v", err, replay)
	}
}

// What is typed into the field of a password is a secret also once the site has made a field of text of it, and what was typed as a
// secret is not recorded because a list has it.
func TestASecretThatThePageShows(t *testing.T) {
	t.Parallel()
	p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
	w := serves(t, `<title>Sign in</title><input id=user><input id=password type=password><button type=button id=eye onclick="document.getElementById('password').type = 'text'">Show</button>
		<select id=account><option value=1>clerk@shop.example</option><option value=2>Another</option></select><button id=send>Send</button>`)
	p.start(w.url + "/")
	p.act(`{"kind":"type","target":{"selector":"#user"},"value":"clerk@shop.example","secret_ref":"user"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"hunter2"}`,
		`{"kind":"click","target":{"selector":"#eye"}}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"hunter3"}`,
		`{"kind":"select","target":{"selector":"#account"},"value":"2","param":"account"}`)
	if err := p.try(`{"kind":"press","target":{"selector":"#password"},"value":"4"}`); !is(err, problem.CodeInvalidArgs, "value: would be recorded as it is") {
		t.Error("a secret that is typed key by key: ", err)
	}
	doc, err := json.Marshal(p.last)
	if err != nil || strings.Contains(string(doc), "hunter") || strings.Contains(string(doc), "clerk@") {
		t.Errorf("%v %s", err, doc)
	}
	if s := p.last.Steps[3]; !s.Secret || s.SecretRef != "password" || s.Value != nil {
		t.Errorf("%+v", s)
	}
	if got := p.r.find(&p.q).secrets["password"]; got != "hunter3" {
		t.Errorf("the dry run types %q", got)
	}
	if got := p.last.Params; len(got) != 1 || !slices.Equal(got[0].Enum, []string{"Another", "2"}) {
		t.Errorf("%+v", got)
	}
	l := &Lesson{secrets: map[string]string{}}
	for _, text := range []string{
		`{"kind":"type","value":"hunter2","about":{"selectors":["#password"],"tag":"input","field":true,"secret":true}}`,
		`{"kind":"click","about":{"selectors":["#eye"],"tag":"button"}}`,
		`{"kind":"type","value":"hunter3","about":{"selectors":["#password"],"tag":"input","field":true}}`,
		`{"kind":"select","value":"2","about":{"selectors":["#account"],"tag":"select","options":["it is hunter3","Another"]}}`,
	} {
		var d deed
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		if _, err := l.add(&d); err != nil {
			t.Fatal(text, err)
		}
	}
	if err := l.rec.Bind("s4", "account", "", ""); err != nil {
		t.Fatal(err)
	}
	if doc, err = json.Marshal(l.rec.Definition()); err != nil || strings.Contains(string(doc), "hunter") || l.secrets["password"] != "hunter3" {
		t.Errorf("%v %s", err, doc)
	}
}

// A password is typed on after a pause, again after it was undone, into the field that asks for it again, and may begin as the
// user name. What else would be recorded holds none of it.
func TestASecretIsTypedAgain(t *testing.T) {
	t.Parallel()
	p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
	w := serves(t, `<title>Sign in</title><form onsubmit="return false"><input id=user><input id=password type=password><input id=again type=password><input id=note><button>Sign in</button></form>`)
	p.start(w.url + "/")
	p.act(`{"kind":"type","target":{"selector":"#password"},"value":"hun"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"hunter22"}`,
		`{"kind":"undo"}`,
		`{"kind":"type","target":{"selector":"#user"},"value":"anna","secret_ref":"user"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"anna2024"}`,
		`{"kind":"undo"}`,
		`{"kind":"type","target":{"selector":"#password"},"value":"anna2024"}`,
		`{"kind":"type","target":{"selector":"#again"},"value":"anna2024"}`)
	want := map[string]string{"user": "anna", "password": "anna2024", "password_2": "anna2024"}
	if s := p.r.find(&p.q); !maps.Equal(s.secrets, want) || len(p.last.Steps) != 3 {
		t.Errorf("%v, %+v", s.secrets, p.last.Steps)
	}
	for _, a := range []string{`{"kind":"type","target":{"selector":"#note"},"value":"it is hunter22"}`, `{"kind":"press","target":{"selector":"#note"},"value":"anna"}`,
		`{"kind":"navigate","value":"` + w.url + `/anna2024"}`, `{"kind":"expect","value":"Hello anna"}`, `{"kind":"expect","target":{"selector":"#note"},"value":"hunter22"}`} {
		if err := p.try(a); !is(err, problem.CodeInvalidArgs, "value: holds what was typed as a secret") {
			t.Errorf("%s: %v", a, err)
		}
	}
}

// A recording that was finished without a commit step can be finished as one that only reads, with its secrets.
func TestARecordingIsFinishedAgain(t *testing.T) {
	t.Parallel()
	p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
	w := serves(t, `<title>Sign in</title><form onsubmit="this.remove(); return false"><input id=password type=password></form><p id=r>Result 5</p><button id=more>More</button>`)
	p.start(w.url + "/")
	p.act(`{"kind":"type","target":{"selector":"#password"},"value":"right-4"}`,
		`{"kind":"press","target":{"selector":"#password"},"value":"Enter"}`,
		`{"kind":"click","target":{"selector":"#more"}}`,
		`{"kind":"expect","target":{"selector":"#r"}}`)
	s := p.r.find(&p.q)
	for _, c := range []struct {
		reads bool
		want  skill.ReplayStatus
	}{{false, skill.ReplaySkipped}, {true, skill.ReplayLanded}} {
		if err := p.ask(msg.RecordFinish, func(q *msg.Record) { q.Reads = c.reads }); err != nil || p.last.DryRun == nil || p.last.DryRun.Status != c.want {
			t.Fatalf("reads only %v: %v %+v", c.reads, err, p.last.DryRun)
		}
	}
	if len(s.secrets) != 0 {
		t.Errorf("%d secrets are kept after the dry run", len(s.secrets))
	}
}

// A value that the page makes another one is no dry run that landed, whatever a password field on the page made of its step:
// one that asks for a number beside it, or one into which something was typed by mistake.
func TestARecordedValueThatThePageChanges(t *testing.T) {
	t.Parallel()
	const form = `<input id=amount><input id=note oninput="document.getElementById('amount').value = '70'">`
	for name, c := range map[string]struct {
		page    string
		actions []string
	}{
		"beside a number that is asked for": {`<form id=f onsubmit="this.remove(); document.getElementById('g').hidden = false; return false"><input id=user><input id=password type=password><button>Sign in</button></form>
			<form id=g hidden onsubmit="return false">` + form + `<input id=pin type=password placeholder="PIN, above 1000 only"></form>`, []string{
			`{"kind":"type","target":{"selector":"#user"},"value":"bob-1","secret_ref":"user"}`, `{"kind":"type","target":{"selector":"#password"},"value":"right-4"}`,
			`{"kind":"press","target":{"selector":"#password"},"value":"Enter"}`, `{"kind":"type","target":{"selector":"#amount"},"value":"7","param":"amount"}`}},
		"before a secret that was undone": {form + `<input id=password type=password>`, []string{
			`{"kind":"type","target":{"selector":"#amount"},"value":"7","param":"amount"}`, `{"kind":"type","target":{"selector":"#password"},"value":"oops-1"}`, `{"kind":"undo"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
			p.start(serves(t, `<title>Pay</title>`+c.page+`<button id=send>Send</button>`).url + "/")
			p.act(append(c.actions, `{"kind":"type","target":{"selector":"#note"},"value":"x"}`, `{"kind":"commit","target":{"selector":"#send"}}`)...)
			if err := p.ask(msg.RecordFinish, nil); err != nil {
				t.Fatal(err)
			}
			if d := p.last.DryRun; d == nil || d.Status != skill.ReplayFailed || d.Code != skill.CodePrecommitMismatch {
				t.Errorf("%+v of %+v", d, p.last.Steps)
			}
		})
	}
}

// recorderOf returns the recorder of a browser that tests share.
func recorderOf(b *Browser) *Recorder {
	b.mu.Lock()
	r := b.recorder
	b.mu.Unlock()
	if r == nil {
		r = b.NewRecorder(RecorderConfig{Pages: 4})
	}
	return r
}

// Each kind of selector is chosen where it is the first that finds the element alone.
func TestSelectorsAreUnique(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	p := newPupil(t, recorderOf(b), id.TenantID{UUID: id.NewAnywhere()})
	p.start(w.url + "/lab/kinds")
	path := func(rest string) string { return "#app > " + rest }
	for i, c := range []struct{ action, at, selector, text string }{
		{`"kind":"commit"`, "text=draft", `button:has-text("Save draft")`, "Save draft"}, // role and name
		{`"kind":"commit"`, "button >> nth=1", path("button:nth-of-type(2)"), ""},        // another one's name holds its name
		{`"kind":"commit"`, "a", `a:has-text("Plain page")`, "Plain page"},
		{`"kind":"type","value":"x"`, "[name=q]", `input[aria-label="Search"]`, ""},
		{`"kind":"type","value":"Bern"`, "label input >> nth=0", `label:has-text("City") input`, ""}, // label
		{`"kind":"select","value":"Red"`, "select", `label:has-text("Colour") select`, ""},
		{`"kind":"click"`, "[data-testid]", `[data-testid="total"]`, ""}, // test id
		{`"kind":"click"`, "i", path("i"), ""},
		{`"kind":"commit"`, "#mui-93847561", `button:has-text("☰")`, "☰"}, // an id that another build changes is passed over
		{`"kind":"click"`, "li >> nth=1", path("ul > li:nth-of-type(2)"), ""},
		{`"kind":"click"`, "label[for=agree]", "#agree", ""}, // a label is its box
	} {
		p.act(`{` + c.action + `,AT(` + c.at + `)}`)
		s := p.last.Steps[len(p.last.Steps)-1]
		if s.Target.Selector != c.selector || s.Target.Text != c.text || len(p.last.Steps) != i+1 {
			t.Errorf("%s: %+v", c.at, s.Target)
		}
		n, err := p.r.find(&p.q).s.page.Locator("css=" + s.Target.Selector).Count()
		if err != nil || n != 1 {
			t.Errorf("%s finds %d: %v", s.Target.Selector, n, err)
		}
	}
	if s := p.last.Steps[10]; s.Kind != skill.Tick || s.Literal() != "true" {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		action string
		code   problem.Code
		text   string
	}{
		{`{"kind":"click","target":{"selector":"#nowhere"}}`, problem.CodeInvalidArgs, "target: no element"},
		{`{"kind":"click",AT(select)}`, problem.CodeInvalidArgs, "Red"},
		{`{"kind":"check","target":{"selector":"#agree"},"value":"true","param":"agree"}`, "", ""},
		{`{"kind":"type","target":{"selector":"#agree"},"value":"x"}`, problem.CodeInvalidArgs, "no field"},
		{`{"kind":"type",AT([type=password]),"value":"hush-hush-5"}`, problem.CodeInvalidArgs, "before the commit step"},
		{`{"kind":"select","target":{"selector":"select"},"value":"Blue"}`, problem.CodeInvalidArgs, "no such option"},
		{`{"kind":"bind","step_id":"s99","param":"x"}`, problem.CodeInvalidArgs, "step_id"},
		{`{"kind":"navigate","value":"http://127.0.0.1:1/"}`, problem.CodeInvalidArgs, "value"},
	} {
		err := p.try(c.action)
		if c.code == "" && err != nil || c.code != "" && !is(err, c.code, c.text) {
			t.Errorf("%s: %v", c.action, err)
		}
	}
	if err := p.ask(msg.RecordRead, nil); err != nil || p.last.Status != skill.RecorderLive {
		t.Error("the session did not go on", err)
	}
	before := len(p.last.Steps)
	if p.act(`{"kind":"undo"}`); len(p.last.Steps) != before-1 || len(p.last.Params) != 0 {
		t.Errorf("%+v", p.last.Params)
	}
}

// Pages that lie, leave, open dialogs and popups, or frames.
func TestHostilePagesAreRecorded(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	p := newPupil(t, recorderOf(b), id.TenantID{UUID: id.NewAnywhere()})
	p.start(w.url + "/lab/liar")
	if err := p.try(`{"kind":"commit",AT(#act)}`); err != nil {
		t.Fatal(err)
	}
	for _, s := range p.last.Steps {
		if s.Target.Selector != "#act" || len(s.Target.Candidates) > 1 {
			t.Errorf("the page's lies were believed: %+v", s.Target)
		}
	}
	p.act(`{"kind":"navigate","value":"` + w.url + `/lab/frame?to=/lab/plain"}`)
	if err := p.try(`{"kind":"click",AT(iframe)}`); !is(err, problem.CodeInvalidArgs, "frame") {
		t.Error(err)
	}
	p.act(`{"kind":"navigate","value":"`+w.url+`/lab/popup"}`, `{"kind":"click",AT(#act)}`)
	testkit.Eventually(t, "the popup is told of", func() bool { // it may come later than the click ends
		return strings.Contains(p.last.Note, "popup") || p.ask(msg.RecordRead, func(q *msg.Record) { q.After = p.last.Shot }) == nil && strings.Contains(p.last.Note, "popup")
	})
	p.act(`{"kind":"navigate","value":"` + w.url + `/lab/secret"}`)
	if err := p.ask(msg.RecordEnd, nil); err != nil {
		t.Fatal(err)
	}
	resides := newPupil(t, recorderOf(b), p.q.Tenant)
	resides.q.Resides, resides.q.Residency = true, []string{"127.0.0.1"}
	resides.start(w.url + "/lab/link?to=http://127.0.0.2:9/")
	if err := resides.try(`{"kind":"navigate","value":"http://127.0.0.2:9/"}`); !is(err, problem.CodeInvalidArgs, "residency") {
		t.Error(err)
	}
	resides.act(`{"kind":"click",AT(#act)}`)
	testkit.Eventually(t, "the session ends outside the residency", func() bool {
		return resides.ask(msg.RecordRead, nil) == nil && resides.last.Status == skill.RecorderEnded && strings.Contains(resides.last.Note, "residency")
	})
}

// One session of a principal, as many of a node as it has pages, and nobody else's.
func TestRecorderSessionsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	w, r := newWorld(t), b.NewRecorder(RecorderConfig{Pages: 1})
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	p, other := newPupil(t, r, tenant), newPupil(t, r, tenant)
	if err := p.ask(msg.RecordStart, func(q *msg.Record) { q.URL = w.url + "/lab/redirect?to=http://10.0.0.1/" }); !is(err, problem.CodeInvalidArgs, "start_url") {
		t.Error("a page that the guard refuses: ", err)
	}
	p.start(w.url + "/lab/plain")
	begin := func(q *msg.Record) { q.URL = w.url + "/lab/plain" }
	if err := p.ask(msg.RecordStart, begin); !is(err, problem.CodeInUse, "") {
		t.Error("a second one: ", err)
	}
	if err := other.ask(msg.RecordStart, begin); !is(err, problem.CodeBrowserSkillUnavailable, "No recorder session is free") {
		t.Error("one more than the node has: ", err)
	}
	two, stranger := b.NewRecorder(RecorderConfig{Pages: 2}), newPupil(t, r, id.TenantID{UUID: id.NewAnywhere()})
	one, next := newPupil(t, two, tenant), newPupil(t, two, tenant)
	stranger.r = two
	t.Cleanup(two.close)
	b.mu.Lock()
	b.recorder = r
	b.mu.Unlock()
	one.start(w.url + "/lab/plain")
	if err := next.ask(msg.RecordStart, begin); !is(err, problem.CodeBrowserSkillUnavailable, "a node has 2 at a time, and a tenant 1 of them") {
		t.Error("all that the node has, by one tenant: ", err)
	}
	stranger.start(w.url + "/lab/plain")
	for _, p := range []*pupil{one, stranger} {
		if err := p.ask(msg.RecordEnd, nil); err != nil {
			t.Error(err)
		}
	}
	for _, do := range []msg.RecordDo{msg.RecordRead, msg.RecordAct, msg.RecordFinish, msg.RecordEnd, msg.RecordPicture, msg.RecordTaken, msg.RecordUsed} {
		for _, change := range []func(*msg.Record){
			func(q *msg.Record) { q.Principal = other.q.Principal },
			func(q *msg.Record) { q.Tenant = id.TenantID{UUID: id.NewAnywhere()} },
			func(q *msg.Record) { q.Session = id.RecorderSessionID{UUID: id.NewAnywhere()} },
		} {
			if err := p.ask(do, func(q *msg.Record) { change(q); q.After = "p1" }); !is(err, problem.CodeBrowserSkillNotFound, "") {
				t.Errorf("%s of a foreign session: %v", do, err)
			}
		}
	}
	shown := p.last.Shot
	go func() {
		_, _ = p.r.find(&p.q).s.page.Evaluate("() => setTimeout(() => { document.body.style.background = 'red' }, 300)", nil)
	}()
	if err := p.ask(msg.RecordRead, func(q *msg.Record) { q.After = shown }); err != nil || p.last.Shot == shown {
		t.Errorf("a change of the page was not seen: %v %s", err, p.last.Shot)
	}
	live := p.r.find(&p.q)
	live.mu.Lock()
	live.until = time.Now() // it has lived as long as it may
	live.mu.Unlock()
	live.touch()
	testkit.Eventually(t, "the session expires", func() bool {
		return p.ask(msg.RecordRead, nil) == nil && p.last.Status == skill.RecorderExpired
	})
	live.expire() // of a timer that was replaced while it fired
	if err := p.ask(msg.RecordRead, nil); err != nil || p.last.Status != skill.RecorderExpired {
		t.Errorf("an expired session is not kept: %v %s", err, p.last.Status)
	}
	if p.last.Shot != "" || p.try(`{"kind":"press","value":"Enter"}`) == nil {
		t.Error("an expired session goes on")
	}
	if err := other.ask(msg.RecordStart, begin); err != nil {
		t.Error("its place is not free: ", err)
	}
	b.mu.Lock()
	e := b.engine
	b.mu.Unlock()
	e.end(errDied)
	if err := other.try(`{"kind":"press","value":"Enter"}`); err != nil || other.last.Status != skill.RecorderEnded {
		t.Errorf("the browser died: %v %s", err, other.last.Status)
	}
}

// An action is performed once for each key: a repetition of its call hears what the first heard, also when the session has ended.
func TestAnActionIsPerformedOnce(t *testing.T) {
	t.Parallel()
	p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
	p.start(serves(t, `<title>Count</title><p id=n>0</p><button id=more onclick="n.textContent = 1 + +n.textContent">More</button>`).url)
	click := func(key string) string {
		before := p.all.Len()
		if err := p.ask(msg.RecordAct, func(q *msg.Record) {
			q.Action, q.Key = json.RawMessage(`{"kind":"click","target":{"selector":"#more"}}`), key
		}); err != nil {
			t.Fatal(err)
		}
		return p.all.String()[before:]
	}
	first := click("one")
	for _, c := range []struct{ key, clicks string }{{"one", "1"}, {"two", "2"}, {"", "3"}, {"", "4"}, {"one", "4"}} {
		if got := click(c.key); c.key == "one" && got != first {
			t.Errorf("the repetition heard %s, not %s", got, first)
		}
		if n, err := p.r.find(&p.q).s.page.Locator("#n").TextContent(); err != nil || n != c.clicks {
			t.Errorf("after %q: %s clicks, want %s; %v", c.key, n, c.clicks, err)
		}
	}
	if err := p.ask(msg.RecordFinish, nil); err != nil {
		t.Fatal(err)
	}
	if click("one") != first {
		t.Error("a repetition after the end")
	}
}

// A session is begun once for each key: a repetition of its call gets it, once it is open, and begins one itself if the first could
// not. The session ends when none of these calls could answer with it.
func TestASessionIsBegunOnce(t *testing.T) {
	t.Parallel()
	loads, to := make(chan struct{}, 8), make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		at := ""
		if q.URL.Path == "/held" {
			loads <- struct{}{}
			select {
			case at = <-to:
			case <-t.Context().Done():
			}
		}
		if at != "" {
			http.Redirect(w, q, at, http.StatusFound)
			return
		}
		fmt.Fprint(w, "<!doctype html><title>Held</title>")
	}))
	t.Cleanup(server.Close)
	r := recorderOf(quickly(t))
	p := newPupil(t, r, id.TenantID{UUID: id.NewAnywhere()})
	start := func(key string) (id.RecorderSessionID, error) {
		call := &pupil{T: t, r: r, q: p.q}
		err := call.ask(msg.RecordStart, func(q *msg.Record) { q.URL, q.Key = server.URL+"/held", key })
		return call.last.ID, err
	}
	type begun struct {
		id  id.RecorderSessionID
		err error
	}
	calls := func() (n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s := r.live(&p.q); s != nil {
			n = s.calls
		}
		return n
	}
	first, second := make(chan begun, 1), make(chan begun, 1)
	for i, answer := range []chan begun{first, second} {
		go func() {
			session, err := start("one")
			for is(err, problem.CodeIdempotencyInProgress, "") { // the browser takes more than 5 s
				session, err = start("one")
			}
			answer <- begun{session, err}
		}()
		testkit.Eventually(t, "the call waits", func() bool { return calls() == i+1 })
	}
	<-loads
	if _, err := start("two"); !is(err, problem.CodeInUse, "") {
		t.Error("another call while the page loads: ", err)
	}
	to <- "http://10.0.0.1/"
	if got := <-first; !is(got.err, problem.CodeInvalidArgs, "start_url") {
		t.Error("a page that the guard refuses: ", got.err)
	}
	select {
	case <-loads:
		to <- ""
	case got := <-second:
		t.Fatalf("the repetition of a call that began none begins none: %v", got.err)
	}
	got := <-second
	if got.err != nil {
		t.Fatal("the repetition of a call that began none: ", got.err)
	}
	p.q.Session = got.id
	t.Cleanup(func() { _ = p.ask(msg.RecordEnd, nil) })
	if again, err := start("one"); err != nil || again != got.id {
		t.Errorf("a repetition: %v, want %v; %v", again, got.id, err)
	}
	for _, key := range []string{"two", ""} {
		if _, err := start(key); !is(err, problem.CodeInUse, "") {
			t.Errorf("the call %q: %v", key, err)
		}
	}
	for key, want := range map[string]msg.Recorded{"one": {Begun: true}, "two": {Held: true}, "": {Held: true}} {
		q := p.q
		q.Do, q.Key = msg.RecordHeld, key
		if held, err := r.Record(t.Context(), &q); err != nil || held.Begun != want.Begun || held.Held != want.Held {
			t.Errorf("%q: %+v %v", key, held, err)
		}
	}
	unsaid := func(q *msg.Record) { q.Key = "one" }
	if err := p.ask(msg.RecordEnd, unsaid); err != nil {
		t.Fatal(err)
	}
	if err := p.ask(msg.RecordRead, nil); err != nil || p.last.Status != skill.RecorderLive {
		t.Errorf("the session of the other call: %s %v", p.last.Status, err)
	}
	if err := p.ask(msg.RecordEnd, unsaid); err != nil {
		t.Fatal(err)
	}
	if err := p.ask(msg.RecordRead, nil); !is(err, problem.CodeBrowserSkillNotFound, "") {
		t.Errorf("the session of no call: %v", err)
	}
}

// open-parts.md: a repeat while the first is in progress waits up to 5 s.
func TestARepetitionWaitsForTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Recorder{sessions: map[id.RecorderSessionID]*taught{}}
		s := &taught{r: r, id: id.RecorderSessionID{UUID: id.NewAnywhere()}, key: "one", calls: 2, turn: make(chan struct{}, 1), view: skill.RecorderSession{Status: skill.RecorderLive}}
		r.sessions[s.id] = s
		s.turn <- struct{}{}
		since := time.Now()
		if _, err := s.again(t.Context()); !is(err, problem.CodeIdempotencyInProgress, "") || time.Since(since) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(since), err)
		}
		if s.calls != 1 {
			t.Errorf("%d calls may answer with the session", s.calls)
		}
	})
}

// A page that changes all the time is looked at four times in a second, however many read it.
func TestReadersShareThePictures(t *testing.T) {
	t.Parallel()
	p := newPupil(t, recorderOf(quickly(t)), id.TenantID{UUID: id.NewAnywhere()})
	p.start(serves(t, `<title>Clock</title><p id=r></p><script>setInterval(() => { document.getElementById("r").textContent = performance.now() }, 5)</script>`).url + "/")
	s := p.r.find(&p.q)
	taken := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.number
	}
	began, first := time.Now(), taken()
	over := make(chan struct{})
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				s.mu.Lock()
				shown := s.view.Shot
				s.mu.Unlock()
				q := p.q
				q.Do, q.After = msg.RecordRead, shown
				if _, err := p.r.Record(t.Context(), &q); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	testkit.Eventually(t, "six pictures", func() bool { return taken()-first >= 6 })
	n, most := taken()-first, int(time.Since(began)/shotEvery)+1
	close(over)
	readers.Wait()
	if n > most {
		t.Errorf("%d pictures, at most %d in the time", n, most)
	}
}

// The steps of an ended session are one call's until that says what became of the skill, a minute at most.
func TestStepsAreTakenByOneCall(t *testing.T) {
	t.Parallel()
	r := &Recorder{sessions: map[id.RecorderSessionID]*taught{}}
	s := &taught{r: r, id: id.RecorderSessionID{UUID: id.NewAnywhere()}, turn: make(chan struct{}, 1), changed: make(chan struct{}), view: skill.RecorderSession{Status: skill.RecorderEnded}}
	r.sessions[s.id] = s
	for _, c := range []struct { // a skill is saved once its dry run landed
		replay *skill.Replay
		says   string
	}{{nil, "without a dry run"}, {&skill.Replay{Status: skill.ReplaySkipped}, "was skipped"}, {&skill.Replay{Status: skill.ReplayFailed}, "did not land"}} {
		s.view.DryRun = c.replay
		if _, err := r.Record(t.Context(), &msg.Record{Do: msg.RecordTaken, Session: s.id, Holder: "a"}); !is(err, problem.CodeBrowserSkillInvalid, c.says) {
			t.Errorf("%+v: %v", c.replay, err)
		}
	}
	s.view.DryRun = &skill.Replay{Status: skill.ReplayLanded}
	ask := func(do msg.RecordDo, holder string) error {
		_, err := r.Record(t.Context(), &msg.Record{Do: do, Session: s.id, Holder: holder})
		return err
	}
	takes := func(step, holder string, want bool) {
		t.Helper()
		if err := ask(msg.RecordTaken, holder); want != (err == nil) || !want && !is(err, problem.CodeBrowserSkillInvalid, "already") {
			t.Errorf("%s: %v", step, err)
		}
	}
	takes("the first call", "a", true)
	takes("another one", "b", false)
	takes("the first call repeated", "a", true)
	if err := ask(msg.RecordSpared, "b"); err != nil {
		t.Fatal(err)
	}
	takes("after a call spared what it did not hold", "b", false)
	if err := ask(msg.RecordSpared, "a"); err != nil {
		t.Fatal(err)
	}
	takes("after the first one failed", "b", true)
	takes("the first one again", "a", false)
	s.taking = s.taking.Add(-recorderTaking)
	takes("after a call that never came back", "a", true)
}

// Ended sessions are kept by tenant: one that ends many keeps no other tenant's from being saved.
func TestEndedSessionsOfOthersAreKept(t *testing.T) {
	t.Parallel()
	r := &Recorder{sessions: map[id.RecorderSessionID]*taught{}}
	ended := func(tenant id.TenantID, principal string) *taught {
		t := &taught{r: r, id: id.RecorderSessionID{UUID: id.NewAnywhere()}, tenant: tenant, principal: principal, turn: make(chan struct{}, 1), changed: make(chan struct{}), view: skill.RecorderSession{Status: skill.RecorderEnded}}
		r.sessions[t.id] = t
		return t
	}
	one, other := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	first := ended(other, "user:0")
	same := ended(other, "user:1") // a principal's name is of its tenant
	var last *taught
	for i := range recorderEnded + 5 {
		last = ended(one, fmt.Sprintf("user:%d", i/2))
	}
	r.trim(last)
	if n := len(r.sessions); n != recorderTenant+2 || r.sessions[first.id] == nil || r.sessions[same.id] == nil || r.sessions[last.id] == nil {
		t.Errorf("%d sessions are kept, those of the other tenant %v %v", n, r.sessions[first.id] != nil, r.sessions[same.id] != nil)
	}
	for range recorderEach {
		last = ended(other, "user:1")
	}
	if r.trim(last); r.sessions[same.id] != nil || r.sessions[first.id] == nil || len(r.sessions) != recorderTenant+1+recorderEach {
		t.Errorf("%d sessions are kept", len(r.sessions))
	}
}

// What a person does by hand in a window is recorded by the same code: here the hand is real input
// events of the browser's own.
func TestALessonIsRecordedByHand(t *testing.T) {
	t.Parallel()
	b, w := quickly(t), newWorld(t)
	done := make(chan struct{})
	said := make(chan string, 100)
	type end struct {
		l   *Lesson
		err error
	}
	ended := make(chan end, 1)
	pages := make(chan playwright.Page, 1)
	go func() {
		l, err := b.teach(context.Background(), w.url+"/orders", func(s string) { said <- s }, done, func(p playwright.Page) { pages <- p })
		ended <- end{l, err}
	}()
	page := <-pages
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	heard := func(want string) {
		t.Helper()
		select {
		case got := <-said:
			if !strings.Contains(got, want) {
				t.Fatalf("heard %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%q was not heard", want)
		}
	}
	do(page.Locator("#user").Click())
	do(page.Keyboard().Type(site.User))
	do(page.Keyboard().Press("Tab"))
	do(page.Keyboard().Type(site.Password))
	do(page.Keyboard().Press("Enter"))
	heard("s1  Type into")
	heard("s2  Type a secret into")
	heard("s3  Click")
	do(page.WaitForURL(w.url + "/orders"))
	do(page.Locator("text=1001").Click())
	heard("s4  Click")
	do(page.Locator("#cancel").Click())
	heard("s5  Click")
	do(page.Locator("#note").Fill("")) // the hand of the test is there
	do(page.Locator("#note").PressSequentially("by hand"))
	do(page.Locator("h1").Click(playwright.LocatorClickOptions{Modifiers: []playwright.KeyboardModifier{*playwright.KeyboardModifierAlt}}))
	heard("s6  Type into")
	heard("result field field_1: ")
	do(page.Locator("#confirm").Click(playwright.LocatorClickOptions{Modifiers: []playwright.KeyboardModifier{*playwright.KeyboardModifierAlt, *playwright.KeyboardModifierShift}}))
	heard("commit step, not performed")
	close(done)
	got := <-ended
	do(got.err)
	l := got.l
	if w.Effects("1001") != 0 || l.Secrets()["password"] != site.Password || len(l.Secrets()) != 1 {
		t.Errorf("%d effects, %d secrets", w.Effects("1001"), len(l.Secrets()))
	}
	do(l.Recording().Bind("s6", "note", "", ""))
	d := l.Recording().Definition()
	doc, err := json.Marshal(d)
	do(err)
	if strings.Contains(string(doc), site.Password) || d.CommitStepID != "s7" || d.Steps[2].Phase != skill.SignIn || d.Steps[3].InSignIn() || d.Steps[2].Target.Selector != `button:has-text("Sign in")` {
		t.Errorf("%s", doc)
	}
	replay, err := l.Replay(t.Context(), nil)
	do(err)
	if replay.Status != skill.ReplayLanded || replay.Values["note"] != "by hand" || w.Effects("1001") != 0 {
		t.Errorf("%+v", replay)
	}
}
