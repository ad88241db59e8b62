package consolecheck

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// desk is a web system with one form, which counts what was submitted.
type desk struct {
	*httptest.Server
	sent atomic.Int64
}

const deskPage = `<!doctype html><html lang="en"><title>Complaints</title>
<style>body{font:18px sans-serif;margin:40px}label{display:block;margin:0 0 20px}input,select{font:inherit;display:block;padding:8px;width:400px}button{font:inherit;padding:12px 24px}</style>
<h1>New complaint</h1><form method="post" action="/complaints">
<label>Order number <input id="order" name="order" autocomplete="off"></label>
<label>Cause <select id="cause" name="cause"><option value="">Choose</option><option>Broken</option><option>Late</option></select></label>
<button id="send">Send the complaint</button></form></html>`

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(deskPage))
	})
	mux.HandleFunc("POST /complaints", func(w http.ResponseWriter, r *http.Request) {
		d.sent.Add(1)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!doctype html><title>Thanks</title><h1 id="done">Complaint received</h1>`))
	})
	d.Server = httptest.NewServer(mux)
	t.Cleanup(d.Close)
	return d
}

func (d *desk) host() string { return strings.TrimPrefix(d.URL, "http://") }

// skill makes a skill of the desk.
func (s *service) skill(t *testing.T, d *desk, name string) (id string) {
	t.Helper()
	var made struct{ Skill struct{ ID string } }
	s.call(t, "POST", "/v1/browser-skills", object{"name": name, "owner_attested": true, "description": "Files a complaint.",
		"definition": object{"start_url": d.URL + "/", "target_hosts": []string{d.host()},
			"steps": []object{
				{"id": "order", "kind": "type", "target": object{"selector": "#order", "candidates": []string{"input[name=order]"}}, "param": "order"},
				{"id": "cause", "kind": "select", "target": object{"selector": "#cause"}, "param": "cause"},
				{"id": "send", "kind": "click", "target": object{"selector": "#send", "text": "Send the complaint"}}},
			"params": []object{{"name": "order", "type": "string", "label": "Order number", "required": true, "max_length": 20, "example": "1001"},
				{"name": "cause", "type": "enum", "required": true, "enum": []string{"Broken", "Late", "Lost"}}},
			"commit_step_id": "send", "assertions": []object{{"kind": "element_text", "selector": "#done", "value": "received"}},
			"result_fields": []object{{"name": "said", "selector": "#done"}}},
		"policy": object{"approval": "at_commit_point", "risk_level": "high"}}, &made)
	return made.Skill.ID
}

// Section 5: steps, a dry run that is refused, one that fails and one that lands, its receipt with pictures, policy, pause.
func TestSkills(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	name := fmt.Sprintf("Complaint %d", numbered.Add(1))
	id := shared.skill(t, d, name)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/skills")
	p.heading("Browser skills")
	must(t, p.byRole("link", name).Click())
	p.thing("Browser skills", name)
	steps := p.byRole("table", "Steps")
	must(t, expect.Locator(steps.Locator(`[data-id="send"]`)).ToContainText("commit point"))
	must(t, expect.Locator(steps.Locator(`[data-id="order"]`)).ToContainText("#order"))
	must(t, steps.Locator(`[data-id="order"] summary`).Click())
	must(t, expect.Locator(steps.Locator(`[data-id="order"]`)).ToContainText("input[name=order]"))
	must(t, expect.Locator(p.byRole("table", "Parameters")).ToContainText("Order number"))
	p.accessible("a skill")
	must(t, p.button("Dry run").Click())
	dialog := p.byRole("dialog", "Dry run")
	must(t, dialog.GetByRole("button", named0("Dry run")).Click())
	cause := dialog.GetByRole("combobox")
	must(t, expect.Locator(cause).ToHaveAttribute("aria-invalid", "true"))
	p.accessible("a dry run that misses a value")
	_, err := cause.SelectOption(playwright.SelectOptionValues{Labels: &[]string{"Lost"}}) // the page has no such option
	must(t, err)
	must(t, dialog.GetByRole("button", named0("Dry run")).Click())
	result := p.byRole("region", "Result of the dry run")
	must(t, expect.Locator(result.GetByRole("alert").First()).ToContainText("did not reach the commit point"))
	_, err = cause.SelectOption(playwright.SelectOptionValues{Labels: &[]string{"Late"}})
	must(t, err)
	must(t, dialog.GetByRole("button", named0("Run again")).Click())
	must(t, expect.Locator(result).ToContainText("nothing was submitted"))
	picture := result.GetByRole("button", named0("Open the picture of page before the commit"))
	visible(t, picture)
	until(t, "the picture is there", func() bool {
		n, err := picture.Locator("img").Evaluate("(i) => i.naturalWidth", nil)
		w, _ := n.(int)
		return err == nil && w > 300
	})
	p.picture("console-skill-dryrun")
	p.accessible("a dry run")
	must(t, dialog.GetByRole("button", named0("Close")).First().Click())
	gone(t, dialog)
	if n := d.sent.Load(); n != 0 {
		t.Errorf("dry runs submitted %d complaints", n)
	}
	// The pictures of the run are beside the steps; its receipt is in the list.
	visible(t, steps.Locator(`[data-id="order"]`).GetByRole("button", named0("Open the picture of step 1")))
	must(t, p.byRole("tab", "Runs").Click())
	runs := p.byRole("table", "Runs")
	must(t, expect.Locator(runs.GetByRole("row")).ToHaveCount(3))
	must(t, runs.GetByRole("row").Nth(1).GetByRole("link").Click())
	receipt := p.GetByRole("region", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^Run ")})
	must(t, expect.Locator(receipt.GetByRole("list", named0("Steps done")).Locator("li")).ToHaveCount(2))
	must(t, expect.Locator(receipt).ToContainText("dry run: nothing was submitted"))
	p.accessible("a receipt")
	must(t, receipt.GetByRole("button", named0("Open the picture of page before the commit")).Click())
	visible(t, p.byRole("dialog", "page before the commit").Locator("img"))
	p.press("Escape")
	must(t, p.byRole("tab", "Policy").Click())
	must(t, p.box("SLA minutes").Fill("1"))
	must(t, p.button("Save").Click())
	must(t, expect.Locator(p.box("SLA minutes")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.box("SLA minutes").Fill("90"))
	must(t, p.button("Save").Click())
	until(t, "the policy is saved", func() bool {
		var got struct {
			Skill struct {
				Policy struct {
					Minutes float64 `json:"sla_minutes"`
				}
			}
		}
		shared.call(t, "GET", "/v1/browser-skills/"+id, nil, &got)
		return got.Skill.Policy.Minutes == 90
	})
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	// What is typed stays when somebody else changes the skill, and leaving the tab asks.
	must(t, p.box("Description").Fill("What I type"))
	shared.call(t, "PATCH", "/v1/browser-skills/"+id, object{"policy": object{"approval": "at_commit_point", "risk_level": "high", "approver_role": "admin", "sla_minutes": 120, "required_approvals": 1, "allow_edit_params": false}}, nil)
	must(t, expect.Locator(p.box("SLA minutes")).ToHaveValue("120"))
	must(t, expect.Locator(p.box("Description")).ToHaveValue("What I type"))
	must(t, p.byRole("tab", "Access").Click())
	must(t, p.GetByRole("alertdialog").GetByRole("button", named0("Cancel")).Click())
	must(t, p.button("Save").Click())
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	// Access: a grant is made and revoked.
	agent, agentName := shared.policed(t)
	must(t, p.byRole("tab", "Access").Click())
	must(t, p.button("New grant").Click())
	_, err = p.GetByLabel("Agent", playwright.PageGetByLabelOptions{Exact: playwright.Bool(true)}).SelectOption(playwright.SelectOptionValues{Values: &[]string{agent}})
	must(t, err)
	must(t, p.button("Create").Click())
	grants := p.byRole("table", "Grants")
	must(t, expect.Locator(grants.GetByRole("row")).ToHaveCount(3)) // run, dry_run
	must(t, expect.Locator(grants).ToContainText(agentName))
	p.accessible("grants")
	// What failed in one grant's dialog is not tried again in another's.
	must(t, p.Route("**/grants/*", func(r playwright.Route) { _ = r.Abort() }))
	ask := p.GetByRole("alertdialog")
	must(t, grants.GetByRole("button", named0("Revoke")).First().Click())
	must(t, ask.GetByRole("button", named0("Revoke")).Click())
	visible(t, ask.GetByRole("button", named0("Try again")))
	must(t, ask.GetByRole("button", named0("Cancel")).Click())
	must(t, grants.GetByRole("button", named0("Revoke")).Last().Click())
	visible(t, ask)
	gone(t, ask.GetByRole("button", named0("Try again")))
	must(t, p.Unroute("**/grants/*"))
	must(t, ask.GetByRole("button", named0("Revoke")).Click())
	must(t, expect.Locator(grants.GetByRole("row")).ToHaveCount(2))
	must(t, p.button("Pause").Click())
	must(t, p.byRole("alertdialog", "Pause "+name+"?").GetByRole("button", named0("Pause")).Click())
	visible(t, p.button("Resume"))
	must(t, p.button("Delete").Click())
	must(t, p.byRole("alertdialog", "Delete "+name+"?").GetByRole("button", named0("Delete")).Click())
	p.heading("Browser skills")
	gone(t, p.byRole("link", name))
}

// Section 6: who decides on a run of a skill sees the filled page, in the approval and in the question, and edits only what the
// policy of the skill lets them edit.
func TestWhatASkillWillSubmitIsDecidedOn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	skill := shared.skill(t, d, fmt.Sprintf("Decided %d", numbered.Add(1)))
	var detail struct{ Skill struct{ Slug string } }
	shared.call(t, "GET", "/v1/browser-skills/"+skill, nil, &detail)
	agent, _ := shared.policed(t)
	shared.call(t, "POST", "/v1/browser-skills/"+skill+"/grants", object{"agent_id": agent, "ops": []string{"run"}}, nil)
	tool := "browser_skill:" + detail.Skill.Slug + ".run"
	asks := func(order string) (id string) {
		run := ""
		until(t, "the skill waits", func() bool {
			if run == "" {
				run = shared.run(t, agent, "/call "+tool+` {"order":"`+order+`","cause":"Broken","reason":"r"}`)
			}
			var list struct{ Items []approval }
			shared.call(t, "GET", "/v1/approvals?run_id="+run, nil, &list)
			if len(list.Items) == 1 {
				id = list.Items[0].ID
			}
			var got struct{ Run struct{ Status string } }
			shared.call(t, "GET", "/v1/runs/"+run, nil, &got)
			if s := got.Run.Status; s == "succeeded" || s == "failed" {
				run = "" // without a preview: the browser of a busy machine was not there in time
			}
			return id != ""
		})
		return id
	}
	one := asks("1001")
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/approvals/"+one)
	region := p.byRole("region", tool)
	seen := func(in playwright.Locator, order string) {
		t.Helper()
		page := in.GetByRole("region", named0("Before the commit"))
		contains(t, page, "Complaints")
		contains(t, page, order)
		picture := within(page, "button", "Open the picture of page before the commit")
		until(t, "the picture is there", func() bool {
			n, err := picture.Locator("img").Evaluate("(i) => i.naturalWidth", nil)
			w, _ := n.(int)
			return err == nil && w > 300
		})
	}
	seen(region, "1001")
	p.accessible("an approval of a skill")
	contains(t, region, "The policy of this browser skill does not allow edits.")
	gone(t, within(region, "button", "Edit"))
	p.press("e")
	p.drawn()
	gone(t, p.dialog("Edit arguments"))
	click(t, within(region, "button", "Approve"))
	ask := p.alertdialog("Approve " + tool + "?")
	seen(ask, "1001")
	p.accessible("the question about a skill")
	click(t, within(ask, "button", "Cancel"))
	click(t, region.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: "Receipt of run"}))
	hasURL(t, p, "/console/skills/"+skill+`\?tab=runs&run=[0-9a-f-]{36}$`)
	contains(t, p.GetByRole("region", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^Run ")}), "prepared")

	// Another policy is for runs that begin from then on.
	shared.call(t, "PATCH", "/v1/browser-skills/"+skill, object{"policy": object{"approval": "at_commit_point", "risk_level": "high", "allow_edit_params": true}}, nil)
	two := asks("1002")
	p.goTo("/console/approvals/" + one)
	contains(t, region, "The policy of this browser skill does not allow edits.")
	p.goTo("/console/approvals/" + two)
	seen(region, "1002")
	click(t, within(region, "button", "Edit"))
	visible(t, p.dialog("Edit arguments"))
	if n := d.sent.Load(); n != 0 {
		t.Errorf("%d complaints were submitted", n)
	}

	// Without the preview nothing is approved.
	must(t, p.Route("**/v1/browser-skills/runs/*", func(r playwright.Route) { problem(r, 503, "UNAVAILABLE", nil) }))
	p.goTo("/console/approvals/" + one)
	visible(t, region.GetByRole("alert"))
	must(t, expect.Locator(within(region, "button", "Approve")).ToBeDisabled())
	must(t, expect.Locator(within(region, "button", "Reject")).ToBeEnabled())
	must(t, p.Unroute("**/v1/browser-skills/runs/*")) // it is read again by itself
	seen(region, "1001")
	must(t, expect.Locator(within(region, "button", "Approve")).ToBeEnabled())
}

// A skill is recorded on the live picture: clicks, keys, a list, parameters, the commit point, the dry run, saving.
func TestRecordingASkill(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	v := visit(t, shared, look{width: 1360, height: 900})
	p := v.signedIn(shared.person(t, "admin"), "/console/skills")
	must(t, p.button("New browser skill").First().Click())
	must(t, p.box("Start URL").Fill("ftp://nothing.example"))
	must(t, p.button("Record").Click())
	must(t, expect.Locator(p.box("Start URL")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.box("Start URL").Fill(d.URL+"/"))
	must(t, p.button("Record").Click())
	p.thing("Browser skills", "Record a browser skill")
	stage := p.byRole("application", "Live picture")
	img := stage.Locator("img")
	visible(t, img)
	p.accessible("the recorder")
	var size struct{ W, H float64 }
	until(t, "the picture is there", func() bool {
		raw, err := img.Evaluate("(i) => JSON.stringify({ W: i.naturalWidth, H: i.naturalHeight })", nil)
		text, _ := raw.(string)
		return err == nil && json.Unmarshal([]byte(text), &size) == nil && size.W > 0
	})
	steps := p.byRole("list", "Steps").Locator("li[data-id]")
	at := func(x, y float64) {
		box, err := stage.BoundingBox()
		must(t, err)
		must(t, stage.Click(playwright.LocatorClickOptions{Position: &playwright.Position{X: x * box.Width / size.W, Y: y * box.Width / size.W}}))
	}
	// The form of the desk is laid out from the top left: its field is about there.
	at(140, 148)
	must(t, expect.Locator(steps).ToHaveCount(1))
	must(t, stage.PressSequentially("1002x")) // the keyboard's Type of this library presses no keys
	p.press("Backspace")
	must(t, expect.Locator(steps.First()).ToContainText("1002"))
	must(t, expect.Locator(steps).ToHaveCount(1))
	// A list takes no click: it says so, and an option is selected by words.
	form := p.byRole("form", "Act by words")
	choose := func(label, value string) {
		_, err := form.GetByLabel(label, playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}).SelectOption(playwright.SelectOptionValues{Values: &[]string{value}})
		must(t, err)
	}
	choose("Action", "click")
	must(t, p.box("Element").Fill("#cause"))
	must(t, form.GetByRole("button", named0("Do it")).Click())
	must(t, expect.Locator(p.byRole("region", "Page").GetByRole("alert")).ToContainText("this is a list"))
	choose("Action", "select")
	must(t, p.box("Option").Fill("Late"))
	must(t, p.box("Parameter").Fill("cause"))
	must(t, form.GetByRole("button", named0("Do it")).Click())
	must(t, expect.Locator(steps).ToHaveCount(2))
	must(t, p.button("Make step 1 a parameter").Click())
	must(t, p.byRole("dialog", "Parameter").GetByRole("button", named0("Save")).Click())
	must(t, expect.Locator(p.byRole("table", "Parameters").GetByRole("row")).ToHaveCount(3))
	choose("Action", "commit")
	must(t, p.box("Element").Fill("#send"))
	must(t, form.GetByRole("button", named0("Do it")).Click())
	must(t, expect.Locator(steps.Nth(2)).ToContainText("commit point"))
	_, err := p.Evaluate("scrollTo(0, 0)")
	must(t, err)
	p.picture("console-recorder-light")
	p.accessible("a recording")
	// A reload keeps the session.
	p.OnDialog(func(q playwright.Dialog) { _ = q.Accept() })
	p.reload()
	must(t, expect.Locator(steps).ToHaveCount(3))
	must(t, p.button("Undo last step").Click())
	must(t, expect.Locator(steps).ToHaveCount(2))
	must(t, p.button("Mark commit point").Click())
	at(144, 294)
	must(t, expect.Locator(steps.Nth(2)).ToContainText("commit point"))
	must(t, p.button("Finish and dry run").Click())
	dialog := p.byRole("dialog", "Dry run")
	p.accessible("finishing")
	must(t, dialog.GetByRole("textbox").First().Fill("1003"))
	must(t, dialog.GetByRole("button", named0("Dry run")).Click())
	must(t, expect.Locator(p.byRole("region", "Dry run")).ToContainText("The dry run succeeded"))
	must(t, expect.Locator(p.byRole("region", "Dry run")).ToContainText("1003"))
	must(t, p.button("Save skill").Click())
	name := fmt.Sprintf("Recorded %d", numbered.Add(1))
	save := p.byRole("dialog", "Save skill")
	must(t, p.box("Name").Fill(name))
	must(t, expect.Locator(save.GetByRole("button", named0("Create"))).ToBeDisabled())
	must(t, save.GetByRole("checkbox", named0("I own this site, or may automate it")).Check())
	p.accessible("saving")
	must(t, save.GetByRole("button", named0("Create")).Click())
	p.thing("Browser skills", name)
	must(t, expect.Locator(p.byRole("table", "Steps").GetByRole("row")).ToHaveCount(4))
	if n := d.sent.Load(); n != 0 {
		t.Errorf("recording submitted %d complaints", n)
	}
	if n := v.called("DELETE /v1/browser-skills/recorder-sessions"); n != 0 {
		t.Errorf("a session that was saved was thrown away %d times", n)
	}
}

// A recording has no compensation. That of a skill that is recorded again is kept, unless the person gives it up.
func TestRecordingAgainKeepsTheCompensation(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := shared.skill(t, d, fmt.Sprintf("Complaint %d", numbered.Add(1)))
	p := visit(t, shared, look{}).signedIn(shared.person(t, "admin"), "/console/skills")
	const session = "0198c0de-0000-7000-8000-00000000000e"
	asJSON := func(r playwright.Route, v any) {
		b, err := json.Marshal(v)
		if err == nil {
			err = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("application/json"), Body: string(b)})
		}
		if err != nil {
			t.Error(err)
		}
	}
	undo := []any{map[string]any{"id": "undo", "kind": "click", "target": map[string]any{"selector": "#undo"}}}
	step := object{"id": "s1", "kind": "click", "target": object{"selector": "#send"}}
	must(t, p.Route("**/recorder-sessions/"+session+"*", func(r playwright.Route) {
		asJSON(r, object{"id": session, "status": "ended", "start_url": d.URL + "/", "url": d.URL + "/", "title": "Desk", "steps": []object{step}, "params": []object{}, "commit_step_id": "s1",
			"result_fields": []object{}, "assertions": []object{}, "target_hosts": []string{d.host()}, "auth": object{"kind": "none", "secret_refs": []string{}}, "screenshot_key": "", "width": 1, "height": 1,
			"dry_run": object{"status": "succeeded"}, "expires_at": "2030-01-01T00:00:00Z"})
	}))
	sent := make(chan map[string]any, 3)
	must(t, p.Route("**/v1/browser-skills/"+id, func(r playwright.Route) {
		if r.Request().Method() == "PATCH" {
			var body struct{ Definition map[string]any }
			if err := r.Request().PostDataJSON(&body); err != nil {
				t.Error(err)
			}
			sent <- body.Definition
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(503), ContentType: playwright.String("application/problem+json"), Body: `{"title":"Unavailable","status":503,"code":"UNAVAILABLE"}`})
			return
		}
		resp, err := r.Fetch()
		var detail map[string]any
		if err == nil {
			err = resp.JSON(&detail)
		}
		if err != nil {
			t.Error(err)
			return
		}
		detail["skill"].(map[string]any)["definition"].(map[string]any)["compensation"] = undo
		asJSON(r, detail)
	}))
	p.goTo("/console/skills?record=" + session + "&of=" + id)
	must(t, p.button("Save skill").Click())
	save := p.byRole("dialog", "Save skill")
	keeps := save.GetByRole("checkbox", named0("Keep its compensation (1 step)"))
	must(t, expect.Locator(keeps).ToBeChecked())
	must(t, save.GetByRole("checkbox", named0("I own this site, or may automate it")).Check())
	p.accessible("saving again")
	must(t, save.GetByRole("button", named0("Save")).Click())
	if got := <-sent; !reflect.DeepEqual(got["compensation"], any(undo)) {
		t.Errorf("kept %v", got["compensation"])
	}
	must(t, keeps.Uncheck())
	must(t, save.GetByRole("button", named0("Save")).Click())
	if got, ok := (<-sent)["compensation"]; ok {
		t.Errorf("given up, and sent %v", got)
	}
}

// An action of a recording whose answer is lost is done once, whether it is tried again or repeated
// by hand; a text that was lost is not skipped.
func TestSkillsRecordALostActionOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	v := visit(t, shared, look{width: 1360, height: 900})
	p := v.signedIn(shared.person(t, "admin"), "/console/skills")
	must(t, p.button("New browser skill").First().Click())
	must(t, p.box("Start URL").Fill(d.URL+"/"))
	// What was typed is asked about.
	p.press("Escape")
	must(t, p.byRole("alertdialog", "Discard what you typed?").GetByRole("button", named0("Cancel")).Click())
	must(t, p.button("Record").Click())
	visible(t, p.byRole("application", "Live picture").Locator("img"))
	var lose atomic.Bool
	must(t, p.Route("**/actions", func(r playwright.Route) {
		if !lose.CompareAndSwap(true, false) {
			_ = r.Continue()
			return
		}
		_, _ = r.Fetch() // it is done, and its answer lost
		_ = r.Abort()
	}))
	steps := p.byRole("list", "Steps").Locator("li[data-id]")
	form := p.byRole("form", "Act by words")
	alert := p.byRole("region", "Page").GetByRole("alert")
	must(t, p.box("Element").Fill("#order"))
	must(t, p.box("Text").Fill("1002"))
	lose.Store(true)
	must(t, form.GetByRole("button", named0("Do it")).Click())
	must(t, expect.Locator(alert).ToContainText("Not sent"))
	must(t, alert.GetByRole("button", named0("Try again")).Click())
	gone(t, alert)
	must(t, expect.Locator(steps).ToHaveCount(1))
	must(t, expect.Locator(steps.First()).ToContainText("1002"))
	// A secret is not shown when it is a secret no more.
	must(t, p.byRole("checkbox", "It is a secret").Check())
	must(t, form.GetByLabel("Text", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}).Fill("hunter2"))
	must(t, p.byRole("checkbox", "It is a secret").Uncheck())
	must(t, expect.Locator(p.box("Text")).ToHaveValue(""))
	// Discarding that fails says so.
	must(t, p.button("Undo last step").Click())
	must(t, expect.Locator(steps).ToHaveCount(0))
	must(t, p.Route("**/recorder-sessions/*", func(r playwright.Route) {
		if r.Request().Method() == "DELETE" {
			_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"title":"Internal error","status":500,"code":"INTERNAL"}`})
			return
		}
		_ = r.Continue()
	}))
	must(t, p.button("Discard").Click())
	must(t, expect.Locator(p.GetByRole("alert")).ToContainText("Internal error"))
}

