package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

// makeSkill creates the skill of the examples.
func makeSkill(ctx context.Context, tx *store.Tx, slug string) (id.SkillID, error) {
	parsed, err := skill.Parse(skill.Input{Definition: json.RawMessage(sampleSkillDefinition), OwnerAttested: true})
	if err != nil {
		return id.SkillID{}, err
	}
	made, err := tx.CreateSkill(ctx, &api.SkillCreate{Name: "Carrier claim", Slug: &slug}, parsed)
	if err != nil {
		return id.SkillID{}, err
	}
	return made.ID, nil
}

// dryRuns is a SkillRuns that answers each dry run at once.
type dryRuns struct {
	mu    sync.Mutex // guards the fields below
	fails error
	runs  []api.SkillRun
	idem  *store.Idem // of the last
}

func (d *dryRuns) DryRun(_ context.Context, by store.By, of *store.Skill, v skill.Values) (*api.SkillRun, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idem = by.Idem
	if d.fails != nil {
		return nil, d.fails
	}
	r := sampleDryRun
	r.ID, r.SkillID = id.SkillRunID{UUID: id.NewAnywhere()}, of.ID
	page := *r.Precommit
	page.Values = map[string]string{}
	for _, name := range v.Names() {
		page.Values[name], _ = v.Text(name)
	}
	r.Precommit = &page
	d.runs = append([]api.SkillRun{r}, d.runs...)
	return &r, nil
}

func (d *dryRuns) Runs(_ context.Context, _ store.View, f api.SkillRunFilter, _ id.SkillRunID, _ int) ([]api.SkillRun, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := []api.SkillRun{}
	for _, r := range d.runs {
		if f.AgentRun == nil && (f.Skill == nil || *f.Skill == r.SkillID) {
			out = append(out, r)
		}
	}
	return out, nil
}

func (d *dryRuns) Run(_ context.Context, _ store.View, run id.SkillRunID) (*api.SkillRun, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.runs {
		if d.runs[i].ID == run {
			return &d.runs[i], nil
		}
	}
	return nil, nil
}

