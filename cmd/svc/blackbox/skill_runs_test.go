package blackbox

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
)

const cancelsOrder = `{
 "start_url": "URL/login", "target_hosts": ["HOST"],
 "auth": {"kind": "credentials", "secret_refs": ["user", "password"]},
 "params": [{"name":"order","type":"string","required":true,"allow_in_url":true},{"name":"cause","type":"enum","enum":["The customer asked","stock"],"required":true},{"name":"note","type":"string"}],
 "steps": [
  {"id":"user","phase":"auth","kind":"type","target":{"selector":"#user"},"value":null,"secret":true,"secret_ref":"user"},
  {"id":"pass","phase":"auth","kind":"type","target":{"selector":"#password"},"value":null,"secret":true,"secret_ref":"password"},
  {"id":"enter","phase":"auth","kind":"click","target":{"selector":"#sign-in"}},
  {"id":"open","kind":"navigate","value":"URL/orders/{{order}}"},
  {"id":"begin","kind":"click","target":{"selector":"#cancel"}},
  {"id":"cause","kind":"select","target":{"selector":"#reason"},"param":"cause"},
  {"id":"note","kind":"type","target":{"selector":"#note"},"param":"note"},
  {"id":"commit","kind":"click","target":{"selector":"#confirm"}}],
 "commit_step_id": "commit",
 "assertions": [{"kind":"element_text","selector":"#status","value":"cancelled","match":"equals"}],
 "result_fields": [{"name":"order","selector":"#number","type":"integer"}],
 "compensation": []
}`

// backOffice is a site with a skill that cancels its orders, and an agent that may use it.
type backOffice struct {
	*site.Site
	url, skill, slug, agent string
}

func (c *caller) backOffice(t *testing.T, name string, policy object) *backOffice {
	t.Helper()
	return c.backOfficeOf(t, name, policy, cancelsOrder, byPassword)
}

func byPassword(*site.Site) object {
	return object{"mode": "credentials", "secrets": object{"user": site.User, "password": site.Password}}
}

// backOfficeOf makes one whose skill has another definition, and the auth that goes with it.
func (c *caller) backOfficeOf(t *testing.T, name string, policy object, definition string, auth func(*site.Site) object) *backOffice {
	t.Helper()
	ctx := within(t, 20*time.Second)
	b := &backOffice{Site: site.New(site.Options{})}
	server := httptest.NewServer(b.Site)
	t.Cleanup(server.Close)
	b.url = server.URL
	definition = strings.NewReplacer("URL", server.URL, "HOST", strings.TrimPrefix(server.URL, "http://")).Replace(definition)
	var made struct{ Skill struct{ ID, Slug string } }
	c.ask(t, ctx, 201, "POST", "/v1/browser-skills", object{"name": name, "definition": json.RawMessage(definition), "policy": policy, "owner_attested": true,
		"auth": auth(b.Site)}, &made)
	b.skill, b.slug = made.Skill.ID, made.Skill.Slug
	b.agent = c.publish(t, "Clerk of "+name, simulatedModel)
	c.ask(t, ctx, 201, "POST", "/v1/browser-skills/"+b.skill+"/grants", object{"agent_id": b.agent, "ops": []string{"run", "dry_run"}}, nil)
	return b
}

type skillRun struct {
	ID, Mode, Status string
	Code             *string
	ApprovalID       *string `json:"approval_id"`
	AgentRunID       *string `json:"agent_run_id"`
	Precommit        *struct {
		URL, ScreenshotKey string
		Values             map[string]string
	}
	Steps     []struct{ ID, Status string }
	Result    map[string]any
	Duplicate bool
}

func (c *caller) skillRun(t *testing.T, run string) skillRun {
	t.Helper()
	var out struct{ Run skillRun }
	c.ask(t, within(t, 10*time.Second), 200, "GET", "/v1/browser-skills/runs/"+run, nil, &out)
	return out.Run
}

type skillApproval struct {
	ID        string
	Tool      string
	SkillRun  *string `json:"browser_skill_run_id"`
	Reasoning string  `json:"reasoning_summary"`
	Policy    struct{ Kind string }
}

func (c *caller) pendingOf(t *testing.T, run string) skillApproval {
	t.Helper()
	var list struct{ Items []skillApproval }
	c.ask(t, within(t, 10*time.Second), 200, "GET", "/v1/approvals?status=pending&run_id="+run, nil, &list)
	if len(list.Items) != 1 {
		t.Fatalf("%d approvals wait", len(list.Items))
	}
	return list.Items[0]
}

// toolOutput returns what the model heard of the run's one call.
func toolOutput(r *runAnswer) string {
	for _, s := range r.Steps {
		if s.Kind == "tool" {
			return string(s.Output)
		}
	}
	return ""
}

