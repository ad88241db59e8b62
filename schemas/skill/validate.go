package skill

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"agentsvc/schemas/check"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Input is what a create holds of a skill. The paths of faults begin with the names of the fields.
type Input struct {
	Definition json.RawMessage
	Policy     json.RawMessage // empty or null: the defaults
	Auth       json.RawMessage // empty or null: mode none
	// OwnerAttested must be true.
	OwnerAttested bool
	// Recorded are the steps of a recorder session, which are taken if the definition has none.
	Recorded []Step
	// Residency limits the hosts of start_url and of literal addresses.
	Residency Residency
}

// Skill is a valid skill with its defaults.
type Skill struct {
	Definition *Definition
	Policy     *Policy
	Secrets    map[string]string // by secret_ref; write-only
}

// Parse validates a skill. The error is a problem that names every fault: VALIDATION if a value
// has the wrong form, BROWSER_SKILL_INVALID if only rules between values are broken, and
// BROWSER_SKILL_ATTESTATION_REQUIRED if everything else is right.
func Parse(in Input) (*Skill, error) {
	r := &reader{}
	out := &Skill{Definition: r.definition("definition", in.Definition, in.Recorded)}
	out.Policy = r.policy("policy", in.Policy)
	if len(r.shape) == 0 {
		r.definitionRules("definition", out.Definition, in.Residency)
		r.policyRules("policy", out.Policy, out.Definition)
		out.Secrets = r.auth("auth", in.Auth, out.Definition.Auth)
	}
	if err := r.problem(); err != nil {
		return nil, err
	}
	if !in.OwnerAttested {
		return nil, problem.New(problem.CodeBrowserSkillAttestationRequired, "owner_attested: must be true: only record actions on a system that you own or may automate")
	}
	return out, nil
}

// ParsePolicy validates a policy for a definition that is stored.
func ParsePolicy(raw json.RawMessage, d *Definition) (*Policy, error) {
	r := &reader{}
	p := r.policy("policy", raw)
	if len(r.shape) == 0 {
		r.policyRules("policy", p, d)
	}
	if err := r.problem(); err != nil {
		return nil, err
	}
	return p, nil
}

// ParseAuth validates the auth of a request for a definition that is stored, and returns the
// secrets.
func ParseAuth(raw json.RawMessage, d *Definition) (map[string]string, error) {
	r := &reader{}
	secrets := r.auth("auth", raw, d.Auth)
	if err := r.problem(); err != nil {
		return nil, err
	}
	return secrets, nil
}

func (r *reader) definition(at string, raw []byte, recorded []Step) *Definition {
	d := &Definition{TargetHosts: []string{}, Steps: []Step{}, Params: []Param{}, Assertions: []Check{}, ResultFields: []Field{}, Compensation: []Step{}}
	if !r.readable(at, raw) {
		return d
	}
	if scan.KindOf(raw) == scan.Null {
		r.say(at, "required")
		return d
	}
	o, ok := r.object(at, raw, "start_url", "target_hosts", "steps", "params", "commit_step_id", "assertions", "result_fields", "compensation", "auth")
	if !ok {
		return d
	}
	d.StartURL = r.text(at+".start_url", o["start_url"], 1, MaxURL)
	r.list(at+".target_hosts", o["target_hosts"], 1, MaxHosts, func(at string, raw []byte) {
		s := r.text(at, raw, 1, 260)
		host, _, ok := hostOf(s, "https")
		switch {
		case s == "":
		case !ok || strings.ContainsAny(s, "/?#@*"):
			r.say(at, "must be a host, with a port where it is not 443: www.example.com or www.example.com:8443")
		case slices.Contains(d.TargetHosts, host):
			r.say(at, "is listed twice")
		default:
			d.TargetHosts = append(d.TargetHosts, host)
		}
	})
	steps := o["steps"]
	if len(recorded) > 0 && (steps == nil || scan.KindOf(steps) == scan.List && !hasItems(steps)) {
		steps, _ = json.Marshal(recorded) // steps hold texts and booleans only
	}
	r.list(at+".steps", steps, 1, MaxSteps, func(at string, raw []byte) { d.Steps = append(d.Steps, r.step(at, raw)) })
	r.list(at+".params", o["params"], 0, MaxParams, func(at string, raw []byte) { d.Params = append(d.Params, r.param(at, raw)) })
	d.CommitStepID = r.name(at+".commit_step_id", o["commit_step_id"], false, stepID, "the id of a step")
	r.list(at+".assertions", o["assertions"], 0, MaxAssertions, func(at string, raw []byte) { d.Assertions = append(d.Assertions, r.assertion(at, raw)) })
	r.list(at+".result_fields", o["result_fields"], 0, MaxResultFields, func(at string, raw []byte) { d.ResultFields = append(d.ResultFields, r.field(at, raw)) })
	r.list(at+".compensation", o["compensation"], 0, MaxCompensation, func(at string, raw []byte) {
		d.Compensation = append(d.Compensation, r.step(at, raw))
	})
	d.Auth = r.signIn(at+".auth", o["auth"])
	return d
}

