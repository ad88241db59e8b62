package platform

import (
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
	"agentsvc/transport/edge"
)

const (
	sampleSkillDefinition = `{"start_url":"https://portal.example.com/claims","target_hosts":["portal.example.com"],"steps":[` +
		`{"id":"order","kind":"type","target":{"selector":"#order"},"param":"order"},` +
		`{"id":"send","kind":"click","target":{"selector":"#send"}}],` +
		`"params":[{"name":"order","type":"string","label":"Order number","required":true,"max_length":20}],"commit_step_id":"send",` +
		`"assertions":[{"kind":"text_present","value":"Thank you"}],"result_fields":[{"name":"claim","selector":"#claim","attr":"text","type":"string"}],` +
		`"compensation":[],"auth":{"kind":"none","secret_refs":[]}}`
	sampleSkillPolicy = `{"approval":"at_commit_point","risk_level":"medium","approver_role":"admin","sla_minutes":1440,"required_approvals":1,"allow_edit_params":false}`
)

var (
	sampleSkill = api.Skill{ID: id.SkillID{UUID: sample(0x60)}, Slug: "carrier-claim", Name: "Carrier claim", Description: "Files a claim for a lost parcel.",
		Definition: api.SkillDefinition(sampleSkillDefinition), Policy: api.SkillPolicy(sampleSkillPolicy),
		CredentialMeta: api.SkillCredentials{Kind: skill.AuthNone, SecretRefs: []string{}}, Enabled: true, OwnerAttested: true, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleSkillBody = map[string]any{"name": "Carrier claim", "slug": "carrier-claim", "description": "Files a claim for a lost parcel.", "owner_attested": true,
		"definition": map[string]any{"start_url": "https://portal.example.com/claims", "target_hosts": []string{"portal.example.com"},
			"steps": []map[string]any{
				{"id": "order", "kind": "type", "target": map[string]any{"selector": "#order"}, "param": "order"},
				{"id": "send", "kind": "click", "target": map[string]any{"selector": "#send"}}},
			"params": []map[string]any{{"name": "order", "type": "string", "required": true}}, "commit_step_id": "send"},
		"policy": map[string]any{"approval": "at_commit_point", "risk_level": "medium"}}
	sampleSkillGrant  = api.SkillGrant{ID: id.GrantID{UUID: sample(0x61)}, AgentID: &sampleAgentID, Op: api.GrantRun, CreatedAt: sampleTime}
	sampleAttached    = api.Attached{AgentID: sampleAgentID, Version: 2, Published: true, Grants: []api.SkillGrant{sampleSkillGrant}}
	sampleRecorderID  = id.RecorderSessionID{UUID: sample(0x63)}
	sampleSkillRunID  = id.SkillRunID{UUID: sample(0x62)}
	sampleSkillShot   = "browser-skills/" + sampleTenant.ID.String() + "/" + sampleSkillRunID.String() + "/order.jpg"
	sampleSkillResult = skill.StepResult{ID: "order", Kind: skill.Type, Label: "Type order", Status: skill.StepOK, Shot: sampleSkillShot}
	sampleSkillRun    = api.SkillRun{ID: sampleSkillRunID, SkillID: sampleSkill.ID, AgentRunID: &sampleRunID, ApprovalID: &sampleApprovalID, Mode: skill.Run, Status: skill.Succeeded,
		Precommit:    &skill.Page{URL: "https://portal.example.com/claims", Title: "Claims", Shot: sampleSkillShot, Values: map[string]string{"order": "1001"}},
		Steps:        []skill.StepResult{sampleSkillResult},
		Verification: []skill.CheckResult{{Kind: skill.TextPresent, OK: true, Expected: "Thank you", Actual: "Thank you"}}, Result: api.Value(`{"claim":"C-77"}`),
		CreatedAt: sampleTime, FinishedAt: &sampleEnd}
	sampleDryRun = func() api.SkillRun {
		r := sampleSkillRun
		r.AgentRunID, r.ApprovalID, r.Mode, r.Verification, r.Result = nil, nil, skill.DryRun, []skill.CheckResult{}, nil
		return r
	}()
	sampleRecorder = skill.RecorderSession{ID: sampleRecorderID, Status: skill.RecorderLive, StartURL: "https://portal.example.com/claims", URL: "https://portal.example.com/claims", Title: "Claims",
		Steps:  []skill.Step{{ID: "s1", Phase: skill.Main, Kind: skill.Type, Target: &skill.Locator{Selector: `label:has-text("Order number") input`, Candidates: []string{"#order"}}, Value: text("1001"), Param: "order"}},
		Params: []skill.Param{{Name: "order", Type: skill.String, Label: "Order", Required: true, Example: text("1001")}}, ResultFields: []skill.Field{}, Assertions: []skill.Check{},
		TargetHosts: []string{"portal.example.com"}, Auth: skill.Auth{Kind: skill.AuthNone, SecretRefs: []string{}},
		Shot: "browser-skills/" + sampleTenant.ID.String() + "/" + sampleRecorderID.String() + "/p4.jpg", Width: 1024, Height: 720, ExpiresAt: sampleEnd}
	sampleFinished = func() skill.RecorderSession {
		s := sampleRecorder
		s.Status, s.CommitStepID = skill.RecorderEnded, "s2"
		s.Steps = append(s.Steps[:1:1], skill.Step{ID: "s2", Phase: skill.Main, Kind: skill.Click, Target: &skill.Locator{Selector: `button:has-text("Send")`, Candidates: []string{"#send"}, Text: "Send"}})
		s.DryRun = &skill.Replay{Status: skill.ReplayLanded, URL: "https://portal.example.com/claims", Title: "Claims", Values: map[string]string{"order": "1001"}}
		return s
	}()
	sampleSkillDetail = api.SkillDetail{Skill: &sampleSkill, Grants: []api.SkillGrant{sampleSkillGrant}, Runs: []api.SkillRun{sampleSkillRun}}
)

func text(s string) *skill.Text { return (*skill.Text)(&s) }

// describeSkills adds the descriptions of this section's types.
func describeSkills(t *edge.Table) {
	edge.Enum(t, skill.StepStatuses...)
	edge.Enum(t, skill.Kinds...)
	edge.Enum(t, skill.CheckKinds...)
	edge.Doc[api.Skill](t, "A browser skill, without its secrets.")
	edge.Doc[api.SkillCredentials](t, "What is known of a skill's secrets.")
	edge.Doc[api.SkillSecrets](t, "The secrets of a skill's sign-in. Write-only.")
	edge.Doc[api.SkillCreate](t, "A browser skill to create.")
	edge.Doc[api.SkillPatch](t, "A change of a browser skill; omitted fields stay.")
	edge.Doc[api.SkillAnswer](t, "A new browser skill.")
	edge.Doc[api.SkillDetail](t, "A browser skill with its grants and its last runs.")
	edge.Doc[api.List[api.Skill]](t, "A page of browser skills.")
	edge.Doc[api.SkillGrant](t, "Allows an operation of a skill.")
	edge.Doc[api.List[api.SkillGrant]](t, "A page of a skill's grants.")
	edge.Doc[api.SkillGrantCreate](t, "Operations to allow.")
	edge.Doc[api.Items[api.SkillGrant]](t, "The grants that were made.")
	edge.Doc[api.Attach](t, "What to attach, and to which agents.")
	edge.Doc[api.AttachConnector](t, "What is attached.")
	edge.Doc[api.AttachTarget](t, "One agent.")
	edge.Doc[api.Attached](t, "What one agent has now.")
	edge.Doc[api.Items[api.Attached]](t, "What the targets have now, in the order of the request.")
	edge.Doc[api.SkillDryRun](t, "The values of a dry run.")
	edge.Doc[api.SkillRun](t, "One run of a browser skill.")
	edge.Doc[api.List[api.SkillRun]](t, "A page of runs of browser skills.")
	edge.Doc[api.SkillRunAnswer](t, "A run of a browser skill.")
	edge.Doc[api.SkillCompensation](t, "What was done after a commit whose checks failed.")
	edge.Doc[skill.Definition](t, "What a browser skill does. Unknown fields are refused.")
	edge.Doc[skill.Step](t, "One step.")
	edge.Doc[skill.Locator](t, "Finds an element: by selector, then by each candidate, then by its visible text.")
	edge.Doc[skill.Param](t, "A value that a call supplies.")
	edge.Doc[skill.Check](t, "What must hold after the commit.")
	edge.Doc[skill.Field](t, "A value that is read from the last page.")
	edge.Doc[skill.Auth](t, "How a skill signs in, and the names of its secrets.")
	edge.Doc[skill.Policy](t, "Who approves the runs of a skill. Manifests and approval policies only tighten it.")
	edge.Doc[api.RecorderStart](t, "Where a recording begins.")
	edge.Doc[api.RecorderAction](t, "One action of a person.")
	edge.Doc[api.RecorderFinish](t, "How a recording is tried.")
	edge.Doc[skill.RecorderSession](t, "A session in which a browser skill is recorded. It holds no secret.")
	edge.Doc[skill.Replay](t, "The dry run of a recording.")
	edge.Doc[skill.StepResult](t, "What became of a step.")
	edge.Doc[skill.Page](t, "What the page showed before the commit step.")
	edge.Doc[skill.CheckResult](t, "The outcome of a check.")
}
