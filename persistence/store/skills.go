package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// skillRow is a row as the API shows it.
type skillRow struct {
	ID                id.SkillID
	Slug              string
	Name              string
	Description       string
	Definition        json.RawMessage
	Policy            json.RawMessage
	SecretRefs        []string
	NodeID            *id.NodeID
	Enabled           bool
	RecorderSessionID *id.RecorderSessionID
	CreatedAt         time.Time
	UpdatedAt         time.Time
}

func (r *skillRow) shown() (*api.Skill, error) {
	var d struct {
		Auth struct {
			Kind skill.AuthKind `json:"kind"`
		} `json:"auth"`
	}
	if err := json.Unmarshal(r.Definition, &d); err != nil {
		return nil, fmt.Errorf("read browser skill %s: %w", r.ID, err)
	}
	return &api.Skill{ID: r.ID, Slug: r.Slug, Name: r.Name, Description: r.Description, Definition: api.SkillDefinition(r.Definition), Policy: api.SkillPolicy(r.Policy),
		CredentialMeta: api.SkillCredentials{Kind: d.Auth.Kind, SecretRefs: r.SecretRefs}, NodeID: r.NodeID, Enabled: r.Enabled,
		RecorderID: r.RecorderSessionID, OwnerAttested: true, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}, nil
}

// NoSkill is the problem for a browser skill, or what belongs to it, that the tenant does not
// have.
func NoSkill(what string) *problem.Error {
	return problem.New(problem.CodeBrowserSkillNotFound, "There is no such "+what+".")
}

const skillWord = "browser skill"

func foundSkill(row *skillRow, err error) (*skillRow, error) {
	if err == nil && row == nil {
		err = NoSkill(skillWord)
	}
	return row, err
}

// Skills returns browser skills, newest first.
func (v View) Skills(ctx context.Context, at id.SkillID, limit int) ([]api.Skill, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[skillRow](ctx, v, "skills", v.tenant, from, n)
	if err != nil {
		return nil, err
	}
	out := make([]api.Skill, len(rows))
	for i := range rows {
		s, err := rows[i].shown()
		if err != nil {
			return nil, err
		}
		out[i] = *s
	}
	return out, nil
}

// Skill returns one browser skill; an unknown one is BROWSER_SKILL_NOT_FOUND.
func (v View) Skill(ctx context.Context, s id.SkillID) (*api.Skill, error) {
	row, err := foundSkill(one[skillRow](ctx, v, "skill", v.tenant, s))
	if err != nil {
		return nil, err
	}
	return row.shown()
}

// Skill is a browser skill as its runs and its tools need it. Its secrets are opened one by one
// with OpenSkillSecret.
type Skill struct {
	ID          id.SkillID
	Slug        string
	Name        string
	Description string
	Definition  *skill.Definition
	Policy      *skill.Policy
	SecretRefs  []string // of the stored secrets
	// Revision counts definitions. A secret is opened for the revision that it was given for.
	Revision  int
	NodeID    *id.NodeID // limits it to agents on the node or below
	Enabled   bool
	Residency skill.Residency // of the tenant; nil: no limit
}

type skillOf struct {
	ID          id.SkillID
	Slug        string
	Name        string
	Description string
	Definition  json.RawMessage
	Policy      json.RawMessage
	SecretRefs  []string
	Revision    int
	NodeID      *id.NodeID
	Enabled     bool
	Residency   *api.Residency
}

func (r *skillOf) read() (*Skill, error) {
	d, err := skill.Load(r.Definition)
	if err != nil {
		return nil, fmt.Errorf("browser skill %s: %w", r.ID, err)
	}
	p, err := skill.LoadPolicy(r.Policy)
	if err != nil {
		return nil, fmt.Errorf("browser skill %s: %w", r.ID, err)
	}
	return &Skill{ID: r.ID, Slug: r.Slug, Name: r.Name, Description: r.Description, Definition: d, Policy: p, SecretRefs: r.SecretRefs, Revision: r.Revision,
		NodeID: r.NodeID, Enabled: r.Enabled, Residency: residencyOf(r.Residency)}, nil
}

func residencyOf(r *api.Residency) skill.Residency {
	if r == nil {
		return nil
	}
	return append(skill.Residency{}, r.AllowedHosts...) // an empty list allows nothing
}

