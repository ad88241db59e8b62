package skill

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/embed/origin"
)

// address is a parsed http or https URL.
type address struct {
	host string // as in target_hosts: lower case, with the port unless it is 443
	name string // without the port
	rest int    // where path, query and fragment begin
}

// parseURL reads an absolute http or https URL as browsers do. Notations that a browser would
// read differently (backslashes, white space, hosts in other forms) are refused. The message says
// what is wrong.
func parseURL(s string) (a address, message string) {
	if len(s) > MaxURL {
		return a, "must have at most " + strconv.Itoa(MaxURL) + " bytes"
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || r == '\\' || unsafe(r) }) {
		return a, "must not hold spaces, backslashes and control characters"
	}
	scheme, rest, ok := strings.Cut(s, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "http" && scheme != "https" {
		return a, "must be an http or https URL"
	}
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	if contains(authority, "@") {
		return a, "must not contain user info"
	}
	a.rest = len(s) - len(rest) + len(authority)
	if a.host, a.name, ok = hostOf(authority, scheme); !ok {
		return a, "must name a host: labels of letters, digits and dashes (an international one in its xn-- form), or an address"
	}
	return a, ""
}

// hostOf returns a host in the form of target_hosts and without its port.
func hostOf(s, scheme string) (host, name string, ok bool) {
	if scheme == "http" && strings.LastIndexByte(s, ':') <= strings.LastIndexByte(s, ']') {
		s += ":80"
	}
	o, err := origin.Parse("https://" + s)
	if err != nil || s == "" {
		return "", "", false
	}
	if o.Port == 443 {
		return o.Host, o.Host, true
	}
	return o.Host + ":" + strconv.Itoa(int(o.Port)), o.Host, true
}

// Residency are the hosts that a tenant allows: exact, or *.suffix; without ports. nil is no
// limit, an empty list allows nothing.
type Residency []string

// Allows reports whether the skills of the tenant may reach a host, which may have a port.
func (r Residency) Allows(host string) bool {
	if r == nil {
		return true
	}
	_, name, ok := hostOf(host, "https")
	if !ok {
		return false
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return slices.ContainsFunc(r, func(rule string) bool {
		rule = strings.ToLower(rule)
		if suffix, ok := strings.CutPrefix(rule, "*."); ok {
			return err != nil && suffix != "" && strings.HasSuffix(name, "."+suffix) // an address has no suffix
		}
		return name == rule || name == "["+rule+"]"
	})
}

// Reason is why an address is out of scope.
type Reason string

// Values of Reason.
const (
	NoWebAddress     Reason = "is not an http or https URL"
	OutsideHosts     Reason = "is not on one of the skill's target_hosts"
	OutsideResidency Reason = "is not on a host that the tenant's residency allows"
)

// Scope is what a skill may visit.
type Scope struct {
	Hosts     []string // Definition.TargetHosts
	AnyHost   bool     // while a skill is recorded, its hosts are not known yet
	Residency Residency
}

// Allows returns "" if the skill may be at this address (start, navigate, redirect, landing), else
// why not. The outbound guard judges the address behind the name besides.
func (s Scope) Allows(rawURL string) Reason {
	a, message := parseLanding(rawURL)
	switch {
	case message != "":
		return NoWebAddress
	case !s.AnyHost && !slices.Contains(s.Hosts, a.host):
		return OutsideHosts
	case !s.Residency.Allows(a.host):
		return OutsideResidency
	}
	return ""
}

// parseLanding is parseURL for an address that a site chose, whose path may be of any length.
func parseLanding(s string) (address, string) {
	if end := strings.IndexAny(s, "?#"); end >= 0 {
		s = s[:end]
	}
	if i := strings.Index(s, "://"); i >= 0 {
		if j := strings.IndexByte(s[i+3:], '/'); j >= 0 {
			s = s[:i+3+j]
		}
	}
	return parseURL(s)
}

// SamePage reports whether two addresses differ at most in their queries and fragments: the page
// that an approver saw is still the page before the commit.
func SamePage(a, b string) bool {
	x, err := url.Parse(a)
	y, err2 := url.Parse(b)
	if err != nil || err2 != nil {
		return a == b
	}
	x.RawQuery, x.Fragment, y.RawQuery, y.Fragment = "", "", "", ""
	x.ForceQuery, y.ForceQuery = false, false
	for _, u := range []*url.URL{x, y} {
		if u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host); u.Path == "" {
			u.Path = "/"
		}
	}
	return x.Scheme == y.Scheme && x.Host == y.Host && x.EscapedPath() == y.EscapedPath()
}

// template is an address with places for values.
type template struct {
	parts   []part
	message string // why it is no template
}

