package skill

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"agentsvc/schemas/lifecycle"
)

// Limits of a definition (service.md, Limits).
const (
	MaxSteps        = 60
	MaxParams       = 20
	MaxAssertions   = 10
	MaxResultFields = 20
	MaxCompensation = 10
	MaxValue        = 2_000 // characters of a parameter's value
)

// Limits that the specification leaves open.
const (
	MaxBytes      = 512 << 10 // of a definition
	MaxHosts      = 50
	MaxCandidates = 10
	MaxSelector   = 1_000 // characters
	MaxURL        = 2_048 // bytes of an address, also after its values are inserted
	MaxEnum       = 100
	MaxSecretRefs = 20
	MaxWait       = 60_000  // milliseconds
	MaxScroll     = 100_000 // pixels, in either direction

	maxDepth   = 16
	maxFaults  = 100
	maxText    = 500 // characters of a visible text
	maxKey     = 64  // characters of a key to press
	maxLabel   = 120
	maxPattern = 1_000
	// maxPatternSize bounds the instructions of the patterns of all parameters together: each
	// of them runs over up to 2,000 characters in each call.
	maxPatternSize = 4_000
)

// Definition is a valid definition with its defaults. The tags besides json are for the OpenAPI
// document; read.go does the checks, and a test compares the two.
type Definition struct {
	StartURL     string   `json:"start_url" maxLength:"2048" doc:"Where each session begins: an http or https URL on one of target_hosts, without user info and templates."`
	TargetHosts  []string `json:"target_hosts" minItems:"1" maxItems:"50" doc:"The hosts that the skill may visit: exact, with a port where it is not 443."`
	Steps        []Step   `json:"steps" minItems:"1" maxItems:"60" doc:"What is done, in this order; the sign-in steps first."`
	Params       []Param  `json:"params" required:"false" maxItems:"20" doc:"The values that a call supplies. Only those that a step uses are asked of the model."`
	CommitStepID string   `json:"commit_step_id,omitempty" pattern:"^[A-Za-z0-9_-]{1,64}$" doc:"The one click or press of the main phase that changes something at the site. Omitted: the skill only reads."`
	Assertions   []Check  `json:"assertions" required:"false" maxItems:"10" doc:"What must hold after the commit, in this order."`
	ResultFields []Field  `json:"result_fields" required:"false" maxItems:"20" doc:"What is read from the last page: the skill's output."`
	Compensation []Step   `json:"compensation" required:"false" maxItems:"10" doc:"Steps that run in a fresh session after a commit whose checks failed. They use no parameters and no secrets."`
	Auth         Auth     `json:"auth" required:"false" doc:"How the skill signs in. Omitted: it does not."`
}

// Phase is the part of a skill that a step belongs to.
type Phase string

// Values of Phase.
const (
	SignIn Phase = "auth"
	Main   Phase = "main"
)

// Phases lists every value.
var Phases = []Phase{SignIn, Main}

// Kind is what a step does.
type Kind string

// Values of Kind (service.md, Browser skill).
const (
	Navigate Kind = "navigate"
	Click    Kind = "click"
	Type     Kind = "type"
	Select   Kind = "select"
	Tick     Kind = "check"
	Press    Kind = "press"
	Wait     Kind = "wait"
	Scroll   Kind = "scroll"
)

// Kinds lists every value, in the specification's order.
var Kinds = []Kind{Navigate, Click, Type, Select, Tick, Press, Wait, Scroll}

// Changes reports whether steps of this kind act on the page and so may change something at the
// site: all but those that only look.
func (k Kind) Changes() bool { return k != Navigate && k != Wait && k != Scroll }

// Commits reports whether a step of this kind can be the commit step.
func (k Kind) Commits() bool { return k == Click || k == Press }

