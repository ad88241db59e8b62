package tool

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Resolve decides whether an agent may call a tool in one turn, with which credential, and
// who must approve: the manifest intersected with the grants, narrowed by the options, gated
// by policies, rules and options. Only names decide, never a server's description or schema
// of a tool.
func Resolve(a *Access, m *agent.Manifest, o Options, s Spec) Resolution {
	return newResolver(a, m, o).resolve(&s, s.granted())
}

// Verdicts returns the verdict of Resolve on each of the tools, in a turn without options. What
// the tools have in common is prepared once. It ends with the error of ctx.
func Verdicts(ctx context.Context, a *Access, m *agent.Manifest, specs []Spec) ([]Verdict, error) {
	r := newResolver(a, m, Options{})
	out := make([]Verdict, len(specs))
	for i := range specs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out[i] = r.resolve(&specs[i], specs[i].granted()).Verdict
	}
	return out, nil
}

// Offers returns the tools of specs that the agent may call in one turn, sorted by qualified
// name. It includes tools that need an approval and tools without a connection, and omits
// Unusable ones. Of two tools with one name the first is offered.
func Offers(a *Access, m *agent.Manifest, o Options, specs []Spec) []Offer {
	r := newResolver(a, m, o)
	type offered struct {
		name string
		at   int // index in specs
		Resolution
	}
	found := make([]offered, 0, len(specs))
	for i := range specs {
		n := specs[i].granted()
		if res := r.resolve(&specs[i], n); res.Verdict != Refused {
			found = append(found, offered{n.qualified, i, res})
		}
	}
	slices.SortStableFunc(found, func(x, y offered) int { return strings.Compare(x.name, y.name) })
	out := make([]Offer, 0, len(found))
	for i := range found {
		if f := &found[i]; i == 0 || f.name != found[i-1].name {
			out = append(out, Offer{specs[f.at], f.Resolution})
		}
	}
	return out
}

// Find returns the offered tool that a model means: the one with this qualified name, else
// the only one with this bare name. It is for names written by a model; see Exact.
func Find(offers []Offer, name string) (*Offer, bool) {
	if name == "" {
		return nil, false
	}
	var bare *Offer
	several := false
	for i := range offers {
		switch o := &offers[i]; {
		case o.Qualified() == name:
			return o, true
		case o.freeName() == name:
			several = bare != nil
			bare = o
		}
	}
	return bare, bare != nil && !several
}

// Exact returns the offered tool with this qualified name. A planned, perhaps approved, call
// is for one tool: if that is no longer offered, a tool whose bare name is the same must not
// get the call, as with Find it could.
func Exact(offers []Offer, qualified string) (*Offer, bool) {
	for i := range offers {
		if offers[i].Qualified() == qualified {
			return &offers[i], true
		}
	}
	return nil, false
}

// resolver holds the parts that are the same for all tools of one turn.
type resolver struct {
	access   *Access
	manifest *agent.Manifest
	options  Options
	tokens   Tokens
	policies []gate // the most specific first, then the newest
	rules    []gate // the most specific first, then in the manifest's order
	owners   map[ownerKey]*owner
}

// ownerKey identifies the origin of a tool.
type ownerKey struct {
	source Source
	slug   string
	skill  id.SkillID
}

// owner holds the parts that are the same for all tools of one server or skill, or for all
// builtin tools.
type owner struct {
	refused string  // why none of its tools is callable
	server  *Server // of MCP
	skill   *Skill  // of BrowserSkill; nil: it has no grants
	allow   []pattern
	named   bool     // the manifest names the server or skill
	denies  []ranked // the most specific first
	allows  []ranked

	connection *Connection // used if the grant pins none
	asked      bool        // connection was determined
}

// gate is a policy or a rule whose pattern is not compared yet.
type gate struct {
	pattern
	source Source // empty: any
	rank   int    // of two that match, the higher one applies
	terms  *Terms
	at     int // index in Access.Policies or HITL.Rules
}

// ranked is a grant that applies to this agent.
type ranked struct {
	*Grant
	pattern
	scope  int // 0: the agent; then its org nodes, the nearest first; then the tenant
	pinned bool
	name   string // result of says, once computed
}

