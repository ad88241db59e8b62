package tool

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"agentsvc/schemas/agent"
)

func TestQualified(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{mcp("shop", "orders.refund"), "shop.orders.refund"},
		{builtin("kb.search"), "builtin:kb.search"},
		{builtin("handoff"), "builtin:handoff"},
		{Spec{Source: A2A, Owner: "peer", Name: "ask"}, "a2a:peer.ask"},
		{Spec{Source: Connector, Owner: "drive", Name: "list"}, "connector:drive.list"},
		{skill(1, "book-a-room", "dry_run"), "browser_skill:book-a-room.dry_run"},
	} {
		if got := c.spec.Qualified(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.spec, got, c.want)
		}
		back, ok := parseQualified(c.want)
		if !ok || back.Source != c.spec.Source || back.Owner != c.spec.Owner || back.Name != c.spec.Name {
			t.Errorf("%q reads back as %+v", c.want, back)
		}
	}
}

// open-parts.md, Tools: the sentences about matching, one row each.
func TestMatches(t *testing.T) {
	refund := mcp("shop", "orders.refund")
	for _, c := range []struct {
		says    string
		pattern string
		spec    Spec
		want    bool
	}{
		{"MCP tools match by bare name", "orders.refund", refund, true},
		{"MCP tools match by qualified name", "shop.orders.refund", refund, true},
		{"by another server's qualified name they do not", "other.orders.refund", refund, false},
		{"<server-slug>.* is a prefix", "shop.*", refund, true},
		{"a prefix of the bare name", "orders.*", refund, true},
		{"a longer prefix of the qualified name", "shop.orders.*", refund, true},
		{"a prefix ends at its dot", "ord.*", refund, false},
		{"a prefix does not begin in the middle", "refund.*", refund, false},
		{"the name without its domain is another name", "refund", refund, false},
		{"* matches an MCP tool", "*", refund, true},
		{"* matches a builtin tool", "*", builtin("kb.search"), true},
		{"* matches a skill", "*", skill(1, "book", "run"), true},
		{"matching is case-sensitive: exact", "Orders.refund", refund, false},
		{"matching is case-sensitive: prefix", "Shop.*", refund, false},
		{"others match by qualified name", "builtin:kb.search", builtin("kb.search"), true},
		{"others do not match by bare name", "kb.search", builtin("kb.search"), false},
		{"nor by a prefix of it", "kb.*", builtin("kb.search"), false},
		{"<prefix>* after its :", "builtin:*", builtin("kb.search"), true},
		{"<prefix>* after a .", "builtin:kb.*", builtin("kb.search"), true},
		{"another source's prefix", "a2a:*", builtin("kb.search"), false},
		{"handoff is a builtin tool", "builtin:handoff", builtin("handoff"), true},
		{"a skill's operation", "browser_skill:book.run", skill(1, "book", "run"), true},
		{"another operation", "browser_skill:book.dry_run", skill(1, "book", "run"), false},
		{"all operations of a skill", "browser_skill:book.*", skill(1, "book", "run"), true},
		{"all skills", "browser_skill:*", skill(1, "book", "run"), true},
		{"an operation alone names no skill", "run", skill(1, "book", "run"), false},
		{"a2a:<slug>.<tool> targets that source", "a2a:peer.ask", Spec{Source: A2A, Owner: "peer", Name: "ask"}, true},
		{"a prefix that is the whole name", "orders.refund.*", refund, false},
		{"a tool cannot take the name of a builtin one", "builtin:kb.search", mcp("evil", "builtin:kb.search"), false},
		{"nor its prefix", "builtin:*", mcp("evil", "builtin:kb.search"), false},
		{"nor a skill's", "browser_skill:book.run", mcp("evil", "browser_skill:book.run"), false},
		{"its own qualified name it has", "evil.builtin:kb.search", mcp("evil", "builtin:kb.search"), true},
		{"a * elsewhere is no pattern", "orders*", refund, false},
		{"two stars are no pattern", "*.*", refund, false},
		{"a star in front is no pattern", "*.refund", refund, false},
		{"nothing is no pattern", "", refund, false},
		{"a space is no pattern", "orders refund", mcp("shop", "orders refund"), false},
		{"200 characters are the most", strings.Repeat("x", 201), mcp("shop", strings.Repeat("x", 201)), false},
	} {
		t.Run(c.says, func(t *testing.T) {
			if got := Matches(c.pattern, c.spec); got != c.want {
				t.Errorf("Matches(%q, %q) = %v", c.pattern, c.spec.Qualified(), got)
			}
		})
	}
}