// Step is one step.
type Step struct {
	ID        string   `json:"id" pattern:"^[A-Za-z0-9_-]{1,64}$" doc:"Unique in the skill, compensation included."`
	Phase     Phase    `json:"phase,omitempty" enum:"auth,main" doc:"auth: a sign-in step. Omitted: main."`
	Kind      Kind     `json:"kind" enum:"navigate,click,type,select,check,press,wait,scroll" doc:"What is done."`
	Target    *Locator `json:"target,omitempty" null:"true" doc:"The element. Required for click, type, select and check, and for a wait without a value; navigate takes none."`
	Value     *Text    `json:"value" required:"false" maxLength:"2048" doc:"navigate: the URL, which may hold {{param}} in its path and query. type: the text. select: the value or the label. check: true or false. press: the key. wait: milliseconds, or empty to wait for the target. scroll: pixels. null for a secret."`
	Param     string   `json:"param,omitempty" pattern:"^[a-z][a-z0-9_]{0,63}$" doc:"The parameter whose value is typed, selected or ticked. A value beside it is an example and is not used."`
	Secret    bool     `json:"secret,omitempty" doc:"true: the step types the secret that secret_ref names, in phase auth."`
	SecretRef string   `json:"secret_ref,omitempty" pattern:"^[a-z][a-z0-9_]*$" maxLength:"64" doc:"One of auth.secret_refs."`
}

// InSignIn reports whether the step belongs to the sign-in phase.
func (s *Step) InSignIn() bool { return s.Phase == SignIn }

// Literal returns the fixed value of a step, "" if it has none.
func (s *Step) Literal() string {
	if s.Value == nil {
		return ""
	}
	return string(*s.Value)
}

// Text is a string for which a number or a boolean may be written too.
type Text string

// UnmarshalJSON reads a string, or the text of a number or a boolean.
func (t *Text) UnmarshalJSON(b []byte) error {
	s, ok := textOf(b)
	if !ok {
		return fmt.Errorf("is neither text nor a number nor a boolean")
	}
	*t = Text(s)
	return nil
}

// Locator finds an element: by the selector, else by each of the candidates in order, else by its
// visible text.
type Locator struct {
	Selector   string   `json:"selector,omitempty" maxLength:"1000" doc:"A CSS selector. Playwright's other engines are not accepted."`
	Candidates []string `json:"candidates,omitempty" maxItems:"10" maxLength:"1000" doc:"CSS selectors that are tried after selector, in this order."`
	Text       string   `json:"text,omitempty" maxLength:"500" doc:"Visible text, tried last."`
}

