package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
)

const signInSkill = `{"start_url":"https://a.example/","target_hosts":["a.example"],"steps":[
	{"id":"pw","kind":"type","phase":"auth","target":{"selector":"#pw"},"secret":true,"secret_ref":"password"},
	{"id":"send","kind":"click","target":{"selector":"#send"}}],"commit_step_id":"send","auth":{"kind":"credentials","secret_refs":["password"]}}`

func (w *world) skill(t *testing.T, name string) *api.Skill {
	t.Helper()
	parsed, err := skill.Parse(skill.Input{Definition: json.RawMessage(signInSkill), OwnerAttested: true,
		Auth: json.RawMessage(`{"mode":"credentials","secrets":{"password":"canary-77"}}`)})
	if err != nil {
		t.Fatal(err)
	}
	var made *api.Skill
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		made, err = tx.CreateSkill(ctx, &api.SkillCreate{Name: name}, parsed)
		return err
	})
	return made
}

// service.md, Execution rules: secrets are encrypted at rest, and every decryption is audited.
func TestSecretsOfSkills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.skill(t, "Portal")
	var sealed []byte
	if err := w.db.Admin(t).QueryRow(t.Context(), `SELECT credentials FROM browser_skills WHERE id = $1`, made.ID).Scan(&sealed); err != nil || len(sealed) == 0 || bytes.Contains(sealed, []byte("canary")) {
		t.Fatal(err, sealed)
	}
	by := By{Tenant: w.a, Actor: "system"}
	run := id.SkillRunID{UUID: id.NewAnywhere()}
	opened := func() int {
		return w.count(t, `SELECT count(*)::int FROM audit_log WHERE action = 'browser_skill.credential_access' AND target_id = $1 AND detail::text LIKE '%password%' AND detail::text NOT LIKE '%canary%'`, made.ID)
	}
	if s, err := w.OpenSkillSecret(t.Context(), by, made.ID, 1, run, "password"); err != nil || s != "canary-77" || opened() != 1 {
		t.Errorf("%q %v, %d audit rows", s, err, opened())
	}
	for name, open := range map[string]func() (string, error){
		"another revision":  func() (string, error) { return w.OpenSkillSecret(t.Context(), by, made.ID, 2, run, "password") },
		"another reference": func() (string, error) { return w.OpenSkillSecret(t.Context(), by, made.ID, 1, run, "pin") },
		"another tenant": func() (string, error) {
			return w.OpenSkillSecret(t.Context(), By{Tenant: id.TenantID{UUID: id.NewAnywhere()}, Actor: "system"}, made.ID, 1, run, "password")
		},
	} {
		if s, err := open(); err == nil || s != "" || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %q %v", name, s, err)
		}
	}
}

// What a run has committed at the site is on record: a skill is not deleted while one of its runs is between receipt and end. The
// receipt and the deletion wait for each other.
func TestASkillIsNotDeletedInTheMiddleOfACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made, run := w.skill(t, "Portal"), id.SkillRunID{UUID: id.NewAnywhere()}
	admin := w.db.Admin(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	remove := func() error {
		return w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteSkill(ctx, made.ID) })
	}
	exec(`INSERT INTO browser_skill_runs (tenant_id, id, skill_id, slug, revision, created_by, mode, status, key, args, state, created_at)
		VALUES ($1, $2, $3, 's', 1, 'x', 'run', 'committing', 'k', '', '', now())`, w.a, run, made.ID)
	for _, status := range []string{"committing", "committed", "verification_failed"} {
		exec(`UPDATE browser_skill_runs SET status = $2 WHERE id = $1`, run, status)
		if err := remove(); !isCode(err, problem.CodeInUse) {
			t.Errorf("%s: %v", status, err)
		}
	}
	exec(`UPDATE browser_skill_runs SET status = 'running' WHERE id = $1`, run)
	receipt, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = receipt.Rollback(context.Background()) }()
	if _, err := receipt.Exec(t.Context(), `SELECT FROM browser_skills WHERE id = $1 FOR KEY SHARE`, made.ID); err != nil { // as the receipt does
		t.Fatal(err)
	}
	if _, err := receipt.Exec(t.Context(), `UPDATE browser_skill_runs SET status = 'committing' WHERE id = $1`, run); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- remove() }()
	testkit.Eventually(t, "the deletion waits", func() bool {
		return w.count(t, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%browser_skills%'`) == 1
	})
	if err := receipt.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-removed; !isCode(err, problem.CodeInUse) {
		t.Errorf("beside the receipt: %v", err)
	}
	exec(`UPDATE browser_skill_runs SET status = 'succeeded', finished_at = now() WHERE id = $1`, run)
	if err := remove(); err != nil || w.count(t, `SELECT count(*)::int FROM browser_skill_runs WHERE id = $1`, run) != 0 {
		t.Errorf("once it has ended: %v", err)
	}
	if err := remove(); !isCode(err, problem.CodeBrowserSkillNotFound) {
		t.Errorf("once it is gone: %v", err)
	}
}

