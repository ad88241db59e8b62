package skill

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/check"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/problem"
)

var (
	stepID    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	paramName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	fieldName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
	plain     = regexp.MustCompile(`^[\p{L}\p{N}_-]+$`)
)

// reader reads values as the types that they should have, and collects what is wrong.
type reader struct {
	shape    []problem.Field // of the form of one value: VALIDATION
	rules    []problem.Field // between values: BROWSER_SKILL_INVALID
	patterns check.Patterns
	size     int // of all patterns
}

const notNull = "must not be null"

// say adds a fault of form. A field that is null is not missing too.
func (r *reader) say(at, format string, args ...any) {
	if len(r.shape) < maxFaults && !(format == "required" && slices.Contains(r.shape, problem.Field{Path: at, Message: notNull})) {
		r.shape = append(r.shape, problem.Field{Path: at, Message: fmt.Sprintf(format, args...)})
	}
}

// rule adds a fault of a rule.
func (r *reader) rule(at, format string, args ...any) {
	if len(r.rules) < maxFaults {
		r.rules = append(r.rules, problem.Field{Path: at, Message: fmt.Sprintf(format, args...)})
	}
}

// problem returns all faults as one problem: VALIDATION if a value has the wrong form.
func (r *reader) problem() error {
	all := slices.Concat(r.shape, r.rules)
	if len(all) == 0 {
		return nil
	}
	p := problem.Validation(all...)
	if len(r.shape) == 0 {
		p.Code = problem.CodeBrowserSkillInvalid
	}
	return p
}

// readable checks a document as a whole, before anything is read of it.
func (r *reader) readable(at string, doc []byte) bool {
	switch {
	case len(doc) > MaxBytes:
		r.say(at, "must have at most %d bytes", MaxBytes)
	case !utf8.Valid(doc):
		r.say(at, "is not UTF-8")
	case len(doc) > 0 && !json.Valid(doc):
		r.say(at, "is not JSON")
	case scan.Depth(doc) > maxDepth:
		r.say(at, "nests deeper than %d", maxDepth)
	default:
		return true
	}
	return false
}

// clip shortens what a message quotes.
func clip(s string) string { return problem.Clip(s, 60) }

// member returns the path of a member, with a strange name in quotes.
func member(at, name string) string {
	if name = clip(name); plain.MatchString(name) {
		return at + "." + name
	}
	return at + "[" + strconv.Quote(name) + "]"
}