func newResolver(a *Access, m *agent.Manifest, o Options) *resolver {
	r := &resolver{access: a, manifest: m, options: o, owners: map[ownerKey]*owner{}}
	if o.Tools != nil {
		r.tokens = ParseTokens(*o.Tools)
	}
	for i := range a.Policies {
		p := &a.Policies[i]
		if pat, ok := parsePattern(p.Pattern); ok && (p.Agent == nil || *p.Agent == a.Agent) {
			r.policies = append(r.policies, gate{pat, p.Source, rank(p.Agent != nil, p.Source != "", pat), policyTerms(p), i})
		}
	}
	slices.SortFunc(r.policies, func(x, y gate) int {
		p, q := &a.Policies[x.at], &a.Policies[y.at]
		return cmp.Or(cmp.Compare(y.rank, x.rank), newer(p.CreatedAt, q.CreatedAt, p.ID.UUID, q.ID.UUID))
	})
	for i := range m.HITL.Rules {
		rule := &m.HITL.Rules[i]
		if pat, ok := parsePattern(rule.Tool); ok {
			r.rules = append(r.rules, gate{pat, Source(rule.Source), rank(true, rule.Source != "", pat), ruleTerms(rule), i})
		}
	}
	slices.SortStableFunc(r.rules, func(x, y gate) int { return cmp.Compare(y.rank, x.rank) })
	return r
}

// rank returns the specificity of a policy or rule (service.md, Approval policy):
// agent-scoped over tenant-wide, source-pinned over any source, exact over prefix over `*`.
// Two prefixes are equally specific, whatever their length.
func rank(ofAgent, ofSource bool, p pattern) int {
	n := int(p.class)
	if ofSource {
		n += 3
	}
	if ofAgent {
		n += 6
	}
	return n
}

// newer returns a negative number if the first of two objects is the newer one.
func newer(t, u time.Time, x, y id.UUID) int {
	return cmp.Or(u.Compare(t), bytes.Compare(y[:], x[:]))
}

func isHandoff(s *Spec) bool { return s.Source == Builtin && s.Name == HandoffName }

// resolve decides on a tool with these granted names.
func (r *resolver) resolve(s *Spec, n names) Resolution {
	if s.Unusable != "" {
		return Resolution{Verdict: Refused, Why: s.Unusable}
	}
	o := r.owner(s)
	if o.refused != "" {
		return Resolution{Verdict: Refused, Why: o.refused}
	}
	if o.skill != nil && o.skill.DryRunOnly && s.Name == skillRun {
		return Resolution{Verdict: Refused, Why: "the policy of the skill " + quote(s.Owner) + " is dry_run_only: it offers no run"}
	}
	if why := r.narrowed(o, s, n.counting(s)); why != "" {
		return Resolution{Verdict: Refused, Why: why}
	}
	if r.options.Tools != nil && !r.tokens.match(n) {
		return Resolution{Verdict: Refused, Why: "the message's tools leave out " + quote(n.qualified)}
	}
	if g := first(o.denies, n); g != nil {
		return Resolution{Verdict: Refused, Why: "denied " + g.says(), Grant: g.Grant}
	}
	out := Resolution{Verdict: Callable}
	if isHandoff(s) {
		out.Why = "the agent's manifest names handoffs, which need no grant"
	} else {
		g := first(o.allows, n)
		if g == nil {
			return Resolution{Verdict: Refused, Why: "no grant allows " + quote(n.qualified)}
		}
		out.Why, out.Grant = "allowed "+g.says(), g.Grant
		if o.server != nil && o.server.AuthKind != AuthNone {
			switch c := r.connection(o, g.Grant); {
			case c == nil:
				out.NoConnection = true
				out.Why += "; but no connection of the tool server " + quote(s.Owner) + " fits"
			case c.Empty:
				out.NoConnection = true
				out.Why += "; but the connection of the tool server " + quote(s.Owner) + " has no credential"
			default:
				out.Connection = &c.ID
			}
		}
	}
	if terms := r.terms(s.Source, n.counting(s), o.forced(s)); terms != nil {
		out.Verdict, out.Terms = Gated, terms
		out.Why += "; " + terms.Policy.says() + " asks for an approval"
	}
	return out
}

// owner prepares the parts that are the same for all tools of a server, of a skill, or of the
// service itself.
func (r *resolver) owner(s *Spec) *owner {
	key := ownerKey{source: s.Source, slug: s.Owner}
	if s.Skill != nil {
		key.skill = *s.Skill
	}
	o := r.owners[key]
	if o == nil {
		o = r.prepare(s)
		r.owners[key] = o
	}
	return o
}