// Section 2: a member reads; texts of sites and skills are hostile; errors and unknown ids.
func TestSkillsForMembers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := shared.skill(t, d, "Complaint <img src=x>\u202e for members")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/skills/"+id)
	p.heading("Browser skills")
	contains(t, p.Locator("h2").First(), "<img src=x>")
	contains(t, p.Locator("h2").First(), "U+202E")
	for _, name := range []string{"Dry run", "Record again", "Pause", "Delete"} {
		gone(t, p.button(name))
	}
	must(t, p.byRole("tab", "Runs").Click())
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No runs yet"}))
	must(t, p.byRole("tab", "Policy").Click())
	must(t, expect.Locator(p.box("Name")).ToBeDisabled())
	gone(t, p.button("Save"))
	must(t, p.byRole("tab", "Access").Click())
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No grants yet"}))
	gone(t, p.button("New grant"))
	p.goTo("/console/skills/00000000-0000-7000-8000-000000000000")
	p.heading("Not found")
	must(t, p.Route(regexp.MustCompile(`/v1/browser-skills\?`), func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(200), ContentType: playwright.String("application/json"), Body: `{"items":[],"next_cursor":null}`})
	}))
	p.goTo("/console/skills")
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No browser skills yet"}))
	gone(t, p.button("New browser skill"))
	p.accessible("no skills")
	must(t, p.Unroute(regexp.MustCompile(`/v1/browser-skills\?`)))
	must(t, p.Route(regexp.MustCompile(`/v1/browser-skills\?`), func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"title":"It broke","code":"INTERNAL","status":500,"detail":"the disk"}`})
	}))
	p.goTo("/console/skills")
	must(t, expect.Locator(p.GetByRole("alert")).ToContainText("INTERNAL"))
}

// Section 8: axe finds nothing serious, and nothing scrolls sideways.
func TestTheTourOfSkills(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := shared.skill(t, d, "File a complaint")
	var ran struct{ Run struct{ ID string } }
	shared.call(t, "POST", "/v1/browser-skills/"+id+"/dry-run", object{"params": object{"order": "1001", "cause": "Late"}}, &ran)
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {width: 1360, height: 850}, "dark": {width: 1360, height: 850, dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := visit(t, shared, l).signedIn(email, "/console/skills")
			for _, stop := range []struct{ path, heading, picture string }{
				{"", "Browser skills", "skills"},
				{"/" + id, "Browser skills", "skill"},
				{"/" + id + "?tab=runs&run=" + ran.Run.ID, "Browser skills", "skill-run"},
				{"/" + id + "?tab=policy", "Browser skills", "skill-policy"},
				{"/" + id + "?tab=access", "Browser skills", ""},
			} {
				p.goTo("/console/skills" + stop.path)
				p.heading(stop.heading)
				must(t, expect.Locator(p.Locator(".loading")).ToHaveCount(0))
				p.accessible(stop.path + " in " + name)
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("%s scrolls sideways by %v", stop.path, wide)
				}
				if stop.picture != "" {
					until(t, "the pictures are there", func() bool {
						n, err := p.Evaluate("[...document.querySelectorAll('main img')].filter((i) => !i.complete && i.getBoundingClientRect().top < innerHeight).length")
						return err == nil && n == 0
					})
					p.picture("console-" + stop.picture + "-" + name)
				}
			}
			must(t, p.button("Dry run").Click())
			p.accessible("Dry run in " + name)
			p.press("Escape")
			p.goTo("/console/skills")
			must(t, p.button("New browser skill").First().Click())
			p.accessible("New browser skill in " + name)
		})
	}
}