func hasItems(list []byte) bool {
	any := false
	scan.Items(list, func([]byte) bool { any = true; return false })
	return any
}

func (r *reader) step(at string, raw []byte) (s Step) {
	o, ok := r.objectOr(at, raw, []string{"target", "value"}, "id", "phase", "kind", "target", "value", "param", "secret", "secret_ref")
	if !ok {
		return s
	}
	s.ID = r.name(at+".id", o["id"], true, stepID, "1 to 64 letters, digits, - and _")
	s.Phase = oneOf(r, at+".phase", o["phase"], Main, Phases...)
	s.Kind = oneOf(r, at+".kind", o["kind"], "", Kinds...)
	if o["target"] != nil {
		s.Target = r.locator(at+".target", o["target"])
	}
	most := MaxValue
	if s.Kind == Navigate {
		most = MaxURL
	}
	s.Value = r.loose(at+".value", o["value"], most)
	s.Param = r.name(at+".param", o["param"], false, paramName, "the name of a parameter")
	s.Secret = r.flag(at+".secret", o["secret"])
	s.SecretRef = r.secretRef(at+".secret_ref", o["secret_ref"], false)
	return s
}

var secretName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

func (r *reader) secretRef(at string, raw []byte, need bool) string {
	return r.name(at, raw, need, secretName, "a lower-case letter, then up to 63 of a-z, 0-9 and _")
}

func (r *reader) locator(at string, raw []byte) *Locator {
	o, ok := r.object(at, raw, "selector", "candidates", "text")
	if !ok {
		return nil
	}
	l := &Locator{Selector: r.selector(at+".selector", o["selector"], false), Candidates: r.candidates(at+".candidates", o["candidates"])}
	if l.Text = r.text(at+".text", o["text"], 0, maxText); contains(l.Text, "{{") {
		r.rule(at+".text", "must not hold {{: selectors are no templates")
	}
	return l
}