// Tries returns the CSS selectors in the order in which they are tried.
func (l *Locator) Tries() []string {
	var out []string
	for _, s := range append([]string{l.Selector}, l.Candidates...) {
		if s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// ParamType is the type of a parameter.
type ParamType string

// Values of ParamType.
const (
	String  ParamType = "string"
	Number  ParamType = "number"
	Integer ParamType = "integer"
	Boolean ParamType = "boolean"
	Enum    ParamType = "enum"
	Date    ParamType = "date"
)

// ParamTypes lists every value, in the specification's order.
var ParamTypes = []ParamType{String, Number, Integer, Boolean, Enum, Date}

// Param is a parameter: one property of the generated tools' JSON Schema.
type Param struct {
	Name       string    `json:"name" pattern:"^[a-z][a-z0-9_]{0,63}$" doc:"The property's name; not reason."`
	Type       ParamType `json:"type" enum:"string,number,integer,boolean,enum,date" doc:"Values are coerced to it. date is YYYY-MM-DD."`
	Label      string    `json:"label,omitempty" maxLength:"120" doc:"What the model and the approver read."`
	Required   bool      `json:"required,omitempty" doc:"false: a call may omit it, and then its steps are skipped."`
	Min        *float64  `json:"min,omitempty" doc:"The least value of a number or an integer."`
	Max        *float64  `json:"max,omitempty" doc:"The greatest value of a number or an integer."`
	MaxLength  int       `json:"max_length,omitempty" minimum:"1" maximum:"2000" doc:"Characters of a string. Omitted: 2000."`
	Pattern    string    `json:"pattern,omitempty" maxLength:"1000" doc:"A regular expression (RE2) that a string must match somewhere."`
	Enum       []string  `json:"enum,omitempty" maxItems:"100" minLength:"1" maxLength:"2000" doc:"The values of an enum."`
	Example    *Text     `json:"example,omitempty" maxLength:"2000" doc:"A hint for the model; not checked."`
	AllowInURL bool      `json:"allow_in_url,omitempty" doc:"true: navigate steps may hold it as {{name}}."`
}

// CheckKind is the kind of an assertion.
type CheckKind string

// Values of CheckKind.
const (
	URLContains    CheckKind = "url_contains"
	TextPresent    CheckKind = "text_present"
	ElementPresent CheckKind = "element_present"
	ElementText    CheckKind = "element_text"
)

// CheckKinds lists every value.
var CheckKinds = []CheckKind{URLContains, TextPresent, ElementPresent, ElementText}

// MatchContains and MatchEquals are the comparisons of an element_text.
const (
	MatchContains = "contains"
	MatchEquals   = "equals"
)

// Check is an assertion about the page after the commit.
type Check struct {
	Kind     CheckKind `json:"kind" enum:"url_contains,text_present,element_present,element_text" doc:"What is checked."`
	Selector string    `json:"selector,omitempty" maxLength:"1000" doc:"A CSS selector: required for element_present and element_text, for no other kind."`
	Value    string    `json:"value,omitempty" maxLength:"2000" doc:"Required for all kinds but element_present, which takes none."`
	Match    string    `json:"match,omitempty" enum:"contains,equals" doc:"Of element_text. Omitted: contains."`
}

// Holds compares what was found with a check of url_contains, text_present or element_text.
func (c *Check) Holds(actual string) bool {
	if c.Kind == ElementText && c.Match == MatchEquals {
		return actual == c.Value
	}
	return contains(actual, c.Value)
}

// Attr is what is read of an element.
type Attr string

// Values of Attr.
const (
	AttrText  Attr = "text"
	AttrHref  Attr = "href"
	AttrValue Attr = "value"
)

// Attrs lists every value.
var Attrs = []Attr{AttrText, AttrHref, AttrValue}

// Field is one field of a skill's output.
type Field struct {
	Name       string    `json:"name" pattern:"^[A-Za-z_][A-Za-z0-9_]{0,63}$" doc:"Unique among the result fields."`
	Selector   string    `json:"selector" maxLength:"1000" doc:"A CSS selector."`
	Candidates []string  `json:"candidates,omitempty" maxItems:"10" maxLength:"1000" doc:"CSS selectors that are tried after selector."`
	Attr       Attr      `json:"attr" required:"false" enum:"text,href,value" default:"text" doc:"What is read of the element."`
	Type       ParamType `json:"type" required:"false" enum:"string,number,integer" default:"string" doc:"What it becomes."`
}

// FieldTypes lists the types of a result field.
var FieldTypes = []ParamType{String, Number, Integer}

// AuthKind is how a skill signs in.
type AuthKind string

// Values of AuthKind.
const (
	AuthNone        AuthKind = "none"
	AuthCredentials AuthKind = "credentials"
	AuthCookies     AuthKind = "cookies"
)

// AuthKinds lists every value.
var AuthKinds = []AuthKind{AuthNone, AuthCredentials, AuthCookies}

// Auth names the secrets of a skill, never their values.
type Auth struct {
	Kind       AuthKind `json:"kind" enum:"none,credentials,cookies" doc:"none takes no secrets, cookies exactly one: a JSON array of cookies."`
	SecretRefs []string `json:"secret_refs" required:"false" maxItems:"20" maxLength:"64" pattern:"^[a-z][a-z0-9_]*$" doc:"The names of the secrets."`
}

// Approval is when a person decides about a run (service.md, Browser skill approval modes).
type Approval string

// Values of Approval.
const (
	AlwaysBeforeRun        Approval = "always_before_run"
	AtCommitPoint          Approval = "at_commit_point"
	DryRunOnly             Approval = "dry_run_only"
	NoneForIdempotentReads Approval = "none_for_idempotent_reads"
)

// Approvals lists every value, in the specification's order.
var Approvals = []Approval{AlwaysBeforeRun, AtCommitPoint, DryRunOnly, NoneForIdempotentReads}

// Limits and defaults of a policy.
const (
	MinSLAMinutes        = 5
	MaxSLAMinutes        = 7 * 24 * 60
	MaxRequiredApprovals = 3

	DefaultApproval          = AtCommitPoint
	DefaultRisk              = lifecycle.RiskMedium
	DefaultRole              = lifecycle.RoleAdmin
	DefaultSLAMinutes        = 1440
	DefaultRequiredApprovals = 1
)

// Policy is a valid policy with its defaults. Manifests and approval policies only tighten it.
type Policy struct {
	Approval          Approval       `json:"approval" required:"false" enum:"always_before_run,at_commit_point,dry_run_only,none_for_idempotent_reads" default:"at_commit_point" doc:"When a person decides. at_commit_point and dry_run_only need a commit step; none_for_idempotent_reads takes none, and needs risk_level low."`
	RiskLevel         lifecycle.Risk `json:"risk_level" required:"false" enum:"low,medium,high,critical" default:"medium" doc:"Label on the approval."`
	ApproverRole      lifecycle.Role `json:"approver_role" required:"false" enum:"owner,admin,manager,member" default:"admin" doc:"The least role that decides."`
	SLAMinutes        float64        `json:"sla_minutes" required:"false" minimum:"5" maximum:"10080" default:"1440" doc:"Minutes until the approval expires, also fractions."`
	RequiredApprovals int            `json:"required_approvals" required:"false" minimum:"1" maximum:"3" default:"1" doc:"Distinct approvers."`
	AllowEditParams   bool           `json:"allow_edit_params" required:"false" default:"false" doc:"true: the approver may change the values."`
}

// Load reads a definition that was valid when it was stored. It does not validate again.
func Load(doc json.RawMessage) (*Definition, error) {
	var d Definition
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("read a browser skill: %w", err)
	}
	return &d, nil
}

// LoadPolicy reads a policy that was valid when it was stored.
func LoadPolicy(doc json.RawMessage) (*Policy, error) {
	var p Policy
	if err := json.Unmarshal(doc, &p); err != nil {
		return nil, fmt.Errorf("read the policy of a browser skill: %w", err)
	}
	return &p, nil
}

// Param returns a parameter by its name, nil if there is none.
func (d *Definition) Param(name string) *Param {
	for i := range d.Params {
		if d.Params[i].Name == name {
			return &d.Params[i]
		}
	}
	return nil
}

// SignInSteps returns the steps of the sign-in phase.
func (d *Definition) SignInSteps() []Step {
	return slices.DeleteFunc(slices.Clone(d.Steps), func(s Step) bool { return !s.InSignIn() })
}

// MainSteps returns the steps of the main phase.
func (d *Definition) MainSteps() []Step {
	return slices.DeleteFunc(slices.Clone(d.Steps), func(s Step) bool { return s.InSignIn() })
}

// Split returns the main steps up to the commit step, the commit step and those behind it. Without
// a commit step all of them come before it.
func (d *Definition) Split() (before []Step, commit *Step, after []Step) {
	steps := d.MainSteps()
	i := slices.IndexFunc(steps, func(s Step) bool { return d.CommitStepID != "" && s.ID == d.CommitStepID })
	if i < 0 {
		return steps, nil, nil
	}
	return steps[:i:i], &steps[i], steps[i+1:]
}

// BeforeCommit returns all steps that are performed before the commit: those of the sign-in, then
// those of the main phase.
func (d *Definition) BeforeCommit() []Step {
	before, _, _ := d.Split()
	return append(d.SignInSteps(), before...)
}

// Bound returns the parameters that a step or an address uses, in their order. The others are
// never asked of the model.
func (d *Definition) Bound() []Param {
	used := map[string]bool{}
	for i := range d.Steps {
		s := &d.Steps[i]
		if s.Param != "" {
			used[s.Param] = true
		}
		if s.Kind == Navigate {
			for _, p := range parseTemplate(s.Literal()).parts {
				used[p.param] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(d.Params), func(p Param) bool { return !used[p.Name] })
}

// Moved reports whether a change leads to an origin (scheme, host, port) that had no secrets before,
// so that they must be dropped (open-parts.md, Changes, "Credentials follow no changed address"). A
// host is reached by the schemes of the addresses that name it; by https if none does.
func Moved(from, to *Definition) bool {
	had := from.origins()
	for _, h := range from.TargetHosts {
		if !had["http://"+h] {
			had["https://"+h] = true
		}
	}
	for o := range to.origins() {
		if !had[o] {
			return true
		}
	}
	return slices.ContainsFunc(to.TargetHosts, func(h string) bool { return !slices.Contains(from.TargetHosts, h) })
}

// origins returns the origins of the addresses that a definition opens, with the hosts as in
// target_hosts.
func (d *Definition) origins() map[string]bool {
	out := map[string]bool{}
	add := func(address string) {
		scheme, _, _ := strings.Cut(address, "://")
		if a, message := parseLanding(address); message == "" {
			out[strings.ToLower(scheme)+"://"+a.host] = true
		}
	}
	add(d.StartURL)
	for _, steps := range [][]Step{d.Steps, d.Compensation} {
		for i := range steps {
			if steps[i].Kind == Navigate {
				add(steps[i].Literal())
			}
		}
	}
	return out
}