// An agent cancels an order in a back office: the form is filled, a person sees it and approves, and
// the order is cancelled once. An edit commits the edited
// values, a rejection commits nothing, and so does a dry run.
func TestAnAgentRunsABrowserSkill(t *testing.T) { // not parallel: a browser has a low priority
	c := sharedNode(t).tenant("browser skills")
	b := c.backOffice(t, "Cancel", object{"allow_edit_params": true})
	call := func(op, order, rest string) string {
		return `/call browser_skill:` + b.slug + `.` + op + ` {"order":"` + order + `","cause":"stock"` + rest + `}`
	}
	run := c.runOnce(t, within(t, 20*time.Second), b.agent, call("run", "1001", `,"reason":"the customer called"`))
	c.poll(t, within(t, 60*time.Second), run, "waiting_approval")
	a := c.pendingOf(t, run)
	if a.SkillRun == nil || a.Reasoning != "the customer called" || a.Policy.Kind != "skill" {
		t.Fatalf("%+v", a)
	}
	before := c.skillRun(t, *a.SkillRun)
	if before.Status != "prepared" || before.Precommit == nil || before.Precommit.Values["cause"] != "stock" || before.ApprovalID == nil || *before.ApprovalID != a.ID || b.Effects("1001") != 0 {
		t.Errorf("%+v, %d effects", before, b.Effects("1001"))
	}
	if got := c.decides(t, within(t, 20*time.Second), a.ID, object{"action": "approve"}); got != "approved 1" {
		t.Fatal(got)
	}
	r := c.poll(t, within(t, 60*time.Second), run, "succeeded")
	after := c.skillRun(t, *a.SkillRun)
	if after.Status != "succeeded" || b.Effects("1001") != 1 || after.Result["order"] != 1001.0 {
		t.Errorf("%+v, %d effects, %s", after, b.Effects("1001"), r.shape())
	}
	if got := toolOutput(r); !strings.Contains(got, `browser_skill:`+b.slug+`#`+*a.SkillRun) || strings.Contains(got, site.Password) {
		t.Errorf("the model heard %s", got)
	}

	edits := c.runOnce(t, within(t, 20*time.Second), b.agent, call("run", "1002", `,"reason":"r"`))
	c.poll(t, within(t, 60*time.Second), edits, "waiting_approval")
	a = c.pendingOf(t, edits)
	if x := c.refused(t, within(t, 20*time.Second), 422, a.ID, object{"action": "edit", "edited_args": object{"order": "1002", "cause": "whim"}}); x.code() != "INVALID_ARGS" {
		t.Errorf("an edit outside the schema: %s", x)
	}
	if got := c.decides(t, within(t, 20*time.Second), a.ID, object{"action": "edit", "edited_args": object{"order": "1002", "cause": "The customer asked", "note": "edited"}}); got != "edited 1" {
		t.Fatal(got)
	}
	c.poll(t, within(t, 60*time.Second), edits, "succeeded")
	if o, _ := b.Order("1002"); b.Effects("1002") != 1 || o.Note != "edited" {
		t.Errorf("%d effects, %+v", b.Effects("1002"), o)
	}

	rejected := c.runOnce(t, within(t, 20*time.Second), b.agent, call("run", "1003", `,"reason":"r"`))
	c.poll(t, within(t, 60*time.Second), rejected, "waiting_approval")
	a = c.pendingOf(t, rejected)
	c.decides(t, within(t, 20*time.Second), a.ID, object{"action": "reject", "feedback": "no"})
	if r := c.poll(t, within(t, 60*time.Second), rejected, "succeeded"); !strings.Contains(toolOutput(r), `"rejected":true,"feedback":"no"`) {
		t.Errorf("the model heard %s", toolOutput(r))
	}
	eventually(t, within(t, 20*time.Second), "the run is rejected", func() bool { return c.skillRun(t, *a.SkillRun).Status == "rejected" })

	cancelled := c.runOnce(t, within(t, 20*time.Second), b.agent, call("run", "1003", `,"reason":"r"`))
	c.poll(t, within(t, 60*time.Second), cancelled, "waiting_approval")
	a = c.pendingOf(t, cancelled)
	c.ask(t, within(t, 20*time.Second), 200, "POST", "/v1/runs/"+cancelled+"/cancel", nil, nil)
	eventually(t, within(t, 20*time.Second), "the run of a cancelled agent is rejected", func() bool { return c.skillRun(t, *a.SkillRun).Status == "rejected" })

	dry := c.poll(t, within(t, 60*time.Second), c.runOnce(t, within(t, 20*time.Second), b.agent, call("dry_run", "1003", "")), "succeeded")
	if got := toolOutput(dry); !strings.Contains(got, `"cause":"stock"`) || !strings.Contains(got, `"committed":false`) {
		t.Errorf("the model heard %s", got)
	}
	var tried struct{ Run skillRun }
	c.ask(t, within(t, 60*time.Second), 200, "POST", "/v1/browser-skills/"+b.skill+"/dry-run", object{"params": object{"order": "1003", "cause": "stock"}}, &tried)
	if tried.Run.Mode != "dry_run" || tried.Run.Status != "succeeded" || tried.Run.AgentRunID != nil {
		t.Errorf("%+v", tried.Run)
	}
	if x := c.ask(t, within(t, 60*time.Second), 502, "POST", "/v1/browser-skills/"+b.skill+"/dry-run", object{"params": object{"order": "404404", "cause": "stock"}}, nil); x.code() != "BROWSER_SKILL_RUN_FAILED" ||
		!strings.Contains(string(x.body), `"run_id"`) {
		t.Errorf("a dry run that does not land: %s", x)
	}
	if b.Effects("1003") != 0 {
		t.Errorf("%d effects without an approval", b.Effects("1003"))
	}
}