// A grant says its source: there the bare name is enough.
func TestMatchesGrant(t *testing.T) {
	for _, c := range []struct {
		pattern string
		spec    Spec
		want    bool
	}{
		{"kb.search", builtin("kb.search"), true},
		{"builtin:kb.search", builtin("kb.search"), true},
		{"kb.*", builtin("kb.search"), true},
		{"kb", builtin("kb.search"), false},
		{"run", skill(1, "book", "run"), true},
		{"dry_run", skill(1, "book", "run"), false},
		{"orders.*", mcp("shop", "orders.refund"), true},
		{"builtin:kb.search", mcp("evil", "builtin:kb.search"), false},
	} {
		if got := MatchesGrant(c.pattern, c.spec); got != c.want {
			t.Errorf("MatchesGrant(%q, %q) = %v", c.pattern, c.spec.Qualified(), got)
		}
	}
}

// A token of the per-turn tools is a bare or qualified tool name or a pattern as
// in grants.
func TestTokens(t *testing.T) {
	for _, c := range []struct {
		token string
		spec  Spec
		want  bool
	}{
		{"orders.refund", mcp("shop", "orders.refund"), true},
		{"shop.orders.refund", mcp("shop", "orders.refund"), true},
		{"shop.*", mcp("shop", "orders.refund"), true},
		{"*", mcp("shop", "orders.refund"), true},
		{"refund", mcp("shop", "orders.refund"), false},
		{"kb.search", builtin("kb.search"), true},
		{"handoff", builtin("handoff"), true},
		{"run", skill(1, "book", "run"), true},
		{"browser_skill:book.run", skill(1, "book", "run"), true},
		{"get weather", mcp("shop", "get weather"), true},
		{"", mcp("shop", ""), false},
		{"shop*", mcp("shop", "orders.refund"), false},
	} {
		tokens := ParseTokens([]string{"none", c.token, c.token})
		known := []bool{true, false, false}
		tokens.Mark(&c.spec, known)
		if got := tokens.Match(&c.spec); got != c.want || !known[0] || known[1] != c.want || known[2] != c.want {
			t.Errorf("%q of %q: %v, marked %v", c.token, c.spec.Qualified(), got, known)
		}
	}
}

func TestTheMoreSpecificPattern(t *testing.T) {
	valid := func(s string) pattern {
		p, ok := parsePattern(s)
		if !ok {
			t.Fatalf("%q is no pattern", s)
		}
		return p
	}
	want := []string{"shop.orders.refund", "shop.orders.*", "orders.*", "shop.*", "*"}
	got := []string{"*", "shop.*", "orders.*", "shop.orders.refund", "shop.orders.*"}
	slices.SortFunc(got, func(a, b string) int { return valid(a).compare(valid(b)) })
	if !slices.Equal(got, want) {
		t.Errorf("sorted %q, want %q", got, want)
	}
	for _, c := range [][2]string{{"x", "a.much.longer.name"}, {"a.*", "b.*"}, {"*", "*"}} {
		if got := valid(c[0]).compare(valid(c[1])); got != 0 {
			t.Errorf("%q to %q = %d, want 0", c[0], c[1], got)
		}
	}
}

func FuzzMatches(f *testing.F) {
	for _, p := range []string{"*", "a.*", "a:*", "a.b", "builtin:kb.*", "a**", "\x00*", "shop.orders.*"} {
		f.Add(p, "shop", "orders.refund")
	}
	f.Add("builtin:*", "evil", "builtin:x")
	f.Fuzz(func(t *testing.T, pattern, slug, name string) {
		for _, s := range []Spec{mcp(slug, name), builtin(name), skill(1, slug, name), {Source: A2A, Owner: slug, Name: name}} {
			got := Matches(pattern, s)
			if got != matchesNaively(pattern, s) {
				t.Fatalf("Matches(%q, %+v) = %v", pattern, s, got)
			}
			if got && !agent.ValidPattern(pattern) {
				t.Fatalf("%q is no pattern and matches %+v", pattern, s)
			}
			if got && (!MatchesGrant(pattern, s) || !ParseTokens([]string{pattern}).Match(&s)) {
				t.Fatalf("%q matches %+v, but not in a grant", pattern, s)
			}
			if utf8.ValidString(name) && agent.ValidPattern(name) && !strings.Contains(name, "*") && s.freeName() != "" && !ParseTokens([]string{name}).Match(&s) {
				t.Fatalf("%+v does not match its own name", s)
			}
		}
		p, ok := parsePattern(pattern)
		if q, is := parsePattern(name); ok && is && (p.compare(q) != -q.compare(p) || p.compare(p) != 0) {
			t.Fatalf("the order of %q and %q depends on who is asked: %d", pattern, name, p.compare(q))
		}
	})
}