func item(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// object reads an object: its known members. One that is null is a fault, and counts as absent.
func (r *reader) object(at string, raw []byte, known ...string) (map[string][]byte, bool) {
	return r.objectOr(at, raw, nil, known...)
}

// objectOr is object where null is no fault in the nullable members.
func (r *reader) objectOr(at string, raw []byte, nullable []string, known ...string) (map[string][]byte, bool) {
	if scan.KindOf(raw) != scan.Object {
		r.say(at, "must be an object")
		return nil, false
	}
	out := make(map[string][]byte, len(known))
	seen := map[string]bool{}
	scan.Members(raw, func(key string, val []byte) bool {
		switch {
		case !slices.Contains(known, key):
			r.say(member(at, key), "unknown field")
		case seen[key]:
			r.say(member(at, key), "stands twice in one object")
		case scan.KindOf(val) == scan.Null && !slices.Contains(nullable, key):
			r.say(member(at, key), notNull)
		}
		if seen[key] = true; scan.KindOf(val) != scan.Null {
			out[key] = val
		}
		return true
	})
	return out, true
}

// list calls each with the entries of a list, unless there are too few or too many.
func (r *reader) list(at string, raw []byte, least, most int, each func(at string, raw []byte)) {
	if raw == nil {
		if least > 0 {
			r.say(at, "required")
		}
		return
	}
	if scan.KindOf(raw) != scan.List {
		r.say(at, "must be a list")
		return
	}
	n := 0
	scan.Items(raw, func([]byte) bool { n++; return n <= most })
	switch {
	case n > most:
		r.say(at, "must have at most %d entries", most)
		return
	case n < least:
		r.say(at, "must have at least %d entry", least)
		return
	}
	i := 0
	scan.Items(raw, func(v []byte) bool {
		each(item(at, i), v)
		i++
		return true
	})
}

// text reads a text of least to most characters; nil is absent, and a fault if least is not 0.
func (r *reader) text(at string, raw []byte, least, most int) string {
	if raw == nil {
		if least > 0 {
			r.say(at, "required")
		}
		return ""
	}
	if scan.KindOf(raw) != scan.String {
		r.say(at, "must be a string")
		return ""
	}
	s := scan.Text(raw)
	switch n := utf8.RuneCountInString(s); {
	case n > most && least == 0:
		r.say(at, "must have at most %d characters", most)
	case n < least || n > most:
		r.say(at, "must have %d to %d characters", least, most)
	default:
		return s
	}
	return ""
}

// name reads a text of a pattern.
func (r *reader) name(at string, raw []byte, need bool, of *regexp.Regexp, what string) string {
	switch {
	case raw == nil && !need:
	case raw == nil:
		r.say(at, "required")
	case scan.KindOf(raw) != scan.String || !of.MatchString(scan.Text(raw)):
		r.say(at, "must be %s", what)
	default:
		return scan.Text(raw)
	}
	return ""
}

func (r *reader) flag(at string, raw []byte) bool {
	if raw == nil {
		return false
	}
	if scan.KindOf(raw) != scan.Bool {
		r.say(at, "must be true or false")
		return false
	}
	return string(scan.Trim(raw)) == "true"
}

// oneOf reads one of several texts; absent it is otherwise, or a fault if that is empty.
func oneOf[T ~string](r *reader, at string, raw []byte, otherwise T, values ...T) T {
	if raw == nil {
		if otherwise == "" {
			r.say(at, "required")
		}
		return otherwise
	}
	if scan.KindOf(raw) == scan.String {
		if s := T(scan.Text(raw)); slices.Contains(values, s) {
			return s
		}
	}
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	r.say(at, "must be one of %s", strings.Join(names, ", "))
	return ""
}

// number reads a number from least to most.
func (r *reader) number(at string, raw []byte, least, most float64) (float64, bool) {
	if raw == nil {
		return 0, false
	}
	if scan.KindOf(raw) != scan.Number {
		r.say(at, "must be a number")
		return 0, false
	}
	n, err := strconv.ParseFloat(string(scan.Trim(raw)), 64)
	switch {
	case err != nil:
		r.say(at, "is too large a number")
	case n < least || n > most:
		r.say(at, "must be from %v to %v", least, most)
	default:
		return n, true
	}
	return 0, false
}

// integer reads an integer from least to most; absent it is otherwise.
func (r *reader) integer(at string, raw []byte, otherwise, least, most int) int {
	if raw == nil {
		return otherwise
	}
	n, err := strconv.ParseFloat(string(scan.Trim(raw)), 64)
	switch {
	case scan.KindOf(raw) != scan.Number || err == nil && n != math.Trunc(n):
		r.say(at, "must be an integer")
	case err != nil || n < float64(least) || n > float64(most):
		r.say(at, "must be from %d to %d", least, most)
	default:
		return int(n)
	}
	return otherwise
}

// textOf returns the text of a string, a number or a boolean.
func textOf(raw []byte) (string, bool) {
	switch scan.KindOf(raw) {
	case scan.String:
		return scan.Text(raw), true
	case scan.Number, scan.Bool:
		return string(scan.Trim(raw)), true
	}
	return "", false
}

// loose reads a text for which a number or a boolean may stand, nil if it is absent.
func (r *reader) loose(at string, raw []byte, most int) *Text {
	if raw == nil {
		return nil
	}
	s, ok := textOf(raw)
	switch {
	case !ok:
		r.say(at, "must be a string, a number or a boolean")
	case utf8.RuneCountInString(s) > most:
		r.say(at, "must have at most %d characters", most)
	default:
		t := Text(s)
		return &t
	}
	return nil
}

// selector reads a CSS selector; absent it is "", and a fault if it is needed.
func (r *reader) selector(at string, raw []byte, need bool) string {
	least := 0
	if need {
		least = 1
	}
	s := r.text(at, raw, least, MaxSelector)
	switch {
	case s == "":
	case contains(s, "{{"):
		r.rule(at, "must not hold {{: selectors are no templates")
	case !isCSS(s):
		r.rule(at, "must be a CSS selector")
	}
	return s
}

func (r *reader) candidates(at string, raw []byte) []string {
	var out []string
	r.list(at, raw, 0, MaxCandidates, func(at string, raw []byte) { out = append(out, r.selector(at, raw, true)) })
	return out
}

// isCSS reports whether s can be a CSS selector: its brackets and quotes match, and it uses none
// of the notations by which the executor's library recognises other languages and chains (text=,
// //, .., >>, a quoted text): some of them reach into frames.
func isCSS(s string) bool {
	var open []byte
	quote := byte(0)
	s = strings.TrimSpace(s)
	if s == "" || s[0] == '(' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		next := byte(0)
		if i+1 < len(s) {
			next = s[i+1]
		}
		switch {
		case c < 0x20 && c != '\t' && c != '\n' || c == 0x7f:
			return false
		case c == '\\':
			if i++; i == len(s) {
				return false
			}
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '>' && next == '>', c == '`':
			return false
		case c == '(':
			open = append(open, ')')
		case c == '[':
			open = append(open, ']')
		case c == ')' || c == ']':
			if len(open) == 0 || open[len(open)-1] != c {
				return false
			}
			open = open[:len(open)-1]
		case len(open) > 0:
			if c == '"' || c == '\'' {
				quote = c
			}
		case strings.IndexByte("={};@/!\"'", c) >= 0, c == '.' && next == '.':
			return false
		}
	}
	return quote == 0 && len(open) == 0
}

func contains(s, part string) bool { return strings.Contains(s, part) }
