package skill

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// ActionKind is what a person does in a recorder session: the kinds of steps, which are performed
// and recorded, and what marks the recording.
type ActionKind string

// Values of ActionKind besides those of Kind.
const (
	// ActBind makes the value of a recorded step a parameter.
	ActBind ActionKind = "bind"
	// ActCommit marks the commit step: one that is recorded, or a click on an element that is
	// recorded and not performed.
	ActCommit ActionKind = "commit"
	// ActPick makes an element a result field.
	ActPick ActionKind = "pick"
	// ActExpect makes what an element says, or a text of the page, an assertion.
	ActExpect ActionKind = "expect"
	// ActUndo removes the last step. What it did at the site stays.
	ActUndo ActionKind = "undo"
)

// ActionKinds lists every value.
var ActionKinds = func() []ActionKind {
	var all []ActionKind
	for _, k := range Kinds {
		all = append(all, ActionKind(k))
	}
	return append(all, ActBind, ActCommit, ActPick, ActExpect, ActUndo)
}()

// Step returns the kind of step that the action performs, "" if it performs none.
func (k ActionKind) Step() Kind {
	if slices.Contains(Kinds, Kind(k)) {
		return Kind(k)
	}
	return ""
}

// Action is one action of a person in a recorder session.
type Action struct {
	Kind      ActionKind `json:"kind"`
	X         *float64   `json:"x,omitempty"`
	Y         *float64   `json:"y,omitempty"`
	Target    *Locator   `json:"target,omitempty"`
	Value     *Text      `json:"value,omitempty"`
	SecretRef string     `json:"secret_ref,omitempty"`
	Commit    bool       `json:"commit,omitempty"`
	StepID    string     `json:"step_id,omitempty"`
	Param     string     `json:"param,omitempty"`
	Name      string     `json:"name,omitempty"`
	Type      ParamType  `json:"type,omitempty"`
	Attr      Attr       `json:"attr,omitempty"`
}

// Text returns the value of an action, "" if it has none.
func (a *Action) Text() string {
	if a.Value == nil {
		return ""
	}
	return string(*a.Value)
}

