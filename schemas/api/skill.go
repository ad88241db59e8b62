package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/id"
	"agentsvc/schemas/skill"
)

// Skill is a browser skill (service.md, Browser skill; open-parts.md, Browser skills). It never
// holds a credential.
type Skill struct {
	ID             id.SkillID            `json:"id" doc:"The id, a version 7 UUID."`
	Slug           string                `json:"slug" doc:"Unique in the tenant. It stays."`
	Name           string                `json:"name" doc:"For people."`
	Description    string                `json:"description" doc:"What the model reads about its tools."`
	Definition     SkillDefinition       `json:"definition" doc:"What it does, with its defaults."`
	Policy         SkillPolicy           `json:"policy" doc:"Who approves its runs, with its defaults."`
	CredentialMeta SkillCredentials      `json:"credential_meta" doc:"What is known of the credentials."`
	NodeID         *id.NodeID            `json:"node_id" doc:"Only agents on this org node or below it get its tools; null: all may."`
	Enabled        bool                  `json:"enabled" doc:"false: no agent gets its tools."`
	RecorderID     *id.RecorderSessionID `json:"recorder_session_id" doc:"The recorder session whose steps it has; null: the steps were sent."`
	OwnerAttested  bool                  `json:"owner_attested" doc:"true: who saved it owns the site or may automate it."`
	CreatedAt      time.Time             `json:"created_at" doc:"UTC."`
	UpdatedAt      time.Time             `json:"updated_at" doc:"UTC."`
}

// SkillCredentials names the stored secrets of a skill without their values.
type SkillCredentials struct {
	Kind       skill.AuthKind `json:"kind" doc:"How the skill signs in."`
	SecretRefs []string       `json:"secret_refs" doc:"The names of the stored secrets."`
}

// SkillCreate is the body of POST /v1/browser-skills.
type SkillCreate struct {
	Name          string                `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Slug          *string               `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"Made from the name when omitted."`
	Description   string                `json:"description,omitempty" maxLength:"2000" doc:"What the model reads about its tools."`
	Definition    SkillDefinition       `json:"definition" doc:"What it does."`
	Policy        SkillPolicy           `json:"policy,omitempty" doc:"Who approves its runs; omitted members have their defaults."`
	Auth          SkillAuth             `json:"auth,omitempty" doc:"The secrets of its sign-in. Stored encrypted, never returned."`
	RecorderID    *id.RecorderSessionID `json:"recorder_session_id,omitempty" nullable:"true" doc:"An ended recorder session, whose steps are taken if the definition has none."`
	OwnerAttested bool                  `json:"owner_attested,omitempty" doc:"Must be true: you own the site, or may automate it. Omitted or false: BROWSER_SKILL_ATTESTATION_REQUIRED."`
	Enabled       *bool                 `json:"enabled,omitempty" default:"true" doc:"Omitted: true."`
	NodeID        *id.NodeID            `json:"node_id,omitempty" nullable:"true" doc:"An org node of the tenant: only agents on it or below it get the tools."`
}

// SkillPatch is the body of PATCH /v1/browser-skills/{id}; omitted fields stay.
type SkillPatch struct {
	Name          *string               `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Description   *string               `json:"description,omitempty" maxLength:"2000" doc:"What the model reads about its tools."`
	Policy        SkillPolicyPatch      `json:"policy,omitempty" doc:"Its omitted members stay."`
	Enabled       *bool                 `json:"enabled,omitempty" doc:"false: no agent gets its tools."`
	NodeID        Opt[id.NodeID]        `json:"node_id,omitzero" doc:"null: agents of every org node may get the tools."`
	Auth          SkillAuth             `json:"auth,omitempty" doc:"Replaces all secrets."`
	Definition    SkillDefinition       `json:"definition,omitempty" doc:"Only together with recorder_session_id and owner_attested: a change is taught anew. A host that it did not have drops the stored secrets, unless the same body has auth."`
	RecorderID    *id.RecorderSessionID `json:"recorder_session_id,omitempty" doc:"An ended recorder session."`
	OwnerAttested bool                  `json:"owner_attested,omitempty" doc:"Must be true with a definition."`
}

// SkillAnswer wraps a new skill.
type SkillAnswer struct {
	Skill *Skill `json:"skill" null:"false"`
}