func (r *reader) param(at string, raw []byte) (p Param) {
	o, ok := r.object(at, raw, "name", "type", "label", "required", "min", "max", "max_length", "pattern", "enum", "example", "allow_in_url")
	if !ok {
		return p
	}
	p.Name = r.name(at+".name", o["name"], true, paramName, "a lower-case letter, then up to 63 of a-z, 0-9 and _")
	p.Type = oneOf(r, at+".type", o["type"], "", ParamTypes...)
	p.Label = r.text(at+".label", o["label"], 0, maxLabel)
	p.Required = r.flag(at+".required", o["required"])
	if n, ok := r.number(at+".min", o["min"], -1e15, 1e15); ok {
		p.Min = &n
	}
	if n, ok := r.number(at+".max", o["max"], -1e15, 1e15); ok {
		p.Max = &n
	}
	p.MaxLength = r.integer(at+".max_length", o["max_length"], 0, 1, MaxValue)
	if p.Pattern = r.text(at+".pattern", o["pattern"], 0, maxPattern); p.Pattern != "" {
		r.pattern(at+".pattern", p.Pattern)
	}
	r.list(at+".enum", o["enum"], 0, MaxEnum, func(at string, raw []byte) {
		v := r.text(at, raw, 1, MaxValue)
		switch {
		case v == "":
		case Clean(v) != v:
			r.say(at, "must not hold control characters")
		case slices.Contains(p.Enum, v):
			r.say(at, "is listed twice")
		default:
			p.Enum = append(p.Enum, v)
		}
	})
	p.Example = r.loose(at+".example", o["example"], MaxValue)
	p.AllowInURL = r.flag(at+".allow_in_url", o["allow_in_url"])
	return p
}

func (r *reader) pattern(at, expr string) {
	if r.patterns.Over() || r.size > maxPatternSize {
		return // already reported for the first pattern over the bound
	}
	made, err := r.patterns.Compile(expr)
	switch {
	case errors.Is(err, check.ErrPattern):
		r.say(at, "%s", err)
	case err != nil:
		r.say(at, "must be a regular expression (RE2): %s", clip(err.Error()))
	default:
		if r.size += made.Size; r.size > maxPatternSize {
			r.say(at, "%s", check.ErrPattern)
		}
	}
}

func (r *reader) assertion(at string, raw []byte) (c Check) {
	o, ok := r.object(at, raw, "kind", "selector", "value", "match")
	if !ok {
		return c
	}
	c.Kind = oneOf(r, at+".kind", o["kind"], "", CheckKinds...)
	c.Selector = r.selector(at+".selector", o["selector"], false)
	c.Value = r.text(at+".value", o["value"], 0, MaxValue)
	if o["match"] != nil {
		c.Match = oneOf(r, at+".match", o["match"], "", MatchContains, MatchEquals)
	}
	return c
}

func (r *reader) field(at string, raw []byte) (f Field) {
	o, ok := r.object(at, raw, "name", "selector", "candidates", "attr", "type")
	if !ok {
		return f
	}
	f.Name = r.name(at+".name", o["name"], true, fieldName, "a letter or _, then up to 63 letters, digits and _")
	f.Selector = r.selector(at+".selector", o["selector"], true)
	f.Candidates = r.candidates(at+".candidates", o["candidates"])
	f.Attr = oneOf(r, at+".attr", o["attr"], AttrText, Attrs...)
	f.Type = oneOf(r, at+".type", o["type"], String, FieldTypes...)
	return f
}

func (r *reader) signIn(at string, raw []byte) Auth {
	a := Auth{Kind: AuthNone, SecretRefs: []string{}}
	if raw == nil {
		return a
	}
	o, ok := r.object(at, raw, "kind", "secret_refs")
	if !ok {
		return a
	}
	a.Kind = oneOf(r, at+".kind", o["kind"], "", AuthKinds...)
	r.list(at+".secret_refs", o["secret_refs"], 0, MaxSecretRefs, func(at string, raw []byte) {
		ref := r.secretRef(at, raw, true)
		if slices.Contains(a.SecretRefs, ref) {
			r.say(at, "is listed twice")
		} else if ref != "" {
			a.SecretRefs = append(a.SecretRefs, ref)
		}
	})
	return a
}