// open-parts.md, Redaction: what a run shows of a value whose key looks secret is [redacted], by whichever route. The actors and
// the model read the row.
func TestARunShowsNoValueWithASecretKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made, run, agentRun := w.skill(t, "Portal"), id.SkillRunID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}
	if _, err := w.db.Admin(t).Exec(t.Context(), `INSERT INTO runs (tenant_id, id, status, agent_id, origin_kind, origin_id, created_at, finished_at) VALUES ($1, $2, 'succeeded', $2, 'api_key', $2, now(), now())`, w.a, agentRun); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Admin(t).Exec(t.Context(), `INSERT INTO browser_skill_runs (tenant_id, id, skill_id, slug, revision, agent_run_id, created_by, mode, status, key, args, precommit, result, state, created_at)
		VALUES ($1, $2, $3, 's', 1, $4, 'x', 'run', 'prepared', 'k', '', $5, $6, '', now())`, w.a, run, made.ID, agentRun,
		`{"url":"https://a.example/","title":"Form","screenshot_key":"shot","values":{"order":"1001","pin":"canary-1","api_tokens":"canary-2"}}`,
		`{"number":7,"accessToken":"canary-3","reset_password":null}`); err != nil {
		t.Fatal(err)
	}
	one, err := w.View(w.a).SkillRun(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	ofSkill, err := w.View(w.a).SkillRuns(t.Context(), api.SkillRunFilter{Skill: &made.ID}, id.SkillRunID{}, 10)
	if err != nil || len(ofSkill) != 1 {
		t.Fatal(err, len(ofSkill))
	}
	ofRun, err := w.View(w.a).SkillRuns(t.Context(), api.SkillRunFilter{AgentRun: &agentRun}, id.SkillRunID{}, 10)
	if err != nil || len(ofRun) != 1 {
		t.Fatal(err, len(ofRun))
	}
	for name, got := range map[string]*api.SkillRun{"one": one, "of the skill": &ofSkill[0], "of the agent's run": &ofRun[0]} {
		doc, err := json.Marshal(got)
		if err != nil || strings.Contains(string(doc), "canary") || got.Precommit.Values["order"] != "1001" || got.Precommit.Shot != "shot" || got.Precommit.Values["pin"] != redact.Mark ||
			!strings.Contains(string(got.Result), `"number":7`) {
			t.Errorf("%s: %v %s", name, err, doc)
		}
	}
	row, err := NewSkillRuns(w.db.System(t)).Run(t.Context(), w.a, run)
	if err != nil || !bytes.Contains(row.Precommit, []byte("canary-1")) || !bytes.Contains(row.Result, []byte("canary-3")) {
		t.Errorf("the row: %v %s %s", err, row.Precommit, row.Result)
	}
}