// SkillDetail is the response of GET and PATCH /v1/browser-skills/{id}.
type SkillDetail struct {
	Skill              *Skill       `json:"skill" null:"false"`
	Grants             []SkillGrant `json:"grants" doc:"Who may call its tools, newest first; at most 100 of them."`
	Runs               []SkillRun   `json:"runs" doc:"The last 20 runs, newest first."`
	CredentialsDropped bool         `json:"credentials_dropped,omitempty" doc:"true: the skill opens another origin now, and the old secrets were dropped."`
}

// SkillGrantOp is an operation that a grant allows.
type SkillGrantOp string

// Values of SkillGrantOp.
const (
	GrantRun    SkillGrantOp = "run"
	GrantDryRun SkillGrantOp = "dry_run"
	GrantAll    SkillGrantOp = "*"
)

// SkillGrantOps lists every value.
var SkillGrantOps = []SkillGrantOp{GrantRun, GrantDryRun, GrantAll}

// SkillGrant allows an agent, or the agents and workflows of an org node, an operation of a skill.
type SkillGrant struct {
	ID        id.GrantID   `json:"id" doc:"The id, a version 7 UUID: that of the tool grant."`
	AgentID   *id.AgentID  `json:"agent_id" doc:"The one agent that it is for."`
	NodeID    *id.NodeID   `json:"node_id" doc:"The org node whose agents and workflows it is for, with those below."`
	Op        SkillGrantOp `json:"op" doc:"*: both."`
	CreatedAt time.Time    `json:"created_at" doc:"UTC."`
}

// SkillGrantCreate is the body of POST /v1/browser-skills/{id}/grants.
type SkillGrantCreate struct {
	AgentID *id.AgentID    `json:"agent_id,omitempty" nullable:"true" doc:"The agent. Its newest manifest gets the operations too, in a new version that is published."`
	NodeID  *id.NodeID     `json:"node_id,omitempty" nullable:"true" doc:"Or an org node: grants only, the manifests stay."`
	Ops     []SkillGrantOp `json:"ops" minItems:"1" maxItems:"3" doc:"What is allowed."`
}

// Attach is the body of POST /v1/integrations/attach.
type Attach struct {
	Connector AttachConnector `json:"connector" doc:"What is attached."`
	Tools     []skill.Op      `json:"tools" minItems:"1" maxItems:"2" doc:"Which of its tools."`
	Targets   []AttachTarget  `json:"targets" minItems:"1" maxItems:"50" doc:"The agents that get them: all of them, or none."`
	Publish   bool            `json:"publish,omitempty" doc:"true: the new versions are published. Omitted: they stay drafts."`
}

// AttachConnector names what is attached.
type AttachConnector struct {
	Kind string     `json:"kind" enum:"browser_skill" doc:"The kind of the connector."`
	ID   id.SkillID `json:"id" doc:"The browser skill."`
}

// AttachTarget is one agent.
type AttachTarget struct {
	AgentID id.AgentID `json:"agent_id" doc:"The agent."`
}

// Attached is what one target has now.
type Attached struct {
	AgentID   id.AgentID   `json:"agent_id" doc:"The agent."`
	Version   int          `json:"version" doc:"Its newest version, whose manifest names the tools."`
	Published bool         `json:"published" doc:"true: new runs use this version."`
	Grants    []SkillGrant `json:"grants" doc:"One for each tool."`
}

// SkillDryRun is the body of POST /v1/browser-skills/{id}/dry-run.
type SkillDryRun struct {
	Params SkillParams `json:"params,omitempty" doc:"A value for each parameter, by its name."`
}

// RecorderStart is the body of POST /v1/browser-skills/recorder-sessions.
type RecorderStart struct {
	StartURL string `json:"start_url" minLength:"1" maxLength:"2048" doc:"Where the recording begins: an http or https URL that the service may reach."`
}