// service.md, Browser skills; open-parts.md, Browser skills: each row is one case, and the cases
// run in order on one tenant.
func TestSkillRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	runs := &dryRuns{}
	w.Platform.SkillRuns = runs
	signIn := strings.NewReplacer(`"steps":[`, `"steps":[{"id":"pw","kind":"type","phase":"auth","target":{"selector":"#pw"},"value":null,"secret":true,"secret_ref":"password"},`,
		`"auth":{"kind":"none","secret_refs":[]}`, `"auth":{"kind":"credentials","secret_refs":["password"]}`).Replace(sampleSkillDefinition)
	body := func(name, fields string) string {
		return `{"name": "` + name + `", "owner_attested": true, "definition": ` + sampleSkillDefinition + fields + `}`
	}
	const skills, one = "/v1/browser-skills", "/v1/browser-skills/{skill}"
	w.routes(fill, []route{
		{"list", "GET", skills, "", 200, "", `"slug":"carrier-claim"`, ""},
		{"a slug is made from the name", "POST", skills, body("Book a room", ""), 201, "", `"slug":"book-a-room"`, "browser_skill.create"},
		{"a name that is taken gets a number", "POST", skills, body("Book a room", ""), 201, "", `"slug":"book-a-room-2"`, "browser_skill.create"},
		{"a slug that is taken", "POST", skills, body("X", `, "slug": "carrier-claim"`), 409, problem.CodeSlugTaken, "", ""},
		{"not attested", "POST", skills, `{"name": "X", "definition": ` + sampleSkillDefinition + `}`, 400, problem.CodeBrowserSkillAttestationRequired, "owner_attested", ""},
		{"no definition", "POST", skills, `{"name": "X", "owner_attested": true}`, 400, problem.CodeValidation, "definition: is required", ""},
		{"a rule between values", "POST", skills, body("X", `, "policy": {"approval": "none_for_idempotent_reads", "risk_level": "low"}`), 400, problem.CodeBrowserSkillInvalid, "policy.approval", ""},
		{"a policy out of range", "POST", skills, body("X", `, "policy": {"required_approvals": 4}`), 400, problem.CodeValidation, "policy.required_approvals", ""},
		{"an unknown recorder session", "POST", skills, body("X", `, "recorder_session_id": "{unknown}"`), 400, problem.CodeBrowserSkillInvalid, "recorder_session_id: unknown session", ""},
		{"surplus secrets", "POST", skills, body("X", `, "auth": {"mode": "credentials", "secrets": {"password": "hidden-77"}}`), 400, problem.CodeBrowserSkillInvalid, "auth.mode", ""},
		{"an unknown org node", "POST", skills, body("X", `, "node_id": "{unknown}"`), 400, problem.CodeValidation, "node_id", ""},
		{"a name of 121 characters", "POST", skills, body(strings.Repeat("x", 121), ""), 400, problem.CodeValidation, "name", ""},
		{"an unknown field", "POST", skills, body("X", `, "color": 1`), 400, problem.CodeValidation, "color", ""},
		{"secrets are never returned", "POST", skills, `{"name": "Sign in", "owner_attested": true, "definition": ` + signIn + `, "auth": {"mode": "credentials", "secrets": {"password": "hidden-77"}}}`,
			201, "", `"credential_meta":{"kind":"credentials","secret_refs":["password"]}`, "browser_skill.create"},
		{"read", "GET", one, "", 200, "", `"grants":[],"runs":[]`, ""},
		{"an unknown skill", "GET", skills + "/{unknown}", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"an id that is none", "GET", skills + "/x", "", 404, problem.CodeBrowserSkillNotFound, "is not a valid id", ""},
		{"the id of a run that is none", "GET", skills + "/runs/x", "", 404, problem.CodeBrowserSkillNotFound, "is not a valid id", ""},
		{"an unknown run", "GET", skills + "/runs/{unknown}", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"rename", "PATCH", one, `{"name": "Claim", "description": "d"}`, 200, "", `"name":"Claim","description":"d"`, "browser_skill.update"},
		{"a policy keeps its other members", "PATCH", one, `{"policy": {"approval": "always_before_run"}}`, 200, "", `"approval":"always_before_run"`, "browser_skill.update"},
		{"and again", "PATCH", one, `{"policy": {"required_approvals": 3}}`, 200, "", `"approval":"always_before_run","risk_level":"medium","approver_role":"admin","sla_minutes":1440,"required_approvals":3`, "browser_skill.update"},
		{"a policy that does not fit", "PATCH", one, `{"policy": {"approval": "none_for_idempotent_reads", "risk_level": "low"}}`, 400, problem.CodeBrowserSkillInvalid, "policy.approval", ""},
		{"a definition alone", "PATCH", one, `{"definition": ` + sampleSkillDefinition + `}`, 400, problem.CodeBrowserSkillInvalid, "definition", ""},
		{"a definition that is not attested", "PATCH", one, `{"definition": ` + sampleSkillDefinition + `, "recorder_session_id": "{unknown}"}`, 400, problem.CodeBrowserSkillInvalid, "owner_attested", ""},
		{"a definition of an unknown session", "PATCH", one, `{"definition": ` + sampleSkillDefinition + `, "recorder_session_id": "{unknown}", "owner_attested": true}`, 400, problem.CodeBrowserSkillInvalid, "unknown session", ""},
		{"a slug stays", "PATCH", one, `{"slug": "x"}`, 400, problem.CodeValidation, "slug", ""},
		{"pause", "PATCH", one, `{"enabled": false}`, 200, "", `"enabled":false`, "browser_skill.update"},
		{"resume", "PATCH", one, `{"enabled": true}`, 200, "", `"enabled":true`, "browser_skill.update"},
		{"limit it to an org node", "PATCH", one, `{"node_id": "{node}"}`, 200, "", `"node_id":"{node}"`, "browser_skill.update"},
		{"and to none", "PATCH", one, `{"node_id": null}`, 200, "", `"node_id":null`, "browser_skill.update"},
		{"a grant to nobody", "POST", one + "/grants", `{"ops": ["run"]}`, 400, problem.CodeValidation, "agent_id", ""},
		{"a grant to two", "POST", one + "/grants", `{"agent_id": "{agent}", "node_id": "{node}", "ops": ["run"]}`, 400, problem.CodeValidation, "agent_id", ""},
		{"a grant of nothing", "POST", one + "/grants", `{"agent_id": "{agent}", "ops": []}`, 400, problem.CodeValidation, "ops", ""},
		{"a grant of something else", "POST", one + "/grants", `{"agent_id": "{agent}", "ops": ["drive"]}`, 400, problem.CodeValidation, "ops[0]", ""},
		{"a grant to an unknown agent", "POST", one + "/grants", `{"agent_id": "{unknown}", "ops": ["run"]}`, 400, problem.CodeValidation, "agent_id: there is no such agent", ""},
		{"a grant of an unknown skill", "POST", skills + "/{unknown}/grants", `{"agent_id": "{agent}", "ops": ["run"]}`, 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"a grant to an agent publishes", "POST", one + "/grants", `{"agent_id": "{agent}", "ops": ["run", "dry_run"]}`, 201, "", `"op":"dry_run"`, "agent.version.create agent.publish browser_skill.grant"},
		{"its manifest names the skill", "GET", "/v1/agents/{agent}/versions?limit=1", "", 200, "", `"browser_skills":[{"skill":"carrier-claim","allow":["run","dry_run"]}]`, ""},
		{"the same grant again changes nothing", "POST", one + "/grants", `{"agent_id": "{agent}", "ops": ["run"]}`, 201, "", `"op":"run"`, "browser_skill.grant"},
		{"a grant to an org node", "POST", one + "/grants", `{"node_id": "{node}", "ops": ["*"]}`, 201, "", `"op":"*"`, "browser_skill.grant"},
		{"tool grants list them", "GET", "/v1/tool-grants?limit=1", "", 200, "", `"tool_pattern":"browser_skill:carrier-claim.*"`, ""},
		{"tool grants refuse to make them", "POST", "/v1/tool-grants", `{"source": "browser_skill", "tool_pattern": "*", "effect": "allow"}`, 400, problem.CodeValidation, "source", ""},
		{"grants", "GET", one + "/grants?limit=1", "", 200, "", `"op":"*"`, ""},
		{"an unknown grant", "DELETE", one + "/grants/{unknown}", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"a grant of another kind", "DELETE", one + "/grants/{grant}", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"attach", "POST", "/v1/integrations/attach", `{"connector": {"kind": "browser_skill", "id": "{skill}"}, "tools": ["run"], "targets": [{"agent_id": "{draft}"}], "publish": false}`,
			200, "", `"agent_id":"{draft}","version":2,"published":false`, "agent.version.create browser_skill.grant"},
		{"attach to one that is unknown", "POST", "/v1/integrations/attach", `{"connector": {"kind": "browser_skill", "id": "{skill}"}, "tools": ["dry_run"], "targets": [{"agent_id": "{draft}"}, {"agent_id": "{unknown}"}], "publish": true}`,
			400, problem.CodeValidation, "targets[1].agent_id: there is no such agent", ""},
		{"attach to one twice", "POST", "/v1/integrations/attach", `{"connector": {"kind": "browser_skill", "id": "{skill}"}, "tools": ["run"], "targets": [{"agent_id": "{draft}"}, {"agent_id": "{draft}"}]}`, 400, problem.CodeValidation, "targets[1].agent_id", ""},
		{"attach another kind", "POST", "/v1/integrations/attach", `{"connector": {"kind": "mcp", "id": "{skill}"}, "tools": ["run"], "targets": [{"agent_id": "{draft}"}]}`, 400, problem.CodeValidation, "connector.kind", ""},
		{"attach an unknown skill", "POST", "/v1/integrations/attach", `{"connector": {"kind": "browser_skill", "id": "{unknown}"}, "tools": ["run"], "targets": [{"agent_id": "{draft}"}]}`, 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"a dry run with a value that is missing", "POST", one + "/dry-run", `{"params": {}}`, 422, problem.CodeInvalidArgs, "params.order", ""},
		{"a dry run with an unknown value", "POST", one + "/dry-run", `{"params": {"order": "1", "other": 2}}`, 422, problem.CodeInvalidArgs, "params.other", ""},
		{"a dry run", "POST", one + "/dry-run", `{"params": {"order": 1001}}`, 200, "", `"values":{"order":"1001"}`, ""},
		{"its runs", "GET", one + "/runs", "", 200, "", `"mode":"dry_run","status":"succeeded"`, ""},
		{"all runs", "GET", skills + "/runs", "", 200, "", `"mode":"dry_run"`, ""},
		{"runs of one agent run", "GET", skills + "/runs?agent_run_id={unknown}", "", 200, "", `"items":[]`, ""},
		{"residency", "PATCH", "/v1/tenant", `{"residency": {"allowed_hosts": ["other.example"]}}`, 403, problem.CodeForbidden, "", ""},
	}, "hidden-77")

	_, err := w.admin.Exec(t.Context(), `UPDATE tenants SET residency = '{"allowed_hosts": ["other.example"]}' WHERE id = $1`, w.a.tenant)
	w.must(err)
	run := id.SkillRunID{UUID: id.NewAnywhere()}
	_, err = w.admin.Exec(t.Context(), `INSERT INTO browser_skill_runs (tenant_id, id, skill_id, slug, revision, created_by, mode, status, key, held, args, state, created_at, finished_at)
		VALUES ($1, $2, $3, 's', 1, 'x', 'run', 'succeeded', '', false, '', '', now(), now())`, w.a.tenant, run, w.a.skill)
	w.must(err)
	key := store.SkillShot(w.a.tenant, run, strings.Repeat("s", 64)+".2")
	_, _, err = w.Platform.Files.Put(t.Context(), key, bytes.NewReader([]byte("jpeg")), 100)
	w.must(err)
	if got := w.call(w.a, "GET", "/v1/browser-skills/artifacts/"+key, ""); got.status != 200 || got.body != "jpeg" || got.header.Get("Content-Type") != "image/jpeg" || !strings.HasPrefix(got.header.Get("Cache-Control"), "private") {
		t.Errorf("the screenshot: %d %s %v", got.status, got.body, got.header)
	}
	if got := w.call(w.b, "GET", "/v1/browser-skills/artifacts/"+key, ""); got.status != 404 {
		t.Errorf("another tenant's screenshot: %d", got.status)
	}
	runs.mu.Lock()
	runs.fails = &problem.Error{Code: problem.CodeBrowserSkillRunFailed, Detail: "The order field was not found.", Extensions: map[string]any{"extensions": map[string]any{"code": "not_found", "run_id": id.NewAnywhere().String()}}}
	runs.mu.Unlock()
	w.routes(fill, []route{
		{"a host that residency does not allow", "POST", skills, body("Far", ""), 400, problem.CodeBrowserSkillInvalid, "residency", ""},
		{"a dry run that does not land", "POST", one + "/dry-run", `{"params": {"order": "1"}}`, 502, problem.CodeBrowserSkillRunFailed, `"code":"not_found"`, ""},
		{"delete", "DELETE", one, "", 204, "", "", "browser_skill.delete"},
		{"delete again", "DELETE", one, "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"its grants are gone", "GET", one + "/grants", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
	})
	// Its file is still in the store: the sweep of files removes it later.
	if got := w.call(w.a, "GET", "/v1/browser-skills/artifacts/"+key, ""); got.status != 404 || got.code() != string(problem.CodeNotFound) {
		t.Errorf("the screenshot of a run that was deleted with its skill: %d %s", got.status, got.body)
	}
	for name, path := range map[string]string{
		"another tenant's":      "browser-skills/" + w.b.tenant.String() + "/{unknown}/s.jpg",
		"one that is not there": "browser-skills/" + w.a.tenant.String() + "/{unknown}/s.jpg",
		"a way out":             "browser-skills/" + w.a.tenant.String() + "/%2e%2e/{unknown}/s.jpg",
		"another kind of file":  "attachments/" + w.a.tenant.String() + "/" + w.a.attachment.String(),
	} {
		if got := w.call(w.a, "GET", "/v1/browser-skills/artifacts/"+fill.Replace(path), ""); got.status != 404 || got.code() != string(problem.CodeNotFound) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	var left int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*) FROM tool_grants WHERE tenant_id = $1 AND source = 'browser_skill'", w.a.tenant).Scan(&left))
	if left != 0 {
		t.Errorf("%d grants are left", left)
	}
	runs.mu.Lock()
	runs.fails = nil
	runs.mu.Unlock()
	for _, replayed := range []string{"", "true"} {
		if got := w.call(w.b, "POST", "/v1/browser-skills/"+w.b.skill.String()+"/dry-run", `{"params": {"order": "1"}}`, "Idempotency-Key", "k"); got.status != 200 || got.header.Get("Idempotency-Replayed") != replayed {
			t.Errorf("a dry run with a key: %d %s, replayed %q", got.status, got.body, got.header.Get("Idempotency-Replayed"))
		}
	}
	if runs.idem == nil {
		t.Error("the dry run does not know the key of its request, which other nodes may repeat")
	}
	w.Platform.SkillRuns = nil
	made := w.call(w.b, "POST", "/v1/browser-skills/"+w.b.skill.String()+"/dry-run", `{"params": {"order": "1"}}`)
	if made.status != 503 || made.code() != string(problem.CodeBrowserSkillUnavailable) {
		t.Errorf("without a browser: %d %s", made.status, made.body)
	}
}