func (r *resolver) prepare(s *Spec) *owner {
	o := &owner{}
	switch s.Source {
	case MCP:
		i := slices.IndexFunc(r.access.Servers, func(sv Server) bool { return sv.Slug == s.Owner })
		if i < 0 {
			o.refused = "there is no tool server " + quote(s.Owner)
			return o
		}
		o.server = &r.access.Servers[i]
		if !o.server.Enabled {
			o.refused = "the tool server " + quote(s.Owner) + " is disabled"
		}
		for _, t := range r.manifest.Tools.MCP {
			if t.Server == s.Owner {
				o.named = true
				o.allow = append(o.allow, patterns(t.Allow)...)
			}
		}
	case BrowserSkill:
		if s.Skill == nil {
			o.refused = "there is no browser skill " + quote(s.Owner)
			return o
		}
		if i := slices.IndexFunc(r.access.Skills, func(k Skill) bool { return k.ID == *s.Skill }); i >= 0 {
			o.skill = &r.access.Skills[i]
			switch node := o.skill.Node; {
			case !o.skill.Enabled:
				o.refused = "the browser skill " + quote(s.Owner) + " is disabled"
			case node != nil && !slices.Contains(r.access.Chain, *node):
				o.refused = "the browser skill " + quote(s.Owner) + " is for agents on another org node"
			}
		}
		o.named = slices.ContainsFunc(r.manifest.Tools.BrowserSkills, func(u agent.BrowserSkillUse) bool { return u.Skill == s.Owner })
	case Builtin:
	default:
		o.refused = "there are no tools of the source " + quote(string(s.Source)) + " yet"
		return o
	}
	for i := range r.access.Grants {
		g := &r.access.Grants[i]
		if !g.of(s, o.server) {
			continue
		}
		scope, reaches := r.scope(g.Agent, g.Node)
		pat, valid := parsePattern(g.Pattern)
		if !reaches || !valid {
			continue
		}
		k := ranked{Grant: g, pattern: pat, scope: scope, pinned: g.pinned()}
		if g.Effect == Allow {
			o.allows = append(o.allows, k)
		} else {
			o.denies = append(o.denies, k)
		}
	}
	slices.SortFunc(o.allows, ranked.compare)
	slices.SortFunc(o.denies, ranked.compare)
	return o
}

// patterns parses a list and omits invalid ones; nil, an omitted list, means `*`.
func patterns(list []string) []pattern {
	if list == nil {
		return []pattern{{class: classAll}}
	}
	var out []pattern
	for _, s := range list {
		if p, ok := parsePattern(s); ok {
			out = append(out, p)
		}
	}
	return out
}

// of reports whether the grant concerns the tool's source and its server or skill.
func (g *Grant) of(s *Spec, sv *Server) bool {
	if g.Source != s.Source {
		return false
	}
	switch s.Source {
	case MCP:
		return g.Server == nil || *g.Server == sv.ID
	case BrowserSkill:
		return g.Skill != nil && *g.Skill == *s.Skill
	}
	return true
}

// pinned reports whether the grant concerns one server or skill.
func (g *Grant) pinned() bool { return g.Server != nil || g.Skill != nil }

// scope returns how near a grant or a connection is to the agent, 0 for the agent itself;
// false if it belongs to another agent or another part of the tree.
func (r *resolver) scope(of *id.AgentID, node *id.NodeID) (int, bool) {
	if of != nil && *of != r.access.Agent {
		return 0, false
	}
	at := len(r.access.Chain)
	if node != nil {
		if at = slices.Index(r.access.Chain, *node); at < 0 {
			return 0, false
		}
	}
	if of != nil {
		return 0, true
	}
	return at + 1, true
}

// compare returns a negative number if g is the more specific of two grants (open-parts.md,
// Questions settled, Grants).
func (g ranked) compare(h ranked) int {
	pinned := 0
	if g.pinned != h.pinned {
		pinned = 1
		if g.pinned {
			pinned = -1
		}
	}
	return cmp.Or(
		cmp.Compare(g.scope, h.scope),
		pinned,
		g.pattern.compare(h.pattern),
		newer(g.CreatedAt, h.CreatedAt, g.ID.UUID, h.ID.UUID),
	)
}

func first(grants []ranked, n names) *ranked {
	for i := range grants {
		if grants[i].fits(n) {
			return &grants[i]
		}
	}
	return nil
}

// narrowed returns why the manifest excludes the tool, "" if it does not.
func (r *resolver) narrowed(o *owner, s *Spec, n names) string {
	switch {
	case isHandoff(s):
		if len(r.manifest.Handoffs) == 0 {
			return "the agent's manifest names nobody in handoffs"
		}
	case s.Source == Builtin:
		if !r.manifest.HasBuiltin(s.Name) {
			return "the agent's manifest does not name " + quote(s.Name) + " in tools.builtin"
		}
	case s.Source == BrowserSkill:
		if !o.named {
			return "the agent's manifest does not name the skill " + quote(s.Owner) + " in tools.browser_skills"
		}
		for _, u := range r.manifest.Tools.BrowserSkills {
			if u.Skill == s.Owner && (u.Allow == nil && slices.Contains(skillOps, s.Name) || slices.Contains(u.Allow, s.Name)) {
				return ""
			}
		}
		return "the agent's manifest does not allow " + quote(s.Name) + " of the skill " + quote(s.Owner)
	default:
		if !o.named {
			return "the agent's manifest does not name the tool server " + quote(s.Owner) + " in tools.mcp"
		}
		if !slices.ContainsFunc(o.allow, func(p pattern) bool { return p.fits(n) }) {
			return "the agent's manifest does not allow " + quote(s.Name) + " of the tool server " + quote(s.Owner)
		}
	}
	return ""
}