// RecorderAction is the body of POST /v1/browser-skills/recorder-sessions/{id}/actions.
type RecorderAction struct {
	Kind      skill.ActionKind `json:"kind" doc:"A kind of step, which is performed and recorded, or what marks the recording: bind makes the value of a step a parameter, commit marks the commit step, pick makes an element a result field, expect an assertion, undo removes the last step."`
	X         *float64         `json:"x,omitempty" minimum:"0" maximum:"4096" doc:"The element at this point of the picture, in pixels; with y."`
	Y         *float64         `json:"y,omitempty" minimum:"0" maximum:"4096" doc:"With x."`
	Target    *skill.Locator   `json:"target,omitempty" doc:"The element, in place of x and y. Without either, type, select, check and press act on the element that has the focus."`
	Value     Value            `json:"value,omitempty" doc:"As the value of a step: text, the option, true or false, a key, milliseconds, pixels, the URL. bind: the part of a navigate step's URL. expect: the text; omitted: what the element says now."`
	SecretRef string           `json:"secret_ref,omitempty" pattern:"^[a-z][a-z0-9_]*$" maxLength:"64" doc:"type: the value is a secret of this name. A password field is one without it."`
	Commit    bool             `json:"commit,omitempty" doc:"click, press: it is the commit step, and is performed. A confirm dialog that it opens is accepted."`
	StepID    string           `json:"step_id,omitempty" maxLength:"64" doc:"bind, commit: a recorded step. A commit without it records a click on the element that is not performed."`
	Param     string           `json:"param,omitempty" pattern:"^[a-z][a-z0-9_]{0,63}$" doc:"type, select, check, bind: the parameter that takes the place of the value."`
	Name      string           `json:"name,omitempty" pattern:"^[A-Za-z_][A-Za-z0-9_]{0,63}$" doc:"pick: the name of the result field."`
	Type      skill.ParamType  `json:"type,omitempty" doc:"Of the parameter or the result field. Omitted: as the element tells, else string."`
	Attr      skill.Attr       `json:"attr,omitempty" doc:"pick: what is read of the element. Omitted: text."`
}

// RecorderFinish is the body of POST /v1/browser-skills/recorder-sessions/{id}/finish.
type RecorderFinish struct {
	Params    SkillParams `json:"params,omitempty" doc:"The values of the dry run, by parameter. Omitted: as they were recorded."`
	ReadsOnly bool        `json:"reads_only,omitempty" doc:"true: the skill changes nothing, so that all of its steps are replayed without a commit step."`
}

// SkillParams are the values of a call as they were sent: an object.
type SkillParams json.RawMessage

// MarshalJSON returns the document.
func (p SkillParams) MarshalJSON() ([]byte, error) { return json.RawMessage(p).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (p *SkillParams) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(p).UnmarshalJSON(b) }

// Schema is an object; its members are checked against the skill.
func (SkillParams) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

// SkillRunAnswer wraps a run of a skill.
type SkillRunAnswer struct {
	Run *SkillRun `json:"run" null:"false"`
}

// SkillRun is one run of a skill (open-parts.md, Browser skills).
type SkillRun struct {
	ID           id.SkillRunID       `json:"id" doc:"The id, a version 7 UUID."`
	SkillID      id.SkillID          `json:"skill_id" doc:"The skill."`
	AgentRunID   *id.RunID           `json:"agent_run_id" doc:"The run of an agent or workflow that made it; null: a person's dry run."`
	ApprovalID   *id.ApprovalID      `json:"approval_id" doc:"The approval that decides on it; null: there is none."`
	Mode         skill.Mode          `json:"mode" doc:"dry_run: it submits nothing."`
	Status       skill.Status        `json:"status" doc:"prepared: it waits for the decision."`
	Code         *skill.Code         `json:"code" doc:"Why it did not land; null: it did, or has not ended."`
	Precommit    *skill.Page         `json:"precommit" doc:"What the page showed before the commit step; null: it did not get there."`
	Steps        []skill.StepResult  `json:"steps" doc:"What was done, in order."`
	Verification []skill.CheckResult `json:"verification" doc:"The checks after the commit, in order."`
	Result       Value               `json:"result" doc:"An object by result field; null: nothing was read."`
	Compensation *SkillCompensation  `json:"compensation" doc:"What was done after a commit whose checks failed; null: nothing."`
	Duplicate    bool                `json:"duplicate" doc:"true: the same call was made again, and got the result of this run."`
	AllowEdit    *bool               `json:"allow_edit_params" doc:"Whether the approver may change the values: what the policy of the skill said when the run began. null: a run of an earlier build, for which the policy of now counts."`
	CreatedAt    time.Time           `json:"created_at" doc:"UTC."`
	FinishedAt   *time.Time          `json:"finished_at" doc:"null: it has not ended."`
}

