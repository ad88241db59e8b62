package toolbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// Browser skills as tools: what is offered of them. The grants say which skills an agent has; their
// definitions are read only for those that its manifest names.

const skillPrefix = string(tool.BrowserSkill) + ":"

const (
	// maxSkills bounds the definitions of skills that one request uses, in bytes. Decoded, and as the schemas that a model gets,
	// they have several times as many.
	maxSkills = 4 << 20
	// What has more than freeSkills is read in a place of the node, one of a tenant.
	freeSkills = 256 << 10
)

// addSkills adds the tools of the manifest's skills that a grant names, the first of them up to
// maxSkills. only and names are as in view.
func (b *Toolbox) addSkills(ctx context.Context, t id.TenantID, v *view, m *agent.Manifest, only, names []string) error {
	if len(names) > 0 && only == nil && !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(skill.Ops, skill.Op(name)) }) {
		only = make([]string, len(names)) // no tool of a skill has another bare name
		for i, name := range names {
			only[i] = ownerOf(name)
		}
	}
	var slugs []string
	for _, use := range m.Tools.BrowserSkills {
		granted := slices.ContainsFunc(v.access.Skills, func(k tool.Skill) bool { return k.Slug == use.Skill && k.Enabled })
		if granted && !slices.Contains(slugs, use.Skill) && (only == nil || slices.Contains(only, skillPrefix+use.Skill)) {
			slugs = append(slugs, use.Skill)
		}
	}
	if len(slugs) == 0 {
		return nil
	}
	skills, err := b.Tables.View(t).SkillsWithin(ctx, slugs, freeSkills)
	if err == nil && len(skills) < len(slugs) {
		if err = b.teaching.Take(ctx, t); err != nil {
			return err
		}
		defer b.teaching.Give(t)
		skills, err = b.Tables.View(t).SkillsWithin(ctx, slugs, maxSkills)
	}
	if err != nil {
		return err
	}
	v.skills = make(map[string]*store.Skill, len(skills))
	v.specs = slices.Clip(v.specs) // it may be shared
	for _, s := range skills {
		v.skills[s.Slug] = s
		v.specs = append(v.specs, skill.Tools(s.ID, s.Slug, s.Description, s.Definition, s.Policy)...)
	}
	return nil
}

// explainSkill adds the skill of a qualified name to what is explained, also where nothing is
// granted of it or its policy offers the tool to no agent.
func (b *Toolbox) explainSkill(ctx context.Context, t id.TenantID, v *view, name string) error {
	rest, ok := strings.CutPrefix(name, skillPrefix)
	slug, op, dotted := strings.Cut(rest, ".")
	if !ok || !dotted || !slices.Contains(skill.Ops, skill.Op(op)) || !agent.ValidSlug(slug) {
		return nil
	}
	found, err := b.Tables.View(t).SkillsOf(ctx, []string{slug})
	if err != nil || len(found) == 0 {
		return err
	}
	s := found[0]
	access := *v.access // it is shared
	if !slices.ContainsFunc(access.Skills, func(k tool.Skill) bool { return k.ID == s.ID }) {
		access.Skills = append(slices.Clip(access.Skills), *s.Access())
	}
	v.access = &access
	if !slices.ContainsFunc(v.specs, func(k tool.Spec) bool { return k.Qualified() == name }) {
		v.specs = append(slices.Clip(v.specs), tool.Spec{Source: tool.BrowserSkill, Owner: slug, Skill: &s.ID, Name: op})
	}
	return nil
}

// bindSkill returns the arguments of a call of a skill as they are frozen, shown and carried out:
// clean, of the declared types, in one order, with the reason of a run. The error names each
// argument and the rule that it breaks, never a value.
func bindSkill(ctx context.Context, v *view, o *tool.Offer, args json.RawMessage) (json.RawMessage, error) {
	s := v.skills[o.Owner]
	if s == nil {
		return nil, errors.New("the browser skill is gone") // it was offered: not reached
	}
	form := skill.ForRun
	if o.Name == string(skill.OpDryRun) {
		form = skill.ForDryRun
	}
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	bound, faults, err := s.Definition.Bind(ctx, form, args)
	if err != nil {
		return nil, err
	}
	if len(faults) > 0 {
		return nil, errors.New(problem.Validation(faults...).Detail)
	}
	doc := bound.Values.JSON()
	if form == skill.ForRun {
		reason, err := json.Marshal(bound.Reason)
		if err != nil {
			return nil, err
		}
		if doc = bytes.TrimSuffix(doc, []byte("}")); len(doc) > 1 {
			doc = append(doc, ',')
		}
		doc = append(append(append(doc, `"reason":`...), reason...), '}')
	}
	return doc, nil
}