// Check validates the form of an action. The error is VALIDATION.
func (a *Action) Check() error {
	var faults []problem.Field
	say := func(path, message string) { faults = append(faults, problem.Field{Path: path, Message: message}) }
	element := a.X != nil || a.Target != nil
	step := a.Kind.Step()
	if (a.X == nil) != (a.Y == nil) {
		say("x", "belongs to y: give both")
	}
	if a.X != nil && a.Target != nil {
		say("target", "must not be given beside x and y")
	}
	if a.Target != nil && len(a.Target.Tries()) == 0 && a.Target.Text == "" {
		say("target", "must have a selector, candidates or a text")
	}
	r := &reader{}
	if a.Target != nil {
		if doc, err := json.Marshal(a.Target); err == nil {
			r.locator("target", doc)
		}
	}
	faults = append(faults, slices.Concat(r.shape, r.rules)...)
	value := a.Text()
	switch a.Kind {
	case ActionKind(Navigate):
		if element {
			say("target", "does not belong to navigate")
		}
		if _, message := parseURL(value); message != "" {
			say("value", message)
		}
	case ActionKind(Click), ActCommit, ActPick:
		if a.Value != nil {
			say("value", "does not belong to "+string(a.Kind))
		}
	case ActionKind(Type), ActionKind(Select):
		if a.Value == nil {
			say("value", "required")
		}
	case ActionKind(Tick):
		if value != "true" && value != "false" {
			say("value", "must be true or false")
		}
	case ActionKind(Press):
		if value == "" || len(value) > maxKey || strings.ContainsFunc(value, unsafe) {
			say("value", fmt.Sprintf("must be a key of at most %d characters, such as Enter", maxKey))
		}
	case ActionKind(Wait):
		if value != "" && !wholeBetween(value, 0, MaxWait) {
			say("value", fmt.Sprintf("must be milliseconds from 0 to %d, or empty", MaxWait))
		} else if value == "" && !element {
			say("value", "required, or an element to wait for")
		}
	case ActionKind(Scroll):
		if !wholeBetween(value, -MaxScroll, MaxScroll) {
			say("value", fmt.Sprintf("must be pixels from %d to %d", -MaxScroll, MaxScroll))
		}
	case ActBind:
		if a.StepID == "" {
			say("step_id", "required")
		}
		if a.Param == "" {
			say("param", "required")
		}
	case ActExpect:
		if value == "" && !element {
			say("value", "required, or an element")
		}
	case ActUndo:
	default:
		say("kind", "must be one of "+strings.Join(names(ActionKinds), ", "))
	}
	switch most := MaxValue; a.Kind { // what is kept until a skill is saved, which takes no more
	case ActionKind(Type), ActionKind(Select), ActExpect, ActBind:
		if a.SecretRef != "" {
			most = MaxSecret
		}
		if utf8.RuneCountInString(value) > most {
			say("value", fmt.Sprintf("must have at most %d characters", most))
		}
	}
	switch {
	case !element && (step == Click || a.Kind == ActPick || a.Kind == ActCommit && a.StepID == ""):
		say("target", "required, or x and y")
	case a.SecretRef != "" && step != Type:
		say("secret_ref", "belongs to type")
	case a.SecretRef != "" && a.Param != "":
		say("param", "must not be given: a secret binds to no parameter")
	case a.Commit && !step.Commits():
		say("commit", "belongs to click and press")
	case a.Param != "" && step != Type && step != Select && step != Tick && a.Kind != ActBind:
		say("param", "belongs to type, select, check and bind")
	}
	if a.Kind == ActPick && !fieldName.MatchString(a.Name) {
		say("name", "must be a letter or _, then up to 63 letters, digits and _")
	}
	if a.Param != "" && (!paramName.MatchString(a.Param) || a.Param == "reason") {
		say("param", "must be a lower-case letter, then up to 63 of a-z, 0-9 and _, and not reason")
	}
	if a.SecretRef != "" && !secretName.MatchString(a.SecretRef) {
		say("secret_ref", "must be a lower-case letter, then up to 63 of a-z, 0-9 and _")
	}
	if len(faults) > 0 {
		return problem.Validation(faults...)
	}
	return nil
}

func names[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// Check validates the selectors of a locator as those of a saved step.
func (l *Locator) Check() error {
	doc, err := json.Marshal(l)
	if err != nil {
		return err
	}
	r := &reader{}
	r.locator("target", doc)
	return r.problem()
}

// meets reports whether two locators, each proved to find one element, find the same.
func (l *Locator) meets(other *Locator) bool {
	return l != nil && other != nil && slices.ContainsFunc(l.Tries(), func(s string) bool { return slices.Contains(other.Tries(), s) })
}

// Element is what a recorder found out about the element of an action.
type Element struct {
	Locator Locator   // each selector was proved to find this element alone
	Type    ParamType // what its values are, "" if nothing tells
	Options []string  // the labels of a list
	Secret  bool      // a password field
}

// Recording is a skill while it is recorded. It holds no secret. The zero value with a StartURL is
// a recording without steps.
type Recording struct {
	StartURL     string
	Hosts        []string // that were visited, in the form of target_hosts
	Steps        []Step
	Params       []Param
	CommitStepID string
	Fields       []Field
	Checks       []Check
	SecretRefs   []string

	made   int // steps, with those that were removed
	known  map[string]Element
	signIn map[string]bool // the steps that are of the sign-in by themselves, not because one behind them is
}

func badAction(path, message string) error {
	return InvalidArgs([]problem.Field{{Path: path, Message: message}})
}

// Visit notes the host of an address that the page visited. One that is no web address, or the
// 51st host, is not noted.
func (r *Recording) Visit(rawURL string) {
	if a, message := parseLanding(rawURL); message == "" && !slices.Contains(r.Hosts, a.host) && len(r.Hosts) < MaxHosts {
		r.Hosts = append(r.Hosts, a.host)
	}
}

// Plan returns the step of an action on an element, without its value if that is a secret. The
// step is not recorded yet. inSignIn is true while the page shows a password field.
func (r *Recording) Plan(a *Action, el *Element, inSignIn bool) (Step, error) {
	s := Step{ID: "s" + strconv.Itoa(r.made+1), Phase: Main, Kind: a.Kind.Step(), Value: a.Value}
	if el != nil {
		l := el.Locator
		s.Target = &l
	}
	signs := slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Secret })
	if s.Kind == Type && (a.SecretRef != "" || el != nil && el.Secret) {
		if a.Param != "" {
			return s, badAction("param", "a secret binds to no parameter")
		}
		if r.CommitStepID != "" {
			return s, badAction("kind", "a secret is typed before the commit step only: undo the steps from it on")
		}
		s.Secret, s.Value, s.SecretRef = true, nil, a.SecretRef
		if s.SecretRef == "" {
			s.SecretRef = r.secretFor(s.Target)
		}
	}
	if s.Secret || inSignIn && signs && r.CommitStepID == "" && !a.Commit {
		s.Phase = SignIn
	}
	if last := r.repeats(&s); last != nil {
		s.ID = last.ID
	} else if len(r.Steps) == MaxSteps {
		return s, badAction("kind", fmt.Sprintf("a skill has at most %d steps", MaxSteps))
	}
	return s, nil
}