// SkillOf returns a browser skill with the residency of its tenant, disabled ones too; an unknown
// one is BROWSER_SKILL_NOT_FOUND.
func (v View) SkillOf(ctx context.Context, s id.SkillID) (*Skill, error) {
	row, err := one[skillOf](ctx, v, "skill_of", v.tenant, s)
	switch {
	case err != nil:
		return nil, err
	case row == nil:
		return nil, NoSkill(skillWord)
	}
	return row.read()
}

// SkillsOf returns the skills with these slugs, disabled ones too, in the order of their slugs.
func (v View) SkillsOf(ctx context.Context, slugs []string) ([]*Skill, error) {
	if len(slugs) == 0 {
		return nil, nil
	}
	rows, err := all[skillOf](ctx, v, "skills_of_slugs", v.tenant, slugs)
	if err != nil {
		return nil, err
	}
	return readSkills(rows)
}

// SkillsWithin is SkillsOf for those whose definitions have that many bytes together; it reads no
// others.
func (v View) SkillsWithin(ctx context.Context, slugs []string, bytes int) ([]*Skill, error) {
	rows, err := all[skillOf](ctx, v, "skills_within", v.tenant, slugs, bytes)
	if err != nil {
		return nil, err
	}
	return readSkills(rows)
}

func readSkills(rows []skillOf) (out []*Skill, err error) {
	out = make([]*Skill, len(rows))
	for i := range rows {
		if out[i], err = rows[i].read(); err != nil {
			return nil, err
		}
		rows[i].Definition = nil // it is decoded
	}
	return out, nil
}

// SkillSlugs returns those of slugs that belong to a skill.
func (v View) SkillSlugs(ctx context.Context, slugs []string) ([]string, error) {
	if len(slugs) == 0 {
		return nil, nil
	}
	return scalars[string](ctx, v, "skill_slugs_known", v.tenant, slugs)
}

// SkillTools returns the names of the tools of all enabled skills, without descriptions and
// schemas.
func (v View) SkillTools(ctx context.Context) ([]tool.Spec, error) {
	type known struct {
		Slug     string
		Approval skill.Approval
	}
	rows, err := all[known](ctx, v, "skills_known", v.tenant)
	if err != nil {
		return nil, err
	}
	var out []tool.Spec
	for _, r := range rows {
		for _, op := range skill.Ops {
			if p := (skill.Policy{Approval: r.Approval}); p.Offers(op) {
				out = append(out, tool.Spec{Source: tool.BrowserSkill, Owner: r.Slug, Name: string(op)})
			}
		}
	}
	return out, nil
}

// Granted reports whether the agent or workflow of this access may call the operation as grants, org
// nodes and the skill say now: enabled, offered by its policy, on the caller's org node or above it,
// granted and not denied. Manifest and options of a turn are the caller's.
func (s *Skill) Granted(access *tool.Access, op skill.Op) bool {
	if access == nil {
		return false
	}
	m := &agent.Manifest{Tools: agent.Tools{BrowserSkills: []agent.BrowserSkillUse{{Skill: s.Slug}}}}
	return tool.Resolve(access, m, tool.Options{}, tool.Spec{Source: tool.BrowserSkill, Owner: s.Slug, Skill: &s.ID, Name: string(op)}).Verdict != tool.Refused
}

// skillAccess is a skill as access_skills finds it.
type skillAccess struct {
	ID      id.SkillID
	Slug    string
	NodeID  *id.NodeID
	Enabled bool
	Policy  json.RawMessage
}

func (r *skillAccess) read() (tool.Skill, error) {
	p, err := skill.LoadPolicy(r.Policy)
	if err != nil {
		return tool.Skill{}, fmt.Errorf("browser skill %s: %w", r.ID, err)
	}
	return *(&Skill{ID: r.ID, Slug: r.Slug, NodeID: r.NodeID, Enabled: r.Enabled, Policy: p}).Access(), nil
}

// Access returns the skill as resolution sees it.
func (s *Skill) Access() *tool.Skill {
	out := &tool.Skill{ID: s.ID, Slug: s.Slug, Node: s.NodeID, Enabled: s.Enabled, DryRunOnly: s.Policy.Approval == skill.DryRunOnly}
	if s.Policy.Approval == skill.AlwaysBeforeRun || s.Policy.Approval == skill.AtCommitPoint {
		terms := s.Policy.Terms(s.Slug)
		out.Terms = &terms
	}
	return out
}

// skillCredentialsAt returns the AAD of a skill's secrets: a JSON object of texts by secret_ref.
func skillCredentialsAt(t id.TenantID, s id.SkillID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "browser_skills", Row: s.String(), Column: "credentials"}
}