// skillOps are the default operations of a skill.
var skillOps = []string{skillRun, "dry_run"}

const skillRun = "run"

// skill returns the skill with this slug, nil if there is none with a grant.
func (a *Access) skill(slug string) *Skill {
	i := slices.IndexFunc(a.Skills, func(k Skill) bool { return k.Slug == slug })
	if i < 0 {
		return nil
	}
	return &a.Skills[i]
}

// ofSkill fills in which skill a tool belongs to, if that is known.
func (a *Access) ofSkill(s Spec) Spec {
	if k := a.skill(s.Owner); s.Source == BrowserSkill && s.Skill == nil && k != nil {
		s.Skill = &k.ID
	}
	return s
}

// forced returns the terms that the tool's own skill asks for, nil if it asks for none.
func (o *owner) forced(s *Spec) *Terms {
	if o.skill == nil || s.Name != skillRun {
		return nil
	}
	return o.skill.Terms
}

// connection returns the connection of a server for a call under this grant: the one that the
// grant pins, else the one on the agent's nearest org node, else a tenant-wide one, the
// newest on a tie; nil if there is none. A pin to a connection of another server gives none:
// the credential of one server is never shown to another.
func (r *resolver) connection(o *owner, g *Grant) *Connection {
	if g.Connection != nil {
		i := slices.IndexFunc(r.access.Connections, func(c Connection) bool {
			return c.ID == *g.Connection && c.Server == o.server.ID
		})
		if i < 0 {
			return nil
		}
		return &r.access.Connections[i]
	}
	if o.asked {
		return o.connection
	}
	o.asked = true
	nearest := 0
	for i := range r.access.Connections {
		c := &r.access.Connections[i]
		scope, reaches := r.scope(nil, c.Node)
		if c.Server != o.server.ID || !reaches {
			continue
		}
		if b := o.connection; b == nil || cmp.Or(cmp.Compare(scope, nearest), newer(c.CreatedAt, b.CreatedAt, c.ID.UUID, b.ID.UUID)) < 0 {
			o.connection, nearest = c, scope
		}
	}
	return o.connection
}

// terms returns the terms of an approval, nil if none is required. The most specific rules of
// each kind apply, equally specific ones together; each field takes the strictest value among
// those that apply. forced are the terms of the tool's own skill, which apply too.
func (r *resolver) terms(source Source, n names, forced *Terms) *Terms {
	var out *Terms
	if forced != nil {
		out = new(Terms)
		*out = *forced
	}
	add := func(t *Terms) {
		if out == nil {
			out = new(Terms)
			*out = *t
		} else {
			*out = Stricter(*out, *t)
		}
	}
	for _, gates := range [...][]gate{r.policies, r.rules} {
		for i := range applying(gates, source, n) {
			add(gates[i].terms)
		}
	}
	if r.options.RequireApproval {
		t := optionTerms()
		add(&t)
	}
	return out
}

// applying returns the indexes of the most specific gates that match: one, or several that
// are equally specific.
func applying(gates []gate, source Source, n names) iter.Seq[int] {
	return func(yield func(int) bool) {
		best := -1
		for i := range gates {
			g := &gates[i]
			if g.rank < best {
				return
			}
			if (g.source == "" || g.source == source) && g.fits(n) {
				if best = g.rank; !yield(i) {
					return
				}
			}
		}
	}
}

// says describes the grant as part of a sentence.
func (g *ranked) says() string {
	if g.name == "" {
		g.name = "by the grant " + g.ID.String() + " of " + quote(g.Pattern) + " " + g.whose()
	}
	return g.name
}

func (g *Grant) whose() string {
	switch {
	case g.Agent != nil:
		return "to this agent"
	case g.Node != nil:
		return "to an org node of the agent"
	}
	return "to the whole tenant"
}

// says describes the rule as part of a sentence.
func (p *PolicyRef) says() string {
	switch p.Kind {
	case KindPolicy:
		return "the policy " + quote(p.Name)
	case KindManifest:
		return "the manifest's rule " + quote(p.Name)
	case KindSkill:
		return "the skill's policy"
	}
	return "the message"
}

// quote makes a name chosen by a stranger safe to print.
func quote(s string) string { return strconv.Quote(problem.ClipBytes(s, 200)) }
