package tool

import (
	"cmp"
	"slices"
	"strings"

	"agentsvc/schemas/agent"
)

// Values of ExplainedStep.What.
const (
	StepServer     = "server"
	StepSkill      = "skill"
	StepManifest   = "manifest"
	StepOption     = "option"
	StepGrant      = "grant"
	StepConnection = "connection"
	StepPolicy     = "policy"
	StepRule       = "rule"
)

// Explain explains the decision on a tool, given by its qualified or bare name: the result of
// Resolve, and every rule that was checked. For a name that no tool has, it lists the grants
// and policies that would have matched.
func Explain(a *Access, m *agent.Manifest, o Options, specs []Spec, name string) *Explanation {
	r := newResolver(a, m, o)
	found := r.named(specs, name)
	switch len(found) {
	case 1:
		return r.explain(&found[0], found[0].Unusable)
	case 0:
		return r.unknown(name)
	}
	e := &Explanation{Tool: name, Verdict: Refused, Steps: []ExplainedStep{}}
	var all []string
	for i := range found {
		all = append(all, quote(found[i].Qualified()))
	}
	e.Why = "several tools are called " + quote(name) + ": " + strings.Join(all, ", ") + "; ask for one of these names"
	return e
}

// named returns the tools that a name may mean. If several share one bare name, it prefers
// the one that may be called, as Find does.
func (r *resolver) named(specs []Spec, name string) []Spec {
	var bare, callable []Spec
	seen := map[string]bool{}
	for _, s := range append(slices.Clip(specs), HandoffSpec(r.manifest.Handoffs)) {
		q := s.Qualified()
		switch {
		case q == name:
			return []Spec{s}
		case name != "" && s.freeName() == name && !seen[q]:
			seen[q] = true
			bare = append(bare, s)
			if r.resolve(&s, s.granted()).Verdict != Refused {
				callable = append(callable, s)
			}
		}
	}
	if len(callable) == 1 {
		return callable
	}
	return bare
}

// unknown explains a name that no tool has.
func (r *resolver) unknown(name string) *Explanation {
	s, ok := parseQualified(name)
	if !ok {
		return &Explanation{Tool: name, Verdict: Refused, Why: "no tool is called " + quote(name), Steps: []ExplainedStep{}}
	}
	s = r.access.ofSkill(s)
	missing := r.owner(&s).refused
	switch {
	case missing != "":
	case s.Source == MCP:
		missing = "the tool server " + quote(s.Owner) + " lists no tool " + quote(s.Name)
	case s.Source == BrowserSkill:
		missing = "the browser skill " + quote(s.Owner) + " offers no " + quote(s.Name)
	default:
		missing = "there is no builtin tool " + quote(s.Name)
	}
	return r.explain(&s, missing)
}

// parseQualified parses a qualified name; false if it is not one.
func parseQualified(name string) (Spec, bool) {
	s := Spec{Source: MCP}
	rest := name
	for _, source := range Sources {
		if after, ok := strings.CutPrefix(name, string(source)+":"); ok && source != MCP {
			s.Source, rest = source, after
		}
	}
	if s.Source == Builtin {
		s.Name = rest
		return s, rest != ""
	}
	var dotted bool
	s.Owner, s.Name, dotted = strings.Cut(rest, ".")
	return s, dotted && s.Name != "" && agent.ValidSlug(s.Owner)
}

// explanation collects the steps.
type explanation struct {
	*resolver
	spec  *Spec
	owner *owner
	res   Resolution
	out   *Explanation
	// missing is why there is no such tool.
	missing string
	// over means that an earlier step has refused the call: later steps are listed and decide
	// nothing.
	over bool
}

// explain checks every rule about s. If s is missing, with the reason given, no rule decides.
func (r *resolver) explain(s *Spec, missing string) *Explanation {
	res := r.resolve(s, s.granted())
	if missing != "" {
		res = Resolution{Verdict: Refused, Why: missing}
	}
	e := explanation{resolver: r, spec: s, owner: r.owner(s), res: res, missing: missing, out: &Explanation{
		Tool: s.Qualified(), Source: s.Source, Verdict: res.Verdict, Why: res.Why, Steps: []ExplainedStep{},
		Connection: res.Connection, Approval: res.Terms,
	}}
	if res.Grant != nil {
		e.out.GrantID = &res.Grant.ID
	}
	e.servers()
	e.manifests()
	e.tokens()
	e.grants()
	e.connections()
	if e.owner.forced(s) != nil {
		note := "the skill's own policy asks for an approval of every run"
		if e.over {
			note = "the skill's own policy would ask for an approval, but the call is refused before"
		}
		e.add(ExplainedStep{What: StepSkill, ID: e.owner.skill.ID.String(), Matched: true, Decided: !e.over, Note: note})
	}
	e.gates(StepPolicy, r.policies)
	e.gates(StepRule, r.rules)
	if r.options.RequireApproval {
		e.add(ExplainedStep{What: StepOption, Matched: true, Decided: !e.over, Note: "the message asks for an approval of every call"})
	}
	if e.res.Verdict == Callable {
		e.add(ExplainedStep{What: StepPolicy, Decided: true, Note: "no policy, rule or option asks for an approval"})
	}
	return e.out
}