// SkillCompensation reports the compensation steps of a run: what ran, never that it undid.
type SkillCompensation struct {
	Ran   bool               `json:"ran" doc:"true: every step ran."`
	Steps []skill.StepResult `json:"steps" doc:"What was done, in order."`
	Error *string            `json:"error" doc:"Why it did not run to its end, in plain words; null: it did."`
}

// SkillRunFilter narrows a list of runs of skills; nil narrows nothing.
type SkillRunFilter struct {
	Skill    *id.SkillID
	AgentRun *id.RunID
}

// SkillDefinition is a definition: as it was sent in a request, with its defaults in a response.
// Package schemas/skill validates it and names every field that breaks a rule.
type SkillDefinition json.RawMessage

// MarshalJSON returns the document.
func (d SkillDefinition) MarshalJSON() ([]byte, error) { return json.RawMessage(d).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (d *SkillDefinition) UnmarshalJSON(b []byte) error {
	return (*json.RawMessage)(d).UnmarshalJSON(b)
}

// Schema has no constraints, because complaints about a definition come from one place; the
// document shows skill.Definition.
func (SkillDefinition) Schema(r huma.Registry) *huma.Schema { return shownAs[skill.Definition](r) }

// SkillPolicy is a policy, kept and shown like a SkillDefinition.
type SkillPolicy json.RawMessage

// MarshalJSON returns the document.
func (p SkillPolicy) MarshalJSON() ([]byte, error) { return json.RawMessage(p).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (p *SkillPolicy) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(p).UnmarshalJSON(b) }

// Schema has no constraints; the document shows skill.Policy.
func (SkillPolicy) Schema(r huma.Registry) *huma.Schema { return shownAs[skill.Policy](r) }

// SkillPolicyPatch is a change of a policy.
type SkillPolicyPatch json.RawMessage

// MarshalJSON returns the document.
func (p SkillPolicyPatch) MarshalJSON() ([]byte, error) { return json.RawMessage(p).MarshalJSON() }

// UnmarshalJSON keeps the document.
func (p *SkillPolicyPatch) UnmarshalJSON(b []byte) error {
	return (*json.RawMessage)(p).UnmarshalJSON(b)
}

// Schema has no constraints; the document shows a skill.Policy without defaults, because omitted
// members stay.
func (SkillPolicyPatch) Schema(r huma.Registry) *huma.Schema {
	const name = "SkillPolicyPatch"
	shown := *r.SchemaFromRef(r.Schema(reflect.TypeFor[skill.Policy](), true, "").Ref)
	shown.Description = "A change of the policy of a browser skill; omitted members stay."
	shown.Properties = maps.Clone(shown.Properties)
	for of, p := range shown.Properties {
		p := *p
		p.Default = nil
		shown.Properties[of] = &p
	}
	r.Map()[name] = &shown
	return &huma.Schema{Extensions: map[string]any{ShownAs: "#/components/schemas/" + name}}
}

// SkillAuth is the write-only auth of a request. It must not be logged.
type SkillAuth json.RawMessage

// UnmarshalJSON keeps the document.
func (a *SkillAuth) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(a).UnmarshalJSON(b) }

// MarshalJSON never shows a secret.
func (a SkillAuth) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// String never shows a secret.
func (a SkillAuth) String() string { return "[redacted]" }

// Schema has no constraints; the document shows SkillSecrets.
func (SkillAuth) Schema(r huma.Registry) *huma.Schema { return shownAs[SkillSecrets](r) }

// SkillSecrets is the form of SkillAuth.
type SkillSecrets struct {
	Mode    skill.AuthKind    `json:"mode" doc:"As auth.kind of the definition."`
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"A value for each of auth.secret_refs of the definition. For cookies it is a JSON array of { name, value, domain, path, … } as text."`
}

func shownAs[T any](r huma.Registry) *huma.Schema {
	return &huma.Schema{Extensions: map[string]any{ShownAs: r.Schema(reflect.TypeFor[T](), true, "").Ref}}
}
