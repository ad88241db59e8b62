package tool

import (
	"cmp"

	"agentsvc/schemas/agent"
)

// WorkflowManifest is the manifest with which the tool nodes of a workflow are resolved: it
// narrows no server and no skill, so that grants and policies alone decide. It has no builtin
// tool: see NotForNodes.
func WorkflowManifest(a *Access) *agent.Manifest {
	m := &agent.Manifest{}
	for i := range a.Servers {
		m.Tools.MCP = append(m.Tools.MCP, agent.MCPTools{Server: a.Servers[i].Slug})
	}
	for i := range a.Skills {
		m.Tools.BrowserSkills = append(m.Tools.BrowserSkills, agent.BrowserSkillUse{Skill: a.Skills[i].Slug})
	}
	return m
}

// NotForNodes says why no tool node can call what has this name and is no tool of a server or a
// skill; "" if that is not known. Only the manifest of an agent names the knowledge bases that
// kb.search searches.
func NotForNodes(name string) string {
	if name == KBSearch || name == agent.BuiltinKBSearch {
		return "a tool node cannot call kb.search: use an agent node"
	}
	return ""
}

// Missing returns a function that says why a workflow with this access may not call a tool,
// given by its qualified or bare name; "" if it may. Which tools a server has is not known
// here: what a grant could allow counts as allowed, and so does every name once work is used up.
func Missing(a *Access, work *int) func(name string) string {
	enabled := allEnabled(a)
	r := newResolver(enabled, WorkflowManifest(enabled), Options{})
	allows := func(s Spec) bool { return !r.affords(&s, 1, work) || r.resolve(&s, s.granted()).Verdict != Refused }
	return func(name string) string {
		s, qualified := parseQualified(name)
		s = enabled.ofSkill(s)
		if qualified && r.owner(&s).refused == "" { // no other tool has this name
			if allows(s) {
				return ""
			}
			return cmp.Or(NotForNodes(name), "no grant allows "+quote(name))
		}
		for i := range a.Servers {
			if s := (Spec{Source: MCP, Owner: a.Servers[i].Slug, Name: name}); s.freeName() != "" && allows(s) {
				return ""
			}
		}
		if qualified {
			return cmp.Or(NotForNodes(name), r.owner(&s).refused)
		}
		return "no grant allows " + quote(name)
	}
}

// Gate returns the rule by which a run of an agent could meet an approval under this access,
// as part of a sentence, and "" if there is none. The tools of servers are not known here:
// Gate looks for a name that manifest and grants allow and that a policy or a rule gates, and
// finds one if there is one. It takes what it does from work, and gives up once that is used
// up.
func Gate(a *Access, m *agent.Manifest, work *int) string {
	enabled := allEnabled(a)
	r := newResolver(enabled, m, Options{})
	gated := func(s Spec) string {
		if res := r.resolve(&s, s.granted()); res.Verdict == Gated {
			return res.Terms.Policy.says()
		}
		return ""
	}
	for _, use := range m.Tools.BrowserSkills {
		k := enabled.skill(use.Skill)
		if k == nil || !r.affords(&Spec{Source: BrowserSkill, Owner: k.Slug, Skill: &k.ID}, len(skillOps), work) {
			continue
		}
		for _, op := range skillOps {
			if why := gated(Spec{Source: BrowserSkill, Owner: k.Slug, Skill: &k.ID, Name: op}); why != "" {
				return why
			}
		}
	}
	if len(r.policies)+len(r.rules) == 0 {
		return ""
	}
	for _, name := range m.Tools.Builtin {
		if why := gated(Spec{Source: Builtin, Name: name}); why != "" {
			return why
		}
	}
	if len(m.Handoffs) > 0 {
		if why := gated(HandoffSpec(m.Handoffs)); why != "" {
			return why
		}
	}
	for _, use := range m.Tools.MCP {
		of := &Spec{Source: MCP, Owner: use.Server}
		if !r.affords(of, 1, work) {
			return ""
		}
		o := r.owner(of)
		if o.server == nil {
			continue
		}
		for name := range r.examples(o, use.Server) {
			if !r.affords(of, 1, work) {
				return ""
			}
			if why := gated(Spec{Source: MCP, Owner: use.Server, Name: name}); why != "" {
				return why
			}
		}
	}
	return ""
}

// examples returns a name of every set of tool names of the server that the patterns tell
// apart: each exact name, and below each prefix a name that no pattern names.
func (r *resolver) examples(o *owner, slug string) map[string]bool {
	const other = "\uffff" // begins no name of a pattern
	names := map[string]bool{}
	add := func(p pattern) {
		for _, name := range p.bare(slug) {
			if p.class != classExact {
				name += other
			}
			names[name] = true
		}
	}
	for _, gates := range [...][]gate{r.policies, r.rules} {
		for i := range gates {
			if gates[i].source == "" || gates[i].source == MCP {
				add(gates[i].pattern)
			}
		}
	}
	for _, grants := range [...][]ranked{o.allows, o.denies} {
		for i := range grants {
			add(grants[i].pattern)
		}
	}
	for _, p := range o.allow {
		add(p)
	}
	delete(names, "")
	return names
}

// allEnabled returns the access as if every tool server and skill were enabled.
func allEnabled(a *Access) *Access {
	enabled := *a
	enabled.Servers = make([]Server, len(a.Servers))
	for i, s := range a.Servers {
		s.Enabled = true
		enabled.Servers[i] = s
	}
	enabled.Skills = make([]Skill, len(a.Skills))
	for i, k := range a.Skills {
		k.Enabled = true
		enabled.Skills[i] = k
	}
	return &enabled
}