// definitionRules are the rules between the values of a definition whose form is right.
func (r *reader) definitionRules(at string, d *Definition, residency Residency) {
	start := at + ".start_url"
	if contains(d.StartURL, "{{") {
		r.rule(start, "must not hold a template")
	} else if a, message := parseURL(d.StartURL); message != "" {
		r.rule(start, "%s", message)
	} else if !slices.Contains(d.TargetHosts, a.host) {
		r.rule(start, "leads to %s, which is not in target_hosts", a.host)
	} else if !residency.Allows(a.host) {
		r.rule(start, "leads to %s, which the tenant's residency does not allow", a.name)
	}
	params := map[string]*Param{}
	for i := range d.Params {
		p, at := &d.Params[i], item(at+".params", i)
		if p.Name == "reason" {
			r.rule(at+".name", "must not be reason: the tool has this argument already")
		} else if params[p.Name] != nil {
			r.rule(at+".name", "is the name of two parameters")
		}
		if params[p.Name] == nil {
			params[p.Name] = p
		}
		r.paramRules(at, p)
	}
	ids := map[string]bool{}
	for i := range d.Steps {
		r.stepRules(item(at+".steps", i), &d.Steps[i], d, params, ids, residency, false)
	}
	for i := range d.Compensation {
		r.stepRules(item(at+".compensation", i), &d.Compensation[i], d, params, ids, residency, true)
	}
	r.commitRules(at, d)
	for i := range d.Assertions {
		r.assertionRules(item(at+".assertions", i), &d.Assertions[i])
	}
	fields := map[string]bool{}
	for i, f := range d.ResultFields {
		if fields[f.Name] {
			r.rule(item(at+".result_fields", i)+".name", "is the name of two result fields")
		}
		fields[f.Name] = true
	}
	switch refs := len(d.Auth.SecretRefs); {
	case d.Auth.Kind == AuthNone && refs > 0:
		r.rule(at+".auth.secret_refs", "must be empty for kind none")
	case d.Auth.Kind == AuthCookies && refs != 1:
		r.rule(at+".auth.secret_refs", "must name exactly one secret for kind cookies")
	}
}

func (r *reader) paramRules(at string, p *Param) {
	only := func(name string, there bool, types ...ParamType) {
		if there && !slices.Contains(types, p.Type) {
			r.rule(at+"."+name, "does not belong to type %s", p.Type)
		}
	}
	only("min", p.Min != nil, Number, Integer)
	only("max", p.Max != nil, Number, Integer)
	only("max_length", p.MaxLength != 0, String)
	only("pattern", p.Pattern != "", String)
	only("enum", p.Enum != nil, Enum)
	if p.Type == Enum && len(p.Enum) == 0 {
		r.rule(at+".enum", "must have at least one value for type enum")
	}
	if p.Min != nil && p.Max != nil && *p.Min > *p.Max {
		r.rule(at+".min", "must not be above max")
	}
}