func (e *explanation) add(s ExplainedStep) { e.out.Steps = append(e.out.Steps, s) }

// refuse adds the step that refused the call.
func (e *explanation) refuse(s ExplainedStep) {
	s.Decided = !e.over
	e.add(s)
	e.over = true
}

func (e *explanation) servers() {
	sv := e.owner.server
	if why := cmp.Or(e.owner.refused, e.missing); why != "" {
		s := ExplainedStep{What: StepServer, Note: why}
		if e.spec.Source == BrowserSkill {
			s.What = StepSkill
		}
		if k := e.owner.skill; k != nil {
			s.ID, s.Matched = k.ID.String(), true
		}
		if sv != nil {
			s.ID, s.Matched = sv.ID.String(), true
		}
		e.refuse(s)
		return
	}
	if sv != nil {
		e.add(ExplainedStep{What: StepServer, ID: sv.ID.String(), Matched: true, Note: "the tool server " + quote(sv.Slug) + " is enabled"})
	}
	if k := e.owner.skill; k != nil {
		s := ExplainedStep{What: StepSkill, ID: k.ID.String(), Matched: true, Note: "the browser skill " + quote(k.Slug) + " is enabled"}
		if k.DryRunOnly && e.spec.Name == skillRun {
			s.Note = "the skill's own policy is dry_run_only: agents get no run"
			e.refuse(s)
			return
		}
		e.add(s)
	}
}

func (e *explanation) manifests() {
	if e.spec.Source == A2A || e.spec.Source == Connector {
		return // the manifest cannot name them
	}
	why := e.narrowed(e.owner, e.spec, e.spec.names())
	if e.spec.Source == MCP {
		for _, t := range e.manifest.Tools.MCP {
			if t.Server != e.spec.Owner {
				continue
			}
			allow := t.Allow
			if allow == nil {
				allow = []string{"*"}
			}
			for _, p := range allow {
				ok := Matches(p, *e.spec)
				e.add(ExplainedStep{What: StepManifest, Pattern: p, Matched: ok, Decided: ok && !e.over, Note: "allow of the tool server " + quote(t.Server)})
			}
		}
	}
	switch {
	case why != "":
		e.refuse(ExplainedStep{What: StepManifest, Note: why})
	case isHandoff(e.spec):
		e.add(ExplainedStep{What: StepManifest, Matched: true, Decided: !e.over, Note: "the agent's manifest names handoffs, which need no grant"})
	case e.spec.Source == Builtin:
		e.add(ExplainedStep{What: StepManifest, Pattern: e.spec.Name, Matched: true, Decided: !e.over, Note: "tools.builtin names it"})
	case e.spec.Source == BrowserSkill:
		e.add(ExplainedStep{What: StepManifest, Pattern: e.spec.Name, Matched: true, Decided: !e.over, Note: "tools.browser_skills allows it of the skill " + quote(e.spec.Owner)})
	}
}

func (e *explanation) tokens() {
	if e.options.Tools == nil {
		return
	}
	any := false
	n := e.spec.granted()
	for i := range e.resolver.tokens {
		t := &e.resolver.tokens[i]
		ok := t.names(n)
		any = any || ok
		e.add(ExplainedStep{What: StepOption, Pattern: t.text, Matched: ok, Decided: ok && !e.over, Note: "of the message's tools"})
	}
	if !any {
		e.refuse(ExplainedStep{What: StepOption, Note: "the message's tools leave it out"})
	}
}

