package cli

import (
	"bytes"
	"fmt"
	"strings"

	"agentsvc/schemas/id"
)

const (
	// shortDigits is how many hex digits of an id's end a short id has.
	shortDigits = 8
	// maxCandidates is how many things an error lists.
	maxCandidates = 8
)

// Named is a thing that can be named on a command line.
type Named struct {
	ID, Slug string
	Label    string // for people
}

// LookupError says why a text names no thing, or more than one.
type LookupError struct{ Code, Text string }

func (e *LookupError) Error() string { return e.Text }

// Explain completes an error as --json shows it.
func (e *LookupError) Explain(r *Reported) { r.Code = e.Code }

// FullID reports whether text is a full id, and returns it in lower case.
func FullID(text string) (string, bool) {
	u, err := id.Parse(strings.ToLower(text))
	return u.String(), err == nil
}

// DigitsOf returns the hex digits of a part of an id, in lower case.
func DigitsOf(text string) (digits string, ok bool) {
	digits = strings.ToLower(strings.ReplaceAll(text, "-", ""))
	return digits, digits != "" && strings.Trim(digits, "0123456789abcdef") == ""
}

// IsShortID reports whether hex digits are enough of the end of an id.
func IsShortID(digits string) bool { return len(digits) >= shortDigits }

// ShortID returns an id as lists show it: its last 8 hex digits.
func ShortID(id string) string {
	if _, full := FullID(id); !full {
		return Visible(id)
	}
	return id[len(id)-shortDigits:]
}

// ShortOr returns the short form of an id, or a dash for none.
func ShortOr(id *string) string {
	if id == nil || *id == "" {
		return "-"
	}
	return ShortID(*id)
}

// Pick returns the id of the one thing that text names: by its full id, by at least 8 hex
// digits of the end of its id, or, if slugs is set, by its slug.
func Pick(what, text string, slugs bool, all []Named) (string, error) {
	digits, isHex := DigitsOf(text)
	short := isHex && IsShortID(digits)
	var found []Named
	for _, n := range all {
		own, _ := DigitsOf(n.ID)
		if slugs && n.Slug == text && text != "" || short && strings.HasSuffix(own, digits) {
			found = append(found, n)
		}
	}
	switch {
	case len(found) == 1:
		return found[0].ID, nil
	case len(found) > 1:
		return "", &LookupError{"AMBIGUOUS", fmt.Sprintf("%q names %d %s: give a full id%s", Visible(text), len(found), ThingsOf(what), candidates(found, true))}
	case !isHex && !slugs:
		return "", NotAnID(what, text)
	}
	// Things that the caller may have meant are listed and never chosen.
	var near []Named
	for _, n := range all {
		own, _ := DigitsOf(n.ID)
		if isHex && (!short && strings.HasSuffix(own, digits) || len(digits) >= 4 && strings.HasPrefix(own, digits)) {
			near = append(near, n)
		}
	}
	switch {
	case isHex && !short && !slugs:
		return "", &LookupError{"TOO_SHORT", fmt.Sprintf("%q is too short: give the last %d digits of the %s's id, or more%s", Visible(text), shortDigits, what, candidates(near, false))}
	case !slugs && len(near) > 0:
		return "", &LookupError{"NOT_FOUND", fmt.Sprintf("no %s's id ends with %q; the beginning of an id names nothing%s", what, Visible(text), candidates(near, false))}
	case !slugs:
		return "", &LookupError{"NOT_FOUND", fmt.Sprintf("no %s's id ends with %q", what, Visible(text))}
	}
	said := fmt.Sprintf("there is no %s with the slug %q", what, Visible(text))
	if like := Nearest(strings.ToLower(text), slugsOf(all)); like != "" {
		said += fmt.Sprintf("; did you mean %q?", like)
	}
	if len(near) > 0 {
		said += fmt.Sprintf("; an id is named by its last %d digits%s", shortDigits, candidates(near, false))
	}
	return "", &LookupError{"NOT_FOUND", said}
}

// NotAnID returns the error for a text that is not an id.
func NotAnID(what, text string) error {
	return &LookupError{"NOT_FOUND", fmt.Sprintf("%q is not a valid %s id: give the full id or its last %d hex digits", Visible(text), what, shortDigits)}
}

func slugsOf(all []Named) []string {
	var out []string
	for _, n := range all {
		if n.Slug != "" {
			out = append(out, n.Slug)
		}
	}
	return out
}

// candidates lists things below an error, with full ids if short ones may be equal.
func candidates(all []Named, full bool) string {
	var b strings.Builder
	for i, n := range all {
		if i == maxCandidates {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-i)
			break
		}
		shown := n.ID
		if !full {
			shown = ShortID(n.ID)
		}
		fmt.Fprintf(&b, "\n  %s", strings.TrimRight(shown+"  "+n.Label, " "))
	}
	return b.String()
}

// ThingsOf returns the plural of the name of a kind of things.
func ThingsOf(what string) string {
	if stem, y := strings.CutSuffix(what, "y"); y && !strings.HasSuffix(what, "ey") {
		return stem + "ies"
	}
	return what + "s"
}

// SlugOf returns a name in the form of a slug.
func SlugOf(name string) string {
	var b bytes.Buffer
	for _, r := range strings.ToLower(name) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !bytes.HasSuffix(b.Bytes(), []byte("-")):
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}

// Nearest returns the known name that differs least from name. It returns "" if all differ
// in more than a third of it and in more than two characters.
func Nearest(name string, known []string) string {
	best, least := "", max(len(name)/3+1, 3)
	for _, k := range known {
		if d := distance(name, k); d < min(least, len(k)) {
			best, least = k, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