// SecretIn returns the reference of the secret that an earlier step typed into a field, "" if none did. What is typed there once
// more is a secret too, whatever the page has made of the field: a site may show a password to the person who types it.
func (r *Recording) SecretIn(l *Locator) string {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Secret && s.Target.meets(l) {
			return s.SecretRef
		}
	}
	return ""
}

// secretFor returns the reference of the secret that a field takes: that of an earlier step into
// the same field, else a new one.
func (r *Recording) secretFor(l *Locator) string {
	if ref := r.SecretIn(l); ref != "" {
		return ref
	}
	for n := 1; ; n++ {
		ref := "password"
		if n > 1 {
			ref += "_" + strconv.Itoa(n)
		}
		if !slices.Contains(r.SecretRefs, ref) {
			return ref
		}
	}
}

// repeats returns the last step if a new one does the same to the same element, so that only the
// last value counts.
func (r *Recording) repeats(s *Step) *Step {
	if len(r.Steps) == 0 || s.Target == nil || s.Kind != Type && s.Kind != Select && s.Kind != Tick {
		return nil
	}
	last := &r.Steps[len(r.Steps)-1]
	focused := last.Kind == Click && s.Kind != Tick && last.ID != r.CommitStepID // a click into the field
	if !focused && (last.Kind != s.Kind || last.Secret != s.Secret) || !last.Target.meets(s.Target) {
		return nil
	}
	return last
}

// Add records a step that Plan returned.
func (r *Recording) Add(s Step, el *Element) {
	if r.known == nil {
		r.known = map[string]Element{}
	}
	if last := r.repeats(&s); last != nil {
		if last.Secret && last.SecretRef != s.SecretRef {
			r.dropSecret(last.SecretRef)
		}
		s.Param = last.Param
		*last = s
		if p := r.param(s.Param); p != nil {
			p.Example = s.Value
		}
	} else {
		r.made++
		r.Steps = append(r.Steps, s)
	}
	if el != nil {
		r.known[s.ID] = *el
	}
	if s.Secret && !slices.Contains(r.SecretRefs, s.SecretRef) {
		r.SecretRefs = append(r.SecretRefs, s.SecretRef)
	}
	if r.signIn == nil {
		r.signIn = map[string]bool{}
	}
	r.signIn[s.ID] = s.InSignIn()
	r.phases()
}

// phases puts the steps up to the last one of the sign-in into that phase, because what leads to it
// belongs to it, and those behind it into the main phase.
func (r *Recording) phases() {
	last := len(r.Steps) - 1
	for last >= 0 && !r.signIn[r.Steps[last].ID] {
		last--
	}
	for i := range r.Steps {
		if r.Steps[i].Phase = Main; i <= last {
			r.Steps[i].Phase = SignIn
		}
	}
}

// dropSecret forgets a reference that no other step types.
func (r *Recording) dropSecret(ref string) {
	n := 0
	for i := range r.Steps {
		if r.Steps[i].SecretRef == ref {
			n++
		}
	}
	if n < 2 {
		r.SecretRefs = slices.DeleteFunc(r.SecretRefs, func(s string) bool { return s == ref })
	}
}