// cookieJar is a secret that signs in to a back office.
func cookieJar(b *site.Site) object {
	doc, err := json.Marshal([]object{{"name": "session", "value": b.Session(), "domain": "127.0.0.1", "path": "/", "httpOnly": true}})
	if err != nil {
		panic(err)
	}
	return object{"mode": "cookies", "secrets": object{"jar": string(doc)}}
}

// byCookies is cancelsOrder with cookies in place of the steps that sign in.
var byCookies = strings.NewReplacer(`"URL/login"`, `"URL/orders"`, `{"kind": "credentials", "secret_refs": ["user", "password"]}`, `{"kind": "cookies", "secret_refs": ["jar"]}`).
	Replace(cancelsOrder[:strings.Index(cancelsOrder, `  {"id":"user"`)] + cancelsOrder[strings.Index(cancelsOrder, `  {"id":"open"`):])

// A skill signs in with cookies of the vault: no answer holds them, each opening is audited, and cookies that
// the site forgot are replaced by a PATCH.
func TestASkillSignsInWithCookies(t *testing.T) { // not parallel: a browser has a low priority
	c := sharedNode(t).tenant("cookies of skills")
	b := c.backOfficeOf(t, "By cookies", object{}, byCookies, cookieJar)
	ctx := within(t, 90*time.Second)
	var seen struct {
		Skill struct {
			Meta struct {
				Kind string
				Refs []string `json:"secret_refs"`
			} `json:"credential_meta"`
		}
	}
	if got := c.ask(t, ctx, 200, "GET", "/v1/browser-skills/"+b.skill, nil, &seen); seen.Skill.Meta.Kind != "cookies" || strings.Join(seen.Skill.Meta.Refs, " ") != "jar" || strings.Contains(string(got.body), "httpOnly") {
		t.Errorf("it shows %s", got)
	}
	dry := func(status int) (answer, skillRun) {
		t.Helper()
		var tried struct{ Run skillRun }
		got := c.ask(t, ctx, status, "POST", "/v1/browser-skills/"+b.skill+"/dry-run", object{"params": object{"order": "1001", "cause": "stock"}}, &tried)
		return got, tried.Run
	}
	if got, run := dry(200); run.Status != "succeeded" || b.Hits("GET /login") != 0 || b.Effects("1001") != 0 {
		t.Errorf("%s, %d visits of the login page", got, b.Hits("GET /login"))
	}
	b.Set(site.Knobs{Expired: true})
	if got, _ := dry(502); !strings.Contains(string(got.body), `"session_expired"`) {
		t.Errorf("an ended session: %s", got)
	}
	b.Set(site.Knobs{})
	c.ask(t, ctx, 400, "PATCH", "/v1/browser-skills/"+b.skill, object{"auth": object{"mode": "cookies", "secrets": object{"jar": "session=x"}}}, nil)
	c.ask(t, ctx, 200, "PATCH", "/v1/browser-skills/"+b.skill, object{"auth": cookieJar(b.Site)}, nil)
	if got, run := dry(200); run.Status != "succeeded" {
		t.Errorf("with fresh cookies: %s", got)
	}
	var audit struct{ Items []struct{ Action string } }
	c.ask(t, ctx, 200, "GET", "/v1/audit?action=browser_skill.credential_access", nil, &audit)
	if len(audit.Items) != 3 {
		t.Errorf("%d openings are audited", len(audit.Items))
	}
}