func (t *Tx) sealSkill(s id.SkillID, secrets map[string]string) ([]byte, []string, error) {
	return t.sealTexts(skillCredentialsAt(t.tenant, s), secrets)
}

// sealTexts returns the sealed form of a JSON object of texts, and its sorted names. No texts have none.
func (t *Tx) sealTexts(at vault.AAD, texts map[string]string) ([]byte, []string, error) {
	if len(texts) == 0 {
		return nil, []string{}, nil
	}
	doc, err := json.Marshal(texts)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s of %s %s: %w", at.Column, at.Table, at.Row, err)
	}
	sealed, err := t.vault.Seal(at, doc)
	if err != nil {
		return nil, nil, fmt.Errorf("seal %s of %s %s: %w", at.Column, at.Table, at.Row, err)
	}
	return sealed, slices.Sorted(maps.Keys(texts)), nil
}

// OpenSkillSecret returns one secret of a skill for a run. The audit row
// browser_skill.credential_access is durable before the secret is opened. A secret of another
// revision of the skill is not opened: it may belong to other hosts.
func (s *Store) OpenSkillSecret(ctx context.Context, by By, of id.SkillID, revision int, run id.SkillRunID, ref string) (string, error) {
	var sealed vault.Sealed
	err := s.Change(ctx, by, func(ctx context.Context, tx *Tx) ([]byte, error) {
		row, err := one[struct {
			Credentials []byte
			Revision    int
		}](ctx, tx.View, "skill_secret", by.Tenant, of)
		switch {
		case err != nil:
			return nil, err
		case row == nil:
			return nil, NoSkill(skillWord)
		case row.Revision != revision:
			return nil, fmt.Errorf("browser skill %s was changed: its secrets are of another definition", of)
		case len(row.Credentials) == 0:
			return nil, fmt.Errorf("browser skill %s has no secrets", of)
		}
		sealed = row.Credentials
		return nil, tx.Audit(ctx, "browser_skill.credential_access", "browser_skill", of.UUID, map[string]any{"run_id": run, "secret_ref": ref})
	})
	if err != nil {
		return "", err
	}
	plain, err := s.vault.Open(skillCredentialsAt(by.Tenant, of), sealed)
	if err != nil {
		return "", fmt.Errorf("open the secrets of browser skill %s: %w", of, err)
	}
	var secrets map[string]string
	if err := json.Unmarshal(plain, &secrets); err != nil {
		return "", fmt.Errorf("read the secrets of browser skill %s: malformed", of) // the cause would quote them
	}
	secret, ok := secrets[ref]
	if !ok {
		return "", fmt.Errorf("browser skill %s has no secret %q", of, ref)
	}
	return secret, nil
}

// CreateSkill creates a browser skill. The caller has parsed definition, policy and secrets.
func (t *Tx) CreateSkill(ctx context.Context, in *api.SkillCreate, parsed *skill.Skill) (*api.Skill, error) {
	refer := &references{t: t}
	refer.node(ctx, in.NodeID)
	if err := refer.problem(); err != nil {
		return nil, err
	}
	s := id.SkillID{UUID: id.NewAnywhere()}
	definition, policy, err := skillDocs(parsed.Definition, parsed.Policy)
	if err != nil {
		return nil, err
	}
	sealed, refs, err := t.sealSkill(s, parsed.Secrets)
	if err != nil {
		return nil, err
	}
	row, err := withSlug(ctx, t, "skill_slugs", in.Slug, slugOf(in.Name, "skill"), func(slug string) (*skillRow, error) {
		return one[skillRow](ctx, t.View, "skill_insert", t.tenant, s, slug, in.Name, in.Description, jsonArg(definition), jsonArg(policy), sealed, refs,
			in.NodeID, in.Enabled == nil || *in.Enabled, in.RecorderID)
	})
	if err != nil {
		return nil, err
	}
	out, err := row.shown()
	if err != nil {
		return nil, err
	}
	return out, t.Audit(ctx, "browser_skill.create", "browser_skill", s.UUID, map[string]bool{"owner_attested": true})
}

func skillDocs(d *skill.Definition, p *skill.Policy) (definition, policy json.RawMessage, err error) {
	if definition, err = json.Marshal(d); err != nil {
		return nil, nil, fmt.Errorf("encode a definition: %w", err)
	}
	if policy, err = json.Marshal(p); err != nil {
		return nil, nil, fmt.Errorf("encode a policy: %w", err)
	}
	return definition, policy, nil
}

