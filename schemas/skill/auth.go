package skill

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/flow/scan"
)

// Limits of secrets, which the specification leaves open.
const (
	MaxSecret      = 8 << 10  // bytes
	MaxCookieBytes = 64 << 10 // of all cookies together, as they were sent
	MaxCookies     = 100
)

// auth reads the auth of a request, which must fit the definition's. No message quotes a value.
func (r *reader) auth(at string, raw []byte, want Auth) map[string]string {
	mode, secrets := AuthNone, map[string]string{}
	var given []byte
	if !r.readable(at, raw) {
		return secrets
	}
	if scan.KindOf(raw) != scan.Null {
		o, ok := r.object(at, raw, "mode", "secrets")
		if !ok {
			return secrets
		}
		mode, given = oneOf(r, at+".mode", o["mode"], "", AuthKinds...), o["secrets"]
	}
	at += ".secrets"
	if given != nil && scan.KindOf(given) != scan.Object {
		r.say(at, "must be an object")
		given = nil
	}
	if mode != "" && mode != want.Kind {
		r.rule("auth.mode", "must be %s, as definition.auth.kind", want.Kind)
		return secrets
	}
	seen := map[string]bool{}
	scan.Members(given, func(name string, val []byte) bool {
		at := member(at, name)
		switch {
		case seen[name]:
			r.say(at, "stands twice in one object")
		case !slices.Contains(want.SecretRefs, name):
			r.rule(at, "is not in definition.auth.secret_refs")
		case scan.KindOf(val) != scan.String:
			r.say(at, "must be a string")
		default:
			if r.secret(at, want.Kind, scan.Text(val)) {
				secrets[name] = scan.Text(val)
			}
		}
		seen[name] = true
		return len(seen) <= MaxBytes/8
	})
	for _, name := range want.SecretRefs {
		if !seen[name] {
			r.rule(member(at, name), "required: definition.auth.secret_refs names it")
		}
	}
	return secrets
}

func (r *reader) secret(at string, kind AuthKind, s string) bool {
	if kind == AuthCookies {
		if _, message := ParseCookies(s); message != "" {
			r.say(at, "%s", message)
			return false
		}
		return true
	}
	message := CheckSecret(s)
	if message != "" {
		r.say(at, "%s", message)
	}
	return message == ""
}

// CheckSecret returns the rule that a secret to type breaks, "" if it breaks none.
func CheckSecret(s string) string {
	if s == "" || len(s) > MaxSecret || strings.ContainsFunc(s, func(c rune) bool { return c < 0x20 || c == 0x7f }) {
		return fmt.Sprintf("must have 1 to %d bytes and no control characters", MaxSecret)
	}
	return ""
}

// Cookie is a cookie of a skill's session.
type Cookie struct {
	Name     string  `json:"name"`
	Value    string  `json:"value"`
	Domain   string  `json:"domain"`
	Path     string  `json:"path"`
	Expires  float64 `json:"expires"`
	HTTPOnly bool    `json:"httpOnly"`
	Secure   bool    `json:"secure"`
	SameSite string  `json:"sameSite"`
}

// Fits reports whether the cookie may be set for a host of target_hosts: its domain is the host or
// a parent of it. Cookies of other domains are never given to the browser.
func (c *Cookie) Fits(host string) bool {
	_, name, ok := hostOf(host, "https")
	domain := strings.ToLower(strings.TrimPrefix(c.Domain, "."))
	if !ok || domain == "" {
		return false
	}
	return name == domain || contains(domain, ".") && strings.HasSuffix(name, "."+domain)
}

// ParseCookies reads the secret of auth kind cookies: a JSON array of { name, value, domain, path?,
// … }. Unknown members are ignored, because browsers export more. No message quotes a value.
func ParseCookies(s string) (cookies []Cookie, message string) {
	const form = "must be a JSON array of 1 to 100 cookies: { name, value, domain, path }"
	if len(s) > MaxCookieBytes || !utf8.ValidString(s) || !json.Valid([]byte(s)) || scan.Depth([]byte(s)) > maxDepth || scan.KindOf([]byte(s)) != scan.List {
		return nil, form
	}
	bad := false
	scan.Items([]byte(s), func(raw []byte) bool {
		if bad = len(cookies) == MaxCookies || scan.KindOf(raw) != scan.Object; bad {
			return false
		}
		text := func(name string) string {
			v, ok := scan.Member(raw, name)
			if !ok || scan.KindOf(v) == scan.Null {
				return ""
			}
			if bad = bad || scan.KindOf(v) != scan.String; bad {
				return ""
			}
			return scan.Text(v)
		}
		truth := func(name string) bool { v, _ := scan.Member(raw, name); return string(scan.Trim(v)) == "true" }
		c := Cookie{Name: text("name"), Value: text("value"), Domain: text("domain"), Path: text("path"), HTTPOnly: truth("httpOnly"), Secure: truth("secure")}
		if v, ok := scan.Member(raw, "expires"); ok && scan.KindOf(v) == scan.Number {
			bad = bad || json.Unmarshal(v, &c.Expires) != nil
		}
		if same := strings.ToLower(text("sameSite")); same == "strict" || same == "lax" || same == "none" {
			c.SameSite = strings.ToUpper(same[:1]) + same[1:]
		}
		if c.Path == "" {
			c.Path = "/"
		}
		for _, s := range []string{c.Name, c.Value, c.Domain, c.Path} {
			bad = bad || strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f || r == ';' })
		}
		bad = bad || c.Name == "" || c.Domain == "" || c.Path[0] != '/'
		cookies = append(cookies, c)
		return !bad
	})
	if bad || len(cookies) == 0 {
		return nil, form
	}
	return cookies, ""
}