func (r *reader) stepRules(at string, s *Step, d *Definition, params map[string]*Param, ids map[string]bool, residency Residency, compensates bool) {
	if ids[s.ID] {
		r.rule(at+".id", "is the id of two steps")
	}
	ids[s.ID] = true
	r.targetRules(at, s)
	r.secretRules(at, s, d, compensates)
	bound := params[s.Param]
	switch {
	case s.Param == "":
	case compensates:
		r.rule(at+".param", "must not be given: compensation binds no parameters")
	case s.Secret:
		r.rule(at+".param", "must not be given: a secret binds to no parameter")
	case s.Kind != Type && s.Kind != Select && s.Kind != Tick:
		r.rule(at+".param", "does not belong to %s: type, select and check bind parameters", s.Kind)
	case bound == nil:
		r.rule(at+".param", "names no parameter of the definition: %q", s.Param)
	case s.Kind == Tick && bound.Type != Boolean:
		r.rule(at+".param", "must name a parameter of type boolean: the step is a check")
	}
	value, there := s.Literal(), s.Value != nil && *s.Value != ""
	if s.Kind != Navigate && contains(value, "{{") {
		r.rule(at+".value", "must not hold {{: values bind by param")
		return
	}
	switch s.Kind {
	case Navigate:
		if !there {
			r.rule(at+".value", "required: the URL")
			return
		}
		message := checkAddress(value, d.TargetHosts, func(name string) string {
			switch p := params[name]; {
			case compensates:
				return "must not hold parameters: compensation binds none"
			case p == nil:
				return "names no parameter of the definition: " + strconv.Quote(name)
			case !p.AllowInURL:
				return "must not hold the parameter " + name + ", which is not allow_in_url"
			}
			return ""
		})
		if message == "" {
			if a, _ := parseLanding(value); !residency.Allows(a.host) {
				message = "leads to " + a.name + ", which the tenant's residency does not allow"
			}
		}
		if message != "" {
			r.rule(at+".value", "%s", message)
		}
	case Click:
		if there {
			r.rule(at+".value", "does not belong to click")
		}
	case Type, Select:
		if s.Value == nil && s.Param == "" && !s.Secret {
			r.rule(at+".value", "required, or a param")
		}
	case Tick:
		if there && value != "true" && value != "false" {
			r.rule(at+".value", "must be true or false")
		} else if !there && s.Param == "" {
			r.rule(at+".value", "required, or a param")
		}
	case Press:
		if !there || len(value) > maxKey || strings.ContainsFunc(value, unsafe) {
			r.rule(at+".value", "must be a key of at most %d characters, such as Enter", maxKey)
		}
	case Wait:
		if there && !wholeBetween(value, 0, MaxWait) {
			r.rule(at+".value", "must be milliseconds from 0 to %d, or empty", MaxWait)
		} else if !there && s.Target == nil {
			r.rule(at+".value", "required, or a target to wait for")
		}
	case Scroll:
		if there && !wholeBetween(value, -MaxScroll, MaxScroll) {
			r.rule(at+".value", "must be pixels from %d to %d", -MaxScroll, MaxScroll)
		} else if !there {
			r.rule(at+".value", "required: pixels")
		}
	}
}

func wholeBetween(s string, least, most int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= least && n <= most && !strings.HasPrefix(s, "+")
}

func (r *reader) targetRules(at string, s *Step) {
	empty := s.Target == nil || s.Target.Selector == "" && len(s.Target.Candidates) == 0 && s.Target.Text == ""
	switch {
	case s.Target != nil && s.Kind == Navigate:
		r.rule(at+".target", "does not belong to navigate")
	case s.Target != nil && empty:
		r.rule(at+".target", "must have a selector, candidates or a text")
	case empty && (s.Kind == Click || s.Kind == Type || s.Kind == Select || s.Kind == Tick):
		r.rule(at+".target", "required for %s", s.Kind)
	}
}

func (r *reader) secretRules(at string, s *Step, d *Definition, compensates bool) {
	switch {
	case !s.Secret && s.SecretRef == "":
	case compensates:
		r.rule(at+".secret", "must not be given: compensation types no secrets")
	case !s.Secret:
		r.rule(at+".secret_ref", "belongs to a step with secret: true")
	case s.Kind != Type:
		r.rule(at+".secret", "belongs to type only")
	case s.Value != nil:
		r.rule(at+".value", "must be null: a secret is never stored in a definition")
	case s.SecretRef == "":
		r.rule(at+".secret_ref", "required for a secret")
	case !s.InSignIn():
		r.rule(at+".phase", "must be auth: secrets are opened for the sign-in phase only")
	case d.Auth.Kind == AuthCookies:
		r.rule(at+".secret_ref", "does not belong to auth.kind cookies: its secret is never typed")
	case !slices.Contains(d.Auth.SecretRefs, s.SecretRef):
		r.rule(at+".secret_ref", "is not in auth.secret_refs: %q", s.SecretRef)
	}
}