// SkillSteps returns the steps of a recorder session for a definition that is saved.
type SkillSteps struct {
	Recorded  []skill.Step
	Residency skill.Residency
}

// UpdateSkill changes the fields set in the patch. A definition that visits a host which the old
// one did not drops the secrets, unless the body has auth. The caller has checked that a
// definition comes with a recorder session, whose steps are taught.
func (t *Tx) UpdateSkill(ctx context.Context, s id.SkillID, in *api.SkillPatch, taught SkillSteps) (_ *api.Skill, dropped bool, err error) {
	row, err := foundSkill(one[skillRow](ctx, t.View, "skill_lock", t.tenant, s))
	if err != nil {
		return nil, false, err
	}
	refer := &references{t: t}
	refer.node(ctx, in.NodeID.OrPtr(nil))
	if err := refer.problem(); err != nil {
		return nil, false, err
	}
	old, err := skill.Load(row.Definition)
	if err != nil {
		return nil, false, err
	}
	rawPolicy := mergedPolicy(row.Policy, json.RawMessage(in.Policy))
	d, again := old, len(in.Definition) > 0
	var p *skill.Policy
	var secrets map[string]string
	replace := len(in.Auth) > 0
	if again {
		auth := json.RawMessage(in.Auth)
		if !replace {
			auth = keptAuth(in.Definition)
		}
		parsed, err := skill.Parse(skill.Input{Definition: json.RawMessage(in.Definition), Policy: rawPolicy, Auth: auth, OwnerAttested: in.OwnerAttested,
			Recorded: taught.Recorded, Residency: taught.Residency})
		if err != nil {
			return nil, false, err
		}
		d, p, secrets = parsed.Definition, parsed.Policy, parsed.Secrets
		moved := skill.Moved(old, d) || old.Auth.Kind != d.Auth.Kind || !slices.Equal(old.Auth.SecretRefs, d.Auth.SecretRefs)
		if !replace && moved {
			replace, secrets, dropped = true, nil, len(row.SecretRefs) > 0
		}
	} else {
		if p, err = skill.ParsePolicy(rawPolicy, d); err != nil {
			return nil, false, err
		}
		if replace {
			if secrets, err = skill.ParseAuth(json.RawMessage(in.Auth), d); err != nil {
				return nil, false, err
			}
		}
	}
	sealed, refs, err := t.sealSkill(s, secrets)
	if err != nil {
		return nil, false, err
	}
	definition, policy, err := skillDocs(d, p)
	if err != nil {
		return nil, false, err
	}
	set(&row.Name, in.Name)
	set(&row.Description, in.Description)
	set(&row.Enabled, in.Enabled)
	if again {
		row.RecorderSessionID = in.RecorderID
	}
	var detail any
	if dropped {
		detail = map[string]bool{"credentials_dropped": true}
	}
	row, err = one[skillRow](ctx, t.View, "skill_update", t.tenant, s, row.Name, row.Description, jsonArg(definition), jsonArg(policy), in.NodeID.OrPtr(row.NodeID),
		replace, sealed, refs, again, row.Enabled, row.RecorderSessionID)
	if err != nil {
		return nil, false, fmt.Errorf("update browser skill: %w", err)
	}
	out, err := row.shown()
	if err != nil {
		return nil, false, err
	}
	return out, dropped, t.Audit(ctx, "browser_skill.update", "browser_skill", s.UUID, detail)
}

// keptAuth returns an auth that fits a definition whose secrets stay: Parse asks for each of them.
// Their values here are placeholders and are not stored. What is malformed gives none.
func keptAuth(definition api.SkillDefinition) json.RawMessage {
	var d struct {
		Auth skill.Auth `json:"auth"`
	}
	if json.Unmarshal(definition, &d) != nil || d.Auth.Kind == "" || d.Auth.Kind == skill.AuthNone {
		return nil
	}
	value := "kept"
	if d.Auth.Kind == skill.AuthCookies {
		value = `[{"name":"kept","value":"","domain":"kept.example"}]`
	}
	secrets := map[string]string{}
	for _, ref := range d.Auth.SecretRefs {
		secrets[ref] = value
	}
	doc, err := json.Marshal(map[string]any{"mode": d.Auth.Kind, "secrets": secrets})
	if err != nil {
		return nil
	}
	return doc
}

