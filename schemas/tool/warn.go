package tool

import (
	"fmt"
	"strings"

	"agentsvc/schemas/agent"
)

// MaxWork is the work that the warnings about one version of an agent or a workflow may take, in
// comparisons of patterns.
const MaxWork = 1 << 22

// Unchecked is the warning that work was used up.
const Unchecked = "there are more warnings, perhaps: not everything was compared with the grants and policies, there are too many of both"

// affords takes as many decisions on tools of the spec's owner from work. It returns false once
// work is used up.
func (r *resolver) affords(s *Spec, decisions int, work *int) bool {
	if *work < 0 {
		return false
	}
	known := len(r.owners)
	o := r.owner(s)
	if len(r.owners) > known { // it was prepared
		*work -= len(r.access.Servers) + len(r.access.Grants)
	}
	*work -= decisions * (len(o.allow) + len(o.denies) + len(o.allows) + len(r.policies) + len(r.rules))
	return *work >= 0
}

// Warnings lists what a manifest requests and does not get under the current access: tool
// servers that do not exist, and tools that no grant allows. Each begins with the path in the
// manifest. These are not errors: grants may be added later. It takes what it does from work, and
// stops once that is used up.
func Warnings(a *Access, m *agent.Manifest, work *int) []string {
	var out []string
	r := newResolver(allEnabled(a), m, Options{}) // a server that is disabled may be enabled later
	for i, use := range m.Tools.MCP {
		of := &Spec{Source: MCP, Owner: use.Server}
		if !r.affords(of, 2, work) {
			return out
		}
		o := r.owner(of)
		if o.server == nil {
			out = append(out, fmt.Sprintf("tools.mcp[%d].server: there is no tool server %s", i, quote(use.Server)))
			continue
		}
		if use.Allow == nil && !r.grants(o, use.Server, pattern{class: classAll}) {
			out = append(out, fmt.Sprintf("tools.mcp[%d]: no grant allows a tool of the tool server %s", i, quote(use.Server)))
		}
		for j, text := range use.Allow {
			if !r.affords(of, 2, work) { // a pattern is compared as it is and without the slug
				return out
			}
			if p, ok := parsePattern(text); ok && !r.grants(o, use.Server, p) {
				out = append(out, fmt.Sprintf("tools.mcp[%d].allow[%d]: no grant allows %s of the tool server %s", i, j, quote(text), quote(use.Server)))
			}
		}
	}
	for i, name := range m.Tools.Builtin {
		s := Spec{Source: Builtin, Name: name}
		if !r.affords(&s, 1, work) {
			return out
		}
		if r.resolve(&s, s.granted()).Verdict == Refused {
			out = append(out, fmt.Sprintf("tools.builtin[%d]: no grant allows %s", i, quote(s.Qualified())))
		}
	}
	return out
}

// SkillWarnings lists what a manifest requests of browser skills and does not get: skills that do
// not exist, and operations that no grant allows. exists says which slugs are those of skills. It
// uses work as Warnings does.
func SkillWarnings(a *Access, m *agent.Manifest, exists func(slug string) bool, work *int) []string {
	var out []string
	enabled := allEnabled(a)
	r := newResolver(enabled, m, Options{})
	for i, use := range m.Tools.BrowserSkills {
		if !exists(use.Skill) {
			out = append(out, fmt.Sprintf("tools.browser_skills[%d].skill: there is no browser skill %s", i, quote(use.Skill)))
			continue
		}
		for j, op := range use.Allow {
			s := enabled.ofSkill(Spec{Source: BrowserSkill, Owner: use.Skill, Name: op})
			if !r.affords(&s, 1, work) {
				return out
			}
			at := fmt.Sprintf("tools.browser_skills[%d].allow[%d]: ", i, j)
			if s.Skill == nil { // without a grant
				out = append(out, at+"no grant allows "+quote(s.Qualified()))
			} else if res := r.resolve(&s, s.granted()); res.Verdict == Refused && (op != skillRun || len(use.Allow) == 1 || !r.owner(&s).skill.DryRunOnly) {
				out = append(out, at+res.Why)
			}
		}
	}
	return out
}

// grants reports whether a grant allows a tool of the server that p could match.
func (r *resolver) grants(o *owner, slug string, p pattern) bool {
	if p.class == classExact { // a bare name, or a qualified one
		for _, name := range p.bare(slug) {
			s := Spec{Source: MCP, Owner: slug, Name: name}
			if r.resolve(&s, s.granted()).Verdict != Refused {
				return true
			}
		}
		return false
	}
	for _, d := range o.denies {
		if d.pattern.class != classExact && d.pattern.meets(p, slug, false) {
			return false
		}
	}
	for _, g := range o.allows {
		if g.pattern.meets(p, slug, true) {
			return true
		}
	}
	return false
}

// bare returns the pattern's text as it is, and without the slug that begins a qualified
// name.
func (p pattern) bare(slug string) []string {
	if rest, ok := strings.CutPrefix(p.text, slug+"."); ok {
		return []string{p.text, rest}
	}
	return []string{p.text}
}

// meets reports whether p matches every tool of the server that q matches; with some, whether
// it could match one of them.
func (p pattern) meets(q pattern, slug string, some bool) bool {
	for _, own := range p.bare(slug) {
		for _, other := range q.bare(slug) {
			if p.class != classExact && strings.HasPrefix(other, own) || some && q.class != classExact && strings.HasPrefix(own, other) {
				return true
			}
		}
	}
	return false
}