func (r *reader) commitRules(at string, d *Definition) {
	if d.CommitStepID == "" {
		if len(d.Compensation) > 0 {
			r.rule(at+".compensation", "needs a commit step: it runs after a commit whose checks failed")
		}
		return
	}
	at += ".commit_step_id"
	i := slices.IndexFunc(d.Steps, func(s Step) bool { return s.ID == d.CommitStepID })
	switch {
	case i < 0:
		r.rule(at, "names no step: %q", d.CommitStepID)
	case d.Steps[i].InSignIn() || !d.Steps[i].Kind.Commits():
		r.rule(at, "must name a click or press of the main phase")
	}
}

func (r *reader) assertionRules(at string, c *Check) {
	element := c.Kind == ElementPresent || c.Kind == ElementText
	switch {
	case element && c.Selector == "":
		r.rule(at+".selector", "required for %s", c.Kind)
	case !element && c.Selector != "":
		r.rule(at+".selector", "does not belong to %s", c.Kind)
	}
	switch {
	case c.Kind == ElementPresent && c.Value != "":
		r.rule(at+".value", "does not belong to %s", c.Kind)
	case c.Kind != ElementPresent && c.Value == "":
		r.rule(at+".value", "required for %s", c.Kind)
	case contains(c.Value, "{{"):
		r.rule(at+".value", "must not hold {{: assertions are no templates")
	}
	switch {
	case c.Kind != ElementText && c.Match != "":
		r.rule(at+".match", "does not belong to %s", c.Kind)
	case c.Kind == ElementText && c.Match == "":
		c.Match = MatchContains
	}
}

func (r *reader) policy(at string, raw []byte) *Policy {
	p := &Policy{Approval: DefaultApproval, RiskLevel: DefaultRisk, ApproverRole: DefaultRole, SLAMinutes: DefaultSLAMinutes, RequiredApprovals: DefaultRequiredApprovals}
	if !r.readable(at, raw) || scan.KindOf(raw) == scan.Null {
		return p
	}
	o, ok := r.object(at, raw, "approval", "risk_level", "approver_role", "sla_minutes", "required_approvals", "allow_edit_params")
	if !ok {
		return p
	}
	p.Approval = oneOf(r, at+".approval", o["approval"], DefaultApproval, Approvals...)
	p.RiskLevel = oneOf(r, at+".risk_level", o["risk_level"], DefaultRisk, lifecycle.Risks...)
	p.ApproverRole = oneOf(r, at+".approver_role", o["approver_role"], DefaultRole, lifecycle.RoleOwner, lifecycle.RoleAdmin, lifecycle.RoleManager, lifecycle.RoleMember)
	if n, ok := r.number(at+".sla_minutes", o["sla_minutes"], MinSLAMinutes, MaxSLAMinutes); ok {
		p.SLAMinutes = n
	}
	p.RequiredApprovals = r.integer(at+".required_approvals", o["required_approvals"], DefaultRequiredApprovals, 1, MaxRequiredApprovals)
	p.AllowEditParams = r.flag(at+".allow_edit_params", o["allow_edit_params"])
	return p
}

// policyRules are the save-time rules of service.md, Browser skill.
func (r *reader) policyRules(at string, p *Policy, d *Definition) {
	commits := d.CommitStepID != ""
	changes := slices.ContainsFunc(d.Steps, func(s Step) bool { return !s.InSignIn() && s.Kind.Changes() })
	switch {
	case p.Approval == NoneForIdempotentReads && commits:
		r.rule(at+".approval", "must not be none_for_idempotent_reads: the skill has a commit step")
	case p.Approval == NoneForIdempotentReads && p.RiskLevel != lifecycle.RiskLow:
		r.rule(at+".risk_level", "must be low for none_for_idempotent_reads")
	case commits || p.Approval == NoneForIdempotentReads:
	case p.Approval == AtCommitPoint || p.Approval == DryRunOnly:
		r.rule(at+".approval", "must not be %s: the skill has no commit step", p.Approval)
	case changes:
		r.rule(at+".approval", "must be none_for_idempotent_reads: the skill acts on pages and has no commit step")
	}
}