// mergedPolicy returns a policy with the members of a patch over it. What is no object is
// returned as it is, and found wrong where it is parsed.
func mergedPolicy(old, patch json.RawMessage) json.RawMessage {
	var to, over map[string]json.RawMessage
	if len(patch) == 0 {
		return old
	}
	if json.Unmarshal(patch, &over) != nil || json.Unmarshal(old, &to) != nil {
		return patch
	}
	maps.Copy(to, over)
	doc, err := json.Marshal(to)
	if err != nil {
		return patch
	}
	return doc
}

// DeleteSkill deletes a browser skill with its grants and runs; IN_USE while a run of it commits.
func (t *Tx) DeleteSkill(ctx context.Context, s id.SkillID) error {
	// Making a grant locks the skill, as does the receipt of a run: none can appear in between.
	switch found, err := scalars[string](ctx, t.View, "skill_lock_whole", t.tenant, s); {
	case err != nil:
		return err
	case len(found) == 0:
		return NoSkill(skillWord)
	}
	switch commits, err := scalars[bool](ctx, t.View, "skill_commits", t.tenant, s); {
	case err != nil:
		return err
	case commits[0]:
		return problem.New(problem.CodeInUse, "A run of this browser skill has begun its commit and has not ended: delete the skill when it has.")
	}
	grants, err := scalars[int64](ctx, t.View, "skill_grants_count", t.tenant, s)
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, "skill_delete", t.tenant, s); err != nil {
		return fmt.Errorf("delete browser skill: %w", err)
	}
	return t.Audit(ctx, "browser_skill.delete", "browser_skill", s.UUID, map[string]int64{"grants": grants[0]})
}

type skillGrantRow struct {
	ID          id.GrantID
	AgentID     *id.AgentID
	NodeID      *id.NodeID
	ToolPattern string
	CreatedAt   time.Time
}

func (r *skillGrantRow) shown() api.SkillGrant {
	_, op, _ := strings.Cut(r.ToolPattern, ".")
	return api.SkillGrant{ID: r.ID, AgentID: r.AgentID, NodeID: r.NodeID, Op: api.SkillGrantOp(op), CreatedAt: r.CreatedAt}
}

// SkillGrants returns the grants of a browser skill, newest first. A skill that does not exist has
// none: callers look it up.
func (v View) SkillGrants(ctx context.Context, s id.SkillID, at id.GrantID, limit int) ([]api.SkillGrant, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[skillGrantRow](ctx, v, "skill_grants", v.tenant, s, from, n)
	if err != nil {
		return nil, err
	}
	out := make([]api.SkillGrant, len(rows))
	for i := range rows {
		out[i] = rows[i].shown()
	}
	return out, nil
}

// holdSkill locks a skill against deletion and returns its slug.
func (t *Tx) holdSkill(ctx context.Context, s id.SkillID) (string, error) {
	slugs, err := scalars[string](ctx, t.View, "skill_hold", t.tenant, s)
	if err == nil && len(slugs) == 0 {
		err = NoSkill(skillWord)
	}
	if err != nil {
		return "", err
	}
	return slugs[0], nil
}

// GrantSkill allows operations of a skill to an agent or to an org node, exactly one of them. For
// an agent the newest version's manifest with the operations becomes a new version, which is
// published.
func (t *Tx) GrantSkill(ctx context.Context, s id.SkillID, in *api.SkillGrantCreate) ([]api.SkillGrant, error) {
	slug, err := t.holdSkill(ctx, s)
	if err != nil {
		return nil, err
	}
	if (in.AgentID == nil) == (in.NodeID == nil) {
		return nil, problem.Invalid("agent_id", "give one of agent_id and node_id")
	}
	refer := &references{t: t}
	refer.node(ctx, in.NodeID)
	if err := refer.problem(); err != nil {
		return nil, err
	}
	if in.AgentID != nil {
		if _, _, err := t.giveSkill(ctx, "agent_id", *in.AgentID, slug, in.Ops, true); err != nil {
			return nil, err
		}
	}
	return t.grantSkill(ctx, s, slug, in.AgentID, in.NodeID, in.Ops)
}

