package skill

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsvc/schemas/problem"
)

func record(t *testing.T, r *Recording, a Action, el *Element, wall bool) Step {
	t.Helper()
	s, err := r.Plan(&a, el, wall)
	if err != nil {
		t.Fatal(err)
	}
	r.Add(s, el)
	return s
}

func onto(selector string) *Element { return &Element{Locator: Locator{Selector: selector}} }

func val(s string) *Text { return (*Text)(&s) }

func refusedArgs(err error, path string) bool {
	var p *problem.Error
	return errors.As(err, &p) && p.Code == problem.CodeInvalidArgs && strings.Contains(p.Detail, path)
}

// open-parts.md, Browser skills, Recorder: a recording becomes a definition that can be saved, in
// which the secret of a password field is a reference.
func TestARecordingBecomesASkill(t *testing.T) {
	t.Parallel()
	r := &Recording{StartURL: "https://a.example/login"}
	r.Visit("https://a.example/login?x=1")
	r.Visit("about:blank")
	record(t, r, Action{Kind: "click"}, onto("#user"), true)
	record(t, r, Action{Kind: "type", Value: val("ada")}, onto("#user"), true)
	pw := &Element{Locator: Locator{Selector: "#pw", Candidates: []string{"input[name=pw]"}}, Secret: true}
	record(t, r, Action{Kind: "type", Value: val("wrong")}, pw, true)
	again := &Element{Locator: Locator{Selector: "input[name=pw]"}, Secret: true}
	record(t, r, Action{Kind: "type", Value: val("right")}, again, true) // the same field, found otherwise
	record(t, r, Action{Kind: "click"}, onto("#enter"), true)
	open := record(t, r, Action{Kind: "navigate", Value: val("https://a.example/orders/10/lines?order=10&x=100")}, nil, false)
	list := &Element{Locator: Locator{Selector: "#why"}, Options: []string{"Asked", "Gone"}}
	why := record(t, r, Action{Kind: "select", Value: val("Asked")}, list, false)
	note := record(t, r, Action{Kind: "type", Value: val("12.5")}, &Element{Locator: Locator{Selector: "#sum"}, Type: Number}, false)
	tick := record(t, r, Action{Kind: "check", Value: val("true")}, onto("#tell"), false)
	send := record(t, r, Action{Kind: "click"}, onto("#send"), false)
	for _, err := range []error{r.Bind(open.ID, "order", "", "10"), r.Bind(why.ID, "why", "", ""), r.Bind(note.ID, "total", "", ""), r.Bind(note.ID, "sum", "", ""), r.Bind(tick.ID, "tell", "", ""), r.Commit(send.ID),
		r.Pick("no", Locator{Selector: "#no"}, "", Integer), r.Expect(&Locator{Selector: "#said"}, "done"), r.Expect(nil, "Thank you")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d := r.Definition()
	got := ""
	for _, s := range d.Steps {
		got += fmt.Sprintf("%s:%s:%s:%s ", s.ID, s.Phase, s.Kind, s.Param)
	}
	if got != "s1:auth:type: s2:auth:type: s3:auth:click: s4:main:navigate: s5:main:select:why s6:main:type:sum s7:main:check:tell s8:main:click: " {
		t.Errorf("steps %s", got)
	}
	if open := d.Steps[3].Literal(); open != "https://a.example/orders/{{order}}/lines?order={{order}}&x=100" {
		t.Error(open)
	}
	names := ""
	for _, p := range d.Params {
		names += p.Name + ":" + string(p.Type) + " "
	}
	if names != "order:string why:enum sum:number tell:boolean " {
		t.Errorf("params %s", names)
	}
	doc, err := json.Marshal(d)
	if err != nil || strings.Contains(string(doc), "wrong") || strings.Contains(string(doc), "right") {
		t.Fatalf("%v %s", err, doc)
	}
	saved, err := Parse(Input{Definition: doc, Auth: json.RawMessage(`{"mode":"credentials","secrets":{"password":"right"}}`), OwnerAttested: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, faults, err := saved.Definition.Bind(t.Context(), ForDryRun, r.Examples()); err != nil || len(faults) > 0 {
		t.Errorf("the recorded values: %v %v", faults, err)
	}
	for name, err := range map[string]error{
		"step_id": r.Bind("s1x", "a", "", ""), "secret": r.Bind("s2", "a", "", ""), "must name a step": r.Bind("s3", "a", "", ""), "param: is the name": r.Bind(why.ID, "sum", "", ""),
		"value: must be a part": r.Bind(open.ID, "x", "", "1"), "click or a press": r.Commit(note.ID), "after the sign-in": r.Commit("s0"),
	} {
		if name != "after the sign-in" && name != "secret" && !refusedArgs(err, strings.Split(name, ":")[0]) && !refusedArgs(err, name) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			t.Errorf("%s was allowed", name)
		}
	}
	if _, err := r.Plan(&Action{Kind: "type", Value: val("x")}, pw, false); !refusedArgs(err, "commit step") {
		t.Errorf("a secret behind the commit step: %v", err)
	}
	for range 8 {
		if err := r.Undo(); err != nil {
			t.Fatal(err)
		}
	}
	if d := r.Definition(); r.Undo() == nil || d.CommitStepID != "" || len(d.Params) != 0 || d.Auth.Kind != AuthNone {
		t.Errorf("after undoing all: %+v", d)
	}
}

// A step is of the sign-in while a secret behind it, or the page's own password field after one, says so: not any longer when
// those steps are undone.
func TestTheSignInOfARecording(t *testing.T) {
	t.Parallel()
	pw := &Element{Locator: Locator{Selector: "#pw"}, Secret: true}
	r := &Recording{StartURL: "https://a.example/"}
	phases := func() (out string) {
		for _, s := range r.Steps {
			out += string(s.Phase) + " "
		}
		return out
	}
	for i, row := range []struct {
		do   func() error
		want string
	}{
		{func() error { record(t, r, Action{Kind: "type", Value: val("7")}, onto("#amount"), true); return nil }, "main "},
		{func() error { record(t, r, Action{Kind: "type", Value: val("oops-1")}, pw, true); return nil }, "auth auth "},
		{r.Undo, "main "},
		{func() error { record(t, r, Action{Kind: "type", Value: val("right")}, pw, true); return nil }, "auth auth "},
		{func() error { record(t, r, Action{Kind: "type", Value: val("8")}, onto("#other"), false); return nil }, "auth auth main "},
		{func() error { record(t, r, Action{Kind: "click"}, onto("#enter"), true); return nil }, "auth auth auth auth "},
		{r.Undo, "auth auth main "},
		{func() error { record(t, r, Action{Kind: "click"}, onto("#send"), true); return r.Commit("s6") }, "auth auth main main "},
		{func() error { record(t, r, Action{Kind: "click"}, onto("#more"), true); return r.Undo() }, "auth auth main main "},
	} {
		if err := row.do(); err != nil || phases() != row.want {
			t.Errorf("%d: %v, phases %s, want %s", i, err, phases(), row.want)
		}
	}
}

// A parameter that an address uses stays, with what it allows, when the step that had its value takes another one and comes back.
func TestAParameterOfAnAddressStays(t *testing.T) {
	t.Parallel()
	r := &Recording{StartURL: "https://a.example/"}
	r.Visit("https://a.example/")
	field := record(t, r, Action{Kind: "type", Value: val("10")}, onto("#order"), false)
	open := record(t, r, Action{Kind: "navigate", Value: val("https://a.example/orders/10")}, nil, false)
	send := record(t, r, Action{Kind: "click"}, onto("#send"), false)
	for _, c := range []struct {
		step, name, part string
		params           string
	}{
		{field.ID, "order", "", "order:false "},
		{open.ID, "order", "10", "order:true "},
		{field.ID, "number", "", "order:true number:false "},
		{field.ID, "count", "", "order:true count:false "},
		{field.ID, "order", "", "order:true "},
	} {
		if err := r.Bind(c.step, c.name, "", c.part); err != nil {
			t.Fatalf("%s to %s: %v", c.step, c.name, err)
		}
		got := ""
		for _, p := range r.Params {
			got += fmt.Sprintf("%s:%v ", p.Name, p.AllowInURL)
		}
		if got != c.params {
			t.Errorf("%s to %s: %s", c.step, c.name, got)
		}
	}
	if err := r.Commit(send.ID); err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(r.Definition())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(Input{Definition: doc, OwnerAttested: true}); err != nil {
		t.Error(err)
	}
}

// service.md, Limits: a recording cannot grow past what can be saved.
func TestARecordingIsBounded(t *testing.T) {
	t.Parallel()
	r := &Recording{StartURL: "https://a.example/"}
	for i := range MaxSteps {
		record(t, r, Action{Kind: "type", Value: val("x")}, onto(fmt.Sprintf("#f%d", i)), false)
		r.Visit(fmt.Sprintf("https://h%d.example/", i))
	}
	if _, err := r.Plan(&Action{Kind: "click"}, onto("#one"), false); !refusedArgs(err, "60 steps") || len(r.Hosts) != MaxHosts {
		t.Errorf("%v, %d hosts", err, len(r.Hosts))
	}
	for _, c := range []struct {
		a    Action
		most int
	}{
		{Action{Kind: "type"}, MaxValue}, {Action{Kind: "select"}, MaxValue}, {Action{Kind: "expect"}, MaxValue}, {Action{Kind: "type", SecretRef: "pw"}, MaxSecret},
		{Action{Kind: "bind", StepID: "s1", Param: "p"}, MaxValue}, {Action{Kind: "navigate"}, MaxURL},
	} {
		form := "ü"
		if c.a.Kind == "navigate" {
			form = "x"
		}
		for _, more := range []int{0, 1} {
			a := c.a
			if a.Value = val(strings.Repeat(form, c.most+more)); a.Kind == "navigate" {
				a.Value = val("https://a.example/" + strings.Repeat(form, c.most+more-len("https://a.example/")))
			}
			var p *problem.Error
			if err := a.Check(); more == 0 && err != nil || more == 1 && (!errors.As(err, &p) || p.Code != problem.CodeValidation || !strings.Contains(p.Detail, fmt.Sprintf("at most %d", c.most))) {
				t.Errorf("%s of %d characters: %v", a.Kind, c.most+more, err)
			}
		}
	}
	for i := range MaxParams {
		if err := r.Bind(r.Steps[i].ID, fmt.Sprintf("p%d", i), "", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Bind(r.Steps[MaxParams].ID, "more", "", ""); !refusedArgs(err, "20 parameters") {
		t.Error(err)
	}
	for i := range MaxResultFields {
		if err := r.Pick(fmt.Sprintf("f%d", i), Locator{Selector: "a"}, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Pick("more", Locator{Selector: "a"}, "", ""); !refusedArgs(err, "20 result fields") || r.Pick("f1", Locator{Selector: "b"}, AttrHref, "") != nil {
		t.Error(err)
	}
	for i := range MaxAssertions {
		if err := r.Expect(nil, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Expect(nil, "more"); !refusedArgs(err, "10 assertions") {
		t.Error(err)
	}
}