func (r *Recording) step(id string) *Step {
	for i := range r.Steps {
		if r.Steps[i].ID == id {
			return &r.Steps[i]
		}
	}
	return nil
}

func (r *Recording) param(name string) *Param {
	for i := range r.Params {
		if name != "" && r.Params[i].Name == name {
			return &r.Params[i]
		}
	}
	return nil
}

// Commit marks a recorded click or press of the main phase as the commit step.
func (r *Recording) Commit(id string) error {
	s := r.step(id)
	switch {
	case s == nil:
		return badAction("step_id", "names no step")
	case !s.Kind.Commits():
		return badAction("step_id", "must name a click or a press")
	}
	at := slices.IndexFunc(r.Steps, func(s Step) bool { return s.ID == id })
	if slices.ContainsFunc(r.Steps[at:], func(s Step) bool { return s.Secret }) {
		return badAction("step_id", "must name a step after the sign-in")
	}
	for i := at; i < len(r.Steps); i++ {
		delete(r.signIn, r.Steps[i].ID)
	}
	r.phases()
	r.CommitStepID = id
	return nil
}

// Bind makes the value of a step the example of a parameter. Of an address, part is replaced
// where it stands in path and query.
func (r *Recording) Bind(id, name string, of ParamType, part string) error {
	s := r.step(id)
	switch {
	case s == nil:
		return badAction("step_id", "names no step")
	case s.Secret:
		return badAction("step_id", "names a step that types a secret, which binds to no parameter")
	case s.Kind != Type && s.Kind != Select && s.Kind != Tick && s.Kind != Navigate:
		return badAction("step_id", "must name a step that types, selects, ticks or navigates")
	case s.Kind != Navigate && slices.ContainsFunc(r.Steps, func(o Step) bool { return o.ID != id && o.Param == name }):
		return badAction("param", "is the name of another step's parameter")
	case r.param(name) == nil && len(r.Params) == MaxParams:
		return badAction("param", fmt.Sprintf("a skill has at most %d parameters", MaxParams))
	}
	p := Param{Name: name, Type: of, Label: labelOf(name), Required: true, Example: s.Value}
	if p.Type == "" {
		p.Type = String
	}
	known := r.known[id]
	switch s.Kind {
	case Navigate:
		bound, ok := bindAddress(s.Literal(), name, part)
		if !ok {
			return badAction("value", "must be a part of the step's path or query")
		}
		example := Text(part)
		p.Example, p.AllowInURL = &example, true
		t := Text(bound)
		s.Value = &t
	case Tick:
		p.Type = Boolean
	case Select:
		if of == "" && len(known.Options) > 0 {
			p.Type = Enum
		}
		if p.Type == Enum {
			p.Enum = slices.Clone(known.Options)
			if v := s.Literal(); v != "" && !slices.Contains(p.Enum, v) {
				p.Enum = append(p.Enum, v)
			}
			if len(p.Enum) > MaxEnum {
				p.Type, p.Enum = String, nil
			}
		}
	case Type:
		if of == "" && known.Type != "" {
			p.Type = known.Type
		}
		if p.Type == Enum {
			p.Enum = []string{s.Literal()}
		}
	}
	if s.Kind != Navigate {
		s.Param = name
		r.dropParams() // the one that had the value before, unless an address has it too
	}
	if old := r.param(name); old != nil {
		p.AllowInURL = p.AllowInURL || old.AllowInURL
		*old = p
	} else {
		r.Params = append(r.Params, p)
	}
	return nil
}