// part is fixed text, then a value.
type part struct {
	fixed   string
	param   string // "": only fixed text
	at      int    // of {{ in the whole
	inQuery bool
}

// parseTemplate reads {{name}} in an address, with spaces around the name or not.
func parseTemplate(s string) template {
	var t template
	query, at := false, 0
	for {
		i := strings.Index(s, "{{")
		if i < 0 {
			t.parts = append(t.parts, part{fixed: s, inQuery: query || contains(s, "?")})
			return t
		}
		end := strings.Index(s[i:], "}}")
		if end < 0 {
			t.message = "has {{ without }}"
			return t
		}
		name := strings.TrimSpace(s[i+2 : i+end])
		if !paramName.MatchString(name) {
			t.message = "has {{ without the name of a parameter: " + strconv.Quote(clip(name))
			return t
		}
		query = query || contains(s[:i], "?")
		t.parts = append(t.parts, part{fixed: s[:i], param: name, at: at + i, inQuery: query})
		at += i + end + 2
		s = s[i+end+2:]
	}
}

// checkAddress checks the value of a navigate step. allowed says of a name why it cannot be used.
func checkAddress(s string, hosts []string, allowed func(name string) string) (message string) {
	t := parseTemplate(s)
	if t.message != "" {
		return t.message
	}
	var b strings.Builder
	for _, p := range t.parts {
		b.WriteString(p.fixed)
		if p.param != "" {
			b.WriteString("x")
		}
	}
	first := len(s)
	if t.parts[0].param != "" {
		first = t.parts[0].at
	}
	// The host ends in the literal text before the first value.
	_, rest, ok := strings.Cut(s[:first], "://")
	if first < len(s) && (!ok || !strings.ContainsAny(rest, "/?#")) {
		return "must hold parameters in its path or query only, after a literal host"
	}
	a, message := parseURL(b.String())
	if message != "" {
		return message
	}
	if _, err := url.Parse(b.String()); err != nil {
		return "must be a URL: its percent-encoding is broken"
	}
	if len(s) > MaxURL {
		return "must have at most " + strconv.Itoa(MaxURL) + " bytes"
	}
	if !slices.Contains(hosts, a.host) {
		return "leads to " + a.host + ", which is not in target_hosts"
	}
	inFragment := false
	for _, p := range t.parts {
		inFragment = inFragment || contains(p.fixed, "#")
		if p.param == "" {
			continue
		}
		if inFragment {
			return "must hold parameters in its path or query only, not behind #"
		}
		if m := allowed(p.param); m != "" {
			return m
		}
	}
	return ""
}

// expand inserts values. A name without a value gives ok false: the step is skipped. fault names
// the parameter and the rule that its value breaks.
func (t template) expand(text func(name string) (string, bool)) (out string, ok bool, fault *badValue) {
	var b strings.Builder
	for _, p := range t.parts {
		b.WriteString(p.fixed)
		if p.param == "" {
			continue
		}
		s, there := text(p.param)
		if !there {
			return "", false, nil
		}
		if s == "" && !p.inQuery {
			return "", false, &badValue{p.param, "must not be empty: it is a part of an address"}
		}
		encode(&b, s)
	}
	out = b.String()
	if len(out) > MaxURL {
		return "", false, &badValue{t.firstParam(), "makes an address longer than " + strconv.Itoa(MaxURL) + " bytes"}
	}
	if name := t.dots(out, text); name != "" {
		return "", false, &badValue{name, "must not make . or .. a segment of an address"}
	}
	return out, true, nil
}

// badValue is a parameter whose value breaks a rule of addresses.
type badValue struct{ name, rule string }

func (t template) firstParam() string {
	for _, p := range t.parts {
		if p.param != "" {
			return p.param
		}
	}
	return ""
}

// dots returns the parameter in a segment of the path that is . or .., which a browser resolves.
func (t template) dots(out string, text func(string) (string, bool)) string {
	at := 0
	for _, p := range t.parts {
		at += len(p.fixed)
		if p.param == "" || p.inQuery {
			continue
		}
		from := strings.LastIndexByte(out[:at], '/') + 1
		to := len(out)
		if i := strings.IndexAny(out[at:], "/?#"); i >= 0 {
			to = at + i
		}
		segment := strings.ReplaceAll(strings.ToLower(out[from:to]), "%2e", ".")
		if segment == "." || segment == ".." {
			return p.param
		}
		var b strings.Builder
		s, _ := text(p.param)
		encode(&b, s)
		at += b.Len()
	}
	return ""
}

// encode percent-encodes everything but the unreserved characters of RFC 3986.
func encode(b *strings.Builder, s string) {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
}
