package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	out := make([]*Skill, len(rows))
	for i := range rows {
		if out[i], err = rows[i].read(); err != nil {
			return nil, err
		}
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

// Granted reports whether the agent may call the operation as grants, org nodes and the skill say
// now: enabled, offered by its policy, on the agent's org node or above it, granted and not
// denied. Manifest and options of a turn are the caller's.
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

// SkillCredentialsAt returns the AAD of a skill's secrets: a JSON object of texts by secret_ref.
func SkillCredentialsAt(t id.TenantID, s id.SkillID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "browser_skills", Row: s.String(), Column: "credentials"}
}

func (t *Tx) sealSkill(s id.SkillID, secrets map[string]string) ([]byte, []string, error) {
	if len(secrets) == 0 {
		return nil, []string{}, nil
	}
	doc, err := json.Marshal(secrets)
	if err != nil {
		return nil, nil, fmt.Errorf("encode secrets: %w", err)
	}
	sealed, err := t.vault.Seal(SkillCredentialsAt(t.tenant, s), doc)
	if err != nil {
		return nil, nil, fmt.Errorf("seal the secrets of browser skill %s: %w", s, err)
	}
	return sealed, slices.Sorted(maps.Keys(secrets)), nil
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
	plain, err := s.vault.Open(SkillCredentialsAt(by.Tenant, of), sealed)
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
