package embed

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"agentsvc/schemas/embed/origin"
	"agentsvc/schemas/problem"
)

// Anywhere in a list of origins allows every origin, and calls without one.
const Anywhere = "*"

// Origin is the origin of a page. Equal values are the same origin.
type Origin = origin.Origin

var errPlain = errors.New("must begin with https://: http:// is accepted outside production only")

// ParseOrigin parses an origin; see origin.Parse.
func ParseOrigin(s string) (Origin, error) { return origin.Parse(s) }

// Origins returns a list of origins in stored form, each once, and the complaints about it.
// http:// is refused in production.
func Origins(list []string, production bool) (normal []string, bad []problem.Field) {
	normal = []string{}
	for i, s := range list {
		o, err := ParseOrigin(s)
		switch {
		case s == Anywhere:
		case err == nil && production && o.Scheme == "http":
			err = errPlain
			fallthrough
		case err != nil:
			bad = append(bad, problem.Field{Path: "allowed_origins[" + strconv.Itoa(i) + "]", Message: err.Error()})
			continue
		default:
			s = o.String()
		}
		if !slices.Contains(normal, s) {
			normal = append(normal, s)
		}
	}
	return normal, bad
}

// Allowed reports whether a call from the origin may use a key with these origins. The empty
// origin, of a call without one, and null, of a page without one, are allowed only by
// Anywhere.
func Allowed(origins []string, origin string) bool {
	if slices.Contains(origins, Anywhere) {
		return true
	}
	from, err := ParseOrigin(origin)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(origins, func(s string) bool {
		o, err := ParseOrigin(s)
		return err == nil && o == from
	})
}

// Normal returns the origin of a browser's call in the form for comparison and display. One
// that cannot be parsed, such as null, stays as it is.
func Normal(origin string) string {
	if o, err := ParseOrigin(origin); err == nil {
		return o.String()
	}
	return origin
}

// OfURL returns the origin of a URL as browsers send it, empty if it has none.
func OfURL(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if scheme = strings.ToLower(scheme); !ok || scheme != "https" && scheme != "http" {
		return ""
	}
	if end := strings.IndexAny(rest, "/?#\\"); end >= 0 {
		rest = rest[:end]
	}
	if rest = rest[strings.LastIndexByte(rest, '@')+1:]; rest == "" {
		return ""
	}
	// An origin that no list can hold, such as http:// of another machine, is still one
	// origin.
	return Normal(scheme + "://" + strings.ToLower(rest))
}
