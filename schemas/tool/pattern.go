package tool

import (
	"cmp"
	"strings"

	"agentsvc/schemas/agent"
)

// Qualified returns the tool's name in events, approvals, steps and webhooks (open-parts.md,
// Tools, Qualified names). A slug holds neither `.` nor `:`, so no two tools share one.
func (s Spec) Qualified() string {
	if s.Source == MCP {
		return s.Owner + "." + s.Name
	}
	if s.Source == Builtin {
		return BuiltinPrefix + s.Name
	}
	return string(s.Source) + ":" + s.Owner + "." + s.Name
}

// Answers reports whether Find could mean the tool by this name: by its qualified or its bare name.
func (s *Spec) Answers(name string) bool { return s.freeName() == name || s.Qualified() == name }

// BuiltinPrefix begins the qualified names of builtin tools.
const BuiltinPrefix = string(Builtin) + ":"

// prefixes begin the qualified names of everything that is not a tool of a server.
var prefixes = []string{"builtin:", "a2a:", "connector:", "browser_skill:", "workflow:"}

// names are the names that a pattern is compared with. An empty one matches no pattern.
type names struct {
	qualified, bare string
}

// names returns the names that count in policies, rules and manifests: both for tools of a
// server, only the qualified one for all others. A server that calls a tool builtin:kb.search
// is not matched by rules about the builtin tool.
func (s *Spec) names() names { return s.granted().counting(s) }

func (n names) counting(s *Spec) names {
	if s.Source != MCP {
		n.bare = ""
	}
	return n
}

// granted returns the names that count in grants. Grants state their source: they may name a
// builtin tool by its bare name, and the grants of a skill apply to that skill alone.
func (s *Spec) granted() names {
	return names{qualified: s.Qualified(), bare: s.freeName()}
}

// freeName returns the bare name, unless it imitates another source's qualified name.
func (s *Spec) freeName() string {
	for _, p := range prefixes {
		if strings.HasPrefix(s.Name, p) {
			return ""
		}
	}
	return s.Name
}

// class orders patterns: exact before prefix before `*`.
type class int

const (
	classAll class = iota
	classPrefix
	classExact
)

// pattern is a valid tool pattern.
type pattern struct {
	text  string // without the star
	class class
}

// parsePattern parses a pattern; false if it is invalid, which matches nothing.
func parsePattern(s string) (pattern, bool) {
	switch {
	case !agent.ValidPattern(s):
		return pattern{}, false
	case s == "*":
		return pattern{class: classAll}, true
	case s[len(s)-1] == '*':
		return pattern{s[:len(s)-1], classPrefix}, true
	}
	return pattern{s, classExact}, true
}

func (p pattern) fits(n names) bool {
	switch p.class {
	case classAll:
		return true
	case classPrefix:
		return strings.HasPrefix(n.qualified, p.text) || strings.HasPrefix(n.bare, p.text)
	}
	return n.qualified == p.text || n.bare == p.text
}

// compare returns a negative number if p is the more specific of two matching patterns:
// exact, then the longer prefix, then the shorter, then `*`.
func (p pattern) compare(q pattern) int {
	if c := cmp.Compare(q.class, p.class); c != 0 || p.class != classPrefix {
		return c
	}
	return cmp.Compare(len(q.text), len(p.text))
}

// Matches reports whether a pattern of a policy, a rule or a manifest matches the tool
// (open-parts.md, Tools): an MCP tool by its bare or qualified name, all others by their
// qualified name, or by a prefix of it up to a `.` or `:`, or by `*`. Case matters. An
// invalid pattern matches nothing.
//
// Patterns of grants may also name a builtin tool by its bare name; see MatchesGrant.
func Matches(pattern string, s Spec) bool {
	p, ok := parsePattern(pattern)
	return ok && p.fits(s.names())
}

// MatchesGrant is Matches for the pattern of a grant of the tool's own source and server or
// skill.
func MatchesGrant(pattern string, s Spec) bool {
	p, ok := parsePattern(pattern)
	return ok && p.fits(s.granted())
}

// Tokens are the per-turn `tools`: bare or qualified names, and patterns as in grants. A token
// that matches no tool of the tenant is UNKNOWN_TOOL.
type Tokens []token

// ParseTokens parses each token once, for any number of tools.
func ParseTokens(tokens []string) Tokens {
	out := make(Tokens, len(tokens))
	for i, t := range tokens {
		out[i] = parseToken(t)
	}
	return out
}

// Match reports whether one of the tokens matches the tool.
func (t Tokens) Match(s *Spec) bool { return t.match(s.granted()) }

func (t Tokens) match(n names) bool {
	for i := range t {
		if t[i].names(n) {
			return true
		}
	}
	return false
}

// Mark sets the entry of each token that matches the tool. It skips entries that are set.
func (t Tokens) Mark(s *Spec, known []bool) {
	n := s.granted()
	for i := range t {
		known[i] = known[i] || t[i].names(n)
	}
}

// token is one of the per-turn tools.
type token struct {
	text string
	pattern
	valid bool // as a pattern
}

func parseToken(s string) token {
	p, ok := parsePattern(s)
	return token{s, p, ok}
}

// names reports whether the token matches a tool with these granted names. A tool's name may
// contain characters that a pattern cannot.
func (t *token) names(n names) bool {
	return t.valid && t.fits(n) || t.text != "" && (t.text == n.bare || t.text == n.qualified)
}
