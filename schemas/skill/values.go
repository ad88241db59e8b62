package skill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentsvc/schemas/check"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/problem"
)

// maxArgs is the maximum size of the arguments of a call in bytes: twenty values of 2,000
// characters, each written as an escape.
const maxArgs = 1 << 20

// maxReason is the maximum length of a run's reason in characters.
const maxReason = 1_000

// MaxInteger is the greatest integer that a parameter takes, and -MaxInteger the least: JSON
// readers of every language agree up to it.
const MaxInteger = 1<<53 - 1

const maxDigits = 40 // of a number that is written out

// unsafe reports whether r is a control character or changes the direction of the text around it.
// Marks (U+200E, U+200F, U+061C) and joiners are part of languages and stay.
func unsafe(r rune) bool {
	return unicode.Is(unicode.Cc, r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// Clean removes control characters and bidirectional overrides. Tabs and line ends between words
// become one space.
func Clean(s string) string {
	if !strings.ContainsFunc(s, unsafe) {
		return s
	}
	var b strings.Builder
	gap := false
	for _, r := range s {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			gap = b.Len() > 0
		case unsafe(r):
		default:
			if gap {
				b.WriteByte(' ')
				gap = false
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Form is the kind of a call's arguments.
type Form int

// Values of Form.
const (
	ForRun    Form = iota // of .run: with a reason
	ForDryRun             // of .dry_run and POST …/dry-run: values alone
	ForEdit               // edited_args of an approval of .run: the reason may be left out
)

// Values are the values of a call by parameter, clean and of the declared types.
type Values struct {
	text map[string]string
	json map[string]json.RawMessage
}

// Text returns a value as it is typed into a page; false if the call left the parameter out.
func (v Values) Text(name string) (string, bool) {
	s, ok := v.text[name]
	return s, ok
}

// Names returns the names of the parameters with a value, in order.
func (v Values) Names() []string {
	out := make([]string, 0, len(v.text))
	for name := range v.text {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// JSON returns the values as one object. Equal values have equal bytes: names are in order, and
// numbers are written out without needless digits.
func (v Values) JSON() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, name := range v.Names() {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(name)) // a name is [a-z0-9_]
		b.WriteByte(':')
		b.Write(v.json[name])
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Bound are the arguments of a call.
type Bound struct {
	Values Values
	Reason string // of ForRun and ForEdit
}

// InvalidArgs returns the faults of Bind as the problem INVALID_ARGS.
func InvalidArgs(faults []problem.Field) *problem.Error {
	p := problem.Validation(faults...)
	p.Code = problem.CodeInvalidArgs
	return p
}

// Bind reads the arguments of a call: it cleans values, coerces them to the declared types, checks
// them, and expands the addresses that hold them (service.md, Execution rules). The faults name
// each argument and the rule that it breaks, never a value. The error is that of ctx.
func (d *Definition) Bind(ctx context.Context, form Form, args json.RawMessage) (Bound, []problem.Field, error) {
	b := Bound{Values: Values{text: map[string]string{}, json: map[string]json.RawMessage{}}}
	switch {
	case len(args) > maxArgs:
		return b, []problem.Field{{Path: "args", Message: fmt.Sprintf("must have at most %d bytes", maxArgs)}}, nil
	case !utf8.Valid(args) || !json.Valid(args) || scan.KindOf(args) != scan.Object:
		return b, []problem.Field{{Path: "args", Message: "must be an object"}}, nil
	}
	params := d.Bound()
	patterns, err := patternsOf(ctx, params)
	if err != nil {
		return b, nil, err
	}
	var faults []problem.Field
	say := func(name, rule string) {
		if len(faults) < maxFaults {
			faults = append(faults, problem.Field{Path: name, Message: rule})
		}
	}
	seen := map[string]bool{}
	scan.Members(args, func(name string, raw []byte) bool {
		i := slices.IndexFunc(params, func(p Param) bool { return p.Name == name })
		switch {
		case seen[name]:
			say(member("args", name), "is there twice")
		case name == "reason" && form != ForDryRun:
			var rule string
			if b.Reason, rule = reasonOf(raw); rule != "" {
				say(name, rule)
			}
		case i < 0:
			say(argument(name), "is not a parameter of this skill")
		default:
			p := &params[i]
			text, exact, rule := p.coerce(raw)
			if rule == "" {
				rule = p.check(text, patterns[name])
			}
			if rule != "" {
				say(name, rule)
				break
			}
			b.Values.text[name], b.Values.json[name] = text, exact
		}
		seen[name] = true
		return len(faults) < maxFaults
	})
	for i := range params {
		if params[i].Required && !seen[params[i].Name] {
			say(params[i].Name, "is required")
		}
	}
	if form == ForRun && !seen["reason"] {
		say("reason", "is required")
	}
	if len(faults) > 0 {
		return b, faults, nil
	}
	for i := range d.Steps {
		if d.Steps[i].Kind == Navigate {
			if _, _, f := parseTemplate(d.Steps[i].Literal()).expand(b.Values.Text); f != nil {
				say(f.name, f.rule)
			}
		}
	}
	return b, faults, nil
}

// argument returns the name of an argument that a stranger chose, as a path.
func argument(name string) string {
	if paramName.MatchString(name) {
		return name
	}
	return member("args", name)
}

func reasonOf(raw []byte) (reason, rule string) {
	if scan.KindOf(raw) != scan.String {
		return "", "must be a string"
	}
	reason = Clean(scan.Text(raw))
	if n := utf8.RuneCountInString(reason); n < 1 || n > maxReason {
		return "", fmt.Sprintf("must have 1 to %d characters", maxReason)
	}
	return reason, ""
}

func patternsOf(ctx context.Context, params []Param) (map[string]*check.Pattern, error) {
	var names, exprs []string
	for i := range params {
		if params[i].Pattern != "" {
			names, exprs = append(names, params[i].Name), append(exprs, params[i].Pattern)
		}
	}
	if exprs == nil {
		return nil, nil
	}
	made, err := check.CachedPatterns(ctx, exprs)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*check.Pattern, len(names))
	for i, name := range names {
		out[name] = made[i]
	}
	return out, nil
}

// coerce returns a value of the parameter's type: its text, and its exact JSON.
func (p *Param) coerce(raw []byte) (text string, exact json.RawMessage, rule string) {
	s, ok := textOf(raw)
	if !ok {
		return "", nil, "must be " + article[p.Type]
	}
	s = Clean(s)
	switch p.Type {
	case Number, Integer:
		if scan.KindOf(raw) == scan.Bool {
			return "", nil, "must be " + article[p.Type]
		}
		n, rule := decimal(strings.TrimSpace(s))
		if rule == "" && p.Type == Integer && contains(n, ".") {
			rule = "must be an integer"
		}
		if rule != "" {
			return "", nil, rule
		}
		return n, json.RawMessage(n), ""
	case Boolean:
		if s = strings.ToLower(strings.TrimSpace(s)); s != "true" && s != "false" {
			return "", nil, "must be true or false"
		}
		return s, json.RawMessage(s), ""
	case Date, Enum:
		s = strings.TrimSpace(s)
		if p.Type == Enum && !slices.Contains(p.Enum, s) {
			s, _ = textOf(raw)
			s = Clean(s)
		}
	}
	return s, jsontext.Must(s), ""
}

var article = map[ParamType]string{String: "a string", Number: "a number", Integer: "an integer", Boolean: "true or false", Enum: "one of the values of the parameter", Date: "a date: YYYY-MM-DD"}

var number = regexp.MustCompile(`^(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$`)

// decimal writes a JSON number out: without an exponent and needless zeros, so that equal numbers
// have equal texts.
func decimal(s string) (out, rule string) {
	const many = "has too many digits"
	if len(s) > 4*maxDigits {
		return "", many
	}
	m := number.FindStringSubmatch(s)
	if m == nil {
		return "", "must be a number"
	}
	exponent := 0
	if m[4] != "" {
		var err error
		if exponent, err = strconv.Atoi(m[4]); err != nil || exponent > 4*maxDigits || exponent < -4*maxDigits {
			exponent = 5 * maxDigits // refused below, unless the number is 0
		}
	}
	digits := m[2] + m[3]
	point := len(m[2]) + exponent // digits before the point
	digits, point = strings.TrimLeft(digits, "0"), point-(len(digits)-len(strings.TrimLeft(digits, "0")))
	if digits = strings.TrimRight(digits, "0"); digits == "" {
		return "0", ""
	}
	switch {
	case point > maxDigits || len(digits)-point > maxDigits:
		return "", many
	case point <= 0:
		out = "0." + strings.Repeat("0", -point) + digits
	case point >= len(digits):
		out = digits + strings.Repeat("0", point-len(digits))
	default:
		out = digits[:point] + "." + digits[point:]
	}
	return m[1] + out, ""
}

// check returns the rule that a value of the right type breaks, "" if it breaks none.
func (p *Param) check(s string, pattern *check.Pattern) string {
	if n := utf8.RuneCountInString(s); n > MaxValue || p.MaxLength > 0 && n > p.MaxLength {
		most := MaxValue
		if p.MaxLength > 0 {
			most = p.MaxLength
		}
		return fmt.Sprintf("must have at most %d characters", most)
	}
	switch p.Type {
	case Enum:
		if !slices.Contains(p.Enum, s) {
			return "must be one of the values of the parameter"
		}
	case Date:
		if !isDate(s) {
			return "must be a date: YYYY-MM-DD"
		}
	case Number, Integer:
		n, ok := new(big.Rat).SetString(s)
		switch {
		case !ok:
			return "must be a number"
		case p.Type == Integer && n.Cmp(big.NewRat(MaxInteger, 1)) > 0 || p.Type == Integer && n.Cmp(big.NewRat(-MaxInteger, 1)) < 0:
			return fmt.Sprintf("must be from -%d to %d", int64(MaxInteger), int64(MaxInteger))
		case p.Min != nil && n.Cmp(rat(*p.Min)) < 0:
			return "must be at least " + plainFloat(*p.Min)
		case p.Max != nil && n.Cmp(rat(*p.Max)) > 0:
			return "must be at most " + plainFloat(*p.Max)
		}
	}
	if pattern != nil && !pattern.MatchString(s) {
		return "must match the pattern " + p.Pattern
	}
	return ""
}

func plainFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// rat returns the number that a reader of the JSON text of f sees.
func rat(f float64) *big.Rat {
	n, _ := new(big.Rat).SetString(plainFloat(f)) // a limit is finite
	return n
}

var dateForm = regexp.MustCompile(`^([0-9]{4})-([0-9]{2})-([0-9]{2})$`)

// isDate reports whether s is a day of the Gregorian calendar.
func isDate(s string) bool {
	m := dateForm.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	year, _ := strconv.Atoi(m[1])
	month, _ := strconv.Atoi(m[2])
	day, _ := strconv.Atoi(m[3])
	if month < 1 || month > 12 {
		return false
	}
	days := []int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[month-1]
	if month == 2 && year%4 == 0 && (year%100 != 0 || year%400 == 0) {
		days = 29
	}
	return day >= 1 && day <= days
}

// ValueOf returns what a step types, selects, ticks, presses, waits, scrolls or opens in a call. ok
// is false if the step is skipped because the call left a parameter out. A secret has no value
// here.
func (s *Step) ValueOf(v Values) (value string, ok bool) {
	switch {
	case s.Kind == Navigate:
		out, ok, f := parseTemplate(s.Literal()).expand(v.Text)
		return out, ok && f == nil
	case s.Param != "":
		return v.Text(s.Param)
	}
	return s.Literal(), true
}

// Mismatch is what differs between the page before the commit and what was approved.
type Mismatch struct {
	Field string // the parameter whose value differs, "" if it is the address
	URL   string // the address of the page, if that differs
}

// Compare returns the first difference between what a person approved and the page just before
// the commit: another path of the address, or a bound field, of the sign-in too, that does not hold
// the value that is committed. preview is the address that the person saw, "" if nothing was shown
// before. read is what the fields hold, by parameter.
func (d *Definition) Compare(preview, now string, v Values, read map[string]string) *Mismatch {
	if preview != "" && !SamePage(preview, now) {
		return &Mismatch{URL: now}
	}
	filled := d.BeforeCommit()
	for i := range filled {
		name := filled[i].Param
		want, there := v.Text(name)
		if name == "" || !there {
			continue
		}
		if got, ok := read[name]; !ok || got != want {
			return &Mismatch{Field: name}
		}
	}
	return nil
}

// At returns the preview's address with the changed parameters replaced by their values in v, at the places where a navigate step
// before the commit has them in its path. If no such step leads to that address, At returns preview.
func (d *Definition) At(preview string, v Values, changed []string) string {
	start, path, ok := cutPath(preview)
	if !ok || len(changed) == 0 {
		return preview
	}
	segments := strings.Split(path, "/")
	before, _, _ := d.Split()
	for i := range before {
		if before[i].Kind != Navigate {
			continue
		}
		host, own, ok := cutPath(before[i].Literal())
		if !ok || !strings.EqualFold(host, start) {
			continue
		}
		at := slices.Clone(segments)
		for j, of := range strings.Split(own, "/") {
			switch t := parseTemplate(of); {
			case j == len(at):
				ok = false
			case t.firstParam() == "":
				ok = of == at[j]
			case slices.ContainsFunc(t.parts, func(p part) bool { return slices.Contains(changed, p.param) }):
				at[j], ok, _ = t.expand(v.Text)
			}
			if !ok {
				break
			}
		}
		if ok {
			segments = at
		}
	}
	return start + strings.Join(segments, "/")
}

// cutPath returns an address up to its host, and its path.
func cutPath(address string) (start, path string, ok bool) {
	if i := strings.IndexAny(address, "?#"); i >= 0 {
		address = address[:i]
	}
	i := strings.Index(address, "://")
	if i < 0 {
		return "", "", false
	}
	if j := strings.IndexByte(address[i+3:], '/'); j >= 0 {
		return address[:i+3+j], address[i+3+j:], true
	}
	return address, "/", true
}

// Changed returns the names of the parameters of which two calls have other values. Both are as JSON writes them.
func Changed(before, after json.RawMessage) []string {
	var a, b map[string]json.RawMessage
	if json.Unmarshal(before, &a) != nil || json.Unmarshal(after, &b) != nil {
		return nil
	}
	var out []string
	for name := range b {
		if !bytes.Equal(a[name], b[name]) {
			out = append(out, name)
		}
	}
	for name := range a {
		if _, there := b[name]; !there {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