// open-parts.md, Credentials follow no changed address: a definition that visits another host drops
// the secrets, unless the same body has some.
func TestASkillThatMovesLosesItsSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		name, from, to string
		auth           string
		dropped        bool
		left           int
	}{
		{"other steps", "#send", "#commit", "", false, 1},
		{"another host", "a.example", "b.example", "", true, 0},
		{"another port", `a.example/","target_hosts":["a.example"`, `a.example:8443/","target_hosts":["a.example:8443"`, "", true, 0},
		{"another host with secrets", "a.example", "b.example", `{"mode":"credentials","secrets":{"password":"next-77"}}`, false, 1},
	} {
		made := w.skill(t, c.name)
		patch := &api.SkillPatch{Definition: api.SkillDefinition(strings.ReplaceAll(signInSkill, c.from, c.to)), OwnerAttested: true}
		if c.auth != "" {
			patch.Auth = api.SkillAuth(c.auth)
		}
		var got *api.Skill
		var dropped bool
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			got, dropped, err = tx.UpdateSkill(ctx, made.ID, patch, SkillSteps{})
			return err
		})
		read, err := w.View(w.a).SkillOf(t.Context(), made.ID)
		if err != nil || dropped != c.dropped || len(got.CredentialMeta.SecretRefs) != c.left || read.Revision != 2 {
			t.Errorf("%s: dropped %v, %v, %+v %v", c.name, dropped, got.CredentialMeta, read, err)
		}
		secret, err := w.OpenSkillSecret(t.Context(), By{Tenant: w.a, Actor: "system"}, made.ID, 2, id.SkillRunID{}, "password")
		if want := map[bool]string{true: "canary-77", false: "next-77"}[c.auth == ""]; c.left == 0 && err == nil || c.left == 1 && (err != nil || secret != want) {
			t.Errorf("%s: %q %v", c.name, secret, err)
		}
	}
}

// An unknown skill and one of another tenant are BROWSER_SKILL_NOT_FOUND.
func TestUnknownSkills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.skill(t, "Portal")
	missing := problem.New(problem.CodeBrowserSkillNotFound, "")
	if _, err := w.View(id.TenantID{UUID: id.NewAnywhere()}).SkillOf(t.Context(), made.ID); !errors.Is(err, missing) {
		t.Error(err)
	}
	if _, err := w.View(w.a).Skill(t.Context(), id.SkillID{UUID: id.NewAnywhere()}); !errors.Is(err, missing) {
		t.Error(err)
	}
}

// A run tells whether its approver may edit, as its plan says; rows of earlier builds, and runs that have not begun, do not know it.
func TestARunTellsWhetherItMayBeEdited(t *testing.T) {
	for doc, want := range map[string]string{
		`{"v":1,"stand":{"plan":{"mode":"run","gate":"at_commit","edits":"allowed"}}}`: "true",
		`{"v":1,"stand":{"plan":{"mode":"run","gate":"at_commit","edits":"refused"}}}`: "false",
		`{"v":1,"stand":{"plan":{"mode":"run","gate":"at_commit"}}}`:                   "null",
		``: "null",
	} {
		run, err := (&SkillRun{State: []byte(doc)}).shown(id.SkillRunID{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(run.AllowEdit); err != nil || string(got) != want {
			t.Errorf("%s is shown as %s, want %s; %v", doc, got, want, err)
		}
	}
}

// A run shows its compensation as it ended, also in rows of earlier builds: those have no steps where none was begun, and say
// that the steps ran where an error tells that they did not.
func TestTheCompensationOfARunIsShown(t *testing.T) {
	for doc, want := range map[string]string{
		`{"ran":true,"steps":null,"error":"This node has no browser."}`:                           `{"ran":false,"steps":[],"error":"This node has no browser."}`,
		`{"ran":true,"steps":[{"id":"u","kind":"click","label":"x","status":"ok"}],"error":null}`: `{"ran":true,"steps":[{"id":"u","kind":"click","label":"x","status":"ok"}],"error":null}`,
		`{"ran":false,"steps":[],"error":"The compensation steps were interrupted."}`:             `{"ran":false,"steps":[],"error":"The compensation steps were interrupted."}`,
	} {
		run, err := (&SkillRun{Compensation: []byte(doc)}).shown(id.SkillRunID{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(run.Compensation); err != nil || string(got) != want {
			t.Errorf("%s is shown as %s, want %s; %v", doc, got, want, err)
		}
	}
}