func (e *explanation) grants() {
	denied := e.res.Grant != nil && e.res.Verdict == Refused
	for i := range e.access.Grants {
		g := &e.access.Grants[i]
		if g.Source != e.spec.Source {
			continue
		}
		// Skip grants of other servers and skills.
		if e.owner.server != nil && g.Server != nil && *g.Server != e.owner.server.ID ||
			g.Source == BrowserSkill && (e.spec.Skill == nil || g.Skill == nil || *g.Skill != *e.spec.Skill) ||
			g.Source == MCP && e.owner.server == nil {
			continue
		}
		s := ExplainedStep{What: StepGrant, ID: g.ID.String(), Pattern: g.Pattern}
		_, reaches := e.scope(g.Agent, g.Node)
		switch {
		case !MatchesGrant(g.Pattern, *e.spec):
			s.Note = "the pattern does not fit"
		case !reaches && g.Agent != nil:
			s.Note = "belongs to another agent"
		case !reaches:
			s.Note = "belongs to an org node that the agent is not under"
		default:
			s.Matched = true
			s.Decided = !e.over && e.res.Grant != nil && g.ID == e.res.Grant.ID
			switch {
			case s.Decided:
				s.Note = "decides"
			case e.over:
				s.Note = "matches, but the call is refused before"
			case denied && g.Effect == Allow:
				s.Note = "matches, but a deny beats every allow"
			case isHandoff(e.spec):
				s.Note = "matches, but a handoff needs no grant"
			default:
				s.Note = "matches, but another " + string(g.Effect) + " is more specific or newer"
			}
		}
		s.Note = string(g.Effect) + whose(g, reaches) + ": " + s.Note
		e.add(s)
	}
	switch {
	case e.over:
	case denied:
		e.over = true
	case e.res.Verdict == Refused:
		e.refuse(ExplainedStep{What: StepGrant, Note: "no grant allows it: nothing is callable until granted"})
	}
}

func whose(g *Grant, reaches bool) string {
	if !reaches {
		return ""
	}
	return " " + g.whose()
}

func (e *explanation) connections() {
	if e.over || e.owner.server == nil {
		return
	}
	s := ExplainedStep{What: StepConnection, Decided: true}
	pin := e.res.Grant.Connection
	switch {
	case e.owner.server.AuthKind == AuthNone:
		s.Note = "the tool server takes no credential"
	case e.res.NoConnection && e.connection(e.owner, e.res.Grant) != nil:
		s.ID = e.connection(e.owner, e.res.Grant).ID.String()
		s.Note = "the connection lost its credential when the tool server's address changed, give it one again: calls fail with " + ErrNoConnection
	case e.res.NoConnection && pin != nil:
		s.ID, s.Note = pin.String(), "the grant pins a connection that is not there: calls fail with "+ErrNoConnection
	case e.res.NoConnection:
		s.Note = "no connection is tenant-wide or on an org node of the agent: calls fail with " + ErrNoConnection
	default:
		s.ID, s.Matched = e.res.Connection.String(), true
		switch c := e.connection(e.owner, e.res.Grant); {
		case pin != nil:
			s.Note = "the grant pins it"
		case c.Node != nil:
			s.Note = "on the agent's nearest org node that has one"
		default:
			s.Note = "tenant-wide: no org node of the agent has one"
		}
	}
	e.add(s)
}

// gates lists policies or rules: of those that match, the most specific apply.
func (e *explanation) gates(what string, gates []gate) {
	n := e.spec.names()
	apply := slices.Collect(applying(gates, e.spec.Source, n))
	for i := range gates {
		g := &gates[i]
		s := ExplainedStep{What: what, Pattern: g.terms.Policy.Name}
		if what == StepPolicy {
			s.ID, s.Pattern = g.terms.Policy.ID.String(), e.access.Policies[g.at].Pattern
			s.Note = quote(g.terms.Policy.Name) + ": "
		}
		switch {
		case g.source != "" && g.source != e.spec.Source:
			s.Note += "is about tools of the source " + string(g.source)
		case !g.fits(n):
			s.Note += "the pattern does not fit"
		case slices.Contains(apply, i):
			s.Matched, s.Decided = true, !e.over
			if e.over {
				s.Note += "matches, but the call is refused before"
			} else {
				s.Note += "asks for an approval"
			}
		default:
			s.Matched = true
			s.Note += "matches, but a more specific one applies"
		}
		e.add(s)
	}
	if what != StepPolicy {
		return
	}
	for i := range e.access.Policies {
		if p := &e.access.Policies[i]; p.Agent != nil && *p.Agent != e.access.Agent {
			e.add(ExplainedStep{What: what, ID: p.ID.String(), Pattern: p.Pattern, Note: quote(p.Name) + ": belongs to another agent"})
		}
	}
}