// AttachSkill allows operations of a skill to all targets or to none.
func (t *Tx) AttachSkill(ctx context.Context, in *api.Attach) ([]api.Attached, error) {
	slug, err := t.holdSkill(ctx, in.Connector.ID)
	if err != nil {
		return nil, err
	}
	ops := make([]api.SkillGrantOp, len(in.Tools))
	for i, op := range in.Tools {
		ops[i] = api.SkillGrantOp(op)
	}
	at := make([]int, len(in.Targets)) // agents are locked in the order of their ids
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(x, y int) int {
		return bytes.Compare(in.Targets[x].AgentID.UUID[:], in.Targets[y].AgentID.UUID[:])
	})
	out := make([]api.Attached, len(in.Targets))
	for n, i := range at {
		a := in.Targets[i].AgentID
		path := fmt.Sprintf("targets[%d].agent_id", i)
		if n > 0 && in.Targets[at[n-1]].AgentID == a {
			return nil, problem.Invalid(path, "is listed twice")
		}
		version, published, err := t.giveSkill(ctx, path, a, slug, ops, in.Publish)
		if err != nil {
			return nil, err
		}
		out[i] = api.Attached{AgentID: a, Version: version, Published: published}
	}
	for i := range out {
		if out[i].Grants, err = t.grantSkill(ctx, in.Connector.ID, slug, &out[i].AgentID, nil, ops); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// giveSkill puts operations of a skill into an agent's newest manifest, as a new version unless it
// has them already, and publishes that. It returns the newest version and whether it is published.
func (t *Tx) giveSkill(ctx context.Context, at string, a id.AgentID, slug string, ops []api.SkillGrantOp, publish bool) (version int, published bool, err error) {
	row, err := one[api.Agent](ctx, t.View, "agent_lock", t.tenant, a)
	switch {
	case err != nil:
		return 0, false, err
	case row == nil:
		return 0, false, problem.Invalid(at, "there is no such agent")
	case row.LatestVersion == 0:
		return 0, false, problem.Invalid(at, "the agent has no version yet: add one first")
	}
	newest, err := t.Version(ctx, a, row.LatestVersion)
	if err != nil {
		return 0, false, err
	}
	named := []string{}
	for _, op := range ops {
		if op == api.GrantAll {
			named = append(named, string(api.GrantRun), string(api.GrantDryRun))
		} else {
			named = append(named, string(op))
		}
	}
	merged, changed, err := agent.WithSkill(ctx, json.RawMessage(newest.Manifest), slug, named)
	if err != nil {
		return 0, false, err
	}
	if changed {
		if row, newest, err = t.CreateVersion(ctx, a, merged); err != nil {
			return 0, false, err
		}
	}
	if publish {
		if row, newest, err = t.Publish(ctx, a, newest.Version); err != nil {
			return 0, false, err
		}
	}
	return newest.Version, row.PublishedVersion != nil && *row.PublishedVersion == newest.Version, nil
}

// grantSkill makes one grant for each operation. One that is there already stays as it is.
func (t *Tx) grantSkill(ctx context.Context, s id.SkillID, slug string, a *id.AgentID, n *id.NodeID, ops []api.SkillGrantOp) ([]api.SkillGrant, error) {
	out := []api.SkillGrant{}
	for i, op := range ops {
		if slices.Contains(ops[:i], op) {
			continue
		}
		row, err := one[skillGrantRow](ctx, t.View, "skill_grant_insert", t.tenant, id.GrantID{UUID: id.NewAnywhere()}, s, skill.ToolName(slug, skill.Op(op)), a, n)
		if err != nil {
			return nil, fmt.Errorf("insert a grant of a browser skill: %w", err)
		}
		out = append(out, row.shown())
	}
	detail := map[string]any{"ops": ops}
	if a != nil {
		detail["agent_id"] = a
	} else {
		detail["node_id"] = n
	}
	return out, t.Audit(ctx, "browser_skill.grant", "browser_skill", s.UUID, detail)
}

// RevokeSkill deletes a grant of a skill. Manifests that name the skill stay.
func (t *Tx) RevokeSkill(ctx context.Context, s id.SkillID, g id.GrantID) error {
	if err := t.execFound(ctx, NoSkill("grant of the browser skill"), "skill_grant_delete", t.tenant, s, g); err != nil {
		return err
	}
	return t.Audit(ctx, "browser_skill.revoke", "browser_skill", s.UUID, map[string]id.GrantID{"grant_id": g})
}

// SkillShot returns the key of a screenshot in the store of files.
func SkillShot(t id.TenantID, run id.SkillRunID, step string) string {
	return SkillShots + "/" + t.String() + "/" + run.String() + "/" + step + ".jpg"
}

// SkillShots begins the keys of screenshots.
const SkillShots = "browser-skills"