func labelOf(name string) string {
	words := strings.ReplaceAll(name, "_", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// bindAddress puts {{name}} in place of part, where it is a whole segment of the path or a whole
// value of the query.
func bindAddress(address, name, part string) (string, bool) {
	if part == "" {
		return "", false
	}
	var forms []string
	for _, f := range []string{part, url.PathEscape(part), url.QueryEscape(part)} {
		forms = append(forms, regexp.QuoteMeta(f))
	}
	_, rest, ok := strings.Cut(address, "://")
	if !ok {
		return "", false
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return "", false
	}
	head, tail := address[:len(address)-len(rest)+slash], rest[slash:]
	tail, fragment, framed := strings.Cut(tail, "#")
	whole := regexp.MustCompile(`([/=])(?:` + strings.Join(forms, "|") + `)([/?&]|$)`)
	bound := tail
	for range 2 { // neighbours share a separator
		bound = whole.ReplaceAllString(bound, "${1}{{"+name+"}}${2}")
	}
	if framed {
		fragment = "#" + fragment
	}
	return head + bound + fragment, bound != tail
}

// Pick makes an element a result field.
func (r *Recording) Pick(name string, l Locator, attr Attr, of ParamType) error {
	switch {
	case of != "" && !slices.Contains(FieldTypes, of):
		return badAction("type", "must be string, number or integer")
	case attr != "" && !slices.Contains(Attrs, attr):
		return badAction("attr", "must be text, href or value")
	case l.Selector == "":
		return badAction("target", "no selector finds this element alone")
	}
	f := Field{Name: name, Selector: l.Selector, Candidates: l.Candidates, Attr: attr, Type: of}
	if f.Attr == "" {
		f.Attr = AttrText
	}
	if f.Type == "" {
		f.Type = String
	}
	if i := slices.IndexFunc(r.Fields, func(f Field) bool { return f.Name == name }); i >= 0 {
		r.Fields[i] = f
		return nil
	}
	if len(r.Fields) == MaxResultFields {
		return badAction("name", fmt.Sprintf("a skill has at most %d result fields", MaxResultFields))
	}
	r.Fields = append(r.Fields, f)
	return nil
}

// Expect makes a text an assertion: of an element if l is not nil, else of the page.
func (r *Recording) Expect(l *Locator, text string) error {
	c := Check{Kind: TextPresent, Value: text}
	if l != nil {
		c = Check{Kind: ElementText, Selector: l.Selector, Value: text, Match: MatchContains}
		if text == "" {
			c = Check{Kind: ElementPresent, Selector: l.Selector}
		}
	}
	switch {
	case l != nil && l.Selector == "":
		return badAction("target", "no selector finds this element alone")
	case contains(text, "{{"):
		return badAction("value", "must not hold {{: assertions are no templates")
	case slices.Contains(r.Checks, c):
		return nil
	case len(r.Checks) == MaxAssertions:
		return badAction("kind", fmt.Sprintf("a skill has at most %d assertions", MaxAssertions))
	}
	r.Checks = append(r.Checks, c)
	return nil
}

// Undo removes the last step, and its parameter if no other step uses it. Steps that were of the
// sign-in because of it alone are of the main phase again.
func (r *Recording) Undo() error {
	if len(r.Steps) == 0 {
		return badAction("kind", "there is no step")
	}
	last := r.Steps[len(r.Steps)-1]
	if last.Secret {
		r.dropSecret(last.SecretRef)
	}
	r.Steps = r.Steps[:len(r.Steps)-1]
	delete(r.known, last.ID)
	delete(r.signIn, last.ID)
	r.phases()
	if last.ID == r.CommitStepID {
		r.CommitStepID = ""
	}
	r.dropParams()
	return nil
}

// dropParams forgets the parameters that no step and no address uses.
func (r *Recording) dropParams() {
	d := Definition{Steps: r.Steps, Params: r.Params}
	r.Params = d.Bound()
}

// Definition returns what was recorded as a definition.
func (r *Recording) Definition() *Definition {
	d := &Definition{StartURL: r.StartURL, TargetHosts: append([]string{}, r.Hosts...), Steps: []Step{}, Params: append([]Param{}, r.Params...), CommitStepID: r.CommitStepID,
		Assertions: append([]Check{}, r.Checks...), ResultFields: append([]Field{}, r.Fields...), Compensation: []Step{}, Auth: Auth{Kind: AuthNone, SecretRefs: append([]string{}, r.SecretRefs...)}}
	if len(r.SecretRefs) > 0 {
		d.Auth.Kind = AuthCredentials
	}
	for i := range r.Steps {
		s := r.Steps[i]
		if s.Target != nil {
			l := *s.Target
			l.Candidates = slices.Clone(l.Candidates)
			s.Target = &l
		}
		d.Steps = append(d.Steps, s)
	}
	return d
}

// Examples returns the recorded values by parameter: the arguments of the dry run.
func (r *Recording) Examples() json.RawMessage {
	values := map[string]string{}
	for _, p := range r.Params {
		if p.Example != nil {
			values[p.Name] = string(*p.Example)
		}
	}
	doc, err := json.Marshal(values)
	if err != nil {
		panic(err) // texts
	}
	return doc
}

// RecorderStatus is the status of a recorder session.
type RecorderStatus string

// Values of RecorderStatus (open-parts.md, Browser skills).
const (
	RecorderLive    RecorderStatus = "live"
	RecorderEnded   RecorderStatus = "ended"
	RecorderExpired RecorderStatus = "expired"
)

// RecorderStatuses lists every value.
var RecorderStatuses = []RecorderStatus{RecorderLive, RecorderEnded, RecorderExpired}

// ReplayStatus is what became of the dry run of a recording.
type ReplayStatus string

// Values of ReplayStatus.
const (
	ReplayLanded  ReplayStatus = "succeeded"
	ReplayFailed  ReplayStatus = "failed"
	ReplaySkipped ReplayStatus = "skipped"
)

// ReplayStatuses lists every value.
var ReplayStatuses = []ReplayStatus{ReplayLanded, ReplayFailed, ReplaySkipped}

// Replay is the dry run of a recording.
type Replay struct {
	Status  ReplayStatus      `json:"status" doc:"skipped: no commit step is marked, so that a replay might change something."`
	Code    Code              `json:"code,omitempty" doc:"Why it did not land."`
	StepID  string            `json:"step_id,omitempty" doc:"The step that failed."`
	Message string            `json:"message,omitempty" doc:"One sentence for people."`
	URL     string            `json:"url,omitempty" doc:"Where the page stood before the commit step."`
	Title   string            `json:"title,omitempty" doc:"As the page says."`
	Values  map[string]string `json:"values,omitempty" doc:"What the bound fields held, by parameter."`
}

// RecorderSession is a session in which a skill is recorded (open-parts.md, Browser skills). It
// holds no secret.
type RecorderSession struct {
	ID           id.RecorderSessionID `json:"id" doc:"The id, a version 7 UUID."`
	Status       RecorderStatus       `json:"status" doc:"ended: it was finished, or its page was lost. expired: it was not used in time."`
	StartURL     string               `json:"start_url" doc:"Where it began."`
	URL          string               `json:"url" doc:"Where the page is."`
	Title        string               `json:"title" doc:"As the page says."`
	Steps        []Step               `json:"steps" doc:"What was recorded. A secret has no value here, nor anywhere else."`
	Params       []Param              `json:"params" doc:"The values that were made parameters; the recorded value is the example."`
	CommitStepID string               `json:"commit_step_id,omitempty" doc:"The step that was marked as the commit step."`
	ResultFields []Field              `json:"result_fields" doc:"The elements that were picked."`
	Assertions   []Check              `json:"assertions" doc:"What was marked as expected after the commit."`
	TargetHosts  []string             `json:"target_hosts" doc:"The hosts that the page visited."`
	Auth         Auth                 `json:"auth" doc:"The secrets that the steps type."`
	Shot         string               `json:"screenshot_key" doc:"The picture of the page, a JPEG of GET /v1/browser-skills/artifacts/*, for this person alone and in memory. It changes with each picture; empty: there is none."`
	Width        int                  `json:"width" doc:"Of the page and its pictures, in pixels: the bounds of x."`
	Height       int                  `json:"height" doc:"The bounds of y."`
	Note         string               `json:"note,omitempty" doc:"What else happened in the last action: a dialog, a popup, a refused download; or why the session ended."`
	DryRun       *Replay              `json:"dry_run,omitempty" doc:"The dry run of an ended session."`
	ExpiresAt    time.Time            `json:"expires_at" doc:"UTC. A live session lasts until then unless it is used; an ended one is forgotten then."`
}
